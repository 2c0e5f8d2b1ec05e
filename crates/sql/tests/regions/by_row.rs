//! Rows placed by the value of a column: where they are, who writes them, what is read of them
//! where, and how the rule changes.

use std::collections::BTreeMap;
use std::time::Duration;

use futures::TryStreamExt as _;
use object_store::{ObjectStore as _, ObjectStoreExt as _};
use telesto_common::{RegionId, TableId};
use telesto_net::sim::Weather;
use telesto_sql::Error;
use telesto_sql::catalog::regions::storage_range;
use telesto_sql::catalog::store::DEFAULT_DATABASE_ID;
use telesto_testkit::World;
use telesto_txn::{Database as _, ScanOptions, TxnOptions};

use super::reads::copied;
use super::{NAMES, REGIONS, Sites, below, run, seeds, seeds_and};

type Answer = Vec<Vec<Option<String>>>;

fn rows(rows: &[&[&str]]) -> Answer {
    rows.iter().map(|row| row.iter().map(|cell| Some((*cell).to_owned())).collect()).collect()
}

/// A table whose rows say where they are: those of us are in us alone, those of the others in us
/// too.
async fn people(sites: &Sites) {
    for sql in [
        "CREATE TABLE p (region text, id int, name text, n int DEFAULT 0, PRIMARY KEY (region, id), UNIQUE (region, name))",
        "CREATE INDEX p_n ON p (region DESC, n)",
        "INSERT INTO p SELECT r, g, r || g, g FROM unnest(ARRAY['us', 'eu', 'ap']) r, generate_series(1, 3) g",
        "ALTER TABLE p SET (telesto.regions = 'by row (region): eu = eu, us; us = us; ap = ap, us')",
    ] {
        sites.must(0, sql).await;
    }
    sites.quiet().await;
}

impl Sites {
    async fn fails(&self, region: usize, sql: &str) -> Error {
        match self.run(region, sql).await {
            Err(error) => error,
            Ok(rows) => panic!("{}: {sql}: {rows:?}", NAMES[region]),
        }
    }

    pub(crate) async fn refuses(&self, region: usize, sql: &str, code: &str) -> Error {
        let error = self.fails(region, sql).await;
        assert_eq!(error.code().0, code, "{}: {sql}: {error}", NAMES[region]);
        error
    }

    /// Whether the bucket of a region, or what reached it, holds `marker`.
    pub(crate) async fn holds(&self, region: usize, marker: &str) -> bool {
        let store = &self.places[region].store;
        let objects: Vec<_> = store.list(None).try_collect().await.expect("lists");
        for object in objects {
            let body = store.get(&object.location).await.expect("got").bytes().await.expect("read");
            if body.windows(marker.len()).any(|window| window == marker.as_bytes()) {
                return true;
            }
        }
        false
    }

    /// Rows and index entries of a table that a region has, whatever it may show of them.
    pub(crate) async fn stored(&self, region: usize, table: &str) -> usize {
        let oid = self.must(region, &format!("SELECT '{table}'::regclass::oid")).await;
        let oid = oid[0][0].as_deref().and_then(|oid| oid.parse().ok()).expect("a number");
        let range = storage_range(DEFAULT_DATABASE_ID, TableId(oid));
        let txn = self.at(region).engine.begin(TxnOptions::default()).await.expect("begins");
        let found = txn.scan(range, ScanOptions::default()).next_batch(1000).await;
        found.expect("scans").len()
    }

    /// Waits until nobody is getting rows, and all homes have taken over.
    pub(crate) async fn settles(&self) {
        for _ in 0..600 {
            self.tend().await;
            self.quiet().await;
            let open = self.must(0, "SELECT 1 FROM telesto_placement WHERE moved_from IS NOT NULL OR gaining IS NOT NULL").await;
            if open.is_empty() {
                self.quiet().await;
                return;
            }
            self.world.sleep(Duration::from_millis(50)).await;
        }
        panic!("the placement does not settle");
    }
}

#[test]
fn what_is_here_is_read_and_what_is_not_is_said_to_be_elsewhere() {
    World::run(1, false, async |world| {
        let sites = Sites::running(&world).await;
        people(&sites).await;
        let own = rows(&[&["1", "eu1"], &["2", "eu2"], &["3", "eu3"]]);
        // By key, by index, in lists, joined, aggregated, sorted, in a CTE, by a value that is
        // known when it runs.
        for sql in [
            "SELECT id, name FROM p WHERE region = 'eu' ORDER BY id",
            "SELECT id, name FROM p WHERE region IN ('eu') ORDER BY id",
            "SELECT id, name FROM p WHERE region = 'eu' AND n BETWEEN 1 AND 3 ORDER BY name",
            "SELECT id, max(name) FROM p WHERE region = 'eu' GROUP BY id ORDER BY id",
            "WITH e AS (SELECT * FROM p WHERE region = 'eu') SELECT id, name FROM e ORDER BY id",
            "SELECT a.id, b.name FROM p a JOIN p b ON a.id = b.id WHERE a.region = 'eu' AND b.region = 'eu' ORDER BY 1",
            "SELECT a.id, b.name FROM p a JOIN p b ON a.region = b.region AND a.id = b.id WHERE a.region = 'eu' ORDER BY 1",
            "SELECT id, name FROM p WHERE region = lower('EU') ORDER BY id",
            "SELECT id, name FROM p WHERE region = ANY (ARRAY['eu']) ORDER BY id",
        ] {
            assert_eq!(sites.must(1, sql).await, own, "{sql}");
        }
        let three = rows(&[&["3"]]);
        assert_eq!(sites.must(1, "SELECT count(*) FROM p WHERE region = 'eu'").await, three);
        assert_eq!(
            sites.must(1, "SELECT name FROM p WHERE region = 'eu' AND id = 2").await,
            rows(&[&["eu2"]])
        );
        // What no row can have is nowhere, and that is an answer.
        assert!(
            sites.must(1, "SELECT name FROM p WHERE region = 'xx' AND id = 2").await.is_empty()
        );
        // Everything is in us.
        assert_eq!(sites.must(0, "SELECT count(*) FROM p").await, rows(&[&["9"]]));
        for (sql, served) in [
            ("SELECT * FROM p", &[0][..]),
            ("SELECT count(*) FROM p", &[0]),
            ("SELECT max(n) FROM p", &[0]),
            ("SELECT name FROM p WHERE id = 1", &[0]),
            ("SELECT name FROM p WHERE region = 'us' AND id = 1", &[0]),
            ("SELECT name FROM p WHERE region IN ('eu', 'ap') AND id = 1", &[0]),
            ("SELECT name FROM p WHERE region > 'a' ORDER BY region, id LIMIT 1", &[0]),
            ("SELECT name FROM p ORDER BY region DESC, n DESC LIMIT 1", &[0]),
            ("SELECT 1 WHERE EXISTS (SELECT 1 FROM p WHERE n = 77)", &[0]),
            ("SELECT a.id FROM p a JOIN p b ON a.id = b.id WHERE a.region = 'eu'", &[0]),
            ("SELECT telesto_check_table('p')", &[0]),
        ] {
            let mut session = sites.session(1).await;
            run(&mut session, "SET telesto.forward_reads = off").await.expect("sets");
            let error = run(&mut session, sql).await.expect_err(sql);
            assert_eq!(error.code().0, "55000", "{sql}: {error}");
            let served: Vec<_> = served.iter().map(|id| RegionId(*id)).collect();
            assert_eq!(error.placed_in(), served, "{sql}: {error}");
            assert!(error.to_string().contains("not placed in region \"eu\""), "{sql}: {error}");
        }
        // EXPLAIN says where the rows are, by both paths.
        for (sql, told) in [
            (
                "SELECT name FROM p WHERE region = 'eu' AND id = 1",
                "Placed: p: 'eu' is in eu and us (home eu)",
            ),
            ("UPDATE p SET n = 1 WHERE region = 'us'", "Placed: p: 'us' is in us (home us)"),
            (
                "SELECT max(a.name) FROM p a JOIN p b USING (id) WHERE a.region = 'eu' GROUP BY a.id",
                "placed: 'eu' is in eu and us (home eu)",
            ),
            (
                "SELECT name FROM p WHERE region = 'xx' AND id = 1",
                "Placed: p: no value that rows may have",
            ),
        ] {
            let lines = sites.must(1, &format!("EXPLAIN {sql}")).await;
            let found = lines.iter().flatten().flatten().any(|line| line.contains(told));
            assert!(found, "{sql}: {lines:?}");
        }
        // Asked for what is here, both executors tell that.
        let mut session = sites.session(1).await;
        run(&mut session, "SET telesto.local_rows = on").await.expect("sets");
        for (sql, expected) in [
            ("SELECT id, name FROM p ORDER BY region, id", own.clone()),
            ("SELECT id, name FROM p ORDER BY region DESC, id", own.clone()),
            ("SELECT count(*) FROM p", three.clone()),
            ("SELECT max(name) FROM p GROUP BY region", rows(&[&["eu3"]])),
            ("SELECT name FROM p WHERE region = 'us' AND id = 1", Vec::new()),
            ("SELECT name FROM p WHERE region IN ('eu', 'us') AND id = 1", rows(&[&["eu1"]])),
            ("SELECT name FROM p ORDER BY region LIMIT 1", rows(&[&["eu1"]])),
            ("SELECT telesto_check_table('p')", three),
        ] {
            assert_eq!(run(&mut session, sql).await.expect(sql), expected, "{sql}");
        }
        // What decides a constraint is not a matter of what is asked for.
        let taken = run(&mut session, "INSERT INTO p VALUES ('us', 1, 'x')").await;
        assert_eq!(taken.expect_err("taken in us").code().0, "23505");
    });
}

