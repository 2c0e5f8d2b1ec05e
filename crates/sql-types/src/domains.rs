//! Domains: a type under another name, with constraints.
//!
//! # Invariants
//! - A value of a domain is a value of its base type; expressions and results have the base type.
//!   The domain itself is the target of a cast, which checks its constraints, and is noted beside a
//!   column's type (`Column::domain`).
//! - It is never stored as a type: catalog objects name domains by OID.
//!
//! # Limits
//! No arrays of domains. `pg_typeof` knows the domain of a column and of a cast, not of what a
//! subquery gives.

use std::any::Any;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::{Arc, OnceLock};

use crate::enums::quoted;
use crate::sql_type::SqlType;

/// A domain with all it inherits from the domains it is made of.
#[derive(Clone)]
pub struct DomainType {
    /// OID.
    pub oid: u32,
    /// OID of its array type.
    pub array_oid: u32,
    /// Its schema's name.
    pub schema: String,
    /// Name.
    pub name: String,
    /// The type values have.
    pub base: SqlType,
    /// NOT NULL.
    pub not_null: bool,
    /// DEFAULT, as SQL text.
    pub default: Option<String>,
    /// Constraints: name and condition over VALUE as SQL text; those of the innermost domain first.
    pub checks: Vec<(String, String)>,
    /// What a higher layer has made of the conditions, once the first value was checked.
    pub bound: OnceLock<Arc<dyn Any + Send + Sync>>,
}

impl PartialEq for DomainType {
    fn eq(&self, other: &Self) -> bool {
        self.oid == other.oid
    }
}

impl Eq for DomainType {}

impl Hash for DomainType {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.oid.hash(state);
    }
}

impl fmt::Debug for DomainType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Domain({})", self.oid)
    }
}

impl fmt::Display for DomainType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.schema != crate::PUBLIC {
            write!(f, "{}.", quoted(&self.schema))?;
        }
        f.write_str(&quoted(&self.name))
    }
}
