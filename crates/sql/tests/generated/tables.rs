//! Tables made at random, and the statements that change them and their rows.

use rand::Rng;
use rand::rngs::StdRng;
use rand::seq::IndexedRandom;

use super::grammar::{Grammar, ScopeColumn, sql_name};

/// A column as the generator knows it.
#[derive(Clone, Debug)]
pub struct ModelColumn {
    pub name: String,
    pub ty: &'static str,
    /// Part of a primary or unique key, or of a foreign key: set to values that are likely to meet.
    pub key: bool,
}

/// A table as the generator knows it.
#[derive(Clone, Debug)]
pub struct ModelTable {
    pub name: String,
    pub columns: Vec<ModelColumn>,
    /// Names of the primary key's columns; empty for none.
    pub primary: Vec<String>,
    /// Names of columns with a unique key of their own.
    pub unique: Vec<String>,
    /// A column that references another table's single-column primary key: (column, parent).
    pub parent: Option<(String, String)>,
    pub indexes: Vec<String>,
}

/// What exists.
#[derive(Clone, Debug, Default)]
pub struct Model {
    pub tables: Vec<ModelTable>,
    pub named: u32,
}

/// Types that both systems can have in a key.
const KEY_TYPES: &[&str] = &[
    "int4",
    "int8",
    "text",
    "uuid",
    "date",
    "timestamptz",
    "numeric",
    "varchar",
    "int2",
    "bool",
    "bytea",
];

impl ModelTable {
    pub fn scope(&self, alias: &str) -> Vec<ScopeColumn> {
        self.columns
            .iter()
            .map(|column| ScopeColumn { text: format!("{alias}.{}", column.name), ty: column.ty })
            .collect()
    }

    pub fn ty(&self, name: &str) -> &'static str {
        self.columns.iter().find(|column| column.name == name).expect("a column of the table").ty
    }
}

/// A value for a key column: from a small set, so that keys meet.
pub fn key_value(ty: &str, rng: &mut StdRng, grammar: &Grammar) -> String {
    match ty {
        "int2" | "int4" | "int8" => rng.random_range(-2..25).to_string(),
        "text" | "varchar" if rng.random_bool(0.7) => format!("'k{}'", rng.random_range(0..20)),
        "numeric" if rng.random_bool(0.7) => format!(
            "{}.{}",
            rng.random_range(0..9),
            ["0", "5", "50", "25"].choose(rng).expect("a value")
        ),
        "date" if rng.random_bool(0.7) => format!("date '2024-01-{:02}'", rng.random_range(1..29)),
        other => grammar.literal(other, rng, false).to_owned(),
    }
}

fn value(column: &ModelColumn, rng: &mut StdRng, grammar: &Grammar) -> String {
    if rng.random_bool(0.1) {
        return "null".to_owned();
    }
    if rng.random_bool(0.03) {
        return "default".to_owned();
    }
    if column.key {
        return key_value(column.ty, rng, grammar);
    }
    if rng.random_bool(0.2) {
        return grammar.expression(column.ty, &[], 2, rng, false);
    }
    grammar.literal(column.ty, rng, false).to_owned()
}

/// A condition, shaped for keys half of the time.
pub fn condition(table: &ModelTable, alias: &str, rng: &mut StdRng, grammar: &Grammar) -> String {
    let keys: Vec<&ModelColumn> = table.columns.iter().filter(|column| column.key).collect();
    let by_key = keys.choose(rng).filter(|_| rng.random_bool(0.6)).map(|column| {
        let name = format!("{alias}.{}", column.name);
        let mut one = || key_value(column.ty, rng, grammar);
        let (a, b, c) = (one(), one(), one());
        match rng.random_range(0..8) {
            0 | 1 => format!("{name} = {a}"),
            2 => format!("{name} in ({a}, {b}, {c})"),
            3 => format!("{name} > {a}"),
            4 => format!("{name} between {a} and {b}"),
            5 => format!("{name} <= {a} and {name} >= {b}"),
            6 => format!("({name} = {a} or {name} = {b})"),
            _ => format!("{name} is not null"),
        }
    });
    let other = grammar.expression("bool", &table.scope(alias), 2, rng, false);
    match by_key {
        Some(by_key) if rng.random_bool(0.6) => by_key,
        Some(by_key) if rng.random_bool(0.8) => format!("{by_key} and {other}"),
        Some(by_key) => format!("{by_key} or {other}"),
        None => other,
    }
}

impl Model {
    fn fresh(&mut self, prefix: &str) -> String {
        self.named += 1;
        format!("{prefix}{}", self.named)
    }

