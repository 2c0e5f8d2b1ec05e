//! The shop's rows, by TPC-W's cardinalities.
//!
//! # Invariants
//! - A row is a function of (seed, table, number): any batch can be made again by itself, on any
//!   machine.
//! - Order, order lines and payment of one order are made from the same draw, and add up: total =
//!   subtotal + tax (8.25 %) + 3 dollars + 1 dollar for each book.
//!
//! # Limits
//! "Today" is [`TODAY`], so that the data do not depend on the day they are made. The generator of
//! random numbers is that of the pinned `rand`: another version may give other data, and then
//! `FORMAT` changes.

use std::fmt::Write as _;

use chrono::{Days, NaiveDate};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng as _};

use crate::words::{
    BACKINGS, CARDS, COUNTRIES, CURRENCIES, SHIP_TYPES, STATUSES, SUBJECTS, digits, one, push_text,
    syllables, text,
};

/// Changes when the same scale and seed give other rows.
pub const FORMAT: u64 = 1;
/// The day the shop opens: 2026-01-01.
pub const TODAY: NaiveDate = match NaiveDate::from_ymd_opt(2026, 1, 1) {
    Some(day) => day,
    None => NaiveDate::MIN,
};

/// How large a shop, and which one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Scale {
    /// Customers (TPC-W: 2,880 for each emulated browser).
    pub customers: u64,
    /// Items (TPC-W: 1,000 to 10,000,000 in powers of ten).
    pub items: u64,
    /// Which of all shops of this size.
    pub seed: u64,
}

/// A table that is loaded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Table {
    /// Countries.
    Country,
    /// Authors.
    Author,
    /// Books.
    Item,
    /// Addresses.
    Address,
    /// Customers.
    Customer,
    /// Orders.
    Orders,
    /// Their lines; numbered by order.
    OrderLine,
    /// Their payments; numbered by order.
    Payment,
}

impl Table {
    /// All, parents first.
    pub const ALL: [Self; 8] = [
        Self::Country,
        Self::Author,
        Self::Item,
        Self::Address,
        Self::Customer,
        Self::Orders,
        Self::OrderLine,
        Self::Payment,
    ];

    /// Its name in SQL.
    pub fn name(self) -> &'static str {
        match self {
            Self::Country => "country",
            Self::Author => "author",
            Self::Item => "item",
            Self::Address => "address",
            Self::Customer => "customer",
            Self::Orders => "orders",
            Self::OrderLine => "order_line",
            Self::Payment => "cc_xacts",
        }
    }
}

/// One line of an order.
#[derive(Clone, Copy, Debug)]
pub struct Line {
    /// The book.
    pub item: u64,
    /// How many.
    pub quantity: u64,
    /// Hundredths off.
    pub discount: u64,
}

/// One order with what belongs to it.
#[derive(Clone, Debug)]
pub struct Order {
    /// Who bought.
    pub customer: u64,
    /// Days before [`TODAY`].
    pub days_ago: u64,
    /// Cents, without tax.
    pub sub_total: u64,
    /// Cents.
    pub tax: u64,
    /// Cents.
    pub total: u64,
    /// The lines.
    pub lines: Vec<Line>,
}

/// TPC-W's tax, in cents of cents: 8.25 %, rounded to the nearest cent.
pub fn tax(cents: u64) -> u64 {
    (cents * 825 + 5_000) / 10_000
}

/// TPC-W's shipping, in cents: 3 dollars, and 1 for each book.
pub fn shipping(books: u64) -> u64 {
    300 + 100 * books
}

impl Scale {
    /// How many rows a table has; order lines and payments are counted by order.
    pub fn rows(&self, table: Table) -> u64 {
        match table {
            Table::Country => COUNTRIES.len() as u64,
            Table::Author => self.authors(),
            Table::Item => self.items,
            Table::Address => 2 * self.customers,
            Table::Customer => self.customers,
            Table::Orders | Table::OrderLine | Table::Payment => self.orders(),
        }
    }

    /// Authors: one for four items.
    pub fn authors(&self) -> u64 {
        (self.items / 4).max(1)
    }

    /// Orders: nine for ten customers.
    pub fn orders(&self) -> u64 {
        (self.customers * 9 / 10).max(1)
    }

    /// How many different search strings the titles have.
    pub fn title_keys(&self) -> u64 {
        (self.items / 5).max(1)
    }

    /// How many different search strings the authors' last names have.
    pub fn author_keys(&self) -> u64 {
        (self.items / 10).max(1)
    }

