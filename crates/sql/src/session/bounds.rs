//! Bounds of a statement's work: cancellation and `statement_timeout`.
//!
//! # Invariants
//! Work that gives a row stream stays under the time limit until the stream ends.
//!
//! # On failure
//! 57014; the work is dropped where it waits.

use std::time::Duration;

use futures::future::{BoxFuture, FutureExt as _};
use futures::stream::StreamExt as _;
use telesto_common::Env;

use super::cancel::CancelToken;
use super::settings::Settings;
use super::{RowStream, Rows, StatementResult};
use crate::error::{Error, Result, SqlState};

/// Runs a statement's work against cancellation and the statement's time limit.
pub(super) async fn bounded(
    env: &Env,
    settings: &Settings,
    token: &CancelToken,
    work: impl Future<Output = Result<StatementResult>>,
) -> Result<StatementResult> {
    let limit = settings.statement_timeout_ms;
    let mut timeout = match limit {
        0 => futures::future::pending().boxed(),
        ms => env.clock.sleep(Duration::from_millis(ms)),
    };
    tokio::select! {
        biased;
        () = token.cancelled() => {
            token.check()?;
            Err(Error::internal("cancelled without a reason"))
        }
        result = work => match result? {
            // Computed as the rows are pulled.
            StatementResult::Rows { columns, rows: Rows::Stream(rows), tag } if limit > 0 => {
                let rows = Rows::Stream(until(rows, timeout));
                Ok(StatementResult::Rows { columns, rows, tag })
            }
            result => Ok(result),
        },
        () = &mut timeout => Err(timed_out()),
    }
}

fn timed_out() -> Error {
    Error::new(SqlState::QUERY_CANCELED, "canceling statement due to statement timeout")
}

/// The rows as long as `timeout` has not come.
fn until(rows: RowStream, timeout: BoxFuture<'static, ()>) -> RowStream {
    let state = Some((rows, timeout));
    Box::pin(futures::stream::unfold(state, |state| async move {
        let (mut rows, mut timeout) = state?;
        tokio::select! {
            biased;
            () = &mut timeout => Some((Err(timed_out()), None)),
            batch = rows.next() => batch.map(|batch| (batch, Some((rows, timeout)))),
        }
    }))
}
