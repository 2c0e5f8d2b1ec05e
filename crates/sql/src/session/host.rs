//! What the process does for statements that it executes for other regions, as it does for those of
//! its own clients: they are counted, shown, stopped, and have their turn on its threads.
//!
//! # Invariants
//! - Such a statement is in `pg_stat_activity` from its beginning to its end, under a process id of
//!   its own, with the user and the application name of its session. Who may see and stop it is
//!   decided by the role, as for any other.
//! - It waits for a thread as a client's statement does, in the same queue, where the process has
//!   one ([`Host`]).
//!
//! # Limits
//! Process ids are drawn from the upper quarter of the numbers: those of clients count up from the
//! lower half. It does not count for the connection limit of its role, which is for where the role
//! has logged in.

use std::fmt::Debug;
use std::sync::Arc;
use std::task::{Context, Poll};

use telesto_common::Env;
use telesto_common::wait::{self, Wait};

use super::Session;
use crate::error::Error;
use crate::plan::activity::Shown;
use crate::plan::cancel::{Backends, CancelHandle};

/// A server, as far as its threads go.
pub trait Host: Debug + Send + Sync {
    /// Why no new work is taken now; `None`: it is.
    fn turned_away(&self) -> Option<Error>;

    /// Where the statements of the session that `handle` stops are polled.
    fn turn(&self, handle: CancelHandle) -> Box<dyn Turn>;
}

/// Where a session's statements are polled.
pub trait Turn: Debug + Send {
    /// Polls `work` when it is its turn; it is called once at most.
    fn poll(
        &mut self,
        context: &mut Context<'_>,
        work: &mut dyn FnMut(&mut Context<'_>) -> Poll<()>,
    ) -> Poll<()>;
}

/// The threads of a process without a server.
#[derive(Debug)]
pub(super) struct Threads {
    pub env: Env,
    pub handle: CancelHandle,
}

impl Turn for Threads {
    fn poll(
        &mut self,
        context: &mut Context<'_>,
        work: &mut dyn FnMut(&mut Context<'_>) -> Poll<()>,
    ) -> Poll<()> {
        wait::begun();
        let mut polled = Poll::Pending;
        if self.handle.computes() {
            // It may compute for long.
            self.env.tasks.compute(&mut || polled = work(context));
        } else {
            polled = work(context);
        }
        self.handle.waits_for(if polled.is_pending() { wait::last() } else { Wait::None });
        polled
    }
}

/// A statement's place among the sessions of this process; it leaves it when dropped.
#[derive(Debug)]
pub(super) struct Guest {
    backends: Arc<Backends>,
    handle: CancelHandle,
    pid: i32,
}

impl Guest {
    /// Of `session`, which executes it.
    pub fn enter(session: &mut Session) -> Self {
        let (backends, handle) = (Arc::clone(&session.live.backends), session.cancel_handle());
        let shown: Arc<Shown> = Arc::clone(&session.shown);
        let random = &session.engine.env.random;
        let pid = loop {
            let drawn = (random.next_u64() >> 35) as i32 | 0x6000_0000;
            if backends.enter_guest(drawn, handle.clone(), Arc::clone(&shown)) {
                break drawn;
            }
        };
        session.spending.set_pid(pid);
        Self { backends, handle, pid }
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        self.backends.leave(self.pid, &self.handle);
    }
}
