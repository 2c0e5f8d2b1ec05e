//! Columns that merge: counters, and columns of which the greatest or least value stays, in a table
//! that every region writes.
//!
//! ```text
//! row ─► label of the other columns │ cut │ part of each region: when it was written, amount     value = sum (or greatest, or least) of the parts
//!
//! two rows of one key ─► greater label │ greater cut │ of each region's parts the later; those up to the cut are gone
//! ```
//! What a row keeps beside its values is a state that is joined: each region changes its own part
//! alone, and the join takes of each thing the later. So it does not matter in which order, and how
//! often, states come.
//!
//! # Invariants
//! - The join is commutative, associative and idempotent: replicas that have seen the same writes
//!   have the same values.
//! - A region's part changes only with a write of that region, which has read the part before: no
//!   increment is lost. What it counts while it cannot know whether it has lost commits stands in a
//!   part beside ([`Author::life`]).
//! - A delete with label D leaves a mark, and takes the row away where no write of it has a greater
//!   label. Where one has, the row stays without the parts up to D (its *cut*): in every region the
//!   same ones.
//! - A row without parts of this *era* (the definition that named the columns) has its values as
//!   one part that belongs to nobody.
//! - Copies that have seen the same writes are equal when their times are written out
//!   ([`written_out`]), not byte by byte, nor in the label that they are stored under.
//!
//! # On failure
//! 23514 for a value that the column cannot take here; XX001 for bytes that are no state.
//!
//! # Limits
//! A sum outside the column's type is shown as the nearest value that fits; the parts stay exact. A
//! cut is kept as long as its row.

mod state;

use std::collections::BTreeMap;

use bytes::Bytes;
use num_bigint::BigInt;
use serde::{Deserialize, Serialize};
use telesto_common::{RegionId, Timestamp};
use telesto_sql_types::error::{Error, Result, SqlState};
use telesto_sql_types::numeric::pow10;
use telesto_sql_types::{Datum, Numeric, Row, SqlType};
use telesto_txn::regions::Share;

pub use self::state::{Author, FIRST, Rank};
use self::state::{Part, State, fields_of};
use crate::codec::RowCodec;
use crate::codec::row::{encode_with, kept_of};
use crate::model::Table;
pub use telesto_geo::placement::life_row;

/// How a column merges.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Amounts that regions add are added up.
    Counter,
    /// The greatest value stays.
    Max,
    /// The least value stays.
    Min,
}

/// The merging columns of a table, by their ids.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Merging {
    /// The definition that named them: parts of rows written under another one count as values.
    pub era: u32,
    /// Counters.
    #[serde(default)]
    pub counters: Vec<u16>,
    /// The greatest stays.
    #[serde(default)]
    pub max: Vec<u16>,
    /// The least stays.
    #[serde(default)]
    pub min: Vec<u16>,
}

impl Merging {
    /// Whether no column merges.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.counters.is_empty() && self.max.is_empty() && self.min.is_empty()
    }

    /// The columns with their kinds.
    pub fn columns(&self) -> impl Iterator<Item = (u16, Kind)> + '_ {
        let of = |ids: &'_ [u16], kind| ids.iter().map(move |id| (*id, kind)).collect::<Vec<_>>();
        let counters = of(&self.counters, Kind::Counter);
        counters.into_iter().chain(of(&self.max, Kind::Max)).chain(of(&self.min, Kind::Min))
    }

    /// How column `id` merges, if it does.
    #[must_use]
    pub fn kind(&self, id: u16) -> Option<Kind> {
        self.columns().find(|(column, _)| *column == id).map(|(_, kind)| kind)
    }
}

/// What becomes of a key when a version of it comes from another region.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Joined {
    /// It stays as it is.
    Stays,
    /// It gets this value, or goes.
    Becomes(Option<Bytes>),
}

/// Whether a stored row keeps a state: it was written while columns of its table merged. Copies of
/// it may be stored under other labels.
#[must_use]
pub fn keeps_state(value: &[u8]) -> bool {
    kept_of(value).is_ok_and(|kept| kept.is_some())
}

/// Label and bytes of a version that are the same in all copies which have seen the same; `None`:
/// it keeps no state, and is the same as it stands.
///
/// # Errors
/// XX001.
pub fn written_out(
    table: &Table,
    codec: &RowCodec,
    rank: Rank,
    value: &Bytes,
) -> Result<Option<(Rank, Bytes)>> {
    let Some(kept) = kept_of(value)? else { return Ok(None) };
    let label = fields_of(kept)?.unwrap_or(rank);
    if let Some(merger) = Merger::of(table, codec) {
        let (_, current) = merger.resolved(rank, value)?;
        if current {
            return Ok(Some((label, merger.alone(rank, value, FIRST)?)));
        }
    }
    // Nobody counts on from its state: its values are all that it is.
    Ok(Some((label, encode_with(table, &codec.decode_clear(value)?, None)?)))
}

