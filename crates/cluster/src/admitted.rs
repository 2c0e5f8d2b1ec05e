//! How a life of a node begins, before anybody is answered.
//!
//! ```text
//! nodes/<node>/<life> ─► the last life of the log server in the bucket ─► its directory: the same mark? ─► a new mark there ─► and in the bucket
//!  refused: removed,                                                      no: it may have forgotten
//!  or there is a later one
//! ```
//! # Invariants
//! - The node's record comes first: a process that is refused, of a copied folder, counts no life
//!   of the log server, or the one that it was copied from would not be believed after its next
//!   start.
//! - The mark is in the directory before it is in the bucket
//!   ([`telesto_log::server::CountedLife`]), and the server answers nobody before it is there.
//!
//! # On failure
//! The node does not start. What was written is found again by the next start, which is not taken
//! for a copy on account of it.
//!
//! # Limits
//! Of two directories with the mark of the last life, copied while that lived, either is believed.

use std::sync::Arc;

use telesto_common::Env;
use telesto_log::server::{Counting, LocalLogServer};

use crate::error::Result;
use crate::record::Record;
use crate::registry::Registry;

/// A node that is registered, and whose log server counts for what it is.
#[derive(Debug)]
pub struct Admitted {
    pub(crate) registry: Registry,
    pub(crate) record: Record,
    pub(crate) own_log: Arc<LocalLogServer>,
}

impl Admitted {
    /// Registers `record`, and has `open` open its log server ([`LocalLogServer::open_shared`]) by
    /// what the bucket counts.
    ///
    /// # Errors
    /// [`crate::Error::Removed`], [`crate::Error::Twin`], [`crate::Error::Malformed`], those of the
    /// bucket and of the opening.
    pub async fn begin(
        env: &Env,
        registry: Registry,
        record: Record,
        open: impl AsyncFnOnce(Option<Counting>) -> telesto_log::Result<Arc<LocalLogServer>>,
    ) -> Result<Self> {
        registry.register(env, &record).await?;
        let last = registry.counted_life(record.node).await?;
        let own_log = open(Some(Counting { last, mark: env.random.next_u64() })).await?;
        if let Some(life) = own_log.counted_life().await {
            registry.count_life(record.node, life).await?;
        }
        Ok(Self { registry, record, own_log })
    }
}
