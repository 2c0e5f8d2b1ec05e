//! The functions that texts name: by name alone (`regproc`), and by name and the types of the
//! arguments (`regprocedure`).
//!
//! # Invariants
//! Names are read and shown as PostgreSQL does: one that several functions have is none for
//! `regproc`, and is shown with its schema.
//!
//! # Limits
//! The functions are those that `pg_proc` lists ([`procedures`]). All of them are in `pg_catalog`.

use telesto_sql_catalog::builtin::{procedures, pseudo_types};
use telesto_sql_types::SqlType;
use telesto_sql_types::error::{Error, Result};
use telesto_sql_types::identifier::quote_ident;

use crate::context::{EvalContext, identifier_parts};
use crate::fault;

fn no_such(shown: &str) -> Error {
    fault::error("42883", format!("function \"{shown}\" does not exist"))
}

/// The OID of the type of that name, which may be a pseudo-type.
///
/// # Errors
/// As [`EvalContext::type_of_name`].
pub(crate) fn type_oid(shown: &str, context: &EvalContext<'_>) -> Result<u32> {
    let parts = identifier_parts(shown);
    let pseudo = match parts.as_slice() {
        // A keyword without quotes.
        [word] if word == "any" && !shown.contains('"') => None,
        [word] => pseudo_types::oid(word),
        [schema, word] if schema == "pg_catalog" => pseudo_types::oid(word),
        _ => None,
    };
    match pseudo {
        Some(oid) => Ok(oid),
        None => context.type_of_name(shown).map(|ty| ty.oid()),
    }
}

/// The bare name of what can only be in `pg_catalog`; `None`: it names another schema.
fn bare_name(written: &str, context: &EvalContext<'_>) -> Result<Option<String>> {
    let mut parts = identifier_parts(written);
    let name = parts.pop().filter(|name| !name.is_empty());
    let Some(name) = name else { return Err(fault::error("42602", "invalid name syntax")) };
    match parts.as_slice() {
        [] => Ok(Some(name)),
        [schema] if schema == "pg_catalog" => Ok(Some(name)),
        [schema] => context.may_look_into(schema).map(|()| None),
        _ => Err(fault::error(
            "0A000",
            format!("cross-database references are not implemented: {written}"),
        )
        .hint("Name it by its schema, or without one.")),
    }
}

/// The OID of the one function of that name.
///
/// # Errors
/// 42883 for none, 42725 for several, 3F000, 42501, 42602.
pub(crate) fn by_name(shown: &str, context: &EvalContext<'_>) -> Result<u32> {
    let name = bare_name(shown, context)?;
    let mut found = name.iter().flat_map(|name| procedures::named(name));
    match (found.next(), found.next()) {
        (None, _) => Err(no_such(shown)),
        (Some(one), None) => Ok(one.oid),
        _ => Err(fault::error("42725", format!("more than one function named \"{shown}\""))
            .hint("Name the types of its arguments too, by regprocedure.")),
    }
}

/// The OID of the function with that name and arguments of these types: `lower(text)`.
///
/// # Errors
/// 42883 for none, 42704 for a type that is not there, 22P02 for what is no signature, and those of
/// [`by_name`].
pub(crate) fn by_signature(shown: &str, context: &EvalContext<'_>) -> Result<u32> {
    let (written, types) = parted(shown)?;
    let name = bare_name(written, context)?;
    let types = types.iter().map(|ty| type_oid(ty, context)).collect::<Result<Vec<_>>>()?;
    let mut all = name.iter().flat_map(|name| procedures::named(name));
    all.find(|known| known.arguments == types).map(|known| known.oid).ok_or_else(|| no_such(shown))
}

/// A signature's name and the names of the types in its parentheses. Commas and parentheses in
/// quotes, and those of modifiers, part nothing.
fn parted(shown: &str) -> Result<(&str, Vec<&str>)> {
    let bad = |what: &str| fault::error("22P02", format!("expected a {what}"));
    let mut quoted = false;
    let opens = shown.char_indices().find(|(_, c)| {
        quoted ^= *c == '"';
        !quoted && *c == '('
    });
    let (opens, _) = opens.ok_or_else(|| bad("left parenthesis"))?;
    let inside = shown[opens + 1..].trim_end().strip_suffix(')');
    let inside = inside.ok_or_else(|| bad("right parenthesis"))?;
    let (mut types, mut begins, mut depth, mut quoted) = (Vec::new(), 0, 0_usize, false);
    for (at, c) in inside.char_indices() {
        match c {
            '"' => quoted = !quoted,
            _ if quoted => {}
            '(' | '[' => depth += 1,
            ')' | ']' => depth = depth.saturating_sub(1),
            ',' if depth == 0 => {
                types.push(inside[begins..at].trim());
                begins = at + 1;
            }
            _ => {}
        }
    }
    let last = inside[begins..].trim();
    if !types.is_empty() || !last.is_empty() {
        types.push(last);
    }
    if types.iter().any(|ty| ty.is_empty()) {
        return Err(bad("type name"));
    }
    Ok((&shown[..opens], types))
}

/// The name that the function with that OID is shown by.
pub(crate) fn name(oid: u32) -> Option<String> {
    let found = procedures::find(oid)?;
    let shown = quote_ident(found.name);
    let only = procedures::named(found.name).count() == 1;
    Some(if only { shown } else { format!("pg_catalog.{shown}") })
}

/// The name and the types of arguments that the function with that OID is shown by.
pub(crate) fn signature(oid: u32) -> Option<String> {
    let found = procedures::find(oid)?;
    let shown = |oid: &u32| {
        let plain = SqlType::from_oid(*oid).map(|ty| ty.to_string().replace("bpchar", "character"));
        plain
            .or_else(|| pseudo_types::name(*oid).map(str::to_owned))
            .unwrap_or_else(|| oid.to_string())
    };
    let types: Vec<_> = found.arguments.iter().map(shown).collect();
    Some(format!("{}({})", quote_ident(found.name), types.join(",")))
}
