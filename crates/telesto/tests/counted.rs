//! An S3 server that counts what reaches it, and fails as real ones do, agrees with the meter to
//! the request and the byte.
//!
//! # Limits
//! As much of S3 as Telesto uses, in memory. Hedged requests are off: of one that lost nobody knows
//! how much of its answer was on the way.
#![allow(missing_docs, reason = "a test")]
#![allow(clippy::disallowed_methods, reason = "a real runtime, real time")]

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use http_body_util::{BodyExt as _, Full};
use hyper::body::{Bytes, Incoming};
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use rand::rngs::StdRng;
use rand::{Rng as _, SeedableRng as _};
use telesto::open::{Opened, open};
use telesto::{LogKind, Options};
use telesto_bucket::{Class, Hedging};
use telesto_meter::{Charge, Resource};
use telesto_sql::{ResultSink, Session, SessionOptions, StatementResult};

/// What the server saw.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Seen {
    gets: u64,
    puts: u64,
    lists: u64,
    deletes: u64,
    bytes_in: u64,
    bytes_out: u64,
}

#[derive(Default)]
struct State {
    objects: BTreeMap<String, Bytes>,
    uploads: BTreeMap<String, BTreeMap<u32, Bytes>>,
    seen: Seen,
    refused: u64,
}

struct Server {
    state: Mutex<State>,
    random: Mutex<StdRng>,
    /// Answers one request in ten with an error, half of them after the effect.
    meddles: AtomicBool,
}

type Reply = Response<Full<Bytes>>;

fn now() -> chrono::DateTime<chrono::Utc> {
    let micros = telesto_runtime::env().clock.wall_micros();
    chrono::DateTime::from_timestamp_micros(i64::try_from(micros).expect("a time")).expect("a time")
}

fn reply(status: StatusCode, body: impl Into<Bytes>) -> Reply {
    let head = Response::builder().status(status).header("etag", "\"e\"");
    let head = head.header("last-modified", now().to_rfc2822());
    head.body(Full::new(body.into())).expect("constant")
}

fn between<'t>(text: &'t str, from: &str, to: &str) -> Vec<&'t str> {
    let pieces = text.split(from).skip(1);
    pieces.filter_map(|piece| piece.split(to).next()).collect()
}

fn unescaped(text: &str) -> String {
    let mut out = Vec::new();
    let mut bytes = text.bytes();
    while let Some(byte) = bytes.next() {
        if byte == b'%' {
            let digits: Vec<u8> = bytes.by_ref().take(2).collect();
            let text = String::from_utf8(digits).expect("ASCII");
            out.push(u8::from_str_radix(&text, 16).expect("hexadecimal"));
        } else {
            out.push(byte);
        }
    }
    String::from_utf8(out).expect("UTF-8")
}

