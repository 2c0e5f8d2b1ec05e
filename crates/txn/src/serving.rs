//! The shard service of this process: how a transaction's requests are answered by direct calls.
//!
//! # Invariants
//! - Every request ends by its own bound, whatever the shard has to fetch for it.
//! - The committer is handed only what it can validate from memory. Where memory does not reach
//!   back far enough, the transaction's own task looks into checkpoint and parts first, as often as
//!   it takes.
//! - A snapshot at a past timestamp is given out only when no commit at or below it can come any
//!   more: below the newest commit that is so; above it, time is closed first by an entry that
//!   holds nothing, and which is applied here before the snapshot is taken, with all that is before
//!   it.
//!
//! # On failure
//! Errors of the layers below are mapped in `crate::error`. Reads of a shard that is replaced under
//! them are made again on the new one.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use telesto_bucket::meter::current_scope;
use telesto_common::planted::Bug;
use telesto_common::{Deadline, ShardId, Timestamp};
use telesto_shard::{Change, Error as ShardError, Read, Row, ScanSpec, ShardScan};
use tokio::sync::oneshot;

use crate::api::{Cost, Durability, Outcome};
use crate::commit::checks::{Checks, Found};
use crate::commit::committer::{Answer, Pending};
use crate::error::{Error, Result};
use crate::leases;
use crate::local::Local;
use crate::read_set::Reads;
use crate::service::{
    BeginReply, BeginRequest, ChangedReply, ChangedRequest, CommitReply, CommitRequest,
    CommitWrites, Freshness, GetRequest, LeaseId, LocalShard, LocalSnapshot, NeverWrittenRequest,
    OutcomeRequest, RowStream, ScanRequest, ShardService,
};
use crate::transaction::conflict;

/// Extra time a commit's caller waits for the committer, which keeps the deadline itself.
const GRACE: Duration = Duration::from_secs(5);
/// How long what other regions committed waits for what is being written anew: everything that they
/// commit later waits behind it, while whoever holds a table may do so for as long as a client
/// thinks.
const APPLIES_WITHIN: Duration = Duration::from_secs(2);
/// How far ahead of this process's clock a timestamp to read at may lie: so long it is waited for.
const AHEAD: Duration = Duration::from_secs(1);
/// How long what a session has seen is waited for before the log servers are asked.
const STREAM: Duration = Duration::from_millis(20);
/// Rows of a page of a scan, at most.
const PAGE_ROWS: u64 = 4096;
/// How often a transaction's reads are looked for outside memory for one commit.
const MAX_LOOKS: u32 = 16;

/// [`Local`] as transactions see it.
#[derive(Debug, Clone)]
pub(crate) struct LocalService(pub Arc<Local>);

impl LocalService {
    /// Refuses what is meant for another shard.
    pub(crate) fn serves(&self, shard: ShardId) -> Result<()> {
        if shard == self.0.options.shard { Ok(()) } else { Err(Error::WrongShard(shard)) }
    }

    async fn begin_checked(&self, request: &BeginRequest) -> Result<LocalSnapshot> {
        if let Some(begun) = self.try_begin(request) {
            return begun;
        }
        if let Some(begun) = self.begin_by_stream(request).await {
            return begun;
        }
        let local = &self.0;
        // Asked first: what is acknowledged from here on is applied before.
        let knows_all = local.sequences_and_knows_all();
        let by = local.env.deadline(request.timeout);
        local.look_for(request, by).await?;
        let newest = local.shard.read().applied().1;
        if let Freshness::AtLeast(at) = request.freshness
            && at > newest
        {
            return Err(Error::SessionAhead { at, newest });
        }
        if let Some(at) = request.as_of
            && at > newest
        {
            self.close_time(at, by).await?;
        }
        local.snapshot(request, knows_all)
    }

    /// What a session has seen is on its way here where this node follows the log: waiting for it
    /// asks nobody, a look asks all log servers. `None`: it did not come soon, or more is wanted
    /// than that.
    async fn begin_by_stream(&self, request: &BeginRequest) -> Option<Result<LocalSnapshot>> {
        let local = &self.0;
        let Freshness::AtLeast(at) = request.freshness else { return None };
        let as_of = request.as_of.is_some_and(|as_of| as_of > at);
        if as_of || !local.follows() || !local.is_recent_enough(request) {
            return None;
        }
        let by = local.env.deadline(request.timeout);
        if self.applies_soon(at, by).await { self.try_begin(request) } else { None }
    }
}

