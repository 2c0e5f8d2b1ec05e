//! Conflicts in the user's words: which transaction, which row.

use telesto_common::DatabaseId;
use telesto_common::key::{Direction, KeyReader};

use super::Session;
use crate::catalog::CatalogSnapshot;
use crate::codec::read_datum_key;
use crate::error::Error;
use crate::types::TextStyle;

impl Session {
    /// Adds to a conflict's error the other transaction and the row; other errors pass unchanged.
    pub(super) fn explain_conflict(&self, error: Error) -> Error {
        let Some(conflict) = error.conflict().cloned() else { return error };
        let place = self
            .catalog
            .as_ref()
            .and_then(|catalog| describe_key(catalog, &conflict.key))
            .unwrap_or_else(|| "the catalog or a key that is no table's".to_owned());
        let mut error = error.detail(format!(
            "Transaction {} committed a change of {place} after transaction {} had read or written it.",
            conflict.other, conflict.txn
        ));
        if let Some(catalog) = &self.catalog
            && let Some(table) = table_of(catalog, &conflict.key)
        {
            error = error.table(catalog.schema_name(table.schema), table.name.clone());
        }
        error
    }
}

fn table_of<'a>(catalog: &'a CatalogSnapshot, key: &[u8]) -> Option<&'a crate::catalog::Table> {
    let (database, storage, _) = KeyReader::new(key).prefix().ok()?;
    (database == catalog.database)
        .then(|| catalog.tables().find(|table| table.storage == storage))?
        .map(|table| &**table)
}

/// `table "t", row (id)=(5)`.
fn describe_key(catalog: &CatalogSnapshot, key: &[u8]) -> Option<String> {
    let mut reader = KeyReader::new(key);
    let (database, _, index) = reader.prefix().ok()?;
    if database == DatabaseId(0) {
        return Some("the catalog (a table definition or a sequence)".to_owned());
    }
    let table = table_of(catalog, key)?;
    let name = format!("table \"{}\"", table.name);
    let Some(index) = table.index(index) else {
        return Some(match reader.i64(Direction::Ascending) {
            Ok(row) => format!("{name}, row number {row}"),
            Err(_) => name,
        });
    };
    let mut names = Vec::new();
    let mut values = Vec::new();
    for column in &index.columns {
        let definition = &table.columns[column.column];
        let value = read_datum_key(&mut reader, &definition.ty, column.direction).ok()?;
        names.push(definition.name.clone());
        values.push(if value.is_null() {
            "null".to_owned()
        } else {
            value.to_text(&definition.ty, &TextStyle::default())
        });
    }
    Some(format!("{name}, row ({})=({})", names.join(", "), values.join(", ")))
}
