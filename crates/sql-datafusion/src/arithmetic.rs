//! Numeric arithmetic a batch at a time: sums, differences and products of columns, and integers as
//! numerics.
//!
//! # Invariants
//! What is computed here is what the registry's functions compute, to the display scale: rows that
//! do not fit 64 bits (or are no finite numbers) are left to these.
//!
//! # Limits
//! Quotients and remainders, whose scale depends on their digits, are the registry's.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, LargeBinaryArray, LargeBinaryBuilder};
use arrow::datatypes::{Int16Type, Int32Type, Int64Type};
use datafusion::common::ScalarValue;
use datafusion::logical_expr::ColumnarValue;

use super::decimal;
use telesto_sql_types::error::{Error, Result};
use telesto_sql_types::{Datum, SqlType};

/// Scales beyond are the registry's: products may have to be rounded.
const LARGEST_SCALE: u32 = 1000;

/// What is computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Arithmetic {
    Add,
    Subtract,
    Multiply,
    /// An integer as numeric.
    Convert,
}

/// What an operator of the registry is; `None`: it is none of these.
pub(super) fn operator(name: &str, args: &[SqlType], returns: &SqlType) -> Option<Arithmetic> {
    let numeric = |ty: &SqlType| matches!(ty, SqlType::Numeric(_));
    if args.len() != 2 || !args.iter().all(numeric) || !numeric(returns) {
        return None;
    }
    match name {
        "+" => Some(Arithmetic::Add),
        "-" => Some(Arithmetic::Subtract),
        "*" => Some(Arithmetic::Multiply),
        _ => None,
    }
}

/// What a cast is; `None`: it is none of these.
pub(super) fn conversion(from: &SqlType, to: &SqlType) -> Option<Arithmetic> {
    let integer = matches!(from, SqlType::Int2 | SqlType::Int4 | SqlType::Int8);
    (integer && matches!(to, SqlType::Numeric(None))).then_some(Arithmetic::Convert)
}

/// The unscaled value and the scale.
type Small = (i64, u32);

/// A row of an operand.
enum Value {
    Null,
    Small(Small),
    Other,
}

