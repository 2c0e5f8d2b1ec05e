//! Values of composite types that the catalog holds as text, when a type gets or loses a field:
//! what rows have that are older than a column, and constants in defaults, checks, views and the
//! like.
//!
//! ```text
//! type c (a, b), then ADD ATTRIBUTE d, DROP ATTRIBUTE a
//! '(1,x)'::c       '(1,x,)'::c       '(x,)'::c
//! ROW(1, 'x')::c   ROW(1, 'x', NULL)::c   ROW('x', NULL)::c
//! ```
//! # Invariants
//! - A text says the fields of a value by their places alone, so each change of a type is followed
//!   by this one: no value is ever read as that of another field. Rows need no such thing, they
//!   have the fields' numbers.
//! - Every text that bound before the change binds behind it.
//!
//! # On failure
//! 0A000 names the text with a constant that cannot be written again: a row that is neither cast
//! nor a column's whole default, and one of a domain. A value that could not be read before stays
//! as it is.
//!
//! # Limits
//! Each string with a parenthesis in it costs one binding, which tells the type that it is read as.

use std::ops::ControlFlow;

use super::composites::any_expression;
use super::label_text::{each_constant, renamed, with_constant};
use super::type_text::{places, view_query};
use super::{Ddl, parse_expr};
use telesto_sql_catalog::codec::value::{Input, get_value, put_value};
use telesto_sql_catalog::store::Object;
use telesto_sql_catalog::types::user_oid;
use telesto_sql_catalog::{Table, TypeKind, UserType, View};
use telesto_sql_expr::Scope;
use telesto_sql_expr::stored_literals::{answered, asking_for_rows};
use telesto_sql_expr::types::{UserTypes, named};
use telesto_sql_parser::sqlparser::ast::{
    Array, DataType, Expr, FunctionArg, FunctionArgExpr, FunctionArguments, Statement, Value,
    VisitMut, VisitorMut, visit_expressions,
};
use telesto_sql_parser::syntax::read_type;
use telesto_sql_plan::compiled_table::relation;
use telesto_sql_types::error::{Error, Result};
use telesto_sql_types::interrupt;
use telesto_sql_types::{CompositeType, Datum, SqlType, TextStyle};

/// A change of a type: its catalogs before and behind it.
struct Change<'a> {
    oid: u32,
    before: UserTypes<'a>,
    after: UserTypes<'a>,
}

/// What a value of a type is once the type has other fields, as text; `None`: the text is no value
/// of the type.
fn retold(text: &str, from: &SqlType, to: &SqlType) -> Option<String> {
    let style = TextStyle::default();
    let value = Datum::from_text(text, from, &style).ok()?;
    if value.is_null() {
        return None;
    }
    let mut bytes = Vec::new();
    put_value(&mut bytes, &value, from).ok()?;
    let value = get_value(&mut Input(&bytes), to).ok()?;
    Some(value.to_text(to, &style))
}

fn string_of(value: &mut Value) -> Option<&mut String> {
    match value {
        Value::SingleQuotedString(text)
        | Value::EscapedStringLiteral(text)
        | Value::UnicodeStringLiteral(text)
        | Value::NationalStringLiteral(text) => Some(text),
        Value::DollarQuotedString(text) => Some(&mut text.value),
        _ => None,
    }
}

/// The values of a row that is written out; `None`: the expression is none.
fn values_of_row(expr: &mut Expr) -> Option<Vec<Expr>> {
    match expr {
        Expr::Tuple(values) => Some(values.clone()),
        Expr::Function(call) if call.name.to_string().eq_ignore_ascii_case("row") => {
            let FunctionArguments::List(list) = &call.args else { return None };
            let value = |arg: &FunctionArg| match arg {
                FunctionArg::Unnamed(FunctionArgExpr::Expr(value)) => Some(value.clone()),
                _ => None,
            };
            list.args.iter().map(value).collect()
        }
        _ => None,
    }
}

fn put_values(expr: &mut Expr, values: Vec<Expr>) {
    match expr {
        Expr::Function(call) => {
            if let FunctionArguments::List(list) = &mut call.args {
                let arg = |value| FunctionArg::Unnamed(FunctionArgExpr::Expr(value));
                list.args = values.into_iter().map(arg).collect();
            }
        }
        other => *other = Expr::Tuple(values),
    }
}

/// Whether an expression may be read as a value of a composite type by its places.
fn may_be_row(expr: &Expr) -> bool {
    let value = match expr {
        Expr::Value(value) => &value.value,
        Expr::TypedString(typed) => &typed.value.value,
        Expr::Tuple(_) => return true,
        Expr::Function(call) => return call.name.to_string().eq_ignore_ascii_case("row"),
        _ => return false,
    };
    string_of(&mut value.clone()).is_some_and(|text| text.contains('('))
}

