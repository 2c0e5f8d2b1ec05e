//! The figures, one function each.
//!
//! # Invariants
//! What the paper's text gives stands in a column of its own; what it only plots is not guessed.
//!
//! # On failure
//! The reason, as text.
//!
//! # Limits
//! Those of `measure.rs`.

use std::path::PathBuf;

use rand::SeedableRng as _;
use rand::rngs::SmallRng;
use telesto_common::RegionId;
use telesto_geo::solver::{Problem, draw, grow, solve};
use telesto_geo::{Latencies, PlaneConfig, PlaneKind, Tree};
use telesto_geo_sim::{Happening, World, WorldConfig};
use telesto_social::{Correlation, PLACEMENTS};

use crate::measure::{Measure, Setup, run};
use crate::plot::{Series, lines};
use crate::sites::{self, F, I, NAMES, O, S, T, planes};
use crate::workload::{Social, Synthetic, Workload};

/// How the study is run.
pub struct Study {
    pub out: PathBuf,
    pub seconds: f64,
    pub rate: f64,
    pub seed: u64,
}

type Figure = fn(&Study) -> Result<(), String>;

/// All figures, by name.
pub const ALL: [(&str, Figure); 8] = [
    ("tree", tree),
    ("1", figure_1),
    ("4", figure_4),
    ("5", figure_5),
    ("6", figure_6),
    ("7", figure_7),
    ("8", figure_8),
    ("change", change),
];

impl Study {
    fn measure(
        &self,
        latencies: &Latencies,
        plane: &PlaneConfig,
        workload: &mut dyn Workload,
        travellers: usize,
    ) -> Result<Measure, String> {
        let plane = plane.clone();
        let (seed, seconds, rate) = (self.seed, self.seconds, self.rate);
        run(&Setup { latencies, plane, seed, seconds, rate, travellers }, workload)
    }

    fn plot(
        &self,
        file: &str,
        title: &str,
        axes: (&str, &str),
        series: &[Series],
    ) -> Result<(), String> {
        lines(&self.out.join(file), title, axes.0, axes.1, series)
    }
}

fn pair(pair: (RegionId, RegionId)) -> String {
    let name = |region: RegionId| NAMES.get(usize::from(region.0)).copied().unwrap_or("?");
    format!("{}-{}", name(pair.0), name(pair.1))
}

fn best_tree(latencies: &Latencies, weights: Vec<Vec<f64>>) -> Result<Tree, String> {
    let problem = Problem { latencies: latencies.clone(), weights };
    solve(&problem).map(|solution| solution.tree).map_err(|error| error.to_string())
}

/// The seven sites under the default workload.
fn exponential_problem() -> Problem {
    let latencies = Latencies::saturn();
    let weights = Synthetic::new(Correlation::Exponential, &latencies).weights();
    Problem { latencies, weights }
}

/// The cumulative distribution of a pair's visibility.
fn cdf(name: &str, measure: &Measure, from: RegionId, to: RegionId) -> Series {
    let quantiles = (0..=200).map(|at| f64::from(at) / 200.0);
    let points = measure.pairs.get(&(from, to)).map(|histogram| {
        quantiles.map(|q| (histogram.value_at_quantile(q) as f64 / 1000.0, q)).collect()
    });
    Series { name: name.to_owned(), points: points.unwrap_or_default() }
}

