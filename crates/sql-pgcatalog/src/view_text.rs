//! The queries of views as PostgreSQL prints them back: `pg_get_viewdef`, `pg_views`,
//! `information_schema.views`.
//!
//! ```text
//! stored text -> parsed -> each expression bound over the relations of FROM -> printed, columns with their relation's name
//!    anything that is not one SELECT of tables and joins, or does not bind -> None: whoever shows it takes the stored text
//! ```
//!
//! # Invariants
//! What is printed parses again, and names the same relations.
//!
//! # Limits
//! No WITH, set operations, subqueries, functions in FROM, USING, windows, DISTINCT ON and grouping
//! sets.

use std::sync::Arc;

use telesto_sql_catalog::{CatalogSnapshot, Relation, View};
use telesto_sql_expr::bind::CallHook;
use telesto_sql_expr::deparse::Deparse;
use telesto_sql_expr::shown_names::relation_name;
use telesto_sql_expr::{
    Binder, CastContext, EvalContext, Expr, Node, Scope, ScopeColumn, ScopeRelation, Settings, fold,
};
use telesto_sql_parser::sqlparser::ast::{
    self, Distinct, GroupByExpr, JoinConstraint, JoinOperator, LimitClause, OrderByKind, Query,
    SelectItem, SetExpr, TableFactor, TableWithJoins, Value,
};
use telesto_sql_parser::view_query::{parts, query_of};
use telesto_sql_plan::ParameterTypes;
use telesto_sql_plan::compiled_table::relation;
use telesto_sql_types::SqlType;
use telesto_sql_types::error::{Error, Result};
use telesto_sql_types::identifier::quote_ident;

/// The text, without a semicolon; `None`: the query has a part that is not known here.
pub(crate) fn view_text(
    catalog: &Arc<CatalogSnapshot>,
    settings: &Settings,
    view: &View,
    pretty: bool,
) -> Option<String> {
    // A constant of several lines would be indented.
    if view.query.contains('\n') {
        return None;
    }
    let query = query_of(&view.query)?;
    let SetExpr::Select(select) = &*query.body else { return None };
    if !is_plain(&query, select) {
        return None;
    }
    let binding = settings.of_owner(catalog, view.owner.0);
    let binding = &binding;
    let mut from =
        From { catalog, settings, binding, pretty, scope: Scope::default(), columns: Vec::new() };
    let tables = select.from.iter().map(|table| from.table(table)).collect::<Option<Vec<_>>>()?;
    let shown = Shown { from: &from, view, select };
    let text = shown.text(&query, &tables).ok()?;
    query_of(&text).is_some().then_some(text)
}

fn is_plain(query: &Query, select: &ast::Select) -> bool {
    let grouped = match &select.group_by {
        GroupByExpr::Expressions(_, modifiers) => modifiers.is_empty(),
        GroupByExpr::All(_) => false,
    };
    query.with.is_none()
        && query.fetch.is_none()
        && query.locks.is_empty()
        && query.for_clause.is_none()
        && query.settings.is_none()
        && query.format_clause.is_none()
        && query.pipe_operators.is_empty()
        && grouped
        && select.top.is_none()
        && select.exclude.is_none()
        && select.into.is_none()
        && select.lateral_views.is_empty()
        && select.prewhere.is_none()
        && select.named_window.is_empty()
        && select.qualify.is_none()
        && matches!(select.distinct, None | Some(Distinct::Distinct))
}

/// The relations of FROM.
struct From<'a> {
    catalog: &'a Arc<CatalogSnapshot>,
    settings: &'a Settings,
    /// By which the view's text is read.
    binding: &'a Settings,
    pretty: bool,
    scope: Scope,
    /// Relation and name of each column, by position.
    columns: Vec<(String, String)>,
}

