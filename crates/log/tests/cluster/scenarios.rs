//! One misfortune at a time.

use std::time::Duration;

use telesto_bucket::{Cause, Class, Fault, FaultRule};
use telesto_common::Lsn;
use telesto_log::disk::SimDisk;
use telesto_log::{Append, Error, LogKind};
use telesto_testkit::World;

use crate::nodes::*;

async fn say(nodes: &Nodes, index: usize, at: u64, hash: [u8; 16]) -> Result<[u8; 16], Error> {
    let log = nodes.opened(index).await;
    let by = nodes.nodes[index].process.env.deadline(PATIENCE);
    match log.append(Lsn(at), hash, saying(&at.to_string()), by).await? {
        Append::Committed(entry) => Ok(entry.hash),
        Append::Taken { .. } => panic!("entry {at} is taken"),
    }
}

async fn tail(nodes: &Nodes, index: usize) -> Result<Lsn, Error> {
    let log = nodes.opened(index).await;
    let mut next = Lsn::FIRST;
    loop {
        let by = nodes.nodes[index].process.env.deadline(PATIENCE);
        let batch = log.read(next, 1 << 20, Cause::Read, by).await?;
        next = batch.next(next);
        if batch.at_tail {
            return Ok(next);
        }
    }
}

/// Waits until `index` owns the log.
async fn owned_by(nodes: &Nodes, index: usize) {
    for _ in 0..2000 {
        if nodes.log(index).is_some_and(|log| log.sequences()) {
            return;
        }
        nodes.world.sleep(Duration::from_millis(10)).await;
    }
    panic!("node {index} does not own the log");
}

#[test]
fn entries_are_on_all_three_servers_and_every_node_reads_to_the_tail() {
    World::run(1, false, async |world| {
        let nodes = Nodes::new(world, Shape::of_three()).await;
        let mut hash = [0; 16];
        for at in 1..=20 {
            hash = say(&nodes, 0, at, hash).await.expect("appended");
        }
        for index in 0..3 {
            assert_eq!(tail(&nodes, index).await.expect("read"), Lsn(21), "node {index}");
        }
        nodes.world.sleep(Duration::from_secs(1)).await;
        let redundancy = nodes.opened(0).await.redundancy().expect("it owns the log");
        assert_eq!((redundancy.following(), redundancy.is_lost()), (3, false));
        assert!(redundancy.servers.iter().all(|(_, standing)| standing.lag == 0));
        let error = say(&nodes, 1, 21, hash).await.expect_err("it does not own the log");
        assert!(matches!(error, Error::NotOwner { .. }), "{error}");
    });
}

#[test]
fn node_takes_over_from_a_dead_owner_within_two_seconds_and_nothing_is_lost() {
    World::run(2, false, async |world| {
        let mut nodes = Nodes::new(world, Shape::of_three()).await;
        let mut hash = [0; 16];
        for at in 1..=20 {
            hash = say(&nodes, 0, at, hash).await.expect("appended");
        }
        nodes.opened(1).await;
        nodes.opened(2).await;
        nodes.kill(0);
        let dead = nodes.world.now();
        owned_by(&nodes, 1).await;
        let took = nodes.world.now() - dead;
        assert!(took < Duration::from_secs(2), "{took:?}");
        say(&nodes, 1, 21, hash).await.expect("appended");
        assert_eq!(tail(&nodes, 2).await.expect("read"), Lsn(22));
        nodes.start(0).await;
        assert_eq!(tail(&nodes, 0).await.expect("read"), Lsn(22));
    });
}

#[test]
fn owner_that_is_frozen_and_succeeded_does_not_answer_by_what_it_had() {
    World::run(3, false, async |world| {
        let nodes = Nodes::new(world, Shape::of_three()).await;
        let hash = say(&nodes, 0, 1, [0; 16]).await.expect("appended");
        nodes.opened(1).await;
        nodes.opened(2).await;
        assert!(nodes.opened(0).await.is_local_sequencer(), "a lease came with the append");
        nodes.nodes[0].process.freeze();
        owned_by(&nodes, 1).await;
        say(&nodes, 1, 2, hash).await.expect("appended");
        nodes.nodes[0].process.thaw();
        let log = nodes.opened(0).await;
        assert!(!log.is_local_sequencer(), "its lease is over");
        assert_eq!(tail(&nodes, 0).await.expect("read"), Lsn(3));
        assert!(!log.sequences());
    });
}

