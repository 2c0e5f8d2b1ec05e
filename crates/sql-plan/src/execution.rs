//! What functions may ask of a statement, answered by its [`ExecContext`].
//!
//! # Invariants
//! A function that waits holds nothing of the row it was called for: the row is evaluated again
//! with the answer.
//!
//! # On failure
//! Errors of sequences, locks and the database reach the client as they are.

use std::sync::Arc;

use async_trait::async_trait;
use serde_json::json;
use telesto_bucket::Class;
use telesto_common::wait::Wait;
use telesto_common::{Label, TxnId};
use telesto_meter::caps::Cap;
use telesto_txn::{Outcome, Space, TxnOptions};

use super::ExecContext;
use crate::advisory::LockRequest;
use telesto_sql_catalog::rights::denied;
use telesto_sql_catalog::sequence::set_here_alone;
use telesto_sql_catalog::store::CatalogCache;
use telesto_sql_catalog::{CatalogSnapshot, SequenceSession};
use telesto_sql_expr::context::{Request, WORDS};
use telesto_sql_expr::settings::is_of_superusers;
use telesto_sql_expr::{Execution, Settings};
use telesto_sql_types::Datum;
use telesto_sql_types::error::{Error, Result, SqlState};

#[async_trait]
impl Execution for ExecContext {
    fn settings(&self) -> &Settings {
        &self.settings
    }

    fn catalog(&self) -> &Arc<CatalogSnapshot> {
        &self.catalog
    }

    fn parameter(&self, number: usize) -> Result<&Datum> {
        number.checked_sub(1).and_then(|i| self.parameters.get(i)).ok_or_else(|| {
            Error::new(SqlState::UNDEFINED_PARAMETER, format!("there is no parameter ${number}"))
        })
    }

    fn transaction_micros(&self) -> i64 {
        self.transaction_micros
    }

    fn statement_micros(&self) -> i64 {
        self.statement_micros
    }

    fn clock_micros(&self) -> i64 {
        telesto_sql_types::pg_micros(self.env.clock.wall_micros())
    }

    fn random_f64(&self) -> f64 {
        self.random.next().unwrap_or_else(|| {
            // 53 bits, as many as a double holds.
            (self.env.random.next_u64() >> 11) as f64 / (1_u64 << 53) as f64
        })
    }

    fn set_seed(&self, seed: f64) {
        self.random.seed(seed);
    }

    fn random_u128(&self) -> u128 {
        self.env.random_u128()
    }

    fn transaction_id(&self) -> TxnId {
        self.txn.id()
    }

    fn transaction_options(&self) -> &TxnOptions {
        self.txn.options()
    }

    fn only_reads(&self) -> bool {
        self.only_reads
    }

    fn sequences(&self) -> &SequenceSession {
        &self.sequences
    }

    fn notify(&self, channel: &str, payload: &str) -> Result<()> {
        self.live.check_at_home(&"pg_notify")?;
        self.channels.notify(channel, payload)
    }

    fn listening(&self) -> Vec<String> {
        self.channels.listening()
    }

    fn notify_queue_usage(&self) -> f64 {
        self.channels.usage()
    }

    fn bucket_usage(&self) -> Option<String> {
        let meter = self.cost.meter()?;
        let counted = meter.snapshot();
        let all = counted.total(|_, _| true);
        let mut requests = serde_json::Map::new();
        for class in Class::ALL {
            requests.insert(class.label().to_owned(), json!(counted.requests(class)));
        }
        let usage = json!({
            "prices": meter.prices().name,
            "sheet": meter.prices(),
            "dollars": counted.dollars(),
            "requests": requests,
            "bytes_sent": all.uploaded_bytes,
            "bytes_received": all.downloaded_bytes,
        });
        Some(usage.to_string())
    }

    fn reset_statements(&self, role: Option<u32>, query_id: Option<i64>) {
        let named = role.map(|oid| {
            let found = self.catalog.roles().find(|role| role.oid == oid);
            found.map(|role| role.name.clone()).unwrap_or_default()
        });
        self.cost.accounts().reset(|entry| {
            named.as_ref().is_none_or(|name| *entry.principal.role == **name)
                && query_id.is_none_or(|id| entry.query_id == id)
        });
    }

    fn space(&self) -> Option<Arc<Space>> {
        self.space.get().cloned()
    }

    fn warn(&self, code: SqlState, message: String) {
        self.notices.warning(code, message);
    }

    fn set_config(&self, name: &str, value: &str, local: bool) -> Result<String> {
        self.live.check_at_home(&"set_config")?;
        if name.eq_ignore_ascii_case("role") {
            let becomes = self.settings.role_to_take(&self.catalog, value)?;
            return self.configured.push_role(becomes, local);
        }
        if is_of_superusers(name) {
            let mut now = (*self.settings).clone();
            now.superuser = now.is_superuser_in(&self.catalog);
            return self.configured.push(&now, name, value, local);
        }
        self.configured.push(&self.settings, name, value, local)
    }

    fn unlock_all(&self) {
        self.advisory.unlock_all();
    }

    fn backend_role(&self, pid: i32) -> Option<u32> {
        self.live.backends.role_of(pid)
    }

    fn cancel_backend(&self, pid: i32) -> bool {
        self.live.backends.cancel(pid)
    }

    fn terminate_backend(&self, pid: i32) -> bool {
        self.live.backends.terminate(pid)
    }

    fn check_at_home(&self, what: &dyn std::fmt::Display) -> Result<()> {
        self.live.check_at_home(what)
    }

