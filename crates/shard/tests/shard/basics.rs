//! The shard's interface on both engines.

use std::sync::Arc;

use crate::support::{TestBucket, Which, commit, delete, entry, options, put, simple, txn};
use bytes::Bytes;
use telesto_common::key::KeyRange;
use telesto_common::{Label, Lsn, RegionId, ShardId, Timestamp};
use telesto_log::record::{Record, Writes};
use telesto_shard::{FoldOutcome, Origin, Read, ScanSpec, Shard, ShardOptions, Version};

fn found(at: u64, value: &'static str) -> Read {
    let value = Some(Bytes::from_static(value.as_bytes()));
    Read::Found(Version { at: Timestamp(at), txn: txn(at), origin: None, value })
}

fn mark(at: u64) -> Read {
    Read::Found(Version { at: Timestamp(at), txn: txn(at), origin: None, value: None })
}

async fn all(shard: &Arc<Shard>, at: u64, reverse: bool) -> Vec<(String, String)> {
    all_in_batches(shard, at, reverse, 3).await
}

async fn all_in_batches(
    shard: &Arc<Shard>,
    at: u64,
    reverse: bool,
    batch: usize,
) -> Vec<(String, String)> {
    let spec = ScanSpec { reverse, limit: None };
    let mut scan = shard.scan(KeyRange::default(), Timestamp(at), spec);
    let mut out = Vec::new();
    loop {
        let rows = scan.next_batch(batch).await.unwrap();
        if rows.is_empty() {
            return out;
        }
        for row in rows {
            let text = |b: &Bytes| String::from_utf8(b.to_vec()).unwrap();
            out.push((text(&row.key), text(&row.value)));
        }
    }
}

fn rows(pairs: &[(&str, &str)]) -> Vec<(String, String)> {
    pairs.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect()
}

/// One transaction of a group may stand in an entry without the others: it was asked for twice.
#[tokio::test]
async fn entry_holds_a_group_only_with_all_of_its_transactions() {
    let env = telesto_runtime::env();
    let which = Which::Memory(Default::default());
    let shard = Shard::open(options(&env, &TestBucket::new(), &which)).await.unwrap();
    shard.apply(&simple(1, 10, vec![put("a", "a10")])).unwrap();
    assert_eq!(shard.entry_holds(Lsn(1), &[txn(10)]), Some(true));
    assert_eq!(shard.entry_holds(Lsn(1), &[txn(10), txn(20)]), Some(false));
    assert_eq!(shard.entry_holds(Lsn(2), &[txn(10)]), None);
}

