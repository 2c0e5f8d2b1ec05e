//! Queries of views, which the catalog keeps as text: what they name, and how they are shown.
//!
//! # Invariants
//! Texts of this version name relations with their schema.
//!
//! # On failure
//! A text that does not parse names nothing and is shown as it is.

use std::ops::ControlFlow;

use sqlparser::ast::{
    Ident, ObjectName, Query, Statement, TableFactor, VisitMut, VisitorMut, visit_relations,
};

use crate::names::{fold, ident};
use crate::parse::parse_kept;

/// The statement a view's text is.
#[must_use]
pub fn query_of(text: &str) -> Option<Box<Query>> {
    match parse_kept(text).ok()?.pop()?.statement.take()? {
        Statement::Query(query) => Some(query),
        _ => None,
    }
}

/// The parts of a name, folded.
#[must_use]
pub fn parts(name: &ObjectName) -> Vec<String> {
    name.0.iter().filter_map(|part| part.as_ident()).map(fold).collect()
}

/// Whether the name means the relation; one without a schema is taken for it (views of older
/// catalogs have such).
#[must_use]
pub fn names(name: &ObjectName, schema: &str, relation: &str) -> bool {
    match parts(name).as_slice() {
        [.., within, name] => within == schema && name == relation,
        [name] => name == relation,
        [] => false,
    }
}

/// Whether the query names the relation.
#[must_use]
pub fn uses(query: &Query, schema: &str, relation: &str) -> bool {
    visit_relations(query, |name| match names(name, schema, relation) {
        true => ControlFlow::Break(()),
        false => ControlFlow::Continue(()),
    })
    .is_break()
}

/// Whether each relation, given by schema and name, is named in a view's text.
pub fn relations_in<'n>(
    text: &str,
    relations: impl Iterator<Item = (&'n str, &'n str)>,
) -> Vec<bool> {
    match query_of(text) {
        Some(query) => relations.map(|(schema, name)| uses(&query, schema, name)).collect(),
        None => Vec::new(),
    }
}

/// For the texts that psql and pg_dump show: schemas that the search path makes unnecessary are
/// left out.
pub fn shown_query(text: &str, visible: impl Fn(&str, &str) -> bool) -> String {
    let Some(mut query) = query_of(text) else { return text.to_owned() };
    struct Short<F>(F);
    impl<F: Fn(&str, &str) -> bool> VisitorMut for Short<F> {
        type Break = ();
        fn pre_visit_table_factor(&mut self, factor: &mut TableFactor) -> ControlFlow<()> {
            if let TableFactor::Table { name, alias, .. } = factor
                && let [schema, relation] = parts(name).as_slice()
            {
                let shown: Vec<Ident> = if (self.0)(schema, relation) {
                    vec![ident(relation)]
                } else {
                    vec![ident(schema), ident(relation)]
                };
                *name = ObjectName::from(shown);
                if alias
                    .as_ref()
                    .is_some_and(|a| a.columns.is_empty() && fold(&a.name) == *relation)
                {
                    *alias = None;
                }
            }
            ControlFlow::Continue(())
        }
    }
    let _ = VisitMut::visit(&mut *query, &mut Short(visible));
    crate::rewrite::collation::restore(&mut *query);
    crate::rewrite::variadic::restore(&mut query);
    crate::rewrite::rows_from::restore(&mut query);
    crate::rewrite::using_alias::restore(&mut query);
    crate::rewrite::group_distinct::restore(&mut query);
    crate::rewrite::search_cycle::restore(&mut query);
    with_exclusions(crate::rewrite::search_cycle::shown(&query.to_string()))
}

/// The text of a query with what stands for EXCLUDE in windows as it is written.
fn with_exclusions(mut text: String) -> String {
    let mark = format!("\"{}", crate::marks::EXCLUDE);
    while let Some(at) = text.find(&mark) {
        let Some((name, behind)) = quoted(&text[at + 1..]) else { return text };
        let begin = at + 1 + behind;
        let Some((left_out, base)) = crate::marks::excluded(&name) else { return text };
        let Some(end) = end_of_window(&text[begin..]) else { return text };
        let word = match left_out {
            "row" => "CURRENT ROW",
            "group" => "GROUP",
            _ => "TIES",
        };
        let base = base.map(|base| ident(base).to_string()).unwrap_or_default();
        let inside = &text[begin..begin + end];
        let inside = if base.is_empty() { inside.trim_start() } else { inside };
        text = format!("{}{base}{inside} EXCLUDE {word}{}", &text[..at], &text[begin + end..]);
    }
    text
}

/// A quoted name behind its first quotation mark, and where what follows it begins.
fn quoted(text: &str) -> Option<(String, usize)> {
    let mut name = String::new();
    let mut chars = text.char_indices().peekable();
    while let Some((at, c)) = chars.next() {
        if c != '"' {
            name.push(c);
        } else if chars.next_if(|(_, next)| *next == '"').is_some() {
            name.push('"');
        } else {
            return Some((name, at + 1));
        }
    }
    None
}

