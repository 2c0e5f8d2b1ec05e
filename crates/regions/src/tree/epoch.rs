//! One epoch of a tree, as far as it runs in this region: its leaf, the serializers at its site,
//! the edges from them.
//!
//! ```text
//! log ─► labels ─► leaf ──edge──► serializer ──edge──► serializer of another region        edge: FIFO, artificial delay
//!                   ▲ gate: labels of what was applied here have come       │
//!                   └───────── inbox ◄──edge── serializer ◄──edge───────────┘
//! ```
//! # Invariants
//! - What is here is memory of this process. Who loses it never takes part in the epoch again:
//!   [`Epoch::take`] hears an edge from one process only, and a process that does not know the
//!   epoch says so.
//! - Per edge, labels keep their order; none is left out while the epoch is not broken.
//!
//! # On failure
//! The epoch is broken, with the reason: no label leaves any more, and its leader begins another.
//!
//! # Limits
//! [`QUEUED`] labels wait at an edge that cannot be used; with more the epoch is broken.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use parking_lot::Mutex;
use telesto_common::{LabelKind, RegionId, Timestamp};
use telesto_geo::{Address, Bug, Node, RegionSet, Serializer, SerializerId, Tree, TreeLabel};
use tokio::sync::Notify;

use crate::past::Past;
use crate::shared::Shared;
use crate::tree::plan::Plan;
use crate::tree::say::{Edge, Took};

/// Labels that wait at an edge, at most.
const QUEUED: usize = 1 << 18;

/// See the module's text.
#[derive(Debug)]
pub(crate) struct Epoch {
    pub number: u64,
    /// The number of its plan.
    pub plan: u64,
    pub me: RegionId,
    /// The other regions.
    pub others: RegionSet,
    tree: Tree,
    inner: Mutex<Inner>,
    /// Labels have come, or the epoch is broken.
    pub news: Notify,
    /// Tell where the log is at once: a session moves.
    pub hurry: Notify,
}

#[derive(Debug)]
struct Inner {
    begun: bool,
    broken: Option<String>,
    /// Where in its log each other region has begun, and in which incarnation.
    began: BTreeMap<RegionId, (Timestamp, u64)>,
    /// The newest label of each other region that has come here.
    came: BTreeMap<RegionId, Timestamp>,
    /// What was taken up of other regions: labels of what is committed after the first time leave
    /// when a label of the region has come that is not older than the second one. None that another
    /// one of the region makes needless.
    holds: Vec<(Timestamp, RegionId, Timestamp)>,
    serializers: BTreeMap<u16, Serializer>,
    edges: BTreeMap<Edge, Out>,
    /// From which process each edge is heard, and which label comes next.
    heard: BTreeMap<Edge, (u64, u64)>,
    planted: Option<Bug>,
    /// What a planted bug holds back.
    held: Option<(Edge, TreeLabel)>,
}

/// An edge from a node that is here.
#[derive(Debug)]
struct Out {
    delay_micros: u64,
    /// To a node that is here too, without a delay.
    direct: bool,
    /// Labels, and from when on they may leave.
    waiting: VecDeque<(u64, TreeLabel)>,
    wake: Arc<Notify>,
}

/// Whether labels may leave.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Gate {
    Open,
    Shut,
    /// Another region goes on in a new incarnation, whose labels this epoch does not have.
    Broken,
}

/// An edge with something to do: where it leads, and what wakes it.
pub(crate) type ToDo = (Edge, RegionId, Arc<Notify>);

fn address(node: Node) -> Address {
    match node {
        Node::Region(region) => Address::Region(region),
        Node::Serializer(index) => Address::Serializer(SerializerId { epoch: 0, index }),
    }
}

fn node(address: Address) -> Node {
    match address {
        Address::Region(region) => Node::Region(region),
        Address::Serializer(id) => Node::Serializer(id.index),
    }
}

