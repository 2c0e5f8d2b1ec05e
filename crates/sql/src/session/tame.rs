//! What surely does not compute for long: such statements are polled where they arrive, everything
//! else where computing holds up nobody (`crate::interrupt::computes`).
//!
//! # Invariants
//! In doubt a statement may compute for long: that costs it some microseconds, never another
//! session its turn.
//!
//! # Limits
//! Judged by form: a tame statement that meets many rows is found out as it runs
//! (`crate::interrupt::pace`).

use std::ops::ControlFlow;

use crate::sqlparser::ast::{
    BinaryOperator, DataType, Expr, Function, FunctionArguments, SetExpr, Statement, UnaryOperator,
    Visit as _, Visitor,
};
use crate::types::Datum;

/// Longest text that is parsed and planned in next to no time, bytes.
const SHORT_TEXT: usize = 4096;
/// Nesting of brackets that no parser takes long for.
const SHALLOW: u32 = 8;
/// Size of all parameters of a statement that are read in next to no time, bytes.
const SMALL_PARAMETERS: usize = 16 << 10;
/// Elements of an IN list that are compared in next to no time.
const SHORT_LIST: usize = 256;

/// Functions that do next to nothing, whatever they are given.
const LIGHT: &[&str] = &[
    "avg",
    "coalesce",
    "count",
    "current_database",
    "current_schema",
    "currval",
    "lastval",
    "max",
    "min",
    "nextval",
    "now",
    "nullif",
    "pg_backend_pid",
    "pg_cancel_backend",
    "pg_sleep",
    "pg_terminate_backend",
    "sum",
    "version",
];

/// Functions whose result rests on nothing that is stored.
const WITHOUT_DATA: &[&str] = &[
    "clock_timestamp",
    "coalesce",
    "current_database",
    "current_schema",
    "current_setting",
    "now",
    "nullif",
    "pg_backend_pid",
    "pg_cancel_backend",
    "pg_is_in_recovery",
    "pg_sleep",
    "pg_terminate_backend",
    "statement_timestamp",
    "version",
];

/// Whether parsing and planning a text may take long.
pub(super) fn may_compute(sql: &str) -> bool {
    if sql.len() > SHORT_TEXT {
        return true;
    }
    let mut depth = 0_u32;
    for byte in sql.bytes() {
        match byte {
            b'(' | b'[' => {
                depth += 1;
                if depth > SHALLOW {
                    return true;
                }
            }
            b')' | b']' => depth = depth.saturating_sub(1),
            _ => {}
        }
    }
    false
}

/// Whether a statement surely computes next to nothing for each row that it meets.
pub(super) fn is_tame(statement: &Statement) -> bool {
    let known = match statement {
        Statement::Query(query) => {
            query.with.is_none() && matches!(*query.body, SetExpr::Select(_))
        }
        Statement::Insert(_) | Statement::Update(_) | Statement::Delete(_) => true,
        Statement::StartTransaction { .. }
        | Statement::Commit { .. }
        | Statement::Rollback { .. }
        | Statement::Set(_)
        | Statement::ShowVariable { .. } => return true,
        _ => false,
    };
    known && statement.visit(&mut Tame).is_continue()
}

/// Whether a statement surely needs nothing that is stored: it is answered while the bucket is not.
pub(super) fn needs_no_data(statement: &Statement) -> bool {
    let Statement::Query(query) = statement else { return false };
    let SetExpr::Select(select) = &*query.body else { return false };
    query.with.is_none()
        && select.from.is_empty()
        && select.into.is_none()
        && statement.visit(&mut WithoutData).is_continue()
}

/// Breaks at the first expression that may need what is stored.
struct WithoutData;

impl Visitor for WithoutData {
    type Break = ();

    fn pre_visit_expr(&mut self, expr: &Expr) -> ControlFlow<()> {
        let known = match expr {
            Expr::Value(_)
            | Expr::Nested(_)
            | Expr::IsNull(_)
            | Expr::IsNotNull(_)
            | Expr::Between { .. }
            | Expr::UnaryOp { .. }
            | Expr::BinaryOp { .. } => true,
            // Names of objects and users' types are in the catalog, which others change.
            Expr::Cast { data_type, .. } => matches!(
                data_type,
                DataType::Int(_)
                    | DataType::Integer(_)
                    | DataType::BigInt(_)
                    | DataType::SmallInt(_)
                    | DataType::Text
                    | DataType::Boolean
                    | DataType::Numeric(_)
            ),
            Expr::Function(call) => named(call, WITHOUT_DATA),
            _ => false,
        };
        if known { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
    }
}

fn named(call: &Function, names: &[&str]) -> bool {
    let name = call.name.0.last().and_then(|part| part.as_ident());
    let name = name.map(|name| name.value.to_ascii_lowercase()).unwrap_or_default();
    names.contains(&name.as_str())
}

/// Whether parameters are so large that working on them may take long.
pub(super) fn large(parameters: &[Datum]) -> bool {
    let mut bytes = 0_usize;
    parameters.iter().any(|value| {
        bytes += match value {
            Datum::Text(text) | Datum::Json(text) => text.len(),
            Datum::Bytea(raw) => raw.len(),
            Datum::Bits(bits) => bits.len(),
            Datum::Range(range) => range.held(),
            Datum::Multirange(ranges) => ranges.held(),
            // How much is inside only a walk could tell.
            Datum::Jsonb(_) | Datum::Numeric(_) => SMALL_PARAMETERS / 16,
            Datum::Array(array) => array.elements.len() * (SMALL_PARAMETERS / 256),
            _ => 0,
        };
        bytes > SMALL_PARAMETERS
    })
}

/// Breaks at the first expression that is not known to be light.
struct Tame;

impl Visitor for Tame {
    type Break = ();

