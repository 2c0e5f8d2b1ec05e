//! Three regions of real processes on folders: a database with data becomes the first one, two join
//! while a load writes, and are killed while they are filled; clients move between them by session
//! tokens while regions are killed and the links between them cut, stalled and slowed down. What
//! the clients saw is causal; afterwards the replicas are equal, what was acknowledged is there,
//! and nothing is where it was not placed. Then one region is put back to an older state, and
//! another one is lost for good.
//!
//! # Invariants
//! - Every way from one region to another goes through a link of its own.
//! - A write whose answer was lost is in the history as one of nobody: it may be read, and nobody
//!   must read it.
//!
//! # Limits
//! About 40 s; the disturbed part takes `TELESTO_REGIONS_SECONDS` (default: 15).
//! `TELESTO_REGIONS_SEED` makes what is tried the same again, not when. With `TELESTO_REGIONS_KEEP`
//! set the folders stay, with what the nodes said.

#[path = "harness.rs"]
#[allow(dead_code)]
mod harness;
#[path = "../../demo/cli/src/link.rs"]
mod link;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU16, Ordering};
use std::time::{Duration, Instant};

use harness::{Node, PATIENCE, Place, free_port, program};
use link::{Link, Proxy};
use parking_lot::Mutex;
use rand::rngs::StdRng;
use rand::{Rng as _, SeedableRng as _};
use telesto_testkit::causal::{Broken, Event, check};
use tokio_postgres::{Client, Error, NoTls, SimpleQueryMessage};

const NAMES: [&str; 3] = ["us", "eu", "ap"];
/// Clients that move.
const CLIENTS: usize = 6;
/// Keys that every client writes; those from [`OWN`] on are written by one client each.
const KEYS: u64 = 4;
const OWN: u64 = 100;
/// Keys of the last part, in which one client goes without its token.
const STALE: u64 = 1000;
/// What is searched in files: begins so, and is so long.
const MARKER: &[u8] = b"marker";
const MARKER_LENGTH: usize = MARKER.len() + 32;
/// How long a client waits in another region for what it has seen, before it stays where it was.
const ATTACH: &str = "1500ms";
const WRITE: &str =
    "INSERT INTO shared VALUES ($1, $2) ON CONFLICT (k) DO UPDATE SET v = excluded.v";
const READ: &str = "SELECT v FROM shared WHERE k = $1";

fn telesto(arguments: &[&str]) -> Result<String, String> {
    let output = Command::new(program()).args(arguments).output().expect("the telesto binary runs");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim().to_owned();
    match output.status.success() {
        true => Ok(text(&output.stdout)),
        false => Err(text(&output.stderr)),
    }
}

/// Changes a region's registry; a running node may change it at the same time.
fn registry(arguments: &[&str]) -> String {
    let until = Instant::now() + PATIENCE;
    loop {
        match telesto(&[&["region"], arguments].concat()) {
            Ok(said) => return said,
            Err(error) => assert!(Instant::now() < until, "region {arguments:?}: {error}"),
        }
        std::thread::sleep(Duration::from_millis(200));
    }
}

struct Site {
    place: Place,
    folder: PathBuf,
    /// Where it listens for other regions.
    region: u16,
    /// Where it serves clients; 0 while it is down.
    port: AtomicU16,
    node: Mutex<Option<Node>>,
}

impl Site {
    fn start(&self) {
        let listen = format!("127.0.0.1:{}", self.region);
        let extra = ["--region", &listen, "--memory", "128MiB"];
        let node = Node::start(&self.place, &self.folder.join("local"), &extra);
        self.port.store(node.port, Ordering::Relaxed);
        *self.node.lock() = Some(node);
    }

    /// Starts it and kills it a moment later, wherever it is then.
    fn start_in_vain(&self, for_how_long: Duration) {
        let local = self.folder.join("local");
        std::fs::create_dir_all(&local).expect("local folder");
        let output = std::fs::File::create(local.join("in-vain.log")).expect("log file");
        let mut child = Command::new(program())
            .args(["start", "--bucket", &self.place.bucket, "--log", self.place.log])
            .args(["--durability", self.place.durability, "--memory", "128MiB"])
            .args(["--listen", "127.0.0.1:0", "--http", "127.0.0.1:0"])
            .args(["--region", &format!("127.0.0.1:{}", self.region)])
            .args(["--data-dir", &local.join("node").display().to_string()])
            .stdout(output.try_clone().expect("log file"))
            .stderr(output)
            .spawn()
            .expect("the telesto binary runs");
        std::thread::sleep(for_how_long);
        child.kill().expect("killed");
        child.wait().expect("child");
    }

    fn kill(&self) {
        self.port.store(0, Ordering::Relaxed);
        self.node.lock().take().expect("it runs").kill();
    }

    async fn connect(&self) -> Option<Client> {
        let port = self.port.load(Ordering::Relaxed);
        let url = format!("host=127.0.0.1 port={port} user=telesto dbname=telesto");
        let (client, connection) = tokio_postgres::connect(&url, NoTls).await.ok()?;
        tokio::spawn(connection);
        Some(client)
    }

