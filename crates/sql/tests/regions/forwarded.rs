//! Writes of tables whose home is another region: they execute where they are asked for and commit
//! at the home, once, or not at all.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use futures::future::join_all;
use telesto_net::sim::Weather;
use telesto_sql::{Error, Session, SessionOptions, SqlEngine};
use telesto_testkit::World;

use super::{NAMES, REGIONS, Sites, below, run, seeds};

/// What a client was told.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Told {
    Done,
    /// Nothing was written.
    Refused,
    /// It may have been written.
    Unknown,
}

fn told(result: &Result<(), Error>) -> Told {
    let Err(error) = result else { return Told::Done };
    match error.code().0 {
        "08007" | "57P01" => Told::Unknown,
        "40001" | "08006" | "57P03" | "55000" | "23505" | "23503" | "23514" => Told::Refused,
        _ => panic!("{error}"),
    }
}

/// The statements of a client's transaction; several are a block.
async fn transact(sql: Arc<SqlEngine>, statements: Vec<String>) -> Result<(), Error> {
    let mut session = sql.session(SessionOptions::default()).await?;
    if let [statement] = &statements[..] {
        run(&mut session, statement).await?;
        return Ok(());
    }
    run(&mut session, "BEGIN").await?;
    for statement in &statements {
        run(&mut session, statement).await?;
    }
    run(&mut session, "COMMIT").await?;
    Ok(())
}

/// Runs one transaction in each of `regions` at once, while links are cut and regions killed; what
/// each was told.
async fn all_at_once(sites: &mut Sites, work: Vec<(usize, Vec<String>)>) -> Vec<Told> {
    let clients: Vec<_> = work
        .into_iter()
        .map(|(region, statements)| {
            let site = sites.at(region);
            site.process.run(transact(Arc::clone(&site.sql), statements))
        })
        .collect();
    for _ in 0..4 {
        sites.disturb().await;
    }
    sites.net.heal();
    // A client that died with its region was told nothing.
    let results = join_all(clients).await;
    results.iter().map(|result| result.as_ref().map_or(Told::Unknown, told)).collect()
}

async fn tags(sites: &Sites, table: &str) -> Vec<String> {
    let rows = sites.must(0, &format!("SELECT tag FROM {table} ORDER BY 1")).await;
    rows.into_iter().map(|mut row| row.remove(0).expect("a tag")).collect()
}

/// What was acknowledged is there once, what was refused is not, and what is unknown is there at
/// most once.
fn check_tags(found: &[String], expected: &BTreeMap<String, Told>, seed: u64) {
    let once: BTreeSet<_> = found.iter().collect();
    assert_eq!(once.len(), found.len(), "seed {seed}: something was done twice");
    for (tag, told) in expected {
        let there = once.contains(tag);
        match told {
            Told::Done => assert!(there, "seed {seed}: {tag} is lost"),
            Told::Refused => assert!(!there, "seed {seed}: {tag} was refused, and done"),
            Told::Unknown => {}
        }
    }
}

