//! Claims: transactions of one process that are about to change the same key take turns.
//!
//! # Purpose
//! Two transactions that change one key cannot both commit from the same snapshot: the second is
//! found in conflict and has to run again. Where both are in this process, the second can wait for
//! the first instead, before it reads.
//!
//! # Protocol
//! ```text
//! claim k: free -> holder                     end of the holder: the next that still waits becomes the holder and goes on
//!          held -> queue, wait --granted--+
//!                        |--bound passed--+-> go on; validation at commit decides
//!                        '--would be a circle
//! ```
//!
//! # Invariants
//! - A claim is a hint. Nothing depends on it for correctness: commits are validated whether or not
//!   a key was claimed, and transactions of other processes know nothing of it.
//! - A key goes to the waiting transaction whose work has ended in conflicts most often, then to
//!   the one that came first: another process may beat whoever holds the key, and who then began at
//!   the end of the queue would never be done.
//! - A transaction leaves every queue and hands on every key it holds when it ends, however it
//!   ends.
//! - No wait closes a circle of transactions that wait for one another: the last one goes on at
//!   once. A key is handed to one that went on without it only when nobody waits for it, so a
//!   hand-over closes none either.
//!
//! # On failure
//! Nothing here fails.
//!
//! # Limits
//! The waits of one call last [`WAIT`] at most together; behind a holder that somebody waited for
//! in vain for all of that nobody else waits. A transaction claims [`MAX_CLAIMS`] keys at most,
//! further ones are left to validation.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use parking_lot::Mutex;
use rustc_hash::FxHashMap;
use telesto_common::wait::{self, Wait};
use telesto_common::{Env, TxnId};
use tokio::sync::oneshot;

/// Bound on the waits of one call: a holder that is idle, its client thinking, is passed by after
/// this.
const WAIT: Duration = Duration::from_secs(1);
/// Keys one transaction claims at most.
const MAX_CLAIMS: usize = 1024;

/// The claims of one engine's transactions.
#[derive(Debug, Default)]
pub(crate) struct Claims {
    table: Mutex<Table>,
}

#[derive(Debug, Default)]
struct Table {
    keys: FxHashMap<Bytes, Claim>,
    /// Who waits until nobody has claimed a key, to share it.
    passing: FxHashMap<Bytes, Vec<oneshot::Sender<()>>>,
    /// Who shares a key: writes it without having read it.
    shared: FxHashMap<Bytes, Sharers>,
    /// Transactions that wait now, and for which key.
    waiting: FxHashMap<TxnId, Bytes>,
}

#[derive(Debug)]
struct Claim {
    holder: TxnId,
    /// Somebody waited for this holder as long as it is worth.
    overdue: bool,
    /// By attempts, the most first, then in order of arrival.
    queue: VecDeque<Waiter>,
}

#[derive(Debug, Default)]
struct Sharers {
    txns: Vec<TxnId>,
    /// Somebody waited for them as long as it is worth.
    overdue: bool,
    /// Who has claimed the key and waits until they have ended.
    waiting: Vec<oneshot::Sender<()>>,
}

#[derive(Debug)]
struct Waiter {
    txn: TxnId,
    attempt: u32,
    granted: oneshot::Sender<()>,
}

impl Table {
    /// Whether `txn`, waiting for `key`, would wait for itself.
    fn closes_circle(&self, txn: TxnId, key: &Bytes) -> bool {
        let mut key = key;
        // Every step but the first leads to the key that another waiting transaction waits for.
        for _ in 0..=self.waiting.len() {
            let Some(claim) = self.keys.get(key) else { return false };
            if claim.holder == txn {
                return true;
            }
            let Some(next) = self.waiting.get(&claim.holder) else { return false };
            key = next;
        }
        true
    }

    /// Whether `txn`, waiting until all those have ended that share `key`, would wait for itself.
    fn shared_in_circle(&self, txn: TxnId, sharers: &Sharers) -> bool {
        let wait = |other: &TxnId| self.waiting.get(other);
        sharers.txns.iter().filter_map(wait).any(|key| self.closes_circle(txn, key))
    }