/// The solver: trees, and what is expected of each plane.
fn tree(_: &Study) -> Result<(), String> {
    let latencies = Latencies::saturn();
    println!(
        "\n== Trees over the seven sites (Definition 2; average extra of labels over payloads, ms) =="
    );
    let exponential = Synthetic::new(Correlation::Exponential, &latencies).weights();
    let uniform = Problem::uniform(latencies.clone());
    let weighted = Problem { latencies: latencies.clone(), weights: exponential };
    for (name, problem, papers) in [
        ("equal weights", &uniform, sites::paper_uniform(&uniform)?),
        ("exponential weights", &weighted, sites::paper_exponential(&weighted)?),
    ] {
        let exact = solve(problem).map_err(|error| error.to_string())?;
        let grown = grow(problem, 5_000.0).map_err(|error| error.to_string())?;
        println!(
            "{name}: enumeration {:.2}, Algorithm 3 {:.2}, the authors' tree {:.2}",
            exact.mismatch_micros / 1000.0,
            grown.mismatch_micros / 1000.0,
            problem.mismatch_micros(&papers) / 1000.0
        );
        print!("{}", draw(&exact.tree, &latencies, &NAMES));
        println!("expected extra, ms        average   worst pair");
        for (kind, _) in planes(&exact.tree) {
            let extra = problem.expected_extra_micros(kind, Some(&exact.tree));
            let (mut sum, mut weights, mut worst) = (0.0, 0.0, 0);
            for (i, j) in (0..7).flat_map(|i| (0..7).map(move |j| (i, j))).filter(|(i, j)| i != j) {
                sum += problem.weights[i][j] * extra[i][j] as f64;
                weights += problem.weights[i][j];
                worst = worst.max(extra[i][j]);
            }
            println!(
                "  {kind:<22} {:>8.1} {:>11.1}",
                sum / weights / 1000.0,
                worst as f64 / 1000.0
            );
        }
    }
    Ok(())
}

/// Figure 1: staleness by the number of regions, and by the degree of replication.
fn figure_1(study: &Study) -> Result<(), String> {
    println!(
        "\n== Figure 1a: data staleness over eventual, % (full replication), and messages and metadata bytes an update =="
    );
    println!("(the paper plots GentleRain far above a constant Cure; its text gives no numbers)");
    println!("regions  plane        staleness   messages      bytes");
    let mut series: Vec<Series> = Vec::new();
    let mut row = |at: f64, kind: PlaneKind, measure: &Measure, label: &str| {
        let direct = measure.average_visibility() - measure.average_extra();
        let stale = measure.average_extra() / direct * 100.0;
        println!(
            "{label:>7}  {kind:<10} {stale:>10.1} % {:>10.1} {:>10.1}",
            measure.messages(),
            measure.metadata_bytes()
        );
        match series.iter_mut().find(|series| series.name == kind.name()) {
            Some(series) => series.points.push((at, stale)),
            None => series.push(Series { name: kind.name().to_owned(), points: vec![(at, stale)] }),
        }
    };
    for members in 3..=7 {
        let latencies = sites::first(members);
        let tree = best_tree(&latencies, vec![vec![1.0; members]; members])?;
        for (kind, plane) in planes(&tree) {
            let mut workload = Synthetic::new(Correlation::Full, &latencies);
            let measure = study.measure(&latencies, &plane, &mut workload, 0)?;
            row(members as f64, kind, &measure, &members.to_string());
        }
    }
    study.plot("figure-1a.svg", "Figure 1a: staleness over eventual", ("regions", "%"), &series)?;
    println!(
        "\n== Figure 1b: data staleness over eventual, %, by copies of an item (the nearest regions; 5 regions) =="
    );
    let mut series: Vec<Series> = Vec::new();
    for copies in (2..=5).rev() {
        let latencies = sites::first(5);
        let correlation = Correlation::Nearest(copies - 1);
        let weights = Synthetic::new(correlation, &latencies).weights();
        let tree = best_tree(&latencies, weights)?;
        for (kind, plane) in planes(&tree) {
            let mut workload = Synthetic::new(correlation, &latencies);
            let measure = study.measure(&latencies, &plane, &mut workload, 0)?;
            let direct = measure.average_visibility() - measure.average_extra();
            let stale = measure.average_extra() / direct * 100.0;
            println!(
                "{copies:>7}  {kind:<10} {stale:>10.1} % {:>10.1} {:>10.1}",
                measure.messages(),
                measure.metadata_bytes()
            );
            match series.iter_mut().find(|series| series.name == kind.name()) {
                Some(series) => series.points.push((copies as f64, stale)),
                None => series.push(Series {
                    name: kind.name().to_owned(),
                    points: vec![(copies as f64, stale)],
                }),
            }
        }
    }
    study.plot("figure-1b.svg", "Figure 1b: staleness by copies", ("copies", "%"), &series)
}