impl Server {
    async fn start() -> (Arc<Self>, u16) {
        let server = Arc::new(Self {
            state: Mutex::default(),
            random: Mutex::new(StdRng::seed_from_u64(7)),
            meddles: AtomicBool::new(false),
        });
        let listener = tokio::net::TcpListener::bind(("127.0.0.1", 0)).await.expect("a port");
        let port = listener.local_addr().expect("address").port();
        let shared = Arc::clone(&server);
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let server = Arc::clone(&shared);
                tokio::spawn(async move {
                    let service = service_fn(move |request| Arc::clone(&server).answer(request));
                    let http = hyper::server::conn::http1::Builder::new();
                    http.serve_connection(TokioIo::new(stream), service).await.ok();
                });
            }
        });
        (server, port)
    }

    async fn answer(self: Arc<Self>, request: Request<Incoming>) -> Result<Reply, Infallible> {
        let (head, body) = request.into_parts();
        let body = body.collect().await.map(|body| body.to_bytes()).unwrap_or_default();
        let (before, after) = {
            let draw = self.random.lock().expect("no panic").random_range(0..20);
            let meddles = self.meddles.load(Ordering::SeqCst);
            (meddles && draw == 0, meddles && draw == 1)
        };
        let key = unescaped(head.uri.path().trim_start_matches("/telesto").trim_start_matches('/'));
        let query: BTreeMap<String, String> = head
            .uri
            .query()
            .unwrap_or_default()
            .split('&')
            .map(|pair| pair.split_once('=').unwrap_or((pair, "")))
            .map(|(name, value)| (name.to_owned(), unescaped(&value.replace('+', " "))))
            .collect();
        let mut state = self.state.lock().expect("no panic");
        self.count(&mut state.seen, &head.method, &query, &body);
        if before {
            state.refused += 1;
            return Ok(reply(
                StatusCode::SERVICE_UNAVAILABLE,
                "<Error><Code>SlowDown</Code></Error>",
            ));
        }
        let range = head.headers.get("range").and_then(|range| range.to_str().ok());
        let absent = head.headers.contains_key("if-none-match");
        let done = act(&mut state, &head.method, key, &query, body, range, absent);
        if after {
            state.refused += 1;
            return Ok(reply(
                StatusCode::INTERNAL_SERVER_ERROR,
                "<Error><Code>InternalError</Code></Error>",
            ));
        }
        if head.method == Method::GET
            && !query.contains_key("list-type")
            && done.status().is_success()
        {
            state.seen.bytes_out += hyper::body::Body::size_hint(done.body()).exact().unwrap_or(0);
        }
        Ok(done)
    }

    fn count(
        &self,
        seen: &mut Seen,
        method: &Method,
        query: &BTreeMap<String, String>,
        body: &Bytes,
    ) {
        match *method {
            Method::GET if query.contains_key("list-type") => seen.lists += 1,
            Method::GET | Method::HEAD => seen.gets += 1,
            Method::POST if query.contains_key("delete") => seen.deletes += 1,
            Method::DELETE => seen.deletes += 1,
            Method::POST => seen.puts += 1,
            Method::PUT => {
                seen.puts += 1;
                seen.bytes_in += body.len() as u64;
            }
            ref other => panic!("{other}: no such request is known"),
        }
    }

    fn seen(&self) -> Seen {
        self.state.lock().expect("no panic").seen
    }
}

/// What S3 does.
fn act(
    state: &mut State,
    method: &Method,
    key: String,
    query: &BTreeMap<String, String>,
    body: Bytes,
    range: Option<&str>,
    absent: bool,
) -> Reply {
    let missing = || reply(StatusCode::NOT_FOUND, "<Error><Code>NoSuchKey</Code></Error>");
    match *method {
        Method::GET if query.contains_key("list-type") => list(state, query),
        Method::GET => {
            let Some(object) = state.objects.get(&key) else { return missing() };
            let Some(range) = range.and_then(|range| range.strip_prefix("bytes=")) else {
                return reply(StatusCode::OK, object.clone());
            };
            let (from, to) = range.split_once('-').expect("a range");
            let last = object.len().saturating_sub(1);
            let (from, to) = match (from.parse::<usize>(), to.parse::<usize>()) {
                (Ok(from), Ok(to)) => (from, to.min(last)),
                (Ok(from), Err(_)) => (from, last),
                (Err(_), Ok(length)) => ((last + 1).saturating_sub(length), last),
                (Err(_), Err(_)) => panic!("{range}"),
            };
            if from > last {
                return reply(StatusCode::RANGE_NOT_SATISFIABLE, "");
            }
            let mut part = reply(StatusCode::PARTIAL_CONTENT, object.slice(from..=to));
            let told = format!("bytes {from}-{to}/{}", object.len()).parse().expect("header");
            part.headers_mut().insert("content-range", told);
            part
        }
        Method::HEAD => {
            let Some(object) = state.objects.get(&key) else { return missing() };
            let mut head = reply(StatusCode::OK, "");
            head.headers_mut().insert("content-length", object.len().into());
            head
        }
        Method::PUT => match (query.get("uploadId"), query.get("partNumber")) {
            (Some(upload), Some(part)) => {
                let parts = state.uploads.entry(upload.clone()).or_default();
                parts.insert(part.parse().expect("a number"), body);
                reply(StatusCode::OK, "")
            }
            _ if absent && state.objects.contains_key(&key) => reply(
                StatusCode::PRECONDITION_FAILED,
                "<Error><Code>PreconditionFailed</Code></Error>",
            ),
            _ => {
                state.objects.insert(key, body);
                reply(StatusCode::OK, "")
            }
        },
        Method::POST if query.contains_key("uploads") => {
            let id = state.uploads.len();
            let told = format!(
                "<InitiateMultipartUploadResult><UploadId>{id}</UploadId></InitiateMultipartUploadResult>"
            );
            reply(StatusCode::OK, told)
        }
        Method::POST if query.contains_key("delete") => {
            let text = String::from_utf8_lossy(&body).into_owned();
            let mut told = String::new();
            for key in between(&text, "<Key>", "</Key>") {
                state.objects.remove(key);
                told.push_str(&format!("<Deleted><Key>{key}</Key></Deleted>"));
            }
            reply(StatusCode::OK, format!("<DeleteResult>{told}</DeleteResult>"))
        }
        Method::POST => {
            let parts = query.get("uploadId").and_then(|upload| state.uploads.remove(upload));
            let whole: Vec<u8> = parts.unwrap_or_default().into_values().flatten().collect();
            state.objects.insert(key, whole.into());
            let told =
                "<CompleteMultipartUploadResult><ETag>\"e\"</ETag></CompleteMultipartUploadResult>";
            reply(StatusCode::OK, told)
        }
        _ => {
            state.objects.remove(&key);
            reply(StatusCode::NO_CONTENT, "")
        }
    }
}

