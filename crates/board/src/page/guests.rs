//! The connections of those who look at a board: so many at once, and none that is silent for long.
//!
//! # Invariants
//! - A place is taken before a connection is accepted: who finds none waits in the system's queue,
//!   and takes no file descriptor of the board.
//! - A connection on which nothing comes and nothing goes for [`Pace::idle`] ends, so that its
//!   place is another's.
//!
//! # On failure
//! A visitor whose connection was ended connects again.
//!
//! # Limits
//! Visitors that are many and send a byte now and then keep others from the page, not the board
//! from its targets.

use std::future::Future as _;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::serve::Listener;
use futures::future::BoxFuture;
use telesto_common::Env;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// What is granted to visitors.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pace {
    /// Connections at once.
    pub most: usize,
    /// How long one may be silent.
    pub idle: Duration,
}

/// Few browsers, each with its handful of connections. A page takes less than this however long its
/// history is.
pub(super) const PACE: Pace = Pace { most: 64, idle: Duration::from_secs(30) };

/// See the module's text.
#[derive(Debug)]
pub(super) struct Guests {
    env: Env,
    listener: TcpListener,
    places: Arc<Semaphore>,
    idle: Duration,
}

impl Guests {
    pub fn new(env: Env, listener: TcpListener, pace: Pace) -> Self {
        Self { env, listener, places: Arc::new(Semaphore::new(pace.most)), idle: pace.idle }
    }
}

impl Listener for Guests {
    type Io = Guest;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (Guest, SocketAddr) {
        // Nobody closes it.
        let place = Arc::clone(&self.places).acquire_owned().await.ok();
        let (socket, address) = Listener::accept(&mut self.listener).await;
        let (env, idle) = (self.env.clone(), self.idle);
        (Guest { env, socket, idle, reading: None, writing: None, _place: place }, address)
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }
}

/// One connection.
pub(super) struct Guest {
    env: Env,
    socket: TcpStream,
    idle: Duration,
    /// Until when it may be silent, once it is waited for.
    reading: Option<BoxFuture<'static, ()>>,
    writing: Option<BoxFuture<'static, ()>>,
    _place: Option<OwnedSemaphorePermit>,
}

/// Whether the time is over; it begins when it is asked first.
fn is_over(
    waiting: &mut Option<BoxFuture<'static, ()>>,
    (env, idle): (&Env, Duration),
    context: &mut Context<'_>,
) -> Poll<io::Error> {
    let waiting = waiting.get_or_insert_with(|| env.clock.sleep(idle));
    ready!(Pin::new(waiting).poll(context));
    Poll::Ready(io::Error::new(io::ErrorKind::TimedOut, "the visitor was silent"))
}

impl AsyncRead for Guest {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let Self { env, socket, idle, reading, .. } = self.get_mut();
        if let Poll::Ready(read) = Pin::new(socket).poll_read(context, buffer) {
            *reading = None;
            return Poll::Ready(read);
        }
        is_over(reading, (env, *idle), context).map(Err)
    }
}

impl AsyncWrite for Guest {
    fn poll_write(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let Self { env, socket, idle, writing, .. } = self.get_mut();
        if let Poll::Ready(written) = Pin::new(socket).poll_write(context, bytes) {
            *writing = None;
            return Poll::Ready(written);
        }
        is_over(writing, (env, *idle), context).map(Err)
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().socket).poll_flush(context)
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().socket).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use axum::Router;
    use axum::routing::get;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    use super::*;

    /// Asks for the page, and reads what comes until the connection ends.
    async fn ask(mut socket: TcpStream) -> String {
        let request = b"GET / HTTP/1.1\r\nhost: board\r\nconnection: close\r\n\r\n";
        socket.write_all(request).await.expect("sent");
        let mut answer = String::new();
        socket.read_to_string(&mut answer).await.expect("read");
        answer
    }

    #[tokio::test]
    async fn silent_visitors_take_few_places_and_lose_them() {
        let env = telesto_runtime::env();
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("bound");
        let pace = Pace { most: 3, idle: Duration::from_millis(300) };
        let guests = Guests::new(env.clone(), listener, pace);
        let places = Arc::clone(&guests.places);
        let router = Router::new().route("/", get(async || "the page"));
        let serving = env.spawn("a board's page", async move {
            let _ = axum::serve(guests, router).await;
        });
        let first = TcpStream::connect(address).await.expect("connected");
        assert!(ask(first).await.ends_with("the page"));
        let mut silent = Vec::new();
        for _ in 0..10 {
            silent.push(TcpStream::connect(address).await.expect("connected"));
        }
        let late = TcpStream::connect(address).await.expect("connected");
        let answered = async {
            // All places are taken by silent ones, and the others are not accepted.
            while places.available_permits() > 0 {
                env.clock.sleep(Duration::from_millis(5)).await;
            }
            // Each loses its place to one that waits, until the one that asks has its turn.
            ask(late).await
        };
        let answer = env.within_timeout(Duration::from_secs(60), "the page", answered).await;
        assert!(answer.expect("it has its turn").ends_with("the page"));
        let mut end = [0];
        assert_eq!(silent[0].read(&mut end).await.unwrap_or_default(), 0, "it was ended");
        serving.abort();
    }
}
