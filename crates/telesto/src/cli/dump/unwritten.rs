//! What a database has and a dump does not.
//!
//! # Invariants
//! - Objects, and whatever changes a row or what a statement does, are refused by name before
//!   anything is written.
//! - What only says how rows are stored or found, or what is told about an object, is left out, and
//!   that it is left out is told: in the dump's text and to who makes it. Names stand in no comment
//!   of the text: a line's end in one would end the comment.
//!
//! # On failure
//! One line saying what is there, or what could not be read.
//!
//! # Limits
//! What belongs to the server and not to the database (tablespaces, parameters' rights) is looked
//! for only where the database uses it.

use tokio_postgres::Client;

use super::Out;
use super::catalog::{ask, cell};

/// Names that are told at most.
const TOLD: usize = 5;

/// What is there and cannot be written: how to say it, and a question for the names.
const REFUSED: [(&str, &str); 20] = [
    (
        "partitioned and foreign tables and materialized views",
        "SELECT c.relname FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace \
         WHERE c.relkind NOT IN ('r', 'i', 'S', 'v', 't', 'c') AND USERS",
    ),
    (
        "tables that inherit",
        "SELECT c.relname FROM pg_catalog.pg_inherits i JOIN pg_catalog.pg_class c ON c.oid = i.inhrelid",
    ),
    (
        "functions and procedures",
        "SELECT p.proname FROM pg_catalog.pg_proc p JOIN pg_catalog.pg_namespace n ON n.oid = p.pronamespace WHERE USERS",
    ),
    ("triggers", "SELECT t.tgname FROM pg_catalog.pg_trigger t WHERE NOT t.tgisinternal"),
    ("event triggers", "SELECT t.evtname FROM pg_catalog.pg_event_trigger t"),
    (
        "rules",
        "SELECT r.rulename FROM pg_catalog.pg_rewrite r JOIN pg_catalog.pg_class c ON c.oid = r.ev_class \
         JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace WHERE r.rulename <> '_RETURN' AND USERS",
    ),
    (
        "defaults of views' columns",
        "SELECT c.relname FROM pg_catalog.pg_attrdef d JOIN pg_catalog.pg_class c ON c.oid = d.adrelid WHERE c.relkind = 'v'",
    ),
    (
        "curated tables",
        "SELECT c.relname FROM pg_catalog.pg_class c WHERE array_to_string(c.reloptions, ',') LIKE '%telesto.curated=%'",
    ),
    (
        "range and base types",
        "SELECT t.typname FROM pg_catalog.pg_type t JOIN pg_catalog.pg_namespace n ON n.oid = t.typnamespace \
         WHERE t.typtype IN ('r', 'm', 'p') AND USERS",
    ),
    (
        "composite types with collations of their own",
        "SELECT c.relname FROM pg_catalog.pg_attribute a JOIN pg_catalog.pg_class c ON c.oid = a.attrelid JOIN pg_catalog.pg_type t ON t.oid = a.atttypid \
         JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace \
         WHERE c.relkind = 'c' AND a.attnum > 0 AND NOT a.attisdropped AND a.attcollation <> t.typcollation AND USERS",
    ),
    (
        "collations",
        "SELECT l.collname FROM pg_catalog.pg_collation l JOIN pg_catalog.pg_namespace n ON n.oid = l.collnamespace WHERE USERS",
    ),
    (
        "conversions",
        "SELECT v.conname FROM pg_catalog.pg_conversion v JOIN pg_catalog.pg_namespace n ON n.oid = v.connamespace WHERE USERS",
    ),
    (
        "operators and their classes",
        "SELECT o.oprname FROM pg_catalog.pg_operator o JOIN pg_catalog.pg_namespace n ON n.oid = o.oprnamespace WHERE USERS \
         UNION ALL SELECT o.opcname FROM pg_catalog.pg_opclass o JOIN pg_catalog.pg_namespace n ON n.oid = o.opcnamespace WHERE USERS \
         UNION ALL SELECT o.opfname FROM pg_catalog.pg_opfamily o JOIN pg_catalog.pg_namespace n ON n.oid = o.opfnamespace WHERE USERS",
    ),
    // Those that a server has from the beginning have OIDs below.
    (
        "casts",
        "SELECT pg_catalog.format_type(k.castsource, NULL) FROM pg_catalog.pg_cast k WHERE k.oid >= 16384",
    ),
    (
        "parts of text search",
        "SELECT s.cfgname FROM pg_catalog.pg_ts_config s JOIN pg_catalog.pg_namespace n ON n.oid = s.cfgnamespace WHERE USERS \
         UNION ALL SELECT s.dictname FROM pg_catalog.pg_ts_dict s JOIN pg_catalog.pg_namespace n ON n.oid = s.dictnamespace WHERE USERS \
         UNION ALL SELECT s.prsname FROM pg_catalog.pg_ts_parser s JOIN pg_catalog.pg_namespace n ON n.oid = s.prsnamespace WHERE USERS \
         UNION ALL SELECT s.tmplname FROM pg_catalog.pg_ts_template s JOIN pg_catalog.pg_namespace n ON n.oid = s.tmplnamespace WHERE USERS",
    ),
    (
        "foreign servers and their wrappers",
        "SELECT f.srvname FROM pg_catalog.pg_foreign_server f UNION ALL SELECT f.fdwname FROM pg_catalog.pg_foreign_data_wrapper f",
    ),
    (
        "publications and subscriptions",
        "SELECT p.pubname FROM pg_catalog.pg_publication p UNION ALL SELECT s.subname FROM pg_catalog.pg_subscription s \
         JOIN pg_catalog.pg_database d ON d.oid = s.subdbid WHERE d.datname = pg_catalog.current_database()",
    ),
    ("large objects", "SELECT o.oid FROM pg_catalog.pg_largeobject_metadata o"),
    (
        "languages and access methods",
        "SELECT l.lanname FROM pg_catalog.pg_language l WHERE l.oid >= 16384 UNION ALL SELECT m.amname FROM pg_catalog.pg_am m WHERE m.oid >= 16384",
    ),
    ("extensions", "SELECT e.extname FROM pg_catalog.pg_extension e WHERE e.extname <> 'plpgsql'"),
];

