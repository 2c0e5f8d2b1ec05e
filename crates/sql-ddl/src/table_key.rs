//! `ALTER TABLE … SET (telesto.key = 'name')`: with which key the rows of a table are sealed.
//!
//! # Invariants
//! - Under another name (or none) than before every row is written anew, to another place: a table
//!   with a key has sealed rows alone.
//! - The same name again is a rotation: new rows are sealed with the newest epoch, the others stay
//!   as they are.
//! - Whoever sets a key is told which columns it does not hide.
//!
//! # On failure
//! 22023 for what is no name, 55000 for a key that is not at hand, 58030 when the bucket does not
//! say, 0A000 for temporary tables and in databases of several regions.

use telesto_bucket::Error as BucketError;
use telesto_cipher::check_table_key_name;
use telesto_sql_catalog::temp::is_temporary;
use telesto_sql_catalog::{Index, Table, TableKey};
use telesto_sql_types::error::{Error, Result, SqlState};

use super::Ddl;

/// The setting's name.
pub(super) const KEY: &str = "telesto.key";

impl Ddl<'_> {
    /// Takes the setting from a list of settings (`None`: rows in clear again). `fresh`: the table
    /// has no rows yet.
    pub(super) async fn encrypt(
        &mut self,
        table: &mut Table,
        settings: &[(String, Option<String>)],
        fresh: bool,
    ) -> Result<()> {
        for (_, value) in settings.iter().filter(|(name, _)| name == KEY) {
            let key = match value.as_deref() {
                None => None,
                Some(name) => Some(self.key_named(table, name).await?),
            };
            let name = |key: &Option<TableKey>| key.as_ref().map(|key| key.name.clone());
            let before = table.clone();
            table.key = key;
            if !fresh && name(&before.key) != name(&table.key) {
                self.rewrite_from(table, before);
                let indexes: Vec<Index> = table.known_indexes().cloned().collect();
                self.note_key_columns(table, &indexes);
            }
        }
        Ok(())
    }

    /// The settings of CREATE TABLE.
    pub(super) async fn settings_of_new(
        &mut self,
        table: &mut Table,
        settings: &[(String, Option<String>)],
    ) -> Result<()> {
        if let Some((name, _)) = settings.iter().find(|(name, _)| name != KEY) {
            return Err(Error::unsupported(format!("{name} in CREATE TABLE"))
                .hint(format!("ALTER TABLE … SET ({name} = …) sets it.")));
        }
        self.encrypt(table, settings, true).await?;
        if !settings.is_empty() {
            let indexes: Vec<Index> = table.known_indexes().cloned().collect();
            self.note_key_columns(table, &indexes);
        }
        Ok(())
    }

    async fn key_named(&self, table: &Table, name: &str) -> Result<TableKey> {
        check_table_key_name(name)
            .map_err(|reason| Error::new(SqlState::INVALID_PARAMETER_VALUE, reason))?;
        if is_temporary(table.id.0) {
            return Err(Error::unsupported("a temporary table with a key")
                .hint("Its rows do not leave its node: what is spilled is encrypted where a key file is given."));
        }
        if self.catalog().is_regional() {
            return Err(Error::unsupported("a table with a key in a database of several regions"));
        }
        let not_here = |reason: String| {
            Error::new(
                SqlState::OBJECT_NOT_IN_PREREQUISITE_STATE,
                format!("key \"{name}\" cannot be used here: {reason}"),
            )
        };
        let Some(keys) = &self.keys else {
            return Err(not_here("this process has no keys of tables".to_owned()));
        };
        let epoch = keys.newest(name).await.map_err(|error| match error {
            BucketError::TableKey { reason, .. } => not_here(reason).hint(format!(
                "telesto keys create FILE --name {name} --for-tables adds a key to a key file; give it to the nodes with --encryption-key-file. A name that was dropped is not used again."
            )),
            error => Error::new(SqlState::IO_ERROR, format!("key \"{name}\": {error}")),
        })?;
        let at_hand = keys.at_hand(name, epoch).await;
        if !at_hand.has(epoch) {
            let why =
                at_hand.closed().map_or_else(|| "try again".to_owned(), |why| why.to_string());
            return Err(not_here(why));
        }
        Ok(TableKey { name: name.to_owned(), epoch, keys: Some(at_hand) })
    }

    /// Says which columns of `indexes` stand in keys, which the table's key does not hide.
    pub(super) fn note_key_columns(&self, table: &Table, indexes: &[Index]) {
        if table.key.is_none() {
            return;
        }
        let mut shown: Vec<String> = Vec::new();
        for column in indexes.iter().flat_map(|index| &index.columns) {
            let name = column.name(table);
            if !shown.iter().any(|known| known == name) {
                shown.push(name.to_owned());
            }
        }
        if !shown.is_empty() {
            self.context.notices.notice(format!(
                "the key of table \"{}\" does not hide what is in primary keys and indexes: {}",
                table.name,
                shown.join(", ")
            ));
        }
    }
}
