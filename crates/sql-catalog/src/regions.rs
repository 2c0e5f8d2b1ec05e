//! Regions in the catalog: which there are, where each table is replicated, and who writes it.
//!
//! ```text
//! definitions ──(made in one region at a time, replicated like rows)──► every region's catalog
//! catalog ──► rules: which keys go where                      a definition writes them with itself
//! ```
//! # Invariants
//! - Definitions are made in one region alone ([`CatalogSnapshot::defining`]); the others apply
//!   them, in causal order with everything else. Another region takes over by a definition of the
//!   one before it, or when that one is lost and nothing of it can come any more ([`Defines`]).
//! - All definitions were written last by the region that makes them: it writes them all with its
//!   first one. So a region that joins gets them from one region, as of one moment.
//! - A table with a home is written there alone, so its unique keys and foreign keys hold
//!   everywhere. A table that is written in every region has no constraint that one region cannot
//!   check by itself.
//! - A home that takes over writes only when every region that wrote before has said, behind its
//!   last write, that it has stopped ([`Moved`]).
//! - The rules follow from the catalog: the same catalog has the same rules.
//!
//! # On failure
//! 25006 for what is done in another region, 55000 for what has to wait or to be defined otherwise;
//! both say where or how.
//!
//! # Limits
//! Whole tables, or rows by their values ([`super::by_row`]). What a region wrote to a table that
//! was dropped meanwhile elsewhere stays as unused keys.

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use telesto_common::key::{Direction, KeyRange, KeyWriter};
use telesto_common::{DatabaseId, RegionId, TableId};
use telesto_geo::RegionSet;
pub use telesto_geo::placement::complete_row;
use telesto_geo::placement::{Rule, Rules, rules_row};

use super::by_row::ByRow;
use super::merging::Merging;
use super::model::Table;
use super::snapshot::CatalogSnapshot;
use super::store::{self, SYSTEM};
use crate::temp::is_temporary;
use telesto_sql_types::error::{Error, Result, SqlState};

/// The region that the database was before it had others: what was written then is its own, and
/// definitions are made there until another region takes over.
pub const FOUNDER: RegionId = RegionId(0);
/// The regions that there is room for, as in what replication counts.
pub const MOST_REGIONS: u16 = 16;
/// Where regions say which definitions they have applied.
const ACKNOWLEDGED: TableId = TableId(5);
/// Key-value data of the HTTP interface.
const KEY_VALUE: TableId = TableId(u32::MAX);
const VERSION: u8 = 1;

/// A region of the database.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Region {
    /// OID.
    pub oid: u32,
    /// Its number; no other region ever has it.
    pub id: u16,
    /// Its name.
    pub name: String,
    /// Where other regions reach it.
    pub address: String,
    /// That it has taken over the definitions, if it has; also when another one did later.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub defines: Option<Defines>,
}

/// That a region has taken over the definitions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Defines {
    /// By the definition that drew this OID: of several regions the one that took over last makes
    /// the definitions.
    pub since: u32,
    /// It has made its first definition, and written all others with it.
    pub begun: bool,
}

/// Who writes a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Home {
    /// One region.
    Region(u16),
    /// Every region that has it; of two writes of a row the later one stays.
    Any,
    /// Of each row the region that its value names: [`ByRow`].
    Row,
}

impl Default for Home {
    fn default() -> Self {
        Self::Region(FOUNDER.0)
    }
}

/// Regions that may have written a table by older definitions.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Moved {
    /// They have stopped when they have applied definitions whose next OID is greater than this.
    pub at: u32,
    /// Which.
    pub from: Vec<u16>,
}

/// Regions that are getting a table which they did not have.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Gaining {
    /// They have it when every region has applied definitions whose next OID is greater than this:
    /// rows are sent before that is said.
    pub at: u32,
    /// Which.
    pub regions: Vec<u16>,
}

/// Where a table is, and who writes it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TablePlacement {
    /// The regions that replicate it; `None`: all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub regions: Option<Vec<u16>>,
    /// Who writes it.
    #[serde(default)]
    pub home: Home,
    /// Who wrote it before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub moved: Option<Moved>,
    /// Who does not have all of it yet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gaining: Option<Gaining>,
    /// Columns of which writes in several regions merge.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub merging: Option<Merging>,
    /// Where each row is; then the home is [`Home::Row`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub by_row: Option<ByRow>,
    /// Rows are, or were, in some regions alone: the region that wrote one last may have it no
    /// more, so that whoever has rows sends all of them to a region that gets them.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub sent_by_all: bool,
}

