use std::collections::BTreeMap;
use std::future::Future as _;

use proptest::prelude::*;

use super::*;

fn buffer(bound_bytes: u64, budget_bytes: u64) -> Arc<WriteBuffer> {
    let options = SpillOptions {
        env: telesto_runtime::env(),
        scratch: Scratch::encrypted(std::env::temp_dir(), &*telesto_runtime::env().random),
        bound_bytes,
        budget: MemoryBudget::new(budget_bytes),
    };
    Arc::new(WriteBuffer::new(Arc::new(options)))
}

fn key(n: u8) -> Bytes {
    Bytes::copy_from_slice(format!("key-{n:03}").as_bytes())
}

async fn everything(buffer: &Arc<WriteBuffer>, reverse: bool) -> Vec<(Bytes, Option<Bytes>)> {
    let mut scan = buffer.scan(KeyRange::default(), reverse, None);
    let mut rows = Vec::new();
    while let Some(merged) = scan.next().await.expect("scans") {
        rows.push((merged.key, merged.value));
    }
    rows
}

#[derive(Clone, Debug)]
enum Step {
    Put(u8, u16),
    PutAll(u8, u8, u16),
    Delete(u8),
    Savepoint,
    RollbackTo(usize),
    Scan { from: u8, to: u8, reverse: bool },
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        8 => (0_u8..40, any::<u16>()).prop_map(|(k, v)| Step::Put(k, v)),
        1 => (0_u8..30, 0_u8..12, any::<u16>()).prop_map(|(k, n, v)| Step::PutAll(k, n, v)),
        2 => (0_u8..40).prop_map(Step::Delete),
        2 => Just(Step::Savepoint),
        1 => any::<prop::sample::Index>().prop_map(|i| Step::RollbackTo(i.index(8))),
        1 => (0_u8..40, 0_u8..41, any::<bool>())
            .prop_map(|(from, to, reverse)| Step::Scan { from, to, reverse }),
    ]
}

type Model = BTreeMap<Bytes, Option<Bytes>>;

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    /// Any history of writes, savepoints, rollbacks and scans, at any spill bound, against a map
    /// that is copied at each savepoint.
    #[test]
    fn buffer_with_random_history_equals_a_copied_map(
        steps in proptest::collection::vec(step(), 1..150),
        bound in 200_u64..6000,
        // With the small one only the filters of the first runs fit into memory.
        budget in prop_oneof![Just(8_u64 << 10), Just(1_u64 << 20)],
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .expect("runtime");
        runtime.block_on(async {
            let buffer = buffer(bound, budget);
            let mut model = Model::new();
            let mut savepoints: Vec<(u64, Model)> = Vec::new();
            for step in steps {
                match step {
                    Step::Put(k, v) => {
                        let value = Bytes::from(v.to_be_bytes().to_vec());
                        buffer.put(key(k), Some(value.clone()), Timestamp(1), false).await
                            .expect("puts");
                        model.insert(key(k), Some(value));
                    }
                    Step::PutAll(from, count, v) => {
                        let value = Bytes::from(v.to_be_bytes().to_vec());
                        let put = |k| BufferedPut {
                            key: key(k),
                            value: Some(value.clone()),
                            since: Timestamp(1),
                            fresh: false,
                        };
                        let puts = (from..from + count).map(put).collect();
                        buffer.put_all(puts).await.expect("puts");
                        model.extend((from..from + count).map(|k| (key(k), Some(value.clone()))));
                    }
                    Step::Delete(k) => {
                        buffer.put(key(k), None, Timestamp(1), false).await.expect("deletes");
                        model.insert(key(k), None);
                    }
                    Step::Savepoint => savepoints.push((buffer.savepoint(), model.clone())),
                    Step::RollbackTo(index) => {
                        if let Some((savepoint, copy)) = savepoints.get(index).cloned() {
                            assert!(buffer.rollback_to(savepoint));
                            model = copy;
                            savepoints.truncate(index + 1);
                        }
                    }
                    Step::Scan { from, to, reverse } => {
                        let range = KeyRange::new(key(from), key(to));
                        let mut expected: Vec<_> = model
                            .iter()
                            .filter(|(k, _)| range.contains(k))
                            .map(|(k, v)| (k.clone(), v.clone()))
                            .collect();
                        if reverse {
                            expected.reverse();
                        }
                        let mut scan = buffer.scan(range, reverse, None);
                        let mut rows = Vec::new();
                        while let Some(merged) = scan.next().await.expect("scans") {
                            rows.push((merged.key, merged.value));
                        }
                        assert_eq!(rows, expected);
                    }
                }
                for k in (0..40).step_by(3) {
                    let range = KeyRange::new(key(k), key(k + 2));
                    let written = model.range(key(k)..key(k + 2)).next().is_some();
                    assert!(buffer.may_hold_any(&range) || !written, "{range:?}");
                }
                for k in 0..40 {
                    assert_eq!(buffer.get(&key(k), None).await.expect("reads"), model.get(&key(k)).cloned());
                }
            }
            let rows = everything(&buffer, false).await;
            assert_eq!(rows, model.into_iter().collect::<Vec<_>>());
        });
    }
}

