//! A middlebox between nodes and an S3 server that does to requests what proxies, gateways and
//! retrying load balancers do: repeats them, holds, drops and reorders replies, answers for the
//! server.
//!
//! ```text
//! node --request--> meddler --request--> server
//!                     |  repeat at once: the client gets the second reply (412 for its own success)
//!                     |  repeat later:   the server gets the request again, nobody hears the reply
//!                     |  hold:           the reply comes after others that were asked for later
//!                     |  drop:           the connection is closed, before or after the effect
//!                     |  refuse:         503 without, 500 with effect
//! ```
//! # Invariants
//! - Bytes are passed on as they came: the signature covers the Host header, which stays the
//!   meddler's.
//! - Only GET, PUT and DELETE are repeated, as nginx does by default (`proxy_next_upstream`): they
//!   count as idempotent.
//! - [`Meddler::behave`] ends all of it: what is sent afterwards passes untouched.
//!
//! # Limits
//! HTTP/1.1, no TLS, bodies in memory. Draws come from a seed, but the order of requests does not:
//! a run is not repeatable.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode, Uri};
use hyper_util::client::legacy::{Client, connect::HttpConnector};
use hyper_util::rt::{TokioExecutor, TokioIo};
use rand::rngs::StdRng;
use rand::{Rng as _, SeedableRng as _};
use tokio::net::TcpListener;

type Upstream = Client<HttpConnector, Full<Bytes>>;
type Reply = Result<Response<Full<Bytes>>, Box<dyn std::error::Error + Send + Sync>>;

/// What is done to one request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mischief {
    Nothing,
    RepeatAtOnce,
    RepeatLater(Duration),
    Hold(Duration),
    DropBefore,
    DropAfter,
    RefuseBefore,
    RefuseAfter,
}

/// How often each mischief was done.
#[derive(Debug, Default)]
pub struct Counts {
    pub passed: AtomicU64,
    pub repeated: AtomicU64,
    pub own_success_refused: AtomicU64,
    pub held: AtomicU64,
    pub dropped: AtomicU64,
    pub refused: AtomicU64,
}

/// A running middlebox; ends with the runtime that it was started on.
pub struct Meddler {
    port: u16,
    state: Arc<State>,
}

struct State {
    upstream: SocketAddr,
    client: Upstream,
    random: Mutex<StdRng>,
    behaved: AtomicBool,
    counts: Counts,
}

impl Meddler {
    /// Listens on a free port of 127.0.0.1 and passes on to `upstream`, a port there.
    pub async fn start(upstream: u16, seed: u64) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.expect("a free port");
        let port = listener.local_addr().expect("address").port();
        let client = Client::builder(TokioExecutor::new())
            .retry_canceled_requests(false)
            .build_http::<Full<Bytes>>();
        let state = Arc::new(State {
            upstream: SocketAddr::from(([127, 0, 0, 1], upstream)),
            client,
            random: Mutex::new(StdRng::seed_from_u64(seed)),
            behaved: AtomicBool::new(false),
            counts: Counts::default(),
        });
        let shared = Arc::clone(&state);
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let state = Arc::clone(&shared);
                tokio::spawn(async move {
                    let service = service_fn(move |request| Arc::clone(&state).answer(request));
                    // Ends with an error whenever a reply is dropped.
                    let _ = hyper::server::conn::http1::Builder::new()
                        .serve_connection(TokioIo::new(stream), service)
                        .await;
                });
            }
        });
        Self { port, state }
    }

    /// Where nodes find it.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Does nothing more to what comes from now on.
    pub fn behave(&self) {
        self.state.behaved.store(true, Ordering::SeqCst);
    }

    /// What was done so far.
    pub fn counts(&self) -> &Counts {
        &self.state.counts
    }
}

