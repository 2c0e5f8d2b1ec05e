//! Nodes of one cluster on this machine, each in a process of its own, and what they have counted.
//!
//! # Invariants
//! - All have the bucket `bucket` in one folder, and a folder of their own beside it.
//! - What is counted are the nodes' own counters and the kernel's account of their processes;
//!   clients are not in it.
//!
//! # On failure
//! What the process said is in the error.
//!
//! # Limits
//! Loopback stands for the network. The kernel counts processor time in hundredths of a second.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use tokio::process::{Child, Command};
use tokio::time::Instant;

use crate::regions::metrics;
use crate::sql;
use crate::telesto::{bucket_in, program};

/// How long nodes may take to open the database, and its log to have its copies.
const OPENING: Duration = Duration::from_secs(120);
/// How long a node may take to end in good order.
const ENDING: Duration = Duration::from_secs(30);
const AGAIN: Duration = Duration::from_millis(50);

/// One node.
pub struct Node {
    pub number: u16,
    child: Child,
    /// Where it serves the Postgres protocol: the same in all its lives.
    pub port: u16,
    /// Where its first life tells its measurements.
    http: u16,
    pub id: String,
    folder: PathBuf,
}

fn launch(folder: &Path, number: u16, port: u16) -> Result<(Child, PathBuf), String> {
    let own = folder.join(format!("node-{number}"));
    std::fs::create_dir_all(&own)
        .map_err(|error| format!("cannot make {}: {error}", own.display()))?;
    let log = own.join("output.log");
    let opened = File::create(&log).and_then(|out| Ok((out.try_clone()?, out)));
    let (out, err) = opened.map_err(|error| format!("cannot write {}: {error}", log.display()))?;
    let mut command = Command::new(program()?);
    command.args(["start", "--cluster", "127.0.0.1:0", "--http", "127.0.0.1:0"]);
    command.args(["--memory", "256MiB", "--bucket", &bucket_in(folder)?]);
    command.arg("--data-dir").arg(own.join("node"));
    command.args(["--listen", &format!("127.0.0.1:{port}")]);
    command.stdin(Stdio::null()).stdout(out).stderr(err).kill_on_drop(true);
    let child = command.spawn().map_err(|error| format!("cannot start a node: {error}"))?;
    Ok((child, log))
}

/// The port in the line of what a node said that begins with `name`; 0 when there is none.
fn port_of(said: &str, name: &str) -> u16 {
    let line = said.lines().find_map(|line| line.trim_start().strip_prefix(name));
    let port = line.and_then(|line| line.split_whitespace().next()?.rsplit(':').next());
    port.and_then(|port| port.parse().ok()).unwrap_or_default()
}

impl Node {
    /// Starts node `number` of the cluster in `folder`; returns when it serves.
    pub async fn start(folder: &Path, number: u16) -> Result<Self, String> {
        let (child, log) = launch(folder, number, 0)?;
        let (id, folder) = (String::new(), folder.to_owned());
        let mut node = Self { number, child, port: 0, http: 0, id, folder };
        let begun = Instant::now();
        while node.port == 0 {
            let said = std::fs::read_to_string(&log).unwrap_or_default();
            if let Ok(Some(status)) = node.child.try_wait() {
                return Err(format!("node {number} ended ({status}): {}", said.trim()));
            }
            if said.lines().any(|line| line == "Ready.") {
                node.port = port_of(&said, "postgres");
                node.http = port_of(&said, "http");
            }
            if begun.elapsed() > OPENING {
                return Err(format!("node {number} does not open the database: {}", said.trim()));
            }
            tokio::time::sleep(AGAIN).await;
        }
        let client = sql::connect(&node.url()).await?;
        let row = client.query_one("SELECT node FROM telesto_nodes WHERE is_self", &[]).await;
        node.id = row.map_err(|error| sql::full(&error))?.get(0);
        Ok(node)
    }

    /// Where its clients find it.
    pub fn url(&self) -> String {
        url(&[self.port])
    }