    fn rng(&self, table: Table, number: u64) -> SmallRng {
        // The constants are those of SplitMix64: neighbouring numbers get unrelated generators.
        let mixed = (self.seed ^ ((table as u64 + 1) << 56))
            .wrapping_add(number.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        SmallRng::seed_from_u64(mixed)
    }

    /// Appends row `number` (from 1; all lines of an order) in COPY's text format.
    pub fn push_rows(&self, table: Table, number: u64, out: &mut String) {
        match table {
            Table::Country => push_country(number, out),
            Table::Author => self.push_author(number, out),
            Table::Item => self.push_item(number, out),
            Table::Address => self.push_address(number, out),
            Table::Customer => self.push_customer(number, out),
            Table::Orders => self.push_order(number, out),
            Table::OrderLine => self.push_order_lines(number, out),
            Table::Payment => self.push_payment(number, out),
        }
    }

    fn push_author(&self, number: u64, out: &mut String) {
        let rng = &mut self.rng(Table::Author, number);
        let first = text(rng, 3, 20);
        let mut last = syllables(number % self.author_keys(), 7);
        push_text(&mut last, rng, 1, 6);
        let middle = text(rng, 1, 20);
        let born = before(NaiveDate::from_ymd_opt(1990, 1, 1).unwrap_or(TODAY), rng, 70_000);
        let _ = write!(out, "{number}\t{first}\t{last}\t{middle}\t{born}\t");
        push_text(out, rng, 125, 500);
        out.push('\n');
    }

    /// Books in stock when the shop opens.
    pub fn stock(&self, item: u64) -> i32 {
        self.rng(Table::Item, item).random_range(10..=30)
    }

    fn push_item(&self, number: u64, out: &mut String) {
        let rng = &mut self.rng(Table::Item, number);
        let stock: i32 = rng.random_range(10..=30);
        let mut title = syllables(number % self.title_keys(), 7);
        push_text(&mut title, rng, 4, 40);
        let authors = self.authors();
        let author = if number <= authors { number } else { rng.random_range(1..=authors) };
        let published = before(TODAY, rng, 35_000);
        let publisher = text(rng, 14, 60);
        let subject = one(rng, &SUBJECTS);
        let _ = write!(out, "{number}\t{title}\t{author}\t{published}\t{publisher}\t{subject}\t");
        push_text(out, rng, 100, 500);
        for _ in 0..5 {
            let _ = write!(out, "\t{}", rng.random_range(1..=self.items));
        }
        let image = number % 100;
        let retail: u64 = rng.random_range(100..=999_999);
        let cost = (retail - retail * rng.random_range(0..=50) / 100).max(1);
        let available = published + Days::new(rng.random_range(1..=30));
        let _ = writeln!(
            out,
            "\timg{image}/thumb_{number}.gif\timg{image}/image_{number}.gif\t{}\t{}\t{available}\t{stock}\t{}\t{}\t{}\t{}.{:02}x{}.{:02}x{}.{:02}",
            dollars(retail),
            dollars(cost),
            digits(rng, 13),
            rng.random_range(20..=9_999),
            one(rng, &BACKINGS),
            rng.random_range(1..=99),
            rng.random_range(0..=99),
            rng.random_range(1..=99),
            rng.random_range(0..=99),
            rng.random_range(1..=99),
            rng.random_range(0..=99),
        );
    }

    fn push_address(&self, number: u64, out: &mut String) {
        let rng = &mut self.rng(Table::Address, number);
        let _ = write!(out, "{number}\t");
        for (least, most) in [(15, 40), (15, 40), (4, 30), (2, 20)] {
            push_text(out, rng, least, most);
            out.push('\t');
        }
        let zip = rng.random_range(5..=10);
        let country = rng.random_range(1..=COUNTRIES.len());
        let _ = writeln!(out, "{}\t{country}", digits(rng, zip));
    }

    fn push_customer(&self, number: u64, out: &mut String) {
        let rng = &mut self.rng(Table::Customer, number);
        let name = syllables(number, 0);
        let (first, last) = (text(rng, 8, 15), text(rng, 8, 15));
        let address = rng.random_range(1..=2 * self.customers);
        let phone_digits = rng.random_range(9..=16);
        let phone = digits(rng, phone_digits);
        let host = text(rng, 2, 9).replace(' ', "x");
        let since = before(TODAY, rng, 730);
        let seen = (since + Days::new(rng.random_range(0..=60))).min(TODAY);
        let discount = rng.random_range(0..=50);
        let paid = dollars(rng.random_range(0..=99_999));
        let born = before(TODAY, rng, 53_000);
        let lower = name.to_lowercase();
        let _ = write!(
            out,
            "{number}\t{name}\t{lower}\t{first}\t{last}\t{address}\t{phone}\t{name}@{host}.com\t{since}\t{seen}\t{TODAY} 00:00:00\t{TODAY} 02:00:00\t0.{discount:02}\t0.00\t{paid}\t{born}\t"
        );
        push_text(out, rng, 100, 500);
        out.push('\n');
    }

    /// Order `number` as it is drawn.
    pub fn order(&self, number: u64) -> Order {
        let rng = &mut self.rng(Table::Orders, number);
        let lines = (0..rng.random_range(1..=5))
            .map(|_| Line {
                item: rng.random_range(1..=self.items),
                quantity: rng.random_range(1..=300),
                discount: rng.random_range(0..=30),
            })
            .collect::<Vec<_>>();
        let sub_total: u64 = rng.random_range(1_000..=999_999);
        let tax = tax(sub_total);
        let books = lines.iter().map(|line| line.quantity).sum();
        Order {
            customer: rng.random_range(1..=self.customers),
            days_ago: rng.random_range(1..=60),
            sub_total,
            tax,
            total: sub_total + tax + shipping(books),
            lines,
        }
    }

    fn push_order(&self, number: u64, out: &mut String) {
        let order = self.order(number);
        // The draws that only this table needs have a generator of their own.
        let rng = &mut self.rng(Table::Orders, number | 1 << 62);
        let date = TODAY - Days::new(order.days_ago);
        let shipped = date + Days::new(rng.random_range(0..=7));
        let (bill, ship) =
            (rng.random_range(1..=2 * self.customers), rng.random_range(1..=2 * self.customers));
        let (hour, minute) = (rng.random_range(0..24), rng.random_range(0..60));
        let _ = writeln!(
            out,
            "{number}\t{}\t{date} {hour:02}:{minute:02}:00\t{}\t{}\t{}\t{}\t{shipped} 00:00:00\t{bill}\t{ship}\t{}",
            order.customer,
            dollars(order.sub_total),
            dollars(order.tax),
            dollars(order.total),
            one(rng, &SHIP_TYPES),
            one(rng, &STATUSES),
        );
    }

    fn push_order_lines(&self, number: u64, out: &mut String) {
        let rng = &mut self.rng(Table::OrderLine, number);
        for (at, line) in self.order(number).lines.iter().enumerate() {
            let Line { item, quantity, discount } = line;
            let _ = write!(out, "{number}\t{}\t{item}\t{quantity}\t0.{discount:02}\t", at + 1);
            push_text(out, rng, 20, 100);
            out.push('\n');
        }
    }

    fn push_payment(&self, number: u64, out: &mut String) {
        let order = self.order(number);
        let rng = &mut self.rng(Table::Payment, number);
        let card = one(rng, &CARDS);
        let (num, name) = (digits(rng, 16), text(rng, 14, 30));
        let expires = TODAY + Days::new(rng.random_range(10..=730));
        let approval = text(rng, 15, 15);
        let date = TODAY - Days::new(order.days_ago);
        let country = rng.random_range(1..=COUNTRIES.len());
        let _ = writeln!(
            out,
            "{number}\t{card}\t{num}\t{name}\t{expires}\t{approval}\t{}\t{date} 00:00:00\t{country}",
            dollars(order.total)
        );
    }
}

fn push_country(number: u64, out: &mut String) {
    let at = (number - 1) as usize;
    // Fixed, as TPC-W's are: the dollar is 1, the others some round figure.
    let exchange = if at == 0 { 1.0 } else { 0.25 + (at * 37 % 400) as f64 / 16.0 };
    let currency = CURRENCIES[at % CURRENCIES.len()];
    let _ = writeln!(out, "{number}\t{}\t{exchange:.6}\t{currency}", COUNTRIES[at]);
}

fn before(day: NaiveDate, rng: &mut SmallRng, most: u64) -> NaiveDate {
    day - Days::new(rng.random_range(1..=most))
}

/// Cents as a decimal number of dollars.
pub fn dollars(cents: u64) -> String {
    format!("{}.{:02}", cents / 100, cents % 100)
}

#[cfg(test)]
mod tests;
