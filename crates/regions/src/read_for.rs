//! Statements that this region executes for others.
//!
//! ```text
//! begin ─► what the asker has seen is here ─► executed ─► piece ─► (one waits here) ─► next ─► …
//!                                                │ its position is told to the asker at once: who has seen a row waits for it at home
//! ```
//! # Invariants
//! - A statement begins when everything of the asker's region that its session has seen is in this
//!   log, with its past; so it shows nothing older.
//! - Pieces have numbers: a request that comes twice gets the same one again, and none is passed
//!   over. The next is made when one was taken: what is not read is not computed.
//! - What an asker that died has begun ends by itself: a piece that nobody asks for during [`IDLE`]
//!   is the last.
//!
//! # On failure
//! [`Told::Refused`] with the reason, and the statement has ended. When the last piece is lost on
//! its way back, so is the statement.
//!
//! # Limits
//! [`MOST`] statements of each region at a time.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use parking_lot::Mutex;
use telesto_common::env::Task;
use telesto_common::{Label, RegionId, Timestamp};
use telesto_txn::{Database as _, Served};
use tokio::sync::{Mutex as Turn, mpsc};

use crate::asked::{Asked, Told};
use crate::error::{Error, Result};
use crate::shared::Shared;

/// Statements of one region at a time.
const MOST: usize = 128;
/// How long a request for a piece is held while there is none.
const POLL: Duration = Duration::from_secs(1);
/// How long a piece is kept for who does not ask for it.
const IDLE: Duration = Duration::from_secs(60);
/// How long what the asker has seen is waited for.
const ARRIVAL: Duration = Duration::from_secs(5);

type Key = (RegionId, u128);

/// What is executed for others now.
#[derive(Debug, Default)]
pub(crate) struct ReadsFor(Mutex<BTreeMap<Key, Arc<Reading>>>);

#[derive(Debug)]
struct Reading {
    pieces: Turn<Given>,
    served: Mutex<Option<Stop>>,
    task: Mutex<Option<Arc<dyn Task>>>,
}

#[derive(Debug)]
struct Given {
    told: mpsc::Receiver<Told>,
    /// How many have been given, and the last of them.
    count: u64,
    last: Option<Told>,
}

struct Stop(Box<dyn Fn() + Send + Sync>);

impl std::fmt::Debug for Stop {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Stop")
    }
}

impl Drop for Reading {
    fn drop(&mut self) {
        if let Some(Stop(stop)) = self.served.lock().take() {
            stop();
        }
        if let Some(task) = self.task.lock().take() {
            task.abort();
        }
    }
}

enum Entered {
    New,
    /// It was asked for before.
    Again,
    Full,
}

impl ReadsFor {
    /// Ends all of them.
    pub fn clear(&self) {
        let ended = std::mem::take(&mut *self.0.lock());
        drop(ended);
    }

    fn take(&self, key: Key) -> Option<Arc<Reading>> {
        self.0.lock().remove(&key)
    }

    fn get(&self, key: Key) -> Option<Arc<Reading>> {
        self.0.lock().get(&key).map(Arc::clone)
    }

    /// How many there are.
    pub fn count(&self) -> usize {
        self.0.lock().len()
    }

    fn enter(&self, key: Key, reading: &Arc<Reading>) -> Entered {
        let mut known = self.0.lock();
        let (first, last) = ((key.0, 0), (key.0, u128::MAX));
        if known.contains_key(&key) {
            return Entered::Again;
        }
        if known.range(first..=last).count() >= MOST {
            return Entered::Full;
        }
        known.insert(key, Arc::clone(reading));
        Entered::New
    }
}

