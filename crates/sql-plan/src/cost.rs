//! What statements cost: bucket requests, bytes, computing, dollars.
//!
//! # Purpose
//! A session's [`Spending`] counts everything it does, tells what its statement, its transaction
//! and the session itself have cost, and passes it on to the account of the statement
//! ([`Accounts`]).
//!
//! ```text
//!  requests, shares of commits and looks ─┐
//!  each poll's time ──────────────────────┴─> ScopeMeter ──settle──> Entry of (role, application, tag, statement)
//!                                                                       ^
//!                                     what a view shows: all entries ───┘ + jobs of the bucket = the bill
//! ```
//!
//! # Invariants
//! - One [`ScopeMeter`] a session counts everything it does; a statement's cost is a difference.
//! - Counted: what the statement itself reads and writes, row streams and COPY data included
//!   however late they are pulled; its share of the look at the log's tail its transaction begins
//!   with; of the group commit it takes part in; every try of one that is repeated after a
//!   conflict.
//! - What a session has counted reaches an account at the end of its statement, at the begin of the
//!   next, when a view asks, and when the session ends: nothing is counted twice or lost.
//! - `SHOW telesto.last_statement_cost` and `SHOW telesto.cost` change nothing.
//! - What is one statement: a simple query, all its statements together; in the extended protocol
//!   everything up to Sync, inside a transaction block one Execute. Planning ahead (Parse) counts
//!   for the next statement that runs. Accounts are by Execute; what Sync commits counts for the
//!   last one.
//!
//! # Limits
//! Background work belongs to no statement: folding the log into the checkpoint, compaction,
//! shipping a quorum log to the bucket, collection; nor do group commits that fail as a whole.
//! Computing is told by the time that polls take: what operators of DataFusion compute in tasks of
//! their own counts for the process.

use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use futures::Stream;
use parking_lot::Mutex;
use rustc_hash::FxHashMap;
use telesto_bucket::meter::{enter, scoped};
use telesto_bucket::{Cause, Cost, Meter, ScopeMeter};
use telesto_common::env::Clock;
use telesto_meter::{Charge, Entry, Principal, fingerprint, tags};

use crate::accounts::Accounts;
use crate::result::{CopyInTarget, Rows, StatementResult};
use telesto_sql_expr::Settings;
use telesto_sql_types::Row;
use telesto_sql_types::error::Result;

/// What SHOW calls the cost of the last statement.
pub const LAST_COST: &str = "telesto.last_statement_cost";
/// What SHOW calls the costs of the last statement, the transaction and the session.
pub const COST: &str = "telesto.cost";
/// Accounts that a session remembers by the text's number.
const REMEMBERED: usize = 64;

/// A session's account, as views see it.
#[derive(Debug)]
pub struct Account {
    scope: Arc<ScopeMeter>,
    meter: Option<Arc<Meter>>,
    /// Nanoseconds of computing that have reached an account.
    computed: AtomicU64,
    at: Mutex<At>,
}

#[derive(Debug, Default)]
struct At {
    /// The account of the statement that runs, or that ran last.
    entry: Option<Arc<Entry>>,
    rows: u64,
    statement: Charge,
    transaction: Charge,
    /// What had been counted when the execution under way began.
    begun: Charge,
    /// What asking for costs has cost since the last statement: no statement's.
    asked: Charge,
    asks: bool,
    pid: i32,
}

/// What a session has cost by now.
#[derive(Debug)]
pub struct SessionCost {
    /// Its process id.
    pub pid: i32,
    /// Who it is.
    pub entry: Option<Arc<Entry>>,
    /// Its statement, or its last one.
    pub statement: Charge,
    /// Its transaction, or its last one.
    pub transaction: Charge,
    /// All of it.
    pub session: Charge,
}

impl Account {
    /// Passes on what has no account yet.
    pub fn settle(&self) {
        self.settle_with(&mut self.at.lock(), None);
    }

    fn settle_with(&self, at: &mut At, took: Option<Duration>) {
        let (mut charge, nanos) = self.scope.settle();
        let rows = std::mem::take(&mut at.rows);
        if nanos > 0 {
            self.computed.fetch_add(nanos, Ordering::Relaxed);
            if let Some(meter) = &self.meter {
                charge += meter.computed(nanos);
            }
        }
        if charge.is_zero() && rows == 0 && took.is_none() {
            return;
        }
        let Some(entry) = &at.entry else { return };
        entry.record(|stats| {
            stats.charge += charge;
            match took {
                Some(took) => stats.ran(u64::try_from(took.as_nanos()).unwrap_or(u64::MAX), rows),
                None => stats.rows += rows,
            }
        });
    }

