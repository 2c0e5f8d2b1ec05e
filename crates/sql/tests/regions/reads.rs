//! Reads of tables that a region does not have: they are executed where the tables are, and show
//! nothing that is older than what the session has seen.

use std::sync::Arc;
use std::time::Duration;

use futures::TryStreamExt as _;
use telesto_net::sim::Weather;
use telesto_sql::{Datum, Error, Row, Session, SqlType, StatementResult};
use telesto_testkit::World;

use super::{Sites, below, run, seeds};

pub(super) type Text = Vec<Vec<Option<String>>>;

pub(super) fn one(text: &str) -> Text {
    vec![vec![Some(text.to_owned())]]
}

async fn code(session: &mut Session, sql: &str) -> String {
    run(session, sql).await.expect_err(sql).code().0.to_owned()
}

/// Three regions and tables in them: `x` in eu and ap, `e` in eu alone, `y` everywhere; eu writes
/// them all.
pub(super) async fn placed(world: &World) -> Sites {
    let sites = Sites::running(world).await;
    for sql in [
        "CREATE TYPE mood AS ENUM ('sad', 'glad')",
        "CREATE TABLE x (id int PRIMARY KEY, n int NOT NULL, owner text)",
        "CREATE TABLE e (id int PRIMARY KEY, v text, m mood, a int[], d numeric(10, 2), t timestamptz)",
        "CREATE TABLE y (id int PRIMARY KEY, n int NOT NULL)",
        "CREATE TABLE here (id int PRIMARY KEY, n int)",
        "INSERT INTO here VALUES (1, 1)",
        "CREATE VIEW w AS SELECT x.id, e.v FROM x JOIN e USING (id)",
        "CREATE SCHEMA s",
        "CREATE TABLE s.only (id int PRIMARY KEY)",
        "CREATE ROLE o1",
        "CREATE ROLE nobody",
        "CREATE POLICY own ON x USING (owner = current_user)",
        "ALTER TABLE x ENABLE ROW LEVEL SECURITY",
        "GRANT SELECT ON x TO o1",
    ] {
        sites.must(0, sql).await;
    }
    for sql in [
        "ALTER TABLE x SET (telesto.home = 'eu')",
        "ALTER TABLE e SET (telesto.home = 'eu')",
        "ALTER TABLE y SET (telesto.home = 'eu')",
        "ALTER TABLE s.only SET (telesto.home = 'eu')",
    ] {
        sites.must(0, sql).await;
    }
    sites.quiet().await;
    sites.must(0, "ALTER TABLE x SET (telesto.regions = 'eu, ap')").await;
    sites.must(0, "ALTER TABLE e SET (telesto.regions = 'eu')").await;
    sites.must(0, "ALTER TABLE s.only SET (telesto.regions = 'eu')").await;
    sites.must(0, "ALTER TABLE here SET (telesto.regions = 'us')").await;
    sites.quiet().await;
    for sql in [
        "INSERT INTO x SELECT g, 0, 'o' || g % 2 FROM generate_series(1, 4) g",
        "INSERT INTO y SELECT g, 0 FROM generate_series(1, 4) g",
        "INSERT INTO e VALUES (1, 'one', 'glad', '{1,NULL,3}', 1.50, '2026-01-02 03:04:05+00'), (2, NULL, NULL, NULL, NULL, NULL)",
    ] {
        sites.must(1, sql).await;
    }
    sites.quiet().await;
    sites
}

async fn executed(
    session: &mut Session,
    sql: &str,
    types: &[Option<SqlType>],
    values: Vec<Datum>,
) -> Result<Vec<Row>, Error> {
    let prepared = session.prepare(sql, types).await?;
    let rows = match session.execute(&prepared, values).await? {
        StatementResult::Rows { rows, .. } => rows.collect().await?,
        _ => Vec::new(),
    };
    session.sync().await?;
    Ok(rows)
}

