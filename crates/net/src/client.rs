//! The asking side: one connection to a peer, made when it is first needed and again when it broke.
//!
//! ```text
//!            queue (bounded)            waiting, by number
//! call ──► [ . . . ] ──► writer ──► frames ──►
//!    ◄───────────────── reader ◄── frames ◄──
//! ```
//! # Invariants
//! - Calls of one client are sent in the order in which they were made, those that wait together
//!   with one flush.
//! - At most `calls` calls of `bytes` bytes in all are under way; further ones wait, by their
//!   deadlines.
//! - While a connection is open a tick goes out every [`TICK`] with nothing else to say; one that
//!   is not heard from for `silence` is broken.
//!
//! # On failure
//! See the crate's page. After a failed attempt to connect the next is made after a pause of up to
//! [`PAUSE`]; calls that come meanwhile fail at once rather than wait for an unreachable node.
//!
//! # Limits
//! The reply to a call that gave up is dropped when it comes.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use futures::future::{Either, select};
use futures::{SinkExt as _, StreamExt as _};
use parking_lot::Mutex;
use telesto_common::{Deadline, Env};
use tokio::sync::{Semaphore, mpsc, oneshot};

use crate::error::{Error, Result};
use crate::frame::{Frame, MAX_FRAME_BYTES, Service};
use crate::hello::{Caller, Class, Hello, VERSIONS, Welcome};
use crate::transport::{Peer, Pipe, Transport};

/// How often an idle connection says that it lives.
pub const TICK: Duration = Duration::from_millis(100);
/// The longest pause between attempts to connect.
pub const PAUSE: Duration = Duration::from_millis(200);
/// The longest a connection is tried to be made.
const CONNECT: Duration = Duration::from_secs(2);

/// Bounds of a client.
#[derive(Clone, Copy, Debug)]
pub struct CallLimits {
    /// Calls under way.
    pub calls: usize,
    /// Bytes of their requests.
    pub bytes: usize,
    /// A connection not heard from for so long is broken.
    pub silence: Duration,
}

impl Default for CallLimits {
    fn default() -> Self {
        Self { calls: 1024, bytes: MAX_FRAME_BYTES, silence: Duration::from_secs(1) }
    }
}

struct Call {
    service: Service,
    body: Bytes,
    by: Deadline,
    reply: oneshot::Sender<Result<Bytes>>,
}

/// The asking side of a connection.
#[derive(Clone, Debug)]
pub struct Client {
    shared: Arc<Shared>,
    queue: mpsc::Sender<Call>,
}

#[derive(Debug)]
struct Shared {
    env: Env,
    transport: Arc<dyn Transport>,
    peer: Peer,
    me: Caller,
    class: Class,
    limits: CallLimits,
    bytes: Semaphore,
    /// Microseconds of this node's monotonic clock when the peer was last heard; 0 when never.
    heard_micros: AtomicU64,
    /// Incarnation of the peer when it was last greeted; 0 when never.
    life: AtomicU64,
}

type Waiting = Mutex<BTreeMap<u64, oneshot::Sender<Result<Bytes>>>>;

impl Client {
    /// A client of `peer`; connects when it is first used.
    #[must_use]
    pub fn new(
        env: &Env,
        transport: Arc<dyn Transport>,
        peer: Peer,
        me: Caller,
        class: Class,
        limits: CallLimits,
    ) -> Self {
        let (queue, calls) = mpsc::channel(limits.calls.max(1));
        let shared = Arc::new(Shared {
            env: env.clone(),
            transport,
            peer,
            me,
            class,
            limits,
            bytes: Semaphore::new(limits.bytes),
            heard_micros: AtomicU64::new(0),
            life: AtomicU64::new(0),
        });
        env.spawn("speaking with a node", Arc::clone(&shared).run(calls));
        Self { shared, queue }
    }

    /// The peer.
    #[must_use]
    pub fn peer(&self) -> &Peer {
        &self.shared.peer
    }

    /// How long ago the peer was last heard, by this node's monotonic clock; `None` when never.
    #[must_use]
    pub fn silent_for(&self) -> Option<Duration> {
        let heard = self.shared.heard_micros.load(Ordering::Relaxed);
        let now = self.shared.env.clock.monotonic();
        (heard > 0).then(|| now.saturating_sub(Duration::from_micros(heard)))
    }

