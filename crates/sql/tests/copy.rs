//! COPY through a session.

use std::sync::Arc;

use async_trait::async_trait;
use futures::TryStreamExt;
use telesto_sql::{Error, ResultSink, SessionOptions, SqlEngine, SqlOptions, StatementResult};
use telesto_txn::memory::MemoryDatabase;

/// Feeds COPY FROM and keeps what COPY TO gives.
struct Pipe {
    input: &'static [u8],
    output: Vec<u8>,
    copied: u64,
}

#[async_trait]
impl ResultSink for Pipe {
    async fn result(&mut self, result: StatementResult) -> Result<(), Error> {
        match result {
            StatementResult::CopyIn { mut target, .. } => {
                for piece in self.input.chunks(5) {
                    target.data(bytes::Bytes::from_static(piece)).await?;
                }
                self.copied = target.finish().await?;
            }
            StatementResult::CopyOut { data, .. } => {
                let lines: Vec<bytes::Bytes> = data.try_collect().await?;
                self.output = lines.concat();
            }
            StatementResult::Rows { rows, .. } => {
                rows.collect().await?;
            }
            _ => {}
        }
        Ok(())
    }
}

async fn run(sql: &[&str], input: &'static [u8]) -> Result<Pipe, Error> {
    let env = telesto_runtime::env();
    let database = Arc::new(MemoryDatabase::new(env.clone()));
    let engine = SqlEngine::open(database, env, SqlOptions::default()).await?;
    let mut session = engine.session(SessionOptions::default()).await?;
    let mut pipe = Pipe { input, output: Vec::new(), copied: 0 };
    for statement in sql {
        session.execute_simple(statement, &mut pipe).await?;
    }
    Ok(pipe)
}

const TABLE: &str = "create table t (id int primary key, name text, n numeric(8,2))";

#[tokio::test]
async fn copy_in_text_then_out_csv_gives_the_rows() {
    let input = b"1\tone\t1.5\n2\t\\N\t\\N\n3\ta,\"b\\tc\t-2\n";
    let pipe = run(
        &[
            TABLE,
            "copy t from stdin",
            "copy (select * from t order by id) to stdout with (format csv, header)",
        ],
        input,
    )
    .await
    .expect("copies");
    assert_eq!(pipe.copied, 3);
    let text = String::from_utf8(pipe.output).expect("UTF-8");
    assert_eq!(text, "id,name,n\n1,one,1.50\n2,,\n3,\"a,\"\"b\tc\",-2.00\n");
}

#[tokio::test]
async fn copy_in_with_a_missing_column_names_the_line() {
    let failed = run(&[TABLE, "copy t from stdin"], b"1\tone\t1\n2\ttwo\n").await;
    let error = failed.err().expect("refused");
    assert_eq!(error.code().0, "22P04");
    assert_eq!(error.fields().context.as_deref(), Some("COPY t, line 2"));
}