/// The first two keys of a scan of one live key, behind one that is on disk and rolled back. When
/// the scan waits for the file for the second time what is in memory goes on its way to disk;
/// whether it came to that.
async fn scan_of_changing_layers(reverse: bool) -> ([Option<Bytes>; 2], bool) {
    let buffer = buffer(1 << 20, 1 << 20);
    let write = |k| buffer.put(key(k), Some(Bytes::from(vec![k])), Timestamp(1), false);
    let savepoint = buffer.savepoint();
    write(if reverse { 30 } else { 10 }).await.expect("puts");
    assert!(buffer.state.lock().freeze());
    buffer.spill().await.expect("spills");
    assert!(buffer.rollback_to(savepoint));
    write(17).await.expect("puts");
    let mut scan = buffer.scan(KeyRange::default(), reverse, None);
    let mut waits = 0;
    let first = {
        let mut next = Box::pin(scan.next());
        std::future::poll_fn(|context| {
            let polled = next.as_mut().poll(context);
            waits += usize::from(polled.is_pending());
            if polled.is_pending() && waits == 2 {
                assert!(buffer.state.lock().freeze());
            }
            polled
        })
        .await
    };
    let first = first.expect("scans").map(|merged| merged.key);
    let second = scan.next().await.expect("scans").map(|merged| merged.key);
    ([first, second], waits >= 2)
}

#[tokio::test]
async fn scan_whose_layers_change_behind_rolled_back_keys_gives_each_key_once() {
    for reverse in [false, true] {
        let mut changed = 0;
        // A file that is read before anybody waits for it shows nothing.
        for _ in 0..100 {
            let (keys, met) = scan_of_changing_layers(reverse).await;
            assert_eq!(keys, [Some(key(17)), None], "reverse: {reverse}");
            changed += usize::from(met);
        }
        assert!(changed > 0, "the layers never changed under the scan");
    }
}

#[tokio::test]
async fn scan_while_writing_and_spilling_sees_only_earlier_writes() {
    for reverse in [false, true] {
        let buffer = buffer(4000, 1 << 20);
        for k in 0..100 {
            buffer
                .put(key(k), Some(Bytes::from(vec![k])), Timestamp(1), false)
                .await
                .expect("puts");
        }
        let mut scan = buffer.scan(KeyRange::default(), reverse, None);
        let mut seen = Vec::new();
        while let Some(merged) = scan.next().await.expect("scans") {
            let k = merged.value.as_ref().expect("never deleted")[0];
            seen.push(k);
            // Each row seen is overwritten, and another one written where the scan has yet to come.
            buffer
                .put(merged.key, Some(Bytes::from(vec![200])), Timestamp(1), false)
                .await
                .expect("puts");
            buffer
                .put(
                    Bytes::from(format!("key-{k:03}-new")),
                    Some(Bytes::from(vec![201])),
                    Timestamp(1),
                    false,
                )
                .await
                .expect("puts");
        }
        let mut expected: Vec<u8> = (0..100).collect();
        if reverse {
            expected.reverse();
        }
        assert_eq!(seen, expected);
        assert!(buffer.spilled());
        assert_eq!(everything(&buffer, reverse).await.len(), 200);
    }
}

#[tokio::test]
async fn buffer_over_budget_spills_and_stays_within_it() {
    let buffer = buffer(u64::MAX, 200 << 10);
    let value = Bytes::from(vec![7; 1000]);
    for n in 0..2000_u32 {
        let key = Bytes::from(n.to_be_bytes().to_vec());
        buffer.put(key, Some(value.clone()), Timestamp(1), false).await.expect("puts");
        let held = {
            let state = buffer.state.lock();
            state.memory_bytes + state.frozen_bytes
        };
        assert!(held <= (200 << 10) + FREE_BYTES + 2000, "{held} bytes held");
    }
    assert!(buffer.spilled());
    assert_eq!(everything(&buffer, false).await.len(), 2000);
    buffer.clear();
    assert_eq!(buffer.options.budget.used_bytes(), 0, "everything is given back");
}

