//! COPY through a session.

use std::sync::Arc;

use async_trait::async_trait;
use futures::TryStreamExt;
use telesto_common::key::KeyRange;
use telesto_sql::{
    CopyPiece, Error, ResultSink, SessionOptions, SqlEngine, SqlOptions, StatementResult,
};
use telesto_txn::memory::MemoryDatabase;
use telesto_txn::{Database, ScanOptions, TxnOptions};

/// Feeds COPY FROM and keeps what COPY TO and queries give.
#[derive(Default)]
struct Pipe {
    input: &'static [u8],
    output: Vec<u8>,
    copied: u64,
    lines: Vec<String>,
}

#[async_trait]
impl ResultSink for Pipe {
    async fn result(&mut self, result: StatementResult) -> Result<(), Error> {
        match result {
            StatementResult::CopyIn { mut target, .. } => {
                for piece in self.input.chunks(if self.input.len() < 1000 { 5 } else { 5000 }) {
                    target.data(bytes::Bytes::from_static(piece)).await?;
                }
                self.copied = target.finish().await?;
            }
            StatementResult::CopyOut { data, .. } => {
                let pieces: Vec<CopyPiece> = data.try_collect().await?;
                self.copied = pieces.iter().map(|piece| piece.rows).sum();
                for piece in pieces {
                    self.output.extend_from_slice(&piece.bytes);
                }
                let text = String::from_utf8_lossy(&self.output);
                self.lines.extend(text.lines().map(str::to_owned));
            }
            StatementResult::Rows { columns, rows, .. } => {
                let style = telesto_sql::types::TextStyle::default();
                for row in rows.collect().await? {
                    let cells = row.iter().zip(columns.iter()).map(|(datum, column)| {
                        if datum.is_null() {
                            "NULL".to_owned()
                        } else {
                            datum.to_text(&column.ty, &style)
                        }
                    });
                    self.lines.push(cells.collect::<Vec<_>>().join("|"));
                }
            }
            _ => {}
        }
        Ok(())
    }
}

async fn run(sql: &[&str], input: &'static [u8]) -> Result<Pipe, Error> {
    let env = telesto_runtime::env();
    let database = Arc::new(MemoryDatabase::new(env.clone()));
    let engine = SqlEngine::open(database, env, SqlOptions::default()).await?;
    let mut session = engine.session(SessionOptions::default()).await?;
    let mut pipe = Pipe { input, ..Pipe::default() };
    for statement in sql {
        session.execute_simple(statement, &mut pipe).await?;
    }
    Ok(pipe)
}

const TABLE: &str = "create table t (id int primary key, name text, n numeric(8,2))";

#[tokio::test]
async fn copy_in_text_then_out_csv_gives_the_rows() {
    let input = b"1\tone\t1.5\n2\t\\N\t\\N\n3\ta,\"b\\tc\t-2\n";
    let pipe = run(
        &[
            TABLE,
            "copy t from stdin",
            "copy (select * from t order by id) to stdout with (format csv, header)",
        ],
        input,
    )
    .await
    .expect("copies");
    assert_eq!(pipe.copied, 3, "the header is no row");
    let text = String::from_utf8(pipe.output).expect("UTF-8");
    assert_eq!(text, "id,name,n\n1,one,1.50\n2,,\n3,\"a,\"\"b\tc\",-2.00\n");
}

#[tokio::test]
async fn copy_in_with_a_missing_column_names_the_line() {
    let failed = run(&[TABLE, "copy t from stdin"], b"1\tone\t1\n2\ttwo\n").await;
    let error = failed.err().expect("refused");
    assert_eq!(error.code().0, "22P04");
    assert_eq!(error.fields().context.as_deref(), Some("COPY t, line 2: \"2\ttwo\""));
}

