//! Changing the medium of a live log through its chain.
//!
//! ```text
//! bucket -> quorum:  make local files | append Seal(next chain) at the tail | chain n+1 | sequence
//!                    a busy log:      make several, for slots ahead of the tail | race for each of these slots
//! quorum -> bucket:  archive most | stop and seal | archive the rest | chain n+1
//! ```
//! # Invariants
//! - A bucket loglet ends at its one seal entry, put in the next slot like any other entry: whoever
//!   reads it makes sure that the chain says what follows before going on.
//! - What follows a seal is decided by the seal. Its loglet is appended to the newest chain, so
//!   that a trim that comes between loses nothing.
//! - The seal says where the loglet behind it begins, and so do that loglet's files: they are made
//!   for one slot, before it is the next. Where others append faster than files are made, files for
//!   [`FOLLOWERS`] slots are made, as far ahead of the tail as others were found to go meanwhile; a
//!   slot costs one put then, as it costs the others. Those that are not used are removed.
//! - A seal names a loglet as its files are named: where the chain has gone on since they were
//!   made, they are of no use.
//! - A quorum loglet is wholly in the bucket before a bucket loglet follows it.
//! - A loglet that is left for the bucket has nothing undecided: what this process finds on the
//!   servers beyond what it has told counts nowhere before the chain says so.
//!
//! # On failure
//! A crash after the seal is healed by the next reader. A failure after the sequencer was stopped
//! is healed by the next append, or in a cluster by who looks after the log servers, with a new
//! quorum loglet; reads go on meanwhile. When the outcome of the chain put is unknown this process
//! is handing over (`crate::role`) until it has found out.

use std::sync::Arc;
use std::time::Duration;

use telesto_bucket::Cause;
use telesto_common::{Deadline, Lsn};

use crate::chain::{Chain, LogKind, Loglet, Medium, ServerInfo};
use crate::changes::LeavesBucket;
use crate::error::{Error, Result};
use crate::holders::Whose;
use crate::log::{Inner, VirtualLog};
use crate::options::Append;
use crate::quorum::Sequencer;
use crate::read::seal_of;
use crate::record::{Config, Entry, Record};
use crate::server::LogletKey;

/// Loglets that are made for one race: of one slot in so many a process wins one almost always,
/// whatever its neighbours append.
const FOLLOWERS: u64 = 8;
/// How many slots ahead of the tail the first of them may begin.
const MOST_AHEAD: u64 = 4000;
/// Between two looks at a tail that is not there yet.
const LOOK: Duration = Duration::from_millis(5);
/// A tail that has not moved for so long may not move again.
const QUIET: Duration = Duration::from_millis(300);
/// Bound on the removal of loglets that were not used.
const REMOVING: Duration = Duration::from_secs(10);
/// From the making of a loglet to its seal at most: a node that leaves waits for not much longer
/// until it takes a loglet that the chain does not name for one that it never will.
const AGE: Duration = Duration::from_millis(2500);

impl VirtualLog {
    /// Goes on with the other medium. Appenders need not stop: those of this process continue on
    /// the new loglet; other processes meet the seal and then get [`Error::NotOwner`] (to `quorum`)
    /// or may open the log (to `bucket`). No-op when the log is of that kind already.
    ///
    /// # Errors
    /// [`Error::NoLocalDisk`] and [`Error::LocalDisk`] (to `quorum`), [`Error::NotOwner`] when
    /// another process owns the log, those of the bucket. After an error the log may be of either
    /// kind; it is usable, and the call may be repeated.
    pub async fn switch(&self, to: LogKind, by: Deadline) -> Result<()> {
        self.switch_because(
            to,
            &format!("switched to {to} on request"),
            LeavesBucket::OnRequest,
            by,
        )
        .await
    }

    /// As [`Self::switch`], for the reason `why`. To the bucket: to leave it again as `leaves`
    /// says. To disks: of so many log servers at least as `leaves` says.
    ///
    /// # Errors
    /// As [`Self::switch`]; [`Error::Unavailable`] also when the log is in the bucket now but it
    /// could not be left there when it may leave it.
    pub async fn switch_because(
        &self,
        to: LogKind,
        why: &str,
        leaves: LeavesBucket,
        by: Deadline,
    ) -> Result<()> {
        let inner = &self.inner;
        let waiting = "waiting for a change of the log";
        let _changing = inner.store.env.within(by, waiting, inner.reconfigure.lock()).await?;
        inner.newest_chain(Cause::Registry, by).await?;
        let before = inner.chain().active().id;
        let least = match leaves {
            LeavesBucket::With(servers) => servers,
            LeavesBucket::Freely | LeavesBucket::OnRequest => 1,
        };
        self.switch_to((to, least), by).await?;
        match to {
            LogKind::Bucket => self.stays_in_bucket(why, leaves, by).await?,
            LogKind::Quorum if inner.chain().active().id != before => self.explain(why, None),
            LogKind::Quorum => {}
        }
        Ok(())
    }

