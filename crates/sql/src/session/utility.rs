//! Statements the session answers by itself: SET, SHOW, RESET, DISCARD, PREPARE, EXECUTE,
//! DEALLOCATE, and those that are accepted without effect.

use std::sync::Arc;

use super::constraints::SetConstraints;
use super::region::SESSION_TOKEN;
use super::roles::Asked as RoleAsked;
use super::transaction::Step;
use super::{Prepared, ResultColumn, Rows, Session, StatementResult, parse};
use crate::error::{Error, Result, SqlState};
use crate::expr::cast::cast;
use crate::expr::levels::level_name;
use crate::expr::settings::is_of_superusers;
use crate::expr::type_name::sql_type;
use crate::expr::{CastContext, EvalContext};
use crate::notify::channel_of;
use crate::notify::session::{Asked, Change};
use crate::plan::cost::{COST, LAST_COST};
use crate::plan::{ExecContext, ParameterTypes, query};
use crate::sqlparser::ast::{
    ContextModifier, DataType, DiscardObject, Expr, Ident, Reset, ResetStatement, Set, Statement,
    Value,
};
use crate::types::{Datum, SqlType};
use telesto_sql_parser::names::fold;
use telesto_sql_parser::setting_values::{is_default, set_value, zone_value};
use telesto_sql_parser::statement_kind::is_plain;

fn vacuum_in_a_block() -> Error {
    Error::new(SqlState::ACTIVE_SQL_TRANSACTION, "VACUUM cannot run inside a transaction block")
}

fn tag(tag: &str) -> Option<StatementResult> {
    Some(StatementResult::Command { tag: tag.to_owned() })
}

/// SET takes no parameters.
///
/// # Errors
/// 42601.
pub(super) fn refuse_parameters(statement: &Statement) -> Result<()> {
    let Statement::Set(Set::SingleAssignment { values, .. }) = statement else { return Ok(()) };
    let parameter = values.iter().find_map(|value| match value {
        Expr::Value(value) => match &value.value {
            Value::Placeholder(name) => Some(name),
            _ => None,
        },
        _ => None,
    });
    match parameter {
        Some(name) => Err(Error::syntax(format!("syntax error at or near \"{name}\""))
            .hint("Use set_config(), which is a function.")),
        None => Ok(()),
    }
}

fn show_name(words: &[Ident]) -> String {
    let joined = words.iter().map(|w| w.value.as_str()).collect::<Vec<_>>().join(" ");
    match joined.to_ascii_lowercase().as_str() {
        "transaction isolation level" => "transaction_isolation".to_owned(),
        "time zone" => "TimeZone".to_owned(),
        "session authorization" => "session_authorization".to_owned(),
        _ => {
            let dotted = words.iter().map(|w| w.value.as_str()).collect::<Vec<_>>().join(".");
            dotted.replace("..", ".")
        }
    }
}

impl Session {
    /// SET of whatever: a session's token, a role, a parameter.
    async fn set_anything(&mut self, set: &Set) -> Result<()> {
        if let Set::SingleAssignment { variable, values, .. } = set
            && variable.to_string().eq_ignore_ascii_case(SESSION_TOKEN)
        {
            let token = values.iter().map(set_value).collect::<Result<Vec<_>>>()?.join(",");
            return self.take_token(&token).await;
        }
        match RoleAsked::of_set(set)? {
            Some(asked) => self.change_role(&asked).await,
            None => {
                if let Set::SingleAssignment { variable, .. } = set
                    && is_of_superusers(&variable.to_string().replace('"', ""))
                {
                    self.ask_whether_superuser().await?;
                }
                self.set(set)
            }
        }
    }