/// The string constants that may be values with fields, by their places.
fn rows_as_text<T: VisitMut + Clone>(tree: &T) -> Vec<(usize, String)> {
    let mut found = Vec::new();
    each_constant(&mut tree.clone(), |at, text| {
        if text.contains('(') {
            found.push((at, text.to_owned()));
        }
        None
    });
    found
}

impl Change<'_> {
    fn is_of(&self, ty: &SqlType) -> bool {
        user_oid(ty).is_some_and(|outer| self.before.catalog.is_nested_in(self.oid, outer))
    }

    /// A type's meaning before and behind the change, if the change is one of it.
    fn types(&self, data_type: &DataType) -> Option<(SqlType, SqlType)> {
        let before = named(data_type, &self.before).ok().filter(|ty| self.is_of(ty))?;
        Some((before, named(data_type, &self.after).ok()?))
    }

    /// What a constant becomes, by the answer to the question which type it is read as; `None`: it
    /// is no value of this one.
    fn told(&self, answer: Result<()>, text: &str) -> Option<String> {
        let (_, settled) = answered(&answer.err()?)?;
        let (from, to) = self.types(&read_type(&settled.ty).ok()?)?;
        retold(text, &from, &to)
    }

    /// Writes an expression that is read as a value of the type.
    fn write(&self, expr: &mut Expr, from: &SqlType, to: &SqlType) {
        if let Some(values) = values_of_row(expr) {
            if let (SqlType::Composite(from), SqlType::Composite(to)) = (from, to) {
                self.write_row(expr, values, from, to);
            }
            return;
        }
        match expr {
            Expr::Nested(inner) => self.write(inner, from, to),
            Expr::Value(value) => {
                if let Some(text) = string_of(&mut value.value)
                    && let Some(text) = retold(text, from, to)
                {
                    value.value = Value::SingleQuotedString(text);
                }
            }
            Expr::Array(Array { elem, .. }) => {
                if let (SqlType::Array(from), SqlType::Array(to)) = (from, to) {
                    elem.iter_mut().for_each(|element| self.write(element, from, to));
                }
            }
            _ => {}
        }
    }

    /// Gives a row the fields of `to`: what it has of them, and NULL.
    fn write_row(
        &self,
        expr: &mut Expr,
        values: Vec<Expr>,
        from: &CompositeType,
        to: &CompositeType,
    ) {
        if values.len() != from.fields.len() {
            return;
        }
        let field = |field: &telesto_sql_types::CompositeField| {
            let known = from.fields.iter().position(|known| known.number == field.number);
            let Some(at) = known else { return Expr::value(Value::Null) };
            let mut value = values[at].clone();
            if self.is_of(&field.ty) {
                self.write(&mut value, &from.fields[at].ty, &field.ty);
            }
            value
        };
        put_values(expr, to.fields.iter().map(field).collect());
    }
}

impl VisitorMut for Change<'_> {
    type Break = ();

    fn post_visit_expr(&mut self, expr: &mut Expr) -> ControlFlow<()> {
        match expr {
            Expr::Cast { expr: inner, data_type, .. } => {
                if let Some((from, to)) = self.types(data_type) {
                    self.write(inner, &from, &to);
                }
            }
            Expr::TypedString(typed) => {
                if let Some((from, to)) = self.types(&typed.data_type)
                    && let Some(text) = string_of(&mut typed.value.value)
                    && let Some(text) = retold(text, &from, &to)
                {
                    typed.value.value = Value::SingleQuotedString(text);
                }
            }
            _ => {}
        }
        ControlFlow::Continue(())
    }
}

fn refused(ty: &str, what: &str) -> Error {
    Error::unsupported(format!(
        "ALTER TYPE {ty} while {what} has a constant that is read by the fields it has now"
    ))
    .hint("Cast the row to its type, or drop what has it and make it again afterwards.")
}

