//! From the sampled values of a column to what is known of it, as PostgreSQL's
//! `compute_scalar_stats` has it.
//!
//! # Invariants
//! - Values are compared by their key elements, whose order is that of ORDER BY.
//! - Where the sample is the table, number of distinct values, frequencies and bounds are exact.
//!
//! # Limits
//! A value above [`WIDE_BYTES`] counts by its width alone and is taken to be like no other.

use telesto_sql_types::error::Result;
use telesto_sql_types::{Datum, SqlType};

use super::{ColumnStatistics, Valued, key_of, type_form};
use crate::Column;
use crate::codec::key::is_key_type;
use crate::codec::value::put_value;
use crate::object::has_jsonb;

/// Values that are wider are counted and not kept, bytes.
pub const WIDE_BYTES: usize = 1024;
/// The greatest statistics target.
pub const MAX_TARGET: usize = 10_000;

/// Rows a sample wants for a target (common values and parts of the histogram): 300 for each, after
/// Chaudhuri, Motwani and Narasayya, as in PostgreSQL.
#[must_use]
pub fn rows_wanted(target: usize) -> usize {
    300 * target.clamp(1, MAX_TARGET)
}

/// The values of one column, gathered in the order of the rows.
#[derive(Debug)]
pub struct Gatherer {
    ty: SqlType,
    id: u16,
    kept: bool,
    values: Vec<Valued>,
    nulls: u64,
    wide: u64,
    others: u64,
    width: f64,
}

/// A value that came more than once: how often, and where its first stands among the sorted ones.
#[derive(Clone, Copy, Debug)]
struct Repeated {
    count: usize,
    first: usize,
}

impl Gatherer {
    /// Of a column; `shown`: its values may be kept.
    #[must_use]
    pub fn of(column: &Column, shown: bool) -> Self {
        Self {
            ty: column.ty.clone(),
            id: column.id,
            // Documents may be large, and few are asked for as a whole.
            kept: shown && is_key_type(&column.ty) && !has_jsonb(&column.ty),
            values: Vec::new(),
            nulls: 0,
            wide: 0,
            others: 0,
            width: 0.0,
        }
    }

    /// The next row's value.
    ///
    /// # Errors
    /// XX000 when it is not of the column's type.
    pub fn add(&mut self, value: &Datum) -> Result<()> {
        if value.is_null() {
            self.nulls += 1;
            return Ok(());
        }
        let mut bytes = Vec::new();
        put_value(&mut bytes, value, &self.ty)?;
        self.width += stored_width(&self.ty, value, bytes.len()) as f64;
        if !self.kept {
            self.others += 1;
            return Ok(());
        }
        match key_of(value, &self.ty) {
            Some(key) if bytes.len() <= WIDE_BYTES => {
                self.values.push(Valued { value: bytes, key });
            }
            _ => self.wide += 1,
        }
        Ok(())
    }

    /// What is known of the column, from a sample of a table of `rows` rows. At most `target`
    /// common values and parts.
    ///
    /// # Errors
    /// XX000 when the type has no stored form.
    pub fn finish(self, rows: f64, target: usize) -> Result<ColumnStatistics> {
        let count = self.values.len() as u64;
        let present = count + self.wide + self.others;
        let sampled = (present + self.nulls) as f64;
        let mut out =
            ColumnStatistics { id: self.id, ty: type_form(&self.ty)?, ..Default::default() };
        if sampled == 0.0 {
            return Ok(out);
        }
        out.null_fraction = (self.nulls as f64 / sampled) as f32;
        if present == 0 {
            return Ok(out);
        }
        out.width = (self.width / present as f64) as i32;
        if self.others > 0 {
            return Ok(out);
        }
        if count == 0 {
            out.distinct = -(1.0 - out.null_fraction);
            return Ok(out);
        }
        let total = rows.max(sampled);
        let mut order: Vec<usize> = (0..self.values.len()).collect();
        order.sort_by(|a, b| self.values[*a].key.cmp(&self.values[*b].key).then(a.cmp(b)));
        let (distinct, multiple, tracked) = self.repeated(&order, target);
        out.correlation = correlation(&order);
        out.distinct = self.distinct(distinct, multiple, (sampled, total));
        let tracked = self.worth_keeping(tracked, (distinct, target), &out, (sampled, total));
        for repeated in &tracked {
            let value = self.values[order[repeated.first]].clone();
            out.common.push((value, (repeated.count as f64 / sampled) as f32));
        }
        out.bounds = self.bounds(&order, distinct - tracked.len(), &tracked, target);
        Ok(out)
    }

