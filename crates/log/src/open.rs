//! Creating and opening a log, and taking over a quorum loglet whose owner is gone.
//!
//! ```text
//! take over:  lock the directory -> read the chain again -> seal -> longest prefix, made safe
//!             -> make the new loglet's files -> chain n+1 put-if-absent -> sequence
//! ```
//! # Invariants
//! - A loglet's files exist, durably, before a chain version names them.
//! - Files are removed only when it is certain that no chain version names them.
//!
//! # On failure
//! A crash anywhere leaves a loglet that the next life takes over the same way, and at most files
//! that no chain names, which it removes.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use telesto_bucket::{Bucket, Cause};
use telesto_common::planted::Bug;
use telesto_common::{Deadline, Env, Lsn, NodeId, ShardId};

use crate::archive::Archive;
use crate::chain::{Chain, LogKind, Loglet, Medium, Owner, TrimPoint, first_id};
use crate::contact::Moment;
use crate::disk::Disk;
use crate::error::{DiskFault, Error, Result};
use crate::holders::{Holders, Whose};
use crate::log::{Inner, State, VirtualLog};
use crate::options::LogOptions;
use crate::quorum::Sequencer;
use crate::role::Role;
use crate::server::{LocalLogServer, LogletKey};
use crate::store::Store;
use crate::trail::Trail;

/// What is waited for when the local disk is asked outside a log server's calls.
const LOCAL: &str = "waiting for the local log";

/// The newest chain of a shard's log; `None` when it has none. Reads only.
///
/// # Errors
/// Those of the bucket; [`Error::Corrupt`], [`Error::TooNew`].
pub async fn newest_chain(
    bucket: Arc<dyn Bucket>,
    env: Env,
    shard: ShardId,
    by: Deadline,
) -> Result<Option<Chain>> {
    Store { bucket, env, shard }.newest_chain(Cause::Open, by).await
}

/// One version of a shard's chain; `None` when it is not there. Reads only.
///
/// # Errors
/// As [`newest_chain`].
pub async fn chain_version(
    bucket: Arc<dyn Bucket>,
    env: Env,
    shard: ShardId,
    version: u64,
    by: Deadline,
) -> Result<Option<Chain>> {
    Store { bucket, env, shard }.chain_version(Cause::Open, version, by).await
}

impl VirtualLog {
    /// Makes the log of a new shard and opens it.
    ///
    /// # Errors
    /// [`Error::AlreadyExists`] when there is one (a race of creators has one winner; the others
    /// get this and may `open`), and those of the bucket and the local disk.
    pub async fn create(
        bucket: Arc<dyn Bucket>,
        env: Env,
        shard: ShardId,
        options: LogOptions,
    ) -> Result<Self> {
        let store = Store { bucket, env, shard };
        let by = store.env.deadline(options.timeout);
        let url = store.bucket.url().to_owned();
        if store.chain_version(Cause::Registry, 1, by).await?.is_some() {
            return Err(Error::AlreadyExists { shard, bucket: url });
        }
        let kind = options.kind;
        let id = first_id(0, store.env.random.next_u64());
        let mut chain = Chain {
            shard,
            version: 1,
            writer: store.env.writer_token(),
            previous: [0; 16],
            retention_micros: u64::try_from(options.retention.as_micros()).unwrap_or(u64::MAX),
            trim: TrimPoint { lsn: Lsn::FIRST, previous_hash: [0; 16] },
            loglets: vec![Loglet {
                id,
                start: Lsn::FIRST,
                start_hash: [0; 16],
                medium: Medium::Bucket,
            }],
        };
        let log = Self::with_chain(store, options, chain.clone());
        let inner = &log.inner;
        if kind == LogKind::Quorum {
            let (medium, _) = inner.new_quorum(id, Lsn::FIRST, &[], &[], by).await?;
            chain.loglets[0].medium = medium;
            inner.state.lock().chain = Arc::new(chain.clone());
        }
        let created = inner.store.put_chain(&chain, by).await?;
        if !created {
            if let Medium::Quorum { token, servers, .. } = &chain.active().medium {
                inner.discard(LogletKey { shard, loglet: id, token: *token }, servers, by).await;
            }
            return Err(Error::AlreadyExists { shard, bucket: url });
        }
        if let Medium::Quorum { token, .. } = &chain.active().medium {
            inner.install_sequencer(LogletKey { shard, loglet: id, token: *token }, by).await?;
        }
        log.inner.start_tending();
        Ok(log)
    }

