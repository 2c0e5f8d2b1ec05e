//! The engine on one bucket, one or several processes, in virtual time.
#![allow(clippy::disallowed_methods, reason = "virtual time of a paused runtime is the seam here")]
#![allow(missing_docs, reason = "tests")]

mod additions;
mod claims;
mod clocks;
mod collection;
mod counters;
mod crash;
mod distant;
mod followers;
mod frozen;
mod harness;
mod holds;
mod large;
mod levels;
mod mends;
mod middlebox;
mod model;
mod new_keys;
mod outgoing;
mod quorum;
mod requests;
mod slate;
mod staleness;
mod writers;
