//! Random commits, folds, compactions, crashes and reads against a reference model.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use proptest::prelude::*;
use telesto_cipher::Scratch;
use telesto_common::key::KeyRange;
use telesto_common::{Env, Timestamp, WriterToken};
use telesto_log::record::{Entry, Part, Write, Writes};
use telesto_shard::part::PartWriter;
use telesto_shard::{Error, Gone, Read, ScanSpec, Shard, ShardOptions, SnapshotGuard};

use crate::support::{self, TestBucket, Which, commit, entry, txn};

/// One step of a random run. Keys are 0..KEYS; values are made from the step's number.
#[derive(Clone, Debug)]
pub enum Step {
    /// One entry of several commits, each of several writes (`None` deletes).
    Commit(Vec<Vec<(u8, bool)>>),
    /// One commit whose writes lie in part objects.
    External(Vec<(u8, bool)>),
    Fold,
    Compact(bool),
    /// Dropped without a word and opened again.
    Crash,
    Register,
    Release,
    /// Reads at a timestamp this many steps back.
    Check(u8),
    /// A scan with a commit, and perhaps a fold, in its middle.
    Across(Vec<(u8, bool)>, bool),
    /// Some of the oldest entries go to disk.
    Spill(u64),
    /// A scan that some of what it reads is moved to disk under.
    AcrossSpill(Vec<(u8, bool)>, u64),
    /// Ten keys are dropped: nobody writes them any more, or reads them from now on.
    Drop(u8),
    /// The shard is told what was dropped (again, if it has crashed) and merges what it may leave
    /// out.
    Reclaim,
}

/// More than one step of a scan takes.
const KEYS: u8 = 40;

pub fn step() -> impl Strategy<Value = Step> {
    let writes = || prop::collection::btree_map(0..KEYS, any::<bool>(), 1..12);
    let writes = move || writes().prop_map(|w| w.into_iter().collect::<Vec<_>>());
    prop_oneof![
        6 => prop::collection::vec(writes(), 1..3).prop_map(Step::Commit),
        1 => writes().prop_map(Step::External),
        2 => Just(Step::Fold),
        1 => any::<bool>().prop_map(Step::Compact),
        1 => Just(Step::Crash),
        1 => Just(Step::Register),
        1 => Just(Step::Release),
        5 => (0..40_u8).prop_map(Step::Check),
        2 => (writes(), any::<bool>()).prop_map(|(writes, fold)| Step::Across(writes, fold)),
        1 => prop_oneof![Just(1_u8), Just(3)].prop_map(Step::Drop),
        1 => Just(Step::Reclaim),
    ]
}

/// Steps of a shard whose bucket does not answer for long, now and then.
fn spilling_step() -> impl Strategy<Value = Step> {
    let writes = prop::collection::btree_map(0..KEYS, any::<bool>(), 1..12);
    let writes = writes.prop_map(|w| w.into_iter().collect::<Vec<_>>());
    // Of some 300 bytes a write.
    let bytes = || 1..8000_u64;
    prop_oneof![
        12 => step(),
        4 => bytes().prop_map(Step::Spill),
        2 => (writes, bytes()).prop_map(|(writes, bytes)| Step::AcrossSpill(writes, bytes)),
    ]
}

/// What the shard must answer.
#[derive(Clone, Default)]
pub struct Model {
    pub log: Vec<Entry>,
    versions: BTreeMap<Bytes, Vec<(u64, Option<Bytes>)>>,
    /// Tens of keys, and since when nobody reads them.
    dropped: BTreeMap<u8, u64>,
    pub now: u64,
}

fn key(number: u8) -> Bytes {
    Bytes::from(format!("key-{number:02}-of-the-model"))
}

impl Model {
    /// Whether nobody reads the key at `at`, because it was dropped.
    fn gone(&self, number: u8, at: u64) -> bool {
        self.dropped.get(&(number / 10)).is_some_and(|dropped| at >= *dropped)
    }

    fn gone_key(&self, key: &[u8], at: u64) -> bool {
        let number = key.get(4..6).and_then(|n| std::str::from_utf8(n).ok()?.parse().ok());
        number.is_some_and(|number| self.gone(number, at))
    }

    fn all_gone(&self) -> Vec<Gone> {
        let gone = |(ten, at): (&u8, &u64)| Gone {
            prefix: format!("key-{ten}").into(),
            at: Timestamp(*at),
        };
        self.dropped.iter().map(gone).collect()
    }

