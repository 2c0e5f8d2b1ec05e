//! The chain of a shard: which loglets make up its virtual log. Numbered versions, each an object
//! written put-if-absent; whoever creates version *n+1* decides what follows *n*.
//!
//! # Invariants
//! - LSNs are contiguous: a loglet ends where the next starts; the last one is active.
//! - A loglet's id is one more than that of the one active before it; it never comes back. A trim
//!   drops loglets from the front only.
//! - The ids of a database are its own: those of one that is made, or restored, where another one
//!   was are others, so that a process of that one, which does not know that its database is gone,
//!   writes where nobody reads (`first_id`).
//! - The trim point only grows.
//! - **Versions are never deleted.** A writer that slept holds version *n* and would create *n+1*
//!   anew if that had been removed, forking the chain; put-if-absent fences only as long as the
//!   object is there. A version is some hundred bytes and comes into being at a switch, a fail-over
//!   or a trim, so keeping all of them costs less than any scheme to remove them safely.
//!
//! # On failure
//! A damaged version is [`Error::Corrupt`]; a newer format is [`Error::TooNew`].

use std::fmt;
use std::time::Duration;

use bytes::{BufMut, Bytes, BytesMut};
use serde::{Deserialize, Serialize};
use telesto_common::{Incarnation, Lsn, NodeId, ShardId, WriterToken};

use crate::codec::{check_envelope, checksum_without, hash16};
use crate::error::{Error, FORMAT_VERSION, Result};
use crate::keys;

/// First bytes of a chain object.
pub const MAGIC: [u8; 4] = *b"TLSC";
/// Newest chain format this program reads: loglets with several log servers. It is written only
/// where there are any, so that a program that does not know of them refuses those chains, and
/// those only.
pub const VERSION: u16 = 2;
/// The format before: a quorum loglet has one log server.
const ONE_SERVER: u16 = 1;

/// Which medium a loglet is kept on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LogKind {
    /// One bucket object an entry; every process may append.
    #[default]
    Bucket,
    /// Log servers with local disks; one sequencer.
    Quorum,
}

impl fmt::Display for LogKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Bucket => "bucket",
            Self::Quorum => "quorum",
        })
    }
}

/// The process that sequences a quorum loglet.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Owner {
    /// The node.
    pub node: NodeId,
    /// Its life.
    pub incarnation: Incarnation,
    /// Its machine's name.
    pub host: String,
    /// Its process id there.
    pub pid: u32,
    /// Where it can be reached (host:port); empty when it serves nobody.
    pub address: String,
    /// Its local log directory.
    pub directory: String,
}

impl fmt::Display for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "node {} on host {:?} (process {}", self.node, self.host, self.pid)?;
        if !self.address.is_empty() {
            write!(f, ", address {}", self.address)?;
        }
        write!(f, "), its newest part is in {:?} there", self.directory)
    }
}

/// One log server of a quorum loglet.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServerInfo {
    /// The node it runs on.
    pub node: NodeId,
    /// Where it can be reached; empty for the owner's own.
    pub address: String,
    /// The server's incarnation before this loglet was in any chain: in another one it may have
    /// forgotten that the loglet has ended, and is not let to begin it. 0: it was not reached, or
    /// is the owner's own on a single node.
    #[serde(default = "unknown", skip_serializing_if = "is_unknown")]
    pub incarnation: Incarnation,
}

fn unknown() -> Incarnation {
    Incarnation(0)
}

fn is_unknown(incarnation: &Incarnation) -> bool {
    incarnation.0 == 0
}

/// What a loglet needs beyond its place.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Medium {
    /// Slots in the bucket.
    Bucket,
    /// Log servers.
    Quorum {
        /// The sequencer.
        owner: Owner,
        /// The servers; an entry is committed at a majority of them.
        servers: Vec<ServerInfo>,
        /// Tells this loglet's files from those of a loser of the race for this chain version.
        token: WriterToken,
    },
}

impl Medium {
    /// Which kind it is.
    #[must_use]
    pub fn kind(&self) -> LogKind {
        match self {
            Self::Bucket => LogKind::Bucket,
            Self::Quorum { .. } => LogKind::Quorum,
        }
    }
}

