//! System tables whose rows are the session's own: pg_cursors, pg_prepared_statements; its
//! process's: the advisory locks of pg_locks, the nodes and logs it knows, what it measures; and
//! those that are read when the scan runs: `pg_stat_progress_create_index`, and what other nodes
//! are asked for.

use super::SystemTable;
use super::objects::DATABASE_OID;
use super::rows::RowSet;
use std::sync::Arc;

use telesto_common::Timestamp;
use telesto_sql_catalog::CatalogSnapshot;
use telesto_sql_catalog::build_record::progress;
use telesto_sql_expr::Settings;
use telesto_sql_plan::SessionView;
use telesto_sql_plan::advisory::registry::LockShown;
use telesto_sql_plan::measurements::{Probed, Stretch, Timed};
use telesto_sql_types::Datum;
use telesto_sql_types::Row;
use telesto_sql_types::error::Result;
use telesto_txn::{ClusterView, CopyView, LogChange};

/// Fills the table if it is one of these; whether it is.
pub(super) fn fill(out: &mut RowSet<'_>, live: &SessionView) -> bool {
    match out.name() {
        "pg_cursors" => {
            for cursor in &live.cursors {
                out.row()
                    .set("name", &cursor.name)
                    .set("statement", &cursor.statement)
                    .set("is_holdable", cursor.hold)
                    .set("is_binary", cursor.binary)
                    .set("is_scrollable", cursor.scroll)
                    .set("creation_time", Datum::TimestampTz(cursor.created_micros));
            }
            true
        }
        "pg_prepared_statements" => {
            for (name, shown) in live.statements.all() {
                let types = shown.parameter_types.iter().map(|ty| Datum::Oid(ty.oid()));
                let (generic, custom) = shown.plans();
                out.row()
                    .set("name", &name)
                    .set("statement", &shown.statement)
                    .set("prepare_time", Datum::TimestampTz(shown.prepared_micros))
                    .set("parameter_types", types.collect::<Vec<_>>())
                    .set("from_sql", shown.from_sql)
                    .set("generic_plans", count(generic))
                    .set("custom_plans", count(custom));
            }
            true
        }
        "telesto_nodes" => {
            for node in view(live).nodes {
                out.row()
                    .set("node", node.node.to_string())
                    .set("life", count(node.life.0))
                    .set("state", node.state)
                    .set("role", node.role)
                    .set("zone", node.zone)
                    .set("address", node.address)
                    .set("postgres", node.sql)
                    .set("http", node.http)
                    .set("host", node.host)
                    .set("pid", i32::try_from(node.pid).unwrap_or(i32::MAX))
                    .set("version", node.program)
                    .set("applied_lsn", node.applied.map_or(Datum::Null, count))
                    .set("silent_ms", node.silent_millis.map_or(Datum::Null, count))
                    .set("is_self", node.is_self);
            }
            true
        }
        "telesto_logs" => {
            let number = |of: usize| i32::try_from(of).unwrap_or(i32::MAX);
            for log in view(live).logs {
                let following = |copy: &&CopyView| copy.state.as_deref() == Some("following");
                let following = log.copies.iter().filter(following).count();
                let text = |text: String| Datum::text(text.as_str());
                // Only the owner knows how copies stand.
                let held = log.watermark.holder.map(|holder| holder.to_string());
                let known = log.spares.map(|_| Datum::Int4(number(following)));
                out.row()
                    .set("shard", i32::try_from(log.shard.0).unwrap_or(i32::MAX))
                    .set("medium", log.medium)
                    .set("chain_version", count(log.chain))
                    .set("loglet", count(log.loglet))
                    .set("first_lsn", count(log.first))
                    .set("applied_lsn", count(log.applied))
                    .set("owner", log.owner.map_or(Datum::Null, |node| text(node.to_string())))
                    .set("copies", number(log.copies.len()))
                    .set("copies_following", known.unwrap_or(Datum::Null))
                    .set("spares", log.spares.map_or(Datum::Null, |n| Datum::Int4(number(n))))
                    .set("watermark", closed(log.watermark.at))
                    .set(
                        "watermark_lag_ms",
                        Datum::Float8(log.watermark.lag.as_secs_f64() * 1000.0),
                    )
                    .set("watermark_held_by", held.map_or(Datum::Null, text));
            }
            true
        }
        "telesto_log_copies" => {
            for log in view(live).logs {
                for copy in log.copies {
                    out.row()
                        .set("shard", i32::try_from(log.shard.0).unwrap_or(i32::MAX))
                        .set("node", copy.node.to_string())
                        .set(
                            "state",
                            copy.state.map_or(Datum::Null, |state| Datum::text(state.as_str())),
                        )
                        .set("lag", copy.lag.map_or(Datum::Null, count));
                }
            }
            true
        }
        _ => measured(out, live),
    }
}

