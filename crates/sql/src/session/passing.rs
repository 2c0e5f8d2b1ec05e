//! A session that goes on in another process.
//!
//! ```text
//! Session, between two transactions ──state──> SessionState ─(bytes, by whoever passes it)─> SqlEngine::session_again ──> Session
//! ```
//! # Purpose
//! A server that is restarted or upgraded passes its clients to the process that comes after it;
//! what a client set, prepared and drew from sequences is there as before.
//!
//! # Invariants
//! - A session is passed whole or not at all: what has no form outside of its process ([`Held`])
//!   keeps it where it is.
//! - The role that logged in is asked for again: it must still be the same one, and may still log
//!   in.
//! - A prepared statement means what it meant: one that has other parameters or columns by now is
//!   not taken, and with it the session.
//! - A session goes on above everything it has seen (its label), whatever the next process has
//!   seen, and waits for what it has committed in another region.
//!
//! # On failure
//! The session is not begun; the client must be told, and connect again.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use telesto_common::{Label, RegionId, Timestamp};

use super::{Prepared, Session, SessionOptions, Settings, SqlEngine, TransactionStatus};
use crate::error::{Error, Result, SqlState};
use crate::plan::named_statements::StatementShown;
use crate::types::{EnumType, SqlType};

/// How long planning one statement again may take, milliseconds.
const PREPARE_AGAIN_MS: u64 = 60_000;

/// What a session has that no other process can have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Held {
    /// A transaction is open.
    #[error("a transaction is open")]
    Transaction,
    /// It has made something temporary.
    #[error("it has temporary tables")]
    Temporary,
    /// It has a cursor WITH HOLD.
    #[error("it holds a cursor")]
    Cursor,
    /// It holds advisory locks: they are kept by leases of this process.
    #[error("it holds advisory locks")]
    Advisory,
    /// It listens: what is told between the two processes would not reach it.
    #[error("it listens for notifications")]
    Listens,
}

/// A statement that was prepared.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PreparedState {
    /// Its text.
    pub sql: String,
    /// OIDs of `$1`, `$2`, ….
    parameters: Vec<u32>,
    /// Names and type OIDs of its columns, as they were described.
    columns: Option<Vec<(String, u32)>>,
}

impl PreparedState {
    /// What `prepared` is made of.
    #[must_use]
    pub fn of(prepared: &Prepared) -> Self {
        let columns = prepared.columns.as_ref().map(|columns| {
            columns.iter().map(|column| (column.name.clone(), column.ty.oid())).collect()
        });
        Self {
            sql: prepared.sql.clone(),
            parameters: prepared.parameter_types.iter().map(SqlType::oid).collect(),
            columns,
        }
    }
}

/// What `pg_prepared_statements` shows of a statement.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct ShownState {
    text: String,
    prepared: i64,
    from_sql: bool,
    plans: (u64, u64),
}

impl ShownState {
    fn of(shown: &StatementShown) -> Self {
        Self {
            text: shown.statement.clone(),
            prepared: shown.prepared_micros,
            from_sql: shown.from_sql,
            plans: shown.plans(),
        }
    }

    fn of_types(&self, types: Vec<SqlType>) -> StatementShown {
        let shown = StatementShown::new(self.text.clone(), self.prepared, types, self.from_sql);
        shown.counted(self.plans)
    }
}

/// A session between two transactions.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct SessionState {
    settings: Settings,
    defaults: Settings,
    label: Label,
    /// A commit in another region that has not come here yet: region and time.
    owed: Option<(RegionId, Timestamp)>,
    pid: i32,
    statements: BTreeMap<String, PreparedState>,
    /// What is shown of them.
    #[serde(default)]
    shown: BTreeMap<String, ShownState>,
    currval: BTreeMap<u32, i64>,
    lastval: Option<u32>,
    reported: Vec<(String, String)>,
    begun: i64,
}

