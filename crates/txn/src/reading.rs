//! Statements that read what this region does not have: another region executes them, and sends
//! what they give.
//!
//! ```text
//! session ─ AwayRead ─► RegionControl::read_at ═══ the layer of regions ═══► Reader::read, when everything that the session has seen is there
//!         ◄─ Pieces ◄───────────────────────────── piece by piece ◄───────── Served
//! ```
//! # Invariants
//! - What is asked and told is bytes to everybody between the two sessions.
//! - A piece is asked for when the one before was taken: who reads slowly holds up the statement,
//!   and nothing else.
//!
//! # On failure
//! [`crate::Error::Elsewhere`]: the other region could not be reached any more, or does not execute
//! it. Nothing was changed in any case.
//!
//! # Limits
//! What is dropped is stopped; where it runs, that takes until it hears of it.

use std::fmt::{self, Debug};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use telesto_common::{Label, RegionId, Timestamp};

use crate::error::Result;

/// What another region is to execute.
#[derive(Clone, Debug)]
pub struct AwayRead {
    /// Everything of this region up to here is to be there before.
    pub seen: Timestamp,
    /// What the layer above has made for its counterpart.
    pub statement: Bytes,
}

/// A part of what a statement gives.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Piece {
    /// As the layer above has made it.
    pub bytes: Bytes,
    /// Nothing comes behind it.
    pub last: bool,
}

/// What a statement gives, in order.
#[async_trait]
pub trait Pieces: Send {
    /// The next one. Not to be called behind the last.
    async fn next(&mut self) -> Result<Piece>;
}

/// A statement that is executed for another region. It ends when it is dropped.
pub struct Served {
    /// What it gives.
    pub pieces: Box<dyn Pieces>,
    /// Has it stop where it computes, so that it can be dropped.
    pub stop: Box<dyn Fn() + Send + Sync>,
}

impl Debug for Served {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Served")
    }
}

/// Executes statements for other regions.
pub trait Reader: Debug + Send + Sync {
    /// Begins with `statement`, which sees everything up to `seen` at least.
    fn read(&self, statement: Bytes, seen: Label) -> Served;
}

/// How far another region is away.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Distance {
    /// Which.
    pub region: RegionId,
    /// There and back, as it was measured; `None`: not yet.
    pub round_trip: Option<Duration>,
    /// Whether this region's stream to it runs.
    pub connected: bool,
}

impl Distance {
    /// What decides who is asked first: those that are connected, then by distance.
    #[must_use]
    pub fn rank(&self) -> (bool, Duration, RegionId) {
        (!self.connected, self.round_trip.unwrap_or(Duration::MAX), self.region)
    }
}
