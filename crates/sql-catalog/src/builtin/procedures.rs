//! The functions that `pg_proc` lists, and the names that values of type regproc have.
//!
//! # Purpose
//! - Tools look up which functions there are and what they take and give (`\df`).
//! - Drivers tell arrays by `typinput = 'pg_catalog.array_in'::regproc` (pgjdbc) and ask which type
//!   sends itself how. The functions behind those names are not called through them.
//!
//! # Invariants
//! OIDs, names and types are PostgreSQL 15's. `procedures.txt` has input, output and support
//! functions of types and handlers of access methods, one a line by OID: name, strict, volatility,
//! types of the result and the arguments. `functions.txt` has what can be called: name, strict,
//! volatility, kind, whether it gives a set, types of the result and the arguments; each of them
//! binds (`crates/sql/tests/system_functions.rs`).
//!
//! # Limits
//! Functions that Telesto has and PostgreSQL has not are not listed, and cannot be named by regproc
//! and regprocedure.

use std::collections::BTreeMap;
use std::sync::OnceLock;

const PROCEDURES: &str = include_str!("procedures.txt");
const FUNCTIONS: &str = include_str!("functions.txt");

/// A row of `pg_proc`.
#[derive(Debug)]
pub struct Procedure {
    /// OID.
    pub oid: u32,
    /// Name.
    pub name: &'static str,
    /// Whether NULL for an argument gives NULL without a call.
    pub strict: bool,
    /// `i`, `s` or `v`: immutable, stable, volatile.
    pub volatile: &'static str,
    /// `f`, `a`, `w` or `p`: function, aggregate, window function, procedure.
    pub kind: &'static str,
    /// Whether it gives a set.
    pub gives_set: bool,
    /// OID of the result's type.
    pub result: u32,
    /// OIDs of the arguments' types.
    pub arguments: Vec<u32>,
}

/// A line of `procedures.txt`, or, `callable`, of `functions.txt`.
fn parse(line: &'static str, callable: bool) -> Option<Procedure> {
    let mut parts = line.split(' ');
    let oid = parts.next()?.parse().ok()?;
    let (name, strict, volatile) = (parts.next()?, parts.next()? == "t", parts.next()?);
    let (kind, gives_set) =
        if callable { (parts.next()?, parts.next()? == "t") } else { ("f", false) };
    let result = parts.next()?.parse().ok()?;
    let arguments = parts.filter_map(|part| part.parse().ok()).collect();
    Some(Procedure { oid, name, strict, volatile, kind, gives_set, result, arguments })
}

/// The tables, read once: rows of pg_type ask for a dozen of these each.
struct Tables {
    all: Vec<Procedure>,
    /// Positions in `all` by OID.
    by_oid: BTreeMap<u32, usize>,
    /// OIDs of those of `procedures.txt`; of several of one name that of the first.
    by_name: BTreeMap<&'static str, u32>,
    /// Positions in `all` of those of one name.
    named: BTreeMap<&'static str, Vec<usize>>,
}

fn tables() -> &'static Tables {
    static TABLES: OnceLock<Tables> = OnceLock::new();
    TABLES.get_or_init(|| {
        let mut all: Vec<_> = PROCEDURES.lines().filter_map(|line| parse(line, false)).collect();
        let mut by_name = BTreeMap::new();
        for known in &all {
            by_name.entry(known.name).or_insert(known.oid);
        }
        all.extend(FUNCTIONS.lines().filter_map(|line| parse(line, true)));
        let mut by_oid = BTreeMap::new();
        let mut named: BTreeMap<_, Vec<_>> = BTreeMap::new();
        for (at, known) in all.iter().enumerate() {
            by_oid.entry(known.oid).or_insert(at);
            named.entry(known.name).or_default().push(at);
        }
        Tables { all, by_oid, by_name, named }
    })
}

/// Those of that name, which stands for itself: it is in lower case where it was written without
/// quotes.
pub fn named(name: &str) -> impl Iterator<Item = &'static Procedure> {
    let tables = tables();
    tables.named.get(name).into_iter().flatten().map(|at| &tables.all[*at])
}

/// All of them: those behind types and access methods, then those that can be called.
pub fn all() -> impl Iterator<Item = &'static Procedure> {
    tables().all.iter()
}

/// The OID of a function of `procedures.txt`, which may be written with `pg_catalog.` before its
/// name.
pub fn oid(name: &str) -> Option<u32> {
    let name = name.strip_prefix("pg_catalog.").unwrap_or(name);
    tables().by_name.get(name).copied()
}

/// The name of the function with that OID.
pub fn name(oid: u32) -> Option<&'static str> {
    find(oid).map(|known| known.name)
}

/// The function with that OID.
pub fn find(oid: u32) -> Option<&'static Procedure> {
    let tables = tables();
    tables.by_oid.get(&oid).map(|at| &tables.all[*at])
}

/// OIDs of the types that the function with that OID takes, and of what it gives (and whether as a
/// set).
pub fn signature(oid: u32) -> Option<(Vec<u32>, u32, bool)> {
    find(oid).map(|found| (found.arguments.clone(), found.result, found.gives_set))
}

/// The OID of a type's function: `int4` with `in` is `int4in`, `json` with `in` is `json_in`; 0
/// when there is none.
pub fn of_type(name: &str, what: &str) -> u32 {
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