/// Where the parenthesis closes that a text begins inside of.
fn end_of_window(text: &str) -> Option<usize> {
    let (mut depth, mut quote) = (0, None);
    for (at, c) in text.char_indices() {
        match (quote, c) {
            (Some(open), c) if open == c => quote = None,
            (Some(_), _) => {}
            (None, '\'' | '"') => quote = Some(c),
            (None, '(') => depth += 1,
            (None, ')') if depth == 0 => return Some(at),
            (None, ')') => depth -= 1,
            _ => {}
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exclusions_of_windows_are_shown_as_they_are_written() {
        let text = "SELECT sum(a) OVER (PARTITION BY ')' ORDER BY (a) ROWS 1 PRECEDING EXCLUDE TIES), count(*) OVER (w ROWS 1 PRECEDING EXCLUDE CURRENT ROW) FROM t WINDOW w AS (ORDER BY a), x AS (\"W 2\" GROUPS CURRENT ROW EXCLUDE GROUP)";
        let shown = shown_query(text, |_, _| true);
        assert!(!shown.contains('\0'), "{shown}");
        for part in [
            "(PARTITION BY ')' ORDER BY (a) ROWS 1 PRECEDING EXCLUDE TIES)",
            "(w ROWS 1 PRECEDING EXCLUDE CURRENT ROW)",
            "(\"W 2\" GROUPS CURRENT ROW EXCLUDE GROUP)",
        ] {
            assert!(shown.contains(part), "{shown}");
        }
    }

    #[test]
    fn nodes_of_our_own_are_kept_and_shown_as_they_are_written() {
        for written in [
            "SELECT * FROM ROWS FROM(f(1), g(a, 2)) WITH ORDINALITY AS t (a, b, o)",
            "SELECT * FROM u, ROWS FROM(f(ARRAY[1, 2])) JOIN ROWS FROM(g(u.a), h()) AS x ON true",
            "SELECT * FROM a JOIN b USING (\"A\", c) AS j LEFT JOIN (d JOIN e USING (k) AS i) ON true",
            "SELECT a FROM t GROUP BY DISTINCT ROLLUP (a), CUBE (a, b)",
            "WITH RECURSIVE s (x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM s) SEARCH DEPTH FIRST BY x SET o SELECT * FROM s",
            "WITH RECURSIVE s AS (SELECT 1 AS x UNION SELECT x FROM s) SEARCH BREADTH FIRST BY x, \"Y\" SET o CYCLE x SET c USING p, r AS (SELECT 1 UNION ALL SELECT 2 FROM r) CYCLE y SET c TO 'a' DEFAULT 'b' USING q SELECT * FROM s",
        ] {
            let parsed = crate::parse::parse(written).expect("parses").remove(0);
            let tree = parsed.statement.clone().expect("a statement");
            let kept = tree.to_string();
            assert_ne!(kept, written);
            // What is kept is read by both doors, as the same tree.
            let again = crate::parse::parse_kept(&kept).expect("parses again").remove(0);
            assert_eq!(again.statement.as_ref().map(ToString::to_string), Some(kept.clone()));
            let read = crate::syntax::read_query(&kept).expect("is read");
            assert_eq!(read.to_string(), kept);
            assert_eq!(shown_query(&kept, |_, _| true), written);
            // A client has no other way to write it.
            assert!(crate::parse::parse(&kept).is_err(), "{kept}");
        }
    }

    #[test]
    fn words_of_such_nodes_are_names_elsewhere() {
        for sql in [
            "SELECT count(*) rows FROM (SELECT 1) AS x",
            "SELECT a, rows FROM (SELECT 1 AS rows) AS x",
            "SELECT extract(year FROM d), rows FROM (SELECT 1 AS rows) AS x",
            "SELECT search, cycle FROM t",
            "DELETE FROM t USING (SELECT 1) AS u WHERE true",
            "SELECT a FROM t JOIN u USING (a) AS j, (TABLE v) AS w",
            "CREATE SEQUENCE s CYCLE",
        ] {
            assert!(crate::parse::parse(sql).is_ok(), "{sql}");
        }
        for sql in [
            "SELECT * FROM TABLE(f(1))",
            "SELECT * FROM t, TABLE((true, f(1))) AS x",
            "SELECT * FROM a JOIN b USING (a.k)",
            "SELECT a FROM t GROUP BY ROLLUP (())",
            "SELECT a FROM t GROUP BY DISTINCT",
            "WITH RECURSIVE s AS (SELECT 1 |> CALL cycle(a, b, c, d, e)) SELECT 1",
            "SELECT * FROM ROWS FROM(f(1) AS (a int))",
        ] {
            assert!(crate::parse::parse(sql).is_err(), "{sql}");
        }
    }
}
