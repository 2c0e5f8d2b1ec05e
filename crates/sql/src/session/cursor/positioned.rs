//! `UPDATE … WHERE CURRENT OF cursor` and `DELETE … WHERE CURRENT OF cursor`.
//!
//! ```text
//! DECLARE c CURSOR FOR SELECT a FROM t …    is executed as   SELECT a, t.key… FROM t …      the key is cut off before rows are shown
//! UPDATE t SET … WHERE CURRENT OF c         is executed as   UPDATE t SET … WHERE t.key = $n…
//! ```
//! # Invariants
//! - The row is the one with the primary key that the cursor's row had: also after it was changed
//!   since, not after its key was.
//! - The statement is planned anew each time: where the cursor stands, and on which table, is known
//!   only then.
//!
//! # Limits
//! Cursors over one table with a primary key, without DISTINCT, GROUP BY, joins and set operations.
//! A cursor over a join, FOR UPDATE, is one in PostgreSQL; a table without a primary key is refused
//! (0A000).

use std::sync::Arc;

use futures::FutureExt as _;
use telesto_common::TableId;
use telesto_txn::Transaction;

use super::super::settings::Settings;
use super::super::{Prepared, Session};
use super::{Cursors, no_cursor};
use crate::catalog::{CatalogSnapshot, Relation, Table};
use crate::elsewhere::ReadElsewhere;
use crate::error::{Error, Result, SqlState};
use crate::plan::Plan;
use crate::sqlparser::ast::{
    BinaryOperator, Declare, Expr, GroupByExpr, Ident, ObjectName, OrderByKind, Query, SelectItem,
    SetExpr, Statement, TableFactor, Value,
};
use crate::types::{Datum, SqlType};
use telesto_sql_parser::cursor::{current_of, declared};
use telesto_sql_parser::statement_kind::locking_cursor;

/// What is behind the shown columns of a cursor's rows.
#[derive(Clone, Debug)]
pub(in crate::session) struct Keyed {
    table: TableId,
    columns: Vec<(String, SqlType)>,
}

impl Keyed {
    /// How many columns.
    pub fn len(&self) -> usize {
        self.columns.len()
    }
}

/// A statement with the row's key in the place of `CURRENT OF`, and the values of the parameters
/// that stand for it.
pub(in crate::session) struct Positioned {
    pub statement: Statement,
    pub types: Vec<SqlType>,
    pub values: Vec<Datum>,
}

/// The table of a name, if it is one.
fn table_of<'a>(
    name: &ObjectName,
    catalog: &'a CatalogSnapshot,
    settings: &Settings,
) -> Option<&'a Relation> {
    let parts: Vec<String> = name
        .0
        .iter()
        .filter_map(|part| part.as_ident())
        .map(telesto_sql_parser::names::fold)
        .collect();
    let (schema, called) = match &parts[..] {
        [called] => (None, called),
        [schema, called] => (Some(schema.as_str()), called),
        _ => return None,
    };
    catalog.resolve(schema, called, &settings.effective_search_path())
}

/// The primary key's columns.
fn key_of(table: &Table) -> Option<Keyed> {
    let at = table.primary.as_ref()?.columns.iter().map(|column| column.column);
    let columns = at
        .map(|at| table.columns.get(at))
        .map(|column| column.map(|column| (column.name.clone(), column.ty.clone())))
        .collect::<Option<_>>()?;
    Some(Keyed { table: table.id, columns })
}

fn column(table: &Ident, name: &str) -> Expr {
    Expr::CompoundIdentifier(vec![table.clone(), Ident::with_quote('"', name)])
}