#[async_trait]
impl LocalShard for LocalService {
    fn try_begin(&self, request: &BeginRequest) -> Option<Result<LocalSnapshot>> {
        let local = &self.0;
        if local.closed() {
            return Some(Err(Error::ShuttingDown));
        }
        let knows_all = local.sequences_and_knows_all();
        (local.in_contact() && local.fresh_enough(request))
            .then(|| local.snapshot(request, knows_all))
    }

    async fn begin_here(&self, request: &BeginRequest) -> Result<LocalSnapshot> {
        self.begin_checked(request).await
    }

    fn known_change(&self, key: &Bytes, since: Timestamp) -> Option<Change> {
        let shard = self.0.shard.read();
        shard.try_changed_since(std::slice::from_ref(key), &[], since).flatten()
    }

    fn try_get(&self, key: &[u8], at: Timestamp) -> Option<Result<Read>> {
        self.0.shard.read().try_get(key, at).map(|read| read.map_err(Error::from))
    }

    fn stream(&self, request: ScanRequest) -> Box<dyn RowStream> {
        let rows = self.0.shard().scan(request.range, request.at, request.spec);
        Box::new(LocalRows { local: Arc::clone(&self.0), rows, timeout: request.timeout })
    }
}

#[async_trait]
impl ShardService for LocalService {
    async fn begin(&self, request: BeginRequest) -> Result<BeginReply> {
        self.serves(request.shard)?;
        let LocalSnapshot { snapshot, newest, guard } = self.begin_checked(&request).await?;
        let lease = self.0.leases.grant(&self.0.env, guard)?;
        Ok(BeginReply { snapshot, newest, lease, lasts: leases::LASTS })
    }

    async fn renew(&self, leases: Vec<LeaseId>) -> Result<Vec<LeaseId>> {
        Ok(self.0.leases.renew(&self.0.env, &leases))
    }

    async fn release(&self, leases: Vec<LeaseId>) -> Result<()> {
        self.0.leases.release(&leases);
        Ok(())
    }

    async fn get(&self, request: GetRequest) -> Result<Vec<Read>> {
        self.serves(request.shard)?;
        let by = self.0.env.deadline(request.timeout);
        let (keys, at) = (&request.keys[..], request.at);
        self.0
            .on_shard(by, "reading", |shard| async move {
                match keys {
                    [key] => Ok(vec![shard.get(key, at).await?]),
                    keys => shard.get_many(keys, at).await,
                }
            })
            .await
    }

    async fn never_written(&self, request: NeverWrittenRequest) -> Result<bool> {
        self.serves(request.shard)?;
        let by = self.0.env.deadline(request.timeout);
        let (range, at) = (&request.range, request.at);
        let look =
            |shard: Arc<telesto_shard::Shard>| async move { shard.never_written(range, at).await };
        self.0.on_shard(by, "reading", look).await
    }

    async fn scan(&self, request: ScanRequest) -> Result<Vec<Row>> {
        self.serves(request.shard)?;
        let limit = request.spec.limit.unwrap_or(u64::MAX).min(PAGE_ROWS);
        let spec = ScanSpec { limit: Some(limit), ..request.spec };
        let wanted = usize::try_from(limit).unwrap_or(usize::MAX);
        let mut stream = self.stream(ScanRequest { spec, ..request });
        // One batch is as much as a reply holds: the caller asks on from its last row.
        stream.next_batch(wanted).await
    }

    async fn changed(&self, request: ChangedRequest) -> Result<ChangedReply> {
        self.serves(request.shard)?;
        let by = self.0.env.deadline(request.timeout);
        let request = &request;
        self.0
            .on_shard(by, "validating reads", |shard| async move {
                // Taken first: what is applied while this runs may be missed.
                let through = shard.applied().1;
                let ChangedRequest { keys, ranges, since, .. } = request;
                let change = match shard.try_changed_since(keys, ranges, *since) {
                    Some(change) => change,
                    None => shard.changed_since(keys, ranges, *since).await?,
                };
                Ok(ChangedReply { change, through })
            })
            .await
    }

    async fn commit(&self, request: CommitRequest) -> Result<CommitReply> {
        self.commit_once(request, false).await
    }

    async fn outcome(&self, request: OutcomeRequest) -> Result<Outcome> {
        self.serves(request.shard)?;
        let OutcomeRequest { txn, timeout, .. } = request;
        let local = &self.0;
        let by = local.env.deadline(timeout);
        if !local.sequences_and_knows_all() {
            local.look(by).await?;
        }
        let asked = local
            .on_shard(by, "reading an outcome", |shard| async move { shard.outcome(txn).await });
        if let Some(timestamp) = asked.await? {
            return Ok(Outcome::Committed(timestamp));
        }
        Ok(if local.outcomes.aborted(txn) { Outcome::Aborted } else { Outcome::Unknown })
    }
}

