//! A cursor's rows and its place among them.
//!
//! ```text
//! going forward only:  query --pull--> ahead --FETCH--> client
//! SCROLL, or kept:     query --pull--> spool --FETCH--> client
//! ```
//!
//! # Invariants
//! - Rows are those of the query at DECLARE, each once, in one order.
//! - `place` is 0 before the first row, *i* on row *i*, one more than there are rows behind the
//!   last: PostgreSQL's meaning, so that tags and repeated directions come out the same.
//! - Without SCROLL it never moves back, and rows that went by are kept nowhere.
//!
//! # On failure
//! A query that fails breaks the cursor for good: what it would show next is not known.

use futures::StreamExt as _;

use std::collections::VecDeque;

use super::spool::{MEMORY_BYTES, Spool, SpoolPlace};
use crate::error::{Error, Result, SqlState};
use crate::session::{Row, RowStream, Rows};
use crate::types::SqlType;

/// The state of a cursor.
pub(super) struct CursorRows {
    name: String,
    scroll: bool,
    types: Vec<SqlType>,
    spools: SpoolPlace,
    /// What the query has left; `None`: everything was pulled.
    source: Option<RowStream>,
    /// Pulled and not gone by, while there is no spool.
    ahead: VecDeque<Row>,
    spool: Option<Spool>,
    /// Rows that had gone by when the spool was begun: its row 0 is the next one.
    before_spool: u64,
    place: u64,
    at_end: bool,
    broken: bool,
    /// How many values at a row's end are its key, for WHERE CURRENT OF, and not shown.
    hidden: usize,
    /// The key of the row where the cursor stands.
    key: Option<Row>,
}

impl std::fmt::Debug for CursorRows {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CursorRows").field("place", &self.place).finish_non_exhaustive()
    }
}

/// Where a FETCH or MOVE goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Direction {
    /// So many rows on, or back when negative; `None`: to the end.
    Forward(Option<i64>),
    /// To the beginning.
    BackwardAll,
    /// To the row of that number, from the end when negative.
    Absolute(i64),
    /// To the row so far away.
    Relative(i64),
}

impl CursorRows {
    pub fn new(
        name: String,
        scroll: bool,
        types: Vec<SqlType>,
        spools: SpoolPlace,
        rows: Rows,
    ) -> Self {
        let (source, ahead) = match rows {
            Rows::Stream(stream) => (Some(stream), VecDeque::new()),
            Rows::Ready(rows) => {
                let stream = futures::stream::once(std::future::ready(Ok(rows)));
                (Some(Box::pin(stream) as RowStream), VecDeque::new())
            }
        };
        let mut cursor = Self {
            name,
            scroll,
            types,
            spools,
            source,
            ahead,
            spool: None,
            before_spool: 0,
            place: 0,
            at_end: false,
            broken: false,
            hidden: 0,
            key: None,
        };
        if scroll {
            cursor.spool = Some(cursor.new_spool());
        }
        cursor
    }

    /// The last `hidden` values of each row are its key.
    pub fn with_keys(mut self, hidden: usize) -> Self {
        self.hidden = hidden;
        self
    }

    /// The key of the row where the cursor stands; `None`: it stands on none.
    pub fn key(&self) -> Option<&Row> {
        self.key.as_ref().filter(|_| !self.broken)
    }

    /// Stands on `row`, of which the shown part is given.
    fn stand(&mut self, row: Option<Row>) -> Option<Row> {
        let mut row = row;
        self.key = row.as_mut().map(|row| row.split_off(row.len().saturating_sub(self.hidden)));
        row
    }

    fn new_spool(&self) -> Spool {
        Spool::new(self.types.clone(), self.spools.clone(), MEMORY_BYTES)
    }

    /// Whether rows are still the query's to give.
    pub fn is_live(&self) -> bool {
        self.source.is_some()
    }

