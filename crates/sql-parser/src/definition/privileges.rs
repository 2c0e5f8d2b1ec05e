//! GRANT, REVOKE, ALTER DEFAULT PRIVILEGES, REASSIGN OWNED, DROP OWNED; CREATE, ALTER and DROP of
//! roles.
//!
//! # Invariants
//! What is read here is carried whole: a word of these statements is either kept, refused, or
//! without meaning in PostgreSQL too.
//!
//! # Limits
//! Names are as written; which roles and objects there are is looked up when the statement runs.

use super::words::Words;
use super::{Definition, OwnedKind, RoleChange};
use crate::sqlparser::ast::{Ident, ObjectName};
use crate::sqlparser::tokenizer::Token;
use telesto_sql_types::error::{Error, Result};

/// A role as a statement names it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RoleSpec {
    /// By name.
    Name(Ident),
    /// PUBLIC.
    Public,
    /// CURRENT_USER or CURRENT_ROLE.
    CurrentUser,
    /// SESSION_USER.
    SessionUser,
}

/// The kinds of objects whose privileges are granted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "each variant is a word of the statement")]
pub enum GrantKind {
    Table,
    Sequence,
    Function,
    Schema,
    Type,
    Domain,
    Database,
}

/// What privileges are granted on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum GrantOn {
    /// These objects.
    Objects(GrantKind, Vec<ObjectName>),
    /// ALL … IN SCHEMA.
    AllIn(GrantKind, Vec<Ident>),
    /// Objects made later, of ALTER DEFAULT PRIVILEGES.
    Later(GrantKind),
}

/// Privileges with their columns, as written; `None`: ALL.
pub type Privileges = Option<Vec<(String, Vec<Ident>)>>;

/// GRANT or REVOKE of privileges.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Grant {
    /// GRANT, not REVOKE.
    pub grant: bool,
    /// REVOKE GRANT OPTION FOR.
    pub only_option: bool,
    /// The privileges with their columns; `None`: ALL.
    pub privileges: Privileges,
    /// The columns of ALL (…).
    pub columns: Vec<Ident>,
    /// On what.
    pub on: GrantOn,
    /// To or from whom.
    pub roles: Vec<RoleSpec>,
    /// WITH GRANT OPTION.
    pub with_option: bool,
    /// GRANTED BY.
    pub by: Option<RoleSpec>,
    /// CASCADE.
    pub cascade: bool,
}

/// GRANT or REVOKE of memberships.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GrantRole {
    /// GRANT, not REVOKE.
    pub grant: bool,
    /// REVOKE ADMIN OPTION FOR.
    pub only_option: bool,
    /// Of which roles.
    pub of: Vec<RoleSpec>,
    /// To or from whom.
    pub roles: Vec<RoleSpec>,
    /// WITH ADMIN OPTION.
    pub with_option: bool,
    /// GRANTED BY.
    pub by: Option<RoleSpec>,
}

