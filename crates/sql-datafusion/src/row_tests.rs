//! Conditions on stored rows, looked at before a row is decoded: most rows of a scan are often not
//! the ones asked for.
//!
//! # Invariants
//! A row that does not hold has a column that none of the query's constants lets through. What is
//! not understood holds: DataFusion looks at the conditions again on what comes.
//!
//! # On failure
//! XX001 for bytes that are no row of the table.
//!
//! # Limits
//! Integers, dates and times, text, char(n) and numeric. Rows of a table with a key are sealed, and
//! decoded all.

use std::collections::BTreeMap;

use super::columns::small_numeric;
use super::scan_ranges::Constraint;
use telesto_sql_catalog::Table;
use telesto_sql_catalog::codec::value::{Input, skip_value};
use telesto_sql_catalog::codec::{Cell, RowCodec};
use telesto_sql_types::error::Result;
use telesto_sql_types::{Datum, Numeric, SqlType};

/// A number as digits and how many of them stand behind the point.
type Small = (i64, u32);

/// What a value has to be.
#[derive(Debug)]
enum Test {
    /// One of some integers, in order.
    Integers(Vec<i64>),
    /// Between two, both inside.
    Between(i64, i64),
    /// One of some texts, in order; the flag: without the spaces behind.
    Texts(Vec<Box<[u8]>>, bool),
    /// Between two, each inside or not.
    TextBetween(Option<(Box<[u8]>, bool)>, Option<(Box<[u8]>, bool)>, bool),
    /// One of some numbers.
    Numbers(Vec<Small>),
    /// Between two, each inside or not.
    NumberBetween(Option<(Small, bool)>, Option<(Small, bool)>),
}

/// The conditions on the rows of a scan.
#[derive(Debug)]
pub(crate) struct RowTests {
    codec: RowCodec,
    /// In the order of the table's columns.
    tests: Vec<Test>,
}

impl RowTests {
    /// Those that constants make; `None` without any.
    ///
    /// # Errors
    /// XX001 when a stored default does not parse.
    pub fn of(table: &Table, constraints: &BTreeMap<usize, Constraint>) -> Result<Option<Self>> {
        if table.key.is_some() {
            return Ok(None);
        }
        let mut tests = BTreeMap::new();
        for (column, said) in constraints {
            let Some(ty) = table.columns.get(*column).map(|column| &column.ty) else { continue };
            if let Some(test) = test(said, ty) {
                tests.insert(*column, test);
            }
        }
        if tests.is_empty() {
            return Ok(None);
        }
        let codec = RowCodec::projected(table, |at| tests.contains_key(&at))?;
        Ok(Some(Self { codec, tests: tests.into_values().collect() }))
    }

    /// Whether the row may be one that is asked for.
    ///
    /// # Errors
    /// XX001.
    pub fn hold(&self, row: &[u8]) -> Result<bool> {
        let mut tests = self.tests.iter();
        self.codec.test(row, |_, ty, cell| match (cell, tests.next()) {
            (Cell::Stored(input), Some(test)) => test.holds(input, ty),
            (Cell::Stored(input), None) => skip_value(input, ty).map(|()| true),
            // Every condition is NULL then.
            (Cell::Null, _) => Ok(false),
            (Cell::Missing(_), _) => Ok(true),
        })
    }
}

fn test(said: &Constraint, ty: &SqlType) -> Option<Test> {
    match ty {
        SqlType::Int2
        | SqlType::Int4
        | SqlType::Int8
        | SqlType::Date
        | SqlType::Timestamp(_)
        | SqlType::TimestampTz(_) => of_integers(said),
        SqlType::Text | SqlType::Varchar(_) => of_texts(said, false),
        SqlType::Char(_) => of_texts(said, true),
        SqlType::Numeric(_) => of_numbers(said),
        _ => None,
    }
}

fn of_integers(said: &Constraint) -> Option<Test> {
    if let Some(values) = &said.values {
        let mut values: Vec<i64> = values.iter().map(integer).collect::<Option<_>>()?;
        values.sort_unstable();
        return Some(Test::Integers(values));
    }
    // An end that is not inside is the next integer's; behind the last one there is nothing to be
    // let through.
    let low = match &said.lower {
        Some((value, true)) => integer(value)?,
        Some((value, false)) => integer(value)?.checked_add(1)?,
        None => i64::MIN,
    };
    let high = match &said.upper {
        Some((value, true)) => integer(value)?,
        Some((value, false)) => integer(value)?.checked_sub(1)?,
        None => i64::MAX,
    };
    (said.lower.is_some() || said.upper.is_some()).then_some(Test::Between(low, high))
}

