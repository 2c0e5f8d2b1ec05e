//! What nodes say to each other beside entries and commits (postcard).
//!
//! # Invariants
//! Both ends speak one version, agreed on when they met (`telesto_net`); fields are only added
//! together with a new one, new kinds of requests go to the end.
//!
//! # On failure
//! A request that does not decode is refused, and nothing is done.

use bytes::Bytes;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use telesto_common::{Deadline, NodeId};
use telesto_net::Client;

use crate::error::{Error, Result};
use crate::node::CLUSTER_SERVICE;
use crate::record::Record;
use crate::status::{Live, Status};

/// Who there is, as a node knows it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Roll {
    pub nodes: Vec<Record>,
    pub removed: Vec<NodeId>,
}

/// A node greets another.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Ping {
    pub record: Record,
    pub live: Live,
    /// Of its roll: the other sends its own when it has another one.
    pub digest: u32,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Request {
    Ping(Box<Ping>),
    /// The owner has resigned from this loglet: take the log over.
    TakeOver {
        loglet: u64,
    },
    Status,
    /// Hand over what you own, and take nothing over any more.
    Drain,
    /// The list of nodes in the bucket has changed: look at it.
    Look,
    /// What a layer above asks all nodes.
    Question(Vec<u8>),
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Reply {
    Pong {
        live: Box<Live>,
        roll: Option<Roll>,
    },
    /// Whether it owns the log now.
    TookOver(bool),
    Status(Box<Status>),
    /// Drained; who owns the log now, if it had owned it.
    Drained(Option<NodeId>),
    Refused(String),
    Done,
    Answer(Vec<u8>),
}

pub(crate) fn encode<T: Serialize>(message: &T) -> Result<Bytes> {
    let bytes = postcard::to_stdvec(message);
    bytes.map(Bytes::from).map_err(|error| Error::malformed("a message between nodes", error))
}

pub(crate) fn decode<T: DeserializeOwned>(bytes: &[u8]) -> Result<T> {
    postcard::from_bytes(bytes).map_err(|error| Error::malformed("a message between nodes", error))
}

pub(crate) async fn ask(client: &Client, request: &Request, by: Deadline) -> Result<Reply> {
    let answer = client.call(CLUSTER_SERVICE, encode(request)?, by).await?;
    match decode(&answer)? {
        Reply::Refused(reason) => Err(Error::Refused { node: client.peer().node, reason }),
        reply => Ok(reply),
    }
}

fn unexpected(client: &Client, reply: &Reply) -> Error {
    Error::malformed(format!("answer of node {}", client.peer().node), format!("{reply:?}"))
}

/// What the node that `client` speaks with knows of its cluster.
///
/// # Errors
/// [`Error::Net`], [`Error::Refused`], [`Error::Malformed`].
pub async fn ask_status(client: &Client, by: Deadline) -> Result<Status> {
    match ask(client, &Request::Status, by).await? {
        Reply::Status(status) => Ok(*status),
        other => Err(unexpected(client, &other)),
    }
}

/// Has the node that `client` speaks with hand over what it owns, and take nothing over any more;
/// who owns the log now, if it was the owner.
///
/// # Errors
/// As [`ask_status`]; the node then may own the log still.
pub async fn ask_drain(client: &Client, by: Deadline) -> Result<Option<NodeId>> {
    match ask(client, &Request::Drain, by).await? {
        Reply::Drained(successor) => Ok(successor),
        other => Err(unexpected(client, &other)),
    }
}

/// Tells the node that `client` speaks with that the list of nodes in the bucket has changed; it
/// has looked at it when this returns.
///
/// # Errors
/// As [`ask_status`]; it looks by itself after a while.
pub async fn ask_look(client: &Client, by: Deadline) -> Result<()> {
    match ask(client, &Request::Look, by).await? {
        Reply::Done => Ok(()),
        other => Err(unexpected(client, &other)),
    }
}

#[cfg(test)]
mod tests {
    use telesto_common::Incarnation;

    use super::*;
    use crate::record::NodeRole;

    fn record() -> Record {
        Record {
            node: NodeId(7),
            incarnation: Incarnation(3),
            address: "10.0.0.1:5434".into(),
            zone: "a".into(),
            role: NodeRole::Full,
            host: "db1".into(),
            pid: 5,
            program: "0.1.0".into(),
        }
    }

    /// Whatever comes over the network or out of the bucket is read or refused.
    #[test]
    fn damaged_messages_and_records_are_refused_without_a_panic() {
        let ping = Ping { record: record(), live: Live::default(), digest: 9 };
        let whole = encode(&Request::Ping(Box::new(ping.clone()))).expect("encodes");
        assert_eq!(decode::<Request>(&whole).expect("decodes"), Request::Ping(Box::new(ping)));
        let text = record().text(telesto_common::WriterToken(4)).expect("a text");
        assert_eq!(Record::parse("nodes/7/3", text.as_bytes()).expect("reads"), record());
        for at in 0..whole.len() {
            assert!(decode::<Request>(&whole[..at]).is_err(), "cut at {at}");
            for bit in 0..8 {
                let mut damaged = whole.to_vec();
                damaged[at] ^= 1 << bit;
                // Another message, or none; a length that is not there takes no memory.
                let _ = decode::<Request>(&damaged);
            }
        }
        for (object, bytes) in [
            ("cut", &text.as_bytes()[..text.len() / 2]),
            ("newer", text.replace("version = 1", "version = 2").as_bytes()),
            ("unknown", format!("{text}colour = \"red\"\n").as_bytes()),
            ("bytes", &[0xff, 0xfe][..]),
        ] {
            let error = Record::parse(object, bytes).expect_err("refused").to_string();
            assert!(error.starts_with(object), "{error}");
        }
    }
}
