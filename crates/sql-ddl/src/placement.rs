//! `ALTER TABLE … SET (telesto.regions = …, telesto.home = …)`: where a table is replicated, and who writes it.
//!
//! # Invariants
//! - A table's home replicates it.
//! - A table that every region writes has nothing that one region cannot check by itself: no other unique key than the primary key, no
//!   foreign keys from or to it.
//! - A region that gets the table is kept with it until it has all of it.
//! - Who wrote the table before is kept with it until a later move: the new home waits for them.
//!
//! # On failure
//! 22023 for what is no region, 55000 and 0A000 for what does not fit, with the ways out.

use super::Ddl;
use telesto_common::RegionId;
use telesto_sql_catalog::Table;
use telesto_sql_catalog::regions::{DEFINING, Gaining, Home, Moved, TablePlacement};
use telesto_sql_types::error::{Error, Result, SqlState};

const REGIONS: &str = "telesto.regions";
const HOME: &str = "telesto.home";

impl Ddl<'_> {
    /// Takes the settings with these names and values (`None`: back to what is usual); those that are not ours mean nothing here.
    pub(super) fn place(
        &mut self,
        table: &mut Table,
        settings: &[(String, Option<String>)],
    ) -> Result<()> {
        let mut placement = table.placement.clone();
        for (name, value) in settings {
            match name.as_str() {
                REGIONS => {
                    placement.regions =
                        value.as_deref().map(|v| self.named(v)).transpose()?.flatten()
                }
                HOME => placement.home = self.home(value.as_deref())?,
                super::curated::CURATED => {}
                name if name.starts_with("telesto.") => {
                    return Err(Error::new(
                        SqlState::INVALID_PARAMETER_VALUE,
                        format!("unrecognized parameter \"{name}\""),
                    )
                    .hint(format!(
                        "There are {REGIONS}, {HOME} and {}.",
                        super::curated::CURATED
                    )));
                }
                _ => {}
            }
        }
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
        self.note_move(table, &mut placement);
        self.note_gain(table, &mut placement);
        table.placement = placement;
        Ok(())
    }

    fn region(&self, name: &str) -> Result<u16> {
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
            None => Ok(Home::default()),
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
        match placement.home {
            Home::Region(home) if !placement.has(RegionId(home)) => refused(
                format!(
                    "the home of table \"{name}\", \"{}\", does not replicate it",
                    catalog.region_name(home)
                ),
                format!("Name that region in {REGIONS}, or choose another {HOME}."),
            ),
            Home::Region(_) => Ok(()),
            Home::Any => {
                let ways = format!(
                    "Drop it, or give the table one home: SET ({HOME} = 'region'); the other regions read it there."
                );
                if let Some(index) =
                    table.known_indexes().find(|index| index.unique && index.id != 0)
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
                if !table.building.is_empty() {
                    return refused(
                        format!("an index of table \"{name}\" is being built"),
                        "Wait until it is built, or drop it.".to_owned(),
                    );
                }
                Ok(())
            }
        }
    }

    /// Keeps who gets the table and does not have it yet: it is not read there until everybody has sent what they have.
    fn note_gain(&mut self, table: &Table, placement: &mut TablePlacement) {
        let regions = self.change.catalog().regions().map(|region| region.id);
        let still = |id: &u16| {
            table.placement.gaining.as_ref().is_some_and(|gaining| gaining.regions.contains(id))
        };
        let had = |id: &u16| table.placement.has(RegionId(*id)) && !still(id);
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
        };
        from.extend(table.placement.moved.iter().flat_map(|moved| moved.from.iter().copied()));
        from.sort_unstable();
        from.dedup();
        // The region that defines stops with this very transaction, and everybody else hears of it behind its last write.
        from.retain(|region| *region != DEFINING.0 && Home::Region(*region) != placement.home);
        let at = self.change.oid();
        placement.moved = (!from.is_empty()).then_some(Moved { at, from });
    }
}