/// By both protocols, with parameters of many types, joins, views, cursors and EXPLAIN.
#[test]
fn table_that_is_not_here_is_read_where_it_is() {
    World::run(1, false, async |world| {
        let sites = placed(&world).await;
        let mut session = sites.session(0).await;
        let rows = run(&mut session, "SELECT * FROM e ORDER BY id").await.expect("reads");
        let first = ["1", "one", "glad", "{1,NULL,3}", "1.50", "2026-01-02 03:04:05+00"];
        assert_eq!(rows[0], first.map(|text| Some(text.to_owned())));
        assert_eq!(rows[1][1..], [None, None, None, None, None]);
        for (sql, answer) in [
            ("SELECT v FROM e WHERE id = 1", "one"),
            ("SELECT count(*) FROM x, e, y", "32"),
            ("SELECT v FROM w WHERE id = 1", "one"),
            ("WITH q AS (SELECT max(id) AS m FROM x) SELECT m FROM q", "4"),
            ("SELECT (SELECT count(*) FROM e)", "2"),
            ("SELECT pg_typeof(m)::text FROM e WHERE id = 1", "mood"),
            ("SELECT count(*) FROM generate_series(1, 30000) g, x", "120000"),
        ] {
            assert_eq!(run(&mut session, sql).await.expect(sql), one(answer), "{sql}");
        }
        // Many pieces, in order.
        let many = "SELECT g, repeat('r', 40) FROM e, generate_series(1, 30000) g WHERE e.id = 1 ORDER BY g";
        let rows = run(&mut session, many).await.expect("reads");
        let numbers: Vec<_> = rows.iter().map(|row| row[0].clone().expect("a number")).collect();
        let expected: Vec<_> = (1..=30000).map(|n: i32| n.to_string()).collect();
        assert!(numbers == expected, "{} rows", numbers.len());
        // Described before it is executed, and without asking anybody.
        sites.net.cut("us", "eu");
        let prepared = session.prepare("SELECT id, m, a FROM e WHERE id = $1 OR m = $2", &[]).await;
        let prepared = prepared.expect("planned here");
        assert_eq!(prepared.parameter_types[0], SqlType::Int4);
        let columns = prepared.columns.as_ref().expect("columns");
        assert_eq!(columns.iter().map(|c| c.name.as_str()).collect::<Vec<_>>(), ["id", "m", "a"]);
        session.sync().await.expect("ends");
        sites.net.heal();
        world.sleep(Duration::from_secs(1)).await;
        let by_key = "SELECT v FROM e WHERE id = $1";
        let rows = executed(&mut session, by_key, &[], vec![Datum::Int4(1)]).await.expect("reads");
        assert_eq!(rows, [[Datum::text("one")]]);
        let values = vec![Datum::text("glad"), Datum::text("2026-01-02 03:04:05+00")];
        let typed = "SELECT id FROM e WHERE m = $1::text::mood AND t = $2::text::timestamptz";
        let rows = executed(&mut session, typed, &[], values).await.expect("reads");
        assert_eq!(rows, [[Datum::Int4(1)]]);
        run(&mut session, "PREPARE p AS SELECT n + $1 FROM x WHERE id = $2").await.expect("kept");
        assert_eq!(run(&mut session, "EXECUTE p (5, 1)").await.expect("reads"), one("5"));
        // EXPLAIN says so, and shows the plan there.
        for explain in ["EXPLAIN", "EXPLAIN ANALYZE"] {
            let sql = format!("{explain} SELECT v FROM e WHERE id = 1");
            let lines = run(&mut session, &sql).await.expect("explains");
            let lines: Vec<_> = lines.into_iter().flatten().flatten().collect();
            let said = "Reads: forwarded to region \"eu\" (round trip ";
            assert!(lines[0].starts_with(said), "{lines:?}");
            assert!(lines.iter().any(|line| line.contains("key path")), "{lines:?}");
        }
        let sql = "EXPLAIN (ANALYZE, FORMAT JSON) SELECT v FROM e WHERE id = 1";
        let plan = run(&mut session, sql).await.expect("explains");
        let plan = plan[0][0].as_deref().expect("a plan");
        let plan: serde_json::Value = serde_json::from_str(plan).expect("JSON");
        assert_eq!(plan[0]["Reads Forwarded To"], "eu", "{plan}");
        assert!(plan[0]["Round Trip"].as_f64().is_some_and(|millis| millis > 0.0), "{plan}");
        assert!(plan[0].get("Execution Time").is_some(), "{plan}");
        // A cursor is pulled from there.
        let block = "BEGIN TRANSACTION READ ONLY ISOLATION LEVEL READ COMMITTED";
        run(&mut session, block).await.expect("begins");
        run(&mut session, "DECLARE c CURSOR FOR SELECT id FROM x ORDER BY id")
            .await
            .expect("opens");
        assert_eq!(run(&mut session, "FETCH 1 FROM c").await.expect("reads"), one("1"));
        assert_eq!(run(&mut session, "FETCH 1 FROM c").await.expect("reads"), one("2"));
        run(&mut session, "COMMIT").await.expect("ends");
        // What it says of itself is the session's own.
        run(&mut session, "SET TIME ZONE 'Asia/Tokyo'").await.expect("sets");
        let zone = "SELECT t::text FROM e WHERE id = 1";
        assert_eq!(run(&mut session, zone).await.expect("reads"), one("2026-01-02 12:04:05+09"));
        world.sleep(Duration::from_secs(2)).await;
        for region in [1, 2] {
            assert_eq!(sites.at(region).regions.reads_for_others(), 0, "nothing is left");
        }
    });
}

