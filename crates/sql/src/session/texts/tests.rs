//! Texts that come again mean what they meant: beside a session that plans each anew.

use crate::session::tests::{engine, run, session};

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

const NUMBERS: [&str; 16] = [
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
const STRINGS: [&str; 20] = [
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
];
const OTHERS: [&str; 7] =
    ["NULL", "true", "1 + 1", "'1'::int", "date '2024-01-01'", "1e400", "'infinity'"];

impl Draw {
    fn below(&mut self, bound: usize) -> usize {
        next(&mut self.state, bound)
    }

    fn of<'a>(&mut self, all: &[&'a str]) -> &'a str {
        all[self.below(all.len())]
    }

    /// How it is written belongs to the statement, what it is does not.
    fn literal(&mut self) -> &'static str {
        let all: &[&'static str] = match self.below(10) {
            0..=3 => &NUMBERS,
            4..=8 => &STRINGS,
            _ => &OTHERS,
        };
        all[next(&mut self.values, all.len())]
    }

    fn column(&mut self) -> &'static str {
        self.of(&["k", "s", "b", "n", "f", "r", "t", "v", "c", "d", "ts", "tz", "bo", "u"])
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
        match self.below(20) {
            0..=8 => {
                let condition = self.condition();
                format!("SELECT k, {column} FROM t WHERE {condition} ORDER BY 1")
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
     v varchar(4), c char(4), d date, ts timestamp, tz timestamptz, bo bool, u uuid); CREATE INDEX ON t (s); CREATE INDEX ON t (t); \
     INSERT INTO t VALUES (1, 1, 1, 1.5, 0.1, 0.1, 'x', 'ab', 'ab', '2024-02-29', '2024-01-01 10:00', '2024-01-01 10:00+02', true, \
     '00000000-0000-0000-0000-000000000001'), (2, 2, 3000000000, 2, 1.5, 1.5, 'it''s', 'ab', 'X', '2024-01-01', '2024-01-01', \
     '2024-01-01', false, NULL), (3, NULL, 40000, 100, 100, 100, '', '', '', NULL, NULL, NULL, NULL, NULL), (4, 5, 5, 5, 5, 5, '5', '5', '5', \
     NULL, NULL, NULL, true, NULL); CREATE SCHEMA other; CREATE TABLE other.t (k bigint PRIMARY KEY, s text, b text, n text, f text, r text, t int, \
     v text, c text, d text, ts text, tz text, bo int, u text); INSERT INTO other.t (k, s, t) VALUES (1, '1', 7), (40000, 'x', 8)";

/// A comment keeps a text from being known.
const ANEW: &str = " /* */";

#[tokio::test]
async fn texts_that_are_known_answer_as_those_that_are_planned() {
    let (one, other) = (engine().await, engine().await);
    let (mut known, mut anew) = (session(&one).await, session(&other).await);
    assert_eq!(run(&mut known, TABLE).await, run(&mut anew, TABLE).await);
    let mut draws = 0x5EED_1234_ABCD_0001;
    let mut by_plan = 0;
    let mut values = 77;
    for round in 0..4000 {
        // Forty statements for a while, then forty others.
        let statement = (round / 400) * 40 + next(&mut draws, 40) as u64;
        let mut draw = Draw { state: (statement + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15), values };
        draw.below(1);
        let sql = draw.statement();
        values = draw.values;
        let before =
            matches!(known.texts.find(&sql, &Arc::clone(&known.settings)), Found::Known(..));
        by_plan += usize::from(before);
        let answer = run(&mut known, &sql).await;
        assert_eq!(answer, run(&mut anew, &(sql.clone() + ANEW)).await, "round {round}: {sql}");
    }
    let state = "SELECT * FROM public.t ORDER BY k";
    for session in [&mut known, &mut anew] {
        run(session, "ROLLBACK; SET timezone = 'UTC'").await;
    }
    assert_eq!(run(&mut known, state).await, run(&mut anew, state).await);
    assert!(by_plan > 300, "only {by_plan} texts were known");
}

async fn finds(session: &mut Session, sql: &str) -> bool {
    let settings = Arc::clone(&session.settings);
    matches!(session.texts.find(sql, &settings), Found::Known(..))
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
            assert!(finds(&mut a, &sql).await, "{sql}");
        }
        let rows = match key {
            1 => vec!["a", "SELECT 1"],
            2 => vec!["b", "SELECT 1"],
            _ => vec!["SELECT 0"],
        };
        assert_eq!(run(&mut a, &sql).await, rows);
    }
    // Not by key, and chosen by its constants.
    for _ in 0..3 {
        run(&mut a, "SELECT count(*), max(v) FROM t WHERE v LIKE 'a%'").await;
    }
    assert!(!finds(&mut a, "SELECT count(*), max(v) FROM t WHERE v LIKE 'a%'").await);
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
    assert!(finds(&mut a, "SELECT v FROM t WHERE k = 1").await);
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
    assert!(finds(&mut a, "SELECT k FROM t WHERE k = 1 AND d < '2023-01-01'").await);
    assert_eq!(run(&mut a, "SELECT k FROM t WHERE k = 1 AND d < 'today'").await, ["1", "SELECT 1"]);
}
