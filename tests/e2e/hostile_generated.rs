//! Hostile statements made from a seed: the kinds of `tests/data/hostile.sql`, of sizes and shapes
//! nobody chose.

use rand::rngs::StdRng;
use rand::{Rng as _, SeedableRng as _};

use super::hostile_inputs::Input;

/// What one kind makes: its name and text.
type Kind = fn(&mut StdRng) -> (String, String);

/// In turns, so that a short run has one of each after as many inputs as there are kinds.
const KINDS: [Kind; 10] =
    [list, chain, nesting, constant, function, text_search, joined, recursion, collected, windowed];

/// The first `count` statements of `seed`.
pub fn generated(seed: u64, count: usize) -> Vec<Input> {
    let mut random = StdRng::seed_from_u64(seed);
    let inputs = (0..count).map(|at| {
        let (name, sql) = KINDS[at % KINDS.len()](&mut random);
        Input { name: format!("{seed}.{at} {name}"), sql }
    });
    inputs.collect()
}

fn pick<'t>(random: &mut StdRng, from: &[&'t str]) -> &'t str {
    from[random.random_range(0..from.len())]
}

fn list(random: &mut StdRng) -> (String, String) {
    let count = random.random_range(5_000..60_000);
    let numbers: Vec<String> = (0..count).map(|n| n.to_string()).collect();
    let numbers = numbers.join(",");
    let (what, sql) = match random.random_range(0..5) {
        0 => (
            "IN",
            format!("SELECT count(*) FROM generate_series(1, 100000) i WHERE i + 0 IN ({numbers})"),
        ),
        1 => (
            "NOT IN",
            format!(
                "SELECT count(*) FROM generate_series(1, 100000) i WHERE i::text || 'x' NOT IN ('{}')",
                numbers.replace(',', "','")
            ),
        ),
        2 => (
            "ARRAY",
            format!(
                "SELECT count(*) FROM generate_series(1, 100000) i WHERE i = ANY (ARRAY[{numbers}])"
            ),
        ),
        3 => (
            "VALUES",
            format!(
                "SELECT count(*) FROM (VALUES ({})) v(a), generate_series(1, 1000000) i",
                numbers.replace(',', "),(")
            ),
        ),
        _ => (
            "greatest of",
            format!("SELECT sum(greatest({numbers}, i)) FROM generate_series(1, 100000) i"),
        ),
    };
    (format!("{what} a list of {count}"), sql)
}

fn chain(random: &mut StdRng) -> (String, String) {
    let count = random.random_range(500..15_000);
    let operator =
        pick(random, &[" + ", " || ", " OR ", " AND ", " * ", " = ANY ", " UNION ", " EXCEPT "]);
    let sql = match operator {
        " OR " | " AND " => {
            let tests: Vec<String> = (0..count).map(|n| format!("i % 7 <> {n}")).collect();
            format!(
                "SELECT count(*) FROM generate_series(1, 1000000) i WHERE {}",
                tests.join(operator)
            )
        }
        " UNION " | " EXCEPT " => {
            let parts: Vec<String> = (0..count / 4).map(|n| format!("SELECT {n}")).collect();
            format!(
                "SELECT count(*) FROM ({}) s, generate_series(1, 100000000) i",
                parts.join(operator)
            )
        }
        " = ANY " => {
            let tests = vec!["i = ANY (ARRAY[1,2,3])"; count];
            format!(
                "SELECT count(*) FROM generate_series(1, 1000000) i WHERE {}",
                tests.join(" AND ")
            )
        }
        " || " => format!(
            "SELECT max(length({})) FROM generate_series(1, 100000) i",
            vec!["i::text"; count].join(operator)
        ),
        _ => format!(
            "SELECT sum({}) FROM generate_series(1, 1000000) i",
            vec!["i::numeric"; count].join(operator)
        ),
    };
    (format!("chain of {count}{operator}"), sql)
}

fn nesting(random: &mut StdRng) -> (String, String) {
    let levels = random.random_range(10..2_000);
    let pairs = [
        ("(", ")"),
        ("abs(", ")"),
        ("coalesce(NULL, ", ")"),
        ("CASE WHEN true THEN ", " ELSE 2 END"),
        ("(SELECT ", ")"),
        ("ARRAY[", "]"),
        ("ROW(", ", 1)"),
        ("jsonb_build_array(", ")"),
        ("to_json(ROW(", "))"),
        ("(SELECT max(x) FROM generate_series(1, 3) x WHERE x > ", ")"),
        ("concat(1, '\"', ", ")"),
        ("quote_literal(", "::text)"),
    ];
    let (open, close) = pairs[random.random_range(0..pairs.len())];
    let sql = format!(
        "SELECT {}i{} FROM generate_series(1, 100000) i",
        open.repeat(levels),
        close.repeat(levels)
    );
    (format!("{levels} times {open}"), sql)
}

