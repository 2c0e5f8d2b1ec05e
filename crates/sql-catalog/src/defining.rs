//! Which region makes the definitions, and how another one takes over.
//!
//! ```text
//! in order:  a: "b defines" (its last definition) ──► b: first definition, with it all others once more ──► every region
//! a is lost: every region closes a ─► b, which was told so: "I define", all definitions once more, a's tables ──► every region
//! ```
//! # Invariants
//! - One region makes definitions at a time: it is named by the last definition of the one before,
//!   so causal order brings that one's definitions before its own; or nothing of the one before can
//!   come any more.
//! - The region that defines has written all definitions last, from its first definition on:
//!   whoever joins is sent them by it, and by nobody else.
//! - With each definition a region says that it has applied it, as the others do when it comes to
//!   them: so it can be asked of every region, whoever makes definitions by then, whether it has
//!   heard of one.
//!
//! # On failure
//! 55000 while an index is being filled, whose record is the defining region's own; 42704 for no
//! such region.
//!
//! # Limits
//! A region that is restored from a backup of before it gave the definitions away takes itself for
//! the one that makes them until it has taken in what the others send (a region that has lost
//! something waits for that before it opens). Indexes that were being filled when the region that
//! defines was lost are invalid afterwards.

use telesto_common::RegionId;
use telesto_common::key::KeyRange;
use telesto_txn::{ReadFor, ScanOptions};

use super::change::CatalogChange;
use super::model::BuildState;
use super::object::Object;
use super::regions::{Defines, Home, Region, TablePlacement};
use super::snapshot::CatalogSnapshot;
use super::store::{OBJECTS, system_key};
use crate::temp::is_temporary;
use telesto_sql_types::error::{Error, Result, SqlState};

/// Definitions read at a time.
const BATCH: usize = 1000;

impl CatalogSnapshot {
    /// Whether this region makes the definitions, and has not made its first one yet.
    #[must_use]
    pub fn is_yet_to_define(&self) -> bool {
        let defines = self.region(self.me()).and_then(|region| region.defines);
        self.defines() && defines.is_some_and(|defines| !defines.begun)
    }

    /// Where a table is of which nothing is said.
    #[must_use]
    pub fn usual_placement(&self) -> TablePlacement {
        TablePlacement { home: self.usual_home(), ..TablePlacement::default() }
    }

    fn region(&self, id: RegionId) -> Option<&Region> {
        self.regions().find(|region| region.id == id.0).map(|region| &**region)
    }
}

impl CatalogChange {
    /// Gives the definitions to the region called `name`: this is the last one that is made here.
    ///
    /// # Errors
    /// 42704 for no such region; 55000 while an index is being filled.
    pub fn hand_over(&mut self, name: &str) -> Result<()> {
        self.catalog().check_defining()?;
        let found = self.catalog().regions().find(|region| region.name == name).cloned();
        let Some(region) = found else {
            return Err(Error::new(
                SqlState::UNDEFINED_OBJECT,
                format!("there is no region \"{name}\""),
            )
            .hint("SELECT name FROM telesto_regions shows those that there are."));
        };
        if RegionId(region.id) == self.catalog().me() {
            return Ok(());
        }
        if let Some((table, _)) = self.catalog().filling().next() {
            let text = format!("an index of table \"{}\" is being filled", table.name);
            return Err(Error::new(SqlState::OBJECT_NOT_IN_PREREQUISITE_STATE, text).hint(
                "Definitions are given to another region when no index is being filled: wait until it is whole, or drop it.",
            ));
        }
        let since = self.oid();
        let defines = Some(Defines { since, begun: false });
        self.put(Object::Region(Region { defines, ..(*region).clone() }));
        Ok(())
    }

    /// Takes the definitions over from a region that is lost, of which nothing can come here any
    /// more, and with them the tables that it wrote and that this region has as a whole.
    ///
    /// # Errors
    /// 42704 when the catalog does not name this region.
    pub fn take_over(&mut self, lost: RegionId) -> Result<()> {
        let me = self.catalog().me();
        let Some(region) = self.catalog().region(me).cloned() else {
            return Err(Error::new(
                SqlState::UNDEFINED_OBJECT,
                format!("the definitions do not name region {me}, which is to make them"),
            )
            .hint("Have a region take them over that had joined before the other one was lost."));
        };
        self.takes_over = true;
        let since = self.oid();
        let defines = Some(Defines { since, begun: false });
        let mut changed = vec![Object::Region(Region { defines, ..region })];
        let tables: Vec<_> = self.catalog().tables().cloned().collect();
        for table in tables.into_iter().filter(|table| !is_temporary(table.id.0)) {
            let mut taken = (*table).clone();
            let placement = &mut taken.placement;
            if placement.home == Home::Region(lost.0) && placement.is_whole_in(me) {
                placement.home = Home::Region(me.0);
                if let Some(moved) = &mut placement.moved {
                    // Nothing comes of the one; the other knows what it has written.
                    moved.from.retain(|from| *from != lost.0 && *from != me.0);
                }
                placement.moved.take_if(|moved| moved.from.is_empty());
            }
            for build in &mut taken.building {
                // What it was filled with stands in the lost region's record.
                build.state = BuildState::Invalid;
            }
            if taken != *table {
                changed.push(Object::Table(taken));
            }
        }
        self.put_all(changed);
        Ok(())
    }

    /// Has this region make its first definition, if it is to make them and has not yet.
    pub fn begin(&mut self) {
        let me = self.catalog().me();
        if self.catalog().is_yet_to_define()
            && let Some(region) = self.catalog().region(me).cloned()
        {
            // What there is to write is written with every first definition.
            self.put(Object::Region(region));
        }
    }

    /// Writes every definition once more with the first one that this region makes; whether it is
    /// the first.
    pub(super) async fn begin_defining(&mut self) -> Result<bool> {
        let me = self.catalog().me();
        if !self.catalog().is_yet_to_define() {
            return Ok(false);
        }
        let Some(mut region) = self.catalog().region(me).cloned() else { return Ok(false) };
        if let Some(defines) = &mut region.defines {
            defines.begun = true;
        }
        self.put(Object::Region(region));
        let range = KeyRange::with_prefix(system_key(OBJECTS, self.catalog().database).as_slice());
        let options = ScanOptions { read_for: ReadFor::Constraint, ..ScanOptions::default() };
        let mut scan = self.txn.scan(range, options);
        loop {
            let batch = scan.next_batch(BATCH).await?;
            if batch.is_empty() {
                return Ok(true);
            }
            for (key, value) in batch {
                self.txn.put(key, value).await?;
            }
        }
    }
}
