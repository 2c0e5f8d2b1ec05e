//! Regions of one machine, as demos show them: processes, and the links between them.
//!
//! # Invariants
//! A region's address, as another region's registry has it, is that of the link between the two.
//!
//! # On failure
//! What a process said is in the error.
//!
//! # Limits
//! A port is held until its node is started; somebody else may take it in that moment. The demo
//! ends then, and says so.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use telesto_common::RegionId;
use telesto_geo::Latencies;
use tokio::net::TcpListener;
use tokio::process::{Child, Command};
use tokio::time::Instant;
use tokio_postgres::Client;

use crate::link::{Link, Proxy};
use crate::sql::{connect, full};
use crate::telesto::{bucket_in, program};

/// How long regions may take to have everything of each other at the end, and their tables at the
/// beginning.
pub const PATIENCE: Duration = Duration::from_secs(120);
pub const AGAIN: Duration = Duration::from_millis(100);

/// A region, and the node that carries it.
pub struct Site {
    folder: PathBuf,
    bucket: String,
    /// Where it listens for other regions.
    region: u16,
    /// Keeps that port until the node is started: links take free ones, too.
    held: Option<TcpListener>,
    port: u16,
    /// Where it tells its measurements.
    http: u16,
    child: Option<Child>,
}

/// All of them.
pub struct World {
    pub names: &'static [&'static str],
    pub sites: Vec<Site>,
    /// By the region that sends and the one that receives.
    links: Vec<Vec<Proxy>>,
    latencies: Latencies,
}

/// Every way from one of `regions` regions to another.
pub fn pairs(regions: usize) -> impl Iterator<Item = (usize, usize)> {
    (0..regions)
        .flat_map(move |from| (0..regions).filter(move |to| *to != from).map(move |to| (from, to)))
}

/// `folder` from the root, when there is nothing in it.
///
/// # Errors
/// There is something in it.
pub fn empty_folder(folder: &Path) -> Result<PathBuf, String> {
    let folder = std::path::absolute(folder).map_err(|error| error.to_string())?;
    match folder.read_dir().is_ok_and(|mut entries| entries.next().is_some()) {
        true => {
            Err(format!("{} is not empty; name a new folder with --data-dir", folder.display()))
        }
        false => Ok(folder),
    }
}

async fn free_port() -> Result<(TcpListener, u16), String> {
    let none = |error: std::io::Error| format!("no port is free: {error}");
    let listener = TcpListener::bind(("127.0.0.1", 0)).await.map_err(none)?;
    let port = listener.local_addr().map_err(none)?.port();
    Ok((listener, port))
}

/// Runs `telesto region`; what it printed.
async fn registry(arguments: &[&str]) -> Result<String, String> {
    telesto(&[&["region"], arguments].concat()).await
}

/// Runs `telesto`; what it printed.
async fn telesto(arguments: &[&str]) -> Result<String, String> {
    let output = Command::new(program()?).args(arguments).output().await;
    let output = output.map_err(|error| format!("telesto cannot be run: {error}"))?;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim().to_owned();
    match output.status.success() {
        true => Ok(text(&output.stdout)),
        false => Err(text(&output.stderr)),
    }
}

