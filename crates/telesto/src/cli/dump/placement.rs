//! Where the tables of a database of several regions are: as statements at a dump's end.
//!
//! # Invariants
//! - They come last: definitions that have to see all rows are made while every region has them.
//! - A dump says when placement is not in it, in its text and to who makes it.
//!
//! # On failure
//! One line saying what could not be read.
//!
//! # Limits
//! Regions are named. A database that is to take the placement has regions of these names; PostgreSQL takes none.

use tokio_postgres::Client;

use super::Out;
use super::catalog::{Name, ask, cell};
use super::write::literal;

/// The statement that places each table as it is placed, for those that are placed in another way than a new table is.
///
/// # Errors
/// What cannot be read.
pub(super) async fn read(client: &Client) -> Result<Vec<String>, String> {
    let known = "SELECT 1 FROM pg_catalog.pg_class WHERE relname = 'telesto_placement'";
    if ask(client, known).await?.is_empty() {
        return Ok(Vec::new());
    }
    let first = "SELECT name FROM pg_catalog.telesto_regions WHERE defines";
    let first = ask(client, first).await?.first().map(|row| cell(row, 0)).unwrap_or_default();
    let placed = "SELECT schema_name, table_name, regions, home, counters, max_columns, min_columns \
         FROM pg_catalog.telesto_placement ORDER BY 1, 2";
    let mut statements = Vec::new();
    for row in ask(client, placed).await? {
        let mut set = Vec::new();
        let (regions, home) = (cell(&row, 2), cell(&row, 3));
        if regions != "all" {
            set.push(("regions", regions));
        }
        if home != first && home != "by row" {
            set.push(("home", home));
        }
        for (at, name) in [(4, "counter"), (5, "max"), (6, "min")] {
            if row.get(at).is_some_and(Option::is_some) {
                set.push((name, cell(&row, at)));
            }
        }
        if set.is_empty() {
            continue;
        }
        let set: Vec<String> = set
            .iter()
            .map(|(name, value)| format!("telesto.{name} = {}", literal(value)))
            .collect();
        let table = Name(cell(&row, 0), cell(&row, 1));
        statements.push(format!("ALTER TABLE {} SET ({});", table.sql(), set.join(", ")));
    }
    Ok(statements)
}

/// Writes them, or that they are not written.
///
/// # Errors
/// As [`Out::bytes`].
pub(super) fn write(statements: &[String], asked: bool, out: &mut Out) -> Result<(), String> {
    if statements.is_empty() {
        return Ok(());
    }
    if !asked {
        let note = format!(
            "where {} tables are placed among regions is not in this dump; telesto dump --placement writes it",
            statements.len()
        );
        eprintln!("{note}");
        return out.line(&format!("-- {note}\n"));
    }
    for statement in statements {
        out.line(statement)?;
    }
    out.line("")
}
