//! Views of one SELECT over tables and views, in whose text a column's new name is put where the
//! old one stands.
//!
//! ```text
//! SELECT c FROM s.t AS t            t.c becomes t.d    SELECT t.d AS c FROM s.t AS t
//! SELECT a.x FROM s.a AS a, …       b gets an x        SELECT a.x … with every bare name behind its relation's
//! ```
//!
//! # Invariants
//! What a name means is told by the relations of the one FROM alone: whatever could mean something
//! else (subqueries, USING, fields of composite values, names of arguments, lists of columns'
//! aliases) makes a view one that is not plain.
//!
//! # On failure
//! `None`: the view is not plain, or a name in it means nothing that is known here. Its text is
//! left alone.

use std::collections::BTreeSet;
use std::ops::ControlFlow;

use super::names::fold;
use super::view_stars::{constraint_mut, output, visible_names};
use telesto_sql_catalog::CatalogSnapshot;
use telesto_sql_parser::names::ident;
use telesto_sql_parser::sqlparser::ast::{
    AccessExpr, Distinct, Expr, FunctionArg, FunctionArguments, JoinConstraint, OrderByKind, Query,
    Select, SelectItem, SetExpr, TableFactor, Visit, VisitMut, Visitor, VisitorMut,
};
use telesto_sql_parser::view_query::parts;

/// A relation of FROM.
struct Member {
    alias: String,
    columns: Vec<String>,
    /// It is the one whose column gets another name.
    target: bool,
}

/// Puts bare names behind their relations' names, and the new name in the place of the old one.
struct Names<'a> {
    members: &'a [Member],
    renamed: Option<(&'a str, &'a str)>,
    /// What a column of one of them is about to be called.
    new: &'a str,
    unknown: bool,
}

impl Names<'_> {
    fn now(&self, member: &Member, column: &str) -> String {
        match self.renamed {
            Some((old, new)) if member.target && column == old => new.to_owned(),
            _ => column.to_owned(),
        }
    }

    fn written(&self, member: &Member, column: &str) -> Expr {
        let column = self.now(member, column);
        Expr::CompoundIdentifier(vec![ident(&member.alias), ident(&column)])
    }
}

impl VisitorMut for Names<'_> {
    type Break = ();

    fn pre_visit_expr(&mut self, expr: &mut Expr) -> ControlFlow<()> {
        match expr {
            Expr::Identifier(name) => {
                let name = fold(name);
                let mut having = self.members.iter().filter(|m| m.columns.contains(&name));
                match (having.next(), having.next()) {
                    (Some(member), None) => *expr = self.written(member, &name),
                    (Some(_), Some(_)) => self.unknown = true,
                    // A relation's row, or a column of the result (GROUP BY): it would come to mean
                    // the column.
                    (None, _) => self.unknown |= name == self.new,
                }
            }
            Expr::CompoundIdentifier(names) => {
                let [.., relation, column] = names.as_slice() else {
                    self.unknown = true;
                    return ControlFlow::Break(());
                };
                let (relation, column) = (fold(relation), fold(column));
                match self.members.iter().find(|member| member.alias == relation) {
                    Some(member) => *expr = self.written(member, &column),
                    None => self.unknown = true,
                }
            }
            _ => {}
        }
        if self.unknown { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    }
}

/// Looks for what makes a view one that is not plain.
#[derive(Default)]
struct Beyond {
    queries: usize,
    found: bool,
}

impl Visitor for Beyond {
    type Break = ();

    fn pre_visit_query(&mut self, _: &Query) -> ControlFlow<()> {
        self.queries += 1;
        ControlFlow::Continue(())
    }

