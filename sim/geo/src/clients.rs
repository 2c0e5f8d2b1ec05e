//! Clients that read, write and move, and the regions' data.
//!
//! # Invariants
//! - A client reads and writes only where it is attached, and only keys that are replicated there.
//! - Every value is unique; the newest version of a key is the one with the greatest label.
//!
//! # On failure
//! What a client saw is in its history, for the checker.
//!
//! # Limits
//! One read or write at a time; a write is one transaction.

use std::collections::BTreeMap;

use bytes::Bytes;
use rand::Rng as _;
use rand::rngs::SmallRng;
use telesto_common::{Label, RegionId, Timestamp};
use telesto_geo::{Attach, AttachId, RegionSet, Transaction};
use telesto_testkit::causal::Event;

use crate::World;

/// Of a key's value: the greater is the newer.
type Version = (Timestamp, RegionId);

/// Where a client is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    /// Attached.
    At(RegionId),
    /// On the way, with its token.
    Moving(RegionId, Label),
    /// Waits to be attached.
    Waiting(RegionId, AttachId),
}

#[derive(Debug)]
struct Client {
    place: Place,
    /// Visits more regions than it works in.
    restless: bool,
}

/// All clients and all data.
#[derive(Debug)]
pub(crate) struct Clients {
    clients: Vec<Client>,
    placements: Vec<RegionSet>,
    /// By region: key to version and value.
    stores: Vec<BTreeMap<u64, (Version, u64)>>,
    /// What each client did and saw.
    pub(crate) history: Vec<Vec<Event>>,
    /// By value: its version.
    pub(crate) versions: BTreeMap<u64, Version>,
    /// Every commit with its placement.
    pub(crate) commits: Vec<(Label, RegionSet)>,
    /// By region: what was applied, in order.
    pub(crate) applied: Vec<Vec<Label>>,
    /// No client begins anything any more.
    pub(crate) resting: bool,
}

impl Clients {
    /// Clients spread over the regions, and keys with random placements.
    pub(crate) fn new(world: &mut World, random: &mut SmallRng) -> Self {
        let members = world.members();
        let count = random.random_range(members..=3 * members);
        let placement = |random: &mut SmallRng| {
            let all = RegionSet::first(members).0;
            // Small placements make it likely that a cause passes a region by.
            let draw = random.random::<u64>() & random.random::<u64>() & all;
            let first = RegionId(random.random_range(0..members) as u16);
            RegionSet(if random.random_bool(0.2) { all } else { draw }).with(first)
        };
        let placements = (0..random.random_range(4..=16)).map(|_| placement(random)).collect();
        let client = |index: usize| {
            let home = RegionId((index % members) as u16);
            Client { place: Place::At(home), restless: index.is_multiple_of(3) }
        };
        for client in 0..count {
            let at = world.now_micros() + random.random_range(0..50_000);
            world.wake(at, client as u64);
        }
        Self {
            clients: (0..count).map(client).collect(),
            placements,
            stores: vec![BTreeMap::new(); members],
            history: vec![Vec::new(); count],
            versions: BTreeMap::new(),
            commits: Vec::new(),
            applied: vec![Vec::new(); members],
            resting: false,
        }
    }

    /// How many there are.
    pub(crate) fn len(&self) -> usize {
        self.clients.len()
    }

    /// Clients that were not attached.
    pub(crate) fn waiting(&self) -> usize {
        self.clients.iter().filter(|client| matches!(client.place, Place::Waiting(..))).count()
    }

    /// A region applies a remote transaction.
    pub(crate) fn apply(&mut self, region: RegionId, transaction: &Transaction) {
        self.applied[usize::from(region.0)].push(transaction.label);
        let number = |at: usize| {
            let bytes = transaction.data.get(at..at + 8).and_then(|bytes| bytes.try_into().ok());
            bytes.map(u64::from_be_bytes).unwrap_or_default()
        };
        self.store(region, number(0), number(8), transaction.label);
    }

    fn store(&mut self, region: RegionId, key: u64, value: u64, label: Label) {
        let version = (label.timestamp, label.source);
        let entry = self.stores[usize::from(region.0)].entry(key).or_insert((version, value));
        if version > entry.0 {
            *entry = (version, value);
        }
    }

