//! Columns that merge: counters, and columns of which the greatest or least value stays, in a table that every region writes.
//!
//! ```text
//! row ─► label of the other columns │ cut │ part of each region: when it was written, amount     value = sum (or greatest, or least) of the parts
//!
//! two rows of one key ─► greater label │ greater cut │ of each region's parts the later; those up to the cut are gone
//! ```
//! What a row keeps beside its values is a state that is joined: each region changes its own part alone, and the join takes of each
//! thing the later. So it does not matter in which order, and how often, states come.
//!
//! # Invariants
//! - The join is commutative, associative and idempotent: replicas that have seen the same writes have the same values.
//! - A region's part changes only with a write of that region, which has read the part before: no increment is lost.
//! - A delete with label D leaves a mark, and takes the row away where no write of it has a greater label. Where one has, the row stays
//!   without the parts up to D (its *cut*): in every region the same ones.
//! - A row without parts of this *era* (the definition that named the columns) has its values as one part that belongs to nobody.
//!
//! # On failure
//! 23514 for a value that the column cannot take here; XX001 for bytes that are no state.
//!
//! # Limits
//! A sum outside the column's type is shown as the nearest value that fits; the parts stay exact. A cut is kept as long as its row.

use std::collections::BTreeMap;

use bytes::Bytes;
use num_bigint::BigInt;
use serde::{Deserialize, Serialize};
use telesto_common::{RegionId, Timestamp};
use telesto_sql_types::error::{Error, Result, SqlState};
use telesto_sql_types::numeric::pow10;
use telesto_sql_types::{Datum, Numeric, Row, SqlType};

use crate::codec::RowCodec;
use crate::codec::row::{encode_with, kept_of};
use crate::codec::value::{Input, get_value, put_value, put_varint};
use crate::model::Table;

/// When and where something was written: what decides between two versions.
pub type Rank = (Timestamp, RegionId);

/// Nothing is older.
pub const FIRST: Rank = (Timestamp::ZERO, RegionId(0));
/// What a row had before the columns merged belongs to no region.
const NOBODY: u16 = u16::MAX;

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

/// What one region has contributed to a column.
#[derive(Clone, Debug, PartialEq)]
struct Part {
    /// `None`: the time of the version that it stands in.
    stamp: Option<Timestamp>,
    /// A numeric for counters, else a value of the column.
    value: Datum,
}

/// What a row keeps beside its values.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct State {
    /// Label of the columns that do not merge; `None`: that of the version.
    fields: Option<Rank>,
    cut: Rank,
    /// By column and region.
    parts: BTreeMap<(u16, u16), Part>,
}

