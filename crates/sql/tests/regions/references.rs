//! Foreign keys between tables that are not in all regions, or not written in the one that makes
//! the definitions.

use std::time::Duration;

use telesto_testkit::World;

use super::reads::one;
use super::{REGIONS, Sites};

const BOTH: &[&str] = &[
    "CREATE TABLE p (id int PRIMARY KEY, v int)",
    "CREATE TABLE c (id int PRIMARY KEY, p int REFERENCES p ON UPDATE CASCADE)",
    "CREATE TABLE cascaded (id int PRIMARY KEY, p int REFERENCES p ON DELETE CASCADE)",
    "INSERT INTO p SELECT g, g FROM generate_series(1, 4) g",
    "INSERT INTO c SELECT g, g FROM generate_series(1, 3) g",
    "INSERT INTO cascaded VALUES (4, 4)",
];

/// Waits until a region has removed what it had of a table.
async fn without(sites: &Sites, region: usize, table: &str) {
    for _ in 0..60 {
        sites.world.sleep(Duration::from_secs(5)).await;
        sites.tend().await;
        if sites.stored(region, table).await == 0 {
            return;
        }
    }
    panic!("what {region} had of {table} is still there");
}

/// A table that is not here is not one without rows: rows that it references are not removed here,
/// nor given other keys.
#[test]
fn keys_are_not_taken_from_rows_that_are_not_here() {
    World::run(1, false, async |world| {
        let sites = Sites::running(&world).await;
        for sql in BOTH {
            sites.must(0, sql).await;
        }
        sites.settles().await;
        for table in ["c", "cascaded"] {
            let only = format!("ALTER TABLE {table} SET (telesto.regions = 'us')");
            sites.must(0, &only).await;
        }
        sites.settles().await;
        for region in [1, 2] {
            without(&sites, region, "c").await;
            without(&sites, region, "cascaded").await;
            for sql in [
                "DELETE FROM p WHERE id = 1",
                "DELETE FROM p WHERE id = 4",
                "UPDATE p SET id = 33 WHERE id = 3",
                "INSERT INTO p VALUES (3, 0) ON CONFLICT (id) DO UPDATE SET id = 33",
                "MERGE INTO p USING (VALUES (1)) w (id) ON p.id = w.id WHEN MATCHED THEN DELETE",
            ] {
                let refused = sites.refuses(region, sql, "55000").await;
                let hint = refused.fields().hint.clone().unwrap_or_default();
                assert!(hint.contains("has both (\"us\")"), "{sql}: {refused}: {hint}");
            }
        }
        // What changes no key asks for no rows of other tables.
        sites.must(2, "UPDATE p SET v = 7 WHERE id = 1").await;
        sites.must(1, "INSERT INTO p VALUES (5, 5)").await;
        sites.refuses(0, "DELETE FROM p WHERE id = 1", "23503").await;
        sites.must(0, "UPDATE p SET id = 33 WHERE id = 3").await;
        sites.must(0, "DELETE FROM p WHERE id = 4").await;
        assert_eq!(sites.must(0, "SELECT count(*) FROM cascaded").await, one("0"));
        let orphans = "SELECT count(*) FROM c WHERE p NOT IN (SELECT id FROM p)";
        assert_eq!(sites.must(0, orphans).await, one("0"));
        sites.quiet().await;
        sites.verify().await;
    });
}

/// Parents that are not here, or not all of them, are not missing ones.
#[test]
fn parents_that_are_not_here_are_not_said_to_be_missing() {
    World::run(1, false, async |world| {
        let sites = Sites::running(&world).await;
        for sql in BOTH {
            sites.must(0, sql).await;
        }
        sites.settles().await;
        sites.must(0, "ALTER TABLE p SET (telesto.regions = 'us, ap')").await;
        sites.settles().await;
        without(&sites, 1, "p").await;
        let refused = sites.refuses(1, "INSERT INTO c VALUES (11, 2)", "55000").await;
        let hint = refused.fields().hint.clone().unwrap_or_default();
        assert!(hint.contains("has both (\"us\", \"ap\")"), "{refused}: {hint}");
        sites.refuses(1, "UPDATE c SET p = 2 WHERE id = 1", "55000").await;
        // No parent is looked for.
        sites.must(1, "INSERT INTO c VALUES (12, NULL)").await;
        sites.must(1, "DELETE FROM c WHERE id = 12").await;
        sites.must(2, "INSERT INTO c VALUES (11, 2)").await;
        sites.refuses(2, "INSERT INTO c VALUES (13, 99)", "23503").await;
        // While they are being sent, too.
        sites.net.cut("us", "eu");
        sites.must(0, "ALTER TABLE p SET (telesto.regions = 'all')").await;
        sites.refuses(1, "INSERT INTO c VALUES (14, 2)", "55000").await;
        sites.net.heal();
        for turn in 0.. {
            let Err(error) = sites.run(1, "INSERT INTO c VALUES (14, 2)").await else { break };
            assert!(turn < 500 && error.code().0 != "23503", "{error}");
            sites.tend().await;
            world.sleep(Duration::from_millis(50)).await;
        }
        sites.quiet().await;
        sites.verify().await;
    });
}

