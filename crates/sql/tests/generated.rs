//! Statements made at random, on Telesto and on a real PostgreSQL 15: equal answers, or a
//! difference that `tests/data/generated.differences` knows with its reason.
//!
//! One seed makes one sequence of rounds. A round makes tables, fills them, and goes on with
//! queries, changes, definitions and transactions; both sides run every statement, and values,
//! column types, numbers of rows and SQLSTATEs are compared. A change that gave different answers
//! ends its round: what follows would only repeat the difference.
//!
//! ```text
//! TELESTO_GENERATED_SEED=7 TELESTO_GENERATED_STATEMENTS=100000 cargo test --workspace --test generated
//! ```
//! looks further; `TELESTO_GENERATED_ROUND=12` runs one round of the seed.
#![allow(
    clippy::disallowed_methods,
    reason = "a test is an outermost layer: it talks to a real server through tokio"
)]

#[path = "generated/bits.rs"]
mod bits;
#[path = "generated/grammar.rs"]
mod grammar;
#[path = "generated/guards.rs"]
mod guards;
#[path = "generated/queries.rs"]
mod queries;
#[path = "generated/ranges.rs"]
mod ranges;
#[path = "generated/tables.rs"]
mod tables;

mod support;

use std::collections::BTreeMap;
use std::fmt::Write as _;

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use regex::Regex;
use support::{Collected, Server, Table};
use telesto_sql::Session;

use grammar::Grammar;
use queries::Query;
use tables::Model;

const DIFFERENCES: &str = include_str!("data/generated.differences");
/// Statements a round, after its tables are there.
const ROUND: usize = 250;

fn setting(name: &str, default: u64) -> u64 {
    std::env::var(name).map_or(default, |text| text.parse().expect("a number"))
}

/// What one side made of a statement.
#[derive(Clone, Debug, PartialEq)]
enum Outcome {
    Rows(Table),
    Done(Option<u64>),
    Failed { code: String, message: String },
}

impl Outcome {
    fn shown(&self) -> String {
        match self {
            Self::Failed { code, message } => format!("!{code} {message}"),
            Self::Done(count) => format!("done {count:?}"),
            Self::Rows(table) => {
                let mut out = String::new();
                for column in &table.columns {
                    let _ = write!(out, "{}:{} ", column.name, column.oid);
                }
                for row in table.rows.iter().take(40) {
                    let cells: Vec<&str> =
                        row.iter().map(|cell| cell.as_deref().unwrap_or("NULL")).collect();
                    let _ = write!(out, "\n      {}", cells.join(" | "));
                }
                let _ = write!(out, "\n      ({} rows)", table.rows.len());
                out
            }
        }
    }
}

async fn on_telesto(session: &mut Session, sql: &str) -> Outcome {
    let mut sink = Collected::default();
    match session.execute_simple(sql, &mut sink).await {
        Err(error) => {
            Outcome::Failed { code: error.code().to_string(), message: error.to_string() }
        }
        Ok(()) => sink.table.map_or(Outcome::Done(sink.count), Outcome::Rows),
    }
}

async fn on_postgres(client: &tokio_postgres::Client, sql: &str) -> Outcome {
    use tokio_postgres::SimpleQueryMessage as Message;
    let failed = |error: tokio_postgres::Error| {
        let error = error.as_db_error().unwrap_or_else(|| panic!("PostgreSQL went away: {error}"));
        Outcome::Failed {
            code: error.code().code().to_owned(),
            message: error.message().to_owned(),
        }
    };
    let messages = match client.simple_query(sql).await {
        Ok(messages) => messages,
        Err(error) => return failed(error),
    };
    let (mut table, mut count) = (None, None);
    for message in messages {
        match message {
            Message::RowDescription(_) => table = Some(Table::default()),
            Message::Row(row) => {
                if let Some(table) = &mut table {
                    table
                        .rows
                        .push((0..row.len()).map(|at| row.get(at).map(str::to_owned)).collect());
                }
            }
            Message::CommandComplete(rows) => count = Some(rows),
            _ => {}
        }
    }
    let Some(mut table) = table else { return Outcome::Done(count) };
    // The text protocol of the driver does not tell types.
    match client.prepare(sql).await {
        Ok(statement) => {
            table.columns = statement
                .columns()
                .iter()
                .map(|column| support::Column {
                    name: column.name().to_owned(),
                    oid: column.type_().oid(),
                })
                .collect();
            Outcome::Rows(table)
        }
        Err(error) => failed(error),
    }
}

