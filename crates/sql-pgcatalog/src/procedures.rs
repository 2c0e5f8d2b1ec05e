//! The rows of `pg_proc`.
//!
//! # Invariants
//! Tools join it with `pg_type`, so functions of types that Telesto has not are left out.

use super::objects::{INTERNAL_LANGUAGE, OWNER_OID};
use super::rows::RowSet;
use telesto_sql_catalog::PG_CATALOG_OID;
use telesto_sql_catalog::builtin::procedures::{Procedure, all};
use telesto_sql_catalog::builtin::pseudo_types;
use telesto_sql_types::SqlType;

/// Whether `pg_type` has a row of that type.
fn is_listed(oid: &u32) -> bool {
    SqlType::from_oid(*oid).is_some() || pseudo_types::name(*oid).is_some()
}

/// `pg_proc`: tools join it with `pg_type`, so functions of types that Telesto has not are left
/// out.
pub(super) fn rows(out: &mut RowSet<'_>) {
    let listed = |found: &&Procedure| found.arguments.iter().chain([&found.result]).all(is_listed);
    for procedure in all().filter(listed) {
        let arguments: Vec<i64> = procedure.arguments.iter().map(|oid| i64::from(*oid)).collect();
        out.row()
            .set("oid", procedure.oid)
            .set("proname", procedure.name)
            .set("pronamespace", PG_CATALOG_OID)
            .set("proowner", OWNER_OID)
            .set("prolang", INTERNAL_LANGUAGE)
            .set("prokind", procedure.kind)
            .set("proisstrict", procedure.strict)
            .set("proretset", procedure.gives_set)
            .set("provolatile", procedure.volatile)
            .set("proparallel", "s")
            .set("pronargs", arguments.len())
            .set("prorettype", procedure.result)
            .set("proargtypes", arguments)
            .set("prosrc", procedure.name);
    }
}