/// A statement that meets rows which are not here is executed in a region that has all it reads.
#[test]
fn rows_elsewhere_are_read_where_they_are() {
    World::run(1, false, async |world| {
        let sites = Sites::running(&world).await;
        people(&sites).await;
        for sql in [
            "CREATE TABLE q (region text, id int, PRIMARY KEY (region, id))",
            "INSERT INTO q SELECT r, g FROM unnest(ARRAY['us', 'eu', 'ap']) r, generate_series(1, 3) g",
            "ALTER TABLE q SET (telesto.regions = 'by row (region)')",
        ] {
            sites.must(0, sql).await;
        }
        sites.quiet().await;
        // Both executors; everything is in us.
        for sql in [
            "SELECT * FROM p ORDER BY region, id",
            "SELECT count(*), max(n) FROM p",
            "SELECT name FROM p WHERE region = 'us' AND id = 1",
            "SELECT name FROM p WHERE region IN ('eu', 'ap') AND id = 1 ORDER BY name",
            "SELECT a.id FROM p a JOIN p b ON a.id = b.id AND a.n = b.n WHERE a.region = 'eu' ORDER BY 1",
            "SELECT 1 WHERE EXISTS (SELECT 1 FROM p WHERE n = 2)",
        ] {
            let there = sites.must(0, sql).await;
            for from in [1, 2] {
                assert_eq!(sites.must(from, sql).await, there, "{}: {sql}", NAMES[from]);
            }
        }
        // The same text again and again, with other values: here, and elsewhere.
        let mut session = sites.session(1).await;
        for (region, id) in [("eu", 1), ("us", 2), ("eu", 3), ("ap", 1), ("us", 3)] {
            let sql = format!("SELECT name FROM p WHERE region = '{region}' AND id = {id}");
            let name = format!("{region}{id}");
            assert_eq!(run(&mut session, &sql).await.expect(&sql), rows(&[&[&name]]));
        }
        // Of q each region has its own rows, and nobody all.
        for region in ["us", "eu", "ap"] {
            let sql = format!("SELECT count(*), max(id) FROM q WHERE region = '{region}'");
            for from in 0..REGIONS {
                assert_eq!(sites.must(from, &sql).await, rows(&[&["3", "3"]]), "{from}: {sql}");
            }
        }
        for sql in [
            "SELECT count(*) FROM q",
            "SELECT id FROM q WHERE region IN ('us', 'ap') AND id = 1",
            "SELECT id FROM q WHERE region = 'us' AND id = 1 UNION ALL SELECT id FROM q WHERE region = 'ap' AND id = 1",
        ] {
            sites.refuses(1, sql, "55000").await;
        }
        // In a transaction of one snapshot rows of another one are not mixed in.
        let mut session = sites.session(1).await;
        run(&mut session, "BEGIN").await.expect("begins");
        let refused = run(&mut session, "SELECT count(*) FROM p").await.expect_err("two snapshots");
        assert_eq!(refused.code().0, "0A000", "{refused}");
    });
}

#[test]
fn each_row_is_written_at_its_home_and_nowhere_else() {
    World::run(1, false, async |world| {
        let sites = Sites::running(&world).await;
        people(&sites).await;
        sites.must(1, "INSERT INTO p VALUES ('eu', 4, 'four')").await;
        sites.must(1, "UPDATE p SET n = n + 10 WHERE region = 'eu' AND id = 1").await;
        // From away: us has the rows of eu, and does not keep them.
        let (_, before) = sites.at(1).engine.applied();
        sites.must(0, "INSERT INTO p VALUES ('eu', 5, 'five')").await;
        assert!(sites.at(1).engine.applied().1 > before, "it was committed in eu");
        assert_eq!(
            sites.must(0, "SELECT n FROM p WHERE region = 'eu' AND name = 'five'").await,
            rows(&[&["0"]])
        );
        let off = sites.run_at_home(0, "INSERT INTO p VALUES ('eu', 6, 'six')").await;
        assert_eq!(off.expect_err("kept in eu").placed_in(), [RegionId(1)]);
        // A key that is unique with the value is unique.
        sites.refuses(0, "INSERT INTO p VALUES ('eu', 9, 'five')", "23505").await;
        sites.refuses(1, "INSERT INTO p VALUES ('eu', 4, 'other')", "23505").await;
        sites.must(0, "INSERT INTO p VALUES ('us', 4, 'four')").await;
        // Rows that are not in ap are changed there as they are at their home.
        sites.must(2, "UPDATE p SET n = n + 1 WHERE region = 'eu' AND id = 5").await;
        sites.must(2, "UPDATE p SET n = n - 1 WHERE region = 'eu' AND name = 'five'").await;
        // A row is somewhere.
        let error = sites.refuses(0, "INSERT INTO p VALUES ('xx', 7, 'seven')", "23514").await;
        assert!(error.to_string().contains("nowhere"), "{error}");
        sites
            .refuses(1, "UPDATE p SET region = 'xx' WHERE region = 'eu' AND id = 4", "23514")
            .await;
        // A transaction writes at one home.
        sites
            .refuses(0, "UPDATE p SET region = 'us' WHERE region = 'eu' AND id = 5", "0A000")
            .await;
        sites.refuses(0, "UPDATE p SET n = 0 WHERE id = 1", "0A000").await;
        sites.refuses(0, "BEGIN; UPDATE p SET n = 0 WHERE region = 'eu'; UPDATE p SET n = 0 WHERE region = 'ap'; COMMIT", "0A000").await;
        sites.must(0, "CREATE TABLE plain (id int PRIMARY KEY)").await;
        sites.refuses(0, "BEGIN; INSERT INTO plain VALUES (1); UPDATE p SET n = 0 WHERE region = 'eu'; COMMIT", "0A000").await;
        sites.must(0, "BEGIN; INSERT INTO plain VALUES (1); UPDATE p SET n = 7 WHERE region = 'us'; COMMIT").await;
        // What is moved goes and comes.
        let mut session = sites.session(0).await;
        run(&mut session, "DELETE FROM p WHERE region = 'eu' AND id = 4").await.expect("deletes");
        run(&mut session, "INSERT INTO p VALUES ('us', 40, 'moved')").await.expect("inserts");
        sites.quiet().await;
        assert_eq!(
            sites.must(1, "SELECT id, n FROM p WHERE region = 'eu' ORDER BY id").await,
            rows(&[&["1", "11"], &["2", "2"], &["3", "3"], &["5", "0"]])
        );
        assert_eq!(sites.must(0, "SELECT telesto_check_table('p')").await, rows(&[&["12"]]));
        sites.settled().await;
        sites.verify().await;
    });
}

/// Of rows that a region does not have it writes new ones: their home says whether their keys are
/// free.
#[test]
fn new_rows_are_written_from_regions_that_do_not_have_them() {
    World::run(1, false, async |world| {
        let sites = Sites::running(&world).await;
        people(&sites).await;
        let before = sites.stored(2, "p").await;
        let seven = "INSERT INTO p VALUES ('eu', 7, 'secret') RETURNING id, n";
        assert_eq!(sites.must(2, seven).await, rows(&[&["7", "0"]]));
        let there = "SELECT name FROM p WHERE region = 'eu' AND id = 7";
        assert_eq!(sites.must(1, there).await, rows(&[&["secret"]]));
        // A session sees what it has written, where that is.
        assert_eq!(sites.must(2, there).await, rows(&[&["secret"]]));
        // Both keys are taken, and said to be in PostgreSQL's words.
        for (sql, constraint, key) in [
            (seven, "p_pkey", "(region, id)=(eu, 7)"),
            (
                "INSERT INTO p VALUES ('eu', 8, 'secret')",
                "p_region_name_key",
                "(region, name)=(eu, secret)",
            ),
        ] {
            let error = sites.refuses(2, sql, "23505").await;
            let fields = error.fields();
            assert_eq!(
                (error.message(), fields.detail.as_deref(), fields.constraint.as_deref()),
                (
                    &*format!("duplicate key value violates unique constraint \"{constraint}\""),
                    Some(&*format!("Key {key} already exists.")),
                    Some(constraint)
                )
            );
        }
        // What was deleted is free, also before ap has heard of it.
        sites.must(1, "DELETE FROM p WHERE region = 'eu' AND id = 7").await;
        sites.must(2, seven).await;
        // Many, from a query and one by one.
        sites
            .must(2, "INSERT INTO p SELECT 'eu', g, 'many' || g FROM generate_series(100, 300) g")
            .await;
        sites
            .refuses(
                2,
                "INSERT INTO p SELECT 'eu', g, 'more' || g FROM generate_series(300, 500) g",
                "23505",
            )
            .await;
        sites.must(2, "INSERT INTO p VALUES ('eu', 20, 'a'), ('eu', 21, 'b')").await;
        sites.refuses(2, "INSERT INTO p VALUES ('eu', 22, 'c'), ('eu', 22, 'd')", "23505").await;
        sites.refuses(2, "INSERT INTO p VALUES ('eu', 22, 'c'), ('ap', 22, 'd')", "0A000").await;
        // In a block: the transaction's own keys at once, the others when it commits.
        let mut session = sites.session(2).await;
        run(&mut session, "BEGIN; INSERT INTO p VALUES ('eu', 30, 'thirty')")
            .await
            .expect("inserts");
        let own = run(&mut session, "INSERT INTO p VALUES ('eu', 30, 'again')").await;
        assert_eq!(own.expect_err("its own").code().0, "23505");
        run(&mut session, "ROLLBACK").await.expect("rolls back");
        run(&mut session, "BEGIN; INSERT INTO p VALUES ('eu', 1, 'one')").await.expect("inserts");
        let taken = run(&mut session, "COMMIT").await.expect_err("taken in eu");
        assert_eq!(taken.code().0, "23505", "{taken}");
        // What was undone asks for nothing.
        run(&mut session, "BEGIN; SAVEPOINT s; INSERT INTO p VALUES ('eu', 1, 'one'); ROLLBACK TO s; INSERT INTO p VALUES ('eu', 30, 'thirty'); COMMIT").await.expect("commits");
        let off = sites.run_at_home(2, "INSERT INTO p VALUES ('eu', 40, 'forty')").await;
        assert_eq!(off.expect_err("kept in eu").code().0, "55000");
        sites.quiet().await;
        assert_eq!(sites.must(0, "SELECT telesto_check_table('p')").await, rows(&[&["214"]]));
        assert_eq!(sites.stored(2, "p").await, before);
        assert!(!sites.holds(2, "secret").await, "a row of eu is in the bucket of ap");
        sites.settled().await;
        sites.verify().await;
    });
}

