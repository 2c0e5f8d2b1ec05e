//! Where the binder finds relations: system tables, then the search path.

use std::sync::Arc;

use arrow::datatypes::{Field, Schema, SchemaRef};
use datafusion::datasource::{TableProvider, provider_as_source};
use telesto_common::TableId;

use super::bind::{BoundTable, Found, Tables};
use super::stored::StoredTable;
use super::types::arrow_type;
use super::virtual_table::VirtualTable;
use crate::catalog::{CatalogSnapshot, Relation};
use crate::error::{Error, Result, SqlState};
use crate::plan::{ExecContext, PlanContext};
use crate::session::Settings;
use crate::sqlparser::ast;
use crate::sqlparser::dialect::PostgreSqlDialect;
use crate::sqlparser::parser::Parser;
use crate::system;
use crate::types::SqlType;

/// The catalog as the binder sees it.
pub(crate) struct CatalogTables {
    catalog: Arc<CatalogSnapshot>,
    settings: Arc<Settings>,
    exec: Option<ExecContext>,
}

impl CatalogTables {
    /// For planning: the tables cannot be read.
    pub fn planning(context: &PlanContext<'_>) -> Self {
        Self {
            catalog: Arc::clone(context.catalog),
            settings: Arc::clone(context.settings),
            exec: None,
        }
    }

    /// For execution.
    pub fn executing(context: &ExecContext) -> Self {
        Self {
            catalog: Arc::clone(&context.catalog),
            settings: Arc::clone(&context.settings),
            exec: Some(context.clone()),
        }
    }

    /// The attnum of a column by its position among the visible ones.
    pub fn attribute_number(&self, table: TableId, position: usize) -> u16 {
        self.catalog
            .table(table)
            .and_then(|table| table.visible_columns().nth(position))
            .map_or(0, |(_, column)| column.id)
    }

    fn system_table(&self, table: &'static system::SystemTable) -> BoundTable {
        let columns: Vec<(String, SqlType)> =
            table.columns.iter().map(|(name, ty)| ((*name).to_owned(), ty.clone())).collect();
        let provider = VirtualTable::new(
            table,
            schema_of(&columns),
            Arc::clone(&self.catalog),
            Arc::clone(&self.settings),
        );
        bound(provider, columns, None)
    }
}

/// The Arrow schema of some columns.
pub(crate) fn schema_of(columns: &[(String, SqlType)]) -> SchemaRef {
    Arc::new(Schema::new(
        columns.iter().map(|(name, ty)| Field::new(name, arrow_type(ty), true)).collect::<Vec<_>>(),
    ))
}

fn bound(
    provider: impl TableProvider + 'static,
    columns: Vec<(String, SqlType)>,
    id: Option<TableId>,
) -> BoundTable {
    let source = provider_as_source(Arc::new(provider));
    let columns = columns.into_iter().map(|(name, ty)| (name.clone(), name, ty)).collect();
    BoundTable { source, columns, id }
}

impl Tables for CatalogTables {
    fn table(&self, name: &[String]) -> Result<Found> {
        let (schema, relation) = match name {
            [relation] => (None, relation),
            [.., schema, relation] => (Some(schema.as_str()), relation),
            [] => return Err(Error::syntax("a table needs a name")),
        };
        if let Some(table) = system::find(schema, relation) {
            return Ok(Found::Table(self.system_table(table)));
        }
        let path = self.settings.effective_search_path();
        match self.catalog.resolve(schema, relation, &path) {
            Some(Relation::Table(table)) => {
                let columns: Vec<(String, SqlType)> =
                    table.visible_columns().map(|(_, c)| (c.name.clone(), c.ty.clone())).collect();
                let id = table.id;
                let schema = schema_of(&columns);
                let stored = StoredTable::new(
                    Arc::clone(table),
                    schema,
                    self.catalog.database,
                    self.exec.clone(),
                );
                Ok(Found::Table(bound(stored, columns, Some(id))))
            }
            Some(Relation::View(view)) => {
                let query = parse_query(&view.query)?;
                let names = view.columns.iter().map(|(name, _)| name.clone()).collect();
                Ok(Found::View(Box::new(query), names))
            }
            Some(Relation::Sequence(_)) => Err(Error::unsupported("SELECT from a sequence")
                .hint("Use nextval, currval and pg_sequences.")),
            Some(Relation::Index(..)) => {
                Err(Error::new(SqlState::WRONG_OBJECT_TYPE, format!("\"{relation}\" is an index")))
            }
            None => {
                if let Some(schema) = schema {
                    let known = matches!(schema, "pg_catalog" | "information_schema");
                    if !known && self.catalog.schema(schema).is_none() {
                        return Err(Error::new(
                            SqlState::INVALID_SCHEMA_NAME,
                            format!("schema \"{schema}\" does not exist"),
                        ));
                    }
                }
                Err(Error::new(
                    SqlState::UNDEFINED_TABLE,
                    format!("relation \"{}\" does not exist", name.join(".")),
                ))
            }
        }
    }

    fn primary_key(&self, table: TableId) -> Result<Vec<usize>> {
        let Some(table) = self.catalog.table(table) else { return Ok(Vec::new()) };
        let Some(primary) = &table.primary else { return Ok(Vec::new()) };
        // Positions among the visible columns, as the scope counts them.
        Ok(primary
            .columns
            .iter()
            .filter_map(|part| table.visible_columns().position(|(at, _)| at == part.column))
            .collect())
    }

    fn type_named(&self, ty: &ast::DataType) -> Result<SqlType> {
        crate::expr::types::named(ty)
    }
}

/// Parses the text of a view.
fn parse_query(text: &str) -> Result<ast::Query> {
    let statements = Parser::parse_sql(&PostgreSqlDialect {}, text)
        .map_err(|error| Error::corrupt(format!("a view's query does not parse: {error}")))?;
    match statements.into_iter().next() {
        Some(ast::Statement::Query(query)) => Ok(*query),
        _ => Err(Error::corrupt("a view's query is no query")),
    }
}
