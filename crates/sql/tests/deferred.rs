//! Deferred foreign and unique keys while other sessions commit: blocks are executed again, and
//! what they leave holds.

use std::sync::Arc;

use async_trait::async_trait;
use telesto_sql::session::{SessionOptions, SqlEngine, SqlOptions};
use telesto_sql::types::TextStyle;
use telesto_sql::{Result, ResultSink, Session, StatementResult};
use telesto_txn::memory::MemoryDatabase;

/// Collects rows and tags as text.
#[derive(Default)]
struct Collect(Vec<String>);

#[async_trait]
impl ResultSink for Collect {
    async fn result(&mut self, result: StatementResult) -> Result<()> {
        let style = TextStyle::default();
        match result {
            StatementResult::Rows { columns, rows, .. } => {
                for row in rows.collect().await? {
                    let cells = row.iter().zip(columns.iter());
                    let cells: Vec<String> =
                        cells.map(|(datum, column)| datum.to_text(&column.ty, &style)).collect();
                    self.0.push(cells.join("|"));
                }
            }
            StatementResult::Command { tag } => self.0.push(tag),
            other => self.0.push(format!("{other:?}")),
        }
        Ok(())
    }
}

/// Results, one line each; an error's code as its last line.
async fn run(session: &mut Session, sql: &str) -> Vec<String> {
    let mut sink = Collect::default();
    if let Err(error) = session.execute_simple(sql, &mut sink).await {
        sink.0.push(error.code().to_string());
    }
    sink.0
}

async fn sessions() -> (Session, Session) {
    let env = telesto_runtime::env();
    let database = Arc::new(MemoryDatabase::new(env.clone()));
    let engine = SqlEngine::open(database, env, SqlOptions::default()).await.expect("open");
    let mut a = engine.session(SessionOptions::default()).await.expect("session");
    let b = engine.session(SessionOptions::default()).await.expect("session");
    let setup = "create table parent (id int primary key);
        create table child (id int primary key, p int references parent deferrable initially deferred);
        create index on child (p);
        insert into parent values (1)";
    assert_eq!(run(&mut a, setup).await.last().map(String::as_str), Some("INSERT 0 1"));
    (a, b)
}

const LEVELS: [&str; 3] = ["read committed", "repeatable read", "serializable"];
const ORPHANS: &str =
    "select count(*) from child where p is not null and p not in (select id from parent)";

#[tokio::test]
async fn parent_that_another_session_adds_before_the_commit_is_seen_as_the_level_says() {
    for level in LEVELS {
        let (mut a, mut b) = sessions().await;
        run(&mut a, &format!("begin isolation level {level}")).await;
        assert_eq!(run(&mut a, "insert into child values (1, 7)").await, ["INSERT 0 1"]);
        assert_eq!(run(&mut b, "insert into parent values (7)").await, ["INSERT 0 1"]);
        // Elsewhere the check sees the block's snapshot, as in PostgreSQL.
        let (told, left) = if level == "read committed" { ("COMMIT", "1") } else { ("23503", "0") };
        assert_eq!(run(&mut a, "commit").await, [told], "{level}");
        assert_eq!(run(&mut a, "select count(*) from child").await, [left]);
    }
}

#[tokio::test]
async fn parent_that_another_session_removes_before_the_commit_fails_it() {
    for level in LEVELS {
        let (mut a, mut b) = sessions().await;
        run(&mut a, &format!("begin isolation level {level}")).await;
        assert_eq!(run(&mut a, "insert into child values (1, 1)").await, ["INSERT 0 1"]);
        assert_eq!(run(&mut b, "delete from parent").await, ["DELETE 1"]);
        assert_eq!(run(&mut a, "commit").await, ["23503"], "{level}");
        assert_eq!(run(&mut a, ORPHANS).await, ["0"]);
        assert_eq!(run(&mut a, "select count(*) from child").await, ["0"]);
    }
}

#[tokio::test]
async fn child_that_another_session_adds_before_the_commit_fails_it() {
    for level in LEVELS {
        let (mut a, mut b) = sessions().await;
        run(&mut a, &format!("begin isolation level {level}")).await;
        assert_eq!(run(&mut a, "delete from parent").await, ["DELETE 1"]);
        assert_eq!(run(&mut b, "insert into child values (1, 1)").await, ["INSERT 0 1"]);
        assert_eq!(run(&mut a, "commit").await, ["23503"], "{level}");
        assert_eq!(run(&mut a, ORPHANS).await, ["0"]);
        assert_eq!(run(&mut a, "select count(*) from parent").await, ["1"]);
    }
}

