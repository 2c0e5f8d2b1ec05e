//! The extended protocol: prepared statements, portals, Parse to Close.
//!
//! # Invariants
//! - A portal runs at most once; it ends with its transaction.
//! - A portal that is suspended does not hold the session: before another statement runs, the
//!   session puts the rows that it has left aside. From then on it is one of the session's cursors,
//!   which FETCH, MOVE and CLOSE reach as well.
//! - Portals and cursors have one space of names: a cursor that was declared is executed like a
//!   portal.
//! - What a portal keeps of its client's bytes is charged to the memory of statements: ten thousand
//!   portals of 64 MiB are refused.
//!
//! # Limits
//! `Limits::max_statements` statements and as many portals. A portal that has not been executed
//! runs before a query string that says FETCH or MOVE and names it; prepared FETCH and MOVE of it
//! as well.

use std::collections::BTreeMap;
use std::sync::Arc;

use telesto_common::limits::Reservation;
use telesto_sql::catalog::FIRST_USER_OID;
use telesto_sql::session::pg_micros;
use telesto_sql::types::held::row_bytes;
use telesto_sql::types::{EnumType, TextStyle};
use telesto_sql::{
    Datum, Error, Prepared, Rows, SqlState, SqlType, StatementResult, TransactionStatus,
};

use crate::wire::connection::Connection;
use crate::wire::frontend::{Bind, Frontend, Target};
use crate::wire::rows::{Cursor, Failure, copy_in, copy_out, describe, format_of};
use crate::wire::values;

/// Size of all parameters that are read in next to no time, bytes.
const LARGE_BIND: u64 = 64 << 10;

/// Statements and portals of a session.
#[derive(Debug, Default)]
pub struct Extended {
    /// The statement without a name; the others are the session's.
    unnamed: Option<Arc<Prepared>>,
    portals: BTreeMap<String, Portal>,
}

#[derive(Debug)]
struct Portal {
    prepared: Arc<Prepared>,
    formats: Vec<i16>,
    state: PortalState,
    /// The memory of its parameters.
    _charged: Option<Reservation>,
}

#[derive(Debug)]
enum PortalState {
    Bound(Vec<Datum>),
    Running {
        cursor: Box<Cursor>,
        tag: &'static str,
    },
    /// All rows were sent; executing it again sends none.
    Exhausted {
        tag: &'static str,
    },
    /// The session has what is left.
    Aside {
        tag: &'static str,
    },
    /// A command that has run.
    Done,
}

impl Extended {
    /// Forgets everything.
    pub fn clear(&mut self) {
        self.portals.clear();
        self.unnamed = None;
    }

    /// A simple query ends the unnamed statement and portal.
    pub fn drop_unnamed(&mut self) {
        self.portals.remove("");
        self.unnamed = None;
    }

    /// The statement without a name.
    pub(super) fn unnamed(&self) -> Option<&Arc<Prepared>> {
        self.unnamed.as_ref()
    }

    /// Begins with this statement without a name.
    pub(super) fn begin_with(&mut self, unnamed: Option<Arc<Prepared>>) {
        self.unnamed = unnamed;
    }

    /// Whether any portal is there.
    pub(super) fn has_portals(&self) -> bool {
        !self.portals.is_empty()
    }

    /// Names of portals that other statements can reach, or that draw from the session.
    fn to_put_aside(&self, fetches: impl Fn(&str) -> bool) -> Vec<String> {
        let wanted = |name: &str, portal: &Portal| match &portal.state {
            PortalState::Running { .. } => true,
            PortalState::Bound(_) => {
                !name.is_empty() && portal.prepared.columns.is_some() && fetches(name)
            }
            PortalState::Exhausted { .. } => !name.is_empty(),
            PortalState::Aside { .. } | PortalState::Done => false,
        };
        let names = self.portals.iter().filter(|(name, portal)| wanted(name, portal));
        names.map(|(name, _)| name.clone()).collect()
    }
}

/// Whether a query string may FETCH from the portal, or MOVE it.
fn may_fetch(sql: &str, name: &str) -> bool {
    let lower = sql.to_ascii_lowercase();
    (lower.contains("fetch") || lower.contains("move")) && sql.contains(name)
}

