//! The keywords of SQL: what `pg_get_keywords()` gives, which pgjdbc reads for
//! `DatabaseMetaData.getSQLKeywords`.
//!
//! # Invariants
//! Words and classes are PostgreSQL 15's (`keywords.txt`: the word, its class, whether it can be a
//! bare label).

use super::rows::RowSet;

const KEYWORDS: &str = include_str!("keywords.txt");

/// One row a keyword.
pub(super) fn fill(out: &mut RowSet<'_>) {
    for line in KEYWORDS.lines() {
        let mut parts = line.split(' ');
        let (Some(word), Some(class), Some(bare)) = (parts.next(), parts.next(), parts.next())
        else {
            continue;
        };
        let described = match class {
            "U" => "unreserved",
            "C" => "unreserved (cannot be function or type name)",
            "T" => "reserved (can be function or type name)",
            _ => "reserved",
        };
        let bare = bare == "true";
        out.row()
            .set("word", word)
            .set("catcode", class)
            .set("barelabel", bare)
            .set("catdesc", described)
            .set("baredesc", if bare { "can be bare label" } else { "requires AS" });
    }
}
