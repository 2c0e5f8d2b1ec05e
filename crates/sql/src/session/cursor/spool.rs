//! Rows kept for reading again in any order: a few in memory, many in a temporary file.
//!
//! # Invariants
//! - A row read is the row written, of the same types.
//! - What is in memory is counted against the statements' budget; beyond [`MEMORY_BYTES`], or what
//!   the budget grants, chunks go to a file that has no name and disappears with the spool.
//!
//! # On failure
//! 58030 when the temporary file cannot be written or read.
//!
//! # Limits
//! A chunk (one batch of rows or [`CHUNK_BYTES`]) is decoded as a whole; the last one stays
//! decoded.

use std::borrow::Cow;
use std::sync::Arc;

use bytes::Bytes;
use telesto_cipher::{Scratch, ScratchFile};
use telesto_common::Env;
use telesto_common::limits::{MemoryBudget, Reservation};

use crate::codec::value::{Input, get_value, put_value, put_varint};
use crate::error::{Error, Result, SqlState};
use crate::session::Row;
use crate::types::{Datum, SqlType};

/// A chunk is closed at this size, bytes.
const CHUNK_BYTES: usize = 64 << 10;
/// Kept in memory by one spool, bytes.
pub(super) const MEMORY_BYTES: u64 = 1 << 20;

const NULL: u8 = 0;
const TYPED: u8 = 1;
/// A value shown as text though its column's type is another (regclass and its kin).
const SHOWN: u8 = 2;

#[derive(Debug)]
enum Place {
    Memory(Bytes),
    File { offset: u64, length: usize },
}

#[derive(Debug)]
struct Chunk {
    first_row: u64,
    place: Place,
}

/// What spools are kept in.
#[derive(Clone, Debug)]
pub(super) struct SpoolPlace {
    /// Runs what blocks.
    pub env: Env,
    /// Of all statements.
    pub budget: Arc<MemoryBudget>,
    /// What does not fit.
    pub scratch: Scratch,
}

/// The rows.
#[derive(Debug)]
pub(super) struct Spool {
    types: Vec<SqlType>,
    place: SpoolPlace,
    memory_bytes: u64,
    held: Option<Reservation>,
    chunks: Vec<Chunk>,
    open: Vec<u8>,
    open_first: u64,
    rows: u64,
    file: Option<Arc<ScratchFile>>,
    decoded: Option<(usize, Vec<Row>)>,
}

impl Spool {
    /// An empty one for rows of `types`.
    pub fn new(types: Vec<SqlType>, place: SpoolPlace, memory_bytes: u64) -> Self {
        Self {
            types,
            place,
            memory_bytes,
            held: None,
            chunks: Vec::new(),
            open: Vec::new(),
            open_first: 0,
            rows: 0,
            file: None,
            decoded: None,
        }
    }

    /// Rows kept.
    pub fn len(&self) -> u64 {
        self.rows
    }

    /// Whether a file was needed.
    #[cfg(test)]
    pub fn in_file(&self) -> bool {
        self.file.is_some()
    }

    /// Adds rows behind the others.
    ///
    /// # Errors
    /// 58030.
    pub async fn push(&mut self, rows: &[Row]) -> Result<()> {
        for row in rows {
            encode(&mut self.open, row, &self.types)?;
            self.rows += 1;
            if self.open.len() >= CHUNK_BYTES {
                self.close_chunk().await?;
            }
        }
        Ok(())
    }

    /// Row number `at`, counted from 0; `None` beyond the last.
    ///
    /// # Errors
    /// 58030, XX001.
    pub async fn get(&mut self, at: u64) -> Result<Option<Row>> {
        if at >= self.rows {
            return Ok(None);
        }
        if at >= self.open_first {
            self.close_chunk().await?;
        }
        let number = self.chunks.partition_point(|chunk| chunk.first_row <= at) - 1;
        if self.decoded.as_ref().is_none_or(|(decoded, _)| *decoded != number) {
            let bytes = self.read(number).await?;
            let next = self.chunks.get(number + 1).map_or(self.open_first, |next| next.first_row);
            let count = next - self.chunks[number].first_row;
            self.decoded = Some((number, decode(&bytes, count, &self.types)?));
        }
        let within = usize::try_from(at - self.chunks[number].first_row).unwrap_or(usize::MAX);
        let row = self.decoded.as_ref().and_then(|(_, rows)| rows.get(within)).cloned();
        row.map(Some).ok_or_else(|| Error::corrupt("a spooled chunk has too few rows"))
    }

    async fn close_chunk(&mut self) -> Result<()> {
        if self.open.is_empty() && self.open_first == self.rows {
            return Ok(());
        }
        let bytes = Bytes::from(std::mem::take(&mut self.open));
        let length = bytes.len();
        let place =
            if self.grow(length as u64) { Place::Memory(bytes) } else { self.write(bytes).await? };
        self.chunks.push(Chunk { first_row: self.open_first, place });
        self.open_first = self.rows;
        Ok(())
    }

