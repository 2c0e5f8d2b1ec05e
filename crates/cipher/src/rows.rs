//! Keys of tables: the data keys of one name, and rows sealed with them.
//!
//! # Format
//! A sealed row:
//! `epoch (4, big endian) | nonce (12, drawn) | AES-256-GCM-SIV of the row | tag (16)`,
//! authenticated with the key it stands under. The key is HKDF-Expand(data key of the epoch,
//! "telesto row 1").
//!
//! # Why GCM-SIV
//! Many processes seal with one key for years, and nobody counts: drawn nonces of AES-GCM are safe
//! for 2^32 rows. Here a nonce that is drawn twice tells that two values of one row were equal, and
//! nothing else (RFC 8452).
//!
//! # Invariants
//! - What is closed opens nothing: [`RowKeys::close`] forgets the keys.
//! - A name that was dropped stays so ([`Closed::Dropped`]).
//!
//! # On failure
//! [`RowError`]: that the key is not at hand, and that the row is damaged, are different errors.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use aws_lc_rs::aead::{AES_256_GCM_SIV, Aad, LessSafeKey, Nonce};
use parking_lot::RwLock;
use telesto_common::env::Random;

use crate::keys::{Epoch, draw};

const EPOCH: usize = 4;
const NONCE: usize = 12;
const TAG: usize = 16;
/// Bytes a row grows by.
pub const ROW_OVERHEAD: usize = EPOCH + NONCE + TAG;

/// Why the key of a name cannot be used by this process.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Closed {
    /// The process was started without a key file that has it.
    #[error("this node's key file does not have it")]
    NotHere,
    /// It was destroyed.
    #[error("it was dropped, and what it encrypted cannot be read any more")]
    Dropped,
    /// It is there, and could not be had.
    #[error("{0}")]
    Unread(String),
}

/// Why a row was not sealed, or did not open.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RowError {
    /// The key is not at hand.
    #[error(transparent)]
    Closed(#[from] Closed),
    /// The key has no such epoch.
    #[error("it needs epoch {0} of the key, which is not there")]
    UnknownEpoch(u32),
    /// The bytes are not what was written there with this key.
    #[error("it does not decrypt: it is damaged, or was exchanged for another")]
    Unauthentic,
}

enum State {
    Closed(Closed),
    Open(BTreeMap<u32, Arc<LessSafeKey>>),
}

/// The data keys of one name, as a process has them. Shared by all tables of the name.
pub struct RowKeys {
    name: String,
    state: RwLock<State>,
    random: Arc<dyn Random>,
}

impl fmt::Debug for RowKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RowKeys").field("name", &self.name).field("closed", &self.closed()).finish()
    }
}

impl RowKeys {
    /// Of `name`, without keys. Nonces are drawn from `random`, which must be of cryptographic
    /// quality wherever the data matters.
    #[must_use]
    pub fn closed_for(name: &str, why: Closed, random: Arc<dyn Random>) -> Self {
        Self { name: name.to_owned(), state: RwLock::new(State::Closed(why)), random }
    }

    /// The name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Why nothing can be sealed or opened; `None`: it can.
    #[must_use]
    pub fn closed(&self) -> Option<Closed> {
        match &*self.state.read() {
            State::Closed(why) => Some(why.clone()),
            State::Open(_) => None,
        }
    }

    /// Whether it has the data key of `epoch`.
    #[must_use]
    pub fn has(&self, epoch: u32) -> bool {
        matches!(&*self.state.read(), State::Open(keys) if keys.contains_key(&epoch))
    }

    /// Forgets the keys. What was dropped stays dropped.
    pub fn close(&self, why: Closed) {
        let mut state = self.state.write();
        if !matches!(&*state, State::Closed(Closed::Dropped)) {
            *state = State::Closed(why);
        }
    }

    /// Has these data keys from here on, beside those it has, unless it was dropped.
    pub fn admit(&self, keys: impl IntoIterator<Item = (u32, Epoch)>) {
        let keys = keys
            .into_iter()
            .map(|(number, epoch)| (number, Arc::new(epoch.key_for_rows(&AES_256_GCM_SIV))));
        let mut state = self.state.write();
        match &mut *state {
            State::Closed(Closed::Dropped) => {}
            State::Open(known) => known.extend(keys),
            closed => *closed = State::Open(keys.collect()),
        }
    }

    fn key(&self, epoch: u32) -> Result<Arc<LessSafeKey>, RowError> {
        match &*self.state.read() {
            State::Closed(why) => Err(why.clone().into()),
            State::Open(keys) => {
                keys.get(&epoch).map(Arc::clone).ok_or(RowError::UnknownEpoch(epoch))
            }
        }
    }

