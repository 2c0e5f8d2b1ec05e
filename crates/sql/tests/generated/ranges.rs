//! Ranges and multiranges: queries with their operators, functions, aggregates and comparisons,
//! over columns so that nothing is folded while a statement is planned. What may fail is at most
//! the outermost call: of several errors either side may tell another.

use rand::Rng;
use rand::rngs::StdRng;
use rand::seq::IndexedRandom;

/// Makes the text of a bound near a number.
type Bound = fn(i32, &mut StdRng) -> String;

const COMPARISONS: [&str; 6] = ["=", "<>", "<", "<=", ">", ">="];
/// Operators of two ranges, two multiranges, or one of each.
const TESTS: [&str; 8] = ["@>", "<@", "&&", "<<", ">>", "&<", "&>", "-|-"];

fn one<'a>(rng: &mut StdRng, of: &[&'a str]) -> &'a str {
    of.choose(rng).expect("a choice")
}

/// The text of a range whose bounds are `bound`s of two numbers in order; few numbers, so that
/// bounds meet.
fn text(rng: &mut StdRng, bound: fn(i32, &mut StdRng) -> String) -> String {
    if rng.random_range(0..12) == 0 {
        return "empty".to_owned();
    }
    let (a, b) = (rng.random_range(-6..7), rng.random_range(-6..7));
    let end = |at: i32, rng: &mut StdRng| match rng.random_range(0..8) {
        0 => String::new(),
        _ => bound(at, rng),
    };
    let (low, high) = (end(a.min(b), rng), end(a.max(b), rng));
    format!("{}{low},{high}{}", one(rng, &["[", "("]), one(rng, &["]", ")"]))
}

fn integer(at: i32, _: &mut StdRng) -> String {
    at.to_string()
}

/// Of one value with several scales.
fn number(at: i32, rng: &mut StdRng) -> String {
    format!("{at}{}", one(rng, &["", ".0", ".00", ".50"]))
}

fn day(at: i32, rng: &mut StdRng) -> String {
    match rng.random_range(0..20) {
        0 if at < -3 => "-infinity".to_owned(),
        0 if at > 3 => "infinity".to_owned(),
        _ => format!("2020-01-{:02}", at + 10),
    }
}

fn moment(at: i32, _: &mut StdRng) -> String {
    format!("2020-01-{:02} 10:00", at + 10)
}

fn several(rng: &mut StdRng, bound: fn(i32, &mut StdRng) -> String) -> String {
    let parts: Vec<String> = (0..rng.random_range(0..4)).map(|_| text(rng, bound)).collect();
    format!("{{{}}}", parts.join(","))
}

/// The tables with their rows; `k` orders them, `i` and `j` are of integers, `n` of numbers, `m`,
/// `o` and `q` multiranges.
pub fn tables(rng: &mut StdRng) -> Vec<String> {
    let mut out = vec![
        "create table r (k int primary key, e int, x numeric, i int4range, j int4range, n numrange, d daterange, t tsrange, m int4multirange, o int4multirange, q nummultirange, l int4range[])".to_owned(),
        "create table s (i int4range primary key, n numrange, m int4multirange)".to_owned(),
    ];
    for k in 0..40 {
        let or_null = |value: String, rng: &mut StdRng| match rng.random_range(0..12) {
            0 => "null".to_owned(),
            _ => format!("'{value}'"),
        };
        let mut values = vec![k.to_string(), rng.random_range(-7..8).to_string()];
        values.push(number(rng.random_range(-7..8), rng));
        let made: [(bool, Bound); 8] = [
            (false, integer),
            (false, integer),
            (false, number),
            (false, day),
            (false, moment),
            (true, integer),
            (true, integer),
            (true, number),
        ];
        for (many, bound) in made {
            let value = if many { several(rng, bound) } else { text(rng, bound) };
            values.push(or_null(value, rng));
        }
        values.push(format!("'{{\"{}\",NULL,\"{}\"}}'", text(rng, integer), text(rng, integer)));
        // What would be bounds in the wrong order fails on both sides: `-3.50` is before `-3`.
        out.push(format!("insert into r values ({}) on conflict do nothing", values.join(", ")));
        let (i, n, m) = (text(rng, integer), text(rng, number), several(rng, integer));
        out.push(format!(
            "insert into s values ('{i}', '{n}', '{m}') on conflict (i) do update set m = s.m + excluded.m"
        ));
    }
    if rng.random_bool(0.5) {
        out.push("create index on r (i desc, n)".to_owned());
        out.push("create index on r (m)".to_owned());
    }
    out
}

