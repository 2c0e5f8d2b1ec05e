//! The HTTP interface over real sockets, against the in-memory database.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use telesto_common::{Label, RegionId, Timestamp};
use telesto_server::auth::{Users, Verifier};
use telesto_server::clients::Clients;
use telesto_server::http::token::{decode, encode};
use telesto_server::http::{HttpState, OPENAPI, routes, serve};
use telesto_server::wire::stream::Stop;
use telesto_server::{Auth, Limits, ServerConfig};
use telesto_sql::{SqlEngine, SqlOptions};
use telesto_txn::memory::MemoryDatabase;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

struct Server {
    address: std::net::SocketAddr,
    stop: Stop,
    serving: tokio::task::JoinHandle<()>,
}

#[derive(Debug)]
struct Reply {
    status: u16,
    headers: BTreeMap<String, String>,
    body: String,
}

impl Reply {
    fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }

    fn code(&self) -> String {
        self.json()["error"]["code"].as_str().expect("a code").to_owned()
    }

    fn session(&self) -> String {
        self.headers.get("telesto-session").expect("a session token").clone()
    }
}

impl Server {
    async fn start(config: ServerConfig) -> Self {
        let env = telesto_runtime::env();
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("bound");
        let address = listener.local_addr().expect("address");
        let database = Arc::new(MemoryDatabase::new(env.clone()));
        let metrics = telesto_server::metrics::install().expect("installed");
        let engine =
            SqlEngine::open(database, env.clone(), SqlOptions::default()).await.expect("opens");
        if let Auth::Scram(users) = &config.auth {
            engine.adopt_users(&users.names()).await.expect("have roles");
        }
        let clients = Clients::new(&env, &config.limits);
        let state = HttpState::new(env, &engine, Arc::new(config), &clients, Some(metrics));
        let stop = Stop::default();
        let serving = tokio::spawn(serve(listener, state, None, stop.clone()));
        Self { address, stop, serving }
    }

    async fn ask(&self, method: &str, target: &str, headers: &[(&str, &str)], body: &str) -> Reply {
        let mut request = format!(
            "{method} {target} HTTP/1.1\r\nconnection: close\r\ncontent-length: {}\r\n",
            body.len()
        );
        if !headers.iter().any(|(name, _)| *name == "host") {
            request.push_str("host: localhost\r\n");
        }
        for (name, value) in headers {
            request.push_str(&format!("{name}: {value}\r\n"));
        }
        request.push_str("\r\n");
        request.push_str(body);
        let mut socket = TcpStream::connect(self.address).await.expect("connected");
        socket.write_all(request.as_bytes()).await.expect("sent");
        let mut raw = Vec::new();
        socket.read_to_end(&mut raw).await.expect("received");
        let raw = String::from_utf8(raw).expect("text");
        let (head, body) =
            raw.split_once("\r\n\r\n").unwrap_or_else(|| panic!("no reply: {raw:?}"));
        let mut lines = head.lines();
        let status = lines.next().and_then(|line| line.split(' ').nth(1)).expect("a status line");
        let headers = lines
            .filter_map(|line| line.split_once(": "))
            .map(|(name, value)| (name.to_ascii_lowercase(), value.to_owned()))
            .collect();
        Reply { status: status.parse().expect("a number"), headers, body: body.to_owned() }
    }

    async fn get(&self, target: &str) -> Reply {
        self.ask("GET", target, &[], "").await
    }

    async fn put(&self, target: &str, headers: &[(&str, &str)], body: &Value) -> Reply {
        let mut headers = headers.to_vec();
        headers.push(("content-type", "application/json"));
        self.ask("PUT", target, &headers, &body.to_string()).await
    }
}