/// While runs are merged the next are written: those above the lowest level must not wait for a
/// moment in which they are the newest.
#[test]
fn runs_behind_newer_ones_are_merged_too() {
    let scratch = Scratch::plain(std::env::temp_dir());
    let newest = Buffered { seq: 1, since: Timestamp(1), fresh: false, value: None };
    let memory = Memory::from([(key(1), Chain { newest, older: Vec::new() })]);
    let run = || Arc::new(Run::write(&scratch, &memory).expect("writes"));
    let merged = || Arc::new(Run::merge(&scratch, &[run()]).expect("merges"));
    let mut layers: Vec<Layer> = (0..MERGE_RUNS).map(|_| Layer::Spilled(merged())).collect();
    layers.extend([Layer::Spilled(run()), Layer::Frozen(Arc::new(memory.clone()))]);
    let found = to_be_merged(&layers).expect("enough of a level");
    assert_eq!(found.iter().map(|run| run.level()).collect::<Vec<_>>(), [1; MERGE_RUNS]);
    layers.remove(0);
    assert!(to_be_merged(&layers).is_none());
}

/// Runs of rows in order lie beside each other: they are merged without a byte written again.
#[tokio::test]
async fn runs_in_order_are_joined_where_they_lie() {
    for backwards in [false, true] {
        let buffer = buffer(16 << 10, 1 << 20);
        let value = Bytes::from(vec![7; 100]);
        let key_of = |n: u32| {
            let n = if backwards { 20_000 - n } else { n };
            Bytes::from(n.to_be_bytes().to_vec())
        };
        for n in 0..20_000 {
            buffer.put(key_of(n), Some(value.clone()), Timestamp(1), false).await.expect("puts");
        }
        for n in (0..20_000).step_by(100) {
            assert_eq!(
                buffer.get(&key_of(n), None).await.expect("reads"),
                Some(Some(value.clone()))
            );
        }
        for reverse in [false, true] {
            let rows = everything(&buffer, reverse).await;
            let order = |pair: &[(Bytes, Option<Bytes>)]| (pair[0].0 < pair[1].0) != reverse;
            assert!(rows.len() == 20_000 && rows.windows(2).all(order), "{}", rows.len());
        }
        let layers = buffer.state.lock().layers.clone();
        let level = |layer: &Layer| match layer {
            Layer::Spilled(run) => Some((run.level(), run.files())),
            Layer::Frozen(_) => None,
        };
        let levels: Vec<_> = layers.iter().filter_map(level).collect();
        // Of two levels; a third is written again, so that few files are open.
        assert!(levels.contains(&(1, 8)) && levels.contains(&(2, 1)), "{levels:?}");
        assert!(layers.len() < 3 * MERGE_RUNS, "{levels:?}");
    }
}

/// Sixty times the bound: what stays in memory, and how many runs there are, does not follow.
#[tokio::test]
async fn write_set_far_larger_than_the_budget_is_a_few_runs_and_reads_back() {
    const KEYS: u32 = 30_000;
    // A quarter of it is for filters: those of 30,000 keys take more than twice that.
    let buffer = buffer(64 << 10, 64 << 10);
    let value = Bytes::from(vec![7; 100]);
    // Neither in order nor the other way round, and some twice.
    let key_of =
        |n: u32| Bytes::from((n.wrapping_mul(2_654_435_761) % 50_000).to_be_bytes().to_vec());
    for n in 0..KEYS {
        buffer.put(key_of(n), Some(value.clone()), Timestamp(1), false).await.expect("puts");
    }
    for n in (0..KEYS).step_by(3) {
        buffer.put(key_of(n), None, Timestamp(1), false).await.expect("puts");
    }
    {
        let state = buffer.state.lock();
        let runs = state.layers.len();
        assert!(runs < 3 * MERGE_RUNS, "{runs} runs");
        let held = state.runs_reservation.as_ref().map_or(0, Reservation::bytes);
        assert!(held > 0 && held < 24 << 10, "{held} bytes of filters and places");
    }
    let mut model = Model::new();
    for n in 0..KEYS {
        model.insert(key_of(n), Some(value.clone()));
    }
    for n in (0..KEYS).step_by(3) {
        model.insert(key_of(n), None);
    }
    for n in (0..60_000_u32).step_by(37) {
        let key = Bytes::from(n.to_be_bytes().to_vec());
        assert_eq!(
            buffer.get(&key, None).await.expect("reads"),
            model.get(&key).cloned(),
            "key {n}"
        );
    }
    let range = KeyRange::new(
        Bytes::from(10_000_u32.to_be_bytes().to_vec()),
        Bytes::from(20_000_u32.to_be_bytes().to_vec()),
    );
    for reverse in [false, true] {
        let mut expected: Vec<_> = model
            .iter()
            .filter(|(key, _)| range.contains(key))
            .map(|(key, _)| key.clone())
            .collect();
        if reverse {
            expected.reverse();
        }
        let mut scan = buffer.scan(range.clone(), reverse, None);
        let mut keys = Vec::new();
        while let Some(merged) = scan.next().await.expect("scans") {
            keys.push(merged.key);
        }
        assert!(keys == expected, "reverse {reverse}");
    }
    assert!(everything(&buffer, false).await == model.into_iter().collect::<Vec<_>>());
    buffer.clear();
    assert_eq!(buffer.options.budget.used_bytes(), 0, "everything is given back");
}

