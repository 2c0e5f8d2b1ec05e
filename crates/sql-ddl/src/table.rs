//! CREATE TABLE, CREATE TABLE AS, LIKE.

use futures::StreamExt;
use telesto_common::TableId;

use super::names::{fold, free_of_system_columns, split};
use super::{Ddl, build};
use telesto_sql_catalog::model::OnCommit;
use telesto_sql_catalog::store::Object;
use telesto_sql_catalog::{Column, Generated, Table, TableKind};
use telesto_sql_expr::type_name::{DeclaredType, declared_type};
use telesto_sql_parser::definition::Like;
use telesto_sql_parser::definition::nulls_distinct::NULLS_NOT_DISTINCT;
use telesto_sql_parser::rewrite::collation::check_of_column;
use telesto_sql_parser::sqlparser::ast;
use telesto_sql_parser::sqlparser::ast::helpers::stmt_create_table::CreateTableBuilder;
use telesto_sql_parser::sqlparser::ast::{
    ColumnDef, ColumnOption, ColumnOptionDef, CreateTable, CreateTableOptions, GeneratedAs,
    IndexColumn, NullsDistinctOption, OrderByExpr, OrderByOptions, PrimaryKeyConstraint, Query,
    SetExpr, Statement, TableConstraint, UniqueConstraint,
};
use telesto_sql_plan::Rows;
use telesto_sql_plan::{ExecContext, PlanContext, query_statement};
use telesto_sql_types::SqlType;
use telesto_sql_types::error::{Error, Result, SqlState};

/// Greatest number of columns of a table, as PostgreSQL.
const MAX_COLUMNS: usize = 1600;

fn on_column(name: &telesto_sql_parser::sqlparser::ast::Ident) -> Vec<IndexColumn> {
    vec![IndexColumn {
        column: OrderByExpr {
            expr: telesto_sql_parser::sqlparser::ast::Expr::Identifier(name.clone()),
            options: OrderByOptions { asc: None, nulls_first: None },
            with_fill: None,
        },
        operator_class: None,
    }]
}

/// Whether a column may have the type.
///
/// # Errors
/// 42P16 for the types that no column has; 0A000 for the one that only expressions have.
pub(super) fn storable(column: &str, ty: &SqlType) -> Result<()> {
    let element = ty.element_type().unwrap_or(ty);
    if matches!(element, SqlType::Record(_) | SqlType::Void) {
        return Err(Error::new(
            SqlState::INVALID_TABLE_DEFINITION,
            format!("column \"{column}\" has pseudo-type {ty}"),
        )
        .hint("Name the fields as columns of their own, or cast to text."));
    }
    if *element == SqlType::RegProcedure {
        return Err(Error::unsupported(format_args!("a column of type {ty}"))
            .hint("Make it regproc, or cast to text."));
    }
    Ok(())
}

/// Refuses storage parameters that PostgreSQL does not know.
fn known_parameters(options: &CreateTableOptions) -> Result<()> {
    let CreateTableOptions::With(options) = options else { return Ok(()) };
    for option in options {
        match option {
            ast::SqlOption::KeyValue { key: name, .. } | ast::SqlOption::Ident(name) => {
                telesto_sql_parser::definition::known_storage(false, &fold(name))?;
            }
            _ => {}
        }
    }
    Ok(())
}

/// Refuses what is said of one column and does not go together: which of it counted would be
/// anybody's.
fn agree(table: &str, column: &str, serial: bool, options: &[ColumnOptionDef]) -> Result<()> {
    let (mut null, mut not_null) = (false, serial);
    let (mut defaults, mut identities, mut computed) = (u32::from(serial), 0, 0);
    for option in options {
        match &option.option {
            ColumnOption::Null => null = true,
            ColumnOption::NotNull => not_null = true,
            ColumnOption::Default(_) => defaults += 1,
            ColumnOption::Generated { generation_expr: Some(_), .. } => computed += 1,
            ColumnOption::Generated { .. } => {
                identities += 1;
                not_null = true;
            }
            _ => {}
        }
    }
    let what = match (defaults, identities, computed) {
        (2.., ..) => "multiple default values specified",
        (_, 2.., _) => "multiple identity specifications",
        (.., 2..) => "multiple generation clauses specified",
        (1, 1, _) => "both default and identity specified",
        (1, _, 1) => "both default and generation expression specified",
        (_, 1, 1) => "both identity and generation expression specified",
        _ if null && not_null => "conflicting NULL/NOT NULL declarations",
        _ => return Ok(()),
    };
    Err(Error::syntax(format!("{what} for column \"{column}\" of table \"{table}\"")))
}

