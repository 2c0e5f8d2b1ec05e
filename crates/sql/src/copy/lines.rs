//! Rows as COPY text and csv, both ways.
//!
//! # Invariants
//! - `decode(encode(row)) = row` for every row and every set of options that [`Options`] accepts.
//! - The decoder holds one row, at most [`MAX_ROW_BYTES`] of it.

use std::borrow::Cow;

use bytes::{Bytes, BytesMut};

use crate::error::{Error, Result, SqlState};
use crate::plan::CopyFormat;

use super::line_ends::{Form, LineEnd, LineEnds};
use super::options::Options;

/// Longest row that is accepted, bytes.
pub(super) const MAX_ROW_BYTES: usize = 256 << 20;

/// A column's value; `None` is NULL.
pub(super) type Field<'a> = Option<Cow<'a, str>>;

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
    /// Columns that are never NULL, and those that are so in quotes too.
    forced: (Vec<bool>, Vec<bool>),
    /// What was not taken yet.
    pending: BytesMut,
    ends: LineEnds,
    line: u64,
    /// The last row.
    row: Bytes,
    /// The header has been passed.
    headed: bool,
    ended: bool,
}

impl Decoder {
    /// At the start of the data.
    pub fn new(options: Options) -> Self {
        Self {
            options,
            forced: (Vec::new(), Vec::new()),
            pending: BytesMut::new(),
            ends: LineEnds::default(),
            line: 0,
            row: Bytes::new(),
            headed: false,
            ended: false,
        }
    }

    /// With FORCE_NOT_NULL and FORCE_NULL, a flag for each column.
    pub fn forcing(mut self, not_null: Vec<bool>, null: Vec<bool>) -> Self {
        self.forced = (not_null, null);
        self
    }

    /// Line the last row ended on, from 1; csv values may hold line ends.
    pub fn line(&self) -> u64 {
        self.line
    }

    /// The last row as it was given.
    pub fn row(&self) -> &Bytes {
        &self.row
    }

    /// Takes a piece of data.
    pub fn feed(&mut self, data: &[u8]) -> Result<()> {
        self.row = Bytes::new();
        if self.ends.scanned() > MAX_ROW_BYTES {
            return Err(malformed(format!("a row is longer than {MAX_ROW_BYTES} bytes")));
        }
        self.pending.extend_from_slice(data);
        Ok(())
    }

    /// Takes the next whole row; `false` when more data is needed. At the end (`last`) a row may
    /// lack its line end.
    pub fn next_row(&mut self, last: bool) -> Result<bool> {
        loop {
            if self.ended {
                self.pending.clear();
                self.ends.restart();
                return Ok(false);
            }
            let end = match self.ends.find(&self.pending, self.form(), last) {
                Ok(Some(end)) => end,
                Ok(None) if last && !self.pending.is_empty() => {
                    if self.ends.quoted() {
                        self.line += 1;
                        self.row = self.pending.split().freeze();
                        return Err(malformed("unterminated CSV quoted field"));
                    }
                    LineEnd { at: self.pending.len(), next: self.pending.len(), mark: false }
                }
                Ok(None) => return Ok(false),
                Err(error) => {
                    self.line += 1;
                    self.row = self.pending.split_to(self.ends.scanned()).freeze();
                    return Err(error);
                }
            };
            let mut row = self.pending.split_to(end.next);
            self.ends.restart();
            row.truncate(end.at);
            self.row = row.freeze();
            self.line += 1;
            let csv = self.options.format == CopyFormat::Csv;
            if csv {
                self.line += self.row.iter().filter(|byte| **byte == b'\n').count() as u64;
            }
            self.ended = end.mark || csv && &self.row[..] == b"\\.";
            if self.ended && (csv || self.row.is_empty()) {
                continue;
            }
            if self.options.header && !std::mem::replace(&mut self.headed, true) {
                text_of(&self.row)?;
                if self.options.header_match {
                    self.header_matches()?;
                }
                continue;
            }
            return Ok(true);
        }
    }

