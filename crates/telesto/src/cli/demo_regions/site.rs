//! The demo's regions: processes, the links between them, their tables.
//!
//! # Invariants
//! A region's address, as another region's registry has it, is that of the link between the two.
//!
//! # On failure
//! What a process said is in the error.
//!
//! # Limits
//! A port that is free when it is chosen may be taken before a node listens there; the demo ends then, and says so.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use telesto_common::RegionId;
use telesto_geo::Latencies;
use tokio::process::{Child, Command};
use tokio::time::Instant;
use tokio_postgres::{Client, SimpleQueryMessage};

use super::super::link::{Link, Proxy};
use super::super::shell::full;
use super::super::start::file_url;
use super::{PATIENCE, REGIONS, connect, name, pairs};

const AGAIN: Duration = Duration::from_millis(100);
/// What is sold.
pub const ITEMS: u64 = 200;
const TABLES: [&str; 4] = ["orders", "stock", "pulse", "diary"];

/// A region, and the node that carries it.
pub struct Site {
    folder: PathBuf,
    bucket: String,
    /// Where it listens for other regions.
    region: u16,
    port: u16,
    /// Where it tells its measurements.
    http: u16,
    child: Option<Child>,
}

/// All of them.
pub struct World {
    pub sites: Vec<Site>,
    /// By the region that sends and the one that receives.
    links: Vec<Vec<Proxy>>,
    latencies: Latencies,
}

async fn free_port() -> Result<u16, String> {
    let listener = tokio::net::TcpListener::bind(("127.0.0.1", 0)).await;
    let address = listener.and_then(|listener| listener.local_addr());
    address.map(|address| address.port()).map_err(|error| format!("no port is free: {error}"))
}

fn program() -> Result<PathBuf, String> {
    std::env::current_exe().map_err(|error| format!("this program cannot be found again: {error}"))
}

/// Runs `telesto region`; what it printed.
async fn registry(arguments: &[&str]) -> Result<String, String> {
    let output = Command::new(program()?).arg("region").args(arguments).output().await;
    let output = output.map_err(|error| format!("telesto region cannot be run: {error}"))?;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim().to_owned();
    match output.status.success() {
        true => Ok(text(&output.stdout)),
        false => Err(text(&output.stderr)),
    }
}

impl World {
    /// The regions' folders, and links between them.
    pub async fn new(folder: &Path, latencies: Latencies) -> Result<Self, String> {
        let mut sites = Vec::new();
        for region in 0..REGIONS.len() {
            let folder = folder.join(name(region));
            let bucket = file_url(&folder.join("bucket"))?;
            let region = free_port().await?;
            sites.push(Site { folder, bucket, region, port: 0, http: 0, child: None });
        }
        let mut world = Self { sites, links: Vec::new(), latencies };
        for _ in 0..REGIONS.len() {
            let mut row = Vec::new();
            for to in 0..REGIONS.len() {
                let link = Proxy::start(world.sites[to].region, Duration::ZERO).await;
                row.push(link.map_err(|error| format!("no port is free for a link: {error}"))?);
            }
            world.links.push(row);
        }
        Ok(world)
    }

    /// Where the nodes tell their measurements.
    pub fn measurements(&self) -> [u16; REGIONS.len()] {
        std::array::from_fn(|region| self.sites[region].http)
    }

    pub fn one_way(&self, from: usize, to: usize) -> Duration {
        let id = |region: usize| RegionId(u16::try_from(region).unwrap_or_default());
        Duration::from_micros(self.latencies.get(id(from), id(to)))
    }

    fn way(&self, from: usize, to: usize) -> String {
        format!("127.0.0.1:{}", self.links[from][to].port)
    }

    /// Makes the first region.
    pub async fn found(&mut self) -> Result<(), String> {
        let address = self.way(1, 0);
        registry(&["init", name(0), "--bucket", &self.sites[0].bucket, "--address", &address])
            .await?;
        self.sites[0].start(name(0)).await
    }

