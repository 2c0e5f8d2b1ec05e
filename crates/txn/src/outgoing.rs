//! How much of a transaction goes to other regions.
//!
//! # Purpose
//! A transaction comes to another region whole: in one request, and in one entry of the log there.
//! What is too much for that is refused when it commits; behind the commit nobody could be told,
//! and the stream to that region would stand still at it for ever.
//!
//! # Invariants
//! - What is counted is what the stream of the region would hold, or more: by the rules that stand
//!   before the commit in the log, whatever the transaction itself makes of them (what it takes
//!   from a region is not sent there). So a table that is made and filled at once is not counted:
//!   its rows go as rows of a new table.
//! - Index entries count where they are made of the rows that come, too: they go into the same
//!   entry of the log there.
//! - The rules are read at the transaction's snapshot, and the commit is validated with that read.
//! - What is too small to be refused by any rules costs nothing.
//!
//! # On failure
//! [`Error::Outgoing`]; nothing was committed. Rules that do not decode are [`Error::Corrupt`].
//!
//! # Limits
//! [`MAX_OUTGOING_BYTES`] for each region. What is larger is read through once more to be counted,
//! before anything is uploaded of what is behind that.

use std::fmt::Debug;

use bytes::Bytes;
use telesto_common::key::KeyRange;
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
    /// The regions that have `key`, or make it of the row that it follows from: bit n is region n.
    fn of(&self, key: &[u8]) -> u64;
}

/// Refuses what a transaction has written if a region would get too much of it; to be asked when
/// all of it is more than [`MAX_OUTGOING_BYTES`]. The commit is then valid only by the rules of the
/// snapshot.
///
/// # Errors
/// See the module's text.
pub(crate) async fn check(core: &Core) -> Result<()> {
    let Some(placed) = core.shared.placed.get() else { return Ok(()) };
    let at = core.snapshot();
    let rules = core.shared.reach.get(vec![placed.rules()], at, core.timeout).await?.pop();
    core.rests_on_read(placed.rules(), at);
    let Some(rules) = rules.and_then(Read::into_value) else { return Ok(()) };
    let unreadable = |reason: String| {
        Error::Corrupt(format!(
            "the rules of which rows go to which regions do not decode ({reason}); upgrade this node if another one is newer"
        ))
    };
    let receivers = placed.read(rules).map_err(unreadable)?;
    let mut bytes = [0; 64];
    let mut scan = core.buffer.scan(KeyRange::default(), false, None);
    while let Some(write) = scan.next().await? {
        let value = write.value.as_ref().map_or(0, Bytes::len);
        let regions = receivers.of(&write.key);
        for (region, sum) in bytes.iter_mut().enumerate() {
            if regions >> region & 1 == 0 || region == usize::from(core.shared.region.0) {
                continue;
            }
            *sum += write.key.len() + value + OUTGOING_OVERHEAD_BYTES;
            if *sum > MAX_OUTGOING_BYTES {
                return Err(Error::Outgoing { mebibytes: MAX_OUTGOING_BYTES >> 20 });
            }
        }
    }
    Ok(())
}
