//! `ALTER TABLE … SET (telesto.regions = …, telesto.home = …, telesto.counter = …)`: where a table
//! is replicated, who writes it, and which columns merge.
//!
//! # Invariants
//! - A table's home replicates it.
//! - A table that every region writes has nothing that one region cannot check by itself: no other
//!   unique key than the primary key, no foreign keys from or to it.
//! - A region that gets the table is kept with it until it has all of it.
//! - Which columns merge changes while one region alone writes the table
//!   ([`telesto_sql_catalog::merging`]).
//! - Who wrote the table before is kept with it until a later move: the new home waits for them.
//!
//! # On failure
//! 22023 for what is no region, 55000 and 0A000 for what does not fit, with the ways out.

use super::Ddl;
use telesto_common::RegionId;
use telesto_sql_catalog::by_row::ValuePlace;
use telesto_sql_catalog::merging::Kind;
use telesto_sql_catalog::regions::{Gaining, Home, Moved, TablePlacement};
use telesto_sql_catalog::{Column, Generated, Table};
use telesto_sql_types::SqlType;
use telesto_sql_types::error::{Error, Result, SqlState};

pub(super) const REGIONS: &str = "telesto.regions";
pub(super) const HOME: &str = "telesto.home";
const COUNTER: &str = "telesto.counter";
const MAX: &str = "telesto.max";
const MIN: &str = "telesto.min";

/// The ids of the columns that a setting names.
fn columns(table: &Table, setting: &str, list: &str) -> Result<Vec<u16>> {
    let names = list.split(',').map(str::trim).filter(|name| !name.is_empty());
    let one = |name: &str| {
        let found = table.visible_columns().find(|(_, column)| column.name == name);
        found.map(|(_, column)| column.id).ok_or_else(|| {
            Error::new(
                SqlState::UNDEFINED_COLUMN,
                format!("column \"{name}\" of relation \"{}\" does not exist", table.name),
            )
            .hint(format!(
                "{setting} names columns as they are spelled in the catalog, separated by commas."
            ))
        })
    };
    let mut ids = names.map(one).collect::<Result<Vec<_>>>()?;
    ids.sort_unstable();
    ids.dedup();
    Ok(ids)
}

/// Why a column cannot merge, and the way out.
fn unfit(table: &Table, column: &Column, kind: Kind) -> Option<(&'static str, &'static str)> {
    let ty = &column.ty;
    let number = matches!(ty, SqlType::Int2 | SqlType::Int4 | SqlType::Int8 | SqlType::Numeric(_));
    let ordered = number
        || matches!(
            ty,
            SqlType::Float4
                | SqlType::Float8
                | SqlType::Date
                | SqlType::Time(_)
                | SqlType::Timestamp(_)
                | SqlType::TimestampTz(_)
                | SqlType::Text
                | SqlType::Varchar(_)
        );
    let position = table.columns.iter().position(|known| known.id == column.id);
    let keyed = table.known_indexes().filter(|index| index.is_key());
    let keyed = keyed.flat_map(|index| &index.columns).any(|c| Some(c.column) == position);
    let spoken = |text: &str| {
        text.split(|c: char| !(c.is_alphanumeric() || c == '_')).any(|word| word == column.name)
    };
    let generated = table.columns.iter().filter(|c| !c.dropped).any(|c| match &c.generated {
        Some(Generated::Stored(text)) => spoken(text),
        _ => false,
    });
    let checked = table.checks.iter().any(|check| spoken(&check.expression));
    if kind == Kind::Counter && !number {
        Some(("a counter is smallint, integer, bigint or numeric", "Change its type first."))
    } else if !ordered {
        Some((
            "the greatest and the least value are kept of numbers, dates, times and text",
            "Change its type first.",
        ))
    } else if kind == Kind::Counter && !column.not_null {
        Some((
            "NULL cannot be counted on",
            "ALTER COLUMN … SET DEFAULT 0, fill the column, and SET NOT NULL first.",
        ))
    } else if keyed {
        Some(("it is part of a key", "Keep the key in another column."))
    } else if column.generated.is_some() || generated {
        Some((
            "it is generated, or a generated column is computed from it",
            "Compute the other in a view.",
        ))
    } else if checked || column.domain.is_some() {
        Some((
            "a check speaks of it, which no region alone can keep",
            "Drop the check (or use the domain's base type), or give the table one home.",
        ))
    } else {
        None
    }
}