    /// Opens the log of an existing shard. When its newest loglet is a quorum loglet whose owner on
    /// this machine is gone, this process takes it over; in a cluster, when its owner was this
    /// node. Another node's is followed.
    ///
    /// # Errors
    /// [`Error::NotFound`] when there is none, [`Error::NotOwner`] when, outside of a cluster,
    /// another process sequences it or has its newest entries, and those of the bucket, the local
    /// disk and the log servers.
    pub async fn open(
        bucket: Arc<dyn Bucket>,
        env: Env,
        shard: ShardId,
        options: LogOptions,
    ) -> Result<Self> {
        let store = Store { bucket, env, shard };
        let by = store.env.deadline(options.timeout);
        let Some(chain) = store.newest_chain(Cause::Open, by).await? else {
            return Err(Error::NotFound { shard, bucket: store.bucket.url().to_owned() });
        };
        let log = Self::with_chain(store, options, chain);
        let waiting = "waiting for a change of the log";
        let changing =
            log.inner.store.env.within(by, waiting, log.inner.reconfigure.lock()).await?;
        match log.inner.take_over(Whose::Own, &[], by).await {
            Err(Error::NotOwner { .. }) if log.inner.options.cluster.is_some() => {
                // What earlier lives of this node left behind.
                if let Err(error) = log.inner.clean_local(&log.inner.chain(), by).await {
                    tracing::warn!(%error, "cleaning the local log failed; again at the next start");
                }
            }
            done => done?,
        }
        drop(changing);
        // Also where another node owns it: a chain may come to name this one without its knowing,
        // when what it wrote was never answered.
        log.inner.start_tending();
        Ok(log)
    }

    /// The log as its newest chain says, without taking anything over.
    pub(crate) async fn over_newest(
        bucket: Arc<dyn Bucket>,
        env: Env,
        shard: ShardId,
        options: LogOptions,
        by: Deadline,
    ) -> Result<Self> {
        let store = Store { bucket, env, shard };
        match store.newest_chain(Cause::Open, by).await? {
            Some(chain) => Ok(Self::with_chain(store, options, chain)),
            None => Err(Error::NotFound { shard, bucket: store.bucket.url().to_owned() }),
        }
    }

    fn with_chain(store: Store, options: LogOptions, chain: Chain) -> Self {
        let state = State {
            chain: Arc::new(chain),
            trail: Trail::default(),
            contact: None,
            contact_before: None,
            chain_read: None,
            // The chain has just come from there.
            database_seen: Some(Moment::now(&store)),
            role: Role::default(),
            resigned: None,
            supplanted: false,
            closed: false,
        };
        Self {
            inner: Arc::new(Inner {
                store,
                options,
                state: Mutex::new(state),
                met: Mutex::new(None),
                reconfigure: tokio::sync::Mutex::new(()),
                local: tokio::sync::Mutex::new(None),
                archive: Archive::default(),
                archiving: AtomicBool::new(false),
                tending: AtomicBool::new(false),
                reader: AtomicUsize::new(0),
                reader_home: AtomicU64::new(0),
                changes: crate::changes::Known::default(),
            }),
        }
    }
}

impl Inner {
    fn disk(&self) -> Result<Arc<dyn Disk>> {
        self.options.disk.clone().ok_or(Error::NoLocalDisk { shard: self.store.shard })
    }

    /// This machine's log server, with its lock.
    pub async fn own_server(&self, by: Deadline) -> Result<Arc<LocalLogServer>> {
        if let Some(cluster) = &self.options.cluster {
            return Ok(Arc::clone(&cluster.own));
        }
        let env = self.store.env.clone();
        let by = if env.planted(Bug::HangsWithDisk) { Deadline::at(Duration::MAX) } else { by };
        let mut local = env.within(by, LOCAL, self.local.lock()).await?;
        if let Some(server) = local.as_ref() {
            return Ok(Arc::clone(server));
        }
        let (shard, segment_bytes) = (self.store.shard, self.options.segment_bytes);
        let opening = LocalLogServer::open(self.disk()?, env.clone(), shard, segment_bytes);
        let server = env.within(by, LOCAL, opening).await??;
        Ok(Arc::clone(local.insert(server)))
    }

