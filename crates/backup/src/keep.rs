//! Looking after backups: whether all that they name is there and whole, and removing old ones.
//!
//! # Invariants
//! - What a backup that stays needs is never deleted, nor what lies between two of them that stay.
//! - What is younger than a day and named by nothing may belong to a backup that is under way, and
//!   stays.
//!
//! - Removing ends after ten minutes, whatever is left: a backup that finds it under way waits for
//!   fifteen. (A process that stands still for five between its look at the clock and its request
//!   is not known of.)
//!
//! # On failure
//! Removing that was cut off leaves objects that the next one removes.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures::stream::{self, StreamExt as _, TryStreamExt as _};
use telesto_bucket::{Bucket, Cause};
use telesto_common::Env;
use telesto_log::stored::{chain_keys, entries_of, log_prefixes};

use crate::create::SHARD;
use crate::error::{Error, Result};
use crate::record::Copied;
use crate::repository::{PRUNED_BY, Progress, Readable, Repository, list};
use crate::restore::{check_between, check_log, read_copy};

/// How old an object is at least that is deleted.
const AGE: Duration = Duration::from_secs(24 * 3600);
/// Objects looked at, or deleted, at a time.
const AT_ONCE: usize = 4;

/// Reads everything that the backups name, and gives what is wrong.
///
/// # Errors
/// The bucket's; [`Error::NoBackups`].
pub async fn verify(
    env: &Env,
    repository: &Repository,
    copies: &Arc<dyn Bucket>,
    progress: &dyn Progress,
) -> Result<Vec<Error>> {
    let Readable { backups, damaged } = repository.readable().await?;
    if backups.is_empty() && damaged.is_empty() {
        return Err(Error::NoBackups { url: repository.url().to_owned() });
    }
    let named: BTreeMap<&str, &Copied> = backups
        .iter()
        .flat_map(|backup| backup.copied())
        .map(|copied| (copied.key.as_str(), copied))
        .collect();
    let looks = named.into_values().map(|copied| async move {
        let read = read_copy(repository, &copied.key, Some(copied)).await;
        progress.copied("objects", copied.bytes);
        match read {
            Err(error @ Error::Damaged { .. }) => Ok(Some(error)),
            other => other.map(|_| None),
        }
    });
    let looks: Vec<Option<Error>> =
        stream::iter(looks).buffer_unordered(AT_ONCE).try_collect().await?;
    let records = damaged.into_iter().map(|(_, error)| error);
    let mut wrong: Vec<Error> = records.chain(looks.into_iter().flatten()).collect();
    // Versions of the chain are in no record: all of them up to the newest are needed.
    let versions = backups.last().map_or(0, |newest| newest.chain_version);
    for key in chain_keys(SHARD, versions) {
        match read_copy(repository, &key, None).await {
            Ok(_) => progress.copied("chain", 0),
            Err(error @ Error::Damaged { .. }) => wrong.push(error),
            Err(error) => return Err(error),
        }
    }
    let mut before = None;
    for backup in &backups {
        let checked = async {
            check_log(env, copies, backup).await?;
            match before {
                Some(before) => check_between(env, copies, before, backup).await,
                None => Ok(()),
            }
        };
        match checked.await {
            Ok(()) => progress.copied("logs", 0),
            Err(
                error @ (Error::Bucket(_)
                | Error::Limit(_)
                | Error::Log(telesto_log::Error::Unavailable { .. })),
            ) => return Err(error),
            Err(error) => wrong.push(error),
        }
        before = Some(backup);
    }
    Ok(wrong)
}

/// What was removed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Removed {
    /// Backups.
    pub backups: usize,
    /// Objects that no backup needs any more.
    pub objects: usize,
}

/// Removes all backups but the newest `keep`, and what none of those needs. A record among those
/// that stay which cannot be read is an error: what it names is not known.
///
/// # Errors
/// The bucket's; [`Error::Damaged`], [`Error::Pruning`].
pub async fn prune(env: &Env, repository: &Repository, keep: usize) -> Result<Removed> {
    let mark = repository.begin_pruning(env).await?;
    let removed = prune_now(env, repository, keep).await;
    repository.end_pruning(&mark).await?;
    removed
}

async fn prune_now(env: &Env, repository: &Repository, keep: usize) -> Result<Removed> {
    // Nothing is removed any more well before others take this one for gone.
    let by = env.deadline(PRUNED_BY * 2 / 3);
    let records = repository.keys().await?;
    let gone = records.len().saturating_sub(keep.max(1));
    for (number, _) in &records[..gone] {
        repository.forget(*number).await?;
    }
    let backups = repository.backups().await?;
    let Some(oldest) = backups.first() else { return Ok(Removed::default()) };
    let needed: BTreeMap<&str, ()> =
        backups.iter().flat_map(|backup| backup.copied()).map(|c| (c.key.as_str(), ())).collect();
    let old =
        env.clock.wall_micros().saturating_sub(u64::try_from(AGE.as_micros()).unwrap_or(u64::MAX));
    let mut unneeded = Vec::new();
    let places = ["checkpoint", "parts"].map(|place| format!("shards/{SHARD}/{place}"));
    // Keys of tables that were dropped before the oldest backup: rows written with them are not to
    // be read any more.
    for place in places.into_iter().chain(["keyring/tables".to_owned()]) {
        let there = list(repository.objects.as_ref(), &place).await?;
        unneeded.extend(there.into_iter().filter(|(key, _)| !needed.contains_key(key.as_str())));
    }
    for prefix in log_prefixes(SHARD) {
        let there = list(repository.objects.as_ref(), &prefix).await?;
        let below = |key: &str| entries_of(key).is_some_and(|(_, last)| last.0 <= oldest.reaches);
        unneeded.extend(there.into_iter().filter(|(key, _)| below(key)));
    }
    let unneeded = unneeded.into_iter().filter(|(_, at)| *at < old).map(|(key, _)| key);
    let deletes = unneeded.map(|key| async move {
        if by.passed(env.clock.monotonic()) {
            return Ok::<_, Error>(0);
        }
        repository.objects.delete(Cause::Gc, &key).await?;
        Ok(1)
    });
    let deleted = stream::iter(deletes).buffer_unordered(AT_ONCE);
    let objects = deleted.try_fold(0, |sum, one| async move { Ok(sum + one) }).await?;
    Ok(Removed { backups: gone, objects })
}
