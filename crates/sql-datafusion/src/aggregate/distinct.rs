//! What tells the rows of a DISTINCT aggregate apart.
//!
//! # Invariants
//! Rows are told apart by all their arguments, and their keys sort as they do: by the first, then
//! by the second, NULLs last.
//!
//! # On failure
//! What has no order has no key.

use super::super::sort_key::{escaped, key_of};
use telesto_sql_types::error::Result;
use telesto_sql_types::{Datum, SqlType};

/// The key of a row's arguments.
pub(super) fn key(values: &[Datum], types: &[SqlType]) -> Result<Vec<u8>> {
    let mut out = Vec::new();
    for (value, ty) in values.iter().zip(types) {
        out.push(u8::from(value.is_null()));
        if value.is_null() {
            continue;
        }
        escaped(&key_of(value, ty)?, &mut out);
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_sort_as_pairs_do_and_no_two_pairs_have_the_same() {
        let types = [SqlType::Text, SqlType::Text];
        let key = |a: &str, b: &str| {
            key(&[Datum::text(a), Datum::text(b)], &types).expect("texts have keys")
        };
        let sorted = [key("", "ab"), key("a", ""), key("a", "b"), key("a\u{1}", ""), key("ab", "")];
        assert!(sorted.is_sorted());
        assert!(sorted.iter().zip(&sorted[1..]).all(|(a, b)| a != b));
    }
}
