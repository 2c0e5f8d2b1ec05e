//! Key-encryption keys in a file.
//!
//! # Format
//! Text. A line is empty, begins with `#`, or is `NAME KEY`: a name of letters, digits, `.`, `_`
//! and `-`, at most 64 of them, and 32 random bytes in base64, or the ARN of a key of AWS KMS. New
//! key rings are wrapped with the last key of the file; the others open what was wrapped with them
//! before. A line `NAME KEY tables` has a key for tables, which wraps no ring. A file may have keys
//! for tables alone: that does not ask for an encrypted database.
//!
//! # Invariants
//! A file that says anything else is refused as a whole, by line; no key appears in a message.
//!
//! # Limits
//! Whoever can read the file can read the database, as far as its keys are in it and not in a key
//! management service: its permissions are the user's concern, and a file that others may read is
//! warned of in the log.

use std::fmt;
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _};
use std::path::Path;

use async_trait::async_trait;
use aws_lc_rs::aead::{AES_256_GCM, Aad, LessSafeKey, Nonce, UnboundKey};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use parking_lot::Mutex;
use telesto_common::env::Random;
use zeroize::Zeroizing;

use crate::error::{Error, Result};
use crate::keys::draw;
use crate::kms::{ARN, Kms, KmsError, KmsKey};
use crate::ring::{KeyService, WrappingKey};

const NONCE: usize = 12;
const HEAD: &str = "\
# Keys of a Telesto database: one a line, its name and 32 random bytes in base64. New things use the last one.
# Keep a copy in another safe place: without this file nobody can read the database, and nobody can help.
";

const TABLES: &str = "tables";

/// Where a key is.
#[derive(Debug)]
enum Held {
    Here(LessSafeKey),
    InKms(KmsKey),
}

#[derive(Debug)]
struct Line {
    name: String,
    key: Held,
    for_tables: bool,
}

/// The keys of a key file.
pub struct KeyFile {
    place: String,
    keys: Vec<Line>,
    kms: Option<std::sync::Arc<dyn Kms>>,
    nonces: Mutex<Box<dyn FnMut() -> [u8; NONCE] + Send>>,
}

impl fmt::Debug for KeyFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KeyFile").field("place", &self.place).field("names", &self.names()).finish()
    }
}

impl KeyFile {
    /// Reads the file at `path`.
    ///
    /// # Errors
    /// [`Error::KeyFile`].
    pub fn read(path: &Path, random: std::sync::Arc<dyn Random>) -> Result<Self> {
        let place = path.display().to_string();
        let shown = path.to_string_lossy();
        if shown.contains("://") {
            return Err(fail(
                &place,
                "it is a URL: give the path of a key file, which `telesto keys create FILE` makes; `telesto keys create FILE --kms ARN` has its keys stay in AWS KMS",
            ));
        }
        let text = std::fs::read_to_string(path).map(Zeroizing::new).map_err(|error| {
            fail(
                &place,
                &format!("it cannot be read: {error}; `telesto keys create FILE` makes one"),
            )
        })?;
        let keys = parse(&place, &text)?;
        let secret = keys.iter().any(|line| matches!(line.key, Held::Here(_)));
        let mode = std::fs::metadata(path).map(|meta| meta.permissions().mode());
        if secret && mode.is_ok_and(|mode| mode & 0o077 != 0) {
            tracing::warn!(
                file = place,
                "other users of this machine may read the encryption key file; chmod 600 it"
            );
        }
        let nonces = Mutex::new(Box::new(move || draw(&*random)) as Box<_>);
        Ok(Self { place, keys, kms: None, nonces })
    }

    /// Asks `kms` for the keys that are in a key management service.
    #[must_use]
    pub fn with_kms(mut self, kms: std::sync::Arc<dyn Kms>) -> Self {
        self.kms = Some(kms);
        self
    }

    /// Makes the file at `path` with a new key called `name`, or adds that key at the end of a file
    /// that is there.
    ///
    /// # Errors
    /// [`Error::KeyFile`], also when the file has a key of that name.
    pub fn add_key(path: &Path, name: &str, random: &dyn Random) -> Result<()> {
        Self::add(path, name, &drawn(random), "")
    }

    /// The same with a key for tables.
    ///
    /// # Errors
    /// As [`KeyFile::add_key`].
    pub fn add_table_key(path: &Path, name: &str, random: &dyn Random) -> Result<()> {
        check_table_key_name(name).map_err(|reason| fail(&path.display().to_string(), &reason))?;
        Self::add(path, name, &drawn(random), " tables")
    }