impl LocalService {
    /// Commits here or at the log's owner. `again`: it may have been committed already.
    pub(crate) async fn commit_once(
        &self,
        request: CommitRequest,
        again: bool,
    ) -> Result<CommitReply> {
        self.serves(request.shard)?;
        let local = &self.0;
        let deadline = local.env.deadline(request.timeout);
        if !again {
            // What may be committed already is asked for at once.
            self.pass_holds(&request).await?;
        }
        match &local.options.cluster {
            Some(cluster) => {
                let owners = Arc::clone(&cluster.owners);
                self.commit_in_cluster(&owners, request, again, deadline).await
            }
            None => self.commit_here(request, again, deadline).await,
        }
    }

    /// Waits while somebody writes anew what the request writes into.
    async fn pass_holds(&self, request: &CommitRequest) -> Result<()> {
        let local = &self.0;
        // What is left is for the commit itself.
        let by = local.env.deadline(request.timeout / 4 * 3);
        let applies = matches!(request.writes, CommitWrites::Applied { .. });
        let by = if applies { by.earlier(local.env.deadline(APPLIES_WITHIN)) } else { by };
        let passed = local.holds.pass(&local.env, request, by).await;
        passed.or_else(|other| {
            if applies {
                return Ok(());
            }
            local.outcomes.abort(request.txn);
            let (txn, at) = (request.txn, local.shard().applied().1);
            Err(Error::Conflict { txn, other: other.by, at, key: other.key })
        })
    }

    /// A little more time than `deadline`: the committer keeps that itself.
    pub(crate) fn with_grace(&self, deadline: Deadline) -> Deadline {
        let now = self.0.env.clock.monotonic();
        Deadline::at(now + deadline.remaining(now) + GRACE)
    }

    /// How durable a commit is that does not say.
    pub(crate) fn by_log(&self) -> Durability {
        if self.0.log.sequences() { Durability::Quorum } else { Durability::Bucket }
    }

    /// Hands the request to the committer; where memory does not tell whether it is valid, looks
    /// further first.
    pub(crate) async fn validated(
        &self,
        request: CommitRequest,
        deadline: Deadline,
    ) -> Result<CommitReply> {
        let local = &self.0;
        let txn = request.txn;
        let mut checks = Checks::of(&request);
        let mut request = request;
        for looks in 0..MAX_LOOKS {
            let (checked, found) = self.look_ahead(checks, deadline).await?;
            match found {
                Found::Nothing => {}
                // Asked for once more, and there already.
                Found::Conflict(change) | Found::Recheck(change) if change.txn == txn => {
                    let (timestamp, lsn) = (change.at, local.shard().applied().0);
                    return Ok(CommitReply::Committed { timestamp, lsn, cost: Cost::default() });
                }
                Found::Conflict(change) => {
                    metrics::counter!("telesto_txn_conflicts_total").increment(1);
                    local.outcomes.abort(txn);
                    return Err(conflict(txn, change));
                }
                Found::Recheck(change) => return Ok(CommitReply::Recheck(change)),
            }
            match self.enqueue(request, checked, looks, deadline).await? {
                Answer::Reply(reply) => return Ok(reply),
                Answer::NotInMemory(again) => (request, checks) = *again,
            }
        }
        local.outcomes.abort(txn);
        Err(Error::Unavailable(
            "what this transaction read leaves memory faster than it can be validated; nothing was committed: run it again, or raise the memory limit".to_owned(),
        ))
    }

    /// What memory does not tell of the reads, found out in the caller's own task.
    async fn look_ahead(&self, checks: Checks, deadline: Deadline) -> Result<(Checks, Found)> {
        let checks = &checks;
        self.0
            .on_shard(deadline, "validating reads", |shard| async move {
                let mut checks = checks.clone();
                let found = checks.ahead(&shard).await?;
                Ok((checks, found))
            })
            .await
    }