    async fn switch_to(&self, (to, least): (LogKind, usize), by: Deadline) -> Result<()> {
        let inner = &self.inner;
        match (self.kind(), to) {
            (LogKind::Bucket, LogKind::Quorum) => self.to_quorum(least, by).await,
            (LogKind::Quorum, LogKind::Bucket) => inner.to_bucket(by).await,
            (LogKind::Quorum, LogKind::Quorum) => inner.settle_switch(by).await,
            (LogKind::Bucket, LogKind::Bucket) => {
                // A seal of an earlier switch, whose outcome nobody learned, may stand at the tail.
                self.tail(by).await?;
                match self.kind() {
                    LogKind::Quorum => inner.to_bucket(by).await,
                    // After a switch whose last reply was lost its files are of no more use.
                    LogKind::Bucket => inner.clean_local(&inner.chain(), by).await,
                }
            }
        }
    }

    async fn to_quorum(&self, least: usize, by: Deadline) -> Result<()> {
        let inner = &self.inner;
        // How many slots ahead of the tail the first of the loglets begins, and how many are made.
        let (mut ahead, mut many) = (0, 1);
        loop {
            let (at, _) = self.tail(by).await?;
            if self.kind() == LogKind::Quorum {
                return inner.settle_switch(by).await;
            }
            let born = inner.store.env.clock.monotonic();
            let mut followers = inner.followers(Lsn(at.next().0 + ahead), many, least, by).await?;
            let race = self.seal_before(&mut followers, born + AGE, by).await;
            inner.discard_followers(followers);
            match race? {
                Race::Won(key) => {
                    let installed = inner.install_sequencer(key, by).await?;
                    return if installed { Ok(()) } else { Err(inner.reconfigured()) };
                }
                Race::Changed => {}
                // Others took these slots while the loglets were made.
                Race::Lost { made } => {
                    ahead = (made.0.saturating_sub(at.0) * 5 / 4).min(MOST_AHEAD)
                }
                Race::Quiet => ahead = 0,
            }
            many = FOLLOWERS;
        }
    }

    /// Appends a seal to the bucket loglet that one of `followers` follows: the one that begins
    /// behind the slot that this process wins, until `ends`. Those that it leaves in `followers`
    /// are in no chain.
    async fn seal_before(
        &self,
        followers: &mut Vec<Follower>,
        ends: Duration,
        by: Deadline,
    ) -> Result<Race> {
        let inner = &self.inner;
        let clock = &inner.store.env.clock;
        let (mut made, mut seen) = (None, (Lsn::ZERO, clock.monotonic()));
        loop {
            let (at, hash) = self.tail(by).await?;
            let chain = inner.chain();
            let made = *made.get_or_insert(at);
            let next = chain.active().id + 1;
            if chain.active().medium.kind() == LogKind::Quorum
                || followers.iter().any(|one| one.key.loglet != next)
            {
                return Ok(Race::Changed);
            }
            let now = clock.monotonic();
            let place = followers.iter().position(|one| one.start >= at.next());
            let Some(place) = place.filter(|_| now < ends) else {
                return Ok(Race::Lost { made });
            };
            if followers[place].start > at.next() {
                // The slots before are for others; if none wants them, none is in the way either.
                if at > seen.0 {
                    seen = (at, now);
                }
                if now.saturating_sub(seen.1) > QUIET {
                    return Ok(Race::Quiet);
                }
                clock.sleep(LOOK).await;
                continue;
            }
            // From here on it may be in a chain.
            let follower = followers.remove(place);
            let writer = inner.store.env.writer_token();
            // The hash of the seal itself is filled in by whoever heals it.
            let next = chain.followed_by(writer, follower.start, [0; 16], follower.medium.clone());
            let seal = Config::Seal { next_version: next.version, next_chain: next.encode() };
            match inner.append_slot(at, hash, vec![Record::Config(seal)], by).await? {
                // Certainly not our seal: its loglet is in no chain.
                Append::Taken { .. } => followers.push(follower),
                Append::Committed(entry) => {
                    inner.heal_seal(chain.active(), &entry, Cause::Registry, by).await?;
                    let healed = inner.chain();
                    let ours = matches!(
                        &healed.active().medium,
                        Medium::Quorum { token, .. } if *token == follower.key.token
                    );
                    let ours = ours && healed.active().id == follower.key.loglet;
                    return if ours {
                        Ok(Race::Won(follower.key))
                    } else {
                        Err(inner.reconfigured())
                    };
                }
            }
        }
    }