/// What region `of` has written of a stored version. What others wrote comes from them, behind its
/// causes.
///
/// # Errors
/// XX001.
pub fn share(
    table: &Table,
    codec: &RowCodec,
    rank: Rank,
    value: &Bytes,
    of: RegionId,
) -> Result<Share> {
    let Some(kept) = kept_of(value)? else { return Ok(Share::Whole) };
    // Of an older era it is the same everywhere, and a region that reads it by that era joins it
    // whole.
    let whole = Share::This(fields_of(kept)?.unwrap_or(rank), Some(value.clone()));
    let Some(merger) = Merger::of(table, codec) else { return Ok(whole) };
    let (mut state, current) = merger.resolved(rank, value)?;
    if !current {
        return Ok(whole);
    }
    // What was there before the columns merged goes with every share: it belongs to nobody.
    state.parts.retain(|(_, a), _| a.region == of || *a == Author::NOBODY);
    state.fields = Some(state.fields.filter(|fields| fields.1 == of).unwrap_or(FIRST));
    state.cut = if state.cut.1 == of { state.cut } else { FIRST };
    let newest = state.newest();
    Ok(match state.cut {
        FIRST if newest == FIRST => Share::Nothing,
        cut if newest == FIRST => Share::This(cut, None),
        cut => {
            let (bytes, _) = merger.write(&state, codec.decode_clear(value)?)?;
            Share::This(newest.max(cut), Some(bytes))
        }
    })
}

/// A table's merging columns with how its rows are read.
#[derive(Clone, Copy, Debug)]
pub struct Merger<'a> {
    /// The table.
    pub table: &'a Table,
    /// Decodes its rows whole.
    pub codec: &'a RowCodec,
    /// Its merging columns.
    pub merging: &'a Merging,
}

impl<'a> Merger<'a> {
    /// Of a table that has merging columns.
    #[must_use]
    pub fn of(table: &'a Table, codec: &'a RowCodec) -> Option<Self> {
        let merging = table.placement.merging.as_ref()?;
        Some(Self { table, codec, merging })
    }

    /// Bytes of a row that `me` writes over `before` (the bytes that are there, its own uncommitted
    /// ones included), and the row as it is then. `rank`: the label of the version that has these
    /// bytes, if it is committed: what it contributed before keeps its time.
    ///
    /// # Errors
    /// 23514 when a column that keeps its greatest value would go down, or its least value up, or a
    /// counter is no number.
    pub fn updated(
        &self,
        me: Author,
        rank: Option<Rank>,
        before: &[u8],
        row: &Row,
    ) -> Result<(Bytes, Row)> {
        let old = self.codec.decode_clear(before)?;
        let (mut state, _) = self.read(before, &old)?;
        if let Some(rank) = rank {
            state.resolve(rank);
        }
        for (id, kind) in self.merging.columns() {
            let at = self.position(id)?;
            let (was, is) = (&old[at], &row[at]);
            let own = state.parts.get(&(id, me)).map(|part| part.value.clone());
            let value = match kind {
                Kind::Counter => {
                    let change = self.amount(at, is)?.sub(&self.amount(at, was)?);
                    if change.is_zero() {
                        continue;
                    }
                    match own {
                        Some(Datum::Numeric(own)) => Datum::Numeric(own.add(&change).into()),
                        _ => Datum::Numeric(change.into()),
                    }
                }
                Kind::Max | Kind::Min if better(kind, was, is) => {
                    return Err(self.backwards(at, kind));
                }
                Kind::Max | Kind::Min if is.is_null() => continue,
                // What it knows of, new or not: a row that outlives a delete by this write has a
                // value.
                Kind::Max | Kind::Min => is.clone(),
            };
            state.parts.insert((id, me), Part { stamp: None, value });
        }
        state.fields = None;
        self.write(&state, row.clone())
    }

    /// Bytes of a row that `me` inserts, and the row. `gone`: what was there before and is deleted,
    /// as [`Merger::newest`] tells.
    ///
    /// # Errors
    /// 23514 when a counter is no number.
    pub fn inserted(&self, me: Author, gone: Rank, row: &Row) -> Result<(Bytes, Row)> {
        let mut parts = BTreeMap::new();
        for (id, kind) in self.merging.columns() {
            let at = self.position(id)?;
            let value = match kind {
                Kind::Counter => Datum::Numeric(self.amount(at, &row[at])?.into()),
                Kind::Max | Kind::Min if row[at].is_null() => continue,
                Kind::Max | Kind::Min => row[at].clone(),
            };
            parts.insert((id, me), Part { stamp: None, value });
        }
        self.write(&State { fields: None, cut: gone, parts }, row.clone())
    }

