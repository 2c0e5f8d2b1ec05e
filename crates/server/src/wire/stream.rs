//! A client's socket with bounded buffers and bounded waits.
//!
//! # Purpose
//! Everything the protocol reads or writes goes through [`Wire`]: it batches output, grows input
//! only as bytes arrive, and gives up on clients that stall.
//!
//! # Invariants
//! - Input memory beyond one read is taken for bytes that have arrived, never for a length a client
//!   only claims; frames over [`FREE_FRAME_BYTES`] are counted against the server's wire budget.
//! - Every wait ends: by progress, by its limit, or by the server's stop.
//! - One timer a connection, re-armed when it fires: no timer is made for a request.
//!
//! # Limits
//! Waits are measured in ticks of half the shortest limit, at most [`MAX_TICK`]: a limit may be
//! passed by one tick.

use std::future::Future;
use std::io;
use std::os::fd::OwnedFd;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::BytesMut;
use futures::future::{BoxFuture, Fuse, FutureExt as _};
use telesto_common::Env;
use telesto_common::limits::{MemoryBudget, Reservation};
use telesto_common::wait::{self, Wait};
use telesto_sql::CancelHandle;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, ReadBuf};
use tokio::sync::Semaphore;
use tokio_rustls::server::TlsStream;
use tokio_util::sync::CancellationToken;

use crate::config::Limits;
use crate::hand_over::Waiting;
use crate::wire::backend::Output;
use crate::wire::frontend::{self, Framing, ProtocolError};
use crate::wire::place::Place;
use crate::wire::socket::{self, Socket};

/// Frames up to this size need no reservation, bytes.
pub const FREE_FRAME_BYTES: usize = 64 * 1024;
/// Longest tick of the connection's timer.
pub const MAX_TICK: Duration = Duration::from_secs(5);
const READ_BYTES: usize = 16 * 1024;
const MAX_READ_BYTES: usize = 1 << 20;
const KEEP_BUFFER_BYTES: usize = 256 * 1024;
/// What a client that says nothing for a tick keeps for what it will say: its next message begins
/// in it.
const IDLE_BYTES: usize = 256;

/// A plain or encrypted socket.
#[derive(Debug)]
pub enum Stream {
    /// TCP.
    Plain(Socket),
    /// TLS over TCP, and the chain that the client was shown, as PEM.
    Tls(Box<TlsStream<Socket>>, Arc<[u8]>),
}

impl Stream {
    fn socket(&mut self) -> &mut Socket {
        match self {
            Self::Plain(socket) => socket,
            Self::Tls(stream, _) => stream.get_mut().0,
        }
    }
}

impl AsyncRead for Stream {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_read(context, buffer),
            Self::Tls(stream, _) => Pin::new(stream).poll_read(context, buffer),
        }
    }
}

impl AsyncWrite for Stream {
    fn poll_write(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_write(context, bytes),
            Self::Tls(stream, _) => Pin::new(stream).poll_write(context, bytes),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_flush(context),
            Self::Tls(stream, _) => Pin::new(stream).poll_flush(context),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_shutdown(context),
            Self::Tls(stream, _) => Pin::new(stream).poll_shutdown(context),
        }
    }
}

