//! Where the tables of a database of several regions are: as statements at a dump's end.
//!
//! # Invariants
//! - They come last: definitions that have to see all rows are made while every region has them.
//! - A table's home is said also where it is the one that new tables have: that is another one in a
//!   database that another region defines.
//! - A dump says when placement is not in it, in its text and to who makes it.
//!
//! # On failure
//! One line saying what could not be read.
//!
//! # Limits
//! Regions are named. A database that is to take the placement has regions of these names;
//! PostgreSQL takes none.

use tokio_postgres::Client;

use super::Out;
use super::catalog::{Name, Row, ask, cell};
use super::write::literal;

/// How a table is placed.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Placed {
    /// Places it so. Its home is named in any case: where a dump is restored, another region may be
    /// the one that new tables have.
    statement: String,
    /// As a new table is, here.
    usual: bool,
}

/// How each table is placed.
///
/// # Errors
/// What cannot be read.
pub(super) async fn read(client: &Client) -> Result<Vec<Placed>, String> {
    let known = "SELECT 1 FROM pg_catalog.pg_class WHERE relname = 'telesto_placement'";
    if ask(client, known).await?.is_empty() {
        return Ok(Vec::new());
    }
    let first = "SELECT name FROM pg_catalog.telesto_regions WHERE defines";
    let first = ask(client, first).await?.first().map(|row| cell(row, 0)).unwrap_or_default();
    let placed = "SELECT schema_name, table_name, regions, home, counters, max_columns, min_columns \
         FROM pg_catalog.telesto_placement ORDER BY 1, 2";
    Ok(ask(client, placed).await?.iter().filter_map(|row| of_row(row, &first)).collect())
}

/// What a row of `telesto_placement` says; `first` is the home of a new table.
fn of_row(row: &Row, first: &str) -> Option<Placed> {
    let mut set = Vec::new();
    let (regions, home) = (cell(row, 2), cell(row, 3));
    if regions != "all" {
        set.push(("regions", regions));
    }
    let merging = [(4, "counter"), (5, "max"), (6, "min")];
    let merging = merging.into_iter().filter(|(at, _)| row.get(*at).is_some_and(Option::is_some));
    let merging: Vec<_> = merging.map(|(at, name)| (name, cell(row, at))).collect();
    let usual = set.is_empty() && merging.is_empty() && home == first;
    if home != "by row" {
        set.push(("home", home));
    }
    set.extend(merging);
    if set.is_empty() {
        return None;
    }
    let set: Vec<String> =
        set.iter().map(|(name, value)| format!("telesto.{name} = {}", literal(value))).collect();
    let table = Name(cell(row, 0), cell(row, 1));
    let statement = format!("ALTER TABLE {} SET ({});", table.sql(), set.join(", "));
    Some(Placed { statement, usual })
}

/// Writes them, or that they are not written.
///
/// # Errors
/// As [`Out::bytes`].
pub(super) fn write(tables: &[Placed], asked: bool, out: &mut Out) -> Result<(), String> {
    let unusual = tables.iter().filter(|table| !table.usual).count();
    if !asked {
        if unusual == 0 {
            return Ok(());
        }
        let note = format!(
            "where {unusual} tables are placed among regions is not in this dump; telesto dump --placement writes it"
        );
        eprintln!("{note}");
        return out.line(&format!("-- {note}\n"));
    }
    for table in tables {
        out.line(&table.statement)?;
    }
    if tables.is_empty() { Ok(()) } else { out.line("") }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(cells: [Option<&str>; 7]) -> Row {
        cells.map(|cell| cell.map(str::to_owned)).into()
    }

    #[test]
    fn home_is_named_also_where_it_is_that_of_new_tables() {
        let usual = row([Some("a"), Some("t"), Some("all"), Some("eu"), None, None, None]);
        let statement = "ALTER TABLE a.t SET (telesto.home = 'eu');".to_owned();
        assert_eq!(
            of_row(&usual, "eu"),
            Some(Placed { statement: statement.clone(), usual: true })
        );
        assert_eq!(of_row(&usual, "us"), Some(Placed { statement, usual: false }));
        let merging =
            row([Some("a"), Some("t"), Some("eu, us"), Some("any"), Some("n"), None, None]);
        let statement = "ALTER TABLE a.t SET (telesto.regions = 'eu, us', telesto.home = 'any', telesto.counter = 'n');";
        assert_eq!(
            of_row(&merging, "eu"),
            Some(Placed { statement: statement.to_owned(), usual: false })
        );
        let by_row = row([Some("a"), Some("t"), Some("all"), Some("by row"), None, None, None]);
        assert_eq!(of_row(&by_row, "eu"), None);
    }
}
