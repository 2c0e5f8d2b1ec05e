//! Data definition: CREATE, ALTER, DROP, TRUNCATE, COMMENT.
//!
//! # Invariants
//! - A definition changes the catalog and the data it concerns in one ordinary transaction; until
//!   it commits only that transaction sees it, and it conflicts with everything that ran against
//!   the old catalog.
//! - New constraints hold for the rows already there before the statement ends.
//!
//! # Limits
//! Rewrites of tables, and index builds inside a transaction block, touch every row inside the
//! transaction. What is built or swept in many transactions is driven by the engine; [`online`] has
//! the changes of the catalog it makes.

mod access;
mod alter;
mod build;
mod by_row;
mod columns;
mod composite_texts;
mod composites;
mod constraint;
mod curated;
mod default_privileges;
mod dependents;
mod domain;
mod drop;
mod drop_schema;
mod effectless;
mod expressions;
mod going;
mod grant;
mod index;
mod keys;
mod label_text;
mod like;
mod names;
pub mod online;
mod other;
mod other_types;
mod owned;
mod parameters;
mod parents;
mod placement;
mod policies;
mod rename;
mod rewrite;
mod roles;
mod sequence;
mod settings;
mod settling;
mod still;
mod table;
mod table_key;
mod type_text;
mod types;
mod verifier;
mod view_columns;
mod view_fields;
mod view_options;
mod view_plain;
mod view_stars;
mod views;

pub use build::duplicate;

use std::collections::BTreeSet;
use std::sync::Arc;

use telesto_bucket::table_keys::TableKeys;
use telesto_txn::ReadFor;

use telesto_sql_catalog::store::CatalogChange;
use telesto_sql_catalog::{Actor, CatalogCache, CatalogSnapshot, Guarded, Owner};
use telesto_sql_parser::definition::{Definition, OwnedKind};
use telesto_sql_parser::sqlparser::ast::{Expr, ObjectType, Statement};
use telesto_sql_plan::ExecContext;
use telesto_sql_plan::StatementResult;
use telesto_sql_types::error::{Error, Result};

/// Something to do once the new catalog is written.
enum After {
    /// Move the rows of a table from where and what it was to where and what it is; whether they
    /// are left to the sweep where they were.
    Rewrite(telesto_common::TableId, Box<telesto_sql_catalog::Table>, bool),
    /// Fill an index: table, index number.
    Fill(telesto_common::TableId, u32),
    /// Run a query over these tables that must return no row; else fail with the error.
    Empty(Vec<telesto_common::TableId>, String, Error),
}

/// One definition under way.
struct Ddl<'a> {
    context: &'a ExecContext,
    change: CatalogChange,
    after: Vec<After>,
    /// New values of columns in rows that move.
    using: Vec<rewrite::Using>,
    /// The schema of CREATE SCHEMA's elements.
    within: Option<String>,
    /// Whose rights count.
    actor: Actor,
    /// To whom belongs what is made: another than the role in CREATE SCHEMA … AUTHORIZATION.
    maker: Owner,
    /// Where keys of tables are had from.
    keys: Option<Arc<TableKeys>>,
    /// Objects, whosever they are, that were written anew to stay what they are: views, and tables
    /// whose keys rely on an index with another number.
    kept: BTreeSet<u32>,
}

