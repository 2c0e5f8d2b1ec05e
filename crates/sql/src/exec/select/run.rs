//! Execution of single-table queries.
//!
//! # Invariants
//! A look-up by whole keys touches no scan; a result longer than a batch is a stream that reads as it is pulled.

use super::*;

impl SelectPlan {
    /// One line for EXPLAIN.
    pub(in crate::exec) fn describe(&self) -> String {
        match &self.from {
            None => "Key path: constant row".to_owned(),
            Some(from) => describe_access(&from.table, &from.access, self.filter.is_some()),
        }
    }

    /// Runs the query.
    pub(in crate::exec) async fn execute(
        self: &Arc<Self>,
        exec: &ExecContext,
        columns: Option<&Arc<[ResultColumn]>>,
    ) -> Result<StatementResult> {
        let columns = columns.map_or_else(|| Arc::from(Vec::new()), Arc::clone);
        let result = |rows| Ok(StatementResult::Rows { columns, rows, tag: "SELECT" });
        let context = EvalContext::executing(exec);
        let Some(from) = &self.from else {
            return result(Rows::Ready(self.constant(&context).await?));
        };
        if self.point {
            return result(Rows::Ready(self.point(from, exec, &context).await?));
        }
        let limit = bound_value(&self.limit, &context, "LIMIT")?;
        let offset = bound_value(&self.offset, &context, "OFFSET")?.unwrap_or(0);
        let rows_needed = limit
            .map(|l| l.saturating_add(offset))
            .filter(|_| self.sort.is_empty() && self.aggregates.is_empty());
        let mut reader = Reader::open(
            &from.table,
            &from.codec,
            &from.access,
            self.filter.as_ref(),
            rows_needed,
            exec,
            &context,
        )?;
        if !self.aggregates.is_empty() {
            let row = self.aggregate(&mut reader, exec, &context).await?;
            let keep = limit != Some(0) && offset == 0;
            return result(Rows::Ready(if keep { vec![row] } else { Vec::new() }));
        }
        if !self.sort.is_empty() {
            return result(Rows::Ready(
                self.sorted(&mut reader, limit, offset, exec, &context).await?,
            ));
        }
        // Short results are read at once; only what is longer becomes a stream.
        let mut skip = offset;
        let mut left = limit.unwrap_or(u64::MAX);
        let mut rows = Vec::new();
        while left > 0 {
            let found = self.pass(&mut reader, &mut skip, &mut left, exec, &context).await?;
            if found.is_empty() {
                return result(Rows::Ready(rows));
            }
            for row in &found {
                rows.push(if self.waits {
                    eval_all(&self.output, row, &context).await?
                } else {
                    self.project(row, &context)?
                });
            }
            if rows.len() >= BATCH && left > 0 && !self.waits {
                return result(self.stream(rows, reader, skip, left, exec));
            }
        }
        result(Rows::Ready(rows))
    }

    fn project(&self, row: &Row, context: &EvalContext<'_>) -> Result<Row> {
        self.output.iter().map(|e| e.eval(row, context)).collect()
    }

