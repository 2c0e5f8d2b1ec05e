//! The committer: one task a process that turns commit requests into log entries.
//!
//! # Invariants
//! - Every transaction of an entry was validated against everything below the entry, applied or
//!   under way, and against the ones before it in the entry; timestamps grow along the log.
//! - Ranges that memory does not cover are not walked here: the request is given back to whoever
//!   asked, to look at them elsewhere. Single keys, and what came back since the tail was trimmed
//!   again, are looked at here, for a bounded time.
//! - A transaction is acknowledged only after its entry is appended and applied here.
//! - The position of the next append is always derived from what was applied and what is under way
//!   behind that, never guessed: after an append of unknown outcome the same slot is tried again,
//!   which settles it (`append.rs`, `settle.rs`).
//!
//! # Fairness
//! On a shared log whoever won the last slot knows the tail first and would win the next one too.
//! While other processes' entries are seen, the winner of a slot waits a random moment of up to
//! twice the time an append takes before it goes on; the loser does not wait.
//!
//! # On failure
//! - Slot taken: read on, validate again, next slot; until the deadline.
//! - Unknown outcome: the same records are appended again in the same slot. `Committed` means the
//!   first attempt is lost for ever and the second one counts; `Taken` by an entry that holds a
//!   commit of ours means it was there. Still unknown at the deadline: `OutcomeUnknown`.
//! - Whatever the store answered, also a plain "exists" to the first attempt (somebody on the way
//!   may have repeated the request): who won a taken slot is told by the transactions in it, never
//!   assumed. And a conflict of a transaction with itself is the proof that it committed.
//! - Anything else: nothing was appended, everyone gets the error.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use futures::future::{Either, select};
use telesto_bucket::meter::scoped;
use telesto_bucket::{Cause, ScopeMeter};
use telesto_common::Deadline;
use telesto_common::env::Clock;
use telesto_log::{Append, Begun, Result as LogResult};
use telesto_shard::FoldNeed;
use tokio::sync::{mpsc, oneshot};

use super::append::{Attempt, Failed};
use super::checks::Checks;
use super::records::records;
use super::validate::Validated;
use super::window::{UnderWay, Window};
use crate::error::{Error, Result};
use crate::local::Local;
use crate::service::{CommitReply, CommitRequest};
use crate::watermark::{Committing, Held};

/// How long other processes count as writing after their last entry was seen.
const CONTENDED_FOR: Duration = Duration::from_secs(2);
/// Longest pause of a winner.
const LONGEST_PAUSE: Duration = Duration::from_millis(200);

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
    /// When it was handed to the committer (monotonic).
    pub since: Duration,
    /// The scope that has a share of the group's cost.
    pub payer: Option<Arc<ScopeMeter>>,
    pub reply: oneshot::Sender<Result<Answer>>,
}

/// What the committer says to a request.
#[derive(Debug)]
pub(crate) enum Answer {
    Reply(CommitReply),
    /// Memory does not tell whether it is valid; nothing was appended. The request comes back with
    /// its checks.
    NotInMemory(Box<(CommitRequest, Checks)>),
}

impl Pending {
    pub(super) fn external(&self) -> bool {
        self.request.writes.names_parts()
    }

    pub(super) fn answer(self, reply: Result<CommitReply>) {
        // Whoever stopped waiting asks for the outcome by the transaction's id.
        let _ = self.reply.send(reply.map(Answer::Reply));
    }

    pub(super) fn give_back(self) {
        let Self { request, checks, reply, .. } = self;
        let _ = reply.send(Ok(Answer::NotInMemory(Box::new((request, checks)))));
    }

    /// Whether it may not be committed any more. The parts of an external write set are kept so
    /// long by either clock.
    fn is_late(&self, clock: &dyn Clock) -> bool {
        self.deadline.passed(clock.monotonic())
            || self.external() && clock.wall_micros() > self.wall_deadline_micros
    }
}

/// No slot was free until the deadline.
fn no_slot() -> Error {
    Error::Unavailable(
        "other processes took every log slot until the deadline; nothing was committed: run the transaction again".to_owned(),
    )
}

/// How long a stage of a commit took.
pub(super) fn stage(stage: &'static str, took: Duration) {
    metrics::histogram!("telesto_commit_stage_seconds", "stage" => stage)
        .record(took.as_secs_f64());
}

