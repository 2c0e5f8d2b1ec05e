//! Cursors in SQL: DECLARE, FETCH, MOVE, CLOSE.
//!
//! ```text
//! DECLARE ──> query's row stream ──FETCH──> client                     rows are pulled as they are fetched
//!                 │ the block is about to write, or to read at a newer snapshot
//!                 │ COMMIT of a cursor WITH HOLD; SCROLL: from the first row on
//!                 └──────────────> spool (memory, then a file) ──FETCH──> client
//! ```
//!
//! # Invariants
//! - A cursor shows the query's rows as of DECLARE: before anything that its transaction may see
//!   changes, the rows it has left are put aside.
//! - Cursors end with their transaction, or with ROLLBACK TO a savepoint older than they are; those
//!   WITH HOLD of a committed transaction end with CLOSE, DISCARD ALL or the session. A place is
//!   never rolled back, as in PostgreSQL.
//! - Statements on a cursor of the block under way are steps of that block: executing it again
//!   after a conflict declares and fetches again, and compares. A held cursor is no part of any
//!   transaction: nothing about it is repeated.
//!
//! # Limits
//! Without SCROLL cursors go forward only. [`MAX_CURSORS`] a session.

mod portals;
pub(super) mod positioned;
mod rows;
pub(super) mod spool;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::sync::Arc;

use telesto_cipher::Scratch;
use telesto_common::Env;
use telesto_common::limits::{MemoryBudget, Reservation};
use tokio::sync::Mutex;

use super::{Prepared, ResultColumn, Row, RowStream, Rows, Session, StatementResult, pg_micros};
use crate::error::{Error, Result, SqlState};
use crate::plan::session_view::CursorShown;
use crate::sqlparser::ast::{
    CloseCursor, Declare, FetchDirection, Ident, Statement, ValueWithSpan,
};
use positioned::Keyed;
use rows::{CursorRows, Direction};
use spool::SpoolPlace;
use telesto_sql_parser::cursor::is_move;
use telesto_sql_parser::statement_kind::{only_reads, query_reads};

/// Cursors one session may have.
const MAX_CURSORS: usize = 1000;
/// Rows of a FETCH that are given at once; more are given as they are pulled.
const AT_ONCE: u64 = 2048;

/// One cursor.
#[derive(Debug)]
struct SqlCursor {
    /// As pg_cursors shows it.
    shown: CursorShown,
    columns: Arc<[ResultColumn]>,
    /// `None`: a portal whose rows are still the protocol's to give.
    rows: Option<Arc<Mutex<CursorRows>>>,
    /// Savepoints there were; `None`: its transaction has committed.
    depth: Option<usize>,
    /// A portal of the protocol.
    portal: bool,
    /// What is behind the columns that are shown, if its rows are a table's.
    keyed: Option<Keyed>,
    /// The memory of the text that is shown.
    _charged: Option<Reservation>,
}

/// A portal or cursor that keeps no more than this is bounded by the number of them, bytes.
const FREE_BYTES: u64 = 1 << 10;

/// Takes memory for what a portal or cursor keeps of what a client sent; `None`: too little to
/// count.
fn charge(memory: &Arc<MemoryBudget>, bytes: u64) -> Result<Option<Reservation>> {
    if bytes <= FREE_BYTES {
        return Ok(None);
    }
    let reserved = memory.reserve("portals and cursors", bytes);
    reserved.map(Some).map_err(|error| {
        Error::new(SqlState::OUT_OF_MEMORY, error.to_string())
            .hint("Close portals and cursors that are no longer used, or bind smaller values.")
    })
}

impl SqlCursor {
    fn rows(&self) -> Result<Arc<Mutex<CursorRows>>> {
        self.rows.clone().ok_or_else(|| {
            Error::new(
                SqlState::OBJECT_NOT_IN_PREREQUISITE_STATE,
                format!("portal \"{}\" cannot be run", self.shown.name),
            )
        })
    }

    /// FETCH and MOVE on it are steps of the block under way.
    fn is_of_block(&self) -> bool {
        self.depth.is_some() && !self.portal
    }
}

/// A session's cursors.
#[derive(Debug, Default)]
pub(super) struct Cursors(BTreeMap<String, SqlCursor>);

impl Cursors {
    /// Whether there are any.
    pub fn any(&self) -> bool {
        !self.0.is_empty()
    }

    /// What pg_cursors shows; `None`: as it was.
    pub fn shown(&self, before: &[CursorShown]) -> Option<Vec<CursorShown>> {
        let same = self.0.len() == before.len()
            && self.0.values().zip(before).all(|(cursor, before)| cursor.shown == *before);
        (!same).then(|| self.0.values().map(|cursor| cursor.shown.clone()).collect())
    }