impl Connection {
    pub(super) async fn extended_message(&mut self, message: Frontend<'_>) -> Result<(), Failure> {
        match message {
            Frontend::Parse { name, query, types } => self.parse(name, query, &types).await,
            Frontend::Bind(bind) if is_large(&bind) => {
                self.configure().await?;
                // Reading large values (a json of some megabytes) takes its time.
                let tasks = Arc::clone(&self.env.tasks);
                let mut bound = None;
                tasks.compute(&mut || bound = Some(self.bind(&bind)));
                bound.unwrap_or_else(|| Err(Failure::Sql(Error::internal("not computed"))))
            }
            Frontend::Bind(bind) => {
                self.configure().await?;
                self.bind(&bind)
            }
            Frontend::Describe(Target::Statement, name) => self.describe_statement(name),
            Frontend::Describe(Target::Portal, name) => self.describe_portal(name),
            Frontend::Execute { portal, max_rows } => {
                let begun = self.env.clock.monotonic();
                let done = self.execute(portal, u64::from(max_rows)).await;
                let took = self.env.clock.monotonic().saturating_sub(begun);
                let wrote = self.session.take_wrote();
                let failure = done.as_ref().err().and_then(Failure::state);
                if wrote && self.session.transaction_status() == TransactionStatus::Idle {
                    // It is done when Sync has committed it, with all others up to there.
                    self.metrics.statements.increment(1);
                    self.writing.get_or_insert((begun, None)).1 = failure;
                } else {
                    self.metrics.ran(wrote, took, failure);
                }
                done
            }
            Frontend::Close(Target::Statement, name) => {
                match name {
                    "" => self.extended.unnamed = None,
                    name => self.session.drop_statement(name),
                }
                self.wire.output.close_complete();
                Ok(())
            }
            Frontend::Close(Target::Portal, name) => {
                self.extended.portals.remove(name);
                self.session.close_portal(name);
                self.wire.output.close_complete();
                Ok(())
            }
            other => {
                Err(Failure::Sql(Error::internal(format!("{other:?} is no extended message"))))
            }
        }
    }

    /// Ends every portal.
    pub(super) fn drop_portals(&mut self) {
        self.extended.portals.clear();
        self.session.close_portals();
    }

    /// Frees the session of rows that suspended portals still draw from it, and lets it have the
    /// portals that the statement about to run may reach: any that has rows, and one that was not
    /// executed yet if `sql` may fetch from it.
    ///
    /// # Errors
    /// [`Failure`].
    pub(super) async fn set_portals_aside(&mut self, sql: Option<&str>) -> Result<(), Failure> {
        if !self.extended.has_portals() {
            return Ok(());
        }
        let names = self.extended.to_put_aside(|name| sql.is_some_and(|sql| may_fetch(sql, name)));
        for name in names {
            self.set_aside(&name).await?;
        }
        Ok(())
    }

    async fn set_aside(&mut self, name: &str) -> Result<(), Failure> {
        let Some(portal) = self.extended.portals.get_mut(name) else { return Ok(()) };
        let prepared = Arc::clone(&portal.prepared);
        let (columns, rows, tag) = match std::mem::replace(&mut portal.state, PortalState::Done) {
            PortalState::Running { cursor, tag } => {
                let (columns, rows) = cursor.into_rest();
                (columns, rows, tag)
            }
            PortalState::Exhausted { tag } => {
                let columns = prepared.columns.clone().unwrap_or_else(|| Arc::from([]));
                (columns, Rows::Ready(Vec::new()), tag)
            }
            PortalState::Bound(parameters) => {
                let executed = self.session.execute(&prepared, parameters);
                match self.wire.during(executed).await?? {
                    StatementResult::Rows { columns, rows, tag } => (columns, rows, tag),
                    _ => return Ok(()),
                }
            }
            other => {
                portal.state = other;
                return Ok(());
            }
        };
        let kept = self.session.keep_portal(name, &prepared, columns, rows);
        match self.wire.during(kept).await? {
            Ok(()) => {}
            Err(error) => return Err(Failure::Sql(self.session.fail_with(error).await)),
        }
        if let Some(portal) = self.extended.portals.get_mut(name) {
            portal.state = PortalState::Aside { tag };
        }
        Ok(())
    }

    /// An error the session does not know of yet.
    fn fail(&mut self, error: Error) -> Failure {
        self.session.fail();
        Failure::Sql(error)
    }