    /// CREATE TABLE, and the table to add to the model when it worked.
    pub fn create(&mut self, rng: &mut StdRng, grammar: &Grammar) -> (String, ModelTable) {
        let name = self.fresh("t");
        let types = grammar.types();
        let mut table = ModelTable {
            name: name.clone(),
            columns: Vec::new(),
            primary: Vec::new(),
            unique: Vec::new(),
            parent: None,
            indexes: Vec::new(),
        };
        let mut lines = Vec::new();
        let keys = if rng.random_bool(0.1) { 0 } else { rng.random_range(1..=2) };
        for at in 0..keys {
            let ty = *KEY_TYPES.choose(rng).expect("a type");
            let ty = if at == 0 && rng.random_bool(0.5) { "int4" } else { ty };
            table.columns.push(ModelColumn { name: format!("k{at}"), ty, key: true });
            table.primary.push(format!("k{at}"));
            lines.push(format!("k{at} {}", sql_name(ty)));
        }
        let parents: Vec<ModelTable> =
            self.tables.iter().filter(|table| table.primary.len() == 1).cloned().collect();
        if let Some(parent) = parents.choose(rng).filter(|_| rng.random_bool(0.6)) {
            let ty = parent.ty(&parent.primary[0]);
            table.columns.push(ModelColumn { name: "p".into(), ty, key: true });
            table.parent = Some(("p".into(), parent.name.clone()));
            let action = ["", " on delete cascade", " on delete set null", " on update cascade"]
                .choose(rng)
                .expect("an action");
            lines.push(format!(
                "p {} references {} ({}){action}",
                sql_name(ty),
                parent.name,
                parent.primary[0]
            ));
        }
        if rng.random_bool(0.4) {
            let ty = *KEY_TYPES.choose(rng).expect("a type");
            table.columns.push(ModelColumn { name: "u".into(), ty, key: true });
            table.unique.push("u".into());
            lines.push(format!("u {} unique", sql_name(ty)));
        }
        for at in 0..rng.random_range(2..7) {
            let ty = *types.choose(rng).expect("a type");
            table.columns.push(ModelColumn { name: format!("c{at}"), ty, key: false });
            let mut line = format!("c{at} {}", sql_name(ty));
            if rng.random_bool(0.15) {
                line.push_str(" not null");
            }
            if rng.random_bool(0.2) {
                line.push_str(&format!(" default {}", grammar.literal(ty, rng, false)));
            }
            lines.push(line);
        }
        if rng.random_bool(0.2) {
            // A condition that rows meet often enough.
            let column = table.columns.last().expect("at least one column").name.clone();
            lines.push(format!(
                "check ({column} is not null or {} is not null)",
                table.columns[0].name
            ));
        }
        if !table.primary.is_empty() {
            lines.push(format!("primary key ({})", table.primary.join(", ")));
        }
        (format!("create table {name} ({})", lines.join(", ")), table)
    }

    pub fn insert(&self, rng: &mut StdRng, grammar: &Grammar) -> Option<String> {
        let table = self.tables.choose(rng)?;
        let mut columns: Vec<&ModelColumn> = table.columns.iter().collect();
        if rng.random_bool(0.2) {
            columns.retain(|column| column.key || rng.random_bool(0.7));
        }
        let names: Vec<&str> = columns.iter().map(|column| column.name.as_str()).collect();
        let rows: Vec<String> = (0..rng.random_range(1..5))
            .map(|_| {
                let cells: Vec<String> =
                    columns.iter().map(|column| value(column, rng, grammar)).collect();
                format!("({})", cells.join(", "))
            })
            .collect();
        if names.is_empty() {
            return Some(format!("insert into {} default values", table.name));
        }
        let mut sql =
            format!("insert into {} ({}) values {}", table.name, names.join(", "), rows.join(", "));
        if rng.random_bool(0.5) && !table.primary.is_empty() {
            let target = format!("({})", table.primary.join(", "));
            let target = table
                .unique
                .first()
                .filter(|_| rng.random_bool(0.4))
                .map_or(target, |column| format!("({column})"));
            let set: Vec<String> = table
                .columns
                .iter()
                .filter(|column| !column.key)
                .take(2)
                .map(|column| format!("{0} = excluded.{0}", column.name))
                .collect();
            match rng.random_range(0..3) {
                0 => sql.push_str(" on conflict do nothing"),
                1 => sql.push_str(&format!(" on conflict {target} do nothing")),
                _ => {
                    sql.push_str(&format!(" on conflict {target} do update set {}", set.join(", ")))
                }
            }
        }
        Some(sql + &returning(table, rng))
    }

