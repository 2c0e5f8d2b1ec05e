//! COPY FROM STDIN: rows into a table in batches.
//!
//! # Invariants
//! - A row means what INSERT would make of it, but that values may be given to GENERATED ALWAYS identities.
//! - Errors tell the line as PostgreSQL does: with the value where a value is at fault, with the whole row where
//!   the row is, without either for uniqueness; violated foreign keys show at the end and tell none.

use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;

use super::binary::BinaryDecoder;
use super::lines::{Decoder, Field, malformed, shortened};
use super::options::Options;
use crate::catalog::Table;
use crate::error::{Error, Result, SqlState};
use crate::exec::bulk::{BulkInsert, Refused};
use crate::expr::context::EvalContext;
use crate::plan::ExecContext;
use crate::session::{CopyFormat, CopyInTarget, Row};
use crate::types::{Datum, SqlType};

/// Where a row came from.
#[derive(Debug)]
struct Origin {
    line: u64,
    /// The row as it was given; `None` in binary format.
    shown: Option<String>,
}

enum Input {
    Lines(Decoder),
    Binary(BinaryDecoder),
}

/// The receiving end of COPY FROM STDIN.
pub(super) struct CopyIn {
    rows: BulkInsert<Origin>,
    context: ExecContext,
    input: Input,
    table: String,
    columns: Vec<(String, SqlType)>,
}

impl CopyIn {
    /// Makes ready for rows of the columns `chosen`.
    pub fn prepare(
        table: &Arc<Table>,
        chosen: Vec<usize>,
        options: Options,
        context: &ExecContext,
    ) -> Result<Self> {
        let columns = chosen
            .iter()
            .map(|at| (table.columns[*at].name.clone(), table.columns[*at].ty.clone()))
            .collect();
        let input = match options.format {
            CopyFormat::Binary => Input::Binary(BinaryDecoder::default()),
            CopyFormat::Text | CopyFormat::Csv => Input::Lines(Decoder::new(options)),
        };
        Ok(Self {
            rows: BulkInsert::new(context, table, chosen)?,
            context: context.clone(),
            input,
            table: table.name.clone(),
            columns,
        })
    }

    /// Number of columns.
    pub fn width(&self) -> usize {
        self.columns.len()
    }

    async fn drain(&mut self, last: bool) -> Result<()> {
        let eval = EvalContext::executing(&self.context);
        loop {
            let (row, bytes, origin) = match &mut self.input {
                Input::Lines(decoder) => {
                    let fields = decoder.next_row(last).map_err(|error| {
                        placed(&self.table, error, decoder.line(), Some(decoder.shown()))
                    })?;
                    let Some(fields) = fields else { return Ok(()) };
                    let bytes = fields.iter().flatten().map(String::len).sum();
                    let (line, shown) = (decoder.line(), decoder.shown());
                    let row = values(&self.columns, fields, &eval)
                        .map_err(|error| placed(&self.table, error, line, Some(shown.clone())))?;
                    (row, bytes, Origin { line, shown: Some(shown) })
                }
                Input::Binary(decoder) => {
                    let (row, bytes) = decoder
                        .next_row(last, &self.columns)
                        .map_err(|error| placed(&self.table, error, decoder.line(), None))?;
                    let Some(row) = row else { return Ok(()) };
                    (row, bytes, Origin { line: decoder.line(), shown: None })
                }
            };
            let pushed = self.rows.push(row, bytes, origin).await;
            pushed.map_err(|refused| place(&self.table, refused))?;
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
fn placed(table: &str, mut error: Error, line: u64, shown: Option<String>) -> Error {
    let context = &mut error.fields_mut().context;
    *context = Some(match (context.take(), shown) {
        (Some(column), _) => format!("COPY {table}, line {line}, {column}"),
        (None, Some(row)) => format!("COPY {table}, line {line}: \"{row}\""),
        (None, None) => format!("COPY {table}, line {line}"),
    });
    error
}

fn values(
    columns: &[(String, SqlType)],
    fields: Vec<Field>,
    eval: &EvalContext<'_>,
) -> Result<Row> {
    if fields.len() > columns.len() {
        return Err(malformed("extra data after last expected column"));
    }
    let missing = columns.get(fields.len()).map(|(name, _)| name);
    let row = fields
        .into_iter()
        .zip(columns)
        .map(|(field, (name, ty))| match field {
            None => Ok(Datum::Null),
            Some(text) => crate::expr::cast::input(&text, ty, eval)
                .and_then(|v| crate::expr::cast::fit(v, ty))
                .map_err(|error| error.context(format!("column {name}: \"{}\"", shortened(&text)))),
        })
        .collect::<Result<Row>>()?;
    // PostgreSQL converts what is there before it looks for more.
    match missing {
        Some(missing) => Err(malformed(format!("missing data for column \"{missing}\""))),
        None => Ok(row),
    }
}

#[async_trait]
impl CopyInTarget for CopyIn {
    async fn data(&mut self, data: Bytes) -> Result<()> {
        // Large pieces are taken apart so that a row is done before the next is held.
        for piece in data.chunks(64 << 10) {
            match &mut self.input {
                Input::Lines(decoder) => decoder.feed(piece)?,
                Input::Binary(decoder) => decoder.feed(piece)?,
            }
            self.drain(false).await?;
        }
        Ok(())
    }

    async fn finish(&mut self) -> Result<u64> {
        self.drain(true).await?;
        let finished = self.rows.finish().await;
        finished.map_err(|refused| place(&self.table, refused))
    }
}
