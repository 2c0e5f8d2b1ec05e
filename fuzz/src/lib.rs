//! Fuzz targets for everything that comes over the wire or out of a bucket or file.
//!
//! # Purpose
//! A [`Target`] takes any bytes and panics when the code under it is wrong: it panicked itself, did
//! not give back what it wrote, or took far more memory than its input warrants. [`mod@drive`]
//! changes the corpus at random from a seed: a bounded number of times on every `make test`
//! (`tests/targets.rs`), with seed after seed in `make fuzz SECONDS=60`.
//!
//! # Invariants
//! - A run is repeatable: the same corpus, seed and number of runs give the same inputs.
//! - Every input that ever failed stays in `fuzz/corpus/TARGET.hex` and is run each time.
//!
//! # On failure
//! The input is shown in hexadecimal and as text; add that line to the target's corpus with the
//! fix.
//!
//! # Limits
//! A stack overflow or an abort ends the process before the input can be shown:
//! `TELESTO_FUZZ_TRACE=FILE` writes each input there before it is run.

pub mod corpus;
pub mod drive;
pub mod mutate;
mod sql;
mod stored;
mod values;
mod wire;

/// One thing to be fuzzed.
#[derive(Clone, Copy, Debug)]
pub struct Target {
    /// Its name, that of its corpus file too.
    pub name: &'static str,
    /// Runs it on an input; panics on a finding.
    pub run: fn(&[u8]),
    /// Inputs that reach deep into it.
    pub seeds: fn() -> Vec<Vec<u8>>,
    /// Pieces worth inserting.
    pub words: &'static [&'static str],
    /// Memory an input may take beside a hundred times its length, bytes.
    pub memory_bytes: usize,
    /// Inputs a test runs.
    pub runs: u32,
}

/// All targets.
#[must_use]
pub fn targets() -> Vec<Target> {
    [wire::targets(), stored::targets(), values::targets(), sql::targets()].concat()
}

/// The target called `name`.
#[must_use]
pub fn target(name: &str) -> Option<Target> {
    targets().into_iter().find(|target| target.name == name)
}
