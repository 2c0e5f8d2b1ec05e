//! HTTP: health, metrics, the key-value API and its OpenAPI description, and the console that is
//! mounted beside them.
//!
//! # Invariants
//! - The routes are those of [`routes`]; `openapi.json` describes exactly them (tested).
//! - Every error is JSON (see [`reply`]).
//! - Without authentication only requests whose `Host` is a loopback name are answered: a web page
//!   that has its own name resolve to 127.0.0.1 cannot use a visitor's browser to reach the data.
//!
//! - Whoever has proven nothing takes no place of those who have: a place of `Limits::max_requests`
//!   is taken after authentication, forms are read before it, and passwords are proven in places of
//!   their own (`Clients::proving`).
//! - Liveness, health and readiness take no place at all: they are answered however busy the node
//!   is.
//!
//! # On failure
//! A client that stalls in its headers, its body, its answer or between requests is dropped: see
//! `serve.rs`.
//!
//! # Limits
//! `Limits::max_requests` at once until their answers are sent, more get 503, as do answers that
//! are large, and requests whose bodies are (`bodies.rs`), when `Limits::wire_memory_bytes` of such
//! are there; HTTP/1.1 only; TLS where it is asked for (`ServerConfig::http_tls`), without clients'
//! certificates.

mod auth;
mod bodies;
pub mod health;
pub mod kv;
pub mod ready;
pub mod reply;
mod serve;
pub mod session;
pub mod token;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::{DefaultBodyLimit, MatchedPath, Request, State};
use axum::http::{Extensions, StatusCode, header};
use axum::middleware::{self, Next};
use axum::response::{Html, IntoResponse, Response};
use axum::routing::{MethodRouter, get};
use hyper::body::Body as _;
use metrics_exporter_prometheus::PrometheusHandle;
use telesto_common::Env;
use telesto_sql::SqlEngine;
use telesto_txn::Database;
use tokio::net::TcpListener;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::attempts::Attempts;
use crate::clients::Clients;
use crate::config::ServerConfig;
use crate::http::reply::ApiError;
use crate::http::serve::{Held, Pace, accept};
use crate::kv::Kv;
use crate::wire::stream::Stop;

/// The OpenAPI description that the server serves.
pub const OPENAPI: &str = include_str!("openapi.json");
const LANDING: &str = include_str!("landing.html");
/// Longest time of one request.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(60);
/// Longest form, bytes: what is taken in of somebody who has proven nothing.
const MOST_FORM: usize = 64 << 10;
/// An answer that is longer counts for the memory of answers.
const LARGE: u64 = 64 << 10;
/// Connections of the status port.
const STATUS_CONNECTIONS: usize = 256;
/// Without progress on the status port, where everything is short.
const STATUS_STALL: Duration = Duration::from_secs(5);
/// Renderings of the metrics at once on the status port.
const SCRAPES: usize = 16;

/// Where a request comes from: an extension of every request.
#[derive(Clone, Copy, Debug)]
pub struct Peer {
    /// Whose address it is.
    pub address: SocketAddr,
    /// Whether it came by TLS that ends here.
    pub encrypted: bool,
}

impl Peer {
    /// Where the request with these extensions comes from.
    #[must_use]
    pub fn of(extensions: &Extensions) -> Self {
        // Requests that come by no socket are this process's own.
        let own = Self { address: SocketAddr::from(([127, 0, 0, 1], 0)), encrypted: false };
        extensions.get::<Self>().copied().unwrap_or(own)
    }
}

/// What every handler sees.
#[derive(Clone, Debug)]
pub struct HttpState {
    pub(crate) kv: Kv,
    pub(crate) sessions: session::Sessions,
    env: Env,
    engine: Arc<SqlEngine>,
    database: Arc<dyn Database>,
    config: Arc<ServerConfig>,
    metrics: Option<PrometheusHandle>,
    requests: Arc<Semaphore>,
    /// Of visitors of the console who have shown no session.
    strangers: Arc<Semaphore>,
    proving: Arc<Semaphore>,
    /// Of the status port.
    scrapes: Arc<Semaphore>,
    /// A permit for each KiB of the large answers that are being sent, and of requests that are
    /// being taken in.
    sending: Arc<Semaphore>,
    passwords: Arc<auth::Passwords>,
    attempts: Arc<Attempts>,
    health: Arc<health::Health>,
    ready: Arc<ready::Readiness>,
}