fn of_texts(said: &Constraint, trimmed: bool) -> Option<Test> {
    let text = |value: &Datum| match value {
        Datum::Text(text) if trimmed => Some(text.trim_end_matches(' ').as_bytes().into()),
        Datum::Text(text) => Some(text.as_bytes().into()),
        _ => None,
    };
    if let Some(values) = &said.values {
        let mut values: Vec<Box<[u8]>> = values.iter().map(text).collect::<Option<_>>()?;
        values.sort_unstable();
        return Some(Test::Texts(values, trimmed));
    }
    let (low, high) = (end(&said.lower, text)?, end(&said.upper, text)?);
    (low.is_some() || high.is_some()).then_some(Test::TextBetween(low, high, trimmed))
}

fn of_numbers(said: &Constraint) -> Option<Test> {
    let number = |value: &Datum| match value {
        Datum::Numeric(number) => match &**number {
            Numeric::Finite { unscaled, scale } => Some((i64::try_from(unscaled).ok()?, *scale)),
            _ => None,
        },
        _ => None,
    };
    if let Some(values) = &said.values {
        return Some(Test::Numbers(values.iter().map(number).collect::<Option<_>>()?));
    }
    let (low, high) = (end(&said.lower, number)?, end(&said.upper, number)?);
    (low.is_some() || high.is_some()).then_some(Test::NumberBetween(low, high))
}

/// An end as the test has it; `None` when it cannot be had.
fn end<T>(
    bound: &Option<(Datum, bool)>,
    read: impl Fn(&Datum) -> Option<T>,
) -> Option<Option<(T, bool)>> {
    match bound {
        None => Some(None),
        Some((value, inside)) => read(value).map(|value| Some((value, *inside))),
    }
}

fn integer(value: &Datum) -> Option<i64> {
    match value {
        Datum::Int2(v) => Some(i64::from(*v)),
        Datum::Int4(v) | Datum::Date(v) => Some(i64::from(*v)),
        Datum::Int8(v) | Datum::Timestamp(v) | Datum::TimestampTz(v) => Some(*v),
        _ => None,
    }
}

impl Test {
    fn holds(&self, input: &mut Input<'_>, ty: &SqlType) -> Result<bool> {
        Ok(match self {
            Self::Integers(values) => {
                let value = stored_integer(input, ty)?;
                match values.as_slice() {
                    [one] => value == *one,
                    many => many.binary_search(&value).is_ok(),
                }
            }
            Self::Between(low, high) => (*low..=*high).contains(&stored_integer(input, ty)?),
            Self::Texts(values, trimmed) => {
                let text = trim(input.sized()?, *trimmed);
                values.binary_search_by(|value| (**value).cmp(text)).is_ok()
            }
            Self::TextBetween(low, high, trimmed) => {
                let text = trim(input.sized()?, *trimmed);
                inside(low, high, |end| text.cmp(&**end))
            }
            Self::Numbers(values) => match small_numeric(input)? {
                Some(number) => {
                    values.iter().any(|value| compare(number, *value).is_none_or(|o| o.is_eq()))
                }
                None => skip_value(input, ty).map(|()| true)?,
            },
            Self::NumberBetween(low, high) => match small_numeric(input)? {
                Some(number) => {
                    let unknown = [low, high].iter().any(|end| {
                        end.as_ref().is_some_and(|(end, _)| compare(number, *end).is_none())
                    });
                    unknown
                        || inside(low, high, |end| {
                            compare(number, *end).unwrap_or(std::cmp::Ordering::Equal)
                        })
                }
                None => skip_value(input, ty).map(|()| true)?,
            },
        })
    }
}

fn inside<T>(
    low: &Option<(T, bool)>,
    high: &Option<(T, bool)>,
    order: impl Fn(&T) -> std::cmp::Ordering,
) -> bool {
    let above = low.as_ref().is_none_or(|(end, inside)| {
        let order = order(end);
        order.is_gt() || *inside && order.is_eq()
    });
    above
        && high.as_ref().is_none_or(|(end, inside)| {
            let order = order(end);
            order.is_lt() || *inside && order.is_eq()
        })
}

