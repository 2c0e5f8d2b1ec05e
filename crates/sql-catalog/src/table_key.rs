//! The key that a table's rows are sealed with.
//!
//! # Invariants
//! - The definition says name and epoch; the keys themselves are attached when a catalog is read
//!   ([`crate::CatalogCache`]) and are never stored with it.
//! - Two definitions are the same if name and epoch are.
//!
//! # On failure
//! 55000 when the key is not at hand, with table, key and reason; XX001 when a row is damaged.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use telesto_cipher::{Closed, RowError, RowKeys};
use telesto_sql_types::error::{Error, Result, SqlState};

/// A named key with the epoch that new rows are sealed with.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct TableKey {
    /// Its name in key files.
    pub name: String,
    /// The epoch.
    pub epoch: u32,
    /// The keys as this process has them; `None`: it has none of any name.
    #[serde(skip)]
    pub keys: Option<Arc<RowKeys>>,
}

impl PartialEq for TableKey {
    fn eq(&self, other: &Self) -> bool {
        (&self.name, self.epoch) == (&other.name, other.epoch)
    }
}

impl Eq for TableKey {}

impl TableKey {
    fn failed(&self, table: &str, error: RowError) -> Error {
        let closed = match error {
            RowError::Closed(why) => why,
            RowError::UnknownEpoch(epoch) if (1..=self.epoch).contains(&epoch) => {
                Closed::Unread(format!("epoch {epoch} has not been read yet"))
            }
            error => return Error::corrupt(format!("a row of table \"{table}\": {error}")),
        };
        let hint = match &closed {
            Closed::NotHere => {
                "Connect to a node whose key file has it, or add its line to this node's key file and restart the node."
            }
            Closed::Dropped => "TRUNCATE or DROP TABLE removes what is left of the table.",
            Closed::Unread(_) => "It is tried again within a minute; the node's log says more.",
        };
        Error::new(
            SqlState::OBJECT_NOT_IN_PREREQUISITE_STATE,
            format!(
                "table \"{table}\" is encrypted with key \"{}\", which cannot be used here: {closed}",
                self.name
            ),
        )
        .hint(hint)
    }

    fn keys(&self, table: &str) -> Result<&RowKeys> {
        self.keys.as_deref().ok_or_else(|| self.failed(table, Closed::NotHere.into()))
    }

    /// Whether this process can seal and open with it.
    #[must_use]
    pub fn is_at_hand(&self) -> bool {
        self.keys.as_ref().is_some_and(|keys| keys.closed().is_none())
    }

    /// Appends the sealed form of a row of `table` to `out`, to stand under `place`.
    ///
    /// # Errors
    /// 55000.
    pub(crate) fn seal(
        &self,
        table: &str,
        place: &[u8],
        row: &[u8],
        out: &mut Vec<u8>,
    ) -> Result<()> {
        let sealed = self.keys(table)?.seal(self.epoch, place, row, out);
        sealed.map_err(|error| self.failed(table, error))
    }

    /// The row of `table` that was sealed to stand under `place`.
    ///
    /// # Errors
    /// 55000, XX001.
    pub(crate) fn open(&self, table: &str, place: &[u8], sealed: &[u8]) -> Result<Vec<u8>> {
        let opened = self.keys(table)?.open(place, sealed);
        opened.map_err(|error| self.failed(table, error))
    }
}
