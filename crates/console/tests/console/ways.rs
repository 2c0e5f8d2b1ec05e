//! Ways by which an ordinary role tries to reach another's data, or more power, through the console
//! and its API.

use serde_json::{Value, json};
use telesto_console::access;

use crate::{Node, Reply};

/// What nobody but ada may see.
const GOLD: &str = "gold-of-ada";
const FORM: (&str, &str) = ("content-type", "application/x-www-form-urlencoded");
const JSON: (&str, &str) = ("content-type", "application/json");
/// mallory:pencil
const BASIC: (&str, &str) = ("authorization", "Basic bWFsbG9yeTpwZW5jaWw=");

/// Cookie and CSRF token of who logs in.
async fn enter(node: &Node, user: &str) -> (String, String) {
    let entered = node.log_in(user, "pencil").await;
    assert_eq!(entered.status, 303, "{entered:?}");
    let page = node.get("/sql", &entered.cookie()).await;
    (entered.cookie(), page.csrf())
}

async fn town() -> (Node, (String, String), (String, String)) {
    let node = Node::start(&[("ada", "pencil"), ("mallory", "pencil")], true).await;
    let ada = enter(&node, "ada").await;
    node.write(
        &ada,
        &format!(
            "ALTER ROLE mallory NOSUPERUSER; CREATE SCHEMA vault;
             CREATE TABLE vault.safe (id int PRIMARY KEY, v text);
             INSERT INTO vault.safe VALUES (1, '{GOLD}');
             CREATE TABLE public.secret (id int PRIMARY KEY, v text);
             INSERT INTO public.secret VALUES (1, '{GOLD}')"
        ),
    )
    .await;
    let mallory = enter(&node, "mallory").await;
    (node, ada, mallory)
}

