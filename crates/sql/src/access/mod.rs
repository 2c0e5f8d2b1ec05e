//! What a statement may read and write: checked once for a plan, before it is used.
//!
//! # Purpose
//! [`check`] finds the relations and columns that a statement reaches, through views with their
//! owners' rights, and compares them with what the role was granted. Both executors run only what
//! it let through.
//!
//! # How it works
//! A plan is kept with the catalog's stamp and the settings it was made with. A GRANT or REVOKE
//! changes the stamp, SET ROLE the settings: so a check that held when the plan was made holds as
//! long as the plan is used, and nothing is asked on the way of a read by key. Definitions are
//! checked where they are executed (`sql-ddl`), functions where they are called.
//!
//! # Invariants
//! - Every kind of statement is named in [`class_of`]: a kind that is added to the parser does not
//!   compile until somebody has decided about it, and one that nobody thought of is
//!   [`Class::Refused`] to all but superusers.
//! - Every relation that the parser finds in a statement must have been looked at; else the
//!   statement is refused.
//! - In doubt a column counts as read.
//!
//! # On failure
//! 42501; the statement has read and written nothing.

mod columns;
mod reads;
mod types;
mod writes;

pub(crate) use types::{check_type_names, check_types};

use std::collections::BTreeSet;
use std::ops::ControlFlow;
use std::sync::Arc;

use telesto_sql_catalog::builtin::tables;
use telesto_sql_catalog::rights::{READ_ALL_STATS, denied};
use telesto_sql_catalog::temp::is_temporary;
use telesto_sql_catalog::{Actor, CatalogSnapshot, Guarded, Relation, Rights, Table};
use telesto_sql_parser::definition::{self, Definition};
use telesto_sql_parser::sqlparser::ast::{self, ObjectName, Query, Statement};
use telesto_sql_plan::row_security;

use crate::error::{Error, Result, SqlState};
use crate::expr::fold;
use crate::session::settings::Settings;
use columns::Level;

/// Views over views, at most: PostgreSQL and the executors have a bound, too.
const MAX_VIEWS: usize = 100;

/// How a kind of statement is guarded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Class {
    /// It reads or writes relations: looked at here.
    Data,
    /// It defines: looked at where it is executed. A query in it is looked at here.
    Definition,
    /// It concerns the session alone, or checks by itself what it reaches.
    Session,
    /// Not known to be harmless: for superusers only.
    Refused,
}

/// How this kind of statement is guarded.
#[rustfmt::skip]
pub(crate) fn class_of(statement: &Statement) -> Class {
    use Statement as S;
    match statement {
        S::Query(_) | S::Insert(_) | S::Update(_) | S::Delete(_) | S::Merge(_) | S::Copy { .. } => {
            Class::Data
        }
        // What they run is looked at when its own plan is made.
        S::Explain { .. } | S::Declare { .. } => Class::Data,
        S::CreateView(_)
        | S::CreateTable(_)
        | S::CreateIndex(_)
        | S::CreateType { .. }
        | S::CreateExtension(_)
        | S::AlterTable(_)
        | S::AlterType(_)
        | S::AlterCollation(_)
        | S::Drop { .. }
        | S::DropDomain(_)
        | S::Truncate(_)
        | S::Comment { .. }
        | S::CreatePolicy(_)
        | S::AlterPolicy(_)
        | S::DropPolicy(_)
        | S::Pragma { .. } => Class::Definition,
        S::Set(_)
        | S::Reset(_)
        | S::ShowVariable { .. }
        | S::Discard { .. }
        | S::Fetch { .. }
        | S::Close { .. }
        | S::Prepare { .. }
        | S::Execute { .. }
        | S::Deallocate { .. }
        | S::StartTransaction { .. }
        | S::Commit { .. }
        | S::Rollback { .. }
        | S::Savepoint { .. }
        | S::ReleaseSavepoint { .. }
        | S::LISTEN { .. }
        | S::UNLISTEN { .. }
        | S::NOTIFY { .. } => Class::Session,
        // They name relations, and do nothing to them here.
        S::Lock(_) | S::LockTables { .. } | S::Analyze(_) | S::Vacuum(_) => Class::Session,
        S::Msck(_) | S::Install { .. } | S::Load { .. } | S::Directory { .. } | S::Case(_) | S::If(_) | S::While(_) | S::Raise(_)
        | S::Call(_) | S::CopyIntoSnowflake { .. } | S::Open(_) | S::CreateVirtualTable { .. } | S::CreateRole(_)
        | S::CreateSecret { .. } | S::CreateServer(_) | S::CreateConnector(_) | S::CreateOperator(_)
        | S::CreateOperatorFamily(_) | S::CreateOperatorClass(_) | S::AlterSchema(_) | S::AlterIndex { .. } | S::AlterView { .. }
        | S::AlterFunction(_) | S::AlterOperator(_) | S::AlterOperatorFamily(_) | S::AlterOperatorClass(_) | S::AlterRole { .. }
        | S::AlterConnector { .. } | S::AlterSession { .. } | S::AttachDatabase { .. }
        | S::AttachDuckDBDatabase { .. } | S::DetachDuckDBDatabase { .. } | S::DropFunction(_) | S::DropProcedure { .. }
        | S::DropSecret { .. } | S::DropConnector { .. } | S::CreateCollation(_) | S::DropExtension(_)
        | S::DropOperator(_) | S::DropOperatorFamily(_) | S::DropOperatorClass(_) | S::Flush { .. } | S::ShowFunctions { .. }
        | S::ShowStatus { .. } | S::ShowVariables { .. } | S::ShowCreate { .. } | S::ShowColumns { .. } | S::ShowCatalogs { .. }
        | S::ShowDatabases { .. } | S::ShowProcessList { .. } | S::ShowSchemas { .. } | S::ShowCharset(_) | S::ShowObjects(_)
        | S::ShowTables { .. } | S::ShowViews { .. } | S::ShowCollation { .. } | S::Use(_) | S::CreateSchema { .. }
        | S::CreateDatabase { .. } | S::CreateFunction(_) | S::CreateTrigger(_) | S::DropTrigger(_) | S::CreateProcedure { .. }
        | S::CreateMacro { .. } | S::CreateStage { .. } | S::Assert { .. } | S::Grant(_) | S::Deny(_) | S::Revoke(_) | S::Kill { .. }
        | S::ExplainTable { .. } | S::Cache { .. } | S::UNCache { .. } | S::CreateSequence { .. } | S::CreateDomain(_)
        | S::UnlockTables | S::Unload { .. } | S::OptimizeTable { .. } | S::LoadData { .. } | S::RenameTable(_) | S::List(_)
        | S::Remove(_) | S::RaisError { .. } | S::Throw(_) | S::Print(_) | S::WaitFor(_) | S::Return(_) | S::ExportData(_)
        | S::CreateUser(_) | S::AlterUser(_) => Class::Refused,
    }
}

