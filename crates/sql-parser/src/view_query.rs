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
use crate::parse::parse;

/// The statement a view's text is.
#[must_use]
pub fn query_of(text: &str) -> Option<Box<Query>> {
    match parse(text).ok()?.pop()?.statement.take()? {
        Statement::Query(query) => Some(query),
        _ => None,
    }
}

/// The parts of a name, folded.
#[must_use]
pub fn parts(name: &ObjectName) -> Vec<String> {
    name.0.iter().filter_map(|part| part.as_ident()).map(fold).collect()
}

/// Whether the name means the relation; one without a schema is taken for it (views of older catalogs have such).
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

/// For the texts that psql and pg_dump show: schemas that the search path makes unnecessary are left out.
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
    query.to_string()
}