impl TablePlacement {
    /// Whether it is as when nothing is said of it.
    #[must_use]
    pub fn is_default(&self) -> bool {
        *self == Self::default()
    }

    /// Whether all rows of the table are in `region`, which may be getting it; of a table whose
    /// rows are placed by value that is not asked.
    #[must_use]
    pub fn is_whole_in(&self, region: RegionId) -> bool {
        if self.by_row.is_some() {
            return false;
        }
        let gaining = self.gaining.as_ref();
        self.has(region) && !gaining.is_some_and(|gaining| gaining.regions.contains(&region.0))
    }

    /// Whether `region` replicates the table; where rows are placed by value, some of it.
    #[must_use]
    pub fn has(&self, region: RegionId) -> bool {
        if let Some(rule) = &self.by_row {
            return rule.values.values().any(|place| place.has(region.0));
        }
        self.regions.as_ref().is_none_or(|regions| regions.contains(&region.0))
    }
}

/// The key of the row in which a region says which definitions it has applied.
#[must_use]
pub fn acknowledgement_key(database: DatabaseId, region: RegionId) -> Bytes {
    acknowledgement_writer(database, region).finish()
}

/// What the keys of rows in which a region says what it has done begin with.
pub(crate) fn acknowledgement_writer(database: DatabaseId, region: RegionId) -> KeyWriter {
    let mut key = acknowledgements(database);
    key.u64(u64::from(region.0), Direction::Ascending);
    key
}

fn acknowledgements(database: DatabaseId) -> KeyWriter {
    let mut key = KeyWriter::prefix(SYSTEM, ACKNOWLEDGED, 0);
    key.u64(u64::from(database.0), Direction::Ascending);
    key
}

/// That row, of a region that has applied the definitions of this header.
///
/// # Errors
/// XX001 when the header does not decode.
pub fn acknowledgement(header: &[u8]) -> Result<Bytes> {
    let (_, next_oid) = store::decode_header(header)?;
    let mut out = vec![VERSION];
    out.extend_from_slice(&next_oid.to_be_bytes());
    Ok(Bytes::from(out))
}

/// The next OID of the definitions that a region has applied.
///
/// # Errors
/// XX001 when it does not decode.
pub fn acknowledged(row: &[u8]) -> Result<u32> {
    match row {
        [VERSION, a, b, c, d] => Ok(u32::from_be_bytes([*a, *b, *c, *d])),
        _ => Err(Error::corrupt("what a region has acknowledged")),
    }
}

/// All keys of a table's storage.
#[must_use]
pub fn storage_range(database: DatabaseId, storage: TableId) -> KeyRange {
    let prefix = KeyWriter::prefix(database, storage, 0).finish();
    // Database and table, without the index.
    KeyRange::with_prefix(&prefix[..8])
}

impl CatalogSnapshot {
    /// The region that this process is of.
    #[must_use]
    pub fn me(&self) -> RegionId {
        self.me
    }

    /// The regions, by number; none while the database has one only.
    pub fn regions(&self) -> impl Iterator<Item = &std::sync::Arc<Region>> {
        self.regions.values()
    }

    /// Whether the database has several regions, or is about to.
    #[must_use]
    pub fn is_regional(&self) -> bool {
        !self.regions.is_empty()
    }

    /// The region called `name`: the last that was invited, where one that was left out under this
    /// name is named until all have closed it.
    #[must_use]
    pub fn region_named(&self, name: &str) -> Option<RegionId> {
        let called = self.regions().filter(|region| region.name == name);
        called.map(|region| RegionId(region.id)).max()
    }

    /// What a region is called.
    #[must_use]
    pub fn region_name(&self, id: u16) -> String {
        let found = self.regions().find(|region| region.id == id);
        found.map_or_else(|| format!("region {id}"), |region| region.name.clone())
    }

    /// The OID that the next object gets; greater in every later catalog that has more objects.
    #[must_use]
    pub fn next_oid(&self) -> u32 {
        self.next_oid
    }

    /// The region in which definitions are made.
    #[must_use]
    pub fn defining(&self) -> RegionId {
        let since = |region: &&std::sync::Arc<Region>| region.defines.map(|defines| defines.since);
        let newest = self.regions().filter(|region| region.defines.is_some()).max_by_key(since);
        newest.map_or(FOUNDER, |region| RegionId(region.id))
    }

