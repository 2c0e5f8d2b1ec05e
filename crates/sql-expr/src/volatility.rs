//! Which calls and casts give a value for every argument, and which may fail for some.
//!
//! # Why
//! Of the conditions of a filter PostgreSQL looks at the cheap ones first, at each further one only
//! for rows that passed those before, and applications live by it: `kind = 'n' AND value::int > 5`,
//! in either order. What may fail is looked at last.
//!
//! # Invariants
//! What is not known here counts as failing: it is computed later than it need be, never too early.
//! Results that are out of range ([`call_may_overflow`]) are told apart: sums and products of
//! columns are everywhere. They are guarded where a condition stands before them, and hinder no
//! plan otherwise.

use super::registry::Function;
use super::ty::Tag;
use telesto_sql_types::SqlType;

/// Functions and operators that fail for no argument of ordinary size.
const STEADY: &[&str] = &[
    "#>",
    "#>>",
    "&",
    "&&",
    "&<",
    "&>",
    "*",
    "+",
    "-",
    "->",
    "->>",
    "-|-",
    "<<",
    "<<=",
    "<@",
    ">>",
    ">>=",
    "?",
    "?&",
    "?|",
    "@>",
    "abbrev",
    "abs",
    "age",
    "array_length",
    "array_position",
    "array_to_string",
    "array_upper",
    "ascii",
    "broadcast",
    "btrim",
    "cardinality",
    "ceil",
    "ceiling",
    "char_length",
    "character_length",
    "concat",
    "concat_ws",
    "family",
    "floor",
    "host",
    "hostmask",
    "inet_same_family",
    "initcap",
    "isempty",
    "jsonb_typeof",
    "left",
    "length",
    "lower",
    "lower_inc",
    "lower_inf",
    "ltrim",
    "masklen",
    "md5",
    "multirange",
    "netmask",
    "network",
    "now",
    "octet_length",
    "position",
    "range_merge",
    "replace",
    "reverse",
    "right",
    "round",
    "rtrim",
    "sign",
    "starts_with",
    "strpos",
    "to_char",
    "transaction_timestamp",
    "trim",
    "trunc",
    "upper",
    "upper_inc",
    "upper_inf",
    "|",
    "||",
];
/// Those that fail only for patterns: one that ends in its escape character.
const MATCHING: &[&str] = &["!~~", "!~~*", "ilike", "like", "~~", "~~*"];
/// Those whose overloads for inet and jsonb refuse what does not go together.
const OVERLOADED: &[&str] = &["&", "-", "|"];

/// Whether a call of this function or operator may fail. `pattern`: its second argument differs
/// from row to row.
#[must_use]
pub fn call_may_fail(function: &Function, pattern: bool) -> bool {
    let refuses = |arg: &Tag| matches!(arg, Tag::Inet | Tag::Jsonb | Tag::Bit);
    if MATCHING.contains(&function.name) {
        return pattern;
    }
    // Two ranges apart are not one.
    let apart = matches!(function.name, "+" | "-") && function.args.contains(&Tag::AnyRange);
    let overloaded = OVERLOADED.contains(&function.name) && function.args.iter().any(refuses);
    apart || overloaded || STEADY.binary_search(&function.name).is_err()
}

/// Operators and functions whose results may be out of range.
const GROWING: &[&str] = &["*", "+", "-", "abs", "age"];

/// Whether a call that does not fail otherwise may give what its type does not hold.
#[must_use]
pub fn call_may_overflow(function: &Function) -> bool {
    let bounded = |arg: &Tag| {
        !matches!(arg, Tag::Numeric | Tag::Range(_) | Tag::Multirange(_) | Tag::AnyRange)
    };
    GROWING.contains(&function.name) && function.args.iter().any(bounded)
}

/// Whether a cast may fail.
#[must_use]
pub fn cast_may_fail(from: &SqlType, to: &SqlType) -> bool {
    let moment = |ty: &SqlType| {
        matches!(ty, SqlType::Date | SqlType::Timestamp(_) | SqlType::TimestampTz(_))
    };
    let wide = matches!(to, SqlType::Numeric(None) | SqlType::Float8);
    let wider = from.is_integer() && (wide || (to.is_integer() && to.typlen() >= from.typlen()));
    let steady = from.same_base(to)
        || to.is_string()
        || wider
        || (from.is_number() && *to == SqlType::Numeric(None))
        || (moment(from) && moment(to));
    !steady || matches!(to, SqlType::Domain(_))
}

#[cfg(test)]
mod tests {
    use super::super::registry;
    use super::*;

    #[test]
    fn the_list_is_sorted_and_divisions_and_texts_may_fail() {
        assert!(STEADY.is_sorted());
        let fails = |name: &str, types: &[SqlType], pattern| {
            let resolved = registry().resolve(name, types).expect("such an operator");
            call_may_fail(resolved.function, pattern)
        };
        let int = [SqlType::Int4, SqlType::Int4];
        assert!(fails("/", &int, true) && fails("%", &int, true) && !fails("-", &int, true));
        let grows = |name: &str, types: &[SqlType]| {
            let resolved = registry().resolve(name, types).expect("such an operator");
            call_may_overflow(resolved.function)
        };
        assert!(grows("-", &int) && grows("+", &[SqlType::Date, SqlType::Int4]));
        assert!(
            !grows("/", &int) && !grows("*", &[SqlType::Numeric(None), SqlType::Numeric(None)])
        );
        assert!(fails("-", &[SqlType::Jsonb, SqlType::Int4], true));
        assert!(fails("&", &[SqlType::Inet, SqlType::Inet], true));
        let text = [SqlType::Text, SqlType::Text];
        assert!(
            !fails("||", &text, true) && !fails("~~", &text, false) && fails("~~", &text, true)
        );
        assert!(cast_may_fail(&SqlType::Text, &SqlType::Int4));
        assert!(!cast_may_fail(&SqlType::Int4, &SqlType::Int8));
        assert!(cast_may_fail(&SqlType::Int8, &SqlType::Int4));
        assert!(!cast_may_fail(&SqlType::Int4, &SqlType::Text));
    }
}
