//! A node's local folder: who it is, and that it is in use once only.
//!
//! # Stored form
//! `identity`: the text `telesto node 2`, the node id (32 hexadecimal digits), the incarnation and
//! the CRC-32C of these three lines (8 hexadecimal digits), one a line. `log-life`: the same with
//! the header `telesto log life 1` and the number of lives that the log server's files have begun,
//! of a node of a cluster. The form before it, `telesto node 1`, had no checksum. `lock`: held
//! locked by the process that uses the folder. `log/`: the log server's files. `temp/`: spilled
//! data, emptied at start. `seen`: [`crate::witness`]. `database`: [`crate::belonging`].
//!
//! # Invariants
//! - One process uses a folder at a time; the system frees the lock when it dies.
//! - A folder that is made here is its user's alone (mode 700).
//! - Every start has a greater incarnation than the one before, on disk before it is used.
//! - A life of the log server counts once its own files say so: a start that ends before that (an
//!   address in use, a kill) is no life of theirs, and they stay believed.
//!
//! # On failure
//! [`Error::DataDir`] names the folder and the reason.

use std::fs::{self, File, TryLockError};
use std::io::Write as _;
use std::os::unix::fs::{DirBuilderExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use telesto_common::{Env, Incarnation, NodeId};

use crate::error::{Error, Result};

const HEADER: &str = "telesto node 2";
const LOG_LIFE: &str = "telesto log life 1";
/// The form without checksum: read, never written.
const OLD_HEADER: &str = "telesto node 1";
/// How many nodes of one machine find a folder beside each other by themselves.
const MAX_SIBLINGS: u32 = 64;

/// A claimed local folder.
#[derive(Debug)]
pub struct Node {
    /// The folder.
    pub folder: PathBuf,
    /// The node.
    pub id: NodeId,
    /// Its life.
    pub incarnation: Incarnation,
    /// Keeps the folder locked.
    _lock: File,
}

impl Node {
    /// Claims `folder`; makes it when there is none.
    ///
    /// # Errors
    /// [`Error::DataDir`], also when another process uses it.
    pub fn claim(env: &Env, folder: &Path) -> Result<Self> {
        match Self::try_claim(env, folder)? {
            Some(node) => Ok(node),
            None => Err(fail(folder, "another telesto process uses it")),
        }
    }

    /// Claims `folder`, or the first of `folder-2`, `folder-3`, … that no process uses.
    ///
    /// # Errors
    /// [`Error::DataDir`].
    pub fn claim_any(env: &Env, folder: &Path) -> Result<Self> {
        for number in 1..=MAX_SIBLINGS {
            let mut name = folder.as_os_str().to_owned();
            if number > 1 {
                name.push(format!("-{number}"));
            }
            if let Some(node) = Self::try_claim(env, Path::new(&name))? {
                return Ok(node);
            }
        }
        Err(fail(folder, "it and all its numbered siblings are in use"))
    }

    fn try_claim(env: &Env, folder: &Path) -> Result<Option<Self>> {
        let io = |error: std::io::Error| fail(folder, &error.to_string());
        own_folder(folder).map_err(io)?;
        let lock = File::options()
            .create(true)
            .truncate(false)
            .write(true)
            .open(folder.join("lock"))
            .map_err(io)?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Ok(None),
            Err(TryLockError::Error(error)) => return Err(io(error)),
        }
        let identity = folder.join("identity");
        let (id, last) = match fs::read(&identity) {
            Ok(bytes) => std::str::from_utf8(&bytes).ok().and_then(parse).ok_or_else(|| {
                fail(
                    folder,
                    "its file `identity` is damaged or was written by a newer version; restore that file from a backup, or upgrade",
                )
            })?,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => (env.node_id(), 0),
            Err(error) => return Err(io(error)),
        };
        let incarnation = Incarnation(last + 1);
        replace(&identity, &form(id, incarnation)).map_err(io)?;
        let temp = folder.join("temp");
        if temp.exists() {
            fs::remove_dir_all(&temp).map_err(io)?;
        }
        fs::create_dir_all(&temp).map_err(io)?;
        Ok(Some(Self { folder: folder.to_owned(), id, incarnation, _lock: lock }))
    }

    /// The next life of the log server of a node of a cluster.
    ///
    /// # Errors
    /// [`Error::DataDir`].
    pub fn next_log_life(&self) -> Result<Incarnation> {
        let damaged = || {
            fail(&self.folder, "its file `log-life` is damaged; restore that file from a backup")
        };
        match fs::read_to_string(self.folder.join("log-life")) {
            Ok(text) => match text.lines().collect::<Vec<_>>()[..] {
                [LOG_LIFE, life, _] => {
                    let last = life.parse().map_err(|_| damaged())?;
                    if log_life_form(last) != text {
                        return Err(damaged());
                    }
                    Ok(Incarnation(last + 1))
                }
                _ => Err(damaged()),
            },
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(Incarnation(1)),
            Err(error) => Err(fail(&self.folder, &error.to_string())),
        }
    }

    /// The log server's files say that life `life` has begun.
    ///
    /// # Errors
    /// [`Error::DataDir`].
    pub fn log_life_begun(&self, life: Incarnation) -> Result<()> {
        let file = self.folder.join("log-life");
        replace(&file, &log_life_form(life.0))
            .map_err(|error| fail(&self.folder, &error.to_string()))
    }

    /// Where the log server keeps its files.
    #[must_use]
    pub fn log_folder(&self) -> PathBuf {
        self.folder.join("log")
    }

    /// Where data is spilled.
    #[must_use]
    pub fn temp_folder(&self) -> PathBuf {
        self.folder.join("temp")
    }
}