/// Of rows that a region does not have it changes those that it names, as they are at their home.
#[test]
fn rows_elsewhere_are_changed_as_they_are_there() {
    World::run(1, false, async |world| {
        let sites = Sites::running(&world).await;
        people(&sites).await;
        let before = sites.stored(2, "p").await;
        let eu = "SELECT id, name, n FROM p WHERE region = 'eu' ORDER BY id";
        // By key, by an index, by what is computed, many; what RETURNING says is what is there.
        for (sql, gives) in [
            (
                "UPDATE p SET n = n + 10 WHERE region = 'eu' AND id = 1 RETURNING n",
                rows(&[&["11"]]),
            ),
            (
                "UPDATE p SET n = n + 10 WHERE region = 'eu' AND n = 2 RETURNING id, n",
                rows(&[&["2", "12"]]),
            ),
            (
                "UPDATE p SET name = name || '!' WHERE region = 'eu' AND name = 'eu3' RETURNING name",
                rows(&[&["eu3!"]]),
            ),
            ("DELETE FROM p WHERE region = 'eu' AND id = 2 RETURNING name", rows(&[&["eu2"]])),
            ("DELETE FROM p WHERE region = 'eu' AND id = 2 RETURNING name", Vec::new()),
            (
                "INSERT INTO p VALUES ('eu', 1, 'one') ON CONFLICT DO NOTHING RETURNING id",
                Vec::new(),
            ),
            (
                "INSERT INTO p VALUES ('eu', 1, 'one') ON CONFLICT (region, id) DO UPDATE SET n = p.n + 1 RETURNING n",
                rows(&[&["12"]]),
            ),
            (
                "INSERT INTO p VALUES ('eu', 7, 'seven') ON CONFLICT (region, id) DO UPDATE SET n = 1 RETURNING n",
                rows(&[&["0"]]),
            ),
            (
                "INSERT INTO p SELECT 'eu', g, 'g' || g, g FROM generate_series(100, 400) g",
                Vec::new(),
            ),
            ("UPDATE p SET n = n + 1 WHERE region = 'eu' AND id >= 100", Vec::new()),
            ("DELETE FROM p WHERE region = 'eu' AND id > 101", Vec::new()),
            (
                "WITH one AS (SELECT 1 AS by) UPDATE p SET n = n + one.by FROM one WHERE region = 'eu' AND id = 100 RETURNING n",
                rows(&[&["102"]]),
            ),
            (
                "MERGE INTO p USING (VALUES (101, 'merged')) AS v (id, name) ON p.region = 'eu' AND p.id = v.id WHEN MATCHED THEN UPDATE SET name = v.name",
                Vec::new(),
            ),
        ] {
            assert_eq!(sites.must(2, sql).await, gives, "{sql}");
        }
        let now = rows(&[
            &["1", "eu1", "12"],
            &["3", "eu3!", "3"],
            &["7", "seven", "0"],
            &["100", "g100", "102"],
            &["101", "merged", "102"],
        ]);
        assert_eq!(sites.must(1, eu).await, now);
        assert_eq!(sites.must(2, eu).await, now);
        for (sql, code) in [
            // Keys hold.
            ("UPDATE p SET name = 'seven' WHERE region = 'eu' AND id = 1", "23505"),
            ("UPDATE p SET id = 3 WHERE region = 'eu' AND id = 1", "23505"),
            // Rows of two homes, and of values that are not named.
            ("UPDATE p SET region = 'ap' WHERE region = 'eu' AND id = 7", "0A000"),
            ("UPDATE p SET n = 0 WHERE region IN ('eu', 'us') AND id = 1", "0A000"),
            ("UPDATE p SET n = 0 WHERE id = 1", "0A000"),
            ("DELETE FROM p", "0A000"),
        ] {
            sites.refuses(2, sql, code).await;
        }
        // In a block it sees what it has done, and goes on at one snapshot.
        let mut session = sites.session(2).await;
        for (sql, gives) in [
            ("BEGIN", Vec::new()),
            ("INSERT INTO p VALUES ('eu', 20, 'twenty')", Vec::new()),
            (
                "UPDATE p SET n = n + 1 WHERE region = 'eu' AND id IN (20, 1) RETURNING id, n",
                rows(&[&["1", "13"], &["20", "1"]]),
            ),
            (
                "UPDATE p SET n = n + 1 WHERE region = 'eu' AND n > 12 AND n < 90 RETURNING id, n",
                rows(&[&["1", "14"]]),
            ),
            (
                "DELETE FROM p WHERE region = 'eu' AND name = 'twenty' RETURNING id",
                rows(&[&["20"]]),
            ),
            ("SAVEPOINT s", Vec::new()),
            (
                "DELETE FROM p WHERE region = 'eu' RETURNING id",
                rows(&[&["1"], &["3"], &["7"], &["100"], &["101"]]),
            ),
            ("ROLLBACK TO s", Vec::new()),
            ("COMMIT", Vec::new()),
        ] {
            assert_eq!(
                run(&mut session, sql).await.unwrap_or_else(|error| panic!("{sql}: {error}")),
                gives,
                "{sql}"
            );
        }
        // Somebody else was first. What was not shown is done again; else the client is told.
        run(&mut session, "BEGIN; UPDATE p SET n = n + 1 WHERE region = 'eu' AND id = 3")
            .await
            .expect("updates");
        sites.must(1, "UPDATE p SET n = n + 1 WHERE region = 'eu' AND id = 3").await;
        run(&mut session, "COMMIT").await.expect("done again");
        assert_eq!(
            sites.must(1, "SELECT n FROM p WHERE region = 'eu' AND id = 3").await,
            rows(&[&["5"]])
        );
        run(
            &mut session,
            "BEGIN; UPDATE p SET n = n + 1 WHERE region = 'eu' AND id = 1 RETURNING n",
        )
        .await
        .expect("updates");
        sites.must(1, "UPDATE p SET n = n + 1 WHERE region = 'eu' AND id = 1").await;
        let late = run(&mut session, "COMMIT").await.expect_err("somebody else was first");
        assert_eq!(late.code().0, "40001", "{late}");
        assert_eq!(
            sites.must(1, "SELECT n FROM p WHERE region = 'eu' AND id = 1").await,
            rows(&[&["15"]])
        );
        let off = sites.run_at_home(2, "UPDATE p SET n = 0 WHERE region = 'eu' AND id = 1").await;
        assert_eq!(off.expect_err("kept in eu").code().0, "55000");
        sites.quiet().await;
        assert_eq!(sites.stored(2, "p").await, before);
        // What is known of its rows is of those that are here, and of this region.
        world.sleep(Duration::from_secs(40)).await;
        for (region, count) in [(2, "3"), (0, "11"), (1, "5")] {
            sites.must(region, "ANALYZE").await;
            let known = "SELECT reltuples FROM pg_class WHERE relname = 'p'";
            assert_eq!(sites.must(region, known).await, rows(&[&[count]]), "{region}");
        }
        assert_eq!(sites.must(0, "SELECT telesto_check_table('p')").await, rows(&[&["11"]]));
        sites.settled().await;
        sites.verify().await;
    });
}

