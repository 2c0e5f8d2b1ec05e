//! Which transactions can be read by the definitions that are here.
//!
//! # Invariants
//! - What can be read once can be read by all later definitions: numbers of what is defined are
//!   given out in order. So definitions that are not the newest hold something back at worst.
//! - A transaction that defines something may hold rows of what it defines.
//!
//! # On failure
//! None: definitions are read elsewhere.
//!
//! # Limits
//! Every key of a transaction is looked at.

use std::collections::BTreeSet;
use std::sync::Arc;

use bytes::Bytes;
use telesto_common::{RegionId, Timestamp};
use telesto_txn::regions::{Meaning, Standing};

use crate::wire::KeyWrite;

/// See the module's text. Without definitions everything can be read.
#[derive(Clone, Debug, Default)]
pub(crate) struct Defined {
    /// The key that every definition writes.
    pub stamp: Option<Bytes>,
    pub meaning: Option<Arc<dyn Meaning>>,
    /// Transactions of which something cannot be computed, whatever their keys are of.
    pub unreadable: BTreeSet<(RegionId, Timestamp)>,
}

impl Defined {
    /// Whether a transaction defines something.
    pub fn is_made_by(&self, writes: &[KeyWrite]) -> bool {
        let Some(stamp) = &self.stamp else { return false };
        writes.iter().any(|write| write.key == *stamp && write.value.is_some())
    }

    /// Whether a transaction of a region can be read: all of it is defined, and nothing of it is
    /// known not to be computable.
    pub fn reads(&self, from: RegionId, at: Timestamp, writes: &[KeyWrite]) -> bool {
        !self.unreadable.contains(&(from, at)) && self.has(writes)
    }

    /// Whether everything that a transaction writes is defined, or was.
    pub fn has(&self, writes: &[KeyWrite]) -> bool {
        let Some(meaning) = &self.meaning else { return true };
        let here = |write: &KeyWrite| meaning.standing(&write.key) != Standing::NotYet;
        writes.iter().all(here) || self.is_made_by(writes)
    }
}