fn fail(folder: &Path, reason: &str) -> Error {
    Error::DataDir { folder: folder.display().to_string(), reason: reason.to_owned() }
}

fn form(id: NodeId, incarnation: Incarnation) -> String {
    let body = format!("{HEADER}\n{id}\n{incarnation}\n");
    format!("{body}{:08x}\n", crc32c::crc32c(body.as_bytes()))
}

fn log_life_form(life: u64) -> String {
    let body = format!("{LOG_LIFE}\n{life}\n");
    format!("{body}{:08x}\n", crc32c::crc32c(body.as_bytes()))
}

fn parse(text: &str) -> Option<(NodeId, u64)> {
    let lines: Vec<&str> = text.lines().collect();
    match lines[..] {
        [HEADER, id, incarnation, _] => {
            let (id, incarnation) = (id.parse().ok()?, incarnation.parse().ok()?);
            // Compared whole: the numbers have one form only, and no byte is outside of the
            // checksum.
            (form(id, Incarnation(incarnation)) == text).then_some((id, incarnation))
        }
        [OLD_HEADER, id, incarnation] => Some((id.parse().ok()?, incarnation.parse().ok()?)),
        _ => None,
    }
}

/// Replaces a file so that a crash leaves the old one or the new one.
pub(crate) fn replace(path: &Path, text: &str) -> std::io::Result<()> {
    let next = path.with_extension("new");
    let mut file = File::create(&next)?;
    file.write_all(text.as_bytes())?;
    file.sync_all()?;
    fs::rename(&next, path)?;
    match path.parent() {
        Some(folder) => File::open(folder)?.sync_all(),
        None => Ok(()),
    }
}

/// Makes a folder, and those above it that are missing, for this user alone (mode 700); one that
/// others may look into is told.
///
/// # Errors
/// What the system says.
pub fn own_folder(folder: &Path) -> std::io::Result<()> {
    fs::DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
    if let Some(mode) = reach_of_others(folder) {
        tracing::warn!(
            folder = %folder.display(),
            mode = format!("{mode:o}"),
            "other users of this machine may look into the node's folder; chmod 700 it"
        );
    }
    Ok(())
}

