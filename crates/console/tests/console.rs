//! The console over real sockets, on a server with the in-memory database.

#[path = "console/ways.rs"]
mod ways;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;

use serde_json::{Value, json};
use telesto_console::{Options, access, limits, mount};
use telesto_server::auth::{Users, Verifier};
use telesto_server::{Auth, Server, ServerConfig};
use telesto_sql::{SqlEngine, SqlOptions};
use telesto_txn::memory::MemoryDatabase;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

struct Node {
    address: SocketAddr,
    _server: Server,
}

#[derive(Debug)]
struct Reply {
    status: u16,
    /// Names in lower case, values of one name joined by newlines.
    headers: BTreeMap<String, String>,
    body: String,
}

impl Reply {
    fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }

    fn header(&self, name: &str) -> &str {
        self.headers.get(name).map_or("", String::as_str)
    }

    /// The cookie to send back.
    fn cookie(&self) -> String {
        self.header("set-cookie").split(';').next().unwrap_or_default().to_owned()
    }

    /// The CSRF token in a page.
    fn csrf(&self) -> String {
        let (_, rest) = self.body.split_once("name=\"csrf\" content=\"").expect("a token");
        rest.split('"').next().expect("its end").to_owned()
    }
}

impl Node {
    async fn start(passwords: &[(&str, &str)], may_write: bool) -> Self {
        let env = telesto_runtime::env();
        let auth = if passwords.is_empty() {
            Auth::Trust
        } else {
            let users = passwords.iter().map(|(user, password)| {
                ((*user).to_owned(), Verifier::of_password(&env, password))
            });
            Auth::Scram(Arc::new(Users::new(&env, users.collect())))
        };
        let http = Some("127.0.0.1:0".parse().expect("an address"));
        let config = ServerConfig { auth, http, ..ServerConfig::default() };
        let database = Arc::new(MemoryDatabase::new(env.clone()));
        let engine =
            SqlEngine::open(database, env.clone(), SqlOptions::default()).await.expect("opens");
        let metrics = telesto_server::metrics::install().expect("installed");
        let console = mount(Options { may_write, board: None, probes: true });
        let server =
            Server::start(env, engine, config, Some(metrics), Some(console)).await.expect("starts");
        Self { address: server.http_address().expect("listens"), _server: server }
    }

    async fn ask(&self, method: &str, target: &str, headers: &[(&str, &str)], body: &str) -> Reply {
        let mut request = format!("{method} {target} HTTP/1.1\r\nconnection: close\r\n");
        if !headers.iter().any(|(name, _)| *name == "host") {
            request += "host: localhost\r\n";
        }
        for (name, value) in headers {
            request += &format!("{name}: {value}\r\n");
        }
        request += &format!("content-length: {}\r\n\r\n{body}", body.len());
        let mut socket = TcpStream::connect(self.address).await.expect("connects");
        // A body that is refused early may not be taken to its end.
        let _ = socket.write_all(request.as_bytes()).await;
        let mut raw = Vec::new();
        let _ = socket.read_to_end(&mut raw).await;
        let text = String::from_utf8_lossy(&raw).into_owned();
        let (head, body) = text.split_once("\r\n\r\n").unwrap_or_else(|| panic!("{text:?}"));
        let mut lines = head.lines();
        let status = lines.next().and_then(|line| line.split(' ').nth(1)).expect("a status");
        let mut headers = BTreeMap::<String, String>::new();
        for (name, value) in lines.filter_map(|line| line.split_once(": ")) {
            let all = headers.entry(name.to_ascii_lowercase()).or_default();
            if !all.is_empty() {
                all.push('\n');
            }
            all.push_str(value);
        }
        Reply { status: status.parse().expect("a number"), headers, body: body.to_owned() }
    }

    async fn get(&self, target: &str, cookie: &str) -> Reply {
        self.ask("GET", target, &[("cookie", cookie)], "").await
    }

    /// A visitor of a server that asks for no password: cookie and CSRF token.
    async fn visitor(&self) -> (String, String) {
        let page = self.get("/", "").await;
        assert_eq!(page.status, 200, "{page:?}");
        (page.cookie(), page.csrf())
    }

    async fn log_in(&self, user: &str, password: &str) -> Reply {
        let form = [("content-type", "application/x-www-form-urlencoded")];
        let body = format!("user={user}&password={password}&next=/sql");
        self.ask("POST", "/login", &form, &body).await
    }

    async fn sql(&self, (cookie, csrf): &(String, String), body: &Value) -> Reply {
        let headers = [
            ("cookie", cookie.as_str()),
            (access::CSRF_HEADER, csrf.as_str()),
            ("content-type", "application/json"),
        ];
        self.ask("POST", "/api/v1/sql", &headers, &body.to_string()).await
    }

