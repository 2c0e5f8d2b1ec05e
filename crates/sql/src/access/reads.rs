//! What a query reads.
//!
//! # Invariants
//! A view is read with its owner's rights, or with those of whoever runs the statement where it is
//! `security_invoker`; names of WITH outside of a view mean nothing inside.

use std::collections::BTreeSet;
use std::ops::ControlFlow;
use std::sync::Arc;

use telesto_sql_catalog::rights::denied;
use telesto_sql_catalog::{Guarded, Relation, Rights, Table, View};
use telesto_sql_parser::rewrite::using_alias::{self, constraint};
use telesto_sql_parser::sqlparser::ast::{
    self, Expr, Ident, JoinConstraint, ObjectName, Query, Select, SelectItem,
    SelectItemQualifiedWildcardKind, SetExpr, Statement, TableAlias, TableFactor, TableWithJoins,
};

use super::columns::{Level, Member, Source};
use super::{MAX_VIEWS, Named, Walk};
use crate::error::{Error, Result};
use crate::expr::fold;

impl Walk<'_> {
    pub(super) fn query(&mut self, query: &Query, outer: &Level) -> Result<Level> {
        let before = self.ctes.len();
        let result = telesto_sql_parser::stack::deeper(|| self.query_here(query, outer));
        self.ctes.truncate(before);
        result
    }

    fn query_here(&mut self, query: &Query, outer: &Level) -> Result<Level> {
        let mut outer = outer.clone();
        if let Some(with) = &query.with {
            for cte in &with.cte_tables {
                let name = fold(&cte.alias.name);
                match (&*cte.query.body, with.recursive) {
                    // Only behind UNION the name means what is being computed.
                    (SetExpr::SetOperation { left, right, .. }, true)
                        if cte.query.with.is_none() =>
                    {
                        let found = self.body(left, None, &outer)?;
                        outer.merge(&found);
                        // Should an executor take the name for a table of the catalog, that may be
                        // read.
                        if let Some(Relation::Table(table)) =
                            self.catalog.resolve(None, &name, &self.path)
                        {
                            Guarded::table(table).need(&self.actor, Rights::SELECT)?;
                        }
                        self.ctes.push(name.clone());
                        let found = self.body(right, None, &outer)?;
                        outer.merge(&found);
                        let rest = Query { body: Box::new(empty()), ..(*cte.query).clone() };
                        let found = self.rest_of(&rest, &outer)?;
                        outer.merge(&found);
                    }
                    _ => {
                        let found = self.query(&cte.query, &outer)?;
                        outer.merge(&found);
                        self.ctes.push(name);
                    }
                }
            }
        }
        let found = self.body(&query.body, Some(query), &outer)?;
        outer.merge(&found);
        if !matches!(&*query.body, SetExpr::Select(_)) {
            let found = self.rest_of(query, &outer)?;
            outer.merge(&found);
        }
        Ok(outer)
    }

    /// What is around a query's body: ORDER BY, LIMIT and all the rest but WITH.
    fn rest_of(&mut self, query: &Query, outer: &Level) -> Result<Level> {
        let around = Query { with: None, body: Box::new(empty()), ..query.clone() };
        let mut level = Level::inside(outer, Vec::new());
        self.expressions(|visitor| ast::Visit::visit(&around, visitor), &mut level, 1)?;
        Ok(level)
    }

    /// [`Walk::body_here`] on enough stack: branches of set operations are as deep as there are of
    /// them.
    fn body(&mut self, body: &SetExpr, around: Option<&Query>, outer: &Level) -> Result<Level> {
        telesto_sql_parser::stack::deeper(|| self.body_here(body, around, outer))
    }

    /// A query's body; `around`: the query, where names in its ORDER BY may be those of the body's
    /// relations.
    fn body_here(
        &mut self,
        body: &SetExpr,
        around: Option<&Query>,
        outer: &Level,
    ) -> Result<Level> {
        let mut outer_found = outer.clone();
        match body {
            SetExpr::Select(select) => return self.select(select, around, outer),
            SetExpr::Query(query) => return self.query(query, outer),
            SetExpr::SetOperation { left, right, .. } => {
                let found = self.body(left, None, outer)?;
                outer_found.merge(&found);
                let found = self.body(right, None, outer)?;
                outer_found.merge(&found);
            }
            SetExpr::Values(values) => {
                let mut level = Level::inside(outer, Vec::new());
                self.expressions(|visitor| ast::Visit::visit(values, visitor), &mut level, 0)?;
                outer_found.merge(&level);
            }
            SetExpr::Table(table) => {
                let mut parts = Vec::new();
                for part in [&table.schema_name, &table.table_name].into_iter().flatten() {
                    parts.push(Ident::new(part.clone()));
                }
                let mut member = self.relation(&ObjectName::from(parts), None, true)?;
                member.read_all();
                self.settle(&member)?;
            }
            SetExpr::Insert(statement)
            | SetExpr::Update(statement)
            | SetExpr::Delete(statement)
            | SetExpr::Merge(statement) => self.write(statement, outer)?,
        }
        Ok(outer_found)
    }

    fn select(&mut self, select: &Select, around: Option<&Query>, outer: &Level) -> Result<Level> {
        let mut members = Vec::new();
        for from in &select.from {
            self.from(from, &mut members)?;
        }
        let locks = around.map_or(&[][..], |query| &query.locks);
        let mut level = Level::inside(outer, members);
        for from in &select.from {
            self.joined_by_name(from, &mut level);
        }
        self.items(&select.projection, &mut level);
        self.expressions(|visitor| ast::Visit::visit(select, visitor), &mut level, 0)?;
        if let Some(query) = around {
            let rest = Query { with: None, body: Box::new(empty()), ..query.clone() };
            self.expressions(|visitor| ast::Visit::visit(&rest, visitor), &mut level, 1)?;
        }
        for lock in locks {
            let of = lock.of.as_ref().map(last);
            if let Some(name) = lock
                .of
                .as_ref()
                .filter(|name| level.levels[0].iter().any(|member| member.name == last(name)))
            {
                self.seen.insert(name.to_string());
            }
            for member in
                level.levels[0].iter().filter(|m| of.as_ref().is_none_or(|of| *of == m.name))
            {
                if let Source::Table(table) = &member.source {
                    self.any_column(table, Rights::UPDATE)?;
                }
                if let Some(view) = &member.view {
                    Guarded::view(view).need(&self.actor, Rights::UPDATE)?;
                }
            }
        }
        for member in &level.levels[0] {
            self.settle(member)?;
        }
        let mut found = outer.clone();
        found.merge(&level);
        Ok(found)
    }

    /// `*` in a select list, in RETURNING.
    pub(super) fn items(&mut self, items: &[SelectItem], level: &mut Level) {
        for item in items {
            match item {
                SelectItem::Wildcard(_) => level.own().iter_mut().for_each(Member::read_all),
                SelectItem::QualifiedWildcard(
                    SelectItemQualifiedWildcardKind::ObjectName(name),
                    _,
                ) => {
                    level.all_of(&last(name));
                }
                SelectItem::QualifiedWildcard(SelectItemQualifiedWildcardKind::Expr(_), _)
                | SelectItem::UnnamedExpr(_)
                | SelectItem::ExprWithAlias { .. }
                | SelectItem::ExprWithAliases { .. } => {}
            }
        }
    }

    pub(super) fn from(&mut self, from: &TableWithJoins, members: &mut Vec<Member>) -> Result<()> {
        self.factor(&from.relation, members)?;
        for join in &from.joins {
            self.factor(&join.relation, members)?;
            if let Some(JoinConstraint::Using(names)) = constraint(join)
                && let Some(alias) = using_alias::alias(names)
            {
                members.push(Member::whole(fold(alias), Some(names.iter().map(last).collect())));
            }
        }
        Ok(())
    }

    pub(super) fn factor(&mut self, factor: &TableFactor, members: &mut Vec<Member>) -> Result<()> {
        match factor {
            // With arguments it is a function.
            TableFactor::Table { name, alias, args: Some(_), .. } => {
                self.seen.insert(name.to_string());
                members.push(Member::whole(called(alias.as_ref(), &last(name)), None));
            }
            TableFactor::Table { name, alias, args: None, .. } => {
                members.push(self.relation(name, alias.as_ref(), true)?);
            }
            TableFactor::NestedJoin { table_with_joins, alias } => {
                let mut inner = Vec::new();
                self.from(table_with_joins, &mut inner)?;
                if let Some(alias) = alias {
                    // Its columns are those of all that is joined: which, the alias hides.
                    inner.iter_mut().for_each(Member::read_all);
                    members.push(Member::whole(fold(&alias.name), None));
                }
                members.extend(inner);
            }
            // Subqueries in FROM are looked at with the expressions.
            TableFactor::Derived { alias, .. }
            | TableFactor::TableFunction { alias, .. }
            | TableFactor::Function { alias, .. }
            | TableFactor::UNNEST { alias, .. } => {
                if let TableFactor::Function { name, .. } = factor {
                    self.seen.insert(name.to_string());
                }
                let columns = alias.as_ref().map(|alias| {
                    alias.columns.iter().map(|column| fold(&column.name)).collect::<Vec<_>>()
                });
                let columns = columns.filter(|columns| !columns.is_empty());
                members.push(Member::whole(called(alias.as_ref(), ""), columns));
            }
            other => {
                self.unknown(
                    denied(format!("permission denied for {other}"))
                        .detail("The check of rights does not know this form of FROM."),
                )?;
            }
        }
        Ok(())
    }

    /// The columns that USING and NATURAL name.
    pub(super) fn joined_by_name(&mut self, from: &TableWithJoins, level: &mut Level) {
        for join in &from.joins {
            let Some(constraint) = constraint(join) else { continue };
            match constraint {
                JoinConstraint::Using(names) => {
                    for name in names {
                        level.name(&last(name));
                    }
                }
                JoinConstraint::Natural => level.natural(),
                JoinConstraint::On(_) | JoinConstraint::None => {}
            }
        }
        // Joins in parentheses.
        let inside = std::iter::once(&from.relation).chain(from.joins.iter().map(|j| &j.relation));
        for factor in inside {
            if let TableFactor::NestedJoin { table_with_joins, .. } = factor {
                self.joined_by_name(table_with_joins, level);
            }
        }
    }

    /// A named relation; whatever has no columns to count is checked at once.
    pub(super) fn relation(
        &mut self,
        name: &ObjectName,
        alias: Option<&TableAlias>,
        asked: bool,
    ) -> Result<Member> {
        let shown = called(alias, &last(name));
        let mut member = match self.named(name)? {
            Named::Given | Named::Nothing => Member::whole(shown, None),
            Named::System(table) => {
                let columns = table.columns.iter().map(|(name, _)| (*name).to_owned()).collect();
                Member::whole(shown, Some(columns))
            }
            Named::Found(Relation::Table(table)) => Member::table(shown, table, asked),
            Named::Found(Relation::View(view)) => {
                self.read_view(&view)?;
                let columns = view.columns.iter().map(|(name, _)| name.clone()).collect();
                Member { view: Some(view), ..Member::whole(shown, Some(columns)) }
            }
            Named::Found(Relation::Sequence(sequence)) => {
                Guarded::sequence(&sequence).need(&self.actor, Rights::SELECT)?;
                Member::whole(shown, None)
            }
            Named::Found(Relation::Index(..)) => Member::whole(shown, None),
        };
        if let Some(alias) = alias {
            let names: Vec<String> =
                alias.columns.iter().map(|column| fold(&column.name)).collect();
            match &mut member.source {
                Source::Table(_) => member.renamed = names,
                Source::Whole(Some(columns)) => {
                    for (column, name) in columns.iter_mut().zip(names) {
                        *column = name;
                    }
                }
                Source::Whole(None) => {}
            }
        }
        Ok(member)
    }

    /// Reads a view: the right on it, and what is below with its owner's.
    pub(super) fn read_view(&mut self, view: &Arc<View>) -> Result<()> {
        Guarded::view(view).need(&self.actor, Rights::SELECT)?;
        self.below_view(view)
    }

    /// What a view's query reads.
    pub(super) fn below_view(&mut self, view: &Arc<View>) -> Result<()> {
        if self.views >= MAX_VIEWS {
            return Err(Error::new(
                crate::error::SqlState::STATEMENT_TOO_COMPLEX,
                "views are nested too deeply",
            ));
        }
        let query = super::query_of(&view.query)?;
        let reader = if view.security_invoker { self.settings.current_role } else { view.owner.0 };
        let actor = std::mem::replace(&mut self.actor, self.catalog.actor(reader));
        let ctes = std::mem::take(&mut self.ctes);
        let seen = std::mem::take(&mut self.seen);
        self.views += 1;
        let result = self.whole_query(&query);
        self.views -= 1;
        self.seen = seen;
        self.ctes = ctes;
        self.actor = actor;
        result
    }

    /// Fails unless what was read of a relation may be read.
    pub(super) fn settle(&self, member: &Member) -> Result<()> {
        let Source::Table(table) = &member.source else { return Ok(()) };
        if member.read.is_empty() {
            return if member.asked { self.any_column(table, Rights::SELECT) } else { Ok(()) };
        }
        self.columns(table, &member.read, Rights::SELECT)
    }

    /// Fails unless the role has these rights on all of these columns.
    pub(super) fn columns(
        &self,
        table: &Table,
        columns: &BTreeSet<usize>,
        rights: Rights,
    ) -> Result<()> {
        let guarded = Guarded::table(table);
        if guarded.rights_of(&self.actor).has(rights) {
            return Ok(());
        }
        let granted = |at: &usize| self.catalog.column_rights(&self.actor, table, *at).has(rights);
        if !columns.is_empty() && columns.iter().all(granted) {
            return Ok(());
        }
        Err(guarded.refused())
    }

    /// Fails unless the role has the right on a column at least.
    pub(super) fn any_column(&self, table: &Table, right: Rights) -> Result<()> {
        let guarded = Guarded::table(table);
        if guarded.rights_of(&self.actor).has(right) {
            return Ok(());
        }
        let mut columns = table.visible_columns();
        let any =
            columns.any(|(at, _)| self.catalog.column_rights(&self.actor, table, at).has(right));
        if any { Ok(()) } else { Err(guarded.refused()) }
    }

    /// Counts what expressions read; queries inside are looked at with `level` around them.
    /// `depth`: how many queries around the expressions `visit` goes into by itself.
    pub(super) fn expressions(
        &mut self,
        visit: impl FnOnce(&mut Expressions<'_, '_>) -> ControlFlow<Error>,
        level: &mut Level,
        depth: usize,
    ) -> Result<()> {
        let mut visitor = Expressions { walk: self, level, depth: 0, own: depth };
        match visit(&mut visitor) {
            ControlFlow::Continue(()) => Ok(()),
            ControlFlow::Break(error) => Err(error),
        }
    }
}

