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
    let ring = Ring { version: seeds.len() as u64, epochs: epochs.collect(), turning: false };
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

fn turning(env: &Env, turning: bool) -> Arc<Keys> {
    let epochs = [(1, Epoch::new(&[1; 32]))].into_iter().collect();
    Arc::new(Keys::new(Ring { version: 1, epochs, turning }, Arc::clone(&env.random)))
}

#[tokio::test]
async fn log_in_clear_is_encrypted_at_the_first_start_and_a_crash_at_any_write_loses_nothing() {
    let env = telesto_runtime::env();
    let (clear, objects) = (SimDisk::new(), Arc::new(Objects::default()));
    filled(&clear, &objects, &env).await;
    let mut finished = 0;
    for appends in 0..40 {
        // Each start goes on with the bucket as it was.
        let theirs = Arc::new(objects.copy());
        let disk = SimDisk::encrypted(turning(&env, true));
        moved(&clear, &disk);
        disk.fail_after(appends);
        if let Ok(said) = reopened(&disk, &theirs, &env).await {
            assert_eq!(said.len(), 12);
            finished += 1;
        }
        disk.crash(&Seeded::new(appends));
        let said = reopened(&disk, &theirs, &env).await.expect("opens");
        assert_eq!(said.len(), 12, "after a crash at write {appends}");
        assert!(!holds_marker(&disk), "after a crash at write {appends}");
        assert!(disk.paths().iter().all(|path| !path.ends_with(".new")), "{:?}", disk.paths());
        // From now on nothing in clear is taken.
        let settled = SimDisk::encrypted(turning(&env, false));
        moved(&disk, &settled);
        assert_eq!(reopened(&settled, &theirs, &env).await.expect("opens").len(), 12);
    }
    assert!(finished > 5, "most of the forty fail: {finished} did not");
    // A node that was not started meanwhile is told what to do.
    let late = SimDisk::encrypted(turning(&env, false));
    moved(&clear, &late);
    let error = reopened(&late, &objects, &env).await.expect_err("in clear");
    assert!(error.to_string().contains("keys encrypt --again"), "{error}");
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
