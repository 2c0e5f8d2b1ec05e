//! Rows of the views of costs: `telesto_costs`, `telesto_bill`, `telesto_session_costs`,
//! `telesto_prices`, `pg_stat_statements`.
//!
//! # Invariants
//! - In each dimension of `telesto_costs` the dollars add up to those of `telesto_bill`, to the
//!   last digit.
//! - Dollars are by the sheet that `telesto.prices` names; quantities do not depend on it.
//!
//! # On failure
//! 22023 when `telesto.prices` names no sheet.
//!
//! # Limits
//! What this process did since its start. Of `pg_stat_statements`, what Telesto has nothing like
//! is 0.

use std::sync::Arc;

use telesto_bucket::PriceSheet;
use telesto_meter::caps::{Held, Mode};
use telesto_meter::report::{self, Dimension, Job, Line};
use telesto_meter::{Charge, Dollars, Entry, REQUEST, Rates, Resource, Stats};
use telesto_sql_catalog::acl::BOOTSTRAP;
use telesto_sql_catalog::rights::READ_ALL_STATS;
use telesto_sql_catalog::{Actor, CatalogSnapshot};
use telesto_sql_expr::Settings;
use telesto_sql_expr::settings::PRICES;
use telesto_sql_plan::SessionView;
use telesto_sql_plan::accounts::Accounts;
use telesto_sql_types::Datum;
use telesto_sql_types::error::{Error, Result, SqlState};
use telesto_sql_types::numeric::Numeric;

use super::objects::DATABASE_OID;
use super::rows::{RowSet, RowSetter};

/// Seconds of a month: a twelfth of a year of 365.25 days.
const MONTH: u64 = 2_629_800;

/// Fills the table if it is one of these; whether it is.
pub(super) fn fill(
    out: &mut RowSet<'_>,
    catalog: &CatalogSnapshot,
    settings: &Settings,
    live: &SessionView,
) -> Result<bool> {
    let fill = match out.name() {
        "telesto_costs" => costs,
        "telesto_bill" => bill,
        "telesto_session_costs" => sessions,
        "telesto_prices" => prices,
        "telesto_caps" => caps,
        "telesto_cap_dry_run" => dry_run,
        "pg_stat_statements" => statements,
        "pg_stat_statements_info" => statements_info,
        _ => return Ok(false),
    };
    if let Some(accounts) = &live.accounts {
        let sheet = sheet(accounts, settings)?;
        let actor = catalog.actor(settings.current_role);
        let seen = Seen { rates: sheet.rates(), seconds: accounts.seconds(), sheet, actor };
        fill(out, catalog, accounts, &seen);
    }
    Ok(true)
}

/// The sheet that `telesto.prices` names.
pub(super) fn sheet(accounts: &Accounts, settings: &Settings) -> Result<PriceSheet> {
    let name = settings.others.get(PRICES).map_or("", String::as_str);
    accounts.sheet(name).ok_or_else(|| {
        let text = format!("there is no price sheet \"{name}\"");
        Error::new(SqlState::INVALID_PARAMETER_VALUE, text).hint(
            "RESET telesto.prices chooses the bucket's own; SELECT sheet FROM telesto_prices then shows those there are.",
        )
    })
}

/// What dollars are told by, and whom.
struct Seen {
    rates: Rates,
    sheet: PriceSheet,
    seconds: u64,
    actor: Actor,
}

impl Seen {
    /// What is spent in a month that goes on like this.
    fn per_month(&self, dollars: Dollars) -> Dollars {
        dollars.part(MONTH, self.seconds)
    }
}

pub(super) fn dollars(amount: Dollars) -> Datum {
    exact(amount.0, 18)
}

/// A number of `units` of `10^-scale`.
fn exact(units: u128, scale: u32) -> Datum {
    Datum::numeric(Numeric::new(units, scale).normalized())
}

fn requests(charge: &Charge, resource: Resource) -> Datum {
    exact(u128::from(charge.get(resource)), 6)
}

