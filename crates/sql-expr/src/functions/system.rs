//! Session information, identifiers, sequences, transactions.
//!
//! # Limits
//! What `set_config` sets is seen by the next statement.

use std::time::Duration;

use telesto_common::TxnId;
use telesto_txn::LogKind;

use crate::cast::reg_input;
use crate::context::{Call, Request};
use crate::execution::Execution;
use crate::fault;
use crate::functions::guards;
use crate::levels::level_name;
use crate::registry::{Function, Returns, function, function_returning};
use crate::settings::{BACKEND_PID, Settings};
use crate::ty::Tag::{
    Any, Bool, Float8, Int4, Int8, Json, Name, Oid, Reg, RegNamespace, RegProc, RegProcedure,
    RegRole, RegType, Text, Uuid, Void,
};
use crate::value::{bool_datum, bool_of, i64_of, str_of, text, text_array};
use telesto_sql_catalog::Rights;
use telesto_sql_types::error::{Result, SqlState};
use telesto_sql_types::identifier::quote_ident;
use telesto_sql_types::{Datum, SqlType};

/// The functions of this module.
pub const TABLE: &[Function] = &[
    function("version", &[], Text, |_, _| Ok(text(version()))).stable(),
    function("telesto_version", &[], Text, |_, _| Ok(text(env!("CARGO_PKG_VERSION")))),
    function("current_user", &[], Name, |_, c| Ok(text(c.context.settings.current_user.as_str())))
        .stable(),
    function("user", &[], Name, |_, c| Ok(text(c.context.settings.current_user.as_str()))).stable(),
    function("current_role", &[], Name, |_, c| Ok(text(c.context.settings.current_user.as_str())))
        .stable(),
    function("session_user", &[], Name, |_, c| Ok(text(c.context.settings.session_user.as_str())))
        .stable(),
    function("current_database", &[], Name, |_, c| Ok(text(c.context.settings.database.as_str())))
        .stable(),
    function("current_catalog", &[], Name, |_, c| Ok(text(c.context.settings.database.as_str())))
        .stable(),
    function("current_schema", &[], Name, |_, c| {
        Ok(schemas(c).into_iter().next().map_or(Datum::Null, text))
    })
    .stable(),
    function_returning("current_schemas", &[Bool], Returns::ArrayOf(Name), |a, c| {
        let implicit = bool_of(&a[0])?.then(|| "pg_catalog".to_owned());
        Ok(text_array(implicit.into_iter().chain(schemas(c)).map(Some)))
    })
    .stable(),
    function("pg_typeof", &[Any], RegType, |_, c| {
        Ok(Datum::Oid(c.args.first().map_or(0, |ty| ty.without_modifier().oid())))
    })
    .lax()
    .stable(),
    function("gen_random_uuid", &[], Uuid, |_, c| random_uuid(c)).volatile(),
    function("uuid_generate_v4", &[], Uuid, |_, c| random_uuid(c)).volatile(),
    function("nextval", &[Reg], Int8, |a, c| {
        let oid = oid_of(&a[0])?;
        guards::sequence(oid, &[Rights::USAGE, Rights::UPDATE], c)?;
        c.context.request(Request::NextValue(oid))
    })
    .waiting(),
    function("currval", &[Reg], Int8, |a, c| {
        let oid = oid_of(&a[0])?;
        guards::sequence(oid, &[Rights::SELECT, Rights::USAGE], c)?;
        Ok(Datum::Int8(c.context.execution()?.sequences().current(oid)?))
    })
    .volatile(),
    function("lastval", &[], Int8, |_, c| {
        if let Some(oid) = c.context.execution()?.sequences().last_used() {
            guards::sequence(oid, &[Rights::SELECT, Rights::USAGE], c)?;
        }
        Ok(Datum::Int8(c.context.execution()?.sequences().last()?))
    })
    .volatile(),
    function("setval", &[Reg, Int8], Int8, |a, c| {
        let oid = oid_of(&a[0])?;
        guards::sequence(oid, &[Rights::UPDATE], c)?;
        c.context.request(Request::SetValue(oid, i64_of(&a[1])?, true))
    })
    .waiting(),
    function("setval", &[Reg, Int8, Bool], Int8, |a, c| {
        let oid = oid_of(&a[0])?;
        guards::sequence(oid, &[Rights::UPDATE], c)?;
        c.context.request(Request::SetValue(oid, i64_of(&a[1])?, bool_of(&a[2])?))
    })
    .waiting(),
    function("telesto_txn_id", &[], Text, |_, c| {
        Ok(text(c.context.execution()?.transaction_id().to_string()))
    })
    .stable(),
    function("telesto_txn_status", &[Text], Text, |a, c| {
        let id: TxnId = str_of(&a[0])?
            .parse()
            .map_err(|e: telesto_common::Error| fault::error("22P02", e.to_string()))?;
        c.context.request(Request::Outcome(id))
    })
    .waiting(),
    function("telesto_bucket_usage", &[], Json, |_, c| bucket_usage(c)).volatile(),
    function("telesto_check_table", &[Reg], Int8, |a, c| {
        let oid = oid_of(&a[0])?;
        guards::table(oid, c)?;
        c.context.request(Request::CheckTable(oid))
    })
    .waiting(),
    function("telesto_log_switch", &[Text], Text, |a, c| log_switch(str_of(&a[0])?, c)).waiting(),
    function("telesto_migrate", &[Text], Text, |a, c| {
        c.context.request(Request::Migrate(str_of(&a[0])?.to_owned()))
    })
    .waiting(),
    function("pg_sleep", &[Float8], Void, |a, c| sleep(&a[0], c)).waiting(),
    function("txid_current", &[], Int8, |_, c| txid(c)).stable(),
    function("pg_current_xact_id", &[], Int8, |_, c| txid(c)).stable(),
    function("pg_backend_pid", &[], Int4, |_, c| Ok(Datum::Int4(backend_pid(c)))).stable(),
    function("pg_cancel_backend", &[Int4], Bool, |a, c| {
        signal(&a[0], "cancel", c, |exec, pid| exec.cancel_backend(pid))
    })
    .waiting(),
    function("pg_terminate_backend", &[Int4], Bool, |a, c| {
        signal(&a[0], "terminate", c, |exec, pid| exec.terminate_backend(pid))
    })
    .waiting(),
    function("pg_is_in_recovery", &[], Bool, |_, _| Ok(bool_datum(false))).stable(),
    function("pg_indexam_has_property", &[Oid, Text], Bool, |a, _| {
        // Of btree, the one access method of indexes.
        let known = ["can_order", "can_unique", "can_multi_col", "can_exclude", "can_include"];
        let btree = a[0] == Datum::Oid(telesto_sql_catalog::builtin::BTREE);
        Ok(if btree && known.contains(&str_of(&a[1])?) { Datum::Bool(true) } else { Datum::Null })
    }),
    function("pg_stat_get_numscans", &[Oid], Int8, |_, _| Ok(Datum::Null)),
    function("pg_get_serial_sequence", &[Text, Text], Text, serial_sequence).stable(),
    function("current_setting", &[Text], Text, |a, c| setting(str_of(&a[0])?, false, c)).stable(),
    function("current_setting", &[Text, Bool], Text, |a, c| {
        setting(str_of(&a[0])?, bool_of(&a[1])?, c)
    })
    .stable(),
    function("pg_notify", &[Text, Text], Void, |a, c| {
        let text_of = |value: &Datum| match value {
            Datum::Null => Ok(String::new()),
            value => str_of(value).map(str::to_owned),
        };
        c.context.execution()?.notify(&text_of(&a[0])?, &text_of(&a[1])?)?;
        Ok(text(""))
    })
    .lax()
    .volatile(),
    function("pg_notification_queue_usage", &[], Float8, |_, c| {
        Ok(Datum::Float8(c.context.execution()?.notify_queue_usage()))
    })
    .volatile(),
    function("set_config", &[Text, Text, Bool], Text, set_config).lax().volatile(),
    function("to_regclass", &[Text], Reg, to_reg).stable(),
    function("to_regtype", &[Text], RegType, to_reg).stable(),
    function("to_regnamespace", &[Text], RegNamespace, to_reg).stable(),
    function("to_regrole", &[Text], RegRole, to_reg).stable(),
    function("to_regproc", &[Text], RegProc, to_reg).stable(),
    function("to_regprocedure", &[Text], RegProcedure, to_reg).stable(),
    function("pg_client_encoding", &[], Name, |_, _| Ok(text("UTF8"))).stable(),
    function("inet_server_port", &[], Int4, |_, _| Ok(Datum::Null)).stable(),
];