/// A condition that does not say where rows are finds them wherever they are; those of two homes
/// are not changed in one transaction.
#[test]
fn rows_are_changed_wherever_they_are_found() {
    World::run(1, false, async |world| {
        let sites = Sites::running(&world).await;
        people(&sites).await;
        sites.must(0, "INSERT INTO p VALUES ('eu', 61, 'one', 1)").await;
        sites.quiet().await;
        for (sql, gives) in [
            // By the rest of the primary key, by an index, by none; in eu, us and here.
            ("UPDATE p SET n = n + 1 WHERE id = 61 RETURNING region, n", rows(&[&["eu", "2"]])),
            (
                "UPDATE p SET n = n + 1 WHERE name = 'us3' RETURNING region, n",
                rows(&[&["us", "4"]]),
            ),
            (
                "UPDATE p SET n = n + 1 WHERE name = 'ap3' RETURNING region, n",
                rows(&[&["ap", "4"]]),
            ),
            ("UPDATE p SET n = n + 1 WHERE name || '!' = 'eu3!' RETURNING n", rows(&[&["4"]])),
            (
                "UPDATE p SET n = 20 WHERE n = 4 AND name LIKE 'us%' RETURNING name",
                rows(&[&["us3"]]),
            ),
            ("UPDATE p SET n = n WHERE id = 99 RETURNING n", Vec::new()),
            (
                "UPDATE p SET n = 21 WHERE id = (SELECT 60 + 1) RETURNING region, n",
                rows(&[&["eu", "21"]]),
            ),
            (
                "UPDATE p SET n = n + v.by FROM (VALUES (61, 9)) AS v (id, by) WHERE p.id = v.id RETURNING p.n",
                rows(&[&["30"]]),
            ),
            (
                "UPDATE p SET n = 31 WHERE id IN (SELECT max(q.id) FROM p q WHERE q.region = 'eu') AND region <> 'us' AND name = 'one' RETURNING n",
                rows(&[&["31"]]),
            ),
            ("DELETE FROM p WHERE id = 61 RETURNING region, n", rows(&[&["eu", "31"]])),
            ("DELETE FROM p WHERE id = 61 RETURNING region", Vec::new()),
        ] {
            assert_eq!(sites.must(2, sql).await, gives, "{sql}");
        }
        // Rows of two homes: nothing is changed.
        for sql in [
            "UPDATE p SET n = 0 WHERE id = 1",
            "DELETE FROM p WHERE id = 1",
            "UPDATE p SET n = 0",
            "BEGIN; UPDATE p SET n = 0 WHERE name = 'us3'; UPDATE p SET n = 0 WHERE name = 'eu3'; COMMIT",
        ] {
            let refused = sites.refuses(2, sql, "0A000").await;
            assert!(refused.to_string().contains("writes in two regions"), "{sql}: {refused}");
        }
        assert!(sites.must(0, "SELECT 1 FROM p WHERE n = 0").await.is_empty());
        // A block goes on at what it has found, and one that writes what is here may have looked
        // for more elsewhere.
        let mut session = sites.session(2).await;
        for (sql, gives) in [
            ("BEGIN", Vec::new()),
            ("UPDATE p SET n = n + 1 WHERE name = 'eu3' RETURNING n", rows(&[&["5"]])),
            ("UPDATE p SET n = n + 1 WHERE name = 'eu3' RETURNING n", rows(&[&["6"]])),
            ("DELETE FROM p WHERE name = 'nobody'", Vec::new()),
            ("COMMIT", Vec::new()),
            (
                "INSERT INTO p SELECT 'ap', 1000, 'of ' || name FROM p WHERE region = 'eu' AND id = 1",
                Vec::new(),
            ),
            ("DELETE FROM p WHERE name = 'of eu1' RETURNING region, id", rows(&[&["ap", "1000"]])),
        ] {
            let given = run(&mut session, sql).await;
            assert_eq!(given.unwrap_or_else(|error| panic!("{sql}: {error}")), gives, "{sql}");
        }
        // What was found there and changed since is told.
        let taken = "BEGIN; UPDATE p SET n = n + 1 WHERE name = 'eu3' RETURNING n";
        run(&mut session, taken).await.expect("updates");
        sites.must(1, "UPDATE p SET n = n + 1 WHERE region = 'eu' AND id = 3").await;
        let late = run(&mut session, "COMMIT").await.expect_err("somebody else was first");
        assert_eq!(late.code().0, "40001", "{late}");
        // So is a row that came where none was found.
        let none = "BEGIN; UPDATE p SET n = n + 1 WHERE name = 'us3' RETURNING n; UPDATE p SET n = 0 WHERE name = 'new' RETURNING n";
        run(&mut session, none).await.expect("updates");
        sites.must(1, "INSERT INTO p VALUES ('eu', 70, 'new')").await;
        let late = run(&mut session, "COMMIT").await.expect_err("somebody else was first");
        assert_eq!(late.code().0, "40001", "{late}");
        // A home that is away may have the row.
        sites.net.cut("eu", "ap");
        sites.refuses(2, "UPDATE p SET n = 0 WHERE name = 'us3'", "08006").await;
        sites.net.heal();
        sites.quiet().await;
        assert_eq!(sites.must(0, "SELECT n FROM p WHERE name = 'us3'").await, rows(&[&["20"]]));
        let off = sites.run_at_home(2, "UPDATE p SET n = 0 WHERE name = 'us3'").await;
        assert_eq!(off.expect_err("kept elsewhere").code().0, "55000");
        sites.settled().await;
        sites.verify().await;
    });
}

/// Rows elsewhere that are locked are validated with what is written at their home.
#[test]
fn rows_elsewhere_are_locked_for_what_is_written_there() {
    World::run(1, false, async |world| {
        let sites = Sites::running(&world).await;
        people(&sites).await;
        for executor in ["auto", "datafusion"] {
            let mut session = sites.session(2).await;
            run(&mut session, &format!("SET telesto.executor = {executor}")).await.expect("sets");
            // What it shows changes: else the block would be done again by itself.
            let locked = "SELECT n FROM p WHERE region = 'eu' AND id = 1 FOR UPDATE";
            assert_eq!(run(&mut session, locked).await.expect(locked).len(), 1);
            let found = "SELECT region FROM p WHERE name = 'eu2' FOR SHARE";
            assert_eq!(run(&mut session, found).await.expect(found), rows(&[&["eu"]]));
            for level in ["SERIALIZABLE", "REPEATABLE READ", "READ COMMITTED"] {
                for changed in [false, true] {
                    let case = format!("{executor}, {level}, {changed}");
                    let begin = format!("BEGIN ISOLATION LEVEL {level}");
                    run(&mut session, &begin).await.expect("begins");
                    assert_eq!(run(&mut session, locked).await.expect(locked).len(), 1);
                    let write = "UPDATE p SET n = n + 1 WHERE region = 'eu' AND id = 2";
                    run(&mut session, write).await.expect(write);
                    if changed {
                        sites
                            .must(1, "UPDATE p SET n = n + 1 WHERE region = 'eu' AND id = 1")
                            .await;
                    }
                    match run(&mut session, "COMMIT").await {
                        Ok(_) => assert!(!changed, "{case}"),
                        Err(error) => {
                            assert!(changed, "{case}: {error}");
                            assert_eq!(error.code().0, "40001", "{case}: {error}");
                        }
                    }
                }
            }
        }
        sites.settled().await;
        sites.verify().await;
    });
}

/// COPY TO sends rows that another region has, where one has all of them.
#[test]
fn copy_sends_rows_that_are_elsewhere() {
    World::run(1, false, async |world| {
        let sites = Sites::running(&world).await;
        people(&sites).await;
        let mut session = sites.session(2).await;
        for (sql, sent) in [
            (
                "COPY (SELECT id, n FROM p WHERE region = 'ap' ORDER BY id) TO STDOUT",
                "1\t1\n2\t2\n3\t3\n",
            ),
            (
                "COPY (SELECT id, n FROM p WHERE region = 'eu' ORDER BY id) TO STDOUT",
                "1\t1\n2\t2\n3\t3\n",
            ),
            ("COPY (SELECT count(*) FROM p) TO STDOUT (FORMAT csv, HEADER)", "count\n9\n"),
        ] {
            assert_eq!(copied(&mut session, sql).await.expect(sql), sent, "{sql}");
        }
        let all = copied(&mut session, "COPY p TO STDOUT").await.expect("sends");
        assert_eq!(all.lines().count(), 9);
        run(&mut session, "SET telesto.local_rows = on").await.expect("sets");
        let own = copied(&mut session, "COPY p TO STDOUT").await.expect("sends");
        assert_eq!(own.lines().count(), 3);
    });
}

/// The labels of an enum say where rows are, as texts do; a region's name that is no label yet
/// places no row.
#[test]
fn rows_are_placed_by_the_labels_of_an_enum() {
    World::run(1, false, async |world| {
        let sites = Sites::running(&world).await;
        for sql in [
            "CREATE TYPE place AS ENUM ('us', 'eu')",
            "CREATE TABLE t (loc place, id int, n int, PRIMARY KEY (loc, id), UNIQUE (loc, n))",
            "CREATE INDEX ON t (loc DESC, n)",
            "INSERT INTO t SELECT p, g, g FROM unnest(enum_range(NULL::place)) p, generate_series(1, 3) g",
        ] {
            sites.must(0, sql).await;
        }
        let none =
            "ALTER TABLE t SET (telesto.regions = 'by row (loc): us = us; eu = eu; ap = ap')";
        sites.refuses(0, none, "22P02").await;
        let few = "ALTER TABLE t SET (telesto.regions = 'by row (loc): us = us')";
        let left_out = sites.refuses(0, few, "23514").await;
        assert!(left_out.message().contains("\"eu\""), "{left_out}");
        sites.must(0, "ALTER TABLE t SET (telesto.regions = 'by row (loc)')").await;
        sites.settles().await;
        let eu = "SELECT id, n FROM t WHERE loc = 'eu' ORDER BY id";
        let all = rows(&[&["1", "1"], &["2", "2"], &["3", "3"]]);
        for region in 0..3 {
            assert_eq!(sites.must(region, eu).await, all);
        }
        assert_eq!(sites.run_at_home(1, eu).await.expect("here"), all);
        let refused = sites.run_at_home(2, eu).await.expect_err("not here");
        assert_eq!(refused.code().0, "55000", "{refused}");
        let counted = "SELECT count(*) FROM t";
        for (region, count) in [(0, "3"), (1, "3"), (2, "0")] {
            let mut session = sites.session(region).await;
            run(&mut session, "SET telesto.local_rows = on").await.expect("sets");
            assert_eq!(run(&mut session, counted).await.expect("counts"), rows(&[&[count]]));
        }
        for (sql, gives) in [
            ("UPDATE t SET n = 10 WHERE loc = 'eu' AND id = 1 RETURNING loc", rows(&[&["eu"]])),
            ("UPDATE t SET n = 11 WHERE n = 10 RETURNING loc, id", rows(&[&["eu", "1"]])),
            ("INSERT INTO t VALUES ('eu', 4, 4) RETURNING loc", rows(&[&["eu"]])),
            ("DELETE FROM t WHERE id = 4 RETURNING loc", rows(&[&["eu"]])),
        ] {
            assert_eq!(sites.must(2, sql).await, gives, "{sql}");
        }
        // A table is filled with rows from each home.
        sites.must(0, "CREATE TABLE c AS SELECT * FROM t").await;
        let filled = "SELECT loc, count(*), sum(n) FROM c GROUP BY loc ORDER BY loc";
        assert_eq!(sites.must(0, filled).await, rows(&[&["us", "3", "6"], &["eu", "3", "16"]]));
        sites.refuses(2, "INSERT INTO t VALUES ('eu', 1, 99)", "23505").await;
        sites.refuses(2, "INSERT INTO t VALUES ('ap', 1, 1)", "22P02").await;
        // A label that the rule names keeps its name; the third region's is added.
        sites.refuses(0, "ALTER TYPE place RENAME VALUE 'eu' TO 'europe'", "55000").await;
        for sql in [
            "ALTER TYPE place ADD VALUE 'elsewhere' BEFORE 'us'",
            "ALTER TYPE place ADD VALUE 'ap' AFTER 'us'",
        ] {
            sites.must(0, sql).await;
        }
        sites.quiet().await;
        let nowhere = sites.refuses(1, "INSERT INTO t VALUES ('elsewhere', 1, 1)", "23514").await;
        assert!(nowhere.message().contains("places a row of table \"t\" nowhere"), "{nowhere}");
        sites.must(1, "INSERT INTO t VALUES ('ap', 1, 1)").await;
        sites.quiet().await;
        assert_eq!(
            sites.must(2, "SELECT loc, id FROM t WHERE loc = 'ap'").await,
            rows(&[&["ap", "1"]])
        );
        let refused = sites.run_at_home(1, "SELECT id FROM t WHERE loc = 'ap'").await;
        assert_eq!(refused.expect_err("in ap alone").code().0, "55000");
        sites.must(0, "ALTER TABLE t RESET (telesto.regions)").await;
        sites.settles().await;
        for region in 0..3 {
            let all = "SELECT string_agg(loc::text || ' ' || id || ' ' || n, ', ' ORDER BY loc, id) FROM t";
            let expected = "us 1 1, us 2 2, us 3 3, ap 1 1, eu 1 11, eu 2 2, eu 3 3";
            assert_eq!(sites.must(region, all).await, rows(&[&[expected]]));
            assert_eq!(
                sites.must(region, "SELECT telesto_check_table('t')").await,
                rows(&[&["7"]])
            );
        }
        sites.must(0, "ALTER TYPE place RENAME VALUE 'eu' TO 'europe'").await;
        sites.settled().await;
        sites.verify().await;
    });
}