    /// SIGKILL.
    pub async fn kill(&mut self) {
        let _ = self.child.start_kill();
        let _ = self.child.wait().await;
    }

    /// Starts a killed node, where it was.
    pub fn start_again(&mut self) -> Result<(), String> {
        self.child = launch(&self.folder, self.number, self.port)?.0;
        Ok(())
    }

    /// Ends the process, in good order if it can.
    pub async fn stop(&mut self) {
        let Some(id) = self.child.id() else { return };
        let asked = Command::new("kill").arg(id.to_string()).status().await;
        if !asked.is_ok_and(|status| status.success()) {
            let _ = self.child.start_kill();
        }
        if tokio::time::timeout(ENDING, self.child.wait()).await.is_err() {
            let _ = self.child.start_kill();
        }
    }

    async fn counted(&self) -> Result<(String, Counted), String> {
        let text = metrics(self.http).await.map_err(|error| {
            format!("node {} does not tell its measurements: {error}", self.number)
        })?;
        let process = self.child.id().ok_or("a node has ended; its output.log says why")?;
        let counted = Counted {
            messages: sum(&text, "telesto_net_sent_messages_total"),
            requests: sum(&text, "telesto_bucket_requests_total"),
            processor: processor(process)?,
        };
        Ok((text, counted))
    }
}

/// One URL with every node: a client tries them in turn.
pub fn url(ports: &[u16]) -> String {
    let hosts: Vec<String> = ports.iter().map(|port| format!("127.0.0.1:{port}")).collect();
    format!("postgres://telesto@{}/telesto", hosts.join(","))
}

/// The node that owns the log, as any node knows it.
pub async fn owner(url: &str) -> Option<String> {
    let client = sql::connect(url).await.ok()?;
    let row = client.query_one("SELECT owner FROM telesto_logs", &[]).await.ok()?;
    row.get(0)
}

/// A transaction that failed so has done nothing; 40003 is an outcome that is not known.
pub fn nothing_done(code: &str) -> bool {
    code.starts_with("40") && code != "40003"
}

/// What nodes have counted: until now, or in a while.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Counted {
    /// Messages to other nodes.
    pub messages: f64,
    /// Requests to the bucket.
    pub requests: f64,
    /// Seconds of processor time.
    pub processor: f64,
}

impl Counted {
    fn with(self, other: Self, of: impl Fn(f64, f64) -> f64) -> Self {
        Self {
            messages: of(self.messages, other.messages),
            requests: of(self.requests, other.requests),
            processor: of(self.processor, other.processor),
        }
    }

    /// What came after `before`.
    pub fn since(self, before: Self) -> Self {
        self.with(before, |now, then| now - then)
    }

    /// Without what an idle cluster does: `idle`, `times` over.
    pub fn less(self, idle: Self, times: f64) -> Self {
        self.with(idle, |all, idle| idle.mul_add(-times, all).max(0.0))
    }
}

/// The sum of a counter's series in a text of Prometheus' exposition format; 0 when there is none.
fn sum(text: &str, name: &str) -> f64 {
    let value = |line: &str| {
        let rest = line.strip_prefix(name)?;
        let value = rest.starts_with(['{', ' ']).then(|| rest.rsplit_once(' '))?;
        value?.1.parse::<f64>().ok()
    };
    text.lines().filter_map(value).sum()
}

/// Processor time of a process so far, seconds.
fn processor(process: u32) -> Result<f64, String> {
    let path = format!("/proc/{process}/stat");
    let stat = std::fs::read_to_string(&path).map_err(|error| format!("{path}: {error}"))?;
    // Behind the name, which may hold anything: state is the third field, user and system time the
    // 14th and 15th.
    let fields = stat.rsplit_once(')').map(|(_, behind)| behind).unwrap_or_default();
    let ticks = fields.split_whitespace().skip(11).take(2);
    let ticks: Vec<f64> = ticks.filter_map(|field| field.parse().ok()).collect();
    match ticks[..] {
        // Linux has 100 a second for all programs.
        [user, system] => Ok((user + system) / 100.0),
        _ => Err(format!("{path} is not as on Linux: {stat}")),
    }
}