#[test]
fn strict_reads_of_an_idle_owner_ask_a_majority_once_and_not_again_while_the_lease_lasts() {
    World::run(4, false, async |world| {
        let nodes = Nodes::new(world, Shape::of_three()).await;
        say(&nodes, 0, 1, [0; 16]).await.expect("appended");
        let log = nodes.opened(0).await;
        for index in [1, 2] {
            nodes.opened(index).await;
        }
        assert!(log.is_local_sequencer());
        // Cut off, but not for longer than the promises last: what it has is all there is.
        nodes.isolate(0);
        nodes.world.sleep(Duration::from_millis(300)).await;
        let started = nodes.world.now();
        assert_eq!(tail(&nodes, 0).await.expect("read"), Lsn(2));
        assert_eq!(nodes.world.now(), started, "nobody was asked");
        nodes.world.sleep(Duration::from_millis(300)).await;
        assert!(!log.is_local_sequencer());
        let error = tail(&nodes, 0).await.expect_err("nobody answers");
        assert!(!matches!(error, Error::Corrupt { .. }), "{error}");
    });
}

#[test]
fn minority_side_refuses_and_the_majority_side_goes_on() {
    World::run(5, false, async |world| {
        let nodes = Nodes::new(world, Shape::of_three()).await;
        let hash = say(&nodes, 0, 1, [0; 16]).await.expect("appended");
        nodes.opened(1).await;
        nodes.opened(2).await;
        nodes.isolate(0);
        let error = say(&nodes, 0, 2, hash).await.expect_err("no majority");
        assert!(matches!(error, Error::Indeterminate { .. }), "{error}");
        owned_by(&nodes, 1).await;
        assert!(tail(&nodes, 0).await.is_err(), "it cannot know the tail");
        // Whatever became of entry 2, both sides agree on it once they hear each other.
        let end = tail(&nodes, 1).await.expect("read");
        nodes.net.heal();
        nodes.world.sleep(Duration::from_secs(2)).await;
        assert_eq!(tail(&nodes, 0).await.expect("read"), end);
    });
}

#[test]
fn dead_server_is_replaced_by_a_spare_and_its_loss_is_shown_without_one() {
    for spare in [true, false] {
        World::run(6, false, async |world| {
            let shape = Shape { nodes: if spare { 4 } else { 3 }, ..Shape::of_three() };
            let mut nodes = Nodes::new(world, shape).await;
            let mut hash = [0; 16];
            for at in 1..=5 {
                hash = say(&nodes, 0, at, hash).await.expect("appended");
            }
            for index in 1..shape.nodes {
                nodes.opened(index).await;
            }
            nodes.kill(2);
            let log = nodes.opened(0).await;
            let before = log.chain().active().id;
            nodes.world.sleep(Duration::from_secs(8)).await;
            say(&nodes, 0, 6, hash).await.expect("appended");
            nodes.world.sleep(Duration::from_secs(1)).await;
            let redundancy = log.redundancy().expect("it owns the log");
            if spare {
                assert!(log.chain().active().id > before);
                assert_eq!((redundancy.following(), redundancy.is_lost()), (3, false));
                assert!(redundancy.servers.iter().any(|(server, _)| server.node == info(3).node));
            } else {
                assert_eq!(log.chain().active().id, before, "nobody could take its place");
                assert_eq!(redundancy.servers.len(), 3, "their number does not shrink");
                assert_eq!((redundancy.following(), redundancy.is_lost()), (2, true));
            }
        });
    }
}

#[test]
fn server_that_was_away_for_long_passes_over_what_is_archived_and_follows_again() {
    World::run(7, false, async |world| {
        let shape = Shape {
            archive_interval: Duration::from_millis(200),
            buffer_bytes: 2000,
            segment_bytes: 1 << 12,
            ..Shape::of_three()
        };
        let mut nodes = Nodes::new(world, shape).await;
        let mut hash = say(&nodes, 0, 1, [0; 16]).await.expect("appended");
        nodes.opened(1).await;
        nodes.opened(2).await;
        nodes.kill(2);
        for at in 2..=300 {
            hash = say(&nodes, 0, at, hash).await.expect("appended");
            nodes.world.sleep(Duration::from_millis(5)).await;
        }
        nodes.start(2).await;
        nodes.world.sleep(Duration::from_secs(3)).await;
        let log = nodes.opened(0).await;
        let redundancy = log.redundancy().expect("it owns the log");
        assert_eq!(redundancy.following(), 3, "{redundancy:?}");
        assert!(redundancy.servers.iter().all(|(_, s)| s.lag == 0), "{redundancy:?}");
        assert_eq!(tail(&nodes, 2).await.expect("read"), Lsn(301));
        // It is worth as much as the others: the log survives on it and one more.
        nodes.kill(0);
        owned_by(&nodes, 1).await;
        assert_eq!(tail(&nodes, 2).await.expect("read"), Lsn(301));
    });
}