    /// The block ended without a commit.
    pub fn drop_block(&mut self) {
        self.0.retain(|_, cursor| cursor.depth.is_none());
    }

    /// The block begins again, and will declare its cursors again.
    pub fn begin_again(&mut self) {
        self.0.retain(|_, cursor| !cursor.is_of_block());
    }

    /// The block has committed.
    pub fn committed(&mut self) {
        self.0.retain(|_, cursor| cursor.depth.is_none() || cursor.shown.hold);
        for cursor in self.0.values_mut() {
            cursor.depth = None;
        }
    }

    /// So many savepoints are left, what came after the last of them is undone.
    pub fn rolled_back_to(&mut self, savepoints: usize) {
        self.0.retain(|_, cursor| cursor.depth.is_none_or(|depth| depth < savepoints));
    }

    /// So many savepoints are left, what came after them belongs to what was before.
    pub fn released_to(&mut self, savepoints: usize) {
        for depth in self.0.values_mut().filter_map(|cursor| cursor.depth.as_mut()) {
            *depth = (*depth).min(savepoints);
        }
    }

    /// Forgets all.
    pub fn clear(&mut self) {
        self.0.clear();
    }

    fn get(&self, name: &str) -> Result<&SqlCursor> {
        self.0.get(name).ok_or_else(|| no_cursor(name))
    }
}

fn no_cursor(name: &str) -> Error {
    Error::new(SqlState::INVALID_CURSOR_NAME, format!("cursor \"{name}\" does not exist"))
}

fn folded(name: &Ident) -> String {
    if name.quote_style.is_some() { name.value.clone() } else { name.value.to_lowercase() }
}

fn number(value: &ValueWithSpan) -> i64 {
    value.value.to_string().parse().unwrap_or(0)
}

fn direction_of(direction: &FetchDirection) -> Direction {
    match direction {
        FetchDirection::Next => Direction::Forward(Some(1)),
        FetchDirection::Prior => Direction::Forward(Some(-1)),
        FetchDirection::First => Direction::Absolute(1),
        FetchDirection::Last => Direction::Absolute(-1),
        FetchDirection::All | FetchDirection::ForwardAll => Direction::Forward(None),
        FetchDirection::BackwardAll => Direction::BackwardAll,
        FetchDirection::Count { limit } => Direction::Forward(Some(number(limit))),
        FetchDirection::Absolute { limit } => Direction::Absolute(number(limit)),
        FetchDirection::Relative { limit } => Direction::Relative(number(limit)),
        FetchDirection::Forward { limit } => {
            Direction::Forward(Some(limit.as_ref().map_or(1, number)))
        }
        FetchDirection::Backward { limit } => {
            Direction::Forward(Some(-limit.as_ref().map_or(1, number)))
        }
    }
}

/// Refuses what a cursor cannot be, before its query runs.
fn check(declare: &Declare) -> Result<()> {
    let query = declare.for_query.as_ref().ok_or_else(|| Error::internal("no query"))?;
    if !query.locks.is_empty() {
        let (what, detail) = if declare.hold == Some(true) {
            ("DECLARE CURSOR WITH HOLD", "Holdable cursors must be READ ONLY.")
        } else if declare.scroll == Some(true) {
            ("DECLARE SCROLL CURSOR", "Scrollable cursors must be READ ONLY.")
        } else if declare.sensitive == Some(true) {
            return Err(Error::new(
                SqlState::INVALID_CURSOR_DEFINITION,
                format!(
                    "DECLARE INSENSITIVE CURSOR ... {} is not valid",
                    query.locks[0].lock_type_text()
                ),
            )
            .detail("Insensitive cursors must be READ ONLY."));
        } else {
            return Ok(());
        };
        return Err(Error::new(
            SqlState::FEATURE_NOT_SUPPORTED,
            format!("{what} ... {} is not supported", query.locks[0].lock_type_text()),
        )
        .detail(detail));
    }
    if !query_reads(query) {
        return Err(Error::new(
            SqlState::FEATURE_NOT_SUPPORTED,
            "DECLARE CURSOR must not contain data-modifying statements in WITH",
        ));
    }
    Ok(())
}

trait LockText {
    fn lock_type_text(&self) -> String;
}

impl LockText for crate::sqlparser::ast::LockClause {
    fn lock_type_text(&self) -> String {
        format!("FOR {}", self.lock_type)
    }
}

