//! What a session's definition reads as a whole is held still until the definition is committed.
//!
//! ```text
//! ALTER TABLE … TYPE, ADD CHECK, …  ──► hold the tables' rows, here and at every other node ── untouched since the snapshot?
//!        ▲                                                                                        │ yes: read them all
//!        └── executed again, the hold goes on ◄── conflict ── no ◄────────────────────────────────┘
//! ```
//! # Invariants
//! - Others' commits into these rows wait (`telesto_txn::Hold`), whether or not it is a hint that
//!   reaches all nodes: the definition's own reads are validated in any case.
//! - A hold goes on while its statement, or its block, is executed again, and ends with it, however
//!   it ends.
//! - It is placed again every [`BEAT`]; a session that is gone leaves it for [`LASTS`] at most.
//!
//! # On failure
//! A node that cannot be told lets commits through.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use telesto_common::env::Task;
use telesto_common::key::KeyRange;
use telesto_common::{Env, TxnId};
use telesto_txn::{Database, Hold};

use crate::everywhere;

/// How long other nodes keep a hold of which they hear no more.
pub const LASTS: Duration = Duration::from_secs(10);
/// How often it is placed again.
pub const BEAT: Duration = Duration::from_secs(3);

/// What one session holds still.
#[derive(Debug)]
pub struct TableHolds {
    env: Env,
    database: Arc<dyn Database>,
    held: Mutex<Option<Held>>,
    /// The end of a transaction is not the end of the statement: it may be executed again.
    goes_on: AtomicBool,
}

#[derive(Debug)]
struct Held {
    hold: Hold,
    /// Savepoints there were when it was placed first.
    depth: usize,
    beat: Arc<dyn Task>,
}

impl TableHolds {
    /// Of a session of this database.
    pub fn new(env: Env, database: Arc<dyn Database>) -> Self {
        Self { env, database, held: Mutex::default(), goes_on: AtomicBool::new(false) }
    }

    /// Holds `ranges` still for `txn`, and whatever the session holds already; `depth`: how many
    /// savepoints there are.
    pub(super) async fn hold(&self, ranges: Vec<KeyRange>, txn: TxnId, depth: usize) {
        let placed = self.place(ranges, txn, depth);
        if let Some(hold) = placed {
            everywhere::hold(&self.database, &hold).await;
        }
    }

    /// [`TableHolds::hold`] in this process; `None`: it is so already.
    fn place(&self, ranges: Vec<KeyRange>, txn: TxnId, depth: usize) -> Option<Hold> {
        let mut held = self.held.lock();
        if let Some(held) = &*held
            && held.hold.by == txn
            && ranges.iter().all(|range| held.hold.ranges.contains(range))
        {
            return None;
        }
        let (mut hold, depth) = match held.take() {
            Some(before) => {
                before.beat.abort();
                (before.hold, before.depth)
            }
            None => {
                let id = self.env.txn_id().0;
                (Hold { id, number: 0, ranges: Vec::new(), by: txn, lasts: LASTS }, depth)
            }
        };
        hold.by = txn;
        // What an earlier beat still sends counts no more.
        hold.number += 1;
        for range in ranges {
            if !hold.ranges.contains(&range) {
                hold.ranges.push(range);
            }
        }
        self.database.hold(hold.clone());
        let beat = beat(self.env.clone(), Arc::clone(&self.database), hold.clone());
        let beat = self.env.spawn("holding tables still", beat);
        *held = Some(Held { hold: hold.clone(), depth, beat });
        Some(hold)
    }

    /// So many savepoints are left; `undone`: what was held after the last of them is let go.
    pub(super) fn savepoints(&self, count: usize, undone: bool) {
        let since = {
            let mut held = self.held.lock();
            let Some(held) = held.as_mut() else { return };
            if !undone {
                held.depth = held.depth.min(count);
            }
            held.depth
        };
        if undone && since >= count {
            self.release();
        }
    }

    /// Whether the end of a transaction leaves what is held as it is: its statement may be executed
    /// again.
    pub fn goes_on(&self, goes_on: bool) {
        self.goes_on.store(goes_on, Ordering::Relaxed);
    }

    /// A transaction has ended.
    pub(super) fn end_transaction(&self) {
        if !self.goes_on.load(Ordering::Relaxed) {
            self.release();
        }
    }

    /// Lets go of everything.
    pub fn release(&self) {
        let Some(held) = self.held.lock().take() else { return };
        held.beat.abort();
        let id = held.hold.id;
        self.database.lift(id);
        if self.database.peers().is_some() {
            let database = Arc::clone(&self.database);
            self.env.spawn("letting go of tables", async move {
                everywhere::lift(&database, id).await;
            });
        }
    }
}

impl Drop for TableHolds {
    fn drop(&mut self) {
        self.release();
    }
}

async fn beat(env: Env, database: Arc<dyn Database>, hold: Hold) {
    loop {
        env.clock.sleep(BEAT).await;
        database.hold(hold.clone());
        everywhere::hold(&database, &hold).await;
    }
}