    /// Whether memory for so many bytes more was granted. Not when a file has been begun.
    fn grow(&mut self, bytes: u64) -> bool {
        if self.file.is_some() {
            return false;
        }
        let held = self.held.as_ref().map_or(0, Reservation::bytes);
        if held + bytes > self.memory_bytes {
            return false;
        }
        match &mut self.held {
            Some(held) => held.grow(bytes).is_ok(),
            None => match self.place.budget.reserve("a cursor's rows", bytes) {
                Ok(held) => {
                    self.held = Some(held);
                    true
                }
                Err(_) => false,
            },
        }
    }

    async fn write(&mut self, bytes: Bytes) -> Result<Place> {
        let file = match &self.file {
            Some(file) => Arc::clone(file),
            None => {
                let scratch = self.place.scratch.clone();
                let made =
                    self.place.env.blocking("making a cursor's file", move || scratch.file()).await;
                let file = Arc::new(blocked(made)?);
                self.file = Some(Arc::clone(&file));
                file
            }
        };
        let length = bytes.len();
        let env = &self.place.env;
        let written = env.blocking("writing a cursor's rows", move || file.append(&bytes)).await;
        let offset = blocked(written)?;
        Ok(Place::File { offset, length })
    }

    async fn read(&self, number: usize) -> Result<Bytes> {
        match (&self.chunks[number].place, &self.file) {
            (Place::Memory(bytes), _) => Ok(bytes.clone()),
            (Place::File { offset, length }, Some(file)) => {
                let (file, offset, length) = (Arc::clone(file), *offset, *length);
                let read = self.place.env.blocking("reading a cursor's rows", move || {
                    let mut bytes = vec![0; length];
                    file.read_exact_at(&mut bytes, offset).map(|()| Bytes::from(bytes))
                });
                blocked(read.await)
            }
            (Place::File { .. }, None) => Err(Error::internal("a cursor's file is missing")),
        }
    }
}

fn blocked<T>(result: telesto_common::Result<std::io::Result<T>>) -> Result<T> {
    let failed = |error: &dyn std::fmt::Display| {
        Error::new(SqlState::IO_ERROR, format!("a cursor's temporary file failed: {error}")).hint(
            "Free disk space in the temporary directory, or close cursors that are no longer used.",
        )
    };
    match result {
        Ok(Ok(value)) => Ok(value),
        Ok(Err(error)) => Err(failed(&error)),
        Err(error) => Err(failed(&error)),
    }
}

/// The type that values of `ty` have here. Arrays of rows have no stored form, since no column is
/// of their type; those of the texts that rows are held in have one.
fn kept_as(ty: &SqlType) -> Cow<'_, SqlType> {
    match ty {
        SqlType::Array(element) if matches!(**element, SqlType::Record(_)) => {
            Cow::Owned(SqlType::Text.array_of())
        }
        ty => Cow::Borrowed(ty),
    }
}

/// A value that was kept as [`kept_as`] says, of `ty` again.
fn given_back(value: Datum, ty: &SqlType) -> Datum {
    match (value, ty) {
        (Datum::Array(array), SqlType::Array(element)) if array.element != **element => {
            let mut array = Arc::unwrap_or_clone(array);
            array.element = (**element).clone();
            Datum::Array(Arc::new(array))
        }
        (value, _) => value,
    }
}

/// Appends a row of `types`.
///
/// # Errors
/// XX000 when it is none.
pub(in crate::session) fn encode(
    out: &mut Vec<u8>,
    row: &[Datum],
    types: &[SqlType],
) -> Result<()> {
    if row.len() != types.len() {
        return Err(Error::internal("a cursor's row has another number of columns"));
    }
    for (value, ty) in row.iter().zip(types) {
        if value.is_null() {
            out.push(NULL);
            continue;
        }
        let start = out.len();
        out.push(TYPED);
        if let Err(error) = put_value(out, value, &kept_as(ty)) {
            let Datum::Text(text) = value else { return Err(error) };
            out.truncate(start);
            out.push(SHOWN);
            put_varint(out, text.len() as u64);
            out.extend_from_slice(text.as_bytes());
        }
    }
    Ok(())
}

/// The first `count` rows of `types` in what [`encode`] made.
///
/// # Errors
/// XX001.
pub(in crate::session) fn decode(bytes: &[u8], count: u64, types: &[SqlType]) -> Result<Vec<Row>> {
    let mut input = Input(bytes);
    let mut rows = Vec::new();
    for _ in 0..count {
        let mut row = Vec::with_capacity(types.len());
        for ty in types {
            row.push(match input.take(1)?[0] {
                NULL => Datum::Null,
                TYPED => given_back(get_value(&mut input, &kept_as(ty))?, ty),
                _ => get_value(&mut input, &SqlType::Text)?,
            });
        }
        rows.push(row);
    }
    Ok(rows)
}
