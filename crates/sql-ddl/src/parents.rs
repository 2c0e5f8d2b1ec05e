//! Where a new table is that references others, in a database of several regions.
//!
//! # Invariants
//! - A table is made only where its foreign keys can be checked: a definition never stops the
//!   writes of the tables that it references.
//! - A new table is written where the table is that it references: it has the same home, or its
//!   rows are placed by the same values.
//! - Who may still write a referenced table by older definitions, which do not know of the new one,
//!   is waited for before the new one is written.
//!
//! # On failure
//! 55000, with the way out.
//!
//! # Limits
//! A table that is there is not moved by a new foreign key: it has its parents' home, or the key is
//! refused.

use telesto_sql_catalog::by_row::ByRow;
use telesto_sql_catalog::regions::{Home, Moved, TablePlacement};
use telesto_sql_catalog::{ForeignKey, Table};
use telesto_sql_types::error::{Error, Result};

use super::Ddl;

/// Keeps those in `more`, too; `home` need not wait for itself.
fn wait_for(moved: &mut Option<Moved>, more: Option<&Moved>, home: Option<u16>) {
    let Some(more) = more else { return };
    let into = moved.get_or_insert_with(|| Moved { at: more.at, from: Vec::new() });
    into.at = into.at.max(more.at);
    into.from.extend(&more.from);
    into.from.sort_unstable();
    into.from.dedup();
    into.from.retain(|region| Some(*region) != home);
    moved.take_if(|moved| moved.from.is_empty());
}

/// The rule of `parent` for the rows of `child` which reference it; none where the key does not
/// hold the column.
fn rule_of(child: &Table, parent: &Table, rule: &ByRow, key: &ForeignKey) -> Option<ByRow> {
    let pairs = key.columns.iter().zip(&key.referenced_columns);
    let mut pairs = pairs.map(|(own, other)| (child.columns.get(*own), parent.columns.get(*other)));
    let (own, _) = pairs.find(|(_, other)| other.is_some_and(|other| other.id == rule.column))?;
    let mut values = rule.values.clone();
    for place in values.values_mut() {
        (place.moved, place.gaining) = (None, None);
    }
    Some(ByRow { column: own?.id, named: rule.named, values })
}

impl Ddl<'_> {
    /// Places a new table where those are that it references.
    ///
    /// # Errors
    /// 55000 where it cannot be.
    pub(super) async fn follow_parents(&mut self, table: &mut Table) -> Result<()> {
        if !self.catalog().is_regional() || telesto_sql_catalog::temp::is_temporary(table.id.0) {
            return Ok(());
        }
        let others = table.foreign_keys.iter().filter(|key| key.referenced != table.id);
        let parents = others.map(|key| {
            let parent = self.catalog().table(key.referenced).cloned();
            parent.map(|parent| (key.clone(), parent)).ok_or_else(|| {
                Error::internal(format!("no table {} in the catalog", key.referenced))
            })
        });
        let parents = parents.collect::<Result<Vec<_>>>()?;
        if let Some((key, parent)) = parents.first() {
            match (&parent.placement.home, &parent.placement.by_row) {
                (Home::Row, Some(rule)) => {
                    let Some(rule) = rule_of(table, parent, rule, key) else {
                        return self.catalog().check_one_home(table, parent, key);
                    };
                    let (home, by_row) = (Home::Row, Some(rule));
                    let mut placement = TablePlacement { home, by_row, ..table.placement.clone() };
                    self.check_by_row(table, &mut placement).await?;
                    table.placement = placement;
                }
                (home @ Home::Region(_), _) => table.placement.home = *home,
                // Refused below.
                _ => {}
            }
        }
        for (key, parent) in &parents {
            self.catalog().check_one_home(table, parent, key)?;
            let own = &mut table.placement;
            let home = match own.home {
                Home::Region(home) => Some(home),
                Home::Any | Home::Row => None,
            };
            wait_for(&mut own.moved, parent.placement.moved.as_ref(), home);
            for (value, place) in own.by_row.iter_mut().flat_map(|rule| &mut rule.values) {
                let of = parent.placement.by_row.as_ref().and_then(|rule| rule.values.get(value));
                let home = place.home();
                wait_for(&mut place.moved, of.and_then(|of| of.moved.as_ref()), home);
            }
        }
        Ok(())
    }

    /// Refuses a foreign key of a table that is there, where it cannot be checked.
    pub(super) fn may_be_checked(
        &self,
        table: &Table,
        parent: &Table,
        key: &ForeignKey,
    ) -> Result<()> {
        self.catalog().check_one_home(table, parent, key)?;
        self.catalog().check_nobody_else_writes(parent)
    }
}
