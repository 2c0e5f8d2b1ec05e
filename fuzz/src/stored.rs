//! Stored bytes: the log's, the shard's, keys, rows, the catalog.
//!
//! # Invariants
//! Each target tries the bytes as they are and with their checksums made good.
//!
//! # On failure
//! Panics: the finding.

use std::sync::{Arc, LazyLock};

use bytes::Bytes;
use telesto_bucket::{Bucket as _, BucketOptions, Cause, MemoryStore, OpenBucket, over};
use telesto_common::key::{Direction, KeyRange, KeyReader, KeyWriter};
use telesto_common::{Env, WriterToken};
use telesto_log::record::{Part, Write};
use telesto_shard::ProcessCache;
use telesto_shard::part::{PartReader, PartWriter};
use tokio::runtime::Runtime;

use crate::Target;

pub(crate) fn targets() -> Vec<Target> {
    let plain = Target {
        name: "",
        run: |_| {},
        seeds: Vec::new,
        words: &[],
        memory_bytes: 256 << 10,
        runs: 6_000,
    };
    vec![
        Target {
            name: "log_entry",
            run: telesto_log::fuzz::entry,
            seeds: || of(telesto_log::fuzz::seeds(), "entry"),
            ..plain
        },
        Target {
            name: "log_archive",
            run: telesto_log::fuzz::archived,
            seeds: || of(telesto_log::fuzz::seeds(), "archived"),
            ..plain
        },
        Target {
            name: "log_sectors",
            run: telesto_log::fuzz::sectors,
            seeds: || of(telesto_log::fuzz::seeds(), "sectors"),
            words: &["TELESTO\n"],
            ..plain
        },
        Target {
            name: "log_chain",
            run: telesto_log::fuzz::chain,
            seeds: || of(telesto_log::fuzz::seeds(), "chain"),
            words: &[
                "\"bucket\"",
                "{\"quorum\":",
                "\"lsn\":",
                "0",
                "18446744073709551615",
                "[]",
                "{}",
                "null",
            ],
            ..plain
        },
        Target {
            name: "shard_rows",
            run: telesto_shard::fuzz::rows,
            seeds: || of(telesto_shard::fuzz::seeds(), "rows"),
            ..plain
        },
        Target {
            name: "part_pieces",
            run: telesto_shard::fuzz::part_pieces,
            seeds: || of(telesto_shard::fuzz::seeds(), "part_pieces"),
            ..plain
        },
        Target {
            name: "part_object",
            run: part_object,
            seeds: || vec![PART.0.to_vec()],
            memory_bytes: 4 << 20,
            runs: 1_500,
            ..plain
        },
        Target { name: "key", run: key, seeds: keys, ..plain },
        Target {
            name: "catalog",
            run: telesto_sql::fuzz::catalog,
            seeds: || vec![[&[1][..], CATALOG.as_bytes()].concat(), vec![1; 21]],
            words: &[
                "null",
                "[]",
                "{}",
                "\"Int4\"",
                "{\"Numeric\":",
                "\"Schema\"",
                "18446744073709551616",
            ],
            runs: 4_000,
            ..plain
        },
    ]
}

const CATALOG: &str = r#"{"Schema":{"oid":2200,"name":"public","owner":"telesto"}}"#;

