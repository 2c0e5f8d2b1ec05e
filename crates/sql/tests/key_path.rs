//! Reads and writes by key through a session over the in-memory database.

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
