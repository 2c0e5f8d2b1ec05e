//! What a process notices of its own work, for whoever operates it: what sessions wait for, which
//! statements run unlike they use to, which indexes are missing.
//!
//! ```text
//! every second  ── sessions that do something ──> Samples    ──> telesto_activity_samples
//! every minute  ── accounts, the newest stretch ─> Anomalies  ──> telesto_anomalies
//! a scan that read a whole table for a condition ─> Unindexed ──> telesto_index_advice
//! ```
//! # Invariants
//! - Noticing decides nothing: no plan, no result and no order depends on it.
//! - Memory is bounded, whatever runs: see each part.
//!
//! # On failure
//! Nothing fails.
//!
//! # Limits
//! This process only, since its start. Nobody looks in a process without a server.

pub mod anomalies;
pub mod samples;
pub mod unindexed;

use std::time::Duration;

use parking_lot::Mutex;

use crate::accounts::Accounts;
use crate::cancel::Backends;
use crate::measurements::Measured;

pub use anomalies::{Anomalies, Anomaly, Measure};
pub use samples::{Sample, Samples};
pub use unindexed::{Asked, Noted, Unindexed};

/// How often somebody should look ([`Watch::look`]).
pub const LOOK: Duration = Duration::from_secs(1);

/// See the module's text.
#[derive(Debug, Default)]
pub struct Watch {
    /// What sessions did, second by second.
    pub samples: Samples,
    /// What was unlike it used to be.
    pub anomalies: Anomalies,
    /// What was read whole for want of an index.
    pub unindexed: Unindexed,
    /// When the anomalies were last looked for.
    compared: Mutex<Option<u64>>,
}

impl Watch {
    /// Looks around. `now_micros`: since 1970.
    pub fn look(
        &self,
        now_micros: u64,
        backends: &Backends,
        accounts: &Accounts,
        measured: &Measured,
    ) {
        self.samples.take(now_micros, backends.active());
        let seconds = {
            let mut compared = self.compared.lock();
            let before = *compared.get_or_insert(now_micros);
            let passed = now_micros.saturating_sub(before);
            if passed < anomalies::WINDOW_MICROS {
                return;
            }
            *compared = Some(now_micros);
            passed as f64 / 1e6
        };
        let rates = accounts.rates();
        self.anomalies.statements(now_micros, &accounts.entries(), &rates);
        let since = telesto_sql_types::pg_micros(now_micros) - (seconds * 1e6) as i64;
        let stretches = measured.history();
        self.anomalies.node(now_micros, stretches.iter().filter(|own| own.until_micros > since));
    }
}