    fn stop_sharing(&mut self, txn: TxnId, key: &Bytes) {
        let Some(sharers) = self.shared.get_mut(key) else { return };
        sharers.txns.retain(|other| *other != txn);
        if sharers.txns.is_empty() {
            for waiter in std::mem::take(&mut sharers.waiting) {
                let _ = waiter.send(());
            }
            self.shared.remove(key);
        }
    }

    fn leave(&mut self, txn: TxnId, key: &Bytes) {
        let Some(claim) = self.keys.get_mut(key) else { return };
        if claim.holder != txn {
            claim.queue.retain(|other| other.txn != txn);
            return;
        }
        let waits = |other: &Waiter| self.waiting.get(&other.txn) == Some(key);
        let next = claim.queue.iter().position(waits).unwrap_or(0);
        match claim.queue.remove(next) {
            Some(Waiter { txn: next, granted, .. }) => {
                claim.holder = next;
                claim.overdue = false;
                // At once, not when it gets to run: nobody may think it still waits.
                self.waiting.remove(&next);
                // Whoever no longer waits holds the key all the same, until it ends.
                let _ = granted.send(());
            }
            None => {
                self.keys.remove(key);
                for free in self.passing.remove(key).into_iter().flatten() {
                    let _ = free.send(());
                }
            }
        }
    }
}

/// What one transaction has claimed; dropping it gives everything up.
#[derive(Debug)]
pub(crate) struct Claimed {
    claims: Arc<Claims>,
    txn: TxnId,
    attempt: u32,
    keys: Mutex<Vec<Bytes>>,
    shares: Mutex<Vec<Bytes>>,
}

/// Ends a wait, also when the waiting future is dropped.
struct Waiting<'a>(&'a Claimed);

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.claims.table.lock().waiting.remove(&self.0.txn);
    }
}

impl Claimed {
    /// Nothing is claimed yet. `attempt`: how often the work of `txn` ended in a conflict before.
    pub fn new(claims: &Arc<Claims>, txn: TxnId, attempt: u32) -> Self {
        Self {
            claims: Arc::clone(claims),
            txn,
            attempt,
            keys: Mutex::default(),
            shares: Mutex::default(),
        }
    }

    /// Claims `keys`, waiting for them as far as that is worth it, at most `timeout`.
    pub async fn claim(&self, env: &Env, keys: &[Bytes], timeout: Duration) {
        let mut deadline = None;
        for key in keys {
            self.stop_sharing(key);
            let Some((holder, granted)) = self.enter(key) else {
                self.await_sharers(env, key, &mut deadline, timeout).await;
                continue;
            };
            let waiting = Waiting(self);
            metrics::counter!("telesto_txn_claim_waits_total").increment(1);
            let first = deadline.is_none();
            let deadline = *deadline.get_or_insert_with(|| env.deadline(WAIT.min(timeout)));
            let granted = env.within(deadline, "waiting for a row", granted);
            let granted = wait::on(Wait::Row, granted).await;
            drop(waiting);
            if granted.is_err() {
                metrics::counter!("telesto_txn_claim_waits_in_vain_total").increment(1);
                if let Some(claim) = self.claims.table.lock().keys.get_mut(key) {
                    // A queue that moves is worth waiting in; a later wait of a call has not been a
                    // long one.
                    claim.overdue |= first && claim.holder == holder;
                }
            } else {
                self.await_sharers(env, key, &mut Some(deadline), timeout).await;
            }
        }
    }

    /// Waits until those have ended that share the key this transaction holds; new ones wait for
    /// it.
    async fn await_sharers(
        &self,
        env: &Env,
        key: &Bytes,
        deadline: &mut Option<telesto_common::Deadline>,
        timeout: Duration,
    ) {
        let ended = {
            let mut table = self.claims.table.lock();
            let Some(sharers) = table.shared.get(key) else { return };
            if sharers.overdue || table.shared_in_circle(self.txn, sharers) {
                return;
            }
            let (ended, all) = oneshot::channel();
            if let Some(sharers) = table.shared.get_mut(key) {
                sharers.waiting.push(ended);
            }
            all
        };
        metrics::counter!("telesto_txn_claim_waits_total").increment(1);
        let deadline = *deadline.get_or_insert_with(|| env.deadline(WAIT.min(timeout)));
        if env.within(deadline, "waiting for a row", ended).await.is_err() {
            metrics::counter!("telesto_txn_claim_waits_in_vain_total").increment(1);
            if let Some(sharers) = self.claims.table.lock().shared.get_mut(key) {
                sharers.overdue = true;
            }
        }
    }