    fn pre_visit_expr(&mut self, expr: &Expr) -> ControlFlow<()> {
        let light = match expr {
            Expr::Identifier(_)
            | Expr::CompoundIdentifier(_)
            | Expr::Value(_)
            | Expr::Nested(_)
            | Expr::IsNull(_)
            | Expr::IsNotNull(_)
            | Expr::IsTrue(_)
            | Expr::IsFalse(_)
            | Expr::IsNotTrue(_)
            | Expr::IsNotFalse(_)
            | Expr::Between { .. }
            | Expr::TypedString(_) => true,
            Expr::InList { list, .. } => list.len() <= SHORT_LIST,
            Expr::Cast { expr, .. } => matches!(**expr, Expr::Value(_)),
            Expr::UnaryOp { op, .. } => {
                matches!(op, UnaryOperator::Plus | UnaryOperator::Minus | UnaryOperator::Not)
            }
            Expr::BinaryOp { op, .. } => matches!(
                op,
                BinaryOperator::Eq
                    | BinaryOperator::NotEq
                    | BinaryOperator::Lt
                    | BinaryOperator::LtEq
                    | BinaryOperator::Gt
                    | BinaryOperator::GtEq
                    | BinaryOperator::And
                    | BinaryOperator::Or
                    | BinaryOperator::Plus
                    | BinaryOperator::Minus
            ),
            Expr::Function(call) => {
                call.over.is_none()
                    && !matches!(call.args, FunctionArguments::Subquery(_))
                    && named(call, LIGHT)
            }
            _ => false,
        };
        if light { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tame(sql: &str) -> bool {
        let parsed = telesto_sql_parser::parse::parse(sql).expect("parses").remove(0);
        is_tame(parsed.statement.as_ref().expect("a statement"))
    }

    #[test]
    fn what_web_applications_do_all_day_is_tame() {
        for sql in [
            "SELECT abalance FROM pgbench_accounts WHERE aid = 7",
            "UPDATE pgbench_accounts SET abalance = abalance + $1 WHERE aid = $2",
            "INSERT INTO t (a, b) VALUES ($1, '2020-01-01'::date)",
            "DELETE FROM t WHERE a = 1 AND b IN (1, 2, 3)",
            "SELECT count(*) FROM t WHERE a BETWEEN 1 AND 9 ORDER BY b LIMIT 5",
            "SELECT 1",
            "BEGIN",
            "SET statement_timeout = 0",
        ] {
            assert!(tame(sql), "{sql}");
        }
    }

    #[test]
    fn what_may_compute_is_not_tame() {
        for sql in [
            "SELECT 10::numeric ^ 131000",
            "SELECT repeat('x', 100000000)",
            "SELECT a FROM t WHERE b ~ 'x'",
            "SELECT a::jsonb FROM t",
            "SELECT a * a FROM t",
            "WITH RECURSIVE r(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM r) SELECT count(*) FROM r",
            "SELECT sum(a) OVER () FROM t",
            "CREATE INDEX i ON t (a)",
            "UPDATE t SET a = upper(a)",
        ] {
            assert!(!tame(sql), "{sql}");
        }
    }

    #[test]
    fn what_is_stored_is_needed_for_all_but_constants() {
        let without = |sql: &str| {
            let parsed = telesto_sql_parser::parse::parse(sql).expect("parses").remove(0);
            needs_no_data(parsed.statement.as_ref().expect("a statement"))
        };
        for sql in ["SELECT 1", "SELECT 1 + 1, now()", "SELECT pg_sleep(1)", "SELECT $1::int"] {
            assert!(without(sql), "{sql}");
        }
        for sql in [
            "SELECT 1 FROM t",
            "SELECT 't'::regclass",
            "SELECT nextval('s')",
            "SELECT (SELECT 1)",
            "SELECT EXISTS (SELECT 1 FROM t)",
            "SELECT 'a'::mood",
            "INSERT INTO t VALUES (1)",
        ] {
            assert!(!without(sql), "{sql}");
        }
    }

    #[test]
    fn text_that_is_long_or_deep_may_take_long() {
        assert!(!may_compute("SELECT f(g(h(1)))"));
        assert!(may_compute(&format!("SELECT {}1{}", "(".repeat(9), ")".repeat(9))));
        assert!(may_compute(&"x".repeat(5000)));
    }
}
