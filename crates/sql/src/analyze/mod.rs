//! ANALYZE: gathers what is known of tables ([`telesto_sql_catalog::statistics`]).
//!
//! # Invariants
//! - A record is written in the statement's transaction: it is there when that commits, and not
//!   before.
//! - Nothing of what is read is validated; two that analyze one table at once are ordered by the
//!   record they both write.
//! - Whoever may not analyze a table is warned, and the others are analyzed.
//!
//! # On failure
//! 42P01, 42703 and 42701 for names; those of the transaction.
//!
//! # Limits
//! Of temporary tables nothing is kept: other sessions' have the same numbers. Rows that are in
//! other regions do not count; those that are placed elsewhere and not removed here yet do.

mod auto;

pub(crate) use auto::Refresh;

use std::any::Any;
use std::sync::Arc;

use async_trait::async_trait;
use telesto_common::Env;
use telesto_txn::{Level, ReadFor, Transaction, TxnOptions};

use crate::catalog::rights::denied;
use crate::catalog::statistics::{
    Gatherer, MAX_TARGET, PAGE_BYTES, Sample, TableStatistics, decode, encode, rows_wanted, sample,
    statistics_key,
};
use crate::catalog::temp::is_temporary;
use crate::catalog::{CatalogSnapshot, Guarded, Relation, Rights, Table};
use crate::codec::{RowCodec, table_range};
use crate::error::{Error, Result, SqlState};
use crate::expr::fold;
use crate::interrupt;
use crate::plan::{ExecContext, ExecutablePlan, PlanContext, ResultColumn, StatementResult};
use crate::sqlparser::ast::{Analyze, Ident, ObjectName};
use crate::types::Datum;
use telesto_sql_parser::analyze::{Targets, targets};

/// The statistics target where none is set.
const TARGET: usize = 100;

/// An ANALYZE, planned.
#[derive(Debug)]
pub(crate) struct AnalyzePlan {
    targets: Targets,
    /// Tables, and the columns asked for; none: all.
    tables: Vec<(Arc<Table>, Vec<u16>)>,
    /// Names of what is no table.
    others: Vec<String>,
}

/// Plans an ANALYZE.
///
/// # Errors
/// 42P01, 42703, 42701, 3F000; 42501 for a schema that is closed to the role.
pub(crate) fn plan(analyze: &Analyze, context: &PlanContext<'_>) -> Result<Arc<AnalyzePlan>> {
    let targets = targets(analyze)?;
    let mut plan = AnalyzePlan { targets, tables: Vec::new(), others: Vec::new() };
    if plan.targets.tables.is_empty() {
        let tables = context.catalog.tables();
        plan.tables = tables.map(|table| (Arc::clone(table), Vec::new())).collect();
    }
    for (name, columns) in &plan.targets.tables {
        let (schema, relation) = parts(name)?;
        let actor = context.catalog.actor(context.settings.current_role);
        if let Some(name) = schema.as_deref().filter(|name| *name != "pg_temp") {
            let known = context.catalog.schema(name).ok_or_else(|| {
                let message = format!("schema \"{name}\" does not exist");
                Error::new(SqlState::INVALID_SCHEMA_NAME, message)
            })?;
            if !is_temporary(known.oid) {
                Guarded::schema(known).need(&actor, Rights::USAGE)?;
            }
        }
        let mut path = context.settings.effective_search_path();
        path.retain(|name| {
            context.catalog.schema(name).is_none_or(|known| {
                is_temporary(known.oid)
                    || Guarded::schema(known).rights_of(&actor).has(Rights::USAGE)
            })
        });
        match context.catalog.resolve(schema.as_deref(), &relation, &path) {
            Some(Relation::Table(table)) => {
                plan.tables.push((Arc::clone(table), column_ids(table, columns)?));
            }
            Some(_) => plan.others.push(relation),
            None if system_table(schema.as_deref(), &relation) => {}
            None => {
                let shown = schema.map_or_else(|| relation.clone(), |s| format!("{s}.{relation}"));
                return Err(Error::new(
                    SqlState::UNDEFINED_TABLE,
                    format!("relation \"{shown}\" does not exist"),
                ));
            }
        }
    }
    Ok(Arc::new(plan))
}