fn constant(random: &mut StdRng) -> (String, String) {
    let digits = random.random_range(20_000..131_000);
    let power = random.random_range(10_000..300_000);
    let sql = match random.random_range(0..8) {
        0 => format!("SELECT 3.7::numeric ^ {power}.25"),
        1 => format!("SELECT exp({}.5::numeric)", power.min(290_000)),
        2 => format!("SELECT ln(repeat('7', {digits})::numeric)"),
        3 => format!("SELECT log(3.0, repeat('7', {digits})::numeric)"),
        4 => format!("SELECT sqrt(repeat('8', {digits})::numeric)"),
        5 => format!(
            "SELECT sum((repeat('9', {digits})::numeric / (repeat('3', {})::numeric + i))) FROM generate_series(1, 1000000) i",
            digits / 2
        ),
        6 => format!(
            "SELECT max(repeat('9', {digits})::numeric % (repeat('7', {})::numeric + i)) FROM generate_series(1, 1000000) i",
            digits / 2
        ),
        _ => format!("SELECT (repeat('9', {})::numeric)", digits * 1_000),
    };
    (format!("constant {}", &sql[..sql.len().min(34)]), sql)
}

fn function(random: &mut StdRng) -> (String, String) {
    let length = random.random_range(1_000_000..40_000_000);
    let sql = match random.random_range(0..12) {
        0 => format!("SELECT length(translate(repeat('ab', {length}), 'ab', 'ba'))"),
        1 => format!("SELECT length(upper(repeat('aß', {length})))"),
        2 => format!("SELECT length(reverse(repeat('ab', {length})))"),
        3 => format!("SELECT cardinality(string_to_array(repeat('a,', {length}), ','))"),
        4 => format!("SELECT count(*) FROM regexp_split_to_table(repeat('a,', {length}), ',')"),
        5 => format!("SELECT split_part(repeat('a,', {length}), ',', -3)"),
        6 => format!("SELECT length(encode(decode(repeat('ab', {length}), 'hex'), 'base64'))"),
        7 => format!("SELECT md5(repeat('a', {length})), sha256(repeat('a', {length})::bytea)"),
        8 => format!(
            "SELECT jsonb_array_length(('[' || repeat('[1],', {}) || '1]')::jsonb)",
            length / 4
        ),
        9 => format!("SELECT cardinality(('{{' || repeat('1,', {}) || '1}}')::int[])", length / 4),
        10 => format!(
            "SELECT sum(length(lpad(i::text, {length}, 'xy'))) FROM generate_series(1, 1000000) i"
        ),
        _ => format!("SELECT length(format('%{length}s|', i)) FROM generate_series(1, 1000000) i"),
    };
    (format!("function {}", &sql[7..sql.len().min(40)]), sql)
}

fn text_search(random: &mut StdRng) -> (String, String) {
    let length = random.random_range(100_000..20_000_000);
    let (pattern, text) = [
        ("(a|b)*c", "ab"),
        ("(a*)*b", "a"),
        ("[ab]*a[ab]{20}c", "ab"),
        ("((a{1,20}){1,20}){1,5}b", "a"),
        (r"\y\w+\y.*z", "ab "),
        (r"(\w+)\s(\w+)", "ab "),
        ("(x+x+)+y", "x"),
        ("^(.*)(.*)(.*)$", "ab"),
    ][random.random_range(0..8)];
    let sql = match random.random_range(0..5) {
        0 => format!("SELECT repeat('{text}', {length}) ~ '{pattern}'"),
        1 => format!(
            "SELECT length(regexp_replace(repeat('{text}', {length}), '{pattern}', 'x', 'g'))"
        ),
        2 => format!("SELECT length((regexp_match(repeat('{text}', {length}), '{pattern}'))[1])"),
        3 => format!(
            "SELECT count(*) FROM regexp_matches(repeat('{text}', {length}), '{pattern}', 'g')"
        ),
        _ => format!("SELECT repeat('{text}', {length}) LIKE '%{}%z'", "a%".repeat(20)),
    };
    (format!("search for {pattern} in {length} {text}"), sql)
}

