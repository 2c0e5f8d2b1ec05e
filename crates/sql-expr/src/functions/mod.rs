//! The functions and operators, by area. A new one is a line in the table of its module; what
//! PostgreSQL has not is in `system`, `costs` and `curated`.

pub mod advisory;
pub mod arrays;
mod bit_strings;
pub mod bits;
mod collation;
pub mod costs;
pub mod curated;
pub mod enums;
mod guards;
pub mod hash;
pub mod json_paths;
pub mod jsons;
pub mod math;
mod more;
pub mod network;
pub mod ordered;
pub mod populate;
mod ranges;
pub mod regexps;
pub mod rows;
pub mod sample;
pub mod spread;
pub mod system;
pub mod text;
pub mod time;

use super::registry::Function;

/// All tables.
pub const TABLES: &[&[Function]] = &[
    math::TABLE,
    math::FLOATS,
    more::TABLE,
    network::TABLE,
    text::TABLE,
    time::TABLE,
    time::OPERATORS,
    json_paths::TABLE,
    jsons::TABLE,
    populate::TABLE,
    arrays::TABLE,
    advisory::TABLE,
    enums::TABLE,
    bit_strings::TABLE,
    collation::TABLE,
    bits::TABLE,
    ordered::TABLE,
    ranges::TABLE,
    ranges::OPERATORS,
    regexps::TABLE,
    rows::TABLE,
    sample::TABLE,
    spread::TABLE,
    system::TABLE,
    costs::TABLE,
    curated::TABLE,
];