impl Session {
    /// FETCH, MOVE or CLOSE of cursors that need no transaction; `None`: another statement, or the
    /// block's.
    pub(super) async fn held_cursor(
        &mut self,
        statement: &Statement,
    ) -> Result<Option<StatementResult>> {
        match statement {
            Statement::Declare { stmts } => {
                // Checked before a block is opened for it.
                let declare = stmts.first().ok_or_else(|| Error::internal("no cursor"))?;
                if self.in_a_block() || declare.hold == Some(true) {
                    return check(declare).map(|()| None);
                }
                return Err(Error::new(
                    SqlState::NO_ACTIVE_SQL_TRANSACTION,
                    "DECLARE CURSOR can only be used in transaction blocks",
                ));
            }
            Statement::Fetch { name, .. }
            | Statement::Close { cursor: CloseCursor::Specific { name } } => {
                let open = self.block.is_some();
                match self.cursors.get(&folded(name)) {
                    Ok(cursor) if cursor.is_of_block() => return Ok(None),
                    Ok(_) => {}
                    // An error of the block is a step of it.
                    Err(_) if open => return Ok(None),
                    Err(error) => return Err(error),
                }
            }
            Statement::Close { cursor: CloseCursor::All } if self.block.is_none() => {}
            _ => return Ok(None),
        }
        self.on_cursor(statement).await
    }

    /// Runs FETCH, MOVE and CLOSE; `None`: another statement.
    pub(super) async fn on_cursor(
        &mut self,
        statement: &Statement,
    ) -> Result<Option<StatementResult>> {
        match statement {
            Statement::Close { cursor: CloseCursor::All } => {
                self.cursors.clear();
                Ok(Some(StatementResult::Command { tag: "CLOSE CURSOR ALL".to_owned() }))
            }
            Statement::Close { cursor: CloseCursor::Specific { name } } => {
                let name = folded(name);
                self.cursors.0.remove(&name).ok_or_else(|| no_cursor(&name))?;
                Ok(Some(StatementResult::Command { tag: "CLOSE CURSOR".to_owned() }))
            }
            Statement::Fetch { name, direction, into, .. } => {
                let cursor = self.cursors.get(&folded(name))?;
                let (rows, columns) = (cursor.rows()?, Arc::clone(&cursor.columns));
                let direction = direction_of(direction);
                let moves = is_move(into.as_ref());
                fetch(rows, columns, direction, moves).await.map(Some)
            }
            _ => Ok(None),
        }
    }

    /// Puts aside what cursors have left when the statement may change what they would see.
    pub(super) async fn keep_cursors(&mut self, statement: &Statement) -> Result<()> {
        let moves_on = self
            .block
            .as_ref()
            .is_some_and(|block| block.options.level.is_by_statement() && !block.options.read_only);
        if self.cursors.0.is_empty() || (only_reads(statement) && !moves_on) {
            return Ok(());
        }
        self.keep(|_| true).await
    }

    /// Puts aside what the cursors WITH HOLD of the block have left: it is about to commit.
    pub(super) async fn keep_held_cursors(&mut self) -> Result<()> {
        self.keep(|shown| shown.hold).await
    }

    async fn keep(&self, wanted: impl Fn(&CursorShown) -> bool) -> Result<()> {
        for cursor in self.cursors.0.values().filter(|cursor| wanted(&cursor.shown)) {
            let Some(rows) = &cursor.rows else { continue };
            let mut rows = rows.lock().await;
            if !rows.is_live() {
                continue;
            }
            rows.keep().await?;
        }
        Ok(())
    }

    /// Refuses a name that is taken.
    pub(super) fn check_cursor_name(&self, declare: &Declare) -> Result<()> {
        let name = declare.names.first().map(folded).unwrap_or_default();
        if self.cursors.0.contains_key(&name) {
            return Err(Error::new(
                SqlState::DUPLICATE_CURSOR,
                format!("cursor \"{name}\" already exists"),
            ));
        }
        let declared = self.cursors.0.values().filter(|cursor| !cursor.portal).count();
        if declared >= MAX_CURSORS {
            return Err(Error::new(
                SqlState::PROGRAM_LIMIT_EXCEEDED,
                format!("a session may have at most {MAX_CURSORS} cursors"),
            )
            .hint("Close the ones that are no longer used."));
        }
        Ok(())
    }

