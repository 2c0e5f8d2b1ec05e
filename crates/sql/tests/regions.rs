//! SQL in three regions, over the simulated network, in virtual time: tables that every region writes, and tables whose home moves.
#![allow(
    missing_docs,
    clippy::disallowed_methods,
    reason = "tests; what they share with those of real servers spawns"
)]

#[path = "regions/forwarded.rs"]
mod forwarded;
mod support;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use support::Collected;
use telesto_bucket::{Bucket, BucketOptions, MemoryStore, over};
use telesto_common::{Incarnation, Label, NodeId, RegionId};
use telesto_log::Identity;
use telesto_net::sim::{SimNet, Weather};
use telesto_net::{Caller, Peer, Router, VERSIONS, serve};
use telesto_regions::{PeerRegion, Regions, RegionsConfig, SERVICE};
use telesto_shard::{EngineKind, MemoryCheckpoints};
use telesto_sql::regions::RegionDefinitions;
use telesto_sql::{Error, Session, SessionOptions, SqlEngine, SqlOptions};
use telesto_testkit::{Process, World};
use telesto_txn::regions::Definitions as _;
use telesto_txn::{Database, Engine, EngineOptions, MemoryLimits};

const REGIONS: usize = 3;
const NAMES: [&str; REGIONS] = ["us", "eu", "ap"];

struct Site {
    engine: Arc<Engine>,
    sql: Arc<SqlEngine>,
    regions: Arc<Regions>,
    process: Arc<Process>,
}

struct Place {
    store: MemoryStore,
    checkpoints: Arc<MemoryCheckpoints>,
    life: u64,
    site: Option<Site>,
}

struct Sites {
    world: World,
    net: SimNet,
    places: Vec<Place>,
}

impl Sites {
    /// Three regions of which the first has the others named in its catalog.
    async fn running(world: &World) -> Self {
        let place = |_| Place {
            store: MemoryStore::new(Arc::clone(&world.env.clock)),
            checkpoints: MemoryCheckpoints::new(),
            life: 0,
            site: None,
        };
        let mut sites = Self {
            world: world.clone(),
            net: SimNet::new(world.env.clone()),
            places: (0..REGIONS).map(place).collect(),
        };
        for region in 0..REGIONS {
            sites.start(region).await;
        }
        sites
    }

    async fn start(&mut self, region: usize) {
        let place = &mut self.places[region];
        place.life += 1;
        let life = Incarnation(place.life);
        let process = Arc::new(self.world.process(NAMES[region], place.life));
        let env = process.env.clone();
        let store: Arc<dyn object_store::ObjectStore> = Arc::new(place.store.clone());
        let bucket = over(store, "memory://test", &BucketOptions::default(), env.clone());
        let bucket = bucket.expect("a bucket") as Arc<dyn Bucket>;
        let node = NodeId(100 + region as u128);
        let identity = Identity {
            node,
            incarnation: life,
            host: "test".to_owned(),
            pid: 1,
            address: String::new(),
        };
        let options = EngineOptions {
            region: RegionId(region as u16),
            checkpoint: EngineKind::Memory(Arc::clone(&place.checkpoints)),
            memory: MemoryLimits::split(64 << 20),
            ..EngineOptions::new(identity, std::env::temp_dir())
        };
        let engine = Engine::open(Arc::clone(&bucket), env.clone(), options).await.expect("opens");
        let me = Caller { node, incarnation: life };
        let peers = (0..REGIONS).filter(|peer| *peer != region).map(|peer| PeerRegion {
            id: RegionId(peer as u16),
            name: NAMES[peer].to_owned(),
            node: Peer { node: NodeId(100 + peer as u128), address: NAMES[peer].to_owned() },
        });
        let config = RegionsConfig {
            name: NAMES[region].to_owned(),
            peers: peers.collect(),
            timeout: Duration::from_secs(5),
            ..RegionsConfig::new(RegionId(region as u16), 77, [9; 32], me)
        };
        let mut incoming = self.net.listen(NAMES[region]);
        let transport = self.net.transport(NAMES[region]);
        let database: Arc<dyn Database> = Arc::clone(&engine) as _;
        let definitions = RegionDefinitions::new(Arc::clone(&database));
        let tables = Some(Arc::clone(&definitions) as _);
        let regions = Regions::start(&env, Arc::clone(&engine), bucket, transport, config, tables);
        let regions = regions.await.expect("starts");
        let router = Router::default().with(SERVICE, regions.handler());
        let on = env.clone();
        env.spawn("accepting", async move {
            while let Some(pipe) = incoming.recv().await {
                let (router, env) = (router.clone(), on.clone());
                on.spawn("serving", async move {
                    let _ = serve(&env, pipe, me, VERSIONS, &router).await;
                });
            }
        });
        if region != 0 {
            self.complete(region, &definitions, &regions).await;
        }
        let sql = SqlEngine::open(database, env.clone(), SqlOptions::default()).await;
        let sql = sql.expect("opens");
        if region == 0 {
            let named = NAMES.iter().enumerate();
            let named = named.map(|(id, name)| (id as u16, (*name).to_owned(), String::new()));
            sql.name_regions(&named.collect::<Vec<_>>()).await.expect("named");
        }
        self.places[region].site = Some(Site { engine, sql, regions, process });
    }