#[tokio::test]
async fn key_written_over_http_is_read_conditionally_changed_and_deleted() {
    let server = Server::start(ServerConfig::default()).await;
    let missing = server.get("/v1/kv/a%2Fb").await;
    assert_eq!((missing.status, missing.code().as_str()), (404, "not_found"));

    let first = server.put("/v1/kv/a/b", &[("if-none-match", "*")], &json!({"value": "é"})).await;
    assert_eq!(first.status, 200, "{first:?}");
    let version = first.json()["version"].as_str().expect("a version").to_owned();
    assert_eq!(first.headers.get("etag"), Some(&format!("\"{version}\"")));

    let found = server.get("/v1/kv/a%2Fb").await;
    assert_eq!(found.json(), json!({"key": "a/b", "value": "é", "version": version}));

    let taken = server.put("/v1/kv/a/b", &[("if-none-match", "*")], &json!({"value": "x"})).await;
    assert_eq!((taken.status, taken.code().as_str()), (412, "condition_failed"));
    assert_eq!(taken.json()["error"]["version"], json!(version));

    let quoted = format!("\"{version}\"");
    let second =
        server.put("/v1/kv/a/b", &[("if-match", &quoted)], &json!({"value_base64": "/wA="})).await;
    assert_eq!(second.status, 200, "{second:?}");
    let found = server.get("/v1/kv/a/b").await;
    assert_eq!(found.json()["value_base64"], json!("/wA="));

    let stale = server.ask("DELETE", "/v1/kv/a/b", &[("if-match", &version)], "").await;
    assert_eq!(stale.status, 412);
    let deleted = server.ask("DELETE", "/v1/kv/a/b", &[("if-match", "*")], "").await;
    assert_eq!(deleted.status, 204);
    assert_eq!(server.get("/v1/kv/a/b").await.status, 404);

    let outcome = server.get(&format!("/v1/txn/{version}")).await;
    assert_eq!(outcome.json()["outcome"], json!("committed"));
    let outcome = server.get(&format!("/v1/txn/{:032x}", 5)).await;
    assert_eq!(outcome.json()["outcome"], json!("unknown"));
}

#[tokio::test]
async fn scan_over_http_pages_with_next_and_writes_binary_keys_in_base64() {
    let server = Server::start(ServerConfig::default()).await;
    for n in 0..5 {
        server.put(&format!("/v1/kv/p{n}"), &[], &json!({"value": n.to_string()})).await;
    }
    server.put("/v1/kv/cP8?key_encoding=base64url", &[], &json!({"value": "bin"})).await;
    let page = server.get("/v1/kv?prefix=p&limit=4").await.json();
    assert_eq!(page["next"], json!("p4"));
    let keys: Vec<_> =
        page["rows"].as_array().expect("rows").iter().map(|r| r["key"].clone()).collect();
    assert_eq!(keys, ["p0", "p1", "p2", "p3"]);
    let page = server.get("/v1/kv?prefix=p&start=p4&limit=4").await.json();
    assert_eq!(page["rows"][0]["value"], json!("4"));
    assert_eq!(page["rows"][1]["key_base64url"], json!("cP8"));
    assert_eq!(page["next"], Value::Null);
    let page = server.get("/v1/kv?start=p1&end=p3").await.json();
    assert_eq!(page["rows"].as_array().map(Vec::len), Some(2));
}

#[tokio::test]
async fn session_token_grows_with_writes_and_is_refused_when_damaged() {
    let server = Server::start(ServerConfig::default()).await;
    let first = server.put("/v1/kv/k", &[], &json!({"value": "1"})).await.session();
    let read =
        server.ask("GET", "/v1/kv/k?consistency=session", &[("telesto-session", &first)], "").await;
    assert_eq!((read.status, read.json()["value"].clone()), (200, json!("1")));
    assert_eq!(read.session(), first);
    let second =
        server.put("/v1/kv/k", &[("telesto-session", &first)], &json!({"value": "2"})).await;
    assert_ne!(second.session(), first);
    let bad = server.ask("GET", "/v1/kv/k", &[("telesto-session", "AAAA")], "").await;
    assert_eq!((bad.status, bad.code().as_str()), (400, "bad_session"));
}

/// Anybody can write the token of a lone database: it is believed no further than the newest
/// commit, at reads and at writes.
#[tokio::test]
async fn forged_session_token_is_refused_and_moves_no_commits_time() {
    let server = Server::start(ServerConfig::default()).await;
    let told = server.put("/v1/kv/k", &[], &json!({"value": "1"})).await.session();
    let told = decode(&told).expect("a token of this server");
    let ahead = Timestamp(told.timestamp.0 + (3_600_000_000 << 16));
    let forged = [Label::update(told.source, ahead), Label::update(RegionId(7), Timestamp(1))];
    for forged in forged.map(encode) {
        let header = [("telesto-session", forged.as_str())];
        for target in ["/v1/kv/k", "/v1/kv/k?consistency=session", "/v1/kv"] {
            let read = server.ask("GET", target, &header, "").await;
            assert_eq!((read.status, read.code().as_str()), (400, "bad_session"), "{target}");
        }
        let write = server.put("/v1/kv/k", &header, &json!({"value": "2"})).await;
        assert_eq!((write.status, write.code().as_str()), (400, "bad_session"));
        let delete = server.ask("DELETE", "/v1/kv/k", &header, "").await;
        assert_eq!((delete.status, delete.code().as_str()), (400, "bad_session"));
    }
    let then = server.put("/v1/kv/k", &[], &json!({"value": "3"})).await.session();
    let then = decode(&then).expect("a token of this server").timestamp;
    assert!(then < ahead, "a forged token has moved time to {then}");
}