fn system_table(schema: Option<&str>, name: &str) -> bool {
    crate::catalog::builtin::tables::find(schema, name).is_some()
}

fn parts(name: &ObjectName) -> Result<(Option<String>, String)> {
    let part = |at: usize| name.0.get(at).and_then(|part| part.as_ident()).map(fold);
    match (part(0), part(1), name.0.len()) {
        (Some(relation), None, 1) => Ok((None, relation)),
        (Some(schema), Some(relation), 2) => Ok((Some(schema), relation)),
        _ => Err(Error::syntax(format!("improper qualified name: {name}"))),
    }
}

fn column_ids(table: &Table, columns: &[Ident]) -> Result<Vec<u16>> {
    let mut ids = Vec::with_capacity(columns.len());
    for column in columns {
        let name = fold(column);
        let at = table.column_position(&name).ok_or_else(|| {
            Error::new(
                SqlState::UNDEFINED_COLUMN,
                format!("column \"{name}\" of relation \"{}\" does not exist", table.name),
            )
        })?;
        let id = table.columns[at].id;
        if ids.contains(&id) {
            return Err(Error::new(
                SqlState::DUPLICATE_COLUMN,
                format!("column \"{name}\" of relation \"{}\" appears more than once", table.name),
            ));
        }
        ids.push(id);
    }
    Ok(ids)
}

#[async_trait]
impl ExecutablePlan for AnalyzePlan {
    fn columns(&self) -> Option<&Arc<[ResultColumn]>> {
        None
    }

    fn is_by_key(&self) -> bool {
        false
    }

    fn is_read_only(&self) -> bool {
        false
    }

    fn writes(&self) -> Option<&'static str> {
        Some("ANALYZE")
    }

    fn describe(&self) -> String {
        "ANALYZE".to_owned()
    }

    async fn execute(&self, context: &ExecContext) -> Result<StatementResult> {
        let catalog = &context.catalog;
        let actor = catalog.actor(context.settings.current_role);
        for name in &self.others {
            context.notices.warning(
                SqlState::WARNING,
                format!(
                    "skipping \"{name}\" --- cannot analyze non-tables or special system tables"
                ),
            );
        }
        for (table, columns) in &self.tables {
            if !actor.owns(table.owner) && !actor.owns(catalog.database_owner()) {
                let verb = if self.targets.vacuum { "vacuum" } else { "analyze" };
                let skipped = denied(format!(
                    "skipping \"{}\" --- only table or database owner can {verb} it",
                    table.name
                ));
                context.notices.warning(SqlState::WARNING, skipped.message());
                continue;
            }
            if let Err(elsewhere) = catalog.check_replicated(table) {
                context.notices.warning(elsewhere.code(), elsewhere.message());
                continue;
            }
            if is_temporary(table.id.0) {
                continue;
            }
            let target = context.settings.show("default_statistics_target")?.parse();
            // What the session may ask for is all rows or none; what is known is of those that are
            // here.
            let here = match table.placement.by_row {
                Some(_) => {
                    let options = TxnOptions {
                        level: Level::Session,
                        read_only: true,
                        ..TxnOptions::default()
                    };
                    Some(context.database.begin(options).await?)
                }
                None => None,
            };
            // Statistics are for everybody to see: what waits for a curator is in none.
            let beneath = context.txn.beneath();
            let rows = here.as_ref().or(beneath.as_ref()).unwrap_or(&context.txn);
            let gathering = Gathering {
                txn: &context.txn,
                rows,
                catalog,
                table,
                columns,
                target: target.unwrap_or(TARGET).min(MAX_TARGET),
                micros: context.statement_micros,
                automatic: false,
            };
            context.check_cancelled()?;
            let gathered = gathering.run(&context.env).await;
            if let Some(here) = here {
                here.rollback();
            }
            let (sample, record) = gathered?;
            if self.targets.verbose {
                let schema = catalog.schema_name(table.schema);
                context.notices.info(format!("analyzing \"{schema}.{}\"", table.name));
                context.notices.info(told(&table.name, &sample, &record));
            }
        }
        // The rest of the block plans with what is now known, and others when it has ended.
        catalog.statistics.written(context.txn.id());
        let tag = if self.targets.vacuum { "VACUUM" } else { "ANALYZE" };
        Ok(StatementResult::Command { tag: tag.to_owned() })
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

fn told(name: &str, sample: &Sample, record: &TableStatistics) -> String {
    let pages = (record.bytes / PAGE_BYTES).ceil();
    let read = if sample.counted {
        pages
    } else {
        (pages * sample.rows.len() as f64 / record.rows).ceil()
    };
    format!(
        "\"{name}\": scanned {read} of {pages} pages, containing {0} live rows and 0 dead rows; {0} rows in sample, {1} \
         estimated total rows",
        sample.rows.len(),
        record.rows.round(),
    )
}

/// One table to be looked at.
struct Gathering<'g> {
    txn: &'g Arc<dyn Transaction>,
    /// By what its rows are read.
    rows: &'g Arc<dyn Transaction>,
    catalog: &'g CatalogSnapshot,
    table: &'g Table,
    /// Ids of the columns asked for; none: all.
    columns: &'g [u16],
    target: usize,
    micros: i64,
    automatic: bool,
}

