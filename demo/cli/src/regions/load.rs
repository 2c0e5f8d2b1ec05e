//! The demo's clients: shops, pulses and who looks for them, a traveller.
//!
//! # Invariants
//! What is acknowledged is noted after the acknowledgement, never before.
//!
//! # On failure
//! A conflict is tried again. What else goes wrong ends the client, and is told at the end.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::task::JoinHandle;
use tokio::time::Instant;
use tokio_postgres::{Client, Error};

use super::site::ITEMS;
use super::visibility::Seen;
use super::{REGIONS, name};
use crate::sql::{connect, full};

/// The regions with shops; the first is the home of what is in stock.
const SHOPS: [usize; 2] = [0, 1];
const CLIENTS: u64 = 2;
/// A shop's client waits so long after an order.
const ORDERS: Duration = Duration::from_millis(20);
const PULSE: Duration = Duration::from_millis(50);
/// How often a region is asked for others' pulses.
const LOOK: Duration = Duration::from_millis(2);
const STAY: Duration = Duration::from_millis(50);
/// A traveller waits so long for what it has seen, and then stays where it was: longer than a
/// message and its answer take.
const ATTACH: &str = "1s";

/// Starts them all.
pub fn start(seen: &Arc<Seen>, urls: &[String; REGIONS.len()]) -> Vec<JoinHandle<()>> {
    let mut tasks = Vec::new();
    for (region, url) in urls.iter().enumerate() {
        for client in 0..CLIENTS {
            if SHOPS.contains(&region) {
                tasks.push(run(seen, sell(Arc::clone(seen), url.clone(), region, client)));
            }
        }
        tasks.push(run(seen, pulse(Arc::clone(seen), url.clone(), region)));
        tasks.push(run(seen, look(Arc::clone(seen), url.clone(), region)));
    }
    tasks.push(run(seen, travel(Arc::clone(seen), urls.clone())));
    tasks
}

fn run(
    seen: &Arc<Seen>,
    client: impl Future<Output = Result<(), String>> + Send + 'static,
) -> JoinHandle<()> {
    let seen = Arc::clone(seen);
    tokio::spawn(async move {
        if let Err(error) = client.await {
            seen.fail(error);
        }
    })
}

/// Numbers that look random, the same for the same seed (splitmix64).
fn draw(seed: u64, turn: u64) -> u64 {
    let mut z = seed.wrapping_add(turn.wrapping_mul(0x9E37_79B9_7F4A_7C15));
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

/// Whether it was committed; a conflict was not.
fn done<T>(answer: Result<T, Error>) -> Result<bool, String> {
    match answer {
        Ok(_) => Ok(true),
        Err(error) if error.code().is_some_and(|code| code.code() == "40001") => Ok(false),
        Err(error) => Err(full(&error)),
    }
}

/// A shop's client. At home what is sold is taken from the stock with the order; elsewhere it is
/// only looked whether there is some.
async fn sell(seen: Arc<Seen>, url: String, region: usize, client: u64) -> Result<(), String> {
    let session = connect(&url).await?;
    let shop = format!("{}-{client}", name(region));
    for number in 1_u64.. {
        if !seen.running() {
            break;
        }
        let item = draw(seen.seed ^ (region as u64) << 32 ^ client << 48, number) % ITEMS;
        let order = format!("INSERT INTO orders VALUES ('{shop}', {number}, {item})");
        let sold = if region == SHOPS[0] {
            let take = format!("UPDATE stock SET n = n - 1 WHERE item = {item} AND n > 0; {order}");
            session.batch_execute(&take).await
        } else {
            let some = format!("SELECT n FROM stock WHERE item = {item} AND n > 0");
            match session.query_opt(&some, &[]).await.map_err(|error| full(&error))? {
                Some(_) => session.batch_execute(&order).await,
                None => continue,
            }
        };
        if done(sold)? {
            seen.committed(region);
            seen.ordered(format!("{shop}|{number}|{item}"));
        }
        tokio::time::sleep(ORDERS).await;
    }
    Ok(())
}

/// Counts in a row of its region.
async fn pulse(seen: Arc<Seen>, url: String, region: usize) -> Result<(), String> {
    let session = connect(&url).await?;
    let mut number = 1;
    let mut tick = tokio::time::interval(PULSE);
    tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    while seen.running() {
        tick.tick().await;
        let beat = format!("UPDATE pulse SET n = {number} WHERE region = '{}'", name(region));
        if done(session.batch_execute(&beat).await)? {
            seen.pulsed(region);
            number += 1;
        }
    }
    Ok(())
}

/// Looks in one region for the pulses of the others.
async fn look(seen: Arc<Seen>, url: String, region: usize) -> Result<(), String> {
    let session = connect(&url).await?;
    let query = session.prepare("SELECT region, n FROM pulse").await;
    let query = query.map_err(|error| full(&error))?;
    while seen.running() {
        let rows = session.query(&query, &[]).await.map_err(|error| full(&error))?;
        let now = Instant::now();
        for row in rows {
            let from: &str = row.get(0);
            let number: i64 = row.get(1);
            if let Some(from) = REGIONS.iter().position(|(name, _, _)| *name == from) {
                seen.saw((from, region), number.unsigned_abs(), now);
            }
        }
        tokio::time::sleep(LOOK).await;
    }
    Ok(())
}

/// Writes in its diary, goes elsewhere with its token, and looks there for what it has written.
async fn travel(seen: Arc<Seen>, urls: [String; REGIONS.len()]) -> Result<(), String> {
    let (mut at, mut written) = (0, 0_i64);
    let mut session = connect(&urls[at]).await?;
    for turn in 1.. {
        if !seen.running() {
            break;
        }
        let entry = format!("UPDATE diary SET n = {} WHERE traveller = 1", written + 1);
        if done(session.batch_execute(&entry).await)? {
            written += 1;
        }
        seen.checked(read(&session).await? == written);
        let other = usize::from(draw(seen.seed, turn).is_multiple_of(2)) + 1;
        let to = (at + other) % REGIONS.len();
        let migrate = format!("SELECT telesto_migrate('{}')", name(to));
        let row = session.query_one(&migrate, &[]).await.map_err(|error| full(&error))?;
        let there = connect(&urls[to]).await?;
        let token: &str = row.get(0);
        let attach =
            format!("SET statement_timeout = '{ATTACH}'; SET telesto.session_token = '{token}'");
        match there.batch_execute(&attach).await {
            Ok(()) => {
                seen.checked(read(&there).await? == written);
                seen.moves.fetch_add(1, Ordering::Relaxed);
                (at, session) = (to, there);
            }
            // What it has seen is not there in time.
            Err(error)
                if error.code().is_some_and(|code| matches!(code.code(), "55000" | "57014")) =>
            {
                seen.stayed.fetch_add(1, Ordering::Relaxed);
            }
            Err(error) => return Err(full(&error)),
        }
        tokio::time::sleep(STAY).await;
    }
    Ok(())
}

async fn read(session: &Client) -> Result<i64, String> {
    let row = session.query_one("SELECT n FROM diary WHERE traveller = 1", &[]).await;
    row.map(|row| row.get(0)).map_err(|error| full(&error))
}