async fn versions_are_read_at_their_timestamps(which: Which) {
    let env = telesto_runtime::env();
    let bucket = TestBucket::new();
    let shard = Shard::open(options(&env, &bucket, &which)).await.unwrap();
    assert_eq!(shard.replay_from(), Lsn(1));
    let entries = [
        simple(1, 10, vec![put("a", "a10"), put("b", "b10")]),
        simple(2, 20, vec![put("a", "a20"), delete("b")]),
        simple(3, 30, vec![put("b", "b30"), put("c", "c30")]),
    ];
    for entry in &entries[..2] {
        shard.apply(entry).unwrap();
    }
    let check = async |shard: &Arc<Shard>| {
        let get = async |key: &str, at| shard.get(key.as_bytes(), Timestamp(at)).await.unwrap();
        assert_eq!(get("a", 9).await, Read::Hidden);
        assert_eq!(get("a", 10).await, found(10, "a10"));
        assert_eq!(get("a", 19).await, found(10, "a10"));
        assert_eq!(get("a", 20).await, found(20, "a20"));
        assert_eq!(get("b", 19).await, found(10, "b10"));
        assert!(matches!(get("b", 25).await, Read::Hidden) || get("b", 25).await == mark(20));
        assert_eq!(get("zz", 30).await, Read::Absent);
        assert_eq!(all(shard, 10, false).await, rows(&[("a", "a10"), ("b", "b10")]));
        assert_eq!(all(shard, 20, true).await, rows(&[("a", "a20")]));
    };
    check(&shard).await;
    assert!(matches!(shard.fold().await.unwrap(), FoldOutcome::Advanced(f) if f.lsn == Lsn(2)));
    assert_eq!(shard.fold().await.unwrap(), FoldOutcome::Nothing);
    assert_eq!(shard.checkpointed(), Lsn(2));
    assert_eq!(shard.tail_bytes(), 0);
    check(&shard).await;
    shard.apply(&entries[2]).unwrap();
    check(&shard).await;
    assert_eq!(all(&shard, 30, false).await, rows(&[("a", "a20"), ("b", "b30"), ("c", "c30")]));
    assert_eq!(all(&shard, 30, true).await, rows(&[("c", "c30"), ("b", "b30"), ("a", "a20")]));
    shard.fold().await.unwrap();
    check(&shard).await;
    shard.compact(true).await.unwrap();
    check(&shard).await;
    shard.close().await;

    let shard = Shard::open(options(&env, &bucket, &which)).await.unwrap();
    assert_eq!((shard.replay_from(), shard.applied().1), (Lsn(4), Timestamp(30)));
    check(&shard).await;
    assert_eq!(shard.outcome(txn(20)).await.unwrap(), Some(Timestamp(20)));
    assert_eq!(shard.outcome(txn(21)).await.unwrap(), None);
    let keys: Vec<_> = ["c", "zz", "a"].into_iter().map(Bytes::from).collect();
    let many = shard.get_many(&keys, Timestamp(30)).await.unwrap();
    assert_eq!(many, [found(30, "c30"), Read::Absent, found(20, "a20")]);
    let between = |from: &'static str, to: &'static str| KeyRange::new(from.into(), to.into());
    for (from, to, expected) in
        [("c0", "zz", true), ("0", "a", true), ("a", "a0", false), ("0", "zz", false)]
    {
        let never = shard.never_written(&between(from, to), Timestamp(30)).await.unwrap();
        assert_eq!(never, expected, "{from} to {to}");
    }
    let warm = shard.try_get(b"a", Timestamp(30)).expect("cached by the read before");
    assert_eq!(warm.unwrap(), found(20, "a20"));
    shard.close().await;

    for page_rows in [0, 1, 2, 64] {
        let options = ShardOptions { page_rows, ..options(&env, &bucket, &which) };
        let shard = Shard::open(options).await.unwrap();
        let keys: Vec<_> = ["c", "zz", "a", "b", "d", "c"].into_iter().map(Bytes::from).collect();
        let many = shard.get_many(&keys, Timestamp(30)).await.unwrap();
        let (b, c) = (found(30, "b30"), found(30, "c30"));
        let expected = [c.clone(), Read::Absent, found(20, "a20"), b, Read::Absent, c];
        assert_eq!(many, expected, "pages of {page_rows} rows");
        shard.close().await;
    }
}

#[tokio::test]
async fn versions_read_at_their_timestamps_before_and_after_folds_in_memory() {
    versions_are_read_at_their_timestamps(Which::memory()).await;
}

#[tokio::test]
async fn versions_read_at_their_timestamps_before_and_after_folds_in_slatedb() {
    versions_are_read_at_their_timestamps(Which::Slate).await;
}

/// A step that many rows of the tail cut short must not give out what the checkpoint holds behind
/// the cut: rows of the tail stand there too.
#[tokio::test]
async fn scan_cut_short_by_rows_too_new_for_it_keeps_order_and_newest_versions() {
    let env = telesto_runtime::env();
    let bucket = TestBucket::new();
    let shard = Shard::open(options(&env, &bucket, &Which::memory())).await.unwrap();
    let names: Vec<String> = (0..1000).map(|n| format!("k{n:04}")).collect();
    let old = names.iter().map(|name| put(name.clone(), "old")).collect();
    shard.apply(&simple(1, 10, old)).unwrap();
    shard.fold().await.unwrap();
    let new = [50, 500, 950].map(|n: usize| put(names[n].clone(), "new"));
    shard.apply(&simple(2, 20, new.to_vec())).unwrap();
    let _snapshot = shard.register_snapshot(Timestamp(20)).unwrap();
    let later =
        names.iter().flat_map(|name| ["a", "b", "c", "d"].map(|end| format!("{name}{end}")));
    shard.apply(&simple(3, 30, later.map(|name| put(name, "later")).collect())).unwrap();

    let value = |n: usize| if [50, 500, 950].contains(&n) { "new" } else { "old" };
    let mut expected: Vec<_> =
        names.iter().enumerate().map(|(n, name)| (name.clone(), value(n).to_owned())).collect();
    assert!(all_in_batches(&shard, 20, false, 2000).await == expected);
    expected.reverse();
    assert!(all_in_batches(&shard, 20, true, 2000).await == expected);
}

/// An entry with a commit of another region, which made it at ten times `at`.
fn remote(lsn: u64, at: u64, value: &'static str) -> telesto_log::record::Entry {
    let mut record = commit(at, Writes::Inline(vec![put("k", value)]));
    if let Record::Commit(commit) = &mut record {
        commit.origin = Label::update(RegionId(9), Timestamp(at * 10));
    }
    entry(lsn, vec![record])
}

