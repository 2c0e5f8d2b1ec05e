//! Commit: write sets, validation, the committer.

pub(crate) mod write_set;