impl State {
    fn draw(&self, method: &Method) -> Mischief {
        if self.behaved.load(Ordering::SeqCst) {
            return Mischief::Nothing;
        }
        let mut random = self.random.lock().expect("no panic");
        let repeatable = [Method::GET, Method::PUT, Method::DELETE].contains(method);
        match random.random_range(0..1000) {
            0..40 if repeatable => Mischief::RepeatAtOnce,
            40..60 if repeatable => {
                Mischief::RepeatLater(Duration::from_millis(random.random_range(1..3000)))
            }
            60..110 => Mischief::Hold(Duration::from_millis(random.random_range(1..150))),
            110..120 => Mischief::Hold(Duration::from_millis(random.random_range(150..2000))),
            // Longer than a request may take: the client has given up and looked meanwhile.
            120..121 => Mischief::Hold(Duration::from_secs(12)),
            121..136 => Mischief::DropAfter,
            136..146 => Mischief::DropBefore,
            146..154 => Mischief::RefuseBefore,
            154..162 => Mischief::RefuseAfter,
            _ => Mischief::Nothing,
        }
    }

    async fn send(
        &self,
        request: &Request<Bytes>,
    ) -> Result<Response<Bytes>, hyper_util::client::legacy::Error> {
        let path = request.uri().path_and_query().map_or("/", |path| path.as_str());
        let uri: Uri = format!("http://{}{path}", self.upstream).parse().expect("what came in");
        let mut copy = Request::builder().method(request.method()).uri(uri);
        if let Some(headers) = copy.headers_mut() {
            headers.clone_from(request.headers());
        }
        let body = Full::new(request.body().clone());
        let reply = self.client.request(copy.body(body).expect("what came in")).await?;
        let (head, body) = reply.into_parts();
        // A reply that breaks off reaches the client as one that never came.
        let body = body.collect().await.map(|body| body.to_bytes());
        match body {
            Ok(body) => Ok(Response::from_parts(head, body)),
            Err(_) => Ok(Response::builder()
                .status(StatusCode::BAD_GATEWAY)
                .body(Bytes::new())
                .expect("constant")),
        }
    }

    async fn answer(self: Arc<Self>, request: Request<Incoming>) -> Reply {
        let (head, body) = request.into_parts();
        let request = Arc::new(Request::from_parts(head, body.collect().await?.to_bytes()));
        let mischief = self.draw(request.method());
        let count = |counter: &AtomicU64| {
            counter.fetch_add(1, Ordering::Relaxed);
        };
        match mischief {
            Mischief::DropBefore => {
                count(&self.counts.dropped);
                return Err("dropped before it was sent on".into());
            }
            Mischief::RefuseBefore => {
                count(&self.counts.refused);
                return Ok(refusal(StatusCode::SERVICE_UNAVAILABLE, "SlowDown"));
            }
            _ => {}
        }
        let reply = self.send(&request).await?;
        match mischief {
            Mischief::Nothing | Mischief::DropBefore | Mischief::RefuseBefore => {
                count(&self.counts.passed);
            }
            Mischief::RepeatAtOnce => {
                count(&self.counts.repeated);
                let again = self.send(&request).await?;
                if reply.status().is_success() && again.status() == StatusCode::PRECONDITION_FAILED
                {
                    count(&self.counts.own_success_refused);
                }
                return Ok(again.map(Full::new));
            }
            Mischief::RepeatLater(delay) => {
                count(&self.counts.repeated);
                let state = Arc::clone(&self);
                tokio::spawn(async move {
                    tokio::time::sleep(delay).await;
                    let _ = state.send(&request).await;
                });
            }
            Mischief::Hold(delay) => {
                count(&self.counts.held);
                tokio::time::sleep(delay).await;
            }
            Mischief::DropAfter => {
                count(&self.counts.dropped);
                return Err("dropped after it was sent on".into());
            }
            Mischief::RefuseAfter => {
                count(&self.counts.refused);
                return Ok(refusal(StatusCode::INTERNAL_SERVER_ERROR, "InternalError"));
            }
        }
        Ok(reply.map(Full::new))
    }
}

/// An error in the server's name.
fn refusal(status: StatusCode, code: &str) -> Response<Full<Bytes>> {
    let body =
        format!("<Error><Code>{code}</Code><Message>the middlebox says so</Message></Error>");
    let reply = Response::builder().status(status).header("content-type", "application/xml");
    reply.body(Full::new(Bytes::from(body))).expect("constant")
}
