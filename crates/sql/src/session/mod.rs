//! Sessions: what the server and the embedded library talk to.
//!
//! # How to use
//! - Simple protocol: [`Session::execute_simple`] with a [`ResultSink`].
//! - Extended protocol: [`Session::prepare`] (Parse and Describe), [`Session::execute`] (Bind and
//!   the first Execute; the server keeps the row stream as the portal and pulls `max_rows` at a
//!   time), and [`Session::sync`] at every Sync, which commits an implicit transaction. After an
//!   error the server skips to Sync; the session has by then rolled back or entered the failed
//!   state.
//! - Rows and COPY targets of an earlier statement must be dropped or drained before the next call.
//!
//! # Invariants
//! - Statements of one session run one after the other.
//! - An error in an explicit transaction puts it in the failed state; only ROLLBACK (or to a
//!   savepoint) leaves it (25P02).

mod activity;
mod as_of;
pub mod audit;
mod beginning;
mod bounds;
mod conflict;
mod constraints;
mod control;
mod costs;
pub(crate) mod curated;
mod cursor;
mod definitions;
mod effects;
mod elsewhere;
mod engine;
mod executed;
mod host;
pub(crate) mod init_plan;
mod named;
mod names;
mod online;
pub mod passing;
mod places;
mod planner;
mod prepare;
mod prepared;
mod region;
mod result_digest;
mod roles;
mod run;
mod tame;
mod temporary;
mod texts;
mod transaction;
pub mod users;
mod utility;
mod visit;
mod weight;
mod writes;

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt as _;
use futures::future::BoxFuture;
use telesto_common::limits::Reservation;
use telesto_common::{Label, RegionId, Timestamp};

pub use crate::catalog::SequenceSession;
pub use crate::expr::settings::{self, Settings};
pub use crate::plan::cancel::{CancelHandle, CancelToken, Ending, Probe};
pub use crate::plan::cost::StatementCost;
pub use crate::plan::{
    CopyFormat, CopyInTarget, CopyPiece, Notice, NoticeQueue, ResultColumn, ResultSink, RowStream,
    Rows, StatementResult,
};
pub use crate::types::Row;
pub use crate::types::{PG_EPOCH_SECONDS, pg_micros};
pub use engine::{SessionOptions, SqlEngine, SqlOptions};
pub use host::{Host, Turn};
pub(crate) use prepare::{plan_as_written, plan_statement};
pub use prepared::Prepared;

use crate::advisory::session::AdvisorySession;
use crate::catalog::CatalogSnapshot;
use crate::elsewhere::sources::Source;
use crate::error::{Error, Result, SqlState};
use crate::interrupt;
use crate::notify::session::Channels;
use crate::notify::{Lost, Notification};
use crate::plan::ParameterTypes;
use crate::plan::cost::Booked;
use crate::plan::deferred::Deferred;
use crate::types::{Datum, SqlType};
use bounds::{Ran, bounded};
use telesto_sql_parser::parse;
use telesto_sql_parser::statement_kind::only_reads;
use texts::{Known, Parsing};
use transaction::Block;

/// State of a session's transaction, as ReadyForQuery tells it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TransactionStatus {
    /// No transaction block.
    Idle,
    /// In a transaction block.
    InTransaction,
    /// In a failed transaction block.
    Failed,
}

