//! Sends this region's stream to one other region.
//!
//! ```text
//! hello ─► stands at P ─► fold the log from P, batch by batch, several under way
//!     └──► fresh ─► rows of a snapshot, then the stream from a position at or before it
//! ```
//! # Invariants
//! - The sender keeps nothing: where to go on, and the counts there, the receiver says; the rest is
//!   in the log.
//! - A receiver that stands in a history this log does not have is sent nothing.
//!
//! # On failure
//! The connection is made again and the receiver asked where it stands. What cannot go on says why
//! in the status, and is tried again.
//!
//! # Limits
//! Each peer's sender reads the log for itself.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use futures::FutureExt as _;
use futures::future::BoxFuture;
use futures::stream::{FuturesOrdered, FuturesUnordered, StreamExt as _};
use telesto_bucket::Cause;
use telesto_common::key::KeyRange;
use telesto_common::{Lsn, RegionId, Timestamp};
use telesto_log::Error as LogError;
use telesto_shard::Read;
use telesto_txn::service::Freshness;
use telesto_txn::{Database as _, Reads};

use crate::error::{Error, Result};
use crate::fold::Fold;
use crate::lines::Lines;
use crate::question::{Newest, Question};
use crate::shared::{Peer, Shared, leg};
use crate::sort_out::meaning;
use crate::take_back::{TAKING_BACK, take_back};
use crate::wire::{Batch, Element, KeyWrite, LabelledRow, Packed, Position, Reply, Request};
use telesto_geo::placement::Rules;

/// Batches under way, and their bytes: what is committed during a round trip, one by one, to the
/// far side of the world.
const WINDOW: usize = 256;
const WINDOW_BYTES: usize = 32 << 20;
/// Bytes of log read, and of writes in a batch, at a time, about.
const BATCH_BYTES: usize = 1 << 20;
/// Rows in a request that fills a region, at most.
const FILL_ROWS: usize = 1024;
/// Requests that fill a region under way.
const FILL_WINDOW: usize = 8;
const PAUSE: Duration = Duration::from_millis(100);
/// How long a peer that does not answer may be one that begins as this region does.
const HEARING: Duration = Duration::from_secs(10);
/// How often a log that others may write to is looked at without a hint, and a receiver spoken to
/// without news, in beats.
const LOOK_BEATS: u32 = 20;

/// See the module's text.
#[derive(Debug)]
pub(crate) struct Sender {
    pub shared: Arc<Shared>,
    pub to: RegionId,
}

/// A stream that goes on.
struct Stream<'a> {
    sender: &'a Sender,
    peer: &'a Peer,
    fold: Fold,
    /// The end of the batch sent last.
    sent: Position,
    elements: Vec<Element>,
    bytes: usize,
    under_way: FuturesOrdered<BoxFuture<'a, (Lsn, usize, Result<Reply>)>>,
    under_way_bytes: usize,
}

impl Sender {
    pub async fn run(self) {
        let env = self.shared.env.clone();
        let begun = env.clock.monotonic();
        loop {
            let result = self.stream().await;
            if let Some(peer) = self.shared.peers.get(&self.to) {
                peer.connected.store(false, Ordering::Relaxed);
                peer.filling.store(false, Ordering::Relaxed);
            }
            if let Err(error) = result {
                self.is_away(begun);
                tracing::debug!(to = %self.to, %error, "a stream to another region is interrupted");
                self.shared.trouble.lock().insert(Some(self.to), error.to_string());
                env.clock.sleep(PAUSE + env.jitter(PAUSE)).await;
            }
        }
    }

    /// The peer cannot be asked where it stands, unless it has something of this region that must
    /// be taken back first. Where that is not waited for any more, it is away as others are. Who
    /// may just be starting too, as when all regions do, is no sooner away than [`HEARING`] behind
    /// the begin, unless clients write already.
    fn is_away(&self, begun: Duration) {
        let since = self.shared.env.clock.monotonic().saturating_sub(begun);
        if since < HEARING && !self.shared.config.opened.load(Ordering::Acquire) {
            return;
        }
        let mut taking_back = self.shared.taking_back.lock();
        let heard = self.shared.heard.borrow().contains(&self.to);
        if heard {
            taking_back.remove(&self.to);
        } else if !taking_back.contains(&self.to) {
            self.shared.heard_of(self.to);
        }
    }

    async fn ask(&self, request: Request) -> Result<Reply> {
        self.shared.ask(self.to, request).await
    }