impl Epoch {
    /// Epoch `number` of `plan` in region `me`.
    ///
    /// # Errors
    /// The plan's.
    pub fn new(
        number: u64,
        plan: &Plan,
        me: RegionId,
        others: RegionSet,
        planted: Option<Bug>,
    ) -> crate::Result<Self> {
        let tree = plan.tree()?;
        let here = |node: Node| tree.site(node) == me;
        let indexes = (0..).zip(&tree.sites).map(|(index, _)| index);
        let serializers: BTreeMap<u16, Serializer> = indexes
            .filter(|index| here(Node::Serializer(*index)))
            .map(|index| (index, Serializer::new(&tree, index, planted)))
            .collect();
        let mut edges = BTreeMap::new();
        let nodes = serializers.keys().map(|index| Node::Serializer(*index));
        for from in nodes.chain([Node::Region(me)]) {
            for to in tree.neighbours(from) {
                let delay_micros = tree.delay(from, to);
                let direct = here(to) && delay_micros == 0;
                let (waiting, wake) = (VecDeque::new(), Arc::default());
                edges.insert((from, to), Out { delay_micros, direct, waiting, wake });
            }
        }
        let inner = Inner {
            begun: false,
            broken: None,
            began: BTreeMap::new(),
            came: BTreeMap::new(),
            holds: Vec::new(),
            serializers,
            edges,
            heard: BTreeMap::new(),
            planted,
            held: None,
        };
        let (news, hurry) = (Notify::new(), Notify::new());
        let inner = Mutex::new(inner);
        Ok(Self { number, plan: plan.number, me, others, tree, inner, news, hurry })
    }

    /// The edges that somebody has to look after: those to other regions, and those with a delay.
    pub fn to_do(&self) -> Vec<ToDo> {
        let inner = self.inner.lock();
        let edges = inner.edges.iter().filter(|(_, out)| !out.direct);
        edges.map(|(edge, out)| (*edge, self.tree.site(edge.1), Arc::clone(&out.wake))).collect()
    }

    /// Whether labels may be sent from now on; once.
    pub fn begin(&self) -> bool {
        !std::mem::replace(&mut self.inner.lock().begun, true)
    }

    pub fn has_begun(&self) -> bool {
        self.inner.lock().begun
    }

    pub fn broken(&self) -> Option<String> {
        self.inner.lock().broken.clone()
    }

    pub fn break_up(&self, reason: impl ToString) {
        self.inner.lock().broken.get_or_insert_with(|| reason.to_string());
        self.news.notify_waiters();
    }

    /// Somebody who goes on here has seen everything of `region` up to `seen`; what they do here is
    /// committed after `from`.
    pub fn hold(&self, from: Timestamp, region: RegionId, seen: Timestamp) {
        let holds = &mut self.inner.lock().holds;
        // Clients that come again and again while nothing is committed here hold it once.
        let held = |(since, of, wanted): &(Timestamp, RegionId, Timestamp)| {
            *of == region && *since <= from && *wanted >= seen
        };
        if holds.iter().any(held) {
            return;
        }
        holds.retain(|(since, of, wanted)| *of != region || *since < from || *wanted > seen);
        holds.push((from, region, seen));
    }

    /// The newest time of this region's log behind which something is held that may have been told
    /// up to `at` without it.
    pub fn held_from(&self, at: Timestamp) -> Option<Timestamp> {
        let inner = self.inner.lock();
        inner.holds.iter().map(|(from, _, _)| *from).filter(|from| *from >= at).max()
    }

    /// Takes the holds that are for what is committed up to `at` into what must have come.
    pub fn holds_up_to(&self, at: Timestamp, seen: &mut BTreeMap<RegionId, Timestamp>) {
        self.inner.lock().holds.retain(|(from, region, wanted)| {
            if *from >= at {
                return true;
            }
            let seen = seen.entry(*region).or_default();
            *seen = (*seen).max(*wanted);
            false
        });
    }