    /// What of a commit's writes may still be written, at least one.
    fn live(&self, writes: &[(u8, bool)]) -> Vec<(u8, bool)> {
        let mut live: Vec<_> = writes.to_vec();
        live.retain(|(number, _)| !self.dropped.contains_key(&(number / 10)));
        if live.is_empty() {
            live.push((0, true));
        }
        live
    }

    fn tick(&mut self) -> u64 {
        // One microsecond of commit time a step.
        self.now += 1 << 12;
        self.now
    }

    fn write(&mut self, at: u64, number: u8, put: bool) -> Write {
        let key = key(number);
        let value = put.then(|| Bytes::from(format!("value-{at}-{number}").repeat(3)));
        let versions = self.versions.entry(key.clone()).or_default();
        let fresh = versions.is_empty() && number.is_multiple_of(2);
        versions.push((at, value.clone()));
        Write { key, value, fresh }
    }

    pub fn commit(&mut self, commits: &[Vec<(u8, bool)>]) -> Entry {
        let mut records = Vec::new();
        for writes in commits {
            let at = self.tick();
            let writes = self.live(writes);
            let writes = writes.iter().map(|(k, put)| self.write(at, *k, *put)).collect();
            records.push(commit(at, Writes::Inline(writes)));
        }
        self.push(records)
    }

    fn push(&mut self, records: Vec<telesto_log::record::Record>) -> Entry {
        let entry = entry(self.log.len() as u64 + 1, records);
        self.log.push(entry.clone());
        entry
    }

    pub async fn external(&mut self, bucket: &TestBucket, writes: &[(u8, bool)]) -> Entry {
        use telesto_bucket::{Bucket as _, Cause};
        let at = self.tick();
        let mut writer = PartWriter::new(1, WriterToken(u128::from(at)));
        let mut parts: Vec<Part> = Vec::new();
        for (number, put) in self.live(writes) {
            let write = self.write(at, number, put);
            let part = writer.push(&write).unwrap();
            if let Some(part) = part {
                parts.push(part.named(format!("shards/0/parts/{at}-{}", parts.len())));
                let object = &parts.last().unwrap().object;
                bucket.put_if_absent(Cause::Commit, object, part.body).await.unwrap();
            }
        }
        if let Some(part) = writer.finish().unwrap() {
            parts.push(part.named(format!("shards/0/parts/{at}-{}", parts.len())));
            let object = &parts.last().unwrap().object;
            bucket.put_if_absent(Cause::Commit, object, part.body).await.unwrap();
        }
        self.push(vec![commit(at, Writes::External(parts))])
    }

    fn at(&self, key: &Bytes, at: u64) -> Option<(u64, Option<Bytes>)> {
        self.versions.get(key)?.iter().rev().find(|(t, _)| *t <= at).cloned()
    }

    fn rows(&self, at: u64) -> Vec<(Bytes, Bytes, u64)> {
        let row = |key: &Bytes| {
            let (t, value) = self.at(key, at)?;
            Some((key.clone(), value?, t))
        };
        self.versions.keys().filter(|key| !self.gone_key(key, at)).filter_map(row).collect()
    }

    /// What a scan found at `at`, without what nobody would have looked for.
    fn shown(&self, mut found: Vec<(Bytes, Bytes, u64)>, at: u64) -> Vec<(Bytes, Bytes, u64)> {
        found.retain(|(key, ..)| !self.gone_key(key, at));
        found
    }

    /// Compares every read at `at` with the model. What was read leaves something in memory for the
    /// reads after it: which kind comes first changes from time to time.
    pub async fn check(&self, shard: &Arc<Shard>, at: u64) {
        match at % 3 {
            0 => {
                self.check_points(shard, at).await;
                self.check_scans(shard, at).await;
                self.check_many(shard, at).await;
            }
            1 => {
                self.check_many(shard, at).await;
                self.check_points(shard, at).await;
                self.check_scans(shard, at).await;
            }
            _ => {
                self.check_scans(shard, at).await;
                self.check_many(shard, at).await;
                self.check_points(shard, at).await;
            }
        }
        self.check_changes(shard, at).await;
        self.check_spans(shard, at).await;
        self.check_outcomes(shard).await;
    }

