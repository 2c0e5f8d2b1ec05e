//! What AS OF SYSTEM TIME means.
//!
//! # On failure
//! 22023 for what is not in the past, or is no time at all, and for a time at which this region,
//! which has joined others, did not have everything that was to be sent to it at first: tables were
//! there in parts; 0A000 for statements that know no past.

use telesto_common::Timestamp;
use telesto_txn::{ReadFor, Transaction};

use super::{Session, pg_micros};
use crate::catalog::regions::{FOUNDER, complete_row};
use crate::error::{Error, Result, SqlState};
use crate::sqlparser::ast::Statement;
use telesto_sql_parser::statement_kind::only_reads;

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

    /// Fails where `txn`, which reads the past, would show what this region had got by then as if
    /// it were everything.
    ///
    /// # Errors
    /// 22023.
    pub(super) async fn had_everything(&self, txn: &dyn Transaction) -> Result<()> {
        if self.engine.database.region() == FOUNDER
            || txn.get(&complete_row(), ReadFor::Query).await?.is_some()
        {
            return Ok(());
        }
        Err(Error::new(
            SqlState::INVALID_PARAMETER_VALUE,
            "AS OF SYSTEM TIME is of a time at which this region was still being sent what the other regions had",
        )
        .hint("Name a later time; or read that one in a region that had joined before it."))
    }
}

/// Fails where `AS OF SYSTEM TIME` stands in a statement that would be carried out now all the
/// same.
///
/// # Errors
/// 0A000.
pub(super) fn may_be_of_the_past(as_of: Option<&str>, statement: &Statement) -> Result<()> {
    let inner = match statement {
        Statement::Explain { statement, .. } => statement,
        statement => statement,
    };
    // What writes is told that the past is read-only.
    let fits = only_reads(inner)
        || matches!(
            inner,
            Statement::StartTransaction { .. }
                | Statement::Insert(_)
                | Statement::Update { .. }
                | Statement::Delete(_)
                | Statement::Merge { .. }
        );
    if as_of.is_none() || fits {
        return Ok(());
    }
    Err(Error::unsupported("AS OF SYSTEM TIME in this statement")
        .hint("Queries take it, and BEGIN AS OF SYSTEM TIME '…' for all that a block reads."))
}
