//! Connections of HTTP: who gets a place, how long a silent one keeps it, and what is held until an
//! answer is sent.
//!
//! ```text
//! accept ──> a place; all taken: the connection that has been idle for longest loses its own, none idle: nobody is let in
//!    └─> first request within FIRST_HEAD ──> idle ──> request under way ──> answer being sent ──> idle
//!                                              a body that stops coming: BODY_STALL      not taken: `Pace::stall`
//! ```
//!
//! # Invariants
//! - Connections that ask for nothing keep nobody out: a place is taken from one of them before
//!   anyone is refused.
//! - No place is taken from a connection whose request is under way or whose answer is not sent
//!   yet.
//! - What an answer holds (`Held`) is given back when its last byte has been handed to the socket,
//!   or its connection ends.
//! - A request that came in time is answered, even if this process was stopped meanwhile and reads
//!   it late: a connection is judged silent by what there is to read after the wait, not by the
//!   clock alone.
//!
//! # On failure
//! A connection that stalls is dropped; its client sees it end.
//!
//! # Limits
//! A client that takes an answer slowly, but takes it, keeps its connection.

use std::collections::BTreeMap;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::http::header;
use bytes::Bytes;
use futures::future::BoxFuture;
use hyper::body::{Body as HttpBody, Frame, Incoming, SizeHint};
use hyper::service::{Service as _, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use parking_lot::Mutex;
use telesto_common::Env;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, mpsc};
use tokio_rustls::server::TlsStream;
use tokio_util::sync::CancellationToken;

use crate::http::Peer;
use crate::tls::Tls;
use crate::wire::stream::Stop;

/// From connecting to the end of the first request's head, and for the TLS handshake before it.
const FIRST_HEAD: Duration = Duration::from_secs(5);
/// Between two parts of a request's body.
const BODY_STALL: Duration = Duration::from_secs(10);
/// After [`FIRST_HEAD`], for what had come meanwhile to be read: the timer of a process that was
/// stopped fires at the same moment as the first look at its sockets, or before it.
const LAST_LOOK: Duration = Duration::from_millis(50);
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// What a port grants its connections.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pace {
    /// Connections at once.
    pub most: usize,
    /// Without progress between requests, in a head or in an answer.
    pub stall: Duration,
}

/// What is held for as long as an answer is being sent: an extension of the response.
#[derive(Clone, Debug)]
pub(super) struct Held {
    _permits: Arc<Vec<OwnedSemaphorePermit>>,
}

impl Held {
    pub fn new(permits: Vec<OwnedSemaphorePermit>) -> Self {
        Self { _permits: Arc::new(permits) }
    }
}

/// All connections of a port.
#[derive(Debug)]
struct Places {
    most: usize,
    kept: Mutex<Kept>,
}

#[derive(Debug, Default)]
struct Kept {
    next: u64,
    by_number: BTreeMap<u64, Arc<Place>>,
}

/// One connection, as it and those who come after it see it.
#[derive(Debug)]
struct Place {
    number: u64,
    env: Env,
    state: Mutex<State>,
    /// Its place is another's now.
    lost: CancellationToken,
}

#[derive(Debug)]
struct State {
    stage: Stage,
    /// Since when it is idle.
    idle_since: Duration,
    /// Whether there was a request.
    heard: bool,
    held: Option<Held>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Idle,
    /// From a request's head to the end of its answer's body.
    UnderWay,
    /// Everything is made, and lies in buffers here.
    Sending,
}

impl Place {
    fn begins(&self) {
        let mut state = self.state.lock();
        state.stage = Stage::UnderWay;
        state.heard = true;
        state.held = None;
    }

    fn holds(&self, held: Option<Held>) {
        self.state.lock().held = held;
    }

    fn made(&self) {
        self.state.lock().stage = Stage::Sending;
    }

    /// Nothing lies in buffers here.
    fn flushed(&self) {
        let mut state = self.state.lock();
        if state.stage == Stage::Sending {
            state.stage = Stage::Idle;
            state.idle_since = self.env.clock.monotonic();
            state.held = None;
        }
    }

    fn idle_since(&self) -> Option<Duration> {
        let state = self.state.lock();
        (state.stage == Stage::Idle).then_some(state.idle_since)
    }

    fn heard(&self) -> bool {
        self.state.lock().heard
    }
}

impl Places {
    /// A place for who comes now; `None`: every connection has a request under way.
    fn take(&self, env: &Env) -> Option<Arc<Place>> {
        let mut kept = self.kept.lock();
        if kept.by_number.len() >= self.most {
            let idle =
                kept.by_number.values().filter_map(|place| Some((place.idle_since()?, place)));
            let longest = idle.min_by_key(|(since, place)| (*since, place.number));
            let place = Arc::clone(longest?.1);
            place.lost.cancel();
            kept.by_number.remove(&place.number);
        }
        let number = kept.next;
        kept.next += 1;
        let state = State {
            stage: Stage::Idle,
            idle_since: env.clock.monotonic(),
            heard: false,
            held: None,
        };
        let place = Arc::new(Place {
            number,
            env: env.clone(),
            state: Mutex::new(state),
            lost: CancellationToken::new(),
        });
        kept.by_number.insert(number, Arc::clone(&place));
        Some(place)
    }

