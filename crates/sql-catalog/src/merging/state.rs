//! What a row keeps beside its values where columns merge, and its bytes.
//!
//! ```text
//! era u32 | label of the other columns | cut | parts n (varint) | n × (column u16, region u16, life varint, time u64, value)
//! ```
//! # Invariants
//! - A time that is left out is that of the version which the state stands in.
//! - Written out and encoded, equal states have equal bytes.
//!
//! # On failure
//! XX001 for bytes that are no state.

use std::collections::BTreeMap;

use bytes::Bytes;
use telesto_common::{RegionId, Timestamp};
use telesto_sql_types::error::{Error, Result};
use telesto_sql_types::{Datum, SqlType};

use super::{Kind, Merging};
use crate::codec::value::{Input, get_value, put_value, put_varint};
use crate::model::Table;

/// When and where something was written: what decides between two versions.
pub type Rank = (Timestamp, RegionId);

/// Nothing is older.
pub const FIRST: Rank = (Timestamp::ZERO, RegionId(0));

/// Who counts in a part of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Author {
    /// The region.
    pub region: RegionId,
    /// Not 0: a time of the region in which it could not know whether it had lost commits that
    /// others have. What it counted then stands beside what it may have counted before, and neither
    /// takes the other's place.
    pub life: u64,
}

impl Author {
    /// What a row had before the columns merged belongs to no region.
    pub(super) const NOBODY: Self = Self { region: RegionId(u16::MAX), life: 0 };
    const LEAST: Self = Self { region: RegionId(0), life: 0 };
    const GREATEST: Self = Self { region: RegionId(u16::MAX), life: u64::MAX };

    /// A region that knows of all that it has written.
    #[must_use]
    pub fn certain(region: RegionId) -> Self {
        Self { region, life: 0 }
    }

    /// A region as the row under `telesto_geo::placement::life_row` says.
    ///
    /// # Errors
    /// XX001 when that row is no number.
    pub fn of(region: RegionId, life: Option<&Bytes>) -> Result<Self> {
        let Some(life) = life else { return Ok(Self::certain(region)) };
        let life = life.as_ref().try_into().map_err(|_| Error::corrupt("a region's life"))?;
        Ok(Self { region, life: u64::from_le_bytes(life) })
    }
}

/// What one author has contributed to a column.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Part {
    /// `None`: the time of the version that it stands in.
    pub stamp: Option<Timestamp>,
    /// A numeric for counters, else a value of the column.
    pub value: Datum,
}

/// See the module's text.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct State {
    /// Label of the columns that do not merge; `None`: that of the version.
    pub fields: Option<Rank>,
    /// The newest delete that the row has outlived: parts up to it are gone.
    pub cut: Rank,
    pub parts: BTreeMap<(u16, Author), Part>,
}

impl State {
    /// Writes out the times that are those of a version.
    pub fn resolve(&mut self, rank: Rank) {
        self.fields.get_or_insert(rank);
        for part in self.parts.values_mut() {
            part.stamp.get_or_insert(rank.0);
        }
    }

    /// Takes away the parts up to `cut`.
    pub fn raise(&mut self, cut: Rank) {
        self.cut = self.cut.max(cut);
        let cut = self.cut;
        self.parts.retain(|(_, author), part| rank_of(*author, part) > cut);
    }

    /// The newest write in it.
    pub fn newest(&self) -> Rank {
        let parts = self.parts.iter().filter(|((_, author), _)| *author != Author::NOBODY);
        let stamps = parts.map(|((_, author), part)| rank_of(*author, part));
        stamps.fold(self.fields.unwrap_or(FIRST), Rank::max)
    }

    /// The parts of one column.
    pub fn of_column(&self, id: u16) -> impl Iterator<Item = &Part> {
        self.parts.range((id, Author::LEAST)..=(id, Author::GREATEST)).map(|(_, part)| part)
    }

    pub fn encode(&self, table: &Table, merging: &Merging) -> Result<Vec<u8>> {
        let mut out = merging.era.to_le_bytes().to_vec();
        put_stamp(&mut out, self.fields.map(|fields| fields.0));
        out.extend_from_slice(&self.fields.map_or(0, |fields| fields.1.0).to_le_bytes());
        out.extend_from_slice(&self.cut.0.0.to_le_bytes());
        out.extend_from_slice(&self.cut.1.0.to_le_bytes());
        put_varint(&mut out, self.parts.len() as u64);
        for ((id, author), part) in &self.parts {
            out.extend_from_slice(&id.to_le_bytes());
            out.extend_from_slice(&author.region.0.to_le_bytes());
            put_varint(&mut out, author.life);
            put_stamp(&mut out, part.stamp);
            put_value(&mut out, &part.value, &part_type(table, merging, *id)?)?;
        }
        Ok(out)
    }

    /// `None`: it is of another era.
    pub fn decode(table: &Table, merging: &Merging, kept: &[u8]) -> Result<Option<Self>> {
        let mut input = Input(kept);
        let (era, fields) = head(&mut input)?;
        if era != merging.era {
            return Ok(None);
        }
        let at = Timestamp(u64::from_le_bytes(input.array()?));
        let cut = (at, RegionId(u16::from_le_bytes(input.array()?)));
        let mut parts = BTreeMap::new();
        for _ in 0..input.varint()? {
            let id = u16::from_le_bytes(input.array()?);
            let region = RegionId(u16::from_le_bytes(input.array()?));
            let author = Author { region, life: input.varint()? };
            let stamp = get_stamp(&mut input)?;
            let value = get_value(&mut input, &part_type(table, merging, id)?)?;
            parts.insert((id, author), Part { stamp, value });
        }
        if !input.0.is_empty() {
            return Err(Error::corrupt("the parts of a row are longer than they say"));
        }
        Ok(Some(Self { fields, cut, parts }))
    }
}

/// The label of the columns that do not merge, of a state of whatever era.
pub(super) fn fields_of(kept: &[u8]) -> Result<Option<Rank>> {
    Ok(head(&mut Input(kept))?.1)
}

fn head(input: &mut Input<'_>) -> Result<(u32, Option<Rank>)> {
    let era = u32::from_le_bytes(input.array()?);
    let at = get_stamp(input)?;
    let region = RegionId(u16::from_le_bytes(input.array()?));
    Ok((era, at.map(|at| (at, region))))
}

fn part_type(table: &Table, merging: &Merging, id: u16) -> Result<SqlType> {
    let wrong = || Error::corrupt(format!("parts of column {id}, which does not merge"));
    Ok(match merging.kind(id).ok_or_else(wrong)? {
        Kind::Counter => SqlType::Numeric(None),
        Kind::Max | Kind::Min => {
            let column = table.columns.iter().find(|column| column.id == id);
            column.ok_or_else(wrong)?.ty.clone()
        }
    })
}

fn rank_of(author: Author, part: &Part) -> Rank {
    (part.stamp.unwrap_or(Timestamp::MAX), author.region)
}

fn put_stamp(out: &mut Vec<u8>, stamp: Option<Timestamp>) {
    // No commit has the greatest timestamp.
    out.extend_from_slice(&stamp.unwrap_or(Timestamp::MAX).0.to_le_bytes());
}

fn get_stamp(input: &mut Input<'_>) -> Result<Option<Timestamp>> {
    let stamp = Timestamp(u64::from_le_bytes(input.array()?));
    Ok((stamp != Timestamp::MAX).then_some(stamp))
}
