//! What work costs and who pays for it.
//!
//! # Purpose
//! The price of everything as plain data: quantities ([`Charge`]), prices ([`Rates`]), accounts
//! ([`Ledger`]), tables of costs ([`report`]), limits on spending ([`caps`]).
//! `docs/architecture/cost.md` has the whole.
//!
//! # Invariants
//! Nothing is rounded when it is shared: parts add up to the bill in whole units, and so in whole
//! attodollars.
//!
//! # On failure
//! Nothing here fails; whoever is refused by a cap gets a [`caps::Refusal`].
//!
//! # Limits
//! No clock and no I/O: times come as numbers from whoever asks.

pub mod caps;
mod charge;
mod fingerprint;
mod ledger;
mod rates;
pub mod report;
mod tags;

pub use charge::{Charge, REQUEST, Resource};
pub use fingerprint::{fingerprint, normalized};
pub use ledger::{ENTRIES, Entry, Ledger, OTHERS, PRINCIPALS, Principal, Stats};
pub use rates::{Dollars, Rates};
pub use tags::tags;
