//! What is recorded of a backup: an object `backups/<number>.json` that is put last, so that a
//! backup is there when it is whole.
//!
//! # Limits
//! A record is in clear, of an encrypted database too: names, sizes and times of objects, nothing
//! of what is in them.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use telesto_common::{Lsn, Timestamp};

use crate::error::{Error, Result};

/// Newest form of a record that this program knows.
pub(crate) const VERSION: u32 = 1;
/// No count in a record comes near it.
const MOST: u64 = 1 << 62;

/// An object that was copied.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Copied {
    /// Its key in the database's bucket.
    pub key: String,
    /// Its size.
    pub bytes: u64,
    /// CRC-32C of it, as it is stored.
    pub crc32c: u32,
}

/// The checkpoint in a backup.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Checkpoint {
    /// The objects that say what it is.
    pub states: Vec<Copied>,
    /// The objects with its rows.
    pub tables: Vec<Copied>,
}

/// One backup.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Backup {
    /// Form of this record.
    pub version: u32,
    /// Its number, from 1.
    pub number: u64,
    /// When it was begun, wall-clock microseconds since 1970.
    pub began_micros: u64,
    /// When it was recorded.
    pub ended_micros: u64,
    /// The database's bucket.
    pub source: String,
    /// The checkpoint; absent while the database had none.
    pub checkpoint: Option<Checkpoint>,
    /// Every entry of the log up to here is in the checkpoint.
    pub reaches: u64,
    /// Hash of that entry, 32 hexadecimal digits.
    pub reaches_hash: String,
    /// The newest commit in the checkpoint.
    pub checkpoint_newest: u64,
    /// The last entry of the log in the backup.
    pub end: u64,
    /// Its hash.
    pub end_hash: String,
    /// The newest commit in the backup.
    pub newest: u64,
    /// Entries from here to the end are in the backups without a gap.
    pub log_from: u64,
    /// The version of the chain that it goes by.
    pub chain_version: u64,
    /// Key rings and keys of tables, and whose cluster it is.
    pub keys: Vec<Copied>,
    /// When keys of tables were dropped that are so: wall-clock microseconds of the bucket, by the
    /// key of the tombstone.
    #[serde(default)]
    pub dropped: BTreeMap<String, u64>,
    /// Every commit by then is in the backups, if this one is: wall-clock microseconds of the
    /// database.
    pub covers_micros: u64,
    /// Part objects of entries behind the checkpoint, and of those since the backup before that
    /// were still there.
    pub parts: Vec<Copied>,
    /// Objects and bytes that this backup added.
    pub added_objects: u64,
    /// See `added_objects`.
    pub added_bytes: u64,
}

impl Backup {
    /// Reads the record in `object`.
    pub(crate) fn decode(url: &str, object: &str, body: &[u8]) -> Result<Self> {
        #[derive(Deserialize)]
        struct Version {
            version: u32,
        }
        let damaged = |error: serde_json::Error| Error::Damaged {
            url: url.to_owned(),
            object: object.to_owned(),
            reason: format!("is no record of a backup: {error}"),
        };
        let Version { version } = serde_json::from_slice(body).map_err(damaged)?;
        if version > VERSION {
            return Err(Error::TooNew {
                object: object.to_owned(),
                found: version,
                known: VERSION,
            });
        }
        let backup: Self = serde_json::from_slice(body).map_err(damaged)?;
        match backup.fault() {
            None => Ok(backup),
            Some(fault) => Err(Error::Damaged {
                url: url.to_owned(),
                object: object.to_owned(),
                reason: format!("is no record of a backup: {fault}"),
            }),
        }
    }

    /// What in a record cannot be. Whoever may write to the place may write anything there: no
    /// number is too great to count from, and no object is written to elsewhere than where a
    /// database has some.
    fn fault(&self) -> Option<String> {
        let numbers = [self.number, self.reaches, self.end, self.log_from, self.chain_version];
        if numbers.iter().any(|number| *number > MOST)
            || self.number == 0
            || self.chain_version == 0
        {
            return Some("a number in it is out of range".to_owned());
        }
        if self.reaches > self.end {
            return Some("its log ends before its checkpoint".to_owned());
        }
        let known = |key: &str| {
            let ours =
                ["shards/", "keyring/", "cluster/"].iter().any(|place| key.starts_with(place));
            ours && key.split('/').all(|part| !part.is_empty() && !part.starts_with('.'))
        };
        let strange = self.copied().find(|copied| !known(&copied.key));
        strange.map(|copied| format!("{:?} is no object of a database", copied.key))
    }

    pub(crate) fn encode(&self) -> bytes::Bytes {
        serde_json::to_vec_pretty(self)
            .expect("plain data with string keys always serializes")
            .into()
    }

    /// All objects that were copied but those of the log.
    pub(crate) fn copied(&self) -> impl Iterator<Item = &Copied> {
        let checkpoint = self.checkpoint.iter().flat_map(|c| c.states.iter().chain(&c.tables));
        checkpoint.chain(&self.parts).chain(&self.keys)
    }

    /// The entry that the checkpoint reaches to.
    pub(crate) fn reached(&self) -> Result<(Lsn, [u8; 16])> {
        Ok((Lsn(self.reaches), hash_of(&self.reaches_hash)?))
    }

    /// The last entry.
    pub(crate) fn ended(&self) -> Result<(Lsn, [u8; 16])> {
        Ok((Lsn(self.end), hash_of(&self.end_hash)?))
    }

    /// The newest commit in the backup.
    #[must_use]
    pub fn newest(&self) -> Timestamp {
        Timestamp(self.newest)
    }
}

pub(crate) fn hash_text(hash: [u8; 16]) -> String {
    format!("{:032x}", u128::from_be_bytes(hash))
}

fn hash_of(text: &str) -> Result<[u8; 16]> {
    let number = u128::from_str_radix(text, 16).map_err(|error| Error::Damaged {
        url: String::new(),
        object: "a record".to_owned(),
        reason: format!("has no hash where one belongs: {error}"),
    })?;
    Ok(number.to_be_bytes())
}