/// Statements inside WITH, and cursors that lock, change and lock rows wherever they are.
#[test]
fn parts_of_a_statement_and_cursors_change_rows_where_they_are() {
    World::run(1, false, async |world| {
        let sites = Sites::running(&world).await;
        people(&sites).await;
        for sql in [
            "CREATE TABLE y (id int PRIMARY KEY, n int)",
            "INSERT INTO y VALUES (1, 0)",
            "ALTER TABLE y SET (telesto.home = 'eu')",
        ] {
            sites.must(0, sql).await;
        }
        sites.settles().await;
        for (sql, gives) in [
            (
                "WITH x AS (UPDATE p SET n = n + 10 WHERE region = 'eu' AND id = 1 RETURNING n) SELECT n FROM x",
                rows(&[&["11"]]),
            ),
            (
                "WITH x AS (INSERT INTO p VALUES ('eu', 7, 'seven', 7) RETURNING id), u AS (UPDATE p SET n = n + 1 WHERE region = 'eu' AND id = 2 RETURNING n) SELECT x.id, u.n FROM x, u",
                rows(&[&["7", "3"]]),
            ),
            // What the statement has deleted is still there for its other parts.
            (
                "WITH x AS (DELETE FROM p WHERE name = 'seven' RETURNING id) SELECT id, (SELECT count(*) FROM p WHERE region = 'eu') FROM x",
                rows(&[&["7", "4"]]),
            ),
            (
                "WITH x AS (SELECT id FROM p WHERE region = 'eu' AND id = 3 FOR UPDATE) UPDATE p SET n = 30 FROM x WHERE p.region = 'eu' AND p.id = x.id RETURNING p.n",
                rows(&[&["30"]]),
            ),
            (
                "WITH x AS (MERGE INTO p USING (VALUES (3)) AS v (id) ON p.region = 'eu' AND p.id = v.id WHEN MATCHED THEN UPDATE SET n = 31) SELECT 1",
                rows(&[&["1"]]),
            ),
            ("SELECT name, n FROM p WHERE region = 'eu' AND id = 3", rows(&[&["eu3", "31"]])),
            ("WITH x AS (UPDATE y SET n = n + 1 RETURNING n) SELECT n FROM x", rows(&[&["1"]])),
            ("SELECT n FROM y", rows(&[&["1"]])),
        ] {
            let gives_merge = sql.contains("MERGE").then_some(());
            let given = sites.run(2, sql).await;
            match (given, gives_merge) {
                // PostgreSQL 15 has no MERGE inside WITH.
                (Err(error), Some(())) => {
                    assert_eq!(error.code().0, "0A000", "{sql}: {error}");
                    sites.must(2, "UPDATE p SET n = 31 WHERE region = 'eu' AND id = 3").await;
                }
                (given, _) => {
                    assert_eq!(
                        given.unwrap_or_else(|error| panic!("{sql}: {error}")),
                        gives,
                        "{sql}"
                    );
                }
            }
        }
        let two = "WITH x AS (UPDATE p SET n = 0 WHERE name = 'eu1' RETURNING n), u AS (UPDATE p SET n = 0 WHERE name = 'us1' RETURNING n) SELECT * FROM x, u";
        sites.refuses(2, two, "0A000").await;
        assert!(sites.must(0, "SELECT 1 FROM p WHERE n = 0").await.is_empty());

        // A cursor stands on a row of eu, which is changed there.
        let mut session = sites.session(2).await;
        for (sql, gives) in [
            ("BEGIN", Vec::new()),
            (
                "DECLARE c CURSOR FOR SELECT id, n FROM p WHERE region = 'eu' ORDER BY id FOR UPDATE",
                Vec::new(),
            ),
            ("FETCH c", rows(&[&["1", "11"]])),
            ("UPDATE p SET n = 100 WHERE CURRENT OF c RETURNING name, n", rows(&[&["eu1", "100"]])),
            ("FETCH c", rows(&[&["2", "3"]])),
            ("DELETE FROM p WHERE CURRENT OF c RETURNING name", rows(&[&["eu2"]])),
            ("FETCH ALL FROM c", rows(&[&["3", "31"]])),
            ("COMMIT", Vec::new()),
        ] {
            let given = run(&mut session, sql).await;
            assert_eq!(given.unwrap_or_else(|error| panic!("{sql}: {error}")), gives, "{sql}");
        }
        let eu = "SELECT id, n FROM p WHERE region = 'eu' ORDER BY id";
        assert_eq!(sites.must(1, eu).await, rows(&[&["1", "100"], &["3", "31"]]));
        // What it has shown is locked; it changes, or the block would be done again by itself.
        let cursor = "BEGIN; DECLARE c CURSOR FOR SELECT n FROM p WHERE name = 'eu3' FOR UPDATE";
        run(&mut session, cursor).await.expect("declares");
        assert_eq!(run(&mut session, "FETCH c").await.expect("fetches"), rows(&[&["31"]]));
        run(&mut session, "UPDATE p SET n = 0 WHERE name = 'eu1'").await.expect("writes");
        sites.must(1, "UPDATE p SET n = 32 WHERE region = 'eu' AND id = 3").await;
        let late = run(&mut session, "COMMIT").await.expect_err("somebody else was first");
        assert_eq!(late.code().0, "40001", "{late}");
        sites.quiet().await;
        assert_eq!(sites.must(0, "SELECT telesto_check_table('p')").await, rows(&[&["8"]]));
        sites.settled().await;
        sites.verify().await;
    });
}

/// A row that goes from one home to another is never met at both: what is read at several homes is
/// of one cut.
#[test]
fn what_is_read_at_several_homes_is_one_cut() {
    let (mut found, mut none) = (0, 0);
    for seed in seeds() {
        World::run(seed, false, async |world| {
            let sites = Sites::running(&world).await;
            for sql in [
                "CREATE TABLE r (place text, id int, n int, PRIMARY KEY (place, id))",
                "INSERT INTO r VALUES ('a', 1, 0)",
                "ALTER TABLE r SET (telesto.regions = 'by row (place): a = us; b = eu; c = ap')",
            ] {
                sites.must(0, sql).await;
            }
            sites.settles().await;
            for turn in 0..30 {
                let weather =
                    Weather { delay: Duration::from_millis(below(&world, 60)), ..Weather::CALM };
                sites.net.set_weather(weather);
                let (from, to) = if turn % 2 == 0 { ('a', 'b') } else { ('b', 'a') };
                let wait = Duration::from_millis(below(&world, 200));
                let moves = async {
                    world.sleep(wait).await;
                    sites
                        .must(0, &format!("DELETE FROM r WHERE place = '{from}' AND id = 1"))
                        .await;
                    sites.must(0, &format!("INSERT INTO r VALUES ('{to}', 1, 0)")).await;
                };
                // By ranges, one after the other, and by keys, at the same time.
                let looks = match turn % 4 / 2 {
                    0 => "SELECT place FROM r WHERE id = 1 FOR UPDATE",
                    _ => "SELECT place FROM r WHERE place IN ('a', 'b', 'c') AND id = 1 FOR UPDATE",
                };
                let (looked, ()) = futures::join!(sites.run(2, looks), moves);
                match looked {
                    Ok(places) => {
                        assert!(places.len() < 2, "seed {seed}, turn {turn}: {places:?}");
                        *(if places.is_empty() { &mut none } else { &mut found }) += 1;
                    }
                    Err(error) => assert_eq!(error.code().0, "40001", "seed {seed}: {error}"),
                }
            }
            sites.quiet().await;
            sites.settled().await;
        });
    }
    assert!(found > 10, "{found}, {none}");
}