/// What `from` is told.
pub(crate) async fn answer(shared: &Arc<Shared>, from: RegionId, asked: Asked) -> Told {
    match asked {
        Asked::Begin { id, seen, statement } => {
            let (tell, told) = mpsc::channel(1);
            let given = Given { told, count: 0, last: None };
            let reading = Arc::new(Reading {
                pieces: Turn::new(given),
                served: Mutex::default(),
                task: Mutex::default(),
            });
            match shared.reads_for.enter((from, id), &reading) {
                Entered::New => {}
                Entered::Again => return piece(shared, (from, id), 0).await,
                Entered::Full => {
                    return Told::Refused(format!(
                        "it executes {MOST} statements of this region already; retry in a moment"
                    ));
                }
            }
            metrics::counter!("telesto_regions_read_for_total", "peer" => from.to_string())
                .increment(1);
            let work = serve(Arc::clone(shared), (from, id), seen, statement, tell);
            let task = shared.env.tasks.spawn_session("reading for another region", Box::pin(work));
            *reading.task.lock() = Some(task);
            piece(shared, (from, id), 0).await
        }
        Asked::Next { id, number } => piece(shared, (from, id), number).await,
        Asked::Close { id } => {
            drop(shared.reads_for.take((from, id)));
            Told::Closed
        }
    }
}

/// The piece with this number, if it comes soon.
async fn piece(shared: &Shared, key: Key, number: u64) -> Told {
    let ended = || Told::Refused("the statement has ended there".to_owned());
    let Some(reading) = shared.reads_for.get(key) else { return ended() };
    let until = shared.env.deadline(POLL);
    let taking = async {
        let mut given = reading.pieces.lock().await;
        if number.checked_add(1) == Some(given.count) {
            return given.last.clone().unwrap_or_else(ended);
        }
        if number != given.count {
            return Told::Refused(format!("piece {number} is not the next one"));
        }
        let told = given.told.recv().await.unwrap_or_else(ended);
        given.count += 1;
        given.last = Some(told.clone());
        told
    };
    let Ok(told) = shared.env.within(until, "waiting for rows", taking).await else {
        return Told::Working;
    };
    if !matches!(told, Told::Piece(_)) {
        drop(shared.reads_for.take(key));
    }
    told
}

/// Executes a statement, and tells what it gives.
async fn serve(
    shared: Arc<Shared>,
    key: Key,
    seen: Timestamp,
    statement: Bytes,
    tell: mpsc::Sender<Told>,
) {
    let mut served = match begin(&shared, key.0, seen, statement).await {
        Ok(served) => served,
        Err(error) => {
            let _ = tell.send(Told::Refused(error.to_string())).await;
            return;
        }
    };
    match shared.reads_for.get(key) {
        Some(reading) => {
            let nothing: Box<dyn Fn() + Send + Sync> = Box::new(|| {});
            let stop = std::mem::replace(&mut served.stop, nothing);
            *reading.served.lock() = Some(Stop(stop));
        }
        // It was closed meanwhile.
        None => return,
    }
    let mut first = true;
    loop {
        let told = match served.pieces.next().await {
            Ok(piece) if piece.last => Told::Last(piece.bytes),
            Ok(piece) => Told::Piece(piece.bytes),
            Err(error) => Told::Refused(error.to_string()),
        };
        if std::mem::take(&mut first)
            && let Some(peer) = shared.peers.get(&key.0)
        {
            // Who has seen it waits there for what is here now; and what is committed there then,
            // for the labels of that.
            peer.hurry.notify_one();
            shared.trees.hurry();
        }
        let more = matches!(told, Told::Piece(_));
        let sending = tell.send(told);
        let sent = shared.env.within_timeout(IDLE, "waiting for who reads", sending).await;
        if !matches!(sent, Ok(Ok(()))) {
            // Not dropped here: it would abort the task that this is before the statement has
            // ended.
            let gone = shared.reads_for.take(key);
            drop(served);
            drop(gone);
            return;
        }
        if !more {
            return;
        }
    }
}

/// Begins when what the asker has seen is here.
async fn begin(
    shared: &Shared,
    from: RegionId,
    seen: Timestamp,
    statement: Bytes,
) -> Result<Served> {
    if !shared.taking_back.lock().is_empty() {
        return Err(Error::NotStreaming { region: from });
    }
    shared.wait_for(from, seen, shared.env.deadline(ARRIVAL)).await?;
    let Some(reader) = shared.engine.reader() else { return Err(Error::NotReading) };
    let (_, here) = shared.engine.applied();
    Ok(reader.read(statement, Label::update(shared.config.me, here)))
}
