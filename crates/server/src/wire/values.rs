//! Values in the protocol's text and binary formats.
//!
//! # Invariants
//! Formats are PostgreSQL's; the codecs are `telesto_sql::types`.

use bytes::BytesMut;
use telesto_sql::session::Settings;
use telesto_sql::{Datum, Result, SqlType};

/// Writes `datum` in `format`; whether it is NULL (then nothing was written).
pub fn write(
    datum: &Datum,
    ty: &SqlType,
    format: i16,
    settings: &Settings,
    out: &mut BytesMut,
) -> Result<bool> {
    let _ = (datum, ty, format, settings, out);
    Err(telesto_sql::Error::unsupported("x"))
}

/// Reads a value of type `ty` in `format`.
pub fn read(raw: &[u8], ty: &SqlType, format: i16, settings: &Settings) -> Result<Datum> {
    let _ = (raw, ty, format, settings);
    Err(telesto_sql::Error::unsupported("x"))
}
