//! What goes with relations and columns that are dropped: views over them, policies that read them,
//! and texts that hold their OIDs.
//!
//! ```text
//! DROP SEQUENCE s   view over s                          its policies, views over it, and so on
//!                   nextval('s'), 's'::regclass in …     default: forgotten    generated column: dropped
//!                                                        check, policy, domain: dropped
//! ```
//!
//! # Invariants
//! - Without CASCADE nothing goes that another object needs: the statement fails, and names what
//!   does.
//! - Whatever goes takes with it what depends on it, in the same statement: nothing is left that
//!   names what is gone.
//!
//! # On failure
//! XX001 when a stored text that has the digits of an OID does not parse.
//!
//! # Limits
//! A constant is looked for where a text has it as a literal beside a cast to regclass, or as the
//! sequence of `nextval` and its kin, as PostgreSQL does; elements of an array's text are not. In
//! an index's text it is a number that names nothing: the index stays. Texts of older catalogs that
//! still have a relation's name are not found.

use std::collections::BTreeSet;
use std::ops::ControlFlow;
use std::sync::Arc;

use telesto_common::TableId;

use super::composites::any_expression;
use super::dependents::Dependents;
use super::keys::forget_comments;
use super::names::fold;
use super::type_text::view_query;
use super::{Ddl, parse_expr};
use telesto_sql_catalog::store::{CatalogChange, Object};
use telesto_sql_catalog::{Generated, Relation, Table, TypeKind, View};
use telesto_sql_parser::sqlparser::ast::{
    DataType, Expr, FunctionArg, FunctionArgExpr, FunctionArguments, Ident, Value,
    visit_expressions,
};
use telesto_sql_types::error::Result;

/// What one statement drops.
#[derive(Clone, Default)]
pub(super) struct Targets {
    pub(super) tables: BTreeSet<TableId>,
    pub(super) views: BTreeSet<u32>,
    pub(super) types: BTreeSet<u32>,
    /// A column of a table that stays.
    pub(super) column: Option<(TableId, usize)>,
}

impl Targets {
    fn tables(&self) -> Vec<u32> {
        self.tables.iter().map(|table| table.0).collect()
    }
}

/// Something that does not outlive what it depends on.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Dependent {
    View(u32),
    Policy(TableId, String),
    Default(TableId, usize),
    Generated(TableId, String),
    Check(TableId, u32),
    Domain(u32),
    /// A condition, by its OID, of a domain.
    DomainCheck(u32, u32),
}

/// What goes by CASCADE.
#[derive(Default)]
pub(super) struct Going(Vec<Dependent>);

impl Going {
    /// Whether it is new here.
    fn add(&mut self, dependent: Dependent) -> bool {
        let new = !self.0.contains(&dependent);
        if new {
            self.0.push(dependent);
        }
        new
    }
}

fn is_digits(expr: &Expr, digits: &str) -> bool {
    matches!(expr, Expr::Value(value)
        if matches!(&value.value, Value::SingleQuotedString(text) if text == digits))
}

/// Whether an expression is the relation's OID as a constant.
fn is_constant(expr: &Expr, digits: &str) -> bool {
    match expr {
        Expr::Cast { expr, data_type: DataType::Regclass, .. } => is_digits(expr, digits),
        Expr::TypedString(typed) if typed.data_type == DataType::Regclass => {
            matches!(&typed.value.value, Value::SingleQuotedString(text) if text == digits)
        }
        Expr::Function(function) => {
            let name = function.name.0.last().and_then(|part| part.as_ident()).map(fold);
            let sequence = matches!(name.as_deref(), Some("nextval" | "currval" | "setval"));
            match &function.args {
                FunctionArguments::List(list) if sequence => matches!(list.args.first(),
                    Some(FunctionArg::Unnamed(FunctionArgExpr::Expr(of))) if is_digits(of, digits)),
                _ => false,
            }
        }
        _ => false,
    }
}

/// Finds texts that hold an OID.
struct Holder(String);

impl Holder {
    fn is_in(&self, text: &str) -> Result<bool> {
        // Few texts have the digits at all.
        Ok(text.contains(&self.0)
            && any_expression(&parse_expr(text)?, &|expr| is_constant(expr, &self.0)))
    }

