//! Rows of what the process noticed of its own work: `telesto_activity_samples`,
//! `telesto_anomalies`, `telesto_index_advice`.
//!
//! # Invariants
//! - An index is advised when a condition read a whole table for want of it, no index there is
//!   serves that condition, and by the statistics there are it would read less.
//! - What is advised is a statement that can be run as it stands.
//!
//! # On failure
//! Nothing fails. A table that is gone has no row.
//!
//! # Limits
//! See [`telesto_sql_plan::watch`]. Of a table that nobody has analyzed it is not known how many
//! rows an index would find: `rows_wanted` is NULL. What an index costs those who write is not
//! weighed.

use telesto_common::wait::Wait;
use telesto_sql_catalog::{CatalogSnapshot, Index, Table};
use telesto_sql_plan::SessionView;
use telesto_sql_plan::estimate::Shape;
use telesto_sql_plan::watch::unindexed::{LEAST, STATEMENTS};
use telesto_sql_plan::watch::{Anomaly, Asked, Noted, Sample};
use telesto_sql_types::identifier::quote_ident;
use telesto_sql_types::{Datum, pg_micros};

use super::costs::count;
use super::rows::RowSet;

/// What looking up a row by its entry costs, in rows of a scan.
const LOOK_UP: f64 = 8.0;

/// Fills the table if it is one of these; whether it is.
pub(super) fn fill(out: &mut RowSet<'_>, catalog: &CatalogSnapshot, live: &SessionView) -> bool {
    match out.name() {
        "telesto_activity_samples" => {
            live.watch.samples.all().iter().for_each(|own| sample(out, own));
        }
        "telesto_anomalies" => {
            live.watch.anomalies.found().iter().for_each(|own| anomaly(out, own))
        }
        "telesto_index_advice" => {
            let mut advice: Vec<Advice<'_>> = advice(catalog, live.watch.unindexed.all());
            advice.sort_by_key(|own| std::cmp::Reverse(own.noted.rows));
            advice.iter().for_each(|own| advised(out, catalog, own));
        }
        _ => return false,
    }
    true
}

fn moment(micros: u64) -> Datum {
    Datum::TimestampTz(pg_micros(micros))
}

fn sample(out: &mut RowSet<'_>, own: &Sample) {
    let wait = Wait::names(own.wait);
    let text = |of: Option<&'static str>| of.map_or(Datum::Null, Datum::text);
    out.row()
        .set("at", moment(own.at_micros))
        .set("weight", Datum::Float8(own.weight))
        .set("pid", own.pid)
        .set("usename", &*own.user)
        .set("application_name", &*own.application)
        .set("state", own.state)
        .set("wait_event_type", text(wait.map(|(kind, _)| kind)))
        .set("wait_event", text(wait.map(|(_, event)| event)))
        .set("running_ms", Datum::Float8(own.running_micros as f64 / 1000.0))
        .set("query", &*own.query);
}

fn anomaly(out: &mut RowSet<'_>, own: &Anomaly) {
    let sigmas = match own.deviation > 0.0 {
        true => Datum::Float8((own.value - own.usual) / own.deviation),
        // It never varied.
        false => Datum::Null,
    };
    let row = out
        .row()
        .set("at", moment(own.at_micros))
        .set("measure", own.measure.name())
        .set("value", Datum::Float8(own.value))
        .set("usual", Datum::Float8(own.usual))
        .set("deviation", Datum::Float8(own.deviation))
        .set("sigmas", sigmas);
    match &own.statement {
        Some((id, text, calls)) => {
            row.set("queryid", *id).set("query", &**text).set("calls", count(*calls));
        }
        None => {
            row.set("queryid", Datum::Null).set("query", Datum::Null).set("calls", Datum::Null);
        }
    }
}

/// An index that would have served.
struct Advice<'c> {
    table: &'c Table,
    /// Its columns, in order.
    columns: Vec<usize>,
    noted: Noted,
    /// Rows that one scan would have found by it.
    wanted: Option<f64>,
}

