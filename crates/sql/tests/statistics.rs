//! ANALYZE, what is shown of it, what it is used for, and that no answer depends on it.

#![expect(
    clippy::disallowed_methods,
    reason = "a test is an outermost layer: it starts processes, threads and tasks of its own"
)]

mod support;

use std::sync::Arc;

use telesto_common::TableId;
use telesto_sql::catalog::statistics::{ColumnStatistics, TableStatistics, Valued, type_form};
use telesto_sql::plan::everywhere::Counts;
use telesto_sql::types::TextStyle;
use telesto_sql::{ResultSink, Session, SessionOptions, SqlEngine, SqlType, StatementResult};

#[derive(Default)]
struct Collect(Vec<String>);

#[async_trait::async_trait]
impl ResultSink for Collect {
    async fn result(&mut self, result: StatementResult) -> telesto_sql::Result<()> {
        match result {
            StatementResult::Rows { columns, rows, .. } => {
                for row in rows.collect().await? {
                    let shown = row.iter().zip(columns.iter()).map(|(value, column)| {
                        match value.is_null() {
                            true => "NULL".to_owned(),
                            false => value.to_text(&column.ty, &TextStyle::default()),
                        }
                    });
                    self.0.push(shown.collect::<Vec<_>>().join("|"));
                }
            }
            StatementResult::Command { tag } => self.0.push(tag),
            _ => {}
        }
        Ok(())
    }
}

async fn run(session: &mut Session, sql: &str) -> String {
    let mut sink = Collect::default();
    match session.execute_simple(sql, &mut sink).await {
        Ok(()) => sink.0.join("\n"),
        Err(error) => format!("!{} {}", error.code(), error.message()),
    }
}

async fn opened() -> (Arc<SqlEngine>, Session) {
    let engine = support::engine().await.expect("opens");
    let session = engine.session(SessionOptions::default()).await.expect("a session");
    (engine, session)
}

async fn check(session: &mut Session, cases: &[(&str, &str)]) {
    for (sql, expected) in cases {
        assert_eq!(run(session, sql).await, *expected, "{sql}");
    }
}

const STATS: &str = "select attname, null_frac, avg_width, n_distinct, most_common_vals, most_common_freqs, \
    histogram_bounds, correlation from pg_stats where tablename = 't' order by attname";

#[tokio::test]
async fn pg_stats_shows_what_postgres_15_shows() {
    let (_, mut s) = opened().await;
    check(
        &mut s,
        &[
            ("create table t (a int primary key, b int, c text, d numeric)", "CREATE TABLE"),
            (
                "insert into t select i, case when i % 4 = 0 then null else i % 4 end, 'v' || i % 3, 1.5
                 from generate_series(1, 12) i",
                "INSERT 0 12",
            ),
            (STATS, ""),
            ("select reltuples, relpages from pg_class where relname = 't'", "-1|0"),
            ("analyze t", "ANALYZE"),
            (
                STATS,
                "a|0|4|-1|NULL|NULL|{1,2,3,4,5,6,7,8,9,10,11,12}|1\n\
                 b|0.25|4|-0.25|{1,2,3}|{0.25,0.25,0.25}|NULL|0.6\n\
                 c|0|3|-0.25|{v0,v1,v2}|{0.33333334,0.33333334,0.33333334}|NULL|0.2027972\n\
                 d|0|7|1|{1.5}|{1}|NULL|1",
            ),
            ("select reltuples, relpages from pg_class where relname = 't'", "12|1"),
            (
                "select n_live_tup, n_mod_since_analyze, last_analyze is not null, last_autoanalyze, analyze_count
                 from pg_stat_user_tables where relname = 't'",
                "12|0|t|NULL|1",
            ),
            ("delete from t where a > 10", "DELETE 2"),
            (
                "select n_live_tup, n_mod_since_analyze from pg_stat_user_tables where relname = 't'",
                "10|2",
            ),
        ],
    )
    .await;
}