    /// Pulls everything that is left, so that what happens to the transaction from now on is no
    /// matter.
    ///
    /// # Errors
    /// The query's; 58030.
    pub async fn keep(&mut self) -> Result<()> {
        if self.source.is_none() {
            return Ok(());
        }
        if self.spool.is_none() {
            let mut spool = self.new_spool();
            let ahead: Vec<Row> = self.ahead.drain(..).collect();
            spool.push(&ahead).await?;
            self.before_spool = self.place;
            self.spool = Some(spool);
        }
        while self.pull().await? {}
        Ok(())
    }

    /// Pulls a batch; false at the end.
    async fn pull(&mut self) -> Result<bool> {
        self.check_broken()?;
        let Some(source) = &mut self.source else { return Ok(false) };
        // Also when the wait is given up in the middle: half a batch would be lost.
        self.broken = true;
        let batch = source.next().await.transpose();
        match (batch, &mut self.spool) {
            (Ok(None), _) => self.source = None,
            (Ok(Some(rows)), Some(spool)) => spool.push(&rows).await?,
            (Ok(Some(rows)), None) => self.ahead.extend(rows),
            (Err(error), _) => {
                self.source = None;
                return Err(error);
            }
        }
        self.broken = false;
        Ok(self.source.is_some())
    }

    fn check_broken(&self) -> Result<()> {
        if self.broken {
            return Err(Error::new(
                SqlState::OBJECT_NOT_IN_PREREQUISITE_STATE,
                format!("portal \"{}\" cannot be run", self.name),
            )
            .hint("Its query failed or was cancelled: close the cursor and declare it again."));
        }
        Ok(())
    }

    /// The next row, going there.
    async fn next(&mut self) -> Result<Option<Row>> {
        let row = self.pull_next().await?;
        Ok(self.stand(row))
    }

    async fn pull_next(&mut self) -> Result<Option<Row>> {
        if self.at_end {
            return Ok(None);
        }
        loop {
            let row = match &mut self.spool {
                // A cursor that does not scroll starts its spool where it stands.
                Some(spool) if self.place >= self.before_spool => {
                    spool.get(self.place - self.before_spool).await?
                }
                Some(_) => return Err(Error::internal("a cursor stands before its spool")),
                None => self.ahead.pop_front(),
            };
            if row.is_some() {
                self.place += 1;
                return Ok(row);
            }
            if !self.pull().await? && self.source.is_none() && !self.has_next() {
                self.check_broken()?;
                self.place += 1;
                self.at_end = true;
                return Ok(None);
            }
        }
    }

    fn has_next(&self) -> bool {
        match &self.spool {
            Some(spool) => self.place.saturating_sub(self.before_spool) < spool.len(),
            None => !self.ahead.is_empty(),
        }
    }

    /// The row before, going there.
    async fn prior(&mut self) -> Result<Option<Row>> {
        self.may_go_back()?;
        self.at_end = false;
        self.place = self.place.saturating_sub(1);
        let row = match (self.place.checked_sub(1), &mut self.spool) {
            (None, _) => None,
            (Some(at), Some(spool)) => spool.get(at).await?,
            (Some(_), None) => {
                return Err(Error::internal("a cursor that scrolls has no spool"));
            }
        };
        Ok(self.stand(row))
    }

    fn may_go_back(&self) -> Result<()> {
        if self.scroll {
            return Ok(());
        }
        Err(Error::new(SqlState::OBJECT_NOT_IN_PREREQUISITE_STATE, "cursor can only scan forward")
            .hint("Declare it with SCROLL option to enable backward scan."))
    }

    fn on_row(&self) -> bool {
        self.place > 0 && !self.at_end
    }

    /// Up to `count` rows on; `None`: all.
    async fn forward(&mut self, count: Option<u64>) -> Result<Vec<Row>> {
        let mut rows = Vec::new();
        while count.is_none_or(|count| (rows.len() as u64) < count) {
            let Some(row) = self.next().await? else { break };
            rows.push(row);
        }
        Ok(rows)
    }

