//! Three nodes of one cluster, each in a network namespace of its own, whose connections to each
//! other can be cut in either direction. Clients reach all of them whatever is cut.
//!
//! ```text
//!              bridge .254 (clients, commands)
//!        ┌────────────┼────────────┐
//!      .1 eth0      .2 eth0      .3 eth0       one direction is cut at its sender: its neighbour table
//! ```
//! # Invariants
//! - What is cut is lost in silence: the sender knows the receiver by an Ethernet address that
//!   nobody has.
//! - Nothing else in the machine's network is changed; namespaces and the bridge go with their
//!   handle.
//!
//! # On failure
//! Panics and says what is missing: it takes root, and a kernel with network namespaces, veth and
//! bridges.

use std::io::Write as _;
use std::ops::{Deref, DerefMut};
use std::path::PathBuf;
use std::process::{Command, Stdio};

use crate::harness::{Node, Site, program};
use crate::three::{NODES, Three, all, following, owns};

const PASSWORD: &str = "secret";
/// An Ethernet address that nobody has.
const NOBODY: &str = "02:00:00:00:00:fe";

/// The namespaces.
pub struct Nets {
    tag: u32,
    subnet: String,
}

fn ip(line: &str) {
    let output = Command::new("ip").args(line.split(' ')).output();
    let output = output.expect("ip runs (Debian package iproute2)");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "`ip {line}` (it takes root): {said}");
}

impl Nets {
    /// Makes them.
    pub fn new() -> Self {
        let tag = std::process::id();
        let subnet = format!("10.{}.{}", 64 + (tag >> 8) % 128, tag % 256);
        let nets = Self { tag, subnet };
        let mut lines = format!(
            "link add tb{tag} type bridge\nlink set tb{tag} up\naddress add {}.254/24 dev tb{tag}\n",
            nets.subnet
        );
        for index in 0..NODES {
            let (name, mac, host) = (nets.name(index), mac(index), nets.host(index));
            lines += &format!(
                "netns add {name}\nlink add tv{tag}-{index} type veth peer name eth0 address {mac} netns {name}\n\
                 link set tv{tag}-{index} master tb{tag} up\n"
            );
            lines += &format!(
                "-n {name} link set lo up\n-n {name} address add {host}/24 dev eth0\n-n {name} link set eth0 up\n"
            );
        }
        lines.lines().for_each(ip);
        nets.heal();
        nets
    }

    fn name(&self, index: usize) -> String {
        format!("telesto-{}-{index}", self.tag)
    }

    /// The address of node `index`.
    pub fn host(&self, index: usize) -> String {
        format!("{}.{}", self.subnet, index + 1)
    }

    /// What runs a program there.
    pub fn through(&self, index: usize) -> Vec<String> {
        ["ip", "netns", "exec", &self.name(index)].map(str::to_owned).into()
    }

    /// From now on `from` knows `to` by the address `mac`.
    fn point(&self, pairs: &[(usize, usize)], mac: impl Fn(usize) -> String) {
        for from in 0..NODES {
            let mut command = Command::new("ip");
            command.args(["-n", &self.name(from), "-batch", "-"]);
            let lines: String = pairs
                .iter()
                .filter(|(sender, _)| *sender == from)
                .map(|(_, to)| {
                    let (host, mac) = (self.host(*to), mac(*to));
                    format!("neighbour replace {host} lladdr {mac} dev eth0 nud permanent\n")
                })
                .collect();
            if lines.is_empty() {
                continue;
            }
            let mut child = command.stdin(Stdio::piped()).spawn().expect("ip runs");
            child.stdin.take().expect("piped").write_all(lines.as_bytes()).expect("written");
            assert!(
                child.wait().expect("ip ends").success(),
                "ip refuses (it takes root): {lines}"
            );
        }
    }

    /// Nothing of what the first of each pair sends reaches the second.
    pub fn cut(&self, pairs: &[(usize, usize)]) {
        self.point(pairs, |_| NOBODY.to_owned());
    }

    /// Everybody reaches everybody.
    pub fn heal(&self) {
        let all: Vec<_> =
            (0..NODES).flat_map(|from| (0..NODES).map(move |to| (from, to))).collect();
        let pairs: Vec<_> = all.into_iter().filter(|(from, to)| from != to).collect();
        self.point(&pairs, mac);
    }
}

fn mac(index: usize) -> String {
    format!("02:54:00:00:00:0{}", index + 1)
}

impl Drop for Nets {
    fn drop(&mut self) {
        let mut lines: String =
            (0..NODES).map(|index| format!("netns del {}\n", self.name(index))).collect();
        lines += &format!("link del tb{}\n", self.tag);
        for line in lines.lines() {
            // What could not be made cannot be removed.
            let _ = Command::new("ip").args(line.split(' ')).stderr(Stdio::null()).status();
        }
    }
}

/// Both directions between `one` and each of `others`.
pub fn both(one: usize, others: &[usize]) -> Vec<(usize, usize)> {
    others.iter().flat_map(|other| [(one, *other), (*other, one)]).collect()
}

/// Three nodes in them.
pub struct Trio {
    /// Before the namespaces: nodes end first.
    three: Three,
    pub nets: Nets,
    users: PathBuf,
    _directory: tempfile::TempDir,
}

impl Trio {
    /// Starts them; `locals`: a folder for each, else temporary ones.
    pub fn start(locals: Option<Vec<PathBuf>>) -> Self {
        let directory = tempfile::tempdir().expect("temporary folder");
        let users = directory.path().join("users");
        std::fs::write(&users, hashed()).expect("a file of users");
        let (three, nets) = (Three::on_folder(locals), Nets::new());
        let mut trio = Self { three, nets, users, _directory: directory };
        for index in all() {
            trio.begin(index);
        }
        trio
    }

    /// Starts one.
    pub fn begin(&mut self, index: usize) {
        let host = self.nets.host(index);
        let users = Some((self.users.clone(), PASSWORD.to_owned()));
        let site = Site { through: self.nets.through(index), host: host.clone(), users };
        let extra = ["--cluster", &format!("{host}:0"), "--memory", "256MiB"];
        let node = Node::launch_at(&self.place, &self.local(index), &extra, site);
        let node = node.unwrap_or_else(|log| panic!("node {index} did not start:\n{log}"));
        self.put(index, node);
    }

    /// The node that owns the log, once one does, its log is kept by all three, and all hear each
    /// other.
    pub async fn owner(&self) -> usize {
        self.owner_when(|owner, answers| {
            let all_heard = answers.iter().all(|answer| {
                let hears = answer["status"]["live"]["hears"].as_array();
                hears.is_some_and(|hears| hears.len() == NODES - 1)
            });
            let alone = answers.iter().filter(|answer| owns(answer)).count() == 1;
            alone && all_heard && following(owner) == NODES
        })
        .await
    }
}

impl Deref for Trio {
    type Target = Three;
    fn deref(&self) -> &Three {
        &self.three
    }
}

impl DerefMut for Trio {
    fn deref_mut(&mut self) -> &mut Three {
        &mut self.three
    }
}

/// A line of the file of users.
fn hashed() -> Vec<u8> {
    let mut child = Command::new(program())
        .args(["hash-password", "telesto"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("the telesto binary runs");
    child.stdin.take().expect("piped").write_all(PASSWORD.as_bytes()).expect("written");
    child.wait_with_output().expect("it ends").stdout
}
