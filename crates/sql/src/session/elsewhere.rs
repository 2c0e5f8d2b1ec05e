//! Statements of a session that another region executes.
//!
//! ```text
//! plan: not here ─► a snapshot here ─► nearest region that has everything: when it has what is in the snapshot, it executes
//!                                                     │ the next one, if it cannot be reached or does not
//!  rows ◄── pieces ◄──────────────────────────────────┘
//!  what was seen there is owed: the next statement waits until it is here, too
//! ```
//! # Invariants
//! - The statement sees everything that the session has seen, and everything that was acknowledged
//!   in this region before, as a statement here would: its snapshot's time goes with it.
//! - What the session sees afterwards, here or where it moves, is not older than what it was shown:
//!   `Session::await_owed`.
//! - Statements of one snapshot are not mixed: outside of READ COMMITTED it is the only one of its
//!   transaction.
//! - One session, and one role, do not take all places that this region has in another one:
//!   [`super::places`].
//! - A row that was shown is never followed by rows of another execution.
//!
//! # On failure
//! 08006 with who was asked, when none could execute it during [`PATIENCE`], or when rows stopped
//! coming; the statement's own errors; 0A000 for what cannot be read so, with the way out.
//!
//! # Limits
//! A statement that does not read back as it was written is refused. Notices of the other region
//! are not told.

use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use futures::{FutureExt as _, StreamExt as _};
use telesto_common::{RegionId, TxnId};
use telesto_sql_catalog::store::header_key;
use telesto_txn::regions::RegionControl;
use telesto_txn::{AwayRead, Pieces};

use super::cursor::spool;
use super::places::Placed;
use super::{Prepared, Row, Rows, Session, StatementResult};
use crate::catalog::CatalogSnapshot;
use crate::elsewhere::ReadElsewhere;
use crate::elsewhere::sources::Source;
use crate::elsewhere::wire::{self, Given};
use crate::error::{Conflict, Error, Result, SqlState};
use crate::plan::{ExecContext, Plan};
use crate::sqlparser::ast::Statement;
use crate::temp::is_temporary;
use crate::types::{Datum, SqlType};

/// How long regions that cannot be reached are tried again.
const PATIENCE: Duration = Duration::from_secs(5);
/// Between two rounds.
const PAUSE: Duration = Duration::from_millis(100);

/// A statement under way in another region.
struct Begun {
    region: RegionId,
    round_trip: Option<Duration>,
    given: Given,
    /// More of it; nothing: that was all.
    rest: Option<Box<dyn Pieces>>,
}

impl Session {
    /// Executes a statement where everything is that it reads.
    pub(super) async fn read_elsewhere(
        &mut self,
        plan: &ReadElsewhere,
        prepared: &Prepared,
        statement: &Statement,
        context: &ExecContext,
    ) -> Result<StatementResult> {
        self.may_read_elsewhere(prepared, &context.catalog)?;
        let columns = Arc::clone(&plan.rows);
        let asked = asked(prepared, plan.query.as_ref().unwrap_or(statement), context)?;
        let read = AwayRead { seen: context.txn.snapshot(), statement: asked.into() };
        let control = self.replication()?;
        let role = self.settings.session_role;
        let counted = context.catalog.role(role).is_none_or(|role| !role.superuser);
        let place = self.engine.places.take(&self.places, counted.then_some(role))?;
        let begun = begin(&*control, plan, read, context).boxed().await?;
        let Begun { region, round_trip, mut given, rest } = begun;
        if let Some(head) = given.head.take() {
            // From here on the session may have seen it.
            self.owed = Some((region, head.at()));
            let executed = given.failed.is_none();
            if executed && !head.fits(context.catalog.stamp, &columns) {
                return Err(redefined(context));
            }
        }
        if let Some(failed) = given.failed {
            return Err(failed.error());
        }
        let types: Vec<SqlType> = columns.iter().map(|column| column.ty.clone()).collect();
        let mut rows = rows_of(&given, &types)?;
        if matches!(statement, Statement::Explain { .. }) {
            let name = context.catalog.region_name(region.0);
            match &types[..] {
                [SqlType::Text] => rows.insert(0, vec![Datum::text(explained(&name, round_trip))]),
                [SqlType::Json] => explain_json(&mut rows, &name, round_trip)?,
                _ => {}
            }
        }
        let rows = match rest {
            None => Rows::Ready(rows),
            Some(pieces) => {
                let rest: Box<dyn Pieces> = Box::new(Placed { pieces, _place: place });
                let state = (Some(rows), Some(rest), types);
                Rows::Stream(Box::pin(futures::stream::unfold(state, following)))
            }
        };
        if !matches!(statement, Statement::Copy { .. }) {
            return Ok(StatementResult::Rows { columns, rows, tag: "SELECT" });
        }
        let rows = match rows {
            Rows::Ready(rows) => futures::stream::iter([Ok(rows)]).boxed(),
            Rows::Stream(rows) => rows,
        };
        crate::copy::sent_elsewhere(statement, (&columns, rows), context)
    }

