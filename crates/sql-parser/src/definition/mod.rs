//! Definitions in PostgreSQL's words that the SQL parser does not know: ALTER of everything but
//! types (their attributes aside) and domains, CREATE SEQUENCE with its options in any order,
//! CREATE SCHEMA with elements, CREATE TABLE (LIKE …), comments on constraints, REINDEX, DROP INDEX
//! CONCURRENTLY.
//!
//! # How it works
//! [`take`] looks at the first words of a statement. When they are one of ours, the text is parsed
//! here, and the statement becomes a carrier: a node of the SQL parser's tree that no text in
//! PostgreSQL's dialect may make (the session refuses PRAGMA), with the text inside. `ddl` parses
//! that again ([`read`]) when it executes the statement.
//!
//! # Limits
//! Nothing here looks at the catalog: names are as written.

mod attributes;
mod create;
mod effectless;
pub mod identity;
pub mod included;
mod index;
mod no_inherit;
pub mod nulls_distinct;
mod parse;
mod privileges;
mod sequence;
mod settings;
mod table;
mod with_settings;
mod words;

pub use attributes::AttributeAction;
pub use parse::{read, take, text};
pub use privileges::{Grant, GrantKind, GrantOn, GrantRole, RoleSpec};
pub use settings::{SettingChange, SettingsOf};
pub use with_settings::known_storage;

use crate::sqlparser::ast::{
    ColumnDef, CreateTable, DataType, Expr, Ident, ObjectName, Statement, TableConstraint,
};
use crate::sqlparser::tokenizer::TokenWithSpan;
use telesto_sql_types::error::Result;

/// Rewrites what the SQL parser does not know of constraints, in the tokens of one statement.
///
/// # Errors
/// 42P17 for a check of a domain that is not inherited.
pub(crate) fn spell_constraints(
    tokens: &mut [TokenWithSpan],
    spelled: crate::rewrite::spelling::Spelled,
) -> Result<()> {
    included::spell(tokens);
    nulls_distinct::spell(tokens);
    no_inherit::spell(tokens, spelled)
}

/// A definition.
#[derive(Clone, Debug)]
#[allow(missing_docs, reason = "each variant and field is a word of the definition")]
pub enum Definition {
    /// ALTER TABLE, INDEX, SEQUENCE (but for its options), VIEW.
    Alter {
        /// The word after ALTER.
        kind: Kind,
        if_exists: bool,
        name: ObjectName,
        actions: Vec<Action>,
    },
    /// ALTER SEQUENCE with options.
    AlterSequence { if_exists: bool, name: ObjectName, options: Vec<SequenceOption> },
    /// CREATE SEQUENCE.
    CreateSequence {
        temporary: bool,
        if_not_exists: bool,
        name: ObjectName,
        options: Vec<SequenceOption>,
    },
    /// ALTER TYPE … ADD, DROP, ALTER or RENAME ATTRIBUTE.
    AlterAttributes { name: ObjectName, actions: Vec<AttributeAction> },
    /// ALTER SCHEMA … RENAME TO.
    AlterSchema { name: Ident, to: Ident },
    /// ALTER SCHEMA, TYPE, DOMAIN or DATABASE … OWNER TO.
    OwnerTo { kind: OwnedKind, name: ObjectName, to: RoleSpec },
    /// CREATE SCHEMA; the elements' texts. Without a name, that of the role.
    CreateSchema {
        if_not_exists: bool,
        name: Option<Ident>,
        owner: Option<RoleSpec>,
        elements: Vec<Statement>,
    },
    /// CREATE ROLE, USER or GROUP.
    CreateRole { name: Ident, options: Vec<RoleOption> },
    /// DROP ROLE, USER or GROUP.
    DropRole { if_exists: bool, roles: Vec<RoleSpec> },
    /// GRANT or REVOKE of privileges.
    Grant(Box<Grant>),
    /// GRANT or REVOKE of memberships.
    GrantRole(Box<GrantRole>),
    /// ALTER DEFAULT PRIVILEGES.
    DefaultPrivileges { of: Vec<RoleSpec>, within: Vec<Ident>, grant: Box<Grant> },
    /// REASSIGN OWNED.
    ReassignOwned { from: Vec<RoleSpec>, to: RoleSpec },
    /// DROP OWNED.
    DropOwned { of: Vec<RoleSpec>, cascade: bool },
    /// CREATE TABLE with LIKE among its columns, or settings of ours (`WITH (telesto.key = …)`).
    CreateTableLike {
        create: Box<CreateTable>,
        likes: Vec<Like>,
        settings: Vec<(String, Option<String>)>,
    },
    /// CREATE TABLE … AS … WITH NO DATA.
    CreateTableEmpty(Box<CreateTable>),
    /// CREATE TABLE … AS with names of columns, or WITH DATA.
    CreateTableAs(Box<CreateTable>),
    /// ALTER ROLE or USER with options, or renamed.
    AlterRole { name: RoleSpec, change: RoleChange },
    /// ALTER ROLE, USER or DATABASE … SET or RESET of a setting.
    Settings(Box<SettingsOf>),
    /// COMMENT ON CONSTRAINT … ON `[DOMAIN]` ….
    CommentOnConstraint { name: Ident, on: ObjectName, comment: Option<String> },
    /// DROP INDEX CONCURRENTLY.
    DropIndexConcurrently { if_exists: bool, names: Vec<ObjectName>, cascade: bool },
    /// REINDEX INDEX, or REINDEX TABLE.
    Reindex { table: bool, concurrently: bool, name: ObjectName },
    /// REINDEX SCHEMA, DATABASE or SYSTEM.
    ReindexAll { of: ReindexOf, concurrently: bool, name: Ident },
}

