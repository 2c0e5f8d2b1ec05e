//! Three nodes of one cluster, each of which may be gone for a while, and who of them owns the log.
//!
//! # Invariants
//! How they are started, and where they run, is what tests differ in: they start them, and put them
//! here.

use std::path::PathBuf;
use std::process::Command;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::harness::{Node, PATIENCE, Place, program};

/// Nodes of a cluster.
pub const NODES: usize = 3;

/// All nodes.
pub fn all() -> Vec<usize> {
    (0..NODES).collect()
}

/// All but one.
pub fn others(than: usize) -> Vec<usize> {
    (0..NODES).filter(|index| *index != than).collect()
}

/// Whether the node that `telesto cluster nodes` says this of owns the log.
pub fn owns(answer: &Value) -> bool {
    answer["status"]["live"]["owns"] == true
}

/// By how many servers its log is kept.
pub fn following(answer: &Value) -> usize {
    let servers = answer["status"]["servers"].as_array().expect("servers");
    servers.iter().filter(|one| one["state"] == "following").count()
}

/// Three nodes.
pub struct Three {
    nodes: Vec<Option<Node>>,
    pub place: Place,
    locals: Vec<PathBuf>,
    /// Where clients find each: it may be elsewhere each time that it starts.
    pub urls: Vec<Arc<Mutex<String>>>,
    _directory: tempfile::TempDir,
}

impl Three {
    /// None of them runs yet. `locals`: a folder for each, else ones in `directory`, which is
    /// removed with the handle.
    pub fn new(directory: tempfile::TempDir, place: Place, locals: Option<Vec<PathBuf>>) -> Self {
        let own = |index: usize| directory.path().join(index.to_string());
        let locals = locals.unwrap_or_else(|| (0..NODES).map(own).collect());
        let nodes = (0..NODES).map(|_| None).collect();
        let urls = (0..NODES).map(|_| Arc::default()).collect();
        Self { nodes, place, locals, urls, _directory: directory }
    }

    /// On a bucket that is a folder.
    pub fn on_folder(locals: Option<Vec<PathBuf>>) -> Self {
        let directory = tempfile::tempdir().expect("temporary folder");
        let place = Place::folder(&directory.path().join("bucket"), "quorum", "quorum");
        Self::new(directory, place, locals)
    }

    /// The folder of one.
    pub fn local(&self, index: usize) -> PathBuf {
        self.locals[index].clone()
    }

    /// One has started.
    pub fn put(&mut self, index: usize, node: Node) {
        *self.urls[index].lock().expect("no panic") = node.url();
        self.nodes[index] = Some(node);
    }

    pub fn node(&self, index: usize) -> &Node {
        self.nodes[index].as_ref().expect("it runs")
    }

    /// One is to be ended.
    pub fn take(&mut self, index: usize) -> Node {
        self.nodes[index].take().expect("it runs")
    }

    /// What `telesto cluster nodes` says.
    fn asked(&self) -> Value {
        let mut command = Command::new(program());
        command.args(["cluster", "nodes", "--json", "--bucket", &self.place.bucket]);
        let output = command.output().expect("the telesto binary runs");
        let said = String::from_utf8_lossy(&output.stdout);
        serde_json::from_str(&said).unwrap_or_else(|error| {
            panic!("{error}: {said}\n{}", String::from_utf8_lossy(&output.stderr))
        })
    }

    /// The node that owns the log, once one does of which, and of all that answer, `settled` is
    /// true.
    pub async fn owner_when(&self, settled: impl Fn(&Value, &[Value]) -> bool) -> usize {
        let until = Instant::now() + PATIENCE;
        loop {
            let asked = self.asked();
            let answers = asked.as_array().expect("a list");
            for answer in answers.iter().filter(|answer| owns(answer)) {
                let pid = answer["record"]["pid"].as_u64();
                let owner = (0..NODES).find(|index| {
                    self.nodes[*index].as_ref().map(|node| u64::from(node.pid())) == pid
                });
                if let Some(owner) = owner.filter(|_| settled(answer, answers)) {
                    return owner;
                }
            }
            assert!(Instant::now() < until, "nobody owns the log: {asked:#}");
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }
}
