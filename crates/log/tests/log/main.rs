//! The virtual log from outside: many writers, faults, crashes, late writers, local disks.

mod bucket_log;
mod late_writer;
mod majority;
mod quorum_log;
mod support;
mod switching;
