//! CREATE TABLE, CREATE TABLE AS, LIKE.

use futures::StreamExt;
use telesto_common::TableId;

use super::names::{fold, split};
use super::{Ddl, build};
use crate::catalog::store::Object;
use crate::catalog::{Column, Generated, Table, TableKind};
use crate::error::{Error, Result, SqlState};
use crate::plan::{ExecContext, PlanContext, query_statement};
use crate::session::Rows;
use crate::sqlparser::ast::{
    ColumnDef, ColumnOption, CreateTable, CreateTableLikeKind, GeneratedAs, IndexColumn,
    KeyOrIndexDisplay, NullsDistinctOption, OrderByExpr, OrderByOptions, PrimaryKeyConstraint,
    Query, Statement, TableConstraint, UniqueConstraint,
};
use crate::types::SqlType;
use crate::types::parse::{DeclaredType, declared_type};

/// Greatest number of columns of a table, as PostgreSQL.
const MAX_COLUMNS: usize = 1600;

fn on_column(name: &crate::sqlparser::ast::Ident) -> Vec<IndexColumn> {
    vec![IndexColumn {
        column: OrderByExpr {
            expr: crate::sqlparser::ast::Expr::Identifier(name.clone()),
            options: OrderByOptions { asc: None, nulls_first: None },
            with_fill: None,
        },
        operator_class: None,
    }]
}