fn list(state: &State, query: &BTreeMap<String, String>) -> Reply {
    let text = |name: &str| query.get(name).cloned().unwrap_or_default();
    let (prefix, after) = (text("prefix"), text("start-after").max(text("continuation-token")));
    let mut told = String::new();
    let mut folders = std::collections::BTreeSet::new();
    let mut last = None;
    let found = state.objects.iter().filter(|(key, _)| key.starts_with(&prefix) && **key > after);
    for (count, (key, object)) in found.enumerate() {
        if count == 1000 {
            last = Some(());
            break;
        }
        if let (true, Some(at)) = (query.contains_key("delimiter"), key[prefix.len()..].find('/')) {
            folders.insert(&key[..=prefix.len() + at]);
            continue;
        }
        told.push_str(&format!(
            "<Contents><Key>{key}</Key><LastModified>{}</LastModified><ETag>\"e\"</ETag><Size>{}</Size></Contents>",
            now().to_rfc3339(),
            object.len()
        ));
    }
    for folder in folders {
        told.push_str(&format!("<CommonPrefixes><Prefix>{folder}</Prefix></CommonPrefixes>"));
    }
    if last.is_some() {
        let keys = between(&told, "<Key>", "</Key>");
        let token = keys.last().copied().unwrap_or_default().to_owned();
        told.push_str(&format!("<NextContinuationToken>{token}</NextContinuationToken>"));
    }
    let told = format!(
        "<ListBucketResult><IsTruncated>{}</IsTruncated>{told}</ListBucketResult>",
        last.is_some()
    );
    reply(StatusCode::OK, told)
}

struct Nowhere;

#[async_trait]
impl ResultSink for Nowhere {
    async fn result(&mut self, result: StatementResult) -> telesto_sql::Result<()> {
        if let StatementResult::Rows { rows, .. } = result {
            rows.collect().await?;
        }
        Ok(())
    }
}

async fn tried(session: &mut Session, sql: &str) -> bool {
    session.execute_simple(sql, &mut Nowhere).await.is_ok()
}

