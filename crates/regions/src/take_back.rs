//! What peers have of a region that has lost it: of this one, and of one that is gone for good.
//!
//! ```text
//! this region lost commits:  hello ─► "I stand where your log does not go" ─► what have you of mine? ─► one entry, new incarnation
//!                                                                              peer forgets the stream ◄─┘   then it is filled anew
//! another one is gone:       every survivor takes nothing of it any more ─► what have you of it? ─► one entry, it is closed
//! ```
//! # Invariants
//! - What was taken is applied when everything has come that it may depend on, in one entry with
//!   what waited for it, as far as it fits.
//! - A region that has lost commits numbers nothing anew before it has taken back what the peers
//!   that it can reach have. Of one that cannot give it back for [`TAKING_BACK`] that is taken
//!   later, as of one that was away.
//! - Definitions are applied before the rows that are read by them. Rows whose definition is not
//!   here yet wait for it in memory, and with them what they end: after a crash they are taken once
//!   more.
//! - A lost region is closed in one region only when every survivor takes nothing of it any more:
//!   what they had then is the cut.
//!
//! # On failure
//! Tried again until every peer that is asked has answered; the status says who does not. Doing it
//! twice does no harm: labels decide.
//!
//! # Limits
//! More than [`ENTRY_BYTES`] of rows go in several entries, so that a reader may see some of them
//! without the others. Whole tables are read where they are asked for. Old versions of rows, and
//! deletes that a peer's log does not have any more, are not taken.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use telesto_common::{Label, RegionId, Timestamp};
use telesto_shard::Read;

use crate::error::{Error, Result};
use crate::inbox::{Remote, Way};
use crate::life::doubt_write;
use crate::past::{Past, beyond};
use crate::question::{Known, Place, Question, unpack_piece};
use crate::report::report;
use crate::shared::{Shared, Then};
use crate::sort_out::read_meant;
use crate::wire::{KeyWrite, LabelledRow};

/// Keys of the system's database begin so.
const SYSTEM: [u8; 4] = [0; 4];
/// Bytes of rows in one entry.
const ENTRY_BYTES: usize = 16 << 20;
/// How long a region that has lost commits waits to take them back, with its streams and before
/// clients write: a peer may go away in the middle.
pub const TAKING_BACK: Duration = Duration::from_secs(600);
/// Before a survivor that has not answered is asked again.
const AGAIN: Duration = Duration::from_secs(1);

/// What came of one region, by label: transactions, as far as somebody had them.
#[derive(Default)]
struct Found {
    ///
    /// Of one label peers may have different shares of a row whose columns merge, which are joined:
    /// one after the other.
    by_label: BTreeMap<(Timestamp, RegionId), Vec<BTreeMap<Bytes, KeyWrite>>>,
    bytes: usize,
    rows: u64,
}

impl Found {
    fn add(&mut self, row: LabelledRow) {
        let shares = self.by_label.entry((row.at, row.source)).or_default();
        if shares.iter().any(|writes| writes.get(&row.write.key) == Some(&row.write)) {
            return;
        }
        self.bytes += row.write.bytes();
        self.rows += 1;
        let room = shares.iter_mut().find(|writes| !writes.contains_key(&row.write.key));
        match room {
            Some(writes) => {
                writes.insert(row.write.key.clone(), row.write);
            }
            None => shares.push(BTreeMap::from([(row.write.key.clone(), row.write)])),
        }
    }

    /// What was found: the system's rows, definitions among them, and the others, which are read by
    /// those.
    fn take(&mut self) -> (Vec<Remote>, Vec<Remote>) {
        self.bytes = 0;
        let (mut system, mut others) = (Vec::new(), Vec::new());
        let found = std::mem::take(&mut self.by_label).into_iter();
        let shares = found.flat_map(|(label, shares)| shares.into_iter().map(move |s| (label, s)));
        for ((at, source), writes) in shares {
            let (first, then): (Vec<_>, Vec<_>) =
                writes.into_values().partition(|write| write.key.starts_with(&SYSTEM));
            let (label, way) = (Label::update(source, at), Way::default());
            for (list, writes) in [(&mut system, first), (&mut others, then)] {
                if !writes.is_empty() {
                    list.push(Remote { label, writes, way });
                }
            }
        }
        (system, others)
    }

    /// Applies what was found; the last of it with `then`. How many transactions that were, and the
    /// label of the newest.
    async fn apply(&mut self, shared: &Shared, then: Then) -> Result<(usize, Option<Timestamp>)> {
        let (system, transactions) = self.take();
        let labels: BTreeSet<Timestamp> =
            system.iter().chain(&transactions).map(|remote| remote.label.timestamp).collect();
        if !system.is_empty() {
            shared.apply_taken(system, Then::Nothing).await?;
        }
        // Rows whose definition is not here yet go with the next ones; the last of them wait for
        // it.
        for Remote { label, writes, .. } in shared.apply_taken(transactions, then).await? {
            let writes = writes.into_iter().map(|write| (write.key.clone(), write)).collect();
            self.by_label.entry((label.timestamp, label.source)).or_default().push(writes);
        }
        Ok((labels.len(), labels.last().copied()))
    }
}

