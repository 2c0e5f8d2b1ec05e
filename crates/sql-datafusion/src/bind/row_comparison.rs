//! Aggregates over pairs of numbers: regression, correlation, covariance.
//!
//! # Invariants
//! A pair of which one is NULL does not count, as in PostgreSQL. The first argument is y, the second x.
//!
//! # On failure
//! 42883 for other than two arguments.

use datafusion::functions_aggregate as fa;
use datafusion::logical_expr::when;

use super::call::Aggregate;
use super::{Binder, Typed};
use crate::fault;
use telesto_sql_types::SqlType;
use telesto_sql_types::error::Result;

impl Binder<'_> {
    /// The aggregate of this name.
    pub(super) fn of_pairs(&self, name: &str, args: &[Typed]) -> Result<Option<Aggregate>> {
        let [y, x] = args else { return Err(self.no_function(name, args)) };
        let y = self.coerce(y.clone(), &SqlType::Float8, name)?.expr;
        let x = self.coerce(x.clone(), &SqlType::Float8, name)?.expr;
        let function = match name {
            "regr_slope" => fa::regr::regr_slope_udaf(),
            "regr_r2" => fa::regr::regr_r2_udaf(),
            "regr_intercept" => fa::regr::regr_intercept_udaf(),
            "regr_avgx" => fa::regr::regr_avgx_udaf(),
            "regr_avgy" => fa::regr::regr_avgy_udaf(),
            "regr_sxx" => fa::regr::regr_sxx_udaf(),
            "regr_syy" => fa::regr::regr_syy_udaf(),
            "regr_sxy" => fa::regr::regr_sxy_udaf(),
            "corr" => fa::correlation::corr_udaf(),
            "covar_pop" => fa::covariance::covar_pop_udaf(),
            "covar_samp" => fa::covariance::covar_samp_udaf(),
            _ => {
                // regr_count: the y whose x is there.
                let both = when(x.is_not_null(), y).end().map_err(fault::from_datafusion)?;
                let function = fa::count::count_udaf();
                let args = vec![both];
                return Ok(Some(Aggregate { function, args, ty: SqlType::Int8, recast: false }));
            }
        };
        let args = vec![y, x];
        Ok(Some(Aggregate { function, args, ty: SqlType::Float8, recast: false }))
    }
}