/// Counters that every region increments, wherever their rows are, while links are cut and regions
/// killed, and two rows of which one at least stays: each acknowledged increment is there once, and
/// of two that read both rows one is refused.
#[test]
fn rows_elsewhere_are_changed_once_and_serializably() {
    let (mut counted, mut taken, mut refused) = ([0; REGIONS], [0; 2], 0);
    for seed in seeds() {
        World::run(seed, false, async |world| {
            let mut sites = Sites::running(&world).await;
            for sql in [
                "CREATE TABLE r (place text, id int, n int, PRIMARY KEY (place, id))",
                "CREATE INDEX ON r (place, n)",
                "INSERT INTO r SELECT v, g, 0 FROM unnest(ARRAY['a', 'b', 'c']) v, generate_series(1, 3) g",
                "ALTER TABLE r SET (telesto.regions = 'by row (place): a = us; b = eu; c = ap')",
            ] {
                sites.must(0, sql).await;
            }
            sites.settles().await;
            sites.net.set_weather(Weather { delay: Duration::from_millis(40), ..Weather::FOUL });
            let (mut least, mut most) = ([0_i64; REGIONS], [0_i64; REGIONS]);
            for _ in 0..50 {
                sites.disturb().await;
                let (region, home) = (below(&world, 3) as usize, below(&world, 3) as usize);
                let value = VALUES[home];
                let add = format!("UPDATE r SET n = n + 1 WHERE place = '{value}' AND id = 1");
                let (one, other) = (region, (region + 1) % REGIONS);
                let (a, b) = futures::join!(sites.run(one, &add), sites.run(other, &add));
                for (at, result) in [(one, a), (other, b)] {
                    match result {
                        Ok(_) => {
                            least[home] += 1;
                            most[home] += 1;
                            counted[at] += usize::from(at != home);
                        }
                        Err(error) => match error.code().0 {
                            "08007" | "57P01" => most[home] += 1,
                            "08006" | "40001" | "55000" | "57P03" => refused += 1,
                            _ => panic!("seed {seed}: {add}: {error}"),
                        },
                    }
                }
                // Each takes the other row only while this one is there.
                let take = |id: i64| {
                    format!(
                        "DELETE FROM r WHERE place = '{value}' AND id = {id} AND 2 = (SELECT count(*) FROM r WHERE place = '{value}' AND id > 1)"
                    )
                };
                let (take, also) = (take(2), take(3));
                let (a, b) = futures::join!(sites.run(one, &take), sites.run(other, &also));
                taken[0] += usize::from(a.is_ok());
                taken[1] += usize::from(b.is_ok());
                let left = loop {
                    let sql = format!("SELECT id FROM r WHERE place = '{value}' AND id > 1");
                    match sites.run(home, &sql).await {
                        Ok(left) => break left,
                        Err(_) => world.sleep(Duration::from_millis(200)).await,
                    }
                };
                assert!(
                    !left.is_empty(),
                    "seed {seed}: {value}: both rows were taken: {a:?}, {b:?}"
                );
                let sql = format!(
                    "INSERT INTO r SELECT '{value}', g, 0 FROM generate_series(2, 3) g ON CONFLICT DO NOTHING"
                );
                while sites.run(home, &sql).await.is_err() {
                    world.sleep(Duration::from_millis(200)).await;
                }
            }
            sites.net.set_weather(Weather::CALM);
            sites.net.heal();
            sites.quiet().await;
            for (home, value) in VALUES.iter().enumerate() {
                let sql = format!("SELECT n FROM r WHERE place = '{value}' AND id = 1");
                let n = sites.must(home, &sql).await;
                let n: i64 = n[0][0].as_deref().and_then(|n| n.parse().ok()).expect("a number");
                assert!(
                    (least[home]..=most[home]).contains(&n),
                    "seed {seed}: {value}: {n}, not {} to {}",
                    least[home],
                    most[home]
                );
            }
            sites.settled().await;
            sites.verify().await;
        });
    }
    // Else the test has tested nothing.
    assert!(
        counted.iter().all(|count| *count > 5)
            && taken.iter().all(|count| *count > 20)
            && refused > 0,
        "{counted:?}, {taken:?}, {refused}"
    );
}

/// A row elsewhere that depends on a write of a third region is never met beside what was before
/// that write.
#[test]
fn what_is_read_here_and_there_is_one_cut() {
    let (mut done, mut refused) = (0, 0);
    for seed in seeds() {
        World::run(seed, false, async |world| {
            let sites = Sites::running(&world).await;
            for sql in [
                "CREATE TABLE t (id int PRIMARY KEY, v int)",
                "INSERT INTO t VALUES (1, 0)",
                "CREATE TABLE r (place text, id int, seen int, later int, PRIMARY KEY (place, id))",
                "INSERT INTO r VALUES ('b', 1, 0, 0)",
                "ALTER TABLE r SET (telesto.regions = 'by row (place): a = us; b = eu; c = ap')",
            ] {
                sites.must(0, sql).await;
            }
            sites.settles().await;
            for turn in 0..12 {
                match below(&world, 3) {
                    0 => sites.net.cut("us", "ap"),
                    1 => sites.net.heal(),
                    _ => sites.net.set_weather(Weather {
                        delay: Duration::from_millis(below(&world, 100)),
                        ..Weather::CALM
                    }),
                }
                sites.must(0, "UPDATE t SET v = v + 1").await;
                sites.reaches(0, 1).await;
                sites.must(1, "UPDATE r SET seen = (SELECT v FROM t WHERE t.id = 1) WHERE place = 'b' AND id = 1").await;
                let depends = "UPDATE r SET later = (SELECT v FROM t WHERE t.id = 1) WHERE place = 'b' AND id = 1 RETURNING seen, later";
                match sites.run(2, depends).await {
                    Ok(found) => {
                        let cell =
                            |at: usize| found[0][at].as_deref().and_then(|cell| cell.parse().ok());
                        let (seen, later): (i64, i64) =
                            (cell(0).expect("a number"), cell(1).expect("a number"));
                        assert!(seen <= later, "seed {seed}, turn {turn}: {seen} beside {later}");
                        done += 1;
                    }
                    Err(error) => {
                        assert!(
                            ["08006", "40001"].contains(&error.code().0),
                            "seed {seed}: {error}"
                        );
                        refused += 1;
                    }
                }
            }
            sites.net.heal();
        });
    }
    assert!(done > 10, "{done}, {refused}");
}

/// Rows of the same keys are added in every region, and deleted at home, while links are cut and
/// regions killed: a key that is taken is never taken again, and one that is free is.
#[test]
fn keys_are_taken_once_wherever_their_rows_are_added() {
    let (mut added, mut taken, mut deleted) = ([0; REGIONS], [0; REGIONS], 0);
    for seed in seeds() {
        World::run(seed, false, async |world| {
            let mut sites = Sites::running(&world).await;
            sites
                .must(0, "CREATE TABLE r (place text, id int, tag text, PRIMARY KEY (place, id))")
                .await;
            let rule =
                "ALTER TABLE r SET (telesto.regions = 'by row (place): a = us; b = eu; c = ap')";
            sites.must(0, rule).await;
            sites.settles().await;
            sites.net.set_weather(Weather { delay: Duration::from_millis(40), ..Weather::FOUL });
            let mut known: BTreeMap<(usize, u64), Vec<Option<i64>>> = BTreeMap::new();
            // Of which it was not told whether they were committed: they may be, later.
            let mut unknown: BTreeMap<(usize, u64), Vec<Option<i64>>> = BTreeMap::new();
            for turn in 0..120_i64 {
                sites.disturb().await;
                let (region, home) = (below(&world, 3) as usize, below(&world, 3) as usize);
                let (id, value) = (below(&world, 8), VALUES[home]);
                let delete = below(&world, 3) == 0;
                let (at, sql, after) = match delete {
                    true => {
                        (home, format!("DELETE FROM r WHERE place = '{value}' AND id = {id}"), None)
                    }
                    false => (
                        region,
                        format!("INSERT INTO r VALUES ('{value}', {id}, '{turn}')"),
                        Some(turn),
                    ),
                };
                let may_be = known.entry((home, id)).or_insert_with(|| vec![None]);
                let late = unknown.entry((home, id)).or_default();
                match sites.run(at, &sql).await {
                    Ok(_) if delete => {
                        deleted += usize::from(may_be.iter().any(Option::is_some));
                        *may_be = vec![None];
                    }
                    Ok(_) => {
                        assert!(may_be.contains(&None), "seed {seed}: {sql}: taken by {may_be:?}");
                        added[region] += usize::from(region != home);
                        *may_be = vec![after];
                    }
                    Err(error) => match error.code().0 {
                        "23505" => {
                            may_be.retain(Option::is_some);
                            may_be.extend(late.iter().copied());
                            assert!(
                                !may_be.is_empty(),
                                "seed {seed}: {sql}: {error}, but it was free"
                            );
                            taken[region] += usize::from(region != home);
                        }
                        "08007" | "57P01" if delete => may_be.push(after),
                        "08007" | "57P01" => late.push(after),
                        "08006" | "40001" | "55000" | "57P03" => {}
                        _ => panic!("seed {seed}: {sql}: {error}"),
                    },
                }
            }
            sites.net.set_weather(Weather::CALM);
            sites.net.heal();
            sites.quiet().await;
            for (home, value) in VALUES.iter().enumerate() {
                let sql = format!("SELECT id, tag FROM r WHERE place = '{value}'");
                let found = sites.must(home, &sql).await;
                let found: BTreeMap<u64, i64> = found
                    .iter()
                    .map(|row| {
                        let cell = |at: usize| row[at].as_deref().expect("a value");
                        (cell(0).parse().expect("an id"), cell(1).parse().expect("a tag"))
                    })
                    .collect();
                for ((_, id), may_be) in known.iter().filter(|((at, _), _)| *at == home) {
                    let there = found.get(id).copied();
                    assert!(
                        may_be.contains(&there) || unknown[&(home, *id)].contains(&there),
                        "seed {seed}: {value} {id}: {there:?}, not of {may_be:?}"
                    );
                }
            }
            sites.settled().await;
            sites.verify().await;
        });
    }
    // Else the test has tested nothing.
    let some = |counts: &[usize; REGIONS]| counts.iter().all(|count| *count > 5);
    assert!(some(&added) && some(&taken) && deleted > 20, "{added:?}, {taken:?}, {deleted}");
}