async fn origin_labels_are_kept(which: Which) {
    let env = telesto_runtime::env();
    let bucket = TestBucket::new();
    let shard = Shard::open(options(&env, &bucket, &which)).await.unwrap();
    let labelled = |at: u64, value: &'static str| {
        let origin = Origin { source: RegionId(9), timestamp: Timestamp(at * 10) };
        let value = Some(Bytes::from_static(value.as_bytes()));
        let (at, txn) = (Timestamp(at), txn(at));
        Read::Found(Version { at, txn, origin: Some(Box::new(origin)), value })
    };
    shard.apply(&remote(1, 10, "theirs")).unwrap();
    for round in 0..2 {
        assert_eq!(
            shard.get(b"k", Timestamp(10)).await.unwrap(),
            labelled(10, "theirs"),
            "{round}"
        );
        shard.fold().await.unwrap();
    }
    let cold = Shard::open(options(&env, &bucket, &which)).await.unwrap();
    for place in ["checkpoint", "cache"] {
        assert_eq!(cold.get(b"k", Timestamp(10)).await.unwrap(), labelled(10, "theirs"), "{place}");
    }
    // Superseded by a commit of this region, then by one of the other: in the history, through a
    // fold and a compaction.
    shard.apply(&simple(2, 20, vec![put("k", "ours")])).unwrap();
    shard.fold().await.unwrap();
    shard.apply(&remote(3, 30, "again")).unwrap();
    shard.fold().await.unwrap();
    shard.compact(true).await.unwrap();
    let cold = Shard::open(options(&env, &bucket, &which)).await.unwrap();
    for shard in [&shard, &cold] {
        assert_eq!(shard.get(b"k", Timestamp(10)).await.unwrap(), labelled(10, "theirs"));
        assert_eq!(shard.get(b"k", Timestamp(20)).await.unwrap(), found(20, "ours"));
        assert_eq!(shard.get(b"k", Timestamp(30)).await.unwrap(), labelled(30, "again"));
        let many: Vec<Bytes> = vec![Bytes::from_static(b"k"); 40];
        let reads = shard.get_many(&many, Timestamp(30)).await.unwrap();
        assert!(reads.iter().all(|read| *read == labelled(30, "again")));
    }
}

#[tokio::test]
async fn origin_label_stays_with_a_version_through_every_rewrite_in_memory() {
    origin_labels_are_kept(Which::memory()).await;
}

#[tokio::test]
async fn origin_label_stays_with_a_version_through_every_rewrite_in_slatedb() {
    origin_labels_are_kept(Which::Slate).await;
}

/// A log may serve several shards: what an entry says of another is not this one's, also where this
/// version could not apply it.
#[tokio::test]
async fn records_of_another_shard_are_passed_over() {
    use telesto_log::record::{Decide, Prepare};

    let env = telesto_runtime::env();
    let bucket = TestBucket::new();
    let shard = Shard::open(options(&env, &bucket, &Which::Slate)).await.unwrap();
    let other = ShardId(1);
    let mut foreign = commit(50, Writes::Inline(vec![put("k", "theirs")]));
    if let Record::Commit(commit) = &mut foreign {
        commit.shard = other;
    }
    let writes = Writes::Inline(vec![put("k", "theirs")]);
    let prepare =
        Prepare { shard: other, txn: txn(60), home_shard: 1, deadline: Timestamp(70), writes };
    let decide = Decide { shard: other, txn: txn(60), timestamp: Some(Timestamp(65)) };
    let own = commit(10, Writes::Inline(vec![put("k", "ours")]));
    let records = vec![foreign, own, Record::Prepare(prepare), Record::Decide(decide.clone())];
    shard.apply(&entry(1, records)).unwrap();
    // Time is each shard's own: 50 of the other is not this one's newest.
    assert_eq!(shard.applied(), (Lsn(1), Timestamp(10)));
    assert_eq!(shard.get(b"k", Timestamp(99)).await.unwrap(), found(10, "ours"));
    assert_eq!(shard.outcome(txn(50)).await.unwrap(), None);
    let own = Decide { shard: ShardId(0), ..decide };
    let refused = shard.apply(&entry(2, vec![Record::Decide(own)])).unwrap_err();
    assert!(matches!(refused, telesto_shard::Error::UnknownRecord { .. }), "{refused}");
    shard.fold().await.unwrap();
    let cold = Shard::open(options(&env, &bucket, &Which::Slate)).await.unwrap();
    assert_eq!(cold.get(b"k", Timestamp(99)).await.unwrap(), found(10, "ours"));
}
