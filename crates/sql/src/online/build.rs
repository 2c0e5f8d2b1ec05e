//! Driving an index build: batches, taking over, ending.
//!
//! # Invariants
//! See [`super`]; of batches, [`super::fill`].

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use telesto_common::key::KeyRange;
use telesto_common::{Label, TableId};
use telesto_txn::{Level, ScanOptions, TxnOptions};
use tokio::sync::oneshot;

use super::fill::Pace;
use super::regional::{Heard, keep, said, say};
use super::{LEASE, LOOK, is_scarce};
use crate::catalog::build_record::{BuildRecord, Command, forget_record};
use crate::catalog::regional_builds::{Failure, Task, Word};
use crate::catalog::store::DEFAULT_DATABASE_ID;
use crate::catalog::{BuildState, Table};
use crate::codec;
use crate::ddl;
use crate::error::{Error, Result, SqlState};
use crate::plan::ExecContext;
use crate::session::SqlEngine;

/// Rows read at a time while they are counted.
const READ: usize = 4096;
/// Rows counted between two beats.
const COUNTED: usize = 50_000;
/// Tries to end a build that failed.
const ENDINGS: u32 = 100;

/// How a build ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// Queries use the index.
    Whole,
    /// It is left behind as invalid.
    Invalid,
    /// There is no such index any more.
    Gone,
}

/// What one transaction of a build came to.
enum Turn {
    Again,
    /// Another driver has it.
    Wait,
    /// Other regions have not done their parts yet.
    Others,
    Done(End),
}

/// A driver's beat and since when it is the same.
#[derive(Clone, Copy, Debug)]
struct Watched {
    holder: u128,
    beat: u64,
    since: Duration,
}

/// The beats of other drivers.
#[derive(Debug, Default)]
pub(crate) struct Watch(Mutex<BTreeMap<(u32, u32), Watched>>);

impl Watch {
    /// Whether the record's driver has been still for long enough to be taken for dead.
    fn is_dead(&self, at: (u32, u32), record: &BuildRecord, now: Duration) -> bool {
        let mut watched = self.0.lock();
        let fresh = Watched { holder: record.holder, beat: record.beat, since: now };
        let seen = watched.entry(at).or_insert(fresh);
        if (seen.holder, seen.beat) != (record.holder, record.beat) {
            *seen = fresh;
        }
        now.saturating_sub(seen.since) >= LEASE
    }
}

/// Drives builds for a session, or for the process.
pub(crate) struct Builder {
    engine: Arc<SqlEngine>,
    /// All but transaction and catalog.
    template: ExecContext,
    holder: u128,
    watch: Arc<Watch>,
    /// What other regions have said last.
    pub(super) heard: Heard,
    label: Mutex<Label>,
}

impl Builder {
    pub(crate) fn new(engine: &Arc<SqlEngine>, template: ExecContext) -> Self {
        let holder = template.env.random_u128();
        let label = template.txn.options().session;
        Self {
            engine: Arc::clone(engine),
            template,
            holder,
            watch: Arc::clone(&engine.upkeep.watch),
            heard: Heard::default(),
            label: Mutex::new(label),
        }
    }

    /// The greatest label of what it committed.
    pub(crate) fn label(&self) -> Label {
        *self.label.lock()
    }

    /// A context with a transaction of its own.
    pub(crate) async fn begin(&self) -> Result<ExecContext> {
        let options = TxnOptions {
            // Rows read for queries are not validated, and claims are possible.
            level: Level::ReadCommitted,
            durability: self.template.settings.durability,
            session: self.label(),
            fail_early: true,
            ..TxnOptions::default()
        };
        let mut context = self.template.clone();
        context.txn = self.template.database.begin(options).await?;
        context.catalog = self.engine.catalogs.read(&context.txn, DEFAULT_DATABASE_ID).await?;
        Ok(context)
    }

    /// Commits if `result` is well; an error is told only if what it rests on holds.
    pub(crate) async fn end<T>(&self, context: &ExecContext, result: Result<T>) -> Result<T> {
        match result {
            Ok(value) => {
                context.advisory.fence(&context.txn).await?;
                let committed = context.txn.commit().await?;
                let mut label = self.label.lock();
                *label = label.max(committed.label);
                Ok(value)
            }
            Err(error) => {
                let confirmed = context.txn.confirm().await;
                context.txn.rollback();
                if error.conflict().is_none() {
                    confirmed?
                }
                Err(error)
            }
        }
    }

    pub(crate) async fn pause(&self, bound: Duration) {
        let env = &self.template.env;
        env.clock.sleep(env.jitter(bound)).await;
    }

    /// A record for a build that this driver begins.
    pub(crate) fn record(&self, command: Command, table: &Table) -> BuildRecord {
        let pid = crate::expr::functions::system::pid_in(&self.template.settings);
        BuildRecord::new(command, table.storage, self.holder, pid)
    }

