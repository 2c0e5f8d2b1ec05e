//! What changes of columns do to views: as in PostgreSQL, whose views hold columns by number, they
//! go on showing what they show.
//!
//! ```text
//! RENAME c TO d     plain view (view_plain)     SELECT t.d AS c FROM s.t AS t
//!                   any other                   … FROM s.t AS t (a, c) …            every name in it means what it meant
//! ADD d             plain view                  bare names get their relation's
//!                   any other                   … FROM s.t AS t (a, c, d_1) …       where the view has the name, or NATURAL
//! DROP c            used: refused or dropped    else c leaves the lists of aliases
//! ```
//!
//! Lists of aliases need no knowledge of what a name means in a view, so they are right for every
//! query there is. Plain views get the new name instead, because that is what PostgreSQL shows of
//! them, and because point reads through views know no such lists.
//!
//! # Which view uses a column
//! The binder says: the query is bound once more over a table that has the column twice, under one
//! name. Whatever means the column is ambiguous then, and nothing else is.
//!
//! # On failure
//! A view whose text does not bind uses every column that its text names.
//!
//! # Limits
//! A view that has a relation's whole row uses all its columns, and so does one with a `*` that
//! could not be written out; where such a `*` is, the tables below take no new column (0A000).

use std::ops::ControlFlow;
use std::sync::Arc;

use super::Ddl;
use super::names::fold;
use super::view_plain::rewritten;
use super::view_stars::{Pin, constraint_mut};
use super::views::cte_names;
use telesto_common::TableId;
use telesto_sql_catalog::store::{CatalogChange, Object};
use telesto_sql_catalog::{Column, Table, View, temp};
use telesto_sql_parser::names::ident;
use telesto_sql_parser::sqlparser::ast::{
    Ident, JoinConstraint, ObjectName, Query, Select, SelectItem, TableAlias, TableAliasColumnDef,
    TableFactor, TableWithJoins, VisitMut, VisitorMut,
};
use telesto_sql_parser::sqlparser::dialect::PostgreSqlDialect;
use telesto_sql_parser::sqlparser::tokenizer::{Token, Tokenizer};
use telesto_sql_parser::view_query::{parts, query_of};
use telesto_sql_types::error::{Error, Result};

/// What in a query means columns that it does not name.
#[derive(Default)]
struct Open {
    stars: bool,
    natural: bool,
}

impl Open {
    fn of(query: &Query) -> Self {
        let mut open = Self::default();
        let _ = VisitMut::visit(&mut query.clone(), &mut open);
        open
    }

    fn joins(&mut self, item: &mut TableWithJoins) {
        for join in &mut item.joins {
            let constraint = constraint_mut(&mut join.join_operator);
            self.natural |= matches!(constraint, Some(JoinConstraint::Natural));
        }
    }
}

impl VisitorMut for Open {
    type Break = ();

    fn pre_visit_select(&mut self, select: &mut Select) -> ControlFlow<()> {
        self.stars |= select.projection.iter().any(|item| {
            matches!(item, SelectItem::Wildcard(_) | SelectItem::QualifiedWildcard(..))
        });
        select.from.iter_mut().for_each(|item| self.joins(item));
        ControlFlow::Continue(())
    }

    fn pre_visit_table_factor(&mut self, factor: &mut TableFactor) -> ControlFlow<()> {
        if let TableFactor::NestedJoin { table_with_joins, .. } = factor {
            self.joins(table_with_joins);
        }
        ControlFlow::Continue(())
    }
}

/// Whether a text has this name anywhere, whatever it means there.
fn has_name(text: &str, name: &str) -> bool {
    match Tokenizer::new(&PostgreSqlDialect {}, text).tokenize() {
        Ok(tokens) => tokens.iter().any(|token| match token {
            Token::Word(word) => {
                let written =
                    Ident { quote_style: word.quote_style, ..Ident::new(word.value.clone()) };
                fold(&written) == name
            }
            _ => false,
        }),
        Err(_) => true,
    }
}

/// Goes to each place where a query names a relation by schema and name.
struct Places<'a, F> {
    within: &'a str,
    relation: &'a str,
    edit: F,
}

impl<F: FnMut(&mut ObjectName, &mut TableAlias)> VisitorMut for Places<'_, F> {
    type Break = ();

    fn pre_visit_table_factor(&mut self, factor: &mut TableFactor) -> ControlFlow<()> {
        if let TableFactor::Table { name, alias, args: None, .. } = factor
            && let [within, relation] = parts(name).as_slice()
            && (within.as_str(), relation.as_str()) == (self.within, self.relation)
        {
            let called = || TableAlias {
                explicit: true,
                name: ident(relation),
                columns: Vec::new(),
                at: None,
            };
            (self.edit)(name, alias.get_or_insert_with(called));
        }
        ControlFlow::Continue(())
    }
}