/// Executes a definition.
///
/// # Errors
/// Those of the definition; its writes are then undone by the caller (a savepoint).
pub async fn execute(
    statement: &Statement,
    context: &ExecContext,
    cache: &CatalogCache,
    base: &mut Option<Arc<CatalogSnapshot>>,
) -> Result<StatementResult> {
    if context.txn.options().read_only || context.txn.options().as_of.is_some() {
        let word = telesto_sql_parser::definition::text(statement)
            .map_or_else(|| statement.to_string(), str::to_uppercase);
        let word = word.split_whitespace().take(2).collect::<Vec<_>>().join(" ");
        return Err(Error::new(
            telesto_sql_types::SqlState::READ_ONLY_TRANSACTION,
            format!("cannot execute {word} in a read-only transaction"),
        ));
    }
    let definition = telesto_sql_parser::definition::read(statement)?;
    parameters::refuse(statement, definition.as_ref())?;
    let reach = access::reach(statement, definition.as_ref());
    let into = match definition {
        Some(Definition::CreateTableAs(create)) => Some(Statement::CreateTable(*create)),
        _ => table::select_into(statement),
    };
    let statement = into.as_ref().unwrap_or(statement);
    let mut ddl = Ddl::over(context);
    ddl.keys = cache.table_keys().cloned();
    let tag = ddl.dispatch(statement).await?;
    ddl.leave_moved_rows().await?;
    let Ddl { change, after, using, actor, kept, .. } = ddl;
    let touched: Vec<u32> =
        change.touched().iter().copied().filter(|oid| !kept.contains(oid)).collect();
    access::check_change(&context.catalog, change.catalog(), &touched, &actor, reach)?;
    base.get_or_insert_with(|| Arc::clone(&context.catalog));
    let (before, mut context) = (context, context.clone());
    let changed = change.is_changed();
    if changed {
        let (catalog, shared) = change.finish(&context.env).await?;
        cache.remember(shared);
        context.catalog = catalog;
        context.sequences.enter(telesto_sql_catalog::sequence::SequenceScope {
            catalog: Arc::clone(&context.catalog),
            txn: Arc::clone(&context.txn),
            base: base.clone(),
        });
    }
    let rewritten: Vec<_> = after
        .iter()
        .filter_map(|step| match step {
            After::Rewrite(table, ..) => Some(*table),
            _ => None,
        })
        .collect();
    still::hold(&context, &after).await?;
    for step in after {
        match step {
            After::Rewrite(table, old, swept) => {
                rewrite::rewrite(&context, table, (&old, swept), &using).await?;
                build::check_keys(&context, table).await?;
            }
            // A rewrite fills all indexes.
            After::Fill(table, _) if rewritten.contains(&table) => {}
            After::Fill(table, index) => {
                build::fill_index(&context, table, index).await?;
                build::check_keys(&context, table).await?;
            }
            After::Empty(_, sql, error) => {
                // What is found must hold at the commit, at every isolation level: below
                // SERIALIZABLE a query's reads are not validated. Policies do not hide rows from
                // constraints.
                let settings = telesto_sql_plan::row_security::without(&context.settings);
                // Nor do rows that wait for a curator, which only their author sees, count.
                let txn = context.txn.beneath().unwrap_or_else(|| Arc::clone(&context.txn));
                let read_for = ReadFor::Constraint;
                let reading = ExecContext { txn, read_for, settings, ..context.clone() };
                let (_, rows) = telesto_sql_plan::query(&reading, &sql).await?;
                if !rows.collect().await?.is_empty() {
                    return Err(error);
                }
            }
        }
    }
    // Unchanged: the table was there already (IF NOT EXISTS).
    if let (Statement::CreateTable(create), true) = (statement, changed)
        && let Some(query) = &create.query
    {
        let count = table::fill_from_query(&context, before, create, query).await?;
        return Ok(StatementResult::Command { tag: format!("SELECT {count}") });
    }
    Ok(StatementResult::Command { tag })
}

impl<'a> Ddl<'a> {
    fn over(context: &'a ExecContext) -> Self {
        Self {
            context,
            change: CatalogChange::new(Arc::clone(&context.txn), &context.catalog),
            after: Vec::new(),
            using: Vec::new(),
            within: None,
            actor: context.catalog.actor(context.settings.current_role),
            maker: Owner(context.settings.current_role),
            keys: None,
            kept: BTreeSet::new(),
        }
    }
}

impl Ddl<'_> {
    async fn dispatch(&mut self, statement: &Statement) -> Result<String> {
        let tag = match statement {
            Statement::CreateTable(create) if create.external => {
                self.create_domain(create)?;
                "CREATE DOMAIN"
            }
            Statement::AlterTable(alter) if alter.table_type.is_some() => {
                self.alter_domain(alter)?;
                "ALTER DOMAIN"
            }
            Statement::CreateTable(create) => {
                self.create_table(create, &[], &[]).await?;
                "CREATE TABLE"
            }
            Statement::CreateIndex(create) => {
                self.create_index(create)?;
                "CREATE INDEX"
            }
            Statement::Pragma { .. } => match telesto_sql_parser::definition::read(statement)? {
                Some(definition) => return Box::pin(self.define(definition)).await,
                None => return Err(Error::internal("a definition without text")),
            },
            Statement::Drop { object_type, if_exists, names, cascade, .. } => {
                self.may_drop_named(*object_type, names)?;
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
            Statement::CreateExtension(create) => {
                self.context.notices.notice(format!(
                    "extension \"{}\" is not needed: Telesto has no extensions",
                    create.name
                ));
                "CREATE EXTENSION"
            }
            Statement::CreateType { name, representation } => {
                self.create_type(name, representation.as_ref())?;
                "CREATE TYPE"
            }
            Statement::DropDomain(drop) => {
                self.drop_domain(drop).await?;
                "DROP DOMAIN"
            }
            Statement::AlterType(alter) => {
                self.alter_type(alter).await?;
                "ALTER TYPE"
            }
            Statement::AlterCollation(alter) => self.place_type(alter)?,
            Statement::CreatePolicy(create) => {
                self.create_policy(create).await?;
                "CREATE POLICY"
            }
            Statement::AlterPolicy(alter) => {
                self.alter_policy(alter).await?;
                "ALTER POLICY"
            }
            Statement::DropPolicy(drop) => {
                self.drop_policy(drop)?;
                "DROP POLICY"
            }
            other => {
                let text = other.to_string();
                let named =
                    text.split_whitespace().filter(|word| !["OR", "REPLACE"].contains(word));
                let words = named.take(2).collect::<Vec<_>>().join(" ");
                return Err(Error::unsupported(words));
            }
        };
        Ok(tag.to_owned())
    }
}

