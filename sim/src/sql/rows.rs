//! Results as text, for the clients of the simulation.

use std::sync::Arc;

use async_trait::async_trait;
use telesto_sql::catalog::CatalogSnapshot;
use telesto_sql::expr::{EvalContext, cast};
use telesto_sql::session::Settings;
use telesto_sql::{Datum, Error, ResultSink, Session, StatementResult};

/// A row; `None` is NULL.
pub(crate) type TextRow = Vec<Option<String>>;

/// Keeps the rows and the tag of the last statement.
#[derive(Debug, Default)]
pub(crate) struct Collected {
    pub(crate) rows: Vec<TextRow>,
    pub(crate) tag: String,
}

#[async_trait]
impl ResultSink for Collected {
    async fn result(&mut self, result: StatementResult) -> Result<(), Error> {
        let (columns, rows) = match result {
            StatementResult::Rows { columns, rows, .. } => (columns, rows.collect().await?),
            StatementResult::Command { tag } => {
                self.tag = tag;
                return Ok(());
            }
            _ => return Ok(()),
        };
        let settings = Settings::default();
        let catalog = Arc::new(CatalogSnapshot::default());
        let context = EvalContext::planning(&settings, &catalog);
        self.rows.clear();
        for row in rows {
            let mut cells = Vec::with_capacity(row.len());
            for (value, column) in row.iter().zip(columns.iter()) {
                cells.push(match value {
                    Datum::Null => None,
                    value => Some(cast::output(value, &column.ty, &context)?),
                });
            }
            self.rows.push(cells);
        }
        Ok(())
    }
}

/// Runs `sql`; what its last statement gave.
pub(crate) async fn run(session: &mut Session, sql: &str) -> Result<Collected, Error> {
    let mut collected = Collected::default();
    session.execute_simple(sql, &mut collected).await?;
    Ok(collected)
}
