//! What a statement gives back.

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use async_trait::async_trait;
use bytes::Bytes;
use futures::Stream;
use parking_lot::Mutex;

use telesto_sql_expr::Settings;
use telesto_sql_types::SqlType;
use telesto_sql_types::error::{Result, SqlState};

pub use telesto_sql_types::Row;

/// A stream of batches of rows.
pub type RowStream = Pin<Box<dyn Stream<Item = Result<Vec<Row>>> + Send>>;

/// A column of a result.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResultColumn {
    /// Name.
    pub name: String,
    /// Type.
    pub ty: SqlType,
    /// OID of the table it comes from; 0 for an expression.
    pub table_oid: u32,
    /// Its attnum there; 0 for an expression.
    pub attnum: u16,
    /// Whether it is the row of a table, which is sent as text: by itself it is no such value as
    /// within a statement.
    pub whole_row: bool,
}

impl ResultColumn {
    /// A column that comes from an expression.
    pub fn new(name: impl Into<String>, ty: SqlType) -> Self {
        Self { name: name.into(), ty, table_oid: 0, attnum: 0, whole_row: false }
    }
}

/// The rows of a result.
pub enum Rows {
    /// All there.
    Ready(Vec<Row>),
    /// To be pulled; pulling runs the query. Dropping stops it.
    Stream(RowStream),
}

impl fmt::Debug for Rows {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ready(rows) => f.debug_tuple("Ready").field(&rows.len()).finish(),
            Self::Stream(_) => f.write_str("Stream"),
        }
    }
}

impl Rows {
    /// Pulls everything.
    ///
    /// # Errors
    /// The query's.
    pub async fn collect(self) -> Result<Vec<Row>> {
        use futures::TryStreamExt;
        match self {
            Self::Ready(rows) => Ok(rows),
            Self::Stream(stream) => {
                stream
                    .try_fold(Vec::new(), |mut all, batch| async move {
                        all.extend(batch);
                        Ok(all)
                    })
                    .await
            }
        }
    }
}

impl StatementResult {
    /// The same, begun: what the query meets before its first rows is told here.
    ///
    /// # Errors
    /// The query's.
    pub async fn with_first_rows(self) -> Result<Self> {
        use futures::StreamExt as _;
        let Self::Rows { columns, rows: Rows::Stream(mut rows), tag } = self else {
            return Ok(self);
        };
        let rows = match rows.next().await {
            None => Rows::Ready(Vec::new()),
            Some(first) => {
                let first = futures::stream::once(std::future::ready(Ok(first?)));
                Rows::Stream(first.chain(rows).boxed())
            }
        };
        Ok(Self::Rows { columns, rows, tag })
    }
}

/// Format of COPY data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CopyFormat {
    /// text
    Text,
    /// csv
    Csv,
    /// binary
    Binary,
}

/// Takes the data of a COPY FROM STDIN.
#[async_trait]
pub trait CopyInTarget: Send {
    /// The next piece of data, cut anywhere.
    async fn data(&mut self, data: Bytes) -> Result<()>;
    /// The end of the data; the number of rows copied.
    async fn finish(&mut self) -> Result<u64>;
}

/// A piece of COPY data for the client, sent as it is.
#[derive(Clone, Debug)]
pub struct CopyPiece {
    /// The data.
    pub bytes: Bytes,
    /// Rows in it, for the command tag: a header or end mark has none.
    pub rows: u64,
}

/// The result of one statement. `tag` is PostgreSQL's command tag (`SELECT 3`, `INSERT 0 1`).
pub enum StatementResult {
    /// Rows.
    Rows {
        /// Their columns.
        columns: Arc<[ResultColumn]>,
        /// The rows.
        rows: Rows,
        /// First word of the command tag: `SELECT`, `INSERT 0`, `UPDATE`, …; the receiver appends
        /// the number of rows it sent.
        tag: &'static str,
    },
    /// No rows.
    Command {
        /// The whole command tag.
        tag: String,
    },
    /// The client is to send COPY data into `target`; the tag is `COPY` and the number of rows.
    CopyIn {
        /// Format of the data.
        format: CopyFormat,
        /// Number of columns.
        columns: usize,
        /// Where the data goes.
        target: Box<dyn CopyInTarget>,
    },
    /// COPY data for the client; the tag is `COPY` and the number of rows.
    CopyOut {
        /// Format of the data.
        format: CopyFormat,
        /// Number of columns.
        columns: usize,
        /// The data: one item a row, beside header and end mark.
        data: Pin<Box<dyn Stream<Item = Result<CopyPiece>> + Send>>,
    },
    /// The statement was empty.
    Empty,
}

