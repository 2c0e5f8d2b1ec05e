//! Clients that move between three regions while links are cut and regions are killed; the causal
//! checker judges.

use std::collections::BTreeMap;
use std::time::Duration;

use telesto_common::{Label, RegionId};
use telesto_geo::{Bug, PlaneKind};
use telesto_testkit::World;
use telesto_testkit::causal::{Event, check_with_versions};
use telesto_txn::{Database as _, ReadFor, TxnOptions};

use crate::harness::{Running, Sites, write};
use crate::times;

const CLIENTS: usize = 5;
const STEPS: usize = 220;
const KEYS: u64 = 2;
/// What each region replicates.
const PREFIXES: [[&str; 3]; 3] = [["a", "b", "d"], ["a", "b", "c"], ["a", "c", "d"]];

struct Client {
    at: usize,
    label: Label,
    events: Vec<Event>,
}

async fn read(running: &Running, key: &str, session: Label) -> (Option<u64>, Label) {
    let options = TxnOptions { read_only: true, session, ..TxnOptions::default() };
    let txn = running.engine.begin(options).await.expect("begins");
    let value = txn.get(key.as_bytes(), ReadFor::Query).await.expect("reads");
    let label = txn.commit().await.expect("ends").label;
    let text = value.map(|value| String::from_utf8(value.to_vec()).expect("text"));
    (text.map(|text| text.parse().expect("a number")), label)
}

fn number_of(prefix: &str, key: u64) -> u64 {
    u64::from(prefix.as_bytes()[0]) * 100 + key
}

/// What befalls the regions in a run.
pub trait Course {
    /// Before they are started.
    fn prepare(&self, world: &World, seed: u64, sites: &mut Sites);

    /// Before there is traffic.
    async fn begun(&self, world: &World, seed: u64, sites: &mut Sites);

    /// Before each step.
    async fn disturb(&self, world: &World, step: u64, sites: &mut Sites);

    /// When all is quiet again.
    fn ended(&self, sites: &Sites);
}

/// The usual one.
pub struct Usual {
    pub planted: Option<Bug>,
    pub plane: PlaneKind,
}

impl Course for Usual {
    fn prepare(&self, _: &World, seed: u64, sites: &mut Sites) {
        sites.planted = self.planted;
        sites.plane = self.plane;
        sites.latency = seed.is_multiple_of(3).then_some("s3-express");
        if seed.is_multiple_of(5) {
            // Hardly more than one transaction of each source.
            sites.inbox_bytes = 5_000;
        }
    }

    async fn begun(&self, _: &World, seed: u64, sites: &mut Sites) {
        if seed % 2 == 1 {
            sites.slow();
        }
    }

    async fn disturb(&self, world: &World, _: u64, sites: &mut Sites) {
        disturb(world, sites).await;
    }

    fn ended(&self, _: &Sites) {}
}

/// A run of `seed`; what is wrong with it.
pub fn run(seed: u64, course: &impl Course) -> Result<(), String> {
    World::run(seed, false, async |world| {
        let mut sites = Sites::new(&world, 3);
        course.prepare(&world, seed, &mut sites);
        sites.start_all().await;
        sites.quiet().await;
        let begun = times::begin(&sites);
        course.begun(&world, seed, &mut sites).await;
        let mut clients: Vec<Client> = (0..CLIENTS)
            .map(|client| Client { at: client % 3, label: Label::default(), events: Vec::new() })
            .collect();
        let mut versions = BTreeMap::new();
        for value in 1..=STEPS as u64 {
            course.disturb(&world, value, &mut sites).await;
            let client = &mut clients[world.draw(CLIENTS as u64) as usize];
            if world.chance(0.25) {
                let to = world.draw(3) as usize;
                travel(&sites, client, to).await;
            }
            let running = sites.at(client.at);
            let prefix = PREFIXES[client.at][world.draw(3) as usize];
            let key = world.draw(KEYS);
            let (name, number) = (format!("{prefix}{key}"), number_of(prefix, key));
            if world.chance(0.5) {
                let text = value.to_string();
                let writes = [(name.as_str(), Some(text.as_str()))];
                client.label = loop {
                    match write(&running.engine, &writes, client.label).await {
                        // A transaction of another region came between.
                        Err(telesto_txn::Error::Conflict { .. }) => {}
                        written => break written.expect("commits"),
                    }
                };
                let version = u128::from(client.label.timestamp.0) << 16 | client.at as u128;
                versions.insert(value, version);
                client.events.push(Event::Write { key: number, value });
            } else {
                let (value, label) = read(&running, &name, client.label).await;
                client.label = label;
                client.events.push(Event::Read { key: number, value });
            }
        }
        sites.net.heal();
        sites.quiet().await;
        course.ended(&sites);
        times::check(&sites, &begun).await?;
        let sessions: Vec<Vec<Event>> = clients.into_iter().map(|client| client.events).collect();
        let found = check_with_versions(&sessions, |value| versions.get(&value).copied());
        if let Some(first) = found.first() {
            return Err(format!("{first:?}"));
        }
        for (prefix, one, other) in
            [("a", 0, 1), ("a", 1, 2), ("b", 0, 1), ("c", 1, 2), ("d", 0, 2)]
        {
            if sites.contents(one, prefix).await != sites.contents(other, prefix).await {
                return Err(format!("{prefix} differs between regions {one} and {other}"));
            }
        }
        Ok(())
    })
}

