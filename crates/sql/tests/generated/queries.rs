//! Queries made at random over the model's tables.

use rand::Rng;
use rand::rngs::StdRng;
use rand::seq::IndexedRandom;

use super::grammar::{Grammar, ScopeColumn};
use super::tables::{Model, ModelTable, condition, key_value};

/// A query, and whether its rows come in one order only.
pub struct Query {
    pub sql: String,
    pub ordered: bool,
    /// Whether the key path may take it: then both executors are asked.
    pub keyed: bool,
}

/// Types that both systems sort and group alike.
const SORTED: &[&str] = &[
    "int2",
    "int4",
    "int8",
    "numeric",
    "float8",
    "float4",
    "text",
    "varchar",
    "bpchar",
    "bool",
    "date",
    "time",
    "timestamp",
    "timestamptz",
    "interval",
    "uuid",
    "bytea",
    "int4[]",
    "text[]",
    "jsonb",
];

fn any_type(grammar: &Grammar, rng: &mut StdRng) -> &'static str {
    grammar.types().choose(rng).expect("a type")
}

fn sorted_type(rng: &mut StdRng) -> &'static str {
    SORTED.choose(rng).expect("a type")
}

/// Expressions alone: the only place where values are extreme and calls may fail.
pub fn scalar(grammar: &Grammar, rng: &mut StdRng) -> Query {
    let ty = any_type(grammar, rng);
    let depth = rng.random_range(1..4);
    let first = grammar.expression(ty, &[], depth, rng, true);
    let sql = match rng.random_range(0..12) {
        0 => format!("select {first}, {}", grammar.expression("bool", &[], 2, rng, false)),
        1 => format!("select {first} as a, pg_typeof({first})::text as b"),
        2 => format!("values ({first}), (null)"),
        // Operands and arguments of types that mostly do not go together: the errors must be the
        // same.
        3 => {
            let other = any_type(grammar, rng);
            let second = grammar.expression(other, &[], 1, rng, false);
            let operator =
                ["+", "-", "*", "/", "||", "=", "<", "and", "~", "@>", "->", "like", "%"]
                    .choose(rng)
                    .expect("one");
            format!("select {first} {operator} {second}")
        }
        4 => {
            let name = [
                "upper",
                "abs",
                "length",
                "round",
                "date_trunc",
                "coalesce",
                "array_length",
                "lower",
                "sum",
                "nosuch",
            ]
            .choose(rng)
            .expect("one");
            format!("select {name}({first})")
        }
        5 => format!("select ({first})::{}", super::grammar::sql_name(any_type(grammar, rng))),
        _ => format!("select {first}"),
    };
    Query { sql, ordered: true, keyed: false }
}

fn order_by(scope: &[ScopeColumn], rng: &mut StdRng) -> String {
    let columns: Vec<&ScopeColumn> =
        scope.iter().filter(|column| SORTED.contains(&column.ty)).collect();
    let mut out = Vec::new();
    for _ in 0..rng.random_range(1..3) {
        let Some(column) = columns.choose(rng) else { break };
        let direction =
            ["", " desc", " asc nulls first", " desc nulls last"].choose(rng).expect("one");
        out.push(format!("{}{direction}", column.text));
    }
    out.join(", ")
}

/// Adds ORDER BY: with every key column behind it when a key makes the order total, and then
/// perhaps LIMIT.
fn finish(mut sql: String, scope: &[ScopeColumn], total: &[String], rng: &mut StdRng) -> Query {
    let mut ordered = false;
    if rng.random_bool(0.6) {
        let mut order = order_by(scope, rng);
        if !total.is_empty() {
            if !order.is_empty() && rng.random_bool(0.6) {
                order.push_str(", ");
            } else {
                order.clear();
            }
            order.push_str(&total.join(", "));
            ordered = true;
        }
        if !order.is_empty() {
            sql.push_str(&format!(" order by {order}"));
        }
    }
    if ordered && rng.random_bool(0.5) {
        sql.push_str(&format!(" limit {}", rng.random_range(0..6)));
        if rng.random_bool(0.4) {
            sql.push_str(&format!(" offset {}", rng.random_range(0..4)));
        }
    }
    Query { sql, ordered, keyed: true }
}

fn primary_of(table: &ModelTable, alias: &str) -> Vec<String> {
    table.primary.iter().map(|name| format!("{alias}.{name}")).collect()
}

fn list(scope: &[ScopeColumn], grammar: &Grammar, rng: &mut StdRng) -> String {
    (0..rng.random_range(1..4))
        .map(|at| {
            let ty = any_type(grammar, rng);
            format!("{} as x{at}", grammar.expression(ty, scope, 2, rng, false))
        })
        .collect::<Vec<_>>()
        .join(", ")
}