/// Counters of one region, incremented in all of them.
#[test]
fn forwarded_increments_are_neither_lost_nor_doubled() {
    let mut done = [0; REGIONS];
    for seed in seeds() {
        World::run(seed, false, async |world| {
            let mut sites = Sites::running(&world).await;
            for sql in [
                "CREATE TABLE c (id int PRIMARY KEY, n int NOT NULL)",
                "CREATE TABLE l (id serial PRIMARY KEY, tag text)",
                "INSERT INTO c VALUES (0, 0), (1, 0)",
            ] {
                sites.must(0, sql).await;
            }
            sites.quiet().await;
            sites.net.set_weather(Weather { delay: Duration::from_millis(40), ..Weather::FOUL });
            let mut expected = BTreeMap::new();
            for turn in 0..25 {
                let work: Vec<_> = (0..REGIONS)
                    .map(|region| {
                        let id = below(&world, 2);
                        let tag = format!("{turn} {}", NAMES[region]);
                        let update = format!("UPDATE c SET n = n + 1 WHERE id = {id}");
                        let log = format!("INSERT INTO l (tag) VALUES ('{tag}')");
                        let statements = match below(&world, 2) {
                            0 => vec![format!(
                                "WITH u AS (UPDATE c SET n = n + 1 WHERE id = {id}) INSERT INTO l (tag) VALUES ('{tag}')"
                            )],
                            _ => vec![update, log],
                        };
                        (region, statements)
                    })
                    .collect();
                let told = all_at_once(&mut sites, work).await;
                for (region, told) in told.into_iter().enumerate() {
                    done[region] += usize::from(told == Told::Done);
                    expected.insert(format!("{turn} {}", NAMES[region]), told);
                }
            }
            sites.check("c").await;
            let found = tags(&sites, "l").await;
            check_tags(&found, &expected, seed);
            let sum = sites.must(0, "SELECT sum(n) FROM c").await;
            assert_eq!(sum, vec![vec![Some(found.len().to_string())]], "seed {seed}");
        });
    }
    assert!(done.iter().all(|done| *done > 10), "{done:?}");
}

/// Keys that are unique everywhere, rows that others reference, and a condition over two rows that
/// no write of one row alone tells: all written from every region, while their home moves.
#[test]
fn constraints_hold_over_writes_from_every_region_while_the_home_moves() {
    let mut done = [0; REGIONS];
    for seed in seeds() {
        World::run(seed, false, async |world| {
            let mut sites = Sites::running(&world).await;
            for sql in [
                "CREATE TABLE u (id serial PRIMARY KEY, email text UNIQUE, tag text)",
                "CREATE TABLE p (id int PRIMARY KEY)",
                "CREATE TABLE k (id serial PRIMARY KEY, p int REFERENCES p)",
                "CREATE TABLE duty (id int PRIMARY KEY, on_call bool)",
                "INSERT INTO duty VALUES (1, true), (2, true)",
                "INSERT INTO p SELECT generate_series(1, 6)",
            ] {
                sites.must(0, sql).await;
            }
            sites.quiet().await;
            sites.net.set_weather(Weather { delay: Duration::from_millis(40), ..Weather::FOUL });
            let mut expected = BTreeMap::new();
            for turn in 0..25 {
                if below(&world, 6) == 0 {
                    let home = NAMES[below(&world, 3) as usize];
                    for table in ["k", "p", "u", "duty"] {
                        let moved = format!("ALTER TABLE {table} SET (telesto.home = '{home}')");
                        sites.must(0, &moved).await;
                    }
                }
                let work: Vec<_> = (0..REGIONS)
                    .map(|region| {
                        let (email, p) = (below(&world, 40), below(&world, 6) + 1);
                        let tag = format!("{turn} {}", NAMES[region]);
                        let who = below(&world, 2) + 1;
                        let statements = match below(&world, 6) {
                            0 => vec![format!("DELETE FROM p WHERE id = {p}")],
                            1 => vec![format!("INSERT INTO k (p) VALUES ({p})")],
                            2 => vec![format!(
                                "UPDATE duty SET on_call = false WHERE id = {who} AND (SELECT count(*) FROM duty WHERE on_call) = 2"
                            )],
                            3 => vec!["UPDATE duty SET on_call = true WHERE NOT on_call".to_owned()],
                            _ => vec![format!(
                                "INSERT INTO u (email, tag) VALUES ('m{email}', '{tag}')"
                            )],
                        };
                        (region, statements)
                    })
                    .collect();
                let inserts: Vec<_> = work
                    .iter()
                    .map(|(_, statements)| statements[0].starts_with("INSERT INTO u"))
                    .collect();
                let told = all_at_once(&mut sites, work).await;
                for (region, told) in told.into_iter().enumerate() {
                    done[region] += usize::from(told == Told::Done);
                    if inserts[region] {
                        expected.insert(format!("{turn} {}", NAMES[region]), told);
                    }
                }
            }
            for table in ["u", "p", "k", "duty"] {
                sites.check(table).await;
            }
            check_tags(&tags(&sites, "u").await, &expected, seed);
            let none = vec![vec![Some("0".to_owned())]];
            for (violations, what) in [
                ("SELECT count(*) - count(DISTINCT email) FROM u", "emails are not unique"),
                ("SELECT count(*) FROM k WHERE p NOT IN (SELECT id FROM p)", "a reference dangles"),
                (
                    "SELECT 1 - count(*) FROM (SELECT 1 FROM duty WHERE on_call LIMIT 1) d",
                    "nobody is on call",
                ),
            ] {
                assert_eq!(sites.must(0, violations).await, none, "seed {seed}: {what}");
            }
        });
    }
    assert!(done.iter().all(|done| *done > 10), "{done:?}");
}

