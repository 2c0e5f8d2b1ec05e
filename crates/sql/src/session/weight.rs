//! What a query string will hold in memory while it runs: its text, its tokens, its trees.
//!
//! # Invariants
//! A string whose trees could not be held within the memory of statements is refused before they
//! are made.
//!
//! # On failure
//! 53200.
//!
//! # Limits
//! An estimate by counting words, not by making them; [`FREE_BYTES`] of text are not worth it.
//! Quotes are told from words as far as it takes to not count what is inside of them: a mistake
//! costs memory's bound some precision, never an answer.

use std::sync::Arc;

use telesto_common::limits::{MemoryBudget, Reservation};

use crate::error::{Error, Result, SqlState};
use crate::interrupt::Steps;
use crate::types::SqlType;

/// Longest text that is not weighed, bytes.
const FREE_BYTES: usize = 32 << 10;
/// Most types of parameters that are not weighed.
const FREE_TYPES: usize = 512;
/// What is kept of one parameter: its type, in the statement and in what is shown of it, bytes.
const TYPE_BYTES: u64 = 3 * size_of::<SqlType>() as u64;
/// What one word or sign becomes: a token, then a node of the tree, then a part of the plan, bytes
/// (measured: VALUES lists).
const WORD_BYTES: u64 = 450;
/// What a statement takes before its words count, bytes (measured: strings of very many short
/// ones).
const STATEMENT_BYTES: u64 = 12 << 10;

/// Takes the memory that `sql` will hold; `None`: it is short.
///
/// # Errors
/// 53200; those of [`crate::interrupt::check`].
pub(super) fn charge(memory: &Arc<MemoryBudget>, sql: &str) -> Result<Option<Reservation>> {
    charge_with(memory, sql, 0)
}

/// [`charge`], of a text with `types` for its parameters: a client may name 65,535 of them, used or
/// not.
///
/// # Errors
/// As [`charge`].
pub(super) fn charge_with(
    memory: &Arc<MemoryBudget>,
    sql: &str,
    types: usize,
) -> Result<Option<Reservation>> {
    let (long, many) = (sql.len() > FREE_BYTES, types > FREE_TYPES);
    if !long && !many {
        return Ok(None);
    }
    let text = if long { weigh(sql.as_bytes())? } else { 0 };
    let types = if many { types as u64 * TYPE_BYTES } else { 0 };
    let reserved = memory.reserve("the text of a statement", text + types);
    reserved.map(Some).map_err(|error| {
        Error::new(SqlState::OUT_OF_MEMORY, error.to_string()).hint(
            "Send fewer statements at once, or less in one: COPY takes any number of rows, an array parameter any list.",
        )
    })
}

/// What a statement that is kept by name holds: the text that is shown of it and, unless it was
/// `charged` for already, its own text, tree and plan, bytes. Its tokens, and what planning took
/// besides the plan, are gone by then.
pub(super) fn of_kept(shown: &str, sql: &str, charged: bool) -> Result<u64> {
    let own = if charged { 0 } else { weigh(sql.as_bytes())? / 3 };
    Ok(shown.len() as u64 + own)
}

/// The estimate, bytes.
fn weigh(sql: &[u8]) -> Result<u64> {
    let (mut words, mut statements) = (0_u64, 1_u64);
    let (mut at, mut in_word) = (0, false);
    let mut steps = Steps::default();
    while let Some(byte) = sql.get(at) {
        steps.step()?;
        let skipped = match byte {
            b'\'' | b'"' => until(sql, at + 1, &[*byte]),
            b'-' if sql[at..].starts_with(b"--") => until(sql, at, b"\n"),
            b'/' if sql[at..].starts_with(b"/*") => until(sql, at + 2, b"*/"),
            b'$' if !in_word => dollar_quoted(sql, at),
            _ => at + 1,
        };
        let is_word = byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'.' | 0x80..);
        let goes_on = byte.is_ascii_whitespace() || (is_word && in_word);
        if !goes_on {
            words += 1;
        }
        statements += u64::from(*byte == b';');
        in_word = is_word;
        at = skipped;
    }
    Ok(sql.len() as u64 * 2 + words * WORD_BYTES + statements * STATEMENT_BYTES)
}

/// Behind the first `end` from `from` on, or behind all.
fn until(sql: &[u8], from: usize, end: &[u8]) -> usize {
    let rest = sql.get(from..).unwrap_or_default();
    memchr::memmem::find(rest, end).map_or(sql.len(), |at| from + at + end.len())
}

/// Behind a text in `$tag$ … $tag$` that begins at `at`; behind the sign when none does.
fn dollar_quoted(sql: &[u8], at: usize) -> usize {
    let tag = sql[at + 1..].iter().take_while(|b| b.is_ascii_alphanumeric() || **b == b'_').count();
    let end = at + 1 + tag;
    let numbered = sql.get(at + 1).is_some_and(u8::is_ascii_digit);
    if numbered || sql.get(end) != Some(&b'$') {
        return at + 1;
    }
    until(sql, end + 1, &sql[at..=end])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn weight_counts_words_and_statements_outside_of_quotes() {
        let of = |sql: &str| weigh(sql.as_bytes()).expect("no end") - sql.len() as u64 * 2;
        assert_eq!(of("select 1"), 2 * WORD_BYTES + STATEMENT_BYTES);
        assert_eq!(of("select 'a; b c'"), 2 * WORD_BYTES + STATEMENT_BYTES);
        assert_eq!(of("select $t$ a; b $$ c; $t$"), 2 * WORD_BYTES + STATEMENT_BYTES);
        assert_eq!(of("a; b"), 3 * WORD_BYTES + 2 * STATEMENT_BYTES);
        assert_eq!(of("(1,22)"), 5 * WORD_BYTES + STATEMENT_BYTES);
    }

    #[test]
    fn string_of_very_many_statements_is_refused_and_a_long_literal_is_not() {
        let memory = MemoryBudget::new(128 << 20);
        let many = "select 1;".repeat(100_000);
        assert_eq!(charge(&memory, &many).expect_err("refused").code(), SqlState::OUT_OF_MEMORY);
        let long = format!("insert into t values ('{}')", "a; b, c ".repeat(1 << 20));
        assert!(charge(&memory, &long).expect("fits").is_some());
        assert!(charge(&memory, "select 1").expect("fits").is_none());
    }
}
