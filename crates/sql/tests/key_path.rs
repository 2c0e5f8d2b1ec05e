//! Reads and writes by key through a session over the in-memory database.

mod additions;

use std::sync::Arc;

use async_trait::async_trait;
use telesto_sql::{
    ResultSink, Session, SessionOptions, SqlEngine, SqlOptions, StatementResult, types::TextStyle,
};
use telesto_txn::memory::MemoryDatabase;

#[derive(Default)]
struct Collect {
    lines: Vec<String>,
}

#[async_trait]
impl ResultSink for Collect {
    async fn result(&mut self, result: StatementResult) -> telesto_sql::Result<()> {
        match result {
            StatementResult::Rows { columns, rows, .. } => {
                for row in rows.collect().await? {
                    let shown: Vec<String> = row
                        .iter()
                        .zip(columns.iter())
                        .map(|(value, column)| {
                            if value.is_null() {
                                "NULL".to_owned()
                            } else {
                                value.to_text(&column.ty, &TextStyle::default())
                            }
                        })
                        .collect();
                    self.lines.push(shown.join("|"));
                }
            }
            StatementResult::Command { tag } => self.lines.push(tag),
            _ => {}
        }
        Ok(())
    }
}

async fn session() -> Session {
    let env = telesto_runtime::env();
    let database = Arc::new(MemoryDatabase::new(env.clone()));
    let engine = SqlEngine::open(database, env, SqlOptions::default()).await.expect("opens");
    engine.session(SessionOptions::default()).await.expect("a session")
}

/// What the statements give, rows and tags one a line; an error as `!SQLSTATE message / detail`.
async fn run(session: &mut Session, sql: &str) -> String {
    let mut sink = Collect::default();
    match session.execute_simple(sql, &mut sink).await {
        Ok(()) => sink.lines.join("\n"),
        Err(error) => {
            let detail =
                error.fields().detail.as_ref().map_or_else(String::new, |d| format!(" / {d}"));
            format!("!{} {}{detail}", error.code(), error.message())
        }
    }
}

async fn check(session: &mut Session, cases: &[(&str, &str)]) {
    for (sql, expected) in cases {
        assert_eq!(run(session, sql).await, *expected, "{sql}");
    }
}

#[tokio::test]
async fn rows_by_key_read_along_every_path() {
    let mut s = session().await;
    check(
        &mut s,
        &[
            ("create table t (id int primary key, a int, b text)", "CREATE TABLE"),
            ("create index t_a on t (a, b)", "CREATE INDEX"),
            (
                "insert into t values (1, 10, 'x'), (2, 10, 'y'), (3, 20, 'x'), (4, null, 'z'), (5, 30, null)",
                "INSERT 0 5",
            ),
            ("select b from t where id = 2", "y"),
            ("select b from t where id = 9", ""),
            ("select id from t where id in (5, 1, 1, 9)", "1\n5"),
            ("select id from t where id = any('{3,1}')", "1\n3"),
            ("select id from t where id > 1 and id <= 3", "2\n3"),
            ("select id from t where id > 1 order by id desc limit 2", "5\n4"),
            ("select id from t where id > 1 order by id limit 2 offset 1", "3\n4"),
            ("select id from t where a = 10 order by b desc", "2\n1"),
            ("select id from t where a = 10 and b = 'x'", "1"),
            ("select id from t where a > 5", "1\n2\n3\n5"),
            ("select id from t where a = null", ""),
            ("select id from t where id = 3000000000", ""),
            ("select id from t where id < 3000000000 and b = 'x'", "1\n3"),
            ("select count(*), sum(a), min(b), avg(a) from t where id <= 3", "3|40|x|13.3333333333333333"),
            ("select count(*), max(a) from t where id > 100", "0|NULL"),
            ("select id * 2 + 1 as n, upper(b) from t where id = 1", "3|X"),
            ("select t.* from t where t.id = 4", "4|NULL|z"),
            ("select id from t where a in (10, 20) order by b, id desc", "3\n1\n2"),
            ("select * from t limit 1", "1|10|x"),
            ("select 1 + 1, 'a' || 'b'", "2|ab"),
            ("select nope from t where id = 1", "!42703 column \"nope\" does not exist"),
            ("select id from t where id = 'x'", "!22P02 invalid input syntax for type integer: \"x\""),
        ],
    )
    .await;
}