#[tokio::test]
async fn statistics_live_and_die_with_what_they_are_of() {
    let (_, mut s) = opened().await;
    let columns = "select attname from pg_stats where tablename = 't' order by 1";
    let rows = "select reltuples from pg_class where relname = 't'";
    check(
        &mut s,
        &[
            ("create table t (a int primary key, b int, c varchar(10), j jsonb)", "CREATE TABLE"),
            ("insert into t select i, i, i, '{}' from generate_series(1, 20) i", "INSERT 0 20"),
            // Nothing is kept of what is rolled back, and a block sees its own.
            ("begin", "BEGIN"),
            ("analyze t", "ANALYZE"),
            (rows, "20"),
            ("rollback", "ROLLBACK"),
            (rows, "-1"),
            ("analyze t (a, c)", "ANALYZE"),
            (columns, "a\nc"),
            ("analyze t (b)", "ANALYZE"),
            (columns, "a\nb\nc"),
            ("analyze", "ANALYZE"),
            (columns, "a\nb\nc\nj"),
            ("alter table t rename column b to bb", "ALTER TABLE"),
            ("alter table t alter column c type varchar(20)", "ALTER TABLE"),
            (columns, "a\nbb\nj"),
            ("alter table t drop column bb", "ALTER TABLE"),
            (columns, "a\nj"),
            ("vacuum (analyze) t", "VACUUM"),
            (columns, "a\nc\nj"),
            ("truncate t", "TRUNCATE TABLE"),
            (rows, "-1"),
            (columns, ""),
            ("drop table t", "DROP TABLE"),
            ("create table t (a int)", "CREATE TABLE"),
            (columns, ""),
            ("analyze t (nix)", "!42703 column \"nix\" of relation \"t\" does not exist"),
            ("analyze t (a, a)", "!42701 column \"a\" of relation \"t\" appears more than once"),
            ("analyze nix", "!42P01 relation \"nix\" does not exist"),
            ("analyze t (", "!42601 syntax error at end of input"),
            ("analyze pg_class", "ANALYZE"),
            ("create temp table tt (a int)", "CREATE TABLE"),
            ("analyze tt", "ANALYZE"),
            ("create view v as select 1 as one", "CREATE VIEW"),
            ("analyze v, t", "ANALYZE"),
            ("select reltuples from pg_class where relname = 't'", "0"),
            ("begin", "BEGIN"),
            ("vacuum analyze t", "!25001 VACUUM cannot run inside a transaction block"),
            ("rollback", "ROLLBACK"),
        ],
    )
    .await;
}

#[tokio::test]
async fn only_the_owner_analyzes_and_readers_see_what_they_may_read() {
    let (_, mut s) = opened().await;
    check(
        &mut s,
        &[
            ("create table t (a int, b int)", "CREATE TABLE"),
            ("insert into t values (1, 2)", "INSERT 0 1"),
            ("create role other", "CREATE ROLE"),
            ("grant select (a) on t to other", "GRANT"),
            ("set role other", "SET"),
            ("analyze t", "ANALYZE"),
            ("select count(*) from pg_stats", "0"),
            ("reset role", "RESET"),
            ("select reltuples from pg_class where relname = 't'", "-1"),
            ("analyze t", "ANALYZE"),
            ("select count(*) from pg_stats", "2"),
            ("set role other", "SET"),
            ("select attname from pg_stats", "a"),
            ("reset role", "RESET"),
            ("alter table t enable row level security", "ALTER TABLE"),
            ("set role other", "SET"),
            ("select attname from pg_stats", ""),
            ("reset role", "RESET"),
            ("select count(*) from pg_stats", "2"),
        ],
    )
    .await;
}

#[tokio::test]
async fn large_tables_are_sampled_from_all_of_their_keys() {
    let (_, mut s) = opened().await;
    // Two clusters of keys, far from each other, and far from being of one size.
    let fill =
        "insert into t select case when i <= 52500 then i else 1000000000000 + i * 1000 end, i % 7
        from generate_series(1, 70000) i";
    check(
        &mut s,
        &[
            ("create table t (a bigint primary key, b int)", "CREATE TABLE"),
            (fill, "INSERT 0 70000"),
            ("analyze t", "ANALYZE"),
        ],
    )
    .await;
    let rows = run(&mut s, "select reltuples from pg_class where relname = 't'").await;
    let rows: f64 = rows.parse().expect("a number");
    assert!((63_000.0..77_000.0).contains(&rows), "{rows}");
    let found = run(
        &mut s,
        "select n_distinct, histogram_bounds from pg_stats where tablename = 't' and attname = 'a'",
    )
    .await;
    let (distinct, bounds) = found.split_once('|').expect("two columns");
    assert_eq!(distinct, "-1");
    let bounds: Vec<i64> =
        bounds.trim_matches(['{', '}']).split(',').map(|b| b.parse().expect("a number")).collect();
    let behind = bounds.iter().filter(|bound| **bound > 1_000_000).count();
    assert!((15..=35).contains(&behind), "{behind} of {} bounds", bounds.len());
    assert!(bounds[100] > 1_000_000_000_000 + 69_000_000, "{}", bounds[100]);
    assert_eq!(
        run(&mut s, "select n_distinct from pg_stats where tablename = 't' and attname = 'b'")
            .await,
        "7"
    );
}

