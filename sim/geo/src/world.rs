//! The world: time, links, regions, serializers.
//!
//! ```text
//!  Region.send ─► link (kept until acknowledged) ── latency + jitter, in order ──► Region.receive / Serializer.receive
//!                   │ cut: what is on the way is lost             ▲
//!                   └ heal: one way later the sender resumes ─────┘
//! ```
//!
//! # Invariants
//! - One event at a time, in the order of (time, number).
//! - A link hands out in order; only a cut loses what is on the way.
//!
//! # On failure
//! A region that refuses a message stops the world with the reason: every peer here is correct.
//!
//! # Limits
//! Acknowledgements cost nothing and come with every eighth message, so resumptions repeat
//! messages.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap, VecDeque};

use bytes::Bytes;
use rand::rngs::SmallRng;
use rand::{Rng as _, SeedableRng as _};
use telesto_common::{Label, RegionId};
use telesto_geo::{
    Address, Attach, AttachId, Bug, Envelope, Latencies, LinkReceiver, LinkSender, Message,
    PlaneConfig, Region, RegionConfig, RegionOutput, RegionSet, Result, Serializer, SerializerId,
    Transaction, Tree,
};

/// What a world is made from.
#[derive(Clone, Debug)]
pub struct WorldConfig {
    /// Draws jitter.
    pub seed: u64,
    /// Between the regions' sites.
    pub latencies: Latencies,
    /// Added to each message, 0 to this, microseconds.
    pub jitter_micros: u64,
    /// By region: how far its wall clock is ahead, microseconds; empty for none.
    pub skew_micros: Vec<u64>,
    /// The plane all begin with.
    pub plane: PlaneConfig,
    /// A bug, on purpose.
    pub planted: Option<Bug>,
}

/// What happened that whoever drives the world wants to know.
#[derive(Debug)]
pub enum Happening {
    /// A region has been told to apply a remote transaction.
    Applied(RegionId, Transaction),
    /// A session may go on.
    Attached(RegionId, AttachId),
    /// A wake-up that was asked for.
    Wake(u64),
}

/// What was sent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Transactions from region to region.
    pub payloads: u64,
    /// Beats, marks.
    pub beats: u64,
    /// Labels, each hop counted.
    pub labels: u64,
    /// Bytes of metadata with payloads.
    pub payload_metadata_bytes: u64,
    /// Bytes of beats and labels.
    pub other_metadata_bytes: u64,
}

#[derive(Debug, Default)]
struct Link {
    sender: LinkSender,
    receiver: LinkReceiver,
    down: bool,
    /// Grows with every cut: what was sent before is lost.
    connection: u32,
    last_arrival: u64,
}

#[derive(Debug)]
enum Event {
    Arrive { from: Address, to: Address, connection: u32, sequence: u64, bytes: Bytes },
    Emit { from: Address, to: Address, bytes: Bytes },
    Resume { from: Address, to: Address, connection: u32 },
    Tick { region: RegionId },
    Wake(u64),
}

/// The simulated world.
#[derive(Debug)]
pub struct World {
    now_micros: u64,
    regions: Vec<Region>,
    trees: BTreeMap<u32, Tree>,
    serializers: BTreeMap<SerializerId, Serializer>,
    lost: BTreeSet<u32>,
    links: BTreeMap<(Address, Address), Link>,
    cut: BTreeSet<(RegionId, RegionId)>,
    latencies: Latencies,
    jitter_micros: u64,
    skew_micros: Vec<u64>,
    tick_at: Vec<u64>,
    events: BinaryHeap<Reverse<(u64, u64)>>,
    bodies: BTreeMap<u64, Event>,
    numbered: u64,
    happened: VecDeque<Happening>,
    random: SmallRng,
    traffic: Traffic,
    hash: u64,
    planted: Option<Bug>,
}

impl World {
    /// The world's first moment, microseconds.
    pub const BEGIN_MICROS: u64 = 1_000_000;