/// float4 and float8: sums depend on the order of rows, so the last digits may differ. numeric in
/// groups: which of several equal values (1.0, 1.00) a group shows is anybody's choice.
fn near(oid: u32, left: &str, right: &str, grouped: bool) -> bool {
    if oid != 700 && oid != 701 && (oid != 1700 || !grouped) {
        return false;
    }
    let (Ok(left), Ok(right)) = (left.parse::<f64>(), right.parse::<f64>()) else { return false };
    let tolerance = if oid == 700 { 1e-5 } else { 1e-12 };
    (left - right).abs() <= tolerance * left.abs().max(right.abs())
}

/// Whether the answers are the same; the order of rows counts where the statement gives one.
fn same(sql: &str, ours: &Outcome, theirs: &Outcome, ordered: bool) -> bool {
    let grouped = [" distinct ", "group by", "union", "intersect", "except"];
    let grouped = grouped.iter().any(|words| sql.contains(words));
    match (ours, theirs) {
        (Outcome::Failed { code: ours, .. }, Outcome::Failed { code: theirs, .. }) => {
            ours == theirs
        }
        (Outcome::Done(ours), Outcome::Done(theirs)) => ours.unwrap_or(0) == theirs.unwrap_or(0),
        (Outcome::Rows(ours), Outcome::Rows(theirs)) => {
            if ours.columns != theirs.columns || ours.rows.len() != theirs.rows.len() {
                return false;
            }
            let (mut left, mut right) = (ours.rows.clone(), theirs.rows.clone());
            if !ordered {
                left.sort();
                right.sort();
            }
            left.iter().zip(&right).all(|(left, right)| {
                left.iter().zip(right).zip(&ours.columns).all(|((left, right), column)| {
                    left == right
                        || matches!((left, right), (Some(left), Some(right)) if near(column.oid, left, right, grouped))
                })
            })
        }
        _ => false,
    }
}

/// A difference that is known: what its statement and the two answers look like, and why it is
/// there.
struct Known {
    pattern: Regex,
    reason: &'static str,
}

/// `reason` lines, each followed by the patterns it explains.
fn known() -> Vec<Known> {
    let mut out = Vec::new();
    let mut reason = "";
    for line in DIFFERENCES.lines().filter(|line| !line.is_empty() && !line.starts_with("//")) {
        match line.strip_prefix("# ") {
            Some(text) => reason = text,
            None => {
                assert!(!reason.is_empty(), "a pattern without a reason: {line}");
                let pattern = Regex::new(&format!("(?s){line}")).expect("a regular expression");
                out.push(Known { pattern, reason });
            }
        }
    }
    out
}

#[derive(Default)]
struct Tally {
    statements: usize,
    failed: usize,
    known: BTreeMap<&'static str, usize>,
    wrong: Vec<String>,
}

/// Both sides, and what the generator knows of their state.
struct Pair<'a> {
    session: Session,
    client: tokio_postgres::Client,
    known: &'a [Known],
    tally: &'a mut Tally,
    round: u64,
}