    /// Tries until it is there.
    async fn client(&self) -> Client {
        let until = Instant::now() + PATIENCE;
        loop {
            if let Some(client) = self.connect().await {
                return client;
            }
            assert!(Instant::now() < until, "{} cannot be reached", self.folder.display());
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }
}

struct World {
    sites: Vec<Site>,
    /// By the region that sends and the one that receives.
    links: Vec<Vec<Proxy>>,
    stop: AtomicBool,
    value: AtomicI64,
    tickets: Mutex<Vec<i64>>,
    /// Of each client, and of writes whose answer was lost.
    histories: Mutex<Vec<Vec<Event>>>,
    moves: AtomicI64,
    /// Increments of the counters: acknowledged ones, and those with lost answers.
    counted: [AtomicI64; 2],
    _folder: Option<tempfile::TempDir>,
}

impl World {
    async fn new() -> Self {
        let folder = tempfile::tempdir().expect("temporary folder");
        let path = folder.path().to_owned();
        // Kept to be looked at, with what the nodes said.
        let folder = match std::env::var_os("TELESTO_REGIONS_KEEP") {
            Some(_) => {
                println!("kept in {}", folder.keep().display());
                None
            }
            None => Some(folder),
        };
        let site = |name: &&str| {
            let folder = path.join(name);
            let place = Place::folder(&folder.join("bucket"), "quorum", "quorum");
            let (port, node) = (AtomicU16::new(0), Mutex::new(None));
            Site { place, folder, region: free_port(), port, node }
        };
        let sites: Vec<Site> = NAMES.iter().map(site).collect();
        let mut links = Vec::new();
        for _ in &sites {
            let mut row = Vec::new();
            for to in &sites {
                let link = Proxy::start(to.region, Duration::from_millis(2)).await;
                row.push(link.expect("a port is free"));
            }
            links.push(row);
        }
        Self {
            sites,
            links,
            stop: AtomicBool::new(false),
            value: AtomicI64::new(0),
            tickets: Mutex::default(),
            histories: Mutex::default(),
            moves: AtomicI64::new(0),
            counted: [AtomicI64::new(0), AtomicI64::new(0)],
            _folder: folder,
        }
    }

    /// Where `from` reaches `to`.
    fn way(&self, from: usize, to: usize) -> String {
        format!("127.0.0.1:{}", self.links[from][to].port)
    }

    fn all_links(&self) -> impl Iterator<Item = &Proxy> {
        self.links.iter().flatten()
    }

    fn heal(&self) {
        for link in self.all_links() {
            link.set(Link::Up);
            link.delay(Duration::from_millis(2));
        }
    }

    fn running(&self) -> bool {
        !self.stop.load(Ordering::Relaxed)
    }

    /// A database with data becomes the first region.
    async fn first_region(&self) {
        let us = &self.sites[0];
        let node = Node::start(&us.place, &us.folder.join("local"), &["--memory", "128MiB"]);
        let client = node.connect().await.expect("connects");
        client
            .batch_execute(
                "CREATE TABLE history (id int PRIMARY KEY, v text, n int);
                 CREATE INDEX history_v ON history (v);
                 INSERT INTO history SELECT g, 'old ' || g, g % 7 FROM generate_series(1, 2000) g;
                 CREATE TABLE shared (k bigint PRIMARY KEY, v bigint NOT NULL);
                 CREATE INDEX shared_v ON shared (v);
                 CREATE TABLE account (id int PRIMARY KEY, email text NOT NULL UNIQUE);
                 INSERT INTO account VALUES (0, 'first');
                 CREATE TABLE secret (id int PRIMARY KEY, body text);
                 CREATE TABLE fence (region text PRIMARY KEY, n bigint NOT NULL);
                 CREATE SEQUENCE ticket;",
            )
            .await
            .expect("tables");
        drop(client);
        assert!(node.stop(), "it ends by itself");
        registry(&["init", "us", "--bucket", &us.place.bucket, "--address", &self.way(1, 0)]);
        us.start();
    }

    /// Region `new` joins those before it. It is killed a few times while it is filled.
    fn join(&self, new: usize, rng: &mut StdRng) {
        let name = NAMES[new];
        let bucket = &self.sites[new].place.bucket;
        let invitation = registry(&["invite", name, "--bucket", &self.sites[0].place.bucket]);
        let address = self.way(0, new);
        registry(&["join", &invitation, "--bucket", bucket, "--address", &address]);
        for old in 0..new {
            registry(&["move", NAMES[old], "--bucket", bucket, "--address", &self.way(new, old)]);
        }
        for _ in 0..rng.random_range(1..4) {
            self.sites[new].start_in_vain(Duration::from_millis(rng.random_range(100..2500)));
        }
        self.sites[new].start();
        for old in 1..new {
            // Refused until the new one has introduced itself there.
            let there = &self.sites[old].place.bucket;
            registry(&["move", name, "--bucket", there, "--address", &self.way(old, new)]);
        }
    }

