//! The customer transaction of the paper's §6.1: one customer is read, six products are searched
//! for, three of them are ordered.
//!
//! # Invariants
//! - Three products are updated (what was sold of each) and three orders inserted: six log records.
//! - A record begins with the number of the purchase that wrote it (0: nobody since loading) and a
//!   count, so that every reader can tell whose value it sees.
//!
//! # Limits
//! Products and customers are drawn uniformly, as in the paper; of TPC-W's tables there are these
//! three.

use std::fmt;

use bytes::{BufMut as _, Bytes, BytesMut};
use serde::{Deserialize, Serialize};
use telesto_common::Env;

/// Key of a record inside its table.
pub type Key = u128;

/// The tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Table {
    Customers,
    Products,
    Orders,
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Customers => "customers",
            Self::Products => "products",
            Self::Orders => "orders",
        })
    }
}

/// How large the shop is, records and bytes of a record.
#[derive(Clone, Copy, Debug)]
pub struct Shop {
    pub customers: u64,
    pub products: u64,
    /// Orders there before the first purchase.
    pub orders: u64,
    pub customer_bytes: usize,
    pub product_bytes: usize,
    pub order_bytes: usize,
}

/// Products looked at in a purchase.
pub const LOOKED_AT: usize = 6;
/// Products ordered in it.
pub const ORDERED: usize = 3;

/// One customer transaction.
#[derive(Clone, Debug)]
pub struct Purchase {
    /// Its number, unique and not 0.
    pub number: u64,
    pub customer: Key,
    /// The first [`ORDERED`] are bought.
    pub products: [Key; LOOKED_AT],
    pub orders: [Key; ORDERED],
}

impl Purchase {
    pub fn bought(&self) -> &[Key] {
        &self.products[..ORDERED]
    }
}

/// A record: who wrote it, a count, and filling.
pub fn record(writer: u64, count: u64, bytes: usize) -> Bytes {
    let mut record = BytesMut::with_capacity(bytes.max(16));
    record.put_u64(writer);
    record.put_u64(count);
    // Filling that does not compress, so that bytes moved are bytes paid for.
    let mut state = writer ^ 0x9e37_79b9_7f4a_7c15;
    while record.len() < bytes {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        record.put_u8((state >> 56) as u8);
    }
    record.freeze()
}

fn number_at(record: &[u8], at: usize) -> u64 {
    record.get(at..at + 8).and_then(|eight| eight.try_into().ok()).map_or(0, u64::from_be_bytes)
}

/// The purchase that wrote a record.
pub fn writer(record: &[u8]) -> u64 {
    number_at(record, 0)
}

/// A record's count.
pub fn count(record: &[u8]) -> u64 {
    number_at(record, 8)
}

impl Shop {
    /// Everything there is before the first purchase, in order of keys.
    pub fn records(&self, table: Table) -> impl Iterator<Item = (Key, Bytes)> + use<> {
        let (many, bytes) = match table {
            Table::Customers => (self.customers, self.customer_bytes),
            Table::Products => (self.products, self.product_bytes),
            Table::Orders => (self.orders, self.order_bytes),
        };
        // Orders have random keys, as uuids are: those from before are spread evenly.
        let step = if table == Table::Orders { u128::MAX / u128::from(many.max(1)) } else { 1 };
        (0..many).map(move |at| (u128::from(at) * step + 1, record(0, 0, bytes)))
    }

    /// Draws purchase `number`.
    pub fn purchase(&self, env: &Env, number: u64) -> Purchase {
        let draw = |below: u64| u128::from(env.random.next_u64() % below.max(1)) + 1;
        let mut products = [0; LOOKED_AT];
        for at in 0..LOOKED_AT {
            products[at] = loop {
                let product = draw(self.products);
                if !products.contains(&product) {
                    break product;
                }
            };
        }
        let orders = [env.random_u128(), env.random_u128(), env.random_u128()];
        Purchase { number, customer: draw(self.customers), products, orders }
    }
}
