//! HTTP: health, metrics, the key-value API and its OpenAPI description, and the console that is mounted beside them.
//!
//! # Invariants
//! - The routes are those of [`routes`]; `openapi.json` describes exactly them (tested).
//! - Every error is JSON (see [`reply`]).
//! - Without authentication only requests whose `Host` is a loopback name are answered: a web page
//!   that has its own name resolve to 127.0.0.1 cannot use a visitor's browser to reach the data.
//!
//! # On failure
//! A client that stalls in its headers, its body or between requests is dropped after `Limits::stall`.
//!
//! # Limits
//! `Limits::max_requests` at once, more get 503; HTTP/1.1 only; TLS where it is asked for (`ServerConfig::http_tls`), without
//! clients' certificates.

mod auth;
pub mod health;
pub mod kv;
pub mod ready;
pub mod reply;
pub mod session;
pub mod token;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::{DefaultBodyLimit, MatchedPath, Request, State};
use axum::http::{Extensions, StatusCode, header};
use axum::middleware::{self, Next};
use axum::response::{Html, IntoResponse, Response};
use axum::routing::{MethodRouter, get};
use hyper::body::Incoming;
use hyper::service::{Service as _, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use metrics_exporter_prometheus::PrometheusHandle;
use telesto_common::Env;
use telesto_sql::SqlEngine;
use telesto_txn::Database;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_rustls::server::TlsStream;
use tokio_util::sync::CancellationToken;

use crate::attempts::Attempts;
use crate::clients::Clients;
use crate::config::ServerConfig;
use crate::http::reply::ApiError;
use crate::kv::Kv;
use crate::tls::Tls;
use crate::wire::stream::Stop;

/// The OpenAPI description that the server serves.
pub const OPENAPI: &str = include_str!("openapi.json");
const LANDING: &str = include_str!("landing.html");
/// Longest time of one request.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(60);
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

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

/// The whole application; with a console, `/` and what is below it that no route of ours has is the console's.
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

/// Before and after every handler of the console, which knows its users by itself: admission, deadline, measurement.
async fn guard_console(State(state): State<HttpState>, request: Request, next: Next) -> Response {
    let begun = state.env.clock.monotonic();
    let admitted = admission(&state).and_then(|permit| {
        auth::check_host(&state.config.auth, request.headers())?;
        Ok(permit)
    });
    let response = match admitted {
        Err(refusal) => refusal.into_response(),
        Ok(_permit) => within(&state, next.run(request)).await,
    };
    measure(&state, "console", begun, &response);
    response
}

/// Before and after every handler: admission, authentication, deadline, measurement.
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
    let asked = auth::Asked {
        peer: Peer::of(request.extensions()),
        headers: request.headers(),
        need: auth::Need::of(route, request.method()),
        what: format!("HTTP {} {route}", request.method()),
    };
    let response = match admit(&state, asked).await {
        Err(refusal) => refusal.into_response(),
        Ok(_permit) => within(&state, next.run(request)).await,
    };
    measure(&state, route, begun, &response);
    response
}