    /// Reads to the tail; gives it and the hash before it.
    async fn tail(&self, by: Deadline) -> Result<(Lsn, [u8; 16])> {
        let mut next = {
            let state = self.inner.state.lock();
            let reached = state.trail.reached().unwrap_or(state.chain.trim.lsn);
            // The last one again: it may be a seal of ours whose chain version was not put.
            reached.prev().max(state.chain.trim.lsn)
        };
        loop {
            let batch = self.read(next, 8 << 20, Cause::Registry, by).await?;
            next = batch.next(next);
            if self.kind() == LogKind::Quorum {
                return Ok((next, [0; 16])); // met a seal: there is nothing to append
            }
            if batch.at_tail {
                return Ok((next, self.hash_before(next, by).await?));
            }
        }
    }
}

/// A loglet on disks that may follow the bucket's: of no chain yet.
struct Follower {
    /// Its first entry: the slot before is the seal's.
    start: Lsn,
    medium: Medium,
    key: LogletKey,
}

/// How the race for a slot ended.
enum Race {
    /// The chain goes on with this loglet of ours.
    Won(LogletKey),
    /// Others have filled all slots that a seal of ours could stand in, or the loglets are too old;
    /// the tail when they had been made.
    Lost { made: Lsn },
    /// Another process has changed the log meanwhile: nothing follows as it was thought.
    Changed,
    /// Nobody appends: the next slot is ours for the taking.
    Quiet,
}

/// The log servers of a loglet.
fn servers_of(medium: &Medium) -> Vec<ServerInfo> {
    match medium {
        Medium::Quorum { servers, .. } => servers.clone(),
        Medium::Bucket => Vec::new(),
    }
}

impl Inner {
    /// Makes `many` loglets on log servers, which begin at `start` and at the entries behind it;
    /// gives those that could be made, one at least.
    async fn followers(
        self: &Arc<Self>,
        start: Lsn,
        many: u64,
        least: usize,
        by: Deadline,
    ) -> Result<Vec<Follower>> {
        let chain = self.chain();
        let id = chain.active().id + 1;
        let making = (start.0..start.0 + many).map(|start| async move {
            let (medium, token) = self.new_quorum(id, Lsn(start), &[], &[], by).await?;
            let key = LogletKey { shard: self.store.shard, loglet: id, token };
            Ok(Follower { start: Lsn(start), medium, key })
        });
        let (mut followers, mut few, mut failure) = (Vec::new(), Vec::new(), None);
        for made in futures::future::join_all(making).await {
            match made {
                Ok(follower) if servers_of(&follower.medium).len() < least => few.push(follower),
                Ok(follower) => followers.push(follower),
                Err(error) => failure = Some(error),
            }
        }
        let most = few.iter().map(|one| servers_of(&one.medium).len()).max();
        self.discard_followers(few);
        if !followers.is_empty() {
            return Ok(followers);
        }
        Err(failure.unwrap_or(Error::Unavailable {
            shard: chain.shard,
            reason: format!(
                "{} nodes could keep it on their disks by now, and {least} shall",
                most.unwrap_or(0)
            ),
        }))
    }

    /// Removes loglets that are in no chain; nobody waits for it.
    fn discard_followers(self: &Arc<Self>, followers: Vec<Follower>) {
        if followers.is_empty() {
            return;
        }
        let inner = Arc::clone(self);
        self.store.env.spawn("removing parts of the log that were not used", async move {
            let by = inner.store.env.deadline(REMOVING);
            let removing = followers.iter().map(|one| async {
                inner.discard(one.key, &servers_of(&one.medium), by).await;
            });
            futures::future::join_all(removing).await;
        });
    }

    /// The chain names a quorum loglet now: sequence it if it is ours, or nobody's any more.
    async fn settle_switch(self: &Arc<Self>, by: Deadline) -> Result<()> {
        let chain = self.chain();
        let others = match &chain.active().medium {
            Medium::Quorum { owner, .. } => owner.node != self.options.identity.node,
            Medium::Bucket => false,
        };
        // In a cluster it is as good as this node's.
        if self.view()?.1.owner().is_some() || (others && self.options.cluster.is_some()) {
            return Ok(());
        }
        self.take_over(Whose::Own, &[], by).await
    }

