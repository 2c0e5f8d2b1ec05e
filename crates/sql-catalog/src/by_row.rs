//! Rows placed by the value of a column: each value has a region that writes its rows, and regions
//! that have them.
//!
//! ```text
//! region = 'eu' ─► home eu, in eu and us      key of a row or an index entry: table │ index │ 'eu' │ …
//! region = 'us' ─► home us, in us                                              so each value is a range of each index
//! ```
//! # Invariants
//! - The column is NOT NULL and the first of the primary key and of every index: rows and entries
//!   of one value are one key range of each index, and everything between regions goes by key
//!   ranges. A key that is unique holds the value, whose home keeps it so.
//! - Every row has a value that is named here; else it would be nowhere.
//! - What is not placed in a region, or still on its way there, is not read there: what is asked
//!   for it says which regions have it.
//!
//! # On failure
//! [`NotPlaced`], with the regions that have all of what was asked for.
//!
//! # Limits
//! Columns of type text and varchar, and of enums, whose labels are the values. A rule may name
//! what is no label (the name of a region): no row has it until the label is added. Each value of
//! each index is a rule of its own: [`MOST_VALUES`] a table.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};
use telesto_common::key::{KeyRange, KeyReader};
use telesto_common::{DatabaseId, RegionId, TableId};
use telesto_geo::RegionSet;
use telesto_sql_types::error::{Error, Result, SqlState};
use telesto_sql_types::{Datum, SqlType};
use telesto_txn::NotPlaced;

use super::codec;
use super::model::{ForeignKey, Table};
use super::regions::{Gaining, Moved, storage_range};
use super::snapshot::CatalogSnapshot;

/// Values that one table names at most.
pub const MOST_VALUES: usize = 1000;
/// Values that an error names.
const NAMED: usize = 4;

/// Where rows with one value are.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ValuePlace {
    /// The regions that have them, their home first.
    pub regions: Vec<u16>,
    /// Who wrote them before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub moved: Option<Moved>,
    /// Who does not have all of them yet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gaining: Option<Gaining>,
}

impl ValuePlace {
    /// The region that writes them; none when the rule names no region.
    #[must_use]
    pub fn home(&self) -> Option<u16> {
        self.regions.first().copied()
    }

    /// Whether `region` has them, or is to have them.
    #[must_use]
    pub fn has(&self, region: u16) -> bool {
        self.regions.contains(&region)
    }

    /// Whether `region` does not have all of them yet.
    #[must_use]
    pub fn is_gained_by(&self, region: u16) -> bool {
        self.gaining.as_ref().is_some_and(|gaining| gaining.regions.contains(&region))
    }

    /// Keeps what a definition that draws OID `at`, made by region `me`, has to with a value whose
    /// rows were placed as `before`: who does not have them yet, and who wrote them.
    pub fn follow(&mut self, before: &Self, at: u32, me: u16) {
        let had = |id: &u16| before.has(*id) && !before.is_gained_by(*id);
        let gaining: Vec<u16> = self.regions.iter().copied().filter(|id| !had(id)).collect();
        self.gaining = (!gaining.is_empty()).then_some(Gaining { at, regions: gaining });
        self.moved.clone_from(&before.moved);
        if self.home() == before.home() {
            return;
        }
        let mut from: Vec<u16> = before.home().into_iter().collect();
        from.extend(before.moved.iter().flat_map(|moved| moved.from.iter().copied()));
        from.sort_unstable();
        from.dedup();
        // The region that defines stops with this very transaction, and everybody else hears of it
        // behind its last write.
        from.retain(|region| *region != me && Some(*region) != self.home());
        self.moved = (!from.is_empty()).then_some(Moved { at, from });
    }
}

/// Where the rows of a table are, by the value of a column.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ByRow {
    /// Id of the column.
    pub column: u16,
    /// Whether values are the regions' names: a region that joins is one more.
    pub named: bool,
    /// By value.
    pub values: BTreeMap<String, ValuePlace>,
}