#[tokio::test]
async fn overwritten_write_keeps_the_oldest_snapshot_and_freshness() {
    let buffer = buffer(1 << 20, 1 << 20);
    let k = key(1);
    buffer.put(k.clone(), Some(Bytes::new()), Timestamp(5), true).await.expect("puts");
    buffer.put(k.clone(), None, Timestamp(9), false).await.expect("puts");
    buffer.savepoint();
    buffer
        .put(k.clone(), Some(Bytes::from_static(b"x")), Timestamp(12), false)
        .await
        .expect("puts");
    let merged = buffer.scan(KeyRange::default(), false, None).next().await.expect("scans");
    let expected =
        Merged { key: k, value: Some(Bytes::from_static(b"x")), since: Timestamp(5), fresh: true };
    assert_eq!(merged, Some(expected));
}

#[tokio::test]
async fn rollback_to_a_discarded_savepoint_fails_and_to_a_kept_one_works_again() {
    let buffer = buffer(1 << 20, 1 << 20);
    let outer = buffer.savepoint();
    buffer.put(key(1), None, Timestamp(1), false).await.expect("puts");
    let inner = buffer.savepoint();
    buffer.put(key(2), None, Timestamp(1), false).await.expect("puts");
    assert!(buffer.rollback_to(outer));
    assert!(!buffer.rollback_to(inner), "it was made after the outer one");
    buffer.put(key(3), None, Timestamp(1), false).await.expect("puts");
    let later = buffer.savepoint();
    buffer.put(key(4), None, Timestamp(1), false).await.expect("puts");
    assert!(buffer.rollback_to(later));
    assert!(buffer.rollback_to(later), "a savepoint stays valid");
    assert_eq!(everything(&buffer, false).await.len(), 1);
    assert!(buffer.rollback_to(outer));
    assert!(everything(&buffer, false).await.is_empty());
    assert!(!buffer.rollback_to(1000));
}

#[tokio::test]
async fn spill_to_an_unusable_directory_fails_and_keeps_everything() {
    let file = tempfile::NamedTempFile::new().expect("a file");
    let options = SpillOptions {
        env: telesto_runtime::env(),
        scratch: Scratch::plain(file.path()),
        bound_bytes: 500,
        budget: MemoryBudget::new(1 << 20),
    };
    let buffer = Arc::new(WriteBuffer::new(Arc::new(options)));
    let mut failures = 0;
    for k in 0..20 {
        match buffer.put(key(k), None, Timestamp(1), false).await {
            Ok(()) => {}
            Err(Error::LocalDisk(text)) => {
                assert!(text.contains("spill"));
                failures += 1;
            }
            Err(other) => panic!("unexpected {other}"),
        }
    }
    assert!(failures > 0);
    assert_eq!(everything(&buffer, false).await.len(), 20);
}

/// Rows in order, each with an entry in another index, which lies behind: nothing is there between
/// the last row and the first entry.
#[tokio::test]
async fn spilled_rows_and_entries_leave_room_between_them() {
    let of = |index: u8, n: u32| {
        let mut key = vec![index; telesto_common::key::PREFIX_LEN];
        key.extend_from_slice(&n.to_be_bytes());
        Bytes::from(key)
    };
    for indexes in [2, 20] {
        let buffer = buffer(20_000, 1 << 20);
        for n in 0..1000 {
            for index in 1..=indexes {
                let value = Some(Bytes::from_static(b"value"));
                buffer.put(of(index, n), value, Timestamp(1), false).await.expect("puts");
            }
        }
        assert!(buffer.spilled());
        let may = |index: u8, from: u32, to: u32| {
            buffer.may_hold_any(&KeyRange::new(of(index, from), of(index, to)))
        };
        for index in 1..=indexes {
            assert!(may(index, 999, 2000) && may(index, 0, 1), "{index} of {indexes}");
        }
        // Of the first indexes it is known, of others told by the ends of all that lie behind.
        for index in 1..=indexes.min(7) {
            assert!(!may(index, 1000, 2000), "{index} of {indexes}");
        }
        assert!(!may(0, 0, u32::MAX) && !may(indexes + 1, 0, 5));
    }
}
