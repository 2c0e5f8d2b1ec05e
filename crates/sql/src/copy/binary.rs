//! Rows in COPY's binary format, both ways.
//!
//! # Format
//! The signature, a 32-bit flags field, the length of a header extension and the extension; then
//! rows: a 16-bit number of fields, each a 32-bit length (-1 for NULL) and that many bytes in the
//! type's binary form; then -1 for the number of fields.
//!
//! # Invariants
//! - `decode(encode(row)) = row` for every row.
//! - The decoder holds one row, at most [`MAX_ROW_BYTES`] of it, beside what was fed last.

use bytes::{BufMut, BytesMut};

use super::lines::{MAX_ROW_BYTES, malformed};
use crate::error::{Error, Result};
use crate::types::Row;
use crate::types::{Datum, SqlType};

const SIGNATURE: &[u8; 11] = b"PGCOPY\n\xff\r\n\0";
/// Flags a reader may not ignore.
const CRITICAL_FLAGS: u32 = 0xFFFF_0000;
const NULL: i32 = -1;
const END: i16 = -1;

/// Cuts a stream of bytes into rows.
#[derive(Debug, Default)]
pub(super) struct BinaryDecoder {
    pending: Vec<u8>,
    begin: usize,
    line: u64,
    headed: bool,
    ended: bool,
}

/// Reads numbers off the front; `None` where the data ends first.
struct Cursor<'a>(&'a [u8]);

impl<'a> Cursor<'a> {
    fn take(&mut self, length: usize) -> Option<&'a [u8]> {
        let (head, rest) = self.0.split_at_checked(length)?;
        self.0 = rest;
        Some(head)
    }

    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        self.take(N)?.try_into().ok()
    }
}

impl BinaryDecoder {
    /// Number of the last row, from 1.
    pub fn line(&self) -> u64 {
        self.line
    }

    /// Takes a piece of data.
    pub fn feed(&mut self, data: &[u8]) -> Result<()> {
        self.pending.drain(..self.begin);
        self.begin = 0;
        if self.pending.len() > MAX_ROW_BYTES {
            return Err(malformed(format!("a row is longer than {MAX_ROW_BYTES} bytes")));
        }
        self.pending.extend_from_slice(data);
        Ok(())
    }

    /// The next whole row and its size, or `None` when more data is needed. The data may end
    /// (`last`) without its end mark.
    pub fn next_row(
        &mut self,
        last: bool,
        columns: &[(String, SqlType)],
    ) -> Result<(Option<Row>, usize)> {
        let cut = || malformed("unexpected EOF in COPY data");
        if !self.headed {
            match self.header()? {
                Some(length) => self.begin += length,
                None if last => return Err(malformed("COPY file signature not recognized")),
                None => return Ok((None, 0)),
            }
            self.headed = true;
        }
        let rest = &self.pending[self.begin..];
        if self.ended {
            if rest.is_empty() {
                return Ok((None, 0));
            }
            return Err(malformed("received copy data after EOF marker"));
        }
        let mut cursor = Cursor(rest);
        let Some(fields) = cursor.array().map(i16::from_be_bytes) else {
            return if last && !rest.is_empty() { Err(cut()) } else { Ok((None, 0)) };
        };
        if fields == END {
            self.begin += size_of::<i16>();
            self.ended = true;
            return self.next_row(last, columns);
        }
        if usize::try_from(fields) != Ok(columns.len()) {
            self.line += 1;
            return Err(malformed(format!(
                "row field count is {fields}, expected {}",
                columns.len()
            )));
        }
        // First only its length: values are made when all of them are there.
        let mut ahead = Cursor(cursor.0);
        for _ in columns {
            let Some(length) = ahead.array().map(i32::from_be_bytes) else {
                return if last { Err(cut()) } else { Ok((None, 0)) };
            };
            if length < NULL {
                self.line += 1;
                return Err(malformed("invalid field size"));
            }
            if length > NULL && ahead.take(usize::try_from(length).unwrap_or(0)).is_none() {
                return if last { Err(cut()) } else { Ok((None, 0)) };
            }
        }
        self.line += 1;
        let mut row = Vec::with_capacity(columns.len());
        for (name, ty) in columns {
            let length = cursor.array().map_or(NULL, i32::from_be_bytes);
            row.push(match usize::try_from(length) {
                Err(_) => Datum::Null,
                Ok(length) => Datum::from_binary(cursor.take(length).unwrap_or_default(), ty)
                    .and_then(|value| crate::expr::cast::fit(value, ty))
                    .map_err(|error| in_column(error, name))?,
            });
        }
        let begun = std::mem::replace(&mut self.begin, self.pending.len() - cursor.0.len());
        Ok((Some(row), self.begin - begun))
    }

