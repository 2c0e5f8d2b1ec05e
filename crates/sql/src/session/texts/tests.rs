//! Texts that come again mean what they meant: beside a session that plans each anew.

use telesto_txn::memory::MemoryDatabase;

use crate::session::tests::{engine, run, session};
use crate::session::{
    Session, SessionOptions, SqlEngine, SqlOptions, StatementResult, TransactionStatus,
};

use super::*;

/// Numbers without a pattern (Marsaglia's xorshift).
struct Draw {
    state: u64,
    /// Draws values, so that a statement can come again with others.
    values: u64,
}

fn next(state: &mut u64, bound: usize) -> usize {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    usize::try_from(*state % bound as u64).expect("small")
}

const NUMBERS: [&str; 19] = [
    "-0.0",
    "-0",
    "1e-400",
    "0",
    "1",
    "2",
    "3",
    "-1",
    "- 2",
    "5",
    "40000",
    "3000000000",
    "-3000000000",
    "99999999999999999999",
    "1.5",
    "2.00",
    "-0.5",
    "1e2",
    ".5",
];
const STRINGS: [&str; 23] = [
    "'0'",
    "'1'",
    "' 2 '",
    "'x'",
    "'X'",
    "'it''s'",
    "''",
    "'abcde'",
    "'ab  '",
    "'ab'",
    "'t'",
    "'off'",
    "'2024-02-29'",
    "'2024-02-30'",
    "'2024-01-01 10:00'",
    "'2024-01-01 10:00+02'",
    "'today'",
    "'1.50'",
    "'NaN'",
    "'00000000-0000-0000-0000-000000000001'",
    "'{\"a\": [1, 2.0]}'",
    "'\\x0102'",
    "'1 day 02:00'",
];
const OTHERS: [&str; 7] =
    ["NULL", "true", "1 + 1", "E'x'", "date '2024-01-01'", "1e400", "'infinity'"];
const TYPES: [&str; 15] = [
    "int",
    "smallint",
    "bigint",
    "numeric",
    "numeric(4,1)",
    "double precision",
    "real",
    "text",
    "varchar(3)",
    "date",
    "timestamp",
    "timestamptz",
    "uuid",
    "interval",
    "jsonb",
];

impl Draw {
    fn below(&mut self, bound: usize) -> usize {
        next(&mut self.state, bound)
    }

