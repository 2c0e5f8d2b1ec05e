//! What a node has seen of the log, kept in its folder: so that a bucket that was put back to an
//! earlier state is noticed.
//!
//! ```text
//! every REMEMBERED seconds and at the stop: bucket, chain version and its writer, newest entry applied and its hash ──> folder/seen
//! at the start, before anything is written:   the chain has that version, written by that writer?
//!              after the log is open:         it has that entry, with that hash?         no ──> refused, unless told to accept it
//! ```
//! # Stored form
//! `seen`: lines of text as in [`crate::node`], with a checksum.
//!
//! # Invariants
//! - Remembered is only what the node has applied: everybody was told of it, or will be.
//! - A log that ends before what was seen is accepted only where the chain goes on from what was
//!   seen and says so itself: a loglet that came later begins at or below it
//!   (`telesto cluster recover --accept-loss`).
//! - Refusing changes nothing, in the bucket and in the folder, but that the node has started once
//!   more (its record, the life of its log server).
//!
//! # On failure
//! [`Error::RolledBack`]. A file that cannot be written is told, and the database goes on.
//!
//! # Limits
//! What the node saw in its last [`REMEMBERED`] seconds before a crash is not in the file. A node
//! without a lasting folder notices nothing. An entry that the log has trimmed is not compared.

use std::fs;
use std::path::PathBuf;
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use telesto_bucket::Bucket;
use telesto_common::{Deadline, Env, Lsn, ShardId};
use telesto_log::chain::Chain;
use telesto_txn::{Database as _, Engine};

use crate::error::{Error, Result};
use crate::node::{Node, replace};

/// How often what was seen is written down.
pub const REMEMBERED: Duration = Duration::from_secs(5);
/// Bound on a look at the log.
const LOOK: Duration = Duration::from_secs(60);
const FILE: &str = "seen";
const HEADER: &str = "telesto seen 1";

/// See the module's text.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Seen {
    bucket: String,
    chain: u64,
    writer: String,
    lsn: Lsn,
    hash: String,
}

impl Seen {
    fn form(&self) -> String {
        let Self { bucket, chain, writer, lsn, hash } = self;
        let body = format!("{HEADER}\n{bucket}\n{chain}\n{writer}\n{}\n{hash}\n", lsn.0);
        format!("{body}{:08x}\n", crc32c::crc32c(body.as_bytes()))
    }

    fn parse(text: &str) -> Option<Self> {
        let lines: Vec<&str> = text.lines().collect();
        let [HEADER, bucket, chain, writer, lsn, hash, _] = lines[..] else { return None };
        let seen = Self {
            bucket: bucket.to_owned(),
            chain: chain.parse().ok()?,
            writer: writer.to_owned(),
            lsn: Lsn(lsn.parse().ok()?),
            hash: hash.to_owned(),
        };
        (seen.form() == text).then_some(seen)
    }
}

/// Remembers, and compares.
#[derive(Debug)]
pub struct Witness {
    env: Env,
    file: PathBuf,
    bucket: String,
    /// What was seen in an earlier life; `None`: nothing of this bucket, or it is not to be
    /// compared.
    before: Option<Seen>,
    /// What was seen before counts no more.
    accepts: bool,
    /// The loglet that was the active one by the chain version that was seen.
    active: OnceLock<u64>,
}

impl Witness {
    /// Of the node whose folder this is. `accept`: whatever the bucket is like, it is what is to
    /// be.
    ///
    /// # Errors
    /// [`Error::DataDir`] when the file is damaged.
    pub fn of(env: &Env, node: &Node, bucket: &str, accept: bool) -> Result<Self> {
        let file = node.folder.join(FILE);
        let fail =
            |reason: String| Error::DataDir { folder: node.folder.display().to_string(), reason };
        let before = match fs::read(&file) {
            Ok(bytes) => Some(std::str::from_utf8(&bytes).ok().and_then(Seen::parse).ok_or_else(|| {
                fail("its file `seen` is damaged; delete it to go on without what this node has seen".to_owned())
            })?),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => None,
            Err(error) => return Err(fail(error.to_string())),
        };
        let before = before.filter(|seen| seen.bucket == bucket && !accept);
        let (env, bucket) = (env.clone(), bucket.to_owned());
        Ok(Self { env, file, bucket, before, accepts: accept, active: OnceLock::new() })
    }

    /// Before the database is opened: whether the chain is the one that was seen, or goes on from
    /// it.
    ///
    /// # Errors
    /// [`Error::RolledBack`], and those of the bucket.
    pub async fn check_chain(&self, bucket: &Arc<dyn Bucket>, shard: ShardId) -> Result<()> {
        let Some(seen) = &self.before else { return Ok(()) };
        let version = telesto_log::chain_version(
            Arc::clone(bucket),
            self.env.clone(),
            shard,
            seen.chain,
            self.deadline(),
        );
        match version.await.map_err(telesto_txn::Error::from)? {
            Some(chain) if writer_of(&chain) == seen.writer => {
                self.active.get_or_init(|| chain.active().id);
                Ok(())
            }
            Some(_) => Err(self.refused(format!(
                "version {} of the log's chain is another one than this node has seen",
                seen.chain
            ))),
            None => Err(self.refused(format!(
                "this node has seen version {} of the log's chain, which is not there",
                seen.chain
            ))),
        }
    }

