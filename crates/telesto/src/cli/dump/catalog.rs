//! Reads the system tables into what is dumped; works on Telesto and on PostgreSQL 15.
//!
//! # Invariants
//! Every kind of object in a user's schema is either read here or looked for by
//! [`unwritten`](super::unwritten).
//!
//! # Limits
//! Each question reads a system table or two; what belongs together is joined here.

use std::collections::{BTreeMap, BTreeSet};

use telesto_sql::types::array_text::parse_array;
use telesto_sql::types::{Datum, SqlType, TextStyle};
use tokio_postgres::{Client, SimpleQueryMessage};

use super::super::shell::full;
pub(super) use super::objects::{
    Column, Composite, Domain, Enum, Name, Owner, Sequence, Table, View,
};
use super::unwritten;

/// A database's definitions.
#[derive(Debug, Default)]
pub(super) struct Catalog {
    pub schemas: Vec<String>,
    pub enums: Vec<Enum>,
    /// In an order in which each finds those it is made of.
    pub composites: Vec<Composite>,
    pub domains: Vec<Domain>,
    pub sequences: Vec<Sequence>,
    /// By OID.
    pub tables: Vec<Table>,
    /// Definitions of indexes that are no constraint's.
    pub indexes: Vec<String>,
    /// In an order in which each finds what it reads.
    pub views: Vec<View>,
    /// Whole statements: policies, and the tables whose rows they hide.
    pub policies: Vec<String>,
    /// Whole statements.
    pub comments: Vec<String>,
}

/// What a question's USERS stands for.
const USERS: &str = "nspname NOT LIKE 'pg\\_%' AND nspname <> 'information_schema'";

/// Cells as text.
pub(super) type Row = Vec<Option<String>>;

/// Rows of a question, all as text.
pub(super) async fn ask(client: &Client, question: &str) -> Result<Vec<Row>, String> {
    let question = question.replace("USERS", USERS);
    let answer = client
        .simple_query(&question)
        .await
        .map_err(|error| format!("reading the system tables: {} ({question})", full(&error)))?;
    let rows = answer.into_iter().filter_map(|message| match message {
        SimpleQueryMessage::Row(row) => {
            Some((0..row.len()).map(|at| row.get(at).map(str::to_owned)).collect())
        }
        _ => None,
    });
    Ok(rows.collect())
}

pub(super) fn cell(row: &Row, at: usize) -> String {
    row.get(at).cloned().flatten().unwrap_or_default()
}

pub(super) fn number(row: &Row, at: usize) -> u64 {
    cell(row, at).parse().unwrap_or_default()
}

pub(super) fn yes(row: &Row, at: usize) -> bool {
    cell(row, at) == "t"
}

/// The elements of an array; `None`: there is no array. Whatever byte a name or a value has, it is
/// in one of them.
///
/// # Errors
/// A cell that is no array.
pub(super) fn elements(row: &Row, at: usize) -> Result<Option<Vec<String>>, String> {
    let Some(Some(text)) = row.get(at) else { return Ok(None) };
    let array = parse_array(text, &SqlType::Text, &TextStyle::default())
        .map_err(|error| format!("reading the system tables: {}: {text}", error.message()))?;
    let Datum::Array(array) = array else {
        return Err(format!("reading the system tables: {text} is no array"));
    };
    let elements = array.elements.iter().filter_map(|element| match element {
        Datum::Text(text) => Some(text.to_string()),
        _ => None,
    });
    Ok(Some(elements.collect()))
}

impl Catalog {
    /// Reads it all.
    ///
    /// # Errors
    /// What is there and cannot be written, by name.
    pub async fn read(client: &Client) -> Result<Self, String> {
        unwritten::refuse(client).await?;
        let mut catalog = Self::default();
        for row in ask(client, "SELECT nspname FROM pg_catalog.pg_namespace WHERE USERS ORDER BY 1")
            .await?
        {
            catalog.schemas.push(cell(&row, 0));
        }
        catalog.types(client).await?;
        catalog.tables(client).await?;
        catalog.columns(client).await?;
        catalog.constraints(client).await?;
        catalog.sequences(client).await?;
        catalog.indexes(client).await?;
        catalog.views(client).await?;
        catalog.policies(client).await?;
        catalog.comments(client).await?;
        Ok(catalog)
    }