    /// Makes the cursor over the result of its query.
    pub(super) fn open_cursor(
        &mut self,
        (declare, keyed): (&Declare, Option<Keyed>),
        text: &str,
        result: StatementResult,
        env: &Env,
        memory: &Arc<MemoryBudget>,
        scratch: &Scratch,
    ) -> Result<StatementResult> {
        let StatementResult::Rows { columns, rows, .. } = result else {
            return Err(Error::internal("a cursor over a statement without rows"));
        };
        let name = declare.names.first().map(folded).unwrap_or_default();
        let scroll = declare.scroll == Some(true);
        let types = columns.iter().map(|column| column.ty.clone()).collect();
        let place =
            SpoolPlace { env: env.clone(), budget: Arc::clone(memory), scratch: scratch.clone() };
        let hidden = keyed.as_ref().map_or(0, Keyed::len);
        let rows = CursorRows::new(name.clone(), scroll, types, place, rows).with_keys(hidden);
        let shown_columns = columns.len().saturating_sub(hidden);
        let columns = Arc::from(&columns[..shown_columns]);
        let depth = self.block.as_ref().map_or(0, |block| block.savepoints.len());
        let shown = CursorShown {
            name: name.clone(),
            statement: if text.is_empty() { format!("DECLARE {declare}") } else { text.to_owned() },
            hold: declare.hold == Some(true),
            binary: declare.binary == Some(true),
            scroll,
            created_micros: pg_micros(env.clock.wall_micros()),
        };
        let rows = Some(Arc::new(Mutex::new(rows)));
        let charged = charge(memory, shown.statement.len() as u64)?;
        let depth = Some(depth);
        let cursor =
            SqlCursor { shown, columns, rows, depth, portal: false, keyed, _charged: charged };
        self.cursors.0.insert(name, cursor);
        Ok(StatementResult::Command { tag: "DECLARE CURSOR".to_owned() })
    }

    /// Whether a statement fetches from a cursor declared BINARY.
    pub(super) fn fetches_binary(&self, prepared: &Prepared) -> bool {
        match prepared.statement.as_deref() {
            Some(Statement::Fetch { name, into: None, .. }) => {
                self.cursors.get(&folded(name)).is_ok_and(|cursor| cursor.shown.binary)
            }
            _ => false,
        }
    }

    /// The columns of the cursor of that name, if there is one.
    #[must_use]
    pub fn cursor_columns(&self, name: &str) -> Option<Arc<[ResultColumn]>> {
        self.cursors.get(name).ok().map(|cursor| Arc::clone(&cursor.columns))
    }

    /// The columns of a FETCH; `None` when the cursor is not there (yet).
    pub(super) fn fetched_columns(&self, statement: &Statement) -> Option<Arc<[ResultColumn]>> {
        match statement {
            Statement::Fetch { name, into: None, .. } => {
                self.cursors.get(&folded(name)).ok().map(|cursor| Arc::clone(&cursor.columns))
            }
            _ => None,
        }
    }
}

async fn fetch(
    rows: Arc<Mutex<CursorRows>>,
    columns: Arc<[ResultColumn]>,
    direction: Direction,
    moves: bool,
) -> Result<StatementResult> {
    if moves {
        let moved = rows.lock().await.fetch(direction, false).await?.1;
        return Ok(StatementResult::Command { tag: format!("MOVE {moved}") });
    }
    let many = match direction {
        Direction::Forward(Some(count)) => count.unsigned_abs() > AT_ONCE,
        Direction::Forward(None) | Direction::BackwardAll => true,
        Direction::Absolute(_) | Direction::Relative(_) => false,
    };
    let rows = if many {
        Rows::Stream(in_pieces(rows, direction))
    } else {
        Rows::Ready(rows.lock().await.fetch(direction, true).await?.0)
    };
    Ok(StatementResult::Rows { columns, rows, tag: "FETCH" })
}

/// Many rows, as they are pulled.
fn in_pieces(rows: Arc<Mutex<CursorRows>>, direction: Direction) -> RowStream {
    let (forward, left) = match direction {
        Direction::Forward(count) => {
            (count.is_none_or(|count| count > 0), count.map(i64::unsigned_abs))
        }
        _ => (false, None),
    };
    let state = Some((rows, left));
    Box::pin(futures::stream::unfold(state, move |state| async move {
        let (rows, left) = state?;
        let piece = left.unwrap_or(AT_ONCE).min(AT_ONCE);
        let step = i64::try_from(piece).unwrap_or(i64::MAX);
        let step = Direction::Forward(Some(if forward { step } else { -step }));
        let fetched = match piece {
            0 => return None,
            _ => rows.lock().await.fetch(step, true).await,
        };
        match fetched {
            Ok((fetched, count)) => {
                let end = count < piece;
                let left = left.map(|left| left - count);
                Some((Ok::<Vec<Row>, Error>(fetched), (!end).then_some((rows, left))))
            }
            Err(error) => Some((Err(error), None)),
        }
    }))
}