    /// This transaction reads the key after all, or has ended.
    fn stop_sharing(&self, key: &Bytes) {
        let mut own = self.shares.lock();
        if let Some(at) = own.iter().position(|one| one == key) {
            own.swap_remove(at);
            self.claims.table.lock().stop_sharing(self.txn, key);
        }
    }

    /// Whether this transaction has claimed `key`, or waits for it.
    pub fn has(&self, key: &Bytes) -> bool {
        self.keys.lock().contains(key)
    }

    /// Shares `key` with others who write it without having read it: any number of those go on
    /// together, and whoever claims it takes turns with all of them. Waits while it is claimed, as
    /// far as that is worth it, at most `timeout`.
    pub async fn share(&self, env: &Env, key: &Bytes, timeout: Duration) {
        let free = {
            let mut own = self.shares.lock();
            if own.contains(key) {
                return;
            }
            let mut table = self.claims.table.lock();
            own.push(key.clone());
            let waits = table.keys.get(key).is_some_and(|claim| {
                !claim.overdue && claim.holder != self.txn && !table.closes_circle(self.txn, key)
            });
            if !waits {
                table.shared.entry(key.clone()).or_default().txns.push(self.txn);
                return;
            }
            let (free, freed) = oneshot::channel();
            let passing = table.passing.entry(key.clone()).or_default();
            passing.retain(|other| !other.is_closed());
            passing.push(free);
            table.waiting.insert(self.txn, key.clone());
            freed
        };
        let waiting = Waiting(self);
        metrics::counter!("telesto_txn_claim_waits_total").increment(1);
        let by = env.deadline(WAIT.min(timeout));
        let freed = env.within(by, "waiting for a row", free).await;
        drop(waiting);
        if freed.is_err() {
            metrics::counter!("telesto_txn_claim_waits_in_vain_total").increment(1);
        }
        // Not once more: the next claim may be there already, and finds this one.
        let own = self.shares.lock();
        if own.contains(key) {
            self.claims.table.lock().shared.entry(key.clone()).or_default().txns.push(self.txn);
        }
    }

    /// Takes the key or a place in its queue; gives the holder and what to wait for, if waiting is
    /// worth it.
    fn enter(&self, key: &Bytes) -> Option<(TxnId, oneshot::Receiver<()>)> {
        let mut own = self.keys.lock();
        if own.len() >= MAX_CLAIMS || own.contains(key) {
            return None;
        }
        let mut table = self.claims.table.lock();
        own.push(key.clone());
        let Some(claim) = table.keys.get_mut(key) else {
            let claim = Claim { holder: self.txn, overdue: false, queue: VecDeque::new() };
            table.keys.insert(key.clone(), claim);
            return None;
        };
        let (grant, granted) = oneshot::channel();
        let place = claim.queue.partition_point(|other| other.attempt >= self.attempt);
        let waiter = Waiter { txn: self.txn, attempt: self.attempt, granted: grant };
        claim.queue.insert(place, waiter);
        let holder = claim.holder;
        if claim.overdue || table.closes_circle(self.txn, key) {
            return None;
        }
        table.waiting.insert(self.txn, key.clone());
        Some((holder, granted))
    }

    /// Claims `key` if nobody has it, or shares it: whether nobody else does.
    pub fn try_claim(&self, key: &Bytes) -> bool {
        let mut own = self.keys.lock();
        let mut table = self.claims.table.lock();
        let shared = |sharers: &Sharers| sharers.txns.iter().any(|txn| *txn != self.txn);
        if table.shared.get(key).is_some_and(shared) {
            return false;
        }
        if let Some(claim) = table.keys.get(key) {
            return claim.holder == self.txn;
        }
        if own.len() < MAX_CLAIMS {
            own.push(key.clone());
            let claim = Claim { holder: self.txn, overdue: false, queue: VecDeque::new() };
            table.keys.insert(key.clone(), claim);
        }
        true
    }

