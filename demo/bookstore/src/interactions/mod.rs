//! The interactions, each one try of one transaction.
//!
//! # Invariants
//! Every choice comes from the [`Try`]'s own random numbers, which are the same when the
//! transaction is tried again; what the browser remembers afterwards ([`Effects`]) is taken over
//! only once the transaction is acknowledged.
//!
//! # On failure
//! The server's error, as it is; the browser decides whether to try again.

mod admin;
mod cart;
mod look;
mod order;
mod seeds;

use rand::Rng as _;
use rand::rngs::SmallRng;
use tokio_postgres::types::ToSql;
use tokio_postgres::{Error, GenericClient, Row, Statement};

use crate::generate::Scale;
use crate::mix::Interaction;
use crate::page::Page;
use crate::statements::Statements;
use crate::words::syllables;

/// An order that was acknowledged.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Placed {
    /// Its number.
    pub order: i64,
    /// Cents.
    pub total: u64,
    /// Lines.
    pub lines: u64,
    /// Books.
    pub books: u64,
}

/// What a browser remembers after a transaction.
#[derive(Debug, Default)]
pub struct Effects {
    /// The cart it has from now on.
    pub cart: Option<i64>,
    /// Who it is from now on.
    pub customer: Option<i64>,
    /// The order placed.
    pub placed: Option<Placed>,
}

/// One try of an interaction.
pub struct Try<'a, C> {
    /// The connection, or the transaction on it.
    pub client: &'a C,
    /// Its statements.
    pub statements: &'a Statements,
    /// The same in every try.
    pub rng: SmallRng,
    /// The size of the shop.
    pub scale: Scale,
    /// Who browses.
    pub customer: i64,
    /// The cart, if there is one.
    pub cart: Option<i64>,
    /// What is shown.
    pub page: &'a mut Page,
}

type Done<T = ()> = std::result::Result<T, Error>;
type Parameters<'p> = &'p [&'p (dyn ToSql + Sync)];

/// Whether an interaction is a single statement, which is a transaction by itself.
pub fn is_single(interaction: Interaction) -> bool {
    use Interaction as I;
    matches!(
        interaction,
        I::NewProducts
            | I::BestSellers
            | I::ProductDetail
            | I::SearchRequest
            | I::SearchResults
            | I::CustomerRegistration
            | I::OrderInquiry
            | I::AdminRequest
            | I::JoinAuthor
            | I::JoinLines
            | I::JoinCountry
            | I::JoinBooks
            | I::Price
    )
}

impl<C: GenericClient> Try<'_, C> {
    /// Does it.
    pub async fn run(&mut self, interaction: Interaction) -> Done<Effects> {
        use Interaction as I;
        match interaction {
            I::Home => self.home().await,
            I::NewProducts => self.new_products().await,
            I::BestSellers => self.best_sellers().await,
            I::ProductDetail => self.product_detail().await,
            I::SearchRequest => self.search_request().await,
            I::SearchResults => self.search_results().await,
            I::ShoppingCart => self.shopping_cart().await,
            I::CustomerRegistration | I::OrderInquiry => self.user_name().await,
            I::BuyRequest => self.buy_request().await,
            I::BuyConfirm => self.buy_confirm().await,
            I::OrderDisplay => self.order_display().await,
            I::AdminRequest => self.admin_request().await,
            I::AdminConfirm => self.admin_confirm().await,
            I::Customer => self.customer_transaction().await,
            I::JoinAuthor => self.join_author().await,
            I::JoinLines => self.join_lines().await,
            I::JoinCountry => self.join_country().await,
            I::JoinBooks => self.join_books().await,
            I::NewCart => self.fresh_cart().await,
            I::Price => self.change_price().await,
        }
    }

    /// Rows that are shown.
    async fn show(&mut self, statement: &Statement, parameters: Parameters<'_>) -> Done<Vec<Row>> {
        let rows = self.client.query(statement, parameters).await?;
        self.page.rows(&rows);
        Ok(rows)
    }

    async fn change(&self, statement: &Statement, parameters: Parameters<'_>) -> Done<u64> {
        self.client.execute(statement, parameters).await
    }

    fn any_item(&mut self) -> i64 {
        self.rng.random_range(1..=self.scale.items.cast_signed())
    }

    fn any_order(&mut self) -> i64 {
        self.rng.random_range(1..=self.scale.orders().cast_signed())
    }

    /// A loaded customer.
    fn any_customer(&mut self) -> i64 {
        self.rng.random_range(1..=self.scale.customers.cast_signed())
    }
}

/// TPC-W's user name of a customer.
fn user(customer: i64) -> String {
    syllables(customer.unsigned_abs(), 0)
}
