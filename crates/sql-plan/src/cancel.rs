//! Stopping a session's statement, or the session, from elsewhere.
//!
//! # Invariants
//! A cancel concerns the statement under way when it comes, never the next one.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use telesto_common::env::Clock;
use telesto_common::limits::MemoryBudget;
use telesto_common::wait::Wait;

use crate::activity::{Activity, Shown};
use telesto_sql_types::error::Result;
use telesto_sql_types::interrupt::Shared;
pub use telesto_sql_types::interrupt::{Ending, Probe};

/// Stops the statement a session is running, or the session, from any task.
#[derive(Clone, Debug, Default)]
pub struct CancelHandle(Arc<Shared>);

impl CancelHandle {
    /// Of a session whose statements have time limits by `clock` and make their values within
    /// `memory`.
    #[must_use]
    pub fn new(clock: Arc<dyn Clock>, memory: &Arc<MemoryBudget>) -> Self {
        Self(Arc::new(Shared::new(clock, memory)))
    }

    /// Makes the statement running now fail with 57014; without one, does nothing.
    pub fn cancel(&self) {
        self.0.cancel();
    }

    /// Ends the session: its statement fails with 57P01 (or 08006 when the client is gone), and
    /// [`CancelHandle::ended`] resolves.
    pub fn end(&self, ending: Ending) {
        self.0.end(ending);
    }

    /// Why the session is to end; `None`: it is not.
    #[must_use]
    pub fn ending(&self) -> Option<Ending> {
        self.0.ending()
    }

    /// Resolves when the session is to end.
    pub async fn ended(self) {
        self.0.told(|shared| shared.ending().is_some()).await;
    }

    /// Has computing statements ask `probe` now and then whether the client is still there.
    pub fn watch(&self, probe: Probe) {
        self.0.set_probe(probe);
    }

    /// The session waits for this from now on, as others see it.
    pub fn waits_for(&self, wait: Wait) {
        self.0.waits_for(wait);
    }

    /// Whether the statement under way may compute for long: it should be polled where that holds
    /// up nobody.
    #[must_use]
    pub fn computes(&self) -> bool {
        self.0.is_computing()
    }

    /// Whether the statement under way is to stop, by its time limit too. It will, when it is
    /// polled.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.0.is_over(self.0.number())
    }

    /// Starts a statement that may take `limit`.
    pub fn begin(&self, number: u64, limit: Option<Duration>) -> CancelToken {
        self.0.begin(number, limit);
        self.token(number)
    }

    /// The token of statement `number`.
    pub fn token(&self, number: u64) -> CancelToken {
        CancelToken { shared: Arc::clone(&self.0), statement: number }
    }

    /// Ends the statement under way.
    pub fn finish(&self) {
        self.0.finish();
    }

    /// What computing code looks at.
    #[must_use]
    pub fn shared(&self) -> &Arc<Shared> {
        &self.0
    }
}

/// The sessions of this process by the process id each shows, for `pg_cancel_backend` and its kin.
#[derive(Debug, Default)]
pub struct Backends {
    sessions: Mutex<BTreeMap<i32, Backend>>,
    /// How many sessions each role has logged in here.
    slots: Mutex<BTreeMap<u32, usize>>,
}

/// A session's place among those that its role may have here (CONNECTION LIMIT), from its log-in to
/// its end.
#[derive(Debug)]
pub struct ConnectionSlot {
    backends: Arc<Backends>,
    role: u32,
}

impl Drop for ConnectionSlot {
    fn drop(&mut self) {
        let mut slots = self.backends.slots.lock();
        if let Some(taken) = slots.get_mut(&self.role) {
            *taken -= 1;
            if *taken == 0 {
                slots.remove(&self.role);
            }
        }
    }
}

#[derive(Clone, Debug)]
struct Backend {
    handle: CancelHandle,
    shown: Arc<Shown>,
}

