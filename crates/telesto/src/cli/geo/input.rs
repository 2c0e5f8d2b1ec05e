//! What a plan is made from: names, one-way latencies, and how much each pair counts.
//!
//! # Invariants
//! Every pair has a latency; a pair that nobody has measured is named instead.
//!
//! # On failure
//! The line or the pair that is wrong.
//!
//! # Limits
//! A measured way is half a round trip: both ways are taken to be alike.

use std::collections::BTreeMap;
use std::path::Path;

use telesto_geo::Latencies;
use tokio_postgres::Client;

use crate::cli::shell::full;

/// See the module's text.
#[derive(Clone, Debug)]
pub struct Input {
    pub names: Vec<String>,
    pub latencies: Latencies,
    pub weights: Vec<Vec<f64>>,
    /// Where the weights come from, for people.
    pub weighted_by: &'static str,
    /// Where the latencies come from, for people.
    pub origin: &'static str,
    /// By source and target: what is measured to become visible after, on average, ms.
    pub visible: BTreeMap<(usize, usize), f64>,
}

/// A file's text.
pub fn read(file: &Path) -> Result<String, String> {
    std::fs::read_to_string(file)
        .map_err(|error| format!("cannot read {}: {error}", file.display()))
}

/// A square table with names: the names, and the numbers by row and column.
fn square(text: &str) -> Result<(Vec<String>, Vec<Vec<f64>>), String> {
    let mut lines = text.lines().enumerate().filter(|(_, line)| {
        let line = line.trim();
        !line.is_empty() && !line.starts_with('#')
    });
    let cells = |line: &str| line.split(',').map(|cell| cell.trim().to_owned()).collect::<Vec<_>>();
    let (_, head) = lines.next().ok_or("it is empty; the first line names the regions")?;
    let names: Vec<String> = cells(head).into_iter().skip(1).collect();
    let mut rows = Vec::new();
    for (at, line) in lines {
        let wrong = |why: String| format!("line {}: {why}", at + 1);
        let row = cells(line);
        let expected = names.get(rows.len()).ok_or_else(|| {
            wrong(format!("there are more lines than the {} regions named", names.len()))
        })?;
        if row.first() != Some(expected) {
            return Err(wrong(format!(
                "it is to be that of {expected:?}, in the order of the names"
            )));
        }
        if row.len() != names.len() + 1 {
            return Err(wrong(format!("it needs {} numbers", names.len())));
        }
        let number = |cell: &String| {
            let number = cell.parse::<f64>().ok().filter(|n| n.is_finite() && *n >= 0.0);
            number.ok_or_else(|| wrong(format!("{cell:?} is no number of 0 or more")))
        };
        rows.push(row[1..].iter().map(number).collect::<Result<Vec<_>, _>>()?);
    }
    if rows.len() != names.len() {
        return Err(format!("it names {} regions and has lines of {}", names.len(), rows.len()));
    }
    Ok((names, rows))
}

fn in_micros(millis: &[Vec<f64>]) -> Result<Latencies, String> {
    let micros = |row: &Vec<f64>| row.iter().map(|ms| (ms * 1000.0).round() as u64).collect();
    Latencies::new(millis.iter().map(micros).collect()).map_err(|error| error.to_string())
}

impl Input {
    fn alike(names: Vec<String>, latencies: Latencies, origin: &'static str) -> Self {
        let weights = vec![vec![1.0; names.len()]; names.len()];
        let weighted_by = "all pairs count alike";
        Self { names, latencies, weights, weighted_by, origin, visible: BTreeMap::new() }
    }

    /// The seven sites of Saturn's evaluation.
    pub fn paper() -> Self {
        let names =
            ["N. Virginia", "N. California", "Oregon", "Ireland", "Frankfurt", "Tokyo", "Sydney"];
        let names = names.map(str::to_owned).to_vec();
        Self::alike(names, Latencies::saturn(), "the sites of Saturn's evaluation")
    }

    /// From the text of a file.
    pub fn of_latencies(text: &str) -> Result<Self, String> {
        let (names, millis) = square(text)?;
        Ok(Self::alike(names, in_micros(&millis)?, "the file of latencies"))
    }

    /// Takes weights from the text of a file.
    pub fn weigh(&mut self, text: &str) -> Result<(), String> {
        let (names, weights) = square(text)?;
        if names != self.names {
            return Err(format!("it is to name {}, in this order", self.names.join(", ")));
        }
        (self.weights, self.weighted_by) = (weights, "weighted by the file of weights");
        Ok(())
    }

    /// What the regions have measured, as the node behind `client` knows it.
    pub async fn measured(client: &Client) -> Result<Self, String> {
        let names = client.query("SELECT name FROM telesto_regions ORDER BY id", &[]).await;
        let names = names.map_err(|error| full(&error))?;
        let names: Vec<String> = names.iter().map(|row| row.get(0)).collect();
        let links = "SELECT from_region, to_region, round_trip_ms, sent_transactions, visible_mean_ms FROM telesto_links";
        let links = client.query(links, &[]).await.map_err(|error| full(&error))?;
        let place = |name: &str| names.iter().position(|known| known == name);
        let mut measured = Vec::new();
        for row in &links {
            let (Some(from), Some(to)) = (place(row.get(0)), place(row.get(1))) else { continue };
            let link =
                Link { from, to, round_trip: row.get(2), sent: row.get(3), visible: row.get(4) };
            measured.push(link);
        }
        Self::of_links(names, &measured)
    }

