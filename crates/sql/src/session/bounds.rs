//! Bounds of a statement's work: cancellation, the session's end and `statement_timeout`.
//!
//! ```text
//!                        +-- cancelled, ended ----> 57014, 57P01: the work is dropped where it waits
//! bounded(work) --select-+-- work done -----------> its result; rows that are pulled later stay bounded
//!                        +-- its time is over ----> 57014
//!      work that computes looks by itself: `crate::interrupt`
//! ```
//!
//! # Invariants
//! - Everything a statement waits for is inside: the begin of its transaction, the catalog, locks,
//!   reads, writes.
//! - A commit whose work is dropped may have happened: the client is told so (08007), never that it
//!   failed.
//! - A statement that is executed again after a conflict, and its commit, have one limit together.
//! - Work that gives a row stream stays under the time limit until the stream ends.
//!
//! # On failure
//! 57014 and its kin; an implicit transaction is rolled back, an explicit one has failed.

use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use futures::future::BoxFuture;
use futures::stream::{BoxStream, StreamExt as _};
use telesto_common::Env;

use super::settings::Settings;
use super::{Rows, Session, StatementResult};
use crate::error::{Error, Result};
use crate::held;
use crate::interrupt::{self, ScopedStream, timed_out};
use crate::plan::CopyInTarget;
use crate::plan::cancel::CancelToken;

/// The time a statement has. Makes a timer only for a statement that has a limit.
pub(super) struct Timer(Option<BoxFuture<'static, ()>>);

impl Timer {
    fn start(env: &Env, limit: Option<Duration>) -> Self {
        Self(limit.map(|limit| env.clock.sleep(limit)))
    }

    async fn over(&mut self) {
        match &mut self.0 {
            Some(timer) => timer.await,
            None => futures::future::pending().await,
        }
    }
}

/// What became of bounded work.
pub(super) enum Ran<T> {
    /// It came to its end.
    Done(T),
    /// It was dropped where it waited.
    Stopped(Error),
}

/// Runs a statement's work against cancellation, the session's end and the statement's time limit.
pub(super) async fn bounded<T>(
    timer: &mut Timer,
    token: &CancelToken,
    work: Pin<&mut impl Future<Output = T>>,
) -> Ran<T> {
    let work = interrupt::scoped(token.shared(), work);
    tokio::select! {
        biased;
        () = token.cancelled() => Ran::Stopped(reason(token)),
        result = work => Ran::Done(result),
        () = timer.over() => {
            token.time_out();
            Ran::Stopped(timed_out())
        }
    }
}

fn reason(token: &CancelToken) -> Error {
    match token.check() {
        Err(error) => error,
        Ok(()) => Error::internal("a statement was stopped without a reason"),
    }
}

impl Session {
    /// A statement begins: its token and its timer.
    pub(super) fn begin_statement(&mut self) -> (CancelToken, Timer) {
        self.statement += 1;
        let spent = std::mem::take(&mut self.spent);
        let limit = limit(&self.settings).map(|limit| limit.saturating_sub(spent));
        (self.cancel.begin(self.statement, limit), Timer::start(&self.engine.env, limit))
    }

    /// What comes next goes on with the statement that began at `begun`, whose time it has.
    pub(super) fn goes_on_since(&mut self, begun: Duration) {
        self.spent = self.engine.env.clock.monotonic().saturating_sub(begun);
    }

    /// The work of a statement was dropped; what the client is told. `settings` are those it began
    /// with.
    pub(super) fn stopped(&mut self, error: Error, settings: Arc<Settings>) -> Error {
        if let Some(unknown) = self.committing.take() {
            self.abandon_block();
            return *unknown;
        }
        if self.block.as_ref().is_some_and(|block| block.explicit) {
            self.settings = settings;
        }
        self.fail();
        error
    }

    /// What the client is told when the session ends now although it has a commit under way, which
    /// may happen: whoever was told less would take it for one that did not.
    pub fn in_doubt(&mut self) -> Option<Error> {
        self.committing.take().map(|unknown| *unknown)
    }

    /// [`Session::commit_block`] within the bounds of a statement of its own.
    pub(super) async fn commit_bounded(&mut self) -> Result<()> {
        let settings = Arc::clone(&self.settings);
        let (token, mut timer) = self.begin_statement();
        let ran = {
            let work = pin!(self.commit_block());
            bounded(&mut timer, &token, work).await
        };
        match ran {
            Ran::Done(result) => result,
            Ran::Stopped(error) => Err(self.stopped(error, settings)),
        }
    }
}

fn limit(settings: &Settings) -> Option<Duration> {
    match settings.statement_timeout_ms {
        0 => None,
        ms => Some(Duration::from_millis(ms)),
    }
}

/// Keeps what is pulled or pushed after the statement has returned within its bounds.
pub(super) fn kept(result: StatementResult, token: &CancelToken, timer: Timer) -> StatementResult {
    let shared = Arc::clone(token.shared());
    match result {
        StatementResult::Rows { columns, rows: Rows::Stream(rows), tag } => {
            let rows = Box::pin(ScopedStream::new(shared, rows));
            let rows = Rows::Stream(until(rows, timer, token));
            StatementResult::Rows { columns, rows, tag }
        }
        StatementResult::CopyOut { format, columns, data } => {
            let data = until(Box::pin(ScopedStream::new(shared, data)), timer, token);
            StatementResult::CopyOut { format, columns, data }
        }
        StatementResult::CopyIn { format, columns, target } => {
            let target = Box::new(BoundedCopy { target, token: token.clone(), timer });
            StatementResult::CopyIn { format, columns, target }
        }
        other => other,
    }
}

/// What the statement gives, as long as it is not to stop.
fn until<T: Send + 'static>(
    given: BoxStream<'static, Result<T>>,
    timer: Timer,
    token: &CancelToken,
) -> BoxStream<'static, Result<T>> {
    let state = Some((given, timer, token.clone()));
    Box::pin(futures::stream::unfold(state, |state| async move {
        let (mut given, mut timer, token) = state?;
        tokio::select! {
            biased;
            () = token.cancelled() => Some((Err(reason(&token)), None)),
            () = timer.over() => {
                token.time_out();
                Some((Err(timed_out()), None))
            }
            next = given.next() => next.map(|next| (next, Some((given, timer, token)))),
        }
    }))
}

/// A COPY whose data is taken within the bounds of its statement.
struct BoundedCopy {
    target: Box<dyn CopyInTarget>,
    token: CancelToken,
    timer: Timer,
}

impl BoundedCopy {
    async fn bounded<T>(
        token: &CancelToken,
        timer: &mut Timer,
        work: impl Future<Output = Result<T>>,
    ) -> Result<T> {
        let work = pin!(async {
            interrupt::computes().await;
            // The rows of one message are counted by who keeps them, once it is done.
            let _values = held::scope();
            work.await
        });
        match bounded(timer, token, work).await {
            Ran::Done(result) => result,
            Ran::Stopped(error) => Err(error),
        }
    }
}

#[async_trait]
impl CopyInTarget for BoundedCopy {
    async fn data(&mut self, data: Bytes) -> Result<()> {
        Self::bounded(&self.token, &mut self.timer, self.target.data(data)).await
    }

    async fn finish(&mut self) -> Result<u64> {
        Self::bounded(&self.token, &mut self.timer, self.target.finish()).await
    }
}
