//! The other nodes as this one knows them: where they are, when they were last heard, what they
//! said.
//!
//! # Invariants
//! - Of a node's lives the newest counts; an answer of an earlier one is not taken for it.
//! - A removed node is forgotten and not learnt again.
//!
//! # Limits
//! Nodes that have stopped are kept until they are removed: they may come back.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use telesto_common::{Env, Incarnation, NodeId};
use telesto_log::chain::ServerInfo;
use telesto_log::server::Neighbours;
use telesto_net::{CallLimits, Caller, Class, Client, Peer, Transport};

use crate::record::{NodeRole, Record};
use crate::status::{Live, MemberStatus, Phase};
use crate::wire::{self, Roll};

/// Who was heard within this time lives.
pub(crate) const LIVES: Duration = Duration::from_secs(1);
/// Pings in a row without an answer before anybody is silent.
const MISSES: u32 = 3;
/// Who listens no more is gone after this time, and who was heard within it is vouched for.
const GONE: Duration = Duration::from_millis(300);
/// How often those are asked on whom the log hangs, the others, and those who have not answered for
/// [`LONG`].
pub(crate) const TICK: Duration = Duration::from_millis(100);
const SELDOM: Duration = Duration::from_secs(1);
const RARELY: Duration = Duration::from_secs(3);
const LONG: Duration = Duration::from_secs(30);
/// How long an answer is waited for: of one who answers, and of one who has to be reached first.
const ANSWERS: Duration = Duration::from_millis(200);
const REACHED: Duration = Duration::from_secs(2);

#[derive(Debug)]
struct Member {
    record: Record,
    /// Pings, take-overs.
    control: Client,
    /// Commits: a large one delays no ping.
    commits: Client,
    /// Since when it says that it opens the database, and does not own the log there.
    opens: Option<Duration>,
    /// Questions of layers above, of which many may be held at a time: they hold up no commit.
    questions: Client,
    live: Option<Live>,
    /// By this node's monotonic clock.
    heard: Option<Duration>,
    /// Pings in a row without an answer, and those of them that found nobody listening.
    missed: u32,
    refused: u32,
    asked: Option<Duration>,
    asking: bool,
}

impl Member {
    /// Takes note of what it says of itself.
    fn says(&mut self, live: Live, now: Duration) {
        let opens = live.phase == Phase::Starting && !live.owns;
        self.opens = opens.then(|| self.opens.unwrap_or(now));
        self.live = Some(live);
    }
}

/// See the module's text.
#[derive(Debug)]
pub(crate) struct Members {
    env: Env,
    transport: Arc<dyn Transport>,
    me: Caller,
    own: Record,
    neighbours: Arc<Neighbours>,
    table: Mutex<Table>,
}

#[derive(Debug, Default)]
struct Table {
    nodes: BTreeMap<NodeId, Member>,
    removed: BTreeSet<NodeId>,
}

/// What became of a ping.
pub(crate) enum Answer {
    Live(Box<Live>),
    /// No answer in time, or none that fits.
    None,
    /// Nobody listens there.
    Nobody,
}

/// Somebody to be asked now.
pub(crate) struct Due {
    pub node: NodeId,
    pub client: Client,
    pub timeout: Duration,
}

impl Members {
    pub fn new(
        env: Env,
        transport: Arc<dyn Transport>,
        me: Caller,
        own: Record,
        neighbours: Arc<Neighbours>,
    ) -> Self {
        Self { env, transport, me, own, neighbours, table: Mutex::default() }
    }

    pub fn own(&self) -> &Record {
        &self.own
    }

    pub fn neighbours(&self) -> &Arc<Neighbours> {
        &self.neighbours
    }

    fn member(&self, record: Record) -> Member {
        let client = |class| {
            let peer = Peer { node: record.node, address: record.address.clone() };
            let limits = CallLimits::default();
            Client::new(&self.env, Arc::clone(&self.transport), peer, self.me, class, limits)
        };
        let (control, commits) = (client(Class::Control), client(Class::Append));
        let questions = client(Class::Read);
        Member {
            record,
            control,
            commits,
            questions,
            live: None,
            opens: None,
            heard: None,
            missed: 0,
            refused: 0,
            asked: None,
            asking: false,
        }
    }

