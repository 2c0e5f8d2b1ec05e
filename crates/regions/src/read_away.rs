//! Has other regions execute statements that read what this one does not have.
//!
//! # Invariants
//! - What is not wanted any more is closed there, also when its beginning was asked for and not
//!   answered.
//! - Statements go over connections of their own: no stream waits for rows.
//!
//! # On failure
//! [`telesto_txn::Error::Elsewhere`] names the region and says why. A piece that did not come is
//! asked for once more.
//!
//! # Limits
//! An answer is waited for [`ASKED`]; who executes something says so more often.

use std::fmt::Debug;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use telesto_common::{Env, RegionId};
use telesto_txn::{AwayRead, Distance, Error as Txn, Piece, Pieces};

use crate::asked::{Asked, Told};
use crate::error::{Error, Result};
use crate::shared::{SERVICE, Shared};
use crate::wire::{Header, Reply, Request};

/// How long an answer is waited for.
pub(crate) const ASKED: Duration = Duration::from_secs(5);

/// How this node speaks with other regions.
#[async_trait]
pub(crate) trait Way: Debug + Send + Sync + 'static {
    /// The seams.
    fn env(&self) -> &Env;

    /// What a region is called, for people.
    fn name(&self, region: RegionId) -> String;

    /// Says something of a statement to `region`; what it answers.
    async fn say(&self, region: RegionId, asked: &Asked) -> Result<Told>;
}

#[async_trait]
impl Way for Shared {
    fn env(&self) -> &Env {
        &self.env
    }

    fn name(&self, region: RegionId) -> String {
        self.name_of(region)
    }

    async fn say(&self, region: RegionId, asked: &Asked) -> Result<Told> {
        say(self, region, asked).await
    }
}

/// A statement in another region.
#[derive(Debug)]
struct Remote {
    way: Arc<dyn Way>,
    region: RegionId,
    id: u128,
    /// The answer to its beginning.
    first: Option<Told>,
    /// Pieces that have come.
    count: u64,
    over: bool,
}

/// See [`telesto_txn::regions::RegionControl::read_at`].
pub(crate) async fn read_by(
    way: Arc<dyn Way>,
    region: RegionId,
    read: AwayRead,
) -> telesto_txn::Result<Box<dyn Pieces>> {
    let env = way.env().clone();
    let (started, id) = (env.clock.monotonic(), env.random_u128());
    let mut remote = Remote { way, region, id, first: None, count: 0, over: false };
    let AwayRead { seen, statement } = read;
    let mut told = remote.ask(&Asked::Begin { id, seen, statement }).await;
    while matches!(told, Ok(Told::Working)) {
        told = remote.ask(&Asked::Next { id, number: 0 }).await;
    }
    let refused = match told {
        Ok(Told::Refused(reason)) => {
            remote.over = true;
            reason
        }
        Ok(told) => {
            let took = env.clock.monotonic().saturating_sub(started);
            metrics::histogram!("telesto_regions_forwarded_reads_seconds", "region" => region.to_string())
                .record(took.as_secs_f64());
            count(region, "begun");
            remote.first = Some(told);
            return Ok(Box::new(remote));
        }
        Err(error) => error.to_string(),
    };
    count(region, "refused");
    Err(Txn::Elsewhere(format!("region {} ({refused})", remote.way.name(region))))
}

fn count(region: RegionId, outcome: &'static str) {
    metrics::counter!("telesto_regions_forwarded_reads_total", "region" => region.to_string(), "outcome" => outcome)
        .increment(1);
}

/// How far the peers are away.
pub(crate) fn distances(shared: &Shared) -> Vec<Distance> {
    let measured = shared.report();
    let distance = |(region, peer): (&RegionId, &crate::shared::Peer)| {
        let measures = measured.iter().find(|measures| measures.peer == *region);
        let micros = measures.map_or(0, |measures| measures.round_trip);
        Distance {
            region: *region,
            round_trip: (micros > 0).then(|| Duration::from_micros(micros)),
            connected: peer.connected.load(std::sync::atomic::Ordering::Relaxed),
        }
    };
    shared.peers.iter().map(distance).collect()
}

/// What `region` answers.
pub(crate) async fn say(shared: &Shared, region: RegionId, asked: &Asked) -> Result<Told> {
    if let (Asked::Begin { .. }, Some(peer)) = (asked, shared.peers.get(&region)) {
        // What the session has seen is to be there when the statement is.
        peer.hurry.notify_one();
    }
    let Some(client) = shared.readers.get(&region) else {
        return Err(Error::UnknownRegion(region));
    };
    let header =
        Header { deployment: shared.config.deployment, from: shared.config.me, to: region };
    let request = Request::Read(asked.encode()).encode(header);
    let reply = client.call(SERVICE, request, shared.env.deadline(ASKED)).await?;
    let malformed = || Error::malformed("another region's answer to a read");
    match Reply::decode(reply).map_err(malformed())? {
        Reply::Answer(answer) => Told::decode(answer).map_err(malformed()),
        Reply::Refused(reason) => Ok(Told::Refused(reason)),
        _ => Err(malformed()("it is none".to_owned())),
    }
}

impl Remote {
    async fn ask(&self, asked: &Asked) -> Result<Told> {
        self.way.say(self.region, asked).await
    }

    async fn ask_next(&self) -> Result<Told> {
        let asked = Asked::Next { id: self.id, number: self.count };
        match self.ask(&asked).await {
            Err(_) => self.ask(&asked).await,
            told => told,
        }
    }

    fn broken(&self, reason: &str) -> Txn {
        count(self.region, "broken");
        let region = self.way.name(self.region);
        Txn::Elsewhere(format!(
            "region {region}, which executes the statement, did not send all of its rows ({reason}); run it again"
        ))
    }
}

#[async_trait]
impl Pieces for Remote {
    async fn next(&mut self) -> telesto_txn::Result<Piece> {
        loop {
            let told = match self.first.take() {
                Some(told) => Ok(told),
                None => self.ask_next().await,
            };
            match told {
                Ok(Told::Working) => {}
                Ok(Told::Piece(bytes)) => {
                    self.count += 1;
                    return Ok(Piece { bytes, last: false });
                }
                Ok(Told::Last(bytes)) => {
                    self.over = true;
                    return Ok(Piece { bytes, last: true });
                }
                Ok(Told::Refused(reason)) => {
                    self.over = true;
                    return Err(self.broken(&reason));
                }
                Ok(Told::Closed) => return Err(self.broken("it was closed")),
                Err(error) => return Err(self.broken(&error.to_string())),
            }
        }
    }
}

impl Drop for Remote {
    fn drop(&mut self) {
        if self.over {
            return;
        }
        let (way, region, id) = (Arc::clone(&self.way), self.region, self.id);
        let env = way.env().clone();
        env.spawn("closing a read in another region", async move {
            // What is not closed ends there by itself.
            let _: Result<Told> = way.say(region, &Asked::Close { id }).await;
        });
    }
}
