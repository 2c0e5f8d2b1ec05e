//! Checkers and workloads shared by tests and the simulation.
