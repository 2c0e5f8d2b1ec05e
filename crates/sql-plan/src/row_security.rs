//! Row security: whether it is on for a reader, and the conditions that its policies make.
//!
//! # Invariants
//! - A table without it costs one look at a flag of the catalog.
//! - Without a permissive policy no row passes. Of the permissive ones one must hold, of the
//!   restrictive ones each; NULL does not hold.
//! - Rows are hidden by a filter that runs before anything of the user's that may fail: where an
//!   executor cannot say so, it does not take the table.
//!
//! # On failure
//! 42501 where `row_security` is off and a policy would hide rows.

use std::sync::Arc;

use telesto_sql_catalog::policy::{Policy, PolicyCommand};
use telesto_sql_catalog::{Actor, CatalogSnapshot, Table};
use telesto_sql_expr::settings::Settings;
use telesto_sql_parser::sqlparser::ast::{BinaryOperator, Expr, Value};
use telesto_sql_parser::stored::parse_stored;
use telesto_sql_types::error::{Error, Result, SqlState};

/// Name of a setting that no client can set: it has no NUL to send.
const WITHOUT: &str = "\0without_policies";

/// Settings under which no policy hides rows: for queries of the engine's own that check a
/// constraint.
#[must_use]
pub fn without(settings: &Arc<Settings>) -> Arc<Settings> {
    let mut settings = Arc::clone(settings);
    Arc::make_mut(&mut settings).others.insert(WITHOUT.to_owned(), String::new());
    settings
}

/// What a statement does with the rows it finds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Finding {
    /// It reads them.
    Read,
    /// It locks them.
    Lock,
    /// It updates them; whether it reads their columns, too.
    Update(bool),
    /// It deletes them; whether it reads their columns, too.
    Delete(bool),
}

impl Finding {
    /// A letter for it.
    #[must_use]
    pub fn letter(self) -> char {
        match self {
            Self::Read => 'r',
            Self::Lock => 'l',
            Self::Update(false) => 'u',
            Self::Update(true) => 'U',
            Self::Delete(false) => 'd',
            Self::Delete(true) => 'D',
        }
    }

    /// What a letter stands for; in doubt what hides most.
    #[must_use]
    pub fn of_letter(letter: char) -> Self {
        match letter {
            'u' => Self::Update(false),
            'U' => Self::Update(true),
            'd' => Self::Delete(false),
            'D' => Self::Delete(true),
            'l' => Self::Lock,
            _ => Self::Read,
        }
    }
}

/// A condition that a written row must fulfil.
#[derive(Clone, Debug)]
pub struct RowCheck {
    /// The policy to be named; none where several make the condition.
    pub policy: Option<String>,
    /// What its expression calls the table.
    pub called: String,
    /// The condition.
    pub condition: Expr,
}

/// Conditions of one table, each over the table as it is called.
pub type Conditions = Vec<(String, Expr)>;

/// Whether policies hide rows of the table from the role.
///
/// # Errors
/// 42501 when they would and `row_security` is off.
pub fn is_on(
    table: &Table,
    catalog: &CatalogSnapshot,
    settings: &Settings,
    reader: u32,
) -> Result<bool> {
    if !table.row_security.enabled || settings.others.contains_key(WITHOUT) {
        return Ok(false);
    }
    let actor = catalog.actor(reader);
    if !applies(table, catalog, &actor) {
        return Ok(false);
    }
    if settings.others.get("row_security").is_some_and(|value| is_off(value)) {
        let error = Error::new(
            SqlState::INSUFFICIENT_PRIVILEGE,
            format!(
                "query would be affected by row-level security policy for table \"{}\"",
                table.name
            ),
        );
        return Err(match actor.owns(table.owner) {
            true => error.hint(
                "To disable the policy for the table's owner, use ALTER TABLE NO FORCE ROW LEVEL SECURITY.",
            ),
            false => error.hint("SET row_security = on reads the rows that the policies show."),
        });
    }
    Ok(true)
}

