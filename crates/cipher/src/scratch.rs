//! Scratch files: what does not fit in memory for a while, gone with the process.
//!
//! # Invariants
//! - A file has no name: whatever happens, it is gone with the process.
//! - With encryption on, each file has a key of its own, derived from one that was drawn at the
//!   process's start and is nowhere but in its memory: what stays behind on the disk's blocks can
//!   be read by nobody.
//! - Every place of a file is written once (AES-256-CTR, the counter is the place).
//!
//! # On failure
//! Errors of the operating system, as they are.
//!
//! # Limits
//! Not authenticated: whoever can change the open, nameless files of a process can change its
//! memory too. Damage by accident is what the users' checksums are for.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use aws_lc_rs::cipher::{AES_256, EncryptingKey, EncryptionContext, UnboundCipherKey};
use aws_lc_rs::hkdf::{HKDF_SHA256, Prk};
use aws_lc_rs::iv::FixedLength;
use parking_lot::Mutex;
use telesto_common::env::Random;

use crate::keys::draw;

const BLOCK: u64 = 16;
/// Encrypted at a time when a file is written.
const PIECE: usize = 64 << 10;

/// Where scratch files go, and how.
#[derive(Clone)]
pub struct Scratch {
    folder: Option<PathBuf>,
    secret: Option<Arc<Secret>>,
}

struct Secret {
    key: Prk,
    files: AtomicU64,
}

impl std::fmt::Debug for Scratch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let encrypted = self.secret.is_some();
        f.debug_struct("Scratch")
            .field("folder", &self.folder)
            .field("encrypted", &encrypted)
            .finish()
    }
}

impl Scratch {
    /// Files in `folder`, as they are.
    #[must_use]
    pub fn plain(folder: impl Into<PathBuf>) -> Self {
        Self { folder: Some(folder.into()), secret: None }
    }

    /// Files in the system's folder for such, as they are.
    #[must_use]
    pub fn system() -> Self {
        Self { folder: None, secret: None }
    }

    /// Files in `folder`, encrypted with a key that is drawn now.
    #[must_use]
    pub fn encrypted(folder: impl Into<PathBuf>, random: &dyn Random) -> Self {
        let key = zeroize::Zeroizing::new(draw::<32>(random));
        let secret =
            Secret { key: Prk::new_less_safe(HKDF_SHA256, &*key), files: AtomicU64::new(0) };
        Self { folder: Some(folder.into()), secret: Some(Arc::new(secret)) }
    }

    /// Where the files are, for messages.
    #[must_use]
    pub fn place(&self) -> PathBuf {
        self.folder.clone().unwrap_or_else(std::env::temp_dir)
    }

    /// Makes a file. Blocks.
    ///
    /// # Errors
    /// Those of the operating system.
    pub fn file(&self) -> io::Result<ScratchFile> {
        let file = match &self.folder {
            Some(folder) => {
                std::fs::create_dir_all(folder)?;
                tempfile::tempfile_in(folder)?
            }
            None => tempfile::tempfile()?,
        };
        let key = self.secret.as_ref().map(|secret| secret.next());
        Ok(ScratchFile { file, key, end: Mutex::new(0) })
    }

    /// The folder, where one was named.
    #[must_use]
    pub fn folder(&self) -> Option<&Path> {
        self.folder.as_deref()
    }
}

impl Secret {
    fn next(&self) -> EncryptingKey {
        let number = self.files.fetch_add(1, Ordering::Relaxed).to_be_bytes();
        let info: [&[u8]; 2] = [b"telesto scratch 1", &number];
        let okm = self.key.expand(&info, &AES_256).expect("a key can be derived");
        EncryptingKey::ctr(UnboundCipherKey::from(okm)).expect("AES has a counter mode")
    }
}

/// A nameless file that is only added to.
#[derive(Debug)]
pub struct ScratchFile {
    file: File,
    key: Option<EncryptingKey>,
    end: Mutex<u64>,
}

