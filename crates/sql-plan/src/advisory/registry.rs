//! Who holds and waits for advisory locks in this process.
//!
//! # Invariants
//! - Of one lock, the granted holds of different sessions never conflict; a hold is granted only
//!   while the remote row gives this process that mode.
//! - A request waits behind earlier ones that it conflicts with, so that none waits for ever.
//! - A session waits for one lock at a time; no call looks through the locks of others that it does
//!   not wait for.
//! - One task a lock (*settle*) changes the row; it goes on when the one who asked has gone.
//!
//! - The row is changed to take a lock when the caller's spend caps let it, on its account; to give
//!   it up always, as a job.
//!
//! # On failure
//! An error of the row's transaction goes to those who wait for it, and the row is written until it
//! is known to name who has the lock: what failed may have taken effect. A release that fails is
//! tried again.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use telesto_bucket::meter::{ScopeMeter, current_scope, scoped, toll};
use telesto_common::Env;
use telesto_common::wait::{self, Wait};
use telesto_meter::Resource;
use telesto_txn::Database;
use telesto_txn::Transaction;
use tokio::sync::Notify;

use super::remote::{BEAT, Remote, RemoteError};
use super::{LockKey, LockMode};
use telesto_sql_types::error::{Error, Result, SqlState};

/// How long a session that holds an advisory lock waits for one that another process has.
pub const REMOTE_WAIT: Duration = Duration::from_secs(60);
const LEAST_PAUSE: Duration = Duration::from_millis(20);
const MOST_PAUSE: Duration = Duration::from_secs(1);

#[derive(Debug)]
struct Hold {
    session: u64,
    pid: i32,
    mode: LockMode,
    granted: bool,
    failed: Option<Error>,
}

#[derive(Debug)]
struct Waiting {
    ticket: u64,
    session: u64,
    pid: i32,
    mode: LockMode,
}

#[derive(Debug, Default)]
struct Entry {
    holds: Vec<Hold>,
    waiting: Vec<Waiting>,
    /// How the row names this process.
    remote: Option<LockMode>,
    /// The row may name it otherwise: what was to change it failed, and may have taken effect.
    unsure: bool,
    settling: bool,
    /// How often the row was found taken.
    refusals: u64,
}

impl Entry {
    fn needed(&self) -> Option<LockMode> {
        self.holds.iter().filter(|hold| hold.failed.is_none()).map(|hold| hold.mode).max()
    }

    /// Whether another session is in the way of a request with that ticket.
    fn blocked(&self, session: u64, mode: LockMode, ticket: u64) -> bool {
        self.blockers(session, mode, ticket).next().is_some()
    }

    fn blockers(
        &self,
        session: u64,
        mode: LockMode,
        ticket: u64,
    ) -> impl Iterator<Item = u64> + '_ {
        let holders = self
            .holds
            .iter()
            .filter(move |hold| hold.session != session && hold.mode.conflicts(mode))
            .map(|hold| hold.session);
        let own = self.holds.iter().any(|hold| hold.session == session);
        // Whoever has the lock already need not queue for more of it: the others wait for this one.
        let earlier = self
            .waiting
            .iter()
            .filter(move |w| {
                !own && w.ticket < ticket && w.session != session && w.mode.conflicts(mode)
            })
            .map(|w| w.session);
        holders.chain(earlier)
    }
}

#[derive(Debug, Default)]
struct State {
    locks: BTreeMap<LockKey, Entry>,
    /// For which lock a session waits, or has waited in the call that is under way.
    waits: BTreeMap<u64, LockKey>,
    ticket: u64,
    beating: bool,
    /// Sessions that held locks when the process was taken for dead.
    lost: BTreeSet<u64>,
}

/// A row of pg_locks.
#[derive(Clone, Debug)]
pub struct LockShown {
    /// The lock.
    pub key: LockKey,
    /// How it is held or wanted.
    pub mode: LockMode,
    /// The session, by the process id it shows.
    pub pid: i32,
    /// Whether the session has it, or waits.
    pub granted: bool,
}

