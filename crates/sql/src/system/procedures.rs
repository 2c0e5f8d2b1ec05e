//! Names and OIDs of the functions that columns of type regproc name.
//!
//! # Purpose
//! Drivers tell arrays by `typinput = 'pg_catalog.array_in'::regproc` (pgjdbc) and ask which type sends itself how. The
//! functions behind those names are not called through them.
//!
//! # Invariants
//! OIDs and names are PostgreSQL 15's (`procedures.txt`: one function a line, by OID: name, strict, volatility, types of the result and
//! the arguments).
//!
//! # Limits
//! Input, output and support functions of types, and handlers of access methods: `'now'::regproc` is refused (42883).

use super::objects::{INTERNAL_LANGUAGE, OWNER_OID};
use super::rows::RowSet;
use crate::catalog::PG_CATALOG_OID;

const PROCEDURES: &str = include_str!("procedures.txt");

fn all() -> impl Iterator<Item = (u32, &'static str)> {
    PROCEDURES.lines().filter_map(|line| {
        let mut parts = line.split(' ');
        Some((parts.next()?.parse().ok()?, parts.next()?))
    })
}

/// `pg_proc`.
pub(super) fn rows(out: &mut RowSet<'_>) {
    for line in PROCEDURES.lines() {
        let mut parts = line.split(' ');
        let [Some(oid), Some(name), Some(strict), Some(volatile), Some(result)] =
            std::array::from_fn(|_| parts.next())
        else {
            continue;
        };
        let (Ok(oid), Ok(result)) = (oid.parse::<u32>(), result.parse::<u32>()) else { continue };
        let args: Vec<i64> = parts.filter_map(|arg| arg.parse().ok()).collect();
        out.row()
            .set("oid", oid)
            .set("proname", name)
            .set("pronamespace", PG_CATALOG_OID)
            .set("proowner", OWNER_OID)
            .set("prolang", INTERNAL_LANGUAGE)
            .set("prokind", "f")
            .set("proisstrict", strict == "t")
            .set("provolatile", volatile)
            .set("proparallel", "s")
            .set("pronargs", args.len())
            .set("prorettype", result)
            .set("proargtypes", args)
            .set("prosrc", name);
    }
}

/// The OID of a function, which may be written with `pg_catalog.` before its name.
pub(crate) fn oid(name: &str) -> Option<u32> {
    let name = name.strip_prefix("pg_catalog.").unwrap_or(name);
    all().find(|(_, known)| *known == name).map(|(oid, _)| oid)
}

/// The name of the function with that OID.
pub(super) fn name(oid: u32) -> Option<&'static str> {
    all().find(|(known, _)| *known == oid).map(|(_, name)| name)
}

/// The OID of a type's function: `int4` with `in` is `int4in`, `json` with `in` is `json_in`; 0 when there is none.
pub(super) fn of_type(name: &str, what: &str) -> u32 {
    oid(&format!("{name}{what}")).or_else(|| oid(&format!("{name}_{what}"))).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn functions_of_types_are_found_both_ways() {
        assert_eq!(oid("pg_catalog.array_in"), Some(750));
        assert_eq!(name(750), Some("array_in"));
        assert_eq!((of_type("int4", "in"), of_type("json", "in")), (42, 321));
        assert_eq!((oid("nothing"), name(1), of_type("nothing", "in")), (None, None, 0));
    }
}
