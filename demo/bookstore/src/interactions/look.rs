//! Interactions that only look: home, products, searches, names, orders.

use rand::Rng as _;
use tokio_postgres::GenericClient;

use super::{Done, Effects, Try, user};
use crate::words::{SUBJECTS, one, syllables};

impl<C: GenericClient> Try<'_, C> {
    /// Who it is, and promotions.
    pub(super) async fn home(&mut self) -> Done<Effects> {
        let customer = self.customer;
        self.show(&self.statements.customer_name, &[&customer]).await?;
        self.promotions().await
    }

    /// Promotions only.
    pub(super) async fn search_request(&mut self) -> Done<Effects> {
        self.promotions().await
    }

    async fn promotions(&mut self) -> Done<Effects> {
        let item = self.any_item();
        self.show(&self.statements.promotions, &[&item]).await?;
        Ok(Effects::default())
    }

    pub(super) async fn new_products(&mut self) -> Done<Effects> {
        let subject = one(&mut self.rng, &SUBJECTS);
        self.show(&self.statements.new_products, &[&subject]).await?;
        Ok(Effects::default())
    }

    pub(super) async fn best_sellers(&mut self) -> Done<Effects> {
        let subject = one(&mut self.rng, &SUBJECTS);
        self.show(&self.statements.best_sellers, &[&subject]).await?;
        Ok(Effects::default())
    }

    pub(super) async fn product_detail(&mut self) -> Done<Effects> {
        let item = self.any_item();
        self.show(&self.statements.product_detail, &[&item]).await?;
        Ok(Effects::default())
    }

    /// By author, title or subject, each as often as the others.
    pub(super) async fn search_results(&mut self) -> Done<Effects> {
        match self.rng.random_range(0..3) {
            0 => {
                let key = self.rng.random_range(0..self.scale.author_keys());
                let like = format!("{}%", syllables(key, 7));
                self.show(&self.statements.search_author, &[&like]).await?;
            }
            1 => {
                let key = self.rng.random_range(0..self.scale.title_keys());
                let like = format!("{}%", syllables(key, 7));
                self.show(&self.statements.search_title, &[&like]).await?;
            }
            _ => {
                let subject = one(&mut self.rng, &SUBJECTS);
                self.show(&self.statements.search_subject, &[&subject]).await?;
            }
        }
        Ok(Effects::default())
    }

    /// Customer registration of somebody who was here before, and order inquiry: the name to log in
    /// with.
    pub(super) async fn user_name(&mut self) -> Done<Effects> {
        let customer = self.customer;
        self.show(&self.statements.user_name, &[&customer]).await?;
        Ok(Effects::default())
    }

    /// The newest order of a customer with all that belongs to it; nothing, for one who never
    /// bought.
    pub(super) async fn order_display(&mut self) -> Done<Effects> {
        let name = user(self.customer);
        let password = name.to_lowercase();
        let last = self.show(&self.statements.last_order, &[&name, &password]).await?;
        if let Some(row) = last.first() {
            let order: i64 = row.get(0);
            self.show(&self.statements.order_head, &[&order]).await?;
            self.show(&self.statements.order_lines, &[&order]).await?;
        }
        Ok(Effects::default())
    }
}