    /// The same with a key that stays in a key management service.
    ///
    /// # Errors
    /// As [`KeyFile::add_key`].
    pub fn add_kms_key(path: &Path, name: &str, key: &KmsKey, for_tables: bool) -> Result<()> {
        if !for_tables {
            return Self::add(path, name, key.arn(), "");
        }
        check_table_key_name(name).map_err(|reason| fail(&path.display().to_string(), &reason))?;
        Self::add(path, name, key.arn(), " tables")
    }

    fn add(path: &Path, name: &str, key: &str, behind: &str) -> Result<()> {
        use std::io::Write as _;
        let place = path.display().to_string();
        let io = |error: std::io::Error| fail(&place, &error.to_string());
        check_name(name).map_err(|reason| fail(&place, &reason))?;
        let mut text = match std::fs::read_to_string(path) {
            Ok(text) => {
                if parse(&place, &text)?.iter().any(|line| line.name == name) {
                    return Err(fail(
                        &place,
                        &format!("it has a key {name:?} already; give another name with --name"),
                    ));
                }
                Zeroizing::new(text)
            }
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                Zeroizing::new(HEAD.to_owned())
            }
            Err(error) => return Err(io(error)),
        };
        if !text.ends_with('\n') {
            text.push('\n');
        }
        text.push_str(&format!("{name} {key}{behind}\n"));
        // Replaced as a whole: a crash leaves the old file or the new one, never half a key.
        let mut next = path.as_os_str().to_owned();
        next.push(".new");
        let next = Path::new(&next);
        let mut options = std::fs::OpenOptions::new();
        let mut file =
            options.write(true).create(true).truncate(true).mode(0o600).open(next).map_err(io)?;
        file.write_all(text.as_bytes()).and_then(|()| file.sync_all()).map_err(io)?;
        std::fs::rename(next, path).map_err(io)?;
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
        let folder = folder.unwrap_or(Path::new("."));
        std::fs::File::open(folder).and_then(|folder| folder.sync_all()).map_err(io)
    }

    /// The names of its keys, in the file's order.
    #[must_use]
    pub fn names(&self) -> Vec<&str> {
        self.keys.iter().map(|line| &line.name[..]).collect()
    }

    fn key(&self, name: &str) -> Result<&Held> {
        let found = self.keys.iter().find(|line| line.name == name);
        found
            .map(|line| &line.key)
            .ok_or_else(|| Error::UnknownKey { name: name.to_owned(), place: self.place.clone() })
    }

    fn kms(&self) -> Result<&dyn Kms> {
        self.kms.as_deref().ok_or_else(|| {
            Error::Service(format!(
                "{} has keys in AWS KMS, and this program was not told how to reach it",
                self.place
            ))
        })
    }

    fn wrong_key(&self, name: &str, object: &str) -> Error {
        Error::WrongKey {
            name: name.to_owned(),
            place: self.place.clone(),
            object: object.to_owned(),
        }
    }
}

/// A new key, as it stands in a file.
fn drawn(random: &dyn Random) -> Zeroizing<String> {
    let key = Zeroizing::new(draw::<32>(random));
    Zeroizing::new(STANDARD.encode(key.as_slice()))
}

#[async_trait]
impl KeyService for KeyFile {
    fn place(&self) -> String {
        self.place.clone()
    }

    fn current(&self) -> String {
        let rings = self.keys.iter().rfind(|line| !line.for_tables);
        rings.map(|line| line.name.clone()).unwrap_or_default()
    }

    fn has_table_key(&self, name: &str) -> bool {
        self.keys.iter().any(|line| line.for_tables && line.name == name)
    }

    async fn wrap(&self, name: &str, key: &WrappingKey, object: &str) -> Result<Vec<u8>> {
        let wrapping = match self.key(name)? {
            Held::Here(wrapping) => wrapping,
            Held::InKms(there) => {
                let wrapped = self.kms()?.wrap(there, key, object).await;
                return wrapped.map_err(|error| Error::Service(error.to_string()));
            }
        };
        let nonce = (self.nonces.lock())();
        let mut out = nonce.to_vec();
        out.extend_from_slice(&key[..]);
        let nonce = Nonce::assume_unique_for_key(nonce);
        let tag = wrapping
            .seal_in_place_separate_tag(nonce, Aad::from(object.as_bytes()), &mut out[NONCE..])
            .map_err(|_| Error::Service("a key could not be wrapped".to_owned()))?;
        out.extend_from_slice(tag.as_ref());
        Ok(out)
    }