impl From<'_> {
    fn table(&mut self, table: &TableWithJoins) -> Option<String> {
        let mut text = self.factor(&table.relation)?;
        for join in &table.joins {
            let other = self.factor(&join.relation)?;
            let (word, constraint) = match &join.join_operator {
                JoinOperator::Join(on) | JoinOperator::Inner(on) => ("JOIN", Some(on)),
                JoinOperator::Left(on) | JoinOperator::LeftOuter(on) => ("LEFT JOIN", Some(on)),
                JoinOperator::Right(on) | JoinOperator::RightOuter(on) => ("RIGHT JOIN", Some(on)),
                JoinOperator::FullOuter(on) => ("FULL JOIN", Some(on)),
                JoinOperator::CrossJoin(JoinConstraint::None) => ("CROSS JOIN", None),
                _ => return None,
            };
            text = format!("{text}\n     {word} {other}");
            match constraint {
                None => {}
                Some(JoinConstraint::On(condition)) => {
                    let mut printer = Printer { from: self, folds: Vec::new() };
                    let condition = printer.condition(condition).ok()?;
                    let on = if self.pretty { condition } else { format!("({condition})") };
                    text = format!("{text} ON {on}");
                }
                Some(_) => return None,
            }
            if !self.pretty {
                text = format!("({text})");
            }
        }
        Some(text)
    }

    fn factor(&mut self, factor: &TableFactor) -> Option<String> {
        let TableFactor::Table { name, alias, args: None, with_hints, sample: None, .. } = factor
        else {
            return None;
        };
        if !with_hints.is_empty() || alias.as_ref().is_some_and(|alias| !alias.columns.is_empty()) {
            return None;
        }
        let named = parts(name);
        let [schema, called] = &named[..] else { return None };
        let shown = alias.as_ref().map_or_else(|| called.clone(), |alias| fold(&alias.name));
        let offset = self.columns.len();
        let (oid, found) = match self.catalog.resolve(Some(schema), called, &[])? {
            Relation::Table(table) => {
                let names = table.columns.iter().map(|c| (shown.clone(), c.name.clone()));
                self.columns.extend(names);
                (table.id.0, relation(table, &shown, offset, true))
            }
            Relation::View(view) => {
                let columns = view.columns.iter().enumerate();
                let columns = columns.map(|(at, (name, ty))| ScopeColumn {
                    name: name.clone(),
                    ty: ty.clone(),
                    position: offset + at,
                    domain: None,
                });
                let found = ScopeRelation {
                    name: shown.clone(),
                    columns: columns.collect(),
                    unqualified: true,
                    hidden: Vec::new(),
                };
                self.columns.extend(view.columns.iter().map(|c| (shown.clone(), c.0.clone())));
                (view.oid, found)
            }
            _ => return None,
        };
        self.scope.relations.push(found);
        let relation = relation_name(self.catalog, self.settings, oid)?;
        Some(match shown == *called {
            true => relation,
            false => format!("{relation} {}", quote_ident(&shown)),
        })
    }
}

/// A SELECT to be printed.
struct Shown<'a> {
    from: &'a From<'a>,
    view: &'a View,
    select: &'a ast::Select,
}