/// Why a connection ends.
#[derive(Debug)]
pub enum End {
    /// The client closed it, or the network broke.
    Gone,
    /// Nothing happened for longer than allowed; the text says what was waited for.
    Stalled(&'static str),
    /// The server is stopping and this connection is between transactions.
    Draining,
    /// The server stops now.
    Killed,
    /// The session was told to end (`pg_terminate_backend`).
    Terminated,
    /// The session's code panicked.
    Panicked,
    /// The byte stream is no Postgres protocol any more.
    Protocol(ProtocolError),
    /// The wire budget is used up.
    Memory(telesto_common::Error),
    /// The client cannot get every notification it is owed.
    Lost(telesto_sql::Lost),
    /// The client said goodbye, or was refused and told so.
    Done,
}

impl End {
    /// Whether the server ends a session that could have gone on: a driver that is told no more
    /// than that may take it for one that did nothing.
    pub const fn is_told(&self) -> bool {
        matches!(self, Self::Draining | Self::Killed | Self::Terminated)
    }
}

impl From<ProtocolError> for End {
    fn from(error: ProtocolError) -> Self {
        Self::Protocol(error)
    }
}

/// How the server is told to stop.
#[derive(Clone, Debug, Default)]
pub struct Stop {
    /// Finish what is under way.
    pub drain: CancellationToken,
    /// Finish nothing.
    pub kill: CancellationToken,
    /// Clients that the next process goes on with.
    pub(crate) waiting: Arc<Waiting>,
}

/// One client's connection.
pub struct Wire {
    stream: Stream,
    input: BytesMut,
    /// What is to be sent.
    pub output: Output,
    env: Env,
    limits: Limits,
    budget: Arc<MemoryBudget>,
    frame_memory: Option<Reservation>,
    tick: Duration,
    timer: BoxFuture<'static, ()>,
    drain: BoxFuture<'static, ()>,
    draining: bool,
    kill: BoxFuture<'static, ()>,
    killed: CancellationToken,
    waiting: Arc<Waiting>,
    /// The session is told to end; for ever pending until there is one, and once told.
    ended: Fuse<BoxFuture<'static, ()>>,
    /// Where the session's work is polled; `None`: there is no session yet.
    place: Option<Place>,
}

impl std::fmt::Debug for Wire {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Wire").field("input", &self.input.len()).finish_non_exhaustive()
    }
}

impl Wire {
    /// Over `stream`.
    #[must_use]
    pub fn new(
        env: Env,
        stream: Stream,
        limits: Limits,
        budget: Arc<MemoryBudget>,
        stop: &Stop,
    ) -> Self {
        let tick = limits.shortest_wait().div_f32(2.0).clamp(Duration::from_millis(5), MAX_TICK);
        Self {
            stream,
            input: BytesMut::new(),
            output: Output::default(),
            timer: env.clock.sleep(tick),
            env,
            limits,
            budget,
            frame_memory: None,
            tick,
            drain: Box::pin(stop.drain.clone().cancelled_owned()),
            draining: false,
            kill: Box::pin(stop.kill.clone().cancelled_owned()),
            killed: stop.kill.clone(),
            waiting: Arc::clone(&stop.waiting),
            ended: Fuse::terminated(),
            place: None,
        }
    }

    /// Has the runtime at hand serve the socket.
    ///
    /// # Errors
    /// [`End::Gone`] when the system refuses.
    pub fn move_here(&mut self) -> Result<(), End> {
        self.stream.socket().move_here().map_err(|_| End::Gone)
    }

    /// From here on the connection ends when `handle`'s session is told to, and its work is polled
    /// where it belongs.
    pub fn belongs_to(&mut self, handle: &CancelHandle, slots: Arc<Semaphore>) {
        if let Some(descriptor) = self.stream.socket().descriptor() {
            // Runs only inside of the session's work, while this socket is open.
            handle.watch(socket::probe(descriptor, self.killed.clone()));
        }
        self.ended = handle.clone().ended().boxed().fuse();
        self.place = Some(Place::new(self.env.clone(), handle.clone(), slots));
    }

    /// Takes the place of the session's work, for work that uses this connection itself.
    pub(super) fn take_place(&mut self) -> Option<Place> {
        self.place.take()
    }

    pub(super) fn give_place(&mut self, place: Option<Place>) {
        self.place = place;
    }

    /// Whether a client that is between two transactions goes on in the next process.
    #[must_use]
    pub(crate) fn is_passed_on(&self) -> bool {
        self.waiting.is_wanted()
    }

    /// The limits in force.
    #[must_use]
    pub fn limits(&self) -> &Limits {
        &self.limits
    }

    /// The socket and what was read from it beyond the messages taken, to go on in another way
    /// (TLS).
    #[must_use]
    pub fn into_parts(self) -> (Stream, BytesMut) {
        (self.stream, self.input)
    }

