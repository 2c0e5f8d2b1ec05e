//! Portals of the protocol among the session's cursors: both have one space of names, as in
//! PostgreSQL.
//!
//! ```text
//! Bind ──open──> a name that is taken ──another statement comes──> put aside: rows kept ──FETCH, MOVE, Execute──> client
//!                      │ Execute: the protocol gives the rows              CLOSE, Close, the transaction's end: gone
//! ```
//!
//! # Invariants
//! - A portal that is put aside has been read to its end: nothing that happens to its transaction,
//!   repeated after a conflict or not, changes what it shows. So its place is no part of what is
//!   repeated, as that of a cursor WITH HOLD.
//! - Portals go forward only, and end with their transaction.
//! - A cursor that was declared in SQL may be executed by the protocol, too. Its block is not
//!   executed again after a conflict then.

use std::sync::Arc;

use telesto_common::limits::Reservation;
use tokio::sync::Mutex;

use super::rows::{CursorRows, Direction};
use super::spool::SpoolPlace;
use super::{SqlCursor, fetch, no_cursor};
use crate::error::{Error, Result, SqlState};
use crate::plan::session_view::CursorShown;
use crate::session::run::failed_transaction;
use crate::session::{Prepared, ResultColumn, Rows, Session, StatementResult, pg_micros};
use crate::sqlparser::ast::Statement;

impl Prepared {
    /// Whether it is FETCH or MOVE.
    #[must_use]
    pub fn fetches(&self) -> bool {
        matches!(self.statement.as_deref(), Some(Statement::Fetch { .. }))
    }

    /// Whether it ends a transaction, and so its portals: also when another one begins at once (AND
    /// CHAIN).
    #[must_use]
    pub fn ends_transaction(&self) -> bool {
        matches!(
            self.statement.as_deref(),
            Some(Statement::Commit { .. } | Statement::Rollback { savepoint: None, .. })
        )
    }
}

impl Session {
    /// Takes `name` for a portal of `prepared`. The portal without a name takes the place of the
    /// one there was.
    ///
    /// # Errors
    /// 42P03 when a portal or a cursor has that name; 53200.
    pub fn open_portal(&mut self, name: &str, prepared: &Arc<Prepared>) -> Result<()> {
        if name.is_empty() {
            self.cursors.0.remove(name);
            return Ok(());
        }
        if self.cursors.0.contains_key(name) {
            return Err(Error::new(
                SqlState::DUPLICATE_CURSOR,
                format!("cursor \"{name}\" already exists"),
            ));
        }
        let columns = prepared.columns.clone().unwrap_or_else(|| Arc::from([]));
        self.enter_portal(name, &prepared.sql, columns, None)
    }

    /// Takes memory for what a portal keeps of `bytes` that a client sent; `None`: too little to
    /// count.
    ///
    /// # Errors
    /// 53200.
    pub fn charge_portal(&self, bytes: u64) -> Result<Option<Reservation>> {
        super::charge(&self.engine.memory, bytes)
    }

    fn enter_portal(
        &mut self,
        name: &str,
        text: &str,
        columns: Arc<[ResultColumn]>,
        rows: Option<CursorRows>,
    ) -> Result<()> {
        let charged = super::charge(&self.engine.memory, text.len() as u64)?;
        let shown = CursorShown {
            name: name.to_owned(),
            statement: text.to_owned(),
            hold: false,
            binary: false,
            scroll: false,
            created_micros: pg_micros(self.engine.env.clock.wall_micros()),
        };
        let depth = self.block.as_ref().map_or(0, |block| block.savepoints.len());
        let rows = rows.map(|rows| Arc::new(Mutex::new(rows)));
        let depth = Some(depth);
        let cursor =
            SqlCursor { shown, columns, rows, depth, portal: true, keyed: None, _charged: charged };
        self.cursors.0.insert(name.to_owned(), cursor);
        Ok(())
    }

    /// Puts aside the rows that a portal has left, for FETCH and for the protocol
    /// ([`Session::fetch_portal`]).
    ///
    /// # Errors
    /// The statement's; 58030.
    pub async fn keep_portal(
        &mut self,
        name: &str,
        prepared: &Arc<Prepared>,
        columns: Arc<[ResultColumn]>,
        rows: Rows,
    ) -> Result<()> {
        let types = columns.iter().map(|column| column.ty.clone()).collect();
        let place = SpoolPlace {
            env: self.engine.env.clone(),
            budget: Arc::clone(&self.engine.memory),
            scratch: self.engine.options.scratch.clone(),
        };
        let mut kept = CursorRows::new(name.to_owned(), false, types, place, rows);
        kept.keep().await?;
        match self.cursors.0.get_mut(name) {
            Some(cursor) => cursor.rows = Some(Arc::new(Mutex::new(kept))),
            None => self.enter_portal(name, &prepared.sql, columns, Some(kept))?,
        }
        Ok(())
    }

    /// Whether a portal or a cursor has that name.
    #[must_use]
    pub fn has_portal(&self, name: &str) -> bool {
        self.cursors.0.contains_key(name)
    }

    /// The next rows of a portal that was put aside, or of a cursor: `max_rows` of them, or with 0
    /// all.
    ///
    /// # Errors
    /// 34000 when there is none; 25P02 in a failed transaction; 55000 when it cannot be run; the
    /// query's.
    pub async fn fetch_portal(&mut self, name: &str, max_rows: u64) -> Result<StatementResult> {
        if self.block.as_ref().is_some_and(|block| block.failed) {
            return Err(failed_transaction());
        }
        let cursor = self.cursors.0.get(name).ok_or_else(|| no_cursor(name))?;
        let count = match max_rows {
            0 => None,
            rows => Some(i64::try_from(rows).unwrap_or(i64::MAX)),
        };
        let (rows, columns, of_block) =
            (cursor.rows()?, Arc::clone(&cursor.columns), cursor.is_of_block());
        if of_block {
            // FETCH is a step of the block, compared when it is executed again; what Execute gives
            // is not.
            self.repeats_no_more();
        }
        let fetched = fetch(rows, columns, Direction::Forward(count), false).await?;
        self.with_names(fetched)
    }

    /// Ends the portal or cursor of that name, if there is one.
    pub fn close_portal(&mut self, name: &str) {
        self.cursors.0.remove(name);
    }

    /// Ends all portals; declared cursors stay.
    pub fn close_portals(&mut self) {
        if self.cursors.any() {
            self.cursors.0.retain(|_, cursor| !cursor.portal);
        }
    }
}