    async fn answer(&self, request: Request) -> Result<Datum> {
        if !matches!(request, Request::Sleep(_)) {
            self.live.check_at_home(&WORDS)?;
        }
        let call = request.recorded();
        Ok(match request {
            Request::NextValue(oid) => Datum::Int8(self.sequences.next(oid).await?),
            Request::SetValue(oid, value, called) => {
                let set = self.sequences.set(oid, value, called).await?;
                if let Some(text) = set_here_alone(&self.catalog, oid) {
                    self.notices.warning(SqlState::WARNING, text);
                }
                Datum::Int8(set)
            }
            Request::CheckTable(oid) => {
                let rows = self.planner.check_table(self, oid).await?;
                Datum::Int8(i64::try_from(rows).unwrap_or(i64::MAX))
            }
            Request::SwitchLog(to) => {
                self.check_superuser_now("telesto_log_switch").await?;
                self.recorded(call, async { Ok(self.database.switch_log(to).await?) }).await?;
                Datum::text(to.to_string())
            }
            Request::Migrate(to) => {
                let regions =
                    self.database.regions().ok_or_else(crate::session_view::no_regions)?;
                let shown = Label::update(self.database.region(), self.txn.snapshot());
                let seen = self.txn.options().session.max(shown);
                let token = regions.migrate(seen, &to).await;
                Datum::text(
                    token
                        .map_err(|reason| Error::new(SqlState::INVALID_PARAMETER_VALUE, reason))?,
                )
            }
            Request::SetCap(cap) => {
                self.check_superuser_now("telesto_cap_set").await?;
                self.recorded(call, self.change_cap(&cap.name, Some(&cap))).await?;
                Datum::text("")
            }
            Request::DropCap(name) => {
                self.check_superuser_now("telesto_cap_drop").await?;
                self.recorded(call, self.change_cap(&name, None)).await?;
                Datum::text("")
            }
            Request::Approve(id) => Datum::Int8(self.planner.decide(self, id, None).await?),
            Request::Reject(id, reason) => {
                Datum::Int8(self.planner.decide(self, id, Some(reason)).await?)
            }
            Request::Sleep(wait) => {
                telesto_common::wait::on(Wait::Sleep, self.env.clock.sleep(wait)).await;
                Datum::text("")
            }
            Request::Lock(request) => {
                let taken = take_lock(self, request).await?;
                if request.attempt { Datum::Bool(taken) } else { Datum::text("") }
            }
            Request::Unlock(key, mode) => {
                let held = self.advisory.unlock(key, mode).await;
                if !held {
                    let text = format!("you don't own a lock of type {}", mode.name());
                    self.notices.warning(SqlState::WARNING, text);
                }
                Datum::Bool(held)
            }
            Request::BackendRole(pid) => {
                let role = crate::everywhere::role_of(&self.database, pid).await;
                role.map_or(Datum::Null, Datum::Oid)
            }
            Request::Signal(pid, terminate) => {
                Datum::Bool(crate::everywhere::signal(&self.database, pid, terminate).await)
            }
            Request::MeasureSpace => {
                self.measure_space().await?;
                Datum::Null
            }
            Request::Outcome(txn) => Datum::text(match self.database.outcome(txn).await? {
                Outcome::Committed(_) => "committed",
                Outcome::Aborted => "aborted",
                Outcome::Unknown => "unknown",
            }),
        })
    }
}

impl ExecContext {
    /// Fails unless the session is still a superuser's: the function asked the catalog of the
    /// transaction, which may be an older one, and what it does outlives the transaction.
    async fn check_superuser_now(&self, function: &str) -> Result<()> {
        let options = TxnOptions { read_only: true, ..TxnOptions::default() };
        let txn = self.database.begin(options).await?;
        let catalog = CatalogCache::default().read(&txn, self.catalog.database).await;
        txn.rollback();
        let catalog = catalog?;
        let is_super = |oid: u32| catalog.role(oid).is_some_and(|role| role.superuser);
        if is_super(self.settings.session_role) && is_super(self.settings.current_role) {
            return Ok(());
        }
        Err(denied(format!("permission denied for function {function}"))
            .hint("The role was a superuser when the transaction began."))
    }

    async fn change_cap(&self, name: &str, to: Option<&Cap>) -> Result<()> {
        // The change is one of the catalog, which what was written rests on: it could not be
        // committed any more.
        if self.txn.has_written() {
            return Err(Error::new(
                SqlState::ACTIVE_SQL_TRANSACTION,
                "a spend cap cannot be changed in a transaction that has written",
            )
            .hint("Commit first: the change is a transaction of its own."));
        }
        let (changed, at) =
            crate::caps::change(&self.database, &self.env, &self.catalog, name, to).await?;
        self.cost.accounts().learn_caps(&changed, at);
        Ok(())
    }
}

/// Waits for an advisory lock, at most as long as `lock_timeout` says.
async fn take_lock(exec: &ExecContext, request: LockRequest) -> Result<bool> {
    let pid = telesto_sql_expr::functions::system::pid_in(&exec.settings);
    let taking = exec.advisory.lock(request, pid);
    let limit = exec.settings.lock_timeout()?;
    if limit.is_zero() {
        return taking.await;
    }
    tokio::select! {
        biased;
        taken = taking => taken,
        () = exec.env.clock.sleep(limit) => Err(Error::new(
            SqlState::LOCK_NOT_AVAILABLE,
            "canceling statement due to lock timeout",
        )),
    }
}
