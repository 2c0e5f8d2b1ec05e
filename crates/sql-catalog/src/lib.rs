//! The catalog: what schemas, tables, indexes, constraints and sequences there are.
//!
//! # Purpose
//! Descriptions of a database's objects ([`model`], [`types`]), where they are kept and changed
//! ([`store`]), what a statement sees of them ([`snapshot`]), the positions of sequences
//! ([`sequence`]), the bytes of rows and keys that follow from a description ([`codec`]), what is
//! there in every database ([`builtin`]), and a session's temporary objects with their rows
//! ([`temp`]).
//!
//! # Invariants
//! - The catalog is ordinary data in the system key space (database 0), changed by ordinary
//!   transactions.
//! - Every transaction reads the catalog stamp with `ReadFor::Constraint` and every change writes a
//!   new one: data definition conflicts with everything that ran against the older catalog.
//! - A [`CatalogSnapshot`] is immutable and named by its stamp, 16 random bytes: the same stamp
//!   always means the same content, committed or not.
//!
//! # On failure
//! Stored bytes that do not decode give XX001 and name what they belong to; nothing panics on them.
//!
//! # Limits
//! A catalog is decoded and kept in memory whole.

pub mod acl;
pub mod build_record;
pub mod builtin;
pub mod by_row;
mod change;
pub mod codec;
pub mod curated;
mod defining;
pub mod derived;
mod kept;
pub mod merging;
pub mod model;
pub mod object;
mod object_bytes;
pub mod placed;
pub mod policy;
mod redefining;
pub mod regional_builds;
pub mod regions;
pub mod rights;
pub mod roles;
pub mod sequence;
pub mod sizes;
pub mod snapshot;
pub mod statistics;
pub mod store;
pub mod stored_settings;
pub mod table_key;
pub mod temp;
pub mod types;
pub mod uses;
mod view;

pub use acl::{Acl, AclItem, Granted, Owner, Rights};
pub use model::{
    BuildState, CheckConstraint, Column, DatabaseRights, DefaultAcl, Deferral, Dropped, ForeignKey,
    ForeignKeyAction, ForeignKeyMatch, Generated, Index, IndexBuild, IndexColumn, IndexExpression,
    Membership, Role, Schema, Sequence, Table, TableKind,
};
pub use rights::{Actor, Guarded};
pub use sequence::SequenceSession;
pub use snapshot::{CatalogSnapshot, Relation, Stamp};
pub use store::{CatalogCache, DEFAULT_DATABASE_ID};
pub use stored_settings::StoredSettings;
pub use table_key::TableKey;
pub use types::{Composite, Domain, TypeKind, UserType};
pub use view::{CheckOption, View};

pub use telesto_sql_types::PUBLIC;

/// Name of the default database.
pub const DEFAULT_DATABASE: &str = "telesto";
/// OID of the database.
pub const DATABASE_OID: u32 = 5;
/// OID of the schema `pg_catalog`.
pub const PG_CATALOG_OID: u32 = 11;
/// OID of the schema `public`.
pub const PUBLIC_OID: u32 = 2200;
/// OID of the schema `information_schema`.
pub const INFORMATION_SCHEMA_OID: u32 = 13_000;
/// First OID given to users' objects.
pub const FIRST_USER_OID: u32 = 16_384;
