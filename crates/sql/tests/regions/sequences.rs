//! Sequences that are set: each region keeps its own position, and whoever sets one is told so.

use telesto_testkit::World;

use super::reads::one;
use super::{Sites, run};

#[test]
fn whoever_sets_a_sequence_is_told_that_other_regions_go_on() {
    World::run(1, false, async |world| {
        let sites = Sites::running(&world).await;
        for sql in
            ["CREATE SEQUENCE s", "CREATE TABLE t (id serial PRIMARY KEY)", "SELECT setval('s', 1)"]
        {
            sites.must(0, sql).await;
        }
        sites.quiet().await;
        let drawn = sites.must(2, "SELECT nextval('s')").await;
        for (region, sql, sequence) in [
            (0, "SELECT setval('s', 3000)", "s"),
            (1, "SELECT setval('s', 3000, false)", "s"),
            (0, "ALTER SEQUENCE s RESTART WITH 5000", "s"),
            (0, "TRUNCATE t RESTART IDENTITY", "t_id_seq"),
        ] {
            let mut session = sites.session(region).await;
            run(&mut session, sql).await.expect(sql);
            let told = session.take_notices();
            let name = super::NAMES[region];
            let text = format!("sequence \"{sequence}\" was set in region \"{name}\" alone");
            assert!(
                told.iter().any(|one| one.severity == "WARNING" && one.message.starts_with(&text)),
                "{sql}: {told:?}"
            );
        }
        // So it is; and what the warning names does what it says.
        let drawn: i64 = drawn[0][0].as_deref().and_then(|text| text.parse().ok()).expect("one");
        let next = one(&(drawn + 1).to_string());
        assert_eq!(sites.must(2, "SELECT nextval('s')").await, next);
        sites.must(2, "SELECT setval('s', 3000)").await;
        let next = sites.must(2, "SELECT nextval('s')").await;
        assert!(next[0][0].as_deref().and_then(|text| text.parse().ok()) > Some(3000), "{next:?}");
        // What only the session has is in no other region.
        let mut session = sites.session(0).await;
        run(&mut session, "CREATE TEMP SEQUENCE mine; SELECT setval('mine', 9)")
            .await
            .expect("set");
        assert_eq!(session.take_notices(), []);
        run(&mut session, "SELECT nextval('s')").await.expect("drawn");
        assert_eq!(session.take_notices(), []);
    });
}

/// A region whose bucket was put back gives no value again: rows with those that it had given are
/// in the other regions, whether it can reach them as it starts or not.
#[test]
fn region_that_lost_commits_gives_no_value_again() {
    for (seed, victim, apart) in [(1, 0, false), (2, 1, false), (3, 0, true), (4, 1, true)] {
        World::run(seed, false, async move |world| {
            let mut sites = Sites::running(&world).await;
            sites.must(0, "CREATE TABLE k (id bigserial PRIMARY KEY, v text)").await;
            sites.must(0, "ALTER TABLE k SET (telesto.home = 'any')").await;
            sites.quiet().await;
            sites.must(victim, "INSERT INTO k (v) VALUES ('kept')").await;
            sites.quiet().await;
            let backup = sites.places[victim].store.contents();
            // More than one block of values: where the next one begins is lost.
            let insert = "INSERT INTO k (v) SELECT '{}' FROM generate_series(1, 40)";
            sites.must(victim, &insert.replace("{}", "lost")).await;
            sites.quiet().await;
            sites.kill(victim);
            sites.restore(victim, &backup).await;
            let others = (0..super::REGIONS).filter(|other| *other != victim);
            for other in others.filter(|_| apart) {
                sites.net.cut(super::NAMES[victim], super::NAMES[other]);
                sites.net.cut(super::NAMES[other], super::NAMES[victim]);
            }
            sites.start(victim).await;
            sites.must(victim, &insert.replace("{}", "new")).await;
            sites.net.heal();
            sites.settled().await;
            sites.check("k").await;
            for region in 0..super::REGIONS {
                let rows = sites.must(region, "SELECT v, count(*) FROM k GROUP BY v ORDER BY v");
                let rows = rows.await;
                let text = |row: &Vec<Option<String>>| {
                    row.iter()
                        .map(|cell| cell.as_deref().unwrap_or("NULL"))
                        .collect::<Vec<_>>()
                        .join(" ")
                };
                let rows: Vec<String> = rows.iter().map(text).collect();
                assert_eq!(rows, ["kept 1", "lost 40", "new 40"], "{seed}, region {region}");
            }
        });
    }
}