    /// Of the newest commits: they are known, and others are not.
    async fn check_outcomes(&self, shard: &Arc<Shard>) {
        let oldest = shard.oldest_readable();
        for back in 0..12 {
            let Some(at) = self.now.checked_sub(back << 12).filter(|at| *at > oldest.0) else {
                return;
            };
            assert_eq!(shard.outcome(txn(at)).await.unwrap(), Some(Timestamp(at)));
            assert_eq!(shard.outcome(txn(at + 1)).await.unwrap(), None);
            let tried = shard.try_outcome(txn(at), Timestamp(at - 1));
            assert!(tried.is_none_or(|known| known == Some(Timestamp(at))), "{tried:?} of {at}");
        }
    }

    async fn check_points(&self, shard: &Arc<Shard>, at: u64) {
        let timestamp = Timestamp(at);
        for number in 0..=KEYS {
            let key = key(number);
            if let Some(read) = shard.try_get(&key, timestamp) {
                self.check_read(&key, at, &read.unwrap());
            }
            self.check_read(&key, at, &shard.get(&key, timestamp).await.unwrap());
        }
    }

    async fn check_many(&self, shard: &Arc<Shard>, at: u64) {
        // Out of order, some twice, in groups of different sizes and density.
        for (stride, count) in [(7, 41), (3, 9), (1, 6), (13, 5), (1, 60)] {
            let start = (at % u64::from(KEYS)) as usize;
            let numbers =
                (0..count).map(|n| ((start + n * stride) % (usize::from(KEYS) + 1)) as u8);
            let keys: Vec<Bytes> = numbers.map(key).collect();
            let reads = shard.get_many(&keys, Timestamp(at)).await.unwrap();
            for (key, read) in keys.iter().zip(&reads) {
                self.check_read(key, at, read);
            }
        }
    }

    /// Where nothing was ever written every key is absent. A delete mark that was collected may
    /// still be remembered.
    async fn check_spans(&self, shard: &Arc<Shard>, at: u64) {
        for (from, length) in [(0, 1), (3, 1), (5, 2), (2, 9), (KEYS, 1)] {
            let range = KeyRange::new(key(from), key(from + length));
            if shard.never_written(&range, Timestamp(at)).await.unwrap() {
                for number in (from..from + length).filter(|number| !self.gone(*number, at)) {
                    let read = shard.get(&key(number), Timestamp(at)).await.unwrap();
                    let deleted = matches!(&read, Read::Found(version) if version.value.is_none());
                    assert!(read == Read::Absent || deleted, "{number} at {at}: {read:?}");
                }
            }
        }
    }

    async fn check_scans(&self, shard: &Arc<Shard>, at: u64) {
        let timestamp = Timestamp(at);
        for reverse in if at.is_multiple_of(2) { [false, true] } else { [true, false] } {
            for batch in [1, 100] {
                let spec = ScanSpec { reverse, limit: None };
                let mut scan = shard.scan(KeyRange::default(), timestamp, spec);
                let mut rows = Vec::new();
                loop {
                    let more = scan.next_batch(batch).await.unwrap();
                    if more.is_empty() {
                        break;
                    }
                    rows.extend(more.into_iter().map(|row| {
                        assert_eq!(row.txn, txn(row.at.0));
                        (row.key, row.value, row.at.0)
                    }));
                }
                if reverse {
                    rows.reverse();
                }
                assert_eq!(self.shown(rows, at), self.rows(at), "scan at {at}, reverse {reverse}");
            }
        }
        for (from, to) in [(3, 8), (0, 2), (5, 6), (2, 11), (7, 7), (4, KEYS)] {
            let reverse = (at + u64::from(from)).is_multiple_of(2);
            let range = KeyRange::new(key(from), key(to));
            let spec = ScanSpec { reverse, limit: None };
            let mut scan = shard.scan(range.clone(), timestamp, spec);
            let mut rows = Vec::new();
            loop {
                let more = scan.next_batch(2).await.unwrap();
                if more.is_empty() {
                    break;
                }
                rows.extend(more.into_iter().map(|row| (row.key, row.value, row.at.0)));
            }
            if reverse {
                rows.reverse();
            }
            let mut expected = self.rows(at);
            expected.retain(|(key, ..)| range.contains(key));
            let rows = self.shown(rows, at);
            assert_eq!(rows, expected, "scan of {from} to {to} at {at}, reverse {reverse}");
        }
    }