/// A row is added away from its home while the row that it references is deleted there: one of the
/// two is refused.
#[test]
fn referenced_rows_stay_while_rows_are_added_away_from_home() {
    let (mut added, mut deleted) = (0, 0);
    for seed in seeds() {
        World::run(seed, false, async |world| {
            let sites = Sites::running(&world).await;
            for sql in [
                "CREATE TABLE p (region text, id int, PRIMARY KEY (region, id))",
                "CREATE TABLE c (region text, p int, PRIMARY KEY (region, p), FOREIGN KEY (region, p) REFERENCES p)",
                "INSERT INTO p SELECT 'us', g FROM generate_series(1, 60) g",
                "ALTER TABLE p SET (telesto.regions = 'by row (region)')",
                "ALTER TABLE c SET (telesto.regions = 'by row (region)')",
            ] {
                sites.must(0, sql).await;
            }
            sites.settles().await;
            sites.net.set_weather(Weather { delay: Duration::from_millis(20), ..Weather::CALM });
            let mut children = 0;
            for id in 1..=60 {
                let add = format!("INSERT INTO c VALUES ('us', {id})");
                let delete = format!("DELETE FROM p WHERE region = 'us' AND id = {id}");
                let late = Duration::from_micros(below(&world, 60_000));
                let delete = async {
                    world.sleep(late).await;
                    sites.run(0, &delete).await
                };
                let (one, other) = futures::join!(sites.run(1, &add), delete);
                assert!(one.is_err() || other.is_err(), "seed {seed}: {id}: both");
                for error in [one.as_ref().err(), other.as_ref().err()].into_iter().flatten() {
                    assert!(["23503", "40001"].contains(&error.code().0), "seed {seed}: {error}");
                }
                added += usize::from(one.is_ok());
                children += usize::from(one.is_ok());
                deleted += usize::from(other.is_ok());
            }
            let orphans = "SELECT count(*) FROM c WHERE region = 'us' AND NOT EXISTS (SELECT FROM p WHERE p.region = 'us' AND p.id = c.p)";
            assert_eq!(sites.must(0, orphans).await, rows(&[&["0"]]));
            let all = "SELECT count(*) FROM c WHERE region = 'us'";
            assert_eq!(sites.must(0, all).await, rows(&[&[&children.to_string()]]));
        });
    }
    assert!(added > 20 && deleted > 20, "{added}, {deleted}");
}

/// Keys and values of rows that are placed in one region are in no bucket of the others, nor the
/// keys of those that were deleted.
#[test]
fn rows_are_in_no_bucket_that_they_are_not_placed_in() {
    World::run(1, false, async |world| {
        let sites = Sites::running(&world).await;
        for sql in [
            "CREATE TABLE p (region text, id text, name text, PRIMARY KEY (region, id))",
            "CREATE INDEX ON p (region, name)",
            "ALTER TABLE p SET (telesto.regions = 'by row (region)')",
        ] {
            sites.must(0, sql).await;
        }
        sites.quiet().await;
        for (region, name) in NAMES.iter().enumerate() {
            sites
                .must(
                    region,
                    &format!("INSERT INTO p VALUES ('{name}', 'key-of-{name}', 'value-of-{name}')"),
                )
                .await;
            sites
                .must(region, &format!("INSERT INTO p VALUES ('{name}', 'gone-of-{name}', 'x')"))
                .await;
            sites
                .must(
                    region,
                    &format!("DELETE FROM p WHERE region = '{name}' AND id = 'gone-of-{name}'"),
                )
                .await;
        }
        sites.quiet().await;
        sites.must(0, "TRUNCATE p").await;
        sites.must(0, "DROP TABLE p").await;
        world.sleep(Duration::from_secs(20)).await;
        sites.quiet().await;
        for (region, name) in NAMES.iter().enumerate() {
            for (other, placed) in NAMES.iter().enumerate() {
                for marker in ["key-of", "value-of", "gone-of"] {
                    let found = sites.holds(region, &format!("{marker}-{placed}")).await;
                    assert_eq!(found, region == other, "{marker}-{placed} in {name}");
                }
            }
        }
    });
}

#[test]
fn rule_is_checked_shown_and_changed() {
    World::run(1, false, async |world| {
        let sites = Sites::running(&world).await;
        for sql in [
            "CREATE TABLE a (id int PRIMARY KEY, region text NOT NULL)",
            "CREATE TABLE b (region text, id int)",
            "CREATE TABLE c (region int, id int, PRIMARY KEY (region, id))",
            "CREATE TABLE d (region text, id int, name text, PRIMARY KEY (region, id), UNIQUE (name))",
            "CREATE TABLE e (region text, id int, PRIMARY KEY (region, id))",
            "INSERT INTO e VALUES ('xx', 1)",
        ] {
            sites.must(0, sql).await;
        }
        let set = |table: &str, rule: &str| {
            format!("ALTER TABLE {table} SET (telesto.regions = '{rule}')")
        };
        let simple = "by row (region)";
        for table in ["a", "b", "c", "d"] {
            let error = sites.refuses(0, &set(table, simple), "55000").await;
            assert!(error.fields().hint.is_some(), "{error}");
        }
        sites.refuses(0, &set("e", simple), "23514").await;
        sites.refuses(0, &set("e", "by row (nothing)"), "42703").await;
        sites.refuses(0, &set("e", "by row (region): xx = mars"), "22023").await;
        sites.refuses(0, &set("e", "by row (region): xx"), "22023").await;
        sites.must(0, &set("e", "by row (region): xx = eu; yy = us, ap")).await;
        let shown = "SELECT home, regions FROM telesto_placement WHERE table_name = 'e'";
        assert_eq!(
            sites.must(0, shown).await,
            rows(&[&["by row", "by row (region): xx = eu; yy = us, ap"]])
        );
        // What needs to see all rows of all regions is refused; what no row shows is not.
        for sql in [
            "CREATE INDEX ON e (region, id)",
            "ALTER TABLE e ADD CHECK (id > 0)",
            "ALTER TABLE e ALTER COLUMN id TYPE bigint",
            "ALTER TABLE e ADD COLUMN v float DEFAULT random()",
            "ALTER TABLE e DROP COLUMN region",
        ] {
            sites.refuses(0, sql, "55000").await;
        }
        sites.must(0, "ALTER TABLE e ADD COLUMN note text").await;
        sites.must(0, "ALTER TABLE e ADD COLUMN kind text NOT NULL DEFAULT 'k'").await;
        sites.must(0, "ALTER TABLE e ALTER COLUMN note SET DEFAULT 'n'").await;
        sites.refuses(0, "ALTER TABLE e SET (telesto.home = 'eu')", "55000").await;
        sites.quiet().await;
        assert_eq!(
            sites.must(1, "SELECT * FROM e WHERE region = 'xx'").await,
            vec![vec![Some("xx".into()), Some("1".into()), None, Some("k".into())]]
        );
        sites.must(1, "INSERT INTO e VALUES ('xx', 2)").await;
        sites.must(0, "ALTER TABLE e DROP COLUMN note").await;
        sites.quiet().await;
        sites.must(1, "INSERT INTO e VALUES ('xx', 3)").await;
        // What is not placed here any more is removed, and nobody else loses it.
        assert_eq!(sites.stored(1, "e").await, 3);
        world.sleep(Duration::from_secs(40)).await;
        assert_eq!((sites.stored(0, "e").await, sites.stored(1, "e").await), (0, 3));
        // A value that rows may have stays, until its home is where that can be told.
        sites.refuses(0, &set("e", "by row (region): yy = us"), "55000").await;
        sites.must(0, &set("e", "by row (region): xx = us, eu; yy = us")).await;
        sites.settles().await;
        assert_eq!(
            sites.must(0, "SELECT id FROM e ORDER BY id").await,
            rows(&[&["1"], &["2"], &["3"]])
        );
        sites.refuses(0, &set("e", "by row (region): yy = us"), "55000").await;
        sites.must(0, "DELETE FROM e").await;
        sites.must(0, &set("e", "by row (region): yy = us")).await;
        sites.refuses(0, "INSERT INTO e VALUES ('xx', 1)", "23514").await;
        sites.must(0, "INSERT INTO e VALUES ('yy', 1)").await;
        // Back: every row is everywhere, and one region writes them.
        sites.must(0, &set("e", "by row (region): yy = ap")).await;
        sites.settles().await;
        sites.must(2, "INSERT INTO e VALUES ('yy', 2)").await;
        sites.must(0, "ALTER TABLE e RESET (telesto.regions)").await;
        sites.settles().await;
        for region in 0..REGIONS {
            assert_eq!(
                sites.must(region, "SELECT id FROM e ORDER BY id").await,
                rows(&[&["1"], &["2"]])
            );
            assert_eq!(
                sites.must(region, "SELECT telesto_check_table('e')").await,
                rows(&[&["2"]])
            );
        }
        sites.must(0, "CREATE INDEX ON e (id)").await;
        sites.quiet().await;
        sites.settled().await;
        sites.verify().await;
    });
}

const VALUES: [&str; 3] = ["a", "b", "c"];

/// A rule that places each value at random, and which regions have which.
fn any_rule(world: &World) -> (String, Vec<Vec<usize>>) {
    let mut places = Vec::new();
    for _ in VALUES {
        let mut regions = vec![below(world, 3) as usize];
        for other in 0..REGIONS {
            if !regions.contains(&other) && below(world, 3) == 0 {
                regions.push(other);
            }
        }
        places.push(regions);
    }
    let one = |(value, regions): (&&str, &Vec<usize>)| {
        let names: Vec<_> = regions.iter().map(|region| NAMES[*region]).collect();
        format!("{value} = {}", names.join(", "))
    };
    let values: Vec<_> = VALUES.iter().zip(&places).map(one).collect();
    (format!("by row (place): {}", values.join("; ")), places)
}

