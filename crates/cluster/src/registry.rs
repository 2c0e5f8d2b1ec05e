//! The nodes of a cluster as its bucket tells them, and the cluster's secret.
//!
//! ```text
//! nodes/<node>/<life, 20 digits>    one object a start; the greatest life counts
//! nodes/<node>/removed              the node is not let in again
//! cluster/lives/<node>/<number, 20 digits>    the newest life of the node's log server, under the mark that its folder has
//! cluster/token                     what every node derives its certificate from
//! ```
//! # Invariants
//! - A node writes its own record before it lists the others: of two that start at once, one at
//!   least sees the other.
//! - Objects are written put-if-absent; a life is registered once.
//! - What counts the lives of a log server goes only when a later one is there. It is no field of
//!   the node's record: a version before refuses records with fields that it does not know, and
//!   could not list the nodes.
//!
//! # On failure
//! Those of the bucket; an object that does not decode is named.
//!
//! # Limits
//! Who can read the bucket can read the token: it guards the network between the nodes, not the
//! data from those who have the bucket. A token that is given (`--join-token`) is not stored.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use bytes::Bytes;
use futures::{StreamExt as _, TryStreamExt as _};
use telesto_bucket::{Bucket, Cause, PutOutcome};
use telesto_common::{Env, Incarnation, NodeId};
use telesto_log::server::CountedLife;

use crate::error::{Error, Result};
use crate::record::{LifeRecord, Record};

const PREFIX: &str = "nodes";
const TOKEN: &str = "cluster/token";
const LIVES: &str = "cluster/lives";
/// Where this bucket is, for who has a copy of it.
const HOME: &str = "cluster/home";
/// Objects listed at a time.
const LIST: usize = 1000;
/// Records read at a time.
const PARALLEL: usize = 16;

/// Who there is.
#[derive(Clone, Debug, Default)]
pub struct Registered {
    /// The newest life of each node that was not removed.
    pub nodes: BTreeMap<NodeId, Record>,
    /// Nodes that are not let in again.
    pub removed: BTreeSet<NodeId>,
}

/// See the module's text.
#[derive(Clone, Debug)]
pub struct Registry {
    bucket: Arc<dyn Bucket>,
}

/// What an object under `nodes/` is.
enum Name {
    Life(NodeId, Incarnation),
    Removed(NodeId),
}

fn name_of(key: &str) -> Option<Name> {
    let (node, rest) = key.strip_prefix("nodes/")?.split_once('/')?;
    let node = node.parse().ok()?;
    match rest {
        "removed" => Some(Name::Removed(node)),
        life => Some(Name::Life(node, Incarnation(life.parse().ok()?))),
    }
}

fn key_of(node: NodeId, life: Incarnation) -> String {
    format!("{PREFIX}/{node}/{:020}", life.0)
}

fn life_key(node: NodeId, number: u64) -> String {
    format!("{LIVES}/{node}/{number:020}")
}

impl Registry {
    /// That of `bucket`.
    #[must_use]
    pub fn new(bucket: Arc<dyn Bucket>) -> Self {
        Self { bucket }
    }

    /// The cluster's token; makes one when there is none yet.
    ///
    /// # Errors
    /// Those of the bucket; [`Error::Malformed`].
    pub async fn token(&self, env: &Env) -> Result<String> {
        loop {
            if let Some(object) = self.bucket.get(Cause::Registry, TOKEN, None).await? {
                return String::from_utf8(object.body.to_vec())
                    .map_err(|error| Error::malformed(TOKEN, error));
            }
            let token = format!("{:032x}{:032x}", env.random_u128(), env.random_u128());
            let body = Bytes::from(token.clone());
            if self.bucket.put_if_absent(Cause::Registry, TOKEN, body).await? == PutOutcome::Created
            {
                return Ok(token);
            }
        }
    }

    /// Refuses a copy of a cluster's bucket: it has the cluster's token, and the addresses of its
    /// nodes, which would take the copy's nodes for their own. The bucket of the cluster says where
    /// it is.
    ///
    /// # Errors
    /// [`Error::Copied`], those of the bucket, [`Error::Malformed`].
    pub async fn check_home(&self) -> Result<()> {
        let url = self.bucket.url();
        loop {
            if let Some(object) = self.bucket.get(Cause::Registry, HOME, None).await? {
                let home = String::from_utf8(object.body.to_vec())
                    .map_err(|error| Error::malformed(HOME, error))?;
                return match home == url {
                    true => Ok(()),
                    false => Err(Error::Copied { url: url.to_owned(), home }),
                };
            }
            let body = Bytes::from(url.to_owned());
            if self.bucket.put_if_absent(Cause::Registry, HOME, body).await? == PutOutcome::Created
            {
                return Ok(());
            }
        }
    }

    /// This bucket is a cluster's of its own from now on, whatever it was copied from: without its
    /// token, and without its nodes.
    ///
    /// # Errors
    /// Those of the bucket.
    pub async fn leave_home(&self) -> Result<()> {
        let Err(Error::Copied { .. }) = self.check_home().await else { return Ok(()) };
        self.delete_all(PREFIX).await?;
        self.delete_all(LIVES).await?;
        self.bucket.delete(Cause::Registry, TOKEN).await?;
        // Last: whoever is stopped before this begins again.
        self.bucket.delete(Cause::Registry, HOME).await?;
        self.check_home().await
    }

    async fn delete_all(&self, prefix: &str) -> Result<()> {
        loop {
            let listed = self.bucket.list_after(Cause::Registry, prefix, None, LIST).await?;
            for object in &listed {
                self.bucket.delete(Cause::Registry, &object.key).await?;
            }
            if listed.len() < LIST {
                return Ok(());
            }
        }
    }

