//! What was measured, and how it is told: ratios of measurements taken in turns.
//!
//! # Invariants
//! A ratio is that of a plane and the first one in the same round; what is told is the median of
//! the rounds, with the least and the greatest.
//!
//! # On failure
//! A plane that did nothing in a round has no ratio, and the table says so.

/// One measurement.
#[derive(Clone, Copy, Debug, Default)]
pub struct Sample {
    /// Operations in a second, of all regions.
    pub rate: f64,
    /// Updates in a second.
    pub updates: f64,
    pub conflicts: u64,
    /// Processor time of all nodes for an operation, microseconds.
    pub cpu_micros: f64,
    /// Bytes on the links for an update, both ways.
    pub bytes: f64,
    /// What it took beyond the link's time until an update was visible elsewhere: the mean of
    /// pairs, ms. Nothing when nothing was.
    pub extra_ms: Option<f64>,
}

/// One point of a figure: a sample for each plane and round.
#[derive(Clone, Debug)]
pub struct Point {
    pub experiment: &'static str,
    pub name: String,
    /// `samples[plane][round]`.
    pub samples: Vec<Vec<Sample>>,
}

/// The middle of `values`; NaN of none.
fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.filter(|value| value.is_finite()).collect();
    values.sort_by(f64::total_cmp);
    match values.len() {
        0 => f64::NAN,
        n if n % 2 == 1 => values[n / 2],
        n => f64::midpoint(values[n / 2 - 1], values[n / 2]),
    }
}

impl Point {
    fn median(&self, plane: usize, of: fn(&Sample) -> f64) -> f64 {
        median(self.samples[plane].iter().map(of))
    }

    /// Of `plane` to the first one: median, least and greatest of the rounds.
    fn ratio(&self, plane: usize, of: fn(&Sample) -> f64) -> [f64; 3] {
        let rounds = || {
            let both = self.samples[plane].iter().zip(&self.samples[0]);
            both.map(|(this, first)| of(this) / of(first)).filter(|ratio| ratio.is_finite())
        };
        let (least, greatest) = (f64::INFINITY, f64::NEG_INFINITY);
        [median(rounds()), rounds().fold(least, f64::min), rounds().fold(greatest, f64::max)]
    }
}

/// Saturn's own figures beside an experiment: its throughput and that of GentleRain and Cure over
/// an eventually consistent store's.
fn paper(experiment: &str) -> &'static str {
    match experiment {
        "social" => "0.98; 0.89; 0.69",
        _ => "0.98; 0.93; 0.73",
    }
}

/// Prints a table of throughput, and one of what an operation costs.
pub fn print(points: &[Point], planes: &[String]) {
    println!(
        "\nOperations a second of all regions; a plane over {}, median (least to greatest):",
        planes[0]
    );
    print!("{:<26} {:>10}", "", planes[0]);
    planes[1..].iter().for_each(|plane| print!(" {plane:>22}"));
    println!("   the paper, on average: Saturn; GentleRain; Cure over eventual");
    for point in points {
        print!("{:<26} {:>10.0}", point.name, point.median(0, |sample| sample.rate));
        for plane in 1..planes.len() {
            let [middle, least, greatest] = point.ratio(plane, |sample| sample.rate);
            print!(" {:>22}", format!("{middle:.3} ({least:.2} to {greatest:.2})"));
        }
        println!("   {}", paper(point.experiment));
    }
    for plane in 1..planes.len() {
        let ratios = points.iter().map(|point| point.ratio(plane, |sample| sample.rate)[0]);
        let logs: Vec<f64> = ratios.map(f64::ln).filter(|log| log.is_finite()).collect();
        let mean = (logs.iter().sum::<f64>() / logs.len().max(1) as f64).exp();
        println!("{} over {}, geometric mean of all: {mean:.3}", planes[plane], planes[0]);
    }
    println!(
        "\nProcessor time of the nodes for an operation, bytes on the links for an update, and what it took beyond the link's time to be visible:"
    );
    print!("{:<26}", "");
    planes.iter().for_each(|plane| print!(" {:>30}", format!("{plane} µs, bytes, ms")));
    println!();
    for point in points {
        print!("{:<26}", point.name);
        for plane in 0..planes.len() {
            let extra = point.median(plane, |sample| sample.extra_ms.unwrap_or(f64::NAN));
            let extra = if extra.is_nan() { "-".to_owned() } else { format!("{extra:.1}") };
            let micros = point.median(plane, |sample| sample.cpu_micros);
            let bytes = point.median(plane, |sample| sample.bytes);
            print!(" {:>30}", format!("{micros:.0}, {bytes:.0}, {extra}"));
        }
        println!();
    }
    for plane in 1..planes.len() {
        let of =
            |of: fn(&Sample) -> f64| median(points.iter().map(|point| point.ratio(plane, of)[0]));
        println!(
            "{} over {}: {:.3} of the processor time, {:.3} of the bytes (medians of all points)",
            planes[plane],
            planes[0],
            of(|sample| sample.cpu_micros),
            of(|sample| sample.bytes)
        );
    }
}

/// All samples as lines of comma-separated values.
pub fn lines(points: &[Point], planes: &[String]) -> String {
    let mut out = "experiment,point,plane,round,operations_per_s,updates_per_s,conflicts,cpu_us_per_operation,link_bytes_per_update,extra_visible_ms\n".to_owned();
    for point in points {
        for (plane, samples) in planes.iter().zip(&point.samples) {
            for (round, sample) in samples.iter().enumerate() {
                let extra = sample.extra_ms.map(|extra| format!("{extra:.3}")).unwrap_or_default();
                out.push_str(&format!(
                    "{},{},{plane},{},{:.1},{:.1},{},{:.1},{:.1},{extra}\n",
                    point.experiment,
                    point.name,
                    round + 1,
                    sample.rate,
                    sample.updates,
                    sample.conflicts,
                    sample.cpu_micros,
                    sample.bytes
                ));
            }
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ratios_are_of_one_round_and_nothing_is_no_ratio() {
        let sample = |rate| Sample { rate, ..Sample::default() };
        // The machine is half as fast in the second round, and the first plane did nothing in the
        // third.
        let samples = vec![
            vec![sample(100.0), sample(50.0), sample(0.0)],
            vec![sample(90.0), sample(45.0), sample(7.0)],
        ];
        let point = Point { experiment: "reads", name: "90 %".to_owned(), samples };
        assert_eq!(point.ratio(1, |sample| sample.rate), [0.9, 0.9, 0.9]);
        assert_eq!(point.median(1, |sample| sample.rate), 45.0);
        assert!(point.median(0, |sample| sample.extra_ms.unwrap_or(f64::NAN)).is_nan());
        let lines = lines(&[point], &["eventual".to_owned(), "matrix".to_owned()]);
        assert_eq!(lines.lines().count(), 7);
        assert!(lines.contains("reads,90 %,matrix,2,45.0,"), "{lines}");
    }
}
