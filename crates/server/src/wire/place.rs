//! Where a session's statement is polled: on the thread at hand, or apart from everybody else.
//!
//! ```text
//! poll of a statement ── may it compute for long? ── no ──> here: a warm point read costs no hop
//!                                                 └─ yes ─> a slot free? ── yes ─> `Spawn::compute`: the thread's other
//!                                                                        │         tasks and its driver go on elsewhere
//!                                                                        └─ no ──> waits; its limits hold meanwhile
//! ```
//!
//! # Invariants
//! - A statement that may compute for long is never polled where another session or the sockets
//!   wait for the thread.
//! - At most as many threads compute as there are slots: each holds memory of its own. What is
//!   executed for other regions takes them, too.
//! - A statement without a slot still ends when it is cancelled, when its time is over, and with
//!   its session.
//!
//! # Limits
//! While every slot computes, further statements that may compute wait for one; those that surely
//! do not go on.

use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use futures::future::BoxFuture;
use telesto_common::Env;
use telesto_common::wait::{self, Wait};
use telesto_sql::{CancelHandle, Error, Host, Turn};
use tokio::sync::Semaphore;
use tokio_util::sync::PollSemaphore;

use super::admission::turned_away;
use crate::clients::Clients;

/// Where statements are polled that this process executes for other regions: as those of its
/// clients are.
#[derive(Debug)]
pub struct ForRegions {
    /// Of the server.
    pub env: Env,
    /// Whose turns they have.
    pub clients: Arc<Clients>,
}

impl Host for ForRegions {
    fn turned_away(&self) -> Option<Error> {
        turned_away(&self.env, &self.clients.gate)
    }

    fn turn(&self, handle: CancelHandle) -> Box<dyn Turn> {
        Box::new(Place::new(self.env.clone(), handle, Arc::clone(&self.clients.computing)))
    }
}

impl Turn for Place {
    fn poll(
        &mut self,
        context: &mut Context<'_>,
        work: &mut dyn FnMut(&mut Context<'_>) -> Poll<()>,
    ) -> Poll<()> {
        Self::poll(self, context, work)
    }
}

/// How often a statement that waits for a slot looks at its limits.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// The places of one session's statements.
pub struct Place {
    env: Env,
    handle: CancelHandle,
    slots: PollSemaphore,
    look: Option<BoxFuture<'static, ()>>,
}

impl std::fmt::Debug for Place {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Place").field("waits", &self.look.is_some()).finish_non_exhaustive()
    }
}

impl Place {
    /// Of the session that `handle` stops; `slots` are all sessions'.
    #[must_use]
    pub fn new(env: Env, handle: CancelHandle, slots: Arc<Semaphore>) -> Self {
        Self { env, handle, slots: PollSemaphore::new(slots), look: None }
    }

    /// Polls a piece of the session's work where it belongs.
    pub fn poll<T>(
        &mut self,
        context: &mut Context<'_>,
        work: impl FnOnce(&mut Context<'_>) -> Poll<T>,
    ) -> Poll<T> {
        wait::begun();
        if !self.handle.computes() {
            let polled = work(context);
            self.tell(&polled);
            return polled;
        }
        let slot = match self.slots.poll_acquire(context) {
            Poll::Ready(slot) => slot,
            // It is stopped where it stands: that takes no time.
            Poll::Pending if self.is_over(context) => return work(context),
            Poll::Pending => {
                self.handle.waits_for(Wait::Slot);
                return Poll::Pending;
            }
        };
        self.look = None;
        let mut polled = Poll::Pending;
        let mut work = Some(work);
        self.env.tasks.compute(&mut || {
            if let Some(work) = work.take() {
                polled = work(context);
            }
        });
        self.tell(&polled);
        drop(slot);
        polled
    }

    /// Others see what the work waits for.
    fn tell<T>(&self, polled: &Poll<T>) {
        let wait = if polled.is_pending() { wait::last() } else { Wait::None };
        self.handle.waits_for(wait);
    }

    /// Whether the statement is to stop; if not, looks again in a while.
    fn is_over(&mut self, context: &mut Context<'_>) -> bool {
        loop {
            if self.handle.is_over() {
                return true;
            }
            let look = self.look.get_or_insert_with(|| self.env.clock.sleep(LOOK_EVERY));
            match look.as_mut().poll(context) {
                Poll::Ready(()) => self.look = None,
                Poll::Pending => return false,
            }
        }
    }
}
