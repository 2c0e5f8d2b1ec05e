//! What a view's query is made into before it is stored: relations with their schemas and aliases,
//! `*` and NATURAL written out.
//!
//! # Invariants
//! - A name of WITH stands for its query only where that is in view: elsewhere the name is a
//!   relation's.
//! - Nothing is written out by halves: a `*` whose columns are not all known here stays as it is.
//!
//! # On failure
//! Nothing fails. Whoever stores the result binds it and compares its columns with those of what
//! was written.
//!
//! # Limits
//! The columns of functions whose rows are of a composite type are not known here.

use std::ops::ControlFlow;

use super::names::{fold, split};
use telesto_sql_catalog::{CatalogSnapshot, Relation};
use telesto_sql_expr::output_name;
use telesto_sql_parser::names::ident;
use telesto_sql_parser::rewrite::rows_from::RowsFrom;
use telesto_sql_parser::rewrite::using_alias;
use telesto_sql_parser::sqlparser::ast::{
    Expr, FunctionArg, FunctionArguments, Ident, JoinConstraint, JoinOperator, ObjectName, Query,
    Select, SelectItem, SelectItemQualifiedWildcardKind, SetExpr, TableAlias, TableFactor,
    TableWithJoins, VisitMut, VisitorMut,
};
use telesto_sql_parser::view_query::parts;

/// A column of FROM, as `*` sees it.
#[derive(Clone)]
struct Seen {
    /// What its relation is called; `None`: it has no name, or the column is one that a join made
    /// of two.
    relation: Option<String>,
    name: String,
    /// A join made one of it and another: `*` has that one.
    merged: bool,
}

/// The WITH of a query that is being walked.
struct Frame {
    recursive: bool,
    /// All its names, with the names that it gives to columns.
    names: Vec<(String, Vec<String>)>,
    /// The columns of those that were walked.
    done: Vec<Option<Vec<String>>>,
    /// What the one that is being walked begins with.
    current: Option<Vec<String>>,
}

impl Frame {
    fn of(query: &Query) -> Self {
        let with = query.with.as_ref();
        let cte = |alias: &TableAlias| {
            (fold(&alias.name), alias.columns.iter().map(|column| fold(&column.name)).collect())
        };
        Self {
            recursive: with.is_some_and(|with| with.recursive),
            names: with.iter().flat_map(|w| &w.cte_tables).map(|c| cte(&c.alias)).collect(),
            done: Vec::new(),
            current: None,
        }
    }

    /// The columns of what a name stands for here: `None`: for nothing of this WITH; `Some(None)`:
    /// they are not known.
    fn find(&self, name: &str) -> Option<Option<Vec<String>>> {
        let walked = self.names.iter().zip(&self.done);
        if let Some(((_, given), columns)) = walked.rev().find(|((known, _), _)| known == name) {
            return Some(columns.clone().map(|columns| renamed(columns, given)));
        }
        let (current, given) = self.names.get(self.done.len())?;
        (self.recursive && current == name)
            .then(|| self.current.clone().map(|columns| renamed(columns, given)))
    }
}

fn renamed(mut columns: Vec<String>, given: &[String]) -> Vec<String> {
    for (column, given) in columns.iter_mut().zip(given) {
        column.clone_from(given);
    }
    columns
}

/// Gives relations their schemas and aliases, and writes `*` and NATURAL out.
pub(super) struct Pin<'a> {
    catalog: &'a CatalogSnapshot,
    path: &'a [String],
    /// Whether `*` and NATURAL are written out.
    expand: bool,
    frames: Vec<Frame>,
}

impl<'a> Pin<'a> {
    /// Pins what is written under a search path.
    pub(super) fn new(catalog: &'a CatalogSnapshot, path: &'a [String], expand: bool) -> Self {
        Self { catalog, path, expand, frames: Vec::new() }
    }

    /// The query with its names pinned.
    pub(super) fn pinned(mut self, query: &Query) -> Query {
        let mut query = query.clone();
        let _ = VisitMut::visit(&mut query, &mut self);
        query
    }

    fn cte(&self, name: &str) -> Option<Option<Vec<String>>> {
        self.frames.iter().rev().find_map(|frame| frame.find(name))
    }

    /// The columns of a named relation.
    fn relation(&self, name: &ObjectName) -> Option<Vec<String>> {
        let (schema, relation) = split(name).ok()?;
        if schema.is_none()
            && let Some(columns) = self.cte(&relation)
        {
            return columns;
        }
        let builtin = telesto_sql_catalog::builtin::tables::find(schema.as_deref(), &relation);
        if let Some(table) = builtin {
            return Some(table.columns.iter().map(|(name, _)| (*name).to_owned()).collect());
        }
        schema.as_ref()?;
        visible_names(self.catalog.resolve(schema.as_deref(), &relation, &[])?)
    }

