//! Feeding one log server: several batches under way, in order; what it lacks when it lags.
//!
//! ```text
//!            ┌────────── stored ◄───────────┐
//!  feeding ──┴─ Store ─► Store ─► Store ─►  server
//!     │  refused, unknown, no answer: wait for those under way, then
//!     ├─ has less than was said  ─► forgot: no more of this loglet for it
//!     ├─ does not have the loglet and never had ─► Create, in the life in which it was met before
//!     │                                            the chain named the loglet; else it stays outside
//!     ├─ lags behind the buffer ─► Skip to what is archived, or read from another server
//!     └─ no answer ─► a pause, again
//! ```
//! **Telling what is committed.** Readers on a server learn of it by the next entries, or by a
//! request that says nothing else. While entries follow one another within [`BUSY`] such a request
//! waits for [`TELL`], and mostly the next entries make it needless: a client that writes one row
//! after the other costs each server one message a commit instead of two. After a pause the first
//! commit is told at once.
//!
//! # Invariants
//! - What counts as stored was said by the server itself before it was sealed, and never shrinks.
//!   What a sealed server has more may come from a recovery that decides nothing.
//! - A server counts as following only after it said that it has the loglet.
//! - What is committed is told to each server that answers at most twice [`TELL`] after nothing
//!   else is under way to it.
//! - A loglet is made on a server once, in the life in which it was met before the loglet was in
//!   any chain. A server that had entries and has no longer is never made to look like one that had
//!   none, and one that has forgotten that it sealed the loglet never takes entries again.
//!
//! # On failure
//! Tried again after [`PAUSE`] for as long as the loglet lives; [`Standing`] says since when.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::StreamExt as _;
use futures::future::{BoxFuture, Either, select};
use futures::stream::FuturesUnordered;
use parking_lot::Mutex;
use telesto_common::planted::Bug;
use telesto_common::{Deadline, Env, Incarnation, Lsn};

use super::lease::Asked;
use super::{Shared, majority};
use crate::error::{Error, Result};
use crate::server::{LogServer, Reply, Request};

/// Batches under way to one server.
const WINDOW: usize = 8;
/// Bytes of a batch, about.
const BATCH_BYTES: usize = 1 << 20;
/// How long a server may take to answer before it is asked again.
const PATIENCE: Duration = Duration::from_secs(2);
/// Before an unreachable server is tried again, at least half of it.
const PAUSE: Duration = Duration::from_millis(200);
/// An idle server is asked so often whether it is there still.
const IDLE: Duration = Duration::from_millis(500);
/// While entries come closer together than this, what is committed need not be told at once: the
/// next ones tell it.
const BUSY: Duration = Duration::from_millis(5);
/// How long it waits for them, about: once more if they have just come.
const TELL: Duration = Duration::from_millis(2);

/// How a log server stands to its loglet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// It takes entries.
    Following,
    /// It does not answer, or has not been heard since the loglet began.
    Away,
    /// It answers, but takes nothing: its disk fails, or is full.
    Failing,
    /// It was sealed by somebody else.
    Sealed,
    /// It had entries of the loglet and has them no longer.
    Forgot,
    /// It was not met before the loglet began, and can have the next one only.
    Outside,
}

/// How a log server stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Standing {
    /// Whether it takes entries.
    pub state: State,
    /// When it last did (monotonic); for one that does, it does still.
    pub since: Duration,
    /// The LSN after the last entry that it certainly has.
    pub next: Lsn,
    /// Entries that it lacks.
    pub lag: u64,
}

/// One log server as its sequencer sees it.
#[derive(Debug)]
pub(super) struct Remote {
    pub server: Arc<dyn LogServer>,
    /// In which it was met before the loglet was in any chain.
    life: Incarnation,
    known: Mutex<Known>,
}

#[derive(Debug)]
struct Known {
    stored: Lsn,
    /// Whether it was ever seen to have the loglet.
    had: bool,
    state: State,
    since: Duration,
    promised: Option<Asked>,
}

