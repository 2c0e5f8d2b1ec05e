//! Checkpoints: log records from a pending-update queue to pages, by whoever holds the token of the
//! queue's lock (§4.3, §4.4).
//!
//! # Protocol
//! ```text
//! token (locked for a time) -> page, as it is now -> log records -> applied -> page to the bucket, if there is time -> records deleted
//! tree: token -> log records, sorted -> leaf by leaf as above -> header (time, numbers) -> records deleted
//! ```
//!
//! # Invariants
//! - Two checkpoints of one queue never overlap: who cannot be done before its token comes back
//!   writes nothing.
//! - Log records are deleted only after what they say is in the bucket; applying one twice changes
//!   nothing.
//! - From the level of monotonicity on, records of a client are applied in the order of their
//!   numbers; one that comes too early stays in its queue until the next checkpoint.
//!
//! # On failure
//! A client may die anywhere: the token comes back by itself, the records are still there.
//!
//! # Limits
//! A table takes either insertions or updates in this workload, so that a leaf is never written
//! under two tokens at once.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use telesto_bucket::Cause;

use crate::client::{Client, LogRecord, Protocol, Target};
use crate::commit::decode;
use crate::error::Result;
use crate::node::{Node, PageRef};
use crate::queue::{LOCK, PENDING, Part, RECEIVE_MOST};
use crate::tree;
use crate::workload::Table;

/// A log record and the message it came in.
type Pending = (u64, LogRecord);

impl Client {
    /// The writer's rule: each target whose last checkpoint is older than the interval gets one,
    /// beside the client's work (§4.5).
    pub(crate) fn checkpoint_as_writer(self: &Arc<Self>, targets: impl Iterator<Item = Target>) {
        let mut targets: Vec<Target> = targets.collect();
        targets.sort_unstable();
        targets.dedup();
        for target in targets {
            let client = Arc::clone(self);
            Arc::clone(self).spawn("a writer's checkpoint", async move {
                let node = client.pages.get(Cause::Checkpoint, target.header(), false).await?;
                if client.since_checkpoint(&node) <= client.shared.rules.checkpoint_interval {
                    return Ok(());
                }
                client.checkpoint(target).await
            });
        }
    }

    /// One checkpoint of one queue, if its token is to be had.
    pub async fn checkpoint(self: &Arc<Self>, target: Target) -> Result<()> {
        let rules = &self.shared.rules;
        let begun = self.env.clock.monotonic();
        let lock = match target {
            Target::Page(_) => rules.page_lock,
            Target::Tree(_) => rules.tree_lock,
        };
        if rules.tokens {
            let queue = format!("{LOCK}{}", target.name());
            if self.queues.receive(Part::Background, &queue, 1, lock).await.is_empty() {
                return Ok(());
            }
        }
        match target {
            Target::Page(page) => self.checkpoint_page(page, begun + lock).await,
            Target::Tree(table) => self.checkpoint_tree(table, begun + lock).await,
        }
    }

    /// Whether so many pages, and the header of a tree after them, are there before `until` if they
    /// are sent now.
    fn is_in_time(&self, until: Duration, pages: u32, target: Target) -> bool {
        let rules = &self.shared.rules;
        let header = match target {
            Target::Page(_) => Duration::ZERO,
            Target::Tree(_) => rules.header_padding,
        };
        self.env.clock.monotonic() + rules.put_padding * pages + header <= until
    }

    async fn receive_pending(&self, target: Target) -> Result<Vec<Pending>> {
        let queue = format!("{PENDING}{}", target.name());
        let lock = Duration::ZERO;
        let received = self.queues.receive(Part::Background, &queue, RECEIVE_MOST, lock).await;
        received.into_iter().map(|message| Ok((message.id, decode(&message.body)?))).collect()
    }

    async fn delete_pending(&self, target: Target, messages: impl Iterator<Item = u64>) {
        let queue = format!("{PENDING}{}", target.name());
        for message in messages {
            self.queues.delete(Part::Background, &queue, message).await;
        }
    }

