//! Where foreign keys are checked, in a database of several regions.
//!
//! # Invariants
//! - Both tables of a foreign key are written in one region, by each other's newest definitions:
//!   nobody changes the one while another region looks at it.
//! - A foreign key is checked against rows that are here. A table that this region does not have
//!   whole is never taken for an empty one: rows placed by value are asked for key by key
//!   ([`super::by_row`]), and a table that is placed as a whole is here or is refused.
//!
//! # On failure
//! 55000, with the way out: the regions that have both tables, or the placement to change.
//!
//! # Limits
//! Two definitions that bring both tables of a key to another home leave it unchecked between them:
//! writes of both are refused until then.

use telesto_common::RegionId;
use telesto_sql_types::error::{Error, Result, SqlState};

use super::by_row::ByRow;
use super::model::{ForeignKey, Table};
use super::snapshot::CatalogSnapshot;

fn refused(text: String, hint: impl Into<String>) -> Error {
    Error::new(SqlState::OBJECT_NOT_IN_PREREQUISITE_STATE, text).hint(hint)
}

impl CatalogSnapshot {
    /// Refuses a foreign key whose tables are written in different regions.
    ///
    /// # Errors
    /// 55000.
    pub fn check_one_home(&self, child: &Table, parent: &Table, key: &ForeignKey) -> Result<()> {
        if !self.is_regional() {
            return Ok(());
        }
        let by_row = (&child.placement.by_row, &parent.placement.by_row);
        let one = match by_row {
            (Some(own), Some(other)) => ByRow::keeps((child, own), (parent, other), key),
            _ => child.placement.home == parent.placement.home,
        };
        if one {
            return Ok(());
        }
        let hint = match by_row {
            (Some(_), Some(_)) => {
                "Place the rows of both by the same column, which the foreign key holds, and give each value one home, or drop the foreign key."
            }
            (None, Some(_)) => {
                "Have the foreign key hold the column that places the rows, and the primary key begin with the column that references it: a new table is placed as the rows that it references. Or leave the foreign key out."
            }
            _ => "Give both the same telesto.home, or drop the foreign key.",
        };
        Err(refused(
            format!(
                "foreign key \"{}\" cannot be checked: rows of tables \"{}\" and \"{}\" are written in different regions",
                key.name, child.name, parent.name
            ),
            hint,
        ))
    }

    /// Refuses to check `key` against rows of `other` where this region does not have all of them;
    /// `written` is the table whose rows change.
    ///
    /// # Errors
    /// 55000.
    pub fn check_read_for_key(
        &self,
        key: &ForeignKey,
        other: &Table,
        written: &Table,
    ) -> Result<()> {
        let whole = |table: &Table, region: RegionId| {
            table.placement.by_row.is_some() || table.placement.is_whole_in(region)
        };
        if !self.is_regional() || whole(other, self.me()) {
            return Ok(());
        }
        let both = self.regions().filter(|region| {
            let region = RegionId(region.id);
            whole(other, region) && whole(written, region)
        });
        let both: Vec<_> = both.map(|region| format!("\"{}\"", region.name)).collect();
        let (me, name) = (self.region_name(self.me().0), &other.name);
        let (why, first) = if other.placement.has(self.me()) {
            (
                format!("rows of table \"{name}\" are still being sent there"),
                "Try again in a moment (SELECT * FROM telesto_regions shows whether all regions can be reached), or write",
            )
        } else {
            (format!("table \"{name}\" is not replicated there"), "Write")
        };
        Err(refused(
            format!("foreign key \"{}\" cannot be checked in region \"{me}\": {why}", key.name),
            format!(
                "{first} table \"{}\" in a region that has both ({}), or place both in the same regions with ALTER TABLE … SET (telesto.regions = …).",
                written.name,
                both.join(", ")
            ),
        ))
    }

    /// Refuses a foreign key of rows that are there, while somebody may still write the referenced
    /// ones by older definitions, which do not know of it.
    ///
    /// # Errors
    /// 55000.
    pub fn check_nobody_else_writes(&self, table: &Table) -> Result<()> {
        let rule = table.placement.by_row.as_ref();
        let values = rule.into_iter().flat_map(|rule| rule.values.values());
        let of_values = values.filter_map(|place| place.moved.as_ref());
        let mut from = table.placement.moved.iter().chain(of_values).flat_map(|moved| &moved.from);
        match from.find(|id| self.regions().any(|region| region.id == **id)) {
            Some(region) => Err(self.still_written(table, *region)),
            None => Ok(()),
        }
    }
}
