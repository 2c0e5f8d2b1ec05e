//! Whole rows: a relation's name, `t.*` or `ROW(…)` where a value is wanted.
//!
//! A relation's row has no composite type. What is asked of rows most is bound over their fields
//! instead: JSON of them, counting them, testing them for NULL, looking for them in a subquery.
//! Elsewhere a row is a value of type `record` ([`record`]), also where PostgreSQL has a type
//! called after the table.
//!
//! # Invariants
//! A row that an outer join made up is NULL as a whole; it is told by all its fields being NULL.
//!
//! # Limits
//! What a statement or a view gives is text where its type would be called after a table;
//! `pg_typeof` does not take such a row (0A000).

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::ops::ControlFlow;

use datafusion::common::tree_node::TreeNode as _;
use datafusion::logical_expr::{Expr, LogicalPlan, when};
use datafusion::sql::sqlparser::ast;

use super::scope::{Scope, ScopeColumn, fold, reference};
use super::subquery::one_whatever;
use super::{Binder, Typed};
use crate::apply::Shape;
use crate::{fault, outer, row_by_row};
use telesto_sql_expr::whole_row::{Field, WholeRow, parsed, quoted};
use telesto_sql_expr::{ROW_NOT_NULL, ROW_NULL, ROW_TEXT, parameters_of_fields, row_of};
use telesto_sql_plan::hidden::KEY_COLUMN;
use telesto_sql_types::SqlType;
use telesto_sql_types::error::{Result, SqlState};
use telesto_sql_types::record::{self, RecordType};

fn first_argument(call: &mut ast::Function) -> Option<&mut ast::Expr> {
    let ast::FunctionArguments::List(list) = &mut call.args else { return None };
    match list.args.first_mut() {
        Some(ast::FunctionArg::Unnamed(ast::FunctionArgExpr::Expr(expr))) => Some(expr),
        _ => None,
    }
}

/// The name that an expression is.
fn single_name(expr: &ast::Expr) -> Option<String> {
    match expr {
        ast::Expr::Nested(inner) => single_name(inner),
        ast::Expr::Identifier(name) => Some(fold(name)),
        ast::Expr::QualifiedWildcard(name, _) => name.0.last()?.as_ident().map(fold),
        _ => None,
    }
}

fn unnested(expr: &ast::Expr) -> &ast::Expr {
    match expr {
        ast::Expr::Nested(inner) => unnested(inner),
        other => other,
    }
}

/// The relations whose rows a query is grouped by, or columns of their names.
pub(super) fn grouped_names(group: &ast::GroupByExpr) -> BTreeSet<String> {
    match group {
        ast::GroupByExpr::Expressions(items, _) => items.iter().filter_map(single_name).collect(),
        ast::GroupByExpr::All(_) => BTreeSet::new(),
    }
}

