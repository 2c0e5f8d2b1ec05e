//! What the fuzz targets call for COPY: lines of any bytes, in any pieces, with any options a statement can give.
//!
//! # Invariants
//! No panic; the rows do not depend on how the data was cut; a row that was read is written to a line that gives it back.
//!
//! # On failure
//! It panics: that is the finding.

use super::lines::{Decoder, Field, encode};
use super::options::Options;
use crate::error::Result;
use crate::session::CopyFormat;

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
    };
    options.check().ok()?;
    Some(options)
}

fn rows(options: &Options, data: &[u8], piece: usize) -> Result<Vec<Vec<Field>>> {
    let mut decoder = Decoder::new(options.clone());
    let mut out = Vec::new();
    for part in data.chunks(piece) {
        decoder.feed(part)?;
        while let Some(row) = decoder.next_row(false)? {
            out.push(row);
        }
    }
    while let Some(row) = decoder.next_row(true)? {
        out.push(row);
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