#[tokio::test]
async fn rows_of_long_groups_are_counted_behind_what_is_read_of_them() {
    let (_, mut s) = opened().await;
    // 50,000 are counted, and five groups of 3,000 lie behind them: a block ends within its first
    // group.
    let fill = "insert into t select i / 3000, i % 3000 from generate_series(0, 65999) i";
    check(
        &mut s,
        &[
            ("create table t (a bigint, b bigint, primary key (a, b))", "CREATE TABLE"),
            (fill, "INSERT 0 66000"),
            ("analyze t", "ANALYZE"),
        ],
    )
    .await;
    let rows = run(&mut s, "select reltuples from pg_class where relname = 't'").await;
    let rows: f64 = rows.parse().expect("a number");
    assert!((62_000.0..70_000.0).contains(&rows), "{rows}");
}

#[tokio::test]
async fn plans_follow_what_is_known() {
    let (engine, mut s) = opened().await;
    let setup = "create table big (id int primary key, kind int, rare int, note text);
        create index big_kind on big (kind); create index big_rare on big (rare);
        insert into big select i, i % 2, i % 5000, 'n' || i from generate_series(1, 20000) i;
        create index big_note on big (note);
        create table few (id int primary key, big int); create index few_big on few (big);
        insert into few select i, i * 100 from generate_series(1, 40) i";
    run(&mut s, setup).await;
    let equal = "explain select * from big where kind = 1 and rare = 7";
    assert!(
        run(&mut s, equal).await.contains("by big_kind, filtered"),
        "without statistics: the first"
    );
    let before = run(&mut s, "explain select note from big where kind = 1").await;
    assert!(
        before.contains("Key path: range on big by big_kind") && !before.contains("rows="),
        "{before}"
    );
    run(&mut s, "analyze").await;
    let plan = run(&mut s, equal).await;
    assert!(plan.contains("by big_rare, filtered (rows=2)"), "{plan}");
    // Half of the table: a scan.
    let plan = run(&mut s, "explain select note from big where kind = 1").await;
    assert!(plan.contains("Seq Scan on big (rows=10000)"), "{plan}");
    let plan = run(&mut s, "explain (costs off) select note from big where kind = 1").await;
    assert!(plan.contains("Seq Scan on big") && !plan.contains("rows="), "{plan}");
    let plan = run(&mut s, "explain (format json) select * from big where rare = 7").await;
    assert!(plan.contains("\"Plan Rows\": 4"), "{plan}");
    let plan = run(&mut s, "explain select * from big where id between 100 and 299").await;
    // As PostgreSQL 15 expects it.
    assert!(plan.contains("(rows=200)"), "{plan}");
    let plan = run(&mut s, "explain select * from big where id > 19000 limit 5000").await;
    assert!(plan.contains("(rows=1000)"), "{plan}");
    let plan = run(&mut s, "explain select * from big where note like 'n1999%'").await;
    let rows = plan.rsplit_once("(rows=").and_then(|(_, rest)| rest.split_once(')'));
    let rows: u64 = rows.and_then(|(rows, _)| rows.parse().ok()).expect("an estimate");
    // There are 11; PostgreSQL 15 expects 2.
    assert!(rows <= 50, "{plan}");
    // The side that is built is the smaller one, and a plan of the key path begins with it.
    let join = "explain select count(*) from big b join few f on f.big = b.id where b.kind = 1 and f.id < 30";
    let plan = run(&mut s, join).await;
    assert!(plan.contains("Key path: range on few by few_pkey"), "{plan}");
    // A prepared plan goes on to hold when statistics are others.
    run(&mut s, "prepare p as select count(*) from big where kind = $1").await;
    assert_eq!(run(&mut s, "execute p (1)").await, "10000");
    run(&mut s, "delete from big where id > 10; analyze big").await;
    assert_eq!(run(&mut s, "execute p (1)").await, "5");
    drop(engine);
}