/// The advisory locks of a process.
#[derive(Debug)]
pub struct AdvisoryLocks {
    state: Mutex<State>,
    changed: Notify,
    remote: Remote,
    env: Env,
}

/// Takes a request back when its waiter is gone.
struct Asking<'a> {
    locks: &'a Arc<AdvisoryLocks>,
    key: LockKey,
    session: u64,
    mode: LockMode,
    ticket: u64,
    done: bool,
}

impl Drop for Asking<'_> {
    fn drop(&mut self) {
        let mut state = self.locks.state.lock();
        state.waits.remove(&self.session);
        if let Some(entry) = state.locks.get_mut(&self.key) {
            entry.waiting.retain(|waiting| waiting.ticket != self.ticket);
            if !self.done {
                entry.holds.retain(|hold| {
                    hold.granted || hold.session != self.session || hold.mode != self.mode
                });
            }
        }
        drop(state);
        self.locks.changed.notify_waiters();
        self.locks.settle(self.key);
    }
}

impl AdvisoryLocks {
    /// Of a process that tells the others by `remote`.
    pub fn new(remote: Remote, env: Env) -> Arc<Self> {
        Arc::new(Self { state: Mutex::default(), changed: Notify::new(), remote, env })
    }

    /// Where its rows are.
    pub(crate) fn database(&self) -> &Arc<dyn Database> {
        self.remote.database()
    }

    pub(super) fn env(&self) -> &Env {
        &self.env
    }

    /// Takes `key` for a session that does not have it in that mode; false: `attempt`, and it is
    /// taken. `holds_another`: the session has other locks, so that it does not wait for ever for
    /// one that another process has.
    pub async fn take(
        self: &Arc<Self>,
        (key, mode): (LockKey, LockMode),
        (session, pid): (u64, i32),
        holds_another: bool,
        attempt: bool,
    ) -> Result<bool> {
        let ticket = {
            let mut state = self.state.lock();
            state.ticket += 1;
            state.ticket
        };
        self.asks_caps(key, mode).await;
        let mut asking = Asking { locks: self, key, session, mode, ticket, done: false };
        let mut refusals = None;
        let begun = self.env.clock.monotonic();
        loop {
            let notified = self.changed.notified();
            let mut notified = std::pin::pin!(notified);
            notified.as_mut().enable();
            let bounded = {
                let mut state = self.state.lock();
                let entry = state.locks.entry(key).or_default();
                let at = entry.holds.iter().position(|h| h.session == session && h.mode == mode);
                match at {
                    Some(at) if entry.holds[at].granted => {
                        asking.done = true;
                        return Ok(true);
                    }
                    Some(at) => {
                        if let Some(error) = entry.holds[at].failed.clone() {
                            return Err(error);
                        }
                        if attempt && refusals.is_some_and(|before| entry.refusals > before) {
                            return Ok(false);
                        }
                        holds_another
                    }
                    None if !entry.blocked(session, mode, ticket) => {
                        // A change of the row under way may be about to take it away.
                        let granted = !entry.settling && entry.remote >= Some(mode);
                        entry.waiting.retain(|waiting| waiting.ticket != ticket);
                        entry.holds.push(Hold { session, pid, mode, granted, failed: None });
                        refusals = Some(entry.refusals);
                        if granted {
                            asking.done = true;
                            return Ok(true);
                        }
                        drop(state);
                        self.settle_for(key, current_scope());
                        holds_another
                    }
                    None if attempt => return Ok(false),
                    None => {
                        if !entry.waiting.iter().any(|waiting| waiting.ticket == ticket) {
                            entry.waiting.push(Waiting { ticket, session, pid, mode });
                            state.waits.insert(session, key);
                            if state.deadlocked(session) {
                                return Err(deadlock());
                            }
                        }
                        false
                    }
                }
            };
            if !bounded {
                wait::on(Wait::Advisory, notified).await;
                continue;
            }
            let left = REMOTE_WAIT.saturating_sub(self.env.clock.monotonic().saturating_sub(begun));
            if left.is_zero() {
                return Err(deadlock().detail(
                    "This session holds an advisory lock and has waited a minute for one that another process has.",
                ));
            }
            tokio::select! {
                () = wait::on(Wait::Advisory, notified) => {}
                () = self.env.clock.sleep(left) => {}
            }
        }
    }

