//! Nodes that find each other by the bucket, in a simulated world: who owns the log, through
//! deaths, partitions and hand-overs.

mod nodes;

use std::sync::atomic::AtomicBool;

use nodes::*;
use telesto_log::LeavesBucket;

#[test]
fn nodes_on_one_bucket_find_each_other_and_keep_the_log_on_three_of_them() {
    World::run(1, false, async |world| {
        let cluster = Cluster::of(world, 4).await;
        for index in 0..4 {
            cluster.append_surely(index, "k", &index.to_string()).await;
            for reader in 0..4 {
                let read = cluster.read(reader, "k").await.expect("read");
                assert!(read.ends_with(&index.to_string()), "node {reader} has {read}");
            }
            assert_eq!(cluster.status(index).members.len(), 3);
        }
        // Where clients reach a node is known everywhere.
        let seen = cluster.status(3);
        let first = seen.members.iter().find(|member| member.record.node == id(0));
        assert_eq!(first.and_then(|m| m.live.as_ref()).map(|live| &live.sql[..]), Some("sql0"));
    });
}

#[test]
fn dead_owner_is_succeeded_and_follows_when_it_comes_back() {
    for seed in 2..6 {
        World::run(seed, false, async |world| {
            let mut cluster = Cluster::of(world, 3).await;
            let dead = cluster.settle(3).await;
            cluster.append_surely((dead + 1) % 3, "k", "a").await;
            let before = cluster.world.now();
            cluster.kill(dead);
            cluster.append_surely((dead + 1) % 3, "k", "b").await;
            let gap = cluster.world.now() - before;
            assert!(gap < Duration::from_secs(2), "a gap of {gap:?}");
            let next = cluster.settle(2).await;
            assert_ne!(next, dead);
            assert!(
                cluster.status(next).events.iter().any(|e| e.what.contains("took the log over"))
            );
            cluster.start(dead).await.expect("started");
            assert_eq!(cluster.settle(3).await, next, "it does not take the log back");
            cluster.append_surely(dead, "k", "c").await;
            for index in 0..3 {
                assert_eq!(cluster.read(index, "k").await.expect("read"), "abc");
            }
        });
    }
}

#[test]
fn owner_that_is_drained_hands_over_without_an_error_or_a_lease_to_wait_for() {
    World::run(7, false, async |world| {
        let cluster = Cluster::of(world, 3).await;
        let owner = cluster.settle(3).await;
        cluster.append_surely(owner, "k", "a").await;
        let by = cluster.world.env.deadline(Duration::from_secs(5));
        let before = cluster.world.now();
        let writing = async {
            for n in 0..20 {
                cluster.append_surely(owner, "k", &n.to_string()).await;
            }
        };
        let (drained, ()) = futures::join!(cluster.node(owner).drain(by), writing);
        let successor = drained.expect("handed over").expect("it owned it");
        assert!(
            cluster.world.now() - before < Duration::from_millis(500),
            "a lease was waited for"
        );
        assert_eq!(cluster.settle(3).await, usize::try_from(successor.0 - 1).expect("small"));
        // It takes nothing over any more, not even from the dead.
        assert_eq!(cluster.node(owner).drain(by).await.expect("drained"), None);
    });
}

#[test]
fn only_node_keeps_the_log_when_it_is_drained() {
    World::run(8, false, async |world| {
        let cluster = Cluster::of(world, 1).await;
        let by = cluster.world.env.deadline(Duration::from_secs(5));
        assert_eq!(cluster.node(0).drain(by).await.expect("drained"), None);
        cluster.append_surely(0, "k", "a").await;
    });
}

