//! Row security: CREATE, ALTER and DROP POLICY, and what else a change of names would do to
//! policies.
//!
//! # Invariants
//! - A policy that is stored binds, and names relations and types with their schemas; its constants
//!   are the same for every reader.
//! - A policy keeps its meaning: what would make a name in it mean something else is refused.
//!
//! # Limits
//! Where PostgreSQL would follow a rename inside of a policy's subquery the policy is to be dropped
//! first. Roles of a policy are not told apart by DROP OWNED.

use std::ops::ControlFlow;

use super::Ddl;
use super::names::{fold, split, undefined_table};
use telesto_common::TableId;
use telesto_sql_catalog::policy::{Policy, PolicyCommand};
use telesto_sql_catalog::store::Object;
use telesto_sql_catalog::{Relation, Table};
use telesto_sql_parser::definition::RoleSpec;
use telesto_sql_parser::names::ident;
use telesto_sql_parser::sqlparser::ast::{
    AlterPolicy, AlterPolicyOperation, CreatePolicy, CreatePolicyCommand, CreatePolicyType,
    DropPolicy, Expr, Ident, ObjectName, Owner, Query, SetExpr, visit_expressions, visit_relations,
};
use telesto_sql_parser::stored::parse_stored;
use telesto_sql_parser::view_query::parts;
use telesto_sql_types::error::{Error, Result, SqlState};

/// PUBLIC among the roles of a policy.
const EVERYBODY: u32 = 0;

fn no_policy(name: &str, table: &Table) -> Error {
    Error::new(
        SqlState::UNDEFINED_OBJECT,
        format!("policy \"{name}\" for table \"{}\" does not exist", table.name),
    )
}

fn taken(name: &str, table: &Table) -> Error {
    Error::new(
        SqlState::DUPLICATE_OBJECT,
        format!("policy \"{name}\" for table \"{}\" already exists", table.name),
    )
}

/// An expression of a policy.
pub(super) struct PolicyQuery {
    /// The policy's table.
    pub(super) on: TableId,
    /// The policy's name.
    pub(super) policy: String,
    expr: Expr,
    /// A query of which it is the condition.
    pub(super) query: Query,
}

