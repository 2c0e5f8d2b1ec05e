//! Statements that this region executes for sessions of others.
//!
//! # Invariants
//! - A statement runs as the role, and with the settings, that its session has: rights and row
//!   security are checked here as for a session here. Between regions of one deployment everything
//!   is trusted: that the client has proven its role is for its own region to see to.
//! - It writes nothing, forwards nothing, and has nothing of a session's own: advisory locks,
//!   sequences, settings, messages.
//! - `now()` is its session's.
//! - It is polled where it holds up nobody, as a client's statement is, with the same turns; it is
//!   shown, counted and stopped as one ([`super::host`]), and not begun when new work is turned
//!   away.
//!
//! # On failure
//! The error is told to the session with everything that it says; the statement has ended. Ended by
//! an administrator, it is not tried again elsewhere.
//!
//! # Limits
//! A piece is about [`PIECE_BYTES`] of rows; a row of more than [`MOST_BYTES`] is refused.

use std::future::Future;
use std::pin::pin;
use std::sync::{Arc, OnceLock, Weak};
use std::task::Poll;

use async_trait::async_trait;
use bytes::Bytes;
use futures::StreamExt as _;
use telesto_common::wait::Wait;
use telesto_common::{Label, Timestamp};
use telesto_txn::{Piece, Pieces, Reader, Served};

use super::cursor::spool;
use super::host::{Guest, Host, Threads, Turn};
use super::{
    CancelHandle, Ending, Row, RowStream, Rows, Session, SqlEngine, StatementResult, pg_micros,
};
use crate::catalog::Stamp;
use crate::elsewhere::{SETTING, wire};
use crate::error::{Error, Result, SqlState};
use crate::plan::ResultColumn;
use crate::session::Settings;
use crate::types::{EnumType, SqlType};

/// Rows are sent when so much has come together, bytes.
const PIECE_BYTES: usize = 256 << 10;
/// What one piece may hold, bytes.
const MOST_BYTES: usize = 48 << 20;

/// Executes statements for sessions of other regions.
#[derive(Debug, Default)]
pub(super) struct Visits {
    engine: OnceLock<Weak<SqlEngine>>,
    host: OnceLock<Arc<dyn Host>>,
}

impl Visits {
    /// From here on in this engine.
    pub fn of(&self, engine: &Arc<SqlEngine>) {
        let _ = self.engine.set(Arc::downgrade(engine));
    }

    /// From here on with the threads of `host`; only the first one counts.
    pub fn at(&self, host: Arc<dyn Host>) {
        let _ = self.host.set(host);
    }

    fn begin(&self, statement: &[u8], seen: Label) -> Result<Visit> {
        let engine = self.engine.get().and_then(Weak::upgrade);
        let engine = engine
            .ok_or_else(|| Error::new(SqlState::ADMIN_SHUTDOWN, "the region's node is stopping"))?;
        let host = self.host.get();
        if let Some(full) = host.and_then(|host| host.turned_away()) {
            // Another region may take it.
            return Err(Error::new(SqlState::TOO_MANY_CONNECTIONS, full.message()));
        }
        let asked: wire::Statement = wire::decode(statement)?;
        let mut settings = Settings { confined: true, ..asked.settings()? };
        // Whoever does not have it all is not to ask on.
        settings.others.insert(SETTING.to_owned(), "off".to_owned());
        let env = engine.env().clone();
        let mut session = engine.session_for(settings, seen, asked.transaction_micros);
        let cancel = session.cancel_handle();
        let guest = Guest::enter(&mut session);
        let turn = match host {
            Some(host) => host.turn(cancel.clone()),
            None => Box::new(Threads { env, handle: cancel.clone() }),
        };
        let state = State::Asked(Box::new(session), asked);
        Ok(Visit { guest: Some(guest), turn, cancel, state })
    }
}

impl Session {
    /// When a transaction that begins now began, for `now()`.
    pub(super) fn begins_at(&self) -> i64 {
        self.visits.unwrap_or_else(|| pg_micros(self.engine.env.clock.wall_micros()))
    }

    /// The snapshot of the block's transaction; zero without one.
    fn snapshot(&self) -> Timestamp {
        let txn = self.block.as_ref().and_then(|block| block.txn.as_ref());
        txn.map_or(Timestamp::ZERO, |txn| txn.snapshot())
    }
}

impl Reader for Visits {
    fn read(&self, statement: Bytes, seen: Label) -> Served {
        match self.begin(&statement, seen) {
            Ok(visit) => {
                let cancel = visit.cancel.clone();
                Served { pieces: Box::new(visit), stop: Box::new(move || cancel.cancel()) }
            }
            Err(error) => Served { pieces: Box::new(Refused(error)), stop: Box::new(|| {}) },
        }
    }
}

/// A statement that was not begun.
struct Refused(Error);

#[async_trait]
impl Pieces for Refused {
    async fn next(&mut self) -> telesto_txn::Result<Piece> {
        failed(None, &self.0)
    }
}

fn failed(head: Option<wire::Head>, error: &Error) -> telesto_txn::Result<Piece> {
    let failed = Some(wire::Failure::of(error));
    piece(&wire::Given { head, failed, ..wire::Given::default() }, true)
}

fn piece(given: &wire::Given, last: bool) -> telesto_txn::Result<Piece> {
    let bytes = wire::encode(given);
    let bytes = bytes.map_err(|error| telesto_txn::Error::Elsewhere(error.to_string()))?;
    Ok(Piece { bytes: bytes.into(), last })
}

enum State {
    Asked(Box<Session>, wire::Statement),
    Running(Box<Running>),
    Over,
}