/// `None`: their scales are too far apart to be told here.
fn compare(one: Small, other: Small) -> Option<std::cmp::Ordering> {
    if one.1 == other.1 {
        return Some(one.0.cmp(&other.0));
    }
    let scale = one.1.max(other.1);
    // 64 bits times 10 to the 18th fit 128.
    let grown = |(number, own): Small| {
        let power = scale - own;
        (power <= 18).then(|| i128::from(number) * 10_i128.pow(power))
    };
    Some(grown(one)?.cmp(&grown(other)?))
}

fn trim(text: &[u8], trimmed: bool) -> &[u8] {
    if !trimmed {
        return text;
    }
    let end = text.iter().rposition(|byte| *byte != b' ').map_or(0, |at| at + 1);
    &text[..end]
}

fn stored_integer(input: &mut Input<'_>, ty: &SqlType) -> Result<i64> {
    Ok(match ty {
        SqlType::Int2 => i64::from(i16::from_le_bytes(input.array()?)),
        SqlType::Int4 | SqlType::Date => i64::from(i32::from_le_bytes(input.array()?)),
        _ => i64::from_le_bytes(input.array()?),
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use telesto_sql_catalog::codec::value::put_value;

    use super::*;

    /// Whether a test of such ends, or of these values, lets the stored value through.
    fn holds(value: &Datum, ty: &SqlType, said: &Constraint) -> bool {
        let Some(test) = test(said, ty) else { return true };
        let mut bytes = Vec::new();
        put_value(&mut bytes, value, ty).expect("of its type");
        let mut input = Input(&bytes);
        let held = test.holds(&mut input, ty).expect("a stored value");
        assert!(input.0.is_empty(), "a test reads its value whole");
        held
    }

    fn between(low: Datum, low_inside: bool, high: Datum, high_inside: bool) -> Constraint {
        Constraint {
            values: None,
            lower: Some((low, low_inside)),
            upper: Some((high, high_inside)),
        }
    }

    fn inside(value: &Datum, said: &Constraint, ty: &SqlType) -> bool {
        let (Some((low, low_inside)), Some((high, high_inside))) = (&said.lower, &said.upper)
        else {
            return false;
        };
        let (above, below) = (value.cmp_typed(low, ty), value.cmp_typed(high, ty));
        (above.is_gt() || *low_inside && above.is_eq())
            && (below.is_lt() || *high_inside && below.is_eq())
    }

    fn small() -> impl Strategy<Value = Datum> {
        (-50_i64..50, 0_u32..3)
            .prop_map(|(unscaled, scale)| Datum::numeric(Numeric::new(unscaled, scale)))
    }

    fn text() -> impl Strategy<Value = Datum> {
        "[ab ]{0,3}".prop_map(Datum::text)
    }

    fn integer() -> impl Strategy<Value = Datum> {
        prop_oneof![-5_i32..5, Just(i32::MIN), Just(i32::MAX)].prop_map(Datum::Int4)
    }

    proptest! {
        #[test]
        fn tests_answer_as_the_values_compare(
            integers in (integer(), integer(), integer()),
            texts in (text(), text(), text()),
            numbers in (small(), small(), small()),
            ends in (any::<bool>(), any::<bool>()),
        ) {
            for (ty, (value, low, high)) in [
                (SqlType::Int4, integers),
                (SqlType::Text, texts.clone()),
                (SqlType::Char(Some(3)), texts),
                (SqlType::Numeric(None), numbers),
            ] {
                let said = between(low.clone(), ends.0, high.clone(), ends.1);
                // An end at the last integer is not tested: every row passes.
                let tested = test(&said, &ty).is_some();
                if tested {
                    prop_assert_eq!(holds(&value, &ty, &said), inside(&value, &said, &ty), "{:?} {:?}", value, said);
                }
                let said = Constraint { values: Some(vec![low.clone(), high.clone()]), ..Constraint::default() };
                let one_of = [&low, &high].iter().any(|one| value.cmp_typed(one, &ty).is_eq());
                prop_assert_eq!(holds(&value, &ty, &said), one_of, "{:?} {:?}", value, said);
            }
        }
    }

    #[test]
    fn numbers_that_are_not_small_pass() {
        let great =
            Datum::numeric(Numeric::parse("123456789012345678901234567890").expect("a number"));
        let said = between(small_one(), true, small_one(), true);
        assert!(holds(&great, &SqlType::Numeric(None), &said));
        assert!(holds(&Datum::numeric(Numeric::NaN), &SqlType::Numeric(None), &said));
    }

    fn small_one() -> Datum {
        Datum::numeric(Numeric::new(1, 0))
    }
}