#[tokio::test]
async fn requests_that_are_wrong_get_json_errors_that_say_so() {
    let limits = Limits { max_body_bytes: 1000, ..Limits::default() };
    let server = Server::start(ServerConfig { limits, ..ServerConfig::default() }).await;
    for (method, target, status, code) in [
        ("GET", "/nowhere", 404, "no_such_path"),
        ("POST", "/v1/kv/k", 405, "method_not_allowed"),
        ("GET", "/v1/kv/k?consistency=psychic", 400, "bad_request"),
        ("GET", "/v1/kv/k?consistency=eventual&max_staleness=-2", 400, "bad_request"),
        ("GET", "/v1/kv?max_staleness=soon", 400, "bad_request"),
        ("GET", "/v1/kv/k?consistency=eventual&max_staleness=0", 404, "not_found"),
        ("GET", "/v1/kv/k?color=red", 400, "bad_request"),
        ("GET", "/v1/kv?limit=0", 400, "bad_request"),
        ("GET", "/v1/kv/!?key_encoding=base64url", 400, "bad_request"),
        ("GET", "/v1/txn/xyz", 400, "bad_request"),
        ("PUT", "/v1/kv/k", 400, "bad_request"),
    ] {
        let reply = server.ask(method, target, &[], "").await;
        assert_eq!((reply.status, reply.code().as_str()), (status, code), "{method} {target}");
    }
    for body in [
        json!({}),
        json!({"value": "a", "value_base64": "YQ=="}),
        json!({"value_base64": "!"}),
        json!([]),
    ] {
        let reply = server.put("/v1/kv/k", &[], &body).await;
        assert_eq!((reply.status, reply.code().as_str()), (400, "bad_request"), "{body}");
    }
    let reply = server.put("/v1/kv/k", &[], &json!({"value": "x".repeat(2000)})).await;
    assert_eq!((reply.status, reply.code().as_str()), (413, "body_too_large"));
    let reply = server.put("/v1/kv/k", &[("if-match", "nonsense")], &json!({"value": "x"})).await;
    assert_eq!(reply.status, 400);
    let reply = server.ask("GET", "/v1/kv", &[("host", "evil.example")], "").await;
    assert_eq!((reply.status, reply.code().as_str()), (403, "foreign_host"));
}

#[tokio::test]
async fn users_when_configured_are_asked_for_their_password() {
    let env = telesto_runtime::env();
    let users = BTreeMap::from([("ada".to_owned(), Verifier::of_password(&env, "pencil"))]);
    let auth = Auth::Scram(Arc::new(Users::new(&env, users)));
    let server = Server::start(ServerConfig { auth, ..ServerConfig::default() }).await;
    // Whoever watches over the node has none.
    assert_eq!(server.get("/health").await.status, 200);
    let reply = server.get("/openapi.json").await;
    assert_eq!((reply.status, reply.code().as_str()), (401, "unauthorized"));
    assert!(reply.headers.contains_key("www-authenticate"));
    // ada:pencil, twice: derived, then recognised; ada:pencils.
    for (credentials, status) in
        [("YWRhOnBlbmNpbA==", 200), ("YWRhOnBlbmNpbA==", 200), ("YWRhOnBlbmNpbHM=", 401)]
    {
        let header = format!("Basic {credentials}");
        let reply = server.ask("GET", "/openapi.json", &[("authorization", &header)], "").await;
        assert_eq!(reply.status, status);
    }
}

#[tokio::test]
async fn guesser_over_http_is_refused_as_the_user_and_for_nobody_alike() {
    let env = telesto_runtime::env();
    let users = BTreeMap::from([("ada".to_owned(), Verifier::of_password(&env, "pencil"))]);
    let auth = Auth::Scram(Arc::new(Users::new(&env, users)));
    let server = Server::start(ServerConfig { auth, ..ServerConfig::default() }).await;
    let ask = async |credentials: &str| {
        let header = format!("Basic {credentials}");
        let reply = server.ask("GET", "/openapi.json", &[("authorization", &header)], "").await;
        if reply.status == 200 { "let in".to_owned() } else { reply.code() }
    };
    // ada:pencils, eve:pencil
    for wrong in ["YWRhOnBlbmNpbHM=", "ZXZlOnBlbmNpbA=="] {
        for _ in 0..telesto_server::attempts::USER_BURST {
            assert_eq!(ask(wrong).await, "unauthorized");
        }
        assert_eq!(ask(wrong).await, "too_many_guesses");
    }
    // ada:pencil
    assert_eq!(ask("YWRhOnBlbmNpbA==").await, "too_many_guesses");
}