/// Runs statements one by one in one session; results of queries as `a|b` lines, errors as code,
/// message, context.
async fn script(steps: &[(&str, &'static [u8])]) -> Vec<String> {
    let env = telesto_runtime::env();
    let database = Arc::new(MemoryDatabase::new(env.clone()));
    let engine = SqlEngine::open(database, env, SqlOptions::default()).await.expect("opens");
    let mut session = engine.session(SessionOptions::default()).await.expect("session");
    let mut said = Vec::new();
    for (statement, input) in steps {
        let mut pipe = Pipe { input, ..Pipe::default() };
        match session.execute_simple(statement, &mut pipe).await {
            Ok(()) => said.extend(pipe.lines),
            Err(error) => said.push(format!(
                "{} {} [{}]",
                error.code().0,
                error.message(),
                error.fields().context.as_deref().unwrap_or("")
            )),
        }
    }
    said
}

#[tokio::test]
async fn objects_come_in_by_the_names_that_they_go_out_by() {
    let said = script(&[
        ("create schema s; create table s.far (n int); create sequence q", b""),
        ("create table r (c regclass, f regproc, k regtype[], o regnamespace)", b""),
        (
            "copy r from stdin",
            b"pg_class\tnow\t{integer,\"character varying\"}\ts\ns.far\t-\t{}\t11\n",
        ),
        ("copy r from stdin with (format csv)", b"q,,{text},public\n"),
        ("copy r from stdin", b"absent\tnow\t{}\ts\n"),
        ("copy r from stdin", b"q\tnow\t{integer,absent}\ts\n"),
        ("copy r to stdout", b""),
    ])
    .await;
    assert_eq!(
        said,
        [
            "42P01 relation \"absent\" does not exist [COPY r, line 1, column c: \"absent\"]",
            "42704 type \"absent\" does not exist [COPY r, line 1, column k: \"{integer,absent}\"]",
            "pg_class\tnow\t{integer,\"character varying\"}\ts",
            "s.far\t-\t{}\tpg_catalog",
            "q\t\\N\t{text}\tpublic",
        ]
    );
}

/// A thousand rows: more than one batch; the last line is `last`.
fn thousand(last: &str) -> &'static [u8] {
    let mut text: String = (1..1000).map(|id| format!("{id}\tx\n")).collect();
    text.push_str(last);
    Box::leak(text.into_bytes().into_boxed_slice())
}

#[tokio::test]
async fn refused_row_is_named_by_its_line_and_leaves_nothing() {
    let table = "create table t (id int primary key, s varchar(3) not null, n int check (n > 0))";
    let copy = "copy t (id, s) from stdin";
    let all = "copy t from stdin";
    let count = ("select count(*) from t", &b""[..]);
    let said = script(&[
        (table, b""),
        (copy, thousand("7\tx\n")),
        count,
        (copy, thousand("1000\t\\N\n")),
        count,
        (copy, thousand("1000\tlong\n")),
        (copy, thousand("1000\n")),
        (copy, thousand("1000\tx\ty\n")),
        (copy, thousand("ten\tx\n")),
        (all, b"1\ta\t5\n2\tb\t0\n3\tc\t1\n"),
        (all, b"1\ta\t5\n1\tb\t1\n3\tc\t1\n"),
        count,
        (copy, thousand("1000\tend\n")),
        count,
        (copy, b"2001\ta\n2002\ta\n5\ta\n2003\ta\n"),
        count,
    ])
    .await;
    let expected = [
        "23505 duplicate key value violates unique constraint \"t_pkey\" [COPY t, line 1000]",
        "0",
        "23502 null value in column \"s\" of relation \"t\" violates not-null constraint [COPY t, line 1000: \"1000\t\\N\"]",
        "0",
        "22001 value too long for type character varying(3) [COPY t, line 1000, column s: \"long\"]",
        "22P04 missing data for column \"s\" [COPY t, line 1000: \"1000\"]",
        "22P04 extra data after last expected column [COPY t, line 1000: \"1000\tx\ty\"]",
        "22P02 invalid input syntax for type integer: \"ten\" [COPY t, line 1000, column id: \"ten\"]",
        "23514 new row for relation \"t\" violates check constraint \"t_n_check\" [COPY t, line 2: \"2\tb\t0\"]",
        "23505 duplicate key value violates unique constraint \"t_pkey\" [COPY t, line 2]",
        "0",
        "1000",
        "23505 duplicate key value violates unique constraint \"t_pkey\" [COPY t, line 3]",
        "1000",
    ];
    assert_eq!(said, expected);
}

#[tokio::test]
async fn defaults_identities_generated_columns_and_indexes_are_those_of_insert() {
    let said = script(&[
        (
            "create table t (id int generated always as identity primary key, a int default 7, b int unique, \
             c int generated always as (a + b) stored)",
            b"",
        ),
        ("create index on t (a)", b""),
        ("copy t (b) from stdin", b"1\n2\n\\N\n\\N\n"),
        ("select id, a, b, c from t order by id", b""),
        // A value for an identity is taken, as in PostgreSQL.
        ("copy t from stdin", b"50\t1\t3\n"),
        ("select id, a, b, c from t where a = 1", b""),
        ("copy t (b) from stdin", b"9\n2\n"),
        ("copy t (c) from stdin", b"9\n"),
        ("select count(*) from t where a = 7", b""),
        ("copy (select * from t where b = 3) to stdout with (format csv, header)", b""),
        ("copy t to stdout", b""),
    ])
    .await;
    let expected = [
        "1|7|1|8",
        "2|7|2|9",
        "3|7|NULL|NULL",
        "4|7|NULL|NULL",
        "50|1|3|4",
        "23505 duplicate key value violates unique constraint \"t_b_key\" [COPY t, line 2]",
        "42P10 column \"c\" is a generated column []",
        "4",
        "id,a,b,c",
        "50,1,3,4",
        "1\t7\t1",
        "2\t7\t2",
        "3\t7\t\\N",
        "4\t7\t\\N",
        "50\t1\t3",
    ];
    assert_eq!(said, expected);
}

#[tokio::test]
async fn tables_without_columns_to_copy_have_a_row_for_each_empty_line() {
    let said = script(&[
        ("create table z ()", b""),
        ("insert into z default values", b""),
        ("copy z to stdout", b""),
        ("copy z from stdin", b"\n\n"),
        ("copy z from stdin csv", b"\n"),
        ("select count(*) from z", b""),
        ("copy z from stdin", b"\nx\n"),
        ("copy z from stdin csv", b"\"\"\n"),
        ("select count(*) from z", b""),
        ("create table g (a int generated always as (1 + 1) stored)", b""),
        ("copy g from stdin", b"\n\n"),
        ("copy g from stdin", b"\n1\n"),
        ("select a from g", b""),
    ])
    .await;
    let expected = [
        "",
        "4",
        "22P04 extra data after last expected column [COPY z, line 2: \"x\"]",
        "22P04 extra data after last expected column [COPY z, line 1: \"\"\"\"]",
        "4",
        "22P04 extra data after last expected column [COPY g, line 2: \"1\"]",
        "2",
        "2",
    ];
    assert_eq!(said, expected);
}

#[tokio::test]
async fn copied_table_has_the_values_that_are_stored() {
    let rows = b"1\t-0\t-0\t294276-12-31 23:59:59.999999+00\t294270-01-02 03:04:05\n2\t0\t1.5\tinfinity\t-infinity\n";
    let said = script(&[
        ("create domain half as float8", b""),
        ("create table t (id int primary key, f half, r real, z timestamptz, s timestamp)", b""),
        ("set timezone = 'UTC'", b""),
        ("copy t from stdin", rows),
        ("copy t to stdout", b""),
        // It is the client's queries that an executor is chosen for.
        ("set telesto.executor = datafusion", b""),
        ("copy t (f, z) to stdout csv", b""),
    ])
    .await;
    let expected = [
        "1\t-0\t-0\t294276-12-31 23:59:59.999999+00\t294270-01-02 03:04:05",
        "2\t0\t1.5\tinfinity\t-infinity",
        "-0,294276-12-31 23:59:59.999999+00",
        "0,infinity",
    ];
    assert_eq!(said, expected);
}

#[tokio::test]
async fn rows_for_which_the_condition_does_not_hold_are_left_out() {
    let said = script(&[
        ("create table t (id int primary key, a int default 7 check (a < 100), s text)", b""),
        ("copy t (id, s) from stdin where a = 7 and id > 1", b"1\tx\n2\ty\n3\t\\N\n"),
        // What is left out is no duplicate, and violates nothing.
        (
            "copy t from stdin (format csv) where t.a < 50 and s <> 'no'",
            b"2,60,y\n4,1000,z\n5,1,q\n6,2,\n7,3,no\n",
        ),
        ("copy t from stdin csv where s is null", b"8,8,\n9,9,x\n"),
        ("copy t (id) from stdin where 10 / (id - 10) > 0", b"11\n10\n"),
        ("copy t (id) from stdin where made", b"12\n"),
        ("select id, a, s from t order by id", b""),
        ("copy t (id) from stdin where false", b"20\nx\n"),
        ("create sequence q", b""),
        ("copy t (id) from stdin where id > nextval('q')", b"20\n"),
    ])
    .await;
    let expected = [
        "22012 division by zero [COPY t, line 2: \"10\"]",
        "42703 column \"made\" does not exist []",
        "2|7|y",
        "3|7|NULL",
        "5|1|q",
        "8|8|NULL",
        "22P02 invalid input syntax for type integer: \"x\" [COPY t, line 2, column id: \"x\"]",
        "0A000 nextval in a COPY FROM WHERE condition is not supported []",
    ];
    assert_eq!(said, expected);
}

#[tokio::test]
async fn foreign_keys_are_settled_at_the_end() {
    let said = script(&[
        ("create table t (id int primary key, parent int references t)", b""),
        // The parent comes later in the same data.
        ("copy t from stdin", b"1\t2\n2\t\\N\n"),
        ("copy t from stdin", b"3\t1\n4\t9\n5\t1\n"),
        ("select count(*) from t", b""),
        ("begin", b""),
        ("copy t from stdin", b"3\t1\n"),
        ("rollback", b""),
        ("select count(*) from t", b""),
    ])
    .await;
    let violated = "23503 insert or update on table \"t\" violates foreign key constraint \"t_parent_fkey\" []";
    assert_eq!(said, [violated, "2", "2"]);
}

#[tokio::test]
async fn csv_lines_are_counted_as_they_stand_in_the_file() {
    let said = script(&[
        ("create table t (id int primary key, s text)", b""),
        ("copy t from stdin with (format csv, header)", b"id,s\n1,\"a\nb\"\nx,c\n"),
        ("copy t from stdin with (format csv, header)", b"id,s\n1,\"a\nb\"\n1,c\n"),
    ])
    .await;
    let expected = [
        "22P02 invalid input syntax for type integer: \"x\" [COPY t, line 4, column id: \"x\"]",
        "23505 duplicate key value violates unique constraint \"t_pkey\" [COPY t, line 4]",
    ];
    assert_eq!(said, expected);
}

#[tokio::test]
async fn binary_copied_out_and_in_again_is_the_same() {
    let env = telesto_runtime::env();
    let database = Arc::new(MemoryDatabase::new(env.clone()));
    let engine = SqlEngine::open(database, env, SqlOptions::default()).await.expect("opens");
    let mut session = engine.session(SessionOptions::default()).await.expect("session");
    let columns = "id int primary key, s text, n numeric(8,2), at timestamptz, a int[], j jsonb";
    for table in ["t", "u"] {
        let made = format!("create table {table} ({columns})");
        session.execute_simple(&made, &mut Pipe::default()).await.expect("table");
    }
    let rows = "insert into t select i, 'r' || i, i / 3.0, timestamptz '2024-02-29 12:00:00+00', array[i, null], jsonb '{\"a\": [1]}' \
                from generate_series(1, 700) i";
    session.execute_simple(rows, &mut Pipe::default()).await.expect("rows");
    session
        .execute_simple("insert into t (id) values (0)", &mut Pipe::default())
        .await
        .expect("nulls");
    let mut out = Pipe::default();
    session.execute_simple("copy t to stdout with (format binary)", &mut out).await.expect("out");
    assert_eq!((out.copied, &out.output[..11]), (701, &b"PGCOPY\n\xff\r\n\0"[..]));
    let mut back = Pipe { input: Box::leak(out.output.into_boxed_slice()), ..Pipe::default() };
    session.execute_simple("copy u from stdin binary", &mut back).await.expect("in");
    assert_eq!(back.copied, 701);
    let mut differ = Pipe::default();
    let both = "select count(*) from (select * from t except select * from u) d";
    session.execute_simple(both, &mut differ).await.expect("compares");
    assert_eq!(differ.lines, ["0"]);
    let mut again = Pipe { input: back.input, ..Pipe::default() };
    let error = session.execute_simple("copy u from stdin binary", &mut again).await;
    let error = error.expect_err("duplicates");
    assert_eq!(error.fields().context.as_deref(), Some("COPY u, line 1"));
    let error =
        session.execute_simple("copy u from stdin (format binary, header)", &mut again).await;
    assert_eq!(error.expect_err("no header there").code().0, "42601");
    let mut none = Pipe::default();
    let nothing = "copy (select * from t where false) to stdout binary";
    session.execute_simple(nothing, &mut none).await.expect("nothing");
    assert_eq!((none.copied, none.output.len()), (0, 11 + 8 + 2), "header and end mark");
}

/// What a TRUNCATE left is deleted in the background: whoever is under way meanwhile does not fail
/// for it.
#[tokio::test]
async fn load_after_truncate_is_not_failed_by_the_sweep_of_what_was_there() {
    let env = telesto_runtime::env();
    let database = Arc::new(MemoryDatabase::new(env.clone()));
    let below: Arc<dyn Database> = Arc::clone(&database) as _;
    let engine =
        SqlEngine::open(database, env.clone(), SqlOptions::default()).await.expect("opens");
    let mut session = engine.session(SessionOptions::default()).await.expect("session");
    let mut other = engine.session(SessionOptions::default()).await.expect("session");
    let fill = "create table t (id int primary key, s text); insert into t select n, 'x' from generate_series(1, 9000) n; \
                insert into t select n, 'x' from generate_series(9001, 18000) n; create table u (id int)";
    session.execute_simple(fill, &mut Pipe::default()).await.expect("rows");
    session.execute_simple("truncate t", &mut Pipe::default()).await.expect("empty");
    // What a COPY wrote cannot be executed again by the server.
    let mut load = Pipe { input: b"1\ty\n", ..Pipe::default() };
    session.execute_simple("begin; copy t from stdin", &mut load).await.expect("loads");
    // Until the sweep is through; the note goes right after the last rows.
    let mut keys = usize::MAX;
    for _ in 0..1200 {
        keys = keys_of(&below).await;
        if keys < 1000 {
            break;
        }
        env.clock.sleep(std::time::Duration::from_millis(50)).await;
    }
    assert!(keys < 1000, "the sweep ends: {keys} keys");
    for _ in 0..100 {
        env.clock.sleep(std::time::Duration::from_millis(20)).await;
        if keys_of(&below).await < keys {
            break;
        }
    }
    session
        .execute_simple("commit", &mut Pipe::default())
        .await
        .expect("nothing it rests on has changed");
    let mut rows = Pipe::default();
    other.execute_simple("select id, s from t", &mut rows).await.expect("reads");
    assert_eq!(rows.lines, ["1|y"]);
}

async fn keys_of(database: &Arc<dyn Database>) -> usize {
    let txn = database.begin(TxnOptions::default()).await.expect("begins");
    let mut scan = txn.scan(KeyRange::default(), ScanOptions::default());
    let mut count = 0;
    loop {
        match scan.next_batch(1000).await.expect("scans").len() {
            0 => return count,
            more => count += more,
        }
    }
}

#[tokio::test]
async fn copy_of_a_statement_that_writes_gives_what_it_returns() {
    let pipe = run(
        &[
            "create table w (a int, b text default 'd')",
            "copy (insert into w values (1), (2) returning a, b) to stdout",
            "copy (update w set b = 'z' where a = 1 returning *) to stdout with (format csv, header)",
            "copy (with x as (select 7 as a) insert into w select a from x returning *) to stdout",
            "copy (with x as (insert into w values (9) returning a) select * from x) to stdout",
            "copy (delete from w where a = 2 returning a) to stdout",
            "copy (select a from w order by a) to stdout",
        ],
        b"",
    )
    .await
    .expect("copies");
    let text = String::from_utf8(pipe.output).expect("UTF-8");
    assert_eq!(text, "1\td\n2\td\na,b\n1,z\n7\td\n9\n2\n1\n7\n9\n");
    for (sql, code) in [
        ("copy (insert into t values (1)) to stdout", "0A000"),
        ("copy (delete from t) to stdout", "0A000"),
        ("begin read only; copy (delete from t returning id) to stdout", "25006"),
        ("copy (delete from nosuch returning *) to stdout", "42P01"),
    ] {
        let error = run(&[TABLE, sql], b"").await.err().expect(sql);
        assert_eq!(error.code().0, code, "{sql}: {error}");
    }
}
