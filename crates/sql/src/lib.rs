//! Catalog, types, planner (key path and DataFusion), DML, DDL, constraints.
