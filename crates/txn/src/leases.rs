//! Leases: snapshots that are kept for transactions of other processes.
//!
//! # Purpose
//! A transaction of this process keeps its snapshot by a guard that lives as long as it does. One
//! of another process cannot: it may die, or be cut off, without a word. It holds a lease, which
//! ends unless it is renewed.
//!
//! # Invariants
//! - A lease lasts from its begin or its last renewal by this process's monotonic clock; a process
//!   that stood still may let leases last longer, never shorter.
//! - Nothing rests on a lease: it only keeps versions from being dropped, and every read checks
//!   that they were not.
//!
//! # Limits
//! [`MAX_LEASES`] at a time: a process that begins and never releases cannot take this one's
//! memory.

use std::collections::hash_map::Entry;
use std::time::Duration;

use parking_lot::Mutex;
use rustc_hash::FxHashMap;
use telesto_common::Env;
use telesto_shard::SnapshotGuard;

use crate::error::{Error, Result};
use crate::service::LeaseId;

/// How long a lease lasts without a word of its holder.
pub(crate) const LASTS: Duration = Duration::from_secs(10);
/// Leases at a time, at most.
const MAX_LEASES: usize = 100_000;

/// The leases a process has given out.
#[derive(Debug, Default)]
pub(crate) struct Leases(Mutex<FxHashMap<LeaseId, (SnapshotGuard, Duration)>>);

impl Leases {
    /// Keeps what `guard` keeps until the lease ends.
    pub fn grant(&self, env: &Env, guard: SnapshotGuard) -> Result<LeaseId> {
        let now = env.clock.monotonic();
        let mut leases = self.0.lock();
        if leases.len() >= MAX_LEASES {
            leases.retain(|_, (_, ends)| *ends > now);
        }
        if leases.len() >= MAX_LEASES {
            return Err(Error::Unavailable(format!(
                "{MAX_LEASES} snapshots of other processes are open on this node, the most it keeps; end transactions, or begin again in {} s",
                LASTS.as_secs()
            )));
        }
        loop {
            let id = LeaseId(env.random.next_u64());
            if let Entry::Vacant(place) = leases.entry(id) {
                place.insert((guard, now + LASTS));
                return Ok(id);
            }
        }
    }

    /// Returns those that had ended.
    pub fn renew(&self, env: &Env, ids: &[LeaseId]) -> Vec<LeaseId> {
        let now = env.clock.monotonic();
        let mut leases = self.0.lock();
        let mut renew = |id: &&LeaseId| match leases.get_mut(id) {
            Some((_, ends)) if *ends > now => {
                *ends = now + LASTS;
                false
            }
            _ => true,
        };
        ids.iter().filter(&mut renew).copied().collect()
    }

    pub fn release(&self, ids: &[LeaseId]) {
        let mut leases = self.0.lock();
        for id in ids {
            leases.remove(id);
        }
    }

    /// Forgets those that have ended, so that what only they kept can be dropped.
    pub fn expire(&self, now: Duration) {
        self.0.lock().retain(|_, (_, ends)| *ends > now);
    }
}
