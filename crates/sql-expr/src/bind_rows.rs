//! Binding: rows as values, and the fields of composite values.
//!
//! # Invariants
//! A field is read as the text that no setting changes ([`ROW_FIELD`]) and cast to its type, by
//! either executor.
//!
//! # On failure
//! 42703 for a field that is not there, 42809 for what is no row.

use std::borrow::Cow;

use super::bind::Binder;
use super::bound::{Expr, Node};
use super::fault;
use super::ty::CastContext;
use crate::{ROW_FIELD, ROW_TEXT, ROW_WITH};
use telesto_sql_parser::sqlparser::ast;
use telesto_sql_types::error::{Error, Result, SqlState};
use telesto_sql_types::record::{self, RecordType};
use telesto_sql_types::{CompositeField, Datum, SqlType};

/// The fields of a row that is written out: `(a, b)`, or `ROW(a, b)`, which is parsed as a call.
#[must_use]
pub fn row_of(expr: &ast::Expr) -> Option<Cow<'_, [ast::Expr]>> {
    match expr {
        ast::Expr::Tuple(items) => Some(Cow::Borrowed(items)),
        ast::Expr::Nested(inner) => row_of(inner),
        ast::Expr::Function(call) if call.name.to_string().eq_ignore_ascii_case("row") => {
            let ast::FunctionArguments::List(list) = &call.args else { return None };
            let fields = list.args.iter().map(|arg| match arg {
                ast::FunctionArg::Unnamed(ast::FunctionArgExpr::Expr(expr)) => Some(expr.clone()),
                _ => None,
            });
            fields.collect::<Option<Vec<_>>>().map(Cow::Owned)
        }
        _ => None,
    }
}

/// Where in a row of type `ty` the field called `name` stands, and its type.
///
/// # Errors
/// 42703, 42809.
pub fn field_place(ty: &SqlType, name: &str) -> Result<(usize, SqlType)> {
    match ty {
        SqlType::Composite(composite) => {
            let at = composite.position(name).ok_or_else(|| {
                Error::new(
                    SqlState::UNDEFINED_COLUMN,
                    format!("column \"{name}\" not found in data type {ty}"),
                )
            })?;
            Ok((at, composite.fields[at].ty.clone()))
        }
        SqlType::Record(row) => {
            let fields = row.as_ref().map(|row| row.types()).map_or(&[][..], |types| types);
            let names = row.as_ref().and_then(|row| row.names()).unwrap_or_default();
            let at = names.iter().position(|field| field == name);
            let at = at.ok_or_else(|| {
                Error::new(
                    SqlState::UNDEFINED_COLUMN,
                    format!("could not identify column \"{name}\" in record data type"),
                )
            })?;
            // A literal in a row is text.
            let known = Some(&fields[at]).filter(|ty| **ty != SqlType::Unknown);
            Ok((at, known.cloned().unwrap_or(SqlType::Text)))
        }
        other => Err(Error::new(
            SqlState::WRONG_OBJECT_TYPE,
            format!(
                "column notation .{name} applied to type {}, which is not a composite type",
                other.without_modifier()
            ),
        )),
    }
}

/// The names of the fields of a row of type `ty`; `None`: it is no row whose fields are known.
#[must_use]
pub fn field_names(ty: &SqlType) -> Option<Vec<String>> {
    match ty {
        SqlType::Composite(ty) => Some(ty.fields.iter().map(|field| field.name.clone()).collect()),
        SqlType::Record(Some(row)) => row.names(),
        _ => None,
    }
}

/// The values of `ROW(…)`; `None`: the call is no such row.
#[must_use]
pub fn row_items(call: &ast::Function) -> Option<Vec<&ast::Expr>> {
    let [only] = call.name.0.as_slice() else { return None };
    let name = only.as_ident().filter(|name| name.quote_style.is_none())?;
    if !name.value.eq_ignore_ascii_case("row") {
        return None;
    }
    let ast::FunctionArguments::List(list) = &call.args else { return None };
    let item = |arg| match arg {
        &ast::FunctionArg::Unnamed(ast::FunctionArgExpr::Expr(ref expr)) => Some(expr),
        _ => None,
    };
    list.args.iter().map(item).collect()
}