/// Whether a role's statements are subject to the table's policies, whatever its settings.
#[must_use]
pub fn applies(table: &Table, catalog: &CatalogSnapshot, actor: &Actor) -> bool {
    if !table.row_security.enabled || actor.superuser {
        return false;
    }
    if catalog.role(actor.oid).is_some_and(|role| role.bypass_rls) {
        return false;
    }
    table.row_security.forced || !actor.owns(table.owner)
}

fn is_off(value: &str) -> bool {
    matches!(value.to_ascii_lowercase().as_str(), "off" | "false" | "no" | "0" | "f" | "n" | "of")
}

/// The policies that concern a command and a role: permissive ones, restrictive ones.
fn of<'t>(table: &'t Table, actor: &Actor, command: PolicyCommand) -> [Vec<&'t Policy>; 2] {
    let concerned = |policy: &&Policy| {
        (policy.command == PolicyCommand::All || policy.command == command)
            && policy.roles.iter().any(|role| *role == 0 || actor.roles.contains(role))
    };
    let mut all: Vec<&Policy> = table.row_security.policies.iter().filter(concerned).collect();
    all.sort_by(|a, b| a.name.cmp(&b.name));
    let (permissive, restrictive) = all.into_iter().partition(|policy| policy.permissive);
    [permissive, restrictive]
}

fn parsed(text: Option<&String>) -> Result<Option<Expr>> {
    text.map(|text| parse_stored(text).map(|expr| Expr::Nested(Box::new(expr)))).transpose()
}

fn constant(value: bool) -> Expr {
    Expr::value(Value::Boolean(value))
}

fn or(left: Expr, right: Expr) -> Expr {
    Expr::Nested(Box::new(Expr::BinaryOp {
        left: Box::new(left),
        op: BinaryOperator::Or,
        right: Box::new(right),
    }))
}

/// The conditions under which the role finds rows: each must hold.
///
/// # Errors
/// XX001 for a stored expression that does not parse.
pub fn conditions(table: &Table, actor: &Actor, finding: Finding) -> Result<Conditions> {
    let (command, reads) = match finding {
        Finding::Read => (PolicyCommand::Select, false),
        Finding::Lock => (PolicyCommand::Update, true),
        Finding::Update(reads) => (PolicyCommand::Update, reads),
        Finding::Delete(reads) => (PolicyCommand::Delete, reads),
    };
    let mut out = Vec::new();
    add(table, actor, command, &mut out)?;
    if reads {
        add(table, actor, PolicyCommand::Select, &mut out)?;
    }
    Ok(out)
}

fn add(table: &Table, actor: &Actor, command: PolicyCommand, out: &mut Conditions) -> Result<()> {
    let [permissive, restrictive] = of(table, actor, command);
    for policy in restrictive {
        if let Some(expr) = parsed(policy.using.as_ref())? {
            out.push((policy.called.clone(), expr));
        }
    }
    // Policies made before and after a rename call the table differently: a condition is over one
    // name.
    let mut any: Vec<(String, Expr)> = Vec::new();
    for policy in permissive {
        // One without USING shows nothing.
        if let Some(expr) = parsed(policy.using.as_ref())? {
            any.push((policy.called.clone(), expr));
        }
    }
    out.push(together(any)?.unwrap_or_else(|| (table.name.clone(), constant(false))));
    Ok(())
}

/// One condition of several of which one must hold.
fn together(any: Vec<(String, Expr)>) -> Result<Option<(String, Expr)>> {
    let mut all: Option<(String, Expr)> = None;
    for (called, expr) in any {
        all = Some(match all {
            None => (called, expr),
            Some((known, before)) if known == called => (known, or(before, expr)),
            Some(_) => {
                return Err(Error::unsupported(
                    "row security with policies made before and after the table was renamed",
                )
                .hint("DROP POLICY and CREATE POLICY again those made before."));
            }
        });
    }
    Ok(all)
}