    async fn types(&mut self, client: &Client) -> Result<(), String> {
        // One without labels is one as well.
        let enums = "SELECT n.nspname, t.typname, e.enumlabel FROM pg_catalog.pg_type t JOIN pg_catalog.pg_namespace n ON n.oid = t.typnamespace \
            LEFT JOIN pg_catalog.pg_enum e ON e.enumtypid = t.oid WHERE t.typtype = 'e' AND USERS ORDER BY t.oid, e.enumsortorder";
        for row in ask(client, enums).await? {
            let name = Name(cell(&row, 0), cell(&row, 1));
            if self.enums.last().is_none_or(|last| last.name != name) {
                self.enums.push(Enum { name, labels: Vec::new() });
            }
            if let (Some(last), Some(Some(label))) = (self.enums.last_mut(), row.get(2)) {
                last.labels.push(label.clone());
            }
        }
        self.composites(client).await?;
        let domains = "SELECT t.oid, n.nspname, t.typname, pg_catalog.format_type(t.typbasetype, t.typtypmod), t.typnotnull, \
            coalesce(pg_catalog.pg_get_expr(t.typdefaultbin, 'pg_catalog.pg_type'::regclass), t.typdefault), l.collname \
            FROM pg_catalog.pg_type t JOIN pg_catalog.pg_namespace n ON n.oid = t.typnamespace JOIN pg_catalog.pg_type b ON b.oid = t.typbasetype \
            LEFT JOIN pg_catalog.pg_collation l ON l.oid = t.typcollation AND t.typcollation <> b.typcollation WHERE t.typtype = 'd' AND USERS ORDER BY t.oid";
        let checks = "SELECT c.contypid, c.conname, pg_catalog.pg_get_constraintdef(c.oid) FROM pg_catalog.pg_constraint c WHERE c.contypid <> 0 \
            AND c.contype = 'c' ORDER BY c.oid";
        let mut by_type: BTreeMap<u64, Vec<(String, String)>> = BTreeMap::new();
        for row in ask(client, checks).await? {
            by_type.entry(number(&row, 0)).or_default().push((cell(&row, 1), cell(&row, 2)));
        }
        for row in ask(client, domains).await? {
            self.domains.push(Domain {
                name: Name(cell(&row, 1), cell(&row, 2)),
                base: cell(&row, 3),
                not_null: yes(&row, 4),
                default: row.get(5).cloned().flatten(),
                collation: row.get(6).cloned().flatten(),
                checks: by_type.remove(&number(&row, 0)).unwrap_or_default(),
            });
        }
        Ok(())
    }

    async fn composites(&mut self, client: &Client) -> Result<(), String> {
        // Of a field of a composite type, or of an array of one, that type's OID as well.
        let fields = "SELECT t.oid, n.nspname, t.typname, a.attname, pg_catalog.format_type(a.atttypid, a.atttypmod), \
            CASE WHEN f.typelem <> 0 AND f.typlen = -1 THEN f.typelem ELSE f.oid END \
            FROM pg_catalog.pg_type t JOIN pg_catalog.pg_namespace n ON n.oid = t.typnamespace \
            JOIN pg_catalog.pg_class c ON c.oid = t.typrelid AND c.relkind = 'c' \
            LEFT JOIN pg_catalog.pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped \
            LEFT JOIN pg_catalog.pg_type f ON f.oid = a.atttypid WHERE USERS ORDER BY t.oid, a.attnum";
        let mut waiting: Vec<Composite> = Vec::new();
        for row in ask(client, fields).await? {
            let oid = number(&row, 0);
            if waiting.last().is_none_or(|last| last.oid != oid) {
                let name = Name(cell(&row, 1), cell(&row, 2));
                waiting.push(Composite { oid, name, fields: Vec::new(), made_of: BTreeSet::new() });
            }
            if let (Some(last), Some(Some(field))) = (waiting.last_mut(), row.get(3)) {
                last.fields.push((field.clone(), cell(&row, 4)));
                last.made_of.insert(number(&row, 5));
            }
        }
        while !waiting.is_empty() {
            let open: BTreeSet<u64> = waiting.iter().map(|ty| ty.oid).collect();
            let (ready, rest): (Vec<_>, Vec<_>) =
                waiting.into_iter().partition(|ty| ty.made_of.is_disjoint(&open));
            if ready.is_empty() {
                let names: Vec<String> = rest.iter().map(|ty| ty.name.sql()).collect();
                return Err(format!("composite types made of each other: {}", names.join(", ")));
            }
            self.composites.extend(ready);
            waiting = rest;
        }
        Ok(())
    }