impl Session {
    /// What another process needs to go on with this session.
    ///
    /// # Errors
    /// [`Held`]: it has to end here.
    pub fn state(&self) -> std::result::Result<SessionState, Held> {
        if self.block.is_some() || self.transaction_status() != TransactionStatus::Idle {
            return Err(Held::Transaction);
        }
        if self.temp.is_some() {
            return Err(Held::Temporary);
        }
        if self.cursors.any() {
            return Err(Held::Cursor);
        }
        if self.advisory.holds() {
            return Err(Held::Advisory);
        }
        if self.listens() {
            return Err(Held::Listens);
        }
        let (currval, lastval) = self.sequences.given();
        let statements = self.prepared.iter();
        let shown = self.prepared.iter().filter_map(|(name, prepared)| {
            Some((name.clone(), ShownState::of(prepared.shown.get()?)))
        });
        Ok(SessionState {
            settings: (*self.settings).clone(),
            defaults: (*self.defaults).clone(),
            label: self.label,
            owed: self.owed,
            pid: crate::expr::functions::system::pid_in(&self.settings),
            statements: statements
                .map(|(name, prepared)| (name.clone(), PreparedState::of(prepared)))
                .collect(),
            shown: shown.collect(),
            currval,
            lastval,
            reported: self
                .reported
                .iter()
                .map(|(name, value)| ((*name).to_owned(), value.clone()))
                .collect(),
            begun: self.shown.get().backend_start,
        })
    }

    /// Prepares again what `state` tells of.
    ///
    /// # Errors
    /// Those of planning; 0A000 when it has become another statement.
    pub async fn prepare_again(&mut self, state: &PreparedState) -> Result<Arc<Prepared>> {
        let types: Vec<Option<SqlType>> = state
            .parameters
            .iter()
            .map(|oid| {
                Some(SqlType::from_oid(*oid).unwrap_or_else(|| {
                    // A user's: planning links it with the catalog.
                    SqlType::Enum(Arc::new(EnumType::unlinked(*oid)))
                }))
            })
            .collect();
        // The client asks for nothing just now: its own limit is none of this, where many sessions
        // plan at once on cold caches.
        let asked = self.settings.statement_timeout_ms;
        Arc::make_mut(&mut self.settings).statement_timeout_ms = PREPARE_AGAIN_MS;
        let prepared = self.prepare(&state.sql, &types).await;
        Arc::make_mut(&mut self.settings).statement_timeout_ms = asked;
        let prepared = prepared?;
        if PreparedState::of(&prepared) != *state {
            return Err(Error::new(
                SqlState::FEATURE_NOT_SUPPORTED,
                "a prepared statement has other columns than it was described with",
            )
            .hint("Connect again, and prepare it again."));
        }
        Ok(prepared)
    }
}

impl SqlEngine {
    /// A session that another process had up to now. `options` say who logged in there, and from
    /// where; their parameters are not looked at.
    ///
    /// # Errors
    /// Those of [`SqlEngine::session`] and of planning what was prepared; 28000 when the role that
    /// logged in is another one by now.
    pub async fn session_again(
        self: &Arc<Self>,
        options: SessionOptions,
        state: SessionState,
    ) -> Result<Session> {
        let options =
            SessionOptions { parameters: Vec::new(), label: state.label, bare: true, ..options };
        let mut session = self.session(options).await?;
        if session.settings.authenticated_role != state.settings.authenticated_role {
            return Err(Error::new(
                SqlState::INVALID_AUTHORIZATION,
                "the role that logged in is another one by now",
            )
            .hint("Connect again."));
        }
        session.settings = Arc::new(state.settings);
        session.defaults = Arc::new(state.defaults);
        session.sequences.go_on((state.currval, state.lastval));
        for (name, value) in state.reported {
            let known = super::settings::REPORTED.iter().find(|known| **known == name);
            // One that this version does not report is none of the client's business from here on.
            session.reported.extend(known.map(|known| (*known, value)));
        }
        {
            let mut shown = session.shown.change();
            shown.application_name.clone_from(&session.settings.application_name);
            shown.backend_start = state.begun;
        }
        session.spending.set_pid(state.pid);
        session.live.backends.enter(state.pid, session.cancel.clone(), Arc::clone(&session.shown));
        for (name, statement) in &state.statements {
            let prepared = session.prepare_again(statement).await?;
            match state.shown.get(name) {
                Some(shown) => {
                    let shown = shown.of_types(prepared.parameter_types.clone());
                    session.prepared.insert(name.clone(), prepared, shown)?;
                }
                None => session.name_statement(name, prepared)?,
            }
        }
        session.sync().await?;
        // Last: preparing need not wait for it.
        session.owed = state.owed;
        Ok(session)
    }
}
