//! The sqllogictest files of `tests/slt`, through a session over an in-memory database.
//!
//! The files of `tests/slt/pg` hold answers of PostgreSQL 15; the same runner takes them to a real
//! one as well, so that the files themselves are known to be right.
#![allow(
    clippy::disallowed_methods,
    reason = "a test is an outermost layer: it talks to a real server through tokio"
)]

mod support;

use std::path::PathBuf;

use async_trait::async_trait;
use sqllogictest::{AsyncDB, DBOutput, DefaultColumnType, Runner};
use support::{Collected, Server, crate_dir};
use telesto_sql::{Error, Session};

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
        Ok(output(sink.table.map(|table| {
            let rows = table.rows.into_iter().map(|row| row.into_iter().map(cell).collect());
            (table.columns.len(), rows.collect())
        })))
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
    support::session().await.map(Telesto)
}

/// A session that runs each text as a known one, from its first time on, by operators for any
/// values.
async fn knowing_session() -> Result<Telesto, Error> {
    let mut session = support::session().await?;
    for sql in ["SET telesto.text_cache = eager", "SET plan_cache_mode = force_generic_plan"] {
        session.execute_simple(sql, &mut Collected::default()).await?;
    }
    Ok(Telesto(session))
}

async fn on_telesto<F: Future<Output = Result<Telesto, Error>> + Send>(
    folder: &str,
    session: impl Fn() -> F + Copy + Send,
) {
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
    on_telesto("pg", session).await;
}

#[tokio::test]
async fn files_hold_where_texts_are_known_from_their_first_time_on() {
    on_telesto("pg", knowing_session).await;
    on_telesto("telesto", knowing_session).await;
}

#[tokio::test]
async fn files_of_telesto_alone_hold() {
    on_telesto("telesto", session).await;
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

#[tokio::test]
async fn files_with_answers_of_postgres_hold_on_postgres() {
    let server = Server::start();
    for (number, file) in files("pg").into_iter().enumerate() {
        let database = format!("slt{number}");
        let admin = server.connect("postgres").await.unwrap();
        admin.simple_query(&format!("create database {database}")).await.unwrap();
        let mut runner = Runner::new(async || server.connect(&database).await.map(Postgres));
        if let Err(error) = runner.run_file_async(&file).await {
            panic!("{error}");
        }
    }
}
