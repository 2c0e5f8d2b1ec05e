//! Connections between nodes over TCP, with mutual TLS or, on a trusted network, without.
//!
//! # Invariants
//! - With certificates, both sides prove that they belong to the cluster, and each that it is the
//!   node it says: a node's certificate names it (`<node>.node.telesto`).
//! - Small messages are sent at once (`TCP_NODELAY`).
//! - A peer may have several addresses, set apart by commas: they are tried in their order, each
//!   for its share of the time.
//! - When serving is stopped its connections end, too: whoever is at the other end looks for
//!   another node.
//!
//! # On failure
//! [`Error::Unreachable`] for what cannot be connected to, and for a peer whose certificate is not
//! this cluster's. A connection that does not finish its handshake in `PATIENCE` is dropped.
//!
//! # Limits
//! At most [`MAX_CONNECTIONS`] connections are served at a time; further ones are closed. Of those
//! that have not proved yet who they are at most [`MAX_STRANGERS`]: the one that has taken longest
//! goes when another one comes, so that whoever connects and says nothing takes no place from
//! nodes, whose handshake takes milliseconds.

mod certificates;

pub use certificates::{Certificates, JoinToken};

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use rustls::pki_types::ServerName;
use telesto_common::env::Task;
use telesto_common::{Deadline, Env, NodeId};
use telesto_net::{Caller, Class, Error, Peer, Pipe, Result, Router, Transport, VERSIONS, framed};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio_rustls::{TlsAcceptor, TlsConnector};

/// How long a handshake may take.
const PATIENCE: Duration = Duration::from_secs(10);
/// Connections from other nodes that are served at a time.
pub const MAX_CONNECTIONS: usize = 4096;
/// Connections that are in their handshake at a time.
pub const MAX_STRANGERS: usize = 64;

/// Makes connections over TCP.
#[derive(Clone, Debug)]
pub struct Tcp {
    env: Env,
    /// `None`: the network is trusted.
    certificates: Option<Certificates>,
}

impl Tcp {
    /// Connections that are encrypted with `certificates`; without, everybody on the network can
    /// read them and speak as any node.
    #[must_use]
    pub fn new(env: Env, certificates: Option<Certificates>) -> Self {
        Self { env, certificates }
    }

    /// Serves `router` to the nodes that connect to `listener`, until the task is stopped.
    pub async fn serve(&self, listener: TcpListener, me: Caller, router: Router) {
        let permits = Arc::new(Semaphore::new(MAX_CONNECTIONS));
        let mut serving = Serving(Vec::new());
        loop {
            let (stream, from) = match listener.accept().await {
                Ok(accepted) => accepted,
                Err(error) => {
                    tracing::warn!(%error, "a connection from a node was not accepted");
                    self.env.clock.sleep(Duration::from_millis(100)).await;
                    continue;
                }
            };
            serving.make_room();
            let (own, router, permits) = (self.clone(), router.clone(), Arc::clone(&permits));
            let known = Arc::new(AtomicBool::new(false));
            let knows = Arc::clone(&known);
            let task = self.env.spawn("serving a node", async move {
                let served = async {
                    let pipe = own.accept(stream, from).await?;
                    let Ok(_permit) = permits.try_acquire() else {
                        tracing::warn!(%from, "too many connections from nodes; this one is closed");
                        return Ok(());
                    };
                    knows.store(true, Ordering::Release);
                    telesto_net::serve(&own.env, pipe, me, VERSIONS, &router).await
                };
                if let Err(error) = served.await {
                    tracing::debug!(%from, %error, "a connection from a node ended");
                }
            });
            serving.0.push(Connected { task, known });
        }
    }

    async fn accept(&self, stream: TcpStream, from: SocketAddr) -> Result<Pipe> {
        let unreachable = |reason: String| Error::Unreachable { peer: from.to_string(), reason };
        stream.set_nodelay(true).map_err(|error| unreachable(error.to_string()))?;
        let Some(certificates) = &self.certificates else {
            return Ok(framed(stream, from.to_string(), None));
        };
        let acceptor = TlsAcceptor::from(certificates.server());
        let what = "a node's handshake";
        let stream = self.env.within_timeout(PATIENCE, what, acceptor.accept(stream)).await?;
        let stream = stream.map_err(|error| unreachable(error.to_string()))?;
        let shown = stream.get_ref().1.peer_certificates().and_then(|chain| chain.first());
        let shown = shown.map(|certificate| certificate.clone().into_owned());
        let vouches = move |node: NodeId| {
            shown.as_ref().is_some_and(|certificate| certificates::names(certificate, node))
        };
        Ok(framed(stream, from.to_string(), Some(Box::new(vouches))))
    }
}

