//! What evaluation sees beside the row: settings, catalog, the statement's execution, and requests
//! that must wait.
//!
//! # Invariants
//! - Evaluation never waits. A function that needs to (nextval, setval, pg_sleep,
//!   telesto_txn_status, telesto_log_switch) leaves a [`Request`] here and fails with a private
//!   error; [`EvalContext::satisfy`] does the waiting and the row is evaluated again, the answers
//!   so far replayed in order. So effects happen once a row, in the order of evaluation.
//! - Without an execution (planning), only what is immutable or depends on settings and catalog can
//!   be computed.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use parking_lot::Mutex;
use telesto_common::TxnId;
use telesto_txn::{LogKind, Space};

use super::calendar::Zone;
use super::fault;
use super::search::Search;
use crate::execution::Execution;
use crate::members::{KnownLists, Members};
use crate::settings::Settings;
use telesto_sql_catalog::CatalogSnapshot;
use telesto_sql_catalog::temp::is_temporary;
use telesto_sql_types::advisory::{LockKey, LockMode, LockRequest};
use telesto_sql_types::error::{Error, Result, SqlState};
use telesto_sql_types::identifier::quote_literal;
use telesto_sql_types::{ArrayValue, Datum, SqlType};

/// One call of a function body.
#[derive(Debug)]
pub struct Call<'a> {
    /// What evaluation sees.
    pub context: &'a EvalContext<'a>,
    /// Types of the arguments, after casts.
    pub args: &'a [SqlType],
    /// Type of the result.
    pub returns: &'a SqlType,
}

/// Something evaluation has to wait for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Request {
    /// `nextval`.
    NextValue(u32),
    /// `setval`.
    SetValue(u32, i64, bool),
    /// `telesto_txn_status`.
    Outcome(TxnId),
    /// `telesto_check_table`: the table's OID.
    CheckTable(u32),
    /// `telesto_log_switch`.
    SwitchLog(LogKind),
    /// `telesto_migrate`: the region that the session goes to.
    Migrate(String),
    /// `telesto_cap_set`.
    SetCap(telesto_meter::caps::Cap),
    /// `telesto_cap_drop`: the cap's name.
    DropCap(String),
    /// `telesto_approve`: the change's number.
    Approve(i64),
    /// `telesto_reject`: the change's number, and why.
    Reject(i64, Option<String>),
    /// `pg_sleep`; ends early when the statement is cancelled or its time is over.
    Sleep(Duration),
    /// `pg_advisory_lock` and its kin.
    Lock(LockRequest),
    /// `pg_advisory_unlock`.
    Unlock(LockKey, LockMode),
    /// `pg_cancel_backend` and its kin: OID of the role of a session of another node, or NULL.
    BackendRole(i32),
    /// `pg_cancel_backend`, or `pg_terminate_backend` with true: of a session of another node.
    Signal(i32, bool),
    /// `pg_relation_size` and its kin: what indexes take, which [`Execution::space`] tells from
    /// then on.
    MeasureSpace,
}

/// What a request is called where it is refused.
pub const WORDS: &str = "a function that does something, or asks its session or region,";

