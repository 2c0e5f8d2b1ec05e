//! A table as plans use it: codec, defaults, checks and predicates, bound once.
//!
//! # Invariants
//! Bound against one catalog; a plan that holds one is dropped when the catalog changes.

use std::sync::Arc;

use bytes::Bytes;
use telesto_common::DatabaseId;

use crate::catalog::{CatalogSnapshot, Generated, Index, Table};
use crate::codec::{self, RowCodec};
use crate::error::{Error, Result, SqlState};
use crate::exec::storage;
use crate::expr::{Binder, CastContext, EvalContext, Expr, Scope, ScopeColumn, ScopeRelation};
use crate::plan::ParameterTypes;
use crate::session::Settings;
use crate::sqlparser::{dialect::PostgreSqlDialect, parser::Parser};
use crate::types::Datum;

/// How a column gets a value the statement does not give.
#[derive(Clone, Debug)]
pub enum DefaultValue {
    /// NULL.
    Null,
    /// An expression without columns.
    Expr(Expr),
    /// The next value of a sequence.
    Sequence(u32),
}

/// A table, compiled.
#[derive(Debug)]
pub struct TableInfo {
    /// The database it is in.
    pub database: DatabaseId,
    /// Its description.
    pub table: Arc<Table>,
    /// Schema name, for errors.
    pub schema: String,
    /// Decodes whole rows.
    pub codec: RowCodec,
    /// One for each column.
    pub defaults: Vec<DefaultValue>,
    /// Stored generated columns with their expressions.
    pub generated: Vec<(usize, Expr)>,
    /// CHECK constraints by name.
    pub checks: Vec<(String, Expr)>,
    /// Predicates of partial indexes, by `Index::id`.
    pub predicates: Vec<(u32, Expr)>,
    /// Indexes with unique keys, the primary key first.
    pub unique: Vec<Arc<Index>>,
    /// Other indexes.
    pub plain: Vec<Arc<Index>>,
    /// Whether it references or is referenced.
    pub has_foreign_keys: bool,
}

/// The columns of a table in view under `name`, at `offset` in the row.
#[must_use]
pub fn relation(table: &Table, name: &str, offset: usize, unqualified: bool) -> ScopeRelation {
    ScopeRelation {
        name: name.to_owned(),
        unqualified,
        columns: table
            .visible_columns()
            .map(|(at, c)| ScopeColumn {
                name: c.name.clone(),
                ty: c.ty.clone(),
                position: offset + at,
            })
            .collect(),
    }
}

/// Parses stored SQL text of an expression.
///
/// # Errors
/// XX001 when it does not parse: it did when it was stored.
pub fn parse_stored(text: &str) -> Result<crate::sqlparser::ast::Expr> {
    Parser::new(&PostgreSqlDialect {})
        .try_with_sql(text)
        .and_then(|mut parser| parser.parse_expr())
        .map_err(|e| Error::corrupt(format!("the stored expression {text:?} does not parse: {e}")))
}

