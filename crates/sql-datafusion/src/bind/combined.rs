//! `bit_and` and its kin, `range_agg`, `range_intersect_agg`: which function computes them.

use std::sync::Arc;

use datafusion::functions_aggregate as fa;
use datafusion::logical_expr::AggregateUDF;

use super::call::Aggregate;
use super::{Binder, Typed};
use crate::aggregate::{Combined, Fold, folding};
use crate::types::TypeShape;
use telesto_sql_types::SqlType;
use telesto_sql_types::error::Result;

/// `bit_and` and its kin of integers.
fn of_integer_bits(name: &str) -> Arc<AggregateUDF> {
    match name {
        "bit_and" => fa::bit_and_or_xor::bit_and_udaf(),
        "bit_or" => fa::bit_and_or_xor::bit_or_udaf(),
        _ => fa::bit_and_or_xor::bit_xor_udaf(),
    }
}

impl Binder<'_> {
    /// The aggregate of this name, for one argument.
    pub(super) fn combined(&self, name: &str, args: &[Typed]) -> Result<Option<Aggregate>> {
        let [arg] = args else { return Err(self.no_function(name, args)) };
        let given = if arg.ty.is_unknown() { SqlType::Text } else { arg.ty.clone() };
        let over_ranges = name.starts_with("range");
        if over_ranges && !given.is_ranged() {
            return Err(self.no_function(name, args));
        }
        let arg = self.coerce(arg.clone(), &given, name)?.expr;
        let (fold, ty) = match (&given, name) {
            (SqlType::Range(kind) | SqlType::Multirange(kind), "range_agg") => {
                (Fold::Ranges, SqlType::Multirange(*kind))
            }
            (ty, _) if over_ranges => (Fold::Combined(Combined::named(name)), ty.clone()),
            (ty, _) if ty.is_bits() => (Fold::Combined(Combined::named(name)), SqlType::Bit(None)),
            _ => {
                let function = of_integer_bits(name);
                return Ok(Some(Aggregate { function, args: vec![arg], ty: given, recast: false }));
            }
        };
        let function = folding(fold, &[given], &ty, &self.evaluation());
        Ok(Some(Aggregate { function, args: vec![arg], ty, recast: false }))
    }
}
