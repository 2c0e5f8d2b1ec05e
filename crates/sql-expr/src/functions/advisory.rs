//! Advisory locks: the functions that take, try and give them up.

use crate::context::{Call, Request};
use crate::registry::{Function, function};
use crate::ty::Tag::{Bool, Int4, Int8, Void};
use crate::value::{i64_of, text};
use LockMode::{Exclusive, Shared};
use telesto_sql_types::Datum;
use telesto_sql_types::advisory::{LockKey, LockMode, LockRequest};
use telesto_sql_types::error::Result;

const ONE: &[crate::ty::Tag] = &[Int8];
const TWO: &[crate::ty::Tag] = &[Int4, Int4];

/// The functions of this module.
pub const TABLE: &[Function] = &[
    function("pg_advisory_lock", ONE, Void, |a, c| take(a, c, Exclusive, false, false)).waiting(),
    function("pg_advisory_lock", TWO, Void, |a, c| take(a, c, Exclusive, false, false)).waiting(),
    function("pg_advisory_lock_shared", ONE, Void, |a, c| take(a, c, Shared, false, false))
        .waiting(),
    function("pg_advisory_lock_shared", TWO, Void, |a, c| take(a, c, Shared, false, false))
        .waiting(),
    function("pg_advisory_xact_lock", ONE, Void, |a, c| take(a, c, Exclusive, true, false))
        .waiting(),
    function("pg_advisory_xact_lock", TWO, Void, |a, c| take(a, c, Exclusive, true, false))
        .waiting(),
    function("pg_advisory_xact_lock_shared", ONE, Void, |a, c| take(a, c, Shared, true, false))
        .waiting(),
    function("pg_advisory_xact_lock_shared", TWO, Void, |a, c| take(a, c, Shared, true, false))
        .waiting(),
    function("pg_try_advisory_lock", ONE, Bool, |a, c| take(a, c, Exclusive, false, true))
        .waiting(),
    function("pg_try_advisory_lock", TWO, Bool, |a, c| take(a, c, Exclusive, false, true))
        .waiting(),
    function("pg_try_advisory_lock_shared", ONE, Bool, |a, c| take(a, c, Shared, false, true))
        .waiting(),
    function("pg_try_advisory_lock_shared", TWO, Bool, |a, c| take(a, c, Shared, false, true))
        .waiting(),
    function("pg_try_advisory_xact_lock", ONE, Bool, |a, c| take(a, c, Exclusive, true, true))
        .waiting(),
    function("pg_try_advisory_xact_lock", TWO, Bool, |a, c| take(a, c, Exclusive, true, true))
        .waiting(),
    function("pg_try_advisory_xact_lock_shared", ONE, Bool, |a, c| take(a, c, Shared, true, true))
        .waiting(),
    function("pg_try_advisory_xact_lock_shared", TWO, Bool, |a, c| take(a, c, Shared, true, true))
        .waiting(),
    function("pg_advisory_unlock", ONE, Bool, |a, c| give(a, c, Exclusive)).waiting(),
    function("pg_advisory_unlock", TWO, Bool, |a, c| give(a, c, Exclusive)).waiting(),
    function("pg_advisory_unlock_shared", ONE, Bool, |a, c| give(a, c, Shared)).waiting(),
    function("pg_advisory_unlock_shared", TWO, Bool, |a, c| give(a, c, Shared)).waiting(),
    function("pg_advisory_unlock_all", &[], Void, |_, c| {
        c.context.execution()?.unlock_all();
        Ok(text(""))
    })
    .volatile(),
];

fn key_of(args: &[Datum]) -> Result<LockKey> {
    match args {
        [class, object] => Ok(LockKey::of_pair(i64_of(class)? as i32, i64_of(object)? as i32)),
        _ => Ok(LockKey::of_bigint(args.first().map_or(Ok(0), i64_of)?)),
    }
}

fn take(
    args: &[Datum],
    call: &Call<'_>,
    mode: LockMode,
    local: bool,
    attempt: bool,
) -> Result<Datum> {
    let key = key_of(args)?;
    call.context.request(Request::Lock(LockRequest { key, mode, local, attempt }))
}

fn give(args: &[Datum], call: &Call<'_>, mode: LockMode) -> Result<Datum> {
    call.context.request(Request::Unlock(key_of(args)?, mode))
}
