//! Real processes for end-to-end tests: nodes that are started, frozen and killed, and S3 servers.
//!
//! # Invariants
//! - Every process started here is killed when its handle is dropped, and listens on 127.0.0.1
//!   only, or in a network namespace of its own.
//! - A missing server binary fails the test with the script to run; nothing is skipped.
//! - Nodes choose their ports themselves and print them: a port found free beforehand may be
//!   another's by then, and a node that could not take it would be mistaken for the other one.

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use tokio_postgres::{Client, NoTls};

/// Bound on every wait for a process, generous: it only ends tests that hang.
pub const PATIENCE: Duration = Duration::from_secs(120);

/// Tells the nodes of one test program apart.
static STARTED: AtomicUsize = AtomicUsize::new(0);

/// A TCP port nobody listens on now. Somebody may before it is used: for addresses where nobody
/// answers, and for servers that are started again elsewhere when they end.
pub fn free_port() -> u16 {
    TcpListener::bind(("127.0.0.1", 0)).and_then(|l| l.local_addr()).expect("a free port").port()
}

/// Where a node keeps its data.
#[derive(Clone, Debug)]
pub struct Place {
    pub bucket: String,
    pub log: &'static str,
    pub durability: &'static str,
    pub environment: Vec<(String, String)>,
    /// The program of its nodes; `None`: the one under test.
    pub program: Option<PathBuf>,
}

impl Place {
    pub fn folder(dir: &Path, log: &'static str, durability: &'static str) -> Self {
        let bucket = format!("file://{}", dir.display());
        Self { bucket, log, durability, environment: Vec::new(), program: None }
    }

    pub fn s3(
        server: &S3Server,
        prefix: &str,
        log: &'static str,
        durability: &'static str,
    ) -> Self {
        Self {
            bucket: format!("s3://telesto/{prefix}"),
            log,
            durability,
            environment: server.environment(),
            program: None,
        }
    }
}

impl Place {
    /// The same place as seen through a middlebox on `port` of this machine.
    pub fn through(mut self, port: u16) -> Self {
        for (name, value) in &mut self.environment {
            if name == "AWS_ENDPOINT_URL" {
                *value = format!("http://127.0.0.1:{port}");
            }
        }
        self
    }
}

/// The program: the one that cargo built for this test, else that of `TELESTO_BIN`.
pub fn program() -> PathBuf {
    let told = || std::env::var_os("TELESTO_BIN").map(PathBuf::from);
    let built = option_env!("CARGO_BIN_EXE_telesto").map(PathBuf::from);
    built.or_else(told).expect("set TELESTO_BIN to the telesto program")
}

/// The program of the demos, which cargo built for this test; it runs [`program`].
pub fn demo(arguments: &[&str]) -> Command {
    let built = option_env!("CARGO_BIN_EXE_telesto-demo").map(PathBuf::from);
    let mut command = Command::new(built.expect("a test of the demos"));
    command.args(arguments).env("TELESTO_BIN", program());
    command
}

/// Where a node runs, and how it is reached.
#[derive(Clone, Debug)]
pub struct Site {
    /// What its command line begins with, to run it elsewhere.
    pub through: Vec<String>,
    /// Its address for clients.
    pub host: String,
    /// Off loopback everybody must authenticate: the file of users, and their password.
    pub users: Option<(PathBuf, String)>,
}

impl Site {
    /// On this machine, for everybody.
    pub fn here() -> Self {
        Self { through: Vec::new(), host: "127.0.0.1".to_owned(), users: None }
    }
}

/// A running `telesto start`.
pub struct Node {
    child: Child,
    site: Site,
    pub port: u16,
    pub http: u16,
    log: PathBuf,
}

impl Node {
    /// Starts a node on `place` with its local files in `local` and waits until it answers.
    pub fn start(place: &Place, local: &Path, extra: &[&str]) -> Self {
        Self::launch(place, local, extra).unwrap_or_else(|log| panic!("node did not start:\n{log}"))
    }

    /// Starts a node on this machine; if it exits or never answers, returns what it printed.
    pub fn launch(place: &Place, local: &Path, extra: &[&str]) -> Result<Self, String> {
        Self::launch_at(place, local, extra, Site::here())
    }

