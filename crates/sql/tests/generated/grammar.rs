//! Expressions made at random from `tests/data/generated.grammar`.

use std::collections::BTreeMap;

use rand::Rng;
use rand::rngs::StdRng;
use rand::seq::IndexedRandom;

const TEXT: &str = include_str!("../data/generated.grammar");

/// Something an expression of a type can be; `risky` ones may raise errors.
#[derive(Debug)]
struct Choice {
    text: &'static str,
    risky: bool,
}

/// The grammar, by type and by list.
#[derive(Debug, Default)]
pub struct Grammar {
    literals: BTreeMap<&'static str, Vec<Choice>>,
    productions: BTreeMap<&'static str, Vec<Choice>>,
    lists: BTreeMap<&'static str, Vec<&'static str>>,
}

/// A column in scope: how it is written, and its type.
#[derive(Clone, Debug)]
pub struct ScopeColumn {
    pub text: String,
    pub ty: &'static str,
}

impl Grammar {
    pub fn load() -> Self {
        let mut out = Self::default();
        for line in TEXT.lines() {
            if line.trim().is_empty() || line.starts_with('#') {
                continue;
            }
            // The type may end in [], so the mark is the first of `:`, `!`, `=` that a space
            // follows.
            let (head, text) = line.split_once(' ').expect("`type: template`");
            if let Some(list) = head.strip_prefix('%') {
                out.lists.entry(list.trim_end_matches('=')).or_default().push(text);
            } else if let Some(ty) = head.strip_suffix("=!") {
                out.literals.entry(ty).or_default().push(Choice { text, risky: true });
            } else if let Some(ty) = head.strip_suffix('=') {
                out.literals.entry(ty).or_default().push(Choice { text, risky: false });
            } else if let Some(ty) = head.strip_suffix('!') {
                out.productions.entry(ty).or_default().push(Choice { text, risky: true });
            } else if let Some(ty) = head.strip_suffix(':') {
                out.productions.entry(ty).or_default().push(Choice { text, risky: false });
            } else {
                panic!("not a line of the grammar: {line}");
            }
        }
        out
    }

    /// Types with literals, which all can be columns.
    pub fn types(&self) -> Vec<&'static str> {
        self.literals.keys().copied().collect()
    }

    fn pick(&self, choices: &[Choice], rng: &mut StdRng, risky: bool) -> Option<&'static str> {
        let fit: Vec<&Choice> = choices.iter().filter(|choice| risky || !choice.risky).collect();
        fit.choose(rng).map(|choice| choice.text)
    }

    /// A literal; without extreme values unless `risky`.
    pub fn literal(&self, ty: &str, rng: &mut StdRng, risky: bool) -> &'static str {
        self.pick(&self.literals[ty], rng, risky).expect("every type has plain literals")
    }

    fn leaf(&self, ty: &str, scope: &[ScopeColumn], rng: &mut StdRng, risky: bool) -> String {
        let columns: Vec<&ScopeColumn> = scope.iter().filter(|column| column.ty == ty).collect();
        if let Some(column) = columns.choose(rng)
            && rng.random_bool(0.75)
        {
            return column.text.clone();
        }
        if rng.random_bool(0.06) {
            return format!("null::{}", sql_name(ty));
        }
        self.literal(ty, rng, risky).to_owned()
    }

    /// An expression of a type over the columns in scope, at most `depth` calls deep.
    pub fn expression(
        &self,
        ty: &str,
        scope: &[ScopeColumn],
        depth: u32,
        rng: &mut StdRng,
        risky: bool,
    ) -> String {
        if depth == 0 || rng.random_bool(0.15) {
            return self.leaf(ty, scope, rng, risky);
        }
        let Some(template) =
            self.productions.get(ty).and_then(|productions| self.pick(productions, rng, risky))
        else {
            return self.leaf(ty, scope, rng, risky);
        };
        let mut out = String::from("(");
        let mut rest = template;
        while let Some(at) = rest.find(['$', '%']) {
            let (before, from) = rest.split_at(at);
            out.push_str(before);
            let end = from[1..]
                .find(|c: char| !(c.is_ascii_alphanumeric()))
                .map_or(from.len(), |end| end + 1);
            let mut name = &from[1..end];
            rest = &from[end..];
            if from.starts_with('%') {
                let chosen = self.lists.get(name).and_then(|values| values.choose(rng));
                out.push_str(chosen.unwrap_or(&"%"));
                if chosen.is_none() {
                    // An operator, or a pattern's own %.
                    rest = from.trim_start_matches('%');
                }
                continue;
            }
            let array = format!("{name}[]");
            if rest.starts_with("[]") && self.literals.contains_key(array.as_str()) {
                name = &array;
                rest = &rest[2..];
            }
            assert!(self.literals.contains_key(name), "{template}: no type {name}");
            out.push_str(&self.expression(name, scope, depth - 1, rng, risky));
        }
        out.push_str(rest);
        out.push(')');
        out
    }
}

/// How a type is written in a definition or a cast.
pub fn sql_name(ty: &str) -> &str {
    match ty {
        "bpchar" => "char(4)",
        other => other,
    }
}