#[test]
fn server_whose_disk_is_new_does_not_count_towards_a_majority() {
    World::run(8, false, async |world| {
        let mut nodes = Nodes::new(world, Shape::of_three()).await;
        nodes.opened(1).await;
        nodes.opened(2).await;
        // Only nodes 0 and 1 have what was acknowledged.
        let mut hash = say(&nodes, 0, 1, [0; 16]).await.expect("appended");
        nodes.isolate(2);
        for at in 2..=9 {
            hash = say(&nodes, 0, at, hash).await.expect("appended");
        }
        let loglet = nodes.opened(0).await.chain().active().id;
        nodes.kill(0);
        nodes.kill(1);
        nodes.nodes[1].disk = telesto_log::disk::SimDisk::new();
        nodes.start(1).await;
        nodes.net.heal();
        nodes.world.sleep(Duration::from_secs(5)).await;
        let log = nodes.opened(2).await;
        assert_eq!(log.chain().active().id, loglet, "nobody went on without what is on node 0");
        assert!(tail(&nodes, 2).await.is_err());
        nodes.start(0).await;
        nodes.world.sleep(Duration::from_secs(5)).await;
        assert_eq!(tail(&nodes, 2).await.expect("read"), Lsn(10), "nothing was lost");
        let _ = hash;
    });
}

#[test]
fn appends_of_many_are_under_way_at_a_time_and_committed_in_order() {
    World::run(9, false, async |world| {
        let nodes = Nodes::new(world, Shape::of_three()).await;
        let log = nodes.opened(0).await;
        let env = nodes.nodes[0].process.env.clone();
        let mut hash = [0; 16];
        let started = nodes.world.now();
        let mut appends = Vec::new();
        for at in 1..=40_u64 {
            // What an entry's hash will be is known only from itself: each is ordered before the
            // next is made.
            let mut append = {
                let (log, by) = (log.clone(), env.deadline(PATIENCE));
                Box::pin(async move { log.append(Lsn(at), hash, saying("x"), by).await })
            };
            match futures::poll!(append.as_mut()) {
                std::task::Poll::Pending => {}
                std::task::Poll::Ready(done) => panic!("at once: {done:?}"),
            }
            let ordered = log.ordered().expect("it owns the log");
            assert_eq!(ordered.0, Lsn(at + 1));
            hash = ordered.1;
            appends.push(append);
        }
        for append in appends {
            assert!(matches!(append.await, Ok(Append::Committed(_))));
        }
        let took = nodes.world.now() - started;
        assert!(took < Duration::from_millis(50), "{took:?}: not one after the other");
    });
}

#[test]
fn owner_whose_own_disk_hangs_commits_at_the_two_others() {
    World::run(10, false, async |world| {
        let nodes = Nodes::new(world, Shape::of_three()).await;
        let hash = say(&nodes, 0, 1, [0; 16]).await.expect("appended");
        nodes.nodes[0].disk.hang();
        let hash = say(&nodes, 0, 2, hash).await.expect("appended");
        nodes.nodes[0].disk.resume();
        say(&nodes, 0, 3, hash).await.expect("appended");
        nodes.world.sleep(Duration::from_secs(3)).await;
        let redundancy = nodes.opened(0).await.redundancy().expect("it owns the log");
        assert!(redundancy.servers.iter().all(|(_, s)| s.lag == 0), "{redundancy:?}");
    });
}

