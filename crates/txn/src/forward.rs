//! Commits in a cluster: a node that does not sequence the log hands them to the one that does.
//!
//! ```text
//!  this node                              owner                     next owner
//!  commit ──► postcard ──► Owners::ask ──► validate, append
//!                ▲            │ no answer      ╳ dies
//!                │            ▼
//!                └── look at the chain ── the same request, "again" ──► outcome of the transaction?
//!                                                                       there: committed; not: validate, append
//! ```
//! # Invariants
//! - A request that may have been carried out is sent again only as `again`: the owner then looks
//!   for the transaction's outcome before it validates, and once more before it says that there is
//!   a conflict. So nobody is told that a transaction failed that has committed, and nothing
//!   commits twice: a transaction's second attempt finds what the first one has written, which is a
//!   conflict with itself.
//! - Once a request may have been carried out, only a commit or a conflict ends it: any other error
//!   of a later attempt says nothing of the earlier one.
//! - An acknowledged commit is as durable as was asked for, whichever attempt has made it: one that
//!   finds what an earlier one has committed waits for the bucket like that one did.
//! - A node that takes the log over has applied everything below its own loglet before it answers
//!   an `again`.
//!
//! - What the answer says to be committed is told to this node's log server, so that the session's
//!   next statement, which has to see it, waits for the entry alone and asks nobody. The answer
//!   names the loglet: an entry of that number in another one may be another entry.
//!
//! # On failure
//! Without an owner until the deadline: [`Error::Unavailable`] when certainly nothing was
//! committed, else [`Error::OutcomeUnknown`].
//!
//! # Limits
//! A transaction that writes nothing and only says something (NOTIFY) finds no conflict with
//! itself: when its first attempt arrives later than its second, it is heard twice.

use std::fmt::Debug;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use telesto_bucket::Cause;
use telesto_bucket::meter::{ScopeMeter, current_scope, scoped};
use telesto_common::wait::{self, Wait};
use telesto_common::{Deadline, TxnId};
use telesto_log::chain::{Medium, Owner};
use telesto_meter::Resource;

use crate::api::{Cost, Durability};
use crate::error::{Error, Result};
use crate::local::Local;
use crate::peers::Peers;
use crate::service::{CommitReply, CommitRequest};
use crate::serving::LocalService;
use crate::view::NodeView;
use crate::wire;

/// Between two looks at who owns the log, at first and at most.
const LOOK: Duration = Duration::from_millis(10);
const LONGEST_LOOK: Duration = Duration::from_millis(100);
/// The longest one request to an owner is waited for before the chain is looked at: an owner that
/// was succeeded may not know it.
const ASKED: Duration = Duration::from_secs(2);

/// Why an owner gave no answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unanswered {
    /// The request may have been carried out.
    pub perhaps_done: bool,
    /// Why.
    pub reason: String,
}

/// How the owner of a log on another node is asked.
#[async_trait]
pub trait Owners: Debug + Send + Sync {
    /// The answer of [`crate::Engine::answer`] on the node that owns the log.
    ///
    /// # Errors
    /// [`Unanswered`].
    async fn ask(
        &self,
        owner: &Owner,
        request: Bytes,
        by: Deadline,
    ) -> std::result::Result<Bytes, Unanswered>;

    /// The nodes of the cluster, this one among them, as far as they are known.
    fn nodes(&self) -> Vec<NodeView>;

    /// The other nodes, to be asked; `None`: they cannot be.
    fn peers(&self) -> Option<Arc<dyn Peers>> {
        None
    }
}

/// What became of one attempt.
enum Attempt {
    Answered(Result<CommitReply>),
    /// Nothing was done, or perhaps something.
    Lost(Unanswered),
}

impl LocalService {
    /// Commits here or at the log's owner, whichever that is by then.
    pub(crate) async fn commit_in_cluster(
        &self,
        owners: &Arc<dyn Owners>,
        request: CommitRequest,
        again: bool,
        deadline: Deadline,
    ) -> Result<CommitReply> {
        let local = &self.0;
        let env = &local.env;
        let (mut again, mut pause) = (again, LOOK);
        loop {
            let Unanswered { perhaps_done, reason } =
                match self.attempt(owners, &request, again, deadline).await? {
                    Attempt::Answered(answer) => return answer,
                    Attempt::Lost(lost) => lost,
                };
            again |= perhaps_done;
            if deadline.passed(env.clock.monotonic() + pause) {
                return Err(given_up(request.txn, again, &reason));
            }
            env.clock.sleep(pause + env.jitter(pause / 2)).await;
            pause = (pause * 2).min(LONGEST_LOOK);
            // A bucket that does not answer now may do so later; the deadline bounds it.
            if let Err(error) = local.log.refresh(deadline).await {
                tracing::debug!(%error, "the chain could not be looked at for the log's owner");
            }
        }
    }