/// What cannot be answered soundly is refused with the way out.
#[test]
fn reads_that_another_region_cannot_stand_for_are_refused() {
    World::run(2, false, async |world| {
        let sites = placed(&world).await;
        sites.must(0, "CREATE SEQUENCE numbers").await;
        sites.quiet().await;
        world.sleep(Duration::from_secs(2)).await;
        let mut session = sites.session(0).await;
        for (begin, allowed) in [
            ("BEGIN", false),
            ("BEGIN READ ONLY", false),
            ("BEGIN ISOLATION LEVEL READ COMMITTED", false),
            ("BEGIN READ ONLY ISOLATION LEVEL READ COMMITTED", true),
        ] {
            run(&mut session, begin).await.expect("begins");
            let read = run(&mut session, "SELECT v FROM e WHERE id = 1").await;
            match read {
                Ok(rows) => assert!(allowed && rows == one("one"), "{begin}"),
                Err(error) => {
                    assert!(!allowed && error.code().0 == "0A000", "{begin}: {error}");
                    let hint = error.fields().hint.clone().expect("a way out");
                    assert!(hint.contains("outside of a transaction block"), "{hint}");
                }
            }
            run(&mut session, "ROLLBACK").await.expect("ends");
        }
        for (sql, expected) in [
            ("INSERT INTO here SELECT e.id FROM e, y", "0A000"),
            ("INSERT INTO e SELECT * FROM e", "55000"),
            ("INSERT INTO here SELECT e.id FROM e, x, here", "0A000"),
            ("SELECT * FROM e FOR UPDATE", "55000"),
            ("UPDATE e SET v = ''", "55000"),
            ("CREATE TABLE copied AS SELECT e.id FROM e, y", "0A000"),
            ("COPY e FROM STDIN", "55000"),
            ("COPY (SELECT id FROM e, here) TO STDOUT", "55000"),
            ("SELECT 1; SELECT * FROM e", "0A000"),
            ("SELECT * FROM e; SELECT * FROM here", "0A000"),
            ("SELECT * FROM e, here", "55000"),
            ("SELECT * FROM e AS OF SYSTEM TIME '-1s'", "0A000"),
            ("SELECT pg_advisory_lock(1) FROM e", "0A000"),
            ("SELECT nextval('numbers'), id FROM e", "0A000"),
            ("SELECT setval('numbers', id) FROM e", "0A000"),
            ("SELECT telesto_cap_drop('c') FROM e", "0A000"),
            ("SELECT pg_notify('c', v) FROM e", "0A000"),
            ("SELECT set_config('a.b', 'c', false) FROM e", "0A000"),
            ("SELECT count(*) FROM e, telesto_regions", "0A000"),
            ("SELECT 1 / (id - 1) FROM e", "22012"),
            ("SELECT nothing FROM e", "42703"),
        ] {
            assert_eq!(code(&mut session, sql).await, expected, "{sql}");
        }
        // A pipeline is one transaction, of one snapshot.
        let prepare = async |session: &mut Session, sql: &str| {
            session.prepare(sql, &[]).await.expect("prepares")
        };
        let (there, here) = ("SELECT v FROM e WHERE id = 1", "SELECT n FROM here");
        let first = prepare(&mut session, there).await;
        let second = prepare(&mut session, here).await;
        session.sync().await.expect("ends");
        session.execute(&first, Vec::new()).await.expect("reads");
        let refused = session.execute(&second, Vec::new()).await.expect_err("one snapshot");
        assert_eq!(refused.code().0, "0A000", "{refused}");
        session.sync().await.expect("ends");
        session.execute(&second, Vec::new()).await.expect("reads");
        let refused = session.execute(&first, Vec::new()).await.expect_err("one snapshot");
        assert_eq!(refused.code().0, "0A000", "{refused}");
        session.sync().await.expect("ends");
        run(&mut session, "SET telesto.forward_reads = off").await.expect("sets");
        assert_eq!(code(&mut session, "SELECT * FROM e").await, "55000");
        run(&mut session, "SET telesto.forward_reads = on").await.expect("sets");
        run(&mut session, "CREATE TEMP TABLE e (id int)").await.expect("made");
        assert_eq!(run(&mut session, "SELECT count(*) FROM e").await.expect("its own"), one("0"));
        assert_eq!(code(&mut session, "SELECT count(*) FROM public.e").await, "0A000");
        run(&mut session, "DISCARD TEMP").await.expect("gone");
        assert_eq!(run(&mut session, "SELECT count(*) FROM public.e").await.expect("e"), one("2"));
    });
}

