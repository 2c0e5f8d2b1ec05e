//! The study's own checks, in small: what naive loses and others do not, breaks that are planted,
//! and the arithmetic of dollars.

use std::sync::Arc;
use std::time::Duration;

use telesto_bucket::{BucketOptions, Cause, Hedging, MemoryStore, PriceSheet, over};
use telesto_testkit::World;

use crate::client::Protocol;
use crate::measure::{Measured, Scene};
use crate::node::Node;
use crate::pages::Pages;
use crate::queue::QueueUsage;
use crate::setting::Setting;
use crate::tree::{self, Sizes};
use crate::workload::{Shop, Table, record};
use crate::{ours, theirs};

/// A few clients on a small shop, in the paper's world.
fn small() -> Scene {
    Scene {
        setting: Setting::paper().expect("known sheets"),
        shop: Shop {
            customers: 20,
            products: 60,
            orders: 50,
            customer_bytes: 100,
            product_bytes: 300,
            order_bytes: 100,
        },
        checkpoint_interval: Duration::from_secs(5),
        time_to_live: Duration::from_secs(20),
        cache_bytes: 40_000,
        page_bytes: 4_000,
        page_lock: Duration::from_secs(2),
        tree_lock: Duration::from_secs(4),
        found: 0.8,
        clients: 6,
        warm_up: 0,
        purchases: 25,
        kills: 0,
        kill_within: Duration::from_secs(15),
        seed: 7,
    }
}

fn theirs(scene: &Scene, protocol: Protocol) -> Measured {
    theirs::run(scene, protocol, true).expect("runs")
}

#[test]
fn naive_loses_writes_and_the_queues_of_the_others_lose_none() {
    let scene = small();
    let naive = theirs(&scene, Protocol::Naive);
    assert!(naive.verdict.orders_lost > 0, "{:?}", naive.verdict);
    assert!(naive.verdict.updates_lost > 0, "{:?}", naive.verdict);
    for protocol in [Protocol::Basic, Protocol::Monotonicity, Protocol::Atomicity] {
        let run = theirs(&scene, protocol);
        assert_eq!(run.verdict.purchases, 150);
        assert_eq!(run.broken(), Vec::<&str>::new(), "{}: {:?}", run.name, run.verdict);
    }
}

#[test]
fn basic_goes_back_and_monotonicity_does_not() {
    let scene = small();
    let basic = theirs(&scene, Protocol::Basic);
    assert!(basic.verdict.went_back > 0, "{:?}", basic.verdict);
    assert_eq!(theirs(&scene, Protocol::Monotonicity).verdict.went_back, 0);
}

#[test]
fn clients_that_die_leave_parts_of_purchases_unless_commits_are_atomic() {
    let scene = Scene { kills: 6, ..small() };
    let basic = theirs(&scene, Protocol::Basic);
    assert!(basic.verdict.partial > 0, "{:?}", basic.verdict);
    for protocol in [Protocol::Basic, Protocol::Monotonicity, Protocol::Atomicity] {
        let run = theirs(&scene, protocol);
        assert_eq!(run.broken(), Vec::<&str>::new(), "{}: {:?}", run.name, run.verdict);
    }
}

#[test]
fn checkpoints_without_their_token_lose_updates() {
    let run = theirs::run(&small(), Protocol::Basic, false).expect("runs");
    assert!(!run.broken().is_empty(), "{:?}", run.verdict);
}

#[test]
fn telesto_loses_nothing_at_any_level_though_its_node_is_killed() {
    let setting = Setting::today().expect("known sheets");
    let kill_within = Duration::from_secs(1);
    for (level, name) in ours::LEVELS {
        for kills in [0, 2] {
            let scene =
                Scene { setting: setting.clone(), kills, kill_within, purchases: 10, ..small() };
            let run = ours::run(&scene, level, name, Hedging::On).expect("runs");
            assert!(run.verdict.purchases > 0);
            assert_eq!(run.broken(), Vec::<&str>::new(), "{name}: {:?}", run.verdict);
        }
    }
}

#[test]
fn runs_of_one_seed_are_the_same() {
    let figures = || {
        let run = theirs(&small(), Protocol::Atomicity);
        (run.verdict, run.queued, run.took.max(), run.stored.requests)
    };
    assert_eq!(figures(), figures());
}

#[test]
fn dollars_are_counts_times_prices() {
    let setting = Setting::paper().expect("known sheets");
    let queued = QueueUsage { sends: 6_000, receives: 4_000, deletes: 6_000, bytes: 1 << 30 };
    let any = queued.dollars(&setting.queue_prices);
    assert!((any - (1.6 + 0.18)).abs() < 1e-9, "{any}");
    let stated = setting.queue_prices_as_stated.expect("the paper states one");
    assert!((queued.dollars(&stated) - (0.06 + 0.18)).abs() < 1e-9);
    let today = PriceSheet::builtin("s3-standard").expect("known");
    assert_eq!(Setting::today().expect("known").prices, today);
    // One client's requests at the basic level: six messages a purchase, no other queue request in
    // the transaction.
    let scene = Scene { clients: 1, ..small() };
    let run = theirs(&scene, Protocol::Basic);
    assert_eq!(run.queued[0].sends, 6 * run.purchases);
    assert_eq!(run.queued[0].receives + run.queued[0].deletes, 0);
    let expected = (run.queued[0].dollars(&setting.queue_prices) + run.stored.dollars[0]) * 1000.0
        / run.purchases as f64;
    assert!((run.dollars(&setting.queue_prices)[0] - expected).abs() < 1e-12);
    // At the level of atomicity: its records in one message, and the commit record.
    assert_eq!(theirs(&scene, Protocol::Atomicity).queued[0].sends, 2 * run.purchases);
}

#[test]
fn tree_holds_what_was_inserted_however_often_it_splits() {
    World::run(1, false, async |world| {
        let env = world.process("client", 0).env;
        let store = Arc::new(MemoryStore::new(Arc::clone(&env.clock)));
        let options = BucketOptions { environment: false, ..BucketOptions::default() };
        let bucket = over(store, "memory://tree", &options, env.clone()).expect("opens");
        let time_to_live = Duration::from_secs(100);
        let pages = Pages::new(bucket, env.clone(), time_to_live, u64::MAX, Duration::ZERO);
        let sizes = Sizes { leaf: 500, inner: 200 };
        let before = (1..=20).map(|n: u128| (n << 120, record(0, 0, 50)));
        tree::load(&pages, sizes, 0.9, Table::Orders, before).await.expect("loads");
        let mut keys: Vec<u128> = (1..=20).map(|n| n << 120).collect();
        for number in 1..400 {
            let key = env.random_u128();
            keys.push(key);
            let found = tree::find(&pages, Cause::Commit, Table::Orders, key, true);
            let found = found.await.expect("found");
            let mut node = Node::clone(&found.node);
            node.set(key, record(number, 0, 50));
            tree::write(&pages, Cause::Commit, sizes, found.path, found.page, node)
                .await
                .expect("writes");
        }
        keys.sort_unstable();
        let there = tree::scan(&pages, Table::Orders).await.expect("scans");
        assert_eq!(there.iter().map(|(key, _)| *key).collect::<Vec<_>>(), keys);
        for key in keys {
            let found = tree::find(&pages, Cause::Read, Table::Orders, key, false).await;
            assert!(found.expect("found").node.get(key).is_some());
        }
    });
}
