//! A client of the paper's database: reads records, buys, and keeps what its level of consistency
//! needs.
//!
//! # Invariants
//! - A client holds no lock that another waits for; what it holds in memory may be lost at any
//!   moment.
//! - Transactions of a client run one after the other; its checkpoints run beside them.
//! - From the level of monotonicity on, a client never uses a page older than one it has used
//!   before, and sees its own log records before they reach the page: it keeps them until a page
//!   shows them.
//!
//! # On failure
//! What fails in a background task ends the run ([`Shared::failures`]).

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::channel::mpsc;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use telesto_bucket::Cause;
use telesto_common::Env;

use crate::commit::Propagation;
use crate::error::{Error, Result};
use crate::history::{History, Promise};
use crate::node::{Node, PageRef};
use crate::pages::Pages;
use crate::queue::Queues;
use crate::tree::{self, Sizes};
use crate::workload::{self, Key, ORDERED, Purchase, Shop, Table};

/// The paper's levels, weakest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Protocol {
    /// Pages are written directly.
    Naive,
    /// Log records go to queues, checkpoints apply them: eventual consistency.
    Basic,
    /// And clients see what they saw and wrote, and write in order.
    Monotonicity,
    /// And all of a transaction or nothing, by a queue of each client's own.
    Atomicity,
}

impl Protocol {
    pub const ALL: [Self; 4] = [Self::Naive, Self::Basic, Self::Monotonicity, Self::Atomicity];

    pub fn name(self) -> &'static str {
        match self {
            Self::Naive => "naive",
            Self::Basic => "basic",
            Self::Monotonicity => "monotonicity",
            Self::Atomicity => "atomicity",
        }
    }

    pub fn promise(self) -> Promise {
        Promise {
            durable: self >= Self::Basic,
            session: self >= Self::Monotonicity,
            atomic: self >= Self::Atomicity,
            isolated: false,
        }
    }
}

/// How clients work.
#[derive(Clone, Copy, Debug)]
pub struct Rules {
    pub protocol: Protocol,
    pub checkpoint_interval: Duration,
    pub sizes: Sizes,
    /// How long the token of a page's queue is locked (§4.3), and that of a tree's, whose
    /// checkpoints write several pages.
    pub page_lock: Duration,
    pub tree_lock: Duration,
    /// How long a PUT of a page takes, for who must be done before its token comes back.
    pub put_padding: Duration,
    /// The same for a tree's header.
    pub header_padding: Duration,
    /// Whether checkpoints take the token. Taken out to show that the checker finds it.
    pub tokens: bool,
}

/// Where a log record goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Target {
    /// An update: the queue of its data page.
    Page(PageRef),
    /// An insertion: the queue of the table's tree.
    Tree(Table),
}

impl Target {
    /// What its queues are called after.
    pub fn name(self) -> String {
        match self {
            Self::Page(page) => page.key(),
            Self::Tree(table) => table.to_string(),
        }
    }

    /// The page that says when it was last checkpointed.
    pub fn header(self) -> PageRef {
        match self {
            Self::Page(page) => page,
            Self::Tree(table) => PageRef::header(table),
        }
    }
}

/// A redo log record: an inserted record or an after-image (§3.5), numbered by its client (§5.2).
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct LogRecord {
    pub client: u32,
    pub counter: u64,
    pub key: Key,
    pub payload: Bytes,
}

/// What all clients of a run share.
#[derive(Debug)]
pub struct Shared {
    pub rules: Rules,
    pub shop: Shop,
    pub history: History,
    pub failures: Mutex<Vec<String>>,
    /// Queues that log records went to.
    pub targets: Mutex<BTreeSet<Target>>,
}

/// What a client remembers of a page.
#[derive(Debug, Default)]
pub(crate) struct Remembered {
    /// The newest checkpoint it has seen.
    checkpointed: u64,
    /// Own log records that the page has not shown yet.
    own: Vec<LogRecord>,
}

#[derive(Debug, Default)]
pub(crate) struct Memory {
    pub(crate) counters: BTreeMap<Target, u64>,
    pub(crate) pages: BTreeMap<PageRef, Remembered>,
}

/// A client, in one of its lives.
#[derive(Debug)]
pub struct Client {
    pub shared: Arc<Shared>,
    /// The same through all lives.
    pub session: u32,
    /// Unique to this life: what a client knows dies with it, so that guarantees to a client are to
    /// one of its lives.
    pub id: u32,
    pub env: Env,
    pub pages: Pages,
    pub queues: Queues,
    pub(crate) memory: Mutex<Memory>,
    pub(crate) propagation: mpsc::UnboundedSender<Propagation>,
}

/// How often a page that turns out to be older than one seen before is asked for again.
const REREADS: u32 = 20;
/// The pause between, for the store to catch up.
const REREAD_PAUSE: Duration = Duration::from_millis(50);