/// The last part of a name.
pub(super) fn last(name: &ObjectName) -> String {
    name.0.last().and_then(|part| part.as_ident()).map(fold).unwrap_or_default()
}

fn called(alias: Option<&TableAlias>, name: &str) -> String {
    alias.map_or_else(|| name.to_owned(), |alias| fold(&alias.name))
}

/// A body that reads nothing.
fn empty() -> SetExpr {
    SetExpr::Values(ast::Values { explicit_row: false, value_keyword: false, rows: Vec::new() })
}

/// Goes through expressions of one level.
pub(super) struct Expressions<'w, 'a> {
    walk: &'w mut Walk<'a>,
    level: &'w mut Level,
    depth: usize,
    own: usize,
}

impl ast::Visitor for Expressions<'_, '_> {
    type Break = Error;

    fn pre_visit_query(&mut self, query: &Query) -> ControlFlow<Error> {
        self.depth += 1;
        if self.depth == self.own + 1 {
            // Whatever it finds further out is this level's.
            match self.walk.query(query, self.level) {
                Ok(found) => self.level.merge(&found),
                Err(error) => return ControlFlow::Break(error),
            }
        }
        ControlFlow::Continue(())
    }

    fn post_visit_query(&mut self, _: &Query) -> ControlFlow<Error> {
        self.depth -= 1;
        ControlFlow::Continue(())
    }

