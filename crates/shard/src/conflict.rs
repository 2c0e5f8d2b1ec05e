//! Conflict checks: what changed since a snapshot.
//!
//! # Invariants
//! - From memory when the tail covers the snapshot and no settled write set meets what is asked,
//!   otherwise from the `C` rows of the checkpoint, which carry the newest commit timestamp of
//!   their key; delete marks stay as long as any snapshot may ask.
//! - What is spilled is asked like memory, and before the checkpoint.
//! - Nothing is missed: the tail is looked at before the checkpoint, and rows only move from the
//!   one to the other.

use std::sync::Arc;

use bytes::Bytes;
use telesto_bucket::Cause;
use telesto_common::Timestamp;
use telesto_common::key::KeyRange;

use crate::api::{Change, Read};
use crate::engine::ReadAhead;
use crate::error::{Error, Result};
use crate::row;
use crate::scan::stored_range;
use crate::shard::Shard;

impl Shard {
    /// Whether any of `keys` or any key in `ranges` was written by a commit after `since`; the
    /// first one found, without waiting, if memory covers `since`; `None` means "use
    /// [`changed_since`](Self::changed_since)".
    #[must_use]
    pub fn try_changed_since(
        &self,
        keys: &[Bytes],
        ranges: &[KeyRange],
        since: Timestamp,
    ) -> Option<Option<Change>> {
        let tail = self.tail.read();
        if since < tail.floor {
            return None;
        }
        if let Some(change) = tail.changed_inline(keys, ranges, since) {
            return Some(Some(change));
        }
        if !tail.remembers(since) {
            return None;
        }
        let external =
            tail.externals_since(since).iter().any(|external| external.may_hold_any(keys, ranges));
        (!external && !tail.settled_since(keys, ranges, since)).then_some(None)
    }

    /// Whether any of `keys` or any key in `ranges` was written by a commit after `since`: the
    /// first one found.
    ///
    /// # Errors
    /// [`crate::Error::SnapshotTooOld`] when `since` is older than what is kept (delete marks may
    /// be gone); otherwise as [`get`](Self::get).
    pub async fn changed_since(
        self: &Arc<Self>,
        keys: &[Bytes],
        ranges: &[KeyRange],
        since: Timestamp,
    ) -> Result<Option<Change>> {
        match self.look_for_change(keys, ranges, since).await {
            Err(Error::PartMissing { .. }) => {}
            found => return found,
        }
        self.look_past_missing_part().await?;
        self.look_for_change(keys, ranges, since).await
    }

    async fn look_for_change(
        self: &Arc<Self>,
        keys: &[Bytes],
        ranges: &[KeyRange],
        since: Timestamp,
    ) -> Result<Option<Change>> {
        if let Some(answer) = self.try_changed_since(keys, ranges, since) {
            return Ok(answer);
        }
        self.snapshots.check(since)?;
        let (covered, inline, externals, runs) = {
            let tail = self.tail.read();
            let inline = tail.changed_inline(keys, ranges, since);
            let covered = since >= tail.floor && !tail.settled_since(keys, ranges, since);
            (covered, inline, tail.externals_since(since), tail.runs_since(since))
        };
        if inline.is_some() {
            return Ok(inline);
        }
        if let Some(change) = self.changed_in_runs(runs, keys, ranges, since).await? {
            return Ok(Some(change));
        }
        for external in externals {
            let change = |key| Change { key, at: external.at, txn: external.txn };
            for key in keys {
                if external.look_up(Cause::Read, key).await?.write.is_some() {
                    return Ok(Some(change(key.clone())));
                }
            }
            for range in ranges {
                let mut rows = external.clone().scan(Cause::Read, range.clone(), false);
                if let Some(write) = rows.next().await? {
                    return Ok(Some(change(write.key)));
                }
            }
        }
        if covered {
            return Ok(None);
        }
        let newest = self.applied().1;
        for (key, read) in keys.iter().zip(self.get_many(keys, newest).await?) {
            if let Read::Found(version) = read
                && version.at > since
            {
                let key = key.clone();
                return Ok(Some(Change { key, at: version.at, txn: version.txn }));
            }
        }
        for range in ranges {
            if let Some(change) = self.changed_in_checkpoint(range, since).await? {
                return Ok(Some(change));
            }
        }
        self.snapshots.check(since)?;
        Ok(None)
    }

    async fn changed_in_checkpoint(
        &self,
        range: &KeyRange,
        since: Timestamp,
    ) -> Result<Option<Change>> {
        if range.is_empty() {
            return Ok(None);
        }
        let mut rest = stored_range(range);
        let mut reopens = 0;
        'view: loop {
            self.open_check()?;
            let base = self.base();
            let Some(view) = &base else { return Ok(None) };
            let mut rows = match view.scan(rest.clone(), false, ReadAhead::Long).await {
                Ok(rows) => rows,
                Err(fault) => {
                    self.recover(&base, fault, &mut reopens).await?;
                    continue;
                }
            };
            loop {
                let (key, stored) = match rows.next().await {
                    Ok(Some(row)) => row,
                    Ok(None) => return Ok(None),
                    Err(fault) => {
                        self.recover(&base, fault, &mut reopens).await?;
                        continue 'view;
                    }
                };
                let version = row::decode_newest(self.engine.path(), &stored)?;
                if version.at > since {
                    let key = Bytes::copy_from_slice(&key[1..]);
                    return Ok(Some(Change { key, at: version.at, txn: version.txn }));
                }
                rest.start = KeyRange::point(&key).end;
            }
        }
    }
}
