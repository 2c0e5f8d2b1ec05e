//! What a node says of itself when it starts.
//!
//! # Stored form
//! TOML; `version` is 1. A program refuses versions it does not know, and, of a node's record, keys
//! it does not know of version 1. Those of a life of its log server may become more.

use serde::{Deserialize, Serialize};
use telesto_common::{Incarnation, NodeId, WriterToken};
use telesto_log::server::CountedLife;

use crate::error::{Error, Result};

const VERSION: u32 = 1;

/// What a node may become.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum NodeRole {
    /// It keeps copies of the log and may own it.
    #[default]
    Full,
    /// It executes statements, and carries commits to the owner; it never owns the log and keeps no
    /// copy of it.
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

/// A life of a node's log server.
#[derive(Serialize, Deserialize)]
pub(crate) struct LifeRecord {
    version: u32,
    number: u64,
    /// 16 hexadecimal digits: TOML has no number of 64 bits without a sign.
    mark: String,
}

impl LifeRecord {
    /// The stored form of `life`, which nobody else writes: it has a mark of its own.
    pub(crate) fn text(life: CountedLife) -> Result<String> {
        let CountedLife { number, mark } = life;
        let stored = Self { version: VERSION, number, mark: format!("{mark:016x}") };
        toml::to_string(&stored).map_err(|error| Error::malformed("a log server's life", error))
    }

    /// Reads the stored form, an object named `object`.
    pub(crate) fn parse(object: &str, bytes: &[u8]) -> Result<CountedLife> {
        let malformed = |reason: String| Error::malformed(object, reason);
        let text = std::str::from_utf8(bytes).map_err(|error| malformed(error.to_string()))?;
        let stored: Self = toml::from_str(text).map_err(|error| malformed(error.to_string()))?;
        if stored.version != VERSION {
            return Err(malformed(format!("version {} is not known", stored.version)));
        }
        let mark = u64::from_str_radix(&stored.mark, 16);
        let mark = mark.map_err(|error| malformed(error.to_string()))?;
        Ok(CountedLife { number: stored.number, mark })
    }
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