impl ByRow {
    /// The column's name.
    #[must_use]
    pub fn column_name<'t>(&self, table: &'t Table) -> &'t str {
        let found = table.columns.iter().find(|column| column.id == self.column);
        found.map_or("?", |column| column.name.as_str())
    }

    /// A value as a column of type `ty` has it; nothing, where that is an enum without this label:
    /// no row has it.
    #[must_use]
    pub fn datum(ty: &SqlType, value: &str) -> Option<Datum> {
        match ty {
            SqlType::Enum(ty) => ty.by_label(value).ok().map(|label| Datum::Enum(label.clone())),
            _ => Some(Datum::text(value)),
        }
    }

    /// What a column's value is called in the rule.
    #[must_use]
    pub fn value_of(datum: &Datum) -> Option<&str> {
        match datum {
            Datum::Enum(label) => Some(&label.label),
            datum => datum.as_str(),
        }
    }

    /// The values, as a hint names them.
    #[must_use]
    pub fn known(&self) -> String {
        let names: Vec<&str> = self.values.keys().map(String::as_str).collect();
        named(&names)
    }

    /// Whether a foreign key between two such tables can be checked where the referencing row is
    /// written: it holds the column, and each value has one home in both.
    #[must_use]
    pub fn keeps(child: (&Table, &Self), parent: (&Table, &Self), key: &ForeignKey) -> bool {
        let id = |table: &Table, at: usize| table.columns.get(at).map(|column| column.id);
        let pairs = key.columns.iter().zip(&key.referenced_columns);
        let mut pairs = pairs.map(|(own, other)| (id(child.0, *own), id(parent.0, *other)));
        let holds = pairs.any(|pair| pair == (Some(child.1.column), Some(parent.1.column)));
        holds
            && child.1.values.iter().all(|(value, place)| {
                let other = parent.1.values.get(value);
                // A row that references one of a value which is not there is refused by the key
                // itself.
                other.is_none_or(|other| other.home() == place.home())
            })
    }

    /// The rule in the words of `telesto.regions`.
    #[must_use]
    pub fn text(&self, table: &Table, catalog: &CatalogSnapshot) -> String {
        let head = format!("by row ({})", self.column_name(table));
        if self.named {
            return head;
        }
        let one = |(value, place): (&String, &ValuePlace)| {
            let names: Vec<_> = place.regions.iter().map(|id| catalog.region_name(*id)).collect();
            format!("{value} = {}", names.join(", "))
        };
        let values: Vec<_> = self.values.iter().map(one).collect();
        format!("{head}: {}", values.join("; "))
    }
}

/// The keys of one value in one index.
#[derive(Clone, Debug)]
pub struct Part {
    /// The keys.
    pub range: KeyRange,
    /// The value.
    pub value: String,
}

/// All parts of one table.
#[derive(Clone, Debug)]
pub struct RowParts {
    /// The table's number.
    pub table: TableId,
    whole: KeyRange,
    /// By where they begin; no two of them name one key.
    parts: Vec<Part>,
}

impl RowParts {
    /// Those of `table` when its rows are placed by `rule`.
    ///
    /// # Errors
    /// XX000 when the column is not of a type that keys can be made of.
    pub fn new(database: DatabaseId, table: &Table, rule: &ByRow) -> Result<Self> {
        let mut parts = Vec::new();
        for index in table.known_indexes() {
            let Some(first) = index.columns.first() else { continue };
            let column = table.columns.get(first.column);
            let Some(column) = column.filter(|column| column.id == rule.column) else { continue };
            for value in rule.values.keys() {
                let Some(datum) = ByRow::datum(&column.ty, value) else { continue };
                let mut key = codec::index_prefix(database, table, index.id);
                codec::write_index_key(&mut key, &datum, table, first)?;
                let range = KeyRange::with_prefix(key.as_slice());
                parts.push(Part { range, value: value.clone() });
            }
        }
        parts.sort_by(|a, b| a.range.start.cmp(&b.range.start));
        Ok(Self { table: table.id, whole: storage_range(database, table.storage), parts })
    }

    /// The parts, by where they begin.
    #[must_use]
    pub fn parts(&self) -> &[Part] {
        &self.parts
    }

    /// Whether all keys of `range` are of this table.
    #[must_use]
    pub fn holds(&self, range: &KeyRange) -> bool {
        let ends =
            self.whole.end.is_empty() || (!range.end.is_empty() && range.end <= self.whole.end);
        self.whole.start <= range.start && ends
    }

    /// The part that `key` is of.
    #[must_use]
    pub fn part_of(&self, key: &[u8]) -> Option<&Part> {
        let behind = self.parts.partition_point(|part| *part.range.start <= *key);
        let last = behind.checked_sub(1).and_then(|at| self.parts.get(at));
        last.filter(|part| part.range.contains(key))
    }

    /// The parts that `range` holds keys of.
    pub fn meeting<'s>(&'s self, range: &'s KeyRange) -> impl Iterator<Item = &'s Part> {
        let from = self
            .parts
            .partition_point(|part| !part.range.end.is_empty() && part.range.end <= range.start);
        let rest = self.parts.get(from..).unwrap_or_default();
        rest.iter().take_while(|part| range.end.is_empty() || part.range.start < range.end)
    }
}

/// What both have.
#[must_use]
pub fn intersection(one: &KeyRange, other: &KeyRange) -> KeyRange {
    let end = match (one.end.is_empty(), other.end.is_empty()) {
        (true, _) => other.end.clone(),
        (false, true) => one.end.clone(),
        (false, false) => one.end.clone().min(other.end.clone()),
    };
    KeyRange::new(one.start.clone().max(other.start.clone()), end)
}

