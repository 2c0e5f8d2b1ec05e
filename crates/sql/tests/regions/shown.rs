//! What a region shows of the others: how the streams stand, and what it executes for them.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use async_trait::async_trait;
use telesto_common::{Label, RegionId, Timestamp};
use telesto_sql::{CancelHandle, Error, Host, SqlState, StatementResult, Turn};
use telesto_testkit::World;
use telesto_txn::regions::{ConflictView, LinkView, NotAttached, RegionControl, RegionsView};
use telesto_txn::{
    AskRows, AwayRead, AwayRequest, Distance, Elsewhere, Error as TxnError, Pieces, RowsGiven,
};

use super::reads::{one, placed};
use super::{Sites, run};

/// The way to a node that carries the streams, which does not answer.
#[derive(Debug)]
struct Cut;

fn cut<T>() -> telesto_txn::Result<T> {
    Err(TxnError::Elsewhere("nobody answers".to_owned()))
}

#[async_trait]
impl RegionControl for Cut {
    async fn view(&self) -> telesto_txn::Result<RegionsView> {
        cut()
    }
    async fn links(&self) -> telesto_txn::Result<Vec<LinkView>> {
        cut()
    }
    async fn conflicts(&self) -> telesto_txn::Result<Vec<ConflictView>> {
        cut()
    }
    async fn token(&self, _: Label) -> Result<String, String> {
        Err("cut".to_owned())
    }
    async fn migrate(&self, _: Label, _: &str) -> Result<String, String> {
        Err("cut".to_owned())
    }
    async fn attach(&self, _: &str, _: Duration) -> Result<Label, NotAttached> {
        Err(NotAttached::NotYet("cut".to_owned()))
    }
    async fn commit_at(&self, _: RegionId, _: AwayRequest) -> telesto_txn::Result<Elsewhere> {
        cut()
    }
    async fn rows_at(&self, _: RegionId, _: AskRows) -> telesto_txn::Result<RowsGiven> {
        cut()
    }
    async fn arrive(&self, _: RegionId, _: Timestamp, _: Duration) -> Result<Label, String> {
        Err("cut".to_owned())
    }
    async fn distances(&self) -> Vec<Distance> {
        Vec::new()
    }
    async fn read_at(&self, _: RegionId, _: AwayRead) -> telesto_txn::Result<Box<dyn Pieces>> {
        cut()
    }
}

/// What only the node with the streams knows is asked for, and only that.
#[test]
fn names_of_regions_are_known_when_nobody_tells_how_they_stand() {
    World::run(1, false, async |world| {
        let sites = Sites::running(&world).await;
        sites.quiet().await;
        let links = "SELECT count(*) >= 4 FROM telesto_links";
        assert_eq!(sites.must(0, links).await, one("t"));
        let standing = "SELECT bool_and(connected) FROM telesto_regions WHERE NOT is_self";
        assert_eq!(sites.must(0, standing).await, one("t"));
        let cut: Arc<dyn RegionControl> = Arc::new(Cut);
        sites.at(0).engine.replicates(Arc::downgrade(&cut));
        let names = "SELECT string_agg(name, ' ' ORDER BY id) FROM telesto_regions WHERE defines OR NOT is_self";
        assert_eq!(sites.must(0, names).await, one("us eu ap"));
        assert_eq!(sites.must(0, "SELECT count(*) FROM telesto_regions").await, one("3"));
        assert_eq!(sites.must(0, "SELECT count(*) FROM telesto_placement").await, one("0"));
        for asked in [
            standing,
            links,
            "SELECT plane FROM telesto_regions",
            "SELECT * FROM telesto_conflicts",
        ] {
            let refused = sites.run(0, asked).await.expect_err(asked);
            assert_eq!(refused.code().0, "08006", "{asked}: {refused}");
            assert!(refused.message().contains("nobody answers"), "{refused}");
        }
    });
}