    async fn check_changes(&self, shard: &Arc<Shard>, at: u64) {
        let timestamp = Timestamp(at);
        let range = KeyRange::new(key(3), key(8));
        let change =
            shard.changed_since(&[], std::slice::from_ref(&range), timestamp).await.unwrap();
        let expected = self.versions.range(key(3)..key(8)).any(|(_, v)| newest(v) > at);
        assert_eq!(change.is_some(), expected, "range changed since {at}: {change:?}");
        for number in (0..=KEYS).filter(|number| !self.dropped.contains_key(&(number / 10))) {
            let key = key(number);
            let keys = [key.clone()];
            let change = shard.changed_since(&keys, &[], timestamp).await.unwrap();
            let newest = self.versions.get(&key).map_or(0, |versions| newest(versions));
            assert_eq!(change.is_some(), newest > at, "{key:?} since {at}: {change:?}");
            if let Some(change) = change {
                let real = self.versions[&key].iter().any(|(t, _)| *t == change.at.0);
                assert!(real && change.at.0 > at && change.txn == txn(change.at.0));
                assert_eq!(change.key, key);
            }
        }
    }

    fn check_read(&self, key: &Bytes, at: u64, read: &Read) {
        if self.gone_key(key, at) {
            return;
        }
        let expected = self.at(key, at);
        let exists = self.versions.contains_key(key);
        match (read, expected) {
            (Read::Found(version), Some((t, value))) => {
                assert_eq!((version.at.0, &version.value), (t, &value), "{key:?} at {at}");
                assert_eq!(version.txn, txn(t));
            }
            // A delete mark that was superseded, or collected, need not be found.
            (Read::Hidden | Read::Absent, Some((_, None))) => {}
            (Read::Hidden, None) => assert!(exists, "{key:?} at {at} has no version"),
            (Read::Absent, None) => {}
            (read, expected) => panic!("{key:?} at {at}: {read:?}, not {expected:?}"),
        }
    }

    /// Applies what the shard lacks.
    pub fn replay(&self, shard: &Shard) {
        let from = usize::try_from(shard.replay_from().0).unwrap() - 1;
        for entry in &self.log[from..] {
            shard.apply(entry).unwrap();
        }
    }
}

fn newest(versions: &[(u64, Option<Bytes>)]) -> u64 {
    versions.last().map_or(0, |(at, _)| *at)
}

fn options(env: &Env, bucket: &Arc<TestBucket>, which: &Which) -> ShardOptions {
    // Thirty commits of history.
    let retention = Duration::from_micros(30);
    // Several pages for the few keys there are.
    ShardOptions { retention, page_rows: 3, ..support::options(env, bucket, which) }
}

/// The same with a tail of little memory, the rest of it on disk.
fn spilling_options(env: &Env, bucket: &Arc<TestBucket>, which: &Which) -> ShardOptions {
    let scratch = Scratch::encrypted(std::env::temp_dir(), &*env.random);
    // Blocks of a few keys, pieces of a few entries.
    let tail_limit_bytes = 48 << 10;
    ShardOptions { scratch: Some(scratch), tail_limit_bytes, ..options(env, bucket, which) }
}

type Options = fn(&Env, &Arc<TestBucket>, &Which) -> ShardOptions;

