//! Sessions that move between regions.
//!
//! ```text
//! SHOW telesto.session_token ──► text ──► SET telesto.session_token = '…' in another region: waits until what it stands for is there
//! ```
//! # Invariants
//! - A token stands for everything that the session has seen and done where it was made.
//! - A session reads what it has committed in another region ([`telesto_txn::Away`]), and does not
//!   fall behind what it was shown there (`elsewhere`): what is not here when that is told is
//!   waited for by its next statement.
//! - A session whose token was taken reads at least that much from then on, at every level of
//!   consistency.
//!
//! # On failure
//! 25001 in a transaction that has its snapshot, 22023 for what is no token, 55000 when the
//! database has one region or when what the token stands for did not come in time; the session is
//! as it was.
//!
//! # Limits
//! Waits [`LONGEST`] at most; `statement_timeout` and a cancel request end it sooner.

use std::sync::Arc;
use std::time::Duration;

use telesto_txn::Committed;
use telesto_txn::regions::{NotAttached, RegionControl};

use super::Session;
use crate::error::{Error, Result, SqlState};

/// The setting with the token.
pub(super) const SESSION_TOKEN: &str = "telesto.session_token";
/// How long a session waits for what it has seen elsewhere.
const LONGEST: Duration = Duration::from_secs(30);

impl Session {
    pub(super) fn replication(&self) -> Result<Arc<dyn RegionControl>> {
        self.engine.database.regions().ok_or_else(crate::plan::session_view::no_regions)
    }

    /// The session's token, once [`Session::await_owed`] has nothing to wait for.
    ///
    /// # Errors
    /// 55000.
    pub(super) async fn session_token(&self) -> Result<String> {
        let token = self.replication()?.token(self.label()).await;
        token.map_err(|reason| {
            Error::new(
                SqlState::OBJECT_NOT_IN_PREREQUISITE_STATE,
                format!("the session's token cannot be told: {reason}"),
            )
        })
    }

    /// Notes a commit in another region that has not come here yet.
    pub(super) fn owes(&mut self, committed: &Committed) {
        if let Some(elsewhere) = committed.elsewhere.filter(|elsewhere| !elsewhere.arrived) {
            self.owed = Some((elsewhere.home, elsewhere.at));
        }
    }

    /// Waits until what the session has committed or seen in another region is here: it reads its
    /// own writes, and nothing older than it was shown.
    ///
    /// # Errors
    /// 55000 when it does not come in time; the next statement waits again.
    pub(super) async fn await_owed(&mut self) -> Result<()> {
        let Some((home, at)) = self.owed else { return Ok(()) };
        let label = self.replication()?.arrive(home, at, LONGEST).await.map_err(|reason| {
            Error::new(
                SqlState::OBJECT_NOT_IN_PREREQUISITE_STATE,
                format!(
                    "what this session has written or seen in another region is not here yet: {reason}"
                ),
            )
        })?;
        self.label = self.label.max(label);
        self.owed = None;
        Ok(())
    }

    /// Goes on where the session with this token was.
    ///
    /// # Errors
    /// See the module's text.
    pub(super) async fn take_token(&mut self, token: &str) -> Result<()> {
        // Several statements of one query or pipeline are a transaction as well: those behind would
        // read at the snapshot it has.
        if self.block.as_ref().is_some_and(|block| block.explicit || block.txn.is_some()) {
            return Err(Error::new(
                SqlState::ACTIVE_SQL_TRANSACTION,
                format!("SET {SESSION_TOKEN} cannot run inside a transaction block"),
            )
            .hint("Send it by itself, before the statements that are to see what the token stands for."));
        }
        let regions = self.replication()?;
        let label = regions.attach(token, LONGEST).await.map_err(|reason| {
            let state = match reason {
                NotAttached::NoToken(_) => SqlState::INVALID_PARAMETER_VALUE,
                NotAttached::Lost(_) | NotAttached::NotYet(_) => {
                    SqlState::OBJECT_NOT_IN_PREREQUISITE_STATE
                }
            };
            Error::new(state, format!("the session cannot go on here: {reason}"))
        })?;
        self.label = self.label.max(label);
        Ok(())
    }
}