    /// Gives one key up.
    pub fn give_up(&self, key: &Bytes) {
        let mut own = self.keys.lock();
        if let Some(at) = own.iter().position(|one| one == key) {
            own.swap_remove(at);
            self.claims.table.lock().leave(self.txn, key);
        }
    }

    /// Gives everything up.
    pub fn release(&self) {
        let own = std::mem::take(&mut *self.keys.lock());
        let shares = std::mem::take(&mut *self.shares.lock());
        if own.is_empty() && shares.is_empty() {
            return;
        }
        let mut table = self.claims.table.lock();
        for key in &own {
            table.leave(self.txn, key);
        }
        for key in &shares {
            table.stop_sharing(self.txn, key);
        }
    }
}

/// What somebody who commits writes without a transaction has claimed: transactions of this process
/// that are about to change those rows wait for it, and it for them. Given up when it is dropped.
#[derive(Debug)]
pub struct RowClaims {
    claimed: Claimed,
    env: Env,
}

impl RowClaims {
    /// Work that has ended in a conflict goes before that of transactions, of which there may be
    /// ever new ones.
    pub(crate) fn new(claims: &Arc<Claims>, env: Env) -> Self {
        Self { claimed: Claimed::new(claims, env.txn_id(), u32::MAX), env }
    }

    /// Claims `key`, waiting for it as far as that is worth it, at most `timeout`.
    pub async fn claim(&self, key: &Bytes, timeout: Duration) {
        self.claimed.claim(&self.env, std::slice::from_ref(key), timeout).await;
    }
}

impl Drop for Claimed {
    fn drop(&mut self) {
        self.release();
    }
}

#[cfg(test)]
mod tests {
    use std::future::Future;
    use std::pin::pin;
    use std::task::Poll;

    use futures::poll;

    use super::*;

    fn key(name: &'static str) -> Bytes {
        Bytes::from_static(name.as_bytes())
    }

    fn txn(claims: &Arc<Claims>, id: u128) -> Claimed {
        Claimed::new(claims, TxnId(id), 0)
    }

    async fn ready(future: impl Future<Output = ()>) -> bool {
        poll!(pin!(future)) == Poll::Ready(())
    }

    const LONG: Duration = Duration::from_secs(600);