    /// One connection's life: ends when the receiver stands elsewhere than was thought.
    async fn stream(&self) -> Result<()> {
        let shared = &self.shared;
        let Some(peer) = shared.peers.get(&self.to) else {
            return Err(Error::UnknownRegion(self.to));
        };
        let hello = match self.ask(Request::Hello).await {
            Err(error @ Error::Refused { .. }) => {
                if let Some(text) = &shared.config.introduction {
                    self.ask(Request::Introduce(text.clone())).await?;
                }
                return Err(error);
            }
            hello => hello?,
        };
        let incarnation = shared.incarnation();
        let fold = match hello {
            Reply::At(position) => match self.fold_of(position).await {
                Err(Error::LostCommits { .. }) => {
                    shared.taking_back.lock().insert(self.to);
                    take_back(shared, self.to).await?;
                    // It stands at the beginning now.
                    shared.taking_back.lock().remove(&self.to);
                    return Ok(());
                }
                // What it lacks was numbered anew, and must not wait for what was told of the
                // incarnation before: it begins anew.
                Ok(fold) if fold.position.past.incarnation(shared.config.me) < incarnation => {
                    self.wait_for_others().await?;
                    shared.question(self.to, &Question::Anew).await?;
                    return Ok(());
                }
                fold => fold?,
            },
            _ => {
                self.wait_for_others().await?;
                let mut fold = shared.fold_at_tail().await?;
                let ranges = fold.rules.gained(&Rules::default(), self.to);
                peer.filling.store(true, Ordering::Relaxed);
                let of_old = ranges.clone();
                self.fill(&mut fold, ranges, of_old).await?;
                self.ask(Request::Filled(fold.position.clone())).await?;
                peer.filling.store(false, Ordering::Relaxed);
                fold
            }
        };
        self.wait_for_others().await?;
        peer.connected.store(true, Ordering::Relaxed);
        peer.stands.store(true, Ordering::Relaxed);
        shared.trouble.lock().remove(&Some(self.to));
        let sent = fold.position.clone();
        let (elements, under_way) = (Vec::new(), FuturesOrdered::new());
        let stream = Stream {
            sender: self,
            peer,
            fold,
            sent,
            elements,
            bytes: 0,
            under_way,
            under_way_bytes: 0,
        };
        stream.run().await
    }

    /// The receiver stands in this region's log. Waits until every peer that can be asked has said
    /// where it stands: what this region has lost, some peer may have, and nothing is numbered anew
    /// before that was taken back. Who goes away in the middle of giving it back is waited for as
    /// long as SQL is, and then is somebody who was away from the beginning.
    async fn wait_for_others(&self) -> Result<()> {
        let shared = &self.shared;
        shared.certain.send_if_modified(|certain| certain.insert(self.to));
        shared.heard_of(self.to);
        let mut heard = shared.heard.subscribe();
        let (everybody, by) = (shared.peers.len(), shared.env.deadline(TAKING_BACK));
        while heard.borrow_and_update().len() < everybody {
            self.say_what_is_waited_for();
            let more = shared.env.within(by, "hearing of the other regions", heard.changed()).await;
            match more {
                Ok(more) => more.map_err(|_| Error::Stopped)?,
                Err(_) => shared.wait_for_nobody(),
            }
        }
        Ok(())
    }

    /// Says why nothing is sent, where this region waits for what it has lost.
    fn say_what_is_waited_for(&self) {
        let shared = &self.shared;
        let Some(from) = shared.taking_back.lock().first().copied() else { return };
        let mut trouble = shared.trouble.lock();
        let why = trouble.get(&Some(from)).map(|why| format!(" ({why})")).unwrap_or_default();
        let text = format!(
            "nothing is sent there before this region has what it lost: it waits to take back what region {} has of it{why}; let that region be reached, or wait {} minutes at most",
            shared.name_of(from),
            TAKING_BACK.as_secs() / 60
        );
        trouble.insert(Some(self.to), text);
    }

    /// The fold of the position where the receiver stands, unless this region has lost something
    /// that the receiver has: by its stream, or by way of others, which the position does not say.
    async fn fold_of(&self, position: Position) -> Result<Fold> {
        let (shared, me) = (&self.shared, self.shared.config.me);
        let fold = self.fold_at(position).await?;
        let newest = match shared.question(self.to, &Question::Newest { of: me }).await {
            // A version that does not know the question.
            Err(Error::Refused { .. }) => return Ok(fold),
            answer => Newest::decode(answer?).map_err(Error::malformed("what came to a region"))?,
        };
        let told = newest.number <= fold.position.past.get(me, self.to);
        match told || self.has_numbered(&fold, newest).await? {
            true => Ok(fold),
            false => Err(Error::LostCommits { region: self.to }),
        }
    }