    /// Has the next region join those before it.
    pub async fn join(&mut self, new: usize) -> Result<(), String> {
        let bucket = self.sites[new].bucket.clone();
        let invitation =
            registry(&["invite", name(new), "--bucket", &self.sites[0].bucket]).await?;
        let address = self.way(0, new);
        registry(&["join", &invitation, "--bucket", &bucket, "--address", &address]).await?;
        for old in 0..new {
            let way = self.way(new, old);
            registry(&["move", name(old), "--bucket", &bucket, "--address", &way]).await?;
        }
        self.sites[new].start(name(new)).await?;
        for old in 1..new {
            // It has to introduce itself there before it can be reached over another way.
            let (way, begun) = (self.way(old, new), Instant::now());
            let arguments =
                ["move", name(new), "--bucket", &self.sites[old].bucket, "--address", &way];
            while let Err(error) = registry(&arguments).await {
                if begun.elapsed() > PATIENCE {
                    return Err(error);
                }
                tokio::time::sleep(AGAIN).await;
            }
        }
        Ok(())
    }

    /// Lets links take their time from now on.
    pub fn slow_down(&self) {
        for (from, to) in pairs() {
            self.links[from][to].delay(self.one_way(from, to));
        }
    }

    /// Lets all links from and to `region` be so.
    pub fn set_link_of(&self, region: usize, link: Link) {
        for (from, to) in pairs().filter(|(from, to)| *from == region || *to == region) {
            self.links[from][to].set(link);
        }
    }

    /// Makes the tables, and waits until every region has them and may write its own.
    pub async fn place_tables(&self, urls: &[String]) -> Result<(), String> {
        let client = connect(&urls[0]).await?;
        let names =
            format!("SELECT count(*) FROM telesto_regions HAVING count(*) = {}", REGIONS.len());
        until(&client, &names).await?;
        let statements = format!(
            "CREATE TABLE stock (item int PRIMARY KEY, n bigint NOT NULL);
             INSERT INTO stock SELECT g, 1000 FROM generate_series(0, {}) g;
             CREATE TABLE orders (shop text, n bigint, item int NOT NULL, PRIMARY KEY (shop, n));
             CREATE TABLE pulse (region text PRIMARY KEY, n bigint NOT NULL);
             CREATE TABLE diary (traveller int PRIMARY KEY, n bigint NOT NULL);
             INSERT INTO diary VALUES (1, 0);
             CREATE TABLE fence (region text PRIMARY KEY);
             ALTER TABLE orders SET (telesto.home = 'any');
             ALTER TABLE pulse SET (telesto.home = 'any');
             ALTER TABLE diary SET (telesto.home = 'any');
             ALTER TABLE fence SET (telesto.home = 'any');
             ALTER TABLE stock SET (telesto.home = 'us');",
            ITEMS - 1
        );
        client.batch_execute(&statements).await.map_err(|error| full(&error))?;
        for (region, url) in urls.iter().enumerate() {
            let client = connect(url).await?;
            let begun = Instant::now();
            // Refused until the definitions are there.
            let pulse = format!("INSERT INTO pulse VALUES ('{}', 0)", name(region));
            while let Err(error) = client.batch_execute(&pulse).await {
                if begun.elapsed() > PATIENCE {
                    return Err(format!(
                        "{} does not get the tables: {}",
                        name(region),
                        full(&error)
                    ));
                }
                tokio::time::sleep(AGAIN).await;
            }
            until(&client, &format!("SELECT 1 FROM stock HAVING count(*) = {ITEMS}")).await?;
            until(&client, "SELECT 1 FROM diary").await?;
        }
        Ok(())
    }
}

/// Waits until a query has a row.
async fn until(client: &Client, query: &str) -> Result<(), String> {
    let begun = Instant::now();
    while client.query_opt(query, &[]).await.map_err(|error| full(&error))?.is_none() {
        if begun.elapsed() > PATIENCE {
            return Err(format!("{query} has no row after {} s", PATIENCE.as_secs()));
        }
        tokio::time::sleep(AGAIN).await;
    }
    Ok(())
}