    /// Does what is left of a build, or waits for who drives it.
    ///
    /// # Errors
    /// 23505 and whatever else makes the build fail, the index still being filled; 57014.
    pub(crate) async fn drive(&self, table: TableId, index: u32) -> Result<End> {
        let mut pace = Pace::first();
        let mut tries = 0_u32;
        loop {
            self.template.check_cancelled()?;
            let begun = self.template.env.clock.monotonic();
            match self.turn(table, index, &mut pace).await {
                Ok(Turn::Again) => {
                    pace.went_well(self.template.env.clock.monotonic().saturating_sub(begun));
                    tries = 0;
                }
                Ok(Turn::Wait | Turn::Others) => self.pause(LOOK).await,
                Ok(Turn::Done(end)) => return Ok(end),
                // Nothing of the batch is there, or all of it and the record says so.
                Err(error)
                    if error.conflict().is_some()
                        || error.code() == SqlState::TRANSACTION_RESOLUTION_UNKNOWN =>
                {
                    pace.met_others();
                    tries = (tries + 1).min(6);
                    self.pause(Duration::from_micros(500 << tries)).await;
                }
                Err(error) if is_scarce(&error) && pace.shrink() => {
                    tracing::info!(table = table.0, index, %error, "going on in small batches");
                    self.pause(LOOK).await;
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Takes a build over whose driver is dead and drives it to its end, for the process. False:
    /// its driver lives.
    ///
    /// # Errors
    /// Those of the database; the build is left as it is.
    pub(crate) async fn rescue(&self, table: TableId, index: u32) -> Result<bool> {
        let mut pace = Pace::least();
        if matches!(self.turn(table, index, &mut pace).await?, Turn::Wait) {
            return Ok(false);
        }
        tracing::info!(table = table.0, index, "going on with the build of an index");
        match self.drive(table, index).await {
            Ok(_) => Ok(true),
            Err(error) if is_passing(&error) => Err(error),
            Err(error) => {
                let detail = error.fields().detail.as_deref();
                tracing::warn!(table = table.0, index, %error, detail, "the build of an index failed");
                if !self.template.catalog.defines() {
                    let why = |table: &Table| Failure::of(&error, table, index);
                    return self.say_failed(table, index, why).await.map(|()| true);
                }
                self.fail(table, index).await.map(|()| true)
            }
        }
    }

    /// One transaction.
    async fn turn(&self, table: TableId, index: u32, pace: &mut Pace) -> Result<Turn> {
        let context = self.begin().await?;
        let result = self.turn_in(&context, table, index, pace).await;
        if let Ok(Turn::Wait | Turn::Done(End::Gone | End::Invalid)) = result {
            context.txn.rollback();
            return result;
        }
        self.end(&context, result).await
    }

    async fn turn_in(
        &self,
        context: &ExecContext,
        id: TableId,
        index: u32,
        pace: &mut Pace,
    ) -> Result<Turn> {
        let Some(table) = context.catalog.table(id) else { return Ok(Turn::Done(End::Gone)) };
        match table.build(index).map(|build| build.state) {
            Some(BuildState::Filling) => {}
            Some(BuildState::Invalid) => return Ok(Turn::Done(End::Invalid)),
            None if table.index(index).is_some() => return Ok(Turn::Done(End::Whole)),
            None => return Ok(Turn::Done(End::Gone)),
        }
        let txn = context.txn.as_ref();
        let database = context.catalog.database;
        if let Some(end) = self.has_ended(context, id, index).await? {
            return Ok(Turn::Done(end));
        }
        let mut record = match BuildRecord::read(txn, database, id, index).await? {
            Some(record) => record,
            None if !context.catalog.defines() => {
                let record = self.record(Command::Create, table);
                keep(context, &record, id, index).await?;
                return Ok(Turn::Again);
            }
            None => return Err(Error::corrupt("an index is being filled that has no record")),
        };
        if record.holder != self.holder {
            let now = context.env.clock.monotonic();
            if !self.watch.is_dead((id.0, index), &record, now) {
                return Ok(Turn::Wait);
            }
            record.holder = self.holder;
            record.pid = crate::expr::functions::system::pid_in(&context.settings);
            record.beat += 1;
            record.write(txn, database, id, index).await?;
            return Ok(Turn::Again);
        }
        record.beat += 1;
        // Rows that were moved were put by writers that keep the index up.
        let moved = record.storage != table.storage.0;
        let fills = !moved && context.catalog.fillers(table).contains(&context.catalog.me());
        if fills && self.measure(context, table, &mut record).await? {
            keep(context, &record, id, index).await?;
            return Ok(Turn::Again);
        }
        if !fills || record.cursor >= record.last {
            return self.end_part(context, table, index, &record).await;
        }
        self.batch(context, table, index, &mut record, pace).await?;
        keep(context, &record, id, index).await?;
        Ok(Turn::Again)
    }

    /// Whether this region has done its part, or has failed to: a row of another region that comes
    /// meanwhile may say so.
    ///
    /// # Errors
    /// What it has failed with, in the region that drives the build.
    async fn has_ended(
        &self,
        context: &ExecContext,
        table: TableId,
        index: u32,
    ) -> Result<Option<End>> {
        let catalog = &context.catalog;
        if !catalog.is_regional() {
            return Ok(None);
        }
        let word = said(context, Task::Fill(table, index)).await?;
        match word {
            Some(Word::Failed(failure)) if catalog.defines() => {
                Err(failure.into_error(&catalog.region_name(catalog.me().0)))
            }
            Some(Word::Done | Word::Failed(_)) if !catalog.defines() => {
                forget_record(context.txn.as_ref(), catalog.database, table, index).await?;
                Ok(Some(End::Whole))
            }
            _ => Ok(None),
        }
    }

    /// All entries that are this region's to put are there.
    async fn end_part(
        &self,
        context: &ExecContext,
        table: &Arc<Table>,
        index: u32,
        record: &BuildRecord,
    ) -> Result<Turn> {
        let (txn, database) = (context.txn.as_ref(), context.catalog.database);
        if !context.catalog.defines() {
            say(context, Task::Fill(table.id, index), &Word::Done).await?;
        } else if self.others_have_filled(context, table, index).await? {
            ddl::online::finish(context, &self.engine.catalogs, table.id, index).await?;
        } else {
            record.write(txn, database, table.id, index).await?;
            return Ok(Turn::Others);
        }
        forget_record(txn, database, table.id, index).await?;
        Ok(Turn::Done(End::Whole))
    }

    /// Finds the last row there is, then counts rows and bytes, a piece at a time; false: that is
    /// done.
    async fn measure(
        &self,
        context: &ExecContext,
        table: &Table,
        record: &mut BuildRecord,
    ) -> Result<bool> {
        let range = codec::table_range(context.catalog.database, table, 0);
        if record.last.is_empty() {
            let options = ScanOptions { reverse: true, limit: Some(1), ..ScanOptions::default() };
            let last = context.txn.scan(range, options).next_batch(1).await?.pop();
            record.last = last.map(|(key, _)| key.to_vec()).unwrap_or_default();
            return Ok(!record.last.is_empty());
        }
        if record.counted >= record.last {
            return Ok(false);
        }
        let start = match record.counted.as_slice() {
            [] => range.start,
            counted => KeyRange::point(counted).end,
        };
        let range = KeyRange::new(start, KeyRange::point(&record.last).end);
        let mut scan = context.txn.scan(range, ScanOptions::default());
        let mut counted = 0;
        while counted < COUNTED {
            context.check_cancelled()?;
            let batch = scan.next_batch(READ).await?;
            let Some((last, _)) = batch.last() else {
                record.counted.clone_from(&record.last);
                break;
            };
            record.counted = last.to_vec();
            counted += batch.len();
            let bytes = batch.iter().map(|(key, value)| (key.len() + value.len()) as u64);
            record.bytes_total += bytes.sum::<u64>();
        }
        record.rows_total += counted as u64;
        Ok(true)
    }

    /// Ends a build that failed: the index goes, or stays behind as invalid, as the record says. A
    /// build that another drives is left alone.
    ///
    /// # Errors
    /// Those of the database: the build is left as it is, and will be taken over.
    pub(crate) async fn fail(&self, table: TableId, index: u32) -> Result<()> {
        let mut tries = 0;
        loop {
            let context = self.begin().await?;
            let (catalogs, build) = (&self.engine.catalogs, (table, index));
            let result = ddl::online::abandon(&context, catalogs, build, self.holder).await;
            if let Ok(false) = result {
                context.txn.rollback();
                return Ok(());
            }
            match self.end(&context, result).await {
                Err(error) if error.conflict().is_some() && tries < ENDINGS => {
                    tries += 1;
                    self.pause(Duration::from_millis(10)).await;
                }
                other => return other.map(drop),
            }
        }
    }

    /// [`Builder::fail`] in the background: who drove the build is gone, or the bucket was away.
    pub(crate) fn fail_later(
        self: Arc<Self>,
        table: TableId,
        index: u32,
        done: oneshot::Sender<()>,
    ) {
        let env = self.template.env.clone();
        env.spawn("failed index build", async move {
            while let Err(error) = self.fail(table, index).await {
                if error.code() == SqlState::ADMIN_SHUTDOWN {
                    return;
                }
                tracing::warn!(table = table.0, index, %error, "cannot end a failed index build yet");
                self.pause(LOOK).await;
            }
            // Whoever waited may be gone.
            let _ = done.send(());
        });
    }
}

/// Whether it says nothing of the build itself.
fn is_passing(error: &Error) -> bool {
    matches!(
        error.code(),
        SqlState::CANNOT_CONNECT_NOW
            | SqlState::ADMIN_SHUTDOWN
            | SqlState::OUT_OF_MEMORY
            | SqlState::DISK_FULL
            | SqlState::TRANSACTION_RESOLUTION_UNKNOWN
            | SqlState::SERIALIZATION_FAILURE
    )
}