    /// Regions at rest.
    ///
    /// # Errors
    /// What the planes refuse.
    pub fn new(config: &WorldConfig) -> Result<Self> {
        let members = config.latencies.sites();
        let mut skew_micros = config.skew_micros.clone();
        skew_micros.resize(members, 0);
        let region = |index: usize| {
            let (me, plane) = (RegionId(index as u16), config.plane.clone());
            let config = RegionConfig { me, members, plane, planted: config.planted };
            Region::new(&config, Self::BEGIN_MICROS + skew_micros[index])
        };
        let regions = (0..members).map(region).collect::<Result<Vec<_>>>()?;
        let mut world = Self {
            now_micros: Self::BEGIN_MICROS,
            regions,
            trees: BTreeMap::new(),
            serializers: BTreeMap::new(),
            lost: BTreeSet::new(),
            links: BTreeMap::new(),
            cut: BTreeSet::new(),
            latencies: config.latencies.clone(),
            jitter_micros: config.jitter_micros,
            skew_micros,
            tick_at: vec![u64::MAX; members],
            events: BinaryHeap::new(),
            bodies: BTreeMap::new(),
            numbered: 0,
            happened: VecDeque::new(),
            random: SmallRng::seed_from_u64(config.seed),
            traffic: Traffic::default(),
            hash: 0xcbf2_9ce4_8422_2325,
            planted: config.planted,
        };
        if let Some(tree) = &config.plane.tree {
            world.add_tree(tree.clone());
        }
        for region in 0..members {
            world.plan_tick(RegionId(region as u16));
        }
        Ok(world)
    }

    /// Now, microseconds.
    #[must_use]
    pub fn now_micros(&self) -> u64 {
        self.now_micros
    }

    /// A region.
    #[must_use]
    pub fn region(&self, region: RegionId) -> &Region {
        &self.regions[usize::from(region.0)]
    }

    /// The number of regions.
    #[must_use]
    pub fn members(&self) -> usize {
        self.regions.len()
    }

    /// What was sent so far.
    #[must_use]
    pub fn traffic(&self) -> Traffic {
        self.traffic
    }

    /// A hash of everything that arrived so far, with its time.
    #[must_use]
    pub fn hash(&self) -> u64 {
        self.hash
    }

    /// The latencies in force.
    #[must_use]
    pub fn latencies(&self) -> &Latencies {
        &self.latencies
    }

    /// Starts the serializers of a tree.
    pub fn add_tree(&mut self, tree: Tree) {
        for index in 0..tree.sites.len() as u16 {
            let id = SerializerId { epoch: tree.epoch, index };
            self.serializers.insert(id, Serializer::new(&tree, index, self.planted));
        }
        self.trees.insert(tree.epoch, tree);
    }

    /// Loses every serializer of a tree for good.
    pub fn lose_tree(&mut self, epoch: u32) {
        self.lost.insert(epoch);
    }

    /// Changes the latency between two sites, both ways.
    pub fn set_latency(&mut self, a: RegionId, b: RegionId, micros: u64) {
        self.latencies.set(a, b, micros);
        self.latencies.set(b, a, micros);
    }

    /// Cuts two sites from each other: regions and serializers.
    pub fn cut(&mut self, a: RegionId, b: RegionId) {
        self.cut.insert((a.min(b), a.max(b)));
        let between = self.links_between(a, b);
        for key in between {
            if let Some(link) = self.links.get_mut(&key) {
                link.down = true;
                link.connection += 1;
            }
        }
    }

    /// Mends what [`Self::cut`] has cut.
    pub fn heal(&mut self, a: RegionId, b: RegionId) {
        if !self.cut.remove(&(a.min(b), a.max(b))) {
            return;
        }
        for key in self.links_between(a, b) {
            let latency = self.latency(key.1, key.0);
            if let Some(link) = self.links.get_mut(&key) {
                link.down = false;
                let connection = link.connection;
                let resume = Event::Resume { from: key.0, to: key.1, connection };
                self.plan(self.now_micros + latency, resume);
            }
        }
    }

    /// Asks for [`Happening::Wake`].
    pub fn wake(&mut self, at_micros: u64, what: u64) {
        self.plan(at_micros.max(self.now_micros), Event::Wake(what));
    }

    /// Commits a transaction in `region`.
    pub fn commit(
        &mut self,
        region: RegionId,
        target: u32,
        placement: RegionSet,
        data: Bytes,
    ) -> Label {
        let now = self.clock(region);
        let mut out = RegionOutput::default();
        let state = &mut self.regions[usize::from(region.0)];
        let label = state.commit(now, target, placement, data, &mut out);
        self.collect(region, out);
        label
    }

    /// A token for a session that moves from `region` to `to`.
    ///
    /// # Errors
    /// Those of [`Region::migrate`].
    pub fn migrate(&mut self, region: RegionId, to: RegionId) -> Result<Label> {
        let now = self.clock(region);
        let mut out = RegionOutput::default();
        let token = self.regions[usize::from(region.0)].migrate(now, to, &mut out);
        self.collect(region, out);
        token
    }