impl Backend {
    fn activity(&self) -> Activity {
        let activity = self.shown.get();
        let wait = match activity.state {
            "active" => self.handle.0.wait(),
            _ => Wait::ClientRead,
        };
        Activity { wait, ..activity }
    }
}

impl Backends {
    /// Enters a session.
    pub fn enter(&self, pid: i32, handle: CancelHandle, shown: Arc<Shown>) {
        self.sessions.lock().insert(pid, Backend { handle, shown });
    }

    /// Enters a session that executes a statement of another region; false: the process id is
    /// taken.
    pub fn enter_guest(&self, pid: i32, handle: CancelHandle, shown: Arc<Shown>) -> bool {
        let mut sessions = self.sessions.lock();
        let free = !sessions.contains_key(&pid);
        if free {
            sessions.insert(pid, Backend { handle, shown });
        }
        free
    }

    /// Takes a session out, if the process id is still its own.
    pub fn leave(&self, pid: i32, handle: &CancelHandle) {
        let mut sessions = self.sessions.lock();
        if sessions.get(&pid).is_some_and(|there| Arc::ptr_eq(&there.handle.0, &handle.0)) {
            sessions.remove(&pid);
        }
    }

    /// Cancels what the session is running; false: there is none.
    pub fn cancel(&self, pid: i32) -> bool {
        self.with(pid, CancelHandle::cancel)
    }

    /// Ends the session; false: there is none.
    pub fn terminate(&self, pid: i32) -> bool {
        self.with(pid, |handle| handle.end(Ending::Terminated))
    }

    /// OID of the role of a session; `None`: there is none.
    pub fn role_of(&self, pid: i32) -> Option<u32> {
        self.sessions.lock().get(&pid).map(|backend| backend.shown.get().role)
    }

    /// A place for one more session of a role, counted and taken at once; `None`: it has `limit`
    /// sessions.
    pub fn slot(self: &Arc<Self>, role: u32, limit: Option<usize>) -> Option<ConnectionSlot> {
        let mut slots = self.slots.lock();
        let taken = slots.entry(role).or_default();
        if limit.is_some_and(|limit| *taken >= limit) {
            if *taken == 0 {
                slots.remove(&role);
            }
            return None;
        }
        *taken += 1;
        Some(ConnectionSlot { backends: Arc::clone(self), role })
    }

    /// What every session is doing, by process id.
    pub fn shown(&self) -> Vec<(i32, Activity)> {
        let sessions = self.sessions.lock();
        sessions.iter().map(|(pid, backend)| (*pid, backend.activity())).collect()
    }

    /// [`Backends::shown`], of the sessions that run a statement or hold a transaction open.
    pub fn active(&self) -> Vec<(i32, Activity)> {
        let busy = |backend: &&Backend| !matches!(backend.shown.state(), "idle" | "");
        let sessions = self.sessions.lock();
        let busy = sessions.iter().filter(|(_, backend)| busy(backend));
        busy.map(|(pid, backend)| (*pid, backend.activity())).collect()
    }

    fn with(&self, pid: i32, act: impl FnOnce(&CancelHandle)) -> bool {
        let found = self.sessions.lock().get(&pid).map(|backend| backend.handle.clone());
        found.as_ref().map(act).is_some()
    }
}

/// One statement's view of a [`CancelHandle`].
#[derive(Clone, Debug)]
pub struct CancelToken {
    shared: Arc<Shared>,
    statement: u64,
}

impl CancelToken {
    /// Fails when the statement is to stop.
    ///
    /// # Errors
    /// 57014; 57P01 or 08006 when the session is to end.
    pub fn check(&self) -> Result<()> {
        self.shared.look(self.statement)
    }

    /// The time of the statement is over: every look at it fails from now on.
    pub fn time_out(&self) {
        self.shared.time_out(self.statement);
    }

    /// What computing code looks at.
    #[must_use]
    pub fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    /// Resolves when the statement is to stop.
    pub async fn cancelled(&self) {
        self.shared.told(|shared| shared.look(self.statement).is_err()).await;
    }
}