    fn of<'a>(&mut self, all: &[&'a str]) -> &'a str {
        all[self.below(all.len())]
    }

    /// How it is written belongs to the statement, what it is does not.
    fn literal(&mut self) -> String {
        let all: &[&str] = match self.below(12) {
            0..=3 => &NUMBERS,
            4..=8 => &STRINGS,
            9 | 10 => {
                let ty = self.of(&TYPES);
                let text = STRINGS[next(&mut self.values, STRINGS.len())];
                return match self.below(2) {
                    0 => format!("{text}::{ty}"),
                    _ => format!("CAST({text} AS {ty})"),
                };
            }
            _ => &OTHERS,
        };
        all[next(&mut self.values, all.len())].to_owned()
    }

    fn column(&mut self) -> &'static str {
        self.of(&[
            "k", "s", "b", "n", "f", "r", "t", "v", "c", "d", "ts", "tz", "bo", "u", "j", "y", "i",
        ])
    }

    fn condition(&mut self) -> String {
        let column = self.column();
        let (a, b) = (self.literal(), self.literal());
        match self.below(8) {
            0 | 1 => format!("{column} = {a}"),
            2 => format!("{column}{}{a}", self.of(&["<", ">", "<=", ">=", "<>"])),
            3 => format!("{column} IN ({a}, {b})"),
            4 => format!("{column} BETWEEN {a} AND {b}"),
            5 => format!("k = {a} AND {column} = {b}"),
            6 => format!("k = {} AND ({column} < {a} OR {column} = {b})", self.below(5)),
            _ => format!("k = {}", self.below(5)),
        }
    }

    fn statement(&mut self) -> String {
        let (column, literal) = (self.column(), self.literal());
        match self.below(24) {
            0..=7 => {
                let condition = self.condition();
                format!("SELECT k, {column} FROM t WHERE {condition} ORDER BY 1")
            }
            8 => {
                let condition = self.condition();
                format!("SELECT k, {column} FROM t /* a: 'b' */ WHERE {condition} ORDER BY 1 -- 7")
            }
            20 => {
                let condition = self.condition();
                format!(
                    "SELECT count(*), max({column}) FROM t WHERE {condition} HAVING count(*) >= {literal}"
                )
            }
            21 => {
                let condition = self.condition();
                format!(
                    "SELECT a.k, lower(b.t) || 'x' FROM t a LEFT JOIN t b ON b.t = a.t WHERE a.{condition} ORDER BY 1, 2 LIMIT {}",
                    1 + self.below(4)
                )
            }
            22 => {
                let condition = self.condition();
                format!(
                    "WITH x AS (SELECT k, s FROM t WHERE {condition}) SELECT x.k, {literal} FROM x WHERE x.s IN (SELECT s FROM t WHERE k < {}) ORDER BY 1",
                    self.below(9)
                )
            }
            23 => {
                let condition = self.condition();
                format!("SELECT k, {column} FROM seen WHERE {condition} ORDER BY 1, 2")
            }
            9 | 10 => {
                format!("INSERT INTO t (k, {column}) VALUES ({}, {literal})", 10 + self.below(30))
            }
            11 => format!(
                "INSERT INTO t (k, s, t) VALUES ({0}, {literal}, 'a'), ({0}, 1, {literal}) ON CONFLICT (k) DO NOTHING",
                10 + self.below(30)
            ),
            12 | 13 => format!(
                "UPDATE t SET {column} = {literal} WHERE k = {} RETURNING k, {column}",
                self.below(12)
            ),
            14 | 15 => format!(
                "UPDATE t SET {column} = {column} {} {literal} WHERE k = {} RETURNING {column}",
                self.of(&["+", "-"]),
                self.below(12)
            ),
            16 => format!("DELETE FROM t WHERE k = {literal} RETURNING k"),
            17 => {
                self.of(&["BEGIN", "COMMIT", "ROLLBACK", "SAVEPOINT s", "ROLLBACK TO s"]).to_owned()
            }
            18 if self.below(4) == 0 => self
                .of(&[
                    "SET timezone = 'Asia/Tokyo'",
                    "SET timezone = 'UTC'",
                    "ALTER TABLE t ALTER v TYPE varchar(6)",
                    "ALTER TABLE t ALTER v TYPE varchar(8)",
                    "ALTER TABLE t ALTER s TYPE int USING s::int",
                    "ALTER TABLE t ALTER s TYPE text USING s::text",
                    "ALTER TABLE t ALTER s TYPE smallint USING 1",
                    "ALTER TABLE t RENAME b TO b2",
                    "ALTER TABLE t RENAME b2 TO b",
                    "SET search_path = other, public",
                    "SET search_path = public",
                    "CREATE INDEX IF NOT EXISTS part ON t (t) WHERE s = 1",
                    "DROP INDEX IF EXISTS part",
                ])
                .to_owned(),
            _ => format!(
                "SELECT a.k, b.t FROM t a JOIN t b ON b.k = a.s WHERE a.k = {literal} AND b.k <> {}",
                self.below(5)
            ),
        }
    }
}

const TABLE: &str = "CREATE TABLE t (k int PRIMARY KEY, s smallint, b bigint, n numeric(8,2), f double precision, r real, t text, \
     v varchar(4), c char(4), d date, ts timestamp, tz timestamptz, bo bool, u uuid, j jsonb, y bytea, i interval); CREATE INDEX ON t (s); \
     CREATE INDEX ON t (t); CREATE VIEW seen AS SELECT * FROM t WHERE k < 30; INSERT INTO t VALUES (1, 1, 1, 1.5, 0.1, 0.1, 'x', 'ab', 'ab', '2024-02-29', '2024-01-01 10:00', '2024-01-01 10:00+02', true, \
     '00000000-0000-0000-0000-000000000001'), (2, 2, 3000000000, 2, 1.5, 1.5, 'it''s', 'ab', 'X', '2024-01-01', '2024-01-01', \
     '2024-01-01', false, NULL), (3, NULL, 40000, 100, 100, 100, '', '', '', NULL, NULL, NULL, NULL, NULL), (4, 5, 5, 5, 5, 5, '5', '5', '5', \
     NULL, NULL, NULL, true, NULL); CREATE SCHEMA other; CREATE TABLE other.t (k bigint PRIMARY KEY, s text, b text, n text, f text, r text, t int, \
     v text, c text, d text, ts text, tz text, bo int, u text, j text, y text, i text); INSERT INTO other.t (k, s, t) VALUES (1, '1', 7), (40000, 'x', 8)";