    /// Runs a statement that needs no transaction, `text` where that is shown; `None` when it is
    /// none of these.
    pub(super) async fn utility(
        &mut self,
        statement: &Statement,
        text: &str,
    ) -> Result<Option<StatementResult>> {
        match statement {
            Statement::Set(Set::SingleAssignment { variable, values, .. })
                if variable.to_string().eq_ignore_ascii_case("constraints") =>
            {
                if !self.in_a_block() {
                    self.notices.warning(
                        SqlState::NO_ACTIVE_SQL_TRANSACTION,
                        "SET CONSTRAINTS can only be used in transaction blocks",
                    );
                }
                let set = SetConstraints::read(values)?;
                if self.block.is_none() {
                    self.open_block(false, self.settings.default_read_only);
                }
                self.set_constraints(&set).await?;
                self.record(Step::Constraints(set));
                Ok(tag("SET CONSTRAINTS"))
            }
            Statement::Set(set) => self.set_anything(set).await.map(|()| tag("SET")),
            Statement::Reset(reset) => self.reset(reset).await.map(|()| tag("RESET")),
            Statement::ShowVariable { variable } => self.show_settled(variable).await.map(Some),
            Statement::Discard { object_type } => self.discard(object_type).await.map(Some),
            Statement::Prepare { name, data_types, statement } => {
                self.prepare_named((name, data_types), statement, text).await.map(Some)
            }
            Statement::Deallocate { name, .. } => {
                let text = fold(name);
                if name.quote_style.is_none() && text == "all" {
                    self.prepared.clear();
                    return Ok(tag("DEALLOCATE ALL"));
                }
                self.prepared.remove(&text).ok_or_else(|| no_prepared(&text))?;
                Ok(tag("DEALLOCATE"))
            }
            Statement::LISTEN { channel } => {
                let channel = channel_of(&fold(channel)).to_owned();
                self.ask(Asked::Change(Change::Listen(channel)))?;
                Ok(tag("LISTEN"))
            }
            Statement::UNLISTEN { channel } => {
                let all = channel.quote_style.is_none() && channel.value == "*";
                let channel = channel_of(&fold(channel)).to_owned();
                let change = if all { Change::UnlistenAll } else { Change::Unlisten(channel) };
                self.ask(Asked::Change(change))?;
                Ok(tag("UNLISTEN"))
            }
            Statement::NOTIFY { channel, payload } => {
                let channel = fold(channel);
                let payload = payload.clone().unwrap_or_default();
                self.ask(Asked::Notify { channel, payload })?;
                Ok(tag("NOTIFY"))
            }
            Statement::Declare { .. } | Statement::Fetch { .. } | Statement::Close { .. } => {
                self.held_cursor(statement).await
            }
            Statement::LockTables { .. } | Statement::Lock { .. } => {
                if !self.in_a_block() {
                    return Err(Error::new(
                        SqlState::NO_ACTIVE_SQL_TRANSACTION,
                        "LOCK TABLE can only be used in transaction blocks",
                    ));
                }
                Ok(tag("LOCK TABLE"))
            }
            // Its ANALYZE is a statement like others.
            Statement::Analyze(analyze) => {
                if self.in_a_block() && telesto_sql_parser::analyze::targets(analyze)?.vacuum {
                    return Err(vacuum_in_a_block());
                }
                Ok(None)
            }
            // Space looks after itself.
            Statement::Vacuum(_) => {
                if self.in_a_block() {
                    return Err(vacuum_in_a_block());
                }
                Ok(tag("VACUUM"))
            }
            _ => Ok(None),
        }
    }

    async fn discard(&mut self, object_type: &DiscardObject) -> Result<StatementResult> {
        if matches!(object_type, DiscardObject::ALL) {
            if self.in_a_block() {
                return Err(Error::new(
                    SqlState::ACTIVE_SQL_TRANSACTION,
                    "DISCARD ALL cannot run inside a transaction block",
                ));
            }
            // Back at the role that the session began with, or nothing is given up.
            self.change_role(&RoleAsked::began()).await?;
            let superuser = self.settings.superuser;
            self.prepared.clear();
            self.cursors.clear();
            self.advisory.unlock_all();
            self.channels.leave();
            self.settings = Arc::clone(&self.defaults);
            if self.settings.superuser != superuser {
                Arc::make_mut(&mut self.settings).superuser = superuser;
            }
        }
        if matches!(object_type, DiscardObject::ALL | DiscardObject::TEMP) {
            self.discard_temp().await?;
        }
        if matches!(object_type, DiscardObject::ALL | DiscardObject::SEQUENCES) {
            self.sequences.discard();
        }
        Ok(StatementResult::Command { tag: format!("DISCARD {object_type}") })
    }

