//! ON CONFLICT DO UPDATE whose values or condition hold subqueries: a query over the row that is
//! there and the one proposed.
//!
//! ```text
//! SET (a, b) = (SELECT … t.x … excluded.y …)  ->  SELECT (SELECT …), (SELECT …) FROM row there AS t, row proposed AS excluded
//! ```
//!
//! # Invariants
//! - The two rows are relations as earlier parts of a statement leave them
//!   ([`telesto_sql_plan::with_rows`]), behind those there are.
//! - The query sees the state at the statement's start, as PostgreSQL's.
//!
//! # On failure
//! What planning and running the query say.
//!
//! # Limits
//! It runs once for each row that is there. Not through a view, whose names are not those of the
//! table's columns (0A000).

use super::*;
use crate::with::all_of;
use telesto_sql_plan::ExecContext;
use telesto_sql_plan::with_rows::{PartRows, Parts, part_name};
use telesto_sql_types::Row;
use telesto_sql_types::held::{out_of_memory, row_bytes};

/// Values that a query gives for two rows.
#[derive(Debug)]
pub(crate) struct RowQuery {
    source: QuerySource,
    /// Which parts the rows are.
    first: usize,
    columns: Arc<[ResultColumn]>,
    /// Where they are in a row.
    positions: Vec<usize>,
}

impl RowQuery {
    /// Plans the values `items`, of the types `wanted` where they have none.
    ///
    /// # Errors
    /// Those of planning.
    pub(super) fn plan(
        items: Vec<ast::Expr>,
        wanted: Vec<SqlType>,
        written: &Written,
        context: &mut PlanContext<'_>,
    ) -> Result<Self> {
        if !Arc::ptr_eq(&written.table, &written.face) {
            return Err(Error::unsupported("a subquery in ON CONFLICT DO UPDATE through a view")
                .hint("Write to the table below the view."));
        }
        let table = &written.face;
        let visible = table.visible_columns();
        let columns: Arc<[ResultColumn]> =
            visible.map(|(_, c)| ResultColumn::new(c.name.clone(), c.ty.clone())).collect();
        let first = context.earlier.parts.len();
        let mut query = all_of(&part_name(first))?;
        let SetExpr::Select(select) = &mut *query.body else {
            return Err(Error::internal("a query made here is no SELECT"));
        };
        select.projection = items.into_iter().map(SelectItem::UnnamedExpr).collect();
        let mut other = select.from.clone();
        select.from.append(&mut other);
        for (at, (from, name)) in
            select.from.iter_mut().zip([written.shown.as_str(), "excluded"]).enumerate()
        {
            if let TableFactor::Table { name: relation, alias, .. } = &mut from.relation {
                *relation =
                    ObjectName::from(vec![ast::Ident::with_quote('"', part_name(first + at))]);
                *alias = Some(ast::TableAlias {
                    explicit: true,
                    name: ast::Ident::with_quote('"', name),
                    columns: Vec::new(),
                    at: None,
                });
            }
        }
        let mut earlier = telesto_sql_plan::with_rows::Earlier::clone(&context.earlier);
        earlier.parts.extend([Arc::clone(&columns), Arc::clone(&columns)]);
        let mut inner = PlanContext {
            catalog: context.catalog,
            settings: context.settings,
            parameters: &mut *context.parameters,
            txn: context.txn,
            env: context.env,
            earlier: Arc::new(earlier),
            planner: context.planner,
        };
        let source = QuerySource::plan_now(query, wanted, &mut inner)?;
        let positions = table.visible_columns().map(|(at, _)| at).collect();
        Ok(Self { source, first, columns, positions })
    }

    /// The types of the values.
    pub(super) fn types(&self) -> Vec<SqlType> {
        self.source.types()
    }

    /// The values for a row that is there and one that is proposed; `exec` sees the state at the
    /// statement's start.
    ///
    /// # Errors
    /// Those of the query.
    pub(crate) async fn values(
        &self,
        there: &Row,
        proposed: &Row,
        exec: &ExecContext,
    ) -> Result<Row> {
        let parts = Parts::default();
        for number in 0..self.first {
            let earlier = exec.parts.as_ref().and_then(|parts| parts.rows(number));
            let earlier = earlier.ok_or_else(|| Error::internal("an earlier part is gone"))?;
            parts.share(earlier);
        }
        for row in [there, proposed] {
            let held = exec.memory.reserve("a row of ON CONFLICT", row_bytes(row));
            let row = self.positions.iter().map(|at| row[*at].clone()).collect();
            let (columns, held) = (Arc::clone(&self.columns), held.map_err(out_of_memory)?);
            parts.push(PartRows { columns, rows: vec![row], held });
        }
        let exec = ExecContext { parts: Some(Arc::new(parts)), ..exec.clone() };
        let mut rows = Box::pin(self.source.open_seen(&exec)).await?;
        let row = rows.next(1).await?.into_iter().next();
        row.ok_or_else(|| Error::internal("a query over two rows gave none"))
    }
}

/// Whether an expression holds a subquery.
pub(super) fn has_subquery(expr: &ast::Expr) -> bool {
    ast::visit_expressions(expr, |inner| match inner {
        ast::Expr::Subquery(_)
        | ast::Expr::Exists { .. }
        | ast::Expr::InSubquery { .. }
        | ast::Expr::AnyOp { .. }
        | ast::Expr::AllOp { .. } => std::ops::ControlFlow::Break(()),
        _ => std::ops::ControlFlow::Continue(()),
    })
    .is_break()
}