/// One table.
pub fn single(model: &Model, grammar: &Grammar, rng: &mut StdRng) -> Option<Query> {
    let table = model.tables.choose(rng)?;
    let scope = table.scope("a");
    let what = if rng.random_bool(0.4) { "a.*".to_owned() } else { list(&scope, grammar, rng) };
    let filter = condition(table, "a", rng, grammar);
    let sql = format!("select {what} from {} a where {filter}", table.name);
    let mut query = finish(sql, &scope, &primary_of(table, "a"), rng);
    if query.ordered && rng.random_bool(0.05) {
        query.sql.push_str(" for update");
    }
    Some(query)
}

/// A FROM clause of two or three tables; gives it with the columns in scope and the columns that
/// make a row unique.
fn from(
    model: &Model,
    rng: &mut StdRng,
    grammar: &Grammar,
) -> Option<(String, Vec<ScopeColumn>, Vec<String>)> {
    let first = model.tables.choose(rng)?;
    let mut sql = format!("{} a", first.name);
    let mut scope = first.scope("a");
    let mut total = primary_of(first, "a");
    let mut unique = !first.primary.is_empty();
    for alias in ["b", "c"].iter().take(rng.random_range(1..=2)) {
        let table = model.tables.choose(rng)?;
        let kind = ["join", "join", "left join", "left join", "right join", "full join"]
            .choose(rng)
            .expect("one");
        let inner = table.scope(alias);
        let pairs: Vec<(&ScopeColumn, &ScopeColumn)> = scope
            .iter()
            .flat_map(|left| inner.iter().map(move |right| (left, right)))
            .filter(|(left, right)| left.ty == right.ty && SORTED.contains(&left.ty))
            .collect();
        // A key of either side more often than not: these are the joins that a key path can take.
        let keyed: Vec<&(&ScopeColumn, &ScopeColumn)> = pairs
            .iter()
            .filter(|(left, right)| {
                let key = |text: &str| {
                    text.ends_with(".k0") || text.ends_with(".p") || text.ends_with(".u")
                };
                key(&left.text) && key(&right.text)
            })
            .collect();
        let Some((left, right)) = keyed
            .choose(rng)
            .copied()
            .or_else(|| pairs.choose(rng))
            .filter(|_| rng.random_bool(0.9))
        else {
            sql.push_str(&format!(" cross join {} {alias}", table.name));
            scope.extend(inner);
            unique &= !table.primary.is_empty();
            total.extend(primary_of(table, alias));
            continue;
        };
        sql.push_str(&format!(" {kind} {} {alias} on {} = {}", table.name, left.text, right.text));
        if rng.random_bool(0.2) && !kind.starts_with("full") {
            sql.push_str(&format!(" and {}", condition(table, alias, rng, grammar)));
        }
        scope.extend(inner);
        unique &= !table.primary.is_empty();
        total.extend(primary_of(table, alias));
    }
    Some((sql, scope, if unique { total } else { Vec::new() }))
}

/// Several tables.
pub fn join(model: &Model, grammar: &Grammar, rng: &mut StdRng) -> Option<Query> {
    let (from, scope, total) = from(model, rng, grammar)?;
    let what = if rng.random_bool(0.3) { "*".to_owned() } else { list(&scope, grammar, rng) };
    let mut sql = format!("select {what} from {from}");
    if rng.random_bool(0.7) {
        let filter = match model
            .tables
            .iter()
            .find(|table| from.starts_with(&format!("{} a", table.name)))
        {
            Some(table) if rng.random_bool(0.7) => condition(table, "a", rng, grammar),
            _ => grammar.expression("bool", &scope, 2, rng, false),
        };
        sql.push_str(&format!(" where {filter}"));
    }
    Some(finish(sql, &scope, &total, rng))
}

fn aggregate(scope: &[ScopeColumn], grammar: &Grammar, rng: &mut StdRng) -> String {
    let mut of = |ty: &str| grammar.expression(ty, scope, 1, rng, false);
    let int = of("int4");
    let big = of("int8");
    let num = of("numeric");
    let text = of("text");
    let flag = of("bool");
    let array = of("int4");
    let ty = sorted_type(rng);
    let any = grammar.expression(ty, scope, 1, rng, false);
    let distinct = if rng.random_bool(0.25) { "distinct " } else { "" };
    let filter = if rng.random_bool(0.2) {
        format!(" filter (where {})", grammar.expression("bool", scope, 1, rng, false))
    } else {
        String::new()
    };
    let ordered = !matches!(ty, "int4[]" | "text[]" | "jsonb" | "bool" | "uuid" | "bytea");
    let call = match rng.random_range(0..14) {
        0 => "count(*)".to_owned(),
        1 => format!("count({distinct}{any})"),
        2 => format!("sum({distinct}{int})"),
        3 => format!("sum({big})"),
        4 => format!("sum({distinct}{num})"),
        5 => format!("avg({int})"),
        6 => format!("avg({num})"),
        7 if ordered => format!("min({any})"),
        8 if ordered => format!("max({any})"),
        9 => format!("bool_and({flag})"),
        10 => format!("bool_or({flag})"),
        11 => format!("string_agg({text}, ',' order by {text})"),
        12 => format!("array_agg({array} order by {array} desc)"),
        _ => format!("count({int})"),
    };
    call + &filter
}