    /// The same elsewhere.
    pub fn launch_at(
        place: &Place,
        local: &Path,
        extra: &[&str],
        site: Site,
    ) -> Result<Self, String> {
        std::fs::create_dir_all(local).expect("local folder");
        let log = local.join(format!("node-{}.log", STARTED.fetch_add(1, Ordering::Relaxed)));
        let output = File::create(&log).expect("log file");
        let program = place.program.clone().unwrap_or_else(program).display().to_string();
        let words: Vec<&String> = site.through.iter().chain([&program]).collect();
        let mut command = Command::new(words[0]);
        command
            .args(&words[1..])
            .args(["start", "--bucket", &place.bucket, "--log", place.log])
            .args(["--durability", place.durability])
            .args(["--listen", &format!("{}:0", site.host), "--http", "127.0.0.1:0"])
            .args(["--data-dir", &local.join("node").display().to_string()])
            .args(extra)
            .envs(place.environment.iter().map(|(k, v)| (k.as_str(), v.as_str())))
            .stdin(Stdio::null())
            .stdout(output.try_clone().expect("log file"))
            .stderr(output);
        if let Some((users, _)) = &site.users {
            command.arg("--auth-file").arg(users);
        }
        let child = command.spawn().expect("the telesto binary runs");
        let mut node = Self { child, site, port: 0, http: 0, log };
        let until = Instant::now() + PATIENCE;
        loop {
            let ended = node.child.try_wait().expect("child").is_some();
            if let Some((port, http)) = ports(&node.output()) {
                (node.port, node.http) = (port, http);
                // Its HTTP is on the loopback of its network namespace.
                let elsewhere = !node.site.through.is_empty();
                let healthy = |answer: String| answer.starts_with("HTTP/1.1 200");
                if elsewhere || node.get("/health").is_some_and(healthy) {
                    return Ok(node);
                }
            }
            if ended || Instant::now() > until {
                return Err(node.output());
            }
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// What the node printed.
    pub fn output(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// The raw answer to an HTTP GET.
    pub fn get(&self, path: &str) -> Option<String> {
        let mut stream = TcpStream::connect(("127.0.0.1", self.http)).ok()?;
        stream.set_read_timeout(Some(PATIENCE)).ok()?;
        write!(stream, "GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
            .ok()?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).ok()?;
        Some(answer)
    }

    /// Where clients find it.
    pub fn url(&self) -> String {
        let password =
            self.site.users.as_ref().map(|(_, password)| format!(" password={password}"));
        let (host, port) = (&self.site.host, self.port);
        let password = password.unwrap_or_default();
        format!("host={host} port={port} user=telesto dbname=telesto{password}")
    }

    /// Connects over the Postgres wire.
    pub async fn connect(&self) -> Result<Client, tokio_postgres::Error> {
        let url = self.url();
        let (client, connection) = tokio_postgres::connect(&url, NoTls).await?;
        tokio::spawn(connection);
        Ok(client)
    }

    /// Its process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// SIGKILL, then wait until it is gone.
    pub fn kill(mut self) {
        signal(&self.child, "-KILL");
        self.child.wait().expect("child");
    }

    /// SIGSTOP.
    pub fn freeze(&self) {
        signal(&self.child, "-STOP");
    }

    /// SIGCONT.
    pub fn thaw(&self) {
        signal(&self.child, "-CONT");
    }

    /// SIGUSR2: the program on disk takes its place, with its clients. Waits until it is ready.
    pub fn replace(&self) {
        let ready = || self.output().lines().filter(|line| *line == "Ready.").count();
        let before = ready();
        signal(&self.child, "-USR2");
        let until = Instant::now() + PATIENCE;
        while ready() == before {
            assert!(Instant::now() < until, "not replaced:\n{}", self.output());
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// SIGTERM; returns whether it ended by itself with exit code 0.
    pub fn stop(mut self) -> bool {
        signal(&self.child, "-TERM");
        let until = Instant::now() + PATIENCE;
        while Instant::now() < until {
            if let Some(status) = self.child.try_wait().expect("child") {
                if !status.success() {
                    println!("the node ended with {status}:\n{}", self.output());
                }
                return status.success();
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        false
    }

    /// A line of `/proc/<pid>/status`, kB.
    pub fn memory_kb(&self, field: &str) -> u64 {
        let path = format!("/proc/{}/status", self.child.id());
        let text = std::fs::read_to_string(path).expect("a live process");
        let line = text.lines().find(|line| line.starts_with(field)).expect("the field");
        line.split_whitespace().nth(1).expect("a number").parse().expect("a number")
    }
}

fn signal(child: &Child, signal: &str) {
    let status = Command::new("kill").args([signal, &child.id().to_string()]).status();
    assert!(status.expect("kill runs").success(), "kill {signal}");
}

/// The ports for Postgres and HTTP that a node says it serves, once it is ready.
fn ports(said: &str) -> Option<(u16, u16)> {
    let port = |name: &str| {
        let line = said.lines().find_map(|line| line.trim_start().strip_prefix(name))?;
        line.split_whitespace().next()?.rsplit_once(':')?.1.parse().ok()
    };
    said.lines().any(|line| line == "Ready.").then(|| Some((port("postgres ")?, port("http ")?)))?
}

impl Drop for Node {
    fn drop(&mut self) {
        // A frozen process cannot die before it is thawed.
        let _ = Command::new("kill")
            .args(["-CONT", &self.child.id().to_string()])
            .stderr(Stdio::null())
            .status();
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A running S3 server with a bucket `telesto`.
pub struct S3Server {
    kind: &'static str,
    child: Child,
    port: u16,
    dir: tempfile::TempDir,
}

impl S3Server {
    /// Starts `versitygw` or `minio`.
    pub fn start(kind: &'static str) -> Self {
        let dir = tempfile::tempdir().expect("temporary folder");
        std::fs::create_dir(dir.path().join("telesto")).expect("bucket folder");
        let binary = Self::binary(kind);
        assert!(
            binary.exists(),
            "{} is missing: run tests/servers/ensure.sh first",
            binary.display()
        );
        let until = Instant::now() + PATIENCE;
        let port = free_port();
        let child = Self::launch(kind, dir.path(), port);
        let mut server = Self { kind, child, port, dir };
        loop {
            // Ended: somebody else took the port meanwhile, and answers there.
            if server.child.try_wait().expect("child").is_some() {
                server.port = free_port();
                server.child = Self::launch(kind, server.dir.path(), server.port);
            } else if TcpStream::connect(("127.0.0.1", server.port)).is_ok() {
                // A server that cannot have its port takes a moment to end.
                std::thread::sleep(Duration::from_millis(200));
                if server.child.try_wait().expect("child").is_none() {
                    return server;
                }
            }
            assert!(Instant::now() < until, "{kind} does not start on 127.0.0.1:{}", server.port);
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// SIGSTOP: requests hang.
    pub fn freeze(&self) {
        signal(&self.child, "-STOP");
    }

    /// SIGCONT.
    pub fn thaw(&self) {
        signal(&self.child, "-CONT");
    }

    /// SIGKILL: nobody listens.
    pub fn end(&mut self) {
        self.child.kill().expect("killed");
        self.child.wait().expect("child");
    }

    /// Starts it again where it was, after [`Self::end`].
    pub fn again(&mut self) {
        let until = Instant::now() + PATIENCE;
        self.child = Self::launch(self.kind, self.dir.path(), self.port);
        while TcpStream::connect(("127.0.0.1", self.port)).is_err() {
            if self.child.try_wait().expect("child").is_some() {
                // A connection of the one before may hold the port for a moment.
                self.child = Self::launch(self.kind, self.dir.path(), self.port);
            }
            assert!(Instant::now() < until, "{} does not start again", self.kind);
            std::thread::sleep(Duration::from_millis(100));
        }
    }

    fn launch(kind: &str, folder: &Path, port: u16) -> Child {
        let address = format!("127.0.0.1:{port}");
        let folder = folder.display().to_string();
        let mut command = Command::new(Self::binary(kind));
        match kind {
            "versitygw" => {
                command.env("ROOT_ACCESS_KEY", "admin").env("ROOT_SECRET_KEY", "adminadmin");
                command.args(["--port", &address, "--keep-alive", "--quiet", "posix", &folder]);
            }
            "minio" => {
                command.env("MINIO_ROOT_USER", "admin").env("MINIO_ROOT_PASSWORD", "adminadmin");
                command.env("MINIO_BROWSER", "off");
                command.args(["server", "--quiet", "--address", &address, &folder]);
            }
            other => panic!("no S3 server {other}"),
        }
        command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("the S3 server runs")
    }

    fn binary(kind: &str) -> PathBuf {
        let home = std::env::var("HOME").expect("HOME");
        PathBuf::from(home).join(".cache/telesto/bin").join(kind)
    }

    /// The port on 127.0.0.1 that it listens on.
    pub fn port(&self) -> u16 {
        self.port
    }

    fn environment(&self) -> Vec<(String, String)> {
        [
            ("AWS_ACCESS_KEY_ID", "admin".to_owned()),
            ("AWS_SECRET_ACCESS_KEY", "adminadmin".to_owned()),
            ("AWS_REGION", "us-east-1".to_owned()),
            ("AWS_ALLOW_HTTP", "true".to_owned()),
            ("AWS_ENDPOINT_URL", format!("http://127.0.0.1:{}", self.port)),
        ]
        .into_iter()
        .map(|(name, value)| (name.to_owned(), value))
        .collect()
    }
}

impl Drop for S3Server {
    fn drop(&mut self) {
        // A SIGKILL ends a frozen process, too.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// How often: `TELESTO_KILLS` for the long run, otherwise `short`.
pub fn rounds(short: usize) -> usize {
    std::env::var("TELESTO_KILLS").ok().and_then(|n| n.parse().ok()).unwrap_or(short)
}
