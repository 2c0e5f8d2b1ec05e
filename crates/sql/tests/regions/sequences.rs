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