/// Groups.
pub fn grouped(model: &Model, grammar: &Grammar, rng: &mut StdRng) -> Option<Query> {
    let (from, scope) = if rng.random_bool(0.6) {
        let table = model.tables.choose(rng)?;
        (format!("{} a", table.name), table.scope("a"))
    } else {
        let (from, scope, _) = from(model, rng, grammar)?;
        (from, scope)
    };
    let keys: Vec<String> = (0..rng.random_range(0..3))
        .map(|_| {
            let ty = sorted_type(rng);
            let depth = rng.random_range(0..2);
            grammar.expression(ty, &scope, depth, rng, false)
        })
        // A constant in GROUP BY is a position.
        .filter(|key| scope.iter().any(|column| key.contains(&column.text)))
        .collect();
    let mut what: Vec<String> = keys.clone();
    for _ in 0..rng.random_range(1..3) {
        what.push(aggregate(&scope, grammar, rng));
    }
    let mut sql = format!("select {} from {from}", what.join(", "));
    if rng.random_bool(0.4) {
        sql.push_str(&format!(" where {}", grammar.expression("bool", &scope, 1, rng, false)));
    }
    if !keys.is_empty() {
        sql.push_str(&format!(" group by {}", keys.join(", ")));
    }
    if rng.random_bool(0.3) {
        sql.push_str(&format!(
            " having {} > 1",
            ["count(*)", "max(1)", "sum(2)"].choose(rng).expect("one")
        ));
    }
    Some(Query { sql, ordered: false, keyed: false })
}

/// Set operations, subqueries, common table expressions, DISTINCT and windows.
pub fn nested(model: &Model, grammar: &Grammar, rng: &mut StdRng) -> Option<Query> {
    let table = model.tables.choose(rng)?;
    let other = model.tables.choose(rng)?;
    let a = table.scope("a");
    let b = other.scope("b");
    let mut both = a.clone();
    both.extend(b.iter().cloned());
    let on = |rng: &mut StdRng| grammar.expression("bool", &both, 1, rng, false);
    let ty = sorted_type(rng);
    let left = grammar.expression(ty, &a, 1, rng, false);
    let right = grammar.expression(ty, &b, 1, rng, false);
    let (t, o) = (&table.name, &other.name);
    let matching = a
        .iter()
        .flat_map(|x| b.iter().map(move |y| (x, y)))
        .find(|(x, y)| x.ty == y.ty && SORTED.contains(&x.ty));
    let equal =
        matching.map_or_else(|| "1 = 1".to_owned(), |(x, y)| format!("{} = {}", x.text, y.text));
    let sql = match rng.random_range(0..13) {
        0 | 1 => {
            let operator =
                ["union", "union all", "intersect", "except", "intersect all", "except all"].choose(rng).expect("one");
            format!("select {left} as x from {t} a {operator} select {right} from {o} b")
        }
        2 => format!("select a.* from {t} a where exists (select 1 from {o} b where {equal})"),
        3 => format!("select a.* from {t} a where not exists (select 1 from {o} b where {equal} and {})", on(rng)),
        4 => format!("select a.* from {t} a where {left} in (select {right} from {o} b)"),
        5 => format!("select a.* from {t} a where {left} not in (select {right} from {o} b)"),
        6 => format!("select a.*, (select count(*) from {o} b where {equal}) as n from {t} a"),
        7 => format!("select (select max({right}) from {o} b where {equal}) is null as m, {left} as l from {t} a")
            .replace("max(", if matches!(ty, "int4[]" | "text[]" | "jsonb" | "bool" | "uuid" | "bytea") { "count(" } else { "max(" }),
        8 => format!("select distinct {left} as x, {} as y from {t} a", grammar.expression("bool", &a, 1, rng, false)),
        9 => format!(
            "with w as (select a.*, {left} as x from {t} a where {}) select x, count(*) from w group by x",
            grammar.expression("bool", &a, 1, rng, false)
        ),
        10 if !table.primary.is_empty() => format!(
            "select {0}, row_number() over (partition by {left} order by {0}) as r, count(*) over (partition by {left}) as n, \
             lag({1}) over (order by {0}) as g from {t} a",
            primary_of(table, "a").join(", "),
            primary_of(table, "a")[0]
        ),
        11 => format!("select x.* from (select {left} as v, count(*) as n from {t} a group by 1) x where x.n > 1")
            .replace("group by 1", &if a.iter().any(|c| left.contains(&c.text)) { format!("group by {left}") } else { format!("group by {}", a[0].text) }),
        12 => {
            let value = key_value("int4", rng, grammar);
            format!("select count(*) from {t} a, {o} b where {equal} and {value} > 3")
        }
        _ => format!("select q.x from (select {left} as x from {t} a) q where q.x is not null"),
    };
    Some(Query { sql, ordered: false, keyed: false })
}
