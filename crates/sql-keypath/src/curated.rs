//! Changes of curated tables are written: for their author to see, or by a curator for good.
//!
//! ```text
//! change (rows before -> rows after)
//!    every row is still what it was before? --no--> 55000: refused, or not shown
//!    old rows and their entries go, unique keys are looked up, new rows and their entries come
//!    for good: NOT NULL, CHECK, domains, generated columns; foreign keys without any of their actions
//! ```
//!
//! # Invariants
//! - An approval writes exactly the rows of the change, all or none of them, in the transaction of
//!   the curator's statement: no default, no cascade, nothing that the curator did not see.
//! - What is shown is written over what the transaction reads now, so that tables and indexes agree
//!   in the author's eyes.
//! - Only tables whose writes are held back are written to be shown.
//!
//! # On failure
//! 55000 says what has changed since; 23xxx is the constraint's own error. The caller undoes the
//! statement.

use std::sync::Arc;

use bytes::Bytes;
use telesto_common::TableId;
use telesto_txn::ReadFor;

use super::read::get_many;
use super::write::Statement;
use telesto_sql_catalog::codec;
use telesto_sql_catalog::curated::{self, Decided, Waiting, WaitingTable, differ_in_key, shape};
use telesto_sql_catalog::rights::denied;
use telesto_sql_catalog::{Actor, ForeignKey, ForeignKeyAction};
use telesto_sql_expr::EvalContext;
use telesto_sql_plan::ExecContext;
use telesto_sql_plan::compiled_table::CompiledTable;
use telesto_sql_types::Row;
use telesto_sql_types::error::{Error, Result, SqlState};

/// A row of a change, read.
struct Replaced {
    key: Bytes,
    old: Option<Row>,
    new: Option<Row>,
}

/// Approves a change, or rejects it; the number of its rows.
///
/// # Errors
/// 25006 in a transaction that only reads; 42501 for who is no curator; 42704 and 55000 for what
/// does not wait; those of writing it.
pub async fn decide(exec: &ExecContext, id: i64, rejected: Option<Option<String>>) -> Result<i64> {
    let options = exec.txn.options();
    if options.read_only || options.as_of.is_some() {
        return Err(Error::new(
            SqlState::READ_ONLY_TRANSACTION,
            "cannot decide on a change in a read-only transaction",
        )
        .hint(
            "Write SELECT telesto_approve(id), or telesto_reject, with nothing around the call.",
        ));
    }
    // What others have stored (a default, a policy, a view) runs as whoever uses it: it shall not
    // decide in a curator's name.
    if !exec.decides {
        return Err(Error::new(
            SqlState::FEATURE_NOT_SUPPORTED,
            "telesto_approve and telesto_reject stand by themselves in the select list of a statement that reads nothing but telesto_pending",
        )
        .hint("Write SELECT telesto_approve(id), or telesto_reject, with nothing around the call."));
    }
    let (catalog, database) = (&exec.catalog, exec.catalog.database);
    let actor = catalog.actor(exec.settings.current_role);
    let Some(change) = curated::waiting(&*exec.txn, database, id).await? else {
        return Err(not_waiting(exec, id).await?);
    };
    let withdrawn = rejected.is_some() && change.author.0 == actor.oid;
    if !withdrawn && !actor.acts_as(change.curators) {
        return Err(denied(format!("permission denied to decide on change {id}")).hint(
            "Members of the role that curates its tables decide; its author may reject it.",
        ));
    }
    if rejected.is_none() {
        approve(exec, &change, &actor).await?;
    }
    let name = catalog.role(actor.oid).map(|role| role.name.clone()).unwrap_or_default();
    let tables = change.tables.iter();
    let decision = Decided {
        id,
        author: change.author.clone(),
        curators: change.curators,
        made_micros: change.made_micros,
        tables: tables
            .map(|table| (table.name.0.clone(), table.name.1.clone(), table.rows.len() as u64))
            .collect(),
        curator: (actor.oid, name),
        decided_micros: exec.statement_micros,
        approved: rejected.is_none(),
        reason: rejected.flatten(),
    };
    curated::decide(&*exec.txn, database, &decision).await?;
    Ok(i64::try_from(change.rows()).unwrap_or(i64::MAX))
}

