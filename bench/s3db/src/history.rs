//! What clients were promised, and whether it was kept: the checker.
//!
//! # Invariants
//! Sees what clients see (purchases begun and acknowledged, values read) and what is there at the
//! end, nothing of the protocols: a protocol cannot excuse itself.
//!
//! # Limits
//! Values are told apart by the purchase that wrote them; of a product that several purchases
//! changed, only the last value is seen at the end.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use parking_lot::Mutex;

use crate::workload::{Key, ORDERED, Purchase};

#[derive(Clone, Debug)]
struct Entry {
    client: u32,
    begun: Duration,
    acknowledged: Option<Duration>,
    bought: Vec<Key>,
    orders: Vec<Key>,
}

#[derive(Debug, Default)]
struct Seen {
    /// By client and product: whose values it saw there, each once, in order.
    values: BTreeMap<(u32, Key), Vec<u64>>,
    went_back: u64,
}

/// What happened in a run.
#[derive(Debug, Default)]
pub struct History {
    entries: Mutex<BTreeMap<u64, Entry>>,
    seen: Mutex<Seen>,
}

/// What is there when all is quiet.
#[derive(Clone, Debug, Default)]
pub struct Final {
    /// By product: the purchase that wrote it last, and how often it was sold.
    pub products: BTreeMap<Key, (u64, u64)>,
    pub orders: BTreeSet<Key>,
}

/// What was found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Verdict {
    pub purchases: u64,
    /// Orders acknowledged and not there.
    pub orders_lost: u64,
    /// Products bought, by acknowledged purchases, that nobody's update shows at.
    pub updates_lost: u64,
    /// Reads that showed a value older than one the client had seen or written.
    pub went_back: u64,
    /// Products that show an older update of a client although a later one of it was acknowledged.
    pub own_reordered: u64,
    /// Purchases of which a part is there.
    pub partial: u64,
    /// Products that show an update although another began after it had been acknowledged.
    pub older_won: u64,
    /// Sales that products do not count.
    pub miscounted: u64,
}

impl History {
    pub fn begin(&self, purchase: &Purchase, client: u32, now: Duration) {
        let entry = Entry {
            client,
            begun: now,
            acknowledged: None,
            bought: purchase.bought().to_vec(),
            orders: purchase.orders.to_vec(),
        };
        self.entries.lock().insert(purchase.number, entry);
    }

    /// The purchase was acknowledged: its client has seen its own writes now.
    pub fn acknowledge(&self, number: u64, now: Duration) {
        let mut entries = self.entries.lock();
        let Some(entry) = entries.get_mut(&number) else { return };
        entry.acknowledged = Some(now);
        let mut seen = self.seen.lock();
        for product in &entry.bought {
            seen.values.entry((entry.client, *product)).or_default().push(number);
        }
    }

    /// A client read a product and saw the value that purchase `writer` wrote.
    pub fn read(&self, client: u32, product: Key, writer: u64) {
        let mut seen = self.seen.lock();
        let values = seen.values.entry((client, product)).or_default();
        if values.last() == Some(&writer) {
            return;
        }
        // What nobody has written since loading is older than anything.
        if values.contains(&writer) || (writer == 0 && !values.is_empty()) {
            seen.went_back += 1;
        } else {
            values.push(writer);
        }
    }

    pub fn acknowledged(&self) -> u64 {
        self.entries.lock().values().filter(|entry| entry.acknowledged.is_some()).count() as u64
    }

    /// Compares with what is there at the end.
    pub fn check(&self, found: &Final) -> Verdict {
        let entries = self.entries.lock();
        let mut verdict = Verdict { went_back: self.seen.lock().went_back, ..Verdict::default() };
        let mut buyers: BTreeMap<Key, Vec<&Entry>> = BTreeMap::new();
        let mut tried: BTreeMap<Key, u64> = BTreeMap::new();
        for entry in entries.values() {
            let there = entry.orders.iter().filter(|order| found.orders.contains(order)).count();
            for product in &entry.bought {
                *tried.entry(*product).or_default() += 1;
            }
            if entry.acknowledged.is_some() {
                verdict.purchases += 1;
                verdict.orders_lost += (ORDERED - there) as u64;
                for product in &entry.bought {
                    buyers.entry(*product).or_default().push(entry);
                }
            }
            // An acknowledged purchase that lost all its orders is whole in its way; it is counted
            // above.
            verdict.partial += u64::from(there > 0 && there < ORDERED);
        }
        for (product, tried) in tried {
            let (writer, sold) = found.products.get(&product).copied().unwrap_or_default();
            let buyers = buyers.get(&product).map(Vec::as_slice).unwrap_or_default();
            verdict.updates_lost += u64::from(!buyers.is_empty() && writer == 0);
            // Sales of purchases without an answer may be counted or not.
            let acknowledged = buyers.len() as u64;
            verdict.miscounted += acknowledged.saturating_sub(sold) + sold.saturating_sub(tried);
            let Some(last) = entries.get(&writer) else { continue };
            let Some(ended) = last.acknowledged else { continue };
            let later = |entry: &&&Entry| entry.begun >= ended;
            verdict.older_won += u64::from(buyers.iter().any(|entry| later(&entry)));
            let own = |entry: &&&Entry| entry.client == last.client && entry.begun >= ended;
            verdict.own_reordered += u64::from(buyers.iter().any(|entry| own(&entry)));
        }
        verdict
    }
}

/// What a level promises: which counts must be zero.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Promise {
    /// No acknowledged write is lost.
    pub durable: bool,
    /// Clients see their own writes and never go back.
    pub session: bool,
    /// Purchases are there as a whole or not at all.
    pub atomic: bool,
    /// As if one purchase was made after the other.
    pub isolated: bool,
}

impl Promise {
    /// Promises that were broken, by name.
    pub fn broken(self, verdict: &Verdict) -> Vec<&'static str> {
        let all = [
            (self.durable, verdict.orders_lost, "orders were lost"),
            (self.durable, verdict.updates_lost, "updates were lost"),
            (self.session, verdict.went_back, "reads went back"),
            (self.session, verdict.own_reordered, "a client's writes were reordered"),
            (self.atomic, verdict.partial, "purchases are there in part"),
            (self.isolated, verdict.older_won, "an older update won"),
            (self.isolated, verdict.miscounted, "sales were miscounted"),
        ];
        all.iter()
            .filter(|(promised, n, _)| *promised && *n > 0)
            .map(|(_, _, name)| *name)
            .collect()
    }
}
