//! HTTP while clients ask for too much, stall, or take nothing: who waits for whom, and who does
//! not.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Form;
use axum::Router;
use axum::routing::{get, post};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use telesto_server::auth::{Users, Verifier};
use telesto_server::{Auth, Limits, Mount, Server, ServerConfig};
use telesto_sql::{SqlEngine, SqlOptions};
use telesto_txn::memory::MemoryDatabase;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::sync::Semaphore;

use crate::support::PATIENCE;

/// Bytes of a large answer: more than sockets take in on the way.
const LARGE: usize = 48 << 20;

struct Node {
    http: SocketAddr,
    status: SocketAddr,
    /// A request to `/slow` adds a permit to the first and waits for one of the second.
    came: Arc<Semaphore>,
    go: Arc<Semaphore>,
    _server: Server,
}

impl Node {
    async fn start(limits: Limits, auth: Auth) -> Self {
        let env = telesto_runtime::env();
        let any = Some("127.0.0.1:0".parse().expect("an address"));
        let config = ServerConfig { http: any, status: any, auth, limits, ..Default::default() };
        let database = Arc::new(MemoryDatabase::new(env.clone()));
        let engine =
            SqlEngine::open(database, env.clone(), SqlOptions::default()).await.expect("opens");
        let (came, go) = (Arc::new(Semaphore::new(0)), Arc::new(Semaphore::new(0)));
        let slow = {
            let (came, go) = (Arc::clone(&came), Arc::clone(&go));
            move || async move {
                came.add_permits(1);
                go.acquire().await.expect("open").forget();
                "slow"
            }
        };
        let console = Router::new()
            .route("/quick", get(|| async { "quick" }))
            .route("/large", get(|| async { "x".repeat(LARGE) }))
            .route("/form", post(|_: Form<BTreeMap<String, String>>| async { "taken" }))
            .route("/slow", get(slow));
        let mount: Mount = Box::new(move |_| console);
        let metrics = telesto_server::metrics::install().expect("installed");
        let server =
            Server::start(env, engine, config, Some(metrics), Some(mount)).await.expect("starts");
        Self {
            http: server.http_address().expect("listens"),
            status: server.status_address().expect("listens"),
            came,
            go,
            _server: server,
        }
    }
}

async fn send(address: SocketAddr, text: &str) -> TcpStream {
    let mut socket = TcpStream::connect(address).await.expect("connects");
    socket.write_all(text.as_bytes()).await.expect("sent");
    socket
}

/// Of a visitor who shows a session.
fn head(path: &str) -> String {
    format!("GET {path} HTTP/1.1\r\nhost: localhost\r\ncookie: s=1\r\nconnection: close\r\n\r\n")
}

/// Of one who shows none.
fn strange(path: &str) -> String {
    head(path).replace("cookie: s=1\r\n", "")
}

/// What comes to the end of the connection.
async fn rest(socket: &mut TcpStream) -> String {
    let mut raw = Vec::new();
    // A connection that is dropped may be reset: then this is what came.
    let _ =
        tokio::time::timeout(PATIENCE, socket.read_to_end(&mut raw)).await.expect("an end in time");
    String::from_utf8(raw).expect("text")
}

async fn status_of(address: SocketAddr, request: &str) -> String {
    let reply = rest(&mut send(address, request).await).await;
    reply.split(' ').nth(1).unwrap_or("none").to_owned()
}

async fn ask(address: SocketAddr, path: &str) -> String {
    status_of(address, &head(path)).await
}

#[tokio::test(flavor = "multi_thread")]
async fn status_is_told_while_every_place_is_taken() {
    let limits = Limits { max_requests: 2, ..Limits::default() };
    let node = Node::start(limits, Auth::Trust).await;
    let mut slow = [send(node.http, &head("/slow")).await, send(node.http, &head("/slow")).await];
    node.came.acquire_many(2).await.expect("open").forget();
    assert_eq!(ask(node.http, "/quick").await, "503");
    for path in ["/live", "/health", "/ready", "/metrics"] {
        assert_eq!(ask(node.status, path).await, "200", "{path}");
    }
    node.go.add_permits(2);
    for socket in &mut slow {
        assert!(rest(socket).await.ends_with("slow"));
    }
    assert_eq!(ask(node.http, "/quick").await, "200");
}

#[tokio::test(flavor = "multi_thread")]
async fn visitors_who_show_no_session_take_no_place_of_others() {
    let limits = Limits { max_requests: 8, ..Limits::default() };
    let node = Node::start(limits, Auth::Trust).await;
    let slow = strange("/slow");
    let mut slow = [send(node.http, &slow).await, send(node.http, &slow).await];
    node.came.acquire_many(2).await.expect("open").forget();
    assert_eq!(status_of(node.http, &strange("/quick")).await, "503", "a quarter of the places");
    for path in ["/quick", "/v1/kv"] {
        assert_eq!(ask(node.http, path).await, "200", "{path}");
    }
    node.go.add_permits(2);
    for socket in &mut slow {
        assert!(rest(socket).await.ends_with("slow"));
    }
    assert_eq!(status_of(node.http, &strange("/quick")).await, "200");
}

