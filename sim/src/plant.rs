//! Planted bugs: they prove that the simulation finds what it is there to find.
//!
//! # Invariants
//! A plant is chosen by the caller of [`crate::run()`], never by a seed.

use std::str::FromStr;
use std::sync::Arc;

use crate::sql::plant::PlantedTransaction;
use async_trait::async_trait;
use telesto_common::planted::{Bug, Planted as Bugs};
use telesto_common::{Env, Lsn, Timestamp, TxnId};
use telesto_txn::{Database, Level, LogKind, Outcome, Result, Transaction, TxnOptions};

/// A bug planted on purpose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Plant {
    /// A store whose put-if-absent sometimes lets a second writer win.
    TwoWinners,
    /// A store that acknowledges a put before it is there; a crash loses it.
    AckBeforeDurable,
    /// Serializable transactions are not validated against what they read.
    NoValidation,
    /// Strict reads are served from whatever the process has.
    StaleReads,
    /// A store that makes log entries look an hour old: they are trimmed without regard to the
    /// retention, under the feet of whoever was away.
    EarlyTrim,
    /// SQL that sometimes forgets to write or remove an index entry.
    SkipIndexWrites,
    /// SQL whose uniqueness and foreign key checks are not validated at commit.
    NoConstraintReads,
    /// A mend that is taken out again.
    Mend(Bug),
}

/// The plants' names on the command line.
const NAMES: &[(&str, Plant)] = &[
    ("two-winners", Plant::TwoWinners),
    ("ack-before-durable", Plant::AckBeforeDurable),
    ("no-validation", Plant::NoValidation),
    ("stale-reads", Plant::StaleReads),
    ("early-trim", Plant::EarlyTrim),
    ("skip-index-writes", Plant::SkipIndexWrites),
    ("no-constraint-reads", Plant::NoConstraintReads),
    ("owns-while-handing-over", Plant::Mend(Bug::OwnsWhileHandingOver)),
    ("gap-is-damage", Plant::Mend(Bug::GapIsDamage)),
    ("exists-is-anothers", Plant::Mend(Bug::ExistsIsAnothers)),
    ("one-clock", Plant::Mend(Bug::OneClock)),
    ("releases-last-batch", Plant::Mend(Bug::ReleasesLastBatch)),
    ("trusts-page-cache", Plant::Mend(Bug::TrustsPageCache)),
    ("ships-uncounted", Plant::Mend(Bug::ShipsUncounted)),
    ("trusts-old-directory", Plant::Mend(Bug::TrustsOldDirectory)),
    ("hangs-with-disk", Plant::Mend(Bug::HangsWithDisk)),
    ("trimmed-is-damage", Plant::Mend(Bug::TrimmedIsDamage)),
    ("reads-folded-parts", Plant::Mend(Bug::ReadsFoldedParts)),
    ("parts-by-age", Plant::Mend(Bug::PartsByAge)),
    ("unbounded-follower", Plant::Mend(Bug::UnboundedFollower)),
    ("reads-open-time", Plant::Mend(Bug::ReadsOpenTime)),
    ("any-clock", Plant::Mend(Bug::AnyClock)),
    ("opens-unawares", Plant::Mend(Bug::OpensUnawares)),
];

impl Plant {
    /// All plants and their names.
    #[must_use]
    pub fn all() -> &'static [(&'static str, Self)] {
        NAMES
    }

    /// What a process's seams say of it.
    pub(crate) fn in_env(plant: Option<Self>) -> Bugs {
        match plant {
            Some(Self::Mend(bug)) => Bugs::only(bug),
            _ => Bugs::NONE,
        }
    }
}

impl FromStr for Plant {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Self, String> {
        let known = NAMES.iter().find(|(name, _)| *name == text);
        known.map(|(_, plant)| *plant).ok_or_else(|| {
            let names: Vec<&str> = NAMES.iter().map(|(name, _)| *name).collect();
            format!("no plant called {text:?}; there are {}", names.join(", "))
        })
    }
}

/// A database with a planted bug.
#[derive(Debug)]
pub(crate) struct Planted {
    pub(crate) inner: Arc<dyn Database>,
    pub(crate) plant: Plant,
    pub(crate) env: Env,
}

#[async_trait]
impl Database for Planted {
    async fn begin(&self, mut options: TxnOptions) -> Result<Arc<dyn Transaction>> {
        match self.plant {
            Plant::NoValidation if options.level == Level::Serializable && !options.read_only => {
                options.level = Level::ReadCommitted;
            }
            Plant::StaleReads if options.level == Level::Serializable && options.read_only => {
                options.level = Level::Eventual;
            }
            Plant::NoConstraintReads if options.level == Level::Serializable => {
                options.level = Level::ReadCommitted;
            }
            _ => {}
        }
        let inner = self.inner.begin(options).await?;
        Ok(match self.plant {
            plant @ (Plant::SkipIndexWrites | Plant::NoConstraintReads) => {
                Arc::new(PlantedTransaction { inner, plant, env: self.env.clone() })
            }
            _ => inner,
        })
    }

    async fn outcome(&self, txn: TxnId) -> Result<Outcome> {
        self.inner.outcome(txn).await
    }

    fn hear(&self, sink: std::sync::Weak<dyn telesto_txn::MessageSink>) {
        self.inner.hear(sink);
    }

    fn applied(&self) -> (Lsn, Timestamp) {
        self.inner.applied()
    }

    fn cluster(&self) -> telesto_txn::ClusterView {
        self.inner.cluster()
    }

    async fn space(&self) -> Result<telesto_txn::Space> {
        self.inner.space().await
    }

    async fn switch_log(&self, to: LogKind) -> Result<()> {
        self.inner.switch_log(to).await
    }

    async fn shutdown(&self) -> Result<()> {
        self.inner.shutdown().await
    }
}
