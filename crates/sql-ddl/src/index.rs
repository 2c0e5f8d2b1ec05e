//! CREATE INDEX: columns, expressions, predicates, names.
//!
//! # Invariants
//! - What an index computes depends on the row alone (42P17 otherwise).
//! - Predicates and expressions are stored as PostgreSQL prints them where that text binds to the
//!   same expression, else as written.
//!
//! # Limits
//! Operator classes are accepted and not kept: text sorts by bytes, so `text_pattern_ops` is the
//! default. INCLUDE columns are shown, not stored in the index: a query that uses one fetches the
//! row.

use std::sync::Arc;

use telesto_common::key::Direction;

use super::constraint::{column_of, columns_in};
use super::names::{fold, split};
use super::{After, Ddl};
use telesto_sql_catalog::codec::key::is_key_type;
use telesto_sql_catalog::store::Object;
use telesto_sql_catalog::{Deferral, Index, IndexColumn, IndexExpression, Table};
use telesto_sql_expr::{EvalContext, Expr as Bound, Node};
use telesto_sql_parser::sqlparser::ast::{
    CreateIndex, Expr, IndexColumn as AstIndexColumn, IndexType, NullsDistinctOption,
};
use telesto_sql_parser::stored::parse_stored;
use telesto_sql_plan::index_expressions::{
    bind_over, by_owner, condition_over, is_bare, stored_text,
};
use telesto_sql_types::SqlType;
use telesto_sql_types::error::{Error, Result, SqlState};

/// Most columns of an index, as PostgreSQL.
const MAX_COLUMNS: usize = 32;

/// What an index is made from, beside its columns.
#[derive(Clone, Debug, Default)]
pub(super) struct IndexOptions {
    pub unique: bool,
    pub deferral: Option<Deferral>,
    pub constraint: bool,
    pub nulls_not_distinct: bool,
    pub include: Vec<usize>,
    pub predicate: Option<String>,
}

/// Whether a constraint says NULLS NOT DISTINCT.
pub(super) fn not_distinct(option: &NullsDistinctOption) -> bool {
    matches!(option, NullsDistinctOption::NotDistinct)
}

fn immutable(bound: &Bound, what: &str) -> Result<()> {
    if bound.is_immutable() {
        return Ok(());
    }
    Err(Error::new(
        SqlState::INVALID_OBJECT_DEFINITION,
        format!("functions in index {what} must be marked IMMUTABLE"),
    ))
}

/// Refuses storage parameters that PostgreSQL does not know.
fn known_parameters(with: &[Expr]) -> Result<()> {
    for option in with {
        let name = match option {
            Expr::BinaryOp { left, .. } => left,
            name => name,
        };
        if let Expr::Identifier(name) = name {
            telesto_sql_parser::definition::known_storage(true, &fold(name))?;
        }
    }
    Ok(())
}

/// 0A000 for an access method other than btree.
fn no_method(method: &IndexType) -> Error {
    let name = method.to_string().to_lowercase();
    let hint = match name.as_str() {
        "gist" | "spgist" => {
            "Leave USING away, or leave out the index: a btree index orders ranges by their lower bounds and serves comparisons; &&, @> and their kin look at every row, with any index and with none."
        }
        _ => "Leave USING away for a btree index, or leave out the index.",
    };
    Error::unsupported(format!("access method \"{name}\"")).hint(hint)
}

pub(super) fn no_key_type(ty: &SqlType) -> Error {
    if matches!(ty.element_type().unwrap_or(ty), SqlType::Composite(_)) {
        return Error::unsupported("a key or index over a composite type")
            .hint("Index its fields: ((column).field).");
    }
    Error::new(
        SqlState::UNDEFINED_OBJECT,
        format!("data type {ty} has no default operator class for access method \"btree\""),
    )
}

/// An expression without the parentheses around it.
fn unnested(expr: &Expr) -> &Expr {
    match expr {
        Expr::Nested(inner) => unnested(inner),
        other => other,
    }
}

