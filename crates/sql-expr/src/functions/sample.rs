//! Which rows TABLESAMPLE takes.
//!
//! # Invariants
//! Each row is taken by itself, with the probability asked for. With REPEATABLE a row is taken or
//! not by its values and the seed alone: as long as the table does not change, the same rows are.
//!
//! # On failure
//! 2202H for a percentage outside of 0 to 100, or NULL; 2202G for a seed that is NULL.
//!
//! # Limits
//! SYSTEM takes rows as BERNOULLI does: there are no pages. With REPEATABLE rows that are equal in
//! all columns are taken together.

use crate::context::Call;
use crate::fault;
use crate::registry::{Function, function};
use crate::ty::Tag::{Bool, Float8, Text};
use telesto_sql_types::Datum;
use telesto_sql_types::error::Result;

/// Whether a row is taken, of a percentage: drawn anew each time.
pub const SAMPLED: &str = "tablesample#";
/// Whether a row is taken, of a percentage, a seed and the row's text.
pub const SAMPLED_AGAIN: &str = "tablesample#repeatable";

/// The functions of this module.
pub const TABLE: &[Function] = &[
    function(SAMPLED, &[Float8], Bool, drawn).lax().volatile(),
    function(SAMPLED_AGAIN, &[Float8, Float8, Text], Bool, repeated).lax(),
];

fn share(percent: &Datum) -> Result<f64> {
    match percent {
        Datum::Float8(percent) if (0.0..=100.0).contains(percent) => Ok(percent / 100.0),
        Datum::Null => Err(fault::error("2202H", "TABLESAMPLE parameter cannot be null")),
        _ => Err(fault::error("2202H", "sample percentage must be between 0 and 100")),
    }
}

fn drawn(a: &[Datum], call: &Call<'_>) -> Result<Datum> {
    let share = share(&a[0])?;
    Ok(Datum::Bool(call.context.execution()?.random_f64() < share))
}

fn repeated(a: &[Datum], _: &Call<'_>) -> Result<Datum> {
    let share = share(&a[0])?;
    let (Datum::Float8(seed), Datum::Text(row)) = (&a[1], &a[2]) else {
        return Err(fault::error("2202G", "TABLESAMPLE REPEATABLE parameter cannot be null"));
    };
    // FNV-1a, then the finish of SplitMix64: the last bits of a row's text reach all bits of the
    // draw.
    let mut state = 0xcbf2_9ce4_8422_2325 ^ seed.to_bits();
    for byte in row.bytes() {
        state = (state ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    }
    state = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    state = (state ^ (state >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    state ^= state >> 31;
    // 53 bits, as many as a double holds.
    let draw = (state >> 11) as f64 / (1_u64 << 53) as f64;
    Ok(Datum::Bool(draw < share))
}
