//! SEARCH and CYCLE of WITH RECURSIVE: columns beside those of the query, computed as PostgreSQL
//! does it.
//!
//! ```text
//!          start                        step, over the row that it comes from
//! depth    ARRAY[ROW(a)]                before || ROW(a)
//! breadth  ROW(0, a)                    ROW(number + 1, a), the number in a column that nobody sees
//! cycle    default, ARRAY[ROW(a)]       CASE WHEN ROW(a) = ANY (path) THEN value ELSE default END, path || ROW(a);
//!                                       rows that come from one with the mark `value` are left out
//! ```
//!
//! # Invariants
//! The recursive term sees the query's own columns: the others have names there that no client can
//! write, and pass through it to the end of its select list.
//!
//! # On failure
//! 42601 and 42701 for columns that are not there, or twice; 42883 for columns of CYCLE that
//! nothing compares; 0A000 for a term that names its query elsewhere than in its FROM.

use datafusion::common::Column;
use datafusion::logical_expr::Expr;
use datafusion::sql::sqlparser::ast;

use super::scope::{Relation, Scope, ScopeColumn, fold};
use super::select::{filter, project};
use super::{Binder, Typed};
use crate::fault;
use telesto_sql_parser::names::ident;
use telesto_sql_parser::rewrite::search_cycle::{self, Cycle, Search};
use telesto_sql_types::error::{Error, Result};

/// One column beside the query's own.
struct Mark {
    /// Its name; `None`: nobody sees it.
    shown: Option<String>,
    /// Its name for the recursive term and in the plan.
    inside: &'static str,
    start: String,
    step: String,
}

const SEQUENCE: &str = "\0sequence";
const NUMBER: &str = "\0number";
const MARK: &str = "\0mark";
const PATH: &str = "\0path";

/// The columns of the clauses of a query.
pub(super) struct Marks {
    marks: Vec<Mark>,
    /// What is true of a row that others come from.
    goes_on: Option<String>,
    /// Columns that are compared with those of the rows before.
    compared: Vec<String>,
}

fn quoted(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}

fn row(columns: &[String], first: Option<&str>) -> String {
    let columns = columns.iter().map(|name| ident(name).to_string());
    let parts: Vec<String> = first.map(str::to_owned).into_iter().chain(columns).collect();
    format!("ROW({})", parts.join(", "))
}

impl Marks {
    /// Those of a query of WITH whose own columns have these names.
    pub(super) fn of(query: &ast::Query, own: &[ScopeColumn]) -> Result<Self> {
        let (search, cycle) = search_cycle::of(query);
        let mut of = Self { marks: Vec::new(), goes_on: None, compared: Vec::new() };
        if let Some(search) = &search {
            known("search", &search.columns, own)?;
            of.search(search);
        }
        if let Some(cycle) = &cycle {
            known("cycle", &cycle.columns, own)?;
            of.cycle(cycle);
        }
        let kinds = ["search sequence", "cycle mark", "cycle path"];
        let mut names: Vec<(&str, &str)> = Vec::new();
        if let Some(search) = &search {
            names.push((kinds[0], search.sequence.as_str()));
        }
        if let Some(cycle) = &cycle {
            names.extend([(kinds[1], cycle.mark.as_str()), (kinds[2], cycle.path.as_str())]);
        }
        for (at, (kind, name)) in names.iter().enumerate() {
            if own.iter().any(|column| column.name == *name) {
                return Err(fault::syntax(&format!(
                    "{kind} column name \"{name}\" already used in WITH query column list"
                )));
            }
            if let Some((other, _)) = names[..at].iter().find(|(_, other)| other == name) {
                return Err(fault::syntax(&format!(
                    "{other} column name and {kind} column name are the same"
                )));
            }
        }
        Ok(of)
    }

