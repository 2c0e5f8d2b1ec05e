//! What a node of a region asks the node that carries its streams, and the answers, as bytes.
//! `docs/reference/formats/regions.md` has the tables.
//!
//! # Invariants
//! - A question begins with [`TOPIC`], which tells it from those of other layers.
//! - Bytes after the version are its own: what is added comes with a new one.
//!
//! # On failure
//! What does not decode is not answered: another layer may know it.
//!
//! # Limits
//! Those of one frame between nodes.

use std::time::Duration;

use bytes::{BufMut as _, Bytes, BytesMut};
use telesto_common::cursor::{Cursor, Malformed, put_string, put_varint};
use telesto_common::{Lsn, RegionId, Timestamp, TxnId};
use telesto_txn::regions::{ConflictView, LinkView, NotAttached, RegionsView};
use telesto_txn::{Distance, Elsewhere, Error as Txn};

use crate::shown::{self, Shown};

/// First byte of these questions.
const TOPIC: u8 = 0x52;
const VERSION: u8 = 1;

/// What is asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Relay {
    /// Do you carry the streams?
    Carries,
    /// Have `home` commit this: [`crate::forwarded::Forwarded`].
    Commit { home: RegionId, forwarded: Bytes },
    /// Wait until everything of `home` up to `at` is here.
    Arrive { home: RegionId, at: Timestamp, limit: Duration },
    /// The token of a session that has seen this.
    Token { seen: Timestamp },
    /// The same, of one that goes to another region.
    Migrate { seen: Timestamp, to: String },
    /// Wait until everything is here that a token stands for.
    Attach { token: String, limit: Duration },
    /// How far are the other regions?
    Distances,
    /// Say this to `region`: [`crate::asked::Asked`]. The answer is its own.
    Read { region: RegionId, asked: Bytes },
    /// Ask `region` this: [`crate::question::Question::Rows`]. The answer is its own.
    Rows { region: RegionId, question: Bytes },
    /// How do the regions stand?
    Shown(Shown),
    /// May clients write: has the region what it may have lost, or does it count apart?
    Opens,
}

/// The answers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Relayed {
    Yes,
    Text(String),
    /// Everything asked for is in the region's log up to here.
    Here(Timestamp),
    Far(Vec<Distance>),
    /// Another region's answer.
    Said(Bytes),
    /// It was committed, and this region has applied up to `here`.
    Committed {
        done: Elsewhere,
        here: Timestamp,
    },
    Conflict {
        other: TxnId,
        at: Timestamp,
        key: Bytes,
    },
    /// The home found something that was not to be there, or nothing where `there` says that
    /// something was.
    Unexpected {
        key: Bytes,
        there: bool,
    },
    Regions(RegionsView),
    Links(Vec<LinkView>),
    Conflicts(Vec<ConflictView>),
    /// A session never goes on here with its token: it is none (`lost`: not all that it stands for
    /// is left).
    NoToken {
        lost: bool,
        reason: String,
    },
    /// Nothing was done.
    Refused(String),
    /// Whether it was committed could not be learnt.
    Unknown(String),
}

fn text(cursor: &mut Cursor) -> Result<String, Malformed> {
    Ok(String::from_utf8_lossy(&cursor.string()?).into_owned())
}

fn put_limit(out: &mut BytesMut, limit: Duration) {
    put_varint(out, u64::try_from(limit.as_micros()).unwrap_or(u64::MAX));
}

impl Relay {
    pub fn encode(&self) -> Bytes {
        let mut out = BytesMut::new();
        out.put_slice(&[TOPIC, VERSION]);
        match self {
            Self::Carries => out.put_u8(1),
            Self::Commit { home, forwarded } => {
                out.put_u8(2);
                out.put_u16_le(home.0);
                out.put_slice(forwarded);
            }
            Self::Arrive { home, at, limit } => {
                out.put_u8(3);
                out.put_u16_le(home.0);
                out.put_u64_le(at.0);
                put_limit(&mut out, *limit);
            }
            Self::Token { seen } => {
                out.put_u8(4);
                out.put_u64_le(seen.0);
            }
            Self::Migrate { seen, to } => {
                out.put_u8(5);
                out.put_u64_le(seen.0);
                put_string(&mut out, to.as_bytes());
            }
            Self::Attach { token, limit } => {
                out.put_u8(6);
                put_string(&mut out, token.as_bytes());
                put_limit(&mut out, *limit);
            }
            Self::Distances => out.put_u8(7),
            Self::Read { region, asked } => {
                out.put_u8(8);
                out.put_u16_le(region.0);
                out.put_slice(asked);
            }
            Self::Rows { region, question } => {
                out.put_u8(9);
                out.put_u16_le(region.0);
                out.put_slice(question);
            }
            Self::Shown(what) => {
                out.put_u8(10);
                out.put_u8(what.number());
            }
            Self::Opens => out.put_u8(11),
        }
        out.freeze()
    }