/// What a region executes for others is among its sessions while it runs, and is stopped there.
#[test]
fn statement_of_another_region_is_shown_and_stopped_where_it_is_executed() {
    World::run(2, false, async |world| {
        let sites = placed(&world).await;
        let others = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'shop'";
        for stop in ["pg_cancel_backend", "pg_terminate_backend"] {
            let mut session = sites.session(0).await;
            run(&mut session, "SET application_name = 'shop'").await.expect("sets");
            let visit = run(&mut session, "SELECT pg_sleep(1000) FROM e WHERE id = 1");
            let stops = async {
                while sites.must(1, others).await != one("1") {
                    world.sleep(Duration::from_millis(10)).await;
                }
                world.sleep(Duration::from_millis(100)).await;
                let shown = "SELECT usename || ' ' || state || ' ' || wait_event || ' ' || query FROM pg_stat_activity WHERE application_name = 'shop'";
                let expected = "telesto active PgSleep SELECT pg_sleep(1000) FROM e WHERE id = 1";
                assert_eq!(sites.must(1, shown).await, one(expected));
                let stopped = format!(
                    "SELECT {stop}(pid) FROM pg_stat_activity WHERE application_name = 'shop'"
                );
                assert_eq!(sites.must(1, &stopped).await, one("t"));
            };
            let (ended, ()) = futures::join!(visit, stops);
            let ended = ended.expect_err("stopped");
            assert_eq!(ended.code().0, "57014", "{stop}: {ended}");
            assert_eq!(sites.must(1, others).await, one("0"), "{stop}");
            assert_eq!(
                run(&mut session, "SELECT v FROM e WHERE id = 1").await.expect("goes on"),
                one("one")
            );
        }
        // Between two pieces it waits for who reads them; it leaves when the rows are read no more.
        let mut session = sites.session(0).await;
        run(&mut session, "SET application_name = 'shop'").await.expect("sets");
        let many = "SELECT g, repeat('r', 40) FROM e, generate_series(1, 30000) g WHERE e.id = 1";
        let prepared = session.prepare(many, &[]).await.expect("prepares");
        let result = session.execute(&prepared, Vec::new()).await.expect("begins");
        let StatementResult::Rows { rows, .. } = result else { panic!("no rows") };
        world.sleep(Duration::from_millis(500)).await;
        let waits = "SELECT wait_event FROM pg_stat_activity WHERE application_name = 'shop'";
        assert_eq!(sites.must(1, waits).await, one("ClientWrite"));
        drop(rows);
        session.sync().await.expect("ends");
        for _ in 0..100 {
            if sites.must(1, others).await == one("0") {
                return;
            }
            world.sleep(Duration::from_secs(1)).await;
        }
        panic!("it is shown still: {:?}", sites.must(1, waits).await);
    });
}

/// A server whose threads are counted, and that may take no more.
#[derive(Debug, Default)]
struct Counting {
    full: AtomicBool,
    turns: Arc<AtomicUsize>,
}

#[derive(Debug)]
struct Counted(Arc<AtomicUsize>);

impl Host for Counting {
    fn turned_away(&self) -> Option<Error> {
        let full = self.full.load(Ordering::Relaxed);
        full.then(|| Error::new(SqlState::CONFIGURATION_LIMIT_EXCEEDED, "the server is overloaded"))
    }

    fn turn(&self, _: CancelHandle) -> Box<dyn Turn> {
        Box::new(Counted(Arc::clone(&self.turns)))
    }
}

impl Turn for Counted {
    fn poll(
        &mut self,
        context: &mut Context<'_>,
        work: &mut dyn FnMut(&mut Context<'_>) -> Poll<()>,
    ) -> Poll<()> {
        self.0.fetch_add(1, Ordering::Relaxed);
        work(context)
    }
}

/// Statements of other regions have the turns of the server's own; one that takes no new work takes
/// none of theirs.
#[test]
fn overloaded_region_is_passed_over_for_one_that_is_not() {
    World::run(3, false, async |world| {
        let sites = placed(&world).await;
        let (eu, ap) = (Arc::new(Counting::default()), Arc::new(Counting::default()));
        sites.at(1).sql.hosted_by(Arc::clone(&eu) as Arc<dyn Host>);
        sites.at(2).sql.hosted_by(Arc::clone(&ap) as Arc<dyn Host>);
        let turns = |host: &Counting| host.turns.load(Ordering::Relaxed);
        let (both, alone) = ("SELECT count(*) FROM x", "SELECT count(*) FROM e");
        assert_eq!(sites.must(0, alone).await, one("2"));
        assert!(turns(&eu) > 0);
        eu.full.store(true, Ordering::Relaxed);
        let before = (turns(&eu), turns(&ap));
        for _ in 0..3 {
            assert_eq!(sites.must(0, both).await, one("4"));
        }
        assert!(turns(&eu) == before.0 && turns(&ap) > before.1);
        let refused = sites.run(0, alone).await.expect_err("nobody else has it");
        assert_eq!(refused.code().0, "08006", "{refused}");
        assert!(refused.message().contains("overloaded"), "{refused}");
        eu.full.store(false, Ordering::Relaxed);
        assert_eq!(sites.must(0, alone).await, one("2"));
    });
}
