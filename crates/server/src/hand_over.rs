//! Clients that go on in the process that comes after this one.
//!
//! ```text
//! this process                                                  the next one (same machine)
//!   listeners ────────── descriptors, still open ─────────────►   serves them
//!   idle sessions ────── descriptor + ClientState ────────────►   goes on with each: the client has noticed a pause
//!   sessions in a block: served to the block's end, then as above
//! ```
//! # Purpose
//! A restart or an upgrade that no client sees as an error: sockets that wait to be accepted, and
//! sessions between two transactions, are passed to the next process. How they get there (an `exec`
//! that keeps descriptors open) is the binary's business.
//!
//! # Invariants
//! - A session is passed with nothing unsent and no byte taken from its socket that was not
//!   answered.
//! - From the moment it is passed nobody here writes to its socket.
//! - A client that cannot be passed is told 57P01, as at any stop.
//!
//! # Limits
//! TLS lives in the process that made it: encrypted sessions end. What else keeps a session is told
//! by [`telesto_sql::session::passing::Held`].

use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use telesto_sql::session::passing::{PreparedState, SessionState};

/// What the next process has to know of a client, beside its socket.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ClientState {
    pub(crate) passport: Passport,
    /// Process id and secret key that the client cancels statements with.
    pub(crate) pid: i32,
    pub(crate) secret: Vec<u8>,
    /// The statement without a name.
    pub(crate) unnamed: Option<PreparedState>,
    pub(crate) session: SessionState,
}

/// Who a client showed itself to be when it connected.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Passport {
    pub(crate) user: String,
    pub(crate) database: String,
    pub(crate) application: String,
    /// This process asks for passwords, or for what its rules of entrance say instead; and was
    /// satisfied.
    pub(crate) proven: bool,
    /// It was asked for a password, and had it. Versions before this one do not say it.
    #[serde(default)]
    pub(crate) password: Option<bool>,
    pub(crate) peer: SocketAddr,
}

impl Passport {
    /// Whether it is known to have shown its password; of one that a version before this one
    /// passed, what that took for proven.
    pub(crate) fn showed_password(&self) -> bool {
        self.proven && self.password.unwrap_or(true)
    }
}

/// A client on its way.
#[derive(Debug)]
pub struct PassedClient {
    /// Its socket.
    pub socket: OwnedFd,
    /// What is known of it.
    pub state: ClientState,
}

/// Sockets that are listened on; `None`: nowhere.
#[derive(Debug, Default)]
pub struct Listeners {
    /// Of the Postgres wire.
    pub sql: Option<OwnedFd>,
    /// Of HTTP.
    pub http: Option<OwnedFd>,
    /// Of health and metrics alone.
    pub status: Option<OwnedFd>,
}

/// What one process passes to the next.
#[derive(Debug, Default)]
pub struct Passed {
    /// Where clients connect.
    pub listeners: Listeners,
    /// Clients that are connected.
    pub clients: Vec<PassedClient>,
}

/// Where clients wait for being passed.
#[derive(Debug, Default)]
pub(crate) struct Waiting {
    wanted: AtomicBool,
    clients: Mutex<Vec<PassedClient>>,
}

impl Waiting {
    /// From here on clients are passed, not ended.
    pub(crate) fn begin(&self) {
        self.wanted.store(true, Ordering::Release);
    }

    /// Whether clients are to be passed.
    pub(crate) fn is_wanted(&self) -> bool {
        self.wanted.load(Ordering::Acquire)
    }

    pub(crate) fn push(&self, client: PassedClient) {
        self.clients.lock().push(client);
    }

    pub(crate) fn take(&self) -> Vec<PassedClient> {
        std::mem::take(&mut *self.clients.lock())
    }
}
