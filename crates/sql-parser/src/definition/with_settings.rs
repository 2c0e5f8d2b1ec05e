//! `CREATE TABLE … WITH (telesto.key = 'name')`: our settings among a table's storage parameters,
//! whose names have a dot.
//!
//! # Invariants
//! What is taken out leaves a list, or no list, that the SQL parser knows.

use super::create::depths;
use super::words::{Words, is_word};
use crate::sqlparser::tokenizer::{Token, TokenWithSpan};
use telesto_sql_types::error::{Error, Result, SqlState};

/// A setting with its value.
pub type Setting = (String, Option<String>);

/// What PostgreSQL 15 knows of how a table is stored. Nothing of it changes anything here.
const OF_TABLES: [&str; 23] = [
    "autovacuum_analyze_scale_factor",
    "autovacuum_analyze_threshold",
    "autovacuum_enabled",
    "autovacuum_freeze_max_age",
    "autovacuum_freeze_min_age",
    "autovacuum_freeze_table_age",
    "autovacuum_multixact_freeze_max_age",
    "autovacuum_multixact_freeze_min_age",
    "autovacuum_multixact_freeze_table_age",
    "autovacuum_vacuum_cost_delay",
    "autovacuum_vacuum_cost_limit",
    "autovacuum_vacuum_insert_scale_factor",
    "autovacuum_vacuum_insert_threshold",
    "autovacuum_vacuum_scale_factor",
    "autovacuum_vacuum_threshold",
    "fillfactor",
    "log_autovacuum_min_duration",
    "oids",
    "parallel_workers",
    "toast_tuple_target",
    "user_catalog_table",
    "vacuum_index_cleanup",
    "vacuum_truncate",
];
/// Of how an index is stored.
const OF_INDEXES: [&str; 7] = [
    "autosummarize",
    "buffering",
    "deduplicate_items",
    "fastupdate",
    "fillfactor",
    "gin_pending_list_limit",
    "pages_per_range",
];

/// Refuses a storage parameter that PostgreSQL does not know: it is a slip of the pen.
///
/// # Errors
/// 22023.
pub fn known_storage(of_index: bool, name: &str) -> Result<()> {
    let lower = name.to_lowercase();
    let bare = lower.strip_prefix("toast.").unwrap_or(&lower);
    let list = if of_index { &OF_INDEXES[..] } else { &OF_TABLES[..] };
    if lower.starts_with("telesto.") || list.contains(&bare) {
        return Ok(());
    }
    Err(Error::new(SqlState::INVALID_PARAMETER_VALUE, format!("unrecognized parameter \"{name}\"")))
}

fn solid(tokens: &[TokenWithSpan], from: usize) -> Option<usize> {
    (from..tokens.len()).find(|at| !matches!(tokens[*at].token, Token::Whitespace(_)))
}

/// Position of the WITH and of its opening parenthesis, where a list has a setting of ours.
fn list_at(tokens: &[TokenWithSpan]) -> Option<(usize, usize)> {
    let depths = depths(tokens);
    let with = |at: &usize| depths[*at] == 0 && is_word(&tokens[*at].token, "WITH");
    let at = (0..tokens.len()).find(with)?;
    let open = solid(tokens, at + 1).filter(|open| tokens[*open].token == Token::LParen)?;
    let close =
        (open..tokens.len()).find(|at| tokens[*at].token == Token::RParen && depths[*at] == 1)?;
    items(tokens, &depths, open, close)
        .iter()
        .any(|item| is_ours(&tokens[item.clone()]))
        .then_some((at, open))
}

fn is_ours(item: &[TokenWithSpan]) -> bool {
    let Some(first) = solid(item, 0) else { return false };
    // As pg_dump writes it: one name in quotes.
    if let Token::Word(word) = &item[first].token
        && word.value.to_lowercase().starts_with("telesto.")
    {
        return true;
    }
    let dot = solid(item, first + 1).is_some_and(|dot| item[dot].token == Token::Period);
    dot && is_word(&item[first].token, "TELESTO")
}

fn items(
    tokens: &[TokenWithSpan],
    depths: &[usize],
    open: usize,
    close: usize,
) -> Vec<std::ops::Range<usize>> {
    let mut out = Vec::new();
    let mut start = open + 1;
    for at in open + 1..=close {
        let ends = at == close || (tokens[at].token == Token::Comma && depths[at] == 1);
        if ends {
            out.push(start..at);
            start = at + 1;
        }
    }
    out
}

/// Whether the storage parameters have a setting of ours.
pub fn has_settings(tokens: &[TokenWithSpan]) -> bool {
    list_at(tokens).is_some()
}

/// Takes our settings out of the storage parameters.
///
/// # Errors
/// 42601.
pub fn take_settings(tokens: &mut Vec<TokenWithSpan>) -> Result<Vec<Setting>> {
    let Some((with, open)) = list_at(tokens) else { return Ok(Vec::new()) };
    let depths = depths(tokens);
    let close = (open..tokens.len())
        .find(|at| tokens[*at].token == Token::RParen && depths[*at] == 1)
        .ok_or_else(|| Error::syntax("syntax error at end of input"))?;
    let (mut ours, mut others): (Vec<TokenWithSpan>, Vec<TokenWithSpan>) = Default::default();
    for item in items(tokens, &depths, open, close) {
        let into = if is_ours(&tokens[item.clone()]) { &mut ours } else { &mut others };
        into.push(if into.is_empty() {
            tokens[open].clone()
        } else {
            TokenWithSpan::new(Token::Comma, tokens[open].span)
        });
        into.extend_from_slice(&tokens[item]);
    }
    ours.push(tokens[close].clone());
    if others.is_empty() {
        tokens.drain(with..=close);
    } else {
        others.push(tokens[close].clone());
        tokens.splice(open..=close, others);
    }
    Words(crate::syntax::parser(ours, false)).settings(false)
}