async fn not_waiting(exec: &ExecContext, id: i64) -> Result<Error> {
    let decided = curated::decided(&*exec.txn, exec.catalog.database, id).await?;
    Ok(match decided {
        Some(decided) => {
            let what = if decided.approved { "approved" } else { "rejected" };
            Error::new(
                SqlState::OBJECT_NOT_IN_PREREQUISITE_STATE,
                format!("change {id} has been {what} already"),
            )
        }
        None => Error::new(SqlState::UNDEFINED_OBJECT, format!("there is no change {id}")),
    }
    .hint("SELECT * FROM telesto_pending shows the changes that wait."))
}

async fn approve(exec: &ExecContext, change: &Waiting, actor: &Actor) -> Result<()> {
    if exec.catalog.is_regional() {
        return Err(Error::unsupported("approving changes in a database of several regions"));
    }
    for table in &change.tables {
        let found = exec.catalog.table(TableId(table.oid));
        if let Some(role) = found.and_then(|table| table.curated)
            && !actor.acts_as(role)
        {
            return Err(denied(format!("permission denied to decide on change {}", change.id))
                .detail(format!("Table \"{}\" is curated by another role now.", table.name.1)));
        }
    }
    let context = EvalContext::executing(exec);
    let mut statement = Statement::over(exec, &context);
    write(exec, &context, &mut statement, change, true).await?;
    for lost in &mut statement.lost {
        // What follows from a key that goes was not seen by the curator: nothing may.
        lost.constraint = Arc::new(ForeignKey {
            on_delete: ForeignKeyAction::NoAction,
            on_update: ForeignKeyAction::NoAction,
            ..(*lost.constraint).clone()
        });
    }
    statement.finish().await
}