/// What a text gives as Parse, Execute and Sync.
async fn prepared(session: &mut Session, sql: &str) -> Vec<String> {
    let mut out = Vec::new();
    let done = async {
        let prepared = session.prepare(sql, &[]).await?;
        let columns = prepared.columns.iter().flat_map(|columns| columns.iter());
        out.extend(columns.map(|column| format!("{} {}", column.name, column.ty)));
        out.push(format!("{:?}", prepared.parameter_types));
        let result = session.execute(&prepared, Vec::new()).await?;
        match result {
            StatementResult::Rows { columns, rows, .. } => {
                let style = session.settings().text_style(0);
                for row in rows.collect().await? {
                    let cells = row.iter().zip(columns.iter());
                    let shown = cells.map(|(datum, column)| match datum.is_null() {
                        true => "NULL".to_owned(),
                        false => datum.to_text(&column.ty, &style),
                    });
                    out.push(shown.collect::<Vec<_>>().join("|"));
                }
            }
            StatementResult::Command { tag } => out.push(tag),
            other => out.push(format!("{other:?}")),
        }
        session.sync().await
    };
    if let Err(error) = done.await {
        session.fail();
        out.push(format!("{}: {}", error.code(), error.message()));
        // As the server does at Sync.
        let _ = session.sync().await;
    }
    out
}

/// Random statements, some of them in blocks, beside a session that plans each anew. `parse`: by
/// the extended protocol.
async fn answers_as_planned_anew(cache: &str, parse: bool, rounds: u64) -> u64 {
    let (one, other) = (engine().await, engine().await);
    let (mut known, mut anew) = (session(&one).await, session(&other).await);
    assert_eq!(run(&mut known, TABLE).await, run(&mut anew, TABLE).await);
    run(&mut known, &format!("SET telesto.text_cache = {cache}")).await;
    run(&mut anew, "SET telesto.text_cache = off").await;
    let mut draws = 0x5EED_1234_ABCD_0001;
    let mut values = 77;
    for round in 0..rounds {
        if anew.transaction_status() == TransactionStatus::Failed && next(&mut draws, 2) == 0 {
            assert_eq!(run(&mut known, "ROLLBACK").await, run(&mut anew, "ROLLBACK").await);
        }
        // Forty statements for a while, then forty others.
        let statement = (round / 400) * 40 + next(&mut draws, 40) as u64;
        let mut draw = Draw { state: (statement + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15), values };
        draw.below(1);
        let sql = draw.statement();
        values = draw.values;
        let (left, right) = if parse {
            (prepared(&mut known, &sql).await, prepared(&mut anew, &sql).await)
        } else {
            (run(&mut known, &sql).await, run(&mut anew, &sql).await)
        };
        assert_eq!(left, right, "round {round}: {sql}");
    }
    let state = "SELECT * FROM public.t ORDER BY k";
    for session in [&mut known, &mut anew] {
        run(session, "ROLLBACK; SET timezone = 'UTC'").await;
    }
    assert_eq!(run(&mut known, state).await, run(&mut anew, state).await);
    assert_eq!(other.texts.hits(), 0, "one that is told not to uses nothing");
    one.texts.hits()
}

#[tokio::test]
async fn texts_that_are_known_answer_as_those_that_are_planned() {
    let hits = answers_as_planned_anew("on", false, 4000).await;
    assert!(hits > 500, "only {hits} texts were known");
}

#[tokio::test]
async fn texts_that_are_known_at_once_answer_as_those_that_are_planned() {
    let hits = answers_as_planned_anew("eager", false, 2000).await;
    assert!(hits > 300, "only {hits} texts were known");
}

#[tokio::test]
async fn texts_that_are_prepared_answer_as_those_that_are_planned() {
    let hits = answers_as_planned_anew("on", true, 3000).await;
    assert!(hits > 300, "only {hits} texts were known");
}

/// Whether the session would run this as a known text.
fn finds(session: &Session, sql: &str) -> bool {
    match session.find_text(sql) {
        Some((basis, Found::Known(variant, cut))) => {
            parameters(sql, &cut, &variant.places, &variant.types, &basis.style).is_some()
        }
        _ => false,
    }
}

