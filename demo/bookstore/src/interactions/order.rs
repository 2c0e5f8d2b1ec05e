//! Buying: the order, its lines, stock and payment, in one transaction.
//!
//! # Invariants
//! Books are taken from stock in the order of their numbers, so that two buyers never wait for each
//! other crosswise.

use rand::Rng as _;
use tokio_postgres::GenericClient;

use super::{Done, Effects, Placed, Try, cart::CartLine};
use crate::generate::{dollars, shipping, tax};
use crate::words::{CARDS, SHIP_TYPES, digits, one, text};

impl<C: GenericClient> Try<'_, C> {
    /// Buys what is in the cart; one in twenty has it sent elsewhere.
    pub(super) async fn buy_confirm(&mut self) -> Done<Effects> {
        let cart = match self.cart {
            Some(cart) => cart,
            None => self.filled_cart().await?,
        };
        let mut lines = self.cart_lines(cart).await?;
        if lines.is_empty() {
            // Bought already, and nothing put in since.
            let refilled = self.filled_cart().await?;
            lines = self.cart_lines(refilled).await?;
            let placed = self.place(&lines, Some(refilled)).await?;
            return Ok(Effects { cart: Some(refilled), customer: None, placed: Some(placed) });
        }
        let placed = self.place(&lines, Some(cart)).await?;
        Ok(Effects { cart: Some(cart), customer: None, placed: Some(placed) })
    }

    /// Places an order of `lines`, which are sorted by item.
    pub(super) async fn place(&mut self, lines: &[CartLine], cart: Option<i64>) -> Done<Placed> {
        let row = self.client.query_one(&self.statements.buyer, &[&self.customer]).await?;
        let name = format!("{} {}", row.get::<_, &str>(0), row.get::<_, &str>(1));
        let discount = row.get::<_, i64>(2).unsigned_abs();
        let (address, country): (i64, i64) = (row.get(3), row.get(4));
        let elsewhere = self.rng.random_bool(0.05);
        let ship_to = if elsewhere { self.enter_address().await? } else { address };
        let books = lines.iter().map(|line| line.quantity).sum();
        let full: u64 = lines.iter().map(|line| line.quantity * line.cents).sum();
        let sub_total = (full * (100 - discount) + 50) / 100;
        let tax = tax(sub_total);
        let total = sub_total + tax + shipping(books);
        let ship_type = one(&mut self.rng, &SHIP_TYPES);
        let days = self.rng.random_range(1..=7_i32);
        let sums = [sub_total, tax, total].map(dollars);
        let new = &self.statements.new_order;
        #[rustfmt::skip]
        let row = self.client
            .query_one(new, &[&self.customer, &sums[0], &sums[1], &sums[2], &ship_type, &days, &address, &ship_to])
            .await?;
        let order: i64 = row.get(0);
        let off = format!("0.{discount:02}");
        for (at, line) in (1_i32..).zip(lines) {
            let quantity = i32::try_from(line.quantity).unwrap_or(i32::MAX);
            let comment = text(&mut self.rng, 20, 100);
            let new = &self.statements.new_line;
            self.change(new, &[&order, &at, &line.item, &quantity, &off, &comment]).await?;
            self.change(&self.statements.take_stock, &[&line.item, &quantity]).await?;
        }
        let card = one(&mut self.rng, &CARDS);
        let number = digits(&mut self.rng, 16);
        let expires = self.rng.random_range(10..=730_i32);
        let approval = text(&mut self.rng, 15, 15);
        let new = &self.statements.new_payment;
        #[rustfmt::skip]
        self.change(new, &[&order, &card, &number, &name, &expires, &approval, &sums[2], &country])
            .await?;
        if let Some(cart) = cart {
            self.change(&self.statements.empty_cart, &[&cart]).await?;
        }
        Ok(Placed { order, total, lines: lines.len() as u64, books })
    }
}
