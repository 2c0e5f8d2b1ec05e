//! Sends the labels of this region: a function of its log, from where the epoch has begun in it.
//!
//! # Invariants
//! - Labels leave in the order of the log. One leaves when the labels have come here of everything
//!   that stands before it in the log and was applied from other regions, and of what was taken up
//!   of them without being placed here, by sessions that came or read there and by transactions
//!   that were committed for them: the gate.
//! - Before a label waits at the gate, the region has said how far its labels are: others may wait
//!   for that.
//!
//! # On failure
//! The epoch is broken, with the reason.
//!
//! # Limits
//! It is looked at entries as wholes: a label waits for what was applied in its own entry behind
//! it, too.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use telesto_bucket::Cause;
use telesto_common::{Label, LabelKind, RegionId, Timestamp};
use telesto_geo::{RegionSet, TreeLabel};
use telesto_log::record::{Entry, Record};
use telesto_txn::Database as _;

use crate::error::{Error, Result};
use crate::fold::Fold;
use crate::shared::Shared;
use crate::tree::epoch::{Epoch, Gate};

/// Bytes of log read at a time, about.
const READ_BYTES: usize = 1 << 20;

/// Sends labels while the epoch runs.
pub(crate) async fn run(shared: Arc<Shared>, epoch: Arc<Epoch>) {
    let sent = async {
        let fold = shared.fold_at_tail().await?;
        let (at, me) = (fold.position.at, shared.config.me);
        let incarnation = fold.position.past.incarnation(me);
        let (shared, epoch) = (&*shared, &*epoch);
        let sent = (shared.env.clock.monotonic(), at);
        let emitter = Emitter { shared, epoch, fold, incarnation, seen: BTreeMap::new(), sent };
        emitter.run().await
    };
    if let Err(error) = sent.await {
        tracing::debug!(epoch = epoch.number, %error, "labels of this region are not sent any more");
        epoch.break_up(error);
    }
}

struct Emitter<'a> {
    shared: &'a Shared,
    epoch: &'a Epoch,
    fold: Fold,
    incarnation: u64,
    /// By other region: the newest that was applied or seen of it.
    seen: BTreeMap<RegionId, Timestamp>,
    /// When all others were told last how far labels are, and how far.
    sent: (std::time::Duration, Timestamp),
}

impl Emitter<'_> {
    async fn run(mut self) -> Result<()> {
        let shared = self.shared;
        let beat = shared.config.beat;
        let mut reached = shared.engine.reached();
        // What was committed up to here has no labels: see docs/architecture/tree.md.
        let target = u32::try_from(self.incarnation).unwrap_or(u32::MAX);
        self.send(LabelKind::EpochChange, self.sent.1, target, self.epoch.others);
        let mut hurried = false;
        loop {
            for entry in &self.read().await? {
                self.entry(entry).await?;
            }
            if hurried || shared.env.clock.monotonic() >= self.sent.0 + beat {
                self.tell(self.fold.position.at);
            }
            hurried = false;
            if shared.engine.applied().0 > self.fold.position.lsn {
                continue;
            }
            tokio::select! {
                biased;
                changed = reached.changed() => changed.map_err(|_| Error::Stopped)?,
                () = self.epoch.hurry.notified() => hurried = true,
                () = shared.env.clock.sleep(beat) => {}
            }
        }
    }

    async fn read(&self) -> Result<Vec<Entry>> {
        let shared = self.shared;
        let from = self.fold.position.lsn.next();
        let recent = shared.engine.recent(from, READ_BYTES);
        if !recent.is_empty() || shared.engine.applied().0 < from {
            return Ok(recent);
        }
        let by = shared.env.deadline(shared.config.timeout);
        let batch = shared.engine.log().read(from, READ_BYTES, Cause::Read, by).await?;
        Ok(batch.entries)
    }

    async fn entry(&mut self, entry: &Entry) -> Result<()> {
        let before = self.fold.position.at;
        let labels = self.fold.entry(entry, None).await?.labels;
        let me = self.shared.config.me;
        if self.fold.position.past.incarnation(me) != self.incarnation {
            return Err(Error::Config("this region goes on in a new incarnation".to_owned()));
        }
        for record in entry.records_of(self.shared.store.shard) {
            if let Record::Commit(commit) = record
                && commit.origin.source != me
            {
                let seen = self.seen.entry(commit.origin.source).or_default();
                *seen = (*seen).max(commit.origin.timestamp);
            }
        }
        self.epoch.holds_up_to(self.fold.position.at, &mut self.seen);
        self.pass(before).await?;
        for (at, placement) in labels {
            let interest = RegionSet(placement.0 & self.epoch.others.0);
            if !interest.is_empty() {
                self.send(LabelKind::Update, at, 0, interest);
            }
        }
        Ok(())
    }

    /// Waits at the gate; everything up to `before` is through.
    async fn pass(&mut self, before: Timestamp) -> Result<()> {
        let shared = self.shared;
        loop {
            let news = self.epoch.news.notified();
            match self.epoch.gate(&self.seen, &self.fold.position.past) {
                Gate::Open => return Ok(()),
                Gate::Shut => {}
                Gate::Broken => {
                    return Err(Error::Config(
                        "another region goes on in a new incarnation".to_owned(),
                    ));
                }
            }
            if let Some(broken) = self.epoch.broken() {
                return Err(Error::Config(broken));
            }
            self.tell(before);
            // It is looked at again in any case.
            let _ = shared.env.within_timeout(shared.config.beat, "waiting for labels", news).await;
        }
    }

    /// Tells everybody that labels are up to `at`.
    fn tell(&mut self, at: Timestamp) {
        if at > self.sent.1 {
            self.send(LabelKind::Migration, at, 0, self.epoch.others);
        }
    }

    fn send(&mut self, kind: LabelKind, timestamp: Timestamp, target: u32, interest: RegionSet) {
        if interest == self.epoch.others {
            self.sent = (self.shared.env.clock.monotonic(), timestamp);
        }
        let label = Label { kind, source: self.shared.config.me, timestamp, target };
        let label = TreeLabel { label, interest, floor: Timestamp::ZERO };
        self.shared.trees.labels.fetch_add(1, Ordering::Relaxed);
        self.epoch.send(self.shared, label);
    }
}