#[tokio::test]
async fn a_text_is_known_from_its_third_time_on() {
    let engine = engine().await;
    let mut a = session(&engine).await;
    run(
        &mut a,
        "CREATE TABLE t (k int PRIMARY KEY, v text); INSERT INTO t VALUES (1, 'a'), (2, 'b')",
    )
    .await;
    for (key, known) in [(1, false), (2, false), (1, true), (7, true)] {
        let sql = format!("SELECT v FROM t WHERE k = {key}");
        if known {
            assert!(finds(&a, &sql), "{sql}");
        }
        let rows = match key {
            1 => vec!["a", "SELECT 1"],
            2 => vec!["b", "SELECT 1"],
            _ => vec!["SELECT 0"],
        };
        assert_eq!(run(&mut a, &sql).await, rows);
    }
    // A pattern is a part of the statement.
    for _ in 0..3 {
        run(&mut a, "SELECT count(*), max(v) FROM t WHERE v LIKE 'a%'").await;
    }
    assert!(finds(&a, "SELECT count(*), max(v) FROM t WHERE v LIKE 'a%'"));
    assert!(!finds(&a, "SELECT count(*), max(v) FROM t WHERE v LIKE 'b%'"));
    // Not by key: its constants may be others all the same.
    for n in 0..3 {
        run(&mut a, &format!("SELECT count(*), max(v) FROM t WHERE v > '{n}'")).await;
    }
    assert!(finds(&a, "SELECT count(*), max(v) FROM t WHERE v > 'z'"));
    // No statement that texts are known for.
    for _ in 0..3 {
        run(&mut a, "SHOW timezone").await;
    }
    assert!(!finds(&a, "SHOW timezone"));
}

#[tokio::test]
async fn what_one_session_has_sent_all_know() {
    let engine = engine().await;
    let (mut a, mut b) = (session(&engine).await, session(&engine).await);
    run(
        &mut a,
        "CREATE TABLE t (k int PRIMARY KEY, v text); INSERT INTO t VALUES (1, 'a'), (2, 'b')",
    )
    .await;
    run(&mut b, "SET application_name = 'b'; SET app.tenant = '7'").await;
    run(&mut a, "SELECT v FROM t WHERE k = 1").await;
    assert!(!finds(&b, "SELECT v FROM t WHERE k = 2"));
    run(&mut a, "SELECT v FROM t WHERE k = 1").await;
    assert!(finds(&b, "SELECT v FROM t WHERE k = 2"));
    assert_eq!(run(&mut b, "SELECT v FROM t WHERE k = 2").await, ["b", "SELECT 1"]);
    assert_eq!(engine.texts.hits(), 2);
    drop((a, b));
    let mut c = session(&engine).await;
    assert!(finds(&c, "SELECT v FROM t WHERE k = 2"), "who comes later");
    run(&mut c, "SET telesto.text_cache = off").await;
    assert!(!finds(&c, "SELECT v FROM t WHERE k = 2"), "who does not want it");
}

#[tokio::test]
async fn rights_that_are_taken_away_and_definitions_of_the_same_block_hold() {
    let engine = engine().await;
    let mut a = session(&engine).await;
    run(&mut a, "CREATE TABLE t (k int PRIMARY KEY, v int); INSERT INTO t VALUES (1, 10); CREATE ROLE r; GRANT SELECT ON t TO r").await;
    run(&mut a, "SET ROLE r").await;
    for _ in 0..3 {
        assert_eq!(run(&mut a, "SELECT v FROM t WHERE k = 1").await, ["10", "SELECT 1"]);
    }
    assert!(finds(&a, "SELECT v FROM t WHERE k = 1"));
    run(&mut a, "RESET ROLE; REVOKE SELECT ON t FROM r; SET ROLE r").await;
    let refused = run(&mut a, "SELECT v FROM t WHERE k = 1").await;
    assert_eq!(refused, ["42501: permission denied for table t"]);
    run(&mut a, "RESET ROLE").await;
    assert_eq!(run(&mut a, "BEGIN").await, ["BEGIN"]);
    run(&mut a, "ALTER TABLE t ALTER v TYPE text USING 'now ' || v").await;
    assert_eq!(run(&mut a, "SELECT v FROM t WHERE k = 1").await, ["now 10", "SELECT 1"]);
    run(&mut a, "ALTER TABLE t ALTER k TYPE text USING k::text").await;
    let refused = run(&mut a, "SELECT v FROM t WHERE k = 1").await;
    assert_eq!(refused, ["42883: operator does not exist: text = integer"]);
    assert_eq!(run(&mut a, "ROLLBACK").await, ["ROLLBACK"]);
    assert_eq!(run(&mut a, "SELECT v FROM t WHERE k = 1").await, ["10", "SELECT 1"]);
}

#[tokio::test]
async fn a_moment_named_by_a_word_is_no_value() {
    let engine = engine().await;
    let mut a = session(&engine).await;
    run(
        &mut a,
        "CREATE TABLE t (k int PRIMARY KEY, d date); INSERT INTO t VALUES (1, '2024-01-01')",
    )
    .await;
    for _ in 0..3 {
        let before = "SELECT k FROM t WHERE k = 1 AND d < '2023-01-01'";
        assert_eq!(run(&mut a, before).await, ["SELECT 0"]);
    }
    assert!(finds(&a, "SELECT k FROM t WHERE k = 1 AND d < '2023-01-01'"));
    assert_eq!(run(&mut a, "SELECT k FROM t WHERE k = 1 AND d < 'today'").await, ["1", "SELECT 1"]);
}

