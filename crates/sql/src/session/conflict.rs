//! Conflicts in the user's words: which transaction, which row; and errors that are told only if
//! they hold at the log's tail.
//!
//! # Errors and freshness
//! A read-write transaction may begin with what its process has applied: what it reads is validated
//! when it commits. An error ends it without a commit, so the error itself has to be validated, or
//! it could deny what was acknowledged elsewhere before (a table that exists, a row that is gone).
//! [`Session::confirmed`] asks the transaction whether all it has read still holds; if not, the
//! error becomes the conflict, and the statement is executed again like after any other.
//!
//! # Limits
//! On a log with its sequencer in this process that costs nothing; otherwise one look at the tail,
//! shared by all who wait for one. A result that was already being streamed is not executed again:
//! the client gets 40001 in the error's stead.

use std::time::Duration;

use telesto_common::key::{Direction, KeyRange, KeyReader};
use telesto_common::{DatabaseId, TxnId};

use super::Session;
use crate::catalog::{CatalogSnapshot, Index, Table};
use crate::codec::read_index_key;
use crate::error::{Conflict, Error, Result, SqlState};
use crate::types::TextStyle;
use telesto_sql_catalog::store::{DEFAULT_DATABASE_ID, header_key};
use telesto_sql_catalog::{Actor, Guarded, IndexColumn, Rights};
use telesto_sql_plan::row_security;
use telesto_txn::Level;

/// Repetitions that do not wait.
const AT_ONCE: u32 = 3;

/// Errors that say nothing about the database's content.
pub(super) fn says_nothing(error: &Error) -> bool {
    let code = error.code();
    // Syntax aside, these are of the connection, the system, resources, the operator or a conflict.
    code == SqlState::SYNTAX_ERROR
        || ["08", "40", "53", "54", "57", "58", "XX"].iter().any(|class| code.0.starts_with(class))
}

/// Whether the error says that something is not defined.
fn is_of_definitions(error: &Error) -> bool {
    let missing = [
        SqlState::UNDEFINED_TABLE,
        SqlState::UNDEFINED_COLUMN,
        SqlState::UNDEFINED_OBJECT,
        SqlState::UNDEFINED_FUNCTION,
        SqlState::INVALID_SCHEMA_NAME,
    ];
    error.conflict().is_none() && missing.contains(&error.code())
}

/// Whether another transaction was in the way.
fn is_conflict(error: &Error) -> bool {
    let code = error.code();
    code == SqlState::SERIALIZATION_FAILURE || code == SqlState::DEADLOCK_DETECTED
}

impl Session {
    /// Waits a little, so that two transactions do not meet again and again. The first tries follow
    /// at once: whoever was in the way has committed.
    pub(super) async fn pause(&mut self, attempt: u32) {
        self.lost = self.lost.saturating_add(1);
        self.spending.conflicted();
        self.rest(attempt).await;
    }

    /// The wait of [`Session::pause`], for work that is no transaction of the session's.
    pub(super) async fn rest(&self, attempt: u32) {
        if attempt <= AT_ONCE {
            return;
        }
        let bound = Duration::from_micros(500 << attempt.min(6));
        self.engine.env.clock.sleep(self.engine.env.jitter(bound)).await;
    }

    /// Counts a statement or commit that failed for the account of the statement.
    pub(super) fn counts_failure<T>(&self, result: &Result<T>) {
        if let Err(error) = result {
            self.spending.failed(is_conflict(error));
        }
    }

    /// `error`, if what its transaction has read holds at the log's tail; else the conflict that
    /// makes it void. When that cannot be found out, the reason.
    pub(super) async fn confirmed(&self, error: Error) -> Error {
        let txn = self.block.as_ref().and_then(|block| block.txn.as_ref());
        match txn {
            Some(txn) if !says_nothing(&error) => match txn.confirm().await {
                Ok(()) => error,
                Err(changed) => changed.into(),
            },
            _ => error,
        }
    }

    /// [`Session::confirmed`], and [`Session::of_the_past`].
    pub(super) async fn confirmed_now(&self, error: Error) -> Error {
        let error = self.confirmed(error).await;
        self.of_the_past(error).await
    }