/// Writes what waits of an author into a transaction that holds writes of these tables back. A
/// change that does not fit what is there by now is left out, with all that builds on it. `undo`
/// takes back what was written since a place that it is told.
///
/// # Errors
/// Those of the transaction.
pub async fn show(
    exec: &ExecContext,
    changes: &[Waiting],
    place: impl Fn() -> usize,
    undo: impl Fn(usize),
) -> Result<()> {
    let context = EvalContext::executing(exec);
    let mut statement = Statement::over(exec, &context);
    for change in changes {
        let held = change.tables.iter().all(|table| {
            let table = exec.catalog.table(TableId(table.oid));
            table.is_some_and(|table| {
                let prefix = codec::index_prefix(exec.catalog.database, table, 0);
                exec.txn.holds_back(prefix.as_slice())
            })
        });
        if !held {
            continue;
        }
        let before = place();
        match write(exec, &context, &mut statement, change, false).await {
            Ok(()) => {}
            Err(error) if does_not_fit(&error) => undo(before),
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

fn does_not_fit(error: &Error) -> bool {
    error.code() == SqlState::OBJECT_NOT_IN_PREREQUISITE_STATE || error.code().0.starts_with("23")
}

async fn write(
    exec: &ExecContext,
    context: &EvalContext<'_>,
    statement: &mut Statement<'_>,
    change: &Waiting,
    for_good: bool,
) -> Result<()> {
    let mut all = Vec::with_capacity(change.tables.len());
    for table in &change.tables {
        let info = compiled(exec, statement, change, table)?;
        let rows = replaced(exec, context, &info, change, table).await?;
        for row in &rows {
            if let Some(old) = &row.old {
                super::row_writes::remove_row(&info, &row.key, old, exec, context).await?;
            }
        }
        all.push((info, rows));
    }
    for (info, rows) in &mut all {
        for row in rows.iter_mut() {
            if let Some(new) = &mut row.new {
                if for_good {
                    check(statement, context, info, change, new)?;
                }
                put(exec, context, info, change, &row.key, new).await?;
            }
        }
    }
    if for_good {
        for (info, rows) in &all {
            for row in rows {
                if let Some(new) = &row.new {
                    statement.need_parents(info, None, new)?;
                }
                if let Some(old) = &row.old {
                    statement.lose_keys(info, old, row.new.as_ref());
                }
            }
        }
    }
    Ok(())
}

fn refused(change: &Waiting, why: &str) -> Error {
    Error::new(
        SqlState::OBJECT_NOT_IN_PREREQUISITE_STATE,
        format!("change {} cannot be approved: {why}", change.id),
    )
    .hint(format!(
        "SELECT telesto_reject({}, 'reason') ends it; its author makes it again.",
        change.id
    ))
}

fn compiled(
    exec: &ExecContext,
    statement: &mut Statement<'_>,
    change: &Waiting,
    table: &WaitingTable,
) -> Result<Arc<CompiledTable>> {
    let (schema, name) = &table.name;
    let id = TableId(table.oid);
    let Some(now) = exec.catalog.table(id) else {
        return Err(refused(change, &format!("table \"{schema}.{name}\" has been dropped")));
    };
    let shape = shape(now)?;
    if shape != table.shape {
        let text = match differ_in_key(&shape, &table.shape) {
            true => format!("its rows of table \"{schema}.{name}\" are of another key"),
            false => format!("the columns of table \"{schema}.{name}\" have changed since"),
        };
        return Err(refused(change, &text));
    }
    statement.info(id)
}

/// The rows of a change, if all of them are still what they were.
async fn replaced(
    exec: &ExecContext,
    context: &EvalContext<'_>,
    info: &CompiledTable,
    change: &Waiting,
    table: &WaitingTable,
) -> Result<Vec<Replaced>> {
    let keys: Vec<Bytes> = table.rows.iter().map(|row| Bytes::copy_from_slice(&row.key)).collect();
    let found = get_many(exec, &keys, ReadFor::Constraint).await?;
    let mut out = Vec::with_capacity(keys.len());
    for ((row, key), found) in table.rows.iter().zip(keys).zip(found) {
        let read = |bytes: &Option<Vec<u8>>| {
            bytes.as_ref().map(|bytes| info.codec.decode(&key, bytes)).transpose()
        };
        // Bytes first: what is not there any more need not be read.
        if found.as_deref() != row.old.as_deref() {
            let shown = [&row.old, &row.new].into_iter().find_map(|row| read(row).ok().flatten());
            let which = match (&info.table.primary, shown) {
                (Some(primary), Some(row)) => info.index_told(primary, &row, context),
                _ => None,
            };
            let which = which.map_or_else(|| "a row".to_owned(), |key| format!("row {key}"));
            let what = if row.old.is_none() { "is there by now" } else { "has changed since" };
            let text = format!("{which} of table \"{}\" {what}", info.table.name);
            return Err(refused(change, &text).table(&info.schema, &info.table.name));
        }
        let own = |row: Result<Option<Row>>| {
            row.map_err(|error| match error.code() {
                SqlState::DATA_CORRUPTED => {
                    let name = &info.table.name;
                    refused(
                        change,
                        &format!("its rows of table \"{name}\" cannot be read: {error}"),
                    )
                }
                _ => error,
            })
        };
        let (old, new) = (own(read(&row.old))?, own(read(&row.new))?);
        out.push(Replaced { key, old, new });
    }
    Ok(out)
}

/// What a new row must be; a stored generated column is what it was computed to.
fn check(
    statement: &Statement<'_>,
    context: &EvalContext<'_>,
    info: &CompiledTable,
    change: &Waiting,
    row: &Row,
) -> Result<()> {
    let mut again = row.clone();
    statement.generate(info, &mut again)?;
    if !codec::same_row(&info.table, &again, row)? {
        let name = &info.table.name;
        let text = format!("a generated column of table \"{name}\" is computed otherwise by now");
        return Err(refused(change, &text));
    }
    info.check_row(row, context)
}

async fn put(
    exec: &ExecContext,
    context: &EvalContext<'_>,
    info: &CompiledTable,
    change: &Waiting,
    key: &Bytes,
    row: &Row,
) -> Result<()> {
    let table = &info.table;
    let fits = match &table.primary {
        Some(primary) => codec::primary_key(info.database, table, primary, row)? == *key,
        None => codec::table_range(info.database, table, 0).contains(key),
    };
    if !fits {
        let text = format!("table \"{}\" has been emptied or written anew since", table.name);
        return Err(refused(change, &text));
    }
    for index in &info.unique {
        let entry = if index.id == 0 {
            key.clone()
        } else {
            match info.exclusive_entry(index, row, key, context)? {
                Some((entry, _, true)) => entry,
                _ => continue,
            }
        };
        let there = get_many(exec, std::slice::from_ref(&entry), ReadFor::Constraint).await?;
        if there.into_iter().flatten().next().is_some() {
            return Err(info.duplicate(index, row, context));
        }
    }
    super::row_writes::put_row(info, key, row, exec, context).await
}
