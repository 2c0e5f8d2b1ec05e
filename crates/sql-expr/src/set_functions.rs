//! The names of functions that return sets.
//!
//! # Limits
//! Names only: what they take and give is known to the executor that runs them.

/// The names of the set-returning functions.
pub(crate) const NAMES: &[&str] = &[
    "generate_series",
    "unnest",
    "generate_subscripts",
    "regexp_split_to_table",
    "regexp_matches",
    "string_to_table",
    "json_array_elements",
    "jsonb_array_elements",
    "json_array_elements_text",
    "jsonb_array_elements_text",
    "jsonb_path_query",
    "json_object_keys",
    "jsonb_object_keys",
    "json_each",
    "jsonb_each",
    "json_populate_recordset",
    "jsonb_populate_recordset",
    "json_each_text",
    "jsonb_each_text",
    "pg_partition_ancestors",
    "pg_options_to_table",
    "pg_listening_channels",
];

/// Whether a function of this name returns a set.
#[must_use]
pub fn is_set_function(name: &str) -> bool {
    NAMES.contains(&name)
}