impl Request {
    /// The function, if it changes what other sessions see, outside of the statement's transaction.
    fn changes(&self) -> Option<&'static str> {
        Some(match self {
            Self::NextValue(_) => "nextval",
            Self::SetValue(..) => "setval",
            Self::SwitchLog(_) => "telesto_log_switch",
            Self::SetCap(_) => "telesto_cap_set",
            Self::DropCap(_) => "telesto_cap_drop",
            _ => return None,
        })
    }

    /// Whether it asks for the rows that the transaction sees, or for nothing.
    fn is_of_any_time(&self) -> bool {
        matches!(self, Self::Sleep(_) | Self::CheckTable(_) | Self::Outcome(_) | Self::MeasureSpace)
    }

    /// The call, as records of definitions tell it; empty for what none is kept of.
    #[must_use]
    pub fn recorded(&self) -> String {
        match self {
            Self::SwitchLog(to) => {
                format!("telesto_log_switch({})", quote_literal(&to.to_string()))
            }
            Self::DropCap(name) => format!("telesto_cap_drop({})", quote_literal(name)),
            Self::SetCap(cap) => {
                let (kind, subject) = cap.subject.parts();
                format!(
                    "telesto_cap_set({}, '{kind}', {}, {}, '{}', '{}', {})",
                    quote_literal(&cap.name),
                    quote_literal(subject),
                    cap.limit_nanos as f64 / 1e9,
                    cap.per.name(),
                    cap.mode.name(),
                    cap.reserve_percent,
                )
            }
            _ => String::new(),
        }
    }

    /// Whether it may be carried out in the transaction.
    fn check(&self, exec: &dyn Execution) -> Result<()> {
        if !self.is_of_any_time() {
            check_present(&"a function that does something, or tells of the present,", exec)?;
        }
        let Some(function) = self.changes() else { return Ok(()) };
        // Such a statement only reads where it is executed, which is no fault of its session.
        exec.check_at_home(&WORDS)?;
        if exec.settings().confined {
            return Err(Error::confined());
        }
        let own = match self {
            Self::NextValue(oid) | Self::SetValue(oid, ..) => is_temporary(*oid),
            _ => false,
        };
        if exec.only_reads() && !own {
            let text = format!("cannot execute {function}() in a read-only transaction");
            return Err(Error::new(SqlState::READ_ONLY_TRANSACTION, text)
                .hint("Begin a transaction that may write: BEGIN READ WRITE."));
        }
        Ok(())
    }
}

/// Refuses in a transaction of the past what is of the present: rights there are those of that
/// time.
///
/// # Errors
/// 0A000.
pub fn check_present(what: &dyn std::fmt::Display, exec: &dyn Execution) -> Result<()> {
    if exec.transaction_options().as_of.is_none() {
        return Ok(());
    }
    Err(of_the_present(what))
}

/// What [`check_present`] says.
#[must_use]
pub fn of_the_present(what: &dyn std::fmt::Display) -> Error {
    Error::unsupported(format_args!("{what} in a transaction AS OF SYSTEM TIME"))
        .hint("Rights there are those of that time; ask without AS OF SYSTEM TIME.")
}

#[derive(Debug, Default)]
struct Replay {
    /// What was asked for, and the answer.
    answers: Vec<(Request, Datum)>,
    at: usize,
    wanted: Option<Request>,
}

/// What evaluation sees beside the row.
#[derive(Debug)]
pub struct EvalContext<'a> {
    /// The session's settings.
    pub settings: &'a Settings,
    /// The catalog.
    pub catalog: &'a Arc<CatalogSnapshot>,
    /// The execution; `None` while planning.
    pub exec: Option<&'a dyn Execution>,
    zone: OnceLock<Zone>,
    replay: Mutex<Replay>,
    regex: Mutex<Option<(String, &'static str, Search)>>,
    lists: Mutex<KnownLists>,
}

/// The error of [`EvalContext::request`]. Who can wait never shows it; where nobody can, it is what
/// the client is told.
const PENDING: &str =
    "a function that waits cannot be used here: call it in a subquery or a WITH query";

fn pending() -> Error {
    Error::new(SqlState::FEATURE_NOT_SUPPORTED, PENDING)
}

impl<'a> EvalContext<'a> {
    /// While planning.
    #[must_use]
    pub fn planning(settings: &'a Settings, catalog: &'a Arc<CatalogSnapshot>) -> Self {
        Self {
            settings,
            catalog,
            exec: None,
            zone: OnceLock::new(),
            replay: Mutex::default(),
            regex: Mutex::default(),
            lists: Mutex::default(),
        }
    }

    /// While executing.
    #[must_use]
    pub fn executing(exec: &'a dyn Execution) -> Self {
        Self { exec: Some(exec), ..Self::planning(exec.settings(), exec.catalog()) }
    }