    /// The newest of what a version (its label, and its value or nothing for a delete mark) knows
    /// of.
    ///
    /// # Errors
    /// XX001.
    pub fn newest(&self, rank: Rank, value: Option<&Bytes>) -> Result<Rank> {
        let Some(value) = value else { return Ok(rank) };
        let (state, _) = self.resolved(rank, value)?;
        Ok(rank.max(state.cut).max(state.newest()))
    }

    /// Joins the version that is here with one that comes. Also whether the one that comes loses
    /// something that does not merge.
    ///
    /// # Errors
    /// XX001.
    pub fn join(
        &self,
        here: Option<(Rank, Option<&Bytes>)>,
        came: (Rank, Option<&Bytes>),
    ) -> Result<(Joined, bool)> {
        let (rank, value) = came;
        let Some((kept, present)) = here else {
            let value = value.map(|value| self.alone(rank, value, FIRST)).transpose()?;
            return Ok((Joined::Becomes(value), false));
        };
        match (present, value) {
            (None, None) if rank > kept => Ok((Joined::Becomes(None), false)),
            (None, None) => Ok((Joined::Stays, rank < kept)),
            (None, Some(value)) => {
                let (state, _) = self.resolved(rank, value)?;
                if state.newest() < kept {
                    return Ok((Joined::Stays, true));
                }
                Ok((Joined::Becomes(Some(self.alone(rank, value, kept)?)), false))
            }
            (Some(present), None) => {
                let (mut state, current) = self.resolved(kept, present)?;
                if state.newest() < rank {
                    return Ok((Joined::Becomes(None), false));
                }
                let before = state.clone();
                state.raise(rank);
                if !current || state == before {
                    return Ok((Joined::Stays, true));
                }
                let row = self.codec.decode_clear(present)?;
                Ok((Joined::Becomes(Some(self.write(&state, row)?.0)), true))
            }
            (Some(present), Some(value)) => self.join_rows((kept, present), (rank, value)),
        }
    }

    fn join_rows(&self, here: (Rank, &Bytes), came: (Rank, &Bytes)) -> Result<(Joined, bool)> {
        let (mine, current) = self.resolved(here.0, here.1)?;
        let (theirs, comes_current) = self.resolved(came.0, came.1)?;
        let wins = theirs.fields > mine.fields;
        if !(current && comes_current) {
            // What was written before the columns merged stands behind all that was written since.
            let wins = if current == comes_current { wins } else { comes_current };
            if wins {
                return Ok((Joined::Becomes(Some(self.alone(came.0, came.1, FIRST)?)), false));
            }
            return Ok((Joined::Stays, here.0 > came.0));
        }
        let (old, new) = (self.codec.decode_clear(here.1)?, self.codec.decode_clear(came.1)?);
        let merges = |at: usize| {
            self.table.columns.get(at).is_some_and(|c| self.merging.kind(c.id).is_some())
        };
        let differ = (0..old.len()).any(|at| !merges(at) && old[at] != new[at]);
        // A share of a row says nothing of the other columns.
        let says = theirs.fields != mine.fields && theirs.fields != Some(FIRST);
        let lost = !wins && says && differ;
        let mut joined = State {
            fields: mine.fields.max(theirs.fields),
            cut: mine.cut,
            parts: mine.parts.clone(),
        };
        for (place, part) in theirs.parts {
            match joined.parts.get(&place) {
                Some(known) if known.stamp >= part.stamp => {}
                _ => {
                    joined.parts.insert(place, part);
                }
            }
        }
        joined.raise(theirs.cut);
        joined.raise(mine.cut);
        if joined == mine {
            return Ok((Joined::Stays, lost));
        }
        let (bytes, _) = self.write(&joined, if wins { new } else { old })?;
        Ok((Joined::Becomes(Some(bytes)), lost))
    }

    /// A version as it stands alone, without what is up to `cut`; its times are written out.
    fn alone(&self, rank: Rank, value: &Bytes, cut: Rank) -> Result<Bytes> {
        let (mut state, current) = self.resolved(rank, value)?;
        if !current {
            return Ok(value.clone());
        }
        state.raise(cut);
        Ok(self.write(&state, self.codec.decode_clear(value)?)?.0)
    }

    /// What a stored row keeps, with the times that it leaves to its version, and whether it was
    /// written in this era.
    fn resolved(&self, rank: Rank, value: &Bytes) -> Result<(State, bool)> {
        let (mut state, current) = self.read(value, &self.codec.decode_clear(value)?)?;
        state.resolve(rank);
        Ok((state, current))
    }

