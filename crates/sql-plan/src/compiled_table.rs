//! A table as plans use it: codec, defaults, checks and predicates, bound once.
//!
//! # Invariants
//! Bound against one catalog; a plan that holds one is dropped when the catalog changes.

use std::sync::Arc;

use bytes::Bytes;
use telesto_common::DatabaseId;
use telesto_sql_parser::stored::{parse_over_row, parse_stored};

use crate::index_expressions::IndexExpressions;
use telesto_sql_catalog::by_row::ByRow;
use telesto_sql_catalog::codec::{self, RowCodec};
use telesto_sql_catalog::{
    Actor, CatalogSnapshot, Column, Generated, Guarded, Index, IndexColumn, Rights,
    SequenceSession, Table,
};
use telesto_sql_expr::ParameterTypes;
use telesto_sql_expr::Settings;
use telesto_sql_expr::{Binder, CastContext, EvalContext, Expr, Scope, ScopeColumn, ScopeRelation};
use telesto_sql_types::Datum;
use telesto_sql_types::domains::DomainType;
use telesto_sql_types::error::{Error, Result, SqlState};

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
pub struct CompiledTable {
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
    /// Domains of columns, by their positions.
    pub domains: Vec<(usize, Arc<DomainType>)>,
    /// Predicates and expressions of indexes.
    pub forms: IndexExpressions,
    /// Indexes with unique keys, the primary key first.
    pub unique: Vec<Arc<Index>>,
    /// Other indexes.
    pub plain: Vec<Arc<Index>>,
    /// Those of them that hold the keys of deferrable constraints.
    pub deferrable: Vec<Arc<Index>>,
    /// Whether it references or is referenced.
    pub has_foreign_keys: bool,
    /// Policies hide rows from who writes: errors do not show other rows' values.
    pub secured: bool,
}

/// The columns of a table in view under `name`, at `offset` in the row.
#[must_use]
pub fn relation(table: &Table, name: &str, offset: usize, unqualified: bool) -> ScopeRelation {
    ScopeRelation {
        name: name.to_owned(),
        unqualified,
        hidden: Vec::new(),
        columns: table
            .visible_columns()
            .map(|(at, c)| ScopeColumn {
                name: c.name.clone(),
                ty: c.ty.clone(),
                position: offset + at,
                domain: c.domain,
            })
            .collect(),
    }
}