/// A cluster that grows.
pub struct Cluster {
    folder: PathBuf,
    pub nodes: Vec<Node>,
}

impl Cluster {
    /// Without a node as yet.
    pub fn new(folder: &Path) -> Self {
        Self { folder: folder.to_owned(), nodes: Vec::new() }
    }

    /// Starts nodes until there are `count`; returns when the log has the copies it wants of that
    /// many: three, or one of one or two.
    pub async fn grow(&mut self, count: u16) -> Result<(), String> {
        while self.nodes.len() < usize::from(count) {
            let number = u16::try_from(self.nodes.len() + 1).unwrap_or(u16::MAX);
            self.nodes.push(Node::start(&self.folder, number).await?);
        }
        self.settled().await
    }

    async fn settled(&self) -> Result<(), String> {
        let copies = if self.nodes.len() < 3 { 1.0 } else { 3.0 };
        let begun = Instant::now();
        loop {
            let mut owning = 0;
            for node in &self.nodes {
                let following = sum(&node.counted().await?.0, "telesto_log_servers_following");
                owning += usize::from(following == copies);
            }
            if owning == 1 {
                return Ok(());
            }
            if begun.elapsed() > OPENING {
                let waited = OPENING.as_secs();
                return Err(format!(
                    "no node owns the log with {copies} copies after {waited} s; the nodes' output.log say why"
                ));
            }
            tokio::time::sleep(AGAIN).await;
        }
    }

    /// One URL for each.
    pub fn urls(&self) -> Vec<String> {
        self.nodes.iter().map(Node::url).collect()
    }

    /// What all have counted until now.
    pub async fn counted(&self) -> Result<Counted, String> {
        let mut all = Counted::default();
        for node in &self.nodes {
            all = all.with(node.counted().await?.1, |sum, one| sum + one);
        }
        Ok(all)
    }

    /// What all count in a second in which nobody asks anything, seen for `time`.
    pub async fn idle(&self, time: Duration) -> Result<Counted, String> {
        let (before, begun) = (self.counted().await?, Instant::now());
        tokio::time::sleep(time).await;
        let seconds = begun.elapsed().as_secs_f64();
        let counted = self.counted().await?.since(before);
        Ok(counted.with(counted, |counted, _| counted / seconds))
    }

    /// The place in `nodes` of the one that owns the log, as the others know it.
    pub async fn owner(&self) -> Result<usize, String> {
        let ports: Vec<u16> = self.nodes.iter().map(|node| node.port).collect();
        let owner = owner(&url(&ports)).await.unwrap_or_default();
        let at = self.nodes.iter().position(|node| node.id == owner);
        at.ok_or_else(|| format!("the node that owns the log, {owner:?}, is none of those started"))
    }

    /// Ends all.
    pub async fn stop(&mut self) {
        for node in &mut self.nodes {
            node.stop().await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn series_of_one_counter_are_summed_and_those_of_longer_names_are_not() {
        let text = "# HELP a counts\na{op=\"get\"} 2\na{op=\"put x\"} 3\na_more 7\nb 1.5\n";
        assert_eq!(sum(text, "a"), 5.0);
        assert_eq!(sum(text, "b"), 1.5);
        assert_eq!(sum(text, "c"), 0.0);
    }

    #[test]
    fn what_an_idle_cluster_does_is_taken_off_for_as_long_as_was_measured() {
        let idle = Counted { messages: 5.0, requests: 0.0, processor: 0.25 };
        let all = Counted { messages: 40.0, requests: 3.0, processor: 0.25 };
        let left = Counted { messages: 30.0, requests: 3.0, processor: 0.0 };
        assert_eq!(all.less(idle, 2.0), left);
    }
}
