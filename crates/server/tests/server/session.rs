//! Tokens of sessions over HTTP, in a region and alone.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use axum::response::IntoResponse as _;
use telesto_common::{Label, RegionId, Timestamp};
use telesto_server::http::session::{label_of, token_of};
use telesto_server::http::token;
use telesto_txn::regions::{ConflictView, LinkView, NotAttached, RegionControl, RegionsView};
use telesto_txn::{
    AskRows, AwayRead, AwayRequest, Distance, Elsewhere, Error as TxnError, Pieces, RowsGiven,
};

/// A region whose tokens are `signed` and a time; nobody signs when `mute`.
#[derive(Debug, Default)]
struct Region {
    mute: bool,
}

fn cut<T>() -> telesto_txn::Result<T> {
    Err(TxnError::Elsewhere("not in this test".to_owned()))
}

const ME: RegionId = RegionId(1);

#[async_trait]
impl RegionControl for Region {
    async fn view(&self) -> telesto_txn::Result<RegionsView> {
        cut()
    }
    async fn links(&self) -> telesto_txn::Result<Vec<LinkView>> {
        cut()
    }
    async fn conflicts(&self) -> telesto_txn::Result<Vec<ConflictView>> {
        cut()
    }
    async fn token(&self, seen: Label) -> Result<String, String> {
        match self.mute {
            true => Err("nobody answers".to_owned()),
            false => Ok(format!("signed {}", seen.timestamp.0)),
        }
    }
    async fn migrate(&self, _: Label, _: &str) -> Result<String, String> {
        Err("not in this test".to_owned())
    }
    async fn attach(&self, token: &str, _: Duration) -> Result<Label, NotAttached> {
        match token {
            "late" => Err(NotAttached::NotYet("wait for region \"us\"".to_owned())),
            "lost" => Err(NotAttached::Lost("gone".to_owned())),
            token => {
                let at = token.strip_prefix("signed ").and_then(|at| at.parse().ok());
                at.map(|at| Label::update(ME, Timestamp(at)))
                    .ok_or_else(|| NotAttached::NoToken("forged".to_owned()))
            }
        }
    }
    async fn commit_at(&self, _: RegionId, _: AwayRequest) -> telesto_txn::Result<Elsewhere> {
        cut()
    }
    async fn rows_at(&self, _: RegionId, _: AskRows) -> telesto_txn::Result<RowsGiven> {
        cut()
    }
    async fn arrive(&self, _: RegionId, _: Timestamp, _: Duration) -> Result<Label, String> {
        Err("not in this test".to_owned())
    }
    async fn distances(&self) -> Vec<Distance> {
        Vec::new()
    }
    async fn read_at(&self, _: RegionId, _: AwayRead) -> telesto_txn::Result<Box<dyn Pieces>> {
        cut()
    }
}

async fn status(token: &str, regions: Option<Arc<dyn RegionControl>>) -> Result<Label, u16> {
    let label = label_of(token, ME, regions).await;
    label.map_err(|error| error.into_response().status().as_u16())
}

#[tokio::test]
async fn region_signs_what_its_clients_have_seen_and_asks_before_it_believes_a_token() {
    let env = telesto_runtime::env();
    let seen = Label::update(ME, Timestamp(7));
    let signed = token_of(&env, &Region::default(), seen).await;
    let region: Arc<dyn RegionControl> = Arc::new(Region::default());
    let taken = async |token: &str| status(token, Some(Arc::clone(&region))).await;
    assert_eq!(taken(&signed).await, Ok(seen));
    assert_eq!(taken("late").await, Err(503));
    assert_eq!(taken("lost").await, Err(410));
    assert_eq!(taken("signed by another").await, Err(400));
    assert_eq!(status(&signed, None).await, Err(400), "a lone database");
}

#[tokio::test]
async fn token_that_nobody_signed_is_good_where_it_was_given_only() {
    let env = telesto_runtime::env();
    let seen = Label::update(ME, Timestamp(7));
    let unsigned = token_of(&env, &Region { mute: true }, seen).await;
    let region: Arc<dyn RegionControl> = Arc::new(Region::default());
    for regions in [None, Some(region)] {
        assert_eq!(status(&unsigned, regions.clone()).await, Ok(seen));
        let foreign = token::encode(Label::update(RegionId(2), Timestamp(7)));
        assert_eq!(status(&foreign, regions).await, Err(400));
    }
}