    async fn tables(&mut self, client: &Client) -> Result<(), String> {
        let tables = "SELECT c.oid, n.nspname, c.relname, c.relpersistence, c.reloptions \
            FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace WHERE c.relkind = 'r' AND c.relpersistence <> 't' AND USERS ORDER BY c.oid";
        for row in ask(client, tables).await? {
            let options = elements(&row, 4)?.unwrap_or_default();
            self.tables.push(Table {
                oid: number(&row, 0),
                name: Name(cell(&row, 1), cell(&row, 2)),
                unlogged: cell(&row, 3) == "u",
                key: options.iter().find_map(|o| o.strip_prefix("telesto.key=").map(str::to_owned)),
                columns: Vec::new(),
                constraints: Vec::new(),
                foreign_keys: Vec::new(),
                late_checks: Vec::new(),
            });
        }
        Ok(())
    }

    fn table(&mut self, oid: u64) -> Option<&mut Table> {
        // By OID, as they were read.
        let at = self.tables.binary_search_by_key(&oid, |table| table.oid).ok()?;
        self.tables.get_mut(at)
    }

    async fn columns(&mut self, client: &Client) -> Result<(), String> {
        let columns = "SELECT a.attrelid, a.attname, pg_catalog.format_type(a.atttypid, a.atttypmod), a.attnotnull, a.attidentity, a.attgenerated, \
            pg_catalog.pg_get_expr(d.adbin, d.adrelid), a.attcollation, t.typcollation \
            FROM pg_catalog.pg_attribute a JOIN pg_catalog.pg_class c ON c.oid = a.attrelid JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace \
            JOIN pg_catalog.pg_type t ON t.oid = a.atttypid LEFT JOIN pg_catalog.pg_attrdef d ON d.adrelid = a.attrelid AND d.adnum = a.attnum \
            WHERE c.relkind = 'r' AND a.attnum > 0 AND NOT a.attisdropped AND USERS ORDER BY a.attrelid, a.attnum";
        let mut collations = BTreeMap::new();
        for row in ask(client, "SELECT oid, collname FROM pg_catalog.pg_collation").await? {
            collations.insert(number(&row, 0), cell(&row, 1));
        }
        for row in ask(client, columns).await? {
            let own = number(&row, 7) == number(&row, 8);
            let collation = collations.get(&number(&row, 7)).filter(|_| !own).cloned();
            let column = Column {
                name: cell(&row, 1),
                ty: cell(&row, 2),
                not_null: yes(&row, 3),
                identity: match cell(&row, 4).as_str() {
                    "a" => Some("ALWAYS"),
                    "d" => Some("BY DEFAULT"),
                    _ => None,
                },
                generated: cell(&row, 5) == "s",
                expression: row.get(6).cloned().flatten(),
                collation: collation.filter(|name| name != "default"),
            };
            if let Some(table) = self.table(number(&row, 0)) {
                table.columns.push(column);
            }
        }
        Ok(())
    }

    async fn constraints(&mut self, client: &Client) -> Result<(), String> {
        let constraints = "SELECT c.conrelid, c.conname, c.contype, pg_catalog.pg_get_constraintdef(c.oid), c.convalidated, c.confrelid \
            FROM pg_catalog.pg_constraint c WHERE c.conrelid <> 0 ORDER BY c.conrelid, c.conname";
        for row in ask(client, constraints).await? {
            let (name, kind, definition) = (cell(&row, 1), cell(&row, 2), cell(&row, 3));
            let (validated, referenced) = (yes(&row, 4), number(&row, 5));
            let Some(table) = self.table(number(&row, 0)) else { continue };
            match kind.as_str() {
                "f" => table.foreign_keys.push((name, definition, referenced)),
                "c" if !validated => table.late_checks.push((name, definition)),
                // NOT NULL is with the column.
                "n" => {}
                "p" | "u" | "c" | "x" => table.constraints.push((name, definition)),
                other => {
                    return Err(format!(
                        "constraint {name} of {} is of kind {other:?}, which telesto dump cannot write; drop it",
                        table.name.sql()
                    ));
                }
            }
        }
        Ok(())
    }