impl Pair<'_> {
    /// Runs a query once more, through DataFusion: what the key path answered must be what it
    /// answers.
    async fn run_again(&mut self, sql: &str, ordered: bool, theirs: &Outcome) {
        on_telesto(&mut self.session, "set telesto.executor = datafusion").await;
        let ours = on_telesto(&mut self.session, sql).await;
        on_telesto(&mut self.session, "set telesto.executor = auto").await;
        if !same(sql, &ours, theirs, ordered) {
            self.differs(&format!("/* datafusion */ {sql}"), &ours, theirs);
        }
    }

    /// Notes a difference, unless it is a known one.
    fn differs(&mut self, sql: &str, ours: &Outcome, theirs: &Outcome) {
        let shown = format!("{sql}\n   ours:   {}\n   theirs: {}", ours.shown(), theirs.shown());
        match self.known.iter().find(|known| known.pattern.is_match(&shown)) {
            Some(known) => *self.tally.known.entry(known.reason).or_default() += 1,
            None => self.tally.wrong.push(format!("round {}: {shown}", self.round)),
        }
    }

    /// Runs a statement on both; the answer of PostgreSQL, and whether both agree.
    async fn run(&mut self, sql: &str, ordered: bool) -> (Outcome, bool) {
        let ours = on_telesto(&mut self.session, sql).await;
        let theirs = on_postgres(&self.client, sql).await;
        self.tally.statements += 1;
        self.tally.failed += usize::from(matches!(theirs, Outcome::Failed { .. }));
        if same(sql, &ours, &theirs, ordered) {
            return (theirs, true);
        }
        self.differs(sql, &ours, &theirs);
        (theirs, false)
    }
}

/// A query; one that may well fail only where it does not end a block.
fn query(model: &Model, grammar: &Grammar, rng: &mut StdRng, risky: bool) -> Option<Query> {
    match rng.random_range(0..100) {
        0..50 if risky => Some(queries::scalar(grammar, rng)),
        0..50 => queries::single(model, grammar, rng),
        50..75 => queries::single(model, grammar, rng),
        75..85 => queries::join(model, grammar, rng),
        85..92 => queries::grouped(model, grammar, rng),
        _ => queries::nested(model, grammar, rng),
    }
}

/// A block under way: the model at its start and at its savepoint.
struct Block {
    begin: Model,
    savepoint: Option<Model>,
    failed: bool,
}

async fn round(pair: &mut Pair<'_>, grammar: &Grammar, rng: &mut StdRng) {
    let mut model = Model::default();
    for _ in 0..rng.random_range(2..5) {
        let (sql, table) = model.create(rng, grammar);
        if !pair.run(&sql, true).await.1 {
            return;
        }
        model.tables.push(table);
    }
    for _ in 0..10 {
        if let Some(sql) = model.insert(rng, grammar)
            && !pair.run(&sql, false).await.1
        {
            return;
        }
    }
    let mut block: Option<Block> = None;
    for _ in 0..ROUND {
        let (mut ordered, mut changes, mut keyed) = (false, true, false);
        let mut after = None;
        // A failed block is left soon.
        let failed = block.as_ref().is_some_and(|block| block.failed);
        let kind = if failed && rng.random_bool(0.5) { 99 } else { rng.random_range(0..100) };
        let sql = match kind {
            0..70 => {
                let Some(query) = query(&model, grammar, rng, block.is_none()) else { continue };
                (ordered, changes, keyed) = (query.ordered, false, query.keyed);
                query.sql
            }
            70..79 => model.insert(rng, grammar).expect("there are tables"),
            79..86 => model.update(rng, grammar).expect("there are tables"),
            86..90 => model.delete(rng, grammar).expect("there are tables"),
            90..94 => {
                let Some((sql, model)) = model.define(rng, grammar) else { continue };
                after = Some(model);
                sql
            }
            _ => match &mut block {
                None => {
                    block = Some(Block { begin: model.clone(), savepoint: None, failed: false });
                    "begin".to_owned()
                }
                Some(open) => match (rng.random_range(0..4), open.savepoint.clone()) {
                    (0, None) if !open.failed => {
                        open.savepoint = Some(model.clone());
                        "savepoint s".to_owned()
                    }
                    (0 | 1, Some(saved)) => {
                        model = saved;
                        open.failed = false;
                        "rollback to savepoint s".to_owned()
                    }
                    (2, _) => {
                        model = block.take().expect("a block").begin;
                        "rollback".to_owned()
                    }
                    _ => {
                        let block = block.take().expect("a block");
                        if block.failed {
                            model = block.begin;
                        }
                        "commit".to_owned()
                    }
                },
            },
        };
        let (outcome, agree) = pair.run(&sql, ordered).await;
        let failed = matches!(outcome, Outcome::Failed { .. });
        if keyed && agree && !failed && block.is_none() {
            pair.run_again(&sql, ordered, &outcome).await;
        }
        if let Some(open) = &mut block {
            open.failed |= failed;
            // A query that failed on one side only leaves one block failed.
            changes = true;
        }
        if !agree && changes {
            return;
        }
        if let Some(after) = after
            && !failed
        {
            model = after;
        }
    }
    if block.is_some() {
        pair.run("rollback", true).await;
        return;
    }
    for table in &model.tables {
        pair.run(&format!("select * from {}", table.name), false).await;
    }
}