    async fn unwrap(&self, name: &str, wrapped: &[u8], object: &str) -> Result<WrappingKey> {
        let wrong = || self.wrong_key(name, object);
        let key = match self.key(name)? {
            Held::Here(key) => key,
            Held::InKms(there) => {
                return self.kms()?.unwrap(there, wrapped, object).await.map_err(
                    |error| match error {
                        KmsError::Wrong => wrong(),
                        KmsError::Failed(why) => Error::Service(why),
                    },
                );
            }
        };
        let (nonce, rest) = wrapped.split_first_chunk::<NONCE>().ok_or_else(wrong)?;
        let (text, tag) = rest.split_at_checked(32).ok_or_else(wrong)?;
        let mut out = Zeroizing::new([0; 32]);
        let nonce = Nonce::assume_unique_for_key(*nonce);
        key.open_separate_gather(nonce, Aad::from(object.as_bytes()), text, tag, &mut out[..])
            .map_err(|_| wrong())?;
        Ok(out)
    }
}

fn fail(file: &str, reason: &str) -> Error {
    Error::KeyFile { file: file.to_owned(), reason: reason.to_owned() }
}

fn check_name(name: &str) -> std::result::Result<(), String> {
    let good = |c: char| c.is_ascii_alphanumeric() || ['.', '_', '-'].contains(&c);
    if name.is_empty() || name.len() > 64 || !name.chars().all(good) {
        return Err(format!(
            "{name:?} is no name for a key: it has letters, digits, dots, underscores and dashes, 64 at most"
        ));
    }
    Ok(())
}

/// Whether `name` can be a key of tables: it is a part of objects' paths.
///
/// # Errors
/// Why not.
pub fn check_table_key_name(name: &str) -> std::result::Result<(), String> {
    check_name(name)?;
    if !name.starts_with(|c: char| c.is_ascii_alphanumeric() || c == '_') {
        return Err(format!("{name:?} is no name for a key of tables: it begins with a letter"));
    }
    Ok(())
}

