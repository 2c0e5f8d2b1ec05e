//! The workloads of a comparison.
//!
//! # Invariants
//! The key joins all read twelve records, so that only the length of their path differs, as in seed
//! 002's experiment. COPY goes into a table of its own, made and dropped outside of what is timed.

use std::fmt::Write as _;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures::SinkExt as _;
use futures::future::try_join_all;
use rand::rngs::SmallRng;
use rand::{Rng as _, SeedableRng as _};
use tokio_postgres::{Client, Statement};

use super::{Plan, Sample, Target};
use crate::browser::is_conflict;
use crate::drive::{Live, Load, Tally, run};
use crate::error::{Error, Result, connect};
use crate::generate::Scale;
use crate::mix::Mix;
use crate::words::text;

/// A kind of work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Workload {
    /// A book by its key.
    PointRead,
    /// A transaction block: a customer read by key, then written.
    ReadWrite,
    /// One of the shop's mixes.
    Mix(Mix),
    /// Six books and their authors.
    Join1,
    /// Four customers, their addresses and countries.
    Join2,
    /// Three orders, their customers, addresses and countries.
    Join3,
    /// COPY of many rows.
    Copy,
    /// Five tables joined and grouped.
    Analytical,
}

impl Workload {
    /// All, in the order they are run: what writes comes late.
    pub const ALL: [Self; 12] = [
        Self::PointRead,
        Self::Join1,
        Self::Join2,
        Self::Join3,
        Self::Analytical,
        Self::Mix(Mix::Joins),
        Self::Mix(Mix::Browsing),
        Self::Mix(Mix::Shopping),
        Self::Mix(Mix::Ordering),
        Self::Mix(Mix::Customer),
        Self::ReadWrite,
        Self::Copy,
    ];

    /// Its name.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::PointRead => "point-read",
            Self::ReadWrite => "read-write",
            Self::Mix(mix) => mix.name(),
            Self::Join1 => "join-1",
            Self::Join2 => "join-2",
            Self::Join3 => "join-3",
            Self::Copy => "copy",
            Self::Analytical => "analytical",
        }
    }

    /// The workload of that name.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|workload| workload.name() == name)
    }
}

const POINT_READ: &str = "SELECT i_title, i_cost::text, i_stock FROM item WHERE i_id = $1";
const READ: &str = "SELECT c_fname, c_lname, c_balance::text FROM customer WHERE c_id = $1";
const WRITE: &str = "UPDATE customer SET c_balance = c_balance + 1 WHERE c_id = $1";
const JOIN_1: &str = "SELECT i_id, i_title, a_fname, a_lname FROM item JOIN author ON a_id = i_a_id WHERE i_id IN ($1, $2, $3, $4, $5, $6)";
const JOIN_2: &str = "SELECT c_id, c_lname, addr_city, co_name FROM customer JOIN address ON addr_id = c_addr_id JOIN country ON co_id = addr_co_id \
    WHERE c_id IN ($1, $2, $3, $4)";
const JOIN_3: &str = "SELECT o_id, c_lname, addr_city, co_name FROM orders JOIN customer ON c_id = o_c_id JOIN address ON addr_id = c_addr_id \
    JOIN country ON co_id = addr_co_id WHERE o_id IN ($1, $2, $3)";
/// Which countries buy which subjects.
const ANALYTICAL: &str = "SELECT co_name, i_subject, count(*) AS lines, sum(ol_qty) AS books, sum(ol_qty * i_cost * (1 - ol_discount)) AS sold \
    FROM order_line JOIN orders ON o_id = ol_o_id JOIN item ON i_id = ol_i_id JOIN address ON addr_id = o_ship_addr_id \
    JOIN country ON co_id = addr_co_id GROUP BY co_name, i_subject ORDER BY sold DESC, co_name, i_subject LIMIT 20";
const COPY_TABLE: &str = "bookstore_copy";

