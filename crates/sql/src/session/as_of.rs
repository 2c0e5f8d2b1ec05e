//! What AS OF SYSTEM TIME means.
//!
//! # On failure
//! 22023 for what is not in the past, or is no time at all.

use telesto_common::Timestamp;

use super::{Session, pg_micros};
use crate::error::{Error, Result, SqlState};

impl Session {
    /// The timestamp `AS OF SYSTEM TIME text` means.
    pub(super) fn as_of_timestamp(&self, text: &str) -> Result<Timestamp> {
        let wall = self.engine.env.clock.wall_micros();
        if let Ok(raw) = text.parse::<u64>() {
            return Ok(Timestamp(raw));
        }
        if let Some((micros, counter)) = text.split_once('.')
            && let (Ok(micros), Ok(counter)) = (micros.parse::<u64>(), counter.parse::<u64>())
        {
            return Ok(Timestamp(Timestamp::from_wall_micros(micros).0 + counter));
        }
        let style = self.settings.text_style(pg_micros(wall));
        let micros = if text.starts_with('-') {
            let age = crate::types::interval::parse_interval(text)?;
            pg_micros(wall) + i64::try_from(age.span()).unwrap_or(i64::MIN / 2)
        } else {
            crate::types::datetime_parse::parse_timestamp(text, true, &style)?
        };
        let unix = micros.saturating_add(super::PG_EPOCH_SECONDS * 1_000_000);
        let unix = u64::try_from(unix).ok().filter(|unix| *unix <= wall).ok_or_else(|| {
            Error::new(
                SqlState::INVALID_PARAMETER_VALUE,
                format!("AS OF SYSTEM TIME '{text}' is not in the past"),
            )
        })?;
        Ok(Timestamp(Timestamp::from_wall_micros(unix + 1).0 - 1))
    }
}