impl Remote {
    /// One of several servers (`state`: away) is not believed to take entries before it was heard
    /// to have the loglet: where a majority has made it, the others may not have, and nobody may
    /// take theirs for copies.
    pub fn new(
        server: Arc<dyn LogServer>,
        life: Incarnation,
        state: State,
        start: Lsn,
        now: Duration,
    ) -> Self {
        let known = Known { stored: start, had: false, state, since: now, promised: None };
        Self { server, life, known: Mutex::new(known) }
    }

    /// Whether it is in this process.
    fn is_own(&self) -> bool {
        self.server.is_local()
    }

    /// The LSN after the last entry that it certainly has.
    pub fn stored(&self) -> Lsn {
        self.known.lock().stored
    }

    /// It promised to accept no seal, when it was asked then.
    pub fn promise(&self, asked: Asked) {
        self.known.lock().promised = Some(asked);
    }

    pub fn promised(&self) -> Option<Asked> {
        self.known.lock().promised
    }

    pub fn standing(&self, ordered: Lsn) -> Standing {
        let known = self.known.lock();
        let lag = ordered.0.saturating_sub(known.stored.0);
        Standing { state: known.state, since: known.since, next: known.stored, lag }
    }

    /// It certainly has everything below `next`.
    fn knows(&self, next: Lsn) {
        let mut known = self.known.lock();
        known.stored = next.max(known.stored);
        known.had = true;
    }

    /// As [`Self::knows`]: and it takes entries.
    fn takes(&self, next: Lsn, now: Duration) {
        self.knows(next);
        let mut known = self.known.lock();
        known.since = now;
        if matches!(known.state, State::Away | State::Failing) {
            known.state = State::Following;
        }
    }

    fn is(&self, state: State) {
        self.known.lock().state = state;
    }
}

/// What an answer asks for next.
enum Next {
    /// Nothing: it was stored.
    Go,
    /// It was not: wait for those under way, then look where the server is.
    Resync,
    /// Somebody sealed it, or it has forgotten the loglet: it gets nothing more.
    End,
}

/// What a pusher wakes for.
enum Event {
    News,
    Answered(Answer),
    Behind,
    Idle,
    Tell,
}

/// How far the feeding of a server is.
struct Feeding {
    /// The LSN after the last entry that was sent.
    sent: Lsn,
    /// The commit position that the server was told.
    told: Lsn,
    /// When entries were last sent, and whether those before had been sent shortly before.
    last: Option<Duration>,
    busy: bool,
    /// Ends when it is time to tell. One timer for many commits: to set one wakes the thread that
    /// waits for timers.
    tell: Option<BoxFuture<'static, ()>>,
}

impl Feeding {
    fn new(start: Lsn) -> Self {
        // Told nothing yet: a server is asked at once whether it has the loglet.
        Self { sent: start, told: Lsn::ZERO, last: None, busy: false, tell: None }
    }

    fn sends(&mut self, now: Duration) {
        self.busy = self.last.is_some_and(|last| now.saturating_sub(last) < BUSY);
        self.last = Some(now);
    }

    /// Whether what is committed is to be told by a request of its own: entries that were sent just
    /// now are mostly followed by others.
    fn is_due(&self, env: &Env) -> bool {
        let now = env.clock.monotonic();
        self.last.is_none_or(|last| now.saturating_sub(last) >= TELL / 2)
    }

    /// Waits until it is time to tell what is committed, if a time was set, or to ask whether the
    /// server is there.
    async fn quiet(&mut self, env: &Env) -> Event {
        let idle = env.clock.sleep(IDLE);
        let Some(tell) = &mut self.tell else {
            idle.await;
            return Event::Idle;
        };
        if let Either::Right(_) = select(tell, idle).await {
            return Event::Idle;
        }
        self.tell = None;
        Event::Tell
    }
}

/// When it was asked, and what came back.
type Answer = (Asked, Result<Reply>);