    /// Takes note of a node's life; whether it was news.
    pub fn learn(&self, record: Record) -> bool {
        let mut table = self.table.lock();
        let known = table.nodes.get(&record.node).map(|member| member.record.incarnation);
        let news = known.is_none_or(|known| known < record.incarnation);
        if record.node == self.own.node || table.removed.contains(&record.node) || !news {
            return false;
        }
        self.neighbours.set_address(record.node, &record.address);
        table.nodes.insert(record.node, self.member(record));
        true
    }

    /// Forgets a node that was removed; whether it was news.
    pub fn forget(&self, node: NodeId) -> bool {
        let mut table = self.table.lock();
        table.nodes.remove(&node);
        self.neighbours.set_removed(node);
        table.removed.insert(node)
    }

    /// Whether this node was removed.
    pub fn is_removed(&self) -> bool {
        self.table.lock().removed.contains(&self.own.node)
    }

    pub fn roll(&self) -> Roll {
        let table = self.table.lock();
        let others = table.nodes.values().map(|member| &member.record);
        let mut nodes: Vec<Record> = others.chain([&self.own]).cloned().collect();
        nodes.sort_by_key(|record| record.node);
        Roll { nodes, removed: table.removed.iter().copied().collect() }
    }

    /// Equal on nodes that know the same.
    pub fn digest(&self) -> u32 {
        wire::encode(&self.roll()).map_or(0, |bytes| crc32c::crc32c(&bytes))
    }

    /// Takes over what another node knows; what was news.
    pub fn merge(&self, roll: Roll) -> Vec<String> {
        let mut news = Vec::new();
        for node in roll.removed {
            if self.forget(node) {
                news.push(format!("node {node} was removed from the cluster"));
            }
        }
        for record in roll.nodes {
            let line = format!("node {} is at {}", record.node, record.address);
            if self.learn(record) {
                news.push(line);
            }
        }
        news
    }

    /// Those who should be asked now; `near` often.
    pub fn due(&self, near: &[NodeId]) -> Vec<Due> {
        let now = self.env.clock.monotonic();
        let mut due = Vec::new();
        for (node, member) in &mut self.table.lock().nodes {
            let silent = member.heard.map(|heard| now.saturating_sub(heard));
            let every = match silent {
                Some(silent) if near.contains(node) && silent < LONG => TICK,
                Some(silent) if silent < LONG => SELDOM,
                None if member.missed < 10 => TICK,
                _ => RARELY,
            };
            // A tick is never quite on time.
            let every = every.saturating_sub(TICK / 2);
            if member.asking || member.asked.is_some_and(|asked| now.saturating_sub(asked) < every)
            {
                continue;
            }
            (member.asking, member.asked) = (true, Some(now));
            let answers = silent.is_some_and(|silent| silent < LIVES);
            let timeout = if answers { ANSWERS } else { REACHED };
            due.push(Due { node: *node, client: member.control.clone(), timeout });
        }
        due
    }

    /// What became of a ping.
    pub fn answered(&self, node: NodeId, client: &Client, answer: Answer) {
        let now = self.env.clock.monotonic();
        let mut table = self.table.lock();
        let Some(member) = table.nodes.get_mut(&node) else { return };
        member.asking = false;
        match answer {
            // An answer of the life before says nothing of this one.
            Answer::Live(_)
                if client.life().is_some_and(|life| life < member.record.incarnation) => {}
            Answer::Live(live) => {
                member.says(*live, now);
                member.heard = Some(now);
                (member.missed, member.refused) = (0, 0);
            }
            Answer::Nobody => {
                member.missed = member.missed.saturating_add(1);
                member.refused = member.refused.saturating_add(1);
            }
            Answer::None => {
                (member.missed, member.refused) = (member.missed.saturating_add(1), 0);
            }
        }
    }

    /// A node that pings this one lives too.
    pub fn heard(&self, node: NodeId, live: Live) {
        let now = self.env.clock.monotonic();
        let mut table = self.table.lock();
        if let Some(member) = table.nodes.get_mut(&node) {
            member.says(live, now);
        }
    }

    /// For how long this life of `node` has opened the database and served no commits, and which
    /// life it is.
    pub fn opens_for(&self, node: NodeId) -> Option<(Incarnation, Duration)> {
        let now = self.env.clock.monotonic();
        let table = self.table.lock();
        let member = table.nodes.get(&node)?;
        member.opens.map(|since| (member.record.incarnation, now.saturating_sub(since)))
    }

