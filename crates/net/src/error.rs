//! Errors of messages between nodes, each with the next step.

/// Result of this crate.
pub type Result<T> = std::result::Result<T, Error>;

/// What can go wrong between two nodes. Cheap to clone: one broken connection fails every call on
/// it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// No connection could be made: nothing was sent.
    #[error(
        "node at {peer} cannot be reached: {reason}; check that it runs and that its address is reachable from here"
    )]
    Unreachable {
        /// Address of the peer.
        peer: String,
        /// What went wrong.
        reason: String,
    },
    /// The connection ended while an answer was awaited: the request may have been carried out.
    #[error(
        "connection to the node at {peer} broke: {reason}; whether the request was carried out is not known"
    )]
    Broken {
        /// Address of the peer.
        peer: String,
        /// What went wrong.
        reason: String,
    },
    /// The two sides have no version in common, or one does not let the other in.
    #[error(
        "node at {peer} refused this connection: {reason}; upgrade the older node, or correct its certificate or address"
    )]
    Refused {
        /// Address of the peer.
        peer: String,
        /// What the other side, or this one, said.
        reason: String,
    },
    /// The other side does not serve what was asked for; nothing was done.
    #[error("node at {peer} does not serve this request ({reason}); upgrade it")]
    NotServed {
        /// Address of the peer.
        peer: String,
        /// What it said.
        reason: String,
    },
    /// Bytes that do not fit the protocol came in: the connection is closed.
    #[error(
        "malformed message between nodes: {reason}; check that only Telesto nodes connect to this port"
    )]
    Malformed {
        /// What does not fit.
        reason: String,
    },
    /// A message would be larger than a frame may be; nothing was sent.
    #[error("a message of {bytes} bytes is larger than the limit of {limit}; send it in parts")]
    TooLarge {
        /// Its size, bytes.
        bytes: u64,
        /// The limit, bytes.
        limit: u64,
    },
    /// A deadline passed; when an answer was awaited the request may have been carried out.
    #[error("deadline passed while {what}; retry, or raise the time-out")]
    DeadlinePassed {
        /// What was being waited for.
        what: &'static str,
    },
    /// The certificate or key given cannot be used.
    #[error(
        "certificates of this cluster: {reason}; correct the files, or give every node the same join token"
    )]
    Certificates {
        /// What does not fit.
        reason: String,
    },
}

impl From<telesto_common::Error> for Error {
    fn from(error: telesto_common::Error) -> Self {
        match error {
            telesto_common::Error::DeadlinePassed { what } => Self::DeadlinePassed { what },
            other => Self::Malformed { reason: other.to_string() },
        }
    }
}