    async fn sequences(&mut self, client: &Client) -> Result<(), String> {
        let owners = "SELECT d.objid, d.refobjid, a.attname, d.deptype FROM pg_catalog.pg_depend d JOIN pg_catalog.pg_class c ON c.oid = d.objid \
            JOIN pg_catalog.pg_attribute a ON a.attrelid = d.refobjid AND a.attnum = d.refobjsubid \
            WHERE c.relkind = 'S' AND d.refobjsubid > 0 AND d.deptype IN ('a', 'i')";
        let mut owned = BTreeMap::new();
        for row in ask(client, owners).await? {
            let (table, column) = (number(&row, 1), cell(&row, 2));
            let owner = match cell(&row, 3).as_str() {
                "i" => Owner::Identity(table, column),
                _ => Owner::Serial(table, column),
            };
            owned.insert(number(&row, 0), owner);
        }
        let sequences = "SELECT c.oid, n.nspname, c.relname, pg_catalog.format_type(s.seqtypid, NULL), s.seqstart, s.seqincrement, s.seqmin, s.seqmax, \
            s.seqcache, s.seqcycle FROM pg_catalog.pg_sequence s JOIN pg_catalog.pg_class c ON c.oid = s.seqrelid \
            JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace WHERE c.relpersistence <> 't' AND USERS ORDER BY c.oid";
        for row in ask(client, sequences).await? {
            self.sequences.push(Sequence {
                owner: owned.remove(&number(&row, 0)).unwrap_or(Owner::Nobody),
                name: Name(cell(&row, 1), cell(&row, 2)),
                ty: cell(&row, 3),
                start: cell(&row, 4),
                increment: cell(&row, 5),
                min: cell(&row, 6),
                max: cell(&row, 7),
                cache: cell(&row, 8),
                cycle: yes(&row, 9),
            });
        }
        Ok(())
    }

    async fn indexes(&mut self, client: &Client) -> Result<(), String> {
        let indexes = "SELECT i.indexrelid, c.relname, pg_catalog.pg_get_indexdef(i.indexrelid), i.indisvalid FROM pg_catalog.pg_index i \
            JOIN pg_catalog.pg_class c ON c.oid = i.indexrelid JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace \
            WHERE c.relpersistence <> 't' AND USERS ORDER BY i.indexrelid";
        let of_constraints =
            "SELECT conindid FROM pg_catalog.pg_constraint WHERE contype IN ('p', 'u', 'x')";
        let constraints: BTreeSet<u64> =
            ask(client, of_constraints).await?.iter().map(|row| number(row, 0)).collect();
        for row in ask(client, indexes).await? {
            // One that is not valid was being built and never was: it is no part of the data.
            if constraints.contains(&number(&row, 0)) || !yes(&row, 3) {
                continue;
            }
            match row.get(2).cloned().flatten() {
                Some(definition) => self.indexes.push(definition),
                None => return Err(format!("index {} has no definition to dump", cell(&row, 1))),
            }
        }
        Ok(())
    }

