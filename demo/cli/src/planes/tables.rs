//! The tables of `telesto-demo bench regions`: one for each set of regions, with rows of a key and
//! a value.
//!
//! # Invariants
//! What is placed in a set of regions is in the table of that set, which has all [`Tables::keys`]
//! keys from the beginning.
//!
//! # On failure
//! The statement's error.
//!
//! # Limits
//! 127 tables of seven regions; what two workloads place in the same regions shares a table.

use telesto_common::RegionId;
use telesto_geo::RegionSet;

use crate::sites::{PATIENCE, Site, World, until};
use crate::sql::{connect, full};

/// See the module's text.
#[derive(Clone, Debug)]
pub struct Tables {
    /// Rows of each table.
    pub keys: u32,
}

fn name(set: RegionSet) -> String {
    format!("data_{:03}", set.0)
}

impl Tables {
    pub fn read(set: RegionSet) -> String {
        format!("SELECT v FROM {} WHERE k = $1", name(set))
    }

    pub fn write(set: RegionSet) -> String {
        format!("UPDATE {} SET v = $2 WHERE k = $1", name(set))
    }

    /// Makes the tables in the first region, fills each one in a region that has it, and waits
    /// until all rows are where they belong.
    pub async fn make(&self, world: &World) -> Result<(), String> {
        let regions = world.names.len();
        let sets: Vec<RegionSet> = (1..1_u64 << regions).map(RegionSet).collect();
        let client = connect(&world.sites[0].url()).await?;
        let all = format!("SELECT count(*) FROM telesto_regions HAVING count(*) = {regions}");
        until(&client, &all).await?;
        for set in &sets {
            let table = name(*set);
            let names: Vec<_> =
                set.iter().map(|region| world.names[usize::from(region.0)]).collect();
            let make = format!(
                "CREATE TABLE {table} (k int PRIMARY KEY, v bytea NOT NULL);
                 ALTER TABLE {table} SET (telesto.home = 'any', telesto.regions = '{}')",
                names.join(", ")
            );
            client.batch_execute(&make).await.map_err(|error| full(&error))?;
        }
        let filling = (0..regions).map(|region| self.fill(&world.sites[region], region, &sets));
        futures::future::try_join_all(filling).await?;
        let waiting = (0..regions).map(|region| self.wait(&world.sites[region], region, &sets));
        futures::future::try_join_all(waiting).await.map(|_| ())
    }

    /// Fills the tables whose first region this is.
    async fn fill(&self, site: &Site, region: usize, sets: &[RegionSet]) -> Result<(), String> {
        let client = connect(&site.url()).await?;
        for set in sets.iter().filter(|set| set.iter().next() == Some(id(region))) {
            let table = name(*set);
            let there = format!("SELECT 1 FROM pg_tables WHERE tablename = '{table}'");
            until(&client, &there).await?;
            let rows = format!(
                "INSERT INTO {table} SELECT k, '\\x0000' FROM generate_series(0, {}) AS k",
                self.keys - 1
            );
            let begun = tokio::time::Instant::now();
            // Refused as long as its placement is not known here.
            while let Err(error) = client.batch_execute(&rows).await {
                if begun.elapsed() > PATIENCE {
                    return Err(full(&error));
                }
                tokio::time::sleep(crate::sites::AGAIN).await;
            }
        }
        Ok(())
    }

    async fn wait(&self, site: &Site, region: usize, sets: &[RegionSet]) -> Result<(), String> {
        let client = connect(&site.url()).await?;
        // Else another region would answer for what is not here yet.
        let alone = client.batch_execute("SET telesto.forward_reads = off").await;
        alone.map_err(|error| full(&error))?;
        for set in sets.iter().filter(|set| set.has(id(region))) {
            let table = name(*set);
            let filled = format!("SELECT 1 FROM {table} HAVING count(*) = {}", self.keys);
            until(&client, &filled).await?;
        }
        Ok(())
    }
}

/// The number of a region.
pub fn id(region: usize) -> RegionId {
    RegionId(u16::try_from(region).unwrap_or_default())
}