#[tokio::test(flavor = "multi_thread")]
async fn visitor_reaches_nothing_of_another_role_in_sql() {
    let (node, ada, mallory) = town().await;
    for sql in [
        "SELECT v FROM public.secret",
        "SELECT v FROM vault.safe",
        "INSERT INTO public.secret VALUES (2, 'x')",
        "SET ROLE ada",
        "SET SESSION AUTHORIZATION ada",
        "ALTER ROLE mallory SUPERUSER",
        "BEGIN; SET LOCAL ROLE ada; SELECT v FROM public.secret",
        "SET TRANSACTION READ WRITE; DELETE FROM public.secret",
        "SELECT telesto_cap_set('all', '1 USD')",
        "SELECT * FROM telesto_nodes",
        "COPY public.secret TO STDOUT",
    ] {
        for mode in ["read_only", "read_write"] {
            let answer = node.sql(&mallory, &json!({"sql": sql, "mode": mode})).await;
            assert!(!answer.body.contains(GOLD), "{sql}: {}", answer.body);
            let error = &answer.json()["error"];
            assert_ne!(*error, Value::Null, "{sql}, {mode}: {}", answer.body);
        }
    }
    // A request says who asks by its cookie alone.
    for more in [json!({"user": "ada"}), json!({"role": "ada"}), json!({"may_write": true})] {
        let mut body = json!({"sql": "SELECT v FROM public.secret"});
        body.as_object_mut().expect("an object").extend(more.as_object().expect("one").clone());
        let answer = node.sql(&mallory, &body).await;
        assert!(answer.status >= 400 && !answer.body.contains(GOLD), "{answer:?}");
    }
    let kept = node.sql(&ada, &json!({"sql": "SELECT count(*), min(v) FROM public.secret"})).await;
    assert_eq!(kept.json()["results"][0]["rows"], json!([["1", GOLD]]));
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_that_are_another_s_are_refused_and_pages_show_nothing_of_it() {
    let (node, ada, mallory) = town().await;
    let read = r#"{"sql": "SELECT v FROM public.secret"}"#;
    let csrf = |token: &'static str| (access::CSRF_HEADER, token);
    let own = (access::CSRF_HEADER, mallory.1.as_str());
    let hers = (access::CSRF_HEADER, ada.1.as_str());
    let (cookie, her_cookie) = (("cookie", mallory.0.as_str()), ("cookie", ada.0.as_str()));
    let cut = &ada.0[..ada.0.len() - 1];
    let (name, token) = ada.0.split_once('=').expect("a cookie");
    let renamed = format!("{name}x={token}");
    let as_token = format!("{name}={}", ada.1);
    // Without the right cookie and the token that belongs to it nothing is run.
    let refused: &[&[(&str, &str)]] = &[
        &[JSON],
        &[JSON, hers],
        &[JSON, her_cookie],
        &[JSON, her_cookie, own],
        &[JSON, her_cookie, csrf("")],
        &[JSON, cookie, hers],
        &[JSON, ("cookie", cut), hers],
        &[JSON, ("cookie", renamed.as_str()), hers],
        &[JSON, ("cookie", as_token.as_str()), hers],
        &[JSON, her_cookie, hers, ("sec-fetch-site", "cross-site")],
        &[JSON, her_cookie, hers, ("sec-fetch-site", "same-site")],
        &[FORM, her_cookie],
        &[("content-type", "text/plain"), her_cookie, own],
        &[JSON, ("x-forwarded-user", "ada")],
        &[JSON, ("authorization", "Basic YWRhOg==")],
        &[JSON, ("authorization", "Bearer ada")],
    ];
    for headers in refused {
        let reply = node.ask("POST", "/api/v1/sql", headers, read).await;
        assert!(reply.status >= 400, "{headers:?}: {reply:?}");
        assert!(!reply.body.contains(GOLD), "{headers:?}: {reply:?}");
    }
    // As mallory, by cookie and by password: it may ask, and is told nothing of ada's.
    let by_cookie = [JSON, cookie, own];
    let by_password = [JSON, BASIC, ("x-requested-with", "x")];
    for headers in [&by_cookie[..], &by_password[..]] {
        for (method, path, body) in [
            ("POST", "/api/v1/sql", read),
            ("GET", "/api/v1/sql?sql=SELECT%20v%20FROM%20public.secret", ""),
            ("PUT", "/api/v1/sql", read),
            ("POST", "/api/v1//sql", read),
            ("POST", "/api/v1/../v1/sql", read),
            ("POST", "/API/V1/SQL", read),
            ("GET", "/api/v1/schemas/public/secret/rows", ""),
            ("GET", "/api/v1/schemas/vault/safe/rows", ""),
            ("GET", "/api/v1/schemas/vault/safe/rows?limit=1000", ""),
            ("GET", "/api/v1/schemas/public/secret%22%3B%20TABLE%20vault.safe/rows", ""),
            ("GET", "/api/v1/schemas/public/..%2f..%2fvault/safe/rows", ""),
            ("GET", "/api/v1/statements", ""),
            ("GET", "/api/v1/overview", ""),
            ("GET", "/api/v1/settings", ""),
            ("POST", "/api/v1/sql/cancel", r#"{"id": "of-ada"}"#),
            ("GET", "/data/public/secret", ""),
            ("GET", "/data/vault/safe", ""),
            ("GET", "/statements", ""),
            ("GET", "/settings", ""),
            ("GET", "/cost", ""),
            ("GET", "/assets/..%2f..%2fCargo.toml", ""),
            ("GET", "/assets/%2e%2e/%2e%2e/Cargo.toml", ""),
            ("GET", "/assets//etc/passwd", ""),
        ] {
            let reply = node.ask(method, path, headers, body).await;
            assert!(!reply.body.contains(GOLD), "{method} {path}: {reply:?}");
            assert!(!reply.body.contains("[package]"), "{method} {path}: {reply:?}");
            assert_ne!(reply.status, 500, "{method} {path}: {reply:?}");
        }
    }
    let form = |body: &str| format!("csrf={}&{body}", mallory.1);
    for (path, body) in [
        ("/statements/signal", format!("csrf={}&pid=1&act=cancel", ada.1)),
        (
            "/cost/caps",
            form("act=set&name=all&kind=database&subject=telesto&dollars=1&per=day&mode=stop"),
        ),
        ("/cost/caps", form("act=drop&name=all")),
        ("/logout", format!("csrf={}", ada.1)),
    ] {
        let reply: Reply = node.ask("POST", path, &[FORM, cookie], &body).await;
        assert_ne!(reply.status, 303, "{path} {body}: {reply:?}");
    }
    // A log-in leads to pages of this console only.
    for next in ["//evil.example", "https://evil.example", "/%5cevil.example", "%2f%2fevil.example"]
    {
        let body = format!("user=mallory&password=pencil&next={next}");
        let reply = node.ask("POST", "/login", &[FORM], &body).await;
        let location = reply.header("location");
        assert!(!location.contains("evil") || location.starts_with("/%"), "{next}: {location}");
    }
    // ada is where she was.
    let answer = node.sql(&ada, &json!({"sql": "SELECT v FROM vault.safe"})).await;
    assert_eq!(answer.json()["results"][0]["rows"], json!([[GOLD]]));
}

/// What became of a statement: status of the reply, code of the error in it.
async fn refusal(node: &Node, visitor: &(String, String)) -> (u16, String) {
    let body = json!({"sql": "SELECT rolname FROM pg_catalog.pg_authid", "mode": "read_write"});
    let answer = node.sql(visitor, &body).await;
    assert!(!answer.body.contains("rolname"), "{}", answer.body);
    let json = answer.json();
    let error = if json["code"].is_null() { &json["error"] } else { &json };
    (answer.status, error["code"].as_str().unwrap_or_default().to_owned())
}

/// The session ends whatever became of the role: nothing runs, pages lead to the log-in, and it
/// does not come back.
async fn is_out(node: &Node, visitor: &(String, String), what: &str) {
    assert_eq!(refusal(node, visitor).await, (401, "unauthorized".to_owned()), "{what}");
    let page = node.get("/sql", &visitor.0).await;
    assert_eq!((page.status, page.header("location")), (303, "/login?next=%2Fsql"), "{what}");
}

#[tokio::test(flavor = "multi_thread")]
async fn session_ends_with_its_role_or_with_its_password() {
    for (what, change) in [
        ("dropped", "DROP ROLE mallory"),
        ("renamed", "ALTER ROLE mallory RENAME TO eve"),
        ("made anew", "DROP ROLE mallory; CREATE ROLE mallory SUPERUSER LOGIN"),
        ("another under the name", "ALTER ROLE mallory RENAME TO eve; CREATE ROLE mallory LOGIN"),
        ("another password", "ALTER ROLE mallory PASSWORD 'pen'"),
        ("no log-in", "ALTER ROLE mallory NOLOGIN"),
    ] {
        let (node, ada, mallory) = town().await;
        let first = json!({"sql": "SELECT session_user"});
        let own = node.sql(&mallory, &first).await.json();
        assert_eq!(own["results"][0]["rows"], json!([["mallory"]]), "{what}: {own}");
        node.write(&ada, change).await;
        is_out(&node, &mallory, what).await;
        // Nothing that is made again under the name lets the old session in.
        node.sql(&ada, &json!({"sql": "CREATE ROLE mallory LOGIN", "mode": "read_write"})).await;
        is_out(&node, &mallory, what).await;
        // Whoever else is logged in stays so.
        let other = node.sql(&ada, &json!({"sql": "SELECT session_user"})).await.json();
        assert_eq!(other["results"][0]["rows"], json!([["ada"]]), "{what}: {other}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn role_that_is_gone_gets_nothing_by_its_password_either() {
    let (node, ada, _) = town().await;
    node.write(&ada, "DROP ROLE mallory").await;
    let body = json!({"sql": "SELECT rolname FROM pg_catalog.pg_authid"}).to_string();
    let headers = [BASIC, JSON, ("x-requested-with", "a program")];
    let answer = node.ask("POST", "/api/v1/sql", &headers, &body).await;
    assert!(answer.status == 401 && !answer.body.contains("rolname"), "{answer:?}");
    assert_eq!(node.log_in("mallory", "pencil").await.status, 403);
}
