//! Who plans statements, and what a plan can do.
//!
//! # Invariants
//! - A plan serves many executions at once, and what it learns from one changes no answer of
//!   another.
//! - Executors ask the [`Planner`] for statements inside theirs and never each other.
//!
//! # On failure
//! Errors of the statement, with PostgreSQL's SQLSTATE.

use std::any::Any;
use std::fmt::Debug;
use std::sync::Arc;

use async_trait::async_trait;
use telesto_sql_parser::sqlparser::ast::{Query, Statement, TableWithJoins};
use telesto_sql_types::{Error, Result, SqlType};

use crate::{ExecContext, PlanContext, ResultColumn, StatementResult};

/// A column that a FROM clause shows.
#[derive(Clone, Debug)]
pub struct FromColumn {
    /// Its relation; `None`: USING has merged it.
    pub relation: Option<String>,
    /// Its name.
    pub name: String,
    /// Its type.
    pub ty: SqlType,
    /// Which column of `*` it is.
    pub position: usize,
    /// It is one more name for that column: the alias of USING has it.
    pub again: bool,
}

/// A planned statement that an executor runs.
#[async_trait]
pub trait ExecutablePlan: Any + Debug + Send + Sync {
    /// The result columns; `None` when the statement returns no rows.
    fn columns(&self) -> Option<&Arc<[ResultColumn]>>;

    /// Whether the key path runs it.
    fn is_by_key(&self) -> bool;

    /// Whether what it runs by was made before, for any values of the parameters.
    fn is_for_any_values(&self) -> bool {
        self.is_by_key()
    }

    /// Whether it only reads (and calls no function that writes, such as nextval).
    fn is_read_only(&self) -> bool;

    /// The command it is, if it writes or locks rows.
    fn writes(&self) -> Option<&'static str>;

    /// What EXPLAIN says it does, in one line or more.
    fn describe(&self) -> String;

    /// Runs it once.
    ///
    /// # Errors
    /// Whatever the statement runs into; its writes are then undone by the caller (a savepoint).
    async fn execute(&self, context: &ExecContext) -> Result<StatementResult>;

    /// Itself, for whoever made it and knows more of it.
    fn as_any(&self) -> &dyn Any;
}

/// A statement ready to run.
#[derive(Clone, Debug)]
pub enum Plan {
    /// By an executor.
    Run(Arc<dyn ExecutablePlan>),
    /// By the session itself.
    Session,
}

impl Plan {
    /// A plan of an executor.
    pub fn of(plan: Arc<impl ExecutablePlan>) -> Self {
        Self::Run(plan)
    }

    /// The result columns; `None` when the statement returns no rows.
    #[must_use]
    pub fn columns(&self) -> Option<&Arc<[ResultColumn]>> {
        match self {
            Self::Run(plan) => plan.columns(),
            Self::Session => None,
        }
    }

    /// Whether the key path runs it.
    #[must_use]
    pub fn is_by_key(&self) -> bool {
        matches!(self, Self::Run(plan) if plan.is_by_key())
    }

    /// Whether what it runs by was made before, for any values of the parameters.
    #[must_use]
    pub fn is_for_any_values(&self) -> bool {
        matches!(self, Self::Run(plan) if plan.is_for_any_values())
    }

    /// The plan as the type its maker knows; `None`: another made it.
    #[must_use]
    pub fn downcast<T: ExecutablePlan>(&self) -> Option<&T> {
        match self {
            Self::Run(plan) => plan.as_any().downcast_ref(),
            Self::Session => None,
        }
    }

    /// Runs it once, inside another statement.
    ///
    /// # Errors
    /// Those of the statement; 0A000 for what the session does itself.
    pub async fn execute(&self, context: &ExecContext) -> Result<StatementResult> {
        match self {
            Self::Run(plan) => plan.execute(context).await,
            Self::Session => Err(Error::unsupported("this inner statement")),
        }
    }
}

/// Who plans statements: the session's engine, which knows all executors.
#[async_trait]
pub trait Planner: Debug + Send + Sync {
    /// Plans a statement for whichever executor takes it.
    ///
    /// # Errors
    /// Errors of the statement: unknown names, types that do not fit, …
    async fn plan(&self, statement: &Statement, context: &mut PlanContext<'_>) -> Result<Plan>;

    /// Plans a query for the executor of whole queries, with untyped literals and parameters in its
    /// select list of the types `wanted`, by position.
    ///
    /// # Errors
    /// As [`Planner::plan`].
    fn plan_query(
        &self,
        statement: &Statement,
        wanted: Vec<SqlType>,
        context: &mut PlanContext<'_>,
    ) -> Result<Plan>;

    /// The result columns of a query. Parameter types found on the way are noted in `context`.
    ///
    /// # Errors
    /// Errors of the statement.
    fn describe_query(
        &self,
        query: &Query,
        context: &mut PlanContext<'_>,
    ) -> Result<Vec<ResultColumn>>;

    /// The columns that `*` stands for over a FROM clause; behind them those of the aliases of
    /// USING.
    ///
    /// # Errors
    /// Errors of the clause.
    fn describe_from(
        &self,
        from: &[TableWithJoins],
        context: &mut PlanContext<'_>,
    ) -> Result<Vec<FromColumn>>;

    /// Compares a table with its indexes and constraints; the number of rows.
    ///
    /// # Errors
    /// XX001 for the first difference.
    async fn check_table(&self, context: &ExecContext, table: u32) -> Result<u64>;

    /// Writes what waits for a curator, or with `rejected` (and perhaps a reason) drops it; the
    /// number of rows.
    ///
    /// # Errors
    /// 42501 for who is no curator; 42704 and 55000 for what does not wait; 23xxx and 55000 for
    /// what cannot be written.
    async fn decide(
        &self,
        context: &ExecContext,
        id: i64,
        rejected: Option<Option<String>>,
    ) -> Result<i64>;
}