#[test]
fn owner_that_most_others_hear_is_not_succeeded_by_one_that_does_not() {
    World::run(9, false, async |world| {
        let cluster = Cluster::of(world, 4).await;
        let owner = cluster.settle(3).await;
        let deaf = (owner + 1) % 4;
        let before = cluster.status(owner).chain;
        cluster.cut(owner, deaf);
        cluster.world.sleep(Duration::from_secs(10)).await;
        // An owner without work does not look whether it was succeeded; and the two could have
        // taken turns.
        let by = cluster.world.env.deadline(Duration::from_secs(5));
        cluster.engine(owner).log().refresh(by).await.expect("the chain");
        assert!(cluster.engine(owner).log().sequences(), "it was succeeded");
        assert_eq!(cluster.status(owner).chain, before, "the log went to and fro");
        cluster.append_surely(owner, "k", "a").await;
        cluster.net.heal();
        cluster.append_surely(deaf, "k", "b").await;
        assert_eq!(cluster.read(deaf, "k").await.expect("read"), "ab");
    });
}

#[test]
fn node_that_sends_and_hears_nothing_ends_no_loglet() {
    for seed in 20..23 {
        World::run(seed, false, async |world| {
            let cluster = Cluster::of(world, 3).await;
            let owner = cluster.settle(3).await;
            let deaf = (owner + 1) % 3;
            let loglet = cluster.status(owner).loglet;
            for other in (0..3).filter(|other| *other != deaf) {
                cluster.net.cut(&address(other), &address(deaf));
            }
            for _ in 0..20 {
                cluster.world.sleep(Duration::from_millis(500)).await;
                cluster.append_surely(owner, "k", "a").await;
            }
            assert!(cluster.engine(owner).log().sequences(), "it was succeeded");
            assert_eq!(cluster.status(owner).loglet, loglet, "its loglet was sealed");
            cluster.net.heal();
            // Who writes begins from what is there, which may be older than what the owner keeps;
            // who reads strictly waits for it.
            cluster.read(deaf, "k").await.expect("read");
            cluster.append_surely(deaf, "k", "b").await;
        });
    }
}

/// What is on the disks of the others is not waited for from the dead.
#[test]
fn reader_waits_for_no_server_that_is_cut_off() {
    World::run(23, false, async |world| {
        let cluster = Cluster::of(world, 3).await;
        let owner = cluster.settle(3).await;
        for gone in (0..3).filter(|node| *node != owner) {
            let reader = 3 - owner - gone;
            // What was lost on the way to the one before is sent again by then: else two of three
            // are silent at once.
            cluster.world.sleep(Duration::from_secs(3)).await;
            // A reader parks on one server after the other, half a second each: it is cut off from
            // the one it is parked on.
            for phase in 0..20 {
                cluster.world.sleep(Duration::from_millis(phase * 97)).await;
                for other in [owner, reader] {
                    cluster.cut(gone, other);
                }
                let before = cluster.world.now();
                cluster.append_surely(owner, "k", "a").await;
                let read = cluster.read(reader, "k").await.expect("read");
                assert!(read.ends_with('a'), "{read}");
                let gap = cluster.world.now() - before;
                assert!(gap < Duration::from_millis(300), "phase {phase}: a gap of {gap:?}");
                cluster.net.heal();
                cluster.settle(3).await;
            }
        }
    });
}

#[test]
fn minority_refuses_and_goes_on_when_it_hears_the_others_again() {
    World::run(10, false, async |world| {
        let cluster = Cluster::of(world, 3).await;
        let owner = cluster.settle(3).await;
        cluster.append_surely(owner, "k", "a").await;
        for other in (0..3).filter(|other| *other != owner) {
            cluster.cut(owner, other);
        }
        assert!(cluster.append(owner, "k", "lost").await.is_err(), "the minority acknowledged");
        assert!(cluster.read(owner, "k").await.is_err(), "the minority answers strict reads");
        let other = (owner + 1) % 3;
        cluster.append_surely(other, "k", "b").await;
        cluster.net.heal();
        let settled = cluster.settle(3).await;
        assert_ne!(settled, owner);
        let read = cluster.read(owner, "k").await.expect("read");
        // An append whose outcome was unknown may have been made; then it was before its
        // successor's.
        assert!(read == "ab" || read == "alostb", "{read}");
    });
}