/// A table, and a text that is known of it.
async fn with_known_text(engine: &Arc<SqlEngine>) -> Session {
    let mut a = session(engine).await;
    run(&mut a, "CREATE TABLE t (k int PRIMARY KEY, v text); INSERT INTO t VALUES (1, 'a')").await;
    for _ in 0..2 {
        assert_eq!(run(&mut a, "SELECT v FROM t WHERE k = 1").await, ["a", "SELECT 1"]);
    }
    assert!(finds(&a, "SELECT v FROM t WHERE k = 1"));
    a
}

#[tokio::test]
async fn definitions_of_another_session_are_seen_and_the_text_is_known_again() {
    let engine = engine().await;
    let mut a = with_known_text(&engine).await;
    let mut b = session(&engine).await;
    let text = "SELECT v FROM t WHERE k = 1";
    for (definition, answer) in [
        ("ALTER TABLE t ALTER v TYPE int USING 7", vec!["7", "SELECT 1"]),
        ("ALTER TABLE t RENAME v TO w", vec!["42703: column \"v\" does not exist"]),
        ("ALTER TABLE t RENAME w TO v", vec!["7", "SELECT 1"]),
        ("DROP TABLE t", vec!["42P01: relation \"t\" does not exist"]),
        ("CREATE TABLE t (v int, k text)", vec!["42883: operator does not exist: text = integer"]),
        ("DROP TABLE t; CREATE VIEW t AS SELECT 1 AS k, 'view' AS v", vec!["view", "SELECT 1"]),
    ] {
        run(&mut b, definition).await;
        for _ in 0..3 {
            assert_eq!(run(&mut a, text).await, answer, "{definition}");
        }
    }
    let before = engine.texts.hits();
    run(&mut a, text).await;
    assert_eq!(engine.texts.hits(), before + 1, "known again, as it is written");
}

#[tokio::test]
async fn a_session_inside_of_a_block_learns_again_what_others_have_redefined() {
    let engine = engine().await;
    let mut a = with_known_text(&engine).await;
    let mut b = session(&engine).await;
    run(&mut b, "ALTER TABLE t ADD n int").await;
    for _ in 0..8 {
        let answer = run(&mut a, "BEGIN; SELECT 1").await;
        assert_eq!(answer.first().map(String::as_str), Some("BEGIN"));
        assert_eq!(run(&mut a, "SELECT v FROM t WHERE k = 1").await, ["a", "SELECT 1"]);
        run(&mut a, "COMMIT").await;
    }
    let before = engine.texts.hits();
    run(&mut a, "BEGIN").await;
    run(&mut a, "SELECT v FROM t WHERE k = 1").await;
    run(&mut a, "COMMIT").await;
    assert_eq!(engine.texts.hits(), before + 1);
}

#[tokio::test]
async fn what_one_transaction_alone_has_defined_nobody_learns() {
    let engine = engine().await;
    let mut a = with_known_text(&engine).await;
    let mut b = session(&engine).await;
    run(&mut b, "BEGIN").await;
    run(&mut b, "ALTER TABLE t ALTER v TYPE int USING 5").await;
    for _ in 0..8 {
        assert_eq!(run(&mut b, "SELECT v FROM t WHERE k = 1").await, ["5", "SELECT 1"]);
        assert_eq!(run(&mut b, "SELECT v, k FROM t WHERE k = 1").await, ["5|1", "SELECT 1"]);
    }
    assert!(!finds(&a, "SELECT v, k FROM t WHERE k = 1"));
    let before = engine.texts.hits();
    assert_eq!(run(&mut a, "SELECT v FROM t WHERE k = 1").await, ["a", "SELECT 1"]);
    assert_eq!(engine.texts.hits(), before + 1, "what was known is still");
}