impl Shared {
    /// Feeds the one server there is, up to and including `last`, in the appender's own task.
    pub(super) async fn feed(&self, remote: &Remote, last: Lsn, by: Deadline) -> Result<()> {
        loop {
            let next = remote.stored();
            if next > last {
                return Ok(());
            }
            let entries = self.buffer.lock().range(next, last.next(), 4 << 20);
            let Some(entries) = entries.filter(|e| !e.is_empty()) else {
                return Err(Error::Unavailable {
                    shard: self.key.shard,
                    reason: format!("the log server lags too far behind (it needs entry {next})"),
                });
            };
            let asked = Asked::now(&self.env);
            let store = self.store(next, entries);
            // The appender waits for nothing else.
            match remote.server.call_and_wait(store, by).await? {
                Reply::Stored { next, leased } => {
                    remote.takes(next, self.env.clock.monotonic());
                    if leased {
                        remote.promise(asked);
                    }
                }
                // An earlier reply was lost: the server has more than we knew.
                Reply::Refused { next: has, sealed: false } if has > next => {
                    remote.takes(has, self.env.clock.monotonic());
                }
                other => {
                    return Err(Error::Unavailable {
                        shard: self.key.shard,
                        reason: format!("a log server answered {other:?}"),
                    });
                }
            }
        }
    }

    fn store(&self, first: Lsn, entries: Vec<Bytes>) -> Request {
        let terms = Some(self.terms());
        Request::Store { key: self.key, first, entries, repair: false, terms }
    }

    /// Feeds server `index` until the sequencer stops.
    pub(super) async fn push(self: Arc<Self>, index: usize) {
        let remote = Arc::clone(&self.remotes[index]);
        let mut ordered = self.ordered.subscribe();
        let mut committed = self.committed.subscribe();
        let mut stopped = self.stopped.subscribe();
        let mut under_way: FuturesUnordered<BoxFuture<'static, Answer>> = FuturesUnordered::new();
        let mut feeding = Feeding::new(self.start);
        // Where the server was when it last took nothing.
        let mut tried = Lsn::ZERO;
        loop {
            if *stopped.borrow() {
                return;
            }
            let behind = self.fill(&remote, &mut feeding, &mut under_way);
            let event = if behind && under_way.is_empty() {
                Event::Behind
            } else {
                let answered = async {
                    match under_way.next().await {
                        Some(answer) => Event::Answered(answer),
                        None => std::future::pending().await,
                    }
                };
                let news = async {
                    let (ordered, committed) = (ordered.changed(), committed.changed());
                    let stopped = stopped.changed();
                    futures::pin_mut!(ordered, committed, stopped);
                    select(select(ordered, committed), stopped).await;
                    Event::News
                };
                let quiet = feeding.quiet(&self.env);
                futures::pin_mut!(answered, news, quiet);
                let first = select(select(answered, news), quiet).await;
                match first {
                    Either::Left((either, _)) => either.factor_first().0,
                    Either::Right((quiet, _)) => quiet,
                }
            };
            let next = match event {
                Event::News => continue,
                Event::Idle | Event::Tell => {
                    let told = feeding.told >= *self.committed.borrow();
                    let wanted =
                        if told { matches!(event, Event::Idle) } else { feeding.is_due(&self.env) };
                    if under_way.is_empty() && wanted {
                        feeding.told = *self.committed.borrow();
                        under_way.push(self.confirm_with(&remote));
                    }
                    continue;
                }
                Event::Answered(answer) => self.heard(&remote, answer),
                Event::Behind => Next::Resync,
            };
            match next {
                Next::Go => continue,
                Next::End => return,
                Next::Resync => {}
            }
            while let Some(answer) = under_way.next().await {
                if matches!(self.heard(&remote, answer), Next::End) {
                    return;
                }
            }
            match self.resync(&remote).await {
                Ok(true) if remote.stored() > tried => {
                    (feeding.sent, tried) = (remote.stored(), remote.stored());
                }
                Ok(false) => return,
                found => {
                    match found {
                        Err(error) => {
                            tracing::debug!(shard = self.key.shard.0, %error, "a log server is away");
                            remote.is(State::Away);
                        }
                        Ok(_) if tried == remote.stored() && feeding.sent > tried => {
                            remote.is(State::Failing)
                        }
                        Ok(_) => {}
                    }
                    tried = remote.stored();
                    let pause = PAUSE / 2 + self.env.jitter(PAUSE / 2);
                    let pause = self.env.clock.sleep(pause);
                    let stop = stopped.wait_for(|stopped| *stopped);
                    futures::pin_mut!(stop);
                    select(stop, pause).await;
                    feeding.sent = remote.stored();
                }
            }
        }
    }

