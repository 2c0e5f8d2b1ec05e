//! The stored form of a key ring: the data keys of a database, wrapped.
//!
//! # Format
//! An object `keyring/<version, 20 digits>` for each version, the whole ring in each:
//!
//! ```text
//! "TLKR" | format version (1) | ring version (8) | length of name (1) | name of the key-encryption key
//! length (2) | wrapped wrapping key | nonce (12) | AES-256-GCM under the wrapping key of the body | tag (16)
//! body: database (16) | count (4) | epoch (4), made at (8, microseconds since 1970), data key (32), …
//!       format 2 has a byte at its end: 1, the database is being turned over
//! ```
//! Numbers are big endian. The wrapping key is drawn for each object, wrapped by the
//! [`KeyService`]; everything before the nonce is authenticated with the body.
//!
//! # Invariants
//! - A version adds to the one before: no epoch is ever left out, so that nothing has to be written
//!   again.
//! - Versions are put if absent and never deleted.
//!
//! # On failure
//! A key that is not at hand, a wrong key and damage are different errors.

use std::collections::BTreeMap;
use std::fmt::{self, Debug};

use async_trait::async_trait;
use aws_lc_rs::aead::{AES_256_GCM, Aad, LessSafeKey, Nonce, UnboundKey};
use bytes::{Buf as _, BufMut as _, Bytes};
use telesto_common::env::Random;
use zeroize::Zeroizing;

use crate::error::{Error, Result};
use crate::keys::{Epoch, Ring, draw};

const MAGIC: &[u8; 4] = b"TLKR";
/// The newest format. Only rings of databases that are being turned over have it, so that older
/// programs refuse those alone.
const VERSION: u8 = 2;
/// The format of all others.
const SETTLED: u8 = 1;
/// The byte at the end of format 2.
const TURNING: u8 = 1;
const NONCE: usize = 12;
const ENTRY: usize = 4 + 8 + 32;

/// The key a ring's body is encrypted with; wrapped by the key service.
pub type WrappingKey = Zeroizing<[u8; 32]>;

/// Whoever holds the key-encryption keys: a key file, a key management service.
#[async_trait]
pub trait KeyService: Debug + Send + Sync {
    /// What it is, for messages.
    fn place(&self) -> String;

    /// The name of the key that new rings are wrapped with; empty: there are keys for tables alone.
    fn current(&self) -> String;

    /// Whether there is a key for tables called `name`.
    fn has_table_key(&self, name: &str) -> bool;

    /// Wraps `key` with the key `name`, for the ring `object` only.
    async fn wrap(&self, name: &str, key: &WrappingKey, object: &str) -> Result<Vec<u8>>;

    /// Takes a wrapped key out again.
    async fn unwrap(&self, name: &str, wrapped: &[u8], object: &str) -> Result<WrappingKey>;
}

/// A data key.
#[derive(Clone, PartialEq, Eq)]
pub struct DataKey {
    /// Its epoch.
    pub epoch: u32,
    /// When it was made, microseconds since 1970 by the clock of whoever made it.
    pub made_micros: u64,
    key: Zeroizing<[u8; 32]>,
}

impl Debug for DataKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "DataKey({})", self.epoch)
    }
}

/// One version of a key ring.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredRing {
    /// The version, from 1.
    pub version: u64,
    /// The key-encryption key it is wrapped with.
    pub wrapped_with: String,
    /// Drawn when the first version was made.
    pub database: [u8; 16],
    /// The data keys by epoch, ascending.
    pub keys: Vec<DataKey>,
    /// The database is being turned over: objects that are not encrypted may still be there.
    pub turning: bool,
}

impl StoredRing {
    /// The first version, with one data key, to be wrapped with the key `name`.
    #[must_use]
    pub fn first(name: String, now_micros: u64, random: &dyn Random) -> Self {
        let key = DataKey { epoch: 1, made_micros: now_micros, key: Zeroizing::new(draw(random)) };
        let database = draw(random);
        Self { version: 1, wrapped_with: name, database, keys: vec![key], turning: false }
    }

    /// The next version: wrapped with the key `name`, with a new data key when `new_epoch`.
    #[must_use]
    pub fn next(
        &self,
        name: String,
        new_epoch: bool,
        now_micros: u64,
        random: &dyn Random,
    ) -> Self {
        let mut next = self.clone();
        next.version += 1;
        next.wrapped_with = name;
        if new_epoch {
            let epoch = self.newest().map_or(1, |key| key.epoch + 1);
            let key = Zeroizing::new(draw(random));
            next.keys.push(DataKey { epoch, made_micros: now_micros, key });
        }
        next
    }

