//! REINDEX.

use super::words::Words;
use super::{Definition, ReindexOf};
use telesto_sql_types::error::{Error, Result};

impl Words<'_> {
    /// What follows REINDEX.
    pub fn reindex(&mut self) -> Result<Definition> {
        let mut concurrently = false;
        if self.symbol("(") {
            loop {
                if self.words(&["CONCURRENTLY"]) {
                    concurrently = self.switch();
                } else if self.words(&["VERBOSE"]) {
                    self.switch();
                } else if self.words(&["TABLESPACE"]) {
                    return Err(Error::unsupported("REINDEX (TABLESPACE …)"));
                } else {
                    return Err(self.unexpected());
                }
                if !self.symbol(",") {
                    break;
                }
            }
            self.expect_symbol(")")?;
        }
        let table = if self.words(&["TABLE"]) {
            true
        } else if self.words(&["INDEX"]) {
            false
        } else {
            let of = if self.words(&["SCHEMA"]) {
                ReindexOf::Schema
            } else if self.words(&["DATABASE"]) {
                ReindexOf::Database
            } else if self.words(&["SYSTEM"]) {
                ReindexOf::System
            } else {
                return Err(self.unexpected());
            };
            concurrently |= self.words(&["CONCURRENTLY"]);
            return Ok(Definition::ReindexAll { of, concurrently, name: self.identifier()? });
        };
        concurrently |= self.words(&["CONCURRENTLY"]);
        Ok(Definition::Reindex { table, concurrently, name: self.object_name()? })
    }

    /// The value of an option that is on or off; on without one.
    fn switch(&mut self) -> bool {
        for off in ["FALSE", "OFF"] {
            if self.words(&[off]) {
                return false;
            }
        }
        let _ = self.words(&["TRUE"]) || self.words(&["ON"]);
        true
    }
}