    async fn views(&mut self, client: &Client) -> Result<(), String> {
        let views = "SELECT c.oid, n.nspname, c.relname, pg_catalog.pg_get_viewdef(c.oid), pg_catalog.array_to_string(c.reloptions, ', ') FROM pg_catalog.pg_class c \
            JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace WHERE c.relkind = 'v' AND USERS ORDER BY c.oid";
        let columns = "SELECT a.attrelid, a.attname FROM pg_catalog.pg_attribute a JOIN pg_catalog.pg_class c ON c.oid = a.attrelid \
            WHERE c.relkind = 'v' AND a.attnum > 0 ORDER BY a.attrelid, a.attnum";
        let reads = "SELECT DISTINCT r.ev_class, d.refobjid FROM pg_catalog.pg_rewrite r JOIN pg_catalog.pg_depend d ON d.objid = r.oid \
            WHERE d.refobjid <> r.ev_class";
        let mut names: BTreeMap<u64, Vec<String>> = BTreeMap::new();
        for row in ask(client, columns).await? {
            names.entry(number(&row, 0)).or_default().push(cell(&row, 1));
        }
        let mut waiting = Vec::new();
        for row in ask(client, views).await? {
            let oid = number(&row, 0);
            waiting.push(View {
                oid,
                name: Name(cell(&row, 1), cell(&row, 2)),
                columns: names.remove(&oid).unwrap_or_default(),
                query: cell(&row, 3).trim_end().trim_end_matches(';').to_owned(),
                options: cell(&row, 4),
            });
        }
        let mut needs: BTreeMap<u64, BTreeSet<u64>> = BTreeMap::new();
        for row in ask(client, reads).await? {
            needs.entry(number(&row, 0)).or_default().insert(number(&row, 1));
        }
        // In the order they were made, but never before what they read.
        while !waiting.is_empty() {
            let open: BTreeSet<u64> = waiting.iter().map(|view| view.oid).collect();
            let ready = |view: &View| {
                needs.get(&view.oid).is_none_or(|reads| reads.intersection(&open).next().is_none())
            };
            // Views cannot read each other in a circle; if the catalog says so, go by age.
            let at = waiting.iter().position(ready).unwrap_or(0);
            self.views.push(waiting.remove(at));
        }
        Ok(())
    }

    /// A policy names the roles it is for, and is refused where one is missing.
    async fn policies(&mut self, client: &Client) -> Result<(), String> {
        let names = "SELECT r.oid, r.rolname FROM pg_catalog.pg_roles r";
        let mut roles = BTreeMap::from([(0, "PUBLIC".to_owned())]);
        for row in ask(client, names).await? {
            roles.insert(number(&row, 0), super::write::ident(&cell(&row, 1)));
        }
        let policies = "SELECT n.nspname, c.relname, p.polname, p.polpermissive, p.polcmd, pg_catalog.array_to_string(p.polroles, ','), \
            pg_catalog.pg_get_expr(p.polqual, p.polrelid), pg_catalog.pg_get_expr(p.polwithcheck, p.polrelid) FROM pg_catalog.pg_policy p \
            JOIN pg_catalog.pg_class c ON c.oid = p.polrelid JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace WHERE USERS ORDER BY 1, 2, 3";
        for row in ask(client, policies).await? {
            let kind = if yes(&row, 3) { "PERMISSIVE" } else { "RESTRICTIVE" };
            let command = match cell(&row, 4).as_str() {
                "r" => "SELECT",
                "a" => "INSERT",
                "w" => "UPDATE",
                "d" => "DELETE",
                _ => "ALL",
            };
            let of = cell(&row, 5);
            let to: Vec<&str> = of
                .split(',')
                .filter_map(|oid| roles.get(&oid.trim().parse().ok()?))
                .map(String::as_str)
                .collect();
            let (policy, table) = (cell(&row, 2), Name(cell(&row, 0), cell(&row, 1)).sql());
            if to.len() != of.split(',').count() {
                return Err(format!(
                    "policy {policy} of {table} is for a role that is not there; ALTER POLICY … TO those it is for"
                ));
            }
            let mut text = format!(
                "CREATE POLICY {} ON {table} AS {kind} FOR {command} TO {}",
                super::write::ident(&policy),
                to.join(", ")
            );
            for (word, at) in [("USING", 6), ("WITH CHECK", 7)] {
                if let Some(condition) = row.get(at).cloned().flatten() {
                    text += &format!(" {word} ({condition})");
                }
            }
            self.policies.push(text + ";");
        }
        let secured = "SELECT n.nspname, c.relname, c.relrowsecurity, c.relforcerowsecurity FROM pg_catalog.pg_class c \
            JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace WHERE (c.relrowsecurity OR c.relforcerowsecurity) AND USERS ORDER BY 1, 2";
        for row in ask(client, secured).await? {
            let table = Name(cell(&row, 0), cell(&row, 1)).sql();
            for (word, at) in [("ENABLE", 2), ("FORCE", 3)] {
                if yes(&row, at) {
                    self.policies.push(format!("ALTER TABLE {table} {word} ROW LEVEL SECURITY;"));
                }
            }
        }
        Ok(())
    }