pub(super) fn count(number: u64) -> Datum {
    Datum::Int8(i64::try_from(number).unwrap_or(i64::MAX))
}

fn millis(nanos: f64) -> Datum {
    Datum::Float8(nanos / 1e6)
}

/// Sets the columns that a charge has in every view.
fn amounts<'r, 'a>(row: RowSetter<'r, 'a>, charge: &Charge) -> RowSetter<'r, 'a> {
    row.set("gets", requests(charge, Resource::Gets))
        .set("puts", requests(charge, Resource::Puts))
        .set("bytes_sent", count(charge.get(Resource::Sent)))
        .set("bytes_received", count(charge.get(Resource::Received)))
        .set("cpu_seconds", Datum::Float8(charge.amount(Resource::Cpu)))
}

fn costs(out: &mut RowSet<'_>, _: &CatalogSnapshot, accounts: &Accounts, seen: &Seen) {
    let (entries, jobs) = (accounts.entries(), accounts.jobs());
    for dimension in Dimension::ALL {
        for line in report::lines(dimension, &entries, &jobs) {
            cost(out, dimension.name(), &line, seen);
        }
    }
    for line in by_job(&entries, &jobs) {
        cost(out, "job", &line, seen);
    }
}

/// What statements did, all together, beside the jobs that are no statement's.
fn by_job(entries: &[(Arc<Entry>, Stats)], jobs: &[Job]) -> Vec<Line> {
    let mut all = Stats::default();
    for (_, stats) in entries {
        all.add(stats);
    }
    let lines = jobs.iter().filter(|job| !job.charge.is_zero()).map(|job| Line {
        name: job.name.into(),
        own: Stats { charge: job.charge, ..Stats::default() },
        shared: Charge::ZERO,
    });
    std::iter::once(Line { name: "statements".into(), own: all, shared: Charge::ZERO })
        .chain(lines)
        .collect()
}

fn cost(out: &mut RowSet<'_>, dimension: &'static str, line: &Line, seen: &Seen) {
    let all = line.own.charge + line.shared;
    let (own, shared) = (seen.rates.price(&line.own.charge), seen.rates.price(&line.shared));
    amounts(out.row(), &all)
        .set("dimension", dimension)
        .set("name", &*line.name)
        .set("calls", count(line.own.calls))
        .set("rows", count(line.own.rows))
        .set("lists", requests(&all, Resource::Lists))
        .set("deletes", requests(&all, Resource::Deletes))
        .set("bytes_to_nodes", count(all.get(Resource::Peers)))
        .set("log_bytes", count(all.get(Resource::Logged)))
        .set("own_dollars", dollars(own))
        .set("shared_dollars", dollars(shared))
        .set("dollars", dollars(own + shared))
        .set("dollars_per_month", dollars(seen.per_month(own + shared)));
}

fn bill(out: &mut RowSet<'_>, _: &CatalogSnapshot, accounts: &Accounts, seen: &Seen) {
    let own: Charge = accounts.entries().iter().map(|(_, stats)| stats.charge).sum();
    let all: Charge = own + accounts.jobs().iter().map(|job| job.charge).sum();
    for resource in Resource::ALL {
        let (units, scale) = match resource {
            Resource::Memory => {
                (u128::from(all.get(resource)) * 1_000_000 / u128::from(resource.units()), 6)
            }
            Resource::Cpu => (u128::from(all.get(resource)), 9),
            _ if resource.is_requests() => (u128::from(all.get(resource)), 6),
            _ => (u128::from(all.get(resource)), 0),
        };
        let cost = seen.rates.of(resource, all.get(resource));
        out.row()
            .set("resource", resource.name())
            .set("amount", exact(units, scale))
            .set("unit_dollars", dollars(seen.rates.of(resource, resource.units())))
            .set("dollars", dollars(cost))
            .set("dollars_per_month", dollars(seen.per_month(cost)));
    }
}

