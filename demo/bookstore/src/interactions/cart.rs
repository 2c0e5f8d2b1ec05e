//! The shopping cart, and the buy request that names its owner.

use chrono::Days;
use rand::Rng as _;
use tokio_postgres::GenericClient;

use super::{Done, Effects, Try, user};
use crate::generate::{TODAY, dollars, shipping, tax};
use crate::words::{COUNTRIES, digits, one, text};

/// A line of a cart.
pub(super) struct CartLine {
    pub item: i64,
    pub quantity: u64,
    pub cents: u64,
}

impl<C: GenericClient> Try<'_, C> {
    /// A book more, or other numbers; a cart that is empty then gets a book, as TPC-W wants.
    pub(super) async fn shopping_cart(&mut self) -> Done<Effects> {
        let cart = match self.cart {
            None => self.filled_cart().await?,
            Some(cart) => {
                if self.rng.random_bool(0.5) {
                    self.add_any(cart).await?;
                } else {
                    self.other_quantities(cart).await?;
                }
                cart
            }
        };
        let mut lines = self.cart_lines(cart).await?;
        if lines.is_empty() {
            self.add_any(cart).await?;
            lines = self.cart_lines(cart).await?;
        }
        self.set_cart(cart, &lines).await?;
        Ok(Effects { cart: Some(cart), ..Effects::default() })
    }

    /// A new cart with a book in it.
    pub(super) async fn filled_cart(&mut self) -> Done<i64> {
        let row = self.client.query_one(&self.statements.new_cart, &[]).await?;
        let cart = row.get(0);
        self.add_any(cart).await?;
        Ok(cart)
    }

    async fn add_any(&mut self, cart: i64) -> Done {
        let item = self.any_item();
        let quantity = self.rng.random_range(1..=3_i32);
        let row = self.client.query_one(&self.statements.price, &[&item]).await?;
        let price: String = row.get(0);
        self.change(&self.statements.add_line, &[&cart, &item, &quantity, &price]).await?;
        Ok(())
    }

    async fn other_quantities(&mut self, cart: i64) -> Done {
        for line in self.cart_lines(cart).await? {
            match self.rng.random_range(0..=5_i32) {
                0 => self.change(&self.statements.remove_line, &[&cart, &line.item]).await?,
                quantity => {
                    let set = &self.statements.set_quantity;
                    self.change(set, &[&cart, &line.item, &quantity]).await?
                }
            };
        }
        Ok(())
    }

    pub(super) async fn cart_lines(&mut self, cart: i64) -> Done<Vec<CartLine>> {
        let rows = self.show(&self.statements.cart_lines, &[&cart]).await?;
        let lines = rows.iter().map(|row| CartLine {
            item: row.get(0),
            quantity: row.get::<_, i32>(1).unsigned_abs().into(),
            cents: row.get::<_, i64>(2).unsigned_abs(),
        });
        Ok(lines.collect())
    }

    async fn set_cart(&mut self, cart: i64, lines: &[CartLine]) -> Done {
        let sub_total = lines.iter().map(|line| line.quantity * line.cents).sum();
        let ship = shipping(lines.iter().map(|line| line.quantity).sum());
        let sums =
            [sub_total, tax(sub_total), ship, sub_total + tax(sub_total) + ship].map(dollars);
        let [sub_total, tax, ship, total] = &sums;
        self.change(&self.statements.set_cart, &[&cart, sub_total, tax, ship, total]).await?;
        Ok(())
    }

    /// One in five is a new customer; the others log in.
    pub(super) async fn buy_request(&mut self) -> Done<Effects> {
        let customer = if self.rng.random_bool(0.2) {
            self.new_customer().await?
        } else {
            let name = user(self.customer);
            self.show(&self.statements.login, &[&name]).await?;
            self.change(&self.statements.seen, &[&self.customer]).await?;
            self.customer
        };
        let cart = match self.cart {
            Some(cart) => cart,
            None => self.filled_cart().await?,
        };
        self.change(&self.statements.own_cart, &[&cart, &customer]).await?;
        self.cart_lines(cart).await?;
        Ok(Effects { cart: Some(cart), customer: Some(customer), placed: None })
    }

    async fn new_customer(&mut self) -> Done<i64> {
        let address = self.enter_address().await?;
        let row = self.client.query_one(&self.statements.next_customer, &[]).await?;
        let customer: i64 = row.get(0);
        let name = user(customer);
        let rng = &mut self.rng;
        let (first, last) = (text(rng, 8, 15), text(rng, 8, 15));
        let (phone, email) = (digits(rng, 12), format!("{name}@new.com"));
        let discount = format!("0.{:02}", rng.random_range(0..=50));
        let born = (TODAY - Days::new(rng.random_range(6_000..=36_000))).to_string();
        let data = text(rng, 100, 500);
        let password = name.to_lowercase();
        let new = &self.statements.new_customer;
        #[rustfmt::skip]
        self.change(new, &[&customer, &name, &password, &first, &last, &address, &phone, &email, &discount, &born, &data])
            .await?;
        Ok(customer)
    }

    /// The address that was typed in: the one that is there already, or a new one.
    pub(super) async fn enter_address(&mut self) -> Done<i64> {
        let country = one(&mut self.rng, &COUNTRIES);
        let row = self.client.query_one(&self.statements.country, &[&country]).await?;
        let country: i64 = row.get(0);
        let rng = &mut self.rng;
        let street = (text(rng, 15, 40), text(rng, 15, 40));
        let (city, state, zip) = (text(rng, 4, 30), text(rng, 2, 20), digits(rng, 7));
        let parts: super::Parameters<'_> = &[&street.0, &street.1, &city, &state, &zip, &country];
        if let Some(row) = self.client.query_opt(&self.statements.find_address, parts).await? {
            return Ok(row.get(0));
        }
        Ok(self.client.query_one(&self.statements.new_address, parts).await?.get(0))
    }

    /// Seed 002's update with indexes.
    pub(super) async fn fresh_cart(&mut self) -> Done<Effects> {
        self.filled_cart().await?;
        Ok(Effects::default())
    }
}