enum Operand<'a> {
    Numerics(&'a LargeBinaryArray),
    Integers(&'a dyn Array, fn(&dyn Array, usize) -> i64),
    One(Value),
}

fn small(bytes: &[u8]) -> Value {
    match decimal::decode_small(bytes) {
        Some(value) if value.1 <= LARGEST_SCALE => Value::Small(value),
        _ => Value::Other,
    }
}

impl<'a> Operand<'a> {
    fn new(value: &'a ColumnarValue) -> Result<Self> {
        Ok(match value {
            ColumnarValue::Scalar(ScalarValue::LargeBinary(Some(bytes))) => Self::One(small(bytes)),
            ColumnarValue::Scalar(value) if value.is_null() => Self::One(Value::Null),
            ColumnarValue::Scalar(_) => Self::One(Value::Other),
            ColumnarValue::Array(array) => {
                if let Some(numerics) = array.as_binary_opt::<i64>() {
                    Self::Numerics(numerics)
                } else if array.as_primitive_opt::<Int64Type>().is_some() {
                    Self::Integers(array, |array, at| array.as_primitive::<Int64Type>().value(at))
                } else if array.as_primitive_opt::<Int32Type>().is_some() {
                    Self::Integers(array, |array, at| {
                        array.as_primitive::<Int32Type>().value(at).into()
                    })
                } else if array.as_primitive_opt::<Int16Type>().is_some() {
                    Self::Integers(array, |array, at| {
                        array.as_primitive::<Int16Type>().value(at).into()
                    })
                } else {
                    return Err(Error::internal("numeric arithmetic on something else"));
                }
            }
        })
    }

    fn at(&self, row: usize) -> Value {
        match self {
            Self::Numerics(array) if array.is_null(row) => Value::Null,
            Self::Numerics(array) => small(array.value(row)),
            Self::Integers(array, _) if array.is_null(row) => Value::Null,
            Self::Integers(array, value) => Value::Small((value(*array, row), 0)),
            Self::One(Value::Null) => Value::Null,
            Self::One(Value::Small(value)) => Value::Small(*value),
            Self::One(Value::Other) => Value::Other,
        }
    }
}

/// `value` with `by` digits more behind the point.
fn shifted(value: i64, by: u32) -> Option<i64> {
    value.checked_mul(10_i64.checked_pow(by)?)
}

fn apply(arithmetic: Arithmetic, (a, s): Small, (b, t): Small) -> Option<Small> {
    let scale = s.max(t);
    match arithmetic {
        Arithmetic::Convert => Some((a, s)),
        Arithmetic::Multiply => Some((a.checked_mul(b)?, s + t)),
        Arithmetic::Add => {
            Some((shifted(a, scale - s)?.checked_add(shifted(b, scale - t)?)?, scale))
        }
        Arithmetic::Subtract => {
            Some((shifted(a, scale - s)?.checked_sub(shifted(b, scale - t)?)?, scale))
        }
    }
}

/// The results of `rows` rows; `other` computes the row that is asked for.
pub(super) fn compute(
    arithmetic: Arithmetic,
    args: &[ColumnarValue],
    rows: usize,
    mut other: impl FnMut(usize) -> Result<Datum>,
) -> Result<ArrayRef> {
    let left = args.first().ok_or_else(|| Error::internal("arithmetic without operands"))?;
    let left = Operand::new(left)?;
    let right = args.get(1).map_or(Ok(Operand::One(Value::Small((0, 0)))), Operand::new)?;
    let mut out = LargeBinaryBuilder::with_capacity(rows, rows * 16);
    let mut room = Vec::with_capacity(32);
    for row in 0..rows {
        let result = match (left.at(row), right.at(row)) {
            (Value::Null, _) | (_, Value::Null) => {
                out.append_null();
                continue;
            }
            (Value::Small(a), Value::Small(b)) => apply(arithmetic, a, b),
            _ => None,
        };
        room.clear();
        match result {
            Some((unscaled, scale)) => decimal::put_small(&mut room, unscaled, scale),
            None => match other(row)? {
                Datum::Numeric(value) => room.extend(decimal::encode(&value)),
                Datum::Null => {
                    out.append_null();
                    continue;
                }
                _ => return Err(Error::internal("numeric arithmetic gave something else")),
            },
        }
        out.append_value(&room);
    }
    Ok(Arc::new(out.finish()))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use telesto_sql_types::Numeric;

    fn number() -> impl Strategy<Value = Numeric> {
        let finite = |unscaled: BoxedStrategy<i128>| {
            (unscaled, prop_oneof![0_u32..6, 0_u32..40])
                .prop_map(|(n, scale)| Numeric::new(n, scale))
        };
        prop_oneof![
            6 => finite((-100_000_i128..100_000).boxed()),
            3 => finite(any::<i64>().prop_map(i128::from).boxed()),
            1 => finite(any::<i128>().boxed()),
            1 => Just(Numeric::NaN),
            1 => Just(Numeric::Infinity),
            1 => Just(Numeric::NegInfinity),
        ]
    }

    fn column(values: &[Option<Numeric>]) -> ColumnarValue {
        let values = values.iter().map(|value| value.as_ref().map(decimal::encode));
        ColumnarValue::Array(Arc::new(LargeBinaryArray::from_iter(values)))
    }

    fn plain(arithmetic: Arithmetic, a: &Numeric, b: &Numeric) -> Numeric {
        match arithmetic {
            Arithmetic::Add => a.add(b),
            Arithmetic::Subtract => a.sub(b),
            _ => a.mul(b).expect("in range"),
        }
    }

    proptest! {
        #[test]
        fn batches_are_computed_as_single_values_are(
            rows in proptest::collection::vec(
                (proptest::option::weighted(0.9, number()), proptest::option::weighted(0.9, number())), 1..40),
            constant in any::<bool>(),
        ) {
            for arithmetic in [Arithmetic::Add, Arithmetic::Subtract, Arithmetic::Multiply] {
                let left: Vec<_> = rows.iter().map(|row| row.0.clone()).collect();
                let mut right: Vec<_> = rows.iter().map(|row| row.1.clone()).collect();
                let mut args = [column(&left), column(&right)];
                if constant {
                    let first = right[0].clone();
                    args[1] = ColumnarValue::Scalar(ScalarValue::LargeBinary(
                        first.as_ref().map(decimal::encode)));
                    right.fill(first);
                }
                let expected = |row: usize| {
                    left[row].as_ref().zip(right[row].as_ref()).map(|(a, b)| plain(arithmetic, a, b))
                };
                let mut asked = Vec::new();
                let found = compute(arithmetic, &args, rows.len(), |row| {
                    asked.push(row);
                    Ok(expected(row).map_or(Datum::Null, Datum::numeric))
                }).expect("computes");
                let found = found.as_binary::<i64>();
                for row in 0..rows.len() {
                    let text = (!found.is_null(row))
                        .then(|| decimal::decode(found.value(row)).expect("decodes").to_string());
                    prop_assert_eq!(text, expected(row).map(|n| n.to_string()));
                    let little = |n: &Option<Numeric>| n.as_ref().is_none_or(|n| match n {
                        Numeric::Finite { unscaled, scale } => unscaled.bits() < 20 && *scale < 6,
                        _ => false,
                    });
                    if little(&left[row]) && little(&right[row]) {
                        prop_assert!(!asked.contains(&row), "row {} is computed here", row);
                    }
                }
            }
        }
    }

    #[test]
    fn integers_of_all_widths_become_numerics() {
        use arrow::array::{Int16Array, Int32Array, Int64Array};
        let columns: [ArrayRef; 3] = [
            Arc::new(Int16Array::from(vec![Some(-7), None, Some(i16::MAX)])),
            Arc::new(Int32Array::from(vec![Some(-7), None, Some(i32::MIN)])),
            Arc::new(Int64Array::from(vec![Some(-7), None, Some(i64::MIN)])),
        ];
        let last = [i64::from(i16::MAX), i64::from(i32::MIN), i64::MIN];
        for (column, last) in columns.into_iter().zip(last) {
            let args = [ColumnarValue::Array(column)];
            let found =
                compute(Arithmetic::Convert, &args, 3, |_| Ok(Datum::Null)).expect("computes");
            let found = found.as_binary::<i64>();
            assert_eq!(decimal::decode(found.value(0)).expect("decodes").to_string(), "-7");
            assert!(found.is_null(1));
            assert_eq!(
                decimal::decode(found.value(2)).expect("decodes").to_string(),
                last.to_string()
            );
        }
    }
}