/// Figure 4: one serializer, several, none.
fn figure_4(study: &Study) -> Result<(), String> {
    println!(
        "\n== Figure 4: configurations of Saturn (exponential correlation): extra visibility, ms =="
    );
    println!("configuration              average   I-F p90   T-S p90   paper: average");
    let latencies = Latencies::saturn();
    let weights = Synthetic::new(Correlation::Exponential, &latencies).weights();
    let configurations = [
        ("S: one, in Ireland", PlaneConfig::tree(Tree::star(7, I)), "-"),
        (
            "M: the authors' tree",
            PlaneConfig::tree(sites::paper_exponential(&exponential_problem())?),
            "8.2",
        ),
        ("M: the solver's tree", PlaneConfig::tree(best_tree(&latencies, weights)?), "8.2"),
        ("P: timestamp order", PlaneConfig::new(PlaneKind::Timestamp), "-"),
        ("matrix", PlaneConfig::new(PlaneKind::Matrix), "-"),
    ];
    let (mut left, mut right) = (Vec::new(), Vec::new());
    for (name, plane, paper) in configurations {
        let mut workload = Synthetic::new(Correlation::Exponential, &latencies);
        let measure = study.measure(&latencies, &plane, &mut workload, 0)?;
        let (first, second) = (measure.p90(I, F), measure.p90(T, S));
        println!(
            "{name:<25} {:>8.1} {first:>9.1} {second:>9.1}   {paper}",
            measure.average_extra()
        );
        left.push(cdf(name, &measure, I, F));
        right.push(cdf(name, &measure, T, S));
    }
    let axes = ("visibility, ms", "share");
    study.plot("figure-4-left.svg", "Figure 4: Ireland to Frankfurt (10 ms)", axes, &left)?;
    study.plot("figure-4-right.svg", "Figure 4: Tokyo to Sydney (52 ms)", axes, &right)
}

/// Figure 5: what throughput depends on, as work: messages, bytes, waits of remote reads.
fn figure_5(study: &Study) -> Result<(), String> {
    println!(
        "\n== Figure 5: work instead of throughput, at {} updates a second and region ==",
        study.rate
    );
    println!("(the paper: throughput below eventual by 2.2 % Saturn, 7 % GentleRain, 27 % Cure)");
    println!(
        "(5a and 5b, the size of values and the share of reads, change nothing of what is counted here for an update)"
    );
    println!(
        "correlation   plane       extra avg  worst pair      p90   messages/update  metadata B/update  copies"
    );
    let latencies = Latencies::saturn();
    use Correlation::{Exponential, Full, Proportional, Uniform};
    for correlation in [Exponential, Proportional, Uniform, Full] {
        let tree = best_tree(&latencies, Synthetic::new(correlation, &latencies).weights())?;
        for (kind, plane) in planes(&tree) {
            let mut workload = Synthetic::new(correlation, &latencies);
            let measure = study.measure(&latencies, &plane, &mut workload, 0)?;
            let (worst, between) = measure.worst_pair();
            println!(
                "{:<13} {kind:<10} {:>9.2}  {worst:>6.1} {:>5} {:>7.1} {:>16.1} {:>18.1} {:>8.2}",
                correlation.name(),
                measure.average_extra(),
                pair(between),
                measure.worst_p90(),
                measure.messages(),
                measure.metadata_bytes(),
                measure.deliveries() as f64 / measure.updates.max(1) as f64,
            );
        }
    }
    println!(
        "\n== Figure 5d: remote reads: how long a session that moves waits to be attached, beyond its own way, ms =="
    );
    println!("(the paper: 40 % remote reads, Saturn 15.7 % ahead of GentleRain, 60.5 % of Cure)");
    println!(
        "plane        mean wait    p90   a remote read there and back, against eventual   reads, 40 % remote, a session and second"
    );
    let tree = best_tree(&latencies, Synthetic::new(Exponential, &latencies).weights())?;
    let mut baseline = None;
    for (kind, plane) in planes(&tree) {
        let mut workload = Synthetic::new(Exponential, &latencies);
        let measure = study.measure(&latencies, &plane, &mut workload, 20)?;
        let wait = measure.waits.mean() / 1000.0;
        // A read there and back is two ways and two waits; a local one 1 ms.
        let way = problem_way(&exponential_problem());
        let remote = 2.0 * (way + wait);
        let rate = 1000.0 / (0.6 + 0.4 * remote);
        let base = *baseline.get_or_insert(remote);
        println!(
            "{kind:<11} {wait:>9.1} {:>7.1} {remote:>14.1} ms ({:>+6.1} %) {rate:>40.1}",
            measure.waits.value_at_quantile(0.9) as f64 / 1000.0,
            (remote / base - 1.0) * 100.0
        );
    }
    Ok(())
}

