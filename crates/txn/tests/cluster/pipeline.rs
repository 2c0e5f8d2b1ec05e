//! Commits that are begun while others are under way.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::FutureExt as _;
use futures::future::{BoxFuture, Either, select};
use parking_lot::Mutex;
use telesto_common::planted::{Bug, Planted};
use telesto_net::sim::Weather;
use telesto_testkit::World;
use telesto_txn::{Database as _, Engine, Error, ReadFor, Transaction, TxnOptions};

use super::{Nodes, add, info};

const WAY: Duration = Duration::from_millis(2);
const SYNC: Duration = Duration::from_millis(2);

/// Three nodes whose messages and disks take their time; the first owns the log.
async fn slow(world: World, planted: Planted) -> Nodes {
    let nodes = Nodes::with(world, 3, planted).await;
    nodes.net.set_weather(Weather { delay: WAY, ..Weather::CALM });
    for disk in &nodes.disks {
        disk.takes(&nodes.world.env.clock, SYNC);
    }
    // What was under way at the start is over, and how long an append takes is known.
    for round in 0..20 {
        nodes.put(0, "warm", &round.to_string()).await.expect("committed");
    }
    nodes
}

fn key(of: &str) -> Bytes {
    Bytes::copy_from_slice(of.as_bytes())
}

/// A transaction that has read `of` and written `value` to it.
async fn written(engine: &Engine, of: &str, value: &str) -> Arc<dyn Transaction> {
    let txn = engine.begin(TxnOptions::default()).await.expect("begun");
    txn.get(of.as_bytes(), ReadFor::Query).await.expect("read");
    txn.put(key(of), Bytes::copy_from_slice(value.as_bytes())).await.expect("buffered");
    txn
}

/// Its commit, which goes on by itself.
fn committing(txn: Arc<dyn Transaction>) -> BoxFuture<'static, Result<(), Error>> {
    async move { txn.commit().await.map(|_| ()) }.boxed()
}

/// Times of the commits of `clients` at the owner, in order.
fn commit_times(clients: usize) -> Vec<Duration> {
    World::run(11, false, async move |world| {
        let nodes = slow(world.clone(), Planted::NONE).await;
        let times = Arc::new(Mutex::new(Vec::new()));
        let until = world.now() + Duration::from_millis(600);
        let one = |client: usize| {
            let (world, engine, times) = (world.clone(), nodes.engine(0), Arc::clone(&times));
            async move {
                let of = format!("row {client}");
                // They do not march in step.
                world.sleep(Duration::from_micros(370) * u32::try_from(client).expect("few")).await;
                while world.now() < until {
                    let txn = written(&engine, &of, "x").await;
                    let begun = world.now();
                    txn.commit().await.expect("nobody else writes the row");
                    times.lock().push(world.now() - begun);
                    world.sleep(Duration::from_micros(world.draw(3000))).await;
                }
            }
        };
        futures::future::join_all((0..clients).map(one)).await;
        let mut times = std::mem::take(&mut *times.lock());
        times.sort_unstable();
        times
    })
}

/// The time is the simulation's: it does not depend on the machine.
#[test]
fn commit_at_quorum_takes_one_round_trip_and_one_sync_however_many_clients_there_are() {
    let least = WAY * 2 + SYNC;
    let medians = [1, 2, 8, 32].map(|clients| {
        let times = commit_times(clients);
        let (half, most) = (times[times.len() / 2], times[times.len() * 99 / 100]);
        println!("{clients} clients: {half:?} (median), {most:?} (p99) of {least:?}");
        (clients, half)
    });
    for (clients, half) in medians {
        assert!(half >= least, "nothing is faster than a round trip and a sync");
        assert!(half * 2 <= least * 3, "{clients} clients: {half:?} for {least:?}");
    }
}

/// The first entry has arrived when the owner's messages no longer do; the second one is at the
/// owner alone.
fn second_is_acknowledged(planted: Planted) -> bool {
    World::run(12, false, async move |world| {
        let mut nodes = slow(world.clone(), planted).await;
        let (first, second) =
            (written(&nodes.engine(0), "a", "1").await, written(&nodes.engine(0), "b", "2").await);
        let mut first = committing(first);
        assert!((&mut first).now_or_never().is_none());
        world.sleep(WAY + Duration::from_millis(1)).await;
        let [owner, one, two] = [0, 1, 2].map(|index| info(index).address);
        nodes.net.cut(&owner, &one);
        nodes.net.cut(&owner, &two);
        let mut second = committing(second);
        assert!((&mut second).now_or_never().is_none());
        first.await.expect("committed: the answers arrive");
        world.sleep(Duration::from_millis(1)).await;
        let acknowledged = (&mut second).now_or_never().is_some_and(|done| done.is_ok());
        nodes.kill(0);
        let by = world.env.deadline(Duration::from_secs(5));
        nodes.engine(1).log().refresh(by).await.expect("the chain");
        let loglet = nodes.engine(1).log().chain().active().id;
        assert!(nodes.engine(1).log().succeed(loglet, by).await.expect("it succeeds"));
        assert_eq!(nodes.get(1, "a").await, "1", "it was acknowledged");
        assert_eq!(nodes.get(1, "b").await, "", "the owner alone had it");
        acknowledged
    })
}

#[test]
fn entry_behind_one_that_is_committed_is_not_acknowledged_before_it_has_a_majority_itself() {
    assert!(!second_is_acknowledged(Planted::NONE));
    assert!(second_is_acknowledged(Planted::only(Bug::AnswersAhead)), "the plant is not found");
}