/// INSERT and CREATE TABLE AS write what a query gives over tables of another region.
#[test]
fn writes_are_filled_with_what_another_region_has() {
    World::run(23, false, async |world| {
        let sites = placed(&world).await;
        let mut session = sites.session(0).await;
        for (sql, check, gives) in [
            ("INSERT INTO here SELECT id + 10, id FROM e", "SELECT count(*) FROM here", "3"),
            (
                "INSERT INTO here (id, n) SELECT e.id, x.n FROM e JOIN x USING (id) ON CONFLICT (id) DO UPDATE SET n = 50",
                "SELECT string_agg(id || '=' || n, ' ' ORDER BY id) FROM here",
                "1=50 2=0 11=1 12=2",
            ),
            (
                "INSERT INTO here WITH q AS (SELECT max(id) AS m FROM e) SELECT m + 20, 9 FROM q",
                "SELECT n FROM here WHERE id = 22",
                "9",
            ),
            (
                "CREATE TABLE made AS SELECT id, v, m FROM e",
                "SELECT v || m FROM made WHERE id = 1",
                "oneglad",
            ),
            ("SELECT id AS i INTO made3 FROM e", "SELECT sum(i) FROM made3", "3"),
            // Into a table that another region writes.
            (
                "INSERT INTO y SELECT id + 100, id FROM e",
                "SELECT sum(n) FROM y WHERE id > 100",
                "3",
            ),
        ] {
            run(&mut session, sql).await.unwrap_or_else(|error| panic!("{sql}: {error}"));
            assert_eq!(run(&mut session, check).await.expect(check), one(gives), "{sql}");
        }
        let returned =
            run(&mut session, "INSERT INTO here SELECT 30, max(id) FROM e RETURNING id + n");
        assert_eq!(returned.await.expect("inserts"), one("32"));
        let many = "INSERT INTO here SELECT g + 1000, e.id FROM e, generate_series(1, 30000) g WHERE e.id = 2";
        run(&mut session, many).await.expect("inserts");
        assert_eq!(sites.must(0, "SELECT sum(n) FROM here WHERE id > 1000").await, one("60000"));
        // By the extended protocol, with parameters; with constants whose type is the column's.
        let with = "INSERT INTO here SELECT id + $1, $2::int FROM e WHERE id = $3 RETURNING n";
        let values = vec![Datum::Int4(200), Datum::Int4(7), Datum::Int4(1)];
        let rows = executed(&mut session, with, &[], values).await.expect("inserts");
        assert_eq!(rows, [[Datum::Int4(7)]]);
        for (sql, expected) in [
            ("INSERT INTO here SELECT id, 1 FROM e", "23505"),
            ("INSERT INTO here SELECT 1 / (id - 1), 1 FROM e", "22012"),
            ("BEGIN; INSERT INTO here SELECT id + 300, 1 FROM e", "0A000"),
        ] {
            assert_eq!(code(&mut session, sql).await, expected, "{sql}");
            run(&mut session, "ROLLBACK").await.expect("ends");
        }
        run(&mut session, "SET telesto.forward_reads = off").await.expect("sets");
        assert_eq!(code(&mut session, "INSERT INTO here SELECT id + 300, 1 FROM e").await, "55000");
        assert_eq!(code(&mut session, "CREATE TABLE made4 AS SELECT * FROM e").await, "55000");
        assert_eq!(
            sites.must(0, "SELECT count(*) FROM here WHERE id > 300 AND id < 1000").await,
            one("0")
        );
    });
}

/// What ap has itself.
async fn at_home(sites: &Sites, sql: &str) -> Text {
    sites.run_at_home(2, sql).await.unwrap_or_else(|error| panic!("{sql}: {error}"))
}

