//! The system tables: `pg_catalog` and `information_schema`, computed from the catalog.