#[tokio::test]
async fn rights_that_another_session_takes_away_are_gone() {
    let engine = engine().await;
    let mut admin = with_known_text(&engine).await;
    run(&mut admin, "CREATE ROLE r LOGIN; CREATE ROLE s LOGIN; GRANT SELECT ON t TO r").await;
    let of = |user: &str| SessionOptions { user: user.to_owned(), ..SessionOptions::default() };
    let mut r = engine.session(of("r")).await.expect("session");
    let mut s = engine.session(of("s")).await.expect("session");
    let text = "SELECT v FROM t WHERE k = 1";
    let refused = ["42501: permission denied for table t"];
    for _ in 0..3 {
        assert_eq!(run(&mut r, text).await, ["a", "SELECT 1"]);
        assert_eq!(prepared(&mut r, text).await, ["v text", "[]", "a"]);
        assert_eq!(run(&mut s, text).await, refused, "known of others only");
        assert_eq!(prepared(&mut s, text).await, refused);
    }
    assert!(finds(&r, text) && !finds(&s, text));
    run(&mut admin, "REVOKE SELECT ON t FROM r; GRANT SELECT ON t TO s").await;
    for _ in 0..3 {
        assert_eq!(run(&mut r, text).await, refused);
        assert_eq!(prepared(&mut r, text).await, refused);
        assert_eq!(run(&mut s, text).await, ["a", "SELECT 1"]);
    }
}

#[tokio::test]
async fn settings_that_say_what_a_text_means_are_asked() {
    let engine = engine().await;
    let mut a = session(&engine).await;
    run(
        &mut a,
        "CREATE TABLE t (k int PRIMARY KEY, m timestamptz); INSERT INTO t VALUES (1, '2024-01-01 00:00+00'); \
         CREATE SCHEMA other; CREATE TABLE other.t (k text PRIMARY KEY, m text); INSERT INTO other.t VALUES ('1', 'other')",
    )
    .await;
    let text = "SELECT k FROM t WHERE m = '2024-01-01 00:00'";
    let cast = "SELECT k FROM t WHERE m = '2024-01-01 00:00'::timestamptz AND k = 1";
    let by_key = "SELECT m FROM t WHERE k = '1'";
    for _ in 0..2 {
        for (zone, there) in [("UTC", true), ("Asia/Tokyo", false), ("UTC", true)] {
            run(&mut a, &format!("SET timezone = '{zone}'")).await;
            let answer = if there { vec!["1", "SELECT 1"] } else { vec!["SELECT 0"] };
            for _ in 0..3 {
                assert_eq!(run(&mut a, text).await, answer, "{zone}");
                assert_eq!(run(&mut a, cast).await, answer, "{zone}");
            }
        }
        for (path, answer) in [("public", "2024-01-01 00:00:00+00"), ("other, public", "other")] {
            run(&mut a, &format!("SET search_path = {path}")).await;
            for _ in 0..3 {
                assert_eq!(run(&mut a, by_key).await, [answer, "SELECT 1"], "{path}");
            }
            assert!(finds(&a, by_key), "{path}");
        }
        run(&mut a, "RESET search_path").await;
    }
}

#[tokio::test]
async fn a_temporary_table_hides_the_one_a_text_is_known_of() {
    let engine = engine().await;
    let mut a = with_known_text(&engine).await;
    let mut b = session(&engine).await;
    let text = "SELECT v FROM t WHERE k = 1";
    run(&mut a, "CREATE TEMP TABLE t (k int PRIMARY KEY, v int); INSERT INTO t VALUES (1, 9)")
        .await;
    for _ in 0..3 {
        assert_eq!(run(&mut a, text).await, ["9", "SELECT 1"]);
        assert_eq!(prepared(&mut a, text).await, ["v integer", "[]", "9"]);
        assert_eq!(run(&mut b, text).await, ["a", "SELECT 1"]);
        assert_eq!(prepared(&mut b, text).await, ["v text", "[]", "a"]);
    }
    run(&mut a, "DROP TABLE pg_temp.t").await;
    assert_eq!(run(&mut a, text).await, ["a", "SELECT 1"]);
}

#[tokio::test]
async fn row_security_asks_the_settings_of_who_runs_the_shared_plan() {
    let engine = engine().await;
    let mut admin = session(&engine).await;
    run(
        &mut admin,
        "CREATE TABLE tenants (name text PRIMARY KEY); INSERT INTO tenants VALUES ('a'), ('b'); \
         CREATE TABLE t (k int PRIMARY KEY, tenant text, v text); INSERT INTO t VALUES (1, 'a', 'of a'), (2, 'b', 'of b'); \
         CREATE ROLE r LOGIN; GRANT SELECT ON tenants TO r; GRANT ALL ON t TO r; ALTER TABLE t ENABLE ROW LEVEL SECURITY; \
         CREATE POLICY own ON t USING (tenant = current_setting('app.tenant')) \
         WITH CHECK (EXISTS (SELECT 1 FROM tenants WHERE name = tenant AND name = current_setting('app.tenant')))",
    )
    .await;
    let of = |user: &str| SessionOptions { user: user.to_owned(), ..SessionOptions::default() };
    let mut a = engine.session(of("r")).await.expect("session");
    let mut b = engine.session(of("r")).await.expect("session");
    run(&mut a, "SET app.tenant = 'a'").await;
    run(&mut b, "SET app.tenant = 'b'").await;
    for round in 0..3 {
        assert_eq!(run(&mut a, "SELECT v FROM t WHERE k = 1").await, ["of a", "SELECT 1"]);
        assert_eq!(run(&mut b, "SELECT v FROM t WHERE k = 1").await, ["SELECT 0"]);
        assert_eq!(run(&mut b, "SELECT v FROM t WHERE k = 2").await, ["of b", "SELECT 1"]);
        let insert = |n: i32| format!("INSERT INTO t VALUES ({}, 'a', 'x')", 10 + n + 2 * round);
        assert_eq!(run(&mut a, &insert(0)).await, ["INSERT 0 1"]);
        let refused = run(&mut b, &insert(1)).await;
        assert!(refused[0].starts_with("42501"), "{refused:?}");
    }
    assert!(engine.texts.hits() > 5, "the plan is the same");
}