/// What becomes of a key when a version of it comes from another region.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Joined {
    /// It stays as it is.
    Stays,
    /// It gets this value, or goes.
    Becomes(Option<Bytes>),
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

    /// Bytes of a row that `me` writes over `before` (the bytes that are there, its own uncommitted ones included), and the row as it
    /// is then.
    ///
    /// # Errors
    /// 23514 when a column that keeps its greatest value would go down, or its least value up, or a counter is no number.
    pub fn updated(&self, me: RegionId, before: &[u8], row: &Row) -> Result<(Bytes, Row)> {
        let old = self.codec.decode(before)?;
        let (mut state, _) = self.read(before, &old)?;
        for (id, kind) in self.merging.columns() {
            let at = self.position(id)?;
            let (was, is) = (&old[at], &row[at]);
            let own = state.parts.get(&(id, me.0)).map(|part| part.value.clone());
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
                Kind::Max | Kind::Min if better(kind, is, was) => is.clone(),
                Kind::Max | Kind::Min if !better(kind, was, is) => continue,
                Kind::Max | Kind::Min => return Err(self.backwards(at, kind)),
            };
            state.parts.insert((id, me.0), Part { stamp: None, value });
        }
        state.fields = None;
        self.write(&state, row.clone())
    }

    /// Bytes of a row that `me` inserts, and the row. `gone`: what was there before and is deleted, as [`Merger::newest`] tells.
    ///
    /// # Errors
    /// 23514 when a counter is no number.
    pub fn inserted(&self, me: RegionId, gone: Rank, row: &Row) -> Result<(Bytes, Row)> {
        let mut parts = BTreeMap::new();
        for (id, kind) in self.merging.columns() {
            let at = self.position(id)?;
            let value = match kind {
                Kind::Counter => Datum::Numeric(self.amount(at, &row[at])?.into()),
                Kind::Max | Kind::Min if row[at].is_null() => continue,
                Kind::Max | Kind::Min => row[at].clone(),
            };
            parts.insert((id, me.0), Part { stamp: None, value });
        }
        self.write(&State { fields: None, cut: gone, parts }, row.clone())
    }

    /// The newest of what a version (its label, and its value or nothing for a delete mark) knows of.
    ///
    /// # Errors
    /// XX001.
    pub fn newest(&self, rank: Rank, value: Option<&Bytes>) -> Result<Rank> {
        let Some(value) = value else { return Ok(rank) };
        let (state, _) = self.resolved(rank, value)?;
        let stamps = state.parts.iter().map(|((_, region), part)| rank_of(*region, part));
        let stamps = stamps.filter(|(_, region)| region.0 != NOBODY);
        Ok(stamps.fold(rank.max(state.cut).max(state.fields.unwrap_or(rank)), Rank::max))
    }

    /// Joins the version that is here with one that comes. Also whether the one that comes loses something that does not merge.
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
                if state.fields.unwrap_or(rank) < kept {
                    return Ok((Joined::Stays, true));
                }
                Ok((Joined::Becomes(Some(self.alone(rank, value, kept)?)), false))
            }
            (Some(present), None) => {
                let (mut state, current) = self.resolved(kept, present)?;
                if state.fields.unwrap_or(kept) < rank {
                    return Ok((Joined::Becomes(None), false));
                }
                let before = state.clone();
                state.raise(rank);
                if !current || state == before {
                    return Ok((Joined::Stays, true));
                }
                let row = self.codec.decode(present)?;
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
        let (old, new) = (self.codec.decode(here.1)?, self.codec.decode(came.1)?);
        let merges = |at: usize| {
            self.table.columns.get(at).is_some_and(|c| self.merging.kind(c.id).is_some())
        };
        let differ = (0..old.len()).any(|at| !merges(at) && old[at] != new[at]);
        let lost = !wins && theirs.fields != mine.fields && differ;
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
        Ok(self.write(&state, self.codec.decode(value)?)?.0)
    }

    /// What a stored row keeps, with the times that it leaves to its version, and whether it was written in this era.
    fn resolved(&self, rank: Rank, value: &Bytes) -> Result<(State, bool)> {
        let (mut state, current) = self.read(value, &self.codec.decode(value)?)?;
        state.fields.get_or_insert(rank);
        for part in state.parts.values_mut() {
            part.stamp.get_or_insert(rank.0);
        }
        Ok((state, current))
    }

    fn read(&self, bytes: &[u8], row: &Row) -> Result<(State, bool)> {
        if let Some(kept) = kept_of(bytes)?
            && let Some(state) = self.decode(kept)?
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
            parts.insert((id, NOBODY), Part { stamp: Some(Timestamp::ZERO), value });
        }
        Ok((State { fields: None, cut: FIRST, parts }, false))
    }

    fn write(&self, state: &State, mut row: Row) -> Result<(Bytes, Row)> {
        for (id, kind) in self.merging.columns() {
            let at = self.position(id)?;
            let parts = state.parts.range((id, 0)..=(id, u16::MAX)).map(|(_, part)| &part.value);
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
        let bytes = encode_with(self.table, &row, Some(&self.encode(state)?))?;
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

    fn encode(&self, state: &State) -> Result<Vec<u8>> {
        let mut out = self.merging.era.to_le_bytes().to_vec();
        put_stamp(&mut out, state.fields.map(|fields| fields.0));
        out.extend_from_slice(&state.fields.map_or(0, |fields| fields.1.0).to_le_bytes());
        out.extend_from_slice(&state.cut.0.0.to_le_bytes());
        out.extend_from_slice(&state.cut.1.0.to_le_bytes());
        put_varint(&mut out, state.parts.len() as u64);
        for ((id, region), part) in &state.parts {
            out.extend_from_slice(&id.to_le_bytes());
            out.extend_from_slice(&region.to_le_bytes());
            put_stamp(&mut out, part.stamp);
            put_value(&mut out, &part.value, &self.part_type(*id)?)?;
        }
        Ok(out)
    }

    /// `None`: it is of another era.
    fn decode(&self, kept: &[u8]) -> Result<Option<State>> {
        let mut input = Input(kept);
        if u32::from_le_bytes(input.array()?) != self.merging.era {
            return Ok(None);
        }
        let at = get_stamp(&mut input)?;
        let region = RegionId(u16::from_le_bytes(input.array()?));
        let fields = at.map(|at| (at, region));
        let at = Timestamp(u64::from_le_bytes(input.array()?));
        let cut = (at, RegionId(u16::from_le_bytes(input.array()?)));
        let mut parts = BTreeMap::new();
        for _ in 0..input.varint()? {
            let id = u16::from_le_bytes(input.array()?);
            let region = u16::from_le_bytes(input.array()?);
            let stamp = get_stamp(&mut input)?;
            let value = get_value(&mut input, &self.part_type(id)?)?;
            parts.insert((id, region), Part { stamp, value });
        }
        if !input.0.is_empty() {
            return Err(Error::corrupt("the parts of a row are longer than they say"));
        }
        Ok(Some(State { fields, cut, parts }))
    }

    fn part_type(&self, id: u16) -> Result<SqlType> {
        Ok(match self.merging.kind(id) {
            Some(Kind::Counter) => SqlType::Numeric(None),
            Some(_) => self.table.columns[self.position(id)?].ty.clone(),
            None => {
                return Err(Error::corrupt(format!("parts of column {id}, which does not merge")));
            }
        })
    }
}

impl State {
    /// Takes away the parts up to `cut`.
    fn raise(&mut self, cut: Rank) {
        self.cut = self.cut.max(cut);
        let cut = self.cut;
        self.parts.retain(|(_, region), part| rank_of(*region, part) > cut);
    }
}

fn rank_of(region: u16, part: &Part) -> Rank {
    (part.stamp.unwrap_or(Timestamp::MAX), RegionId(region))
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

fn put_stamp(out: &mut Vec<u8>, stamp: Option<Timestamp>) {
    // No commit has the greatest timestamp.
    out.extend_from_slice(&stamp.unwrap_or(Timestamp::MAX).0.to_le_bytes());
}

fn get_stamp(input: &mut Input<'_>) -> Result<Option<Timestamp>> {
    let stamp = Timestamp(u64::from_le_bytes(input.array()?));
    Ok((stamp != Timestamp::MAX).then_some(stamp))
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