#[test]
fn all_nodes_die_and_the_first_two_that_come_back_go_on() {
    World::run(11, false, async |world| {
        let mut cluster = Cluster::of(world, 3).await;
        cluster.append_surely(1, "k", "a").await;
        for index in 0..3 {
            cluster.kill(index);
        }
        // One alone cannot open the database before the second answers.
        let (first, second) = (2, 0);
        cluster.start_both(first, second).await;
        cluster.append_surely(second, "k", "b").await;
        assert_eq!(cluster.read(first, "k").await.expect("read"), "ab");
    });
}

impl Cluster {
    /// Two nodes whose engines open at the same time.
    async fn start_both(&mut self, one: usize, other: usize) {
        let mut twin = Self {
            world: self.world.clone(),
            net: self.net.clone(),
            store: Arc::clone(&self.store),
            checkpoints: Arc::clone(&self.checkpoints),
            nodes: Vec::new(),
            directory: tempfile::tempdir().expect("a directory"),
            planted: Planted::NONE,
            on_disks_from: self.on_disks_from,
        };
        for life in &self.nodes {
            let log_life = Arc::clone(&life.log_life);
            let (disk, life) = (Arc::clone(&life.disk), life.life);
            let (role, zone) = (NodeRole::Full, "");
            twin.nodes.push(Life {
                log_life,
                disk,
                life,
                role,
                zone,
                process: None,
                running: None,
            });
        }
        let (first, second) = futures::join!(self.start(one), twin.start(other));
        first.expect("started");
        second.expect("started");
        self.nodes[other] = twin.nodes.remove(other);
    }
}

/// A start may end before the log's directory is opened: an address that is in use, a kill. Copies
/// stay believed.
#[test]
fn starts_that_come_to_nothing_cost_no_copy_its_word() {
    World::run(15, false, async |world| {
        let mut cluster = Cluster::of(world, 3).await;
        cluster.append_surely(1, "k", "a").await;
        for index in 0..3 {
            cluster.kill(index);
            cluster.nodes[index].life += 2;
        }
        cluster.start_both(2, 0).await;
        cluster.append_surely(0, "k", "b").await;
        assert_eq!(cluster.read(2, "k").await.expect("read"), "ab");
    });
}

#[test]
fn follower_executes_but_never_owns_and_keeps_no_copy() {
    World::run(12, false, async |world| {
        let mut cluster = Cluster::new(world);
        for (index, role) in
            [NodeRole::Full, NodeRole::Follower, NodeRole::Follower].into_iter().enumerate()
        {
            cluster.add(role, "");
            cluster.start(index).await.expect("started");
        }
        cluster.world.sleep(Duration::from_secs(5)).await;
        assert_eq!(cluster.status(0).servers.len(), 1, "a follower keeps a copy");
        cluster.append_surely(1, "k", "a").await;
        assert_eq!(cluster.read(2, "k").await.expect("read"), "a");
        cluster.kill(0);
        cluster.world.sleep(Duration::from_secs(10)).await;
        assert!(cluster.running().iter().all(|index| !cluster.engine(*index).log().sequences()));
        assert!(cluster.append(1, "k", "b").await.is_err());
        cluster.start(0).await.expect("started");
        cluster.append_surely(1, "k", "b").await;
        assert_eq!(cluster.read(2, "k").await.expect("read"), "ab");
    });
}

#[test]
fn copies_are_put_in_different_zones() {
    World::run(13, false, async |world| {
        let mut cluster = Cluster::new(world);
        for (index, zone) in ["a", "a", "a", "b", "c"].into_iter().enumerate() {
            cluster.add(NodeRole::Full, zone);
            if index != 1 && index != 2 {
                cluster.start(index).await.expect("started");
            }
        }
        let owner = cluster.settle(3).await;
        let zones = |cluster: &Cluster| -> Vec<NodeId> {
            let mut nodes: Vec<NodeId> =
                cluster.status(owner).servers.iter().map(|server| server.node).collect();
            nodes.sort();
            nodes
        };
        assert_eq!(zones(&cluster), [id(0), id(3), id(4)]);
        // Lost ones are replaced by what there is.
        cluster.start(1).await.expect("started");
        cluster.kill(4);
        cluster.world.sleep(Duration::from_secs(15)).await;
        cluster.settle(3).await;
        assert_eq!(zones(&cluster), [id(0), id(1), id(3)]);
    });
}

