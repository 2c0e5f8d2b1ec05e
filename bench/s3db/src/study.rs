//! The study: every table and plot from its runs.
//!
//! # Invariants
//! - A table says in which world its figures were measured; the paper's own stand beside ours,
//!   never instead of them.
//! - A promise that was broken, or a level without promise that lost nothing where it should, fails
//!   the study.
//!
//! # On failure
//! The first run that fails ends the study with its level and reason.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::time::Duration;

use telesto_bucket::Hedging;
use telesto_txn::Level;

use crate::client::Protocol;
use crate::error::{Error, Result};
use crate::history::Promise;
use crate::measure::{Measured, Scene};
use crate::plot::{self, Series};
use crate::table::{short, text};
use crate::{ours, paper, reads, theirs};

/// What is studied.
pub struct Study {
    pub out: PathBuf,
    /// The scene in today's world, and in the paper's.
    pub today: Scene,
    pub paper: Scene,
    /// Clients of the runs in which promises are checked, and purchases of each.
    pub rivals: u32,
    pub rival_purchases: u64,
    /// How often each of them is killed.
    pub kills: u32,
    /// Checkpoint intervals of Figure 3, seconds.
    pub intervals: Vec<f64>,
    /// Numbers of clients.
    pub clients: Vec<u32>,
}

/// All levels in one world, one client.
struct World {
    theirs: Vec<Measured>,
    ours: Vec<Measured>,
}

/// What Telesto's own cache is by default, bytes: half of 256 MiB.
const OWN_CACHE: Option<u64> = Some(128 << 20);
/// Caches (`None`: that of the paper's client) and checkpoint intervals, seconds, that Telesto is
/// set to.
const OWN_SETTINGS: [(Option<u64>, f64); 4] =
    [(None, 15.0), (OWN_CACHE, 15.0), (OWN_CACHE, 60.0), (OWN_CACHE, 300.0)];
/// Purchases of all clients together in the runs by number of clients, in runs of one client. At 50
/// clients the paper's only queue of insertions gets more than its checkpoints take (256 records at
/// a time), and must be emptied before it is checked.
const THEIR_CROWD: u64 = 3;
const OUR_CROWD: u64 = 10;
/// Telesto's strongest level.
const STRONGEST: (Level, &str) = ours::LEVELS[0];

impl Study {
    /// Runs everything and prints it. Returns what was promised and not kept, or to be shown and
    /// not shown.
    pub fn run(&self) -> Result<Vec<String>> {
        let then = self.world(&self.paper)?;
        let now = self.world(&self.today)?;
        self.table_3(&then, &now);
        self.table_4(&then, &now);
        self.table_causes(&then, &now);
        self.figure_3()?;
        let slow = self.own_settings(&then, &now)?;
        let mut wrong = self.promises()?;
        let crowd = self.crowds()?;
        self.targets(&then, &now, crowd, slow)?;
        wrong.sort();
        wrong.dedup();
        Ok(wrong)
    }

    fn world(&self, scene: &Scene) -> Result<World> {
        let theirs = Protocol::ALL.iter().map(|protocol| theirs::run(scene, *protocol, true));
        let ours =
            ours::LEVELS.iter().map(|(level, name)| ours::run(scene, *level, name, Hedging::On));
        Ok(World { theirs: theirs.collect::<Result<_>>()?, ours: ours.collect::<Result<_>>()? })
    }

    fn table_3(&self, then: &World, now: &World) {
        let mut rows = Vec::new();
        for (at, protocol) in Protocol::ALL.iter().enumerate() {
            let paper = paper::row(*protocol);
            let mut row =
                vec![protocol.name().to_owned(), short(paper.average), short(paper.longest)];
            row.extend(seconds(&then.theirs[at]));
            row.extend(seconds(&now.theirs[at]));
            rows.push(row);
        }
        for (then, now) in then.ours.iter().zip(&now.ours) {
            let mut row = vec![format!("Telesto {}", then.name), "-".into(), "-".into()];
            row.extend(seconds(then));
            row.extend(seconds(now));
            rows.push(row);
        }
        let head = ["level", "paper avg", "max", "2007 avg", "max", "today avg", "max"];
        print!("{}", text("Table 3: seconds for a customer transaction, one client", &head, &rows));
    }

