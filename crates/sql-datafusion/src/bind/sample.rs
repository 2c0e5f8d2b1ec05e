//! `FROM table TABLESAMPLE BERNOULLI (percent) REPEATABLE (seed)`: a condition on the table's rows.
//!
//! # Invariants
//! The condition stands directly above the table's rows, whatever else is asked of them: what is
//! sampled is the table.
//!
//! # On failure
//! 0A000 for what is no table, as in PostgreSQL, 42704 for an unknown method, 42601 for forms of
//! other systems; those of [`telesto_sql_expr`]'s functions when it runs.
//!
//! # Limits
//! The whole table is read.

use datafusion::logical_expr::{Expr, LogicalPlanBuilder};
use datafusion::sql::sqlparser::ast::{
    self, TableSample, TableSampleKind, TableSampleMethod, TableSampleModifier,
    TableSampleSeedModifier,
};

use super::scope::{Scope, ScopeColumn, fold};
use super::{Binder, Found, Relation, Typed};
use crate::fault;
use telesto_sql_expr::{ROW_TEXT, SAMPLED, SAMPLED_AGAIN};
use telesto_sql_plan::hidden::KEY_COLUMN;
use telesto_sql_types::SqlType;
use telesto_sql_types::error::Result;

impl Binder<'_> {
    /// Whether a name in FROM is a table's, and no view's or WITH query's.
    pub(super) fn is_table(&self, name: &ast::ObjectName) -> Result<bool> {
        if self.is_with_query(name) {
            return Ok(false);
        }
        let parts: Vec<String> = name.0.iter().filter_map(|p| p.as_ident()).map(fold).collect();
        Ok(matches!(self.find_table(&parts)?, Found::Table(_)))
    }

    /// Whether a name in FROM is a WITH query's.
    pub(super) fn is_with_query(&self, name: &ast::ObjectName) -> bool {
        let [ast::ObjectNamePart::Identifier(single)] = name.0.as_slice() else { return false };
        let single = fold(single);
        self.ctes.borrow().iter().any(|cte| cte.name == single)
    }

    /// `relation`, the rows of a table, with those that the clause takes.
    pub(super) fn sampled(
        &self,
        relation: Relation,
        kind: &TableSampleKind,
        outer: Option<&Scope<'_>>,
    ) -> Result<Relation> {
        let (TableSampleKind::BeforeTableAlias(sample) | TableSampleKind::AfterTableAlias(sample)) =
            kind;
        let (percent, seed) = parts(sample)?;
        // Nothing of this level is known yet.
        let scope = Scope::new(&[], outer);
        let percent = self.expr(percent, &scope)?;
        let percent = self.coerce(percent, &SqlType::Float8, "TABLESAMPLE")?;
        let taken = match seed {
            None => self.call(SAMPLED, vec![percent])?,
            Some(seed) => {
                let seed = self.expr(&ast::Expr::Value(seed.clone()), &scope)?;
                let seed = self.coerce(seed, &SqlType::Float8, "TABLESAMPLE")?;
                let shown = |column: &&ScopeColumn| column.name != KEY_COLUMN && !column.hidden();
                let columns = relation.columns.iter().filter(shown);
                let values = columns
                    .map(|own| Typed::of(Expr::Column(own.column.clone()), own.ty.clone()))
                    .collect();
                let row = self.call(ROW_TEXT, values)?;
                self.call(SAMPLED_AGAIN, vec![percent, seed, row])?
            }
        };
        let plan = LogicalPlanBuilder::from(relation.plan)
            .filter(taken.expr)
            .and_then(LogicalPlanBuilder::build)
            .map_err(fault::from_datafusion)?;
        Ok(Relation { plan, ..relation })
    }
}

/// Percentage and seed of a clause in PostgreSQL's form.
fn parts(sample: &TableSample) -> Result<(&ast::Expr, Option<&ast::ValueWithSpan>)> {
    let foreign = || fault::syntax("syntax error at or near \"TABLESAMPLE\"");
    if sample.modifier != TableSampleModifier::TableSample
        || sample.bucket.is_some()
        || sample.offset.is_some()
    {
        return Err(foreign());
    }
    match sample.name {
        Some(TableSampleMethod::Bernoulli | TableSampleMethod::System) => {}
        Some(other) => {
            let name = other.to_string().to_lowercase();
            return Err(fault::new("42704", format!("tablesample method {name} does not exist")));
        }
        None => {
            // The parser takes the name of a method that it does not know for a function of the
            // quantity.
            let called = sample.quantity.as_ref().map(|quantity| &quantity.value);
            let Some(ast::Expr::Function(method)) = called else { return Err(foreign()) };
            let message = format!("tablesample method {} does not exist", method.name);
            return Err(fault::new("42704", message));
        }
    }
    let percent = match &sample.quantity {
        Some(quantity) if quantity.parenthesized && quantity.unit.is_none() => &quantity.value,
        _ => return Err(foreign()),
    };
    let seed = match &sample.seed {
        None => None,
        Some(seed) if seed.modifier == TableSampleSeedModifier::Repeatable => Some(&seed.value),
        Some(_) => return Err(foreign()),
    };
    Ok((percent, seed))
}
