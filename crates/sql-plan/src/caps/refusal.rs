//! What a spend cap tells whom it stops.
//!
//! # Invariants
//! Each message names the cap, what is refused and until when; the error's hint, the way out.

use telesto_meter::Dollars;
use telesto_meter::caps::{Class, Mode, Purse, Refusal};
use telesto_sql_types::error::{Error, SqlState};

/// What a purse has no room for.
pub(super) fn refusal(purse: &Purse, class: Class, price: Dollars, now: u64) -> Refusal {
    let resets_micros = purse.held(now).window.end_micros;
    Refusal { cap: purse.cap.clone(), class, price, resets_micros }
}

/// Message, detail.
pub(super) fn told(refusal: &Refusal) -> (String, String) {
    let Refusal { cap, class, price, resets_micros } = refusal;
    let micros = telesto_sql_types::pg_micros(*resets_micros);
    let resets = telesto_sql_types::Datum::TimestampTz(micros).to_text(
        &telesto_sql_types::SqlType::TimestampTz(None),
        &telesto_sql_types::TextStyle::default(),
    );
    let (kind, subject) = cap.subject.parts();
    let what = match (class, cap.mode) {
        (Class::Write, Mode::Enforce) => format!("writes are refused until {resets}"),
        (Class::ColdRead, Mode::Enforce) => format!(
            "this read needs requests of the bucket at ${price} each, and is refused until {resets}"
        ),
        (_, Mode::Warn) => format!("it warns only, until {resets}"),
    };
    (
        format!("spend cap \"{}\" is reached: {what}", cap.name),
        format!(
            "The cap is ${} per {} for {kind} \"{subject}\"; its reserve of {} percent is kept for what keeps the data safe.",
            cap.limit(),
            cap.per.name(),
            cap.reserve_percent
        ),
    )
}

/// The error of what a cap refuses.
pub(super) fn refused(refusal: &Refusal) -> Error {
    let (message, detail) = told(refusal);
    let hint = match refusal.class {
        Class::Write => {
            "Wait, or raise the cap with telesto_cap_set; SELECT * FROM telesto_caps shows all caps."
        }
        Class::ColdRead => {
            "Reads of what is in memory go on: SET telesto.consistency = session reads without a look at the log. Or raise the cap with telesto_cap_set."
        }
    };
    Error::new(SqlState::CONFIGURATION_LIMIT_EXCEEDED, message).detail(detail).hint(hint)
}
