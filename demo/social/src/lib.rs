//! The social network of Saturn's evaluation (EuroSys 2017, §7.4).
//!
//! # Purpose
//! [`Graph`] has the users of the New Orleans network with their real placement over seven regions,
//! and friends; [`Operation`] says what users do and how often. [`Sharing`] has the evaluation's
//! synthetic patterns (§7.3.2). The study of the causal planes and the demos of regions draw from
//! here.
//!
//! # Invariants
//! The same seed gives the same graph and the same operations.
//!
//! # On failure
//! A placement that does not parse is refused with its line.
//!
//! # Limits
//! The friends' lists of the real graph are not published: edges are generated, 905,565 of them,
//! with a heavy-tailed degree distribution of the same mean, between users that share a region more
//! often than not.

mod correlation;
mod graph;
mod mix;

pub use correlation::{Correlation, Sharing};
pub use graph::{EDGES, Graph, PLACEMENTS, REGIONS, placement};
pub use mix::{MIX, Operation, Subject};