/// A client's session.
#[derive(Debug)]
pub struct Session {
    engine: Arc<SqlEngine>,
    settings: Arc<Settings>,
    defaults: Arc<Settings>,
    cancel: CancelHandle,
    statement: u64,
    /// A commit is under way: what the client is told when it is not waited for.
    committing: Option<Box<Error>>,
    notices: Arc<NoticeQueue>,
    configured: Arc<settings::ConfigQueue>,
    sequences: Arc<SequenceSession>,
    /// Its place among its role's sessions on this node.
    slot: Option<crate::plan::cancel::ConnectionSlot>,
    block: Option<Block>,
    /// The end of the last index build that was stopped.
    ending: Arc<online::Ending>,
    /// Conflicts lost since the last commit: whoever lost most goes first for a row.
    lost: u32,
    /// The catalog the last statement used, to describe conflicts with.
    catalog: Option<Arc<CatalogSnapshot>>,
    label: Label,
    /// What the session has committed in another region and has not come here yet.
    owed: Option<(RegionId, Timestamp)>,
    /// What the statement under way is filled with from another region.
    source: Option<Arc<Source>>,
    /// Whether the text under way is a known one.
    texts: texts::Texts,
    /// Prepared statements by name.
    prepared: named::Statements,
    reported: BTreeMap<&'static str, String>,
    spending: crate::plan::cost::Spending,
    /// For the writes of the transaction under way, of what spend caps allow.
    set_aside: crate::plan::caps::SetAside,
    /// What its requests are asked of.
    capped: Option<Arc<crate::plan::caps::CapGuard>>,
    cursors: cursor::Cursors,
    live: Arc<crate::plan::SessionView>,
    shown: Arc<crate::plan::activity::Shown>,
    advisory: Arc<AdvisorySession>,
    channels: Arc<Channels>,
    deferred: Arc<Deferred>,
    /// Of `setseed`.
    random: Arc<crate::plan::seeded::SeededRandom>,
    /// The query string under way has several statements.
    several: bool,
    /// The statement under way came with an Execute: it is of one transaction with all up to the
    /// next Sync.
    pipelined: bool,
    /// Behind the statement that begins, its query string has one that writes.
    writes_follow: bool,
    /// A statement that may write has run, or a transaction that may write was committed, since the
    /// server asked last.
    wrote: bool,
    /// What is temporary; made when it is first asked for.
    temp: Option<Arc<crate::temp::TempStore>>,
    /// Who keeps records of what it does.
    audit: Option<Arc<dyn audit::Audit>>,
    /// It executes a statement of a session in another region, whose transaction began then.
    visits: Option<i64>,
    /// What other regions execute for it.
    places: places::OfSession,
    /// How much of its time the statement has spent that is gone on with now.
    spent: Duration,
}

