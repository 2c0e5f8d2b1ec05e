//! A running board: its probes, its history, its store.
//!
//! ```text
//!   pulse ----------------------------------------------.
//!   prepare, per target: has it its records? load ------+--> probes, per target and operation --> history
//!   keep, every 10 s: seal, write what changed to the store <---------------------------------------'
//! ```
//!
//! # Invariants
//! - A target that loads records is not probed; one that cannot be reached is, and fails.
//! - Changed rows stay changed until a write of them was acknowledged.
//!
//! # On failure
//! Preparing a target is tried again every [`AGAIN`]. A store that fails is written to again at the
//! next round.
//!
//! # Limits
//! Targets are those that it was started with.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use futures::channel::oneshot;
use parking_lot::Mutex;
use telesto_common::Env;
use telesto_common::env::Task;

use crate::error::{Error, Result};
use crate::figures::{self, Column, Terms, Window};
use crate::history::{Key, Resolution, Row, Series};
use crate::load::load;
use crate::probe::{Asking, Probe};
use crate::pulse::Pulse;
use crate::report::{LastFailure, OperationReport, Report, StoreReport, TargetReport};
use crate::store::Store;
use crate::tally::LONGEST_MICROS;
use crate::target::{Operation, Target};

/// Between two rounds of sealing and writing.
const KEEP_EVERY: Duration = Duration::from_secs(10);
/// How long a write to the store may take.
const STORE_PATIENCE: Duration = Duration::from_secs(10);
/// Between two tries to prepare a target.
const AGAIN: Duration = Duration::from_secs(5);
/// A store may be so far ahead of the clock, seconds.
const AHEAD_SECONDS: i64 = 3_600;
/// Most operations a second of one target and operation.
const MAX_RATE: f64 = 10_000.0;

/// How a board probes.
#[derive(Clone, Debug)]
pub struct Options {
    /// The board's name: where it looks from. Boards that share a store have different names.
    pub name: String,
    /// Operations a second, of each target and operation.
    pub rate: f64,
    /// Records of each target.
    pub records: u64,
    /// From when an operation is due until it is given up.
    pub timeout: Duration,
    /// Within what an operation must succeed to count as available.
    pub limit: Duration,
    /// Most connections to a target for each operation.
    pub lanes: usize,
    /// Most operations that wait for one of them; more that are due fail.
    pub waiting: usize,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            name: "board".to_owned(),
            rate: 10.0,
            records: 1_000_000,
            timeout: Duration::from_secs(30),
            limit: Duration::from_secs(5),
            lanes: 16,
            waiting: 1_000,
        }
    }
}

impl Options {
    fn check(&self) -> Result<()> {
        let longest = Duration::from_micros(LONGEST_MICROS);
        let refused = if !(self.rate > 0.0 && self.rate <= MAX_RATE) {
            format!("a rate of {} is refused: give more than 0, at most {MAX_RATE}", self.rate)
        } else if self.records == 0 || self.records >= 1_000_000_000_000 {
            "there must be at least one record, and less than 10^12".to_owned()
        } else if self.timeout.is_zero() || self.timeout > longest {
            format!("a time limit of {:?} is refused: give at most {longest:?}", self.timeout)
        } else if self.limit.is_zero() || self.limit > self.timeout {
            "the limit of availability must be between 0 and the time limit".to_owned()
        } else if self.lanes == 0 || self.waiting == 0 {
            "there must be room for at least one operation".to_owned()
        } else {
            return Ok(());
        };
        Err(Error::Option(refused))
    }
}

/// A target with the name it is shown under.
#[derive(Clone, Debug)]
pub struct Named {
    /// The name; different for each target of a board.
    pub name: String,
    /// The target.
    pub target: Arc<dyn Target>,
}

struct Watched {
    name: String,
    target: Arc<dyn Target>,
    probing: AtomicBool,
    loaded: AtomicU64,
    error: Mutex<Option<String>>,
    probes: Vec<Arc<Probe>>,
    series: Vec<Arc<Series>>,
}

