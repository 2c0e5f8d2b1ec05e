//! Several processes write to one bucket with no server between them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use telesto_common::{Timestamp, TxnId};
use telesto_log::record::Write;
use telesto_txn::service::{CheckedWrite, CommitReply, CommitRequest, CommitWrites};
use telesto_txn::{Database as _, Error, Level, Reads, TxnOptions};

use crate::harness::{Process, World, bytes, get, put};

/// One committed transaction: what it read and appended, and when.
#[derive(Clone, Debug)]
struct Done {
    unique: u64,
    reads: Vec<(String, Vec<u64>)>,
    appends: Vec<String>,
    at: Timestamp,
    /// Virtual time before its begin and after its acknowledgement.
    from: Duration,
    to: Duration,
}

fn list(text: Option<String>) -> Vec<u64> {
    text.unwrap_or_default().split_whitespace().map(|n| n.parse().expect("a number")).collect()
}

async fn append_lists(
    process: Arc<Process>,
    seed: u64,
    rounds: u64,
    history: Arc<Mutex<Vec<Done>>>,
) {
    let random = Arc::clone(&process.env.random);
    for round in 0..rounds {
        let unique = seed * 1_000_000 + round;
        let from = process.env.clock.monotonic();
        let txn = process.begin(Level::Serializable).await;
        let mut reads = Vec::new();
        let mut appends = Vec::new();
        for _ in 0..1 + random.next_u64() % 3 {
            let key = format!("list{}", random.next_u64() % 5);
            if reads.iter().any(|(seen, _)| *seen == key) {
                continue;
            }
            let values = list(get(&txn, &key).await);
            if !random.next_u64().is_multiple_of(3) {
                let mut longer = values.clone();
                longer.push(unique);
                let text: Vec<String> = longer.iter().map(u64::to_string).collect();
                put(&txn, &key, &text.join(" ")).await;
                appends.push(key.clone());
            }
            reads.push((key, values));
        }
        match txn.commit().await {
            Ok(committed) => {
                let to = process.env.clock.monotonic();
                let at = committed.timestamp;
                history.lock().push(Done { unique, reads, appends, at, from, to });
            }
            Err(Error::Conflict { .. }) => {}
            Err(other) => panic!("unexpected: {other}"),
        }
        if random.next_u64().is_multiple_of(4) {
            process.env.clock.sleep(process.env.jitter(Duration::from_millis(50))).await;
        }
    }
}

/// The histories of lists that are only appended to give away their order: a cycle in "read after
/// write", "write after read", "write after write" and real time is a violation.
fn check(history: &[Done], finals: &BTreeMap<String, Vec<u64>>) {
    let by_unique: BTreeMap<u64, usize> =
        history.iter().enumerate().map(|(index, done)| (done.unique, index)).collect();
    let mut after: Vec<BTreeSet<usize>> = vec![BTreeSet::new(); history.len()];
    let mut edge = |from: usize, to: usize| {
        if from != to {
            after[from].insert(to);
        }
    };
    for (key, order) in finals {
        let appended: BTreeSet<u64> = history
            .iter()
            .filter(|done| done.appends.contains(key))
            .map(|done| done.unique)
            .collect();
        assert_eq!(appended, order.iter().copied().collect(), "{key}: nothing lost, nothing more");
        assert_eq!(order.len(), appended.len(), "{key}: nothing twice");
        for pair in order.windows(2) {
            edge(by_unique[&pair[0]], by_unique[&pair[1]]);
        }
        for (index, done) in history.iter().enumerate() {
            let Some((_, seen)) = done.reads.iter().find(|(read, _)| read == key) else { continue };
            assert_eq!(seen[..], order[..seen.len()], "{key}: a read is a prefix of the list");
            if let Some(last) = seen.last() {
                edge(by_unique[last], index);
            }
            if let Some(next) = order.get(seen.len()) {
                edge(index, by_unique[next]);
            }
        }
    }
    for (a, first) in history.iter().enumerate() {
        for (b, second) in history.iter().enumerate() {
            if first.to < second.from {
                edge(a, b);
                assert!(
                    first.at < second.at || second.appends.is_empty(),
                    "timestamps follow real time"
                );
            }
        }
    }
    // Kahn's algorithm: what cannot be ordered is on a cycle.
    let mut waiting = vec![0_usize; history.len()];
    for targets in &after {
        for target in targets {
            waiting[*target] += 1;
        }
    }
    let mut ready: Vec<usize> = (0..history.len()).filter(|index| waiting[*index] == 0).collect();
    let mut ordered = 0;
    while let Some(index) = ready.pop() {
        ordered += 1;
        for target in &after[index] {
            waiting[*target] -= 1;
            if waiting[*target] == 0 {
                ready.push(*target);
            }
        }
    }
    let stuck: Vec<&Done> =
        history.iter().enumerate().filter(|(i, _)| waiting[*i] > 0).map(|(_, d)| d).collect();
    assert_eq!(ordered, history.len(), "a cycle among {stuck:#?}");
}