    fn pre_visit_expr(&mut self, expr: &Expr) -> ControlFlow<()> {
        match expr {
            Expr::CompoundFieldAccess { access_chain, .. } => {
                self.found |= access_chain.iter().any(|step| matches!(step, AccessExpr::Dot(_)));
            }
            Expr::Function(call) => {
                if let FunctionArguments::List(list) = &call.args {
                    self.found |=
                        list.args.iter().any(|arg| !matches!(arg, FunctionArg::Unnamed(_)));
                }
            }
            _ => {}
        }
        ControlFlow::Continue(())
    }
}

fn members(
    catalog: &CatalogSnapshot,
    select: &mut Select,
    relation: (&str, &str),
) -> Option<Vec<Member>> {
    let mut members: Vec<Member> = Vec::new();
    let mut known = BTreeSet::new();
    let mut add = |factor: &TableFactor| {
        let TableFactor::Table { name, alias: Some(alias), args: None, .. } = factor else {
            return None;
        };
        let named = parts(name);
        let [schema, called] = named.as_slice() else { return None };
        let builtin = telesto_sql_catalog::builtin::tables::find(Some(schema.as_str()), called);
        let columns = match builtin {
            Some(table) => table.columns.iter().map(|(name, _)| (*name).to_owned()).collect(),
            None => visible_names(catalog.resolve(Some(schema.as_str()), called, &[])?)?,
        };
        let target = (schema.as_str(), called.as_str()) == relation;
        let alias_name = fold(&alias.name);
        let first = known.insert(alias_name.clone());
        (alias.columns.is_empty() && first)
            .then(|| members.push(Member { alias: alias_name, columns, target }))
    };
    for item in &mut select.from {
        add(&item.relation)?;
        for join in &mut item.joins {
            if let Some(JoinConstraint::Using(_) | JoinConstraint::Natural) =
                constraint_mut(&mut join.join_operator)
            {
                return None;
            }
            add(&join.relation)?;
        }
    }
    Some(members)
}

fn is_plain(query: &Query) -> bool {
    let mut beyond = Beyond::default();
    let _ = query.visit(&mut beyond);
    query.with.is_none() && beyond.queries == 1 && !beyond.found
}

/// The query with every name behind its relation's, and with a column's new name where `old` has
/// that column's; the catalog has the relation as it was. Without an old name a column called `new`
/// is about to be added.
pub(super) fn rewritten(
    catalog: &CatalogSnapshot,
    query: &Query,
    relation: (&str, &str),
    old: Option<&str>,
    new: &str,
) -> Option<Query> {
    if !is_plain(query) {
        return None;
    }
    let mut query = query.clone();
    let SetExpr::Select(select) = &mut *query.body else { return None };
    let members = members(catalog, select, relation)?;
    let outputs: Vec<String> = select.projection.iter().map(output).collect::<Option<_>>()?;
    let renamed = old.map(|old| (old, new));
    let mut names = Names { members: &members, renamed, new, unknown: false };
    // ORDER BY and DISTINCT ON look for a column of the result first.
    let is_output =
        |expr: &Expr| matches!(expr, Expr::Identifier(name) if outputs.contains(&fold(name)));
    let mut distinct = select.distinct.take();
    if let Some(Distinct::On(exprs)) = &mut distinct {
        for expr in exprs.iter_mut().filter(|expr| !is_output(expr)) {
            let _ = VisitMut::visit(expr, &mut names);
        }
    }
    if let Some(order) = &mut query.order_by {
        let OrderByKind::Expressions(keys) = &mut order.kind else { return None };
        for key in keys.iter_mut().filter(|key| !is_output(&key.expr)) {
            let _ = VisitMut::visit(&mut key.expr, &mut names);
        }
    }
    let _ = VisitMut::visit(&mut **select, &mut names);
    select.distinct = distinct;
    for (item, before) in select.projection.iter_mut().zip(&outputs) {
        if output(item).as_ref() != Some(before)
            && let SelectItem::UnnamedExpr(expr) = item
        {
            *item = SelectItem::ExprWithAlias { expr: expr.clone(), alias: ident(before) };
        }
    }
    (!names.unknown).then_some(query)
}