    /// A statement that may have to be filled with what another region has: its result, where that
    /// was read first; else it is to be executed with `context`, which has what was read before.
    pub(super) async fn filled(
        &mut self,
        source: Option<Arc<Source>>,
        plan: &Plan,
        prepared: &Arc<Prepared>,
        (statement, parameters): (&Statement, &[Datum]),
        context: &mut ExecContext,
    ) -> Result<Option<StatementResult>> {
        if let Some(source) = source {
            if !source.fits(&context.catalog) {
                return Err(redefined(context));
            }
            context.planner = source;
            return Ok(None);
        }
        let source = self.source_elsewhere(plan, prepared, statement, context).await?;
        let Some(source) = source else { return Ok(None) };
        let read = source.to_read().ok_or_else(|| Error::internal("a query that nobody met"))?;
        let read = self.read_elsewhere(&read, prepared, statement, context).boxed().await?;
        let StatementResult::Rows { rows, .. } = read else {
            return Err(Error::internal("a query that gives no rows"));
        };
        source.give(rows);
        // What it writes is behind what it has read: the transaction begins when that is here.
        if let Some(block) = &mut self.block {
            (block.base, block.waiting) = (None, None);
            if let Some(txn) = block.txn.take() {
                txn.rollback();
            }
        }
        self.source = Some(source);
        self.attempt_filled(prepared, parameters).await.map(Some)
    }

    /// Another attempt, within one.
    fn attempt_filled<'a>(
        &'a mut self,
        prepared: &'a Arc<Prepared>,
        parameters: &'a [Datum],
    ) -> BoxFuture<'a, Result<StatementResult>> {
        self.attempt_here(prepared, parameters).boxed()
    }

    /// What a statement is to be filled with from another region before it is executed.
    async fn source_elsewhere(
        &self,
        plan: &Plan,
        prepared: &Prepared,
        statement: &Statement,
        context: &ExecContext,
    ) -> Result<Option<Arc<Source>>> {
        if matches!(plan, Plan::Session) {
            return crate::elsewhere::source_of_table(statement, context).await;
        }
        let source = Source::new(Arc::clone(&context.planner));
        let known = (&context.catalog, &context.txn);
        self.plan_filled(&source, prepared, statement, known).await?;
        Ok(Some(source))
    }

    /// Waits for what was seen elsewhere, where it is not too late for the transaction under way.
    pub(super) async fn settle_before_statement(&mut self) -> Result<()> {
        let Some(block) = &self.block else { return Ok(()) };
        if self.owed.is_none() || block.txn.is_none() {
            return Ok(());
        }
        if !block.options.level.is_by_statement() {
            return Err(Error::unsupported(
                "a statement in the same transaction as one that another region has executed",
            )
            .hint(WAY_OUT));
        }
        self.await_owed().boxed().await
    }

    fn may_read_elsewhere(&self, prepared: &Prepared, catalog: &CatalogSnapshot) -> Result<()> {
        let refused = |what: &str| {
            Error::unsupported(format!("reading tables that are not in this region {what}"))
                .hint(WAY_OUT)
        };
        let block = self.block.as_ref().ok_or_else(|| Error::internal("no block"))?;
        if prepared.as_of.is_some() || block.options.as_of.is_some() {
            return Err(refused("AS OF SYSTEM TIME"));
        }
        if has_temporary(catalog) {
            return Err(refused("in a session that has temporary relations")
                .hint("DISCARD TEMP removes them; or read these tables in another session."));
        }
        let alone = !block.explicit && !self.several && block.steps.is_empty();
        if !alone && !block.options.read_only {
            return Err(refused("in a transaction that may write"));
        }
        if !alone && !block.options.level.is_by_statement() {
            return Err(refused("in a transaction of one snapshot"));
        }
        Ok(())
    }
}