impl Watched {
    fn switch(&self, on: bool) {
        self.probing.store(on, Ordering::Relaxed);
        self.probes.iter().for_each(|probe| probe.switch(on));
    }
}

#[derive(Debug, Default)]
struct Kept {
    written: Option<i64>,
    error: Option<String>,
}

/// A running board.
pub struct Board {
    env: Env,
    options: Options,
    pulse: Pulse,
    started: i64,
    targets: Vec<Arc<Watched>>,
    store: Option<Arc<dyn Store>>,
    kept: Mutex<Kept>,
    tasks: Mutex<Vec<Arc<dyn Task>>>,
    ended: Mutex<Option<oneshot::Receiver<Error>>>,
}

impl fmt::Debug for Board {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Board").field("options", &self.options).finish_non_exhaustive()
    }
}

/// Told how many records a target has while they are loaded: its name, how many, of how many.
pub type Progress = Arc<dyn Fn(&str, u64, u64) + Send + Sync>;

impl Board {
    /// Starts a board: takes over what `store` has, then probes.
    ///
    /// # Errors
    /// Options out of range, two targets of one name, a store that cannot be read.
    pub async fn start(
        env: &Env,
        options: Options,
        targets: Vec<Named>,
        store: Option<Arc<dyn Store>>,
        progress: Progress,
    ) -> Result<Arc<Self>> {
        options.check()?;
        let pulse = Pulse::new(env);
        let targets = watched(env, &options, &pulse, targets)?;
        let now = pulse.seconds();
        if let Some(store) = &store {
            restore(&targets, &store.open().await?, now)?;
        }
        let (end, ended) = oneshot::channel();
        let board = Arc::new(Self {
            env: env.clone(),
            options,
            pulse: pulse.clone(),
            started: pulse.seconds(),
            targets,
            store,
            kept: Mutex::default(),
            tasks: Mutex::default(),
            ended: Mutex::new(Some(ended)),
        });
        let mut tasks = vec![env.spawn("board pulse", pulse.run())];
        for target in &board.targets {
            let preparing = Arc::clone(&board).prepare(Arc::clone(target), Arc::clone(&progress));
            tasks.push(env.spawn("board target", preparing));
            let probes = target.probes.iter();
            tasks.extend(probes.map(|probe| env.spawn("board probe", Arc::clone(probe).run())));
        }
        tasks.push(env.spawn("board history", Arc::clone(&board).keep(end)));
        *board.tasks.lock() = tasks;
        Ok(board)
    }

    /// Sees to it that the target has its records, and has it probed.
    async fn prepare(self: Arc<Self>, target: Arc<Watched>, progress: Progress) {
        let records = self.options.records;
        loop {
            let shown = |done: u64| {
                target.loaded.store(done, Ordering::Relaxed);
                if done < records {
                    target.switch(false);
                }
                progress(&target.name, done, records);
            };
            let patience = self.options.timeout;
            let loaded = load(&self.env, &*target.target, records, patience, &shown).await;
            // What keeps records from being loaded would be in the way of reading them too: that is
            // measured.
            target.switch(true);
            let failed = loaded.err().map(|failure| failure.to_string());
            let done = failed.is_none();
            *target.error.lock() = failed;
            if done {
                return;
            }
            self.env.clock.sleep(AGAIN).await;
        }
    }

    /// Seals and writes until the store belongs to another board.
    async fn keep(self: Arc<Self>, end: oneshot::Sender<Error>) {
        loop {
            self.env.clock.sleep(KEEP_EVERY).await;
            if let Err(error) = self.write().await {
                // Whoever started the board may be gone; then nobody wants to know.
                let _ = end.send(error);
                return;
            }
        }
    }