    /// Waits until a region has what was to be sent to it at first.
    async fn complete(&self, region: usize, definitions: &RegionDefinitions, regions: &Regions) {
        for _ in 0..2000 {
            let missing = definitions.missing(&regions.passed()).await.expect("reads");
            // The third region has not been started when the second one waits.
            let missing = missing.filter(|what| region != 1 || !what.contains(NAMES[2]));
            if missing.is_none() && regions.has_past_of(definitions.stamp()).await.expect("reads") {
                return;
            }
            self.world.sleep(Duration::from_millis(50)).await;
        }
        panic!("{} did not get everything: {:#?}", NAMES[region], regions.status());
    }

    fn kill(&mut self, region: usize) {
        self.net.leave(NAMES[region]);
        if let Some(site) = self.places[region].site.take() {
            site.process.kill();
        }
    }

    fn at(&self, region: usize) -> &Site {
        self.places[region].site.as_ref().expect("runs")
    }

    async fn session(&self, region: usize) -> Session {
        self.at(region).sql.session(SessionOptions::default()).await.expect("a session")
    }

    /// Runs a statement in a session of its own; its rows.
    async fn run(&self, region: usize, sql: &str) -> Result<Vec<Vec<Option<String>>>, Error> {
        let mut session = self.session(region).await;
        run(&mut session, sql).await
    }

    /// The same, of a session that forwards nothing.
    async fn run_at_home(
        &self,
        region: usize,
        sql: &str,
    ) -> Result<Vec<Vec<Option<String>>>, Error> {
        let mut session = self.session(region).await;
        run(&mut session, "SET telesto.forward_writes = off").await?;
        run(&mut session, sql).await
    }

    async fn must(&self, region: usize, sql: &str) -> Vec<Vec<Option<String>>> {
        self.run(region, sql)
            .await
            .unwrap_or_else(|error| panic!("{}: {sql}: {error}", NAMES[region]))
    }

    /// Waits until what one region has committed is in another.
    async fn reaches(&self, from: usize, to: usize) {
        let (_, at) = self.at(from).engine.applied();
        let token = self.at(from).regions.token(Label::update(RegionId(from as u16), at));
        let by = self.world.env.deadline(Duration::from_secs(120));
        let attached = self.at(to).regions.attach(&token, by).await;
        attached.unwrap_or_else(|error| {
            panic!("{from} to {to}: {error}; {:#?}", self.at(to).regions.status())
        });
    }

    /// The same, of all regions.
    async fn quiet(&self) {
        for from in 0..REGIONS {
            for to in (0..REGIONS).filter(|to| *to != from) {
                self.reaches(from, to).await;
            }
        }
    }

    /// Cuts, heals, kills.
    async fn disturb(&mut self) {
        match below(&self.world, 14) {
            0 => {
                let (one, other) = (below(&self.world, 3), below(&self.world, 3));
                self.net.cut(NAMES[one as usize], NAMES[other as usize]);
            }
            1 => self.net.heal(),
            2 => {
                let region = below(&self.world, 3) as usize;
                self.kill(region);
                self.net.heal();
                self.start(region).await;
            }
            3..=6 => {
                let pause = Duration::from_millis(below(&self.world, 200));
                self.world.sleep(pause).await;
            }
            _ => {}
        }
    }

