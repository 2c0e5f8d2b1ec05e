//! COPY FROM STDIN: rows into a table through one prepared INSERT.

use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;

use super::lines::{Decoder, Field};
use super::options::Options;
use crate::catalog::Table;
use crate::error::{Error, Result, SqlState};
use crate::exec::KeyPlan;
use crate::expr::context::EvalContext;
use crate::plan::{ExecContext, ParameterTypes, PlanContext};
use crate::session::CopyInTarget;
use crate::sqlparser::ast::{Ident, ObjectName};
use crate::sqlparser::dialect::PostgreSqlDialect;
use crate::sqlparser::parser::Parser;
use crate::types::{Datum, SqlType};

/// The receiving end of COPY FROM STDIN.
pub(super) struct CopyIn {
    insert: Arc<KeyPlan>,
    context: ExecContext,
    decoder: Decoder,
    table: String,
    columns: Vec<(String, SqlType)>,
    rows: u64,
}

impl CopyIn {
    /// Plans the INSERT.
    pub async fn prepare(
        table: Arc<Table>,
        name: &ObjectName,
        chosen: Vec<usize>,
        options: Options,
        context: &ExecContext,
    ) -> Result<Self> {
        let columns: Vec<(String, SqlType)> = chosen
            .iter()
            .map(|at| (table.columns[*at].name.clone(), table.columns[*at].ty.clone()))
            .collect();
        let names: Vec<String> = columns
            .iter()
            .map(|(name, _)| Ident::with_quote('"', name.as_str()).to_string())
            .collect();
        let marks: Vec<String> = (1..=columns.len()).map(|n| format!("${n}")).collect();
        let sql =
            format!("INSERT INTO {name} ({}) VALUES ({})", names.join(", "), marks.join(", "));
        let statement = Parser::parse_sql(&PostgreSqlDialect {}, &sql)
            .ok()
            .and_then(|parsed| parsed.into_iter().next())
            .ok_or_else(|| Error::internal("the INSERT of COPY does not parse"))?;
        let types: Vec<Option<SqlType>> = columns.iter().map(|(_, ty)| Some(ty.clone())).collect();
        let mut parameters = ParameterTypes::new(&types);
        let insert = crate::exec::plan(
            &statement,
            &mut PlanContext {
                catalog: &context.catalog,
                settings: &context.settings,
                parameters: &mut parameters,
                txn: Some(&context.txn),
                env: &context.env,
            },
        )
        .await?
        .ok_or_else(|| Error::internal("INSERT is planned on the key path"))?;
        Ok(Self {
            insert,
            context: context.clone(),
            decoder: Decoder::new(options),
            table: table.name.clone(),
            columns,
            rows: 0,
        })
    }

    /// Number of columns.
    pub fn width(&self) -> usize {
        self.columns.len()
    }

    async fn drain(&mut self, last: bool) -> Result<()> {
        loop {
            let row =
                self.decoder.next_row(last).map_err(|e| self.placed(e, self.decoder.line() + 1))?;
            let Some(fields) = row else { return Ok(()) };
            self.context.check_cancelled()?;
            let line = self.decoder.line();
            let values = self.values(fields).map_err(|error| self.placed(error, line))?;
            let context = ExecContext { parameters: values.into(), ..self.context.clone() };
            self.insert.execute(&context).await.map_err(|error| self.placed(error, line))?;
            self.rows += 1;
        }
    }

    fn placed(&self, error: Error, line: u64) -> Error {
        if error.fields().context.is_some() {
            return error;
        }
        error.context(format!("COPY {}, line {line}", self.table))
    }

    fn values(&self, fields: Vec<Field>) -> Result<Vec<Datum>> {
        if fields.len() > self.columns.len() {
            return Err(Error::new(
                SqlState::BAD_COPY_FILE_FORMAT,
                "extra data after last expected column",
            ));
        }
        if let Some((missing, _)) = self.columns.get(fields.len()) {
            return Err(Error::new(
                SqlState::BAD_COPY_FILE_FORMAT,
                format!("missing data for column \"{missing}\""),
            ));
        }
        let eval = EvalContext::executing(&self.context);
        fields
            .into_iter()
            .zip(&self.columns)
            .map(|(field, (name, ty))| match field {
                None => Ok(Datum::Null),
                Some(text) => crate::expr::cast::input(&text, ty, &eval)
                    .and_then(|v| crate::expr::cast::fit(v, ty))
                    .map_err(|error| {
                        let line = self.decoder.line();
                        error.context(format!(
                            "COPY {}, line {line}, column {name}: \"{text}\"",
                            self.table
                        ))
                    }),
            })
            .collect()
    }
}

#[async_trait]
impl CopyInTarget for CopyIn {
    async fn data(&mut self, data: Bytes) -> Result<()> {
        // Large pieces are taken apart so that a row is done before the next is held.
        for piece in data.chunks(64 << 10) {
            self.decoder.feed(piece)?;
            self.drain(false).await?;
        }
        Ok(())
    }

    async fn finish(&mut self) -> Result<u64> {
        self.drain(true).await?;
        Ok(self.rows)
    }
}