    fn search(&mut self, search: &Search) {
        let row_of = |first: Option<&str>| row(&search.columns, first);
        let (start, step) = if search.depth_first {
            (
                format!("ARRAY[{}]", row_of(None)),
                format!("{} || {}", quoted(SEQUENCE), row_of(None)),
            )
        } else {
            let next = format!("({} + 1::int8)", quoted(NUMBER));
            self.marks.push(Mark {
                shown: None,
                inside: NUMBER,
                start: "0::int8".to_owned(),
                step: next.clone(),
            });
            (row_of(Some("0::int8")), row_of(Some(&next)))
        };
        let shown = Some(search.sequence.clone());
        self.marks.push(Mark { shown, inside: SEQUENCE, start, step });
    }

    fn cycle(&mut self, cycle: &Cycle) {
        let (value, default) = (&cycle.value, &cycle.default);
        let here = row(&cycle.columns, None);
        let mark = |when: &str| format!("CASE WHEN {when} THEN {value} ELSE {default} END");
        self.marks.push(Mark {
            shown: Some(cycle.mark.clone()),
            inside: MARK,
            start: mark("false"),
            step: mark(&format!("{here} = ANY ({})", quoted(PATH))),
        });
        self.marks.push(Mark {
            shown: Some(cycle.path.clone()),
            inside: PATH,
            start: format!("ARRAY[{here}]"),
            step: format!("{} || {here}", quoted(PATH)),
        });
        self.compared.clone_from(&cycle.columns);
        self.goes_on = Some(format!("{} <> {value}", quoted(MARK)));
    }

    pub(super) fn is_empty(&self) -> bool {
        self.marks.is_empty()
    }

    /// The term with the marks of the row that it comes from at the end of its select list.
    pub(super) fn passed_through(&self, term: &ast::SetExpr, name: &str) -> Result<ast::SetExpr> {
        let mut term = term;
        while let ast::SetExpr::Query(query) = term {
            let bounded = query.limit_clause.is_some() || query.fetch.is_some();
            if query.with.is_some() || query.order_by.is_some() || bounded {
                break;
            }
            term = &*query.body;
        }
        let ast::SetExpr::Select(select) = term else {
            return Err(fault::new(
                "0A000",
                "with a SEARCH or CYCLE clause, the right side of the UNION must be a SELECT",
            ));
        };
        let Some(called) = select.from.iter().find_map(|from| called(from, name)) else {
            return Err(fault::new(
                "0A000",
                format!(
                    "with a SEARCH or CYCLE clause, the recursive reference to WITH query \"{name}\" must be at the top level of its right-hand SELECT"
                ),
            ));
        };
        let mut select = select.clone();
        let inside = |mark: &Mark| {
            let names = vec![ident(&called), ast::Ident::with_quote('"', mark.inside)];
            ast::SelectItem::UnnamedExpr(ast::Expr::CompoundIdentifier(names))
        };
        select.projection.extend(self.marks.iter().map(inside));
        Ok(ast::SetExpr::Select(select))
    }

    /// The columns of the query as the recursive term sees them.
    pub(super) fn seen_inside(&self, columns: &mut [ScopeColumn]) {
        let own = columns.len() - self.marks.len();
        for (column, mark) in columns[own..].iter_mut().zip(&self.marks) {
            mark.inside.clone_into(&mut column.name);
            column.merged = true;
        }
    }

    /// The columns of the query as those see them who name it.
    pub(super) fn seen_outside(&self, mut relation: Relation) -> Relation {
        let own = relation.columns.len() - self.marks.len();
        let marks = relation.columns.split_off(own);
        for (column, mark) in marks.into_iter().zip(&self.marks) {
            if let Some(name) = &mark.shown {
                relation.columns.push(ScopeColumn { name: name.clone(), merged: false, ..column });
            }
        }
        relation
    }
}

/// What a query is called among the items of a FROM.
fn called(from: &ast::TableWithJoins, name: &str) -> Option<String> {
    let mut factors =
        std::iter::once(&from.relation).chain(from.joins.iter().map(|join| &join.relation));
    factors.find_map(|factor| match factor {
        ast::TableFactor::Table { name: named, alias, args: None, .. } => {
            let single = named.0.len() == 1;
            let it = single && named.0[0].as_ident().is_some_and(|ident| fold(ident) == name);
            let shown = || alias.as_ref().map_or_else(|| name.to_owned(), |a| fold(&a.name));
            it.then(shown)
        }
        ast::TableFactor::NestedJoin { table_with_joins, alias: None } => {
            called(table_with_joins, name)
        }
        _ => None,
    })
}

