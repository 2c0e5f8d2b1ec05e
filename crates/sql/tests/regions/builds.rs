//! Indexes of tables that other regions write: each region fills its part, while rows are written,
//! links cut and regions killed.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use telesto_bucket::Cause;
use telesto_common::{RegionId, ShardId};
use telesto_log::record::{Commit, Record, Writes};
use telesto_net::sim::Weather;
use telesto_sql::catalog::CatalogCache;
use telesto_sql::catalog::store::DEFAULT_DATABASE_ID;
use telesto_sql::{Error, SessionOptions};
use telesto_testkit::World;
use telesto_txn::{Database as _, TxnOptions};

use super::{NAMES, Sites, below, run, seeds};

pub(crate) type Outcome = Result<Vec<Vec<Option<String>>>, Error>;
pub(crate) type Told = Arc<Mutex<Option<Outcome>>>;

impl Sites {
    /// A statement in a region, while others go on.
    pub(crate) fn meanwhile(&self, region: usize, sql: &str) -> Told {
        let told = Told::default();
        let (engine, sql, tell) =
            (Arc::clone(&self.at(region).sql), sql.to_owned(), Arc::clone(&told));
        self.world.env.spawn("a statement", async move {
            let mut session = engine.session(SessionOptions::default()).await.expect("a session");
            let outcome = run(&mut session, &sql).await;
            *tell.lock() = Some(outcome);
        });
        told
    }

    /// What every server does now and then.
    pub(crate) async fn tend(&self) {
        for site in self.places.iter().filter_map(|place| place.site.as_ref()) {
            site.sql.settle_regions().await.expect("settles");
        }
    }

    /// Waits for the end of a statement.
    pub(crate) async fn outcome(&self, told: &Told) -> Outcome {
        for _ in 0..10_000 {
            if let Some(outcome) = told.lock().take() {
                return outcome;
            }
            self.tend().await;
            self.world.sleep(Duration::from_millis(100)).await;
        }
        panic!("the statement does not end");
    }

    async fn build(&self, sql: &str) -> Outcome {
        let told = self.meanwhile(0, sql);
        self.outcome(&told).await
    }

    /// The first column of what a region reads of its own part.
    async fn own(&self, region: usize, sql: &str) -> String {
        let mut session = self.session(region).await;
        run(&mut session, "SET telesto.local_rows = on").await.expect("sets");
        let rows = run(&mut session, sql).await;
        let rows = rows.unwrap_or_else(|error| panic!("{}: {sql}: {error}", NAMES[region]));
        let lines = rows.into_iter().map(|mut row| row.remove(0).unwrap_or_default());
        lines.collect::<Vec<_>>().join("\n")
    }

    /// Waits until keys that nothing names are gone, and the notes of them.
    pub(crate) async fn swept(&self) {
        for _ in 0..600 {
            self.tend().await;
            self.run(0, "SELECT 1").await.expect("reads");
            self.quiet().await;
            let txn = self.at(0).engine.begin(TxnOptions::default()).await.expect("begins");
            let catalogs = CatalogCache::of(RegionId(0));
            let catalog = catalogs.read(&txn, DEFAULT_DATABASE_ID).await.expect("reads");
            if catalog.dropped().next().is_none() {
                return;
            }
            self.world.sleep(Duration::from_millis(200)).await;
        }
        panic!("what was dropped is not swept");
    }
}

const RULE: &str = "by row (region): us = us; eu = eu, us; ap = ap";

/// A table of 30 rows in each region; those of eu are in us too.
async fn people(sites: &Sites) {
    for sql in [
        "CREATE TABLE p (region text, id int, name text, n int, PRIMARY KEY (region, id))",
        &format!("ALTER TABLE p SET (telesto.regions = '{RULE}')"),
    ] {
        sites.must(0, sql).await;
    }
    sites.settles().await;
    for (region, value) in NAMES.iter().enumerate() {
        let rows = format!(
            "INSERT INTO p SELECT '{value}', g, 'name ' || g, g % 5 FROM generate_series(1, 30) g"
        );
        sites.must(region, &rows).await;
    }
    sites.quiet().await;
}

