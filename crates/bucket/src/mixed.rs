//! Reading a bucket that is being turned over: some objects are encrypted, some are not yet.
//!
//! ```text
//! whole object    read it, look at its first bytes
//! range, size     what form has it? ── known ──> read so, and compare tag, size and time with those that were looked at
//!                                 └─ no ─────> one GET of its first bytes   <── they differ: somebody turned it over meanwhile
//! ```
//! # Invariants
//! - Ciphertext is never given out as plaintext: a range of an object in clear counts only if the
//!   very object that was looked at was read.
//! - An object that begins as encrypted ones do is encrypted: if it does not decrypt, that is an
//!   error. None of the database's own formats begins so.
//!
//! # On failure
//! As [`crate::encrypted`].
//!
//! # Limits
//! Whoever can write to the bucket can put an object in clear in the place of any other while the
//! database is being turned over: nothing tells them apart. Sizes in listings are those of what is
//! stored. [`MOST`] forms are remembered.

use std::collections::BTreeMap;

use chrono::{DateTime, Utc};
use object_store::path::Path;
use object_store::{
    Error, GetOptions, GetRange, GetResult, GetResultPayload, ObjectMeta, ObjectStore as _, Result,
};
use parking_lot::Mutex;
use telesto_cipher::{Damage, HEADER, Header};

use crate::encrypted::{Encrypted, Undecipherable};

/// Forms that are remembered; then all are forgotten.
const MOST: usize = 100_000;
/// How often an object that is exchanged while it is read is looked at.
const ATTEMPTS: usize = 5;

/// What is known of an object.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Form {
    /// It stays so: nobody writes in clear who knows the keys.
    Encrypted,
    /// As long as it is the one that was looked at.
    Clear(Version),
}

/// Which object stood at a path.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Version {
    tag: Option<String>,
    size: u64,
    modified: DateTime<Utc>,
}

impl From<&ObjectMeta> for Version {
    fn from(meta: &ObjectMeta) -> Self {
        Self { tag: meta.e_tag.clone(), size: meta.size, modified: meta.last_modified }
    }
}

/// The forms of objects that were looked at.
#[derive(Debug, Default)]
pub(crate) struct Forms(Mutex<BTreeMap<Path, Form>>);

impl Forms {
    fn get(&self, location: &Path) -> Option<Form> {
        self.0.lock().get(location).cloned()
    }

    fn forget(&self, location: &Path) {
        self.0.lock().remove(location);
    }

    fn note(&self, location: &Path, form: Form) {
        let mut known = self.0.lock();
        if known.len() >= MOST {
            known.clear();
        }
        known.insert(location.clone(), form);
    }
}

/// Whether an object that begins so is encrypted.
pub(crate) fn is_encrypted(begin: &[u8]) -> std::result::Result<bool, Damage> {
    match Header::decode(begin) {
        Ok(_) => Ok(true),
        Err(Damage::NotEncrypted) => Ok(false),
        Err(other) => Err(other),
    }
}

impl Encrypted {
    fn form(&self, location: &Path, begin: &[u8], meta: &ObjectMeta) -> Result<Form> {
        let encrypted =
            is_encrypted(begin).map_err(|damage| Undecipherable::error(location, damage))?;
        let form = match encrypted {
            true => Form::Encrypted,
            false => Form::Clear(meta.into()),
        };
        self.vault.forms().note(location, form.clone());
        Ok(form)
    }

    /// Looks at the begin of an object.
    async fn look_at(&self, location: &Path, like: &GetOptions) -> Result<Form> {
        let range = Some(GetRange::Bounded(0..HEADER as u64));
        let options = GetOptions { range, head: false, ..like.clone() };
        match self.store.get_opts(location, options).await {
            Ok(found) => {
                let meta = found.meta.clone();
                self.form(location, &found.bytes().await?, &meta)
            }
            Err(error @ (Error::NotFound { .. } | Error::Precondition { .. })) => Err(error),
            // An empty object has no range that could be asked for.
            Err(error) => {
                let options = GetOptions { head: true, range: None, ..like.clone() };
                let meta = self.store.get_opts(location, options).await?.meta;
                if meta.size == 0 { self.form(location, &[], &meta) } else { Err(error) }
            }
        }
    }

    /// A read of an object that may not be encrypted yet. `options` are without their range.
    pub(crate) async fn get_mixed(
        &self,
        location: &Path,
        asked: Option<GetRange>,
        options: GetOptions,
    ) -> Result<GetResult> {
        self.vault.look_if_due();
        if asked.is_none() && !options.head {
            let found = self.store.get_opts(location, options).await?;
            let (meta, range) = (found.meta.clone(), found.range.clone());
            let (attributes, extensions) = (found.attributes.clone(), found.extensions.clone());
            let body = found.bytes().await?;
            let form = self.form(location, &body, &meta)?;
            let stream = futures::stream::once(async { Ok(body) });
            let payload = GetResultPayload::Stream(Box::pin(stream));
            let result = GetResult { payload, meta, range, attributes, extensions };
            return match form {
                Form::Encrypted => self.opened(location, None, result).await,
                Form::Clear(_) => Ok(result),
            };
        }
        for _ in 0..ATTEMPTS {
            let form = match self.vault.forms().get(location) {
                Some(form) => form,
                None => self.look_at(location, &options).await?,
            };
            let looked_at = match form {
                Form::Encrypted => {
                    let read = self.get_encrypted(location, asked.clone(), options.clone()).await;
                    // It may be another object of that path, which a process without the keys has
                    // written.
                    if read.is_err() {
                        self.vault.forms().forget(location);
                    }
                    return read;
                }
                Form::Clear(version) => version,
            };
            let options = GetOptions { range: asked.clone(), ..options.clone() };
            let found = match self.store.get_opts(location, options).await {
                Ok(found) => found,
                Err(error) => {
                    self.vault.forms().forget(location);
                    return Err(error);
                }
            };
            if Version::from(&found.meta) == looked_at {
                return Ok(found);
            }
            self.vault.forms().forget(location);
        }
        Err(Error::Generic {
            store: "bucket",
            source: format!("{location} was exchanged again and again while it was read").into(),
        })
    }
}