impl HttpState {
    /// Over the database of `engine`.
    #[must_use]
    pub fn new(
        env: Env,
        engine: &Arc<SqlEngine>,
        config: Arc<ServerConfig>,
        clients: &Clients,
        metrics: Option<PrometheusHandle>,
    ) -> Self {
        let database = Arc::clone(engine.database());
        let health = health::Health::new(env.clone(), Arc::clone(engine));
        Self {
            kv: Kv::new(env.clone(), Arc::clone(&database)),
            sessions: session::Sessions::new(env.clone(), Arc::clone(&database)),
            ready: ready::Readiness::new(env.clone(), Arc::clone(&health), config.standing.clone()),
            health,
            requests: Arc::new(Semaphore::new(config.limits.max_requests)),
            strangers: Arc::new(Semaphore::new((config.limits.max_requests / 4).max(1))),
            proving: Arc::clone(&clients.proving),
            scrapes: Arc::new(Semaphore::new(SCRAPES)),
            sending: Arc::new(Semaphore::new(kib(config.limits.wire_memory_bytes) as usize)),
            passwords: Arc::default(),
            attempts: Arc::clone(&clients.attempts),
            env,
            engine: Arc::clone(engine),
            database,
            config,
            metrics,
        }
    }

    /// From when `stop` begins this node is not ready.
    pub fn stops_with(&self, stop: &Stop) {
        self.ready.stops_with(stop.drain.clone());
    }
}

