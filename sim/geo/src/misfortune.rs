//! What goes wrong, and what operators do meanwhile.
//!
//! # Invariants
//! Everything is drawn from the seed. Regions are told of a change at different times. One change
//! at a time: the next begins when every region has finished the one before.
//!
//! # On failure
//! A refused command is a violation: the simulation only gives commands that must be taken.
//!
//! # Limits
//! The greatest latency drawn is 250 ms, the longest cut 900 ms.

use rand::Rng as _;
use rand::rngs::SmallRng;
use telesto_common::RegionId;
use telesto_geo::{Node, PlaneConfig, PlaneKind, Tree};

use crate::World;

/// Wake-ups below this are clients'.
pub(crate) const FIRST: u64 = 1 << 32;

/// What a wake-up of ours does.
#[derive(Clone, Debug)]
enum Deed {
    /// Think of something.
    Think,
    /// Heal a cut.
    Heal(RegionId, RegionId),
    /// Tell a region of a new tree.
    Tree(RegionId, Tree),
    /// Tell a region of a new plane.
    Plane(RegionId, u32, PlaneConfig),
}

/// Draws misfortunes and changes.
#[derive(Debug)]
pub(crate) struct Misfortune {
    deeds: Vec<Deed>,
    /// Grows with every tree ever made.
    epoch: u32,
    /// The plane the regions are, or will be, on.
    kind: PlaneKind,
    /// Only this plane.
    only: Option<PlaneKind>,
    /// Nothing more goes wrong.
    pub(crate) over: bool,
}

impl Misfortune {
    pub(crate) fn new(world: &mut World, kind: PlaneKind, only: Option<PlaneKind>) -> Self {
        let mut misfortune = Self { deeds: Vec::new(), epoch: 0, kind, only, over: false };
        misfortune.plan(world, 100_000, Deed::Think);
        misfortune
    }

    fn plan(&mut self, world: &mut World, in_micros: u64, deed: Deed) {
        let number = FIRST + self.deeds.len() as u64;
        self.deeds.push(deed);
        world.wake(world.now_micros() + in_micros, number);
    }

    /// Does what wake-up `number` stands for; says what, for the trace.
    pub(crate) fn act(
        &mut self,
        world: &mut World,
        random: &mut SmallRng,
        number: u64,
    ) -> Result<String, String> {
        let deed = self.deeds.get((number - FIRST) as usize).cloned();
        match deed.unwrap_or(Deed::Think) {
            Deed::Think if self.over => Ok(String::from("all is well")),
            Deed::Think => {
                let next = random.random_range(50_000..400_000);
                self.plan(world, next, Deed::Think);
                Ok(self.think(world, random))
            }
            Deed::Heal(a, b) => {
                world.heal(a, b);
                Ok(format!("{a} and {b} are joined again"))
            }
            Deed::Tree(region, tree) => {
                let epoch = tree.epoch;
                let told = world.change_tree(region, tree);
                told.map_err(|error| format!("{region} refused tree {epoch}: {error}"))?;
                Ok(format!("{region} is told of tree {epoch}"))
            }
            Deed::Plane(region, generation, plane) => {
                let told = world.change_plane(region, generation, &plane);
                told.map_err(|error| format!("{region} refused {}: {error}", plane.kind))?;
                Ok(format!("{region} is told of plane {} as {generation}", plane.kind))
            }
        }
    }

    fn think(&mut self, world: &mut World, random: &mut SmallRng) -> String {
        let members = world.members();
        let one = RegionId(random.random_range(0..members) as u16);
        let other = RegionId(random.random_range(0..members) as u16);
        match random.random_range(0..10) {
            0..=2 if one != other => {
                world.cut(one, other);
                let lasts = random.random_range(10_000..900_000);
                self.plan(world, lasts, Deed::Heal(one, other));
                format!("{one} and {other} are cut for {lasts} µs")
            }
            3 => {
                let lasts = random.random_range(10_000..900_000);
                for other in (0..members as u16).map(RegionId).filter(|other| *other != one) {
                    world.cut(one, other);
                    self.plan(world, lasts, Deed::Heal(one, other));
                }
                format!("{one} is cut off for {lasts} µs")
            }
            4..=5 if one != other => {
                let micros = random.random_range(1_000..250_000);
                world.set_latency(one, other, micros);
                format!("{one} to {other} takes {micros} µs now")
            }
            6..=7 => self.change_tree(world, random),
            8 if self.only.is_none() => self.change_plane(world, random),
            _ => String::from("nothing happens"),
        }
    }