fn sessions(out: &mut RowSet<'_>, _: &CatalogSnapshot, accounts: &Accounts, seen: &Seen) {
    for session in accounts.sessions() {
        let Some(entry) = &session.entry else { continue };
        let price = |charge: &Charge| dollars(seen.rates.price(charge));
        amounts(out.row(), &session.session)
            .set("pid", session.pid)
            .set("role", &*entry.principal.role)
            .set("application", &*entry.principal.application)
            .set("tag", &*entry.principal.tag)
            .set("query", &*entry.text)
            .set("statement_dollars", price(&session.statement))
            .set("transaction_dollars", price(&session.transaction))
            .set("session_dollars", price(&session.session));
    }
}

fn prices(out: &mut RowSet<'_>, _: &CatalogSnapshot, accounts: &Accounts, seen: &Seen) {
    let mut names = PriceSheet::names("").unwrap_or_default();
    let own = accounts.meter().map(|meter| meter.prices().name.clone());
    names.extend(own.iter().filter(|own| !names.contains(own)).cloned().collect::<Vec<_>>());
    for name in names {
        let Some(sheet) = accounts.sheet(&name) else { continue };
        let number = |price: f64| dollars(Dollars::from_f64(price));
        out.row()
            .set("sheet", &name)
            .set("is_default", seen.sheet.name == name)
            .set("put_per_1000", number(sheet.put_per_1000))
            .set("get_per_1000", number(sheet.get_per_1000))
            .set("list_per_1000", number(sheet.list_per_1000.unwrap_or(sheet.put_per_1000)))
            .set("delete_per_1000", number(sheet.delete_per_1000))
            .set("upload_per_gb", number(sheet.upload_per_gb))
            .set("download_per_gb", number(sheet.download_per_gb))
            .set("storage_per_gb_month", number(sheet.storage_per_gb_month))
            .set("cpu_per_hour", number(sheet.cpu_per_hour))
            .set("memory_per_gb_hour", number(sheet.memory_per_gb_hour))
            .set("peer_per_gb", number(sheet.peer_per_gb));
    }
}

/// The statements of one role, whatever the application and the tags: what PostgreSQL has one row
/// for. What they say is that role's.
fn statements(out: &mut RowSet<'_>, catalog: &CatalogSnapshot, accounts: &Accounts, seen: &Seen) {
    type Shown = (Arc<str>, Stats, Option<Arc<str>>);
    let mut rows: std::collections::BTreeMap<(Arc<str>, i64), Shown> =
        std::collections::BTreeMap::new();
    for (entry, stats) in accounts.entries() {
        if entry.is_rest() || stats.calls == 0 {
            continue;
        }
        let key = (Arc::clone(&entry.principal.role), entry.query_id);
        let row =
            rows.entry(key).or_insert_with(|| (Arc::clone(&entry.text), Stats::default(), None));
        row.1.add(&stats);
        row.2 = entry.plan().or(row.2.take());
    }
    for ((role, query_id), (text, stats, plan)) in rows {
        let charge = &stats.charge;
        let cost = seen.rates.price(charge);
        let zero = Datum::Float8(0.0);
        let role = catalog.role_named(&role).map_or(BOOTSTRAP, |role| role.oid);
        let told = seen.actor.acts_as(role) || seen.actor.acts_as(READ_ALL_STATS);
        let mut row = amounts(out.row(), charge)
            .set("userid", role)
            .set("dbid", DATABASE_OID)
            .set("toplevel", true)
            .set("queryid", if told { Datum::Int8(query_id) } else { Datum::Null })
            .set("query", if told { &*text } else { "<insufficient privilege>" })
            .set("calls", count(stats.calls))
            .set("total_exec_time", millis(stats.total_nanos as f64))
            .set("min_exec_time", millis(stats.min_nanos as f64))
            .set("max_exec_time", millis(stats.max_nanos as f64))
            .set("mean_exec_time", millis(stats.mean_nanos()))
            .set("stddev_exec_time", millis(stats.deviation_nanos()))
            .set("rows", count(stats.rows))
            .set("wal_bytes", exact(u128::from(charge.get(Resource::Logged)), 0))
            .set("lists", requests(charge, Resource::Lists))
            .set("deletes", requests(charge, Resource::Deletes))
            .set("bytes_to_nodes", count(charge.get(Resource::Peers)))
            .set("dollars", dollars(cost))
            .set("dollars_per_call", dollars(cost.part(1, stats.calls)))
            .set("failures", count(stats.failures))
            .set("conflicts", count(stats.conflicts))
            .set("plan", plan.filter(|_| told).map_or(Datum::Null, |plan| Datum::text(&*plan)));
        for unknown in [
            "total_plan_time",
            "min_plan_time",
            "max_plan_time",
            "mean_plan_time",
            "stddev_plan_time",
            "blk_read_time",
            "blk_write_time",
            "temp_blk_read_time",
            "temp_blk_write_time",
            "jit_generation_time",
            "jit_inlining_time",
            "jit_optimization_time",
            "jit_emission_time",
        ] {
            row = row.set(unknown, zero.clone());
        }
    }
}