struct Running {
    /// It keeps the snapshot.
    session: Box<Session>,
    types: Vec<SqlType>,
    rows: RowStream,
    ready: std::vec::IntoIter<Row>,
    /// To be told with the first piece.
    head: Option<wire::Head>,
}

/// A statement under way.
struct Visit {
    /// Until it has ended.
    guest: Option<Guest>,
    turn: Box<dyn Turn>,
    cancel: CancelHandle,
    state: State,
}

impl Visit {
    /// The statement has ended with this.
    fn ends(&mut self, head: Option<wire::Head>, error: &Error) -> telesto_txn::Result<Piece> {
        self.guest = None;
        if self.cancel.ending() != Some(Ending::Terminated) {
            return failed(head, error);
        }
        let ended = "the statement was ended in the region that executes it, by an administrator";
        failed(head, &Error::new(SqlState::QUERY_CANCELED, ended))
    }
}

#[async_trait]
impl Pieces for Visit {
    async fn next(&mut self) -> telesto_txn::Result<Piece> {
        let state = std::mem::replace(&mut self.state, State::Over);
        let mut running = match state {
            State::Asked(session, asked) => {
                match placed(&mut *self.turn, begin(session, asked)).await {
                    Ok(running) => running,
                    Err((head, error)) => return self.ends(head, &error),
                }
            }
            State::Running(running) => running,
            State::Over => {
                return failed(None, &Error::internal("rows behind the last one are asked for"));
            }
        };
        let filled = placed(&mut *self.turn, running.fill()).await;
        let head = running.head.take();
        match filled {
            Ok((count, rows, last)) => {
                if last {
                    // Its accounts are closed.
                    let _ = running.session.sync().await;
                    self.guest = None;
                } else {
                    // Whoever reads is to take what was made.
                    self.cancel.waits_for(Wait::ClientWrite);
                    self.state = State::Running(running);
                }
                piece(&wire::Given { head, count, rows, failed: None }, last)
            }
            Err(error) => self.ends(head, &error),
        }
    }
}

/// Polls `work` when it is its turn.
async fn placed<T>(turn: &mut dyn Turn, work: impl Future<Output = T>) -> T {
    let mut work = pin!(work);
    futures::future::poll_fn(|context| {
        let mut made = Poll::Pending;
        let polled = turn.poll(context, &mut |context| {
            made = work.as_mut().poll(context);
            if made.is_pending() { Poll::Pending } else { Poll::Ready(()) }
        });
        if polled.is_pending() { Poll::Pending } else { made }
    })
    .await
}

/// An error, with what may have been seen by it.
type Failed = (Option<wire::Head>, Error);

/// Executes the statement up to its first rows.
async fn begin(
    mut session: Box<Session>,
    asked: wire::Statement,
) -> std::result::Result<Box<Running>, Failed> {
    match execute(&mut session, &asked).await {
        Ok((columns, rows)) => {
            let at = session.snapshot();
            let stamp = session.catalog.as_ref().map_or(Stamp(0), |catalog| catalog.stamp);
            let head = Some(wire::Head::new(at, stamp, &columns));
            let types = columns.iter().map(|column| column.ty.clone()).collect();
            let (ready, rows): (Vec<Row>, RowStream) = match rows {
                Rows::Ready(rows) => (rows, futures::stream::empty().boxed()),
                Rows::Stream(rows) => (Vec::new(), rows),
            };
            Ok(Box::new(Running { session, types, rows, ready: ready.into_iter(), head }))
        }
        Err(error) => {
            let (_, here) = session.engine.database.applied();
            Err((Some(wire::Head::new(here, Stamp(0), &[])), error))
        }
    }
}

async fn execute(
    session: &mut Session,
    asked: &wire::Statement,
) -> Result<(Arc<[ResultColumn]>, Rows)> {
    let of_oid = |oid: &u32| {
        // A user's: planning links it with the catalog.
        SqlType::from_oid(*oid).unwrap_or_else(|| SqlType::Enum(Arc::new(EnumType::unlinked(*oid))))
    };
    let given: Vec<_> = asked.parameter_types.iter().map(|oid| Some(of_oid(oid))).collect();
    let prepared = session.prepare(&asked.sql, &given).await?;
    let parameters = match prepared.parameter_types.is_empty() {
        true => Vec::new(),
        false => {
            let types = &prepared.parameter_types;
            let row = spool::decode(&asked.parameters, 1, types)?.pop();
            row.ok_or_else(|| Error::internal("a statement without its parameters"))?
        }
    };
    match session.execute(&prepared, parameters).await? {
        StatementResult::Rows { columns, rows, .. } => Ok((columns, rows)),
        other => Err(Error::internal(format!("a read that gives {other:?}"))),
    }
}

impl Running {
    /// The next piece's rows: how many, encoded, and whether those were all.
    async fn fill(&mut self) -> Result<(u64, Vec<u8>, bool)> {
        let (mut count, mut out) = (0, Vec::new());
        loop {
            for row in self.ready.by_ref() {
                spool::encode(&mut out, &row, &self.types)?;
                count += 1;
                if out.len() > MOST_BYTES {
                    return Err(Error::new(
                        SqlState::PROGRAM_LIMIT_EXCEEDED,
                        format!("a row is larger than the {} MiB that one region sends another at a time", MOST_BYTES >> 20),
                    )
                    .hint("Read fewer columns, or parts of the value; or connect to a region that has the table."));
                }
                if out.len() >= PIECE_BYTES {
                    return Ok((count, out, false));
                }
            }
            match self.rows.next().await {
                Some(rows) => self.ready = rows?.into_iter(),
                None => return Ok((count, out, true)),
            }
        }
    }
}
