//! What a client saw of a statement: enough to tell whether executing it again gives the same.
//!
//! # Invariants
//! Two results with the same rows in the same order, the same tag or the same error have equal
//! digests; others differ, but for a 128-bit hash collision. Rows are digested as the client pulls
//! them: what it did not pull it did not see.

use std::hash::Hasher;
use std::sync::Arc;

use bytes::BytesMut;
use futures::StreamExt;
use parking_lot::Mutex;
use siphasher::sip128::{Hasher128, SipHasher};

use crate::error::{Error, Result};
use crate::plan::{ResultColumn, RowStream, Rows, StatementResult};
use crate::types::Row;

/// Digest of one statement's outcome.
#[derive(Clone, Debug, Default)]
pub(super) struct Seen {
    hasher: SipHasher,
    rows: u64,
    complete: bool,
    outcome: String,
}

impl Seen {
    fn row(&mut self, row: &Row, columns: &[ResultColumn], buffer: &mut BytesMut) {
        self.rows += 1;
        for (datum, column) in row.iter().zip(columns) {
            buffer.clear();
            datum.to_binary(&column.ty, buffer);
            self.hasher.write_u8(u8::from(datum.is_null()));
            self.hasher.write_u64(buffer.len() as u64);
            self.hasher.write(buffer);
        }
    }

    fn same(&self, other: &Self) -> bool {
        self.rows == other.rows
            && self.outcome == other.outcome
            && self.hasher.finish128().as_u128() == other.hasher.finish128().as_u128()
    }

    /// What an error looked like.
    pub(super) fn of_error(error: &Error) -> Arc<Mutex<Self>> {
        let outcome = format!("{}:{}", error.code(), error.message());
        Arc::new(Mutex::new(Self { outcome, complete: true, ..Self::default() }))
    }
}

/// Digests `result` on its way to the client.
pub(super) fn observe(result: StatementResult) -> (StatementResult, Arc<Mutex<Seen>>) {
    let seen = Arc::new(Mutex::new(Seen::default()));
    let result = match result {
        StatementResult::Rows { columns, rows: Rows::Ready(rows), tag } => {
            let mut buffer = BytesMut::new();
            let mut digest = seen.lock();
            for row in &rows {
                digest.row(row, &columns, &mut buffer);
            }
            digest.complete = true;
            tag.clone_into(&mut digest.outcome);
            drop(digest);
            StatementResult::Rows { columns, rows: Rows::Ready(rows), tag }
        }
        StatementResult::Rows { columns, rows: Rows::Stream(stream), tag } => {
            tag.clone_into(&mut seen.lock().outcome);
            let rows = Rows::Stream(watched(stream, Arc::clone(&columns), Arc::clone(&seen)));
            StatementResult::Rows { columns, rows, tag }
        }
        StatementResult::Command { tag } => {
            let mut digest = seen.lock();
            digest.outcome.clone_from(&tag);
            digest.complete = true;
            drop(digest);
            StatementResult::Command { tag }
        }
        other => other,
    };
    (result, seen)
}

fn watched(stream: RowStream, columns: Arc<[ResultColumn]>, seen: Arc<Mutex<Seen>>) -> RowStream {
    let state = Some((stream, columns, seen, BytesMut::new()));
    Box::pin(futures::stream::unfold(state, |state| async move {
        let (mut stream, columns, seen, mut buffer) = state?;
        match stream.next().await {
            Some(Ok(rows)) => {
                let mut digest = seen.lock();
                for row in &rows {
                    digest.row(row, &columns, &mut buffer);
                }
                drop(digest);
                Some((Ok(rows), Some((stream, columns, seen, buffer))))
            }
            Some(Err(error)) => Some((Err(error), None)),
            None => {
                seen.lock().complete = true;
                None
            }
        }
    }))
}

/// Consumes a repeated statement's result as far as the client did, and compares.
pub(super) async fn repeats(result: Result<StatementResult>, before: &Seen) -> Result<bool> {
    let mut now = Seen::default();
    let mut buffer = BytesMut::new();
    match result {
        Err(error) if error.conflict().is_some() => return Err(error),
        Err(error) => return Ok(Seen::of_error(&error).lock().same(before)),
        Ok(StatementResult::Rows { columns, rows, tag }) => {
            tag.clone_into(&mut now.outcome);
            let mut stream = match rows {
                Rows::Ready(rows) => {
                    Box::pin(futures::stream::once(async { Ok(rows) })) as RowStream
                }
                Rows::Stream(stream) => stream,
            };
            while now.rows < before.rows || before.complete {
                let Some(batch) = stream.next().await else { break };
                for row in &batch? {
                    if now.rows == before.rows {
                        // More rows than before; a client that had not pulled on does not know.
                        return Ok(!before.complete && now.same(before));
                    }
                    now.row(row, &columns, &mut buffer);
                }
            }
        }
        Ok(StatementResult::Command { tag }) => now.outcome = tag,
        Ok(_) => return Ok(false),
    }
    Ok(now.same(before))
}