    /// The same ring of a database that is being turned over, or is no more.
    #[must_use]
    pub fn that_turns(self, turning: bool) -> Self {
        Self { turning, ..self }
    }

    /// The newest data key.
    #[must_use]
    pub fn newest(&self) -> Option<&DataKey> {
        self.keys.last()
    }

    /// The epochs as they are used.
    #[must_use]
    pub fn ring(&self) -> Ring {
        let epochs = self.keys.iter().map(|key| (key.epoch, Epoch::new(&key.key)));
        let turning = self.turning;
        Ring { version: self.version, epochs: epochs.collect::<BTreeMap<_, _>>(), turning }
    }

    /// Its stored form, at `object`.
    ///
    /// # Errors
    /// The key service's.
    pub async fn encode(
        &self,
        object: &str,
        service: &dyn KeyService,
        random: &dyn Random,
    ) -> Result<Bytes> {
        let wrapping: WrappingKey = Zeroizing::new(draw(random));
        let wrapped = service.wrap(&self.wrapped_with, &wrapping, object).await?;
        let too_long = |what| Error::Service(format!("{what} is too long"));
        let mut out = MAGIC.to_vec();
        out.put_u8(if self.turning { VERSION } else { SETTLED });
        out.put_u64(self.version);
        out.put_u8(self.wrapped_with.len().try_into().map_err(|_| too_long("a key's name"))?);
        out.put_slice(self.wrapped_with.as_bytes());
        out.put_u16(wrapped.len().try_into().map_err(|_| too_long("a wrapped key"))?);
        out.put_slice(&wrapped);
        // All at once: no copy of the keys is left behind by a buffer that grows.
        let mut body = Zeroizing::new(Vec::with_capacity(21 + self.keys.len() * ENTRY));
        body.put_slice(&self.database);
        body.put_u32(self.keys.len() as u32);
        for key in &self.keys {
            body.put_u32(key.epoch);
            body.put_u64(key.made_micros);
            body.put_slice(&key.key[..]);
        }
        if self.turning {
            body.put_u8(TURNING);
        }
        let nonce = draw::<NONCE>(random);
        let tag = cipher(&wrapping)
            .seal_in_place_separate_tag(
                Nonce::assume_unique_for_key(nonce),
                Aad::from(&out),
                &mut body[..],
            )
            .map_err(|_| too_long("the key ring"))?;
        out.put_slice(&nonce);
        out.put_slice(&body);
        out.put_slice(tag.as_ref());
        Ok(out.into())
    }

    /// The ring stored at `object` as version `version`.
    ///
    /// # Errors
    /// [`Error`].
    pub async fn decode(
        object: &str,
        version: u64,
        stored: &[u8],
        service: &dyn KeyService,
    ) -> Result<Self> {
        let damaged = |reason: &str| Error::DamagedRing {
            object: object.to_owned(),
            reason: reason.to_owned(),
        };
        let head = Head::decode(object, stored)?;
        if head.version != version {
            return Err(damaged("it is another version than its name says"));
        }
        let wrapping = service.unwrap(&head.name, head.wrapped, object).await?;
        let (bound, rest) = stored.split_at(head.length);
        let cut = || damaged("it was cut short");
        let (nonce, rest) = rest.split_first_chunk::<NONCE>().ok_or_else(cut)?;
        let end = rest.len().checked_sub(16).ok_or_else(cut)?;
        let (text, tag) = rest.split_at(end);
        let mut body = Zeroizing::new(vec![0; text.len()]);
        let nonce = Nonce::assume_unique_for_key(*nonce);
        cipher(&wrapping)
            .open_separate_gather(nonce, Aad::from(bound), text, tag, &mut body)
            .map_err(|_| damaged("it does not decrypt"))?;
        let wrong = || damaged("its body is malformed");
        let (mut input, turning) = match (head.format, body.split_last()) {
            (VERSION, Some((&TURNING, rest))) => (rest, true),
            (VERSION, _) => return Err(wrong()),
            _ => (&body[..], false),
        };
        let mut database = [0; 16];
        if input.len() < 20 {
            return Err(wrong());
        }
        input.copy_to_slice(&mut database);
        let count = input.get_u32() as usize;
        if count == 0 || count.checked_mul(ENTRY) != Some(input.len()) {
            return Err(wrong());
        }
        let mut keys: Vec<DataKey> = Vec::with_capacity(count);
        while !input.is_empty() {
            let (epoch, made_micros) = (input.get_u32(), input.get_u64());
            let mut key = Zeroizing::new([0; 32]);
            input.copy_to_slice(&mut key[..]);
            if keys.last().is_some_and(|last| last.epoch >= epoch) {
                return Err(wrong());
            }
            keys.push(DataKey { epoch, made_micros, key });
        }
        Ok(Self { version, wrapped_with: head.name, database, keys, turning })
    }
}

