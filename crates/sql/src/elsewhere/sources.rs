//! Writes whose rows come from a query over tables of another region: `INSERT … SELECT`,
//! `CREATE TABLE AS`, `SELECT INTO`.
//!
//! ```text
//! INSERT INTO here SELECT … FROM there
//!     planned here ─ "not here" ─► the query alone is executed where its tables are ─► rows as of T
//!     everything of that region up to T is here ─► a new transaction ─► the statement, with these rows in the query's place
//! ```
//! # Invariants
//! - What is read elsewhere is of tables that are not here: nothing that this region orders was
//!   read without being validated. So the region stays strictly serializable, and between regions
//!   the write is behind, causally, what it rests on: who sees it sees that, too.
//! - The query is executed once for an execution of the statement; its rows are given once.
//!
//! # On failure
//! The error of planning the query here, when it cannot be executed elsewhere; 0A000 when it reads
//! a table that is here, too.
//!
//! # Limits
//! One such query a statement, which is alone in its transaction.

use std::any::Any;
use std::sync::Arc;

use async_trait::async_trait;
use parking_lot::Mutex;
use telesto_common::RegionId;
use telesto_sql_parser::statement_kind::only_reads;

use super::{ReadElsewhere, check_columns};
use crate::catalog::{CatalogSnapshot, Stamp};
use crate::error::{Error, Result};
use crate::plan::{
    ExecContext, ExecutablePlan, FromColumn, Plan, PlanContext, Planner, ResultColumn, Rows,
    StatementResult,
};
use crate::sqlparser::ast::{Query, SetExpr, Statement, TableWithJoins};
use crate::types::SqlType;

/// Whether a statement is one that writes what a query gives.
pub(crate) fn is_filled(statement: &Statement) -> bool {
    match statement {
        Statement::Insert(insert) => {
            let source = insert.source.as_ref();
            source.is_some_and(|query| !matches!(&*query.body, SetExpr::Values(_)))
        }
        Statement::CreateTable(create) => create.query.is_some(),
        Statement::Query(query) => {
            matches!(&*query.body, SetExpr::Select(select) if select.into.is_some())
        }
        _ => false,
    }
}

/// Whether a statement with this plan may have to be filled with what another region has.
pub(crate) fn may_be_filled(plan: &Plan, statement: &Statement) -> bool {
    match plan {
        Plan::Session => is_filled(statement),
        plan => plan.downcast::<FilledFromElsewhere>().is_some(),
    }
}

/// Plans as `inner` does, and in the place of a query that is executed elsewhere what its rows come
/// in.
#[derive(Debug)]
pub(crate) struct Source {
    inner: Arc<dyn Planner>,
    met: Mutex<Option<Met>>,
    rows: Arc<Mutex<Option<Rows>>>,
}

/// The query that was met.
#[derive(Clone, Debug)]
struct Met {
    query: Statement,
    columns: Arc<[ResultColumn]>,
    regions: Vec<RegionId>,
    stamp: Stamp,
}

impl Source {
    pub fn new(inner: Arc<dyn Planner>) -> Arc<Self> {
        Arc::new(Self { inner, met: Mutex::default(), rows: Arc::default() })
    }

    /// The query that was met, to be executed elsewhere.
    pub fn to_read(&self) -> Option<ReadElsewhere> {
        let Met { query, columns, regions, .. } = self.met.lock().clone()?;
        let rows = Arc::clone(&columns);
        Some(ReadElsewhere { columns, rows, query: Some(query), regions, whole: true })
    }

    /// The rows have come.
    pub fn give(&self, rows: Rows) {
        *self.rows.lock() = Some(rows);
    }

    /// Whether the query was planned with these definitions.
    pub fn fits(&self, catalog: &CatalogSnapshot) -> bool {
        self.met.lock().as_ref().is_some_and(|met| met.stamp == catalog.stamp)
    }

    /// What gives the rows of `statement`, which was not planned because of `error`.
    fn instead(
        &self,
        statement: &Statement,
        wanted: &[SqlType],
        context: &mut PlanContext<'_>,
        error: Error,
    ) -> Result<Plan> {
        if !only_reads(statement) {
            return Err(error);
        }
        let known = self.met.lock().clone();
        let met = match known {
            Some(met) if met.query == *statement => met,
            Some(_) => return Err(error),
            None => self.meet(statement, wanted, context, error)?,
        };
        let given = GivenRows { columns: Arc::clone(&met.columns), rows: Arc::clone(&self.rows) };
        *self.met.lock() = Some(met);
        Ok(Plan::of(Arc::new(given)))
    }

