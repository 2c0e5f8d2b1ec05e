//! `lag`, `lead` and `ntile` with arguments that differ from row to row: DataFusion's take
//! constants.
//!
//! # Invariants
//! - The offset and the default of `lag` and `lead` are those of the current row; an offset that is
//!   NULL gives NULL.
//! - `ntile` takes its number from the first row of the partition that has one; rows before that
//!   get NULL.
//!
//! # On failure
//! 22014 for a number of buckets that is not positive; 57014.
//!
//! # Limits
//! A partition is held in memory, as for every function over a window.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, Int64Array, new_null_array};
use arrow::compute::interleave;
use arrow::datatypes::{DataType, Field, FieldRef, Int64Type};
use datafusion::error::{DataFusionError, Result as DfResult};
use datafusion::logical_expr::function::{PartitionEvaluatorArgs, WindowUDFFieldArgs};
use datafusion::logical_expr::{
    PartitionEvaluator, Signature, Volatility, WindowUDF, WindowUDFImpl,
};
use telesto_sql_types::interrupt::Steps;

use super::fault;

/// What is computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Computed {
    Lag,
    Lead,
    Ntile,
}

/// The function of this name, over arguments that are computed for each row: the value, its offset
/// (bigint) and perhaps a default of the value's type; of `ntile` the number of buckets (bigint).
pub(super) fn per_row(name: &str) -> Option<WindowUDF> {
    let computed = match name {
        "lag" => Computed::Lag,
        "lead" => Computed::Lead,
        "ntile" => Computed::Ntile,
        _ => return None,
    };
    let signature = Signature::variadic_any(Volatility::Volatile);
    Some(WindowUDF::new_from_impl(PerRow { computed, signature }))
}

#[derive(Debug, PartialEq, Eq, Hash)]
struct PerRow {
    computed: Computed,
    signature: Signature,
}

impl WindowUDFImpl for PerRow {
    fn name(&self) -> &str {
        match self.computed {
            Computed::Lag => "lag",
            Computed::Lead => "lead",
            Computed::Ntile => "ntile",
        }
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn field(&self, fields: WindowUDFFieldArgs) -> DfResult<FieldRef> {
        let first = fields.input_fields().first();
        let ty = match self.computed {
            Computed::Ntile => DataType::Int64,
            _ => first.map_or(DataType::Null, |field| field.data_type().clone()),
        };
        Ok(Arc::new(Field::new(fields.name(), ty, true)))
    }

    fn partition_evaluator(
        &self,
        _args: PartitionEvaluatorArgs,
    ) -> DfResult<Box<dyn PartitionEvaluator>> {
        Ok(Box::new(Evaluator(self.computed)))
    }
}

#[derive(Debug)]
struct Evaluator(Computed);

impl PartitionEvaluator for Evaluator {
    fn evaluate_all(&mut self, values: &[ArrayRef], rows: usize) -> DfResult<ArrayRef> {
        match (self.0, values) {
            (Computed::Ntile, [number]) => ntile(number, rows),
            (Computed::Lag, [value, offset, default @ ..]) => {
                moved(value, offset, default.first(), rows, true)
            }
            (Computed::Lead, [value, offset, default @ ..]) => {
                moved(value, offset, default.first(), rows, false)
            }
            _ => Err(DataFusionError::Internal("a value is missing".to_owned())),
        }
    }
}

/// The values of the rows so far before each row, or behind it.
fn moved(
    value: &ArrayRef,
    offset: &ArrayRef,
    default: Option<&ArrayRef>,
    rows: usize,
    back: bool,
) -> DfResult<ArrayRef> {
    let none = new_null_array(value.data_type(), 1);
    let offset = offset.as_primitive::<Int64Type>();
    let mut steps = Steps::default();
    let mut places = Vec::with_capacity(rows);
    for row in 0..rows {
        steps.step().map_err(fault::to_datafusion)?;
        if offset.is_null(row) {
            places.push((1, 0));
            continue;
        }
        let by = i128::from(offset.value(row));
        let wanted = row as i128 + if back { -by } else { by };
        places.push(match (usize::try_from(wanted).ok().filter(|at| *at < rows), default) {
            (Some(at), _) => (0, at),
            (None, Some(_)) => (2, row),
            (None, None) => (1, 0),
        });
    }
    let mut arrays = vec![value.as_ref(), none.as_ref()];
    arrays.extend(default.map(AsRef::as_ref));
    Ok(interleave(&arrays, &places)?)
}

/// The bucket of each row.
fn ntile(number: &ArrayRef, rows: usize) -> DfResult<ArrayRef> {
    let number = number.as_primitive::<Int64Type>();
    let mut out: Vec<Option<i64>> = Vec::with_capacity(rows);
    let mut steps = Steps::default();
    // The bucket, how many rows it has by now, how many it takes, and how many of the first take
    // one more.
    let mut state: Option<(i64, i64, i64, i64)> = None;
    let total = i64::try_from(rows).unwrap_or(i64::MAX);
    for row in 0..rows {
        steps.step().map_err(fault::to_datafusion)?;
        let (bucket, held, size, more) = match state {
            Some(state) => state,
            None if number.is_null(row) => {
                out.push(None);
                continue;
            }
            None => {
                let buckets = number.value(row);
                if buckets <= 0 {
                    let text = "argument of ntile must be greater than zero";
                    return Err(fault::to_datafusion(fault::new("22014", text.to_owned())));
                }
                match (total / buckets, total % buckets) {
                    (0, _) => (1, 0, 1, 0),
                    (size, 0) => (1, 0, size, 0),
                    (size, more) => (1, 0, size + 1, more),
                }
            }
        };
        let next = match held < size {
            true => (bucket, held + 1, size, more),
            false if more != 0 && bucket == more => (bucket + 1, 1, size - 1, 0),
            false => (bucket + 1, 1, size, more),
        };
        out.push(Some(next.0));
        state = Some(next);
    }
    Ok(Arc::new(Int64Array::from(out)))
}
