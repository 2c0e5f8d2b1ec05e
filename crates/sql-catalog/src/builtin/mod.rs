//! What is there in every database: system tables, the functions that `pg_proc` lists,
//! pseudo-types; names and numbers.
//!
//! # Invariants
//! OIDs, names and types are PostgreSQL 15's.

pub mod procedures;
pub mod pseudo_types;
pub mod tables;

/// OID of the access method `btree`.
pub const BTREE: u32 = 403;