#[tokio::test]
async fn an_index_is_walked_for_the_first_rows_where_few_of_its_rows_are_refused() {
    let (engine, mut s) = opened().await;
    let setup = "create table author (id int primary key, name text, kind int);
        create index author_name on author (name); create index author_kind on author (kind);
        create table book (id int primary key, author int, title text, pages int);
        create index book_title on book (title); create index book_author on book (author);
        insert into author select i, 'A' || i, i % 250 from generate_series(1, 500) i;
        insert into book select i, i % 500 + 1, 't' || (i * 7919 % 20011), i % 97 from generate_series(1, 20000) i";
    run(&mut s, setup).await;
    let from = "select b.id, b.title, a.name from book b join author a on a.id = b.author where";
    let cases = [
        ("a.name like 'A%' order by b.title limit 20", true),
        ("a.name like 'A%' order by b.title limit 5 offset 10", true),
        ("a.name like 'A%' order by b.title desc limit 20", true),
        ("a.name like 'A%' and b.pages > 10 order by b.title limit 20", true),
        // Few books: all of them are found sooner.
        ("a.kind = 7 order by b.title limit 20", false),
        ("a.name like 'A49%' order by b.title limit 2000", false),
        // Nothing ends it early.
        ("a.name like 'A%' order by b.title", false),
        ("a.name like 'A%' order by b.pages, b.id limit 20", false),
    ];
    let driver =
        |plan: &str| plan.lines().find(|line| line.contains("Key path")).map(str::to_owned);
    for (rest, _) in cases {
        let plan = run(&mut s, &format!("explain {from} {rest}")).await;
        let walked = driver(&plan).is_some_and(|line| line.contains(" on book by book_title"));
        assert!(!walked, "nothing is known: {plan}");
    }
    run(&mut s, "analyze").await;
    for (rest, walks) in cases {
        let plan = run(&mut s, &format!("explain {from} {rest}")).await;
        let walked = driver(&plan).is_some_and(|line| line.contains(" on book by book_title"));
        assert_eq!(walked, walks, "{rest}: {plan}");
        let answer = run(&mut s, &format!("{from} {rest}")).await;
        run(&mut s, "set telesto.executor = datafusion").await;
        assert_eq!(run(&mut s, &format!("{from} {rest}")).await, answer, "{rest}");
        run(&mut s, "set telesto.executor = auto").await;
    }
    let before = read_of(&mut s, "author").await;
    run(&mut s, &format!("{from} {}", cases[0].0)).await;
    let read = read_of(&mut s, "author").await.1 - before.1;
    assert!(read <= 600, "all authors were looked up: {read}");
    // Whether a row has a match at all is not known: all are looked at before, not one after the
    // other.
    let exists = "explain select b.id from book b where exists (select from author a where a.id = b.author and a.name = 'A7') order by b.title limit 5";
    let plan = run(&mut s, exists).await;
    assert!(!plan.contains("Key path"), "{plan}");
    drop(engine);
}

/// Rows of a table that statements read so far, whole and by its indexes.
async fn read_of(session: &mut Session, table: &str) -> (u64, u64) {
    let sql = format!(
        "select seq_tup_read, idx_tup_fetch from pg_stat_user_tables where relname = '{table}'"
    );
    let told = run(session, &sql).await;
    let (whole, by_index) = told.split_once('|').expect("two columns");
    (whole.parse().expect("a number"), by_index.parse().expect("a number"))
}

