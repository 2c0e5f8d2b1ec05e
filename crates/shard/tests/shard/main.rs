//! Tests of the shard through its public interface, on SlateDB and on the in-memory engine.
#![allow(clippy::unwrap_used, reason = "tests")]

mod basics;
mod bounds;
mod crash;
mod damage;
mod model;
mod parts;
mod readers;
mod repeated;
mod requests;
mod space;
mod spill;
mod support;
