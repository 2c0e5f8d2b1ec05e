//! The committer: one task a process that turns commit requests into log entries.
//!
//! # Invariants
//! - Every transaction of an entry was validated against everything below the entry and against the
//!   ones before it in the entry; timestamps grow along the log.
//! - Ranges that memory does not cover are not walked here: the request is given back to whoever asked, to look at them
//!   elsewhere. Single keys, and what came back since the tail was trimmed again, are looked at here, for a bounded time.
//! - A transaction is acknowledged only after its entry is appended and applied here.
//! - The position of the next append is always derived from what was applied, never guessed: after an
//!   append of unknown outcome the same slot is tried again, which settles it.
//!
//! # Fairness
//! On a shared log whoever won the last slot knows the tail first and would win the next one too.
//! While other processes' entries are seen, the winner of a slot waits a random moment of up to twice
//! the time an append takes before it goes on; the loser does not wait.
//!
//! # On failure
//! - Slot taken: read on, validate again, next slot; until the deadline.
//! - Unknown outcome: the same records are appended again in the same slot. `Committed` means the
//!   first attempt is lost for ever and the second one counts; `Taken` by an entry that holds a commit
//!   of ours means it was there. Still unknown at the deadline: `OutcomeUnknown`.
//! - Whatever the store answered, also a plain "exists" to the first attempt (somebody on the way may have
//!   repeated the request): who won a taken slot is told by the transactions in it, never assumed.
//!   And a conflict of a transaction with itself is the proof that it committed.
//! - Anything else: nothing was appended, everyone gets the error.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use telesto_bucket::meter::scoped;
use telesto_bucket::{Cause, ScopeMeter};
use telesto_common::env::Clock;
use telesto_common::{Deadline, Lsn, Timestamp, TxnId};
use telesto_log::{Append, Error as LogError};
use telesto_shard::Shard;
use tokio::sync::{mpsc, oneshot};

use super::additions::{self, Made};
use super::causes::Causes;
use super::checks::{Checks, Found, GroupIndex};
use super::records::records;
use crate::api::Cost;
use crate::error::{Error, Result};
use crate::local::Local;
use crate::service::{CommitReply, CommitRequest, CommitWrites};
use crate::transaction::conflict;
use crate::watermark::Held;

/// How long other processes count as writing after their last entry was seen.
const CONTENDED_FOR: Duration = Duration::from_secs(2);
/// Longest pause of a winner.
const LONGEST_PAUSE: Duration = Duration::from_millis(200);
/// How long the committer itself looks at what memory does not tell: at first (twice as long each time that it comes
/// back), and at most.
const FIRST_LOOK: Duration = Duration::from_millis(500);
const LONGEST_LOOK: Duration = Duration::from_secs(8);
/// First pause before an append of unknown outcome is tried again.
const RETRY_PAUSE: Duration = Duration::from_millis(20);

/// A commit request on its way.
#[derive(Debug)]
pub(crate) struct Pending {
    pub request: CommitRequest,
    pub checks: Checks,
    pub deadline: Deadline,
    /// The deadline on the wall clock, for what a machine that was paused must not commit any more.
    pub wall_deadline_micros: u64,
    /// How often it was given back.
    pub looks: u32,
    pub bytes: usize,
    /// The scope that has a share of the group's cost.
    pub payer: Option<Arc<ScopeMeter>>,
    pub reply: oneshot::Sender<Result<Answer>>,
}

/// What the committer says to a request.
#[derive(Debug)]
pub(crate) enum Answer {
    Reply(CommitReply),
    /// Memory does not tell whether it is valid; nothing was appended. The request comes back with its checks.
    NotInMemory(Box<(CommitRequest, Checks)>),
}

impl Pending {
    fn external(&self) -> bool {
        matches!(self.request.writes, CommitWrites::External { .. })
    }

    fn answer(self, reply: Result<CommitReply>) {
        // Whoever stopped waiting asks for the outcome by the transaction's id.
        let _ = self.reply.send(reply.map(Answer::Reply));
    }

    fn give_back(self) {
        let Self { request, checks, reply, .. } = self;
        let _ = reply.send(Ok(Answer::NotInMemory(Box::new((request, checks)))));
    }

    /// Whether it may not be committed any more. The parts of an external write set are kept so long by either clock.
    fn is_late(&self, clock: &dyn Clock) -> bool {
        self.deadline.passed(clock.monotonic())
            || self.external() && clock.wall_micros() > self.wall_deadline_micros
    }
}

