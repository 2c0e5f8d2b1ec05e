//! A link between two regions of one machine: a TCP proxy that delays, and can be cut.
//!
//! # Invariants
//! - What comes through comes in order and unchanged, each piece no sooner than the delay after it
//!   came in.
//! - What was under way when a link was cut comes through after it is healed, or its connection
//!   breaks.
//!
//! # On failure
//! A target that does not answer closes the connection, as a refused one does.
//!
//! # Limits
//! Bytes, not packets: a connection is open at once, only what is said on it takes its time. At
//! most [`PIECES`] pieces are under way each way; more wait in the sender's socket.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;
use tokio::time::Instant;

/// Pieces of [`PIECE`] bytes at most that are under way.
const PIECES: usize = 4096;
const PIECE: usize = 16 << 10;

/// How a link is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Link {
    /// Everything comes through.
    #[value(skip)]
    Up,
    /// Nothing comes through and nobody is told, as when packets are lost.
    Silent,
    /// Connections break and new ones are refused, as when a firewall or the other side says no.
    Refused,
}

/// A link; it ends with this handle.
#[derive(Debug)]
pub struct Proxy {
    /// Where it listens on 127.0.0.1.
    pub port: u16,
    delay_micros: Arc<AtomicU64>,
    bytes: Arc<AtomicU64>,
    link: watch::Sender<Link>,
    accepting: JoinHandle<()>,
}

impl Proxy {
    /// Starts a link to `target`, a port on 127.0.0.1.
    ///
    /// # Errors
    /// No port is free.
    pub async fn start(target: u16, delay: Duration) -> std::io::Result<Self> {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await?;
        let port = listener.local_addr()?.port();
        let micros = u64::try_from(delay.as_micros()).unwrap_or(u64::MAX);
        let delay_micros = Arc::new(AtomicU64::new(micros));
        let (link, watched) = watch::channel(Link::Up);
        let bytes = Arc::new(AtomicU64::new(0));
        let (delay, counted) = (Arc::clone(&delay_micros), Arc::clone(&bytes));
        let accepting = tokio::spawn(async move {
            loop {
                // Out of file descriptors: there may be some in a moment.
                let Ok((near, _)) = listener.accept().await else {
                    tokio::time::sleep(Duration::from_millis(10)).await;
                    continue;
                };
                let (delay, counted) = (Arc::clone(&delay), Arc::clone(&counted));
                tokio::spawn(connection(near, target, delay, counted, watched.clone()));
            }
        });
        Ok(Self { port, delay_micros, bytes, link, accepting })
    }

    /// Lets the link be so from now on.
    pub fn set(&self, link: Link) {
        self.link.send_replace(link);
    }

    /// Bytes that came in so far, both ways.
    pub fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    /// Lets what comes in from now on take so long, each way.
    pub fn delay(&self, delay: Duration) {
        let micros = u64::try_from(delay.as_micros()).unwrap_or(u64::MAX);
        self.delay_micros.store(micros, Ordering::Relaxed);
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.accepting.abort();
        // Connections end too.
        self.link.send_replace(Link::Refused);
    }
}

async fn until(watched: &mut watch::Receiver<Link>, wanted: impl Fn(Link) -> bool) {
    // An error says that the link is gone: its last state, refused, was seen before.
    let _ = watched.wait_for(|link| wanted(*link)).await;
}

async fn connection(
    near: TcpStream,
    target: u16,
    delay: Arc<AtomicU64>,
    bytes: Arc<AtomicU64>,
    mut watched: watch::Receiver<Link>,
) {
    until(&mut watched, |link| link != Link::Silent).await;
    if *watched.borrow() == Link::Refused {
        return;
    }
    let Ok(far) = TcpStream::connect(("127.0.0.1", target)).await else { return };
    if near.set_nodelay(true).and_then(|()| far.set_nodelay(true)).is_err() {
        return;
    }
    let (near_read, near_write) = near.into_split();
    let (far_read, far_write) = far.into_split();
    tokio::select! {
        () = one_way(near_read, far_write, [&delay, &bytes], watched.clone()) => {}
        () = one_way(far_read, near_write, [&delay, &bytes], watched.clone()) => {}
        () = until(&mut watched, |link| link == Link::Refused) => {}
    }
}

/// Ends with either side.
async fn one_way(
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
    [delay, bytes]: [&AtomicU64; 2],
    mut watched: watch::Receiver<Link>,
) {
    let (came, mut due) = mpsc::channel::<(Instant, Vec<u8>)>(PIECES);
    let reading = async move {
        let mut piece = vec![0; PIECE];
        while let Ok(length @ 1..) = from.read(&mut piece).await {
            let at = Instant::now() + Duration::from_micros(delay.load(Ordering::Relaxed));
            bytes.fetch_add(length as u64, Ordering::Relaxed);
            if came.send((at, piece[..length].to_vec())).await.is_err() {
                break;
            }
        }
    };
    let writing = async move {
        while let Some((at, piece)) = due.recv().await {
            tokio::time::sleep_until(at).await;
            until(&mut watched, |link| link != Link::Silent).await;
            if to.write_all(&piece).await.is_err() {
                break;
            }
        }
    };
    // Reading ends first when the near side closes: what it sent is still to come through.
    tokio::join!(reading, writing);
}
