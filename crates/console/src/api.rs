//! `/api/v1`: everything the pages show, and the SQL runs, as JSON.
//!
//! # Purpose
//! For the console's own scripts and for programs; `docs/operating/console.md` has each route.
//!
//! # Invariants
//! - Each route is made from the model of its page.
//! - What runs SQL or ends it is a POST that [`visit::may_change`] let through.
//! - A run that may write is refused unless it asks for it and the server allows it.
//!
//! # On failure
//! [`Problem`] as JSON. An SQL error of a run is part of its answer, beside the results before it.
//!
//! # Limits
//! See [`limits`].

use std::time::Duration;

use axum::Json;
use axum::Router;
use axum::extract::rejection::{JsonRejection, QueryRejection};
use axum::extract::{Path, Query};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use serde::Deserialize;
use serde_json::{Value, json};
use telesto_server::inside::Ask;
use tokio_util::sync::CancellationToken;

use crate::access;
use crate::error::Problem;
use crate::limits;
use crate::model::{board, cluster, cost, data, overview, settings, statements};
use crate::pages;
use crate::query::Table;
use crate::routes::Console;
use crate::visit::{self, Caller};

type Answered = Result<Response, Problem>;

pub fn routes() -> Router<Console> {
    Router::new()
        .route("/session", get(session))
        .route("/overview", get(overview))
        .route("/history", get(history))
        .route("/cluster", get(cluster))
        .route("/regions", get(regions))
        .route("/cost", get(cost))
        .route("/statements", get(statements))
        .route("/settings", get(settings))
        .route("/board", get(board))
        .route("/schemas", get(schemas))
        .route("/columns", get(columns))
        .route("/schemas/{schema}", get(schema))
        .route("/schemas/{schema}/{table}", get(table))
        .route("/schemas/{schema}/{table}/rows", get(rows))
        .route("/sql", post(sql))
        .route("/sql/cancel", post(cancel))
}

async fn session(caller: Caller) -> Json<Value> {
    Json(json!({
        "role": caller.user,
        "may_write": caller.console.options.may_write,
        "csrf": caller.session.as_ref().map(|session| session.csrf.as_str()),
        "limits": {
            "rows": limits::ROWS,
            "time_ms": limits::TIME.as_millis() as u64,
            "sql_bytes": limits::SQL,
            "runs": limits::RUNS,
        },
    }))
}

async fn overview(caller: Caller) -> impl IntoResponse {
    Json(overview::load(&caller.reader()).await)
}

async fn history(caller: Caller) -> impl IntoResponse {
    Json(json!({ "history": overview::history(&caller.reader()).await }))
}

async fn cluster(caller: Caller) -> impl IntoResponse {
    Json(cluster::load(&caller.reader()).await)
}

async fn regions(caller: Caller) -> impl IntoResponse {
    Json(cluster::regions(&caller.reader()).await)
}

async fn cost(caller: Caller, Query(asked): Query<pages::cost::Asked>) -> impl IntoResponse {
    Json(cost::load(&caller.reader(), asked.wish()).await)
}

async fn statements(caller: Caller) -> impl IntoResponse {
    Json(statements::load(&caller.reader()).await)
}

async fn settings(caller: Caller) -> impl IntoResponse {
    Json(settings::load(&caller.reader()).await)
}

async fn board(caller: Caller) -> impl IntoResponse {
    Json(board::load(&caller.reader(), &caller.console).await)
}

async fn schemas(caller: Caller) -> impl IntoResponse {
    Json(json!({ "schemas": data::schemas(&caller.reader()).await }))
}

async fn columns(caller: Caller) -> impl IntoResponse {
    Json(json!({ "columns": data::columns(&caller.reader(), None).await }))
}

async fn schema(caller: Caller, Path(schema): Path<String>) -> impl IntoResponse {
    let reader = caller.reader();
    let (tables, keys) =
        futures::join!(data::tables(&reader, &schema), data::foreign_keys(&reader, &schema));
    Json(json!({ "tables": tables, "foreign_keys": keys }))
}

async fn table(caller: Caller, Path((schema, name)): Path<(String, String)>) -> Answered {
    Ok(Json(data::relation(&caller.reader(), &schema, &name).await?).into_response())
}

async fn rows(
    caller: Caller,
    Path((schema, name)): Path<(String, String)>,
    at: Result<Query<pages::data::Where>, QueryRejection>,
) -> Answered {
    let Query(at) = at.map_err(|rejection| Problem::bad_request(rejection.body_text()))?;
    let reader = caller.reader();
    let relation = data::relation(&reader, &schema, &name).await?;
    let limit = at.limit.unwrap_or(limits::PAGE).min(limits::ROWS);
    Ok(Json(data::rows(&reader, &relation, &at.place()?, limit).await?).into_response())
}

