//! Counting requests, bytes and dollars.
//!
//! # Purpose
//! [`Meter`] counts for a whole bucket by class and [`Cause`]; `scope` counts for one task (one SQL
//! statement). Both see every request, the checkpoint engine's too.
//!
//! # Invariants
//! - A request is counted when it is sent, whether or not it succeeds: stores charge for attempts.
//! - Hedged and retried requests count as the requests they are.
//!
//! # Limits
//! Dollars are floating point, summed from whole counts in snapshots: good to 15 digits.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use telesto_meter::{Charge, REQUEST, Rates, Resource};

use crate::api::Cause;
use crate::prices::PriceSheet;
use crate::scope::add_request;
pub use crate::scope::{
    Cost, Guard, Jobs, ScopeMeter, ScopedStream, Toll, current_scope, enter, follow_tasks, scoped,
    toll,
};

/// Class of a request, as stores price them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Class {
    /// Reads an object or a range of it.
    Get,
    /// Asks for an object's size and age.
    Head,
    /// Writes an object, or starts, feeds or ends a large upload.
    Put,
    /// Copies inside the store; priced as PUT.
    Copy,
    /// A page of a listing; priced as PUT.
    List,
    /// Deletes an object.
    Delete,
}

impl Class {
    /// All classes.
    pub const ALL: [Self; 6] =
        [Self::Get, Self::Head, Self::Put, Self::Copy, Self::List, Self::Delete];

    /// So many requests of this class, as what is paid for.
    #[must_use]
    pub fn charge(self, requests: u64) -> Charge {
        let resource = match self {
            Self::Get | Self::Head => Resource::Gets,
            Self::Put | Self::Copy => Resource::Puts,
            Self::List => Resource::Lists,
            Self::Delete => Resource::Deletes,
        };
        Charge::of(resource, requests.saturating_mul(REQUEST))
    }

    /// The metrics label.
    #[must_use]
    pub fn label(self) -> &'static str {
        match self {
            Self::Get => "get",
            Self::Head => "head",
            Self::Put => "put",
            Self::Copy => "copy",
            Self::List => "list",
            Self::Delete => "delete",
        }
    }
}

impl Cause {
    /// All causes.
    pub const ALL: [Self; 9] = [
        Self::Commit,
        Self::Read,
        Self::Open,
        Self::Checkpoint,
        Self::Compaction,
        Self::Gc,
        Self::Archive,
        Self::Registry,
        Self::Admin,
    ];

    /// The metrics label.
    #[must_use]
    pub fn label(self) -> &'static str {
        match self {
            Self::Commit => "commit",
            Self::Read => "read",
            Self::Open => "open",
            Self::Checkpoint => "checkpoint",
            Self::Compaction => "compaction",
            Self::Gc => "gc",
            Self::Archive => "archive",
            Self::Registry => "registry",
            Self::Admin => "admin",
        }
    }
}

/// What some requests came to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Requests sent.
    pub requests: u64,
    /// Of them, failed (a missing object or a lost race is an answer, not a failure).
    pub failures: u64,
    /// Of them, second requests for a slow read.
    pub hedges: u64,
    /// Body bytes sent.
    pub uploaded_bytes: u64,
    /// Body bytes received.
    pub downloaded_bytes: u64,
}

impl Usage {
    fn add(&mut self, other: Self) {
        self.requests += other.requests;
        self.failures += other.failures;
        self.hedges += other.hedges;
        self.uploaded_bytes += other.uploaded_bytes;
        self.downloaded_bytes += other.downloaded_bytes;
    }

    fn since(self, earlier: Self) -> Self {
        Self {
            requests: self.requests.saturating_sub(earlier.requests),
            failures: self.failures.saturating_sub(earlier.failures),
            hedges: self.hedges.saturating_sub(earlier.hedges),
            uploaded_bytes: self.uploaded_bytes.saturating_sub(earlier.uploaded_bytes),
            downloaded_bytes: self.downloaded_bytes.saturating_sub(earlier.downloaded_bytes),
        }
    }
}

#[derive(Debug, Default)]
struct Cell {
    requests: AtomicU64,
    failures: AtomicU64,
    hedges: AtomicU64,
    uploaded_bytes: AtomicU64,
    downloaded_bytes: AtomicU64,
}

/// Counts of a whole bucket.
#[derive(Debug)]
pub struct Meter {
    prices: PriceSheet,
    rates: Rates,
    cells: Vec<Cell>,
    jobs: Arc<Jobs>,
    /// Nanoseconds of computing that have an account.
    cpu: AtomicU64,
}