#[test]
fn removed_or_copied_node_is_not_let_in() {
    World::run(14, false, async |world| {
        let mut cluster = Cluster::of(world, 4).await;
        cluster.kill(3);
        let process = cluster.world.process("command", 1);
        let registry = Registry::new(cluster.bucket(&process));
        registry.remove(&process.env, id(3)).await.expect("removed");
        assert!(matches!(cluster.start(3).await, Err(Error::Removed { node }) if node == id(3)));
        // A node that is told to looks at once; the others hear it from that one.
        let peer = Peer { node: id(0), address: address(0) };
        let me = Caller { node: id(8), incarnation: Incarnation(1) };
        let (transport, limits) = (cluster.net.transport("command"), CallLimits::default());
        let client = Client::new(&process.env, transport, peer, me, Class::Control, limits);
        let by = process.env.deadline(Duration::from_secs(5));
        telesto_cluster::ask_look(&client, by).await.expect("it looks");
        assert_eq!(cluster.status(0).members.len(), 2);
        cluster.world.sleep(Duration::from_secs(2)).await;
        assert_eq!((cluster.status(1).members.len(), cluster.status(2).members.len()), (2, 2));
        // Its copies of the log are made good first.
        cluster.world.sleep(Duration::from_secs(15)).await;
        cluster.settle(3).await;
        // Everybody has heard that it lived; a node that starts now tells the others that it is
        // gone.
        cluster.kill(2);
        cluster.start(2).await.expect("started");
        cluster.world.sleep(Duration::from_secs(3)).await;
        assert_eq!(cluster.status(0).members.len(), 2);
        // A copied folder has the same identity and life.
        cluster.nodes[2].life -= 1;
        cluster.nodes[2].disk = SimDisk::new();
        let twin = cluster.begin(2);
        // Two processes do not draw the same numbers.
        twin.process.env.random.next_u64();
        assert!(matches!(twin.run().await, Err(Error::Twin { .. })));
    });
}

/// A machine is put back to a snapshot of a life before. Its folder counts lives by itself, and
/// fits itself; the bucket knows better.
#[test]
fn node_put_back_to_a_life_before_is_no_witness_of_what_it_has_forgotten() {
    for seed in 60..66 {
        World::run(seed, false, async |world| {
            let mut cluster = Cluster::of(world, 3).await;
            cluster.append_surely(1, "k", "a").await;
            let owner = cluster.settle(3).await;
            let (put_back, away) = ((owner + 1) % 3, (owner + 2) % 3);
            cluster.kill(put_back);
            let image = cluster.nodes[put_back].disk.image();
            let counted = cluster.nodes[put_back].log_life.load(Ordering::SeqCst);
            cluster.start(put_back).await.expect("started");
            assert_eq!(cluster.settle(3).await, owner);
            // What the owner and the one that is put back have, nobody else has.
            cluster.kill(away);
            cluster.append_surely(owner, "k", "b").await;
            cluster.kill(put_back);
            cluster.kill(owner);
            let disk = SimDisk::new();
            disk.restore(&image);
            cluster.nodes[put_back].disk = disk;
            cluster.nodes[put_back].log_life = Arc::new(AtomicU64::new(counted));
            // The two that do not have it are a majority of the log's servers, of which one may
            // have forgotten.
            let early = [cluster.begin(put_back), cluster.begin(away)];
            let processes = early.each_ref().map(|beginning| beginning.process.clone());
            let [one, other] = early.map(|beginning| {
                let env = beginning.process.env.clone();
                let (tell, told) = futures::channel::oneshot::channel();
                env.spawn("starting", async move {
                    let _ = tell.send(beginning.run().await.expect("started"));
                });
                told
            });
            cluster.world.sleep(Duration::from_secs(5)).await;
            cluster.start(owner).await.expect("started");
            let started = [(put_back, one), (away, other)];
            for ((index, told), process) in started.into_iter().zip(processes) {
                let running = told.await.expect("it has started");
                let life = &mut cluster.nodes[index];
                (life.process, life.running) = (Some(process), Some(running));
            }
            for reader in 0..3 {
                let read = cluster.read(reader, "k").await.expect("read");
                assert_eq!(read, "ab", "seed {seed}: node {reader} has forgotten a commit");
            }
            // Its copy is made good in a loglet of its own time.
            cluster.settle(3).await;
        });
    }
}