pub(crate) struct Committer {
    local: Arc<Local>,
    queue: mpsc::Receiver<Pending>,
    /// Taken from the queue but not fitting into the last group.
    carried: Option<Pending>,
    /// Smoothed duration of an append.
    append_takes: Duration,
    won_last: bool,
}

/// A group after validation. Positions are indexes into the group.
#[derive(Default)]
struct Validated {
    /// The slot everything below which was checked.
    at: Lsn,
    /// Those that go into the entry, with their timestamps.
    survivors: Vec<(usize, Timestamp)>,
    /// Those that another one of the group beats, if it commits, and those whose additions are refused.
    beaten: Vec<(usize, Error)>,
    /// What survivors add.
    made: Made,
}

/// What an append attempt led to.
enum Attempt {
    /// The survivors are in the entry at this position, which is applied.
    Committed(Lsn),
    /// Another entry stands in the slot; it has been applied.
    Lost,
}

/// Why an append attempt failed.
enum Failed {
    /// Nothing was appended.
    Certain(Error),
    /// The slot and why nobody knows.
    Unknown(Lsn, String),
    /// The process slept past the retention; the shard was reopened.
    Reopened(Lsn, Error),
}

impl Committer {
    pub fn new(local: Arc<Local>, queue: mpsc::Receiver<Pending>) -> Self {
        Self { local, queue, carried: None, append_takes: Duration::ZERO, won_last: false }
    }

    /// Runs until the queue is closed and empty.
    pub async fn run(mut self) {
        loop {
            let first = match self.carried.take() {
                Some(pending) => pending,
                None => match self.queue.recv().await {
                    Some(pending) => pending,
                    None => return,
                },
            };
            self.give_way().await;
            let group = self.gather(first);
            let scope = ScopeMeter::shared(Cause::Commit);
            scoped(Arc::clone(&scope), self.commit(group, &scope)).await;
        }
    }

    /// Lets other processes have a turn.
    async fn give_way(&self) {
        if self.won_last && self.local.contended(CONTENDED_FOR) {
            let env = &self.local.env;
            let pause = env.jitter((self.append_takes * 2).min(LONGEST_PAUSE));
            env.clock.sleep(pause).await;
        }
    }

    fn gather(&mut self, first: Pending) -> Vec<Pending> {
        let limits = self.local.options.group;
        let mut bytes = first.bytes;
        let alone = first.external();
        let mut group = vec![first];
        while !alone && group.len() < limits.max_transactions && bytes < limits.max_bytes {
            match self.queue.try_recv() {
                Ok(next) if next.external() || bytes + next.bytes > limits.max_bytes => {
                    self.carried = Some(next);
                    break;
                }
                Ok(next) => {
                    bytes += next.bytes;
                    group.push(next);
                }
                Err(_) => break,
            }
        }
        group
    }

    async fn commit(&mut self, group: Vec<Pending>, scope: &ScopeMeter) {
        let clock = &self.local.env.clock;
        let mut live = Vec::with_capacity(group.len());
        for pending in group {
            if pending.reply.is_closed() {
                self.local.outcomes.abort(pending.request.txn);
            } else if pending.is_late(&**clock) {
                let error = Error::Unavailable(
                    "the deadline passed before the commit's turn came; nothing was committed: run the transaction again, or raise the time-out".to_owned(),
                );
                self.abort(pending, error);
            } else {
                live.push(pending);
            }
        }
        let mut by = self.local.env.deadline(self.local.options.timeout);
        for pending in live.iter().filter(|pending| pending.external()) {
            // Its parts are not kept for longer.
            by = by.earlier(pending.deadline);
        }
        let _held = live.first().map(|first| Held::committing(&self.local, first.request.txn));
        if let Err(error) = self.ready(by).await {
            return self.abort_all(live, &error);
        }
        while !live.is_empty() {
            let Validated { at, survivors, beaten, made } = match self.validate(&mut live, by).await
            {
                Ok(validated) => validated,
                Err(error) => return self.abort_all(live, &error),
            };
            if survivors.is_empty() {
                // None, or all of them refused by what is applied.
                return self.answer_all(live, BTreeMap::new(), beaten);
            }
            let result = self.append(&live, &survivors, &made, at, by).await;
            match result {
                Ok(Attempt::Committed(lsn)) => {
                    return self.acknowledge(live, &survivors, beaten, lsn, scope);
                }
                Ok(Attempt::Lost) => {
                    metrics::counter!("telesto_txn_slots_lost_total").increment(1);
                    self.won_last = false;
                    if by.passed(self.local.env.clock.monotonic()) {
                        let error = Error::Unavailable(
                            "other processes took every log slot until the deadline; nothing was committed: run the transaction again".to_owned(),
                        );
                        return self.abort_all(live, &error);
                    }
                }
                Err(Failed::Certain(error)) => return self.abort_all(live, &error),
                Err(Failed::Unknown(slot, reason)) => {
                    return self.unknown(live, &survivors, slot, &reason);
                }
                Err(Failed::Reopened(slot, error)) => {
                    return self.ask_after_reopening(live, &survivors, slot, &error).await;
                }
            }
        }
    }

