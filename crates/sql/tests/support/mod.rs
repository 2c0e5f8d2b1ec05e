//! The two sides that answers are compared on: a session over an in-memory database, and a real
//! PostgreSQL 15.
#![allow(dead_code, reason = "each test program uses a part of it")]

use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;

use async_trait::async_trait;
use telesto_sql::catalog::CatalogSnapshot;
use telesto_sql::expr::{EvalContext, cast};
use telesto_sql::{
    Datum, Error, ResultSink, Session, SessionOptions, SqlEngine, SqlOptions, StatementResult,
};
use telesto_txn::memory::MemoryDatabase;

/// Asked of cargo as it runs: clones that share a build folder share the compiled test too.
pub fn crate_dir() -> PathBuf {
    std::env::var("CARGO_MANIFEST_DIR").expect("run by cargo").into()
}

/// A column of a result: its name and the OID of its type.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Column {
    pub name: String,
    pub oid: u32,
}

/// Rows as text; `None` is NULL.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Table {
    pub columns: Vec<Column>,
    pub rows: Vec<Vec<Option<String>>>,
}

/// Keeps what the last statement gave.
#[derive(Default)]
pub struct Collected {
    pub table: Option<Table>,
    /// The number in the command tag, or of rows sent.
    pub count: Option<u64>,
}

#[async_trait]
impl ResultSink for Collected {
    async fn result(&mut self, result: StatementResult) -> Result<(), Error> {
        let (columns, rows) = match result {
            StatementResult::Rows { columns, rows, .. } => (columns, rows.collect().await?),
            StatementResult::Command { tag } => {
                self.count = tag.rsplit(' ').next().and_then(|last| last.parse().ok());
                return Ok(());
            }
            _ => return Ok(()),
        };
        let settings = telesto_sql::session::Settings::default();
        let catalog = Arc::new(CatalogSnapshot::default());
        let context = EvalContext::planning(&settings, &catalog);
        let mut table = Table {
            columns: columns
                .iter()
                .map(|column| Column { name: column.name.clone(), oid: column.ty.oid() })
                .collect(),
            rows: Vec::new(),
        };
        self.count = Some(rows.len() as u64);
        for row in rows {
            let mut cells = Vec::new();
            for (value, column) in row.iter().zip(columns.iter()) {
                cells.push(match value {
                    Datum::Null => None,
                    value => Some(cast::output(value, &column.ty, &context)?),
                });
            }
            table.rows.push(cells);
        }
        self.table = Some(table);
        Ok(())
    }
}

/// A database of its own in memory.
pub async fn engine() -> Result<Arc<SqlEngine>, Error> {
    let env = telesto_runtime::env();
    let database = Arc::new(MemoryDatabase::new(env.clone()));
    SqlEngine::open(database, env, SqlOptions::default()).await
}

/// A session over a database of its own in memory.
pub async fn session() -> Result<Session, Error> {
    engine().await?.session(SessionOptions::default()).await
}

/// A private PostgreSQL 15, stopped when dropped.
pub struct Server(u16);

impl Server {
    fn script() -> PathBuf {
        crate_dir().join("../../tests/servers/postgres.sh")
    }

    pub fn start() -> Self {
        let probe = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
        let port = probe.local_addr().expect("a bound port").port();
        drop(probe);
        let status = Command::new("sh")
            .arg(Self::script())
            .args(["start", &port.to_string()])
            // Many small queries whose estimates are large: compiling them took a tenth of the time
            // of all.
            .env("JIT", "off")
            .stdout(std::process::Stdio::null())
            .status()
            .expect("sh runs");
        assert!(status.success(), "PostgreSQL 15 does not start");
        Self(port)
    }

    pub async fn connect(
        &self,
        database: &str,
    ) -> Result<tokio_postgres::Client, tokio_postgres::Error> {
        let url = format!(
            "host=127.0.0.1 port={} user=postgres dbname={database} sslmode=disable",
            self.0
        );
        let (client, connection) = tokio_postgres::connect(&url, tokio_postgres::NoTls).await?;
        tokio::spawn(connection);
        Ok(client)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let stopped =
            Command::new("sh").arg(Self::script()).args(["stop", &self.0.to_string()]).status();
        assert!(stopped.is_ok_and(|status| status.success()), "PostgreSQL does not stop");
    }
}