    /// The peer's incarnation when it was last greeted.
    #[must_use]
    pub fn life(&self) -> Option<telesto_common::Incarnation> {
        let life = self.shared.life.load(Ordering::Relaxed);
        (life > 0).then_some(telesto_common::Incarnation(life))
    }

    /// Asks `service` of the peer and waits for the answer.
    ///
    /// # Errors
    /// [`Error::Unreachable`], [`Error::TooLarge`], [`Error::NotServed`], [`Error::Refused`]:
    /// nothing was done. [`Error::Broken`], [`Error::DeadlinePassed`]: the request may have been
    /// carried out, and may still be.
    pub async fn call(&self, service: Service, body: Bytes, by: Deadline) -> Result<Bytes> {
        let shared = &self.shared;
        let limit = MAX_FRAME_BYTES - Frame::OVERHEAD_BYTES;
        if body.len() > limit {
            return Err(Error::TooLarge { bytes: body.len() as u64, limit: limit as u64 });
        }
        let weight = body.len().clamp(1, shared.limits.bytes);
        let weight = u32::try_from(weight).unwrap_or(u32::MAX);
        let waiting = "waiting for earlier requests to a node";
        let permit = shared.env.within(by, waiting, shared.bytes.acquire_many(weight)).await?;
        let (reply, answer) = oneshot::channel();
        let call = Call { service, body, by, reply };
        let gone = || Error::Broken {
            peer: shared.peer.address.clone(),
            reason: "this node is stopping".into(),
        };
        shared.env.within(by, waiting, self.queue.send(call)).await?.map_err(|_| gone())?;
        let answered = shared.env.within(by, "waiting for a node's answer", answer).await;
        drop(permit);
        answered?.map_err(|_| gone())?
    }
}

impl Shared {
    fn broken(&self, reason: impl Into<String>) -> Error {
        Error::Broken { peer: self.peer.address.clone(), reason: reason.into() }
    }

    /// Speaks with the peer until the client is dropped.
    async fn run(self: Arc<Self>, mut calls: mpsc::Receiver<Call>) {
        while let Some(first) = calls.recv().await {
            let by = self.env.deadline(CONNECT).earlier(first.by);
            match self.connect(by).await {
                Ok(pipe) => {
                    metrics::counter!("telesto_net_connections_total").increment(1);
                    if self.speak(pipe, first, &mut calls).await {
                        return;
                    }
                }
                Err(error) => {
                    tracing::debug!(peer = self.peer.address, %error, "no connection");
                    let _ = first.reply.send(Err(error.clone()));
                    let pause = self.env.clock.sleep(PAUSE / 2 + self.env.jitter(PAUSE / 2));
                    futures::pin_mut!(pause);
                    loop {
                        let next = calls.recv();
                        futures::pin_mut!(next);
                        match select(next, pause.as_mut()).await {
                            Either::Left((Some(call), _)) => {
                                let _ = call.reply.send(Err(error.clone()));
                            }
                            Either::Left((None, _)) => return,
                            Either::Right(_) => break,
                        }
                    }
                }
            }
        }
    }

    async fn connect(&self, by: Deadline) -> Result<Pipe> {
        let connecting = self.transport.connect(&self.peer, self.class, by);
        let what = "connecting to a node";
        let mut pipe = self.env.within(by, what, connecting).await??;
        let hello = Hello { versions: VERSIONS, me: self.me, class: self.class };
        let greeting = pipe.sender.send(hello.encode().freeze());
        self.env.within(by, what, greeting).await??;
        let unreachable =
            |reason: String| Error::Unreachable { peer: self.peer.address.clone(), reason };
        let welcome = match self.env.within(by, what, pipe.receiver.next()).await? {
            Some(welcome) => welcome?,
            None => return Err(unreachable("it closed the connection at once".into())),
        };
        let welcome = Welcome::decode(welcome).map_err(|reason| Error::Malformed { reason })?;
        let refused = |reason| Error::Refused { peer: self.peer.address.clone(), reason };
        welcome.spoken.map_err(refused)?;
        if welcome.hello.me.node != self.peer.node {
            let found = welcome.hello.me.node;
            return Err(refused(format!("node {found} is there, not {}", self.peer.node)));
        }
        self.life.store(welcome.hello.me.incarnation.0, Ordering::Relaxed);
        self.hear();
        Ok(pipe)
    }

    fn hear(&self) {
        let now = self.env.clock.monotonic().as_micros();
        self.heard_micros.store(u64::try_from(now).unwrap_or(u64::MAX), Ordering::Relaxed);
    }