/// One measurement of one target.
pub(super) async fn measure(
    plan: &Plan,
    workload: Workload,
    target: &Target,
    round: u64,
) -> Result<Sample> {
    let seed = plan.seed.wrapping_add(round);
    match workload {
        Workload::Mix(mix) => measure_mix(plan, mix, target, seed).await,
        Workload::Copy => measure_copy(plan, target, seed).await,
        _ => measure_statement(plan, workload, target, seed).await,
    }
}

fn sample(count: u64, took: Duration, latencies: &hdrhistogram::Histogram<u64>) -> Sample {
    let millis = |quantile| latencies.value_at_quantile(quantile) as f64 / 1e3;
    Sample { per_second: count as f64 / took.as_secs_f64(), p50: millis(0.5), p99: millis(0.99) }
}

async fn measure_mix(plan: &Plan, mix: Mix, target: &Target, seed: u64) -> Result<Sample> {
    let load = Load {
        url: target.url.clone(),
        scale: plan.scale,
        mix,
        clients: plan.clients,
        length: plan.length,
        rate: None,
        seed,
        set: plan.set.clone(),
    };
    let run = run(load, Arc::new(Live::default())).await?;
    let total = run.total();
    let refused: u64 = total.errors.values().map(|(count, _)| count).sum();
    if refused * 100 > total.measured.len() {
        return Err(Error::Asked(format!(
            "{} refused {refused} interactions of the {} mix beside {} it did ({:?}): that is no measurement",
            target.name,
            mix.name(),
            total.measured.len(),
            total.errors
        )));
    }
    Ok(sample(total.measured.len(), run.took, &run.corrected(&total)))
}

struct Prepared {
    client: Client,
    first: Statement,
    second: Option<Statement>,
}

async fn measure_statement(
    plan: &Plan,
    workload: Workload,
    target: &Target,
    seed: u64,
) -> Result<Sample> {
    let (first, second) = match workload {
        Workload::ReadWrite => (READ, Some(WRITE)),
        Workload::Join1 => (JOIN_1, None),
        Workload::Join2 => (JOIN_2, None),
        Workload::Join3 => (JOIN_3, None),
        Workload::Analytical => (ANALYTICAL, None),
        _ => (POINT_READ, None),
    };
    let failed =
        |error| Error::database(&format!("{} on {}", workload.name(), target.name), &error);
    let mut connections = Vec::new();
    for _ in 0..plan.clients {
        let client = connect(&target.url).await?;
        if let Some(set) = &plan.set {
            client.batch_execute(set).await.map_err(failed)?;
        }
        let prepared = Prepared {
            first: client.prepare(first).await.map_err(failed)?,
            second: match second {
                Some(second) => Some(client.prepare(second).await.map_err(failed)?),
                None => None,
            },
            client,
        };
        connections.push(prepared);
    }
    let begun = Instant::now();
    let until = begun + plan.length;
    let scale = plan.scale;
    let tasks = (0_u64..).zip(connections).map(|(number, mut prepared)| {
        let mut rng = SmallRng::seed_from_u64(seed ^ (number << 32));
        tokio::spawn(async move {
            let mut tally = Tally::new();
            while Instant::now() < until {
                let from = Instant::now();
                once(&mut prepared, workload, scale, &mut rng).await?;
                let micros = u64::try_from(from.elapsed().as_micros()).unwrap_or(u64::MAX);
                tally.measured.saturating_record(micros.max(1));
            }
            Ok::<_, tokio_postgres::Error>(tally)
        })
    });
    let ended = try_join_all(tasks.collect::<Vec<_>>()).await;
    let took = begun.elapsed();
    let mut total = Tally::new();
    for tally in ended.map_err(|error| Error::Asked(format!("a client died: {error}")))? {
        total.add(&tally.map_err(failed)?);
    }
    Ok(sample(total.measured.len(), took, &total.measured))
}

fn different(rng: &mut SmallRng, count: usize, most: u64) -> Vec<i64> {
    let mut ids = Vec::with_capacity(count);
    while ids.len() < count {
        let id = rng.random_range(1..=most.cast_signed());
        if !ids.contains(&id) {
            ids.push(id);
        }
    }
    ids
}

