//! Set-returning calls: resolved here, computed as lists beside the rows they belong to.

use std::sync::Arc;

use datafusion::common::{Column, ScalarValue};
use datafusion::datasource::provider_as_source;
use datafusion::logical_expr::{Expr, LogicalPlanBuilder};

use super::scope::{Relation, ScopeColumn};
use super::{Binder, Typed};
use crate::arrays::ArrayWork;
use crate::fault;
use crate::series::Series;
use crate::sets;
use crate::types::TypeShape as _;
use crate::udf;
use telesto_sql_types::SqlType;
use telesto_sql_types::error::Result;

/// A call in FROM: one list (or plain value) a column.
pub(super) struct TableSet {
    /// Name, type and expression of each column.
    pub columns: Vec<(String, SqlType, Expr)>,
    /// Whether the expressions are lists to unnest; otherwise it was an ordinary function: one row.
    pub unnest: bool,
    /// Whether the columns keep their names under an alias.
    pub named: bool,
}

impl Binder<'_> {
    /// Whether a function of this name returns a set.
    pub(super) fn is_set_function(&self, name: &str) -> bool {
        telesto_sql_expr::set_functions::is_set_function(name)
    }

    /// Resolves a call in FROM.
    pub(super) fn call_in_from(&self, name: &str, args: Vec<Typed>) -> Result<TableSet> {
        if !self.is_set_function(name) {
            let value = self.call(name, args)?;
            return self.value_in_from(name, value);
        }
        let rows = match &args[..] {
            [array] => matches!(array.ty.element(), Some(SqlType::Composite(_))),
            _ => false,
        };
        self.table_call(if name == "unnest" && rows { sets::UNNEST_ROWS } else { name }, args)
    }

    /// A value as the one row of an item of FROM.
    pub(super) fn value_in_from(&self, name: &str, value: Typed) -> Result<TableSet> {
        let SqlType::Composite(ty) = &value.ty else {
            let columns = vec![(name.to_owned(), value.ty, value.expr)];
            return Ok(TableSet { columns, unnest: false, named: false });
        };
        let mut columns = Vec::with_capacity(ty.fields.len());
        for name in ty.fields.iter().map(|field| field.name.clone()) {
            let field = self.field(value.clone(), &name)?;
            columns.push((name, field.ty, field.expr));
        }
        Ok(TableSet { columns, unnest: false, named: true })
    }

    /// Resolves a call that may return a set.
    pub(super) fn table_call(&self, name: &str, args: Vec<Typed>) -> Result<TableSet> {
        if !self.is_set_function(name) && name != sets::UNNEST_ROWS {
            let value = self.call(name, args)?;
            return Ok(TableSet {
                columns: vec![(name.to_owned(), value.ty, value.expr)],
                unnest: false,
                named: false,
            });
        }
        if name == "unnest" && args.len() > 1 {
            return self.unnest_together(args);
        }
        let types: Vec<SqlType> = args.iter().map(|arg| arg.ty.clone()).collect();
        let set = sets::resolve(name, &types).ok_or_else(|| self.no_function(name, &args))?;
        let mut exprs = Vec::with_capacity(args.len());
        for (arg, ty) in args.into_iter().zip(&set.args) {
            exprs.push(self.cast(arg, ty)?.expr);
        }
        let columns = set
            .columns
            .iter()
            .enumerate()
            .map(|(at, (column, ty))| {
                let call = udf::set_call(name, &set.args, ty, at, self.evaluation());
                (column.clone().into_owned(), ty.clone(), call.call(exprs.clone()))
            })
            .collect();
        Ok(TableSet { columns, unnest: true, named: set.named })
    }

    /// `unnest(a, b, …)`: side by side, the shorter ones filled up with NULLs.
    fn unnest_together(&self, args: Vec<Typed>) -> Result<TableSet> {
        let mut columns = Vec::with_capacity(args.len());
        let types: Vec<SqlType> = args.iter().map(|arg| arg.ty.clone()).collect();
        if types.iter().any(|ty| ty.element().is_none()) {
            return Err(self.no_function("unnest", &args));
        }
        for arg in args {
            columns.extend(self.table_call("unnest", vec![arg])?.columns);
        }
        for (name, ..) in &mut columns {
            "unnest".clone_into(name);
        }
        Ok(TableSet { columns, unnest: true, named: true })
    }

    /// A series of integers over bounds that are known as a table of its own, which is computed as
    /// it is read; `None` for every other call. `shown`: the names the table and its column are
    /// seen by.
    pub(super) fn series(
        &self,
        name: &str,
        args: Vec<Typed>,
        shown: (&str, &str),
    ) -> Result<Option<Relation>> {
        let types: Vec<SqlType> = args.iter().map(|arg| arg.ty.clone()).collect();
        let set = match name {
            "generate_series" => sets::resolve(name, &types),
            _ => None,
        };
        let Some(ty) = set.and_then(|set| set.args.into_iter().next()) else { return Ok(None) };
        let mut bounds = Vec::with_capacity(args.len());
        for arg in args {
            let Ok(value) = self.constant(self.cast(arg, &ty)?, name) else { return Ok(None) };
            match value {
                ScalarValue::Int32(Some(value)) => bounds.push(i64::from(value)),
                ScalarValue::Int64(Some(value)) => bounds.push(value),
                _ => return Ok(None),
            }
        }
        let (from, to, step) = match bounds[..] {
            [from, to] => (from, to, 1),
            [from, to, step] => (from, to, step),
            _ => return Ok(None),
        };
        let column = self.unique("value");
        let Some(series) = Series::new(column.clone(), &ty, from, to, step) else {
            return Ok(None);
        };
        let alias = self.unique(shown.0);
        let source = provider_as_source(Arc::new(series));
        let plan = LogicalPlanBuilder::scan(alias.as_str(), source, None)
            .and_then(LogicalPlanBuilder::build)
            .map_err(fault::from_datafusion)?;
        let columns = vec![ScopeColumn {
            table: Some(shown.0.to_owned()),
            name: shown.1.to_owned(),
            ty,
            column: Column::new(Some(alias), column),
            merged: false,
            scalar: true,
            parameter: None,
            origin: None,
        }];
        Ok(Some(Relation { plan, columns }))
    }

    /// The expression itself, or with an empty list as NULL (which LEFT JOIN keeps).
    pub(super) fn list_or_null(&self, expr: Expr, element: &SqlType, keep_empty: bool) -> Expr {
        if !keep_empty {
            return expr;
        }
        let ty = element.clone().array_of();
        udf::array_call(ArrayWork::NullIfEmpty, vec![ty.clone()], ty).call(vec![expr])
    }

    /// 1, 2, … beside a list.
    pub(super) fn ordinals(&self, list: Expr, element: &SqlType) -> Expr {
        let (ty, numbers) = (element.clone().array_of(), SqlType::Int8.array_of());
        udf::array_call(ArrayWork::Ordinals, vec![ty], numbers).call(vec![list])
    }
}