    /// The token, if the cluster has made one.
    ///
    /// # Errors
    /// Those of the bucket; [`Error::Malformed`].
    pub async fn existing_token(&self) -> Result<Option<String>> {
        let object = self.bucket.get(Cause::Registry, TOKEN, None).await?;
        let text = object.map(|object| String::from_utf8(object.body.to_vec()));
        text.transpose().map_err(|error| Error::malformed(TOKEN, error))
    }

    /// Says that `record` has started; forgets the node's earlier lives.
    ///
    /// # Errors
    /// [`Error::Removed`], [`Error::Twin`], those of the bucket.
    pub async fn register(&self, env: &Env, record: &Record) -> Result<()> {
        let key = key_of(record.node, record.incarnation);
        let body = Bytes::from(record.text(env.writer_token())?);
        let put = self.bucket.put_if_absent(Cause::Registry, &key, body).await?;
        if put == PutOutcome::Exists {
            return Err(Error::Twin { node: record.node, life: record.incarnation.0 });
        }
        let own = format!("{PREFIX}/{}", record.node);
        let listed = self.bucket.list_after(Cause::Registry, &own, None, LIST).await?;
        for object in listed {
            match name_of(&object.key) {
                Some(Name::Removed(node)) => return Err(Error::Removed { node }),
                Some(Name::Life(_, life)) if life < record.incarnation => {
                    self.bucket.delete(Cause::Registry, &object.key).await?;
                }
                Some(Name::Life(node, life)) if life > record.incarnation => {
                    return Err(Error::Twin { node, life: life.0 });
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// The newest life of `node`'s log server that was counted here.
    ///
    /// # Errors
    /// Those of the bucket; [`Error::Malformed`].
    pub async fn counted_life(&self, node: NodeId) -> Result<Option<CountedLife>> {
        loop {
            let Some(key) = self.counted_lives(node).await?.pop() else { return Ok(None) };
            // One that is gone again has another one behind it.
            if let Some(object) = self.bucket.get(Cause::Registry, &key, None).await? {
                return LifeRecord::parse(&key, &object.body).map(Some);
            }
        }
    }

    async fn counted_lives(&self, node: NodeId) -> Result<Vec<String>> {
        let of = format!("{LIVES}/{node}");
        let listed = self.bucket.list_after(Cause::Registry, &of, None, LIST).await?;
        Ok(listed.into_iter().map(|object| object.key).collect())
    }

    /// Counts `life` of `node`'s log server, which answers nobody before; forgets the lives before
    /// it.
    ///
    /// # Errors
    /// [`Error::Twin`] when another folder of this node has begun that life, those of the bucket.
    pub async fn count_life(&self, node: NodeId, life: CountedLife) -> Result<()> {
        let key = life_key(node, life.number);
        let body = Bytes::from(LifeRecord::text(life)?);
        let put = self.bucket.put_if_absent(Cause::Registry, &key, body).await?;
        if put == PutOutcome::Exists {
            return Err(Error::Twin { node, life: life.number });
        }
        for old in self.counted_lives(node).await?.into_iter().filter(|old| *old < key) {
            self.bucket.delete(Cause::Registry, &old).await?;
        }
        Ok(())
    }

    /// What this bucket says of the lives of `node`'s log server counts no more: it was put back to
    /// an earlier state on purpose, and says what is as old; or the node is not let in again.
    ///
    /// # Errors
    /// Those of the bucket.
    pub async fn forget_lives(&self, node: NodeId) -> Result<()> {
        self.delete_all(&format!("{LIVES}/{node}")).await
    }

    /// Everybody.
    ///
    /// # Errors
    /// Those of the bucket; [`Error::Malformed`].
    pub async fn load(&self) -> Result<Registered> {
        let mut lives: BTreeMap<NodeId, Incarnation> = BTreeMap::new();
        let mut removed = BTreeSet::new();
        let mut after: Option<String> = None;
        loop {
            let listed =
                self.bucket.list_after(Cause::Registry, PREFIX, after.as_deref(), LIST).await?;
            for object in &listed {
                match name_of(&object.key) {
                    Some(Name::Removed(node)) => drop(removed.insert(node)),
                    Some(Name::Life(node, life)) => {
                        let newest = lives.entry(node).or_insert(life);
                        *newest = life.max(*newest);
                    }
                    None => tracing::warn!(key = object.key, "no record of a node"),
                }
            }
            match listed.last() {
                Some(last) if listed.len() == LIST => after = Some(last.key.clone()),
                _ => break,
            }
        }
        let wanted = lives.into_iter().filter(|(node, _)| !removed.contains(node));
        let records: Vec<Option<Record>> = futures::stream::iter(wanted)
            .map(|(node, life)| async move {
                let key = key_of(node, life);
                // A newer life may have taken it away meanwhile; that one is heard of by pings.
                let object = self.bucket.get(Cause::Registry, &key, None).await?;
                object.map(|object| Record::parse(&key, &object.body)).transpose()
            })
            .buffered(PARALLEL)
            .try_collect()
            .await?;
        let nodes = records.into_iter().flatten().map(|record| (record.node, record)).collect();
        Ok(Registered { nodes, removed })
    }

    /// Does not let `node` in again.
    ///
    /// # Errors
    /// Those of the bucket.
    pub async fn remove(&self, env: &Env, node: NodeId) -> Result<()> {
        let key = format!("{PREFIX}/{node}/removed");
        let body = Bytes::from(format!("removed {}\n", env.writer_token()));
        // Removed twice is removed.
        self.bucket.put_if_absent(Cause::Registry, &key, body).await?;
        self.forget_lives(node).await
    }
}