    fn factor(&self, factor: &mut TableFactor) -> Option<Vec<Seen>> {
        let (alias, columns) = match factor {
            TableFactor::Table { name, alias, args: None, .. } => {
                let called = parts(name).pop()?;
                let called = alias.as_ref().map_or(called, |alias| fold(&alias.name));
                (alias.as_ref(), seen(Some(&called), self.relation(name)?))
            }
            TableFactor::Derived { subquery, alias, .. } => {
                let called = alias.as_ref().map(|alias| fold(&alias.name));
                (alias.as_ref(), seen(called.as_deref(), outputs(&subquery.body)?))
            }
            TableFactor::NestedJoin { table_with_joins, alias } => {
                let inside = self.joined(table_with_joins)?;
                let Some(alias) = alias else { return Some(inside) };
                let names = inside.into_iter().filter(|column| !column.merged);
                let names = names.map(|column| column.name).collect();
                (Some(&*alias), seen(Some(&fold(&alias.name)), names))
            }
            other => {
                let (called, names, alias) = call(other)?;
                (alias, seen(Some(&called), names))
            }
        };
        let given = alias.map_or(&[][..], |alias| &alias.columns);
        let mut columns = columns;
        for (column, given) in columns.iter_mut().zip(given) {
            column.name = fold(&given.name);
        }
        Some(columns)
    }

    /// The columns of an item of FROM with its joins. NATURAL becomes USING with the columns that
    /// both sides have.
    fn joined(&self, item: &mut TableWithJoins) -> Option<Vec<Seen>> {
        let mut left = self.factor(&mut item.relation);
        for join in &mut item.joins {
            let right = self.factor(&mut join.relation);
            let (Some(mut lefts), Some(mut rights)) = (left.take(), right) else { continue };
            let mut alias = None;
            let merged = match constraint_mut(&mut join.join_operator) {
                None | Some(JoinConstraint::On(_) | JoinConstraint::None) => Vec::new(),
                Some(JoinConstraint::Using(names)) => {
                    alias = using_alias::alias(names).map(fold);
                    names.iter().filter_map(|name| parts(name).pop()).collect()
                }
                Some(natural @ JoinConstraint::Natural) => {
                    let common = common(&lefts, &rights);
                    if !common.is_empty() {
                        let names = common.iter().map(|name| ObjectName::from(vec![ident(name)]));
                        *natural = JoinConstraint::Using(names.collect());
                    }
                    common
                }
            };
            let mut all = Vec::new();
            for name in merged {
                for side in [&mut lefts, &mut rights] {
                    let own = side.iter_mut().find(|c| !c.merged && c.name == name);
                    if let Some(own) = own {
                        own.merged = true;
                    }
                }
                if alias.is_some() {
                    let (relation, name) = (alias.clone(), name.clone());
                    all.push(Seen { relation, name, merged: true });
                }
                all.push(Seen { relation: None, name, merged: false });
            }
            all.append(&mut lefts);
            all.append(&mut rights);
            left = Some(all);
        }
        left
    }

    /// What stands for an item of a select list.
    fn items(&self, item: &SelectItem, from: &[Seen]) -> Option<Vec<SelectItem>> {
        match item {
            SelectItem::Wildcard(_) => {
                Some(from.iter().filter(|column| !column.merged).map(written).collect())
            }
            SelectItem::QualifiedWildcard(SelectItemQualifiedWildcardKind::ObjectName(name), _) => {
                let wanted = parts(name).pop()?;
                let of = |column: &&Seen| column.relation.as_ref() == Some(&wanted);
                let items: Vec<_> = from.iter().filter(of).map(written).collect();
                (!items.is_empty()).then_some(items)
            }
            SelectItem::QualifiedWildcard(SelectItemQualifiedWildcardKind::Expr(row), _) => {
                // Behind a relation's name in parentheses it is the relation's; all others have
                // been written out.
                let Expr::Nested(inner) = row else { return None };
                let Expr::Identifier(name) = &**inner else { return None };
                let wanted = fold(name);
                if from.iter().any(|column| column.name == wanted) {
                    return None;
                }
                let of = |column: &&Seen| column.relation.as_ref() == Some(&wanted);
                let items: Vec<_> = from.iter().filter(of).map(written).collect();
                (!items.is_empty()).then_some(items)
            }
            other => Some(vec![other.clone()]),
        }
    }
}