fn parse(place: &str, text: &str) -> Result<Vec<Line>> {
    let mut keys: Vec<Line> = Vec::new();
    for (line, number) in text.lines().zip(1..) {
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let wrong = |reason: &str| fail(place, &format!("line {number}: {reason}"));
        let Some((name, key)) = line.split_once(char::is_whitespace) else {
            return Err(wrong(
                "it has no name and key with a blank between; `telesto keys create FILE` writes such lines",
            ));
        };
        check_name(name).map_err(|reason| wrong(&reason))?;
        if keys.iter().any(|line| line.name == name) {
            return Err(wrong(&format!("the name {name:?} is there twice; remove one")));
        }
        let (key, for_tables) = match key.trim().split_once(char::is_whitespace) {
            None => (key.trim(), false),
            Some((key, word)) if word.trim() == TABLES => (key, true),
            Some(_) => {
                return Err(wrong("behind the key stands nothing, or the word \"tables\""));
            }
        };
        if key.starts_with(ARN) {
            let key = KmsKey::parse(key).map(Held::InKms).map_err(|reason| wrong(&reason))?;
            keys.push(Line { name: name.to_owned(), key, for_tables });
            continue;
        }
        let decoded = STANDARD.decode(key.trim()).map(Zeroizing::new);
        let key = decoded.ok().and_then(|key| {
            (key.len() == 32).then(|| UnboundKey::new(&AES_256_GCM, &key).ok()).flatten()
        });
        let key = key.ok_or_else(|| {
            wrong("the key is not 32 bytes in base64 (44 characters); `telesto keys create FILE` makes one")
        })?;
        let key = Held::Here(LessSafeKey::new(key));
        keys.push(Line { name: name.to_owned(), key, for_tables });
    }
    if keys.is_empty() {
        return Err(fail(place, "it has no key; `telesto keys create FILE` adds one"));
    }
    Ok(keys)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn file_made_key_by_key_wraps_with_its_last_and_opens_with_all() {
        let folder = tempfile::tempdir().expect("folder");
        let path = folder.path().join("keys");
        let random = crate::keys::tests::random();
        KeyFile::add_key(&path, "one", &*random).expect("made");
        let first = KeyFile::read(&path, random.clone()).expect("reads");
        let secret = Zeroizing::new([7; 32]);
        let wrapped = first.wrap("one", &secret, "keyring/1").await.expect("wraps");
        KeyFile::add_key(&path, "two", &*random).expect("added");
        let twice = KeyFile::add_key(&path, "two", &*random).expect_err("refused");
        assert!(twice.to_string().contains("already"), "{twice}");
        let both = KeyFile::read(&path, random.clone()).expect("reads");
        assert_eq!((both.names(), both.current()), (vec!["one", "two"], "two".to_owned()));
        let opened = both.unwrap("one", &wrapped, "keyring/1").await.expect("opens");
        assert_eq!(opened, secret);
        let elsewhere = both.unwrap("one", &wrapped, "keyring/2").await;
        assert!(matches!(elsewhere, Err(Error::WrongKey { .. })), "{elsewhere:?}");
        let wrong = both.unwrap("two", &wrapped, "keyring/1").await;
        assert!(matches!(wrong, Err(Error::WrongKey { .. })), "{wrong:?}");
        let unknown = first.unwrap("two", &wrapped, "keyring/1").await.expect_err("unknown");
        assert!(unknown.to_string().contains("\"two\""), "{unknown}");
        let mode = std::fs::metadata(&path).expect("there").permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        assert!(!format!("{both:?}").contains("[7"));
    }

    #[test]
    fn file_that_says_anything_else_is_refused_by_line_without_its_keys() {
        let key = STANDARD.encode([0x5A; 32]);
        for (text, named) in [
            (String::new(), "no key"),
            ("# nothing\n".to_owned(), "no key"),
            (format!("a {key}\nb"), "line 2"),
            (format!("a/b {key}"), "line 1"),
            (format!("a {key}\na {key}"), "twice"),
            (format!("a {}", STANDARD.encode([0x5A; 31])), "32 bytes"),
            ("a not-base64".to_owned(), "32 bytes"),
            (format!("a {key} table"), "nothing, or the word"),
        ] {
            let error = parse("f", &text).expect_err(&text).to_string();
            assert!(error.contains(named) && !error.contains(&key), "{error}");
        }
        assert_eq!(parse("f", &format!("# x\n\n  a   {key}  \r\n")).expect("reads").len(), 1);
        let missing = KeyFile::read(Path::new("/nowhere/keys"), crate::keys::tests::random());
        assert!(missing.expect_err("missing").to_string().contains("keys create"));
        let kms = KeyFile::read(Path::new("awskms://key/1"), crate::keys::tests::random());
        assert!(kms.expect_err("no file").to_string().contains("--kms ARN"));
    }

    /// Wraps by naming the key and the object in clear, as no service does.
    #[derive(Debug)]
    struct Told;

    #[async_trait]
    impl Kms for Told {
        async fn wrap(
            &self,
            key: &KmsKey,
            plain: &WrappingKey,
            object: &str,
        ) -> std::result::Result<Vec<u8>, KmsError> {
            Ok([key.arn().as_bytes(), object.as_bytes(), plain.as_slice()].concat())
        }

        async fn unwrap(
            &self,
            key: &KmsKey,
            wrapped: &[u8],
            object: &str,
        ) -> std::result::Result<WrappingKey, KmsError> {
            if wrapped == b"away" {
                return Err(KmsError::Failed("not reached".to_owned()));
            }
            let head = [key.arn().as_bytes(), object.as_bytes()].concat();
            let plain = wrapped.strip_prefix(head.as_slice()).ok_or(KmsError::Wrong)?;
            Ok(Zeroizing::new(plain.try_into().map_err(|_| KmsError::Wrong)?))
        }
    }

    #[tokio::test]
    async fn key_that_stays_in_a_service_wraps_there_and_stands_beside_others() {
        let folder = tempfile::tempdir().expect("folder");
        let path = folder.path().join("keys");
        let random = crate::keys::tests::random();
        let there = KmsKey::parse("arn:aws:kms:eu-west-1:111122223333:key/1").expect("a key");
        KeyFile::add_key(&path, "own", &*random).expect("made");
        KeyFile::add_kms_key(&path, "kms", &there, false).expect("added");
        KeyFile::add_kms_key(&path, "group", &there, true).expect("added");
        let read = || KeyFile::read(&path, random.clone()).expect("reads");
        let secret = Zeroizing::new([7; 32]);
        let alone = read().wrap("kms", &secret, "keyring/1").await.expect_err("no client");
        assert!(alone.to_string().contains("AWS KMS"), "{alone}");
        let file = read().with_kms(std::sync::Arc::new(Told));
        assert_eq!(file.current(), "kms");
        assert!(file.has_table_key("group") && !file.has_table_key("kms"));
        let wrapped = file.wrap("kms", &secret, "keyring/1").await.expect("wraps");
        assert!(wrapped.starts_with(there.arn().as_bytes()));
        assert_eq!(file.unwrap("kms", &wrapped, "keyring/1").await.expect("opens"), secret);
        let elsewhere = file.unwrap("kms", &wrapped, "keyring/2").await;
        assert!(matches!(elsewhere, Err(Error::WrongKey { .. })), "{elsewhere:?}");
        let away = file.unwrap("kms", b"away", "keyring/1").await;
        assert!(matches!(away, Err(Error::Service(_))), "{away:?}");
        let own = file.wrap("own", &secret, "keyring/1").await.expect("wraps");
        assert_eq!(file.unwrap("own", &own, "keyring/1").await.expect("opens"), secret);
        let alias = "kms arn:aws:kms:eu-west-1:111122223333:alias/a";
        let error = parse("f", alias).expect_err("an alias").to_string();
        assert!(error.contains("line 1") && error.contains("alias"), "{error}");
    }
}