/// Loglets that a database may have before it comes to ids that another one may have begun at.
const ID_BITS: u32 = 20;

/// The id of the first loglet that follows `before` (0: nothing) in a database of its own: far from
/// any other one's, which `random` sees to. Exact as a number of JavaScript.
pub(crate) fn first_id(before: u64, random: u64) -> u64 {
    // A restored database takes less, so that it can be done again and again.
    let far = if before == 0 { random >> 32 } else { 1 + (before >> ID_BITS) + (random >> 36) };
    (far << ID_BITS) + 1
}

/// A stretch of the virtual log.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Loglet {
    /// Its id in this shard.
    pub id: u64,
    /// LSN of its first entry.
    pub start: Lsn,
    /// Hash of the entry before its first.
    #[serde(with = "hex16")]
    pub start_hash: [u8; 16],
    /// Where it is kept.
    pub medium: Medium,
}

/// The first readable position, and what precedes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TrimPoint {
    /// First LSN that may still be read.
    pub lsn: Lsn,
    /// Hash of the entry before it.
    #[serde(with = "hex16")]
    pub previous_hash: [u8; 16],
}

/// One version of a shard's chain.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Chain {
    /// The shard.
    pub shard: ShardId,
    /// Number of this version, from 1.
    pub version: u64,
    /// Token of the write that made it.
    pub writer: WriterToken,
    /// Hash of the previous version's bytes; zero for the first.
    #[serde(with = "hex16")]
    pub previous: [u8; 16],
    /// How long entries are kept, microseconds; the same for every process, fixed at creation: the
    /// rule for late writers is measured with it.
    pub retention_micros: u64,
    /// First readable position.
    pub trim: TrimPoint,
    /// The loglets, oldest first; the last is active.
    pub loglets: Vec<Loglet>,
}

impl Chain {
    /// The active loglet.
    #[must_use]
    pub fn active(&self) -> &Loglet {
        self.loglets.last().expect("decode and all constructors refuse a chain without loglets")
    }

    /// The loglet that holds `lsn`, and the LSN at which the next one starts.
    #[must_use]
    pub fn loglet_at(&self, lsn: Lsn) -> Option<(&Loglet, Option<Lsn>)> {
        let index = self.loglets.iter().rposition(|l| l.start <= lsn)?;
        Some((&self.loglets[index], self.loglets.get(index + 1).map(|l| l.start)))
    }

    /// How long entries are kept.
    #[must_use]
    pub fn retention(&self) -> Duration {
        Duration::from_micros(self.retention_micros)
    }

    /// The version after this one, unchanged but for number, token and link.
    #[must_use]
    pub fn successor(&self, writer: WriterToken) -> Self {
        Self { version: self.version + 1, writer, previous: hash16(&self.encode()), ..self.clone() }
    }

    /// The next version with the active loglet closed and `medium` taking over at `start`.
    #[must_use]
    pub fn followed_by(
        &self,
        writer: WriterToken,
        start: Lsn,
        start_hash: [u8; 16],
        medium: Medium,
    ) -> Self {
        let mut next = self.successor(writer);
        // A sequencer that never wrote leaves no trace, or restarts would make the chain grow.
        let empty = self.active().start == start && self.active().medium.kind() == LogKind::Quorum;
        if empty {
            next.loglets.pop();
        }
        next.loglets.push(Loglet { id: self.active().id + 1, start, start_hash, medium });
        next
    }

    /// Moves the trim point to `trim`, in a version that is not stored yet. Loglets that lie wholly
    /// below it go.
    pub(crate) fn trim_to(&mut self, trim: TrimPoint) {
        let keep = self.loglets.iter().rposition(|loglet| loglet.start <= trim.lsn).unwrap_or(0);
        self.loglets.drain(..keep);
        self.trim = trim;
    }

    /// The stored form. Equal chains have equal bytes.
    #[must_use]
    pub fn encode(&self) -> Bytes {
        let body = serde_json::to_vec(self).expect("plain data with string keys always serializes");
        let mut out = BytesMut::with_capacity(16 + body.len());
        out.put_slice(&MAGIC);
        out.put_u16_le(self.format());
        out.put_u16_le(0);
        out.put_u32_le(0);
        out.put_u32_le(body.len() as u32);
        out.put_slice(&body);
        let checksum = checksum_without(&out, 8);
        out[8..12].copy_from_slice(&checksum.to_le_bytes());
        out.freeze()
    }

