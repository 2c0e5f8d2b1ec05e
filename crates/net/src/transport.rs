//! How a connection to a peer is made: the seam between real sockets and the simulated network.
//!
//! # Invariants an implementation keeps
//! What is received was sent by the other side, frame by frame, whole. A real connection also keeps
//! their order and loses none before it ends; the simulated one may break both, and the layers
//! above bear it.
//!
//! # On failure
//! [`Error::Unreachable`] when no connection is made; a receiver that ends, or gives an error, has
//! ended for good.

use std::fmt;
use std::pin::Pin;

use async_trait::async_trait;
use bytes::Bytes;
use futures::{Sink, SinkExt as _, Stream, StreamExt as _};
use telesto_common::{Deadline, NodeId};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_util::codec::{Framed, LengthDelimitedCodec};

use crate::error::{Error, Result};
use crate::frame::MAX_FRAME_BYTES;
use crate::hello::Class;

/// Where a node is reached.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Peer {
    /// The node.
    pub node: NodeId,
    /// Its address, host:port.
    pub address: String,
}

/// A connection: frames go in at one end and come out at the other.
pub struct Pipe {
    /// Address of the other side, for messages.
    pub peer: String,
    /// Frames to the other side.
    pub sender: Pin<Box<dyn Sink<Bytes, Error = Error> + Send>>,
    /// Frames from the other side.
    pub receiver: Pin<Box<dyn Stream<Item = Result<Bytes>> + Send>>,
    /// Whether the other side may speak for a node: what its certificate says. `None`: it was not
    /// asked for one.
    pub vouches: Option<Box<dyn Fn(NodeId) -> bool + Send + Sync>>,
}

impl fmt::Debug for Pipe {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Pipe({})", self.peer)
    }
}

/// Makes connections.
#[async_trait]
pub trait Transport: fmt::Debug + Send + Sync {
    /// Connects to `peer`, by `by` at the latest.
    ///
    /// # Errors
    /// [`Error::Unreachable`], [`Error::DeadlinePassed`].
    async fn connect(&self, peer: &Peer, class: Class, by: Deadline) -> Result<Pipe>;
}

/// A connection over a stream of bytes: each frame after its length (4 bytes, big endian).
pub fn framed(
    stream: impl AsyncRead + AsyncWrite + Send + 'static,
    peer: String,
    vouches: Option<Box<dyn Fn(NodeId) -> bool + Send + Sync>>,
) -> Pipe {
    let codec = LengthDelimitedCodec::builder().max_frame_length(MAX_FRAME_BYTES).new_codec();
    let (sender, receiver) = Framed::new(Box::pin(stream), codec).split();
    let broken = {
        let peer = peer.clone();
        move |error: std::io::Error| Error::Broken { peer: peer.clone(), reason: error.to_string() }
    };
    let on_receive = broken.clone();
    Pipe {
        peer,
        sender: Box::pin(sender.sink_map_err(broken)),
        receiver: Box::pin(
            receiver.map(move |frame| frame.map(bytes::BytesMut::freeze).map_err(&on_receive)),
        ),
        vouches,
    }
}
