//! What a run came to, for people and for programs.
//!
//! # The JSON report
//! ```text
//! { "format": 1, "target", "mix", "clients", "seconds", "loop": "open" | "closed", "rate": number | null,
//!   "scale": { "customers", "items", "seed" },
//!   "unserved": n, "total": T, "interactions": { NAME: T, … },
//!   "checked": { "orders", "acknowledged", "items" } | null,
//!   "bucket": { "prices", "requests": { KIND: number }, "dollars", "dollars_per_1000" } | null }
//! T = { "count", "per_second", "rows", "latency_ms": L, "measured_latency_ms": L,
//!       "retries": { SQLSTATE: n }, "errors": { SQLSTATE: { "count", "message" } } }
//! L = { "mean", "p50", "p90", "p95", "p99", "p999", "max" }
//! ```
//! `latency_ms` is corrected for coordinated omission, `measured_latency_ms` is as recorded (the
//! same in an open loop). `unserved` is how many were due in an open loop and not begun when it
//! gave up. `bucket` is null where the server does not tell (PostgreSQL).

use std::collections::BTreeMap;
use std::fmt::Write as _;

use hdrhistogram::Histogram;
use serde_json::{Map, Value, json};
use tokio_postgres::{Client, SimpleQueryMessage};

use crate::check::Checked;
use crate::drive::{Run, Tally};

/// The node's counts of bucket requests.
#[derive(Clone, Debug)]
pub struct Usage {
    /// The price sheet.
    pub prices: String,
    /// Dollars so far.
    pub dollars: f64,
    /// Requests so far, by kind.
    pub requests: BTreeMap<String, f64>,
}

impl Usage {
    /// What the node has counted so far; `None` when it does not tell.
    pub async fn of(client: &Client) -> Option<Self> {
        let answer = client.simple_query("SELECT telesto_bucket_usage()").await.ok()?;
        let text = answer.iter().find_map(|message| match message {
            SimpleQueryMessage::Row(row) => row.get(0),
            _ => None,
        })?;
        let value: Value = serde_json::from_str(text).ok()?;
        let requests = value["requests"].as_object()?.iter();
        Some(Self {
            prices: value["prices"].as_str()?.to_owned(),
            dollars: value["dollars"].as_f64()?,
            requests: requests.filter_map(|(k, v)| Some((k.clone(), v.as_f64()?))).collect(),
        })
    }

    /// What came after `before`.
    #[must_use]
    pub fn since(mut self, before: &Self) -> Self {
        self.dollars = (self.dollars - before.dollars).max(0.0);
        for (kind, number) in &mut self.requests {
            *number -= before.requests.get(kind).copied().unwrap_or_default();
        }
        self
    }
}

/// A run with what was checked and what it cost.
#[derive(Debug)]
pub struct Report {
    /// The run.
    pub run: Run,
    /// What was checked, if it was.
    pub checked: Option<Checked>,
    /// What the node asked of its bucket meanwhile.
    pub usage: Option<Usage>,
}

fn millis(latencies: &Histogram<u64>, quantile: f64) -> f64 {
    latencies.value_at_quantile(quantile) as f64 / 1e3
}

fn latency(latencies: &Histogram<u64>) -> Value {
    json!({
        "mean": latencies.mean() / 1e3,
        "p50": millis(latencies, 0.50),
        "p90": millis(latencies, 0.90),
        "p95": millis(latencies, 0.95),
        "p99": millis(latencies, 0.99),
        "p999": millis(latencies, 0.999),
        "max": latencies.max() as f64 / 1e3,
    })
}

impl Report {
    fn per_second(&self, tally: &Tally) -> f64 {
        tally.measured.len() as f64 / self.run.took.as_secs_f64()
    }

    fn per_1000(&self, number: f64) -> f64 {
        number * 1000.0 / self.run.total().measured.len().max(1) as f64
    }

    fn tally(&self, tally: &Tally) -> Value {
        let errors: Map<String, Value> = tally
            .errors
            .iter()
            .map(|(code, (count, message))| {
                (code.clone(), json!({ "count": count, "message": message }))
            })
            .collect();
        json!({
            "count": tally.measured.len(),
            "per_second": self.per_second(tally),
            "rows": tally.rows,
            "latency_ms": latency(&self.run.corrected(tally)),
            "measured_latency_ms": latency(&tally.measured),
            "retries": tally.retries,
            "errors": errors,
        })
    }