    fn stream(
        self: &Arc<Self>,
        first: Vec<Row>,
        reader: Reader,
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
        reader: &mut Reader,
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
                rows.push(found.row);
            }
            if !rows.is_empty() {
                return Ok(rows);
            }
        }
        Ok(Vec::new())
    }

    async fn constant(&self, context: &EvalContext<'_>) -> Result<Vec<Row>> {
        if let Some(filter) = &self.filter
            && eval_waiting(filter, &[], context).await?.as_bool() != Some(true)
        {
            return Ok(Vec::new());
        }
        if bound_value(&self.limit, context, "LIMIT")? == Some(0)
            || bound_value(&self.offset, context, "OFFSET")?.unwrap_or(0) > 0
        {
            return Ok(Vec::new());
        }
        Ok(vec![eval_all(&self.output, &[], context).await?])
    }

    /// Rows by whole keys: no scan, no task switch when everything is in memory.
    async fn point(
        &self,
        from: &From,
        exec: &ExecContext,
        context: &EvalContext<'_>,
    ) -> Result<Vec<Row>> {
        let prefix = storage::prefix(exec.catalog.database, &from.table, 0);
        let Keys::Points(keys) = from.access.keys(&from.table, prefix, context)? else {
            return Ok(Vec::new());
        };
        let mut rows = Vec::with_capacity(keys.len());
        for value in get_many(exec, &keys, ReadFor::Query).await?.into_iter().flatten() {
            let row = from.codec.decode(&value)?;
            if let Some(filter) = &self.filter
                && !filter.holds(&row, context)?
            {
                continue;
            }
            rows.push(self.project(&row, context)?);
        }
        Ok(rows)
    }

    async fn sorted(
        &self,
        reader: &mut Reader,
        limit: Option<u64>,
        offset: u64,
        exec: &ExecContext,
        context: &EvalContext<'_>,
    ) -> Result<Vec<Row>> {
        let mut held = exec.memory.reserve("rows to sort", 0).map_err(out_of_memory)?;
        let mut rows: Vec<(Vec<Datum>, Row)> = Vec::new();
        loop {
            let found = reader.next(BATCH, exec, context).await?;
            if found.is_empty() {
                break;
            }
            for found in found {
                let keys = self
                    .sort
                    .iter()
                    .map(|k| k.expr.eval(&found.row, context))
                    .collect::<Result<Vec<_>>>()?;
                let output = eval_all(&self.output, &found.row, context).await?;
                held.grow(row_bytes(&output) + row_bytes(&keys)).map_err(out_of_memory)?;
                rows.push((keys, output));
            }
        }
        rows.sort_by(|(a, _), (b, _)| {
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
        });
        let skip = usize::try_from(offset).unwrap_or(usize::MAX);
        let take = limit.map_or(usize::MAX, |l| usize::try_from(l).unwrap_or(usize::MAX));
        Ok(rows.into_iter().skip(skip).take(take).map(|(_, row)| row).collect())
    }

    async fn aggregate(
        &self,
        reader: &mut Reader,
        exec: &ExecContext,
        context: &EvalContext<'_>,
    ) -> Result<Row> {
        let mut states: Vec<State> = self.aggregates.iter().map(State::new).collect();
        loop {
            let found = reader.next(BATCH, exec, context).await?;
            if found.is_empty() {
                break;
            }
            for found in &found {
                for (state, aggregate) in states.iter_mut().zip(&self.aggregates) {
                    let value = match &aggregate.arg {
                        None => Datum::Bool(true),
                        Some(arg) => arg.eval(&found.row, context)?,
                    };
                    if !value.is_null() {
                        state.add(aggregate, value, context)?;
                    }
                }
            }
        }
        let results = states
            .into_iter()
            .zip(&self.aggregates)
            .map(|(state, aggregate)| state.finish(aggregate))
            .collect::<Result<Row>>()?;
        self.output.iter().map(|e| e.eval(&results, context)).collect()
    }
}

/// One line of an access path.
pub(in crate::exec) fn describe_access(table: &Table, access: &Access, filtered: bool) -> String {
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
    format!(
        "Key path: {what} on {} by {name}{}{}",
        table.name,
        if access.reverse { ", backwards" } else { "" },
        if filtered { ", filtered" } else { "" },
    )
}

/// An aggregate under way.
struct State {
    count: i64,
    value: Datum,
}

impl State {
    fn new(_: &Aggregate) -> Self {
        Self { count: 0, value: Datum::Null }
    }

    fn add(
        &mut self,
        aggregate: &Aggregate,
        value: Datum,
        context: &EvalContext<'_>,
    ) -> Result<()> {
        self.count += 1;
        let ty = aggregate.arg.as_ref().map_or(&SqlType::Int8, |a| &a.ty);
        match aggregate.kind {
            AggregateKind::CountRows | AggregateKind::Count => {}
            AggregateKind::Min | AggregateKind::Max => {
                let order = value.cmp_typed(&self.value, ty);
                let better = if aggregate.kind == AggregateKind::Max {
                    order.is_gt()
                } else {
                    order.is_lt()
                };
                if self.value.is_null() || better {
                    self.value = value;
                }
            }
            AggregateKind::Sum | AggregateKind::Avg => {
                let wide = crate::expr::cast::cast(
                    value,
                    ty,
                    &aggregate.ty,
                    crate::expr::CastContext::Explicit,
                    context,
                )?;
                self.value = match (&self.value, &wide) {
                    (Datum::Null, _) => wide,
                    (Datum::Int8(a), Datum::Int8(b)) => Datum::Int8(
                        a.checked_add(*b).ok_or_else(|| fault::out_of_range(&SqlType::Int8))?,
                    ),
                    (Datum::Float8(a), Datum::Float8(b)) => Datum::Float8(a + b),
                    (Datum::Numeric(a), Datum::Numeric(b)) => Datum::numeric(a.add(b)),
                    _ => return Err(fault::kind("numbers")),
                };
            }
        }
        Ok(())
    }

    fn finish(self, aggregate: &Aggregate) -> Result<Datum> {
        Ok(match (aggregate.kind, self.value) {
            (AggregateKind::CountRows | AggregateKind::Count, _) => Datum::Int8(self.count),
            (AggregateKind::Avg, Datum::Numeric(sum)) => {
                Datum::numeric(sum.div(&Numeric::from(self.count)).unwrap_or(Numeric::NaN))
            }
            (AggregateKind::Avg, Datum::Float8(sum)) => Datum::Float8(sum / self.count as f64),
            (_, value) => value,
        })
    }
}
