//! Early shedding: how long sessions wait for their turn on the threads, and which new work is
//! turned away for it.
//!
//! ```text
//! probe: a task of the sessions' runtime sleeps ─► how much later than asked does it run? ─► share that is turned away (PIE)
//! session, between transactions: a first message of new work ── in the share? ──► 53400, nothing was done
//!                                                              └─ no ──► as ever
//! ```
//! # Invariants
//! - Only what begins something is turned away: a simple query, or the first message of a pipeline,
//!   outside of a transaction block. What is begun goes on to its end, COMMIT and ROLLBACK with it;
//!   cancel requests, HTTP, health and the node's own work are not concerned.
//! - A client that was turned away knows that nothing was done, and the connection stays.
//!
//! # Limits
//! The probe sees the queue of ready tasks. What waits for the log or the bucket waits without a
//! thread, and is bounded by the number of sessions and by deadlines.

use telesto_common::Env;
use telesto_common::admission::{Admission, Gate, PERIOD};
use telesto_sql::{Error, SqlState};
use tokio_util::sync::CancellationToken;

/// Measures, and sets the share of `gate`, until `ends`.
pub fn probe(env: &Env, mut admission: Admission, ends: CancellationToken) {
    let (clock, gate) = (std::sync::Arc::clone(&env.clock), admission.gate());
    let waits = metrics::gauge!("telesto_admission_queue_seconds");
    let share = metrics::gauge!("telesto_admission_shed_share");
    let measuring = async move {
        while !ends.is_cancelled() {
            let before = clock.monotonic();
            clock.sleep(PERIOD).await;
            let now = clock.monotonic();
            let delay = now.saturating_sub(before).saturating_sub(PERIOD);
            admission.observed(now, delay);
            waits.set(delay.as_secs_f64());
            share.set(gate.share());
        }
    };
    env.tasks.spawn_session("admission", Box::pin(measuring));
}

/// The error for work that is turned away; `None`: it is taken.
#[must_use]
pub fn turned_away(env: &Env, gate: &Gate) -> Option<Error> {
    // No draw while nothing is turned away, which is nearly always.
    if gate.share() == 0.0 || !gate.sheds(env.random.next_u64()) {
        return None;
    }
    metrics::counter!("telesto_admission_shed_total").increment(1);
    let text = "the server is overloaded: statements wait too long for their turn";
    let hint = "Nothing was done. Try again after a pause that grows with each try, with fewer clients at once, or on another node.";
    Some(Error::new(SqlState::CONFIGURATION_LIMIT_EXCEEDED, text).hint(hint))
}