#[tokio::test]
async fn writes_keep_indexes_and_constraints() {
    let mut s = session().await;
    check(
        &mut s,
        &[
            (
                "create table t (id int primary key, u int unique, v varchar(3), n int not null default 7, \
                 check (n > 0))",
                "CREATE TABLE",
            ),
            ("create index t_v on t (v)", "CREATE INDEX"),
            ("insert into t (id, u, v) values (1, 1, 'a'), (2, 2, 'b') returning id, n", "1|7\n2|7"),
            (
                "insert into t (id) values (1)",
                "!23505 duplicate key value violates unique constraint \"t_pkey\" / Key (id)=(1) already exists.",
            ),
            (
                "insert into t (id, u) values (3, 2)",
                "!23505 duplicate key value violates unique constraint \"t_u_key\" / Key (u)=(2) already exists.",
            ),
            (
                "insert into t (id, u) values (5, 9), (6, 9)",
                "!23505 duplicate key value violates unique constraint \"t_u_key\" / Key (u)=(9) already exists.",
            ),
            ("insert into t (id, u) values (3, null), (4, null)", "INSERT 0 2"),
            ("insert into t (id, v) values (5, 'abcd')", "!22001 value too long for type character varying(3)"),
            (
                "insert into t (id, n) values (5, null)",
                "!23502 null value in column \"n\" of relation \"t\" violates not-null constraint / \
                 Failing row contains (5, null, null, null).",
            ),
            (
                "insert into t (id, n) values (5, 0)",
                "!23514 new row for relation \"t\" violates check constraint \"t_n_check\" / \
                 Failing row contains (5, null, null, 0).",
            ),
            // Keys that move onto each other do not collide.
            ("update t set id = id + 1", "UPDATE 4"),
            ("select id from t where id > 0", "2\n3\n4\n5"),
            ("update t set u = 3 - u where u is not null", "UPDATE 2"),
            ("select id, u from t where u > 0 order by u", "3|1\n2|2"),
            (
                "update t set u = 1",
                "!23505 duplicate key value violates unique constraint \"t_u_key\" / Key (u)=(1) already exists.",
            ),
            ("update t set v = 'c' where v = 'a' returning id, v", "2|c"),
            ("select id from t where v = 'a'", ""),
            ("select id from t where v = 'c'", "2"),
            ("update t set n = default, v = null where id = 2", "UPDATE 1"),
            ("delete from t where id in (4, 5) returning id", "4\n5"),
            ("delete from t", "DELETE 2"),
            ("select count(*) from t where u > 0", "0"),
        ],
    )
    .await;
}

#[tokio::test]
async fn on_conflict_updates_or_leaves_the_row_that_is_there() {
    let mut s = session().await;
    check(
        &mut s,
        &[
            ("create table t (id int primary key, n int, u text unique)", "CREATE TABLE"),
            ("insert into t values (1, 1, 'a')", "INSERT 0 1"),
            ("insert into t values (1, 5, 'b') on conflict do nothing", "INSERT 0 0"),
            ("insert into t values (2, 5, 'a') on conflict (id) do nothing",
             "!23505 duplicate key value violates unique constraint \"t_u_key\" / Key (u)=(a) already exists."),
            (
                "insert into t values (1, 5, 'b'), (2, 6, 'c') on conflict (id) do update \
                 set n = t.n + excluded.n returning id, n, u",
                "1|6|a\n2|6|c",
            ),
            (
                "insert into t values (9, 7, 'c') on conflict on constraint t_u_key do update set n = excluded.n \
                 where t.n < 0",
                "INSERT 0 0",
            ),
            (
                "insert into t values (3, 1, 'x'), (3, 2, 'y') on conflict (id) do update set n = 0",
                "!21000 ON CONFLICT DO UPDATE command cannot affect row a second time",
            ),
            (
                "insert into t values (1, 1, 'x') on conflict (n) do nothing",
                "!42P10 there is no unique or exclusion constraint matching the ON CONFLICT specification",
            ),
        ],
    )
    .await;
}

