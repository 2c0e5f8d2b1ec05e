//! The first frame of either side: who speaks, in which versions, about what.
//!
//! ```text
//! client: TLSN | oldest 2 | newest 2 | node 16 | incarnation 8 | class 1
//! server: TLSN | oldest 2 | newest 2 | node 16 | incarnation 8 | class 1 | spoken 2 | reason
//! ```
//! # Invariants
//! - Both sides speak the newest version that both know. A program speaks its own version and the
//!   one before, so that a cluster is upgraded node by node.
//! - Later versions may add bytes behind these fields, never change them; so even a refusal can be
//!   read by every version.
//!
//! # On failure
//! No version in common, another node than the one that was called, or one that may not speak for
//! the name it gives: `spoken` is 0, the reason says why, and the connection ends.

use bytes::{BufMut, Bytes, BytesMut};
use telesto_common::cursor::{Cursor, Malformed, put_string};
use telesto_common::{Incarnation, NodeId};

const MAGIC: [u8; 4] = *b"TLSN";

/// The versions a program speaks, both ends included.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Versions {
    /// The oldest.
    pub oldest: u16,
    /// The newest.
    pub newest: u16,
}

/// The versions of this program. There is none before the first.
pub const VERSIONS: Versions = Versions { oldest: 1, newest: 1 };

impl Versions {
    /// The version that two programs speak with each other.
    #[must_use]
    pub fn common(self, other: Self) -> Option<u16> {
        let newest = self.newest.min(other.newest);
        (newest >= self.oldest && newest >= other.oldest).then_some(newest)
    }
}

/// Who is at the other end: a node, in one of its lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Caller {
    /// The node.
    pub node: NodeId,
    /// Its life.
    pub incarnation: Incarnation,
}

/// What a connection is for. What waits behind one another in one of them holds up nothing in the
/// others.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Class {
    /// Small and urgent: seals, leases, positions.
    Control,
    /// Entries on their way to a log server, in order.
    Append,
    /// Entries on their way back; may be large and may wait.
    Read,
}

impl Class {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Control, Self::Append, Self::Read];

    fn code(self) -> u8 {
        match self {
            Self::Control => 1,
            Self::Append => 2,
            Self::Read => 3,
        }
    }

    fn of(code: u8) -> Result<Self, Malformed> {
        let found = Self::ALL.into_iter().find(|class| class.code() == code);
        found.ok_or_else(|| format!("class {code} of a connection is not known"))
    }
}

/// The first frame of either side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Hello {
    pub versions: Versions,
    pub me: Caller,
    pub class: Class,
}

impl Hello {
    pub fn encode(self) -> BytesMut {
        let mut out = BytesMut::with_capacity(64);
        out.put_slice(&MAGIC);
        out.put_u16_le(self.versions.oldest);
        out.put_u16_le(self.versions.newest);
        out.put_slice(&self.me.node.to_bytes());
        out.put_u64_le(self.me.incarnation.0);
        out.put_u8(self.class.code());
        out
    }

    /// Reads the fields that every version has; more may follow.
    pub fn decode(bytes: Bytes) -> Result<(Self, Cursor), Malformed> {
        let mut cursor = Cursor::new(bytes);
        if cursor.take(4)?[..] != MAGIC {
            return Err("it does not begin as a connection between nodes does".into());
        }
        let versions = Versions { oldest: cursor.u16()?, newest: cursor.u16()? };
        let node = NodeId::from_bytes(cursor.array16()?);
        let me = Caller { node, incarnation: Incarnation(cursor.u64()?) };
        let class = Class::of(cursor.u8()?)?;
        Ok((Self { versions, me, class }, cursor))
    }
}

/// The server's first frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Welcome {
    pub hello: Hello,
    /// The version spoken from here on, or why there is none.
    pub spoken: Result<u16, String>,
}

impl Welcome {
    pub fn encode(&self) -> Bytes {
        let mut out = self.hello.encode();
        match &self.spoken {
            Ok(version) => {
                out.put_u16_le(*version);
                put_string(&mut out, b"");
            }
            Err(reason) => {
                out.put_u16_le(0);
                put_string(&mut out, reason.as_bytes());
            }
        }
        out.freeze()
    }

    pub fn decode(bytes: Bytes) -> Result<Self, Malformed> {
        let (hello, mut cursor) = Hello::decode(bytes)?;
        let version = cursor.u16()?;
        let reason = cursor.string()?;
        let refused = || String::from_utf8_lossy(&reason).into_owned();
        let spoken = if version == 0 { Err(refused()) } else { Ok(version) };
        Ok(Self { hello, spoken })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_programs_speak_the_newest_version_that_both_know_or_none() {
        let versions = |oldest, newest| Versions { oldest, newest };
        assert_eq!(versions(1, 1).common(versions(1, 1)), Some(1));
        assert_eq!(versions(1, 2).common(versions(1, 1)), Some(1));
        assert_eq!(versions(2, 3).common(versions(1, 2)), Some(2));
        assert_eq!(versions(3, 4).common(versions(1, 2)), None);
        assert_eq!(versions(1, 2).common(versions(3, 4)), None);
    }

    #[test]
    fn hello_and_welcome_round_trip_also_with_more_behind_them_and_cut_ones_are_refused() {
        let me = Caller { node: NodeId(7), incarnation: Incarnation(9) };
        for class in Class::ALL {
            let hello = Hello { versions: Versions { oldest: 1, newest: 3 }, me, class };
            let mut bytes = hello.encode();
            bytes.put_slice(b"later versions");
            assert_eq!(Hello::decode(bytes.freeze()).expect("whole").0, hello);
            for spoken in [Ok(2), Err("too old".to_owned())] {
                let welcome = Welcome { hello, spoken };
                let bytes = welcome.encode();
                for cut in 0..bytes.len() {
                    assert!(Welcome::decode(bytes.slice(..cut)).is_err(), "cut at {cut}");
                }
                assert_eq!(Welcome::decode(bytes), Ok(welcome));
            }
        }
    }
}