    /// Waits until an append may be tried.
    async fn ready(&self, by: Deadline) -> Result<()> {
        if !self.local.in_contact() {
            // Slept for long: learn what became of the log before anything is put into it.
            self.local.catch_up(by).await?;
        }
        self.local.wait_for_fold(by).await
    }

    /// Answers those that certainly fail and sorts the others.
    async fn validate(&self, live: &mut Vec<Pending>, by: Deadline) -> Result<Validated> {
        let shard = self.local.shard();
        // Taken before the checks: an entry applied meanwhile by a look holds this slot then, the
        // append finds it taken, and everything is checked again.
        let (applied, newest) = shard.applied();
        let mut kept = Vec::with_capacity(live.len());
        for pending in live.drain(..) {
            let env = &self.local.env;
            let soon = env.deadline(FIRST_LOOK).earlier(by);
            match additions::committed_before(&pending, &shard, env, soon).await {
                Ok(None) => {}
                Ok(Some(timestamp)) => {
                    let (lsn, cost) = (applied, Cost::default());
                    pending.answer(Ok(CommitReply::Committed { timestamp, lsn, cost }));
                    continue;
                }
                Err(error) => {
                    self.abort(pending, error);
                    continue;
                }
            }
            let found = match pending.checks.try_run(&shard) {
                None if pending.looks > 0 || pending.checks.is_small() => {
                    self.look(&pending, &shard, by).await
                }
                found => found,
            };
            match found {
                Some(Found::Nothing) => kept.push(pending),
                // Nobody else writes as this transaction: it is in the log.
                Some(Found::Conflict(change) | Found::Recheck(change))
                    if change.txn == pending.request.txn =>
                {
                    let timestamp = change.at;
                    let (lsn, cost) = (applied, Cost::default());
                    pending.answer(Ok(CommitReply::Committed { timestamp, lsn, cost }));
                }
                Some(Found::Conflict(change)) => {
                    let error = conflict(pending.request.txn, change);
                    self.abort(pending, error);
                }
                Some(Found::Recheck(change)) => {
                    pending.answer(Ok(CommitReply::Recheck(change)));
                }
                // Everybody else would wait for what has to be fetched.
                None => pending.give_back(),
            }
        }
        *live = kept;
        if live.is_empty() {
            return Ok(Validated { at: applied.next(), ..Validated::default() });
        }
        let count: u64 = live.iter().map(|pending| pending.request.writes.transactions()).sum();
        let count = u32::try_from(count).unwrap_or(u32::MAX);
        let after = live.iter().map(|pending| pending.request.after).max().unwrap_or(newest);
        let reserving = self.local.oracle.reserve(newest, after, count);
        let first = self.local.env.within(by, "asking for a timestamp", reserving).await??;
        let soon = self.local.env.deadline(FIRST_LOOK).earlier(by);
        let bases = additions::bases(live, &shard, newest, &self.local.env, soon).await;
        let mut survivors = Vec::with_capacity(live.len());
        let (mut beaten, mut made) = (Vec::new(), Made::new());
        let mut index = GroupIndex::default();
        let mut next = first;
        for (position, pending) in live.iter().enumerate() {
            if let Some(change) = pending.checks.against(&index) {
                beaten.push((position, conflict(pending.request.txn, change)));
                continue;
            }
            match additions::made(pending, &index, &bases, self.local.additions.get()) {
                Ok(None) => {}
                Ok(Some(writes)) => {
                    made.insert(position, writes);
                }
                Err(error) => {
                    beaten.push((position, error));
                    continue;
                }
            }
            // A request's own transaction is the last of those it makes.
            let at = Timestamp(next.0 + pending.request.writes.transactions() - 1);
            next = Timestamp(at.0 + 1);
            if live.len() > 1 {
                index.add(&pending.request, made.get(&position), at);
            }
            survivors.push((position, at));
        }
        Ok(Validated { at: applied.next(), survivors, beaten, made })
    }

