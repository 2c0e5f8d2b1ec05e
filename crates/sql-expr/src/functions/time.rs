//! Dates, times and intervals.
//!
//! # Invariants
//! - `now()` is the start of the transaction's present try, the same for all its statements.
//! - Functions that depend on the session's time zone are stable, not immutable.
//! - The infinities pass through arithmetic with finite intervals.

mod compute;
mod justify;
mod overlap;
mod zoned;

use crate::calendar::{self, DAY, Field, SECOND, Scaled, Source, Zone};
use crate::context::Call;
use crate::fault;
use crate::from_char::{self, FromCharError};
use crate::number_template;
use crate::registry::{Function, function};
use crate::to_char;
use crate::ty::Tag::{
    Bool, Date, Float4, Float8, Int4, Int8, Interval as Iv, Numeric as Num, Oid, Text, Time,
    TimeTz, Timestamp as Ts, TimestampTz as Tz,
};
use crate::value::{
    EPOCH_DAYS, f64_of, i64_of, interval_of, is_infinite, numeric_of, stored_micros, str_of, text,
    unix_micros,
};
use telesto_sql_types::error::Result;
use telesto_sql_types::interval::parse_interval_of;
use telesto_sql_types::interval_fields::{self, IntervalFields};
use telesto_sql_types::{Datum, Interval, Numeric};

use compute::*;
pub(super) use compute::{combine, scale};
pub use compute::{
    date_to_timestamp, micros_of, timestamp_to_date, timestamp_to_time, to_local, to_zoned,
};
use justify::{justify_days, justify_hours, justify_interval};
use overlap::{overlaps, overlaps_spans, overlaps_times};
pub use zoned::zoned_cast;
use zoned::{instant_of, time_elsewhere, time_of_instant, zoned_add};

/// Operators.
pub const OPERATORS: &[Function] = &[
    function("+", &[Date, Int4], Date, |a, _| date_add(&a[0], i64_of(&a[1])?)),
    function("+", &[Int4, Date], Date, |a, _| date_add(&a[1], i64_of(&a[0])?)),
    function("-", &[Date, Int4], Date, |a, _| date_add(&a[0], -i64_of(&a[1])?)),
    function("-", &[Date, Date], Int4, |a, _| date_minus(&a[0], &a[1])),
    function("+", &[Date, Iv], Ts, |a, _| {
        shift_local(&date_to_timestamp(&a[0])?, interval_of(&a[1])?, 1)
    }),
    function("-", &[Date, Iv], Ts, |a, _| {
        shift_local(&date_to_timestamp(&a[0])?, interval_of(&a[1])?, -1)
    }),
    function("+", &[Iv, Date], Ts, |a, _| {
        shift_local(&date_to_timestamp(&a[1])?, interval_of(&a[0])?, 1)
    }),
    function("+", &[Date, Time], Ts, |a, _| date_time(&a[0], &a[1])),
    function("+", &[Time, Date], Ts, |a, _| date_time(&a[1], &a[0])),
    function("+", &[Date, TimeTz], Tz, |a, _| instant_of(&a[0], &a[1])),
    function("+", &[TimeTz, Date], Tz, |a, _| instant_of(&a[1], &a[0])),
    function("+", &[TimeTz, Iv], TimeTz, |a, _| zoned_add(&a[0], interval_of(&a[1])?.micros)),
    function("+", &[Iv, TimeTz], TimeTz, |a, _| zoned_add(&a[1], interval_of(&a[0])?.micros)),
    function("-", &[TimeTz, Iv], TimeTz, |a, _| zoned_add(&a[0], -interval_of(&a[1])?.micros)),
    function("+", &[Ts, Iv], Ts, |a, _| shift_local(&a[0], interval_of(&a[1])?, 1)),
    function("+", &[Iv, Ts], Ts, |a, _| shift_local(&a[1], interval_of(&a[0])?, 1)),
    function("-", &[Ts, Iv], Ts, |a, _| shift_local(&a[0], interval_of(&a[1])?, -1)),
    function("+", &[Tz, Iv], Tz, |a, c| shift_zoned(&a[0], interval_of(&a[1])?, 1, c)).stable(),
    function("+", &[Iv, Tz], Tz, |a, c| shift_zoned(&a[1], interval_of(&a[0])?, 1, c)).stable(),
    function("-", &[Tz, Iv], Tz, |a, c| shift_zoned(&a[0], interval_of(&a[1])?, -1, c)).stable(),
    function("-", &[Ts, Ts], Iv, |a, _| difference(&a[0], &a[1])),
    function("-", &[Tz, Tz], Iv, |a, _| difference(&a[0], &a[1])),
    function("+", &[Time, Iv], Time, |a, _| time_add(&a[0], interval_of(&a[1])?.micros)),
    function("+", &[Iv, Time], Time, |a, _| time_add(&a[1], interval_of(&a[0])?.micros)),
    function("-", &[Time, Iv], Time, |a, _| time_add(&a[0], -interval_of(&a[1])?.micros)),
    function("-", &[Time, Time], Iv, |a, _| {
        Ok(Datum::Interval(Interval {
            micros: micros_of(&a[0])? - micros_of(&a[1])?,
            ..Interval::default()
        }))
    }),
    function("+", &[Iv, Iv], Iv, |a, _| combine(interval_of(&a[0])?, interval_of(&a[1])?, 1)),
    function("-", &[Iv, Iv], Iv, |a, _| combine(interval_of(&a[0])?, interval_of(&a[1])?, -1)),
    function("-", &[Iv], Iv, |a, _| combine(Interval::default(), interval_of(&a[0])?, -1)),
    function("*", &[Iv, Float8], Iv, |a, _| scale(interval_of(&a[0])?, f64_of(&a[1])?)),
    function("*", &[Float8, Iv], Iv, |a, _| scale(interval_of(&a[1])?, f64_of(&a[0])?)),
    function("/", &[Iv, Float8], Iv, |a, _| {
        let by = f64_of(&a[1])?;
        if by == 0.0 {
            Err(fault::division_by_zero())
        } else {
            scale(interval_of(&a[0])?, 1.0 / by)
        }
    }),
];