impl Words<'_> {
    /// GRANT and REVOKE, of whatever, after that word.
    pub fn grant(&mut self, grant: bool) -> Result<Definition> {
        let only_option = !grant && self.words(&["GRANT", "OPTION", "FOR"]);
        let only_admin = !grant && !only_option && self.words(&["ADMIN", "OPTION", "FOR"]);
        let (privileges, columns) = self.privileges()?;
        if !only_admin && self.words(&["ON"]) {
            let on = self.grant_on()?;
            return Ok(Definition::Grant(Box::new(self.grant_to(
                grant,
                only_option,
                (privileges, columns, on),
            )?)));
        }
        if only_option || !columns.is_empty() {
            return Err(self.unexpected());
        }
        let of = privileges.ok_or_else(|| self.unexpected())?;
        if of.iter().any(|(_, columns)| !columns.is_empty()) {
            return Err(self.unexpected());
        }
        let of = of.into_iter().map(|(name, _)| role_named(&name)).collect();
        self.expect_words(&[if grant { "TO" } else { "FROM" }])?;
        let roles = self.roles()?;
        let with_option = grant && self.words(&["WITH", "ADMIN", "OPTION"]);
        let by = self.granted_by()?;
        if !grant && !self.words(&["CASCADE"]) {
            self.words(&["RESTRICT"]);
        }
        let only_option = only_admin;
        let given = GrantRole { grant, only_option, of, roles, with_option, by };
        Ok(Definition::GrantRole(Box::new(given)))
    }

    /// What follows the object: roles and options.
    fn grant_to(
        &mut self,
        grant: bool,
        only_option: bool,
        (privileges, columns, on): (Privileges, Vec<Ident>, GrantOn),
    ) -> Result<Grant> {
        self.expect_words(&[if grant { "TO" } else { "FROM" }])?;
        let roles = self.roles()?;
        let with_option = grant && self.words(&["WITH", "GRANT", "OPTION"]);
        let by = self.granted_by()?;
        let cascade = !grant && self.words(&["CASCADE"]);
        if !grant && !cascade {
            self.words(&["RESTRICT"]);
        }
        Ok(Grant { grant, only_option, privileges, columns, on, roles, with_option, by, cascade })
    }

    fn granted_by(&mut self) -> Result<Option<RoleSpec>> {
        if self.words(&["GRANTED", "BY"]) { self.role().map(Some) } else { Ok(None) }
    }

    /// Privileges with their columns, or the names of roles; `None`: ALL, with its columns.
    fn privileges(&mut self) -> Result<(Privileges, Vec<Ident>)> {
        if self.words(&["ALL"]) {
            self.words(&["PRIVILEGES"]);
            let columns = self.name_list_in_parentheses()?;
            return Ok((None, columns));
        }
        let mut found = Vec::new();
        loop {
            // A role may have a quoted name; its quotes are kept, so that it is read again as it
            // was.
            let name = self.identifier()?.to_string();
            found.push((name, self.name_list_in_parentheses()?));
            if !self.symbol(",") {
                return Ok((Some(found), Vec::new()));
            }
        }
    }

    fn name_list_in_parentheses(&mut self) -> Result<Vec<Ident>> {
        if !self.symbol("(") {
            return Ok(Vec::new());
        }
        let names = self.identifiers()?;
        self.expect_symbol(")")?;
        Ok(names)
    }

    fn identifiers(&mut self) -> Result<Vec<Ident>> {
        let mut names = vec![self.identifier()?];
        while self.symbol(",") {
            names.push(self.identifier()?);
        }
        Ok(names)
    }

    fn object_names(&mut self) -> Result<Vec<ObjectName>> {
        let mut names = vec![self.object_name()?];
        while self.symbol(",") {
            names.push(self.object_name()?);
        }
        Ok(names)
    }

    fn grant_on(&mut self) -> Result<GrantOn> {
        if self.words(&["ALL"]) {
            let kind = self.plural()?;
            if matches!(kind, GrantKind::Schema | GrantKind::Type) {
                return Err(self.unexpected());
            }
            self.expect_words(&["IN", "SCHEMA"])?;
            return Ok(GrantOn::AllIn(kind, self.identifiers()?));
        }
        for (words, what) in [
            (&["FOREIGN", "DATA"][..], "privileges on a foreign data wrapper"),
            (&["FOREIGN", "SERVER"], "privileges on a foreign server"),
            (&["LANGUAGE"], "privileges on a language"),
            (&["LARGE", "OBJECT"], "privileges on a large object"),
            (&["PARAMETER"], "privileges on a parameter"),
            (&["TABLESPACE"], "privileges on a tablespace"),
        ] {
            if self.words(words) {
                return Err(Error::unsupported(what)
                    .hint("Privileges are kept on tables, columns, sequences, schemas, types, functions and the database."));
            }
        }
        let kind = if self.words(&["SEQUENCE"]) {
            GrantKind::Sequence
        } else if self.words(&["SCHEMA"]) {
            GrantKind::Schema
        } else if self.words(&["DATABASE"]) {
            GrantKind::Database
        } else if self.words(&["TYPE"]) {
            GrantKind::Type
        } else if self.words(&["DOMAIN"]) {
            GrantKind::Domain
        } else if self.words(&["FUNCTION"])
            || self.words(&["ROUTINE"])
            || self.words(&["PROCEDURE"])
        {
            return self.functions();
        } else {
            self.words(&["TABLE"]);
            GrantKind::Table
        };
        Ok(GrantOn::Objects(kind, self.object_names()?))
    }

    /// Functions with the types of their arguments, which say nothing here: one name stands for
    /// all.
    fn functions(&mut self) -> Result<GrantOn> {
        let mut names = Vec::new();
        loop {
            names.push(self.object_name()?);
            if self.symbol("(") {
                let mut depth = 1_u32;
                while depth > 0 {
                    match self.0.next_token().token {
                        Token::EOF => return Err(self.unexpected()),
                        Token::LParen => depth += 1,
                        Token::RParen => depth -= 1,
                        _ => {}
                    }
                }
            }
            if !self.symbol(",") {
                return Ok(GrantOn::Objects(GrantKind::Function, names));
            }
        }
    }

    fn plural(&mut self) -> Result<GrantKind> {
        for (word, kind) in [
            ("TABLES", GrantKind::Table),
            ("SEQUENCES", GrantKind::Sequence),
            ("FUNCTIONS", GrantKind::Function),
            ("ROUTINES", GrantKind::Function),
            ("PROCEDURES", GrantKind::Function),
            ("TYPES", GrantKind::Type),
            ("SCHEMAS", GrantKind::Schema),
        ] {
            if self.words(&[word]) {
                return Ok(kind);
            }
        }
        Err(self.unexpected())
    }

    /// A role, by name or by what it is.
    pub fn role(&mut self) -> Result<RoleSpec> {
        self.words(&["GROUP"]);
        let name = self.identifier()?;
        Ok(spec(name))
    }

    /// Roles, with commas between.
    pub fn roles(&mut self) -> Result<Vec<RoleSpec>> {
        let mut roles = vec![self.role()?];
        while self.symbol(",") {
            roles.push(self.role()?);
        }
        Ok(roles)
    }

    /// ALTER DEFAULT PRIVILEGES, after these words.
    pub fn default_privileges(&mut self) -> Result<Definition> {
        let (mut of, mut within) = (Vec::new(), Vec::new());
        loop {
            if self.words(&["FOR", "ROLE"]) || self.words(&["FOR", "USER"]) {
                of.extend(self.roles()?);
            } else if self.words(&["IN", "SCHEMA"]) {
                within.extend(self.identifiers()?);
            } else {
                break;
            }
        }
        let grant = self.words(&["GRANT"]);
        if !grant {
            self.expect_words(&["REVOKE"])?;
        }
        let only_option = !grant && self.words(&["GRANT", "OPTION", "FOR"]);
        let (privileges, columns) = self.privileges()?;
        if !columns.is_empty()
            || privileges.iter().flatten().any(|(_, columns)| !columns.is_empty())
        {
            return Err(Error::new(
                telesto_sql_types::SqlState::INVALID_GRANT_OPERATION,
                "default privileges cannot be set for columns",
            ));
        }
        self.expect_words(&["ON"])?;
        let kind = self.plural()?;
        if kind == GrantKind::Schema && !within.is_empty() {
            return Err(Error::new(
                telesto_sql_types::SqlState::INVALID_GRANT_OPERATION,
                "cannot use IN SCHEMA clause when using GRANT/REVOKE ON SCHEMAS",
            ));
        }
        let grant =
            self.grant_to(grant, only_option, (privileges, columns, GrantOn::Later(kind)))?;
        Ok(Definition::DefaultPrivileges { of, within, grant: Box::new(grant) })
    }

    /// REASSIGN OWNED, after these words.
    pub fn reassign(&mut self) -> Result<Definition> {
        self.expect_words(&["BY"])?;
        let from = self.roles()?;
        self.expect_words(&["TO"])?;
        Ok(Definition::ReassignOwned { from, to: self.role()? })
    }

    /// DROP OWNED, after these words.
    pub fn drop_owned(&mut self) -> Result<Definition> {
        self.expect_words(&["BY"])?;
        let of = self.roles()?;
        let cascade = self.words(&["CASCADE"]);
        if !cascade {
            self.words(&["RESTRICT"]);
        }
        Ok(Definition::DropOwned { of, cascade })
    }

    /// CREATE ROLE, USER or GROUP, after these words; a user may log in.
    pub fn create_role(&mut self, user: bool) -> Result<Definition> {
        let name = self.identifier()?;
        if let RoleSpec::Public = spec(name.clone()) {
            return Err(reserved("public"));
        }
        let mut options = if user { vec![super::RoleOption::Login(true)] } else { Vec::new() };
        options.extend(self.role_options(true)?);
        Ok(Definition::CreateRole { name, options })
    }

    /// DROP ROLE, USER or GROUP, after these words.
    pub fn drop_role(&mut self) -> Result<Definition> {
        let if_exists = self.words(&["IF", "EXISTS"]);
        Ok(Definition::DropRole { if_exists, roles: self.roles()? })
    }

    /// ALTER ROLE or USER, after these words.
    pub fn alter_role(&mut self) -> Result<Definition> {
        if self.words(&["ALL"]) {
            return self.settings_of_role(None);
        }
        let name = self.role()?;
        if self.words(&["RENAME", "TO"]) {
            let change = RoleChange::Rename(self.identifier()?);
            return Ok(Definition::AlterRole { name, change });
        }
        if self.peek_settings() || self.peek_words(&["IN", "DATABASE"]) {
            return self.settings_of_role(Some(name));
        }
        let change = RoleChange::Options(self.role_options(false)?);
        Ok(Definition::AlterRole { name, change })
    }

    /// ALTER GROUP, after these words.
    pub fn alter_group(&mut self) -> Result<Definition> {
        let group = self.role()?;
        if self.words(&["RENAME", "TO"]) {
            let change = RoleChange::Rename(self.identifier()?);
            return Ok(Definition::AlterRole { name: group, change });
        }
        let grant = self.words(&["ADD", "USER"]);
        if !grant {
            self.expect_words(&["DROP", "USER"])?;
        }
        Ok(Definition::GrantRole(Box::new(GrantRole {
            grant,
            only_option: false,
            of: vec![group],
            roles: self.roles()?,
            with_option: false,
            by: None,
        })))
    }

    /// `OWNER TO role`, of an object that has no other ALTER here.
    pub fn owner_to(&mut self, kind: OwnedKind, name: ObjectName) -> Result<Definition> {
        self.expect_words(&["OWNER", "TO"])?;
        Ok(Definition::OwnerTo { kind, name, to: self.role()? })
    }
}

fn reserved(name: &str) -> Error {
    Error::new(
        telesto_sql_types::SqlState::RESERVED_NAME,
        format!("role name \"{name}\" is reserved"),
    )
}

/// The role an identifier means.
fn spec(name: Ident) -> RoleSpec {
    if name.quote_style.is_some() {
        return RoleSpec::Name(name);
    }
    match name.value.to_ascii_lowercase().as_str() {
        "public" => RoleSpec::Public,
        "current_user" | "current_role" => RoleSpec::CurrentUser,
        "session_user" => RoleSpec::SessionUser,
        _ => RoleSpec::Name(name),
    }
}

/// The role a name in a list of privileges means: as written, with its quotes.
fn role_named(text: &str) -> RoleSpec {
    match text.strip_prefix('"').and_then(|rest| rest.strip_suffix('"')) {
        Some(quoted) => RoleSpec::Name(Ident::with_quote('"', quoted.replace("\"\"", "\""))),
        None => spec(Ident::new(text)),
    }
}