#[tokio::test]
async fn foreign_keys_hold_and_act() {
    let mut s = session().await;
    check(
        &mut s,
        &[
            ("create table p (id int primary key)", "CREATE TABLE"),
            ("create table c (id int primary key, p int references p on delete cascade on update cascade)", "CREATE TABLE"),
            ("create table n (id int primary key, p int references p on delete set null)", "CREATE TABLE"),
            ("create table r (id int primary key, p int references p)", "CREATE TABLE"),
            ("insert into p values (1), (2), (3)", "INSERT 0 3"),
            ("insert into c values (10, 1), (11, 1), (12, 2), (13, null)", "INSERT 0 4"),
            ("insert into n values (20, 1)", "INSERT 0 1"),
            (
                "insert into c values (14, 9)",
                "!23503 insert or update on table \"c\" violates foreign key constraint \"c_p_fkey\" / \
                 Key (p)=(9) is not present in table \"p\".",
            ),
            ("update p set id = 7 where id = 2", "UPDATE 1"),
            ("select p from c where id = 12", "7"),
            ("delete from p where id = 1", "DELETE 1"),
            ("select id from c where id > 0", "12\n13"),
            ("select p from n where id = 20", "NULL"),
            ("insert into r values (30, 3)", "INSERT 0 1"),
            (
                "delete from p where id = 3",
                "!23503 update or delete on table \"p\" violates foreign key constraint \"r_p_fkey\" on table \"r\" / \
                 Key (id)=(3) is still referenced from table \"r\".",
            ),
            // A tree references itself within one statement, and goes as a whole.
            ("create table tree (id int primary key, up int references tree)", "CREATE TABLE"),
            ("insert into tree values (1, 2), (2, 3), (3, null)", "INSERT 0 3"),
            (
                "delete from tree where id = 3",
                "!23503 update or delete on table \"tree\" violates foreign key constraint \"tree_up_fkey\" on table \
                 \"tree\" / Key (id)=(3) is still referenced from table \"tree\".",
            ),
            ("delete from tree", "DELETE 3"),
        ],
    )
    .await;
}

#[tokio::test]
async fn identity_defaults_and_sequences_give_values() {
    let mut s = session().await;
    check(
        &mut s,
        &[
            ("create table t (id bigint generated always as identity primary key, a int, g int generated always as (a * 2) stored)", "CREATE TABLE"),
            ("insert into t (a) values (5), (6) returning id, g", "1|10\n2|12"),
            (
                "insert into t (id, a) values (9, 1)",
                "!428C9 cannot insert a non-DEFAULT value into column \"id\" / \
                 Column \"id\" is an identity column defined as GENERATED ALWAYS.",
            ),
            ("update t set a = 7 where id = 1 returning g", "14"),
            ("create sequence q start 5", "CREATE SEQUENCE"),
            ("select nextval('q'), nextval('q'), currval('q')", "5|6|6"),
            ("select setval('q', 20), lastval() > 0", "20|t"),
            ("select nextval('q')", "21"),
        ],
    )
    .await;
}

#[tokio::test]
async fn statement_that_fails_leaves_nothing_behind() {
    let mut s = session().await;
    check(
        &mut s,
        &[
            ("create table t (id int primary key)", "CREATE TABLE"),
            ("insert into t values (1), (2), (1)", "!23505 duplicate key value violates unique constraint \"t_pkey\" / Key (id)=(1) already exists."),
            ("select count(*) from t where id > 0", "0"),
            ("insert into t values (1), (1 / 0)", "!22012 division by zero"),
            ("select count(*) from t where id > 0", "0"),
        ],
    )
    .await;
    let many: Vec<String> = (0..3000).map(|i| format!("({i})")).collect();
    assert_eq!(
        run(&mut s, &format!("insert into t values {}", many.join(","))).await,
        "INSERT 0 3000"
    );
    assert_eq!(run(&mut s, "select count(*), sum(id) from t where id >= 0").await, "3000|4498500");
    assert_eq!(run(&mut s, "update t set id = id + 1").await, "UPDATE 3000");
    assert_eq!(run(&mut s, "select id from t where id > 0 order by id desc limit 1").await, "3000");
    let all = run(&mut s, "select id from t where id > 0").await;
    assert_eq!(all.lines().count(), 3000);
}

async fn two_sessions(options: SqlOptions) -> (Session, Session) {
    let env = telesto_runtime::env();
    let database = Arc::new(MemoryDatabase::new(env.clone()));
    let engine = SqlEngine::open(database, env, options).await.expect("opens");
    let a = engine.session(SessionOptions::default()).await.expect("a session");
    let b = engine.session(SessionOptions::default()).await.expect("a session");
    (a, b)
}

/// A block that runs again runs its queries deep inside COMMIT: on a stack as large as a server's
/// threads have.
#[test]
fn two_workers_that_skip_locked_rows_never_both_take_one() {
    let runs = || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        runtime.expect("a runtime").block_on(two_workers());
    };
    let thread = std::thread::Builder::new().stack_size(8 << 20).spawn(runs);
    thread.expect("a thread").join().expect("the test");
}

