//! Whose session it is, and whose rights count: log-in, SET ROLE, SET SESSION AUTHORIZATION.
//!
//! # Invariants
//! - A session begins as a role that the catalog has, and that may log in; or, where nobody is
//!   asked for a password, under a name that no role has, as the bootstrap superuser.
//! - A role changes here, by `set_config('role', …)`, which asks the same, and by what a session
//!   begins with (`beginning`); whose session it is changes here and nowhere else.
//! - Who may become whom is asked of the catalog as it is now, whatever the block reads: the answer
//!   outlives the block. What the block has itself changed of roles counts as long as nobody else
//!   has changed definitions since.
//! - Who may become whom is asked of the role that the session is of, not of the one it acts as:
//!   SET ROLE gives up nothing. Of the way back to what a session began as, it is asked of the role
//!   that logged in.
//!
//! # On failure
//! 28000 where no session begins, 42501 for a role that the session may not become, 22023 for one
//! there is not.
//!
//! # Limits
//! A session of a role that was dropped goes on, without any right.

use std::sync::Arc;

use telesto_sql_catalog::acl::BOOTSTRAP;
use telesto_sql_catalog::rights::denied;
use telesto_sql_catalog::{DEFAULT_DATABASE, Rights};
use telesto_sql_parser::names::fold;
use telesto_sql_parser::setting_values::{is_default, set_value};
use telesto_sql_parser::sqlparser::ast::{
    ContextModifier, Reset, ResetStatement, Set, SetSessionAuthorizationParamKind,
};
use telesto_txn::TxnOptions;

use super::{Session, SqlEngine};
use crate::catalog::CatalogSnapshot;
use crate::error::{Error, Result, SqlState};
use crate::expr::settings::{Configured, is_of_superusers};
use crate::plan::cancel::ConnectionSlot;

/// What a statement asks of the session's roles.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Asked {
    /// The session's role, not the one whose rights count.
    session: bool,
    /// `None`: back to what it was.
    role: Option<String>,
    local: bool,
    /// The role, back to that which the session began with.
    back: bool,
}

impl Asked {
    /// What DISCARD ALL asks: all as it was when the session began.
    pub(super) fn began() -> Self {
        Self { session: true, role: None, local: false, back: false }
    }

    /// What SET asks; `None`: it is about something else.
    pub(super) fn of_set(set: &Set) -> Result<Option<Self>> {
        let local = |scope: Option<&ContextModifier>| matches!(scope, Some(ContextModifier::Local));
        // A word that is kept, where a name stands: PostgreSQL's grammar has it behind TO and =
        // alone.
        if let Set::SetRole { role_name: Some(name), .. } = set
            && name.quote_style.is_none()
            && name.value.eq_ignore_ascii_case("default")
        {
            return Err(Error::syntax("syntax error at or near \"DEFAULT\""));
        }
        Ok(match set {
            Set::SetRole { context_modifier, role_name } => Some(Self {
                session: false,
                role: role_name.as_ref().map(fold).filter(|name| name != "none"),
                local: local(context_modifier.as_ref()),
                back: false,
            }),
            Set::SetSessionAuthorization(given) => Some(Self {
                session: true,
                role: match &given.kind {
                    SetSessionAuthorizationParamKind::Default => None,
                    SetSessionAuthorizationParamKind::User(name) => {
                        Some(fold(name)).filter(|name| name != "default")
                    }
                },
                local: local(Some(&given.scope)),
                back: false,
            }),
            Set::SingleAssignment { scope, variable, values, .. } => {
                let name = variable.to_string().replace('"', "").to_ascii_lowercase();
                if !matches!(name.as_str(), "role" | "session_authorization") {
                    return Ok(None);
                }
                if values.len() > 1 {
                    return Err(Error::new(
                        SqlState::INVALID_PARAMETER_VALUE,
                        format!("SET {name} takes only one argument"),
                    ));
                }
                let value =
                    values.first().map(set_value).transpose()?.filter(|_| !is_default(values));
                let session = name == "session_authorization";
                let role = value.filter(|value| session || value != "none");
                let back = !session && is_default(values);
                Some(Self { session, role, local: local(scope.as_ref()), back })
            }
            _ => None,
        })
    }

    /// What RESET asks.
    pub(super) fn of_reset(reset: &ResetStatement) -> Option<Self> {
        let Reset::ConfigurationParameter(name) = &reset.reset else { return None };
        let session = match name.to_string().to_ascii_lowercase().as_str() {
            "role" => false,
            "session_authorization" => true,
            _ => return None,
        };
        Some(Self { session, role: None, local: false, back: !session })
    }
}

