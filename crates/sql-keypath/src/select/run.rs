//! Execution of queries.
//!
//! # Invariants
//! A look-up by whole keys touches no scan; a result longer than a batch is a stream that reads as
//! it is pulled.

use telesto_sql_catalog::uses::Path;

use super::*;

/// How much the rows hold that are read before a result becomes a stream.
const FIRST_BYTES: u64 = 1 << 20;

/// By how many whole keys rows are looked up at once; what asks for more is a stream.
const FEW: usize = 64;

impl SelectPlan {
    /// One line for EXPLAIN.
    pub(crate) fn describe(&self) -> String {
        let mut words = match (&self.from, &self.join) {
            (None, Some(join)) if self.sort_first => {
                let words = join.describe();
                words.replacen('\n', ", sorted if few\n", 1)
            }
            (None, Some(join)) => join.describe(),
            (None, None) => "Key path: constant row".to_owned(),
            (Some(from), _) if self.first_only => {
                let words = describe_access(&from.table, &from.access, self.filter.is_some());
                // One row, whatever the range.
                let words = words.replacen("Key path: full scan on", "Key path: first of", 1);
                words.replacen("Key path: range on", "Key path: first of", 1)
            }
            (Some(from), _) => describe_access(&from.table, &from.access, self.filter.is_some()),
        };
        words = index_only(words, self.from.as_ref().and_then(|from| from.entries.as_ref()));
        if self.group.is_some() {
            words.push_str(", grouped");
        }
        words
    }

    /// Runs the query.
    pub(crate) async fn execute(
        self: &Arc<Self>,
        exec: &ExecContext,
        columns: Option<&Arc<[ResultColumn]>>,
    ) -> Result<StatementResult> {
        let columns = columns.map_or_else(|| Arc::from(Vec::new()), Arc::clone);
        let result = |rows| Ok(StatementResult::Rows { columns, rows, tag: "SELECT" });
        let locked;
        let exec = if let Some(lock) = self.locks {
            let lock = if self.join.is_some() { RowLock::Wait } else { lock };
            locked = ExecContext { read_for: lock.reads(), ..exec.clone() };
            &locked
        } else {
            exec
        };
        let context = EvalContext::executing(exec);
        if let (Some(from), true) = (&self.from, self.point)
            && let Some(rows) = self.point(from, exec, &context).await?
        {
            return result(Rows::Ready(rows));
        }
        let alone = self.from.is_none() && self.join.is_none();
        if alone && self.group.is_none() {
            return result(Rows::Ready(self.constant(&context).await?));
        }
        let limit = bound_value(&self.limit, &context, "LIMIT")?;
        let offset = bound_value(&self.offset, &context, "OFFSET")?.unwrap_or(0);
        let mut reader = match alone {
            true => Input::Constant(self.is_one_row(&context).await?),
            false => self.open(limit, offset, exec, &context)?,
        };
        if let (Some(lock), Input::Table(reader)) = (self.locks, &mut reader) {
            let waits = lock == RowLock::Wait;
            if waits {
                reader.claim(exec).await?;
            }
            if !waits || !self.sort.is_empty() {
                let bounds = (limit, offset);
                let rows = self.locked(lock, reader, bounds, exec, &context).await?;
                return result(Rows::Ready(rows));
            }
            reader.claim_found();
        }
        if let Some(grouping) = &self.group {
            let groups = self.groups(grouping, &mut reader, exec, &context).await?;
            return result(Rows::Ready(self.over_groups(groups, limit, offset, &context)?));
        }
        if !self.aggregates.is_empty() {
            let row = self.aggregate(&mut reader, exec, &context).await?;
            let keep = limit != Some(0) && offset == 0;
            return result(Rows::Ready(if keep { vec![row] } else { Vec::new() }));
        }
        if !self.sort.is_empty() && !self.sorted_first(&mut reader, exec, &context).await? {
            return result(Rows::Ready(
                self.sorted(&mut reader, limit, offset, exec, &context).await?,
            ));
        }
        // Short results are read at once; only what is longer becomes a stream.
        let mut skip = offset;
        let mut left = limit.unwrap_or(u64::MAX);
        let mut rows = Vec::new();
        let mut bytes = 0;
        let kept = self.waits.then(|| exec.memory.reserve("rows of a query", 0));
        let mut kept = kept.transpose().map_err(out_of_memory)?;
        while left > 0 {
            let found = self.pass(&mut reader, &mut skip, &mut left, exec, &context).await?;
            if found.is_empty() {
                return result(Rows::Ready(rows));
            }
            for row in &found {
                if let Some(kept) = &mut kept {
                    let row = eval_all(&self.output, row, &context).await?;
                    kept.grow(row_bytes(&row)).map_err(out_of_memory)?;
                    rows.push(row);
                } else {
                    rows.push(self.project(row, &context)?);
                }
            }
            bytes += match rows.len() > FEW {
                true => found.iter().map(row_bytes).sum(),
                false => 0,
            };
            if (rows.len() >= BATCH || bytes > FIRST_BYTES) && left > 0 && !self.waits {
                return result(self.stream(rows, reader, skip, left, exec));
            }
        }
        result(Rows::Ready(rows))
    }

