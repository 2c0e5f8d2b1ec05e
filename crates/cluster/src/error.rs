//! The error type of this crate. Each message says what to do next.

use telesto_common::NodeId;

/// Result of this crate.
pub type Result<T> = std::result::Result<T, Error>;

/// What can go wrong among the nodes of a cluster.
#[derive(Clone, Debug, thiserror::Error)]
pub enum Error {
    /// The bucket's.
    #[error(transparent)]
    Bucket(#[from] telesto_bucket::Error),
    /// The network's.
    #[error(transparent)]
    Net(#[from] telesto_net::Error),
    /// The log's.
    #[error(transparent)]
    Log(#[from] telesto_log::Error),
    /// A stored object or a message does not decode.
    #[error(
        "{what} does not decode: {reason}; upgrade this node if another one runs a newer version, else delete that object"
    )]
    Malformed {
        /// What.
        what: String,
        /// Why not.
        reason: String,
    },
    /// The bucket is a copy of a cluster's.
    #[error(
        "{url} is a copy of {home}, or another name of it: its nodes would join the cluster of that one. If it is the same bucket, give all nodes the same URL; if it is a copy that is to be a database of its own, start its first node once with --accept-older-bucket; --cluster off goes without other nodes"
    )]
    Copied {
        /// Its URL.
        url: String,
        /// The URL of the cluster's bucket.
        home: String,
    },
    /// The node was removed from the cluster.
    #[error(
        "node {node} was removed from this cluster; start it with a new, empty data folder, and it joins as a new node"
    )]
    Removed {
        /// Which.
        node: NodeId,
    },
    /// Another process has this node's identity and life.
    #[error(
        "another process runs as life {life} of node {node}: its data folder was copied; give each node a folder of its own (an empty one is filled by itself)"
    )]
    Twin {
        /// The node.
        node: NodeId,
        /// Its life.
        life: u64,
    },
    /// There is no such node.
    #[error("there is no node {0} in this cluster; `telesto cluster nodes` lists them")]
    UnknownNode(String),
    /// The node that was asked refuses.
    #[error("node {node} refuses: {reason}")]
    Refused {
        /// Which.
        node: NodeId,
        /// Why, and what to do.
        reason: String,
    },
}

impl Error {
    pub(crate) fn malformed(what: impl Into<String>, reason: impl ToString) -> Self {
        Self::Malformed { what: what.into(), reason: reason.to_string() }
    }
}