    fn table_4(&self, then: &World, now: &World) {
        let prices = self.paper.setting.queue_prices;
        let stated = self.paper.setting.queue_prices_as_stated.unwrap_or(prices);
        let today = self.today.setting.queue_prices;
        let row = |name: String, paper: Option<paper::Row>, then: &Measured, now: &Measured| {
            let given = |of: fn(&paper::Row) -> f64| {
                paper.as_ref().map_or("-".into(), |row| short(of(row)))
            };
            let [transaction, background] = then.dollars(&prices);
            let [now_transaction, now_background] = now.dollars(&today);
            vec![
                name,
                given(|row| row.total),
                given(|row| row.transaction),
                given(|row| row.background),
                short(then.total(&prices)),
                short(transaction),
                short(background),
                short(then.total(&stated)),
                short(now.total(&today)),
                short(now_transaction),
                short(now_background),
            ]
        };
        let mut rows = Vec::new();
        for (at, protocol) in Protocol::ALL.iter().enumerate() {
            let name = protocol.name().to_owned();
            rows.push(row(name, Some(paper::row(*protocol)), &then.theirs[at], &now.theirs[at]));
        }
        for (then, now) in then.ours.iter().zip(&now.ours) {
            rows.push(row(format!("Telesto {}", then.name), None, then, now));
        }
        let head = [
            "level",
            "paper",
            "txn",
            "rest",
            "2007",
            "txn",
            "rest",
            "as stated",
            "today",
            "txn",
            "rest",
        ];
        print!(
            "{}",
            text("Table 4: dollars for 1,000 customer transactions, one client", &head, &rows)
        );
        println!(
            "\npaper: the paper's own; 2007: queue at {}; as stated: queue at {}; today: queue at {}",
            prices.name, stated.name, today.name
        );
    }

    /// What Telesto's dollars are for.
    fn table_causes(&self, then: &World, now: &World) {
        let (then, now) = (&then.ours[0], &now.ours[0]);
        let per_1000 = |run: &Measured| 1000.0 / run.purchases.max(1) as f64;
        let names: BTreeSet<&str> =
            then.stored.causes.keys().chain(now.stored.causes.keys()).copied().collect();
        let mut rows = Vec::new();
        for name in names {
            let mut row = vec![name.to_owned()];
            for run in [then, now] {
                let caused = run.stored.causes.get(name).copied().unwrap_or_default();
                let share = per_1000(run);
                row.push(short(caused.requests as f64 * share));
                row.push(short(caused.bytes as f64 * share / 1e6));
                row.push(short(caused.dollars * share));
            }
            rows.push(row);
        }
        let head = ["cause", "2007 requests", "MB", "$", "today requests", "MB", "$"];
        let title = "Telesto serializable, 1,000 customer transactions, one client: what its bucket requests are for";
        print!("{}", text(title, &head, &rows));
    }