    fn meet(
        &self,
        statement: &Statement,
        wanted: &[SqlType],
        context: &mut PlanContext<'_>,
        error: Error,
    ) -> Result<Met> {
        let mut found: Option<Met> = None;
        let mut parameters = context.parameters.clone();
        for region in error.placed_in().iter().copied() {
            let catalog = Arc::new(context.catalog.seen_from_apart(region));
            let mut given = context.parameters.clone();
            let mut planned = |wanted: Vec<SqlType>| {
                self.inner.plan_query(
                    statement,
                    wanted,
                    &mut PlanContext {
                        catalog: &catalog,
                        settings: context.settings,
                        parameters: &mut given,
                        txn: context.txn,
                        env: context.env,
                        earlier: Arc::clone(&context.earlier),
                        planner: &self.inner,
                    },
                )
            };
            let into = match planned(wanted.to_vec()) {
                Ok(plan) => plan,
                Err(other) if other.fields().placed_in.is_some() => continue,
                Err(error) => return Err(error),
            };
            // There nobody knows what the columns are for.
            let alone = planned(Vec::new())?;
            let columns = alone.columns().cloned().unwrap_or_else(|| Arc::from([]));
            if into.columns() != Some(&columns) {
                return Err(Error::unsupported(
                    "a query that another region executes, with a constant or a parameter whose type its target gives,",
                )
                .hint("Cast it to the type of the column: '…'::integer, $1::date."));
            }
            match &mut found {
                Some(found) => found.regions.push(region),
                None => {
                    let (query, stamp) = (statement.clone(), context.catalog.stamp);
                    found = Some(Met { query, columns, regions: vec![region], stamp });
                    parameters = given;
                }
            }
        }
        let Some(found) = found else {
            return Err(error.hint(
                "No region has all that the query reads: read what each has in statements of their own, or place the tables in one region too.",
            ));
        };
        check_columns(&found.columns)?;
        *context.parameters = parameters;
        Ok(found)
    }
}

#[async_trait]
impl Planner for Source {
    async fn plan(&self, statement: &Statement, context: &mut PlanContext<'_>) -> Result<Plan> {
        match self.inner.plan(statement, context).await {
            Err(error) if error.fields().placed_in.is_some() => {
                self.instead(statement, &[], context, error)
            }
            planned => planned,
        }
    }

    fn plan_query(
        &self,
        statement: &Statement,
        wanted: Vec<SqlType>,
        context: &mut PlanContext<'_>,
    ) -> Result<Plan> {
        match self.inner.plan_query(statement, wanted.clone(), context) {
            Err(error) if error.fields().placed_in.is_some() => {
                self.instead(statement, &wanted, context, error)
            }
            planned => planned,
        }
    }

    fn describe_query(
        &self,
        query: &Query,
        context: &mut PlanContext<'_>,
    ) -> Result<Vec<ResultColumn>> {
        self.inner.describe_query(query, context)
    }

    fn describe_from(
        &self,
        from: &[TableWithJoins],
        context: &mut PlanContext<'_>,
    ) -> Result<Vec<FromColumn>> {
        self.inner.describe_from(from, context)
    }

    async fn check_table(&self, context: &ExecContext, table: u32) -> Result<u64> {
        self.inner.check_table(context, table).await
    }

    async fn decide(
        &self,
        context: &ExecContext,
        id: i64,
        rejected: Option<Option<String>>,
    ) -> Result<i64> {
        self.inner.decide(context, id, rejected).await
    }
}

/// The rows of the query.
#[derive(Debug)]
struct GivenRows {
    columns: Arc<[ResultColumn]>,
    rows: Arc<Mutex<Option<Rows>>>,
}

#[async_trait]
impl ExecutablePlan for GivenRows {
    fn columns(&self) -> Option<&Arc<[ResultColumn]>> {
        Some(&self.columns)
    }

    fn is_by_key(&self) -> bool {
        false
    }

    fn is_read_only(&self) -> bool {
        true
    }

    fn writes(&self) -> Option<&'static str> {
        None
    }

    fn describe(&self) -> String {
        "Read in another region".to_owned()
    }

    async fn execute(&self, _: &ExecContext) -> Result<StatementResult> {
        let rows = self.rows.lock().take();
        let rows =
            rows.ok_or_else(|| Error::internal("rows of another region that are not here"))?;
        Ok(StatementResult::Rows { columns: Arc::clone(&self.columns), rows, tag: "SELECT" })
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

/// A statement that is filled with what is read elsewhere, as it is described. The session executes
/// it itself.
#[derive(Debug)]
pub(crate) struct FilledFromElsewhere {
    columns: Option<Arc<[ResultColumn]>>,
}

impl FilledFromElsewhere {
    pub fn of(plan: &Plan) -> Plan {
        Plan::of(Arc::new(Self { columns: plan.columns().cloned() }))
    }
}

#[async_trait]
impl ExecutablePlan for FilledFromElsewhere {
    fn columns(&self) -> Option<&Arc<[ResultColumn]>> {
        self.columns.as_ref()
    }

    fn is_by_key(&self) -> bool {
        false
    }

    fn is_read_only(&self) -> bool {
        false
    }

    fn writes(&self) -> Option<&'static str> {
        Some("INSERT")
    }

    fn describe(&self) -> String {
        "Write what is read in another region".to_owned()
    }

    async fn execute(&self, _: &ExecContext) -> Result<StatementResult> {
        Err(Error::unsupported("reading tables of another region inside another statement"))
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}
