//! Bound scalar expressions and PostgreSQL's functions and operators.
//!
//! # Parts
//! - [`bind`] turns syntax into typed [`Expr`]s, [`bound`] evaluates them over rows.
//! - [`mod@registry`] holds every function and operator; [`functions`] are their tables. Both
//!   executors resolve here.
//! - [`ty`] and [`cast`]: which conversions there are, and how they are done.
//! - [`context`]: what evaluation sees beside the row; [`execution`]: what it may ask of the
//!   statement under way.
//! - [`settings`]: the parameters of a session. [`shown_names`]: how objects are named when they
//!   are shown.
//!
//! # Invariants
//! - One expression has one type and one answer, whichever executor asks.
//! - Evaluation does not wait and does not allocate for numbers, comparisons and logic.
//!
//! # On failure
//! PostgreSQL's SQLSTATEs and messages.
//!
//! # Limits
//! `docs/sql/functions.md` lists the functions that are missing.

pub mod array;
mod assign;
pub mod bind;
mod bind_calls;
mod bind_coerce;
mod bind_ops;
mod bind_rows;
pub mod bound;
pub mod calendar;
pub mod cast;
pub mod context;
mod decimal;
pub mod deparse;
pub mod domain;
mod equivalence;
pub mod execution;
pub mod fault;
mod from_char;
pub mod full_types;
pub mod functions;
mod json;
pub mod json_raw;
mod jsonpath;
pub mod levels;
pub mod members;
mod named_functions;
mod number_template;
mod output_name;
pub mod parameters;
pub mod pattern;
mod posix;
pub mod registry;
mod remap;
pub mod scope;
pub mod search;
pub mod set_functions;
pub mod settings;
pub mod settings_origins;
mod settings_planner;
pub mod settings_planning;
mod settings_queue;
mod settings_roles;
pub mod shown_names;
pub mod stored_literals;
mod template;
pub mod text_form;
mod to_char;
pub mod ty;
pub mod type_name;
pub mod types;
pub mod value;
mod volatility;
pub mod whole_row;

pub use bind::{Binder, known_collation};
pub use bind_calls::{is_aggregate, is_void_parameter, nullif_result};
pub use bind_coerce::takes_collation;
pub use bind_ops::{comparison_type, negate, no_operator, substring_name, symbol_of};
pub use bind_rows::{field_names, field_place, parameters_of_fields, row_of};
pub use bound::{Comparison, Expr, Node};
pub use context::EvalContext;
pub use decimal::root_of_scale as numeric_root;
pub use execution::Execution;
pub use functions::rows::{ROW_FIELD, ROW_NOT_NULL, ROW_NULL, ROW_TEXT, ROW_WITH};
pub use functions::sample::{SAMPLED, SAMPLED_AGAIN};
pub use output_name::output_name;
pub use parameters::ParameterTypes;
pub use registry::{Resolved, Volatility, registry};
pub use scope::{Scope, ScopeColumn, ScopeRelation, fold};
pub use settings::Settings;
pub use ty::{CastContext, Tag};
pub use volatility::{call_may_fail, call_may_overflow, cast_may_fail};
