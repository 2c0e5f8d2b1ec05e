//! What a server asks of the roles of a database: who may log in, and what of the whole they reach.
//!
//! # Invariants
//! - Users of a users file get a role once in the life of a database: who is dropped afterwards
//!   does not come back.
//! - What HTTP may reach follows from the same roles as SQL.
//!
//! # On failure
//! Errors of the database; a server that cannot ask lets nobody in.
//!
//! # Limits
//! HTTP requests look at the newest catalog at most once in [`RECENT`]; between, at the one this
//! process knows: what another process revoked holds for HTTP after that time, what this one
//! revoked at once.

use std::sync::Arc;
use std::time::Duration;

use telesto_sql_catalog::rights::{READ_ALL_DATA, READ_ALL_STATS, WRITE_ALL_DATA};
use telesto_sql_catalog::store::{CatalogChange, Object};
use telesto_sql_catalog::{DATABASE_OID, DatabaseRights, Owner, Rights, Role};
use telesto_txn::{Level, TxnOptions};

use super::SqlEngine;
use crate::catalog::CatalogSnapshot;
use crate::error::Result;

/// How long a look at the newest catalog serves the requests after it.
pub const RECENT: Duration = Duration::from_secs(1);

/// What a database knows of a user who wants in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LogIn {
    /// There is no such role.
    Unknown,
    /// There is, and nobody may log in as it: NOLOGIN, or a password that is not valid any more.
    Closed,
    /// There is; its SCRAM-SHA-256 verifier in PostgreSQL's form, if it has one.
    Role(Option<String>),
}

/// What of a database a user reaches as a whole.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reach {
    /// The role's OID: whoever is made anew under its name has another.
    pub role: Option<u32>,
    /// May connect (CONNECT on the database).
    pub connects: bool,
    /// Reads all data (`pg_read_all_data`).
    pub reads: bool,
    /// Writes all data (`pg_write_all_data`).
    pub writes: bool,
    /// Sees how the server does (`pg_monitor`).
    pub monitors: bool,
}

impl SqlEngine {
    /// What the database knows of `user`, as of now.
    ///
    /// # Errors
    /// Whatever the database runs into.
    pub async fn log_in_of(&self, user: &str) -> Result<LogIn> {
        let catalog = self.catalog_now().await?;
        Ok(self.log_in_in(&catalog, user))
    }

    fn log_in_in(&self, catalog: &CatalogSnapshot, user: &str) -> LogIn {
        let now = super::pg_micros(self.env.clock.wall_micros());
        match catalog.role_named(user) {
            None => LogIn::Unknown,
            Some(role) if !role.login => LogIn::Closed,
            Some(role) if role.valid_until.is_some_and(|until| until <= now) => LogIn::Closed,
            Some(role) => LogIn::Role(role.password.clone()),
        }
    }

    /// [`SqlEngine::log_in_of`] with what the user reaches, for a request of its own: see the
    /// limits above.
    ///
    /// # Errors
    /// Whatever the database runs into.
    pub async fn reach_of(&self, user: &str) -> Result<(LogIn, Reach)> {
        let catalog = self.recent_catalog().await?;
        let reach = catalog.role_named(user).map_or_else(Reach::default, |role| {
            let actor = catalog.actor(role.oid);
            Reach {
                role: Some(role.oid),
                connects: catalog.guarded_database().rights_of(&actor).has(Rights::CONNECT),
                reads: actor.acts_as(READ_ALL_DATA),
                writes: actor.acts_as(WRITE_ALL_DATA),
                monitors: actor.acts_as(READ_ALL_STATS),
            }
        });
        Ok((self.log_in_in(&catalog, user), reach))
    }

    async fn recent_catalog(&self) -> Result<Arc<CatalogSnapshot>> {
        let now = self.env.clock.monotonic();
        let fresh = self.looked.lock().is_some_and(|at| now.saturating_sub(at) < RECENT);
        if !fresh {
            let catalog = self.catalog_now().await?;
            *self.looked.lock() = Some(now);
            return Ok(catalog);
        }
        self.known_catalog().await
    }

    /// The catalog that this process knows, which may be behind that of others: nothing is waited
    /// for.
    pub(super) async fn known_catalog(&self) -> Result<Arc<CatalogSnapshot>> {
        let options =
            TxnOptions { level: Level::Session, read_only: true, ..TxnOptions::default() };
        let txn = self.database.begin(options).await?;
        let catalog = self.catalogs.read(&txn, self.database_id).await;
        txn.rollback();
        catalog
    }

    /// Makes roles of the users of a users file, as superusers, unless that was done before or a
    /// role was dropped since: until roles counted, every user could do everything. The names of
    /// the new roles. Roles are made in the region that makes definitions alone.
    ///
    /// # Errors
    /// Whatever the database runs into.
    pub async fn adopt_users(&self, users: &[String]) -> Result<Vec<String>> {
        let mut attempt = 0;
        loop {
            let txn = self.database.begin(TxnOptions::default()).await?;
            let catalog = self.catalogs.read(&txn, self.database_id).await?;
            let rights = catalog.database_rights().map(|rights| (**rights).clone());
            let adopted = rights.as_ref().is_some_and(|rights| rights.has_users);
            // In another region than the one that makes definitions roles come from there.
            if adopted || !catalog.defines() {
                txn.rollback();
                return Ok(Vec::new());
            }
            let mut change = CatalogChange::new(Arc::clone(&txn), &catalog);
            let mut made = Vec::new();
            for user in users.iter().filter(|user| catalog.role_named(user).is_none()) {
                let oid = change.oid();
                change.put(Object::Role(Role {
                    superuser: true,
                    login: true,
                    create_db: true,
                    create_role: true,
                    ..Role::new(oid, user.clone())
                }));
                made.push(user.clone());
            }
            let owner = rights.as_ref().map_or(Owner::BOOTSTRAP, |rights| rights.owner);
            let acl = rights.and_then(|rights| rights.acl);
            change.put(Object::Database(DatabaseRights {
                oid: DATABASE_OID,
                owner,
                acl,
                has_users: true,
            }));
            change.finish(&self.env).await?;
            match txn.commit().await {
                Ok(_) => return Ok(made),
                Err(telesto_txn::Error::Conflict { .. })
                    if attempt < self.options.retry_attempts =>
                {
                    attempt += 1;
                }
                Err(error) => return Err(error.into()),
            }
        }
    }
}
