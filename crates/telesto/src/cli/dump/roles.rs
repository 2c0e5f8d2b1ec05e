//! Roles as SQL: what pg_dumpall has before a database, and what it has of the database itself.
//!
//! ```text
//!   pg_authid -> CREATE ROLE, ALTER ROLE … WITH    pg_auth_members -> GRANT … TO    pg_db_role_setting -> ALTER ROLE … SET
//! ```
//!
//! # Invariants
//! - All roles come before the first membership and the first setting: neither names a role that is
//!   made later.
//! - Passwords are written as the verifiers that are stored. Who may not read them gets no dump,
//!   unless it asks for one without.
//! - The roles of every PostgreSQL, `pg_…`, are not written; memberships in them are.
//!
//! # On failure
//! One line saying what could not be read.
//!
//! # Limits
//! Settings of other databases of a PostgreSQL are not written. `ALTER DATABASE` names the database
//! that was dumped.

use std::collections::BTreeMap;

use tokio_postgres::Client;

use super::Out;
use super::catalog::{Row, ask, cell, elements, number, yes};
use super::write::{ident, literal};

/// Parameters whose values are lists of names: PostgreSQL stores them as one text with quotes
/// inside, and takes them apart again.
const LISTS: [&str; 6] = [
    "local_preload_libraries",
    "search_path",
    "session_preload_libraries",
    "shared_preload_libraries",
    "temp_tablespaces",
    "unix_socket_directories",
];

/// Writes roles, memberships and settings.
///
/// # Errors
/// What cannot be read or written.
pub(super) async fn write(client: &Client, passwords: bool, out: &mut Out) -> Result<(), String> {
    let table = if passwords { "pg_authid" } else { "pg_roles" };
    let roles = format!(
        "SELECT r.oid, r.rolname, r.rolsuper, r.rolinherit, r.rolcreaterole, r.rolcreatedb, r.rolcanlogin, r.rolreplication, r.rolbypassrls, \
         r.rolconnlimit, r.rolvaliduntil, r.rolpassword, pg_catalog.shobj_description(r.oid, 'pg_authid') FROM pg_catalog.{table} r ORDER BY 2"
    );
    let roles = ask(client, &roles).await.map_err(|error| match passwords {
        true => format!(
            "{error}; passwords are for superusers: --no-role-passwords writes roles without"
        ),
        false => error,
    })?;
    let names: BTreeMap<u64, String> =
        roles.iter().map(|row| (number(row, 0), ident(&cell(row, 1)))).collect();
    out.line("\n--\n-- Roles\n--\n")?;
    for row in roles.iter().filter(|row| !cell(row, 1).starts_with("pg_")) {
        role(row, passwords, out)?;
    }
    memberships(client, &names, out).await?;
    settings(client, &names, out).await
}

fn role(row: &Row, passwords: bool, out: &mut Out) -> Result<(), String> {
    let name = ident(&cell(row, 1));
    out.line(&format!("CREATE ROLE {name};"))?;
    let mut text = format!("ALTER ROLE {name} WITH");
    for (at, word) in [
        (2, "SUPERUSER"),
        (3, "INHERIT"),
        (4, "CREATEROLE"),
        (5, "CREATEDB"),
        (6, "LOGIN"),
        (7, "REPLICATION"),
        (8, "BYPASSRLS"),
    ] {
        text += if yes(row, at) { " " } else { " NO" };
        text += word;
    }
    let limit = cell(row, 9);
    if limit != "-1" {
        text += &format!(" CONNECTION LIMIT {limit}");
    }
    if let (true, Some(Some(verifier))) = (passwords, row.get(11)) {
        text += &format!(" PASSWORD {}", literal(verifier));
    }
    if let Some(Some(until)) = row.get(10) {
        text += &format!(" VALID UNTIL {}", literal(until));
    }
    out.line(&format!("{text};"))?;
    match row.get(12) {
        Some(Some(comment)) => {
            out.line(&format!("COMMENT ON ROLE {name} IS {};", literal(comment)))
        }
        _ => Ok(()),
    }
}

