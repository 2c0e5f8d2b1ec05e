//! Sessions that move.

use std::time::Duration;

use telesto_common::{Label, RegionId};
use telesto_regions::Error;
use telesto_testkit::World;

use crate::harness::{Sites, read};

#[test]
fn session_that_moves_sees_what_it_saw_and_what_it_does_not_see_is_named() {
    World::run(11, false, async |world| {
        let sites = Sites::running(&world, 3).await;
        let label = sites.put(0, "a1", "mine").await;
        let token = sites.at(0).regions.migrate(label, RegionId(1)).expect("a peer");
        let there = sites.at(1);
        let by = there.env.deadline(Duration::from_secs(5));
        let session = there.regions.attach(&token, by).await.expect("attached");
        assert_eq!(read(&there.engine, "a1", session).await.as_deref(), Some("mine"));
        // Back again with what it did there.
        let label = sites.put(1, "b1", "there").await;
        let token = sites.at(1).regions.token(label);
        let here = sites.at(0);
        let by = here.env.deadline(Duration::from_secs(5));
        let session = here.regions.attach(&token, by).await.expect("attached");
        assert_eq!(read(&here.engine, "b1", session).await.as_deref(), Some("there"));
        sites.partition(0, 2);
        let label = sites.put(0, "a1", "cut off").await;
        let token = sites.at(0).regions.token(label);
        let there = sites.at(2);
        let by = there.env.deadline(Duration::from_secs(2));
        let refused = there.regions.attach(&token, by).await;
        assert!(
            matches!(refused, Err(Error::NotHereYet { region: RegionId(0), .. })),
            "{refused:?}"
        );
        let forged = token.replace(&token[8..12], "ffff");
        assert!(matches!(there.regions.attach(&forged, by).await, Err(Error::Token(_))));
    });
}

#[test]
fn session_that_has_seen_nothing_yet_stands_for_what_its_client_may_have_seen_before_its_connection_was_lost()
 {
    World::run(15, false, async |world| {
        let sites = Sites::running(&world, 3).await;
        sites.quiet().await;
        sites.partition(0, 2);
        sites.put(0, "a1", "seen").await;
        sites.kill(0);
        sites.start(0, 0..3).await;
        let token = sites.at(0).regions.migrate(Label::default(), RegionId(2)).expect("a peer");
        let there = sites.at(2);
        let by = there.env.deadline(Duration::from_secs(2));
        let refused = there.regions.attach(&token, by).await;
        assert!(matches!(refused, Err(Error::NotHereYet { .. })), "{refused:?}");
        sites.net.heal();
        let by = there.env.deadline(Duration::from_secs(5));
        let session = there.regions.attach(&token, by).await.expect("attached");
        assert_eq!(read(&there.engine, "a1", session).await.as_deref(), Some("seen"));
    });
}

#[test]
fn past_that_came_without_a_transaction_is_carried_on_to_a_third_region() {
    // x goes from 0 to 2 only; the session that made it goes to 1, which has no copy, and writes y
    // to 2 there: y waits for x.
    World::run(12, false, async |world| {
        let sites = Sites::running(&world, 3).await;
        sites.quiet().await;
        sites.partition(0, 2);
        let label = sites.put(0, "d1", "cause").await;
        let token = sites.at(0).regions.migrate(label, RegionId(1)).expect("a peer");
        let there = sites.at(1);
        let by = there.env.deadline(Duration::from_secs(5));
        let session = there.regions.attach(&token, by).await.expect("attached");
        let writes = [("c1", Some("effect"))];
        crate::harness::write(&there.engine, &writes, session).await.expect("commits");
        // Also when the region that carries the past is started again.
        sites.kill(1);
        sites.start(1, 0..3).await;
        world.sleep(Duration::from_secs(3)).await;
        assert_eq!(sites.get(2, "c1").await, None, "its cause is not there");
        sites.net.heal();
        sites.comes(2, "c1", Some("effect")).await;
        assert_eq!(sites.get(2, "d1").await.as_deref(), Some("cause"));
    });
}