    fn charged(&self) -> Charge {
        let computed = self.computed.load(Ordering::Relaxed);
        self.scope.charged() + Charge::of(telesto_meter::Resource::Cpu, computed)
    }

    /// What the session has cost by now.
    pub fn shown(&self) -> SessionCost {
        let mut at = self.at.lock();
        self.settle_with(&mut at, None);
        let session = self.charged();
        let upto = if at.asks { at.begun - at.asked } else { session };
        SessionCost {
            pid: at.pid,
            entry: at.entry.clone(),
            statement: upto - at.statement,
            transaction: upto - at.transaction,
            session: upto,
        }
    }
}

/// What a statement's text says of the account it counts for. Reading it costs a pass over the
/// text, so that who runs one text again and again keeps it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Booked {
    id: i64,
    tag: Option<String>,
}

impl Booked {
    /// That of this text.
    #[must_use]
    pub fn of(sql: &str) -> Self {
        let tag = if sql.contains("/*") { tags(sql) } else { None };
        Self { id: fingerprint(sql), tag }
    }
}

/// Whether the text is that of a COMMIT.
fn ends_block(sql: &str) -> bool {
    let word =
        sql.trim_start().split(|c: char| !c.is_ascii_alphabetic()).next().unwrap_or_default();
    word.eq_ignore_ascii_case("commit") || word.eq_ignore_ascii_case("end")
}

/// A session's counts.
#[derive(Debug)]
pub struct Spending {
    account: Arc<Account>,
    accounts: Arc<Accounts>,
    clock: Arc<dyn Clock>,
    /// What had been counted when the last statement began.
    begun: Cost,
    /// The same when something was planned ahead.
    ahead: Option<Cost>,
    /// What had been counted when the execution under way began.
    execution: Charge,
    /// The next one that runs is a new statement.
    over: bool,
    /// The account of the last statement that was no COMMIT: conflicts that a commit meets are its.
    blamed: Option<Arc<Entry>>,
    /// Who the session is for, without tags, by these settings.
    principal: Option<(Arc<Settings>, Principal)>,
    /// Accounts asked for lately, of statements without tags; forgotten with the principal.
    remembered: FxHashMap<i64, Arc<Entry>>,
}

impl Drop for Spending {
    fn drop(&mut self) {
        self.account.settle();
        self.accounts.leave(&self.account);
    }
}

impl Spending {
    /// Nothing counted yet.
    #[must_use]
    pub fn new(accounts: Arc<Accounts>, settings: &Arc<Settings>) -> Self {
        let scope = match accounts.meter() {
            Some(meter) => ScopeMeter::of(meter, Cause::Read),
            None => ScopeMeter::for_cause(Cause::Read),
        };
        let account = Arc::new(Account {
            scope,
            meter: accounts.meter().cloned(),
            computed: AtomicU64::new(0),
            at: Mutex::default(),
        });
        accounts.enter(&account);
        let mut spending = Self {
            account,
            clock: Arc::clone(accounts.clock()),
            accounts,
            begun: Cost::default(),
            ahead: None,
            execution: Charge::ZERO,
            over: true,
            blamed: None,
            principal: None,
            remembered: FxHashMap::default(),
        };
        // What comes before the first statement is the principal's own.
        let principal = spending.principal(settings).clone();
        spending.account.at.lock().entry = Some(spending.accounts.ledger().rest(&principal));
        spending
    }

    /// The scope the session works in.
    pub fn scope(&self) -> Arc<ScopeMeter> {
        Arc::clone(&self.account.scope)
    }

    /// What times the session's work.
    #[must_use]
    pub fn timer(&self) -> Timed {
        Timed { scope: self.scope(), clock: Arc::clone(&self.clock) }
    }

    /// The process id that the session shows.
    pub fn set_pid(&self, pid: i32) {
        self.account.at.lock().pid = pid;
    }

    fn principal(&mut self, settings: &Arc<Settings>) -> &Principal {
        if !self.principal.as_ref().is_some_and(|(by, _)| Arc::ptr_eq(by, settings)) {
            let principal = Principal {
                role: settings.current_user.as_str().into(),
                database: settings.database.as_str().into(),
                application: settings.application_name.as_str().into(),
                tag: "".into(),
            };
            if !self.principal.as_ref().is_some_and(|(_, before)| *before == principal) {
                self.remembered.clear();
            }
            self.principal = Some((Arc::clone(settings), principal));
        }
        match &self.principal {
            Some((_, principal)) => principal,
            None => unreachable!("set above"),
        }
    }