impl Shown<'_> {
    fn text(&self, query: &Query, tables: &[String]) -> Result<String> {
        let select = self.select;
        let mut printer = Printer { from: self.from, folds: Vec::new() };
        let mut items: Vec<(Expr, String)> = Vec::new();
        let mut out = String::from(" SELECT");
        if select.distinct.is_some() {
            out.push_str(" DISTINCT");
        }
        for (at, item) in select.projection.iter().enumerate() {
            let expr = match item {
                SelectItem::UnnamedExpr(expr) | SelectItem::ExprWithAlias { expr, .. } => expr,
                _ => return Err(unknown()),
            };
            let bound = printer.value(expr)?;
            let text = printer.print(&bound)?;
            let (name, _) = self.view.columns.get(at).ok_or_else(unknown)?;
            let own = match bound.node {
                Node::Column(at) => self.from.columns.get(at).map(|(_, name)| name),
                _ => None,
            };
            let comma = if at == 0 { "" } else { "," };
            match (text.starts_with('\n'), at) {
                (true, _) => out.push_str(&format!("{comma}{text}")),
                (false, 0) => out.push_str(&format!(" {text}")),
                (false, _) => out.push_str(&format!(",\n    {text}")),
            }
            if own != Some(name) && name != "?column?" {
                out.push_str(&format!(" AS {}", quote_ident(name)));
            }
            items.push((bound, text));
        }
        if !tables.is_empty() {
            out.push_str(&format!("\n   FROM {}", tables.join(",\n    ")));
        }
        if let Some(condition) = &select.selection {
            let condition = printer.condition(condition)?;
            let space = if condition.starts_with('\n') { "" } else { " " };
            out.push_str(&format!("\n  WHERE{space}{condition}"));
        }
        if let GroupByExpr::Expressions(keys, _) = &select.group_by
            && !keys.is_empty()
        {
            let mut shown: Vec<String> = Vec::with_capacity(keys.len());
            for key in keys {
                let text = self.sorted(&mut printer, key, &items, false)?;
                if !shown.contains(&text) {
                    shown.push(text);
                }
            }
            out.push_str(&format!("\n  GROUP BY {}", shown.join(", ")));
        }
        if let Some(condition) = &select.having {
            out.push_str(&format!("\n HAVING {}", printer.condition(condition)?));
        }
        if let Some(order) = &query.order_by {
            let OrderByKind::Expressions(keys) = &order.kind else { return Err(unknown()) };
            let (mut shown, mut known) = (Vec::with_capacity(keys.len()), Vec::new());
            for key in keys {
                let mut text = self.sorted(&mut printer, &key.expr, &items, true)?;
                // What rows are sorted by already sorts none of them.
                if known.contains(&text) {
                    continue;
                }
                known.push(text.clone());
                let descending = key.options.asc == Some(false);
                text.push_str(if descending { " DESC" } else { "" });
                match (descending, key.options.nulls_first) {
                    (false, Some(true)) => text.push_str(" NULLS FIRST"),
                    (true, Some(false)) => text.push_str(" NULLS LAST"),
                    _ => {}
                }
                shown.push(text);
            }
            out.push_str(&format!("\n  ORDER BY {}", shown.join(", ")));
        }
        match &query.limit_clause {
            None => {}
            Some(LimitClause::LimitOffset { limit, offset, limit_by }) if limit_by.is_empty() => {
                if let Some(offset) = offset {
                    out.push_str(&format!("\n OFFSET {}", number(&offset.value)?));
                }
                if let Some(limit) = limit {
                    out.push_str(&format!("\n LIMIT {}", number(limit)?));
                }
            }
            Some(_) => return Err(unknown()),
        }
        Ok(out)
    }

    /// What is grouped or sorted by: an item of the list by its number or name, or an expression of
    /// its own.
    fn sorted(
        &self,
        printer: &mut Printer<'_>,
        key: &ast::Expr,
        items: &[(Expr, String)],
        names_first: bool,
    ) -> Result<String> {
        let named = |name: &ast::Ident| {
            let name = fold(name);
            let mut found = self.view.columns.iter().take(items.len());
            found.position(|(known, _)| *known == name)
        };
        let item = match key {
            ast::Expr::Value(value) => match &value.value {
                Value::Number(text, _) => {
                    let at = text.to_string().parse::<usize>().map_err(|_| unknown())?;
                    Some(at.checked_sub(1).ok_or_else(unknown)?)
                }
                _ => return Err(unknown()),
            },
            // GROUP BY looks for a column of the relations first, ORDER BY for an item.
            ast::Expr::Identifier(name) if names_first => named(name),
            ast::Expr::Identifier(name) if self.from.scope.resolve(None, &fold(name)).is_err() => {
                named(name)
            }
            _ => None,
        };
        let (bound, text) = match item {
            Some(at) => items.get(at).cloned().ok_or_else(unknown)?,
            None => {
                let bound = printer.value(key)?;
                let text = printer.print(&bound)?;
                (bound, text)
            }
        };
        let is_column = matches!(bound.node, Node::Column(at) if at < self.from.columns.len());
        let calls = text.ends_with(')') && !text.starts_with('(');
        Ok(match bound.node {
            Node::Const(_) => return Err(unknown()),
            _ if is_column => text,
            _ if text.starts_with('\n') => return Err(unknown()),
            _ if calls || self.from.pretty => format!("({text})"),
            _ => text,
        })
    }
}

/// A plain number of LIMIT or OFFSET.
fn number(expr: &ast::Expr) -> Result<String> {
    match expr {
        ast::Expr::Value(value) => match &value.value {
            Value::Number(text, _) => Ok(text.to_string()),
            _ => Err(unknown()),
        },
        _ => Err(unknown()),
    }
}

/// A part that is not printed here.
fn unknown() -> Error {
    Error::unsupported("this part of a view's definition")
}

/// Prints expressions over the relations of FROM.
struct Printer<'a> {
    from: &'a From<'a>,
    /// The aggregates met, which stand as columns behind those of the relations.
    folds: Vec<String>,
}

