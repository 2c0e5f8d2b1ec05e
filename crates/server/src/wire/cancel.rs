//! Cancel requests: which session a process id and secret key name.
//!
//! # Invariants
//! - A secret is random and as long as the client's protocol allows: 4 bytes in 3.0, 32 in 3.2.
//! - A wrong key does nothing and tells nothing: the requester never gets an answer.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::{BufMut as _, Bytes, BytesMut};
use parking_lot::Mutex;
use telesto_common::Env;
use telesto_sql::CancelHandle;

/// The sessions that can be cancelled.
#[derive(Debug, Default)]
pub struct Cancels {
    sessions: Mutex<Sessions>,
}

#[derive(Debug, Default)]
struct Sessions {
    last: i32,
    by_pid: BTreeMap<i32, (Bytes, CancelHandle)>,
}

/// A session's place among them; leaves it when dropped.
#[derive(Debug)]
pub struct Registered {
    cancels: Arc<Cancels>,
    /// Process id told to the client.
    pub pid: i32,
    /// Secret key told to the client.
    pub secret: Bytes,
}

impl Cancels {
    /// Enters a session.
    #[must_use]
    pub fn register(self: &Arc<Self>, env: &Env, long: bool, handle: CancelHandle) -> Registered {
        let mut secret = BytesMut::new();
        if long {
            secret.put_u128(env.random_u128());
            secret.put_u128(env.random_u128());
        } else {
            secret.put_u32((env.random.next_u64() >> 32) as u32);
        }
        let secret = secret.freeze();
        let mut sessions = self.sessions.lock();
        let mut pid = sessions.last;
        loop {
            pid = if pid == i32::MAX { 1 } else { pid + 1 };
            if !sessions.by_pid.contains_key(&pid) {
                break;
            }
        }
        sessions.last = pid;
        sessions.by_pid.insert(pid, (secret.clone(), handle));
        Registered { cancels: Arc::clone(self), pid, secret }
    }

    /// Process ids from here on are above those of sessions that another process had: they are
    /// entered one by one.
    pub fn begin_above(&self, pids: impl Iterator<Item = i32>) {
        let mut sessions = self.sessions.lock();
        sessions.last = pids.fold(sessions.last, i32::max);
    }

    /// Enters a session that another process had, under the key that its client knows; `None`: the
    /// process id is taken.
    #[must_use]
    pub fn register_again(
        self: &Arc<Self>,
        (pid, secret): (i32, Bytes),
        handle: CancelHandle,
    ) -> Option<Registered> {
        let mut sessions = self.sessions.lock();
        if sessions.by_pid.contains_key(&pid) {
            return None;
        }
        sessions.by_pid.insert(pid, (secret.clone(), handle));
        Some(Registered { cancels: Arc::clone(self), pid, secret })
    }

    /// Cancels the statement that session `pid` is running, if `secret` is its key; whether it is.
    pub fn cancel(&self, pid: i32, secret: &[u8]) -> bool {
        let handle = match self.sessions.lock().by_pid.get(&pid) {
            Some((key, handle)) if same(key, secret) => handle.clone(),
            _ => return false,
        };
        handle.cancel();
        true
    }

    /// Process ids begin at a number drawn at random: those of several nodes are told apart by it.
    pub fn begin_anywhere(&self, env: &Env) {
        // Half of the numbers are left to count on.
        self.sessions.lock().last = (env.random.next_u64() >> 34) as i32;
    }
}

/// Compares in a time that depends on the lengths only.
fn same(a: &[u8], b: &[u8]) -> bool {
    a.len() == b.len() && a.iter().zip(b).fold(0, |differing, (a, b)| differing | (a ^ b)) == 0
}

impl Drop for Registered {
    fn drop(&mut self) {
        self.cancels.sessions.lock().by_pid.remove(&self.pid);
    }
}