impl Session {
    /// Runs the statements of a simple query one after the other; several together are one implicit
    /// transaction, as in PostgreSQL.
    ///
    /// # Errors
    /// The first error; later statements did not run.
    pub fn execute_simple<'a>(
        &'a mut self,
        sql: &'a str,
        sink: &'a mut dyn ResultSink,
    ) -> BoxFuture<'a, Result<()>> {
        self.spending.ends();
        async move {
            self.shows_query(sql);
            self.spending.starts(sql, &Booked::of(sql), &self.settings);
            let timer = self.spending.timer();
            let (done, took) = timer.run(pin!(self.execute_simple_inner(sql, sink))).await;
            self.spending.ran(took);
            self.counts_failure(&done);
            self.spent();
            self.shows_idle();
            done
        }
        .boxed()
    }

    async fn execute_simple_inner(&mut self, sql: &str, sink: &mut dyn ResultSink) -> Result<()> {
        self.writes_follow = false;
        self.pipelined = false;
        let again = match self.execute_if_known(sql, sink).await? {
            Known::Done => return self.sync_inner().await,
            Known::Again(cut) => Some(cut),
            Known::Nothing => None,
        };
        // What the text is charged for is held until all have run.
        let (parsed, _charged) = self.parse(sql).await?;
        if parsed.is_empty() {
            return sink.result(StatementResult::Empty).await;
        }
        if let Some(cut) = again
            && let Some((prepared, parameters)) = self.learn(sql, cut, &parsed).boxed().await?
            && self.execute_known(&prepared, parameters, sink).await?
        {
            return self.sync_inner().await;
        }
        let alone = parsed.len() == 1;
        self.several = !alone;
        let writes =
            |parsed: &parse::Parsed| parsed.statement.as_ref().is_some_and(|s| !only_reads(s));
        let last_write = parsed.iter().rposition(writes);
        for (at, parsed) in parsed.into_iter().enumerate() {
            self.writes_follow = last_write.is_some_and(|last| last > at);
            let prepared = Prepared::simple(parsed, sql);
            sink.begins();
            sink.binary(self.fetches_binary(&prepared));
            let slot = match self.audit {
                Some(_) => self.audits(&prepared, sql, alone).boxed().await?,
                None => None,
            };
            let result = if alone && self.block.is_none() {
                self.run_alone(&prepared, &[]).await
            } else {
                self.run(&prepared, Vec::new()).await
            };
            let result = audit::ended(slot, result).await?;
            let result = self.spending.counts(result);
            if self.several {
                // The statement before may have been SET.
                sink.settings(&self.settings);
            }
            if let Err(error) = sink.result(result).await {
                return Err(self.fail_told(error).boxed().await);
            }
        }
        self.sync_inner().await
    }

    /// The statements of a query string; parsing is bounded like a statement.
    async fn parse(&mut self, sql: &str) -> Result<(Vec<parse::Parsed>, Option<Reservation>)> {
        let (token, mut timer) = self.begin_statement();
        self.cancel.shared().set_computes(false);
        let ran = {
            let work = pin!(async {
                if tame::may_compute(sql) {
                    interrupt::computes().await;
                }
                let charged = weight::charge(&self.engine.memory, sql)?;
                Ok((parse::parse(sql)?, charged))
            });
            bounded(&mut timer, &token, work).await
        };
        let error = match ran {
            Ran::Done(Ok(parsed)) => return Ok(parsed),
            Ran::Done(Err(error)) | Ran::Stopped(error) => error,
        };
        self.fail();
        Err(error)
    }

    /// Parses and plans one statement.
    ///
    /// # Errors
    /// 42601 and the errors of planning; 25P02 in a failed transaction.
    pub fn prepare<'a>(
        &'a mut self,
        sql: &'a str,
        parameter_types: &'a [Option<SqlType>],
    ) -> BoxFuture<'a, Result<Arc<Prepared>>> {
        async move {
            self.shows_query(sql);
            self.spending.prepares();
            let timed = self.spending.timer();
            let settings = Arc::clone(&self.settings);
            let (token, mut timer) = self.begin_statement();
            self.cancel.shared().set_computes(false);
            let ran = {
                let work =
                    async { timed.run(pin!(self.prepare_inner(sql, parameter_types))).await.0 };
                let work = pin!(work);
                bounded(&mut timer, &token, work).await
            };
            match ran {
                Ran::Done(Ok(prepared)) => Ok(prepared),
                Ran::Done(Err(error)) => {
                    self.fail();
                    Err(error)
                }
                Ran::Stopped(error) => Err(self.stopped(error, settings)),
            }
        }
        .boxed()
    }

    async fn prepare_inner(
        &mut self,
        sql: &str,
        parameter_types: &[Option<SqlType>],
    ) -> Result<Arc<Prepared>> {
        self.configure().await?;
        let again = match self.prepare_if_known(sql, parameter_types).await {
            Parsing::Known(prepared) => return Ok(prepared),
            Parsing::Again(cut) => Some(cut),
            Parsing::Nothing => None,
        };
        if tame::may_compute(sql) {
            interrupt::computes().await;
        }
        let charged = weight::charge_with(&self.engine.memory, sql, parameter_types.len())?;
        let mut parsed = parse::parse(sql)?;
        if parsed.len() > 1 {
            return Err(Error::syntax("cannot insert multiple commands into a prepared statement"));
        }
        let parsed = parsed.pop().unwrap_or_else(parse::Parsed::nothing);
        let need = parsed.need;
        let types = ParameterTypes::new(parameter_types);
        let prepared = self.prepare_statement((sql.to_owned(), charged), parsed, types);
        let prepared =
            if need.is_small() { prepared.await } else { need.future(prepared.boxed()).await }?;
        if let Some(cut) = again {
            self.learn_parse(sql, cut, &prepared).boxed().await;
        }
        Ok(prepared)
    }

    /// Executes a prepared statement. Outside a transaction block this starts an implicit
    /// transaction which [`Session::sync`] commits.
    ///
    /// # Errors
    /// The statement's.
    pub fn execute<'a>(
        &'a mut self,
        prepared: &'a Arc<Prepared>,
        parameters: Vec<Datum>,
    ) -> BoxFuture<'a, Result<StatementResult>> {
        self.execute_inner(prepared, parameters).boxed()
    }

    async fn execute_inner(
        &mut self,
        prepared: &Arc<Prepared>,
        parameters: Vec<Datum>,
    ) -> Result<StatementResult> {
        if parameters.len() != prepared.parameter_types.len() {
            self.fail();
            return Err(Error::new(
                SqlState::PROTOCOL_VIOLATION,
                format!(
                    "bind message supplies {} parameters, but prepared statement requires {}",
                    parameters.len(),
                    prepared.parameter_types.len()
                ),
            ));
        }
        if self.block.as_ref().is_some_and(|block| block.explicit) {
            self.spending.ends();
        }
        self.writes_follow = false;
        self.several = false;
        self.pipelined = true;
        prepared.executes();
        self.shows_query(&prepared.sql);
        self.cancel.shared().set_computes(false);
        let booked = prepared.booked.get_or_init(|| Booked::of(&prepared.sql));
        self.spending.starts(&prepared.sql, booked, &self.settings);
        let slot = match self.audit {
            Some(_) => self.audits(prepared, &prepared.sql, true).boxed().await?,
            None => None,
        };
        let timer = self.spending.timer();
        let (result, took) = match &prepared.stands_for {
            Some(stands) => timer.run(pin!(self.run_standing(prepared, stands).boxed())).await,
            None => timer.run(pin!(self.run(prepared, parameters))).await,
        };
        let result = audit::ended(slot, result).await.map(|result| self.spending.counted(result));
        self.spending.ran(took);
        self.counts_failure(&result);
        result
    }

    /// Sync: commits the implicit transaction, if one is open.
    ///
    /// # Errors
    /// Those of the commit.
    pub fn sync(&mut self) -> BoxFuture<'_, Result<()>> {
        async {
            let result = self.sync_inner().await;
            self.counts_failure(&result);
            result
        }
        .boxed()
    }

    async fn sync_inner(&mut self) -> Result<()> {
        let result = match &self.block {
            Some(block) if !block.explicit => {
                let timer = self.spending.timer();
                timer.run(pin!(self.commit_bounded().boxed())).await.0
            }
            _ => self.configure().await,
        };
        self.pipelined = false;
        self.spending.ends();
        self.spending.went_on();
        self.spent();
        self.cancel.finish();
        self.shows_idle();
        result
    }

    /// Told by the server when it meets an error outside the session (a row stream, a COPY, a
    /// protocol error): rolls an implicit transaction back, puts an explicit one in the failed
    /// state.
    pub fn fail(&mut self) {
        self.configured.take();
        self.texts.fails();
        match &mut self.block {
            Some(block) if block.explicit => {
                block.failed = true;
                // Nothing of it can be committed any more, unless it goes back to a savepoint.
                if block.savepoints.is_empty() {
                    self.advisory.tables.release();
                }
            }
            Some(_) => self.abandon_block(),
            None => {}
        }
    }

    /// State of the transaction.
    #[must_use]
    pub fn transaction_status(&self) -> TransactionStatus {
        match &self.block {
            Some(block) if block.explicit && block.failed => TransactionStatus::Failed,
            Some(block) if block.explicit => TransactionStatus::InTransaction,
            _ => TransactionStatus::Idle,
        }
    }

    /// Whether anything since the last call was more than a read: an update, say, or the commit of
    /// one.
    pub fn take_wrote(&mut self) -> bool {
        std::mem::take(&mut self.wrote)
    }

    /// Cancels the running statement from elsewhere.
    #[must_use]
    pub fn cancel_handle(&self) -> CancelHandle {
        self.cancel.clone()
    }

    /// Takes the notices queued since the last call.
    #[must_use]
    pub fn take_notices(&self) -> Vec<Notice> {
        self.notices.take()
    }

    /// Takes the notifications that have come for this session since the last call. To be told to a
    /// client only outside of a transaction block, as PostgreSQL does.
    ///
    /// # Errors
    /// [`Lost`]: not all that it is owed could be kept; the client must be told, best by ending its
    /// session.
    pub fn take_notifications(&self) -> std::result::Result<Vec<Arc<Notification>>, Lost> {
        self.channels.take()
    }

    /// Whether the session listens to any channel.
    #[must_use]
    pub fn listens(&self) -> bool {
        self.channels.listens()
    }

    /// Waits until [`Session::take_notifications`] may have something. Can be dropped and called
    /// again.
    pub async fn notified(&self) {
        self.channels.woken().await;
    }

    /// The process id that the session shows, and that its notifications carry.
    pub fn set_backend_pid(&mut self, pid: i32) {
        let mut settings = (*self.settings).clone();
        settings.others.insert(settings::BACKEND_PID.to_owned(), pid.to_string());
        self.settings = Arc::new(settings);
        self.defaults = Arc::clone(&self.settings);
        self.spending.set_pid(pid);
        self.live.backends.enter(pid, self.cancel.clone(), Arc::clone(&self.shown));
    }

    /// The settings now.
    #[must_use]
    pub fn settings(&self) -> &Arc<Settings> {
        &self.settings
    }

    /// Reported parameters (ParameterStatus) that are new or changed since the last call.
    pub fn take_parameter_changes(&mut self) -> Vec<(String, String)> {
        let mut changes = Vec::new();
        for name in settings::REPORTED {
            let Ok(value) = self.settings.show(name) else { continue };
            if self.reported.get(name) != Some(&value) {
                self.reported.insert(name, value.clone());
                changes.push(((*name).to_owned(), value));
            }
        }
        changes
    }

    /// The greatest label seen, in the transaction under way too: what it has shown was shown,
    /// however it ends.
    #[must_use]
    pub fn label(&self) -> Label {
        let under_way = self.block.as_ref().and_then(|block| block.txn.as_ref());
        under_way.map_or(self.label, |txn| {
            self.label.max(Label::update(self.engine.database.region(), txn.snapshot()))
        })
    }

    /// Ends the session: rolls back what is open.
    pub fn close(&mut self) {
        self.abandon_block();
        self.cursors.clear();
        self.advisory.unlock_all();
        self.channels.leave();
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        self.abandon_block();
        let pid = crate::expr::functions::system::pid_in(&self.settings);
        self.live.backends.leave(pid, &self.cancel);
    }
}
