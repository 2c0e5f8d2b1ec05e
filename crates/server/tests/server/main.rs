//! The server over real sockets, on the in-memory database: one program, so that it links once.
#![allow(missing_docs, clippy::disallowed_methods, reason = "tests run on the real runtime")]

mod certificates;
mod described;
mod drivers;
mod ends;
mod entrance;
mod hostile;
mod http;
mod http_busy;
mod inside;
mod pipelines;
mod role_settings;
mod secure;
mod session;
mod support;
mod ways;