async fn two_workers() {
    let (mut a, mut b) = two_sessions(SqlOptions::default()).await;
    check(
        &mut a,
        &[
            ("create table job (id int primary key, who text)", "CREATE TABLE"),
            ("insert into job (id) values (1), (2), (3)", "INSERT 0 3"),
            ("begin", "BEGIN"),
        ],
    )
    .await;
    let next = "select id from job where who is null order by id limit 1 for update skip locked";
    let first = run(&mut a, next).await;
    run(&mut b, "begin").await;
    let second = run(&mut b, next).await;
    run(&mut a, &format!("update job set who = 'a' where id = {first}")).await;
    run(&mut b, &format!("update job set who = 'b' where id = {second}")).await;
    let ends = [run(&mut a, "commit").await, run(&mut b, "commit").await];
    let done = ends.iter().filter(|end| *end == "COMMIT").count();
    assert!(done >= 1, "one of them goes on: {ends:?}");
    if first == second {
        assert_eq!(done, 1, "both took job {first}: {ends:?}");
        assert!(ends.iter().any(|end| end.starts_with("!40001")), "{ends:?}");
    }
    let taken = run(&mut a, "select count(*) from job where who is not null").await;
    assert_eq!(taken, done.to_string());
    let take = "update job set who = 'c' where id = (select id from job where who is null \
                order by id limit 1 for update skip locked) returning id";
    let mut ids = vec![run(&mut a, take).await, run(&mut b, take).await];
    ids.dedup();
    assert_eq!(ids.len(), 2, "{ids:?}");
}

/// What FOR UPDATE read holds until the commit at every level, whichever executor read it.
#[tokio::test]
async fn row_read_for_update_that_another_changed_fails_the_commit() {
    let reads = [
        "select v from account where id = 1 for update",
        "select v from account where id = 1 and v > 0 order by v limit 1 for share",
        "select a.v from account a join owner o on o.id = a.owner where a.id = 1 for update of a",
        "select v, (select max(x) from generate_series(1, 3) x) from account where id = 1 for no key update",
        "with rich as (select v from account where v > 0 for update) select v from rich",
    ];
    for level in ["read committed", "repeatable read", "serializable"] {
        for executor in ["auto", "datafusion"] {
            for read in reads {
                let (mut a, mut b) = two_sessions(SqlOptions::default()).await;
                check(
                    &mut a,
                    &[
                        ("create table owner (id int primary key)", "CREATE TABLE"),
                        (
                            "create table account (id int primary key, v int, owner int)",
                            "CREATE TABLE",
                        ),
                        ("insert into owner values (1)", "INSERT 0 1"),
                        ("insert into account values (1, 10, 1)", "INSERT 0 1"),
                    ],
                )
                .await;
                run(&mut a, &format!("set telesto.executor = {executor}")).await;
                run(&mut a, &format!("begin isolation level {level}")).await;
                let seen = run(&mut a, read).await;
                assert!(seen.starts_with("10"), "{read}: {seen}");
                assert_eq!(
                    run(&mut b, "update account set v = v + 5 where id = 1").await,
                    "UPDATE 1"
                );
                let what = format!("{level}, {executor}: {read}");
                // The client computes with what it saw.
                let ends = [
                    run(&mut a, "update account set v = 10 + 1 where id = 1").await,
                    run(&mut a, "commit").await,
                ];
                assert!(ends.iter().any(|end| end.starts_with("!40001")), "{what}: {ends:?}");
                assert_eq!(run(&mut b, "select v from account").await, "15", "{what}");
            }
        }
    }
}

#[tokio::test]
async fn statement_of_several_parts_is_run_again_as_a_whole_after_a_conflict() {
    let (mut a, mut b) = two_sessions(SqlOptions::default()).await;
    check(
        &mut a,
        &[
            ("create table queue (id int primary key, v int)", "CREATE TABLE"),
            ("create table done (id int primary key, v int)", "CREATE TABLE"),
            ("insert into queue values (1, 1)", "INSERT 0 1"),
            ("begin", "BEGIN"),
            (
                "with gone as (delete from queue where id = 1 returning *) insert into done select * from gone",
                "INSERT 0 1",
            ),
        ],
    )
    .await;
    check(&mut b, &[("update queue set v = 2 where id = 1", "UPDATE 1")]).await;
    check(
        &mut a,
        &[("commit", "COMMIT"), ("select * from done", "1|2"), ("select count(*) from queue", "0")],
    )
    .await;
}

