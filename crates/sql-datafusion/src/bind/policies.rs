//! A table behind its policies.
//!
//! # Invariants
//! - What a policy names means what it means where the policy was made: nothing of the statement is
//!   in its view.
//! - A policy that leads to its own table is refused (42P17), before it is bound again and again.

use std::sync::Arc;

use datafusion::datasource::provider_as_source;
use datafusion::logical_expr::LogicalPlanBuilder;

use super::scope::{Relation, Scope, ScopeColumn};
use super::select::filter;
use super::{Binder, Guard, Place};
use crate::fault;
use crate::secured::{SecuredTable, under};
use telesto_sql_types::error::Result;

impl Binder<'_> {
    /// The rows of a table that its policies show.
    pub(super) fn behind_policies(&self, guard: &Guard, relation: Relation) -> Result<Relation> {
        if self.guarding.borrow().contains(&guard.table) {
            return Err(fault::new(
                "42P17",
                format!("infinite recursion detected in policy for relation \"{}\"", guard.name),
            ));
        }
        self.guarding.borrow_mut().push(guard.table);
        let outside = (self.ctes.take(), self.windows.take(), self.wanted.take());
        let (locking, unknown) = (self.locking.replace(false), self.keep_unknown.replace(false));
        let place = self.place.take();
        let read_by = self.stored.replace(Some(Arc::clone(&guard.stored)));
        let bound = self.filtered(guard, relation);
        self.stored.replace(read_by);
        self.ctes.replace(outside.0);
        self.windows.replace(outside.1);
        self.wanted.replace(outside.2);
        self.locking.set(locking);
        self.keep_unknown.set(unknown);
        self.place.set(place);
        self.guarding.borrow_mut().pop();
        self.walled(format!("Policies on {}", guard.name), bound?)
    }

    /// The relation as a table to what is above it: no condition from there goes below, but those
    /// that tell nothing.
    pub(super) fn walled(&self, shown: String, relation: Relation) -> Result<Relation> {
        let alias = self.unique("wall");
        let table = SecuredTable::new(shown, relation.plan);
        let plan =
            LogicalPlanBuilder::scan(alias.as_str(), provider_as_source(Arc::new(table)), None)
                .and_then(LogicalPlanBuilder::build)
                .map_err(fault::from_datafusion)?;
        let columns = relation
            .columns
            .into_iter()
            .map(|column| ScopeColumn { column: under(&alias, &column.column), ..column });
        Ok(Relation { plan, columns: columns.collect() })
    }

    fn filtered(&self, guard: &Guard, relation: Relation) -> Result<Relation> {
        let Relation { mut plan, columns } = relation;
        for (called, condition) in &guard.conditions {
            let own: Vec<ScopeColumn> = columns
                .iter()
                .map(|column| ScopeColumn { table: Some(called.clone()), ..column.clone() })
                .collect();
            let scope = Scope::new(&own, None);
            self.place.set(Place { exists: true, inside: true });
            let condition = self.condition(condition, &scope, "POLICY")?;
            plan = filter(plan, condition)?;
        }
        Ok(Relation { plan, columns })
    }
}