async fn code(session: &mut Session, sql: &str) -> String {
    run(session, sql).await.expect_err(sql).code().0.to_owned()
}

/// A transaction's snapshot decides, not what has come since: what it read and did not write must
/// be unchanged at the home.
#[test]
fn what_came_after_the_snapshot_is_a_conflict_at_the_home() {
    World::run(5, false, async |world| {
        let sites = Sites::running(&world).await;
        sites.must(0, "CREATE TABLE d (id int PRIMARY KEY, v int)").await;
        sites.must(0, "INSERT INTO d VALUES (1, 1), (2, 1)").await;
        sites.quiet().await;
        let mut session = sites.session(1).await;
        run(&mut session, "BEGIN").await.expect("begins");
        let seen = run(&mut session, "SELECT sum(v) FROM d").await.expect("reads");
        assert_eq!(seen, vec![vec![Some("2".to_owned())]]);
        sites.must(0, "UPDATE d SET v = 0 WHERE id = 1").await;
        sites.quiet().await;
        run(&mut session, "UPDATE d SET v = 0 WHERE id = 2").await.expect("executes");
        assert_eq!(code(&mut session, "COMMIT").await, "40001");
        sites.quiet().await;
        let after = sites.must(1, "SELECT sum(v) FROM d").await;
        assert_eq!(after, vec![vec![Some("1".to_owned())]]);
    });
}

