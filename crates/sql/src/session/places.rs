//! How much sessions of this node have other regions execute at a time.
//!
//! # Purpose
//! A region executes so many statements of each other one, and keeps a statement whose rows nobody
//! fetches for a while. Who opens cursors and leaves them alone is not to take all places from
//! everybody else.
//!
//! # Invariants
//! - A place is held as long as there may be more rows to fetch, and given back with whatever holds
//!   it.
//! - Roles are counted, not names: a role with many sessions has no more than one with few. A
//!   superuser has a place while there is one in the other region.
//!
//! # On failure
//! 53400 with what to do; nothing was asked of another region.
//!
//! # Limits
//! Counted on each node.

use std::collections::BTreeMap;
use std::sync::Arc;

use async_trait::async_trait;
use parking_lot::Mutex;
use telesto_txn::{Piece, Pieces};

use crate::error::{Error, Result, SqlState};

/// Statements of one session at a time.
const OF_SESSION: usize = 16;
/// Statements of one role that is no superuser at a time: half of what a region executes for
/// another one.
const OF_ROLE: usize = 64;

/// How many each role has.
#[derive(Debug, Default)]
pub(crate) struct Places(Mutex<BTreeMap<u32, usize>>);

/// What a session has: one more than there are places in use.
#[derive(Debug, Default)]
pub(super) struct OfSession(Arc<()>);

/// The right to have one statement executed elsewhere.
#[derive(Debug)]
pub(super) struct Place {
    counted: Option<(Arc<Places>, u32)>,
    _session: Arc<()>,
}

impl Places {
    /// One more for a session of `role`; `None`: of a superuser.
    ///
    /// # Errors
    /// 53400.
    pub(super) fn take(self: &Arc<Self>, session: &OfSession, role: Option<u32>) -> Result<Place> {
        if Arc::strong_count(&session.0) > OF_SESSION {
            return Err(full("this session", OF_SESSION));
        }
        if let Some(role) = role {
            let mut counts = self.0.lock();
            let count = counts.entry(role).or_default();
            if *count >= OF_ROLE {
                return Err(full("the sessions of this role", OF_ROLE));
            }
            *count += 1;
        }
        let counted = role.map(|role| (Arc::clone(self), role));
        Ok(Place { counted, _session: Arc::clone(&session.0) })
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let Some((places, role)) = &self.counted else { return };
        let mut counts = places.0.lock();
        if let Some(count) = counts.get_mut(role) {
            *count = count.saturating_sub(1);
            if *count == 0 {
                counts.remove(role);
            }
        }
    }
}

fn full(who: &str, limit: usize) -> Error {
    Error::new(
        SqlState::CONFIGURATION_LIMIT_EXCEEDED,
        format!("{who} on this node cannot have more than {limit} statements executed in other regions at a time"),
    )
    .hint("Fetch all rows of the cursors and portals that read tables of other regions, or close them.")
}

/// What another region gives, in its place.
pub(super) struct Placed {
    pub pieces: Box<dyn Pieces>,
    pub _place: Place,
}

#[async_trait]
impl Pieces for Placed {
    async fn next(&mut self) -> telesto_txn::Result<Piece> {
        self.pieces.next().await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_bounded_by_session_and_role_and_given_back() {
        let places = Arc::new(Places::default());
        let session = OfSession::default();
        let taken: Vec<_> = (0..OF_SESSION).map(|_| places.take(&session, None)).collect();
        let error = places.take(&session, None).expect_err("too many");
        assert_eq!(error.code(), SqlState::CONFIGURATION_LIMIT_EXCEEDED);
        drop(taken);
        // Of one role in sessions of its own, one statement each.
        let of = |role| {
            let taken = (0..2 * OF_ROLE).map(|_| places.take(&OfSession::default(), role));
            taken.filter_map(Result::ok).collect::<Vec<_>>()
        };
        let (ours, theirs) = (of(Some(7)), of(Some(8)));
        assert_eq!((ours.len(), theirs.len()), (OF_ROLE, OF_ROLE));
        assert_eq!(of(None).len(), 2 * OF_ROLE, "superusers are not counted");
        drop(ours);
        assert_eq!(places.0.lock().get(&7), None);
        assert!(places.take(&OfSession::default(), Some(7)).is_ok());
    }
}
