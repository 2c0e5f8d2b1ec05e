//! Bit strings: queries with their operators, functions, casts and comparisons, over columns so
//! that nothing is folded while a statement is planned. What may fail is at most the outermost
//! call: of several errors either side may tell another.

use rand::Rng;
use rand::rngs::StdRng;
use rand::seq::IndexedRandom;

const NUMBERS: [&str; 8] = ["-3", "-1", "0", "1", "2", "3", "7", "20"];
const LENGTHS: [&str; 4] = ["1", "4", "9", "33"];

fn one<'a>(rng: &mut StdRng, of: &[&'a str]) -> &'a str {
    of.choose(rng).expect("a choice")
}

fn digits(rng: &mut StdRng, length: usize) -> String {
    // Long runs of one digit meet at the borders of bytes.
    let odds = *[0.0, 0.1, 0.5, 0.9, 1.0].choose(rng).expect("odds");
    (0..length).map(|_| if rng.random_bool(odds) { '1' } else { '0' }).collect()
}

/// The table with its rows; `k` orders them, `f` has a fixed length, `v`, `w` and `l` any.
pub fn tables(rng: &mut StdRng) -> Vec<String> {
    let mut out = vec![
        "create table b (k int primary key, n int, f bit(12), g bit(12), v bit varying(40), w varbit, l varbit[])"
            .to_owned(),
        "create table c (v varbit primary key, f bit(12))".to_owned(),
    ];
    for k in 0..40 {
        let text = |most: usize, rng: &mut StdRng| {
            let length = rng.random_range(0..=most);
            match rng.random_range(0..10) {
                0 => "null".to_owned(),
                _ => format!("'{}'", digits(rng, length)),
            }
        };
        let (v, w) = (text(40, rng), text(9, rng));
        let (f, g) = (digits(rng, 12), digits(rng, 12));
        let l = format!("'{{{},NULL,{}}}'", digits(rng, 3), digits(rng, 9));
        let n: i32 = rng.random_range(-70_000..70_000);
        out.push(format!("insert into b values ({k}, {n}, B'{f}', '{g}', {v}, {w}, {l})"));
        let (v, f) = (digits(rng, k % 11), digits(rng, 12));
        out.push(format!(
            "insert into c values ('{v}', '{f}') on conflict (v) do update set f = c.f # excluded.f"
        ));
    }
    if rng.random_bool(0.5) {
        out.push("create index on b (v desc, f)".to_owned());
    }
    out
}

/// A bit string of any length.
fn any(rng: &mut StdRng, depth: u32) -> String {
    if depth == 0 {
        let constant = format!("B'{}'", digits(rng, 10));
        return match rng.random_range(0..8) {
            0 => constant,
            1 => "l[1]".to_owned(),
            2 => "l[3]".to_owned(),
            at => ["v", "w", "f", "v", "w"][at - 3].to_owned(),
        };
    }
    let (a, b, n) = (any(rng, depth - 1), any(rng, depth - 1), one(rng, &NUMBERS));
    let length = one(rng, &LENGTHS);
    match rng.random_range(0..11) {
        0 => format!("({a} || {b})"),
        1 => format!("(~ {a})"),
        2 => format!("({a} << {n})"),
        3 => format!("({a} >> {n})"),
        4 => format!("substring({a} from {n})"),
        5 => format!("substring({a} from {n} for 4)"),
        6 => format!("overlay({a} placing {b} from 2)"),
        7 => format!("({a})::bit({length})"),
        8 => format!("({a})::bit varying({length})"),
        9 => format!("coalesce({a}, {b})"),
        _ => fixed(rng, depth - 1),
    }
}

/// One of twelve bits.
fn fixed(rng: &mut StdRng, depth: u32) -> String {
    if depth == 0 {
        return one(rng, &["f", "g"]).to_owned();
    }
    let (a, b, n) = (fixed(rng, depth - 1), fixed(rng, depth - 1), one(rng, &NUMBERS));
    match rng.random_range(0..7) {
        0 => format!("({a} & {b})"),
        1 => format!("({a} | {b})"),
        2 => format!("({a} # {b})"),
        3 => format!("({a} << {n})"),
        4 => "n::bit(12)".to_owned(),
        5 => "n::bigint::bit(12)".to_owned(),
        _ => format!("({})::bit(12)", any(rng, depth - 1)),
    }
}

/// Something of another type, or that may fail.
fn told(rng: &mut StdRng) -> String {
    let (a, b, n) = (any(rng, 1), any(rng, 1), one(rng, &NUMBERS));
    let test = one(rng, &["=", "<>", "<", "<=", ">", ">="]);
    match rng.random_range(0..15) {
        0 => format!("length({a})"),
        1 => format!("octet_length({a})"),
        2 => format!("bit_count({a})"),
        3 => format!("position({a} in {b})"),
        4 => format!("get_bit({a}, {n})"),
        5 => format!("set_bit({a}, {n}, 1)"),
        6 => format!("({a})::int"),
        7 => format!("({a})::bit(70)::bigint"),
        8 => format!("({a})::text"),
        9 => format!("({a} & {b})"),
        10 => format!("overlay({a} placing {b} from {n} for 2)"),
        11 => format!("substring({a} from 2 for {n})"),
        12 => format!("({a} {test} all (l))"),
        13 => format!("({a} {test} any (array[{b}, f]))"),
        _ => format!("({a} {test} {b})"),
    }
}

/// A query, and whether it gives its rows in order.
pub fn query(rng: &mut StdRng) -> (String, bool) {
    let (a, b, c, d) = (any(rng, 2), any(rng, 1), fixed(rng, 2), fixed(rng, 1));
    let test = one(rng, &["=", "<>", "<", "<=", ">", ">="]);
    let fold = one(rng, &["bit_and", "bit_or", "bit_xor"]);
    match rng.random_range(0..12) {
        0..=3 => (format!("select k, {} as x, {a} as y from b order by k", told(rng)), true),
        4 => {
            (format!("select k from b where {a} {test} {b} order by {b} desc nulls last, k"), true)
        }
        5 => {
            (format!("select k, v from b where v {test} B'{}' order by v, k", digits(rng, 5)), true)
        }
        6 => (format!("select distinct {a} as x from b"), false),
        7 => (format!("select {d} as x, count(*), {fold}({c}) from b group by 1"), false),
        8 => (
            format!("select {fold}(distinct {c}), count(distinct {a}) from b where {b} {test} w"),
            false,
        ),
        9 => (
            format!(
                "select k, {fold}({c}) over (order by k rows 2 preceding) as x from b order by k"
            ),
            true,
        ),
        10 => (
            format!(
                "select b.k, c.f from b join c on b.w = c.v where c.v {test} B'{}'",
                digits(rng, 4)
            ),
            false,
        ),
        _ => (
            format!("select v from c where v {test} B'{}' union select {a} from b", digits(rng, 6)),
            false,
        ),
    }
}
