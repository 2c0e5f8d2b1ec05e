//! Functions over enum types.
//!
//! # Invariants
//! The type comes from the declared type of the argument, so that `enum_range(NULL::t)` works.

use std::sync::Arc;

use crate::context::Call;
use crate::fault;
use crate::registry::{Function, Returns, function_returning};
use crate::ty::Tag::AnyEnum;
use crate::value::array;
use telesto_sql_types::error::Result;
use telesto_sql_types::{Datum, EnumLabel, SqlType};

/// The functions of this module.
pub const TABLE: &[Function] = &[
    function_returning("enum_first", &[AnyEnum], Returns::Same(0), |_, c| end(c, true))
        .lax()
        .stable(),
    function_returning("enum_last", &[AnyEnum], Returns::Same(0), |_, c| end(c, false))
        .lax()
        .stable(),
    function_returning("enum_range", &[AnyEnum], Returns::ElementArray, |_, c| {
        range(&Datum::Null, &Datum::Null, c)
    })
    .lax()
    .stable(),
    function_returning("enum_range", &[AnyEnum, AnyEnum], Returns::ElementArray, |a, c| {
        range(&a[0], &a[1], c)
    })
    .lax()
    .stable(),
];

fn labels<'a>(call: &'a Call<'_>) -> Result<&'a [Arc<EnumLabel>]> {
    match call.args.first() {
        Some(SqlType::Enum(ty)) => Ok(&ty.labels),
        _ => Err(fault::kind("an enum")),
    }
}

fn end(call: &Call<'_>, first: bool) -> Result<Datum> {
    let labels = labels(call)?;
    let found = if first { labels.first() } else { labels.last() };
    found.cloned().map(Datum::Enum).ok_or_else(|| {
        let ty = call.args.first().map(ToString::to_string).unwrap_or_default();
        fault::error("55000", format!("enum {ty} contains no values"))
    })
}

fn range(low: &Datum, high: &Datum, call: &Call<'_>) -> Result<Datum> {
    let within = |label: &&Arc<EnumLabel>| {
        let from = match low {
            Datum::Enum(low) => label.order >= low.order,
            _ => true,
        };
        let to = match high {
            Datum::Enum(high) => label.order <= high.order,
            _ => true,
        };
        from && to
    };
    let items = labels(call)?.iter().filter(within).cloned().map(Datum::Enum).collect();
    let element = call.args.first().cloned().unwrap_or(SqlType::Text);
    Ok(array(element, items))
}