    /// Refuses a header that does not name the columns.
    fn header_matches(&self) -> Result<()> {
        let bad = |message: String| Err(Error::new(SqlState::BAD_COPY_FILE_FORMAT, message));
        let names = self.fields()?;
        let wanted = &self.options.header_names;
        if names.len() != wanted.len() {
            return bad(format!(
                "wrong number of fields in header line: got {}, expected {}",
                names.len(),
                wanted.len()
            ));
        }
        for (number, (name, wanted)) in names.iter().zip(wanted).enumerate() {
            if name.as_deref() != Some(wanted.as_str()) {
                let number = number + 1;
                let got = name.as_deref().unwrap_or("");
                return bad(format!(
                    "column name mismatch in header line field {number}: got \"{got}\", expected \"{wanted}\""
                ));
            }
        }
        Ok(())
    }

    /// The values of the last row.
    pub fn fields(&self) -> Result<Vec<Field<'_>>> {
        let row = text_of(&self.row)?;
        match self.options.format {
            CopyFormat::Csv => self.csv(row),
            _ => self.text(row),
        }
    }

    fn form(&self) -> Form {
        match self.options.format {
            CopyFormat::Csv => Form::Csv { quote: self.options.quote, escape: self.options.escape },
            _ => Form::Text,
        }
    }

    fn text<'r>(&self, row: &'r str) -> Result<Vec<Field<'r>>> {
        let bytes = row.as_bytes();
        let mut fields = Vec::with_capacity(8);
        let (mut start, mut at, mut escaped) = (0, 0, false);
        loop {
            let found = memchr::memchr2(self.options.delimiter, b'\\', &bytes[at..]);
            let end = found.map_or(bytes.len(), |found| at + found);
            if bytes.get(end) == Some(&b'\\') {
                // The byte after it belongs to the value.
                escaped = true;
                at = (end + 2).min(bytes.len());
                continue;
            }
            let raw = &row[start..end];
            fields.push(match raw == self.options.null {
                true => None,
                false if escaped => Some(Cow::Owned(unescape(raw)?)),
                false => Some(Cow::Borrowed(raw)),
            });
            if end == bytes.len() {
                return Ok(fields);
            }
            at = end + 1;
            (start, escaped) = (at, false);
        }
    }

    fn csv<'r>(&self, row: &'r str) -> Result<Vec<Field<'r>>> {
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
                    let forced = |flags: &[bool]| flags.get(fields.len()) == Some(&true);
                    let null = text == self.options.null
                        && if was_quoted {
                            forced(&self.forced.1)
                        } else {
                            !forced(&self.forced.0)
                        };
                    fields.push(if null { None } else { Some(Cow::Owned(text)) });
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

fn not_utf8(shown: &str) -> Error {
    Error::new(
        SqlState::CHARACTER_NOT_IN_REPERTOIRE,
        format!("invalid byte sequence for encoding \"UTF8\"{shown}"),
    )
}

/// The text of bytes that are some, without the byte 0, which no text has.
fn text_of(row: &[u8]) -> Result<&str> {
    if memchr::memchr(0, row).is_some() {
        return Err(not_utf8(": 0x00"));
    }
    std::str::from_utf8(row).map_err(|_| not_utf8(""))
}

fn unescape(raw: &str) -> Result<String> {
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
    text_of(&out)?;
    String::from_utf8(out).map_err(|_| not_utf8(""))
}

