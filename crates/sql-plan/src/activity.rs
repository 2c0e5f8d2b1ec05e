//! What a session shows of itself to the others: its row of `pg_stat_activity`.
//!
//! # Invariants
//! Shown as of the moment it is asked for.

use std::net::SocketAddr;
use std::sync::Arc;

use parking_lot::{Mutex, MutexGuard};
use serde::{Deserialize, Serialize};
use telesto_common::wait::Wait;

/// How a client's connection is encrypted, as `pg_stat_ssl` shows it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Encrypted {
    /// `TLSv1.3`, …
    pub version: String,
    /// The cipher suite, in OpenSSL's words.
    pub cipher: String,
    /// Bits of its key.
    pub bits: u32,
    /// The certificate that the client showed.
    pub client: Option<ClientCertificate>,
}

/// A client's certificate. Names are written as `/O=…/CN=…`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClientCertificate {
    /// Whose it is.
    pub subject: String,
    /// Its number, decimal.
    pub serial: String,
    /// Who gave it.
    pub issuer: String,
}

/// One session, as others see it. Times are microseconds since 2000-01-01 UTC.
#[derive(Clone, Debug, Default)]
pub struct Activity {
    /// The user.
    pub user: String,
    /// OID of the role that logged in.
    pub role: u32,
    /// What the client calls itself.
    pub application_name: String,
    /// When it began.
    pub backend_start: i64,
    /// When its transaction began.
    pub xact_start: Option<i64>,
    /// When its last statement began.
    pub query_start: Option<i64>,
    /// When `state` last changed.
    pub state_change: i64,
    /// `active`, `idle`, `idle in transaction`, …
    pub state: &'static str,
    /// The text of its last statement, cut.
    pub query: String,
    /// Where its client is; `None`: in this process.
    pub client: Option<SocketAddr>,
    /// How its connection is encrypted; `None`: not at all.
    pub encrypted: Option<Arc<Encrypted>>,
    /// What it waits for.
    pub wait: Wait,
}

/// A session's activity, shared with the others.
#[derive(Debug, Default)]
pub struct Shown(Mutex<Activity>);

impl Shown {
    /// Of a session that begins.
    #[must_use]
    pub fn of((user, role): (&str, u32), now: i64) -> Self {
        Self(Mutex::new(Activity {
            user: user.to_owned(),
            role,
            backend_start: now,
            state_change: now,
            state: "idle",
            ..Activity::default()
        }))
    }

    /// What the session shows now.
    #[must_use]
    pub fn get(&self) -> Activity {
        self.0.lock().clone()
    }

    /// What it does now, in a word.
    #[must_use]
    pub fn state(&self) -> &'static str {
        self.0.lock().state
    }

    /// For the session itself, to change what it shows.
    pub fn change(&self) -> MutexGuard<'_, Activity> {
        self.0.lock()
    }
}
