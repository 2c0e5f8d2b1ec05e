//! Deterministic simulation of several processes on one bucket.
