//! Listings of a local folder, in key order, page by page.
//!
//! # Purpose
//! A folder's names come from the file system in no order. Sorting them all for every page costs
//! the whole folder in memory, and one look at each file's metadata; a log of 150,000 slots could
//! not be trimmed in time. Here a page reads the names only, keeps the smallest that are wanted,
//! and looks at the files of the page alone.
//!
//! # Invariants
//! - Keys come in byte order of the whole key. A folder `a` sorts as `a/`: its keys lie between
//!   those of `a-b` and `a0`.
//! - Folders that cannot hold a key after the one asked for are not entered.
//! - Memory: the names of one page, and the page.
//!
//! # On failure
//! A file or folder that vanishes meanwhile is left out. Anything else is the operating system's
//! error with the path.
//!
//! # Limits
//! No snapshot: what is made or removed while a listing runs may be in it or not. A listing of a
//! whole folder of *n* names reads them *n* / 16,000 times. Entity tags are not given. Names that
//! are no keys (not UTF-8, or of a file under way) are left out.

use std::collections::BinaryHeap;
use std::fs::Metadata;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path as FilePath, PathBuf};

use object_store::ObjectMeta;
use object_store::path::Path;

/// Objects of the first page; later ones of the same listing grow up to [`MAX_PAGE`], because
/// whoever reads on probably wants all.
pub(crate) const FIRST_PAGE: usize = 1000;
/// Objects of a page at most.
pub(crate) const MAX_PAGE: usize = 16_000;

/// Whether a file name is that of an upload under way (`name#7`) or a lock file (`name#0`).
pub(crate) fn is_hidden(name: &str) -> bool {
    name.split_once('#').is_some_and(|(_, number)| {
        !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit())
    })
}

/// The first `limit` objects under `prefix` (a folder) of `root` with keys after `after`.
pub(crate) fn page(
    root: &FilePath,
    prefix: Option<&Path>,
    after: Option<&Path>,
    limit: usize,
) -> Result<Vec<ObjectMeta>, (PathBuf, io::Error)> {
    let mut walk = Walk { after: after.map(Path::as_ref), limit, found: Vec::new() };
    let (mut folder, mut key) = (root.to_path_buf(), String::new());
    if let Some(prefix) = prefix.filter(|prefix| !prefix.as_ref().is_empty()) {
        folder.push(prefix.as_ref());
        key = format!("{prefix}/");
    }
    walk.folder(&folder, &key)?;
    Ok(walk.found)
}

struct Walk<'a> {
    after: Option<&'a str>,
    limit: usize,
    found: Vec<ObjectMeta>,
}

impl Walk<'_> {
    /// Adds the objects of `folder`, whose keys begin with `key` (which ends in a slash, or is
    /// empty).
    fn folder(&mut self, folder: &FilePath, key: &str) -> Result<(), (PathBuf, io::Error)> {
        let mut passed: Option<String> = None;
        loop {
            let wanted = self.limit - self.found.len();
            let names = self
                .smallest(folder, key, passed.as_deref(), wanted)
                .map_err(|error| (folder.to_path_buf(), error))?;
            let complete = names.len() < wanted;
            for name in names {
                if self.found.len() == self.limit {
                    return Ok(());
                }
                let at = folder.join(name.trim_end_matches('/'));
                if name.ends_with('/') {
                    self.folder(&at, &format!("{key}{name}"))?;
                } else if let Some(meta) = object(&at, &format!("{key}{name}"))? {
                    self.found.push(meta);
                }
                passed = Some(name);
            }
            // Empty folders and files that vanished leave a page short although more follows.
            if complete || self.found.len() == self.limit {
                return Ok(());
            }
        }
    }

    /// The `wanted` smallest names in `folder` after `passed` that may hold keys after the one
    /// asked for, in order; those of folders end in a slash.
    fn smallest(
        &self,
        folder: &FilePath,
        key: &str,
        passed: Option<&str>,
        wanted: usize,
    ) -> io::Result<Vec<String>> {
        let entries = match std::fs::read_dir(folder) {
            Ok(entries) => entries,
            Err(error)
                if matches!(
                    error.kind(),
                    io::ErrorKind::NotFound | io::ErrorKind::NotADirectory
                ) =>
            {
                return Ok(Vec::new());
            }
            Err(error) => return Err(error),
        };
        let mut names: BinaryHeap<String> = BinaryHeap::new();
        for entry in entries {
            let entry = entry?;
            let Ok(mut name) = entry.file_name().into_string() else { continue };
            let Ok(kind) = entry.file_type() else { continue };
            let is_folder = kind.is_dir() || (kind.is_symlink() && entry.path().is_dir());
            if is_folder {
                name.push('/');
            } else if is_hidden(&name) {
                continue;
            }
            if passed.is_some_and(|passed| name.as_str() <= passed) || !self.admits(key, &name) {
                continue;
            }
            if names.len() < wanted {
                names.push(name);
            } else if let Some(mut largest) = names.peek_mut()
                && name < *largest
            {
                *largest = name;
            }
        }
        Ok(names.into_sorted_vec())
    }

    /// Whether `name` under `key` is, or may hold, a key after the one asked for.
    fn admits(&self, key: &str, name: &str) -> bool {
        let Some(after) = self.after else { return true };
        let common = key.len().min(after.len());
        match key.as_bytes()[..common].cmp(&after.as_bytes()[..common]) {
            std::cmp::Ordering::Less => return false,
            std::cmp::Ordering::Greater => return true,
            std::cmp::Ordering::Equal if after.len() <= key.len() => return true,
            std::cmp::Ordering::Equal => {}
        }
        let rest = &after.as_bytes()[common..];
        name.as_bytes() > rest || (name.ends_with('/') && rest.starts_with(name.as_bytes()))
    }
}

