//! What has to be kept for people: what was lost with a region, and what was taken back. Objects in
//! the region's bucket.
//!
//! # Invariants
//! - A report is an object under `regions/reports/`, named by its time; none is ever replaced.
//!
//! # On failure
//! A report that cannot be stored is in the node's output.
//!
//! # Limits
//! They are few and small, and stay.

use std::sync::Arc;

use bytes::Bytes;
use telesto_bucket::{Bucket, Cause};

use crate::error::Result;
use crate::shared::Shared;

const PREFIX: &str = "regions/reports";
const LIST: usize = 1000;

/// What happened, for people.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    /// When, in microseconds since 1970.
    pub at_micros: u64,
    /// What.
    pub text: String,
}

/// Keeps a report.
pub(crate) async fn report(shared: &Shared, kind: &'static str, text: &str) {
    tracing::warn!(kind, "{text}");
    let key = format!("{PREFIX}/{:020}", shared.env.clock.wall_micros());
    let put = shared.parts.bucket.put_if_absent(Cause::Admin, &key, Bytes::from(text.to_owned()));
    if let Err(error) = put.await {
        tracing::warn!(%error, "this report was not kept in the bucket");
    }
}

/// The reports in a region's bucket, oldest first.
///
/// # Errors
/// The bucket's.
pub async fn reports(bucket: &Arc<dyn Bucket>) -> Result<Vec<Report>> {
    let mut reports = Vec::new();
    let mut after: Option<String> = None;
    loop {
        let listed = bucket.list_after(Cause::Admin, PREFIX, after.as_deref(), LIST).await?;
        let Some(last) = listed.last() else { return Ok(reports) };
        after = Some(last.key.clone());
        for object in listed {
            let at = object.key.rsplit('/').next().and_then(|number| number.parse().ok());
            let Some(found) = bucket.get(Cause::Admin, &object.key, None).await? else { continue };
            let text = String::from_utf8_lossy(&found.body).into_owned();
            reports.push(Report { at_micros: at.unwrap_or_default(), text });
        }
    }
}
