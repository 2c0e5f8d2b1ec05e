//! LISTEN, NOTIFY, UNLISTEN and their functions, from the commit log.
//!
//! # Protocol
//! ```text
//! NOTIFY, pg_notify ──> the session's pending list ── COMMIT ──> Transaction::tell: messages beside the commit in its log entry
//!                                                                     │  every process that applies the entry
//! LISTEN ── COMMIT ──> hub (process): channel -> sessions <───────────┘  Database::hear
//!                        └─ each session's queue ──> NotificationResponse: at once when idle, else before ReadyForQuery
//! ```
//! Messages are no state: they are in the log entry and nowhere else, so nothing piles up in the
//! store, and a process keeps none that nobody of its own listens to.
//!
//! # Invariants
//! - A notification is delivered if and only if its transaction committed, in the order of the log,
//!   once for each listening session, when what the transaction wrote can be read.
//! - A session that listens gets every notification committed after its LISTEN committed, or is
//!   told that it may have missed some ([`Lost`]): never silence.
//! - A hub that somebody listens at looks at the log's tail at least every
//!   `SqlOptions::listen_poll`; one that nobody listens at asks for nothing.
//!
//! # On failure
//! A process that dies was the only one that knew its listeners. A bucket that cannot be read
//! delays notifications.
//!
//! # Limits
//! [`MAX_PAYLOAD`] and [`MAX_CHANNEL`] as in PostgreSQL; [`MAX_PENDING_BYTES`] a transaction;
//! [`MAX_WAITING_BYTES`] wait for a session that does not take them, then it is ended.

pub mod hub;
pub mod session;

use bytes::{BufMut as _, Bytes, BytesMut};
use telesto_common::DatabaseId;

use telesto_sql_types::error::{Error, Result, SqlState};

/// A payload is shorter than this, bytes.
pub const MAX_PAYLOAD: usize = 8000;
/// A channel's name is shorter than this, bytes.
pub const MAX_CHANNEL: usize = 64;
/// Notifications of one transaction, encoded, bytes.
pub const MAX_PENDING_BYTES: usize = 4 << 20;
/// Notifications that wait for one session, bytes.
pub const MAX_WAITING_BYTES: usize = 16 << 20;
/// Counted for each that waits beside its texts, bytes.
const OVERHEAD: usize = 100;
const VERSION: u8 = 1;

/// A notification, as a listening session gets it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Notification {
    /// The process id of the session that sent it.
    pub pid: i32,
    /// The channel.
    pub channel: String,
    /// The payload; empty for none.
    pub payload: String,
}

impl Notification {
    fn waiting_bytes(&self) -> usize {
        self.channel.len() + self.payload.len() + OVERHEAD
    }

    fn encode(&self, database: DatabaseId) -> Bytes {
        let mut out = BytesMut::with_capacity(10 + self.channel.len() + self.payload.len());
        out.put_u8(VERSION);
        out.put_u32(database.0);
        out.put_i32(self.pid);
        // Checked when it was asked for.
        out.put_u8(u8::try_from(self.channel.len()).unwrap_or(u8::MAX));
        out.put_slice(self.channel.as_bytes());
        out.put_slice(self.payload.as_bytes());
        out.freeze()
    }
}

/// A stored notification, read as far as is needed to know whether anybody wants it.
#[derive(Debug)]
pub struct Stored<'a> {
    /// The database it belongs to.
    pub database: DatabaseId,
    /// Its channel.
    pub channel: &'a str,
    pid: i32,
    payload: &'a [u8],
}

impl<'a> Stored<'a> {
    /// `None`: of a version this process does not know, or damaged.
    pub fn read(bytes: &'a [u8]) -> Option<Self> {
        let (&version, rest) = bytes.split_first()?;
        if version != VERSION {
            return None;
        }
        let (database, rest) = rest.split_first_chunk::<4>()?;
        let (pid, rest) = rest.split_first_chunk::<4>()?;
        let (&length, rest) = rest.split_first()?;
        let (channel, payload) = rest.split_at_checked(usize::from(length))?;
        Some(Self {
            database: DatabaseId(u32::from_be_bytes(*database)),
            channel: std::str::from_utf8(channel).ok()?,
            pid: i32::from_be_bytes(*pid),
            payload,
        })
    }

    /// `None`: its payload is no text.
    pub fn notification(&self) -> Option<Notification> {
        Some(Notification {
            pid: self.pid,
            channel: self.channel.to_owned(),
            payload: std::str::from_utf8(self.payload).ok()?.to_owned(),
        })
    }
}

/// Why a session cannot get every notification it is owed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lost {
    /// It does not take them as fast as they come.
    TooMany,
    /// This process was asleep, or cut off, for so long that the log was trimmed past it.
    Missed,
    /// A stored notification could not be read.
    Unreadable,
}

impl Lost {
    /// What to tell the client; its session ends with this.
    #[must_use]
    pub fn error(self) -> Error {
        match self {
            Self::TooMany => Error::new(
                SqlState::PROGRAM_LIMIT_EXCEEDED,
                "terminating connection: too many notifications wait for this session",
            )
            .hint("Connect and LISTEN again, read notifications as they come, and do not stay in a transaction while listening."),
            Self::Missed => Error::new(
                SqlState::ADMIN_SHUTDOWN,
                "terminating connection: notifications may have been missed while this node was out of contact with the log",
            )
            .hint("Connect and LISTEN again, and look at the tables for what may have been missed."),
            Self::Unreadable => Error::new(
                SqlState::DATA_CORRUPTED,
                "terminating connection: a notification in the log cannot be read by this version",
            )
            .hint("Upgrade this node to the newest version among those on the bucket, then connect and LISTEN again."),
        }
    }
}

/// Checks what NOTIFY and `pg_notify` are given.
///
/// # Errors
/// 22023.
pub fn check(channel: &str, payload: &str) -> Result<()> {
    let wrong = |text: &str| Err(Error::new(SqlState::INVALID_PARAMETER_VALUE, text));
    if channel.is_empty() {
        return wrong("channel name cannot be empty");
    }
    if channel.len() >= MAX_CHANNEL {
        return wrong("channel name too long");
    }
    if payload.len() >= MAX_PAYLOAD {
        return wrong("payload string too long");
    }
    Ok(())
}

/// The channel an identifier names: cut to what a name may be, as PostgreSQL cuts identifiers.
pub fn channel_of(name: &str) -> &str {
    let mut end = name.len().min(MAX_CHANNEL - 1);
    while !name.is_char_boundary(end) {
        end -= 1;
    }
    &name[..end]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stored_notification_is_the_documented_bytes_and_reads_back() {
        let sent = Notification { pid: 7, channel: "ab".to_owned(), payload: "xyz".to_owned() };
        let bytes = sent.encode(DatabaseId(1));
        assert_eq!(&bytes[..], b"\x01\0\0\0\x01\0\0\0\x07\x02abxyz");
        let stored = Stored::read(&bytes).expect("reads");
        assert_eq!((stored.database, stored.channel), (DatabaseId(1), "ab"));
        assert_eq!(stored.notification(), Some(sent));
        for cut in 0..12 {
            assert!(Stored::read(&bytes[..cut]).is_none(), "{cut} bytes");
        }
        assert!(Stored::read(b"\x02\0\0\0\x01\0\0\0\x07\x02ab").is_none(), "a newer version");
    }

    #[test]
    fn channel_of_a_long_identifier_is_cut_between_letters() {
        assert_eq!(channel_of(&"x".repeat(70)).len(), 63);
        assert_eq!(channel_of(&"é".repeat(40)).len(), 62);
        assert_eq!(channel_of("short"), "short");
    }
}
