//! Commits: by writing pages, by sending log records to queues, or by a queue of the client's own
//! first (§4.1, §5.1).
//!
//! # Protocol
//! ```text
//! naive        changed pages -> bucket
//! basic        log records -> pending-update queues, one message each        checkpoint if the last is old
//! monotonicity the same, numbered
//! atomicity    log records -> own queue, many in a message; commit record    acknowledged
//!              beside: log records -> pending-update queues, then deleted from the own queue, the commit record last
//! ```
//!
//! # Invariants
//! - Requests of a commit go one after the other, as in the paper's implementation (§6.3).
//! - A commit record is deleted only after all log records of its transaction are in pending-update
//!   queues.
//!
//! # On failure
//! A client that dies between two requests leaves a part of its log records behind;
//! [`Client::recover`] finishes or forgets them where an atomic queue tells which.

use std::collections::BTreeMap;
use std::sync::{Arc, Weak};

use bytes::Bytes;
use futures::StreamExt as _;
use futures::channel::mpsc;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use telesto_bucket::Cause;

use crate::client::{Client, LogRecord, Protocol, Target};
use crate::error::{Error, Result};
use crate::node::Node;
use crate::queue::{ATOMIC, MESSAGE_BYTES, PENDING, Part, RECEIVE_MOST};
use crate::tree;
use crate::workload::Key;

/// What is in an atomic queue.
#[derive(Clone, Debug, Serialize, Deserialize)]
enum Atomic {
    Records { commit: u64, records: Vec<(Target, LogRecord)> },
    Commit { commit: u64, records: usize },
}

/// A committed transaction whose log records must still reach their queues.
#[derive(Debug)]
pub(crate) struct Propagation {
    /// Messages of the atomic queue with what is in them.
    messages: Vec<(u64, Vec<(Target, LogRecord)>)>,
    commit_message: u64,
}

/// What is to be changed: where, which key, to what.
pub(crate) type Change = (Target, Key, Bytes);

pub(crate) fn encode<T: Serialize>(value: &T) -> Result<Bytes> {
    let encoded = postcard::to_stdvec(value);
    let damaged = |source| Error::Damaged { what: "a message".into(), source };
    Ok(encoded.map_err(damaged)?.into())
}

pub(crate) fn decode<T: DeserializeOwned>(body: &[u8]) -> Result<T> {
    postcard::from_bytes(body).map_err(|source| Error::Damaged { what: "a message".into(), source })
}

/// How many receives in a row must find nothing new before all is known of a queue whose commits
/// are complete, and of any other.
const EMPTY_RECEIVES: u32 = 4;
const EMPTY_RECEIVES_INCOMPLETE: u32 = 25;

/// Whether each commit record has as many log records as it says, and each log record its commit
/// (§5.1).
fn is_complete(found: &BTreeMap<u64, Atomic>) -> bool {
    let mut missing: BTreeMap<u64, i64> = BTreeMap::new();
    for atomic in found.values() {
        match atomic {
            Atomic::Commit { commit, records } => {
                *missing.entry(*commit).or_default() += *records as i64;
            }
            Atomic::Records { commit, records } => {
                *missing.entry(*commit).or_default() -= records.len() as i64;
            }
        }
    }
    missing.values().all(|missing| *missing == 0)
}

impl Client {
    /// Commits by this client's level.
    pub(crate) async fn commit(self: &Arc<Self>, changes: Vec<Change>) -> Result<()> {
        if self.shared.rules.protocol == Protocol::Naive {
            return self.write_pages(changes).await;
        }
        let records = self.numbered(changes);
        if self.shared.rules.protocol == Protocol::Atomicity {
            let propagation = self.send_atomic(&records).await?;
            self.show(&records);
            // The receiver lives as long as the client's tasks.
            let _ = self.propagation.unbounded_send(propagation);
        } else {
            for (target, record) in &records {
                self.send(Part::Transaction, *target, record).await?;
            }
            self.show(&records);
            self.checkpoint_as_writer(records.iter().map(|(target, _)| *target));
        }
        Ok(())
    }

    fn numbered(&self, changes: Vec<Change>) -> Vec<(Target, LogRecord)> {
        let mut memory = self.memory.lock();
        let number = |(target, key, payload): Change| {
            let counter = memory.counters.entry(target).or_default();
            *counter += 1;
            (target, LogRecord { client: self.id, counter: *counter, key, payload })
        };
        changes.into_iter().map(number).collect()
    }

    /// This client sees what it has committed.
    fn show(&self, records: &[(Target, LogRecord)]) {
        for (target, record) in records {
            if let Target::Page(page) = *target {
                self.pages.patch(page, |node| node.set(record.key, record.payload.clone()));
                self.remember(page, record);
            }
        }
    }

