//! Statements made at random, beside a session that plans each anew: those that are known answer
//! the same, to the letter.
//!
//! The generators are those of `generated.rs`.
//! `TELESTO_GENERATED_SEED=7 TELESTO_TEXT_ROUNDS=40 cargo test --workspace --test texts` looks
//! further.
#![allow(
    clippy::disallowed_methods,
    reason = "a test is an outermost layer: it runs a session on a runtime of its own"
)]

#[path = "generated/bits.rs"]
mod bits;
#[path = "generated/grammar.rs"]
mod grammar;
#[path = "generated/guards.rs"]
mod guards;
#[allow(dead_code, reason = "order and keys are for comparing with another database")]
#[path = "generated/queries.rs"]
mod queries;
#[path = "generated/ranges.rs"]
mod ranges;
#[path = "generated/tables.rs"]
mod tables;

mod support;

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use support::Collected;
use telesto_sql::{Session, StatementResult};

use grammar::Grammar;
use tables::Model;

/// Statements a round, after its tables are there.
const ROUND: usize = 200;

fn setting(name: &str, default: u64) -> u64 {
    std::env::var(name).map_or(default, |text| text.parse().expect("a number"))
}

/// What a session made of a statement.
async fn simple(session: &mut Session, sql: &str) -> String {
    let mut sink = Collected::default();
    match session.execute_simple(sql, &mut sink).await {
        Err(error) => format!("{error:?}"),
        Ok(()) => format!("{:?} {:?}", sink.table, sink.count),
    }
}

/// The same by Parse, Execute and Sync.
async fn prepared(session: &mut Session, sql: &str) -> String {
    let done = async {
        let prepared = session.prepare(sql, &[]).await?;
        let columns = format!("{:?} {:?}", prepared.parameter_types, prepared.columns);
        let result = match session.execute(&prepared, Vec::new()).await? {
            StatementResult::Rows { rows, tag, .. } => format!("{tag} {:?}", rows.collect().await?),
            other => format!("{other:?}"),
        };
        session.sync().await?;
        Ok::<_, telesto_sql::Error>(columns + &result)
    };
    match done.await {
        Ok(shown) => shown,
        Err(error) => {
            session.fail();
            let end = session.sync().await;
            format!("{error:?} {end:?}")
        }
    }
}

/// A session that knows texts, one that does not, and what they answered.
struct Pair {
    known: Session,
    anew: Session,
    parse: bool,
    statements: usize,
    failed: usize,
}

impl Pair {
    async fn run(&mut self, sql: &str) -> bool {
        let (known, anew) = match self.parse {
            false => (simple(&mut self.known, sql).await, simple(&mut self.anew, sql).await),
            true => (prepared(&mut self.known, sql).await, prepared(&mut self.anew, sql).await),
        };
        assert_eq!(known, anew, "{sql}");
        self.statements += 1;
        let failed = anew.starts_with("Error");
        self.failed += usize::from(failed);
        !failed
    }
}

async fn round(pair: &mut Pair, grammar: &Grammar, rng: &mut StdRng) {
    let mut model = Model::default();
    for _ in 0..3 {
        let (sql, table) = model.create(rng, grammar);
        if pair.run(&sql).await {
            model.tables.push(table);
        }
    }
    for _ in 0..10 {
        if let Some(sql) = model.insert(rng, grammar) {
            pair.run(&sql).await;
        }
    }
    for _ in 0..ROUND {
        let sql = match rng.random_range(0..100) {
            0..20 => Some(queries::scalar(grammar, rng).sql),
            20..45 => queries::single(&model, grammar, rng).map(|query| query.sql),
            45..55 => queries::join(&model, grammar, rng).map(|query| query.sql),
            55..62 => queries::grouped(&model, grammar, rng).map(|query| query.sql),
            62..68 => queries::nested(&model, grammar, rng).map(|query| query.sql),
            68..80 => model.insert(rng, grammar),
            80..88 => model.update(rng, grammar),
            88..92 => model.delete(rng, grammar),
            92..95 => {
                let Some((sql, after)) = model.define(rng, grammar) else { continue };
                if pair.run(&sql).await {
                    model = after;
                }
                continue;
            }
            _ => {
                let word = ["begin", "commit", "rollback"][rng.random_range(0..3)];
                pair.run(word).await;
                continue;
            }
        };
        let Some(sql) = sql else { continue };
        // Once more, as what is known by then.
        for _ in 0..2 {
            pair.run(&sql).await;
        }
    }
    for table in &model.tables {
        pair.run(&format!("select * from {}", table.name)).await;
    }
}

async fn compare(parse: bool) {
    let seed = setting("TELESTO_GENERATED_SEED", 1);
    let grammar = Grammar::load();
    let (mut statements, mut failed) = (0, 0);
    for number in 0..setting("TELESTO_TEXT_ROUNDS", 4) {
        let mut known = support::session().await.expect("a session");
        simple(&mut known, "SET telesto.text_cache = eager").await;
        // Operators of DataFusion are made for any values, and those of the text's time before run
        // again.
        simple(&mut known, "SET plan_cache_mode = force_generic_plan").await;
        let mut anew = support::session().await.expect("a session");
        simple(&mut anew, "SET telesto.text_cache = off").await;
        let mut pair = Pair { known, anew, parse, statements: 0, failed: 0 };
        let mut rng = StdRng::seed_from_u64(seed.wrapping_mul(1_000_003).wrapping_add(number));
        round(&mut pair, &grammar, &mut rng).await;
        let tables = [guards::tables(&mut rng), bits::tables(&mut rng), ranges::tables(&mut rng)];
        for sql in tables.concat() {
            pair.run(&sql).await;
        }
        for _ in 0..20 {
            let queries =
                [guards::query(&mut rng), bits::query(&mut rng).0, ranges::query(&mut rng).0];
            for sql in queries {
                pair.run(&sql).await;
                pair.run(&sql).await;
            }
        }
        (statements, failed) = (statements + pair.statements, failed + pair.failed);
    }
    assert!(failed * 2 < statements, "{failed} of {statements} statements failed");
}

/// Runs a test on the stack of a server's thread: without optimisation the binder's frames are
/// large.
fn on_a_large_stack<F: Future<Output = ()> + 'static>(test: impl FnOnce() -> F + Send + 'static) {
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
fn generated_statements_that_are_known_answer_as_those_that_are_planned() {
    on_a_large_stack(|| compare(false));
}

#[test]
fn generated_statements_that_are_prepared_answer_as_those_that_are_planned() {
    on_a_large_stack(|| compare(true));
}