    /// PREPARE.
    async fn prepare_named(
        &mut self,
        (name, data_types): (&Ident, &[DataType]),
        statement: &Statement,
        shown: &str,
    ) -> Result<StatementResult> {
        let name = fold(name);
        if self.prepared.get(&name).is_some() {
            return Err(Error::new(
                SqlState::DUPLICATE_PREPARED_STATEMENT,
                format!("prepared statement \"{name}\" already exists"),
            ));
        }
        let mut types = Vec::with_capacity(data_types.len());
        for ty in data_types {
            let ty = match sql_type(ty, None) {
                Ok(ty) => ty,
                // Perhaps a user's: those are in the catalog.
                Err(_) => {
                    let context = self.side_context().await?;
                    let written = std::slice::from_ref(ty);
                    crate::access::check_type_names(written, &context.catalog, &self.settings)?;
                    EvalContext::executing(&context).named(ty)?
                }
            };
            // A parameter has no length, whatever was written.
            types.push(Some(ty.without_modifier()));
        }
        let text = statement.to_string();
        let parsed = parse::Parsed::again(statement.clone(), &text)?;
        let types = ParameterTypes::new(&types);
        let prepared = self.prepare_statement((text, None), parsed, types).await?;
        self.name_shown(name, prepared, (shown.to_owned(), true))?;
        Ok(StatementResult::Command { tag: "PREPARE".to_owned() })
    }

    async fn reset(&mut self, reset: &ResetStatement) -> Result<()> {
        if let Some(asked) = RoleAsked::of_reset(reset) {
            self.change_role(&asked).await?;
            return Ok(());
        }
        if let Reset::ConfigurationParameter(name) = &reset.reset
            && is_of_superusers(&name.to_string())
        {
            self.ask_whether_superuser().await?;
        }
        let defaults = Arc::clone(&self.defaults);
        self.change_settings(false, |settings| match &reset.reset {
            // Whose session it is does not change.
            Reset::ALL => {
                let before = settings.clone();
                *settings = super::Settings {
                    session_user: before.session_user,
                    current_user: before.current_user,
                    session_role: before.session_role,
                    current_role: before.current_role,
                    superuser: before.superuser,
                    ..(*defaults).clone()
                };
                Ok(())
            }
            Reset::ConfigurationParameter(name) => settings.reset(&name.to_string(), &defaults),
        })
    }

    /// LISTEN, UNLISTEN and NOTIFY: for the commit.
    fn ask(&mut self, asked: Asked) -> Result<()> {
        if self.block.is_none() {
            self.open_block(false, self.settings.default_read_only);
        }
        self.channels.ask(&asked)?;
        self.record(Step::Asked(asked));
        Ok(())
    }

    fn set(&mut self, set: &Set) -> Result<()> {
        let mut local = false;
        // The parameter and its new values; none: the default.
        let (name, values) = match set {
            Set::SingleAssignment { scope, variable, values, .. } => {
                local = matches!(scope, Some(ContextModifier::Local));
                let name = variable.to_string().replace('"', "");
                if name.eq_ignore_ascii_case("transaction_isolation")
                    || name.eq_ignore_ascii_case("transaction_read_only")
                {
                    return self.set_transaction_variable(&name, values);
                }
                let values = if is_default(values) {
                    None
                } else {
                    Some(values.iter().map(set_value).collect::<Result<Vec<_>>>()?)
                };
                (name, values)
            }
            Set::SetTimeZone { local: is_local, value } => {
                local = *is_local;
                ("TimeZone".to_owned(), zone_value(value)?.map(|zone| vec![zone]))
            }
            Set::SetNames { charset_name, .. } => {
                ("client_encoding".to_owned(), Some(vec![charset_name.value.clone()]))
            }
            Set::SetNamesDefault {} => return Ok(()),
            other => return Err(Error::unsupported(format!("{other}"))),
        };
        let defaults = Arc::clone(&self.defaults);
        let change = |settings: &mut super::Settings| match &values {
            Some(values) => settings.set(&name, values),
            None => settings.reset(&name, &defaults),
        };
        if local && self.is_local_to_nothing() {
            return change(&mut (*self.settings).clone());
        }
        self.change_settings(local, change)
    }