#[tokio::test]
async fn keys_of_joins_lead_to_the_rows_of_large_tables() {
    let (engine, mut s) = opened().await;
    let setup = "create table big (id int primary key, c int, d int, e int, v int);
        create index big_cd on big (c, d); create index big_e on big (e);
        insert into big select i, i % 700, i % 300, i / 3, i from generate_series(1, 60000) i;
        create table pairs (id int primary key, c int, d bigint, e int);
        insert into pairs select i, i * 7 % 700, i * 7 % 300, null from generate_series(1, 40) i;
        insert into pairs select i, null, 3, i * 4 from generate_series(41, 1500) i;
        create table land (id int primary key, part int);
        insert into land select i, i % 5 from generate_series(1, 25) i;
        create table maker (id int primary key, land int);
        insert into maker select i, i % 25 + 1 from generate_series(1, 1000) i;
        create table buyer (id int primary key, land int, maker int);
        create index buyer_land on buyer (land);
        insert into buyer select i, i % 25 + 1, i % 1000 + 1 from generate_series(1, 30000) i;
        analyze; set telesto.executor = datafusion";
    run(&mut s, setup).await;
    // (query, its answer, the table whose rows are looked up, rows of it at most)
    let cases = [
        // Both columns together: each of the 40 pairs has a few rows, not all of one with all of
        // the other.
        (
            "select count(*), sum(b.v) from pairs p join big b on b.c = p.c and b.d = p.d",
            "big",
            1300,
        ),
        (
            "select count(*) from pairs p where p.id <= 8 and (p.c, p.d) in (select c, d from big)",
            "big",
            1300,
        ),
        (
            "select count(*), sum(t) from pairs p left join (select c, d, sum(v) as t from big group by c, d) b on b.c = p.c and b.d = p.d where p.id <= 40",
            "big",
            1300,
        ),
        // More than a thousand values.
        ("select count(*), sum(b.v) from pairs p join big b on b.e = p.e", "big", 9000),
        // Nothing that is written leads from lands to buyers.
        (
            "select count(*) from buyer b, maker m, land l where b.maker = m.id and b.land = m.land and m.land = l.id and l.part = 3 and l.id < 9",
            "buyer",
            3000,
        ),
    ];
    for (query, table, most) in cases {
        let before = read_of(&mut s, table).await;
        let by_keys = run(&mut s, query).await;
        let after = read_of(&mut s, table).await;
        assert_eq!(after.0, before.0, "read whole: {query}");
        let fetched = after.1 - before.1;
        assert!(fetched > 0 && fetched <= most, "{fetched} rows: {query}");
        // The same without an index that leads anywhere.
        let plain =
            query.replace("b.c = p.c", "b.c + 0 = p.c").replace("b.d = p.d", "b.d + 0 = p.d");
        let plain = plain
            .replace("b.e = p.e", "b.e + 0 = p.e")
            .replace("b.land = m.land", "b.land + 0 = m.land");
        let plain = plain.replace("(select c, d from big)", "(select c + 0, d + 0 from big)");
        assert_ne!(plain, query);
        let (whole, _) = read_of(&mut s, table).await;
        assert_eq!(run(&mut s, &plain).await, by_keys, "{query}");
        assert!(read_of(&mut s, table).await.0 > whole, "not read whole: {plain}");
    }
    drop(engine);
}

#[tokio::test]
async fn pairs_of_a_join_go_with_conditions_on_further_columns() {
    let (engine, mut s) = opened().await;
    let setup = "create table l3 (a int, b int, c int, q int, primary key (a, b, c));
        insert into l3 select x % 500, x / 500, y, 1 from generate_series(0, 9999) x, generate_series(1, 3) y;
        create table l4 (id int primary key, a int, b int, c int, q int); create index l4_abc on l4 (a, b, c);
        insert into l4 select row_number() over (), * from l3;
        create table k4 (id int primary key, a int, b int);
        insert into k4 select x, (x * 37) % 500, x % 20 from generate_series(1, 97) x;
        set telesto.executor = datafusion; select count(*) from l3; select count(*) from l4";
    run(&mut s, setup).await;
    // Without statistics and with them: 97 pairs, not 97 values of the one with twenty of the
    // other.
    for known in [false, true] {
        if known {
            run(&mut s, "analyze").await;
        }
        for (table, condition, most) in [
            ("l3", "true", 291),
            ("l3", "c = 2", 97),
            ("l3", "c >= 2", 194),
            ("l4", "c = 2", 97),
            ("l4", "c > 2 and q = 1", 97),
            ("l4", "c in (1, 3)", 291),
        ] {
            let query = format!(
                "select count(*), sum(q) from k4 join {table} using (a, b) where {condition}"
            );
            let before = read_of(&mut s, table).await;
            let answer = run(&mut s, &query).await;
            let after = read_of(&mut s, table).await;
            assert_eq!(after.0, before.0, "read whole: {query}");
            assert!(after.1 - before.1 <= most, "{} rows: {query}", after.1 - before.1);
            let plain = query.replace("using (a, b)", "on t.a + 0 = k4.a and t.b + 0 = k4.b");
            let plain = plain.replace(&format!("join {table}"), &format!("join {table} t"));
            assert_eq!(run(&mut s, &plain).await, answer, "{query}");
        }
    }
    drop(engine);
}