    /// Telesto as it would be set: its own cache, and longer intervals, for which no reader waits.
    /// The last one's dollars in the paper's world.
    fn own_settings(&self, then: &World, now: &World) -> Result<f64> {
        let mut rows = Vec::new();
        let mut last = f64::NAN;
        let prices = self.paper.setting.queue_prices;
        for (cache, interval) in OWN_SETTINGS {
            let cached = cache.is_some();
            let within = |folds: f64, world: &World| {
                let run = &world.ours[0];
                let mean = if cached { run.commits.mean() } else { run.took.mean() };
                (folds * interval / (mean / 1e6)).ceil().max(1.0) as u64
            };
            let set = |scene: &Scene, purchases: u64| Scene {
                checkpoint_interval: Duration::from_secs_f64(interval),
                cache_bytes: cache.unwrap_or(scene.cache_bytes),
                // What is in memory then is what a node has after some time.
                warm_up: if cached { scene.shop.products } else { scene.warm_up },
                purchases,
                ..scene.clone()
            };
            // As many folds as some compactions need.
            let scene = set(&self.paper, within(18.0, then).max(self.paper.purchases));
            let run = ours::run(&scene, STRONGEST.0, STRONGEST.1, Hedging::On)?;
            last = run.total(&prices);
            let scene = set(&self.today, self.today.purchases);
            let today = ours::run(&scene, STRONGEST.0, STRONGEST.1, Hedging::On)?;
            // Killed just before its first fold.
            let unfolded = within(0.9, now);
            let (took, requests) = ours::reopen(&set(&self.today, unfolded))?;
            rows.push(vec![
                short(scene.cache_bytes as f64 / 1e6),
                short(interval),
                short(run.took.mean() / 1e6),
                short(last),
                short(last / paper::row(Protocol::Atomicity).total * 100.0),
                short(today.took.mean() / 1e6),
                unfolded.to_string(),
                short(took.as_secs_f64()),
                requests.to_string(),
            ]);
        }
        let head = [
            "cache, MB",
            "interval, s",
            "2007 avg, s",
            "$ 2007",
            "% of the paper's",
            "today avg, s",
            "unfolded",
            "restart today, s",
            "requests",
        ];
        let title = "Telesto serializable, one client, by cache and checkpoint interval; and a restart after a kill";
        print!("{}", text(title, &head, &rows));
        Ok(last)
    }

    fn figure_3(&self) -> Result<()> {
        let prices = self.paper.setting.queue_prices;
        let mut rows = Vec::new();
        let names = ["basic", "atomicity", "Telesto serializable"];
        let mut points = [Vec::new(), Vec::new(), Vec::new()];
        for interval in &self.intervals {
            let checkpoint_interval = Duration::from_secs_f64(*interval);
            let scene = Scene { checkpoint_interval, ..self.paper.clone() };
            let dollars = [
                theirs::run(&scene, Protocol::Basic, true)?.total(&prices),
                theirs::run(&scene, Protocol::Atomicity, true)?.total(&prices),
                ours::run(&scene, STRONGEST.0, STRONGEST.1, Hedging::On)?.total(&prices),
            ];
            for (points, dollars) in points.iter_mut().zip(dollars) {
                points.push((*interval, dollars));
            }
            rows.push([*interval].iter().chain(&dollars).map(|n| short(*n)).collect());
        }
        let title =
            "Figure 3: dollars for 1,000 customer transactions by checkpoint interval, 2007";
        let head = ["interval, s", names[0], names[1], names[2]];
        print!("{}", text(title, &head, &rows));
        let line = |(name, points): (&str, Vec<_>)| Series { name: name.to_owned(), points };
        let mut series: Vec<Series> = names.into_iter().zip(points).map(line).collect();
        for protocol in [Protocol::Basic, Protocol::Atomicity] {
            series.push(Series {
                name: format!("{} in the paper", protocol.name()),
                points: vec![(paper::INTERVAL_SECONDS, paper::row(protocol).total)],
            });
        }
        let (x, y) = ("checkpoint interval, s", "$ / 1,000 transactions");
        self.draw("figure-3.svg", title, x, y, &series)
    }