    /// A statement of this text begins: what it costs counts for its account.
    pub fn starts(&mut self, sql: &str, booked: &Booked, settings: &Arc<Settings>) {
        let id = booked.id;
        self.principal(settings);
        let tag = booked.tag.clone();
        let found = match tag {
            None => self.remembered.get(&id).filter(|entry| entry.is_live()).cloned(),
            Some(_) => None,
        };
        let entry = found.unwrap_or_else(|| {
            let mut principal = self.principal(settings).clone();
            let tagged = tag.is_some();
            if let Some(tag) = tag {
                principal.tag = tag.into();
            }
            let entry = self.accounts.ledger().entry(&principal, id, sql);
            if !tagged {
                if self.remembered.len() >= REMEMBERED {
                    self.remembered.clear();
                }
                self.remembered.insert(id, Arc::clone(&entry));
            }
            entry
        });
        if !ends_block(sql) {
            self.blamed = Some(Arc::clone(&entry));
        }
        let mut at = self.account.at.lock();
        // What was planned ahead is this one's.
        if self.ahead.is_none() {
            self.account.settle_with(&mut at, None);
        }
        at.entry = Some(entry);
        at.begun = self.account.charged();
        at.asks = false;
    }

    /// The account of the statement under way.
    #[must_use]
    pub fn entry(&self) -> Option<Arc<Entry>> {
        self.account.at.lock().entry.clone()
    }

    /// The statement was planned so, for this execution and those that come.
    pub fn planned(&self, plan: &str) {
        if let Some(entry) = self.entry().filter(|entry| !entry.is_rest()) {
            entry.note_plan(plan);
        }
    }

    /// The statement ran for so long.
    pub fn ran(&self, took: Duration) {
        let mut at = self.account.at.lock();
        self.account.settle_with(&mut at, Some(took));
        if at.asks {
            let asked = self.account.charged() - at.begun;
            at.asked += asked;
        }
    }

    /// The statement under way, or its commit, failed; `conflict`: another transaction was in the
    /// way.
    pub fn failed(&self, conflict: bool) {
        let entry = self.account.at.lock().entry.clone();
        if let Some(entry) = entry {
            entry.record(|stats| stats.failures += 1);
        }
        if conflict {
            self.conflicted();
        }
    }

    /// Another transaction was in the way of the statement under way, which is executed again.
    pub fn conflicted(&self) {
        if let Some(entry) = &self.blamed {
            entry.record(|stats| stats.conflicts += 1);
        }
    }

    /// More of the last statement is done: its commit, its rows.
    pub fn went_on(&self) {
        self.account.settle();
    }

    /// A transaction begins.
    pub fn opens(&self) {
        let charged = self.account.charged();
        self.account.at.lock().transaction = charged;
    }

    /// Something is planned ahead.
    pub fn prepares(&mut self) {
        if self.over && self.ahead.is_none() {
            self.account.settle();
            self.ahead = Some(self.account.scope.totals());
        }
    }

    /// Something runs, as a statement of its own or as a part of the one under way.
    pub fn runs(&mut self) {
        self.execution = self.account.charged();
        if std::mem::take(&mut self.over) {
            self.begun =
                self.ahead.take().unwrap_or_else(|| self.account.scope.cost(&self.execution));
            let mut at = self.account.at.lock();
            at.statement = self.execution;
            at.asked = Charge::ZERO;
        }
    }

    /// The statement is over.
    pub fn ends(&mut self) {
        self.over = true;
    }

    /// What the last statement has cost; whoever asks has planned nothing ahead but the question.
    pub fn last(&mut self) -> Cost {
        self.ahead = None;
        self.account.scope.totals() - self.begun
    }

    /// What the last statement, the transaction it was in and the session have cost.
    pub fn shown(&mut self) -> SessionCost {
        self.ahead = None;
        self.account.at.lock().asks = true;
        self.account.shown()
    }

    /// What the session has cost so far.
    pub fn total(&self) -> Cost {
        self.account.scope.totals()
    }

    /// What executions see.
    pub fn of_execution(&self) -> StatementCost {
        StatementCost {
            account: Arc::clone(&self.account),
            before: self.execution,
            accounts: Arc::clone(&self.accounts),
        }
    }

    /// Counts the rows of a result that is about to be shown.
    pub fn counts(&self, result: StatementResult) -> StatementResult {
        let rows = match &result {
            StatementResult::Rows { rows: Rows::Ready(rows), .. } => rows.len() as u64,
            StatementResult::Command { tag } => tag
                .rsplit(' ')
                .next()
                .filter(|last| last.starts_with(|c: char| c.is_ascii_digit()))
                .and_then(|count| count.parse().ok())
                .unwrap_or(0),
            _ => 0,
        };
        if rows > 0 {
            self.account.at.lock().rows += rows;
        }
        match result {
            StatementResult::Rows { columns, rows: Rows::Stream(inner), tag } => {
                let timed = self.timer();
                let rows = Box::pin(Pulled { inner, timed, account: Arc::clone(&self.account) });
                StatementResult::Rows { columns, rows: Rows::Stream(rows), tag }
            }
            other => other,
        }
    }