    /// Runs statements that write, and must succeed.
    async fn write(&self, visitor: &(String, String), sql: &str) {
        let answer = self.sql(visitor, &json!({"sql": sql, "mode": "read_write"})).await.json();
        assert_eq!(answer["error"], Value::Null, "{answer}");
    }
}

const PAGES: [&str; 9] =
    ["/", "/sql", "/data", "/statements", "/cluster", "/regions", "/cost", "/settings", "/board"];

#[tokio::test(flavor = "multi_thread")]
async fn every_page_and_route_answers_without_an_error_of_its_own() {
    let node = Node::start(&[], true).await;
    let visitor = node.visitor().await;
    node.write(
        &visitor,
        "CREATE TABLE shop (id int PRIMARY KEY, name text); INSERT INTO shop VALUES (1, 'a')",
    )
    .await;
    for page in
        PAGES.into_iter().chain(["/data/public", "/data/public/shop", "/data/pg_catalog/pg_class"])
    {
        let reply = node.get(page, &visitor.0).await;
        assert_eq!(reply.status, 200, "{page}");
        assert!(!reply.body.contains("class=\"problem\" role=\"alert\""), "{page}: {}", reply.body);
        assert!(reply.header("content-security-policy").contains("script-src 'self'"), "{page}");
        assert_eq!(reply.header("x-content-type-options"), "nosniff");
        assert_eq!(reply.header("cache-control"), "no-store");
        let scripts = reply.body.split("<script").skip(1);
        for script in scripts {
            assert!(script.contains("src=\"/assets/"), "{page}: inline script");
        }
    }
    for route in [
        "session",
        "overview",
        "history",
        "cluster",
        "regions",
        "cost",
        "statements",
        "settings",
        "board",
        "schemas",
        "columns",
        "schemas/public",
        "schemas/public/shop",
        "schemas/public/shop/rows",
    ] {
        let reply = node.get(&format!("/api/v1/{route}"), &visitor.0).await;
        assert_eq!(reply.status, 200, "{route}: {}", reply.body);
        assert!(!reply.body.contains("\"error\":{"), "{route}: {}", reply.body);
        reply.json();
    }
    // What the server had keeps its place.
    assert_eq!(node.get("/health", "").await.status, 200);
    assert_eq!(node.get("/v1/kv", "").await.status, 200);
    assert_eq!(node.get("/nowhere", "").await.json()["error"]["code"], "no_such_path");
}

