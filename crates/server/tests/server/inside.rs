//! SQL that comes by no socket.

use std::sync::Arc;

use axum::Router;
use telesto_server::audit::{AuditLog, Classes, Target};
use telesto_server::inside::Ask;
use telesto_server::{Mount, Server, ServerConfig};
use telesto_sql::{SqlEngine, SqlOptions};
use telesto_txn::memory::MemoryDatabase;
use tokio_util::sync::CancellationToken;

use crate::support::PATIENCE;

type Folder = tempfile::TempDir;

/// A server, and the way into it; it is audited into the file.
async fn served() -> (Server, telesto_server::inside::Inside, Folder, std::path::PathBuf) {
    let directory = tempfile::tempdir().expect("directory");
    let path = directory.path().join("audit.jsonl");
    let env = telesto_runtime::env();
    let classes = "definition,denied".parse::<Classes>().expect("classes");
    let audit = AuditLog::open(&env, Target::File(path.clone()), classes).expect("opens");
    let http = Some("127.0.0.1:0".parse().expect("an address"));
    let config = ServerConfig { http, audit: Some(audit), ..Default::default() };
    let database = Arc::new(MemoryDatabase::new(env.clone()));
    let engine =
        SqlEngine::open(database, env.clone(), SqlOptions::default()).await.expect("opens");
    let (give, inside) = std::sync::mpsc::channel();
    let mount: Mount = Box::new(move |inside| {
        give.send(inside).expect("wanted");
        Router::new()
    });
    let server = Server::start(env, engine, config, None, Some(mount)).await.expect("starts");
    (server, inside.recv().expect("made"), directory, path)
}

fn ask(sql: &str) -> Ask {
    Ask {
        user: "telesto".to_owned(),
        role: None,
        client: "192.0.2.7:4711".parse().expect("an address"),
        application: "a test",
        sql: sql.to_owned(),
        may_write: true,
        timeout: PATIENCE,
        max_rows: 1,
        max_bytes: 1024,
        cancel: CancellationToken::new(),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn record_of_a_run_over_http_names_its_client() {
    let (_server, inside, _directory, path) = served().await;
    let answer = inside.run(ask("CREATE TABLE written (a int)")).await.expect("runs");
    assert!(answer.error.is_none(), "{answer:?}");
    let text = std::fs::read_to_string(&path).expect("written");
    assert!(text.contains("CREATE TABLE written") && text.contains("192.0.2.7"), "{text}");
}

/// As over the Postgres port: who reads a tag takes its statement for done.
#[tokio::test(flavor = "multi_thread")]
async fn run_whose_commit_fails_does_not_tell_its_last_statement_as_done() {
    let (_server, inside, _directory, _path) = served().await;
    let tables = "CREATE TABLE parent (id int PRIMARY KEY);
        CREATE TABLE child (p int REFERENCES parent DEFERRABLE INITIALLY DEFERRED)";
    assert!(inside.run(ask(tables)).await.expect("runs").error.is_none());
    for (sql, told, failed) in [
        ("INSERT INTO child VALUES (1)", &[][..], true),
        ("INSERT INTO child VALUES (1); INSERT INTO parent VALUES (7)", &["INSERT 0 1"], true),
        ("INSERT INTO parent VALUES (5); SELECT 1 / 0", &["INSERT 0 1"], true),
        ("INSERT INTO parent VALUES (5)", &["INSERT 0 1"], false),
    ] {
        let answer = inside.run(ask(sql)).await.expect("runs");
        let tags: Vec<&str> = answer.results.iter().map(|result| result.tag.as_str()).collect();
        assert_eq!((tags.as_slice(), answer.error.is_some()), (told, failed), "{sql}");
    }
}