    /// The length of the header, when it is there.
    fn header(&self) -> Result<Option<usize>> {
        let known = self.pending.len().min(SIGNATURE.len());
        if self.pending[..known] != SIGNATURE[..known] {
            return Err(malformed("COPY file signature not recognized"));
        }
        let mut cursor = Cursor(&self.pending[known..]);
        let flags = cursor.array().map(u32::from_be_bytes);
        if flags.is_some_and(|flags| flags & CRITICAL_FLAGS != 0) {
            return Err(malformed("unrecognized critical flags in COPY file header"));
        }
        let Some(extension) = cursor.array().map(i32::from_be_bytes) else { return Ok(None) };
        let extension = usize::try_from(extension)
            .map_err(|_| malformed("invalid COPY file header (missing length)"))?;
        Ok(cursor.take(extension).map(|_| self.pending.len() - cursor.0.len()))
    }
}

/// Notes the column; the row is added by whoever knows the table.
fn in_column(mut error: Error, name: &str) -> Error {
    error.fields_mut().context.get_or_insert_with(|| format!("column {name}"));
    error
}

/// Signature, flags and an empty extension.
pub(super) fn header(out: &mut BytesMut) {
    out.put_slice(SIGNATURE);
    out.put_u32(0);
    out.put_u32(0);
}

/// The end mark.
pub(super) fn trailer(out: &mut BytesMut) {
    out.put_i16(END);
}

/// One row.
pub(super) fn encode(row: &Row, types: &[SqlType], out: &mut BytesMut) {
    out.put_i16(i16::try_from(row.len()).unwrap_or(i16::MAX));
    for (value, ty) in row.iter().zip(types) {
        if value.is_null() {
            out.put_i32(NULL);
            continue;
        }
        let at = out.len();
        out.put_i32(0);
        value.to_binary(ty, out);
        let length = i32::try_from(out.len() - at - size_of::<i32>()).unwrap_or(i32::MAX);
        out[at..at + size_of::<i32>()].copy_from_slice(&length.to_be_bytes());
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn columns() -> Vec<(String, SqlType)> {
        vec![("a".to_owned(), SqlType::Int4), ("b".to_owned(), SqlType::Text)]
    }

    fn decode(data: &[u8], cut: usize) -> Result<Vec<Row>> {
        let mut decoder = BinaryDecoder::default();
        let mut rows = Vec::new();
        for piece in data.chunks(cut) {
            decoder.feed(piece)?;
            while let (Some(row), _) = decoder.next_row(false, &columns())? {
                rows.push(row);
            }
        }
        while let (Some(row), _) = decoder.next_row(true, &columns())? {
            rows.push(row);
        }
        Ok(rows)
    }

    fn encoded(rows: &[Row]) -> BytesMut {
        let types: Vec<SqlType> = columns().into_iter().map(|(_, ty)| ty).collect();
        let mut data = BytesMut::new();
        header(&mut data);
        rows.iter().for_each(|row| encode(row, &types, &mut data));
        trailer(&mut data);
        data
    }

    #[test]
    fn damaged_data_is_refused_with_what_is_wrong() {
        let good = encoded(&[vec![Datum::Int4(1), Datum::text("x")]]);
        let mut wide = good.clone();
        wide[20] = 3;
        let mut flags = good.clone();
        flags[11] = 1;
        let mut more = good.clone();
        more.put_u8(0);
        for (data, says) in [
            (&b"1\tone\n"[..], "signature"),
            (&b""[..], "signature"),
            (&wide[..], "row field count is 3, expected 2"),
            (&flags[..], "critical flags"),
            (&more[..], "after EOF marker"),
            (&good[..good.len() - 3], "unexpected EOF"),
        ] {
            let error = decode(data, 5).expect_err(says);
            assert!(error.message().contains(says), "{error} instead of {says}");
            assert_eq!(error.code().0, "22P04");
        }
        assert_eq!(decode(&good[..good.len() - 2], 5).expect("no end mark").len(), 1);
    }

    proptest! {
        #[test]
        fn rows_cut_anywhere_round_trip(
            rows in prop::collection::vec((any::<Option<i32>>(), prop::option::of(".{0,9}")), 0..5),
            cut in 1_usize..40,
        ) {
            let rows: Vec<Row> = rows
                .into_iter()
                .map(|(a, b)| {
                    let b = b.map(|b| b.replace('\0', ""));
                    vec![a.map_or(Datum::Null, Datum::Int4), b.map_or(Datum::Null, Datum::text)]
                })
                .collect();
            let decoded = decode(&encoded(&rows), cut).expect("decodes");
            prop_assert_eq!(format!("{decoded:?}"), format!("{rows:?}"));
        }
    }
}
