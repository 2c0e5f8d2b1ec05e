//! COPY FROM STDIN: rows into a table in batches.
//!
//! # Protocol
//! ```text
//! bytes -> pieces of 64 KiB --task of its own: rows, values--> rows of piece n+1
//!                            statement's task: insert            rows of piece n      (both at once, then the next)
//! ```
//!
//! # Invariants
//! - Only the statement's own task touches its transaction: a decoder that is left behind does
//!   nothing.
//! - What is wrong with a row is told after the rows before it were handed to the insert, which
//!   tells duplicates among them whenever it has a batch.
//! - A row means what INSERT would make of it, but that values may be given to GENERATED ALWAYS
//!   identities.
//! - Errors tell the line as PostgreSQL does: with the value where a value is at fault, with the
//!   whole row where the row is, without either for uniqueness; violated foreign keys show at the
//!   end and tell none.
//!
//! # Limits
//! Held are a piece and the rows of the one before; rows larger than a piece are inserted before
//! the next is decoded.

use std::sync::Arc;

use async_trait::async_trait;
use bytes::{Bytes, BytesMut};
use tokio::sync::oneshot;

use super::binary::BinaryDecoder;
use super::lines::{Decoder, Field, malformed, shortened};
use super::options::{Options, flags};
use crate::catalog::Table;
use crate::error::{Error, Result, SqlState};
use crate::exec::bulk::{BulkInsert, Refused};
use crate::expr::context::EvalContext;
use crate::expr::text_form::style as text_style;
use crate::plan::ExecContext;
use crate::plan::{CopyFormat, CopyInTarget};
use crate::types::Row;
use crate::types::text::TextStyle;
use crate::types::{Datum, SqlType};

/// Where a row came from.
#[derive(Debug)]
struct Origin {
    line: u64,
    /// The row as it was given; `None` in binary format.
    shown: Option<Bytes>,
}

enum Input {
    Lines(Box<Decoder>),
    Binary(BinaryDecoder),
}

/// Input is decoded in pieces of this size, bytes.
const PIECE_BYTES: usize = 64 << 10;

/// A row, about how many bytes it came in, and where from.
type Decoded = (Row, usize, Origin);

/// From bytes to rows.
struct Decoding {
    context: ExecContext,
    input: Input,
    table: String,
    columns: Vec<(String, SqlType)>,
    /// The columns' types without modifiers.
    bare: Vec<SqlType>,
}

/// The receiving end of COPY FROM STDIN.
pub(super) struct CopyIn {
    rows: BulkInsert<Origin>,
    context: ExecContext,
    table: String,
    width: usize,
    /// Bytes that are not decoded yet, less than a piece.
    raw: BytesMut,
    /// Elsewhere while a piece is decoded.
    decoding: Option<Box<Decoding>>,
    /// Rows that are not inserted yet.
    decoded: Vec<Decoded>,
}

impl CopyIn {
    /// Makes ready for rows of the columns `chosen`.
    pub fn prepare(
        table: &Arc<Table>,
        chosen: Vec<usize>,
        mut options: Options,
        context: &ExecContext,
    ) -> Result<Self> {
        let condition = options.condition.take();
        let columns: Vec<_> = chosen
            .iter()
            .map(|at| (table.columns[*at].name.clone(), table.columns[*at].ty.clone()))
            .collect();
        let bare = columns.iter().map(|(_, ty)| ty.without_modifier()).collect();
        let input = match options.format {
            CopyFormat::Binary => Input::Binary(BinaryDecoder::default()),
            CopyFormat::Text | CopyFormat::Csv => {
                let names: Vec<String> = columns.iter().map(|(name, _)| name.clone()).collect();
                let table = Some(&**table);
                let not_null = flags(&options.force_not_null, &names, "FORCE_NOT_NULL", table)?;
                let null = flags(&options.force_null, &names, "FORCE_NULL", table)?;
                let options = Options { header_names: names, ..options };
                Input::Lines(Box::new(Decoder::new(options).forcing(not_null, null)))
            }
        };
        let eval = EvalContext::planning(&context.settings, &context.catalog);
        let condition = condition.map(|text| super::condition::bind(&text, table, &eval));
        let condition = condition.transpose()?;
        let width = chosen.len();
        let decoding =
            Decoding { context: context.clone(), input, table: table.name.clone(), columns, bare };
        Ok(Self {
            rows: BulkInsert::new(context, table, chosen)?.keeping(condition),
            context: context.clone(),
            table: table.name.clone(),
            width,
            raw: BytesMut::new(),
            decoding: Some(Box::new(decoding)),
            decoded: Vec::new(),
        })
    }

    /// Number of columns.
    pub fn width(&self) -> usize {
        self.width
    }

    /// Decodes the bytes at hand while the rows of the piece before are inserted.
    async fn piece(&mut self, last: bool) -> Result<()> {
        let size = |rows: &[Decoded]| rows.iter().map(|(_, bytes, _)| bytes).sum::<usize>();
        if size(&self.decoded) > 4 * PIECE_BYTES {
            self.insert().await?;
        }
        let mut decoding = self.decoding.take().ok_or_else(stopped)?;
        let raw = self.raw.split().freeze();
        let (done, decoded) = oneshot::channel();
        self.context.env.spawn("decoding rows of COPY", async move {
            let found = decoding.decode(&raw, last);
            // Nobody waits when the statement is over.
            let _ = done.send((decoding, found));
        });
        self.insert().await?;
        let (decoding, (rows, refused)) = decoded.await.map_err(|_| stopped())?;
        self.decoding = Some(decoding);
        self.decoded = rows;
        match refused {
            None => Ok(()),
            Some(error) => {
                self.insert().await?;
                Err(error)
            }
        }
    }