#[tokio::test]
async fn values_that_do_not_fit_the_memory_are_refused_and_charged_no_longer_than_they_live() {
    let options = SqlOptions { memory_bytes: 24 << 20, ..SqlOptions::default() };
    let (mut a, _) = two_sessions(options).await;
    run(&mut a, "create table t (id int primary key, v text)").await;
    run(&mut a, "insert into t values (1, 'x')").await;
    let large = [
        "('[' || repeat('1,', 1000000) || '1]')::jsonb",
        "('{' || repeat('1,', 1500000) || '1}')::int[]",
        "string_to_array(repeat(',', 1500000), ',')",
        "repeat('x', 30000000)",
    ];
    for value in large {
        for sql in [
            format!("select {value} is null"),
            format!("select {value} is null from t where id = 1"),
        ] {
            let answer = run(&mut a, &sql).await;
            assert!(answer.starts_with("!53200"), "{sql}: {answer}");
        }
    }
    // Each fits; all together they would not.
    for _ in 0..20 {
        let sql =
            "select cardinality(string_to_array(repeat(',', 200000), ',')) from t where id = 1";
        assert_eq!(run(&mut a, sql).await, "200001");
    }
    let sql = "select sum(cardinality(string_to_array(repeat(',', 20000 + g), ','))) from generate_series(1, 300) g";
    assert_eq!(run(&mut a, sql).await, "6045450");
}

#[tokio::test]
async fn rows_of_a_part_that_do_not_fit_the_memory_are_refused_and_nothing_is_written() {
    let options = SqlOptions { memory_bytes: 4 << 20, ..SqlOptions::default() };
    let (mut a, _) = two_sessions(options).await;
    run(&mut a, "create table t (id int primary key, v text)").await;
    let sql = "with x as (insert into t select g, repeat('x', 1000) from generate_series(1, 8000) g \
               returning *) select count(*) from x";
    let answer = run(&mut a, sql).await;
    assert!(answer.starts_with("!53200"), "{answer}");
    assert_eq!(run(&mut a, "select count(*) from t").await, "0");
}

/// Counts rows and the most bytes that came at once.
#[derive(Default)]
struct Pulled {
    rows: usize,
    most: usize,
}

#[async_trait]
impl ResultSink for Pulled {
    async fn result(&mut self, result: StatementResult) -> telesto_sql::Result<()> {
        let StatementResult::Rows { rows, .. } = result else { panic!("rows") };
        match rows {
            telesto_sql::Rows::Ready(rows) => (self.rows, self.most) = (rows.len(), rows.len()),
            telesto_sql::Rows::Stream(mut stream) => {
                while let Some(rows) = futures::StreamExt::next(&mut stream).await {
                    let rows = rows?.len();
                    (self.rows, self.most) = (self.rows + rows, self.most.max(rows));
                }
            }
        }
        Ok(())
    }
}

#[tokio::test]
async fn results_larger_than_the_memory_are_streamed_or_refused() {
    let options = SqlOptions { memory_bytes: 16 << 20, ..SqlOptions::default() };
    let (mut a, _) = two_sessions(options).await;
    run(&mut a, "create table wide (id int primary key, t text); create sequence numbers").await;
    for batch in 0..40 {
        let sql = format!(
            "insert into wide select g + {batch} * 20, repeat('x', 60000) from generate_series(1, 20) g"
        );
        assert_eq!(run(&mut a, &sql).await, "INSERT 0 20");
    }
    let ids: Vec<String> = (1..=800).map(|id: i32| id.to_string()).collect();
    let ids = ids.join(",");
    for (sql, rows, most) in [
        // A look-up by many keys takes as many at once as hold few megabytes.
        (format!("select t from wide where id = any('{{{ids}}}')"), 800, 200),
        (format!("select t from wide where id in ({ids})"), 800, 200),
        ("select t, random() from wide where id > 0".to_owned(), 800, 600),
        (format!("select t from wide where id = any('{{{ids}}}') and id < 40"), 39, 39),
    ] {
        let mut pulled = Pulled::default();
        a.execute_simple(&sql, &mut pulled).await.expect("rows");
        assert_eq!(pulled.rows, rows, "{sql}");
        assert!(pulled.most <= most, "{} at once: {sql}", pulled.most);
    }
    let answer = run(&mut a, "select t, nextval('numbers') from wide where id > 0").await;
    assert!(answer.starts_with("!53200"), "{answer}");
    let answer =
        run(&mut a, "select length(t), nextval('numbers') > 0 from wide where id > 798").await;
    assert_eq!(answer, "60000|t\n60000|t");
}
