//! Rows as COPY text and csv, both ways.
//!
//! # Invariants
//! - `decode(encode(row)) = row` for every row and every set of options that [`Options`] accepts.
//! - The decoder holds one row, at most [`MAX_ROW_BYTES`] of it.

use std::ops::Range;

use crate::error::{Error, Result, SqlState};
use crate::session::CopyFormat;

use super::options::Options;

/// Longest row that is accepted, bytes.
pub(super) const MAX_ROW_BYTES: usize = 256 << 20;

/// A column's value; `None` is NULL.
pub(super) type Field = Option<String>;

/// Longest value or row shown in a message, bytes.
const SHOWN_BYTES: usize = 100;

/// The text as messages show it.
pub(super) fn shortened(text: &str) -> String {
    if text.len() <= SHOWN_BYTES {
        return text.to_owned();
    }
    let end = (0..=SHOWN_BYTES).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(0);
    format!("{}...", &text[..end])
}

pub(super) fn malformed(message: impl Into<String>) -> Error {
    Error::new(SqlState::BAD_COPY_FILE_FORMAT, message)
}

/// Cuts a stream of bytes into rows.
#[derive(Debug)]
pub(super) struct Decoder {
    options: Options,
    pending: Vec<u8>,
    /// Where the bytes not taken yet begin.
    begin: usize,
    /// Bytes of `pending` known to hold no end of a row.
    scanned: usize,
    quoted: bool,
    line: u64,
    /// Where the last row is, until more data comes.
    row: Range<usize>,
    /// The header has been passed.
    headed: bool,
    ended: bool,
}

impl Decoder {
    /// At the start of the data.
    pub fn new(options: Options) -> Self {
        Self {
            options,
            pending: Vec::new(),
            begin: 0,
            scanned: 0,
            quoted: false,
            line: 0,
            row: 0..0,
            headed: false,
            ended: false,
        }
    }

    /// Line the last row ended on, from 1; csv values may hold line ends.
    pub fn line(&self) -> u64 {
        self.line
    }

    /// The last row as it was given, cut as PostgreSQL cuts it for messages.
    pub fn shown(&self) -> String {
        let row = self.pending.get(self.row.clone()).unwrap_or_default();
        shortened(&String::from_utf8_lossy(row))
    }

    /// Takes a piece of data.
    pub fn feed(&mut self, data: &[u8]) -> Result<()> {
        self.pending.drain(..self.begin);
        self.scanned -= self.begin;
        self.begin = 0;
        self.row = 0..0;
        if self.scanned > MAX_ROW_BYTES {
            return Err(malformed(format!("a row is longer than {MAX_ROW_BYTES} bytes")));
        }
        self.pending.extend_from_slice(data);
        Ok(())
    }

    /// The next whole row, or `None` when more data is needed. At the end (`last`) a row may lack its line end.
    pub fn next_row(&mut self, last: bool) -> Result<Option<Vec<Field>>> {
        loop {
            if self.ended {
                self.begin = self.pending.len();
                self.scanned = self.begin;
                return Ok(None);
            }
            let mut end = match self.find_end() {
                Some(end) => end,
                None if last && self.begin < self.pending.len() => {
                    self.line += 1;
                    self.row = self.begin..self.pending.len();
                    if self.quoted {
                        return Err(malformed("unterminated CSV quoted field"));
                    }
                    self.line -= 1;
                    self.pending.len()
                }
                None => return Ok(None),
            };
            let start = self.begin;
            self.begin = (end + 1).min(self.pending.len());
            self.scanned = self.begin;
            self.quoted = false;
            if end > start && self.pending[end - 1] == b'\r' {
                end -= 1;
            }
            self.row = start..end;
            let bytes = &self.pending[start..end];
            self.line += 1;
            if self.options.format == CopyFormat::Csv {
                self.line += bytes.iter().filter(|byte| **byte == b'\n').count() as u64;
            }
            if bytes == b"\\." {
                self.ended = true;
                continue;
            }
            let row = std::str::from_utf8(bytes).map_err(|_| {
                Error::new(
                    SqlState::CHARACTER_NOT_IN_REPERTOIRE,
                    "invalid byte sequence for encoding \"UTF8\"",
                )
            })?;
            if self.options.header && !std::mem::replace(&mut self.headed, true) {
                continue;
            }
            let fields = match self.options.format {
                CopyFormat::Csv => self.csv(row)?,
                _ => self.text(row)?,
            };
            return Ok(Some(fields));
        }
    }