/// Fails unless the role of these settings may run the statement on this catalog.
///
/// # Errors
/// 42501 for what it may not reach; errors of names where a statement is none that could run.
pub(crate) fn check(
    statement: &Statement,
    catalog: &Arc<CatalogSnapshot>,
    settings: &Settings,
) -> Result<()> {
    let is_super = |oid: u32| catalog.role(oid).is_some_and(|role| role.superuser);
    // A superuser may everything, but a view's owner may not: where all views are superusers' there
    // is nothing to look at.
    if is_super(settings.current_role)
        && (class_of(statement) == Class::Refused
            || catalog.views().all(|view| is_super(view.owner.0)))
    {
        return Ok(());
    }
    check_as(statement, catalog, settings)
}

#[inline(never)]
fn check_as(
    statement: &Statement,
    catalog: &Arc<CatalogSnapshot>,
    settings: &Settings,
) -> Result<()> {
    let actor = catalog.actor(settings.current_role);
    if actor.roles.is_empty() {
        return Err(denied(format!("role \"{}\" does not exist any more", settings.current_user))
            .hint("Log in again, or RESET ROLE."));
    }
    let mut walk = Walk {
        catalog,
        settings,
        path: settings.effective_search_path(),
        actor,
        ctes: Vec::new(),
        views: 0,
        seen: BTreeSet::new(),
        policies: BTreeSet::new(),
    };
    walk.statement(statement)
}

/// What PostgreSQL says where planning the statement fails: it looks up which relations are meant
/// before anything else, and a schema that is closed to the role does not tell what is not in it,
/// either.
pub(crate) fn first_said(
    error: Error,
    statement: &Statement,
    catalog: &Arc<CatalogSnapshot>,
    settings: &Settings,
) -> Error {
    const OF_NAMES: &str = "42";
    if !error.code().0.starts_with(OF_NAMES) || error.code() == SqlState::SYNTAX_ERROR {
        return error;
    }
    let actor = catalog.actor(settings.current_role);
    let mut relations = InOrder::default();
    let _ = ast::Visit::visit(statement, &mut relations);
    for name in relations.0 {
        let parts: Vec<String> = name.0.iter().filter_map(|p| p.as_ident()).map(fold).collect();
        // A name alone passes over what is closed.
        let [.., schema, relation] = parts.as_slice() else { continue };
        let Some(known) = catalog.schema(schema) else {
            if tables::find(Some(schema.as_str()), relation).is_some() {
                continue;
            }
            return error;
        };
        let guarded = Guarded::schema(known);
        if !guarded.rights_of(&actor).has(Rights::USAGE) {
            return guarded.refused();
        }
        if catalog.resolve(Some(schema.as_str()), relation, &[]).is_none()
            && tables::find(Some(schema.as_str()), relation).is_none()
        {
            return error;
        }
    }
    error
}

