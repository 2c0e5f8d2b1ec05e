//! The network of the simulation: frames between processes of one world, delayed, lost, repeated,
//! reordered and cut off as a seed says.
//!
//! # Invariants
//! - Everything is drawn from the world's own hand, so that a seed gives the same run.
//! - A frame that was handed over is on its way whatever becomes of its sender: a killed process
//!   does not take it back.
//! - A cut is one-way; what is under way when it falls is lost too.
//! - A process that listens again is another one: connections to the one before end, as its machine
//!   would reset them.
//!
//! # Limits
//! Nothing models bandwidth: a frame takes its delay however long it is.

use std::collections::{BTreeMap, BTreeSet};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use futures::{Sink, Stream};
use parking_lot::Mutex;
use telesto_common::{Deadline, Env};
use tokio::sync::mpsc;

use crate::error::{Error, Result};
use crate::hello::Class;
use crate::transport::{Peer, Pipe, Transport};

/// What befalls frames.
#[derive(Clone, Copy, Debug)]
pub struct Weather {
    /// The shortest way.
    pub delay: Duration,
    /// How much longer it may take.
    pub jitter: Duration,
    /// Frames in a thousand that are lost.
    pub lost: u64,
    /// Frames in a thousand that come twice.
    pub repeated: u64,
    /// Whether a later frame may come before an earlier one.
    pub reordered: bool,
}

impl Weather {
    /// Half a millisecond, and nothing happens.
    pub const CALM: Self = Self {
        delay: Duration::from_micros(500),
        jitter: Duration::ZERO,
        lost: 0,
        repeated: 0,
        reordered: false,
    };
    /// Frames are late, lost, repeated and out of order.
    pub const FOUL: Self = Self {
        delay: Duration::from_millis(1),
        jitter: Duration::from_millis(30),
        lost: 20,
        repeated: 30,
        reordered: true,
    };
}

#[derive(Debug)]
struct Inner {
    weather: Weather,
    /// Ways, from address to address, on which nothing passes.
    cuts: BTreeSet<(String, String)>,
    /// Who listens where, and which listener in turn it is.
    listeners: BTreeMap<String, (u64, mpsc::UnboundedSender<Pipe>)>,
    /// Who listened somewhere before and goes on with the connections that it has.
    going_on: BTreeSet<(String, u64)>,
    turns: u64,
}

/// The network of one world. Clones are the same network.
#[derive(Clone, Debug)]
pub struct SimNet {
    env: Env,
    inner: Arc<Mutex<Inner>>,
}

/// The connections that come to an address.
pub type Incoming = mpsc::UnboundedReceiver<Pipe>;

impl SimNet {
    /// A network; `env` is the world's own hand.
    #[must_use]
    pub fn new(env: Env) -> Self {
        let inner = Inner {
            weather: Weather::CALM,
            cuts: BTreeSet::new(),
            listeners: BTreeMap::new(),
            going_on: BTreeSet::new(),
            turns: 0,
        };
        Self { env, inner: Arc::new(Mutex::new(inner)) }
    }

    /// From now on frames fare like this.
    pub fn set_weather(&self, weather: Weather) {
        self.inner.lock().weather = weather;
    }

    /// Nothing passes from `from` to `to` any more; the other way stays as it is.
    pub fn cut(&self, from: &str, to: &str) {
        self.inner.lock().cuts.insert((from.to_owned(), to.to_owned()));
    }

    /// Every way is open again.
    pub fn heal(&self) {
        self.inner.lock().cuts.clear();
    }

    /// The connections to `address` from now on; whoever listened there before hears nothing more.
    #[must_use]
    pub fn listen(&self, address: &str) -> Incoming {
        let (sender, incoming) = mpsc::unbounded_channel();
        let mut inner = self.inner.lock();
        inner.turns += 1;
        let turn = inner.turns;
        inner.listeners.insert(address.to_owned(), (turn, sender));
        incoming
    }

    /// As [`SimNet::listen`], but whoever listened there before goes on with the connections that
    /// it has, and makes others.
    #[must_use]
    pub fn succeed(&self, address: &str) -> Incoming {
        let before = self.inner.lock().listeners.get(address).map(|(turn, _)| *turn);
        if let Some(turn) = before {
            self.inner.lock().going_on.insert((address.to_owned(), turn));
        }
        self.listen(address)
    }

    /// Those whom others have succeeded at `address` do not go on any more.
    pub fn end_succeeded(&self, address: &str) {
        self.inner.lock().going_on.retain(|(at, _)| at != address);
    }

    /// Nobody listens at `address` any more.
    pub fn leave(&self, address: &str) {
        self.inner.lock().listeners.remove(address);
        self.end_succeeded(address);
    }

    /// Connects from `address`.
    #[must_use]
    pub fn transport(&self, address: &str) -> Arc<dyn Transport> {
        let turn = self.inner.lock().listeners.get(address).map(|(turn, _)| *turn);
        Arc::new(SimTransport { net: self.clone(), address: address.to_owned(), turn })
    }