    fn open(
        &self,
        limit: Option<u64>,
        offset: u64,
        exec: &ExecContext,
        context: &EvalContext<'_>,
    ) -> Result<Input> {
        if let Some(join) = &self.join {
            return Ok(Input::Join(JoinReader::open(join, exec, context)?));
        }
        let from = self.from.as_ref().ok_or_else(|| Error::internal("a query without a table"))?;
        let rows_needed = limit
            .map(|l| l.saturating_add(offset))
            .filter(|_| self.sort.is_empty() && self.aggregates.is_empty() && self.group.is_none())
            .filter(|_| self.locks != Some(RowLock::SkipLocked))
            .or_else(|| self.first_only.then_some(1));
        let reader = Reader::open(
            &from.table,
            &from.codec,
            &from.access,
            self.filter.as_ref(),
            rows_needed,
            exec,
            context,
        )?;
        Ok(Input::Table(reader.by_entries(from.entries.as_ref(), exec.read_for)))
    }

    pub(super) fn project(&self, row: &Row, context: &EvalContext<'_>) -> Result<Row> {
        self.output.iter().map(|e| e.eval(row, context)).collect()
    }

    fn stream(
        self: &Arc<Self>,
        first: Vec<Row>,
        reader: Input,
        skip: u64,
        left: u64,
        exec: &ExecContext,
    ) -> Rows {
        let state = (Arc::clone(self), exec.clone(), Some(first), reader, skip, left);
        Rows::Stream(Box::pin(futures::stream::try_unfold(
            state,
            |(plan, exec, first, mut reader, mut skip, mut left)| async move {
                let rows = match first {
                    Some(rows) => rows,
                    None => {
                        let context = EvalContext::executing(&exec);
                        let found =
                            plan.pass(&mut reader, &mut skip, &mut left, &exec, &context).await?;
                        found
                            .iter()
                            .map(|row| plan.project(row, &context))
                            .collect::<Result<Vec<_>>>()?
                    }
                };
                if rows.is_empty() {
                    return Ok(None);
                }
                Ok(Some((rows, (plan, exec, None, reader, skip, left))))
            },
        )))
    }

    /// The next rows inside OFFSET and LIMIT, not projected yet; empty at the end.
    async fn pass(
        &self,
        reader: &mut Input,
        skip: &mut u64,
        left: &mut u64,
        exec: &ExecContext,
        context: &EvalContext<'_>,
    ) -> Result<Vec<Row>> {
        while *left > 0 {
            let wanted =
                usize::try_from(left.saturating_add(*skip)).unwrap_or(usize::MAX).min(BATCH);
            let found = reader.next(wanted, exec, context).await?;
            if found.is_empty() {
                break;
            }
            let mut rows = Vec::with_capacity(found.len());
            for found in found {
                if *skip > 0 {
                    *skip -= 1;
                    continue;
                }
                if *left == 0 {
                    break;
                }
                *left -= 1;
                rows.push(found);
            }
            if !rows.is_empty() {
                return Ok(rows);
            }
        }
        Ok(Vec::new())
    }

    /// Whether the condition of a query without tables keeps its row.
    async fn is_one_row(&self, context: &EvalContext<'_>) -> Result<bool> {
        let Some(filter) = &self.filter else { return Ok(true) };
        Ok(eval_waiting(filter, &[], context).await?.as_bool() == Some(true))
    }