/// The queries of a definition, which read as its maker: CREATE TABLE AS, SELECT INTO.
fn query_of_definition(statement: &Statement) -> Result<Option<Box<Query>>> {
    Ok(match statement {
        Statement::CreateTable(create) => create.query.clone(),
        _ => match definition::read(statement)? {
            Some(Definition::CreateTableAs(create) | Definition::CreateTableEmpty(create)) => {
                create.query.clone()
            }
            _ => None,
        },
    })
}

/// A query as a view has it, or as the session wrote it.
///
/// # Errors
/// 42601, 54001.
pub(crate) fn query_of(text: &str) -> Result<Query> {
    telesto_sql_parser::syntax::read_query(text)
        .map_err(|unread| unread.or_else(|error| Error::syntax(format!("syntax error: {error}"))))
}

/// A look at one statement.
pub(super) struct Walk<'a> {
    pub(super) catalog: &'a Arc<CatalogSnapshot>,
    pub(super) settings: &'a Settings,
    pub(super) path: Vec<String>,
    /// Whose rights count here: inside a view, its owner's.
    pub(super) actor: Actor,
    /// Names of WITH that are visible.
    pub(super) ctes: Vec<String>,
    /// How many views are around.
    pub(super) views: usize,
    /// The names of relations that were looked at, as written.
    pub(super) seen: BTreeSet<String>,
    /// Tables whose policies were looked at, and as whom.
    policies: BTreeSet<(u32, u32)>,
}

/// What a name in FROM means.
pub(super) enum Named {
    /// Part of the statement: WITH.
    Given,
    /// A system table, with its columns.
    System(&'static tables::SystemTable),
    /// A relation of the catalog.
    Found(Relation),
    /// Nothing: whoever plans the statement says so.
    Nothing,
}

impl Walk<'_> {
    fn statement(&mut self, statement: &Statement) -> Result<()> {
        match class_of(statement) {
            Class::Session => return Ok(()),
            Class::Definition => {
                if let Some(query) = query_of_definition(statement)? {
                    self.whole_query(&query)?;
                }
                return Ok(());
            }
            Class::Refused => {
                let text = statement.to_string();
                let words = text.split_whitespace().take(2).collect::<Vec<_>>().join(" ");
                return Err(denied(format!("permission denied to execute {words}"))
                    .hint("Only superusers may run statements of this kind."));
            }
            Class::Data => {}
        }
        match statement {
            Statement::Explain { statement, .. } => self.statement(statement),
            Statement::Declare { .. } => {
                match telesto_sql_parser::cursor::declared(statement)
                    .and_then(|d| d.for_query.as_ref())
                {
                    Some(query) => self.whole_query(query),
                    None => Ok(()),
                }
            }
            Statement::Query(query) => self.whole_query(query),
            other => {
                self.write(other, &Level::default())?;
                self.all_seen(|visitor| ast::Visit::visit(other, visitor))
            }
        }
    }

    fn whole_query(&mut self, query: &Query) -> Result<()> {
        self.query(query, &Level::default())?;
        self.all_seen(|visitor| ast::Visit::visit(query, visitor))
    }

    /// What the walk does not know is refused to all but superusers.
    pub(super) fn unknown(&self, error: Error) -> Result<()> {
        if self.actor.superuser { Ok(()) } else { Err(error) }
    }

    /// Fails when the parser knows a relation in the statement that was not looked at.
    fn all_seen(&self, visit: impl FnOnce(&mut Relations) -> ControlFlow<()>) -> Result<()> {
        let mut relations = Relations::default();
        let _ = visit(&mut relations);
        match relations.0.iter().find(|name| !self.seen.contains(*name)) {
            None => Ok(()),
            Some(name) => self.unknown(
                denied(format!("permission denied for relation {name}"))
                    .detail("It is named where the check of rights does not look.")
                    .hint("Name it in FROM, or as the target of the statement."),
            ),
        }
    }

