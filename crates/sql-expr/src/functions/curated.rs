//! `telesto_approve` and `telesto_reject`, and how changes that wait are shown.
//!
//! # Invariants
//! The functions ask for a decision; who may decide is asked where it is carried out.
//!
//! # On failure
//! Values that do not decode are told as XX001.

use serde_json::{Map, Value};
use telesto_sql_catalog::Table;
use telesto_sql_catalog::codec::RowCodec;
use telesto_sql_catalog::curated::{WaitingTable, shape};

use super::jsons::to_json_value;
use crate::context::{Call, EvalContext, Request};
use crate::registry::{Function, function};
use crate::ty::Tag::{Int8, Text};
use crate::value::{i64_of, jsonb, str_of};
use telesto_sql_types::error::Result;
use telesto_sql_types::{Datum, SqlType};

/// The functions of this module.
pub const TABLE: &[Function] = &[
    function("telesto_approve", &[Int8], Int8, |a, c| {
        c.context.request(Request::Approve(i64_of(&a[0])?))
    })
    .waiting(),
    function("telesto_reject", &[Int8], Int8, |a, c| {
        c.context.request(Request::Reject(i64_of(&a[0])?, None))
    })
    .waiting(),
    function("telesto_reject", &[Int8, Text], Int8, |a, c| {
        c.context.request(Request::Reject(i64_of(&a[0])?, Some(str_of(&a[1])?.to_owned())))
    })
    .waiting(),
];

/// The rows of a change as jsonb: an array of `{"old": …, "new": …}`; `None` when the table has
/// other columns by now.
///
/// # Errors
/// XX001 for rows that do not decode.
pub fn changes(
    table: &Table,
    waiting: &WaitingTable,
    context: &EvalContext<'_>,
) -> Result<Option<Datum>> {
    if shape(table)? != waiting.shape {
        return Ok(None);
    }
    let codec = RowCodec::new(table)?;
    let call = Call { context, args: &[], returns: &SqlType::Jsonb };
    let shown = |key: &[u8], row: &Option<Vec<u8>>| -> Result<Value> {
        let Some(bytes) = row else { return Ok(Value::Null) };
        let row = codec.decode(key, bytes)?;
        let mut out = Map::new();
        for (at, column) in table.visible_columns() {
            out.insert(column.name.clone(), to_json_value(&row[at], &column.ty, &call)?);
        }
        Ok(Value::Object(out))
    };
    let mut all = Vec::with_capacity(waiting.rows.len());
    for row in &waiting.rows {
        let mut change = Map::new();
        change.insert("old".to_owned(), shown(&row.key, &row.old)?);
        change.insert("new".to_owned(), shown(&row.key, &row.new)?);
        all.push(Value::Object(change));
    }
    Ok(Some(jsonb(Value::Array(all))))
}