/// Runs a test on the stack of a server's thread: without optimisation the binder's frames are
/// large.
fn on_a_large_stack<F: Future<Output = ()> + 'static>(test: fn() -> F) {
    let run = move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        runtime.expect("a runtime").block_on(test());
    };
    let thread = std::thread::Builder::new().stack_size(8 << 20).spawn(run).expect("a thread");
    if let Err(panic) = thread.join() {
        std::panic::resume_unwind(panic);
    }
}

#[test]
fn statements_generated_from_a_seed_answer_as_on_postgres() {
    on_a_large_stack(generate);
}

#[test]
fn conditions_that_guard_others_answer_as_on_postgres() {
    on_a_large_stack(generate_guards);
}

/// Guarded conditions, on whichever path takes the query and once more on DataFusion.
async fn generate_guards() {
    let seed = setting("TELESTO_GENERATED_SEED", 1);
    let rounds = setting("TELESTO_GENERATED_GUARD_ROUNDS", 4);
    let server = Server::start();
    let admin = server.connect("postgres").await.expect("PostgreSQL answers");
    let mut tally = Tally::default();
    let mut rows = 0;
    for number in 0..rounds {
        let database = format!("guards{number}");
        admin.simple_query(&format!("create database {database}")).await.expect("a database");
        let mut pair = Pair {
            session: support::session().await.expect("a session"),
            client: server.connect(&database).await.expect("PostgreSQL answers"),
            known: &[],
            tally: &mut tally,
            round: number,
        };
        let mut rng = StdRng::seed_from_u64(seed.wrapping_mul(1_000_003).wrapping_add(number));
        for sql in guards::tables(&mut rng) {
            assert!(pair.run(&sql, false).await.1, "{sql}");
        }
        for _ in 0..150 {
            let sql = guards::query(&mut rng);
            let (theirs, _) = pair.run(&sql, false).await;
            pair.run_again(&sql, false, &theirs).await;
            assert!(!matches!(theirs, Outcome::Failed { .. }), "not guarded: {sql}");
            rows += usize::from(matches!(&theirs, Outcome::Rows(table) if !table.rows.is_empty()));
        }
    }
    let wrong = tally.wrong.len();
    assert!(wrong == 0, "{wrong} differ (seed {seed}):\n{}", tally.wrong.join("\n"));
    // Queries that find nothing show nothing.
    assert!(rows * 3 > tally.statements, "{rows} of {} statements give rows", tally.statements);
}

#[test]
fn bit_strings_answer_as_on_postgres() {
    on_a_large_stack(|| generate_type("bits", bits::tables, bits::query));
}