    /// One round. An error is one that no later round mends.
    async fn write(&self) -> Result<()> {
        let now = self.pulse.seconds();
        self.seal(now)?;
        let Some(store) = &self.store else {
            self.series().for_each(|series| drop(series.take_changed()));
            return Ok(());
        };
        let rows: Vec<Row> = self.series().flat_map(|series| series.take_changed()).collect();
        let written = self.env.within_timeout(STORE_PATIENCE, "the store", store.write(&rows, now));
        let error = match written.await {
            Ok(Ok(())) => {
                *self.kept.lock() = Kept { written: Some(now), error: None };
                return Ok(());
            }
            Ok(Err(error @ Error::Replaced(_))) => return Err(error),
            Ok(Err(error)) => error.to_string(),
            Err(_) => format!("the store did not answer within {STORE_PATIENCE:?}"),
        };
        self.series().for_each(|series| series.give_back(&rows));
        self.kept.lock().error = Some(error);
        Ok(())
    }

    fn series(&self) -> impl Iterator<Item = &Arc<Series>> {
        self.targets.iter().flat_map(|target| &target.series)
    }

    fn seal(&self, now: i64) -> Result<()> {
        let grace = i64::try_from(self.options.timeout.as_secs()).unwrap_or(i64::MAX / 4) + 5;
        self.series().try_for_each(|series| series.seal(now, grace))
    }

    /// Waits for the error that ends a board, if there ever is one. For one caller.
    pub async fn failed(&self) -> Error {
        let ended = self.ended.lock().take();
        match ended {
            Some(ended) => match ended.await {
                Ok(error) => error,
                Err(_) => std::future::pending().await,
            },
            None => std::future::pending().await,
        }
    }

    /// Stops: nothing more becomes due; what is under way has until `drain` to end, and is
    /// forgotten after that. Writes the history a last time; why it could not, if it could not.
    pub async fn stop(&self, drain: Duration) -> Option<String> {
        self.probes().for_each(|probe| probe.stop());
        let deadline = self.env.deadline(drain);
        while self.probes().any(|probe| probe.under_way() > 0)
            && !deadline.passed(self.env.clock.monotonic())
        {
            self.env.clock.sleep(Duration::from_millis(20)).await;
        }
        let written = self.write().await.err().map(|error| error.to_string());
        for task in self.tasks.lock().drain(..) {
            task.abort();
        }
        written.or_else(|| self.kept.lock().error.clone())
    }

    fn probes(&self) -> impl Iterator<Item = &Arc<Probe>> {
        self.targets.iter().flat_map(|target| &target.probes)
    }

    fn terms(&self, probe: &Probe, now: i64) -> Terms {
        Terms {
            now,
            started: self.started,
            limit_micros: u64::try_from(self.options.limit.as_micros()).unwrap_or(u64::MAX),
            pending_seconds: probe.interval().as_secs_f64() * probe.under_way() as f64,
        }
    }

    /// Everything that the board knows, for these windows.
    ///
    /// # Errors
    /// A damaged row.
    pub fn report(&self, windows: &[Window]) -> Result<Report> {
        let now = self.pulse.seconds();
        self.seal(now)?;
        let targets: Result<Vec<_>> =
            self.targets.iter().map(|target| self.report_of(target, windows, now)).collect();
        let kept = self.kept.lock();
        Ok(Report {
            board: self.options.name.clone(),
            now,
            started: self.started,
            rate: self.options.rate,
            records: self.options.records,
            timeout_seconds: self.options.timeout.as_secs_f64(),
            limit_seconds: self.options.limit.as_secs_f64(),
            store: self
                .store
                .as_ref()
                .map(|_| StoreReport { written: kept.written, error: kept.error.clone() }),
            targets: targets?,
        })
    }

