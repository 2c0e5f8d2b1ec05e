//! SQL in three regions, over the simulated network, in virtual time: tables that every region
//! writes, and tables whose home moves.
#![allow(
    missing_docs,
    clippy::disallowed_methods,
    reason = "tests; what they share with those of real servers spawns"
)]

#[path = "regions/builds.rs"]
mod builds;
#[path = "regions/by_row.rs"]
mod by_row;
#[path = "regions/defining.rs"]
mod defining;
#[path = "regions/forwarded.rs"]
mod forwarded;
#[path = "regions/joined.rs"]
mod joined;
#[path = "regions/large.rs"]
mod large;
#[path = "regions/partial.rs"]
mod partial;
#[path = "regions/reads.rs"]
mod reads;
#[path = "regions/references.rs"]
mod references;
#[path = "regions/sequences.rs"]
mod sequences;
#[path = "regions/shown.rs"]
mod shown;
mod support;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use object_store::ObjectStoreExt as _;
use support::Collected;
use telesto_bucket::{Bucket, BucketOptions, Cause, MemoryStore, Meter, over};
use telesto_common::{Incarnation, Label, Lsn, NodeId, RegionId, ShardId};
use telesto_log::Identity;
use telesto_log::record::Record;
use telesto_net::sim::{SimNet, Weather};
use telesto_net::{Caller, Peer, Router, VERSIONS, serve};
use telesto_regions::{PeerRegion, Regions, RegionsConfig, SERVICE, Verifier};
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
    meter: Arc<Meter>,
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
    /// On which plane each region is.
    planes: [&'static str; REGIONS],
    /// Regions that are gone for good, and of each region who makes definitions in their place.
    lost: Vec<(usize, [usize; REGIONS])>,
}

impl Sites {
    /// Three regions of which the first has the others named in its catalog.
    async fn running(world: &World) -> Self {
        let mut sites = Self::prepared(world);
        for region in 0..REGIONS {
            sites.start(region).await;
        }
        sites
    }

    /// The same, on planes that the seed chooses.
    async fn running_on(world: &World, seed: u64) -> Self {
        let mut sites = Self::prepared(world);
        sites.planes = match seed % 4 {
            0 => ["matrix"; REGIONS],
            1 => ["timestamp"; REGIONS],
            2 => ["timestamp", "matrix", "matrix"],
            _ => ["matrix", "timestamp", "timestamp"],
        };
        for region in 0..REGIONS {
            sites.start(region).await;
        }
        sites
    }

    /// How far each region's log is.
    fn logs(&self) -> [Lsn; REGIONS] {
        std::array::from_fn(|region| self.at(region).engine.applied().0)
    }

    /// On `timestamp` everything of others behind `begun` in a region's log stands there by its
    /// label: first time, then region.
    async fn check_order(&self, begun: [Lsn; REGIONS]) {
        for region in (0..REGIONS).filter(|region| self.planes[*region] == "timestamp") {
            let (mut from, mut last) = (begun[region].next(), None);
            loop {
                let log = self.at(region).engine.log();
                let by = self.world.env.deadline(Duration::from_secs(60));
                let batch = log.read(from, 1 << 20, Cause::Read, by).await.expect("reads");
                for record in batch.entries.iter().flat_map(|e| e.records_of(ShardId(0))) {
                    let Record::Commit(commit) = record else { continue };
                    let (at, source) = (commit.origin.timestamp, commit.origin.source);
                    if source != RegionId(region as u16) {
                        assert!(last < Some((at, source)), "{at} of {source} behind {last:?}");
                        last = Some((at, source));
                    }
                }
                if batch.at_tail {
                    break;
                }
                from = batch.next(from);
            }
        }
    }

    /// Three regions, none of which runs.
    fn prepared(world: &World) -> Self {
        let place = |_| Place {
            store: MemoryStore::new(Arc::clone(&world.env.clock)),
            checkpoints: MemoryCheckpoints::new(),
            life: 0,
            site: None,
        };
        Self {
            world: world.clone(),
            net: SimNet::new(world.env.clone()),
            places: (0..REGIONS).map(place).collect(),
            planes: ["matrix"; REGIONS],
            lost: Vec::new(),
        }
    }

