//! Which functions are not for everybody, and whom they are for.
//!
//! # Invariants
//! The role whose rights count is asked, each time a function is called; of what is of the present,
//! not by the rights of the past.
//!
//! # On failure
//! 42501; 0A000 in a transaction AS OF SYSTEM TIME.

use telesto_sql_catalog::rights::{READ_ALL_STATS, SIGNAL_BACKEND, denied};
use telesto_sql_catalog::{Actor, Guarded, Rights};
use telesto_sql_types::error::{Error, Result};

use crate::context::{Call, check_present};

/// Fails in a transaction of the past, whose catalog has the rights of then, for what is done now
/// or tells of the present.
pub(super) fn present(function: &str, call: &Call<'_>) -> Result<()> {
    match call.context.exec {
        Some(exec) => check_present(&format_args!("function {function}"), exec),
        None => Ok(()),
    }
}

fn actor(call: &Call<'_>) -> Actor {
    call.context.catalog.actor(call.context.settings.current_role)
}

/// Fails unless the role has one of these rights on the sequence; what is no sequence is told by
/// who looks it up.
pub(super) fn sequence(oid: u32, rights: &[Rights], call: &Call<'_>) -> Result<()> {
    let Some(sequence) = call.context.catalog.sequence(oid) else { return Ok(()) };
    let guarded = Guarded::sequence(sequence);
    let held = guarded.rights_of(&actor(call));
    if rights.iter().any(|right| held.has(*right)) { Ok(()) } else { Err(guarded.refused()) }
}

/// Fails unless the role may read the table.
pub(super) fn table(oid: u32, call: &Call<'_>) -> Result<()> {
    let catalog = call.context.catalog;
    match catalog.tables().find(|table| table.id.0 == oid) {
        Some(table) => Guarded::table(table).need(&actor(call), Rights::SELECT),
        None => Ok(()),
    }
}

/// Fails unless the role sees what the server does.
pub(super) fn statistics(function: &str, call: &Call<'_>) -> Result<()> {
    present(function, call)?;
    if actor(call).acts_as(READ_ALL_STATS) {
        return Ok(());
    }
    Err(refused(function)
        .hint("GRANT pg_monitor TO the role lets it see the state of the database."))
}

/// Fails unless the session is a superuser's, whatever SET ROLE says, and the role that counts is
/// one, too.
pub(super) fn superuser(function: &str, call: &Call<'_>) -> Result<()> {
    present(function, call)?;
    let catalog = call.context.catalog;
    let settings = call.context.settings;
    let is_super = |oid: u32| catalog.role(oid).is_some_and(|role| role.superuser);
    if is_super(settings.session_role) && is_super(settings.current_role) {
        return Ok(());
    }
    Err(refused(function).hint("Connect as a superuser (CREATE ROLE … SUPERUSER LOGIN makes one)."))
}

/// Fails unless the role may stop what a session of `owner` does.
pub(super) fn signal(owner: u32, what: &str, call: &Call<'_>) -> Result<()> {
    let catalog = call.context.catalog;
    let actor = actor(call);
    if catalog.role(owner).is_some_and(|role| role.superuser) && !actor.superuser {
        return Err(denied(format!("must be a superuser to {what} superuser process")));
    }
    if actor.acts_as(owner) || actor.acts_as(SIGNAL_BACKEND) {
        return Ok(());
    }
    let done = if what == "cancel" { "canceled" } else { "terminated" };
    Err(denied(format!(
        "must be a member of the role whose {} is being {done} or member of pg_signal_backend",
        if what == "cancel" { "query" } else { "process" }
    )))
}

fn refused(function: &str) -> Error {
    denied(format!("permission denied for function {function}"))
}
