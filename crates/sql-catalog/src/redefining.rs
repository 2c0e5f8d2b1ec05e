//! Which definitions are made while other regions write the table, or some of its rows.
//!
//! # Invariants
//! - What is let through means the same to rows written by older definitions and by newer ones:
//!   names, rights, defaults, columns that rows without them have a value for, conditions that only
//!   later rows must meet, and what goes.
//! - An index is let through as one that is being filled, and becomes whole out of that state
//!   alone: each region fills its part ([`super::regional_builds`]).
//!
//! # On failure
//! 55000, with the way out.
//!
//! # Limits
//! Constraints that hold for rows that are there, types, and keys are defined while the defining
//! region alone writes the table.

use super::model::{BuildState, CheckConstraint, Column, ForeignKey, Index, Table};
use super::regions::Home;
use super::snapshot::CatalogSnapshot;
use telesto_sql_types::error::{Error, Result, SqlState};

/// Makes `column` what it was, but for what changes no row and no key.
fn forget_what_rows_do_not_show(column: &mut Column, old: &Column) {
    column.default.clone_from(&old.default);
    column.comment.clone_from(&old.comment);
    column.name.clone_from(&old.name);
    column.dropped = old.dropped;
}

/// The columns of `after`, without what rows do not show.
fn columns_that_rows_show(before: &Table, after: &Table) -> Vec<Column> {
    let mut columns = after.columns.clone();
    for (column, old) in columns.iter_mut().zip(&before.columns) {
        forget_what_rows_do_not_show(column, old);
    }
    // Rows without the column mean the same in every region.
    let plain = |column: &Column| {
        column.generated.is_none() && (!column.not_null || column.missing.is_some())
    };
    let added = columns.len().saturating_sub(before.columns.len());
    if columns.iter().rev().take(added).all(plain) {
        columns.truncate(before.columns.len());
    }
    columns
}

/// Whether two indexes have the same entries, whatever they are called.
fn same_entries(one: &Index, other: &Index) -> bool {
    let bare = |index: &Index| Index {
        oid: 0,
        id: 0,
        name: String::new(),
        constraint_oid: None,
        comment: None,
        ..index.clone()
    };
    bare(one) == bare(other)
}

/// Whether every index of `after` was there before, or was being filled.
fn indexes_were_filled(before: &Table, after: &Table) -> bool {
    after.indexes.iter().all(|index| {
        let filled = before.building.iter().any(|build| {
            build.index.id == index.id
                && build.state == BuildState::Filling
                && same_entries(&build.index, index)
        });
        filled || before.indexes.iter().any(|old| old.id == index.id && same_entries(old, index))
    })
}

/// Whether every condition of `after` was there before, or is of later rows alone.
fn checks_are_of_later_rows(before: &Table, after: &Table) -> bool {
    let was = |check: &CheckConstraint| {
        before.checks.iter().any(|old| {
            old.oid == check.oid
                && old.expression == check.expression
                && old.validated == check.validated
        })
    };
    after.checks.iter().all(|check| !check.validated || was(check))
}

/// Whether every foreign key of `after` was there before; another number of the index that it
/// relies on is no change.
fn foreign_keys_were_there(before: &Table, after: &Table) -> bool {
    after.foreign_keys.iter().all(|key| {
        before.foreign_keys.iter().any(|old| {
            let renamed = ForeignKey {
                referenced_index: key.referenced_index,
                name: key.name.clone(),
                ..old.clone()
            };
            renamed == *key
        })
    })
}

impl CatalogSnapshot {
    /// Refuses a definition that one region cannot make while others write the table.
    ///
    /// # Errors
    /// 55000.
    pub(crate) fn check_change(&self, before: &Table, after: Option<&Table>) -> Result<()> {
        let Some(after) = after else { return Ok(()) };
        let merging = before.placement.merging.is_some();
        let here = before.placement.home == self.usual_home() && before.placement.moved.is_none();
        if here && !merging {
            return Ok(());
        }
        let mut same = after.clone();
        if before.storage == after.storage {
            if !merging {
                same.columns = columns_that_rows_show(before, after);
                if checks_are_of_later_rows(before, after) {
                    same.checks.clone_from(&before.checks);
                }
                if foreign_keys_were_there(before, after) {
                    same.foreign_keys.clone_from(&before.foreign_keys);
                }
            }
            if indexes_were_filled(before, after) {
                same.indexes.clone_from(&before.indexes);
                same.building.clone_from(&before.building);
                same.next_index = before.next_index;
            }
            if let (Some(primary), Some(old)) = (&mut same.primary, &before.primary) {
                primary.name.clone_from(&old.name);
                primary.comment.clone_from(&old.comment);
            }
        }
        for (column, old) in same.columns.iter_mut().zip(&before.columns) {
            column.acl.clone_from(&old.acl);
        }
        let same = Table {
            name: before.name.clone(),
            schema: before.schema,
            owner: before.owner,
            acl: before.acl.clone(),
            comment: before.comment.clone(),
            constraint_comments: before.constraint_comments.clone(),
            storage: before.storage,
            placement: before.placement.clone(),
            row_security: before.row_security.clone(),
            ..same
        };
        if same == *before {
            return Ok(());
        }
        Err(self.refused_change(before, here))
    }

    fn refused_change(&self, before: &Table, here: bool) -> Error {
        let refused = |text: String| Error::new(SqlState::OBJECT_NOT_IN_PREREQUISITE_STATE, text);
        let name = &before.name;
        if here {
            return refused(format!("table \"{name}\" has columns that merge; it is changed while it has none")).hint(
                "ALTER TABLE … RESET (telesto.counter, telesto.max, telesto.min), change the table, and set them again: values stay.",
            );
        }
        let defining = self.region_name(self.defining().0);
        let home = match before.placement.home {
            Home::Any => "in every region".to_owned(),
            Home::Region(home) => format!("in region \"{}\"", self.region_name(home)),
            Home::Row => {
                return refused(format!("rows of table \"{name}\" are written in the regions that their values name; this is changed while it is written in region \"{defining}\""))
                    .hint(
                        "Columns without a computed default, CHECK … NOT VALID and, outside of a transaction block, indexes are defined as it is. For the rest: ALTER TABLE … RESET (telesto.regions), which brings all rows into every region, wait until telesto_placement shows no moved_from and nobody gaining, change the table, and set telesto.regions again.",
                    );
            }
        };
        refused(format!("table \"{name}\" is written {home}; this is changed while it is written in region \"{defining}\""))
            .hint(format!(
                "Columns without a computed default, CHECK … NOT VALID and, outside of a transaction block, indexes are defined as it is. For the rest: ALTER TABLE … SET (telesto.home = '{defining}'), write a row or wait until that is possible, change the table, and set its home again."
            ))
    }
}