    fn is_settled(world: &World) -> bool {
        let regions = (0..world.members() as u16).map(|index| world.region(RegionId(index)));
        let states: Vec<_> = regions.map(|region| (region.generation(), region.epoch())).collect();
        let quiet = states.iter().all(|((_, changing), epoch)| {
            !changing && !epoch.is_some_and(|(_, changing)| changing)
        });
        quiet && states.windows(2).all(|pair| pair[0] == pair[1])
    }

    fn planned(&self, world: &World) -> bool {
        // A command on its way to a region is a change under way too; it is at most 400 ms away.
        !Self::is_settled(world)
    }

    fn change_tree(&mut self, world: &mut World, random: &mut SmallRng) -> String {
        if self.kind != PlaneKind::Tree || self.planned(world) {
            return String::from("no tree to change now");
        }
        let Some((old, _)) = world.region(RegionId(0)).epoch() else {
            return String::from("no tree yet");
        };
        self.epoch = self.epoch.max(old) + 1;
        let tree = random_tree(world.members(), random).with_epoch(self.epoch);
        world.add_tree(tree.clone());
        let lost = random.random_bool(0.4);
        if lost {
            world.lose_tree(old);
        }
        // The first region is told at once, so that no other change begins.
        for region in (0..world.members() as u16).map(RegionId) {
            let later = if region.0 == 0 { 0 } else { random.random_range(0..400_000) };
            self.plan(world, later, Deed::Tree(region, tree.clone()));
        }
        format!("tree {old} becomes {}, lost: {lost}", self.epoch)
    }

    fn change_plane(&mut self, world: &mut World, random: &mut SmallRng) -> String {
        if self.planned(world) {
            return String::from("no time for another plane");
        }
        let generation = world.region(RegionId(0)).generation().0 + 1;
        let kind = causal(random);
        self.epoch += 1;
        let tree = random_tree(world.members(), random).with_epoch(self.epoch);
        let plane = plane(kind, tree.clone(), random);
        if kind == PlaneKind::Tree {
            world.add_tree(tree);
        }
        for region in (0..world.members() as u16).map(RegionId) {
            let later = if region.0 == 0 { 0 } else { random.random_range(0..400_000) };
            self.plan(world, later, Deed::Plane(region, generation, plane.clone()));
        }
        self.kind = kind;
        format!("plane {kind} is to be generation {generation}")
    }
}

/// A causal plane; the default and the tree are drawn most.
pub(crate) fn causal(random: &mut SmallRng) -> PlaneKind {
    use PlaneKind::{Cure, GentleRain, Matrix, Timestamp, Tree};
    [Matrix, Matrix, Matrix, Tree, Tree, Tree, Timestamp, GentleRain, Cure]
        [random.random_range(0..9)]
}

/// Its intervals, drawn.
pub(crate) fn plane(kind: PlaneKind, tree: Tree, random: &mut SmallRng) -> PlaneConfig {
    let mut config = PlaneConfig::new(kind);
    config.tree = (kind == PlaneKind::Tree).then_some(tree);
    config.beat_micros = random.random_range(2_000..=config.beat_micros);
    config.patience_micros = random.random_range(50_000..2_000_000);
    config.partitions = random.random_range(1..=4);
    config
}

/// Serializers at random sites, randomly linked, with some delays.
pub(crate) fn random_tree(members: usize, random: &mut SmallRng) -> Tree {
    let serializers = random.random_range(1..=members.min(5)) as u16;
    let site = |random: &mut SmallRng| RegionId(random.random_range(0..members) as u16);
    let mut tree = Tree {
        sites: (0..serializers).map(|_| site(random)).collect(),
        links: (1..serializers).map(|index| (random.random_range(0..index), index)).collect(),
        homes: (0..members).map(|_| random.random_range(0..serializers)).collect(),
        ..Tree::default()
    };
    for (from, to) in tree.links.clone() {
        if random.random_bool(0.3) {
            let edge = (Node::Serializer(from), Node::Serializer(to));
            tree.delays_micros.insert(edge, random.random_range(1_000..60_000));
        }
    }
    tree
}