    fn pre_visit_statement(&mut self, _: &Statement) -> ControlFlow<Error> {
        // Writes inside of WITH are looked at as parts of their query.
        ControlFlow::Continue(())
    }

    fn pre_visit_expr(&mut self, expr: &Expr) -> ControlFlow<Error> {
        if self.depth > self.own {
            return ControlFlow::Continue(());
        }
        match expr {
            Expr::Identifier(name) => self.level.name(&fold(name)),
            Expr::CompoundIdentifier(names) => {
                let names: Vec<String> = names.iter().map(fold).collect();
                let level = &mut *self.level;
                if let [.., relation, column] = names.as_slice() {
                    let known = level.qualified(relation, column)
                        // A field of a column, which may itself be a relation's.
                        || (names.len() > 2 && level.qualified(&names[0], &names[1]));
                    if !known {
                        level.name(&names[0]);
                    }
                }
            }
            Expr::QualifiedWildcard(name, _) => self.level.all_of(&last(name)),
            Expr::Wildcard(_) => {}
            Expr::CompoundFieldAccess { root, .. } => {
                if let Expr::Identifier(name) = &**root {
                    self.level.name(&fold(name));
                }
            }
            Expr::Function(call) => {
                if let ast::FunctionArguments::List(list) = &call.args {
                    for argument in &list.args {
                        if let ast::FunctionArg::Unnamed(ast::FunctionArgExpr::QualifiedWildcard(
                            name,
                        )) = argument
                        {
                            self.level.all_of(&last(name));
                        }
                    }
                }
            }
            _ => {}
        }
        ControlFlow::Continue(())
    }
}