/// A time up to which all is known; nothing while nothing was committed.
pub(super) fn closed(at: Timestamp) -> Datum {
    if at == Timestamp::ZERO {
        return Datum::Null;
    }
    Datum::TimestampTz(telesto_sql_types::pg_micros(at.wall_micros()))
}

/// What the process measures of itself.
fn measured(out: &mut RowSet<'_>, live: &SessionView) -> bool {
    match out.name() {
        "telesto_metrics" => {
            for metric in live.measured.metrics() {
                out.row()
                    .set("name", metric.name)
                    .set("labels", Datum::Json(metric.labels.into()))
                    .set("value", Datum::Float8(metric.value));
            }
            true
        }
        "telesto_history" => {
            for stretch in live.measured.history() {
                history_row(out, &stretch);
            }
            true
        }
        "telesto_board_figures" => {
            for probed in live.measured.probed() {
                probed_row(out, &probed);
            }
            true
        }
        _ => false,
    }
}

fn probed_row(out: &mut RowSet<'_>, probed: &Probed) {
    let float = |value: Option<f64>| value.map_or(Datum::Null, Datum::Float8);
    let time = |seconds: i64| {
        let micros = u64::try_from(seconds).unwrap_or(0).saturating_mul(1_000_000);
        Datum::TimestampTz(telesto_sql_types::pg_micros(micros))
    };
    let [p50, p90, p99, p999, max] = probed.latency_ms;
    let [unreachable, timed_out, rejected, wrong, not_begun] = probed.failures;
    out.row()
        .set("board", &probed.board)
        .set("target", &probed.target)
        .set("operation", probed.operation)
        .set("span", probed.span)
        .set("since", time(probed.from_to.0))
        .set("until", time(probed.from_to.1))
        .set("operations", count(probed.operations.0))
        .set("succeeded", count(probed.operations.1))
        .set("unreachable", count(unreachable))
        .set("timed_out", count(timed_out))
        .set("rejected", count(rejected))
        .set("wrong", count(wrong))
        .set("not_begun", count(not_begun))
        .set("p50_ms", float(p50))
        .set("p90_ms", float(p90))
        .set("p99_ms", float(p99))
        .set("p999_ms", float(p999))
        .set("max_ms", float(max))
        .set("availability", float(probed.availability.0))
        .set("nines", float(probed.availability.1))
        .set("promise_ms", Datum::Float8(probed.promise.0))
        .set("promise_kept", probed.promise.1.map_or(Datum::Null, Datum::Bool))
        .set("probed_seconds", Datum::Float8(probed.probed_unknown_seconds.0))
        .set("unknown_seconds", Datum::Float8(probed.probed_unknown_seconds.1));
}

fn history_row(out: &mut RowSet<'_>, stretch: &Stretch) {
    let at = |of: &Timed, place: usize| {
        of.percentiles.map_or(Datum::Null, |found| Datum::Float8(found[place]))
    };
    let (reads, writes) = (&stretch.reads, &stretch.writes);
    out.row()
        .set("at", Datum::TimestampTz(stretch.until_micros))
        .set("seconds", Datum::Float8(stretch.seconds))
        .set("reads", count(reads.count))
        .set("reads_in_time", count(reads.in_time))
        .set("read_p50_ms", at(reads, 0))
        .set("read_p95_ms", at(reads, 1))
        .set("read_p99_ms", at(reads, 2))
        .set("writes", count(writes.count))
        .set("writes_in_time", count(writes.in_time))
        .set("write_p50_ms", at(writes, 0))
        .set("write_p95_ms", at(writes, 1))
        .set("write_p99_ms", at(writes, 2))
        .set("failures", count(stretch.failures))
        .set("commits", count(stretch.commits))
        .set("sessions", count(stretch.sessions))
        .set("requests", count(stretch.requests))
        .set("dollars", Datum::Float8(stretch.dollars));
}

/// A loglet that became the active one. A node has one shard.
fn log_change(out: &mut RowSet<'_>, change: &LogChange) {
    let owner = change.owner.as_ref();
    out.row()
        .set("shard", 0)
        .set("chain_version", count(change.version))
        .set("at", Datum::TimestampTz(telesto_sql_types::pg_micros(change.at_micros)))
        .set("loglet", count(change.loglet))
        .set("first_lsn", count(change.start.0))
        .set("medium", change.medium.to_string())
        .set("owner", owner.map(|(node, ..)| node.to_string()))
        .set("life", owner.map_or(Datum::Null, |(_, life, _)| count(life.0)))
        .set("host", owner.map(|(.., host)| host.clone()))
        .set("took_ms", change.took_millis.map_or(Datum::Null, count))
        .set("reason", change.reason.clone());
}

