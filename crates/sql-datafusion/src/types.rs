//! SQL values as Arrow arrays and back.
//!
//! | SQL | Arrow |
//! | --- | --- |
//! | boolean, smallint, integer, bigint, real, double precision | Boolean, Int16, Int32, Int64, Float32, Float64 |
//! | numeric | LargeBinary: an order-preserving form with the display scale behind it ([`super::decimal`]) |
//! | text, varchar, char, name, json, jsonb | Utf8 |
//! | `"char"` | UInt8 |
//! | bytea, uuid | Binary, FixedSizeBinary(16) |
//! | date, time | Date32, Time64(µs) |
//! | timestamp, timestamptz | Timestamp(µs), Timestamp(µs, UTC) |
//! | interval | Interval(MonthDayNano) |
//! | oid and the reg* types | UInt32 |
//! | enum | Binary: the label's order bytes |
//! | inet, cidr, timetz | Binary: their order bytes |
//! | ranges, multiranges | Binary: their order bytes; over numeric their stored form, which has the display scales |
//! | composite types, records | Utf8: the text of their fields |
//! | arrays, int2vector, oidvector | Binary: as they are stored, with their dimensions ([`super::arrays`]) |
//! | what a set-returning call gives | List, until it is unnested |
//!
//! # Why numeric is not Decimal128
//! PostgreSQL's numeric has a scale of its own in every value (`1.0`, `1.00`, quotients, averages)
//! and no bound at 38 digits; a column of one fixed scale cannot carry that.
//!
//! # Invariants
//! - The binder keeps the [`SqlType`] beside every expression: Arrow types need not tell `text`
//!   from `jsonb`.
//! - Value → array → value gives an equal value, with the same display scale. Infinite dates and
//!   timestamps keep their extreme integers.
//!
//! # Limits
//! Intervals whose time part passes 292 years are refused (22008).

use std::sync::Arc;

use arrow::array::AsArray;
use arrow::array::{
    Array, ArrayRef, BinaryBuilder, BooleanBuilder, Date32Builder, FixedSizeBinaryBuilder,
    Float32Builder, Float64Builder, Int16Builder, Int32Builder, Int64Builder,
    IntervalMonthDayNanoBuilder, LargeBinaryBuilder, ListArray, NullArray, StringBuilder,
    Time64MicrosecondBuilder, TimestampMicrosecondBuilder, UInt8Builder, UInt32Builder,
};
use arrow::buffer::{NullBuffer, OffsetBuffer};
use arrow::datatypes::{
    DataType, Date32Type, Field, Float32Type, Float64Type, Int16Type, Int32Type, Int64Type,
    IntervalMonthDayNano, IntervalMonthDayNanoType, IntervalUnit, Time64MicrosecondType, TimeUnit,
    TimestampMicrosecondType, UInt8Type, UInt32Type,
};
use datafusion::common::ScalarValue;

use super::{arrays, decimal, fault};
use telesto_sql_types::error::{Error, Result, SqlState};
use telesto_sql_types::{
    ArrayValue, BitString, Datum, Interval, Multirange, Network, Range, RangeKind, SqlType,
    ZonedTime,
};

/// Days from 1970-01-01 to 2000-01-01.
const EPOCH_DAYS: i32 = 10_957;
/// Microseconds of the same.
const EPOCH_MICROS: i64 = EPOCH_DAYS as i64 * 86_400_000_000;

/// What the binder asks of a type.
pub(crate) trait TypeShape {
    /// Whether the type is not decided yet.
    fn is_unknown(&self) -> bool;
    /// The element type of an array.
    fn element(&self) -> Option<&SqlType>;
}

impl TypeShape for SqlType {
    fn is_unknown(&self) -> bool {
        matches!(self, SqlType::Unknown)
    }

    fn element(&self) -> Option<&SqlType> {
        self.element_type()
    }
}

