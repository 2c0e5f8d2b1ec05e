//! Names in view: which column an identifier means, at which query level.
//!
//! # Invariants
//! - Every relation instance has a plan alias of its own (`t`, `t_2`, …), so a [`Column`] is never
//!   ambiguous to DataFusion, whatever names the user chose.
//! - A name is looked for from the innermost level outwards; two candidates on one level are an
//!   error.
//! - Column names and their order are those PostgreSQL would show.

use std::cell::RefCell;
use std::sync::Arc;

use arrow::datatypes::Field;
use datafusion::common::Column;
use datafusion::logical_expr::{Expr, LogicalPlan, SortExpr};
use telesto_common::TableId;

use super::super::fault;
use super::super::types::arrow_type;
pub(crate) use telesto_sql_parser::names::fold;
use telesto_sql_plan::hidden::{HIDDEN_PREFIX, KEY_COLUMN};

use telesto_sql_types::SqlType;
use telesto_sql_types::error::{Error, Result};

/// The column of a base table that a scope column is a plain copy of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Origin {
    /// The table.
    pub table: TableId,
    /// Position of the column in the table's catalog entry.
    pub position: usize,
    /// Which mention of the table in the statement.
    pub instance: usize,
}

/// A column in view.
#[derive(Clone, Debug)]
pub(crate) struct ScopeColumn {
    /// The alias or name of its relation.
    pub table: Option<String>,
    /// Its name.
    pub name: String,
    /// Its type.
    pub ty: SqlType,
    /// How the plan names it.
    pub column: Column,
    /// Merged away by USING: reachable only with its relation's name, not part of `*`.
    pub merged: bool,
    /// The only column of a function that gives no rows: its relation's name means its value, not a
    /// row.
    pub scalar: bool,
    /// The untyped parameter it is, in a branch of a set operation.
    pub parameter: Option<usize>,
    /// Where it comes from, when it is a base table's column.
    pub origin: Option<Origin>,
}

impl ScopeColumn {
    /// Whether it is there by its name only, not part of `*` or `t.*`: `tableoid`, `xmin`.
    pub fn hidden(&self) -> bool {
        self.merged && self.name != KEY_COLUMN && self.column.name.starts_with(HIDDEN_PREFIX)
    }

    /// Whether its values are rows whose type would be called after a table or a view.
    pub fn is_row_of_table(&self) -> bool {
        matches!(&self.ty, SqlType::Record(Some(row)) if row.is_of_table())
    }
}

/// A plan and what its columns are called.
#[derive(Clone, Debug)]
pub(crate) struct Relation {
    /// The plan.
    pub plan: LogicalPlan,
    /// Its columns, in the order of `*`.
    pub columns: Vec<ScopeColumn>,
}

/// One query level.
#[derive(Debug)]
pub(crate) struct Scope<'a> {
    /// Columns in view on this level.
    pub columns: &'a [ScopeColumn],
    /// The level outside.
    pub parent: Option<&'a Scope<'a>>,
    /// What the rows below are sorted by, for aggregates that show it.
    pub order: &'a [SortExpr],
    /// Where aggregates of this level go that stand in subqueries of it.
    pub folds: Folds<'a>,
}

/// Where aggregates of a level go that stand in subqueries of it.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Folds<'a> {
    /// There are none in this clause.
    Refused(&'static str),
    /// To the others.
    Taken(&'a RefCell<Vec<OuterFold>>),
}

/// An aggregate that stands in a subquery and belongs to a query around it.
#[derive(Clone, Debug)]
pub(crate) struct OuterFold {
    /// The column that it becomes beside the groups.
    pub column: Column,
    /// The aggregate over the columns of its level.
    pub expr: Expr,
}

impl<'a> Scope<'a> {
    /// A level inside `parent` with `columns` in view.
    pub fn new(columns: &'a [ScopeColumn], parent: Option<&'a Scope<'a>>) -> Self {
        let folds = Folds::Refused("FROM clause of their own query level");
        Self { columns, parent, order: &[], folds }
    }

    /// How many levels further out a column of the plan is: 0 on this one. `None`: it is a column
    /// of a level inside of this one.
    pub fn level_of(&self, column: &Column) -> Option<usize> {
        let level = std::iter::successors(Some(self), |scope| scope.parent);
        level.enumerate().find(|(_, scope)| scope.has(column)).map(|(level, _)| level)
    }

    /// Whether a column of the plan is one of this level.
    fn has(&self, column: &Column) -> bool {
        let fold = || match self.folds {
            Folds::Taken(folds) => folds.borrow().iter().any(|fold| fold.column == *column),
            Folds::Refused(_) => false,
        };
        self.columns.iter().any(|known| known.column == *column) || fold()
    }

    /// The column called `name`, of relation `table` when given, on this level only.
    pub fn find(&self, table: Option<&str>, name: &str) -> Result<Option<&'a ScopeColumn>> {
        let mut found = None;
        for column in self.columns {
            let fits = column.name == name
                && match table {
                    Some(table) => column.table.as_deref() == Some(table),
                    None => !column.merged || column.hidden(),
                };
            if fits {
                if found.is_some() {
                    return Err(fault::new(
                        "42702",
                        format!("column reference \"{name}\" is ambiguous"),
                    ));
                }
                found = Some(column);
            }
        }
        Ok(found)
    }

    /// The column called `name` on this level or one outside, as an expression.
    pub fn resolve(&self, table: Option<&str>, name: &str) -> Result<(Expr, SqlType)> {
        let mut level = Some(self);
        let mut outer = false;
        while let Some(scope) = level {
            if let Some(column) = scope.find(table, name)? {
                return Ok((reference(column, outer), column.ty.clone()));
            }
            level = scope.parent;
            outer = true;
        }
        let (mut level, mut outer) = (Some(self).filter(|_| table.is_none()), false);
        while let Some(scope) = level {
            let named = |column: &&ScopeColumn| column.table.as_deref() == Some(name);
            if let Some(column) = scope.columns.iter().find(|column| column.scalar && named(column))
            {
                return Ok((reference(column, outer), column.ty.clone()));
            }
            level = scope.parent;
            outer = true;
        }
        Err(self.unknown(table, name))
    }

    /// Whether a relation of this name is in view on any level.
    pub fn has_relation(&self, table: &str) -> bool {
        self.columns.iter().any(|column| column.table.as_deref() == Some(table))
            || self.parent.is_some_and(|parent| parent.has_relation(table))
    }

    fn unknown(&self, table: Option<&str>, name: &str) -> Error {
        match table {
            Some(table) if !self.has_relation(table) => {
                fault::new("42P01", format!("missing FROM-clause entry for table \"{table}\""))
            }
            Some(table) => fault::new("42703", format!("column {table}.{name} does not exist")),
            None => fault::new("42703", format!("column \"{name}\" does not exist")),
        }
    }
}

/// The plan's reference to a column of this level, or of one outside.
pub(crate) fn reference(column: &ScopeColumn, outer: bool) -> Expr {
    if outer {
        let field = Field::new(column.column.name.clone(), arrow_type(&column.ty), true);
        Expr::OuterReferenceColumn(Arc::new(field), column.column.clone())
    } else {
        Expr::Column(column.column.clone())
    }
}