    /// Appends the sealed form of `row` to `out`: with `epoch`, to stand under `place` only.
    ///
    /// # Errors
    /// [`RowError::Closed`], [`RowError::UnknownEpoch`]; `out` is as before.
    pub fn seal(
        &self,
        epoch: u32,
        place: &[u8],
        row: &[u8],
        out: &mut Vec<u8>,
    ) -> Result<(), RowError> {
        let key = self.key(epoch)?;
        let nonce = draw::<NONCE>(&*self.random);
        out.reserve(row.len() + ROW_OVERHEAD);
        out.extend_from_slice(&epoch.to_be_bytes());
        out.extend_from_slice(&nonce);
        let start = out.len();
        out.extend_from_slice(row);
        let nonce = Nonce::assume_unique_for_key(nonce);
        let tag = key.seal_in_place_separate_tag(nonce, Aad::from(place), &mut out[start..]);
        // It fails for lengths beyond the cipher's alone (64 GiB).
        out.extend_from_slice(tag.expect("a row can be encrypted").as_ref());
        Ok(())
    }

    /// The row that was sealed to stand under `place`.
    ///
    /// # Errors
    /// [`RowError`].
    pub fn open(&self, place: &[u8], sealed: &[u8]) -> Result<Vec<u8>, RowError> {
        let (epoch, rest) = sealed.split_first_chunk::<EPOCH>().ok_or(RowError::Unauthentic)?;
        let (nonce, rest) = rest.split_first_chunk::<NONCE>().ok_or(RowError::Unauthentic)?;
        let end = rest.len().checked_sub(TAG).ok_or(RowError::Unauthentic)?;
        let (text, tag) = rest.split_at(end);
        let key = self.key(u32::from_be_bytes(*epoch))?;
        let mut out = vec![0; text.len()];
        let nonce = Nonce::assume_unique_for_key(*nonce);
        key.open_separate_gather(nonce, Aad::from(place), text, tag, &mut out)
            .map_err(|_| RowError::Unauthentic)?;
        Ok(out)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keys(seeds: &[u8]) -> RowKeys {
        let keys = RowKeys::closed_for("group", Closed::NotHere, crate::keys::tests::random());
        keys.admit(seeds.iter().zip(1..).map(|(seed, number)| (number, Epoch::new(&[*seed; 32]))));
        keys
    }

    fn sealed(keys: &RowKeys, epoch: u32, place: &[u8], row: &[u8]) -> Vec<u8> {
        let mut out = Vec::new();
        keys.seal(epoch, place, row, &mut out).expect("seals");
        out
    }

    #[test]
    fn row_opens_under_its_key_and_place_only_and_no_flipped_bit_is_missed() {
        let keys = keys(&[1, 2]);
        for row in [&b""[..], b"x", &[7; 3000]] {
            let stored = sealed(&keys, 2, b"place", row);
            assert_eq!(stored.len(), row.len() + ROW_OVERHEAD);
            assert_eq!(keys.open(b"place", &stored).as_deref(), Ok(row));
            assert_eq!(keys.open(b"placf", &stored), Err(RowError::Unauthentic));
            assert_ne!(stored, sealed(&keys, 2, b"place", row), "equal rows look different");
            for at in (0..stored.len()).step_by(5).chain(0..ROW_OVERHEAD) {
                let mut damaged = stored.clone();
                damaged[at] ^= 4;
                assert!(keys.open(b"place", &damaged).is_err(), "byte {at}");
            }
            for end in [0, 3, 10, stored.len() - 1] {
                assert!(keys.open(b"place", &stored[..end]).is_err(), "cut at {end}");
            }
        }
    }

    #[test]
    fn epochs_are_keys_of_their_own() {
        let (two, other) = (keys(&[1, 2]), keys(&[1, 3]));
        let old = sealed(&two, 1, b"p", b"row");
        assert_eq!(other.open(b"p", &old).as_deref(), Ok(&b"row"[..]), "the first is the same");
        let new = sealed(&two, 2, b"p", b"row");
        assert_eq!(other.open(b"p", &new), Err(RowError::Unauthentic));
        let mut renamed = old;
        renamed[3] = 2;
        assert_eq!(two.open(b"p", &renamed), Err(RowError::Unauthentic), "said to be of another");
        assert_eq!(two.seal(3, b"p", b"", &mut Vec::new()), Err(RowError::UnknownEpoch(3)));
    }

    #[test]
    fn dropped_name_never_opens_again() {
        let keys = keys(&[1]);
        let stored = sealed(&keys, 1, b"p", b"row");
        keys.close(Closed::Unread("no bucket".to_owned()));
        assert!(matches!(keys.open(b"p", &stored), Err(RowError::Closed(Closed::Unread(_)))));
        keys.admit([(1, Epoch::new(&[1; 32]))]);
        assert!(keys.open(b"p", &stored).is_ok());
        keys.close(Closed::Dropped);
        keys.admit([(1, Epoch::new(&[1; 32]))]);
        keys.close(Closed::NotHere);
        assert_eq!(keys.open(b"p", &stored), Err(RowError::Closed(Closed::Dropped)));
        assert!(!keys.has(1));
        assert!(!format!("{keys:?}").contains("[1"));
    }
}