/// How one request ended, for [`Meter`].
#[derive(Clone, Copy, Debug)]
pub(crate) struct Request {
    pub(crate) class: Class,
    pub(crate) cause: Cause,
    pub(crate) uploaded_bytes: u64,
}

impl Meter {
    pub(crate) fn new(prices: PriceSheet) -> Arc<Self> {
        let cells = (0..Class::ALL.len() * Cause::ALL.len()).map(|_| Cell::default()).collect();
        let rates = prices.rates();
        Arc::new(Self { prices, rates, cells, jobs: Arc::default(), cpu: AtomicU64::new(0) })
    }

    /// Prices of units.
    #[must_use]
    pub fn rates(&self) -> &Rates {
        &self.rates
    }

    /// What was requested outside of all scopes.
    #[must_use]
    pub fn jobs(&self) -> &Arc<Jobs> {
        &self.jobs
    }

    /// Computing time for which an account is made; the charge for it.
    pub fn computed(&self, nanos: u64) -> Charge {
        self.cpu.fetch_add(nanos, Ordering::Relaxed);
        Charge::of(Resource::Cpu, nanos)
    }

    /// What accounts and jobs of this process have to add up to: requests and bytes that were
    /// counted, computing that has an account, what is seen in no request, and not what was done
    /// for other nodes.
    #[must_use]
    pub fn bill(&self) -> Charge {
        let mut bill = Charge::of(Resource::Cpu, self.cpu.load(Ordering::Relaxed));
        for (class, _, usage) in self.snapshot().iter() {
            bill += class.charge(usage.requests)
                + Charge::of(Resource::Sent, usage.uploaded_bytes)
                + Charge::of(Resource::Received, usage.downloaded_bytes);
        }
        bill + self.jobs.extras() - self.jobs.lent()
    }

    /// The price sheet dollars are computed with.
    #[must_use]
    pub fn prices(&self) -> &PriceSheet {
        &self.prices
    }

    fn cell(&self, class: Class, cause: Cause) -> &Cell {
        &self.cells[class as usize * Cause::ALL.len() + cause as usize]
    }

    /// A request goes out.
    pub(crate) fn sent(&self, request: Request, hedge: bool) {
        let Request { class, cause, uploaded_bytes } = request;
        let cell = self.cell(class, cause);
        cell.requests.fetch_add(1, Ordering::Relaxed);
        cell.uploaded_bytes.fetch_add(uploaded_bytes, Ordering::Relaxed);
        if hedge {
            cell.hedges.fetch_add(1, Ordering::Relaxed);
        }
        let charge = class.charge(1).and(Resource::Sent, uploaded_bytes);
        let dollars = self.rates.price(&charge).to_f64();
        add_request(charge, cause, &self.jobs, &self.rates);
        let labels = [("class", class.label()), ("cause", cause.label())];
        metrics::counter!("telesto_bucket_requests_total", &labels).increment(1);
        metrics::counter!("telesto_bucket_uploaded_bytes_total", &labels).increment(uploaded_bytes);
        metrics::gauge!("telesto_bucket_dollars_total", &labels).increment(dollars);
        if hedge {
            metrics::counter!("telesto_bucket_hedges_total", &labels).increment(1);
        }
    }

    /// Its answer came, or did not.
    pub(crate) fn ended(
        &self,
        request: Request,
        downloaded_bytes: u64,
        failed: bool,
        took: Duration,
    ) {
        let Request { class, cause, .. } = request;
        let cell = self.cell(class, cause);
        cell.downloaded_bytes.fetch_add(downloaded_bytes, Ordering::Relaxed);
        cell.failures.fetch_add(failed.into(), Ordering::Relaxed);
        let charge = Charge::of(Resource::Received, downloaded_bytes);
        let dollars = self.rates.price(&charge).to_f64();
        if downloaded_bytes > 0 {
            add_request(charge, cause, &self.jobs, &self.rates);
        }
        let labels = [("class", class.label()), ("cause", cause.label())];
        metrics::histogram!("telesto_bucket_request_seconds", "class" => class.label())
            .record(took.as_secs_f64());
        if downloaded_bytes > 0 {
            metrics::counter!("telesto_bucket_downloaded_bytes_total", &labels)
                .increment(downloaded_bytes);
            metrics::gauge!("telesto_bucket_dollars_total", &labels).increment(dollars);
        }
        if failed {
            metrics::counter!("telesto_bucket_failures_total", &labels).increment(1);
        }
    }

