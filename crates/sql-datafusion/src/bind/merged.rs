//! The columns that USING and NATURAL make of two.
//!
//! # Invariants
//! The two stay in view under their relation's names, and are not part of `*`. The alias of USING
//! is one more name for what is merged.
//!
//! # On failure
//! 42703 and 42702 for a name that a side has not, or twice.

use std::collections::BTreeSet;

use datafusion::common::{Column, JoinType};
use datafusion::logical_expr::Expr;
use datafusion::sql::sqlparser::ast;

use super::scope::{ScopeColumn, fold};
use super::{Binder, Typed};
use crate::fault;
use telesto_sql_parser::rewrite::using_alias;
use telesto_sql_plan::FromColumn;
use telesto_sql_types::error::Result;

/// Which columns a join merges.
#[derive(Default)]
pub(super) struct Merge {
    pub names: Vec<String>,
    alias: Option<String>,
}

impl Merge {
    /// What a join says of it, between these sides.
    pub(super) fn of(
        constraint: Option<&ast::JoinConstraint>,
        left: &[ScopeColumn],
        right: &[ScopeColumn],
    ) -> Self {
        match constraint {
            Some(ast::JoinConstraint::Using(names)) => {
                let last =
                    |name: &ast::ObjectName| name.0.last().and_then(|p| p.as_ident()).map(fold);
                Self {
                    names: names.iter().filter_map(last).collect(),
                    alias: using_alias::alias(names).map(fold),
                }
            }
            Some(ast::JoinConstraint::Natural) => {
                let names = left
                    .iter()
                    .filter(|l| !l.merged)
                    .filter(|l| right.iter().any(|r| !r.merged && r.name == l.name))
                    .map(|l| l.name.clone());
                Self { names: names.collect(), alias: None }
            }
            _ => Self::default(),
        }
    }
}

/// The columns of a join.
pub(super) struct MergedColumns {
    pub columns: Vec<ScopeColumn>,
    /// That what is merged is equal; `None`: nothing is.
    pub condition: Option<Expr>,
    /// Values of both sides, or of one in the common type, that are to be computed beside the
    /// joined rows.
    pub computed: Vec<Expr>,
}

/// The column that two become.
enum Merged {
    /// That of one side.
    Side(ScopeColumn),
    /// A value of both, or of one in the common type.
    Computed(Expr),
}