/// The DECLARE whose query gives the rows' keys too; `None`: rows of the query are no table's rows,
/// or have no key.
pub(in crate::session) fn with_keys(
    declare: &Declare,
    catalog: &CatalogSnapshot,
    settings: &Settings,
) -> Option<(Statement, Keyed)> {
    let mut declare = declare.clone();
    let query: &mut Query = declare.for_query.as_mut()?;
    if query.with.is_some() {
        return None;
    }
    let SetExpr::Select(select) = &mut *query.body else { return None };
    let plain = select.distinct.is_none()
        && select.having.is_none()
        && matches!(&select.group_by, GroupByExpr::Expressions(by, _) if by.is_empty());
    let [from] = &select.from[..] else { return None };
    let TableFactor::Table { name, alias, args: None, sample: None, .. } = &from.relation else {
        return None;
    };
    if !plain || !from.joins.is_empty() {
        return None;
    }
    let Some(Relation::Table(table)) = table_of(name, catalog, settings) else { return None };
    // Columns that have other names there are not found by their own.
    if alias.as_ref().is_some_and(|alias| !alias.columns.is_empty()) {
        return None;
    }
    let keyed = key_of(table)?;
    let shown = match alias {
        Some(alias) => alias.name.clone(),
        None => name.0.last()?.as_ident()?.clone(),
    };
    let keys = keyed.columns.iter().map(|(name, _)| SelectItem::UnnamedExpr(column(&shown, name)));
    select.projection.extend(keys);
    Some((Statement::Declare { stmts: vec![declare] }, keyed))
}

/// Places of select items that a DECLARE's query is ordered by.
fn ordinals(declare: &Statement) -> impl Iterator<Item = usize> {
    let query = declared(declare).and_then(|declare| declare.for_query.as_ref());
    let order = query.and_then(|query| query.order_by.as_ref());
    let items = match order.map(|order| &order.kind) {
        Some(OrderByKind::Expressions(items)) => &items[..],
        Some(OrderByKind::All(_)) | None => &[],
    };
    items.iter().filter_map(|item| match &item.expr {
        Expr::Value(value) => match &value.value {
            Value::Number(number, _) => number.parse().ok(),
            _ => None,
        },
        _ => None,
    })
}

/// The name and the shown name of what an UPDATE or DELETE writes.
fn target(statement: &Statement) -> Option<(&ObjectName, Ident)> {
    let relation = match statement {
        Statement::Update(update) => &update.table.relation,
        Statement::Delete(delete) => match &delete.from {
            crate::sqlparser::ast::FromTable::WithFromKeyword(from)
            | crate::sqlparser::ast::FromTable::WithoutKeyword(from) => &from.first()?.relation,
        },
        _ => return None,
    };
    let TableFactor::Table { name, alias, .. } = relation else { return None };
    let shown = match alias {
        Some(alias) => alias.name.clone(),
        None => name.0.last()?.as_ident()?.clone(),
    };
    Some((name, shown))
}

impl Cursors {
    /// `statement` about the row where `cursor` stands. Its parameters come after `before` others.
    ///
    /// # Errors
    /// 34000: there is no such cursor; 24000: it stands on no row of the table that is written;
    /// 0A000.
    pub(in crate::session) async fn at_row(
        &self,
        statement: &Statement,
        cursor: &Ident,
        before: usize,
        (catalog, settings): (&Arc<CatalogSnapshot>, &Settings),
    ) -> Result<Positioned> {
        let (name, shown) = target(statement).ok_or_else(|| Error::internal("no table"))?;
        let cursor = super::folded(cursor);
        let table = match table_of(name, catalog, settings) {
            Some(Relation::Table(table)) => table,
            Some(Relation::View(_)) => {
                return Err(Error::unsupported("WHERE CURRENT OF on a view"));
            }
            // Whoever plans the statement says what is wrong with it.
            _ => return Ok(Positioned::nowhere(statement)),
        };
        let found = self.0.get(&cursor).ok_or_else(|| no_cursor(&cursor))?;
        let state = |message: String| Error::new(SqlState::INVALID_CURSOR_STATE, message);
        if found.depth.is_none() {
            return Err(state(format!("cursor \"{cursor}\" is held from a previous transaction")));
        }
        if table.primary.is_none() {
            return Err(Error::unsupported(
                "WHERE CURRENT OF a cursor over a table without a primary key",
            )
            .hint("Add a primary key."));
        }
        let Some(keyed) = found.keyed.as_ref().filter(|keyed| keyed.table == table.id) else {
            let message = format!(
                "cursor \"{cursor}\" is not a simply updatable scan of table \"{}\"",
                table.name
            );
            return Err(state(message));
        };
        let rows = found.rows()?;
        let rows = rows.lock().await;
        let Some(key) = rows.key() else {
            return Err(state(format!("cursor \"{cursor}\" is not positioned on a row")));
        };
        let equal = keyed.columns.iter().enumerate().map(|(number, (name, _))| {
            let placeholder = Value::Placeholder(format!("${}", before + number + 1));
            Expr::BinaryOp {
                left: Box::new(column(&shown, name)),
                op: BinaryOperator::Eq,
                right: Box::new(Expr::Value(placeholder.with_empty_span())),
            }
        });
        let condition = equal.reduce(|left, right| Expr::BinaryOp {
            left: Box::new(left),
            op: BinaryOperator::And,
            right: Box::new(right),
        });
        let condition = condition.ok_or_else(|| Error::internal("a key without columns"))?;
        Ok(Positioned {
            statement: telesto_sql_parser::cursor::with_condition(statement, condition),
            types: keyed.columns.iter().map(|(_, ty)| ty.clone()).collect(),
            values: key.clone(),
        })
    }
}

