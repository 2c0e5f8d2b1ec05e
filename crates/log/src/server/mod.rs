//! Log servers: make a loglet's entries durable on local disk, in order, until sealed.
//!
//! `protocol` is what a sequencer says to a server; `local` is the server of this machine; `loglet`,
//! `segment` and `sector` are its files, from the whole to the part.

mod local;
mod loglet;
mod protocol;
pub(crate) mod sector;
pub(crate) mod segment;

pub(crate) use loglet::StoredLoglet;
pub(crate) use segment::loglet_directory;

pub use local::LocalLogServer;
pub use protocol::{LogServer, LogletKey, Reply, Request};