impl Ddl<'_> {
    /// The table a policy is on, to be changed by its owner.
    fn secured_table(&self, name: &ObjectName) -> Result<Table> {
        let found = self.find(name)?.ok_or_else(|| undefined_table(name))?;
        self.need_owner_of(&found)?;
        Ok((*self.table(name)?).clone())
    }

    fn policy_roles(&self, roles: Option<&[Owner]>) -> Result<Vec<u32>> {
        let Some(roles) = roles else { return Ok(vec![EVERYBODY]) };
        let mut out = Vec::new();
        for role in roles {
            let spec = match role {
                Owner::Ident(name) if name.quote_style.is_none() && fold(name) == "public" => {
                    RoleSpec::Public
                }
                Owner::Ident(name) => RoleSpec::Name(name.clone()),
                Owner::CurrentRole | Owner::CurrentUser => RoleSpec::CurrentUser,
                Owner::SessionUser => RoleSpec::SessionUser,
            };
            if spec == RoleSpec::Public {
                return Ok(vec![EVERYBODY]);
            }
            let oid = self.role_of(&spec)?.oid;
            if !out.contains(&oid) {
                out.push(oid);
            }
        }
        Ok(out)
    }

    /// The query of which a policy's expression is the condition.
    fn query_over_row(&self, table: &Table, called: &str, expr: &Expr) -> Result<Query> {
        let schema = self.catalog().schema_name(table.schema);
        let text =
            format!("SELECT 1 FROM {}.{} AS {}", ident(schema), ident(&table.name), ident(called));
        let mut query = telesto_sql_parser::syntax::read_query(&text).map_err(|unread| {
            unread.or_else(|error| Error::internal(format!("a query of a policy: {error}")))
        })?;
        if let SetExpr::Select(select) = &mut *query.body {
            select.selection = Some(expr.clone());
        }
        Ok(query)
    }

    /// The text of a policy's condition, with names that do not depend on a search path.
    async fn policy_text(&self, table: &Table, called: &str, expr: &Expr) -> Result<String> {
        let query = self.query_over_row(table, called, expr)?;
        self.may_name(&query)?;
        let pinned = self.pinned(query).await?;
        let pinned = self.settled_query(pinned).await?;
        // A condition that would be read by each reader's settings lets readers in: it is not kept
        // as it was written.
        self.view_columns(&pinned).await?;
        match *pinned.body {
            SetExpr::Select(select) => match select.selection {
                Some(expr) => Ok(expr.to_string()),
                None => Err(Error::internal("a policy without its condition")),
            },
            _ => Err(Error::internal("a query of a policy is no SELECT")),
        }
    }

    /// CREATE POLICY.
    pub(super) async fn create_policy(&mut self, create: &CreatePolicy) -> Result<()> {
        let command = match create.command {
            None | Some(CreatePolicyCommand::All) => PolicyCommand::All,
            Some(CreatePolicyCommand::Select) => PolicyCommand::Select,
            Some(CreatePolicyCommand::Insert) => PolicyCommand::Insert,
            Some(CreatePolicyCommand::Update) => PolicyCommand::Update,
            Some(CreatePolicyCommand::Delete) => PolicyCommand::Delete,
        };
        if matches!(command, PolicyCommand::Select | PolicyCommand::Delete)
            && create.with_check.is_some()
        {
            return Err(Error::syntax("WITH CHECK cannot be applied to SELECT or DELETE"));
        }
        if command == PolicyCommand::Insert && create.using.is_some() {
            return Err(Error::syntax("only WITH CHECK expression allowed for INSERT"));
        }
        let name = fold(&create.name);
        // PostgreSQL looks at the statement first, then at the roles, then at who owns the table;
        // at a DROP, whose table it is comes last.
        let roles = self.policy_roles(create.to.as_deref())?;
        let mut table = self.secured_table(&create.table_name)?;
        if table.row_security.policies.iter().any(|policy| policy.name == name) {
            return Err(taken(&name, &table));
        }
        let called = table.name.clone();
        let using = match &create.using {
            Some(expr) => Some(self.policy_text(&table, &called, expr).await?),
            None => None,
        };
        let check = match &create.with_check {
            Some(expr) => Some(self.policy_text(&table, &called, expr).await?),
            None => None,
        };
        let permissive = !matches!(create.policy_type, Some(CreatePolicyType::Restrictive));
        let oid = self.object_oid(table.schema);
        table.row_security.policies.push(Policy {
            oid,
            name,
            called,
            permissive,
            command,
            roles,
            using,
            check,
        });
        self.change.put(Object::Table(table));
        Ok(())
    }

    /// ALTER POLICY.
    pub(super) async fn alter_policy(&mut self, alter: &AlterPolicy) -> Result<()> {
        let roles = match &alter.operation {
            AlterPolicyOperation::Apply { to: Some(to), .. } => Some(self.policy_roles(Some(to))?),
            _ => None,
        };
        let mut table = self.secured_table(&alter.table_name)?;
        let name = fold(&alter.name);
        let at = table.row_security.policies.iter().position(|policy| policy.name == name);
        let at = at.ok_or_else(|| no_policy(&name, &table))?;
        let mut policy = table.row_security.policies[at].clone();
        match &alter.operation {
            AlterPolicyOperation::Rename { new_name } => {
                let new = fold(new_name);
                if table.row_security.policies.iter().any(|policy| policy.name == new) {
                    return Err(taken(&new, &table));
                }
                policy.name = new;
            }
            AlterPolicyOperation::Apply { using, with_check, .. } => {
                if let Some(roles) = roles {
                    policy.roles = roles;
                }
                if matches!(policy.command, PolicyCommand::Select | PolicyCommand::Delete)
                    && with_check.is_some()
                {
                    return Err(Error::syntax("only USING expression allowed for SELECT, DELETE"));
                }
                if policy.command == PolicyCommand::Insert && using.is_some() {
                    return Err(Error::syntax("only WITH CHECK expression allowed for INSERT"));
                }
                if (using.is_some() || with_check.is_some()) && policy.called != table.name {
                    return Err(Error::unsupported(
                        "ALTER POLICY of a policy made before the table was renamed",
                    )
                    .hint("DROP POLICY, then CREATE POLICY."));
                }
                if let Some(expr) = using {
                    policy.using = Some(self.policy_text(&table, &policy.called, expr).await?);
                }
                if let Some(expr) = with_check {
                    policy.check = Some(self.policy_text(&table, &policy.called, expr).await?);
                }
            }
        }
        table.row_security.policies[at] = policy;
        self.change.put(Object::Table(table));
        Ok(())
    }

    /// DROP POLICY.
    pub(super) fn drop_policy(&mut self, drop: &DropPolicy) -> Result<()> {
        if drop.if_exists && self.find_if_there(&drop.table_name)?.is_none() {
            let what = match self.missing_schema(&drop.table_name)? {
                Some(schema) => format!("schema \"{schema}\""),
                None => format!("relation \"{}\"", split(&drop.table_name)?.1),
            };
            self.context.notices.notice(format!("{what} does not exist, skipping"));
            return Ok(());
        }
        self.find(&drop.table_name)?.ok_or_else(|| undefined_table(&drop.table_name))?;
        let name = fold(&drop.name);
        {
            let table = self.table(&drop.table_name)?;
            if !table.row_security.policies.iter().any(|policy| policy.name == name) {
                let missing = no_policy(&name, &table);
                if !drop.if_exists {
                    return Err(missing);
                }
                self.context.notices.notice(format!(
                    "policy \"{name}\" for relation \"{}\" does not exist, skipping",
                    table.name
                ));
                return Ok(());
            }
        }
        let mut table = self.secured_table(&drop.table_name)?;
        table.row_security.policies.retain(|policy| policy.name != name);
        self.change.put(Object::Table(table));
        Ok(())
    }

    /// Policies, with their tables, that reach further than the row and name the relation.
    fn policies_reading(
        &self,
        relation: u32,
        within: &str,
        called: &str,
    ) -> Vec<(String, String, Vec<Expr>)> {
        let mut out = Vec::new();
        for table in self.catalog().tables() {
            for policy in &table.row_security.policies {
                let exprs = expressions(policy);
                let own = table.id.0 == relation && exprs.iter().any(has_relations);
                if own || exprs.iter().any(|expr| names_relation(expr, within, called)) {
                    out.push((policy.name.clone(), table.name.clone(), exprs));
                }
            }
        }
        out
    }

    /// Refuses to change a column's name, or to give one, where a policy's subquery could take it
    /// for another.
    ///
    /// # Errors
    /// 0A000.
    pub(super) fn policies_allow_name(&self, table: &Table, column: &str) -> Result<()> {
        let within = self.catalog().schema_name(table.schema).to_owned();
        for (policy, on, exprs) in self.policies_reading(table.id.0, &within, &table.name) {
            if exprs.iter().any(|expr| names_column(expr, column)) {
                return Err(keeps(&policy, &on, &format!("the name \"{column}\"")));
            }
        }
        Ok(())
    }

    /// The policies, with their tables, that use a column of a table.
    ///
    /// # Errors
    /// 2BP01 where that cannot be told.
    pub(super) async fn policies_using_column(
        &self,
        table: &Table,
        position: usize,
    ) -> Result<Vec<(TableId, String)>> {
        let column = &table.columns[position].name;
        let mut users: Vec<(TableId, String)> = Vec::new();
        for found in self.policies_over(table)? {
            // A condition over the row alone has no names but those of its columns.
            if !has_relations(&found.expr) && !names_column(&found.expr, column) {
                continue;
            }
            match self.query_uses_column(found.query, table, position).await {
                Some(true) => users.push((found.on, found.policy)),
                Some(false) => {}
                None => {
                    let on = self.catalog().table(found.on).map_or("", |on| on.name.as_str());
                    let what = format!("column {column} of table {}", table.name);
                    return Err(depends(&what, &found.policy, on));
                }
            }
        }
        users.dedup();
        Ok(users)
    }

    /// The expressions of the table's policies, and of others' that read it.
    ///
    /// # Errors
    /// XX000.
    pub(super) fn policies_over(&self, table: &Table) -> Result<Vec<PolicyQuery>> {
        let within = self.catalog().schema_name(table.schema);
        let mut out = Vec::new();
        for on in self.catalog().tables() {
            for policy in &on.row_security.policies {
                for expr in expressions(policy) {
                    if on.id == table.id || names_relation(&expr, within, &table.name) {
                        let query = self.query_over_row(on, &policy.called, &expr)?;
                        let policy = policy.name.clone();
                        out.push(PolicyQuery { on: on.id, policy, expr, query });
                    }
                }
            }
        }
        Ok(out)
    }

    /// What PostgreSQL calls a policy.
    pub(super) fn shown_policy(&self, on: TableId, policy: &str) -> String {
        let on = self.catalog().table(on);
        let on = on.map_or_else(String::new, |on| self.shown_name(on.schema, &on.name));
        format!("policy {policy} on table {on}")
    }

    /// Refuses to rename or move a relation that a policy of another table reads.
    ///
    /// # Errors
    /// 2BP01.
    pub(super) fn policies_allow_change(&self, relation: &Relation, gone: &[u32]) -> Result<()> {
        match self.policies_of_others(relation, gone).first() {
            Some((table, policy)) => {
                let on = self.catalog().table(*table).map_or("", |table| table.name.as_str());
                let what = match relation {
                    Relation::Table(o) => &o.name,
                    Relation::View(o) => &o.name,
                    Relation::Sequence(o) => &o.name,
                    Relation::Index(..) => return Ok(()),
                };
                Err(depends(&format!("relation {what}"), policy, on))
            }
            None => Ok(()),
        }
    }

    /// Policies of other tables than those in `gone` that read the relation, with their tables.
    pub(super) fn policies_of_others(
        &self,
        relation: &Relation,
        gone: &[u32],
    ) -> Vec<(TableId, String)> {
        let (oid, schema, name) = match relation {
            Relation::Table(o) => (o.id.0, o.schema, &o.name),
            Relation::View(o) => (o.oid, o.schema, &o.name),
            Relation::Sequence(o) => (o.oid, o.schema, &o.name),
            Relation::Index(..) => return Vec::new(),
        };
        let within = self.catalog().schema_name(schema);
        let others = self.catalog().tables().filter(|t| t.id.0 != oid && !gone.contains(&t.id.0));
        let reading = others.flat_map(|table| {
            let policies = table.row_security.policies.iter().filter(|policy| {
                expressions(policy).iter().any(|expr| names_relation(expr, within, name))
            });
            policies.map(|policy| (table.id, policy.name.clone()))
        });
        reading.collect()
    }

    /// Refuses to rename a schema that a policy names.
    ///
    /// # Errors
    /// 0A000.
    pub(super) fn policies_allow_schema(&self, schema: &str) -> Result<()> {
        for table in self.catalog().tables() {
            for policy in &table.row_security.policies {
                let named = expressions(policy).iter().any(|expr| {
                    visit_relations(expr, |name| match parts(name).as_slice() {
                        [within, _] if within == schema => ControlFlow::Break(()),
                        _ => ControlFlow::Continue(()),
                    })
                    .is_break()
                });
                if named {
                    return Err(keeps(&policy.name, &table.name, &format!("schema \"{schema}\"")));
                }
            }
        }
        Ok(())
    }

    /// Whether a role is named by a policy.
    pub(super) fn policy_of_role(&self, role: u32) -> Option<String> {
        self.catalog().tables().find_map(|table| {
            let policy =
                table.row_security.policies.iter().find(|policy| policy.roles.contains(&role))?;
            Some(format!("target of policy {} on table {}", policy.name, table.name))
        })
    }
}

