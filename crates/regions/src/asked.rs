//! What regions say to each other of statements that one has the other execute, as bytes.
//! `docs/reference/formats/regions.md` has the tables.
//!
//! # Invariants
//! - A statement is told by the number that the asker has drawn for it, and by the asker.
//! - Bytes after the version are its own: what is added comes with a new one.
//!
//! # On failure
//! What does not decode is refused with the reason; nothing of it was done.
//!
//! # Limits
//! A statement, and each piece of what it gives, fits into one frame of the network.

use bytes::{BufMut as _, Bytes, BytesMut};
use telesto_common::Timestamp;
use telesto_common::cursor::{Cursor, Malformed, put_varint};

const VERSION: u8 = 1;

/// What is asked of a statement.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Asked {
    /// Execute it when everything of the asker up to `seen` is here; the first piece is the answer.
    Begin { id: u128, seen: Timestamp, statement: Bytes },
    /// The piece with this number; the first one is 0.
    Next { id: u128, number: u64 },
    /// Nothing more is wanted of it.
    Close { id: u128 },
}

/// The answers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Told {
    /// Something, and more comes.
    Piece(Bytes),
    /// The last of it.
    Last(Bytes),
    /// Nothing yet: ask again.
    Working,
    /// It does not come, or not any further.
    Refused(String),
    /// It was closed.
    Closed,
}

impl Asked {
    pub fn encode(&self) -> Bytes {
        let mut out = BytesMut::new();
        out.put_u8(VERSION);
        match self {
            Self::Begin { id, seen, statement } => {
                out.put_u8(1);
                out.put_u128_le(*id);
                out.put_u64_le(seen.0);
                out.put_slice(statement);
            }
            Self::Next { id, number } => {
                out.put_u8(2);
                out.put_u128_le(*id);
                put_varint(&mut out, *number);
            }
            Self::Close { id } => {
                out.put_u8(3);
                out.put_u128_le(*id);
            }
        }
        out.freeze()
    }

    pub fn decode(bytes: Bytes) -> Result<Self, Malformed> {
        let mut cursor = Cursor::new(bytes);
        check(cursor.u8()?)?;
        let kind = cursor.u8()?;
        let id = u128::from_le_bytes(cursor.array16()?);
        let asked = match kind {
            1 => {
                let seen = Timestamp(cursor.u64()?);
                Self::Begin { id, seen, statement: cursor.take(cursor.remaining())? }
            }
            2 => Self::Next { id, number: cursor.varint()? },
            3 => Self::Close { id },
            kind => return Err(format!("a read of kind {kind} between regions is not known")),
        };
        cursor.finish()?;
        Ok(asked)
    }
}

impl Told {
    pub fn encode(&self) -> Bytes {
        let (kind, body): (u8, &[u8]) = match self {
            Self::Piece(piece) => (1, piece),
            Self::Last(piece) => (2, piece),
            Self::Working => (3, &[]),
            Self::Refused(reason) => (4, reason.as_bytes()),
            Self::Closed => (5, &[]),
        };
        let mut out = BytesMut::with_capacity(body.len() + 2);
        out.put_u8(VERSION);
        out.put_u8(kind);
        out.put_slice(body);
        out.freeze()
    }

    pub fn decode(bytes: Bytes) -> Result<Self, Malformed> {
        let mut cursor = Cursor::new(bytes);
        check(cursor.u8()?)?;
        let kind = cursor.u8()?;
        let body = cursor.take(cursor.remaining())?;
        Ok(match kind {
            1 => Self::Piece(body),
            2 => Self::Last(body),
            3 => Self::Working,
            4 => Self::Refused(String::from_utf8_lossy(&body).into_owned()),
            5 => Self::Closed,
            kind => return Err(format!("an answer of kind {kind} to a read is not known")),
        })
    }
}

fn check(version: u8) -> Result<(), Malformed> {
    if version == VERSION {
        return Ok(());
    }
    Err(format!(
        "version {version} of reads between regions is too new, {VERSION} is known here; upgrade this region first"
    ))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(128))]

        #[test]
        fn reads_and_answers_are_read_back_and_any_bytes_are_read_or_refused(
            id in any::<u128>(),
            seen in any::<u64>(),
            body in prop::collection::vec(any::<u8>(), 0..64),
        ) {
            let (seen, body) = (Timestamp(seen), Bytes::from(body));
            let begin = Asked::Begin { id, seen, statement: body.clone() };
            for asked in [begin, Asked::Next { id, number: seen.0 }, Asked::Close { id }] {
                prop_assert_eq!(Asked::decode(asked.encode()), Ok(asked));
            }
            let refused = Told::Refused("not now".to_owned());
            let (piece, last) = (Told::Piece(body.clone()), Told::Last(body.clone()));
            for told in [piece, last, Told::Working, refused, Told::Closed] {
                prop_assert_eq!(Told::decode(told.encode()), Ok(told));
            }
            let _ = Asked::decode(body.clone());
            let _ = Told::decode(body);
        }
    }

    #[test]
    fn newer_reads_are_refused_as_too_new() {
        let mut bytes = Asked::Next { id: 1, number: 0 }.encode().to_vec();
        bytes[0] = VERSION + 1;
        let error = Asked::decode(bytes.into()).expect_err("newer");
        assert!(error.contains("too new"), "{error}");
    }
}
