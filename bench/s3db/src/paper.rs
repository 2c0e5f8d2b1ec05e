//! The paper's own figures ("Building a Database on S3", SIGMOD 2008): Tables 3 and 4.
//!
//! # Limits
//! Figure 3 is given as a drawing only; the values at 15 s are those of Table 4.

use crate::client::Protocol;

/// A row of both tables: seconds, and dollars for 1,000 transactions.
pub struct Row {
    pub average: f64,
    pub longest: f64,
    pub transaction: f64,
    pub background: f64,
    pub total: f64,
}

/// The interval of Tables 3 and 4, seconds.
pub const INTERVAL_SECONDS: f64 = 15.0;

pub fn row(protocol: Protocol) -> Row {
    let (average, longest, transaction, background, total) = match protocol {
        Protocol::Naive => (11.3, 12.1, 0.15, 0.0, 0.15),
        Protocol::Basic => (4.0, 5.9, 0.7, 1.1, 1.8),
        Protocol::Monotonicity => (4.0, 6.8, 0.7, 1.4, 2.1),
        Protocol::Atomicity => (2.8, 4.6, 0.3, 2.6, 2.9),
    };
    Row { average, longest, transaction, background, total }
}
