//! Identifiers. Each is a newtype with a fixed text form; none carries meaning in its bits except
//! [`Lsn`], which is a position.
//!
//! Random ids ([`TxnId`], [`WriterToken`], [`NodeId`]) are 128 bits from [`crate::Env`], so that
//! two processes never agree by accident and a simulation draws the same ones from the same seed.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::error::Error;

macro_rules! number_id {
    ($(#[$doc:meta])* $name:ident($inner:ty)) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(transparent)]
        pub struct $name(pub $inner);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{}", self.0)
            }
        }
    };
}

macro_rules! random_id {
    ($(#[$doc:meta])* $name:ident, $kind:literal) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(pub u128);

        impl $name {
            /// The 16 bytes, big endian.
            #[must_use]
            pub fn to_bytes(self) -> [u8; 16] {
                self.0.to_be_bytes()
            }

            /// From 16 bytes, big endian.
            #[must_use]
            pub fn from_bytes(bytes: [u8; 16]) -> Self {
                Self(u128::from_be_bytes(bytes))
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{:032x}", self.0)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{:032x}", self.0)
            }
        }

        impl FromStr for $name {
            type Err = Error;

            fn from_str(text: &str) -> Result<Self, Error> {
                let digits: String = text.chars().filter(|c| *c != '-').collect();
                if digits.len() == 32 {
                    if let Ok(value) = u128::from_str_radix(&digits, 16) {
                        return Ok(Self(value));
                    }
                }
                Err(Error::MalformedId {
                    text: text.to_owned(),
                    kind: $kind,
                    expected: "32 hexadecimal digits",
                })
            }
        }

        impl Serialize for $name {
            fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.collect_str(self)
            }
        }

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                let text = String::deserialize(deserializer)?;
                text.parse().map_err(serde::de::Error::custom)
            }
        }
    };
}

number_id! {
    /// A shard: a contiguous key range with one virtual log, one checkpoint and one tail.
    ShardId(u64)
}
number_id! {
    /// Position in a shard's virtual log. The first entry has LSN 1; 0 means "before the first".
    Lsn(u64)
}
number_id! {
    /// A database inside a bucket. 0 is the system key space.
    DatabaseId(u32)
}
number_id! {
    /// A table (or other relation) inside a database.
    TableId(u32)
}
number_id! {
    /// A region: all nodes on one bucket.
    RegionId(u16)
}
number_id! {
    /// How many times a node has started; fences an earlier life of the same node.
    Incarnation(u64)
}
random_id! {
    /// A transaction. Chosen by the process that begins it; its outcome can be asked for by it.
    TxnId, "transaction id"
}
random_id! {
    /// The unique mark of one write attempt, stored inside the object, by which a writer recognises
    /// its own write after a lost reply.
    WriterToken, "writer token"
}
random_id! {
    /// A node: one `telesto` process with its local directory.
    NodeId, "node id"
}

impl Lsn {
    /// Before the first entry.
    pub const ZERO: Self = Self(0);
    /// The first entry.
    pub const FIRST: Self = Self(1);

    /// The LSN after this one.
    #[must_use]
    pub fn next(self) -> Self {
        Self(self.0 + 1)
    }

    /// The LSN before this one; `ZERO` stays.
    #[must_use]
    pub fn prev(self) -> Self {
        Self(self.0.saturating_sub(1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn random_id_text_form_round_trips_and_rejects_garbage() {
        let id = TxnId(0x0123_4567_89ab_cdef_0011_2233_4455_6677);
        assert_eq!(id.to_string().parse::<TxnId>(), Ok(id));
        assert_eq!(TxnId::from_bytes(id.to_bytes()), id);
        assert!("0123".parse::<TxnId>().is_err());
        assert!("zz23456789abcdef0011223344556677".parse::<TxnId>().is_err());
    }
}
