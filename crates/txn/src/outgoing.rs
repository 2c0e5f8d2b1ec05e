//! How much of a transaction goes to other regions.
//!
//! # Purpose
//! A transaction comes to another region whole: in one request, and in one entry of the log there. What is too much for that is refused when it
//! commits; behind the commit nobody could be told, and the stream to that region would stand still at it for ever.
//!
//! # Invariants
//! - What is counted is what the stream of the region would hold: by the rules that stand before the commit in the log, whatever the
//!   transaction itself makes of them. So a table that is made and filled at once is not counted: its rows go as rows of a new table.
//! - The rules are read at the transaction's snapshot, and where they matter the commit is validated with that read.
//!
//! # On failure
//! [`Error::Outgoing`]; nothing was committed. Rules that do not decode are [`Error::Corrupt`].
//!
//! # Limits
//! [`MAX_OUTGOING_BYTES`] for each region.

use std::fmt::Debug;

use bytes::Bytes;
use telesto_common::RegionId;
use telesto_log::record::Write;
use telesto_shard::Read;

use crate::error::{Error, Result};
use crate::transaction::Core;

/// Bytes of one transaction for one other region, at most.
pub const MAX_OUTGOING_BYTES: usize = 32 << 20;

/// What a write takes there beside its key and value.
pub const OUTGOING_OVERHEAD_BYTES: usize = 16;

/// What the layer above knows of which keys go to which regions.
pub trait Placed: Debug + Send + Sync {
    /// The key of the row with the rules: they hold for what stands behind it in the log.
    fn rules(&self) -> Bytes;

    /// What the row says.
    ///
    /// # Errors
    /// Why it cannot be read.
    fn read(&self, rules: Bytes) -> std::result::Result<Box<dyn Receivers>, String>;
}

/// Which keys go to which regions, at one moment.
pub trait Receivers: Debug + Send + Sync {
    /// The regions that have `key`: bit n is region n.
    fn of(&self, key: &[u8]) -> u64;
}

/// What one transaction writes for each other region.
#[derive(Debug)]
pub(crate) struct Outgoing {
    me: RegionId,
    receivers: Option<Box<dyn Receivers>>,
    /// By region.
    bytes: [usize; 64],
    /// Of all writes.
    total: usize,
}

impl Outgoing {
    /// By the rules at the transaction's snapshot, as they are committed.
    pub async fn of(core: &Core) -> Result<Self> {
        let me = core.shared.region;
        let mut outgoing = Self { me, receivers: None, bytes: [0; 64], total: 0 };
        let Some(placed) = core.shared.placed.get() else { return Ok(outgoing) };
        let (keys, at) = (vec![placed.rules()], core.snapshot());
        let rules = core.shared.reach.get(keys, at, core.timeout).await?.pop();
        if let Some(rules) = rules.and_then(Read::into_value) {
            let unreadable = |reason: String| {
                Error::Corrupt(format!(
                    "the rules of which rows go to which regions do not decode ({reason}); upgrade this node if another one is newer"
                ))
            };
            outgoing.receivers = Some(placed.read(rules).map_err(unreadable)?);
        }
        Ok(outgoing)
    }

    /// Counts one more write.
    ///
    /// # Errors
    /// [`Error::Outgoing`] when a region would get too much.
    pub fn add(&mut self, write: &Write) -> Result<()> {
        let value = write.value.as_ref().map_or(0, Bytes::len);
        let bytes = write.key.len() + value + OUTGOING_OVERHEAD_BYTES;
        self.total += bytes;
        let Some(receivers) = &self.receivers else { return Ok(()) };
        let regions = receivers.of(&write.key);
        for (region, sum) in self.bytes.iter_mut().enumerate() {
            if regions >> region & 1 == 0 || region == usize::from(self.me.0) {
                continue;
            }
            *sum += bytes;
            if *sum > MAX_OUTGOING_BYTES {
                return Err(Error::Outgoing { mebibytes: MAX_OUTGOING_BYTES >> 20 });
            }
        }
        Ok(())
    }

    /// Whether by other rules it could be too much.
    pub fn rests_on_rules(&self) -> bool {
        self.total > MAX_OUTGOING_BYTES
    }
}