    /// Many clients on few products, killed now and then: what each level loses.
    fn promises(&self) -> Result<Vec<String>> {
        let mut rows = Vec::new();
        let mut wrong = Vec::new();
        let crowd = |scene: &Scene| {
            let mut crowd = scene.clone();
            crowd.clients = self.rivals;
            crowd.warm_up = 0;
            crowd.purchases = self.rival_purchases;
            crowd.shop.products = crowd.shop.products.min(500);
            crowd
        };
        for kills in [0, self.kills] {
            let (then, now) =
                (Scene { kills, ..crowd(&self.paper) }, Scene { kills, ..crowd(&self.today) });
            let mut runs = Vec::new();
            for protocol in Protocol::ALL {
                runs.push(("2007", theirs::run(&then, protocol, true)?));
            }
            for (level, name) in ours::LEVELS {
                runs.push(("today", ours::run(&now, level, name, Hedging::On)?));
            }
            for (world, run) in runs {
                wrong.extend(self.judge(&run));
                rows.push(promise_row(world, kills, &run));
            }
        }
        let title = format!(
            "What is lost: {} clients, {} purchases each, 500 products; then the same with every client (Telesto: its only node) killed {} times",
            self.rivals, self.rival_purchases, self.kills
        );
        let head = [
            "level",
            "world",
            "kills",
            "purchases",
            "orders lost",
            "updates lost",
            "older won",
            "went back",
            "reordered",
            "in part",
            "miscounted",
            "conflicts",
            "promise",
        ];
        print!("{}", text(&title, &head, &rows));
        Ok(wrong)
    }

    fn judge(&self, run: &Measured) -> Vec<String> {
        let mut wrong: Vec<String> =
            run.broken().iter().map(|what| format!("{}: {what}", run.name)).collect();
        let lost = run.verdict.orders_lost + run.verdict.updates_lost;
        if run.name == Protocol::Naive.name() && self.rivals > 1 && lost == 0 {
            wrong.push("naive: it lost nothing, so that nothing is shown".to_owned());
        }
        wrong
    }

    /// Dollars by the number of clients; what Telesto costs with the most of them today.
    fn crowds(&self) -> Result<f64> {
        let mut rows = Vec::new();
        let mut last = f64::NAN;
        let mut points = [Vec::new(), Vec::new(), Vec::new(), Vec::new()];
        for clients in &self.clients {
            let each = |scene: &Scene, runs: u64| {
                let share = scene.purchases * runs / u64::from((*clients).max(1));
                let purchases = share.clamp(1, scene.purchases);
                let warm_up = purchases.div_ceil(10);
                Scene { clients: *clients, warm_up, purchases, ..scene.clone() }
            };
            let (then, now) = (each(&self.paper, THEIR_CROWD), each(&self.today, THEIR_CROWD));
            let theirs_then = theirs::run(&then, Protocol::Atomicity, true)?;
            let theirs_now = theirs::run(&now, Protocol::Atomicity, true)?;
            let (then, now) = (each(&self.paper, OUR_CROWD), each(&self.today, OUR_CROWD));
            let ours_then = ours::run(&then, STRONGEST.0, STRONGEST.1, Hedging::On)?;
            let ours_now = ours::run(&now, STRONGEST.0, STRONGEST.1, Hedging::On)?;
            let dollars = [
                theirs_then.total(&then.setting.queue_prices),
                ours_then.total(&then.setting.queue_prices),
                theirs_now.total(&now.setting.queue_prices),
                ours_now.total(&now.setting.queue_prices),
            ];
            last = dollars[3];
            for (points, dollars) in points.iter_mut().zip(dollars) {
                points.push((f64::from(*clients), dollars));
            }
            let mut row = vec![clients.to_string()];
            row.extend(dollars.iter().map(|n| short(*n)));
            row.push(short(ours_now.seconds(0.5)));
            row.push(short(ours_now.seconds(0.99)));
            row.push(ours_now.conflicts.to_string());
            rows.push(row);
        }
        let title =
            "Dollars for 1,000 customer transactions by clients (Telesto: one process for all)";
        let head = [
            "clients",
            "atomicity 2007",
            "Telesto 2007",
            "atomicity today",
            "Telesto today",
            "p50 today, s",
            "p99",
            "conflicts",
        ];
        print!("{}", text(title, &head, &rows));
        let [_, then, _, now] = points;
        let series = [
            Series { name: "Telesto serializable, 2007".to_owned(), points: then },
            Series { name: "Telesto serializable, today".to_owned(), points: now },
        ];
        self.draw("clients.svg", title, "clients", "$ / 1,000 transactions", &series)?;
        Ok(last)
    }

