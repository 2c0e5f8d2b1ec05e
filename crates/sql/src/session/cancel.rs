//! Cancelling a running statement.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::error::{Error, Result, SqlState};

#[derive(Debug, Default)]
struct Shared {
    /// Number of the statement under way; even: none.
    statement: AtomicU64,
    /// The statement asked to stop.
    cancelled: AtomicU64,
    notify: Notify,
}

/// Stops the statement a session is running, from any task.
#[derive(Clone, Debug, Default)]
pub struct CancelHandle(Arc<Shared>);

impl CancelHandle {
    /// Makes the statement running now fail with 57014; without one, does nothing.
    pub fn cancel(&self) {
        let statement = self.0.statement.load(Ordering::SeqCst);
        if statement != 0 {
            self.0.cancelled.store(statement, Ordering::SeqCst);
            self.0.notify.notify_waiters();
        }
    }

    /// Starts a statement.
    pub(crate) fn begin(&self, number: u64) -> CancelToken {
        self.0.statement.store(number, Ordering::SeqCst);
        CancelToken { shared: Arc::clone(&self.0), statement: number }
    }

    /// The token of statement `number`.
    pub(crate) fn token(&self, number: u64) -> CancelToken {
        CancelToken { shared: Arc::clone(&self.0), statement: number }
    }

    /// Ends the statement under way.
    pub(crate) fn end(&self) {
        self.0.statement.store(0, Ordering::SeqCst);
    }
}

/// The sessions of this process by the process id each shows, for `pg_cancel_backend`.
#[derive(Debug, Default)]
pub(crate) struct Backends(Mutex<BTreeMap<i32, CancelHandle>>);

impl Backends {
    /// Enters a session.
    pub(crate) fn enter(&self, pid: i32, handle: CancelHandle) {
        self.0.lock().insert(pid, handle);
    }

    /// Takes a session out, if the process id is still its own.
    pub(crate) fn leave(&self, pid: i32, handle: &CancelHandle) {
        let mut sessions = self.0.lock();
        if sessions.get(&pid).is_some_and(|there| Arc::ptr_eq(&there.0, &handle.0)) {
            sessions.remove(&pid);
        }
    }

    /// Cancels what the session is running; false: there is none.
    pub(crate) fn cancel(&self, pid: i32) -> bool {
        let handle = self.0.lock().get(&pid).cloned();
        handle.as_ref().map(CancelHandle::cancel).is_some()
    }
}

/// One statement's view of a [`CancelHandle`].
#[derive(Clone, Debug)]
pub struct CancelToken {
    shared: Arc<Shared>,
    statement: u64,
}

impl CancelToken {
    /// Whether the statement is to stop.
    #[must_use]
    pub fn is_cancelled(&self) -> bool {
        self.shared.cancelled.load(Ordering::Relaxed) == self.statement
    }

    /// Fails with 57014 when the statement is to stop.
    ///
    /// # Errors
    /// 57014.
    pub fn check(&self) -> Result<()> {
        if self.is_cancelled() {
            return Err(Error::new(
                SqlState::QUERY_CANCELED,
                "canceling statement due to user request",
            ));
        }
        Ok(())
    }

    /// Resolves when the statement is to stop.
    pub async fn cancelled(&self) {
        loop {
            let notified = self.shared.notify.notified();
            let mut notified = std::pin::pin!(notified);
            // Registered before the look, so that a cancel in between is not missed.
            notified.as_mut().enable();
            if self.is_cancelled() {
                return;
            }
            notified.await;
        }
    }
}
