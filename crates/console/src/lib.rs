//! The console: pages and a JSON API over SQL, at the HTTP port.
//!
//! # Purpose
//! Shows a person what the database is doing and what it costs, and lets them work with it in SQL.
//! `docs/architecture/console.md` has the whole picture, `docs/operating/console.md` how to use it.
//!
//! # Invariants
//! - Everything shown is read by SQL, run as the role that logged in through
//!   [`telesto_server::Inside`]: the console has no rights of its own.
//! - What a page shows its JSON route tells too: both are made from one `model`.
//! - Only statements of the SQL page, and cancelling or ending a session, can change anything;
//!   these need the session's CSRF token.
//! - Text that comes from the database is escaped by the template engine; no page has inline
//!   script, and nothing comes from another host.
//!
//! # On failure
//! A page whose data cannot be had shows the SQL error in its place; the rest of the page stands.
//!
//! # Limits
//! Bounds on sessions, bodies, rows and time are in [`limits`].

pub mod access;
mod api;
mod assets;
mod error;
pub mod limits;
mod model;
mod pages;
mod query;
mod routes;
mod show;
mod turns;
mod visit;

pub use model::board::address as board_address;
pub use routes::{Options, mount};
