//! Rows of `telesto_storage`: what the bucket holds, and what keeping it costs a month.
//!
//! # Invariants
//! Asked of the bucket anew for each use: a LIST for each thousand objects, which the statement
//! pays.
//!
//! # On failure
//! The bucket's errors.
//!
//! # Limits
//! At most [`PAGES`] thousand objects; a bucket with more is refused rather than shown in part.
//! Objects of nodes and regions that share the bucket's prefix are all in it: storage is the
//! bucket's, not a process's.

use std::collections::BTreeMap;

use telesto_bucket::{Bucket, Cause};
use telesto_meter::Dollars;
use telesto_sql_expr::Settings;
use telesto_sql_plan::SessionView;
use telesto_sql_types::error::{Error, Result, SqlState};

use super::costs::{count, dollars, sheet};
use super::rows::RowSet;

/// Objects asked for at a time.
const PAGE: usize = 1000;
/// Pages at most.
const PAGES: usize = 10_000;

/// Fills the table.
pub(super) async fn fill(
    out: &mut RowSet<'_>,
    settings: &Settings,
    live: &SessionView,
) -> Result<()> {
    let Some(accounts) = &live.accounts else { return Ok(()) };
    let Some(bucket) = accounts.bucket() else { return Ok(()) };
    let sheet = sheet(accounts, settings)?;
    for (kind, (objects, bytes)) in by_kind(&**bucket).await? {
        let gigabytes = bytes as f64 / (1_u64 << 30) as f64;
        let cost = Dollars::from_f64(gigabytes * sheet.storage_per_gb_month);
        out.row()
            .set("kind", &kind)
            .set("objects", count(objects))
            .set("bytes", count(bytes))
            .set("dollars_per_month", dollars(cost));
    }
    Ok(())
}

/// Objects and bytes of each kind: what stands behind the shard in a key, else its first part.
async fn by_kind(bucket: &dyn Bucket) -> Result<BTreeMap<String, (u64, u64)>> {
    let failed = |error: telesto_bucket::Error| {
        Error::new(SqlState::IO_ERROR, format!("the bucket could not be listed: {error}"))
            .hint("Try again when the bucket answers.")
    };
    let mut kinds: BTreeMap<String, (u64, u64)> = BTreeMap::new();
    let mut after: Option<String> = None;
    for _ in 0..PAGES {
        let page =
            bucket.list_after(Cause::Admin, "", after.as_deref(), PAGE).await.map_err(failed)?;
        for object in &page {
            let mut parts = object.key.split('/');
            let first = parts.next().unwrap_or_default();
            let kind = if first == "shards" { parts.nth(1).unwrap_or(first) } else { first };
            let (objects, bytes) = kinds.entry(kind.to_owned()).or_default();
            *objects += 1;
            *bytes += object.size_bytes;
        }
        match page.last() {
            Some(last) if page.len() == PAGE => after = Some(last.key.clone()),
            _ => return Ok(kinds),
        }
    }
    Err(Error::new(
        SqlState::PROGRAM_LIMIT_EXCEEDED,
        format!("the bucket holds more than {} objects", PAGE * PAGES),
    )
    .hint("Ask the store's own inventory."))
}
