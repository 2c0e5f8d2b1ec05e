//! CASE, and the values behind IN: several expressions that get one type.

use datafusion::common::tree_node::{Transformed, TreeNode as _};
use datafusion::logical_expr::{Case, Expr};
use datafusion::sql::sqlparser::ast;

use super::group::refuse_sets;
use super::scope::Scope;
use super::{Binder, Typed};
use crate::waiting::waiting_call;
use crate::{fault, guards, udf};
use telesto_sql_types::SqlType;
use telesto_sql_types::error::Result;

impl Binder<'_> {
    /// `CASE`, of one type in all its branches.
    pub(super) fn case(
        &self,
        operand: Option<&ast::Expr>,
        conditions: &[ast::CaseWhen],
        otherwise: Option<&ast::Expr>,
        scope: &Scope<'_>,
    ) -> Result<Typed> {
        let operand = operand.map(|e| self.once(self.expr(e, scope)?)).transpose()?;
        let _inside = self.guarded();
        let mut whens = Vec::with_capacity(conditions.len());
        let mut results = Vec::with_capacity(conditions.len() + 1);
        for case in conditions {
            whens.push(match &operand {
                None => self.condition(&case.condition, scope, "CASE/WHEN")?,
                Some(operand) => {
                    let value = self.expr(&case.condition, scope)?;
                    self.binary("=", operand.clone(), value)?.expr
                }
            });
            results.push(self.expr(&case.result, scope)?);
        }
        let otherwise = match otherwise {
            Some(expr) => self.expr(expr, scope)?,
            None => Typed::null(),
        };
        results.push(otherwise);
        let types: Vec<_> = results.iter().map(|r| r.ty.clone()).collect();
        let ty = self.common_type(&types, "CASE")?;
        let mut results = results
            .into_iter()
            .map(|r| Ok(self.coerce(r, &ty, "CASE")?.expr))
            .collect::<Result<Vec<_>>>()?;
        // The optimiser would make AND and OR of it: its parts would be computed for rows that they
        // are not for.
        let numbers = ty == SqlType::Bool && whens.iter().chain(&results).any(guards::wants_guard);
        if numbers {
            let number = |truth| udf::number_of_truth().call(vec![truth]);
            results = results.into_iter().map(number).collect();
        }
        for result in &results {
            refuse_sets(result, "CASE")?;
        }
        let otherwise = results.pop().map(Box::new);
        let when_then_expr =
            whens.into_iter().map(Box::new).zip(results.into_iter().map(Box::new)).collect();
        let case = Expr::Case(Case { expr: None, when_then_expr, else_expr: otherwise });
        let case = if numbers { udf::truth_of_number().call(vec![case]) } else { case };
        Ok(Typed::of(case, ty))
    }

    /// A value for an expression that names it several times: what each computing gives another
    /// value of is computed once for a row, as a call that waits is (`row_by_row`).
    pub(super) fn once(&self, value: Typed) -> Result<Typed> {
        if !value.expr.is_volatile() {
            return Ok(value);
        }
        let expr = value.expr.transform_up(|part| {
            let Expr::ScalarFunction(call) = &part else { return Ok(Transformed::no(part)) };
            let Some(resolved) = udf::changing(&call.func).cloned() else {
                return Ok(Transformed::no(part));
            };
            self.waiting.set(true);
            let once = waiting_call(resolved, self.next_instance(), self.evaluation());
            Ok(Transformed::yes(once.call(call.args.clone())))
        });
        Ok(Typed { expr: expr.map_err(fault::from_datafusion)?.data, ..value })
    }

    /// The items of a list behind IN. Several without columns are one array in PostgreSQL, of one
    /// type with the value before it.
    pub(super) fn of_one_type(&self, left: &Typed, items: Vec<Typed>) -> Result<Vec<Typed>> {
        let steady = |item: &Typed| !item.expr.any_column_refs();
        let types = items.iter().filter(|item| steady(item)).map(|item| item.ty.clone());
        let types: Vec<_> = std::iter::once(left.ty.clone()).chain(types).collect();
        let ty = if types.len() > 2 { self.common_type(&types, "IN").ok() } else { None };
        // Of varchar the values are compared as text, as what is varchar in them is anyway; char(n)
        // would not be.
        let padded = types.iter().any(|ty| matches!(ty, SqlType::Char(_)));
        let ty = ty.filter(|ty| padded || !matches!(ty, SqlType::Varchar(_)));
        let Some(ty) = ty else { return Ok(items) };
        let items = items.into_iter().map(|item| {
            telesto_sql_types::interrupt::check()?;
            if steady(&item) { self.coerce(item, &ty, "IN") } else { Ok(item) }
        });
        items.collect()
    }
}