#[tokio::test]
async fn set_constraints_and_savepoints_hold_when_the_block_is_executed_again() {
    let (mut a, mut b) = sessions().await;
    run(&mut b, "create table counter (n int); insert into counter values (0)").await;
    run(&mut a, "begin; insert into child values (1, 8); savepoint s; insert into child values (2, 9); rollback to s").await;
    run(&mut a, "insert into parent values (8); set constraints all immediate; update counter set n = n + 1").await;
    assert_eq!(run(&mut b, "update counter set n = n + 1").await, ["UPDATE 1"]);
    assert_eq!(run(&mut a, "commit").await, ["COMMIT"]);
    assert_eq!(run(&mut a, "select n from counter").await, ["2"]);
    assert_eq!(run(&mut a, ORPHANS).await, ["0"]);
    assert_eq!(run(&mut a, "select id, p from child").await, ["1|8"]);
}

#[tokio::test]
async fn many_rows_whose_parents_come_last_are_loaded() {
    let (mut a, _) = sessions().await;
    run(&mut a, "begin").await;
    let children = "insert into child select n, n from generate_series(2, 3000) n";
    assert_eq!(run(&mut a, children).await, ["INSERT 0 2999"]);
    let parents = "insert into parent select n from generate_series(2, 2999) n";
    assert_eq!(run(&mut a, parents).await, ["INSERT 0 2998"]);
    assert_eq!(
        run(&mut a, "savepoint s; set constraints all immediate").await,
        ["SAVEPOINT", "23503"]
    );
    run(&mut a, "rollback to s; insert into parent values (3000)").await;
    assert_eq!(run(&mut a, "commit").await, ["COMMIT"]);
    assert_eq!(run(&mut a, "select count(*) from child").await, ["2999"]);
}

/// A constraint must hold for the rows there are when it is committed, not only for those its block
/// saw.
#[tokio::test]
async fn constraint_that_another_session_breaks_before_the_commit_fails_it() {
    const FOREIGN: &str = "alter table plain add foreign key (p) references parent";
    for level in LEVELS {
        for (added, breaks) in [
            (FOREIGN, "delete from parent"),
            (FOREIGN, "insert into plain values (2, 9)"),
            ("alter table plain add check (p < 5)", "insert into plain values (2, 9)"),
            ("alter table plain alter p set not null", "insert into plain values (2, null)"),
        ] {
            let (mut a, mut b) = sessions().await;
            run(&mut a, "create table plain (id int, p int); insert into plain values (1, 1)")
                .await;
            run(&mut a, &format!("begin isolation level {level}")).await;
            assert_eq!(run(&mut a, added).await, ["ALTER TABLE"]);
            assert!(run(&mut b, breaks).await[0].ends_with(" 1"), "{breaks}");
            let told = run(&mut a, "commit").await;
            let failed = told[0] == "40001" || told[0].starts_with("23");
            assert!(failed, "{level}: {added}, {breaks}: {told:?}");
        }
    }
}

const SHARED: &str =
    "select count(*) from (select pos from list group by pos having count(*) > 1) q";

/// Sessions over a table whose key is deferrable as `how` says.
async fn lists(how: &str) -> (Session, Session) {
    let (mut a, b) = sessions().await;
    let setup = format!(
        "create table list (id int primary key, pos int, constraint list_pos unique (pos) deferrable {how});
         insert into list values (1, 1), (2, 2), (3, 3)"
    );
    assert_eq!(run(&mut a, &setup).await.last().map(String::as_str), Some("INSERT 0 3"));
    (a, b)
}