/// A row that stands alone.
pub(super) fn owned(fields: Vec<Field<'_>>) -> Vec<Field<'static>> {
    fields.into_iter().map(|field| field.map(|text| Cow::Owned(text.into_owned()))).collect()
}

/// A row as one line, its end included. `forced` tells which columns csv quotes always.
pub(super) fn encode(fields: &[Field<'_>], options: &Options, forced: &[bool]) -> Vec<u8> {
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
            header_match: false,
            header_names: Vec::new(),
            force_not_null: Vec::new(),
            force_null: Vec::new(),
            condition: None,
        }
    }

    #[test]
    fn what_stands_for_null_is_forced_to_be_one_or_none() {
        let mut decoder =
            Decoder::new(options(CopyFormat::Csv)).forcing(vec![true, false], vec![false, true]);
        decoder.feed(b",\"\",\n").expect("fits");
        assert!(decoder.next_row(false).expect("a row"));
        let fields = decoder.fields().expect("well formed");
        assert_eq!(fields, [Some("".into()), None, None]);
    }

    fn decode_all(data: &[u8], cut: usize, options: Options) -> Vec<Vec<Field<'static>>> {
        let mut decoder = Decoder::new(options);
        let mut rows = Vec::new();
        for piece in data.chunks(cut.max(1)) {
            decoder.feed(piece).expect("fits");
            while decoder.next_row(false).expect("well formed") {
                rows.push(owned(decoder.fields().expect("well formed")));
            }
        }
        while decoder.next_row(true).expect("well formed") {
            rows.push(owned(decoder.fields().expect("well formed")));
        }
        rows
    }

    #[test]
    fn csv_open_quote_at_end_is_refused() {
        let mut decoder = Decoder::new(options(CopyFormat::Csv));
        decoder.feed(b"a,\"b\n").expect("fits");
        assert!(!decoder.next_row(false).expect("waits"));
        assert_eq!(decoder.next_row(true).expect_err("open quote").code().0, "22P04");
    }

    #[test]
    fn text_end_mark_stops_the_data() {
        let rows = decode_all(b"1\n\\.\nignored\n", 3, options(CopyFormat::Text));
        assert_eq!(rows, vec![vec![Some("1".into())]]);
    }

    fn refusal(data: &[u8], cut: usize, options: Options) -> String {
        let mut decoder = Decoder::new(options);
        for piece in data.chunks(cut) {
            decoder.feed(piece).expect("fits");
            loop {
                match decoder
                    .next_row(false)
                    .and_then(|row| Ok(row && !decoder.fields()?.is_empty()))
                {
                    Ok(true) => {}
                    Ok(false) => break,
                    Err(error) => return format!("{} {}", error.code().0, error.message()),
                }
            }
        }
        "none".to_owned()
    }

    #[test]
    fn the_first_line_end_says_what_a_line_end_is() {
        let text = || options(CopyFormat::Text);
        let csv = || options(CopyFormat::Csv);
        let one = |value: &str| vec![Some(Cow::Owned(value.to_owned()))];
        for cut in 1..9 {
            for data in ["a\nb\n", "a\r\nb\r\n", "a\rb\r", "a\nb", "a\rb", "a\r\nb\\.\r\n"] {
                assert_eq!(
                    decode_all(data.as_bytes(), cut, text()),
                    [one("a"), one("b")],
                    "{data:?}"
                );
            }
            for data in ["a\nb\n", "a\r\nb\r\n\\.\r\n", "a\rb\r\\.\rc"] {
                assert_eq!(
                    decode_all(data.as_bytes(), cut, csv()),
                    [one("a"), one("b")],
                    "{data:?}"
                );
            }
            assert_eq!(decode_all(b"\"a\r\nb\"\rc\r", cut, csv()), [one("a\r\nb"), one("c")]);
            let refused = [
                ("a\nb\r", "22P04 literal carriage return found in data"),
                ("a\r\nb\n", "22P04 literal newline found in data"),
                ("a\r\nb\rc", "22P04 literal carriage return found in data"),
                ("a\n\\.b\n", "22P04 end-of-copy marker corrupt"),
                ("a\n\\.\r\n", "22P04 end-of-copy marker does not match previous newline style"),
                ("a\0\n", "22021 invalid byte sequence for encoding \"UTF8\": 0x00"),
                ("a\\0\n", "22021 invalid byte sequence for encoding \"UTF8\": 0x00"),
            ];
            for (data, wanted) in refused {
                assert_eq!(refusal(data.as_bytes(), cut, text()), wanted, "{data:?}");
            }
            let wanted = "22P04 unquoted newline found in data";
            assert_eq!(refusal(b"a\r\nb\n", cut, csv()), wanted);
        }
    }

    proptest! {
        #[test]
        fn rows_cut_anywhere_round_trip(
            rows in prop::collection::vec(
                prop::collection::vec(prop::option::of("[a-z\\\\\t\n\r\",.N ]{0,6}"), 2..4), 1..5),
            cut in 1_usize..9,
            csv in any::<bool>(),
        ) {
            let rows: Vec<Vec<Field<'_>>> = rows
                .into_iter()
                .map(|row| row.into_iter().map(|field| field.map(Cow::Owned)).collect())
                .collect();
            let options = options(if csv { CopyFormat::Csv } else { CopyFormat::Text });
            let data: Vec<u8> =
                rows.iter().flat_map(|row| encode(row, &options, &[])).collect();
            // An unquoted carriage return before the line end cannot be told from the line end: it
            // is quoted.
            prop_assert_eq!(decode_all(&data, cut, options), rows);
        }
    }
}