impl Ddl<'_> {
    /// Takes the settings with these names and values (`None`: back to what is usual); those that
    /// are not ours mean nothing here.
    pub(super) async fn place(
        &mut self,
        table: &mut Table,
        settings: &[(String, Option<String>)],
    ) -> Result<()> {
        let mut placement = table.placement.clone();
        for (name, value) in settings {
            match name.as_str() {
                REGIONS => {
                    placement.regions = None;
                    if placement.by_row.take().is_some() {
                        placement.home = self.catalog().usual_home();
                    }
                    match value.as_deref() {
                        Some(text) if crate::by_row::is_rule(text) => {
                            placement.by_row = Some(self.by_row(table, text)?);
                            placement.home = Home::Row;
                        }
                        Some(list) => placement.regions = self.named(list)?,
                        None => {}
                    }
                }
                HOME if placement.by_row.is_some() => {
                    return Err(Error::new(
                        SqlState::OBJECT_NOT_IN_PREREQUISITE_STATE,
                        format!("rows of table \"{}\" have homes by their values", table.name),
                    )
                    .hint(format!(
                        "SET ({REGIONS} = 'by row (column): value = home, …; …'), or RESET ({REGIONS}) first."
                    )));
                }
                HOME => placement.home = self.home(value.as_deref())?,
                super::curated::CURATED | super::table_key::KEY => {}
                name @ (COUNTER | MAX | MIN) => {
                    let columns = columns(table, name, value.as_deref().unwrap_or_default())?;
                    let merging = placement.merging.get_or_insert_default();
                    match name {
                        COUNTER => merging.counters = columns,
                        MAX => merging.max = columns,
                        _ => merging.min = columns,
                    }
                }
                name if name.starts_with("telesto.") => {
                    return Err(Error::new(
                        SqlState::INVALID_PARAMETER_VALUE,
                        format!("unrecognized parameter \"{name}\""),
                    )
                    .hint(format!(
                        "There are {REGIONS}, {HOME}, {COUNTER}, {MAX}, {MIN}, {} and {}.",
                        super::curated::CURATED,
                        super::table_key::KEY
                    )));
                }
                _ => {}
            }
        }
        placement.merging.take_if(|merging| merging.is_empty());
        if placement == table.placement {
            return Ok(());
        }
        if !self.change.catalog().is_regional() {
            return Err(Error::new(
                SqlState::OBJECT_NOT_IN_PREREQUISITE_STATE,
                "the database has one region",
            )
            .hint("Make regions with telesto region init and telesto region invite first."));
        }
        self.check_placement(table, &placement)?;
        if placement.by_row.is_some() {
            self.check_by_row(table, &mut placement).await?;
            table.placement = placement;
            return Ok(());
        }
        if placement.merging != table.placement.merging {
            self.check_merging(table, &placement)?;
            if let Some(merging) = &mut placement.merging {
                merging.era = self.change.oid();
            }
        }
        if placement.regions.is_some() || table.placement.regions.is_some() {
            // Regions that do not have the table remove what they had of it: whoever has rows sends
            // all of them to one that gets it later.
            placement.sent_by_all = true;
        }
        self.note_move(table, &mut placement);
        self.note_gain(table, &mut placement);
        table.placement = placement;
        Ok(())
    }

    /// Columns begin and end to merge where one region writes the table, and all that others wrote
    /// before is there: each row has the same values everywhere, from which all count on.
    fn check_merging(&self, table: &Table, placement: &TablePlacement) -> Result<()> {
        let refused = |text: String, hint: String| {
            Err(Error::new(SqlState::OBJECT_NOT_IN_PREREQUISITE_STATE, text).hint(hint))
        };
        let (name, before) = (&table.name, &table.placement);
        let catalog = self.change.catalog();
        let defining = catalog.region_name(catalog.defining().0);
        let settled = before.moved.is_none() && before.gaining.is_none();
        if before.home != catalog.usual_home() || !settled {
            return refused(
                format!(
                    "which columns of table \"{name}\" merge is changed while region \"{defining}\" alone writes it"
                ),
                format!(
                    "SET ({HOME} = '{defining}'), wait until telesto_placement shows no moved_from, and set {HOME} again together with the columns."
                ),
            );
        }
        let Some(merging) = &placement.merging else { return Ok(()) };
        if placement.home != Home::Any {
            return refused(
                format!("table \"{name}\" has one home: there is nothing to merge"),
                format!("SET ({HOME} = 'any', telesto.counter = …) together."),
            );
        }
        let mut seen = std::collections::BTreeSet::new();
        for (id, kind) in merging.columns() {
            let Some(column) = table.columns.iter().find(|column| column.id == id) else {
                continue;
            };
            if !seen.insert(id) {
                return refused(
                    format!("column \"{}\" cannot merge in two ways", column.name),
                    "Name it in one of the settings.".to_owned(),
                );
            }
            if let Some((why, hint)) = unfit(table, column, kind) {
                return refused(
                    format!("column \"{}\" of table \"{name}\" cannot merge: {why}", column.name),
                    hint.to_owned(),
                );
            }
        }
        Ok(())
    }

    pub(super) fn region(&self, name: &str) -> Result<u16> {
        let catalog = self.change.catalog();
        catalog.region_named(name).map(|region| region.0).ok_or_else(|| {
            let known: Vec<_> = catalog.regions().map(|region| region.name.clone()).collect();
            Error::new(SqlState::INVALID_PARAMETER_VALUE, format!("there is no region \"{name}\""))
                .hint(format!("There are: {}.", known.join(", ")))
        })
    }

    /// The regions of a list; `None` for all.
    fn named(&self, list: &str) -> Result<Option<Vec<u16>>> {
        if list.trim() == "all" {
            return Ok(None);
        }
        let names = list.split(',').map(str::trim).filter(|name| !name.is_empty());
        let mut regions = names.map(|name| self.region(name)).collect::<Result<Vec<_>>>()?;
        regions.sort_unstable();
        regions.dedup();
        if regions.is_empty() {
            return Err(Error::new(
                SqlState::INVALID_PARAMETER_VALUE,
                format!("{REGIONS} names no region"),
            )
            .hint("Name regions, separated by commas, or all."));
        }
        Ok(Some(regions))
    }

    fn home(&self, name: Option<&str>) -> Result<Home> {
        match name {
            None => Ok(self.catalog().usual_home()),
            Some("any") => Ok(Home::Any),
            Some(name) => self.region(name).map(Home::Region),
        }
    }

    fn check_placement(&self, table: &Table, placement: &TablePlacement) -> Result<()> {
        let catalog = self.change.catalog();
        let refused = |text: String, hint: String| {
            Err(Error::new(SqlState::OBJECT_NOT_IN_PREREQUISITE_STATE, text).hint(hint))
        };
        let name = &table.name;
        if !table.building.is_empty() {
            // Who writes the rows fills the index.
            return refused(
                format!("an index of table \"{name}\" is being built"),
                "Wait until it is built, or drop it.".to_owned(),
            );
        }
        match placement.home {
            Home::Region(home) if !placement.has(RegionId(home)) => refused(
                format!(
                    "the home of table \"{name}\", \"{}\", does not replicate it",
                    catalog.region_name(home)
                ),
                format!("Name that region in {REGIONS}, or choose another {HOME}."),
            ),
            Home::Region(_) | Home::Row => Ok(()),
            Home::Any => {
                let ways = format!(
                    "Drop it, or give the table one home: SET ({HOME} = 'region'); the other regions read it there."
                );
                if let Some(index) =
                    table.known_indexes().find(|index| index.is_key() && index.id != 0)
                {
                    return refused(
                        format!(
                            "table \"{name}\" cannot be written in every region: no region alone can keep \"{}\" unique",
                            index.name
                        ),
                        ways,
                    );
                }
                let referenced =
                    catalog.referencing(table.id).first().map(|(_, key)| key.name.clone());
                let key = table.foreign_keys.first().map(|key| key.name.clone());
                if let Some(key) = key.or(referenced) {
                    return refused(
                        format!(
                            "table \"{name}\" cannot be written in every region: no region alone can keep foreign key \"{key}\""
                        ),
                        ways,
                    );
                }
                Ok(())
            }
        }
    }

    /// Keeps who gets the table and does not have it yet: it is not read there until everybody has
    /// sent what they have.
    fn note_gain(&mut self, table: &Table, placement: &mut TablePlacement) {
        let regions = self.change.catalog().regions().map(|region| region.id);
        let still = |id: &u16| {
            table.placement.gaining.as_ref().is_some_and(|gaining| gaining.regions.contains(id))
        };
        let whole = |id: u16| {
            let rule = table.placement.by_row.as_ref();
            rule.is_none_or(|rule| {
                rule.values.values().all(|place| place.has(id) && !place.is_gained_by(id))
            })
        };
        let had = |id: &u16| table.placement.has(RegionId(*id)) && !still(id) && whole(*id);
        let gaining: Vec<u16> =
            regions.filter(|id| placement.has(RegionId(*id)) && !had(id)).collect();
        if gaining.is_empty() {
            placement.gaining = None;
        } else {
            let at = self.change.oid();
            placement.gaining = Some(Gaining { at, regions: gaining });
        }
    }

    /// Keeps who may go on writing the table until it has heard of this change.
    fn note_move(&mut self, table: &Table, placement: &mut TablePlacement) {
        if placement.home == table.placement.home {
            return;
        }
        let catalog = self.change.catalog();
        let mut from: Vec<u16> = match table.placement.home {
            Home::Region(home) => vec![home],
            Home::Any => catalog.regions().map(|region| region.id).collect(),
            Home::Row => {
                let rule = table.placement.by_row.iter();
                let places = rule.flat_map(|rule| rule.values.values());
                let before = |place: &ValuePlace| {
                    let moved = place.moved.iter().flat_map(|moved| moved.from.iter().copied());
                    place.home().into_iter().chain(moved).collect::<Vec<_>>()
                };
                places.flat_map(before).collect()
            }
        };
        from.extend(table.placement.moved.iter().flat_map(|moved| moved.from.iter().copied()));
        from.sort_unstable();
        from.dedup();
        // The region that defines stops with this very transaction, and everybody else hears of it
        // behind its last write.
        let me = catalog.me().0;
        from.retain(|region| *region != me && Home::Region(*region) != placement.home);
        let at = self.change.oid();
        placement.moved = (!from.is_empty()).then_some(Moved { at, from });
    }
}