/// The tables' rows by region, when what each region has committed is everywhere.
pub async fn settled(
    urls: &[String],
) -> Result<Vec<(&'static str, [Vec<String>; REGIONS.len()])>, String> {
    for (region, url) in urls.iter().enumerate() {
        let fence = format!("INSERT INTO fence VALUES ('{}')", name(region));
        connect(url).await?.batch_execute(&fence).await.map_err(|error| full(&error))?;
    }
    let mut found: Vec<_> =
        TABLES.map(|table| (table, <[Vec<String>; REGIONS.len()]>::default())).into();
    for (region, url) in urls.iter().enumerate() {
        let client = connect(url).await?;
        until(&client, &format!("SELECT 1 FROM fence HAVING count(*) = {}", REGIONS.len())).await?;
        for (table, rows) in &mut found {
            let ordered = format!("SELECT * FROM {table} ORDER BY 1, 2");
            let answer = client.simple_query(&ordered).await.map_err(|error| full(&error))?;
            rows[region] = answer.into_iter().filter_map(text).collect();
        }
    }
    Ok(found)
}

/// The port in the line of what a node said that begins with `name`; 0 when there is none.
fn port_of(said: &str, name: &str) -> u16 {
    let line = said.lines().find_map(|line| line.trim_start().strip_prefix(name));
    let port = line.and_then(|line| line.split_whitespace().next()?.rsplit(':').next());
    port.and_then(|port| port.parse().ok()).unwrap_or_default()
}

fn text(message: SimpleQueryMessage) -> Option<String> {
    let SimpleQueryMessage::Row(row) = message else { return None };
    let cells = (0..row.len()).map(|cell| row.get(cell).unwrap_or("NULL"));
    Some(cells.collect::<Vec<_>>().join("|"))
}

impl Site {
    pub fn url(&self) -> String {
        format!("postgres://telesto@127.0.0.1:{}/telesto", self.port)
    }

    async fn start(&mut self, name: &str) -> Result<(), String> {
        std::fs::create_dir_all(&self.folder)
            .map_err(|error| format!("cannot make {}: {error}", self.folder.display()))?;
        let log = self.folder.join("output.log");
        let opened = File::create(&log).and_then(|out| Ok((out.try_clone()?, out)));
        let (out, err) =
            opened.map_err(|error| format!("cannot write {}: {error}", log.display()))?;
        let mut command = Command::new(program()?);
        command.args([
            "start",
            "--listen",
            "127.0.0.1:0",
            "--http",
            "127.0.0.1:0",
            "--memory",
            "256MiB",
        ]);
        command.args(["--bucket", &self.bucket, "--region", &format!("127.0.0.1:{}", self.region)]);
        command.arg("--data-dir").arg(self.folder.join("node"));
        command.stdin(Stdio::null()).stdout(out).stderr(err).kill_on_drop(true);
        let child = command.spawn().map_err(|error| format!("cannot start {name}: {error}"))?;
        let child = self.child.insert(child);
        let begun = Instant::now();
        loop {
            let said = std::fs::read_to_string(&log).unwrap_or_default();
            if said.lines().any(|line| line == "Ready.") {
                self.port = port_of(&said, "postgres");
                self.http = port_of(&said, "http");
                return Ok(());
            }
            if let Ok(Some(status)) = child.try_wait() {
                return Err(format!("{name} ended ({status}): {}", said.trim()));
            }
            if begun.elapsed() > PATIENCE {
                return Err(format!("{name} does not open its database: {}", said.trim()));
            }
            tokio::time::sleep(AGAIN).await;
        }
    }

    /// Ends the process, in good order if it can.
    pub async fn stop(&mut self) {
        let Some(child) = &mut self.child else { return };
        let Some(id) = child.id() else { return };
        let asked = Command::new("kill").arg(id.to_string()).status().await;
        let ended = tokio::time::timeout(Duration::from_secs(30), child.wait()).await;
        if ended.is_err() || !asked.is_ok_and(|status| status.success()) {
            let _ = child.kill().await;
        }
    }
}