impl Client {
    /// A client whose background work runs as tasks of `env`.
    pub fn start(
        shared: &Arc<Shared>,
        (session, life): (u32, u32),
        env: Env,
        pages: Pages,
        queues: Queues,
    ) -> Arc<Self> {
        let (propagation, work) = mpsc::unbounded();
        let client = Arc::new(Self {
            shared: Arc::clone(shared),
            session,
            id: session << 12 | life,
            env,
            pages,
            queues,
            memory: Mutex::default(),
            propagation,
        });
        client.clone().spawn("propagation", {
            let client = Arc::downgrade(&client);
            async move { Self::propagate(client, work).await }
        });
        client
    }

    /// Runs a part of the client beside its transactions.
    pub(crate) fn spawn(
        self: Arc<Self>,
        name: &'static str,
        work: impl Future<Output = Result<()>> + Send + 'static,
    ) {
        let shared = Arc::clone(&self.shared);
        self.env.spawn(name, async move {
            if let Err(error) = work.await {
                shared.failures.lock().push(format!("{name}: {error}"));
            }
        });
    }

    /// The customer transaction.
    pub async fn buy(self: &Arc<Self>, purchase: &Purchase) -> Result<()> {
        let now = || self.env.clock.monotonic();
        self.shared.history.begin(purchase, self.id, now());
        self.read(Table::Customers, purchase.customer).await?;
        let mut updates = Vec::new();
        for (at, product) in purchase.products.iter().enumerate() {
            let (page, old) = self.read(Table::Products, *product).await?;
            self.shared.history.read(self.id, *product, workload::writer(&old));
            if at < ORDERED {
                let sold = workload::count(&old) + 1;
                let new = workload::record(purchase.number, sold, old.len());
                updates.push((Target::Page(page), *product, new));
            }
        }
        let bytes = self.shared.shop.order_bytes;
        let inserts = purchase.orders.iter().map(|order| {
            let new = workload::record(purchase.number, 1, bytes);
            (Target::Tree(Table::Orders), *order, new)
        });
        let changes: Vec<_> = updates.into_iter().chain(inserts).collect();
        self.commit(changes).await?;
        self.shared.history.acknowledge(purchase.number, now());
        Ok(())
    }

    /// A record and the page it is in.
    async fn read(self: &Arc<Self>, table: Table, key: Key) -> Result<(PageRef, Bytes)> {
        let mut found = tree::find(&self.pages, Cause::Read, table, key, false).await?;
        let mut rereads = 0;
        while self.is_older(found.page, &found.node) && rereads < REREADS {
            rereads += 1;
            self.env.clock.sleep(REREAD_PAUSE).await;
            found = tree::find(&self.pages, Cause::Read, table, key, true).await?;
        }
        self.checkpoint_as_reader(found.page, &found.node);
        let missing = || Error::Missing(format!("record {key} of {table}"));
        let stored = found.node.get(key).cloned().ok_or_else(missing)?;
        Ok((found.page, self.own(found.page, &found.node, key).unwrap_or(stored)))
    }

    /// Whether this client has seen a newer version of the page (monotonic reads, §5.2).
    fn is_older(&self, page: PageRef, node: &Node) -> bool {
        if self.shared.rules.protocol < Protocol::Monotonicity {
            return false;
        }
        let mut memory = self.memory.lock();
        let remembered = memory.pages.entry(page).or_default();
        let older = node.checkpointed < remembered.checkpointed;
        remembered.checkpointed = remembered.checkpointed.max(node.checkpointed);
        older
    }

    /// What this client has written that the page does not show yet.
    fn own(&self, page: PageRef, node: &Node, key: Key) -> Option<Bytes> {
        if self.shared.rules.protocol < Protocol::Monotonicity {
            return None;
        }
        let mut memory = self.memory.lock();
        let own = &mut memory.pages.get_mut(&page)?.own;
        let shown = node.counters.get(&self.id).copied().unwrap_or_default();
        own.retain(|record| record.counter > shown);
        own.iter().rev().find(|record| record.key == key).map(|record| record.payload.clone())
    }

    /// Remembers a log record that this client has committed.
    pub(crate) fn remember(&self, page: PageRef, record: &LogRecord) {
        if self.shared.rules.protocol >= Protocol::Monotonicity {
            self.memory.lock().pages.entry(page).or_default().own.push(record.clone());
        }
    }

    /// A reader makes a checkpoint with probability 1/x when the last was x seconds ago, more than
    /// the interval (§4.5).
    fn checkpoint_as_reader(self: &Arc<Self>, page: PageRef, node: &Node) {
        if self.shared.rules.protocol == Protocol::Naive {
            return;
        }
        let ago = self.since_checkpoint(node);
        let one_in = ago.as_secs_f64();
        if ago > self.shared.rules.checkpoint_interval && self.chance(1.0 / one_in) {
            let client = Arc::clone(self);
            Arc::clone(self).spawn("a reader's checkpoint", async move {
                client.checkpoint(Target::Page(page)).await
            });
        }
    }

    /// How long ago a page was checkpointed, by this client's clock; clocks may differ, so a
    /// checkpoint in the future counts too.
    pub(crate) fn since_checkpoint(&self, node: &Node) -> Duration {
        Duration::from_micros(self.env.clock.wall_micros().abs_diff(node.checkpointed))
    }

    fn chance(&self, share: f64) -> bool {
        (self.env.random.next_u64() >> 11) as f64 / (1_u64 << 53) as f64 <= share
    }
}