/// A range of integers.
fn range(rng: &mut StdRng, depth: u32) -> String {
    if depth == 0 {
        return match rng.random_range(0..8) {
            0 => format!("'{}'::int4range", text(rng, integer)),
            1 => "l[1]".to_owned(),
            at => ["i", "j"][at % 2].to_owned(),
        };
    }
    let (a, b) = (range(rng, depth - 1), range(rng, depth - 1));
    match rng.random_range(0..6) {
        0 => format!("({a} * {b})"),
        1 => format!("range_merge({a}, {b})"),
        2 => format!("range_merge({})", multirange(rng, depth - 1)),
        3 => format!("coalesce({a}, {b})"),
        4 => format!(
            "int4range(e, e + {}, '{}')",
            rng.random_range(0..5),
            one(rng, &["[]", "()", "(]", "[)"])
        ),
        _ => a,
    }
}

/// A multirange of integers.
fn multirange(rng: &mut StdRng, depth: u32) -> String {
    if depth == 0 {
        return match rng.random_range(0..6) {
            0 => format!("'{}'::int4multirange", several(rng, integer)),
            at => ["m", "o"][at % 2].to_owned(),
        };
    }
    let (a, b) = (multirange(rng, depth - 1), multirange(rng, depth - 1));
    match rng.random_range(0..6) {
        0 => format!("({a} + {b})"),
        1 => format!("({a} - {b})"),
        2 => format!("({a} * {b})"),
        3 => format!("multirange({})", range(rng, depth - 1)),
        4 => format!(
            "int4multirange(coalesce({}, 'empty'), coalesce({}, 'empty'))",
            range(rng, depth - 1),
            range(rng, depth - 1)
        ),
        _ => a,
    }
}

/// A condition.
fn condition(rng: &mut StdRng) -> String {
    let (a, b) = (range(rng, 1), range(rng, 1));
    let (c, d) = (multirange(rng, 1), multirange(rng, 1));
    let (test, order) = (one(rng, &TESTS), one(rng, &COMPARISONS));
    match rng.random_range(0..14) {
        0..=1 => format!("({a} {test} {b})"),
        2 => format!("({a} {test} {d})"),
        3 => format!("({c} {test} {b})"),
        4..=5 => format!("({c} {test} {d})"),
        6 => format!("({a} {order} {b})"),
        7 => format!("({c} {order} {d})"),
        8 => format!("({a} @> e)"),
        9 => format!("(e <@ {c})"),
        10 => format!("(n {test} '{}')", text(rng, integer)),
        11 => "(n @> x or x <@ q)".to_owned(),
        12 => format!("(i {order} any (l))"),
        _ => format!("(d {test} daterange('2020-01-08', '2020-01-12', '[]'))"),
    }
}

/// Something of another type, or that may fail.
fn told(rng: &mut StdRng) -> String {
    let (a, b, c) = (range(rng, 1), range(rng, 1), multirange(rng, 2));
    let of = match rng.random_range(0..6) {
        0 => a.clone(),
        1 => c.clone(),
        at => ["n", "d", "t", "q"][at - 2].to_owned(),
    };
    match rng.random_range(0..10) {
        0 => format!("lower({of})"),
        1 => format!("upper({of})"),
        2 => format!("isempty({of})"),
        3 => format!("array[lower_inc({of}), upper_inc({of}), lower_inf({of}), upper_inf({of})]"),
        4 => format!("({a} + {b})"),
        5 => format!("({a} - {b})"),
        6 => format!("({of})::text"),
        7 => format!("to_jsonb({of})"),
        8 => "(n * range_merge(q))".to_owned(),
        _ => condition(rng),
    }
}

/// A query, and whether it gives its rows in order.
pub fn query(rng: &mut StdRng) -> (String, bool) {
    let (a, b, c) = (range(rng, 2), range(rng, 1), multirange(rng, 2));
    let (holds, order) = (condition(rng), one(rng, &COMPARISONS));
    let constant = text(rng, integer);
    match rng.random_range(0..13) {
        0..=2 => (format!("select k, {} as x, {a} as y from r order by k", told(rng)), true),
        3 => (format!("select k, {c} as y from r where {holds} order by {c}, k"), true),
        4 => (format!("select k from r where {holds} order by {b} desc nulls last, n, k"), true),
        5 => (format!("select k, i from r where i {order} '{constant}' order by i, k"), true),
        6 => (format!("select i, m from s where i {order} '{constant}' order by i"), true),
        7 => (format!("select distinct {a} as x from r"), false),
        8 => (
            format!(
                "select {} as x, count(*), range_agg({a}), range_agg({c}) from r group by 1",
                one(rng, &["i", "m", "e", "isempty(n)"])
            ),
            false,
        ),
        9 => (
            format!(
                "select range_intersect_agg({b}), range_intersect_agg({c}), count(distinct n), count(distinct {a}) from r where {holds}"
            ),
            false,
        ),
        10 => (
            format!(
                "select k, range_agg({a}) over (order by k rows 2 preceding) as x from r order by k"
            ),
            true,
        ),
        11 => (
            format!(
                "select r.k, s.m from r join s on r.{} = s.i where s.i {order} '{constant}'",
                one(rng, &["i", "j"])
            ),
            false,
        ),
        _ => (format!("select k, u from r, unnest({c}) as u where {holds}"), false),
    }
}