/// The mode of a file or folder that everybody on this machine may read or write; `None`: they may
/// not.
#[must_use]
pub fn reach_of_others(path: &Path) -> Option<u32> {
    let mode = fs::metadata(path).ok()?.permissions().mode() & 0o777;
    (mode & 0o006 != 0).then_some(mode)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn folder_claimed_twice_is_refused_or_numbered() {
        let env = telesto_runtime::env();
        let directory = tempfile::tempdir().expect("directory");
        let folder = directory.path().join("node");
        let first = Node::claim(&env, &folder).expect("claimed");
        assert!(Node::claim(&env, &folder).expect_err("in use").to_string().contains("uses it"));
        let second = Node::claim_any(&env, &folder).expect("a sibling");
        assert_eq!(second.folder, directory.path().join("node-2"));
        assert_ne!(second.id, first.id);
        let (id, incarnation) = (first.id, first.incarnation);
        drop(first);
        let again = Node::claim_any(&env, &folder).expect("claimed again");
        assert_eq!((again.id, again.incarnation), (id, Incarnation(incarnation.0 + 1)));
    }

    #[tokio::test]
    async fn folder_is_made_for_its_user_alone() {
        let directory = tempfile::tempdir().expect("directory");
        let folder = directory.path().join("data/node");
        drop(Node::claim(&telesto_runtime::env(), &folder).expect("claimed"));
        for made in [directory.path().join("data"), folder.clone()] {
            let mode = fs::metadata(&made).expect("made").permissions().mode();
            assert_eq!(mode & 0o777, 0o700, "{}", made.display());
        }
        assert_eq!(reach_of_others(&folder), None);
        fs::set_permissions(&folder, fs::Permissions::from_mode(0o755)).expect("changed");
        assert_eq!(reach_of_others(&folder), Some(0o755));
    }

    #[tokio::test]
    async fn identity_that_is_damaged_is_named_not_replaced() {
        let env = telesto_runtime::env();
        let directory = tempfile::tempdir().expect("directory");
        drop(Node::claim(&env, directory.path()).expect("claimed"));
        let identity = directory.path().join("identity");
        let good = fs::read(&identity).expect("read");
        fs::write(&identity, "telesto node 9\n").expect("written");
        let error = Node::claim(&env, directory.path()).expect_err("damaged");
        assert!(error.to_string().contains("identity"), "{error}");
        for at in 0..good.len() {
            let mut damaged = good.clone();
            // Not even text any more, for some.
            damaged[at] ^= if at.is_multiple_of(2) { 0x80 } else { 1 };
            fs::write(&identity, &damaged).expect("written");
            let error = Node::claim(&env, directory.path()).expect_err("damaged");
            assert!(error.to_string().contains("identity"), "byte {at}: {error}");
            assert_eq!(fs::read(&identity).expect("read"), damaged, "replaced");
        }
    }

    #[tokio::test]
    async fn life_of_the_log_counts_only_once_it_has_begun() {
        let env = telesto_runtime::env();
        let directory = tempfile::tempdir().expect("directory");
        let life = |node: &Node| node.next_log_life().expect("read");
        let node = Node::claim(&env, directory.path()).expect("claimed");
        assert_eq!(life(&node), Incarnation(1));
        drop(node);
        // A start that got no further.
        let node = Node::claim(&env, directory.path()).expect("claimed");
        assert_eq!((node.incarnation, life(&node)), (Incarnation(2), Incarnation(1)));
        node.log_life_begun(Incarnation(1)).expect("written");
        assert_eq!(life(&node), Incarnation(2));
        fs::write(directory.path().join("log-life"), "telesto log life 1\n7\n00000000\n")
            .expect("written");
        assert!(node.next_log_life().expect_err("damaged").to_string().contains("log-life"));
    }

    #[tokio::test]
    async fn identity_of_the_form_before_is_read() {
        let env = telesto_runtime::env();
        let directory = tempfile::tempdir().expect("directory");
        let id = env.node_id();
        fs::write(directory.path().join("identity"), format!("telesto node 1\n{id}\n4\n"))
            .expect("written");
        let node = Node::claim(&env, directory.path()).expect("claimed");
        assert_eq!((node.id, node.incarnation), (id, Incarnation(5)));
    }
}
