//! The catalog that a statement goes by.
//!
//! # Invariants
//! - A block never reads by a definition what it has written by an older one: its next statement
//!   fails with 40001.
//!
//! # Failure behaviour and limits
//! Whether others have changed something is asked only when the catalog is another one than that of
//! the block's statement before, and only of a block that has written.

use std::sync::Arc;

use futures::FutureExt as _;
use telesto_txn::Transaction;

use super::Session;
use crate::catalog::CatalogSnapshot;
use crate::error::Result;

impl Session {
    /// The catalog as `txn` sees it, with what is temporary.
    pub(super) async fn read_catalog(
        &self,
        txn: &Arc<dyn Transaction>,
    ) -> Result<Arc<CatalogSnapshot>> {
        let shared = self.engine.catalogs.read(txn, self.engine.database_id).await?;
        match &self.temp {
            Some(temp) => crate::temp::catalog::merged(
                shared,
                temp,
                crate::catalog::Owner(self.settings.current_role),
            ),
            None => Ok(shared),
        }
    }

    /// The catalog that the next statement of a block goes by. Under READ COMMITTED it may be newer
    /// than that of the statements before. What those have written lacks what a newer definition
    /// asks for (entries of an index, another form of the rows), so a block that has written fails
    /// here, as it would at its commit, instead of reading by the new definition what was written
    /// by the old.
    ///
    /// # Errors
    /// Those of [`Session::read_catalog`]; 40001 when others have changed definitions since the
    /// block wrote.
    pub(super) async fn catalog_of_statement(
        &mut self,
        txn: &Arc<dyn Transaction>,
    ) -> Result<Arc<CatalogSnapshot>> {
        let catalog = self.read_catalog(txn).await?;
        let Some(block) = &mut self.block else { return Ok(catalog) };
        let before = block.stamp.replace(catalog.stamp);
        if before.is_some_and(|before| before != catalog.stamp)
            && block.options.level.is_by_statement()
            && txn.has_written()
        {
            txn.confirm().boxed().await?;
        }
        Ok(catalog)
    }
}
