//! Checkers and the simulated world shared by tests and the simulation.
//!
//! # Purpose
//! - [`world`]: time, randomness, tasks and processes that can be frozen, crashed and skewed, all
//!   from one seed.
//! - [`list_append`]: serializability and strict serializability by dependency cycles (Adya 1999;
//!   Kingsbury and Alvaro, "Elle", VLDB 2020).
//! - [`register`]: linearizability of registers (Wing and Gong 1993; Lowe 2017).
//! - [`session`]: the four session guarantees (Terry et al. 1994).
//! - [`causal`]: causal consistency of sessions that move (Bouajjani et al. 2017).
//! - [`bank`]: a conserved total.
//!
//! # Invariants
//! A checker never reports a violation of a history that some correct execution could have
//! produced: operations with unknown outcome may or may not have happened.
//!
//! # On failure
//! Checkers return what they found as data; they do not panic on histories.
//!
//! # Limits
//! Each checker's page says what it does not see.

pub mod bank;
pub mod causal;
mod cycles;
pub mod list_append;
pub mod register;
pub mod session;
pub mod world;

pub use world::{Process, World};