/// Requests that are committed together.
pub(crate) struct Group {
    pub live: Vec<Pending>,
    /// Until when an append is tried.
    pub by: Deadline,
    /// When its turn came (monotonic).
    pub since: Duration,
    /// What it costs.
    pub scope: Arc<ScopeMeter>,
    /// It holds the watermark back.
    _held: Committing,
}

/// See the module's text.
pub(crate) struct Committer {
    pub(super) local: Arc<Local>,
    queue: mpsc::Receiver<Pending>,
    /// Taken from the queue but not fitting into the last group.
    carried: Option<Pending>,
    /// Smoothed duration of an append.
    pub(super) append_takes: Duration,
    pub(super) won_last: bool,
    pub(super) window: Window,
    /// Groups whose place another entry has taken.
    pub(super) again: VecDeque<Group>,
}

/// What the committer wakes for.
enum Event {
    /// What became of the oldest append under way.
    Done(LogResult<Append>),
    /// It is the turn of the request that is carried.
    Came,
}

impl Committer {
    pub fn new(local: Arc<Local>, queue: mpsc::Receiver<Pending>) -> Self {
        let window = Window::new(2 * local.options.group.max_bytes);
        Self {
            local,
            queue,
            carried: None,
            append_takes: Duration::ZERO,
            won_last: false,
            window,
            again: VecDeque::new(),
        }
    }

    /// Runs until the queue is closed and empty, and nothing is under way.
    pub async fn run(mut self) {
        loop {
            if let Some(group) = self.again.pop_front() {
                self.commit(group).await;
                continue;
            }
            match self.next().await {
                Some(Event::Done(result)) => {
                    if !self.settle(result).await {
                        self.drain().await;
                    }
                }
                Some(Event::Came) => {
                    self.give_way().await;
                    let first = self.carried.take();
                    let live = first.map(|first| self.gather(first)).unwrap_or_default();
                    if let Some(group) = self.group(live) {
                        self.commit(group).await;
                    }
                }
                None => return,
            }
        }
    }

    /// What is to be done next; `None`: nothing, ever.
    async fn next(&mut self) -> Option<Event> {
        let clock = Arc::clone(&self.local.env.clock);
        loop {
            if self.window.is_empty() {
                if self.carried.is_none() {
                    self.carried = Some(self.queue.recv().await?);
                }
                return Some(Event::Came);
            }
            let Some(pause) = self.window.pause(clock.monotonic(), self.append_takes) else {
                return Some(Event::Done(self.window.oldest_done().await));
            };
            let done = self.window.oldest_done();
            futures::pin_mut!(done);
            if self.carried.is_none() {
                let came = self.queue.recv();
                futures::pin_mut!(came);
                match select(done, came).await {
                    Either::Left((done, _)) => return Some(Event::Done(done)),
                    Either::Right((Some(pending), _)) => self.carried = Some(pending),
                    // Closed: what is under way is waited for.
                    Either::Right((None, done)) => return Some(Event::Done(done.await)),
                }
            } else if pause.is_zero() {
                return Some(Event::Came);
            } else if let Either::Left((done, _)) = select(done, clock.sleep(pause)).await {
                return Some(Event::Done(done));
            }
        }
    }