/// The object at `file`; `None` when it is gone, is no regular file, or has a name that is no key.
fn object(file: &FilePath, key: &str) -> Result<Option<ObjectMeta>, (PathBuf, io::Error)> {
    let Ok(location) = Path::parse(key) else { return Ok(None) };
    let failed = |error| (file.to_path_buf(), error);
    let meta: Metadata = match std::fs::metadata(file) {
        Ok(meta) if meta.is_file() => meta,
        Ok(_) => return Ok(None),
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(failed(error)),
    };
    let no_time = || failed(io::Error::other("the file system tells no time of it"));
    let last_modified = appeared(&meta).ok_or_else(no_time)?;
    Ok(Some(ObjectMeta { location, last_modified, size: meta.len(), e_tag: None, version: None }))
}

/// When an object got its name. A file is written under a temporary name first, and the process may
/// be stopped, or the machine suspended, before it gets the one of its key: what it was modified at
/// then is older than anybody could have seen it. Giving it a name changes its status. Whoever
/// changes that later (a copy, other rights) makes it younger than it is, and it is kept for
/// longer.
fn appeared(meta: &Metadata) -> Option<chrono::DateTime<chrono::Utc>> {
    let modified = (meta.mtime(), meta.mtime_nsec());
    let (seconds, nanos) = modified.max((meta.ctime(), meta.ctime_nsec()));
    chrono::DateTime::from_timestamp(seconds, u32::try_from(nanos).ok()?)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    fn keys(metas: Vec<ObjectMeta>) -> Vec<String> {
        metas.into_iter().map(|meta| meta.location.to_string()).collect()
    }

    /// Whoever put it was stopped for a day between writing it and giving it its name.
    #[test]
    fn object_is_as_young_as_its_name() {
        let folder = tempfile::tempdir().expect("temporary folder");
        let (temporary, file) = (folder.path().join("slot#1"), folder.path().join("slot"));
        std::fs::write(&temporary, "x").expect("file");
        let written = std::fs::File::options().write(true).open(&temporary).expect("file");
        let now = written.metadata().and_then(|meta| meta.modified()).expect("a time");
        let day_before = now - std::time::Duration::from_secs(24 * 3600);
        written.set_modified(day_before).expect("set time");
        std::fs::hard_link(&temporary, &file).expect("linked");
        let listed = page(folder.path(), None, None, 10).expect("lists");
        let appeared: std::time::SystemTime = listed[0].last_modified.into();
        assert!(appeared > now - std::time::Duration::from_secs(60), "{appeared:?}");
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(48))]

        /// Whatever the tree, the pages are those of all its keys in order.
        #[test]
        fn pages_of_any_tree_are_its_keys_in_order(
            names in prop::collection::btree_set("[ab0.-]{1,3}(/[ab0.-]{1,2}){0,2}", 0..40),
            limit in 1_usize..7,
            after in "[ab0./-]{0,5}",
        ) {
            let folder = tempfile::tempdir().expect("temporary folder");
            let mut made = BTreeSet::new();
            for name in names {
                let Ok(key) = Path::parse(&name) else { continue };
                let file = folder.path().join(key.as_ref());
                let parent = file.parent().expect("a parent");
                // A key that is another's folder cannot be made; nor is it ever.
                if std::fs::create_dir_all(parent).is_ok() && std::fs::write(&file, "x").is_ok() {
                    made.insert(key.to_string());
                }
            }
            std::fs::create_dir_all(folder.path().join("empty/folder")).expect("folder");
            std::fs::write(folder.path().join("hidden#1"), "x").expect("file");
            let list = |prefix: Option<&Path>, after: Option<&Path>, limit| {
                keys(page(folder.path(), prefix, after, limit).expect("lists"))
            };
            let after = Path::from(after);
            let mut all = Vec::new();
            let mut last = None;
            loop {
                let some = list(None, last.as_ref(), limit);
                let short = some.len() < limit;
                last = some.last().map(|key| Path::from(key.as_str())).or(last);
                all.extend(some);
                if short {
                    break;
                }
            }
            prop_assert_eq!(&all, &made.iter().cloned().collect::<Vec<_>>());
            for prefix in ["a", "b/a", "nowhere"] {
                let expected: Vec<String> = made
                    .iter()
                    .filter(|key| key.starts_with(&format!("{prefix}/")))
                    .filter(|key| key.as_str() > after.as_ref())
                    .take(limit)
                    .cloned()
                    .collect();
                prop_assert_eq!(list(Some(&Path::from(prefix)), Some(&after), limit), expected);
            }
        }
    }
}