    fn targets(&self, then: &World, now: &World, crowd: f64, slow: f64) -> Result<()> {
        let hedged = reads::run(&self.today, Hedging::On)?;
        let plain = reads::run(&self.today, Hedging::Off)?;
        let millis =
            |times: &crate::measure::Times, q: f64| times.value_at_quantile(q) as f64 / 1e3;
        let strongest = &now.ours[0];
        let strongest_paper = paper::row(Protocol::Atomicity).total;
        let share = then.ours[0].total(&self.paper.setting.queue_prices) / strongest_paper;
        let misses = |run: &Measured| {
            let (warm, cold) = (run.warm_reads.len(), run.cold_reads.len());
            cold as f64 / (warm + cold).max(1) as f64 * 100.0
        };
        let target = |name: &str, measured: f64, most: f64, unit: &str| {
            let met = if measured <= most { "met" } else { "missed" };
            vec![
                name.to_owned(),
                format!("{} {unit}", short(measured)),
                format!("{} {unit}", short(most)),
                met.into(),
            ]
        };
        let told = |name: &str, measured: f64| {
            vec![name.to_owned(), format!("{} ms", short(measured)), "-".into(), "-".into()]
        };
        let rows = [
            target("commit p99", millis(&strongest.commits, 0.99), 500.0, "ms"),
            target("warm read p99, inside a transaction", millis(&hedged.warm, 0.99), 50.0, "ms"),
            target("warm read p99, strict and alone", millis(&hedged.strict, 0.99), 50.0, "ms"),
            told("the same without hedging", millis(&plain.strict, 0.99)),
            told("cold read p50", millis(&hedged.cold, 0.5)),
            told("cold read p99", millis(&hedged.cold, 0.99)),
            told("cold read p50 without hedging", millis(&plain.cold, 0.5)),
            told("cold read p99 without hedging", millis(&plain.cold, 0.99)),
            vec![
                "reads of table 3 that went to the bucket".to_owned(),
                format!("{} %", short(misses(strongest))),
                "-".into(),
                "-".into(),
            ],
            target("dollars, of the paper's for its strongest level", share * 100.0, 1.0, "%"),
            target(
                "the same with Telesto's own cache and its longest interval",
                slow / strongest_paper * 100.0,
                1.0,
                "%",
            ),
            target("dollars for 1,000 with the most clients, today", crowd, 0.001, "$"),
        ];
        let head = ["Telesto serializable, S3 Standard, one client", "measured", "at most", ""];
        print!("{}", text("Targets", &head, &rows));
        Ok(())
    }

    fn draw(&self, file: &str, title: &str, x: &str, y: &str, series: &[Series]) -> Result<()> {
        plot::lines(&self.out.join(file), title, x, y, series).map_err(Error::Output)
    }
}

fn seconds(run: &Measured) -> [String; 2] {
    [short(run.took.mean() / 1e6), short(run.took.max() as f64 / 1e6)]
}

fn promise_row(world: &str, kills: u32, run: &Measured) -> Vec<String> {
    let verdict = &run.verdict;
    let broken = run.broken();
    let mut row = vec![run.name.to_owned(), world.to_owned(), kills.to_string()];
    let counts = [
        verdict.purchases,
        verdict.orders_lost,
        verdict.updates_lost,
        verdict.older_won,
        verdict.went_back,
        verdict.own_reordered,
        verdict.partial,
        verdict.miscounted,
        run.conflicts,
    ];
    row.extend(counts.iter().map(u64::to_string));
    let promises = run.promise != Promise::default();
    row.push(match (promises, broken.is_empty()) {
        (false, _) => "none".to_owned(),
        (true, true) => "kept".to_owned(),
        (true, false) => broken.join(", "),
    });
    row
}