/// What a client sees of it.
#[test]
fn forwarded_writes_as_a_session_sees_them() {
    World::run(6, false, async |world| {
        let sites = Sites::running(&world).await;
        let one = |text: &str| vec![vec![Some(text.to_owned())]];
        for sql in [
            "CREATE TABLE a (id serial PRIMARY KEY, v text)",
            "CREATE TABLE b (id int PRIMARY KEY, v text)",
            "CREATE TABLE m (id int PRIMARY KEY, v text)",
            "ALTER TABLE b SET (telesto.home = 'eu')",
            "ALTER TABLE m SET (telesto.home = 'any')",
        ] {
            sites.must(0, sql).await;
        }
        sites.quiet().await;
        let mut session = sites.session(1).await;
        // It reads what it has written, at once, and everybody else does in the end.
        sites.net.set_weather(Weather { delay: Duration::from_millis(80), ..Weather::CALM });
        for n in 1..=3 {
            run(&mut session, &format!("INSERT INTO a (v) VALUES ('v{n}')")).await.expect("writes");
            let count = run(&mut session, "SELECT count(*) FROM a").await.expect("reads");
            assert_eq!(count, one(&n.to_string()));
        }
        let updated = run(&mut session, "UPDATE a SET v = 'new' WHERE v = 'v2' RETURNING v").await;
        assert_eq!(updated.expect("writes"), one("new"));
        sites.quiet().await;
        assert_eq!(sites.must(2, "SELECT count(*) FROM a WHERE v = 'new'").await, one("1"));
        // EXPLAIN says so.
        let plan = run(&mut session, "EXPLAIN DELETE FROM a WHERE id = 1").await.expect("explains");
        let lines: Vec<_> = plan.into_iter().flatten().flatten().collect();
        assert!(lines.contains(&"Writes: forwarded to region \"us\"".to_owned()), "{lines:?}");
        // One transaction, one region.
        for (first, second) in [
            ("INSERT INTO b VALUES (1, 'x')", "UPDATE a SET v = 'x'"),
            ("UPDATE a SET v = 'x'", "INSERT INTO b VALUES (1, 'x')"),
            ("UPDATE a SET v = 'x'", "INSERT INTO m VALUES (1, 'x')"),
        ] {
            run(&mut session, "BEGIN").await.expect("begins");
            run(&mut session, first).await.expect("writes");
            assert_eq!(code(&mut session, second).await, "0A000", "{first}; {second}");
            run(&mut session, "ROLLBACK").await.expect("rolls back");
        }
        // In the region that makes definitions too, a definition is its own.
        let mut first = sites.session(0).await;
        run(&mut first, "BEGIN").await.expect("begins");
        run(&mut first, "INSERT INTO b VALUES (1, 'x')").await.expect("writes");
        run(&mut first, "CREATE TABLE z (id int)").await.expect("defines");
        assert_eq!(code(&mut first, "COMMIT").await, "0A000");
        // Constraints are told where the statement runs.
        let again = "INSERT INTO a (id, v) SELECT id, 'x' FROM a";
        assert_eq!(code(&mut session, again).await, "23505");
        for refused in ["TRUNCATE a", "ALTER TABLE a ADD COLUMN w int"] {
            assert_eq!(code(&mut session, refused).await, "25006", "{refused}");
        }
        run(&mut session, "SET telesto.forward_writes = off").await.expect("sets");
        assert_eq!(code(&mut session, "UPDATE a SET v = 'x'").await, "25006");
        run(&mut session, "SET telesto.forward_writes = on").await.expect("sets");
        // A rolled back write asks for nothing.
        run(&mut session, "BEGIN").await.expect("begins");
        run(&mut session, "SAVEPOINT s").await.expect("marks");
        run(&mut session, "UPDATE a SET v = 'x'").await.expect("writes");
        run(&mut session, "ROLLBACK TO s").await.expect("rolls back");
        run(&mut session, "COMMIT").await.expect("commits nothing");
        // Rows that are locked are among what is validated.
        run(&mut session, "BEGIN ISOLATION LEVEL READ COMMITTED").await.expect("begins");
        run(&mut session, "SELECT v FROM a WHERE v = 'v1' FOR UPDATE").await.expect("locks");
        sites.must(0, "UPDATE a SET v = 'of us' WHERE v = 'v1'").await;
        sites.quiet().await;
        run(&mut session, "UPDATE a SET v = 'x' WHERE v = 'new'").await.expect("writes");
        assert_eq!(code(&mut session, "COMMIT").await, "40001");
        // A home that is away: nothing is written, and soon said.
        sites.net.cut("eu", "us");
        sites.net.cut("us", "eu");
        let before = world.now();
        let away = code(&mut session, "UPDATE a SET v = 'away'").await;
        assert!(["08006", "08007"].contains(&&*away), "{away}");
        assert!(world.now() - before < Duration::from_secs(40));
        sites.net.heal();
        sites.quiet().await;
        // Only the way back is cut: it is committed, and the session waits for it.
        world.sleep(Duration::from_secs(5)).await;
        run(&mut session, "UPDATE a SET v = 'heard' WHERE v = 'of us'").await.expect("writes");
        let seen = run(&mut session, "SELECT count(*) FROM a WHERE v = 'heard'").await;
        assert_eq!(seen.expect("reads"), one("1"));
    });
}