#[tokio::test]
async fn the_background_looks_at_what_has_changed_enough() {
    let (engine, mut s) = opened().await;
    let rows = "select reltuples from pg_class where relname = 't'";
    let none = Counts::default();
    run(&mut s, "create table t (a int primary key); insert into t select generate_series(1, 50)")
        .await;
    engine.refresh_statistics(&none).await.expect("a look");
    assert_eq!(run(&mut s, rows).await, "-1", "50 rows are not more than 50");
    run(&mut s, "insert into t values (51)").await;
    engine.refresh_statistics(&none).await.expect("a look");
    assert_eq!(run(&mut s, rows).await, "51");
    let seen = "select autoanalyze_count, last_autoanalyze is not null, n_mod_since_analyze from pg_stat_user_tables where relname = 't'";
    assert_eq!(run(&mut s, seen).await, "1|t|0");
    run(&mut s, "update t set a = a + 1000").await;
    engine.refresh_statistics(&none).await.expect("a look");
    assert_eq!(run(&mut s, seen).await, "1|t|51", "51 are not more than 50 + 10 % of 51");
    run(&mut s, "delete from t where a < 1010").await;
    engine.refresh_statistics(&none).await.expect("a look");
    assert_eq!(run(&mut s, rows).await, "42");
    run(&mut s, "drop table t").await;
    engine.refresh_statistics(&none).await.expect("a look");
}

/// A generator of numbers, the same each time.
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % bound
    }
}

#[tokio::test]
async fn index_is_advised_for_what_was_read_whole_and_no_longer_once_it_is_there() {
    let (_, mut s) = opened().await;
    let advice = "select table_name, columns, scans, rows_read, rows_wanted, definition from telesto_index_advice";
    check(
        &mut s,
        &[
            ("create table \"T t\" (id int primary key, a int, b int, c text)", "CREATE TABLE"),
            ("insert into \"T t\" select i, i % 500, i, 'x' || i from generate_series(1, 4000) i", "INSERT 0 4000"),
            // A condition on the key, none at all, and one that a small part fulfils not.
            ("select count(*) from \"T t\" where id = 7", "1"),
            ("select count(*) from \"T t\"", "4000"),
            (advice, ""),
            ("select sum(b) from \"T t\" where a = 7", "14056"),
            (
                advice,
                "T t|{a}|1|4000|NULL|CREATE INDEX CONCURRENTLY ON public.\"T t\" (a)",
            ),
            // A change by the key path asks too, and counts for the same columns.
            ("update \"T t\" set b = b where a = 7", "UPDATE 8"),
            ("analyze \"T t\"", "ANALYZE"),
            (
                advice,
                "T t|{a}|2|8000|8|CREATE INDEX CONCURRENTLY ON public.\"T t\" (a)",
            ),
            ("select count(*) from \"T t\" where a = 8 and b > 3000", "2"),
            (
                advice,
                "T t|{a,b}|3|12000|2.6666666666666665|CREATE INDEX CONCURRENTLY ON public.\"T t\" (a, b)",
            ),
            (
                "select q from telesto_index_advice, unnest(queries) q order by q",
                "select count(*) from \"T t\" where a = $1 and b > $2\n\
                 select sum(b) from \"T t\" where a = $1\n\
                 update \"T t\" set b = b where a = $1",
            ),
            // One that nearly all rows fulfil needs none.
            ("select count(*) from \"T t\" where c >= 'x'", "4000"),
            ("select count(*) from telesto_index_advice", "1"),
        ],
    )
    .await;
    let definition = run(&mut s, "select definition from telesto_index_advice").await;
    assert_eq!(run(&mut s, &definition).await, "CREATE INDEX");
    check(&mut s, &[(advice, ""), ("drop table \"T t\"", "DROP TABLE")]).await;
}

