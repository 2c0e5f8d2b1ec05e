//! Messages between the nodes of a cluster.
//!
//! # Purpose
//! One long-lived connection per peer and [`Class`] carries requests and replies as plain data:
//! many at a time, told apart by number, each with a deadline, in bounded memory.
//! `docs/architecture/cluster.md` tells what is said over them.
//!
//! ```text
//! Client::call ── queue ── frames ──► connection ──► serve ──► Router ──► Handler
//!       ◄──────── reply by number ◄───────────────────────────────┘
//! ```
//! # Invariants
//! - Both sides know who the other is (node and incarnation) and which version they speak before
//!   any request passes.
//! - Requests of one connection begin in the order in which they were sent; replies come in any
//!   order.
//! - A frame is at most [`MAX_FRAME_BYTES`] long; queues are bounded in number and bytes. Who is
//!   faster than the other side waits.
//!
//! # On failure
//! A call whose connection breaks, or whose deadline passes, ends with an error that says that the
//! request may have been carried out. Nothing is sent again: only the caller knows whether that is
//! safe. The next call connects anew.
//!
//! # Limits
//! Real sockets are made by the outermost layer (`telesto-runtime`); [`framed`] takes any stream.
//! [`sim::SimNet`] is the network of the simulation.

mod client;
mod error;
mod frame;
mod hello;
mod serve;
pub mod sim;
mod transport;

pub use client::{CallLimits, Client};
pub use error::{Error, Result};
pub use frame::{MAX_FRAME_BYTES, Service};
pub use hello::{Caller, Class, VERSIONS, Versions};
pub use serve::{Handler, MAX_RUNNING, Router, serve};
pub use transport::{Peer, Pipe, Transport, framed};
