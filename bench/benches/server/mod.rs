//! A database in this process and one session on it, as the server runs statements, without the
//! socket.
//!
//! # Invariants
//! What is timed runs from bound parameters to the encoded reply: transaction, plan from its cache,
//! execution, encoding of the rows in binary, end of the transaction.

use std::path::Path;
use std::sync::Arc;

use async_trait::async_trait;
use telesto::LogKind;
use telesto::open::{Opened, Options, open};
use telesto_server::wire::backend::Output;
use telesto_server::wire::values;
use telesto_sql::{Datum, Prepared, ResultSink, Rows, Session, StatementResult};

struct Discard;

#[async_trait]
impl ResultSink for Discard {
    async fn result(&mut self, result: StatementResult) -> telesto_sql::Result<()> {
        if let StatementResult::Rows { rows, .. } = result {
            rows.collect().await?;
        }
        Ok(())
    }
}

/// Opens a database in `folder` with the quorum log of one server, the default of `telesto start`.
pub async fn database(folder: &Path, memory_bytes: u64) -> Opened {
    let mut options = Options::new(format!("file://{}", folder.join("bucket").display()));
    options.log = Some(LogKind::Quorum);
    options.data_dir = Some(folder.join("node"));
    options.memory_bytes = memory_bytes;
    open(&telesto_runtime::env(), &options).await.unwrap()
}

/// Runs `sql` by the simple protocol and drops its rows.
pub async fn run(session: &mut Session, sql: &str) {
    session.execute_simple(sql, &mut Discard).await.unwrap();
}

/// Executes a prepared statement and encodes its reply; the number of rows.
pub async fn reply(
    session: &mut Session,
    prepared: &Arc<Prepared>,
    parameters: Vec<Datum>,
    output: &mut Output,
) -> usize {
    output.truncate(0);
    output.bind_complete();
    let count = match session.execute(prepared, parameters).await.unwrap() {
        StatementResult::Rows { columns, rows, tag } => {
            let rows = match rows {
                Rows::Ready(rows) => rows,
                stream => stream.collect().await.unwrap(),
            };
            let style = values::style(session.settings(), 0);
            for row in &rows {
                output
                    .data_row(columns.len(), |at, out| {
                        values::write(&row[at], &columns[at].ty, 1, &style, out)
                    })
                    .unwrap();
            }
            output.command_complete(&format!("{tag} {}", rows.len()));
            rows.len()
        }
        StatementResult::Command { tag } => {
            output.command_complete(&tag);
            0
        }
        _ => panic!("rows or a command were expected"),
    };
    session.sync().await.unwrap();
    count
}