impl TableInfo {
    /// Compiles a table.
    ///
    /// # Errors
    /// XX001 when a stored expression does not bind.
    pub fn new(
        catalog: &Arc<CatalogSnapshot>,
        settings: &Settings,
        table: &Arc<Table>,
    ) -> Result<Self> {
        let context = EvalContext::planning(settings, catalog);
        let scope = Scope { relations: vec![relation(table, &table.name, 0, true)] };
        let empty = Scope::default();
        let mut parameters = ParameterTypes::default();
        let mut defaults = Vec::with_capacity(table.columns.len());
        let mut generated = Vec::new();
        for (at, column) in table.columns.iter().enumerate() {
            let mut default = DefaultValue::Null;
            match &column.generated {
                Some(Generated::IdentityAlways(oid) | Generated::IdentityByDefault(oid)) => {
                    default = DefaultValue::Sequence(*oid);
                }
                Some(Generated::Stored(text)) if !column.dropped => {
                    let mut binder = Binder::new(&scope, &mut parameters, &context, "GENERATED");
                    let bound = binder.bind(&parse_stored(text)?)?;
                    generated
                        .push((at, binder.coerce(bound, &column.ty, CastContext::Assignment)?));
                }
                _ => {}
            }
            if let (Some(text), false) = (&column.default, column.dropped) {
                let mut binder = Binder::new(&empty, &mut parameters, &context, "DEFAULT");
                let bound = binder.bind(&parse_stored(text)?)?;
                default = DefaultValue::Expr(binder.coerce(
                    bound,
                    &column.ty,
                    CastContext::Assignment,
                )?);
            }
            defaults.push(default);
        }
        let mut conditions = |text: &str, clause: &'static str| {
            Binder::new(&scope, &mut parameters, &context, clause).condition(&parse_stored(text)?)
        };
        let checks = table
            .checks
            .iter()
            .map(|c| Ok((c.name.clone(), conditions(&c.expression, "CHECK")?)))
            .collect::<Result<_>>()?;
        let predicates = table
            .indexes
            .iter()
            .filter_map(|i| i.predicate.as_ref().map(|p| (i.id, p)))
            .map(|(id, text)| Ok((id, conditions(text, "WHERE")?)))
            .collect::<Result<_>>()?;
        let shared = |i: &Index| Arc::new(i.clone());
        Ok(Self {
            database: catalog.database,
            table: Arc::clone(table),
            schema: catalog.schema_name(table.schema).to_owned(),
            codec: RowCodec::new(table)?,
            defaults,
            generated,
            checks,
            predicates,
            unique: table
                .primary
                .iter()
                .chain(table.indexes.iter().filter(|i| i.unique))
                .map(shared)
                .collect(),
            plain: table.indexes.iter().filter(|i| !i.unique).map(shared).collect(),
            has_foreign_keys: !table.foreign_keys.is_empty()
                || !catalog.referencing(table.id).is_empty(),
        })
    }

    /// Whether the row belongs to the index (partial indexes leave rows out).
    ///
    /// # Errors
    /// Those of the predicate.
    pub fn indexed(&self, index: &Index, row: &[Datum], context: &EvalContext<'_>) -> Result<bool> {
        match self.predicates.iter().find(|(id, _)| *id == index.id) {
            None => Ok(true),
            Some((_, predicate)) => predicate.holds(row, context),
        }
    }

    /// The row's key; a table without primary key draws a row id.
    ///
    /// # Errors
    /// XX000 when a value is not of its column's type.
    pub fn new_key(&self, row: &[Datum], env: &telesto_common::Env) -> Result<Bytes> {
        match &self.table.primary {
            Some(primary) => codec::primary_key(self.database, &self.table, primary, row),
            // Half of the numbers are kept for other uses: ids are positive.
            None => Ok(codec::row_id_key(
                self.database,
                &self.table,
                (env.random.next_u64() >> 1) as i64,
            )),
        }
    }

    /// Key and value of the row's entry in a secondary index.
    ///
    /// # Errors
    /// XX000 when a value is not of its column's type.
    pub fn entry(&self, index: &Index, row: &[Datum], primary: &Bytes) -> Result<(Bytes, Bytes)> {
        codec::index_key(self.database, &self.table, index, row, primary)
    }

    /// Applies NOT NULL and CHECK to a new row.
    ///
    /// # Errors
    /// 23502, 23514.
    pub fn check_row(&self, row: &[Datum], context: &EvalContext<'_>) -> Result<()> {
        for (column, value) in self.table.columns.iter().zip(row) {
            if column.not_null && value.is_null() && !column.dropped {
                return Err(Error::new(
                    SqlState::NOT_NULL_VIOLATION,
                    format!(
                        "null value in column \"{}\" of relation \"{}\" violates not-null constraint",
                        column.name, self.table.name
                    ),
                )
                .detail(self.failing_row(row, context))
                .table(&self.schema, &self.table.name)
                .column(&column.name));
            }
        }
        for (name, check) in &self.checks {
            // NULL passes.
            if check.eval(row, context)?.as_bool() == Some(false) {
                return Err(Error::new(
                    SqlState::CHECK_VIOLATION,
                    format!(
                        "new row for relation \"{}\" violates check constraint \"{name}\"",
                        self.table.name
                    ),
                )
                .detail(self.failing_row(row, context))
                .table(&self.schema, &self.table.name)
                .constraint(name));
            }
        }
        Ok(())
    }

    fn failing_row(&self, row: &[Datum], context: &EvalContext<'_>) -> String {
        let shown: Vec<String> =
            self.table.visible_columns().map(|(at, c)| shown(&row[at], &c.ty, context)).collect();
        format!("Failing row contains ({}).", shown.join(", "))
    }

    /// `(a, b)=(1, 2)`, for the details of errors.
    #[must_use]
    pub fn key_text(
        &self,
        columns: &[usize],
        values: &[Datum],
        context: &EvalContext<'_>,
    ) -> String {
        let names: Vec<&str> =
            columns.iter().map(|at| self.table.columns[*at].name.as_str()).collect();
        let values: Vec<String> = columns
            .iter()
            .zip(values)
            .map(|(at, v)| shown(v, &self.table.columns[*at].ty, context))
            .collect();
        format!("({})=({})", names.join(", "), values.join(", "))
    }

    /// 23505.
    #[must_use]
    pub fn duplicate(&self, index: &Index, row: &[Datum], context: &EvalContext<'_>) -> Error {
        let columns: Vec<usize> = index.columns.iter().map(|c| c.column).collect();
        let values: Vec<Datum> = columns.iter().map(|at| row[*at].clone()).collect();
        Error::new(
            SqlState::UNIQUE_VIOLATION,
            format!("duplicate key value violates unique constraint \"{}\"", index.name),
        )
        .detail(format!("Key {} already exists.", self.key_text(&columns, &values, context)))
        .table(&self.schema, &self.table.name)
        .constraint(&index.name)
    }
}