    fn is_in_any<'t>(&self, texts: impl IntoIterator<Item = &'t String>) -> Result<bool> {
        for text in texts {
            if self.is_in(text)? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    fn is_in_view(&self, view: &View) -> Result<bool> {
        if !view.query.contains(&self.0) {
            return Ok(false);
        }
        let found =
            visit_expressions(&view_query(view)?, |expr| match is_constant(expr, &self.0) {
                true => ControlFlow::Break(()),
                false => ControlFlow::Continue(()),
            });
        Ok(found.is_break())
    }
}

impl Ddl<'_> {
    /// What of a table holds the OID in its text, and how PostgreSQL calls it.
    fn holding_in_table(
        &self,
        table: &Table,
        holder: &Holder,
        targets: &Targets,
    ) -> Result<Vec<(Dependent, String)>> {
        let (id, shown) = (table.id, self.shown_name(table.schema, &table.name));
        let mut out = Vec::new();
        for (at, column) in table.visible_columns() {
            if targets.column == Some((id, at)) {
                continue;
            }
            if holder.is_in_any(&column.default)? {
                let what = format!("default value for column {} of table {shown}", column.name);
                out.push((Dependent::Default(id, at), what));
            }
            if let Some(Generated::Stored(text)) = &column.generated
                && holder.is_in(text)?
            {
                let what = format!("column {} of table {shown}", column.name);
                out.push((Dependent::Generated(id, column.name.clone()), what));
            }
        }
        for check in &table.checks {
            if holder.is_in(&check.expression)? {
                let what = format!("constraint {} on table {shown}", check.name);
                out.push((Dependent::Check(id, check.oid), what));
            }
        }
        for policy in &table.row_security.policies {
            if holder.is_in_any(policy.using.iter().chain(&policy.check))? {
                let what = format!("policy {} on table {shown}", policy.name);
                out.push((Dependent::Policy(id, policy.name.clone()), what));
            }
        }
        Ok(out)
    }

    /// What holds the OID in its text, and how PostgreSQL calls it.
    fn holding(&self, oid: u32, targets: &Targets) -> Result<Vec<(Dependent, String)>> {
        let holder = Holder(oid.to_string());
        let mut out = Vec::new();
        for view in self.catalog().views().filter(|view| !targets.views.contains(&view.oid)) {
            if holder.is_in_view(view)? {
                let what = format!("view {}", self.shown_name(view.schema, &view.name));
                out.push((Dependent::View(view.oid), what));
            }
        }
        for table in self.catalog().tables().filter(|table| !targets.tables.contains(&table.id)) {
            out.extend(self.holding_in_table(table, &holder, targets)?);
        }
        for ty in self.catalog().user_types().filter(|ty| !targets.types.contains(&ty.oid)) {
            let TypeKind::Domain(domain) = &ty.kind else { continue };
            if holder.is_in_any(&domain.default)? {
                let what = format!("type {}", self.shown_name(ty.schema, &ty.name));
                out.push((Dependent::Domain(ty.oid), what));
            }
            for check in &domain.checks {
                if holder.is_in(&check.expression)? {
                    let what = format!("constraint {}", check.name);
                    out.push((Dependent::DomainCheck(ty.oid, check.oid), what));
                }
            }
        }
        Ok(out)
    }

    /// Adds what goes with a relation, and with that, told to `needs`.
    pub(super) fn add_going(
        &self,
        relation: &Relation,
        targets: &Targets,
        (needs, going): (&mut Dependents, &mut Going),
    ) -> Result<()> {
        let (oid, on, mut found) = match relation {
            Relation::Table(o) => {
                let on = format!("table {}", self.shown_name(o.schema, &o.name));
                (o.id.0, on, self.views_on(o.schema, &o.name))
            }
            Relation::View(o) => {
                let on = format!("view {}", self.shown_name(o.schema, &o.name));
                (o.oid, on, self.views_on(o.schema, &o.name))
            }
            Relation::Sequence(o) => {
                let on = format!("sequence {}", self.shown_name(o.schema, &o.name));
                (o.oid, on, self.views_on(o.schema, &o.name))
            }
            Relation::Index(table, o) => {
                (o.oid, format!("index {}", self.shown_name(table.schema, &o.name)), Vec::new())
            }
        };
        found.retain(|view| !targets.views.contains(&view.oid));
        let mut dependents: Vec<(Dependent, String)> = found
            .iter()
            .map(|view| {
                let what = format!("view {}", self.shown_name(view.schema, &view.name));
                (Dependent::View(view.oid), what)
            })
            .collect();
        for (table, policy) in self.policies_of_others(relation, &targets.tables()) {
            let what = self.shown_policy(table, &policy);
            dependents.push((Dependent::Policy(table, policy), what));
        }
        dependents.extend(self.holding(oid, targets)?);
        for (dependent, what) in dependents {
            needs.add_on(what, on.clone());
            if going.add(dependent.clone())
                && let Dependent::View(oid) = dependent
            {
                self.add_upon(oid, targets, (&mut *needs, &mut *going))?;
            }
        }
        Ok(())
    }

    fn add_upon(
        &self,
        view: u32,
        targets: &Targets,
        to: (&mut Dependents, &mut Going),
    ) -> Result<()> {
        match self.catalog().views().find(|known| known.oid == view) {
            Some(view) => self.add_going(&Relation::View(Arc::clone(view)), targets, to),
            None => Ok(()),
        }
    }

    /// Adds what goes with a column: the views and policies that use it, with what goes with those,
    /// and the users of its sequences.
    ///
    /// # Errors
    /// 2BP01 where it cannot be told whether a policy does.
    pub(super) async fn add_going_with_column(
        &self,
        table: &Table,
        position: usize,
        (needs, going): (&mut Dependents, &mut Going),
    ) -> Result<()> {
        let targets = Targets { column: Some((table.id, position)), ..Targets::default() };
        for (on, policy) in self.policies_using_column(table, position).await? {
            needs.add(self.shown_policy(on, &policy));
            going.add(Dependent::Policy(on, policy));
        }
        for view in self.views_using_column(table, position).await {
            needs.add(format!("view {}", self.shown_name(view.schema, &view.name)));
            if going.add(Dependent::View(view.oid)) {
                self.add_upon(view.oid, &targets, (&mut *needs, &mut *going))?;
            }
        }
        let owned = |owner: Option<(TableId, usize)>| owner == Some((table.id, position));
        for sequence in self.catalog().sequences().filter(|s| owned(s.owned_by)) {
            let sequence = Relation::Sequence(Arc::clone(sequence));
            self.add_going(&sequence, &targets, (&mut *needs, &mut *going))?;
        }
        Ok(())
    }

    /// Refuses to drop a sequence that anything depends on.
    pub(super) fn needed_by_nothing(&self, sequence: u32) -> Result<()> {
        let Some(sequence) = self.catalog().sequence(sequence).cloned() else { return Ok(()) };
        let shown = self.shown_name(sequence.schema, &sequence.name);
        let (mut needs, mut going) =
            (Dependents::of(format!("sequence {shown}")), Going::default());
        let relation = Relation::Sequence(sequence);
        self.add_going(&relation, &Targets::default(), (&mut needs, &mut going))?;
        needs.settle(false, &self.context.notices)
    }

    /// Adds the views and policies that need a table's primary key: they group by it, and show what
    /// it determines.
    pub(super) async fn add_going_with_primary(
        &self,
        table: &Table,
        (needs, going): (&mut Dependents, &mut Going),
    ) -> Result<()> {
        let mut change = CatalogChange::new(Arc::clone(&self.context.txn), self.catalog());
        change.put(Object::Table(Table { primary: None, ..table.clone() }));
        let without = Arc::new(change.catalog().clone());
        let targets = Targets::default();
        for found in self.policies_over(table)? {
            let binds = self.view_columns(&found.query).await.is_ok();
            if binds && self.view_columns_in(&without, &found.query).await.is_err() {
                needs.add(self.shown_policy(found.on, &found.policy));
                going.add(Dependent::Policy(found.on, found.policy));
            }
        }
        for view in self.views_on(table.schema, &table.name) {
            let Some(query) = self.query_in(&view) else { continue };
            let binds = self.view_columns(&query).await.is_ok();
            if binds && self.view_columns_in(&without, &query).await.is_err() {
                needs.add(format!("view {}", self.shown_name(view.schema, &view.name)));
                if going.add(Dependent::View(view.oid)) {
                    self.add_upon(view.oid, &targets, (&mut *needs, &mut *going))?;
                }
            }
        }
        Ok(())
    }

    /// A foreign key goes with what it refers to.
    pub(super) fn remove_foreign_key(&mut self, table: TableId, key: u32) {
        self.edit_table(table, |table| table.foreign_keys.retain(|known| known.oid != key));
    }

    fn edit_table(&mut self, table: TableId, edit: impl FnOnce(&mut Table)) {
        let Some(table) = self.catalog().table(table) else { return };
        let mut table = (**table).clone();
        edit(&mut table);
        forget_comments(&mut table);
        self.change.put(Object::Table(table));
    }

    /// Removes what goes, after [`Dependents::settle`] has told it.
    pub(super) async fn remove_going(&mut self, going: Going) -> Result<()> {
        for dependent in going.0 {
            match dependent {
                Dependent::View(oid) => {
                    if self.catalog().views().any(|view| view.oid == oid) {
                        self.change.remove(oid);
                    }
                }
                Dependent::Policy(table, name) => self.edit_table(table, |table| {
                    table.row_security.policies.retain(|policy| policy.name != name);
                }),
                Dependent::Default(table, at) => {
                    self.edit_table(table, |table| table.columns[at].default = None);
                }
                Dependent::Check(table, oid) => {
                    self.edit_table(table, |table| table.checks.retain(|check| check.oid != oid));
                }
                Dependent::Generated(table, name) => {
                    let Some(table) = self.catalog().table(table) else { continue };
                    let mut table = (**table).clone();
                    let column = Ident::with_quote('"', name);
                    Box::pin(self.alter_drop_column(&mut table, &column, true, true)).await?;
                    self.change.put(Object::Table(table));
                }
                Dependent::Domain(oid) => {
                    let Some(ty) = self.catalog().user_type(oid).cloned() else { continue };
                    Box::pin(self.remove_type(&ty, true)).await?;
                }
                Dependent::DomainCheck(oid, check) => {
                    let Some(ty) = self.catalog().user_type(oid) else { continue };
                    let mut ty = (**ty).clone();
                    if let TypeKind::Domain(domain) = &mut ty.kind {
                        domain.checks.retain(|known| known.oid != check);
                    }
                    self.change.put(Object::Type(ty));
                }
            }
        }
        Ok(())
    }
}
