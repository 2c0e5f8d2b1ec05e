//! The lives of a log server: whether its directory is the one it had when it made its promises.
//!
//! ```text
//! <shard>.lives/<life of the node, 20 digits>-<incarnation of the server, 16 hexadecimal digits>
//! <shard>.doubts/<loglet, 20 digits>-<token>
//! <shard>.over/<loglet, 20 digits>
//! <shard>.counted/<number of a life in the bucket, 20 digits>-<its mark, 16 hexadecimal digits>
//! ```
//! All are empty files: a name is durable or is not there.
//!
//! # Invariants
//! - Lives are counted outside of the directory too, each after its name is in it: a start that
//!   ends before that is no life. A directory that knows neither the last life that was counted nor
//!   the one after it is another directory, or an older copy: the server then takes a new
//!   incarnation, and every loglet it finds is doubtful for good. So does a server whose directory
//!   names no life at all.
//! - A machine that is put back to a snapshot has both, the directory and the count beside it, as
//!   they were. So the bucket counts lives too, each under a mark that its directory drew
//!   ([`CountedLife`]): a directory without the mark of the last life that was counted there is not
//!   the one of that life.
//! - A mark is in the directory before it is in the bucket, and no server answers anybody before
//!   its mark is there. A start that ends between the two leaves the marks of the lives before
//!   beside its own, and whichever of them the bucket has is found.
//! - A loglet that has ended and was removed is never begun here again, nor one before it: an owner
//!   that was succeeded without knowing it could otherwise make a majority of servers that have
//!   removed it. But for a bucket that was put back to an older copy, on request
//!   ([`forget_ended`]): its chain goes on with numbers that were given before.
//! - The doubts are written before the life that follows them: a crash between leaves both to be
//!   found again.
//!
//! # On failure
//! Those of the local disk; the server is not opened.
//!
//! # Limits
//! A directory that is put back to an older state of the same life cannot be told from one that
//! went through a crash. What the archive and the checkpoint hold beyond it is found by a recovery
//! (`crate::recover`). A bucket that counts no lives (of a node that has just been upgraded, or
//! that was told to accept the bucket as it is) says nothing against a directory; lives that a
//! version before begins there are not in the bucket.

use telesto_common::{Env, Incarnation, ShardId};

use super::protocol::LogletKey;
use super::segment::{loglet_of, shard_directory};
use crate::disk::Disk;
use crate::error::Result;

fn lives(shard: ShardId) -> String {
    format!("{shard}.lives")
}

fn doubts(shard: ShardId) -> String {
    format!("{shard}.doubts")
}

fn over(shard: ShardId) -> String {
    format!("{shard}.over")
}

fn counted(shard: ShardId) -> String {
    format!("{shard}.counted")
}

/// Marks of so many lives are kept. A directory that has the mark which a bucket counted last is at
/// least as new as that life, also where the bucket is an older copy: a start that is refused on
/// that account must not make the directory doubtful.
const REMEMBERED: u64 = 64;

fn life_of(name: &str) -> Option<(u64, u64)> {
    let (life, incarnation) = name.split_once('-')?;
    Some((life.parse().ok()?, u64::from_str_radix(incarnation, 16).ok()?))
}

/// A life of a log server as the bucket counts it, where no machine that is put back takes the
/// count with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct CountedLife {
    /// Grows with each.
    pub number: u64,
    /// Drawn for each, so that two directories that go on from the same one are told from each
    /// other.
    pub mark: u64,
}

/// What a directory is told of the bucket's count.
#[derive(Clone, Copy, Debug)]
pub struct Counting {
    /// The newest life that the bucket counts.
    pub last: Option<CountedLife>,
    /// Drawn for the life that begins.
    pub mark: u64,
}

impl CountedLife {
    fn name(self) -> String {
        format!("{:020}-{:016x}", self.number, self.mark)
    }

    fn of(name: &str) -> Option<Self> {
        life_of(name).map(|(number, mark)| Self { number, mark })
    }
}

/// A server's incarnation, and the loglets it may have forgotten something of.
#[derive(Debug)]
pub struct Life {
    /// Drawn anew whenever the server may have forgotten something.
    pub incarnation: Incarnation,
    /// For as long as they exist.
    pub doubtful: Vec<LogletKey>,
    /// Loglets up to this one have ended.
    pub over: u64,
    /// How the bucket is to count this life, if it does.
    pub counted: Option<CountedLife>,
}

