//! Moving the rows of a table whose keys, types or computed columns change.
//!
//! # Invariants
//! - Every row is read in its old shape, computed anew, and written to another place with all index
//!   entries.
//! - USING expressions see the old row; defaults of added columns are computed for each row;
//!   generated columns come last.
//! - A value that the definition makes fulfils what its column's domain demands. Values that stay
//!   as they are are not asked again: a constraint of a domain that is NOT VALID holds for new
//!   values only.

use std::sync::Arc;

use telesto_common::TableId;

use super::build::{RowReader, delete_rows, insert_rows};
use super::{After, Ddl};
use telesto_sql_catalog::temp::is_temporary;
use telesto_sql_catalog::{Generated, Table};
use telesto_sql_expr::cast::cast;
use telesto_sql_expr::{Binder, CastContext, EvalContext, Expr as Bound, Scope};
use telesto_sql_keypath::write::Statement;
use telesto_sql_parser::sqlparser::ast::Expr;
use telesto_sql_plan::compiled_table::{CompiledTable, relation};
use telesto_sql_plan::{ExecContext, ParameterTypes};
use telesto_sql_types::domains::DomainType;
use telesto_sql_types::error::{Error, Result};
use telesto_sql_types::{Datum, Row, TextStyle};

/// A column's new value over the old row.
pub(super) struct Using {
    pub(super) table: TableId,
    pub(super) position: usize,
    pub(super) expr: Expr,
}

/// Moves the rows of `old` to the table as it is now. `swept`: those where they were are left to
/// the sweep.
pub(super) async fn rewrite(
    context: &ExecContext,
    id: TableId,
    (old, swept): (&Table, bool),
    using: &[Using],
) -> Result<()> {
    let table = context.catalog.table(id).ok_or_else(|| Error::internal("a table is gone"))?;
    let eval = EvalContext::executing(context);
    let info = Arc::new(CompiledTable::new(&context.catalog, &context.settings, table)?);
    let using = bind_using(context, table, old, using)?;
    let made = |at: usize| {
        let column = &table.columns[at];
        let was = old.columns.get(at);
        was.is_none_or(|was| was.ty != column.ty || was.domain != column.domain)
            || using.iter().any(|(used, _)| *used == at)
    };
    let domains = info.domains.iter().filter(|(at, _)| made(*at));
    let domains = domains.map(|(at, domain)| (*at, &**domain)).collect();
    let style = context.settings.text_style(context.transaction_micros);
    let statement = Statement::new(context, &eval, &info);
    let mover = Mover { old, info: &info, eval: &eval, statement, using, domains, style };
    let mut reader = RowReader::new(context, old)?;
    loop {
        let batch = reader.next().await?;
        if batch.is_empty() {
            break;
        }
        let mut rows = Vec::with_capacity(batch.len());
        for (_, before) in batch {
            rows.push(mover.moved(before).await?);
        }
        insert_rows(context, &info, &rows).await?;
    }
    if !swept {
        delete_rows(context, old).await?;
    }
    Ok(())
}

/// What makes rows of a table as it is of those it had.
struct Mover<'a> {
    old: &'a Table,
    info: &'a CompiledTable,
    eval: &'a EvalContext<'a>,
    statement: Statement<'a>,
    /// By column.
    using: Vec<(usize, Bound)>,
    /// Of the columns whose values are made here.
    domains: Vec<(usize, &'a DomainType)>,
    style: TextStyle,
}

impl Mover<'_> {
    async fn moved(&self, before: Row) -> Result<Row> {
        let table = &self.info.table;
        // Only USING expressions look at the row as it was.
        let (mut row, before) = match self.using.is_empty() {
            true => (before, Row::new()),
            false => (before.clone(), before),
        };
        row.resize(table.columns.len(), Datum::Null);
        for (i, column) in table.columns.iter().enumerate() {
            if column.dropped {
                row[i] = Datum::Null;
                continue;
            }
            if matches!(column.generated, Some(Generated::Stored(_))) {
                // Computed below.
                continue;
            }
            let using = self.using.iter().find(|(at, _)| *at == i);
            match (using, self.old.columns.get(i)) {
                (Some((_, bound)), _) => row[i] = bound.eval(&before, self.eval)?,
                (None, Some(was)) if was.ty != column.ty => {
                    let value = std::mem::replace(&mut row[i], Datum::Null);
                    row[i] = cast(value, &was.ty, &column.ty, CastContext::Assignment, self.eval)?;
                }
                (None, Some(_)) => {}
                (None, None) => {
                    row[i] = match &column.missing {
                        Some(text) => Datum::from_text(text, &column.ty, &self.style)?,
                        None => self.statement.default_value(self.info, i).await?,
                    };
                }
            }
            self.fulfils(i, &row)?;
        }
        self.statement.generate(self.info, &mut row)?;
        for (at, _) in &self.info.generated {
            self.fulfils(*at, &row)?;
        }
        Ok(row)
    }

    /// Refuses a value made here that its column's domain does not take.
    fn fulfils(&self, at: usize, row: &[Datum]) -> Result<()> {
        match self.domains.iter().find(|(of, _)| *of == at) {
            Some((_, domain)) => telesto_sql_expr::domain::check(&row[at], domain, self.eval),
            None => Ok(()),
        }
    }
}

impl Ddl<'_> {
    /// Leaves the many rows of tables that move to the sweep, where they were: a transaction that
    /// deletes each of them writes twice as much as one that does not. Those that are few go in
    /// this transaction ([`rewrite`]).
    pub(super) async fn leave_moved_rows(&mut self) -> Result<()> {
        let mut after = std::mem::take(&mut self.after);
        for step in &mut after {
            if let After::Rewrite(_, old, swept) = step
                && !is_temporary(old.id.0)
                && self.is_large(old, 0).await?
            {
                self.leave_to_sweep(old, None);
                *swept = true;
            }
        }
        self.after = after;
        Ok(())
    }
}

fn bind_using(
    context: &ExecContext,
    table: &Table,
    old: &Table,
    using: &[Using],
) -> Result<Vec<(usize, Bound)>> {
    let eval = EvalContext::planning(&context.settings, &context.catalog);
    let scope = Scope { relations: vec![relation(old, &old.name, 0, true)] };
    let mut parameters = ParameterTypes::default();
    using
        .iter()
        .filter(|using| using.table == table.id)
        .map(|using| {
            let ty = &table.columns[using.position].ty;
            let mut binder = Binder::new(&scope, &mut parameters, &eval, "transform expressions");
            let bound = binder.bind(&using.expr)?;
            Ok((using.position, binder.coerce(bound, ty, CastContext::Assignment)?))
        })
        .collect()
}
