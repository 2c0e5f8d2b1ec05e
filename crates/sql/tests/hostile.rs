//! No statement aborts the process, and none is told a limit as something else: long lists and
//! chains, deep nesting, huge constants, runaway functions, joins and recursions, made from a seed.
//!
//! Each input runs in a child process of this test (the test program itself, told by [`CHILD`]),
//! because what is looked for is an abort: it would take the test with it.
//!
//! # Invariants
//! Every input ends with an answer or an SQLSTATE that is neither XX000 nor XX001.
#![allow(
    clippy::disallowed_methods,
    reason = "a test is an outermost layer: it starts processes, threads and tasks of its own"
)]

mod support;

use std::io::Write as _;
use std::process::{Command, Stdio};

use rand::rngs::StdRng;
use rand::{Rng as _, SeedableRng as _};
use support::Collected;

/// Set in the child: run the statements of standard input, which NULs end.
const CHILD: &str = "TELESTO_HOSTILE_CHILD";

/// Stack of the thread that a child runs on, bytes: what a node's threads have.
const STACK: usize = 8 << 20;

fn chain(operand: &str, operator: &str, count: usize) -> String {
    vec![operand; count].join(operator)
}

fn nested(open: &str, inner: &str, close: &str, levels: usize) -> String {
    format!("{}{inner}{}", open.repeat(levels), close.repeat(levels))
}