    /// Goes forward and keeps nothing; the number of rows.
    async fn skip(&mut self, count: Option<u64>) -> Result<u64> {
        let mut skipped = 0;
        while count.is_none_or(|count| skipped < count) && self.next().await?.is_some() {
            skipped += 1;
        }
        Ok(skipped)
    }

    /// Up to `count` rows back; `None`: all. What `kept` says is returned, and the number of them
    /// all.
    async fn backward(&mut self, count: Option<u64>, kept: bool) -> Result<(Vec<Row>, u64)> {
        self.may_go_back()?;
        let (mut rows, mut moved) = (Vec::new(), 0);
        while count.is_none_or(|count| moved < count) {
            let Some(row) = self.prior().await? else { break };
            moved += 1;
            if kept {
                rows.push(row);
            }
        }
        Ok((rows, moved))
    }

    /// Before the first row.
    fn rewind(&mut self) -> Result<()> {
        if self.place == 0 {
            return Ok(());
        }
        self.may_go_back()?;
        self.place = 0;
        self.at_end = false;
        self.key = None;
        Ok(())
    }

    async fn one(&mut self) -> Result<Vec<Row>> {
        self.forward(Some(1)).await
    }

    /// Goes where `direction` says. The rows on the way, and how many they are; without `kept` only
    /// their number.
    ///
    /// # Errors
    /// The query's; 55000 for going back without SCROLL. The cursor cannot be used any more, as in
    /// PostgreSQL.
    pub async fn fetch(&mut self, direction: Direction, kept: bool) -> Result<(Vec<Row>, u64)> {
        self.check_broken()?;
        let fetched = self.go(direction, kept).await;
        if fetched.is_err() {
            self.broken = true;
        }
        fetched
    }

    async fn go(&mut self, direction: Direction, kept: bool) -> Result<(Vec<Row>, u64)> {
        let rows = match direction {
            Direction::Forward(None) if !kept => return Ok((Vec::new(), self.skip(None).await?)),
            Direction::Forward(None) => self.forward(None).await?,
            Direction::Forward(Some(count)) if count > 0 => {
                if !kept {
                    let moved = self.skip(Some(count.unsigned_abs())).await?;
                    return Ok((Vec::new(), moved));
                }
                self.forward(Some(count.unsigned_abs())).await?
            }
            Direction::Forward(Some(0)) | Direction::Relative(0) => {
                if !self.on_row() {
                    Vec::new()
                } else if kept {
                    self.prior().await?;
                    self.one().await?
                } else {
                    return Ok((Vec::new(), 1));
                }
            }
            Direction::Forward(Some(count)) => {
                return self.backward(Some(count.unsigned_abs()), kept).await;
            }
            Direction::BackwardAll => return self.backward(None, kept).await,
            Direction::Absolute(0) => {
                self.rewind()?;
                Vec::new()
            }
            Direction::Absolute(number) if number > 0 => {
                let target = number.unsigned_abs();
                // The next row's number is greater by one; PostgreSQL starts over when that is
                // nearer.
                if target - 1 <= self.rows_gone() / 2 {
                    self.rewind()?;
                }
                if target <= self.place {
                    self.backward(Some(self.place - target + 1), false).await?;
                }
                self.skip(Some(target - 1 - self.place)).await?;
                self.one().await?
            }
            Direction::Absolute(number) => {
                self.skip(None).await?;
                let back = number.unsigned_abs();
                self.backward(Some(back - 1), false).await?;
                self.backward(Some(1), true).await?.0
            }
            Direction::Relative(count) if count > 0 => {
                self.skip(Some(count.unsigned_abs() - 1)).await?;
                self.one().await?
            }
            Direction::Relative(count) => {
                self.backward(Some(count.unsigned_abs() - 1), false).await?;
                self.backward(Some(1), true).await?.0
            }
        };
        let count = rows.len() as u64;
        Ok((if kept { rows } else { Vec::new() }, count))
    }

    fn rows_gone(&self) -> u64 {
        if self.at_end { self.place - 1 } else { self.place }
    }
}