fn of(seeds: Vec<(&'static str, Vec<u8>)>, name: &str) -> Vec<Vec<u8>> {
    seeds.into_iter().filter(|(of, _)| *of == name).map(|(_, bytes)| bytes).collect()
}

/// A part object and how a log entry names it.
static PART: LazyLock<(Bytes, Part)> = LazyLock::new(|| {
    let mut writer = PartWriter::new(8 << 20, WriterToken(1));
    for i in 0..300_u32 {
        let value = (i % 5 != 0).then(|| Bytes::from(format!("value {i} ").repeat(4)));
        let write = Write { key: Bytes::from(format!("key-{i:05}")), value, fresh: i % 2 == 0 };
        assert!(writer.push(&write).expect("fits").is_none(), "one part");
    }
    let part = writer.finish().expect("fits").expect("not empty");
    (part.body.clone(), part.named("part".to_owned()))
});

struct Store {
    runtime: Runtime,
    env: Env,
    bucket: Arc<OpenBucket>,
    cache: Arc<ProcessCache>,
}

static STORE: LazyLock<Store> = LazyLock::new(|| {
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().build().expect("runtime");
    let guard = runtime.enter();
    let env = telesto_runtime::env();
    drop(guard);
    let store = Arc::new(MemoryStore::new(Arc::clone(&env.clock)));
    let options = BucketOptions::default();
    let bucket = over(store, "memory://fuzz", &options, env.clone()).expect("opens");
    Store { runtime, env, bucket, cache: Arc::new(ProcessCache::new(1 << 20)) }
});

/// An object where a log entry names a part: damage is told, never served.
fn part_object(bytes: &[u8]) {
    let store = &*STORE;
    store.runtime.block_on(async {
        for body in [Bytes::copy_from_slice(bytes), telesto_shard::fuzz::sealed_part(bytes).into()]
        {
            let name = format!("part-{:032x}", store.env.random_u128());
            let put = store.bucket.put_if_absent(Cause::Commit, &name, body.clone()).await;
            put.expect("a memory store takes it");
            let original = body == PART.0;
            let part =
                Part { object: name.clone(), size_bytes: body.len() as u64, ..PART.1.clone() };
            let bucket = Arc::clone(&store.bucket) as _;
            let reader = Arc::new(PartReader::new(bucket, Arc::clone(&store.cache), part));
            let got = reader.get(Cause::Read, b"key-00123").await;
            if original {
                assert!(got.is_ok_and(|write| write.is_some()), "an undamaged part");
            }
            for reverse in [false, true] {
                let mut scan = Arc::clone(&reader).scan(Cause::Read, KeyRange::default(), reverse);
                let mut bytes = 0;
                while let Ok(Some(write)) = scan.next().await {
                    bytes += write.key.len() + write.value.map_or(0, |value| value.len()) + 9;
                    // An index may name one block more than once, each for the price of an index
                    // entry.
                    assert!(
                        bytes <= body.len() * (1 + body.len() / 16),
                        "more came out than went in"
                    );
                }
            }
            store.bucket.delete(Cause::Gc, &name).await.expect("a memory store deletes it");
        }
    });
}

/// Elements of a key, as the first bytes say; what is read is written to the same bytes.
fn key(bytes: &[u8]) {
    let Some((plan, stored)) = bytes.split_first_chunk::<4>() else { return };
    let mut reader = KeyReader::new(stored);
    let mut again = KeyWriter::new();
    for kind in plan {
        let direction = if kind & 0x80 == 0 { Direction::Ascending } else { Direction::Descending };
        match reader.take_null(direction) {
            Ok(true) => {
                again.null(direction);
                continue;
            }
            Ok(false) => {}
            Err(_) => break,
        }
        let read = match kind & 0x7F {
            0 => reader.bool(direction).map(|v| again.bool(v, direction)),
            1 => reader.u64(direction).map(|v| again.u64(v, direction)),
            2 => reader.i16(direction).map(|v| again.i16(v, direction)),
            3 => reader.i32(direction).map(|v| again.i32(v, direction)),
            4 => reader.i64(direction).map(|v| again.i64(v, direction)),
            // NaN and zero are written in one form whatever form they came in.
            5 => match reader.f32(direction) {
                Ok(v) if v.is_nan() || v == 0.0 => return,
                read => read.map(|v| again.f32(v, direction)),
            },
            6 => match reader.f64(direction) {
                Ok(v) if v.is_nan() || v == 0.0 => return,
                read => read.map(|v| again.f64(v, direction)),
            },
            7 => reader.raw16(direction).map(|v| again.raw16(v, direction)),
            8 => reader.bytes(direction).map(|v| again.bytes(&v, direction)),
            _ => reader.text(direction).map(|v| again.text(&v, direction)),
        };
        if read.is_err() {
            break;
        }
        let taken = stored.len() - reader.rest().len();
        assert_eq!(again.as_slice(), &stored[..taken], "one form only");
    }
    let _ = KeyReader::new(stored).prefix();
}

fn keys() -> Vec<Vec<u8>> {
    let mut out = Vec::new();
    for direction in [Direction::Ascending, Direction::Descending] {
        let flag = if direction == Direction::Ascending { 0 } else { 0x80 };
        let mut key = KeyWriter::new();
        key.text("a\0b", direction).i64(-5, direction).f64(-0.0, direction).null(direction);
        out.push([&[9 | flag, 4 | flag, 6 | flag, 1 | flag][..], key.as_slice()].concat());
        let mut key = KeyWriter::new();
        key.bytes(b"\0\xff", direction)
            .bool(true, direction)
            .raw16([7; 16], direction)
            .i16(3, direction);
        out.push([&[8 | flag, flag, 7 | flag, 2 | flag][..], key.as_slice()].concat());
    }
    out
}
