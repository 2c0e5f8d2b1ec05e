//! What tables, indexes and the database take: `pg_relation_size` and its kin, and the rows of
//! `telesto_space`.
//!
//! # Invariants
//! - Measured once a statement: all its numbers are of one moment.
//! - A table is its primary key: the rows are counted there, and an index that is the primary key
//!   takes nothing beside them.
//! - Every version that is still kept counts, and what was committed after the checkpoint.
//!
//! # On failure
//! The database's errors. An OID that names no relation gives NULL, as in PostgreSQL.
//!
//! # Limits
//! Bytes of the checkpoint are those of stored blocks, without what the bucket holds beside them
//! (`telesto_storage`): parts, the log, tables that a compaction has replaced. Temporary tables are
//! in no bucket: theirs is 0. A sequence is one key of the catalog.

use telesto_common::TableId;
use telesto_common::key::KeyWriter;
use telesto_sql_catalog::codec::index_prefix;
use telesto_sql_catalog::{CatalogSnapshot, DEFAULT_DATABASE_ID, Table};
use telesto_sql_expr::context::Call;
use telesto_sql_expr::registry::{Function, function};
use telesto_sql_expr::ty::Tag::{Int8, Name, Numeric, Oid, Reg, Text};
use telesto_sql_plan::SessionView;
use telesto_sql_types::error::{Error, Result, SqlState};
use telesto_sql_types::{Datum, numeric};
use telesto_txn::{IndexPrefix, IndexSpace, Space};

use super::live::closed;
use super::objects::DATABASE_OID;
use super::rows::RowSet;

/// The functions of this module.
pub const TABLE: &[Function] = &[
    function("pg_relation_size", &[Reg], Int8, |a, c| sized(a, c, rows_or_index)).measuring(),
    function("pg_relation_size", &[Reg, Text], Int8, fork_size).measuring(),
    function("pg_table_size", &[Reg], Int8, |a, c| sized(a, c, rows_or_index)).measuring(),
    function("pg_indexes_size", &[Reg], Int8, |a, c| sized(a, c, indexes)).measuring(),
    function("pg_total_relation_size", &[Reg], Int8, |a, c| {
        sized(a, c, |space, relation| rows_or_index(space, relation) + indexes(space, relation))
    })
    .measuring(),
    function("pg_database_size", &[Name], Int8, database_named).measuring(),
    function("pg_database_size", &[Oid], Int8, |a, c| match oid_of(&a[0]) == DATABASE_OID {
        true => Ok(bytes(whole(&*c.context.space()?))),
        false => Ok(Datum::Null),
    })
    .measuring(),
    function("pg_size_pretty", &[Int8], Text, |a, _| {
        Ok(Datum::text(pretty(i128::from(a[0].as_i64().unwrap_or(0)))))
    }),
    function("pg_size_pretty", &[Numeric], Text, |a, _| pretty_numeric(&a[0])),
];

/// A relation that may take space.
enum Relation<'a> {
    Table(&'a Table),
    /// A secondary index of a table.
    Index(&'a Table, u32),
    /// A view, a sequence, a primary key: nothing beside what is counted elsewhere.
    Nothing,
}

fn oid_of(value: &Datum) -> u32 {
    value.as_i64().and_then(|oid| u32::try_from(oid).ok()).unwrap_or(0)
}

fn bytes(number: u64) -> Datum {
    Datum::Int8(i64::try_from(number).unwrap_or(i64::MAX))
}

fn relation(catalog: &CatalogSnapshot, oid: u32) -> Option<Relation<'_>> {
    if let Some(table) = catalog.table(TableId(oid)) {
        return Some(Relation::Table(table));
    }
    for table in catalog.tables() {
        if let Some(index) = table.known_indexes().find(|index| index.oid == oid) {
            return Some(match index.id {
                0 => Relation::Nothing,
                id => Relation::Index(table, id),
            });
        }
    }
    let other = catalog.views().any(|view| view.oid == oid)
        || catalog.sequences().any(|sequence| sequence.oid == oid)
        || super::all().any(|system| system.oid == oid);
    other.then_some(Relation::Nothing)
}

