//! The data keys of an open database, by epoch.
//!
//! # Invariants
//! - What is written is encrypted with the newest epoch known; what is read, with the epoch it
//!   names.
//! - A ring that is taken over never loses an epoch: versions only add.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use aws_lc_rs::aead::{AES_256_GCM, Algorithm, LessSafeKey, UnboundKey};
use aws_lc_rs::hkdf::{HKDF_SHA256, Prk};
use parking_lot::RwLock;
use telesto_common::env::Random;

/// What a key is derived for.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Purpose {
    Object,
    Segment,
}

impl Purpose {
    fn label(self) -> &'static [u8] {
        match self {
            Self::Object => b"telesto object 1",
            Self::Segment => b"telesto log segment 1",
        }
    }
}

/// The data key of an epoch. It is used for deriving others only.
#[derive(Clone)]
pub struct Epoch(Prk);

impl fmt::Debug for Epoch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Epoch")
    }
}

impl Epoch {
    /// The epoch whose data key is `key`, uniformly drawn.
    #[must_use]
    pub fn new(key: &[u8; 32]) -> Self {
        Self(Prk::new_less_safe(HKDF_SHA256, key))
    }

    /// The key for `purpose` and `parts`, of which all but the last have a fixed length.
    pub(crate) fn derive(&self, purpose: Purpose, parts: &[&[u8]]) -> LessSafeKey {
        let mut info = vec![purpose.label()];
        info.extend_from_slice(parts);
        let okm = self.0.expand(&info, &AES_256_GCM);
        // It fails for lengths beyond HKDF's alone, and a key has 32 bytes.
        LessSafeKey::new(UnboundKey::from(okm.expect("a key can be derived")))
    }

    /// The key for rows of tables, for `algorithm`.
    pub(crate) fn key_for_rows(&self, algorithm: &'static Algorithm) -> LessSafeKey {
        let okm = self.0.expand(&[b"telesto row 1"], algorithm);
        // It fails for lengths beyond HKDF's alone, and a key has 32 bytes.
        LessSafeKey::new(UnboundKey::from(okm.expect("a key can be derived")))
    }
}

/// The epochs of one version of a key ring.
#[derive(Clone, Debug)]
pub struct Ring {
    /// The version.
    pub version: u64,
    /// By number; never empty.
    pub epochs: BTreeMap<u32, Epoch>,
    /// The database is being turned over: what was written before it was encrypted may still be
    /// there.
    pub turning: bool,
}

/// The data keys of an open database. Shared by all that write and read it in this process.
pub struct Keys {
    ring: RwLock<Ring>,
    random: Arc<dyn Random>,
}

impl fmt::Debug for Keys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ring = self.ring.read();
        let epochs: Vec<&u32> = ring.epochs.keys().collect();
        f.debug_struct("Keys").field("version", &ring.version).field("epochs", &epochs).finish()
    }
}

impl Keys {
    /// The keys of `ring`, which has at least one epoch. Salts and nonces are drawn from `random`,
    /// which must be of cryptographic quality wherever the data matters.
    #[must_use]
    pub fn new(ring: Ring, random: Arc<dyn Random>) -> Self {
        assert!(!ring.epochs.is_empty(), "a key ring has an epoch");
        Self { ring: RwLock::new(ring), random }
    }

    /// The newest version of the ring that is known.
    #[must_use]
    pub fn version(&self) -> u64 {
        self.ring.read().version
    }

    /// Goes on with `ring` if it is a newer version.
    pub fn take_over(&self, ring: Ring) {
        let mut known = self.ring.write();
        if ring.version > known.version {
            known.version = ring.version;
            known.turning = ring.turning;
            known.epochs.extend(ring.epochs);
        }
    }

    /// Whether what is not encrypted is taken as it is: the database is being turned over. What is
    /// written is encrypted in any case.
    #[must_use]
    pub fn takes_clear(&self) -> bool {
        self.ring.read().turning
    }

    /// The newest epoch and its number.
    #[must_use]
    pub fn newest(&self) -> (u32, Epoch) {
        let ring = self.ring.read();
        let (number, epoch) = ring.epochs.last_key_value().expect("a key ring has an epoch");
        (*number, epoch.clone())
    }

    /// An epoch, if it is known.
    #[must_use]
    pub fn epoch(&self, number: u32) -> Option<Epoch> {
        self.ring.read().epochs.get(&number).cloned()
    }

    pub(crate) fn random(&self) -> Arc<dyn Random> {
        Arc::clone(&self.random)
    }

    /// Random bytes.
    pub(crate) fn draw<const N: usize>(&self) -> [u8; N] {
        draw(&*self.random)
    }
}

/// Random bytes.
pub(crate) fn draw<const N: usize>(random: &dyn Random) -> [u8; N] {
    let mut out = [0; N];
    for part in out.chunks_mut(8) {
        part.copy_from_slice(&random.next_u64().to_le_bytes()[..part.len()]);
    }
    out
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// The operating system's randomness.
    #[derive(Debug)]
    pub(crate) struct Os;

    impl Random for Os {
        fn next_u64(&self) -> u64 {
            let mut bytes = [0; 8];
            aws_lc_rs::rand::fill(&mut bytes).expect("random bytes");
            u64::from_le_bytes(bytes)
        }
    }

    pub(crate) fn random() -> Arc<dyn Random> {
        Arc::new(Os)
    }

    /// Keys of epochs 1, 2, …, made of these numbers.
    pub(crate) fn keys(seeds: &[u8]) -> Keys {
        let epochs = seeds.iter().zip(1..).map(|(seed, n)| (n, Epoch::new(&[*seed; 32])));
        let ring = Ring { version: seeds.len() as u64, epochs: epochs.collect(), turning: false };
        Keys::new(ring, random())
    }

    #[test]
    fn newer_ring_is_taken_over_and_an_older_one_is_not() {
        let known = keys(&[1, 2]);
        let ring = |version, epoch: u32| Ring {
            version,
            epochs: [(epoch, Epoch::new(&[9; 32]))].into_iter().collect(),
            turning: false,
        };
        known.take_over(ring(2, 7));
        assert_eq!((known.version(), known.newest().0), (2, 2));
        known.take_over(ring(3, 3));
        assert_eq!((known.version(), known.newest().0), (3, 3));
        assert!(known.epoch(1).is_some(), "none is lost");
    }

    #[test]
    fn debug_output_shows_no_key() {
        let text = format!("{:?} {:?}", keys(&[0xAB]), Epoch::new(&[0xAB; 32]));
        assert!(!text.contains("171") && !text.to_lowercase().contains("ab, ab"), "{text}");
    }
}