/// Two blocks that each write a key once, and would share it: whoever commits second fails, at
/// every level.
#[tokio::test]
async fn keys_that_two_sessions_write_at_a_time_are_not_both_committed() {
    for how in ["initially deferred", "initially immediate"] {
        for level in LEVELS {
            for (first, second) in [
                ("insert into list values (10, 9)", "insert into list values (11, 9)"),
                ("update list set pos = 9 where id = 1", "update list set pos = 9 where id = 2"),
                ("update list set pos = 9 where id = 1", "insert into list values (11, 9)"),
                (
                    "insert into list values (10, 2); update list set pos = 7 where id = 2",
                    "insert into list values (11, 7)",
                ),
            ] {
                let (mut a, mut b) = lists(how).await;
                if how == "initially immediate" && first.contains(';') {
                    continue;
                }
                run(&mut a, &format!("begin isolation level {level}; {first}")).await;
                run(&mut b, &format!("begin isolation level {level}; {second}")).await;
                assert_eq!(run(&mut b, "commit").await, ["COMMIT"], "{how}, {level}");
                let told = run(&mut a, "commit").await;
                assert!(told == ["23505"] || told == ["40001"], "{how}, {level}: {told:?}");
                assert_eq!(run(&mut a, SHARED).await, ["0"], "{how}, {level}");
                assert_eq!(run(&mut a, "select telesto_check_table('list')").await.len(), 1);
            }
        }
    }
}

/// A row that another session removes settles what waits, where the level lets the check see it.
#[tokio::test]
async fn key_that_another_session_frees_before_the_commit_is_free_as_the_level_says() {
    for level in LEVELS {
        let (mut a, mut b) = lists("initially deferred").await;
        run(&mut a, &format!("begin isolation level {level}; insert into list values (4, 3)"))
            .await;
        assert_eq!(run(&mut b, "delete from list where id = 3").await, ["DELETE 1"]);
        let told = run(&mut a, "commit").await;
        // Elsewhere the check sees the block's snapshot.
        let wanted = if level == "read committed" { "COMMIT" } else { "23505" };
        assert_eq!(told, [wanted], "{level}");
        assert_eq!(run(&mut a, SHARED).await, ["0"]);
    }
}

#[tokio::test]
async fn keys_exchanged_in_two_statements_hold_when_the_block_is_executed_again() {
    let (mut a, mut b) = lists("initially deferred").await;
    run(&mut b, "create table counter (n int); insert into counter values (0)").await;
    run(&mut a, "begin; update list set pos = 2 where id = 1; savepoint s").await;
    run(&mut a, "insert into list values (9, 3); rollback to s").await;
    run(&mut a, "update list set pos = 1 where id = 2; update counter set n = n + 1").await;
    assert_eq!(run(&mut b, "update counter set n = n + 1").await, ["UPDATE 1"]);
    assert_eq!(run(&mut a, "commit").await, ["COMMIT"]);
    assert_eq!(run(&mut a, "select id, pos from list order by id").await, ["1|2", "2|1", "3|3"]);
}

/// More keys than are looked at together, each taken from the row behind it by another statement.
#[tokio::test]
async fn many_keys_are_passed_on() {
    let (mut a, _) = lists("initially deferred").await;
    run(&mut a, "delete from list; insert into list select n, n from generate_series(1, 3000) n")
        .await;
    run(&mut a, "begin; update list set pos = pos + 1 where id % 2 = 0").await;
    assert_eq!(run(&mut a, SHARED).await, ["1499"]);
    run(&mut a, "update list set pos = pos + 1 where id % 2 = 1").await;
    assert_eq!(run(&mut a, "commit").await, ["COMMIT"]);
    let ends = run(&mut a, "select min(pos), max(pos), count(distinct pos) from list").await;
    assert_eq!(ends, ["2|3001|3000"]);
    assert_eq!(run(&mut a, "update list set pos = pos + 1").await, ["UPDATE 3000"]);
    assert_eq!(run(&mut a, "select telesto_check_table('list')").await, ["3000"]);
    run(&mut a, "begin; update list set pos = 5").await;
    assert_eq!(run(&mut a, "commit").await, ["23505"]);
}

/// A key added to rows that another session still adds to.
#[tokio::test]
async fn key_that_another_session_breaks_while_it_is_added_fails_the_commit() {
    for how in ["unique (p) deferrable", "primary key (p) deferrable initially deferred"] {
        let (mut a, mut b) = sessions().await;
        run(&mut a, "create table plain (id int, p int); insert into plain values (1, 1)").await;
        run(&mut a, "begin").await;
        assert_eq!(run(&mut a, &format!("alter table plain add {how}")).await, ["ALTER TABLE"]);
        assert_eq!(run(&mut b, "insert into plain values (2, 1)").await, ["INSERT 0 1"]);
        let told = run(&mut a, "commit").await;
        assert!(told == ["23505"] || told == ["40001"], "{how}: {told:?}");
    }
}
