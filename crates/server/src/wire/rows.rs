//! Sends what a statement returns: rows, COPY data, command tags.
//!
//! # Invariants
//! - Output is sent on when it passes [`FLUSH_BYTES`]: a result of any size needs bounded memory
//!   here.
//! - While rows are awaited, a client that hangs up ends the wait.
//!
//! # On failure
//! A [`Failure::Sql`] is the client's to be told; a [`Failure::End`] ends the connection.

use std::pin::Pin;
use std::sync::Arc;

use futures::{Stream, StreamExt as _};
use telesto_sql::session::RowStream;
use telesto_sql::types::TextStyle;
use telesto_sql::{CopyFormat, CopyInTarget, CopyPiece, Error, ResultColumn, Row, Rows, SqlState};

use crate::wire::backend::{Field, Output};
use crate::wire::stream::{End, Wire};
use crate::wire::values;

/// Output is sent on at this size, bytes.
pub const FLUSH_BYTES: usize = 64 * 1024;

/// What ended a statement's results early.
#[derive(Debug)]
pub enum Failure {
    /// The statement failed.
    Sql(Error),
    /// The connection is over.
    End(End),
}

impl Failure {
    /// The statement's SQLSTATE.
    pub fn state(&self) -> Option<SqlState> {
        match self {
            Self::Sql(error) => Some(error.code()),
            Self::End(_) => None,
        }
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self::Sql(error)
    }
}

impl From<End> for Failure {
    fn from(end: End) -> Self {
        Self::End(end)
    }
}

/// The format of column `at`, as the list of a Bind says it: none is text, one is for all.
#[must_use]
pub fn format_of(formats: &[i16], at: usize) -> i16 {
    match formats {
        [] => 0,
        [one] => *one,
        many => many.get(at).copied().unwrap_or(0),
    }
}

/// RowDescription of `columns`.
pub fn describe(output: &mut Output, columns: &[ResultColumn], formats: &[i16]) {
    output.row_description(columns.iter().enumerate().map(|(at, column)| Field {
        name: &column.name,
        table: column.table_oid,
        attribute: i16::try_from(column.attnum).unwrap_or(0),
        type_oid: column.ty.oid(),
        type_length: column.ty.typlen(),
        type_modifier: column.ty.typmod(),
        format: format_of(formats, at),
    }));
}

/// Rows that are sent piece by piece.
pub struct Cursor {
    columns: Arc<[ResultColumn]>,
    formats: Vec<i16>,
    style: TextStyle,
    ready: std::vec::IntoIter<Row>,
    stream: Option<RowStream>,
}

impl std::fmt::Debug for Cursor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Cursor").field("ready", &self.ready.len()).finish_non_exhaustive()
    }
}

impl Cursor {
    /// Over `rows`.
    #[must_use]
    pub fn new(
        columns: Arc<[ResultColumn]>,
        formats: Vec<i16>,
        style: TextStyle,
        rows: Rows,
    ) -> Self {
        let (ready, stream) = match rows {
            Rows::Ready(rows) => (rows.into_iter(), None),
            Rows::Stream(stream) => (Vec::new().into_iter(), Some(stream)),
        };
        Self { columns, formats, style, ready, stream }
    }

    /// The columns, and the rows that are left.
    #[must_use]
    pub fn into_rest(self) -> (Arc<[ResultColumn]>, Rows) {
        let ready: Vec<Row> = self.ready.collect();
        let rows = match self.stream {
            None => Rows::Ready(ready),
            Some(stream) => {
                let first = futures::stream::iter((!ready.is_empty()).then_some(Ok(ready)));
                Rows::Stream(Box::pin(first.chain(stream)))
            }
        };
        (self.columns, rows)
    }

    /// Sends up to `max_rows` rows (0: all). The number sent, and whether the end was reached.
    ///
    /// # Errors
    /// [`Failure`].
    pub async fn send(&mut self, wire: &mut Wire, max_rows: u64) -> Result<(u64, bool), Failure> {
        let mut sent = 0;
        loop {
            for row in self.ready.by_ref() {
                write_row(&mut wire.output, &row, &self.columns, &self.formats, &self.style)?;
                sent += 1;
                if wire.output.len() >= FLUSH_BYTES {
                    wire.flush().await?;
                }
                if sent == max_rows {
                    return Ok((sent, false));
                }
            }
            let Some(stream) = &mut self.stream else { return Ok((sent, true)) };
            match wire.during(stream.next()).await? {
                Some(batch) => self.ready = batch?.into_iter(),
                None => self.stream = None,
            }
        }
    }
}

fn write_row(
    output: &mut Output,
    row: &Row,
    columns: &[ResultColumn],
    formats: &[i16],
    style: &TextStyle,
) -> Result<(), Error> {
    if row.len() != columns.len() {
        return Err(Error::internal(format!(
            "a row has {} values, its description {}",
            row.len(),
            columns.len()
        )));
    }
    output.data_row(columns.len(), |at, out| {
        values::write(&row[at], &columns[at].ty, format_of(formats, at), style, out)
    })
}

/// Sends a COPY TO STDOUT; the number of rows.
///
/// # Errors
/// [`Failure`].
pub async fn copy_out(
    wire: &mut Wire,
    format: CopyFormat,
    columns: usize,
    mut data: Pin<Box<dyn Stream<Item = Result<CopyPiece, Error>> + Send>>,
) -> Result<u64, Failure> {
    wire.output.copy_response(b'H', format == CopyFormat::Binary, columns);
    let mut rows = 0;
    while let Some(piece) = wire.during(data.next()).await? {
        let piece = piece?;
        wire.output.copy_data(&piece.bytes);
        rows += piece.rows;
        if wire.output.len() >= FLUSH_BYTES {
            wire.flush().await?;
        }
    }
    wire.output.copy_done();
    Ok(rows)
}

/// Receives a COPY FROM STDIN; the number of rows.
///
/// # Errors
/// [`Failure`].
pub async fn copy_in(
    wire: &mut Wire,
    format: CopyFormat,
    columns: usize,
    mut target: Box<dyn CopyInTarget>,
) -> Result<u64, Failure> {
    wire.output.copy_response(b'G', format == CopyFormat::Binary, columns);
    let limit = wire.limits().idle_in_transaction;
    loop {
        let (kind, body) = wire.frame(limit, "COPY data", false).await?;
        match kind {
            b'd' => wire.during(target.data(body.freeze())).await??,
            b'c' => return Ok(wire.during(target.finish()).await??),
            b'f' => {
                let reason = body[..].split(|byte| *byte == 0).next().unwrap_or_default();
                let reason = String::from_utf8_lossy(reason);
                return Err(Failure::Sql(Error::new(
                    SqlState::QUERY_CANCELED,
                    format!("COPY from stdin failed: {reason}"),
                )));
            }
            // Drivers pipeline these with the Execute that started the COPY; PostgreSQL ignores
            // them too.
            b'H' | b'S' => {}
            b'X' => return Err(Failure::End(End::Done)),
            other => {
                return Err(Failure::Sql(Error::new(
                    SqlState::PROTOCOL_VIOLATION,
                    format!("unexpected message type 0x{other:02X} during COPY from stdin"),
                )));
            }
        }
    }
}