    fn give_back(&self, place: &Place) {
        self.kept.lock().by_number.remove(&place.number);
    }
}

/// Serves `router` until `end`, then waits for the connections: the caller bounds that.
pub(super) async fn accept(
    (listener, tls): (TcpListener, Option<Tls>),
    (env, pace): (Env, Pace),
    router: Router,
    stop: Stop,
    end: &CancellationToken,
) {
    let places = Arc::new(Places { most: pace.most, kept: Mutex::default() });
    // Every connection holds a sender: all gone means all done.
    let (all, mut ended) = mpsc::channel::<()>(1);
    loop {
        let accepted = tokio::select! {
            biased;
            () = end.cancelled() => break,
            accepted = listener.accept() => accepted,
        };
        let (socket, peer) = match accepted {
            Ok(accepted) => accepted,
            Err(error) => {
                // Out of file descriptors, most likely: give the others time to close theirs.
                tracing::warn!(%error, "HTTP accept failed");
                env.clock.sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        let Some(place) = places.take(&env) else { continue };
        let (tls, router, stop) = (tls.clone(), router.clone(), stop.clone());
        let (places, alive) = (Arc::clone(&places), all.clone());
        env.spawn("http connection", async move {
            // Without it small replies wait for the client's delayed acknowledgement.
            let _ = socket.set_nodelay(true);
            let peer = Peer { address: peer, encrypted: tls.is_some() };
            match tls {
                None => connection((socket, peer), router, (&place, pace), stop).await,
                Some(tls) => {
                    if let Some(socket) = handshake(&tls, socket, (&place, pace), &stop).await {
                        connection((socket, peer), router, (&place, pace), stop).await;
                    }
                }
            }
            places.give_back(&place);
            drop(alive);
        });
    }
    drop(all);
    let _ = ended.recv().await;
}

/// The TLS handshake; `None`: there was none in time, and nothing of the connection is left.
async fn handshake(
    tls: &Tls,
    socket: TcpStream,
    (place, pace): (&Place, Pace),
    stop: &Stop,
) -> Option<TlsStream<TcpStream>> {
    let env = &place.env;
    let by = env.deadline(pace.stall.min(FIRST_HEAD));
    let tls = tls.now();
    let accepted = tokio::select! {
        biased;
        () = stop.drain.cancelled() => return None,
        () = place.lost.cancelled() => return None,
        accepted = env.within(by, "the TLS handshake of HTTP", tls.http.accept(socket)) => accepted,
    };
    match accepted {
        Ok(Ok(stream)) => Some(stream),
        Ok(Err(error)) => {
            tracing::debug!(%error, "TLS handshake of HTTP failed");
            None
        }
        Err(_) => None,
    }
}

async fn connection(
    (socket, peer): (impl AsyncRead + AsyncWrite + Unpin + Send, Peer),
    router: Router,
    (place, pace): (&Arc<Place>, Pace),
    stop: Stop,
) {
    let mut builder = hyper::server::conn::http1::Builder::new();
    builder.timer(TokioTimer::new()).header_read_timeout(pace.stall).max_buf_size(64 * 1024);
    let router = TowerToHyperService::new(router);
    let service = service_fn(|mut request: hyper::Request<Incoming>| {
        place.begins();
        request.extensions_mut().insert(peer);
        if peer.encrypted {
            // As a proxy says it: cookies are then for TLS only.
            let https = header::HeaderValue::from_static("https");
            request.headers_mut().insert("x-forwarded-proto", https);
        }
        let (env, stall) = (place.env.clone(), pace.stall.min(BODY_STALL));
        let arriving = |body| Body::new(Arriving { body, env, stall, waiting: None });
        let answer = router.call(request.map(arriving));
        let place = Arc::clone(place);
        async move {
            let mut response = answer.await?;
            place.holds(response.extensions_mut().remove::<Held>());
            Ok::<_, std::convert::Infallible>(response.map(|body| Leaving { body, place }))
        }
    });
    let socket = Paced { socket, place: Arc::clone(place), stall: pace.stall, waiting: None };
    let connection = builder.serve_connection(TokioIo::new(socket), service);
    let mut connection = std::pin::pin!(connection);
    let mut first = place.env.clock.sleep(pace.stall.min(FIRST_HEAD));
    let (mut draining, mut ending, mut began, mut late) = (false, false, false, false);
    loop {
        tokio::select! {
            biased;
            () = stop.kill.cancelled() => return,
            () = place.lost.cancelled(), if !ending => {
                if place.idle_since().is_some() {
                    return;
                }
                // A request came just now: it is answered, and nothing after it.
                ending = true;
                connection.as_mut().graceful_shutdown();
            }
            () = stop.drain.cancelled(), if !draining => {
                draining = true;
                connection.as_mut().graceful_shutdown();
            }
            ended = connection.as_mut() => {
                if let Err(error) = ended {
                    tracing::debug!(%error, "HTTP connection ended");
                }
                return;
            }
            () = &mut first, if !began => {
                if place.heard() {
                    began = true;
                } else if late {
                    return;
                } else {
                    late = true;
                    first = place.env.clock.sleep(LAST_LOOK);
                }
            }
        }
    }
}

/// A request's body, as it comes: no part of it may keep its reader waiting for longer than
/// `stall`.
struct Arriving {
    body: Incoming,
    env: Env,
    stall: Duration,
    waiting: Option<BoxFuture<'static, ()>>,
}

impl HttpBody for Arriving {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let own = self.get_mut();
        if let Poll::Ready(frame) = Pin::new(&mut own.body).poll_frame(context) {
            own.waiting = None;
            return Poll::Ready(frame.map(|frame| frame.map_err(axum::Error::new)));
        }
        let (clock, stall) = (&own.env.clock, own.stall);
        let waiting = own.waiting.get_or_insert_with(|| clock.sleep(stall));
        ready!(waiting.as_mut().poll(context));
        own.waiting = None;
        let text = format!("no more of the request's body came for {} s", stall.as_secs());
        Poll::Ready(Some(Err(axum::Error::new(io::Error::new(io::ErrorKind::TimedOut, text)))))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// An answer's body; when it has been taken into the connection's buffers, what is left is to send
/// them.
struct Leaving {
    body: Body,
    place: Arc<Place>,
}

impl HttpBody for Leaving {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        Pin::new(&mut self.get_mut().body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

impl Drop for Leaving {
    fn drop(&mut self) {
        self.place.made();
    }
}

/// A socket that a client which takes nothing for `stall` loses.
struct Paced<S> {
    socket: S,
    place: Arc<Place>,
    stall: Duration,
    waiting: Option<BoxFuture<'static, ()>>,
}

impl<S> Paced<S> {
    fn paced<T>(
        &mut self,
        context: &mut Context<'_>,
        polled: Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        if polled.is_ready() {
            self.waiting = None;
            return polled;
        }
        let (clock, stall) = (&self.place.env.clock, self.stall);
        let waiting = self.waiting.get_or_insert_with(|| clock.sleep(stall));
        ready!(waiting.as_mut().poll(context));
        self.waiting = None;
        Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, "the client takes no answer")))
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Paced<S> {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().socket).poll_read(context, buffer)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Paced<S> {
    fn poll_write(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let own = self.get_mut();
        let polled = Pin::new(&mut own.socket).poll_write(context, bytes);
        own.paced(context, polled)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let own = self.get_mut();
        let polled = Pin::new(&mut own.socket).poll_write_vectored(context, parts);
        own.paced(context, polled)
    }

    fn is_write_vectored(&self) -> bool {
        self.socket.is_write_vectored()
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let own = self.get_mut();
        let polled = Pin::new(&mut own.socket).poll_flush(context);
        // Hyper asks for it when its own buffers are empty.
        if matches!(polled, Poll::Ready(Ok(()))) {
            own.place.flushed();
        }
        own.paced(context, polled)
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let own = self.get_mut();
        let polled = Pin::new(&mut own.socket).poll_shutdown(context);
        own.paced(context, polled)
    }
}

#[cfg(test)]
#[allow(
    clippy::disallowed_methods,
    reason = "the test stops a real thread, and its client is a real socket"
)]
mod tests {
    use std::io::{Read as _, Write as _};

    use axum::routing::get;

    use super::*;

    /// A process that is stopped for longer than a first request may take answers the request that
    /// came meanwhile.
    #[tokio::test]
    async fn request_that_came_while_the_process_stood_still_is_answered() {
        let env = telesto_runtime::env();
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("an address");
        let stop = Stop::default();
        let end = CancellationToken::new();
        let pace = Pace { most: 4, stall: Duration::from_millis(400) };
        let router = Router::new().route("/", get(|| async { "well" }));
        let served = accept((listener, None), (env.clone(), pace), router, stop, &end);
        let client = async {
            let mut socket = std::net::TcpStream::connect(address).expect("connects");
            // The server accepts it, and waits for a request.
            env.clock.sleep(Duration::from_millis(100)).await;
            socket
                .write_all(b"GET / HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n")
                .expect("sent");
            // Nothing else of this runtime runs, as in a process that is stopped.
            std::thread::sleep(Duration::from_millis(800));
            let answer = tokio::task::spawn_blocking(move || {
                let mut answer = String::new();
                let _ = socket.read_to_string(&mut answer);
                answer
            });
            let answer = answer.await.expect("read");
            end.cancel();
            answer
        };
        let ((), answer) = tokio::join!(served, client);
        assert!(answer.starts_with("HTTP/1.1 200") && answer.ends_with("well"), "{answer:?}");
    }
}