/// A client writes here, then there: who sees the second write in a third region sees the first,
/// which came from another region.
#[test]
fn what_a_forwarded_write_depends_on_is_seen_before_it() {
    let mut looked = 0;
    for seed in seeds().take(2) {
        World::run(seed, false, async |world| {
            let sites = Sites::running(&world).await;
            for sql in [
                "CREATE TABLE x (id int PRIMARY KEY, n int)",
                "CREATE TABLE t (id int PRIMARY KEY, n int)",
                "INSERT INTO x VALUES (1, 0)",
                "INSERT INTO t VALUES (1, 0)",
                "ALTER TABLE x SET (telesto.home = 'eu')",
            ] {
                sites.must(0, sql).await;
            }
            sites.quiet().await;
            let delay = Duration::from_millis(20);
            sites.net.set_weather(Weather { delay, lost: 0, ..Weather::FOUL });
            let mut session = sites.session(1).await;
            let mut shown = 0;
            for round in 1..=2 {
                // What eu writes is late in ap, and has been in us before.
                sites.net.cut("eu", "ap");
                for n in [2 * round - 1, 2 * round] {
                    run(&mut session, &format!("UPDATE x SET n = {n}")).await.expect("writes");
                    run(&mut session, &format!("UPDATE t SET n = {n}")).await.expect("writes");
                }
                for look in 0..1000 {
                    let both = "SELECT (SELECT n FROM t), (SELECT n FROM x)";
                    let row = sites.must(2, both).await.remove(0);
                    let number = |text: &Option<String>| text.as_ref()?.parse::<i32>().ok();
                    let [t, x] = [0, 1].map(|at| number(&row[at]).expect("a number"));
                    assert!(x >= t, "seed {seed}: {t} is seen without what came before it, {x}");
                    looked += usize::from(t > shown);
                    shown = t;
                    if t == 2 * round {
                        break;
                    }
                    if look == 10 {
                        sites.net.heal();
                    }
                    world.sleep(Duration::from_millis(20)).await;
                }
                assert_eq!(shown, 2 * round, "seed {seed}: ap does not see it");
            }
        });
    }
    assert!(looked > 0, "{looked}");
}

/// A statement that loses again and again is executed anew within its time, not for that time each.
#[test]
fn statement_timeout_bounds_a_statement_with_all_its_attempts() {
    World::run(11, false, async |world| {
        let sites = Sites::running(&world).await;
        sites.must(0, "CREATE TABLE c (id int PRIMARY KEY, n int NOT NULL)").await;
        sites.must(0, "INSERT INTO c VALUES (1, 0)").await;
        sites.quiet().await;
        let mut other = sites.session(0).await;
        let writes = sites.at(0).process.run(async move {
            for _ in 0..20 {
                run(&mut other, "UPDATE c SET n = n + 1 WHERE id = 1").await.expect("writes");
                run(&mut other, "SELECT pg_sleep(1)").await.expect("sleeps");
            }
        });
        for region in 0..2 {
            let mut session = sites.session(region).await;
            run(&mut session, "SET statement_timeout = '8s'").await.expect("sets");
            let begun = world.env.clock.monotonic();
            // What is in its way comes behind its write, so that its commit meets it.
            let slow = "WITH u AS (UPDATE c SET n = n + 100 WHERE id = 1 RETURNING n), s AS (SELECT pg_sleep(3) FROM u) SELECT count(*) FROM s";
            let error = run(&mut session, slow).await.expect_err("it loses");
            let took = world.env.clock.monotonic() - begun;
            assert_eq!((error.code().0, took.as_secs()), ("57014", 8), "{error}");
            // The next one has its own time.
            run(&mut session, "SELECT pg_sleep(1)").await.expect("sleeps");
        }
        writes.await.expect("lives");
        assert_eq!(sites.must(0, "SELECT n FROM c").await, vec![vec![Some("20".to_owned())]]);
    });
}
