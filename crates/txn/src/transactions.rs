//! Where transactions begin.
//!
//! # Purpose
//! [`Transactions`] begins transactions on one shard, wherever that is served: how new a snapshot
//! must be follows from the level, everything else from what the shard answers.
//!
//! # Invariants
//! Only a read-only strict transaction asks for the newest of all at its begin; the others are
//! validated when they end.
//!
//! # On failure
//! The shard's errors; nothing is left behind.

use std::sync::Arc;

use telesto_common::TxnId;

use crate::api::{Level, Outcome, Transaction, TxnOptions};
use crate::error::Result;
use crate::service::Freshness;
use crate::transaction::{EngineTransaction, Shared};

/// Begins transactions on one shard.
#[derive(Clone, Debug)]
pub struct Transactions {
    pub(crate) shared: Arc<Shared>,
}

impl Transactions {
    /// Begins a transaction.
    ///
    /// # Errors
    /// Those of the shard: no snapshot that is new enough could be had in time.
    pub async fn begin(&self, options: TxnOptions) -> Result<Arc<dyn Transaction>> {
        let shared = &self.shared;
        let read_only = options.read_only || options.as_of.is_some();
        let freshness = if options.level == Level::Serializable && read_only {
            Freshness::Tail
        } else if options.level == Level::Eventual {
            Freshness::Applied
        } else {
            Freshness::AtLeast(options.session.timestamp)
        };
        let freshness = match options.as_of {
            // What is past is the same for every reader.
            Some(_) => Freshness::Applied,
            None => freshness,
        };
        let timeout = options.timeout.unwrap_or(shared.timeout);
        let (staleness, as_of) = (options.allowed(), options.as_of);
        let begun = shared.reach.begin(freshness, staleness, as_of, timeout).await?;
        Ok(Arc::new(EngineTransaction::new(shared, options, begun)))
    }

    /// What became of a transaction, as known after a look at the tail.
    ///
    /// # Errors
    /// It could not be learned.
    pub async fn outcome(&self, txn: TxnId) -> Result<Outcome> {
        self.shared.reach.outcome(txn, self.shared.timeout).await
    }
}
