//! What PostgreSQL writes and the SQL parser does not know, written in words and forms that it
//! does.
//!
//! # Parts
//! Before parsing, over tokens: [`insert_source`], [`spelling`], [`copy_words`],
//! [`quantified_comparison`], [`subscript_assignment`], [`set_columns`], [`row_star`],
//! [`keywords`], [`create_as_execute`], [`variadic`], [`calls_in_from`], [`rows_from`],
//! [`using_alias`], [`group_distinct`], [`search_cycle`], `national`. After parsing, over the tree:
//! [`precedence`], [`row_star`], [`quantified_comparison`], [`constructs`], [`records`],
//! [`expand_array`]. [`crate::parse`] states their order.
//!
//! # Invariants
//! Forms that have no other of the same meaning travel as nodes that the parser makes of no text of
//! PostgreSQL's ([`rows_from`], [`using_alias`], [`group_distinct`], [`search_cycle`]): texts that
//! the catalog keeps have them, and are read by [`crate::parse::parse_kept`]. What is rewritten
//! means the same; what a client writes in the form that a pass makes is refused or told apart.
//!
//! # On failure
//! 42601 and what each pass says.

pub mod calls_in_from;
pub mod collation;
pub mod constructs;
pub mod copy_words;
pub mod create_as_execute;
pub mod exclusion;
pub mod expand_array;
pub mod group_distinct;
pub mod insert_source;
pub mod keywords;
pub mod national;
mod nested_joins;
pub mod precedence;
pub mod quantified_comparison;
pub mod records;
pub mod row_star;
pub mod rows_from;
pub mod search_cycle;
pub mod set_columns;
pub mod spelling;
pub mod subscript_assignment;
pub mod using_alias;
pub mod variadic;