/// Takes back what `from` has of this region, which has lost it, and goes on in a new incarnation.
pub(crate) async fn take_back(shared: &Shared, from: RegionId) -> Result<()> {
    let me = shared.config.me;
    tracing::warn!(peer = %from, "this region has lost commits that a peer has seen; taking them back");
    shared.store.put(vec![doubt_write(&shared.env, true)]).await?;
    let known = known_at(shared, from, me).await?;
    let mut told = known.past.clone();
    let mut passed = known.passed;
    let owes = |peer: RegionId, known: &Known| {
        shared.owed.lock().insert(peer, known.past.get(peer, me));
    };
    owes(from, &known);
    for peer in shared.peers.keys().filter(|peer| **peer != from) {
        // Who is away says what it has when it is back, and is then taken back from too.
        if let Ok(known) = known_at(shared, *peer, me).await {
            told.absorb(&known.past);
            passed = passed.max(known.passed);
            owes(*peer, &known);
        }
    }
    // Others have been told that nothing up to there is to come any more.
    shared.close_time(passed).await?;
    shared.keep_gaps(passed).await?;
    let mut found = Found::default();
    collect(shared, from, me, &mut found).await?;
    wait_until_here(shared, &known.past).await;
    let had = received_of(&known, me);
    let named = told.get(me, from);
    let then = Then::Reincarnate(Box::new(told.clone()));
    let (count, newest) = found.apply(shared, then).await?;
    shared.question(from, &Question::Anew).await?;
    let text = format!(
        "Region {me} had lost commits. Region {from} had seen it up to {}: {} rows of {count} transactions were taken back from there{}. {}What only clients of region {me} had seen is lost.",
        known.passed,
        found.rows,
        newest.map_or_else(String::new, |at| format!(", the newest of {at}")),
        void(named, had, me, from)
    );
    report(shared, "taken back", &text).await;
    Ok(())
}

/// What nobody has: numbers that pasts name, and that did not come.
fn void(named: u64, had: u64, of: RegionId, to: RegionId) -> String {
    match beyond(named, had) {
        0 => String::new(),
        lost => format!(
            "{lost} more transactions of region {of} to region {to} are in the past of what others wrote, and did not come there: what of them no region has is lost. "
        ),
    }
}

fn received_of(known: &Known, region: RegionId) -> u64 {
    let of = |(id, count): &(RegionId, u64)| (*id == region).then_some(*count);
    known.received.iter().find_map(of).unwrap_or_default()
}

async fn known_at(shared: &Shared, peer: RegionId, of: RegionId) -> Result<Known> {
    let answer = shared.question(peer, &Question::Known { of }).await?;
    Known::decode(answer).map_err(Error::malformed("what another region knows"))
}

/// Everything that `peer` has of `of`, is placed here, and is newer than what is here. What is too
/// much for one entry is applied.
async fn collect(shared: &Shared, peer: RegionId, of: RegionId, found: &mut Found) -> Result<()> {
    let mut from = Place::Rows(Bytes::new());
    while from != Place::End {
        let question = Question::Have { of, from };
        let answer = shared.question(peer, &question).await?;
        let (next, rows) =
            unpack_piece(answer).map_err(Error::malformed("rows of another region"))?;
        for row in newer(shared, rows).await? {
            found.add(row);
        }
        if found.bytes >= ENTRY_BYTES {
            found.apply(shared, Then::Nothing).await?;
        }
        from = next;
    }
    Ok(())
}

async fn newer(shared: &Shared, rows: Vec<LabelledRow>) -> Result<Vec<LabelledRow>> {
    if rows.is_empty() {
        return Ok(rows);
    }
    let store = &shared.store;
    let keys = rows.iter().map(|row| row.write.key.clone()).collect();
    let (reads, meaning) = read_meant(store, &shared.tables, keys).await?;
    let mut news = Vec::new();
    for (row, read) in rows.into_iter().zip(reads) {
        let Read::Found(version) = read else {
            news.push(row);
            continue;
        };
        let (kept, came) = (store.rank(&version), (row.at, row.source));
        let merged = match &meaning {
            Some(meaning) => {
                let (here, came) = (version.value.as_ref(), (came, row.write.value.as_ref()));
                meaning.merge(&row.write.key, Some((kept, here)), came)
            }
            None => Ok(None),
        };
        if merged.map_err(Error::Definitions)?.map_or(kept < came, |joined| joined.value.is_some())
        {
            news.push(row);
        }
    }
    Ok(news)
}