    async fn comments(&mut self, client: &Client) -> Result<(), String> {
        let of_relations = "SELECT c.relkind, n.nspname, c.relname, a.attname, d.description FROM pg_catalog.pg_description d \
            JOIN pg_catalog.pg_class c ON c.oid = d.objoid JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace \
            LEFT JOIN pg_catalog.pg_attribute a ON a.attrelid = c.oid AND a.attnum = d.objsubid AND d.objsubid > 0 \
            WHERE d.classoid = 'pg_catalog.pg_class'::regclass AND USERS ORDER BY c.oid, d.objsubid";
        for row in ask(client, of_relations).await? {
            let name = Name(cell(&row, 1), cell(&row, 2)).sql();
            let on = match row.get(3).cloned().flatten() {
                Some(column) => format!("COLUMN {name}.{}", super::write::ident(&column)),
                None => match cell(&row, 0).as_str() {
                    "v" => format!("VIEW {name}"),
                    "i" => format!("INDEX {name}"),
                    "S" => format!("SEQUENCE {name}"),
                    _ => format!("TABLE {name}"),
                },
            };
            self.comment(&on, &cell(&row, 4));
        }
        let of_schemas = "SELECT n.nspname, d.description FROM pg_catalog.pg_description d JOIN pg_catalog.pg_namespace n ON n.oid = d.objoid \
            WHERE d.classoid = 'pg_catalog.pg_namespace'::regclass AND USERS AND d.description <> 'standard public schema' ORDER BY 1";
        for row in ask(client, of_schemas).await? {
            self.comment(
                &format!("SCHEMA {}", super::write::ident(&cell(&row, 0))),
                &cell(&row, 1),
            );
        }
        let of_constraints = "SELECT s.conname, n.nspname, c.relname, d.description FROM pg_catalog.pg_description d \
            JOIN pg_catalog.pg_constraint s ON s.oid = d.objoid JOIN pg_catalog.pg_class c ON c.oid = s.conrelid \
            JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace WHERE d.classoid = 'pg_catalog.pg_constraint'::regclass AND USERS ORDER BY s.oid";
        for row in ask(client, of_constraints).await? {
            let table = Name(cell(&row, 1), cell(&row, 2)).sql();
            let on = format!("CONSTRAINT {} ON {table}", super::write::ident(&cell(&row, 0)));
            self.comment(&on, &cell(&row, 3));
        }
        let of_types = "SELECT t.typtype, n.nspname, t.typname, d.description FROM pg_catalog.pg_description d \
            JOIN pg_catalog.pg_type t ON t.oid = d.objoid JOIN pg_catalog.pg_namespace n ON n.oid = t.typnamespace \
            WHERE d.classoid = 'pg_catalog.pg_type'::regclass AND USERS ORDER BY t.oid";
        for row in ask(client, of_types).await? {
            let kind = if cell(&row, 0) == "d" { "DOMAIN" } else { "TYPE" };
            let name = Name(cell(&row, 1), cell(&row, 2)).sql();
            self.comment(&format!("{kind} {name}"), &cell(&row, 3));
        }
        Ok(())
    }

    fn comment(&mut self, on: &str, text: &str) {
        self.comments.push(format!("COMMENT ON {on} IS {};", super::write::literal(text)));
    }

    /// The tables so that those referenced come before those that reference them, as far as there
    /// are no circles.
    pub fn parents_first(&self) -> Vec<&Table> {
        let mut waiting: Vec<&Table> = self.tables.iter().collect();
        let mut ordered = Vec::with_capacity(waiting.len());
        while !waiting.is_empty() {
            let open: BTreeSet<u64> = waiting.iter().map(|table| table.oid).collect();
            let ready = |table: &&Table| {
                let others = table.foreign_keys.iter().map(|(_, _, to)| to);
                others.filter(|to| **to != table.oid).all(|to| !open.contains(to))
            };
            let at = waiting.iter().position(ready).unwrap_or(0);
            ordered.push(waiting.remove(at));
        }
        ordered
    }
}

/// Where a sequence is: the last value, and whether it was given out.
///
/// # Errors
/// What the server refused.
pub(super) async fn position(
    client: &Client,
    sequence: &Sequence,
) -> Result<(String, bool), String> {
    let name = sequence.name.sql();
    let rows = ask(client, &format!("SELECT last_value, is_called FROM {name}")).await?;
    let row = rows.first().ok_or_else(|| format!("sequence {name} is empty"))?;
    Ok((cell(row, 0), yes(row, 1)))
}