    /// Whether definitions are made in the region of this process.
    #[must_use]
    pub fn defines(&self) -> bool {
        self.me == self.defining()
    }

    /// The home of a table of which nothing is said.
    #[must_use]
    pub fn usual_home(&self) -> Home {
        Home::Region(self.defining().0)
    }

    /// Whether `region`, which has `said` so (its row, [`acknowledged`]), has applied the
    /// definitions of which `oid` is one.
    #[must_use]
    pub fn has_heard(&self, region: u16, said: Option<u32>, oid: u32) -> bool {
        match said {
            Some(next_oid) => next_oid > oid,
            // It says so with each definition that it makes; versions before that had the only
            // region that makes definitions say nothing.
            None => region == FOUNDER.0 && self.defining() == FOUNDER,
        }
    }

    fn members(&self) -> RegionSet {
        self.regions().map(|region| RegionId(region.id)).collect()
    }

    /// Which keys go to which regions; nothing while there is one region only.
    #[must_use]
    pub fn rules(&self) -> Option<Rules> {
        if !self.is_regional() {
            return None;
        }
        let all = self.members();
        let database = self.database;
        let system = store::replicated(database).into_iter();
        let system = system.chain([
            KeyRange::with_prefix(acknowledgements(database).as_slice()),
            KeyRange::point(&rules_row()),
            storage_range(database, KEY_VALUE),
        ]);
        let mut rules: Vec<Rule> = system.map(|range| Rule { range, regions: all }).collect();
        for table in self.tables().filter(|table| !is_temporary(table.id.0)) {
            let placement = &table.placement;
            let mut regions = all;
            if let Some(some) = &placement.regions {
                let some: RegionSet = some.iter().map(|id| RegionId(*id)).collect();
                regions = RegionSet(some.0 & all.0);
            }
            if let Some(rule) = &placement.by_row {
                // What no value names is in no region's part, and goes nowhere.
                for part in self.row_parts(table).into_iter().flat_map(|parts| parts.parts()) {
                    let Some(place) = rule.values.get(&part.value) else { continue };
                    let some: RegionSet = place.regions.iter().map(|id| RegionId(*id)).collect();
                    let regions = RegionSet(some.0 & all.0);
                    rules.push(Rule { range: part.range.clone(), regions });
                }
                continue;
            }
            let range = match placement.home {
                Home::Region(_) | Home::Row => storage_range(database, table.storage),
                // Rows alone: their index entries are made where they are applied.
                Home::Any => {
                    KeyRange::with_prefix(KeyWriter::prefix(database, table.storage, 0).as_slice())
                }
            };
            rules.push(Rule { range, regions });
        }
        // Where rows were placed by value, a list of their keys would tell every region what is in
        // others.
        for note in self.dropped.values().filter(|note| !note.by_row) {
            let range = match note.index {
                None => storage_range(database, note.storage),
                Some(index) => KeyRange::with_prefix(
                    KeyWriter::prefix(database, note.storage, index).as_slice(),
                ),
            };
            // A part of a table that is there: its rule names these keys already.
            let within = self.tables().any(|table| table.storage == note.storage);
            if !within {
                rules.push(Rule { range, regions: all });
            }
        }
        Some(Rules::new(rules))
    }

    /// Refuses definitions in a region that does not make them.
    ///
    /// # Errors
    /// 25006.
    pub fn check_defining(&self) -> Result<()> {
        let defining = self.defining();
        if self.me == defining {
            return Ok(());
        }
        let defining = self.region_name(defining.0);
        Err(Error::new(
            SqlState::READ_ONLY_TRANSACTION,
            format!(
                "definitions are made in region \"{defining}\", this is region \"{}\"",
                self.region_name(self.me.0)
            ),
        )
        .hint(format!(
            "Connect to region \"{defining}\"; what is defined there comes here by itself."
        )))
    }

    /// This catalog as `region` has it.
    #[must_use]
    pub fn seen_from(&self, region: RegionId) -> Self {
        Self { me: region, ..self.clone() }
    }

    /// This catalog as `region` has it, for a query whose rows are written here: what is here, too,
    /// is not to be read there.
    #[must_use]
    pub fn seen_from_apart(&self, region: RegionId) -> Self {
        Self { me: region, apart: Some(self.me), ..self.clone() }
    }

