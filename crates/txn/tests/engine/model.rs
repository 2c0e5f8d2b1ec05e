//! The engine against the in-memory model on random histories of overlapping transactions.

use std::sync::Arc;

use proptest::prelude::*;
use telesto_common::key::KeyRange;
use telesto_txn::memory::MemoryDatabase;
use telesto_txn::{
    Database, Engine, Error, Level, ReadFor, Savepoint, ScanOptions, Transaction, Transactions,
    TxnOptions,
};

use crate::harness::{Process, World, bytes};

const OPEN: usize = 3;

#[derive(Clone, Debug)]
enum Step {
    Begin(usize, Level),
    Get(usize, u8, bool),
    Put(usize, u8, u8),
    Delete(usize, u8),
    Scan { txn: usize, from: u8, to: u8, reverse: bool, limit: Option<u64> },
    Statement(usize),
    View(usize),
    Savepoint(usize),
    RollbackTo(usize),
    Commit(usize),
    Rollback(usize),
    Fold,
}

fn step() -> impl Strategy<Value = Step> {
    let txn = 0..OPEN;
    let level =
        prop_oneof![Just(Level::Serializable), Just(Level::Snapshot), Just(Level::ReadCommitted)];
    prop_oneof![
        3 => (txn.clone(), level).prop_map(|(t, l)| Step::Begin(t, l)),
        5 => (txn.clone(), 0_u8..12, any::<bool>()).prop_map(|(t, k, c)| Step::Get(t, k, c)),
        6 => (txn.clone(), 0_u8..12, any::<u8>()).prop_map(|(t, k, v)| Step::Put(t, k, v)),
        2 => (txn.clone(), 0_u8..12).prop_map(|(t, k)| Step::Delete(t, k)),
        2 => (txn.clone(), 0_u8..12, 0_u8..13, any::<bool>(), proptest::option::of(1_u64..4))
            .prop_map(|(txn, from, to, reverse, limit)| Step::Scan { txn, from, to, reverse, limit }),
        1 => txn.clone().prop_map(Step::Statement),
        2 => txn.clone().prop_map(Step::View),
        1 => txn.clone().prop_map(Step::Savepoint),
        1 => txn.clone().prop_map(Step::RollbackTo),
        4 => txn.clone().prop_map(Step::Commit),
        1 => txn.prop_map(Step::Rollback),
        1 => Just(Step::Fold),
    ]
}

fn key(n: u8) -> bytes::Bytes {
    bytes(&format!("key-{n:02}"))
}

#[derive(Default)]
struct Open {
    txn: Option<Arc<dyn Transaction>>,
    /// Reads go through it until the next statement or rollback.
    view: Option<Arc<dyn Transaction>>,
    savepoint: Option<Savepoint>,
}

/// What transactions are begun with.
trait Begins {
    async fn begin(&self, options: TxnOptions) -> Result<Arc<dyn Transaction>, Error>;
}

impl Begins for Arc<Engine> {
    async fn begin(&self, options: TxnOptions) -> Result<Arc<dyn Transaction>, Error> {
        Database::begin(&**self, options).await
    }
}

impl Begins for MemoryDatabase {
    async fn begin(&self, options: TxnOptions) -> Result<Arc<dyn Transaction>, Error> {
        Database::begin(self, options).await
    }
}

impl Begins for Transactions {
    async fn begin(&self, options: TxnOptions) -> Result<Arc<dyn Transaction>, Error> {
        self.begin(options).await
    }
}