/// `version()`: drivers look for the number after the first word.
#[must_use]
pub fn version() -> String {
    format!("PostgreSQL 15.0 (Telesto {})", env!("CARGO_PKG_VERSION"))
}

fn schemas(call: &Call<'_>) -> Vec<String> {
    let settings = call.context.settings;
    settings
        .effective_search_path()
        .into_iter()
        .filter(|s| call.context.catalog.schema(s).is_some())
        .collect()
}

fn oid_of(value: &Datum) -> Result<u32> {
    match value {
        Datum::Oid(oid) => Ok(*oid),
        _ => Err(fault::kind("a relation")),
    }
}

fn random_uuid(call: &Call<'_>) -> Result<Datum> {
    let mut bytes = call.context.execution()?.random_u128().to_be_bytes();
    // Version 4, variant 1 (RFC 4122, section 4.4).
    bytes[6] = bytes[6] & 0x0F | 0x40;
    bytes[8] = bytes[8] & 0x3F | 0x80;
    Ok(Datum::Uuid(bytes))
}

/// The low bits of the transaction id: unique enough for display, not a clock.
fn txid(call: &Call<'_>) -> Result<Datum> {
    let id = call.context.execution()?.transaction_id().0;
    Ok(Datum::Int8((id & (i64::MAX as u128)) as i64))
}

