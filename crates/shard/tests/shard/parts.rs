//! Part objects: what is written is read, a flipped byte is an error that names the object.

use std::sync::Arc;

use bytes::Bytes;
use telesto_bucket::{Bucket, Cause};
use telesto_common::WriterToken;
use telesto_common::key::KeyRange;
use telesto_log::record::{Part, Write};
use telesto_shard::ProcessCache;
use telesto_shard::part::{FinishedPart, PartReader, PartWriter};

use crate::support::TestBucket;

fn writes(count: u32) -> Vec<Write> {
    let write = |i: u32| Write {
        key: Bytes::from(format!("key-{:08}", i * 2)),
        value: (!i.is_multiple_of(7)).then(|| Bytes::from(format!("value-{i}").repeat(20))),
        fresh: i.is_multiple_of(3),
    };
    (0..count).map(write).collect()
}

fn build(writes: &[Write], target_bytes: usize) -> Vec<FinishedPart> {
    let mut writer = PartWriter::new(target_bytes, WriterToken(7));
    let mut parts: Vec<_> = writes.iter().filter_map(|w| writer.push(w).unwrap()).collect();
    parts.extend(writer.finish().unwrap());
    parts
}

async fn store(bucket: &Arc<TestBucket>, part: &FinishedPart, name: &str) -> Part {
    bucket.put_if_absent(Cause::Commit, name, part.body.clone()).await.unwrap();
    part.named(name.to_owned())
}

fn reader(bucket: &Arc<TestBucket>, part: Part) -> Arc<PartReader> {
    let bucket: Arc<dyn Bucket> = bucket.clone();
    Arc::new(PartReader::new(bucket, Arc::new(ProcessCache::new(16 << 20)), part))
}

async fn scan(
    reader: &Arc<PartReader>,
    range: KeyRange,
    reverse: bool,
) -> telesto_shard::Result<Vec<Write>> {
    let mut rows = Arc::clone(reader).scan(Cause::Read, range, reverse);
    let mut out = Vec::new();
    while let Some(write) = rows.next().await? {
        out.push(write);
    }
    Ok(out)
}

#[tokio::test]
async fn parts_return_what_was_written_by_key_and_by_range() {
    let all = writes(20_000);
    let bucket = TestBucket::new();
    let parts = build(&all, 1 << 20);
    assert!(parts.len() > 2);
    let mut read = Vec::new();
    for (i, part) in parts.iter().enumerate() {
        let part = store(&bucket, part, &format!("p{i}")).await;
        let reader = reader(&bucket, part.clone());
        let before = bucket.requests();
        let rows = scan(&reader, KeyRange::default(), false).await.unwrap();
        assert!(bucket.requests() - before < 12, "read ahead grows");
        assert_eq!(rows.len() as u64, part.writes);
        let mut reversed = scan(&reader, KeyRange::default(), true).await.unwrap();
        reversed.reverse();
        assert_eq!(rows, reversed);
        let middle = &rows[rows.len() / 2];
        assert_eq!(reader.get(Cause::Read, &middle.key).await.unwrap().as_ref(), Some(middle));
        let warm = bucket.requests();
        reader.get(Cause::Read, &middle.key).await.unwrap();
        assert_eq!(bucket.requests(), warm, "the block is cached");
        let mut absent = middle.key.to_vec();
        absent.push(b'x');
        assert_eq!(reader.get(Cause::Read, &absent).await.unwrap(), None);
        let range = KeyRange::new(rows[10].key.clone(), rows[20].key.clone());
        assert_eq!(scan(&reader, range, false).await.unwrap(), rows[10..20]);
        read.extend(rows);
    }
    assert_eq!(read, all);
}

#[tokio::test]
async fn part_with_any_byte_flipped_gives_an_error_that_names_it_or_the_right_rows() {
    let all = writes(600);
    let part = build(&all, 1 << 30).remove(0);
    let mut errors = 0;
    for at in (0..part.body.len()).step_by(97).chain(part.body.len() - 200..part.body.len()) {
        let mut body = part.body.to_vec();
        body[at] ^= 0x10;
        let damaged = FinishedPart { body: Bytes::from(body), ..part.clone() };
        let bucket = TestBucket::new();
        let named = store(&bucket, &damaged, "shards/0/parts/damaged").await;
        let reader = reader(&bucket, named);
        match scan(&reader, KeyRange::default(), false).await {
            Ok(rows) => assert!(rows == all && at < 24, "byte {at} changed the answer"),
            Err(error) => {
                errors += 1;
                assert!(error.to_string().contains("shards/0/parts/damaged"), "{error}");
            }
        }
    }
    assert!(errors > 300);
}

#[test]
fn writes_out_of_order_are_refused() {
    let mut writer = PartWriter::new(1 << 20, WriterToken(1));
    let rows = writes(2);
    writer.push(&rows[1]).unwrap();
    assert!(writer.push(&rows[0]).is_err());
    assert!(writer.push(&rows[1]).is_err());
}