    /// A session has been attached.
    pub(crate) fn attached(&mut self, world: &mut World, region: RegionId, id: AttachId) {
        let waits = |client: &Client| client.place == Place::Waiting(region, id);
        if let Some(index) = self.clients.iter().position(waits) {
            self.clients[index].place = Place::At(region);
            world.wake(world.now_micros(), index as u64);
        }
    }

    /// A client does something and asks to be woken again. Returns what it did, for the trace.
    pub(crate) fn act(&mut self, world: &mut World, random: &mut SmallRng, index: usize) -> String {
        match self.clients[index].place {
            Place::Waiting(..) => String::from("waits"),
            Place::Moving(region, token) => self.arrive(world, index, region, token),
            Place::At(_) if self.resting => String::from("rests"),
            Place::At(region) => {
                let moves = if self.clients[index].restless { 0.35 } else { 0.08 };
                if world.members() > 1 && random.random_bool(moves) {
                    return self.depart(world, random, index, region);
                }
                let here: Vec<usize> = (0..self.placements.len())
                    .filter(|key| self.placements[*key].has(region))
                    .collect();
                let then = world.now_micros() + random.random_range(0..40_000);
                world.wake(then, index as u64);
                if here.is_empty() {
                    return String::from("finds nothing here");
                }
                let key = here[random.random_range(0..here.len())];
                if random.random_bool(0.4) {
                    self.write(world, index, region, key)
                } else {
                    let found = self.stores[usize::from(region.0)].get(&(key as u64));
                    let value = found.map(|(_, value)| *value);
                    self.history[index].push(Event::Read { key: key as u64, value });
                    format!("reads key {key} in {region}: {value:?}")
                }
            }
        }
    }

    fn write(&mut self, world: &mut World, index: usize, region: RegionId, key: usize) -> String {
        let (value, placement) = (self.commits.len() as u64 + 1, self.placements[key]);
        let data: Vec<u8> = [key as u64, value].iter().flat_map(|n| n.to_be_bytes()).collect();
        let label = world.commit(region, key as u32, placement, Bytes::from(data));
        self.store(region, key as u64, value, label);
        self.commits.push((label, placement));
        self.versions.insert(value, (label.timestamp, label.source));
        self.history[index].push(Event::Write { key: key as u64, value });
        format!("writes key {key} = {value} in {region}, placed at {:b}", placement.0)
    }

    fn depart(
        &mut self,
        world: &mut World,
        random: &mut SmallRng,
        index: usize,
        region: RegionId,
    ) -> String {
        let others = RegionSet::first(world.members()).without(region);
        let to = others.iter().nth(random.random_range(0..others.len())).unwrap_or(region);
        let announced = random.random_bool(0.6);
        let token = if announced { world.migrate(region, to).ok() } else { None };
        let token = token.unwrap_or_else(|| world.token(region));
        self.clients[index].place = Place::Moving(to, token);
        // A client's own way may be faster than any message between the regions.
        let way = world.latencies().get(region, to);
        let at = world.now_micros() + random.random_range(0..=way);
        world.wake(at, index as u64);
        format!("leaves {region} for {to}, announced: {announced}")
    }

    fn arrive(&mut self, world: &mut World, index: usize, to: RegionId, token: Label) -> String {
        match world.attach(to, &token) {
            Ok(Attach::Ready) => {
                self.clients[index].place = Place::At(to);
                world.wake(world.now_micros(), index as u64);
            }
            Ok(Attach::Waiting(id)) => self.clients[index].place = Place::Waiting(to, id),
            Err(_) => self.clients[index].place = Place::At(token.source),
        }
        format!("arrives in {to}")
    }

    /// Each key's value in every region that replicates it.
    pub(crate) fn diverged(&self) -> Vec<String> {
        let mut found = Vec::new();
        for (key, placement) in self.placements.iter().enumerate() {
            let value = |region: RegionId| self.stores[usize::from(region.0)].get(&(key as u64));
            let mut values = placement.iter().map(value);
            let first = values.next().flatten();
            if values.any(|value| value != first) {
                found.push(format!("key {key} differs between the regions of {:b}", placement.0));
            }
        }
        found
    }
}
