//! The virtual log from outside: many writers, faults, crashes, late writers, local disks.
#![allow(
    clippy::disallowed_methods,
    reason = "these tests run on the real runtime and wait for background work"
)]

mod bounded;
mod bucket_log;
mod encrypted;
mod late_writer;
mod listing;
mod local_disk;
mod local_storm;
mod majority;
mod own_object;
mod quorum_log;
mod storm;
mod support;
mod switching;
mod trimming;