/// What two disks wrote after nobody waited for it any more is what the owner goes on from when
/// they answer again.
#[test]
fn disks_that_stand_still_for_longer_than_the_owner_waits_stop_commits_no_longer() {
    World::run(10, false, async |world| {
        let nodes = Nodes::new(world.clone(), Shape::of_three()).await;
        let hash = say(&nodes, 0, 1, [0; 16]).await.expect("appended");
        for disk in &nodes.nodes[1..] {
            disk.disk.hang();
        }
        let waking = async {
            world.sleep(Duration::from_secs(3)).await;
            for disk in &nodes.nodes[1..] {
                disk.disk.resume();
            }
            world.now()
        };
        let saying = async {
            let hash = say(&nodes, 0, 2, hash).await.expect("appended");
            (hash, world.now())
        };
        let (woken, (hash, said)) = futures::join!(waking, saying);
        assert!(said - woken < Duration::from_secs(1), "{:?}", said - woken);
        say(&nodes, 0, 3, hash).await.expect("appended");
    });
}

#[test]
fn log_of_a_cluster_goes_to_the_bucket_and_comes_back_on_another_node() {
    World::run(11, false, async |world| {
        let nodes = Nodes::new(world, Shape::of_three()).await;
        let mut hash = [0; 16];
        for at in 1..=5 {
            hash = say(&nodes, 0, at, hash).await.expect("appended");
        }
        let (first, second) = (nodes.opened(0).await, nodes.opened(1).await);
        let by = |index: usize| nodes.nodes[index].process.env.deadline(PATIENCE * 2);
        first.switch(LogKind::Bucket, by(0)).await.expect("switched");
        assert_eq!(tail(&nodes, 1).await.expect("read"), Lsn(6));
        say(&nodes, 1, 6, hash).await.expect("everybody may append");
        second.switch(LogKind::Quorum, by(1)).await.expect("switched");
        assert!(second.sequences());
        // The seal is entry 7.
        assert_eq!(tail(&nodes, 0).await.expect("read"), Lsn(8));
        assert!(!first.sequences());
        let hash = second.hash_before(Lsn(8), by(1)).await.expect("known");
        say(&nodes, 1, 8, hash).await.expect("appended");
        assert_eq!(tail(&nodes, 2).await.expect("read"), Lsn(9));
        for node in &nodes.nodes {
            let old = node.disk.paths().into_iter().filter(|path| path.starts_with("1/0000"));
            let numbers: std::collections::BTreeSet<String> =
                old.map(|path| path[2..22].to_owned()).collect();
            assert!(numbers.len() <= 1, "what is in the bucket is on no disk: {numbers:?}");
        }
    });
}

#[test]
fn log_that_begins_on_one_node_gets_three_servers_when_there_are_three_and_keeps_them() {
    World::run(12, false, async |world| {
        let mut nodes = Nodes::new(world, Shape { nodes: 1, ..Shape::of_three() }).await;
        let mut hash = [0; 16];
        let servers = |nodes: &Nodes| {
            let redundancy =
                nodes.log(0).and_then(|log| log.redundancy()).expect("it owns the log");
            (redundancy.servers.len(), redundancy.following(), redundancy.is_lost())
        };
        for at in 1..=5 {
            hash = say(&nodes, 0, at, hash).await.expect("appended");
        }
        assert_eq!(servers(&nodes), (1, 1, false));
        nodes.join().await;
        nodes.world.sleep(Duration::from_secs(3)).await;
        // Two would be no safer than one: either's loss would stop the log.
        assert_eq!(servers(&nodes), (1, 1, false));
        nodes.join().await;
        nodes.world.sleep(Duration::from_secs(3)).await;
        assert_eq!(servers(&nodes), (3, 3, false));
        hash = say(&nodes, 0, 6, hash).await.expect("appended");
        // Copies that are lost are told, not forgotten.
        nodes.kill(2);
        nodes.world.sleep(Duration::from_secs(10)).await;
        assert_eq!(servers(&nodes), (3, 2, true));
        say(&nodes, 0, 7, hash).await.expect("appended");
        nodes.kill(0);
        nodes.start(2).await;
        // Either of the two that are left takes over, and the other one follows.
        nodes.world.sleep(Duration::from_secs(3)).await;
        for index in [1, 2] {
            assert_eq!(tail(&nodes, index).await.expect("read"), Lsn(8), "node {index}");
        }
    });
}

