//! What a region that joined shows of the time before it had everything, and what it takes over by
//! its name.

use std::time::Duration;

use telesto_common::{RegionId, Timestamp};
use telesto_testkit::World;

use super::reads::one;
use super::{NAMES, Sites, run};

/// The past of a region begins when it has everything: before, tables were there in parts, which
/// nobody must take for the whole.
#[test]
fn past_of_a_region_begins_when_it_has_everything() {
    World::run(1, false, async |world| {
        let mut sites = Sites::prepared(&world);
        sites.start(0).await;
        sites.must(0, "CREATE TABLE big (id int PRIMARY KEY, v text)").await;
        // More than what is sent at once.
        let rows = "INSERT INTO big SELECT g, repeat('x', 300) FROM generate_series(1, 20000) g";
        sites.must(0, rows).await;
        sites.must(0, "CREATE TABLE last (id int PRIMARY KEY)").await;
        world.sleep(Duration::from_secs(1)).await;
        let wall = || world.env.clock.wall_micros();
        let begun = wall();
        sites.net.set_weather(telesto_net::sim::Weather {
            delay: Duration::from_millis(40),
            ..telesto_net::sim::Weather::CALM
        });
        sites.start(1).await;
        let ended = wall();
        world.sleep(Duration::from_secs(2)).await;
        sites.must(0, "INSERT INTO last VALUES (1)").await;
        sites.reaches(0, 1).await;
        assert!(ended > begun + 100_000, "it came at once: the test sees nothing");
        let (mut refused, mut shown) = (0, 0);
        for micros in (begun..ended + 1_000_000).step_by(10_000) {
            let at = Timestamp::from_wall_micros(micros).0;
            let count = format!("SELECT count(*) FROM big AS OF SYSTEM TIME '{at}'");
            match sites.run(1, &count).await {
                Ok(rows) => {
                    assert_eq!(rows, one("20000"), "{micros}, joined from {begun} to {ended}");
                    shown += 1;
                }
                Err(error) => {
                    assert_eq!((error.code().0, shown), ("22023", 0), "{error}");
                    refused += 1;
                }
            }
            let mut session = sites.session(1).await;
            let begin = format!("BEGIN AS OF SYSTEM TIME '{at}'");
            run(&mut session, &begin).await.expect("begins");
            let in_block = run(&mut session, "SELECT count(*) FROM big").await;
            assert_eq!(in_block.is_err(), shown == 0, "{in_block:?}");
            // The first region has been there all the time.
            assert_eq!(sites.must(0, &count).await, one("20000"));
        }
        assert!(refused > 0 && shown > 0, "{refused}, {shown}");
    });
}

/// A region that comes under the name of one that is gone has the rows that bear this name.
#[test]
fn region_of_a_gone_ones_name_has_the_rows_of_that_name() {
    World::run(1, false, async |world| {
        let mut sites = Sites::running(&world).await;
        for sql in [
            "CREATE TABLE t (region text, id int, PRIMARY KEY (region, id))",
            "ALTER TABLE t SET (telesto.regions = 'by row (region)')",
        ] {
            sites.must(0, sql).await;
        }
        sites.settles().await;
        sites.must(2, "INSERT INTO t VALUES ('ap', 1)").await;
        sites.kill(2);
        let named = |ap: &[u16]| -> Vec<(u16, String, String)> {
            let others = [(0, NAMES[0]), (1, NAMES[1])].into_iter();
            let all = others.chain(ap.iter().map(|id| (*id, NAMES[2])));
            all.map(|(id, name)| (id, name.to_owned(), String::new())).collect()
        };
        let catalog = || async {
            let txn = sites.at(0).engine.clone();
            let txn = telesto_txn::Database::begin(&*txn, telesto_txn::TxnOptions::default());
            let txn = txn.await.expect("begins");
            let catalogs = telesto_sql::catalog::CatalogCache::of(RegionId(0));
            let of = telesto_sql::catalog::store::DEFAULT_DATABASE_ID;
            catalogs.read(&txn, of).await.expect("reads")
        };
        let homes = || async {
            let catalog = catalog().await;
            let table = catalog.tables().find(|table| table.name == "t").cloned().expect("t");
            let rule = table.placement.by_row.clone().expect("a rule");
            ["us", "eu", "ap"].map(|value| rule.values[value].clone())
        };
        let name_and_keep = async |ap: &[u16], kept: &[u16]| {
            sites.at(0).sql.name_regions(&named(ap), kept).await.expect("named");
        };
        let name = async |ap: &[u16]| name_and_keep(ap, &[]).await;
        // While the one before it is named, the rows are its own; who says the name means the one
        // that has come.
        name_and_keep(&[5], &[2]).await;
        assert_eq!(homes().await[2].home(), Some(2));
        assert_eq!(catalog().await.region_named("ap"), Some(RegionId(5)));
        name(&[]).await;
        assert_eq!(homes().await[2].home(), Some(2));
        name(&[5]).await;
        let [us, eu, ap] = homes().await;
        assert_eq!((us.home(), eu.home(), ap.home()), (Some(0), Some(1), Some(5)));
        // What is left of them is sent before the new one reads them.
        assert!(ap.is_gained_by(5) && !us.is_gained_by(0), "{ap:?}");
        name(&[5]).await;
        assert_eq!(homes().await[2], ap);
        // A region that is named no more is not named again because somebody may not have closed
        // it.
        name_and_keep(&[5], &[2]).await;
        assert_eq!(homes().await[2], ap);
        name(&[]).await;
        name_and_keep(&[], &[2]).await;
        let ids: Vec<_> = catalog().await.regions().map(|region| region.id).collect();
        assert_eq!(ids, [0, 1]);
    });
}
