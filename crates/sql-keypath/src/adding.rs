//! Execution of an UPDATE that only adds to one row.
//!
//! ```text
//!  may the transaction add? ─► row at the snapshot, not remembered ─► new row, checked ─► buffered, with what was added
//!         no │                         gone │                 refused │
//!            └─────────────────────────────►┴─────────────────────────┴──► the UPDATE as any other: reads, claims, errors
//! ```
//! # Invariants
//! - Nothing is told to the client from here but `UPDATE 1`, which the commit makes sure of: every
//!   other outcome is found out by reading the row in the ordinary way.

use bytes::Bytes;
use telesto_sql_catalog::codec::addition::{RowAdditions, Term, encode_addition};
use telesto_sql_catalog::codec::encode_row;
use telesto_sql_expr::EvalContext;
use telesto_sql_plan::ExecContext;
use telesto_sql_types::Row;
use telesto_sql_types::error::Result;
use telesto_txn::{Additions as _, ReadFor};

use crate::access::Keys;
use crate::dml::{Adding, Target, UpdatePlan, number};
use crate::storage;

/// The setting that leaves all to ordinary writes.
const SETTING: &str = "telesto.commutative_updates";

impl UpdatePlan {
    /// Whether the row was added to; `false`: nothing was done.
    pub(super) async fn added(
        &self,
        adding: &[Adding],
        exec: &ExecContext,
        context: &EvalContext<'_>,
    ) -> Result<bool> {
        let Some((key, terms)) = self.wanted(adding, exec, context) else { return Ok(false) };
        if !exec.txn.may_add(&key).await? {
            return Ok(false);
        }
        let Some(stored) = exec.txn.get(&key, ReadFor::Passing).await? else { return Ok(false) };
        let mut new: Row = self.info.codec.decode(&key, &stored)?;
        let old = new.clone();
        for adding in adding {
            let (_, given) = match self.set.iter().find(|(column, _)| *column == adding.column) {
                Some(found) => found,
                None => return Ok(false),
            };
            let crate::dml::Given::Expr(expr) = given else { return Ok(false) };
            match expr.eval(&old, context) {
                Ok(value) if !value.is_null() => new[adding.column] = value,
                // The row may be another by the time of the commit, and this error with it.
                Ok(_) | Err(_) => return Ok(false),
            }
        }
        if self.info.check_row(&new, context).is_err() {
            return Ok(false);
        }
        let Some(addition) = encode_addition(&self.info.table, &terms)? else { return Ok(false) };
        let value = encode_row(&self.info.table, &key, &new)?;
        // Whoever carries it out adds to another row, and has to get by it what this statement
        // gets.
        let Ok(carried_out) = RowAdditions.add(&stored, &addition) else { return Ok(false) };
        let carried_out = self.info.codec.decode(&key, &carried_out)?;
        if encode_row(&self.info.table, &key, &carried_out)? != value {
            return Ok(false);
        }
        exec.txn.add(key, value, addition).await?;
        Ok(true)
    }

    /// The row's key and what is added, if this statement may add here and now.
    fn wanted(
        &self,
        adding: &[Adding],
        exec: &ExecContext,
        context: &EvalContext<'_>,
    ) -> Option<(Bytes, Vec<Term>)> {
        let off = exec.settings.others.get(SETTING).is_some_and(|value| value == "off");
        // Tables that regions write have rules of their own.
        if off || exec.parts.is_some() || exec.catalog.is_regional() {
            return None;
        }
        let Target::Path(access, None) = &self.target else { return None };
        let table = &self.info.table;
        let prefix = storage::prefix(exec.catalog.database, table, 0);
        // An error of the key is the ordinary path's to tell.
        let Ok(Keys::Points(mut points)) = access.keys(table, prefix, &[], context) else {
            return None;
        };
        let key = points.pop().filter(|_| points.is_empty())?;
        let term = |adding: &Adding| {
            let value = number(&adding.value.eval(&[], context).ok()?)?;
            if adding.scale.is_some_and(|scale| value.scale() > scale) {
                return None;
            }
            Some(Term {
                column: adding.column,
                add: if adding.negative { value.neg() } else { value },
                low: adding.low.clone(),
                high: adding.high.clone(),
            })
        };
        let terms = adding.iter().map(term).collect::<Option<Vec<_>>>()?;
        Some((key, terms))
    }
}