    /// Waits until the caller's spend caps let it write the row, if that is to be written: no
    /// statement said that it would write.
    async fn asks_caps(&self, key: LockKey, mode: LockMode) {
        let has = |entry: &Entry| !entry.settling && entry.remote >= Some(mode);
        if !self.state.lock().locks.get(&key).is_some_and(has) {
            toll(&*self.env.clock, Resource::Puts).await;
        }
    }

    /// Gives up a hold.
    pub fn give(self: &Arc<Self>, key: LockKey, mode: LockMode, session: u64) {
        if let Some(entry) = self.state.lock().locks.get_mut(&key) {
            entry.holds.retain(|hold| hold.session != session || hold.mode != mode);
        }
        self.changed.notify_waiters();
        self.settle(key);
    }

    /// Waits until the bucket knows what was given up.
    pub async fn settled(&self, key: LockKey) {
        loop {
            let notified = self.changed.notified();
            let mut notified = std::pin::pin!(notified);
            notified.as_mut().enable();
            let settling = self
                .state
                .lock()
                .locks
                .get(&key)
                .is_some_and(|entry| entry.settling && entry.remote > entry.needed());
            if !settling {
                return;
            }
            notified.await;
        }
    }

    /// Whether the session's locks were lost since the last call.
    pub fn take_lost(&self, session: u64) -> bool {
        let mut state = self.state.lock();
        !state.lost.is_empty() && state.lost.remove(&session)
    }

    /// Lets a commit fail if this process's locks were taken over.
    ///
    /// # Errors
    /// 55000 when they were.
    pub async fn fence(self: &Arc<Self>, txn: &Arc<dyn Transaction>) -> Result<()> {
        match self.remote.fence(txn).await? {
            None => Ok(()),
            Some(life) => {
                self.lose(life);
                Err(lost())
            }
        }
    }

    /// What pg_locks shows.
    pub fn shown(&self) -> Vec<LockShown> {
        let state = self.state.lock();
        let mut out = Vec::new();
        for (key, entry) in &state.locks {
            let holds = entry.holds.iter().map(|hold| (hold.mode, hold.pid, hold.granted));
            let waiting = entry.waiting.iter().map(|waiting| (waiting.mode, waiting.pid, false));
            for (mode, pid, granted) in holds.chain(waiting) {
                out.push(LockShown { key: *key, mode, pid, granted });
            }
        }
        out
    }

    /// Changes the row to what is needed. What gives locks up is asked of nobody, and not put on
    /// its account: it may not be refused.
    fn settle(self: &Arc<Self>, key: LockKey) {
        self.settle_for(key, None);
    }

    fn settle_for(self: &Arc<Self>, key: LockKey, payer: Option<Arc<ScopeMeter>>) {
        {
            let mut state = self.state.lock();
            let Some(entry) = state.locks.get_mut(&key) else { return };
            if entry.settling {
                return;
            }
            if entry.needed() == entry.remote && !entry.unsure {
                if entry.holds.is_empty() && entry.waiting.is_empty() && entry.remote.is_none() {
                    state.locks.remove(&key);
                }
                return;
            }
            entry.settling = true;
        }
        let locks = Arc::clone(self);
        let settling = async move { locks.settling(key).await };
        match payer {
            Some(payer) => self.env.spawn("advisory lock", scoped(payer, settling)),
            None => self.env.spawn("advisory lock", settling),
        };
    }