/// The Arrow type that carries `ty`.
pub(crate) fn arrow_type(ty: &SqlType) -> DataType {
    use SqlType as T;
    match ty {
        T::Bool => DataType::Boolean,
        T::Int2 => DataType::Int16,
        T::Int4 => DataType::Int32,
        T::Int8 => DataType::Int64,
        T::Float4 => DataType::Float32,
        T::Float8 => DataType::Float64,
        T::Numeric(_) => DataType::LargeBinary,
        T::Text
        | T::Varchar(_)
        | T::Char(_)
        | T::Name
        | T::Json
        | T::Jsonb
        | T::Record(_)
        | T::Composite(_)
        | T::Void => DataType::Utf8,
        T::InternalChar => DataType::UInt8,
        T::Bytea | T::Bit(_) | T::Varbit(_) | T::Enum(_) | T::Inet | T::Cidr => DataType::Binary,
        T::TimeTz(_) => DataType::Binary,
        T::Range(_) | T::Multirange(_) => DataType::Binary,
        T::Uuid => DataType::FixedSizeBinary(16),
        T::Date => DataType::Date32,
        T::Time(_) => DataType::Time64(TimeUnit::Microsecond),
        T::Timestamp(_) => DataType::Timestamp(TimeUnit::Microsecond, None),
        T::TimestampTz(_) => DataType::Timestamp(TimeUnit::Microsecond, Some("UTC".into())),
        T::Interval => DataType::Interval(IntervalUnit::MonthDayNano),
        T::Oid
        | T::RegClass
        | T::RegType
        | T::RegProc
        | T::RegProcedure
        | T::RegNamespace
        | T::RegRole => DataType::UInt32,
        T::Array(_) | T::Int2Vector | T::OidVector => DataType::Binary,
        T::Unknown => DataType::Null,
        T::Domain(domain) => arrow_type(&domain.base),
    }
}

/// The field of a list's elements.
fn element_field(element: &SqlType) -> Arc<Field> {
    Arc::new(Field::new_list_field(arrow_type(element), true))
}

/// The Arrow type of lists of `element`, which no expression sees as values: they are made to be
/// unnested, or of a subquery's rows.
pub(crate) fn list_type(element: &SqlType) -> DataType {
    DataType::List(element_field(element))
}

fn days(value: i32, shift: i32) -> i32 {
    if value == i32::MIN || value == i32::MAX { value } else { value.saturating_add(shift) }
}

fn micros(value: i64, shift: i64) -> i64 {
    if value == i64::MIN || value == i64::MAX { value } else { value.saturating_add(shift) }
}

/// A date as Arrow counts it.
pub(crate) fn epoch_days(value: i32) -> i32 {
    days(value, EPOCH_DAYS)
}

/// A timestamp as Arrow counts it.
///
/// # Errors
/// 22008 for the last thirty years of PostgreSQL's range: Arrow counts from 1970, and has no number
/// for them.
pub(crate) fn epoch_micros(value: i64) -> Result<i64> {
    match micros(value, EPOCH_MICROS) {
        i64::MAX if value != i64::MAX => Err(Error::new(
            SqlState::DATETIME_FIELD_OVERFLOW,
            "timestamp out of range: after 294247-01-10 only queries by key have it",
        )),
        micros => Ok(micros),
    }
}

/// The value with one zero and one NaN: Arrow tells values apart, and sorts them, by their bits,
/// and what a processor computes from infinities is a negative NaN, less than every number.
pub(crate) fn plain4(value: f32) -> f32 {
    if value.is_nan() { f32::NAN } else { value + 0.0 }
}

/// See [`plain4`].
pub(crate) fn plain8(value: f64) -> f64 {
    if value.is_nan() { f64::NAN } else { value + 0.0 }
}

fn mismatch(value: &Datum, ty: &SqlType) -> Error {
    Error::internal(format!("value {value:?} where {ty} was expected"))
}

