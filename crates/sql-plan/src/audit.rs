//! Records of what was done: what a session, and a statement that reaches further than its
//! transaction, tell whoever keeps them.
//!
//! # Invariants
//! What is to be recorded does not run before there is room for its record.
//!
//! # On failure
//! Whoever has no room says why; nothing has been done then.

use std::fmt::Debug;
use std::future::Future;

use async_trait::async_trait;

use super::ExecContext;
use telesto_sql_types::error::{Result, SqlState};

/// What records are kept of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum AuditClass {
    /// Log-ins, those that failed too, and ends of sessions.
    Connection,
    /// What was refused for want of a right (42501).
    Denied,
    /// Definitions: CREATE, ALTER, DROP, TRUNCATE, COMMENT and their kin; spend caps and the kind
    /// of the log.
    Definition,
    /// Roles and rights: CREATE, ALTER and DROP ROLE, GRANT, REVOKE and their kin.
    Role,
}

/// A statement that a record is to be kept of.
#[derive(Clone, Debug)]
pub struct Audited {
    /// Of what class.
    pub class: AuditClass,
    /// Its text, without passwords.
    pub statement: String,
    /// The role as which it runs.
    pub role: String,
    /// application_name
    pub application: String,
}

/// Keeps the records of one session.
#[async_trait]
pub trait Audit: Debug + Send + Sync {
    /// Whether records of the class are kept.
    fn wants(&self, class: AuditClass) -> bool;

    /// Makes sure that `audited` can be kept.
    ///
    /// # Errors
    /// 58030: it cannot; the statement must not run.
    async fn room(&self, audited: Audited) -> Result<Box<dyn Slot>>;
}

/// Room for one record. Dropped without an end, it is kept as of a statement whose end nobody saw.
#[async_trait]
pub trait Slot: Send {
    /// The statement ended so; returns when the record is kept, or has waited long enough for that.
    async fn ended(self: Box<Self>, state: SqlState);
}

impl ExecContext {
    /// Runs what a function does beyond its transaction, as the record of a definition tells it: by
    /// the call, however the statement came to it (a view, a prepared statement).
    pub(crate) async fn recorded<T>(
        &self,
        call: String,
        run: impl Future<Output = Result<T>> + Send,
    ) -> Result<T> {
        let Some(audit) = self.audit.as_ref().filter(|a| a.wants(AuditClass::Definition)) else {
            return run.await;
        };
        let audited = Audited {
            class: AuditClass::Definition,
            statement: call,
            role: self.settings.current_user.clone(),
            application: self.settings.application_name.clone(),
        };
        let slot = audit.room(audited).await?;
        let result = run.await;
        slot.ended(result.as_ref().err().map_or(SqlState::SUCCESS, |error| error.code())).await;
        result
    }
}