impl Printer<'_> {
    fn bind(
        &mut self,
        expr: &ast::Expr,
        finish: impl Fn(&mut Binder<'_>, Expr) -> Result<Expr>,
    ) -> Result<Expr> {
        let mut parameters = ParameterTypes::default();
        let from = self.from;
        let context = EvalContext::planning(from.binding, from.catalog);
        let mut binder = Binder::new(&from.scope, &mut parameters, &context, "a view").as_written();
        binder.hook = Some(self);
        let bound = binder.bind(expr)?;
        finish(&mut binder, bound)
    }

    /// A value; a string without a type is text.
    fn value(&mut self, expr: &ast::Expr) -> Result<Expr> {
        self.bind(expr, |binder, bound| match bound.ty {
            SqlType::Unknown => binder.coerce(bound, &SqlType::Text, CastContext::Implicit),
            _ => Ok(bound),
        })
    }

    fn condition(&mut self, expr: &ast::Expr) -> Result<String> {
        let bound = self.bind(expr, |binder, bound| binder.implicit(bound, &SqlType::Bool))?;
        self.print(&bound)
    }

    fn print(&self, expr: &Expr) -> Result<String> {
        let from = self.from;
        let context = EvalContext::planning(from.settings, from.catalog);
        let column = |at: usize| match from.columns.get(at) {
            Some((relation, name)) => format!("{}.{}", quote_ident(relation), quote_ident(name)),
            None => self.folds.get(at - from.columns.len()).cloned().unwrap_or_default(),
        };
        let deparse = Deparse {
            column: &column,
            pretty: from.pretty,
            reader: Some(&context),
            inner_domain: false,
        };
        let text = deparse.text(expr);
        // One CASE is indented as a whole; one inside of another would be further.
        if text.matches("\nCASE").count() > 1 {
            return Err(unknown());
        }
        Ok(text.replace('\n', "\n        "))
    }
}

impl CallHook for Printer<'_> {
    fn aggregate(
        &mut self,
        binder: &mut Binder<'_>,
        name: &str,
        call: &ast::Function,
    ) -> Result<Option<Expr>> {
        if !telesto_sql_expr::is_aggregate(name) {
            return Ok(None);
        }
        let ast::FunctionArguments::List(list) = &call.args else { return Err(unknown()) };
        if !list.clauses.is_empty() || !call.within_group.is_empty() {
            return Err(unknown());
        }
        let mut args = Vec::new();
        let mut star = false;
        for arg in &list.args {
            match arg {
                ast::FunctionArg::Unnamed(ast::FunctionArgExpr::Expr(expr)) => {
                    args.push(binder.bind(expr)?);
                }
                ast::FunctionArg::Unnamed(ast::FunctionArgExpr::Wildcard) => star = true,
                _ => return Err(unknown()),
            }
        }
        let ty = match (name, &args[..]) {
            ("count", _) => SqlType::Int8,
            ("sum", [arg]) => match &arg.ty {
                SqlType::Int2 | SqlType::Int4 => SqlType::Int8,
                SqlType::Int8 | SqlType::Numeric(_) => SqlType::Numeric(None),
                SqlType::Float4 | SqlType::Float8 | SqlType::Interval => arg.ty.clone(),
                _ => return Err(unknown()),
            },
            ("avg", [arg]) => match &arg.ty {
                ty if ty.is_integer() => SqlType::Numeric(None),
                SqlType::Numeric(_) => SqlType::Numeric(None),
                SqlType::Float4 | SqlType::Float8 => SqlType::Float8,
                SqlType::Interval => SqlType::Interval,
                _ => return Err(unknown()),
            },
            ("min" | "max", [arg]) => match &arg.ty {
                SqlType::Varchar(_) => SqlType::Text,
                SqlType::Unknown => return Err(unknown()),
                ty => ty.clone(),
            },
            ("bool_and" | "bool_or" | "every", [arg]) if arg.ty == SqlType::Bool => SqlType::Bool,
            ("string_agg", [_, _]) => SqlType::Text,
            ("array_agg", [arg]) if arg.ty != SqlType::Unknown => arg.ty.clone().array_of(),
            _ => return Err(unknown()),
        };
        let text = matches!(name, "string_agg") || ty == SqlType::Text;
        let mut shown = Vec::with_capacity(args.len());
        for arg in args {
            let arg = match text {
                true => binder.coerce(arg, &SqlType::Text, CastContext::Implicit)?,
                false => arg,
            };
            shown.push(self.print(&arg)?);
        }
        if star {
            shown.push("*".to_owned());
        }
        let distinct = list.duplicate_treatment == Some(ast::DuplicateTreatment::Distinct);
        let word = if distinct { "DISTINCT " } else { "" };
        let mut out = format!("{}({word}{})", quote_ident(name), shown.join(", "));
        if let Some(filter) = &call.filter {
            let bound = binder.bind(filter)?;
            let bound = binder.implicit(bound, &SqlType::Bool)?;
            out.push_str(&format!(" FILTER (WHERE {})", self.print(&bound)?));
        }
        let at = self.from.columns.len() + self.folds.len();
        self.folds.push(out);
        Ok(Some(Expr::column(at, ty)))
    }
}
