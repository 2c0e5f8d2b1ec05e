//! The audit log: who came in, who was refused what, who changed definitions and roles.
//!
//! ```text
//! log-in, refusal ──┐                        queue of 1,024              one writer
//! definition, role ─┴─ room? ── runs ── record ──────────> batch ── write, sync ──> file (mode 600), or standard error
//!                       │ no: 58030, nothing has run           └ disk full: kept, tried each second; told in the log
//! ```
//!
//! # Invariants
//! - What must be recorded is not done while records cannot be kept: log-ins, definitions and
//!   changes of roles of a class that is wanted are refused with 58030. Statements that only read
//!   and write data go on.
//! - No record is dropped silently: one that cannot be queued, or not be written before the process
//!   ends, goes to standard error.
//! - Records have no passwords.
//! - Strangers cannot fill the disk: see `strangers`.
//!
//! # On failure
//! [`AuditLog::trouble`] has the reason, as long as there is one; `telesto_audit_records_total`
//! counts, by result.
//!
//! # Limits
//! The order of records is that of their ends. An answer waits for its record to be on disk for at
//! most [`WRITE_WAIT`].

mod record;
mod strangers;
mod writer;

use std::collections::BTreeSet;
use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use telesto_common::Env;
use telesto_sql::session::audit::AuditClass;
use telesto_sql::{Error as SqlError, SqlState};
use tokio::sync::{mpsc, oneshot};
use tokio_util::sync::CancellationToken;

use crate::error::{Error, Result};
pub use record::{Event, SessionAudit, Who};
pub use strangers::Stranger;
use writer::{Line, Output};

/// Records that wait to be written, at most.
pub const QUEUE: usize = 1024;
/// How long anybody waits for room in the queue.
pub const ROOM_WAIT: Duration = Duration::from_secs(10);
/// How long an answer waits for its record to be written.
pub const WRITE_WAIT: Duration = Duration::from_secs(5);

/// Where records go.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target {
    /// Standard error.
    Stderr,
    /// Appended to a file; made with mode 600, and made anew when it was renamed or removed.
    File(PathBuf),
}

impl From<&str> for Target {
    fn from(text: &str) -> Self {
        if text == "-" { Self::Stderr } else { Self::File(PathBuf::from(text)) }
    }
}

/// Classes of which records are kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Classes(BTreeSet<AuditClass>);

impl Classes {
    /// All of them.
    #[must_use]
    pub fn all() -> Self {
        Self(NAMES.iter().map(|(_, class)| *class).collect())
    }
}

const NAMES: [(&str, AuditClass); 4] = [
    ("connection", AuditClass::Connection),
    ("denied", AuditClass::Denied),
    ("definition", AuditClass::Definition),
    ("role", AuditClass::Role),
];

/// The name of a class in settings and records.
#[must_use]
pub fn name_of(class: AuditClass) -> &'static str {
    NAMES.iter().find(|(_, known)| *known == class).map_or("other", |(name, _)| name)
}

impl FromStr for Classes {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Self, String> {
        let class = |word: &str| {
            NAMES.iter().find(|(name, _)| *name == word.trim()).map(|(_, class)| *class).ok_or_else(
                || {
                    format!(
                        "{:?} is no class of audit records; give some of connection, denied, definition, role, separated by commas",
                        word.trim()
                    )
                },
            )
        };
        text.split(',').map(class).collect::<std::result::Result<_, _>>().map(Self)
    }
}

/// The log.
pub struct AuditLog {
    env: Env,
    classes: Classes,
    queue: mpsc::Sender<Line>,
    strangers: strangers::Strangers,
    trouble: Arc<Mutex<Option<String>>>,
    stop: CancellationToken,
    ended: Mutex<Option<oneshot::Receiver<()>>>,
}

impl fmt::Debug for AuditLog {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AuditLog").field("classes", &self.classes).finish_non_exhaustive()
    }
}

