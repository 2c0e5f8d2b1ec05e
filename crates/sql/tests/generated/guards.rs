//! Queries with conditions that may fail, each behind one that rules out the rows it fails for: on
//! PostgreSQL none of them fails.
//!
//! `t` holds numbers where `k` is 'n', other texts elsewhere; `m` is 0 in some rows. So `t::int`
//! stands beside `k = 'n'` and `/ m` beside `m <> 0`: in filters in any order, in OR, NOT and CASE,
//! in ON of any join, and in subqueries.

use rand::Rng;
use rand::rngs::StdRng;
use rand::seq::{IndexedRandom, SliceRandom};

const TABLES: [&str; 3] = ["fa", "fb", "fc"];

fn one(rng: &mut StdRng, of: &[&str]) -> String {
    (*of.choose(rng).expect("a choice")).to_owned()
}

/// The tables with their rows.
pub fn tables(rng: &mut StdRng) -> Vec<String> {
    let mut out = Vec::new();
    for table in TABLES {
        out.push(format!(
            "create table {table} (id int primary key, t text, k text, n int, m int)"
        ));
        for id in 1..13 {
            let kind = one(rng, &["'n'", "'n'", "'s'", "null"]);
            let text = match kind.as_str() {
                "'n'" => format!("'{}'", rng.random_range(0..16)),
                _ => one(rng, &["'x'", "'y'", "''", "null", "'7'"]),
            };
            let (n, m) =
                (one(rng, &["null", "0", "1", "2", "3", "5"]), one(rng, &["null", "0", "1", "2"]));
            out.push(format!("insert into {table} values ({id}, {text}, {kind}, {n}, {m})"));
        }
        if rng.random_bool(0.5) {
            out.push(format!("create index on {table} (t)"));
        }
    }
    out
}

/// A condition, and one that may fail where the first is not true.
fn guarded(rng: &mut StdRng, of: &str) -> (String, String) {
    let (low, high) = (rng.random_range(0..6), rng.random_range(3..15));
    let number = one(rng, &[&format!("{of}.k = 'n'"), &format!("lower({of}.k) = 'n'")]);
    match rng.random_range(0..8) {
        0 => (number, format!("{of}.t::int > {low}")),
        1 => (number, format!("{of}.t::int between {low} and {high}")),
        2 => (number, format!("{of}.t::int = {of}.n")),
        3 => (number, format!("{of}.t::int in (1, 2, 3, {high})")),
        4 => (number, format!("{of}.t::int + {of}.t::int > {of}.id")),
        5 => (format!("{of}.m <> 0"), format!("{of}.n / {of}.m > 0")),
        6 => (format!("{of}.m > 0"), format!("10 / {of}.m < {of}.n")),
        _ => (format!("{of}.m > 0"), format!("{of}.n % {of}.m = 0 and {of}.n / {of}.m = 1")),
    }
}

fn steady(rng: &mut StdRng, of: &str) -> String {
    let least = rng.random_range(3..13);
    one(
        rng,
        &[&format!("{of}.id < {least}"), &format!("{of}.m = 1"), &format!("{of}.k is not null")],
    )
}

/// A condition over two tables.
fn beside(rng: &mut StdRng, a: &str, b: &str) -> String {
    match rng.random_range(0..9) {
        0 | 1 => format!("{a}.t = {b}.t"),
        2 => format!("{a}.n = {b}.n"),
        3 => format!("{a}.id = {b}.id"),
        4 => format!("{a}.id < {b}.id"),
        5 => format!("({a}.k <> 'n' or {a}.k is null or {a}.t::int > {b}.n)"),
        6 => format!(
            "case when {a}.k = 'n' and {b}.m <> 0 then {a}.t::int > {b}.n / {b}.m else {a}.id = {b}.id end"
        ),
        7 => format!("{a}.k = 'n' and {b}.k is not null and {a}.t::int >= {b}.n"),
        _ => format!("{a}.n + {b}.n > 4"),
    }
}

/// Conditions over tables, each of its own.
fn conditions(rng: &mut StdRng, of: &[&str]) -> String {
    let mut parts = Vec::new();
    for table in of {
        let (guard, fails) = guarded(rng, table);
        match rng.random_range(0..20) {
            0..8 => parts.extend([guard, fails]),
            8 | 9 => parts.push(format!("({guard} is not true or {fails})")),
            10 | 11 => {
                let third = steady(rng, table);
                parts.push(format!("(not coalesce({guard}, false) or {fails} or {third})"));
            }
            12 | 13 => {
                parts.push(format!("case when {guard} then {fails} else {table}.id > 3 end"))
            }
            14 => parts.push(format!(
                "(case when not {guard} then null when {guard} then {fails} end) is not false"
            )),
            15..18 => parts.push(steady(rng, table)),
            _ => {}
        }
    }
    parts.shuffle(rng);
    if parts.is_empty() { "true".to_owned() } else { parts.join(" and ") }
}

/// A query over one to three of the tables.
pub fn query(rng: &mut StdRng) -> String {
    let tables = &TABLES[..[1, 2, 2, 2, 3][rng.random_range(0..5)]];
    let mut from = tables[0].to_owned();
    for pair in tables.windows(2) {
        let (left, right) = (pair[0], pair[1]);
        let kind = one(rng, &["join", "join", "join", "left join", "right join", "full join"]);
        let keys = one(rng, &["t", "n", "id"]);
        let mut on = match kind.as_str() {
            "full join" => format!("{left}.{keys} = {right}.{keys}"),
            _ if rng.random_bool(0.5) => format!("{left}.{keys} = {right}.{keys}"),
            _ => beside(rng, left, right),
        };
        if rng.random_bool(0.3) && kind != "full join" {
            let side = if rng.random_bool(0.5) { left } else { right };
            on = format!("{on} and {}", conditions(rng, &[side]));
        }
        from = format!("{from} {kind} {right} on {on}");
    }
    let mut filter = conditions(rng, tables);
    if let [.., left, right] = tables
        && rng.random_bool(0.3)
    {
        let sum = format!("{left}.t::int + {right}.id between 1 and 20");
        filter = format!("{sum} and {filter} and {left}.k = {right}.k and {right}.k = 'n'");
    }
    if rng.random_bool(0.25) {
        let not = one(rng, &["", "not "]);
        let (both, own) = (beside(rng, tables[0], "z"), conditions(rng, &["z"]));
        filter = format!("{filter} and {not}exists (select 1 from fc z where {both} and {own})");
    }
    if rng.random_bool(0.15) {
        let own = conditions(rng, &["z"]);
        filter = format!("{filter} and {}.t in (select z.t from fb z where {own})", tables[0]);
    }
    let columns: Vec<String> =
        tables.iter().map(|table| format!("{table}.id as {table}_id")).collect();
    let query =
        format!("select {}, fa.t, fa.k, fa.m from {from} where {filter}", columns.join(", "));
    match rng.random_range(0..6) {
        0 => {
            let outer = one(rng, &["k = 'n'", "m > 0", "fa_id < 9", "k = 'n' and t::int > 2"]);
            format!("select * from ({query}) q where {outer}")
        }
        // Nothing passes the LIMIT: all conditions stand in one filter.
        1 => {
            let (low, high) = (rng.random_range(0..6), rng.random_range(3..15));
            let fails = format!("t::int > {low} and t::int < {high}");
            format!(
                "select * from (select * from fa order by id limit 10) q where {fails} and lower(k) = 'n'"
            )
        }
        _ => query,
    }
}
