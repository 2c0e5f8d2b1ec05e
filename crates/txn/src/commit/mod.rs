//! Commit: write sets, validation, the committer.
//!
//! ```text
//! transaction --CommitRequest--> queue --> committer: validate | encode | append(n)
//!                                              ^                       |
//!                                              |  slot taken: apply,   |
//!                                              +-- revalidate, n+1 ----+
//! ```

mod additions;
mod causes;
pub(crate) mod checks;
pub(crate) mod committer;
pub(crate) mod outcomes;
mod records;
pub(crate) mod write_set;
