//! Push-down.