    pub fn decode(bytes: Bytes) -> Result<Self, Malformed> {
        let mut cursor = Cursor::new(bytes);
        if cursor.u8()? != TOPIC {
            return Err("a question of another layer".to_owned());
        }
        check(cursor.u8()?)?;
        let relay = match cursor.u8()? {
            1 => Self::Carries,
            2 => {
                let home = RegionId(cursor.u16()?);
                Self::Commit { home, forwarded: cursor.take(cursor.remaining())? }
            }
            3 => {
                let (home, at) = (RegionId(cursor.u16()?), Timestamp(cursor.u64()?));
                Self::Arrive { home, at, limit: Duration::from_micros(cursor.varint()?) }
            }
            4 => Self::Token { seen: Timestamp(cursor.u64()?) },
            5 => Self::Migrate { seen: Timestamp(cursor.u64()?), to: text(&mut cursor)? },
            6 => {
                let token = text(&mut cursor)?;
                Self::Attach { token, limit: Duration::from_micros(cursor.varint()?) }
            }
            7 => Self::Distances,
            8 => {
                let region = RegionId(cursor.u16()?);
                Self::Read { region, asked: cursor.take(cursor.remaining())? }
            }
            9 => {
                let region = RegionId(cursor.u16()?);
                Self::Rows { region, question: cursor.take(cursor.remaining())? }
            }
            10 => Self::Shown(Shown::of_number(cursor.u8()?)?),
            11 => Self::Opens,
            kind => return Err(format!("a question of kind {kind} to who carries is not known")),
        };
        cursor.finish()?;
        Ok(relay)
    }
}

impl Relayed {
    pub fn encode(&self) -> Bytes {
        let mut out = BytesMut::new();
        out.put_u8(VERSION);
        match self {
            Self::Yes => out.put_u8(1),
            Self::Text(text) => {
                out.put_u8(2);
                put_string(&mut out, text.as_bytes());
            }
            Self::Here(at) => {
                out.put_u8(3);
                out.put_u64_le(at.0);
            }
            Self::Far(far) => {
                out.put_u8(4);
                put_varint(&mut out, far.len() as u64);
                for distance in far {
                    out.put_u16_le(distance.region.0);
                    put_limit(&mut out, distance.round_trip.unwrap_or_default());
                    out.put_u8(u8::from(distance.connected));
                }
            }
            Self::Said(answer) => {
                out.put_u8(5);
                out.put_slice(answer);
            }
            Self::Committed { done, here } => {
                out.put_u8(6);
                out.put_u16_le(done.home.0);
                out.put_u64_le(done.at.0);
                put_varint(&mut out, done.lsn.0);
                out.put_u8(u8::from(done.arrived));
                out.put_u64_le(here.0);
            }
            Self::Conflict { other, at, key } => {
                out.put_u8(7);
                out.put_u128_le(other.0);
                out.put_u64_le(at.0);
                put_string(&mut out, key);
            }
            Self::Refused(reason) => {
                out.put_u8(8);
                put_string(&mut out, reason.as_bytes());
            }
            Self::Unexpected { key, there } => {
                out.put_u8(10);
                put_string(&mut out, key);
                out.put_u8(u8::from(*there));
            }
            Self::Unknown(reason) => {
                out.put_u8(9);
                put_string(&mut out, reason.as_bytes());
            }
            Self::NoToken { lost, reason } => {
                out.put_u8(14);
                out.put_u8(u8::from(*lost));
                put_string(&mut out, reason.as_bytes());
            }
            Self::Regions(view) => {
                out.put_u8(11);
                shown::put_regions(&mut out, view);
            }
            Self::Links(links) => {
                out.put_u8(12);
                shown::put_links(&mut out, links);
            }
            Self::Conflicts(conflicts) => {
                out.put_u8(13);
                shown::put_conflicts(&mut out, conflicts);
            }
        }
        out.freeze()
    }

