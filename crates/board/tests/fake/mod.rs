//! A simulated target and a store in memory, whose faults the test chooses.

#![allow(dead_code, reason = "each test program uses a part")]

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use parking_lot::Mutex;
use telesto_board::history::Row;
use telesto_board::store::Store;
use telesto_board::target::{Failure, Kind, Lane, Target, value};
use telesto_board::{Error, Named, Result};
use telesto_testkit::World;
use telesto_testkit::world::Process;

/// How long the target takes when nothing is wrong.
pub const USUAL: Duration = Duration::from_millis(5);

/// A server in a simulated process. Clones are the same server.
#[derive(Clone, Debug)]
pub struct Server {
    world: World,
    state: Arc<Mutex<State>>,
}

#[derive(Debug)]
struct State {
    process: Process,
    incarnation: u64,
    records: BTreeSet<u64>,
    /// Of 100 operations so many take so long.
    brown_out: Option<(u64, Duration)>,
    slowed: u64,
    refuses: bool,
    /// The board's own system lets it open nothing more.
    exhausted: bool,
    lies: bool,
    asked: u64,
    load_fails_after: Option<u64>,
}

impl Server {
    /// A server that has records `0..records`.
    pub fn new(world: &World, records: u64) -> Self {
        let state = State {
            process: world.process("server", 0),
            incarnation: 0,
            records: (0..records).collect(),
            brown_out: None,
            slowed: 0,
            refuses: false,
            exhausted: false,
            lies: false,
            asked: 0,
            load_fails_after: None,
        };
        Self { world: world.clone(), state: Arc::new(Mutex::new(state)) }
    }

    pub fn named(&self) -> Vec<Named> {
        vec![Named { name: "server".to_owned(), target: Arc::new(self.clone()) }]
    }

    pub fn freeze(&self) {
        self.state.lock().process.freeze();
    }

    pub fn thaw(&self) {
        self.state.lock().process.thaw();
    }

    pub fn kill(&self) {
        self.state.lock().process.kill();
    }

    pub fn restart(&self) {
        let mut state = self.state.lock();
        state.incarnation += 1;
        state.process = self.world.process("server", state.incarnation);
    }

    pub fn brown_out(&self, slow: Option<(u64, Duration)>) {
        self.state.lock().brown_out = slow;
    }

    /// Operations that were made to be slow.
    pub fn slowed(&self) -> u64 {
        self.state.lock().slowed
    }

    /// Operations asked of it, loading aside.
    pub fn asked(&self) -> u64 {
        self.state.lock().asked
    }

    pub fn refuse(&self, refuses: bool) {
        self.state.lock().refuses = refuses;
    }

    pub fn exhaust(&self, exhausted: bool) {
        self.state.lock().exhausted = exhausted;
    }

    pub fn lie(&self, lies: bool) {
        self.state.lock().lies = lies;
    }

    pub fn fail_loading_after(&self, ranges: Option<u64>) {
        self.state.lock().load_fails_after = ranges;
    }

    pub fn remove(&self, record: u64) {
        self.state.lock().records.remove(&record);
    }

    pub fn records(&self) -> usize {
        self.state.lock().records.len()
    }
}

/// A connection to one incarnation of the server.
struct Session {
    server: Server,
    process: Process,
}

impl Session {
    /// The server's work: in its process, so that it stands still and dies with it.
    async fn work(&self) -> std::result::Result<(), Failure> {
        let takes = {
            let mut state = self.server.state.lock();
            state.asked += 1;
            match state.brown_out {
                Some((share, takes)) if self.server.world.draw(100) < share => {
                    state.slowed += 1;
                    takes
                }
                _ => USUAL,
            }
        };
        let clock = Arc::clone(&self.process.env.clock);
        let done = self.process.run(async move { clock.sleep(takes).await }).await;
        done.ok_or_else(|| Failure::new(Kind::Unreachable, "connection reset"))?;
        if self.server.state.lock().refuses {
            return Err(Failure::new(Kind::Rejected, "53300 too many clients"));
        }
        Ok(())
    }
}

#[async_trait]
impl Target for Server {
    fn address(&self) -> &str {
        "fake://server"
    }

    async fn open(&self) -> std::result::Result<Box<dyn Lane>, Failure> {
        let (process, exhausted) = {
            let state = self.state.lock();
            (state.process.clone(), state.exhausted)
        };
        if exhausted {
            let error = std::io::Error::from_raw_os_error(24);
            return Err(Failure::of(Kind::Unreachable, &error));
        }
        let connected = process.run(async {}).await;
        connected.ok_or_else(|| Failure::new(Kind::Unreachable, "connection refused"))?;
        Ok(Box::new(Session { server: self.clone(), process }))
    }
}

#[async_trait]
impl Lane for Session {
    async fn read(&mut self, record: u64) -> std::result::Result<Option<String>, Failure> {
        self.work().await?;
        let state = self.server.state.lock();
        if !state.records.contains(&record) {
            return Ok(None);
        }
        Ok(Some(value(record + u64::from(state.lies), 1)))
    }

    async fn update(&mut self, record: u64, value: &str) -> std::result::Result<(), Failure> {
        self.work().await?;
        assert!(telesto_board::target::belongs(record, value));
        if self.server.state.lock().records.contains(&record) {
            return Ok(());
        }
        Err(Failure::new(Kind::Wrong, "no such record"))
    }

    async fn load(&mut self, records: Range<u64>) -> std::result::Result<(), Failure> {
        self.work().await?;
        let mut state = self.server.state.lock();
        match &mut state.load_fails_after {
            Some(0) => return Err(Failure::new(Kind::Rejected, "53100 disk full")),
            Some(left) => *left -= 1,
            None => {}
        }
        state.records.extend(records);
        Ok(())
    }

    fn usable(&self) -> bool {
        !self.process.is_dead()
    }
}

/// A store in memory.
#[derive(Clone, Debug, Default)]
pub struct Memory(Arc<Mutex<Stored>>);

#[derive(Debug, Default)]
struct Stored {
    rows: BTreeMap<String, Row>,
    fails: bool,
    replaced: bool,
    writes: u64,
}

impl Memory {
    pub fn fail(&self, fails: bool) {
        self.0.lock().fails = fails;
    }

    pub fn replace(&self) {
        self.0.lock().replaced = true;
    }

    pub fn rows(&self) -> Vec<Row> {
        self.0.lock().rows.values().cloned().collect()
    }

    /// Rows written, the same one twice counting twice.
    pub fn writes(&self) -> u64 {
        self.0.lock().writes
    }
}

#[async_trait]
impl Store for Memory {
    async fn open(&self) -> Result<Vec<Row>> {
        Ok(self.rows())
    }

    async fn write(&self, rows: &[Row], _now: i64) -> Result<()> {
        let mut stored = self.0.lock();
        if stored.replaced {
            return Err(Error::Replaced("board".to_owned()));
        }
        if stored.fails {
            let address = "memory".to_owned();
            return Err(Error::Store { address, reason: "it fails".to_owned() });
        }
        stored.writes += rows.len() as u64;
        for row in rows {
            let key = format!("{:?} {:?} {}", row.key, row.resolution, row.start);
            stored.rows.insert(key, row.clone());
        }
        Ok(())
    }
}