/// What REINDEX takes all indexes of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "each variant is a word of the definition")]
pub enum ReindexOf {
    Schema,
    Database,
    System,
}

impl ReindexOf {
    /// The statement's words.
    #[must_use]
    pub fn statement(self) -> &'static str {
        match self {
            Self::Schema => "REINDEX SCHEMA",
            Self::Database => "REINDEX DATABASE",
            Self::System => "REINDEX SYSTEM",
        }
    }
}

/// What has an owner and no ALTER of its own here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "each variant is a word of the definition")]
pub enum OwnedKind {
    Schema,
    Database,
}

/// The word after ALTER.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "each variant and field is a word of the definition")]
pub enum Kind {
    Table,
    Index,
    Sequence,
    View,
}

impl Kind {
    /// The command's tag.
    pub fn tag(self) -> &'static str {
        match self {
            Self::Table => "ALTER TABLE",
            Self::Index => "ALTER INDEX",
            Self::Sequence => "ALTER SEQUENCE",
            Self::View => "ALTER VIEW",
        }
    }
}

/// What to do to a relation.
#[derive(Clone, Debug)]
#[allow(missing_docs, reason = "each variant and field is a word of the definition")]
pub enum Action {
    AddColumn {
        if_not_exists: bool,
        definition: Box<ColumnDef>,
    },
    DropColumn {
        if_exists: bool,
        name: Ident,
        cascade: bool,
    },
    Column {
        name: Ident,
        change: ColumnChange,
    },
    AddConstraint {
        constraint: Box<TableConstraint>,
        not_valid: bool,
    },
    DropConstraint {
        if_exists: bool,
        name: Ident,
        cascade: bool,
    },
    AlterConstraint {
        name: Ident,
        deferrable: bool,
        deferred: bool,
    },
    ValidateConstraint(Ident),
    RenameTo(Ident),
    RenameColumn {
        from: Ident,
        to: Ident,
    },
    RenameConstraint {
        from: Ident,
        to: Ident,
    },
    SetSchema(Ident),
    /// SET (…) and RESET (…): names, and values where there are any.
    Settings(Vec<(String, Option<String>)>),
    OwnerTo(RoleSpec),
    /// SET or RESET of options of a view: what they become; `None`: as before.
    ViewOptions {
        /// `security_invoker`.
        invoker: Option<bool>,
        /// `security_barrier`.
        barrier: Option<bool>,
        /// `check_option`: its value in lower case, or none.
        check: Option<Option<String>>,
    },
    /// ROW LEVEL SECURITY.
    RowSecurity(RowSecurityChange),
    /// Storage, triggers and the like.
    Effectless(Effectless),
    /// Known to PostgreSQL, not here.
    Unsupported(String),
}