/// The mean way of a remote read, ms.
fn problem_way(problem: &Problem) -> f64 {
    let (mut sum, mut weights) = (0.0, 0.0);
    for (i, row) in problem.weights.iter().enumerate() {
        for (j, weight) in row.iter().enumerate().filter(|(j, _)| *j != i) {
            let latency = problem.latencies.get(RegionId(i as u16), RegionId(j as u16));
            sum += weight * latency as f64 / 1000.0;
            weights += weight;
        }
    }
    sum / weights
}

/// Figure 6: a link becomes slower than its tree was made for.
fn figure_6(study: &Study) -> Result<(), String> {
    println!(
        "\n== Figure 6: N. California, Oregon, Ireland: extra visibility, ms, as NC-O becomes slower =="
    );
    println!("(the paper: T1 adds 14 ms at +25 ms; T2 is better from +55 ms on)");
    println!("injected   T1 (Oregon)   T2 (Ireland)   solved anew    matrix");
    let sites = [sites::NC, O, I];
    let mut series: Vec<Series> = ["T1", "T2", "solved anew", "matrix"]
        .map(|name| Series { name: name.to_owned(), points: Vec::new() })
        .into();
    for injected in [0, 10, 25, 40, 55, 70, 85, 100, 125] {
        let mut latencies = Latencies::saturn().select(&sites);
        let (a, b) = (RegionId(0), RegionId(1));
        let slow = latencies.get(a, b) + injected * 1000;
        latencies.set(a, b, slow);
        latencies.set(b, a, slow);
        let solved = best_tree(&latencies, vec![vec![1.0; 3]; 3])?;
        let planes = [
            PlaneConfig::tree(Tree::star(3, RegionId(1))),
            PlaneConfig::tree(Tree::star(3, RegionId(2))),
            PlaneConfig::tree(solved),
            PlaneConfig::new(PlaneKind::Matrix),
        ];
        print!("{injected:>5} ms ");
        for (plane, series) in planes.iter().zip(&mut series) {
            let mut workload = Synthetic::new(Correlation::Full, &latencies);
            let measure = study.measure(&latencies, plane, &mut workload, 0)?;
            print!(" {:>12.1}", measure.average_extra());
            series.points.push((injected as f64, measure.average_extra()));
        }
        println!();
    }
    study.plot(
        "figure-6.svg",
        "Figure 6: a slower link",
        ("injected delay, ms", "extra, ms"),
        &series,
    )
}