#[test]
fn server_counts_as_following_only_once_it_has_the_loglet() {
    World::run(19, false, async |world| {
        let nodes = Nodes::new(world, Shape::of_three()).await;
        say(&nodes, 0, 1, [0; 16]).await.expect("appended");
        nodes.opened(1).await;
        nodes.opened(2).await;
        // It says who it is, and cannot make a file.
        nodes.nodes[2].disk.hang();
        let log = nodes.opened(1).await;
        let by = nodes.nodes[1].process.env.deadline(Duration::from_secs(10));
        assert!(log.succeed(log.chain().active().id, by).await.expect("two are enough"));
        for _ in 0..100 {
            let redundancy = log.redundancy().expect("it owns the log");
            assert!(redundancy.following() <= 2, "{redundancy:?}");
            nodes.world.sleep(Duration::from_millis(5)).await;
        }
        assert_eq!(log.redundancy().expect("it owns the log").following(), 2);
        nodes.nodes[2].disk.resume();
        for _ in 0..1000 {
            if log.redundancy().is_some_and(|found| found.following() == 3) {
                return;
            }
            nodes.world.sleep(Duration::from_millis(10)).await;
        }
        panic!("the third does not follow: {:?}", log.redundancy());
    });
}

/// The last entry of an owner that is cut off is on its disk alone. It ends its loglet itself,
/// after that entry, and loses the disk.
#[test]
fn last_entry_of_an_owner_that_was_cut_off_outlives_its_disk_once_it_is_in_the_log() {
    World::run(20, false, async |world| {
        let shape = Shape { archive_interval: Duration::from_secs(600), ..Shape::of_three() };
        let mut nodes = Nodes::new(world, shape).await;
        let hash = say(&nodes, 0, 1, [0; 16]).await.expect("appended");
        nodes.opened(1).await;
        nodes.opened(2).await;
        // A loglet that the third server was not met for.
        nodes.isolate(2);
        let log = nodes.opened(1).await;
        let by = nodes.nodes[1].process.env.deadline(Duration::from_secs(10));
        assert!(log.succeed(log.chain().active().id, by).await.expect("two are enough"));
        let hash = say(&nodes, 1, 2, hash).await.expect("appended");
        nodes.isolate(1);
        nodes.kill(0);
        let error = say(&nodes, 1, 3, hash).await.expect_err("nobody else has it");
        assert!(matches!(error, Error::Indeterminate { .. }), "{error}");
        nodes.net.heal();
        let mut end = Lsn::FIRST;
        for _ in 0..1000 {
            // An append that finds the loglet ended has it recovered.
            let by = nodes.nodes[1].process.env.deadline(PATIENCE);
            let again = log.append(Lsn(3), hash, saying("again"), by).await;
            assert!(!matches!(again, Ok(Append::Committed(_))), "the entry before it was first");
            match tail(&nodes, 1).await {
                Ok(found) => {
                    end = found;
                    break;
                }
                Err(error) => talk(&nodes.world.env, || error.to_string()),
            }
            nodes.world.sleep(Duration::from_millis(10)).await;
        }
        assert_eq!(end, Lsn(4), "it is in the log now");
        nodes.start(0).await;
        nodes.kill(1);
        nodes.nodes[1].disk = SimDisk::new();
        nodes.start(1).await;
        for _ in 0..100 {
            match tail(&nodes, 0).await {
                Ok(found) => return assert_eq!(found, Lsn(4)),
                Err(error) => assert!(!matches!(error, Error::Corrupt { .. }), "{error}"),
            }
            nodes.world.sleep(Duration::from_millis(100)).await;
        }
        panic!("no node reads the log");
    });
}

#[test]
fn every_node_tells_who_owned_the_log_and_why_that_changed() {
    World::run(23, false, async |world| {
        let nodes = Nodes::new(world, Shape::of_three()).await;
        say(&nodes, 0, 1, [0; 16]).await.expect("appended");
        let first = nodes.opened(0).await;
        let log = nodes.opened(1).await;
        let other = nodes.opened(2).await;
        let by = || nodes.nodes[1].process.env.deadline(Duration::from_secs(30));
        assert!(log.succeed(log.chain().active().id, by()).await.expect("two are enough"));
        log.explain("node 0 was not heard", Some(Duration::from_millis(7)));
        nodes.world.sleep(Duration::from_secs(1)).await;
        let changes = other.changes(by()).await.expect("read");
        let [.., before, last] = changes.as_slice() else { panic!("{changes:?}") };
        assert_eq!(last.reason.as_deref(), Some("node 0 was not heard"), "{changes:?}");
        assert_eq!((last.took_millis, last.loglet), (Some(7), log.chain().active().id));
        let owner = |change: &telesto_log::Change| change.owner.as_ref().map(|(node, ..)| *node);
        assert!(owner(last).is_some() && owner(last) != owner(before), "{changes:?}");
        assert!(changes.is_sorted_by_key(|own| (own.version, own.start)));
        // The first reason stays, and asking again costs the reasons alone.
        log.explain("another", None);
        nodes.world.sleep(Duration::from_secs(1)).await;
        assert_eq!(first.changes(by()).await.expect("read"), changes);
    });
}

