//! What a statement is, as far as the session must know before it is planned.
//!
//! # Invariants
//! In doubt a statement may write and reads something: that costs a wider transaction, never a
//! wrong answer.

use std::ops::ControlFlow;

use crate::cursor;
use crate::sqlparser::ast::{
    CopySource, Expr, ObjectName, Query, SelectItem, SetExpr, Statement, visit_relations,
};
use telesto_sql_types::error::{Error, Result};

/// Whether a statement surely writes nothing through its transaction.
pub fn only_reads(statement: &Statement) -> bool {
    match statement {
        Statement::Query(query) => query_reads(query),
        Statement::Explain { analyze, options, statement, .. } => {
            (!analyze && options.is_none()) || only_reads(statement)
        }
        Statement::Copy { source: CopySource::Query(query), .. } => query_reads(query),
        Statement::Copy { to, .. } => *to,
        Statement::Declare { .. } => cursor::declared(statement)
            .and_then(|declare| declare.for_query.as_ref())
            .is_some_and(|query| query_reads(query)),
        Statement::Fetch { .. } | Statement::Close { .. } => true,
        _ => false,
    }
}

/// Whether a statement adds, changes, deletes or locks rows, as a whole or somewhere inside: what
/// it reads is read where it is kept.
#[must_use]
pub fn changes_or_locks_rows(statement: &Statement) -> bool {
    match statement {
        Statement::Insert(_)
        | Statement::Update { .. }
        | Statement::Delete(_)
        | Statement::Merge { .. } => true,
        Statement::Query(query)
        | Statement::Copy { source: CopySource::Query(query), to: true, .. } => !query_reads(query),
        // What a new table is filled with.
        Statement::CreateTable(create) => create.query.is_some(),
        // Its rows are pulled by other statements, and read then.
        Statement::Declare { .. } => locking_cursor(statement),
        Statement::Explain { statement, .. } => changes_or_locks_rows(statement),
        _ => false,
    }
}

/// Whether a statement declares a cursor whose query locks rows.
#[must_use]
pub fn locking_cursor(statement: &Statement) -> bool {
    cursor::declared(statement)
        .and_then(|declare| declare.for_query.as_ref())
        .is_some_and(|query| !query_reads(query))
}

/// Whether a query surely writes nothing and locks nothing.
pub fn query_reads(query: &Query) -> bool {
    fn body_reads(body: &SetExpr) -> bool {
        match body {
            SetExpr::Select(select) => {
                select.into.is_none() && !select.projection.iter().any(decides)
            }
            SetExpr::Query(query) => query_reads(query),
            SetExpr::SetOperation { left, right, .. } => body_reads(left) && body_reads(right),
            SetExpr::Values(_) | SetExpr::Table(_) => true,
            _ => false,
        }
    }
    query.locks.is_empty()
        && body_reads(&query.body)
        && query
            .with
            .as_ref()
            .is_none_or(|with| with.cte_tables.iter().all(|cte| query_reads(&cte.query)))
}

/// Whether a statement is curators' decisions and nothing else, as its sender wrote it:
/// `SELECT telesto_approve(7)`, of changes that are named or that wait. Nothing that somebody else
/// has stored takes part in it: no table or view but the list of what waits, no default, no policy.
#[must_use]
pub fn decides_alone(statement: &Statement) -> bool {
    let Statement::Query(query) = statement else { return false };
    let SetExpr::Select(select) = &*query.body else { return false };
    let foreign = visit_relations(query, |name: &ObjectName| {
        let last = name.0.last().and_then(|part| part.as_ident());
        match last.is_some_and(|last| last.value.eq_ignore_ascii_case("telesto_pending")) {
            true => ControlFlow::Continue(()),
            false => ControlFlow::Break(()),
        }
    });
    let alone = query.with.is_none() && query.locks.is_empty() && foreign.is_continue();
    alone && !select.projection.is_empty() && select.projection.iter().all(decides)
}

/// Whether a column of a select list is a curator's decision, which writes.
fn decides(item: &SelectItem) -> bool {
    let (SelectItem::UnnamedExpr(expr) | SelectItem::ExprWithAlias { expr, .. }) = item else {
        return false;
    };
    let Expr::Function(call) = expr else { return false };
    let name = call.name.0.last().and_then(|part| part.as_ident());
    name.is_some_and(|name| {
        ["telesto_approve", "telesto_reject"]
            .iter()
            .any(|known| name.value.eq_ignore_ascii_case(known))
    })
}

/// The EXECUTE that a statement is, or explains.
pub fn executes(statement: &Statement) -> Option<&Statement> {
    match statement {
        Statement::Execute { .. } => Some(statement),
        Statement::Explain { statement, .. } => {
            matches!(**statement, Statement::Execute { .. }).then_some(statement)
        }
        _ => None,
    }
}

/// Refuses what cannot be prepared: PREPARE takes queries and what writes rows.
///
/// # Errors
/// 42601.
pub fn check_prepared(statement: &Statement) -> Result<()> {
    let Statement::Prepare { statement, .. } = statement else { return Ok(()) };
    if is_plain(statement) {
        return Ok(());
    }
    let text = statement.to_string();
    let word = text.split_whitespace().next().unwrap_or_default().to_lowercase();
    Err(Error::syntax(format!("syntax error at or near \"{word}\"")))
}

/// Whether a query computes from nothing but its own words.
pub fn reads_nothing(statement: &Statement) -> bool {
    let Statement::Query(query) = statement else { return false };
    matches!(&*query.body, SetExpr::Select(select) if select.from.is_empty())
        && query.with.is_none()
        && statement.to_string().matches("SELECT").count() == 1
}

/// Whether a statement only tries for an advisory lock: what it says does not rest on the snapshot.
pub fn only_tries_a_lock(statement: &Statement) -> bool {
    let Statement::Query(query) = statement else { return false };
    let SetExpr::Select(select) = &*query.body else { return false };
    let [SelectItem::UnnamedExpr(expr) | SelectItem::ExprWithAlias { expr, .. }] =
        &select.projection[..]
    else {
        return false;
    };
    let Expr::Function(call) = expr else { return false };
    let name = call.name.0.last().and_then(|part| part.as_ident());
    // An object's name as the key is looked up in the catalog.
    let named = expr.to_string().to_ascii_lowercase().contains("reg");
    let tries = name.is_some_and(|name| name.value.to_lowercase().starts_with("pg_try_advisory"));
    tries && !named && reads_nothing(statement)
}

/// Whether a statement is a query or a write: nothing the session does itself.
pub fn is_plain(statement: &Statement) -> bool {
    matches!(
        statement,
        Statement::Query(_)
            | Statement::Insert(_)
            | Statement::Update(_)
            | Statement::Delete(_)
            | Statement::Merge(_)
    )
}

/// Whether a statement goes to the planners.
pub fn is_planned(statement: &Statement) -> bool {
    match statement {
        Statement::Query(query) => {
            !matches!(&*query.body, SetExpr::Select(select) if select.into.is_some())
        }
        Statement::Insert(_)
        | Statement::Update(_)
        | Statement::Delete(_)
        | Statement::Merge(_)
        | Statement::Explain { .. }
        | Statement::Analyze(_)
        | Statement::Copy { .. } => true,
        _ => false,
    }
}