    /// The oldest format that says what this chain says.
    fn format(&self) -> u16 {
        let several = |loglet: &Loglet| matches!(&loglet.medium, Medium::Quorum { servers, .. } if servers.len() != 1);
        if self.loglets.iter().any(several) { VERSION } else { ONE_SERVER }
    }

    /// Reads version `version` of `shard`'s chain from its stored form.
    ///
    /// # Errors
    /// [`Error::Corrupt`], [`Error::TooNew`].
    pub fn decode(shard: ShardId, version: u64, bytes: &[u8]) -> Result<Self> {
        let object = || keys::chain(shard, version);
        let corrupt = |reason: String| Error::Corrupt { object: object(), lsn: None, reason };
        check_envelope(bytes, MAGIC, 16).map_err(corrupt)?;
        let format = u16::from_le_bytes([bytes[4], bytes[5]]);
        if format > VERSION {
            return Err(Error::TooNew {
                object: object(),
                what: FORMAT_VERSION,
                found: format,
                supported: VERSION,
            });
        }
        let chain: Self =
            serde_json::from_slice(&bytes[16..]).map_err(|e| corrupt(e.to_string()))?;
        chain.check(shard, version).map_err(corrupt)?;
        Ok(chain)
    }

    fn check(&self, shard: ShardId, version: u64) -> std::result::Result<(), String> {
        if self.shard != shard || self.version != version {
            return Err(format!("it is version {} of shard {}", self.version, self.shard));
        }
        let Some(first) = self.loglets.first() else {
            return Err("it names no loglet".into());
        };
        // There is always a next one.
        let numbers = self.loglets.iter().flat_map(|l| [l.id, l.start.0]);
        if numbers.chain([self.version, self.trim.lsn.0]).any(|n| n == u64::MAX) {
            return Err("a number in it is too great".into());
        }
        if self.trim.lsn < first.start || self.trim.lsn == Lsn::ZERO {
            return Err("its trim point lies before its first loglet".into());
        }
        for pair in self.loglets.windows(2) {
            if pair[1].id <= pair[0].id || pair[1].start < pair[0].start {
                return Err(format!("loglet {} does not follow {}", pair[1].id, pair[0].id));
            }
        }
        Ok(())
    }
}

/// 16 bytes as 32 hexadecimal digits.
pub(crate) mod hex16 {
    use serde::{Deserialize, Deserializer, Serializer, de::Error};