impl Ddl<'_> {
    /// Puts a type with other fields than before into the catalog, and writes what is stored as its
    /// values again. `moves`: the fields that stayed are of the types they were of.
    pub(super) async fn put_fields(&mut self, ty: UserType, moves: bool) -> Result<()> {
        let (oid, name) = (ty.oid, ty.name.clone());
        let before = self.catalog().clone();
        self.change.put(Object::Type(ty));
        let after = self.catalog().clone();
        let settings = std::sync::Arc::clone(&self.context.settings);
        let users = |catalog| UserTypes { catalog, settings: &settings };
        let mut change = Change { oid, before: users(&before), after: users(&after) };
        let mut changed = self.tables_with_fields(&mut change, &name, moves)?;
        self.domains_without(&change, &name)?;
        let shared = std::sync::Arc::new(before.clone());
        let mut views = Vec::new();
        for view in before.views() {
            let query = view_query(view)?;
            let row = |expr: &Expr| match may_be_row(expr) {
                true => ControlFlow::Break(()),
                false => ControlFlow::Continue(()),
            };
            if visit_expressions(&query, row).is_continue() {
                continue;
            }
            let mut written = query.clone();
            if moves {
                let mut told = Vec::new();
                for (at, text) in rows_as_text(&query) {
                    interrupt::pace().await?;
                    let asking = with_constant(&query, at, &asking_for_rows(at, &text));
                    let Statement::Query(asking) = asking else { continue };
                    let bound = self.view_columns_in(&shared, &asking).await.map(drop);
                    told.extend(change.told(bound, &text).map(|text| (at, text)));
                }
                written = renamed(&query, &told).unwrap_or(written);
                let _ = VisitMut::visit(&mut written, &mut change);
            }
            if written != query {
                let now = after.views().find(|now| now.oid == view.oid).unwrap_or(view);
                let query = written.to_string();
                changed.push(Object::View(View { query, ..(**now).clone() }));
            }
            views.push((view.name.clone(), query, written));
        }
        for object in changed {
            self.change.put(object);
        }
        for (view, was, is) in views {
            interrupt::pace().await?;
            let (Statement::Query(was), Statement::Query(is)) = (was, is) else { continue };
            if self.view_columns(&is).await.is_err()
                && self.view_columns_in(&shared, &was).await.is_ok()
            {
                return Err(refused(&name, &format!("view {view}")));
            }
        }
        Ok(())
    }

    /// The tables with values of the type, as those values are now.
    fn tables_with_fields(
        &self,
        change: &mut Change<'_>,
        ty: &str,
        moves: bool,
    ) -> Result<Vec<Object>> {
        let (before, after) = (change.before.catalog, change.after.catalog);
        let mut changed = Vec::new();
        for now in after.tables() {
            let Some(old) = before.table(now.id) else { continue };
            let mut table = (**now).clone();
            for (column, old) in table.columns.iter_mut().zip(&old.columns) {
                if let Some(text) = &column.missing
                    && change.is_of(&old.ty)
                    && let Some(text) = retold(text, &old.ty, &column.ty)
                {
                    column.missing = Some(text);
                }
            }
            self.write_texts(change, &mut table, old, (ty, moves))?;
            if table != **now {
                changed.push(Object::Table(table));
            }
        }
        Ok(changed)
    }

    /// Writes the expression texts of a table again.
    fn write_texts(
        &self,
        change: &mut Change<'_>,
        table: &mut Table,
        old: &Table,
        (ty, moves): (&str, bool),
    ) -> Result<()> {
        let scope =
            |table: &Table| Scope { relations: vec![relation(table, &table.name, 0, true)] };
        let (was_over, is_over) = (scope(old), scope(table));
        let (before, after) = (change.before.catalog, change.after.catalog);
        let mut old = old.clone();
        for (place, old) in places(table).into_iter().zip(places(&mut old)) {
            let was = parse_expr(place.text)?;
            if !any_expression(&was, &may_be_row) {
                continue;
            }
            let mut is = was.clone();
            if moves {
                let mut told = Vec::new();
                for (at, text) in rows_as_text(&was) {
                    let asking = with_constant(&was, at, &asking_for_rows(at, &text));
                    let bound = self.bound_in(before, &asking, &was_over, old.of.as_ref());
                    told.extend(change.told(bound, &text).map(|text| (at, text)));
                }
                is = renamed(&was, &told).unwrap_or(is);
                let _ = VisitMut::visit(&mut is, change);
                if let (Some(from), Some(to)) = (&old.of, &place.of)
                    && change.is_of(from)
                {
                    change.write(&mut is, from, to);
                }
            }
            if self.bound_in(after, &is, &is_over, place.of.as_ref()).is_err() {
                let bound = self.bound_in(before, &was, &was_over, old.of.as_ref()).is_ok();
                // One that only a query can bind, as a policy's with a subquery, is told by the
                // type's name in it.
                if bound || is != was || self.names_type(before, &was, change.oid) {
                    return Err(refused(ty, &place.what));
                }
            }
            if is != was {
                *place.text = is.to_string();
            }
        }
        Ok(())
    }

    /// Fails when a domain has a constant of the type: texts of domains are not written again.
    fn domains_without(&self, change: &Change<'_>, name: &str) -> Result<()> {
        for ty in change.before.catalog.user_types() {
            let TypeKind::Domain(domain) = &ty.kind else { continue };
            for text in domain.checks.iter().map(|check| &check.expression).chain(&domain.default) {
                let expr = parse_expr(text)?;
                let of_type = change.is_of(&domain.base)
                    || self.names_type(change.before.catalog, &expr, change.oid);
                if of_type && any_expression(&expr, &may_be_row) {
                    return Err(refused(name, &format!("domain {}", ty.name)));
                }
            }
        }
        Ok(())
    }
}