/// What `handler` answers, unless it takes too long.
async fn within(state: &HttpState, handler: impl Future<Output = Response>) -> Response {
    let deadline = state.env.deadline(REQUEST_TIMEOUT);
    match state.env.within(deadline, "answering a request", handler).await {
        Ok(response) => response,
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
    Arc::clone(&state.requests).try_acquire_owned().map_err(|_| {
        let message = "too many requests at once; try again shortly";
        ApiError::new(StatusCode::SERVICE_UNAVAILABLE, "too_many_requests", message)
    })
}

async fn admit(
    state: &HttpState,
    asked: auth::Asked<'_>,
) -> Result<OwnedSemaphorePermit, ApiError> {
    let permit = admission(state)?;
    let known = (&*state.passwords, &state.attempts);
    auth::check(&state.env, &state.engine, &state.config, known, asked).await?;
    Ok(permit)
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

/// Health, readiness and metrics, for whoever can connect: no data, and nothing that can be changed.
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

/// Admission and deadline of what needs no password.
async fn guard_status(State(state): State<HttpState>, request: Request, next: Next) -> Response {
    match admission(&state) {
        Err(refusal) => refusal.into_response(),
        Ok(_permit) => within(&state, next.run(request)).await,
    }
}

/// Serves health, readiness and metrics until the server has stopped: they tell of the stop while it lasts.
pub async fn serve_status(listener: TcpListener, state: HttpState, stop: Stop) {
    let router = status_router(state.clone());
    let end = stop.kill.clone();
    let stop = Stop { drain: end.clone(), ..stop };
    accept((listener, None), state, router, stop, &end).await;
}

/// Serves until the server drains, then finishes the requests under way.
pub async fn serve(listener: TcpListener, state: HttpState, console: Option<Router>, stop: Stop) {
    let router = router(state.clone(), console);
    state.stops_with(&stop);
    let end = stop.drain.clone();
    let tls = state.config.tls.as_ref().filter(|_| state.config.http_tls);
    let tls = tls.cloned();
    accept((listener, tls), state, router, stop, &end).await;
}

async fn accept(
    (listener, tls): (TcpListener, Option<Tls>),
    state: HttpState,
    router: Router,
    stop: Stop,
    end: &CancellationToken,
) {
    let env = state.env.clone();
    let connections = Arc::new(Semaphore::new(state.config.limits.max_connections));
    loop {
        let accepted = tokio::select! {
            biased;
            () = end.cancelled() => break,
            accepted = listener.accept() => accepted,
        };
        let (socket, peer) = match accepted {
            Ok(accepted) => accepted,
            Err(error) => {
                // Out of file descriptors, most likely: give the others time to close theirs.
                tracing::warn!(%error, "HTTP accept failed");
                env.clock.sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        let Ok(permit) = Arc::clone(&connections).try_acquire_owned() else { continue };
        let stall = state.config.limits.stall;
        let (tls, router, stop) = (tls.clone(), router.clone(), stop.clone());
        let own = env.clone();
        env.spawn("http connection", async move {
            // Without it small replies wait for the client's delayed acknowledgement.
            let _ = socket.set_nodelay(true);
            let peer = Peer { address: peer, encrypted: tls.is_some() };
            match tls {
                None => connection((socket, peer), router, stall, stop).await,
                Some(tls) => {
                    if let Some(socket) = handshake(&own, &tls, socket, stall, &stop).await {
                        connection((socket, peer), router, stall, stop).await;
                    }
                }
            }
            drop(permit);
        });
    }
    // Every connection holds a permit: all back means all done. The caller bounds this wait.
    let all = u32::try_from(state.config.limits.max_connections).unwrap_or(u32::MAX);
    let _ = connections.acquire_many(all).await;
}

/// The TLS handshake; `None`: there was none in time, and nothing of the connection is left.
async fn handshake(
    env: &Env,
    tls: &Tls,
    socket: TcpStream,
    stall: Duration,
    stop: &Stop,
) -> Option<TlsStream<TcpStream>> {
    let by = env.deadline(stall);
    let tls = tls.now();
    let accepted = tokio::select! {
        biased;
        () = stop.drain.cancelled() => return None,
        accepted = env.within(by, "the TLS handshake of HTTP", tls.http.accept(socket)) => accepted,
    };
    match accepted {
        Ok(Ok(stream)) => Some(stream),
        Ok(Err(error)) => {
            tracing::debug!(%error, "TLS handshake of HTTP failed");
            None
        }
        Err(_) => None,
    }
}

async fn connection(
    (socket, peer): (impl AsyncRead + AsyncWrite + Unpin + Send, Peer),
    router: Router,
    stall: Duration,
    stop: Stop,
) {
    let mut builder = hyper::server::conn::http1::Builder::new();
    builder.timer(TokioTimer::new()).header_read_timeout(stall).max_buf_size(64 * 1024);
    let router = TowerToHyperService::new(router);
    let service = service_fn(move |mut request: hyper::Request<Incoming>| {
        request.extensions_mut().insert(peer);
        if peer.encrypted {
            // As a proxy says it: cookies are then for TLS only.
            let https = header::HeaderValue::from_static("https");
            request.headers_mut().insert("x-forwarded-proto", https);
        }
        router.call(request)
    });
    let connection = builder.serve_connection(TokioIo::new(socket), service);
    let mut connection = std::pin::pin!(connection);
    let mut draining = false;
    loop {
        tokio::select! {
            biased;
            () = stop.kill.cancelled() => return,
            () = stop.drain.cancelled(), if !draining => {
                draining = true;
                connection.as_mut().graceful_shutdown();
            }
            ended = connection.as_mut() => {
                if let Err(error) = ended {
                    tracing::debug!(%error, "HTTP connection ended");
                }
                return;
            }
        }
    }
}
