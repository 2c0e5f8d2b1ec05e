//! The stored form of a key of tables: one data key of a name, wrapped.
//!
//! # Format
//! An object `keyring/tables/<name>/<epoch, 10 digits>` for each epoch:
//!
//! ```text
//! "TLTK" | format version (1) | epoch (4, big endian) | wrapped data key, to the end
//! ```
//! The key service wraps it with the key-encryption key **of that name**, for this object's path
//! and version only.
//!
//! # Why an object of its own
//! It can be deleted. What the ring's versions hold stays for ever.
//!
//! # On failure
//! A key that is not at hand, a wrong key and damage are different errors.

use telesto_common::env::Random;
use zeroize::Zeroizing;

use crate::error::{Error, Result};
use crate::keys::{Epoch, draw};
use crate::ring::{KeyService, WrappingKey};

const MAGIC: &[u8; 4] = b"TLTK";
const VERSION: u8 = 1;
const HEAD: usize = 4 + 1 + 4;

/// Draws the data key of `epoch`; its stored form at `object`, wrapped with the key `name`.
///
/// # Errors
/// The key service's.
pub async fn make_table_key(
    service: &dyn KeyService,
    (name, epoch): (&str, u32),
    object: &str,
    random: &dyn Random,
) -> Result<Vec<u8>> {
    let key: WrappingKey = Zeroizing::new(draw(random));
    let mut out = MAGIC.to_vec();
    out.push(VERSION);
    out.extend_from_slice(&epoch.to_be_bytes());
    out.extend_from_slice(&service.wrap(name, &key, object).await?);
    Ok(out)
}

/// The data key stored at `object`, which is `epoch` of the key `name`.
///
/// # Errors
/// [`Error`].
pub async fn open_table_key(
    service: &dyn KeyService,
    (name, epoch): (&str, u32),
    object: &str,
    stored: &[u8],
) -> Result<Epoch> {
    let damaged =
        |reason: &str| Error::DamagedRing { object: object.to_owned(), reason: reason.to_owned() };
    let rest = stored.strip_prefix(MAGIC).filter(|rest| rest.len() >= HEAD - MAGIC.len());
    let (version, rest) = rest
        .and_then(<[u8]>::split_first)
        .ok_or_else(|| damaged("it does not begin as keys of tables do"))?;
    if *version != VERSION {
        let object = object.to_owned();
        return Err(Error::TooNew { object, found: *version, supported: VERSION });
    }
    let (number, wrapped) = rest.split_at(4);
    if number != epoch.to_be_bytes() {
        return Err(damaged("it is another epoch than its name says"));
    }
    let key = service.unwrap(name, wrapped, object).await?;
    Ok(Epoch::new(&key))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::KeyFile;

    #[tokio::test]
    async fn wrapped_key_opens_at_its_place_with_its_name_only() {
        let folder = tempfile::tempdir().expect("folder");
        let path = folder.path().join("keys");
        let random = crate::keys::tests::random();
        KeyFile::add_key(&path, "ring", &*random).expect("made");
        KeyFile::add_table_key(&path, "a", &*random).expect("added");
        KeyFile::add_table_key(&path, "b", &*random).expect("added");
        let file = KeyFile::read(&path, random.clone()).expect("reads");
        assert_eq!(file.current(), "ring", "keys of tables wrap no ring");
        assert!(file.has_table_key("a") && !file.has_table_key("ring"));
        let stored = make_table_key(&file, ("a", 1), "x/1", &*random).await.expect("made");
        open_table_key(&file, ("a", 1), "x/1", &stored).await.expect("opens");
        for (name, epoch, object) in [("b", 1, "x/1"), ("a", 2, "x/1"), ("a", 1, "x/2")] {
            let found = open_table_key(&file, (name, epoch), object, &stored).await;
            assert!(found.is_err(), "{name} {epoch} {object}");
        }
        for at in 0..stored.len() {
            let mut damaged = stored.clone();
            damaged[at] ^= 1;
            let found = open_table_key(&file, ("a", 1), "x/1", &damaged).await;
            assert!(found.is_err(), "byte {at}");
            let cut = open_table_key(&file, ("a", 1), "x/1", &stored[..at]).await;
            assert!(cut.is_err(), "cut at {at}");
        }
        let mut newer = stored.clone();
        newer[4] = 2;
        let found = open_table_key(&file, ("a", 1), "x/1", &newer).await;
        assert!(matches!(found, Err(Error::TooNew { found: 2, .. })), "{found:?}");
    }
}
