//! Owners, grants and default privileges as SQL, behind everything else.
//!
//! ```text
//!   list of rights - the list that the kind of object begins with = REVOKE of what is missing, GRANT of what is more
//! ```
//!
//! # Invariants
//! - Owners first: a grant is its owner's, and a new owner takes over what the one before had
//!   granted.
//! - What another role than the owner granted is granted by that role, in the order of the list:
//!   whoever hands a right on has it by then.
//! - Default privileges come last: they would add to what is made after them.
//!
//! # On failure
//! One line saying what could not be read, or which right is not known.
//!
//! # Limits
//! Of `public` PostgreSQL 15's first grants are taken as what it begins with.

use std::collections::BTreeMap;

use tokio_postgres::Client;

use super::Out;
use super::catalog::{Catalog, Name, Owner, Row, ask, cell, elements};
use super::roles::quoted_name;
use super::write::ident;

/// What one role gave another on one object.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Item {
    /// Empty: everybody.
    grantee: String,
    /// Letters; a `*` behind each that may be handed on.
    letters: String,
    grantor: String,
}

/// An object with an owner and a list of rights.
struct Guarded {
    /// As ALTER … OWNER TO calls it; `None`: its owner is another object's.
    owned: Option<String>,
    /// As GRANT … ON calls it.
    granted: String,
    /// Of one column: its name, quoted.
    column: Option<String>,
    owner: String,
    /// `None`: as it begins.
    rights: Option<Vec<Item>>,
    begins: Vec<Item>,
}

/// Writes owners, grants and default privileges.
///
/// # Errors
/// What cannot be read or written.
pub(super) async fn write(client: &Client, catalog: &Catalog, out: &mut Out) -> Result<(), String> {
    let mut all = schemas(client).await?;
    all.extend(relations(client, catalog).await?);
    all.extend(types(client).await?);
    all.extend(columns(client).await?);
    out.line("--\n-- Owners and rights\n--\n")?;
    for guarded in &all {
        if let Some(owned) = &guarded.owned {
            out.line(&format!("ALTER {owned} OWNER TO {};", ident(&guarded.owner)))?;
        }
    }
    for guarded in &all {
        let Some(rights) = &guarded.rights else { continue };
        let Guarded { granted, column, owner, begins, .. } = guarded;
        for statement in differences(rights, begins, owner, granted, column.as_deref())? {
            out.line(&statement)?;
        }
    }
    defaults(client, out).await
}

/// The items of a list; `None`: there is none.
fn items(row: &Row, at: usize) -> Result<Option<Vec<Item>>, String> {
    let items = elements(row, at)?;
    Ok(items.map(|items| items.iter().map(|text| item(text)).collect()))
}

fn item(text: &str) -> Item {
    let (grantee, rest) = match text.strip_prefix('"') {
        Some(quoted) => quoted_name(quoted),
        None => {
            let end = text.find('=').unwrap_or(text.len());
            (text[..end].to_owned(), &text[end..])
        }
    };
    let rest = rest.strip_prefix('=').unwrap_or(rest);
    let (letters, grantor) = rest.split_once('/').unwrap_or((rest, ""));
    let grantor = grantor.strip_prefix('"').map_or(grantor.to_owned(), |name| quoted_name(name).0);
    Item { grantee, letters: letters.to_owned(), grantor }
}

/// The words of letters: those that may not be handed on, and those that may.
fn words(letters: &str) -> Result<(Vec<&'static str>, Vec<&'static str>), String> {
    let (mut plain, mut options) = (Vec::new(), Vec::new());
    let mut rest = letters.chars().peekable();
    while let Some(letter) = rest.next() {
        let word = match letter {
            'r' => "SELECT",
            'a' => "INSERT",
            'w' => "UPDATE",
            'd' => "DELETE",
            'D' => "TRUNCATE",
            'x' => "REFERENCES",
            't' => "TRIGGER",
            'X' => "EXECUTE",
            'U' => "USAGE",
            'C' => "CREATE",
            'c' => "CONNECT",
            'T' => "TEMPORARY",
            other => {
                return Err(format!(
                    "the right {other} is not one of PostgreSQL 15, so telesto dump cannot write it; dump without --roles"
                ));
            }
        };
        if rest.next_if_eq(&'*').is_some() {
            options.push(word);
        } else {
            plain.push(word);
        }
    }
    Ok((plain, options))
}

fn to_whom(name: &str) -> String {
    if name.is_empty() { "PUBLIC".to_owned() } else { ident(name) }
}