    /// This machine's log server, if it is open.
    pub async fn opened_server(&self, by: Deadline) -> Result<Option<Arc<LocalLogServer>>> {
        if let Some(cluster) = &self.options.cluster {
            return Ok(Some(Arc::clone(&cluster.own)));
        }
        Ok(self.store.env.within(by, LOCAL, self.local.lock()).await?.clone())
    }

    /// The loglets that have files on `disk`.
    pub async fn stored_loglets(&self, disk: &dyn Disk, by: Deadline) -> Result<Vec<LogletKey>> {
        let listing = LocalLogServer::stored(disk, self.store.shard);
        let planted = self.store.env.planted(Bug::HangsWithDisk);
        let by = if planted { Deadline::at(Duration::MAX) } else { by };
        self.store.env.within(by, LOCAL, listing).await?
    }

    /// The server with the files of `key`, whose owner was `owner`.
    async fn inherited_server(
        &self,
        key: LogletKey,
        owner: &Owner,
        by: Deadline,
    ) -> Result<Arc<LocalLogServer>> {
        let not_owner = |live| Error::NotOwner {
            shard: self.store.shard,
            owner: Box::new(owner.clone()),
            live,
        };
        let ours = owner.node == self.options.identity.node;
        let Some(disk) = self.options.disk.clone() else {
            return Err(if ours {
                Error::NoLocalDisk { shard: self.store.shard }
            } else {
                not_owner(false)
            });
        };
        if !self.stored_loglets(&*disk, by).await?.contains(&key) {
            return Err(if ours {
                Error::Corrupt {
                    object: format!(
                        "{}/{}",
                        disk.location(),
                        crate::server::loglet_directory(&key)
                    ),
                    lsn: None,
                    reason: format!(
                        "the newest part of the log of shard {} is missing",
                        self.store.shard
                    ),
                }
            } else {
                not_owner(false)
            });
        }
        self.own_server(by).await.map_err(|error| match error {
            Error::LocalDisk { fault: DiskFault::Locked, .. } => not_owner(true),
            other => other,
        })
    }

    /// Puts `next` as the chain version it says. `false`: another one won; the chain was reloaded.
    pub async fn put_chain(&self, next: Chain, by: Deadline) -> Result<bool> {
        let won = self.store.put_chain(&next, by).await?;
        if won {
            self.adopt(next);
        } else {
            self.newest_chain(Cause::Registry, by).await?;
        }
        Ok(won)
    }

    /// Becomes the sequencer of the loglet `key`, which this process has made and put into the
    /// chain, and which is empty. `false`: the chain goes on elsewhere already. Whoever learns late
    /// that it has won a version of the chain may have been succeeded in the next one before.
    pub async fn install_sequencer(self: &Arc<Self>, key: LogletKey, by: Deadline) -> Result<bool> {
        let chain = self.chain();
        let loglet = chain.active();
        let Medium::Quorum { token, servers, .. } = &loglet.medium else { return Ok(false) };
        if (loglet.id, *token) != (key.loglet, key.token) {
            return Ok(false);
        }
        let holders = self.holders(servers, by).await?;
        let env = self.store.env.clone();
        let buffer_bytes = self.options.buffer_bytes;
        let fence = self.fence();
        // In the order of the holders: this node's own first.
        let mut order = servers.clone();
        order.sort_by_key(|info| info.node != self.options.identity.node);
        let lives = order.iter().map(|info| info.incarnation);
        let servers = holders.servers.into_iter().zip(lives).collect();
        let sequencer = Sequencer::new(key, env, loglet, servers, buffer_bytes, fence);
        {
            let mut state = self.state.lock();
            // Unless the chain has changed meanwhile, or the log was closed.
            let role = Role::Owner(sequencer);
            if !role.fits(&state.chain) {
                return Ok(false);
            }
            if !state.closed {
                state.role = role;
            }
        }
        if !self.archiving.swap(true, Ordering::Relaxed) {
            self.start_archiver();
        }
        self.start_tending();
        if chain.loglets.len() > 1 {
            // Entries of closed loglets may wait for the archive, also those that were found
            // committed after the append that wrote them had failed: nobody counted them.
            self.archive.wake();
        }
        if let Err(error) = self.clean_local(&chain, by).await {
            tracing::warn!(%error, "cleaning the local log failed; again at the next start");
        }
        Ok(true)
    }