    /// Distinct values, those among them that came more than once, and the most common ones.
    fn repeated(&self, order: &[usize], most: usize) -> (usize, usize, Vec<Repeated>) {
        let (mut distinct, mut multiple) = (0, 0);
        let mut tracked: Vec<Repeated> = Vec::new();
        let mut first = 0;
        while first < order.len() {
            let key = &self.values[order[first]].key;
            let same = order[first..].iter().take_while(|at| self.values[**at].key == *key);
            let count = same.count();
            distinct += 1;
            if count > 1 {
                multiple += 1;
                let place = tracked.partition_point(|other| other.count >= count);
                if place < most {
                    tracked.insert(place, Repeated { count, first });
                    tracked.truncate(most);
                }
            }
            first += count;
        }
        (distinct, multiple, tracked)
    }

    /// The number of distinct values in the table: as it is in the sample where that shows them
    /// all, else by the estimator of Haas and Stokes.
    fn distinct(&self, distinct: usize, multiple: usize, (sampled, total): (f64, f64)) -> f32 {
        let nulls = self.nulls as f64 / sampled;
        let number = if multiple == 0 {
            return -(1.0 - nulls) as f32;
        } else if self.wide == 0 && multiple == distinct {
            distinct as f64
        } else {
            let once = (distinct - multiple) as f64 + self.wide as f64;
            let seen = once + multiple as f64;
            let n = sampled - self.nulls as f64;
            let of = total * (1.0 - nulls);
            let estimate = n * seen / ((n - once) + once * n / of);
            (estimate.max(seen).min(of) + 0.5).floor()
        };
        (if number > 0.1 * total { -(number / total) } else { number }) as f32
    }

    /// Of the most common values those that are: all, where they are all that there are, else those
    /// whose frequency is well above that of the values that are not among them.
    fn worth_keeping(
        &self,
        mut tracked: Vec<Repeated>,
        (distinct, target): (usize, usize),
        column: &ColumnStatistics,
        (sampled, total): (f64, f64),
    ) -> Vec<Repeated> {
        let all = tracked.len() == distinct && self.wide == 0 && column.distinct > 0.0;
        if all && tracked.len() <= target || sampled >= total || total <= 1.0 {
            return tracked;
        }
        let among = column.distinct_of(total).unwrap_or(1.0);
        let mut before: f64 = tracked.iter().map(|repeated| repeated.count as f64).sum();
        while let Some(last) = tracked.last() {
            let count = last.count as f64;
            before -= count;
            let rest = 1.0 - before / sampled - f64::from(column.null_fraction);
            let others = among - (tracked.len() as f64 - 1.0);
            let each = rest.clamp(0.0, 1.0) / if others > 1.0 { others } else { 1.0 };
            // The count's deviation under a hypergeometric distribution.
            let held = total * count / sampled;
            let variance = sampled * held * (total - held) * (total - sampled)
                / (total * total * (total - 1.0));
            if count > each * sampled + 2.0 * variance.max(0.0).sqrt() + 0.5 {
                break;
            }
            tracked.pop();
        }
        tracked
    }

    /// The bounds of parts of one size of the values that are not among the common ones.
    fn bounds(
        &self,
        order: &[usize],
        distinct: usize,
        common: &[Repeated],
        target: usize,
    ) -> Vec<Valued> {
        let wanted = distinct.min(target + 1);
        if wanted < 2 {
            return Vec::new();
        }
        let mut left = common.to_vec();
        left.sort_by_key(|repeated| repeated.first);
        let mut rest = Vec::with_capacity(order.len());
        let mut at = 0;
        for repeated in left {
            rest.extend_from_slice(&order[at..repeated.first]);
            at = repeated.first + repeated.count;
        }
        rest.extend_from_slice(&order[at..]);
        let last = rest.len() - 1;
        (0..wanted).map(|part| self.values[rest[part * last / (wanted - 1)]].clone()).collect()
    }
}