/// The statements that make one list of the other.
fn differences(
    rights: &[Item],
    begins: &[Item],
    owner: &str,
    on: &str,
    column: Option<&str>,
) -> Result<Vec<String>, String> {
    let mut statements = Vec::new();
    for missing in begins.iter().filter(|item| !rights.contains(item)) {
        statements.push(format!("REVOKE ALL ON {on} FROM {};", to_whom(&missing.grantee)));
    }
    for more in rights.iter().filter(|item| !begins.contains(item)) {
        let (plain, options) = words(&more.letters)?;
        let by_other = more.grantor != owner;
        if by_other {
            statements.push(format!("SET SESSION AUTHORIZATION {};", ident(&more.grantor)));
        }
        for (words, option) in [(plain, ""), (options, " WITH GRANT OPTION")] {
            if words.is_empty() {
                continue;
            }
            let of = |word: &&str| match column {
                Some(column) => format!("{word} ({column})"),
                None => (*word).to_owned(),
            };
            let words: Vec<String> = words.iter().map(of).collect();
            let to = to_whom(&more.grantee);
            statements.push(format!("GRANT {} ON {on} TO {to}{option};", words.join(", ")));
        }
        if by_other {
            statements.push("RESET SESSION AUTHORIZATION;".to_owned());
        }
    }
    Ok(statements)
}

async fn schemas(client: &Client) -> Result<Vec<Guarded>, String> {
    let schemas = "SELECT n.nspname, pg_catalog.pg_get_userbyid(n.nspowner), n.nspacl, \
         pg_catalog.acldefault('n', n.nspowner) FROM pg_catalog.pg_namespace n WHERE USERS ORDER BY 1";
    let mut all = Vec::new();
    for row in ask(client, schemas).await? {
        let (name, owner) = (cell(&row, 0), cell(&row, 1));
        let mut begins = items(&row, 3)?.unwrap_or_default();
        let public = name == "public";
        if public {
            let letters = "U".to_owned();
            begins.push(Item { grantee: String::new(), letters, grantor: owner.clone() });
        }
        let sql = format!("SCHEMA {}", ident(&name));
        all.push(Guarded {
            owned: (!public || owner != "pg_database_owner").then(|| sql.clone()),
            granted: sql,
            column: None,
            owner,
            rights: items(&row, 2)?,
            begins,
        });
    }
    Ok(all)
}

async fn relations(client: &Client, catalog: &Catalog) -> Result<Vec<Guarded>, String> {
    let relations = "SELECT n.nspname, c.relname, c.relkind, pg_catalog.pg_get_userbyid(c.relowner), \
         c.relacl, \
         pg_catalog.acldefault(CASE WHEN c.relkind = 'S' THEN 's'::\"char\" ELSE 'r'::\"char\" END, c.relowner) \
         FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace \
         WHERE c.relkind IN ('r', 'v', 'S') AND USERS ORDER BY c.oid";
    let mut all = Vec::new();
    for row in ask(client, relations).await? {
        let name = Name(cell(&row, 0), cell(&row, 1));
        let (word, granted) = match cell(&row, 2).as_str() {
            "S" => ("SEQUENCE", "SEQUENCE"),
            "v" => ("VIEW", "TABLE"),
            _ => ("TABLE", "TABLE"),
        };
        // The sequence of a column has the owner of its table.
        let of_column = word == "SEQUENCE"
            && catalog
                .sequences
                .iter()
                .any(|sequence| sequence.name == name && sequence.owner != Owner::Nobody);
        all.push(Guarded {
            owned: (!of_column).then(|| format!("{word} {}", name.sql())),
            granted: format!("{granted} {}", name.sql()),
            column: None,
            owner: cell(&row, 3),
            rights: items(&row, 4)?,
            begins: items(&row, 5)?.unwrap_or_default(),
        });
    }
    Ok(all)
}

async fn types(client: &Client) -> Result<Vec<Guarded>, String> {
    let types = "SELECT n.nspname, t.typname, t.typtype, pg_catalog.pg_get_userbyid(t.typowner), \
         t.typacl, \
         pg_catalog.acldefault('T', t.typowner) \
         FROM pg_catalog.pg_type t JOIN pg_catalog.pg_namespace n ON n.oid = t.typnamespace LEFT JOIN pg_catalog.pg_class c ON c.oid = t.typrelid \
         WHERE (t.typtype IN ('e', 'd') OR c.relkind = 'c') AND USERS ORDER BY t.oid";
    let mut all = Vec::new();
    for row in ask(client, types).await? {
        let name = Name(cell(&row, 0), cell(&row, 1)).sql();
        let word = if cell(&row, 2) == "d" { "DOMAIN" } else { "TYPE" };
        all.push(Guarded {
            owned: Some(format!("{word} {name}")),
            granted: format!("TYPE {name}"),
            column: None,
            owner: cell(&row, 3),
            rights: items(&row, 4)?,
            begins: items(&row, 5)?.unwrap_or_default(),
        });
    }
    Ok(all)
}

