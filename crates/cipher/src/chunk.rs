//! Encrypted objects: chunks that can be read by themselves.
//!
//! # Format
//! An object is one or more chunks; every chunk but the last holds [`CHUNK`] bytes of plaintext,
//! the last up to that many. An empty object is one empty chunk. A stored chunk:
//!
//! ```text
//! 0..3    "TLE"
//! 3       format version, 1
//! 4..8    epoch of the data key, big endian
//! 8..24   salt, drawn for the written object: the same in all its chunks
//! 24..    AES-256-GCM of the plaintext, as long as that, then the tag (16)
//! ```
//! key = HKDF-Expand(data key of the epoch, "telesto object 1" | salt | path); nonce = zeros (3) |
//! number of the chunk (8, big endian) | 1 in the last chunk, else 0; authenticated beside it: the
//! header and the path.
//!
//! # Why a header in each chunk
//! A read of some bytes in the middle or at the end needs nothing but the chunks that hold them: no
//! second request for the start of the object. It costs 24 bytes in 16 KiB.
//!
//! # Invariants
//! - The plaintext's length follows from the stored length ([`plain_size`]).
//! - Chunks of one answer have one header: two objects cannot be mixed.
//! - A chunk opens only at its place, in an object of its path, and the last one only as the last.

use aws_lc_rs::aead::{Aad, LessSafeKey, Nonce};

use crate::error::Damage;
use crate::keys::{Epoch, Keys, Purpose};

/// Plaintext bytes of a whole chunk.
pub const CHUNK: u64 = 16 << 10;
/// Bytes before the ciphertext of a chunk.
pub const HEADER: usize = 24;
const TAG: usize = 16;
const OVERHEAD: u64 = (HEADER + TAG) as u64;
/// Stored bytes of a whole chunk.
pub const STORED_CHUNK: u64 = CHUNK + OVERHEAD;

const MAGIC: [u8; 3] = *b"TLE";
const VERSION: u8 = 1;

/// Stored length of an object of `plain` bytes.
#[must_use]
pub fn stored_size(plain: u64) -> u64 {
    plain + plain.div_ceil(CHUNK).max(1) * OVERHEAD
}

/// Length of the plaintext of an object of `stored` bytes; `None`: no object has that length.
#[must_use]
pub fn plain_size(stored: u64) -> Option<u64> {
    let (whole, rest) = (stored / STORED_CHUNK, stored % STORED_CHUNK);
    match (whole, rest) {
        (0, OVERHEAD) => Some(0),
        (1.., 0) => Some(whole * CHUNK),
        (_, rest) if rest > OVERHEAD => Some(whole * CHUNK + rest - OVERHEAD),
        _ => None,
    }
}

/// What stands before each chunk of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// Which data key.
    pub epoch: u32,
    /// Drawn for the object.
    pub salt: [u8; 16],
}

impl Header {
    fn encode(self) -> [u8; HEADER] {
        let mut out = [0; HEADER];
        out[..3].copy_from_slice(&MAGIC);
        out[3] = VERSION;
        out[4..8].copy_from_slice(&self.epoch.to_be_bytes());
        out[8..].copy_from_slice(&self.salt);
        out
    }

    /// The header at the start of a stored chunk.
    ///
    /// # Errors
    /// There is none.
    pub fn decode(stored: &[u8]) -> Result<Self, Damage> {
        let Some((header, _)) = stored.split_first_chunk::<HEADER>() else {
            return Err(Damage::NotEncrypted);
        };
        if header[..3] != MAGIC {
            return Err(Damage::NotEncrypted);
        }
        if header[3] != VERSION {
            return Err(Damage::TooNew(header[3]));
        }
        let (mut epoch, mut salt) = ([0; 4], [0; 16]);
        epoch.copy_from_slice(&header[4..8]);
        salt.copy_from_slice(&header[8..]);
        Ok(Self { epoch: u32::from_be_bytes(epoch), salt })
    }
}

/// Encrypts and decrypts the chunks of one written object.
#[derive(Debug)]
pub struct Chunks {
    key: LessSafeKey,
    /// The header, then the path.
    bound: Vec<u8>,
}

impl Chunks {
    /// For a new object at `path`, with the newest data key.
    #[must_use]
    pub fn for_new(keys: &Keys, path: &str) -> Self {
        let (number, epoch) = keys.newest();
        Self::of(&epoch, Header { epoch: number, salt: keys.draw() }, path)
    }

    /// For the object at `path` that has `header`.
    ///
    /// # Errors
    /// [`Damage::UnknownEpoch`].
    pub fn for_stored(keys: &Keys, header: Header, path: &str) -> Result<Self, Damage> {
        let epoch = keys.epoch(header.epoch).ok_or(Damage::UnknownEpoch(header.epoch))?;
        Ok(Self::of(&epoch, header, path))
    }

