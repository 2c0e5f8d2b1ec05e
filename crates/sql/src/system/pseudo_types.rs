//! PostgreSQL's pseudo-types, by name only: what the functions in `pg_proc` take and give.
//!
//! # Invariants
//! OIDs, names, lengths, alignment and storage are PostgreSQL 15's (`pseudo_types.txt`). Those that Telesto has as types
//! of its own (record, void, unknown) are not among them.
//!
//! # Limits
//! No value has such a type: casts to them are refused.

use super::objects::OWNER_OID;
use super::rows::RowSet;
use crate::catalog::PG_CATALOG_OID;

const TYPES: &str = include_str!("pseudo_types.txt");
/// The OIDs of `cstring` and of its array, which only `pg_type` and `pg_proc` name.
const CSTRING: u32 = 2275;
const CSTRING_ARRAY: u32 = 1263;

/// A line: OID, name, length, whether by value, alignment, storage, OID of the array type.
fn all() -> impl Iterator<Item = (u32, [&'static str; 6])> {
    TYPES.lines().filter_map(|line| {
        let mut parts = line.split(' ');
        let oid = parts.next()?.parse().ok()?;
        let mut rest = [""; 6];
        for place in &mut rest {
            *place = parts.next()?;
        }
        Some((oid, rest))
    })
}

/// Their rows of `pg_type`.
pub(super) fn rows(out: &mut RowSet<'_>) {
    for (oid, [name, length, by_value, align, storage, array]) in all() {
        out.row()
            .set("oid", oid)
            .set("typname", name)
            .set("typnamespace", PG_CATALOG_OID)
            .set("typowner", OWNER_OID)
            .set("typlen", length.parse::<i32>().unwrap_or(-1))
            .set("typbyval", by_value == "t")
            .set("typtype", "p")
            .set("typcategory", "P")
            .set("typisdefined", true)
            .set("typdelim", ",")
            .set("typarray", array.parse::<u32>().unwrap_or(0))
            .set("typinput", format!("{name}_in").as_str())
            .set("typoutput", format!("{name}_out").as_str())
            .set("typalign", align)
            .set("typstorage", storage)
            .set("typtypmod", -1);
    }
    array_of_cstring(out);
}

/// The only pseudo-type of which PostgreSQL has an array.
fn array_of_cstring(out: &mut RowSet<'_>) {
    out.row()
        .set("oid", CSTRING_ARRAY)
        .set("typname", "_cstring")
        .set("typnamespace", PG_CATALOG_OID)
        .set("typowner", OWNER_OID)
        .set("typlen", -1)
        .set("typbyval", false)
        .set("typtype", "p")
        .set("typcategory", "P")
        .set("typisdefined", true)
        .set("typdelim", ",")
        .set("typelem", CSTRING)
        .set("typinput", "array_in")
        .set("typoutput", "array_out")
        .set("typreceive", "array_recv")
        .set("typsend", "array_send")
        .set("typsubscript", "array_subscript_handler")
        .set("typanalyze", "array_typanalyze")
        .set("typalign", "d")
        .set("typstorage", "x")
        .set("typtypmod", -1);
}

/// The name that the pseudo-type with that OID is shown by.
pub(crate) fn name(oid: u32) -> Option<&'static str> {
    if oid == CSTRING_ARRAY {
        return Some("cstring[]");
    }
    let (_, [name, ..]) = all().find(|(known, _)| *known == oid)?;
    // A keyword otherwise.
    Some(if name == "any" { "\"any\"" } else { name })
}
