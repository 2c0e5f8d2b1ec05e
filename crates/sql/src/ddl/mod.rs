//! Data definition: CREATE, ALTER, DROP, TRUNCATE, COMMENT.
//!
//! # Invariants
//! - A definition changes the catalog and the data it concerns in one ordinary transaction; until it commits
//!   only that transaction sees it, and it conflicts with everything that ran against the old catalog.
//! - New constraints hold for the rows already there before the statement ends.
//!
//! # Limits
//! Index builds, DROP and TRUNCATE touch every row inside the transaction. CONCURRENTLY is accepted and means nothing.

mod alter;
mod build;
mod constraint;
mod drop;
mod names;
mod other;
mod sequence;
mod table;

use std::sync::Arc;

use crate::catalog::store::CatalogChange;
use crate::catalog::{CatalogCache, CatalogSnapshot};
use crate::error::{Error, Result};
use crate::plan::ExecContext;
use crate::session::StatementResult;
use crate::sqlparser::ast::Statement;

/// Something to do once the new catalog is written.
enum After {
    /// Move the rows of a table from where and what it was to where and what it is.
    Rewrite(telesto_common::TableId, Box<crate::catalog::Table>),
    /// Fill an index: table, index number.
    Fill(telesto_common::TableId, u32),
    /// Run a query that must return no row; else fail with the error.
    Empty(String, Error),
    /// Run a statement.
    Run(String),
}

/// One definition under way.
struct Ddl<'a> {
    context: &'a ExecContext,
    change: CatalogChange,
    after: Vec<After>,
}

/// Executes a definition.
pub(crate) async fn execute(
    statement: &Statement,
    context: &ExecContext,
    cache: &CatalogCache,
    base: &mut Option<Arc<CatalogSnapshot>>,
) -> Result<StatementResult> {
    if context.txn.options().read_only || context.txn.options().as_of.is_some() {
        let word = statement.to_string();
        let word = word.split_whitespace().take(2).collect::<Vec<_>>().join(" ");
        return Err(Error::new(
            crate::SqlState::READ_ONLY_TRANSACTION,
            format!("cannot execute {word} in a read-only transaction"),
        ));
    }
    let mut ddl = Ddl {
        context,
        change: CatalogChange::new(Arc::clone(&context.txn), &context.catalog),
        after: Vec::new(),
    };
    let tag = ddl.dispatch(statement).await?;
    let Ddl { change, after, .. } = ddl;
    base.get_or_insert_with(|| Arc::clone(&context.catalog));
    let mut context = context.clone();
    let changed = change.is_changed();
    if changed {
        let catalog = change.finish(&context.env).await?;
        cache.remember(Arc::clone(&catalog));
        context.catalog = catalog;
        context.sequences.enter(crate::catalog::sequence::SequenceScope {
            catalog: Arc::clone(&context.catalog),
            txn: Arc::clone(&context.txn),
            base: base.clone(),
        });
    }
    let rewritten: Vec<_> = after
        .iter()
        .filter_map(|step| match step {
            After::Rewrite(table, _) => Some(*table),
            _ => None,
        })
        .collect();
    for step in after {
        match step {
            After::Rewrite(table, old) => build::rewrite(&context, table, &old).await?,
            // A rewrite fills all indexes.
            After::Fill(table, _) if rewritten.contains(&table) => {}
            After::Fill(table, index) => build::fill_index(&context, table, index).await?,
            After::Empty(sql, error) => {
                let (_, rows) = crate::plan::query(&context, &sql).await?;
                if !rows.collect().await?.is_empty() {
                    return Err(error);
                }
            }
            After::Run(sql) => {
                let (_, rows) = crate::plan::query(&context, &sql).await?;
                rows.collect().await?;
            }
        }
    }
    // Unchanged: the table was there already (IF NOT EXISTS).
    if let (Statement::CreateTable(create), true) = (statement, changed)
        && let Some(query) = &create.query
    {
        let count = table::fill_from_query(&context, create, query).await?;
        return Ok(StatementResult::Command { tag: format!("SELECT {count}") });
    }
    Ok(StatementResult::Command { tag })
}

impl Ddl<'_> {
    async fn dispatch(&mut self, statement: &Statement) -> Result<String> {
        let tag = match statement {
            Statement::CreateTable(create) => {
                self.create_table(create).await?;
                "CREATE TABLE"
            }
            Statement::CreateIndex(create) => {
                self.create_index(create)?;
                "CREATE INDEX"
            }
            Statement::AlterTable(alter) => {
                self.alter_table(alter).await?;
                "ALTER TABLE"
            }
            Statement::AlterIndex { name, operation } => {
                self.alter_index(name, operation)?;
                "ALTER INDEX"
            }
            Statement::CreateSchema { schema_name, if_not_exists, .. } => {
                self.create_schema(schema_name, *if_not_exists)?;
                "CREATE SCHEMA"
            }
            Statement::CreateSequence {
                if_not_exists,
                name,
                data_type,
                sequence_options,
                owned_by,
                ..
            } => {
                self.create_sequence_statement(
                    name,
                    *if_not_exists,
                    data_type.as_ref(),
                    sequence_options,
                    owned_by.as_ref(),
                )?;
                "CREATE SEQUENCE"
            }
            Statement::Drop { object_type, if_exists, names, cascade, .. } => {
                return self.drop_objects(*object_type, names, *if_exists, *cascade).await;
            }
            Statement::Truncate(truncate) => {
                self.truncate(truncate).await?;
                "TRUNCATE TABLE"
            }
            Statement::Comment { object_type, object_name, comment, if_exists } => {
                self.comment(*object_type, object_name, comment.as_deref(), *if_exists)?;
                "COMMENT"
            }
            Statement::CreateView(create) => {
                self.create_view(create).await?;
                "CREATE VIEW"
            }
            Statement::CreateRole(create) => {
                self.create_role(create)?;
                "CREATE ROLE"
            }
            Statement::CreateExtension(create) => {
                self.context.notices.notice(format!(
                    "extension \"{}\" is not needed: Telesto has no extensions",
                    create.name
                ));
                "CREATE EXTENSION"
            }
            Statement::Grant(_) => "GRANT",
            Statement::Revoke(_) => "REVOKE",
            other => {
                let text = other.to_string();
                let words = text.split_whitespace().take(2).collect::<Vec<_>>().join(" ");
                return Err(Error::unsupported(words));
            }
        };
        Ok(tag.to_owned())
    }
}