/// All nodes die a moment after a commit; some of them may be left with their disks. `folded`: what
/// was committed had reached the checkpoint before it reached the archive.
fn forsaken(seed: u64, survivors: usize, folded: bool) -> String {
    World::run(seed, false, async |world| {
        let mut cluster = Cluster::of(world, 3).await;
        cluster.append_surely(0, "k", "a").await;
        // What is older than a second is in the bucket.
        cluster.world.sleep(Duration::from_secs(3)).await;
        cluster.append_surely(1, "k", "b").await;
        let mut known = Lsn::ZERO;
        if folded {
            // One that does not own the log: it could not ship it.
            let follower = (cluster.owner().expect("somebody") + 1) % 3;
            assert_eq!(cluster.read(follower, "k").await.expect("read"), "ab");
            known = cluster.engine(follower).applied().0;
            cluster.engine(follower).fold().await.expect("folds");
        }
        for index in 0..3 {
            cluster.kill(index);
        }
        cluster.world.sleep(Duration::from_millis(100)).await;
        let process = cluster.world.process("command", 1);
        let env = process.env.clone();
        let identity = Identity {
            node: id(9),
            incarnation: Incarnation(1),
            host: "h".into(),
            pid: 1,
            address: String::new(),
        };
        let disks: Vec<Arc<dyn Disk>> =
            cluster.nodes[..survivors].iter().map(|life| Arc::clone(&life.disk) as _).collect();
        let by = env.deadline(Duration::from_secs(20));
        let mut options = telesto_log::LogOptions::new(identity.clone());
        options.known_committed = Arc::new(known);
        let forsaking = telesto_log::forsake_majority(
            cluster.bucket(&process),
            env.clone(),
            SHARD,
            options,
            &disks,
            by,
        );
        let forsaken = forsaking.await.expect("it goes on");
        assert_eq!(forsaken.salvaged > 0, survivors > 0, "{forsaken:?}");
        if folded && survivors == 0 {
            let last = forsaken.only_in_checkpoint.expect("the archive is behind the checkpoint").1;
            assert_eq!((last, forsaken.end), (known, known.next()), "{forsaken:?}");
        } else {
            assert_eq!(forsaken.only_in_checkpoint, None, "{forsaken:?}");
        }
        // Nothing to do a second time.
        let options = telesto_log::LogOptions::new(identity);
        let again = telesto_log::forsake_majority(
            cluster.bucket(&process),
            env,
            SHARD,
            options,
            &disks,
            by,
        );
        assert!(matches!(again.await, Err(LogError::Unavailable { .. })));
        for index in 0..3 {
            if index >= survivors {
                cluster.nodes[index].disk = SimDisk::new();
            }
            cluster.start(index).await.expect("started");
        }
        let read = cluster.read(2, "k").await.expect("read");
        cluster.append_surely(1, "k", "c").await;
        assert_eq!(cluster.read(0, "k").await.expect("read"), format!("{read}c"));
        // On the nodes' disks again.
        cluster.engine(2).switch_log(LogKind::Quorum).await.expect("switched");
        cluster.settle(3).await;
        cluster.append_surely(1, "k", "d").await;
        assert_eq!(cluster.read(0, "k").await.expect("read"), format!("{read}cd"));
        read
    })
}

