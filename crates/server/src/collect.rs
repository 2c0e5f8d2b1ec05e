//! Results of SQL as text, for [`crate::inside`].
//!
//! # Purpose
//! Takes rows as they come and keeps what an answer may have.
//!
//! # Invariants
//! - What is kept has no more bytes, as JSON has them, than were asked for; the first row is no
//!   exception.
//! - The tag of a write tells the rows that were written, whichever are kept; that of a query tells
//!   those that are.
//!
//! # On failure
//! A row that would not fit into an empty answer fails its statement, unless it was written: then
//! it is left out.
//!
//! # Limits
//! `MOST_RESULTS` results are kept; those of further statements are counted.

use async_trait::async_trait;
use futures::TryStreamExt as _;
use telesto_sql::types::TextStyle;
use telesto_sql::{Datum, Error, ResultSink, Row, Rows, SqlState, SqlType, StatementResult};

use crate::inside::{Answer, Answered};

/// Results of one run that are kept.
const MOST_RESULTS: usize = 50;

/// Keeps results as text, within bounds.
pub struct Collect {
    style: TextStyle,
    max_rows: usize,
    max_bytes: usize,
    bytes_left: usize,
    /// Another statement has begun behind the last result.
    followed: bool,
    /// What came.
    pub answer: Answer,
}

impl Collect {
    /// Nothing yet; at most so many rows of a result, and so many bytes of all.
    pub fn new(style: TextStyle, max_rows: usize, max_bytes: usize) -> Self {
        let (bytes_left, followed) = (max_bytes, false);
        Self { style, max_rows, max_bytes, bytes_left, followed, answer: Answer::default() }
    }

    /// The answer of a run that ended so. Where its commit has failed the last statement is not
    /// told as done.
    pub fn ended(mut self, ran: telesto_sql::Result<()>) -> Answer {
        self.answer.error = ran.err();
        if self.answer.error.is_some() && !self.followed {
            match self.answer.left_out.checked_sub(1) {
                Some(others) => self.answer.left_out = others,
                None => drop(self.answer.results.pop()),
            }
        }
        self.answer
    }

    /// Whether there is room for more rows after this one.
    fn keep(&mut self, result: &mut Answered, row: &Row, wrote: bool) -> telesto_sql::Result<bool> {
        if result.cut || result.rows.len() >= self.max_rows || self.bytes_left == 0 {
            result.cut = true;
            return Ok(false);
        }
        let Some((texts, bytes)) = self.texts(&result.columns, row) else {
            // Alone it does not fit either, and where nothing is shown nobody could tell why. A
            // write has been made all the same.
            let alone = self.bytes_left == self.max_bytes && result.rows.is_empty() && !wrote;
            if alone {
                return Err(self.too_long());
            }
            result.cut = true;
            self.bytes_left = 0;
            return Ok(false);
        };
        self.bytes_left -= bytes;
        result.rows.push(texts);
        Ok(true)
    }

    /// The row's values and their bytes in an answer; `None`: there is no room for them.
    fn texts(
        &self,
        columns: &[(String, SqlType)],
        row: &Row,
    ) -> Option<(Vec<Option<String>>, usize)> {
        let mut texts = Vec::with_capacity(columns.len());
        let mut bytes = 0_usize;
        for ((_, ty), datum) in columns.iter().zip(row) {
            // What cannot fit is not made into text first.
            let least = held(datum);
            let room = self.bytes_left.checked_sub(bytes)?;
            let text = match datum.is_null() {
                true => None,
                false if least > room => return None,
                false => Some(datum.to_text(ty, &self.style)),
            };
            bytes += text.as_deref().map_or(NULL, json_bytes);
            texts.push(text);
        }
        let bytes = bytes.max(1);
        (bytes <= self.bytes_left).then_some((texts, bytes))
    }

    fn too_long(&self) -> Error {
        let text = format!("a row does not fit into the {} bytes of an answer", self.max_bytes);
        Error::new(SqlState::PROGRAM_LIMIT_EXCEEDED, text)
            .hint("Select fewer columns, or a part of a long value: left(value, 1000). psql has no such bound.")
    }
}

/// `null` and its comma.
const NULL: usize = 5;

/// What a value has in memory if that can be much: its text is no shorter.
fn held(datum: &Datum) -> usize {
    match datum {
        Datum::Text(text) => text.len(),
        Datum::Json(text) => text.len(),
        Datum::Bytea(bytes) => bytes.len(),
        Datum::Bits(bits) => bits.len(),
        _ => 0,
    }
}

/// The bytes of `text` as JSON has it, with quotes and a comma.
fn json_bytes(text: &str) -> usize {
    let of = |byte: u8| match byte {
        b'"' | b'\\' | b'\n' | b'\r' | b'\t' | 8 | 12 => 2,
        0..0x20 => 6,
        _ => 1,
    };
    text.bytes().map(of).sum::<usize>() + 3
}

#[async_trait]
impl ResultSink for Collect {
    async fn result(&mut self, result: StatementResult) -> telesto_sql::Result<()> {
        let mut answered = Answered::default();
        match result {
            StatementResult::Rows { columns, rows, tag } => {
                answered.columns =
                    columns.iter().map(|column| (column.name.clone(), column.ty.clone())).collect();
                let writes = ["INSERT", "UPDATE", "DELETE", "MERGE"];
                let wrote = writes.iter().any(|word| tag.starts_with(word));
                let mut came = 0;
                match rows {
                    Rows::Ready(rows) => {
                        came = rows.len();
                        for row in &rows {
                            if !self.keep(&mut answered, row, wrote)? {
                                break;
                            }
                        }
                    }
                    Rows::Stream(mut stream) => {
                        'rows: while let Some(batch) = stream.try_next().await? {
                            came += batch.len();
                            for row in &batch {
                                // What was written is counted to its end.
                                if !self.keep(&mut answered, row, wrote)? && !wrote {
                                    break 'rows;
                                }
                            }
                        }
                    }
                }
                let told = if wrote { came } else { answered.rows.len() };
                answered.tag = format!("{tag} {told}");
            }
            StatementResult::Command { tag } => answered.tag = tag,
            StatementResult::Empty => return Ok(()),
            StatementResult::CopyIn { .. } | StatementResult::CopyOut { .. } => {
                return Err(Error::unsupported("COPY to or from the client, over HTTP")
                    .hint("Use psql, or COPY over the Postgres port."));
            }
        }
        if self.answer.results.len() < MOST_RESULTS {
            self.answer.results.push(answered);
        } else {
            self.answer.left_out += 1;
        }
        self.followed = false;
        Ok(())
    }

    fn begins(&mut self) {
        self.followed = true;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_of_a_text_are_those_that_json_takes() {
        for text in ["", "plain", "\"quoted\" \\ \n\r\t", "\u{1}\u{8}\u{c}\u{1f}\u{7f}", "é😀"] {
            let json = serde_json::to_string(text).expect("a text");
            assert_eq!(json_bytes(text), json.len() + 1, "{text:?}");
        }
        assert_eq!(NULL, "null,".len());
    }
}
