//! The sqllogictest files of `tests/slt`, through a session over an in-memory database.
//!
//! The files of `tests/slt/pg` hold answers of PostgreSQL 15; the same runner takes them to a real one as well, so that
//! the files themselves are known to be right.
#![allow(
    clippy::disallowed_methods,
    reason = "a test is an outermost layer: it talks to a real server through tokio"
)]

use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;

use async_trait::async_trait;
use sqllogictest::{AsyncDB, DBOutput, DefaultColumnType, Runner};
use telesto_sql::catalog::CatalogSnapshot;
use telesto_sql::expr::{EvalContext, cast};
use telesto_sql::{
    Datum, Error, ResultSink, Session, SessionOptions, SqlEngine, SqlOptions, StatementResult,
};
use telesto_txn::memory::MemoryDatabase;

/// Asked of cargo as it runs: clones that share a build folder share the compiled test too.
fn crate_dir() -> PathBuf {
    std::env::var("CARGO_MANIFEST_DIR").expect("run by cargo").into()
}

fn files(folder: &str) -> Vec<PathBuf> {
    let root = crate_dir().join("../../tests/slt").join(folder);
    let mut out: Vec<PathBuf> = std::fs::read_dir(&root)
        .unwrap_or_else(|error| panic!("{}: {error}", root.display()))
        .map(|entry| entry.expect("a readable folder").path())
        .filter(|path| path.extension().is_some_and(|ext| ext == "slt"))
        .collect();
    out.sort();
    assert!(!out.is_empty(), "no files in {}", root.display());
    out
}

fn cell(text: Option<String>) -> String {
    match text {
        None => "NULL".to_owned(),
        Some(text) if text.is_empty() => "(empty)".to_owned(),
        Some(text) => text,
    }
}

/// A session as sqllogictest sees it.
struct Telesto(Session);

/// Keeps what the last statement gave.
#[derive(Default)]
struct Collected {
    rows: Option<(usize, Vec<Vec<String>>)>,
}

#[async_trait]
impl ResultSink for Collected {
    async fn result(&mut self, result: StatementResult) -> Result<(), Error> {
        let StatementResult::Rows { columns, rows, .. } = result else { return Ok(()) };
        let rows = rows.collect().await?;
        let settings = telesto_sql::session::Settings::default();
        let catalog = Arc::new(CatalogSnapshot::default());
        let context = EvalContext::planning(&settings, &catalog);
        let mut out = Vec::new();
        for row in rows {
            let mut cells = Vec::new();
            for (value, column) in row.iter().zip(columns.iter()) {
                cells.push(cell(match value {
                    Datum::Null => None,
                    value => Some(cast::output(value, &column.ty, &context)?),
                }));
            }
            out.push(cells);
        }
        self.rows = Some((columns.len(), out));
        Ok(())
    }
}

fn output(rows: Option<(usize, Vec<Vec<String>>)>) -> DBOutput<DefaultColumnType> {
    match rows {
        None => DBOutput::StatementComplete(0),
        Some((width, rows)) => DBOutput::Rows { types: vec![DefaultColumnType::Any; width], rows },
    }
}

#[async_trait]
impl AsyncDB for Telesto {
    type Error = Error;
    type ColumnType = DefaultColumnType;

    async fn run(&mut self, sql: &str) -> Result<DBOutput<DefaultColumnType>, Error> {
        let mut sink = Collected::default();
        self.0.execute_simple(sql, &mut sink).await?;
        Ok(output(sink.rows))
    }

    async fn shutdown(&mut self) {
        self.0.close();
    }

    fn engine_name(&self) -> &str {
        "telesto"
    }

    fn error_sql_state(error: &Error) -> Option<String> {
        Some(error.code().to_string())
    }
}

async fn session() -> Result<Telesto, Error> {
    let env = telesto_runtime::env();
    let database = Arc::new(MemoryDatabase::new(env.clone()));
    let engine = SqlEngine::open(database, env, SqlOptions::default()).await?;
    Ok(Telesto(engine.session(SessionOptions::default()).await?))
}

async fn on_telesto(folder: &str) {
    let mut failed = Vec::new();
    for file in files(folder) {
        let mut runner = Runner::new(session);
        if let Err(error) = runner.run_file_async(&file).await {
            failed.push(format!("{error}"));
        }
    }
    assert!(failed.is_empty(), "{}", failed.join("\n"));
}

#[tokio::test]
async fn files_with_answers_of_postgres_hold_on_telesto() {
    on_telesto("pg").await;
}

#[tokio::test]
async fn files_of_telesto_alone_hold() {
    on_telesto("telesto").await;
}

/// A connection to a real PostgreSQL.
struct Postgres(tokio_postgres::Client);

#[async_trait]
impl AsyncDB for Postgres {
    type Error = tokio_postgres::Error;
    type ColumnType = DefaultColumnType;

    async fn run(&mut self, sql: &str) -> Result<DBOutput<DefaultColumnType>, Self::Error> {
        use tokio_postgres::SimpleQueryMessage as Message;
        let mut rows = None;
        for message in self.0.simple_query(sql).await? {
            match message {
                Message::RowDescription(columns) => rows = Some((columns.len(), Vec::new())),
                Message::Row(row) => {
                    if let Some((width, rows)) = &mut rows {
                        rows.push(
                            (0..*width).map(|at| cell(row.get(at).map(str::to_owned))).collect(),
                        );
                    }
                }
                _ => {}
            }
        }
        Ok(output(rows))
    }

    async fn shutdown(&mut self) {}

    fn engine_name(&self) -> &str {
        "postgres"
    }

    fn error_sql_state(error: &Self::Error) -> Option<String> {
        error.code().map(|code| code.code().to_owned())
    }
}

/// A private server, stopped when dropped.
struct Server(u16);

impl Server {
    fn script() -> PathBuf {
        crate_dir().join("../../tests/servers/postgres.sh")
    }

    fn start() -> Self {
        let probe = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
        let port = probe.local_addr().expect("a bound port").port();
        drop(probe);
        let status = Command::new("sh")
            .arg(Self::script())
            .args(["start", &port.to_string()])
            .stdout(std::process::Stdio::null())
            .status()
            .expect("sh runs");
        assert!(status.success(), "PostgreSQL 15 does not start");
        Self(port)
    }

    async fn connect(&self, database: &str) -> Result<Postgres, tokio_postgres::Error> {
        let url = format!(
            "host=127.0.0.1 port={} user=postgres dbname={database} sslmode=disable",
            self.0
        );
        let (client, connection) = tokio_postgres::connect(&url, tokio_postgres::NoTls).await?;
        tokio::spawn(connection);
        Ok(Postgres(client))
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let stopped =
            Command::new("sh").arg(Self::script()).args(["stop", &self.0.to_string()]).status();
        assert!(stopped.is_ok_and(|status| status.success()), "PostgreSQL does not stop");
    }
}

#[tokio::test]
async fn files_with_answers_of_postgres_hold_on_postgres() {
    let server = Server::start();
    for (number, file) in files("pg").into_iter().enumerate() {
        let database = format!("slt{number}");
        let admin = server.connect("postgres").await.unwrap();
        admin.0.simple_query(&format!("create database {database}")).await.unwrap();
        let mut runner = Runner::new(|| server.connect(&database));
        if let Err(error) = runner.run_file_async(&file).await {
            panic!("{error}");
        }
    }
}