#[tokio::test]
async fn conflicts_and_failures_are_counted_for_their_statements() {
    let (engine, mut s) = opened().await;
    let mut other = engine.session(SessionOptions::default()).await.expect("a session");
    check(
        &mut s,
        &[
            ("create table t (a int primary key, n int)", "CREATE TABLE"),
            ("insert into t values (1, 0)", "INSERT 0 1"),
            ("select 1 / (n - n) from t", "!22012 division by zero"),
            ("set default_transaction_isolation = 'serializable'", "SET"),
            ("begin", "BEGIN"),
            ("select n from t where a = 1", "0"),
        ],
    )
    .await;
    assert_eq!(run(&mut other, "update t set n = 5 where a = 1").await, "UPDATE 1");
    assert_eq!(run(&mut s, "update t set n = 6 where a = 1").await, "UPDATE 1");
    assert!(run(&mut s, "commit").await.starts_with("!40001"));
    let counted = "select query, failures, conflicts from pg_stat_statements where failures + conflicts > 0 order by query";
    check(
        &mut s,
        &[
            // What a commit meets is its last statement's.
            (
                counted,
                "commit|1|0\nselect $1 / (n - n) from t|1|0\nupdate t set n = $1 where a = $2|0|2",
            ),
        ],
    )
    .await;
}

#[tokio::test]
async fn statement_shows_how_it_was_executed_of_late() {
    let (_, mut s) = opened().await;
    let plan =
        "select plan from pg_stat_statements where query like 'select n from t where n = $1%'";
    let grouped = "select plan from pg_stat_statements where query like 'select n, count%'";
    check(
        &mut s,
        &[
            ("create table t (a int primary key, n int)", "CREATE TABLE"),
            ("insert into t select i, i from generate_series(1, 20000) i", "INSERT 0 20000"),
            ("select n from t where n = 5", "5"),
        ],
    )
    .await;
    let before = run(&mut s, plan).await;
    assert!(before.contains("Seq Scan on t"), "{before}");
    run(&mut s, "create index t_n on t (n)").await;
    for _ in 0..2 {
        run(&mut s, "select n from t where n = 5").await;
    }
    let after = run(&mut s, plan).await;
    assert!(after.contains("t_n"), "{after}");
    run(&mut s, "select n, count(*) from t group by n having count(*) > 1").await;
    let shown = run(&mut s, grouped).await;
    assert!(shown.contains("AggregateExec"), "{shown}");
}

#[tokio::test]
async fn what_is_active_is_sampled_and_idle_sessions_are_not() {
    let (engine, mut s) = opened().await;
    let mut busy = engine.session(SessionOptions::default()).await.expect("a session");
    busy.set_backend_pid(7);
    s.set_backend_pid(8);
    let sleeping = tokio::spawn(async move { run(&mut busy, "select pg_sleep(1)").await });
    let samples = "select state, query, weight from telesto_activity_samples";
    let mut told = String::new();
    for _ in 0..200 {
        engine.look_around();
        told = run(&mut s, samples).await;
        if told.contains("pg_sleep") {
            break;
        }
        tokio::time::sleep(std::time::Duration::from_millis(5)).await;
    }
    assert_eq!(told.lines().next(), Some("active|select pg_sleep(1)|1"), "{told}");
    sleeping.await.expect("it ends");
    let before = run(&mut s, "select count(*) from telesto_activity_samples").await;
    engine.look_around();
    assert_eq!(run(&mut s, "select count(*) from telesto_activity_samples").await, before);
}

fn condition(random: &mut Numbers, alias: &str) -> String {
    let column = ["a", "b", "c"][random.below(3) as usize];
    let value = random.below(60);
    match random.below(8) {
        0 => format!("{alias}.{column} = {value}"),
        1 => format!("{alias}.{column} < {value}"),
        2 => format!("{alias}.{column} >= {value}"),
        3 => format!("{alias}.{column} between {value} and {}", value + random.below(20)),
        4 => format!("{alias}.{column} in ({value}, {}, {})", random.below(60), random.below(60)),
        5 => format!("{alias}.{column} is {}null", if random.below(2) == 0 { "" } else { "not " }),
        6 => format!("{alias}.t like 'v{}%'", random.below(6)),
        _ => format!("({alias}.b <> {value} or {alias}.t = 'v{}')", random.below(60)),
    }
}

fn query(random: &mut Numbers) -> String {
    let mut conditions = vec![condition(random, "x")];
    if random.below(2) == 0 {
        conditions.push(condition(random, "x"));
    }
    if random.below(3) == 0 {
        return format!(
            "select x.a, x.b, x.c, x.t from r x where {} order by 1, 2, 3, 4",
            conditions.join(" and ")
        );
    }
    let (left, right) = [("b", "a"), ("a", "b"), ("c", "b"), ("b", "c")][random.below(4) as usize];
    let kind = ["join", "left join"][random.below(2) as usize];
    if kind == "join" && random.below(2) == 0 {
        conditions.push(condition(random, "y"));
    }
    let third = if random.below(3) == 0 { " join r z on z.a = y.b" } else { "" };
    format!(
        "select x.a, x.b, y.a, y.c{} from r x {kind} q y on y.{right} = x.{left}{third} where {} order by 1, 2, 3, 4{}",
        if third.is_empty() { "" } else { ", z.a" },
        conditions.join(" and "),
        if third.is_empty() { "" } else { ", 5" },
    )
}

