//! What one session listens to, and what its transaction is going to say.
//!
//! # Invariants
//! - LISTEN, UNLISTEN and NOTIFY take effect when their transaction commits and leave nothing when
//!   it does not, nor when a savepoint before them is rolled back to. Executing the block again
//!   gathers them anew.
//! - One notification of the same channel and payload a transaction, at the place of its first.
//! - The hub knows the channels of a LISTEN before its transaction commits: what comes after it is
//!   not missed, the transaction's own included. What comes for a channel that the session does not
//!   listen to when it takes it is dropped.
//!
//! # On failure
//! Dropping the session leaves the hub.
//!
//! # Limits
//! See [`super::MAX_PENDING_BYTES`].

use std::collections::BTreeSet;
use std::sync::Arc;

use bytes::Bytes;
use parking_lot::Mutex;

use super::hub::{Hub, Listener};
use super::{Lost, MAX_PENDING_BYTES, Notification, OVERHEAD, channel_of, check};
use telesto_sql_types::error::{Error, Result, SqlState};

/// LISTEN or UNLISTEN.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// LISTEN to a channel.
    Listen(String),
    /// UNLISTEN a channel.
    Unlisten(String),
    /// UNLISTEN *.
    UnlistenAll,
}

/// What is asked for by a statement of its own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Asked {
    /// LISTEN or UNLISTEN.
    Change(Change),
    /// NOTIFY.
    Notify {
        /// The channel.
        channel: String,
        /// What is said.
        payload: String,
    },
}

#[derive(Debug, Default)]
struct Pending {
    changes: Vec<Change>,
    notifications: Vec<(String, String)>,
    known: BTreeSet<(String, String)>,
    bytes: usize,
    /// Lengths of both at each savepoint.
    savepoints: Vec<(usize, usize)>,
}

/// See the module's text.
#[derive(Debug)]
pub struct Channels {
    hub: Arc<Hub>,
    id: u64,
    listener: Arc<Listener>,
    listening: Mutex<BTreeSet<String>>,
    pending: Mutex<Pending>,
}

impl Channels {
    /// Of the session with this number.
    pub fn new(hub: Arc<Hub>, id: u64) -> Self {
        Self {
            hub,
            id,
            listener: Arc::default(),
            listening: Mutex::default(),
            pending: Mutex::default(),
        }
    }

    /// NOTIFY and `pg_notify`.
    ///
    /// # Errors
    /// 22023; 54000.
    pub fn notify(&self, channel: &str, payload: &str) -> Result<()> {
        check(channel, payload)?;
        let mut pending = self.pending.lock();
        let both = (channel.to_owned(), payload.to_owned());
        if pending.known.contains(&both) {
            return Ok(());
        }
        let bytes = pending.bytes + channel.len() + payload.len() + OVERHEAD;
        if bytes > MAX_PENDING_BYTES {
            return Err(Error::new(
                SqlState::PROGRAM_LIMIT_EXCEEDED,
                format!("a transaction sends more than {MAX_PENDING_BYTES} bytes of notifications"),
            )
            .hint("Send them in several transactions, or send one that says where to look."));
        }
        pending.bytes = bytes;
        pending.known.insert(both.clone());
        pending.notifications.push(both);
        Ok(())
    }

    /// A statement of its own.
    ///
    /// # Errors
    /// As [`Channels::notify`].
    pub fn ask(&self, asked: &Asked) -> Result<()> {
        match asked {
            Asked::Notify { channel, payload } => self.notify(channel_of(channel), payload),
            Asked::Change(change) => {
                self.pending.lock().changes.push(change.clone());
                Ok(())
            }
        }
    }

    /// There are `count` savepoints now; `undone`: what was asked for after the last of them is
    /// forgotten.
    pub fn savepoints(&self, count: usize, undone: bool) {
        let pending = &mut *self.pending.lock();
        pending.savepoints.truncate(count);
        let now = (pending.changes.len(), pending.notifications.len());
        while pending.savepoints.len() < count {
            pending.savepoints.push(now);
        }
        if undone && let Some((changes, notifications)) = pending.savepoints.last().copied() {
            pending.changes.truncate(changes);
            for both in pending.notifications.drain(notifications..) {
                pending.bytes -= both.0.len() + both.1.len() + OVERHEAD;
                pending.known.remove(&both);
            }
        }
    }

    /// Forgets what the transaction asked for: it ended without a commit, or is executed again.
    pub fn forget(&self) {
        let asked = std::mem::take(&mut *self.pending.lock());
        if asked.changes.iter().any(|change| matches!(change, Change::Listen(_))) {
            self.hub.only(self.id, &self.listening.lock());
        }
    }

    /// Whether the transaction has something to say.
    pub fn tells(&self) -> bool {
        !self.pending.lock().notifications.is_empty()
    }

    /// Whether the transaction asked for anything.
    pub fn asked(&self) -> bool {
        let pending = self.pending.lock();
        !(pending.notifications.is_empty() && pending.changes.is_empty())
    }

    /// Just before the commit: the hub learns what will be listened to.
    pub fn prepare(&self) {
        for change in &self.pending.lock().changes {
            if let Change::Listen(channel) = change {
                self.hub.listen(channel, self.id, &self.listener);
            }
        }
    }

    /// What the transaction says.
    pub fn messages(&self, pid: i32) -> Vec<Bytes> {
        let pending = self.pending.lock();
        let of = self.hub.database_id();
        let encode = |(channel, payload): &(String, String)| {
            Notification { pid, channel: channel.clone(), payload: payload.clone() }.encode(of)
        };
        pending.notifications.iter().map(encode).collect()
    }

    /// The transaction has committed.
    pub fn committed(&self) {
        let asked = std::mem::take(&mut *self.pending.lock());
        if asked.changes.is_empty() {
            return;
        }
        let mut listening = self.listening.lock();
        for change in asked.changes {
            match change {
                Change::Listen(channel) => {
                    listening.insert(channel);
                }
                Change::Unlisten(channel) => {
                    listening.remove(&channel);
                }
                Change::UnlistenAll => listening.clear(),
            }
        }
        self.hub.only(self.id, &listening);
    }

    /// UNLISTEN *, at once: DISCARD ALL, or the session's end.
    pub fn leave(&self) {
        let mut listening = self.listening.lock();
        if !listening.is_empty() {
            listening.clear();
            self.hub.only(self.id, &listening);
        }
    }

    /// What the session listens to.
    pub fn listening(&self) -> Vec<String> {
        self.listening.lock().iter().cloned().collect()
    }

    /// `pg_notification_queue_usage`.
    pub fn usage(&self) -> f64 {
        self.hub.usage()
    }

    /// What has come for the channels listened to.
    ///
    /// # Errors
    /// [`Lost`]: more came than is kept.
    pub fn take(&self) -> std::result::Result<Vec<Arc<Notification>>, Lost> {
        let listening = self.listening.lock();
        if listening.is_empty() {
            // What is left of channels given up, or lost with them.
            let _ = self.listener.take();
            return Ok(Vec::new());
        }
        let mut waiting = self.listener.take()?;
        waiting.retain(|notification| listening.contains(&notification.channel));
        Ok(waiting)
    }

    /// Whether it listens to anything.
    pub fn listens(&self) -> bool {
        !self.listening.lock().is_empty()
    }

    /// Resolves when there may be something to [`Channels::take`].
    pub async fn woken(&self) {
        self.listener.woken().await;
    }
}

impl Drop for Channels {
    fn drop(&mut self) {
        self.hub.only(self.id, &BTreeSet::new());
    }
}