    /// Whether the log has that very transaction for the receiver, behind a position.
    async fn has_numbered(&self, from: &Fold, wanted: Newest) -> Result<bool> {
        let shared = &self.shared;
        let mut fold = shared.fold(from.position.clone(), from.rules.clone());
        loop {
            let by = shared.env.deadline(shared.config.timeout);
            let next = fold.position.lsn.next();
            let batch = shared.engine.log().read(next, BATCH_BYTES, Cause::Read, by).await?;
            for entry in &batch.entries {
                for element in fold.entry(entry, Some(self.to)).await?.elements {
                    let number = element.past.get(shared.config.me, self.to);
                    if number >= wanted.number {
                        let same = wanted.at == Timestamp::ZERO || element.at == wanted.at;
                        return Ok(number == wanted.number && same);
                    }
                }
            }
            if batch.at_tail {
                return Ok(false);
            }
        }
    }

    /// A fold that goes on where the receiver stands.
    async fn fold_at(&self, position: Position) -> Result<Fold> {
        let shared = &self.shared;
        let by = shared.env.deadline(shared.config.timeout);
        let region = self.to;
        if position.lsn > shared.engine.applied().0 {
            let snapshot = shared.store.begin(Freshness::Tail, None).await?;
            shared.store.release(&snapshot).await;
            if position.lsn > shared.engine.applied().0 {
                return Err(Error::LostCommits { region });
            }
        }
        match shared.engine.log().hash_before(position.lsn.next(), by).await {
            Ok(hash) if hash == position.hash => {}
            Ok(_) => return Err(Error::LostCommits { region }),
            Err(LogError::Trimmed { .. }) => return Err(Error::Trimmed { region }),
            Err(error) => return Err(error.into()),
        }
        let rules = shared.rules_at(&position).await?;
        Ok(shared.fold(position, rules))
    }

    /// Those of `ranges` whose tables had a number at `before`, so that something of them may have
    /// been deleted up to then: the others belong to tables that were made behind it. No row of a
    /// table comes before its definition but with rows of a snapshot, in which marks of deletes
    /// stand behind the definitions.
    async fn of_old(&self, ranges: &[KeyRange], before: Timestamp) -> Vec<KeyRange> {
        let shared = &self.shared;
        let read = async {
            let snapshot = shared.store.begin(Freshness::Applied, Some(before)).await?;
            let (at, mut reads) = (snapshot.snapshot, Reads::default());
            let meaning = meaning(&shared.store, &shared.tables, at, &mut reads).await;
            shared.store.release(&snapshot).await;
            meaning
        };
        // Definitions that cannot be read any more say nothing of what is new.
        let meaning = read.await.unwrap_or_default();
        let later =
            |range: &KeyRange| meaning.as_ref().is_some_and(|meaning| meaning.is_later(range));
        ranges.iter().filter(|range| !later(range)).cloned().collect()
    }

    /// Sends the rows of `ranges` as of a snapshot at or after the fold's position. Deletes are
    /// looked for, in all of the log, of those ranges alone that are `of_old`.
    async fn fill(
        &self,
        fold: &mut Fold,
        ranges: Vec<KeyRange>,
        of_old: Vec<KeyRange>,
    ) -> Result<()> {
        let shared = &self.shared;
        if ranges.is_empty() {
            return Ok(());
        }
        let deleted = match &of_old[..] {
            [] => Vec::new(),
            of_old => shared.deleted(of_old, fold.position.lsn).await?,
        };
        let snapshot = shared.store.begin(Freshness::Tail, None).await?;
        let sent = async {
            let (at, mut reads) = (snapshot.snapshot, Reads::default());
            let meaning = meaning(&shared.store, &shared.tables, at, &mut reads).await?;
            let of = meaning.map_or(0, |meaning| meaning.number());
            for mut range in ranges {
                // A range is acknowledged before the next one is sent: definitions come before the
                // rows of their tables.
                let mut under_way = FuturesUnordered::new();
                loop {
                    let found = shared.store.scan(range.clone(), snapshot.snapshot).await?;
                    let Some(last) = found.last() else { break };
                    range.start = KeyRange::point(&last.key).end;
                    let keys = found.into_iter().map(|row| row.key).collect();
                    for rows in self.own_rows(keys, snapshot.snapshot).await? {
                        under_way.push(self.ask(Request::Rows { of, rows }));
                        if under_way.len() >= FILL_WINDOW {
                            let _ = under_way.next().await.transpose()?;
                        }
                    }
                    let _ = shared.store.service.renew(vec![snapshot.lease]).await;
                }
                while let Some(reply) = under_way.next().await {
                    reply?;
                }
            }
            for rows in self.own_rows(deleted, snapshot.snapshot).await? {
                self.ask(Request::Rows { of, rows }).await?;
            }
            Ok(())
        };
        let sent = sent.await;
        shared.store.release(&snapshot).await;
        sent
    }

