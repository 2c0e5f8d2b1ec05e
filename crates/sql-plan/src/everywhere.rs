//! All nodes of a cluster: what their sessions do and hold, what they have counted, and having a
//! session stopped.
//!
//! ```text
//! pg_cancel_backend, a cancel request ──► of this process? ─ yes ─► done here
//!                                            └─ no ─► every other node is asked ([`telesto_txn::peers`])
//! pg_stat_activity, pg_locks, pg_stat_database and its kin: this process, and every other node
//! ALTER TABLE of a whole table ──► every other node leaves it alone (`advisory::tables`)
//! ```
//! # Invariants
//! - Who may stop whom is decided where it is asked, by the role of the session that is to be
//!   stopped; who may see what, too.
//! - A client's cancel request stops only the session whose secret key it knows, on whatever node
//!   it arrives.
//!
//! # On failure
//! A node that does not answer within [`WITHIN`], or is of a version that does not know the
//! question, is left out: its sessions are not shown, and not stopped, and what it has counted is
//! missing from sums.
//!
//! # Limits
//! Process ids of two nodes are told apart by beginning at random numbers; the newest 2,000
//! sessions and advisory locks of each node are told. Nodes count from their start.

use std::collections::BTreeMap;
use std::fmt;
use std::net::SocketAddr;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use serde::{Deserialize, Serialize};
use telesto_common::TxnId;
use telesto_common::key::KeyRange;
use telesto_common::wait::Wait;
use telesto_sql_catalog::uses::{SummedUses, TableUses, ToldUses};
use telesto_sql_types::advisory::{LockKey, LockMode};
use telesto_txn::peers::Answers;
use telesto_txn::{Database, Hold};

use crate::activity::{Activity, Encrypted};
use crate::advisory::registry::{AdvisoryLocks, LockShown};
use crate::advisory::tables::LASTS;
use crate::cancel::Backends;
use crate::measurements::Measured;

/// The counters of transactions committed and conflicts met, and of sessions begun.
pub const COMMITS: &str = "telesto_txn_commits_total";
/// See [`COMMITS`].
pub const CONFLICTS: &str = "telesto_txn_conflicts_total";
/// See [`COMMITS`].
pub const SESSIONS: &str = "telesto_sessions_opened_total";
/// How long other nodes are waited for.
pub const WITHIN: Duration = Duration::from_secs(1);
/// Sessions that one node tells of.
const MOST: usize = 2_000;
/// States that sessions have.
const STATES: [&str; 4] =
    ["active", "idle", "idle in transaction", "idle in transaction (aborted)"];

/// Stops what the session with this process id runs, if the key is its own; whether it is.
pub type ByKey = Box<dyn Fn(i32, &[u8]) -> bool + Send + Sync>;

#[derive(Debug, Serialize, Deserialize)]
enum Question {
    Shown,
    RoleOf(i32),
    Signal { pid: i32, terminate: bool },
    Cancel { pid: i32, key: Vec<u8> },
    // What is added later stands last: numbers tell the questions apart.
    Counted,
    Locks,
    Encrypted,
    Hold(ToldHold),
    Lift(u128),
}

#[derive(Debug, Serialize, Deserialize)]
enum Answer {
    Shown(Vec<(i32, Told)>),
    Role(Option<u32>),
    Found(bool),
    Counted(Counted),
    Locks(Vec<ToldLock>),
    Encrypted(Vec<(i32, Option<Encrypted>)>),
}

/// What a session of another node holds still.
#[derive(Debug, Serialize, Deserialize)]
struct ToldHold {
    id: u128,
    number: u64,
    ranges: Vec<(Vec<u8>, Vec<u8>)>,
    by: u128,
    millis: u64,
}

impl ToldHold {
    fn of(hold: &Hold) -> Self {
        let told = |range: &KeyRange| (range.start.to_vec(), range.end.to_vec());
        let millis = u64::try_from(hold.lasts.as_millis()).unwrap_or(u64::MAX);
        let ranges = hold.ranges.iter().map(told).collect();
        Self { id: hold.id, number: hold.number, ranges, by: hold.by.0, millis }
    }

    /// For no longer than any node asks for it.
    fn hold(self) -> Hold {
        let range = |(start, end): (Vec<u8>, Vec<u8>)| KeyRange::new(start.into(), end.into());
        let lasts = Duration::from_millis(self.millis).min(LASTS);
        let ranges = self.ranges.into_iter().map(range).collect();
        Hold { id: self.id, number: self.number, ranges, by: TxnId(self.by), lasts }
    }
}

/// What a process has counted since it started.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Counted {
    backends: u64,
    commits: u64,
    conflicts: u64,
    sessions: u64,
    uses: ToldUses,
}

/// What the other nodes have counted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Sessions there are.
    pub backends: u64,
    /// Transactions committed.
    pub commits: u64,
    /// Conflicts met.
    pub conflicts: u64,
    /// Sessions begun.
    pub sessions: u64,
    /// Reads and writes of tables and indexes.
    pub uses: SummedUses,
}

/// An advisory lock on the wire between nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct ToldLock {
    class: u32,
    object: u32,
    sub: i16,
    exclusive: bool,
    pid: i32,
    granted: bool,
}

