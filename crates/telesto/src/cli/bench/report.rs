//! What `telesto bench` says at its end.

use std::time::Duration;

use serde_json::{Value, json};
use tokio_postgres::{Client, SimpleQueryMessage};

use super::super::shell::full;
use super::work::Count;
use super::{Load, Workload};

/// The node's counts of bucket requests.
#[derive(Debug)]
pub struct Usage {
    prices: String,
    dollars: f64,
    /// By kind, in the order of [`KINDS`].
    requests: [f64; 6],
}

const KINDS: [&str; 6] = ["get", "head", "put", "copy", "list", "delete"];

impl Usage {
    /// What the node has counted so far; `None` when it does not tell (PostgreSQL, no bucket).
    ///
    /// # Errors
    /// When the connection is lost.
    pub async fn of(client: &Client) -> Result<Option<Self>, String> {
        let answer = match client.simple_query("SELECT telesto_bucket_usage()").await {
            Ok(answer) => answer,
            Err(error) if error.as_db_error().is_some() => return Ok(None),
            Err(error) => return Err(full(&error)),
        };
        let text = answer.iter().find_map(|message| match message {
            SimpleQueryMessage::Row(row) => row.get(0),
            _ => None,
        });
        let Some(value) = text.and_then(|text| serde_json::from_str::<Value>(text).ok()) else {
            return Ok(None);
        };
        let number = |value: &Value| value.as_f64().unwrap_or_default();
        Ok(Some(Self {
            prices: value["prices"].as_str().unwrap_or_default().to_owned(),
            dollars: number(&value["dollars"]),
            requests: KINDS.map(|kind| number(&value["requests"][kind])),
        }))
    }

    /// What came after `before`.
    pub fn since(mut self, before: &Self) -> Self {
        self.dollars = (self.dollars - before.dollars).max(0.0);
        for (now, then) in self.requests.iter_mut().zip(before.requests) {
            *now -= then;
        }
        self
    }

    fn requests_of(&self, kinds: &[&str]) -> f64 {
        KINDS
            .iter()
            .zip(self.requests)
            .filter(|(kind, _)| kinds.contains(kind))
            .map(|(_, n)| n)
            .sum()
    }
}

/// What was asked for.
#[derive(Debug)]
pub struct Asked {
    workload: Workload,
    clients: u32,
    rows: u64,
}

impl From<&Load> for Asked {
    fn from(load: &Load) -> Self {
        Self { workload: load.workload, clients: load.clients, rows: load.rows }
    }
}

/// A finished run.
#[derive(Debug)]
pub struct Report {
    /// What was asked for.
    pub load: Asked,
    /// From the first transaction to the last.
    pub took: Duration,
    /// What the clients did.
    pub count: Count,
    /// What the node requested meanwhile.
    pub usage: Option<Usage>,
}

impl Report {
    fn millis(&self, quantile: f64) -> f64 {
        self.count.latencies.value_at_quantile(quantile) as f64 / 1e3
    }

    fn per_second(&self) -> f64 {
        self.count.transactions() as f64 / self.took.as_secs_f64()
    }

    fn per_1000(&self, number: f64) -> f64 {
        number * 1000.0 / (self.count.transactions().max(1)) as f64
    }

    /// For people.
    pub fn text(&self) -> String {
        let Asked { workload, clients, rows } = &self.load;
        let seconds = self.took.as_secs_f64();
        let mut out = format!(
            "{}: {clients} clients, {rows} rows, {seconds:.1} s\n\
             transactions  {} ({:.0} a second), {} aborted by conflicts and run again\n\
             latency       p50 {:.2} ms, p95 {:.2} ms, p99 {:.2} ms, longest {:.2} ms\n",
            workload.name(),
            self.count.transactions(),
            self.per_second(),
            self.count.aborts,
            self.millis(0.50),
            self.millis(0.95),
            self.millis(0.99),
            self.count.latencies.max() as f64 / 1e3,
        );
        match &self.usage {
            None => out.push_str("bucket        the server does not tell its requests\n"),
            Some(usage) => out.push_str(&format!(
                "bucket        per 1000 transactions: {:.2} get, {:.2} put, {:.2} list, {:.2} delete; ${:.7} (prices: {})\n",
                self.per_1000(usage.requests_of(&["get", "head"])),
                self.per_1000(usage.requests_of(&["put", "copy"])),
                self.per_1000(usage.requests_of(&["list"])),
                self.per_1000(usage.requests_of(&["delete"])),
                self.per_1000(usage.dollars),
                usage.prices,
            )),
        }
        out
    }

    /// For programs.
    pub fn json(&self) -> String {
        let usage = self.usage.as_ref().map(|usage| {
            let requests: serde_json::Map<String, Value> = KINDS
                .iter()
                .zip(usage.requests)
                .map(|(kind, number)| ((*kind).to_owned(), json!(number)))
                .collect();
            json!({
                "prices": usage.prices,
                "requests": requests,
                "dollars": usage.dollars,
                "dollars_per_1000": self.per_1000(usage.dollars),
            })
        });
        let report = json!({
            "workload": self.load.workload.name(),
            "clients": self.load.clients,
            "rows": self.load.rows,
            "seconds": self.took.as_secs_f64(),
            "transactions": self.count.transactions(),
            "transactions_per_second": self.per_second(),
            "aborts": self.count.aborts,
            "latency_ms": {
                "p50": self.millis(0.50),
                "p95": self.millis(0.95),
                "p99": self.millis(0.99),
                "max": self.count.latencies.max() as f64 / 1e3,
            },
            "bucket": usage,
        });
        format!("{report:#}\n")
    }
}