impl Life {
    /// Begins life `life` of the node in a directory whose lock is held, which the bucket is to
    /// count, too.
    ///
    /// # Errors
    /// Those of the local disk.
    pub async fn begin(
        disk: &dyn Disk,
        env: &Env,
        shard: ShardId,
        life: Incarnation,
        counting: Option<Counting>,
    ) -> Result<Self> {
        let marks = disk.list(&counted(shard)).await?;
        let known: Vec<CountedLife> =
            marks.iter().filter_map(|name| CountedLife::of(name)).collect();
        let last_counted = counting.and_then(|counting| counting.last);
        let is_the_last = last_counted.is_none_or(|last| known.contains(&last));
        let names = disk.list(&lives(shard)).await?;
        let last = names.iter().filter_map(|name| life_of(name)).max();
        let found = disk.list(&shard_directory(shard)).await?;
        let found = found.iter().filter_map(|name| loglet_of(shard, name));
        let incarnation = match last {
            Some((before, incarnation))
                if is_the_last && (before + 1 == life.0 || before == life.0) =>
            {
                incarnation
            }
            _ => {
                let doubted = disk.list(&doubts(shard)).await?;
                for key in found {
                    let name = format!("{:020}-{}", key.loglet, key.token);
                    if !doubted.contains(&name) {
                        disk.create(&format!("{}/{name}", doubts(shard))).await?;
                    }
                }
                if last.is_some() {
                    tracing::error!(
                        directory = disk.location(),
                        life = life.0,
                        "the local log is not the one of this node's life before: what it has does not count towards a majority"
                    );
                }
                env.random.next_u64().max(1)
            }
        };
        if last != Some((life.0, incarnation)) {
            let name = format!("{:020}-{incarnation:016x}", life.0);
            disk.create(&format!("{}/{name}", lives(shard))).await?;
            for old in names.iter().filter(|old| **old != name) {
                disk.remove(&format!("{}/{old}", lives(shard))).await?;
            }
        }
        let counted = match counting {
            Some(counting) => Some(mark(disk, shard, &known, counting).await?),
            None => None,
        };
        let doubtful = disk.list(&doubts(shard)).await?;
        let doubtful = doubtful.iter().filter_map(|name| loglet_of(shard, name)).collect();
        let ended = disk.list(&over(shard)).await?;
        let over = ended.iter().filter_map(|name| name.parse().ok()).max().unwrap_or(0);
        Ok(Self { incarnation: Incarnation(incarnation), doubtful, over, counted })
    }

    /// Loglets up to `loglet` have ended. Durable when it returns.
    pub async fn end(&mut self, disk: &dyn Disk, shard: ShardId, loglet: u64) -> Result<()> {
        if loglet > self.over {
            disk.create(&format!("{}/{loglet:020}", over(shard))).await?;
            if self.over > 0 {
                disk.remove(&format!("{}/{:020}", over(shard), self.over)).await?;
            }
            self.over = loglet;
        }
        Ok(())
    }

    /// Forgets the doubt about a loglet that is removed.
    pub async fn removed(&mut self, disk: &dyn Disk, key: &LogletKey) -> Result<()> {
        if let Some(at) = self.doubtful.iter().position(|doubtful| doubtful == key) {
            let name = format!("{:020}-{}", key.loglet, key.token);
            disk.remove(&format!("{}/{name}", doubts(key.shard))).await?;
            self.doubtful.swap_remove(at);
        }
        Ok(())
    }
}

/// Forgets which loglets have ended, in a directory whose lock is held: the node was told that the
/// bucket is an older copy, or another database's beginning, so that those that follow there are
/// others than those that this directory remembers, whose tokens tell them apart.
///
/// # Errors
/// Those of the local disk.
pub async fn forget_ended(disk: &dyn Disk, shard: ShardId) -> Result<()> {
    for ended in disk.list(&over(shard)).await? {
        disk.remove(&format!("{}/{ended}", over(shard))).await?;
    }
    Ok(())
}

/// Notes the mark of the life that begins. Behind the doubts: from here on the directory may be
/// taken for that of the last life.
async fn mark(
    disk: &dyn Disk,
    shard: ShardId,
    known: &[CountedLife],
    counting: Counting,
) -> Result<CountedLife> {
    // What the bucket does not have may be on its way there still, from a start that has ended.
    let last = counting.last.or(known.iter().max().copied());
    let number = last.map_or(1, |last| last.number + 1);
    let new = CountedLife { number, mark: counting.mark };
    disk.create(&format!("{}/{}", counted(shard), new.name())).await?;
    for old in known.iter().filter(|old| Some(**old) != last && old.number + REMEMBERED < number) {
        disk.remove(&format!("{}/{}", counted(shard), old.name())).await?;
    }
    Ok(new)
}