impl Ddl<'_> {
    pub(super) async fn create_table(
        &mut self,
        create: &CreateTable,
        likes: &[Like],
        settings: &[(String, Option<String>)],
    ) -> Result<()> {
        known_parameters(&create.table_options)?;
        if create.partition_by.is_some() || create.partition_of.is_some() {
            return Err(Error::unsupported("a partitioned table"));
        }
        if create.inherits.is_some() {
            return Err(Error::unsupported("INHERITS"));
        }
        let (schema, name) = split(&create.name)?;
        let schema = self.schema_for(create.temporary, schema.as_deref())?;
        if !self.check_free(schema, &name, create.if_not_exists)? {
            return Ok(());
        }
        let id = TableId(self.object_oid(schema));
        let mut table = Table {
            id,
            storage: id,
            schema,
            name,
            owner: self.maker(),
            acl: self.initial_acl(telesto_sql_catalog::Granted::Table, schema),
            kind: TableKind::Ordinary,
            columns: Vec::new(),
            primary: None,
            indexes: Vec::new(),
            building: Vec::new(),
            next_index: 1,
            checks: Vec::new(),
            foreign_keys: Vec::new(),
            comment: None,
            type_oid: self.object_oid(schema),
            on_commit: on_commit(create)?,
            constraint_comments: Vec::new(),
            placement: self.catalog().usual_placement(),
            row_security: telesto_sql_catalog::policy::RowSecurity::default(),
            curated: None,
            key: None,
        };
        if let Some(query) = &create.query {
            self.columns_of_query(&mut table, create, query).await?;
        } else {
            let mut constraints = Vec::new();
            for (at, column) in create.columns.iter().enumerate() {
                for like in likes.iter().filter(|like| like.before == at) {
                    self.like_columns(&mut table, like)?;
                }
                self.add_column(&mut table, column, &mut constraints)?;
            }
            for like in likes.iter().filter(|like| like.before >= create.columns.len()) {
                self.like_columns(&mut table, like)?;
            }
            // Defaults may name a sequence of the table.
            for at in 0..table.columns.len() {
                self.check_column(&mut table, at)?;
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
                self.add_constraint(&mut table, constraint, true, false).await?;
            }
            for like in likes {
                self.like_constraints(&mut table, like)?;
            }
        }
        self.follow_parents(&mut table).await?;
        self.settings_of_new(&mut table, settings).await?;
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
        free_of_system_columns(&name)?;
        if table.columns.len() >= MAX_COLUMNS {
            return Err(Error::new(
                SqlState::PROGRAM_LIMIT_EXCEEDED,
                format!("tables can have at most {MAX_COLUMNS} columns"),
            ));
        }
        let (ty, serial) = match declared_type(&definition.data_type, Some(&self.user_types()))? {
            DeclaredType::Plain(ty) => {
                storable(&name, &ty)?;
                (ty, false)
            }
            DeclaredType::Serial(ty) => (ty, true),
        };
        let (ty, domain) = match ty {
            SqlType::Domain(domain) => (domain.base.clone(), Some(domain.oid)),
            ty => (ty, None),
        };
        agree(&table.name, &name, serial, &definition.options)?;
        let position = table.columns.len();
        let id = position as u16 + 1;
        let new = Column::new(id, name.clone(), ty.clone());
        let mut column = Column { not_null: serial, domain, ..new };
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
        // The name of the next UNIQUE, if that has NULLS NOT DISTINCT.
        let mut not_distinct = None;
        for option in &definition.options {
            let constraint_name = option.name.clone();
            match &option.option {
                ColumnOption::Null | ColumnOption::CharacterSet(_) => {}
                ColumnOption::Comment(mark) if mark == NULLS_NOT_DISTINCT => {
                    not_distinct = Some(constraint_name);
                }
                ColumnOption::Comment(_) => {
                    return Err(Error::syntax("syntax error at or near \"COMMENT\""));
                }
                ColumnOption::NotNull => column.not_null = true,
                ColumnOption::Default(expr) => column.default = Some(self.stored(expr)?),
                ColumnOption::Collation(name) => check_of_column(name)?,
                ColumnOption::PrimaryKey(key) => {
                    constraints.push(TableConstraint::PrimaryKey(PrimaryKeyConstraint {
                        name: constraint_name,
                        columns: on_column(&definition.name),
                        ..key.clone()
                    }));
                    column.not_null = true;
                }
                ColumnOption::Unique(unique) => {
                    let (name, nulls_distinct) = match not_distinct.take() {
                        Some(name) => (name, NullsDistinctOption::NotDistinct),
                        None => (constraint_name, unique.nulls_distinct),
                    };
                    let columns = on_column(&definition.name);
                    constraints.push(TableConstraint::Unique(UniqueConstraint {
                        name,
                        columns,
                        nulls_distinct,
                        ..unique.clone()
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
                        (_, Some(expr)) => Generated::Stored(self.stored(expr)?),
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
                                &telesto_sql_parser::definition::identity::options(
                                    sequence_options.as_deref().unwrap_or(&[]),
                                )?,
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

    /// The default of a serial column. The OID: neither a rename nor another search path changes
    /// what it means.
    pub(super) fn nextval(&self, sequence: &telesto_sql_catalog::Sequence) -> String {
        format!("nextval('{}'::REGCLASS)", sequence.oid)
    }

    async fn columns_of_query(
        &mut self,
        table: &mut Table,
        create: &CreateTable,
        query: &Query,
    ) -> Result<()> {
        let mut parameters = telesto_sql_plan::ParameterTypes::default();
        let plan = self
            .context
            .planner
            .plan(
                &Statement::Query(Box::new(query.clone())),
                &mut PlanContext {
                    catalog: &self.context.catalog,
                    settings: &self.context.settings,
                    parameters: &mut parameters,
                    txn: Some(&self.context.txn),
                    env: &self.context.env,
                    earlier: std::sync::Arc::default(),
                    planner: &self.context.planner,
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
            free_of_system_columns(&name)?;
            storable(&name, &column.ty)?;
            let ty = match &column.ty {
                SqlType::Unknown => SqlType::Text,
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
                domain: None,
                acl: None,
                comment: None,
            });
        }
        Ok(())
    }
}

fn on_commit(create: &CreateTable) -> Result<OnCommit> {
    match &create.on_commit {
        None => Ok(OnCommit::Preserve),
        Some(_) if !create.temporary => Err(Error::new(
            SqlState::INVALID_TABLE_DEFINITION,
            "ON COMMIT can only be used on temporary tables",
        )),
        Some(ast::OnCommit::PreserveRows) => Ok(OnCommit::Preserve),
        Some(ast::OnCommit::DeleteRows) => Ok(OnCommit::DeleteRows),
        Some(ast::OnCommit::Drop) => Ok(OnCommit::Drop),
    }
}

/// `SELECT … INTO t` as CREATE TABLE AS; `None` for any other statement.
pub(super) fn select_into(statement: &Statement) -> Option<Statement> {
    let Statement::Query(query) = statement else { return None };
    let mut query = query.clone();
    let SetExpr::Select(select) = &mut *query.body else { return None };
    let into = select.into.take()?;
    let create = CreateTableBuilder::new(into.name).temporary(into.temporary).query(Some(query));
    Some(Statement::CreateTable(create.build()))
}

/// Runs the query of CREATE TABLE AS and stores its rows. Returns their number. The query reads
/// what was there `before` the table was: another of its name too.
pub(super) async fn fill_from_query(
    context: &ExecContext,
    before: &ExecContext,
    create: &CreateTable,
    query: &Query,
) -> Result<u64> {
    let (_, name) = split(&create.name)?;
    let made = |table: &&std::sync::Arc<Table>| {
        table.name == name && before.catalog.table(table.id).is_none()
    };
    let Some(table) = context.catalog.tables().find(made) else {
        return Err(Error::internal("the new table is not there"));
    };
    let info = build::compiled(context, table.id)?;
    let (_, rows) = query_statement(before, &Statement::Query(Box::new(query.clone()))).await?;
    let mut count = 0;
    let mut stream = match rows {
        Rows::Ready(rows) => futures::stream::once(async { Ok(rows) }).boxed(),
        Rows::Stream(stream) => stream,
    };
    while let Some(batch) = stream.next().await {
        telesto_sql_types::interrupt::pace().await?;
        let rows = batch?;
        build::insert_rows(context, &info, &rows).await?;
        count += rows.len() as u64;
    }
    Ok(count)
}