/// What is to be run.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Run {
    sql: String,
    /// `read_only` (what it is when left out) or `read_write`.
    #[serde(default)]
    mode: Mode,
    /// Names the run, to cancel it by.
    #[serde(default)]
    id: Option<String>,
    #[serde(default)]
    max_rows: Option<usize>,
    #[serde(default)]
    timeout_ms: Option<u64>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Mode {
    #[default]
    ReadOnly,
    ReadWrite,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Cancel {
    id: String,
}

fn body<T>(read: Result<Json<T>, JsonRejection>) -> Result<T, Problem> {
    read.map(|Json(body)| body).map_err(|rejection| match rejection.status() {
        StatusCode::PAYLOAD_TOO_LARGE => Problem::too_large("a request", limits::BODY),
        _ => Problem::bad_request(rejection.body_text()),
    })
}

/// A run that counts among those of its log-in, or of its role, until it is dropped.
struct UnderWay {
    cancel: CancellationToken,
    _named: Option<access::Run>,
    _counted: Option<access::CountedRun>,
}

impl UnderWay {
    fn begin(caller: &Caller, id: &str) -> Result<Self, Problem> {
        let busy = |message: String| Problem::busy("too_many_runs", message, 1);
        if let Some(session) = &caller.session {
            let run = session.begin_run(id).ok_or_else(|| {
                let most = limits::RUNS;
                busy(format!(
                    "a run of this id is under way, or {most} are; cancel one, or wait for it"
                ))
            })?;
            return Ok(Self { cancel: run.cancel.clone(), _named: Some(run), _counted: None });
        }
        // Without a session a run ends when its connection does; nobody can name it.
        let run = caller.console.sessions.begin_run_without(&caller.user).ok_or_else(|| {
            let most = limits::RUNS_OF_A_ROLE;
            busy(format!("{most} runs of this role are under way; wait for one, or log in"))
        })?;
        Ok(Self { cancel: CancellationToken::new(), _named: None, _counted: Some(run) })
    }
}

async fn sql(
    caller: Caller,
    headers: HeaderMap,
    run: Result<Json<Run>, JsonRejection>,
) -> Answered {
    visit::may_change(&caller, &headers)?;
    let run = body(run)?;
    if run.sql.len() > limits::SQL {
        return Err(Problem::too_large("SQL text", limits::SQL));
    }
    if run.sql.contains('\0') {
        return Err(Problem::bad_request("SQL text has no zero bytes"));
    }
    let may_write = run.mode == Mode::ReadWrite;
    if may_write && !caller.console.options.may_write {
        return Err(Problem::read_only());
    }
    let id = run.id.unwrap_or_default();
    if id.len() > 64 {
        return Err(Problem::bad_request("the id of a run has 64 bytes at most"));
    }
    // Counts until its answer is made.
    let under_way = UnderWay::begin(&caller, &id)?;
    let cancel = under_way.cancel.clone();
    let ask = Ask {
        user: caller.user.clone(),
        role: caller.role,
        client: caller.client,
        application: "telesto console (sql)",
        sql: run.sql,
        may_write,
        timeout: run.timeout_ms.map_or(limits::USUAL_TIME, Duration::from_millis).min(limits::TIME),
        max_rows: run.max_rows.unwrap_or(limits::USUAL_ROWS).clamp(1, limits::ROWS),
        max_bytes: limits::BYTES,
        cancel,
    };
    let answer = caller.console.inside.run(ask).await?;
    let notices: Vec<Value> = answer
        .notices
        .iter()
        .map(|notice| {
            json!({"severity": notice.severity, "code": notice.code.0, "message": notice.message,
                   "detail": notice.detail, "hint": notice.hint})
        })
        .collect();
    let results: Vec<Value> = answer
        .results
        .into_iter()
        .map(|answered| {
            let tag = answered.tag.clone();
            let Table { columns, rows, cut, .. } = Table::of(answered, "");
            json!({"tag": tag, "columns": columns, "rows": rows, "cut": cut})
        })
        .collect();
    let body = json!({
        "results": results,
        "left_out": answer.left_out,
        "notices": notices,
        "error": answer.error.as_ref().map(Problem::from),
        "rolled_back": answer.rolled_back,
        "took_ms": answer.took.as_secs_f64() * 1000.0,
        "cost": answer.cost,
    });
    Ok(Json(body).into_response())
}

async fn cancel(
    caller: Caller,
    headers: HeaderMap,
    cancel: Result<Json<Cancel>, JsonRejection>,
) -> Answered {
    visit::may_change(&caller, &headers)?;
    let cancel = body(cancel)?;
    let cancelled = caller.session.as_ref().is_some_and(|session| session.cancel(&cancel.id));
    Ok(Json(json!({ "cancelled": cancelled })).into_response())
}