fn shown(value: &Datum, ty: &crate::types::SqlType, context: &EvalContext<'_>) -> String {
    if value.is_null() {
        return "null".to_owned();
    }
    let text = crate::expr::cast::output(value, ty, context).unwrap_or_default();
    if text.chars().count() > 64 {
        text.chars().take(64).chain("...".chars()).collect()
    } else {
        text
    }
}

/// Removes the entries of a row from every index.
///
/// # Errors
/// Those of the transaction.
pub async fn remove_row(
    info: &TableInfo,
    key: &Bytes,
    row: &[Datum],
    exec: &crate::plan::ExecContext,
    context: &EvalContext<'_>,
) -> Result<()> {
    exec.txn.delete(key.clone()).await?;
    for index in info.unique.iter().filter(|i| i.id != 0).chain(&info.plain) {
        if info.indexed(index, row, context)? {
            exec.txn.delete(info.entry(index, row, key)?.0).await?;
        }
    }
    Ok(())
}

/// Writes a row and its index entries; nothing is checked.
///
/// # Errors
/// Those of the transaction.
pub async fn put_row(
    info: &TableInfo,
    key: &Bytes,
    row: &[Datum],
    exec: &crate::plan::ExecContext,
    context: &EvalContext<'_>,
) -> Result<()> {
    exec.txn.put(key.clone(), codec::encode_row(&info.table, row)?).await?;
    for index in info.unique.iter().filter(|i| i.id != 0).chain(&info.plain) {
        if info.indexed(index, row, context)? {
            let (entry, value) = info.entry(index, row, key)?;
            exec.txn.put(entry, value).await?;
        }
    }
    Ok(())
}

/// The row ids under which `has_null` rows of unique indexes are kept never collide: see `codec::index`.
#[must_use]
pub fn enforces(index: &Index, row: &[Datum]) -> bool {
    index.id == 0 || !storage::has_null(index, row)
}