/// Whether a name may mean something of the session's own.
fn has_temporary(catalog: &CatalogSnapshot) -> bool {
    let tables = catalog.tables().map(|table| table.schema);
    let views = catalog.views().map(|view| view.schema);
    let sequences = catalog.sequences().map(|sequence| sequence.schema);
    tables.chain(views).chain(sequences).any(is_temporary)
}

const NOWHERE_WHOLE: &str = "No region that has these rows has all that the statement reads: read what each has in statements of their own, or SET telesto.local_rows = on.";
const WAY_OUT: &str = "Run the statement outside of a transaction block, or in one of BEGIN TRANSACTION READ ONLY ISOLATION LEVEL READ COMMITTED.";

/// The line that EXPLAIN shows.
fn explained(region: &str, round_trip: Option<Duration>) -> String {
    let measured = match round_trip {
        Some(time) => format!("{:.1} ms", time.as_secs_f64() * 1000.0),
        None => "not measured yet".to_owned(),
    };
    format!("Reads: forwarded to region \"{region}\" (round trip {measured})")
}

/// Adds the same to a plan in JSON: the region, and the round trip in milliseconds, NULL when it is
/// not measured yet.
fn explain_json(rows: &mut [Row], region: &str, round_trip: Option<Duration>) -> Result<()> {
    for value in rows.iter_mut().flatten() {
        let Datum::Json(text) = value else { continue };
        let faulty = |error| Error::internal(format!("a plan of another region as JSON: {error}"));
        let mut plans: serde_json::Value = serde_json::from_str(text).map_err(faulty)?;
        for plan in plans.as_array_mut().into_iter().flatten() {
            let Some(plan) = plan.as_object_mut() else { continue };
            let millis = round_trip.map(|time| time.as_secs_f64() * 1000.0);
            plan.insert("Reads Forwarded To".to_owned(), region.into());
            plan.insert("Round Trip".to_owned(), millis.into());
        }
        let told = serde_json::to_string_pretty(&plans).map_err(faulty)?;
        *value = Datum::Json(Arc::from(told));
    }
    Ok(())
}

/// The other region has other definitions. It is tried again when they are here.
fn redefined(context: &ExecContext) -> Error {
    let mut error = Error::new(
        SqlState::SERIALIZATION_FAILURE,
        "the definitions of tables have changed while another region executed the statement",
    )
    .hint("The statement might succeed if retried.");
    let key = header_key(context.catalog.database);
    let (txn, other) = (context.txn.id(), TxnId(0));
    error.fields_mut().conflict = Some(Conflict { txn, other, key, refused: false });
    error
}

/// The statement for the other side.
fn asked(prepared: &Prepared, statement: &Statement, context: &ExecContext) -> Result<Vec<u8>> {
    // A cursor's rows are its query's.
    let of_cursor;
    let statement =
        match telesto_sql_parser::cursor::declared(statement).and_then(|d| d.for_query.as_ref()) {
            Some(query) => {
                of_cursor = Statement::Query(query.clone());
                &of_cursor
            }
            None => statement,
        };
    let sql = statement.to_string();
    let mut again = telesto_sql_parser::parse::parse_kept(&sql).unwrap_or_default();
    let same = match &again[..] {
        [parsed] => parsed.as_of.is_none() && parsed.statement.as_ref() == Some(statement),
        _ => false,
    };
    for parsed in &mut again {
        let tree = parsed.statement.take();
        parsed.need.release(tree);
    }
    if !same {
        return Err(Error::unsupported(
            "executing this statement in another region, since it does not read back as it was written,",
        )
        .hint("Write it in a plainer form, or connect to a region that has its tables."));
    }
    let types = &prepared.parameter_types;
    let mut parameters = Vec::new();
    spool::encode(&mut parameters, &context.parameters, types)?;
    let oids = types.iter().map(SqlType::oid).collect();
    let asked = wire::Statement::new(
        sql,
        &context.settings,
        (oids, parameters),
        context.transaction_micros,
    );
    wire::encode(&asked?)
}