    /// Whether labels may leave of what was committed when this region had applied `seen` of each
    /// other one, and has this past.
    pub fn gate(&self, seen: &BTreeMap<RegionId, Timestamp>, past: &Past) -> Gate {
        let inner = self.inner.lock();
        if inner.planted == Some(Bug::UngatedLabels) {
            return Gate::Open;
        }
        let mut gate = Gate::Open;
        for region in self.others.iter() {
            let seen = seen.get(&region).copied();
            let Some((began, incarnation)) = inner.began.get(&region) else {
                if seen.is_some() {
                    gate = Gate::Shut;
                }
                continue;
            };
            let known = past.incarnation(region);
            if known > *incarnation {
                return Gate::Broken;
            }
            let came = inner.came.get(&region).max(Some(began)).copied().unwrap_or_default();
            if seen.is_some_and(|seen| seen > came || known < *incarnation) {
                gate = Gate::Shut;
            }
        }
        gate
    }

    /// Sends a label of this region.
    pub fn send(&self, shared: &Shared, label: TreeLabel) {
        let leaf = Node::Region(self.me);
        let mut inner = self.inner.lock();
        let here = match self.tree.neighbours(leaf).first() {
            Some(home) => inner.route((leaf, *home), label, shared),
            None => Vec::new(),
        };
        self.deliver(&mut inner, here, shared);
    }

    /// Takes labels that came along `edge` from the process `life` of region `from`.
    pub fn take(
        &self,
        shared: &Shared,
        from: (RegionId, u64),
        edge: Edge,
        first: u64,
        labels: Vec<TreeLabel>,
    ) -> Took {
        let (region, life) = from;
        let mut inner = self.inner.lock();
        let known = self.tree.neighbours(edge.0).contains(&edge.1);
        let fits = known && self.tree.site(edge.0) == region && self.tree.site(edge.1) == self.me;
        if !fits || inner.broken.is_some() {
            return Took::Over;
        }
        let (heard, mut expected) = *inner.heard.entry(edge).or_insert((life, 0));
        if heard != life {
            return Took::Over;
        }
        for (number, label) in (first..).zip(labels) {
            // What comes twice is passed over, and behind a gap everything.
            if number == expected {
                expected += 1;
                let here = inner.arrive(edge, label, shared);
                self.deliver(&mut inner, here, shared);
            }
        }
        inner.heard.insert(edge, (life, expected));
        drop(inner);
        self.news.notify_waiters();
        Took::Up { life: shared.trees.life, expected }
    }

    /// Up to `room` labels that may leave by `edge` now, and when the next one may, microseconds.
    pub fn due(&self, edge: Edge, room: usize, now: u64) -> (Vec<TreeLabel>, Option<u64>) {
        let mut inner = self.inner.lock();
        let Some(out) = inner.edges.get_mut(&edge) else { return (Vec::new(), None) };
        let due = out.waiting.iter().take(room).take_while(|(from, _)| *from <= now).count();
        let labels = out.waiting.drain(..due).map(|(_, label)| label).collect();
        (labels, out.waiting.front().map(|(from, _)| *from))
    }

    /// Has labels that have waited out the delay of an edge inside this region arrive.
    pub fn arrive(&self, shared: &Shared, edge: Edge, labels: Vec<TreeLabel>) {
        let mut inner = self.inner.lock();
        for label in labels {
            let here = inner.arrive(edge, label, shared);
            self.deliver(&mut inner, here, shared);
        }
        drop(inner);
        self.news.notify_waiters();
    }

    /// Labels that have come to this region's leaf, in their order: under the lock, so that nobody
    /// else's comes between.
    fn deliver(&self, inner: &mut Inner, labels: Vec<TreeLabel>, shared: &Shared) {
        if labels.is_empty() {
            return;
        }
        let now = shared.env.clock.wall_micros();
        for TreeLabel { label, .. } in &labels {
            if label.kind == LabelKind::EpochChange {
                inner.began.insert(label.source, (label.timestamp, u64::from(label.target)));
            }
            let came = inner.came.entry(label.source).or_default();
            *came = (*came).max(label.timestamp);
        }
        shared.inbox.lock().labels(self.number, labels, now);
        shared.news.notify_one();
    }
}