    /// Looks at what memory does not tell, for a few keys, or for one that was given back in vain: the tail may be trimmed
    /// faster than its owner gets another turn. Everybody else waits meanwhile, so not for long.
    async fn look(&self, pending: &Pending, shard: &Arc<Shard>, by: Deadline) -> Option<Found> {
        let env = &self.local.env;
        let bound = FIRST_LOOK.saturating_mul(1 << pending.looks.min(8)).min(LONGEST_LOOK);
        let by = env.deadline(bound).earlier(by);
        let found = env.within(by, "validating reads", pending.checks.run(shard)).await;
        found.ok()?.ok()
    }

    async fn append(
        &mut self,
        live: &[Pending],
        survivors: &[(usize, Timestamp)],
        made: &Made,
        at: Lsn,
        by: Deadline,
    ) -> std::result::Result<Attempt, Failed> {
        let local = Arc::clone(&self.local);
        let env = &local.env;
        // All attempts carry the same transactions: an entry with one of them is one of ours.
        let own = live[survivors[0].0].request.txn;
        // Whether an attempt may have got through.
        let mut doubtful = false;
        let mut causes = Causes::default();
        let mut pause = RETRY_PAUSE;
        loop {
            let records = records(&self.local, live, survivors, made);
            let started = env.clock.monotonic();
            let appended = match local.hash_before(at, by).await {
                Ok(hash) => local.log.append(at, hash, records, by).await,
                // Nothing was appended by this attempt.
                Err(error @ LogError::Trimmed { .. }) if !doubtful => {
                    return Err(Failed::Certain(error.into()));
                }
                Err(error) => Err(error),
            };
            let took = env.clock.monotonic().saturating_sub(started);
            match appended {
                Ok(Append::Committed(entry)) => {
                    metrics::histogram!("telesto_txn_append_seconds").record(took.as_secs_f64());
                    self.append_takes = (self.append_takes * 7 + took) / 8;
                    self.won_last = true;
                    return match local.apply(&entry) {
                        Ok(()) => Ok(Attempt::Committed(entry.lsn)),
                        // Committed, but this process cannot go on from here by itself.
                        Err(error) => Err(Failed::Unknown(at, error.to_string())),
                    };
                }
                Err(error @ LogError::NotOwner { .. })
                    if !doubtful || local.log.goes_on_elsewhere_by(at) =>
                {
                    // No attempt has reached the loglet that ended.
                    return Err(Failed::Certain(error.into()));
                }
                Ok(Append::Taken { .. }) | Err(LogError::NotOwner { .. }) => {
                    match local.taken_by(at, own, by).await {
                        Ok(true) => {
                            metrics::counter!("telesto_txn_own_slots_taken_total").increment(1);
                            return Ok(Attempt::Committed(at));
                        }
                        Ok(false) => return Ok(Attempt::Lost),
                        Err(error) if local.log.start() > at => {
                            return Err(self.reopened(at, error, by).await);
                        }
                        Err(error) => {
                            // It may be ours that is there.
                            doubtful = true;
                            causes.add(error.to_string());
                            if by.passed(env.clock.monotonic()) {
                                return Err(Failed::Unknown(at, causes.text()));
                            }
                        }
                    }
                }
                Err(error @ LogError::Trimmed { .. }) => {
                    return Err(self.reopened(at, error.into(), by).await);
                }
                Err(LogError::Indeterminate { reason, .. }) => {
                    metrics::counter!("telesto_txn_appends_indeterminate_total").increment(1);
                    doubtful = true;
                    causes.add(reason);
                    if by.passed(env.clock.monotonic() + pause) {
                        return Err(Failed::Unknown(at, causes.text()));
                    }
                }
                Err(error) if !doubtful => return Err(Failed::Certain(error.into())),
                Err(error) => {
                    causes.add(error.to_string());
                    if by.passed(env.clock.monotonic() + pause) {
                        return Err(Failed::Unknown(at, causes.text()));
                    }
                }
            }
            env.clock.sleep(pause + env.jitter(pause)).await;
            pause = (pause * 2).min(Duration::from_secs(1));
        }
    }

    /// The log was trimmed past the slot `at` of an append.
    async fn reopened(&self, at: Lsn, error: Error, by: Deadline) -> Failed {
        match self.local.reopen(by).await {
            Ok(()) => Failed::Reopened(at, error),
            Err(reopening) => Failed::Unknown(at, reopening.to_string()),
        }
    }

