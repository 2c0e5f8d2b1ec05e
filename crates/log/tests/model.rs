//! The protocol of a quorum log as a model, every interleaving of which is tried within small
//! bounds: ordering, storing, acknowledging, leases and rounds, succession (seal, repair, a new
//! loglet, the chain), servers that come late, forget, and let go what is archived.
//!
//! What an entry says is decided by its place (one sequencer orders a loglet), so the model counts
//! entries and leaves contents out. Time is left out too: an owner's belief in a promise ends
//! before the promise does, and that is all. The storm in `tests/cluster` looks at the code; this
//! looks at the idea.

use stateright::{Checker as _, HasDiscoveries, Model, Property};

const SERVERS: usize = 3;
const MAJORITY: usize = 2;
/// Loglets that may follow one another, and who may make each.
const LOGLETS: usize = 2;
const PROCESSES: usize = 2;
const SLOTS: usize = LOGLETS * PROCESSES;

/// A rule that is left out, to see that the model would notice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Without {
    Nothing,
    MajorityToAcknowledge,
    MajorityToSeal,
    PromiseAgainstSeals,
    RoundBeforeReads,
    DoubtAboutForgetful,
    EndThatIsRemembered,
    LifeThatWasMet,
    RepairBeforeTheChain,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Log {
    entries: u8,
    sealed: bool,
    /// No seal but its sequencer's own.
    promised: bool,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
struct Server {
    life: u8,
    /// Loglets below have ended.
    over: u8,
    logs: [Option<Log>; SLOTS],
}

/// A loglet as the chain has it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Link {
    slot: u8,
    start: u8,
    /// In which life each server was met before.
    met: [Option<u8>; SERVERS],
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Succession {
    /// Links of the chain that it goes on from.
    version: u8,
    sealed: [Option<u8>; SERVERS],
    repaired: [bool; SERVERS],
    made: [Option<u8>; SERVERS],
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
struct Process {
    owns: Option<u8>,
    stored: [u8; SERVERS],
    /// Which servers it believes bound.
    leased: [bool; SERVERS],
    succession: Option<Succession>,
    /// A read at the tail: what was acknowledged when it began, and who has said that it is
    /// unsealed.
    round: Option<(u8, [bool; SERVERS])>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct World {
    servers: [Server; SERVERS],
    processes: [Process; PROCESSES],
    chain: Vec<Link>,
    /// Of each loglet: entries ordered, acknowledged to a client, archived.
    ordered: [u8; SLOTS],
    acknowledged: [u8; SLOTS],
    archived: [u8; SLOTS],
    forgetful: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Step {
    Order(usize),
    Store(usize, usize),
    Hear(usize, usize),
    Lease(usize, usize),
    LeaseEnds(usize, usize),
    PromiseEnds(usize, usize),
    Look(usize),
    Unsealed(usize, usize),
    Succeed(usize),
    Seal(usize, usize),
    Repair(usize, usize),
    Make(usize, usize),
    Put(usize),
    MakeLate(usize, usize),
    Archive(usize),
    Remove(usize, usize),
    Forget(usize),
}

/// What is tried: everything at once would be too much.
#[derive(Clone, Copy, Debug)]
struct Bounds {
    entries: u8,
    loglets: usize,
    /// Processes that take over.
    heirs: &'static [usize],
    leases: bool,
    rounds: bool,
    /// A server forgets everything.
    forgets: bool,
    archives: bool,
}

const NARROW: Bounds = Bounds {
    entries: 1,
    loglets: 2,
    heirs: &[1],
    leases: false,
    rounds: false,
    forgets: false,
    archives: false,
};

struct Protocol {
    without: Without,
    bounds: Bounds,
}

fn id(slot: u8) -> u8 {
    slot / PROCESSES as u8
}

impl World {
    fn link(&self, slot: u8) -> Option<&Link> {
        self.chain.iter().find(|link| link.slot == slot)
    }

    /// Entries of a loglet that has ended.
    fn end(&self, slot: u8) -> Option<u8> {
        let at = self.chain.iter().position(|link| link.slot == slot)?;
        self.chain.get(at + 1).map(|next| next.start - self.chain[at].start)
    }

    /// Positions of the log below which everything was acknowledged.
    fn told(&self) -> u8 {
        let told = |link: &Link| link.start + self.acknowledged[link.slot as usize];
        self.chain.iter().map(told).max().unwrap_or(0)
    }
}

impl Protocol {
    /// Entries that process `p` counts as committed.
    fn committed(&self, process: &Process) -> u8 {
        let mut stored = process.stored;
        stored.sort_unstable_by(|a, b| b.cmp(a));
        let early = self.without == Without::MajorityToAcknowledge;
        stored[if early { 0 } else { MAJORITY - 1 }]
    }

    fn enough(&self, link: &Link) -> usize {
        let met = link.met.iter().flatten().count();
        if self.without == Without::MajorityToSeal { 1 } else { met + 1 - MAJORITY }
    }

    /// What a recovery has found, once it has sealed enough.
    fn found(&self, world: &World, succession: &Succession) -> Option<u8> {
        let link = world.chain.last()?;
        let sealed = succession.sealed.iter().flatten();
        (sealed.clone().count() >= self.enough(link)).then(|| sealed.max().copied().unwrap_or(0))
    }

    fn seal(&self, world: &mut World, p: usize, s: usize) -> Option<()> {
        let slot = world.chain.last()?.slot;
        let met = world.chain.last()?.met[s];
        let owner = world.processes[p].owns == Some(slot);
        let server = &mut world.servers[s];
        if server.logs[slot as usize].is_none() && self.without == Without::DoubtAboutForgetful {
            met?;
            server.logs[slot as usize] = Some(Log { entries: 0, sealed: true, promised: false });
        }
        let log = server.logs[slot as usize].as_mut()?;
        if log.promised && !owner && self.without != Without::PromiseAgainstSeals {
            return None;
        }
        log.sealed = true;
        let entries = log.entries;
        let succession = world.processes[p].succession.as_mut()?;
        if succession.sealed[s].is_some() || succession.made.iter().any(Option::is_some) {
            return None;
        }
        succession.sealed[s] = Some(entries);
        Some(())
    }

    fn put(&self, world: &mut World, p: usize) -> Option<()> {
        let succession = world.processes[p].succession.clone()?;
        if usize::from(succession.version) != world.chain.len() {
            world.processes[p].succession = None;
            return Some(());
        }
        let end = self.found(world, &succession)?;
        let repaired =
            (0..SERVERS).all(|s| succession.sealed[s].is_none() || succession.repaired[s]);
        if !repaired && self.without != Without::RepairBeforeTheChain {
            return None;
        }
        if succession.made.iter().flatten().count() < MAJORITY {
            return None;
        }
        let start = world.chain.last()?.start + end;
        let slot = (world.chain.len() * PROCESSES + p) as u8;
        world.chain.push(Link { slot, start, met: succession.made });
        world.processes[p] = Process { owns: Some(slot), ..Process::default() };
        Some(())
    }

    fn step(&self, world: &mut World, step: Step) -> Option<()> {
        let owned = |world: &World, p: usize| world.processes[p].owns.map(usize::from);
        match step {
            Step::Order(p) => {
                let slot = owned(world, p)?;
                if world.ordered.iter().sum::<u8>() >= self.bounds.entries
                    || world.processes[p].succession.is_some()
                {
                    return None;
                }
                world.ordered[slot] += 1;
            }
            Step::Store(slot, s) => {
                let ordered = world.ordered[slot];
                let log = world.servers[s].logs[slot].as_mut()?;
                if log.sealed || log.entries >= ordered {
                    return None;
                }
                log.entries += 1;
            }
            Step::Hear(p, s) => {
                let slot = owned(world, p)?;
                let entries = world.servers[s].logs[slot].as_ref()?.entries;
                if entries <= world.processes[p].stored[s] {
                    return None;
                }
                world.processes[p].stored[s] = entries;
                let committed = self.committed(&world.processes[p]);
                world.acknowledged[slot] = committed.max(world.acknowledged[slot]);
            }
            Step::Lease(p, s) => {
                let slot = owned(world, p)?;
                let log = world.servers[s].logs[slot].as_mut()?;
                if log.sealed || world.processes[p].leased[s] {
                    return None;
                }
                log.promised = true;
                world.processes[p].leased[s] = true;
            }
            Step::LeaseEnds(p, s) => {
                if !std::mem::take(&mut world.processes[p].leased[s]) {
                    return None;
                }
            }
            Step::PromiseEnds(slot, s) => {
                let believed = (0..PROCESSES)
                    .any(|p| owned(world, p) == Some(slot) && world.processes[p].leased[s]);
                let log = world.servers[s].logs[slot].as_mut()?;
                if believed || !std::mem::take(&mut log.promised) {
                    return None;
                }
            }
            Step::Look(p) => {
                owned(world, p)?;
                let told = world.told();
                let process = &mut world.processes[p];
                if process.round.is_some() || process.succession.is_some() {
                    return None;
                }
                process.round = Some((told, [false; SERVERS]));
            }
            Step::Unsealed(p, s) => {
                let slot = owned(world, p)?;
                let open = world.servers[s].logs[slot].as_ref().is_some_and(|log| !log.sealed);
                let round = world.processes[p].round.as_mut()?;
                if !open || round.1[s] {
                    return None;
                }
                round.1[s] = true;
            }
            Step::Succeed(p) => {
                let version = world.chain.len() as u8;
                if world.chain.len() >= self.bounds.loglets
                    || world.processes[p].succession.is_some()
                {
                    return None;
                }
                let process = &mut world.processes[p];
                process.leased = [false; SERVERS];
                process.round = None;
                process.succession = Some(Succession {
                    version,
                    sealed: [None; SERVERS],
                    repaired: [false; SERVERS],
                    made: [None; SERVERS],
                });
            }
            Step::Seal(p, s) => {
                let succession = world.processes[p].succession.as_ref()?;
                if usize::from(succession.version) != world.chain.len() {
                    return None;
                }
                // With enough of them it asks no further ones.
                if self.found(world, succession).is_some() {
                    return None;
                }
                self.seal(world, p, s)?;
            }
            Step::Repair(p, s) => {
                let succession = world.processes[p].succession.clone()?;
                if usize::from(succession.version) != world.chain.len() {
                    return None;
                }
                let end = self.found(world, &succession)?;
                let slot = world.chain.last()?.slot as usize;
                if succession.sealed[s].is_none() || succession.repaired[s] {
                    return None;
                }
                let log = world.servers[s].logs[slot].as_mut()?;
                log.entries = end.max(log.entries);
                world.processes[p].succession.as_mut()?.repaired[s] = true;
            }
            Step::Make(p, s) => {
                let succession = world.processes[p].succession.clone()?;
                self.found(world, &succession)?;
                let slot = usize::from(succession.version) * PROCESSES + p;
                let server = &mut world.servers[s];
                if succession.made[s].is_some() || server.logs[slot].is_some() {
                    return None;
                }
                server.logs[slot] = Some(Log { entries: 0, sealed: false, promised: false });
                let life = server.life;
                world.processes[p].succession.as_mut()?.made[s] = Some(life);
            }
            Step::Put(p) => self.put(world, p)?,
            Step::MakeLate(p, s) => {
                let slot = owned(world, p)?;
                let met = world.link(slot as u8)?.met[s];
                let never = world.processes[p].stored[s] == 0;
                let server = &mut world.servers[s];
                let same = met == Some(server.life) || self.without == Without::LifeThatWasMet;
                let begins =
                    id(slot as u8) >= server.over || self.without == Without::EndThatIsRemembered;
                if server.logs[slot].is_some() || !never || !same || !begins {
                    return None;
                }
                server.logs[slot] = Some(Log { entries: 0, sealed: false, promised: false });
            }
            Step::Archive(slot) => {
                world.link(slot as u8)?;
                let through = world.end(slot as u8).unwrap_or(world.acknowledged[slot]);
                if world.archived[slot] >= through {
                    return None;
                }
                world.archived[slot] = through;
            }
            Step::Remove(slot, s) => {
                let end = world.end(slot as u8)?;
                let server = &mut world.servers[s];
                if world.archived[slot] < end || server.logs[slot].is_none() {
                    return None;
                }
                server.logs[slot] = None;
                server.over = server.over.max(id(slot as u8) + 1);
            }
            Step::Forget(s) => {
                if world.forgetful {
                    return None;
                }
                world.forgetful = true;
                let life = world.servers[s].life + 1;
                world.servers[s] = Server { life, ..Server::default() };
                // A promise is kept without being remembered: after its start a server accepts no
                // seal for a while.
                for p in 0..PROCESSES {
                    world.processes[p].leased[s] = false;
                }
            }
        }
        Some(())
    }
}

impl Model for Protocol {
    type State = World;
    type Action = Step;

    fn init_states(&self) -> Vec<World> {
        let mut servers: [Server; SERVERS] = Default::default();
        // The third server was met, and has not got the first loglet yet.
        for server in &mut servers[..MAJORITY] {
            server.logs[0] = Some(Log { entries: 0, sealed: false, promised: false });
        }
        let mut processes: [Process; PROCESSES] = Default::default();
        processes[0].owns = Some(0);
        vec![World {
            servers,
            processes,
            chain: vec![Link { slot: 0, start: 0, met: [Some(0); SERVERS] }],
            ordered: [0; SLOTS],
            acknowledged: [0; SLOTS],
            archived: [0; SLOTS],
            forgetful: false,
        }]
    }

    fn actions(&self, world: &World, steps: &mut Vec<Step>) {
        let bounds = self.bounds;
        let each = |count: usize, step: fn(usize, usize) -> Step| {
            (0..count).flat_map(move |n| (0..SERVERS).map(move |s| step(n, s)))
        };
        let mut all: Vec<Step> = bounds.heirs.iter().map(|p| Step::Succeed(*p)).collect();
        for p in 0..PROCESSES {
            all.extend([Step::Order(p), Step::Put(p)]);
        }
        let mut of_processes =
            vec![Step::Hear, Step::Seal, Step::Repair, Step::Make, Step::MakeLate];
        let mut of_slots = vec![Step::Store as fn(usize, usize) -> Step];
        if bounds.leases {
            of_processes.extend([Step::Lease as fn(usize, usize) -> Step, Step::LeaseEnds]);
            of_slots.push(Step::PromiseEnds);
        }
        if bounds.rounds {
            of_processes.push(Step::Unsealed);
            all.extend((0..PROCESSES).map(Step::Look));
        }
        if bounds.archives {
            of_slots.push(Step::Remove);
            all.extend((0..SLOTS).map(Step::Archive));
        }
        if bounds.forgets {
            all.extend((0..SERVERS).map(Step::Forget));
        }
        all.extend(of_processes.into_iter().flat_map(|step| each(PROCESSES, step)));
        all.extend(of_slots.into_iter().flat_map(|step| each(SLOTS, step)));
        // Those that change nothing for want of what they need are left out by their outcome, most
        // of them before.
        let busy =
            |p: usize| world.processes[p].owns.is_some() || world.processes[p].succession.is_some();
        let is_there = |slot: usize, s: usize| world.servers[s].logs[slot].is_some();
        steps.extend(all.into_iter().filter(|step| match *step {
            Step::Store(slot, s) | Step::PromiseEnds(slot, s) | Step::Remove(slot, s) => {
                is_there(slot, s)
            }
            Step::Seal(p, _) | Step::Repair(p, _) | Step::Make(p, _) | Step::Put(p) => {
                world.processes[p].succession.is_some()
            }
            Step::Archive(slot) => world.acknowledged[slot] > 0 || world.end(slot as u8).is_some(),
            Step::Hear(p, _) | Step::MakeLate(p, _) | Step::Order(p) => busy(p),
            _ => true,
        }));
    }

    fn next_state(&self, world: &World, step: Step) -> Option<World> {
        let mut next = world.clone();
        self.step(&mut next, step).map(|()| next)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always("acknowledged entries stay in the log", |_, world: &World| {
                (0..SLOTS).all(|slot| {
                    world.end(slot as u8).is_none_or(|end| world.acknowledged[slot] <= end)
                })
            }),
            Property::always("what is in the log is somewhere", |_, world: &World| {
                (0..SLOTS).all(|slot| {
                    let told = world.end(slot as u8).unwrap_or(0).max(world.acknowledged[slot]);
                    told <= world.archived[slot]
                        || world.servers.iter().any(|server| {
                            server.logs[slot].as_ref().is_some_and(|log| log.entries >= told)
                        })
                })
            }),
            Property::always(
                "an owner with leases knows what was acknowledged",
                |model: &Self, world: &World| {
                    world.processes.iter().all(|process| {
                        let leased = process.leased.iter().filter(|leased| **leased).count();
                        let Some(link) = process.owns.and_then(|slot| world.link(slot)) else {
                            return true;
                        };
                        leased < MAJORITY || link.start + model.committed(process) >= world.told()
                    })
                },
            ),
            Property::always(
                "a round knows what was acknowledged before it",
                |model: &Self, world: &World| {
                    world.processes.iter().all(|process| {
                        let Some((told, open)) = process.round else { return true };
                        let Some(link) = process.owns.and_then(|slot| world.link(slot)) else {
                            return true;
                        };
                        let needed =
                            if model.without == Without::RoundBeforeReads { 0 } else { MAJORITY };
                        open.iter().filter(|open| **open).count() < needed
                            || link.start + model.committed(process) >= told
                    })
                },
            ),
            Property::sometimes(GOES_ON, |_, world: &World| {
                world.chain.len() > 1
                    && world.chain[1..].iter().any(|l| world.acknowledged[l.slot as usize] > 0)
            }),
        ]
    }
}

const GOES_ON: &str = "a second owner acknowledges";

#[test]
fn no_interleaving_within_the_bounds_breaks_a_promise() {
    for bounds in [
        Bounds { entries: 2, ..NARROW },
        Bounds { rounds: true, ..NARROW },
        Bounds { leases: true, ..NARROW },
        Bounds { archives: true, forgets: true, ..NARROW },
    ] {
        let model = Protocol { without: Without::Nothing, bounds };
        let checker = model.checker().threads(2).spawn_bfs().join();
        println!("{} states of {bounds:?}", checker.unique_state_count());
        checker.assert_properties();
    }
}

#[test]
fn each_rule_that_is_left_out_is_missed() {
    for (without, bounds) in [
        (Without::MajorityToAcknowledge, NARROW),
        (Without::MajorityToSeal, NARROW),
        (Without::PromiseAgainstSeals, Bounds { leases: true, ..NARROW }),
        (Without::RoundBeforeReads, Bounds { rounds: true, ..NARROW }),
        (Without::DoubtAboutForgetful, Bounds { forgets: true, ..NARROW }),
        (Without::EndThatIsRemembered, Bounds { archives: true, ..NARROW }),
        (Without::LifeThatWasMet, Bounds { forgets: true, ..NARROW }),
        (Without::RepairBeforeTheChain, Bounds { forgets: true, ..NARROW }),
    ] {
        let checker =
            Protocol { without, bounds }.checker().finish_when(HasDiscoveries::AnyFailures);
        let found = checker.threads(2).spawn_bfs().join().discoveries();
        let broken = found.into_iter().find(|(name, _)| *name != GOES_ON);
        let (name, path) = broken.unwrap_or_else(|| panic!("nobody misses {without:?}"));
        println!("{without:?}: not so: {name}: {:?}", path.into_actions());
    }
}
