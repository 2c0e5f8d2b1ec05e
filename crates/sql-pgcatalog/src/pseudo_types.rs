//! The rows of `pg_type` for PostgreSQL's pseudo-types.
//!
//! # Limits
//! No value has such a type: casts to them are refused.

use super::objects::OWNER_OID;
use super::rows::RowSet;
use telesto_sql_catalog::PG_CATALOG_OID;
use telesto_sql_catalog::builtin::pseudo_types::{CSTRING, CSTRING_ARRAY, all};

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
