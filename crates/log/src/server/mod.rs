//! Log servers: make a loglet's entries durable on local disk, in order, until sealed.
//!
//! `protocol` is what a sequencer says to a server; `local` is the server of this machine, `hosted`
//! a loglet on it, `life` what it knows of its own past; `loglet`, `segment` and `sector` are the
//! files, from the whole to the part. `remote` is a server elsewhere, `service` the side that
//! answers it, `wire` the bytes between them.

mod hosted;
mod life;
mod local;
mod loglet;
mod protocol;
mod remote;
pub(crate) mod sector;
pub(crate) mod segment;
mod service;
mod wire;

pub(crate) use loglet::StoredLoglet;
pub(crate) use segment::loglet_directory;

pub use life::{CountedLife, Counting};
pub use local::LocalLogServer;
pub use protocol::{LogServer, LogletKey, MAX_LEASE, Reply, Request, Terms};
pub use remote::{Neighbours, RemoteLogServer, Servers};
pub use service::{LOG_SERVICE, LogService};