    async fn to_bucket(self: &Arc<Self>, by: Deadline) -> Result<()> {
        let Some((sequencer, (end, hash))) = self.stop_decided(by).await? else { return Ok(()) };
        let chain = self.chain();
        let servers = servers_of(&chain.active().medium);
        let holders = self.holders(&servers, by).await?;
        let sealed = self.recover_loglet(sequencer.key(), chain.active(), &holders, by).await?;
        if sealed != (end, hash) {
            return Err(Error::Corrupt {
                object: format!("loglet {} of shard {}", chain.active().id, chain.shard),
                lsn: Some(end),
                reason: format!("the log servers end at entry {}", sealed.0),
            });
        }
        self.archive_through(end.prev(), by).await?;
        // From the next request on others may append, long before its reply is here, if it ever is.
        self.hand_over(&sequencer);
        loop {
            let chain = self.chain();
            if chain.active().id != sequencer.key().loglet {
                return Err(self.reconfigured());
            }
            let writer = self.store.env.writer_token();
            let next = chain.followed_by(writer, end, hash, Medium::Bucket);
            if self.put_chain(next, by).await? {
                if self.options.cluster.is_some() {
                    // Nobody needs them: everything is in the bucket.
                    self.remove(sequencer.key(), &servers, true, by).await;
                }
                if let Err(error) = self.clean_local(&self.chain(), by).await {
                    tracing::warn!(%error, "cleaning the local log failed; again at the next start");
                }
                return Ok(());
            }
        }
    }

    /// Stops this process's sequencer with everything in the archive but a little, and nothing
    /// undecided: what it gives is all that the loglet has, and all of it was told. What an append
    /// has left undecided no count of this process decides: another one may have gone on without
    /// it, and only the chain knows. So the log goes on in a loglet of this process first. `None`:
    /// the log is in the bucket.
    async fn stop_decided(
        self: &Arc<Self>,
        by: Deadline,
    ) -> Result<Option<(Arc<Sequencer>, (Lsn, [u8; 16]))>> {
        loop {
            let owner = self.view()?.1.owner().cloned().filter(|own| !own.is_stopped());
            let sequencer = match owner {
                Some(sequencer) => sequencer,
                None => {
                    // An append or an earlier switch was left undecided, or the owner is gone.
                    self.take_over(Whose::Own, &[], by).await?;
                    match self.view()?.1.owner() {
                        Some(sequencer) => Arc::clone(sequencer),
                        None if self.chain().active().medium.kind() == LogKind::Bucket => {
                            return Ok(None);
                        }
                        None => return Err(self.reconfigured()),
                    }
                }
            };
            // Most of it while appends go on; then only a little is left.
            self.archive_through(sequencer.next().prev(), by).await?;
            if let Some(position) = sequencer.stop(by).await {
                return Ok(Some((sequencer, position)));
            }
        }
    }

    fn reconfigured(&self) -> Error {
        Error::Unavailable {
            shard: self.store.shard,
            reason: "the log was reconfigured by another process meanwhile".into(),
        }
    }

    /// Makes sure that the chain goes on after `seal`, the last entry of `loglet`.
    pub async fn heal_seal(
        &self,
        loglet: &Loglet,
        seal: &Entry,
        cause: Cause,
        by: Deadline,
    ) -> Result<()> {
        let Some((version, bytes)) = seal_of(seal) else { return Ok(()) };
        loop {
            if self.chain().active().id > loglet.id {
                return Ok(());
            }
            let chain = self.newest_chain(cause, by).await?;
            if chain.active().id > loglet.id {
                return Ok(());
            }
            if chain.trim.lsn > seal.lsn {
                // What a late writer left below the trim point decides nothing.
                return Err(Error::Trimmed {
                    shard: chain.shard,
                    asked: seal.lsn,
                    start: chain.trim.lsn,
                });
            }
            let decided = Chain::decode(self.store.shard, version, bytes)?;
            let follower = decided.active();
            if follower.start != seal.lsn.next() || follower.id != loglet.id + 1 {
                return Err(Error::Corrupt {
                    object: crate::keys::slot(self.store.shard, loglet.id, seal.lsn),
                    lsn: Some(seal.lsn),
                    reason: "its seal names a loglet that does not follow".into(),
                });
            }
            let medium = follower.medium.clone();
            let writer = self.store.env.writer_token();
            let next = chain.followed_by(writer, seal.lsn.next(), seal.hash, medium);
            self.put_chain(next, by).await?;
        }
    }
}
