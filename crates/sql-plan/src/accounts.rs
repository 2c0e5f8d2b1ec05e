//! The accounts of an engine: what views of costs show.
//!
//! # Invariants
//! Asked for, every session's open counts are passed on first: with the jobs of the bucket the
//! accounts add up to its bill.
//!
//! # On failure
//! Nothing fails.
//!
//! # Limits
//! This process only, since its start.

use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use telesto_bucket::{Bucket, Cause, Meter, PriceSheet};
use telesto_common::env::{Clock, Env};
use telesto_meter::report::Job;
use telesto_meter::{Charge, Entry, Ledger, Rates, Resource, Stats};
use telesto_txn::Database;

use crate::caps::CapBook;
use crate::cost::{Account, SessionCost};

/// All accounts of a process.
#[derive(Debug)]
pub struct Accounts {
    ledger: Ledger,
    meter: Option<Arc<Meter>>,
    bucket: Option<Arc<dyn Bucket>>,
    clock: Arc<dyn Clock>,
    started_micros: u64,
    /// Memory that is set aside for the process, bytes.
    memory_bytes: u64,
    /// When the statements' statistics last began anew, microseconds since 1970.
    reset_micros: Mutex<u64>,
    sessions: Mutex<Vec<Weak<Account>>>,
    caps: CapBook,
}

impl Accounts {
    /// No accounts yet.
    #[must_use]
    pub fn new(
        env: &Env,
        database: &Arc<dyn Database>,
        meter: Option<Arc<Meter>>,
        bucket: Option<Arc<dyn Bucket>>,
        memory_bytes: u64,
    ) -> Arc<Self> {
        let now = env.clock.wall_micros();
        Arc::new(Self {
            ledger: Ledger::default(),
            meter,
            bucket,
            clock: Arc::clone(&env.clock),
            started_micros: now,
            memory_bytes,
            reset_micros: Mutex::new(now),
            sessions: Mutex::default(),
            caps: CapBook::new(Arc::clone(database), env.clone()),
        })
    }

    /// The accounts themselves.
    #[must_use]
    pub fn ledger(&self) -> &Ledger {
        &self.ledger
    }

    /// The bucket's meter; `None`: there is no bucket.
    #[must_use]
    pub fn meter(&self) -> Option<&Arc<Meter>> {
        self.meter.as_ref()
    }

    /// The purses of spend caps.
    #[must_use]
    pub fn caps(&self) -> &CapBook {
        &self.caps
    }

    pub(crate) fn clock(&self) -> &Arc<dyn Clock> {
        &self.clock
    }

    /// The bucket, to ask what it holds.
    #[must_use]
    pub fn bucket(&self) -> Option<&Arc<dyn Bucket>> {
        self.bucket.as_ref()
    }

    /// The bucket's prices; everything is free where there is none.
    #[must_use]
    pub fn rates(&self) -> Rates {
        self.meter.as_ref().map_or(Rates::FREE, |meter| *meter.rates())
    }

    /// Seconds since the accounts were begun; at least one.
    #[must_use]
    pub fn seconds(&self) -> u64 {
        (self.clock.wall_micros().saturating_sub(self.started_micros) / 1_000_000).max(1)
    }

    /// Now, microseconds since 1970.
    #[must_use]
    pub fn now_micros(&self) -> u64 {
        self.clock.wall_micros()
    }

    /// When the statements' statistics last began anew, microseconds since 1970.
    #[must_use]
    pub fn reset_micros(&self) -> u64 {
        *self.reset_micros.lock()
    }

    /// The prices of a sheet: the bucket's own, or a built-in one by its name.
    #[must_use]
    pub fn sheet(&self, name: &str) -> Option<PriceSheet> {
        let own = self.meter.as_ref().map(|meter| meter.prices());
        match own {
            Some(own) if name.is_empty() || own.name == name => Some(own.clone()),
            None if name.is_empty() => PriceSheet::builtin("free").ok(),
            _ => PriceSheet::builtin(name).ok(),
        }
    }

    pub(crate) fn enter(&self, account: &Arc<Account>) {
        self.sessions.lock().push(Arc::downgrade(account));
    }

    pub(crate) fn leave(&self, account: &Arc<Account>) {
        self.sessions
            .lock()
            .retain(|other| other.upgrade().is_some_and(|other| !Arc::ptr_eq(&other, account)));
    }

    fn live(&self) -> Vec<Arc<Account>> {
        self.sessions.lock().iter().filter_map(Weak::upgrade).collect()
    }

    /// What every session of this process has cost by now.
    #[must_use]
    pub fn sessions(&self) -> Vec<SessionCost> {
        self.live().iter().map(|account| account.shown()).collect()
    }

    /// Every account with what it holds by now.
    #[must_use]
    pub fn entries(&self) -> Vec<(Arc<Entry>, Stats)> {
        for account in self.live() {
            account.settle();
        }
        let entries = self.ledger.entries();
        entries
            .into_iter()
            .map(|entry| {
                let stats = entry.stats();
                (entry, stats)
            })
            .collect()
    }

    /// Begins the statistics of the statements that `which` accepts anew.
    pub fn reset(&self, which: impl Fn(&Entry) -> bool) {
        *self.reset_micros.lock() = self.clock.wall_micros();
        for account in self.live() {
            account.settle();
        }
        self.ledger.reset(which);
    }

    /// What is no statement's: requests by cause, and what the process computed beside.
    #[must_use]
    pub fn jobs(&self) -> Vec<Job> {
        let Some(meter) = &self.meter else { return Vec::new() };
        let mut jobs: Vec<Job> = Cause::ALL
            .into_iter()
            .zip(meter.jobs().all())
            .map(|(cause, charge)| Job {
                name: cause.label(),
                charge,
                // Done for what was written, sooner or later.
                shared: matches!(
                    cause,
                    Cause::Checkpoint | Cause::Compaction | Cause::Gc | Cause::Archive
                ),
            })
            .collect();
        if let Some(all) = self.clock.computed() {
            let accounted = meter.bill().get(Resource::Cpu);
            let all = u64::try_from(all.as_nanos()).unwrap_or(u64::MAX);
            let charge = Charge::of(Resource::Cpu, all.saturating_sub(accounted));
            jobs.push(Job { name: "computing", charge, shared: false });
            let kept =
                Charge::of(Resource::Memory, self.memory_bytes.saturating_mul(self.seconds()));
            jobs.push(Job { name: "memory", charge: kept, shared: false });
        }
        jobs
    }
}