    /// Every region has the same rows, and its indexes fit them.
    async fn check(&self, table: &str) -> Vec<Vec<Option<String>>> {
        self.net.heal();
        self.quiet().await;
        let all = format!("SELECT * FROM {table} ORDER BY 1");
        let first = self.must(0, &all).await;
        for (region, name) in NAMES.iter().enumerate() {
            assert_eq!(self.must(region, &all).await, first, "{name} differs");
            let checked =
                self.must(region, &format!("SELECT telesto_check_table('{table}')")).await;
            assert_eq!(checked, vec![vec![Some(first.len().to_string())]]);
        }
        first
    }
}

fn below(world: &World, bound: u64) -> u64 {
    world.env.random.next_u64() % bound
}

async fn run(session: &mut Session, sql: &str) -> Result<Vec<Vec<Option<String>>>, Error> {
    let mut collected = Collected::default();
    session.execute_simple(sql, &mut collected).await?;
    Ok(collected.table.map(|table| table.rows).unwrap_or_default())
}

fn seeds() -> std::ops::Range<u64> {
    let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse().ok());
    let from = number("TELESTO_SEED").unwrap_or(0);
    from..from + number("TELESTO_REGION_SEEDS").unwrap_or(4)
}

/// Writes of one row in several regions at once: afterwards the rows are the same, and each region's own index entries fit them.
#[test]
fn table_that_every_region_writes_has_the_same_rows_and_fitting_indexes_everywhere() {
    for seed in seeds() {
        World::run(seed, false, async |world| {
            let mut sites = Sites::running(&world).await;
            for sql in [
                "CREATE TABLE t (id int PRIMARY KEY, a text, b int, c int)",
                "CREATE INDEX ON t (a)",
                "CREATE INDEX ON t (b, c)",
                "CREATE INDEX ON t (lower(a))",
                "CREATE INDEX ON t (c) WHERE b > 3",
                "INSERT INTO t SELECT g, 'A' || g, g, g FROM generate_series(1, 6) g",
                "ALTER TABLE t SET (telesto.home = 'any')",
            ] {
                sites.must(0, sql).await;
            }
            sites.quiet().await;
            sites.net.set_weather(Weather { delay: Duration::from_millis(40), ..Weather::FOUL });
            for _ in 0..120 {
                sites.disturb().await;
                let region = below(&world, 3) as usize;
                let (id, a, b, c) =
                    (below(&world, 8), below(&world, 4), below(&world, 7), below(&world, 3));
                let sql = match below(&world, 4) {
                    0 => format!(
                        "INSERT INTO t VALUES ({id}, 'A{a}', {b}, {c}) ON CONFLICT (id) DO UPDATE SET a = 'B{a}', b = {b}"
                    ),
                    1 => format!("DELETE FROM t WHERE id = {id}"),
                    2 => format!("UPDATE t SET b = b + 1, c = {c} WHERE id IN ({id}, {a})"),
                    _ => format!("UPDATE t SET a = 'a{a}' WHERE b = {b}"),
                };
                sites.must(region, &sql).await;
            }
            sites.check("t").await;
        });
    }
}