    async fn parse(&mut self, name: &str, query: &str, types: &[u32]) -> Result<(), Failure> {
        if name.is_empty() {
            self.extended.unnamed = None;
        } else if self.session.named(name).is_some() {
            return Err(self.fail(Error::new(
                SqlState::DUPLICATE_PREPARED_STATEMENT,
                format!("prepared statement \"{name}\" already exists"),
            )));
        }
        if self.session.named_statements() >= self.wire.limits().max_statements {
            return Err(
                self.fail(too_many("prepared statements", self.wire.limits().max_statements))
            );
        }
        let mut known = Vec::with_capacity(types.len());
        for oid in types {
            known.push(match oid {
                // 0 is unspecified, 705 the type `unknown`: both are to be inferred.
                0 | 705 => None,
                oid => match SqlType::from_oid(*oid) {
                    Some(ty) => Some(ty),
                    // Perhaps a user's: the session looks in the catalog.
                    None if *oid >= FIRST_USER_OID => {
                        Some(SqlType::Enum(Arc::new(EnumType::unlinked(*oid))))
                    }
                    None => {
                        return Err(self.fail(Error::new(
                            SqlState::UNDEFINED_OBJECT,
                            format!("type with OID {oid} does not exist"),
                        )));
                    }
                },
            });
        }
        self.set_portals_aside(None).await?;
        let prepared = self.wire.during(self.session.prepare(query, &known)).await??;
        match name {
            "" => self.extended.unnamed = Some(prepared),
            name => {
                if let Err(error) = self.session.name_statement(name, prepared) {
                    return Err(self.fail(error));
                }
            }
        }
        self.wire.output.parse_complete();
        Ok(())
    }

    fn statement(&mut self, name: &str) -> Result<Arc<Prepared>, Failure> {
        let known = match name {
            "" => self.extended.unnamed.as_ref(),
            name => self.session.named(name),
        };
        match known {
            Some(prepared) => Ok(Arc::clone(prepared)),
            None if name.is_empty() => Err(self.fail(Error::new(
                SqlState::INVALID_STATEMENT_NAME,
                "unnamed prepared statement does not exist",
            ))),
            None => Err(self.fail(Error::new(
                SqlState::INVALID_STATEMENT_NAME,
                format!("prepared statement \"{name}\" does not exist"),
            ))),
        }
    }

    fn no_portal(&mut self, name: &str) -> Failure {
        self.fail(Error::new(
            SqlState::INVALID_CURSOR_NAME,
            format!("portal \"{name}\" does not exist"),
        ))
    }

    /// What calls of `set_config` asked for is in force for what is bound.
    async fn configure(&mut self) -> Result<(), Failure> {
        match self.wire.during(self.session.configure()).await? {
            Ok(()) => Ok(()),
            Err(error) => Err(self.fail(error)),
        }
    }

    fn bind(&mut self, bind: &Bind<'_>) -> Result<(), Failure> {
        let prepared = self.statement(bind.statement)?;
        if bind.portal.is_empty() {
            // The new one takes its place, and is not to be refused for the memory that it had.
            self.extended.portals.remove("");
        }
        let mut style = self.style();
        // For inputs like 'now' and 'today'.
        style.now_micros = pg_micros(self.env.clock.wall_micros());
        let portal = match self.bound(bind, prepared, &style) {
            Ok(portal) => portal,
            Err(error) => return Err(self.fail(error)),
        };
        if let Err(error) = self.session.open_portal(bind.portal, &portal.prepared) {
            return Err(self.fail(error));
        }
        self.extended.portals.insert(bind.portal.to_owned(), portal);
        self.wire.output.bind_complete();
        Ok(())
    }