/// Begins in the nearest region that can be reached and has everything.
async fn begin(
    control: &dyn RegionControl,
    plan: &ReadElsewhere,
    read: AwayRead,
    context: &ExecContext,
) -> Result<Begun> {
    let regions = &plan.regions[..];
    let patience = context.env.deadline(PATIENCE);
    loop {
        let mut distances = control.distances().await;
        distances.retain(|distance| regions.contains(&distance.region));
        distances.sort_by_key(telesto_txn::Distance::rank);
        let (mut why, mut lacking) = (Vec::new(), None);
        for distance in distances {
            let region = distance.region;
            match begin_in(control, region, read.clone()).await {
                Ok((given, rest)) => {
                    let not_there =
                        given.failed.as_ref().filter(|failed| failed.is_of_the_region());
                    let Some(failed) = not_there else {
                        let round_trip = distance.round_trip;
                        return Ok(Begun { region, round_trip, given, rest });
                    };
                    if !plan.whole && failed.is_misplaced() {
                        // It lacks other rows of the statement: waiting does not help.
                        lacking = given.failed.map(wire::Failure::error);
                        continue;
                    }
                    let name = context.catalog.region_name(region.0);
                    why.push(format!("region \"{name}\" ({})", failed.message()));
                }
                Err(error) if error.code() == SqlState::CONNECTION_FAILURE => {
                    why.push(error.message().to_owned());
                }
                Err(error) => return Err(error),
            }
        }
        if let (Some(lacking), []) = (lacking, &why[..]) {
            return Err(lacking.hint(NOWHERE_WHOLE));
        }
        if patience.passed(context.env.clock.monotonic() + PAUSE) {
            return Err(unreachable(regions, &why, context));
        }
        context.env.clock.sleep(PAUSE).await;
    }
}

async fn begin_in(
    control: &dyn RegionControl,
    region: RegionId,
    read: AwayRead,
) -> Result<(Given, Option<Box<dyn Pieces>>)> {
    let mut pieces = control.read_at(region, read).await?;
    let piece = pieces.next().await?;
    let given = wire::decode(&piece.bytes)?;
    Ok((given, (!piece.last).then_some(pieces)))
}

fn unreachable(regions: &[RegionId], why: &[String], context: &ExecContext) -> Error {
    let asked = match why {
        [] => {
            let names = regions.iter().map(|region| context.catalog.region_name(region.0));
            format!("{}: not reached from this node", names.collect::<Vec<_>>().join(", "))
        }
        why => why.join("; "),
    };
    Error::new(
        SqlState::CONNECTION_FAILURE,
        format!("no region that has all tables of the statement could execute it: {asked}"),
    )
    .hint("Run it again; SELECT * FROM telesto_regions shows whether the regions can be reached.")
}

fn rows_of(given: &Given, types: &[SqlType]) -> Result<Vec<Row>> {
    spool::decode(&given.rows, given.count, types)
}

type Following = (Option<Vec<Row>>, Option<Box<dyn Pieces>>, Vec<SqlType>);

/// The next rows of a statement under way.
async fn following((first, rest, types): Following) -> Option<(Result<Vec<Row>>, Following)> {
    if let Some(rows) = first {
        return Some((Ok(rows), (None, rest, types)));
    }
    let mut rest = rest?;
    let next = async {
        let piece = rest.next().await?;
        let given: Given = wire::decode(&piece.bytes)?;
        match given.failed {
            Some(failed) => Err(failed.error()),
            None => Ok((rows_of(&given, &types)?, piece.last)),
        }
    };
    let next: Result<(Vec<Row>, bool)> = next.await;
    match next {
        Ok((rows, last)) => Some((Ok(rows), (None, (!last).then_some(rest), types))),
        Err(error) => Some((Err(error), (None, None, types))),
    }
}
