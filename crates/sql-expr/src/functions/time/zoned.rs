//! What the functions of times with an offset compute.
//!
//! # On failure
//! 22008 for what is no time of day or no offset.

use super::*;
use crate::context::EvalContext;
use crate::value::{EPOCH_MICROS, zoned_time_of};
use telesto_sql_types::ZonedTime;

pub(super) fn zoned_add(value: &Datum, micros: i64) -> Result<Datum> {
    Ok(Datum::TimeTz(zoned_time_of(value)?.moved(micros)))
}

/// A time at an offset, seconds east.
fn zoned_time(micros: i64, east: i32) -> Result<Datum> {
    let time = ZonedTime::new(micros, -east);
    time.map(Datum::TimeTz).ok_or_else(|| fault::time_out_of_range("time"))
}

/// Casts between timetz, time and timestamptz. A time gets the offset that the session's zone had
/// when the transaction began.
pub fn zoned_cast(value: &Datum, context: &EvalContext<'_>) -> Result<Datum> {
    match value {
        Datum::TimeTz(time) => Ok(Datum::Time(time.micros)),
        Datum::TimestampTz(_) => time_of_instant(value, context.zone()),
        value => {
            let now = context.execution()?.transaction_micros() + EPOCH_MICROS;
            zoned_time(micros_of(value)?, context.zone().offset_at(now))
        }
    }
}

/// Cast of timestamptz to timetz.
pub fn time_of_instant(value: &Datum, zone: Zone) -> Result<Datum> {
    match unix_micros(micros_of(value)?)? {
        None => Ok(Datum::Null),
        Some(utc) => zoned_time(zone.to_local(utc).rem_euclid(DAY), zone.offset_at(utc)),
    }
}

/// `AT TIME ZONE` of a timetz: the offset is the zone's when the transaction began.
pub(super) fn time_elsewhere(value: &Datum, zone: Zone, call: &Call<'_>) -> Result<Datum> {
    let now = call.context.execution()?.transaction_micros() + EPOCH_MICROS;
    Ok(Datum::TimeTz(zoned_time_of(value)?.at(zone.offset_at(now))))
}

/// A date and a time at an offset: an instant.
pub(super) fn instant_of(date: &Datum, time: &Datum) -> Result<Datum> {
    let start = micros_of(&date_to_timestamp(date)?)?;
    match unix_micros(start)? {
        None => Ok(Datum::TimestampTz(start)),
        Some(unix) => Ok(Datum::TimestampTz(stored_micros(unix + zoned_time_of(time)?.utc())?)),
    }
}