    /// What a name means.
    pub(super) fn named(&mut self, name: &ObjectName) -> Result<Named> {
        self.seen.insert(name.to_string());
        let parts: Vec<String> = name.0.iter().filter_map(|p| p.as_ident()).map(fold).collect();
        let (schema, relation) = match parts.as_slice() {
            [relation] => (None, relation),
            [.., schema, relation] => (Some(schema.as_str()), relation),
            [] => return Err(Error::syntax("a table needs a name")),
        };
        if schema.is_none() && self.ctes.contains(relation) {
            return Ok(Named::Given);
        }
        let found = self.catalog.resolve(schema, relation, &self.path).cloned();
        let system = tables::find(schema, relation);
        if let Some(table) = system {
            self.may_read_system(table)?;
        }
        match (found, system) {
            // The executors do not agree on which comes first: then both are asked for.
            (Some(found), system) => {
                self.may_look_into(&found, schema)?;
                if let (Some(_), Relation::Table(table)) = (system, &found) {
                    Guarded::table(table).need(&self.actor, Rights::SELECT)?;
                }
                if let Relation::Table(table) = &found {
                    self.policies_of(table)?;
                }
                Ok(Named::Found(found))
            }
            (None, Some(table)) => Ok(Named::System(table)),
            (None, None) => Ok(Named::Nothing),
        }
    }

    /// What policies read is read with the rights of whom they are for: an owner could read through
    /// them else.
    fn policies_of(&mut self, table: &Arc<Table>) -> Result<()> {
        if !table.row_security.enabled
            || !row_security::applies(table, self.catalog, &self.actor)
            || !self.policies.insert((table.id.0, self.actor.oid))
        {
            return Ok(());
        }
        let (ctes, seen) = (std::mem::take(&mut self.ctes), std::mem::take(&mut self.seen));
        // As in a view, schemas that are closed are passed.
        self.views += 1;
        let expressions = row_security::expressions(table, &self.actor);
        let result = expressions.and_then(|all| {
            all.iter().try_for_each(|expr| {
                let mut level = Level::default();
                self.expressions(|visitor| ast::Visit::visit(expr, visitor), &mut level, 0)
            })
        });
        self.views -= 1;
        (self.ctes, self.seen) = (ctes, seen);
        result
    }

    /// Fails when the relation's schema is closed to the role.
    fn may_look_into(&self, relation: &Relation, named: Option<&str>) -> Result<()> {
        let (schema, name) = match relation {
            Relation::Table(o) => (o.schema, &o.name),
            Relation::View(o) => (o.schema, &o.name),
            Relation::Sequence(o) => (o.schema, &o.name),
            Relation::Index(table, index) => (table.schema, &index.name),
        };
        if is_temporary(schema) || self.views > 0 {
            return Ok(());
        }
        let Some(schema) = self.catalog.schema_by_oid(schema) else { return Ok(()) };
        let guarded = Guarded::schema(schema);
        if guarded.rights_of(&self.actor).has(Rights::USAGE) {
            return Ok(());
        }
        if named.is_some() {
            return Err(guarded.refused());
        }
        // The search passes over schemas that are closed.
        Err(Error::new(SqlState::UNDEFINED_TABLE, format!("relation \"{name}\" does not exist")))
    }

    /// Fails for system tables that hold secrets, or tell of the machines below.
    fn may_read_system(&self, table: &tables::SystemTable) -> Result<()> {
        const SECRET: &[&str] = &[
            "pg_authid",
            "pg_shadow",
            "pg_statistic",
            "pg_statistic_ext_data",
            "pg_largeobject",
            "pg_user_mapping",
            "pg_subscription",
            "pg_hba_file_rules",
            "pg_ident_file_mappings",
            "pg_file_settings",
            "pg_config",
            "pg_backend_memory_contexts",
            "pg_shmem_allocations",
        ];
        // Their rows are for whom they concern.
        const EVERYBODYS: &[&str] = &["telesto_pending", "telesto_decided"];
        let refused = if EVERYBODYS.contains(&table.name) {
            false
        } else if table.name.starts_with("telesto_") {
            !self.actor.acts_as(READ_ALL_STATS)
        } else {
            !self.actor.superuser && SECRET.contains(&table.name)
        };
        if !refused {
            return Ok(());
        }
        let error = denied(format!("permission denied for table {}", table.name));
        Err(if table.name.starts_with("telesto_") {
            error.hint("GRANT pg_monitor TO the role lets it see the state of the database.")
        } else {
            error
        })
    }
}

/// The relations that the parser knows in a statement, in its order.
#[derive(Default)]
struct InOrder(Vec<ObjectName>);

impl ast::Visitor for InOrder {
    type Break = ();

    fn pre_visit_relation(&mut self, relation: &ObjectName) -> ControlFlow<()> {
        self.0.push(relation.clone());
        ControlFlow::Continue(())
    }
}

/// The relations that the parser knows in a statement.
#[derive(Default)]
struct Relations(BTreeSet<String>);

impl ast::Visitor for Relations {
    type Break = ();

    fn pre_visit_relation(&mut self, relation: &ObjectName) -> ControlFlow<()> {
        self.0.insert(relation.to_string());
        ControlFlow::Continue(())
    }
}