    /// Waits until what each region has committed before is everywhere.
    async fn settle(&self, number: i64) {
        for (site, name) in self.sites.iter().zip(NAMES) {
            let client = site.client().await;
            let fence = "INSERT INTO fence VALUES ($1, $2) ON CONFLICT (region) DO UPDATE SET n = excluded.n";
            client.execute(fence, &[&name, &number]).await.expect("a fence");
        }
        for (site, name) in self.sites.iter().zip(NAMES) {
            let client = site.client().await;
            let until = Instant::now() + PATIENCE;
            loop {
                let count = "SELECT count(*) FROM fence WHERE n = $1";
                let row = client.query_one(count, &[&number]).await.expect("reads");
                if row.get::<_, i64>(0) == 3 {
                    break;
                }
                if Instant::now() > until {
                    let regions = rows(&client, "SELECT * FROM telesto_regions").await;
                    panic!("{name} does not get everything: {regions:#?}");
                }
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        }
    }
}

async fn rows(client: &Client, statement: &str) -> Vec<String> {
    let answer = client.simple_query(statement).await;
    let answer = answer.unwrap_or_else(|error| panic!("{statement}: {error:?}"));
    let rows = answer.into_iter().filter_map(|message| match message {
        SimpleQueryMessage::Row(row) => {
            let cells = (0..row.len()).map(|cell| row.get(cell).unwrap_or("NULL"));
            Some(cells.collect::<Vec<_>>().join("|"))
        }
        _ => None,
    });
    rows.collect()
}

/// The server said that the statement has done nothing.
fn nothing_done(error: &Error) -> bool {
    error.code().is_some_and(|code| matches!(code.code(), "40001" | "40P01" | "23505"))
}

/// A client that writes and reads where it is, and goes elsewhere with its token.
struct Mover {
    number: usize,
    at: usize,
    client: Client,
    rng: StdRng,
    events: Vec<Event>,
    /// Where and when each of them ended.
    places: Vec<(usize, Instant)>,
    /// Of the key that it alone writes: the last acknowledged value, and those with lost answers
    /// after it.
    own: (i64, Vec<i64>),
}

impl Mover {
    async fn new(world: &World, number: usize, seed: u64) -> Self {
        let at = number % NAMES.len();
        let client = world.sites[at].client().await;
        let rng = StdRng::seed_from_u64(seed ^ (number as u64) << 32);
        let (events, places, own) = (Vec::new(), Vec::new(), (0, Vec::new()));
        Self { number, at, client, rng, events, places, own }
    }

    fn saw(&mut self, event: Event) {
        self.events.push(event);
        self.places.push((self.at, Instant::now()));
    }

    fn own_key(&self) -> u64 {
        OWN + self.number as u64
    }

    async fn work(mut self, world: Arc<World>) -> Self {
        while world.running() {
            if self.client.is_closed() {
                // The same region has everything that it ever showed.
                self.client = world.sites[self.at].client().await;
            }
            match self.rng.random_range(0..20) {
                0..3 => self.travel(&world).await,
                3..5 => self.count(&world).await,
                5..11 => self.write(&world).await,
                11 => {
                    if let Ok(row) = self.client.query_one("SELECT nextval('ticket')", &[]).await {
                        world.tickets.lock().push(row.get(0));
                    }
                }
                _ => self.read().await,
            }
        }
        self
    }

    async fn write(&mut self, world: &World) {
        let own = self.rng.random_bool(0.4);
        let key = if own { self.own_key() } else { self.rng.random_range(0..KEYS) };
        let value = world.value.fetch_add(1, Ordering::Relaxed) + 1;
        let event = Event::Write { key, value: value.unsigned_abs() };
        match self.client.execute(WRITE, &[&key.cast_signed(), &value]).await {
            Ok(_) => {
                self.saw(event);
                if own {
                    self.own = (value, Vec::new());
                }
            }
            Err(error) if nothing_done(&error) => {}
            Err(_) => {
                world.histories.lock().push(vec![event]);
                if own {
                    self.own.1.push(value);
                }
            }
        }
    }

    /// Counts in a table that every region counts in.
    async fn count(&mut self, world: &World) {
        let id = self.rng.random_range(1..=3);
        let add = "UPDATE tally SET hits = hits + 1, latest = GREATEST(latest, $2) WHERE id = $1";
        let latest = world.value.load(Ordering::Relaxed);
        match self.client.execute(add, &[&id, &latest]).await {
            Ok(_) => world.counted[0].fetch_add(1, Ordering::Relaxed),
            Err(error) if nothing_done(&error) => 0,
            Err(_) => world.counted[1].fetch_add(1, Ordering::Relaxed),
        };
    }

    async fn read(&mut self) {
        let any = self.rng.random_range(0..KEYS);
        let others = OWN + self.rng.random_range(0..CLIENTS as u64);
        let key = if self.rng.random_bool(0.5) { any } else { others };
        if let Ok(row) = self.client.query_opt(READ, &[&key.cast_signed()]).await {
            let value = row.map(|row| row.get::<_, i64>(0).unsigned_abs());
            self.saw(Event::Read { key, value });
        }
    }