/// Rows and index entries fit together in what a region has.
async fn fits(sites: &Sites, seed: u64) {
    for (region, name) in NAMES.iter().enumerate() {
        let rows = sites.own(region, "SELECT count(*) FROM p").await;
        let checked = sites.own(region, "SELECT telesto_check_table('p')").await;
        assert_eq!(checked, rows, "seed {seed}, {name}");
    }
}

#[test]
fn index_of_rows_that_others_write_is_filled_where_they_are_written() {
    World::run(1, false, async |world| {
        let sites = Sites::running(&world).await;
        people(&sites).await;
        sites.build("CREATE INDEX p_n ON p (region, n)").await.expect("built");
        sites.build("CREATE UNIQUE INDEX p_name ON p (region, name)").await.expect("built");
        sites.quiet().await;
        fits(&sites, 1).await;
        // 30 rows with two entries each: us has those of two values.
        for (region, values) in [(0, 2), (1, 1), (2, 1)] {
            assert_eq!(sites.stored(region, "p").await, 90 * values, "{}", NAMES[region]);
            let value = NAMES[region];
            let plan = sites
                .own(
                    region,
                    &format!(
                        "EXPLAIN SELECT * FROM p WHERE region = '{value}' AND name = 'name 7'"
                    ),
                )
                .await;
            assert!(plan.contains("p_name"), "{plan}");
        }
        let error = sites.run(2, "INSERT INTO p VALUES ('ap', 99, 'name 3', 1)").await;
        assert_eq!(error.expect_err("taken").code().0, "23505");
        // What two regions may not hold together is not asked of one.
        for (sql, code) in [
            ("CREATE INDEX ON p (n)", "55000"),
            ("CREATE UNIQUE INDEX ON p (lower(region), id)", "55000"),
            ("BEGIN; CREATE INDEX ON p (region, name, n)", "55000"),
        ] {
            let error = sites.build(sql).await.expect_err(sql);
            assert_eq!(error.code().0, code, "{sql}: {error}");
        }
        // A duplicate in one region is told where the index is made, and nothing stays.
        let error = sites.build("CREATE UNIQUE INDEX p_n_only ON p (region, n)").await;
        let error = error.expect_err("duplicates");
        assert_eq!(error.code().0, "23505", "{error}");
        sites.build("DROP INDEX p_n").await.expect("dropped");
        sites.swept().await;
        for (region, values) in [(0, 2), (1, 1), (2, 1)] {
            assert_eq!(sites.stored(region, "p").await, 60 * values, "{}", NAMES[region]);
        }
        sites.build("REINDEX INDEX p_name").await.expect("built");
        sites.swept().await;
        fits(&sites, 1).await;
        for (region, values) in [(0, 2), (1, 1), (2, 1)] {
            assert_eq!(sites.stored(region, "p").await, 60 * values, "{}", NAMES[region]);
        }
    });
}