/// Figure 7: visibility under the default workload.
fn figure_7(study: &Study) -> Result<(), String> {
    println!("\n== Figure 7: extra visibility, ms (seven sites, exponential correlation) ==");
    println!(
        "plane          average  worst pair     I-F p90   I-S p90   paper: average, I-F p90, I-S p90"
    );
    let latencies = Latencies::saturn();
    let weights = Synthetic::new(Correlation::Exponential, &latencies).weights();
    let tree = best_tree(&latencies, weights)?;
    let (mut left, mut right) = (Vec::new(), Vec::new());
    let mut all = planes(&tree);
    all.push((
        PlaneKind::Tree,
        PlaneConfig::tree(sites::paper_exponential(&exponential_problem())?),
    ));
    let last = all.len() - 1;
    for (at, (kind, plane)) in all.iter().enumerate() {
        let mut workload = Synthetic::new(Correlation::Exponential, &latencies);
        let measure = study.measure(&latencies, plane, &mut workload, 0)?;
        let (worst, between) = measure.worst_pair();
        let paper = match kind {
            PlaneKind::Tree => "+7.3, +7, +20.4",
            PlaneKind::GentleRain => "+97.9",
            PlaneKind::Cure => "+21.3, I-S 3.6 below Saturn",
            _ => "",
        };
        let name = if at == last { String::from("tree (authors')") } else { kind.to_string() };
        println!(
            "{name:<15} {:>6.2} {worst:>8.1} {:>5} {:>9.1} {:>9.1}   {paper}",
            measure.average_extra(),
            pair(between),
            measure.p90(I, F),
            measure.p90(I, S)
        );
        left.push(cdf(&name, &measure, I, F));
        right.push(cdf(&name, &measure, I, S));
    }
    let axes = ("visibility, ms", "share");
    study.plot("figure-7-left.svg", "Figure 7: Ireland to Frankfurt (10 ms)", axes, &left)?;
    study.plot("figure-7-right.svg", "Figure 7: Ireland to Sydney (154 ms)", axes, &right)
}

/// Figure 8: the social workload on the real placement.
fn figure_8(study: &Study) -> Result<(), String> {
    println!(
        "\n== Figure 8: social workload: real placement of 61,096 users, 905,565 generated edges =="
    );
    println!(
        "(the paper, throughput below eventual: Saturn 1.8 %; extra visibility: Saturn +16.1 ms, GentleRain +79.2, Cure +23.7;"
    );
    println!(" p90 of I-F: Saturn +8.7; p90 of I-T: Saturn +47.2)");
    println!(
        "K  plane       extra avg  worst pair   I-F p90  I-T p90  messages/update  metadata B/update  attach wait"
    );
    let latencies = Latencies::saturn();
    for (copies, packed) in PLACEMENTS {
        let mut random = SmallRng::seed_from_u64(study.seed);
        let mut social = Social::new(packed, &latencies, &mut random)?;
        println!(
            "maximum {copies}: {:.1} % of reads of friends' data are remote",
            social.remote_share() * 100.0
        );
        let tree = best_tree(&latencies, social.weights())?;
        let (mut left, mut right) = (Vec::new(), Vec::new());
        for (kind, plane) in planes(&tree) {
            let measure = study.measure(&latencies, &plane, &mut social, 5)?;
            let (worst, between) = measure.worst_pair();
            println!(
                "{copies}  {kind:<10} {:>9.2}  {worst:>6.1} {:>5} {:>8.1} {:>8.1} {:>16.1} {:>18.1} {:>9.1} ms",
                measure.average_extra(),
                pair(between),
                measure.p90(I, F),
                measure.p90(I, T),
                measure.messages(),
                measure.metadata_bytes(),
                measure.waits.mean() / 1000.0
            );
            left.push(cdf(kind.name(), &measure, I, F));
            right.push(cdf(kind.name(), &measure, I, T));
        }
        let axes = ("visibility, ms", "share");
        let file = |side| format!("figure-8-{copies}-{side}.svg");
        study.plot(&file("left"), "Figure 8: Ireland to Frankfurt (10 ms)", axes, &left)?;
        study.plot(&file("right"), "Figure 8: Ireland to Tokyo (107 ms)", axes, &right)?;
    }
    Ok(())
}