    /// Position of the newline that ends the first row.
    fn find_end(&mut self) -> Option<usize> {
        let csv = self.options.format == CopyFormat::Csv;
        while let Some(byte) = self.pending.get(self.scanned).copied() {
            if csv {
                if self.quoted
                    && byte == self.options.escape
                    && self.options.escape != self.options.quote
                {
                    // The byte after it belongs to the value; wait for it.
                    self.pending.get(self.scanned + 1)?;
                    self.scanned += 2;
                    continue;
                }
                if byte == self.options.quote {
                    self.quoted = !self.quoted;
                }
                if byte == b'\n' && !self.quoted {
                    return Some(self.scanned);
                }
            } else if byte == b'\\' {
                self.pending.get(self.scanned + 1)?;
                self.scanned += 2;
                continue;
            } else if byte == b'\n' {
                return Some(self.scanned);
            }
            self.scanned += 1;
        }
        None
    }

    fn text(&self, row: &str) -> Result<Vec<Field>> {
        let bytes = row.as_bytes();
        let mut fields = Vec::new();
        let mut start = 0;
        let mut at = 0;
        loop {
            match bytes.get(at) {
                Some(b'\\') if at + 1 < bytes.len() => at += 2,
                Some(byte) if *byte != self.options.delimiter => at += 1,
                end => {
                    let raw = &row[start..at];
                    fields.push(if raw == self.options.null { None } else { Some(unescape(raw)?) });
                    if end.is_none() {
                        return Ok(fields);
                    }
                    at += 1;
                    start = at;
                }
            }
        }
    }

    fn csv(&self, row: &str) -> Result<Vec<Field>> {
        let bytes = row.as_bytes();
        let (quote, escape) = (self.options.quote, self.options.escape);
        let mut fields = Vec::new();
        let mut value: Vec<u8> = Vec::new();
        let mut was_quoted = false;
        let mut inside = false;
        let mut at = 0;
        loop {
            let byte = bytes.get(at).copied();
            match byte {
                Some(b)
                    if inside
                        && b == escape
                        && bytes.get(at + 1).is_some_and(|n| *n == quote || *n == escape) =>
                {
                    value.push(bytes[at + 1]);
                    at += 2;
                    continue;
                }
                Some(b) if b == quote => {
                    inside = !inside;
                    was_quoted = true;
                }
                Some(b) if inside || b != self.options.delimiter => value.push(b),
                _ => {
                    let text = String::from_utf8(std::mem::take(&mut value))
                        .map_err(|_| Error::internal("csv is cut at ASCII bytes"))?;
                    let null = !was_quoted && text == self.options.null;
                    fields.push(if null { None } else { Some(text) });
                    was_quoted = false;
                    if byte.is_none() {
                        return Ok(fields);
                    }
                }
            }
            at += 1;
        }
    }
}

fn unescape(raw: &str) -> Result<String> {
    if !raw.contains('\\') {
        return Ok(raw.to_owned());
    }
    let bytes = raw.as_bytes();
    let mut out = Vec::with_capacity(bytes.len());
    let mut at = 0;
    while let Some(byte) = bytes.get(at).copied() {
        at += 1;
        if byte != b'\\' {
            out.push(byte);
            continue;
        }
        let Some(next) = bytes.get(at).copied() else {
            out.push(b'\\');
            break;
        };
        at += 1;
        match next {
            b'b' => out.push(8),
            b'f' => out.push(12),
            b'n' => out.push(b'\n'),
            b'r' => out.push(b'\r'),
            b't' => out.push(b'\t'),
            b'v' => out.push(11),
            b'0'..=b'7' => {
                let mut code = u32::from(next - b'0');
                for _ in 0..2 {
                    match bytes.get(at) {
                        Some(digit @ b'0'..=b'7') => {
                            code = code * 8 + u32::from(digit - b'0');
                            at += 1;
                        }
                        _ => break,
                    }
                }
                out.push((code & 0xFF) as u8);
            }
            b'x' if bytes.get(at).is_some_and(u8::is_ascii_hexdigit) => {
                let mut code = 0_u32;
                for _ in 0..2 {
                    match bytes.get(at).and_then(|b| char::from(*b).to_digit(16)) {
                        Some(digit) => {
                            code = code * 16 + digit;
                            at += 1;
                        }
                        None => break,
                    }
                }
                out.push((code & 0xFF) as u8);
            }
            other => out.push(other),
        }
    }
    String::from_utf8(out).map_err(|_| {
        Error::new(
            SqlState::CHARACTER_NOT_IN_REPERTOIRE,
            "invalid byte sequence for encoding \"UTF8\"",
        )
    })
}