fn keeps(policy: &str, on: &str, what: &str) -> Error {
    Error::unsupported(format!("changing {what}, which policy \"{policy}\" on \"{on}\" uses"))
        .hint("DROP POLICY, make the change, and CREATE POLICY again.")
}

fn depends(what: &str, policy: &str, on: &str) -> Error {
    Error::new(
        SqlState::DEPENDENT_OBJECTS_STILL_EXIST,
        format!("cannot change or drop {what} because other objects depend on it"),
    )
    .detail(format!("policy {policy} on table {on} depends on {what}"))
    .hint("DROP POLICY first.")
}

/// The expressions of a policy. One that does not parse names nothing here, and fails when it is
/// used.
fn expressions(policy: &Policy) -> Vec<Expr> {
    let texts = policy.using.iter().chain(&policy.check);
    texts.filter_map(|text| parse_stored(text).ok()).collect()
}

pub(super) fn has_relations(expr: &Expr) -> bool {
    visit_relations(expr, |_| ControlFlow::Break(())).is_break()
}

fn names_relation(expr: &Expr, within: &str, called: &str) -> bool {
    visit_relations(expr, |name| {
        if telesto_sql_parser::view_query::names(name, within, called) {
            ControlFlow::Break(())
        } else {
            ControlFlow::Continue(())
        }
    })
    .is_break()
}

fn names_column(expr: &Expr, column: &str) -> bool {
    let is = |name: &Ident| fold(name) == column;
    visit_expressions(expr, |inner| {
        let named = match inner {
            Expr::Identifier(name) => is(name),
            Expr::CompoundIdentifier(names) => names.iter().any(is),
            _ => false,
        };
        if named { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    })
    .is_break()
}
