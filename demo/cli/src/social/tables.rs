//! The network's tables: a table of walls for each set of regions that holds users' data, loaded,
//! compared, looked into.
//!
//! # Invariants
//! A user's wall is in the table of exactly the regions of its placement. Row 0 of a wall is the
//! user's settings, the others are posts.
//!
//! # On failure
//! The statement's error; what differs between replicas, by table and region.
//!
//! # Limits
//! Replicas are compared by sums over their rows.

use std::collections::{BTreeMap, BTreeSet};

use telesto_common::RegionId;
use telesto_geo::{Latencies, RegionSet};
use telesto_social::{Graph, REGIONS};
use tokio::time::Instant;
use tokio_postgres::{Client, SimpleQueryMessage};

use super::NAMES;
use crate::sites::{AGAIN, PATIENCE, until};
use crate::sql::{connect, full};

/// Users in one statement when they are loaded.
const TOGETHER: usize = 500;

/// The graph and where it is.
pub struct Network {
    pub graph: Graph,
    pub urls: Vec<String>,
    latencies: Latencies,
    /// The sets of regions, each with its table.
    groups: Vec<RegionSet>,
    by_set: BTreeMap<u64, usize>,
}

fn id(region: usize) -> RegionId {
    RegionId(u16::try_from(region).unwrap_or_default())
}

/// The rows that a statement shows, as texts.
pub async fn rows(
    client: &Client,
    statement: &str,
) -> Result<Vec<Vec<Option<String>>>, tokio_postgres::Error> {
    let answer = client.simple_query(statement).await?;
    let row = |message| {
        let SimpleQueryMessage::Row(row) = message else { return None };
        Some((0..row.len()).map(|cell| row.get(cell).map(str::to_owned)).collect())
    };
    Ok(answer.into_iter().filter_map(row).collect())
}

impl Network {
    pub fn new(graph: Graph, urls: Vec<String>, latencies: Latencies) -> Self {
        let sets: BTreeSet<u64> = graph.placements.iter().map(|set| set.0).collect();
        let groups = sets.iter().map(|set| RegionSet(*set)).collect();
        let by_set = sets.into_iter().zip(0..).collect();
        Self { graph, urls, latencies, groups, by_set }
    }

    pub fn groups(&self) -> usize {
        self.groups.len()
    }

    pub fn is_in(&self, user: u32, region: usize) -> bool {
        self.graph.placements[user as usize].has(id(region))
    }

    /// The table of a user's wall.
    pub fn wall(&self, user: u32) -> String {
        let set = self.graph.placements[user as usize];
        format!("wall_{:02}", self.by_set.get(&set.0).copied().unwrap_or_default())
    }

    /// The region nearest to `region` that holds the data of `user`.
    pub fn nearest(&self, user: u32, region: usize) -> usize {
        let regions = self.graph.placements[user as usize].iter();
        let nearest = regions.min_by_key(|other| self.latencies.get(id(region), *other));
        nearest.map_or(region, |nearest| usize::from(nearest.0))
    }

    pub fn one_way(&self, from: usize, to: usize) -> std::time::Duration {
        std::time::Duration::from_micros(self.latencies.get(id(from), id(to)))
    }

    /// Makes the tables in the first region, and waits until every region has them.
    pub async fn make_tables(&self) -> Result<(), String> {
        let client = connect(&self.urls[0]).await?;
        until(
            &client,
            &format!("SELECT count(*) FROM telesto_regions HAVING count(*) = {REGIONS}"),
        )
        .await?;
        let mut statements = String::new();
        for (group, set) in self.groups.iter().enumerate() {
            let names: Vec<_> = set.iter().map(|region| NAMES[usize::from(region.0)]).collect();
            statements.push_str(&format!(
                "CREATE TABLE wall_{group:02} (owner int, n bigint, body text NOT NULL, about int, about_n bigint, PRIMARY KEY (owner, n));
                 ALTER TABLE wall_{group:02} SET (telesto.home = 'any', telesto.regions = '{}');",
                names.join(", ")
            ));
        }
        // The last one: who has it has all.
        statements.push_str(
            "CREATE TABLE fence (step int, region text, PRIMARY KEY (step, region)); ALTER TABLE fence SET (telesto.home = 'any');",
        );
        client.batch_execute(&statements).await.map_err(|error| full(&error))?;
        self.fence(0).await
    }

    /// Waits until everything that was committed in any region before is in all regions where it
    /// belongs.
    pub async fn fence(&self, step: u32) -> Result<(), String> {
        for (region, url) in self.urls.iter().enumerate() {
            let client = connect(url).await?;
            let begun = Instant::now();
            let fence = format!("INSERT INTO fence VALUES ({step}, '{}')", NAMES[region]);
            // Refused until the table is there.
            while let Err(error) = client.batch_execute(&fence).await {
                if begun.elapsed() > PATIENCE {
                    return Err(format!(
                        "{} does not get the tables: {}",
                        NAMES[region],
                        full(&error)
                    ));
                }
                tokio::time::sleep(AGAIN).await;
            }
        }
        for url in &self.urls {
            let client = connect(url).await?;
            let all =
                format!("SELECT 1 FROM fence WHERE step = {step} HAVING count(*) = {REGIONS}");
            until(&client, &all).await?;
        }
        Ok(())
    }