    /// Whether the statement under way is in a transaction block: one that BEGIN opened, or that of
    /// a query string of several statements.
    pub(super) fn in_a_block(&self) -> bool {
        self.several || self.block.as_ref().is_some_and(|block| block.explicit)
    }

    /// Warns of what is local to a transaction, outside of a block. Whether the transaction is that
    /// of the statement alone: up to the Sync of a pipeline it holds all the same, as in
    /// PostgreSQL.
    pub(super) fn is_local_to_nothing(&self) -> bool {
        if self.in_a_block() {
            return false;
        }
        self.notices.warning(
            SqlState::NO_ACTIVE_SQL_TRANSACTION,
            "SET LOCAL can only be used in transaction blocks",
        );
        !self.pipelined
    }

    fn set_transaction_variable(&mut self, name: &str, values: &[Expr]) -> Result<()> {
        let value = values.first().map(set_value).transpose()?.unwrap_or_default();
        self.join_implicit();
        let Some(block) = self.block.as_mut().filter(|block| block.txn.is_none()) else {
            return Err(Error::new(
                SqlState::ACTIVE_SQL_TRANSACTION,
                format!("{name} can only be set at the start of a transaction block"),
            ));
        };
        if name.eq_ignore_ascii_case("transaction_isolation") {
            block.isolation = crate::expr::levels::level_named(&value).ok_or_else(|| {
                Error::new(
                    SqlState::INVALID_PARAMETER_VALUE,
                    format!("invalid value for parameter \"{name}\": \"{value}\""),
                )
            })?;
            block.take_level(self.settings.consistency);
        } else {
            if self.settings.confined && !matches!(value.as_str(), "on" | "true") {
                return Err(Error::confined());
            }
            block.options.read_only = matches!(value.as_str(), "on" | "true");
            block.read_only_asked = block.options.read_only;
            block.take_level(self.settings.consistency);
        }
        Ok(())
    }

    /// The columns of a statement answered here; `None` when it returns no rows or is not answered
    /// here.
    pub(super) fn utility_columns(&self, statement: &Statement) -> Option<Arc<[ResultColumn]>> {
        match statement {
            Statement::ShowVariable { variable } => Some(show_columns(&show_name(variable))),
            Statement::Execute { name: Some(name), .. } => {
                let name = name.0.last().and_then(|part| part.as_ident()).map(fold)?;
                self.prepared.get(&name).and_then(|prepared| prepared.columns.clone())
            }
            Statement::Fetch { .. } => self.fetched_columns(statement),
            _ => None,
        }
    }

    /// The answer to `SHOW telesto.last_statement_cost` and `SHOW telesto.cost`, also in a failed
    /// transaction; `None` for any other statement.
    pub(super) fn show_cost(&mut self, statement: &Statement) -> Option<StatementResult> {
        let Statement::ShowVariable { variable } = statement else { return None };
        let name = show_name(variable);
        if name.eq_ignore_ascii_case(COST) {
            let rows = self.costs_by_now();
            let columns = show_columns(&name);
            return Some(StatementResult::Rows { columns, rows: Rows::Ready(rows), tag: "SHOW" });
        }
        if !name.eq_ignore_ascii_case(LAST_COST) {
            return None;
        }
        let rows = vec![vec![Datum::text(self.spending.last().to_string())]];
        let columns = show_columns(&name);
        Some(StatementResult::Rows { columns, rows: Rows::Ready(rows), tag: "SHOW" })
    }

    /// A token stands for what the session has committed elsewhere, too, when that is here.
    async fn show_settled(&mut self, variable: &[Ident]) -> Result<StatementResult> {
        if show_name(variable).eq_ignore_ascii_case(SESSION_TOKEN) {
            self.await_owed().await?;
        }
        self.show(variable).await
    }