/// One operation.
async fn once(
    prepared: &mut Prepared,
    workload: Workload,
    scale: Scale,
    rng: &mut SmallRng,
) -> std::result::Result<(), tokio_postgres::Error> {
    let most = match workload {
        Workload::PointRead | Workload::Join1 => scale.items,
        Workload::Join3 => scale.orders(),
        _ => scale.customers,
    };
    let count = match workload {
        Workload::Join1 => 6,
        Workload::Join2 => 4,
        Workload::Join3 => 3,
        Workload::Analytical => 0,
        _ => 1,
    };
    let ids = different(rng, count, most);
    if let Some(write) = &prepared.second {
        loop {
            let tried = async {
                let transaction = prepared.client.transaction().await?;
                transaction.query(&prepared.first, &[&ids[0]]).await?;
                transaction.execute(write, &[&ids[0]]).await?;
                transaction.commit().await
            };
            match tried.await {
                Err(error) if error.code().is_some_and(|code| is_conflict(code.code())) => {}
                other => return other,
            }
        }
    }
    let parameters: Vec<&(dyn tokio_postgres::types::ToSql + Sync)> =
        ids.iter().map(|id| id as _).collect();
    prepared.client.query(&prepared.first, &parameters).await?;
    Ok(())
}

/// Makes the empty table that COPY goes into.
///
/// # Errors
/// What the server refused.
pub async fn prepare_copy(client: &Client) -> Result<()> {
    let make = format!(
        "DROP TABLE IF EXISTS {COPY_TABLE}; CREATE TABLE {COPY_TABLE} (id bigint PRIMARY KEY, customer bigint NOT NULL, \
         amount numeric(15,2) NOT NULL, bought timestamp NOT NULL, note text NOT NULL)"
    );
    let failed = |error| Error::database("making the table for COPY", &error);
    client.batch_execute(&make).await.map_err(failed)
}

/// Drops it.
///
/// # Errors
/// What the server refused.
pub async fn remove_copy(client: &Client) -> Result<()> {
    let failed = |error| Error::database("dropping the table for COPY", &error);
    client.batch_execute(&format!("DROP TABLE IF EXISTS {COPY_TABLE}")).await.map_err(failed)
}

/// Bytes handed to the connection at once.
const CHUNK_BYTES: usize = 256 << 10;

async fn measure_copy(plan: &Plan, target: &Target, seed: u64) -> Result<Sample> {
    let client = connect(&target.url).await?;
    prepare_copy(&client).await?;
    let failed = |error| Error::database(&format!("COPY on {}", target.name), &error);
    let mut rng = SmallRng::seed_from_u64(seed);
    let note = text(&mut rng, 40, 40);
    let begun = Instant::now();
    let sink = client.copy_in(&format!("COPY {COPY_TABLE} FROM STDIN")).await.map_err(failed)?;
    let mut sink = std::pin::pin!(sink);
    let mut chunk = String::with_capacity(CHUNK_BYTES + 256);
    for id in 1..=plan.copy_rows {
        let customer = rng.random_range(1..=plan.scale.customers);
        let cents = rng.random_range(100..=999_999_u64);
        let _ = writeln!(
            chunk,
            "{id}\t{customer}\t{}.{:02}\t2026-01-{:02} 12:{:02}:00\t{note}",
            cents / 100,
            cents % 100,
            1 + id % 28,
            id % 60
        );
        if chunk.len() >= CHUNK_BYTES || id == plan.copy_rows {
            let full = std::mem::replace(&mut chunk, String::with_capacity(CHUNK_BYTES + 256));
            sink.send(Bytes::from(full)).await.map_err(failed)?;
        }
    }
    let rows = sink.finish().await.map_err(failed)?;
    let took = begun.elapsed();
    if rows != plan.copy_rows {
        return Err(Error::Lost(format!("COPY of {} rows took {rows}", plan.copy_rows)));
    }
    remove_copy(&client).await?;
    let millis = took.as_secs_f64() * 1e3;
    Ok(Sample { per_second: rows as f64 / took.as_secs_f64(), p50: millis, p99: millis })
}