/// Builds an array of `ty` from values.
pub(crate) fn array_of<'a>(
    ty: &SqlType,
    values: impl ExactSizeIterator<Item = &'a Datum>,
) -> Result<ArrayRef> {
    use SqlType as T;
    let len = values.len();
    let mut steps = telesto_sql_types::interrupt::Steps::default();
    macro_rules! build {
        ($builder:expr, $($pattern:pat => $value:expr),+) => {{
            let mut builder = $builder;
            for value in values {
                steps.step()?;
                match value {
                    Datum::Null => builder.append_null(),
                    $($pattern => builder.append_value($value),)+
                    #[allow(unreachable_patterns, reason = "a type with one kind of value and one with several share the macro")]
                    other => return Err(mismatch(other, ty)),
                }
            }
            Arc::new(builder.finish()) as ArrayRef
        }};
    }
    Ok(match ty {
        T::Bool => build!(BooleanBuilder::with_capacity(len), Datum::Bool(v) => *v),
        T::Int2 => build!(Int16Builder::with_capacity(len), Datum::Int2(v) => *v),
        T::Int4 => build!(Int32Builder::with_capacity(len), Datum::Int4(v) => *v),
        T::Int8 => build!(Int64Builder::with_capacity(len), Datum::Int8(v) => *v),
        T::Float4 => build!(Float32Builder::with_capacity(len), Datum::Float4(v) => plain4(*v)),
        T::Float8 => build!(Float64Builder::with_capacity(len), Datum::Float8(v) => plain8(*v)),
        T::Numeric(_) => {
            build!(LargeBinaryBuilder::with_capacity(len, len * 12), Datum::Numeric(v) => decimal::encode(v))
        }
        T::Jsonb | T::Json | T::Record(_) | T::Composite(_) => build!(
            StringBuilder::with_capacity(len, len * 32),
            json @ Datum::Jsonb(_) => text_of(json),
            Datum::Json(v) => v.as_ref(),
            Datum::Text(v) => v.as_ref()
        ),
        T::Text | T::Varchar(_) | T::Char(_) | T::Name | T::Void => {
            build!(StringBuilder::with_capacity(len, len * 16), Datum::Text(v) => v.as_ref())
        }
        T::InternalChar => {
            build!(UInt8Builder::with_capacity(len), Datum::InternalChar(v) => *v, Datum::Text(v) => v.as_bytes().first().copied().unwrap_or(0))
        }
        T::Bytea | T::Enum(_) | T::Bit(_) | T::Varbit(_) | T::Inet | T::Cidr | T::TimeTz(_) => {
            build!(
                BinaryBuilder::with_capacity(len, len * 16),
                Datum::Bytea(v) => v.as_ref(),
                Datum::Enum(v) => &v.order,
                Datum::Bits(v) => v.order_bytes(),
                Datum::Network(v) => v.order_bytes(),
                Datum::TimeTz(v) => v.order_bytes()
            )
        }
        T::Range(_) | T::Multirange(_) => build!(
            BinaryBuilder::with_capacity(len, len * 16),
            Datum::Range(v) => range_bytes(v),
            Datum::Multirange(v) => multirange_bytes(v)
        ),
        T::Uuid => {
            let mut builder = FixedSizeBinaryBuilder::with_capacity(len, 16);
            for value in values {
                match value {
                    Datum::Null => builder.append_null(),
                    Datum::Uuid(v) => builder
                        .append_value(v)
                        .map_err(|e| Error::internal(format!("uuid of 16 bytes: {e}")))?,
                    other => return Err(mismatch(other, ty)),
                }
            }
            Arc::new(builder.finish())
        }
        T::Date => {
            build!(Date32Builder::with_capacity(len), Datum::Date(v) => epoch_days(*v))
        }
        T::Time(_) => build!(Time64MicrosecondBuilder::with_capacity(len), Datum::Time(v) => *v),
        T::Timestamp(_) => {
            build!(TimestampMicrosecondBuilder::with_capacity(len), Datum::Timestamp(v) => epoch_micros(*v)?)
        }
        T::TimestampTz(_) => {
            build!(TimestampMicrosecondBuilder::with_capacity(len).with_timezone("UTC"), Datum::TimestampTz(v) => epoch_micros(*v)?)
        }
        T::Interval => build!(
            IntervalMonthDayNanoBuilder::with_capacity(len),
            Datum::Interval(v) => month_day_nano(v)?
        ),
        T::Oid
        | T::RegClass
        | T::RegType
        | T::RegProc
        | T::RegProcedure
        | T::RegNamespace
        | T::RegRole => {
            build!(UInt32Builder::with_capacity(len), Datum::Oid(v) => *v)
        }
        T::Array(_) | T::Int2Vector | T::OidVector => packed(ty, values)?,
        T::Unknown => Arc::new(NullArray::new(len)),
        T::Domain(domain) => array_of(&domain.base, values)?,
    })
}

/// Arrays in the form of [`arrays::put`].
fn packed<'a>(ty: &SqlType, values: impl ExactSizeIterator<Item = &'a Datum>) -> Result<ArrayRef> {
    let len = values.len();
    let mut builder = BinaryBuilder::with_capacity(len, len * 32);
    let (mut room, mut steps) = (Vec::new(), telesto_sql_types::interrupt::Steps::default());
    for value in values {
        steps.step()?;
        match value {
            Datum::Null => builder.append_null(),
            Datum::Array(_) => {
                room.clear();
                arrays::put(&mut room, value, ty)?;
                if i32::try_from(builder.values_slice().len() + room.len()).is_err() {
                    return Err(too_much());
                }
                builder.append_value(&room);
            }
            other => return Err(mismatch(other, ty)),
        }
    }
    Ok(Arc::new(builder.finish()))
}