/// A role that logs in.
pub(super) struct LoggedIn {
    pub(super) oid: u32,
    pub(super) superuser: bool,
    /// The catalog that says so, if it was asked.
    pub(super) catalog: Option<Arc<CatalogSnapshot>>,
    /// Its place among the role's sessions; of a name that no role has there is no limit.
    pub(super) slot: Option<ConnectionSlot>,
}

fn first_role(catalog: Option<Arc<CatalogSnapshot>>) -> LoggedIn {
    LoggedIn { oid: BOOTSTRAP, superuser: true, catalog, slot: None }
}

/// 22023 of a role that is to be taken.
pub(super) fn no_role(name: &str) -> Error {
    Error::new(SqlState::INVALID_PARAMETER_VALUE, format!("role \"{name}\" does not exist"))
}

impl SqlEngine {
    /// The catalog as it is now.
    pub(super) async fn catalog_now(&self) -> Result<Arc<CatalogSnapshot>> {
        let options = TxnOptions { read_only: true, ..TxnOptions::default() };
        let txn = self.database.begin(options).await?;
        let catalog = self.catalogs.read(&txn, self.database_id).await;
        txn.rollback();
        catalog
    }

    /// The role that a session of `user` begins as. `proven`: the user was asked for a password,
    /// and had it; `wanted`: as this role.
    pub(super) async fn log_in(
        &self,
        user: &str,
        proven: bool,
        wanted: Option<u32>,
    ) -> Result<LoggedIn> {
        if user == DEFAULT_DATABASE && !proven {
            return Ok(first_role(None));
        }
        let catalog = self.catalog_now().await?;
        let found = catalog.role_named(user);
        let Some(role) = found.filter(|role| wanted.is_none_or(|oid| oid == role.oid)) else {
            if wanted.is_some() && found.is_some() {
                return Err(Error::new(
                    SqlState::INVALID_AUTHORIZATION,
                    format!("role \"{user}\" is another than the one that logged in"),
                )
                .hint("Log in again."));
            }
            if proven || wanted.is_some() {
                return Err(Error::new(
                    SqlState::INVALID_AUTHORIZATION,
                    format!("role \"{user}\" does not exist"),
                )
                .hint("A superuser makes it: CREATE ROLE … LOGIN."));
            }
            return Ok(first_role(Some(catalog)));
        };
        if !role.login {
            return Err(Error::new(
                SqlState::INVALID_AUTHORIZATION,
                format!("role \"{user}\" is not permitted to log in"),
            )
            .hint("ALTER ROLE … LOGIN lets it."));
        }
        let actor = catalog.actor(role.oid);
        if !catalog.guarded_database().rights_of(&actor).has(Rights::CONNECT) {
            return Err(denied(format!(
                "permission denied for database \"{}\"",
                catalog.database_name
            ))
            .detail("User does not have CONNECT privilege."));
        }
        let limit = role.connection_limit.filter(|_| !role.superuser).map(|limit| limit as usize);
        let Some(slot) = self.backends.slot(role.oid, limit) else {
            return Err(Error::new(
                SqlState::TOO_MANY_CONNECTIONS,
                format!("too many connections for role \"{user}\""),
            ));
        };
        let (oid, superuser) = (role.oid, role.superuser);
        Ok(LoggedIn { oid, superuser, catalog: Some(catalog), slot: Some(slot) })
    }
}

impl Session {
    /// The catalog as it is now, with what the block has changed of it. A block may read an older
    /// one, and what is answered here stays when the block has ended.
    async fn roles_now(&self) -> Result<Arc<CatalogSnapshot>> {
        let now = self.engine.catalog_now().await?;
        let Some(block) = &self.block else { return Ok(now) };
        let (Some(base), Some(txn)) = (&block.base, &block.txn) else { return Ok(now) };
        let before = base.temp.as_ref().map_or(base.stamp, |temp| temp.shared_stamp);
        // A block whose definitions rest on older ones than there are now cannot commit: what it
        // would have made does not count.
        if before != now.stamp {
            return Ok(now);
        }
        self.read_catalog(txn).await
    }

    /// Finds out whether the role whose rights count is a superuser, as of now.
    pub(super) async fn ask_whether_superuser(&mut self) -> Result<()> {
        let catalog = self.roles_now().await?;
        let ask = |settings: &mut Arc<super::Settings>| {
            let superuser = settings.is_superuser_in(&catalog);
            if settings.superuser != superuser {
                Arc::make_mut(settings).superuser = superuser;
            }
        };
        ask(&mut self.settings);
        if let Some(block) = &mut self.block {
            ask(&mut block.settings_after);
        }
        Ok(())
    }