/// What this process has asked of the bucket since it started; NULL where there is no bucket.
fn bucket_usage(call: &Call<'_>) -> Result<Datum> {
    guards::statistics("telesto_bucket_usage", call)?;
    let usage = call.context.execution()?.bucket_usage();
    Ok(usage.map_or(Datum::Null, |usage| Datum::Json(usage.into())))
}

/// Moves the log of the whole database: for superusers, whatever SET ROLE says.
fn log_switch(to: &str, call: &Call<'_>) -> Result<Datum> {
    guards::superuser("telesto_log_switch", call)?;
    let kind = match to.to_ascii_lowercase().as_str() {
        "bucket" => LogKind::Bucket,
        "quorum" => LogKind::Quorum,
        _ => {
            let error = fault::error("22023", format!("there is no log of kind \"{to}\""));
            return Err(error.hint("Kinds are: bucket, quorum."));
        }
    };
    call.context.request(Request::SwitchLog(kind))
}

fn sleep(seconds: &Datum, call: &Call<'_>) -> Result<Datum> {
    let Datum::Float8(seconds) = seconds else { return Err(fault::kind("a number of seconds")) };
    // At most a century.
    let wait = Duration::try_from_secs_f64(seconds.clamp(0.0, 3.2e9)).unwrap_or_default();
    call.context.request(Request::Sleep(wait))
}

/// Has `act` reach the session of a process id; warns as PostgreSQL does when there is none.
fn signal(
    pid: &Datum,
    what: &str,
    call: &Call<'_>,
    act: impl FnOnce(&dyn Execution, i32) -> bool,
) -> Result<Datum> {
    guards::present(&format!("pg_{what}_backend"), call)?;
    let exec = call.context.execution()?;
    let pid = i32::try_from(i64_of(pid)?).unwrap_or_default();
    let found = if let Some(owner) = exec.backend_role(pid) {
        guards::signal(owner, what, call)?;
        act(exec, pid)
    } else if let Datum::Oid(owner) = call.context.request(Request::BackendRole(pid))? {
        guards::signal(owner, what, call)?;
        bool_of(&call.context.request(Request::Signal(pid, what != "cancel"))?)?
    } else {
        false
    };
    if !found {
        let text = format!("PID {pid} is not a PostgreSQL backend process");
        exec.warn(SqlState::WARNING, text);
    }
    Ok(bool_datum(found))
}

fn backend_pid(call: &Call<'_>) -> i32 {
    pid_in(call.context.settings)
}

/// The process id a session shows.
#[must_use]
pub fn pid_in(settings: &Settings) -> i32 {
    settings.others.get(BACKEND_PID).and_then(|v| v.parse().ok()).unwrap_or(1)
}