/// A table that is made does not stop the writes of those that it references: it is written where
/// they are, or it is not made.
#[test]
fn new_table_is_written_where_its_parents_are() {
    World::run(1, false, async |world| {
        let sites = Sites::running(&world).await;
        for sql in [
            "CREATE TABLE p (id int PRIMARY KEY)",
            "CREATE TABLE here (id int PRIMARY KEY, p int)",
            "CREATE TABLE every (id int PRIMARY KEY)",
            "CREATE TABLE r (region text, id int, PRIMARY KEY (region, id))",
            "INSERT INTO p VALUES (1)",
            "ALTER TABLE p SET (telesto.home = 'eu')",
            "ALTER TABLE every SET (telesto.home = 'any')",
            "ALTER TABLE r SET (telesto.regions = 'by row (region)')",
        ] {
            sites.must(0, sql).await;
        }
        sites.settles().await;
        for sql in [
            "CREATE TABLE no (id int REFERENCES every)",
            "CREATE TABLE no (id int REFERENCES p, h int REFERENCES here)",
            "ALTER TABLE here ADD FOREIGN KEY (p) REFERENCES p",
            "ALTER TABLE here ADD FOREIGN KEY (p) REFERENCES p NOT VALID",
            "ALTER TABLE here ADD COLUMN q int REFERENCES p",
            // The key does not say in which region the parent is; or it does, and rows are not
            // placed by it.
            "CREATE TABLE no (region text, id int PRIMARY KEY, FOREIGN KEY (region, id) REFERENCES r)",
        ] {
            let refused = sites.refuses(0, sql, "55000").await;
            assert!(refused.fields().hint.is_some(), "{sql}: {refused}");
        }
        for sql in [
            "CREATE TABLE kid (id int PRIMARY KEY, p int REFERENCES p, up int REFERENCES kid)",
            "CREATE TABLE grandkid (id int REFERENCES kid)",
            "CREATE TABLE s (place text, r int, n int, PRIMARY KEY (place, r, n), FOREIGN KEY (place, r) REFERENCES r)",
        ] {
            sites.must(0, sql).await;
        }
        sites.settles().await;
        for region in 0..REGIONS {
            let id = region + 2;
            sites.must(region, &format!("INSERT INTO p VALUES ({id})")).await;
            sites.must(region, &format!("INSERT INTO kid VALUES ({id}, {id}, NULL)")).await;
            sites.must(region, &format!("INSERT INTO grandkid VALUES ({id})")).await;
            sites.must(region, &format!("INSERT INTO here VALUES ({id}, 7)")).await;
            sites.refuses(region, &format!("DELETE FROM p WHERE id = {id}"), "23503").await;
            let name = super::NAMES[region];
            sites.must(region, &format!("INSERT INTO r VALUES ('{name}', 1)")).await;
            sites.must(region, &format!("INSERT INTO s VALUES ('{name}', 1, 1)")).await;
            let missing = format!("INSERT INTO s VALUES ('{name}', 2, 1)");
            sites.refuses(region, &missing, "23503").await;
        }
        sites.run_at_home(1, "INSERT INTO kid VALUES (90, 1, NULL)").await.expect("at home");
        sites.quiet().await;
        sites.verify().await;
    });
}

/// Whoever wrote the parents before may do so until it has heard of the move: a table that
/// references them waits for that, too.
#[test]
fn new_table_waits_for_those_who_wrote_its_parents_before() {
    World::run(1, false, async |world| {
        let sites = Sites::running(&world).await;
        for sql in [
            "CREATE TABLE p (id int PRIMARY KEY)",
            "CREATE TABLE here (id int PRIMARY KEY, p int)",
            "INSERT INTO p VALUES (1)",
            "ALTER TABLE p SET (telesto.home = 'eu')",
        ] {
            sites.must(0, sql).await;
        }
        sites.settles().await;
        sites.net.cut("us", "eu");
        sites.net.cut("ap", "eu");
        sites.must(0, "ALTER TABLE p SET (telesto.home = 'us')").await;
        sites.must(0, "CREATE TABLE kid (id int REFERENCES p)").await;
        sites.refuses(0, "INSERT INTO kid VALUES (1)", "55000").await;
        sites.refuses(0, "ALTER TABLE here ADD FOREIGN KEY (p) REFERENCES p", "55000").await;
        sites.must(1, "DELETE FROM p WHERE id = 1").await;
        sites.net.heal();
        sites.settles().await;
        sites.refuses(0, "INSERT INTO kid VALUES (1)", "23503").await;
        sites.must(0, "ALTER TABLE here ADD FOREIGN KEY (p) REFERENCES p").await;
    });
}