#[tokio::test]
async fn openapi_describes_exactly_the_routes_that_exist() {
    let server = Server::start(ServerConfig::default()).await;
    let reply = server.get("/openapi.json").await;
    assert_eq!(reply.body, OPENAPI);
    let described: BTreeSet<(String, String)> = reply.json()["paths"]
        .as_object()
        .expect("paths")
        .iter()
        .flat_map(|(path, item)| {
            let methods = item.as_object().expect("methods").keys();
            methods.map(|method| (path.clone(), method.clone())).collect::<Vec<_>>()
        })
        .collect();
    let existing: BTreeSet<(String, String)> = routes()
        .into_iter()
        .flat_map(|(path, methods, _)| methods.iter().map(|m| (path.to_owned(), (*m).to_owned())))
        .collect();
    assert_eq!(described, existing);
    // The list of methods is what the handlers really take.
    for (path, ..) in routes() {
        for method in ["get", "put", "post", "delete", "patch"] {
            let target = path.replace("{key}", "k").replace("{id}", "x");
            let reply = server.ask(&method.to_uppercase(), &target, &[], "").await;
            let known = described.contains(&(path.to_owned(), method.to_owned()));
            assert_eq!(reply.status != 405, known, "{method} {path}: {reply:?}");
        }
    }
    // Every reference leads somewhere.
    let document = reply.json();
    for reference in OPENAPI.split("\"$ref\": \"#").skip(1) {
        let pointer = reference.split('"').next().expect("a reference");
        assert!(document.pointer(pointer).is_some(), "{pointer}");
    }
    // Every error code that the code knows is described, and the other way round.
    let codes: BTreeSet<_> = document["components"]["schemas"]["Error"]["properties"]["error"]["properties"]["code"]["enum"]
        .as_array()
        .expect("codes")
        .iter()
        .map(|code| code.as_str().expect("text").to_owned())
        .collect();
    let sources = [
        include_str!("../../src/http/mod.rs"),
        include_str!("../../src/http/kv.rs"),
        include_str!("../../src/http/reply.rs"),
        include_str!("../../src/http/auth.rs"),
    ]
    .join("\n");
    for code in &codes {
        assert!(sources.contains(&format!("\"{code}\"")), "{code} is described but never sent");
    }
}

#[tokio::test]
async fn health_and_metrics_tell_what_was_done() {
    let server = Server::start(ServerConfig::default()).await;
    server.put("/v1/kv/k", &[], &json!({"value": "1"})).await;
    let health = server.get("/health").await.json();
    assert_eq!((&health["status"], &health["applied_lsn"]), (&json!("ok"), &json!(2)));
    let metrics = server.get("/metrics").await.body;
    assert!(
        metrics.contains("telesto_http_requests_total{route=\"/v1/kv/{key}\",status=\"200\"}"),
        "{metrics}"
    );
    assert!(server.get("/").await.body.contains("/openapi.json"));
    let ready = server.get("/ready").await;
    assert_eq!((ready.status, &ready.json()["status"]), (200, &json!("ready")));
    assert!(server.get("/metrics").await.body.contains("\ntelesto_ready 1\n"));
}

#[tokio::test]
async fn clients_that_stall_or_send_garbage_are_dropped() {
    let limits = Limits { stall: Duration::from_millis(200), ..Limits::default() };
    let server = Server::start(ServerConfig { limits, ..ServerConfig::default() }).await;
    for sent in [&b"GET / HT"[..], b"\x00\xff\xfe garbage \r\n\r\n", b""] {
        let mut socket = TcpStream::connect(server.address).await.expect("connected");
        socket.write_all(sent).await.expect("sent");
        let mut rest = Vec::new();
        let ended = socket.read_to_end(&mut rest);
        tokio::time::timeout(Duration::from_secs(20), ended).await.expect("dropped in time").ok();
    }
    assert_eq!(server.get("/health").await.status, 200);
}

#[tokio::test]
async fn drain_ends_serving_though_a_client_keeps_its_connection() {
    let server = Server::start(ServerConfig::default()).await;
    let mut idle = TcpStream::connect(server.address).await.expect("connected");
    idle.write_all(b"GET /health HTTP/1.1\r\nhost: localhost\r\n\r\n").await.expect("sent");
    let mut some = [0; 64];
    assert!(idle.read(&mut some).await.expect("a reply") > 0);
    server.stop.drain.cancel();
    tokio::time::timeout(Duration::from_secs(20), server.serving)
        .await
        .expect("ends")
        .expect("ran");
}