impl fmt::Debug for StatementResult {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Rows { rows, tag, .. } => f.debug_tuple("Rows").field(tag).field(rows).finish(),
            Self::Command { tag } => f.debug_tuple("Command").field(tag).finish(),
            Self::CopyIn { format, .. } => f.debug_tuple("CopyIn").field(format).finish(),
            Self::CopyOut { format, .. } => f.debug_tuple("CopyOut").field(format).finish(),
            Self::Empty => f.write_str("Empty"),
        }
    }
}

/// Takes the results of a simple query, one after the other.
#[async_trait]
pub trait ResultSink: Send {
    /// The next result. The sink pulls its rows, or feeds its COPY target
    /// ([`CopyInTarget::finish`] included), before it returns.
    async fn result(&mut self, result: StatementResult) -> Result<()>;

    /// The next statement begins: the one before was executed, whatever becomes of their
    /// transaction. After the last result of a query the commit may still fail: only when the query
    /// has ended without an error is that statement done.
    fn begins(&mut self) {}

    /// Whether the rows of the next result are to be sent in binary: they are fetched from a cursor
    /// declared BINARY.
    fn binary(&mut self, _binary: bool) {}

    /// The settings that the next result is to be written under.
    fn settings(&mut self, _settings: &Arc<Settings>) {}
}

/// A NOTICE or WARNING for the client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Notice {
    /// `NOTICE`, `WARNING`, `INFO`.
    pub severity: &'static str,
    /// SQLSTATE.
    pub code: SqlState,
    /// Text.
    pub message: String,
    /// More lines.
    pub detail: Option<String>,
    /// What to do.
    pub hint: Option<String>,
}

fn rank(level: &str) -> Option<usize> {
    telesto_sql_expr::levels::LEVELS.iter().position(|known| known.eq_ignore_ascii_case(level))
}

/// Notices of the statement under way, until the server takes them.
#[derive(Debug, Default)]
pub struct NoticeQueue {
    queued: Mutex<Vec<Notice>>,
    /// What is below this place of `LEVELS` is not kept.
    least: AtomicUsize,
}

impl NoticeQueue {
    /// The queue, from now on without what these settings do not let through.
    pub fn reaching(self: &Arc<Self>, settings: &Settings) -> Arc<Self> {
        let least = settings.others.get("client_min_messages").and_then(|level| rank(level));
        self.least.store(least.unwrap_or(0), Ordering::Relaxed);
        Arc::clone(self)
    }

    /// Adds a NOTICE.
    pub fn notice(&self, message: impl Into<String>) {
        self.push("NOTICE", SqlState::SUCCESS, message.into(), None);
    }

    /// Adds an INFO, which is told whatever client_min_messages says.
    pub fn info(&self, message: impl Into<String>) {
        self.push("INFO", SqlState::SUCCESS, message.into(), None);
    }

    /// Adds a NOTICE of something that is there already, with the code its error would have.
    pub fn skipped(&self, code: SqlState, message: &str) {
        self.push("NOTICE", code, format!("{message}, skipping"), None);
    }

    /// Adds a NOTICE with a detail.
    pub fn detailed(&self, message: impl Into<String>, detail: impl Into<String>) {
        self.push("NOTICE", SqlState::SUCCESS, message.into(), Some(detail.into()));
    }

    /// Adds a WARNING.
    pub fn warning(&self, code: SqlState, message: impl Into<String>) {
        self.push("WARNING", code, message.into(), None);
    }

    fn push(
        &self,
        severity: &'static str,
        code: SqlState,
        message: String,
        detail: Option<String>,
    ) {
        // INFO is no level: it is always told.
        if rank(severity).is_some_and(|own| own < self.least.load(Ordering::Relaxed)) {
            return;
        }
        let mut queue = self.queued.lock();
        // A statement that warns for every row must not fill the memory.
        if queue.len() < 1000 {
            queue.push(Notice { severity, code, message, detail, hint: None });
        }
    }

    /// Takes everything queued.
    pub fn take(&self) -> Vec<Notice> {
        std::mem::take(&mut *self.queued.lock())
    }
}