    pub fn update(&self, rng: &mut StdRng, grammar: &Grammar) -> Option<String> {
        let table = self.tables.choose(rng)?;
        let scope = table.scope(&table.name);
        let mut plain: Vec<&ModelColumn> =
            table.columns.iter().filter(|column| !column.key).collect();
        plain.truncate(rng.random_range(1..=2));
        let mut set: Vec<String> = plain
            .iter()
            .map(|column| {
                let value = if rng.random_bool(0.05) {
                    "default".to_owned()
                } else {
                    grammar.expression(column.ty, &scope, 2, rng, false)
                };
                format!("{} = {value}", column.name)
            })
            .collect();
        let mut filter = condition(table, &table.name, rng, grammar);
        let keys: Vec<&ModelColumn> = table.columns.iter().filter(|column| column.key).collect();
        if let Some(column) = keys.choose(rng)
            && rng.random_bool(0.25)
            && !table.primary.is_empty()
        {
            // One row at most: which of several rows meets a key first depends on their order.
            set.push(format!("{} = {}", column.name, key_value(column.ty, rng, grammar)));
            filter = table
                .primary
                .iter()
                .map(|name| format!("{name} = {}", key_value(table.ty(name), rng, grammar)))
                .collect::<Vec<_>>()
                .join(" and ");
        }
        Some(format!(
            "update {} set {} where {filter}{}",
            table.name,
            set.join(", "),
            returning(table, rng)
        ))
    }

    pub fn delete(&self, rng: &mut StdRng, grammar: &Grammar) -> Option<String> {
        let table = self.tables.choose(rng)?;
        let filter = condition(table, &table.name, rng, grammar);
        let narrow =
            table.columns.iter().find(|column| column.key && rng.random_bool(0.8)).map(|column| {
                format!(" and {} = {}", column.name, key_value(column.ty, rng, grammar))
            });
        Some(format!(
            "delete from {} where ({filter}){}{}",
            table.name,
            narrow.unwrap_or_default(),
            returning(table, rng)
        ))
    }

    /// A change of a definition, and the model after it.
    pub fn define(&self, rng: &mut StdRng, grammar: &Grammar) -> Option<(String, Model)> {
        let mut after = self.clone();
        let at = rng.random_range(0..after.tables.len().max(1));
        let fresh = after.fresh("d");
        let table = after.tables.get_mut(at)?;
        let name = table.name.clone();
        let plain = table.columns.iter().position(|column| !column.key);
        let sql = match rng.random_range(0..9) {
            0 | 1 => {
                let column = table
                    .columns
                    .iter()
                    .filter(|column| KEY_TYPES.contains(&column.ty))
                    .collect::<Vec<_>>();
                let column = column.choose(rng)?.name.clone();
                table.indexes.push(fresh.clone());
                format!("create index {fresh} on {name} ({column})")
            }
            2 => {
                let index = table.indexes.pop()?;
                format!("drop index {index}")
            }
            3 => {
                let ty = *grammar.types().choose(rng).expect("a type");
                table.columns.push(ModelColumn { name: fresh.clone(), ty, key: false });
                format!(
                    "alter table {name} add column {fresh} {} default {}",
                    sql_name(ty),
                    grammar.literal(ty, rng, false)
                )
            }
            4 => {
                let column = table.columns.remove(plain?);
                format!("alter table {name} drop column {} cascade", column.name)
            }
            5 => {
                let column = &mut table.columns[plain?];
                let old = std::mem::replace(&mut column.name, fresh.clone());
                format!("alter table {name} rename column {old} to {fresh}")
            }
            6 => {
                let column = &table.columns[plain?];
                let what = ["set not null", "drop not null", "drop default", "set default null"]
                    .choose(rng)
                    .expect("an action");
                format!("alter table {name} alter column {} {what}", column.name)
            }
            7 => {
                let column = &mut table.columns[plain?];
                let (from, to) = *[
                    ("int2", "int4"),
                    ("int4", "int8"),
                    ("int4", "numeric"),
                    ("varchar", "text"),
                    ("int8", "numeric"),
                    ("timestamp", "timestamptz"),
                    ("date", "timestamp"),
                    ("text", "varchar"),
                    ("json", "jsonb"),
                ]
                .iter()
                .find(|(from, _)| *from == column.ty)?;
                debug_assert_eq!(from, column.ty);
                column.ty = to;
                format!("alter table {name} alter column {} type {to}", column.name)
            }
            _ => {
                let column = table.columns.iter().find(|column| KEY_TYPES.contains(&column.ty))?;
                format!("alter table {name} add constraint {fresh} unique ({})", column.name)
            }
        };
        Some((sql, after))
    }
}

fn returning(table: &ModelTable, rng: &mut StdRng) -> String {
    match rng.random_range(0..6) {
        0 => " returning *".to_owned(),
        1 => format!(" returning {}", table.columns[0].name),
        _ => String::new(),
    }
}