impl CompiledTable {
    /// Compiles a table.
    ///
    /// # Errors
    /// XX001 when a stored expression does not bind.
    pub fn new(
        catalog: &Arc<CatalogSnapshot>,
        settings: &Settings,
        table: &Arc<Table>,
    ) -> Result<Self> {
        let by_owner = has_texts(table).then(|| settings.of_owner(catalog, table.owner.0));
        let settings = by_owner.as_ref().unwrap_or(settings);
        let context = EvalContext::planning(settings, catalog);
        let scope = Scope { relations: vec![relation(table, &table.name, 0, true)] };
        let empty = Scope::default();
        let mut parameters = ParameterTypes::default();
        let mut defaults = Vec::with_capacity(table.columns.len());
        let mut generated = Vec::new();
        let mut domains = Vec::new();
        for (at, column) in table.columns.iter().enumerate() {
            let mut default = DefaultValue::Null;
            let domain =
                column.domain.filter(|_| !column.dropped).and_then(|oid| catalog.domain(oid));
            if let Some(domain) = domain {
                domains.push((at, Arc::clone(domain)));
            }
            match &column.generated {
                Some(Generated::IdentityAlways(oid) | Generated::IdentityByDefault(oid)) => {
                    default = DefaultValue::Sequence(*oid);
                }
                Some(Generated::Stored(text)) if !column.dropped => {
                    let mut binder = Binder::new(&scope, &mut parameters, &context, "GENERATED");
                    let bound = binder.bind(&parse_over_row(text)?)?;
                    generated
                        .push((at, binder.coerce(bound, &column.ty, CastContext::Assignment)?));
                }
                _ => {}
            }
            let inherited = domain.and_then(|domain| domain.default.as_ref());
            let inherited = inherited.filter(|_| column.generated.is_none());
            if let (Some(text), false) = (column.default.as_ref().or(inherited), column.dropped) {
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
            Binder::new(&scope, &mut parameters, &context, clause).condition(&parse_over_row(text)?)
        };
        let checks = table.checks.iter();
        let checks = checks.map(|c| Ok((c.name.clone(), conditions(&c.expression, "CHECK")?)));
        let mut checks = checks.collect::<Result<Vec<_>>>()?;
        // Of several that fail the first by its name is told, as by PostgreSQL.
        checks.sort_by(|(a, _), (b, _)| a.cmp(b));
        let shared = |i: &Index| Arc::new(i.clone());
        Ok(Self {
            database: catalog.database,
            table: Arc::clone(table),
            schema: catalog.schema_name(table.schema).to_owned(),
            codec: RowCodec::new(table)?,
            defaults,
            generated,
            checks,
            domains,
            forms: IndexExpressions::bind(catalog, settings, table)?,
            unique: table
                .maintained_indexes()
                .filter(|i| i.unique || i.id == 0)
                .map(shared)
                .collect(),
            plain: table
                .maintained_indexes()
                .filter(|i| !i.unique && i.id != 0)
                .map(shared)
                .collect(),
            deferrable: table.all_indexes().filter(|i| i.deferral.is_some()).map(shared).collect(),
            has_foreign_keys: !table.foreign_keys.is_empty()
                || !catalog.referencing(table.id).is_empty(),
            secured: false,
        })
    }

    /// The row's key; a table without primary key takes a row id of `sequences`.
    ///
    /// # Errors
    /// XX000 when a value is not of its column's type.
    pub fn new_key(&self, row: &[Datum], sequences: &SequenceSession) -> Result<Bytes> {
        match &self.table.primary {
            Some(primary) => codec::primary_key(self.database, &self.table, primary, row),
            None => Ok(codec::row_id_key(self.database, &self.table, sequences.row_id())),
        }
    }

    /// Key and value of the row's entry in a secondary index; `None`: a partial index leaves the
    /// row out.
    ///
    /// # Errors
    /// Those of predicate and expressions; XX000 when a value is not of its column's type.
    pub fn entry(
        &self,
        index: &Index,
        row: &[Datum],
        primary: &Bytes,
        context: &EvalContext<'_>,
    ) -> Result<Option<(Bytes, Bytes)>> {
        Ok(self.exclusive_entry(index, row, primary, context)?.map(|(key, value, _)| (key, value)))
    }

    /// [`CompiledTable::entry`], and whether no other row may have it.
    ///
    /// # Errors
    /// As [`CompiledTable::entry`].
    pub fn exclusive_entry(
        &self,
        index: &Index,
        row: &[Datum],
        primary: &Bytes,
        context: &EvalContext<'_>,
    ) -> Result<Option<(Bytes, Bytes, bool)>> {
        let mut computed = Vec::new();
        if !self.forms.is_empty() {
            if !self.forms.covers(index, row, context)? {
                return Ok(None);
            }
            computed = self.forms.computed(index, row, context)?;
        }
        let (key, value) =
            codec::index_key(self.database, &self.table, index, row, &computed, primary)?;
        Ok(Some((key, value, codec::is_exclusive(index, row, &computed))))
    }

    /// Applies NOT NULL and CHECK to a new row, and the rule by which its value places it.
    ///
    /// # Errors
    /// 23502, 23514.
    pub fn check_row(&self, row: &[Datum], context: &EvalContext<'_>) -> Result<()> {
        for (at, domain) in &self.domains {
            telesto_sql_expr::domain::check(row.get(*at).unwrap_or(&Datum::Null), domain, context)?;
        }
        for (column, value) in self.table.columns.iter().zip(row) {
            if column.not_null && value.is_null() && !column.dropped {
                return Err(Error::new(
                    SqlState::NOT_NULL_VIOLATION,
                    format!(
                        "null value in column \"{}\" of relation \"{}\" violates not-null constraint",
                        column.name, self.table.name
                    ),
                )
                .detail_of(self.failing_row(row, context))
                .table(&self.schema, &self.table.name)
                .column(&column.name));
            }
        }
        if let Some(rule) = &self.table.placement.by_row
            && let Some(at) = self.table.columns.iter().position(|c| c.id == rule.column)
            && let Some(value) = row.get(at).and_then(ByRow::value_of)
            && !rule.values.contains_key(value)
        {
            return Err(CatalogSnapshot::placed_nowhere(&self.table, rule, value)
                .table(&self.schema, &self.table.name));
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
                .detail_of(self.failing_row(row, context))
                .table(&self.schema, &self.table.name)
                .constraint(name));
            }
        }
        Ok(())
    }

    /// The row as a detail, as far as the role could read it; none where policies may hide it.
    fn failing_row(&self, row: &[Datum], context: &EvalContext<'_>) -> Option<String> {
        let reader = self.reader(context)?;
        let seen: Vec<(usize, &Column)> =
            self.table.visible_columns().filter(|(at, _)| reader.sees(Some(*at))).collect();
        if seen.is_empty() {
            return None;
        }
        let values: Vec<String> =
            seen.iter().map(|(at, c)| shown(&row[*at], &c.ty, context)).collect();
        let values = values.join(", ");
        if reader.sees(None) {
            return Some(format!("Failing row contains ({values})."));
        }
        let names: Vec<&str> = seen.iter().map(|(_, c)| c.name.as_str()).collect();
        Some(format!("Failing row contains ({}) = ({values}).", names.join(", ")))
    }

    /// Whom errors of the statement are told; `None`: policies may hide rows from it, and no values
    /// are told.
    fn reader<'a>(&'a self, context: &EvalContext<'a>) -> Option<Reader<'a>> {
        let catalog = &**context.catalog;
        let actor = catalog.actor(context.settings.current_role);
        if self.secured || crate::row_security::applies(&self.table, catalog, &actor) {
            return None;
        }
        Some(Reader { table: &self.table, catalog, actor })
    }

    /// `Key (a, b)=(1, 2)`, as errors begin to tell of it; without names and values where the role
    /// could not read them.
    #[must_use]
    pub fn key_told(
        &self,
        columns: &[usize],
        values: &[Datum],
        context: &EvalContext<'_>,
    ) -> String {
        let told = self
            .reader(context)
            .is_some_and(|reader| columns.iter().all(|column| reader.sees(Some(*column))));
        if !told {
            return "Key".to_owned();
        }
        format!("Key {}", self.key_text(columns, values, context))
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

    /// `(lower(a), b)=(x, 2)` of an index.
    #[must_use]
    pub fn index_text(&self, index: &Index, row: &[Datum], context: &EvalContext<'_>) -> String {
        // An expression that fails here did so before.
        let computed = self.forms.computed(index, row, context).unwrap_or_default();
        let names: Vec<String> =
            index.columns.iter().map(|c| column_text(&self.table, c, context)).collect();
        let values: Vec<String> = index
            .columns
            .iter()
            .zip(codec::index_values(index, row, &computed))
            .map(|(c, v)| shown(v, c.ty(&self.table), context))
            .collect();
        format!("({})=({})", names.join(", "), values.join(", "))
    }

    /// 23505.
    #[must_use]
    pub fn duplicate(&self, index: &Index, row: &[Datum], context: &EvalContext<'_>) -> Error {
        let error = Error::new(
            SqlState::UNIQUE_VIOLATION,
            format!("duplicate key value violates unique constraint \"{}\"", index.name),
        )
        .table(&self.schema, &self.table.name)
        .constraint(&index.name);
        let told = self.index_told(index, row, context);
        error.detail_of(told.map(|key| format!("Key {key} already exists.")))
    }

    /// [`Self::index_text`] for an error; `None`: the role could not have read it.
    #[must_use]
    pub fn index_told(
        &self,
        index: &Index,
        row: &[Datum],
        context: &EvalContext<'_>,
    ) -> Option<String> {
        let reader = self.reader(context)?;
        let mut columns = index.columns.iter().map(|c| c.expression.is_none().then_some(c.column));
        columns.all(|at| reader.sees(at)).then(|| self.index_text(index, row, context))
    }
}