/// A row as one line, its end included. `forced` tells which columns csv quotes always.
pub(super) fn encode(fields: &[Field], options: &Options, forced: &[bool]) -> Vec<u8> {
    let mut out = Vec::new();
    for (at, field) in fields.iter().enumerate() {
        if at > 0 {
            out.push(options.delimiter);
        }
        match (field, options.format) {
            (None, _) => out.extend_from_slice(options.null.as_bytes()),
            (Some(text), CopyFormat::Csv) => {
                let forced = forced.get(at).copied().unwrap_or(false);
                csv_value(text, options, forced, fields.len() == 1, &mut out);
            }
            (Some(text), _) => text_value(text, options.delimiter, &mut out),
        }
    }
    out.push(b'\n');
    out
}

fn csv_value(text: &str, options: &Options, forced: bool, alone: bool, out: &mut Vec<u8>) {
    let special =
        |b: u8| b == options.delimiter || b == options.quote || matches!(b, b'\n' | b'\r');
    // The end-of-data mark alone on a line would end the data.
    let quoted =
        forced || text == options.null || text.bytes().any(special) || (alone && text == "\\.");
    if !quoted {
        out.extend_from_slice(text.as_bytes());
        return;
    }
    out.push(options.quote);
    for byte in text.bytes() {
        if byte == options.quote || byte == options.escape {
            out.push(options.escape);
        }
        out.push(byte);
    }
    out.push(options.quote);
}

fn text_value(text: &str, delimiter: u8, out: &mut Vec<u8>) {
    for byte in text.bytes() {
        let short = match byte {
            b'\\' => b'\\',
            8 => b'b',
            12 => b'f',
            b'\n' => b'n',
            b'\r' => b'r',
            b'\t' => b't',
            11 => b'v',
            byte if byte == delimiter => byte,
            byte => {
                out.push(byte);
                continue;
            }
        };
        out.push(b'\\');
        out.push(short);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn options(format: CopyFormat) -> Options {
        let text = format == CopyFormat::Text;
        Options {
            format,
            delimiter: if text { b'\t' } else { b',' },
            null: if text { "\\N".to_owned() } else { String::new() },
            header: false,
            quote: b'"',
            escape: b'"',
            force_quote: Vec::new(),
        }
    }

    fn decode_all(data: &[u8], cut: usize, options: Options) -> Vec<Vec<Field>> {
        let mut decoder = Decoder::new(options);
        let mut rows = Vec::new();
        for piece in data.chunks(cut.max(1)) {
            decoder.feed(piece).expect("fits");
            while let Some(row) = decoder.next_row(false).expect("well formed") {
                rows.push(row);
            }
        }
        while let Some(row) = decoder.next_row(true).expect("well formed") {
            rows.push(row);
        }
        rows
    }

    #[test]
    fn csv_open_quote_at_end_is_refused() {
        let mut decoder = Decoder::new(options(CopyFormat::Csv));
        decoder.feed(b"a,\"b\n").expect("fits");
        assert!(decoder.next_row(false).expect("waits").is_none());
        assert_eq!(decoder.next_row(true).expect_err("open quote").code().0, "22P04");
    }

    #[test]
    fn text_end_mark_stops_the_data() {
        let rows = decode_all(b"1\n\\.\nignored\n", 3, options(CopyFormat::Text));
        assert_eq!(rows, vec![vec![Some("1".to_owned())]]);
    }

    proptest! {
        #[test]
        fn rows_cut_anywhere_round_trip(
            rows in prop::collection::vec(
                prop::collection::vec(prop::option::of("[a-z\\\\\t\n\r\",.N ]{0,6}"), 2..4), 1..5),
            cut in 1_usize..9,
            csv in any::<bool>(),
        ) {
            let options = options(if csv { CopyFormat::Csv } else { CopyFormat::Text });
            let data: Vec<u8> =
                rows.iter().flat_map(|row| encode(row, &options, &[])).collect();
            // An unquoted carriage return before the line end cannot be told from the line end: it is quoted.
            prop_assert_eq!(decode_all(&data, cut, options), rows);
        }
    }
}