/// How the sorted values' order goes with that of their rows; `None` for fewer than two.
fn correlation(order: &[usize]) -> Option<f32> {
    if order.len() < 2 {
        return None;
    }
    let n = order.len() as f64;
    let products: f64 = order.iter().enumerate().map(|(at, row)| at as f64 * *row as f64).sum();
    let sum = (n - 1.0) * n / 2.0;
    let squares = (n - 1.0) * n * (2.0 * n - 1.0) / 6.0;
    Some(((n * products - sum * sum) / (n * squares - sum * sum)) as f32)
}

/// What PostgreSQL would say that a value takes, bytes: of a fixed size, or with a header of one
/// byte or four.
fn stored_width(ty: &SqlType, value: &Datum, stored: usize) -> usize {
    match (ty, value) {
        (_, Datum::Text(text)) if *ty == SqlType::Name => 64.max(text.len()),
        (_, Datum::Text(text) | Datum::Json(text)) => with_header(text.len()),
        (_, Datum::Bytea(bytes)) => with_header(bytes.len()),
        (SqlType::Numeric(_), Datum::Numeric(number)) => {
            // Four decimal digits in two bytes, on both sides of the point.
            let text = number.to_string();
            let digits = text.trim_start_matches('-');
            let (whole, rest) = digits.split_once('.').unwrap_or((digits, ""));
            let (whole, rest) = (whole.trim_start_matches('0'), rest.trim_end_matches('0'));
            3 + 2 * (whole.len().div_ceil(4) + rest.len().div_ceil(4))
        }
        _ => stored,
    }
}

fn with_header(bytes: usize) -> usize {
    bytes + if bytes < 127 { 1 } else { 4 }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gathered(values: impl Iterator<Item = Option<i32>>, rows: f64) -> ColumnStatistics {
        let column = Column::new(1, "a".to_owned(), SqlType::Int4);
        let mut gatherer = Gatherer::of(&column, true);
        for value in values {
            gatherer.add(&value.map_or(Datum::Null, Datum::Int4)).expect("added");
        }
        gatherer.finish(rows, 100).expect("finished")
    }

    fn shown(values: &[Valued]) -> Vec<i32> {
        let ints = values.iter().map(|v| i32::from_le_bytes(v.value[..].try_into().expect("4")));
        ints.collect()
    }

    #[test]
    fn unique_values_are_a_part_of_the_rows_with_bounds_of_one_size() {
        let found = gathered((1..=10_000).map(Some), 10_000.0);
        assert_eq!((found.distinct, found.null_fraction, found.width), (-1.0, 0.0, 4));
        assert_eq!(found.correlation, Some(1.0));
        assert!(found.common.is_empty());
        let bounds = shown(&found.bounds);
        // As PostgreSQL 15 gives them for generate_series(1, 10000).
        assert_eq!((bounds.len(), &bounds[..3], bounds[100]), (101, &[1, 100, 200][..], 10_000));
    }

    #[test]
    fn few_values_are_all_common_and_nulls_count() {
        let values = (0..1000).map(|i| (i % 4 != 0).then_some(i % 4));
        let found = gathered(values, 1000.0);
        assert_eq!((found.distinct, found.null_fraction), (3.0, 0.25));
        let common: Vec<(i32, f32)> =
            found.common.iter().map(|(v, f)| (shown(std::slice::from_ref(v))[0], *f)).collect();
        assert_eq!(common, [(1, 0.25), (2, 0.25), (3, 0.25)]);
        assert!(found.bounds.is_empty());
        let nothing = gathered([None, None].into_iter(), 2.0);
        assert_eq!((nothing.null_fraction, nothing.distinct), (1.0, 0.0));
    }

    #[test]
    fn of_a_sample_only_values_well_above_the_others_are_common() {
        // One value in half of the rows, the others about once each, of a table ten times as large.
        let values = (0..10_000).map(|i| Some(if i % 2 == 0 { -1 } else { i / 3 * 7 }));
        let found = gathered(values, 100_000.0);
        assert_eq!(found.common.len(), 1, "{:?}", found.common);
        assert!((found.common[0].1 - 0.5).abs() < 0.01);
        assert_eq!(found.bounds.len(), 101);
        assert!(!shown(&found.bounds).contains(&-1));
        // Haas and Stokes: between what was seen and a part of the rows.
        assert!(found.distinct < 0.0 || found.distinct > 3000.0, "{}", found.distinct);
    }
}