    async fn settling(self: Arc<Self>, key: LockKey) {
        let mut pause = LEAST_PAUSE;
        loop {
            let wanted = {
                let mut state = self.state.lock();
                let Some(entry) = state.locks.get_mut(&key) else { return };
                let wanted = entry.needed();
                if wanted == entry.remote && !entry.unsure {
                    entry.settling = false;
                    for hold in entry.holds.iter_mut().filter(|hold| Some(hold.mode) <= wanted) {
                        hold.granted |= hold.failed.is_none();
                    }
                    if entry.holds.is_empty() && entry.waiting.is_empty() && wanted.is_none() {
                        state.locks.remove(&key);
                    }
                    drop(state);
                    self.changed.notify_waiters();
                    return;
                }
                wanted
            };
            match self.remote.set(key, wanted).await {
                Ok(true) => {
                    pause = LEAST_PAUSE;
                    let mut state = self.state.lock();
                    if let Some(entry) = state.locks.get_mut(&key) {
                        (entry.remote, entry.unsure) = (wanted, false);
                        for hold in entry.holds.iter_mut().filter(|hold| Some(hold.mode) <= wanted)
                        {
                            hold.granted = true;
                        }
                    }
                    if !std::mem::replace(&mut state.beating, true) {
                        let locks = Arc::clone(&self);
                        self.env.spawn("advisory locks' beat", async move { locks.beats().await });
                    }
                    drop(state);
                    self.changed.notify_waiters();
                    continue;
                }
                Ok(false) => {
                    if let Some(entry) = self.state.lock().locks.get_mut(&key) {
                        entry.refusals += 1;
                    }
                }
                Err(RemoteError::Lost(life)) => self.lose(life),
                Err(RemoteError::Failed(error)) => {
                    tracing::warn!(%error, "an advisory lock could not be changed");
                    if let Some(entry) = self.state.lock().locks.get_mut(&key) {
                        entry.unsure = true;
                        for hold in entry.holds.iter_mut().filter(|hold| !hold.granted) {
                            hold.failed = Some(error.clone());
                        }
                    }
                }
            }
            self.changed.notify_waiters();
            self.env.clock.sleep(pause + self.env.jitter(pause)).await;
            pause = (pause * 2).min(MOST_PAUSE);
        }
    }

    /// Beats as long as this process has locks.
    async fn beats(self: Arc<Self>) {
        loop {
            self.env.clock.sleep(BEAT).await;
            {
                let mut state = self.state.lock();
                if state.locks.values().all(|entry| entry.remote.is_none()) {
                    state.beating = false;
                    return;
                }
            }
            match self.remote.beat().await {
                Ok(()) => {}
                Err(RemoteError::Lost(life)) => self.lose(life),
                Err(RemoteError::Failed(error)) => {
                    tracing::warn!(%error, "a beat of the advisory locks' holder failed");
                }
            }
        }
    }

    /// This process was taken for dead in that life. Whoever finds it out later takes nothing from
    /// those who have locks of the next one.
    fn lose(&self, life: u64) {
        let mut state = self.state.lock();
        let state = &mut *state;
        if !self.remote.begin_anew(life) {
            return;
        }
        for entry in state.locks.values_mut() {
            entry.remote = None;
            state.lost.extend(entry.holds.iter().filter(|h| h.granted).map(|h| h.session));
            entry.holds.retain(|hold| !hold.granted);
        }
        self.changed.notify_waiters();
    }
}

impl State {
    /// Whether the session waits, through others, for itself.
    fn deadlocked(&self, session: u64) -> bool {
        let mut seen = BTreeSet::new();
        let mut next = vec![session];
        while let Some(at) = next.pop() {
            if let Some(entry) = self.waits.get(&at).and_then(|key| self.locks.get(key)) {
                for waiting in entry.waiting.iter().filter(|waiting| waiting.session == at) {
                    for blocker in entry.blockers(at, waiting.mode, waiting.ticket) {
                        if blocker == session {
                            return true;
                        }
                        if seen.insert(blocker) {
                            next.push(blocker);
                        }
                    }
                }
            }
        }
        false
    }
}

fn deadlock() -> Error {
    Error::new(SqlState::DEADLOCK_DETECTED, "deadlock detected")
        .hint("Take advisory locks in one order everywhere.")
}

/// What a session is told whose locks were taken over.
pub fn lost() -> Error {
    Error::new(
        SqlState::OBJECT_NOT_IN_PREREQUISITE_STATE,
        "this process's advisory locks were taken over by another, which had heard nothing of it for too long",
    )
    .hint("Begin anew: take the lock again and look at what was done meanwhile.")
}