/// Whether the table has expressions that are kept as text.
fn has_texts(table: &Table) -> bool {
    let computed = |c: &Column| c.default.is_some() || c.generated.is_some() || c.domain.is_some();
    !table.checks.is_empty() || table.columns.iter().any(computed)
}

/// Whom an error is told. What it shows is what its role could have read: others' values in a row
/// that it changes a column of are not.
struct Reader<'a> {
    table: &'a Table,
    catalog: &'a CatalogSnapshot,
    actor: Actor,
}

impl Reader<'_> {
    /// Whether the role could read the column; `None`: the whole row.
    fn sees(&self, column: Option<usize>) -> bool {
        match column {
            Some(at) => self.catalog.column_rights(&self.actor, self.table, at).has(Rights::SELECT),
            None => Guarded::table(self.table).rights_of(&self.actor).has(Rights::SELECT),
        }
    }
}

/// A column of an index as errors name it.
#[must_use]
pub fn column_text(table: &Table, column: &IndexColumn, context: &EvalContext<'_>) -> String {
    let Some(expression) = &column.expression else {
        return table.columns[column.column].name.clone();
    };
    let bound = parse_over_row(&expression.sql)
        .and_then(|e| crate::index_expressions::bind_over(table, context, &e, "INDEX"));
    match bound {
        Ok(bound) => {
            let text = crate::index_expressions::text_over(table, &bound, true);
            if expression.bare || text.starts_with('(') { text } else { format!("({text})") }
        }
        Err(_) => expression.sql.clone(),
    }
}

fn shown(value: &Datum, ty: &telesto_sql_types::SqlType, context: &EvalContext<'_>) -> String {
    if value.is_null() {
        return "null".to_owned();
    }
    let text = telesto_sql_expr::cast::output(value, ty, context).unwrap_or_default();
    if text.chars().count() > 64 {
        text.chars().take(64).chain("...".chars()).collect()
    } else {
        text
    }
}