    /// For programs; the shape is above.
    #[must_use]
    pub fn json(&self) -> Value {
        let load = &self.run.load;
        let interactions: Map<String, Value> = self
            .run
            .tallies
            .iter()
            .map(|(interaction, tally)| (interaction.name().to_owned(), self.tally(tally)))
            .collect();
        json!({
            "format": 1,
            "target": load.url,
            "mix": load.mix.name(),
            "clients": load.clients,
            "seconds": self.run.took.as_secs_f64(),
            "loop": if load.rate.is_some() { "open" } else { "closed" },
            "rate": load.rate,
            "scale": {
                "customers": load.scale.customers,
                "items": load.scale.items,
                "seed": load.scale.seed,
            },
            "unserved": self.run.unserved,
            "total": self.tally(&self.run.total()),
            "interactions": interactions,
            "checked": self.checked.map(|checked| json!({
                "orders": checked.orders,
                "acknowledged": checked.acknowledged,
                "items": checked.items,
            })),
            "bucket": self.usage.as_ref().map(|usage| json!({
                "prices": usage.prices,
                "requests": usage.requests,
                "dollars": usage.dollars,
                "dollars_per_1000": self.per_1000(usage.dollars),
            })),
        })
    }

    /// For people.
    #[must_use]
    pub fn text(&self) -> String {
        let load = &self.run.load;
        let total = self.run.total();
        let looped = match load.rate {
            Some(rate) => format!("open loop, {rate} due a second"),
            None => "closed loop".to_owned(),
        };
        let mut out = format!(
            "{} mix: {} clients, {looped}, {:.1} s, {} customers, {} items\n",
            load.mix.name(),
            load.clients,
            self.run.took.as_secs_f64(),
            load.scale.customers,
            load.scale.items
        );
        let _ = writeln!(
            out,
            "{:<34} {:>9} {:>9} {:>9} {:>9} {:>9} {:>9} {:>8} {:>7}",
            "milliseconds",
            "count",
            "a second",
            "p50",
            "p95",
            "p99",
            "longest",
            "retries",
            "errors"
        );
        let named = self.run.tallies.iter().map(|(i, tally)| (i.name(), tally));
        for (name, tally) in named.chain([("all", &total)]) {
            let latencies = self.run.corrected(tally);
            let _ = writeln!(
                out,
                "{name:<34} {:>9} {:>9.1} {:>9.2} {:>9.2} {:>9.2} {:>9.2} {:>8} {:>7}",
                tally.measured.len(),
                self.per_second(tally),
                millis(&latencies, 0.50),
                millis(&latencies, 0.95),
                millis(&latencies, 0.99),
                latencies.max() as f64 / 1e3,
                tally.retries.values().sum::<u64>(),
                tally.errors.values().map(|(count, _)| count).sum::<u64>(),
            );
        }
        if self.run.unserved > 0 {
            let _ = writeln!(out, "{} interactions were due and never begun", self.run.unserved);
        }
        let retries: Vec<String> =
            total.retries.iter().map(|(code, count)| format!("{code}: {count}")).collect();
        if !retries.is_empty() {
            let _ = writeln!(out, "tried again after conflicts: {}", retries.join(", "));
        }
        for (code, (count, message)) in &total.errors {
            let _ = writeln!(out, "refused with {code}: {count}, the first: {message}");
        }
        if let Some(checked) = &self.checked {
            let _ = writeln!(
                out,
                "checked: {} orders and the stock of {} items add up; all {} acknowledged orders are there",
                checked.orders, checked.items, checked.acknowledged
            );
        }
        match &self.usage {
            None => out.push_str("bucket: the server does not tell its requests\n"),
            Some(usage) => {
                let requests: Vec<String> = usage
                    .requests
                    .iter()
                    .filter(|(_, count)| **count > 0.0)
                    .map(|(kind, count)| format!("{:.2} {kind}", self.per_1000(*count)))
                    .collect();
                let _ = writeln!(
                    out,
                    "bucket, for 1000 interactions: {}; ${:.7} (prices: {})",
                    if requests.is_empty() {
                        "no requests".to_owned()
                    } else {
                        requests.join(", ")
                    },
                    self.per_1000(usage.dollars),
                    usage.prices
                );
            }
        }
        out
    }
}