fn setting(name: &str, missing_ok: bool, call: &Call<'_>) -> Result<Datum> {
    let settings = call.context.settings;
    let value = match name.to_ascii_lowercase().as_str() {
        "transaction_isolation" => {
            let level =
                call.context.exec.map_or(settings.default_level, |e| e.transaction_options().level);
            Ok(level_name(level).to_owned())
        }
        "transaction_read_only" => {
            let only = call
                .context
                .exec
                .map_or(settings.default_read_only, |e| e.transaction_options().read_only);
            Ok(if only { "on" } else { "off" }.to_owned())
        }
        "is_superuser" => {
            let on = settings.is_superuser_in(call.context.catalog);
            Ok(if on { "on" } else { "off" }.to_owned())
        }
        _ => settings.show(name),
    };
    match value {
        Ok(value) => Ok(text(value)),
        Err(error) if missing_ok && error.code() == SqlState::UNDEFINED_OBJECT => Ok(Datum::Null),
        Err(error) => Err(error),
    }
}

/// `set_config(name, value, is_local)`: the session makes it so when the statement is done.
fn set_config(a: &[Datum], call: &Call<'_>) -> Result<Datum> {
    if a[0].is_null() {
        return Err(fault::error("22004", "SET requires parameter name"));
    }
    let name = str_of(&a[0])?;
    let local = !a[2].is_null() && bool_of(&a[2])?;
    let exec = call.context.execution()?;
    if !a[1].is_null() {
        return exec.set_config(name, str_of(&a[1])?, local).map(text);
    }
    if name.eq_ignore_ascii_case("role") {
        // What the session began as is not known here.
        return Err(crate::settings_roles::by_session("role"));
    }
    // NULL is what RESET sets; of a parameter that the application made nothing is left.
    let settings = call.context.settings;
    let value = match settings.reset_value(name) {
        Some(value) => value,
        None if name.contains('.') => String::new(),
        None => settings.show(name)?,
    };
    exec.set_config(name, &value, local).map(text)
}

/// `to_regtype` and its kin: NULL where the cast says that there is no such thing, or that there
/// are several.
fn to_reg(a: &[Datum], call: &Call<'_>) -> Result<Datum> {
    // The types of a signature must be there.
    let absent: &[&str] = match call.returns {
        SqlType::RegProc | SqlType::RegProcedure => &["3F000", "42883", "42725"],
        _ => &["42704", "3F000", "42P01"],
    };
    match reg_input(str_of(&a[0])?, call.returns, call.context) {
        Err(error) if absent.contains(&error.code().0) => Ok(Datum::Null),
        found => found,
    }
}

fn serial_sequence(a: &[Datum], call: &Call<'_>) -> Result<Datum> {
    use telesto_sql_catalog::Generated;
    let oid = call.context.relation_oid(str_of(&a[0])?)?;
    let catalog = call.context.catalog;
    let column = str_of(&a[1])?;
    let missing = |relation: &str| {
        let shown = format!("column \"{column}\" of relation \"{relation}\" does not exist");
        Err(fault::error("42703", shown))
    };
    let Some(table) = catalog.table(telesto_common::TableId(oid)) else {
        // Only columns of tables own sequences.
        if let Some(view) = catalog.views().find(|view| view.oid == oid)
            && !view.columns.iter().any(|(name, _)| name == column)
        {
            return missing(&view.name);
        }
        if let Some(table) =
            telesto_sql_catalog::builtin::tables::all().find(|table| table.oid == oid)
            && !table.columns.iter().any(|(name, _)| *name == column)
        {
            return missing(table.name);
        }
        return Ok(Datum::Null);
    };
    let Some(position) = table.column_position(column) else { return missing(&table.name) };
    let identity = match &table.columns[position].generated {
        Some(Generated::IdentityAlways(oid) | Generated::IdentityByDefault(oid)) => Some(*oid),
        _ => None,
    };
    let found = catalog
        .sequences()
        .find(|s| Some(s.oid) == identity || s.owned_by == Some((table.id, position)));
    Ok(found.map_or(Datum::Null, |s| {
        let schema = quote_ident(catalog.schema_name(s.schema));
        text(format!("{schema}.{}", quote_ident(&s.name)))
    }))
}
