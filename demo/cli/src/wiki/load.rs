//! `telesto-demo bench wiki`: readers and editors of a wiki, beside Scalaris' figures (§5).
//!
//! # Invariants
//! - An acknowledged edit is noted after its acknowledgement; at the end each one must be in its
//!   page's history, and links and categories of every page must be those of its newest text.
//! - Latencies are of whole pages and whole edits, repeated tries included.
//!
//! # On failure
//! What a client met ends the run, and is told.
//!
//! # Limits
//! A closed loop. Pages are drawn alike; the first 100,000 by their number.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use clap::Args;
use hdrhistogram::Histogram;
use parking_lot::Mutex;
use rand::rngs::SmallRng;
use rand::{Rng as _, SeedableRng as _};
use telesto_common::units::Span;
use telesto_mediawiki::wiki::{Edit, Outcome};

use super::{Pool, prepared};
use crate::sql::{connect, full};

/// `telesto-demo bench wiki`.
#[derive(Debug, Args)]
pub struct Load {
    /// The nodes; clients go to each in turn: --url A --url B
    #[arg(long = "url", env = "TELESTO_URL", default_value = crate::DEFAULT_URL)]
    urls: Vec<String>,
    /// Clients
    #[arg(long, default_value_t = 8)]
    clients: u64,
    /// For how long
    #[arg(long, value_name = "TIME", default_value = "10s")]
    time: Span,
    /// How many of 100 requests are edits
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(0..=100))]
    edits: u32,
    /// What is drawn
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

/// What clients met.
#[derive(Debug)]
struct Met {
    stop: AtomicBool,
    reads: Mutex<Histogram<u64>>,
    edits: Mutex<Histogram<u64>>,
    overtaken: std::sync::atomic::AtomicU64,
    acknowledged: Mutex<Vec<(String, i64)>>,
    trouble: Mutex<Option<String>>,
}

/// Runs the load.
///
/// # Errors
/// No pages, a node that refuses, or an edit or a link that is missing at the end.
pub async fn run(asked: Load) -> Result<(), String> {
    let pool = prepared(&asked.urls).await?;
    let client = connect(&asked.urls[0]).await?;
    let titles =
        client.query("SELECT title FROM wiki_page ORDER BY page_id LIMIT 100000", &[]).await;
    let titles: Vec<String> =
        titles.map_err(|error| full(&error))?.iter().map(|row| row.get(0)).collect();
    if titles.is_empty() {
        return Err(
            "the wiki has no pages; telesto-demo import mediawiki FILE brings some in".to_owned()
        );
    }
    // Microseconds, up to ten minutes.
    let histogram = || {
        Histogram::new_with_bounds(1, 600_000_000, 3)
            .map(Mutex::new)
            .map_err(|error| error.to_string())
    };
    let met = Arc::new(Met {
        stop: AtomicBool::new(false),
        reads: histogram()?,
        edits: histogram()?,
        overtaken: 0.into(),
        acknowledged: Mutex::default(),
        trouble: Mutex::default(),
    });
    println!(
        "{} pages, {} clients, {} % edits, {:.0} s",
        titles.len(),
        asked.clients,
        asked.edits,
        asked.time.0.as_secs_f64()
    );
    let titles = Arc::new(titles);
    let begun = Instant::now();
    let clients: Vec<_> = (0..asked.clients)
        .map(|number| {
            let random = SmallRng::seed_from_u64(asked.seed.wrapping_mul(1_000_003) ^ number);
            let (pool, titles, met) = (Arc::clone(&pool), Arc::clone(&titles), Arc::clone(&met));
            tokio::spawn(client_of(pool, titles, met, random, asked.edits))
        })
        .collect();
    wait(asked.time.0, &met).await;
    met.stop.store(true, Ordering::Relaxed);
    for client in clients {
        client.await.map_err(|error| error.to_string())?;
    }
    let seconds = begun.elapsed().as_secs_f64();
    if let Some(why) = met.trouble.lock().take() {
        return Err(why);
    }
    tell("pages read", &met.reads.lock(), seconds);
    tell("edits", &met.edits.lock(), seconds);
    println!(
        "{} edits were overtaken by another one, and not taken",
        met.overtaken.load(Ordering::Relaxed)
    );
    println!(
        "For orientation, Scalaris on 16 servers of 8 cores, in memory: 1,250 reads and 344 read-modify-write transactions a second and server."
    );
    check(&pool, &met).await
}