    async fn send(&self, part: Part, target: Target, record: &LogRecord) -> Result<()> {
        let queue = format!("{PENDING}{}", target.name());
        self.shared.targets.lock().insert(target);
        self.queues.send(part, &queue, encode(record)?).await;
        Ok(())
    }

    /// Writes every changed page as this client has it. What others have written since is
    /// overwritten.
    async fn write_pages(&self, changes: Vec<Change>) -> Result<()> {
        let mut pages: BTreeMap<_, (Vec<_>, Node)> = BTreeMap::new();
        for (target, key, payload) in changes {
            let table = target.header().table;
            let found = tree::find(&self.pages, Cause::Read, table, key, false).await?;
            let (_, node) =
                pages.entry(found.page).or_insert_with(|| (found.path, Node::clone(&found.node)));
            node.set(key, payload);
        }
        for (page, (path, node)) in pages {
            tree::write(&self.pages, Cause::Commit, self.shared.rules.sizes, path, page, node)
                .await?;
        }
        Ok(())
    }

    /// The queue of a client's own; through all its lives, so that one that dies while it recovers
    /// leaves nothing behind.
    fn atomic_queue(&self) -> String {
        format!("{ATOMIC}{}", self.session)
    }

    /// The first step of an atomic commit: log records in as few messages as may be, the commit
    /// record last.
    async fn send_atomic(&self, records: &[(Target, LogRecord)]) -> Result<Propagation> {
        let queue = self.atomic_queue();
        // Unique to this life: numbers only go up.
        let commit = records.first().map_or(0, |(_, record)| record.counter) << 32
            | self.env.random.next_u64() >> 32;
        let mut batches: Vec<Vec<(Target, LogRecord)>> = Vec::new();
        let mut room = 0;
        for entry in records {
            let bytes = encode(entry)?.len();
            if bytes > room || batches.is_empty() {
                batches.push(Vec::new());
                room = MESSAGE_BYTES - 32;
            }
            room = room.saturating_sub(bytes);
            if let Some(batch) = batches.last_mut() {
                batch.push(entry.clone());
            }
        }
        let mut messages = Vec::new();
        for records in batches {
            let body = encode(&Atomic::Records { commit, records: records.clone() })?;
            messages.push((self.queues.send(Part::Transaction, &queue, body).await, records));
        }
        let body = encode(&Atomic::Commit { commit, records: records.len() })?;
        let commit_message = self.queues.send(Part::Transaction, &queue, body).await;
        Ok(Propagation { messages, commit_message })
    }

    /// The second and third step, one transaction after the other, beside the client's work.
    pub(crate) async fn propagate(
        client: Weak<Self>,
        mut work: mpsc::UnboundedReceiver<Propagation>,
    ) -> Result<()> {
        while let Some(propagation) = work.next().await {
            let Some(client) = client.upgrade() else { return Ok(()) };
            client.propagate_one(&client.atomic_queue(), propagation).await?;
        }
        Ok(())
    }

    async fn propagate_one(self: &Arc<Self>, queue: &str, work: Propagation) -> Result<()> {
        let mut targets = Vec::new();
        for (message, records) in work.messages {
            for (target, record) in &records {
                self.send(Part::Background, *target, record).await?;
                targets.push(*target);
            }
            self.queues.delete(Part::Background, queue, message).await;
        }
        self.queues.delete(Part::Background, queue, work.commit_message).await;
        self.checkpoint_as_writer(targets.into_iter());
        Ok(())
    }

    /// After a crash: what earlier lives committed is sent on, the rest forgotten (§5.1).
    pub async fn recover(self: &Arc<Self>) -> Result<()> {
        let queue = self.atomic_queue();
        let mut found: BTreeMap<u64, Atomic> = BTreeMap::new();
        let mut empty = 0;
        while empty < EMPTY_RECEIVES || !is_complete(&found) && empty < EMPTY_RECEIVES_INCOMPLETE {
            // Not locked: only this client reads the queue, and a share is found each time.
            let lock = std::time::Duration::ZERO;
            let received = self.queues.receive(Part::Background, &queue, RECEIVE_MOST, lock).await;
            let before = found.len();
            for message in received {
                found.insert(message.id, decode(&message.body)?);
            }
            empty = if found.len() == before { empty + 1 } else { 0 };
        }
        let mut commits: BTreeMap<u64, Propagation> = BTreeMap::new();
        for (message, atomic) in &found {
            if let Atomic::Commit { commit, .. } = atomic {
                let work = Propagation { messages: Vec::new(), commit_message: *message };
                commits.insert(*commit, work);
            }
        }
        for (message, atomic) in found {
            let Atomic::Records { commit, records } = atomic else { continue };
            match commits.get_mut(&commit) {
                Some(work) => work.messages.push((message, records)),
                None => self.queues.delete(Part::Background, &queue, message).await,
            }
        }
        for work in commits.into_values() {
            self.propagate_one(&queue, work).await?;
        }
        Ok(())
    }
}