/// Who sees what was written with what was read elsewhere sees that, too, wherever it is.
#[test]
fn writes_go_behind_what_they_were_filled_with() {
    let mut seen = 0;
    for seed in seeds() {
        World::run(seed, false, async |world| {
            let sites = placed(&world).await;
            sites.must(0, "CREATE TABLE log (n int PRIMARY KEY)").await;
            sites.quiet().await;
            for n in 1..=10 {
                // What eu writes comes to ap at once, or late; us reads what only eu has.
                let delay = Duration::from_millis(below(&world, 80));
                sites.net.set_weather(Weather { delay, ..Weather::CALM });
                let both = format!(
                    "UPDATE x SET n = {n} WHERE id = 1; UPDATE e SET v = '{n}' WHERE id = 1"
                );
                sites.must(1, &both).await;
                let late = below(&world, 2) == 0;
                if late {
                    sites.net.cut("eu", "ap");
                }
                let fills =
                    "INSERT INTO log SELECT v::int FROM e WHERE id = 1 ON CONFLICT DO NOTHING";
                let _ = sites.run(0, fills).await;
                for _ in 0..5 {
                    let log = at_home(&sites, "SELECT coalesce(max(n), 0) FROM log").await;
                    let x = at_home(&sites, "SELECT n FROM x WHERE id = 1").await;
                    let number =
                        |rows: Text| rows[0][0].as_ref().expect("one").parse::<i32>().expect("n");
                    let (log, x) = (number(log), number(x));
                    assert!(x >= log, "seed {seed}: ap shows {log} of the log, and x is {x}");
                    seen += usize::from(log > 0);
                    world.sleep(Duration::from_millis(below(&world, 100))).await;
                }
                sites.net.heal();
                world.sleep(Duration::from_millis(300)).await;
            }
        });
    }
    assert!(seen > 5, "{seen}");
}

/// What a COPY TO sends.
pub(super) async fn copied(session: &mut Session, sql: &str) -> Result<String, Error> {
    let prepared = session.prepare(sql, &[]).await?;
    let sent = match session.execute(&prepared, Vec::new()).await? {
        StatementResult::CopyOut { data, .. } => data.try_collect::<Vec<_>>().await?,
        other => panic!("{sql}: {other:?}"),
    };
    session.sync().await?;
    Ok(sent.iter().map(|piece| String::from_utf8_lossy(&piece.bytes).into_owned()).collect())
}

/// COPY TO has the rows of its query from where they are, and writes them in its format.
#[test]
fn copy_sends_what_another_region_has() {
    World::run(22, false, async |world| {
        let sites = placed(&world).await;
        let mut session = sites.session(0).await;
        for (sql, sent) in [
            ("COPY (SELECT id, v FROM e ORDER BY id) TO STDOUT", "1\tone\n2\t\\N\n"),
            ("COPY e (m, id) TO STDOUT (FORMAT csv, HEADER)", "m,id\nglad,1\n,2\n"),
            (
                "COPY (SELECT id, v FROM e WHERE id = 1) TO STDOUT (FORMAT csv, FORCE_QUOTE (v))",
                "1,\"one\"\n",
            ),
            ("COPY s.only TO STDOUT (FORMAT csv, HEADER)", "id\n"),
            ("COPY here TO STDOUT", "1\t1\n"),
        ] {
            assert_eq!(copied(&mut session, sql).await.expect(sql), sent, "{sql}");
        }
        // Many pieces, in order.
        let many = "COPY (SELECT g FROM e, generate_series(1, 60000) g WHERE e.id = 1 ORDER BY g) TO STDOUT";
        let sent = copied(&mut session, many).await.expect("sends");
        assert!(sent.lines().map(|line| line.parse::<i32>().expect("n")).eq(1..=60000));
        // What it has shown is here before the next statement.
        sites.must(1, "UPDATE e SET v = 'new' WHERE id = 1; UPDATE y SET n = 7 WHERE id = 1").await;
        let sent = copied(&mut session, "COPY (SELECT v FROM e WHERE id = 1) TO STDOUT").await;
        assert_eq!(sent.expect("sends"), "new\n");
        let n = "SELECT n FROM y WHERE id = 1";
        assert_eq!(run(&mut session, n).await.expect("reads"), one("7"));
        // Errors, rights and rows are those of the role there.
        let divided = copied(&mut session, "COPY (SELECT 1 / (id - 1) FROM e) TO STDOUT").await;
        assert_eq!(divided.expect_err("by zero").code().0, "22012");
        run(&mut session, "SET ROLE o1").await.expect("becomes");
        let own = copied(&mut session, "COPY (SELECT DISTINCT owner FROM x) TO STDOUT").await;
        assert_eq!(own.expect("its own"), "o1\n");
        let denied = copied(&mut session, "COPY e TO STDOUT").await.expect_err("no right");
        assert_eq!(denied.code().0, "42501", "{denied}");
        run(&mut session, "RESET ROLE").await.expect("back");
        run(&mut session, "BEGIN").await.expect("begins");
        let block = copied(&mut session, "COPY e TO STDOUT").await.expect_err("in a block");
        assert_eq!(block.code().0, "0A000", "{block}");
        run(&mut session, "ROLLBACK").await.expect("ends");
        run(&mut session, "SET telesto.forward_reads = off").await.expect("sets");
        let off = copied(&mut session, "COPY e TO STDOUT").await.expect_err("off");
        assert_eq!(off.code().0, "55000", "{off}");
    });
}