/// What new rows of an INSERT must fulfil; `reads`: the statement gives them back, or looks for
/// others like them.
///
/// # Errors
/// As [`conditions`].
pub fn insert_checks(table: &Table, actor: &Actor, reads: bool) -> Result<Vec<RowCheck>> {
    checks(table, actor, PolicyCommand::Insert, reads)
}

/// What new rows of an UPDATE must fulfil; `reads`: the statement reads the table's columns.
///
/// # Errors
/// As [`conditions`].
pub fn update_checks(table: &Table, actor: &Actor, reads: bool) -> Result<Vec<RowCheck>> {
    checks(table, actor, PolicyCommand::Update, reads)
}

/// What a row that is there must fulfil for ON CONFLICT DO UPDATE and MERGE, which find it in
/// another way than by the policies of `command`: it may be read, and updated or deleted.
///
/// # Errors
/// As [`conditions`].
pub fn found_checks(table: &Table, actor: &Actor, command: PolicyCommand) -> Result<Vec<RowCheck>> {
    let mut out = Vec::new();
    add_checks(table, actor, command, true, &mut out)?;
    add_checks(table, actor, PolicyCommand::Select, true, &mut out)?;
    Ok(out)
}

/// What a check judges.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Judged {
    /// A new row, or what becomes of one.
    #[default]
    New,
    /// The row that is there where a new one was to go.
    InTheWay,
    /// A row that MERGE has matched.
    Target,
}

fn checks(
    table: &Table,
    actor: &Actor,
    command: PolicyCommand,
    reads: bool,
) -> Result<Vec<RowCheck>> {
    let mut out = Vec::new();
    add_checks(table, actor, command, false, &mut out)?;
    if reads {
        add_checks(table, actor, PolicyCommand::Select, true, &mut out)?;
    }
    Ok(out)
}

fn add_checks(
    table: &Table,
    actor: &Actor,
    command: PolicyCommand,
    using: bool,
    out: &mut Vec<RowCheck>,
) -> Result<()> {
    let [permissive, restrictive] = of(table, actor, command);
    let text = |policy: &Policy| match (&policy.check, using) {
        (Some(check), false) => Some(check.clone()),
        _ => policy.using.clone(),
    };
    let mut any = Vec::new();
    for policy in permissive {
        if let Some(expr) = parsed(text(policy).as_ref())? {
            any.push((policy.called.clone(), expr));
        }
    }
    let (called, condition) =
        together(any)?.unwrap_or_else(|| (table.name.clone(), constant(false)));
    out.push(RowCheck { policy: None, called, condition });
    for policy in restrictive {
        if let Some(condition) = parsed(text(policy).as_ref())? {
            let (policy, called) = (Some(policy.name.clone()), policy.called.clone());
            out.push(RowCheck { policy, called, condition });
        }
    }
    Ok(())
}

/// 42501 for a row that a check refuses.
#[must_use]
pub fn refused(table: &str, policy: Option<&str>, judged: Judged) -> Error {
    let policy = policy.map(|name| format!(" \"{name}\"")).unwrap_or_default();
    let (row, using) = match judged {
        Judged::New => ("new", ""),
        Judged::InTheWay => ("new", " (USING expression)"),
        Judged::Target => ("target", " (USING expression)"),
    };
    Error::new(
        SqlState::INSUFFICIENT_PRIVILEGE,
        format!(
            "{row} row violates row-level security policy{policy}{using} for table \"{table}\""
        ),
    )
}

/// Every expression of the policies that a statement of this role may run, for the check of what
/// they read.
///
/// # Errors
/// As [`conditions`].
pub fn expressions(table: &Table, actor: &Actor) -> Result<Vec<Expr>> {
    let mut out = Vec::new();
    for policy in &table.row_security.policies {
        if policy.roles.iter().any(|role| *role == 0 || actor.roles.contains(role)) {
            out.extend(parsed(policy.using.as_ref())?);
            out.extend(parsed(policy.check.as_ref())?);
        }
    }
    Ok(out)
}