impl Binder<'_> {
    /// The columns that a FROM clause shows, with the CTEs of `with` in view.
    pub(crate) fn columns_of_from(
        &self,
        with: Option<&ast::With>,
        items: &[ast::TableWithJoins],
    ) -> Result<Vec<FromColumn>> {
        if let Some(with) = with {
            self.with(None, with, None)?;
        }
        let columns = self.from(items, None)?.columns;
        let shown: Vec<&ScopeColumn> = columns.iter().filter(|column| !column.merged).collect();
        let of = |column: &ScopeColumn, position, again| {
            let (relation, name) = (column.table.clone(), column.name.clone());
            FromColumn { relation, name, ty: column.ty.clone(), position, again }
        };
        let own = shown.iter().enumerate().map(|(position, column)| of(column, position, false));
        let mut out: Vec<FromColumn> = own.collect();
        let aliases = aliases(&columns);
        for column in columns.iter().filter(|column| column.merged) {
            let alias = column.table.as_deref().is_some_and(|table| aliases.contains(table));
            let same =
                |other: &&ScopeColumn| other.table.is_none() && other.column == column.column;
            if let (true, Some(position)) = (alias, shown.iter().position(same)) {
                out.push(of(column, position, true));
            }
        }
        Ok(out)
    }

    /// The columns of a join of this kind that merges these.
    pub(super) fn merged(
        &self,
        mut lefts: Vec<ScopeColumn>,
        mut rights: Vec<ScopeColumn>,
        merge: &Merge,
        kind: JoinType,
    ) -> Result<MergedColumns> {
        let mut columns: Vec<ScopeColumn> = Vec::new();
        let mut condition = None;
        let mut computed: Vec<Expr> = Vec::new();
        for name in &merge.names {
            let l = merge_side(&lefts, name, "left")?;
            let r = merge_side(&rights, name, "right")?;
            let (lc, rc) = (lefts[l].clone(), rights[r].clone());
            let typed = |c: &ScopeColumn| Typed::of(Expr::Column(c.column.clone()), c.ty.clone());
            let equal = self.binary("=", typed(&lc), typed(&rc))?.expr;
            condition = Some(match condition {
                None => equal,
                Some(before) => Expr::and(before, equal),
            });
            lefts[l].merged = true;
            rights[r].merged = true;
            let ty = self.common_type(&[lc.ty.clone(), rc.ty.clone()], "JOIN/USING")?;
            let common = |c: &ScopeColumn| c.ty.same_base(&ty);
            let value = match kind {
                JoinType::Right if common(&rc) => Merged::Side(rc),
                JoinType::Right => {
                    Merged::Computed(self.coerce(typed(&rc), &ty, "JOIN/USING")?.expr)
                }
                JoinType::Full => {
                    let l = self.coerce(typed(&lc), &ty, "JOIN/USING")?.expr;
                    let r = self.coerce(typed(&rc), &ty, "JOIN/USING")?.expr;
                    Merged::Computed(super::from::coalesce(l, r)?)
                }
                _ if common(&lc) => Merged::Side(lc),
                // Both sides have the value: that of the side is taken that has the type, too.
                JoinType::Inner if common(&rc) => Merged::Side(rc),
                _ => Merged::Computed(self.coerce(typed(&lc), &ty, "JOIN/USING")?.expr),
            };
            let kept = match value {
                Merged::Side(column) => ScopeColumn { table: None, ..column },
                Merged::Computed(expr) => {
                    let unique = self.unique(&format!("{name}#merged"));
                    computed.push(expr.alias(&unique));
                    ScopeColumn {
                        table: None,
                        name: name.clone(),
                        ty,
                        column: Column::new_unqualified(unique),
                        merged: false,
                        scalar: false,
                        parameter: None,
                        origin: None,
                    }
                }
            };
            columns.push(ScopeColumn { merged: false, ..kept });
        }
        if let Some(alias) = &merge.alias {
            let named = |column: &ScopeColumn| ScopeColumn {
                table: Some(alias.clone()),
                merged: true,
                ..column.clone()
            };
            let named: Vec<ScopeColumn> = columns.iter().map(named).collect();
            columns.extend(named);
        }
        columns.extend(lefts);
        columns.extend(rights);
        Ok(MergedColumns { columns, condition, computed })
    }
}

/// The relations whose columns are all merged ones again: the aliases of USING.
pub(super) fn aliases(columns: &[ScopeColumn]) -> BTreeSet<&str> {
    let mut aliases = BTreeSet::new();
    if columns.iter().any(|column| column.merged && !column.hidden()) {
        let merged = |column: &ScopeColumn| {
            let same = |other: &ScopeColumn| other.table.is_none() && other.column == column.column;
            column.merged && columns.iter().any(same)
        };
        let named = |column: &&ScopeColumn| column.table.is_some();
        let (again, own): (Vec<_>, Vec<_>) =
            columns.iter().filter(named).partition(|column| merged(column));
        aliases.extend(again.iter().filter_map(|column| column.table.as_deref()));
        for table in own.iter().filter_map(|column| column.table.as_deref()) {
            aliases.remove(table);
        }
    }
    aliases
}

fn merge_side(columns: &[ScopeColumn], name: &str, side: &str) -> Result<usize> {
    let mut hits = columns.iter().enumerate().filter(|(_, c)| !c.merged && c.name == name);
    match (hits.next(), hits.next()) {
        (Some((at, _)), None) => Ok(at),
        (None, _) => Err(fault::new(
            "42703",
            format!("column \"{name}\" specified in USING clause does not exist in {side} table"),
        )),
        (Some(_), Some(_)) => Err(fault::new(
            "42702",
            format!("common column name \"{name}\" appears more than once in {side} table"),
        )),
    }
}