/// What `measure` makes of the relation that the first argument names.
fn sized(
    args: &[Datum],
    call: &Call<'_>,
    measure: impl Fn(&Space, &Relation<'_>) -> u64,
) -> Result<Datum> {
    let Some(relation) = relation(call.context.catalog, oid_of(&args[0])) else {
        return Ok(Datum::Null);
    };
    Ok(bytes(measure(&*call.context.space()?, &relation)))
}

fn prefix(table: &Table, index: u32) -> Option<IndexPrefix> {
    let prefix = index_prefix(DEFAULT_DATABASE_ID, table, index);
    prefix.as_slice().try_into().ok()
}

fn all(space: IndexSpace) -> u64 {
    space.newest_bytes + space.history_bytes + space.tail_bytes
}

fn taken(space: &Space, table: &Table, index: u32) -> IndexSpace {
    let prefix = prefix(table, index);
    prefix.and_then(|prefix| space.indexes.get(&prefix)).copied().unwrap_or_default()
}

fn rows_or_index(space: &Space, relation: &Relation<'_>) -> u64 {
    match relation {
        Relation::Table(table) => all(taken(space, table, 0)),
        Relation::Index(table, id) => all(taken(space, table, *id)),
        Relation::Nothing => 0,
    }
}

fn indexes(space: &Space, relation: &Relation<'_>) -> u64 {
    let Relation::Table(table) = relation else { return 0 };
    let secondary = table.known_indexes().filter(|index| index.id != 0);
    secondary.map(|index| all(taken(space, table, index.id))).sum()
}

/// Everything there is, the catalog's own keys too.
fn whole(space: &Space) -> u64 {
    space.indexes.values().copied().map(all).sum::<u64>() + space.other_bytes
}

/// The size of a fork: there is one.
fn fork_size(args: &[Datum], call: &Call<'_>) -> Result<Datum> {
    match args[1].as_str() {
        Some("main") => sized(args, call, rows_or_index),
        Some("fsm" | "vm" | "init") => sized(args, call, |_, _| 0),
        _ => Err(Error::new(SqlState::INVALID_PARAMETER_VALUE, "invalid fork name")
            .hint("Valid fork names are \"main\", \"fsm\", \"vm\", and \"init\".")),
    }
}

fn database_named(args: &[Datum], call: &Call<'_>) -> Result<Datum> {
    let name = args[0].as_str().unwrap_or_default();
    if name != call.context.settings.database {
        return Err(Error::new(
            SqlState::INVALID_CATALOG_NAME,
            format!("database \"{name}\" does not exist"),
        ));
    }
    Ok(bytes(whole(&*call.context.space()?)))
}

/// Units and the bits by which each is larger than bytes.
const UNITS: [(&str, u32); 6] =
    [("bytes", 0), ("kB", 10), ("MB", 20), ("GB", 30), ("TB", 40), ("PB", 50)];

/// As PostgreSQL shows it: in bytes below 10 kB, else in the first unit with less than 10 of the
/// next, rounded half away from zero.
fn pretty(bytes: i128) -> String {
    if bytes.abs() < 10 * 1024 {
        return format!("{bytes} bytes");
    }
    let mut shown = String::new();
    for (unit, bits) in &UNITS[1..] {
        // Twice as much, so that the half is not lost.
        let twice = bytes / (1 << (bits - 1));
        let rounded = (twice + twice.signum()) / 2;
        shown = format!("{rounded} {unit}");
        if twice.abs() < 20 * 1024 - 1 {
            break;
        }
    }
    shown
}

fn pretty_numeric(value: &Datum) -> Result<Datum> {
    let Datum::Numeric(number) = value else { return Ok(Datum::Null) };
    if !number.is_finite() {
        return Ok(Datum::text(format!("{number} bytes")));
    }
    let small = numeric::Numeric::new(10 * 1024, 0);
    if number.abs().sub(&small).signum() == Some(-1) {
        return Ok(Datum::text(format!("{number} bytes")));
    }
    let whole: Option<i128> = number.truncated(0).to_string().parse().ok();
    let whole = whole.ok_or_else(|| {
        Error::new(SqlState::NUMERIC_OUT_OF_RANGE, "the size is too large to be shown")
            .hint("Divide it, and show the quotient.")
    })?;
    Ok(Datum::text(pretty(whole)))
}

/// Fills `telesto_space`.
pub(super) async fn fill(
    out: &mut RowSet<'_>,
    catalog: &CatalogSnapshot,
    live: &SessionView,
) -> Result<()> {
    let Some(database) = &live.database else { return Ok(()) };
    let mut space = database.space().await?;
    let oldest = closed(space.oldest_readable);
    let mut show = |relation: (Option<u32>, &str, &str, &str), taken: IndexSpace| {
        let (oid, schema, name, kind) = relation;
        out.row()
            .set("relid", oid.map_or(Datum::Null, Datum::Oid))
            .set("schema_name", schema)
            .set("name", name)
            .set("kind", kind)
            .set("bytes", bytes(all(taken)))
            .set("newest_bytes", bytes(taken.newest_bytes))
            .set("history_bytes", bytes(taken.history_bytes))
            .set("tail_bytes", bytes(taken.tail_bytes))
            .set("history_since", oldest.clone());
    };
    for table in catalog.tables() {
        let schema = catalog.schema_name(table.schema);
        let mut take = |index| {
            let prefix = prefix(table, index);
            prefix.and_then(|prefix| space.indexes.remove(&prefix)).unwrap_or_default()
        };
        show((Some(table.id.0), schema, &table.name, "table"), take(0));
        for index in table.known_indexes().filter(|index| index.id != 0) {
            show((Some(index.oid), schema, &index.name, "index"), take(index.id));
        }
    }
    let ours = KeyWriter::prefix(DEFAULT_DATABASE_ID, TableId(0), 0).finish();
    let (mut own, mut dropped) = (IndexSpace::default(), IndexSpace::default());
    for (prefix, taken) in &space.indexes {
        let sum = if prefix[..4] == ours[..4] { &mut dropped } else { &mut own };
        sum.newest_bytes += taken.newest_bytes;
        sum.history_bytes += taken.history_bytes;
        sum.tail_bytes += taken.tail_bytes;
    }
    own.newest_bytes += space.other_bytes;
    show((None, "", "", "catalog"), own);
    show((None, "", "", "dropped"), dropped);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_shown_as_postgresql_does() {
        for (bytes, shown) in [
            (0, "0 bytes"),
            (10_239, "10239 bytes"),
            (-10_240, "-10 kB"),
            (10_240, "10 kB"),
            (10_751, "10 kB"),
            (10_752, "11 kB"),
            (10_485_247, "10239 kB"),
            (10_485_248, "10 MB"),
            (1_000_000_000_000, "931 GB"),
            (i128::from(i64::MAX), "8192 PB"),
        ] {
            assert_eq!(pretty(bytes), shown, "{bytes}");
        }
    }
}