#[test]
fn log_whose_servers_are_all_lost_goes_on_in_the_bucket_by_a_command() {
    for seed in 20..24 {
        // Without a survivor at most what was younger than the archive's delay is lost.
        let read = forsaken(seed, 0, false);
        assert!(read == "a" || read == "ab", "{read}");
        // Two of three disks have everything that was acknowledged: one of them at least was met by
        // each commit.
        let read = forsaken(seed, 2, false);
        assert_eq!(read, "ab");
    }
}

#[test]
fn log_whose_checkpoint_is_ahead_of_what_is_left_of_it_goes_on_behind_the_checkpoint() {
    for seed in 24..28 {
        for survivors in [0, 2] {
            assert_eq!(forsaken(seed, survivors, true), "ab", "{survivors} survivors");
        }
    }
}

/// All nodes are told to stop at the moment at which the log leaves the bucket for their disks, of
/// which most of them know nothing yet: it is in the bucket again, or never left it, when the last
/// of them has ended, and one that starts alone has everything.
#[test]
fn log_that_goes_onto_disks_while_all_nodes_leave_needs_none_of_them_afterwards() {
    let mut on_disks = 0;
    for moment in 0..48 {
        World::run(100 + moment, false, async |world| {
            let mut cluster = Cluster::new(world);
            cluster.on_disks_from = Some(3);
            for index in 0..3 {
                cluster.add(NodeRole::Full, "");
                cluster.start(index).await.expect("started");
            }
            let owner = cluster.settle(3).await;
            cluster.append_surely(owner, "k", "a").await;
            let by = cluster.world.env.deadline(Duration::from_secs(5));
            let log = cluster.engine(owner).log();
            let leaves = LeavesBucket::With(3);
            log.switch_because(LogKind::Bucket, "a test", leaves, by).await.expect("in the bucket");
            let in_bucket = log.chain().active().id;
            // It leaves the bucket five seconds after the node whose turn it is has learned where
            // it is.
            let _ = cluster.append(0, "k", "").await;
            cluster.world.sleep(Duration::from_millis(4900 + 12 * moment)).await;
            cluster.leave_all().await;
            let env = cluster.world.env.clone();
            let by = env.deadline(Duration::from_secs(20));
            let opened = env.within(by, "waiting for others", cluster.start(1)).await;
            opened
                .unwrap_or_else(|_| panic!("moment {moment}: it does not open alone"))
                .expect("started");
            assert_eq!(cluster.read(1, "k").await.expect("read"), "a", "moment {moment}");
            on_disks += u64::from(cluster.engine(1).log().chain().active().id > in_bucket);
        });
    }
    assert!((1..48).contains(&on_disks), "{on_disks} of 48 met a log that was on disks");
}

impl Cluster {
    /// Tells all nodes to stop at once; each is gone as soon as it says that it may go.
    async fn leave_all(&mut self) {
        let mut left = Vec::new();
        for index in self.running() {
            let (node, gone) = (Arc::clone(self.node(index)), Arc::new(AtomicBool::new(false)));
            let process = self.nodes[index].process.as_ref().expect("it runs");
            let by = process.env.deadline(Duration::from_secs(5));
            left.push((index, Arc::clone(&gone)));
            process.env.spawn("leaving", async move {
                // One that is still needed ends all the same: its disk has it.
                let _ = node.drain(by).await;
                gone.store(true, Ordering::SeqCst);
            });
        }
        while !left.is_empty() {
            self.world.sleep(Duration::from_millis(1)).await;
            let gone = |one: &(usize, Arc<AtomicBool>)| one.1.load(Ordering::SeqCst);
            for (index, _) in left.extract_if(.., |one| gone(one)) {
                self.kill(index);
            }
        }
    }
}
