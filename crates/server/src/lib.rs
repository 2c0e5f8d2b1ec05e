//! Postgres wire, HTTP, sessions, authentication, metrics.
//!
//! # Purpose
//! Turns an open database into a server: `docs/architecture/server.md` has the whole picture.
//!
//! # Invariants
//! - Nothing is listened on that [`config::check_exposure`] refuses.
//! - No byte a client sends can panic or hang the server; every wait and buffer has a bound.
//!
//! # On failure
//! Errors of starting are [`Error`]; errors of statements are SQL errors sent to the client.

pub mod access_rules;
pub mod attempts;
pub mod audit;
pub mod auth;
mod catalogue;
pub mod clients;
mod collect;
pub mod config;
pub mod error;
#[doc(hidden)]
pub mod fuzz;
pub mod hand_over;
pub mod history;
pub mod http;
pub mod inside;
pub mod kv;
pub mod metrics;
pub mod server;
pub mod tls;
mod tls_shown;
pub mod wire;

pub use config::{Auth, Limits, ProberKey, ServerConfig};
pub use error::{Error, Result};
pub use inside::Inside;
pub use server::{Mount, Server};