    async fn attempt(
        &self,
        owners: &Arc<dyn Owners>,
        request: &CommitRequest,
        again: bool,
        deadline: Deadline,
    ) -> Result<Attempt> {
        let local = &self.0;
        let env = &local.env;
        let chain = local.log.chain();
        let elsewhere = match &chain.active().medium {
            Medium::Quorum { owner, .. } if !local.log.sequences() => {
                (owner.node != local.options.identity.node).then_some(owner)
            }
            _ => None,
        };
        let Some(owner) = elsewhere else {
            return Ok(match self.commit_here(request.clone(), again, deadline).await {
                // What this process could not learn by its deadline, nobody tells it.
                Err(error @ (Error::OutcomeUnknown { .. } | Error::ShuttingDown)) if !again => {
                    Attempt::Answered(Err(error))
                }
                answer => weigh(answer, again),
            });
        };
        metrics::counter!("telesto_txn_forwarded_total").increment(1);
        let left = deadline.remaining(env.clock.monotonic());
        let bytes = wire::encode_commit(request, again, left)?;
        let sent = bytes.len() as u64;
        let by = deadline.earlier(env.deadline(ASKED));
        Ok(match wait::on(Wait::Owner, owners.ask(owner, bytes, by)).await {
            Err(lost) => Attempt::Lost(lost),
            Ok(answer) => {
                let loglet = wire::loglet_of_answer(&answer);
                let answer = wire::of_older(request, wire::decode_answer(request.txn, &answer));
                if let (Some(loglet), Ok(CommitReply::Committed { lsn, .. })) = (loglet, &answer) {
                    // What comes next in this session waits for the entry.
                    local.log.learn_committed(loglet, lsn.next(), deadline).await;
                }
                if let Ok(CommitReply::Committed { cost, .. }) = &answer {
                    // The way to the owner, and what the owner's copies cost: the owner has lent
                    // both out.
                    let copies = local.logged(sent);
                    let charge = cost.charge().and(Resource::Peers, sent) + copies;
                    match current_scope() {
                        Some(scope) => scope.add_extra(charge),
                        None => local.bucket.jobs().into_iter().for_each(|jobs| {
                            jobs.add_extra(Cause::Commit, charge);
                        }),
                    }
                }
                weigh(answer, again)
            }
        })
    }

    /// Validates and commits on this node. `again`: an earlier attempt may have committed it.
    pub(crate) async fn commit_here(
        &self,
        request: CommitRequest,
        again: bool,
        deadline: Deadline,
    ) -> Result<CommitReply> {
        let local = &self.0;
        let txn = request.txn;
        let started = local.env.clock.monotonic();
        let durability = request.durability.unwrap_or_else(|| self.by_log());
        if again && let Some(committed) = self.earlier(txn, deadline).await? {
            // The earlier attempt may have been given up while it waited for the bucket.
            if let CommitReply::Committed { lsn, .. } = &committed {
                self.durable(txn, *lsn, durability, deadline).await?;
            }
            return Ok(committed);
        }
        if !local.in_contact() {
            local.look(deadline).await?;
        }
        let committed = match self.validated(request, deadline).await {
            refused @ (Err(Error::Conflict { .. } | Error::NotAdded { .. })
            | Ok(CommitReply::Recheck(_)))
                if again =>
            {
                match self.earlier(txn, deadline).await? {
                    Some(committed) => committed,
                    None => return refused,
                }
            }
            answer => answer?,
        };
        if let CommitReply::Committed { lsn, .. } = &committed {
            self.durable(txn, *lsn, durability, deadline).await?;
            let took = local.env.clock.monotonic().saturating_sub(started);
            metrics::histogram!("telesto_txn_commit_seconds").record(took.as_secs_f64());
        }
        Ok(committed)
    }