    /// Waits for a place in the queue, then for the committer.
    async fn enqueue(
        &self,
        request: CommitRequest,
        checks: Checks,
        looks: u32,
        deadline: Deadline,
    ) -> Result<Answer> {
        let local = &self.0;
        let clock = &local.env.clock;
        let txn = request.txn;
        let unknown = |reason: String| Error::OutcomeUnknown { txn, reason };
        let since = clock.monotonic();
        let left = deadline.remaining(since);
        let wall_deadline_micros =
            clock.wall_micros() + u64::try_from(left.as_micros()).unwrap_or(u64::MAX / 4);
        let (reply, answer) = oneshot::channel();
        let bytes = request_bytes(&request);
        let payer = current_scope();
        let pending = Pending {
            request,
            checks,
            deadline,
            wall_deadline_micros,
            looks,
            bytes,
            since,
            payer,
            reply,
        };
        let queue = local.queue.lock().clone().ok_or(Error::ShuttingDown)?;
        local
            .env
            .within(deadline, "waiting for a place in the commit queue", queue.send(pending))
            .await?
            .map_err(|_| Error::ShuttingDown)?;
        drop(queue);
        let by = self.with_grace(deadline);
        local
            .env
            .within(by, "waiting for the commit", answer)
            .await
            .map_err(|error| unknown(error.to_string()))?
            .map_err(|_| unknown("the database stopped while committing".to_owned()))?
    }

    /// Makes sure that no commit at or below `at` can come any more, by an entry that holds nothing
    /// but a later timestamp.
    async fn close_time(&self, at: Timestamp, by: Deadline) -> Result<()> {
        let local = &self.0;
        if local.env.planted(Bug::ReadsOpenTime) {
            return Ok(());
        }
        let clock = &local.env.clock;
        let ahead = at.wall_micros().saturating_sub(clock.wall_micros());
        if ahead > 0 {
            let ahead = Duration::from_micros(ahead + 1);
            if ahead > AHEAD || ahead > by.remaining(clock.monotonic()) {
                return Err(Error::Unavailable(format!(
                    "timestamp {at} lies {} s ahead of this node's clock; read at a time that is over, or set the clock",
                    ahead.as_secs_f64()
                )));
            }
            clock.sleep(ahead).await;
        }
        metrics::counter!("telesto_txn_time_closed_total").increment(1);
        let request = CommitRequest {
            shard: local.options.shard,
            txn: local.env.txn_id(),
            reads: Reads::default(),
            writes: CommitWrites::Inline(Vec::new()),
            messages: Vec::new(),
            after: at.prev(),
            origin: None,
            durability: None,
            timeout: by.remaining(clock.monotonic()),
        };
        self.commit(request).await?;
        // The entry may be another node's, which has put others before it that belong to that time
        // too.
        if self.applies_soon(at, by).await {
            return Ok(());
        }
        local.look(by).await
    }

    /// Whether what is on its way here reaches `at` before long.
    async fn applies_soon(&self, at: Timestamp, by: Deadline) -> bool {
        let local = &self.0;
        let mut reached = local.reached.subscribe();
        let soon = local.env.deadline(STREAM).earlier(by);
        let came = reached.wait_for(|_| local.shard.read().applied().1 >= at);
        let came = local.env.within(soon, "what was committed", came).await;
        came.is_ok_and(|came| came.is_ok())
    }
}

/// A row that is added to, about.
const ADDED_BYTES: usize = 256;

/// What a request adds to an entry, about.
fn request_bytes(request: &CommitRequest) -> usize {
    let carried = request.writes.carried().map(|checked| {
        checked.write.key.len() + checked.write.value.as_ref().map_or(0, Bytes::len)
    });
    let parts = match &request.writes {
        CommitWrites::Inline(_) | CommitWrites::Adding { .. } => 0,
        CommitWrites::Applied { remote, .. } => remote.iter().map(|one| one.parts.len()).sum(),
        CommitWrites::External { parts, .. } => parts.len(),
    };
    let writes = carried.sum::<usize>() + parts * 256;
    let added = request.writes.additions().iter().map(|addition| addition.key.len() + ADDED_BYTES);
    writes + added.sum::<usize>() + request.messages.iter().map(Bytes::len).sum::<usize>()
}

struct LocalRows {
    local: Arc<Local>,
    rows: ShardScan,
    timeout: Duration,
}

#[async_trait]
impl RowStream for LocalRows {
    async fn next_batch(&mut self, max_rows: usize) -> Result<Vec<Row>> {
        let env = &self.local.env;
        let by = env.deadline(self.timeout);
        loop {
            match env.within(by, "scanning", self.rows.next_batch(max_rows)).await? {
                Err(ShardError::Closed) if !Arc::ptr_eq(self.rows.shard(), &self.local.shard()) => {
                    self.rows.move_to(self.local.shard());
                }
                rows => return Ok(rows?),
            }
        }
    }
}
