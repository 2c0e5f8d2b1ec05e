//! The regions as a picture: which pairs are linked, and how long after its commit in one a
//! transaction is seen in the other.
//!
//! # Purpose
//! The table of links, for the eye: each region a box on a circle, each pair a line with both
//! directions' figures.
//!
//! # Invariants
//! - What the picture shows stands in the table of links, too.
//! - Names are escaped; each line has a title in words.
//!
//! # On failure
//! Without links there is no picture.
//!
//! # Limits
//! [`MOST`] regions; of more there is the table alone. Places on the circle have nothing to do with
//! places on earth: nobody told those.

use std::collections::{BTreeMap, BTreeSet};

use maud::{Markup, html};

use crate::query::Table;
use crate::show::millis;

/// Regions that are drawn.
const MOST: usize = 12;
/// Size of the picture.
const SIZE: (f64, f64) = (760.0, 420.0);
/// Half the size of a box.
const BOX: (f64, f64) = (64.0, 16.0);
/// Characters of a name.
const LONG: usize = 16;

/// What is known of one direction.
type Seen = BTreeMap<(String, String), f64>;

/// The picture; nothing where there are no links.
pub fn draw(links: &Table) -> Markup {
    let mut seen = Seen::new();
    let mut names = BTreeSet::new();
    for row in &links.rows {
        let text = |name: &str| links.get(row, name).unwrap_or_default().to_owned();
        let (from, to) = (text("from_region"), text("to_region"));
        names.extend([from.clone(), to.clone()]);
        if let Some(mean) = links.get(row, "visible_mean_ms").and_then(|mean| mean.parse().ok()) {
            seen.insert((from, to), mean);
        }
    }
    let names: Vec<String> = names.into_iter().filter(|name| !name.is_empty()).collect();
    if names.len() < 2 || names.len() > MOST {
        return html! {};
    }
    let places = places(names.len());
    let pairs: Vec<(usize, usize)> = (0..names.len())
        .flat_map(|one| (one + 1..names.len()).map(move |other| (one, other)))
        .collect();
    let summary = format!("{} regions and what is between them", names.len());
    html! {
        section aria-labelledby="map-title" {
            h2 #map-title { "Map" }
            p.note { "Beside each line: how long after a commit in one region it is seen in the other, on average, in both directions." }
            div.scroll.diagram tabindex="0" role="region" aria-label="Map" {
                svg xmlns="http://www.w3.org/2000/svg" width=(SIZE.0) height=(SIZE.1) viewBox={ "0 0 " (SIZE.0) " " (SIZE.1) }
                    role="group" aria-label=(summary) {
                    @for (one, other) in &pairs {
                        (line((&names[*one], places[*one]), (&names[*other], places[*other]), &seen))
                    }
                    @for (name, (x, y)) in names.iter().zip(&places) {
                        g {
                            title { (name) }
                            rect.box x=(x - BOX.0) y=(y - BOX.1) width=(BOX.0 * 2.0) height=(BOX.1 * 2.0) rx="4" {}
                            text.name x=(x) y=(y + 4.0) text-anchor="middle" { (short(name)) }
                        }
                    }
                }
            }
        }
    }
}

/// Where so many boxes stand: on an ellipse, the first at the top.
fn places(count: usize) -> Vec<(f64, f64)> {
    let (middle, radius) =
        ((SIZE.0 / 2.0, SIZE.1 / 2.0), (SIZE.0 / 2.0 - BOX.0 - 8.0, SIZE.1 / 2.0 - BOX.1 - 8.0));
    (0..count)
        .map(|at| {
            let turn =
                std::f64::consts::TAU * at as f64 / count as f64 - std::f64::consts::FRAC_PI_2;
            let round = |value: f64| (value * 10.0).round() / 10.0;
            (round(middle.0 + radius.0 * turn.cos()), round(middle.1 + radius.1 * turn.sin()))
        })
        .collect()
}

fn line((one, from): (&str, (f64, f64)), (other, to): (&str, (f64, f64)), seen: &Seen) -> Markup {
    let of = |from: &str, to: &str| seen.get(&(from.to_owned(), to.to_owned())).copied();
    let (there, back) = (of(one, other), of(other, one));
    if there.is_none() && back.is_none() {
        return html! {};
    }
    let told = |value: Option<f64>| value.map_or_else(|| "–".to_owned(), millis);
    let title = format!("{one} to {other}: {}; {other} to {one}: {}", told(there), told(back));
    // A third of the way, so that the figures of lines that cross in the middle do not meet.
    let at = (from.0 + (to.0 - from.0) / 3.0, from.1 + (to.1 - from.1) / 3.0);
    html! {
        g {
            title { (title) }
            path.key d={ "M" (from.0) " " (from.1) " L" (to.0) " " (to.1) } {}
            text.kind x=(at.0) y=(at.1 - 4.0) text-anchor="middle" { (told(there)) " / " (told(back)) }
        }
    }
}

fn short(name: &str) -> String {
    match name.char_indices().nth(LONG) {
        Some((at, _)) => format!("{}…", &name[..at]),
        None => name.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::query::Column;

    fn links(rows: &[(&str, &str, &str)]) -> Table {
        let column =
            |name: &str| Column { name: name.to_owned(), kind: String::new(), number: false };
        let names = ["from_region", "to_region", "visible_mean_ms"];
        Table {
            columns: names.into_iter().map(column).collect(),
            rows: rows
                .iter()
                .map(|(from, to, mean)| {
                    let mean = (!mean.is_empty()).then(|| (*mean).to_owned());
                    vec![Some((*from).to_owned()), Some((*to).to_owned()), mean]
                })
                .collect(),
            ..Table::default()
        }
    }

    #[test]
    fn pairs_have_both_directions_and_unknown_ones_a_dash() {
        let drawn = draw(&links(&[
            ("eu", "us", "45.2"),
            ("us", "eu", "47"),
            ("eu", "ap", "120"),
            ("ap", "us", ""),
        ]))
        .0;
        assert!(drawn.contains("eu to us: 45 ms; us to eu: 47 ms"), "{drawn}");
        assert!(drawn.contains("ap to eu: –; eu to ap: 120 ms"), "{drawn}");
        assert!(!drawn.contains("ap to us"), "nothing is known of it");
    }

    #[test]
    fn one_region_has_no_map_and_hostile_names_are_no_markup() {
        assert_eq!(draw(&links(&[])).0, "");
        let drawn = draw(&links(&[("<script>x", "b", "1")])).0;
        assert!(!drawn.contains("<script"), "{drawn}");
    }

    #[test]
    fn boxes_stand_apart() {
        for count in 2..=MOST {
            let places = places(count);
            for (at, one) in places.iter().enumerate() {
                assert!(
                    one.0 >= BOX.0
                        && one.0 <= SIZE.0 - BOX.0
                        && one.1 >= BOX.1
                        && one.1 <= SIZE.1 - BOX.1
                );
                for other in &places[at + 1..] {
                    let apart = (one.0 - other.0).abs() >= 2.0 * BOX.0
                        || (one.1 - other.1).abs() >= 2.0 * BOX.1;
                    assert!(apart, "{count}: {one:?} {other:?}");
                }
            }
        }
    }
}
