//! What regions measure of the links between them, and tell each other.

use std::time::Duration;

use telesto_common::RegionId;
use telesto_net::sim::Weather;
use telesto_testkit::World;

use crate::harness::Sites;

#[test]
fn every_region_knows_what_every_link_takes() {
    World::run(41, false, async |world| {
        let sites = Sites::running(&world, 3).await;
        sites.quiet().await;
        sites.net.set_weather(Weather { delay: Duration::from_millis(40), ..Weather::CALM });
        // The measures of the calm before have to leave the window.
        world.sleep(Duration::from_secs(400)).await;
        for round in 0..20 {
            sites.put(0, "a1", &round.to_string()).await;
        }
        sites.comes(1, "a1", Some("19")).await;
        sites.comes(2, "a1", Some("19")).await;
        world.sleep(Duration::from_secs(12)).await;
        let links = sites.at(2).regions.links();
        let pairs: Vec<_> = links.iter().map(|link| (link.from.0, link.to.0)).collect();
        assert_eq!(pairs, [(0, 1), (0, 2), (1, 0), (1, 2), (2, 0), (2, 1)]);
        for link in &links {
            let round_trip = link.round_trip.expect("measured");
            let plausible = Duration::from_millis(80)..Duration::from_millis(120);
            assert!(plausible.contains(&round_trip), "{link:?}");
            let told = if link.from == RegionId(2) { 0..=0 } else { 0..=11 };
            assert!(told.contains(&link.age.as_secs()), "{link:?}");
        }
        let first = &links[0];
        assert!(first.sent >= 20 && first.sent_bytes > 0 && first.metadata_bytes > 0, "{first:?}");
        let [mean, median, last] = first.visible.map(|time| time.expect("applied there"));
        assert!(mean >= Duration::from_millis(40) && median <= last, "{first:?}");
        assert_eq!(links[3].visible, [None; 3], "region 1 has written nothing");
        // Who is away is shown as it was told last.
        sites.kill(0);
        world.sleep(Duration::from_secs(60)).await;
        let links = sites.at(2).regions.links();
        assert!(links[0].round_trip.is_some() && links[0].age > Duration::from_secs(40));
    });
}
