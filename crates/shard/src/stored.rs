//! Which objects a checkpoint is, for backups: the newest one of a bucket whose database may be in
//! use.
//!
//! # Invariants
//! What is named belongs to one state of the checkpoint, whose reach was read in that same state.
//!
//! # On failure
//! The bucket's errors. Reads only. Objects may be collected while they are being copied, an hour
//! after a newer state has left them behind: whoever finds one missing asks for the newest
//! checkpoint again.

use telesto_common::{Lsn, Timestamp};

use crate::api::ShardOptions;
use crate::error::Result;
use crate::shard::{error_of, open_newest, slate_of};

/// One state of a shard's checkpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredCheckpoint {
    /// Every entry up to here is inside.
    pub reaches: Lsn,
    /// The newest commit timestamp inside.
    pub newest: Timestamp,
    /// Keys of the objects that say what the state is: its own, and those it refers to.
    pub states: Vec<String>,
    /// Keys of the objects with its rows.
    pub tables: Vec<String>,
}

impl StoredCheckpoint {
    /// The newest checkpoint of the shard that `options` name; `None` when it has none yet.
    ///
    /// # Errors
    /// The bucket's, [`Error::Corrupt`](crate::Error::Corrupt),
    /// [`Error::Unavailable`](crate::Error::Unavailable).
    pub async fn newest(options: &ShardOptions) -> Result<Option<Self>> {
        let (engine, path) = (slate_of(options), options.checkpoint_path());
        let found = async {
            let (Some(view), meta) = open_newest(&engine).await? else { return Ok(None) };
            let state = view.version();
            view.close().await;
            let (states, tables) = engine.objects_of(state).await?;
            Ok(Some(Self { reaches: meta.lsn, newest: meta.applied, states, tables }))
        };
        found.await.map_err(|fault| error_of(&path, fault))
    }
}
