//! The page and its JSON: what the reference says is there, and nothing of a target's gets into
//! HTML as HTML.

mod fake;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::{Body, to_bytes};
use axum::http::{HeaderMap, Request, StatusCode};
use fake::Server;
use serde_json::Value;
use telesto_board::{Board, Named, Options, page, text};
use telesto_testkit::World;
use tower::ServiceExt as _;

const NAME: &str = "<script>&\"'";

async fn get(site: &Router, path: &str) -> (StatusCode, HeaderMap, String) {
    let request = Request::get(path).body(Body::empty()).expect("a request");
    let response = site.clone().oneshot(request).await.expect("an answer");
    let (status, headers) = (response.status(), response.headers().clone());
    let body = to_bytes(response.into_body(), 16 << 20).await.expect("a body");
    (status, headers, String::from_utf8(body.into()).expect("text"))
}

/// A minute of a board whose target failed for ten seconds.
async fn minute(world: &World) -> Arc<Board> {
    let (process, server) = (world.process("board", 0), Server::new(world, 100));
    let targets = vec![Named { name: NAME.to_owned(), target: Arc::new(server.clone()) }];
    let options = Options { records: 100, ..Options::default() };
    let progress = Arc::new(|_: &str, _: u64, _: u64| {});
    let board = Board::start(&process.env, options, targets, None, progress).await;
    world.sleep(Duration::from_secs(50)).await;
    server.refuse(true);
    world.sleep(Duration::from_secs(10)).await;
    server.refuse(false);
    board.expect("starts")
}

fn keys(value: &Value, found: &mut BTreeSet<String>) {
    match value {
        Value::Object(members) => {
            for (key, value) in members {
                found.insert(key.clone());
                keys(value, found);
            }
        }
        Value::Array(values) => values.iter().for_each(|value| keys(value, found)),
        _ => {}
    }
}

#[test]
fn page_escapes_what_targets_say_and_loads_nothing_from_elsewhere() {
    World::run(1, false, async |world| {
        let site = page::router(minute(&world).await);
        for window in ["run", "1h", "1d", "1w", "30d", "1y"] {
            let (status, headers, html) =
                get(&site, &format!("/?window={window}&refresh=10")).await;
            assert_eq!(status, StatusCode::OK);
            let policy = headers["content-security-policy"].to_str().expect("text");
            assert!(policy.contains("default-src 'none'") && policy.contains("style-src 'self'"));
            assert!(!html.contains("<script") && html.contains("&lt;script&gt;&amp;&quot;&#39;"));
            assert!(!html.contains("://") || html.contains("fake://server"), "{html}");
            assert_eq!(html.matches("://").count(), html.matches("fake://").count());
            assert!(!html.contains("style="), "the policy forbids it");
            assert_eq!(html.matches("<svg").count(), 2);
            assert!(html.contains("rejected (53300 too many clients)"), "{html}");
        }
        let (_, _, still) = get(&site, "/").await;
        assert!(!still.contains("http-equiv"), "a page refreshes itself only when asked to");
        let (status, headers, _) = get(&site, "/board.css").await;
        assert_eq!(
            (status, &headers["content-type"]),
            (StatusCode::OK, &"text/css; charset=utf-8".parse().expect("a value"))
        );
    });
}

#[test]
fn json_has_the_keys_of_the_reference_and_figures_of_what_happened() {
    World::run(2, false, async |world| {
        let site = page::router(minute(&world).await);
        let (_, _, body) = get(&site, "/board.json").await;
        let report: Value = serde_json::from_str(&body).expect("JSON");
        let run = &report["targets"][0]["operations"][0]["windows"][0];
        let rejected = run["failures"]["rejected"].as_u64().expect("a count");
        assert!(rejected.abs_diff(100) <= 2, "{run}");
        assert_eq!(
            (&run["latency_ms"]["p99"], &run["promise_kept"]),
            (&Value::Null, &Value::Bool(false))
        );
        let path = "/history.json?target=%3Cscript%3E%26%22%27&operation=update&window=1h";
        let (status, _, body) = get(&site, path).await;
        assert_eq!(status, StatusCode::OK);
        let history: Value = serde_json::from_str(&body).expect("JSON");
        let columns = history["columns"].as_array().expect("columns");
        assert!((60..=61).contains(&columns.len()), "{}", columns.len());
        assert_eq!(columns[0]["known"], 0.0);
        let mut found = BTreeSet::new();
        keys(&report, &mut found);
        keys(&history, &mut found);
        let reference = include_str!("../../../docs/reference/board.md");
        let missing: Vec<_> =
            found.iter().filter(|key| !reference.contains(&format!("\"{key}\""))).collect();
        assert!(missing.is_empty(), "not in docs/reference/board.md: {missing:?}");
    });
}

#[test]
fn questions_that_mean_nothing_are_told_what_there_is() {
    World::run(3, false, async |world| {
        let site = page::router(minute(&world).await);
        for (path, status, told) in [
            ("/?window=2h", StatusCode::BAD_REQUEST, "there are run, 1h"),
            ("/history.json", StatusCode::BAD_REQUEST, "?target=NAME"),
            ("/history.json?target=x&operation=scan", StatusCode::BAD_REQUEST, "read or update"),
            ("/history.json?target=x", StatusCode::NOT_FOUND, "no target is named"),
        ] {
            let (found, _, body) = get(&site, path).await;
            assert_eq!(found, status, "{path}");
            assert!(body.contains(told), "{body}");
        }
    });
}

#[test]
fn table_tells_in_words_what_has_no_figure() {
    World::run(4, false, async |world| {
        let board = minute(&world).await;
        let windows = [telesto_board::figures::Window::Run];
        let table = text::tables(&board.report(&windows).expect("no damage"), &windows);
        let row = table.lines().find(|line| line.contains("  read ")).expect("a row");
        assert!(
            row.contains("failed") && row.contains("rejected") && row.contains("broken"),
            "{table}"
        );
        assert!(row.contains("nines)"), "{table}");
    });
}