#[tokio::test(flavor = "multi_thread")]
async fn form_that_does_not_come_takes_no_place() {
    let limits = Limits { max_requests: 2, stall: Duration::from_secs(1), ..Limits::default() };
    let node = Node::start(limits, Auth::Trust).await;
    let begun = "POST /form HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\
                 content-type: application/x-www-form-urlencoded\r\ncontent-length: ";
    let mut stalled = Vec::new();
    for _ in 0..4 {
        stalled.push(send(node.http, &format!("{begun}1000\r\n\r\nuser=a")).await);
        // One after the other, so that each has come to where it waits.
        for _ in 0..10 {
            assert_eq!(ask(node.http, "/quick").await, "200");
        }
    }
    assert_eq!(status_of(node.http, &format!("{begun}6\r\n\r\nuser=a")).await, "200");
    let long = "x".repeat(65 << 10);
    let too_long = format!("{begun}{}\r\n\r\n{long}", long.len());
    assert!(["400", "none"].contains(&status_of(node.http, &too_long).await.as_str()));
    for socket in &mut stalled {
        let reply = rest(socket).await;
        assert!(reply.starts_with("HTTP/1.1 400"), "{reply}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn body_that_stops_coming_is_given_up() {
    let limits = Limits { max_requests: 1, stall: Duration::from_secs(1), ..Limits::default() };
    let node = Node::start(limits, Auth::Trust).await;
    let put = "PUT /v1/kv/k HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\
               content-type: application/json\r\ncontent-length: 1000\r\n\r\n{";
    let reply = rest(&mut send(node.http, put).await).await;
    assert!(reply.starts_with("HTTP/1.1 400"), "{reply}");
    assert_eq!(ask(node.http, "/v1/kv").await, "200");
}

#[tokio::test(flavor = "multi_thread")]
async fn idle_connections_keep_nobody_out_and_end_no_request() {
    let limits = Limits { max_connections: 3, ..Limits::default() };
    let node = Node::start(limits, Auth::Trust).await;
    let mut slow = send(node.http, &head("/slow")).await;
    node.came.acquire().await.expect("open").forget();
    let mut idle = Vec::new();
    for _ in 0..10 {
        for (address, path) in [(node.http, "/quick"), (node.status, "/live")] {
            idle.push(send(address, "").await);
            idle.push(send(address, "GET / HTTP/1.1\r\n").await);
            assert_eq!(ask(address, path).await, "200");
        }
    }
    node.go.add_permits(1);
    assert!(rest(&mut slow).await.ends_with("slow"));
}

#[tokio::test(flavor = "multi_thread")]
async fn connection_that_asks_for_nothing_is_closed_soon() {
    let node = Node::start(Limits::default(), Auth::Trust).await;
    let mut idle = Vec::new();
    for address in [node.http, node.status] {
        idle.push(send(address, "").await);
        idle.push(send(address, "GET /live HTTP/1.1\r\nhost: ").await);
    }
    for socket in &mut idle {
        // A minute is what one between two requests has.
        let patience = Duration::from_secs(40);
        tokio::time::timeout(patience, rest(socket)).await.expect("closed");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn answer_that_nobody_takes_keeps_its_place_and_ends() {
    let limits = Limits { max_requests: 1, stall: Duration::from_secs(1), ..Limits::default() };
    let node = Node::start(limits, Auth::Trust).await;
    let mut unread = send(node.http, &head("/large")).await;
    unread.read_exact(&mut [0; 12]).await.expect("a status");
    assert_eq!(ask(node.http, "/quick").await, "503");
    while ask(node.http, "/quick").await != "200" {
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let came = rest(&mut unread).await.len();
    assert!(came < LARGE, "{came}");
    // Who takes it gets it whole.
    assert!(rest(&mut send(node.http, &head("/large")).await).await.len() > LARGE);
}

#[tokio::test(flavor = "multi_thread")]
async fn memory_of_answers_that_are_not_taken_is_bounded() {
    let limits = Limits { wire_memory_bytes: LARGE as u64 * 3 / 2, ..Limits::default() };
    let node = Node::start(limits, Auth::Trust).await;
    let mut unread = send(node.http, &head("/large")).await;
    unread.read_exact(&mut [0; 12]).await.expect("a status");
    assert_eq!(ask(node.http, "/large").await, "503");
    assert_eq!(ask(node.http, "/quick").await, "200");
    assert!(rest(&mut unread).await.len() > LARGE);
    while ask(node.http, "/large").await != "200" {
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn wrong_passwords_keep_out_nobody_who_is_known() {
    let env = telesto_runtime::env();
    let verifier = Verifier::of_password(&env, "pencil");
    let users = Users::new(&env, BTreeMap::from([("ada".to_owned(), verifier)]));
    let limits = Limits { max_requests: 4, ..Limits::default() };
    let node = Node::start(limits, Auth::Scram(Arc::new(users))).await;
    let asked = |user: &str, password: &str| {
        let proof = STANDARD.encode(format!("{user}:{password}"));
        format!(
            "GET /v1/kv HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\nauthorization: Basic {proof}\r\n\r\n"
        )
    };
    let known = asked("ada", "pencil");
    assert_eq!(status_of(node.http, &known).await, "200");
    let mut wrong = tokio::task::JoinSet::new();
    for number in 0..16 {
        let request = asked(&format!("user{number}"), "wrong");
        let http = node.http;
        wrong.spawn(async move { status_of(http, &request).await });
    }
    let mut refused = Vec::new();
    while !wrong.is_empty() {
        assert_eq!(status_of(node.http, &known).await, "200");
        while let Some(done) = wrong.try_join_next() {
            refused.push(done.expect("done"));
        }
    }
    assert!(refused.iter().any(|status| status == "401"), "{refused:?}");
    assert!(refused.iter().all(|status| ["401", "503"].contains(&status.as_str())), "{refused:?}");
}