fn too_much() -> Error {
    Error::new(
        SqlState::PROGRAM_LIMIT_EXCEEDED,
        "arrays of one batch take more than 2^31 bytes or elements",
    )
}

/// Lists of `element`, of arrays whose dimensions do not matter.
pub(crate) fn list_of<'a>(
    element: &SqlType,
    values: impl ExactSizeIterator<Item = &'a Datum>,
) -> Result<ArrayRef> {
    let len = values.len();
    let mut offsets = vec![0_i32];
    let mut valid = Vec::with_capacity(len);
    let mut items: Vec<&Datum> = Vec::new();
    for value in values {
        match value {
            Datum::Null => valid.push(false),
            Datum::Array(array) => {
                valid.push(true);
                items.extend(array.elements.iter());
            }
            other => return Err(mismatch(other, element)),
        }
        offsets.push(i32::try_from(items.len()).map_err(|_| too_much())?);
    }
    let items = array_of(element, items.into_iter())?;
    Ok(Arc::new(
        ListArray::try_new(
            element_field(element),
            OffsetBuffer::new(offsets.into()),
            items,
            Some(NullBuffer::from(valid)),
        )
        .map_err(|e| Error::internal(format!("list: {e}")))?,
    ))
}

/// Arrow's form of a range.
fn range_bytes(value: &Range) -> Vec<u8> {
    if value.kind() == RangeKind::Num { value.stored() } else { value.order_bytes() }
}

/// Arrow's form of a multirange.
fn multirange_bytes(value: &Multirange) -> Vec<u8> {
    if value.kind() == RangeKind::Num { value.stored() } else { value.order_bytes() }
}

/// The range or multirange of [`range_bytes`] or [`multirange_bytes`].
fn ranged(bytes: &[u8], ty: &SqlType) -> Option<Datum> {
    match ty {
        SqlType::Range(kind @ RangeKind::Num) => Range::from_stored(bytes, *kind).map(Datum::range),
        SqlType::Range(kind) => Range::from_order_bytes(bytes, *kind).map(Datum::range),
        SqlType::Multirange(kind @ RangeKind::Num) => {
            Multirange::from_stored(bytes, *kind).map(Datum::multirange)
        }
        SqlType::Multirange(kind) => {
            Multirange::from_order_bytes(bytes, *kind).map(Datum::multirange)
        }
        _ => None,
    }
}

/// The text form of a jsonb value.
fn text_of(value: &Datum) -> String {
    match value {
        Datum::Jsonb(value) => telesto_sql_expr::cast::jsonb_text(value),
        _ => String::new(),
    }
}

fn month_day_nano(value: &Interval) -> Result<IntervalMonthDayNano> {
    let nanos = value.micros.checked_mul(1000).ok_or_else(|| {
        Error::new(
            SqlState::DATETIME_FIELD_OVERFLOW,
            "interval out of range: its time part passes 292 years",
        )
    })?;
    Ok(IntervalMonthDayNano::new(value.months, value.days, nanos))
}

/// A value of a type that is carried by its order bytes.
fn of_order_bytes(bytes: &[u8], ty: &SqlType) -> Option<Datum> {
    match ty {
        ty if ty.is_bits() => BitString::from_order_bytes(bytes).map(Datum::bits),
        ty if ty.is_network() => Network::from_order_bytes(bytes).map(Datum::Network),
        SqlType::TimeTz(_) => ZonedTime::from_order_bytes(bytes).map(Datum::TimeTz),
        ty => ranged(bytes, ty),
    }
}

