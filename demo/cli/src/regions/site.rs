//! The demo's tables, and what is in them at the end.
//!
//! # On failure
//! The statement's error, or the region that does not get what others have.

use tokio::time::Instant;
use tokio_postgres::SimpleQueryMessage;

use super::{REGIONS, name};
use crate::sites::{AGAIN, PATIENCE, until};
use crate::sql::{connect, full};

/// What is sold.
pub const ITEMS: u64 = 200;
const TABLES: [&str; 4] = ["orders", "stock", "pulse", "diary"];

/// Makes the tables, and waits until every region has them and may write its own.
pub async fn place_tables(urls: &[String]) -> Result<(), String> {
    let client = connect(&urls[0]).await?;
    let names = format!("SELECT count(*) FROM telesto_regions HAVING count(*) = {}", REGIONS.len());
    until(&client, &names).await?;
    let statements = format!(
        "CREATE TABLE stock (item int PRIMARY KEY, n bigint NOT NULL);
         INSERT INTO stock SELECT g, 1000 FROM generate_series(0, {}) g;
         CREATE TABLE orders (shop text, n bigint, item int NOT NULL, PRIMARY KEY (shop, n));
         CREATE TABLE pulse (region text PRIMARY KEY, n bigint NOT NULL);
         CREATE TABLE diary (traveller int PRIMARY KEY, n bigint NOT NULL);
         INSERT INTO diary VALUES (1, 0);
         CREATE TABLE fence (region text PRIMARY KEY);
         ALTER TABLE orders SET (telesto.home = 'any');
         ALTER TABLE pulse SET (telesto.home = 'any');
         ALTER TABLE diary SET (telesto.home = 'any');
         ALTER TABLE fence SET (telesto.home = 'any');
         ALTER TABLE stock SET (telesto.home = 'us');",
        ITEMS - 1
    );
    client.batch_execute(&statements).await.map_err(|error| full(&error))?;
    for (region, url) in urls.iter().enumerate() {
        let client = connect(url).await?;
        let begun = Instant::now();
        // Refused until the definitions are there.
        let pulse = format!("INSERT INTO pulse VALUES ('{}', 0)", name(region));
        while let Err(error) = client.batch_execute(&pulse).await {
            if begun.elapsed() > PATIENCE {
                return Err(format!("{} does not get the tables: {}", name(region), full(&error)));
            }
            tokio::time::sleep(AGAIN).await;
        }
        until(&client, &format!("SELECT 1 FROM stock HAVING count(*) = {ITEMS}")).await?;
        until(&client, "SELECT 1 FROM diary").await?;
    }
    Ok(())
}

/// The tables' rows by region, when what each region has committed is everywhere.
pub async fn settled(
    urls: &[String],
) -> Result<Vec<(&'static str, [Vec<String>; REGIONS.len()])>, String> {
    for (region, url) in urls.iter().enumerate() {
        let fence = format!("INSERT INTO fence VALUES ('{}')", name(region));
        connect(url).await?.batch_execute(&fence).await.map_err(|error| full(&error))?;
    }
    let mut found: Vec<_> =
        TABLES.map(|table| (table, <[Vec<String>; REGIONS.len()]>::default())).into();
    for (region, url) in urls.iter().enumerate() {
        let client = connect(url).await?;
        until(&client, &format!("SELECT 1 FROM fence HAVING count(*) = {}", REGIONS.len())).await?;
        for (table, rows) in &mut found {
            let ordered = format!("SELECT * FROM {table} ORDER BY 1, 2");
            let answer = client.simple_query(&ordered).await.map_err(|error| full(&error))?;
            rows[region] = answer.into_iter().filter_map(text).collect();
        }
    }
    Ok(found)
}

fn text(message: SimpleQueryMessage) -> Option<String> {
    let SimpleQueryMessage::Row(row) = message else { return None };
    let cells = (0..row.len()).map(|cell| row.get(cell).unwrap_or("NULL"));
    Some(cells.collect::<Vec<_>>().join("|"))
}