#[test]
fn index_of_a_table_with_its_home_elsewhere_is_filled_there() {
    World::run(1, false, async |world| {
        let sites = Sites::running(&world).await;
        for sql in [
            "CREATE TABLE t (id int PRIMARY KEY, name text, n int)",
            "INSERT INTO t SELECT g, 'name ' || g, g % 5 FROM generate_series(1, 30) g",
            "ALTER TABLE t SET (telesto.home = 'eu')",
        ] {
            sites.must(0, sql).await;
        }
        sites.settles().await;
        sites.build("CREATE INDEX t_n ON t (n)").await.expect("built");
        sites.build("CREATE UNIQUE INDEX t_name ON t (name)").await.expect("built");
        let error = sites.build("CREATE UNIQUE INDEX ON t (n)").await.expect_err("duplicates");
        assert_eq!(error.code().0, "23505");
        assert!(
            error.fields().detail.as_deref().is_some_and(|text| text.contains("(n)=")),
            "{error:?}"
        );
        // What rows do not show is defined as everywhere.
        for sql in [
            "ALTER TABLE t ADD COLUMN more text DEFAULT 'x'",
            "ALTER TABLE t ADD CHECK (n < 1000) NOT VALID",
            "ALTER INDEX t_n RENAME TO t_number",
            "ALTER TABLE t ADD CONSTRAINT t_name_key UNIQUE USING INDEX t_name",
        ] {
            sites.must(0, sql).await;
        }
        sites.swept().await;
        assert_eq!(sites.check("t").await.len(), 30);
        assert_eq!(sites.stored(1, "t").await, 90);
        let refused = sites.run(1, "INSERT INTO t VALUES (40, 'name 40', 1000)").await;
        assert_eq!(refused.expect_err("the check").code().0, "23514");
        sites.must(0, "DROP INDEX t_number").await;
        sites.swept().await;
        for (region, name) in NAMES.iter().enumerate() {
            assert_eq!(sites.stored(region, "t").await, 60, "{name}");
        }
        // The home does not move while an index is being filled.
        sites.net.cut(NAMES[0], NAMES[1]);
        let told = sites.meanwhile(0, "CREATE INDEX t_n ON t (n)");
        world.sleep(Duration::from_secs(5)).await;
        let error = sites.run(0, "ALTER TABLE t SET (telesto.home = 'ap')").await;
        assert_eq!(error.expect_err("an index is being filled").code().0, "55000");
        // A region that says nothing is not waited for without an end.
        let error = sites.outcome(&told).await.expect_err("nobody fills it");
        assert_eq!(error.code().0, "55000");
        assert!(error.message().contains("\"eu\""), "{error}");
        sites.net.heal();
        sites.swept().await;
        sites.build("CREATE INDEX t_n ON t (n)").await.expect("built");
        assert_eq!(sites.check("t").await.len(), 30);
    });
}

/// Rows are written everywhere, links are cut and the others killed while indexes are made and
/// dropped: entries fit the rows in every region.
#[test]
fn indexes_fit_what_was_written_while_they_were_filled() {
    for seed in seeds() {
        World::run(seed, false, async |world| {
            let mut sites = Sites::running(&world).await;
            people(&sites).await;
            for sql in [
                "CREATE TABLE t (id int PRIMARY KEY, a text, b int)",
                "INSERT INTO t SELECT g, 'A' || g, g FROM generate_series(1, 30) g",
                "ALTER TABLE t SET (telesto.home = 'any')",
            ] {
                sites.must(0, sql).await;
            }
            sites.settles().await;
            sites.net.set_weather(Weather { delay: Duration::from_millis(40), ..Weather::FOUL });
            for statement in [
                "CREATE INDEX p_n ON p (region, n)",
                "CREATE INDEX t_b ON t (b, a)",
                "CREATE UNIQUE INDEX p_name ON p (region, name)",
                "DROP INDEX t_b",
                "CREATE INDEX t_lower ON t (lower(a)) WHERE b > 3",
                "REINDEX INDEX CONCURRENTLY p_name",
            ] {
                let told = sites.meanwhile(0, statement);
                for _ in 0..400 {
                    disturb(&mut sites).await;
                    sites.tend().await;
                    write(&sites, &world).await;
                    if told.lock().is_some() && below(&world, 4) == 0 {
                        break;
                    }
                }
                sites.net.heal();
                let outcome = sites.outcome(&told).await;
                outcome.unwrap_or_else(|error| panic!("seed {seed}: {statement}: {error}"));
            }
            sites.net.set_weather(Weather::CALM);
            sites.net.heal();
            sites.settles().await;
            sites.swept().await;
            sites.settled().await;
            fits(&sites, seed).await;
            sites.check("t").await;
            sites.verify().await;
        });
    }
}

