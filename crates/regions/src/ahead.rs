//! Rows that came here before the definitions that place them here.
//!
//! ```text
//! definitions 7: region 2 gets b ──► region 1 ─ rows of b, by definitions 7 ─► region 2 (knows definitions 6: b is not to be here)
//!                                ──────────────── definitions 7 ────────────────────────────► region 2
//! ```
//! # Invariants
//! - A row remembers the number of the newest definitions by which rows were sent here. It is
//!   committed with them, also when all of them are here already.
//! - While the definitions here are older, nothing is removed because it is placed elsewhere.
//!   Whoever removes writes the row too, so that neither of the two can decide beside the other.
//!
//! # On failure
//! A number that cannot be read is an error, and nothing is removed.

use bytes::Bytes;
use telesto_common::Timestamp;
use telesto_shard::Read;
use telesto_txn::service::CheckedWrite;

use crate::error::{Error, Result};
use crate::rows;
use crate::store::{Store, checked};

/// The number of the newest definitions by which rows were sent here, at a snapshot; 0: none were.
pub(crate) async fn number(store: &Store, at: Timestamp) -> Result<u64> {
    let row = store.get(vec![rows::ahead()], at).await?.pop().and_then(Read::into_value);
    let Some(row) = row else { return Ok(0) };
    let number = <[u8; 8]>::try_from(&row[..]).map_err(|_| {
        Error::malformed("the number of definitions")(format!("{} bytes, not 8", row.len()))
    })?;
    Ok(u64::from_le_bytes(number))
}

/// The write that says it is `number`, valid if nobody has changed it after `since`.
pub(crate) fn is(number: u64, since: Timestamp) -> CheckedWrite {
    checked(rows::ahead(), Some(Bytes::copy_from_slice(&number.to_le_bytes())), since)
}