/// Every route: its path as OpenAPI writes it, its methods, its handlers.
#[must_use]
pub fn routes() -> Vec<(&'static str, &'static [&'static str], MethodRouter<HttpState>)> {
    vec![
        ("/", &["get"][..], get(|| async { Html(LANDING) })),
        ("/health", &["get"], get(health::get)),
        ("/ready", &["get"], get(ready::get)),
        ("/metrics", &["get"], get(render_metrics)),
        ("/openapi.json", &["get"], get(openapi)),
        ("/v1/kv", &["get"], get(kv::scan)),
        ("/v1/kv/{key}", &["get", "put", "delete"], get(kv::get).put(kv::put).delete(kv::delete)),
        ("/v1/txn/{id}", &["get"], get(kv::transaction)),
    ]
}

/// The whole application; with a console, `/` and what is below it that no route of ours has is the
/// console's.
pub fn router(state: HttpState, console: Option<Router>) -> Router {
    let mut router = Router::new();
    for (path, _, handlers) in routes() {
        if path == "/" && console.is_some() {
            continue;
        }
        // Keys may hold slashes: the last segment takes them all.
        router = router.route(&path.replace("{key}", "{*key}"), handlers);
    }
    let router = router
        .fallback(|| async {
            let message = "no such path; GET /openapi.json lists them";
            ApiError::new(StatusCode::NOT_FOUND, "no_such_path", message)
        })
        .method_not_allowed_fallback(|| async {
            let message = "this path does not take that method; GET /openapi.json lists them";
            ApiError::new(StatusCode::METHOD_NOT_ALLOWED, "method_not_allowed", message)
        })
        .layer(DefaultBodyLimit::max(state.config.limits.max_body_bytes))
        .layer(middleware::from_fn_with_state(state.clone(), guard))
        .with_state(state.clone());
    match console {
        None => router,
        Some(console) => {
            router.merge(console.layer(middleware::from_fn_with_state(state, guard_console)))
        }
    }
}

/// Before and after every handler of the console, which knows its users by itself: admission,
/// deadline, measurement.
async fn guard_console(State(state): State<HttpState>, request: Request, next: Next) -> Response {
    let begun = state.env.clock.monotonic();
    let handled = within(&state, async {
        auth::check_host(&state.config.auth, request.headers())?;
        let request = with_form(request).await?;
        // A page is sent as slowly as its reader likes: what anybody gets takes no place of those
        // who have a session or a password. Who shows a session that is none is sent away at once.
        let permit = match is_for_anybody(&request) {
            true => Arc::clone(&state.strangers).try_acquire_owned().map_err(|_| busy())?,
            false => admission(&state)?,
        };
        Ok(sent(&state, next.run(request).await, permit))
    });
    let response = handled.await;
    measure(&state, "console", begun, &response);
    response
}

/// Whether the console answers this to somebody without a session.
fn is_for_anybody(request: &Request) -> bool {
    let path = request.uri().path();
    path.starts_with("/assets/")
        || path.starts_with("/login")
        || !request.headers().contains_key(header::COOKIE)
}

/// Before and after every handler: authentication, admission, deadline, measurement.
async fn guard(State(state): State<HttpState>, request: Request, next: Next) -> Response {
    let begun = state.env.clock.monotonic();
    let route = request.extensions().get::<MatchedPath>().map_or("none", MatchedPath::as_str);
    let route = routes_label(route);
    if (route == health::PATH || route == ready::PATH)
        && auth::is_for_us(&state.config.auth, request.headers())
    {
        // Whoever watches over the node has no password, and is answered however busy it is.
        return next.run(request).await;
    }
    let peer = Peer::of(request.extensions());
    let what = format!("HTTP {} {route}", request.method());
    let need = auth::Need::of(route, request.method());
    let handled = within(&state, async {
        let asked = auth::Asked { peer, headers: request.headers(), need, what };
        let known = (&*state.passwords, &state.attempts, &state.proving);
        auth::check(&state.env, &state.engine, &state.config, known, asked).await?;
        let permit = admission(&state)?;
        let (request, taken) =
            bodies::counted(request, (&state.sending, state.config.limits.wire_memory_bytes));
        let response = next.run(request).await;
        taken.whole()?;
        Ok(sent(&state, response, permit))
    });
    let response = handled.await;
    measure(&state, route, begun, &response);
    response
}

/// The request with its form, if it brings one: forms come from those who have proven nothing yet,
/// and the slow among them must not take others' places. Any other body is read by a handler that
/// knows by then who sends it.
async fn with_form(request: Request) -> Result<Request, ApiError> {
    let is_form = request
        .headers()
        .get(header::CONTENT_TYPE)
        .is_some_and(|kind| kind.as_bytes().starts_with(b"application/x-www-form-urlencoded"));
    if !is_form {
        return Ok(request);
    }
    let (head, body) = request.into_parts();
    let body = axum::body::to_bytes(body, MOST_FORM).await.map_err(|error| {
        let message =
            format!("the form cannot be read: {error}; a form has {MOST_FORM} bytes at most");
        ApiError::new(StatusCode::BAD_REQUEST, "bad_request", message)
    })?;
    Ok(Request::from_parts(head, Body::from(body)))
}

/// `response`, which keeps its place until it is sent, and if it is large the memory that it takes.
fn sent(state: &HttpState, mut response: Response, permit: OwnedSemaphorePermit) -> Response {
    let size = response.body().size_hint();
    let size = size.exact().unwrap_or(size.lower());
    let mut held = vec![permit];
    if size > LARGE {
        let all = state.config.limits.wire_memory_bytes;
        match Arc::clone(&state.sending).try_acquire_many_owned(kib(size.min(all))) {
            Ok(memory) => held.push(memory),
            Err(_) => {
                let message = "too many large answers are being sent; try again shortly, or ask for less; a write has taken effect";
                let status = StatusCode::SERVICE_UNAVAILABLE;
                return ApiError::new(status, "too_many_requests", message).into_response();
            }
        }
    }
    response.extensions_mut().insert(Held::new(held));
    response
}

fn kib(bytes: u64) -> u32 {
    u32::try_from(bytes >> 10).unwrap_or(u32::MAX)
}

/// What `handler` answers, unless it takes too long.
async fn within(
    state: &HttpState,
    handler: impl Future<Output = Result<Response, ApiError>>,
) -> Response {
    let deadline = state.env.deadline(REQUEST_TIMEOUT);
    match state.env.within(deadline, "answering a request", handler).await {
        Ok(response) => response.unwrap_or_else(IntoResponse::into_response),
        Err(_) => ApiError::new(
            StatusCode::SERVICE_UNAVAILABLE,
            "timeout",
            "the request took longer than 60 s and was given up; a write may still have taken effect: read before repeating it",
        )
        .into_response(),
    }
}

fn measure(state: &HttpState, route: &'static str, begun: Duration, response: &Response) {
    let status = response.status().as_u16().to_string();
    metrics::counter!("telesto_http_requests_total", "route" => route, "status" => status)
        .increment(1);
    let taken = state.env.clock.monotonic().saturating_sub(begun);
    metrics::histogram!("telesto_http_request_seconds", "route" => route)
        .record(taken.as_secs_f64());
}

/// A label from a fixed set: clients must not be able to make new time series.
fn routes_label(matched: &str) -> &'static str {
    let written = matched.replace("{*key}", "{key}");
    routes().into_iter().find(|(path, ..)| *path == written).map_or("none", |(path, ..)| path)
}

