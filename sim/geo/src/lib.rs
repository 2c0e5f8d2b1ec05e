//! Regions in a simulated world, from one seed.
//!
//! # Purpose
//! [`World`] runs regions and serializers of `telesto-geo` over links with latencies, cuts and
//! resumptions; the study uses it too. [`run()`] plays one seed: clients that read, write and move,
//! misfortunes, changes of trees and planes, then the checkers.
//!
//! # Invariants
//! - The same seed gives the same bytes: every message with its time enters a hash.
//! - Regions and serializers are the real code; links resume by the real `LinkSender` and
//!   `LinkReceiver`.
//!
//! # On failure
//! A violation is data in the [`Report`], with the seed that replays it.
//!
//! # Limits
//! Regions do not crash: what a region forgets is the business of incarnations, which are not
//! built. Serializers are lost whole trees at a time.

mod clients;
mod misfortune;
mod run;
mod world;

pub use run::{Options, Report, run};
pub use world::{Happening, Traffic, World, WorldConfig};