async fn disturb(world: &World, sites: &Sites) {
    world.sleep(Duration::from_millis(world.draw(12))).await;
    match world.draw(60) {
        0 | 1 => sites.partition(world.draw(3) as usize, world.draw(3) as usize),
        2 | 3 => sites.net.heal(),
        4 => {
            let victim = world.draw(3) as usize;
            sites.kill(victim);
            sites.start(victim, 0..3).await;
        }
        _ => {}
    }
}

/// A client goes to another region, if what it has seen is there soon.
async fn travel(sites: &Sites, client: &mut Client, to: usize) {
    let from = sites.at(client.at).regions;
    let token = from.migrate(client.label, RegionId(to as u16)).expect("a member");
    let there = sites.at(to);
    let by = there.env.deadline(Duration::from_millis(400));
    if let Ok(label) = there.regions.attach(&token, by).await {
        client.at = to;
        client.label = label;
    }
}

/// Other processes carry the streams of regions, again and again, before those that did know of it.
struct Succession(PlaneKind);

impl Course for Succession {
    fn prepare(&self, world: &World, seed: u64, sites: &mut Sites) {
        Usual { planted: None, plane: self.0 }.prepare(world, seed, sites);
    }

    async fn begun(&self, _: &World, seed: u64, sites: &mut Sites) {
        if seed % 2 == 1 {
            sites.slow();
        }
    }

    async fn disturb(&self, world: &World, step: u64, sites: &mut Sites) {
        world.sleep(Duration::from_millis(world.draw(12))).await;
        sites.go_on().await;
        match world.draw(30) {
            0 => sites.partition(world.draw(3) as usize, world.draw(3) as usize),
            1 => sites.net.heal(),
            2 | 3 if sites.beside() < 3 => sites.succeed(world.draw(3) as usize).await,
            4 => sites.stand_by().await,
            _ => {}
        }
        if step == STEPS as u64 {
            sites.stand_by().await;
            sites.net.heal();
            // What the others did last is met when something else comes.
            for _ in 0..50 {
                sites.go_on().await;
                world.sleep(Duration::from_millis(100)).await;
            }
        }
    }

    fn ended(&self, _: &Sites) {}
}

#[test]
fn two_processes_that_carry_a_region_at_once_do_no_harm() {
    for seed in 0..seeds(12) {
        let plane = if seed % 3 == 2 { PlaneKind::Timestamp } else { PlaneKind::Matrix };
        run(seed, &Succession(plane)).unwrap_or_else(|wrong| panic!("seed {seed}: {wrong}"));
    }
}

/// How many seeds: more in the long run (scripts/soak.sh).
pub fn seeds(usual: u64) -> u64 {
    let asked = std::env::var("TELESTO_REGIONS_SEEDS").ok();
    asked.and_then(|seeds| seeds.parse().ok()).unwrap_or(usual)
}

#[test]
fn histories_of_moving_clients_are_causal_and_replicas_are_equal_when_all_is_quiet() {
    for seed in 0..seeds(24) {
        let usual = Usual { planted: None, plane: PlaneKind::Matrix };
        run(seed, &usual).unwrap_or_else(|wrong| panic!("seed {seed}: {wrong}"));
    }
}

/// The first seed that finds what was planted.
fn first_found(planted: Option<Bug>, plane: PlaneKind) -> Option<u64> {
    (0..200).find(|seed| {
        let run = std::panic::catch_unwind(|| run(*seed, &Usual { planted, plane }));
        match run {
            Ok(Ok(())) => false,
            Ok(Err(wrong)) => {
                println!("{planted:?} on {plane}, seed {seed}: {wrong}");
                true
            }
            // A session that is never attached proves nothing.
            Err(_) => false,
        }
    })
}

#[test]
fn planted_faults_are_found() {
    for (planted, plane) in [
        (None, PlaneKind::Eventual),
        (Some(Bug::OpenTime), PlaneKind::Timestamp),
        (Some(Bug::ColumnNotMerged), PlaneKind::Matrix),
        (Some(Bug::StaleAttach), PlaneKind::Matrix),
        (Some(Bug::ResumeSkips), PlaneKind::Matrix),
    ] {
        let found = first_found(planted, plane);
        assert!(found.is_some(), "{planted:?} on {plane} is not found");
    }
}