    #[tokio::test(start_paused = true)]
    async fn claim_held_is_granted_in_turn_when_its_holder_ends() {
        let env = telesto_runtime::env();
        let claims = Arc::new(Claims::default());
        let [a, b, c] = [1, 2, 3].map(|id| txn(&claims, id));
        assert!(ready(a.claim(&env, &[key("k")], LONG)).await);
        let (k, mut order) = ([key("k")], Vec::new());
        let mut second = pin!(b.claim(&env, &k, LONG));
        let mut third = pin!(c.claim(&env, &k, LONG));
        assert!(poll!(second.as_mut()).is_pending() && poll!(third.as_mut()).is_pending());
        assert!(ready(a.claim(&env, &[key("k")], LONG)).await, "one's own key");
        a.release();
        assert!(poll!(third.as_mut()).is_pending(), "the second comes first");
        if poll!(second.as_mut()).is_ready() {
            order.push(2);
        }
        b.release();
        if poll!(third.as_mut()).is_ready() {
            order.push(3);
        }
        assert_eq!(order, [2, 3]);
        c.release();
        assert!(claims.table.lock().keys.is_empty() && claims.table.lock().waiting.is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn claim_goes_first_to_whose_work_was_in_conflict_before() {
        let env = telesto_runtime::env();
        let claims = Arc::new(Claims::default());
        let [a, b] = [1, 2].map(|id| txn(&claims, id));
        let again = Claimed::new(&claims, TxnId(3), 2);
        let k = [key("k")];
        assert!(ready(a.claim(&env, &k, LONG)).await);
        let mut second = pin!(b.claim(&env, &k, LONG));
        let mut third = pin!(again.claim(&env, &k, LONG));
        assert!(poll!(second.as_mut()).is_pending() && poll!(third.as_mut()).is_pending());
        a.release();
        assert!(poll!(second.as_mut()).is_pending());
        assert!(poll!(third.as_mut()).is_ready());
        again.release();
        assert!(poll!(second.as_mut()).is_ready());
    }

    #[tokio::test(start_paused = true)]
    async fn claim_that_would_close_a_circle_does_not_wait() {
        let env = telesto_runtime::env();
        let claims = Arc::new(Claims::default());
        let [a, b, c] = [1, 2, 3].map(|id| txn(&claims, id));
        for (txn, name) in [(&a, "x"), (&b, "y"), (&c, "z")] {
            assert!(ready(txn.claim(&env, &[key(name)], LONG)).await);
        }
        let (y, z, x) = ([key("y")], [key("z")], [key("x")]);
        let mut first = pin!(a.claim(&env, &y, LONG));
        let mut second = pin!(b.claim(&env, &z, LONG));
        assert!(poll!(first.as_mut()).is_pending() && poll!(second.as_mut()).is_pending());
        assert!(ready(c.claim(&env, &x, LONG)).await);
        c.release();
        // Granted, and not run yet: it no longer waits.
        assert!(ready(c.claim(&env, &[key("w")], LONG)).await);
        let mut third = pin!(c.claim(&env, &z, LONG));
        assert!(poll!(third.as_mut()).is_pending());
        assert!(poll!(second.as_mut()).is_ready());
    }

    #[tokio::test(start_paused = true)]
    async fn claim_that_does_not_wait_is_taken_by_one_at_a_time() {
        let env = telesto_runtime::env();
        let claims = Arc::new(Claims::default());
        let [a, b, c] = [1, 2, 3].map(|id| txn(&claims, id));
        assert!(a.try_claim(&key("k")) && a.try_claim(&key("k")), "one's own key");
        assert!(!b.try_claim(&key("k")));
        let k = [key("k")];
        let mut waits = pin!(c.claim(&env, &k, LONG));
        assert!(poll!(waits.as_mut()).is_pending());
        a.give_up(&key("k"));
        assert!(poll!(waits.as_mut()).is_ready());
        assert!(!a.try_claim(&key("k")) && !b.try_claim(&key("k")), "handed on");
        c.release();
        assert!(b.try_claim(&key("k")));
        b.release();
        assert!(claims.table.lock().keys.is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn those_that_share_wait_for_every_claim_and_go_on_together() {
        let env = telesto_runtime::env();
        let claims = Arc::new(Claims::default());
        let [a, b, c, d] = [1, 2, 3, 4].map(|id| txn(&claims, id));
        let (k, keys) = (key("k"), [key("k")]);
        a.claim(&env, &keys, LONG).await;
        let mut second = pin!(b.claim(&env, &keys, LONG));
        let mut third = pin!(c.share(&env, &k, LONG));
        let mut fourth = pin!(d.share(&env, &k, LONG));
        assert!(poll!(second.as_mut()).is_pending() && poll!(third.as_mut()).is_pending());
        assert!(poll!(fourth.as_mut()).is_pending());
        a.release();
        assert!(poll!(second.as_mut()).is_ready());
        assert!(poll!(third.as_mut()).is_pending(), "the next has it");
        b.release();
        assert!(poll!(third.as_mut()).is_ready() && poll!(fourth.as_mut()).is_ready());
        // Whoever claims it now waits for both.
        let mut claims_it = pin!(a.claim(&env, &keys, LONG));
        assert!(poll!(claims_it.as_mut()).is_pending());
        c.release();
        assert!(poll!(claims_it.as_mut()).is_pending());
        d.release();
        assert!(poll!(claims_it.as_mut()).is_ready());
        a.release();
        let table = claims.table.lock();
        assert!(table.keys.is_empty() && table.waiting.is_empty());
        assert!(table.passing.is_empty() && table.shared.is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn idle_sharer_is_waited_for_once_and_one_that_claims_does_not_wait_for_itself() {
        let env = telesto_runtime::env();
        let claims = Arc::new(Claims::default());
        let [idle, b, c] = [1, 2, 3].map(|id| txn(&claims, id));
        idle.share(&env, &key("k"), LONG).await;
        b.share(&env, &key("k"), LONG).await;
        let keys = [key("k")];
        let mut waits = pin!(b.claim(&env, &keys, LONG));
        assert!(poll!(waits.as_mut()).is_pending());
        waits.await;
        b.release();
        assert!(ready(c.claim(&env, &[key("k")], LONG)).await, "it is known to be idle");
    }

    #[tokio::test(start_paused = true)]
    async fn claim_waited_for_in_vain_delays_nobody_else() {
        let env = telesto_runtime::env();
        let claims = Arc::new(Claims::default());
        let [idle, b, c, d] = [1, 2, 3, 4].map(|id| txn(&claims, id));
        idle.claim(&env, &[key("k")], LONG).await;
        b.claim(&env, &[key("k")], LONG).await;
        assert!(ready(c.claim(&env, &[key("k")], LONG)).await);
        drop(idle);
        let k = [key("k")];
        let mut waits = pin!(d.claim(&env, &k, LONG));
        assert!(poll!(waits.as_mut()).is_pending(), "a new holder is waited for again");
        drop(b);
        drop(c);
        assert!(poll!(waits.as_mut()).is_ready());
    }

    #[tokio::test(start_paused = true)]
    async fn claim_dropped_while_waiting_leaves_nothing() {
        let env = telesto_runtime::env();
        let claims = Arc::new(Claims::default());
        let [a, b] = [1, 2].map(|id| txn(&claims, id));
        a.claim(&env, &[key("k")], LONG).await;
        {
            let k = [key("k")];
            let mut waits = pin!(b.claim(&env, &k, LONG));
            assert!(poll!(waits.as_mut()).is_pending());
        }
        assert!(claims.table.lock().waiting.is_empty());
        drop(b);
        drop(a);
        assert!(claims.table.lock().keys.is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn claim_is_handed_to_one_that_still_waits_so_that_no_circle_forms() {
        let env = telesto_runtime::env();
        let claims = Arc::new(Claims::default());
        let [idle, b, gone_on] = [1, 2, 3].map(|id| txn(&claims, id));
        let (j, k) = ([key("j")], [key("k")]);
        idle.claim(&env, &k, LONG).await;
        b.claim(&env, &j, LONG).await;
        let mut early = Box::pin(gone_on.claim(&env, &k, LONG));
        assert!(poll!(early.as_mut()).is_pending());
        env.clock.sleep(WAIT / 2).await;
        let mut waits = pin!(b.claim(&env, &k, LONG));
        assert!(poll!(waits.as_mut()).is_pending());
        early.await;
        let mut second = pin!(gone_on.claim(&env, &j, LONG));
        assert!(poll!(second.as_mut()).is_pending());
        idle.release();
        assert!(poll!(waits.as_mut()).is_ready(), "past the one that went on");
        b.release();
        assert!(poll!(second.as_mut()).is_ready());
    }

    #[tokio::test(start_paused = true)]
    async fn queue_that_moves_is_not_overdue() {
        let env = telesto_runtime::env();
        let claims = Arc::new(Claims::default());
        let [a, b, c, d] = [1, 2, 3, 4].map(|id| txn(&claims, id));
        let k = [key("k")];
        a.claim(&env, &k, LONG).await;
        let mut second = pin!(b.claim(&env, &k, LONG));
        let mut third = pin!(c.claim(&env, &k, LONG));
        assert!(poll!(second.as_mut()).is_pending() && poll!(third.as_mut()).is_pending());
        env.clock.sleep(WAIT * 3 / 4).await;
        a.release();
        assert!(poll!(second.as_mut()).is_ready());
        third.await;
        let mut fourth = pin!(d.claim(&env, &k, LONG));
        assert!(poll!(fourth.as_mut()).is_pending(), "its holder has just begun");
    }
}