#[test]
fn ranges_answer_as_on_postgres() {
    on_a_large_stack(|| generate_type("ranges", ranges::tables, ranges::query));
}

/// Values of one family of types, on whichever path takes the query and once more on DataFusion.
async fn generate_type(
    name: &str,
    tables: fn(&mut StdRng) -> Vec<String>,
    query: fn(&mut StdRng) -> (String, bool),
) {
    let seed = setting("TELESTO_GENERATED_SEED", 1);
    let rounds = setting("TELESTO_GENERATED_TYPE_ROUNDS", 3);
    let server = Server::start();
    let admin = server.connect("postgres").await.expect("PostgreSQL answers");
    let mut tally = Tally::default();
    let mut failed = 0;
    for number in 0..rounds {
        let database = format!("{name}{number}");
        admin.simple_query(&format!("create database {database}")).await.expect("a database");
        let mut pair = Pair {
            session: support::session().await.expect("a session"),
            client: server.connect(&database).await.expect("PostgreSQL answers"),
            known: &[],
            tally: &mut tally,
            round: number,
        };
        let mut rng = StdRng::seed_from_u64(seed.wrapping_mul(1_000_003).wrapping_add(number));
        for sql in tables(&mut rng) {
            assert!(pair.run(&sql, false).await.1, "{sql}");
        }
        for _ in 0..150 {
            let (sql, ordered) = query(&mut rng);
            let (theirs, _) = pair.run(&sql, ordered).await;
            pair.run_again(&sql, ordered, &theirs).await;
            failed += usize::from(matches!(theirs, Outcome::Failed { .. }));
        }
    }
    let wrong = tally.wrong.len();
    assert!(wrong == 0, "{wrong} differ (seed {seed}):\n{}", tally.wrong.join("\n"));
    // Queries that fail show little.
    assert!(failed * 3 < tally.statements, "{failed} of {} statements fail", tally.statements);
}

async fn generate() {
    let seed = setting("TELESTO_GENERATED_SEED", 1);
    let wanted = setting("TELESTO_GENERATED_STATEMENTS", 10_000) as usize;
    let only =
        std::env::var("TELESTO_GENERATED_ROUND").ok().map(|text| text.parse().expect("a number"));
    let known = known();
    let grammar = Grammar::load();
    let server = Server::start();
    let admin = server.connect("postgres").await.expect("PostgreSQL answers");
    let mut tally = Tally::default();
    let mut number = only.unwrap_or(0);
    while tally.statements < wanted {
        let database = format!("round{number}");
        admin.simple_query(&format!("create database {database}")).await.expect("a database");
        let mut pair = Pair {
            session: support::session().await.expect("a session"),
            client: server.connect(&database).await.expect("PostgreSQL answers"),
            known: &known,
            tally: &mut tally,
            round: number,
        };
        let mut rng = StdRng::seed_from_u64(seed.wrapping_mul(1_000_003).wrapping_add(number));
        round(&mut pair, &grammar, &mut rng).await;
        drop(pair);
        if only.is_some() {
            break;
        }
        number += 1;
    }
    let explained: usize = tally.known.values().sum();
    println!(
        "{} statements in {number} rounds of seed {seed}, {} failed as on PostgreSQL, {explained} differ as documented",
        tally.statements, tally.failed
    );
    for (reason, count) in &tally.known {
        println!("  {count:>5}  {reason}");
    }
    assert!(
        tally.wrong.is_empty(),
        "{} of {} statements differ from PostgreSQL (seed {seed}):\n{}",
        tally.wrong.len(),
        tally.statements,
        tally.wrong.join("\n")
    );
    // A generator that makes nothing but errors, or explains everything away, shows nothing.
    assert!(only.is_some() || tally.failed * 3 < tally.statements, "too many statements fail");
    assert!(
        only.is_some() || explained * 20 < tally.statements,
        "too many differences are explained away"
    );
}