/// The home of a table with a unique column moves while every region tries to write: what was acknowledged is there, once, and unique.
#[test]
fn home_that_moves_keeps_unique_keys_and_loses_nothing() {
    let (mut refused, mut written) = (0, [0; REGIONS]);
    for seed in seeds() {
        World::run(seed, false, async |world| {
            let mut sites = Sites::running(&world).await;
            sites
                .must(0, "CREATE TABLE u (id serial PRIMARY KEY, email text UNIQUE, by text)")
                .await;
            sites.quiet().await;
            sites.net.set_weather(Weather { delay: Duration::from_millis(40), ..Weather::FOUL });
            let mut acknowledged = BTreeMap::new();
            for turn in 0..160 {
                sites.disturb().await;
                if below(&world, 12) == 0 {
                    let home = NAMES[below(&world, 3) as usize];
                    sites.must(0, &format!("ALTER TABLE u SET (telesto.home = '{home}')")).await;
                }
                let region = below(&world, 3) as usize;
                let email = format!("m{}", below(&world, 60));
                let by = format!("{turn} {}", NAMES[region]);
                let sql = format!("INSERT INTO u (email, by) VALUES ('{email}', '{by}')");
                match sites.run_at_home(region, &sql).await {
                    Ok(_) => {
                        written[region] += 1;
                        let before = acknowledged.insert(email.clone(), by);
                        assert_eq!(before, None, "seed {seed}: {email} was taken already");
                    }
                    Err(error) if error.code().0 == "23505" => {}
                    Err(error) => {
                        assert!(["25006", "55000"].contains(&error.code().0), "{error}");
                        refused += 1;
                    }
                }
            }
            let rows = sites.check("u").await;
            let found: BTreeMap<_, _> = rows
                .into_iter()
                .map(|mut row| (row.remove(1).expect("email"), row.remove(1).expect("by")))
                .collect();
            assert_eq!(found, acknowledged, "seed {seed}");
        });
    }
    // Else the test has tested nothing.
    assert!(refused > 0 && written.iter().all(|count| *count > 0), "{refused}, {written:?}");
}