impl Ddl<'_> {
    /// The columns of a key, which may be no expressions, and those it includes.
    pub(super) fn key_columns(
        &self,
        table: &Table,
        columns: &[AstIndexColumn],
    ) -> Result<(Vec<IndexColumn>, Vec<usize>)> {
        let marks = |given: &AstIndexColumn| matches!(&given.column.expr, Expr::Identifier(name) if name.value == telesto_sql_parser::definition::included::INCLUDED);
        let (columns, included) = match columns.iter().position(marks) {
            Some(at) => (&columns[..at], &columns[at + 1..]),
            None => (columns, &[][..]),
        };
        if let Some(other) =
            columns.iter().find(|c| !matches!(unnested(&c.column.expr), Expr::Identifier(_)))
        {
            return Err(Error::syntax(format!(
                "syntax error at or near \"{}\"",
                other.column.expr
            )));
        }
        let keys = columns.iter().map(|given| self.key_column(table, given));
        let included = included.iter().map(|given| match &given.column.expr {
            Expr::Identifier(name) => column_of(table, name).map_err(|_| missing(&fold(name))),
            other => Err(Error::syntax(format!("syntax error at or near \"{other}\""))),
        });
        Ok((keys.collect::<Result<_>>()?, included.collect::<Result<_>>()?))
    }

    fn key_column(&self, table: &Table, given: &AstIndexColumn) -> Result<IndexColumn> {
        let descending = given.column.options.asc == Some(false);
        let direction = if descending { Direction::Descending } else { Direction::Ascending };
        let nulls_first = given.column.options.nulls_first.filter(|first| *first != descending);
        let written = unnested(&given.column.expr);
        let mut column = IndexColumn::plain(IndexColumn::EXPRESSION, direction);
        column.nulls_first = nulls_first;
        let name = match written {
            Expr::Identifier(name) => Some(name),
            _ => None,
        };
        if let Some(name) = name {
            column.column = column_of(table, name).map_err(|_| missing(&fold(name)))?;
        } else {
            let context = EvalContext::planning(&self.context.settings, &self.context.catalog);
            let bound = bind_over(table, &context, written, "index expressions")?;
            // An expression that is only a column is that column.
            if let Node::Column(at) = bound.node {
                column.column = at;
            } else {
                immutable(&bound, "expression")?;
                column.expression = Some(IndexExpression {
                    sql: stored_text(table, &context, &bound, &self.with_full_types(written)),
                    ty: bound.ty.clone(),
                    name: match telesto_sql_expr::output_name(written) {
                        name if name == "?column?" => "expr".to_owned(),
                        name => name,
                    },
                    bare: is_bare(&bound),
                });
            }
        }
        let ty = column.ty(table);
        super::table::storable("expr", ty)?;
        if is_key_type(ty) { Ok(column) } else { Err(no_key_type(ty)) }
    }

    /// The index a CREATE INDEX describes, not yet in its table; `None`: there is one of that name
    /// (IF NOT EXISTS).
    pub(super) fn describe_index(
        &mut self,
        create: &CreateIndex,
    ) -> Result<Option<(Table, Index)>> {
        let table = (*self.table(&create.table_name)?).clone();
        let relation = telesto_sql_catalog::Relation::Table(std::sync::Arc::new(table.clone()));
        self.need_owner_of(&relation)?;
        self.may_make_in(&relation)?;
        self.change.define_temporary(telesto_sql_catalog::temp::is_temporary(table.id.0));
        known_parameters(&create.with)?;
        match &create.using {
            None | Some(IndexType::BTree | IndexType::Hash) => {}
            Some(other) => return Err(no_method(other)),
        }
        if create.columns.len() + create.include.len() > MAX_COLUMNS {
            return Err(Error::new(
                SqlState::TOO_MANY_COLUMNS,
                format!("cannot use more than {MAX_COLUMNS} columns in an index"),
            ));
        }
        let columns = create
            .columns
            .iter()
            .map(|c| self.key_column(&table, c))
            .collect::<Result<Vec<_>>>()?;
        let include = create
            .include
            .iter()
            .map(|name| column_of(&table, name).map_err(|_| missing(&fold(name))))
            .collect::<Result<Vec<_>>>()?;
        let predicate = match &create.predicate {
            None => None,
            Some(written) => {
                let context = EvalContext::planning(&self.context.settings, &self.context.catalog);
                // What PostgreSQL says of a condition that is none names WHERE.
                let bound = match bind_over(&table, &context, written, "index predicates") {
                    Ok(bound) if bound.ty == SqlType::Bool => bound,
                    Ok(_) => condition_over(&table, &context, written, "WHERE")?,
                    Err(error) if error.message().starts_with("a subquery") => {
                        return Err(Error::new(
                            SqlState::FEATURE_NOT_SUPPORTED,
                            "cannot use subquery in index predicate",
                        ));
                    }
                    Err(error) => return Err(error),
                };
                immutable(&bound, "predicate")?;
                Some(stored_text(&table, &context, &bound, &self.with_full_types(written)))
            }
        };
        let options = IndexOptions {
            unique: create.unique,
            deferral: None,
            nulls_not_distinct: create.nulls_distinct == Some(false),
            include,
            predicate,
            constraint: false,
        };
        let mut table = table;
        let mut index = self.new_index(&mut table, String::new(), columns, options);
        let names = index.column_names(&table);
        for (column, name) in index.columns.iter_mut().zip(&names) {
            if let Some(expression) = &mut column.expression {
                expression.name.clone_from(name);
            }
        }
        index.name = match &create.name {
            Some(name) => split(name)?.1,
            None => self.chosen_name(&table, &names.join("_"), "idx"),
        };
        if !self.check_free(table.schema, &index.name, create.if_not_exists)? {
            return Ok(None);
        }
        self.note_key_columns(&table, std::slice::from_ref(&index));
        Ok(Some((table, index)))
    }

    pub(super) fn create_index(&mut self, create: &CreateIndex) -> Result<()> {
        if let Some((mut table, index)) = self.describe_index(create)? {
            self.after.push(After::Fill(table.id, index.id));
            table.indexes.push(index);
            self.change.put(Object::Table(table));
        }
        Ok(())
    }

    /// An index with numbers of its own, not yet in the table.
    pub(super) fn new_index(
        &mut self,
        table: &mut Table,
        name: String,
        columns: Vec<IndexColumn>,
        options: IndexOptions,
    ) -> Index {
        let id = table.next_index;
        table.next_index += 1;
        let oid = self.change.oid();
        Index {
            oid,
            id,
            name,
            columns,
            unique: options.unique,
            deferral: options.deferral,
            nulls_not_distinct: options.nulls_not_distinct,
            include: options.include,
            constraint_oid: options.constraint.then(|| self.change.oid()),
            predicate: options.predicate,
            comment: None,
        }
    }

    /// Adds an index that is filled when the catalog is written.
    pub(super) fn push_index(
        &mut self,
        table: &mut Table,
        name: String,
        columns: Vec<IndexColumn>,
        options: IndexOptions,
    ) {
        let index = self.new_index(table, name, columns, options);
        self.after.push(After::Fill(table.id, index.id));
        table.indexes.push(index);
    }

    /// Binds predicates and expressions of the table's indexes again, after its columns have
    /// changed.
    pub(super) fn refresh_forms(&self, table: &mut Table) -> Result<()> {
        let catalog = Arc::clone(&self.context.catalog);
        let settings = by_owner(&self.context.settings, &catalog, table);
        let context = EvalContext::planning(&settings, &catalog);
        let shape = table.clone();
        let building = table.building.iter_mut().map(|build| &mut build.index);
        for index in table.indexes.iter_mut().chain(building) {
            if let Some(text) = &mut index.predicate {
                let written = parse_stored(text)?;
                let bound = condition_over(&shape, &context, &written, "WHERE")?;
                immutable(&bound, "predicate")?;
                *text = stored_text(&shape, &context, &bound, &written);
            }
            for expression in index.columns.iter_mut().filter_map(|c| c.expression.as_mut()) {
                let written = parse_stored(&expression.sql)?;
                let bound = bind_over(&shape, &context, &written, "index expressions")?;
                immutable(&bound, "expression")?;
                if !is_key_type(&bound.ty) {
                    return Err(no_key_type(&bound.ty));
                }
                expression.sql = stored_text(&shape, &context, &bound, &written);
                expression.ty = bound.ty.clone();
                expression.bare = is_bare(&bound);
            }
        }
        Ok(())
    }
}

/// Whether the index needs the column at `position`.
///
/// # Errors
/// XX001 when a stored expression does not parse.
pub(super) fn uses_column(table: &Table, index: &Index, position: usize) -> Result<bool> {
    if index.columns.iter().any(|c| c.column == position) || index.include.contains(&position) {
        return Ok(true);
    }
    let expressions = index.columns.iter().filter_map(|c| c.expression.as_ref()).map(|e| &e.sql);
    for text in expressions.chain(&index.predicate) {
        if columns_in(&parse_stored(text)?, table).contains(&position) {
            return Ok(true);
        }
    }
    Ok(false)
}

fn missing(name: &str) -> Error {
    Error::new(SqlState::UNDEFINED_COLUMN, format!("column \"{name}\" does not exist"))
}