    fn acknowledge(
        &self,
        live: Vec<Pending>,
        survivors: &[(usize, Timestamp)],
        beaten: Vec<(usize, Error)>,
        lsn: Lsn,
        scope: &ScopeMeter,
    ) {
        let mut answers = BTreeMap::new();
        let added: usize =
            live.iter().map(|pending| pending.request.writes.additions().len()).sum();
        metrics::counter!("telesto_txn_additions_total").increment(added as u64);
        let bytes = |(position, _): &(usize, Timestamp)| live[*position].bytes as u64;
        let weights: Vec<u64> = survivors.iter().map(bytes).collect();
        let shares = scope.share_out(&weights);
        for (((position, timestamp), share), bytes) in survivors.iter().zip(shares).zip(&weights) {
            let cost = scope.cost(&share);
            let payer = live[*position].payer.as_deref();
            scope.give(share, payer);
            if let Some(payer) = payer {
                payer.add_extra(self.local.logged(*bytes));
            }
            answers.insert(*position, CommitReply::Committed { timestamp: *timestamp, lsn, cost });
        }
        metrics::histogram!("telesto_txn_group_size").record(survivors.len() as f64);
        metrics::counter!("telesto_txn_commits_total").increment(survivors.len() as u64);
        self.answer_all(live, answers, beaten);
    }

    /// Tells those of a group what became of them.
    fn answer_all(
        &self,
        live: Vec<Pending>,
        mut committed: BTreeMap<usize, CommitReply>,
        beaten: Vec<(usize, Error)>,
    ) {
        let mut beaten: BTreeMap<usize, Error> = beaten.into_iter().collect();
        for (position, pending) in live.into_iter().enumerate() {
            if let Some(reply) = committed.remove(&position) {
                pending.answer(Ok(reply));
            } else if let Some(error) = beaten.remove(&position) {
                self.abort(pending, error);
            }
        }
    }

    fn abort(&self, pending: Pending, error: Error) {
        // An addition that is refused now may have been made by an earlier attempt that is still on its way.
        if !matches!(error, Error::NotAdded { .. }) {
            self.local.outcomes.abort(pending.request.txn);
        }
        match error {
            Error::Conflict { .. } => {
                metrics::counter!("telesto_txn_conflicts_total").increment(1);
            }
            Error::NotAdded { .. } => {
                metrics::counter!("telesto_txn_additions_refused_total").increment(1);
            }
            _ => {}
        }
        pending.answer(Err(error));
    }

    fn abort_all(&self, live: Vec<Pending>, error: &Error) {
        for pending in live {
            self.abort(pending, error.clone());
        }
    }

    /// Nobody knows whether the survivors are in the log; the others certainly are not.
    fn unknown(
        &self,
        live: Vec<Pending>,
        survivors: &[(usize, Timestamp)],
        slot: Lsn,
        reason: &str,
    ) {
        let tried: Vec<TxnId> =
            survivors.iter().map(|(position, _)| live[*position].request.txn).collect();
        self.local.outcomes.limbo(slot, tried.iter().copied());
        if let Some(first) = tried.first() {
            self.local.held.unknown(*first, slot, self.local.env.clock.monotonic());
        }
        metrics::counter!("telesto_txn_outcomes_unknown_total").increment(tried.len() as u64);
        for pending in live {
            let txn = pending.request.txn;
            if tried.contains(&txn) {
                pending.answer(Err(Error::OutcomeUnknown { txn, reason: reason.to_owned() }));
            } else {
                let error = Error::Unavailable(format!(
                    "the commit before this one in its group has an unknown outcome ({reason}); nothing of this transaction was committed: run it again"
                ));
                self.abort(pending, error);
            }
        }
    }

    /// After a sleep past the retention: what the reopened shard knows is certain, the rest is not.
    async fn ask_after_reopening(
        &self,
        live: Vec<Pending>,
        survivors: &[(usize, Timestamp)],
        slot: Lsn,
        error: &Error,
    ) {
        let shard = self.local.shard();
        for (position, pending) in live.into_iter().enumerate() {
            let txn = pending.request.txn;
            if !survivors.iter().any(|(survivor, _)| *survivor == position) {
                self.abort(pending, error.clone());
                continue;
            }
            let by = self.local.env.deadline(self.local.options.timeout);
            let asked = self.local.env.within(by, "reading an outcome", shard.outcome(txn)).await;
            match asked.map_err(Error::from).and_then(|asked| Ok(asked?)) {
                Ok(Some(timestamp)) => pending.answer(Ok(CommitReply::Committed {
                    timestamp,
                    lsn: slot,
                    cost: Cost::default(),
                })),
                Ok(None) | Err(_) => {
                    pending.answer(Err(Error::OutcomeUnknown { txn, reason: error.to_string() }));
                }
            }
        }
    }
}
