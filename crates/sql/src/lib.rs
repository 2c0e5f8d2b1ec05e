//! Catalog, types, planner (key path and DataFusion), DML, DDL, constraints.
//!
//! # Purpose
//! SQL as PostgreSQL 15 speaks it, over the ordered keys and transactions of `telesto-txn`.
//! `docs/architecture/sql.md` tells how the parts work together.
//!
//! # Invariants
//! - A statement takes effect whole or not at all, also inside a transaction.
//! - Every statement runs against one [`catalog::CatalogSnapshot`], read in its own transaction, so
//!   that data definition and data manipulation serialize.
//! - A client never sees a result that its transaction, once committed, contradicts
//!   (`session::transaction`, `session::conflict`).
//!
//! # On failure
//! Every error is an [`Error`] with an SQLSTATE and, where there is one, the user's next step.
//!
//! # Limits
//! `docs/sql.md` and the pages of `docs/sql` list what differs from PostgreSQL 15.

mod access;
mod analyze;
pub mod copy;
mod elsewhere;
mod explain;
#[doc(hidden)]
pub mod fuzz;
mod job_costs;
mod online;
pub mod regions;
pub mod session;

pub use telesto_sql_catalog as catalog;
pub use telesto_sql_catalog::codec;
pub(crate) use telesto_sql_catalog::temp;
pub use telesto_sql_datafusion as engine_df;
pub(crate) use telesto_sql_ddl as ddl;
pub use telesto_sql_expr as expr;
pub use telesto_sql_keypath as exec;
pub use telesto_sql_parser::sqlparser;
pub(crate) use telesto_sql_parser::{definition, stack, syntax};
pub use telesto_sql_pgcatalog as system;
pub use telesto_sql_plan as plan;
pub(crate) use telesto_sql_plan::{advisory, notify};
pub use telesto_sql_types as types;
pub use telesto_sql_types::error;
pub(crate) use telesto_sql_types::{held, interrupt};

pub use error::{Error, Result, SqlState};
pub use notify::{Lost, Notification};
pub use session::{
    CancelHandle, CopyFormat, CopyInTarget, CopyPiece, Ending, Host, Notice, Prepared,
    ResultColumn, ResultSink, Row, Rows, Session, SessionOptions, SqlEngine, SqlOptions,
    StatementResult, TransactionStatus, Turn,
};
pub use types::{Datum, SqlType};
