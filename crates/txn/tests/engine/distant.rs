//! Transactions on a shard that another process serves: everything goes through the service, as
//! plain data.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use telesto_common::ShardId;
use telesto_shard::{Read, Row};
use telesto_txn::service::{
    BeginReply, BeginRequest, ChangedReply, ChangedRequest, CommitReply, CommitRequest, Freshness,
    GetRequest, LeaseId, NeverWrittenRequest, OutcomeRequest, ScanRequest, ShardService,
};
use telesto_txn::{Error, Outcome, Result, Staleness, TxnOptions};

use crate::harness::{World, get, put, scan};

/// The way to the other process: it can be cut, and counts what goes over it.
#[derive(Debug)]
struct Way {
    to: Arc<dyn ShardService>,
    cut: AtomicBool,
    requests: AtomicU64,
    released: AtomicU64,
}

impl Way {
    fn to(service: Arc<dyn ShardService>) -> Arc<Self> {
        Arc::new(Self {
            to: service,
            cut: AtomicBool::new(false),
            requests: AtomicU64::new(0),
            released: AtomicU64::new(0),
        })
    }

    fn pass(&self) -> Result<&dyn ShardService> {
        self.requests.fetch_add(1, Ordering::Relaxed);
        if self.cut.load(Ordering::Relaxed) {
            return Err(Error::Unavailable("the way is cut".to_owned()));
        }
        Ok(&*self.to)
    }
}

#[async_trait]
impl ShardService for Way {
    async fn begin(&self, request: BeginRequest) -> Result<BeginReply> {
        self.pass()?.begin(request).await
    }

    async fn renew(&self, leases: Vec<LeaseId>) -> Result<Vec<LeaseId>> {
        self.pass()?.renew(leases).await
    }

    async fn release(&self, leases: Vec<LeaseId>) -> Result<()> {
        self.released.fetch_add(leases.len() as u64, Ordering::Relaxed);
        self.pass()?.release(leases).await
    }

    async fn get(&self, request: GetRequest) -> Result<Vec<Read>> {
        self.pass()?.get(request).await
    }

    async fn never_written(&self, request: NeverWrittenRequest) -> Result<bool> {
        self.pass()?.never_written(request).await
    }

    async fn scan(&self, request: ScanRequest) -> Result<Vec<Row>> {
        self.pass()?.scan(request).await
    }

    async fn changed(&self, request: ChangedRequest) -> Result<ChangedReply> {
        self.pass()?.changed(request).await
    }

    async fn commit(&self, request: CommitRequest) -> Result<CommitReply> {
        self.pass()?.commit(request).await
    }

    async fn outcome(&self, request: OutcomeRequest) -> Result<Outcome> {
        self.pass()?.outcome(request).await
    }
}

#[tokio::test(start_paused = true)]
async fn transaction_on_a_shard_served_elsewhere_reads_writes_scans_and_conflicts() {
    let world = World::new(71);
    let serves = world.start().await;
    let asks = world.start().await;
    for n in 0..10 {
        serves.put(&format!("k{n}"), "old").await;
    }
    let way = Way::to(serves.engine.service());
    let transactions = asks.engine.transactions_on(Arc::clone(&way) as Arc<dyn ShardService>);
    let first = transactions.begin(TxnOptions::default()).await.expect("begins");
    let second = transactions.begin(TxnOptions::default()).await.expect("begins");
    assert_eq!(get(&first, "k3").await.as_deref(), Some("old"));
    assert_eq!(get(&second, "k3").await.as_deref(), Some("old"));
    assert_eq!(scan(&first, "k2", "k7").await.len(), 5, "in pages of three rows");
    put(&first, "k3", "new").await;
    put(&second, "k3", "newer").await;
    let committed = first.commit().await.expect("commits");
    assert!(matches!(second.commit().await, Err(Error::Conflict { .. })));
    assert_eq!(serves.read("k3").await.as_deref(), Some("new"));
    let outcome = transactions.outcome(first.id()).await.expect("tells");
    assert_eq!(outcome, Outcome::Committed(committed.timestamp));
    assert!(way.requests.load(Ordering::Relaxed) > 8, "all of it went over the way");
}

#[tokio::test(start_paused = true)]
async fn lease_is_renewed_while_its_transaction_lives_and_released_after_it() {
    let world = World::new(72);
    let serves = world.start_with(|options| {
        options.retention = Duration::from_secs(20);
        options.checkpoint_interval = Duration::from_secs(2);
    });
    let serves = serves.await;
    let asks = world.start().await;
    serves.put("k", "old").await;
    let way = Way::to(serves.engine.service());
    let transactions = asks.engine.transactions_on(Arc::clone(&way) as Arc<dyn ShardService>);
    let reader = transactions
        .begin(TxnOptions { read_only: true, ..TxnOptions::default() })
        .await
        .expect("begins");
    for n in 0..60 {
        serves.put("k", &n.to_string()).await;
        serves.env.clock.sleep(Duration::from_secs(1)).await;
    }
    serves.engine.fold().await.expect("folds");
    assert_eq!(get(&reader, "k").await.as_deref(), Some("old"), "kept for three retentions");
    drop(reader);
    serves.env.clock.sleep(Duration::from_secs(10)).await;
    assert_eq!(way.released.load(Ordering::Relaxed), 1);
    let quiet = way.requests.load(Ordering::Relaxed);
    serves.env.clock.sleep(Duration::from_secs(60)).await;
    assert_eq!(way.requests.load(Ordering::Relaxed), quiet, "nothing is asked for nobody");
}

#[tokio::test(start_paused = true)]
async fn lease_of_a_process_that_is_cut_off_ends_and_its_reads_say_so() {
    let world = World::new(73);
    let serves = world.start_with(|options| {
        options.retention = Duration::from_secs(20);
        options.checkpoint_interval = Duration::from_secs(2);
    });
    let serves = serves.await;
    let asks = world.start().await;
    serves.put("k", "old").await;
    let way = Way::to(serves.engine.service());
    let transactions = asks.engine.transactions_on(Arc::clone(&way) as Arc<dyn ShardService>);
    let reader = transactions
        .begin(TxnOptions { read_only: true, ..TxnOptions::default() })
        .await
        .expect("begins");
    way.cut.store(true, Ordering::Relaxed);
    for n in 0..60 {
        serves.put("k", &n.to_string()).await;
        serves.env.clock.sleep(Duration::from_secs(1)).await;
    }
    serves.engine.fold().await.expect("folds");
    way.cut.store(false, Ordering::Relaxed);
    let read = reader.get(b"k", telesto_txn::ReadFor::Query).await;
    assert!(matches!(read, Err(Error::SnapshotTooOld { .. })), "{read:?}");
}

#[tokio::test(start_paused = true)]
async fn request_for_another_shard_is_refused() {
    let world = World::new(74);
    let serves = world.start().await;
    let request = BeginRequest {
        shard: ShardId(7),
        freshness: Freshness::Applied,
        staleness: Staleness::default(),
        as_of: None,
        timeout: Duration::from_secs(1),
    };
    let begun = serves.engine.service().begin(request).await;
    assert!(matches!(begun, Err(Error::WrongShard(ShardId(7)))), "{begun:?}");
}