    async fn constant(&self, context: &EvalContext<'_>) -> Result<Vec<Row>> {
        if !self.is_one_row(context).await? {
            return Ok(Vec::new());
        }
        if bound_value(&self.limit, context, "LIMIT")? == Some(0)
            || bound_value(&self.offset, context, "OFFSET")?.unwrap_or(0) > 0
        {
            return Ok(Vec::new());
        }
        // One row is in any order, but what it is ordered by is computed, and may fail.
        for key in &self.sort {
            key.expr.eval(&[], context)?;
        }
        Ok(vec![eval_all(&self.output, &[], context).await?])
    }

    /// Rows by whole keys: no scan, no task switch when everything is in memory. `None`: there are
    /// so many that they are to be streamed.
    async fn point(
        &self,
        from: &From,
        exec: &ExecContext,
        context: &EvalContext<'_>,
    ) -> Result<Option<Vec<Row>>> {
        let prefix = storage::prefix(exec.catalog.database, &from.table, 0);
        let Keys::Points(keys) = from.access.keys(&from.table, prefix, &[], context)? else {
            return Ok(Some(Vec::new()));
        };
        if keys.len() > FEW {
            return Ok(None);
        }
        if self.locks.is_some() && keys.len() <= CLAIMED {
            exec.txn.claim(&keys).await?;
        }
        let mut rows = Vec::with_capacity(keys.len());
        let mut found = 0;
        let values = get_many(exec, &keys, exec.read_for).await?;
        for (key, value) in keys.iter().zip(values) {
            let Some(value) = value else { continue };
            found += 1;
            let row = from.codec.decode(key, &value)?;
            if let Some(filter) = &self.filter
                && !filter.holds(&row, context)?
            {
                continue;
            }
            rows.push(self.project(&row, context)?);
        }
        exec.live.uses.read(from.table.id, Path::Index(0), 1, found);
        Ok(Some(rows))
    }

    /// Has the rows of a join come sorted, if that can be done before they are joined.
    async fn sorted_first(
        &self,
        reader: &mut Input,
        exec: &ExecContext,
        context: &EvalContext<'_>,
    ) -> Result<bool> {
        let Input::Join(reader) = reader else { return Ok(false) };
        if !self.sort_first {
            return Ok(false);
        }
        let sort = |rows: Vec<Row>| {
            let keyed = rows.into_iter().map(|row| Ok((self.sort_values(&row, context)?, row)));
            let mut rows = keyed.collect::<Result<Vec<_>>>()?;
            self.order(&mut rows)?;
            Ok(rows.into_iter().map(|(_, row)| row).collect())
        };
        reader.sort_driver(sort, exec, context).await
    }

    async fn sorted(
        &self,
        reader: &mut Input,
        limit: Option<u64>,
        offset: u64,
        exec: &ExecContext,
        context: &EvalContext<'_>,
    ) -> Result<Vec<Row>> {
        let mut held = exec.memory.reserve("rows to sort", 0).map_err(out_of_memory)?;
        let mut rows: Vec<(Vec<Datum>, Row)> = Vec::new();
        let keep = limit.and_then(|l| usize::try_from(l.saturating_add(offset)).ok());
        loop {
            let found = reader.next(BATCH, exec, context).await?;
            if found.is_empty() {
                break;
            }
            for found in found {
                let keys = self.sort_values(&found, context)?;
                let output = eval_all(&self.output, &found, context).await?;
                held.grow(row_bytes(&output) + row_bytes(&keys)).map_err(out_of_memory)?;
                rows.push((keys, output));
            }
            // Of a short result only the best are kept.
            if keep.is_some_and(|keep| rows.len() >= keep.saturating_mul(2).max(2 * BATCH)) {
                self.order(&mut rows)?;
                let dropped = rows.drain(keep.unwrap_or(0)..);
                held.shrink(dropped.map(|(keys, row)| row_bytes(&row) + row_bytes(&keys)).sum());
            }
        }
        self.order(&mut rows)?;
        let skip = usize::try_from(offset).unwrap_or(usize::MAX);
        let take = limit.map_or(usize::MAX, |l| usize::try_from(l).unwrap_or(usize::MAX));
        Ok(rows.into_iter().skip(skip).take(take).map(|(_, row)| row).collect())
    }

    /// What a row is sorted by.
    pub(super) fn sort_values(&self, row: &Row, context: &EvalContext<'_>) -> Result<Vec<Datum>> {
        self.sort.iter().map(|key| key.expr.eval(row, context)).collect()
    }