impl Gathering<'_> {
    /// Looks at the table and writes its record.
    async fn run(&self, env: &Env) -> Result<(Sample, TableStatistics)> {
        let database = self.catalog.database;
        let key = statistics_key(database, self.table.id);
        let range = table_range(database, self.table, 0);
        let mut random = || env.random.next_u64();
        let sample = sample(&**self.rows, range, rows_wanted(self.target), &mut random).await?;
        let mut record = self.gathered(&sample).await?;
        let before = self.txn.get(&key, ReadFor::Constraint).await?;
        // A record that cannot be read is replaced.
        if let Some(before) = before.and_then(|bytes| decode(&bytes).ok()) {
            self.keep(&mut record, before);
        }
        let (asked, automatic) = &mut record.times;
        match self.automatic {
            true => (record.automatic_micros, *automatic) = (Some(self.micros), *automatic + 1),
            false => (record.asked_micros, *asked) = (Some(self.micros), *asked + 1),
        }
        self.txn.put(key, encode(&record)?).await?;
        Ok((sample, record))
    }

    /// Keeps of the record from before what holds on.
    fn keep(&self, record: &mut TableStatistics, before: TableStatistics) {
        record.times = before.times;
        record.asked_micros = before.asked_micros;
        record.automatic_micros = before.automatic_micros;
        for column in before.columns {
            let there = self.table.visible_columns().any(|(_, own)| own.id == column.id);
            let asked = self.columns.is_empty() || self.columns.contains(&column.id);
            if there && !asked {
                record.columns.push(column);
            }
        }
        record.columns.sort_by_key(|column| column.id);
    }

    async fn gathered(&self, sample: &Sample) -> Result<TableStatistics> {
        let asked = |id: &u16| self.columns.is_empty() || self.columns.contains(id);
        let columns = self.table.visible_columns().filter(|(_, column)| asked(&column.id));
        // Values of sealed rows are not written anywhere else.
        let shown = self.table.key.is_none();
        let mut gatherers: Vec<(usize, Gatherer)> =
            columns.map(|(at, column)| (at, Gatherer::of(column, shown))).collect();
        let codec =
            RowCodec::projected(self.table, |at| gatherers.iter().any(|(own, _)| *own == at))?;
        for (key, value) in &sample.rows {
            interrupt::pace().await?;
            let row = codec.decode(key, value)?;
            for (at, gatherer) in &mut gatherers {
                gatherer.add(row.get(*at).unwrap_or(&Datum::Null))?;
            }
        }
        let mut record = TableStatistics {
            storage: self.table.storage.0,
            rows: sample.total.round(),
            bytes: sample.bytes,
            ..TableStatistics::default()
        };
        for (_, gatherer) in gatherers {
            interrupt::pace().await?;
            record.columns.push(gatherer.finish(record.rows, self.target)?);
        }
        Ok(record)
    }
}
