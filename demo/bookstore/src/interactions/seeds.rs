//! The seeds' own transactions: seed 000's customer, seed 002's joins and updates.
//!
//! # Limits
//! Seed 000 says that orders are placed for three of six products; here that is one order of three
//! lines.

use rand::Rng as _;
use tokio_postgres::GenericClient;

use super::{Done, Effects, Try, cart::CartLine, user};
use crate::generate::dollars;

/// Products looked for, and ordered.
const LOOKED_FOR: usize = 6;
const ORDERED: usize = 3;

impl<C: GenericClient> Try<'_, C> {
    /// Any customer looks for six products and orders three.
    pub(super) async fn customer_transaction(&mut self) -> Done<Effects> {
        self.customer = self.any_customer();
        let customer = self.customer;
        self.show(&self.statements.customer_name, &[&customer]).await?;
        let mut lines: Vec<CartLine> = Vec::with_capacity(LOOKED_FOR);
        while lines.len() < LOOKED_FOR {
            let item = self.any_item();
            if lines.iter().any(|line| line.item == item) {
                continue;
            }
            let rows = self.show(&self.statements.product, &[&item]).await?;
            let cents = rows.first().map_or(0, |row| row.get::<_, i64>(2).unsigned_abs());
            lines.push(CartLine { item, quantity: self.rng.random_range(1..=3), cents });
        }
        lines.truncate(ORDERED);
        lines.sort_by_key(|line| line.item);
        let placed = self.place(&lines, None).await?;
        Ok(Effects { placed: Some(placed), ..Effects::default() })
    }

    pub(super) async fn join_author(&mut self) -> Done<Effects> {
        let item = self.any_item();
        self.show(&self.statements.join_author, &[&item]).await?;
        Ok(Effects::default())
    }

    pub(super) async fn join_lines(&mut self) -> Done<Effects> {
        let order = self.any_order();
        self.show(&self.statements.join_lines, &[&order]).await?;
        Ok(Effects::default())
    }

    pub(super) async fn join_country(&mut self) -> Done<Effects> {
        let name = user(self.any_customer());
        self.show(&self.statements.join_country, &[&name]).await?;
        Ok(Effects::default())
    }

    pub(super) async fn join_books(&mut self) -> Done<Effects> {
        let order = self.any_order();
        self.show(&self.statements.join_books, &[&order]).await?;
        Ok(Effects::default())
    }

    pub(super) async fn change_price(&mut self) -> Done<Effects> {
        let item = self.any_item();
        let cost = dollars(self.rng.random_range(100..=999_999));
        self.change(&self.statements.set_price, &[&item, &cost]).await?;
        Ok(Effects::default())
    }
}