/// Two transactions read one row and write it, the second while the first is under way; whether
/// both commit.
fn both_commit(planted: Planted) -> bool {
    World::run(13, false, async move |world| {
        let nodes = slow(world.clone(), planted).await;
        let (first, second) =
            (written(&nodes.engine(0), "k", "1").await, written(&nodes.engine(0), "k", "2").await);
        let mut first = committing(first);
        assert!((&mut first).now_or_never().is_none());
        world.sleep(Duration::from_millis(2)).await;
        let mut second = committing(second);
        assert!((&mut second).now_or_never().is_none(), "the first one may still fail");
        first.await.expect("committed");
        match second.await {
            Ok(()) => true,
            Err(Error::Conflict { .. }) => {
                assert_eq!(nodes.get(0, "k").await, "1");
                false
            }
            Err(error) => panic!("{error}"),
        }
    })
}

#[test]
fn transaction_is_validated_against_those_under_way() {
    assert!(!both_commit(Planted::NONE));
    assert!(both_commit(Planted::only(Bug::ForgetsUnderWay)), "the plant is not found");
}

#[test]
fn additions_go_on_top_of_those_under_way() {
    World::run(14, false, async |world| {
        let nodes = slow(world.clone(), Planted::NONE).await;
        nodes.put(0, "k", "-").await.expect("committed");
        let (engine, ways) = (nodes.engine(0), ["a", "b", "c", "d"]);
        let later = |index: usize| {
            let (world, engine) = (world.clone(), Arc::clone(&engine));
            async move {
                world.sleep(Duration::from_millis(2) * u32::try_from(index).expect("few")).await;
                add(&engine, "k", ways[index]).await
            }
        };
        let begun = world.now();
        for done in futures::future::join_all((0..4).map(later)).await {
            done.expect("no conflict");
        }
        assert!(world.now() - begun < (WAY * 2 + SYNC) * 3, "they waited for one another");
        assert_eq!(nodes.get(1, "k").await, "-abcd");
    });
}

/// Two entries are under way at an owner that is cut off. Another node takes the log over, writes
/// what the second one has read into the first one's place, and gives the log back. Whether the
/// second one is appended all the same.
fn second_is_appended_unawares(planted: Planted) -> bool {
    World::run(15, false, async move |world| {
        let nodes = slow(world.clone(), planted).await;
        let (first, second) =
            (written(&nodes.engine(0), "a", "1").await, written(&nodes.engine(0), "k", "2").await);
        let [owner, one, two] = [0, 1, 2].map(|index| info(index).address);
        for other in [&one, &two] {
            nodes.net.cut(&owner, other);
            nodes.net.cut(other, &owner);
        }
        let (mut first, mut second) = (committing(first), committing(second));
        assert!((&mut first).now_or_never().is_none());
        world.sleep(Duration::from_millis(2)).await;
        assert!((&mut second).now_or_never().is_none());
        world.sleep(Duration::from_millis(2)).await;
        let by = world.env.deadline(Duration::from_secs(5));
        let loglet = nodes.engine(1).log().chain().active().id;
        assert!(nodes.engine(1).log().succeed(loglet, by).await.expect("it succeeds"));
        nodes.put(1, "k", "theirs").await.expect("committed");
        let loglet = nodes.engine(1).log().resign(by).await.expect("resigned").expect("its own");
        nodes.net.heal();
        assert!(nodes.engine(0).log().succeed(loglet, by).await.expect("it succeeds"));
        let first = first.await;
        let Err(Error::Conflict { .. }) = second.await else { return true };
        first.expect("nobody else has written what it wrote");
        assert_eq!(nodes.get(2, "a").await, "1");
        assert_eq!(nodes.get(2, "k").await, "theirs");
        false
    })
}

#[test]
fn what_was_under_way_behind_a_lost_place_is_validated_anew() {
    assert!(!second_is_appended_unawares(Planted::NONE));
    let planted = Planted::only(Bug::GoesOnBehindLost);
    assert!(second_is_appended_unawares(planted), "the plant is not found");
}

/// An entry is at a majority, and the owner does not hear of it. Whether somebody who reads at
/// another node sees it, and then somebody at the owner does not: the log servers have promised the
/// owner to accept no seal.
fn is_shown_and_then_missed(planted: Planted) -> bool {
    World::run(16, false, async move |world| {
        let nodes = slow(world.clone(), planted).await;
        let mut commit = committing(written(&nodes.engine(0), "k", "1").await);
        assert!((&mut commit).now_or_never().is_none());
        world.sleep(WAY + Duration::from_millis(1)).await;
        let [owner, one, two] = [0, 1, 2].map(|index| info(index).address);
        nodes.net.cut(&one, &owner);
        nodes.net.cut(&two, &owner);
        world.sleep(SYNC).await;
        let shown = {
            let (reading, later) = (nodes.get(1, "k"), world.sleep(Duration::from_millis(200)));
            futures::pin_mut!(reading, later);
            match select(reading, later).await {
                Either::Left((value, _)) => value,
                Either::Right(_) => Bytes::new(),
            }
        };
        let missed = nodes.get(0, "k").await.is_empty();
        nodes.net.heal();
        commit.await.expect("committed: it was there all the time");
        assert_eq!(nodes.get(1, "k").await, "1");
        assert_eq!(nodes.get(0, "k").await, "1");
        shown == "1" && missed
    })
}

#[test]
fn what_a_follower_has_shown_the_owner_shows_too() {
    assert!(!is_shown_and_then_missed(Planted::NONE));
    assert!(is_shown_and_then_missed(Planted::only(Bug::ShowsUnheard)), "the plant is not found");
}