/// Waits until everything of `past` that goes here has come, for a while: what is taken may depend
/// on it.
async fn wait_until_here(shared: &Shared, past: &Past) {
    let by = shared.env.deadline(shared.config.timeout);
    loop {
        let came = shared.inbox.lock().received_counts();
        let here = |peer: &RegionId| {
            came.get(peer).copied().unwrap_or_default() >= past.get(*peer, shared.config.me)
        };
        if shared.peers.keys().all(here) || by.passed(shared.env.clock.monotonic()) {
            return;
        }
        shared.env.clock.sleep(shared.config.beat).await;
    }
}

/// Closes a region that is gone for good, when all survivors have said what they have of it; and
/// says which of them have not closed it, until all have: one may have been told by a version that
/// only took the region from its list.
pub(crate) async fn close(shared: Arc<Shared>, lost: RegionId) {
    let mut closed = shared.inbox.lock().is_closed(lost);
    while !closed {
        match try_close(&shared, lost).await {
            Ok(()) => closed = true,
            Err(Error::Stopped) => return,
            Err(error) => {
                let text = format!("region {lost} is not closed yet: {error}");
                tracing::warn!("{text}");
                shared.trouble.lock().insert(Some(lost), text);
                shared.env.clock.sleep(AGAIN).await;
            }
        }
    }
    shared.trouble.lock().remove(&Some(lost));
    loop {
        match open_at(&shared, lost).await {
            Ok(open) if open.is_empty() => {
                shared.trouble.lock().remove(&Some(lost));
                return;
            }
            Ok(open) => {
                let text = format!(
                    "region {lost} is closed here, and not yet in region {}: run `telesto region remove` of it for that bucket, once more where an earlier version did",
                    open.join(", ")
                );
                shared.trouble.lock().insert(Some(lost), text);
            }
            Err(Error::Stopped) => return,
            // What is wrong with the link is said beside the peer.
            Err(error) => tracing::debug!(%lost, %error, "who has closed it is not known yet"),
        }
        shared.env.clock.sleep(AGAIN).await;
    }
}

/// The survivors that have not closed `lost`, by name. An error where one does not answer and none
/// of the others has not.
async fn open_at(shared: &Shared, lost: RegionId) -> Result<Vec<String>> {
    let (mut open, mut unknown) = (Vec::new(), None);
    for peer in &shared.config.peers {
        match known_at(shared, peer.id, lost).await {
            Ok(known) if known.closed => {}
            Ok(_) => open.push(peer.name.clone()),
            Err(error) => unknown = Some(error),
        }
    }
    match unknown {
        Some(error) if open.is_empty() => Err(error),
        _ => Ok(open),
    }
}

async fn try_close(shared: &Shared, lost: RegionId) -> Result<()> {
    let me = shared.config.me;
    let mut told = shared.inbox.lock().known_all();
    let mut known = BTreeMap::new();
    // First of all: nobody takes anything of it any more.
    for peer in shared.peers.keys() {
        known.insert(*peer, known_at(shared, *peer, lost).await?);
    }
    let (mut found, mut lines) = (Found::default(), Vec::new());
    for (peer, known) in &known {
        let before = found.rows;
        collect(shared, *peer, lost, &mut found).await?;
        told.absorb(&known.past);
        lines.push(format!(
            "region {peer} had it up to {} and gave {} rows",
            known.passed,
            found.rows - before
        ));
    }
    wait_until_here(shared, &told).await;
    let (had, passed) = {
        let inbox = shared.inbox.lock();
        let had = inbox.received_counts().get(&lost).copied().unwrap_or_default();
        (had, inbox.passed().get(&lost).copied().unwrap_or_default())
    };
    let (count, _) = found.apply(shared, Then::Close(lost)).await?;
    let text = format!(
        "Region {lost} was left out. This one, region {me}, had it up to {passed}; {}. {count} transactions of it came here by that. {}What region {lost} had sent to nobody is in its bucket alone.",
        lines.join("; "),
        void(told.get(lost, me), had, lost, me)
    );
    report(shared, "lost region", &text).await;
    Ok(())
}

/// Whether every survivor has closed `lost`.
pub(crate) async fn is_closed_everywhere(shared: &Shared, lost: RegionId) -> Result<bool> {
    Ok(shared.inbox.lock().is_closed(lost) && open_at(shared, lost).await?.is_empty())
}

/// Whether this region makes the definitions in the place of `lost`.
pub(crate) async fn inherits_from(shared: &Shared, lost: RegionId) -> Result<bool> {
    let me = shared.config.me;
    if !shared.inbox.lock().is_closed(lost) {
        return Ok(false);
    }
    for peer in shared.peers.keys() {
        let known = known_at(shared, *peer, lost).await?;
        if !known.closed {
            return Ok(false);
        }
        if known.heir != Some(me) {
            let told = known.heir.map_or_else(|| "none".to_owned(), |heir| heir.to_string());
            return Err(Error::Config(format!(
                "who makes the definitions in the place of region {lost} is not the same everywhere: this one was told {me}, region {peer} {told}; run `telesto region remove --lost` again for each region that stays, with one --successor"
            )));
        }
    }
    Ok(true)
}