async fn columns(client: &Client) -> Result<Vec<Guarded>, String> {
    let columns = "SELECT n.nspname, c.relname, a.attname, pg_catalog.pg_get_userbyid(c.relowner), \
         a.attacl FROM pg_catalog.pg_attribute a \
         JOIN pg_catalog.pg_class c ON c.oid = a.attrelid JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace \
         WHERE a.attacl IS NOT NULL AND NOT a.attisdropped AND c.relkind IN ('r', 'v') AND USERS ORDER BY c.oid, a.attnum";
    let mut all = Vec::new();
    for row in ask(client, columns).await? {
        all.push(Guarded {
            owned: None,
            granted: format!("TABLE {}", Name(cell(&row, 0), cell(&row, 1)).sql()),
            column: Some(ident(&cell(&row, 2))),
            owner: cell(&row, 3),
            rights: items(&row, 4)?,
            begins: Vec::new(),
        });
    }
    Ok(all)
}

async fn defaults(client: &Client, out: &mut Out) -> Result<(), String> {
    let defaults = "SELECT pg_catalog.pg_get_userbyid(d.defaclrole), n.nspname, d.defaclobjtype, d.defaclacl, \
         pg_catalog.acldefault(CASE WHEN d.defaclobjtype = 'S' THEN 's'::\"char\" ELSE d.defaclobjtype END, d.defaclrole) \
         FROM pg_catalog.pg_default_acl d LEFT JOIN pg_catalog.pg_namespace n ON n.oid = d.defaclnamespace ORDER BY 1, 2, 3";
    let kinds = BTreeMap::from([
        ("r", "TABLES"),
        ("S", "SEQUENCES"),
        ("f", "FUNCTIONS"),
        ("T", "TYPES"),
        ("n", "SCHEMAS"),
    ]);
    out.line("\n--\n-- Default privileges\n--\n")?;
    for row in ask(client, defaults).await? {
        let (role, kind) = (cell(&row, 0), cell(&row, 2));
        let kind = *kinds.get(kind.as_str()).ok_or_else(|| {
            format!("default privileges of role {role} are for objects of kind {kind}, which telesto dump does not know; dump without --roles")
        })?;
        let (within, begins) = match row.get(1).cloned().flatten() {
            // Those of a schema come on top of what the kind begins with.
            Some(schema) => (format!(" IN SCHEMA {}", ident(&schema)), Vec::new()),
            None => (String::new(), items(&row, 4)?.unwrap_or_default()),
        };
        let rights = items(&row, 3)?.unwrap_or_default();
        for statement in differences(&rights, &begins, &role, kind, None)? {
            let role = ident(&role);
            out.line(&format!("ALTER DEFAULT PRIVILEGES FOR ROLE {role}{within} {statement}"))?;
        }
    }
    out.line("")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_rights_become_statements() {
        let listed = |text: &str| text.split(' ').map(item).collect::<Vec<_>>();
        let begins = listed("ann=arwdDxt/ann =U/ann");
        let rights = listed("ann=r/ann \"Odd\"\"one\"=ar*/ann bob=r/\"Odd\"\"one\"");
        let statements =
            differences(&rights, &begins, "ann", "TABLE public.t", None).expect("known rights");
        assert_eq!(
            statements,
            [
                "REVOKE ALL ON TABLE public.t FROM ann;",
                "REVOKE ALL ON TABLE public.t FROM PUBLIC;",
                "GRANT SELECT ON TABLE public.t TO ann;",
                "GRANT INSERT ON TABLE public.t TO \"Odd\"\"one\";",
                "GRANT SELECT ON TABLE public.t TO \"Odd\"\"one\" WITH GRANT OPTION;",
                "SET SESSION AUTHORIZATION \"Odd\"\"one\";",
                "GRANT SELECT ON TABLE public.t TO bob;",
                "RESET SESSION AUTHORIZATION;",
            ]
        );
        assert_eq!(differences(&begins, &begins, "ann", "t", None), Ok(Vec::new()));
        let columns = differences(&listed("=rw/ann"), &[], "ann", "TABLE t", Some("a"));
        assert_eq!(
            columns,
            Ok(vec!["GRANT SELECT (a), UPDATE (a) ON TABLE t TO PUBLIC;".to_owned()])
        );
        assert!(words("rm").is_err(), "a right of a newer PostgreSQL");
    }

    #[test]
    fn names_of_roles_cannot_look_like_more_rights() {
        // As the server shows a list: each element in quotes of the array, the name in quotes of
        // its own.
        let text = "{ann=arwdDxt/ann,\"\\\"a\u{1}=arwdDxt/ann\u{1}b\\\"=r/ann\",\"\\\"a,=w/ann,\\\"=r/ann\"}";
        let row = vec![Some(text.to_owned()), None, Some("{}".to_owned()), Some("r".to_owned())];
        let found = items(&row, 0).expect("read").expect("a list");
        let grantees: Vec<&str> = found.iter().map(|item| item.grantee.as_str()).collect();
        assert_eq!(grantees, ["ann", "a\u{1}=arwdDxt/ann\u{1}b", "a,=w/ann,"]);
        assert!(found[1..].iter().all(|item| item.letters == "r" && item.grantor == "ann"));
        assert_eq!(items(&row, 1), Ok(None));
        assert_eq!(items(&row, 2), Ok(Some(Vec::new())));
        assert!(items(&row, 3).is_err(), "no list");
    }
}