impl Inner {
    /// Sends a label along an edge; what comes to this region's leaf by that.
    fn route(&mut self, edge: Edge, label: TreeLabel, shared: &Shared) -> Vec<TreeLabel> {
        let now = super::micros(shared.env.clock.monotonic());
        match self.edges.get_mut(&edge) {
            Some(out) if out.direct => return self.arrive(edge, label, shared),
            Some(out) if out.waiting.len() >= QUEUED => {
                let full = "an edge of the tree cannot be used, and too many labels wait there";
                self.broken.get_or_insert_with(|| full.to_owned());
            }
            Some(out) => {
                out.waiting.push_back((now + out.delay_micros, label));
                out.wake.notify_one();
            }
            None => {}
        }
        Vec::new()
    }

    /// A label has come along an edge to a node that is here.
    fn arrive(&mut self, edge: Edge, label: TreeLabel, shared: &Shared) -> Vec<TreeLabel> {
        let (from, to) = edge;
        let Node::Serializer(index) = to else { return vec![label] };
        let Some(serializer) = self.serializers.get(&index) else { return Vec::new() };
        let forwards = match serializer.receive(address(from), label) {
            Ok(forwards) => forwards,
            Err(error) => {
                self.broken.get_or_insert_with(|| error.to_string());
                return Vec::new();
            }
        };
        let mut here = Vec::new();
        for forward in forwards {
            let edge = (to, node(forward.to));
            here.append(&mut match self.planted {
                Some(Bug::SerializerReorders) => self.reorder(edge, label, shared),
                _ => self.route(edge, label, shared),
            });
        }
        here
    }

    /// For tests: sends a label along an edge, now and then behind those of other regions that come
    /// after it.
    fn reorder(&mut self, edge: Edge, label: TreeLabel, shared: &Shared) -> Vec<TreeLabel> {
        let TreeLabel { label: of, .. } = label;
        let update = of.kind == LabelKind::Update;
        let next = |(at, held): &mut (Edge, TreeLabel)| {
            *at == edge && update && held.label.source == of.source
        };
        let mut here = match self.held.take_if(next) {
            Some((edge, held)) => self.route(edge, held, shared),
            None => Vec::new(),
        };
        let leads_away = self.edges.get(&edge).is_some_and(|out| !out.direct);
        let chosen = update && leads_away && of.timestamp.wall_micros().is_multiple_of(3);
        if chosen && self.held.is_none() {
            self.held = Some((edge, label));
        } else {
            here.append(&mut self.route(edge, label, shared));
        }
        here
    }
}

#[cfg(test)]
mod tests {
    use telesto_testkit::World;

    use super::*;

    #[test]
    fn hold_that_another_one_makes_needless_is_not_kept() {
        World::run(1, false, async |world| {
            let (one, two) = (RegionId(1), RegionId(2));
            let ids = [RegionId(0), one, two];
            let plan = Plan::new(&world.env, 0, &Tree::star(3, one), &ids).expect("a tree");
            let others = RegionSet::default().with(one).with(two);
            let epoch = Epoch::new(1, &plan, RegionId(0), others, None).expect("an epoch");
            let kept = || epoch.inner.lock().holds.len();
            let at = Timestamp;
            for _ in 0..1000 {
                epoch.hold(at(10), one, at(5));
            }
            epoch.hold(at(11), one, at(5));
            assert_eq!(kept(), 1, "the same again, and later");
            epoch.hold(at(11), one, at(6));
            epoch.hold(at(11), two, at(5));
            assert_eq!(kept(), 3, "more, and of another region");
            epoch.hold(at(10), one, at(7));
            assert_eq!(kept(), 2, "earlier, and more than both");
            let mut seen = BTreeMap::new();
            epoch.holds_up_to(at(10), &mut seen);
            assert_eq!(seen, BTreeMap::new(), "nothing is committed behind it yet");
            epoch.holds_up_to(at(11), &mut seen);
            assert_eq!(seen, BTreeMap::from([(one, at(7))]));
            epoch.holds_up_to(at(12), &mut seen);
            assert_eq!(seen, BTreeMap::from([(one, at(7)), (two, at(5))]));
            assert_eq!(kept(), 0);
        });
    }
}