    async fn travel(&mut self, world: &World) {
        let to = (self.at + self.rng.random_range(1..NAMES.len())) % NAMES.len();
        let migrate = format!("SELECT telesto_migrate('{}')", NAMES[to]);
        let Ok(row) = self.client.query_one(&migrate, &[]).await else { return };
        let Some(there) = world.sites[to].connect().await else { return };
        if attach(&there, row.get(0)).await.is_ok() {
            world.moves.fetch_add(1, Ordering::Relaxed);
            (self.at, self.client) = (to, there);
        }
    }
}

async fn attach(client: &Client, token: &str) -> Result<(), Error> {
    let statement =
        format!("SET statement_timeout = '{ATTACH}'; SET telesto.session_token = '{token}'");
    client.batch_execute(&statement).await?;
    client.batch_execute("RESET statement_timeout").await
}

/// Adds rows to `history` in the first region; those that were acknowledged.
async fn load(world: Arc<World>, stop: Arc<AtomicBool>) -> Vec<i32> {
    let client = world.sites[0].client().await;
    let mut acknowledged = Vec::new();
    for id in 10_000.. {
        if stop.load(Ordering::Relaxed) {
            break;
        }
        let row = client.execute("INSERT INTO history VALUES ($1, 'new', 1)", &[&id]).await;
        row.expect("the first region does not stop while others join");
        acknowledged.push(id);
        tokio::time::sleep(Duration::from_millis(3)).await;
    }
    acknowledged
}

/// Writes a table at its home, region `home`, with `row` making the second column; what was
/// acknowledged.
async fn at_home(
    world: Arc<World>,
    home: usize,
    table: &str,
    from: i32,
    row: fn(&mut StdRng) -> String,
) -> Vec<(i32, String)> {
    let mut rng = StdRng::seed_from_u64(from.unsigned_abs().into());
    let mut client = world.sites[home].client().await;
    let insert = format!("INSERT INTO {table} VALUES ($1, $2)");
    let mut acknowledged = Vec::new();
    for id in from.. {
        if !world.running() {
            break;
        }
        if client.is_closed() {
            client = world.sites[home].client().await;
        }
        let text = row(&mut rng);
        if client.execute(&insert, &[&id, &text]).await.is_ok() {
            acknowledged.push((id, text));
        }
        tokio::time::sleep(Duration::from_millis(15)).await;
    }
    acknowledged
}

/// Kills regions, and cuts, stalls and slows down links; how often each.
async fn disturb(
    world: Arc<World>,
    mut rng: StdRng,
    until: Instant,
) -> BTreeMap<&'static str, u32> {
    let mut done = BTreeMap::new();
    for turn in 0.. {
        if Instant::now() >= until {
            break;
        }
        let (one, other) = (rng.random_range(0..3), rng.random_range(1..3));
        let other = (one + other) % 3;
        let both = [&world.links[one][other], &world.links[other][one]];
        let what = match turn % 4 {
            0 => {
                both.iter().for_each(|link| link.set(Link::Refused));
                "refused"
            }
            1 => {
                let site = Arc::clone(&world);
                let away = Duration::from_millis(rng.random_range(0..800));
                let again = tokio::task::spawn_blocking(move || {
                    site.sites[one].kill();
                    std::thread::sleep(away);
                    site.sites[one].start();
                });
                again.await.expect("it starts again");
                "killed"
            }
            2 => {
                // One way only: what is said comes through, and the answers do not.
                both[0].set(Link::Silent);
                "silent"
            }
            _ => {
                let slow = Duration::from_millis(rng.random_range(20..250));
                both.iter().for_each(|link| link.delay(slow));
                "slow"
            }
        };
        *done.entry(what).or_default() += 1;
        tokio::time::sleep(Duration::from_millis(rng.random_range(200..1500))).await;
        if rng.random_bool(0.6) {
            world.heal();
        }
    }
    world.heal();
    done
}

/// What begins like a marker in the files of `folder`.
fn markers(folder: &Path, found: &mut BTreeSet<String>) {
    let Ok(entries) = std::fs::read_dir(folder) else { return };
    for path in entries.filter_map(Result::ok).map(|entry| entry.path()) {
        if path.is_dir() {
            markers(&path, found);
            continue;
        }
        let content = std::fs::read(&path).unwrap_or_default();
        for marker in content.windows(MARKER_LENGTH).filter(|text| text.starts_with(MARKER)) {
            found.insert(String::from_utf8_lossy(marker).into_owned());
        }
    }
}

fn marker(rng: &mut StdRng) -> String {
    format!("marker{:032x}", rng.random::<u128>())
}

fn email(rng: &mut StdRng) -> String {
    format!("somebody{}@example.com", rng.random_range(0..400))
}

/// What must be equal in all regions that have it, and sound in each.
async fn check_replicas(world: &World) {
    let mut first = BTreeMap::new();
    for (site, name) in world.sites.iter().zip(NAMES) {
        let client = site.client().await;
        for table in ["history", "shared", "account", "fence", "late", "secret", "tally"] {
            let ordered = format!("SELECT * FROM {table} ORDER BY 1");
            if (name, table) == ("ap", "secret") {
                client.batch_execute("SET telesto.forward_reads = off").await.expect("sets");
                let refused = client.simple_query(&ordered).await.expect_err("not placed here");
                assert_eq!(refused.code().map(|code| code.code()), Some("55000"), "{refused:?}");
                continue;
            }
            let found = rows(&client, &ordered).await;
            let expected = first.entry(table).or_insert_with(|| found.clone());
            let wrong: Vec<_> =
                found.iter().filter(|row| !expected.contains(row)).take(5).collect();
            assert!(
                found == *expected,
                "{table} in {name} is not as in us ({} rows, {}): {wrong:?}",
                found.len(),
                expected.len()
            );
            rows(&client, &format!("SELECT telesto_check_table('{table}')")).await;
        }
    }
}

/// What is wrong with what the clients saw, and who did what to the keys meanwhile.
fn violations(lost: Vec<Vec<Event>>, movers: &[Mover], begun: Instant) -> Vec<String> {
    let before = lost.len();
    let mut histories = lost;
    histories.extend(movers.iter().map(|mover| mover.events.clone()));
    let mut told = Vec::new();
    for violation in check(&histories).iter().take(2) {
        told.push(violation.to_string());
        for (session, events) in histories.iter().enumerate() {
            let mover = session.checked_sub(before).map(|number| &movers[number]);
            for (number, event) in events.iter().enumerate() {
                let (Event::Write { key, .. } | Event::Read { key, .. }) = event;
                let is_near = session == violation.at.0 && number.abs_diff(violation.at.1) < 8;
                if *key == violation.key || is_near {
                    let place = mover.map(|mover| mover.places[number]);
                    let place = place.map(|(at, when)| (NAMES[at], when.duration_since(begun)));
                    told.push(format!("  session {session}, event {number}: {event:?} {place:?}"));
                }
            }
        }
    }
    told
}

/// A client that writes in the first region and reads in the second: with its token, or without.
async fn go(world: &World, key: u64, with_token: bool) -> Vec<Event> {
    let here = world.sites[0].client().await;
    let value = world.value.fetch_add(1, Ordering::Relaxed) + 1;
    here.execute(WRITE, &[&key.cast_signed(), &value]).await.expect("writes");
    let there = world.sites[1].client().await;
    if with_token {
        let row = here.query_one("SELECT telesto_migrate('eu')", &[]).await.expect("a token");
        let attached = attach(&there, row.get(0)).await;
        attached.expect("what it has seen comes in time");
    }
    let row = there.query_opt(READ, &[&key.cast_signed()]).await.expect("reads");
    let read = row.map(|row| row.get::<_, i64>(0).unsigned_abs());
    vec![Event::Write { key, value: value.unsigned_abs() }, Event::Read { key, value: read }]
}

/// Every region knows what all links take, a plan can be made from it, and a region goes over to
/// another plane and back while it runs.
async fn check_links(world: &World) {
    let client = world.sites[2].client().await;
    let until = Instant::now() + PATIENCE;
    let known = "SELECT from_region, to_region FROM telesto_links WHERE round_trip_ms IS NOT NULL";
    while rows(&client, known).await.len() < 6 {
        assert!(Instant::now() < until, "{:?}", rows(&client, "SELECT * FROM telesto_links").await);
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    let port = world.sites[2].port.load(Ordering::Relaxed);
    let url = format!("postgres://telesto@127.0.0.1:{port}/telesto");
    let plan = telesto(&["geo", "plan", "--url", &url]).expect("a plan");
    assert_eq!(plan.matches(" → ").count(), 6, "{plan}");
    let svg = telesto(&["geo", "plan", "--url", &url, "--format", "svg"]).expect("a picture");
    assert!(svg.starts_with("<svg"), "{svg}");
    // Region 1 tells the others of a tree, which region 2 follows for a while.
    let bucket = &world.sites[1].place.bucket;
    telesto(&["geo", "plan", "--url", &url, "--apply", "--bucket", bucket]).expect("applied");
    for (number, plane) in [(101, "eventual"), (103, "tree"), (104, "timestamp"), (102, "matrix")] {
        registry(&["plane", plane, "--bucket", &world.sites[2].place.bucket]);
        let follows = if plane == "tree" { " AND tree = 'followed'" } else { "" };
        let now =
            format!("SELECT 1 FROM telesto_regions WHERE is_self AND plane = '{plane}'{follows}");
        let until = Instant::now() + PATIENCE;
        while rows(&client, &now).await.is_empty() {
            assert!(Instant::now() < until, "it does not go over to {plane}");
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
        world.settle(number).await;
    }
}

/// Compares the replicas of all regions, as the command does.
fn verify(world: &World) {
    let said = telesto(&["verify", "--regions", "--bucket", &world.sites[0].place.bucket]);
    let said = said.unwrap_or_else(|error| panic!("replicas: {error}"));
    assert!(said.contains("All replicas are equal."), "{said}");
}

fn copy(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).expect("a folder");
    for entry in std::fs::read_dir(from).expect("a folder").filter_map(Result::ok) {
        let to = to.join(entry.file_name());
        if entry.path().is_dir() {
            copy(&entry.path(), &to);
        } else {
            std::fs::copy(entry.path(), to).expect("copied");
        }
    }
}

/// Waits until a region's bucket has a report that says `what`.
async fn reported(site: &Site, what: &str) {
    let until = Instant::now() + PATIENCE;
    loop {
        let said = registry(&["reports", "--bucket", &site.place.bucket]);
        if said.contains(what) {
            return;
        }
        assert!(Instant::now() < until, "no report of {what:?}: {said}");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

/// What was counted, as the second region has it.
async fn tallied(world: &World) -> i64 {
    let client = world.sites[1].client().await;
    client.query_one("SELECT sum(hits)::bigint FROM tally", &[]).await.expect("reads").get(0)
}

/// The first region is put back to an older state, with its bucket and its disk, and takes back
/// what the others have.
async fn lose_commits(world: &World) {
    let us = &world.sites[0];
    let counted = tallied(world).await;
    let backup = us.folder.with_extension("backup");
    assert!(us.node.lock().take().expect("it runs").stop(), "it ends by itself");
    copy(&us.folder, &backup);
    us.start();
    us.client()
        .await
        .batch_execute(
            "CREATE TABLE behind (id int PRIMARY KEY, v text); CREATE INDEX behind_v ON behind (v);
             INSERT INTO behind SELECT g, 'behind ' || g FROM generate_series(1, 50) g;
             INSERT INTO shared SELECT g, g FROM generate_series(5000, 5009) g;
             UPDATE tally SET hits = hits + 1000 WHERE id = 2;
             DELETE FROM history WHERE id = 7",
        )
        .await
        .expect("written behind the backup");
    world.settle(2).await;
    us.kill();
    std::fs::remove_dir_all(&us.folder).expect("removed");
    std::fs::rename(&backup, &us.folder).expect("put back");
    us.start();
    reported(us, "had lost commits").await;
    let client = us.client().await;
    let count = async |query: &str| rows(&client, query).await.pop().unwrap_or_default();
    assert_eq!(count("SELECT count(*) FROM behind WHERE v LIKE 'behind %'").await, "50");
    assert_eq!(count("SELECT count(*) FROM shared WHERE k BETWEEN 5000 AND 5009").await, "10");
    assert_eq!(count("SELECT count(*) FROM history WHERE id = 7").await, "0");
    world.settle(3).await;
    assert_eq!(tallied(world).await, counted + 1000, "increments that others had are taken back");
    check_replicas(world).await;
    verify(world);
}

/// The third region is lost for good; the others go on without it.
async fn lose_region(world: &World) {
    let (us, eu) = (&world.sites[0], &world.sites[1]);
    world.sites[2].kill();
    registry(&["remove", "ap", "--lost", "--bucket", &us.place.bucket]);
    registry(&["remove", "ap", "--lost", "--bucket", &eu.place.bucket]);
    for site in [us, eu] {
        reported(site, "Region 2 was left out").await;
    }
    let until = Instant::now() + PATIENCE;
    let client = us.client().await;
    while rows(&client, "SELECT name FROM telesto_regions").await.len() > 2 {
        assert!(Instant::now() < until, "the lost region is in the catalog still");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    client.batch_execute("INSERT INTO late VALUES (9000, 'without ap')").await.expect("written");
    let there = eu.client().await;
    while rows(&there, "SELECT v FROM late WHERE id = 9000").await != ["without ap"] {
        assert!(Instant::now() < until, "the others do not go on");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    verify(world);
}

/// The first region gives the definitions away, and gets them back.
async fn give_definitions(world: &World) {
    let (us, eu) = (world.sites[0].client().await, world.sites[1].client().await);
    for (giver, taker, name) in [(&us, &eu, "eu"), (&eu, &us, "us")] {
        let give = format!("ALTER DATABASE telesto SET telesto.defining_region = '{name}'");
        giver.batch_execute(&give).await.expect("given");
        let refused = giver.batch_execute("CREATE TABLE given (id int)").await;
        let refused = refused.expect_err("it has given them away");
        assert_eq!(refused.code().map(|code| code.code()), Some("25006"), "{refused}");
        let define = format!(
            "CREATE TABLE given_{name} (id int PRIMARY KEY, v text UNIQUE); INSERT INTO given_{name} VALUES (1, 'x')"
        );
        let until = Instant::now() + PATIENCE;
        while let Err(error) = taker.batch_execute(&define).await {
            assert!(Instant::now() < until, "{name} does not make definitions: {error:?}");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }
    for site in &world.sites {
        let client = site.client().await;
        let until = Instant::now() + PATIENCE;
        let all = "SELECT name FROM telesto_regions WHERE defines AND 1 = (SELECT count(*) FROM given_eu NATURAL JOIN given_us)";
        loop {
            let found = client.query(all, &[]).await.unwrap_or_default();
            if found.first().is_some_and(|row| row.get::<_, String>(0) == "us") {
                break;
            }
            assert!(Instant::now() < until, "the definitions do not arrive");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }
}

/// The first region is lost too: the last one makes the definitions from then on, and writes what
/// the first one wrote.
async fn lose_first(world: &World) {
    let (us, eu) = (&world.sites[0], &world.sites[1]);
    us.kill();
    let remove = ["region", "remove", "us", "--lost", "--bucket", &eu.place.bucket];
    let refused = telesto(&remove).expect_err("nobody would make the definitions");
    assert!(refused.contains("--successor"), "{refused}");
    registry(&["remove", "us", "--lost", "--successor", "eu", "--bucket", &eu.place.bucket]);
    reported(eu, "Region 0 was left out").await;
    let client = eu.client().await;
    let until = Instant::now() + PATIENCE;
    while rows(&client, "SELECT name FROM telesto_regions").await != ["eu"] {
        assert!(Instant::now() < until, "the first region is in the catalog still");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    client
        .batch_execute(
            "CREATE TABLE anew (id int PRIMARY KEY); ALTER TABLE late ADD COLUMN more int;
             INSERT INTO late VALUES (9001, 'without us', 1); CREATE INDEX late_more ON late (more)",
        )
        .await
        .expect("eu defines, and writes what us wrote");
    assert_eq!(rows(&client, "SELECT v FROM late WHERE more = 1").await, ["without us"]);
    eu.kill();
    eu.start();
    let client = eu.client().await;
    client.batch_execute("CREATE TABLE again (id int PRIMARY KEY)").await.expect("after a kill");
}

fn asked(name: &str) -> Option<u64> {
    std::env::var(name).ok().and_then(|text| text.parse().ok())
}

/// Makes the three regions, with rows written meanwhile; those that were acknowledged.
async fn make_regions(world: &Arc<World>, seed: u64) -> Vec<i32> {
    world.first_region().await;
    let stop = Arc::new(AtomicBool::new(false));
    let loading = tokio::spawn(load(Arc::clone(world), Arc::clone(&stop)));
    let joining = Arc::clone(world);
    let mut rng = StdRng::seed_from_u64(!seed);
    let joined = tokio::task::spawn_blocking(move || {
        [1, 2].into_iter().for_each(|new| joining.join(new, &mut rng));
    });
    joined.await.expect("they join");
    let us = world.sites[0].client().await;
    let until = Instant::now() + PATIENCE;
    while rows(&us, "SELECT name FROM telesto_regions").await.len() < 3 {
        assert!(Instant::now() < until, "the first region does not know the others");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    us.batch_execute(
        "ALTER TABLE shared SET (telesto.home = 'any'); ALTER TABLE fence SET (telesto.home = 'any');
         CREATE TABLE late (id int PRIMARY KEY, v text); CREATE INDEX late_v ON late (v);
         INSERT INTO late SELECT g, 'late ' || g FROM generate_series(1, 500) g;
         CREATE TABLE tally (id int PRIMARY KEY, hits bigint NOT NULL, latest bigint); CREATE INDEX tally_hits ON tally (hits);
         INSERT INTO tally SELECT g, 0, 0 FROM generate_series(1, 3) g;
         ALTER TABLE tally SET (telesto.home = 'any', telesto.counter = 'hits', telesto.max = 'latest');
         ALTER TABLE account SET (telesto.home = 'eu'); ALTER TABLE secret SET (telesto.regions = 'us,eu');",
    )
    .await
    .expect("homes");
    // The definitions are in every region when each can write.
    for site in &world.sites[1..] {
        let client = site.client().await;
        while let Err(error) = client
            .batch_execute("INSERT INTO fence VALUES ('try', 0) ON CONFLICT (region) DO NOTHING")
            .await
        {
            assert!(Instant::now() < until, "tables do not get their homes: {error:?}");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }
    stop.store(true, Ordering::Relaxed);
    loading.await.expect("the load")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn regions_stay_causal_and_lose_nothing() {
    let seed = asked("TELESTO_REGIONS_SEED").unwrap_or_else(|| StdRng::from_os_rng().random());
    let seconds = Duration::from_secs(asked("TELESTO_REGIONS_SECONDS").unwrap_or(15));
    println!("seed {seed}");
    let begun = Instant::now();
    let world = Arc::new(World::new().await);
    let loaded = make_regions(&world, seed).await;
    assert!(!loaded.is_empty(), "nothing was written while regions joined");
    println!("{} rows were written while two regions joined, {:?}", loaded.len(), begun.elapsed());

    let clients: Vec<_> = (0..CLIENTS)
        .map(|number| {
            let world = Arc::clone(&world);
            tokio::spawn(async move { Mover::new(&world, number, seed).await.work(world).await })
        })
        .collect();
    let home =
        |home, table, from, row| tokio::spawn(at_home(Arc::clone(&world), home, table, from, row));
    let accounts = [home(1, "account", 1, email), home(1, "account", 1_000_000, email)];
    let secrets = home(0, "secret", 1, marker);
    let rng = StdRng::seed_from_u64(seed);
    let done = disturb(Arc::clone(&world), rng, Instant::now() + seconds).await;
    world.stop.store(true, Ordering::Relaxed);
    let mut movers = Vec::new();
    for client in clients {
        movers.push(client.await.expect("a client"));
    }
    let mut kept: Vec<(i32, String)> = Vec::new();
    for writer in accounts {
        kept.extend(writer.await.expect("a writer"));
    }
    let secrets = secrets.await.expect("a writer");
    let healed = Instant::now();
    world.settle(1).await;
    let lost = world.histories.lock().len();
    let events: usize = movers.iter().map(|mover| mover.events.len()).sum();
    let moves = world.moves.load(Ordering::Relaxed);
    println!(
        "{done:?}; {events} reads and writes, {lost} lost answers, {moves} moves; all is everywhere after {:?}",
        healed.elapsed()
    );
    assert!(
        done.len() == 4 && moves > 0 && events > 100 && kept.len() > 10 && secrets.len() > 10,
        "too little was tried"
    );

    // What the clients saw.
    let wrong = violations(world.histories.lock().clone(), &movers, begun);
    assert!(wrong.is_empty(), "seed {seed}: {wrong:#?}");

    // What was acknowledged.
    check_replicas(&world).await;
    check_links(&world).await;
    let client = world.sites[2].client().await;
    for mover in &movers {
        let key = mover.own_key().cast_signed();
        let row = client.query_opt(READ, &[&key]).await.expect("reads");
        let value: i64 = row.map_or(0, |row| row.get(0));
        let (last, unknown) = &mover.own;
        assert!(
            value == *last || unknown.contains(&value),
            "key {key}: {value}, not {last} or one of {unknown:?}"
        );
    }
    let there: BTreeSet<String> =
        rows(&client, "SELECT id, email FROM account").await.into_iter().collect();
    for (id, email) in &kept {
        assert!(
            there.contains(&format!("{id}|{email}")),
            "account {id} ({email}) was acknowledged and is not there"
        );
    }
    let emails: BTreeSet<_> =
        there.iter().map(|row| row.split_once('|').map(|(_, email)| email)).collect();
    assert_eq!(emails.len(), there.len(), "an email is there twice");
    client.batch_execute("SET telesto.forward_writes = off").await.expect("sets");
    let refused = client
        .execute("INSERT INTO account VALUES (-1, 'x')", &[])
        .await
        .expect_err("written in eu");
    assert_eq!(refused.code().map(|code| code.code()), Some("25006"), "{refused:?}");
    let history: BTreeSet<String> =
        rows(&client, "SELECT id FROM history").await.into_iter().collect();
    let missing: Vec<_> = loaded.iter().filter(|id| !history.contains(&id.to_string())).collect();
    assert!(
        missing.is_empty() && history.len() >= 2000 + loaded.len(),
        "rows of the load are missing: {missing:?}"
    );
    let old = rows(&client, "SELECT count(*) FROM history WHERE v LIKE 'old %'").await;
    assert_eq!(old, ["2000"]);
    let tickets = world.tickets.lock().clone();
    let different: BTreeSet<i64> = tickets.iter().copied().collect();
    assert!(
        tickets.len() > 3 && different.len() == tickets.len(),
        "a sequence gave a number twice: {tickets:?}"
    );

    let [sure, unknown] = [0, 1].map(|which: usize| world.counted[which].load(Ordering::Relaxed));
    let tallied = tallied(&world).await;
    assert!(sure > 10, "too little was counted");
    assert!(
        (sure..=sure + unknown).contains(&tallied),
        "{tallied} was counted, not {sure} with up to {unknown} more"
    );

    // Where it is: nothing is searched that the search would not find.
    let found = |site: usize| {
        let mut found = BTreeSet::new();
        markers(&world.sites[site].folder, &mut found);
        secrets.iter().filter(|(_, text)| found.contains(text)).count()
    };
    let (us, eu, ap) = (found(0), found(1), found(2));
    println!("of {} markers {us} are found in us, {eu} in eu, {ap} in ap", secrets.len());
    assert!(us > 0 && eu > 0, "the search finds nothing where the table is");
    assert_eq!(ap, 0, "a table's rows are where it is not placed");

    verify(&world);
    lose_commits(&world).await;
    println!("lost commits were taken back after {:?}", begun.elapsed());
    give_definitions(&world).await;
    lose_region(&world).await;

    // The checker finds a client that goes without its token.
    world.links[0][1].delay(Duration::from_millis(500));
    let with = go(&world, STALE, true).await;
    assert!(check(&[with]).is_empty(), "a client with its token does not find what it wrote");
    let without = check(&[go(&world, STALE + 1, false).await]);
    assert_eq!(
        without.first().map(|violation| violation.broken),
        Some(Broken::ReadYourWrites),
        "a stale client is not found"
    );
    lose_first(&world).await;
    println!("{:?} in all", begun.elapsed());
}