/// The owner is cut off while its last append is under way and it gives the log to the bucket;
/// another node goes on without that entry.
#[test]
fn switch_to_the_bucket_that_a_successor_overtakes_shows_nothing_that_is_not_in_the_log() {
    for seed in 0..24 {
        World::run(seed, false, async move |world| {
            let nodes = Nodes::new(world, Shape::of_three()).await;
            let hash = say(&nodes, 0, 1, [0; 16]).await.expect("appended");
            say(&nodes, 0, 2, hash).await.expect("appended");
            for index in 0..3 {
                nodes.opened(index).await;
                nodes.client(index, "a", Duration::from_millis(4));
            }
            nodes.world.sleep(Duration::from_millis(200)).await;
            nodes.isolate(0);
            nodes.world.sleep(Duration::from_millis(300 + 40 * seed)).await;
            let log = nodes.opened(0).await;
            let by = nodes.nodes[0].process.env.deadline(PATIENCE * 2);
            let overtaking = async {
                while ![1, 2].iter().any(|at| nodes.log(*at).is_some_and(|log| log.sequences())) {
                    nodes.world.sleep(Duration::from_millis(5)).await;
                }
                nodes.world.sleep(Duration::from_millis(20 + 10 * (seed % 7))).await;
                nodes.net.heal();
            };
            // It may be too late, or in time: that is not what counts.
            let _ = futures::join!(log.switch(LogKind::Bucket, by), overtaking);
            nodes.world.sleep(Duration::from_secs(3)).await;
            let history = nodes.history.lock();
            assert!(history.found.is_empty(), "seed {seed}: {:?}", history.found);
            let told = history.acknowledged.len();
            assert!(told > 5, "seed {seed}: nobody went on: {told}");
        });
    }
}

/// The owner wins a version of the chain and hears of it late, when it has read in the next one
/// that another node has succeeded it. It does not take that node's loglet for the one it has won.
#[test]
fn late_winner_of_a_version_does_not_sequence_its_successors_loglet() {
    for seed in 0..12 {
        World::run(seed, false, async move |world| {
            let request_timeout = Duration::from_secs(3);
            let shape = Shape { request_timeout, ..Shape::of_three() };
            let nodes = Nodes::new(world, shape).await;
            let hash = say(&nodes, 0, 1, [0; 16]).await.expect("appended");
            let hash = say(&nodes, 0, 2, hash).await.expect("appended");
            let log = nodes.opened(0).await;
            let by = nodes.nodes[0].process.env.deadline(PATIENCE);
            // The next loglet of its own is in the chain; the reply never comes, and a look at the
            // object, when the request has timed out, says that it was won.
            let version = log.chain().version;
            nodes.faults.add(FaultRule::next(Class::Put, "/chain/", Fault::HangAfter));
            log.resign(by).await.expect("resigned");
            log.take_back();
            for (index, clients) in [(0, 8), (1, 1), (2, 1)] {
                nodes.opened(index).await;
                for name in &["a", "b", "c", "d", "e", "f", "g", "h"][..clients] {
                    nodes.client(index, name, Duration::from_millis(40));
                }
            }
            let appending = say(&nodes, 0, 3, hash);
            let succeeding = async {
                let other = nodes.opened(1).await;
                while other.chain().version == version {
                    let by = nodes.nodes[1].process.env.deadline(PATIENCE);
                    other.refresh(by).await.expect("the bucket answers");
                }
                nodes.isolate(0);
                while other.chain().version < version + 2 {
                    nodes.world.sleep(Duration::from_millis(5)).await;
                }
                nodes.world.sleep(Duration::from_millis(200 * seed)).await;
                nodes.net.heal();
            };
            // Whether its entry is in the log is not what counts.
            let _ = futures::join!(appending, succeeding);
            nodes.world.sleep(Duration::from_secs(12)).await;
            let owners = (0..3).filter(|at| nodes.log(*at).is_some_and(|log| log.sequences()));
            assert_eq!(owners.count(), 1, "seed {seed}");
            let history = nodes.history.lock();
            assert!(history.found.is_empty(), "seed {seed}: {:?}", history.found);
            let told = history.acknowledged.len();
            assert!(told > 5, "seed {seed}: nobody went on: {told}");
        });
    }
}