    fn of(epoch: &Epoch, header: Header, path: &str) -> Self {
        let key = epoch.derive(Purpose::Object, &[&header.salt, path.as_bytes()]);
        let mut bound = header.encode().to_vec();
        bound.extend_from_slice(path.as_bytes());
        Self { key, bound }
    }

    /// Appends the stored form of `plain` to `out`: chunks from number `first` on. With `ends` the
    /// last of them, empty or not, is the object's last; without, `plain` is whole chunks and more
    /// follow.
    pub fn encrypt(&self, first: u64, plain: &[u8], ends: bool, out: &mut Vec<u8>) {
        let size = usize::try_from(CHUNK).unwrap_or(usize::MAX);
        assert!(ends || plain.len().is_multiple_of(size), "whole chunks until the last");
        let count = if ends { plain.len().div_ceil(size).max(1) } else { plain.len() / size };
        out.reserve(plain.len() + count * (HEADER + TAG));
        for index in 0..count {
            let part = &plain[index * size..plain.len().min((index + 1) * size)];
            out.extend_from_slice(&self.bound[..HEADER]);
            let start = out.len();
            out.extend_from_slice(part);
            let nonce = nonce(first + index as u64, ends && index + 1 == count);
            let tag = self.key.seal_in_place_separate_tag(
                nonce,
                Aad::from(&self.bound),
                &mut out[start..],
            );
            // It fails for lengths beyond AES-GCM's alone, and a chunk is 16 KiB.
            out.extend_from_slice(tag.expect("a chunk can be encrypted").as_ref());
        }
    }

    /// Appends the plaintext of the stored chunks `stored`, of which the first is number `first`.
    ///
    /// # Errors
    /// What is wrong with them; `out` may have grown.
    pub fn decrypt(
        &self,
        first: u64,
        stored: &[u8],
        ends: bool,
        out: &mut Vec<u8>,
    ) -> Result<(), Damage> {
        let size = usize::try_from(STORED_CHUNK).unwrap_or(usize::MAX);
        let count = stored.len().div_ceil(size);
        out.reserve(stored.len());
        for (index, chunk) in stored.chunks(size).enumerate() {
            let last = ends && index + 1 == count;
            if chunk.len() < HEADER + TAG || (chunk.len() < size && !last) {
                return Err(Damage::Length);
            }
            let (header, rest) = chunk.split_at(HEADER);
            if header != &self.bound[..HEADER] {
                return Err(Damage::Unauthentic);
            }
            let (text, tag) = rest.split_at(rest.len() - TAG);
            let start = out.len();
            out.resize(start + text.len(), 0);
            let nonce = nonce(first + index as u64, last);
            let aad = Aad::from(&self.bound);
            self.key
                .open_separate_gather(nonce, aad, text, tag, &mut out[start..])
                .map_err(|_| Damage::Unauthentic)?;
        }
        Ok(())
    }
}

/// The plaintext of the chunks `stored` of the object at `path`, of which the first is number
/// `first`. `ends`: the last of them is the object's last.
///
/// # Errors
/// What is wrong with them.
pub fn decrypt(
    keys: &Keys,
    path: &str,
    first: u64,
    stored: &[u8],
    ends: bool,
) -> Result<Vec<u8>, Damage> {
    let chunks = Chunks::for_stored(keys, Header::decode(stored)?, path)?;
    let mut out = Vec::new();
    chunks.decrypt(first, stored, ends, &mut out)?;
    Ok(out)
}

