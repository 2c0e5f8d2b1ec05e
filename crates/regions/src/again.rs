//! Asks for what a region's own link does not bring from those who have had it.
//!
//! ```text
//! j ──✗──► k      k waits for the past of what i has sent: transactions of j, which i has had
//! └─► i ──► k     k asks i for them, numbered as in j's stream
//! ```
//! # Invariants
//! - Only transactions of which the other region got the very same part are asked for and taken,
//!   each in its place in the stream.
//!
//! # On failure
//! Asked again a moment later; in the end the region's own stream brings them.
//!
//! # Limits
//! What the other region does not have in memory any more, or got another part of, is waited for;
//! so is what may stand behind a definition that the region's own link has not brought, and all of
//! the region that makes definitions.

use std::sync::Arc;
use std::time::Duration;

use crate::error::{Error, Result};
use crate::inbox::Missing;
use crate::lines::Lines;
use crate::past::Past;
use crate::question::Question;
use crate::shared::Shared;
use crate::wire::Batch;

/// How long a transaction has waited for its past before others are asked for it: longer than links
/// usually differ.
const PATIENCE: Duration = Duration::from_millis(200);

/// Looks now and then whether something is missing.
pub(crate) async fn run(shared: Arc<Shared>) {
    loop {
        shared.env.clock.sleep(shared.config.beat).await;
        let patience = u64::try_from(PATIENCE.as_micros()).unwrap_or(u64::MAX);
        let since = shared.env.clock.wall_micros().saturating_sub(patience);
        let missing = shared.inbox.lock().missing(since);
        for one in missing {
            match ask(&shared, one).await {
                Ok(0) => {}
                Ok(taken) => {
                    metrics::counter!("telesto_regions_served_again_total").increment(taken as u64);
                    shared.news.notify_one();
                }
                Err(error) => {
                    tracing::debug!(via = %one.via, of = %one.of, %error, "what is missing was not got");
                }
            }
        }
    }
}

async fn ask(shared: &Shared, missing: Missing) -> Result<usize> {
    let Missing { via, of, above } = missing;
    let room = shared.config.inbox_bytes / shared.peers.len().max(1);
    if shared.inbox.lock().queued_bytes(of) > room {
        return Ok(0);
    }
    let answer = shared.question(via, &Question::Again { of, above }).await?;
    let lines = Lines { from: of, to: shared.config.me };
    let batch = Batch::unpack(Default::default(), &answer, lines, &Past::default());
    let batch = batch.map_err(Error::malformed("transactions of another region"))?;
    let now = shared.env.clock.wall_micros();
    Ok(shared.inbox.lock().take_again(of, batch.elements, now))
}