    async fn show(&mut self, variable: &[Ident]) -> Result<StatementResult> {
        let name = show_name(variable);
        let columns = show_columns(&name);
        let all = name.eq_ignore_ascii_case("all");
        if all || name.eq_ignore_ascii_case("is_superuser") {
            self.ask_whether_superuser().await?;
        }
        let rows = if all {
            self.settings
                .all()
                .into_iter()
                .map(|(name, value)| vec![Datum::text(name), Datum::text(value), Datum::text("")])
                .collect()
        } else {
            let lower = name.to_ascii_lowercase();
            let options = self.block.as_ref().map(|block| block.options);
            let value = match lower.as_str() {
                "transaction_isolation" => {
                    level_name(options.map_or(self.settings.default_level, |o| o.level)).to_owned()
                }
                "transaction_read_only" => {
                    let block = self.block.as_ref();
                    let on = block.map_or(self.settings.default_read_only, |b| self.only_reads(b));
                    if on { "on" } else { "off" }.to_owned()
                }
                SESSION_TOKEN => self.session_token().await?,
                _ => self.settings.show(&name)?,
            };
            vec![vec![Datum::text(value)]]
        };
        Ok(StatementResult::Rows { columns, rows: Rows::Ready(rows), tag: "SHOW" })
    }

    /// The statement and the values of EXECUTE.
    pub(super) async fn execute_prepared(
        &mut self,
        statement: &Statement,
    ) -> Result<(Arc<Prepared>, Vec<Datum>)> {
        let Statement::Execute { name: Some(name), parameters, .. } = statement else {
            return Err(Error::unsupported("EXECUTE IMMEDIATE"));
        };
        let name = match name.0.last().and_then(|part| part.as_ident()) {
            Some(ident) => fold(ident),
            None => name.to_string(),
        };
        let named = Arc::clone(self.prepared.get(&name).ok_or_else(|| no_prepared(&name))?);
        let prepared = named.as_written()?;
        // What Parse has prepared may be anything, also this very EXECUTE.
        if !prepared.statement.as_deref().is_some_and(is_plain) {
            return Err(Error::unsupported(format!("EXECUTE of \"{}\"", prepared.sql)));
        }
        if parameters.len() != prepared.parameter_types.len() {
            return Err(Error::syntax(format!(
                "wrong number of parameters for prepared statement \"{name}\""
            ))
            .detail(format!(
                "Expected {} parameters but got {}.",
                prepared.parameter_types.len(),
                parameters.len()
            )));
        }
        named.executes();
        if parameters.is_empty() {
            return Ok((prepared, Vec::new()));
        }
        let text = parameters.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
        let context = self.side_context().await?;
        self.check_values(&format!("SELECT {text}"), &context.catalog)?;
        let (columns, rows) = query(&context, &format!("SELECT {text}")).await?;
        let row = rows.collect().await?.pop().unwrap_or_default();
        let eval = EvalContext::executing(&context);
        let values = row
            .into_iter()
            .zip(columns.iter())
            .zip(&prepared.parameter_types)
            .map(|((value, column), to)| {
                // Literals come back as text: read them as the parameter's type.
                let from = match &column.ty {
                    SqlType::Text => &SqlType::Unknown,
                    ty => ty,
                };
                // Labels added since it was prepared count too.
                let now = context.catalog.relinked(to);
                cast(value, from, now.as_ref().unwrap_or(to), CastContext::Assignment, &eval)
            })
            .collect::<Result<Vec<_>>>()?;
        Ok((prepared, values))
    }

    pub(super) async fn side_context(&mut self) -> Result<ExecContext> {
        if self.block.is_none() {
            self.open_block(false, false);
        }
        let txn = self.transaction().await?;
        let catalog = self.read_catalog(&txn).await?;
        let txn = self.holding_back(txn, &catalog).await?;
        Ok(self.context(txn, catalog, &[]))
    }
}

fn no_prepared(name: &str) -> Error {
    Error::new(
        SqlState::INVALID_STATEMENT_NAME,
        format!("prepared statement \"{name}\" does not exist"),
    )
}

fn show_columns(name: &str) -> Arc<[ResultColumn]> {
    if name.eq_ignore_ascii_case("all") {
        return ["name", "setting", "description"]
            .map(|name| ResultColumn::new(name, SqlType::Text))
            .into();
    }
    let shown = if name.eq_ignore_ascii_case("timezone") {
        "TimeZone".to_owned()
    } else if name.eq_ignore_ascii_case("datestyle") {
        "DateStyle".to_owned()
    } else {
        name.to_ascii_lowercase()
    };
    Arc::from([ResultColumn::new(shown, SqlType::Text)])
}
