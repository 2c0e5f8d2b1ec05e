//! Foreign keys between tables that are not in all regions, or not written in the one that makes the definitions.

use telesto_testkit::World;

use super::{REGIONS, Sites};

/// A table that is made does not stop the writes of those that it references: it is written where they are, or it is not made.
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
            // The key does not say in which region the parent is; or it does, and rows are not placed by it.
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

/// Whoever wrote the parents before may do so until it has heard of the move: a table that references them waits for that, too.
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
