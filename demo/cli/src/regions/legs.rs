//! Where a transaction's time goes on its way to another region, as the nodes measure it
//! (`/metrics`).
//!
//! ```text
//! commit ── send ──► link ──► past ──► turn ──► apply ──► visible
//!      append there         its causes  others  reads, append, sync here
//! ```
//! # On failure
//! A node that does not answer ends the demo: it is gone.
//!
//! # Limits
//! By the clocks of the nodes, which are one here. A client that looks for what came takes its own
//! time besides.

use std::collections::BTreeMap;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use super::visibility::Pair;
use super::{name, pairs};

const METRIC: &str = "telesto_regions_leg_seconds_";
const LEGS: [&str; 5] = ["send", "arrive", "past", "turn", "apply"];
const SHARE: f64 = 0.99;

/// A region, leg and peer, and what of them is counted.
type Series = (usize, String, String);

/// What all nodes had counted at one moment.
#[derive(Clone, Debug, Default)]
pub struct Legs(BTreeMap<Series, f64>);

impl Legs {
    /// As the nodes say now.
    pub async fn read(ports: Vec<u16>) -> Result<Self, String> {
        let mut legs = Self::default();
        for (region, port) in ports.into_iter().enumerate() {
            let text = metrics(port).await.map_err(|error| {
                format!("{} does not tell its measurements: {error}", name(region))
            })?;
            for line in text.lines() {
                let Some(rest) = line.strip_prefix(METRIC) else { continue };
                let Some((series, value)) = rest.rsplit_once(' ') else { continue };
                let Some((what, labels)) = series.split_once('{') else { continue };
                let Ok(value) = value.parse::<f64>() else { continue };
                let (Some(leg), Some(peer)) = (label(labels, "leg"), label(labels, "peer")) else {
                    continue;
                };
                let what = format!("{what}{}", label(labels, "le").unwrap_or_default());
                legs.0.insert((region, format!("{leg} {peer}"), what), value);
            }
        }
        Ok(legs)
    }

    /// What was counted from `before` to this.
    pub fn since(&self, before: &Self) -> Self {
        let grown = |(series, value): (&Series, &f64)| {
            (series.clone(), value - before.0.get(series).copied().unwrap_or_default())
        };
        Self(self.0.iter().map(grown).collect())
    }

    /// Both together.
    pub fn and(mut self, other: Self) -> Self {
        for (series, value) in other.0 {
            *self.0.entry(series).or_default() += value;
        }
        self
    }

    fn get(&self, region: usize, series: &str, what: &str) -> Option<f64> {
        self.0.get(&(region, series.to_owned(), what.to_owned())).copied()
    }

    /// Milliseconds on average, and within which 99 of 100 are.
    fn leg(&self, region: usize, series: &str) -> Option<(f64, f64)> {
        let count = self.get(region, series, "count").filter(|count| *count > 0.0)?;
        let average = self.get(region, series, "sum")? / count * 1e3;
        let buckets = self.0.iter().filter_map(|((of, named, what), value)| {
            let bound = what.strip_prefix("bucket")?.parse::<f64>().ok()?;
            (*of == region && named == series && *value >= count * SHARE).then_some(bound)
        });
        Some((average, buckets.fold(f64::INFINITY, f64::min) * 1e3))
    }

    /// A table, one line a pair.
    pub fn table(&self) -> String {
        let mut out = format!(
            "{:<8} {:>11} {:>9} {:>11} {:>11} {:>11}\n",
            "", "send", "link", "past", "turn", "apply"
        );
        for pair in pairs() {
            out.push_str(&self.line(pair).unwrap_or_default());
        }
        out
    }

    fn line(&self, (from, to): Pair) -> Option<String> {
        let [send, arrive, past, turn, apply] = LEGS.map(|leg| match leg {
            "send" => self.leg(from, &format!("{leg} {to}")),
            _ => self.leg(to, &format!("{leg} {from}")),
        });
        let cell = |(average, within): (f64, f64)| format!("{average:.1}/{within:.0}");
        let link = arrive?.0 - send?.0;
        Some(format!(
            "{:<8} {:>11} {link:>9.1} {:>11} {:>11} {:>11}\n",
            format!("{}→{}", name(from), name(to)),
            cell(send?),
            cell(past?),
            cell(turn?),
            cell(apply?)
        ))
    }
}

fn label<'a>(labels: &'a str, name: &str) -> Option<&'a str> {
    let (_, rest) = labels.split_once(&format!("{name}=\""))?;
    rest.split_once('"').map(|(value, _)| value)
}

pub async fn metrics(port: u16) -> std::io::Result<String> {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).await?;
    stream.write_all(b"GET /metrics HTTP/1.0\r\n\r\n").await?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).await?;
    Ok(String::from_utf8_lossy(&answer).into_owned())
}
