//! What a region that joined shows of the time before it had everything.

use std::time::Duration;

use telesto_common::Timestamp;
use telesto_testkit::World;

use super::reads::one;
use super::{Sites, run};

/// The past of a region begins when it has everything: before, tables were there in parts, which nobody must take for the whole.
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
