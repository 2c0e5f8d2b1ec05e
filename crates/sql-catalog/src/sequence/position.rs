//! Where a sequence stands, as it is stored.
//!
//! # Protocol
//! ```text
//! a region may have lost commits ─► a new doubt (`telesto_geo::placement::doubt_row`)
//! next values ─► the position is of another doubt? ─► behind all that may be lost, from then on of this doubt
//! ```
//! # Invariants
//! - A region that may have lost what it gave gives it to nobody else: other regions may have rows
//!   with those values.
//!
//! # Limits
//! How much was lost nobody knows: [`LOST`] rounds of parcels at least are passed over where the
//! region has lost something, [`DOUBTFUL`] where it cannot ask the others, which may be at any
//! start, or a sixteenth of what the sequence has left where that is less. Nothing is passed over
//! of a sequence in which the region has no position of its own: it
//! is new there.

use bytes::Bytes;
use telesto_common::RegionId;

use super::BLOCK;
use crate::model::Sequence;
use crate::regions::MOST_REGIONS;
use telesto_sql_types::error::{Error, Result};

const VERSION: u8 = 1;
/// Of a position with a doubt.
const DOUBTED: u8 = 2;
/// Rounds, in which each region has a parcel, that are passed over at least.
const LOST: i128 = 1 << 12;
const DOUBTFUL: i128 = 1 << 6;

/// Where a sequence stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Position {
    /// The value given last, or the one to give first.
    pub last: i64,
    /// Whether `last` has been given.
    pub called: bool,
}

/// A position, and the doubt of the region in which it was reached.
pub(super) type Stored = (Position, Option<u64>);

pub(super) fn encode((position, doubt): Stored) -> Bytes {
    let mut out = vec![if doubt.is_some() { DOUBTED } else { VERSION }, u8::from(position.called)];
    out.extend_from_slice(&position.last.to_be_bytes());
    out.extend(doubt.into_iter().flat_map(u64::to_be_bytes));
    Bytes::from(out)
}

pub(super) fn decode(bytes: &[u8]) -> Result<Stored> {
    let wrong = || Error::corrupt("a sequence's position");
    let number = |bytes: &[u8]| bytes.try_into().map_err(|_| wrong());
    let (called, last, doubt) = match bytes {
        [VERSION, called, last @ ..] => (called, last, None),
        [DOUBTED, called, rest @ ..] if rest.len() == 16 => {
            let (last, doubt) = rest.split_at(8);
            (called, last, Some(u64::from_be_bytes(number(doubt)?)))
        }
        _ => return Err(wrong()),
    };
    Ok((Position { last: i64::from_be_bytes(number(last)?), called: *called != 0 }, doubt))
}

/// The value at or after `value` in a parcel of `region`: values are parted into parcels of
/// [`BLOCK`], and regions have every [`MOST_REGIONS`]th of them, so that none gives what another
/// has given. `None`: the sequence has no such value left.
pub(super) fn in_own_parcel(sequence: &Sequence, value: i64, region: RegionId) -> Option<i64> {
    let (start, step) = (i128::from(sequence.start), i128::from(sequence.increment));
    let (parcel, regions) = (i128::from(BLOCK), i128::from(MOST_REGIONS));
    let index = (i128::from(value) - start).div_euclid(step.abs()) * step.signum();
    let number = index.div_euclid(parcel);
    let ahead = (i128::from(region.0) - number).rem_euclid(regions);
    let index = if ahead == 0 { index } else { (number + ahead) * parcel };
    let value = i64::try_from(start + index * step).ok()?;
    (sequence.min..=sequence.max).contains(&value).then_some(value)
}

/// Behind the values that the region may have given and lost. `doubt` is a number drawn at random,
/// which says how far, since a region may be put back to one state twice; odd: something was lost.
pub(super) fn past_lost(sequence: &Sequence, position: Position, doubt: u64) -> Position {
    let (step, last) = (i128::from(sequence.increment), i128::from(position.last));
    let bound = i128::from(if step > 0 { sequence.max } else { sequence.min });
    let round = i128::from(BLOCK) * i128::from(MOST_REGIONS);
    let left = ((bound - last) / step / round).max(0);
    let most = (left / 16).max(left.min(1));
    let least = if doubt % 2 == 1 { LOST } else { DOUBTFUL };
    let rounds = (least * (1 + i128::from(doubt / 2 % 4))).min(most);
    let value = last + rounds * round * step;
    let last = i64::try_from(value).unwrap_or(position.last);
    Position { last, called: position.called || rounds > 0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn position_comes_back_as_it_was_stored() {
        let position = Position { last: -7, called: true };
        for doubt in [None, Some(9)] {
            let stored = encode((position, doubt));
            assert_eq!(decode(&stored), Ok((position, doubt)));
            assert!(decode(&stored[..stored.len() - 1]).is_err());
        }
        assert!(decode(&[9, 1, 0, 0, 0, 0, 0, 0, 0, 0]).is_err());
    }
}