/// Rights and policies are those of the role that asks.
#[test]
fn role_of_the_session_is_what_counts_where_it_is_read() {
    World::run(3, false, async |world| {
        let sites = placed(&world).await;
        let mut session = sites.session(0).await;
        assert_eq!(run(&mut session, "SELECT count(*) FROM x").await.expect("all"), one("4"));
        run(&mut session, "SET search_path = s, public").await.expect("sets");
        assert_eq!(run(&mut session, "SELECT count(*) FROM only").await.expect("s"), one("0"));
        run(&mut session, "SET ROLE o1").await.expect("becomes");
        let owners = "SELECT string_agg(DISTINCT owner || current_user, ',') FROM x";
        assert_eq!(run(&mut session, owners).await.expect("its own"), one("o1o1"));
        run(&mut session, "RESET ROLE").await.expect("back");
        run(&mut session, "SET ROLE nobody").await.expect("becomes");
        assert_eq!(code(&mut session, "SELECT count(*) FROM x").await, "42501");
    });
}

/// A statement shows what the session has seen, wherever it is executed; and what it showed is not
/// forgotten afterwards.
#[test]
fn forwarded_reads_go_behind_nothing_and_nothing_goes_behind_them() {
    let mut looked = [0; 3];
    for seed in seeds() {
        World::run(seed, false, async |world| {
            let sites = placed(&world).await;
            let delay = Duration::from_millis(20);
            sites.net.set_weather(Weather { delay, lost: 0, ..Weather::FOUL });
            let mut writer = sites.session(1).await;
            let mut reader = sites.session(0).await;
            let number = |rows: Text| rows[0][0].as_ref().expect("one").parse::<i32>().expect("n");
            for n in 1..=12 {
                // x before y, and y before x: whoever has seen the later one sees the earlier one.
                let order = if below(&world, 2) == 0 { ["x", "y"] } else { ["y", "x"] };
                let late = if below(&world, 2) == 0 { "us" } else { "ap" };
                let cut = below(&world, 2) == 0;
                if cut {
                    sites.net.cut("eu", late);
                }
                for table in order {
                    let write = format!("UPDATE {table} SET n = {n} WHERE id = 1");
                    run(&mut writer, &write).await.expect("writes");
                    world.sleep(Duration::from_millis(below(&world, 60))).await;
                }
                for look in 0..4 {
                    let sql = |table: &str| format!("SELECT n FROM {table} WHERE id = 1");
                    let first = below(&world, 2) == 0;
                    let (one, other) = if first { ("x", "y") } else { ("y", "x") };
                    let read = run(&mut reader, &sql(one)).await;
                    let Ok(seen) = read.map(number) else { continue };
                    if look == 1 {
                        sites.net.heal();
                    }
                    let then = run(&mut reader, &sql(other)).await;
                    let Ok(then) = then.map(number) else { continue };
                    looked[usize::from(first)] += 1;
                    // The one that was written first has at least what the other shows, less the
                    // round under way.
                    let least = if order[0] == other { seen } else { seen - 1 };
                    assert!(
                        then >= least,
                        "seed {seed}: {one} {seen}, then {other} {then}, {order:?}"
                    );
                    let again = number(
                        run(&mut reader, &sql(other))
                            .await
                            .unwrap_or_else(|_| vec![vec![Some(then.to_string())]]),
                    );
                    assert!(again >= then, "seed {seed}: {other} goes back from {then} to {again}");
                    looked[2] += usize::from(seen == n);
                }
                sites.net.heal();
                world.sleep(Duration::from_millis(300)).await;
            }
        });
    }
    assert!(looked.iter().all(|count| *count > 10), "{looked:?}");
}

/// The session's own writes, which went to another region, are in what it reads in a third one;
/// also what others here have written before.
#[test]
fn session_reads_its_own_writes_in_another_region() {
    World::run(4, false, async |world| {
        let sites = placed(&world).await;
        sites.net.set_weather(Weather { delay: Duration::from_millis(60), ..Weather::CALM });
        let both = "SELECT y.n FROM x JOIN y USING (id) WHERE id = 2";
        let mut session = sites.session(0).await;
        for n in 1..=5 {
            // ap would answer first, and does not have it yet.
            sites.net.cut("eu", "ap");
            run(&mut session, &format!("UPDATE y SET n = {n} WHERE id = 2")).await.expect("writes");
            assert_eq!(run(&mut session, both).await.expect("reads"), one(&n.to_string()));
            let mut other = sites.session(0).await;
            assert_eq!(run(&mut other, both).await.expect("reads"), one(&n.to_string()));
            sites.net.heal();
        }
    });
}