    /// The socket for another process, when nothing of the client is under way here and it is not
    /// encrypted.
    ///
    /// # Errors
    /// The wire as it was, or nothing when the system refuses, and why.
    pub(crate) fn into_descriptor(self) -> Result<OwnedFd, (Option<Box<Self>>, &'static str)> {
        if !self.input.is_empty() || !self.output.is_empty() {
            return Err((Some(Box::new(self)), "a message of it is under way"));
        }
        match self.stream {
            Stream::Plain(socket) => {
                socket.into_descriptor().map_err(|_| (None, "the system does not let go of it"))
            }
            stream @ Stream::Tls(..) => {
                Err((Some(Box::new(Self { stream, ..self })), "it is encrypted"))
            }
        }
    }

    /// The socket.
    #[must_use]
    pub fn stream(&self) -> &Stream {
        &self.stream
    }

    /// What has arrived and was not taken.
    pub fn input(&mut self) -> &mut BytesMut {
        &mut self.input
    }

    /// The next frame if it has arrived whole; never waits.
    ///
    /// # Errors
    /// [`End::Protocol`], [`End::Memory`].
    pub fn buffered_frame(&mut self) -> Result<Option<(u8, BytesMut)>, End> {
        match frontend::next_frame(&mut self.input, self.limits.max_message_bytes)? {
            Framing::Frame(kind, body) => {
                self.frame_memory = None;
                Ok(Some((kind, body)))
            }
            Framing::Need(total) => {
                if total > FREE_FRAME_BYTES && self.frame_memory.is_none() {
                    let reserved = self.budget.reserve("a client's message", total as u64);
                    self.frame_memory = Some(reserved.map_err(End::Memory)?);
                }
                let missing = total.saturating_sub(self.input.len());
                self.input.reserve(missing.clamp(READ_BYTES, MAX_READ_BYTES));
                Ok(None)
            }
        }
    }

    /// The next frame. Flushes the output before it waits. `idle` bounds the wait for a frame to
    /// begin and is named in [`End::Stalled`]; `None` waits for ever.
    ///
    /// # Errors
    /// [`End`].
    pub async fn frame(
        &mut self,
        idle: Option<Duration>,
        what: &'static str,
        may_drain: bool,
    ) -> Result<(u8, BytesMut), End> {
        loop {
            if let Some(frame) = self.buffered_frame()? {
                return Ok(frame);
            }
            self.flush().await?;
            let (limit, what) = if self.input.is_empty() {
                (idle, what)
            } else {
                (Some(self.limits.stall), "the rest of a message")
            };
            self.read_more(limit, what, may_drain && self.input.is_empty()).await?;
        }
    }

    /// Waits until at least one byte more has arrived.
    ///
    /// # Errors
    /// [`End`].
    pub async fn read_more(
        &mut self,
        limit: Option<Duration>,
        what: &'static str,
        may_drain: bool,
    ) -> Result<(), End> {
        if self.input.is_empty() && self.input.capacity() > KEEP_BUFFER_BYTES {
            self.input = BytesMut::new();
        }
        if self.input.capacity() - self.input.len() < READ_BYTES / 4 {
            self.input.reserve(READ_BYTES);
        }
        let mut waited = Duration::ZERO;
        loop {
            if may_drain && self.draining {
                return Err(End::Draining);
            }
            tokio::select! {
                biased;
                read = self.stream.read_buf(&mut self.input) => {
                    return match read {
                        Ok(0) | Err(_) => Err(End::Gone),
                        Ok(_) => Ok(()),
                    };
                }
                () = &mut self.kill => return Err(End::Killed),
                () = &mut self.ended => return Err(End::Terminated),
                () = &mut self.drain, if !self.draining => self.draining = true,
                () = &mut self.timer => {
                    self.timer = self.env.clock.sleep(self.tick);
                    waited += self.tick;
                    self.rest();
                    if limit.is_some_and(|limit| waited > limit) {
                        return Err(End::Stalled(what));
                    }
                }
            }
        }
    }

