//! Functions that tools ask about the server and its objects, beside those of `functions`.
//!
//! # Invariants
//! Nothing is made up: what Telesto has no answer to is NULL, and so is an OID that names nothing.

use telesto_sql_expr::context::Call;
use telesto_sql_expr::fault;
use telesto_sql_expr::registry::{Function, function};
use telesto_sql_expr::ty::Tag::{Any, Bool, Int2, Int4, Int8, Name, Oid, Reg, Text, TimestampTz};
use telesto_sql_expr::value::{i64_of, str_of};
use telesto_sql_types::error::Result;
use telesto_sql_types::{Datum, SqlType};

/// The functions of this module.
pub const TABLE: &[Function] = &[
    function("pg_describe_object", &[Oid, Oid, Int4], Text, |a, c| {
        let (class, object, part) = (oid_of(&a[0]), oid_of(&a[1]), i64_of(&a[2])?);
        super::described::describe(c.context, class, object, part)
            .map(|shown| shown.map_or(Datum::Null, Datum::text))
    })
    .stable(),
    function("pg_index_has_property", &[Reg, Text], Bool, index_property).stable(),
    // None of these kinds of objects are there.
    function("pg_statistics_obj_is_visible", &[Oid], Bool, unknown).stable(),
    function("pg_conversion_is_visible", &[Oid], Bool, unknown).stable(),
    function("pg_opfamily_is_visible", &[Oid], Bool, |a, _| {
        let known = super::operator_classes::is_family(oid_of(&a[0]));
        Ok(if known { Datum::Bool(true) } else { Datum::Null })
    })
    .stable(),
    // No function has a body in SQL, nor an argument with a default.
    function("pg_get_function_sqlbody", &[Oid], Text, unknown).stable(),
    function("pg_get_function_arg_default", &[Oid, Int4], Text, unknown).stable(),
    function("getdatabaseencoding", &[], Name, |_, _| Ok(Datum::text("UTF8"))).stable(),
    // There are no triggers.
    function("pg_trigger_depth", &[], Int4, |_, _| Ok(Datum::Int4(0))).stable(),
    function("pg_jit_available", &[], Bool, |_, _| Ok(Datum::Bool(false))).volatile(),
    function("pg_collation_for", &[Any], Text, collation).lax().stable(),
    // Nobody keeps it.
    function("pg_conf_load_time", &[], TimestampTz, unknown).stable(),
    function("pg_postmaster_start_time", &[], TimestampTz, unknown).stable(),
    function("inet_client_port", &[], Int4, unknown).stable(),
    function("txid_status", &[Int8], Text, |a, c| {
        // Numbers are a part of what transactions are known by (`telesto_txn_status`): only one's
        // own is told.
        let id = c.context.execution()?.transaction_id().0;
        let own = i128::from(i64_of(&a[0])?) == (id & (i64::MAX as u128)).cast_signed();
        Ok(if own { Datum::text("in progress") } else { Datum::Null })
    })
    .volatile(),
    // Intervals of certain fields only are not told apart.
    function("_pg_interval_type", &[Oid, Int4], Text, unknown),
    function("_pg_index_position", &[Oid, Int2], Int4, |a, c| {
        let found = super::functions::find_index(c.context.catalog, oid_of(&a[0]));
        let Some((table, index)) = found else { return Ok(Datum::Null) };
        let keys = index.columns.iter().map(|part| part.column);
        let keys = super::relations::numbers(table, keys.chain(index.include.iter().copied()));
        let number = i64_of(&a[1])?;
        let at = keys.iter().position(|key| *key == number);
        Ok(at.and_then(|at| i32::try_from(at + 1).ok()).map_or(Datum::Null, Datum::Int4))
    })
    .stable(),
];

fn oid_of(value: &Datum) -> u32 {
    match value {
        Datum::Oid(oid) => *oid,
        _ => 0,
    }
}

fn unknown(_: &[Datum], _: &Call<'_>) -> Result<Datum> {
    Ok(Datum::Null)
}

/// A property of an index as a whole; NULL where there is no such index or property.
fn index_property(args: &[Datum], call: &Call<'_>) -> Result<Datum> {
    if super::functions::find_index(call.context.catalog, oid_of(&args[0])).is_none() {
        return Ok(Datum::Null);
    }
    Ok(match str_of(&args[1])?.to_ascii_lowercase().as_str() {
        "index_scan" | "backward_scan" => Datum::Bool(true),
        // There is no CLUSTER, and there are no bitmaps of rows.
        "clusterable" | "bitmap_scan" => Datum::Bool(false),
        _ => Datum::Null,
    })
}

/// The collation that a value of the argument's type has.
fn collation(_: &[Datum], call: &Call<'_>) -> Result<Datum> {
    let ty = call.args.first().unwrap_or(&SqlType::Unknown);
    match super::relations::collation_of(ty) {
        super::objects::C_COLLATION => Ok(Datum::text("\"C\"")),
        0 => Err(fault::error("42804", format!("collations are not supported by type {ty}"))
            .hint("Ask for the collation of a text.")),
        _ => Ok(Datum::text("\"default\"")),
    }
}