    /// Speaks over one connection until it ends; whether the client was dropped.
    async fn speak(&self, pipe: Pipe, first: Call, calls: &mut mpsc::Receiver<Call>) -> bool {
        let Pipe { mut sender, mut receiver, .. } = pipe;
        let waiting = Waiting::default();
        let ended = {
            let reader = self.hear_all(&mut receiver, &waiting);
            let writer = self.say_all(&mut sender, first, calls, &waiting);
            futures::pin_mut!(reader, writer);
            match select(reader, writer).await {
                Either::Left((error, _)) => Err(error),
                Either::Right((ended, _)) => ended,
            }
        };
        let error = match &ended {
            Ok(()) => self.broken("this node is stopping"),
            Err(error) => error.clone(),
        };
        if ended.is_err() {
            tracing::debug!(peer = self.peer.address, %error, "a connection ended");
        }
        for (_, reply) in std::mem::take(&mut *waiting.lock()) {
            let _ = reply.send(Err(error.clone()));
        }
        ended.is_ok()
    }

    async fn hear_all(
        &self,
        receiver: &mut (impl futures::Stream<Item = Result<Bytes>> + Unpin),
        waiting: &Waiting,
    ) -> Error {
        loop {
            let frame = match receiver.next().await {
                Some(Ok(frame)) => Frame::decode(frame),
                Some(Err(error)) => return error,
                None => return self.broken("the other side closed it"),
            };
            self.hear();
            let (number, answer) = match frame {
                Ok(Frame::Reply { number, body }) => (number, Ok(body)),
                Ok(Frame::Refused { number, reason }) => {
                    let peer = self.peer.address.clone();
                    (number, Err(Error::NotServed { peer, reason }))
                }
                Ok(Frame::Tock) => continue,
                Ok(Frame::Request { .. } | Frame::Tick) => {
                    return Error::Malformed { reason: "a server asked its client".into() };
                }
                Err(reason) => return Error::Malformed { reason },
            };
            // Nobody waits for it any more, or it came twice.
            if let Some(reply) = waiting.lock().remove(&number) {
                let _ = reply.send(answer);
            }
        }
    }

    /// `Ok` when the client was dropped.
    async fn say_all(
        &self,
        sender: &mut (impl futures::Sink<Bytes, Error = Error> + Unpin),
        first: Call,
        calls: &mut mpsc::Receiver<Call>,
        waiting: &Waiting,
    ) -> Result<()> {
        let mut number = 0;
        let mut next = Some(first);
        let mut ticked = self.env.clock.monotonic();
        let stuck = "the other side takes nothing";
        loop {
            let mut call = next.take();
            let idle = call.is_none();
            while !idle && let Some(one) = call.take().or_else(|| calls.try_recv().ok()) {
                let left = one.by.remaining(self.env.clock.monotonic());
                if one.reply.is_closed() || left.is_zero() {
                    continue;
                }
                number += 1;
                waiting.lock().insert(number, one.reply);
                let frame = Frame::Request { number, service: one.service, left, body: one.body };
                let feeding = sender.feed(frame.sent());
                self.env.within_timeout(self.limits.silence, stuck, feeding).await??;
            }
            // However many calls there are: one whose other side is gone has calls and no replies.
            let now = self.env.clock.monotonic();
            if idle || now.saturating_sub(ticked) >= TICK {
                ticked = now;
                let heard = self.silent();
                if heard >= self.limits.silence {
                    return Err(self.broken(format!("it has not been heard for {heard:?}")));
                }
                waiting.lock().retain(|_, reply| !reply.is_closed());
                let feeding = sender.feed(Frame::Tick.sent());
                self.env.within_timeout(self.limits.silence, stuck, feeding).await??;
            }
            self.env.within_timeout(self.limits.silence, stuck, sender.flush()).await??;
            let due = self.env.clock.sleep(TICK);
            let call = calls.recv();
            futures::pin_mut!(call);
            next = match select(call, due).await {
                Either::Left((Some(call), _)) => Some(call),
                Either::Left((None, _)) => return Ok(()),
                Either::Right(_) => None,
            };
        }
    }

    fn silent(&self) -> Duration {
        let heard = Duration::from_micros(self.heard_micros.load(Ordering::Relaxed));
        self.env.clock.monotonic().saturating_sub(heard)
    }
}