/// The bucket fails when the owner has stopped for it. The log goes on although nobody appends: the
/// others wait for that.
#[test]
fn switch_to_the_bucket_that_fails_leaves_a_log_that_every_node_reads() {
    World::run(21, false, async |world| {
        let shape = Shape { archive_interval: Duration::from_secs(600), ..Shape::of_three() };
        let nodes = Nodes::new(world, shape).await;
        let mut hash = say(&nodes, 0, 1, [0; 16]).await.expect("appended");
        nodes.opened(1).await;
        nodes.opened(2).await;
        let log = nodes.opened(0).await;
        let by = nodes.nodes[0].process.env.deadline(Duration::from_secs(4));
        // The first object is the one of most entries; what comes meanwhile is in the second.
        let rule = FaultRule {
            skip: 1,
            times: u32::MAX,
            ..FaultRule::next(Class::Put, "/archive/", Fault::ServerError)
        };
        nodes.faults.add(rule);
        let mut appended = 1;
        let appending = async {
            while log.is_local_sequencer() {
                match say(&nodes, 0, appended + 1, hash).await {
                    Ok(next) => (appended, hash) = (appended + 1, next),
                    Err(_) => break,
                }
            }
        };
        let (switched, ()) = futures::join!(log.switch(LogKind::Bucket, by), appending);
        switched.expect_err("the bucket fails");
        nodes.faults.forget();
        nodes.world.sleep(Duration::from_secs(3)).await;
        for index in 0..3 {
            assert_eq!(tail(&nodes, index).await.expect("read"), Lsn(appended + 1), "node {index}");
        }
    });
}

/// What is in the bucket is safe: nobody waits until a server that is frozen, or whose disk hangs,
/// has heard that.
#[test]
fn log_server_that_does_not_answer_holds_up_nothing_that_is_archived() {
    World::run(22, false, async |world| {
        let shape = Shape { archive_interval: Duration::from_secs(600), ..Shape::of_three() };
        let nodes = Nodes::new(world, shape).await;
        let mut hash = say(&nodes, 0, 1, [0; 16]).await.expect("appended");
        nodes.opened(1).await;
        nodes.opened(2).await;
        nodes.nodes[2].disk.hang();
        let log = nodes.opened(0).await;
        for at in 2..8 {
            hash = say(&nodes, 0, at, hash).await.expect("appended");
            let started = nodes.world.now();
            let by = nodes.nodes[0].process.env.deadline(PATIENCE);
            log.archive_through(Lsn(at), by).await.expect("archived");
            let took = nodes.world.now() - started;
            assert!(took < Duration::from_secs(1), "entry {at} took {took:?}");
        }
        nodes.nodes[2].disk.resume();
        nodes.world.sleep(Duration::from_secs(60)).await;
        // All have heard it in the end: a loglet that is archived is read from the bucket alone.
        for index in 0..3 {
            assert_eq!(tail(&nodes, index).await.expect("read"), Lsn(8), "node {index}");
        }
    });
}

/// A node that ends while the bucket is slow gives its log up: it does not begin another loglet
/// while the rest of this one is shipped.
#[test]
fn log_that_is_closed_slowly_begins_no_loglet() {
    World::run(23, false, async |world| {
        let shape = Shape { archive_interval: Duration::from_secs(600), ..Shape::of_three() };
        let nodes = Nodes::new(world, shape).await;
        say(&nodes, 0, 1, [0; 16]).await.expect("appended");
        let log = nodes.opened(0).await;
        let loglet = log.chain().active().id;
        let slow = Fault::Slow(Duration::from_secs(4));
        nodes.faults.add(FaultRule::next(Class::Put, "/archive/", slow));
        let by = nodes.nodes[0].process.env.deadline(PATIENCE * 2);
        log.close(by).await.expect("shipped");
        assert_eq!(log.chain().active().id, loglet);
    });
}