    async fn checkpoint_page(&self, page: PageRef, until: Duration) -> Result<()> {
        let node = self.pages.get(Cause::Checkpoint, page, true).await?;
        let pending = self.receive_pending(Target::Page(page)).await?;
        if pending.is_empty() {
            return Ok(());
        }
        let mut node = Node::clone(&node);
        let taken = self.in_order(&mut node.counters, pending);
        for (_, record, is_new) in &taken {
            if *is_new {
                node.set(record.key, record.payload.clone());
            }
        }
        node.checkpointed = self.env.clock.wall_micros();
        if !self.is_in_time(until, 1, Target::Page(page)) {
            return Ok(());
        }
        self.pages.put(Cause::Checkpoint, page, node).await?;
        self.delete_pending(Target::Page(page), taken.iter().map(|(id, ..)| *id)).await;
        Ok(())
    }

    /// Which records may be applied now, and whether each is new; raises `counters` by them. At the
    /// basic level all are, in the order they came.
    fn in_order(
        &self,
        counters: &mut BTreeMap<u32, u64>,
        mut pending: Vec<Pending>,
    ) -> Vec<(u64, LogRecord, bool)> {
        if self.shared.rules.protocol < Protocol::Monotonicity {
            return pending.into_iter().map(|(id, record)| (id, record, true)).collect();
        }
        pending.sort_by_key(|(_, record)| (record.client, record.counter));
        let mut taken = Vec::new();
        for (id, record) in pending {
            let newest = counters.entry(record.client).or_default();
            if record.counter <= *newest {
                taken.push((id, record, false));
            } else if record.counter == *newest + 1 {
                *newest += 1;
                taken.push((id, record, true));
            }
        }
        taken
    }

    async fn checkpoint_tree(&self, table: Table, until: Duration) -> Result<()> {
        let rules = &self.shared.rules;
        let target = Target::Tree(table);
        let header = self.pages.get(Cause::Checkpoint, target.header(), true).await?;
        let pending = self.receive_pending(target).await?;
        let mut header = Node::clone(&header);
        let before = header.counters.clone();
        let taken = self.in_order(&mut header.counters, pending);
        let mut waiting: BTreeMap<_, _> =
            taken.iter().filter(|(.., is_new)| *is_new).map(|(_, r, _)| (r.key, r)).collect();
        let inserted = waiting.len();
        while let Some(first) = waiting.keys().next().copied() {
            let found = tree::find(&self.pages, Cause::Checkpoint, table, first, true).await?;
            let mut node = Node::clone(&found.node);
            let here: Vec<_> = match node.right.and(node.high) {
                Some(high) => waiting.range(..high).map(|(key, _)| *key).collect(),
                None => waiting.keys().copied().collect(),
            };
            // No more than two pages hold; the rest finds its page in the next turn.
            let sizes = rules.sizes;
            let mut applied = Vec::new();
            for key in here {
                node.set(key, waiting[&key].payload.clone());
                applied.push(key);
                if node.bytes() > sizes.leaf * 2 {
                    break;
                }
            }
            // A split writes up to three pieces and the parent.
            let pages = if node.bytes() > sizes.leaf { 4 } else { 1 };
            if !self.is_in_time(until, pages, target) {
                break;
            }
            tree::write(&self.pages, Cause::Checkpoint, sizes, found.path, found.page, node)
                .await?;
            waiting.retain(|key, _| !applied.contains(key));
        }
        let nothing = taken.is_empty() || (inserted > 0 && waiting.len() == inserted);
        if nothing || !self.is_in_time(until, 0, target) {
            return Ok(());
        }
        // Numbers are raised only as far as everything below them is in its leaf; a record that
        // came twice raises none past one that is left.
        let ordered = rules.protocol >= Protocol::Monotonicity;
        header.counters = before;
        let mut done = Vec::new();
        for (id, record, _) in &taken {
            let newest = header.counters.entry(record.client).or_default();
            let is_left = waiting.contains_key(&record.key);
            if is_left || (ordered && record.counter > *newest + 1) {
                continue;
            }
            *newest = record.counter.max(*newest);
            done.push(*id);
        }
        header.checkpointed = self.env.clock.wall_micros();
        self.pages.put(Cause::Checkpoint, target.header(), header).await?;
        self.delete_pending(target, done.into_iter()).await;
        Ok(())
    }
}