/// The names of a relation's columns, in their order.
pub(super) fn visible_names(relation: &Relation) -> Option<Vec<String>> {
    match relation {
        Relation::Table(table) => {
            Some(table.visible_columns().map(|(_, column)| column.name.clone()).collect())
        }
        Relation::View(view) => Some(view.columns.iter().map(|(name, _)| name.clone()).collect()),
        Relation::Sequence(_) | Relation::Index(..) => None,
    }
}

fn seen(relation: Option<&str>, names: Vec<String>) -> Vec<Seen> {
    let column = |name| Seen { relation: relation.map(str::to_owned), name, merged: false };
    names.into_iter().map(column).collect()
}

fn written(column: &Seen) -> SelectItem {
    let name = ident(&column.name);
    SelectItem::UnnamedExpr(match &column.relation {
        Some(relation) => Expr::CompoundIdentifier(vec![ident(relation), name]),
        None => Expr::Identifier(name),
    })
}

/// The names that NATURAL joins by.
fn common(left: &[Seen], right: &[Seen]) -> Vec<String> {
    let has = |name: &str| right.iter().any(|column| !column.merged && column.name == name);
    let own = left.iter().filter(|column| !column.merged && has(&column.name));
    own.map(|column| column.name.clone()).collect()
}

/// The condition of a join.
pub(super) fn constraint_mut(operator: &mut JoinOperator) -> Option<&mut JoinConstraint> {
    match operator {
        JoinOperator::Join(c)
        | JoinOperator::Inner(c)
        | JoinOperator::Left(c)
        | JoinOperator::LeftOuter(c)
        | JoinOperator::Right(c)
        | JoinOperator::RightOuter(c)
        | JoinOperator::FullOuter(c) => Some(c),
        _ => None,
    }
}

/// The names of a query's columns; `None`: there is a `*` among them.
pub(super) fn outputs(body: &SetExpr) -> Option<Vec<String>> {
    match body {
        SetExpr::Select(select) => select.projection.iter().map(output).collect(),
        SetExpr::Query(query) => outputs(&query.body),
        SetExpr::SetOperation { left, .. } => outputs(left),
        SetExpr::Values(values) => {
            let row = values.rows.first()?;
            Some((1..=row.content.len()).map(|at| format!("column{at}")).collect())
        }
        _ => None,
    }
}

/// The name of an item of a select list.
pub(super) fn output(item: &SelectItem) -> Option<String> {
    match item {
        SelectItem::ExprWithAlias { alias, .. } => Some(fold(alias)),
        SelectItem::UnnamedExpr(expr) => Some(output_name(expr)),
        _ => None,
    }
}

/// What a function in FROM is called, the names of its columns, and its alias.
fn call(factor: &TableFactor) -> Option<(String, Vec<String>, Option<&TableAlias>)> {
    if let TableFactor::TableFunction { expr, alias } = factor {
        return rows_from(&RowsFrom::of(expr)?, alias.as_ref());
    }
    let (name, count, alias, ordinality) = match factor {
        TableFactor::Table { name, alias, args: Some(args), with_ordinality, .. } => {
            (parts(name).pop()?, args.args.len(), alias.as_ref(), *with_ordinality)
        }
        TableFactor::Function { name, args, alias, with_ordinality, .. } => {
            let plain = args.iter().all(|arg| matches!(arg, FunctionArg::Unnamed(_)));
            (plain.then(|| parts(name).pop())??, args.len(), alias.as_ref(), *with_ordinality)
        }
        TableFactor::UNNEST { alias, array_exprs, with_ordinality, .. } => {
            ("unnest".to_owned(), array_exprs.len(), alias.as_ref(), *with_ordinality)
        }
        _ => return None,
    };
    let called = alias.map_or_else(|| name.clone(), |alias| fold(&alias.name));
    let mut names = names_of(&name, count, &called);
    if ordinality {
        names.push("ordinality".to_owned());
    }
    Some((called, names, alias))
}

