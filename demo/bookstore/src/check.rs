//! Whether the shop adds up after a run, and shows what it acknowledged.
//!
//! # Invariants checked
//! 1. Every acknowledged order is there, with the total, lines and books its buyer was told.
//! 2. An order's total is subtotal + tax + shipping; it has one payment of that total, and its
//!    lines are numbered from 1.
//! 3. A book's stock is what it was, less what was sold, plus a multiple of 21: an update lost or
//!    done twice shows.
//! 4. A cart that was bought is empty: no line without its cart.
//! 5. Indexes and tables agree: the orders counted through the customers' index are all orders.
//!
//! # Limits
//! Reads whole tables. Only what browsers of one run were told can be checked one by one (1).

use std::collections::BTreeMap;

use tokio_postgres::Client;

use crate::error::{Error, Result};
use crate::generate::Scale;
use crate::interactions::Placed;

/// Orders asked for at once.
const BATCH: usize = 1_000;

/// Questions whose answer is 0 in a shop that adds up.
const ZEROES: [(&str, &str); 6] = [
    (
        "orders whose total is not subtotal, tax and shipping",
        "SELECT count(*) FROM orders o JOIN (SELECT ol_o_id, sum(ol_qty) AS books FROM order_line GROUP BY ol_o_id) l \
         ON l.ol_o_id = o.o_id WHERE o.o_total <> o.o_sub_total + o.o_tax + 3 + l.books",
    ),
    (
        "orders whose tax is not 8.25 %",
        "SELECT count(*) FROM orders WHERE o_tax <> round(o_sub_total * 0.0825, 2)",
    ),
    (
        "orders without a payment of their total",
        "SELECT count(*) FROM orders LEFT JOIN cc_xacts ON cx_o_id = o_id WHERE cx_o_id IS NULL OR cx_xact_amt <> o_total",
    ),
    (
        "orders without lines, or with lines not numbered from 1",
        "SELECT count(*) FROM orders LEFT JOIN (SELECT ol_o_id, count(*) AS lines, max(ol_id) AS last, min(ol_id) AS first FROM order_line GROUP BY ol_o_id) l \
         ON l.ol_o_id = o_id WHERE l.lines IS NULL OR l.lines <> l.last OR l.first <> 1",
    ),
    (
        "lines of carts that are not there",
        "SELECT count(*) FROM shopping_cart_line LEFT JOIN shopping_cart ON sc_id = scl_sc_id WHERE sc_id IS NULL",
    ),
    (
        "orders that the index of customers does not show",
        "SELECT (SELECT count(*) FROM orders) - (SELECT count(*) FROM customer JOIN orders ON o_c_id = c_id)",
    ),
];

/// What was checked.
#[derive(Clone, Copy, Debug, Default)]
pub struct Checked {
    /// Orders in the shop.
    pub orders: u64,
    /// Acknowledged ones, found.
    pub acknowledged: u64,
    /// Books whose stock adds up.
    pub items: u64,
}

/// Checks the shop; `placed` are the orders that were acknowledged.
///
/// # Errors
/// [`Error::Lost`] says what does not add up.
pub async fn check(client: &Client, scale: Scale, placed: &[Placed]) -> Result<Checked> {
    let failed = |error| Error::database("checking the shop", &error);
    let mut checked = Checked::default();
    for (what, question) in ZEROES {
        let wrong: i64 = client.query_one(question, &[]).await.map_err(failed)?.get(0);
        if wrong != 0 {
            return Err(Error::Lost(format!("{wrong} {what}")));
        }
    }
    let question = "SELECT o_id, (o_total * 100)::bigint, count(*), sum(ol_qty) FROM orders JOIN order_line ON ol_o_id = o_id \
        WHERE o_id = ANY($1) GROUP BY o_id, o_total";
    for batch in placed.chunks(BATCH) {
        let ids: Vec<i64> = batch.iter().map(|placed| placed.order).collect();
        let rows = client.query(question, &[&ids]).await.map_err(failed)?;
        let there: BTreeMap<i64, Placed> = rows
            .iter()
            .map(|row| {
                let order: i64 = row.get(0);
                let [total, lines, books] =
                    [1, 2, 3].map(|at| row.get::<_, i64>(at).unsigned_abs());
                (order, Placed { order, total, lines, books })
            })
            .collect();
        for told in batch {
            if there.get(&told.order) != Some(told) {
                return Err(Error::Lost(format!(
                    "its buyer was told {told:?}, the tables show {:?}",
                    there.get(&told.order)
                )));
            }
        }
        checked.acknowledged += batch.len() as u64;
    }
    checked.items = stock(client, scale).await?;
    let count = client.query_one("SELECT count(*) FROM orders", &[]).await.map_err(failed)?;
    checked.orders = count.get::<_, i64>(0).unsigned_abs();
    if checked.orders < scale.orders() + checked.acknowledged {
        return Err(Error::Lost(format!(
            "{} orders, of {} loaded and {} acknowledged",
            checked.orders,
            scale.orders(),
            checked.acknowledged
        )));
    }
    Ok(checked)
}

async fn stock(client: &Client, scale: Scale) -> Result<u64> {
    let question = "SELECT i_id, i_stock, coalesce(sold, 0)::bigint FROM item LEFT JOIN \
        (SELECT ol_i_id, sum(ol_qty) AS sold FROM order_line WHERE ol_o_id > $1 GROUP BY ol_i_id) s ON s.ol_i_id = i_id";
    let loaded = scale.orders().cast_signed();
    let failed = |error| Error::database("checking the stock", &error);
    let rows = client.query(question, &[&loaded]).await.map_err(failed)?;
    if rows.len() as u64 != scale.items {
        return Err(Error::Lost(format!("{} items of {}", rows.len(), scale.items)));
    }
    for row in &rows {
        let (item, stock, sold): (i64, i32, i64) = (row.get(0), row.get(1), row.get(2));
        let first = i64::from(scale.stock(item.unsigned_abs()));
        let filled = i64::from(stock) - first + sold;
        if filled < 0 || filled % 21 != 0 {
            return Err(Error::Lost(format!(
                "item {item} has {stock} in stock, had {first} and sold {sold}"
            )));
        }
    }
    Ok(rows.len() as u64)
}