    /// What was counted so far.
    #[must_use]
    pub fn snapshot(&self) -> MeterSnapshot {
        let mut usage = BTreeMap::new();
        for class in Class::ALL {
            for cause in Cause::ALL {
                let cell = self.cell(class, cause);
                let value = Usage {
                    requests: cell.requests.load(Ordering::Relaxed),
                    failures: cell.failures.load(Ordering::Relaxed),
                    hedges: cell.hedges.load(Ordering::Relaxed),
                    uploaded_bytes: cell.uploaded_bytes.load(Ordering::Relaxed),
                    downloaded_bytes: cell.downloaded_bytes.load(Ordering::Relaxed),
                };
                if value != Usage::default() {
                    usage.insert((class, cause), value);
                }
            }
        }
        MeterSnapshot { usage, prices: self.prices.clone() }
    }
}

/// Counts at one moment, or between two.
#[derive(Clone, Debug, PartialEq)]
pub struct MeterSnapshot {
    usage: BTreeMap<(Class, Cause), Usage>,
    prices: PriceSheet,
}

impl MeterSnapshot {
    /// What was counted since `earlier`.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        let usage = self
            .usage
            .iter()
            .map(|(key, value)| {
                (*key, value.since(earlier.usage.get(key).copied().unwrap_or_default()))
            })
            .filter(|(_, value)| *value != Usage::default())
            .collect();
        Self { usage, prices: self.prices.clone() }
    }

    /// Each class and cause that was used.
    pub fn iter(&self) -> impl Iterator<Item = (Class, Cause, Usage)> + '_ {
        self.usage.iter().map(|((class, cause), usage)| (*class, *cause, *usage))
    }

    /// The sum over classes and causes that `wanted` accepts.
    #[must_use]
    pub fn total(&self, wanted: impl Fn(Class, Cause) -> bool) -> Usage {
        let mut sum = Usage::default();
        for (class, cause, usage) in self.iter() {
            if wanted(class, cause) {
                sum.add(usage);
            }
        }
        sum
    }

    /// Requests of a class, whatever caused them.
    #[must_use]
    pub fn requests(&self, class: Class) -> u64 {
        self.total(|c, _| c == class).requests
    }

    /// All requests.
    #[must_use]
    pub fn all_requests(&self) -> u64 {
        self.total(|_, _| true).requests
    }

    /// Dollars, by the price sheet.
    #[must_use]
    pub fn dollars(&self) -> f64 {
        self.iter()
            .map(|(class, _, u)| {
                self.prices.dollars(class, u.requests, u.uploaded_bytes, u.downloaded_bytes)
            })
            .sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn meter_snapshots_subtract_and_price() {
        let meter = Meter::new(PriceSheet::builtin("s3-standard").expect("known"));
        let put = Request { class: Class::Put, cause: Cause::Commit, uploaded_bytes: 10 };
        meter.sent(put, false);
        let before = meter.snapshot();
        meter.sent(put, false);
        meter.ended(put, 0, true, Duration::ZERO);
        let get = Request { class: Class::Get, cause: Cause::Read, uploaded_bytes: 0 };
        meter.sent(get, true);
        meter.ended(get, 7, false, Duration::ZERO);
        let diff = meter.snapshot().since(&before);
        assert_eq!(diff.requests(Class::Put), 1);
        let reads = diff.total(|_, cause| cause == Cause::Read);
        assert_eq!((reads.requests, reads.hedges, reads.downloaded_bytes), (1, 1, 7));
        assert_eq!(diff.total(|_, _| true).failures, 1);
        assert!((diff.dollars() - (0.005 + 0.0004) / 1000.0).abs() < 1e-15);
        assert_eq!(diff.since(&diff).all_requests(), 0);
    }

    #[test]
    fn every_class_and_cause_has_its_own_cell() {
        let meter = Meter::new(PriceSheet::builtin("free").expect("known"));
        for class in Class::ALL {
            for cause in Cause::ALL {
                meter.sent(Request { class, cause, uploaded_bytes: 0 }, false);
            }
        }
        assert!(meter.snapshot().iter().all(|(_, _, usage)| usage.requests == 1));
        assert_eq!(meter.snapshot().iter().count(), Class::ALL.len() * Cause::ALL.len());
    }
}
