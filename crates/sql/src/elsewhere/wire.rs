//! What the sessions of two regions say to each other of a statement that one executes for the
//! other, as bytes. `docs/reference/formats/regions.md` has the tables.
//!
//! # Invariants
//! - Rows are as in a cursor's file: the values' stored forms, by the types of the columns, which
//!   both sides know.
//! - A version comes first; newer ones are refused.
//!
//! # On failure
//! What does not decode is refused with the reason; nothing of it was done.
//!
//! # Limits
//! Settings travel as JSON: one that the other side does not know is passed over there, one that it
//! misses is an error.

use serde::{Deserialize, Serialize};
use telesto_common::Timestamp;

use crate::catalog::Stamp;
use crate::error::{Error, Result, SqlState};
use crate::plan::ResultColumn;
use crate::session::settings::Settings;

const VERSION: u8 = 1;

/// A statement to execute.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Statement {
    pub sql: String,
    /// JSON.
    settings: String,
    /// OIDs of the types of `$1`, `$2`, ….
    pub parameter_types: Vec<u32>,
    /// Their values, as one row.
    pub parameters: Vec<u8>,
    /// `now()`: microseconds since 2000-01-01 UTC.
    pub transaction_micros: i64,
}

impl Statement {
    pub fn new(
        sql: String,
        settings: &Settings,
        (parameter_types, parameters): (Vec<u32>, Vec<u8>),
        transaction_micros: i64,
    ) -> Result<Self> {
        let settings = serde_json::to_string(settings)
            .map_err(|error| Error::internal(format!("settings as JSON: {error}")))?;
        Ok(Self { sql, settings, parameter_types, parameters, transaction_micros })
    }

    pub fn settings(&self) -> Result<Settings> {
        serde_json::from_str(&self.settings).map_err(|error| malformed("settings", error))
    }
}

/// What the statement saw, and what it gives.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Head {
    /// Everything of the region that executes it up to here may have been seen, by its clock.
    at: u64,
    /// Of the catalog.
    stamp: u128,
    /// Names and OIDs of types.
    columns: Vec<(String, u32)>,
}

impl Head {
    pub fn new(at: Timestamp, stamp: Stamp, columns: &[ResultColumn]) -> Self {
        Self { at: at.0, stamp: stamp.0, columns: named(columns) }
    }

    pub fn at(&self) -> Timestamp {
        Timestamp(self.at)
    }

    /// Whether it was executed by this catalog and gives these columns.
    pub fn fits(&self, stamp: Stamp, columns: &[ResultColumn]) -> bool {
        self.stamp == stamp.0 && self.columns == named(columns)
    }
}

fn named(columns: &[ResultColumn]) -> Vec<(String, u32)> {
    columns.iter().map(|column| (column.name.clone(), column.ty.oid())).collect()
}

/// One piece of the answer.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct Given {
    /// With the first piece.
    pub head: Option<Head>,
    /// How many rows.
    pub count: u64,
    pub rows: Vec<u8>,
    /// With the last piece, if the statement ends so.
    pub failed: Option<Failure>,
}

/// An error of the statement.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Failure {
    code: String,
    message: String,
    detail: Option<String>,
    hint: Option<String>,
    context: Option<String>,
    /// Schema, table, column, data type and constraint concerned.
    concerns: [Option<String>; 5],
    /// Something that it reads is not there either.
    misplaced: bool,
}

impl Failure {
    pub fn of(error: &Error) -> Self {
        let fields = error.fields().clone();
        Self {
            code: error.code().0.to_owned(),
            message: error.message().to_owned(),
            detail: fields.detail,
            hint: fields.hint,
            context: fields.context,
            concerns: [
                fields.schema,
                fields.table,
                fields.column,
                fields.data_type,
                fields.constraint,
            ],
            misplaced: fields.placed_in.is_some(),
        }
    }

    /// Whether another region may well execute the statement.
    pub fn is_of_the_region(&self) -> bool {
        self.misplaced || ["53300", "57P01", "57P03"].contains(&self.code.as_str())
    }

    /// Whether that region lacks something that the statement reads.
    pub fn is_misplaced(&self) -> bool {
        self.misplaced
    }

    pub fn message(&self) -> &str {
        &self.message
    }

    pub fn error(self) -> Error {
        let code = SqlState::of_code(&self.code).unwrap_or(SqlState::INTERNAL_ERROR);
        let mut error = Error::new(code, self.message);
        let fields = error.fields_mut();
        (fields.detail, fields.hint, fields.context) = (self.detail, self.hint, self.context);
        let [schema, table, column, data_type, constraint] = self.concerns;
        (fields.schema, fields.table, fields.column) = (schema, table, column);
        (fields.data_type, fields.constraint) = (data_type, constraint);
        error
    }
}

pub(crate) fn encode<T: Serialize>(message: &T) -> Result<Vec<u8>> {
    let bytes = postcard::to_extend(message, vec![VERSION]);
    bytes.map_err(|error| Error::internal(format!("a message between regions: {error}")))
}

pub(crate) fn decode<'a, T: Deserialize<'a>>(bytes: &'a [u8]) -> Result<T> {
    match bytes.split_first() {
        Some((&VERSION, body)) => {
            postcard::from_bytes(body).map_err(|error| malformed("a message", error))
        }
        Some((version, _)) => Err(malformed(
            "a message",
            format!("version {version} is too new, {VERSION} is known here"),
        )),
        None => Err(malformed("a message", "it is empty")),
    }
}

fn malformed(what: &str, reason: impl std::fmt::Display) -> Error {
    Error::new(
        SqlState::PROTOCOL_VIOLATION,
        format!("{what} of another region does not decode: {reason}"),
    )
    .hint("Upgrade the older region first, if their versions differ.")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statement_and_error_are_what_they_were() {
        let settings = Settings { time_zone: "Europe/Berlin".to_owned(), ..Settings::default() };
        let statement = Statement::new("SELECT $1".into(), &settings, (vec![23], vec![7]), 5);
        let bytes = encode(&statement.expect("a statement")).expect("encodes");
        let back: Statement = decode(&bytes).expect("decodes");
        assert_eq!(back.settings().expect("settings"), settings);
        let error = Error::new(SqlState::DIVISION_BY_ZERO, "division by zero")
            .detail("d")
            .hint("h")
            .table("public", "t")
            .constraint("c");
        let bytes = encode(&Failure::of(&error)).expect("encodes");
        assert_eq!(decode::<Failure>(&bytes).expect("decodes").error(), error);
        for at in 0..bytes.len() {
            assert!(decode::<Failure>(&bytes[..at]).is_err(), "cut at {at}");
        }
        let newer = [&[VERSION + 1], &bytes[1..]].concat();
        let refused = decode::<Failure>(&newer).expect_err("newer");
        assert!(refused.message().contains("too new"), "{refused}");
    }
}
