//! A schema as a picture: tables as boxes, foreign keys as lines, drawn by the server.
//!
//! ```text
//! rank = longest way of foreign keys to a table that refers to none     rank 0 left, higher to the right
//! box  = name and the first MOST_COLUMNS columns; line = from the box that refers to the one referred to
//! ```
//!
//! # Purpose
//! Shows at a glance how tables hang together.
//!
//! # Invariants
//! - Deterministic: the same schema gives the same picture.
//! - What it shows stands in the tables of the page too; names are escaped and boxes are links.
//!
//! # On failure
//! A schema without tables, or with too many, has no picture and says so.
//!
//! # Limits
//! [`MOST_TABLES`] tables; circles of foreign keys are cut at an arbitrary place.

use std::collections::BTreeMap;

use maud::{Markup, html};

use crate::query::Table;
use crate::show::encode;

const MOST_TABLES: usize = 80;
const MOST_COLUMNS: usize = 10;
const WIDTH: usize = 210;
const LINE: usize = 18;
const HEAD: usize = 26;
const GAP: (usize, usize) = (70, 24);
const MARGIN: usize = 12;
/// Longest name or type drawn whole, characters.
const LONG: usize = 18;

#[derive(Debug, Default)]
struct Drawn {
    columns: Vec<(String, String)>,
    rank: usize,
    x: usize,
    y: usize,
}

impl Drawn {
    fn height(&self) -> usize {
        let more = usize::from(self.columns.len() > MOST_COLUMNS);
        HEAD + LINE * (self.columns.len().min(MOST_COLUMNS) + more) + 6
    }
}

/// The picture, in a section of its own.
pub fn section(schema: &str, columns: &Table, keys: &Table) -> Markup {
    let mut tables: BTreeMap<String, Drawn> = BTreeMap::new();
    for row in &columns.rows {
        let text = |name: &str| columns.get(row, name).unwrap_or_default().to_owned();
        tables.entry(text("table")).or_default().columns.push((text("name"), text("type")));
    }
    let lines: Vec<(String, String, String)> = keys
        .rows
        .iter()
        .filter(|row| keys.get(row, "referenced_schema") == Some(schema))
        .map(|row| {
            let text = |name: &str| keys.get(row, name).unwrap_or_default().to_owned();
            (text("table"), text("referenced"), text("name"))
        })
        .filter(|(from, to, _)| tables.contains_key(from) && tables.contains_key(to))
        .collect();
    if tables.is_empty() {
        return html! {};
    }
    if tables.len() > MOST_TABLES {
        return html! {
            section { h2 { "Diagram" } p.note { (tables.len()) " tables: more than fit in a picture (" (MOST_TABLES) ")." } }
        };
    }
    let (width, height) = lay_out(&mut tables, &lines);
    let summary = format!("{} tables, {} foreign keys between them", tables.len(), lines.len());
    html! {
        section aria-labelledby="diagram-title" {
            h2 #diagram-title { "Diagram" }
            div.scroll.diagram tabindex="0" role="region" aria-label="Diagram" {
                svg xmlns="http://www.w3.org/2000/svg" width=(width) height=(height) viewBox={ "0 0 " (width) " " (height) }
                    role="group" aria-label=(summary) {
                    @for (from, to, name) in &lines {
                        @if let (Some(from), Some(to)) = (tables.get(from), tables.get(to)) { (line(from, to, name)) }
                    }
                    @for (name, drawn) in &tables { (drawn_box(schema, name, drawn)) }
                }
            }
        }
    }
}

/// Gives every table a rank and a place; the size of the whole.
fn lay_out(
    tables: &mut BTreeMap<String, Drawn>,
    lines: &[(String, String, String)],
) -> (usize, usize) {
    // A way is no longer than there are tables: a circle ends there.
    for _ in 0..tables.len() {
        let mut moved = false;
        for (from, to, _) in lines.iter().filter(|(from, to, _)| from != to) {
            let wanted = tables.get(to).map_or(0, |to| to.rank + 1);
            let most = tables.len() - 1;
            if let Some(from) = tables.get_mut(from)
                && from.rank < wanted.min(most)
            {
                from.rank = wanted.min(most);
                moved = true;
            }
        }
        if !moved {
            break;
        }
    }
    // Tables without any key fill columns of their own, so that the picture is no tower.
    let mut ranks: Vec<usize> = tables.values().map(|drawn| drawn.rank).collect();
    ranks.sort_unstable();
    ranks.dedup();
    let tallest = (tables.values().map(Drawn::height).sum::<usize>() as f64).sqrt() as usize * 14;
    let (mut x, mut bottom) = (MARGIN, 0);
    for rank in ranks {
        let mut y = MARGIN;
        for drawn in tables.values_mut().filter(|drawn| drawn.rank == rank) {
            if y > MARGIN && y + drawn.height() > tallest.max(360) {
                x += WIDTH + GAP.0;
                y = MARGIN;
            }
            (drawn.x, drawn.y) = (x, y);
            y += drawn.height() + GAP.1;
            bottom = bottom.max(y);
        }
        x += WIDTH + GAP.0;
    }
    (x - GAP.0 + MARGIN, bottom - GAP.1 + MARGIN)
}

