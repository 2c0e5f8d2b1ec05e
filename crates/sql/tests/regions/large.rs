//! Transactions that are too large to pass between regions at once, and those that are not.

use telesto_log::record::{Commit, Writes};
use telesto_testkit::World;

use super::{Sites, run};

/// Rows of 100 kB each.
fn rows(table: &str, first: u32, last: u32) -> String {
    format!(
        "INSERT INTO {table} SELECT g, repeat('x', 100000) FROM generate_series({first}, {last}) g"
    )
}

async fn count(sites: &Sites, region: usize, table: &str) -> Option<String> {
    sites.must(region, &format!("SELECT count(*) FROM {table}")).await[0][0].clone()
}

/// What a region cannot be sent is refused at the commit, and only that; the streams go on.
#[test]
fn transaction_that_is_too_large_for_another_region_is_refused() {
    World::run(1, false, async |world| {
        let sites = Sites::running(&world).await;
        for table in ["t", "own", "eu", "ap"] {
            sites.must(0, &format!("CREATE TABLE {table} (id int PRIMARY KEY, v text)")).await;
        }
        for (table, regions) in [("own", "us"), ("eu", "us, eu"), ("ap", "us, ap")] {
            let sql = format!("ALTER TABLE {table} SET (telesto.regions = '{regions}')");
            sites.must(0, &sql).await;
        }
        sites.settles().await;
        sites.quiet().await;
        for statement in [rows("t", 1, 400), rows("eu", 1, 400)] {
            let error = sites.run(0, &statement).await.expect_err("40 MB");
            assert_eq!(error.code().0, "54000", "{error}");
            assert!(error.to_string().contains("32 MiB"), "{error}");
            assert!(error.fields().hint.as_deref().is_some_and(|hint| hint.contains("COPY")));
        }
        // Nothing that is in one region alone, nor what passes.
        sites.must(0, &rows("own", 1, 400)).await;
        sites.must(0, &rows("t", 1, 300)).await;
        // Of a block the commit tells it, of all that was written.
        let mut session = sites.session(0).await;
        for sql in ["BEGIN", &rows("t", 1001, 1200), &rows("t", 1201, 1400)] {
            run(&mut session, sql).await.expect(sql);
        }
        let error = run(&mut session, "COMMIT").await.expect_err("40 MB");
        assert_eq!(error.code().0, "54000", "{error}");
        // No region gets all of it.
        for sql in ["BEGIN", &rows("eu", 1, 200), &rows("ap", 1, 200), "COMMIT"] {
            run(&mut session, sql).await.expect(sql);
        }
        // Rows of a new table go as such, and deletes are small.
        sites.must(0, "CREATE TABLE made AS SELECT * FROM own").await;
        sites.must(0, "ALTER TABLE own SET (telesto.regions = 'all')").await;
        sites.settles().await;
        sites.quiet().await;
        for (region, table, rows) in [
            (1, "t", "300"),
            (2, "t", "300"),
            (1, "eu", "200"),
            (2, "ap", "200"),
            (1, "made", "400"),
            (2, "own", "400"),
        ] {
            assert_eq!(count(&sites, region, table).await.as_deref(), Some(rows), "{table}");
        }
        sites.must(0, "DELETE FROM own").await;
        sites.must(0, "TRUNCATE made").await;
        sites.quiet().await;
        assert_eq!(count(&sites, 1, "own").await.as_deref(), Some("0"));
        assert_eq!(count(&sites, 2, "made").await.as_deref(), Some("0"));
        sites.verify().await;
    });
}