fn admission(state: &HttpState) -> Result<OwnedSemaphorePermit, ApiError> {
    Arc::clone(&state.requests).try_acquire_owned().map_err(|_| busy())
}

fn busy() -> ApiError {
    let message = "too many requests at once; try again shortly";
    ApiError::new(StatusCode::SERVICE_UNAVAILABLE, "too_many_requests", message)
}

async fn render_metrics(State(state): State<HttpState>) -> Result<impl IntoResponse, ApiError> {
    let handle = state.metrics.as_ref().ok_or_else(|| {
        let message = "this process installed no metrics recorder; run `telesto start`";
        ApiError::new(StatusCode::SERVICE_UNAVAILABLE, "no_metrics", message)
    })?;
    let (lsn, _) = state.database.applied();
    // Exact up to 2^53 entries.
    metrics::gauge!("telesto_applied_lsn").set(lsn.0 as f64);
    let ready = state.ready.look().await;
    metrics::gauge!("telesto_ready").set(f64::from(u8::from(ready.is_ready())));
    let kind = [(header::CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")];
    Ok((kind, handle.render()))
}

async fn openapi() -> impl IntoResponse {
    ([(header::CONTENT_TYPE, "application/json")], OPENAPI)
}

/// Health, readiness and metrics, for whoever can connect: no data, and nothing that can be
/// changed.
pub fn status_router(state: HttpState) -> Router {
    Router::new()
        .route(health::PATH, get(health::get))
        .route(ready::PATH, get(ready::get))
        .route("/live", get(|| async { "alive\n" }))
        .route("/metrics", get(render_metrics))
        .fallback(|| async {
            let message = "here are /health, /ready, /live and /metrics only";
            ApiError::new(StatusCode::NOT_FOUND, "no_such_path", message)
        })
        .layer(middleware::from_fn_with_state(state.clone(), guard_status))
        .with_state(state)
}

/// Deadline of what needs no password, and admission to what costs more than a few bytes.
async fn guard_status(State(state): State<HttpState>, request: Request, next: Next) -> Response {
    within(&state, async {
        if request.uri().path() != "/metrics" {
            // Who watches over the node would end one that does not answer.
            return Ok(next.run(request).await);
        }
        let permit = Arc::clone(&state.scrapes).try_acquire_owned().map_err(|_| busy())?;
        let mut response = next.run(request).await;
        response.extensions_mut().insert(Held::new(vec![permit]));
        Ok(response)
    })
    .await
}

/// Serves health, readiness and metrics until the server has stopped: they tell of the stop while
/// it lasts.
pub async fn serve_status(listener: TcpListener, state: HttpState, stop: Stop) {
    let router = status_router(state.clone());
    let end = stop.kill.clone();
    let stop = Stop { drain: end.clone(), ..stop };
    let limits = &state.config.limits;
    let most = STATUS_CONNECTIONS.min(limits.max_connections);
    let pace = Pace { most, stall: STATUS_STALL.min(limits.stall) };
    accept((listener, None), (state.env.clone(), pace), router, stop, &end).await;
}

/// Serves until the server drains, then finishes the requests under way.
pub async fn serve(listener: TcpListener, state: HttpState, console: Option<Router>, stop: Stop) {
    let router = router(state.clone(), console);
    state.stops_with(&stop);
    let end = stop.drain.clone();
    let tls = state.config.tls.as_ref().filter(|_| state.config.http_tls);
    let tls = tls.cloned();
    let limits = &state.config.limits;
    let pace = Pace { most: limits.max_connections, stall: limits.stall };
    accept((listener, tls), (state.env.clone(), pace), router, stop, &end).await;
}