/// An input and what it must give: `None`: anything that is no abort and no internal error;
/// `Some("57014")` and the like: that SQLSTATE; anything else: that text in the first column of the
/// first row.
type Input = (String, Option<&'static str>);

/// Composite types in each other, each with two fields of the one below it.
fn tower(name: &str, levels: usize) -> String {
    let level = |at: usize| match at {
        0 => format!("create type {name}0 as (a int)"),
        at => format!("create type {name}{at} as (a {name}{0}, b {name}{0})", at - 1),
    };
    (0..levels).map(level).collect::<Vec<_>>().join("; ")
}

/// Inputs whose answers are PostgreSQL's.
fn fixed() -> Vec<Input> {
    let any = |sql: String| (sql, None);
    let gives = |sql: String, answer: &'static str| (sql, Some(answer));
    vec![
        gives("WITH RECURSIVE r(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM r WHERE n < 5 FOR UPDATE) SELECT * FROM r".to_owned(), "0A000"),
        gives("WITH RECURSIVE r(n) AS (SELECT 1 FROM r FOR UPDATE) SELECT * FROM r".to_owned(), "42P19"),
        gives(format!("select count(*) from (select 1{}) t", " union all select 1".repeat(5_000)), "54001"),
        gives(format!("select count(*) from (select 1{}) t", " union all select 1".repeat(4_000)), "4001"),
        gives(format!("select count(*) from (select 1{}) t", " union select 1".repeat(1_000)), "1"),
        gives(format!("select 1{}", " intersect select 1".repeat(100)), "1"),
        gives(format!("select 1{}", " intersect select 1".repeat(5_000)), "54001"),
        gives(format!("{}; select '(,)'::tower31 = '(\"(,)\",)'::tower31", tower("tower", 32)), "f"),
        gives(tower("high", 33), "54001"),
        gives("alter type tower0 add attribute b tower31".to_owned(), "42P16"),
        gives(format!("select {}", nested("array[", "1", "]", 100)), "54000"),
        gives(format!("select {}", nested("array[", "1", "]", 7)), "54000"),
        gives(format!("select ({})[1][1][1][1][1][1]", nested("array[", "1", "]", 6)), "1"),
        any(format!("select {}", nested("row(", "1", ")", 10))),
        gives(format!("select '{{1}}'::int{}", "[]".repeat(100_000)), "{1}"),
        any(format!("select '{{1}}'::int{}", "[3]".repeat(100_000))),
        any(format!("select max(length({})) from generate_series(1, 3) x", chain("x::text", "||", 20_000))),
        gives(format!("select max(length({})) from generate_series(1, 3) x", chain("x::text", "||", 100)), "100"),
        gives(format!("select {}", chain("1", " + ", 1_000)), "1000"),
        gives(format!("select {}", chain("1", " + ", 4_900)), "4900"),
        gives(format!("select {} + max(x) from generate_series(1, 3) x", chain("1.5", " + ", 4_900)), "7353.0"),
        any(format!("select {}", chain("1", "+", 20_000))),
        gives(format!("select count(*) from generate_series(1, 3) x where {}", chain("x <> 7", " and ", 5_000)), "3"),
        gives(format!("select count(*) from generate_series(1, 3) x where {}", chain("x = 7", " or ", 5_000)), "0"),
        gives(format!("select {}true", "not ".repeat(200)), "t"),
        gives(format!("select {}true", "not ".repeat(5_001)), "f"),
        gives(format!("select {}", nested("case when true then ", "1", " end", 200)), "1"),
        gives(format!("select {}", nested("(", "true and false", ")", 40)), "f"),
        gives(format!("select {}", nested("(", "1", ")", 900)), "1"),
        gives(format!("select {}", nested("(", "1", ")", 5_000)), "54001"),
        gives(format!("select {}", nested("(true = ", "true", ")", 500)), "t"),
        gives(format!("select {}", nested("abs(", "1", ")", 300)), "1"),
        any(format!("select {}", nested("abs(", "1", ")", 20_000))),
        any(format!("select {}", nested("substring(", "'a'", " error", 60))),
        gives(format!("select {}", nested("(select ", "1", ")", 60)), "1"),
        any(format!("select {}", nested("(select ", "1", ")", 5_000))),
        any(format!("select * from {}", nested("(select * from ", "(select 1) t", ") t", 200))),
        gives(format!("select 1{}", "::int".repeat(1_000)), "1"),
        gives(format!("select 1{}", " is null".repeat(1_000)), "f"),
        any(format!("select {}1", "- ".repeat(20_000))),
        gives(format!("select {}1", "- ".repeat(500)), "1"),
        any(format!("explain select {}", nested("(", "1", ")", 5_000))),
        any(format!("{}select 1", "explain ".repeat(3_000))),
        gives(
            format!(
                "select count(*) from generate_series(1, 3) x where x in ({})",
                (0..10_000).map(|i| i.to_string()).collect::<Vec<_>>().join(",")
            ),
            "3",
        ),
        any({
            let ctes = (1..1_000).map(|i| format!("c{i} as (select 1 x union all select x from c{})", i - 1));
            format!("with c0 as (select 1 x), {} select count(*) from c999", ctes.collect::<Vec<_>>().join(", "))
        }),
        any({
            let ctes = (1..=16).map(|i| format!("c{i} as (select a.x from c{0} a, c{0} b)", i - 1));
            format!("with c0 as (select 1 x), {} select count(*) from c16", ctes.collect::<Vec<_>>().join(", "))
        }),
        gives("select count(*) from generate_series(0::numeric, 'nan')".to_owned(), "22023"),
        gives("select count(*) from generate_series('nan'::numeric, 1)".to_owned(), "22023"),
        gives("select count(*) from generate_series(0::numeric, 1, 'infinity')".to_owned(), "22023"),
        gives("select length(repeat('x', 2000000000))".to_owned(), "54000"),
        gives("select length(lpad('x', 2000000000, 'y'))".to_owned(), "54000"),
        gives("create table t_view (a int); create view v_table as table t_view; select count(*) from v_table".to_owned(), "0"),
    ]
}

/// An input of one of the kinds, of a size the seed decides.
fn generated(random: &mut StdRng) -> String {
    let operators =
        ["+", "-", "*", "||", " and ", " or ", " = ", " <> ", " is distinct from ", "::text||"];
    let operator = operators[random.random_range(0..operators.len())];
    let sizes = [30, 150, 700, 3_000, 9_000, 40_000];
    let size = sizes[random.random_range(0..sizes.len())];
    let opens = [
        ("(", ")"),
        ("abs(", ")"),
        ("coalesce(null, ", ")"),
        ("case when true then ", " else 2 end"),
        ("(select ", ")"),
        ("array[", "]"),
        ("row(", ")"),
        ("not (", ")"),
        ("cast(", " as text)"),
        ("greatest(1, ", ")"),
        ("(1 + ", ")"),
        ("trim(", ")"),
        ("exists (select 1 where ", ")"),
        ("- (", ")"),
    ];
    let (open, close) = opens[random.random_range(0..opens.len())];
    match random.random_range(0..9) {
        0 => format!("select {}", chain("1", operator, size)),
        1 => format!(
            "select count(*) from generate_series(1, 2) x where {}",
            chain("x = 1", operator, size)
        ),
        2 => format!("select {}", nested(open, "1", close, size)),
        3 => format!("select {} from generate_series(1, 2) x", nested(open, "x", close, size)),
        4 => {
            let word = [" union ", " union all ", " except ", " intersect ", " intersect all "];
            chain("select 1", word[random.random_range(0..word.len())], size / 4)
        }
        5 => {
            let list: Vec<_> = (0..size).map(|i| i.to_string()).collect();
            format!("select count(*) from generate_series(1, 9) x where x in ({})", list.join(","))
        }
        6 => {
            let from: Vec<_> =
                (0..(size / 20).min(60)).map(|i| format!("(select 1) t{i}")).collect();
            format!(
                "select 1 from {}",
                from.join([", ", " cross join "][random.random_range(0..2)])
            )
        }
        7 => {
            let rows: Vec<_> = (0..size).map(|i| format!("({i})")).collect();
            format!("select count(*) from (values {}) v", rows.join(","))
        }
        _ => format!(
            "create view v{size}_{} as select {}",
            random.random_range(0..1_000_000),
            nested(open, "1", close, size)
        ),
    }
}

/// Runs `inputs` in a child and gives what each came to: an SQLSTATE or the first value.
fn run(inputs: &[String]) -> Vec<String> {
    let program = std::env::current_exe().expect("this program");
    let mut child = Command::new(program)
        .args(["--exact", "child", "--nocapture", "--include-ignored"])
        .env(CHILD, "1")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("a child");
    let mut stdin = child.stdin.take().expect("its input");
    let text = inputs.join("\0");
    let writer = std::thread::spawn(move || stdin.write_all(text.as_bytes()));
    let output = child.wait_with_output().expect("its output");
    writer.join().expect("a writer").expect("written");
    let told = String::from_utf8_lossy(&output.stdout).into_owned();
    let answers: Vec<String> =
        told.lines().filter_map(|line| line.strip_prefix("answer ")).map(str::to_owned).collect();
    if !output.status.success() || answers.len() != inputs.len() {
        let input = inputs.get(answers.len()).map_or("", String::as_str);
        panic!(
            "the process ended ({}) at: {} … ({} bytes)",
            output.status,
            input.chars().take(160).collect::<String>(),
            input.len()
        );
    }
    answers
}

/// What a child does.
#[test]
#[ignore = "run by the other tests, in a process of its own"]
fn child() {
    if std::env::var_os(CHILD).is_none() {
        return;
    }
    let work = || {
        let text = std::io::read_to_string(std::io::stdin()).expect("the inputs");
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        runtime.expect("a runtime").block_on(async {
            let mut session = support::session().await.expect("a session");
            for sql in text.split('\0') {
                let mut sink = Collected::default();
                let answer = match session.execute_simple(sql, &mut sink).await {
                    Ok(()) => {
                        let first = sink.table.and_then(|table| table.rows.into_iter().next());
                        first.and_then(|row| row.into_iter().next()).flatten().unwrap_or_default()
                    }
                    Err(error) => format!("{} {}", error.code().0, error.message()),
                };
                let answer: String = answer.chars().take(200).collect();
                println!("\nanswer {}", answer.replace('\n', " "));
            }
        });
    };
    let thread = std::thread::Builder::new().stack_size(STACK).spawn(work);
    thread.expect("a thread").join().expect("no panic");
}

fn is_internal(answer: &str) -> bool {
    answer.starts_with("XX0")
}

#[test]
fn what_could_abort_is_answered_or_refused() {
    let inputs = fixed();
    let texts: Vec<String> = inputs.iter().map(|(sql, _)| sql.clone()).collect();
    let mut wrong = Vec::new();
    for ((sql, wanted), answer) in inputs.iter().zip(run(&texts)) {
        let right = match wanted {
            _ if is_internal(&answer) => false,
            None => true,
            Some(wanted) => answer.split(' ').next() == Some(wanted),
        };
        if !right {
            let sql: String = sql.chars().take(100).collect();
            wrong.push(format!("{sql} …: wanted {wanted:?}, got {answer}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn generated_inputs_abort_nothing() {
    let seed = std::env::var("TELESTO_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(19);
    let count = std::env::var("TELESTO_HOSTILE").ok().and_then(|n| n.parse().ok()).unwrap_or(6);
    let mut random = StdRng::seed_from_u64(seed);
    let inputs: Vec<String> = (0..count).map(|_| generated(&mut random)).collect();
    for (sql, answer) in inputs.iter().zip(run(&inputs)) {
        let sql: String = sql.chars().take(100).collect();
        assert!(!is_internal(&answer), "seed {seed}: {sql} …: {answer}");
    }
}
