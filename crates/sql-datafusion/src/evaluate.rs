//! What functions see while DataFusion runs them.
//!
//! # Invariants
//! One batch is computed with one [`EvalContext`]: time zones and regular expressions are looked up
//! once a batch.
//!
//! # Limits
//! Functions that wait (nextval, setval) are [`super::waiting`]'s.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use datafusion::logical_expr::Volatility;
use serde_json::Value;

use super::seat::Seat;
use telesto_sql_catalog::CatalogSnapshot;
use telesto_sql_expr::Settings;
use telesto_sql_expr::context::{Call, EvalContext};
use telesto_sql_expr::registry::Resolved;
use telesto_sql_plan::ExecContext;
use telesto_sql_types::error::Result;
use telesto_sql_types::{Datum, SqlType};

/// An owned evaluation context.
#[derive(Clone)]
pub(crate) struct Evaluation {
    settings: Arc<Settings>,
    catalog: Arc<CatalogSnapshot>,
    seat: Option<Arc<Seat>>,
    /// Calls that the statement's plan has so far.
    calls: Arc<AtomicU64>,
}

impl fmt::Debug for Evaluation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Part of the identity of calls: nothing that differs from one statement to the next.
        f.write_str("Evaluation")
    }
}

impl Evaluation {
    /// While planning.
    pub fn planning(settings: &Arc<Settings>, catalog: &Arc<CatalogSnapshot>) -> Self {
        Self {
            settings: Arc::clone(settings),
            catalog: Arc::clone(catalog),
            seat: None,
            calls: Arc::default(),
        }
    }

    /// A number that no other call of the statement's plan has.
    pub fn number_of_call(&self) -> u64 {
        self.calls.fetch_add(1, Ordering::Relaxed)
    }

    /// Of a plan for the executions of `seat`, of which `exec` is the first.
    pub fn seated(seat: &Arc<Seat>, exec: &ExecContext) -> Self {
        Self {
            settings: Arc::clone(&exec.settings),
            catalog: Arc::clone(&exec.catalog),
            seat: Some(Arc::clone(seat)),
            calls: Arc::default(),
        }
    }

    /// What one batch is computed with.
    pub fn hold(&self) -> Held<'_> {
        let exec = self.seat.as_ref().and_then(|seat| seat.exec().ok());
        Held { settings: &self.settings, catalog: &self.catalog, exec }
    }

    /// [`Self::hold`] for a call: what is not immutable has no value while a plan is made that is
    /// to be kept, nor behind the end of an execution, whose settings and time it would take from
    /// the one that the plan was made for.
    ///
    /// # Errors
    /// Those of [`Seat::check_known`] and [`Seat::exec`].
    pub fn hold_for(&self, volatility: Volatility) -> Result<Held<'_>> {
        match &self.seat {
            Some(seat) if volatility != Volatility::Immutable => {
                seat.check_known()?;
                let exec = Some(seat.exec()?);
                Ok(Held { settings: &self.settings, catalog: &self.catalog, exec })
            }
            _ => Ok(self.hold()),
        }
    }

    /// A value as JSON.
    pub fn to_json(&self, value: &Datum, ty: &SqlType) -> Result<Value> {
        let held = self.hold();
        let context = held.context();
        let args = std::slice::from_ref(ty);
        let call = Call { context: &context, args, returns: &SqlType::Jsonb };
        telesto_sql_expr::functions::jsons::to_json_value(value, ty, &call)
    }

    /// A value as JSON's text; what is json already keeps the text it has.
    pub fn to_json_text(&self, value: &Datum, ty: &SqlType) -> Result<String> {
        let held = self.hold();
        let context = held.context();
        let args = std::slice::from_ref(ty);
        let call = Call { context: &context, args, returns: &SqlType::Json };
        telesto_sql_expr::functions::jsons::to_json_text(value, ty, &call)
    }
}

/// The execution that an evaluation belongs to, for as long as a batch takes.
pub(crate) struct Held<'e> {
    settings: &'e Arc<Settings>,
    catalog: &'e Arc<CatalogSnapshot>,
    exec: Option<Arc<ExecContext>>,
}

impl Held<'_> {
    /// The context for one batch.
    pub fn context(&self) -> EvalContext<'_> {
        match &self.exec {
            Some(exec) => EvalContext::executing(exec.as_ref()),
            None => EvalContext::planning(self.settings, self.catalog),
        }
    }
}

/// Calls a resolved function whose arguments have the declared types.
pub(crate) fn call(
    resolved: &Resolved,
    values: &[Datum],
    context: &EvalContext<'_>,
) -> Result<Datum> {
    if resolved.function.strict && values.iter().any(Datum::is_null) {
        return Ok(Datum::Null);
    }
    let call = Call { context, args: &resolved.args, returns: &resolved.returns };
    (resolved.function.body)(values, &call)
}
