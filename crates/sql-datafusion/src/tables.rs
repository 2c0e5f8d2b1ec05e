//! Where the binder finds relations: system tables, then the search path.

use std::sync::Arc;

use arrow::datatypes::{Field, Schema, SchemaRef};
use datafusion::datasource::{TableProvider, provider_as_source};
use telesto_common::TableId;

use super::bind::{BoundTable, BoundView, Found, Guard, Reading, Tables};
use super::seat::{Reads, Seat};
use super::stored::StoredTable;
use super::types::arrow_type;
use super::virtual_table::VirtualTable;
use super::with_rows::GivenTable;
use telesto_sql_catalog::builtin::tables as system;
use telesto_sql_catalog::{CatalogSnapshot, Relation, Table};
use telesto_sql_expr::Settings;
use telesto_sql_parser::sqlparser::ast;
use telesto_sql_plan::hidden::{HIDDEN_PREFIX, KEY_COLUMN, KEYED_SCHEMA};
use telesto_sql_plan::row_security::{self, Finding};
use telesto_sql_plan::with_rows::{Earlier, part_number};
use telesto_sql_plan::{ExecContext, PlanContext};
use telesto_sql_types::SqlType;
use telesto_sql_types::error::{Error, Result, SqlState};

/// The hidden columns of a system table: the table's OID, which pg_dump asks for, and what its rows
/// are as of, the catalog's stamp, which DataGrip asks for.
const HIDDEN: [&str; 2] = ["tableoid", "xmin"];
/// The catalog as the binder sees it.
pub(crate) struct CatalogTables {
    catalog: Arc<CatalogSnapshot>,
    settings: Arc<Settings>,
    /// What tables are read with; `None` while planning.
    exec: Option<(Arc<Seat>, ExecContext)>,
    earlier: Arc<Earlier>,
}

impl CatalogTables {
    /// For planning: the tables cannot be read.
    pub fn planning(context: &PlanContext<'_>) -> Self {
        Self {
            catalog: Arc::clone(context.catalog),
            settings: Arc::clone(context.settings),
            exec: None,
            earlier: Arc::clone(&context.earlier),
        }
    }

    /// For the executions of `seat`, of which `context` is the first.
    pub fn seated(seat: &Arc<Seat>, context: &ExecContext) -> Self {
        Self {
            catalog: Arc::clone(&context.catalog),
            settings: Arc::clone(&context.settings),
            exec: Some((Arc::clone(seat), context.clone())),
            earlier: Arc::default(),
        }
    }

    /// The attnum of a column by its position among the visible ones.
    pub fn attribute_number(&self, table: TableId, position: usize) -> u16 {
        if let Some(table) = self.catalog.table(table) {
            return table.visible_columns().nth(position).map_or(0, |(_, column)| column.id);
        }
        // A view's columns are numbered as they stand.
        u16::try_from(position + 1).unwrap_or(0)
    }

    fn reads(&self, reading: Reading) -> Option<Reads> {
        let (seat, _) = self.exec.as_ref()?;
        Some(Reads { seat: Arc::clone(seat), beneath: reading.for_policy })
    }

    /// What an earlier part of the statement left.
    fn given(&self, number: usize, unique: &dyn Fn(&str) -> String) -> Result<BoundTable> {
        let parts = self.exec.as_ref().and_then(|(_, exec)| exec.parts.as_ref());
        let rows = parts.and_then(|parts| parts.rows(number));
        let columns = match (&rows, self.earlier.parts.get(number)) {
            (Some(rows), _) => Arc::clone(&rows.columns),
            (None, Some(columns)) => Arc::clone(columns),
            (None, None) => return Err(Error::internal("a part that left nothing")),
        };
        let named: Vec<(String, SqlType)> =
            columns.iter().map(|column| (column.name.clone(), column.ty.clone())).collect();
        let types = columns.iter().map(|column| column.ty.clone()).collect();
        let columns = planned(named, unique);
        Ok(bound(GivenTable::new(types, schema_of(&columns), rows), columns, None))
    }

    /// What hides rows of a table; `written`: how a statement that writes it finds them, and as
    /// whom.
    fn guard(
        &self,
        table: &Arc<Table>,
        written: Option<&str>,
        reading: Reading,
    ) -> Result<Option<Guard>> {
        if !table.row_security.enabled {
            return Ok(None);
        }
        let (mut finding, mut reader) =
            (if reading.locks { Finding::Lock } else { Finding::Read }, reading.reader);
        if let Some(written) = written {
            let (letter, role) = written.split_at_checked(1).unwrap_or(("r", ""));
            finding = letter.chars().next().map_or(Finding::Read, Finding::of_letter);
            reader = role.parse().ok();
        }
        let reader = reader.unwrap_or(self.settings.current_role);
        if !row_security::is_on(table, &self.catalog, &self.settings, reader)? {
            return Ok(None);
        }
        let actor = self.catalog.actor(reader);
        let conditions = row_security::conditions(table, &actor, finding)?;
        let stored = Arc::new(self.settings.of_owner(&self.catalog, table.owner.0));
        Ok(Some(Guard { table: table.id, name: table.name.clone(), conditions, stored }))
    }