    fn is_cut(&self, from: &str, to: &str) -> bool {
        self.inner.lock().cuts.contains(&(from.to_owned(), to.to_owned()))
    }

    fn listens(&self, address: &str, turn: u64) -> bool {
        let inner = self.inner.lock();
        inner.listeners.get(address).is_some_and(|(now, _)| *now == turn)
            || inner.going_on.contains(&(address.to_owned(), turn))
    }

    fn chance(&self, per_mille: u64) -> bool {
        per_mille > 0 && self.env.random.next_u64() % 1000 < per_mille
    }
}

#[derive(Debug)]
struct SimTransport {
    net: SimNet,
    address: String,
    /// Which listener its own process is, when it listens.
    turn: Option<u64>,
}

#[async_trait]
impl Transport for SimTransport {
    async fn connect(&self, peer: &Peer, _class: Class, _by: Deadline) -> Result<Pipe> {
        let net = &self.net;
        let weather = net.inner.lock().weather;
        let (here, there) = (self.address.as_str(), peer.address.as_str());
        // A first exchange, before anything else can be said; the caller's deadline bounds it.
        net.env.clock.sleep(weather.delay * 2 + net.env.jitter(weather.jitter)).await;
        if net.is_cut(here, there) || net.is_cut(there, here) {
            std::future::pending::<()>().await;
        }
        let listener = net.inner.lock().listeners.get(there).cloned();
        let refused = || Error::Unreachable {
            peer: peer.address.clone(),
            reason: "nobody listens there".into(),
        };
        let (turn, incoming) = listener.ok_or_else(refused)?;
        let (to_there, from_here) = mpsc::unbounded_channel();
        let (to_here, from_there) = mpsc::unbounded_channel();
        let pipe = |peer: &str, outgoing: SimSender, receiver| Pipe {
            peer: peer.to_owned(),
            sender: Box::pin(outgoing),
            receiver: Box::pin(SimReceiver(receiver)),
            vouches: None,
        };
        let way = |from: &str, to: &str, ends: Vec<(String, u64)>, queue| SimSender {
            net: net.clone(),
            from: from.to_owned(),
            to: to.to_owned(),
            ends,
            queue,
            last: Duration::ZERO,
            first: true,
        };
        let mut ends = vec![(there.to_owned(), turn)];
        ends.extend(self.turn.map(|turn| (here.to_owned(), turn)));
        let theirs = pipe(here, way(there, here, ends.clone(), to_here), from_here);
        incoming.send(theirs).map_err(|_| refused())?;
        Ok(pipe(there, way(here, there, ends, to_there), from_there))
    }
}

struct SimReceiver(mpsc::UnboundedReceiver<Bytes>);

impl Stream for SimReceiver {
    type Item = Result<Bytes>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.0.poll_recv(context).map(|frame| frame.map(Ok))
    }
}

struct SimSender {
    net: SimNet,
    from: String,
    to: String,
    /// The listeners whose processes hold the connection.
    ends: Vec<(String, u64)>,
    queue: mpsc::UnboundedSender<Bytes>,
    /// When the last frame arrives, world time.
    last: Duration,
    /// Whether nothing was sent yet.
    first: bool,
}

impl SimSender {
    fn send(&mut self, frame: &Bytes) {
        let net = &self.net;
        let weather = net.inner.lock().weather;
        if net.is_cut(&self.from, &self.to) || net.chance(weather.lost) {
            return;
        }
        // The hello is part of making a connection, which does not happen twice.
        let repeated = !std::mem::take(&mut self.first) && net.chance(weather.repeated);
        let copies = 1 + u64::from(repeated);
        for _ in 0..copies {
            let now = net.env.clock.monotonic();
            let mut at = now + weather.delay + net.env.jitter(weather.jitter);
            if !weather.reordered {
                at = at.max(self.last);
            }
            self.last = at.max(self.last);
            let (net, queue, frame) = (net.clone(), self.queue.clone(), frame.clone());
            let (from, to) = (self.from.clone(), self.to.clone());
            let way = at.saturating_sub(now);
            self.net.env.spawn("a frame on its way", async move {
                net.env.clock.sleep(way).await;
                if !net.is_cut(&from, &to) {
                    let _ = queue.send(frame);
                }
            });
        }
    }
}

impl Sink<Bytes> for SimSender {
    type Error = Error;

    fn poll_ready(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn start_send(mut self: Pin<&mut Self>, frame: Bytes) -> Result<()> {
        if !self.ends.iter().all(|(address, turn)| self.net.listens(address, *turn)) {
            let reason = "the other side was started again".to_owned();
            return Err(Error::Broken { peer: self.to.clone(), reason });
        }
        self.send(&frame);
        Ok(())
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_close(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Result<()>> {
        Poll::Ready(Ok(()))
    }
}
