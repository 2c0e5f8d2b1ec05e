//! Records as JSON, and whose they are.
//!
//! # Invariants
//! - One record is one line, and shows on a terminal as what it is: what would end it, control
//!   characters and marks that turn the direction of a text are escaped.
//! - A record is at most some 100 KB, whatever a client calls itself.
//!
//! # On failure
//! A record that finds no room after the fact goes to standard error.
//!
//! # Limits
//! Times are those of the node's clock.

use std::fmt::Write as _;
use std::net::SocketAddr;
use std::sync::Arc;

use async_trait::async_trait;
use chrono::{DateTime, SecondsFormat, Utc};
use serde_json::json;
use telesto_sql::session::audit::{Audit, AuditClass, Audited, Slot, TEXT_BYTES};
use telesto_sql::{Result, SqlState};
use tokio::sync::{mpsc, oneshot};

use super::strangers::Stranger;
use super::writer::Line;
use super::{AuditLog, name_of};
use crate::attempts::Door;

/// Bytes of a name in a record, at most; PostgreSQL's have 63.
const NAME_BYTES: usize = 256;

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

    fn line(&self, event: &Event<'_>, left_out: u64) -> String {
        let micros = i64::try_from(self.log.env.clock.wall_micros()).unwrap_or(i64::MAX);
        let time = DateTime::<Utc>::from_timestamp_micros(micros).unwrap_or_default();
        let mut record = json!({
            "time": time.to_rfc3339_opts(SecondsFormat::Micros, true),
            "class": name_of(event.class),
            "user": cut(&self.who.user, NAME_BYTES),
            "role": cut(event.role.unwrap_or(&self.who.user), NAME_BYTES),
            "client": self.who.client.map(|client| {
                // As rules know it: an IPv4 client of an IPv6 socket by its own address.
                SocketAddr::new(client.ip().to_canonical(), client.port()).to_string()
            }),
            "door": self.who.door.name(),
            "application": cut(&self.who.application, NAME_BYTES),
            "database": cut(&self.who.database, NAME_BYTES),
            "what": cut(event.what, TEXT_BYTES + " …".len()),
            "sqlstate": event.state.map(|state| state.0),
        });
        if left_out > 0 {
            record["left_out"] = left_out.into();
        }
        escaped(&record.to_string())
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
        self.log.await_written(AuditLog::send(permit, self.line(&event, 0))).await;
        Ok(())
    }

    /// Keeps a record of something that has happened.
    pub async fn tell(&self, event: Event<'_>) {
        self.tell_with(event, 0).await;
    }

    /// Keeps a record of somebody who was refused before he showed who he is, unless too many such
    /// records came of late: then the next one that is kept says how many were left out.
    pub async fn tell_stranger(&self, stranger: Stranger, event: Event<'_>) {
        if !self.log.wants(event.class) {
            return;
        }
        if let Some(left_out) = self.log.strangers.takes(&self.log.env, stranger) {
            self.tell_with(event, left_out).await;
        }
    }

    async fn tell_with(&self, event: Event<'_>, left_out: u64) {
        if !self.log.wants(event.class) {
            return;
        }
        let line = self.line(&event, left_out);
        match self.log.room().await {
            Ok(permit) => self.log.await_written(AuditLog::send(permit, line)).await,
            Err(_) => unwritten(&line),
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
        Some(AuditLog::send(permit, self.audit.line(&event, 0)))
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

fn cut(text: &str, most: usize) -> &str {
    &text[..text.floor_char_boundary(most)]
}

/// A record as a line. Outside of texts JSON is printable ASCII: what is escaped here stands in a
/// text.
fn escaped(json: &str) -> String {
    let mut line = String::with_capacity(json.len() + 1);
    for character in json.chars() {
        match character {
            // Controls that JSON lets through, line ends of Unicode, marks of direction, the byte
            // order mark.
            '\u{7f}'..='\u{9f}'
            | '\u{61c}'
            | '\u{200b}'..='\u{200f}'
            | '\u{2028}'..='\u{202e}'
            | '\u{2060}'..='\u{206f}'
            | '\u{feff}' => {
                // Writing to a text does not fail.
                let _ = write!(line, "\\u{:04x}", u32::from(character));
            }
            other => line.push(other),
        }
    }
    line.push('\n');
    line
}

/// The last resort for a record.
pub(super) fn unwritten(line: &str) {
    metrics::counter!("telesto_audit_records_total", "result" => "unwritten").increment(1);
    eprint!("telesto: audit record that could not be written: {line}");
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::audit::{Classes, Target};

    #[tokio::test]
    async fn record_is_one_printable_line_whatever_a_client_calls_itself() {
        let directory = tempfile::tempdir().expect("directory");
        let target = Target::File(directory.path().join("audit"));
        let log = AuditLog::open(&telesto_runtime::env(), target, Classes::all()).expect("opens");
        let hostile =
            "a\n{\"class\":\"role\"}\r\0\u{1b}[2J\u{7f}\u{9b}2J\u{2028}\u{202e}\u{feff}\"\\é";
        let who = Who {
            user: hostile.to_owned(),
            client: Some("[::ffff:192.0.2.7]:5".parse().expect("an address")),
            door: Door::Sql,
            application: "é".repeat(5000),
            database: "\u{202e}".repeat(5000),
        };
        let what = format!("{hostile}{}", "x".repeat(1 << 20));
        let state = Some(SqlState("28P01"));
        let event = Event { class: AuditClass::Connection, what: &what, role: None, state };
        let line = SessionAudit::new(&log, who).line(&event, 7);
        assert_eq!(line.find('\n'), Some(line.len() - 1));
        let shown = line.trim_end().chars().all(|c| !c.is_control() && (c.is_ascii() || c == 'é'));
        assert!(shown, "{line}");
        assert!(line.len() < 100_000);
        let read: serde_json::Value = serde_json::from_str(&line).expect("JSON");
        assert_eq!(read["user"], hostile);
        assert_eq!((&read["left_out"], &read["client"]), (&7.into(), &"192.0.2.7:5".into()));
    }
}
