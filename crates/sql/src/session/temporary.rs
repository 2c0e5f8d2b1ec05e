//! The store of a session's temporary relations: made by the statement that asks for the first,
//! emptied by DISCARD TEMP.
//!
//! # On failure
//! The store is charged to the memory of statements: where that is used up the statement is
//! refused, and none is made.
//!
//! # Limits
//! Texts of definitions are looked through for words: one that only says "temp" makes a store that
//! stays empty.

use std::sync::Arc;

use super::Session;
use crate::error::Result;
use crate::sqlparser::ast::{CreateTable, ObjectName, Query, SetExpr, Statement};
use crate::temp::TempStore;
use crate::temp::transaction::WithTemp;

/// Whether a statement makes something temporary.
fn asks_for_temporary(statement: &Statement) -> bool {
    fn named(name: &ObjectName) -> bool {
        name.0.len() > 1
            && name
                .0
                .first()
                .and_then(|part| part.as_ident())
                .is_some_and(|schema| crate::expr::fold(schema) == "pg_temp")
    }
    fn into(query: &Query) -> bool {
        matches!(&*query.body, SetExpr::Select(select)
            if select.into.as_ref().is_some_and(|into| into.temporary || named(&into.name)))
    }
    match statement {
        Statement::CreateTable(CreateTable { temporary, name, .. }) => *temporary || named(name),
        Statement::CreateView(create) => create.temporary || named(&create.name),
        Statement::Query(query) => into(query),
        statement => crate::definition::text(statement).is_some_and(|text| {
            let text = text.to_ascii_lowercase();
            let mut words = text.split_whitespace();
            words.next() == Some("create")
                && (words.any(|word| matches!(word, "temp" | "temporary"))
                    || text.contains("pg_temp"))
        }),
    }
}

impl Session {
    /// Makes the session's store of temporary relations, if `statement` asks for the first.
    pub(super) fn prepare_temp(&mut self, statement: &Statement) -> Result<()> {
        if self.temp.is_some() || !asks_for_temporary(statement) {
            return Ok(());
        }
        let temp = TempStore::new(&self.engine.memory)?;
        if let Some(block) = &mut self.block
            && let Some(txn) = block.txn.take()
        {
            block.txn = Some(WithTemp::over(txn, Arc::clone(&temp)));
        }
        self.temp = Some(temp);
        Ok(())
    }

    /// DISCARD TEMP.
    pub(super) async fn discard_temp(&mut self) -> Result<()> {
        let Some(temp) = self.temp.clone() else { return Ok(()) };
        // A block's transaction may not have begun: without it nothing would undo this at ROLLBACK.
        if self.block.is_some() {
            self.transaction().await?;
        }
        if let Some(block) = &mut self.block {
            // It is no step: executed again after a conflict, the block would come without it.
            block.repeatable = false;
        }
        temp.clear(self.block.is_some())
    }
}