/// Until the time is over, or a client met something.
async fn wait(time: Duration, met: &Met) {
    let begun = Instant::now();
    while begun.elapsed() < time && met.trouble.lock().is_none() {
        tokio::time::sleep(Duration::from_millis(50).min(time)).await;
    }
}

fn tell(what: &str, times: &Histogram<u64>, seconds: f64) {
    let ms = |micros: u64| micros as f64 / 1e3;
    println!(
        "{what:<11} {:>8.0} a second; p50 {:.2} ms, p99 {:.2} ms, longest {:.1} ms",
        times.len() as f64 / seconds,
        ms(times.value_at_quantile(0.5)),
        ms(times.value_at_quantile(0.99)),
        ms(times.max())
    );
}

async fn client_of(
    pool: Arc<Pool>,
    titles: Arc<Vec<String>>,
    met: Arc<Met>,
    mut random: SmallRng,
    edits: u32,
) {
    while !met.stop.load(Ordering::Relaxed) {
        if let Err(why) = turn(&pool, &titles, &met, &mut random, edits).await {
            met.trouble.lock().get_or_insert(why);
            return;
        }
    }
}

async fn turn(
    pool: &Arc<Pool>,
    titles: &[String],
    met: &Met,
    random: &mut SmallRng,
    edits: u32,
) -> Result<(), String> {
    let title = &titles[random.random_range(0..titles.len())];
    let mut lent = pool.lend().await?;
    let begun = Instant::now();
    let shown = lent.with(async |wiki| wiki.read(title).await).await?;
    let shown = shown.ok_or_else(|| format!("the page {title:?} is not there any more"))?;
    let micros = |begun: Instant| u64::try_from(begun.elapsed().as_micros()).unwrap_or(u64::MAX);
    if random.random_range(0..100) >= edits {
        met.reads.lock().saturating_record(micros(begun));
        return Ok(());
    }
    let about = &titles[random.random_range(0..titles.len())];
    let number: u32 = random.random_range(0..1000);
    let text = edited(&shown.text, &format!("See also [[{about}]]. [[Category:Seen by {number}]]"));
    let edit = Edit {
        title,
        base: Some(shown.revision),
        text: &text,
        contributor: "load",
        comment: "a link and a category",
    };
    match lent.with(async |wiki| wiki.edit(edit).await).await? {
        Outcome::Saved(revision) => {
            met.edits.lock().saturating_record(micros(begun));
            met.acknowledged.lock().push((title.clone(), revision));
        }
        Outcome::Overtaken(_) => {
            met.overtaken.fetch_add(1, Ordering::Relaxed);
        }
    }
    Ok(())
}

/// The text with `line` as its last one, in place of an earlier one of this kind.
fn edited(text: &str, line: &str) -> String {
    let kept = text.rfind("\nSee also [[").map_or(text, |at| &text[..at]);
    format!("{kept}\n{line}")
}

/// Looks for what was acknowledged, and at all pages.
async fn check(pool: &Arc<Pool>, met: &Met) -> Result<(), String> {
    let acknowledged = met.acknowledged.lock().clone();
    let client = connect(&pool.urls[0]).await?;
    let numbers: Vec<i64> = acknowledged.iter().map(|(_, revision)| *revision).collect();
    let mut found = 0;
    for numbers in numbers.chunks(10_000) {
        let count = "SELECT count(*) FROM wiki_revision WHERE revision_id = ANY($1)";
        let row = client.query_one(count, &[&numbers]).await.map_err(|error| full(&error))?;
        found += usize::try_from(row.get::<_, i64>(0)).unwrap_or_default();
    }
    if found != numbers.len() {
        return Err(format!(
            "{} edits were acknowledged, and {found} are there: please report this with the nodes' logs",
            numbers.len()
        ));
    }
    let mut lent = pool.lend().await?;
    // All pages: it may take longer than one of them.
    let wiki = lent.wiki.as_mut().ok_or("no connection")?;
    let pages = wiki.check().await.map_err(|error| error.to_string())?;
    println!(
        "{found} acknowledged edits are there; links and categories of all {pages} pages are those of their newest text."
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn edits_take_the_place_of_the_one_before() {
        let once = edited("Text.\nMore.", "See also [[A]]. [[Category:B]]");
        assert_eq!(once, "Text.\nMore.\nSee also [[A]]. [[Category:B]]");
        assert_eq!(edited(&once, "See also [[C]]."), "Text.\nMore.\nSee also [[C]].");
    }
}