impl Positioned {
    /// `statement` about no row: as it is described, before it is known where the cursor stands.
    pub fn nowhere(statement: &Statement) -> Self {
        let never = Expr::Value(Value::Boolean(false).with_empty_span());
        Self {
            statement: telesto_sql_parser::cursor::with_condition(statement, never),
            types: Vec::new(),
            values: Vec::new(),
        }
    }
}

/// How a statement is executed.
pub(in crate::session) struct Planned {
    pub plan: Plan,
    /// What is behind the columns of a cursor's rows.
    pub keyed: Option<Keyed>,
    /// Values of parameters that stand for the row of a cursor.
    pub values: Option<Vec<Datum>>,
}

impl Planned {
    /// A plan as it is.
    pub fn of(plan: Plan) -> Self {
        Self { plan, keyed: None, values: None }
    }
}

/// Whether a statement makes a cursor, or is about the row of one.
pub(in crate::session) fn concerns_cursors(statement: &Statement) -> bool {
    declared(statement).is_some() || current_of(statement).is_some()
}

impl Session {
    /// The statement's plan: with rows' keys for a cursor that has them, at the row of a cursor for
    /// what is about one.
    pub(in crate::session) async fn planned(
        &self,
        prepared: &Prepared,
        statement: &Statement,
        (catalog, txn): (&Arc<CatalogSnapshot>, &Arc<dyn Transaction>),
    ) -> Result<Planned> {
        let view = (catalog, &*self.settings);
        if let Some(cursor) = current_of(statement) {
            let before = prepared.parameter_types.len();
            let at = match self.cursors.at_row(statement, cursor, before, view).boxed().await {
                Ok(at) => at,
                Err(error) => {
                    // What is wrong with the statement itself comes before where the cursor stands.
                    let nowhere = Positioned::nowhere(statement).statement;
                    self.plan_once(prepared, (&nowhere, &[]), catalog, txn).boxed().await?;
                    return Err(error);
                }
            };
            let whole = (&at.statement, &at.types[..]);
            let plan = self.plan_once(prepared, whole, catalog, txn).boxed().await?;
            return Ok(Planned { values: Some(at.values), ..Planned::of(plan) });
        }
        let declare = declared(statement);
        // A statement that is executed elsewhere gives its rows without their keys. One that locks
        // them is executed here.
        let declare = declare.filter(|_| !catalog.places_rows() || locking_cursor(statement));
        if let Some((whole, keyed)) =
            declare.and_then(|declare| with_keys(declare, catalog, &self.settings))
        {
            // What the keys are not for, a query of groups for example, is planned as it is.
            let plan = self.plan_once(prepared, (&whole, &[]), catalog, txn).boxed().await;
            let plan = plan.ok().filter(|plan| plan.downcast::<ReadElsewhere>().is_none());
            // `ORDER BY 3` is not to find the key behind two columns.
            let beyond = |plan: &Plan| {
                let columns = plan.columns().map_or(0, |columns| columns.len());
                ordinals(&whole).any(|at| at > columns.saturating_sub(keyed.len()))
            };
            if let Some(plan) = plan.filter(|plan| !beyond(plan)) {
                return Ok(Planned { keyed: Some(keyed), ..Planned::of(plan) });
            }
        }
        let plan = self.plan(prepared, statement, catalog, txn).await?;
        Ok(Planned::of(plan))
    }
}
