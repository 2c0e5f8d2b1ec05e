//! PostgreSQL's pseudo-types, by name only: what the functions in `pg_proc` take and give.
//!
//! # Invariants
//! OIDs, names, lengths, alignment and storage are PostgreSQL 15's (`pseudo_types.txt`). Those that
//! Telesto has as types of its own (record, void, unknown) are not among them.
//!
//! # Limits
//! No value has such a type: casts to them are refused. `regtype` names them.

const TYPES: &str = include_str!("pseudo_types.txt");
/// The OIDs of `cstring` and of its array, which only `pg_type` and `pg_proc` name.
pub const CSTRING: u32 = 2275;
/// OID of the array of `cstring`.
pub const CSTRING_ARRAY: u32 = 1263;

/// A line: OID, name, length, whether by value, alignment, storage, OID of the array type.
pub fn all() -> impl Iterator<Item = (u32, [&'static str; 6])> {
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

/// The name that the pseudo-type with that OID is shown by.
pub fn name(oid: u32) -> Option<&'static str> {
    if oid == CSTRING_ARRAY {
        return Some("cstring[]");
    }
    let (_, [name, ..]) = all().find(|(known, _)| *known == oid)?;
    // A keyword otherwise.
    Some(if name == "any" { "\"any\"" } else { name })
}

/// The OID of the pseudo-type of that name in `pg_type`.
pub fn oid(name: &str) -> Option<u32> {
    match name {
        "_cstring" | "cstring[]" => Some(CSTRING_ARRAY),
        name => all().find(|(_, [known, ..])| *known == name).map(|(oid, _)| oid),
    }
}
