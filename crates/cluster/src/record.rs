//! What a node says of itself when it starts.
//!
//! # Stored form
//! TOML; `version` is 1. A program refuses versions it does not know, and keys it does not know of version 1.

use serde::{Deserialize, Serialize};
use telesto_common::{Incarnation, NodeId, WriterToken};

use crate::error::{Error, Result};

const VERSION: u32 = 1;

/// What a node may become.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum NodeRole {
    /// It keeps copies of the log and may own it.
    #[default]
    Full,
    /// It executes statements, and carries commits to the owner; it never owns the log and keeps no copy of it.
    Follower,
}

/// One life of a node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Record {
    /// The node.
    pub node: NodeId,
    /// Its life: grows with each start.
    pub incarnation: Incarnation,
    /// Where other nodes reach it, host:port.
    pub address: String,
    /// Where it stands, for placing copies apart; empty when that was not said.
    pub zone: String,
    /// What it may become.
    pub role: NodeRole,
    /// Its machine's name.
    pub host: String,
    /// Its process id there.
    pub pid: u32,
    /// Version of its program.
    pub program: String,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Stored {
    version: u32,
    /// Tells the object of this process from that of another one with the same identity.
    writer: WriterToken,
    record: Record,
}

impl Record {
    /// Its stored form.
    pub(crate) fn text(&self, writer: WriterToken) -> Result<String> {
        let stored = Stored { version: VERSION, writer, record: self.clone() };
        toml::to_string(&stored).map_err(|error| Error::malformed("a node's record", error))
    }

    /// Reads the stored form, an object named `object`.
    pub(crate) fn parse(object: &str, bytes: &[u8]) -> Result<Self> {
        let malformed = |reason: String| Error::malformed(object, reason);
        let text = std::str::from_utf8(bytes).map_err(|error| malformed(error.to_string()))?;
        let stored: Stored = toml::from_str(text).map_err(|error| malformed(error.to_string()))?;
        if stored.version != VERSION {
            return Err(malformed(format!("version {} is not known", stored.version)));
        }
        Ok(stored.record)
    }
}
