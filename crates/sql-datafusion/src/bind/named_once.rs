//! One name for two items of a FROM clause.
//!
//! # Invariants
//! Tables of different schemas may be called the same, as long as none of them has the name as an
//! alias.
//!
//! # On failure
//! 42712; before that, what a table that cannot be named answers.
//!
//! # Limits
//! Two views or system catalogs whose names are written in different ways count as different ones.

use std::collections::BTreeMap;

use datafusion::sql::sqlparser::ast;

use super::scope::fold;
use super::table_call::TableCall;
use super::{Binder, Found};
use crate::fault;
use telesto_sql_parser::rewrite::using_alias;
use telesto_sql_types::error::Result;

/// What stands behind a name.
#[derive(Clone, Copy)]
struct Named<'a> {
    /// The table or view, if it is one.
    table: Option<&'a ast::ObjectName>,
    /// Its name is that of the table, and no alias.
    own: bool,
}

type Names<'a> = BTreeMap<String, Vec<Named<'a>>>;

fn parts(name: &ast::ObjectName) -> Vec<String> {
    name.0.iter().filter_map(|part| part.as_ident()).map(fold).collect()
}

impl Binder<'_> {
    /// Refuses a FROM clause that calls two of its items the same.
    pub(super) fn named_once(&self, items: &[ast::TableWithJoins]) -> Result<()> {
        let mut names = Names::new();
        items.iter().try_for_each(|item| self.names_of(item, &mut names))
    }

    fn names_of<'a>(&self, item: &'a ast::TableWithJoins, names: &mut Names<'a>) -> Result<()> {
        self.name_of(&item.relation, names)?;
        for join in &item.joins {
            self.name_of(&join.relation, names)?;
            use ast::JoinOperator as J;
            let (J::Join(constraint)
            | J::Inner(constraint)
            | J::Left(constraint)
            | J::LeftOuter(constraint)
            | J::Right(constraint)
            | J::RightOuter(constraint)
            | J::FullOuter(constraint)) = &join.join_operator
            else {
                continue;
            };
            if let ast::JoinConstraint::Using(columns) = constraint
                && let Some(alias) = using_alias::alias(columns)
            {
                self.add(fold(alias), Named { table: None, own: false }, names)?;
            }
        }
        Ok(())
    }

    fn name_of<'a>(&self, factor: &'a ast::TableFactor, names: &mut Names<'a>) -> Result<()> {
        let (name, named) = match factor {
            ast::TableFactor::Table { name, alias, args: None, .. } => {
                let own = alias.is_none() && !self.is_with_query(name);
                let called = match alias {
                    Some(alias) => fold(&alias.name),
                    None => parts(name).pop().unwrap_or_default(),
                };
                (called, Named { table: Some(name), own })
            }
            ast::TableFactor::NestedJoin { table_with_joins, alias } => {
                let Some(alias) = alias else { return self.names_of(table_with_joins, names) };
                // The names inside are not seen.
                self.names_of(table_with_joins, &mut Names::new())?;
                (fold(&alias.name), Named { table: None, own: false })
            }
            ast::TableFactor::Derived { alias, .. } => match alias {
                Some(alias) => (fold(&alias.name), Named { table: None, own: false }),
                None => return Ok(()),
            },
            factor => match TableCall::of(factor) {
                Some(call) => (call.shown(), Named { table: None, own: false }),
                None => return Ok(()),
            },
        };
        self.add(name, named, names)
    }

    fn add<'a>(&self, name: String, named: Named<'a>, names: &mut Names<'a>) -> Result<()> {
        for known in names.get(&name).into_iter().flatten() {
            if !self.differ(*known, named)? {
                let message = format!("table name \"{name}\" specified more than once");
                return Err(fault::new("42712", message));
            }
        }
        names.entry(name).or_default().push(named);
        Ok(())
    }

    /// Whether two items of one name are different tables that are called so.
    fn differ(&self, one: Named<'_>, other: Named<'_>) -> Result<bool> {
        let found = |named: Named<'_>| match named.table {
            Some(name) if !self.is_with_query(name) => self.find_table(&parts(name)).map(Some),
            _ => Ok(None),
        };
        let (first, second) = (found(one)?, found(other)?);
        let (true, Some(name), Some(further)) = (one.own && other.own, one.table, other.table)
        else {
            return Ok(false);
        };
        Ok(match (first, second) {
            (Some(Found::Table(first)), Some(Found::Table(second)))
                if first.id.is_some() || second.id.is_some() =>
            {
                first.id != second.id
            }
            _ => parts(name) != parts(further),
        })
    }
}