/// Rules change at random while every region writes, links are cut and regions killed: what was
/// acknowledged is there, once, wherever it is placed, and what was deleted does not come back with
/// a region that gets what it had before.
#[test]
fn rules_change_under_writes_and_nothing_is_lost_or_comes_back() {
    let (mut written, mut refused, mut deleted) = ([0; REGIONS], 0, 0);
    for seed in seeds_and(&[1099]) {
        World::run(seed, false, async |world| {
            let mut sites = Sites::running(&world).await;
            for sql in [
                "CREATE TABLE r (place text, id int, tag text, PRIMARY KEY (place, id), UNIQUE (place, tag))",
                "CREATE INDEX ON r (place DESC, tag DESC)",
                "INSERT INTO r SELECT v, -g, 'old ' || g FROM unnest(ARRAY['a', 'b', 'c']) v, generate_series(1, 5) g",
            ] {
                sites.must(0, sql).await;
            }
            // What each row may be: its tag, or nothing.
            let mut rows: BTreeMap<(String, i64), Vec<Option<String>>> = BTreeMap::new();
            for value in VALUES {
                for g in 1..=5 {
                    rows.insert((value.to_owned(), -g), vec![Some(format!("old {g}"))]);
                }
            }
            let rule = |text: &str| format!("ALTER TABLE r SET (telesto.regions = '{text}')");
            sites.must(0, &rule(&any_rule(&world).0)).await;
            sites.quiet().await;
            sites.net.set_weather(Weather { delay: Duration::from_millis(40), ..Weather::FOUL });
            for turn in 0..160_i64 {
                sites.disturb().await;
                match below(&world, 16) {
                    0 => {
                        sites.must(0, &rule(&any_rule(&world).0)).await;
                    }
                    1 => sites.at(0).sql.settle_regions().await.expect("settles"),
                    2 => world.sleep(Duration::from_secs(3)).await,
                    _ => {}
                }
                let region = below(&world, 3) as usize;
                let value = VALUES[below(&world, 3) as usize];
                let there: Vec<i64> =
                    rows.keys().filter(|(v, _)| v == value).map(|(_, id)| *id).collect();
                let (id, sql, after) = match below(&world, 3) {
                    0 if !there.is_empty() => {
                        let id = there[below(&world, there.len() as u64) as usize];
                        (
                            id,
                            format!(
                                "DELETE FROM r WHERE place = '{value}' AND id = {id} RETURNING id"
                            ),
                            None,
                        )
                    }
                    _ => {
                        let tag = format!("{turn}");
                        (
                            turn,
                            format!("INSERT INTO r VALUES ('{value}', {turn}, '{tag}')"),
                            Some(tag),
                        )
                    }
                };
                let known = rows.entry((value.to_owned(), id)).or_insert_with(|| vec![None]);
                match sites.run(region, &sql).await {
                    // The row has not come here yet.
                    Ok(gone) if after.is_none() && gone.is_empty() => {}
                    Ok(_) => {
                        written[region] += 1;
                        deleted += usize::from(after.is_none());
                        *known = vec![after];
                    }
                    Err(error) => match error.code().0 {
                        "08007" | "57P01" => known.push(after),
                        "08006" | "40001" | "55000" | "57P03" => refused += 1,
                        _ => panic!("seed {seed}: {sql}: {error}"),
                    },
                }
            }
            sites.net.set_weather(Weather::CALM);
            sites.net.heal();
            let (last, places) = any_rule(&world);
            sites.must(0, &rule(&last)).await;
            sites.settles().await;
            sites.settled().await;
            sites.verify().await;
            let expected = |value: &str, found: &[(String, Option<String>)]| {
                let found: BTreeMap<_, _> = found.iter().cloned().collect();
                for ((v, id), known) in &rows {
                    let there = found.get(&id.to_string()).cloned().flatten();
                    assert!(
                        v != value || known.contains(&there),
                        "seed {seed}: {value} {id}: {there:?}, not of {known:?}"
                    );
                }
            };
            for region in 0..REGIONS {
                let mut session = sites.session(region).await;
                run(&mut session, "SET telesto.local_rows = on").await.expect("sets");
                let mut all = 0;
                for (value, regions) in VALUES.iter().zip(&places) {
                    let sql = format!("SELECT id, tag FROM r WHERE place = '{value}'");
                    let found = run(&mut session, &sql).await.expect("reads");
                    if !regions.contains(&region) {
                        assert!(found.is_empty());
                        continue;
                    }
                    all += found.len();
                    let found: Vec<_> = found
                        .into_iter()
                        .map(|mut row| (row.remove(0).expect("id"), row.remove(0)))
                        .collect();
                    expected(value, &found);
                }
                let checked = run(&mut session, "SELECT telesto_check_table('r')").await;
                assert_eq!(
                    checked.expect("fits"),
                    vec![vec![Some(all.to_string())]],
                    "seed {seed}"
                );
            }
            // Everywhere again: also what regions had before, and not since.
            world.sleep(Duration::from_secs(30)).await;
            sites.must(0, "ALTER TABLE r RESET (telesto.regions)").await;
            sites.settles().await;
            let found = sites.check("r").await;
            for value in VALUES {
                let of: Vec<_> = found
                    .iter()
                    .filter(|row| row[0].as_deref() == Some(value))
                    .map(|row| (row[1].clone().expect("id"), row[2].clone()))
                    .collect();
                expected(value, &of);
            }
            sites.settled().await;
            sites.verify().await;
        });
    }
    // Else the test has tested nothing.
    assert!(
        refused > 0 && deleted > 20 && written.iter().all(|count| *count > 20),
        "{refused}, {deleted}, {written:?}"
    );
}

/// A foreign key between two such tables is checked where both rows are written; one that cannot be
/// is refused, not trusted.
#[test]
fn foreign_keys_hold_at_the_homes_of_both_rows() {
    World::run(1, false, async |world| {
        let sites = Sites::running(&world).await;
        for sql in [
            "CREATE TABLE p (region text, id int, PRIMARY KEY (region, id))",
            "CREATE TABLE c (region text, p int, n int, PRIMARY KEY (region, p, n), FOREIGN KEY (region, p) REFERENCES p)",
            "CREATE TABLE plain (id int PRIMARY KEY)",
            "CREATE TABLE mixed (region text, id int REFERENCES plain, PRIMARY KEY (region, id))",
            "INSERT INTO p VALUES ('eu', 1), ('us', 2)",
            "ALTER TABLE p SET (telesto.regions = 'by row (region)')",
        ] {
            sites.must(0, sql).await;
        }
        let rule = "ALTER TABLE c SET (telesto.regions = 'by row (region)')";
        let refused = sites.refuses(0, "INSERT INTO c VALUES ('us', 2, 1)", "55000").await;
        assert!(refused.to_string().contains("foreign key"), "{refused}");
        sites.must(0, rule).await;
        sites.must(0, &rule.replace("TABLE c", "TABLE mixed")).await;
        sites.settles().await;
        sites.must(1, "INSERT INTO c VALUES ('eu', 1, 1)").await;
        sites.refuses(1, "INSERT INTO c VALUES ('eu', 2, 1)", "23503").await;
        sites.refuses(1, "DELETE FROM p WHERE region = 'eu' AND id = 1", "23503").await;
        // Its parent is in us, which eu cannot see, and which looks for it.
        sites.must(1, "INSERT INTO c VALUES ('us', 2, 1)").await;
        let missing = sites.refuses(1, "INSERT INTO c VALUES ('us', 3, 1)", "23503").await;
        assert!(
            missing
                .to_string()
                .contains("table \"c\" violates foreign key constraint \"c_region_p_fkey\""),
            "{missing}"
        );
        assert_eq!(
            missing.fields().detail.as_deref(),
            Some("Key (region, id)=(us, 3) is not present in table \"p\".")
        );
        sites
            .must(
                1,
                "BEGIN; INSERT INTO p VALUES ('us', 3); INSERT INTO c VALUES ('us', 3, 1); COMMIT",
            )
            .await;
        sites.must(1, "BEGIN; SAVEPOINT s; INSERT INTO c VALUES ('us', 4, 1); ROLLBACK TO s; INSERT INTO p VALUES ('us', 5); COMMIT").await;
        sites.refuses(0, "DELETE FROM p WHERE region = 'us' AND id = 3", "23503").await;
        let refused = sites.refuses(0, "INSERT INTO mixed VALUES ('us', 1)", "55000").await;
        assert!(refused.to_string().contains("foreign key"), "{refused}");
        // Homes that are not the same any more.
        sites.must(0, "ALTER TABLE p SET (telesto.regions = 'by row (region): us = us; eu = us, eu; ap = ap')").await;
        sites.settles().await;
        let refused = sites.refuses(1, "INSERT INTO c VALUES ('eu', 1, 2)", "55000").await;
        assert!(refused.to_string().contains("foreign key"), "{refused}");
    });
}

/// What a transaction takes from a region it does not send there any more, before or behind the
/// change.
#[test]
fn rows_written_with_the_change_that_takes_them_away_do_not_go_there() {
    World::run(5, false, async |world| {
        let sites = Sites::running(&world).await;
        for sql in [
            "CREATE TABLE s (region text, id int, note text, PRIMARY KEY (region, id))",
            "INSERT INTO s VALUES ('us', 1, 'open')",
            "CREATE TABLE whole (id int PRIMARY KEY, note text)",
            "INSERT INTO whole VALUES (1, 'open')",
        ] {
            sites.must(0, sql).await;
        }
        sites.quiet().await;
        let large = "repeat('x', 3000)";
        for sql in [
            "BEGIN; INSERT INTO whole VALUES (2, 'marker-before');
                ALTER TABLE whole SET (telesto.regions = 'us');
                INSERT INTO whole VALUES (3, 'marker-behind'); COMMIT".to_owned(),
            // By parts: too much for an entry of the log.
            format!(
                "BEGIN; ALTER TABLE s SET (telesto.regions = 'by row (region): eu = eu; us = us');
                INSERT INTO s SELECT 'us', g, 'marker-by-row' || {large} FROM generate_series(2, 1500) g; COMMIT"
            ),
            "INSERT INTO s VALUES ('eu', 1, 'marker-of-eu')".to_owned(),
        ] {
            sites.must(0, &sql).await;
        }
        sites.quiet().await;
        sites.settles().await;
        for marker in ["marker-before", "marker-behind", "marker-by-row"] {
            for (region, name) in NAMES.iter().enumerate().skip(1) {
                assert!(!sites.holds(region, marker).await, "{name}: {marker}");
            }
        }
        // What stays there goes there, and what was to be heard of the change is.
        let stays = sites.must(1, "SELECT note FROM s WHERE region = 'eu'").await;
        assert_eq!(stays, rows(&[&["marker-of-eu"]]));
        assert!(!sites.holds(2, "marker-of-eu").await);
        assert_eq!(sites.must(0, "SELECT count(*) FROM whole").await, rows(&[&["3"]]));
    });
}