impl Binder<'_> {
    /// The columns of the relation called `name`, of the innermost level that has it, and whether
    /// that is one further out.
    fn relation<'s>(&self, name: &str, scope: &Scope<'s>) -> (Vec<&'s ScopeColumn>, bool) {
        let of = |columns: &'s [ScopeColumn]| -> Vec<&'s ScopeColumn> {
            let own = columns.iter().filter(|column| column.table.as_deref() == Some(name));
            own.filter(|column| column.name != KEY_COLUMN && !column.hidden()).collect()
        };
        let mut found = of(scope.columns);
        let mut level = scope.parent;
        let mut further = false;
        while let (true, Some(outer)) = (found.is_empty(), level) {
            found = of(outer.columns);
            level = outer.parent;
            further = true;
        }
        (found, further)
    }

    fn row_of_relation(&self, name: &str, scope: &Scope<'_>) -> Option<WholeRow> {
        let (columns, _) = self.relation(name, scope);
        if columns.is_empty() {
            return None;
        }
        let extended = self.null_extended.borrow();
        let nullable = columns.iter().any(|column| extended.contains(&column.column.relation));
        let fields = columns.into_iter().map(|column| Field {
            name: column.name.clone(),
            sql: format!("{}.{}", quoted(name), quoted(&column.name)),
            untyped: false,
        });
        Some(WholeRow { fields: fields.collect(), nullable, written: false })
    }

    /// The row an expression stands for, if it does for one.
    fn row(&self, expr: &ast::Expr, scope: &Scope<'_>) -> Option<WholeRow> {
        let field_of = |value: &ast::Expr| {
            let text = matches!(value, ast::Expr::Value(v) if matches!(v.value, ast::Value::SingleQuotedString(_)));
            let sql = value.to_string();
            Field {
                name: String::new(),
                sql: if text { format!("CAST({sql} AS text)") } else { format!("({sql})") },
                untyped: text,
            }
        };
        let of_fields = |mut fields: Vec<Field>| {
            for (at, field) in fields.iter_mut().enumerate() {
                field.name = format!("f{}", at + 1);
            }
            Some(WholeRow { fields, nullable: false, written: true })
        };
        match expr {
            ast::Expr::Identifier(ident) => {
                let name = fold(ident);
                match scope.resolve(None, &name) {
                    Err(error) if error.code() == SqlState::UNDEFINED_COLUMN => {
                        self.row_of_relation(&name, scope)
                    }
                    _ => None,
                }
            }
            ast::Expr::Nested(inner) => self.row(inner, scope),
            ast::Expr::QualifiedWildcard(name, _) => {
                let name = name.0.last().and_then(|part| part.as_ident()).map(fold);
                self.row_of_relation(&name?, scope)
            }
            ast::Expr::Tuple(values) => of_fields(values.iter().map(field_of).collect()),
            ast::Expr::Function(call) if call.name.to_string().eq_ignore_ascii_case("row") => {
                let ast::FunctionArguments::List(list) = &call.args else { return None };
                let mut fields = Vec::with_capacity(list.args.len());
                for arg in &list.args {
                    match arg {
                        ast::FunctionArg::Unnamed(ast::FunctionArgExpr::Expr(expr)) => {
                            fields.push(field_of(expr));
                        }
                        // `ROW(t.*)` has all columns of `t` among its fields.
                        ast::FunctionArg::Unnamed(ast::FunctionArgExpr::QualifiedWildcard(
                            name,
                        )) => {
                            let name = name.0.last().and_then(|part| part.as_ident()).map(fold);
                            fields.extend(self.row_of_relation(&name?, scope)?.fields);
                        }
                        _ => return None,
                    }
                }
                of_fields(fields)
            }
            _ => None,
        }
    }

    /// Whether a relation's name stands for a row whose type is called after a table or a view;
    /// that of every other is `record`.
    pub(super) fn is_of_table(&self, expr: &ast::Expr, scope: &Scope<'_>) -> bool {
        let Some(name) = single_name(expr) else { return false };
        scope.resolve(None, &name).is_err() && self.is_row_of_table(&name, scope)
    }

    fn is_row_of_table(&self, name: &str, scope: &Scope<'_>) -> bool {
        let (columns, _) = self.relation(name, scope);
        let tables = self.named_rows.borrow();
        let named = |column: &&ScopeColumn| tables.contains(&column.column.relation);
        let alias = || super::merged::aliases(scope.columns).contains(name);
        !columns.is_empty() && columns.iter().all(named) && !alias()
    }

    /// The row of the relation called `name` as a value, where there is one.
    pub(super) fn row_called(&self, name: &str, scope: &Scope<'_>) -> Result<Option<Typed>> {
        let Some(row) = self.row_of_relation(name, scope) else { return Ok(None) };
        let (columns, further) = self.relation(name, scope);
        let field = |column: &ScopeColumn| Typed::of(reference(column, further), column.ty.clone());
        let fields = columns.into_iter().map(field).collect();
        self.value_of(&row, fields, self.is_row_of_table(name, scope)).map(Some)
    }

    /// The row of `t.*` where a value is wanted.
    pub(super) fn row_behind_star(
        &self,
        name: &ast::ObjectName,
        scope: &Scope<'_>,
    ) -> Result<Typed> {
        let name = name.0.last().and_then(|part| part.as_ident()).map(fold).unwrap_or_default();
        self.row_called(&name, scope)?.ok_or_else(|| {
            fault::new("42P01", format!("missing FROM-clause entry for table \"{name}\""))
        })
    }

    /// The fields of a row that is written out, with the columns of `t` for a `t.*` among them.
    pub(super) fn row_items<'e>(
        &self,
        expr: &'e ast::Expr,
        scope: &Scope<'_>,
    ) -> Option<Cow<'e, [ast::Expr]>> {
        if let Some(items) = row_of(expr) {
            return Some(items);
        }
        let ast::Expr::Function(call) = unnested(expr) else { return None };
        if !call.name.to_string().eq_ignore_ascii_case("row") {
            return None;
        }
        let fields = self.row(expr, scope)?.fields;
        let items = fields.iter().map(|field| parsed(&field.sql).ok());
        items.collect::<Option<Vec<_>>>().map(Cow::Owned)
    }

    /// A relation's row, `ROW(…)` or `(a, b)` as a value.
    pub(super) fn row_value(&self, expr: &ast::Expr, scope: &Scope<'_>) -> Result<Option<Typed>> {
        match (self.row(expr, scope), single_name(expr)) {
            (None, _) => Ok(None),
            (Some(_), Some(name)) => self.row_called(&name, scope),
            (Some(row), None) => {
                let bound = |field: &Field| self.expr(&parsed(&field.sql)?, scope);
                let fields = row.fields.iter().map(bound).collect::<Result<_>>()?;
                self.value_of(&row, fields, false).map(Some)
            }
        }
    }

    /// A row of fields, each of which is bound, and computed, once.
    fn value_of(&self, row: &WholeRow, fields: Vec<Typed>, of_table: bool) -> Result<Typed> {
        let types = fields.iter().zip(&row.fields).map(|(field, written)| match written.untyped {
            true => SqlType::Unknown,
            false => record::field_type(&field.ty),
        });
        let types = types.collect();
        let row_type = match row.written {
            true => RecordType::numbered(types),
            false => {
                let names = row.fields.iter().map(|field| field.name.clone()).collect();
                RecordType::named(types, names, of_table)
            }
        };
        let ty = SqlType::Record(Some(row_type.into()));
        let there = fields.iter().map(|field| field.expr.clone().is_not_null()).reduce(Expr::or);
        let text = self.call(ROW_TEXT, fields)?.expr;
        let value = match there {
            Some(there) if row.nullable => {
                when(there, text).end().map_err(fault::from_datafusion)?
            }
            _ => text,
        };
        Ok(Typed::of(value, ty))
    }

    /// Tells parameters that are fields of a row of their types: those of the type that the row is
    /// cast to.
    pub(super) fn tell_fields(&self, row: &ast::Expr, ty: &SqlType) -> Result<()> {
        for (number, ty) in parameters_of_fields(row, ty) {
            if !self.parameters.borrow().types.contains_key(&(number - 1)) {
                self.decide_parameter(number - 1, &ty)?;
            }
        }
        Ok(())
    }

    /// `row IS [NOT] NULL`: whether all fields are.
    pub(super) fn row_null(
        &self,
        expr: &ast::Expr,
        not: bool,
        scope: &Scope<'_>,
    ) -> Result<Option<Typed>> {
        let Some(row) = self.row(expr, scope) else { return Ok(None) };
        let test = row.all(if not { "IS NOT NULL" } else { "IS NULL" });
        Ok(Some(self.expr(&parsed(&test)?, scope)?))
    }

    /// `value IS [NOT] NULL` of a record: whether all fields are.
    pub(super) fn record_null(&self, value: Typed, not: bool) -> Result<Typed> {
        self.call(if not { ROW_NOT_NULL } else { ROW_NULL }, vec![value])
    }

    /// A call over whole rows; `None` when it has none.
    pub(super) fn over_rows(
        &self,
        name: &str,
        call: &ast::Function,
        scope: &Scope<'_>,
    ) -> Result<Option<Typed>> {
        let takes = matches!(
            name,
            "row_to_json"
                | "to_json"
                | "to_jsonb"
                | "json_agg"
                | "jsonb_agg"
                | "count"
                | "json_build_object"
                | "jsonb_build_object"
                | "json_build_array"
                | "jsonb_build_array"
                | "json_object_agg"
                | "jsonb_object_agg"
        );
        let ast::FunctionArguments::List(list) = &call.args else { return Ok(None) };
        if let "_pg_truetypid" | "_pg_truetypmod" = name
            && let [attribute, ty] = &list.args[..]
        {
            return self.true_type(name, attribute, ty, scope);
        }
        if name == "array_to_json" {
            return self.array_of_rows(call, scope);
        }
        if !takes {
            return Ok(None);
        }
        let mut call = call.clone();
        let distinct = list.duplicate_treatment == Some(ast::DuplicateTreatment::Distinct);
        let ast::FunctionArguments::List(list) = &mut call.args else { return Ok(None) };
        let mut found = false;
        let mut newline = false;
        for arg in &mut list.args {
            let row = match &*arg {
                // Above the groups there is the row, but not its columns.
                ast::FunctionArg::Unnamed(ast::FunctionArgExpr::Expr(expr))
                    if single_name(expr)
                        .is_some_and(|name| self.grouped_rows.borrow().contains(&name)) =>
                {
                    None
                }
                ast::FunctionArg::Unnamed(ast::FunctionArgExpr::Expr(expr)) => {
                    self.row(expr, scope)
                }
                ast::FunctionArg::Unnamed(ast::FunctionArgExpr::QualifiedWildcard(name)) => {
                    let name = name.0.last().and_then(|part| part.as_ident()).map(fold);
                    self.row_of_relation(&name.unwrap_or_default(), scope)
                }
                _ => None,
            };
            let Some(row) = row else { continue };
            if name == "count" && distinct && row.written {
                // A value like others.
                continue;
            }
            found = true;
            let sql = match name {
                "json_agg" => {
                    newline = true;
                    format!("coalesce({}, 'null')", row.json_text()?)
                }
                "to_jsonb" | "jsonb_agg" => format!("CAST({} AS jsonb)", row.json_text()?),
                "count" if distinct => row.unless_null(row.written_out("ROW")),
                "count" => row.unless_null("1".to_owned()),
                _ => row.json()?,
            };
            *arg = ast::FunctionArg::Unnamed(ast::FunctionArgExpr::Expr(parsed(&sql)?));
        }
        // json keeps the text of what is in it, which the aggregate of jsonb would not.
        let plain = name == "json_agg" && !distinct && call.over.is_none();
        if let (false, true, [ast::FunctionArg::Unnamed(ast::FunctionArgExpr::Expr(value))]) =
            (found, plain, &mut *list.args)
        {
            let between = self.written_as_json(value, scope)?;
            return self.joined_json(call, between, scope).map(Some);
        }
        if !found {
            return Ok(None);
        }
        match name {
            // The value itself.
            "row_to_json" | "to_json" | "to_jsonb" => {
                let value = list.args.iter().find_map(|arg| match arg {
                    ast::FunctionArg::Unnamed(ast::FunctionArgExpr::Expr(expr)) => Some(expr),
                    _ => None,
                });
                let value = value.ok_or_else(|| fault::syntax("a call without arguments"))?;
                Ok(Some(self.expr(value, scope)?))
            }
            // PostgreSQL begins a line for each row.
            "json_agg" if newline => self.joined_json(call, parsed("', \n '")?, scope).map(Some),
            _ => Ok(Some(self.function(&call, scope)?)),
        }
    }

    /// `_pg_truetypid(attribute, type)` and `_pg_truetypmod`, over rows of `pg_attribute` and
    /// `pg_type`: what a domain is over.
    fn true_type(
        &self,
        name: &str,
        attribute: &ast::FunctionArg,
        ty: &ast::FunctionArg,
        scope: &Scope<'_>,
    ) -> Result<Option<Typed>> {
        let row = |argument: &ast::FunctionArg| match argument {
            ast::FunctionArg::Unnamed(ast::FunctionArgExpr::QualifiedWildcard(name)) => {
                name.0.last().and_then(|part| part.as_ident()).map(|name| quoted(&fold(name)))
            }
            ast::FunctionArg::Unnamed(ast::FunctionArgExpr::Expr(expr)) => {
                single_name(expr).map(|name| quoted(&name))
            }
            _ => None,
        };
        let (Some(attribute), Some(ty)) = (row(attribute), row(ty)) else { return Ok(None) };
        let (base, own) = match name {
            "_pg_truetypid" => ("typbasetype", "atttypid"),
            _ => ("typtypmod", "atttypmod"),
        };
        let sql = format!(
            "CASE {ty}.typtype WHEN 'd' THEN {ty}.{base} ELSE \
             CASE WHEN {ty}.typtype IS NOT NULL THEN {attribute}.{own} END END"
        );
        self.expr(&parsed(&sql)?, scope).map(Some)
    }

    /// Makes the argument of json_agg its JSON; what stands before it, where it is not the first.
    fn written_as_json(&self, value: &mut ast::Expr, scope: &Scope<'_>) -> Result<ast::Expr> {
        // PostgreSQL begins a line for each row, and each array; what is no name has a blank before
        // it here.
        let lines = matches!(value, ast::Expr::Identifier(_) | ast::Expr::CompoundIdentifier(_))
            && self
                .expr(value, scope)
                .is_ok_and(|value| value.ty.is_row() || value.ty.element_type().is_some());
        let mut json = parsed("coalesce(CAST(to_json(it) AS text), 'null')")?;
        put(&mut json, "it", value);
        let mut between = parsed(match lines {
            true => "CASE WHEN to_json(it) IS NULL THEN ', ' ELSE ', \n ' END",
            false => "', '",
        })?;
        put(&mut between, "it", value);
        *value = json;
        Ok(between)
    }

    /// `array_to_json(array_agg(row))`: the array holds the rows as JSON, since there are no arrays
    /// of rows.
    fn array_of_rows(&self, call: &ast::Function, scope: &Scope<'_>) -> Result<Option<Typed>> {
        let mut call = call.clone();
        let Some(ast::Expr::Function(inner)) = first_argument(&mut call) else { return Ok(None) };
        if !inner.name.to_string().eq_ignore_ascii_case("array_agg") {
            return Ok(None);
        }
        let Some(value) = first_argument(inner) else { return Ok(None) };
        let Some(row) = self.row(value, scope) else { return Ok(None) };
        *value = parsed(&row.json()?)?;
        self.function(&call, scope).map(Some)
    }

    /// `json_agg` of texts of json, with what stands between two.
    fn joined_json(
        &self,
        mut call: ast::Function,
        between: ast::Expr,
        scope: &Scope<'_>,
    ) -> Result<Typed> {
        if let ast::FunctionArguments::List(list) = &mut call.args {
            list.args.push(ast::FunctionArg::Unnamed(ast::FunctionArgExpr::Expr(between)));
        }
        call.name = ast::ObjectName::from(vec![ast::Ident::new("string_agg")]);
        let mut whole = parsed("CAST('[' || (rows) || ']' AS json)")?;
        put(&mut whole, "rows", &ast::Expr::Function(call));
        self.expr(&whole, scope)
    }

    /// `(a, b) [NOT] IN (SELECT …)`; `only_true`: NULL does what false does.
    pub(super) fn row_in_subquery(
        &self,
        values: &[ast::Expr],
        subquery: &ast::Query,
        negated: bool,
        only_true: bool,
        scope: &Scope<'_>,
    ) -> Result<Typed> {
        let relation = self.as_wide(values.len(), subquery, scope)?;
        // Of the call nothing becomes a join.
        let place = self.place.take();
        // Where DataFusion could not make joins of subqueries, this one is no exception.
        let joins = only_true && !negated && !self.row_by_row;
        let joins = joins && one_join_gives(&relation.plan)?;
        if !joins && !self.is_correlated(&relation, scope)? {
            let shape = Shape::Among(values.len());
            if let Some(call) = self.row_call(values, "=", shape, relation, scope)? {
                return Ok(Typed::bool(super::expr::negate(call, negated)));
            }
        }
        self.place.set(place);
        // Names that no user's column has.
        let names: Vec<String> = (0..values.len()).map(|at| format!("in#{at}")).collect();
        let columns: Vec<String> = names.iter().map(|name| quoted(name)).collect();
        let exists = |test: &str| -> Result<ast::Expr> {
            let mut sql = format!(
                "EXISTS (SELECT 1 FROM (SELECT 1) AS \"in#\" ({}) WHERE ",
                columns.join(", ")
            );
            let equal: Vec<String> = (0..values.len())
                .map(|at| format!("\"in#\".{} = (\"value#{at}\")", columns[at]))
                .collect();
            sql.push_str(&format!("({}) {test})", equal.join(" AND ")));
            let mut expr = parsed(&sql)?;
            let _ = ast::visit_expressions_mut(&mut expr, |node| {
                if let ast::Expr::Identifier(ident) = &*node
                    && let Some(at) = ident.value.strip_prefix("value#")
                    && let Some(value) = at.parse().ok().and_then(|at: usize| values.get(at))
                {
                    *node = value.clone();
                }
                ControlFlow::<()>::Continue(())
            });
            if let ast::Expr::Exists { subquery: outer, .. } = &mut expr
                && let ast::SetExpr::Select(select) = &mut *outer.body
                && let Some(ast::TableWithJoins {
                    relation: ast::TableFactor::Derived { subquery: place, .. },
                    ..
                }) = select.from.first_mut()
            {
                **place = subquery.clone();
            }
            Ok(expr)
        };
        let found = exists("IS TRUE")?;
        let whole = if only_true && !negated {
            found
        } else {
            let mut whole =
                parsed("CASE WHEN found THEN true WHEN unknown THEN NULL ELSE false END")?;
            let unknown = exists("IS NULL")?;
            let _ = ast::visit_expressions_mut(&mut whole, |node| {
                if let ast::Expr::Identifier(ident) = &*node {
                    match ident.value.as_str() {
                        "found" => *node = found.clone(),
                        "unknown" => *node = unknown.clone(),
                        _ => {}
                    }
                }
                ControlFlow::<()>::Continue(())
            });
            whole
        };
        let typed = self.expr(&whole, scope)?;
        Ok(Typed::bool(super::expr::negate(typed.expr, negated)))
    }
}

/// Whether a join with the rows of `plan` gives the rows that are among them: it is computed once
/// then, too.
fn one_join_gives(plan: &LogicalPlan) -> Result<bool> {
    let sets =
        |node: &LogicalPlan| Ok(matches!(node, LogicalPlan::Extension(_) | LogicalPlan::Unnest(_)));
    let steady = !outer::changes(plan).map_err(fault::from_datafusion)?;
    let sets = plan.exists(sets).map_err(fault::from_datafusion)?;
    Ok(steady && !sets && !one_whatever(plan) && !row_by_row::within(plan))
}

/// Puts `value` in the place of the name `at`.
fn put(expr: &mut ast::Expr, at: &str, value: &ast::Expr) {
    let _ = ast::visit_expressions_mut(expr, |expr| {
        if matches!(expr, ast::Expr::Identifier(ident) if ident.value == at) {
            *expr = value.clone();
            return ControlFlow::Break(());
        }
        ControlFlow::Continue(())
    });
}
