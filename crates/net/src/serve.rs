//! The answering side of a connection.
//!
//! # Invariants
//! - Requests begin in the order in which they came: each is run until it first waits before the
//!   next one is looked at.
//! - At most [`MAX_RUNNING`] run at a time; while so many do, nothing more is read, and the other
//!   side's queue fills up. It hears every [`TOCKS`] that this side lives, though its ticks are not
//!   read.
//!
//! # On failure
//! A request whose deadline passed is not answered: nobody waits for it. A connection that says
//! nothing for [`SILENCE`] is closed, as is one that sends what is no frame.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use futures::future::{BoxFuture, Either, select};
use futures::stream::FuturesUnordered;
use futures::{FutureExt as _, SinkExt as _, StreamExt as _};
use telesto_common::{Deadline, Env};

use crate::error::{Error, Result};
use crate::frame::{Frame, Service};
use crate::hello::{Caller, Class, Hello, Versions, Welcome};
use crate::transport::Pipe;

/// Requests of one connection that run at a time.
pub const MAX_RUNNING: usize = 256;
/// A connection that says nothing for so long is dead: a living one ticks.
pub const SILENCE: Duration = Duration::from_secs(10);
/// How often the other side hears of this one while nothing is read.
const TOCKS: Duration = Duration::from_millis(250);
/// Time for the hello, and for the other side to take a reply.
const PATIENCE: Duration = Duration::from_secs(10);

/// Answers requests.
#[async_trait]
pub trait Handler: Debug + Send + Sync {
    /// The answer to `request` of `from`. After `by` nobody waits for it.
    async fn handle(&self, from: Caller, class: Class, request: Bytes, by: Deadline) -> Bytes;
}

/// Which handler answers for which service of a node.
#[derive(Clone, Debug, Default)]
pub struct Router {
    handlers: BTreeMap<Service, Arc<dyn Handler>>,
}

impl Router {
    /// Lets `handler` answer for `service`.
    #[must_use]
    pub fn with(mut self, service: Service, handler: Arc<dyn Handler>) -> Self {
        self.handlers.insert(service, handler);
        self
    }
}

type Running = FuturesUnordered<BoxFuture<'static, Option<Frame>>>;

/// Answers the requests of one connection until it ends.
///
/// # Errors
/// Why it ended, unless the other side closed it.
pub async fn serve(
    env: &Env,
    pipe: Pipe,
    me: Caller,
    versions: Versions,
    router: &Router,
) -> Result<()> {
    let Pipe { peer, mut sender, mut receiver, vouches } = pipe;
    let malformed = |reason| Error::Malformed { reason };
    let first = env.within_timeout(PATIENCE, "waiting for a node's hello", receiver.next()).await?;
    let Some(first) = first else { return Ok(()) };
    let (hello, _) = Hello::decode(first?).map_err(malformed)?;
    let may_speak = vouches.is_none_or(|vouches| vouches(hello.me.node));
    let spoken = match versions.common(hello.versions) {
        _ if !may_speak => Err(format!("its certificate is not that of node {}", hello.me.node)),
        Some(version) => Ok(version),
        None => Err(format!(
            "it speaks versions {} to {}, this node {} to {}",
            hello.versions.oldest, hello.versions.newest, versions.oldest, versions.newest
        )),
    };
    let refused = spoken.clone().err();
    let welcome = Welcome { hello: Hello { versions, me, class: hello.class }, spoken };
    let greeting = sender.send(welcome.encode());
    env.within_timeout(PATIENCE, "greeting a node", greeting).await??;
    if let Some(reason) = refused {
        return Err(Error::Refused { peer, reason });
    }
    let mut running = Running::new();
    let mut heard = env.clock.monotonic();
    loop {
        // What is ready goes out together.
        let mut said = false;
        while let Some(Some(reply)) = running.next().now_or_never() {
            if let Some(reply) = reply {
                said = true;
                let feeding = sender.feed(reply.sent());
                env.within_timeout(PATIENCE, "a node takes no replies", feeding).await??;
            }
        }
        if said {
            env.within_timeout(PATIENCE, "a node takes no replies", sender.flush()).await??;
        }
        let full = running.len() >= MAX_RUNNING;
        let now = env.clock.monotonic();
        if full {
            // Who is not listened to is not silent.
            heard = now;
        }
        let silent = Deadline::at(heard + SILENCE);
        if silent.passed(now) {
            return Err(Error::Broken { peer, reason: "it has been silent for long".into() });
        }
        let event = {
            let until = if full { env.deadline(TOCKS) } else { silent };
            let came =
                async { if full { std::future::pending().await } else { receiver.next().await } };
            let done = async {
                match running.next().await {
                    Some(reply) => reply,
                    None => std::future::pending().await,
                }
            };
            futures::pin_mut!(came, done);
            match env.within(until, "a node's next request", select(came, done)).await {
                Err(_) if full => Event::Answered(Some(Frame::Tock)),
                Err(_) => Event::Nothing,
                Ok(Either::Left((None, _))) => return Ok(()),
                Ok(Either::Left((Some(frame), _))) => Event::Came(frame?),
                Ok(Either::Right((reply, _))) => Event::Answered(reply),
            }
        };
        let reply = match event {
            Event::Nothing => None,
            Event::Came(frame) => {
                heard = env.clock.monotonic();
                let frame = Frame::decode(frame).map_err(malformed)?;
                begin(env, hello.me, hello.class, router, frame, &running)?
            }
            Event::Answered(reply) => reply,
        };
        if let Some(reply) = reply {
            let sending = sender.send(reply.sent());
            env.within_timeout(PATIENCE, "a node takes no replies", sending).await??;
        }
    }
}

/// What the loop over a connection wakes for.
enum Event {
    Nothing,
    Came(Bytes),
    Answered(Option<Frame>),
}

/// Begins what `frame` asks for; gives the answer when there is one at once.
fn begin(
    env: &Env,
    from: Caller,
    class: Class,
    router: &Router,
    frame: Frame,
    running: &Running,
) -> Result<Option<Frame>> {
    let (number, service, left, body) = match frame {
        Frame::Request { number, service, left, body } => (number, service, left, body),
        Frame::Tick => return Ok(Some(Frame::Tock)),
        Frame::Reply { .. } | Frame::Refused { .. } | Frame::Tock => {
            return Err(Error::Malformed { reason: "a node answered what nobody asked".into() });
        }
    };
    let Some(handler) = router.handlers.get(&service).map(Arc::clone) else {
        let reason = format!("it has no service {}", service.0);
        return Ok(Some(Frame::Refused { number, reason }));
    };
    let (by, env) = (env.deadline(left), env.clone());
    let mut work: BoxFuture<'static, Option<Frame>> = Box::pin(async move {
        let handled = handler.handle(from, class, body, by);
        let body = env.within(by, "answering a node's request", handled).await.ok()?;
        Some(Frame::Reply { number, body })
    });
    // Run until it first waits: so requests take their places in the order in which they came.
    match (&mut work).now_or_never() {
        Some(reply) => Ok(reply),
        None => {
            running.push(work);
            Ok(None)
        }
    }
}