fn known(clause: &str, names: &[String], own: &[ScopeColumn]) -> Result<()> {
    for (at, name) in names.iter().enumerate() {
        if !own.iter().any(|column| column.name == *name) {
            let message = format!("{clause} column \"{name}\" not in WITH query column list");
            return Err(fault::syntax(&message));
        }
        if names[..at].contains(name) {
            let message = format!("{clause} column \"{name}\" specified more than once");
            return Err(fault::new("42701", message));
        }
    }
    Ok(())
}

impl Binder<'_> {
    fn mark(&self, text: &str, scope: &Scope<'_>) -> Result<Typed> {
        let unreadable = |error| Error::internal(format!("{text} does not parse: {error}"));
        let expr = telesto_sql_parser::syntax::read(text, |parser| parser.parse_expr())
            .map_err(|unread| unread.or_else(unreadable))?;
        self.expr(&expr, scope)
    }

    /// The first rows with their marks.
    pub(super) fn marked_start(&self, start: Relation, marks: &Marks) -> Result<Relation> {
        if marks.is_empty() {
            return Ok(start);
        }
        let scope = Scope::new(&start.columns, None);
        for column in &marks.compared {
            let name = ident(column);
            self.mark(&format!("{name} = {name}"), &scope)?;
        }
        let texts = marks.marks.iter().map(|mark| (mark.inside, self.mark(&mark.start, &scope)));
        let values = texts.collect::<Vec<_>>();
        self.with_marks(&start, start.columns.len(), values)
    }

    /// The rows of the recursive term, `width` columns of the query's own and the marks of the rows
    /// that they come from, with marks of their own.
    pub(super) fn marked_step(
        &self,
        mut step: Relation,
        marks: &Marks,
        start: &[ScopeColumn],
    ) -> Result<Relation> {
        if marks.is_empty() {
            return Ok(step);
        }
        let width = start.len() - marks.marks.len();
        for (column, known) in step.columns.iter_mut().zip(&start[..width]) {
            column.name.clone_from(&known.name);
            column.table = None;
            column.merged = false;
        }
        for (column, mark) in step.columns[width..].iter_mut().zip(&marks.marks) {
            mark.inside.clone_into(&mut column.name);
            column.table = None;
            column.merged = false;
        }
        if let Some(condition) = &marks.goes_on {
            let condition = self.mark(condition, &Scope::new(&step.columns, None))?;
            step.plan = filter(step.plan, condition.expr)?;
        }
        let scope = Scope::new(&step.columns, None);
        let values = marks.marks.iter().map(|mark| (mark.inside, self.mark(&mark.step, &scope)));
        let values = values.collect::<Vec<_>>();
        self.with_marks(&step, width, values)
    }

    fn with_marks(
        &self,
        rows: &Relation,
        width: usize,
        values: Vec<(&'static str, Result<Typed>)>,
    ) -> Result<Relation> {
        let mut exprs = Vec::with_capacity(width + values.len());
        let mut columns: Vec<ScopeColumn> = rows.columns[..width].to_vec();
        for column in &mut columns {
            let name = self.unique(&column.name);
            exprs.push(Expr::Column(column.column.clone()).alias(&name));
            column.column = Column::new_unqualified(name);
        }
        for (inside, value) in values {
            let value = value?;
            // Hidden columns are no part of `*`: see `ScopeColumn::hidden`.
            let name = self.unique(inside);
            exprs.push(value.expr.alias(&name));
            columns.push(ScopeColumn {
                table: None,
                name: inside.to_owned(),
                ty: value.ty,
                column: Column::new_unqualified(name),
                merged: false,
                scalar: false,
                parameter: None,
                origin: None,
            });
        }
        Ok(Relation { plan: project(rows.plan.clone(), exprs)?, columns })
    }
}
