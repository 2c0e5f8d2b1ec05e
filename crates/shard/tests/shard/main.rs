//! Tests of the shard through its public interface, on SlateDB and on the in-memory engine.

mod basics;
mod crash;
mod damage;
mod model;
mod parts;
mod requests;
mod support;
