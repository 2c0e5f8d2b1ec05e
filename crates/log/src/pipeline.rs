//! Appends that are begun while earlier ones are still on their way to the log servers.
//!
//! ```text
//! begin(n) ─► in order ─► under way ───────────────────────► committed(n)
//! begin(n+1) ───► in order ─► under way ──────────────────────► committed(n+1)     never before n
//! ```
//! # Invariants
//! - What is under way is committed in the order in which it was begun: when one is not, none
//!   behind it is, either, as an entry of this process.
//! - Whoever begins at `n + 1` has not applied `n` yet. It knows what `n` holds, because it has
//!   begun it, and its hash.
//!
//! # On failure
//! [`Error::Indeterminate`] for all that are under way: the first of them is settled by
//! [`VirtualLog::append`] at its position, and only when that says that the position is its own may
//! the next one be settled.
//!
//! # Limits
//! Only the owner of a log with several log servers begins appends; see [`Begun::NotNow`].

use std::time::Duration;

use telesto_common::{Deadline, Lsn};

use crate::contact::Moment;
#[cfg(doc)]
use crate::error::Error;
use crate::error::Result;
use crate::log::VirtualLog;
use crate::options::Append;
use crate::quorum::{Ordered, UnderWay};
use crate::record::Record;

/// What became of an append that was to be begun.
#[derive(Debug)]
pub enum Begun {
    /// The entry is in order behind all others.
    UnderWay(AppendUnderWay),
    /// Nothing was begun: the log is in the bucket, or kept by this process's own log server alone,
    /// this process does not own it, its sequencer has stopped, or another entry is there.
    /// [`VirtualLog::append`] does what is to be done then. The records come back, unless another
    /// entry is there.
    NotNow(Option<Vec<Record>>),
}

/// An append on its way. When it is dropped the entry is committed all the same, or is not.
#[derive(Debug)]
pub struct AppendUnderWay {
    log: VirtualLog,
    under_way: UnderWay,
    since: Moment,
    started: Duration,
}

impl VirtualLog {
    /// Whether the next append can be begun while others are under way: this process owns a log
    /// with several log servers.
    #[must_use]
    pub fn is_pipelined(&self) -> bool {
        let role = self.inner.state.lock().role.clone();
        role.owner().is_some_and(|sequencer| sequencer.is_pipelined())
    }

    /// First position that is not committed yet, as the sequencer of this process knows it; `None`
    /// when it has none. What lies below it, other nodes may show already.
    #[must_use]
    pub fn committed(&self) -> Option<Lsn> {
        self.inner.sequencer().map(|sequencer| sequencer.next())
    }

    /// Begins to append one entry at exactly `at`, as [`VirtualLog::append`]: `previous_hash` is
    /// that of the entry before, which may be under way still ([`AppendUnderWay::hash`]).
    ///
    /// # Errors
    /// Nothing was appended.
    pub async fn begin_append(
        &self,
        at: Lsn,
        previous_hash: [u8; 16],
        records: Vec<Record>,
        by: Deadline,
    ) -> Result<Begun> {
        let inner = &self.inner;
        let (since, started) = (inner.now(), inner.store.env.clock.monotonic());
        let (_, role) = inner.view()?;
        let Some(sequencer) = role.owner().filter(|sequencer| sequencer.is_pipelined()) else {
            return Ok(Begun::NotNow(Some(records)));
        };
        Ok(match sequencer.order(at, previous_hash, records, by).await? {
            Ordered::UnderWay(under_way) => {
                Begun::UnderWay(AppendUnderWay { log: self.clone(), under_way, since, started })
            }
            Ordered::Stopped(records) => Begun::NotNow(Some(records)),
            Ordered::Taken | Ordered::Committed(..) => Begun::NotNow(None),
        })
    }
}

impl AppendUnderWay {
    /// The entry's hash: what the next one names.
    #[must_use]
    pub fn hash(&self) -> [u8; 16] {
        self.under_way.hash()
    }

    /// Waits until the entry is committed, and all before it.
    ///
    /// # Errors
    /// [`Error::Indeterminate`], as of [`VirtualLog::append`]; all behind it are undecided, too.
    pub async fn committed(self) -> Result<Append> {
        let Self { log, under_way, since, started } = self;
        let result = under_way.committed().await.map(|(entry, bytes)| {
            log.inner.sequenced(entry.lsn.next(), entry.hash, bytes);
            log.inner.at_tail(entry.lsn.next(), since);
            Append::Committed(entry)
        });
        log.inner.appended(started, &result);
        result
    }
}
