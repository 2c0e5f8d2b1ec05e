//! Tables that are in some regions alone: nothing of them comes to the others, and nothing old is
//! shown by one that gets them again.

use std::time::Duration;

use telesto_testkit::World;

use super::Sites;

const MARKER: &str = "never to be seen in ap";

/// What is dropped, emptied or rewritten is deleted where it is, and told to nobody else.
#[test]
fn what_is_dropped_goes_to_no_region_that_did_not_have_it() {
    for statement in [
        "DROP TABLE t",
        "TRUNCATE t",
        "ALTER TABLE t ALTER COLUMN n TYPE text",
        "DROP INDEX t_name",
    ] {
        World::run(1, false, async |world| {
            let sites = Sites::running(&world).await;
            for sql in [
                "CREATE TABLE t (id int PRIMARY KEY, name text, n int)",
                "CREATE INDEX t_name ON t (name)",
                "ALTER TABLE t SET (telesto.regions = 'us, eu')",
            ] {
                sites.must(0, sql).await;
            }
            sites.settles().await;
            // More than what one transaction deletes.
            let rows = format!(
                "INSERT INTO t SELECT g, '{MARKER} ' || g, g FROM generate_series(1, 5000) g"
            );
            sites.must(0, &rows).await;
            sites.quiet().await;
            let before = sites.stored(1, "t").await;
            assert!(before > 0);
            sites.must(0, statement).await;
            sites.swept().await;
            world.sleep(Duration::from_secs(30)).await;
            sites.quiet().await;
            assert!(sites.holds(1, MARKER).await, "the marker is nowhere: the test sees nothing");
            assert!(!sites.holds(2, MARKER).await, "{statement}");
            if statement == "DROP INDEX t_name" {
                assert_eq!(
                    sites.must(1, "SELECT count(*) FROM t WHERE n > 0").await[0][0].as_deref(),
                    Some("5000")
                );
                assert_eq!(
                    sites.must(1, "SELECT telesto_check_table('t')").await[0][0].as_deref(),
                    Some("5000")
                );
            }
        });
    }
}

/// A region that has a table no more removes what it had; it gets all of it later, without what was
/// deleted meanwhile.
#[test]
fn region_that_gets_a_table_again_has_no_rows_that_were_deleted() {
    World::run(1, false, async |world| {
        let sites = Sites::running(&world).await;
        for sql in [
            "CREATE TABLE t (id int PRIMARY KEY, name text UNIQUE)",
            "INSERT INTO t SELECT g, 'name ' || g FROM generate_series(1, 20) g",
        ] {
            sites.must(0, sql).await;
        }
        sites.quiet().await;
        assert_eq!(sites.stored(2, "t").await, 40);
        sites.must(0, "ALTER TABLE t SET (telesto.regions = 'us, eu', telesto.home = 'eu')").await;
        sites.settles().await;
        for _ in 0..60 {
            world.sleep(Duration::from_secs(5)).await;
            sites.tend().await;
            if sites.stored(2, "t").await == 0 {
                break;
            }
        }
        assert_eq!(sites.stored(2, "t").await, 0, "what ap had is still there");
        assert_eq!(sites.stored(0, "t").await, 40);
        sites.must(1, "DELETE FROM t WHERE id <= 10").await;
        sites.must(0, "ALTER TABLE t SET (telesto.regions = 'all')").await;
        sites.settles().await;
        sites.must(0, "ALTER TABLE t SET (telesto.home = 'ap')").await;
        sites.settles().await;
        sites.must(2, "INSERT INTO t VALUES (1, 'name 1')").await;
        assert_eq!(sites.check("t").await.len(), 11);
        sites.verify().await;
    });
}

/// Values that follow from other steps would be given in two regions.
#[test]
fn steps_of_a_sequence_stay() {
    World::run(1, false, async |world| {
        let sites = Sites::running(&world).await;
        sites.must(0, "CREATE SEQUENCE s").await;
        sites.must(0, "ALTER SEQUENCE s CACHE 5").await;
        for sql in ["ALTER SEQUENCE s INCREMENT BY 10", "ALTER SEQUENCE s START WITH 7"] {
            let error = sites.run(0, sql).await.expect_err(sql);
            assert_eq!(error.code().0, "55000", "{sql}: {error}");
        }
    });
}

/// Of a table that is made nobody has deleted anything, so no stream looks for that in the log of
/// all the time that is kept.
#[test]
fn table_that_is_made_has_no_region_read_its_log_again() {
    World::run(1, false, async |world| {
        let sites = Sites::running(&world).await;
        sites.must(0, "CREATE TABLE t (id int PRIMARY KEY)").await;
        sites.must(0, "ALTER TABLE t SET (telesto.home = 'any')").await;
        sites.settles().await;
        for id in 0..300 {
            sites.must(id % 3, &format!("INSERT INTO t VALUES ({id})")).await;
        }
        sites.quiet().await;
        let read = |region: usize| sites.at(region).meter.snapshot().total(|_, _| true);
        let before = [0, 1, 2].map(|region| read(region).downloaded_bytes);
        sites.must(0, "CREATE TABLE made AS SELECT id FROM t WHERE id < 100").await;
        sites.must(0, "CREATE TABLE more (id int PRIMARY KEY)").await;
        sites.must(0, "INSERT INTO more VALUES (1), (2)").await;
        sites.must(0, "DELETE FROM more WHERE id = 1").await;
        sites.settles().await;
        sites.quiet().await;
        for (region, before) in before.into_iter().enumerate() {
            let bytes = read(region).downloaded_bytes - before;
            assert!(bytes < 100_000, "region {region} read {bytes} bytes");
            for (table, rows) in [("made", "100"), ("more", "1")] {
                let count = format!("SELECT count(*) FROM {table}");
                assert_eq!(sites.must(region, &count).await[0][0].as_deref(), Some(rows));
            }
        }
        sites.verify().await;
    });
}
