//! Runs a target on inputs and watches its memory.
//!
//! # Invariants
//! - One input at a time in the whole process: the allocator's counters are the process's.
//! - What is counted is every byte asked for while the input runs, given back or not.
//!
//! # On failure
//! Panics with the input.

use std::alloc::System;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::{Mutex, PoisonError};

use rand::rngs::SmallRng;
use rand::{Rng as _, SeedableRng as _};
use stats_alloc::{INSTRUMENTED_SYSTEM, Region, StatsAlloc};

use crate::Target;
use crate::corpus;
use crate::mutate::mutate;

#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

/// Inputs found worth keeping during a run, at most.
const POOL: usize = 512;

/// Runs `target` on one input and checks the memory it took.
///
/// # Panics
/// On a finding.
pub fn run_one(target: &Target, input: &[u8]) {
    let region = Region::new(ALLOCATOR);
    (target.run)(input);
    let taken = region.change();
    let limit = target.memory_bytes + 100 * input.len();
    let asked = taken.bytes_allocated + usize::try_from(taken.bytes_reallocated).unwrap_or(0);
    assert!(asked <= limit, "took {asked} bytes for an input of {}, at most {limit}", input.len());
}

/// Runs the kept inputs, the seeds, and `runs` changed ones. Returns how many were run.
///
/// # Panics
/// On a finding, after showing the input.
pub fn drive(target: &Target, seed: u64, runs: u32) -> usize {
    let _alone = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let mut pool = corpus::read(target.name);
    pool.extend((target.seeds)());
    pool.push(Vec::new());
    // What is made once, on first use, is not the input's memory.
    let _ = catch_unwind(AssertUnwindSafe(|| (target.run)(&[])));
    let trace = std::env::var_os("TELESTO_FUZZ_TRACE");
    let run = |input: &[u8]| {
        if let Some(file) = &trace {
            let line = format!("{}: {}\n", target.name, corpus::encode(input));
            std::fs::write(file, line).expect("the file of TELESTO_FUZZ_TRACE can be written");
        }
        if let Err(panic) = catch_unwind(AssertUnwindSafe(|| run_one(target, input))) {
            eprintln!(
                "{} failed on {}\nas text: {:?}\nwhen fixed, add the hexadecimal line to {}",
                target.name,
                corpus::encode(input),
                String::from_utf8_lossy(input),
                corpus::file(target.name).display()
            );
            resume_unwind(panic);
        }
    };
    for input in &pool {
        run(input);
    }
    let kept = pool.len();
    let mut rng = SmallRng::seed_from_u64(seed);
    for _ in 0..runs {
        let from = rng.random_range(0..pool.len());
        let input = mutate(&mut rng, &pool[from], &pool, target.words);
        run(&input);
        // Without coverage any input is as good as another: a few make the next ones differ more.
        if pool.len() < POOL && rng.random_range(0..16) == 0 {
            pool.push(input);
        }
    }
    kept + runs as usize
}
