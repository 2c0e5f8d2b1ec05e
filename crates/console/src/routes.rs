//! The console's routes, and what holds for all of them.
//!
//! # Purpose
//! Mounts pages, API and files at the server's HTTP port.
//!
//! # Invariants
//! - Every reply carries the headers that keep browsers from guessing types, framing, caching and
//!   telling others where they were.
//! - Bodies are bounded by [`limits::BODY`].
//! - No fallback: what is not here is the server's.
//!
//! # On failure
//! A body that is too long gets 413.
//!
//! # Limits
//! See [`limits`].

use std::sync::Arc;

use axum::Router;
use axum::extract::{DefaultBodyLimit, Request};
use axum::http::{HeaderValue, header};
use axum::middleware::{self, Next};
use axum::response::Response;
use axum::routing::{get, post};
use telesto_server::{Inside, Mount};

use crate::access::Sessions;
use crate::turns::Turns;
use crate::{api, assets, limits, pages};

/// What the console is told.
#[derive(Clone, Debug)]
pub struct Options {
    /// Whether a visitor may run statements that write.
    pub may_write: bool,
    /// Where a latency board serves; see [`crate::board_address`].
    pub board: Option<reqwest::Url>,
    /// Whether the node probes itself.
    pub probes: bool,
}

/// What every handler sees.
#[derive(Clone, Debug)]
pub struct Console {
    pub inside: Inside,
    pub options: Arc<Options>,
    pub sessions: Arc<Sessions>,
    pub turns: Arc<Turns>,
}

/// The console for a server to mount.
#[must_use]
pub fn mount(options: Options) -> Mount {
    Box::new(move |inside| {
        let sessions = Arc::new(Sessions::new(inside.env().clone()));
        let most = inside.config().limits.max_connections;
        let turns = Arc::new(Turns::new(inside.env().clone(), most));
        router(Console { inside, options: Arc::new(options), sessions, turns })
    })
}

fn router(console: Console) -> Router {
    Router::new()
        .route("/", get(pages::overview::page))
        .route("/login", get(pages::login::page).post(pages::login::submit))
        .route("/logout", post(pages::login::leave))
        .route("/sql", get(pages::sql::page))
        .route("/data", get(pages::data::schemas))
        .route("/data/{schema}", get(pages::data::schema))
        .route("/data/{schema}/{table}", get(pages::data::table))
        .route("/statements", get(pages::statements::page))
        .route("/statements/signal", post(pages::statements::signal))
        .route("/cluster", get(pages::cluster::page))
        .route("/regions", get(pages::cluster::regions))
        .route("/cost", get(pages::cost::page))
        .route("/cost/caps", post(pages::cost::change_caps))
        .route("/settings", get(pages::settings::page))
        .route("/board", get(pages::board::page))
        .route("/assets/{name}", get(assets::get))
        .nest("/api/v1", api::routes())
        .layer(DefaultBodyLimit::max(limits::BODY))
        .layer(middleware::from_fn(headers))
        .with_state(console)
}

/// What every reply of the console carries.
async fn headers(request: Request, next: Next) -> Response {
    let mut response = next.run(request).await;
    let headers = response.headers_mut();
    for (name, value) in [
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::X_FRAME_OPTIONS, "DENY"),
        (header::REFERRER_POLICY, "same-origin"),
    ] {
        headers.insert(name, HeaderValue::from_static(value));
    }
    let _ = headers.entry(header::CACHE_CONTROL).or_insert(HeaderValue::from_static("no-store"));
    let _ = headers
        .entry(header::CONTENT_SECURITY_POLICY)
        .or_insert(HeaderValue::from_static("default-src 'none'; frame-ancestors 'none'"));
    response
}
