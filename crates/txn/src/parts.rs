//! Collection of part objects that nobody needs any more.
//!
//! # Purpose
//! A large write set lies in part objects that its commit names. Once the checkpoint holds their
//! rows they are of no use; those of a transaction that died before its commit never were.
//!
//! # Protocol
//! ```text
//! upload --------- at most R/2 ---------> commit request ---- at most R/2 ----> appended, or refused for ever
//!    |<------ seen here for more than R on the monotonic clock ------>|  look at the tail  |  delete what
//!    |<------ 2R old on the bucket's clock, by its newest part ------>|                    |  no entry needs
//! ```
//! R is the retention.
//!
//! # Invariants
//! - A part that a commit above the checkpoint names is kept, however old it is: the tail, after a
//!   look that began when the part was past the age at which it could be named first, says which
//!   these are. A fold under way reads only such.
//! - Age is never taken from one clock alone: the bucket's may be this machine's wall clock (a
//!   local folder), which jumps; so this process must have seen the part for longer than a commit
//!   may take to name it, too.
//! - Readers here read a part only while its rows are not in the checkpoint in use. A reader of
//!   another process that comes late finds the part missing, reads the newest checkpoint, and goes
//!   on (`telesto_shard`).
//!
//! # On failure
//! Nothing is deleted that was not decided upon; the next round goes on.
//!
//! # Limits
//! A process must live for a retention to delete what others left. What it has seen is remembered
//! by name, up to [`MAX_SEEN`] parts.

use std::collections::BTreeMap;
use std::time::Duration;

use telesto_bucket::{Cause, ListedObject};
use telesto_common::planted::Bug;

use crate::commit::write_set::parts_prefix;
use crate::error::Result;
use crate::local::Local;

/// Part objects listed at a time.
const PARTS_LISTED: usize = 1000;
/// Parts remembered at most; others wait until these are gone.
const MAX_SEEN: usize = 200_000;

/// Deletes part objects that no entry can name any more.
#[derive(Debug, Default)]
pub(crate) struct Collector {
    /// When this process saw a part first, monotonic.
    seen: BTreeMap<String, Duration>,
}

impl Collector {
    /// One round: looks at all parts, deletes those that nobody needs.
    pub async fn collect(&mut self, local: &std::sync::Arc<Local>) -> Result<()> {
        let retention = local.log.chain().retention();
        let keep_micros = 2 * u64::try_from(retention.as_micros()).unwrap_or(u64::MAX / 4);
        let listed = list(local).await?;
        let now = local.env.clock.monotonic();
        self.note(&listed, now);
        let by_age = local.env.planted(Bug::PartsByAge) || local.env.planted(Bug::ReadsFoldedParts);
        // The newest object stands for the bucket's clock: age is never measured with our own.
        let newest = listed.iter().map(|part| part.modified_micros).max().unwrap_or_default();
        let old: Vec<String> = listed
            .into_iter()
            .filter(|part| newest.saturating_sub(part.modified_micros) > keep_micros)
            .filter(|part| {
                by_age || self.seen.get(&part.key).is_some_and(|at| now - *at > retention)
            })
            .map(|part| part.key)
            .collect();
        if old.is_empty() {
            return Ok(());
        }
        // Whoever names one of them has done so: it is applied here after this, or in the
        // checkpoint.
        local.look(local.env.deadline(local.options.timeout)).await?;
        let used = local.shard().parts_in_use();
        for key in old.iter().filter(|key| by_age || !used.contains(*key)) {
            local.bucket.delete(Cause::Gc, key).await?;
            metrics::counter!("telesto_txn_parts_deleted_total").increment(1);
        }
        Ok(())
    }

    fn note(&mut self, listed: &[ListedObject], now: Duration) {
        let mut before = std::mem::take(&mut self.seen);
        for part in listed.iter().take(MAX_SEEN) {
            let at = before.remove(&part.key).unwrap_or(now);
            self.seen.insert(part.key.clone(), at);
        }
    }
}

async fn list(local: &Local) -> Result<Vec<ListedObject>> {
    let prefix = parts_prefix(local.options.shard);
    let mut listed: Vec<ListedObject> = Vec::new();
    loop {
        let after = listed.last().map(|part| part.key.clone());
        let page =
            local.bucket.list_after(Cause::Gc, &prefix, after.as_deref(), PARTS_LISTED).await?;
        let full = page.len() == PARTS_LISTED;
        listed.extend(page);
        if !full {
            return Ok(listed);
        }
    }
}