    /// The same execution under other settings, which what is evaluated so does not take from the
    /// session.
    #[must_use]
    pub fn under<'b>(&'b self, settings: &'b Settings) -> EvalContext<'b> {
        EvalContext { exec: self.exec, ..EvalContext::planning(settings, self.catalog) }
    }

    /// The session's time zone.
    pub fn zone(&self) -> Zone {
        *self.zone.get_or_init(|| Zone::from(self.settings.zone()))
    }

    /// The execution.
    ///
    /// # Errors
    /// XX000 while planning: the planner must not evaluate what is not constant.
    pub fn execution(&self) -> Result<&'a dyn Execution> {
        self.exec.ok_or_else(|| {
            Error::internal(
                "a function that needs a running statement was evaluated while planning",
            )
        })
    }

    /// The type a statement names.
    ///
    /// # Errors
    /// As [`super::types::named`].
    pub fn named(&self, ty: &telesto_sql_parser::sqlparser::ast::DataType) -> Result<SqlType> {
        super::types::named(ty, &self.user_types())
    }

    /// The type of a name written as text.
    ///
    /// # Errors
    /// As [`super::types::parse_name`].
    pub fn type_of_name(&self, name: &str) -> Result<SqlType> {
        super::types::parse_name(name, &self.user_types())
    }

    fn user_types(&self) -> super::types::UserTypes<'_> {
        super::types::UserTypes { catalog: self.catalog, settings: self.settings }
    }

    /// The regular expression `pattern`, compiled once as long as it stays the same.
    ///
    /// # Errors
    /// Those of `compile`.
    pub fn regex(
        &self,
        pattern: &str,
        flags: &'static str,
        compile: impl FnOnce(&str) -> Result<Search>,
    ) -> Result<Search> {
        let mut cached = self.regex.lock();
        if let Some((text, own_flags, regex)) = cached.as_ref()
            && text == pattern
            && *own_flags == flags
        {
            return Ok(regex.clone());
        }
        let regex = compile(pattern)?;
        *cached = Some((pattern.to_owned(), flags, regex.clone()));
        Ok(regex)
    }

    /// The elements of `list`, of type `ty`, if it is long and was met before.
    pub(crate) fn members(
        &self,
        list: &Arc<ArrayValue>,
        ty: &SqlType,
    ) -> Result<Option<Arc<Members>>> {
        self.lists.lock().members(list, ty)
    }

    /// The answer to `request`, or the private error that makes the executor wait for it.
    ///
    /// # Errors
    /// The private error; XX000 while planning.
    pub fn request(&self, request: Request) -> Result<Datum> {
        request.check(self.execution()?)?;
        let mut replay = self.replay.lock();
        if let Some((asked, answer)) = replay.answers.get(replay.at).cloned() {
            if asked == request {
                replay.at += 1;
                return Ok(answer);
            }
            // The row went another way than before (`random()` decides anew): these answers are not
            // for what is asked now.
            let at = replay.at;
            replay.answers.truncate(at);
        }
        replay.wanted = Some(request);
        Err(pending())
    }

    /// What indexes take; the private error when the statement has not measured it yet.
    ///
    /// # Errors
    /// The private error; XX000 while planning.
    pub fn space(&self) -> Result<Arc<Space>> {
        if let Some(space) = self.execution()?.space() {
            return Ok(space);
        }
        self.replay.lock().wanted = Some(Request::MeasureSpace);
        Err(pending())
    }

    /// Whether `error` is the private one of [`EvalContext::request`].
    #[must_use]
    pub fn is_pending(error: &Error) -> bool {
        error.code() == SqlState::FEATURE_NOT_SUPPORTED && error.message() == pending().message()
    }

    /// Waits for what the failed evaluation asked for; afterwards the same row can be evaluated
    /// again.
    ///
    /// # Errors
    /// Those of the sequence or the database; `error` itself when nothing was asked for.
    pub async fn satisfy(&self, error: Error) -> Result<()> {
        let wanted = self.replay.lock().wanted.take();
        let (Some(wanted), Some(exec)) = (wanted, self.exec) else { return Err(error) };
        // Known to the statement from then on, and not asked for again: it has no place among the
        // answers.
        let kept = wanted == Request::MeasureSpace;
        let answer = exec.answer(wanted.clone()).await?;
        let mut replay = self.replay.lock();
        if !kept {
            replay.answers.push((wanted, answer));
        }
        replay.at = 0;
        Ok(())
    }

    /// Forgets the answers: the row they belonged to is done.
    pub fn row_done(&self) {
        let mut replay = self.replay.lock();
        replay.answers.clear();
        replay.at = 0;
    }

    /// OID of the relation `name` (perhaps with schema and quotes).
    ///
    /// # Errors
    /// 42P01 when there is none.
    pub fn relation_oid(&self, name: &str) -> Result<u32> {
        use telesto_sql_catalog::Relation;
        if let Ok(oid) = name.parse() {
            return Ok(oid);
        }
        let parts = identifier_parts(name);
        let (schema, relation) = match parts.as_slice() {
            [relation] => (None, relation),
            [.., schema, relation] => (Some(schema.as_str()), relation),
            [] => return Err(fault::error("42602", "invalid name syntax")),
        };
        if let Some(table) = telesto_sql_catalog::builtin::tables::find(schema, relation) {
            return Ok(table.oid);
        }
        let path = match schema {
            Some(schema) => {
                self.may_look_into(schema)?;
                Vec::new()
            }
            None => self.open_path(),
        };
        match self.catalog.resolve(schema, relation, &path) {
            Some(Relation::Table(table)) => Ok(table.id.0),
            Some(Relation::View(view)) => Ok(view.oid),
            Some(Relation::Sequence(sequence)) => Ok(sequence.oid),
            Some(Relation::Index(_, index)) => Ok(index.oid),
            None => Err(Error::new(
                SqlState::UNDEFINED_TABLE,
                format!("relation \"{name}\" does not exist"),
            )),
        }
    }

    /// Fails when there is no schema of this name, or names in it are not for the role whose rights
    /// count.
    ///
    /// # Errors
    /// 3F000, 42501.
    pub(crate) fn may_look_into(&self, schema: &str) -> Result<()> {
        let Some(found) = self.catalog.schema(schema) else {
            return Err(fault::error("3F000", format!("schema \"{schema}\" does not exist")));
        };
        if self.sees(found) {
            return Ok(());
        }
        Err(telesto_sql_catalog::rights::denied(format!("permission denied for schema {schema}")))
    }

    /// The schemas of the search path that names without a schema are looked for in.
    fn open_path(&self) -> Vec<String> {
        let mut path = self.settings.effective_search_path();
        path.retain(|name| self.catalog.schema(name).is_none_or(|schema| self.sees(schema)));
        path
    }

    fn sees(&self, schema: &telesto_sql_catalog::Schema) -> bool {
        use telesto_sql_catalog::{Guarded, Rights};
        let actor = self.catalog.actor(self.settings.current_role);
        self.settings.is_superuser_in(self.catalog)
            || telesto_sql_catalog::temp::is_temporary(schema.oid)
            || Guarded::schema(schema).rights_of(&actor).has(Rights::USAGE)
    }
}

/// Splits a dotted name; parts without quotes are folded to lower case.
#[must_use]
pub fn identifier_parts(name: &str) -> Vec<String> {
    let mut parts = Vec::new();
    let mut part = String::new();
    let mut chars = name.trim().chars().peekable();
    let mut quoted = false;
    while let Some(c) = chars.next() {
        match c {
            '"' if quoted && chars.peek() == Some(&'"') => {
                chars.next();
                part.push('"');
            }
            '"' => quoted = !quoted,
            '.' if !quoted => parts.push(std::mem::take(&mut part)),
            c if quoted => part.push(c),
            c => part.extend(c.to_lowercase()),
        }
    }
    parts.push(part);
    parts
}
