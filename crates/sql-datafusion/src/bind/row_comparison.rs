//! Aggregates over pairs of numbers: regression, correlation, covariance.
//!
//! # Invariants
//! A pair of which one is NULL does not count, as in PostgreSQL. The first argument is y, the
//! second x.
//!
//! # On failure
//! 42883 for other than two arguments.

use super::call::Aggregate;
use super::{Binder, Typed};
use crate::pairs::{Measure, of_pairs};
use telesto_sql_types::SqlType;
use telesto_sql_types::error::Result;

impl Binder<'_> {
    /// The aggregate of this name.
    pub(super) fn of_pairs(&self, name: &str, args: &[Typed]) -> Result<Option<Aggregate>> {
        let (Some(measure), [y, x]) = (Measure::named(name), args) else {
            return Err(self.no_function(name, args));
        };
        let y = self.coerce(y.clone(), &SqlType::Float8, name)?.expr;
        let x = self.coerce(x.clone(), &SqlType::Float8, name)?.expr;
        let (function, ty) = (of_pairs(measure), measure.returns());
        Ok(Some(Aggregate { function, args: vec![y, x], ty, recast: false }))
    }
}
