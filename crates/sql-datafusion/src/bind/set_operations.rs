//! UNION, INTERSECT and EXCEPT, chains of them in a loop.
//!
//! # Invariants
//! - A chain is bound from left to right as PostgreSQL does: column counts and types are those of
//!   the pairs as they come.
//! - UNIONs that follow each other are one operator over all their branches: a plan's depth does
//!   not grow with them.
//!
//! # On failure
//! 42601 for branches of different width, 42804 for types that do not meet, 54001 for
//! [`MAX_DIFFERENCES`].

use std::sync::Arc;

use datafusion::logical_expr::{LogicalPlan, Union};
use datafusion::sql::sqlparser::ast;

use super::Binder;
use super::scope::{Relation, Scope, ScopeColumn};
use crate::fault;
use telesto_sql_types::error::Result;

/// INTERSECTs and EXCEPTs that may chain up: each is a join over all before it, and DataFusion's
/// planning time grows with the square of a plan's depth.
const MAX_DIFFERENCES: usize = 200;

/// What a chain has come to: branches of a union that is not made yet.
struct Chain {
    branches: Vec<Relation>,
    /// Whether equal rows of it are one.
    distinct: bool,
}

/// Columns of a set operation: named as the first branch's, and no table's.
fn of_no_table(columns: &[ScopeColumn]) -> Vec<ScopeColumn> {
    columns.iter().map(|column| ScopeColumn { origin: None, ..column.clone() }).collect()
}

impl Binder<'_> {
    /// A chain of set operations.
    pub(super) fn set_operations(
        &self,
        body: &ast::SetExpr,
        outer: Option<&Scope<'_>>,
    ) -> Result<Relation> {
        let mut steps = Vec::new();
        let mut first = body;
        while let ast::SetExpr::SetOperation { left, op, set_quantifier, right } = first {
            let all = match set_quantifier {
                ast::SetQuantifier::All => true,
                ast::SetQuantifier::None | ast::SetQuantifier::Distinct => false,
                _ => return Err(fault::unsupported("set operations BY NAME")),
            };
            steps.push((*op, all, right));
            first = left;
        }
        let differences = steps.iter().filter(|(op, ..)| *op != ast::SetOperator::Union);
        if differences.count() > MAX_DIFFERENCES {
            return Err(telesto_sql_parser::syntax::too_deep());
        }
        self.wanted.take();
        // An untyped literal takes its type from the other side.
        let before = self.keep_unknown.replace(true);
        let bound = self.set_expr(first, outer).and_then(|first| {
            let mut chain = Chain { branches: vec![first], distinct: false };
            for (op, all, right) in steps.into_iter().rev() {
                self.keep_unknown.set(true);
                let right = self.set_expr(right, outer)?;
                chain = self.next_step(chain, op, all, right)?;
            }
            self.united(chain)
        });
        self.keep_unknown.set(before);
        bound
    }

    fn next_step(
        &self,
        mut chain: Chain,
        op: ast::SetOperator,
        all: bool,
        right: Relation,
    ) -> Result<Chain> {
        let word = op.to_string();
        let width = chain.branches.first().map_or(0, |first| first.columns.len());
        if width != right.columns.len() {
            return Err(fault::new(
                "42601",
                format!("each {word} query must have the same number of columns"),
            ));
        }
        if op == ast::SetOperator::Union {
            // Equal rows that are one already may as well be so at the end, but not those that were
            // none before.
            if chain.distinct && all {
                chain = Chain { branches: vec![self.united(chain)?], distinct: false };
            }
            chain.branches.push(right);
            chain.distinct |= !all;
            return Ok(chain);
        }
        let sides = Chain { branches: vec![self.united(chain)?, right], distinct: false };
        let mut sides = self.alike(sides.branches, &word)?.into_iter();
        let (Some(left), Some(right)) = (sides.next(), sides.next()) else {
            return Err(telesto_sql_types::error::Error::internal(
                "a set operation without two sides",
            ));
        };
        let names = of_no_table(&left.columns);
        let intersect = op == ast::SetOperator::Intersect;
        let plan = self.set_difference(left, right, intersect, all)?;
        // Set operations may re-qualify their inputs: take the columns by position.
        Ok(Chain { branches: vec![self.take_columns(plan, &names)?], distinct: false })
    }

    /// The branches with the same types and, in the plan, the same names of columns.
    fn alike(&self, branches: Vec<Relation>, word: &str) -> Result<Vec<Relation>> {
        let mut types: Vec<_> = Vec::new();
        for (at, branch) in branches.iter().enumerate() {
            let own = branch.columns.iter().map(|column| column.ty.clone());
            types = if at == 0 {
                own.collect()
            } else {
                let pairs = types.into_iter().zip(own);
                pairs.map(|(l, r)| self.common_type(&[l, r], word)).collect::<Result<_>>()?
            };
        }
        let mut out: Vec<Relation> = Vec::with_capacity(branches.len());
        for branch in branches {
            let branch = self.conform(branch, &types, word)?;
            out.push(match out.first() {
                None => branch,
                Some(first) => {
                    let names = first.columns.clone();
                    self.project_as(branch, &names)?
                }
            });
        }
        Ok(out)
    }

    /// The relation a chain is.
    fn united(&self, chain: Chain) -> Result<Relation> {
        let Chain { mut branches, distinct } = chain;
        if branches.len() == 1
            && let Some(only) = branches.pop()
        {
            return Ok(only);
        }
        let branches = self.alike(branches, "UNION")?;
        let names = branches.first().map(|first| of_no_table(&first.columns)).unwrap_or_default();
        let inputs = branches.into_iter().map(|branch| Arc::new(branch.plan)).collect();
        let union = Union::try_new_with_loose_types(inputs).map_err(fault::from_datafusion)?;
        let all = self.take_columns(LogicalPlan::Union(union), &names)?;
        if !distinct {
            return Ok(all);
        }
        let plan = self.distinct(all.plan, &all.columns)?;
        self.take_columns(plan, &names)
    }
}
