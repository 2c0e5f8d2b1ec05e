//! What an advisory lock is called and how it is held.
//!
//! # Purpose
//! The words that the functions (`pg_advisory_lock` and its kin), the session that holds a lock and
//! the registry of the process speak of a lock with.
//!
//! # Limits
//! Data only: who holds and who waits is the registry's.

use serde::{Deserialize, Serialize};

/// What a lock is called: PostgreSQL's classid, objid, objsubid.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct LockKey {
    /// classid.
    pub class: u32,
    /// objid.
    pub object: u32,
    /// objsubid: 1 for a lock named by one bigint, 2 for one named by two integers.
    pub sub: i16,
}

impl LockKey {
    /// The lock of one bigint.
    #[must_use]
    pub fn of_bigint(key: i64) -> Self {
        let bits = key as u64;
        Self { class: (bits >> 32) as u32, object: bits as u32, sub: 1 }
    }

    /// The lock of two integers.
    #[must_use]
    pub fn of_pair(class: i32, object: i32) -> Self {
        Self { class: class as u32, object: object as u32, sub: 2 }
    }
}

/// How a lock is held.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum LockMode {
    /// Beside others that share it.
    Shared,
    /// Alone.
    Exclusive,
}

impl LockMode {
    /// Whether two holders are in each other's way.
    #[must_use]
    pub fn conflicts(self, other: Self) -> bool {
        self == Self::Exclusive || other == Self::Exclusive
    }

    /// As pg_locks shows it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Shared => "ShareLock",
            Self::Exclusive => "ExclusiveLock",
        }
    }
}

/// What is asked of a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LockRequest {
    /// The lock.
    pub key: LockKey,
    /// How it is to be held.
    pub mode: LockMode,
    /// Until the end of the transaction.
    pub local: bool,
    /// Without waiting.
    pub attempt: bool,
}