/// What the meter says in the server's words, and what accounts and jobs hold together.
fn metered(opened: &Opened) -> (Seen, Charge) {
    let counted = opened.bucket.meter().snapshot();
    let all = counted.total(|_, _| true);
    let seen = Seen {
        gets: counted.requests(Class::Get) + counted.requests(Class::Head),
        puts: counted.requests(Class::Put) + counted.requests(Class::Copy),
        lists: counted.requests(Class::List),
        deletes: counted.requests(Class::Delete),
        bytes_in: all.uploaded_bytes,
        bytes_out: all.downloaded_bytes,
    };
    let accounts = opened.sql.accounts();
    let own: Charge = accounts.entries().iter().map(|(_, stats)| stats.charge).sum();
    let jobs: Charge = opened.bucket.meter().jobs().all().into_iter().sum();
    (seen, own + jobs)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn meter_agrees_with_what_the_server_saw_under_mixed_load_with_faults() {
    let (server, port) = Server::start().await;
    let settings = [
        ("aws_endpoint_url", format!("http://127.0.0.1:{port}")),
        ("aws_access_key_id", "a".to_owned()),
        ("aws_secret_access_key", "s".to_owned()),
        ("aws_region", "us-east-1".to_owned()),
        ("aws_allow_http", "true".to_owned()),
    ];
    let options = Options {
        store_settings: settings.map(|(name, value)| (name.to_owned(), value)).to_vec(),
        prices: Some("s3-express".to_owned()),
        log: Some(LogKind::Bucket),
        hedging: Hedging::Off,
        checkpoint_interval: Some(Duration::from_millis(300)),
        ..Options::new("s3://telesto/db")
    };
    let opened = Arc::new(open(&telesto_runtime::env(), &options).await.expect("opens"));
    let session = |name: &str| {
        let (opened, name) = (Arc::clone(&opened), name.to_owned());
        async move {
            let options = SessionOptions { application_name: name, ..SessionOptions::default() };
            opened.sql.session(options).await.expect("session")
        }
    };
    let mut first = session("first").await;
    assert!(tried(&mut first, "CREATE TABLE t (id int PRIMARY KEY, v int, filler text)").await);
    server.meddles.store(true, Ordering::SeqCst);
    let mut workers = Vec::new();
    for who in 0..4 {
        let mut s = session(&format!("w{who}")).await;
        workers.push(tokio::spawn(async move {
            for n in 0..40 {
                let id = who * 1000 + n;
                let filler = format!("INSERT INTO t VALUES ({id}, 0, repeat(md5('{id}'), 60))");
                tried(&mut s, &filler).await;
                tried(&mut s, "UPDATE t SET v = v + 1 WHERE id = 1000").await;
                tried(&mut s, "SELECT count(*), sum(length(filler)) FROM t").await;
            }
        }));
    }
    for worker in workers {
        worker.await.expect("worked");
    }
    server.meddles.store(false, Ordering::SeqCst);
    let refused = server.state.lock().expect("no panic").refused;
    assert!(refused > 5, "{refused} requests failed: the run shows little");
    drop(first);
    telesto_txn::Database::shutdown(&*opened.engine).await.expect("closed");
    // Tasks that were told to stop may have a request under way.
    let mut before = server.seen();
    loop {
        tokio::time::sleep(Duration::from_millis(500)).await;
        let now = server.seen();
        if now == before {
            break;
        }
        before = now;
    }
    let (meter, accounts) = metered(&opened);
    assert_eq!(meter, server.seen(), "the meter beside the server");
    let of = |resource| accounts.get(resource);
    let requests = |resource| of(resource) / telesto_meter::REQUEST;
    let accounted = Seen {
        gets: requests(Resource::Gets),
        puts: requests(Resource::Puts),
        lists: requests(Resource::Lists),
        deletes: requests(Resource::Deletes),
        bytes_in: of(Resource::Sent),
        bytes_out: of(Resource::Received),
    };
    assert_eq!(accounted, server.seen(), "the accounts beside the server");
    assert!(meter.gets > 20 && meter.puts > 100 && meter.bytes_out > 10_000, "{meter:?}");
}