/// A change of trees while updates flow (§6.2): how long it lasts, and the longest time without
/// anything new.
fn change(study: &Study) -> Result<(), String> {
    println!("\n== Change of trees (paper: always less than 200 ms), exponential correlation ==");
    println!(
        "old tree    lasts    longest gap of visibility of a region: before   during    longest extra wait during"
    );
    for lost in [false, true] {
        let latencies = Latencies::saturn();
        let new =
            best_tree(&latencies, Synthetic::new(Correlation::Exponential, &latencies).weights())?;
        let old = sites::paper_exponential(&exponential_problem())?;
        let config = WorldConfig {
            seed: study.seed,
            latencies: latencies.clone(),
            jitter_micros: 0,
            skew_micros: Vec::new(),
            plane: PlaneConfig { beat_micros: 5_000, ..PlaneConfig::tree(old) },
            planted: None,
        };
        let mut world = World::new(&config).map_err(|error| error.to_string())?;
        let mut workload = Synthetic::new(Correlation::Exponential, &latencies);
        let mut random = SmallRng::seed_from_u64(study.seed);
        for region in 0..7 {
            world.wake(World::BEGIN_MICROS + region * 100, region);
        }
        let at = World::BEGIN_MICROS + 2_000_000;
        let (mut settled, mut told) = (None, false);
        let mut last = [World::BEGIN_MICROS; 7];
        let (mut before, mut during, mut extra) = (0, 0, 0);
        while let Some(happening) = world.next(at + 1_500_000).map_err(|error| error.to_string())? {
            let now = world.now_micros();
            if now >= at && !told {
                told = true;
                world.add_tree(new.clone().with_epoch(1));
                if lost {
                    world.lose_tree(0);
                }
                for region in (0..7).map(RegionId) {
                    world
                        .change_tree(region, new.clone().with_epoch(1))
                        .map_err(|e| e.to_string())?;
                }
            }
            match happening {
                Happening::Applied(to, transaction) => {
                    let gap = now - std::mem::replace(&mut last[usize::from(to.0)], now);
                    let longest = if told { &mut during } else { &mut before };
                    *longest =
                        gap.max(*longest).min(if now < at - 1_000_000 { 0 } else { u64::MAX });
                    let bytes = transaction.data.get(..8).and_then(|b| b.try_into().ok());
                    let committed = bytes.map(u64::from_be_bytes).unwrap_or_default();
                    let visibility = now - committed;
                    if told && settled.is_none() {
                        let direct = latencies.get(transaction.label.source, to);
                        extra = extra.max(visibility.saturating_sub(direct));
                    }
                }
                Happening::Wake(number) => {
                    let region = RegionId(number as u16);
                    let (target, placement) = workload.update(region, &mut random);
                    world.commit(region, target, placement, now.to_be_bytes().to_vec().into());
                    world.wake(now + (1e6 / study.rate) as u64, number);
                }
                Happening::Attached(..) => {}
            }
            let moved = |region| world.region(RegionId(region)).epoch() == Some((1, false));
            if told && settled.is_none() && (0..7).all(moved) {
                settled = Some(now - at);
            }
        }
        let lasts = settled.ok_or("the change did not end")?;
        println!(
            "{:<8} {:>6.0} ms {:>44.1} ms {:>6.1} ms {:>16.1} ms",
            if lost { "lost" } else { "runs" },
            lasts as f64 / 1000.0,
            before as f64 / 1000.0,
            during as f64 / 1000.0,
            extra as f64 / 1000.0
        );
    }
    Ok(())
}
