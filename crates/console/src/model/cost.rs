//! Where each dollar goes, what a month would cost, and what another checkpoint interval or level
//! of consistency would.
//!
//! # Purpose
//! Dollars by cause and class, the price sheet, a projection of the last hour's rate, and a
//! what-if.
//!
//! # Protocol of the what-if
//! ```text
//! measured since the start:  folds f, dollars of folding F (checkpoint, compaction, gc), looks at the log's tail l, all dollars D, hours h
//! interval T instead of the measured h/f:   F/h * (h/f) / T            (a fold costs about the same however much it folds)
//! level session or eventual:                no looks: - l/h * price of a GET, where the log is in the bucket
//! ```
//!
//! # Invariants
//! - Every term of the what-if is measured by this process or stands in its price sheet; nothing is
//!   assumed but that a fold costs the same.
//! - A number that is not there makes no zero: the what-if says what is missing.
//!
//! # On failure
//! Each part fails by itself.
//!
//! # Limits
//! Requests only: what is stored is charged by the month and not metered. Of this process since it
//! started.

use std::time::Duration;

use serde::Serialize;

use super::Part;
use crate::query::{Reader, Table};

const HOUR: f64 = 3600.0;
/// Seconds of which an hour is told, at least.
const LEAST_MEASURED: f64 = 60.0;

/// Dollars.
#[derive(Clone, Debug, Serialize)]
pub struct Cost {
    /// By cause and class of request.
    pub causes: Part,
    /// By resource, with what the process itself costs, where that is collected.
    pub bill: Part,
    /// By whom and what for, where that is collected.
    pub accounts: Part,
    /// What may be spent, and what was of that.
    pub caps: Part,
    /// What caps that only warn would have done.
    pub dry_run: Part,
    /// The price sheet.
    pub sheet: Part,
    /// The last hour's rate, and what it makes in a day and a month.
    pub projection: Part,
    /// What else it could be.
    pub what_if: WhatIf,
}

/// What is asked.
#[derive(Clone, Copy, Debug, Default)]
pub struct Wish {
    /// Seconds between folds.
    pub interval: Option<f64>,
    /// Reads at a level that does not look at the log's tail.
    pub relaxed: bool,
}

/// Dollars an hour: as measured, and as wished.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct WhatIf {
    /// Hours that were measured.
    pub hours: f64,
    /// Folds in them.
    pub folds: f64,
    /// Seconds between two, as measured.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub measured_interval: Option<f64>,
    /// Dollars an hour, all together.
    pub now: f64,
    /// Of these, for folding.
    pub folding: f64,
    /// Of these, for looks at the log's tail.
    pub looks: f64,
    /// The interval wished for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub interval: Option<f64>,
    /// Whether reads would look at the tail.
    pub relaxed: bool,
    /// Dollars an hour as wished.
    pub then: f64,
}

const CAUSES: &str = "SELECT d.labels->>'cause' AS cause, d.labels->>'class' AS class, r.value::int8 AS requests, d.value AS dollars \
     FROM telesto_metrics d JOIN telesto_metrics r ON r.name = 'telesto_bucket_requests_total' \
     AND r.labels->>'cause' = d.labels->>'cause' AND r.labels->>'class' = d.labels->>'class' \
     WHERE d.name = 'telesto_bucket_dollars_total' ORDER BY d.value DESC, r.value DESC";

pub async fn load(reader: &Reader, wish: Wish) -> Cost {
    let sheet = "SELECT u->>'prices' AS sheet, u->'sheet'->>'put_per_1000' AS put_per_1000, \
                 u->'sheet'->>'get_per_1000' AS get_per_1000, u->'sheet'->>'list_per_1000' AS list_per_1000, \
                 u->'sheet'->>'delete_per_1000' AS delete_per_1000, u->'sheet'->>'upload_per_gb' AS upload_per_gb, \
                 u->'sheet'->>'download_per_gb' AS download_per_gb, \
                 u->'sheet'->>'storage_per_gb_month' AS storage_per_gb_month \
                 FROM (SELECT telesto_bucket_usage() AS u) AS usage";
    let projection = "SELECT sum(dollars) / sum(seconds) * 3600 AS an_hour, sum(dollars) / sum(seconds) * 86400 AS a_day, \
                      sum(dollars) / sum(seconds) * 2592000 AS thirty_days, \
                      sum(dollars) / nullif(sum(commits), 0)::float8 * 1000 AS per_1000_transactions, \
                      sum(seconds) AS measured_seconds FROM telesto_history";
    let numbers = "SELECT name, sum(value) AS value FROM telesto_metrics WHERE name IN ('telesto_uptime_seconds', \
                   'telesto_txn_folds_total', 'telesto_txn_looks_total') GROUP BY name";
    let medium = "SELECT medium FROM telesto_logs ORDER BY shard LIMIT 1";
    let there = reader
        .relations(&["telesto_bill", "telesto_costs", "telesto_caps"])
        .await
        .unwrap_or_default();
    let bill = "SELECT * FROM telesto_bill ORDER BY dollars DESC";
    let accounts = "SELECT dimension, name, calls, rows, gets, puts, cpu_seconds, dollars, dollars_per_month \
                    FROM telesto_costs ORDER BY dimension, dollars DESC, name LIMIT 500";
    let caps = "SELECT name, kind, subject, dollars, per, mode, state, spent_dollars, resets_at, refused_writes, slowed_reads, \
                refused_reads FROM telesto_caps ORDER BY name";
    let dry_run = "SELECT * FROM telesto_cap_dry_run ORDER BY name";
    let (causes, bill, accounts, sheet, projection, numbers, medium, caps, dry_run) = futures::join!(
        Part::of(reader, CAUSES),
        Part::if_there(reader, "telesto_bill", &there, bill),
        Part::if_there(reader, "telesto_costs", &there, accounts),
        Part::of(reader, sheet),
        Part::of(reader, projection),
        Part::of(reader, numbers),
        Part::of(reader, medium),
        Part::if_there(reader, "telesto_caps", &there, caps),
        Part::if_there(reader, "telesto_caps", &there, dry_run),
    );
    let in_bucket = medium.rows().and_then(|table| table.first("medium")) == Some("bucket");
    let price = sheet.rows().and_then(|table| table.number("get_per_1000")).unwrap_or_default();
    let empty = Table::default();
    let what_if = what_if(
        numbers.rows().unwrap_or(&empty),
        causes.rows().unwrap_or(&empty),
        if in_bucket { price / 1000.0 } else { 0.0 },
        wish,
    );
    Cost { causes, bill, accounts, caps, dry_run, sheet, projection, what_if }
}