    async fn start(&mut self, region: usize) {
        let place = &mut self.places[region];
        place.life += 1;
        let place_has_run = place.life > 1;
        let life = Incarnation(place.life);
        let process = Arc::new(self.world.process(NAMES[region], place.life));
        let env = process.env.clone();
        let store: Arc<dyn object_store::ObjectStore> = Arc::new(place.store.clone());
        let bucket = over(store, "memory://test", &BucketOptions::default(), env.clone());
        let bucket = bucket.expect("a bucket");
        let meter = Arc::clone(bucket.meter());
        let bucket = bucket as Arc<dyn Bucket>;
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
        let stays = |peer: &usize| self.lost.iter().all(|(lost, _)| lost != peer);
        let peers =
            (0..REGIONS).filter(|peer| *peer != region).filter(stays).map(|peer| PeerRegion {
                id: RegionId(peer as u16),
                name: NAMES[peer].to_owned(),
                node: Peer { node: NodeId(100 + peer as u128), address: NAMES[peer].to_owned() },
            });
        let config = RegionsConfig {
            name: NAMES[region].to_owned(),
            peers: peers.collect(),
            lost: self.lost.iter().map(|(lost, _)| RegionId(*lost as u16)).collect(),
            heirs: self
                .lost
                .iter()
                .map(|(lost, told)| (RegionId(*lost as u16), RegionId(told[region] as u16)))
                .collect(),
            timeout: Duration::from_secs(5),
            plane: self.planes[region].parse().expect("a plane"),
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
        if region != 0 && self.lost.is_empty() {
            self.complete(region, &definitions, &regions).await;
        }
        // As a server does before it opens SQL. At first the others do not run yet.
        if place_has_run {
            regions.has_heard_of_all(env.deadline(Duration::from_secs(10))).await;
            let by = env.deadline(Duration::from_secs(10));
            regions.is_caught_up(by).await.expect("runs");
        }
        regions.begin_life().await.expect("begins");
        let sql = SqlEngine::open(database, env.clone(), SqlOptions::default()).await;
        let sql = sql.expect("opens");
        if region == 0 && sql.defining_region().await.expect("reads") == RegionId(0) {
            let named = NAMES.iter().enumerate();
            let named = named.map(|(id, name)| (id as u16, (*name).to_owned(), String::new()));
            sql.name_regions(&named.collect::<Vec<_>>(), &[]).await.expect("named");
        }
        self.places[region].site = Some(Site { engine, sql, regions, process, meter });
    }

    /// Waits until a region has what was to be sent to it at first.
    async fn complete(&self, region: usize, definitions: &RegionDefinitions, regions: &Regions) {
        let mut last = None;
        for _ in 0..2000 {
            let missing = definitions.missing(&regions.passed()).await.expect("reads");
            // The third region has not been started when the second one waits.
            let missing = missing.filter(|what| region != 1 || !what.contains(NAMES[2]));
            if missing.is_none() && regions.has_past_of(definitions.stamp()).await.expect("reads") {
                regions.note_complete().await.expect("writes");
                return;
            }
            last = missing;
            self.world.sleep(Duration::from_millis(50)).await;
        }
        let others: Vec<_> = self
            .places
            .iter()
            .filter_map(|place| place.site.as_ref())
            .map(|site| site.regions.status())
            .collect();
        let status = regions.status();
        panic!("{} did not get everything ({last:?}): {status:?}; {others:?}", NAMES[region]);
    }

    fn kill(&mut self, region: usize) {
        self.net.leave(NAMES[region]);
        if let Some(site) = self.places[region].site.take() {
            site.process.kill();
        }
    }

    /// A region that does not run gets a bucket with what it held once.
    async fn restore(&mut self, region: usize, backup: &[(String, Bytes)]) {
        let place = &mut self.places[region];
        place.store = MemoryStore::new(Arc::clone(&self.world.env.clock));
        place.checkpoints = MemoryCheckpoints::new();
        for (key, body) in backup {
            let path = object_store::path::Path::parse(key).expect("a path");
            place.store.put(&path, body.clone().into()).await.expect("put");
        }
    }

    /// Waits until all streams run, and nothing waits or is wrong.
    async fn settled(&self) {
        for _ in 0..1200 {
            let waits = |region: usize| {
                let status = self.at(region).regions.status();
                status.trouble.is_some()
                    || status.peers.iter().any(|peer| peer.waiting > 0 || !peer.connected)
            };
            if !(0..REGIONS).any(waits) {
                return;
            }
            self.world.sleep(Duration::from_millis(100)).await;
        }
        let status: Vec<_> = (0..REGIONS).map(|region| self.at(region).regions.status()).collect();
        panic!("{status:#?}");
    }

    /// Compares the replicas as `telesto verify --regions` does.
    async fn verify(&self) {
        self.net.set_weather(Weather::CALM);
        let transport = self.net.transport("a command");
        let me = Caller { node: NodeId(100), incarnation: Incarnation(1) };
        let peer = |region: usize| Peer {
            node: NodeId(100 + region as u128),
            address: NAMES[region].to_owned(),
        };
        let config = RegionsConfig {
            name: NAMES[0].to_owned(),
            peers: (1..REGIONS)
                .map(|region| PeerRegion {
                    id: RegionId(region as u16),
                    name: NAMES[region].to_owned(),
                    node: peer(region),
                })
                .collect(),
            ..RegionsConfig::new(RegionId(0), 77, [9; 32], me)
        };
        let patience = Duration::from_secs(30);
        let verifier = Verifier::new(&self.world.env, &transport, &config, peer(0), patience);
        let compared = verifier.expect("a verifier").compare().await.expect("compares");
        assert!(compared.iter().any(|one| one.rows > 0));
        for one in compared {
            assert!(one.is_equal(), "{one:?}");
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
        run(&mut session, "SET telesto.forward_reads = off").await?;
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

/// The same, and seeds that have found faults.
fn seeds_and(found: &[u64]) -> Vec<u64> {
    let chosen = std::env::var("TELESTO_SEED").is_ok();
    let found = found.iter().copied().filter(|_| !chosen);
    seeds().chain(found).collect()
}

/// Writes of one row in several regions at once: afterwards the rows are the same, and each
/// region's own index entries fit them.
#[test]
fn table_that_every_region_writes_has_the_same_rows_and_fitting_indexes_everywhere() {
    for seed in seeds() {
        World::run(seed, false, async |world| {
            let mut sites = Sites::running_on(&world, seed).await;
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
            let begun = sites.logs();
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
            sites.check_order(begun).await;
        });
    }
}

/// Indexes over texts whose form obeys settings: each region computes the entries of rows that
/// others wrote under settings of their own.
#[test]
fn entries_of_rows_fit_in_every_region_whatever_form_their_writer_gives_values() {
    World::run(1, false, async |world| {
        let sites = Sites::running(&world).await;
        for sql in [
            "CREATE TABLE t (id int PRIMARY KEY, b bytea, f float8)",
            "CREATE INDEX ON t ((b::text))",
            "CREATE INDEX ON t ((f::text || b::text), id)",
            r"CREATE INDEX ON t (id) WHERE b::text LIKE '\\x61%'",
            "ALTER TABLE t SET (telesto.home = 'any')",
        ] {
            sites.must(0, sql).await;
        }
        sites.quiet().await;
        let plainly = "SET bytea_output = hex; SET extra_float_digits = 1;";
        let otherwise = "SET bytea_output = escape; SET extra_float_digits = -10;";
        for (region, style, sql) in [
            (0, otherwise, "INSERT INTO t VALUES (1, 'abc', 0.12345678901), (2, 'abd', 0.5)"),
            (1, plainly, "INSERT INTO t VALUES (3, 'abc', 0.12345678901), (4, 'xyz', 1e20)"),
            (1, plainly, "UPDATE t SET b = 'abe' WHERE id = 1"),
            (2, otherwise, "UPDATE t SET f = 0.98765432101 WHERE id = 3"),
            (2, otherwise, "DELETE FROM t WHERE id = 2"),
            (0, plainly, "DELETE FROM t WHERE id = 4"),
        ] {
            sites.must(region, &format!("{style} {sql}")).await;
            sites.check("t").await;
        }
    });
}

/// The home of a table with a unique column moves while every region tries to write: what was
/// acknowledged is there, once, and unique.
#[test]
fn home_that_moves_keeps_unique_keys_and_loses_nothing() {
    let (mut refused, mut written) = (0, [0; REGIONS]);
    for seed in seeds() {
        World::run(seed, false, async |world| {
            let mut sites = Sites::running_on(&world, seed).await;
            sites
                .must(0, "CREATE TABLE u (id serial PRIMARY KEY, email text UNIQUE, by text)")
                .await;
            sites.quiet().await;
            sites.net.set_weather(Weather { delay: Duration::from_millis(40), ..Weather::FOUL });
            let begun = sites.logs();
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
            sites.check_order(begun).await;
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

/// What is defined in the first region is there in the others, behind what came before it; they
/// define nothing themselves.
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
            "ALTER ROLE telesto SET work_mem = '1MB'",
            "CREATE INDEX ON a (v)",
            "INSERT INTO a (v) VALUES ('x')",
        ] {
            assert_eq!(code(1, sql).await, "25006", "{sql}");
        }
        sites.must(1, "CREATE TEMP TABLE mine (a int)").await;
        sites.must(0, "ALTER ROLE telesto SET work_mem = '7MB'").await;
        sites.quiet().await;
        assert_eq!(sites.must(2, "SHOW work_mem").await, vec![vec![Some("7MB".to_owned())]]);
        // Keys that no region can keep alone.
        sites.must(0, "CREATE TABLE child (id int PRIMARY KEY, a int REFERENCES a)").await;
        assert_eq!(code(0, "ALTER TABLE child SET (telesto.home = 'any')").await, "55000");
        sites.must(0, "ALTER TABLE child SET (telesto.home = 'eu')").await;
        sites.quiet().await;
        assert_eq!(code(1, "INSERT INTO child VALUES (1, 1)").await, "55000");
        assert_eq!(code(0, "ALTER TABLE child ALTER COLUMN a TYPE bigint").await, "55000");
        assert_eq!(code(0, "ALTER TABLE child ADD CHECK (a > 0)").await, "55000");
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
            let refused = sites.run_at_home(2, "SELECT count(*) FROM some").await;
            let refused = refused.expect_err("refused");
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
        assert_eq!(wrong.code().0, "22023");
        // Behind a statement that has its snapshot it would not be heard.
        let mut token = sites.session(1).await;
        run(&mut token, "INSERT INTO a VALUES (99, 'several')").await.expect("writes");
        let token = run(&mut token, "SHOW telesto.session_token").await.expect("a token");
        let set = format!("SET telesto.session_token = '{}'", token[0][0].clone().expect("a text"));
        let late = format!(
            "SELECT count(*) FROM a; SELECT pg_sleep(3); {set}; SELECT v FROM a WHERE id = 99"
        );
        let late = run(&mut session, &late).await.expect_err("it has its snapshot");
        assert_eq!(late.code().0, "25001", "{late}");
        let early = format!("{set}; SELECT v FROM a WHERE id = 99");
        let seen = run(&mut sites.session(2).await, &early).await.expect("reads");
        assert_eq!(seen, vec![vec![Some("several".to_owned())]]);
        // A token stands for what was shown in transactions that ended otherwise, or have not
        // ended, too.
        for (id, (begin, end)) in (100..).zip([
            ("BEGIN; SELECT v FROM a WHERE id = $id", "ROLLBACK"),
            ("BEGIN; SELECT v FROM a WHERE id = $id", "SELECT 1"),
            ("BEGIN; SELECT v FROM a WHERE id = $id", "SELECT 1 / 0"),
            ("INSERT INTO a VALUES ($id, 'mine')", "SELECT 1"),
        ]) {
            let mut session = sites.session(1).await;
            run(&mut session, "UPDATE a SET v = 'begun' WHERE id = 1").await.expect("writes");
            // What it has committed is everywhere: waiting for that is waiting for nothing.
            sites.quiet().await;
            sites.must(1, &format!("INSERT INTO a VALUES ({id}, 'shown')")).await;
            run(&mut session, &begin.replace("$id", &id.to_string())).await.ok();
            run(&mut session, end).await.ok();
            if end.contains('/') {
                run(&mut session, "ROLLBACK").await.expect("ends");
            }
            let token = run(&mut session, "SHOW telesto.session_token").await.expect("a token");
            let token = token[0][0].clone().expect("a text");
            let mut session = sites.session(2).await;
            let read = format!("SELECT v FROM a WHERE id = {id}");
            let before = run(&mut session, &read).await.expect("reads");
            assert!(before.is_empty(), "the link is not slow");
            let sql = format!("SET telesto.session_token = '{token}'");
            run(&mut session, &sql).await.expect("goes on");
            let after = run(&mut session, &read).await.expect("reads");
            assert_eq!(after, vec![vec![Some("shown".to_owned())]], "{begin}; {end}");
        }
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

        // Who watches the database is not told the keys of what it may not read.
        let keys = "SELECT count(*), count(row_key) FROM telesto_conflicts";
        let counts = |keys: &str| vec![vec![Some("1".to_owned()), Some(keys.to_owned())]];
        assert_eq!(sites.must(1, keys).await, counts("1"));
        sites.must(0, "CREATE ROLE watcher IN ROLE pg_monitor").await;
        sites.quiet().await;
        let watched = "SET ROLE watcher";
        let mut session = sites.session(1).await;
        run(&mut session, watched).await.expect("becomes");
        assert_eq!(run(&mut session, keys).await.expect("reads"), counts("0"));
        sites.must(0, "GRANT SELECT ON t TO watcher").await;
        sites.quiet().await;
        assert_eq!(run(&mut session, keys).await.expect("reads"), counts("1"));
    });
}

/// Counters that every region adds to, with cuts and kills: every acknowledged increment counts,
/// the greatest and the least value stay, and where rows are deleted meanwhile the regions still
/// agree.
#[test]
fn columns_that_merge_lose_no_increment_and_agree_under_deletes() {
    let mut met = 0;
    for seed in seeds() {
        World::run(seed, false, async |world| {
            let mut sites = Sites::running(&world).await;
            for sql in [
                "CREATE TABLE c (id int PRIMARY KEY, hits int NOT NULL, money numeric(12,2) NOT NULL DEFAULT 0, top int, low int, note text)",
                "CREATE INDEX ON c (hits)",
                "CREATE INDEX ON c (top) WHERE hits > 20",
                "INSERT INTO c SELECT g, 10, 1.50, 0, 0, 'new' FROM generate_series(1, 4) g",
                "ALTER TABLE c SET (telesto.home = 'any', telesto.counter = 'hits, money', telesto.max = 'top', telesto.min = 'low')",
            ] {
                sites.must(0, sql).await;
            }
            sites.quiet().await;
            sites.net.set_weather(Weather { delay: Duration::from_millis(40), ..Weather::FOUL });
            // Rows 1 to 4 are never deleted: what is counted of them is known. Row 9 comes by
            // upserts alone.
            let mut expected: BTreeMap<u64, (u64, i64, u64, i64)> =
                (1..=4).map(|id| (id, (10, 150, 0, 0))).collect();
            for _ in 0..100 {
                sites.disturb().await;
                let region = below(&world, 3) as usize;
                let (id, by) = (1 + below(&world, 4), 1 + below(&world, 9));
                let other = 5 + below(&world, 3);
                let change = match below(&world, 7) {
                    0 => format!("DELETE FROM c WHERE id = {other}"),
                    1 | 2 => format!(
                        "INSERT INTO c VALUES ({other}, {by}, 0, {by}, -{by}, 'x') ON CONFLICT (id) DO UPDATE SET hits = c.hits + {by}, top = GREATEST(c.top, {by})"
                    ),
                    3 => {
                        let row = expected.entry(9).or_default();
                        row.0 += by;
                        row.1 += 25;
                        format!(
                            "INSERT INTO c VALUES (9, {by}, 0.25, NULL, NULL, 'y') ON CONFLICT (id) DO UPDATE SET hits = c.hits + {by}, money = c.money + 0.25"
                        )
                    }
                    4 => format!("UPDATE c SET note = 'n{by}' WHERE id = {id}"),
                    _ => {
                        let row = expected.entry(id).or_default();
                        row.0 += by;
                        row.1 += 50;
                        row.2 = row.2.max(by * 3);
                        row.3 = row.3.min(-(by as i64));
                        format!(
                            "UPDATE c SET hits = hits + {by}, money = money + 0.50, top = GREATEST(top, {by} * 3), low = LEAST(low, -{by}) WHERE id = {id}"
                        )
                    }
                };
                sites.must(region, &change).await;
            }
            let rows = sites.check("c").await;
            sites.verify().await;
            for (id, (hits, cents, top, low)) in &expected {
                let row = rows.iter().find(|row| row[0] == Some(id.to_string()));
                let row = row.unwrap_or_else(|| panic!("seed {seed}: row {id} is gone"));
                let money = format!("{}.{:02}", cents / 100, cents % 100);
                let mut wanted = vec![Some(hits.to_string()), Some(money)];
                if *id != 9 {
                    wanted.extend([Some(top.to_string()), Some(low.to_string())]);
                }
                assert_eq!(row[1..wanted.len() + 1], wanted, "seed {seed}: row {id}");
                met += 1;
            }
        });
    }
    assert!(met > 0);
}

/// What cannot merge is refused with the way out; settings are shown, and taken back.
#[test]
fn merging_columns_are_defined_where_they_can_keep_their_promise() {
    World::run(5, false, async |world| {
        let sites = Sites::running(&world).await;
        sites
            .must(0, "CREATE TABLE m (id int PRIMARY KEY, hits int NOT NULL, maybe int, note text, mark boolean, CHECK (maybe > 0))")
            .await;
        sites.must(0, "INSERT INTO m VALUES (1, 3, NULL, 'a', true)").await;
        for (set, code) in [
            ("telesto.counter = 'hits'", "55000"),
            ("telesto.home = 'any', telesto.counter = 'id'", "55000"),
            ("telesto.home = 'any', telesto.counter = 'note'", "55000"),
            ("telesto.home = 'any', telesto.counter = 'maybe'", "55000"),
            ("telesto.home = 'any', telesto.max = 'maybe'", "55000"),
            ("telesto.home = 'any', telesto.max = 'mark'", "55000"),
            ("telesto.home = 'any', telesto.max = 'hits', telesto.counter = 'hits'", "55000"),
            ("telesto.home = 'any', telesto.counter = 'nothing'", "42703"),
        ] {
            let refused = sites.run(0, &format!("ALTER TABLE m SET ({set})")).await;
            assert_eq!(refused.expect_err(set).code().0, code, "{set}");
        }
        sites.must(0, "ALTER TABLE m SET (telesto.home = 'any', telesto.counter = 'hits', telesto.max = 'note')").await;
        sites.quiet().await;
        let shown = "SELECT home, counters, max_columns, min_columns FROM telesto_placement WHERE table_name = 'm'";
        let row = [Some("any"), Some("hits"), Some("note"), None].map(|t| t.map(str::to_owned));
        assert_eq!(sites.must(2, shown).await, vec![row.to_vec()]);
        // Whatever is set, the difference counts.
        sites.net.cut("us", "eu");
        sites.net.cut("eu", "us");
        sites.must(0, "UPDATE m SET hits = 5 WHERE id = 1").await;
        sites.must(1, "UPDATE m SET hits = 4, note = 'c' WHERE id = 1").await;
        let back = sites.run(1, "UPDATE m SET note = 'b' WHERE id = 1").await.expect_err("refused");
        assert_eq!(back.code().0, "23514");
        sites.net.heal();
        assert_eq!(sites.check("m").await[0][1], Some("6".to_owned()));
        // Nothing but increments met: no conflict.
        assert_eq!(
            sites.must(1, "SELECT count(*) FROM telesto_conflicts").await[0][0],
            Some("0".to_owned())
        );
        // A later increment keeps a row that another region deletes, without what was counted
        // before the delete.
        sites.net.cut("us", "eu");
        sites.net.cut("eu", "us");
        sites.must(0, "DELETE FROM m WHERE id = 1").await;
        world.sleep(Duration::from_millis(20)).await;
        sites.must(1, "UPDATE m SET hits = hits + 10 WHERE id = 1").await;
        sites.net.heal();
        // eu's own part: 1 before, and 10.
        assert_eq!(sites.check("m").await[0][1], Some("11".to_owned()));
        // An earlier one goes with the row.
        sites.net.cut("us", "eu");
        sites.net.cut("eu", "us");
        sites.must(1, "UPDATE m SET hits = hits + 10 WHERE id = 1").await;
        world.sleep(Duration::from_millis(20)).await;
        sites.must(0, "DELETE FROM m WHERE id = 1").await;
        sites.net.heal();
        assert!(sites.check("m").await.is_empty());
        // Tables are altered while nothing merges.
        let refused = sites.run(0, "ALTER TABLE m RESET (telesto.counter)").await;
        assert_eq!(refused.expect_err("refused").code().0, "55000");
        sites.must(2, "INSERT INTO m VALUES (7, 70, NULL, 'z', false)").await;
        sites.quiet().await;
        sites.must(0, "ALTER TABLE m SET (telesto.home = 'us')").await;
        sites.quiet().await;
        sites.at(0).sql.settle_regions().await.expect("settles");
        let refused = sites.run(0, "ALTER TABLE m ADD COLUMN more int").await;
        assert!(refused.expect_err("refused").to_string().contains("merge"));
        sites.must(0, "ALTER TABLE m RESET (telesto.counter, telesto.max)").await;
        sites.must(0, "ALTER TABLE m ADD COLUMN more int NOT NULL DEFAULT 1").await;
        sites
            .must(0, "ALTER TABLE m SET (telesto.home = 'any', telesto.counter = 'hits, more')")
            .await;
        sites.quiet().await;
        for region in 0..REGIONS {
            sites.must(region, "UPDATE m SET hits = hits + 1, more = more + 1 WHERE id = 7").await;
        }
        let rows = sites.check("m").await;
        assert_eq!((rows[0][1].as_deref(), rows[0][5].as_deref()), (Some("73"), Some("4")));
    });
}

/// What each increment of a counter was, and which region made it.
type Made = Vec<(usize, u64)>;

/// The sums of `made` by region.
fn sums(made: &Made) -> [u64; REGIONS] {
    let mut sums = [0; REGIONS];
    made.iter().for_each(|(region, by)| sums[*region] += by);
    sums
}

/// Counts here and there for a while, under cuts where `weather` is foul.
async fn count(world: &World, sites: &Sites, steps: u64, regions: &[usize], made: &mut Made) {
    for _ in 0..steps {
        world.sleep(Duration::from_millis(below(world, 40))).await;
        match below(world, 8) {
            0 => {
                let (one, other) = (below(world, 3), below(world, 3));
                sites.net.cut(NAMES[one as usize], NAMES[other as usize]);
            }
            1 => sites.net.heal(),
            _ => {}
        }
        let region = regions[below(world, regions.len() as u64) as usize];
        let by = 1 + below(world, 9);
        let set = match below(world, 3) {
            0 => format!("hits = hits + {by}, note = 'n{by}'"),
            _ => format!("hits = hits + {by}, top = GREATEST(top, {by})"),
        };
        sites.must(region, &format!("UPDATE l SET {set} WHERE id = 1")).await;
        made.push((region, by));
    }
}

async fn with_counter(world: &World) -> Sites {
    let sites = Sites::running(world).await;
    for sql in [
        "CREATE TABLE l (id int PRIMARY KEY, hits int NOT NULL, top int, note text)",
        "CREATE INDEX ON l (hits)",
        "INSERT INTO l VALUES (1, 0, 0, 'new'), (2, 0, 0, 'new')",
        "ALTER TABLE l SET (telesto.home = 'any', telesto.counter = 'hits', telesto.max = 'top')",
    ] {
        sites.must(0, sql).await;
    }
    sites.quiet().await;
    sites
}

async fn hits(sites: &Sites, region: usize, id: u64) -> u64 {
    let rows = sites.must(region, &format!("SELECT hits FROM l WHERE id = {id}")).await;
    rows[0][0].as_ref().expect("a number").parse().expect("a number")
}

/// All count in a row at once, so that no other region's copy bears the label of what `of` wrote,
/// nor what others write what it counted.
async fn count_last(sites: &Sites, of: usize) {
    let (one, other) = ((of + 1) % REGIONS, (of + 2) % REGIONS);
    let apart = [(of, one), (one, of), (of, other), (other, of)];
    for (from, to) in apart.into_iter().chain([(one, other), (other, one)]) {
        sites.net.cut(NAMES[from], NAMES[to]);
    }
    for (region, by) in [(of, 7), (one, 5), (other, 3)] {
        sites.must(region, &format!("UPDATE l SET hits = hits + {by} WHERE id = 2")).await;
    }
    sites.net.heal();
    sites.net.cut(NAMES[one], NAMES[other]);
    sites.net.cut(NAMES[other], NAMES[one]);
    for (region, wanted) in [(one, 12), (other, 10)] {
        for _ in 0..400 {
            if hits(sites, region, 2).await >= wanted {
                break;
            }
            sites.world.sleep(Duration::from_millis(50)).await;
        }
        assert!(hits(sites, region, 2).await >= wanted, "{} did not get it", NAMES[region]);
    }
    sites.net.heal();
    sites.quiet().await;
}

/// A region's bucket is put back to an older state while all count, and it goes on, also while the
/// others cannot be reached: everything that any of the others had had of it counts, and all that
/// it counted since.
#[test]
fn counters_of_a_region_that_lost_commits_are_taken_back_and_added_up() {
    for seed in seeds() {
        World::run(seed, false, async |world| {
            let mut sites = with_counter(&world).await;
            let victim = below(&world, 3) as usize;
            let all = [0, 1, 2];
            let mut made = Made::new();
            count(&world, &sites, 12, &all, &mut made).await;
            sites.net.heal();
            sites.quiet().await;
            let backup = sites.places[victim].store.contents();
            // The others have all of this, and the bucket does not.
            count(&world, &sites, 20, &all, &mut made).await;
            sites.net.heal();
            sites.quiet().await;
            count_last(&sites, victim).await;
            sites.kill(victim);
            sites.restore(victim, &backup).await;
            let apart = below(&world, 2) == 0;
            if apart {
                for other in (0..REGIONS).filter(|other| *other != victim) {
                    sites.net.cut(NAMES[victim], NAMES[other]);
                    sites.net.cut(NAMES[other], NAMES[victim]);
                }
            }
            sites.start(victim).await;
            if apart {
                assert!(hits(&sites, victim, 1).await < sums(&made).iter().sum());
                for by in 1..5 {
                    let sql = format!("UPDATE l SET hits = hits + {by} WHERE id = 1");
                    sites.must(victim, &sql).await;
                    made.push((victim, by));
                }
            }
            count(&world, &sites, 8, &all, &mut made).await;
            sites.net.heal();
            sites.settled().await;
            sites.check("l").await;
            let wanted: u64 = sums(&made).iter().sum();
            for region in all {
                assert_eq!(hits(&sites, region, 2).await, 15, "seed {seed}: {}", NAMES[region]);
                assert_eq!(hits(&sites, region, 1).await, wanted, "seed {seed}: {}", NAMES[region]);
            }
            sites.verify().await;
            assert!(sites.at(victim).regions.incarnation() > 0, "seed {seed}: nothing was lost");
            // And goes on as ever.
            sites.must(victim, "UPDATE l SET hits = hits + 1 WHERE id = 1").await;
            sites.check("l").await;
            assert_eq!(hits(&sites, 0, 1).await, wanted + 1);
        });
    }
}