    /// A token for a session in `region`, without telling anybody.
    pub fn token(&mut self, region: RegionId) -> Label {
        let now = self.clock(region);
        self.regions[usize::from(region.0)].token(now)
    }

    /// Attaches a session.
    ///
    /// # Errors
    /// Those of [`Region::attach`].
    pub fn attach(&mut self, region: RegionId, token: &Label) -> Result<Attach> {
        self.regions[usize::from(region.0)].attach(token)
    }

    /// Tells one region of a change of trees.
    ///
    /// # Errors
    /// Those of [`Region::change_tree`].
    pub fn change_tree(&mut self, region: RegionId, tree: Tree) -> Result<()> {
        let now = self.clock(region);
        let mut out = RegionOutput::default();
        let result = self.regions[usize::from(region.0)].change_tree(now, tree, &mut out);
        self.collect(region, out);
        result
    }

    /// Tells one region of a change of planes.
    ///
    /// # Errors
    /// Those of [`Region::change_plane`].
    pub fn change_plane(
        &mut self,
        region: RegionId,
        generation: u32,
        plane: &PlaneConfig,
    ) -> Result<()> {
        let now = self.clock(region);
        let mut out = RegionOutput::default();
        let state = &mut self.regions[usize::from(region.0)];
        let result = state.change_plane(now, generation, plane, &mut out);
        self.collect(region, out);
        result
    }

    /// Goes on until something happens or `until_micros` is reached.
    ///
    /// # Errors
    /// What a region or a serializer refuses.
    pub fn next(&mut self, until_micros: u64) -> Result<Option<Happening>> {
        loop {
            if let Some(happening) = self.happened.pop_front() {
                return Ok(Some(happening));
            }
            match self.events.peek() {
                Some(Reverse((at, _))) if *at <= until_micros => {}
                _ => {
                    self.now_micros = self.now_micros.max(until_micros);
                    return Ok(None);
                }
            }
            if let Some(Reverse((at, number))) = self.events.pop() {
                self.now_micros = at;
                if let Some(event) = self.bodies.remove(&number) {
                    self.play(event)?;
                }
            }
        }
    }

    fn play(&mut self, event: Event) -> Result<()> {
        match event {
            Event::Wake(what) => self.happened.push_back(Happening::Wake(what)),
            Event::Tick { region } => {
                if self.tick_at[usize::from(region.0)] == self.now_micros {
                    self.tick_at[usize::from(region.0)] = u64::MAX;
                    let now = self.clock(region);
                    let mut out = RegionOutput::default();
                    self.regions[usize::from(region.0)].tick(now, &mut out);
                    self.collect(region, out);
                }
            }
            Event::Emit { from, to, bytes } => self.send(from, to, bytes),
            Event::Resume { from, to, connection } => self.resume(from, to, connection),
            Event::Arrive { from, to, connection, sequence, bytes } => {
                let Some(link) = self.links.get_mut(&(from, to)) else { return Ok(()) };
                if link.connection != connection || !link.receiver.accept(sequence) {
                    return Ok(());
                }
                if sequence % 8 == 7 {
                    link.sender.acknowledge(link.receiver.expected());
                }
                self.note(&bytes);
                self.arrive(from, to, bytes)?;
            }
        }
        Ok(())
    }

    fn arrive(&mut self, from: Address, to: Address, bytes: Bytes) -> Result<()> {
        match to {
            Address::Region(region) => {
                let now = self.clock(region);
                let mut out = RegionOutput::default();
                let state = &mut self.regions[usize::from(region.0)];
                let result = state.receive(now, from, bytes, &mut out);
                self.collect(region, out);
                result
            }
            Address::Serializer(id) => {
                if self.lost.contains(&id.epoch) {
                    return Ok(());
                }
                let Some(serializer) = self.serializers.get(&id) else { return Ok(()) };
                let Envelope { generation, message } = Envelope::decode(from, bytes)?;
                let Message::Label { epoch, label } = message else { return Ok(()) };
                for forward in serializer.receive(from, label)? {
                    let message = Message::Label { epoch, label: forward.label };
                    let (bytes, _) = Envelope { generation, message }.encode();
                    if forward.delay_micros == 0 {
                        self.send(to, forward.to, bytes);
                    } else {
                        let emit = Event::Emit { from: to, to: forward.to, bytes };
                        self.plan(self.now_micros + forward.delay_micros, emit);
                    }
                }
                Ok(())
            }
        }
    }