/// Functions.
pub const TABLE: &[Function] = &[
    function("now", &[], Tz, |_, c| {
        Ok(Datum::TimestampTz(c.context.execution()?.transaction_micros()))
    })
    .stable(),
    function("transaction_timestamp", &[], Tz, |_, c| {
        Ok(Datum::TimestampTz(c.context.execution()?.transaction_micros()))
    })
    .stable(),
    function("statement_timestamp", &[], Tz, |_, c| {
        Ok(Datum::TimestampTz(c.context.execution()?.statement_micros()))
    })
    .stable(),
    function("clock_timestamp", &[], Tz, |_, c| {
        Ok(Datum::TimestampTz(c.context.execution()?.clock_micros()))
    })
    .volatile(),
    function("timeofday", &[], Text, |_, c| {
        let zone = c.context.zone();
        let at = c.context.execution()?.clock_micros() + crate::value::EPOCH_MICROS;
        Ok(text(to_char::timestamp("Dy Mon DD HH24:MI:SS.US YYYY TZ", &civil_at(at, zone))?))
    })
    .volatile(),
    function("current_timestamp", &[], Tz, |_, c| {
        Ok(Datum::TimestampTz(c.context.execution()?.transaction_micros()))
    })
    .stable(),
    function("localtimestamp", &[], Ts, |_, c| local_now(c)).stable(),
    function("current_date", &[], Date, |_, c| timestamp_to_date(&local_now(c)?)).stable(),
    function("localtime", &[], Time, |_, c| timestamp_to_time(&local_now(c)?)).stable(),
    function("current_time", &[], TimeTz, |_, c| {
        let now = Datum::TimestampTz(c.context.execution()?.transaction_micros());
        time_of_instant(&now, c.context.zone())
    })
    .stable(),
    function("date_trunc", &[Text, Ts], Ts, |a, _| trunc_local(str_of(&a[0])?, &a[1])),
    function("date_trunc", &[Text, Tz], Tz, |a, c| {
        trunc_zoned(str_of(&a[0])?, &a[1], c.context.zone())
    })
    .stable(),
    function("date_trunc", &[Text, Tz, Text], Tz, |a, _| {
        trunc_zoned(str_of(&a[0])?, &a[1], zone_named(str_of(&a[2])?)?)
    })
    .stable(),
    function("date_trunc", &[Text, Iv], Iv, |a, _| {
        let field = truncated_field(str_of(&a[0])?, "interval")?;
        let i = interval_of(&a[1])?;
        let (months, days, micros) = calendar::truncate_interval(field, i.months, i.days, i.micros)
            .ok_or_else(|| not_supported(str_of(&a[0]).unwrap_or(""), "interval"))?;
        Ok(Datum::Interval(Interval { months, days, micros }))
    }),
    // What casts to an interval type with fields and a precision come to.
    function("interval_of_fields", &[Text, Text, Int4], Iv, |a, _| {
        let (fields, precision) = interval_type(&a[1], &a[2])?;
        let read = parse_interval_of(str_of(&a[0])?, fields)?;
        Ok(Datum::Interval(interval_fields::cut(read, fields, precision)))
    }),
    function("interval_of_fields", &[Iv, Text, Int4], Iv, |a, _| {
        let (fields, precision) = interval_type(&a[1], &a[2])?;
        Ok(Datum::Interval(interval_fields::cut(interval_of(&a[0])?, fields, precision)))
    }),
    function("extract", &[Text, Date], Num, |a, _| extract(a, Part::Date)),
    function("extract", &[Text, Time], Num, |a, _| extract(a, Part::Time)),
    function("extract", &[Text, TimeTz], Num, |a, _| extract(a, Part::TimeTz)),
    function("extract", &[Text, Ts], Num, |a, _| extract(a, Part::Timestamp)),
    function("extract", &[Text, Tz], Num, |a, c| extract(a, Part::Zoned(c.context.zone())))
        .stable(),
    function("extract", &[Text, Iv], Num, |a, _| extract(a, Part::Interval)),
    function("date_part", &[Text, Date], Float8, |a, _| as_double(extract(a, Part::Date)?)),
    function("date_part", &[Text, Time], Float8, |a, _| as_double(extract(a, Part::Time)?)),
    function("date_part", &[Text, TimeTz], Float8, |a, _| as_double(extract(a, Part::TimeTz)?)),
    function("date_part", &[Text, Ts], Float8, |a, _| as_double(extract(a, Part::Timestamp)?)),
    function("date_part", &[Text, Tz], Float8, |a, c| {
        as_double(extract(a, Part::Zoned(c.context.zone()))?)
    })
    .stable(),
    function("date_part", &[Text, Iv], Float8, |a, _| as_double(extract(a, Part::Interval)?)),
    // Of a row of the system tables: as if it were of this transaction, so that whoever asks what
    // is new reads it again.
    function("age", &[Oid], Int4, |_, _| Ok(Datum::Int4(0))),
    function("age", &[Ts, Ts], Iv, |a, _| age(&a[0], &a[1], Zone::UTC)),
    function("age", &[Tz, Tz], Iv, |a, c| age(&a[0], &a[1], c.context.zone())).stable(),
    function("age", &[Ts], Iv, |a, c| age(&midnight(c)?, &a[0], Zone::UTC)).stable(),
    function("age", &[Tz], Iv, |a, c| {
        let zone = c.context.zone();
        age(&midnight(c)?, &to_local(&a[0], zone)?, Zone::UTC)
    })
    .stable(),
    function("timezone", &[Text, Tz], Ts, |a, _| to_local(&a[1], zone_named(str_of(&a[0])?)?)),
    function("timezone", &[Text, Ts], Tz, |a, _| to_zoned(&a[1], zone_named(str_of(&a[0])?)?)),
    function("timezone", &[Text, TimeTz], TimeTz, |a, c| {
        time_elsewhere(&a[1], zone_named(str_of(&a[0])?)?, c)
    })
    .stable(),
    function("timezone", &[Iv, TimeTz], TimeTz, |a, c| time_elsewhere(&a[1], zone_of(&a[0])?, c))
        .stable(),
    function("timezone", &[Iv, Tz], Ts, |a, _| to_local(&a[1], zone_of(&a[0])?)),
    function("timezone", &[Iv, Ts], Tz, |a, _| to_zoned(&a[1], zone_of(&a[0])?)),
    function("to_char", &[Ts, Text], Text, |a, _| format_time(&a[0], str_of(&a[1])?, None))
        .stable(),
    function("to_char", &[Tz, Text], Text, |a, c| {
        format_time(&a[0], str_of(&a[1])?, Some(c.context.zone()))
    })
    .stable(),
    function("to_char", &[Iv, Text], Text, |a, _| {
        format_interval(interval_of(&a[0])?, str_of(&a[1])?)
    })
    .stable(),
    function("to_char", &[Int4, Text], Text, |a, _| {
        format_number(&i64_of(&a[0])?.to_string(), &a[1])
    })
    .stable(),
    function("to_char", &[Int8, Text], Text, |a, _| {
        format_number(&i64_of(&a[0])?.to_string(), &a[1])
    })
    .stable(),
    function("to_char", &[Num, Text], Text, |a, _| {
        format_number(&numeric_of(&a[0])?.to_string(), &a[1])
    })
    .stable(),
    // The digits that a C compiler counts on: FLT_DIG and DBL_DIG.
    function("to_char", &[Float4, Text], Text, |a, _| format_float(f64_of(&a[0])?, 6, &a[1]))
        .stable(),
    function("to_char", &[Float8, Text], Text, |a, _| format_float(f64_of(&a[0])?, 15, &a[1]))
        .stable(),
    function("to_date", &[Text, Text], Date, |a, _| {
        let read = from_char::timestamp(str_of(&a[1])?, str_of(&a[0])?).map_err(from_char_fault)?;
        date(read.local_micros.div_euclid(DAY))
    })
    .stable(),
    function("to_timestamp", &[Text, Text], Tz, |a, c| {
        let read = from_char::timestamp(str_of(&a[1])?, str_of(&a[0])?).map_err(from_char_fault)?;
        let zone = read.offset_seconds.map_or_else(|| c.context.zone(), Zone::Fixed);
        Ok(Datum::TimestampTz(stored_micros(zone.to_utc(read.local_micros))?))
    })
    .stable(),
    function("to_timestamp", &[Float8], Tz, |a, _| {
        let seconds = f64_of(&a[0])?;
        if seconds.is_infinite() {
            return Ok(Datum::TimestampTz(if seconds > 0.0 { i64::MAX } else { i64::MIN }));
        }
        if seconds.is_nan() || seconds.abs() > 9.0e12 {
            return Err(fault::time_out_of_range("timestamp"));
        }
        Ok(Datum::TimestampTz(stored_micros((seconds * SECOND as f64).round() as i64)?))
    }),
    function("to_number", &[Text, Text], Num, |a, _| {
        let found =
            number_template::decimal(str_of(&a[1])?, str_of(&a[0])?).map_err(from_char_fault)?;
        Ok(Datum::numeric(Numeric::parse(&found).unwrap_or_else(Numeric::zero)))
    })
    .stable(),
    function("make_date", &[Int4, Int4, Int4], Date, |a, _| make_date(a)),
    function("make_time", &[Int4, Int4, Float8], Time, |a, _| {
        Ok(Datum::Time(make_time(&a[0], &a[1], &a[2])?))
    }),
    function("make_timestamp", &[Int4, Int4, Int4, Int4, Int4, Float8], Ts, |a, _| {
        date_time(&make_date(a)?, &Datum::Time(make_time(&a[3], &a[4], &a[5])?))
    }),
    function("make_timestamptz", &[Int4, Int4, Int4, Int4, Int4, Float8], Tz, |a, c| {
        to_zoned(
            &date_time(&make_date(a)?, &Datum::Time(make_time(&a[3], &a[4], &a[5])?))?,
            c.context.zone(),
        )
    })
    .stable(),
    function("make_timestamptz", &[Int4, Int4, Int4, Int4, Int4, Float8, Text], Tz, |a, _| {
        to_zoned(
            &date_time(&make_date(a)?, &Datum::Time(make_time(&a[3], &a[4], &a[5])?))?,
            zone_of_moment(str_of(&a[6])?)?,
        )
    }),
    function("make_interval", &[Int4], Iv, |a, _| make_interval(a)).variadic(),
    function("make_interval", &[Int4, Int4, Int4, Int4, Int4, Int4, Float8], Iv, |a, _| {
        let Datum::Interval(whole) = make_interval(&a[..6])? else { return Ok(Datum::Null) };
        let seconds = (f64_of(&a[6])? * SECOND as f64).round_ties_even();
        let out = || fault::time_out_of_range("interval");
        if !(-9.2e18..9.2e18).contains(&seconds) {
            return Err(out());
        }
        let micros = whole.micros.checked_add(seconds as i64).ok_or_else(out)?;
        Ok(Datum::Interval(Interval { micros, ..whole }))
    }),
    function("make_interval", &[], Iv, |_, _| Ok(Datum::Interval(Interval::default()))),
    function("justify_days", &[Iv], Iv, |a, _| {
        justify_days(interval_of(&a[0])?).map(Datum::Interval)
    }),
    function("justify_hours", &[Iv], Iv, |a, _| {
        justify_hours(interval_of(&a[0])?).map(Datum::Interval)
    }),
    function("justify_interval", &[Iv], Iv, |a, _| {
        justify_interval(interval_of(&a[0])?).map(Datum::Interval)
    }),
    function("isfinite", &[Date], Bool, |a, _| {
        Ok(Datum::Bool(!matches!(a[0], Datum::Date(i32::MIN | i32::MAX))))
    }),
    function("isfinite", &[Ts], Bool, |a, _| Ok(Datum::Bool(!is_infinite(micros_of(&a[0])?)))),
    function("isfinite", &[Tz], Bool, |a, _| Ok(Datum::Bool(!is_infinite(micros_of(&a[0])?)))),
    function("isfinite", &[Iv], Bool, |_, _| Ok(Datum::Bool(true))),
    function("date_bin", &[Iv, Ts, Ts], Ts, |a, _| date_bin(a).map(Datum::Timestamp)),
    function("date_bin", &[Iv, Tz, Tz], Tz, |a, _| date_bin(a).map(Datum::TimestampTz)),
    function("overlaps", &[Ts, Ts, Ts, Ts], Bool, |a, _| Ok(overlaps(&a[0], &a[1], &a[2], &a[3])))
        .lax(),
    function("overlaps", &[Ts, Iv, Ts, Iv], Bool, |a, _| overlaps_spans(a, None)).lax(),
    function("overlaps", &[Ts, Iv, Ts, Ts], Bool, |a, _| overlaps_spans(a, None)).lax(),
    function("overlaps", &[Ts, Ts, Ts, Iv], Bool, |a, _| overlaps_spans(a, None)).lax(),
    function("overlaps", &[Tz, Tz, Tz, Tz], Bool, |a, _| overlaps_spans(a, None)).lax(),
    function("overlaps", &[Tz, Iv, Tz, Iv], Bool, |a, c| overlaps_spans(a, Some(c))).lax().stable(),
    function("overlaps", &[Tz, Iv, Tz, Tz], Bool, |a, c| overlaps_spans(a, Some(c))).lax().stable(),
    function("overlaps", &[Tz, Tz, Tz, Iv], Bool, |a, c| overlaps_spans(a, Some(c))).lax().stable(),
    function("overlaps", &[Time, Iv, Time, Iv], Bool, |a, _| overlaps_times(a)).lax(),
    function("overlaps", &[Time, Iv, Time, Time], Bool, |a, _| overlaps_times(a)).lax(),
    function("overlaps", &[Time, Time, Time, Iv], Bool, |a, _| overlaps_times(a)).lax(),
    function("overlaps", &[Time, Time, Time, Time], Bool, |a, _| {
        Ok(overlaps(&a[0], &a[1], &a[2], &a[3]))
    })
    .lax(),
    function("overlaps", &[TimeTz, TimeTz, TimeTz, TimeTz], Bool, |a, _| {
        Ok(overlaps(&a[0], &a[1], &a[2], &a[3]))
    })
    .lax(),
];