impl ToldLock {
    fn of(lock: LockShown) -> Self {
        let LockKey { class, object, sub } = lock.key;
        let exclusive = lock.mode == LockMode::Exclusive;
        Self { class, object, sub, exclusive, pid: lock.pid, granted: lock.granted }
    }

    fn shown(self) -> LockShown {
        let mode = if self.exclusive { LockMode::Exclusive } else { LockMode::Shared };
        let key = LockKey { class: self.class, object: self.object, sub: self.sub };
        LockShown { key, mode, pid: self.pid, granted: self.granted }
    }
}

/// One session on the wire between nodes.
#[derive(Debug, Serialize, Deserialize)]
struct Told {
    user: String,
    role: u32,
    application_name: String,
    backend_start: i64,
    xact_start: Option<i64>,
    query_start: Option<i64>,
    state_change: i64,
    state: String,
    query: String,
    client: Option<SocketAddr>,
    wait: u8,
}

impl Told {
    fn of(shown: Activity) -> Self {
        Self {
            user: shown.user,
            role: shown.role,
            application_name: shown.application_name,
            backend_start: shown.backend_start,
            xact_start: shown.xact_start,
            query_start: shown.query_start,
            state_change: shown.state_change,
            state: shown.state.to_owned(),
            query: shown.query,
            client: shown.client,
            wait: shown.wait as u8,
        }
    }

    fn shown(self) -> Activity {
        Activity {
            user: self.user,
            role: self.role,
            application_name: self.application_name,
            backend_start: self.backend_start,
            xact_start: self.xact_start,
            query_start: self.query_start,
            state_change: self.state_change,
            state: STATES.into_iter().find(|state| *state == self.state).unwrap_or_default(),
            query: self.query,
            client: self.client,
            encrypted: None,
            wait: Wait::numbered(self.wait),
        }
    }
}

/// What this process tells others of its sessions.
pub struct OwnSessions {
    backends: Arc<Backends>,
    counts: Arc<TableUses>,
    measured: Arc<Measured>,
    locks: Arc<AdvisoryLocks>,
    by_key: OnceLock<ByKey>,
}

impl fmt::Debug for OwnSessions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OwnSessions").field("backends", &self.backends).finish_non_exhaustive()
    }
}

impl OwnSessions {
    /// Of these sessions, with what they hold and what they did.
    #[must_use]
    pub fn new(
        backends: Arc<Backends>,
        counts: Arc<TableUses>,
        measured: Arc<Measured>,
        locks: Arc<AdvisoryLocks>,
    ) -> Arc<Self> {
        Arc::new(Self { backends, counts, measured, locks, by_key: OnceLock::new() })
    }

    fn counted(&self) -> Counted {
        let metrics = self.measured.metrics();
        // Counts, exact up to 2^53.
        let metric = |name: &str| {
            let of = metrics.iter().filter(|metric| metric.name == name);
            of.map(|metric| metric.value).sum::<f64>() as u64
        };
        Counted {
            backends: self.backends.shown().len() as u64,
            commits: metric(COMMITS),
            conflicts: metric(CONFLICTS),
            sessions: metric(SESSIONS),
            uses: self.counts.told(),
        }
    }

    /// From here on cancel requests that arrive at other nodes are tried here, too. Only what is
    /// told first counts.
    pub fn cancelled_by(&self, by_key: ByKey) {
        let _ = self.by_key.set(by_key);
    }

    fn found(&self, question: Question) -> Answer {
        match question {
            Question::Shown => {
                let shown = self.backends.shown().into_iter().rev().take(MOST);
                Answer::Shown(shown.map(|(pid, shown)| (pid, Told::of(shown))).collect())
            }
            Question::RoleOf(pid) => Answer::Role(self.backends.role_of(pid)),
            Question::Signal { pid, terminate: true } => {
                Answer::Found(self.backends.terminate(pid))
            }
            Question::Signal { pid, terminate: false } => Answer::Found(self.backends.cancel(pid)),
            Question::Cancel { pid, key } => {
                Answer::Found(self.by_key.get().is_some_and(|by_key| by_key(pid, &key)))
            }
            Question::Counted => Answer::Counted(self.counted()),
            Question::Hold(hold) => {
                self.locks.database().hold(hold.hold());
                Answer::Found(true)
            }
            Question::Lift(id) => {
                self.locks.database().lift(id);
                Answer::Found(true)
            }
            Question::Encrypted => {
                let shown = self.backends.shown().into_iter().rev().take(MOST);
                let of = |shown: Activity| shown.encrypted.as_deref().cloned();
                Answer::Encrypted(shown.map(|(pid, shown)| (pid, of(shown))).collect())
            }
            Question::Locks => {
                let locks = self.locks.shown().into_iter().take(MOST);
                Answer::Locks(locks.map(ToldLock::of).collect())
            }
        }
    }
}

#[async_trait]
impl Answers for OwnSessions {
    async fn answer(&self, question: Bytes) -> Option<Bytes> {
        let question = postcard::from_bytes(&question).ok()?;
        postcard::to_stdvec(&self.found(question)).ok().map(Bytes::from)
    }
}