    /// The versions at `at` of `keys` that this region sends, in pieces that fit into a request:
    /// those it has written itself, and those of regions that are no more. The other regions send
    /// theirs. Of rows that merge every region sends what it has: a part of them may be its own;
    /// and of rows that are placed by value: who wrote one last may have it no more.
    async fn own_rows(
        &self,
        keys: Vec<bytes::Bytes>,
        at: Timestamp,
    ) -> Result<Vec<Vec<LabelledRow>>> {
        let shared = &self.shared;
        let store = &shared.store;
        let (mut pieces, mut piece, mut bytes) = (Vec::new(), Vec::new(), 0);
        let meaning = meaning(store, &shared.tables, at, &mut Reads::default()).await?;
        for keys in keys.chunks(FILL_ROWS) {
            let reads = store.get(keys.to_vec(), at).await?;
            for (key, read) in keys.iter().zip(reads) {
                let Read::Found(version) = read else { continue };
                let (at, source) = store.rank(&version);
                let value = version.value.as_ref();
                let by_all = meaning.as_ref().is_some_and(|meaning| {
                    meaning.merges(key, value) || meaning.is_sent_by_all(key)
                });
                // What was removed here because it belongs here no more says nothing of the row.
                let removed = at == Timestamp::ZERO;
                if removed
                    || !by_all && source != shared.config.me && shared.peers.contains_key(&source)
                {
                    continue;
                }
                let write = KeyWrite { key: key.clone(), value: version.value };
                bytes += write.bytes();
                piece.push(LabelledRow { source, at, write });
                if bytes >= BATCH_BYTES || piece.len() >= FILL_ROWS {
                    pieces.push(std::mem::take(&mut piece));
                    bytes = 0;
                }
            }
        }
        if !piece.is_empty() {
            pieces.push(piece);
        }
        Ok(pieces)
    }
}

