//! The functions and operators, by area. A new one is a line in the table of its module.

pub mod arrays;
pub mod hash;
pub mod jsons;
pub mod math;
pub mod system;
pub mod text;
pub mod time;

use super::registry::Function;

/// All tables.
pub const TABLES: &[&[Function]] = &[
    crate::system::FUNCTIONS,
    math::TABLE,
    math::FLOATS,
    text::TABLE,
    time::TABLE,
    time::OPERATORS,
    jsons::TABLE,
    arrays::TABLE,
    system::TABLE,
];