    fn read(&self, bytes: &[u8], row: &Row) -> Result<(State, bool)> {
        if let Some(kept) = kept_of(bytes)?
            && let Some(state) = State::decode(self.table, self.merging, kept)?
        {
            return Ok((state, true));
        }
        let mut parts = BTreeMap::new();
        for (id, kind) in self.merging.columns() {
            let at = self.position(id)?;
            let value = match kind {
                Kind::Counter => Datum::Numeric(self.amount(at, &row[at])?.into()),
                Kind::Max | Kind::Min if row[at].is_null() => continue,
                Kind::Max | Kind::Min => row[at].clone(),
            };
            parts.insert((id, Author::NOBODY), Part { stamp: Some(Timestamp::ZERO), value });
        }
        Ok((State { fields: None, cut: FIRST, parts }, false))
    }

    fn write(&self, state: &State, mut row: Row) -> Result<(Bytes, Row)> {
        for (id, kind) in self.merging.columns() {
            let at = self.position(id)?;
            let parts = state.of_column(id).map(|part| &part.value);
            row[at] = match kind {
                Kind::Counter => {
                    let numbers = parts.filter_map(|value| match value {
                        Datum::Numeric(number) => Some(&**number),
                        _ => None,
                    });
                    let sum = numbers.fold(Numeric::zero(), |sum, number| sum.add(number));
                    fitting(&sum, &self.table.columns[at].ty)
                }
                Kind::Max | Kind::Min => parts.fold(Datum::Null, |best, value| {
                    if better(kind, value, &best) { value.clone() } else { best }
                }),
            };
        }
        let bytes = encode_with(self.table, &row, Some(&state.encode(self.table, self.merging)?))?;
        Ok((bytes, row))
    }

    fn position(&self, id: u16) -> Result<usize> {
        let found = self.table.columns.iter().position(|column| column.id == id);
        found.ok_or_else(|| Error::internal(format!("no column {id} to merge")))
    }

    fn amount(&self, at: usize, value: &Datum) -> Result<Numeric> {
        Ok(match value {
            Datum::Int2(v) => Numeric::new(i64::from(*v), 0),
            Datum::Int4(v) => Numeric::new(i64::from(*v), 0),
            Datum::Int8(v) => Numeric::new(*v, 0),
            Datum::Numeric(v) if v.is_finite() => (**v).clone(),
            _ => {
                let name = &self.table.columns[at].name;
                return Err(Error::new(
                    SqlState::CHECK_VIOLATION,
                    format!(
                        "column \"{name}\" of relation \"{}\" is a counter, and takes finite numbers alone",
                        self.table.name
                    ),
                ));
            }
        })
    }

    fn backwards(&self, at: usize, kind: Kind) -> Error {
        let name = &self.table.columns[at].name;
        let (stays, function) = match kind {
            Kind::Max => ("greatest", "GREATEST"),
            _ => ("least", "LEAST"),
        };
        Error::new(
            SqlState::CHECK_VIOLATION,
            format!(
                "column \"{name}\" of relation \"{}\" keeps its {stays} value over all regions, and cannot go back",
                self.table.name
            ),
        )
        .hint(format!("SET {name} = {function}({name}, …) keeps what is there; or delete the row and insert it."))
    }
}

/// Whether `value` takes the place of `than`.
fn better(kind: Kind, value: &Datum, than: &Datum) -> bool {
    if value.is_null() || than.is_null() {
        return !value.is_null();
    }
    match kind {
        Kind::Min => value.cmp_values(than).is_lt(),
        _ => value.cmp_values(than).is_gt(),
    }
}

/// The value of `ty` that is nearest to a sum.
fn fitting(sum: &Numeric, ty: &SqlType) -> Datum {
    let within = |least: i64, most: i64| {
        let negative = sum.signum() == Some(-1);
        let value = sum.to_i64().unwrap_or(if negative { least } else { most });
        value.clamp(least, most)
    };
    match ty {
        SqlType::Int2 => Datum::Int2(within(i16::MIN.into(), i16::MAX.into()) as i16),
        SqlType::Int4 => Datum::Int4(within(i32::MIN.into(), i32::MAX.into()) as i32),
        SqlType::Int8 => Datum::Int8(within(i64::MIN, i64::MAX)),
        SqlType::Numeric(Some(form)) => {
            let scale = u32::try_from(form.scale).unwrap_or(0);
            let most = pow10(u32::from(form.precision)) - BigInt::from(1);
            let sum = sum.rounded(i32::from(form.scale));
            let sum = match &sum {
                Numeric::Finite { unscaled, scale: at } if *at == scale => {
                    Numeric::new(unscaled.clone().clamp(-most.clone(), most), scale)
                }
                _ => sum.clone(),
            };
            Datum::Numeric(sum.into())
        }
        _ => Datum::Numeric(sum.clone().into()),
    }
}

#[cfg(test)]
mod tests;
