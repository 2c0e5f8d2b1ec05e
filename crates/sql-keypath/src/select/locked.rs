//! `FOR UPDATE` and its kin over one table: rows are claimed as they are found, so that NOWAIT and
//! SKIP LOCKED of others see it.
//!
//! # Protocol
//! ```text
//! rows along the path, in the order asked for --claim each--> taken: read once more, validated at commit
//!    SKIP LOCKED: nothing of this is validated                held, or changed after the snapshot: passed over (SKIP LOCKED)
//!                                                             held: 55P03 (NOWAIT), taken all the same (neither)
//! until OFFSET and LIMIT are served
//! ```
//! What a query with SKIP LOCKED passes over is not part of what its transaction read: it asks for
//! some of the rows, not for all, so workers that take jobs off one queue do not conflict.
//!
//! # Invariants
//! - A row given back was claimed, or nobody had claimed it, and its commit fails if another
//!   transaction changes it.
//! - As in PostgreSQL, rows are locked below LIMIT and OFFSET: those that OFFSET drops are claimed
//!   too.
//!
//! # Limits
//! Without NOWAIT and SKIP LOCKED only rows looked up by whole keys are waited for, before they are
//! read (`Transaction::claim`). Claims are known in one process (`Transaction::try_claim`); between
//! processes the validation of what was taken decides. What must be sorted is sorted whole, within
//! the statement's memory.

use telesto_txn::TryClaim;

use super::*;
use crate::read::Found;

/// What a locking clause does about rows that others have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RowLock {
    /// Waits for them, where it can.
    Wait,
    /// 55P03.
    Nowait,
    /// Passes them over.
    SkipLocked,
}

impl RowLock {
    /// What the clauses of a query say together; `None` without any. As in PostgreSQL, NOWAIT
    /// prevails.
    pub fn of(locks: &[ast::LockClause]) -> Option<Self> {
        let kinds = locks.iter().map(|lock| match lock.nonblock {
            Some(ast::NonBlock::Nowait) => Self::Nowait,
            Some(ast::NonBlock::SkipLocked) => Self::SkipLocked,
            None => Self::Wait,
        });
        kinds.max_by_key(|kind| match kind {
            Self::Wait => 0,
            Self::SkipLocked => 1,
            Self::Nowait => 2,
        })
    }

    /// How rows are looked for.
    pub fn reads(self) -> ReadFor {
        if self == Self::SkipLocked { ReadFor::Passing } else { ReadFor::Locked }
    }
}

/// Candidates in their order: from memory when they had to be sorted.
enum Candidates<'a> {
    Sorted(std::vec::IntoIter<Found>),
    Read(&'a mut Reader),
}

impl SelectPlan {
    /// Whether it locks rows.
    pub fn locks_rows(&self) -> bool {
        self.locks.is_some()
    }

    /// The rows of a table, claimed, inside OFFSET and LIMIT.
    ///
    /// # Errors
    /// 55P03 of NOWAIT; those of reading; 53200 when what must be sorted or given back does not fit
    /// the statement's memory.
    pub(super) async fn locked(
        &self,
        how: RowLock,
        reader: &mut Reader,
        (limit, offset): (Option<u64>, u64),
        exec: &ExecContext,
        context: &EvalContext<'_>,
    ) -> Result<Vec<Row>> {
        let mut held = exec.memory.reserve("rows to lock", 0).map_err(out_of_memory)?;
        let mut candidates = match self.sort.is_empty() {
            true => Candidates::Read(reader),
            false => {
                let mut rows = Vec::new();
                loop {
                    let found = reader.next(BATCH, exec, context).await?;
                    if found.is_empty() {
                        break;
                    }
                    for found in found {
                        let keys = self.sort_values(&found.row, context)?;
                        held.grow(row_bytes(&found.row) + row_bytes(&keys))
                            .map_err(out_of_memory)?;
                        rows.push((keys, found));
                    }
                }
                self.order(&mut rows)?;
                let sorted: Vec<Found> = rows.into_iter().map(|(_, found)| found).collect();
                Candidates::Sorted(sorted.into_iter())
            }
        };
        let mut wanted = limit.map(|limit| limit.saturating_add(offset));
        let mut skip = offset;
        let mut rows = Vec::new();
        while wanted != Some(0) && limit != Some(0) {
            let most = wanted.and_then(|n| usize::try_from(n).ok()).unwrap_or(BATCH).min(BATCH);
            let found = match &mut candidates {
                Candidates::Sorted(sorted) => sorted.by_ref().take(most).collect(),
                Candidates::Read(reader) => reader.next(most, exec, context).await?,
            };
            if found.is_empty() {
                break;
            }
            let most = wanted.and_then(|n| usize::try_from(n).ok()).unwrap_or(usize::MAX);
            for row in self.take(how, found, most, exec).await? {
                wanted = wanted.map(|n| n.saturating_sub(1));
                if skip > 0 {
                    skip -= 1;
                    continue;
                }
                let row = eval_all(&self.output, &row, context).await?;
                held.grow(row_bytes(&row)).map_err(out_of_memory)?;
                rows.push(row);
            }
        }
        Ok(rows)
    }

    /// Those of the rows found that are to be had, at most `most`.
    async fn take(
        &self,
        how: RowLock,
        found: Vec<Found>,
        most: usize,
        exec: &ExecContext,
    ) -> Result<Vec<Row>> {
        let mut keys = Vec::with_capacity(found.len());
        let mut rows = Vec::with_capacity(found.len());
        for found in found {
            if rows.len() >= most {
                break;
            }
            let claim = exec.txn.try_claim(std::slice::from_ref(&found.key))?.pop();
            match (how, claim) {
                (_, Some(TryClaim::Taken)) => {}
                // Whoever changed it is found out at commit.
                (RowLock::Nowait | RowLock::Wait, Some(TryClaim::Changed) | None) => {}
                (RowLock::Nowait, Some(TryClaim::Held)) => return Err(self.not_to_be_had()),
                (RowLock::Wait, Some(TryClaim::Held)) => {}
                (RowLock::SkipLocked, _) => continue,
            }
            keys.push(found.key);
            rows.push(found.row);
        }
        // The same snapshot: the same rows, now remembered.
        get_many(exec, &keys, ReadFor::Locked).await?;
        Ok(rows)
    }

    fn not_to_be_had(&self) -> Error {
        let table = self.from.as_ref().map_or("", |from| from.table.name.as_str());
        Error::new(
            SqlState::LOCK_NOT_AVAILABLE,
            format!("could not obtain lock on row in relation \"{table}\""),
        )
    }
}
