//! Which columns a statement may give values to: identities, generated columns, OVERRIDING.

use super::*;

/// A column an identity or a generated expression fills may not be given a value.
pub(super) fn may_assign(table: &Table, column: usize, updating: bool) -> Result<()> {
    may_give(table, column, updating, None)
}

use telesto_sql_parser::marks::{OVERRIDING_SYSTEM, OVERRIDING_USER};

/// What `OVERRIDING … VALUE` says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Overriding {
    /// Values given to identity columns are taken.
    System,
    /// Values given to identity columns are passed over.
    User,
}

/// The columns of an INSERT without the one that stands for OVERRIDING.
pub(super) fn overriding(columns: &[ObjectName]) -> (Option<Overriding>, &[ObjectName]) {
    let Some((last, rest)) = columns.split_last() else { return (None, columns) };
    match last.0.last().and_then(|p| p.as_ident()).map(|name| name.value.as_str()) {
        Some(OVERRIDING_SYSTEM) => (Some(Overriding::System), rest),
        Some(OVERRIDING_USER) => (Some(Overriding::User), rest),
        _ => (None, columns),
    }
}

/// Whether values given to a column are passed over.
pub(super) fn passed_over(table: &Table, column: usize, overriding: Option<Overriding>) -> bool {
    let identity = matches!(
        table.columns[column].generated,
        Some(Generated::IdentityAlways(_) | Generated::IdentityByDefault(_))
    );
    identity && overriding == Some(Overriding::User)
}

pub(super) fn may_give(
    table: &Table,
    column: usize,
    updating: bool,
    overriding: Option<Overriding>,
) -> Result<()> {
    let name = &table.columns[column].name;
    match &table.columns[column].generated {
        Some(Generated::Stored(_)) => Err(if updating {
            Error::new(
                SqlState::GENERATED_ALWAYS,
                format!("column \"{name}\" can only be updated to DEFAULT"),
            )
            .detail(format!("Column \"{name}\" is a generated column."))
        } else {
            Error::new(
                SqlState::GENERATED_ALWAYS,
                format!("cannot insert a non-DEFAULT value into column \"{name}\""),
            )
            .detail(format!("Column \"{name}\" is a generated column."))
        }),
        Some(Generated::IdentityAlways(_)) if overriding.is_some() => Ok(()),
        Some(Generated::IdentityAlways(_)) => Err(if updating {
            Error::new(
                SqlState::GENERATED_ALWAYS,
                format!("column \"{name}\" can only be updated to DEFAULT"),
            )
            .detail(format!("Column \"{name}\" is an identity column defined as GENERATED ALWAYS."))
        } else {
            Error::new(
                SqlState::GENERATED_ALWAYS,
                format!("cannot insert a non-DEFAULT value into column \"{name}\""),
            )
            .detail(format!("Column \"{name}\" is an identity column defined as GENERATED ALWAYS."))
            .hint("Use OVERRIDING SYSTEM VALUE to override.")
        }),
        _ => Ok(()),
    }
}