async fn memberships(
    client: &Client,
    names: &BTreeMap<u64, String>,
    out: &mut Out,
) -> Result<(), String> {
    let members = "SELECT m.roleid, m.member, m.grantor, m.admin_option FROM pg_catalog.pg_auth_members m ORDER BY 1, 2, 3";
    out.line("\n--\n-- Memberships\n--\n")?;
    for row in ask(client, members).await? {
        let named = |at| names.get(&number(&row, at));
        let (Some(role), Some(member)) = (named(0), named(1)) else { continue };
        // What the server's own roles are members of is as it is on every server.
        if member.starts_with("pg_") {
            continue;
        }
        let admin = if yes(&row, 3) { " WITH ADMIN OPTION" } else { "" };
        // Whoever granted it may be gone.
        let by = named(2).map(|by| format!(" GRANTED BY {by}")).unwrap_or_default();
        out.line(&format!("GRANT {role} TO {member}{admin}{by};"))?;
    }
    Ok(())
}

async fn settings(
    client: &Client,
    names: &BTreeMap<u64, String>,
    out: &mut Out,
) -> Result<(), String> {
    let stored = "SELECT s.setdatabase, s.setrole, s.setconfig, d.datname \
         FROM pg_catalog.pg_db_role_setting s LEFT JOIN pg_catalog.pg_database d ON d.oid = s.setdatabase \
         WHERE s.setdatabase = 0 OR d.datname = pg_catalog.current_database() ORDER BY 1, 2";
    out.line("\n--\n-- Settings of roles and of the database\n--\n")?;
    for row in ask(client, stored).await? {
        let (here, role) = (number(&row, 0) != 0, number(&row, 1));
        let database = ident(&cell(&row, 3));
        let whose = match (names.get(&role), here) {
            (Some(role), true) => format!("ROLE {role} IN DATABASE {database}"),
            (Some(role), false) => format!("ROLE {role}"),
            (None, true) if role == 0 => format!("DATABASE {database}"),
            (None, false) if role == 0 => "ROLE ALL".to_owned(),
            (None, _) => continue,
        };
        for setting in elements(&row, 2)?.unwrap_or_default() {
            if let Some((name, value)) = setting.split_once('=') {
                out.line(&format!(
                    "ALTER {whose} SET {} TO {};",
                    parameter(name),
                    values(name, value)
                ))?;
            }
        }
    }
    Ok(())
}

/// A parameter's name, each of its parts quoted where it must be.
fn parameter(name: &str) -> String {
    name.split('.').map(ident).collect::<Vec<_>>().join(".")
}

/// A stored value as SET takes it.
fn values(name: &str, value: &str) -> String {
    if !LISTS.iter().any(|list| name.eq_ignore_ascii_case(list)) {
        return literal(value);
    }
    let parts: Vec<String> = names_in(value).iter().map(|name| literal(name)).collect();
    if parts.is_empty() { "''".to_owned() } else { parts.join(", ") }
}

/// The names in a list like `"$user", public`.
fn names_in(list: &str) -> Vec<String> {
    let mut names = Vec::new();
    let mut rest = list.trim();
    while !rest.is_empty() {
        if let Some(quoted) = rest.strip_prefix('"') {
            let (name, after) = quoted_name(quoted);
            names.push(name);
            rest = after.trim_start();
        } else {
            let end = rest.find(',').unwrap_or(rest.len());
            names.push(rest[..end].trim().to_owned());
            rest = &rest[end..];
        }
        rest = rest.strip_prefix(',').unwrap_or(rest).trim_start();
    }
    names
}

/// The name that begins behind a double quote, and what follows it.
pub(super) fn quoted_name(text: &str) -> (String, &str) {
    let mut name = String::new();
    let mut rest = text;
    while let Some((before, after)) = rest.split_once('"') {
        name.push_str(before);
        match after.strip_prefix('"') {
            Some(more) => {
                name.push('"');
                rest = more;
            }
            None => return (name, after),
        }
    }
    (name + rest, "")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_names_are_taken_apart_and_other_values_are_not() {
        for (name, value, sql) in [
            ("search_path", "\"$user\", public", "'$user', 'public'"),
            ("Search_Path", "a,\"b, \"\"c\"\"\" , \"\"", "'a', 'b, \"c\"', ''"),
            ("search_path", "\"\"", "''"),
            ("search_path", "", "''"),
            ("work_mem", "64MB", "'64MB'"),
            ("app.note", "a, \"b\" it's", "'a, \"b\" it''s'"),
        ] {
            assert_eq!(values(name, value), sql, "{name} = {value}");
        }
        assert_eq!(parameter("app.tenant"), "app.tenant");
        assert_eq!(parameter("TimeZone"), "\"TimeZone\"");
    }
}
