//! Identifiers and literals written as SQL.
//!
//! Invariant: what is written is read back as the same name or string by PostgreSQL and by us.
//! Nothing here fails.

/// An identifier, quoted when it has to be: it is not in lower case or holds other characters, or
/// it is a key word that is not always a name (PostgreSQL's `quote_identifier`).
#[must_use]
pub fn quote_ident(name: &str) -> String {
    let plain = name.starts_with(|c: char| c.is_ascii_lowercase() || c == '_')
        && name.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_')
        && KEY_WORDS.binary_search(&name).is_err();
    if plain { name.to_owned() } else { format!("\"{}\"", name.replace('"', "\"\"")) }
}

/// A string literal.
#[must_use]
pub fn quote_literal(value: &str) -> String {
    let quoted = value.replace('\'', "''");
    if value.contains('\\') {
        format!("E'{}'", quoted.replace('\\', "\\\\"))
    } else {
        format!("'{quoted}'")
    }
}

/// PostgreSQL 15's key words that it quotes (`pg_get_keywords()`, all but the unreserved), in
/// order.
#[rustfmt::skip]
const KEY_WORDS: &[&str] = &[
    "all", "analyse", "analyze", "and", "any", "array", "as", "asc", "asymmetric", "authorization", "between",
    "bigint", "binary", "bit", "boolean", "both", "case", "cast", "char", "character", "check", "coalesce", "collate",
    "collation", "column", "concurrently", "constraint", "create", "cross", "current_catalog", "current_date",
    "current_role", "current_schema", "current_time", "current_timestamp", "current_user", "dec", "decimal",
    "default", "deferrable", "desc", "distinct", "do", "else", "end", "except", "exists", "extract", "false", "fetch",
    "float", "for", "foreign", "freeze", "from", "full", "grant", "greatest", "group", "grouping", "having", "ilike",
    "in", "initially", "inner", "inout", "int", "integer", "intersect", "interval", "into", "is", "isnull", "join",
    "lateral", "leading", "least", "left", "like", "limit", "localtime", "localtimestamp", "national", "natural",
    "nchar", "none", "normalize", "not", "notnull", "null", "nullif", "numeric", "offset", "on", "only", "or",
    "order", "out", "outer", "overlaps", "overlay", "placing", "position", "precision", "primary", "real",
    "references", "returning", "right", "row", "select", "session_user", "setof", "similar", "smallint", "some",
    "substring", "symmetric", "table", "tablesample", "then", "time", "timestamp", "to", "trailing", "treat", "trim",
    "true", "union", "unique", "user", "using", "values", "varchar", "variadic", "verbose", "when", "where", "window",
    "with", "xmlattributes", "xmlconcat", "xmlelement", "xmlexists", "xmlforest", "xmlnamespaces", "xmlparse",
    "xmlpi", "xmlroot", "xmlserialize", "xmltable",
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_quoted_as_postgresql_does() {
        assert!(KEY_WORDS.is_sorted());
        for plain in ["a", "_b1", "name", "value", "key", "year"] {
            assert_eq!(quote_ident(plain), plain);
        }
        for quoted in ["", "A", "1a", "a$", "a b", "é", "select", "between", "timestamp", "left"] {
            assert_eq!(quote_ident(quoted), format!("\"{quoted}\""));
        }
        assert_eq!(quote_ident("a\"b"), "\"a\"\"b\"");
    }
}