#[tokio::test]
async fn parse_of_a_known_text_gives_its_own_statement() {
    let engine = engine().await;
    let mut a = with_known_text(&engine).await;
    run(&mut a, "INSERT INTO t VALUES (2, 'b')").await;
    let text = |n: i32| format!("SELECT v AS x, 7 FROM t WHERE k = {n} /* {n} */");
    for n in [1, 2, 1] {
        let shown = if n == 1 { "a|7" } else { "b|7" };
        assert_eq!(prepared(&mut a, &text(n)).await, ["x text", "?column? integer", "[]", shown]);
    }
    let before = engine.texts.hits();
    let one = a.prepare(&text(2), &[]).await.expect("prepared");
    assert!(one.stands_for.is_some() && one.sql == text(2));
    a.name_statement("one", Arc::clone(&one)).expect("there is memory");
    let two = a.prepare("SELECT v FROM t WHERE k = $1", &[]).await.expect("prepared");
    assert!(two.stands_for.is_none());
    a.sync().await.expect("sync");
    // By name, and explained: as it is written.
    assert_eq!(run(&mut a, "EXECUTE one").await, ["b|7", "SELECT 1"]);
    let explained = run(&mut a, "EXPLAIN EXECUTE one").await;
    assert!(explained.iter().any(|line| line.contains("look-up on t")), "{explained:?}");
    assert!(engine.texts.hits() == before, "nothing ran as a known text");
    // With parameters of its own.
    for _ in 0..2 {
        let again = a.prepare("SELECT v FROM t WHERE k = $1", &[]).await.expect("prepared");
        assert_eq!(again.parameter_types, [SqlType::Int4]);
        let StatementResult::Rows { rows, .. } =
            a.execute(&again, vec![Datum::Int4(2)]).await.expect("runs")
        else {
            panic!("rows")
        };
        assert_eq!(rows.collect().await.expect("rows"), [vec![Datum::text("b")]]);
        a.sync().await.expect("sync");
    }
    assert_eq!(engine.texts.hits(), before + 1, "the third Parse");
    // With a type of the client's it is another text.
    let typed = a.prepare("SELECT v FROM t WHERE k = $1", &[Some(SqlType::Int8)]).await;
    assert_eq!(typed.expect("prepared").parameter_types, [SqlType::Int8]);
}

#[tokio::test]
async fn a_prepared_statement_that_stands_for_another_lives_on_after_a_definition() {
    let engine = engine().await;
    let mut a = with_known_text(&engine).await;
    let mut b = session(&engine).await;
    let text = "SELECT v FROM t WHERE k = 1";
    let rows = async |a: &mut Session, one: &Arc<Prepared>| {
        let result = a.execute(one, Vec::new()).await;
        let rows = match result {
            Ok(StatementResult::Rows { rows, .. }) => rows.collect().await,
            Ok(other) => panic!("{other:?}"),
            Err(error) => Err(error),
        };
        let rows = rows.map_err(|error| format!("{}: {}", error.code(), error.message()));
        if rows.is_err() {
            a.fail();
        }
        a.sync().await.expect("sync");
        rows
    };
    let one = a.prepare(text, &[]).await.expect("prepared");
    assert!(one.stands_for.is_some());
    a.sync().await.expect("sync");
    assert_eq!(rows(&mut a, &one).await, Ok(vec![vec![Datum::text("a")]]));
    run(&mut b, "ALTER TABLE t ADD n int; UPDATE t SET v = 'c'").await;
    for _ in 0..2 {
        assert_eq!(rows(&mut a, &one).await, Ok(vec![vec![Datum::text("c")]]));
    }
    run(&mut b, "ALTER TABLE t ALTER v TYPE int USING 1").await;
    let changed = Err("0A000: cached plan must not change result type".to_owned());
    assert_eq!(rows(&mut a, &one).await, changed);
    assert_eq!(prepared(&mut a, text).await, ["v integer", "[]", "1"]);
    run(&mut b, "DROP TABLE t").await;
    let gone = Err("42P01: relation \"t\" does not exist".to_owned());
    assert_eq!(rows(&mut a, &one).await, gone);
    assert_eq!(prepared(&mut a, text).await, ["42P01: relation \"t\" does not exist"]);
}