impl Stream<'_> {
    async fn run(mut self) -> Result<()> {
        let shared = Arc::clone(&self.sender.shared);
        let env = &shared.env;
        let beat = shared.config.beat;
        let mut reached = shared.engine.reached();
        let mut looked = Duration::ZERO;
        let mut told = env.clock.monotonic();
        let mut hurried = false;
        loop {
            let now = env.clock.monotonic();
            let known = shared.engine.applied().0 > self.fold.position.lsn;
            let look = hurried || now >= looked + beat * LOOK_BEATS;
            if (known || look) && !self.is_full() {
                if !self.read().await? || self.is_of_old() {
                    return Ok(());
                }
                looked = now;
            }
            let moved = self.fold.position.lsn > self.sent.lsn;
            // A receiver that was started again stands before what it had not applied, and says so
            // only when it is spoken to.
            let silent = self.under_way.is_empty() && now >= told + beat * LOOK_BEATS;
            let beat = shared.times.beat_for(self.sender.to, beat, now);
            let due = hurried || !self.elements.is_empty() || now >= told + beat;
            if silent || (moved && due) {
                self.send();
                told = now;
            }
            hurried = false;
            let full = self.is_full();
            let more = shared.engine.applied().0 > self.fold.position.lsn;
            if more && !full {
                continue;
            }
            tokio::select! {
                biased;
                Some((lsn, bytes, reply)) = self.under_way.next() => {
                    if !self.is_taken(lsn, bytes, &reply?) {
                        return Ok(());
                    }
                }
                changed = reached.changed(), if !full => {
                    if changed.is_err() {
                        return Err(Error::Stopped);
                    }
                }
                () = self.peer.hurry.notified() => hurried = true,
                () = env.clock.sleep(beat) => {}
            }
        }
    }

    fn is_full(&self) -> bool {
        self.under_way.len() >= WINDOW || self.under_way_bytes >= WINDOW_BYTES
    }

    /// Notes what the receiver said to a batch; `false`: it was started again, or another sender
    /// spoke to it, so that the stream begins anew from where it stands.
    fn is_taken(&mut self, lsn: Lsn, bytes: usize, reply: &Reply) -> bool {
        if !matches!(reply, Reply::Taken) {
            return false;
        }
        self.under_way_bytes = self.under_way_bytes.saturating_sub(bytes);
        self.peer.has.fetch_max(lsn.0, Ordering::Relaxed);
        true
    }

    /// Sends what was collected, and waits until the receiver has everything; as
    /// [`Stream::is_taken`].
    async fn flush(&mut self) -> Result<bool> {
        if self.fold.position.lsn > self.sent.lsn {
            self.send();
        }
        while let Some((lsn, bytes, reply)) = self.under_way.next().await {
            if !self.is_taken(lsn, bytes, &reply?) {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Reads on in the log; as [`Stream::is_taken`].
    async fn read(&mut self) -> Result<bool> {
        let shared = &self.sender.shared;
        let by = shared.env.deadline(shared.config.timeout);
        let from = self.fold.position.lsn.next();
        // What was committed a moment ago is in memory: on a bucket log reading it again would be a
        // request, and the time that takes.
        let recent = shared.engine.recent(from, BATCH_BYTES);
        let entries = if recent.is_empty() {
            match shared.engine.log().read(from, BATCH_BYTES, Cause::Read, by).await {
                Ok(batch) => batch.entries,
                Err(LogError::Trimmed { .. }) => {
                    return Err(Error::Trimmed { region: self.sender.to });
                }
                Err(error) => return Err(error.into()),
            }
        } else {
            recent
        };
        for entry in &entries {
            // The receiver refuses rows of tables whose definition it has not got. That may come
            // from another region, and wait there for what is collected here.
            if self.fold.may_bring_rules(entry) && !self.flush().await? {
                return Ok(false);
            }
            let before = self.fold.position.at;
            let folded = self.fold.entry(entry, Some(self.sender.to)).await?;
            for element in folded.elements {
                self.bytes += element.writes.iter().map(KeyWrite::bytes).sum::<usize>();
                self.elements.push(element);
            }
            if !folded.gained.is_empty() {
                // Rows first: the position behind the change is told only when they are there.
                self.peer.filling.store(true, Ordering::Relaxed);
                let of_old = self.sender.of_old(&folded.gained, before).await;
                self.sender.fill(&mut self.fold, folded.gained, of_old).await?;
                self.peer.filling.store(false, Ordering::Relaxed);
            }
            if self.is_of_old() {
                break;
            }
            if self.bytes >= BATCH_BYTES {
                self.send();
            }
        }
        Ok(true)
    }

    /// Whether a new incarnation has begun where the fold is.
    fn is_of_old(&self) -> bool {
        let me = self.sender.shared.config.me;
        self.fold.position.past.incarnation(me) > self.sent.past.incarnation(me)
    }

    /// Sends what was collected, up to the fold's position.
    fn send(&mut self) {
        let elements = std::mem::take(&mut self.elements);
        self.bytes = 0;
        let count = elements.len() as u64;
        let begin = (self.sent.lsn, self.sent.hash);
        let end = self.fold.position.clone();
        let now = self.sender.shared.env.clock.wall_micros();
        for element in &elements {
            leg("send", self.sender.to, now.saturating_sub(element.at.wall_micros()));
        }
        let batch = Batch { begin, elements, end: end.clone() };
        let lines = Lines { from: self.sender.shared.config.me, to: self.sender.to };
        let Packed { body, metadata } = batch.pack(lines, &self.sent.past);
        self.peer.sent.fetch_add(count, Ordering::Relaxed);
        self.peer.sent_bytes.fetch_add(body.len() as u64, Ordering::Relaxed);
        self.peer.metadata_bytes.fetch_add(metadata as u64, Ordering::Relaxed);
        metrics::counter!("telesto_regions_sent_transactions_total", "to" => self.sender.to.to_string())
            .increment(count);
        metrics::counter!("telesto_regions_sent_bytes_total", "to" => self.sender.to.to_string())
            .increment(body.len() as u64);
        metrics::counter!("telesto_regions_metadata_bytes_total", "to" => self.sender.to.to_string())
            .increment(metadata as u64);
        let (sender, lsn, bytes) = (self.sender, end.lsn, body.len());
        let mut asking: BoxFuture<'_, _> =
            Box::pin(async move { (lsn, bytes, sender.ask(Request::Batch { begin, body }).await) });
        // On its way at once, also when there is more to read first.
        let answered = (&mut asking).now_or_never();
        self.under_way_bytes += bytes;
        self.under_way.push_back(match answered {
            Some(answer) => Box::pin(std::future::ready(answer)),
            None => asking,
        });
        self.sent = end;
    }
}