    /// `error`, or a conflict in its place where it says that a definition does not have what is
    /// asked for, and definitions have changed since the block's snapshot: at the levels with one
    /// snapshot a block does not see what others have made since, and who executes it again finds
    /// it. PostgreSQL's catalog is no part of the snapshot.
    async fn of_the_past(&self, error: Error) -> Error {
        // One that was said to only read keeps its snapshot: what it has told so far is not kept to
        // be compared.
        let block = self.block.as_ref().filter(|block| {
            let options = &block.options;
            matches!(options.level, Level::Serializable | Level::Snapshot)
                && options.as_of.is_none()
                && !(options.read_only && block.explicit)
        });
        let Some(txn) = block.and_then(|block| block.txn.as_ref()) else { return error };
        if !is_of_definitions(&error) {
            return error;
        }
        let headers = header_key(DEFAULT_DATABASE_ID);
        match txn.untouched(&[KeyRange::point(&headers)]).await {
            Err(changed @ telesto_txn::Error::Conflict { .. }) => changed.into(),
            // What cannot be found out changes nothing.
            Ok(()) | Err(_) => error,
        }
    }

    /// Told by the server of an error that came out of a result's rows, and fails as
    /// [`Session::fail`]; gives the error to tell the client.
    pub async fn fail_with(&mut self, error: Error) -> Error {
        let told = self.fail_told(error).await;
        self.spending.failed(is_conflict(&told));
        told
    }

    /// [`Session::fail_with`], of a statement that counts its failure itself.
    pub(super) async fn fail_told(&mut self, error: Error) -> Error {
        let confirmed = self.confirmed(error).await;
        let told = self.explain_conflict(confirmed);
        self.fail();
        told
    }

    /// Adds to a conflict's error the other transaction and the row; other errors pass unchanged.
    pub(super) fn explain_conflict(&self, error: Error) -> Error {
        if let (Some((key, there)), Some(catalog)) = (&error.fields().unexpected, &self.catalog) {
            return broken(&self.told_from(catalog), key, *there).unwrap_or(error);
        }
        let Some(conflict) = error.conflict().cloned() else { return error };
        let place = self
            .catalog
            .as_ref()
            .and_then(|catalog| describe_key(&self.told_from(catalog), &conflict.key))
            .unwrap_or_else(|| "the catalog or a key that is no table's".to_owned());
        let mut error = error.detail(told_of(&conflict, &place));
        if let Some(catalog) = &self.catalog
            && let Some(table) = table_of(catalog, &conflict.key)
        {
            error = error.table(catalog.schema_name(table.schema), table.name.clone());
        }
        error
    }

    fn told_from<'a>(&self, catalog: &'a CatalogSnapshot) -> Told<'a> {
        Told { catalog, actor: catalog.actor(self.settings.current_role) }
    }
}

/// What a conflict on what is called `place` is, for the client.
fn told_of(conflict: &Conflict, place: &str) -> String {
    if conflict.refused {
        return format!(
            "What transaction {} adds to {place} was refused at its commit.",
            conflict.txn
        );
    }
    // Where definitions or another region tell of a conflict, they may not say whose change it was.
    let other = match conflict.other {
        TxnId(0) => "Another transaction".to_owned(),
        other => format!("Transaction {other}"),
    };
    let own = conflict.txn;
    format!("{other} committed a change of {place} after transaction {own} had read or written it.")
}

/// Whom is told of a key: values that the role could not have read are left out.
struct Told<'a> {
    catalog: &'a CatalogSnapshot,
    actor: Actor,
}

impl Told<'_> {
    fn may_see(&self, table: &Table, index: Option<&Index>) -> bool {
        if row_security::applies(table, self.catalog, &self.actor) {
            return false;
        }
        let whole = Guarded::table(table).rights_of(&self.actor).has(Rights::SELECT);
        let column = |column: &IndexColumn| {
            column.expression.is_none()
                && self.catalog.column_rights(&self.actor, table, column.column).has(Rights::SELECT)
        };
        whole || index.is_some_and(|index| index.columns.iter().all(column))
    }

    /// `(id)=(5)`; within, nothing where the role could not have read it. `None`: the key does not
    /// read as the index's.
    fn shown(
        &self,
        reader: &mut KeyReader<'_>,
        table: &Table,
        index: &Index,
    ) -> Option<Option<String>> {
        let key = key_of(reader, table, index)?;
        Some(self.may_see(table, Some(index)).then_some(key))
    }
}