#[tokio::test]
async fn what_a_pipeline_did_before_a_text_that_has_gone_stale_stays() {
    let engine = engine().await;
    let mut a = with_known_text(&engine).await;
    let mut b = session(&engine).await;
    let standing = a.prepare("SELECT v FROM t WHERE k = 1", &[]).await.expect("prepared");
    assert!(standing.stands_for.is_some());
    let insert = a.prepare("INSERT INTO t (k, v) VALUES (5, 'e')", &[]).await.expect("prepared");
    a.sync().await.expect("sync");
    run(&mut b, "ALTER TABLE t ADD n int").await;
    a.execute(&insert, Vec::new()).await.expect("inserted");
    let read = a.execute(&standing, Vec::new()).await.expect("read");
    let StatementResult::Rows { rows, .. } = read else { panic!("rows") };
    assert_eq!(rows.collect().await.expect("rows"), [vec![Datum::text("a")]]);
    a.sync().await.expect("sync");
    assert_eq!(run(&mut b, "SELECT v FROM t WHERE k = 5").await, ["e", "SELECT 1"]);
}

#[tokio::test]
async fn texts_hold_no_more_than_their_share_and_the_oldest_go() {
    let env = telesto_runtime::env();
    let database = Arc::new(MemoryDatabase::new(env.clone()));
    let options = SqlOptions { memory_bytes: 16 << 20, ..SqlOptions::default() };
    let engine = SqlEngine::open(database, env, options).await.expect("open");
    let mut a = with_known_text(&engine).await;
    let share = (16 << 20) / SHARE;
    let mut most = 0;
    for n in 0..300 {
        for _ in 0..2 {
            let sql = format!("SELECT v AS column_{n} FROM t WHERE k = 1");
            assert_eq!(run(&mut a, &sql).await, ["a", "SELECT 1"]);
        }
        // Used all the time, it stays.
        assert!(finds(&a, "SELECT v FROM t WHERE k = 1"), "{n}");
        let (entries, bytes) = engine.texts.size();
        assert!(bytes <= share, "{bytes} bytes");
        most = most.max(entries);
    }
    let (entries, bytes) = engine.texts.size();
    assert!(entries == most && (50..150).contains(&entries), "{entries} texts");
    assert!(bytes > share / 4 * 3, "{bytes} bytes of {share}");
    assert!(finds(&a, "SELECT v AS column_299 FROM t WHERE k = 2"));
    assert!(!finds(&a, "SELECT v AS column_0 FROM t WHERE k = 2"));
}

#[tokio::test]
async fn a_text_whose_fixed_literals_differ_keeps_those_that_come_again() {
    let engine = engine().await;
    let mut a = with_known_text(&engine).await;
    let text = |n: i32| format!("SELECT v, {n} FROM t WHERE k = 1");
    for n in 0..40 {
        assert_eq!(run(&mut a, &text(n)).await, [format!("a|{n}"), "SELECT 1".to_owned()]);
    }
    for _ in 0..2 {
        run(&mut a, &text(77)).await;
    }
    assert!(finds(&a, &text(77)));
    let (entries, _) = engine.texts.size();
    assert_eq!(entries, 2, "one text, whatever its literals");
}

#[tokio::test]
async fn a_number_is_numeric_before_it_is_a_double() {
    let engine = engine().await;
    let mut a = session(&engine).await;
    run(&mut a, "CREATE TABLE t (k int PRIMARY KEY, f double precision)").await;
    for (k, written) in [(1, "-1.5"), (2, "-2.5"), (3, "-0.0"), (4, "-0")] {
        run(&mut a, &format!("INSERT INTO t VALUES ({k}, {written})")).await;
    }
    assert!(engine.texts.hits() >= 2);
    let shown = run(&mut a, "SELECT f FROM t WHERE k > 0 ORDER BY k").await;
    assert_eq!(shown, ["-1.5", "-2.5", "0", "0", "SELECT 4"]);
}
