//! The latencies between sites, as the solver and the study use them.
//!
//! # Invariants
//! Square; zero on the diagonal; microseconds, one way.
//!
//! # On failure
//! A matrix that is not square is refused.
//!
//! # Limits
//! Averages: jitter belongs to whoever simulates.

use telesto_common::RegionId;

use crate::error::{Error, Result};

/// One-way latencies between sites, microseconds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Latencies {
    micros: Vec<Vec<u64>>,
}

impl Latencies {
    /// From rows; row i, column j is the way from i to j.
    ///
    /// # Errors
    /// [`Error::Unsolvable`] when it is empty, not square, or too large.
    pub fn new(mut micros: Vec<Vec<u64>>) -> Result<Self> {
        let sites = micros.len();
        if sites == 0 || sites > crate::RegionSet::LIMIT {
            return Err(Error::Unsolvable { reason: "it needs 1 to 64 sites" });
        }
        if micros.iter().any(|row| row.len() != sites) {
            return Err(Error::Unsolvable { reason: "the latency matrix is not square" });
        }
        for (site, row) in micros.iter_mut().enumerate() {
            row[site] = 0;
        }
        Ok(Self { micros })
    }

    /// Symmetric, from the rows above the diagonal, milliseconds.
    ///
    /// # Errors
    /// [`Error::Unsolvable`] when the rows do not shrink by one each.
    pub fn from_upper_millis(upper: &[&[u64]]) -> Result<Self> {
        let sites = upper.len() + 1;
        let mut micros = vec![vec![0; sites]; sites];
        for (i, row) in upper.iter().enumerate() {
            if row.len() != sites - 1 - i {
                return Err(Error::Unsolvable {
                    reason: "a row above the diagonal has a wrong length",
                });
            }
            for (offset, millis) in row.iter().enumerate() {
                let j = i + 1 + offset;
                micros[i][j] = millis * 1000;
                micros[j][i] = millis * 1000;
            }
        }
        Self::new(micros)
    }

    /// The seven sites of Saturn's evaluation (Table 1), half round trips: N. Virginia, N.
    /// California, Oregon, Ireland, Frankfurt, Tokyo, Sydney.
    #[must_use]
    pub fn saturn() -> Self {
        const UPPER: [&[u64]; 6] = [
            &[37, 49, 41, 45, 73, 115],
            &[10, 74, 84, 52, 79],
            &[69, 79, 45, 81],
            &[10, 107, 154],
            &[118, 161],
            &[52],
        ];
        let mut micros = vec![vec![0; 7]; 7];
        for (i, row) in UPPER.iter().enumerate() {
            for (offset, millis) in row.iter().enumerate() {
                micros[i][i + 1 + offset] = millis * 1000;
                micros[i + 1 + offset][i] = millis * 1000;
            }
        }
        Self { micros }
    }

    /// The number of sites.
    #[must_use]
    pub fn sites(&self) -> usize {
        self.micros.len()
    }

    /// One way from `from` to `to`, microseconds.
    #[must_use]
    pub fn get(&self, from: RegionId, to: RegionId) -> u64 {
        self.micros[usize::from(from.0)][usize::from(to.0)]
    }

    /// Sets the way from `from` to `to`.
    pub fn set(&mut self, from: RegionId, to: RegionId, micros: u64) {
        self.micros[usize::from(from.0)][usize::from(to.0)] = micros;
    }

    /// Only these sites, in this order.
    #[must_use]
    pub fn select(&self, sites: &[RegionId]) -> Self {
        let row = |from: &RegionId| sites.iter().map(|to| self.get(*from, *to)).collect();
        Self { micros: sites.iter().map(row).collect() }
    }
}
