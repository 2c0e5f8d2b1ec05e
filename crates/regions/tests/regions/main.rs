//! Regions with real engines on buckets in memory, over the simulated network, in virtual time; and
//! over TCP.
#![allow(missing_docs, reason = "tests")]

mod causal;
mod defined;
mod harness;
mod joining;
mod lost;
mod measured;
mod registry;
mod sessions;
mod streams;
mod tcp;
mod through;
mod times;
mod tree;
