//! Defaults, generated columns and checks as PostgreSQL prints them back (`pg_get_expr`,
//! `pg_get_constraintdef`, `information_schema`).
//!
//! # Invariants
//! - The catalog keeps what was written; what is shown is made from it for each reader, whose
//!   search path says which names need their schema.
//! - A default is shown without the cast to its column's type, but with the type where a constant
//!   had none.
//!
//! # On failure
//! None: what no longer binds is shown as it is stored.
//!
//! # Limits
//! Each text is parsed and bound whenever it is shown.

use std::borrow::Cow;
use std::sync::{Arc, OnceLock};

use super::definitions::shown_expression;
use telesto_sql_catalog::types::Domain;
use telesto_sql_catalog::{CatalogSnapshot, CheckConstraint, Table, TypeKind};
use telesto_sql_expr::Settings;
use telesto_sql_expr::deparse::Deparse;
use telesto_sql_expr::domain::value_scope;
use telesto_sql_expr::{Binder, CastContext, EvalContext, Expr, Node, Scope};
use telesto_sql_parser::stored::parse_stored_list;
use telesto_sql_plan::ParameterTypes;
use telesto_sql_plan::compiled_table::relation;
use telesto_sql_types::identifier::quote_ident;
use telesto_sql_types::{Datum, SqlType};

/// What the names in an expression mean.
pub(super) enum Over<'a> {
    Nothing,
    Columns(&'a Table),
    /// VALUE of this domain.
    Value(&'a Domain),
}

impl Over<'_> {
    fn scope(&self) -> Scope {
        match self {
            Self::Nothing => Scope::default(),
            Self::Columns(table) => {
                Scope { relations: vec![relation(table, &table.name, 0, true)] }
            }
            Self::Value(domain) => value_scope(&domain.base),
        }
    }

    fn name(&self, at: usize) -> String {
        match self {
            Self::Columns(table) => {
                table.columns.get(at).map_or_else(String::new, |c| quote_ident(&c.name))
            }
            _ => "VALUE".to_owned(),
        }
    }
}

/// Who reads: a catalog with the settings to bind by, and those to show names by.
pub(super) struct Reader<'a> {
    catalog: &'a Arc<CatalogSnapshot>,
    settings: &'a Settings,
    /// The settings of whom most texts are, with a search path that leads to what they name by bare
    /// names.
    binding: OnceLock<(u32, Settings)>,
}

impl<'a> Reader<'a> {
    pub(super) fn new(catalog: &'a Arc<CatalogSnapshot>, settings: &'a Settings) -> Self {
        Self { catalog, settings, binding: OnceLock::new() }
    }