    /// Whether `node` has not answered for `after`, and several times, or was removed; `None`: it
    /// is not known here.
    pub fn is_silent(&self, node: NodeId, after: Duration) -> Option<bool> {
        let now = self.env.clock.monotonic();
        let table = self.table.lock();
        if table.removed.contains(&node) {
            return Some(true);
        }
        let member = table.nodes.get(&node)?;
        // Where nobody listens any more, there is less to wait for.
        let after = if member.refused >= MISSES { after.min(GONE) } else { after };
        let silent = member.heard.is_none_or(|heard| now.saturating_sub(heard) >= after);
        Some(silent && member.missed >= MISSES)
    }

    /// The nodes that this one hears, for those who do not.
    pub fn hears(&self) -> Vec<NodeId> {
        let now = self.env.clock.monotonic();
        let table = self.table.lock();
        let hears =
            |member: &Member| member.heard.is_some_and(|heard| now.saturating_sub(heard) < GONE);
        table.nodes.iter().filter(|(_, member)| hears(member)).map(|(node, _)| *node).collect()
    }

    /// Nodes that live, as they are known here.
    pub fn living(&self) -> Vec<(Record, Live)> {
        self.heard_within(LIVES)
    }

    /// Nodes that are there, as far as is known: those on whom nothing hangs are asked only every
    /// [`SELDOM`].
    pub fn present(&self) -> Vec<(Record, Live)> {
        self.heard_within(3 * SELDOM)
    }

    fn heard_within(&self, span: Duration) -> Vec<(Record, Live)> {
        let now = self.env.clock.monotonic();
        let table = self.table.lock();
        let heard =
            |member: &&Member| member.heard.is_some_and(|heard| now.saturating_sub(heard) < span);
        let present = table.nodes.values().filter(heard);
        present.filter_map(|member| Some((member.record.clone(), member.live.clone()?))).collect()
    }

    pub fn control(&self, node: NodeId) -> Option<Client> {
        self.table.lock().nodes.get(&node).map(|member| member.control.clone())
    }

    pub fn commits(&self, node: NodeId) -> Option<Client> {
        self.table.lock().nodes.get(&node).map(|member| member.commits.clone())
    }

    pub fn questions(&self, node: NodeId) -> Option<Client> {
        self.table.lock().nodes.get(&node).map(|member| member.questions.clone())
    }

    pub fn statuses(&self) -> Vec<MemberStatus> {
        let now = self.env.clock.monotonic();
        let table = self.table.lock();
        let status = |member: &Member| MemberStatus {
            record: member.record.clone(),
            live: member.live.clone(),
            silent_millis: member.heard.map(|heard| {
                u64::try_from(now.saturating_sub(heard).as_millis()).unwrap_or(u64::MAX)
            }),
        };
        table.nodes.values().map(status).collect()
    }

    /// Tells the log where new copies may be put: on this node first, then on living nodes, of each
    /// zone one before a second one of any. Those that are not `near` are asked seldom: who was not
    /// heard for a second may live.
    pub fn place(&self, near: &[NodeId]) {
        let (present, living) = (self.present(), self.living());
        let lives = |node| living.iter().any(|(record, _)| record.node == node);
        let fit = present.iter().filter(|(record, live)| {
            record.role == NodeRole::Full
                && live.phase != Phase::Leaving
                && (!near.contains(&record.node) || lives(record.node))
        });
        let mut left: Vec<&Record> = fit.map(|(record, _)| record).collect();
        let own = (self.own.role == NodeRole::Full).then_some(&self.own);
        let mut chosen: Vec<&Record> = own.into_iter().collect();
        while !left.is_empty() {
            // The zone that has the fewest so far.
            let used =
                |record: &Record| chosen.iter().filter(|one| one.zone == record.zone).count();
            let least = left.iter().enumerate().min_by_key(|(_, record)| used(record));
            let Some((at, _)) = least else { break };
            let next = left.remove(at);
            chosen.push(next);
        }
        let info = |record: &&Record| ServerInfo {
            node: record.node,
            address: record.address.clone(),
            incarnation: telesto_common::Incarnation(0),
        };
        self.neighbours.set_candidates(chosen.iter().map(info).collect());
    }
}