/// Statistics that are as wrong as can be said.
fn wrong(random: &mut Numbers, storage: u32) -> TableStatistics {
    let rows = [0.0, 1.0, 1e3, 1e12, f64::NAN, f64::INFINITY, -5.0][random.below(7) as usize];
    let number =
        |random: &mut Numbers| [0.0, -1.0, -3.0, 1.0, 1e9, f32::NAN, 0.5][random.below(7) as usize];
    let ints = type_form(&SqlType::Int4).expect("a form");
    let mut columns = Vec::new();
    for id in 1..=4 {
        let valued = |random: &mut Numbers| {
            let value = random.below(60) as i32;
            Valued {
                value: value.to_le_bytes().to_vec(),
                key: vec![random.below(256) as u8; random.below(6) as usize],
            }
        };
        let common = (0..random.below(5)).map(|_| (valued(random), number(random))).collect();
        let bounds = (0..random.below(6)).map(|_| valued(random)).collect();
        columns.push(ColumnStatistics {
            id,
            ty: if id == 4 { type_form(&SqlType::Text).expect("a form") } else { ints.clone() },
            null_fraction: number(random),
            width: -1,
            distinct: number(random),
            common,
            bounds,
            correlation: Some(number(random)),
        });
    }
    TableStatistics { storage, rows, columns, ..TableStatistics::default() }
}

#[tokio::test]
async fn answers_do_not_depend_on_statistics() {
    let seed = std::env::var("TELESTO_SEED").ok().and_then(|s| s.parse().ok()).unwrap_or(7);
    let mut random = Numbers(seed);
    let (engine, mut s) = opened().await;
    let setup = "create table r (a int primary key, b int, c int, t text);
        create index r_b on r (b); create index r_cb on r (c, b); create index r_t on r (t);
        create table q (a int primary key, b int, c int, t text);
        create index q_b on q (b); create index q_c on q (c desc);
        insert into r select i, case when i % 5 = 0 then null else i % 40 end, i % 3, 'v' || i % 50 from generate_series(1, 200) i;
        insert into q select i, i % 60, case when i % 7 = 0 then null else i % 11 end, 'v' || i from generate_series(1, 90) i";
    run(&mut s, setup).await;
    let queries: Vec<String> = (0..40).map(|_| query(&mut random)).collect();
    let mut expected = Vec::new();
    for query in &queries {
        let answer = run(&mut s, query).await;
        assert!(!answer.starts_with('!'), "{query}: {answer}");
        expected.push(answer);
    }
    let ids =
        run(&mut s, "select oid from pg_class where relname in ('r', 'q') order by relname").await;
    let ids: Vec<u32> = ids.lines().map(|id| id.parse().expect("an oid")).collect();
    for round in 0..6 {
        match round {
            0 => drop(run(&mut s, "analyze").await),
            _ => {
                for id in &ids {
                    let record = wrong(&mut random, *id);
                    engine.statistics().plant(TableId(*id), record);
                }
            }
        }
        // Plans are kept by settings: others make them anew.
        for executor in ["auto", "datafusion"] {
            run(&mut s, &format!("set telesto.executor = '{executor}'")).await;
            for (query, expected) in queries.iter().zip(&expected) {
                assert_eq!(
                    run(&mut s, query).await,
                    *expected,
                    "round {round}, {executor}, seed {seed}: {query}"
                );
            }
            run(&mut s, &format!("explain {}", queries[round])).await;
        }
        run(&mut s, "reset telesto.executor").await;
        let update = format!("update r set c = c where {}", condition(&mut random, "r"));
        let counted = update.replace("update r set c = c", "select count(*) from r");
        let rows = run(&mut s, &counted).await;
        assert_eq!(
            run(&mut s, &update).await,
            format!("UPDATE {rows}"),
            "round {round}, seed {seed}: {update}"
        );
    }
}
