//! The part of an index under a text prefix: LIKE and `starts_with`.
//!
//! # Invariants
//! The range holds every entry whose text starts with the prefix, and no other text; the pattern
//! itself stays in the filter. A NULL pattern matches nothing.
//!
//! # Limits
//! LIKE, not ILIKE; text and varchar (the blanks char(n) ignores are in patterns). A pattern whose
//! prefix is only known to be empty when it runs reads the table itself.

use std::borrow::Cow;

use telesto_common::key::{KeyRange, KeyWriter, successor};

use super::{Access, Prefix, PrefixKind};
use telesto_sql_catalog::codec;
use telesto_sql_catalog::{IndexColumn, Table};
use telesto_sql_expr::pattern::like_prefix;
use telesto_sql_expr::{EvalContext, Expr, Node};
use telesto_sql_types::Datum;
use telesto_sql_types::error::Result;

/// Bytes that end a text in a key.
const END: usize = 2;

impl Prefix {
    /// What a call of `name` with these arguments behind the value says of the value's start.
    /// `None`: nothing.
    pub(super) fn of_call(name: &str, args: &[Expr]) -> Option<Self> {
        let (pattern, kind) = match (name, args) {
            ("like" | "~~", [pattern]) => (pattern, PrefixKind::Like(None)),
            ("like", [pattern, escape]) => (pattern, PrefixKind::Like(Some(escape.clone()))),
            ("starts_with", [text]) => (text, PrefixKind::Whole),
            _ => return None,
        };
        // What starts with a wildcard for sure narrows nothing.
        if let Node::Const(Datum::Text(text)) = &pattern.node
            && (text.is_empty() || text.starts_with(['%', '_']))
        {
            return None;
        }
        Some(Self { pattern: pattern.clone(), kind })
    }

    /// Calls `visit` for every value in it.
    pub(super) fn each_value(&mut self, visit: &mut dyn FnMut(&mut Expr)) {
        visit(&mut self.pattern);
        if let PrefixKind::Like(Some(escape)) = &mut self.kind {
            visit(escape);
        }
    }

    /// The text everything that matches starts with; `None`: nothing matches.
    ///
    /// # Errors
    /// Those of evaluating the pattern.
    pub(super) fn text(&self, row: &[Datum], context: &EvalContext<'_>) -> Result<Option<String>> {
        let Datum::Text(pattern) = self.pattern.eval(row, context)? else { return Ok(None) };
        Ok(match &self.kind {
            PrefixKind::Whole => Some(pattern.to_string()),
            PrefixKind::Like(None) => Some(like_prefix(&pattern, Some('\\')).0),
            PrefixKind::Like(Some(escape)) => match escape.eval(row, context)? {
                Datum::Text(escape) => {
                    let mut chars = escape.chars();
                    let first = chars.next();
                    // Of more than one character the filter says that it is none.
                    let text = like_prefix(&pattern, first).0;
                    Some(if chars.next().is_some() { String::new() } else { text })
                }
                _ => None,
            },
        })
    }
}

impl Access {
    /// The path to take for given parameters: the table itself when a prefix turns out to narrow
    /// nothing and the index is not read for its order.
    ///
    /// # Errors
    /// Those of evaluating the pattern.
    pub fn effective(&self, row: &[Datum], context: &EvalContext<'_>) -> Result<Cow<'_, Self>> {
        if let Some(prefix) = &self.prefix
            && self.parts.is_empty()
            && !self.partial
            && !self.ordered
            && prefix.text(row, context)?.is_some_and(|text| text.is_empty())
        {
            return Ok(Cow::Owned(Self::full()));
        }
        Ok(Cow::Borrowed(self))
    }
}

/// The entries behind `writer` whose next column starts with `text`.
pub(super) fn range(
    writer: &KeyWriter,
    text: &str,
    table: &Table,
    column: &IndexColumn,
) -> Result<KeyRange> {
    let mut key = writer.clone();
    if text.is_empty() {
        // Everything but the NULLs, which are at one end.
        codec::write_index_key(&mut key, &Datum::Null, table, column)?;
        let all = KeyRange::with_prefix(writer.as_slice());
        return Ok(if column.nulls_first() {
            KeyRange::new(successor(key.as_slice()), all.end)
        } else {
            KeyRange::new(all.start, key.finish())
        });
    }
    let text = Datum::text(text);
    codec::write_index_key(&mut key, &text, table, column)?;
    let bytes = key.as_slice();
    Ok(KeyRange::with_prefix(&bytes[..bytes.len() - END]))
}
