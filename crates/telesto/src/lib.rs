//! The telesto binary and the embedded facade.
