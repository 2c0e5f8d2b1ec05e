//! What a transaction tells of its past in a batch: two lines of the matrix, not all of it.
//!
//! ```text
//!            to ▼                   column: the counts that the receiver waits for
//!      · · · ·  x                   row: the numbers of the sender's own transactions, by which any region knows them
//! from x x x x  x
//!      · · · ·  x                   the rest: that of the batch's end
//! ```
//! # Invariants
//! - Both lines of every transaction are exact. The rest is at least what the transaction has seen,
//!   and names nothing that was committed after its batch was made. So whatever depends on it is
//!   committed later than all that it names: regions never wait for each other.
//!
//! # On failure
//! Bytes that do not decode are refused.
//!
//! # Limits
//! [`MEMBERS`] regions, whose set is two bytes.

use bytes::{BufMut as _, BytesMut};
use telesto_common::RegionId;
use telesto_common::cursor::{Cursor, Malformed, put_varint};

use crate::past::{MEMBERS, Past};

/// The two lines of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Lines {
    pub from: RegionId,
    pub to: RegionId,
}

impl Lines {
    /// Source and target of each count: the sender's row, then the receiver's column without what
    /// both share.
    fn counts(self) -> [Vec<(RegionId, RegionId)>; 2] {
        let regions = || (0..MEMBERS as u16).map(RegionId);
        let row = regions().map(|to| (self.from, to)).collect();
        let column = regions().filter(|from| *from != self.from).map(|from| (from, self.to));
        [row, column.collect()]
    }
}

impl Past {
    /// Appends what has grown of `lines` since `before`: by line a set of counts that have grown by
    /// one, and the others by how much.
    pub fn put_lines_since(&self, lines: Lines, before: &Self, out: &mut BytesMut) {
        for line in lines.counts() {
            let grown = |(from, to): (RegionId, RegionId)| {
                self.get(from, to).saturating_sub(before.get(from, to))
            };
            let (mut by_one, mut others) = (0_u16, Vec::new());
            for (at, count) in line.into_iter().enumerate() {
                match grown(count) {
                    0 => {}
                    1 => by_one |= 1 << at,
                    more => others.push((at, more)),
                }
            }
            out.put_u16_le(by_one);
            put_varint(out, others.len() as u64);
            for (at, more) in others {
                out.put_u8(u8::try_from(at).unwrap_or(u8::MAX));
                put_varint(out, more);
            }
        }
    }

    /// Takes in what [`Past::put_lines_since`] appended, where this is what it was before.
    pub fn take_lines_since(&mut self, lines: Lines, cursor: &mut Cursor) -> Result<(), Malformed> {
        for line in lines.counts() {
            let by_one = cursor.u16()?;
            for (at, (from, to)) in line.iter().enumerate() {
                self.grow(*from, *to, u64::from(by_one >> at & 1));
            }
            for _ in 0..cursor.count(2)? {
                let at = usize::from(cursor.u8()?);
                let more = cursor.varint()?;
                let (from, to) =
                    line.get(at).ok_or_else(|| format!("{at} is no place in a line of counts"))?;
                self.grow(*from, *to, more);
            }
        }
        Ok(())
    }

    /// `others` with the lines of this.
    pub fn with_lines(&self, lines: Lines, others: &Self) -> Self {
        let mut both = others.clone();
        for (from, to) in lines.counts().into_iter().flatten() {
            both.set(from, to, self.get(from, to));
        }
        both
    }
}