    /// When the active loglet is a quorum loglet: ends it and goes on with one of our own. The
    /// caller holds the reconfiguration lock. Servers on the nodes `avoid` are used only if there
    /// are no others.
    ///
    /// # Errors
    /// [`Error::NotOwner`] when it is not ours to end.
    pub async fn take_over(
        self: &Arc<Self>,
        whose: Whose,
        avoid: &[NodeId],
        by: Deadline,
    ) -> Result<()> {
        loop {
            let chain = self.chain();
            let active = chain.active();
            let Medium::Quorum { owner, token, servers } = &active.medium else { return Ok(()) };
            let key = LogletKey { shard: self.store.shard, loglet: active.id, token: *token };
            let found = match (whose, &self.options.cluster) {
                (Whose::Dead(loglet), _) if active.id != loglet => return Ok(()),
                (Whose::Own, Some(_)) if !self.is_own(owner) || self.has_resigned(active.id) => {
                    return Err(Error::NotOwner {
                        shard: self.store.shard,
                        owner: Box::new(owner.clone()),
                        live: true,
                    });
                }
                (_, Some(_)) => self.holders(servers, by).await,
                (_, None) if servers.len() > 1 => {
                    return Err(Error::Unavailable {
                        shard: self.store.shard,
                        reason: format!(
                            "its newest part is kept by {} log servers of a cluster, and this process is not part of one (start this node as one of its nodes)",
                            servers.len()
                        ),
                    });
                }
                (_, None) => match self.inherited_server(key, owner, by).await {
                    Ok(server) => Ok(Holders::alone(server)),
                    Err(error @ Error::Corrupt { .. }) => Err(error),
                    Err(error) => return Err(error),
                },
            };
            // Whoever held the lock before us may have changed the chain, and removed the files of
            // what it took over.
            let newest = self.newest_chain(Cause::Open, by).await?;
            if newest.version != chain.version {
                continue;
            }
            let holders = found?;
            let (end, hash) = self.recover_loglet(key, active, &holders, by).await?;
            let id = active.id + 1;
            let (medium, token) = self.new_quorum(id, end, servers, avoid, by).await?;
            let writer = self.store.env.writer_token();
            let made = medium.clone();
            let next = chain.followed_by(writer, end, hash, medium);
            let key = LogletKey { shard: self.store.shard, loglet: id, token };
            if self.put_chain(next, by).await? {
                if self.install_sequencer(key, by).await? {
                    return Ok(());
                }
                // What it made was in the chain: it is cleaned up as what others made is.
                continue;
            }
            if let Medium::Quorum { servers, .. } = &made {
                self.discard(key, servers, by).await;
            }
        }
    }

    /// The active loglet is a quorum loglet that nobody sequences here: takes it over when its
    /// files are here and its owner is gone (also when that was this process: a seal of ours was
    /// found to have succeeded after all).
    ///
    /// # Errors
    /// [`Error::NotOwner`] otherwise.
    pub async fn claim(self: &Arc<Self>, by: Deadline) -> Result<()> {
        let waiting = "waiting for a change of the log";
        let _changing = self.store.env.within(by, waiting, self.reconfigure.lock()).await?;
        if self.view()?.1.owner().is_some() {
            return Ok(());
        }
        // The owner may have given it back to all meanwhile.
        self.newest_chain(Cause::Open, by).await?;
        self.take_over(Whose::Own, &[], by).await
    }

    /// Goes on after `stopped` has stopped, unless that was done meanwhile.
    pub async fn replace_sequencer(
        self: &Arc<Self>,
        stopped: &Arc<Sequencer>,
        by: Deadline,
    ) -> Result<()> {
        let waiting = "waiting for a change of the log";
        let _changing = self.store.env.within(by, waiting, self.reconfigure.lock()).await?;
        let (chain, role) = self.view()?;
        let same = role.sequencer().is_some_and(|own| Arc::ptr_eq(own, stopped));
        if same && chain.active().id == stopped.key().loglet {
            tracing::warn!(shard = self.store.shard.0, "an append was left undecided; recovering");
            self.take_over(Whose::Own, &[], by).await?;
        }
        Ok(())
    }
}