    /// Every region brings in the users that are at home there.
    pub async fn load(&self) -> Result<(), String> {
        let loading = (0..REGIONS).map(|region| self.load_region(region));
        futures::future::try_join_all(loading).await.map(|_| ())
    }

    async fn load_region(&self, region: usize) -> Result<(), String> {
        let client = connect(&self.urls[region]).await?;
        let mut by_wall: BTreeMap<String, Vec<u32>> = BTreeMap::new();
        for (user, home) in (0_u32..).zip(&self.graph.homes) {
            if *home == id(region) {
                by_wall.entry(self.wall(user)).or_default().push(user);
            }
        }
        for (wall, users) in by_wall {
            for users in users.chunks(TOGETHER) {
                let row = |user: &u32| {
                    let friends = self.graph.friends[*user as usize].len();
                    format!("({user}, 0, 'settings; {friends} friends', NULL, NULL)")
                };
                let values: Vec<_> = users.iter().map(row).collect();
                let insert = format!("INSERT INTO {wall} VALUES {}", values.join(", "));
                client.batch_execute(&insert).await.map_err(|error| full(&error))?;
            }
        }
        Ok(())
    }

    /// Compares the copies of each table; how many rows there are, without and with their copies.
    pub async fn compare(&self) -> Result<(u64, u64), String> {
        let mut clients = Vec::new();
        for url in &self.urls {
            let client = connect(url).await?;
            // Else another region would answer for what is not here.
            let alone = client.batch_execute("SET telesto.forward_reads = off").await;
            alone.map_err(|error| full(&error))?;
            clients.push(client);
        }
        let (mut all, mut copies) = (0, 0);
        for (group, set) in self.groups.iter().enumerate() {
            let sums = format!(
                "SELECT count(*), sum(owner), sum(n), sum(length(body)), sum(about), sum(about_n) FROM wall_{group:02}"
            );
            let mut first: Option<Vec<Vec<Option<String>>>> = None;
            for (region, client) in clients.iter().enumerate() {
                let found = rows(client, &sums).await;
                if !set.has(id(region)) {
                    if found.is_ok() {
                        return Err(format!(
                            "{} answers for wall_{group:02}, which is not placed there",
                            NAMES[region]
                        ));
                    }
                    continue;
                }
                let found = found.map_err(|error| full(&error))?;
                let count =
                    found.first().and_then(|row| row.first()?.as_deref()?.parse::<u64>().ok());
                copies += count.unwrap_or_default();
                match &first {
                    None => {
                        all += count.unwrap_or_default();
                        first = Some(found);
                    }
                    Some(first) if *first == found => {}
                    Some(first) => {
                        return Err(format!(
                            "wall_{group:02} differs in {}: {found:?}, elsewhere {first:?}",
                            NAMES[region]
                        ));
                    }
                }
            }
        }
        Ok((all, copies))
    }

    /// How many of these posts (owner, number) are not there.
    pub async fn missing(&self, posts: &[(u32, i64)]) -> Result<usize, String> {
        let mut found = BTreeSet::new();
        for (group, set) in self.groups.iter().enumerate() {
            let Some(region) = set.iter().next() else { continue };
            let client = connect(&self.urls[usize::from(region.0)]).await?;
            let all = format!("SELECT owner, n FROM wall_{group:02} WHERE n > 0");
            for row in rows(&client, &all).await.map_err(|error| full(&error))? {
                let number = |cell: usize| row.get(cell)?.as_deref()?.parse::<i64>().ok();
                if let (Some(owner), Some(n)) = (number(0), number(1)) {
                    found.insert((owner, n));
                }
            }
        }
        Ok(posts.iter().filter(|(owner, n)| !found.contains(&(i64::from(*owner), *n))).count())
    }

    /// What the links carried, by each sender's own count.
    pub async fn metadata(&self) -> Result<String, String> {
        let (mut sent, mut bytes, mut metadata) = (0, 0, 0);
        for (region, url) in self.urls.iter().enumerate() {
            let client = connect(url).await?;
            let own = format!(
                "SELECT sum(sent_transactions)::int8, sum(sent_bytes)::int8, sum(metadata_bytes)::int8 FROM telesto_links WHERE from_region = '{}'",
                NAMES[region]
            );
            let row = client.query_one(&own, &[]).await.map_err(|error| full(&error))?;
            let number = |cell: usize| row.get::<_, Option<i64>>(cell).unwrap_or_default();
            sent += number(0);
            bytes += number(1);
            metadata += number(2);
        }
        let each = |bytes: i64| bytes as f64 / sent.max(1) as f64;
        Ok(format!(
            "Sent between regions: {sent} copies of transactions, {:.0} bytes each, packed; {:.0} bytes each, unpacked, say what they wait for and where streams stand.",
            each(bytes),
            each(metadata)
        ))
    }
}