fn line(from: &Drawn, to: &Drawn, name: &str) -> Markup {
    let (y1, y2) = (from.y + HEAD / 2, to.y + HEAD / 2);
    // From the side that faces the other box.
    let leftwards = from.x > to.x;
    let (x1, x2) = if leftwards { (from.x, to.x + WIDTH) } else { (from.x + WIDTH, to.x + WIDTH) };
    let bend = GAP.0 as i64 / 2;
    let (c1, c2) = if leftwards {
        (x1 as i64 - bend, x2 as i64 + bend)
    } else {
        (x1 as i64 + bend, x2 as i64 + bend)
    };
    html! {
        path.key d={ "M" (x1) " " (y1) " C" (c1) " " (y1) " " (c2) " " (y2) " " (x2) " " (y2) } { title { (name) } }
        circle.key cx=(x2) cy=(y2) r="3.5" {}
    }
}

fn drawn_box(schema: &str, name: &str, drawn: &Drawn) -> Markup {
    let (x, y) = (drawn.x, drawn.y);
    let more = drawn.columns.len().saturating_sub(MOST_COLUMNS);
    html! {
        a href={ "/data/" (encode(schema)) "/" (encode(name)) } {
            title { (name) }
            rect.box x=(x) y=(y) width=(WIDTH) height=(drawn.height()) rx="4" {}
            text.name x=(x + 9) y=(y + 18) { (short(name, LONG + 8)) }
            @for (at, (column, kind)) in drawn.columns.iter().take(MOST_COLUMNS).enumerate() {
                text x=(x + 9) y=(y + HEAD + LINE * at + 13) { (short(column, LONG)) }
                text.kind x=(x + WIDTH - 9) y=(y + HEAD + LINE * at + 13) text-anchor="end" { (short(kind, 14)) }
            }
            @if more > 0 {
                text.kind x=(x + 9) y=(y + HEAD + LINE * MOST_COLUMNS + 13) { (more) " more" }
            }
        }
    }
}

fn short(name: &str, most: usize) -> String {
    match name.char_indices().nth(most) {
        Some((at, _)) => format!("{}…", &name[..at]),
        None => name.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tables(names: &[&str]) -> BTreeMap<String, Drawn> {
        let drawn =
            || Drawn { columns: vec![("id".to_owned(), "integer".to_owned())], ..Drawn::default() };
        names.iter().map(|name| ((*name).to_owned(), drawn())).collect()
    }

    fn line_of(from: &str, to: &str) -> (String, String, String) {
        (from.to_owned(), to.to_owned(), format!("{from}_{to}"))
    }

    #[test]
    fn tables_stand_right_of_what_they_refer_to_and_never_on_each_other() {
        let mut all = tables(&["a", "b", "c", "d"]);
        lay_out(&mut all, &[line_of("c", "b"), line_of("b", "a"), line_of("c", "a")]);
        assert!(all["a"].x < all["b"].x && all["b"].x < all["c"].x);
        let boxes: Vec<&Drawn> = all.values().collect();
        for (at, one) in boxes.iter().enumerate() {
            for other in &boxes[at + 1..] {
                let apart = one.x + WIDTH <= other.x
                    || other.x + WIDTH <= one.x
                    || one.y + one.height() <= other.y
                    || other.y + other.height() <= one.y;
                assert!(apart, "{one:?} {other:?}");
            }
        }
    }

    #[test]
    fn circle_of_keys_ends() {
        let mut all = tables(&["a", "b"]);
        let lines = [line_of("a", "b"), line_of("b", "a"), line_of("a", "a")];
        let (width, height) = lay_out(&mut all, &lines);
        assert!(width > 0 && height > 0 && all.values().all(|drawn| drawn.rank < 2));
    }

    #[test]
    fn hostile_names_are_no_markup_in_the_picture() {
        let drawn = Drawn {
            columns: vec![("<script>".to_owned(), "</svg>".to_owned())],
            ..Drawn::default()
        };
        let markup = drawn_box("s\"", "<script>alert(1)</script>", &drawn).0;
        assert!(!markup.contains("<script") && !markup.contains("</svg"), "{markup}");
        assert!(markup.contains("/data/s%22/%3Cscript%3E"), "{markup}");
    }
}
