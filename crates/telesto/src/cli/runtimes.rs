//! The process's threads: which work can hold up which.
//!
//! ```text
//! core      listeners, starts of clients, cancel requests, HTTP and health, signals, every timer,
//!           log, committer, folds                                        no statement runs here
//! sessions  sockets of sessions, statements that surely are short;
//!           what may compute leaves its worker to another thread          (`Spawn::compute`)
//! commits   what each commit waits for: the committer, the sequencer, messages between nodes,
//!           log servers (not the disk)                                    one thread; while the committer of a lone node
//!                                                                         waits for its disk, another goes on
//! watch     one thread that wakes the sessions' runtime every 20 ms
//! prober    one thread that asks this node questions as a client would, with --probe
//! ```
//!
//! # Invariants
//! - No statement's code runs on a worker of the core, or on that of commits.
//! - Commits have one thread: its tasks are short, and wait for each other. To hand one to another
//!   thread takes longer than what it does, and wakes a thread that something else has a use for.
//! - The sessions' runtime always has threads left to hand a worker to: as many as statements may
//!   compute, and some.
//!
//! # On failure
//! A statement that holds a worker all the same (its form promised to be short) holds that worker
//! alone: the watch has another worker take the driver over.
//!
//! # Limits
//! Linux shares the cores between threads that compute and those that wait for little; there is no
//! priority.

use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::time::Duration;

use tokio::runtime::{Builder, Handle, Runtime};

/// How long a thread for blocking work is kept idle: the allocator gives what one holds back when
/// it ends.
const KEEP_BLOCKING_THREADS: Duration = Duration::from_secs(1);

/// Stack of a thread, bytes. Definitions run queries inside of statements, and unoptimised frames
/// of that are large: with the default of 2 MiB, ALTER TABLE … ADD FOREIGN KEY overflowed it in a
/// development build. Only what is used takes memory.
const STACK_BYTES: usize = 16 << 20;

/// Memory of a node per thread for blocking work, bytes.
const MEMORY_OF_A_BLOCKING_THREAD: u64 = 8 << 20;
/// Memory of a node per statement that computes, bytes.
const MEMORY_OF_A_COMPUTING_THREAD: u64 = 16 << 20;
/// How often the sessions' runtime is woken.
const WATCH_EVERY: Duration = Duration::from_millis(20);

/// The runtimes of a process.
pub struct Runtimes {
    core: Runtime,
    node: Option<Node>,
}

/// What only a node has.
struct Node {
    sessions: Runtime,
    commits: Runtime,
    /// The watch ends when this is dropped.
    _watch: Sender<()>,
}

impl Runtimes {
    /// Starts them for a node of this much memory, bytes; `None`: for a command that is no node.
    ///
    /// # Errors
    /// The system's, when it has no threads.
    pub fn start(memory: Option<u64>) -> std::io::Result<Self> {
        let blocking = blocking_threads(memory);
        let core = runtime("core", None, blocking)?;
        let node = match memory {
            None => None,
            Some(memory) => {
                let sessions = runtime("sessions", None, blocking + computing(memory))?;
                // The second thread takes over while the first waits for a disk in place.
                let commits = runtime("commits", Some(1), 1)?;
                let watch = watch(sessions.handle().clone())?;
                Some(Node { sessions, commits, _watch: watch })
            }
        };
        Ok(Self { core, node })
    }

    /// What no statement holds up.
    pub fn core(&self) -> &Runtime {
        &self.core
    }

    /// Where clients' sessions belong.
    pub fn sessions(&self) -> &Handle {
        self.node.as_ref().map_or(self.core.handle(), |node| node.sessions.handle())
    }

    /// Where what each commit waits for belongs.
    pub fn commits(&self) -> &Handle {
        self.node.as_ref().map_or(self.core.handle(), |node| node.commits.handle())
    }

    /// Ends them without waiting for what blocks (a terminal being read) or computes.
    pub fn stop(self) {
        if let Some(node) = self.node {
            node.sessions.shutdown_background();
            node.commits.shutdown_background();
        }
        self.core.shutdown_background();
    }
}

/// A runtime of one thread for the node's own prober: what it measures does not run where it
/// measures.
///
/// # Errors
/// The system's.
pub fn probing() -> std::io::Result<Runtime> {
    Builder::new_multi_thread()
        .worker_threads(1)
        .max_blocking_threads(1)
        .enable_all()
        .thread_name("prober")
        .build()
}

/// Statements that compute at once in a node of this much memory, bytes.
#[must_use]
pub fn computing(memory: u64) -> usize {
    usize::try_from(memory / MEMORY_OF_A_COMPUTING_THREAD).unwrap_or(usize::MAX).clamp(8, 64)
}

/// Threads for blocking work (files of a bucket folder, of the log and of spilled rows). Each holds
/// memory of its own, up to some megabytes, so their number is part of the memory bound and small
/// where that is small; no such work waits for other such work, so a bound cannot hold it up for
/// good.
fn blocking_threads(memory: Option<u64>) -> usize {
    let most = 16 + 4 * std::thread::available_parallelism().map_or(1, usize::from);
    let Some(memory) = memory else { return most };
    usize::try_from(memory / MEMORY_OF_A_BLOCKING_THREAD).unwrap_or(most).clamp(8, most)
}

/// `workers`: as many as the machine has cores, if it is not said.
fn runtime(
    name: &'static str,
    workers: Option<usize>,
    blocking: usize,
) -> std::io::Result<Runtime> {
    let mut builder = Builder::new_multi_thread();
    if let Some(workers) = workers {
        builder.worker_threads(workers);
    }
    builder
        .enable_all()
        .thread_name(name)
        .thread_stack_size(STACK_BYTES)
        .max_blocking_threads(blocking)
        .thread_keep_alive(KEEP_BLOCKING_THREADS);
    telesto_bucket::meter::follow_tasks(&mut builder).build()
}

/// A worker that begins to run a task when its driver woke it does not tell another to watch the
/// driver meanwhile. A task that comes from outside wakes an idle worker, which finds nothing to do
/// and watches the driver.
fn watch(sessions: Handle) -> std::io::Result<Sender<()>> {
    let (watch, ends) = mpsc::channel::<()>();
    std::thread::Builder::new().name("watch".to_owned()).spawn(move || {
        while ends.recv_timeout(WATCH_EVERY) == Err(RecvTimeoutError::Timeout) {
            sessions.spawn(async {});
        }
    })?;
    Ok(watch)
}