fn nonce(chunk: u64, last: bool) -> Nonce {
    let mut bytes = [0; 12];
    bytes[3..11].copy_from_slice(&chunk.to_be_bytes());
    bytes[11] = u8::from(last);
    Nonce::assume_unique_for_key(bytes)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::keys::tests::keys;

    fn encrypted(keys: &Keys, path: &str, plain: &[u8]) -> Vec<u8> {
        let mut out = Vec::new();
        Chunks::for_new(keys, path).encrypt(0, plain, true, &mut out);
        out
    }

    #[test]
    fn sizes_follow_from_each_other_and_no_other_length_is_taken() {
        let mut last = None;
        for stored in 0..3 * STORED_CHUNK + 100 {
            if let Some(plain) = plain_size(stored) {
                assert_eq!(stored_size(plain), stored);
                assert_eq!(plain, last.map_or(0, |last: u64| last + 1), "no length is left out");
                last = Some(plain);
            }
        }
        assert!(last > Some(3 * CHUNK));
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(48))]

        #[test]
        fn object_of_any_size_round_trips_in_any_range_of_chunks(
            size in prop_oneof![0..200_usize, 16_300..16_500_usize, 32_700..33_000_usize, 0..100_000_usize],
            from in 0..7_u64, seed: u8,
        ) {
            let keys = keys(&[1]);
            let plain: Vec<u8> = (0..size).map(|at| (at as u8).wrapping_mul(31) ^ seed).collect();
            let stored = encrypted(&keys, "a/b", &plain);
            prop_assert_eq!(stored.len() as u64, stored_size(size as u64));
            let whole = decrypt(&keys, "a/b", 0, &stored, true);
            prop_assert_eq!(whole.as_deref(), Ok(&plain[..]));
            let chunks = (stored.len() as u64).div_ceil(STORED_CHUNK);
            let from = from.min(chunks - 1);
            let part = &stored[(from * STORED_CHUNK) as usize..];
            let rest = decrypt(&keys, "a/b", from, part, true);
            prop_assert_eq!(rest.as_deref(), Ok(&plain[(from * CHUNK) as usize..]));
        }

        #[test]
        fn any_flipped_bit_of_any_chunk_is_an_error(at: prop::sample::Index, bit in 0..8_u8, size in 0..40_000_usize) {
            let keys = keys(&[1]);
            let mut stored = encrypted(&keys, "a/b", &vec![7; size]);
            let at = at.index(stored.len());
            stored[at] ^= 1 << bit;
            prop_assert!(decrypt(&keys, "a/b", 0, &stored, true).is_err());
        }
    }

    #[test]
    fn every_flipped_bit_of_a_small_object_is_an_error() {
        let keys = keys(&[1, 2]);
        let stored = encrypted(&keys, "p", b"hello");
        for at in 0..stored.len() {
            for bit in 0..8 {
                let mut damaged = stored.clone();
                damaged[at] ^= 1 << bit;
                assert!(decrypt(&keys, "p", 0, &damaged, true).is_err(), "byte {at}, bit {bit}");
            }
        }
    }

    #[test]
    fn chunks_exchanged_reordered_cut_off_or_of_another_path_are_errors() {
        let keys = keys(&[1]);
        let size = STORED_CHUNK as usize;
        let (a, b) = (encrypted(&keys, "p", &[1; 40_000]), encrypted(&keys, "p", &[1; 40_000]));
        assert_ne!(a, b, "equal plaintexts are stored differently");
        assert!(decrypt(&keys, "q", 0, &a, true).is_err(), "another path");
        let mut mixed = a.clone();
        mixed[size..2 * size].copy_from_slice(&b[size..2 * size]);
        assert!(decrypt(&keys, "p", 0, &mixed, true).is_err(), "a chunk of another object");
        let mut swapped = a.clone();
        let (first, second) = swapped[..2 * size].split_at_mut(size);
        first.swap_with_slice(second);
        assert!(decrypt(&keys, "p", 0, &swapped, true).is_err(), "chunks in another order");
        assert!(decrypt(&keys, "p", 1, &a[..size], false).is_err(), "a chunk at another place");
        assert!(decrypt(&keys, "p", 0, &a[..size], true).is_err(), "cut after a whole chunk");
        assert!(decrypt(&keys, "p", 0, &a[..2 * size + 100], true).is_err(), "cut in a chunk");
        assert!(decrypt(&keys, "p", 0, &a, false).is_err(), "an end where none should be");
        let longer = [&a[..], &a[..size]].concat();
        assert!(decrypt(&keys, "p", 0, &longer, true).is_err(), "added to");
        assert_eq!(decrypt(&keys, "p", 0, &[], true), Err(Damage::NotEncrypted));
    }

    #[test]
    fn key_of_another_database_or_epoch_does_not_open() {
        let stored = encrypted(&keys(&[1]), "p", b"hello");
        let other = keys(&[2]);
        assert_eq!(decrypt(&other, "p", 0, &stored, true), Err(Damage::Unauthentic));
        let rotated = encrypted(&keys(&[1, 2, 3]), "p", b"hello");
        assert_eq!(decrypt(&keys(&[1]), "p", 0, &rotated, true), Err(Damage::UnknownEpoch(3)));
        let old = decrypt(&keys(&[1, 2, 3]), "p", 0, &stored, true);
        assert_eq!(old.as_deref(), Ok(&b"hello"[..]), "what was written before goes on to be read");
    }

    #[test]
    fn newer_format_is_refused_as_such() {
        let keys = keys(&[1]);
        let mut stored = encrypted(&keys, "p", b"hello");
        stored[3] = 2;
        assert_eq!(decrypt(&keys, "p", 0, &stored, true), Err(Damage::TooNew(2)));
    }
}
