//! Which keys go to other regions, as transactions ask when they commit.
//!
//! # Invariants
//! By the rules as they are stored, which are those of the streams between regions; not by a
//! catalog.
//!
//! # On failure
//! Rules that do not decode are told with the reason.
//!
//! # Limits
//! Those of [`telesto_geo::placement`].

use bytes::Bytes;
use telesto_geo::placement::{Placement as _, Rules, rules_row};
use telesto_txn::{Placed, Receivers};

/// Bytes of a key that name its database and table; the index is behind them
/// ([`telesto_common::key::KeyWriter::prefix`]).
const TABLE_BYTES: usize = 8;
/// The index that rows are in.
const FIRST_INDEX: u32 = 0;

/// By the stored rules.
#[derive(Clone, Copy, Debug)]
pub struct StoredRules;

#[derive(Debug)]
struct ByRules(Rules);

impl Placed for StoredRules {
    fn rules(&self) -> Bytes {
        rules_row()
    }

    fn read(&self, rules: Bytes) -> std::result::Result<Box<dyn Receivers>, String> {
        Ok(Box::new(ByRules(Rules::decode(rules)?)))
    }
}

impl Receivers for ByRules {
    fn of(&self, key: &[u8]) -> u64 {
        let regions = self.0.regions(key).0;
        match key.get(..TABLE_BYTES) {
            // Where every region writes a table its rows alone are sent; who gets one makes its
            // index entries.
            Some(table) if regions == 0 => {
                self.0.regions(&[table, &FIRST_INDEX.to_be_bytes()].concat()).0
            }
            _ => regions,
        }
    }
}
