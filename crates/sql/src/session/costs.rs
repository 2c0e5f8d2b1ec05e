//! What the session spends: told to its client (`SHOW telesto.cost`), and held against spend caps.
//!
//! # Invariants
//! - Asking changes nothing of what is told.
//! - Without a cap a statement pays one look at a flag.
//!
//! # On failure
//! 53400 when a cap is reached.

use std::sync::Arc;

use futures::FutureExt as _;
use telesto_bucket::meter::Guard;
use telesto_common::Timestamp;
use telesto_meter::caps::Payer;

use super::Session;
use crate::catalog::CatalogSnapshot;
use crate::error::Result;
use crate::plan::caps::CapGuard;
use crate::sqlparser::ast::Statement;
use crate::types::{Datum, Row};
use telesto_sql_parser::statement_kind::only_reads;

impl Session {
    /// A line each for the last statement, the transaction it was in, and the session.
    pub(super) fn costs_by_now(&mut self) -> Vec<Row> {
        let rates = self.engine.accounts().rates();
        let shown = self.spending.shown();
        [
            ("statement", &shown.statement),
            ("transaction", &shown.transaction),
            ("session", &shown.session),
        ]
        .into_iter()
        .map(|(of, charge)| vec![Datum::text(format!("{of}: {}", rates.describe(charge)))])
        .collect()
    }

    /// A statement runs: its requests are asked for by its caps.
    pub(super) fn spends(&mut self) {
        self.spending.runs();
        if self.engine.accounts().caps().active() || self.capped.is_some() {
            let guard = self.guard();
            self.guards(guard);
        }
    }

    /// What is asked of the bucket from now on is asked of `guard`; `None`: of nobody.
    fn guards(&mut self, guard: Option<Arc<CapGuard>>) {
        self.capped.clone_from(&guard);
        self.spending.scope().set_guard(guard.map(|guard| guard as Arc<dyn Guard>));
    }

    /// The transaction commits: it was let begin, and what its commit asks for is paid for and
    /// never refused.
    pub(super) fn goes_through(&self) {
        if let Some(guard) = &self.capped {
            guard.lets_through();
        }
    }

    /// Nothing is under way that was set aside for.
    pub(super) fn spent(&mut self) {
        if self.block.is_none() && !self.set_aside.is_empty() {
            self.set_aside = Default::default();
        }
    }

    /// Learns which caps there are. The first statement that sees any is held against them like the
    /// next.
    pub(super) async fn learns_caps(
        &mut self,
        catalog: &CatalogSnapshot,
        at: Timestamp,
        statement: &Statement,
    ) -> Result<()> {
        let accounts = self.engine.accounts();
        let before = accounts.caps().active();
        accounts.learn_caps(catalog, at);
        let now = accounts.caps().active();
        if before && !now {
            self.guards(None);
        }
        if before || !now {
            return Ok(());
        }
        let guard = self.guard();
        self.guards(guard);
        if only_reads(statement) { Ok(()) } else { self.admit().boxed().await }
    }

    fn guard(&self) -> Option<Arc<CapGuard>> {
        let entry = self.spending.entry()?;
        let settings = &self.settings;
        let payer = Payer {
            login: &settings.session_user,
            role: &settings.current_user,
            database: &settings.database,
            application: &settings.application_name,
            text: &entry.text,
        };
        let is_super = |known: &Arc<CatalogSnapshot>| {
            known.role(settings.session_role).is_some_and(|role| role.superuser)
        };
        // Before its first statement a session knows what it was told when it began.
        let boss = self.catalog.as_ref().map_or(settings.superuser, is_super);
        self.engine.accounts().guard(&payer, boss, self.cancel.shared())
    }

    /// Lets a write go on that no statement said it would make, if its caps do: a notification,
    /// say.
    pub(super) async fn admit_late(&mut self) -> Result<()> {
        if self.set_aside.is_empty() && self.engine.accounts().caps().active() {
            self.admit().boxed().await?;
        }
        Ok(())
    }

    /// Lets a write begin, if its caps do.
    pub(super) async fn admit(&mut self) -> Result<()> {
        let (Some(guard), Some(entry)) = (self.guard(), self.spending.entry()) else {
            return Ok(());
        };
        let admitted = guard.admit_write(&entry, &mut self.set_aside, &self.notices).await;
        if admitted.is_ok() || !guard.is_stale() {
            return admitted;
        }
        // Another process has changed the cap.
        let guard = self.guard();
        self.guards(guard.clone());
        match guard {
            Some(guard) => guard.admit_write(&entry, &mut self.set_aside, &self.notices).await,
            None => Ok(()),
        }
    }
}
