//! Who listens in this process, and the look at the log's tail for them.
//!
//! # Invariants
//! - Messages come in the order of the log and go to each queue in that order.
//! - There is one polling task while somebody listens, none while nobody does.
//! - A queue that is full, or that may have a gap, is given up whole: its session learns why and
//!   ends.
//!
//! # On failure
//! A look that fails is logged and tried again after the next interval.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::{Arc, Weak};
use std::time::Duration;

use bytes::Bytes;
use parking_lot::Mutex;
use telesto_common::{DatabaseId, Env};
use telesto_txn::{Database, MessageSink, TxnOptions};
use tokio::sync::Notify;

use super::{Lost, MAX_WAITING_BYTES, Notification, Stored};

/// One session's queue.
#[derive(Debug, Default)]
pub struct Listener {
    queue: Mutex<Queue>,
    woken: Notify,
}

#[derive(Debug, Default)]
struct Queue {
    waiting: VecDeque<Arc<Notification>>,
    bytes: usize,
    lost: Option<Lost>,
}

impl Listener {
    fn push(&self, notification: &Arc<Notification>) {
        let mut queue = self.queue.lock();
        if queue.lost.is_some() {
            return;
        }
        queue.bytes += notification.waiting_bytes();
        if queue.bytes > MAX_WAITING_BYTES {
            queue.lose(Lost::TooMany);
        } else {
            queue.waiting.push_back(Arc::clone(notification));
        }
        drop(queue);
        self.woken.notify_one();
    }

    fn lose(&self, why: Lost) {
        self.queue.lock().lose(why);
        self.woken.notify_one();
    }

    /// Takes what waits. After an error it begins anew.
    pub fn take(&self) -> Result<Vec<Arc<Notification>>, Lost> {
        let mut queue = self.queue.lock();
        if let Some(lost) = queue.lost.take() {
            return Err(lost);
        }
        queue.bytes = 0;
        Ok(std::mem::take(&mut queue.waiting).into())
    }

    /// Waits until something waits, or may wait.
    pub async fn woken(&self) {
        self.woken.notified().await;
    }

    fn used(&self) -> f64 {
        self.queue.lock().bytes as f64 / MAX_WAITING_BYTES as f64
    }
}

impl Queue {
    fn lose(&mut self, why: Lost) {
        *self = Self { lost: Some(why), ..Self::default() };
    }
}

/// Looks come no more often than this, whatever the setting.
const SHORTEST_POLL: Duration = Duration::from_millis(10);

type Sessions = BTreeMap<u64, Arc<Listener>>;

#[derive(Debug, Default)]
struct State {
    channels: BTreeMap<String, Sessions>,
    polling: bool,
}

/// The listeners of one process.
#[derive(Debug)]
pub struct Hub {
    database: Arc<dyn Database>,
    env: Env,
    of: DatabaseId,
    poll: Duration,
    state: Mutex<State>,
}

impl Hub {
    /// Hears what `database` applies.
    pub fn open(
        database: Arc<dyn Database>,
        env: Env,
        of: DatabaseId,
        poll: Duration,
    ) -> Arc<Self> {
        let poll = poll.max(SHORTEST_POLL);
        let hub = Arc::new(Self { database, env, of, poll, state: Mutex::default() });
        let weak: Weak<Self> = Arc::downgrade(&hub);
        hub.database.hear(weak);
        hub
    }

    /// The database whose messages it spreads.
    #[must_use]
    pub fn database_id(&self) -> DatabaseId {
        self.of
    }

    /// From now on `listener` gets what is said on `channel`.
    pub fn listen(self: &Arc<Self>, channel: &str, id: u64, listener: &Arc<Listener>) {
        let mut state = self.state.lock();
        let sessions = state.channels.entry(channel.to_owned()).or_default();
        sessions.insert(id, Arc::clone(listener));
        if !std::mem::replace(&mut state.polling, true) {
            self.env.spawn("listening", poll(Arc::downgrade(self), self.env.clone(), self.poll));
        }
    }

    /// The session of this number listens to these channels and no others.
    pub fn only(&self, id: u64, channels: &BTreeSet<String>) {
        self.state.lock().channels.retain(|channel, sessions| {
            if !channels.contains(channel) {
                sessions.remove(&id);
            }
            !sessions.is_empty()
        });
    }

    /// How full the fullest queue is, from 0 to 1.
    pub fn usage(&self) -> f64 {
        let state = self.state.lock();
        state.channels.values().flat_map(Sessions::values).map(|l| l.used()).fold(0.0, f64::max)
    }

    fn stop_polling_if_idle(&self) -> bool {
        let mut state = self.state.lock();
        state.polling = !state.channels.is_empty();
        !state.polling
    }

    fn lose_all(&self, why: Lost) {
        for listener in self.state.lock().channels.values().flat_map(Sessions::values) {
            listener.lose(why);
        }
    }
}

impl MessageSink for Hub {
    fn messages(&self, messages: &[Bytes]) {
        let state = self.state.lock();
        if state.channels.is_empty() {
            return;
        }
        for message in messages {
            let Some(stored) = Stored::read(message) else {
                drop(state);
                return self.lose_all(Lost::Unreadable);
            };
            if stored.database != self.of {
                continue;
            }
            let Some(sessions) = state.channels.get(stored.channel) else { continue };
            let Some(notification) = stored.notification() else {
                drop(state);
                return self.lose_all(Lost::Unreadable);
            };
            let notification = Arc::new(notification);
            for listener in sessions.values() {
                listener.push(&notification);
            }
        }
    }

    fn missed(&self) {
        self.lose_all(Lost::Missed);
    }
}

/// Looks at the log's tail now and then, for what other processes commit, while somebody listens. A
/// process that sequences the log knows its tail: its looks ask for nothing.
async fn poll(hub: Weak<Hub>, env: Env, interval: Duration) {
    loop {
        env.clock.sleep(interval).await;
        let Some(hub) = hub.upgrade() else { return };
        if hub.stop_polling_if_idle() {
            return;
        }
        // The begin of a strict read is a look, shared with whoever else wants one.
        let options = TxnOptions { read_only: true, ..TxnOptions::default() };
        match hub.database.begin(options).await {
            Ok(txn) => txn.rollback(),
            Err(error) => tracing::warn!(%error, "looking for notifications; tried again"),
        }
    }
}