impl ScratchFile {
    /// Adds `bytes`; where they begin. Blocks.
    ///
    /// # Errors
    /// Those of the operating system. What was written in part is passed over by what comes after.
    pub fn append(&self, bytes: &[u8]) -> io::Result<u64> {
        let mut end = self.end.lock();
        let start = *end;
        // Also when it fails: no place is written twice.
        *end += bytes.len() as u64;
        let Some(key) = &self.key else {
            self.file.write_all_at(bytes, start)?;
            return Ok(start);
        };
        let mut buffer = Vec::with_capacity(PIECE.min(bytes.len()));
        for (index, piece) in bytes.chunks(PIECE).enumerate() {
            let at = start + (index * PIECE) as u64;
            buffer.clear();
            buffer.extend_from_slice(piece);
            apply(key, at, &mut buffer)?;
            self.file.write_all_at(&buffer, at)?;
        }
        Ok(start)
    }

    /// Reads what begins at `offset`. Blocks.
    ///
    /// # Errors
    /// Those of the operating system; also when the file ends before `out` is full.
    pub fn read_exact_at(&self, out: &mut [u8], offset: u64) -> io::Result<()> {
        self.file.read_exact_at(out, offset)?;
        self.key.as_ref().map_or(Ok(()), |key| apply(key, offset, out))
    }

    /// Bytes written.
    #[must_use]
    pub fn size_bytes(&self) -> u64 {
        *self.end.lock()
    }
}

/// Encrypts or decrypts bytes that begin at `offset` of their file.
fn apply(key: &EncryptingKey, offset: u64, bytes: &mut [u8]) -> io::Result<()> {
    let failed = |_| io::Error::other("encryption failed");
    let run = |block: u64, bytes: &mut [u8]| {
        let counter = FixedLength::from(u128::from(block).to_be_bytes());
        key.less_safe_encrypt(bytes, EncryptionContext::Iv128(counter)).map(|_| ()).map_err(failed)
    };
    let skip = (offset % BLOCK) as usize;
    let (ragged, rest) =
        bytes.split_at_mut(((BLOCK as usize - skip) % BLOCK as usize).min(bytes.len()));
    if !ragged.is_empty() {
        let mut block = [0; BLOCK as usize];
        block[skip..skip + ragged.len()].copy_from_slice(ragged);
        run(offset / BLOCK, &mut block)?;
        ragged.copy_from_slice(&block[skip..skip + ragged.len()]);
    }
    if rest.is_empty() { Ok(()) } else { run(offset.div_ceil(BLOCK), rest) }
}

#[cfg(test)]
mod tests {

    use proptest::prelude::*;

    use super::*;

    fn raw(file: &ScratchFile) -> Vec<u8> {
        let mut bytes = vec![0; file.size_bytes() as usize];
        file.file.read_exact_at(&mut bytes, 0).expect("read");
        bytes
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(32))]

        #[test]
        fn any_pieces_written_read_back_in_any_ranges_and_are_unreadable_on_disk(
            pieces in prop::collection::vec(prop_oneof![0..50_usize, 65_000..67_000_usize], 1..8),
            ranges in prop::collection::vec((any::<prop::sample::Index>(), 0..70_000_usize), 1..8),
            encrypted: bool,
        ) {
            let folder = tempfile::tempdir().expect("folder");
            let scratch = match encrypted {
                true => Scratch::encrypted(folder.path(), &crate::keys::tests::Os),
                false => Scratch::plain(folder.path()),
            };
            let file = scratch.file().expect("made");
            let mut all = Vec::new();
            for (index, size) in pieces.iter().enumerate() {
                let piece = vec![index as u8 + 1; *size];
                prop_assert_eq!(file.append(&piece).expect("written"), all.len() as u64);
                all.extend_from_slice(&piece);
            }
            for (at, length) in ranges {
                let at = at.index(all.len() + 1);
                let mut out = vec![0; length.min(all.len() - at)];
                file.read_exact_at(&mut out, at as u64).expect("read");
                prop_assert_eq!(&out[..], &all[at..at + out.len()]);
            }
            prop_assert_eq!(raw(&file) == all, !encrypted || all.is_empty());
        }
    }

    #[test]
    fn two_files_of_equal_content_look_different_and_have_no_name() {
        let folder = tempfile::tempdir().expect("folder");
        let scratch = Scratch::encrypted(folder.path(), &crate::keys::tests::Os);
        let (a, b) = (scratch.file().expect("made"), scratch.file().expect("made"));
        a.append(&[0; 100]).expect("written");
        b.append(&[0; 100]).expect("written");
        assert_ne!(raw(&a), raw(&b));
        assert_eq!(std::fs::read_dir(folder.path()).expect("listed").count(), 0);
        let mut past = [0; 101];
        assert!(a.read_exact_at(&mut past, 0).is_err());
    }
}
