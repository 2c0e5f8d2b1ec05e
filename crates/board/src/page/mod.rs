//! The board over HTTP: a page for people, and the same as JSON (`docs/reference/board.md`).
//!
//! ```text
//!   GET /                ?window=1d&refresh=10     HTML, without scripts
//!   GET /board.css
//!   GET /board.json                                every figure of every window
//!   GET /history.json    ?target=…&operation=…&window=…    the columns of one heat strip
//! ```
//!
//! # Invariants
//! - Nothing is loaded from another host, nothing is run: a Content-Security-Policy says so to the
//!   browser.
//! - Whatever comes from a target's name or answer is escaped.
//! - Figures are reckoned off the threads that probe, and at most every two seconds for
//!   `/board.json` and the page's tables.
//!
//! # On failure
//! A question that means nothing gets 400 or 404 and what there is; a history that cannot be
//! read 500.
//!
//! # Limits
//! Everyone who can connect can read. There is nothing to change. Connections are bounded
//! (`guests.rs`), so that visitors leave the board what it needs to ask its targets.

mod guests;
mod heat;
mod html;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::{Query, State};
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse as _, Response};
use axum::routing::get;
use parking_lot::Mutex;
use serde::Serialize;
use tokio::net::TcpListener;

use crate::board::Board;
use crate::figures::{Column, Window};
use crate::report::Report;
use crate::target::Operation;

/// How long figures are shown before they are reckoned again.
const KEPT: Duration = Duration::from_secs(2);

/// What the browser may do with a page: show it with our style sheet.
const POLICY: &str = "default-src 'none'; style-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

const STYLE: &str = include_str!("board.css");

#[derive(Debug)]
struct Site {
    board: Arc<Board>,
    kept: Mutex<Option<(Duration, Arc<Report>)>>,
}

type Asked = Query<BTreeMap<String, String>>;

/// The routes of a board.
pub fn router(board: Arc<Board>) -> Router {
    let site = Arc::new(Site { board, kept: Mutex::new(None) });
    Router::new()
        .route("/", get(page))
        .route("/board.css", get(style))
        .route("/board.json", get(figures))
        .route("/history.json", get(history))
        .with_state(site)
}

/// Serves a board on `listener` until it is dropped.
///
/// # Errors
/// The system's.
pub async fn serve(board: Arc<Board>, listener: TcpListener) -> std::io::Result<()> {
    let guests = guests::Guests::new(board.env().clone(), listener, guests::PACE);
    axum::serve(guests, router(board)).await
}

impl Site {
    /// The report, not older than [`KEPT`].
    async fn report(self: &Arc<Self>) -> Result<Arc<Report>, Response> {
        let now = self.board.env().clock.monotonic();
        if let Some((at, report)) = &*self.kept.lock()
            && now.saturating_sub(*at) < KEPT
        {
            return Ok(Arc::clone(report));
        }
        let board = Arc::clone(&self.board);
        let reckoned = self.reckon(move || board.report(&Window::ALL)).await?;
        let report = Arc::new(reckoned);
        *self.kept.lock() = Some((now, Arc::clone(&report)));
        Ok(report)
    }

    async fn reckon<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> crate::Result<T> + Send + 'static,
    ) -> Result<T, Response> {
        match self.board.env().blocking("figures", work).await {
            Ok(Ok(figures)) => Ok(figures),
            Ok(Err(error)) => {
                Err(refusal(StatusCode::INTERNAL_SERVER_ERROR, "damaged", &error.to_string()))
            }
            Err(_) => Err(refusal(
                StatusCode::SERVICE_UNAVAILABLE,
                "shutting_down",
                "the board is stopping; ask again when it runs",
            )),
        }
    }

    async fn columns(
        &self,
        target: &str,
        operation: Operation,
        window: Window,
    ) -> Result<Option<Vec<Column>>, Response> {
        let (board, target) = (Arc::clone(&self.board), target.to_owned());
        self.reckon(move || board.columns(&target, operation, window)).await
    }
}

fn reply(status: StatusCode, kind: &'static str, body: impl Into<Body>) -> Response {
    let mut response = (status, body.into()).into_response();
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(kind));
    headers.insert(header::CONTENT_SECURITY_POLICY, HeaderValue::from_static(POLICY));
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    headers.insert(header::REFERRER_POLICY, HeaderValue::from_static("no-referrer"));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}

fn json(status: StatusCode, body: &impl Serialize) -> Response {
    match serde_json::to_string(body) {
        Ok(text) => reply(status, "application/json", text),
        Err(error) => {
            reply(StatusCode::INTERNAL_SERVER_ERROR, "text/plain; charset=utf-8", error.to_string())
        }
    }
}

fn refusal(status: StatusCode, code: &str, message: &str) -> Response {
    json(status, &serde_json::json!({ "error": { "code": code, "message": message } }))
}

/// The window that was asked for, or what there is.
fn window(asked: &Asked) -> Result<Window, String> {
    let Some(name) = asked.get("window") else { return Ok(Window::Hour) };
    Window::of(name).ok_or_else(|| {
        let names = Window::ALL.map(Window::name).join(", ");
        format!("there is no window {name:?}; there are {names}")
    })
}

async fn style() -> Response {
    reply(StatusCode::OK, "text/css; charset=utf-8", STYLE)
}

async fn figures(State(site): State<Arc<Site>>) -> Response {
    match site.report().await {
        Ok(report) => json(StatusCode::OK, &*report),
        Err(refusal) => refusal,
    }
}

async fn history(State(site): State<Arc<Site>>, asked: Asked) -> Response {
    let bad = |message: &str| refusal(StatusCode::BAD_REQUEST, "bad_request", message);
    let window = match window(&asked) {
        Ok(window) => window,
        Err(message) => return bad(&message),
    };
    let Some(target) = asked.get("target") else { return bad("say which: ?target=NAME") };
    let operation = asked.get("operation").map_or("read", String::as_str);
    let Some(operation) = Operation::of(operation) else {
        return bad("an operation is read or update");
    };
    match site.columns(target, operation, window).await {
        Ok(Some(columns)) => json(StatusCode::OK, &serde_json::json!({ "columns": columns })),
        Ok(None) => {
            refusal(StatusCode::NOT_FOUND, "not_found", &format!("no target is named {target:?}"))
        }
        Err(refusal) => refusal,
    }
}

async fn page(State(site): State<Arc<Site>>, asked: Asked) -> Response {
    match html_of(&site, &asked).await {
        Ok(text) => reply(StatusCode::OK, "text/html; charset=utf-8", text),
        Err(refusal) => refusal,
    }
}

async fn html_of(site: &Arc<Site>, asked: &Asked) -> Result<String, Response> {
    let window = window(asked)
        .map_err(|message| refusal(StatusCode::BAD_REQUEST, "bad_request", &message))?;
    let refresh = asked.get("refresh").and_then(|seconds| seconds.parse().ok());
    let report = site.report().await?;
    let mut strips = Vec::new();
    for target in &report.targets {
        for operation in &target.operations {
            let columns = site.columns(&target.name, operation.operation, window).await?;
            strips.push(heat::strip(
                &format!("{} {}", target.name, operation.operation.name()),
                &columns.unwrap_or_default(),
                operation.operation,
            ));
        }
    }
    Ok(html::page(&report, window, refresh, &strips))
}

/// Text for HTML and SVG, in elements and quoted attributes.
fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            '\'' => escaped.push_str("&#39;"),
            other => escaped.push(other),
        }
    }
    escaped
}