impl World {
    /// The regions' folders, and links between them.
    pub async fn new(
        folder: &Path,
        names: &'static [&'static str],
        latencies: Latencies,
    ) -> Result<Self, String> {
        let mut sites = Vec::new();
        for name in names {
            let folder = folder.join(name);
            let bucket = bucket_in(&folder)?;
            let (held, region) = free_port().await?;
            let held = Some(held);
            sites.push(Site { folder, bucket, region, held, port: 0, http: 0, child: None });
        }
        let mut world = Self { names, sites, links: Vec::new(), latencies };
        for _ in 0..names.len() {
            let mut row = Vec::new();
            for to in 0..names.len() {
                let link = Proxy::start(world.sites[to].region, Duration::ZERO).await;
                row.push(link.map_err(|error| format!("no port is free for a link: {error}"))?);
            }
            world.links.push(row);
        }
        Ok(world)
    }

    /// Where the nodes tell their measurements.
    pub fn measurements(&self) -> Vec<u16> {
        self.sites.iter().map(|site| site.http).collect()
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
        registry(&[
            "init",
            self.names[0],
            "--bucket",
            &self.sites[0].bucket,
            "--address",
            &address,
        ])
        .await?;
        self.sites[0].start(self.names[0]).await
    }

    /// Has the next region join those before it.
    pub async fn join(&mut self, new: usize) -> Result<(), String> {
        let bucket = self.sites[new].bucket.clone();
        let invitation =
            registry(&["invite", self.names[new], "--bucket", &self.sites[0].bucket]).await?;
        let address = self.way(0, new);
        registry(&["join", &invitation, "--bucket", &bucket, "--address", &address]).await?;
        for old in 0..new {
            let way = self.way(new, old);
            registry(&["move", self.names[old], "--bucket", &bucket, "--address", &way]).await?;
        }
        self.sites[new].start(self.names[new]).await?;
        for old in 1..new {
            // It has to introduce itself there before it can be reached over another way.
            let (way, begun) = (self.way(old, new), Instant::now());
            let arguments =
                ["move", self.names[new], "--bucket", &self.sites[old].bucket, "--address", &way];
            while let Err(error) = registry(&arguments).await {
                if begun.elapsed() > PATIENCE {
                    return Err(error);
                }
                tokio::time::sleep(AGAIN).await;
            }
        }
        Ok(())
    }

    /// Has every region go by `plane` and begin its streams anew, as after any change of its
    /// registry: what was measured before is forgotten.
    pub async fn begin_anew(&self, plane: &str) -> Result<(), String> {
        for site in &self.sites {
            let begun = Instant::now();
            // A node may change its registry at the same moment.
            while let Err(error) = registry(&["plane", plane, "--bucket", &site.bucket]).await {
                if begun.elapsed() > PATIENCE {
                    return Err(error);
                }
                tokio::time::sleep(AGAIN).await;
            }
        }
        for (site, name) in self.sites.iter().zip(self.names) {
            let client = connect(&site.url()).await?;
            let fresh = format!(
                "SELECT 1 FROM telesto_links WHERE from_region = '{name}' HAVING sum(sent_transactions) = 0 AND min(round_trip_ms) > 0"
            );
            until(&client, &fresh).await?;
        }
        Ok(())
    }

    /// Has the regions use the best tree for what they have measured of each other, when they go by
    /// one.
    pub async fn plan_tree(&self) -> Result<(), String> {
        let (first, members) = (&self.sites[0], self.names.len());
        let client = connect(&first.url()).await?;
        let pairs = members * (members - 1);
        let measured = format!(
            "SELECT 1 FROM telesto_links WHERE round_trip_ms IS NOT NULL HAVING count(*) = {pairs}"
        );
        until(&client, &measured).await?;
        let arguments =
            ["geo", "plan", "--url", &first.url(), "--apply", "--bucket", &first.bucket];
        telesto(&arguments).await.map(|_| ())
    }

    /// Bytes that went over all links so far.
    pub fn link_bytes(&self) -> u64 {
        pairs(self.names.len()).map(|(from, to)| self.links[from][to].bytes()).sum()
    }

    /// Lets links take their time from now on.
    pub fn slow_down(&self) {
        for (from, to) in pairs(self.names.len()) {
            self.links[from][to].delay(self.one_way(from, to));
        }
    }

    /// Lets all links from and to `region` be so.
    pub fn set_link_of(&self, region: usize, link: Link) {
        for (from, to) in
            pairs(self.names.len()).filter(|(from, to)| *from == region || *to == region)
        {
            self.links[from][to].set(link);
        }
    }
}

/// The port in the line of what a node said that begins with `name`; 0 when there is none.
fn port_of(said: &str, name: &str) -> u16 {
    let line = said.lines().find_map(|line| line.trim_start().strip_prefix(name));
    let port = line.and_then(|line| line.split_whitespace().next()?.rsplit(':').next());
    port.and_then(|port| port.parse().ok()).unwrap_or_default()
}

/// Waits until a query has a row.
pub async fn until(client: &Client, query: &str) -> Result<(), String> {
    let begun = Instant::now();
    while client.query_opt(query, &[]).await.map_err(|error| full(&error))?.is_none() {
        if begun.elapsed() > PATIENCE {
            return Err(format!("{query} has no row after {} s", PATIENCE.as_secs()));
        }
        tokio::time::sleep(AGAIN).await;
    }
    Ok(())
}

impl Site {
    pub fn bucket(&self) -> &str {
        &self.bucket
    }

    pub fn url(&self) -> String {
        format!("postgres://telesto@127.0.0.1:{}/telesto", self.port)
    }

    /// The process of its node.
    pub fn process(&self) -> Option<u32> {
        self.child.as_ref().and_then(Child::id)
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
        drop(self.held.take());
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