    /// Gives back the buffers of a client that has nothing to say for now: ten thousand of them are
    /// more than the data.
    fn rest(&mut self) {
        if self.input.is_empty() && self.input.capacity() > IDLE_BYTES {
            self.input = BytesMut::with_capacity(IDLE_BYTES);
        }
        if self.output.is_empty() && self.output.buffer().capacity() > IDLE_BYTES {
            *self.output.buffer() = BytesMut::new();
        }
    }

    /// Sends the output.
    ///
    /// # Errors
    /// [`End`].
    pub async fn flush(&mut self) -> Result<(), End> {
        let mut waited = Duration::ZERO;
        let mut flushed = self.output.is_empty() || matches!(self.stream, Stream::Plain(_));
        while !self.output.is_empty() || !flushed {
            let sending = async {
                if self.output.is_empty() {
                    self.stream.flush().await.map(|()| None)
                } else {
                    self.stream.write_buf(self.output.buffer()).await.map(Some)
                }
            };
            tokio::select! {
                biased;
                sent = wait::on(Wait::ClientWrite, sending) => match sent {
                    Ok(None) => flushed = true,
                    Ok(Some(0)) | Err(_) => return Err(End::Gone),
                    Ok(Some(_)) => waited = Duration::ZERO,
                },
                () = &mut self.kill => return Err(End::Killed),
                () = &mut self.ended => return Err(End::Terminated),
                () = &mut self.timer => {
                    self.timer = self.env.clock.sleep(self.tick);
                    waited += self.tick;
                    if waited > self.limits.stall {
                        return Err(End::Stalled("the client to read its results"));
                    }
                }
            }
        }
        if self.output.buffer().capacity() > KEEP_BUFFER_BYTES {
            *self.output.buffer() = BytesMut::new();
        }
        Ok(())
    }

    /// Runs `work`; meanwhile notices a client that hangs up. `None`: it did, and `work` was
    /// dropped.
    ///
    /// # Errors
    /// [`End::Gone`], [`End::Killed`]; `work` was dropped.
    pub async fn during<T>(&mut self, work: impl Future<Output = T>) -> Result<T, End> {
        let mut work = std::pin::pin!(work);
        let mut waited = false;
        std::future::poll_fn(|context| {
            // Before the work, because work that computes uses up the task's share (tokio's
            // cooperative budget) and the socket would never be looked at; not before its first
            // step, because most work ends with that.
            if waited && let Poll::Ready(end) = self.poll_gone(context) {
                return Poll::Ready(Err(end));
            }
            let polled = match &mut self.place {
                Some(place) => place.poll(context, |context| work.as_mut().poll(context)),
                None => work.as_mut().poll(context),
            };
            if let Poll::Ready(done) = polled {
                return Poll::Ready(Ok(done));
            }
            if std::mem::replace(&mut waited, true) {
                return Poll::Pending;
            }
            self.poll_gone(context).map(Err)
        })
        .await
    }

    /// Whether the client has hung up or the server stops now; reads ahead a little meanwhile.
    pub fn poll_gone(&mut self, context: &mut Context<'_>) -> Poll<End> {
        if self.kill.as_mut().poll(context).is_ready() {
            return Poll::Ready(End::Killed);
        }
        while self.input.len() < FREE_FRAME_BYTES {
            if self.input.capacity() == self.input.len() {
                self.input.reserve(READ_BYTES);
            }
            let read = self.stream.read_buf(&mut self.input);
            match std::pin::pin!(read).poll(context) {
                Poll::Ready(Ok(0) | Err(_)) => return Poll::Ready(End::Gone),
                Poll::Ready(Ok(_)) => {}
                Poll::Pending => break,
            }
        }
        Poll::Pending
    }

    /// Closes the socket after what is to be sent; waits no longer than a client needs that
    /// listens.
    pub async fn close(mut self) {
        if self.flush().await.is_ok() {
            let deadline = self.env.deadline(Duration::from_secs(1));
            // The client may be gone already; closing is all that is left to do.
            let _ = self.env.within(deadline, "closing", self.stream.shutdown()).await;
        }
    }
}