/// An action that changes nothing here, with what has to be there for it.
#[derive(Clone, Debug)]
pub struct Effectless {
    /// PostgreSQL's words for the action.
    pub shown: &'static str,
    /// What it names.
    pub named: Named,
}

/// What an action without effect names.
#[derive(Clone, Debug)]
#[allow(missing_docs, reason = "each variant is what the definition's words say")]
pub enum Named {
    Nothing,
    /// CLUSTER ON.
    ClusterIndex(Ident),
    /// REPLICA IDENTITY USING INDEX.
    IdentityIndex(Ident),
    Trigger(Ident),
    Rule(Ident),
    Tablespace(Ident),
    AccessMethod(Ident),
    /// LOGGED or UNLOGGED.
    Persistence,
    /// A column of an index, by its number.
    IndexColumn(i64),
}

/// What to do about row security.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "each variant is a word of the definition")]
pub enum RowSecurityChange {
    Enable,
    Disable,
    Force,
    NoForce,
}

/// What to do to a column.
#[derive(Clone, Debug)]
#[allow(missing_docs, reason = "each variant and field is a word of the definition")]
pub enum ColumnChange {
    Type { ty: Box<DataType>, using: Option<Box<Expr>> },
    SetDefault(Box<Expr>),
    DropDefault,
    SetNotNull,
    DropNotNull,
    DropExpression { if_exists: bool },
    AddIdentity { always: bool, options: Vec<SequenceOption> },
    SetIdentity { always: Option<bool>, options: Vec<SequenceOption> },
    DropIdentity { if_exists: bool },
    Nothing,
}

/// An option of a sequence.
#[derive(Clone, Debug)]
#[allow(missing_docs, reason = "each variant and field is a word of the definition")]
pub enum SequenceOption {
    As(DataType),
    Increment(i64),
    /// `None`: NO MINVALUE.
    Min(Option<i64>),
    Max(Option<i64>),
    Start(i64),
    /// `None`: at its start.
    Restart(Option<i64>),
    Cache(i64),
    Cycle(bool),
    /// `None`: by nothing.
    OwnedBy(Option<ObjectName>),
    /// SEQUENCE NAME, of an identity column.
    Name(ObjectName),
}

/// `LIKE model INCLUDING …` among the columns of CREATE TABLE.
#[derive(Clone, Debug)]
#[allow(missing_docs, reason = "each variant and field is a word of the definition")]
pub struct Like {
    /// Before which of the columns.
    pub before: usize,
    pub model: ObjectName,
    pub comments: bool,
    pub constraints: bool,
    pub defaults: bool,
    pub generated: bool,
    pub identity: bool,
    pub indexes: bool,
}

/// What ALTER ROLE does.
#[derive(Clone, Debug)]
#[allow(missing_docs, reason = "each variant and field is a word of the definition")]
pub enum RoleChange {
    Rename(Ident),
    Options(Vec<RoleOption>),
}

/// An option of a role.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "each variant and field is a word of the definition")]
pub enum RoleOption {
    Superuser(bool),
    Login(bool),
    CreateDb(bool),
    CreateRole(bool),
    Inherit(bool),
    Replication(bool),
    BypassRls(bool),
    ConnectionLimit(i64),
    ValidUntil(String),
    /// `None`: PASSWORD NULL.
    Password(Option<String>),
    /// Roles that the new one becomes a member of.
    InRole(Vec<RoleSpec>),
    /// Members of the new one.
    Role(Vec<RoleSpec>),
    /// Members of the new one with ADMIN OPTION.
    Admin(Vec<RoleSpec>),
    /// Known and without effect in PostgreSQL, too.
    SysId,
}

/// The value of a boolean `option`, in lower case.
///
/// # Errors
/// 22023 for anything else.
pub fn is_on(option: &str, value: &str) -> telesto_sql_types::error::Result<bool> {
    match value {
        "true" | "on" | "yes" | "1" | "t" => Ok(true),
        "false" | "off" | "no" | "0" | "f" => Ok(false),
        other => Err(telesto_sql_types::error::Error::new(
            telesto_sql_types::SqlState::INVALID_PARAMETER_VALUE,
            format!("invalid value for boolean option \"{option}\": {other}"),
        )),
    }
}