    fn of_links(names: Vec<String>, links: &[Link]) -> Result<Self, String> {
        if names.len() < 2 {
            return Err("this database is one region alone; a plan needs two (telesto region init, --latencies FILE, or --paper)".to_owned());
        }
        let mut millis = vec![vec![0.0; names.len()]; names.len()];
        let mut weights = millis.clone();
        let mut visible = BTreeMap::new();
        for link in links {
            let (from, to) = (link.from, link.to);
            weights[from][to] = link.sent as f64;
            if let Some(after) = link.visible {
                visible.insert((from, to), after);
            }
            let Some(round_trip) = link.round_trip else { continue };
            // Where both ends have measured, the smaller one has less of their own work in it.
            for (a, b) in [(from, to), (to, from)] {
                let known = &mut millis[a][b];
                let way = round_trip / 2.0;
                *known = if *known > 0.0 { known.min(way) } else { way };
            }
        }
        let pairs = (0..names.len()).flat_map(|a| (0..a).map(move |b| (a, b)));
        let unknown = pairs.filter(|(a, b)| millis[*a][*b] <= 0.0);
        let missing: Vec<String> =
            unknown.map(|(a, b)| format!("{} and {}", names[b], names[a])).collect();
        if !missing.is_empty() {
            return Err(format!(
                "no round trip is known here between {}; regions tell each other every 10 s: try again, ask a node that carries its region's streams (start --region), or give --latencies FILE",
                missing.join(", ")
            ));
        }
        let mut input = Self::alike(names, in_micros(&millis)?, "measured by the regions");
        input.visible = visible;
        if weights.iter().flatten().any(|weight| *weight > 0.0) {
            (input.weights, input.weighted_by) = (weights, "weighted by the transactions sent");
        }
        Ok(input)
    }
}

/// A row of `telesto_links`.
struct Link {
    from: usize,
    to: usize,
    round_trip: Option<f64>,
    sent: i64,
    visible: Option<f64>,
}

#[cfg(test)]
mod tests {
    use telesto_common::RegionId;

    use super::*;

    #[test]
    fn table_of_latencies_is_read_and_what_is_wrong_in_it_is_named() {
        let file = "# one way, ms\n, us, eu\n us, 0, 41.5\n\n eu, 40, 0\n";
        let mut input = Input::of_latencies(file).unwrap();
        assert_eq!(input.names, ["us", "eu"]);
        assert_eq!(input.latencies.get(RegionId(0), RegionId(1)), 41_500);
        assert_eq!(input.latencies.get(RegionId(1), RegionId(0)), 40_000);
        input.weigh(",us,eu\nus,0,3\neu,1,0").unwrap();
        assert_eq!(input.weights[0][1], 3.0);
        assert!(input.weigh(",eu,us\neu,0,3\nus,1,0").unwrap_err().contains("us, eu"));
        for (text, what) in [
            ("", "empty"),
            (",us,eu\nus,0,1\n", "lines of 1"),
            (",us,eu\neu,0,1\n", "that of \"us\""),
            (",us,eu\nus,0\n", "needs 2"),
            (",us,eu\nus,0,x\n", "\"x\" is no number"),
            (",us,eu\nus,0,-1\n", "no number of 0"),
            (",us\nus,0\nus,1\n", "more lines"),
        ] {
            let error = Input::of_latencies(text).unwrap_err();
            assert!(error.contains(what), "{text:?}: {error}");
        }
    }

    #[test]
    fn measured_round_trips_are_halved_and_what_nobody_measured_is_named() {
        let link = |from, to, round_trip, sent| Link { from, to, round_trip, sent, visible: None };
        let names = || ["us", "eu", "ap"].map(str::to_owned).to_vec();
        let mut links =
            vec![link(0, 1, Some(84.0), 10), link(1, 0, Some(82.0), 5), link(2, 0, Some(146.0), 0)];
        let error = Input::of_links(names(), &links).unwrap_err();
        assert!(error.contains("eu and ap") && !error.contains("us and"), "{error}");
        links.push(link(2, 1, Some(214.0), 7));
        let input = Input::of_links(names(), &links).unwrap();
        assert_eq!(input.latencies.get(RegionId(0), RegionId(1)), 41_000);
        assert_eq!(input.latencies.get(RegionId(1), RegionId(2)), 107_000);
        assert_eq!((input.weights[0][1], input.weights[1][2]), (10.0, 0.0));
        let idle: Vec<_> = links.into_iter().map(|link| Link { sent: 0, ..link }).collect();
        let input = Input::of_links(names(), &idle).unwrap();
        assert_eq!(input.weights[0][1], 1.0, "nothing was sent: all alike");
        assert!(Input::of_links(vec!["us".to_owned()], &[]).is_err());
    }
}
