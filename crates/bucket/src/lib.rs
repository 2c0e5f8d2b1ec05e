//! Object-store access: conditional put, retry, hedged get, metering in dollars, faults.
//!
//! # Purpose
//! [`open()`] turns a URL into a [`Bucket`], the narrow trait all layers above use. Everything that
//! talks to storage goes through it, the checkpoint engine too ([`Bucket::object_store`]).
//!
//! ```text
//!  Bucket (OpenBucket): retry with jitter, outcome resolution, deadlines
//!     |                    checkpoint engine (its own retries)
//!  Encrypted: what is written and read, when the database is encrypted (`crate::keyring`)
//!     |
//!  Metered: counts, bytes, dollars, latency, time-out of each request, hedged second GET
//!  Latent : latency model   (simulation, tests, bench)
//!  Faulty : fault model     (simulation, tests)
//!  PrefixStore over S3 | GCS | Azure | LocalStore (fsync) | MemoryStore
//! ```
//!
//! # Invariants
//! See [`Bucket`]; `docs/architecture/bucket.md` has the protocol for lost replies.
//!
//! # On failure
//! No call waits longer than `BucketOptions::operation_timeout` plus one request time-out; errors
//! are determinate except [`Error::Indeterminate`].
//!
//! # Limits
//! Whole bodies are held in memory; ask for ranges of large objects.

mod api;
mod aws_kms;
mod clock;
mod encrypted;
mod encrypted_upload;
mod error;
pub mod faults;
mod hedge;
pub mod keyring;
pub mod latency;
mod listing;
mod local;
mod location;
pub mod memory;
pub mod meter;
mod metered;
mod mixed;
mod multipart;
mod open;
mod options;
mod outcome;
pub mod prices;
mod probe;
mod resolve;
mod scope;
pub mod table_keys;
pub mod turning;

pub use api::{Bucket, Cause, ListedObject, Object, PutOutcome};
pub use aws_kms::AwsKms;
pub use clock::StoreClock;
pub use error::{Error, Result};
pub use faults::{Fault, FaultRates, FaultRule, Faults};
pub use latency::{LatencyModel, Spread};
pub use memory::MemoryStore;
pub use meter::{Class, Cost, Meter, MeterSnapshot, ScopeMeter};
pub use open::{OpenBucket, ReachedFrom, open, over, over_unordered, reached_from};
pub use options::{BucketOptions, Hedging};
pub use prices::PriceSheet;
pub use probe::probe_conditional_put;