fn at_places(
    query: &mut Query,
    (within, relation): (&str, &str),
    edit: impl FnMut(&mut ObjectName, &mut TableAlias),
) {
    let _ = VisitMut::visit(query, &mut Places { within, relation, edit });
}

/// Gives the first columns of a relation the names that they have by now, up to `count`.
fn fill(alias: &mut TableAlias, names: &[String], count: usize) {
    for name in names.iter().take(count).skip(alias.columns.len()) {
        push(alias, name);
    }
}

fn push(alias: &mut TableAlias, name: &str) {
    alias.columns.push(TableAliasColumnDef { name: ident(name), data_type: None });
}

fn visible(table: &Table) -> Vec<String> {
    table.visible_columns().map(|(_, column)| column.name.clone()).collect()
}

impl Ddl<'_> {
    /// A view's query, in which what names a relation has its schema.
    pub(super) fn query_in(&self, view: &View) -> Option<Query> {
        let path = self.path();
        Some(Pin::new(self.catalog(), &path, false).pinned(&*query_of(&view.query)?))
    }

    /// Whether a view names the relation.
    pub(super) fn names_relation(&self, view: &View, within: &str, relation: &str) -> bool {
        let Some(query) = self.query_in(view) else { return false };
        let ctes = cte_names(&query);
        telesto_sql_parser::sqlparser::ast::visit_relations(&query, |name| {
            let found = match parts(name).as_slice() {
                [.., schema, name] => schema == within && name == relation,
                // Views of older catalogs may have such that no schema of the path has.
                [name] => name == relation && !ctes.contains(name),
                [] => false,
            };
            if found { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        })
        .is_break()
    }

    fn put_query(&mut self, view: &View, query: &Query) {
        self.kept.insert(view.oid);
        self.change.put(Object::View(View { query: query.to_string(), ..view.clone() }));
    }

    /// A column of a relation gets another name: views over it go on calling it as they did.
    /// `names` are those of all its columns.
    pub(super) fn rename_in_views(
        &mut self,
        (schema, relation): (u32, &str),
        names: &[String],
        (old, new): (&str, &str),
    ) {
        let within = self.catalog().schema_name(schema).to_owned();
        let Some(at) = names.iter().position(|name| name == old) else { return };
        for view in self.views_on(schema, relation) {
            let Some(mut query) = self.query_in(&view) else { continue };
            let open = Open::of(&query);
            let named = has_name(&view.query, old) || has_name(&view.query, new);
            if !named && !open.stars && !open.natural {
                continue;
            }
            let place = (within.as_str(), relation);
            match rewritten(self.catalog(), &query, place, Some(old), new) {
                Some(plain) => query = plain,
                None => at_places(&mut query, place, |_, alias| fill(alias, names, at + 1)),
            }
            self.put_query(&view, &query);
        }
    }

    /// [`Self::keep_views_from`], of a table that is about to get a column.
    ///
    /// # Errors
    /// Those of that.
    pub(super) async fn keep_views_of(&mut self, table: &Table, new: &str) -> Result<()> {
        // Earlier actions of the same statement count.
        self.change.put(Object::Table(table.clone()));
        self.keep_views_from((table.schema, &table.name), &visible(table), new).await
    }

    /// A relation with columns of these names is about to get one more: no name in a view over it,
    /// and no `*`, comes to mean it.
    ///
    /// # Errors
    /// 0A000 where a view has a `*` whose columns are not known.
    pub(super) async fn keep_views_from(
        &mut self,
        (schema, relation): (u32, &str),
        names: &[String],
        new: &str,
    ) -> Result<()> {
        let within = self.catalog().schema_name(schema).to_owned();
        let place = (within.as_str(), relation);
        for view in self.views_on(schema, relation) {
            let Some(mut query) = self.query_in(&view) else { continue };
            let mut open = Open::of(&query);
            let mut changed = open.stars || open.natural;
            if changed && let Ok(columns) = self.view_columns(&query).await {
                query = self.kept(&query, &columns).await?;
                open = Open::of(&query);
            }
            if open.stars {
                return Err(Error::unsupported(format!(
                    "adding a column to a relation that view \"{}\" selects with *",
                    view.name
                ))
                .hint("Create the view with the names of its columns."));
            }
            let text = query.to_string();
            if open.natural || has_name(&text, new) {
                changed = true;
                match rewritten(self.catalog(), &query, place, None, new) {
                    Some(plain) => query = plain,
                    None => {
                        let free = free_name(new, &text, names);
                        at_places(&mut query, place, |_, alias| {
                            fill(alias, names, names.len());
                            push(alias, &free);
                        });
                    }
                }
            }
            if changed {
                self.put_query(&view, &query);
            }
        }
        Ok(())
    }

    /// A column is about to go that no view uses: lists of aliases get shorter by it.
    pub(super) fn drop_in_views(&mut self, table: &Table, position: usize) {
        let Some(at) = table.visible_columns().position(|(own, _)| own == position) else { return };
        let within = self.catalog().schema_name(table.schema).to_owned();
        for view in self.views_on(table.schema, &table.name) {
            let Some(mut query) = self.query_in(&view) else { continue };
            let mut changed = false;
            at_places(&mut query, (&within, &table.name), |_, alias| {
                if at < alias.columns.len() {
                    alias.columns.remove(at);
                    changed = true;
                }
            });
            if changed {
                self.put_query(&view, &query);
            }
        }
    }

    /// The views that use a column of a table.
    pub(super) async fn views_using_column(
        &self,
        table: &Table,
        position: usize,
    ) -> Vec<Arc<View>> {
        let mut users = Vec::new();
        for view in self.views_on(table.schema, &table.name) {
            let uses = match self.query_in(&view) {
                Some(query) => self.query_uses_column(query, table, position).await,
                None => None,
            };
            if uses.unwrap_or(true) {
                users.push(view);
            }
        }
        users
    }

    /// Whether a query uses a column of a table; `None`: it cannot be told.
    pub(super) async fn query_uses_column(
        &self,
        mut query: Query,
        table: &Table,
        position: usize,
    ) -> Option<bool> {
        let mut open = Open::of(&query);
        if open.stars
            && let Ok(columns) = self.view_columns(&query).await
        {
            let Ok(kept) = self.kept(&query, &columns).await else { return None };
            query = kept;
            open = Open::of(&query);
        }
        let Some(at) = table.visible_columns().position(|(own, _)| own == position) else {
            return Some(false);
        };
        let within = self.catalog().schema_name(table.schema).to_owned();
        let (names, text) = (visible(table), query.to_string());
        // What the view calls it, wherever it names the table, and what it calls the table there.
        let (mut called, mut relations) = (Vec::new(), Vec::new());
        at_places(&mut query.clone(), (&within, &table.name), |_, alias| {
            let given = alias.columns.get(at).map(|column| fold(&column.name));
            called.push(given.unwrap_or_else(|| names[at].clone()));
            relations.push(fold(&alias.name));
        });
        if called.is_empty() || open.stars {
            // Not named by its schema, or with a `*` whose columns are not known.
            return None;
        }
        if !open.natural && !called.iter().any(|name| has_name(&text, name)) {
            return Some(false);
        }
        // A name that is a relation's, too, would mean its row where the column is ambiguous.
        if called.iter().any(|name| relations.contains(name)) {
            return None;
        }
        let free = free_name("twice", &text, &names);
        let catalog = Arc::new(self.with_column_twice(table, position, &free));
        let over = |twice: bool| {
            let mut query = query.clone();
            at_places(&mut query, (&within, &table.name), |name, alias| {
                fill(alias, &names, names.len());
                let own = alias.columns.get(at).map(|column| fold(&column.name));
                let last = own.filter(|_| twice).unwrap_or_else(|| free.clone());
                push(alias, &last);
                *name = ObjectName::from(vec![ident(&within), ident(&twin(table))]);
            });
            query
        };
        if self.view_columns_in(&catalog, &over(false)).await.is_err() {
            return None;
        }
        Some(self.view_columns_in(&catalog, &over(true)).await.is_err())
    }

    /// The catalog with another table, which has a column twice.
    fn with_column_twice(
        &self,
        table: &Table,
        position: usize,
        free: &str,
    ) -> telesto_sql_catalog::CatalogSnapshot {
        let mut change = CatalogChange::new(Arc::clone(&self.context.txn), self.catalog());
        change.define_temporary(temp::is_temporary(table.schema));
        let mut other = table.clone();
        other.id = TableId(change.oid());
        other.name = twin(table);
        let id = other.columns.iter().map(|column| column.id).max().unwrap_or_default();
        let ty = table.columns[position].ty.clone();
        other.columns.push(Column::new(id.saturating_add(1), free.to_owned(), ty));
        change.put(Object::Table(other));
        change.catalog().clone()
    }
}

/// What a table is called that is there to be bound over.
fn twin(table: &Table) -> String {
    format!("{}#twice", table.name)
}

/// A name that neither a text has nor one of these is.
fn free_name(base: &str, text: &str, names: &[String]) -> String {
    let mut number = 1_u64;
    loop {
        let name = format!("{base}_{number}");
        if !has_name(text, &name) && !names.contains(&name) {
            return name;
        }
        number += 1;
    }
}