fn advice(
    catalog: &CatalogSnapshot,
    noted: Vec<(telesto_common::TableId, Asked, Noted)>,
) -> Vec<Advice<'_>> {
    let mut found: Vec<(Advice<'_>, Asked)> = Vec::new();
    let mut noted: Vec<_> = noted
        .into_iter()
        .filter_map(|(id, asked, noted)| Some((catalog.table(id)?, asked, noted)))
        .filter(|(table, asked, _)| fits(table, asked) && !is_served(table, asked))
        .collect();
    // The widest first: it may serve narrower ones too.
    noted
        .sort_by_key(|(_, asked, _)| std::cmp::Reverse((asked.equal.len(), asked.range.is_some())));
    for (table, asked, noted) in noted {
        let shape = Shape::of(catalog, table);
        let wanted = shape.as_ref().map(|shape| wanted(shape, &asked));
        let read = noted.rows as f64 / noted.scans.max(1) as f64;
        if read < LEAST as f64 || wanted.is_some_and(|rows| rows * LOOK_UP >= read) {
            continue;
        }
        let wider = found.iter_mut().find(|(wide, of)| {
            let all = asked.equal.iter().all(|at| of.equal.contains(at));
            let free = wide.columns.iter().take(of.equal.len()).copied();
            wide.table.id == table.id
                && asked.range.is_none()
                && all
                // No other narrow one has set the order.
                && free.eq(ordered(shape.as_ref(), of))
        });
        if let Some((wide, of)) = wider {
            let rest = of.equal.iter().copied().filter(|at| !asked.equal.contains(at));
            wide.columns = asked.equal.iter().copied().chain(rest).chain(of.range).collect();
            wide.noted.scans += noted.scans;
            wide.noted.rows = wide.noted.rows.saturating_add(noted.rows);
            wide.noted.last_micros = wide.noted.last_micros.max(noted.last_micros);
            wide.noted.statements.extend(noted.statements);
            continue;
        }
        let columns = ordered(shape.as_ref(), &asked).chain(asked.range).collect();
        found.push((Advice { table, columns, noted, wanted }, asked));
    }
    found.into_iter().map(|(advice, _)| advice).collect()
}

/// Equal columns, those with most values first where that is known.
fn ordered<'a>(
    shape: Option<&Shape<'_>>,
    asked: &'a Asked,
) -> impl Iterator<Item = usize> + use<'a> {
    let mut equal: Vec<usize> = asked.equal.clone();
    if let Some(shape) = shape {
        equal.sort_by(|a, b| shape.distinct(*b).total_cmp(&shape.distinct(*a)));
    }
    equal.into_iter()
}

/// Rows that a condition of this form leaves, on average.
fn wanted(shape: &Shape<'_>, asked: &Asked) -> f64 {
    let equal: f64 = asked.equal.iter().map(|at| shape.equal(*at, None)).product();
    let range = asked.range.map_or(1.0, |at| shape.between(at, Some((None, true)), None));
    shape.rows() * equal * range
}

/// Whether the columns are there, and can be in an index.
fn fits(table: &Table, asked: &Asked) -> bool {
    let able = |at: &usize| {
        table.columns.get(*at).is_some_and(|column| {
            !column.dropped && telesto_sql_catalog::codec::is_key_type(&column.ty)
        })
    };
    asked.equal.iter().chain(&asked.range).all(able)
}

/// Whether an index of the table leads to what is asked for.
fn is_served(table: &Table, asked: &Asked) -> bool {
    let serves = |index: &Index| {
        let leading: Vec<usize> = table.entry_columns(index).map(|own| own.column).collect();
        let (equal, rest) = leading.split_at(leading.len().min(asked.equal.len()));
        equal.len() == asked.equal.len()
            && equal.iter().all(|at| asked.equal.contains(at))
            && asked.range.is_none_or(|range| rest.first() == Some(&range))
    };
    table.all_indexes().any(|index| index.predicate.is_none() && serves(index))
}

fn advised(out: &mut RowSet<'_>, catalog: &CatalogSnapshot, own: &Advice<'_>) {
    let schema = catalog.schema_name(own.table.schema);
    let names: Vec<&str> =
        own.columns.iter().map(|at| own.table.columns[*at].name.as_str()).collect();
    let quoted: Vec<String> = names.iter().map(|name| quote_ident(name)).collect();
    let definition = format!(
        "CREATE INDEX CONCURRENTLY ON {}.{} ({})",
        quote_ident(schema),
        quote_ident(&own.table.name),
        quoted.join(", ")
    );
    let mut queries: Vec<String> = Vec::new();
    for statement in own.noted.statements.iter().rev() {
        if queries.len() < STATEMENTS && !queries.iter().any(|known| **known == *statement.text) {
            queries.push(statement.text.to_string());
        }
    }
    out.row()
        .set("relid", own.table.id.0)
        .set("schema_name", schema)
        .set("table_name", &own.table.name)
        .set("columns", names)
        .set("scans", count(own.noted.scans))
        .set("rows_read", count(own.noted.rows))
        .set("rows_wanted", own.wanted.map_or(Datum::Null, Datum::Float8))
        .set("last_at", moment(own.noted.last_micros))
        .set("queries", queries)
        .set("definition", definition);
}
