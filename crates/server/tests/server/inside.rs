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

#[tokio::test(flavor = "multi_thread")]
async fn record_of_a_run_over_http_names_its_client() {
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
    let _server = Server::start(env, engine, config, None, Some(mount)).await.expect("starts");
    let inside = inside.recv().expect("made");
    let ask = Ask {
        user: "telesto".to_owned(),
        role: None,
        client: "192.0.2.7:4711".parse().expect("an address"),
        application: "a test",
        sql: "CREATE TABLE written (a int)".to_owned(),
        may_write: true,
        timeout: PATIENCE,
        max_rows: 1,
        max_bytes: 1024,
        cancel: CancellationToken::new(),
    };
    let answer = inside.run(ask).await.expect("runs");
    assert!(answer.error.is_none(), "{answer:?}");
    let text = std::fs::read_to_string(&path).expect("written");
    assert!(text.contains("CREATE TABLE written") && text.contains("192.0.2.7"), "{text}");
}
