//! Records as JSON, and whose they are.
//!
//! # Invariants
//! One record is one line: JSON escapes what would end it.
//!
//! # On failure
//! A record that finds no room after the fact goes to standard error.
//!
//! # Limits
//! Times are those of the node's clock.

use std::net::SocketAddr;
use std::sync::Arc;

use async_trait::async_trait;
use chrono::{DateTime, SecondsFormat, Utc};
use serde_json::json;
use telesto_sql::session::audit::{Audit, AuditClass, Audited, Slot};
use telesto_sql::{Result, SqlState};
use tokio::sync::{mpsc, oneshot};

use super::writer::Line;
use super::{AuditLog, name_of};
use crate::attempts::Door;

/// Whom records are about.
#[derive(Clone, Debug)]
pub struct Who {
    /// The user who logged in, or tried.
    pub user: String,
    /// Where it is; `None`: not known.
    pub client: Option<SocketAddr>,
    /// By which port.
    pub door: Door,
    /// application_name
    pub application: String,
    /// The database asked for.
    pub database: String,
}

/// What happened.
#[derive(Clone, Debug)]
pub struct Event<'a> {
    /// Of what class.
    pub class: AuditClass,
    /// A statement without passwords, or what was done.
    pub what: &'a str,
    /// The role as which it was done, if that is another than the user.
    pub role: Option<&'a str>,
    /// How it ended; `None`: nobody saw its end.
    pub state: Option<SqlState>,
}

/// The records of one session.
#[derive(Clone, Debug)]
pub struct SessionAudit {
    log: Arc<AuditLog>,
    who: Who,
}

impl SessionAudit {
    /// Of whoever `who` is.
    #[must_use]
    pub fn new(log: &Arc<AuditLog>, who: Who) -> Arc<Self> {
        Arc::new(Self { log: Arc::clone(log), who })
    }

    fn line(&self, event: &Event<'_>) -> String {
        let micros = i64::try_from(self.log.env.clock.wall_micros()).unwrap_or(i64::MAX);
        let time = DateTime::<Utc>::from_timestamp_micros(micros).unwrap_or_default();
        let mut line = json!({
            "time": time.to_rfc3339_opts(SecondsFormat::Micros, true),
            "class": name_of(event.class),
            "user": self.who.user,
            "role": event.role.unwrap_or(&self.who.user),
            "client": self.who.client.map(|client| client.to_string()),
            "door": self.who.door.name(),
            "application": self.who.application,
            "database": self.who.database,
            "what": event.what,
            "sqlstate": event.state.map(|state| state.0),
        })
        .to_string();
        line.push('\n');
        line
    }

    /// Keeps a record of something that must not happen without it.
    ///
    /// # Errors
    /// 58030: it cannot be kept.
    pub async fn must_tell(&self, event: Event<'_>) -> Result<()> {
        if !self.log.wants(event.class) {
            return Ok(());
        }
        let permit = self.log.room().await?;
        self.log.await_written(AuditLog::send(permit, self.line(&event))).await;
        Ok(())
    }

    /// Keeps a record of something that has happened.
    pub async fn tell(&self, event: Event<'_>) {
        if self.must_tell(event.clone()).await.is_err() {
            unwritten(&self.line(&event));
        }
    }
}

#[async_trait]
impl Audit for SessionAudit {
    fn wants(&self, class: AuditClass) -> bool {
        self.log.wants(class)
    }

    async fn room(&self, audited: Audited) -> Result<Box<dyn Slot>> {
        let permit = self.log.room().await?;
        let audit = Self {
            who: Who { application: audited.application.clone(), ..self.who.clone() },
            log: Arc::clone(&self.log),
        };
        Ok(Box::new(Room { audit, audited, permit: Some(permit) }))
    }
}

/// Room for the record of a statement under way.
struct Room {
    audit: SessionAudit,
    audited: Audited,
    permit: Option<mpsc::OwnedPermit<Line>>,
}

impl Room {
    fn fill(&mut self, state: Option<SqlState>) -> Option<oneshot::Receiver<()>> {
        let permit = self.permit.take()?;
        let Audited { class, statement, role, .. } = &self.audited;
        let event = Event { class: *class, what: statement, role: Some(role), state };
        Some(AuditLog::send(permit, self.audit.line(&event)))
    }
}

#[async_trait]
impl Slot for Room {
    async fn ended(mut self: Box<Self>, state: SqlState) {
        if let Some(done) = self.fill(Some(state)) {
            self.audit.log.await_written(done).await;
        }
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        self.fill(None);
    }
}

/// The last resort for a record.
pub(super) fn unwritten(line: &str) {
    metrics::counter!("telesto_audit_records_total", "result" => "unwritten").increment(1);
    eprint!("telesto: audit record that could not be written: {line}");
}