fn joined(random: &mut StdRng) -> (String, String) {
    let rows = random.random_range(20_000..300_000);
    let how = pick(
        random,
        &[
            "a CROSS JOIN b WHERE (a.x::bigint * b.x) % 1000003 = 7",
            "a LEFT JOIN b ON a.x < b.x",
            "a FULL JOIN b ON a.x % 3 = b.x % 3",
            "a JOIN b ON a.x % 5 = b.x % 5 WHERE a.x + b.x < 0",
            "a WHERE NOT EXISTS (SELECT 1 FROM b WHERE b.x * a.x = -1)",
            "a WHERE a.x IN (SELECT b.x + a.x FROM b)",
            "a, LATERAL (SELECT count(*) AS c FROM b WHERE b.x > a.x) l WHERE l.c < 0",
        ],
    );
    let sql = format!(
        "WITH a AS MATERIALIZED (SELECT x FROM generate_series(1, {rows}) x), b AS (SELECT x FROM generate_series(1, {rows}) x) SELECT count(*) FROM {how}"
    );
    (format!("{rows} rows {how}"), sql)
}

fn recursion(random: &mut StdRng) -> (String, String) {
    let (name, sql) = [
        (
            "endless",
            "WITH RECURSIVE r(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM r) SELECT count(*) FROM r",
        ),
        (
            "doubling",
            "WITH RECURSIVE r(n) AS (SELECT 1::bigint UNION ALL SELECT n + k FROM r, (VALUES (1), (2)) v(k)) SELECT count(*) FROM r",
        ),
        (
            "of longer texts",
            "WITH RECURSIVE r(t) AS (SELECT 'x'::text UNION ALL SELECT t || 'xy' FROM r) SELECT max(length(t)) FROM r",
        ),
        (
            "of distinct rows",
            "WITH RECURSIVE r(n) AS (SELECT 1::numeric UNION SELECT n * 2 FROM r) SELECT count(*) FROM r",
        ),
        (
            "of longer arrays",
            "WITH RECURSIVE r(t) AS (SELECT ARRAY[1] UNION ALL SELECT t || 1 FROM r) SELECT max(cardinality(t)) FROM r",
        ),
    ][random.random_range(0..5)];
    (format!("recursion {name}"), sql.to_owned())
}

fn collected(random: &mut StdRng) -> (String, String) {
    let rows = random.random_range(1_000_000..4_000_000);
    let fold = pick(
        random,
        &[
            "length(string_agg(i::text, ',' ORDER BY -i))",
            "cardinality(array_agg(i ORDER BY i % 1000))",
            "length(jsonb_agg(i)::text)",
            "length(json_object_agg(i, i)::text)",
            "count(DISTINCT i::text)",
            "cardinality(array_agg(DISTINCT i % 100000))",
            "percentile_cont(0.5) WITHIN GROUP (ORDER BY i)",
            "sum(i::numeric ^ 3)",
            "max(md5(i::text))",
        ],
    );
    let tail = pick(random, &["", " GROUP BY i % 10", " GROUP BY i ORDER BY 1 LIMIT 1"]);
    (
        format!("{fold} of {rows}{tail}"),
        format!("SELECT {fold} FROM generate_series(1, {rows}) i{tail}"),
    )
}

fn windowed(random: &mut StdRng) -> (String, String) {
    let rows = random.random_range(100_000..1_000_000);
    let call = pick(
        random,
        &[
            "sum(i)",
            "min(i)",
            "max(i::text)",
            "avg(i::numeric)",
            "count(*)",
            "array_agg(i)",
            "rank()",
            "lag(i, 3)",
            "nth_value(i, 7)",
            "stddev(i)",
        ],
    );
    let frame = pick(
        random,
        &[
            "ORDER BY i ROWS BETWEEN 50000 PRECEDING AND 50000 FOLLOWING",
            "ORDER BY i ROWS BETWEEN 100 PRECEDING AND CURRENT ROW",
            "ORDER BY i RANGE BETWEEN 1000 PRECEDING AND 1000 FOLLOWING",
            "PARTITION BY i % 10 ORDER BY i ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW",
            "ORDER BY i ROWS BETWEEN CURRENT ROW AND UNBOUNDED FOLLOWING",
        ],
    );
    let sql = format!(
        "SELECT max(s::text) FROM (SELECT {call} OVER ({frame}) AS s FROM generate_series(1, {rows}) i) q"
    );
    (format!("{call} over {rows} {frame}"), sql)
}
