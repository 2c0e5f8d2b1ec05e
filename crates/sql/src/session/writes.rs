//! Whether writes get through: what `/health` tells of the log.
//!
//! # Invariants
//! Only what says that no write would get through counts: a conflict or a broken rule is the
//! statement's own.

use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;

use crate::error::{Error, SqlState};

/// The last write's trouble, if it had any.
#[derive(Debug, Default)]
pub(super) struct Writes {
    troubled: AtomicBool,
    last: Mutex<Option<Error>>,
}

impl Writes {
    /// A commit has ended.
    pub(super) fn told(&self, error: Option<&Error>) {
        match error {
            None if self.troubled.load(Ordering::Relaxed) => {
                self.troubled.store(false, Ordering::Relaxed);
                *self.last.lock() = None;
            }
            Some(error) if says_of_all(error) => {
                *self.last.lock() = Some(error.clone());
                self.troubled.store(true, Ordering::Relaxed);
            }
            _ => {}
        }
    }

    pub(super) fn trouble(&self) -> Option<Error> {
        self.last.lock().clone()
    }
}

fn says_of_all(error: &Error) -> bool {
    let code = error.code();
    [
        SqlState::TRANSACTION_RESOLUTION_UNKNOWN,
        SqlState::DISK_FULL,
        SqlState::CANNOT_CONNECT_NOW,
        SqlState::IO_ERROR,
        SqlState::DATA_CORRUPTED,
    ]
    .contains(&code)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn trouble_stays_until_a_write_gets_through() {
        let writes = Writes::default();
        writes.told(Some(&Error::new(SqlState::SERIALIZATION_FAILURE, "a conflict")));
        assert!(writes.trouble().is_none());
        writes.told(Some(&Error::new(SqlState::DATA_CORRUPTED, "the log is damaged")));
        writes.told(Some(&Error::new(SqlState::SERIALIZATION_FAILURE, "a conflict")));
        assert_eq!(writes.trouble().expect("kept").message(), "the log is damaged");
        writes.told(None);
        assert!(writes.trouble().is_none());
    }
}