fn view(live: &SessionView) -> ClusterView {
    live.database.as_ref().map(|database| database.cluster()).unwrap_or_default()
}

fn count(number: u64) -> Datum {
    Datum::Int8(i64::try_from(number).unwrap_or(i64::MAX))
}

fn locks(out: &mut RowSet<'_>, locks: Vec<LockShown>) {
    for lock in locks {
        out.row()
            .set("locktype", "advisory")
            .set("database", DATABASE_OID)
            .set("relation", Datum::Null)
            .set("page", Datum::Null)
            .set("tuple", Datum::Null)
            .set("transactionid", Datum::Null)
            .set("classid", lock.key.class)
            .set("objid", lock.key.object)
            .set("objsubid", i32::from(lock.key.sub))
            .set("virtualtransaction", "")
            .set("pid", lock.pid)
            .set("mode", lock.mode.name())
            .set("granted", lock.granted);
    }
}

/// Whether the table's rows, as far as these columns go, are read by [`read`], and not computed.
pub fn is_read(table: &SystemTable, positions: &[usize]) -> bool {
    super::regions::is_asked(table, positions)
        || matches!(
            table.name,
            "pg_stat_activity"
                | "pg_stat_ssl"
                | "pg_stat_gssapi"
                | "pg_locks"
                | "pg_stat_progress_create_index"
                | "telesto_storage"
                | "telesto_space"
                | "telesto_log_history"
                | "telesto_pending"
                | "telesto_decided"
        )
        || super::statistics::is_counted(table.name)
}

/// The rows of such a table. A block is 8 kB of keys and rows: there are no pages.
pub async fn read(
    table: &SystemTable,
    catalog: &Arc<CatalogSnapshot>,
    settings: &Settings,
    live: &SessionView,
) -> Result<Vec<Row>> {
    const BLOCK: u64 = 8192;
    let mut out = RowSet::new(table);
    if table.name == "telesto_storage" {
        super::storage::fill(&mut out, settings, live).await?;
        return Ok(out.into_rows());
    }
    if table.name == "telesto_space" {
        super::space::fill(&mut out, catalog, live).await?;
        return Ok(out.into_rows());
    }
    if super::regions::is_of_streams(table) {
        super::regions::ask(&mut out, catalog, settings, live).await?;
        return Ok(out.into_rows());
    }
    if table.name == "pg_stat_activity" {
        let elsewhere = match &live.database {
            Some(database) => telesto_sql_plan::everywhere::shown(database).await,
            None => Vec::new(),
        };
        super::statistics::activity(&mut out, catalog, settings, (live, elsewhere));
        return Ok(out.into_rows());
    }
    if super::entrance::fill(&mut out, catalog, settings, live).await {
        return Ok(out.into_rows());
    }
    if table.name == "pg_locks" {
        let mut shown = live.locks.as_ref().map(|locks| locks.shown()).unwrap_or_default();
        if let Some(database) = &live.database {
            shown.extend(telesto_sql_plan::everywhere::locks(database).await);
        }
        locks(&mut out, shown);
        return Ok(out.into_rows());
    }
    if super::statistics::is_counted(table.name) {
        let elsewhere = match &live.database {
            Some(database) => telesto_sql_plan::everywhere::counted(database).await,
            None => telesto_sql_plan::everywhere::Counts::default(),
        };
        super::statistics::counts(&mut out, catalog, settings, (live, &elsewhere));
        return Ok(out.into_rows());
    }
    let Some(database) = &live.database else { return Ok(out.into_rows()) };
    if table.name == "telesto_log_history" {
        for change in database.log_changes().await? {
            log_change(&mut out, &change);
        }
        return Ok(out.into_rows());
    }
    if super::curated::fill(&mut out, database, catalog, settings).await? {
        return Ok(out.into_rows());
    }
    for build in progress(database, catalog).await? {
        let record = &build.record;
        let counting = record.last.is_empty() || record.counted < record.last;
        let phase = if counting { "initializing" } else { "building index: scanning table" };
        let number = |value: u64| i64::try_from(value).unwrap_or(i64::MAX);
        out.row()
            .set("pid", record.pid)
            .set("datid", DATABASE_OID)
            .set("datname", &settings.database)
            .set("relid", build.table.0)
            .set("index_relid", build.index_oid)
            .set("command", record.command.name())
            .set("phase", phase)
            .set("blocks_total", number(record.bytes_total.div_ceil(BLOCK)))
            .set("blocks_done", number(record.bytes_done.div_ceil(BLOCK)))
            .set("tuples_total", number(record.rows_total))
            .set("tuples_done", number(record.rows_done));
    }
    Ok(out.into_rows())
}