impl AuditLog {
    /// Opens the target and begins to write.
    ///
    /// # Errors
    /// [`Error::AuditLog`]: the file cannot be opened.
    pub fn open(env: &Env, target: Target, classes: Classes) -> Result<Arc<Self>> {
        metrics::describe_counter!(
            "telesto_audit_records_total",
            "Audit records, by result: written, or unwritten (told on standard error instead: the audit log failed)"
        );
        let output = Output::open(&target).map_err(|reason| Error::AuditLog {
            path: match &target {
                Target::File(path) => path.clone(),
                Target::Stderr => PathBuf::from("-"),
            },
            reason,
        })?;
        let (queue, lines) = mpsc::channel(QUEUE);
        let (done, ended) = oneshot::channel();
        let log = Arc::new(Self {
            env: env.clone(),
            classes,
            queue,
            strangers: strangers::Strangers::default(),
            trouble: Arc::default(),
            stop: CancellationToken::new(),
            ended: Mutex::new(Some(ended)),
        });
        let (trouble, stop) = (Arc::clone(&log.trouble), log.stop.clone());
        let writer_env = env.clone();
        env.spawn("audit log", async move {
            writer::run(writer_env, output, lines, trouble, stop).await;
            // Nobody waits when the log was dropped without a stop.
            let _ = done.send(());
        });
        Ok(log)
    }

    /// Whether records of the class are kept.
    #[must_use]
    pub fn wants(&self, class: AuditClass) -> bool {
        self.classes.0.contains(&class)
    }

    /// Why records cannot be written now.
    #[must_use]
    pub fn trouble(&self) -> Option<String> {
        self.trouble.lock().clone()
    }

    /// Room for one record.
    ///
    /// # Errors
    /// 58030: records cannot be written, or not fast enough.
    async fn room(&self) -> std::result::Result<mpsc::OwnedPermit<Line>, SqlError> {
        let refuse = |reason: String| {
            SqlError::new(SqlState::IO_ERROR, format!("the audit log cannot be written: {reason}"))
                .hint("Nothing was done. See to the disk of --audit-log on this node, then try again.")
        };
        if let Some(reason) = self.trouble() {
            return Err(refuse(reason));
        }
        let deadline = self.env.deadline(ROOM_WAIT);
        let waited =
            self.env.within(deadline, "room in the audit log", self.queue.clone().reserve_owned());
        match waited.await {
            Ok(Ok(permit)) => Ok(permit),
            Ok(Err(_)) => Err(refuse("it is closed".to_owned())),
            Err(_) => Err(refuse("it has a queue that does not get shorter".to_owned())),
        }
    }

    /// Sends a record on its way; resolves when it is written.
    fn send(permit: mpsc::OwnedPermit<Line>, text: String) -> oneshot::Receiver<()> {
        let (written, done) = oneshot::channel();
        permit.send(Line { text: text.into(), written });
        done
    }

    async fn await_written(&self, done: oneshot::Receiver<()>) {
        let deadline = self.env.deadline(WRITE_WAIT);
        // Beyond that the record is in the queue still, and the next one is refused room.
        let _ = self.env.within(deadline, "an audit record to be written", done).await;
    }

    /// Takes no more records and waits for those there are, for at most `patience`; what cannot be
    /// written goes to standard error.
    pub async fn stop(&self, patience: Duration) {
        self.stop.cancel();
        let Some(ended) = self.ended.lock().take() else { return };
        let deadline = self.env.deadline(patience);
        if self.env.within(deadline, "the audit log's end", ended).await.is_err() {
            tracing::error!(
                "the audit log's disk does not answer; its last records may be missing"
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_are_read_or_the_wrong_one_is_named() {
        assert_eq!("connection, role,denied,definition".parse(), Ok(Classes::all()));
        let one: Classes = "denied".parse().expect("reads");
        assert!(one.0.contains(&AuditClass::Denied) && one.0.len() == 1);
        for bad in ["", "denied,", "Denied", "all"] {
            let error = bad.parse::<Classes>().expect_err(bad);
            assert!(error.contains("connection, denied"), "{error}");
        }
    }
}