    fn collect(&mut self, region: RegionId, out: RegionOutput) {
        for outgoing in out.send {
            let is_payload = outgoing.metadata_bytes < outgoing.bytes.len();
            let metadata = outgoing.metadata_bytes as u64;
            if is_payload {
                self.traffic.payloads += 1;
                self.traffic.payload_metadata_bytes += metadata;
            } else if matches!(outgoing.to, Address::Region(_)) {
                self.traffic.beats += 1;
                self.traffic.other_metadata_bytes += metadata;
            }
            self.send(Address::Region(region), outgoing.to, outgoing.bytes);
        }
        let applied = out.apply.into_iter().map(|t| Happening::Applied(region, t));
        self.happened.extend(applied);
        let attached = out.attached.into_iter().map(|id| Happening::Attached(region, id));
        self.happened.extend(attached);
        self.plan_tick(region);
    }

    fn send(&mut self, from: Address, to: Address, bytes: Bytes) {
        if matches!(from, Address::Serializer(_)) || matches!(to, Address::Serializer(_)) {
            self.traffic.labels += 1;
            self.traffic.other_metadata_bytes += bytes.len() as u64;
        }
        let (a, b) = (self.site(from), self.site(to));
        let down = self.cut.contains(&(a.min(b), a.max(b)));
        let link = self.links.entry((from, to)).or_default();
        link.down = down;
        let sequence = link.sender.push(bytes.clone());
        if !down {
            self.transmit(from, to, sequence, bytes);
        }
    }

    fn transmit(&mut self, from: Address, to: Address, sequence: u64, bytes: Bytes) {
        let mut at = self.now_micros + self.latency(from, to);
        if self.jitter_micros > 0 {
            at += self.random.random_range(0..=self.jitter_micros);
        }
        let Some(link) = self.links.get_mut(&(from, to)) else { return };
        link.last_arrival = link.last_arrival.max(at);
        let (at, connection) = (link.last_arrival, link.connection);
        self.plan(at, Event::Arrive { from, to, connection, sequence, bytes });
    }

    fn resume(&mut self, from: Address, to: Address, connection: u32) {
        let skips = usize::from(self.planted == Some(Bug::ResumeSkips));
        let Some(link) = self.links.get_mut(&(from, to)) else { return };
        if link.connection != connection || link.down {
            return;
        }
        // Anything sent since the link came up is on its way already and would overtake: it is a
        // new connection from here.
        link.connection += 1;
        let expected = link.receiver.expected();
        let again = link.sender.resume(expected + skips as u64);
        if skips > 0 && !again.is_empty() {
            link.receiver.accept(expected);
        }
        for (sequence, bytes) in again {
            self.transmit(from, to, sequence, bytes);
        }
    }

    fn links_between(&self, a: RegionId, b: RegionId) -> Vec<(Address, Address)> {
        let between = |(from, to): &&(Address, Address)| {
            let (from, to) = (self.site(*from), self.site(*to));
            (from, to) == (a, b) || (from, to) == (b, a)
        };
        self.links.keys().filter(between).copied().collect()
    }

    fn site(&self, address: Address) -> RegionId {
        match address {
            Address::Region(region) => region,
            Address::Serializer(id) => {
                let tree = self.trees.get(&id.epoch);
                let site = tree.and_then(|tree| tree.sites.get(usize::from(id.index)));
                site.copied().unwrap_or_default()
            }
        }
    }

    fn latency(&self, from: Address, to: Address) -> u64 {
        self.latencies.get(self.site(from), self.site(to))
    }

    fn clock(&self, region: RegionId) -> u64 {
        self.now_micros + self.skew_micros[usize::from(region.0)]
    }

    fn plan_tick(&mut self, region: RegionId) {
        let index = usize::from(region.0);
        let Some(wanted) = self.regions[index].next_tick() else { return };
        let at = wanted.saturating_sub(self.skew_micros[index]).max(self.now_micros);
        if at < self.tick_at[index] {
            self.tick_at[index] = at;
            self.plan(at, Event::Tick { region });
        }
    }

    fn plan(&mut self, at: u64, event: Event) {
        self.numbered += 1;
        self.events.push(Reverse((at, self.numbered)));
        self.bodies.insert(self.numbered, event);
    }

    fn note(&mut self, bytes: &[u8]) {
        // FNV-1a: what matters is that it sees every byte and its time.
        for byte in self.now_micros.to_be_bytes().iter().chain(bytes) {
            self.hash = (self.hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
        }
    }
}