    /// Makes so what one call of `set_config` asked for. The call was checked by the catalog of its
    /// statement, which may be an older one; what only some may set is asked again of the present.
    pub(super) async fn configure_one(&mut self, call: &Configured) -> Result<()> {
        match &call.becomes {
            Some(asked) => {
                let catalog = self.roles_now().await?;
                let name = asked.role.as_ref().map_or("none", |(_, name)| name);
                let becomes = self.settings.role_to_take(&catalog, name)?;
                self.change_settings(call.local, |settings| {
                    settings.take_role(&becomes);
                    Ok(())
                })
            }
            None => {
                if is_of_superusers(&call.name) {
                    self.ask_whether_superuser().await?;
                }
                self.change_settings(call.local, |settings| settings.set(&call.name, &call.values))
            }
        }
    }

    /// The role that the session began as, where it is another than the one that logged in.
    fn began_as(&self, catalog: &CatalogSnapshot) -> Result<Option<(u32, String)>> {
        if self.defaults.current_role == self.defaults.session_role {
            return Ok(None);
        }
        let began = catalog.role(self.defaults.current_role);
        let began = began.ok_or_else(|| no_role(&self.defaults.current_user))?;
        if !catalog.may_become(self.defaults.session_role, began.oid) {
            return Err(denied(format!("permission denied to set role \"{}\"", began.name)));
        }
        Ok(Some((began.oid, began.name.clone())))
    }

    pub(super) async fn change_role(&mut self, asked: &Asked) -> Result<()> {
        let catalog = self.roles_now().await?;
        let named = |name: &str| {
            catalog.role_named(name).map(|role| (role.oid, role.name.clone())).or_else(|| {
                // Where nobody is asked for a password a session may have a name that no role has.
                let own = name == self.defaults.session_user;
                own.then(|| (self.defaults.session_role, name.to_owned()))
            })
        };
        let target = match &asked.role {
            Some(name) => Some(named(name).ok_or_else(|| no_role(name))?),
            None if asked.back => self.began_as(&catalog)?,
            None => None,
        };
        let is_super = |oid: u32| catalog.role(oid).is_some_and(|role| role.superuser);
        if asked.session {
            let authenticated = self.settings.authenticated_role;
            let (oid, name) = target.unwrap_or_else(|| {
                (self.defaults.session_role, self.defaults.session_user.clone())
            });
            if oid != authenticated && !is_super(authenticated) {
                return Err(denied("permission denied to set session authorization"));
            }
            // Back at the role that logged in the session acts as what it began with, as after
            // RESET ROLE.
            let began = match asked.role {
                None => self.began_as(&catalog)?,
                Some(_) => None,
            };
            let superuser = is_super(began.as_ref().map_or(oid, |(began, _)| *began));
            return self.apply_role(asked.local, |settings| {
                settings.become_session(oid, &name);
                settings.become_role(began.as_ref().map(|(oid, name)| (*oid, name.as_str())));
                settings.superuser = superuser;
            });
        }
        // What it began as was asked of the role that logged in, whoever the session is of now.
        if let Some((oid, name)) = &target
            && !asked.back
            && !catalog.may_become(self.settings.session_role, *oid)
        {
            return Err(denied(format!("permission denied to set role \"{name}\"")));
        }
        let oid = target.as_ref().map_or(self.settings.session_role, |(oid, _)| *oid);
        let superuser = is_super(oid);
        self.apply_role(asked.local, |settings| {
            settings.become_role(target.as_ref().map(|(oid, name)| (*oid, name.as_str())));
            settings.superuser = superuser;
        })
    }

    fn apply_role(&mut self, local: bool, change: impl Fn(&mut super::Settings)) -> Result<()> {
        if local && self.is_local_to_nothing() {
            return Ok(());
        }
        self.change_settings(local, |settings| {
            change(settings);
            Ok(())
        })
    }

    /// The values of EXECUTE read nothing that the role may not read.
    pub(super) fn check_values(&self, text: &str, catalog: &Arc<CatalogSnapshot>) -> Result<()> {
        let query = crate::access::query_of(text)?;
        let statement = crate::sqlparser::ast::Statement::Query(Box::new(query));
        crate::access::check_types(&statement, catalog, &self.settings)?;
        crate::access::check(&statement, catalog, &self.settings)
    }
}

/// Fails for a setting that would change whose session it is.
pub(super) fn refuse_role(name: &str) -> Result<()> {
    if name.eq_ignore_ascii_case("session_authorization") {
        return Err(Error::new(
            SqlState::INVALID_PARAMETER_VALUE,
            format!("parameter \"{name}\" cannot be set when a session begins"),
        )
        .hint("Use SET SESSION AUTHORIZATION once it has begun."));
    }
    Ok(())
}