    /// Lets other processes have a turn.
    async fn give_way(&self) {
        // Who owns a log has no rival.
        let rivals = self.won_last && !self.local.log.sequences();
        if rivals && self.local.contended(CONTENDED_FOR) {
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

    /// Those who still wait for their commit, as a group.
    fn group(&self, came: Vec<Pending>) -> Option<Group> {
        let clock = &self.local.env.clock;
        let mut live = Vec::with_capacity(came.len());
        for pending in came {
            if pending.reply.is_closed() {
                // Nothing of this attempt is committed. Whoever gave it up may have asked again.
                tracing::trace!(txn = ?pending.request.txn, "nobody waits for a commit any more");
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
        let first = live.first()?;
        let since = clock.monotonic();
        stage("queue", since.saturating_sub(first.since));
        let _held = Held::committing(&self.local, first.request.txn);
        let scope = ScopeMeter::shared_of(self.local.bucket.jobs(), Cause::Commit);
        Some(Group { live, by, since, scope, _held })
    }

    async fn commit(&mut self, group: Group) {
        let scope = Arc::clone(&group.scope);
        scoped(scope, self.commit_scoped(group)).await;
    }

    async fn commit_scoped(&mut self, mut group: Group) {
        if !self.window.is_empty() && !self.goes_beside(&group) {
            self.drain().await;
        }
        if let Err(error) = self.ready(group.by).await {
            return self.abort_all(group.live, &error);
        }
        if group.by.passed(self.local.env.clock.monotonic()) {
            // It has lost its place before. One that is begun now would be given up at once.
            return self.abort_all(group.live, &no_slot());
        }
        let mut pipelined = self.is_pipelined(&group);
        while !group.live.is_empty() {
            let mut validated = match self.validate(&mut group.live, group.by).await {
                Ok(validated) => validated,
                Err(error) => return self.abort_all(group.live, &error),
            };
            if validated.survivors.is_empty() {
                return self.all_beaten(group, validated);
            }
            if pipelined {
                match self.begin(group, validated).await {
                    None => return,
                    Some(given_back) => (group, validated) = given_back,
                }
                pipelined = false;
                if !self.window.is_empty() {
                    self.drain().await;
                    continue;
                }
            }
            match self.append(&group, &validated, None).await {
                Ok(Attempt::Committed(lsn)) => return self.acknowledge(group, validated, lsn),
                Ok(Attempt::Lost) => {
                    self.lost_slot();
                    if group.by.passed(self.local.env.clock.monotonic()) {
                        return self.abort_all(group.live, &no_slot());
                    }
                }
                Err(Failed::Certain(error)) => return self.abort_all(group.live, &error),
                Err(Failed::Unknown(slot, reason)) => {
                    return self.unknown(group, &validated, slot, &reason);
                }
                Err(Failed::Reopened(slot, error)) => {
                    return self.ask_after_reopening(group, &validated, slot, &error).await;
                }
            }
        }
    }

    /// Whether the group's entry may be under way together with others. What external write sets
    /// write is not known here, so that nothing could be validated against it.
    fn is_pipelined(&self, group: &Group) -> bool {
        self.local.log.is_pipelined() && !group.live.iter().any(Pending::external)
    }

    /// Whether the group can be validated and begun at once, while others are under way: nobody
    /// waits for it.
    fn goes_beside(&self, group: &Group) -> bool {
        self.is_pipelined(group)
            && self.local.in_contact()
            && self.local.shard().fold_need() != FoldNeed::Full
            && self.tells_memory(&group.live)
    }

    /// None of the group goes into an entry: they are refused, or beaten by those under way.
    fn all_beaten(&mut self, group: Group, validated: Validated) {
        match self.window.newest() {
            Some(newest) => newest.take_beaten(group.live, validated.beaten),
            None => {
                let applied = self.local.shard().applied().0;
                self.answer_all(group.live, BTreeMap::new(), validated.beaten, applied);
            }
        }
    }

    /// Begins to append what was validated. It is given back when that cannot be done now.
    async fn begin(&mut self, group: Group, validated: Validated) -> Option<(Group, Validated)> {
        let local = Arc::clone(&self.local);
        let hash = match validated.hash_before {
            Some(hash) => Ok(hash),
            None => local.hash_before(validated.at, group.by).await,
        };
        let Ok(hash) = hash else { return Some((group, validated)) };
        let records = records(&local, &group.live, &validated.survivors, &validated.made);
        let started = local.env.clock.monotonic();
        match local.log.begin_append(validated.at, hash, records, group.by).await {
            Ok(Begun::UnderWay(appending)) => {
                stage("order", local.env.clock.monotonic().saturating_sub(group.since));
                metrics::histogram!("telesto_commit_entries_under_way")
                    .record(self.window.len() as f64);
                let hash = appending.hash();
                let appending = Box::pin(appending.committed());
                self.window.push(UnderWay::new(group, validated, hash, started, appending));
                None
            }
            // Nothing was begun; an ordinary append finds out why, and tells it.
            Ok(Begun::NotNow(_)) | Err(_) => Some((group, validated)),
        }
    }

    /// Another entry stands where one was to be appended.
    pub(super) fn lost_slot(&mut self) {
        metrics::counter!("telesto_txn_slots_lost_total").increment(1);
        self.won_last = false;
    }

    /// Waits until an append may be tried.
    async fn ready(&self, by: Deadline) -> Result<()> {
        if !self.local.in_contact() {
            // Slept for long: learn what became of the log before anything is put into it.
            self.local.catch_up(by).await?;
        }
        self.local.wait_for_fold(by).await
    }
}
