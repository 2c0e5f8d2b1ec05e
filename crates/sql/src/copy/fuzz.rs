//! What the fuzz targets call for COPY: lines of any bytes with any options a statement can give,
//! and binary rows, in any pieces.
//!
//! # Invariants
//! No panic; the rows do not depend on how the data was cut; a row that was read is written to data
//! that gives it back.
//!
//! # On failure
//! It panics: that is the finding.

use bytes::BytesMut;

use super::binary::{self, BinaryDecoder};
use super::lines::{Decoder, Field, encode, owned};
use super::options::Options;
use crate::error::Result;
use crate::plan::CopyFormat;
use crate::types::RangeKind;
use crate::types::Row;
use crate::types::SqlType;

/// The options that the first bytes stand for; `None` where COPY would refuse them.
fn options(choice: &[u8; 4]) -> Option<Options> {
    let csv = choice[0] & 1 != 0;
    let byte = |at: usize, usual: u8| {
        let given = choice[at] & 0x7F;
        if given == 0 || matches!(given, b'\r' | b'\n') { usual } else { given }
    };
    let quote = byte(2, b'"');
    let options = Options {
        format: if csv { CopyFormat::Csv } else { CopyFormat::Text },
        delimiter: byte(1, if csv { b',' } else { b'\t' }),
        null: (if choice[0] & 2 != 0 { "" } else { "\\N" }).to_owned(),
        header: choice[0] & 4 != 0,
        quote,
        escape: byte(3, quote),
        force_quote: Vec::new(),
        header_match: false,
        header_names: Vec::new(),
        force_not_null: Vec::new(),
        force_null: Vec::new(),
        condition: None,
    };
    options.check().ok()?;
    Some(options)
}

fn rows(options: &Options, data: &[u8], piece: usize) -> Result<Vec<Vec<Field<'static>>>> {
    let mut decoder = Decoder::new(options.clone());
    let mut out = Vec::new();
    for part in data.chunks(piece) {
        decoder.feed(part)?;
        while decoder.next_row(false)? {
            out.push(owned(decoder.fields()?));
        }
    }
    while decoder.next_row(true)? {
        out.push(owned(decoder.fields()?));
    }
    Ok(out)
}

/// Four bytes of options, then data.
pub fn lines(bytes: &[u8]) {
    let Some((choice, data)) = bytes.split_first_chunk::<4>() else { return };
    let Some(options) = options(choice) else { return };
    let whole = rows(&options, data, data.len().max(1));
    for piece in [1, 7] {
        match (&whole, rows(&options, data, piece)) {
            (Ok(whole), Ok(cut)) => assert_eq!(whole, &cut, "in pieces of {piece}"),
            (Err(_), Err(_)) => {}
            (whole, cut) => panic!("whole {whole:?}, in pieces of {piece} {cut:?}"),
        }
    }
    let plain = Options { header: false, ..options };
    for row in whole.unwrap_or_default() {
        let line = encode(&row, &plain, &[]);
        assert_eq!(rows(&plain, &line, line.len()).ok(), Some(vec![row]), "{line:?}");
    }
}

/// Binary rows of a few columns, the types chosen by the first byte; what ends in an error gives
/// its rows before.
fn binary_rows(data: &[u8], piece: usize, columns: &[(String, SqlType)]) -> (Vec<Row>, bool) {
    let mut decoder = BinaryDecoder::default();
    let mut rows = Vec::new();
    let parts = data.chunks(piece).map(|part| (part, false)).chain([(&[][..], true)]);
    for (part, last) in parts {
        if decoder.feed(part).is_err() {
            return (rows, false);
        }
        loop {
            match decoder.next_row(last, columns) {
                Ok((Some(row), _)) => rows.push(row),
                Ok((None, _)) => break,
                Err(_) => return (rows, false),
            }
        }
    }
    (rows, true)
}

/// One byte that chooses columns, then data.
pub fn binary_lines(bytes: &[u8]) {
    let Some((choice, data)) = bytes.split_first() else { return };
    let types = match choice % 4 {
        0 => vec![SqlType::Int4, SqlType::Text],
        1 => vec![SqlType::Bool, SqlType::Numeric(None), SqlType::Bytea],
        2 => vec![SqlType::TimestampTz(None), SqlType::Float8],
        _ => vec![
            SqlType::Uuid,
            SqlType::Int8,
            SqlType::Date,
            SqlType::Inet,
            SqlType::Varbit(Some(9)),
            SqlType::Range(RangeKind::Num),
        ],
    };
    let columns: Vec<_> = types.iter().map(|ty| ("c".to_owned(), ty.clone())).collect();
    let (whole, good) = binary_rows(data, data.len().max(1), &columns);
    for piece in [1, 7] {
        let cut = binary_rows(data, piece, &columns);
        assert_eq!(format!("{:?}", (&whole, good)), format!("{cut:?}"), "in pieces of {piece}");
    }
    let mut written = BytesMut::new();
    binary::header(&mut written);
    whole.iter().for_each(|row| binary::encode(row, &types, &mut written));
    binary::trailer(&mut written);
    let again = binary_rows(&written, written.len(), &columns);
    assert_eq!(format!("{:?}", (&whole, true)), format!("{again:?}"), "{written:?}");
}