fn named(values: &[&str]) -> String {
    let shown: Vec<_> =
        values.iter().take(NAMED).map(|value| format!("'{}'", value.replace('\'', "''"))).collect();
    match values.len() {
        more if more > NAMED => format!("{} and {} more", shown.join(", "), more - NAMED),
        _ => shown.join(", "),
    }
}

/// The parts of all tables whose rows are placed by value, by where their rows are.
pub(crate) type AllParts = BTreeMap<TableId, RowParts>;

impl CatalogSnapshot {
    /// Computes the parts of the tables that have some.
    pub(crate) fn link_rows(&mut self) {
        self.row_parts.clear();
        for table in self.tables.values() {
            let Some(rule) = &table.placement.by_row else { continue };
            // The type was checked when the rule was made, and cannot change while it holds.
            if let Ok(parts) = RowParts::new(self.database, table, rule) {
                self.row_parts.insert(table.storage, parts);
            }
        }
    }

    /// Whether a table's rows are placed by value.
    #[must_use]
    pub fn places_rows(&self) -> bool {
        !self.row_parts.is_empty()
    }

    /// The parts of the table whose key this is, if its rows are placed by value.
    #[must_use]
    pub fn row_parts_of(&self, key: &[u8]) -> Option<&RowParts> {
        let (database, storage, _) = KeyReader::new(key).prefix().ok()?;
        self.row_parts.get(&storage).filter(|_| database == self.database)
    }

    /// The parts of `table`, if its rows are placed by value.
    #[must_use]
    pub fn row_parts(&self, table: &Table) -> Option<&RowParts> {
        self.row_parts.get(&table.storage)
    }

    /// A table whose rows are placed by value, its rule, and where rows with `value` are.
    #[must_use]
    pub fn place_of(&self, table: TableId, value: &str) -> Option<(&Table, &ByRow, &ValuePlace)> {
        let table = self.table(table)?;
        let rule = table.placement.by_row.as_ref()?;
        Some((table, rule, rule.values.get(value)?))
    }

    /// Whether this region has all rows with `value`.
    fn is_here(&self, table: TableId, value: &str) -> bool {
        let me = self.me().0;
        let place = self.place_of(table, value);
        place.is_some_and(|(_, _, place)| place.has(me) && !place.is_gained_by(me))
    }

    /// Refuses to read keys that are not all placed here. The one place where that is decided:
    /// everything that reads tables goes through it.
    ///
    /// # Errors
    /// [`NotPlaced`].
    pub fn check_placed(&self, range: &KeyRange) -> std::result::Result<(), Box<NotPlaced>> {
        for parts in self.row_parts.values().filter(|parts| parts.whole.overlaps(range)) {
            if parts.meeting(range).any(|part| !self.is_here(parts.table, &part.value)) {
                let met: Vec<&str> = parts.meeting(range).map(|part| part.value.as_str()).collect();
                return Err(Box::new(self.not_placed(parts.table, &met)));
            }
        }
        Ok(())
    }

