//! What a session waits for, told without anybody asking.
//!
//! ```text
//! poll of a session's work ── begun() ──> … on(Wait::Commit, future): pending? remember it … ──> last(): shown in pg_stat_activity
//! ```
//! # Invariants
//! - The innermost place that waits is the one that is told, the first of several that wait
//!   together.
//! - A wait costs a store to a thread-local when a poll ends without a result; work that does not
//!   wait pays nothing.
//!
//! # Limits
//! What a session's work waits for in another task is told as the place where the session waits for
//! that task.

use std::cell::Cell;
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::task::Poll;

/// Why a session stands still.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u8)]
pub enum Wait {
    /// It does not, or nobody knows.
    #[default]
    None,
    /// For its client's next message.
    ClientRead,
    /// For its client to take what was sent.
    ClientWrite,
    /// For a commit to be safe in the log.
    Commit,
    /// For the newest position of the log, and for what is before it to be applied.
    Tail,
    /// For the log's owner, another node.
    Owner,
    /// For rows that are not in memory: from the local disk or the bucket.
    Rows,
    /// For a thread, while as many statements compute as may.
    Slot,
    /// For a row that another transaction is changing.
    Row,
    /// For an advisory lock.
    Advisory,
    /// For time to pass: `pg_sleep`.
    Sleep,
}

impl Wait {
    /// The one with this number (`self as u8`); none for a number of a newer version.
    #[must_use]
    pub fn numbered(number: u8) -> Self {
        Self::ALL.get(usize::from(number)).copied().unwrap_or_default()
    }

    const ALL: [Self; 11] = [
        Self::None,
        Self::ClientRead,
        Self::ClientWrite,
        Self::Commit,
        Self::Tail,
        Self::Owner,
        Self::Rows,
        Self::Slot,
        Self::Row,
        Self::Advisory,
        Self::Sleep,
    ];

    /// The one with this number.
    #[must_use]
    pub fn of(number: u8) -> Self {
        Self::ALL.get(usize::from(number)).copied().unwrap_or_default()
    }

    /// `wait_event_type` and `wait_event`; nothing when it does not wait.
    #[must_use]
    pub fn names(self) -> Option<(&'static str, &'static str)> {
        Some(match self {
            Self::None => return None,
            Self::ClientRead => ("Client", "ClientRead"),
            Self::ClientWrite => ("Client", "ClientWrite"),
            Self::Commit => ("Log", "Commit"),
            Self::Tail => ("Log", "Tail"),
            Self::Owner => ("Network", "LogOwner"),
            Self::Rows => ("Bucket", "Rows"),
            Self::Slot => ("Queue", "ComputeSlot"),
            Self::Row => ("Conflict", "Row"),
            Self::Advisory => ("Lock", "advisory"),
            Self::Sleep => ("Timeout", "PgSleep"),
        })
    }
}

thread_local! {
    static LAST: Cell<Wait> = const { Cell::new(Wait::None) };
}

/// A poll of a session's work begins on this thread.
pub fn begun() {
    LAST.set(Wait::None);
}

/// What the work that was polled since [`begun`] waits for.
#[must_use]
pub fn last() -> Wait {
    LAST.get()
}

/// `future`, which waits for what is named when it does not go on.
pub async fn on<F: Future>(wait: Wait, future: F) -> F::Output {
    let mut future = pin!(future);
    poll_fn(|context| {
        let polled = future.as_mut().poll(context);
        if polled.is_pending() && LAST.get() == Wait::None {
            LAST.set(wait);
        }
        polled
    })
    .await
}

/// [`on`], inside of a poll: notes that `polled` waits for what is named.
pub fn noted<T>(wait: Wait, polled: Poll<T>) -> Poll<T> {
    if polled.is_pending() && LAST.get() == Wait::None {
        LAST.set(wait);
    }
    polled
}

#[cfg(test)]
mod tests {
    use std::task::{Context, Waker};

    use super::*;

    #[test]
    fn innermost_wait_is_told_and_none_after_it_is_over() {
        let gate = std::sync::atomic::AtomicBool::new(false);
        let open = || match gate.load(std::sync::atomic::Ordering::Relaxed) {
            true => Poll::Ready(7),
            false => Poll::Pending,
        };
        let mut work = pin!(on(Wait::Commit, async {
            on(Wait::Owner, poll_fn(|_| open())).await + on(Wait::Rows, async { 1 }).await
        }));
        let mut context = Context::from_waker(Waker::noop());
        begun();
        assert!(work.as_mut().poll(&mut context).is_pending());
        assert_eq!((last(), last().names()), (Wait::Owner, Some(("Network", "LogOwner"))));
        gate.store(true, std::sync::atomic::Ordering::Relaxed);
        begun();
        assert_eq!(work.as_mut().poll(&mut context), Poll::Ready(8));
        assert_eq!((last(), last().names()), (Wait::None, None));
    }

    #[test]
    fn numbers_of_waits_lead_back_to_them() {
        for wait in Wait::ALL {
            assert_eq!(Wait::of(wait as u8), wait);
        }
        assert_eq!(Wait::of(200), Wait::None);
    }
}