/// The parameters that stand for fields of a row that is written out and becomes a value of type
/// `ty`: numbers, and the types of the fields.
#[must_use]
pub fn parameters_of_fields(row: &ast::Expr, ty: &SqlType) -> Vec<(usize, SqlType)> {
    let SqlType::Composite(composite) = ty.of_values() else { return Vec::new() };
    let items: Vec<&ast::Expr> = match row {
        ast::Expr::Nested(inner) => return parameters_of_fields(inner, ty),
        ast::Expr::Tuple(items) => items.iter().collect(),
        ast::Expr::Function(call) => row_items(call).unwrap_or_default(),
        _ => Vec::new(),
    };
    if items.len() != composite.fields.len() {
        return Vec::new();
    }
    let of_field = |(item, field): (&ast::Expr, &CompositeField)| match item {
        ast::Expr::Value(value) => match &value.value {
            ast::Value::Placeholder(text) => {
                let ty = field.ty.of_values().without_modifier();
                crate::parameters::number(text).ok().map(|number| vec![(number, ty)])
            }
            _ => None,
        },
        item => Some(parameters_of_fields(item, &field.ty)),
    };
    items.into_iter().zip(&composite.fields).filter_map(of_field).flatten().collect()
}

impl Binder<'_> {
    /// Binds what becomes a value of type `ty`: a parameter that is a field of a row that is
    /// written out is of that field's type, unless it has one.
    ///
    /// # Errors
    /// Those of the expression.
    pub fn bind_for(&mut self, expr: &ast::Expr, ty: &SqlType) -> Result<Expr> {
        for (number, ty) in parameters_of_fields(expr, ty) {
            if self.parameters.get(number).is_none() {
                self.parameters.infer(number, ty)?;
            }
        }
        self.bind(expr)
    }

    /// The field `name` of a row.
    pub(super) fn field(&mut self, row: Expr, name: &str) -> Result<Expr> {
        let (at, ty) = field_place(&row.ty, name)?;
        let place =
            Expr::constant(Datum::Int4(i32::try_from(at).unwrap_or(i32::MAX)), SqlType::Int4);
        let text = self.call_named(ROW_FIELD, vec![row, place])?;
        self.coerce(text, &ty, CastContext::Explicit)
    }

    /// The names and values of the fields of a row: `(row).*`.
    ///
    /// # Errors
    /// 42809 when it is no row.
    pub fn fields_of(&mut self, row: &ast::Expr) -> Result<Vec<(String, Expr)>> {
        let row = self.bind(row)?;
        let names = field_names(&row.ty).ok_or_else(|| {
            let ty = row.ty.without_modifier();
            Error::new(SqlState::WRONG_OBJECT_TYPE, format!("type {ty} is not composite"))
        })?;
        let field = |name: String| Ok((name.clone(), self.field(row.clone(), &name)?));
        names.into_iter().map(field).collect()
    }

    /// The composite value `row` with `value` for the field at the end of `path`, the outer field
    /// first.
    ///
    /// # Errors
    /// 42703, 42809; 42804 when the value is of another type.
    pub fn with_fields(&mut self, row: Expr, path: &[String], value: &ast::Expr) -> Result<Expr> {
        let value = match path {
            [] | [_] => self.bind(value)?,
            [name, inner @ ..] => {
                let own = self.field(row.clone(), name)?;
                self.with_fields(own, inner, value)?
            }
        };
        match path {
            [] => Ok(value),
            [name, ..] => self.with_field(row, name, value),
        }
    }

    fn with_field(&mut self, row: Expr, name: &str, value: Expr) -> Result<Expr> {
        let (at, field) = field_place(&row.ty, name)?;
        let ty = row.ty.clone();
        if value.ty != SqlType::Unknown
            && !super::ty::castable(&value.ty, &field, CastContext::Assignment)
        {
            return Err(fault::mismatch(format!(
                "subfield \"{name}\" is of type {field} but expression is of type {}",
                value.ty.without_modifier()
            )));
        }
        let value = self.coerce(value, &field, CastContext::Assignment)?;
        let place =
            Expr::constant(Datum::Int4(i32::try_from(at).unwrap_or(i32::MAX)), SqlType::Int4);
        let changed = self.call_named(ROW_WITH, vec![row, place, value])?;
        Ok(Expr { ty, ..changed })
    }

    /// `ROW(…)` or `(a, b)` as a value.
    pub(super) fn row_value(&mut self, items: &[&ast::Expr]) -> Result<Expr> {
        let values = items.iter().map(|item| self.bind(item)).collect::<Result<Vec<_>>>()?;
        let of = |value: &Expr| match (&value.ty, &value.node) {
            (SqlType::Unknown, Node::Param(_)) => SqlType::Text,
            (ty, _) => record::field_type(ty),
        };
        let types = values.iter().map(of).collect();
        let ty = SqlType::Record(Some(RecordType::numbered(types).into()));
        let written = self.call_named(ROW_TEXT, values)?;
        Ok(Expr { ty, ..written })
    }
}