async fn finals(process: &Process) -> BTreeMap<String, Vec<u64>> {
    let mut lists = BTreeMap::new();
    for key in (0..5).map(|n| format!("list{n}")) {
        let values = list(process.read(&key).await);
        lists.insert(key, values);
    }
    lists
}

#[tokio::test(start_paused = true)]
async fn four_processes_appending_to_lists_are_strictly_serializable() {
    for seed in 0..4 {
        let world = World::new(1000 + seed);
        let mut processes = Vec::new();
        for _ in 0..4 {
            processes.push(Arc::new(world.start_slow("s3-standard").await));
        }
        let history = Arc::new(Mutex::new(Vec::new()));
        let work = processes.iter().enumerate().flat_map(|(index, process)| {
            (0..3).map(move |task| (index as u64 * 10 + task + 1, Arc::clone(process)))
        });
        let work: Vec<_> = work
            .map(|(seed, process)| append_lists(process, seed, 25, Arc::clone(&history)))
            .collect();
        futures::future::join_all(work).await;
        let finals = finals(&processes[0]).await;
        let history = history.lock().clone();
        assert!(history.len() > 60, "only {} transactions committed", history.len());
        check(&history, &finals);
        for (index, process) in processes.iter().enumerate() {
            let own = |done: &&Done| done.unique / 10_000_000 == index as u64;
            let committed = history.iter().filter(own).count();
            assert!(committed > 5, "process {index} committed only {committed}");
            process.engine.shutdown().await.expect("stops");
        }
    }
}

#[test]
#[should_panic(expected = "a cycle among")]
fn checker_finds_a_planted_write_skew() {
    let done = |unique, reads: &[(&str, &[u64])], appends: &[&str]| Done {
        unique,
        reads: reads.iter().map(|(key, seen)| ((*key).to_owned(), seen.to_vec())).collect(),
        appends: appends.iter().map(|key| (*key).to_owned()).collect(),
        at: Timestamp(unique),
        from: Duration::ZERO,
        to: Duration::from_secs(1),
    };
    let history =
        [done(1, &[("a", &[]), ("b", &[])], &["a"]), done(2, &[("a", &[]), ("b", &[])], &["b"])];
    let finals = BTreeMap::from([("a".to_owned(), vec![1]), ("b".to_owned(), vec![2])]);
    check(&history, &finals);
}

#[tokio::test(start_paused = true)]
async fn two_processes_that_create_at_once_share_one_database() {
    let world = World::new(31);
    let (first, second) =
        futures::join!(world.start_slow("s3-standard"), world.start_slow("s3-standard"));
    first.put("a", "1").await;
    second.put("b", "2").await;
    assert_eq!(second.read("a").await.as_deref(), Some("1"));
    assert_eq!(first.read("b").await.as_deref(), Some("2"));
}

#[tokio::test(start_paused = true)]
async fn process_under_contention_is_not_starved() {
    let world = World::new(32);
    let busy = world.start_slow("s3-standard").await;
    let modest = world.start_slow("s3-standard").await;
    let until = busy.env.clock.monotonic() + Duration::from_secs(60);
    let hammering = (0..16).map(|task| {
        let busy = &busy;
        async move {
            let mut commits = 0;
            while busy.env.clock.monotonic() < until {
                busy.put(&format!("busy{task}"), "x").await;
                commits += 1;
            }
            commits
        }
    });
    let asking = async {
        let mut longest = Duration::ZERO;
        let mut commits = 0;
        while modest.env.clock.monotonic() < until {
            let from = modest.env.clock.monotonic();
            modest.put("modest", "x").await;
            longest = longest.max(modest.env.clock.monotonic() - from);
            commits += 1;
        }
        (commits, longest)
    };
    let (busy_commits, (commits, longest)) =
        futures::join!(futures::future::join_all(hammering), asking);
    let busy_commits: u64 = busy_commits.into_iter().sum();
    assert!(commits > 100, "{commits} commits beside {busy_commits} of the busy process");
    // A slow request or two, and some lost races; one that is starved waits for the others to end.
    assert!(longest < Duration::from_secs(15), "one commit took {longest:?}");
}

