//! A queue service as the paper describes SQS (§2.2), metered.
//!
//! # Invariants
//! - A message that was acknowledged is kept until it is deleted.
//! - A received message is locked for the time asked for: other receives do not see it meanwhile.
//! - Half of a request's time passes before its effect and half after.
//!
//! # On failure
//! None is modelled but those that the service is allowed: order is lost, a receive finds only a
//! share of what is there (at least one message if any can be seen), and a deletion is forgotten
//! now and then, so that a message comes twice.
//!
//! # Limits
//! No limit on the size of a message but the 8 KB that clients keep themselves ([`MESSAGE_BYTES`]).

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use parking_lot::Mutex;
use telesto_bucket::latency::{LatencyModel, Spread};
use telesto_common::Env;

use crate::setting::{QueuePrices, QueueTimes};

/// The largest message of the interface the paper used.
pub const MESSAGE_BYTES: usize = 8 << 10;
/// Messages that one receive returns at most.
pub const RECEIVE_MOST: usize = 256;
/// The share of deletions that the service forgets.
const FORGOTTEN: f64 = 0.002;
const BILLED_GB: f64 = (1_u64 << 30) as f64;

/// What a request is a part of: the two columns of the paper's Table 4.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    Transaction,
    Background,
}

/// Requests and bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QueueUsage {
    pub sends: u64,
    pub receives: u64,
    pub deletes: u64,
    pub bytes: u64,
}

impl QueueUsage {
    pub fn dollars(self, prices: &QueuePrices) -> f64 {
        self.sends as f64 * prices.send_per_1000 / 1000.0
            + (self.receives + self.deletes) as f64 * prices.other_per_1000 / 1000.0
            + self.bytes as f64 / BILLED_GB * prices.per_gb
    }

    pub fn plus(self, other: Self) -> Self {
        Self {
            sends: self.sends + other.sends,
            receives: self.receives + other.receives,
            deletes: self.deletes + other.deletes,
            bytes: self.bytes + other.bytes,
        }
    }

    pub fn since(self, earlier: Self) -> Self {
        Self {
            sends: self.sends - earlier.sends,
            receives: self.receives - earlier.receives,
            deletes: self.deletes - earlier.deletes,
            bytes: self.bytes - earlier.bytes,
        }
    }
}

/// Usage by part: of transactions, of the background.
pub type Usages = [QueueUsage; 2];

#[derive(Debug)]
struct Message {
    body: Bytes,
    /// Not seen before this moment of the world.
    visible: Duration,
}

/// The service that all clients share.
#[derive(Debug)]
pub struct QueueService {
    queues: Mutex<BTreeMap<String, BTreeMap<u64, Message>>>,
    usage: Mutex<Usages>,
    next: Mutex<u64>,
    /// The share of messages that a receive finds.
    found: f64,
}

/// A received message.
#[derive(Clone, Debug)]
pub struct Received {
    pub id: u64,
    pub body: Bytes,
}

impl QueueService {
    pub fn new(found: f64) -> Arc<Self> {
        Arc::new(Self {
            queues: Mutex::default(),
            usage: Mutex::default(),
            next: Mutex::default(),
            found,
        })
    }

    pub fn usage(&self) -> Usages {
        *self.usage.lock()
    }

    /// Whether a queue holds messages.
    pub fn holds(&self, queue: &str) -> bool {
        self.queues.lock().get(queue).is_some_and(|messages| !messages.is_empty())
    }

    fn count(&self, part: Part, usage: QueueUsage) {
        let mut usages = self.usage.lock();
        let counted = &mut usages[part as usize];
        *counted = counted.plus(usage);
    }

    fn put(&self, queue: &str, body: Bytes) -> u64 {
        let mut next = self.next.lock();
        *next += 1;
        let message = Message { body, visible: Duration::ZERO };
        self.queues.lock().entry(queue.to_owned()).or_default().insert(*next, message);
        *next
    }
}

/// A client's way to the service.
#[derive(Clone, Debug)]
pub struct Queues {
    service: Arc<QueueService>,
    env: Env,
    times: QueueTimes,
    model: LatencyModel,
}

impl Queues {
    pub fn new(
        service: Arc<QueueService>,
        env: Env,
        times: QueueTimes,
        model: LatencyModel,
    ) -> Self {
        Self { service, env, times, model }
    }

    fn chance(&self, share: f64) -> bool {
        (self.env.random.next_u64() >> 11) as f64 / (1_u64 << 53) as f64 <= share
    }

    async fn around<T>(&self, spread: Spread, work: impl FnOnce() -> T) -> T {
        let half = self.model.draw(&self.env, spread, 0) / 2;
        self.env.clock.sleep(half).await;
        let value = work();
        self.env.clock.sleep(half).await;
        value
    }

    /// Sends a message; its id.
    pub async fn send(&self, part: Part, queue: &str, body: Bytes) -> u64 {
        let bytes = body.len() as u64;
        self.service.count(part, QueueUsage { sends: 1, bytes, ..QueueUsage::default() });
        self.around(self.times.send, || self.service.put(queue, body)).await
    }

    /// A share of the messages that can be seen, at most `most`, in no order, locked for `lock`.
    pub async fn receive(
        &self,
        part: Part,
        queue: &str,
        most: usize,
        lock: Duration,
    ) -> Vec<Received> {
        self.service.count(part, QueueUsage { receives: 1, ..QueueUsage::default() });
        let found = self.around(self.times.receive, || self.take(queue, most, lock)).await;
        let bytes = found.iter().map(|message| message.body.len() as u64).sum();
        self.service.count(part, QueueUsage { bytes, ..QueueUsage::default() });
        found
    }

    fn take(&self, queue: &str, most: usize, lock: Duration) -> Vec<Received> {
        let now = self.env.clock.monotonic();
        let mut queues = self.service.queues.lock();
        // The token of a lock queue is there from the moment its page is made (§4.3); making it is
        // not metered.
        if queue.starts_with(LOCK) && !queues.contains_key(queue) {
            let token = Message { body: Bytes::new(), visible: Duration::ZERO };
            queues.entry(queue.to_owned()).or_default().insert(0, token);
        }
        let Some(messages) = queues.get_mut(queue) else { return Vec::new() };
        let mut seen: Vec<u64> = messages
            .iter()
            .filter(|(_, m)| m.visible <= now)
            .map(|(id, _)| *id)
            .take(most)
            .collect();
        // Shuffled: best effort is no order.
        for at in (1..seen.len()).rev() {
            seen.swap(at, (self.env.random.next_u64() % (at as u64 + 1)) as usize);
        }
        let mut found = Vec::new();
        for id in seen {
            if !found.is_empty() && !self.chance(self.service.found) {
                continue;
            }
            if let Some(message) = messages.get_mut(&id) {
                message.visible = now + lock;
                found.push(Received { id, body: message.body.clone() });
            }
        }
        found
    }

    /// Deletes a message.
    pub async fn delete(&self, part: Part, queue: &str, id: u64) {
        self.service.count(part, QueueUsage { deletes: 1, ..QueueUsage::default() });
        let forgotten = self.chance(FORGOTTEN);
        self.around(self.times.delete, || {
            if !forgotten && let Some(messages) = self.service.queues.lock().get_mut(queue) {
                messages.remove(&id);
            }
        })
        .await;
    }
}

/// Names of lock queues begin so.
pub const LOCK: &str = "lock/";
/// Names of pending-update queues begin so.
pub const PENDING: &str = "pending/";
/// Names of clients' atomic queues begin so.
pub const ATOMIC: &str = "atomic/";