    /// After the log is open: whether it has the entry that was seen.
    ///
    /// # Errors
    /// [`Error::RolledBack`], and those of the log.
    pub async fn check_entry(&self, engine: &Engine) -> Result<()> {
        if self.accepts {
            return match fs::remove_file(&self.file) {
                Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(Error::DataDir {
                    folder: self.file.display().to_string(),
                    reason: error.to_string(),
                }),
                _ => Ok(()),
            };
        }
        let Some(seen) = self.before.as_ref().filter(|seen| seen.lsn > Lsn::ZERO) else {
            return Ok(());
        };
        let log = engine.log();
        let chain = log.chain();
        // Whoever gave entries up has written so into the chain: a loglet that came after what was
        // seen begins above it otherwise. Others may have followed since.
        let known = self.active.get().copied().unwrap_or(u64::MAX);
        let later = was_cut(chain.loglets.iter().map(|own| (own.id, own.start)), known, seen.lsn);
        let (applied, _) = engine.applied();
        if applied < seen.lsn && !later {
            return Err(self.refused(format!(
                "this node has seen entry {} of the log, which ends at entry {applied}",
                seen.lsn
            )));
        }
        if applied < seen.lsn || chain.trim.lsn > seen.lsn {
            return Ok(());
        }
        let hash = log.hash_before(seen.lsn.next(), self.deadline()).await;
        match hash {
            Ok(hash) if hex(&hash) == seen.hash || later => Ok(()),
            Ok(_) => Err(self.refused(format!(
                "entry {} of the log is another one than this node has seen",
                seen.lsn
            ))),
            // It may be trimmed meanwhile; a log that cannot be read is told by whoever reads it.
            Err(error) => {
                tracing::warn!(%error, "what this node saw of the log was not compared");
                Ok(())
            }
        }
    }

    /// Writes down what `engine` has applied, from now on.
    pub fn remembers(self: &Arc<Self>, engine: &Arc<Engine>) {
        let (witness, engine) = (Arc::clone(self), Arc::downgrade(engine));
        self.env.spawn("remembering what was seen of the log", async move {
            let mut last = None;
            while witness.note(&engine, &mut last).await {
                witness.env.clock.sleep(REMEMBERED).await;
            }
        });
    }

    /// Writes down what `engine` has applied, at the stop.
    pub async fn notes_now(&self, engine: &Arc<Engine>) {
        self.note(&Arc::downgrade(engine), &mut None).await;
    }

    /// Whether there is still something to be noted.
    async fn note(&self, engine: &Weak<Engine>, last: &mut Option<Lsn>) -> bool {
        let Some(engine) = engine.upgrade() else { return false };
        let (applied, _) = engine.applied();
        if *last == Some(applied) {
            return true;
        }
        let log = engine.log();
        let chain = log.chain();
        let Ok(hash) = log.hash_before(applied.next(), self.deadline()).await else { return true };
        drop(engine);
        let seen = Seen {
            bucket: self.bucket.clone(),
            chain: chain.version,
            writer: writer_of(&chain),
            lsn: applied,
            hash: hex(&hash),
        };
        let (file, text) = (self.file.clone(), seen.form());
        let written =
            self.env.blocking("writing down what was seen", move || replace(&file, &text));
        match written.await {
            Ok(Ok(())) => *last = Some(applied),
            Ok(Err(error)) => {
                tracing::warn!(%error, file = %self.file.display(), "what was seen of the log was not written down");
            }
            Err(error) => tracing::warn!(%error, "what was seen of the log was not written down"),
        }
        true
    }

    fn deadline(&self) -> Deadline {
        self.env.deadline(LOOK)
    }

    fn refused(&self, reason: String) -> Error {
        Error::RolledBack { url: self.bucket.clone(), reason }
    }
}

/// Whether a loglet (its id and its begin) that came after loglet `known` begins at or below an
/// entry that was seen.
fn was_cut(mut loglets: impl Iterator<Item = (u64, Lsn)>, known: u64, seen: Lsn) -> bool {
    loglets.any(|(id, start)| id > known && start <= seen)
}

fn writer_of(chain: &Chain) -> String {
    chain.writer.to_string()
}

fn hex(hash: &[u8; 16]) -> String {
    hash.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn log_that_was_cut_is_told_from_one_that_went_on_however_many_loglets_followed() {
        let cut = |loglets: &[(u64, u64)]| {
            was_cut(loglets.iter().map(|(id, start)| (*id, Lsn(*start))), 3, Lsn(100))
        };
        assert!(!cut(&[(2, 1), (3, 40)]), "nothing came after it");
        assert!(!cut(&[(3, 40), (4, 101), (5, 150)]), "it went on");
        assert!(cut(&[(3, 40), (4, 90)]), "entries were given up");
        assert!(cut(&[(3, 40), (4, 90), (5, 150), (6, 300)]), "and others followed");
    }

    #[test]
    fn what_was_seen_is_read_back_and_no_changed_byte_is_taken() {
        let seen = Seen {
            bucket: "s3://a/b".to_owned(),
            chain: 7,
            writer: "00ff".to_owned(),
            lsn: Lsn(123),
            hash: hex(&[7; 16]),
        };
        let text = seen.form();
        assert_eq!(Seen::parse(&text), Some(seen));
        for at in 0..text.len() {
            let mut damaged = text.clone().into_bytes();
            damaged[at] ^= 1;
            let damaged = String::from_utf8_lossy(&damaged).into_owned();
            assert_eq!(Seen::parse(&damaged), None, "byte {at}");
        }
    }
}