#[tokio::test(start_paused = true)]
async fn fold_of_a_dead_process_is_taken_over_and_readers_refresh() {
    let world = World::new(33);
    let creator = world.start().await;
    let other = world.start().await;
    creator.put("a", "1").await;
    creator.crash();
    for n in 0..20 {
        other.put(&format!("k{n}"), "v").await;
        tokio::time::sleep(Duration::from_secs(3)).await;
    }
    let checkpointed = other.engine.shard().checkpointed();
    assert!(checkpointed.0 > 5, "the fold was taken over: {checkpointed}");
    let reader = world.start().await;
    assert_eq!(reader.read("a").await.as_deref(), Some("1"));
    for n in 20..40 {
        other.put(&format!("k{n}"), "v").await;
        reader.read("k1").await;
        tokio::time::sleep(Duration::from_secs(3)).await;
    }
    assert!(reader.engine.shard().checkpointed() > checkpointed, "the reader followed");
    let options = TxnOptions { level: Level::Eventual, ..TxnOptions::default() };
    let txn = reader.engine.begin(options).await.expect("begins");
    assert_eq!(get(&txn, "k30").await.as_deref(), Some("v"));
}

/// Runs increments of one row until they commit, as the server does; the longest that one took.
async fn increment_row(process: Arc<Process>, count: u32) -> Duration {
    let mut longest = Duration::ZERO;
    for _ in 0..count {
        let from = process.env.clock.monotonic();
        for attempt in 0.. {
            let options = TxnOptions { attempt, ..TxnOptions::default() };
            let txn = process.engine.begin(options).await.expect("begins");
            txn.claim(&[bytes("row")]).await.expect("claims");
            let before: u64 = get(&txn, "row").await.map_or(0, |n| n.parse().expect("a number"));
            put(&txn, "row", &(before + 1).to_string()).await;
            match txn.commit().await {
                Ok(_) => break,
                Err(Error::Conflict { .. }) => {}
                Err(other) => panic!("unexpected: {other}"),
            }
        }
        longest = longest.max(process.env.clock.monotonic() - from);
    }
    longest
}

#[tokio::test(start_paused = true)]
async fn transaction_on_a_contended_row_is_not_starved_by_those_of_its_own_process() {
    let world = World::new(34);
    let mut work = Vec::new();
    for _ in 0..3 {
        let process = Arc::new(world.start_slow("s3-standard").await);
        work.extend((0..8).map(|_| increment_row(Arc::clone(&process), 15)));
    }
    let longest = futures::future::join_all(work).await.into_iter().max().expect("some");
    let reader = world.start().await;
    assert_eq!(reader.read("row").await.as_deref(), Some("360"));
    // 24 at a time, one after the other at some 100 ms each, are 2.4 s. Without a place in the
    // queue that is kept for who was in conflict, the slowest takes 6.7 s.
    assert!(longest < Duration::from_secs(5), "one transaction took {longest:?}");
}

/// Of rows that a process writes whatever is in them (a region's position, say) several writes may
/// be under way at once.
#[tokio::test(start_paused = true)]
async fn writes_that_are_valid_whatever_is_there_do_not_conflict_with_each_other() {
    let world = World::new(47);
    let process = world.start_slow("s3-standard").await;
    process.put("k", "0").await;
    let service = process.engine.service();
    let writes = (1..=8_u8).map(|n| {
        let value = n.to_string();
        let write = Write { key: bytes("k"), value: Some(bytes(&value)), fresh: false };
        let request = CommitRequest {
            shard: Default::default(),
            txn: TxnId(u128::from(n)),
            reads: Reads::default(),
            writes: CommitWrites::Inline(vec![CheckedWrite { write, since: Timestamp::MAX }]),
            messages: Vec::new(),
            after: Timestamp::ZERO,
            origin: None,
            durability: None,
            timeout: Duration::from_secs(30),
        };
        let service = Arc::clone(&service);
        async move {
            match service.commit(request).await.expect("is valid") {
                CommitReply::Committed { timestamp, lsn, .. } => (timestamp, lsn, value),
                other => panic!("{other:?}"),
            }
        }
    });
    let mut committed = futures::future::join_all(writes).await;
    committed.sort();
    assert!(
        committed.windows(2).any(|two| two[0].1 == two[1].1),
        "some are in one entry: {committed:?}"
    );
    let last = committed.pop().map(|(_, _, value)| value);
    assert_eq!(process.read("k").await, last, "the last one holds");
}