    /// Sends what there is, as far as the window allows; whether the server lags behind the buffer.
    fn fill(
        self: &Arc<Self>,
        remote: &Arc<Remote>,
        feeding: &mut Feeding,
        under_way: &mut FuturesUnordered<BoxFuture<'static, Answer>>,
    ) -> bool {
        let ordered = *self.ordered.borrow();
        while under_way.len() < WINDOW && feeding.sent < ordered {
            let Some(entries) = self.buffer.lock().range(feeding.sent, ordered, BATCH_BYTES) else {
                return true;
            };
            let store = self.store(feeding.sent, entries.clone());
            feeding.sends(self.env.clock.monotonic());
            feeding.sent = Lsn(feeding.sent.0 + entries.len() as u64);
            feeding.told = *self.committed.borrow();
            under_way.push(self.ask(remote, store));
        }
        // Readers on the server learn of the last commits only by what follows.
        let committed = *self.committed.borrow();
        if under_way.is_empty() && feeding.told < committed && !feeding.busy {
            feeding.told = committed;
            under_way.push(self.confirm_with(remote));
        }
        if under_way.is_empty() && feeding.told < committed && feeding.tell.is_none() {
            feeding.tell = Some(self.env.clock.sleep(TELL));
        }
        false
    }

    fn ask(self: &Arc<Self>, remote: &Arc<Remote>, request: Request) -> BoxFuture<'static, Answer> {
        let (shared, remote) = (Arc::clone(self), Arc::clone(remote));
        Box::pin(async move {
            let asked = Asked::now(&shared.env);
            let by = shared.env.deadline(PATIENCE);
            (asked, remote.server.call(request, by).await)
        })
    }

    fn confirm_with(self: &Arc<Self>, remote: &Arc<Remote>) -> BoxFuture<'static, Answer> {
        self.ask(remote, Request::Confirm { key: self.key, terms: self.terms() })
    }

    /// Takes an answer in.
    fn heard(&self, remote: &Remote, (asked, answer): Answer) -> Next {
        let now = self.env.clock.monotonic();
        let (next, leased) = match answer {
            Ok(Reply::Stored { next, leased }) => {
                let stage = if remote.is_own() { "server_own" } else { "server_other" };
                metrics::histogram!("telesto_commit_stage_seconds", "stage" => stage)
                    .record(asked.elapsed(&self.env).as_secs_f64());
                remote.takes(next, now);
                (next, leased)
            }
            Ok(Reply::Tail { doubtful: true, .. }) => {
                remote.is(State::Forgot);
                return Next::End;
            }
            Ok(Reply::Tail { next, sealed: false, leased, .. }) if next >= remote.stored() => {
                // One whose disk fails answers too, and lags.
                if next >= *self.ordered.borrow() {
                    remote.takes(next, now);
                }
                (next, leased)
            }
            Ok(Reply::Refused { next, sealed: true } | Reply::Tail { next, sealed: true, .. }) => {
                self.counts_sealed(remote, next);
                remote.is(State::Sealed);
                self.stop_if_hopeless();
                return Next::End;
            }
            Ok(_) | Err(_) => return Next::Resync,
        };
        remote.knows(next);
        if leased {
            remote.promise(asked);
        }
        self.count();
        Next::Go
    }

    /// A sealed server has entries up to `next`. They do not count: it may have been given them by
    /// a recovery, after another one that did not see them has ended the loglet before them. What
    /// it said before it was sealed was there for each of them to see.
    fn counts_sealed(&self, remote: &Remote, next: Lsn) {
        if self.env.planted(Bug::CountsRepairs) && next >= remote.stored() {
            remote.knows(next);
            self.count();
        }
    }

    /// When too many servers take nothing more the loglet cannot go on.
    fn stop_if_hopeless(&self) {
        let ordered = *self.ordered.borrow();
        let lost = self.remotes.iter().filter(|remote| {
            let state = remote.standing(ordered).state;
            matches!(state, State::Sealed | State::Forgot | State::Outside)
        });
        if self.remotes.len() - lost.count() < majority(self.remotes.len()) {
            self.stopped.send_replace(true);
        }
    }

    /// Finds out where the server is, with nothing under way, and brings it within reach of the
    /// buffer. `false`: it gets nothing more.
    async fn resync(&self, remote: &Remote) -> Result<bool> {
        let by = self.env.deadline(PATIENCE);
        let tail = remote.server.call(Request::Tail { key: self.key }, by).await?;
        let (stored, had) = (remote.stored(), remote.known.lock().had);
        match tail {
            Reply::Tail { doubtful: true, .. } => {}
            Reply::Tail { next, .. } if next < stored => {}
            Reply::Tail { next, sealed: true, .. } => {
                self.counts_sealed(remote, next);
                remote.is(State::Sealed);
                self.stop_if_hopeless();
                return Ok(false);
            }
            Reply::Tail { next, .. } => {
                remote.knows(next);
                self.count();
                return self.bring_up(remote, next, by).await.map(|()| true);
            }
            Reply::Unknown if !had && remote.life.0 == 0 => {
                remote.is(State::Outside);
                self.stop_if_hopeless();
                return Ok(false);
            }
            Reply::Unknown if !had => {
                let server = Some(remote.life);
                let create = Request::Create { key: self.key, start: self.start, server };
                match remote.server.call(create, by).await? {
                    Reply::Done => {
                        remote.knows(self.start);
                        return self.bring_up(remote, self.start, by).await.map(|()| true);
                    }
                    Reply::Refused { sealed: true, .. } => {
                        remote.is(State::Sealed);
                        self.stop_if_hopeless();
                        return Ok(false);
                    }
                    Reply::Server { .. } => {}
                    _ => return Err(self.unexpected("a loglet to be made")),
                }
            }
            _ => {}
        }
        tracing::error!(
            shard = self.key.shard.0,
            loglet = self.key.loglet,
            stored = stored.0,
            "a log server no longer has entries that it had; it gets nothing more of this loglet"
        );
        metrics::counter!("telesto_log_servers_forgot_total").increment(1);
        remote.is(State::Forgot);
        self.stop_if_hopeless();
        Ok(false)
    }

    fn unexpected(&self, to: &str) -> Error {
        let reason = format!("a log server gave no answer to {to}");
        Error::Unavailable { shard: self.key.shard, reason }
    }

    /// Feeds a server that has everything below `next` until the buffer has what it needs.
    async fn bring_up(&self, remote: &Remote, mut next: Lsn, by: Deadline) -> Result<()> {
        let archived = *self.archived.lock();
        if next < archived {
            let skip = Request::Skip { key: self.key, to: archived };
            let Reply::Stored { next: skipped, .. } = remote.server.call(skip, by).await? else {
                return Err(self.unexpected("what it may pass over"));
            };
            metrics::counter!("telesto_log_skipped_entries_total")
                .increment(archived.0.saturating_sub(next.0));
            next = skipped;
            remote.takes(next, self.env.clock.monotonic());
        }
        loop {
            let ordered = *self.ordered.borrow();
            if next >= ordered || self.buffer.lock().range(next, ordered, 1).is_some() {
                return Ok(());
            }
            let entries = self.read_from_others(remote, next, by).await?;
            let Reply::Stored { next: stored, .. } =
                remote.server.call(self.store(next, entries), by).await?
            else {
                return Err(self.unexpected("entries that it lacks"));
            };
            next = stored;
            remote.takes(next, self.env.clock.monotonic());
            self.count();
        }
    }

    /// Entries from `from` on from whichever other server has them.
    async fn read_from_others(
        &self,
        lagging: &Remote,
        from: Lsn,
        by: Deadline,
    ) -> Result<Vec<Bytes>> {
        for other in self.remotes.iter().filter(|other| !std::ptr::eq(&***other, lagging)) {
            if other.stored() <= from {
                continue;
            }
            let read = Request::Read { key: self.key, from, max_bytes: BATCH_BYTES };
            if let Ok(Reply::Entries(found)) = other.server.call(read, by).await
                && !found.is_empty()
            {
                return Ok(found);
            }
        }
        Err(Error::Unavailable {
            shard: self.key.shard,
            reason: format!("no log server in reach has entry {from}, which another one lacks"),
        })
    }
}
