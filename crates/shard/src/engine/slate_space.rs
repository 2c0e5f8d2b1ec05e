//! What each index takes in the tables of a checkpoint, told by their indexes.
//!
//! An index names the first key of every block and where it is. Blocks whose keys all are of one
//! place (`crate::row::place`) are counted without being read; of the few that hold the end of one
//! and the begin of the next, the rows are read and share the block's bytes.
//!
//! # Invariants
//! Tables never change: what is known of one is kept until no manifest names it any more.
//!
//! # On failure
//! As any read: a table that was collected meanwhile is [`Fault::Gone`], and the newest checkpoint
//! is asked.
//!
//! # Limits
//! Bytes are those of data blocks as they are stored, without filters, indexes and the table's own
//! metadata. A key that several tables hold counts in each. Asked for the first time, a checkpoint
//! costs one request for each table whose index is in no cache.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures::{StreamExt, TryStreamExt, stream};
use parking_lot::Mutex;
use slatedb::manifest::SsTableView;
use slatedb::{SstFile, SstReader, VersionedManifest};
use telesto_common::Env;

use super::slate::bounded;
use super::witness::{LastRead, witnessed};
use super::{Fault, Outcome, Taken};
use crate::row::{Place, place};

/// Tables asked at a time.
const TABLES_AT_ONCE: usize = 8;

/// What is known of the tables of one checkpoint, shared by all its views.
#[derive(Debug, Default)]
pub(super) struct KnownTables(Mutex<BTreeMap<u128, Arc<Taken>>>);

impl KnownTables {
    /// Bytes of a table at places for which `wanted` holds, as far as it was asked before.
    pub fn bytes(&self, view: &SsTableView, wanted: impl Fn(&Place) -> bool) -> u64 {
        let known = self.0.lock();
        let taken = known.get(&view.sst.id.value().0);
        taken.map_or(0, |taken| {
            taken.iter().filter(|(place, _)| wanted(place)).map(|(_, bytes)| bytes).sum()
        })
    }
}

/// The tables of one checkpoint, to be asked what they hold.
pub(super) struct Tables {
    pub env: Env,
    pub io_timeout: Duration,
    pub reader: SstReader,
    pub known: Arc<KnownTables>,
    pub last_read: LastRead,
}

impl Tables {
    /// What the tables of `manifest` hold.
    pub async fn space(&self, manifest: &VersionedManifest) -> Outcome<Taken> {
        let views: Vec<SsTableView> = manifest.all_sst_views().cloned().collect();
        self.known.0.lock().retain(|id, _| views.iter().any(|view| view.sst.id.value().0 == *id));
        let tables: Vec<Arc<Taken>> = stream::iter(views)
            .map(|view| self.table(view))
            .buffer_unordered(TABLES_AT_ONCE)
            .try_collect()
            .await?;
        let mut all = Taken::new();
        for table in tables {
            for (place, bytes) in table.iter() {
                *all.entry(*place).or_default() += bytes;
            }
        }
        Ok(all)
    }

    async fn table(&self, view: SsTableView) -> Outcome<Arc<Taken>> {
        let file = self.reader.open_with_handle(view.sst).map_err(|e| super::slate::fault(&e))?;
        let known = self.known.0.lock().get(&file.id().0).cloned();
        if let Some(known) = known {
            return Ok(known);
        }
        let taken = self.of_file(&file).await.map_err(|fault| witnessed(fault, &self.last_read))?;
        let taken = Arc::new(taken);
        self.known.0.lock().insert(file.id().0, Arc::clone(&taken));
        Ok(taken)
    }

    async fn of_file(&self, file: &SstFile) -> Outcome<Taken> {
        let read = file.index();
        let index = bounded(&self.env, self.io_timeout, "reading a table's index", read).await?;
        let mut taken = Taken::new();
        let end = end_of_blocks(file);
        let last = file.info().last_entry.clone();
        for at in 0..index.len() {
            let Some((offset, first)) = index.get(at) else { break };
            let next = index.get(at + 1);
            let bytes = next.map_or(end, |(offset, _)| offset).saturating_sub(offset);
            let behind = next.map(|(_, key)| key).or(last.as_deref());
            match (place(first), behind.and_then(place)) {
                (Some(one), Some(other)) if one == other => *taken.entry(one).or_default() += bytes,
                _ => self.shared_block(file, at, bytes, &mut taken).await?,
            }
        }
        Ok(taken)
    }

    /// Shares the bytes of a block among the places of its rows.
    async fn shared_block(
        &self,
        file: &SstFile,
        at: usize,
        bytes: u64,
        taken: &mut Taken,
    ) -> Outcome<()> {
        let read = file.read_block(at);
        let rows = bounded(&self.env, self.io_timeout, "reading a table's block", read).await?;
        let mut parts = Taken::new();
        for row in &rows {
            let value = row.value.as_bytes().map_or(0, |value| value.len());
            let part = place(&row.key).unwrap_or_default();
            *parts.entry(part).or_default() += (row.key.len() + value) as u64;
        }
        let whole = u128::from(parts.values().sum::<u64>().max(1));
        for (part, own) in parts {
            let share = u128::from(bytes) * u128::from(own) / whole;
            let share =
                u64::try_from(share).map_err(|_| Fault::Gone("a table is too large".to_owned()))?;
            *taken.entry(part).or_default() += share;
        }
        Ok(())
    }
}

/// Where the last block ends: what comes behind the blocks begins there.
fn end_of_blocks(file: &SstFile) -> u64 {
    let info = file.info();
    let parts = [
        (info.filter_offset, info.filter_len),
        (info.index_offset, info.index_len),
        (info.stats_offset, info.stats_len),
    ];
    parts.iter().filter(|(_, len)| *len > 0).map(|(offset, _)| *offset).min().unwrap_or_default()
}