/// The value at `row` of an array that carries `ty`.
pub(crate) fn datum_at(array: &dyn Array, row: usize, ty: &SqlType) -> Result<Datum> {
    use SqlType as T;
    if array.is_null(row) || *array.data_type() == DataType::Null {
        return Ok(Datum::Null);
    }
    let wrong =
        || Error::internal(format!("array of {} where {ty} was expected", array.data_type()));
    macro_rules! primitive {
        ($kind:ty) => {
            array.as_primitive_opt::<$kind>().ok_or_else(wrong)?.value(row)
        };
    }
    Ok(match ty {
        T::Domain(domain) => datum_at(array, row, &domain.base)?,
        T::Bool => Datum::Bool(array.as_boolean_opt().ok_or_else(wrong)?.value(row)),
        T::Int2 => Datum::Int2(primitive!(Int16Type)),
        T::Int4 => Datum::Int4(primitive!(Int32Type)),
        T::Int8 => Datum::Int8(primitive!(Int64Type)),
        T::Float4 => Datum::Float4(primitive!(Float32Type)),
        T::Float8 => Datum::Float8(primitive!(Float64Type)),
        T::Numeric(_) => {
            let bytes = array.as_binary_opt::<i64>().ok_or_else(wrong)?.value(row);
            Datum::numeric(decimal::decode(bytes)?)
        }
        T::Jsonb => {
            let text = array.as_string_opt::<i32>().ok_or_else(wrong)?.value(row);
            let value = telesto_sql_types::json::document(text)
                .map_err(|e| Error::internal(format!("jsonb in a batch: {e}")))?;
            Datum::Jsonb(Arc::new(value))
        }
        T::Json => Datum::Json(array.as_string_opt::<i32>().ok_or_else(wrong)?.value(row).into()),
        T::Text
        | T::Varchar(_)
        | T::Char(_)
        | T::Name
        | T::Record(_)
        | T::Composite(_)
        | T::Void
        | T::Unknown => Datum::text(array.as_string_opt::<i32>().ok_or_else(wrong)?.value(row)),
        T::InternalChar => Datum::InternalChar(primitive!(UInt8Type)),
        T::Bytea => Datum::bytea(array.as_binary_opt::<i32>().ok_or_else(wrong)?.value(row)),
        T::Enum(ty) => {
            let order = array.as_binary_opt::<i32>().ok_or_else(wrong)?.value(row);
            Datum::Enum(Arc::clone(ty.by_order(order)?))
        }
        T::Bit(_)
        | T::Varbit(_)
        | T::Range(_)
        | T::Multirange(_)
        | T::Inet
        | T::Cidr
        | T::TimeTz(_) => {
            let bytes = array.as_binary_opt::<i32>().ok_or_else(wrong)?.value(row);
            of_order_bytes(bytes, ty).ok_or_else(wrong)?
        }
        T::Uuid => {
            let bytes = array.as_fixed_size_binary_opt().ok_or_else(wrong)?.value(row);
            Datum::Uuid(bytes.try_into().map_err(|_| wrong())?)
        }
        T::Date => Datum::Date(days(primitive!(Date32Type), -EPOCH_DAYS)),
        T::Time(_) => Datum::Time(primitive!(Time64MicrosecondType)),
        T::Timestamp(_) => {
            Datum::Timestamp(micros(primitive!(TimestampMicrosecondType), -EPOCH_MICROS))
        }
        T::TimestampTz(_) => {
            Datum::TimestampTz(micros(primitive!(TimestampMicrosecondType), -EPOCH_MICROS))
        }
        T::Interval => {
            let value = primitive!(IntervalMonthDayNanoType);
            Datum::Interval(Interval {
                months: value.months,
                days: value.days,
                micros: value.nanoseconds / 1000,
            })
        }
        T::Oid
        | T::RegClass
        | T::RegType
        | T::RegProc
        | T::RegProcedure
        | T::RegNamespace
        | T::RegRole => Datum::Oid(primitive!(UInt32Type)),
        T::Array(_) | T::Int2Vector | T::OidVector => {
            arrays::get(array.as_binary_opt::<i32>().ok_or_else(wrong)?.value(row), ty)?
        }
    })
}

/// The list at `row`, of elements of type `element`, as an array.
pub(crate) fn list_at(array: &dyn Array, row: usize, element: &SqlType) -> Result<Datum> {
    if array.is_null(row) {
        return Ok(Datum::Null);
    }
    let list = array.as_list_opt::<i32>();
    let items = list.ok_or_else(|| Error::internal("values that are no lists"))?.value(row);
    let mut out = Vec::with_capacity(items.len());
    let mut steps = telesto_sql_types::interrupt::Steps::default();
    for at in 0..items.len() {
        steps.step()?;
        out.push(datum_at(&items, at, element)?);
    }
    Ok(Datum::Array(Arc::new(ArrayValue::new(element.clone(), out))))
}

/// The value as a constant of a plan.
pub(crate) fn scalar(value: &Datum, ty: &SqlType) -> Result<ScalarValue> {
    let array = array_of(ty, std::iter::once(value))?;
    ScalarValue::try_from_array(&array, 0).map_err(fault::from_datafusion)
}

/// The value of a constant of a plan.
pub(crate) fn datum_of(value: &ScalarValue, ty: &SqlType) -> Result<Datum> {
    let array = value.to_array_of_size(1).map_err(fault::from_datafusion)?;
    datum_at(&array, 0, ty)
}