fn moment(micros: u64) -> Datum {
    Datum::TimestampTz(telesto_sql_types::pg_micros(micros))
}

/// Caps in the statement's own snapshot, with what this process knows of their purses.
fn caps(out: &mut RowSet<'_>, catalog: &CatalogSnapshot, accounts: &Accounts, _: &Seen) {
    let now = accounts.now_micros();
    let purses = accounts.caps().purses();
    let commit = accounts.rates().of(Resource::Puts, REQUEST);
    for cap in catalog.caps() {
        let purse = purses.iter().find(|purse| purse.cap == **cap);
        let held = purse.map_or_else(
            || Held { window: cap.per.window(now), ..Held::default() },
            |purse| purse.held(now),
        );
        let known = held.all_granted.less(held.granted) + held.spent;
        let counts = held.counts;
        let state = match cap.mode {
            Mode::Warn if known >= cap.usable() => "exceeded",
            // Not even one commit is left.
            Mode::Enforce if held.dry && held.granted.less(held.spent) < commit => "refusing",
            Mode::Enforce if known >= cap.usable().part(9, 10) => "slowing",
            _ => "open",
        };
        let acted = |number: u64| if cap.mode == Mode::Enforce { count(number) } else { count(0) };
        let (kind, subject) = cap.subject.parts();
        out.row()
            .set("name", &cap.name)
            .set("kind", kind)
            .set("subject", subject)
            .set("per", cap.per.name())
            .set("mode", cap.mode.name())
            .set("dollars", dollars(cap.limit()))
            .set("reserve_dollars", dollars(cap.limit().less(cap.usable())))
            .set("slice_dollars", dollars(cap.slice()))
            .set("window_begin", moment(held.window.begin_micros))
            .set("resets_at", moment(held.window.end_micros))
            .set("granted_dollars", dollars(held.all_granted))
            .set("spent_dollars", dollars(held.spent))
            .set("state", state)
            .set("refused_writes", acted(counts.writes))
            .set("slowed_reads", acted(counts.slowed))
            .set("refused_reads", acted(counts.reads));
    }
}

/// What caps that only warn would have done in their window.
fn dry_run(out: &mut RowSet<'_>, _: &CatalogSnapshot, accounts: &Accounts, _: &Seen) {
    let now = accounts.now_micros();
    for purse in accounts.caps().purses().iter().filter(|purse| purse.cap.mode == Mode::Warn) {
        let held = purse.held(now);
        out.row()
            .set("name", &purse.cap.name)
            .set("would_refuse_writes", count(held.counts.writes))
            .set("would_slow_reads", count(held.counts.slowed))
            .set("would_refuse_reads", count(held.counts.reads))
            .set("dollars_beyond", dollars(held.counts.beyond))
            .set("resets_at", moment(held.window.end_micros));
    }
}

fn statements_info(out: &mut RowSet<'_>, _: &CatalogSnapshot, accounts: &Accounts, _: &Seen) {
    out.row()
        .set("dealloc", count(accounts.ledger().evicted()))
        .set("stats_reset", moment(accounts.reset_micros()));
}