async fn ask(database: &Arc<dyn Database>, question: &Question) -> Vec<Answer> {
    let Some(peers) = database.peers() else { return Vec::new() };
    // It holds numbers and texts only: it always encodes.
    let question = Bytes::from(postcard::to_stdvec(question).unwrap_or_default());
    let answers = peers.ask(question, WITHIN).await.into_iter();
    answers.filter_map(|(_, answer)| postcard::from_bytes(&answer).ok()).collect()
}

/// What the sessions of all other nodes do.
pub async fn shown(database: &Arc<dyn Database>) -> Vec<(i32, Activity)> {
    let answers = ask(database, &Question::Shown).await.into_iter();
    let sessions = answers.filter_map(|answer| match answer {
        Answer::Shown(sessions) => Some(sessions),
        _ => None,
    });
    sessions.flatten().map(|(pid, told)| (pid, told.shown())).collect()
}

/// The sessions of all other nodes with how their connections are encrypted; without those of nodes
/// that cannot tell.
pub async fn encrypted(database: &Arc<dyn Database>) -> Vec<(i32, Activity)> {
    let mut known = BTreeMap::new();
    for answer in ask(database, &Question::Encrypted).await {
        let Answer::Encrypted(sessions) = answer else { continue };
        known.extend(sessions);
    }
    let sessions = shown(database).await.into_iter();
    let with = sessions.filter_map(|(pid, shown)| {
        let encrypted = known.remove(&pid)?.map(Arc::new);
        Some((pid, Activity { encrypted, ..shown }))
    });
    with.collect()
}

/// What all other nodes have counted.
pub async fn counted(database: &Arc<dyn Database>) -> Counts {
    let mut counts = Counts::default();
    for answer in ask(database, &Question::Counted).await {
        let Answer::Counted(told) = answer else { continue };
        counts.backends += told.backends;
        counts.commits += told.commits;
        counts.conflicts += told.conflicts;
        counts.sessions += told.sessions;
        counts.uses.add(told.uses);
    }
    counts
}

/// The advisory locks that sessions of all other nodes hold or wait for.
pub async fn locks(database: &Arc<dyn Database>) -> Vec<LockShown> {
    let answers = ask(database, &Question::Locks).await.into_iter();
    let locks = answers.filter_map(|answer| match answer {
        Answer::Locks(locks) => Some(locks),
        _ => None,
    });
    locks.flatten().map(ToldLock::shown).collect()
}

/// Has all other nodes hold back what others commit into what `hold` is of.
pub async fn hold(database: &Arc<dyn Database>, hold: &Hold) {
    ask(database, &Question::Hold(ToldHold::of(hold))).await;
}

/// Ends that.
pub async fn lift(database: &Arc<dyn Database>, id: u128) {
    ask(database, &Question::Lift(id)).await;
}

/// OID of the role of a session of another node; `None`: none has it.
pub async fn role_of(database: &Arc<dyn Database>, pid: i32) -> Option<u32> {
    ask(database, &Question::RoleOf(pid)).await.into_iter().find_map(|answer| match answer {
        Answer::Role(role) => role,
        _ => None,
    })
}

/// Has a session of another node stop what it runs, or end; whether there is one.
pub async fn signal(database: &Arc<dyn Database>, pid: i32, terminate: bool) -> bool {
    any(ask(database, &Question::Signal { pid, terminate }).await)
}

/// Tries a client's cancel request on all other nodes; whether one has the session.
pub async fn cancel(database: &Arc<dyn Database>, pid: i32, key: &[u8]) -> bool {
    any(ask(database, &Question::Cancel { pid, key: key.to_vec() }).await)
}

fn any(answers: Vec<Answer>) -> bool {
    answers.iter().any(|answer| matches!(answer, Answer::Found(true)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn locks_are_told_to_another_node_as_they_are() {
        let key = LockKey { class: 3, object: 4, sub: 2 };
        for (mode, granted) in [(LockMode::Shared, true), (LockMode::Exclusive, false)] {
            let lock = || LockShown { key, mode, pid: 77, granted };
            let bytes = postcard::to_stdvec(&ToldLock::of(lock())).expect("encodes");
            let told: ToldLock = postcard::from_bytes(&bytes).expect("decodes");
            assert_eq!(format!("{:?}", told.shown()), format!("{:?}", lock()));
        }
    }

    #[test]
    fn session_is_told_to_another_node_as_it_is() {
        let shown = Activity {
            user: "ada".to_owned(),
            role: 7,
            application_name: "shop".to_owned(),
            backend_start: 1,
            xact_start: Some(2),
            query_start: None,
            state_change: 3,
            state: "idle in transaction",
            query: "SELECT 1".to_owned(),
            client: Some(([127, 0, 0, 1], 5).into()),
            encrypted: None,
            wait: Wait::Advisory,
        };
        let bytes = postcard::to_stdvec(&Told::of(shown.clone())).expect("encodes");
        let told: Told = postcard::from_bytes(&bytes).expect("decodes");
        assert_eq!(format!("{:?}", told.shown()), format!("{shown:?}"));
    }
}