    fn bound(
        &self,
        bind: &Bind<'_>,
        prepared: Arc<Prepared>,
        style: &TextStyle,
    ) -> Result<Portal, Error> {
        let violation = |text: String| Error::new(SqlState::PROTOCOL_VIOLATION, text);
        let portals = &self.extended.portals;
        if portals.len() >= self.wire.limits().max_statements {
            return Err(too_many("portals", self.wire.limits().max_statements));
        }
        let (given, expected) = (bind.parameters.len(), prepared.parameter_types.len());
        if given != expected {
            return Err(violation(format!(
                "bind message supplies {given} parameters, but prepared statement \"{}\" requires {expected}",
                bind.statement
            )));
        }
        let formats = bind.parameter_formats.len();
        if formats > 1 && formats != given {
            return Err(violation(format!(
                "bind message has {formats} parameter formats but {given} parameters"
            )));
        }
        let columns = prepared.columns.as_ref().map_or(0, |columns| columns.len());
        let results = bind.result_formats.len();
        if results > 1 && results != columns {
            return Err(violation(format!(
                "bind message has {results} result formats but query has {columns} columns"
            )));
        }
        let all = bind.parameter_formats.iter().chain(&bind.result_formats);
        if let Some(unknown) = all.copied().find(|format| !matches!(format, 0 | 1)) {
            return Err(Error::new(
                SqlState::INVALID_PARAMETER_VALUE,
                format!("unsupported format code: {unknown}"),
            ));
        }
        let mut parameters = Vec::with_capacity(given);
        for (at, (value, ty)) in bind.parameters.iter().zip(&prepared.parameter_types).enumerate() {
            parameters.push(match value {
                None => Datum::Null,
                Some(raw) => values::read(raw, ty, format_of(&bind.parameter_formats, at), style)
                    .map_err(|error| {
                    error.context(format!("unnamed portal parameter ${}", at + 1))
                })?,
            });
        }
        let charged = self.session.charge_portal(row_bytes(&parameters).max(sent(bind)))?;
        let state = PortalState::Bound(parameters);
        Ok(Portal { prepared, formats: bind.result_formats.clone(), state, _charged: charged })
    }

    fn describe_statement(&mut self, name: &str) -> Result<(), Failure> {
        let prepared = self.statement(name)?;
        let output = &mut self.wire.output;
        output.parameter_description(prepared.parameter_types.iter().map(SqlType::oid));
        match &prepared.columns {
            Some(columns) => describe(output, columns, &[]),
            None => output.no_data(),
        }
        Ok(())
    }

    fn describe_portal(&mut self, name: &str) -> Result<(), Failure> {
        self.forget_closed(name);
        let Some(portal) = self.extended.portals.get(name) else {
            // A cursor made in SQL is a portal, too: psycopg describes it after DECLARE.
            return match self.session.cursor_columns(name) {
                Some(columns) => {
                    describe(&mut self.wire.output, &columns, &[]);
                    Ok(())
                }
                None => Err(self.no_portal(name)),
            };
        };
        match &portal.prepared.columns {
            Some(columns) => describe(&mut self.wire.output, columns, &portal.formats),
            None => self.wire.output.no_data(),
        }
        Ok(())
    }

    /// CLOSE in SQL, and ROLLBACK TO a savepoint, end portals that the server still holds.
    fn forget_closed(&mut self, name: &str) {
        if !name.is_empty() && !self.session.has_portal(name) {
            self.extended.portals.remove(name);
        }
    }

    async fn execute(&mut self, name: &str, max_rows: u64) -> Result<(), Failure> {
        self.forget_closed(name);
        let Some(portal) = self.extended.portals.get_mut(name) else {
            return self.fetch_aside(name, Vec::new(), "SELECT", max_rows).await;
        };
        let read =
            matches!(portal.state, PortalState::Running { .. } | PortalState::Exhausted { .. });
        if read && self.session.transaction_status() == TransactionStatus::Failed {
            return Err(self.fail(Error::new(
                SqlState::IN_FAILED_TRANSACTION,
                "current transaction is aborted, commands ignored until end of transaction block",
            )));
        }
        match std::mem::replace(&mut portal.state, PortalState::Done) {
            PortalState::Bound(parameters) => {
                let prepared = Arc::clone(&portal.prepared);
                let formats = portal.formats.clone();
                self.start(name, &prepared, parameters, formats, max_rows).await
            }
            PortalState::Running { cursor, tag } => self.resume(name, cursor, tag, max_rows).await,
            PortalState::Exhausted { tag } => {
                portal.state = PortalState::Exhausted { tag };
                self.wire.output.rows_complete(tag, 0);
                Ok(())
            }
            PortalState::Aside { tag } => {
                portal.state = PortalState::Aside { tag };
                let formats = portal.formats.clone();
                self.fetch_aside(name, formats, tag, max_rows).await
            }
            PortalState::Done => Err(self.fail(Error::new(
                SqlState::OBJECT_NOT_IN_PREREQUISITE_STATE,
                format!("portal \"{name}\" cannot be run"),
            ))),
        }
    }

