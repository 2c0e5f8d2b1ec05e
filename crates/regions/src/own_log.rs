//! What this region's own log and rows tell: folds, the rules at a position, what was deleted.
//!
//! # Invariants
//! What is told of a position depends on the log up to there only.
//!
//! # On failure
//! The log's errors; nothing is kept. A part of a large write set that is there no more is passed
//! over, as an entry is that the log has no more: both are kept for the retention, as marks of
//! deletes are.
//!
//! # Limits
//! Deleted keys are in memory, all of those that are asked for.

use std::collections::BTreeSet;
use std::sync::Arc;

use bytes::Bytes;
use telesto_bucket::Cause;
use telesto_common::key::KeyRange;
use telesto_common::{Deadline, Lsn, Timestamp};
use telesto_log::record::{Part, Record, Writes};
use telesto_shard::Read;
use telesto_shard::part::PartReader;
use telesto_txn::service::Freshness;

use crate::error::{Error, Result};
use crate::fold::{Fold, rules_of};
use crate::rows;
use crate::shared::Shared;
use crate::wire::Position;
use telesto_geo::placement::Rules;

/// Bytes of log read at a time, when all of it is looked through for deletes.
const READ_BYTES: usize = 4 << 20;

impl Shared {
    pub(crate) fn fold(&self, position: Position, rules: Rules) -> Fold {
        let parts = self.parts.clone();
        Fold { me: self.config.me, shard: self.store.shard, position, rules, parts }
    }

    /// The rules that hold at a position.
    pub(crate) async fn rules_at(&self, position: &Position) -> Result<Rules> {
        let store = &self.store;
        let snapshot = store.begin(Freshness::Tail, None).await?;
        let read = store.get(vec![rows::placement()], snapshot.snapshot).await;
        store.release(&snapshot).await;
        match read?.pop() {
            Some(Read::Found(version)) if version.at <= position.at => rules_of(version.value),
            Some(Read::Found(_)) => {
                // Nothing was committed between the position and the next commit, whose time is
                // surely readable still.
                let at = self.next_commit(position.lsn).await?.prev();
                rules_of(store.row(rows::placement(), Some(at)).await?)
            }
            _ => Ok(Rules::default()),
        }
    }

    /// The time of the first commit in the log after an entry.
    async fn next_commit(&self, after: Lsn) -> Result<Timestamp> {
        let mut from = after.next();
        loop {
            let by = self.env.deadline(self.config.timeout);
            let batch = self.engine.log().read(from, 64 << 10, Cause::Read, by).await?;
            let mut records = batch.entries.iter().flat_map(|e| e.records_of(self.store.shard));
            let commit = records.find_map(|record| match record {
                Record::Commit(commit) => Some(commit.timestamp),
                _ => None,
            });
            if let Some(at) = commit {
                return Ok(at);
            }
            if batch.at_tail {
                // A row is newer than the position, so its commit is in the log.
                return Err(Error::Config("the log ends before a row that it holds; retry".into()));
            }
            from = batch.next(from);
        }
    }

    /// Takes a fold to the log's tail as of a moment inside this call; no elements are made.
    pub(crate) async fn run_to_tail(&self, fold: &mut Fold) -> Result<()> {
        loop {
            let by = self.env.deadline(self.config.timeout);
            let from = fold.position.lsn.next();
            let batch = self.engine.log().read(from, 1 << 20, Cause::Read, by).await?;
            for entry in &batch.entries {
                fold.entry(entry, None).await?;
            }
            if batch.at_tail {
                return Ok(());
            }
        }
    }

    /// A fold at the log's tail as it is now.
    pub(crate) async fn fold_at_tail(&self) -> Result<Fold> {
        let base = self.store.row(rows::base(), None).await?.ok_or_else(|| {
            Error::Config("this region has not begun to keep its position; retry".to_owned())
        })?;
        let base = Position::decode(base).map_err(Error::malformed("a stored position"))?;
        let rules = self.rules_at(&base).await?;
        let mut fold = self.fold(base, rules);
        self.run_to_tail(&mut fold).await?;
        Ok(fold)
    }

    /// Keys of `ranges` that the log up to `through` deletes: their marks must go where their rows
    /// would.
    pub(crate) async fn deleted(&self, ranges: &[KeyRange], through: Lsn) -> Result<Vec<Bytes>> {
        let from = self.engine.log().start();
        Ok(self.deleted_between(ranges, (from, through), READ_BYTES, None).await?.0)
    }

    /// Keys of `ranges` that a stretch of the log deletes, in order: from `from` on, not beyond
    /// `through`, and where a time is said as far as is read by then, so many bytes at a time. With
    /// the end of the stretch.
    pub(crate) async fn deleted_between(
        &self,
        ranges: &[KeyRange],
        (mut from, through): (Lsn, Lsn),
        bytes: usize,
        until: Option<Deadline>,
    ) -> Result<(Vec<Bytes>, Lsn)> {
        let mut keys = BTreeSet::new();
        let log = self.engine.log();
        while from <= through {
            let by = self.env.deadline(self.config.timeout);
            let batch = match log.read(from, bytes, Cause::Read, by).await {
                Ok(batch) => batch,
                Err(telesto_log::Error::Trimmed { .. }) if log.start() > from => {
                    from = log.start();
                    continue;
                }
                Err(error) => return Err(error.into()),
            };
            let next = batch.next(from);
            let within = batch.entries.iter().filter(|entry| entry.lsn <= through);
            for record in within.flat_map(|entry| entry.records_of(self.store.shard)) {
                let Record::Commit(commit) = record else { continue };
                match &commit.writes {
                    Writes::Inline(writes) => {
                        let gone = writes.iter().filter(|write| write.value.is_none());
                        let placed =
                            gone.filter(|write| ranges.iter().any(|r| r.contains(&write.key)));
                        keys.extend(placed.map(|write| write.key.clone()));
                    }
                    Writes::External(parts) => {
                        for part in parts {
                            self.deleted_in(part, ranges, &mut keys).await?;
                        }
                    }
                }
            }
            if batch.at_tail {
                return Ok((keys.into_iter().collect(), through));
            }
            from = next;
            if until.is_some_and(|until| until.passed(self.env.clock.monotonic())) {
                break;
            }
        }
        Ok((keys.into_iter().collect(), from.prev().min(through)))
    }

    /// The same of a part of a large write set.
    async fn deleted_in(
        &self,
        part: &Part,
        ranges: &[KeyRange],
        keys: &mut BTreeSet<Bytes>,
    ) -> Result<()> {
        let (bucket, cache) = (Arc::clone(&self.parts.bucket), Arc::clone(&self.parts.cache));
        let reader = Arc::new(PartReader::new(bucket, cache, part.clone()));
        let reaches = |range: &&KeyRange| {
            range.start <= part.last_key && (range.end.is_empty() || range.end > part.first_key)
        };
        for range in ranges.iter().filter(reaches) {
            let mut scan = Arc::clone(&reader).scan(Cause::Read, range.clone(), false);
            loop {
                match scan.next().await {
                    Ok(Some(write)) if write.value.is_none() => {
                        keys.insert(write.key);
                    }
                    Ok(Some(_)) => {}
                    Ok(None) => break,
                    Err(telesto_shard::Error::PartMissing { .. }) => return Ok(()),
                    Err(error) => return Err(Error::Shard(error.to_string())),
                }
            }
        }
        Ok(())
    }
}
