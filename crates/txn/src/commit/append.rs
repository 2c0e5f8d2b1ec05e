//! Appending a group's entry, until it is known what became of it.
//!
//! # On failure
//! - Slot taken: it is told whose it is by the transactions in it, never assumed.
//! - Unknown outcome: the same records are appended again in the same slot. `Committed` means the
//!   first attempt is lost for ever and the second one counts; `Taken` by an entry that holds a
//!   commit of ours means it was there. Still unknown at the deadline: [`Failed::Unknown`].

use std::sync::Arc;
use std::time::Duration;

use telesto_common::{Deadline, Lsn};
use telesto_log::{Append, Error as LogError, Result as LogResult};

use super::causes::Causes;
use super::committer::{Committer, Group, stage};
use super::records::records;
use super::validate::Validated;
use crate::error::Error;

/// First pause before an append of unknown outcome is tried again.
const RETRY_PAUSE: Duration = Duration::from_millis(20);

/// What an append attempt led to.
pub(super) enum Attempt {
    /// The survivors are in the entry at this position, which is applied.
    Committed(Lsn),
    /// Another entry stands in the slot; it has been applied.
    Lost,
}

/// Why an append attempt failed.
pub(super) enum Failed {
    /// Nothing was appended.
    Certain(Error),
    /// The slot and why nobody knows.
    Unknown(Lsn, String),
    /// The process slept past the retention; the shard was reopened.
    Reopened(Lsn, Error),
}

impl Committer {
    /// Appends what was validated. `begun`: what became of a first attempt.
    pub(super) async fn append(
        &mut self,
        group: &Group,
        validated: &Validated,
        mut begun: Option<LogResult<Append>>,
    ) -> std::result::Result<Attempt, Failed> {
        let local = Arc::clone(&self.local);
        let (env, by) = (&local.env, group.by);
        let Validated { at, survivors, made, .. } = validated;
        let at = *at;
        // All attempts of this group carry the same transactions. One alone proves nothing: it may
        // have been asked for again, and stand there by an earlier group whose append was left
        // unknown.
        let own: Vec<_> = survivors.iter().map(|(at, _)| group.live[*at].request.txn).collect();
        // Whether an attempt may have got through.
        let mut doubtful = false;
        let mut causes = Causes::default();
        let mut pause = RETRY_PAUSE;
        loop {
            let started = env.clock.monotonic();
            let appended = match begun.take() {
                Some(begun) => begun,
                None => match local.hash_before(at, by).await {
                    Ok(hash) => {
                        let records = records(&local, &group.live, survivors, made);
                        local.log.append(at, hash, records, by).await
                    }
                    // Nothing was appended by this attempt.
                    Err(error @ LogError::Trimmed { .. }) if !doubtful => {
                        return Err(Failed::Certain(error.into()));
                    }
                    Err(error) => Err(error),
                },
            };
            let took = env.clock.monotonic().saturating_sub(started);
            match appended {
                Ok(Append::Committed(entry)) => {
                    self.appended_in(took);
                    return match local.apply(&entry) {
                        Ok(()) => Ok(Attempt::Committed(entry.lsn)),
                        // Committed, but this process cannot go on from here by itself.
                        Err(error) => Err(Failed::Unknown(at, error.to_string())),
                    };
                }
                Err(error @ LogError::NotOwner { .. })
                    if !doubtful || local.log.goes_on_elsewhere_by(at) =>
                {
                    // No attempt has reached the loglet that ended.
                    return Err(Failed::Certain(error.into()));
                }
                Ok(Append::Taken { .. }) | Err(LogError::NotOwner { .. }) => {
                    match local.taken_by(at, &own, by).await {
                        Ok(true) => {
                            metrics::counter!("telesto_txn_own_slots_taken_total").increment(1);
                            return Ok(Attempt::Committed(at));
                        }
                        Ok(false) => return Ok(Attempt::Lost),
                        Err(error) if local.log.start() > at => {
                            return Err(self.reopened(at, error, by).await);
                        }
                        Err(error) => {
                            // It may be ours that is there.
                            doubtful = true;
                            causes.add(error.to_string());
                            if by.passed(env.clock.monotonic()) {
                                return Err(Failed::Unknown(at, causes.text()));
                            }
                        }
                    }
                }
                Err(error @ LogError::Trimmed { .. }) => {
                    return Err(self.reopened(at, error.into(), by).await);
                }
                Err(LogError::Indeterminate { reason, .. }) => {
                    metrics::counter!("telesto_txn_appends_indeterminate_total").increment(1);
                    doubtful = true;
                    causes.add(reason);
                    if by.passed(env.clock.monotonic() + pause) {
                        return Err(Failed::Unknown(at, causes.text()));
                    }
                }
                Err(error) if !doubtful => return Err(Failed::Certain(error.into())),
                Err(error) => {
                    causes.add(error.to_string());
                    if by.passed(env.clock.monotonic() + pause) {
                        return Err(Failed::Unknown(at, causes.text()));
                    }
                }
            }
            env.clock.sleep(pause + env.jitter(pause)).await;
            pause = (pause * 2).min(Duration::from_secs(1));
        }
    }

    /// An entry was appended, and it took so long.
    pub(super) fn appended_in(&mut self, took: Duration) {
        stage("quorum", took);
        metrics::histogram!("telesto_txn_append_seconds").record(took.as_secs_f64());
        self.append_takes = (self.append_takes * 7 + took) / 8;
        self.won_last = true;
    }

    /// The log was trimmed past the slot `at` of an append.
    async fn reopened(&self, at: Lsn, error: Error, by: Deadline) -> Failed {
        match self.local.reopen(by).await {
            Ok(()) => Failed::Reopened(at, error),
            Err(reopening) => Failed::Unknown(at, reopening.to_string()),
        }
    }
}