/// What is there, is left out, and changes neither rows nor answers.
const LEFT_OUT: [(&str, &str); 7] = [
    (
        "extended statistics",
        "SELECT s.stxname FROM pg_catalog.pg_statistic_ext s JOIN pg_catalog.pg_namespace n ON n.oid = s.stxnamespace WHERE USERS",
    ),
    (
        "storage parameters of tables",
        "SELECT c.relname FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace \
         WHERE c.relkind = 'r' AND pg_catalog.array_to_string(c.reloptions, ',') NOT LIKE 'telesto.%' AND USERS",
    ),
    (
        "replica identities",
        "SELECT c.relname FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace \
         WHERE c.relkind = 'r' AND c.relreplident NOT IN ('d', 'n') AND USERS",
    ),
    (
        "indexes that tables are clustered on",
        "SELECT c.relname FROM pg_catalog.pg_index i JOIN pg_catalog.pg_class c ON c.oid = i.indexrelid \
         JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace WHERE i.indisclustered AND USERS",
    ),
    (
        "statistics targets, storage and compression of columns",
        "SELECT a.attname FROM pg_catalog.pg_attribute a JOIN pg_catalog.pg_class c ON c.oid = a.attrelid JOIN pg_catalog.pg_type t ON t.oid = a.atttypid \
         JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace WHERE c.relkind = 'r' AND a.attnum > 0 AND NOT a.attisdropped \
         AND (a.attstattarget >= 0 OR a.attstorage <> t.typstorage OR a.attcompression <> '') AND USERS",
    ),
    (
        "tablespaces of tables and indexes",
        "SELECT c.relname FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace WHERE c.reltablespace <> 0 AND USERS",
    ),
    (
        "comments on policies and on domains' constraints",
        "SELECT p.polname FROM pg_catalog.pg_description d JOIN pg_catalog.pg_policy p ON p.oid = d.objoid \
         WHERE d.classoid = 'pg_catalog.pg_policy'::regclass \
         UNION ALL SELECT s.conname FROM pg_catalog.pg_description d JOIN pg_catalog.pg_constraint s ON s.oid = d.objoid \
         WHERE d.classoid = 'pg_catalog.pg_constraint'::regclass AND s.contypid <> 0",
    ),
];

async fn names(client: &Client, question: &str) -> Result<Vec<String>, String> {
    Ok(ask(client, question).await?.iter().map(|row| cell(row, 0)).collect())
}

fn shown(names: &[String]) -> String {
    let dots = if names.len() > TOLD { ", …" } else { "" };
    let names: Vec<String> =
        names.iter().take(TOLD).map(|name| name.escape_debug().to_string()).collect();
    format!("{}{dots}", names.join(", "))
}

/// Looks for what cannot be written.
///
/// # Errors
/// What is there, by name.
pub(super) async fn refuse(client: &Client) -> Result<(), String> {
    for (what, question) in REFUSED {
        let names = names(client, question).await?;
        if !names.is_empty() {
            return Err(format!(
                "the database has {what} ({}), which telesto dump cannot write; drop them, or dump PostgreSQL with pg_dump",
                shown(&names)
            ));
        }
    }
    Ok(())
}

/// Tells what is left out.
///
/// # Errors
/// What cannot be read or written.
pub(super) async fn tell(client: &Client, out: &mut Out) -> Result<(), String> {
    for (what, question) in LEFT_OUT {
        let names = names(client, question).await?;
        if !names.is_empty() {
            eprintln!("not in this dump: {what} ({})", shown(&names));
            out.line(&format!("-- not in this dump: {what} ({})", names.len()))?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_told_on_one_line() {
        let names: Vec<String> = ["a\nb", "c", "d", "e", "f", "g"].map(str::to_owned).into();
        assert_eq!(shown(&names[..2]), "a\\nb, c");
        assert_eq!(shown(&names), "a\\nb, c, d, e, f, …");
    }
}
