//! Object-store access: conditional put, retry, hedged get, metering in dollars, faults.

mod api;
mod error;

pub use api::{Bucket, Cause, ListedObject, Object, PutOutcome};
pub use error::{Error, Result};