    pub fn decode(bytes: Bytes) -> Result<Self, Malformed> {
        let mut cursor = Cursor::new(bytes);
        check(cursor.u8()?)?;
        let relayed = match cursor.u8()? {
            1 => Self::Yes,
            2 => Self::Text(text(&mut cursor)?),
            3 => Self::Here(Timestamp(cursor.u64()?)),
            4 => {
                let count = cursor.count(4)?;
                let mut far = Vec::with_capacity(count);
                for _ in 0..count {
                    let region = RegionId(cursor.u16()?);
                    let micros = cursor.varint()?;
                    let round_trip = (micros > 0).then(|| Duration::from_micros(micros));
                    far.push(Distance { region, round_trip, connected: cursor.u8()? != 0 });
                }
                Self::Far(far)
            }
            5 => Self::Said(cursor.take(cursor.remaining())?),
            6 => {
                let (home, at) = (RegionId(cursor.u16()?), Timestamp(cursor.u64()?));
                let (lsn, arrived) = (Lsn(cursor.varint()?), cursor.u8()? != 0);
                let done = Elsewhere { home, at, lsn, arrived };
                Self::Committed { done, here: Timestamp(cursor.u64()?) }
            }
            7 => {
                let other = TxnId(u128::from_le_bytes(cursor.array16()?));
                Self::Conflict { other, at: Timestamp(cursor.u64()?), key: cursor.string()? }
            }
            8 => Self::Refused(text(&mut cursor)?),
            9 => Self::Unknown(text(&mut cursor)?),
            10 => Self::Unexpected { key: cursor.string()?, there: cursor.u8()? == 1 },
            11 => Self::Regions(shown::take_regions(&mut cursor)?),
            12 => Self::Links(shown::take_links(&mut cursor)?),
            13 => Self::Conflicts(shown::take_conflicts(&mut cursor)?),
            14 => Self::NoToken { lost: cursor.u8()? == 1, reason: text(&mut cursor)? },
            kind => return Err(format!("an answer of kind {kind} of who carries is not known")),
        };
        cursor.finish()?;
        Ok(relayed)
    }

    /// Why a session does not go on with its token.
    pub fn of_attach(why: NotAttached) -> Self {
        match why {
            NotAttached::NoToken(reason) => Self::NoToken { lost: false, reason },
            NotAttached::Lost(reason) => Self::NoToken { lost: true, reason },
            NotAttached::NotYet(reason) => Self::Refused(reason),
        }
    }

    /// What became of a transaction, and up to where this region's log is applied by who tells.
    pub fn of_commit(committed: telesto_txn::Result<Elsewhere>, here: Timestamp) -> Self {
        match committed {
            Ok(done) => Self::Committed { done, here },
            Err(Txn::Conflict { other, at, key, .. }) => Self::Conflict { other, at, key },
            Err(Txn::Unexpected { key, there }) => Self::Unexpected { key, there },
            Err(Txn::OutcomeUnknown { reason, .. }) => Self::Unknown(reason),
            Err(error) => Self::Refused(error.to_string()),
        }
    }
}

fn check(version: u8) -> Result<(), Malformed> {
    if version == VERSION {
        return Ok(());
    }
    Err(format!(
        "version {version} of questions to who carries is too new, {VERSION} is known here; upgrade this node first"
    ))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(128))]

        #[test]
        fn questions_and_answers_are_read_back_and_any_bytes_are_read_or_refused(
            number in any::<u64>(),
            text in ".{0,20}",
            body in prop::collection::vec(any::<u8>(), 0..64),
        ) {
            let (home, at, limit) = (RegionId(3), Timestamp(number), Duration::from_micros(number));
            let body = Bytes::from(body);
            let (token, to) = (text.clone(), text.clone());
            for relay in [
                Relay::Carries,
                Relay::Commit { home, forwarded: body.clone() },
                Relay::Arrive { home, at, limit },
                Relay::Token { seen: at },
                Relay::Migrate { seen: at, to },
                Relay::Attach { token, limit },
                Relay::Distances,
                Relay::Read { region: home, asked: body.clone() },
                Relay::Rows { region: home, question: body.clone() },
                Relay::Shown(Shown::Regions),
                Relay::Shown(Shown::Links),
                Relay::Shown(Shown::Conflicts),
                Relay::Opens,
            ] {
                prop_assert_eq!(Relay::decode(relay.encode()), Ok(relay));
            }
            let done = Elsewhere { home, at, lsn: Lsn(number), arrived: number % 2 == 0 };
            let other = TxnId(u128::from(number));
            let round_trip = (number > 0).then_some(limit);
            let far = vec![Distance { region: home, round_trip, connected: true }];
            for relayed in [
                Relayed::Yes,
                Relayed::Text(text.clone()),
                Relayed::Here(at),
                Relayed::Far(far),
                Relayed::Said(body.clone()),
                Relayed::Committed { done, here: at },
                Relayed::Conflict { other, at, key: body.clone() },
                Relayed::Unexpected { key: body.clone(), there: number % 2 == 0 },
                Relayed::Refused(text.clone()),
                Relayed::NoToken { lost: number % 2 == 0, reason: text.clone() },
                Relayed::Regions(shown::tests::view(number, &text)),
                Relayed::Links(vec![shown::tests::link(number)]),
                Relayed::Conflicts(vec![shown::tests::conflict(number, &body)]),
                Relayed::Unknown(text),
            ] {
                prop_assert_eq!(Relayed::decode(relayed.encode()), Ok(relayed));
            }
            let _ = Relay::decode(body.clone());
            let _ = Relayed::decode(body);
        }
    }
}