/// Cuts links, and kills the regions that drive nothing.
async fn disturb(sites: &mut Sites) {
    let (one, other) = (below(&sites.world, 3) as usize, below(&sites.world, 3) as usize);
    match below(&sites.world, 30) {
        0 | 1 => sites.net.cut(NAMES[one], NAMES[other]),
        2..=5 => sites.net.heal(),
        6 if one != 0 => {
            sites.kill(one);
            sites.net.heal();
            sites.start(one).await;
        }
        7..=12 => {
            let pause = Duration::from_millis(below(&sites.world, 200));
            sites.world.sleep(pause).await;
        }
        _ => {}
    }
}

async fn write(sites: &Sites, world: &World) {
    let region = below(world, 3) as usize;
    let (id, a, b) = (below(world, 40), below(world, 9), below(world, 9));
    let value = NAMES[region];
    let sql = match below(world, 5) {
        0 => format!("UPDATE t SET a = 'a{a}', b = {b} WHERE id = {id}"),
        1 => format!("DELETE FROM t WHERE id = {id}"),
        2 => format!(
            "INSERT INTO t VALUES ({id}, 'B{a}', {b}) ON CONFLICT (id) DO UPDATE SET b = {b}"
        ),
        3 => format!(
            "INSERT INTO p VALUES ('{value}', {id}, 'name {id}', {b}) ON CONFLICT (region, id) DO UPDATE SET n = {a}"
        ),
        _ => format!("DELETE FROM p WHERE region = '{value}' AND id = {id}"),
    };
    if let Err(error) = sites.run(region, &sql).await {
        let passing = ["08006", "08007", "40001", "55000", "57P01", "57P03"];
        assert!(passing.contains(&error.code().0), "{sql}: {error}");
    }
}

/// A row of another region that an index cannot have an entry of ends the build, and holds nothing
/// back.
#[test]
fn row_that_an_index_cannot_have_fails_its_build_and_stops_nobody() {
    World::run(9, false, async |world| {
        let sites = Sites::running(&world).await;
        for sql in [
            "CREATE TABLE d (id int PRIMARY KEY, v int)",
            "CREATE TABLE other (id int PRIMARY KEY)",
            "ALTER TABLE d SET (telesto.home = 'any')",
            "ALTER TABLE other SET (telesto.home = 'any')",
            "INSERT INTO d VALUES (1, 1)",
        ] {
            sites.must(0, sql).await;
        }
        sites.settles().await;
        for region in [0, 2] {
            sites.net.cut(NAMES[region], NAMES[1]);
            sites.net.cut(NAMES[1], NAMES[region]);
        }
        sites.must(1, "INSERT INTO d VALUES (2, 0)").await;
        sites.must(1, "INSERT INTO other VALUES (1)").await;
        let told = sites.meanwhile(0, "CREATE INDEX dx ON d ((1 / v))");
        world.sleep(Duration::from_secs(2)).await;
        sites.net.heal();
        let error = sites.outcome(&told).await.expect_err("no entry");
        assert_eq!(error.code().0, "22012", "{error}");
        sites.swept().await;
        for (region, name) in NAMES.iter().enumerate() {
            assert_eq!(sites.stored(region, "d").await, 2, "{name}");
            let count = sites.must(region, "SELECT count(*) FROM other").await;
            assert_eq!(count[0][0].as_deref(), Some("1"), "{name}");
        }
        // One that is gone again before its region hears of the index leaves nothing behind.
        for region in [0, 2] {
            sites.net.cut(NAMES[region], NAMES[1]);
            sites.net.cut(NAMES[1], NAMES[region]);
        }
        sites.must(1, "UPDATE d SET v = 1").await;
        sites.must(1, "UPDATE d SET v = 0").await;
        sites.must(1, "UPDATE d SET v = 5").await;
        let told = sites.meanwhile(0, "CREATE INDEX dx ON d ((1 / v))");
        world.sleep(Duration::from_secs(2)).await;
        sites.net.heal();
        // It may be met, or not: by whom, and when, is a matter of the links.
        let built = sites.outcome(&told).await;
        sites.swept().await;
        let entries = if built.is_ok() { 4 } else { 2 };
        for (region, name) in NAMES.iter().enumerate() {
            assert_eq!(sites.stored(region, "d").await, entries, "{name}");
        }
    });
}

