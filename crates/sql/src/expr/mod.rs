//! Bound scalar expressions and PostgreSQL's functions and operators.