    /// Sorts rows by their keys; equal ones stay as they came.
    ///
    /// # Errors
    /// Those of [`telesto_sql_types::interrupt::check`]; then the rows are gone.
    pub(super) fn order<T>(&self, rows: &mut Vec<(Vec<Datum>, T)>) -> Result<()> {
        let unordered = std::mem::take(rows);
        *rows = telesto_sql_types::interrupt::sort(unordered, |(a, _), (b, _)| {
            for ((x, y), key) in a.iter().zip(b).zip(&self.sort) {
                let order = match (x.is_null(), y.is_null()) {
                    (true, true) => std::cmp::Ordering::Equal,
                    (true, false) if key.nulls_first => std::cmp::Ordering::Less,
                    (true, false) => std::cmp::Ordering::Greater,
                    (false, true) if key.nulls_first => std::cmp::Ordering::Greater,
                    (false, true) => std::cmp::Ordering::Less,
                    _ if key.descending => y.cmp_typed(x, &key.expr.ty),
                    _ => x.cmp_typed(y, &key.expr.ty),
                };
                if order.is_ne() {
                    return order;
                }
            }
            std::cmp::Ordering::Equal
        })?;
        Ok(())
    }

    async fn aggregate(
        &self,
        reader: &mut Input,
        exec: &ExecContext,
        context: &EvalContext<'_>,
    ) -> Result<Row> {
        let mut states: Vec<State> = self.aggregates.iter().map(State::new).collect();
        loop {
            let enough = if self.first_only { 1 } else { BATCH };
            let found = reader.next(enough, exec, context).await?;
            if found.is_empty() {
                break;
            }
            for found in &found {
                for (state, aggregate) in states.iter_mut().zip(&self.aggregates) {
                    state.take(aggregate, found, context)?;
                }
            }
            if self.first_only {
                break;
            }
        }
        let results = states
            .into_iter()
            .zip(&self.aggregates)
            .map(|(state, aggregate)| state.finish(aggregate))
            .collect::<Result<Row>>()?;
        // Such as setval over the greatest value.
        eval_all(&self.output, &results, context).await
    }
}

/// Where rows come from.
#[derive(Debug)]
pub(super) enum Input {
    Table(Reader),
    Join(JoinReader),
    /// The row of a query without tables, which has no columns, while it is to come.
    Constant(bool),
}

impl Input {
    /// The next rows; empty at the end.
    pub async fn next(
        &mut self,
        max_rows: usize,
        exec: &ExecContext,
        context: &EvalContext<'_>,
    ) -> Result<Vec<Row>> {
        match self {
            Self::Table(reader) => {
                let found = reader.next(max_rows, exec, context).await?;
                Ok(found.into_iter().map(|found| found.row).collect())
            }
            Self::Join(reader) => reader.next(max_rows, exec, context).await,
            Self::Constant(comes) => Ok(std::mem::take(comes).then(Row::new).into_iter().collect()),
        }
    }
}

/// The words of a path, and that it reads the index's entries alone, if it does.
pub(crate) fn index_only(words: String, entries: Option<&EntryCodec>) -> String {
    match (entries, words.split_once(" (rows=")) {
        (None, _) => words,
        (Some(_), Some((words, rows))) => format!("{words}, index only (rows={rows}"),
        (Some(_), None) => words + ", index only",
    }
}

/// One line of an access path.
pub(crate) fn describe_access(table: &Table, access: &Access, filtered: bool) -> String {
    format!("Key path: {}", access_words(table, access, filtered))
}

/// An access path in words.
pub(crate) fn access_words(table: &Table, access: &Access, filtered: bool) -> String {
    let name = match (access.index, table.index(access.index)) {
        (_, Some(index)) => index.name.clone(),
        (_, None) => "row id".to_owned(),
    };
    let what = if access.is_full() {
        "full scan"
    } else if access.unique {
        "look-up"
    } else {
        "range"
    };
    let rows = access.rows.map(|rows| format!(" (rows={rows})")).unwrap_or_default();
    format!(
        "{what} on {} by {name}{}{}{rows}",
        table.name,
        if access.reverse { ", backwards" } else { "" },
        if filtered { ", filtered" } else { "" },
    )
}