impl Sites {
    /// The commits of a region's log, from its start.
    pub(crate) async fn commits(&self, region: usize) -> Vec<Commit> {
        let log = self.at(region).engine.log();
        let (mut commits, mut from) = (Vec::new(), log.start());
        loop {
            let by = self.world.env.deadline(Duration::from_secs(60));
            let batch = log.read(from, 1 << 20, Cause::Read, by).await.expect("reads");
            for record in batch.entries.iter().flat_map(|e| e.records_of(ShardId(0))) {
                if let Record::Commit(commit) = record {
                    commits.push(commit.clone());
                }
            }
            if batch.at_tail {
                return commits;
            }
            from = batch.next(from);
        }
    }

    /// Whether a value in a region's log has this text.
    async fn logged(&self, region: usize, text: &str) -> bool {
        let has = |bytes: &[u8]| bytes.windows(text.len()).any(|at| at == text.as_bytes());
        self.commits(region).await.iter().any(|commit| {
            let Writes::Inline(writes) = &commit.writes else { return false };
            writes.iter().any(|write| write.value.as_ref().is_some_and(|v| has(v)))
        })
    }
}

/// A build that fails in one region tells the others why, and nothing of rows that they are not to
/// have.
#[test]
fn failed_build_tells_no_values_to_regions_that_do_not_have_the_rows() {
    World::run(10, false, async |world| {
        let sites = Sites::running(&world).await;
        for sql in [
            "CREATE TABLE b (region text, id int, email text, PRIMARY KEY (region, id))",
            "CREATE TABLE o (id int PRIMARY KEY, v text)",
            "CREATE TABLE a (id int PRIMARY KEY, v text)",
        ] {
            sites.must(0, sql).await;
        }
        for sql in [
            "ALTER TABLE o SET (telesto.home = 'eu')",
            "ALTER TABLE a SET (telesto.home = 'eu')",
            "ALTER TABLE b SET (telesto.regions = 'by row (region): eu = eu; us = us; ap = ap')",
        ] {
            sites.must(0, sql).await;
        }
        sites.settles().await;
        sites.must(0, "ALTER TABLE o SET (telesto.regions = 'us, eu')").await;
        sites.settles().await;
        for sql in [
            "INSERT INTO b VALUES ('eu', 1, 'secretmail_zzzz'), ('eu', 2, 'secretmail_zzzz')",
            "INSERT INTO o VALUES (1, 'secretnote_yyyy')",
            "INSERT INTO a VALUES (1, 'knowneverywhere_xxxx')",
        ] {
            sites.must(1, sql).await;
        }
        sites.quiet().await;
        let error = sites.build("CREATE UNIQUE INDEX b_email ON b (region, email)").await;
        let error = error.expect_err("duplicates");
        assert_eq!(error.code().0, "23505", "{error}");
        assert!(error.message().contains("b_email"), "{error}");
        let told = format!("{error:?}");
        assert!(!told.contains("secretmail") && told.contains("the log of a node"), "{told}");
        let error = sites.build("CREATE INDEX o_v ON o ((v::int))").await.expect_err("no number");
        assert_eq!(error.code().0, "22P02", "{error}");
        assert!(error.message().contains("o_v"), "{error}");
        // What is everywhere is told as it is.
        let error = sites.build("CREATE INDEX a_v ON a ((v::int))").await.expect_err("no number");
        assert!(error.message().contains("knowneverywhere_xxxx"), "{error}");
        sites.quiet().await;
        for (text, of) in
            [("secretmail", [false, true, false]), ("secretnote", [true, true, false])]
        {
            for (region, has) in of.into_iter().enumerate() {
                assert_eq!(sites.logged(region, text).await, has, "{text} in {}", NAMES[region]);
            }
        }
    });
}