async fn run(which: Which, steps: Vec<Step>, options: Options) {
    let env = support::hasty_env();
    let bucket = TestBucket::new();
    let mut model = Model::default();
    let mut shard = Shard::open(options(&env, &bucket, &which)).await.unwrap();
    let mut guards: Vec<SnapshotGuard> = Vec::new();
    for step in steps {
        match step {
            Step::Commit(commits) => shard.apply(&model.commit(&commits)).unwrap(),
            Step::External(writes) => {
                shard.apply(&model.external(&bucket, &writes).await).unwrap();
            }
            Step::Fold => {
                shard.fold().await.unwrap();
            }
            Step::Compact(all) => match shard.compact(all).await {
                // One begun before a crash goes on and takes it over.
                Ok(()) | Err(Error::Unavailable { .. }) => {}
                Err(error) => panic!("{error}"),
            },
            Step::Crash => {
                guards.clear();
                shard = Shard::open(options(&env, &bucket, &which)).await.unwrap();
                model.replay(&shard);
            }
            Step::Register => guards.push(shard.register_snapshot(Timestamp(model.now)).unwrap()),
            Step::Release => drop(guards.pop()),
            Step::Across(writes, fold) => {
                let at = model.now;
                let _guard = shard.register_snapshot(Timestamp(at)).unwrap();
                let expected = model.rows(at);
                let spec = ScanSpec { reverse: false, limit: None };
                let mut scan = shard.scan(KeyRange::default(), Timestamp(at), spec);
                let mut rows = scan.next_batch(1).await.unwrap();
                shard.apply(&model.commit(&[writes])).unwrap();
                if fold {
                    shard.fold().await.unwrap();
                }
                loop {
                    let more = scan.next_batch(1).await.unwrap();
                    if more.is_empty() {
                        break;
                    }
                    rows.extend(more);
                }
                let rows: Vec<_> =
                    rows.into_iter().map(|row| (row.key, row.value, row.at.0)).collect();
                let rows = model.shown(rows, at);
                assert_eq!(rows, expected, "scan at {at} across a commit");
            }
            Step::Spill(bytes) => {
                let held = shard.tail_bytes();
                if shard.spill(bytes).await.unwrap() {
                    assert!(shard.spilled_bytes() > 0 && held > 0);
                }
            }
            Step::AcrossSpill(writes, bytes) => {
                let at = model.now;
                let _guard = shard.register_snapshot(Timestamp(at)).unwrap();
                let expected = model.rows(at);
                let reverse = bytes % 2 == 0;
                let spec = ScanSpec { reverse, limit: None };
                let mut scan = shard.scan(KeyRange::default(), Timestamp(at), spec);
                let mut rows = Vec::new();
                loop {
                    let more = scan.next_batch(1 + bytes as usize % 20).await.unwrap();
                    if more.is_empty() {
                        break;
                    }
                    rows.extend(more.into_iter().map(|row| (row.key, row.value, row.at.0)));
                    shard.apply(&model.commit(std::slice::from_ref(&writes))).unwrap();
                    shard.spill(bytes).await.unwrap();
                }
                if reverse {
                    rows.reverse();
                }
                let rows = model.shown(rows, at);
                assert_eq!(rows, expected, "scan at {at} across spills");
            }
            Step::Drop(ten) => {
                shard.apply(&model.commit(&[vec![(0, true)]])).unwrap();
                let now = model.now;
                model.dropped.entry(ten).or_insert(now);
                shard.set_gone(model.all_gone());
            }
            Step::Reclaim => {
                shard.set_gone(model.all_gone());
                match shard.reclaim().await {
                    Ok(_) | Err(Error::Unavailable { .. }) => {}
                    Err(error) => panic!("{error}"),
                }
            }
            Step::Check(back) => {
                let at = model.now.saturating_sub(u64::from(back) << 12);
                if Timestamp(at) >= shard.oldest_readable() {
                    model.check(&shard, at).await;
                } else {
                    let read = shard.get(&key(1), Timestamp(at)).await;
                    assert!(matches!(read, Err(Error::SnapshotTooOld { .. })));
                }
                for guard in &guards {
                    model.check(&shard, guard.at().0).await;
                }
            }
        }
    }
    model.check(&shard, model.now).await;
}

fn block_on(future: impl Future<Output = ()>) {
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    runtime.unwrap().block_on(future);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 100, max_shrink_iters: 400, ..ProptestConfig::default() })]
    #[test]
    fn memory_engine_under_random_steps_answers_like_the_model(steps in prop::collection::vec(step(), 1..120)) {
        block_on(run(Which::memory(), steps, options));
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 12, max_shrink_iters: 60, ..ProptestConfig::default() })]
    #[test]
    fn slatedb_engine_under_random_steps_answers_like_the_model(steps in prop::collection::vec(step(), 1..120)) {
        block_on(run(Which::Slate, steps, options));
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 100, max_shrink_iters: 400, ..ProptestConfig::default() })]
    #[test]
    fn tail_on_disk_under_random_steps_answers_like_the_model(steps in prop::collection::vec(spilling_step(), 1..120)) {
        block_on(run(Which::memory(), steps, spilling_options));
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 8, max_shrink_iters: 60, ..ProptestConfig::default() })]
    #[test]
    fn tail_on_disk_over_slatedb_answers_like_the_model(steps in prop::collection::vec(spilling_step(), 1..120)) {
        block_on(run(Which::Slate, steps, spilling_options));
    }
}
