//! Row security of a table: whether it is on, and its policies.
//!
//! # Invariants
//! - A table of which something is kept here is stored in a format that older versions refuse: they
//!   would show every row.
//! - An expression is text whose relations have their schemas; the table itself is called in it as
//!   it was when the policy was made ([`Policy::called`]), whatever it is called now.
//!
//! # Limits
//! What a policy means for a statement is decided where statements are planned.

use serde::{Deserialize, Serialize};

/// Row security of one table.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RowSecurity {
    /// ENABLE ROW LEVEL SECURITY.
    #[serde(default)]
    pub enabled: bool,
    /// FORCE ROW LEVEL SECURITY: for the owner, too.
    #[serde(default)]
    pub forced: bool,
    /// The policies, by name.
    #[serde(default)]
    pub policies: Vec<Policy>,
}

impl RowSecurity {
    /// Whether nothing was ever said of it.
    #[must_use]
    pub fn is_default(&self) -> bool {
        *self == Self::default()
    }
}

/// The statements a policy is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum PolicyCommand {
    /// All of them.
    All,
    /// What reads rows.
    Select,
    /// INSERT.
    Insert,
    /// UPDATE, and what locks rows.
    Update,
    /// DELETE.
    Delete,
}

impl PolicyCommand {
    /// The letter of `pg_policy.polcmd`.
    #[must_use]
    pub fn letter(self) -> &'static str {
        match self {
            Self::All => "*",
            Self::Select => "r",
            Self::Insert => "a",
            Self::Update => "w",
            Self::Delete => "d",
        }
    }

    /// Its word.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::All => "ALL",
            Self::Select => "SELECT",
            Self::Insert => "INSERT",
            Self::Update => "UPDATE",
            Self::Delete => "DELETE",
        }
    }
}

/// One policy.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Policy {
    /// OID.
    pub oid: u32,
    /// Name, of which the table has one.
    pub name: String,
    /// What the expressions call the table.
    pub called: String,
    /// PERMISSIVE: one of these must let a row pass. RESTRICTIVE: all of these must.
    pub permissive: bool,
    /// For which statements.
    pub command: PolicyCommand,
    /// For which roles; 0 is everybody.
    pub roles: Vec<u32>,
    /// Which rows are there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub using: Option<String>,
    /// Which rows may be written; `None`: those of `using`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub check: Option<String>,
}