    fn report_of(&self, target: &Watched, windows: &[Window], now: i64) -> Result<TargetReport> {
        let mut operations = Vec::new();
        for (probe, series) in target.probes.iter().zip(&target.series) {
            let terms = self.terms(probe, now);
            let (_, unprobed, last) = series.run();
            let figures = windows.iter().map(|window| figures::figures(series, *window, &terms));
            operations.push(OperationReport {
                operation: series.key.operation,
                under_way: probe.under_way(),
                unprobed,
                last_failure: last.map(|(micros, failure)| LastFailure {
                    at: micros.div_euclid(1_000_000),
                    kind: failure.kind,
                    message: failure.message,
                }),
                windows: figures.collect::<Result<_>>()?,
            });
        }
        Ok(TargetReport {
            name: target.name.clone(),
            address: target.target.address().to_owned(),
            probing: target.probing.load(Ordering::Relaxed),
            loaded: target.loaded.load(Ordering::Relaxed),
            error: target.error.lock().clone(),
            operations,
        })
    }

    /// The heat strip of a window of a target's operation; `None`: there is no such target.
    ///
    /// # Errors
    /// A damaged row.
    pub fn columns(
        &self,
        target: &str,
        operation: Operation,
        window: Window,
    ) -> Result<Option<Vec<Column>>> {
        let now = self.pulse.seconds();
        self.seal(now)?;
        let Some(watched) = self.targets.iter().find(|watched| watched.name == target) else {
            return Ok(None);
        };
        let mut pairs = watched.probes.iter().zip(&watched.series);
        let Some((probe, series)) = pairs.find(|(_, series)| series.key.operation == operation)
        else {
            return Ok(None);
        };
        figures::columns(series, window, &self.terms(probe, now)).map(Some)
    }

    /// The seams that the board runs on.
    #[must_use]
    pub fn env(&self) -> &Env {
        &self.env
    }
}

fn watched(
    env: &Env,
    options: &Options,
    pulse: &Pulse,
    targets: Vec<Named>,
) -> Result<Vec<Arc<Watched>>> {
    let interval = Duration::from_secs_f64(1.0 / options.rate);
    // Spread over the interval, so that the board does not get in its own way.
    let all = u32::try_from(targets.len() * Operation::ALL.len()).unwrap_or(u32::MAX);
    let mut at = 0;
    let mut watched: Vec<Arc<Watched>> = Vec::new();
    for Named { name, target } in targets {
        if watched.iter().any(|other| other.name == name) {
            return Err(Error::Option(format!("two targets are named {name:?}: rename one")));
        }
        let (mut probes, mut all_series) = (Vec::new(), Vec::new());
        for operation in Operation::ALL {
            let key = Key { target: name.as_str().into(), operation };
            let series = Arc::new(Series::new(key));
            let asking = Asking {
                interval,
                offset: interval * at / all,
                timeout: options.timeout,
                records: options.records,
                lanes: options.lanes,
                waiting: options.waiting,
            };
            at += 1;
            probes.push(Arc::new(Probe::new(
                env.clone(),
                Arc::clone(&target),
                asking,
                Arc::clone(&series),
                pulse.clone(),
            )));
            all_series.push(series);
        }
        watched.push(Arc::new(Watched {
            name,
            target,
            probing: AtomicBool::new(false),
            loaded: AtomicU64::new(0),
            error: Mutex::new(None),
            probes,
            series: all_series,
        }));
    }
    if watched.is_empty() {
        return Err(Error::Option("nothing to probe: give at least one target".to_owned()));
    }
    Ok(watched)
}

/// Takes stored rows over; those of targets that are not probed now stay in the store until they
/// are too old.
fn restore(targets: &[Arc<Watched>], rows: &[Row], now: i64) -> Result<()> {
    let newest = rows.iter().map(|row| row.start).max().unwrap_or(now);
    if newest > now + AHEAD_SECONDS {
        return Err(Error::Future { hours: (newest - now) / 3_600 });
    }
    if newest < now - Resolution::Day.kept_seconds() {
        return Err(Error::Past { days: (now - newest) / 86_400 });
    }
    let series: Vec<_> = targets.iter().flat_map(|target| &target.series).collect();
    for row in rows {
        if let Some(series) = series.iter().find(|series| series.key == row.key) {
            series.restore(row)?;
        }
    }
    Ok(())
}