/// What is defined in the first region is there in the others, behind what came before it; they define nothing themselves.
#[test]
fn definitions_placement_sequences_and_sessions() {
    World::run(1, false, async |world| {
        let sites = Sites::running(&world).await;
        let code = async |region: usize, sql: &str| {
            sites.run_at_home(region, sql).await.expect_err("refused").code().0.to_owned()
        };
        sites.must(0, "CREATE TABLE a (id serial PRIMARY KEY, v text)").await;
        sites.must(0, "INSERT INTO a (v) VALUES ('one')").await;
        sites.must(0, "CREATE TABLE made AS SELECT g FROM generate_series(1, 50) g").await;
        sites.quiet().await;
        assert_eq!(
            sites.must(2, "SELECT count(*) FROM made").await,
            vec![vec![Some("50".to_owned())]]
        );
        for sql in [
            "CREATE TABLE x (a int)",
            "DROP TABLE a",
            "CREATE ROLE r",
            "CREATE INDEX ON a (v)",
            "INSERT INTO a (v) VALUES ('x')",
        ] {
            assert_eq!(code(1, sql).await, "25006", "{sql}");
        }
        sites.must(1, "CREATE TEMP TABLE mine (a int)").await;
        // Keys that no region can keep alone.
        sites.must(0, "CREATE TABLE child (id int PRIMARY KEY, a int REFERENCES a)").await;
        assert_eq!(code(0, "ALTER TABLE child SET (telesto.home = 'any')").await, "55000");
        sites.must(0, "ALTER TABLE child SET (telesto.home = 'eu')").await;
        sites.quiet().await;
        assert_eq!(code(1, "INSERT INTO child VALUES (1, 1)").await, "55000");
        assert_eq!(code(0, "ALTER TABLE child ADD COLUMN more int").await, "55000");
        sites.must(0, "ALTER TABLE a SET (telesto.home = 'eu')").await;
        sites.quiet().await;
        sites.must(1, "INSERT INTO child VALUES (1, 1)").await;
        assert_eq!(code(1, "INSERT INTO child VALUES (2, 77)").await, "23503");
        // Each region gives values of its own.
        let id = sites.must(1, "INSERT INTO a (v) VALUES ('two') RETURNING id").await;
        // What was refused above has drawn the parcel's first value.
        assert_eq!(id, vec![vec![Some("34".to_owned())]]);
        // A table that is not everywhere.
        sites.must(0, "CREATE TABLE some (id int PRIMARY KEY)").await;
        sites.must(0, "ALTER TABLE some SET (telesto.regions = 'us, eu')").await;
        sites.must(0, "INSERT INTO some VALUES (1)").await;
        sites.quiet().await;
        assert_eq!(
            sites.must(1, "SELECT count(*) FROM some").await,
            vec![vec![Some("1".to_owned())]]
        );
        assert_eq!(code(2, "SELECT count(*) FROM some").await, "55000");
        assert_eq!(code(2, "SELECT * FROM some WHERE id = 1").await, "55000");
        assert_eq!(code(2, "COPY some TO STDOUT").await, "55000");
        assert_eq!(code(0, "ALTER TABLE some SET (telesto.home = 'ap')").await, "55000");
        assert_eq!(code(0, "ALTER TABLE some SET (telesto.regions = 'mars')").await, "22023");
        assert_eq!(code(0, "ALTER TABLE some SET (telesto.curated = telesto)").await, "0A000");
        assert_eq!(code(0, "ALTER TABLE some SET (telesto.nothing = 1)").await, "22023");
        // A region that gets a table reads it when everybody has sent what they have.
        sites.must(0, "ALTER TABLE some SET (telesto.home = 'eu')").await;
        sites.quiet().await;
        sites.must(1, "INSERT INTO some VALUES (2)").await;
        sites.net.cut("eu", "ap");
        sites.must(0, "ALTER TABLE some SET (telesto.regions = 'all')").await;
        let placed = "SELECT regions FROM telesto_placement WHERE table_name = 'some'";
        while sites.must(2, placed).await != vec![vec![Some("all".to_owned())]] {
            world.sleep(Duration::from_millis(20)).await;
        }
        // Even when the first region has settled it: that comes here behind what eu has sent.
        for _ in 0..20 {
            let refused = sites.run(2, "SELECT count(*) FROM some").await.expect_err("refused");
            assert!(refused.to_string().contains("still being sent"), "{refused}");
            sites.at(0).sql.settle_regions().await.expect("looks");
            world.sleep(Duration::from_millis(50)).await;
        }
        sites.net.heal();
        sites.quiet().await;
        sites.at(0).sql.settle_regions().await.expect("settles");
        sites.quiet().await;
        assert_eq!(
            sites.must(2, "SELECT count(*) FROM some").await,
            vec![vec![Some("2".to_owned())]]
        );
        assert_eq!(
            sites
                .must(0, "SELECT moved_from FROM telesto_placement WHERE table_name = 'some'")
                .await,
            vec![vec![None]]
        );
        // A session goes from eu to ap, behind a slow link.
        sites.net.set_weather(Weather { delay: Duration::from_millis(300), ..Weather::CALM });
        let mut session = sites.session(1).await;
        run(&mut session, "UPDATE a SET v = 'seen' WHERE id = 1").await.expect("writes");
        let token = run(&mut session, "SHOW telesto.session_token").await.expect("a token");
        let token = token[0][0].clone().expect("a text");
        let mut session = sites.session(2).await;
        let before = run(&mut session, "SELECT v FROM a WHERE id = 1").await.expect("reads");
        assert_eq!(before, vec![vec![Some("one".to_owned())]], "the link is not slow");
        run(&mut session, &format!("SET telesto.session_token = '{token}'"))
            .await
            .expect("goes on");
        let after = run(&mut session, "SELECT v FROM a WHERE id = 1").await.expect("reads");
        assert_eq!(after, vec![vec![Some("seen".to_owned())]]);
        let wrong =
            run(&mut session, "SET telesto.session_token = 'x'").await.expect_err("refused");
        assert_eq!(wrong.code().0, "55000");
    });
}

/// A row that two regions write at once: both keep the later one, and the one that lost is listed.
#[test]
fn conflict_is_listed_in_both_terms() {
    World::run(3, false, async |world| {
        let sites = Sites::running(&world).await;
        sites.must(0, "CREATE TABLE t (id int PRIMARY KEY, v text)").await;
        sites.must(0, "ALTER TABLE t SET (telesto.home = 'any')").await;
        sites.must(0, "INSERT INTO t VALUES (1, 'first')").await;
        sites.quiet().await;
        sites.net.cut("us", "eu");
        sites.net.cut("eu", "us");
        sites.must(0, "UPDATE t SET v = 'of us' WHERE id = 1").await;
        world.sleep(Duration::from_millis(20)).await;
        sites.must(1, "DELETE FROM t WHERE id = 1").await;
        assert!(sites.check("t").await.is_empty());
        let listed =
            "SELECT type, table_name, kept_region, passed_over_region FROM telesto_conflicts";
        let row = ["update_deleted", "t", "eu", "us"].map(|text| Some(text.to_owned())).to_vec();
        assert_eq!(sites.must(1, listed).await, vec![row]);
    });
}