struct Connected {
    task: Arc<dyn Task>,
    /// Its handshake is done.
    known: Arc<AtomicBool>,
}

/// The connections of a listener, in the order in which they came; they end with it.
struct Serving(Vec<Connected>);

impl Serving {
    /// Ends the oldest handshake if there are as many as there may be.
    fn make_room(&mut self) {
        self.0.retain(|connected| !connected.task.is_finished());
        let is_stranger = |one: &Connected| !one.known.load(Ordering::Acquire);
        if self.0.iter().filter(|one| is_stranger(one)).count() < MAX_STRANGERS {
            return;
        }
        if let Some(oldest) = self.0.iter().position(is_stranger) {
            // It is not counted any more, though its task may end a moment later.
            self.0.remove(oldest).task.abort();
        }
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        for connected in &self.0 {
            connected.task.abort();
        }
    }
}

impl Tcp {
    /// A connection to one of a peer's addresses.
    async fn connect_to(&self, address: &str, node: NodeId, by: Deadline) -> Result<Pipe> {
        let unreachable = |error: std::io::Error| Error::Unreachable {
            peer: address.to_owned(),
            reason: error.to_string(),
        };
        let what = "connecting to a node";
        let connecting = TcpStream::connect(address);
        let stream = self.env.within(by, what, connecting).await?.map_err(unreachable)?;
        stream.set_nodelay(true).map_err(unreachable)?;
        let Some(certificates) = &self.certificates else {
            return Ok(framed(stream, address.to_owned(), None));
        };
        let name = ServerName::try_from(certificates::name_of(node))
            .map_err(|error| Error::Certificates { reason: error.to_string() })?;
        let connector = TlsConnector::from(certificates.client());
        let shaking = connector.connect(name, stream);
        let stream = self.env.within(by, what, shaking).await?.map_err(unreachable)?;
        Ok(framed(stream, address.to_owned(), None))
    }
}

#[async_trait]
impl Transport for Tcp {
    async fn connect(&self, peer: &Peer, _class: Class, by: Deadline) -> Result<Pipe> {
        let addresses: Vec<&str> = peer.address.split(',').map(str::trim).collect();
        let mut left = u32::try_from(addresses.len()).unwrap_or(u32::MAX);
        let mut failed = None;
        for address in addresses {
            // One that takes a connection and says nothing must leave time for the others.
            let share = by.remaining(self.env.clock.monotonic()) / left.max(1);
            left -= 1;
            let within = self.env.deadline(share).earlier(by);
            match self.connect_to(address, peer.node, within).await {
                Ok(pipe) => return Ok(pipe),
                Err(error) => failed = Some(error),
            }
        }
        Err(failed.unwrap_or_else(|| Error::Unreachable {
            peer: peer.address.clone(),
            reason: "it has no address".to_owned(),
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A task that takes a while to end.
    #[derive(Debug, Default)]
    struct Slow(AtomicBool);

    impl Task for Slow {
        fn abort(&self) {
            self.0.store(true, Ordering::Release);
        }

        fn is_finished(&self) -> bool {
            false
        }
    }

    #[test]
    fn each_stranger_beyond_the_bound_ends_the_oldest_one_and_no_node() {
        let mut serving = Serving(Vec::new());
        let came: Vec<Arc<Slow>> = (0..3 * MAX_STRANGERS).map(|_| Arc::default()).collect();
        for (number, task) in came.iter().enumerate() {
            serving.make_room();
            // Every third one is a node.
            let known = Arc::new(AtomicBool::new(number % 3 == 0));
            serving.0.push(Connected { task: Arc::clone(task) as Arc<dyn Task>, known });
        }
        let ended: Vec<usize> =
            (0..came.len()).filter(|at| came[*at].0.load(Ordering::Acquire)).collect();
        let strangers = (0..came.len()).filter(|at| at % 3 != 0);
        let oldest: Vec<usize> = strangers.take(MAX_STRANGERS).collect();
        assert_eq!(ended, oldest);
    }
}
