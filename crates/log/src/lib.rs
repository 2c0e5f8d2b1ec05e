//! The virtual log: chain, bucket loglet, quorum loglet and log server, archive.

pub mod record;
