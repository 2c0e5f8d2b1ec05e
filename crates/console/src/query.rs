//! What the console asks the database: SQL as the visitor's role, read-only, and its rows as text.
//!
//! # Purpose
//! The only way by which a page gets data.
//!
//! # Invariants
//! - [`Reader`] never writes: its asks are confined to reading by the session layer.
//! - Names and values that come from a request go into SQL through `quote_ident` and
//!   `quote_literal` only.
//! - Each [`Table`] keeps the SQL it came from, so that a page can show it.
//!
//! # On failure
//! [`Problem`], with the SQL error as it is.
//!
//! # Limits
//! [`limits::PAGE_TIME`], [`limits::ROWS`], [`limits::BYTES`].

use std::net::SocketAddr;
use std::sync::Arc;

use serde::Serialize;
use telesto_server::Inside;
use telesto_server::inside::{Answer, Answered, Ask};
pub use telesto_sql::types::identifier::{quote_ident, quote_literal};
use tokio_util::sync::CancellationToken;

use crate::error::Problem;
use crate::limits;
use crate::routes::Console;
use crate::turns::Turns;

/// What `pg_stat_activity` shows for what pages ask.
pub const APPLICATION: &str = "telesto console";

/// A column of a result.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Column {
    pub name: String,
    #[serde(rename = "type")]
    pub kind: String,
    /// Shown to the right.
    #[serde(skip)]
    pub number: bool,
}

/// Rows, and where they come from.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Table {
    pub sql: String,
    pub columns: Vec<Column>,
    pub rows: Vec<Vec<Option<String>>>,
    /// There are more rows than these.
    pub cut: bool,
}

impl Table {
    pub fn of(answered: Answered, sql: &str) -> Self {
        let columns = answered.columns.into_iter().map(|(name, ty)| {
            let kind = ty.to_string();
            let numbers =
                ["smallint", "integer", "bigint", "numeric", "real", "double precision", "oid"];
            let number =
                numbers.iter().any(|number| kind.starts_with(number)) && !kind.ends_with("[]");
            Column { name, kind, number }
        });
        Self {
            sql: sql.to_owned(),
            columns: columns.collect(),
            rows: answered.rows,
            cut: answered.cut,
        }
    }

    fn place(&self, column: &str) -> Option<usize> {
        self.columns.iter().position(|own| own.name == column)
    }

    /// The value of `column` in a row; `None` for NULL and for a column that is not there.
    pub fn get<'a>(&'a self, row: &'a [Option<String>], column: &str) -> Option<&'a str> {
        row.get(self.place(column)?)?.as_deref()
    }

    /// The values of a column, NULL as an empty text.
    pub fn texts(&self, column: &str) -> Vec<String> {
        let Some(at) = self.place(column) else { return Vec::new() };
        self.rows.iter().map(|row| row.get(at).cloned().flatten().unwrap_or_default()).collect()
    }

    /// The value of `column` in the first row.
    pub fn first(&self, column: &str) -> Option<&str> {
        self.get(self.rows.first()?, column)
    }

    /// The same as a number.
    pub fn number(&self, column: &str) -> Option<f64> {
        self.first(column)?.parse().ok().filter(|number: &f64| number.is_finite())
    }
}

/// Reads as one role.
#[derive(Clone, Debug)]
pub struct Reader {
    inside: Inside,
    turns: Arc<Turns>,
    pub user: String,
    role: Option<u32>,
    client: SocketAddr,
}

impl Reader {
    /// As `user`, and where passwords are asked for as `role` alone: see [`Ask::role`].
    pub fn new(console: &Console, user: &str, role: Option<u32>, client: SocketAddr) -> Self {
        let (inside, turns) = (console.inside.clone(), Arc::clone(&console.turns));
        Self { inside, turns, user: user.to_owned(), role, client }
    }

    /// The rows of one query.
    pub async fn table(&self, sql: &str) -> Result<Table, Problem> {
        self.some(sql, limits::ROWS).await
    }

    /// The first rows of one query.
    pub async fn some(&self, sql: &str, max_rows: usize) -> Result<Table, Problem> {
        let ask = Ask {
            user: self.user.clone(),
            role: self.role,
            client: self.client,
            application: APPLICATION,
            sql: sql.to_owned(),
            may_write: false,
            timeout: limits::PAGE_TIME,
            max_rows,
            max_bytes: limits::BYTES,
            cancel: CancellationToken::new(),
        };
        let turn = self.turns.next(&self.user).await?;
        let Answer { results, error, .. } = self.inside.run(ask).await?;
        drop(turn);
        match error {
            Some(error) => Err(Problem::from(&error)),
            None => Ok(Table::of(results.into_iter().next_back().unwrap_or_default(), sql)),
        }
    }

    /// Those of `names` that are relations this role can name.
    pub async fn relations(&self, names: &[&str]) -> Result<Vec<String>, Problem> {
        let wanted = names.iter().map(|name| quote_literal(name)).collect::<Vec<_>>().join(", ");
        let sql = format!(
            "SELECT c.relname FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace \
             WHERE n.nspname IN ('pg_catalog', 'public') AND c.relname IN ({wanted})"
        );
        Ok(self.table(&sql).await?.texts("relname"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn literals_and_names_cannot_end_early() {
        assert_eq!(quote_literal("a'; DROP TABLE x; --"), "'a''; DROP TABLE x; --'");
        assert_eq!(quote_literal(r"a\' b"), r"E'a\\'' b'");
        assert_eq!(quote_ident("a\"; DROP"), "\"a\"\"; DROP\"");
    }
}