    /// Rows of a portal that was put aside, or of a cursor that was declared.
    async fn fetch_aside(
        &mut self,
        name: &str,
        formats: Vec<i16>,
        tag: &'static str,
        max_rows: u64,
    ) -> Result<(), Failure> {
        if !self.session.has_portal(name) {
            return Err(self.no_portal(name));
        }
        let fetched = match self.wire.during(self.session.fetch_portal(name, max_rows)).await? {
            Ok(StatementResult::Rows { columns, rows, .. }) => {
                let style = self.style();
                Cursor::new(columns, formats, style, rows).send(&mut self.wire, 0).await
            }
            Ok(_) => Err(Failure::Sql(Error::internal("a portal without rows"))),
            Err(error) => Err(Failure::Sql(error)),
        };
        let sent = match fetched {
            Ok((sent, _)) => sent,
            Err(Failure::Sql(error)) => {
                return Err(Failure::Sql(self.session.fail_with(error).await));
            }
            Err(end) => return Err(end),
        };
        self.metrics.rows.increment(sent);
        if max_rows > 0 && sent == max_rows {
            self.wire.output.portal_suspended();
        } else {
            self.wire.output.rows_complete(tag, sent);
        }
        Ok(())
    }

    async fn start(
        &mut self,
        name: &str,
        prepared: &Arc<Prepared>,
        parameters: Vec<Datum>,
        formats: Vec<i16>,
        max_rows: u64,
    ) -> Result<(), Failure> {
        let fetches = prepared.fetches().then_some(prepared.sql.as_str());
        self.set_portals_aside(fetches).await?;
        let executed = self.wire.during(self.session.execute(prepared, parameters)).await?;
        let result = executed?;
        let copied = match result {
            StatementResult::Rows { columns, rows, tag } => {
                let style = self.style();
                let cursor = Box::new(Cursor::new(columns, formats, style, rows));
                return self.resume(name, cursor, tag, max_rows).await;
            }
            StatementResult::Command { tag } => {
                self.notices();
                self.wire.output.command_complete(&tag);
                if prepared.ends_transaction() {
                    // That of the command itself included.
                    self.drop_portals();
                }
                return Ok(());
            }
            StatementResult::Empty => {
                self.wire.output.empty_query();
                return Ok(());
            }
            StatementResult::CopyIn { format, columns, target } => {
                copy_in(&mut self.wire, format, columns, target).await
            }
            StatementResult::CopyOut { format, columns, data } => {
                copy_out(&mut self.wire, format, columns, data).await
            }
        };
        match copied {
            Ok(rows) => {
                self.wire.output.command_complete(&format!("COPY {rows}"));
                Ok(())
            }
            Err(Failure::Sql(error)) => Err(Failure::Sql(self.session.fail_with(error).await)),
            Err(end) => Err(end),
        }
    }

    async fn resume(
        &mut self,
        name: &str,
        mut cursor: Box<Cursor>,
        tag: &'static str,
        max_rows: u64,
    ) -> Result<(), Failure> {
        self.notices();
        let (sent, at_end) = match cursor.send(&mut self.wire, max_rows).await {
            Ok(sent) => sent,
            Err(Failure::Sql(error)) => {
                return Err(Failure::Sql(self.session.fail_with(error).await));
            }
            Err(end) => return Err(end),
        };
        self.metrics.rows.increment(sent);
        let state = if at_end {
            self.wire.output.rows_complete(tag, sent);
            PortalState::Exhausted { tag }
        } else {
            self.wire.output.portal_suspended();
            PortalState::Running { cursor, tag }
        };
        if let Some(portal) = self.extended.portals.get_mut(name) {
            portal.state = state;
        }
        Ok(())
    }
}

fn is_large(bind: &Bind<'_>) -> bool {
    sent(bind) > LARGE_BIND
}

/// Size of all parameters as they were sent, bytes.
fn sent(bind: &Bind<'_>) -> u64 {
    bind.parameters.iter().flatten().map(|raw| raw.len() as u64).sum()
}

fn too_many(what: &str, limit: usize) -> Error {
    Error::new(
        SqlState::PROGRAM_LIMIT_EXCEEDED,
        format!("a session may have at most {limit} {what}"),
    )
    .hint("Close the ones that are no longer used.")
}