    /// Refuses a table that this region does not replicate (where rows are placed by value, what is
    /// read decides: [`CatalogSnapshot::check_placed`]), and names in the error the regions that
    /// have all of it ([`telesto_sql_types::error::Fields::placed_in`]): a statement that only
    /// reads may be executed there.
    ///
    /// # Errors
    /// 55000.
    pub fn check_replicated(&self, table: &Table) -> Result<()> {
        let placement = &table.placement;
        if let Some(apart) = self.apart
            && (placement.by_row.is_some() || placement.is_whole_in(apart))
        {
            let (name, here) = (&table.name, self.region_name(apart.0));
            return Err(Error::unsupported(format!(
                "reading table \"{name}\", which region \"{here}\" has, in a query that another region executes and whose rows are written here"
            ))
            .hint("What is read there is not validated with the write: read that table in a statement of its own, or write where all of them are."));
        }
        if placement.by_row.is_some() {
            return Ok(());
        }
        if placement.is_whole_in(self.me) {
            return Ok(());
        }
        let whole = self.regions().filter(|region| placement.is_whole_in(RegionId(region.id)));
        let whole: Vec<RegionId> = whole.map(|region| RegionId(region.id)).collect();
        let (me, name) = (self.region_name(self.me.0), &table.name);
        let error = if placement.has(self.me) {
            Error::new(
                SqlState::OBJECT_NOT_IN_PREREQUISITE_STATE,
                format!("rows of table \"{name}\" are still being sent to region \"{me}\""),
            )
            .hint("Try again in a moment; SELECT * FROM telesto_regions shows whether all regions can be reached.")
        } else {
            let names: Vec<_> =
                whole.iter().map(|id| format!("\"{}\"", self.region_name(id.0))).collect();
            Error::new(
                SqlState::OBJECT_NOT_IN_PREREQUISITE_STATE,
                format!("table \"{name}\" is not replicated in region \"{me}\""),
            )
            .hint(format!(
                "Statements that only read are executed in a region that has it ({}); for others connect there, or place it here too with ALTER TABLE … SET (telesto.regions = …).",
                names.join(", ")
            ))
        };
        Err(error.runs_in(whole))
    }

    /// Refuses writes of a table that is written elsewhere. What is given is to be looked at first:
    /// who wrote it before.
    ///
    /// # Errors
    /// 25006; as [`CatalogSnapshot::check_replicated`].
    pub fn check_written_here<'t>(&self, table: &'t Table) -> Result<Option<&'t Moved>> {
        let placement = &table.placement;
        match placement.home {
            Home::Region(home) if home != self.me.0 => {
                let home = self.region_name(home);
                Err(Error::new(
                    SqlState::READ_ONLY_TRANSACTION,
                    format!(
                        "table \"{}\" is written in region \"{home}\", this is region \"{}\"",
                        table.name,
                        self.region_name(self.me.0)
                    ),
                )
                .hint(format!(
                    "Write it in region \"{home}\", or move it with ALTER TABLE … SET (telesto.home = …)."
                )))
            }
            Home::Any | Home::Row => self.check_replicated(table).map(|()| None),
            Home::Region(_) => self.check_replicated(table).map(|()| placement.moved.as_ref()),
        }
    }

    /// Tables whose home has moved, or that regions are getting: what is to be settled when all
    /// have heard of it.
    pub fn unsettled(&self) -> impl Iterator<Item = &std::sync::Arc<Table>> {
        let open = |table: &&std::sync::Arc<Table>| {
            let rule = table.placement.by_row.as_ref();
            let mut values = rule.into_iter().flat_map(|rule| rule.values.values());
            table.placement.gaining.is_some()
                || table.placement.moved.is_some()
                || values.any(|place| place.gaining.is_some() || place.moved.is_some())
        };
        self.tables().filter(open)
    }

    /// Told of a write that must wait for `region`, which wrote the table before.
    #[must_use]
    pub fn still_written(&self, table: &Table, region: u16) -> Error {
        Error::new(
            SqlState::OBJECT_NOT_IN_PREREQUISITE_STATE,
            format!(
                "table \"{}\" has moved here, but region \"{}\" has not said yet that it has stopped to write it",
                table.name,
                self.region_name(region)
            ),
        )
        .hint("Try again in a moment; SELECT * FROM telesto_regions shows whether that region can be reached.")
    }
}