impl Ddl<'_> {
    pub(super) async fn create_table(&mut self, create: &CreateTable) -> Result<()> {
        if create.temporary {
            return Err(Error::unsupported("a temporary table"));
        }
        if create.partition_by.is_some() || create.partition_of.is_some() {
            return Err(Error::unsupported("a partitioned table"));
        }
        if create.inherits.is_some() {
            return Err(Error::unsupported("INHERITS"));
        }
        let (schema, name) = split(&create.name)?;
        let schema = self.creation_schema(schema.as_deref())?;
        if !self.check_free(schema, &name, create.if_not_exists)? {
            return Ok(());
        }
        let id = TableId(self.change.oid());
        let mut table = Table {
            id,
            storage: id,
            schema,
            name,
            owner: self.context.settings.current_user.clone(),
            kind: TableKind::Ordinary,
            columns: Vec::new(),
            primary: None,
            indexes: Vec::new(),
            next_index: 1,
            checks: Vec::new(),
            foreign_keys: Vec::new(),
            comment: None,
            type_oid: self.change.oid(),
        };
        if let Some(like) = &create.like {
            let (CreateTableLikeKind::Parenthesized(like) | CreateTableLikeKind::Plain(like)) =
                like;
            let model = self.table(&like.name)?;
            for (_, column) in model.visible_columns() {
                table.columns.push(Column {
                    id: table.columns.len() as u16 + 1,
                    default: None,
                    generated: None,
                    missing: None,
                    comment: None,
                    ..column.clone()
                });
            }
        }
        if let Some(query) = &create.query {
            self.columns_of_query(&mut table, create, query).await?;
        } else {
            let mut constraints = Vec::new();
            for column in &create.columns {
                self.add_column(&mut table, column, &mut constraints)?;
            }
            // Keys first: a foreign key may refer to this table's own.
            let (keys, rest): (Vec<_>, Vec<_>) =
                constraints.iter().chain(&create.constraints).partition(|constraint| {
                    matches!(
                        constraint,
                        TableConstraint::PrimaryKey(_) | TableConstraint::Unique(_)
                    )
                });
            for constraint in keys.into_iter().chain(rest) {
                self.add_constraint(&mut table, constraint, true, false)?;
            }
        }
        self.change.put(Object::Table(table));
        Ok(())
    }

    /// Adds a column; its key and reference constraints go to `constraints`.
    pub(super) fn add_column(
        &mut self,
        table: &mut Table,
        definition: &ColumnDef,
        constraints: &mut Vec<TableConstraint>,
    ) -> Result<()> {
        let name = fold(&definition.name);
        if table.column_position(&name).is_some() {
            return Err(Error::new(
                SqlState::DUPLICATE_COLUMN,
                format!("column \"{name}\" specified more than once"),
            ));
        }
        if table.columns.len() >= MAX_COLUMNS {
            return Err(Error::new(
                SqlState::PROGRAM_LIMIT_EXCEEDED,
                format!("tables can have at most {MAX_COLUMNS} columns"),
            ));
        }
        let (ty, serial) = match declared_type(&definition.data_type)? {
            DeclaredType::Plain(ty) => (ty, false),
            DeclaredType::Serial(ty) => (ty, true),
        };
        let position = table.columns.len();
        let mut column = Column {
            id: position as u16 + 1,
            name: name.clone(),
            ty: ty.clone(),
            not_null: serial,
            default: None,
            generated: None,
            missing: None,
            dropped: false,
            comment: None,
        };
        if serial {
            let sequence = self.column_sequence(
                table.schema,
                (table.id, &table.name),
                (position, &name),
                &ty,
                &[],
                false,
            )?;
            column.default = Some(self.nextval(&sequence));
        }
        for option in &definition.options {
            let constraint_name = option.name.clone();
            match &option.option {
                ColumnOption::Null | ColumnOption::Comment(_) | ColumnOption::CharacterSet(_) => {}
                ColumnOption::NotNull => column.not_null = true,
                ColumnOption::Default(expr) => column.default = Some(expr.to_string()),
                ColumnOption::Collation(name) => {
                    let text = name.to_string().replace('"', "");
                    if !matches!(
                        text.rsplit('.').next(),
                        Some("C" | "POSIX" | "default" | "ucs_basic")
                    ) {
                        return Err(Error::unsupported(format!("collation {name}")));
                    }
                }
                ColumnOption::PrimaryKey(key) => {
                    constraints.push(TableConstraint::PrimaryKey(PrimaryKeyConstraint {
                        name: constraint_name,
                        columns: on_column(&definition.name),
                        ..key.clone()
                    }));
                    column.not_null = true;
                }
                ColumnOption::Unique(_) => {
                    constraints.push(TableConstraint::Unique(UniqueConstraint {
                        name: constraint_name,
                        index_name: None,
                        index_type_display: KeyOrIndexDisplay::None,
                        index_type: None,
                        columns: on_column(&definition.name),
                        index_options: Vec::new(),
                        characteristics: None,
                        nulls_distinct: NullsDistinctOption::None,
                    }));
                }
                ColumnOption::ForeignKey(key) => {
                    let mut key = key.clone();
                    key.name = constraint_name.or(key.name);
                    key.columns = vec![definition.name.clone()];
                    constraints.push(TableConstraint::ForeignKey(key));
                }
                ColumnOption::Check(check) => {
                    let mut check = check.clone();
                    check.name = constraint_name.or(check.name);
                    constraints.push(TableConstraint::Check(check));
                }
                ColumnOption::Generated {
                    generated_as, sequence_options, generation_expr, ..
                } => {
                    column.generated = Some(match (generated_as, generation_expr) {
                        (_, Some(expr)) => Generated::Stored(expr.to_string()),
                        (kind, None) => {
                            if !ty.is_integer() {
                                return Err(Error::new(
                                    SqlState::INVALID_PARAMETER_VALUE,
                                    "identity column type must be smallint, integer, or bigint",
                                ));
                            }
                            let sequence = self.column_sequence(
                                table.schema,
                                (table.id, &table.name),
                                (position, &name),
                                &ty,
                                sequence_options.as_deref().unwrap_or(&[]),
                                true,
                            )?;
                            column.not_null = true;
                            if matches!(kind, GeneratedAs::ByDefault) {
                                Generated::IdentityByDefault(sequence.oid)
                            } else {
                                Generated::IdentityAlways(sequence.oid)
                            }
                        }
                    });
                }
                other => return Err(Error::unsupported(format!("column option {other}"))),
            }
        }
        table.columns.push(column);
        Ok(())
    }

    pub(super) fn nextval(&self, sequence: &crate::catalog::Sequence) -> String {
        let schema = self.catalog().schema_name(sequence.schema);
        let name = if schema == crate::catalog::PUBLIC {
            quote_if_needed(&sequence.name)
        } else {
            format!("{}.{}", quote_if_needed(schema), quote_if_needed(&sequence.name))
        };
        format!("nextval('{}'::regclass)", name.replace('\'', "''"))
    }

    async fn columns_of_query(
        &mut self,
        table: &mut Table,
        create: &CreateTable,
        query: &Query,
    ) -> Result<()> {
        let mut parameters = crate::plan::ParameterTypes::default();
        let plan = crate::session::plan_statement(
            &Statement::Query(Box::new(query.clone())),
            &mut PlanContext {
                catalog: &self.context.catalog,
                settings: &self.context.settings,
                parameters: &mut parameters,
                txn: Some(&self.context.txn),
                env: &self.context.env,
            },
        )
        .await?;
        let columns = plan.columns().cloned().unwrap_or_else(|| std::sync::Arc::from([]));
        if create.columns.len() > columns.len() {
            return Err(Error::syntax("too many column names were specified"));
        }
        for (i, column) in columns.iter().enumerate() {
            let name = create.columns.get(i).map_or_else(|| column.name.clone(), |c| fold(&c.name));
            if table.column_position(&name).is_some() {
                return Err(Error::new(
                    SqlState::DUPLICATE_COLUMN,
                    format!("column \"{name}\" specified more than once"),
                ));
            }
            let ty = match &column.ty {
                SqlType::Unknown | SqlType::Void => SqlType::Text,
                ty => ty.clone(),
            };
            table.columns.push(Column {
                id: i as u16 + 1,
                name,
                ty,
                not_null: false,
                default: None,
                generated: None,
                missing: None,
                dropped: false,
                comment: None,
            });
        }
        Ok(())
    }
}

fn quote_if_needed(name: &str) -> String {
    let plain = name.starts_with(|c: char| c.is_ascii_lowercase() || c == '_')
        && name.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_');
    if plain { name.to_owned() } else { super::names::quote(name) }
}

/// Runs the query of CREATE TABLE AS and stores its rows. Returns their number.
pub(super) async fn fill_from_query(
    context: &ExecContext,
    create: &CreateTable,
    query: &Query,
) -> Result<u64> {
    let (schema, name) = split(&create.name)?;
    let path = context.settings.effective_search_path();
    let Some(crate::catalog::Relation::Table(table)) =
        context.catalog.resolve(schema.as_deref(), &name, &path).cloned()
    else {
        return Err(Error::internal("the new table is not there"));
    };
    let (_, rows) = query_statement(context, &Statement::Query(Box::new(query.clone()))).await?;
    let mut count = 0;
    let mut stream = match rows {
        Rows::Ready(rows) => futures::stream::once(async { Ok(rows) }).boxed(),
        Rows::Stream(stream) => stream,
    };
    while let Some(batch) = stream.next().await {
        context.check_cancelled()?;
        for row in batch? {
            build::insert_row(context, &table, &row).await?;
            count += 1;
        }
    }
    Ok(count)
}
