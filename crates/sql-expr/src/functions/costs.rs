//! Functions of costs: statistics begun anew, spend caps.
//!
//! # Invariants
//! All of them are for superusers: the session's role and the one whose rights count have to be.
//!
//! # On failure
//! 42501 for others, 22023 for what is no cap.

use telesto_meter::Dollars;
use telesto_meter::caps::{Cap, Mode, Per, Subject};

use super::guards;
use crate::context::{Call, Request};
use crate::fault;
use crate::registry::{Function, function};
use crate::ty::Tag::{Int4, Int8, Numeric, Oid, Text, Void};
use crate::value::{i64_of, str_of, text};
use telesto_sql_types::Datum;
use telesto_sql_types::error::Result;

/// The functions of this module.
pub const TABLE: &[Function] = &[
    function("pg_stat_statements_reset", &[], Void, |_, c| reset(0, 0, c)).volatile(),
    function("pg_stat_statements_reset", &[Oid, Oid, Int8], Void, |a, c| {
        let role = match a[0] {
            Datum::Oid(role) => role,
            _ => 0,
        };
        reset(role, i64_of(&a[2])?, c)
    })
    .volatile(),
    function("telesto_cap_set", &[Text, Text, Text, Numeric, Text, Text], Void, |a, c| {
        cap_set(a, None, c)
    })
    .waiting(),
    function("telesto_cap_set", &[Text, Text, Text, Numeric, Text, Text, Int4], Void, |a, c| {
        cap_set(&a[..6], Some(i64_of(&a[6])?), c)
    })
    .waiting(),
    function("telesto_cap_drop", &[Text], Void, |a, c| {
        guards::superuser("telesto_cap_drop", c)?;
        c.context.request(Request::DropCap(str_of(&a[0])?.to_owned()))
    })
    .waiting(),
];

/// As in PostgreSQL's extension: 0 means any. There is one database.
fn reset(role: u32, query_id: i64, call: &Call<'_>) -> Result<Datum> {
    guards::superuser("pg_stat_statements_reset", call)?;
    let exec = call.context.execution()?;
    exec.reset_statements((role != 0).then_some(role), (query_id != 0).then_some(query_id));
    Ok(text(""))
}

/// `telesto_cap_set(name, kind of subject, subject, dollars, per, mode [, reserve percent])` Whom a
/// cap limits, by the name that its statements go by. One that is nobody's would limit nothing.
fn known(subject: Subject, call: &Call<'_>) -> Result<Subject> {
    let missing = match &subject {
        Subject::Database(name) if name == "postgres" => {
            return Ok(Subject::Database(call.context.catalog.database_name.clone()));
        }
        Subject::Database(name) => {
            (*name != call.context.catalog.database_name).then_some(("3D000", "database", name))
        }
        Subject::Role(name) => {
            let there = call.context.catalog.roles().any(|role| role.name == *name);
            (!there).then_some(("42704", "role", name))
        }
        _ => None,
    };
    match missing {
        None => Ok(subject),
        Some((code, kind, name)) => {
            Err(fault::error(code, format!("{kind} \"{name}\" does not exist"))
                .hint("A spend cap limits what is there: SELECT rolname FROM pg_roles.".to_owned()))
        }
    }
}

fn cap_set(args: &[Datum], reserve: Option<i64>, call: &Call<'_>) -> Result<Datum> {
    guards::superuser("telesto_cap_set", call)?;
    let wrong = |what: String, hint: &str| fault::error("22023", what).hint(hint.to_owned());
    let name = str_of(&args[0])?;
    if name.is_empty() {
        return Err(wrong("a spend cap needs a name".to_owned(), "Name it after whom it limits."));
    }
    let kind = str_of(&args[1])?;
    let subject = Subject::named(kind, str_of(&args[2])?).ok_or_else(|| {
        wrong(
            format!("there is no spend cap on a \"{kind}\""),
            "Kinds are: database, role, application, statement.",
        )
    })?;
    let Datum::Numeric(dollars) = &args[3] else { return Err(fault::kind("a number of dollars")) };
    let limit = Dollars::from_f64(dollars.to_f64());
    let limit_nanos = u64::try_from(limit.0 / 1_000_000_000).unwrap_or(u64::MAX);
    if !dollars.is_finite() || dollars.signum() == Some(-1) || limit_nanos > 1 << 60 {
        return Err(wrong(
            format!("a spend cap of {dollars} dollars is out of range"),
            "Give dollars from 0 to a billion; 0 refuses everything that costs anything.",
        ));
    }
    let per = str_of(&args[4])?;
    let per = Per::named(per).ok_or_else(|| {
        wrong(format!("there is no spend cap per \"{per}\""), "Give one of: hour, day, month.")
    })?;
    let mode = str_of(&args[5])?;
    let mode = Mode::named(mode).ok_or_else(|| {
        wrong(format!("a spend cap cannot \"{mode}\""), "Give one of: warn, enforce.")
    })?;
    let reserve = match (&subject, reserve) {
        (Subject::Database(_), None) => 10,
        (_, None) => 0,
        (_, Some(percent @ 0..=90)) => u8::try_from(percent).unwrap_or(0),
        (_, Some(percent)) => {
            return Err(wrong(
                format!("a reserve of {percent} percent is out of range"),
                "Give 0 to 90.",
            ));
        }
    };
    let subject = known(subject, call)?;
    call.context.request(Request::SetCap(Cap {
        oid: 0,
        name: name.to_owned(),
        subject,
        per,
        mode,
        limit_nanos,
        reserve_percent: reserve,
    }))
}
