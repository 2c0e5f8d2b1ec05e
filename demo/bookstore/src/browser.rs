//! One browser: a connection, who it is, its cart; and its interactions, tried again after
//! conflicts.
//!
//! # Invariants
//! - A try that failed leaves the browser as it was; what it chose, it chooses again.
//! - What the shop acknowledged is in [`Browser::placed`], for the check at the end.
//!
//! # On failure
//! Conflicts (40001, 40P01) are repeated at most `ATTEMPTS` times; other refusals by the server are
//! the outcome; a lost connection ends the browser.

use std::time::Duration;

use rand::rngs::SmallRng;
use rand::{Rng as _, RngCore as _, SeedableRng as _};
use tokio_postgres::Client;

use crate::error::{Error, Result, connect};
use crate::generate::Scale;
use crate::interactions::{Effects, Placed, Try, is_single};
use crate::mix::Interaction;
use crate::page::Page;
use crate::statements::Statements;

/// How often an interaction is tried.
const ATTEMPTS: u32 = 50;
const FIRST_PAUSE: Duration = Duration::from_millis(1);
const LONGEST_PAUSE: Duration = Duration::from_millis(100);

/// What became of an interaction.
#[derive(Debug, Default)]
pub struct Outcome {
    /// Conflicts after which it was tried again, by SQLSTATE.
    pub retried: Vec<String>,
    /// The refusal that ended it: SQLSTATE and message.
    pub refused: Option<(String, String)>,
}

/// A browser.
pub struct Browser {
    client: Client,
    statements: Statements,
    rng: SmallRng,
    scale: Scale,
    customer: i64,
    cart: Option<i64>,
    /// The page shown last.
    pub page: Page,
    /// The orders it was told are placed.
    pub placed: Vec<Placed>,
}

/// Whether a transaction that was refused so may be tried again.
pub fn is_conflict(sqlstate: &str) -> bool {
    matches!(sqlstate, "40001" | "40P01")
}

impl Browser {
    /// Connects browser `number` of a run.
    ///
    /// # Errors
    /// Nobody there, or a statement refused.
    pub async fn open(url: &str, scale: Scale, seed: u64, number: u64, page: Page) -> Result<Self> {
        let client = connect(url).await?;
        let statements = Statements::prepare(&client).await?;
        let mut rng = SmallRng::seed_from_u64(
            seed ^ number.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15),
        );
        let customer = rng.random_range(1..=scale.customers.cast_signed());
        let cart = None;
        Ok(Self { client, statements, rng, scale, customer, cart, page, placed: Vec::new() })
    }

    /// Runs a statement on the browser's connection, before it begins.
    ///
    /// # Errors
    /// What the server refused.
    pub async fn set(&self, statement: &str) -> Result<()> {
        let failed = |error| Error::database(statement, &error);
        self.client.batch_execute(statement).await.map_err(failed)
    }

    /// A point of a mix, drawn.
    pub fn draw(&mut self) -> u32 {
        self.rng.random_range(0..10_000)
    }

    /// Does an interaction, repeating it after conflicts.
    ///
    /// # Errors
    /// A lost connection.
    pub async fn interact(&mut self, interaction: Interaction) -> Result<Outcome> {
        let seed = self.rng.next_u64();
        let mut outcome = Outcome::default();
        let mut pause = FIRST_PAUSE;
        for attempt in 1.. {
            self.page.clear();
            let error = match self.attempt(interaction, seed).await {
                Ok(effects) => {
                    self.cart = effects.cart.or(self.cart);
                    self.customer = effects.customer.unwrap_or(self.customer);
                    self.placed.extend(effects.placed);
                    return Ok(outcome);
                }
                Err(error) => error,
            };
            let Some(refused) = error.as_db_error() else {
                return Err(Error::database(interaction.name(), &error));
            };
            let code = refused.code().code().to_owned();
            if self.client.is_closed() {
                return Err(Error::database(interaction.name(), &error));
            }
            if !is_conflict(&code) || attempt >= ATTEMPTS {
                outcome.refused = Some((code, refused.message().to_owned()));
                return Ok(outcome);
            }
            outcome.retried.push(code);
            let wait = pause.mul_f64(self.rng.random_range(0.5..1.0));
            tokio::time::sleep(wait).await;
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
        Ok(outcome)
    }

    async fn attempt(
        &mut self,
        interaction: Interaction,
        seed: u64,
    ) -> std::result::Result<Effects, tokio_postgres::Error> {
        let rng = SmallRng::seed_from_u64(seed);
        let (statements, scale, page) = (&self.statements, self.scale, &mut self.page);
        let (customer, cart) = (self.customer, self.cart);
        if is_single(interaction) {
            let client = &self.client;
            return Try { client, statements, rng, scale, customer, cart, page }
                .run(interaction)
                .await;
        }
        let transaction = self.client.build_transaction().read_only(!interaction.writes());
        let transaction = transaction.start().await?;
        let client = &transaction;
        let effects =
            Try { client, statements, rng, scale, customer, cart, page }.run(interaction).await?;
        transaction.commit().await?;
        Ok(effects)
    }
}