/// What can be read of a ring without its key.
struct Head<'a> {
    format: u8,
    version: u64,
    name: String,
    wrapped: &'a [u8],
    /// Bytes up to the nonce.
    length: usize,
}

impl<'a> Head<'a> {
    fn decode(object: &str, stored: &'a [u8]) -> Result<Self> {
        let damaged = || Error::DamagedRing {
            object: object.to_owned(),
            reason: "it does not begin as key rings do".to_owned(),
        };
        let mut input = stored.strip_prefix(MAGIC).ok_or_else(damaged)?;
        let format = input.try_get_u8().map_err(|_| damaged())?;
        if !(SETTLED..=VERSION).contains(&format) {
            let object = object.to_owned();
            return Err(Error::TooNew { object, found: format, supported: VERSION });
        }
        let version = input.try_get_u64().map_err(|_| damaged())?;
        let length = usize::from(input.try_get_u8().map_err(|_| damaged())?);
        let (name, mut input) = input.split_at_checked(length).ok_or_else(damaged)?;
        let name = std::str::from_utf8(name).map_err(|_| damaged())?.to_owned();
        let length = usize::from(input.try_get_u16().map_err(|_| damaged())?);
        let (wrapped, rest) = input.split_at_checked(length).ok_or_else(damaged)?;
        Ok(Self { format, version, name, wrapped, length: stored.len() - rest.len() })
    }
}

fn cipher(key: &WrappingKey) -> LessSafeKey {
    // It fails for keys of another length alone.
    LessSafeKey::new(UnboundKey::new(&AES_256_GCM, &key[..]).expect("a key has 32 bytes"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::KeyFile;

    #[tokio::test]
    async fn ring_round_trips_rotates_and_no_flipped_bit_is_missed() {
        let folder = tempfile::tempdir().expect("folder");
        let path = folder.path().join("keys");
        let random = crate::keys::tests::random();
        KeyFile::add_key(&path, "one", &*random).expect("made");
        KeyFile::add_key(&path, "two", &*random).expect("added");
        let file = KeyFile::read(&path, random.clone()).expect("reads");
        let first = StoredRing::first("one".to_owned(), 7, &*random);
        let second = first.next("two".to_owned(), true, 8, &*random);
        assert_eq!((second.version, second.keys.len(), second.database), (2, 2, first.database));
        assert_eq!(second.keys[0], first.keys[0], "nothing is left out");
        let stored = second.encode("keyring/2", &file, &*random).await.expect("encodes");
        let found = StoredRing::decode("keyring/2", 2, &stored, &file).await.expect("decodes");
        assert_eq!(found, second);
        assert!(StoredRing::decode("keyring/3", 2, &stored, &file).await.is_err(), "moved");
        assert!(StoredRing::decode("keyring/2", 3, &stored, &file).await.is_err(), "renamed");
        let turning = second.clone().that_turns(true);
        let told = turning.encode("keyring/2", &file, &*random).await.expect("encodes");
        assert_eq!((stored[4], told[4]), (1, 2), "older programs refuse what they do not know");
        let found = StoredRing::decode("keyring/2", 2, &told, &file).await.expect("decodes");
        assert_eq!(found, turning);
        assert!(found.ring().turning && !second.ring().turning);
        let mut settled = told.to_vec();
        settled[4] = 1;
        assert!(StoredRing::decode("keyring/2", 2, &settled, &file).await.is_err(), "bound");
        for at in 0..stored.len() {
            let mut damaged = stored.to_vec();
            damaged[at] ^= 1 << (at % 8);
            let found = StoredRing::decode("keyring/2", 2, &damaged, &file).await;
            assert!(found.is_err(), "byte {at}");
        }
        for length in 0..stored.len() {
            let found = StoredRing::decode("keyring/2", 2, &stored[..length], &file).await;
            assert!(found.is_err(), "cut at {length}");
        }
        assert!(!stored.windows(32).any(|part| part == &second.keys[0].key[..]), "no key in clear");
        assert!(format!("{second:?}").contains("DataKey(1)"));
    }
}