/// A region that cannot be reached is passed over; when none can, that is said.
#[test]
fn another_region_is_asked_when_one_cannot_be_reached() {
    World::run(5, false, async |world| {
        let sites = placed(&world).await;
        let count = "SELECT count(*) FROM x";
        let cut = |one: &str, other: &str| {
            sites.net.cut(one, other);
            sites.net.cut(other, one);
        };
        let mut session = sites.session(0).await;
        for away in ["eu", "ap"] {
            cut("us", away);
            assert_eq!(run(&mut session, count).await.expect("the other one"), one("4"), "{away}");
            assert_eq!(
                run(&mut session, "SELECT n FROM y WHERE id = 1").await.expect("y"),
                one("0")
            );
            sites.net.heal();
            world.sleep(Duration::from_secs(3)).await;
        }
        cut("us", "eu");
        cut("us", "ap");
        let before = world.now();
        let refused = run(&mut session, count).await.expect_err("nobody");
        assert_eq!(refused.code().0, "08006", "{refused}");
        let said = refused.to_string();
        assert!(said.contains("\"eu\"") && said.contains("\"ap\""), "{said}");
        assert!(world.now() - before < Duration::from_secs(30));
        sites.net.heal();
        world.sleep(Duration::from_secs(3)).await;
        assert_eq!(run(&mut session, count).await.expect("again"), one("4"));
    });
}

/// What is not waited for any more ends where it runs.
#[test]
fn statement_that_is_stopped_stops_in_the_other_region() {
    World::run(6, false, async |world| {
        let sites = placed(&world).await;
        let under_way = || sites.at(1).regions.reads_for_others();
        let mut session = sites.session(0).await;
        run(&mut session, "SET statement_timeout = '2s'").await.expect("sets");
        let long = "SELECT pg_sleep(1000) FROM e";
        let process = Arc::clone(&sites.at(0).process);
        let handle = session.cancel_handle();
        let work = process.run(async move {
            let stopped = run(&mut session, long).await.expect_err("stopped");
            (session, stopped)
        });
        world.sleep(Duration::from_secs(1)).await;
        assert_eq!(under_way(), 1);
        let (mut session, stopped) = work.await.expect("lives");
        assert_eq!(stopped.code().0, "57014", "{stopped}");
        world.sleep(Duration::from_millis(500)).await;
        assert_eq!(under_way(), 0, "the time was over");
        run(&mut session, "RESET statement_timeout").await.expect("resets");
        let work = process.run(async move {
            let stopped = run(&mut session, long).await.expect_err("stopped");
            (session, stopped)
        });
        world.sleep(Duration::from_secs(20)).await;
        assert_eq!(under_way(), 1, "it waits as long as it takes");
        handle.cancel();
        let (mut session, stopped) = work.await.expect("lives");
        assert_eq!(stopped.code().0, "57014", "{stopped}");
        world.sleep(Duration::from_millis(500)).await;
        assert_eq!(under_way(), 0, "it was cancelled");
        // Rows that nobody takes are not made, and a portal that is closed ends.
        let many = "SELECT repeat('r', 1000) FROM e, generate_series(1, 100000)";
        let prepared = session.prepare(many, &[]).await.expect("prepares");
        let result = session.execute(&prepared, Vec::new()).await.expect("executes");
        world.sleep(Duration::from_secs(5)).await;
        assert_eq!(under_way(), 1, "it waits for who reads");
        drop(result);
        session.sync().await.expect("ends");
        world.sleep(Duration::from_millis(500)).await;
        assert_eq!(under_way(), 0, "it was closed");
        // A region that dies in the middle is no answer.
        let result = session.execute(&prepared, Vec::new()).await.expect("executes");
        sites.net.cut("us", "eu");
        sites.net.cut("eu", "us");
        let StatementResult::Rows { rows, .. } = result else { panic!("rows") };
        let broken = rows.collect().await.expect_err("not all rows");
        assert_eq!(broken.code().0, "08006", "{broken}");
        world.sleep(Duration::from_secs(70)).await;
        assert_eq!(under_way(), 0, "what nobody asks for ends by itself");
    });
}