    /// The same of keys that are read together; where several of them are elsewhere, the regions
    /// that have all of them are told.
    ///
    /// # Errors
    /// [`NotPlaced`].
    pub fn check_keys<'k>(
        &self,
        keys: impl Iterator<Item = &'k [u8]> + Clone,
    ) -> std::result::Result<(), Box<NotPlaced>> {
        for key in keys.clone() {
            let Some(parts) = self.row_parts_of(key) else { continue };
            let Some(part) = parts.part_of(key) else { continue };
            if self.is_here(parts.table, &part.value) {
                continue;
            }
            let all = keys.filter_map(|key| parts.part_of(key));
            let all: Vec<&str> = all.map(|part| part.value.as_str()).collect();
            return Err(Box::new(self.not_placed(parts.table, &all)));
        }
        Ok(())
    }

    /// What of `range` is placed here, in the order of keys: all of it, where no table's rows are
    /// placed by value.
    #[must_use]
    pub fn placed_of(&self, range: &KeyRange) -> Vec<KeyRange> {
        let Some(parts) = self.row_parts.values().find(|parts| parts.whole.overlaps(range)) else {
            return vec![range.clone()];
        };
        let here = parts.meeting(range).filter(|part| self.is_here(parts.table, &part.value));
        here.map(|part| intersection(&part.range, range)).collect()
    }

    /// Which values are among `ranges` of `table`, and where they are; nothing, where rows are not
    /// placed by value.
    #[must_use]
    pub fn told_of(&self, table: &Table, ranges: &[KeyRange]) -> Option<String> {
        let (rule, parts) = (table.placement.by_row.as_ref()?, self.row_parts(table)?);
        let met: BTreeSet<&str> = ranges
            .iter()
            .flat_map(|range| parts.meeting(range).map(|part| part.value.as_str()))
            .collect();
        let one = |value: &&str| {
            let place = rule.values.get(*value)?;
            let names: Vec<_> = place.regions.iter().map(|id| self.region_name(*id)).collect();
            let home = names.first()?;
            Some(format!("'{value}' is in {} (home {home})", names.join(" and ")))
        };
        let mut shown: Vec<_> = met.iter().take(NAMED).filter_map(one).collect();
        if met.len() > NAMED {
            shown.push(format!("{} more values", met.len() - NAMED));
        }
        if shown.is_empty() {
            return Some("no value that rows may have".to_owned());
        }
        Some(shown.join("; "))
    }

    /// The keys of values, and of tables, whose rows are placed elsewhere, and were all sent there.
    #[must_use]
    pub fn rows_elsewhere(&self) -> Vec<KeyRange> {
        let me = self.me().0;
        let all = self.row_parts.values().flat_map(|parts| {
            parts.parts.iter().map(|part| (self.place_of(parts.table, &part.value), part))
        });
        let gone = all.filter(|(place, _)| {
            place.is_some_and(|(_, _, place)| {
                !place.has(me) && place.gaining.is_none() && place.moved.is_none()
            })
        });
        let whole = self.tables().filter(|table| {
            let placement = &table.placement;
            placement.sent_by_all
                && placement.by_row.is_none()
                && !placement.has(self.me())
                && placement.gaining.is_none()
                && placement.moved.is_none()
        });
        let whole = whole.map(|table| storage_range(self.database, table.storage));
        gone.map(|(_, part)| part.range.clone()).chain(whole).collect()
    }

    /// Told of what asked for rows with these values, which are not all here.
    fn not_placed(&self, table: TableId, values: &[&str]) -> NotPlaced {
        let me = self.me().0;
        let everywhere = RegionSet(u64::MAX);
        let served = values.iter().fold(everywhere, |served, value| {
            let place = self.place_of(table, value).map(|(_, _, place)| place);
            let regions = place.into_iter().flat_map(|place| {
                place.regions.iter().filter(|region| !place.is_gained_by(**region))
            });
            let regions: RegionSet = regions.map(|region| RegionId(*region)).collect();
            RegionSet(served.0 & regions.0)
        });
        let served: Vec<RegionId> =
            self.regions().map(|region| RegionId(region.id)).filter(|r| served.has(*r)).collect();
        let mut missing: Vec<&str> =
            values.iter().copied().filter(|value| !self.is_here(table, value)).collect();
        missing.sort_unstable();
        missing.dedup();
        let coming = missing
            .iter()
            .all(|value| self.place_of(table, value).is_some_and(|(_, _, place)| place.has(me)));
        let name = self.table(table).map_or("?", |table| table.name.as_str());
        let rule = self.table(table).and_then(|t| Some((t, t.placement.by_row.as_ref()?)));
        let column = rule.map_or("?", |(table, rule)| rule.column_name(table));
        let (here, shown) = (self.region_name(me), named(&missing));
        if coming {
            return NotPlaced {
                message: format!(
                    "rows of table \"{name}\" with {column} in ({shown}) are still being sent to region \"{here}\""
                ),
                hint: "Try again in a moment; SELECT * FROM telesto_regions shows whether all regions can be reached.".to_owned(),
                regions: served,
            };
        }
        let names: Vec<_> =
            served.iter().map(|id| format!("\"{}\"", self.region_name(id.0))).collect();
        let connect = match names.is_empty() {
            true => "no region has all that was asked for".to_owned(),
            false => format!("connect to a region that has them ({})", names.join(", ")),
        };
        NotPlaced {
            message: format!(
                "rows of table \"{name}\" with {column} in ({shown}) are not placed in region \"{here}\""
            ),
            hint: format!(
                "Ask for rows that are here (WHERE {column} = …), {connect}, or SET telesto.local_rows = on to be told of what is here alone."
            ),
            regions: served,
        }
    }

    /// Told of a row whose value is named by no rule.
    #[must_use]
    pub fn placed_nowhere(table: &Table, rule: &ByRow, value: &str) -> Error {
        let column = rule.column_name(table);
        Error::new(
            SqlState::CHECK_VIOLATION,
            format!(
                "value \"{value}\" of column \"{column}\" places a row of table \"{}\" nowhere",
                table.name
            ),
        )
        .detail(format!("telesto.regions of the table names {}.", rule.known()))
        .hint(format!(
            "Use one of these, or name it: ALTER TABLE … SET (telesto.regions = 'by row ({column}): {value} = …; …')."
        ))
        .column(column)
    }
}

#[cfg(test)]
mod tests;