#[tokio::test(flavor = "multi_thread")]
async fn cap_is_set_and_dropped_on_the_cost_page_by_whoever_may() {
    let node = Node::start(&[], true).await;
    let visitor = node.visitor().await;
    let form = |csrf: &str, rest: &str| format!("csrf={}&{rest}", csrf.replace('+', "%2B"));
    let send = async |visitor: &(String, String), csrf: &str, rest: &str, site: &str| {
        let headers = [
            ("cookie", visitor.0.as_str()),
            ("content-type", "application/x-www-form-urlencoded"),
            ("sec-fetch-site", site),
        ];
        node.ask("POST", "/cost/caps", &headers, &form(csrf, rest)).await
    };
    let hostile =
        "name=%3Cb%3E%27%3B&kind=application&subject=it%27s&dollars=0.5&per=hour&mode=warn&act=set";
    // Not without the token, nor from another site's page.
    assert_eq!(send(&visitor, "wrong", hostile, "same-origin").await.status, 403);
    assert_eq!(send(&visitor, &visitor.1, hostile, "cross-site").await.status, 403);
    assert!(!node.get("/cost", &visitor.0).await.body.contains("&lt;b&gt;"));
    let set = send(&visitor, &visitor.1, hostile, "same-origin").await;
    assert_eq!((set.status, set.header("location")), (303, "/cost"), "{set:?}");
    let page = node.get("/cost", &visitor.0).await.body;
    assert!(page.contains("&lt;b&gt;'") && !page.contains("<b>"), "{page}");
    let api = node.get("/api/v1/cost", &visitor.0).await.json();
    assert_eq!(api["caps"]["rows"][0][2], "it's", "{api}");
    for bad in [
        "x=1&act=set&name=n",
        "act=set&name=n&kind=role&subject=s&dollars=-1&per=hour&mode=warn",
        "act=no&name=n",
    ] {
        let refused = send(&visitor, &visitor.1, bad, "same-origin").await;
        assert!(
            refused.status == 422 || refused.body.contains("class=\"problem\""),
            "{bad}: {refused:?}"
        );
    }
    let dropped = send(&visitor, &visitor.1, "name=%3Cb%3E%27%3B&act=drop", "same-origin").await;
    assert_eq!(dropped.status, 303, "{dropped:?}");
    assert_eq!(node.get("/api/v1/cost", &visitor.0).await.json()["caps"]["rows"], json!([]));

    let reading = Node::start(&[], false).await;
    let visitor = reading.visitor().await;
    assert!(!reading.get("/cost", &visitor.0).await.body.contains("/cost/caps"));
    let headers =
        [("cookie", visitor.0.as_str()), ("content-type", "application/x-www-form-urlencoded")];
    let refused = reading.ask("POST", "/cost/caps", &headers, &form(&visitor.1, hostile)).await;
    assert_eq!(refused.status, 403, "{refused:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn missing_index_is_shown_with_a_statement_that_is_ready_to_run() {
    let node = Node::start(&[], true).await;
    let visitor = node.visitor().await;
    node.write(
        &visitor,
        "CREATE TABLE wide (id int PRIMARY KEY, kind int); INSERT INTO wide SELECT i, i % 700 FROM generate_series(1, 3000) i",
    )
    .await;
    node.write(&visitor, "SELECT count(*) FROM wide WHERE kind = 5").await;
    let page = node.get("/statements", &visitor.0).await.body;
    let ready = "/sql?sql=CREATE%20INDEX%20CONCURRENTLY%20ON%20public.wide%20%28kind%29";
    assert!(page.contains(ready), "{page}");
    let api = node.get("/api/v1/statements", &visitor.0).await.json();
    assert_eq!(
        api["advice"]["rows"][0][0], "CREATE INDEX CONCURRENTLY ON public.wide (kind)",
        "{api}"
    );
    for part in ["waits", "dearest", "conflicted", "anomalies"] {
        assert!(api[part]["rows"].is_array(), "{part}: {api}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn names_and_values_of_the_database_are_never_markup() {
    let node = Node::start(&[], true).await;
    let visitor = node.visitor().await;
    let evil = "<script>alert(1)</script>";
    node.write(
        &visitor,
        &format!(
            "CREATE SCHEMA \"{evil}\"; CREATE TABLE \"{evil}\".\"{evil}\" (\"{evil}\" text PRIMARY KEY); \
             INSERT INTO \"{evil}\".\"{evil}\" VALUES ('{evil}'), ('\"><img src=x onerror=alert(1)>')"
        ),
    )
    .await;
    let name = "%3Cscript%3Ealert%281%29%3C%2Fscript%3E";
    for page in [
        "/data".to_owned(),
        format!("/data/{name}"),
        format!("/data/{name}/{name}"),
        format!("/sql?sql={name}"),
    ] {
        let reply = node.get(&page, &visitor.0).await;
        assert_eq!(reply.status, 200, "{page}: {}", reply.body);
        assert!(reply.body.contains("&lt;script&gt;alert(1)"), "{page} shows the name");
        assert!(!reply.body.contains("<script>") && !reply.body.contains("<img src=x"), "{page}");
    }
    let missing = node.get(&format!("/data/public/{name}"), &visitor.0).await;
    assert_eq!(missing.status, 404);
    assert!(!missing.body.contains("<script>"));
}

#[tokio::test(flavor = "multi_thread")]
async fn statement_that_writes_is_refused_unless_the_visitor_switched() {
    let node = Node::start(&[], true).await;
    let visitor = node.visitor().await;
    node.write(&visitor, "CREATE TABLE t (a int); CREATE SEQUENCE s").await;
    for sql in [
        "INSERT INTO t VALUES (1)",
        "SELECT 1; INSERT INTO t VALUES (1)",
        "BEGIN; INSERT INTO t VALUES (1); COMMIT",
        "BEGIN READ WRITE; INSERT INTO t VALUES (1); COMMIT",
        "BEGIN; SET TRANSACTION READ WRITE; INSERT INTO t VALUES (1); COMMIT",
        "SET default_transaction_read_only = off; INSERT INTO t VALUES (1)",
        "SET SESSION CHARACTERISTICS AS TRANSACTION READ WRITE; INSERT INTO t VALUES (1)",
        "BEGIN; SET transaction_read_only = off; INSERT INTO t VALUES (1); COMMIT",
        "COMMIT; DISCARD ALL; INSERT INTO t VALUES (1)",
        "RESET ALL; INSERT INTO t VALUES (1)",
        "SELECT 1; BEGIN; INSERT INTO t VALUES (1); COMMIT",
        "EXPLAIN ANALYZE INSERT INTO t VALUES (1)",
        "CREATE TABLE u (a int)",
        "SELECT nextval('s')",
        "SELECT setval('s', 7)",
        "TRUNCATE t",
        "CREATE UNIQUE INDEX CONCURRENTLY ON t ((1))",
        "CREATE INDEX ON t (a)",
        "REINDEX TABLE CONCURRENTLY t",
        "REINDEX TABLE t",
        "REINDEX DATABASE CONCURRENTLY telesto",
    ] {
        let answer = node.sql(&visitor, &json!({ "sql": sql })).await.json();
        let code = answer["error"]["code"].as_str().unwrap_or("none").to_owned();
        assert!(code == "25006" || (code == "25001" && sql.contains("DISCARD")), "{sql}: {answer}");
    }
    let left = node.sql(&visitor, &json!({"sql": "SELECT count(*) FROM t"})).await.json();
    assert_eq!(left["results"][0]["rows"], json!([["0"]]), "{left}");
    node.write(&visitor, "INSERT INTO t VALUES (1)").await;
    let locked = Node::start(&[], false).await;
    let visitor = locked.visitor().await;
    let refused =
        locked.sql(&visitor, &json!({"sql": "CREATE TABLE t (a int)", "mode": "read_write"})).await;
    assert_eq!(
        (refused.status, refused.json()["error"]["code"].as_str()),
        (403, Some("read_only"))
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn change_without_the_token_of_the_session_is_refused() {
    let node = Node::start(&[], true).await;
    let visitor = node.visitor().await;
    let other = node.visitor().await;
    let json = ("content-type", "application/json");
    let body = r#"{"sql": "SELECT 1"}"#;
    let cookie = ("cookie", visitor.0.as_str());
    for headers in [
        &[cookie, json][..],
        &[cookie, json, ("x-requested-with", "x")],
        &[cookie, json, (access::CSRF_HEADER, other.1.as_str())],
        &[
            cookie,
            json,
            (access::CSRF_HEADER, visitor.1.as_str()),
            ("sec-fetch-site", "cross-site"),
        ],
        &[json],
        &[json, ("x-requested-with", "x"), ("sec-fetch-site", "same-site")],
    ] {
        let reply = node.ask("POST", "/api/v1/sql", headers, body).await;
        assert_eq!(
            (reply.status, reply.json()["error"]["code"].as_str()),
            (403, Some("csrf")),
            "{headers:?}"
        );
    }
    for headers in [
        &[
            cookie,
            json,
            (access::CSRF_HEADER, visitor.1.as_str()),
            ("sec-fetch-site", "same-origin"),
        ][..],
        &[json, ("x-requested-with", "curl")],
    ] {
        assert_eq!(node.ask("POST", "/api/v1/sql", headers, body).await.status, 200, "{headers:?}");
    }
    let form = ("content-type", "application/x-www-form-urlencoded");
    for target in ["/logout", "/statements/signal"] {
        let body = "csrf=wrong&pid=1&act=terminate";
        let reply = node.ask("POST", target, &[cookie, form], body).await;
        assert_eq!(reply.status, 403, "{target}");
    }
    assert_eq!(
        node.sql(&visitor, &json!({"sql": "SELECT 1"})).await.status,
        200,
        "still logged in"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn password_opens_a_session_in_a_cookie_that_scripts_cannot_read() {
    let node = Node::start(&[("ada", "pencil")], true).await;
    let asked = node.get("/data", "").await;
    assert_eq!((asked.status, asked.header("location")), (303, "/login?next=%2Fdata"));
    let api = node.get("/api/v1/overview", "").await;
    assert_eq!((api.status, api.json()["error"]["code"].as_str()), (401, Some("unauthorized")));
    assert_eq!(node.get("/login", "").await.status, 200);

    for (user, password) in [("ada", "pen"), ("eve", "pencil"), ("ada", "")] {
        let refused = node.log_in(user, password).await;
        assert_eq!(refused.status, 403, "{user}");
        assert!(refused.body.contains("password authentication failed"), "{}", refused.body);
        assert_eq!(refused.header("set-cookie"), "");
    }
    let entered = node.log_in("ada", "pencil").await;
    assert_eq!((entered.status, entered.header("location")), (303, "/sql"));
    let line = entered.header("set-cookie");
    assert!(line.contains("HttpOnly") && line.contains("SameSite=Strict"), "{line}");
    let page = node.get("/sql", &entered.cookie()).await;
    assert_eq!(page.status, 200);
    assert!(!page.body.contains(entered.cookie().split_once('=').expect("a value").1));
    let visitor = (entered.cookie(), page.csrf());
    let who = node.sql(&visitor, &json!({"sql": "SELECT session_user"})).await.json();
    assert_eq!(who["results"][0]["rows"], json!([["ada"]]));

    let form =
        [("cookie", visitor.0.as_str()), ("content-type", "application/x-www-form-urlencoded")];
    let left = node.ask("POST", "/logout", &form, &format!("csrf={}", visitor.1)).await;
    assert_eq!(left.status, 303);
    assert!(left.header("set-cookie").contains("Max-Age=0"));
    assert_eq!(node.get("/sql", &visitor.0).await.status, 303);
}

#[tokio::test(flavor = "multi_thread")]
async fn guesser_is_told_to_wait_even_with_the_right_password() {
    let node = Node::start(&[("ada", "pencil"), ("bob", "pen")], true).await;
    for _ in 0..telesto_server::attempts::USER_BURST {
        assert_eq!(node.log_in("ada", "wrong").await.status, 403);
    }
    let waits = node.log_in("ada", "pencil").await;
    assert_eq!(waits.status, 429, "{}", waits.body);
    // ada:pencil
    let basic = [("authorization", "Basic YWRhOnBlbmNpbA==")];
    let api = node.ask("GET", "/api/v1/session", &basic, "").await;
    assert_eq!(api.status, 429);
    assert!(!api.header("retry-after").is_empty());
    assert_eq!(node.log_in("bob", "pen").await.status, 303);
}

#[tokio::test(flavor = "multi_thread")]
async fn api_takes_basic_authentication_as_the_role() {
    let node = Node::start(&[("ada", "pencil")], true).await;
    let right = [("authorization", "Basic YWRhOnBlbmNpbA==")];
    let session = node.ask("GET", "/api/v1/session", &right, "").await.json();
    assert_eq!((&session["role"], &session["csrf"]), (&json!("ada"), &Value::Null));
    // ada:pen
    let wrong = [("authorization", "Basic YWRhOnBlbg==")];
    assert_eq!(node.ask("GET", "/api/v1/session", &wrong, "").await.status, 401);
}

#[tokio::test(flavor = "multi_thread")]
async fn too_much_is_refused_or_cut() {
    let node = Node::start(&[], true).await;
    let visitor = node.visitor().await;
    let long = json!({ "sql": "x".repeat(limits::SQL + 1) });
    assert_eq!(node.sql(&visitor, &long).await.status, 413);
    let longer = json!({ "sql": "x".repeat(limits::BODY + 1) });
    assert_eq!(node.sql(&visitor, &longer).await.status, 413);
    let many = json!({"sql": "SELECT g FROM generate_series(1, 100000) g", "max_rows": 10});
    let cut = node.sql(&visitor, &many).await.json();
    assert_eq!(cut["results"][0]["rows"].as_array().map(Vec::len), Some(10));
    assert_eq!(cut["results"][0]["cut"], true);
    let wide = json!({"sql": "SELECT repeat('x', 1000000) FROM generate_series(1, 100) g", "max_rows": 100});
    let cut = node.sql(&visitor, &wide).await;
    assert!(cut.body.len() < limits::BYTES + 2_000_000, "{}", cut.body.len());
    assert_eq!(cut.json()["results"][0]["cut"], true);
    let slow = json!({"sql": "SELECT pg_sleep(3000)", "timeout_ms": 50});
    assert_eq!(node.sql(&visitor, &slow).await.json()["error"]["code"], "57014");
    // Nobody cancelled it, and it has no bound of its own.
    let slow = json!({"sql": "SET statement_timeout = 0; SELECT pg_sleep(3000)", "timeout_ms": 50});
    let error = &node.sql(&visitor, &slow).await.json()["error"];
    assert_eq!(error["code"], "57014");
    assert!(error["message"].as_str().is_some_and(|text| text.contains("50 ms")), "{error}");
    for bad in [
        json!({}),
        json!({"sql": 1}),
        json!({"sql": "SELECT 1", "mode": "all"}),
        json!({"sql": "SELECT 1", "x": 1}),
    ] {
        assert_eq!(node.sql(&visitor, &bad).await.status, 400, "{bad}");
    }
    let open = json!({"sql": "BEGIN; CREATE TABLE left_open (a int)", "mode": "read_write"});
    assert_eq!(node.sql(&visitor, &open).await.json()["rolled_back"], true);
    let gone = node.sql(&visitor, &json!({"sql": "SELECT * FROM left_open"})).await.json();
    assert_eq!(gone["error"]["code"], "42P01");
}

#[tokio::test(flavor = "multi_thread")]
async fn run_is_cancelled_by_its_session_alone() {
    let node = Node::start(&[], true).await;
    let visitor = node.visitor().await;
    let other = node.visitor().await;
    let cancel = async |(cookie, csrf): &(String, String)| {
        let headers = [
            ("cookie", cookie.as_str()),
            (access::CSRF_HEADER, csrf.as_str()),
            ("content-type", "application/json"),
        ];
        let reply = node.ask("POST", "/api/v1/sql/cancel", &headers, r#"{"id": "r"}"#).await;
        reply.json()["cancelled"] == true
    };
    let run = json!({"sql": "SELECT pg_sleep(3000)", "id": "r", "timeout_ms": 50000});
    let (answer, ()) = tokio::join!(node.sql(&visitor, &run), async {
        assert!(!cancel(&other).await);
        // It may not have begun yet.
        while !cancel(&visitor).await {
            tokio::task::yield_now().await;
        }
    });
    let answer = answer.json();
    assert_eq!(answer["error"]["code"], "57014", "{answer}");
}

#[tokio::test(flavor = "multi_thread")]
async fn pages_of_rows_go_along_the_key_there_and_back() {
    let node = Node::start(&[], true).await;
    let visitor = node.visitor().await;
    node.write(
        &visitor,
        "CREATE TABLE p (a text, b int, c text, PRIMARY KEY (a, b)); \
         INSERT INTO p SELECT chr(97 + g % 3) || '''', g, NULL FROM generate_series(1, 25) g",
    )
    .await;
    let (mut seen, mut place) = (Vec::<Value>::new(), String::new());
    let back = loop {
        let reply =
            node.get(&format!("/api/v1/schemas/public/p/rows?limit=10{place}"), &visitor.0).await;
        let page = reply.json();
        seen.extend(page["rows"]["rows"].as_array().expect("rows").iter().cloned());
        if page["next"].is_null() {
            break page["previous"].clone();
        }
        let key: String =
            page["next"].to_string().bytes().map(|byte| format!("%{byte:02X}")).collect();
        place = format!("&after={key}");
    };
    assert_eq!(seen.len(), 25);
    let key = |row: &Value| {
        (
            row[0].as_str().expect("a").to_owned(),
            row[1].as_str().and_then(|b| b.parse::<i32>().ok()),
        )
    };
    assert!(seen.windows(2).all(|pair| key(&pair[0]) < key(&pair[1])), "{seen:?}");
    let before: String = back.to_string().bytes().map(|byte| format!("%{byte:02X}")).collect();
    let page = node
        .get(&format!("/api/v1/schemas/public/p/rows?limit=10&before={before}"), &visitor.0)
        .await
        .json();
    assert_eq!(page["rows"]["rows"], Value::Array(seen[10..20].to_vec()));
    let page = node.get("/data/public/p", &visitor.0).await;
    assert!(page.body.contains("NULL") && page.body.contains("p_pkey"), "{}", page.body);
}

#[tokio::test(flavor = "multi_thread")]
async fn foreign_host_is_refused_where_nobody_is_asked() {
    let node = Node::start(&[], true).await;
    let reply = node.ask("GET", "/", &[("host", "evil.example")], "").await;
    assert_eq!((reply.status, reply.json()["error"]["code"].as_str()), (403, Some("foreign_host")));
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_measured_is_seen_in_sql() {
    let node = Node::start(&[], true).await;
    let visitor = node.visitor().await;
    let sql = "SELECT count(*) > 0 FROM telesto_metrics WHERE name = 'telesto_statements_total' AND value > 0";
    let answer = node.sql(&visitor, &json!({ "sql": sql })).await.json();
    assert_eq!(answer["results"][0]["rows"], json!([["t"]]), "{answer}");
    let activity = "SELECT application_name FROM pg_stat_activity WHERE pid = pg_backend_pid()";
    let answer = node.sql(&visitor, &json!({ "sql": activity })).await.json();
    assert_eq!(answer["results"][0]["rows"], json!([["telesto console (sql)"]]), "{answer}");
}

#[tokio::test(flavor = "multi_thread")]
async fn answer_has_its_bytes_at_most_whatever_a_row_has() {
    let node = Node::start(&[], true).await;
    let visitor = node.visitor().await;
    let run = async |sql: &str| {
        let answer = node.sql(&visitor, &json!({"sql": sql, "max_rows": limits::ROWS})).await;
        // Beside the values there are names and types of columns.
        assert!(answer.body.len() < limits::BYTES + (64 << 10), "{}", answer.body.len());
        answer.json()
    };
    // In memory the second is within the bound, as JSON it is not.
    for sql in ["SELECT repeat('x', 20000000)", "SELECT repeat(chr(1), 2000000)"] {
        let answer = run(sql).await;
        assert_eq!(answer["error"]["code"], "54000", "{sql}: {}", answer["error"]);
    }
    let answer = run("SELECT repeat('x', 5000000) FROM generate_series(1, 3)").await;
    let result = &answer["results"][0];
    assert_eq!((&answer["error"], &result["cut"]), (&Value::Null, &json!(true)));
    assert_eq!(result["rows"].as_array().map(Vec::len), Some(1));
    let answer = run("SELECT 1; SELECT repeat('x', 8388604)").await;
    let results = &answer["results"];
    assert_eq!((&results[0]["cut"], &results[1]["cut"]), (&json!(false), &json!(true)));
    assert_eq!(results[1]["rows"], json!([]));
    let nulls = vec!["NULL"; 1000].join(", ");
    let answer = run(&format!("SELECT {nulls} FROM generate_series(1, 10000)")).await;
    assert_eq!(answer["results"][0]["cut"], true);
}

#[tokio::test(flavor = "multi_thread")]
async fn tag_of_a_write_tells_what_was_written() {
    let node = Node::start(&[], true).await;
    let visitor = node.visitor().await;
    node.write(&visitor, "CREATE TABLE w (id int PRIMARY KEY, v text)").await;
    let insert = "INSERT INTO w SELECT g, 'x' FROM generate_series(1, 3000) g RETURNING id";
    let update = "UPDATE w SET v = 'y' WHERE id <= 40 RETURNING id, repeat('z', 500000)";
    let long = "DELETE FROM w WHERE id = 1 RETURNING repeat('z', 20000000)";
    for (sql, tag, shown) in
        [(insert, "INSERT 0 3000", 500), (update, "UPDATE 40", 16), (long, "DELETE 1", 0)]
    {
        let answer = node.sql(&visitor, &json!({"sql": sql, "mode": "read_write"})).await.json();
        let result = &answer["results"][0];
        assert_eq!((&result["tag"], &result["cut"]), (&json!(tag), &json!(true)), "{sql}");
        assert_eq!(result["rows"].as_array().map(Vec::len), Some(shown), "{sql}");
    }
    let left = "SELECT count(*), count(*) FILTER (WHERE v = 'y') FROM w";
    let left = node.sql(&visitor, &json!({ "sql": left })).await.json();
    assert_eq!(left["results"][0]["rows"], json!([["2999", "39"]]));
}

#[tokio::test(flavor = "multi_thread")]
async fn pages_of_long_rows_lose_none() {
    let node = Node::start(&[], true).await;
    let visitor = node.visitor().await;
    node.write(
        &visitor,
        "CREATE TABLE fat (id int PRIMARY KEY, v text); CREATE TABLE loose (v text); \
         INSERT INTO fat SELECT g, repeat('x', 200000) FROM generate_series(1, 60) g; \
         INSERT INTO loose SELECT v FROM fat",
    )
    .await;
    let walk = async |first: &str, on: &str, key: &str| {
        let (mut seen, mut place) = (Vec::new(), first.to_owned());
        loop {
            let route = format!("/api/v1/schemas/public/fat/rows?{place}");
            let page = node.get(&route, &visitor.0).await.json();
            let rows = page["rows"]["rows"].as_array().expect("rows").clone();
            let ids = rows.iter().map(|row| row[0].as_str().expect("an id").to_owned());
            assert_eq!(page["rows"]["cut"], false, "{place}: the next page has the rest");
            match key {
                "after" => seen.extend(ids),
                _ => seen.splice(0..0, ids).for_each(drop),
            }
            if page[on].is_null() {
                return seen;
            }
            let next: String =
                page[on].to_string().bytes().map(|byte| format!("%{byte:02X}")).collect();
            place = format!("{key}={next}");
        }
    };
    let all: Vec<String> = (1..=60).map(|id| id.to_string()).collect();
    assert_eq!(walk("", "next", "after").await, all);
    assert_eq!(walk("before=[%2261%22]", "previous", "before").await, all);
    let page = node.get("/data/public/fat", &visitor.0).await;
    assert!(page.body.contains("rel=\"next\""));
    // Without a key nothing leads to the rest: that is said.
    let page = node.get("/api/v1/schemas/public/loose/rows", &visitor.0).await.json();
    assert_eq!((&page["rows"]["cut"], &page["next"]), (&json!(true), &Value::Null));
}

#[tokio::test(flavor = "multi_thread")]
async fn runs_of_a_role_that_comes_by_password_are_bounded() {
    let node = Arc::new(Node::start(&[("ada", "pencil"), ("bob", "pen")], true).await);
    const HEADERS: [(&str, &str); 3] = [
        // ada:pencil
        ("authorization", "Basic YWRhOnBlbmNpbA=="),
        ("content-type", "application/json"),
        ("x-requested-with", "a program"),
    ];
    let run = async |node: &Node, sql: &str| {
        let body = json!({"sql": sql, "timeout_ms": 50000}).to_string();
        node.ask("POST", "/api/v1/sql", &HEADERS, &body).await
    };
    let mut under_way = tokio::task::JoinSet::new();
    for _ in 0..12 {
        let node = Arc::clone(&node);
        under_way.spawn(async move { run(&node, "SELECT pg_sleep(40)").await });
    }
    // Those that are too many are refused; the others run on.
    for _ in 0..4 {
        let refused = under_way.join_next().await.expect("one").expect("answered");
        assert_eq!(refused.json()["error"]["code"], "too_many_runs", "{refused:?}");
    }
    let entered = node.log_in("bob", "pen").await;
    let csrf = node.get("/sql", &entered.cookie()).await.csrf();
    let other = node.sql(&(entered.cookie(), csrf), &json!({"sql": "SELECT 1"})).await;
    assert_eq!(other.json()["results"][0]["rows"], json!([["1"]]));
    // Who leaves gives its place back.
    under_way.shutdown().await;
    while run(&node, "SELECT 1").await.status != 200 {
        tokio::task::yield_now().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn log_in_leads_to_no_other_host() {
    let node = Node::start(&[("ada", "pencil")], true).await;
    let form = [("content-type", "application/x-www-form-urlencoded")];
    for next in ["/%09/evil.example/x", "/%00x", "/%7f", "/%0a/evil.example", "/%5Cevil.example"] {
        let body = format!("user=ada&password=pencil&next={next}");
        let entered = node.ask("POST", "/login", &form, &body).await;
        assert_eq!((entered.status, entered.header("location")), (303, "/"), "{next}");
    }
}

/// What the board's page asks, of figures that are given here.
#[tokio::test(flavor = "multi_thread")]
async fn share_that_is_not_all_is_never_shown_as_all() {
    let node = Node::start(&[], true).await;
    let visitor = node.visitor().await;
    let board = node.get("/api/v1/board", &visitor.0).await.json();
    let asked = board["own"]["sql"].as_str().expect("a statement");
    let figures = "FROM (SELECT 'node' AS target, 'read' AS operation, '30d' AS span, 2592000 AS operations, \
         1.0::float8 AS p50_ms, 1.0::float8 AS p90_ms, 1.0::float8 AS p99_ms, 1.0::float8 AS p999_ms, \
         2591999 / 2592000.0::float8 AS availability, 4.96::float8 AS nines, true AS promise_kept, \
         0.0::float8 AS unknown_seconds, now() AS since) AS f ";
    assert!(asked.contains("FROM telesto_board_figures "), "{asked}");
    let sql = asked.replace("FROM telesto_board_figures ", figures);
    let sql = format!("SELECT available, nines FROM ({sql}) AS shown");
    let answer = node.sql(&visitor, &json!({ "sql": sql })).await.json();
    assert_eq!(answer["results"][0]["rows"], json!([["99.9999 %", "4.9"]]), "{answer}");
}

#[tokio::test(flavor = "multi_thread")]
async fn plan_is_shown_without_running_what_stands_behind_it() {
    let node = Node::start(&[], true).await;
    let visitor = node.visitor().await;
    node.write(&visitor, "CREATE TABLE ex (id int PRIMARY KEY); INSERT INTO ex VALUES (1)").await;
    // As the page asks for a plan: reading only, whatever its mode.
    let script = node.get("/assets/editor.js", &visitor.0).await.body;
    assert!(script.contains("===\"explain\"?\"read_only\":"), "the mode of a plan");
    let ask = async |sql: &str| node.sql(&visitor, &json!({ "sql": sql })).await.json();
    let plan = ask("EXPLAIN (FORMAT JSON) DELETE FROM ex").await;
    assert_eq!((&plan["error"], &plan["results"][0]["cut"]), (&Value::Null, &json!(false)));
    let more = ask("EXPLAIN (FORMAT JSON) SELECT 1; DELETE FROM ex").await;
    assert_eq!(more["error"]["code"], "25006", "{more}");
    assert_eq!(ask("SELECT count(*) FROM ex").await["results"][0]["rows"], json!([["1"]]));
}

#[tokio::test(flavor = "multi_thread")]
async fn scripts_leave_no_text_to_the_next_role_and_polls_are_no_use() {
    let node = Node::start(&[], true).await;
    let script = async |name: &str| node.get(&format!("/assets/{name}.js"), "").await.body;
    // The text is named after the role; who logs out takes it away.
    assert!(
        script("editor").await.contains("sessionStorage.setItem(")
            && script("editor").await.contains(".who .role")
    );
    let every_page = script("app").await;
    assert!(every_page.contains("sessionStorage.removeItem(") && every_page.contains("/logout"));
    assert!(script("charts").await.contains("\"x-unasked\""));
}