fn what_if(numbers: &Table, causes: &Table, look_price: f64, wish: Wish) -> WhatIf {
    let number = |name: &str| {
        let row = numbers.rows.iter().find(|row| numbers.get(row, "name") == Some(name));
        row.and_then(|row| numbers.get(row, "value")?.parse::<f64>().ok()).unwrap_or_default()
    };
    let spent = |of: &dyn Fn(&str) -> bool| {
        causes
            .rows
            .iter()
            .filter(|row| of(causes.get(row, "cause").unwrap_or_default()))
            .filter_map(|row| causes.get(row, "dollars")?.parse::<f64>().ok())
            .sum::<f64>()
    };
    let hours = number("telesto_uptime_seconds") / HOUR;
    // What a node spends as it starts says nothing of an hour.
    if hours * HOUR < LEAST_MEASURED {
        return WhatIf { relaxed: wish.relaxed, interval: wish.interval, ..WhatIf::default() };
    }
    let folds = number("telesto_txn_folds_total");
    let now = spent(&|_| true) / hours;
    let folding =
        (spent(&|cause| matches!(cause, "checkpoint" | "compaction" | "gc")) / hours).min(now);
    let looks = (number("telesto_txn_looks_total") * look_price / hours).min(now - folding);
    let measured_interval = (folds > 0.0).then(|| hours * HOUR / folds);
    let wished_folding = match (measured_interval, wish.interval) {
        (Some(measured), Some(wished)) if wished > 0.0 => folding * measured / wished,
        _ => folding,
    };
    let wished_looks = if wish.relaxed { 0.0 } else { looks };
    WhatIf {
        hours,
        folds,
        measured_interval,
        now,
        folding,
        looks,
        interval: wish.interval,
        relaxed: wish.relaxed,
        then: now - folding - looks + wished_folding + wished_looks,
    }
}

/// Intervals that may be wished for.
pub const INTERVALS: std::ops::RangeInclusive<f64> = 1.0..=86_400.0;

/// How long the projection has measured, for people.
pub fn measured(seconds: f64) -> String {
    let span = Duration::from_secs_f64(seconds.clamp(0.0, 1e9));
    match span.as_secs() {
        seconds if seconds < 120 => format!("{seconds} s"),
        seconds => format!("{} min", seconds / 60),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::query::Column;

    fn table(columns: &[&str], rows: &[&[&str]]) -> Table {
        let column =
            |name: &&str| Column { name: (*name).to_owned(), kind: String::new(), number: false };
        Table {
            columns: columns.iter().map(column).collect(),
            rows: rows
                .iter()
                .map(|row| row.iter().map(|value| Some((*value).to_owned())).collect())
                .collect(),
            ..Table::default()
        }
    }

    fn numbers(hours: &str) -> Table {
        table(
            &["name", "value"],
            &[
                &["telesto_uptime_seconds", hours],
                &["telesto_txn_folds_total", "360"],
                &["telesto_txn_looks_total", "5000"],
            ],
        )
    }

    #[test]
    fn longer_interval_and_relaxed_reads_take_off_what_they_cost() {
        let causes = table(
            &["cause", "dollars"],
            &[&["commit", "1"], &["checkpoint", "0.4"], &["compaction", "0.2"], &["read", "0.4"]],
        );
        let wish = Wish { interval: Some(20.0), relaxed: true };
        let found = what_if(&numbers("3600"), &causes, 0.000_01, wish);
        assert_eq!(found.measured_interval, Some(10.0));
        assert!((found.now - 2.0).abs() < 1e-9 && (found.folding - 0.6).abs() < 1e-9);
        assert!((found.looks - 0.05).abs() < 1e-9);
        assert!((found.then - (2.0 - 0.3 - 0.05)).abs() < 1e-9, "{}", found.then);
        let same = what_if(&numbers("3600"), &causes, 0.000_01, Wish::default());
        assert!((same.then - same.now).abs() < 1e-9);
    }

    #[test]
    fn nothing_measured_gives_no_dollars_and_no_division() {
        let empty = Table::default();
        let wish = Wish { interval: Some(60.0), relaxed: false };
        let found = what_if(&empty, &empty, 0.1, wish);
        assert_eq!((found.now, found.then, found.measured_interval), (0.0, 0.0, None));
    }
}