/// Rows of a table that every region writes bring their index entries about where they come: those
/// count as well.
#[test]
fn index_entries_that_rows_bring_about_elsewhere_count_with_them() {
    World::run(2, false, async |world| {
        let sites = Sites::running(&world).await;
        for sql in [
            "CREATE TABLE w (id int PRIMARY KEY, v text, n int)",
            "CREATE INDEX ON w (v)",
            "CREATE INDEX ON w (v, n)",
            "CREATE INDEX ON w (n, v)",
            "ALTER TABLE w SET (telesto.home = 'any')",
        ] {
            sites.must(0, sql).await;
        }
        sites.settles().await;
        let rows = |first: u32, last: u32| {
            format!(
                "INSERT INTO w SELECT g, repeat('x', 2000) || g, g FROM generate_series({first}, {last}) g"
            )
        };
        // 10 MB of rows, and three times as much of entries.
        let error = sites.run(0, &rows(1, 5000)).await.expect_err("40 MB");
        assert_eq!(error.code().0, "54000", "{error}");
        sites.must(0, &rows(1, 3000)).await;
        sites.quiet().await;
        let error =
            sites.run(0, "UPDATE w SET n = n + 1, v = 'y' || v").await.expect_err("entries");
        assert_eq!(error.code().0, "54000", "{error}");
        sites.must(0, "UPDATE w SET n = n + 1 WHERE id <= 1000").await;
        sites.quiet().await;
        for region in 0..3 {
            assert_eq!(count(&sites, region, "w").await.as_deref(), Some("3000"));
        }
        sites.verify().await;
    });
}

/// What a region's log holds.
#[derive(Clone, Copy, Debug)]
struct Logged {
    commits: usize,
    /// Keys and values that entries hold themselves.
    writes: usize,
}

impl Sites {
    async fn in_log(&self, region: usize) -> Logged {
        let commits = self.commits(region).await;
        let inline = |commit: &Commit| match &commit.writes {
            Writes::Inline(writes) => writes.len(),
            Writes::External(_) => 0,
        };
        Logged { commits: commits.len(), writes: commits.iter().map(inline).sum() }
    }
}

/// An index of many rows that nobody writes meanwhile, and its removal, are a few entries of the
/// log, which hold little of it.
#[test]
fn index_of_quiet_rows_costs_the_log_little() {
    World::run(3, false, async |world| {
        let sites = Sites::running(&world).await;
        sites.must(0, "CREATE TABLE own (id int PRIMARY KEY, v text, n int)").await;
        sites.must(0, "ALTER TABLE own SET (telesto.regions = 'us')").await;
        sites.settles().await;
        let rows = "INSERT INTO own SELECT g, repeat('x', 100) || g, g % 7 FROM generate_series(1, 30000) g";
        sites.must(0, rows).await;
        sites.quiet().await;
        for (sql, most) in [
            ("CREATE INDEX own_v ON own (v)", 10_000),
            ("CREATE UNIQUE INDEX own_nv ON own (n, v)", 10_000),
            ("DROP INDEX own_v", 100),
        ] {
            let before = sites.in_log(0).await;
            let told = sites.meanwhile(0, sql);
            sites.outcome(&told).await.expect(sql);
            sites.swept().await;
            let after = sites.in_log(0).await;
            // A driver's record and what regions tell each other are written as well.
            let (commits, writes) = (after.commits - before.commits, after.writes - before.writes);
            assert!(commits < 60, "{sql}: {commits} commits");
            assert!(writes < most, "{sql}: {writes} keys in entries");
            let checked = sites.must(0, "SELECT telesto_check_table('own')").await;
            assert_eq!(checked[0][0].as_deref(), Some("30000"), "{sql}");
        }
        let found = sites.must(0, "SELECT count(*) FROM own WHERE n = 3 AND v LIKE 'x%'").await;
        assert_eq!(found[0][0].as_deref(), Some("4286"));
        // A row with the key of another is found out in the same batch, and in an earlier one.
        for twin in [29_000, 100] {
            let sql = format!(
                "UPDATE own SET v = (SELECT v FROM own WHERE id = {twin}) WHERE id = 29999"
            );
            sites.must(0, &sql).await;
            let told = sites.meanwhile(0, "CREATE UNIQUE INDEX own_once ON own (v)");
            let error = sites.outcome(&told).await.expect_err("two rows with one key");
            assert_eq!(error.code().0, "23505", "{error}");
            sites.swept().await;
        }
        sites.verify().await;
    });
}