/// The constraint that another region has found broken, in PostgreSQL's words.
fn broken(told: &Told<'_>, key: &[u8], there: bool) -> Option<Error> {
    let catalog = told.catalog;
    let mut reader = KeyReader::new(key);
    let (_, _, index) = reader.prefix().ok()?;
    let table = table_of(catalog, key)?;
    let index = table.index(index)?;
    let named = told.shown(&mut reader, table, index)?;
    let schema = catalog.schema_name(table.schema);
    if !there {
        let message = format!("duplicate key value violates unique constraint \"{}\"", index.name);
        let error = Error::new(SqlState::UNIQUE_VIOLATION, message)
            .detail_of(named.map(|key| format!("Key {key} already exists.")))
            .table(schema, table.name.clone())
            .constraint(&index.name);
        return Some(error);
    }
    // Which of its rows asked for it is not told; mostly one constraint could have.
    let mut asking = catalog.referencing(table.id).iter();
    let violated = match (asking.next(), asking.next()) {
        (Some((child, constraint)), None) => {
            let child = catalog.table(*child).map_or("?", |child| child.name.as_str());
            format!("table \"{child}\" violates foreign key constraint \"{}\"", constraint.name)
        }
        _ => format!("a table violates a foreign key that references table \"{}\"", table.name),
    };
    let error =
        Error::new(SqlState::FOREIGN_KEY_VIOLATION, format!("insert or update on {violated}"));
    let key = named.map_or_else(|| "Key".to_owned(), |key| format!("Key {key}"));
    Some(error.detail(format!("{key} is not present in table \"{}\".", table.name)))
}

fn table_of<'a>(catalog: &'a CatalogSnapshot, key: &[u8]) -> Option<&'a Table> {
    let (database, storage, _) = KeyReader::new(key).prefix().ok()?;
    (database == catalog.database)
        .then(|| catalog.tables().find(|table| table.storage == storage))?
        .map(|table| &**table)
}

/// `table "t", row (id)=(5)`.
fn describe_key(told: &Told<'_>, key: &[u8]) -> Option<String> {
    let catalog = told.catalog;
    let mut reader = KeyReader::new(key);
    let (database, _, index) = reader.prefix().ok()?;
    if database == DatabaseId(0) {
        return Some("the catalog (a table definition or a sequence)".to_owned());
    }
    let table = table_of(catalog, key)?;
    let name = format!("table \"{}\"", table.name);
    let Some(index) = table.index(index) else {
        return Some(match reader.i64(Direction::Ascending) {
            Ok(row) if told.may_see(table, None) => format!("{name}, row number {row}"),
            _ => name,
        });
    };
    // What does not read as the table is now was written when it was another: the table is told all
    // the same.
    Some(match told.shown(&mut reader, table, index).flatten() {
        Some(key) => format!("{name}, row {key}"),
        None => name,
    })
}

/// `(id)=(5)`.
fn key_of(reader: &mut KeyReader<'_>, table: &Table, index: &Index) -> Option<String> {
    let mut names = Vec::new();
    let mut values = Vec::new();
    for column in &index.columns {
        let ty = column.ty(table);
        let value = read_index_key(reader, table, column).ok()?;
        names.push(match &column.expression {
            Some(expression) => expression.sql.as_str(),
            None => table.columns[column.column].name.as_str(),
        });
        values.push(if value.is_null() {
            "null".to_owned()
        } else {
            value.to_text(ty, &TextStyle::default())
        });
    }
    Some(format!("({})=({})", names.join(", "), values.join(", ")))
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;

    #[test]
    fn transaction_that_nobody_knows_is_not_named() {
        let told = |other, refused| {
            let key = Bytes::from_static(b"k");
            told_of(&Conflict { txn: TxnId(1), other, key, refused }, "t")
        };
        let own = TxnId(1);
        assert_eq!(
            told(TxnId(0), false),
            format!(
                "Another transaction committed a change of t after transaction {own} had read or written it."
            )
        );
        assert!(told(TxnId(2), false).starts_with(&format!("Transaction {} committed", TxnId(2))));
        assert!(told(own, true).ends_with("was refused at its commit."));
    }
}
