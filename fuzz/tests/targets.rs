//! Every fuzz target on its kept inputs and a bounded number of changed ones; and two planted
//! mistakes that must be found.

use std::panic::{AssertUnwindSafe, catch_unwind};

use telesto_fuzz::drive::drive;
use telesto_fuzz::{Target, target, targets};

/// Another seed finds other things: `TELESTO_FUZZ_SEED=7`. `TELESTO_FUZZ_RUNS=20` runs twenty times
/// as many.
fn setting(name: &str, usual: u64) -> u64 {
    std::env::var(name).map_or(usual, |value| value.parse().expect("a number"))
}

fn hold(name: &str) {
    let target = target(name).expect("a target of that name");
    let runs = target.runs * setting("TELESTO_FUZZ_RUNS", 1) as u32;
    let run = drive(&target, setting("TELESTO_FUZZ_SEED", 1), runs);
    assert!(run > target.runs as usize, "{run} inputs");
}

macro_rules! targets_hold {
    ($($name:ident)*) => {
        $(#[test] fn $name() { hold(stringify!($name)); })*

        #[test]
        fn every_target_is_run() {
            let mut run = [$(stringify!($name)),*].to_vec();
            let mut all: Vec<&str> = targets().iter().map(|target| target.name).collect();
            run.sort_unstable();
            all.sort_unstable();
            assert_eq!(run, all);
        }
    };
}

targets_hold! {
    frontend startup session_token copy_lines copy_binary
    log_entry log_archive log_sectors log_chain shard_rows part_pieces part_object key catalog
    value_text value_binary value_stored value_key numeric
    sql type_name
}

/// A decoder of `count 2 | bytes` as somebody might write it.
fn found(run: fn(&[u8])) -> bool {
    let planted = Target {
        name: "planted",
        run,
        seeds: || vec![vec![0, 3, b'a', b'b', b'c']],
        words: &[],
        memory_bytes: 16 << 10,
        runs: 0,
    };
    catch_unwind(AssertUnwindSafe(|| drive(&planted, 1, 2_000))).is_err()
}

fn counted(bytes: &[u8]) -> Option<(usize, &[u8])> {
    let (count, rest) = bytes.split_first_chunk::<2>()?;
    Some((usize::from(u16::from_be_bytes(*count)), rest))
}

#[test]
fn driver_finds_a_length_that_is_not_checked() {
    let trusting = |bytes: &[u8]| {
        let Some((count, rest)) = counted(bytes) else { return };
        assert!(rest[..count].len() == count);
    };
    let checking = |bytes: &[u8]| {
        let Some((count, rest)) = counted(bytes) else { return };
        assert!(rest.get(..count).is_none_or(|taken| taken.len() == count));
    };
    assert!(found(trusting));
    assert!(!found(checking));
}

#[test]
fn driver_finds_memory_taken_on_trust() {
    let trusting = |bytes: &[u8]| {
        let Some((count, _)) = counted(bytes) else { return };
        drop(std::hint::black_box(Vec::<u8>::with_capacity(count)));
    };
    assert!(found(trusting));
}