    async fn insert(&mut self) -> Result<()> {
        for (row, bytes, origin) in std::mem::take(&mut self.decoded) {
            let pushed = self.rows.push(row, bytes, origin).await;
            pushed.map_err(|refused| place(&self.table, refused))?;
        }
        Ok(())
    }
}

/// The task that decodes was dropped: the process is stopping.
fn stopped() -> Error {
    Error::new(SqlState::ADMIN_SHUTDOWN, "the server stopped while rows of COPY were decoded")
        .hint("Connect again and repeat the COPY.")
}

impl Decoding {
    /// The rows that `raw` completes, and what is wrong with the next one.
    fn decode(&mut self, raw: &[u8], last: bool) -> (Vec<Decoded>, Option<Error>) {
        let mut rows = Vec::new();
        let fed = match &mut self.input {
            Input::Lines(decoder) => decoder.feed(raw),
            Input::Binary(decoder) => decoder.feed(raw),
        };
        if let Err(error) = fed {
            return (rows, Some(error));
        }
        let context = self.context.clone();
        let reading = Reading::of(&context);
        loop {
            match self.next_row(last, &reading) {
                Ok(Some(row)) => rows.push(row),
                Ok(None) => return (rows, None),
                Err(error) => return (rows, Some(error)),
            }
        }
    }

    /// The next whole row of the input.
    fn next_row(&mut self, last: bool, reading: &Reading<'_>) -> Result<Option<Decoded>> {
        match &mut self.input {
            Input::Lines(decoder) => {
                let next = decoder.next_row(last);
                let (line, shown) = (decoder.line(), decoder.row().clone());
                let row = match next {
                    Ok(false) => return Ok(None),
                    // An empty line is a row of no columns.
                    Ok(true) if self.columns.is_empty() && shown.is_empty() => Ok(Row::new()),
                    Ok(true) => decoder
                        .fields()
                        .and_then(|fields| values(&self.columns, &self.bare, fields, reading)),
                    Err(error) => Err(error),
                };
                let bytes = shown.len();
                match row {
                    Ok(row) => Ok(Some((row, bytes, Origin { line, shown: Some(shown) }))),
                    Err(error) => Err(placed(&self.table, error, line, Some(shown))),
                }
            }
            Input::Binary(decoder) => {
                let (row, bytes) = decoder
                    .next_row(last, &self.columns)
                    .map_err(|error| placed(&self.table, error, decoder.line(), None))?;
                let Some(row) = row else { return Ok(None) };
                Ok(Some((row, bytes, Origin { line: decoder.line(), shown: None })))
            }
        }
    }
}

/// Says where a refused row came from.
fn place(table: &str, refused: Refused<Origin>) -> Error {
    let Refused { error, row } = refused;
    match row {
        None => error,
        // By the time uniqueness is checked PostgreSQL has forgotten the text.
        Some(row) if error.code() == SqlState::UNIQUE_VIOLATION => {
            placed(table, error, row.line, None)
        }
        Some(row) => placed(table, error, row.line, row.shown),
    }
}

/// Says in which line the error is, and in which column if one is noted.
fn placed(table: &str, mut error: Error, line: u64, shown: Option<Bytes>) -> Error {
    let context = &mut error.fields_mut().context;
    *context = Some(match (context.take(), shown) {
        (Some(column), _) => format!("COPY {table}, line {line}, {column}"),
        (None, Some(row)) => {
            let row = shortened(&String::from_utf8_lossy(&row));
            format!("COPY {table}, line {line}: \"{row}\"")
        }
        (None, None) => format!("COPY {table}, line {line}"),
    });
    error
}

/// How values are read from their text.
struct Reading<'a> {
    style: TextStyle,
    eval: EvalContext<'a>,
}

impl<'a> Reading<'a> {
    fn of(context: &'a ExecContext) -> Self {
        let eval = EvalContext::executing(context);
        Self { style: text_style(&eval), eval }
    }

    fn value(&self, text: &str, ty: &SqlType) -> Result<Datum> {
        if ty.with_names().is_some() {
            // Objects are named, as COPY TO writes them.
            return crate::expr::cast::input(text, ty, &self.eval);
        }
        Datum::from_text(text, ty, &self.style)
    }
}

fn values(
    columns: &[(String, SqlType)],
    bare: &[SqlType],
    fields: Vec<Field<'_>>,
    reading: &Reading<'_>,
) -> Result<Row> {
    if fields.len() > columns.len() {
        return Err(malformed("extra data after last expected column"));
    }
    let missing = columns.get(fields.len()).map(|(name, _)| name);
    let mut row = Row::with_capacity(fields.len());
    for ((field, (name, ty)), bare) in fields.into_iter().zip(columns).zip(bare) {
        row.push(match field {
            None => Datum::Null,
            Some(text) => reading
                .value(&text, bare)
                .and_then(|value| crate::expr::cast::fit(value, ty))
                .map_err(|error| {
                    error.context(format!("column {name}: \"{}\"", shortened(&text)))
                })?,
        });
    }
    // PostgreSQL converts what is there before it looks for more.
    match missing {
        Some(missing) => Err(malformed(format!("missing data for column \"{missing}\""))),
        None => Ok(row),
    }
}

#[async_trait]
impl CopyInTarget for CopyIn {
    async fn data(&mut self, data: Bytes) -> Result<()> {
        for part in data.chunks(PIECE_BYTES) {
            self.raw.extend_from_slice(part);
            if self.raw.len() >= PIECE_BYTES {
                self.piece(false).await?;
            }
        }
        Ok(())
    }

    async fn finish(&mut self) -> Result<u64> {
        self.piece(true).await?;
        self.insert().await?;
        let finished = self.rows.finish().await;
        finished.map_err(|refused| place(&self.table, refused))
    }
}