/// What one side answered, comparable.
async fn act(database: &impl Begins, open: &mut [Open], step: &Step) -> String {
    let show = |error: Error| match error {
        // Which of several conflicts is found first is not promised, nor are ids and times.
        Error::Conflict { .. } => "conflict".to_owned(),
        other => format!("{other:?}"),
    };
    let index = match step {
        Step::Begin(t, _)
        | Step::Get(t, ..)
        | Step::Put(t, ..)
        | Step::Delete(t, _)
        | Step::Scan { txn: t, .. }
        | Step::Statement(t)
        | Step::View(t)
        | Step::Savepoint(t)
        | Step::RollbackTo(t)
        | Step::Commit(t)
        | Step::Rollback(t) => *t,
        Step::Fold => return String::new(),
    };
    if let Step::Begin(_, level) = step {
        let options = TxnOptions { level: *level, ..TxnOptions::default() };
        let txn = Some(database.begin(options).await.expect("begins"));
        open[index] = Open { txn, ..Open::default() };
        return String::new();
    }
    let Some(txn) = open[index].txn.clone() else { return "not open".to_owned() };
    let reads = open[index].view.clone().unwrap_or_else(|| Arc::clone(&txn));
    if matches!(step, Step::Statement(_) | Step::RollbackTo(_)) {
        open[index].view = None;
    }
    match step {
        Step::Get(_, k, constraint) => {
            let read_for = if *constraint { ReadFor::Constraint } else { ReadFor::Query };
            format!("{:?}", reads.get(&key(*k), read_for).await.map_err(show))
        }
        Step::Put(_, k, v) => {
            format!("{:?}", txn.put(key(*k), bytes::Bytes::from(vec![*v])).await.map_err(show))
        }
        Step::Delete(_, k) => format!("{:?}", txn.delete(key(*k)).await.map_err(show)),
        Step::Scan { from, to, reverse, limit, .. } => {
            let options =
                ScanOptions { reverse: *reverse, limit: *limit, read_for: ReadFor::Query };
            let mut scan = reads.scan(KeyRange::new(key(*from), key(*to)), options);
            let mut rows = Vec::new();
            loop {
                let batch = scan.next_batch(2).await.expect("scans");
                if batch.is_empty() {
                    return format!("{rows:?}");
                }
                rows.extend(batch);
            }
        }
        Step::Statement(_) => format!("{:?}", txn.next_statement().await.map_err(show)),
        Step::View(_) => {
            open[index].view = Some(txn.view());
            String::new()
        }
        Step::Savepoint(_) => {
            open[index].savepoint = Some(txn.savepoint().expect("open"));
            String::new()
        }
        Step::RollbackTo(_) => match open[index].savepoint {
            Some(savepoint) => format!("{:?}", txn.rollback_to(savepoint).map_err(show)),
            None => String::new(),
        },
        Step::Commit(_) => {
            open[index] = Open::default();
            match txn.commit().await {
                Ok(_) => "committed".to_owned(),
                Err(error) => show(error),
            }
        }
        Step::Rollback(_) => {
            open[index] = Open::default();
            txn.rollback();
            String::new()
        }
        Step::Begin(..) | Step::Fold => String::new(),
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 150, ..ProptestConfig::default() })]

    #[test]
    fn engine_with_overlapping_transactions_answers_as_the_model(
        steps in proptest::collection::vec(step(), 1..120),
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .start_paused(true)
            .build()
            .expect("runtime");
        runtime.block_on(async {
            let (process, model) = both(51).await;
            compare(&process, &process.engine, &model, &steps).await;
        });
    }

    /// Without the hints that a shard of the same process gives.
    #[test]
    fn transactions_on_a_shard_served_elsewhere_answer_as_the_model(
        steps in proptest::collection::vec(step(), 1..120),
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .start_paused(true)
            .build()
            .expect("runtime");
        runtime.block_on(async {
            let (process, model) = both(52).await;
            let transactions = process.engine.transactions_on(process.engine.service());
            compare(&process, &transactions, &model, &steps).await;
        });
    }
}

async fn both(seed: u64) -> (Process, MemoryDatabase) {
    let process = World::new(seed)
        .start_with(|options| {
            options.maintenance = false;
            options.write_set.spill_bytes = 400;
            options.write_set.inline_bytes = 600;
        })
        .await;
    let model = MemoryDatabase::new(process.env.clone());
    (process, model)
}

async fn compare(
    process: &Process,
    database: &impl Begins,
    model: &MemoryDatabase,
    steps: &[Step],
) {
    let mut real: Vec<Open> = (0..OPEN).map(|_| Open::default()).collect();
    let mut modelled: Vec<Open> = (0..OPEN).map(|_| Open::default()).collect();
    for (number, step) in steps.iter().enumerate() {
        if matches!(step, Step::Fold) {
            process.engine.fold().await.expect("folds");
            continue;
        }
        let got = act(database, &mut real, step).await;
        let expected = act(model, &mut modelled, step).await;
        assert_eq!(got, expected, "step {number}: {step:?}");
    }
}