/// [`call`] of several functions.
fn rows_from<'a>(
    rows: &RowsFrom<'_>,
    alias: Option<&'a TableAlias>,
) -> Option<(String, Vec<String>, Option<&'a TableAlias>)> {
    let mut names = Vec::new();
    let mut first = None;
    for (given, call) in &rows.calls {
        let (name, count) = match call {
            Expr::Function(call) => match &call.args {
                FunctionArguments::List(list) => (parts(&call.name).pop()?, list.args.len()),
                _ => (parts(&call.name).pop()?, 0),
            },
            // One with a syntax of its own.
            call => (output_name(call), 1),
        };
        let alone = alias.filter(|_| rows.calls.len() == 1);
        let called = alone.map_or_else(|| name.clone(), |alias| fold(&alias.name));
        match given {
            Some(given) => names.push((*given).to_owned()),
            None => names.extend(names_of(&name, count, &called)),
        }
        first.get_or_insert(name);
    }
    if rows.ordinality {
        names.push("ordinality".to_owned());
    }
    let called = alias.map_or(first?, |alias| fold(&alias.name));
    Some((called, names, alias))
}

/// The columns of a function that is seen as `called`.
fn names_of(name: &str, count: usize, called: &str) -> Vec<String> {
    match (name, count) {
        ("unnest", 2..) => vec![name.to_owned(); count],
        ("json_each" | "jsonb_each" | "json_each_text" | "jsonb_each_text", _) => {
            vec!["key".to_owned(), "value".to_owned()]
        }
        (
            "json_array_elements"
            | "jsonb_array_elements"
            | "json_array_elements_text"
            | "jsonb_array_elements_text",
            _,
        ) => vec!["value".to_owned()],
        ("pg_options_to_table", _) => vec!["option_name".to_owned(), "option_value".to_owned()],
        _ => vec![called.to_owned()],
    }
}

impl VisitorMut for Pin<'_> {
    type Break = ();

    fn pre_visit_query(&mut self, query: &mut Query) -> ControlFlow<()> {
        if let Some(around) = self.frames.last_mut()
            && around.done.len() < around.names.len()
        {
            around.current = match &*query.body {
                SetExpr::SetOperation { left, .. } => outputs(left),
                _ => None,
            };
        }
        self.frames.push(Frame::of(query));
        ControlFlow::Continue(())
    }

    fn post_visit_query(&mut self, query: &mut Query) -> ControlFlow<()> {
        self.frames.pop();
        // The queries of WITH are walked before all others in their query.
        if let Some(around) = self.frames.last_mut()
            && around.done.len() < around.names.len()
        {
            around.done.push(outputs(&query.body));
        }
        ControlFlow::Continue(())
    }

    fn pre_visit_table_factor(&mut self, factor: &mut TableFactor) -> ControlFlow<()> {
        let TableFactor::Table { name, alias, args: None, .. } = factor else {
            return ControlFlow::Continue(());
        };
        let Ok((schema, relation)) = split(name) else { return ControlFlow::Continue(()) };
        if schema.is_none() && self.cte(&relation).is_some() {
            return ControlFlow::Continue(());
        }
        let within = match &schema {
            Some(schema) => Some(schema.clone()),
            None if telesto_sql_catalog::builtin::tables::find(None, &relation).is_some() => None,
            None => self
                .catalog
                .visible_in(&relation, self.path)
                .map(|schema| self.catalog.schema_name(schema).to_owned()),
        };
        if let Some(within) = within {
            *name = ObjectName::from(vec![ident(&within), ident(&relation)]);
        }
        if alias.is_none() {
            *alias = Some(TableAlias {
                explicit: true,
                name: ident(&relation),
                columns: Vec::new(),
                at: None,
            });
        }
        ControlFlow::Continue(())
    }

    fn pre_visit_expr(&mut self, expr: &mut Expr) -> ControlFlow<()> {
        // A schema in front of a relation's name does not go with the alias: the last two names say
        // which column it is.
        if let Expr::CompoundIdentifier(names) = expr
            && let [_, .., relation, column] = names.as_slice()
        {
            let names: Vec<Ident> = vec![relation.clone(), column.clone()];
            *expr = Expr::CompoundIdentifier(names);
        }
        ControlFlow::Continue(())
    }

    fn post_visit_select(&mut self, select: &mut Select) -> ControlFlow<()> {
        if !self.expand {
            return ControlFlow::Continue(());
        }
        let mut from = Some(Vec::new());
        for item in &mut select.from {
            // Each is walked for its NATURAL, whether or not all columns are known.
            let columns = self.joined(item);
            from = from.zip(columns).map(|(mut from, mut columns)| {
                from.append(&mut columns);
                from
            });
        }
        if let Some(from) = from
            && !from.is_empty()
        {
            let mut items = Vec::with_capacity(select.projection.len());
            for item in &select.projection {
                items.extend(self.items(item, &from).unwrap_or_else(|| vec![item.clone()]));
            }
            select.projection = items;
        }
        ControlFlow::Continue(())
    }
}
