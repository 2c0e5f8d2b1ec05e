//! Commit: write sets, validation, the committer.
//!
//! ```text
//! transaction --CommitRequest--> queue --> committer: validate | encode | append(n)
//!                                              ^                       |
//!                                              |  slot taken: apply,   |
//!                                              +-- revalidate, n+1 ----+
//! ```

mod additions;
mod append;
mod causes;
pub(crate) mod checks;
pub(crate) mod committer;
pub(crate) mod outcomes;
mod records;
mod settle;
mod told;
mod validate;
mod window;
pub(crate) mod write_set;