    /// Makes what is pulled or pushed after the statement returned count for the session.
    pub fn counted(&self, result: StatementResult) -> StatementResult {
        match self.counts(result) {
            StatementResult::CopyIn { format, columns, target } => {
                let target = Box::new(CountedCopy { target, timed: self.timer() });
                StatementResult::CopyIn { format, columns, target }
            }
            StatementResult::CopyOut { format, columns, data } => {
                let data = Box::pin(telesto_bucket::meter::ScopedStream::new(data, self.scope()));
                StatementResult::CopyOut { format, columns, data }
            }
            other => other,
        }
    }
}

/// Runs a session's work in its scope, and times it.
#[derive(Clone, Debug)]
pub struct Timed {
    scope: Arc<ScopeMeter>,
    clock: Arc<dyn Clock>,
}

impl Timed {
    /// What `work` gives, and the time from its first poll to its last. It is pinned by the caller,
    /// which holds it anyway: as an argument it would be held twice.
    pub async fn run<F: Future>(self, work: Pin<&mut F>) -> (F::Output, Duration) {
        let mut work = pin!(scoped(Arc::clone(&self.scope), work));
        let mut begun = None;
        std::future::poll_fn(|context| {
            let from = self.clock.monotonic();
            let begun = *begun.get_or_insert(from);
            self.scope.computes_from(from);
            let polled = work.as_mut().poll(context);
            let to = self.clock.monotonic();
            self.scope.add_cpu(to.saturating_sub(from));
            polled.map(|output| (output, to.saturating_sub(begun)))
        })
        .await
    }
}

/// The cost of a statement being executed. Cheap to clone.
#[derive(Clone, Debug)]
pub struct StatementCost {
    account: Arc<Account>,
    before: Charge,
    accounts: Arc<Accounts>,
}

impl StatementCost {
    /// So far, from the begin of its transaction on if it began it.
    #[must_use]
    pub fn so_far(&self) -> Cost {
        self.account.scope.cost(&self.charge())
    }

    /// The same in units, with what it computed up to `now`.
    #[must_use]
    pub fn charge_at(&self, now: Duration) -> Charge {
        self.charge().and(telesto_meter::Resource::Cpu, self.account.scope.computing(now))
    }

    fn charge(&self) -> Charge {
        self.account.charged() - self.before
    }

    /// The account of the statement.
    #[must_use]
    pub fn entry(&self) -> Option<Arc<Entry>> {
        self.account.at.lock().entry.clone()
    }

    /// All accounts of the process.
    #[must_use]
    pub fn accounts(&self) -> &Arc<Accounts> {
        &self.accounts
    }

    /// The bucket's meter; `None` where there is no bucket (the reference database of tests).
    #[must_use]
    pub fn meter(&self) -> Option<&Arc<Meter>> {
        self.accounts.meter()
    }
}

/// Rows that are counted as they are pulled, for the session and its statement.
struct Pulled {
    inner: crate::result::RowStream,
    timed: Timed,
    account: Arc<Account>,
}

impl Stream for Pulled {
    type Item = Result<Vec<Row>>;

    fn poll_next(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let this = self.get_mut();
        let Timed { scope, clock } = &this.timed;
        let mut poll = || enter(scope, || this.inner.as_mut().poll_next(context));
        // Where the session itself pulls, the time is being taken already.
        let polled = if scope.is_timed() {
            poll()
        } else {
            let from = clock.monotonic();
            scope.computes_from(from);
            let polled = poll();
            scope.add_cpu(clock.monotonic().saturating_sub(from));
            polled
        };
        if let Poll::Ready(Some(Ok(batch))) = &polled {
            this.account.at.lock().rows += batch.len() as u64;
        }
        polled
    }
}

struct CountedCopy {
    target: Box<dyn CopyInTarget>,
    timed: Timed,
}

#[async_trait]
impl CopyInTarget for CountedCopy {
    async fn data(&mut self, data: Bytes) -> Result<()> {
        self.timed.clone().run(pin!(self.target.data(data))).await.0
    }

    async fn finish(&mut self) -> Result<u64> {
        self.timed.clone().run(pin!(self.target.finish())).await.0
    }
}
