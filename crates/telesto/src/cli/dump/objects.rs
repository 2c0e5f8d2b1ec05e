//! What the catalog has of a database, as it is dumped.

/// Schema and name.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Name(pub String, pub String);

impl Name {
    /// Quoted where it must be, with its schema.
    pub fn sql(&self) -> String {
        format!("{}.{}", super::write::ident(&self.0), super::write::ident(&self.1))
    }
}

/// An enum.
#[derive(Debug)]
pub struct Enum {
    pub name: Name,
    pub labels: Vec<String>,
}

/// A composite type.
#[derive(Debug)]
pub struct Composite {
    pub oid: u64,
    pub name: Name,
    /// Names and types.
    pub fields: Vec<(String, String)>,
    /// OIDs of the types of the fields; of arrays those of their elements.
    pub made_of: std::collections::BTreeSet<u64>,
}

/// A domain.
#[derive(Debug)]
pub struct Domain {
    pub name: Name,
    pub base: String,
    pub not_null: bool,
    pub default: Option<String>,
    /// A collation other than the base type's own.
    pub collation: Option<String>,
    /// Names and definitions.
    pub checks: Vec<(String, String)>,
}

/// Whose a sequence is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Owner {
    Nobody,
    /// A serial column: table's OID, column's name.
    Serial(u64, String),
    /// An identity column.
    Identity(u64, String),
}

/// A sequence.
#[derive(Debug)]
pub struct Sequence {
    pub name: Name,
    pub ty: String,
    pub start: String,
    pub increment: String,
    pub min: String,
    pub max: String,
    pub cache: String,
    pub cycle: bool,
    pub owner: Owner,
}

/// A column.
#[derive(Debug)]
pub struct Column {
    pub name: String,
    pub ty: String,
    pub not_null: bool,
    /// Of a default, or of a generated column.
    pub expression: Option<String>,
    pub generated: bool,
    /// `ALWAYS` or `BY DEFAULT`.
    pub identity: Option<&'static str>,
    /// A collation other than the type's own.
    pub collation: Option<String>,
}

/// A table.
#[derive(Debug)]
pub struct Table {
    pub oid: u64,
    pub name: Name,
    pub unlogged: bool,
    /// The key that its rows are sealed with.
    pub key: Option<String>,
    pub columns: Vec<Column>,
    /// Primary keys, unique keys and checks: names and definitions.
    pub constraints: Vec<(String, String)>,
    /// Foreign keys: names, definitions, OID of the referenced table.
    pub foreign_keys: Vec<(String, String, u64)>,
    /// Checks that are not validated.
    pub late_checks: Vec<(String, String)>,
}

/// A view.
#[derive(Debug)]
pub struct View {
    pub oid: u64,
    pub name: Name,
    pub columns: Vec<String>,
    pub query: String,
    /// As `WITH (…)` takes them; empty for none.
    pub options: String,
}
