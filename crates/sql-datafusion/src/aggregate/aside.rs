//! The state of an aggregate's group as it is put aside (spilled), and how it is taken in again.
//!
//! # Invariants
//! A state taken in adds what its rows would have added.

use super::{Fold, FoldState};
use telesto_sql_types::error::{Error, Result, SqlState};
use telesto_sql_types::interrupt::Steps;
use telesto_sql_types::{Datum, SqlType};

/// Types of the intermediate state (what is spilled): the number of rows, then either the running
/// value or the values kept, one list an argument.
pub(super) fn state_types(fold: Fold, args: &[SqlType], distinct: bool) -> Vec<SqlType> {
    let mut types = vec![SqlType::Int8];
    match fold {
        _ if distinct => types.extend(args.iter().map(|ty| ty.clone().array_of())),
        Fold::SumNumeric | Fold::AvgNumeric => types.push(SqlType::Numeric(None)),
        Fold::SumInterval | Fold::AvgInterval => {
            types.push(SqlType::Numeric(None).array_of());
        }
        Fold::Least | Fold::Greatest | Fold::Combined(_) => types.extend(args.iter().cloned()),
        _ => types.extend(args.iter().map(|ty| ty.clone().array_of())),
    }
    types
}

impl FoldState {
    /// Takes in a state that was put aside.
    pub(super) fn merge(&mut self, parts: &[Datum]) -> Result<()> {
        let count = parts[0].as_i64().unwrap_or(0);
        let compact = self.seen.is_none();
        match (self.fold, &parts[1]) {
            (Fold::SumNumeric | Fold::AvgNumeric, Datum::Numeric(sum)) if compact => {
                self.count += count;
                self.sum.add(sum, false);
            }
            (Fold::SumInterval | Fold::AvgInterval, Datum::Array(list)) if compact => {
                self.count += count;
                let part = |at: usize| match list.elements.get(at) {
                    Some(Datum::Numeric(n)) => n.to_string().parse::<i128>().unwrap_or(0),
                    _ => 0,
                };
                let narrow = |value: i128| {
                    i64::try_from(value).map_err(|_| {
                        Error::new(SqlState::DATETIME_FIELD_OVERFLOW, "interval out of range")
                    })
                };
                self.interval.months += narrow(part(0))?;
                self.interval.days += narrow(part(1))?;
                self.interval.micros += part(2);
            }
            (Fold::Least | Fold::Greatest | Fold::Combined(_), best) if compact => {
                if !best.is_null() {
                    self.add(vec![best.clone()], 1)?;
                }
            }
            _ => {
                let lists: Vec<&[Datum]> = parts[1..]
                    .iter()
                    .map(|part| match part {
                        Datum::Array(list) => list.elements.as_slice(),
                        _ => &[],
                    })
                    .collect();
                let mut steps = Steps::default();
                for at in 0..lists.first().map_or(0, |list| list.len()) {
                    steps.step()?;
                    let values = lists.iter().take(self.args.len()).map(|list| list[at].clone());
                    let key = match lists.get(self.args.len()).map(|keys| &keys[at]) {
                        Some(Datum::Bytea(key)) => Some(key.to_vec()),
                        _ => None,
                    };
                    self.row(values.collect(), key)?;
                }
            }
        }
        Ok(())
    }
}