impl Ddl<'_> {
    async fn elements_of_schema(&mut self, name: String, elements: &[Statement]) -> Result<()> {
        self.within = Some(name);
        for element in elements {
            Box::pin(self.dispatch(element)).await?;
        }
        Ok(())
    }

    async fn define(&mut self, definition: Definition) -> Result<String> {
        let tag = match definition {
            Definition::Alter { kind, if_exists, name, actions } => {
                self.alter(kind, if_exists, &name, &actions).await?;
                kind.tag()
            }
            Definition::AlterSequence { if_exists, name, options } => {
                self.alter_sequence(if_exists, &name, &options).await?;
                "ALTER SEQUENCE"
            }
            Definition::CreateSequence { temporary, if_not_exists, name, options } => {
                self.create_sequence(temporary, if_not_exists, &name, &options)?;
                "CREATE SEQUENCE"
            }
            Definition::AlterAttributes { name, actions } => {
                self.alter_attributes(&name, &actions).await?
            }
            Definition::AlterSchema { name, to } => {
                if let Some(schema) = self.catalog().schema(&names::fold(&name)) {
                    self.need_owner(Guarded::schema(schema))?;
                    self.may_make_schema()?;
                }
                self.rename_schema(&name, &to)?;
                "ALTER SCHEMA"
            }
            Definition::CreateSchema { if_not_exists, name, owner, elements } => {
                let name = self.create_schema(name.as_ref(), owner.as_ref(), if_not_exists)?;
                self.elements_of_schema(name, &elements).await?;
                "CREATE SCHEMA"
            }
            Definition::OwnerTo { kind, name, to } => {
                self.give(kind, &name, &to)?;
                match kind {
                    OwnedKind::Schema => "ALTER SCHEMA",
                    OwnedKind::Database => "ALTER DATABASE",
                }
            }
            Definition::CreateRole { name, options } => {
                self.create_role(&name, &options)?;
                "CREATE ROLE"
            }
            Definition::DropRole { if_exists, roles } => {
                self.drop_roles(if_exists, &roles)?;
                "DROP ROLE"
            }
            Definition::Grant(statement) => {
                self.grant(&statement)?;
                if statement.grant { "GRANT" } else { "REVOKE" }
            }
            Definition::GrantRole(given) => {
                self.grant_role(&given)?;
                if given.grant { "GRANT ROLE" } else { "REVOKE ROLE" }
            }
            Definition::DefaultPrivileges { of, within, grant } => {
                self.default_privileges(&of, &within, &grant)?;
                "ALTER DEFAULT PRIVILEGES"
            }
            Definition::ReassignOwned { from, to } => {
                self.reassign_owned(&from, &to)?;
                "REASSIGN OWNED"
            }
            Definition::DropOwned { of, cascade } => {
                self.drop_owned(&of, cascade).await?;
                "DROP OWNED"
            }
            Definition::CreateTableLike { create, likes, settings } => {
                self.create_table(&create, &likes, &settings).await?;
                "CREATE TABLE"
            }
            Definition::CreateTableEmpty(create) | Definition::CreateTableAs(create) => {
                self.create_table(&create, &[], &[]).await?;
                "CREATE TABLE AS"
            }
            Definition::AlterRole { name, change } => {
                self.alter_role(&name, &change)?;
                "ALTER ROLE"
            }
            Definition::Settings(settings) => self.alter_settings(&settings)?,
            Definition::CommentOnConstraint { name, on, comment } => {
                self.comment_on_constraint(&name, &on, comment)?;
                "COMMENT"
            }
            Definition::DropIndexConcurrently { if_exists, names, cascade } => {
                self.may_drop_named(ObjectType::Index, &names)?;
                self.drop_concurrently(&names, if_exists, cascade).await?;
                "DROP INDEX"
            }
            Definition::ReindexAll { of, .. } => return Err(online::not_in_a_block(of)),
            Definition::Reindex { table, concurrently, name } => {
                if let Some(found) = self.find(&name)? {
                    self.need_owner_of(&found)?;
                }
                for (table, index) in self.reindexed(table, concurrently, &name)? {
                    self.reindex_here(table, index).await?;
                }
                "REINDEX"
            }
        };
        Ok(tag.to_owned())
    }
}

/// Parses an expression of the catalog.
fn parse_expr(text: &str) -> Result<Expr> {
    telesto_sql_parser::stored::parse_stored(text)
}
