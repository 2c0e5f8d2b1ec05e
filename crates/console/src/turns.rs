//! Whose turn it is to read for a page.
//!
//! # Purpose
//! A page asks ten things at once, each in a session of its own. Whoever loads many pages at once
//! takes sessions from no client of SQL, and from other visitors only as many as are his share.
//!
//! # Invariants
//! - One role reads [`limits::READS_OF_A_ROLE`] things at once, all together an eighth of the
//!   sessions that the server takes.
//!
//! # On failure
//! Whose turn does not come within [`limits::PAGE_TIME`] is told that the console is busy.
//!
//! # Limits
//! Turns of one role come in the order in which they were asked for.

use std::collections::BTreeMap;
use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use telesto_common::Env;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::error::Problem;
use crate::limits;

/// See the module's text.
#[derive(Debug)]
pub struct Turns {
    env: Env,
    all: Arc<Semaphore>,
    of_roles: Mutex<BTreeMap<String, Weak<Semaphore>>>,
}

/// Lasts as long as the read.
#[derive(Debug)]
pub struct Turn {
    _of_role: OwnedSemaphorePermit,
    _of_all: OwnedSemaphorePermit,
}

impl Turns {
    /// Of a server that takes so many sessions.
    pub fn new(env: Env, sessions: usize) -> Self {
        let all = Arc::new(Semaphore::new((sessions / 8).max(limits::READS_OF_A_ROLE)));
        Self { env, all, of_roles: Mutex::default() }
    }

    /// The next turn of `user`.
    pub async fn next(&self, user: &str) -> Result<Turn, Problem> {
        let busy = || Problem::busy("unavailable", "the console is busy; try again shortly", 1);
        let of_role = self.of_role(user);
        let turns = async {
            let of_role = of_role.acquire_owned().await.ok()?;
            let of_all = Arc::clone(&self.all).acquire_owned().await.ok()?;
            Some(Turn { _of_role: of_role, _of_all: of_all })
        };
        let what = "a turn to read for a page";
        let turn = self.env.within_timeout(limits::PAGE_TIME, what, turns).await;
        turn.ok().flatten().ok_or_else(busy)
    }

    fn of_role(&self, user: &str) -> Arc<Semaphore> {
        let mut of_roles = self.of_roles.lock();
        if let Some(known) = of_roles.get(user).and_then(Weak::upgrade) {
            return known;
        }
        of_roles.retain(|_, known| known.strong_count() > 0);
        let new = Arc::new(Semaphore::new(limits::READS_OF_A_ROLE));
        of_roles.insert(user.to_owned(), Arc::downgrade(&new));
        new
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[tokio::test]
    async fn one_role_has_its_share_and_others_have_theirs() {
        let env = telesto_runtime::env();
        let turns = Turns::new(env.clone(), 8 * (limits::READS_OF_A_ROLE + 1));
        let mut taken = Vec::new();
        for _ in 0..limits::READS_OF_A_ROLE {
            taken.push(turns.next("low").await.expect("its share"));
        }
        let more = env.within_timeout(Duration::from_millis(50), "one more", turns.next("low"));
        assert!(more.await.is_err(), "more than its share");
        let other = turns.next("high").await.expect("another's");
        let more = env.within_timeout(Duration::from_millis(50), "one more", turns.next("high"));
        assert!(more.await.is_err(), "more than all together");
        drop(taken.pop());
        let more = turns.next("high").await.expect("a turn that ended");
        drop((other, more, taken));
        turns.next("low").await.expect("its share again");
        assert_eq!(turns.of_roles.lock().len(), 1, "who does not read is forgotten");
    }
}
