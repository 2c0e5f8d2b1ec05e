//! Indexes of tables that other regions write: who fills them, and what each region says of its
//! part.
//!
//! ```text
//! region 0: CREATE INDEX ─► the index is Filling ─────────────► every region keeps it up from the entry that applies the definition
//! region k, which writes rows of it: its rows' entries ─► word "k has filled it" ─► streams ─► region 0: all have ─► it is whole
//! ```
//! # Invariants
//! - A region that alone writes rows puts their entries, which go where the rows go; where every
//!   region writes, each puts its own, which go nowhere. So the entries of one row are put by
//!   whoever keeps them up, behind its last write by older definitions.
//! - A word is written by the region that it is of, in the transaction of the last entries: who has
//!   the word has them.
//! - A word goes to every region. Of rows that are not placed everywhere it holds no value: only
//!   what kind of error it was.
//! - A word is deleted by that region, when the catalog that it has shows nothing that the word is
//!   of.
//!
//! # On failure
//! A region that cannot go on (a duplicate, an expression that fails) says so, with the error;
//! whoever drives the build ends it. A row of another region that the index cannot have an entry of
//! is such an error.
//!
//! # Limits
//! A region of a version without this module says nothing: the build waits for it, and fails when
//! its patience ends.

use std::collections::BTreeSet;

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use telesto_common::key::{Direction, KeyRange};
use telesto_common::{DatabaseId, RegionId, TableId};

use super::model::{Index, Table};
use super::regions::{Home, acknowledgement_writer};
use super::snapshot::CatalogSnapshot;
use telesto_sql_types::error::{Error, Result, SqlState};

const VERSION: u8 = 1;

/// What a region says of an index that it fills, or of keys that it deletes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Word {
    /// So many transactions have been made, and so many rows are done.
    Filling {
        /// Transactions.
        beat: u64,
        /// Rows.
        rows: u64,
    },
    /// All is done.
    Done,
    /// It cannot be done.
    Failed(Failure),
}

/// The error with which a region's part of a build ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failure {
    code: String,
    message: String,
    detail: Option<String>,
    hint: Option<String>,
    schema: Option<String>,
    table: Option<String>,
    constraint: Option<String>,
    /// It was met by a row of another region and came with that: nobody else has heard it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    untold: bool,
}

impl Failure {
    /// What all regions are told of `error`, which a build of an index of `table` has met: it may
    /// quote rows.
    #[must_use]
    pub fn of(error: &Error, table: &Table, index: u32) -> Self {
        let fields = error.fields().clone();
        let whole = Self {
            code: error.code().0.to_owned(),
            message: error.message().to_owned(),
            detail: fields.detail,
            hint: fields.hint,
            schema: fields.schema,
            table: fields.table,
            constraint: fields.constraint,
            untold: false,
        };
        if table.placement.regions.is_none() && table.placement.by_row.is_none() {
            return whole;
        }
        let building = table.building.iter().map(|building| &building.index);
        let index = building.chain(&table.indexes).find(|one| one.id == index);
        let index = index.map_or("", |index| index.name.as_str());
        let message = match error.code() == SqlState::UNIQUE_VIOLATION {
            true => format!("could not create unique index \"{index}\""),
            false => format!("an entry of index \"{index}\" cannot be made"),
        };
        let hint = "Its rows are not in every region, so that nothing of them is told here: the log of a node of that region has the whole error.";
        Self { message, detail: None, hint: Some(hint.to_owned()), ..whole }
    }

    /// The same, to be said again in a transaction of this region's own.
    #[must_use]
    pub fn untold(error: &Error, table: &Table, index: u32) -> Self {
        Self { untold: true, ..Self::of(error, table, index) }
    }

    /// What is to be said again; nothing where it was.
    #[must_use]
    pub fn to_tell(&self) -> Option<Self> {
        self.untold.then(|| Self { untold: false, ..self.clone() })
    }

    /// The error, as who drives the build tells it.
    #[must_use]
    pub fn into_error(self, region: &str) -> Error {
        let code = SqlState::of_code(&self.code).unwrap_or(SqlState::INTERNAL_ERROR);
        let mut error =
            Error::new(code, self.message).context(format!("index build in region \"{region}\""));
        let fields = error.fields_mut();
        fields.detail = self.detail;
        fields.hint = self.hint;
        fields.schema = self.schema;
        fields.table = self.table;
        fields.constraint = self.constraint;
        error
    }
}

impl Word {
    /// The word in a row.
    ///
    /// # Errors
    /// XX001 when it does not decode.
    pub fn decode(row: &[u8]) -> Result<Self> {
        match row.split_first() {
            Some((&VERSION, json)) => serde_json::from_slice(json).map_err(|error| {
                Error::corrupt(format!("a region's word of an index build: {error}"))
            }),
            _ => Err(Error::corrupt(
                "a region's word of an index build of another version; use a newer telesto",
            )),
        }
    }