/// Frames that come twice, late and out of order take no row away and add none.
#[test]
fn rows_come_once_and_in_order_over_a_foul_network() {
    World::run(7, false, async |world| {
        let sites = placed(&world).await;
        sites.net.set_weather(Weather { lost: 0, repeated: 300, ..Weather::FOUL });
        let mut session = sites.session(0).await;
        let sql = "SELECT g, repeat('r', 100) FROM e, generate_series(1, 40000) g WHERE id = 1 ORDER BY g";
        // A request for the last rows that comes twice finds the execution ended by its first, and
        // that answer may be here sooner: then the statement is to be run again, and never are rows
        // of two put together, or some taken for all.
        let mut tries = 0;
        let rows = loop {
            match run(&mut session, sql).await {
                Err(error) if error.code().0 == "08006" && tries < 10 => tries += 1,
                rows => break rows.expect("reads"),
            }
        };
        let expected = (1..=40000).map(|n: i32| Some(n.to_string()));
        assert_eq!(rows.len(), 40000);
        assert!(rows.into_iter().map(|mut row| row.swap_remove(0)).eq(expected));
    });
}

/// A region that has newer definitions than who asks does not pass its rows off as those that were
/// described.
#[test]
fn definitions_that_change_meanwhile_are_waited_for() {
    World::run(8, false, async |world| {
        let sites = placed(&world).await;
        sites.must(0, "CREATE VIEW v AS SELECT id FROM here").await;
        sites.quiet().await;
        let mut session = sites.session(2).await;
        assert_eq!(run(&mut session, "SELECT * FROM v").await.expect("reads"), one("1"));
        sites.net.set_weather(Weather { delay: Duration::from_millis(200), ..Weather::CALM });
        for n in 1..=3 {
            sites.must(0, "DROP VIEW v").await;
            let define = format!("CREATE VIEW v AS SELECT 'number {n}'::text AS c{n} FROM here");
            sites.must(0, &define).await;
            let prepared = session.prepare("SELECT id FROM here", &[]).await.expect("prepares");
            let rows = session.execute(&prepared, Vec::new()).await.expect("executes");
            let StatementResult::Rows { rows, .. } = rows else { panic!("rows") };
            assert_eq!(rows.collect().await.expect("rows"), [[Datum::Int4(1)]]);
            session.sync().await.expect("ends");
            let read = run(&mut session, "SELECT * FROM v").await.expect("reads");
            assert_eq!(read, one(&format!("number {n}")));
        }
        // One that asks before it can know.
        sites.must(0, "DROP VIEW v").await;
        sites.must(0, "CREATE VIEW v AS SELECT id + 6 AS c3 FROM here").await;
        let mut session = sites.session(2).await;
        assert_eq!(run(&mut session, "SELECT * FROM v").await.expect("reads"), one("7"));
    });
}

/// Cursors that nobody fetches from take no more than a part of what a region executes for another
/// one.
#[test]
fn one_session_or_role_does_not_take_all_places_in_another_region() {
    World::run(9, false, async |world| {
        let sites = placed(&world).await;
        sites.must(0, "GRANT SELECT ON e TO o1").await;
        sites.quiet().await;
        let many = "SELECT repeat('r', 1000) FROM e, generate_series(1, 20000)";
        let begin = "BEGIN TRANSACTION READ ONLY ISOLATION LEVEL READ COMMITTED";
        let opens = async |session: &mut Session| {
            run(session, begin).await.expect("begins");
            for number in 0..200 {
                let declared = format!("DECLARE c{number} CURSOR FOR {many}");
                if let Err(error) = run(session, &declared).await {
                    return (number, error);
                }
            }
            panic!("200 cursors");
        };
        let mut sessions = Vec::new();
        for _ in 0..5 {
            let mut session = sites.session(0).await;
            run(&mut session, "SET SESSION AUTHORIZATION o1").await.expect("becomes");
            let (number, error) = opens(&mut session).await;
            assert_eq!(
                (number, error.code().0),
                (if sessions.len() < 4 { 16 } else { 0 }, "53400")
            );
            sessions.push(session);
        }
        // Others have theirs, and what is closed makes room.
        for sql in ["SELECT count(*) FROM e", many] {
            run(&mut sites.session(0).await, sql).await.expect("reads");
        }
        run(&mut sessions[0], "ROLLBACK").await.expect("ends");
        let mut again = sessions.pop().expect("five");
        run(&mut again, "ROLLBACK").await.expect("ends");
        assert_eq!(run(&mut again, "SELECT count(*) FROM e").await.expect("reads"), one("2"));
    });
}