    fn system_table(
        &self,
        table: &'static system::SystemTable,
        unique: &dyn Fn(&str) -> String,
    ) -> BoundTable {
        let mut columns: Vec<(String, SqlType)> =
            table.columns.iter().map(|(name, ty)| ((*name).to_owned(), ty.clone())).collect();
        // A view may have a column of its own that is called so (pg_replication_slots).
        let free = |name: &&str| table.columns.iter().all(|(own, _)| own != name);
        let hidden = || HIDDEN.into_iter().filter(free);
        columns.extend(hidden().map(|name| (format!("{HIDDEN_PREFIX}{name}"), SqlType::Oid)));
        let columns = planned(columns, unique);
        let provider = VirtualTable::new(
            table,
            schema_of(&columns),
            Arc::clone(&self.catalog),
            Arc::clone(&self.settings),
            self.exec.as_ref().map_or_else(Arc::default, |(_, exec)| Arc::clone(&exec.live)),
            self.exec.as_ref().is_some_and(|(_, exec)| exec.txn.options().as_of.is_some()),
        );
        let mut bound = bound(provider, columns, None);
        for (known, name) in bound.columns.iter_mut().skip(table.columns.len()).zip(hidden()) {
            name.clone_into(&mut known.0);
        }
        bound
    }
}

/// Columns by name, name in the plan and type: the plan's names tell those of all its tables apart.
/// DataFusion drops the tables' names where it makes joins of subqueries and where it hands filters
/// down.
fn planned(columns: Vec<(String, SqlType)>, unique: &dyn Fn(&str) -> String) -> Vec<PlanColumn> {
    let unique = |(name, ty): (String, SqlType)| (name.clone(), unique(&name), ty);
    columns.into_iter().map(unique).collect()
}

/// A column's name, its name in the plan, its type.
pub(super) type PlanColumn = (String, String, SqlType);

/// The Arrow schema of some columns, by their names in the plan.
pub(super) fn schema_of(columns: &[PlanColumn]) -> SchemaRef {
    let field = |(_, name, ty): &PlanColumn| Field::new(name, arrow_type(ty), true);
    Arc::new(Schema::new(columns.iter().map(field).collect::<Vec<_>>()))
}

fn bound(
    provider: impl TableProvider + 'static,
    columns: Vec<PlanColumn>,
    id: Option<TableId>,
) -> BoundTable {
    BoundTable { source: provider_as_source(Arc::new(provider)), columns, id, guard: None }
}

impl Tables for CatalogTables {
    fn table(
        &self,
        name: &[String],
        reading: Reading,
        unique: &dyn Fn(&str) -> String,
    ) -> Result<Found> {
        let (schema, relation) = match name {
            [relation] => (None, relation),
            [.., schema, relation] => (Some(schema.as_str()), relation),
            [] => return Err(Error::syntax("a table needs a name")),
        };
        if let (None, Some(number)) = (schema, part_number(relation)) {
            return Ok(Found::Table(self.given(number, unique)?));
        }
        let called = relation.strip_suffix("()").and_then(|name| system::find_call(schema, name));
        if let Some(table) = called.or_else(|| system::find(schema, relation)) {
            return Ok(Found::Table(self.system_table(table, unique)));
        }
        let path = self.settings.effective_search_path();
        match self.catalog.resolve(schema, relation, &path) {
            Some(Relation::Table(table)) => {
                self.catalog.check_replicated(table)?;
                let written = match name {
                    [first, _, _] => first.strip_prefix(KEYED_SCHEMA),
                    _ => None,
                };
                let keyed = written.is_some();
                let guard = self.guard(table, written, reading)?;
                let mut columns: Vec<(String, SqlType)> =
                    table.visible_columns().map(|(_, c)| (c.name.clone(), c.ty.clone())).collect();
                if keyed {
                    columns.push((KEY_COLUMN.to_owned(), SqlType::Bytea));
                }
                let id = table.id;
                let columns = planned(columns, unique);
                let schema = schema_of(&columns);
                let (stored, catalog) = (Arc::clone(table), Arc::clone(&self.catalog));
                let stored = StoredTable::new(stored, schema, catalog, self.reads(reading), keyed);
                Ok(Found::Table(BoundTable { guard, ..bound(stored, columns, Some(id)) }))
            }
            Some(Relation::View(view)) => {
                let (query, need) = parse_query(&view.query)?;
                let names = view.columns.iter().map(|(name, _)| name.clone()).collect();
                let reader = (!view.security_invoker).then_some(view.owner.0);
                let barrier = view.security_barrier.then(|| view.name.clone());
                let stored = Arc::new(self.settings.of_owner(&self.catalog, view.owner.0));
                let oid = TableId(view.oid);
                let view = BoundView { oid, query, names, need, reader, barrier, stored };
                Ok(Found::View(Box::new(view)))
            }
            Some(Relation::Sequence(sequence)) => {
                let columns = planned(super::sequence_table::columns(), unique);
                let table = super::sequence_table::SequenceTable {
                    sequence: Arc::clone(sequence),
                    schema: schema_of(&columns),
                    reads: self.reads(reading),
                };
                Ok(Found::Table(bound(table, columns, None)))
            }
            Some(Relation::Index(..)) => {
                Err(Error::new(SqlState::WRONG_OBJECT_TYPE, format!("\"{relation}\" is an index")))
            }
            None => Err(Error::new(
                SqlState::UNDEFINED_TABLE,
                format!("relation \"{}\" does not exist", name.join(".")),
            )),
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

    fn domain_of(&self, table: TableId, position: usize) -> Option<u32> {
        self.catalog.table(table)?.visible_columns().nth(position)?.1.domain
    }

    fn type_named(&self, ty: &ast::DataType, stored: Option<&Settings>) -> Result<SqlType> {
        let settings = stored.unwrap_or(&self.settings);
        let users = telesto_sql_expr::types::UserTypes { catalog: &self.catalog, settings };
        telesto_sql_expr::types::named(ty, &users)
    }
}

/// Parses the text of a view.
fn parse_query(text: &str) -> Result<(Box<ast::Query>, telesto_sql_parser::stack::Need)> {
    telesto_sql_parser::syntax::read_sized_query(text).map_err(|unread| {
        unread.or_else(|error| Error::corrupt(format!("a view's query does not parse: {error}")))
    })
}