    /// The commit of `txn`, if an earlier attempt has made it.
    async fn earlier(&self, txn: TxnId, by: Deadline) -> Result<Option<CommitReply>> {
        let local: &Arc<Local> = &self.0;
        if !local.sequences_and_knows_all() {
            local.look(by).await?;
        }
        let asked = local
            .on_shard(by, "reading an outcome", |shard| async move { shard.outcome(txn).await });
        let found = asked.await?;
        // Looked at last: the entry that holds it is not behind this one.
        let lsn = local.shard().applied().0;
        let cost = Cost::default();
        Ok(found.map(|timestamp| CommitReply::Committed { timestamp, lsn, cost }))
    }

    /// Answers a commit request of another node.
    pub(crate) async fn answer(&self, request: Bytes, by: Deadline) -> Bytes {
        let answered = async {
            let (request, again) = wire::decode_commit(&request)?;
            self.serves(request.shard)?;
            let env = &self.0.env;
            let deadline = by.earlier(env.deadline(request.timeout));
            if !self.0.log.sequences() {
                let owner = match &self.0.log.chain().active().medium {
                    Medium::Quorum { owner, .. } => owner.to_string(),
                    Medium::Bucket => "every process on its own".to_owned(),
                };
                return Err(Error::NotOwner { owner });
            }
            self.commit_here(request, again, deadline).await
        };
        // What it comes to is the other node's to pay, if that hears of it.
        let scope = ScopeMeter::shared(Cause::Commit);
        let mut answer = scoped(Arc::clone(&scope), answered).await;
        if let Ok(CommitReply::Committed { cost, .. }) = &mut answer {
            *cost = scope.cost(&scope.lend());
        }
        let loglet = match &answer {
            Ok(CommitReply::Committed { lsn, .. }) => self.0.log.loglet_of(*lsn),
            _ => None,
        };
        wire::encode_answer(&answer, loglet)
    }
}

/// What an answer says of the transaction. `again`: an earlier attempt may have been carried out,
/// or may still be, so that only a commit and a conflict, which the earlier attempt would meet too,
/// are the end of it: that nothing was done now is not that nothing was done.
fn weigh(answer: Result<CommitReply>, again: bool) -> Attempt {
    match answer {
        Err(error @ (Error::NotOwner { .. } | Error::ShuttingDown)) => {
            Attempt::Lost(Unanswered { perhaps_done: false, reason: error.to_string() })
        }
        // What one owner could not learn, the next one may.
        Err(Error::OutcomeUnknown { reason, .. }) => {
            Attempt::Lost(Unanswered { perhaps_done: true, reason })
        }
        Err(error) if again && !matches!(error, Error::Conflict { .. }) => {
            Attempt::Lost(Unanswered { perhaps_done: true, reason: error.to_string() })
        }
        answer => Attempt::Answered(answer),
    }
}

fn given_up(txn: TxnId, again: bool, reason: &str) -> Error {
    if again {
        return Error::OutcomeUnknown { txn, reason: reason.to_owned() };
    }
    Error::Unavailable(format!(
        "no owner of the log could be reached ({reason}); nothing was committed: run the transaction again, or look whether a majority of the nodes runs"
    ))
}

impl LocalService {
    /// Waits until the entry is as durable as asked for.
    async fn durable(
        &self,
        txn: TxnId,
        lsn: telesto_common::Lsn,
        durability: Durability,
        deadline: Deadline,
    ) -> Result<()> {
        if durability != Durability::Bucket {
            return Ok(());
        }
        let local = &self.0;
        let by = self.with_grace(deadline);
        // Costs nothing where the entry is in the bucket already.
        let archived = local.log.archive_through(lsn, by).await;
        archived.map_err(|error| Error::OutcomeUnknown { txn, reason: error.to_string() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_done_this_time_is_no_answer_while_an_earlier_attempt_may_count() {
        let failed = || Err(Error::Unavailable("nothing was committed".into()));
        assert!(matches!(weigh(failed(), false), Attempt::Answered(Err(_))));
        let doubtful = weigh(failed(), true);
        assert!(matches!(doubtful, Attempt::Lost(Unanswered { perhaps_done: true, .. })));
        let conflict = || {
            Err(Error::Conflict {
                txn: TxnId(1),
                other: TxnId(2),
                at: telesto_common::Timestamp(3),
                key: Bytes::new(),
            })
        };
        assert!(matches!(weigh(conflict(), true), Attempt::Answered(Err(_))));
    }
}
