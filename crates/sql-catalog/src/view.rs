//! Views as they are stored.
//!
//! # Invariants
//! Fields that a version added are read as absent from what older ones stored.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use telesto_sql_types::SqlType;

use crate::acl::{Acl, Owner};

/// Whose conditions a row that is written through a view has to fulfil.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum CheckOption {
    /// The view's own, and those of views below it that ask for it themselves.
    Local,
    /// The view's own and those of all views below it.
    Cascaded,
}

impl CheckOption {
    /// As the option's value is written.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Local => "local",
            Self::Cascaded => "cascaded",
        }
    }

    /// The option of that value, in lower case.
    #[must_use]
    pub fn named(value: &str) -> Option<Self> {
        [Self::Local, Self::Cascaded].into_iter().find(|option| option.name() == value)
    }
}

/// A view.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct View {
    /// OID.
    pub oid: u32,
    /// OID of the schema.
    pub schema: u32,
    /// Name.
    pub name: String,
    /// Owner.
    pub owner: Owner,
    /// What was granted on it; `None`: the default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub acl: Option<Acl>,
    /// The query, as SQL text.
    pub query: String,
    /// Output columns.
    pub columns: Vec<(String, SqlType)>,
    /// COMMENT ON.
    #[serde(default)]
    pub comment: Option<String>,
    /// COMMENT ON COLUMN, by the columns' numbers, from 1. Versions that do not know them leave
    /// them out of a view that they change.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub column_comments: BTreeMap<u16, String>,
    /// `security_invoker`: who reads it needs the rights on what is below, too.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub security_invoker: bool,
    /// `security_barrier`: what it hides no condition of its readers sees.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub security_barrier: bool,
    /// `check_option`: rows that are written through it have to be among those that it shows.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub check_option: Option<CheckOption>,
    /// OID of its row type (pg_type); 0 in views that were stored before they had one.
    #[serde(default)]
    pub type_oid: u32,
}