    pub fn serialize<S: Serializer>(hash: &[u8; 16], serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&format_args!("{:032x}", u128::from_be_bytes(*hash)))
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<[u8; 16], D::Error> {
        let text = String::deserialize(deserializer)?;
        if text.len() != 32 {
            return Err(D::Error::custom("a hash has 32 hexadecimal digits"));
        }
        let number = u128::from_str_radix(&text, 16).map_err(D::Error::custom)?;
        Ok(number.to_be_bytes())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn quorum(node: u128, token: u128, host: &str) -> Medium {
        Medium::Quorum {
            owner: Owner {
                node: NodeId(node),
                incarnation: Incarnation(3),
                host: host.to_owned(),
                pid: 7,
                address: "h:1".into(),
                directory: "/d".into(),
            },
            servers: vec![ServerInfo {
                node: NodeId(node),
                address: String::new(),
                incarnation: Incarnation(0),
            }],
            token: WriterToken(token),
        }
    }

    fn first() -> Chain {
        Chain {
            shard: ShardId(1),
            version: 1,
            writer: WriterToken(2),
            previous: [0; 16],
            retention_micros: 5,
            trim: TrimPoint { lsn: Lsn(1), previous_hash: [0; 16] },
            loglets: vec![Loglet {
                id: 1,
                start: Lsn(1),
                start_hash: [0; 16],
                medium: Medium::Bucket,
            }],
        }
    }

    #[test]
    fn first_ids_are_above_those_before_and_exact_in_javascript() {
        /// Loglets that a database had.
        const USED: u64 = 5;
        for random in [0, 7, u64::MAX / 3, u64::MAX] {
            let mut id = 0;
            for restored in 0..16 {
                let next = first_id(id, random);
                assert!(next > id && next < 1 << 53, "{restored} times: {next} after {id}");
                assert!(restored == 0 || next >= id + (1 << ID_BITS) - USED, "{next} after {id}");
                id = next + USED;
            }
        }
    }

    #[test]
    fn chain_encoding_is_the_documented_bytes() {
        let bytes = first().encode();
        let zeros = "0".repeat(32);
        let json = format!(
            concat!(
                r#"{{"shard":1,"version":1,"writer":"00000000000000000000000000000002","#,
                r#""previous":"{z}","retention_micros":5,"trim":{{"lsn":1,"previous_hash":"{z}"}},"#,
                r#""loglets":[{{"id":1,"start":1,"start_hash":"{z}","medium":"bucket"}}]}}"#
            ),
            z = zeros
        );
        assert_eq!(&bytes[16..], json.as_bytes());
        assert_eq!(&bytes[..8], b"TLSC\x01\0\0\0");
        let text = String::from_utf8(
            first().followed_by(WriterToken(1), Lsn(2), [1; 16], quorum(9, 8, "h")).encode()[16..]
                .to_vec(),
        )
        .unwrap();
        assert!(text.contains(r#""medium":{"quorum":{"owner":{"node":"#), "{text}");
        assert!(text.contains(r#""start_hash":"01010101010101010101010101010101""#), "{text}");
    }

    #[test]
    fn chain_of_another_shard_or_version_or_format_is_refused() {
        let bytes = first().encode();
        assert_eq!(Chain::decode(ShardId(1), 1, &bytes).unwrap(), first());
        assert!(matches!(Chain::decode(ShardId(2), 1, &bytes), Err(Error::Corrupt { .. })));
        assert!(matches!(Chain::decode(ShardId(1), 2, &bytes), Err(Error::Corrupt { .. })));
        let mut newer = bytes.to_vec();
        newer[4] = 3;
        let checksum = checksum_without(&newer, 8);
        newer[8..12].copy_from_slice(&checksum.to_le_bytes());
        assert!(matches!(Chain::decode(ShardId(1), 1, &newer), Err(Error::TooNew { .. })));
        let medium = |servers: u128| {
            let mut medium = quorum(1, 2, "h");
            if let Medium::Quorum { servers: of, .. } = &mut medium {
                *of = (0..servers)
                    .map(|n| ServerInfo {
                        node: NodeId(n),
                        address: String::new(),
                        incarnation: Incarnation(5),
                    })
                    .collect();
            }
            medium
        };
        for (servers, format) in [(1, 1), (3, 2)] {
            let chain = first().followed_by(WriterToken(1), Lsn(2), [1; 16], medium(servers));
            assert_eq!(chain.encode()[4], format, "{servers} servers");
            assert_eq!(Chain::decode(ShardId(1), 2, &chain.encode()).unwrap(), chain);
        }
        let mut none = first();
        none.loglets.clear();
        assert!(Chain::decode(ShardId(1), 1, &none.encode()).is_err());
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn chains_of_any_history_round_trip(
            steps in prop::collection::vec((1_u64..50, any::<bool>(), any::<[u8; 16]>(), ".{0,12}"), 0..8),
        ) {
            let mut chain = first();
            for (length, is_quorum, hash, host) in steps {
                let medium = if is_quorum { quorum(1, 2, &host) } else { Medium::Bucket };
                let start = Lsn(chain.active().start.0 + length);
                let next = chain.followed_by(WriterToken(3), start, hash, medium);
                prop_assert_eq!(next.previous, hash16(&chain.encode()));
                let decoded = Chain::decode(next.shard, next.version, &next.encode()).unwrap();
                prop_assert_eq!(&decoded, &next);
                for lsn in [chain.active().start, start.prev(), start] {
                    let (loglet, end) = next.loglet_at(lsn).unwrap();
                    prop_assert!(loglet.start <= lsn && end.is_none_or(|e| lsn < e));
                }
                chain = next;
            }
        }
    }
}
