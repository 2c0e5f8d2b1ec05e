//! Encrypted records: batches of a log segment, each opened by itself.
//!
//! # Format
//! `nonce (12, drawn) | AES-256-GCM of the record | tag (16)`. The key is derived for the file:
//! HKDF-Expand(data key of the epoch, "telesto log segment 1" | salt | what the file is).
//!
//! # Why drawn nonces
//! A write that failed or was torn is cut off, and another record is written to the same place: a
//! nonce made of the place would be used twice, which betrays both records. A segment has some
//! 100,000 records; drawn nonces of 96 bits are safe for 2^32.

use aws_lc_rs::aead::{Aad, LessSafeKey, Nonce};

use crate::error::Damage;
use crate::keys::{Keys, Purpose, draw};

/// Bytes of a file's salt.
pub const SALT: usize = 16;
const NONCE: usize = 12;
/// Bytes a record grows by.
pub const RECORD_OVERHEAD: usize = NONCE + 16;

/// Encrypts and decrypts the records of one file.
pub struct RecordCipher {
    key: LessSafeKey,
    random: std::sync::Arc<dyn telesto_common::env::Random>,
}

impl std::fmt::Debug for RecordCipher {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("RecordCipher")
    }
}

impl RecordCipher {
    /// For a new file: the cipher makers' input that must be kept with it, epoch and salt.
    #[must_use]
    pub fn draw(keys: &Keys) -> (u32, [u8; SALT]) {
        (keys.newest().0, keys.draw())
    }

    /// The cipher of a file with this `epoch` and `salt`, which is `what`.
    ///
    /// # Errors
    /// [`Damage::UnknownEpoch`].
    pub fn of(keys: &Keys, epoch: u32, salt: &[u8; SALT], what: &[u8]) -> Result<Self, Damage> {
        let key = keys.epoch(epoch).ok_or(Damage::UnknownEpoch(epoch))?;
        let key = key.derive(Purpose::Segment, &[salt, what]);
        Ok(Self { key, random: keys.random() })
    }

    /// The stored form of `record`, which opens only with the same `place`.
    #[must_use]
    pub fn encrypt(&self, place: &[u8], record: &[u8]) -> Vec<u8> {
        let nonce: [u8; NONCE] = draw(&*self.random);
        let mut out = Vec::with_capacity(record.len() + RECORD_OVERHEAD);
        out.extend_from_slice(&nonce);
        out.extend_from_slice(record);
        let nonce = Nonce::assume_unique_for_key(nonce);
        let tag = self.key.seal_in_place_separate_tag(nonce, Aad::from(place), &mut out[NONCE..]);
        // It fails for lengths beyond AES-GCM's alone (64 GiB).
        out.extend_from_slice(tag.expect("a record can be encrypted").as_ref());
        out
    }

    /// The record.
    ///
    /// # Errors
    /// [`Damage::Unauthentic`], [`Damage::Length`].
    pub fn decrypt(&self, place: &[u8], stored: &[u8]) -> Result<Vec<u8>, Damage> {
        let Some((nonce, rest)) = stored.split_first_chunk::<NONCE>() else {
            return Err(Damage::Length);
        };
        let end = stored.len().checked_sub(RECORD_OVERHEAD).ok_or(Damage::Length)?;
        let (text, tag) = rest.split_at(end);
        let mut out = vec![0; text.len()];
        let nonce = Nonce::assume_unique_for_key(*nonce);
        self.key
            .open_separate_gather(nonce, Aad::from(place), text, tag, &mut out)
            .map_err(|_| Damage::Unauthentic)?;
        Ok(out)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::keys::tests::keys;

    #[test]
    fn record_opens_at_its_place_in_its_file_only_and_no_flipped_bit_is_missed() {
        let keys = keys(&[1]);
        let (epoch, salt) = RecordCipher::draw(&keys);
        let cipher = RecordCipher::of(&keys, epoch, &salt, b"segment 1").expect("known");
        for record in [&b""[..], b"x", &[7; 2000]] {
            let stored = cipher.encrypt(b"at 3", record);
            assert_eq!(stored.len(), record.len() + RECORD_OVERHEAD);
            assert_eq!(cipher.decrypt(b"at 3", &stored).as_deref(), Ok(record));
            assert_eq!(cipher.decrypt(b"at 4", &stored), Err(Damage::Unauthentic));
            let other = RecordCipher::of(&keys, epoch, &salt, b"segment 2").expect("known");
            assert_eq!(other.decrypt(b"at 3", &stored), Err(Damage::Unauthentic));
            for at in (0..stored.len()).step_by(7) {
                let mut damaged = stored.clone();
                damaged[at] ^= 4;
                assert!(cipher.decrypt(b"at 3", &damaged).is_err(), "byte {at}");
            }
            assert!(cipher.decrypt(b"at 3", &stored[..stored.len() - 1]).is_err());
            assert_ne!(stored, cipher.encrypt(b"at 3", record), "equal records look different");
        }
        assert_eq!(cipher.decrypt(b"", &[0; 20]), Err(Damage::Length));
        assert!(RecordCipher::of(&keys, 9, &salt, b"").is_err());
    }
}
