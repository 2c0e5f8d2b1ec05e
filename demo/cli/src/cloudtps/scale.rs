//! CloudTPS' workload of TPC-W's joins and updates on more and more nodes (its Figures 7 and 8).
//!
//! # Invariants
//! - The shop is loaded once; nodes join the cluster that has it, and clients spread over all of
//!   them alike.
//! - Afterwards the shop adds up, and every join has shown as many rows as it has to.
//!
//! # On failure
//! An interaction that is refused for anything but a conflict ends the run.
//!
//! # Limits
//! All nodes and clients share one machine: it shows what a transaction costs on so many nodes, not
//! what so many machines do in a second.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use telesto_bookstore::check;
use telesto_bookstore::connect;
use telesto_bookstore::drive::{self, Live, Load, Run};
use telesto_bookstore::generate::Scale;
use telesto_bookstore::mix::{Interaction, Mix};

use crate::measure::{Measured, Tally};
use crate::nodes::{Cluster, Counted};

/// Records that a transaction reached, and how many transactions did.
type Distribution = BTreeMap<u64, u64>;

/// What was measured with so many nodes.
pub struct Scaled {
    pub nodes: usize,
    pub measured: Measured,
    pub reads: Distribution,
    pub updates: Distribution,
}

/// The mean number of records.
pub fn mean(distribution: &Distribution) -> f64 {
    let count: u64 = distribution.values().sum();
    let all: u64 = distribution.iter().map(|(records, times)| records * times).sum();
    all as f64 / count.max(1) as f64
}

/// Records that an interaction which showed `rows` rows has reached, entries of indexes that it
/// looks up or writes included; nothing for what is no interaction of this mix, or cannot show so
/// many.
fn records(interaction: Interaction, rows: u64) -> Option<u64> {
    match (interaction, rows) {
        // The book and its author.
        (Interaction::JoinAuthor, 1) => Some(2),
        // The order and its lines.
        (Interaction::JoinLines, 1..=5) => Some(1 + rows),
        // The entry of the customer's name, the customer, the address, the country.
        (Interaction::JoinCountry, 1) => Some(4),
        // The order, its lines, a book for each.
        (Interaction::JoinBooks, 1..=5) => Some(1 + 2 * rows),
        // The cart, its entry, the book's price, the line.
        (Interaction::NewCart, 0) => Some(4),
        (Interaction::Price, 0) => Some(1),
        _ => None,
    }
}

/// Lets `clients` browsers of each node run the mix for `time`.
pub async fn measure(
    cluster: &Cluster,
    scale: Scale,
    clients: u32,
    time: Duration,
    (idle, seed): (Counted, u64),
) -> Result<Scaled, String> {
    // Plans, and rows that are met for the first time.
    drive_all(cluster, scale, clients, time.min(Duration::from_secs(1)), seed ^ 1).await?;
    let before = cluster.counted().await?;
    let runs = drive_all(cluster, scale, clients, time, seed).await?;
    let after = cluster.counted().await?;
    let took = runs.iter().map(|run| run.took).max().unwrap_or_default();
    let counted = after.since(before).less(idle, took.as_secs_f64());
    let mut tally = Tally::new()?;
    let (mut reads, mut updates) = (Distribution::new(), Distribution::new());
    for (interaction, of) in runs.iter().flat_map(|run| &run.tallies) {
        if let Some((code, (_, message))) = of.errors.first_key_value() {
            return Err(format!("{} was refused: {code}, {message}", interaction.name()));
        }
        tally.add(&Tally { times: of.measured.clone(), conflicts: of.retries.values().sum() });
        let into = if interaction.writes() { &mut updates } else { &mut reads };
        for (rows, times) in &of.by_rows {
            let records = records(*interaction, *rows).ok_or_else(|| {
                format!(
                    "{} showed {rows} rows: please report this with the nodes' folders",
                    interaction.name()
                )
            })?;
            *into.entry(records).or_default() += times;
        }
    }
    for url in cluster.urls() {
        let client = connect(&url).await.map_err(|error| error.to_string())?;
        check::check(&client, scale, &[]).await.map_err(|error| error.to_string())?;
    }
    let measured = Measured { tally, took, counted };
    Ok(Scaled { nodes: cluster.nodes.len(), measured, reads, updates })
}

async fn drive_all(
    cluster: &Cluster,
    scale: Scale,
    clients: u32,
    length: Duration,
    seed: u64,
) -> Result<Vec<Run>, String> {
    let runs = (0_u64..).zip(cluster.urls()).map(|(node, url)| {
        let load = Load {
            url,
            scale,
            mix: Mix::Joins,
            clients: clients.into(),
            length,
            rate: None,
            // Browsers of different nodes make different choices.
            seed: seed ^ (node << 48),
            set: None,
        };
        drive::run(load, Arc::new(Live::default()))
    });
    futures::future::try_join_all(runs.collect::<Vec<_>>()).await.map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_interaction_of_the_mix_has_its_records_and_a_join_that_shows_nothing_has_none() {
        for (interaction, _) in Mix::Joins.weights() {
            let rows = u64::from(!interaction.writes());
            assert!(records(*interaction, rows).is_some(), "{interaction:?}");
            if !interaction.writes() {
                assert_eq!(records(*interaction, 0), None, "{interaction:?}");
            }
        }
        assert_eq!(mean(&BTreeMap::from([(2, 3), (6, 1)])), 3.0);
    }
}