    /// The settings by which a text is bound.
    fn binding(&self, over: &Over<'_>) -> Cow<'_, Settings> {
        let owner = match over {
            Over::Columns(table) => table.owner.0,
            _ => self.settings.current_role,
        };
        let make = || {
            let mut binding = self.settings.of_owner(self.catalog, owner);
            for schema in self.catalog.schemas().map(|schema| schema.name.clone()) {
                if !binding.search_path.contains(&schema) {
                    binding.search_path.push(schema);
                }
            }
            (owner, binding)
        };
        let (of, known) = self.binding.get_or_init(make);
        if *of == owner { Cow::Borrowed(known) } else { Cow::Owned(make().1) }
    }

    fn bind(
        &self,
        text: &str,
        over: &Over<'_>,
        finish: impl Fn(&mut Binder<'_>, Expr) -> telesto_sql_types::error::Result<Expr>,
    ) -> telesto_sql_types::error::Result<Vec<Expr>> {
        self.bind_by(&self.binding(over), text, over, finish)
    }

    fn bind_by(
        &self,
        settings: &Settings,
        text: &str,
        over: &Over<'_>,
        finish: impl Fn(&mut Binder<'_>, Expr) -> telesto_sql_types::error::Result<Expr>,
    ) -> telesto_sql_types::error::Result<Vec<Expr>> {
        let (scope, mut parameters) = (over.scope(), ParameterTypes::default());
        let context = EvalContext::planning(settings, self.catalog);
        let mut binder =
            Binder::new(&scope, &mut parameters, &context, "a definition").as_written();
        let exprs = parse_stored_list(text)?;
        exprs
            .iter()
            .map(|expr| {
                let bound = binder.bind(expr)?;
                finish(&mut binder, bound)
            })
            .collect()
    }

    fn print(&self, exprs: &[Expr], over: &Over<'_>, pretty: bool) -> String {
        let context = EvalContext::planning(self.settings, self.catalog);
        let column = |at: usize| over.name(at);
        let inner_domain = matches!(over, Over::Value(domain) if domain.parent.is_some());
        let deparse = Deparse { column: &column, pretty, reader: Some(&context), inner_domain };
        exprs.iter().map(|expr| deparse.text(expr)).collect::<Vec<_>>().join(", ")
    }

    /// A default or generation expression of a column of type `ty`; `None` for NULL, which is no
    /// default.
    pub(super) fn default_of(&self, text: &str, over: &Over<'_>, ty: &SqlType) -> Option<String> {
        let finished = self.bind(text, over, |binder, bound| match bound.ty {
            SqlType::Unknown => binder.coerce(bound, &ty.without_modifier(), CastContext::Implicit),
            _ => Ok(bound),
        });
        match finished {
            Ok(exprs) => match exprs.as_slice() {
                // With a length the cast to it stays, so that PostgreSQL keeps the default.
                [Expr { node: Node::Const(Datum::Null), .. }] if *ty == ty.without_modifier() => {
                    None
                }
                exprs => Some(self.print(exprs, over, false)),
            },
            Err(_) => Some(shown_expression(self.catalog, self.settings, text)),
        }
    }

    /// A condition.
    pub(super) fn condition(&self, text: &str, over: &Over<'_>, pretty: bool) -> String {
        match self.bind(text, over, |binder, bound| binder.implicit(bound, &SqlType::Bool)) {
            Ok(exprs) => self.print(&exprs, over, pretty),
            Err(_) => shown_expression(self.catalog, self.settings, text),
        }
    }

    /// An expression, or several, that has been shown before, without needless parentheses.
    pub(super) fn pretty(&self, text: &str, over: &Over<'_>) -> String {
        // To this reader: its bare names are what the reader's search path leads to, before what it
        // led to for whoever wrote it.
        let mut settings = self.binding(over).into_owned();
        let written =
            std::mem::replace(&mut settings.search_path, self.settings.effective_search_path());
        settings.search_path.extend(written);
        match self.bind_by(&settings, text, over, |_, bound| Ok(bound)) {
            Ok(exprs) => self.print(&exprs, over, true),
            Err(_) => text.to_owned(),
        }
    }

    /// The positions of the columns of `table` that an expression names, in the order in which it
    /// names them.
    pub(super) fn columns_of(&self, text: &str, table: &Table) -> Vec<usize> {
        let mut named = Vec::new();
        let bound = self.bind(text, &Over::Columns(table), |_, bound| Ok(bound));
        for expr in bound.iter().flatten() {
            expr.walk(&mut |expr| match expr.node {
                Node::Column(at) if !named.contains(&at) => named.push(at),
                _ => {}
            });
        }
        named
    }

    /// `CHECK (…)`.
    pub(super) fn check(&self, check: &CheckConstraint, over: &Over<'_>, pretty: bool) -> String {
        let suffix = if check.validated { "" } else { " NOT VALID" };
        format!("CHECK ({}){suffix}", self.condition(&check.expression, over, pretty))
    }

    /// The check of a table or domain with this OID, as [`Self::check`].
    pub(super) fn check_of(&self, oid: u32, pretty: bool) -> Option<String> {
        for ty in self.catalog.user_types() {
            let TypeKind::Domain(domain) = &ty.kind else { continue };
            if let Some(check) = domain.checks.iter().find(|check| check.oid == oid) {
                return Some(self.check(check, &Over::Value(domain), pretty));
            }
        }
        self.catalog.tables().find_map(|table| {
            let check = table.checks.iter().find(|check| check.oid == oid)?;
            Some(self.check(check, &Over::Columns(table), pretty))
        })
    }
}
