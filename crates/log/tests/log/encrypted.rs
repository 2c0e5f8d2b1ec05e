//! The local log of an encrypted database: nothing to read on the disk, and every exchange noticed.

use std::sync::Arc;

use telesto_cipher::{Epoch, Keys, Ring};
use telesto_common::Env;
use telesto_log::disk::SimDisk;
use telesto_log::{DiskFault, Error};

use super::support::*;

const MARKER: &str = "the-marker-of-this-test";

fn keys(env: &Env, seeds: &[u8]) -> Arc<Keys> {
    let epochs = seeds.iter().zip(1..).map(|(seed, n)| (n, Epoch::new(&[*seed; 32])));
    let ring = Ring { version: seeds.len() as u64, epochs: epochs.collect() };
    Arc::new(Keys::new(ring, Arc::clone(&env.random)))
}

fn segments(disk: &SimDisk) -> Vec<String> {
    disk.paths().into_iter().filter(|path| path.ends_with(".log")).collect()
}

fn holds_marker(disk: &SimDisk) -> bool {
    segments(disk).iter().any(|path| {
        let bytes = disk.contents(path).expect("there");
        bytes.windows(MARKER.len()).any(|part| part == MARKER.as_bytes())
    })
}

/// The files of `from` on `to`.
fn moved(from: &SimDisk, to: &Arc<SimDisk>) {
    to.restore(&from.image());
}

async fn filled(disk: &Arc<SimDisk>, objects: &Arc<Objects>, env: &Env) {
    let bucket = MemBucket::new(objects);
    let mut options = quorum_options(1, 1, disk);
    options.segment_bytes = 1024;
    let mut process = create(&bucket, env, options).await;
    for n in 0..12 {
        process.say(&format!("{MARKER} {n}")).await.expect("said");
    }
}

async fn reopened(
    disk: &Arc<SimDisk>,
    objects: &Arc<Objects>,
    env: &Env,
) -> telesto_log::Result<Vec<String>> {
    let mut options = quorum_options(1, 2, disk);
    options.segment_bytes = 1024;
    let mut process = open(&MemBucket::new(objects), env, options).await?;
    process.catch_up().await?;
    Ok(process.said())
}

#[tokio::test]
async fn entries_read_back_after_a_restart_and_stand_in_no_file() {
    let env = telesto_runtime::env();
    for encrypted in [true, false] {
        let disk = if encrypted { SimDisk::encrypted(keys(&env, &[1])) } else { SimDisk::new() };
        let objects = Arc::new(Objects::default());
        filled(&disk, &objects, &env).await;
        assert!(segments(&disk).len() > 2);
        assert_eq!(holds_marker(&disk), !encrypted);
        assert_eq!(reopened(&disk, &objects, &env).await.expect("opens").len(), 12);
        // With a newer epoch in the ring the older segments are read all the same.
        if encrypted {
            let rotated = SimDisk::encrypted(keys(&env, &[1, 2]));
            moved(&disk, &rotated);
            assert_eq!(reopened(&rotated, &objects, &env).await.expect("opens").len(), 12);
        }
    }
}

#[tokio::test]
async fn segments_without_key_of_another_key_in_clear_or_exchanged_are_refused() {
    let env = telesto_runtime::env();
    let (disk, objects) = (SimDisk::encrypted(keys(&env, &[1])), Arc::new(Objects::default()));
    filled(&disk, &objects, &env).await;

    let keyless = SimDisk::new();
    moved(&disk, &keyless);
    let error = reopened(&keyless, &objects, &env).await.expect_err("no key");
    assert!(matches!(error, Error::LocalDisk { fault: DiskFault::Key, .. }), "{error}");
    assert!(error.to_string().contains("--encryption-key-file"), "{error}");

    let other = SimDisk::encrypted(keys(&env, &[9]));
    moved(&disk, &other);
    let error = reopened(&other, &objects, &env).await.expect_err("another key");
    assert!(matches!(error, Error::Corrupt { .. }), "{error}");

    let (clear, theirs) = (SimDisk::new(), Arc::new(Objects::default()));
    filled(&clear, &theirs, &env).await;
    let exchanged = SimDisk::encrypted(keys(&env, &[1]));
    moved(&clear, &exchanged);
    let error = reopened(&exchanged, &theirs, &env).await.expect_err("in clear");
    assert!(error.to_string().contains("not encrypted"), "{error}");

    // The header's salt is of another segment: checksums are right, the key is not.
    let paths = segments(&disk);
    let (first, second) =
        (disk.contents(&paths[0]).expect("there"), disk.contents(&paths[1]).expect("there"));
    let mut spliced = second;
    let (batches, theirs) = (&mut spliced[512..1024], &first[512..1024]);
    batches.copy_from_slice(theirs);
    let broken = SimDisk::encrypted(keys(&env, &[1]));
    moved(&disk, &broken);
    broken.overwrite(&paths[1], spliced);
    let error = reopened(&broken, &objects, &env).await.expect_err("a batch of another segment");
    assert!(matches!(error, Error::Corrupt { .. }), "{error}");
}
