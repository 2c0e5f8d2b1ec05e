//! Which unique indexes an ON CONFLICT target means.
//!
//! # Invariants
//! As PostgreSQL infers: an index serves when its columns and expressions are those of the target,
//! in any order, and, if it is partial, when the target's WHERE implies its predicate.
//!
//! # On failure
//! 42P10 when no index serves.

use telesto_sql_catalog::Table;
use telesto_sql_expr::{EvalContext, Expr, Node, fold};
use telesto_sql_parser::parse::conflict_target;
use telesto_sql_parser::sqlparser::ast::{self, Ident};
use telesto_sql_plan::PlanContext;
use telesto_sql_plan::index_expressions::{IndexExpressions, bind_over, by_owner, condition_over};
use telesto_sql_types::error::{Error, Result, SqlState};

/// The numbers of the unique indexes of `table` that `(columns) [WHERE …]` means; `face` is the
/// table with the names the statement knows it by.
///
/// # Errors
/// 42703, 42P10.
pub(super) fn infer(
    columns: &[Ident],
    (table, face): (&Table, &Table),
    context: &PlanContext<'_>,
    eval: &EvalContext<'_>,
) -> Result<Vec<u32>> {
    let spelled = match columns {
        [one] => conflict_target(&one.value)?,
        _ => None,
    };
    let (items, condition) = match spelled {
        Some((items, condition)) => {
            (items.into_iter().map(|item| item.column.expr).collect(), condition)
        }
        None => (columns.iter().cloned().map(ast::Expr::Identifier).collect::<Vec<_>>(), None),
    };
    // It is named by its text, not by what it holds: however the session writes values.
    let settings = by_owner(context.settings, context.catalog, table);
    let forms = IndexExpressions::bind(context.catalog, &settings, table)?;
    let mut wanted: Vec<usize> = Vec::with_capacity(items.len());
    for item in &items {
        let place = match item {
            ast::Expr::Identifier(name) => {
                Some(face.column_position(&fold(name)).ok_or_else(|| {
                    Error::new(
                        SqlState::UNDEFINED_COLUMN,
                        format!("column \"{}\" does not exist", fold(name)),
                    )
                })?)
            }
            other => {
                let bound = bind_over(face, eval, other, "index expressions")?;
                match bound.node {
                    Node::Column(at) => Some(at),
                    _ => forms.place_of(&bound).map(|(at, _)| at),
                }
            }
        };
        wanted.push(place.ok_or_else(no_arbiter)?);
    }
    wanted.sort_unstable();
    wanted.dedup();
    let condition = condition.map(|e| condition_over(face, eval, &e, "WHERE")).transpose()?;
    let conjuncts: Vec<Expr> = condition.into_iter().collect();
    let found: Vec<u32> = table
        .all_indexes()
        .filter(|index| index.is_key())
        .filter(|index| {
            let mut own: Vec<usize> =
                (0..index.columns.len()).map(|at| forms.position(index, at)).collect();
            own.sort_unstable();
            own.dedup();
            own == wanted && forms.serves(index, &conjuncts, eval)
        })
        .map(|index| index.id)
        .collect();
    if found.is_empty() { Err(no_arbiter()) } else { Ok(found) }
}

fn no_arbiter() -> Error {
    Error::new(
        SqlState::INVALID_COLUMN_REFERENCE,
        "there is no unique or exclusion constraint matching the ON CONFLICT specification",
    )
}
