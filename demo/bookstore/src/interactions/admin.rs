//! The shop's own: looking at a book, changing it and what is related to it.

use rand::Rng as _;
use tokio_postgres::GenericClient;

use super::{Done, Effects, Try};
use crate::generate::dollars;

impl<C: GenericClient> Try<'_, C> {
    pub(super) async fn admin_request(&mut self) -> Done<Effects> {
        let item = self.any_item();
        self.show(&self.statements.admin_item, &[&item]).await?;
        Ok(Effects::default())
    }

    /// Another price and image; related are the five books that its buyers bought most, filled up
    /// with any.
    pub(super) async fn admin_confirm(&mut self) -> Done<Effects> {
        let item = self.any_item();
        let cost = dollars(self.rng.random_range(100..=999_999));
        let image = self.rng.random_range(0..100);
        let (image, thumb) =
            (format!("img{image}/image_{item}.gif"), format!("img{image}/thumb_{item}.gif"));
        self.change(&self.statements.change_item, &[&item, &cost, &image, &thumb]).await?;
        let rows = self.show(&self.statements.bought_with, &[&item]).await?;
        let mut related = [0; 5];
        for (at, place) in related.iter_mut().enumerate() {
            *place = match rows.get(at) {
                Some(row) => row.get(0),
                None => self.any_item(),
            };
        }
        let [a, b, c, d, e] = &related;
        self.change(&self.statements.relate, &[&item, a, b, c, d, e]).await?;
        Ok(Effects::default())
    }
}
