//! Postgres wire, HTTP, sessions, authentication, metrics.