    /// The row of the word.
    ///
    /// # Errors
    /// XX000 when it cannot be written.
    pub fn encode(&self) -> Result<Bytes> {
        let mut row = vec![VERSION];
        serde_json::to_writer(&mut row, self).map_err(|error| {
            Error::internal(format!("a region's word of an index build: {error}"))
        })?;
        Ok(Bytes::from(row))
    }
}

/// What a word is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Task {
    /// An index, by its number, of this table.
    Fill(TableId, u32),
    /// The keys that the note with this OID names.
    Sweep(u32),
}

impl Task {
    fn numbers(self) -> [u64; 3] {
        match self {
            Self::Fill(table, index) => [0, u64::from(table.0), u64::from(index)],
            Self::Sweep(note) => [1, u64::from(note), 0],
        }
    }
}

/// The key of the word of `region`.
#[must_use]
pub fn word_key(database: DatabaseId, region: RegionId, task: Task) -> Bytes {
    let mut key = acknowledgement_writer(database, region);
    for number in task.numbers() {
        key.u64(number, Direction::Ascending);
    }
    key.finish()
}

/// All words of `region`: behind what it says of definitions.
#[must_use]
pub fn words(database: DatabaseId, region: RegionId) -> KeyRange {
    let own = acknowledgement_writer(database, region).finish();
    let all = KeyRange::with_prefix(&own);
    KeyRange::new(KeyRange::point(&own).end, all.end)
}

impl CatalogSnapshot {
    /// The regions that put entries of rows that are there: those that write the table.
    #[must_use]
    pub fn fillers(&self, table: &Table) -> BTreeSet<RegionId> {
        let placement = &table.placement;
        if !self.is_regional() {
            return BTreeSet::from([self.me()]);
        }
        let here = |region: &RegionId| self.regions().any(|known| known.id == region.0);
        match (placement.home, &placement.by_row) {
            (Home::Row, Some(rule)) => {
                let homes = rule.values.values().filter_map(|place| place.home());
                homes.map(RegionId).filter(here).collect()
            }
            (Home::Region(home), _) => BTreeSet::from([RegionId(home)]),
            _ => self
                .regions()
                .map(|region| RegionId(region.id))
                .filter(|region| placement.has(*region))
                .collect(),
        }
    }

    /// What regions do for definitions of others, as this catalog has it: fill indexes, and delete
    /// keys of their own.
    #[must_use]
    pub fn tasks(&self) -> BTreeSet<Task> {
        let fills = self.filling().map(|(table, index)| Task::Fill(table.id, index));
        let own = self.dropped().filter(|note| note.by_row);
        fills.chain(own.map(|note| Task::Sweep(note.oid))).collect()
    }

    /// Whether this region puts the entries of the row with this key.
    #[must_use]
    pub fn fills_row(&self, table: &Table, key: &[u8]) -> bool {
        let Some(rule) = &table.placement.by_row else { return true };
        let part = self.row_parts(table).and_then(|parts| parts.part_of(key));
        let home =
            part.and_then(|part| rule.values.get(&part.value)).and_then(|place| place.home());
        home == Some(self.me().0)
    }

    /// Whether this region alone writes the table, so that it can build an index in one
    /// transaction.
    #[must_use]
    pub fn writes_alone(&self, table: &Table) -> bool {
        !self.is_regional()
            || (table.placement.home == Home::Region(self.me().0)
                && table.placement.moved.is_none())
    }

    /// Refuses an index that regions could not fill, each for itself.
    ///
    /// # Errors
    /// 55000.
    pub fn check_fillable(&self, table: &Table, index: &Index) -> Result<()> {
        if self.writes_alone(table) {
            return Ok(());
        }
        let refused = |text: String, hint: String| {
            Err(Error::new(SqlState::OBJECT_NOT_IN_PREREQUISITE_STATE, text).hint(hint))
        };
        if self.unsettled().any(|open| open.id == table.id) {
            return refused(
                format!("table \"{}\" is being moved between regions", table.name),
                "Wait until telesto_placement shows no moved_from and nobody gaining.".to_owned(),
            );
        }
        if table.placement.home == Home::Any && index.is_key() {
            return refused(
                format!(
                    "table \"{}\" is written in every region: no region alone can keep \"{}\" unique",
                    table.name, index.name
                ),
                "Make the index without UNIQUE, or give the table one home: SET (telesto.home = 'region').".to_owned(),
            );
        }
        let Some(rule) = &table.placement.by_row else { return Ok(()) };
        let first = index.columns.first().filter(|column| column.expression.is_none());
        let first = first.and_then(|first| table.columns.get(first.column));
        if first.is_some_and(|column| column.id == rule.column) {
            return Ok(());
        }
        let named = table.columns.iter().find(|column| column.id == rule.column);
        let named = named.map_or("", |column| column.name.as_str());
        refused(
            format!(
                "rows of table \"{}\" are placed by column \"{named}\", which is not the first one of index \"{}\"",
                table.name, index.name
            ),
            format!(
                "Make the index begin with it: ({named}, …). A key that holds the column is unique everywhere, since each value is written in one region."
            ),
        )
    }
}
