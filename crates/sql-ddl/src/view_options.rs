//! Options of views: `security_barrier`, `security_invoker`, `check_option`.
//!
//! # Invariants
//! None is taken that is not known.
//!
//! # On failure
//! 22023, and 0A000 for a check option of a view that cannot be written.

use super::Ddl;
use super::names::fold;
use telesto_sql_catalog::{CheckOption, View};
use telesto_sql_parser::sqlparser::ast::{CreateTableOptions, CreateView, SqlOption};
use telesto_sql_plan::updatable_view::below;
use telesto_sql_types::error::{Error, Result, SqlState};

/// A view's options.
#[derive(Default)]
pub(super) struct ViewOptions {
    pub invoker: bool,
    pub barrier: bool,
    pub check: Option<CheckOption>,
}

/// The check option of that value, in lower case.
///
/// # Errors
/// 22023.
pub(super) fn check_option(value: &str) -> Result<CheckOption> {
    CheckOption::named(value).ok_or_else(|| {
        Error::new(
            SqlState::INVALID_PARAMETER_VALUE,
            format!("invalid value for enum option \"check_option\": {value}"),
        )
        .detail("Valid values are \"local\" and \"cascaded\".")
    })
}

/// The options of CREATE VIEW.
///
/// # Errors
/// 22023 for one there is not, or for its value.
pub(super) fn view_options(create: &CreateView) -> Result<ViewOptions> {
    let (CreateTableOptions::With(options) | CreateTableOptions::Options(options)) =
        &create.options
    else {
        return Ok(ViewOptions::default());
    };
    let mut found = ViewOptions::default();
    for option in options {
        let (name, value) = match option {
            SqlOption::KeyValue { key, value } => (fold(key), value.to_string()),
            SqlOption::Ident(key) => (fold(key), "true".to_owned()),
            other => return Err(Error::syntax(format!("{other} is no option of a view"))),
        };
        let value = value.trim_matches('\'').to_ascii_lowercase();
        let on = || telesto_sql_parser::definition::is_on(&name, &value);
        match name.as_str() {
            "security_invoker" => found.invoker = on()?,
            "security_barrier" => found.barrier = on()?,
            "check_option" => found.check = Some(check_option(&value)?),
            _ => {
                return Err(Error::new(
                    SqlState::INVALID_PARAMETER_VALUE,
                    format!("unrecognized parameter \"{name}\""),
                ));
            }
        }
    }
    Ok(found)
}

impl Ddl<'_> {
    /// Whether a view with a check option can be written at all.
    ///
    /// # Errors
    /// 0A000.
    pub(super) fn may_check(&self, view: &View) -> Result<()> {
        if view.check_option.is_none() {
            return Ok(());
        }
        below(view, self.catalog(), &self.path()).map(|_| ()).map_err(|reason| {
            Error::new(
                SqlState::FEATURE_NOT_SUPPORTED,
                "WITH CHECK OPTION is supported only on automatically updatable views",
            )
            .hint(reason)
        })
    }
}
