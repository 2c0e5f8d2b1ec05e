//! How a process opens a log, and what calls return.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use telesto_common::{Incarnation, Lsn, NodeId, WriterToken};

use crate::chain::LogKind;
use crate::disk::Disk;
use crate::record::Entry;
use crate::server::{LocalLogServer, MAX_LEASE, Servers};

/// Who this process is, as the chain and error messages name it.
#[derive(Clone, Debug)]
pub struct Identity {
    /// The node.
    pub node: NodeId,
    /// Its life: grows with each start.
    pub incarnation: Incarnation,
    /// The machine's name.
    pub host: String,
    /// The process id.
    pub pid: u32,
    /// Where it can be reached (host:port); empty when it serves nobody.
    pub address: String,
}

/// Somebody above the log who knows what was committed, whatever a local directory remembers.
#[async_trait]
pub trait KnownCommitted: std::fmt::Debug + Send + Sync {
    /// The last LSN that certainly is committed; [`Lsn::ZERO`] when nothing is known.
    ///
    /// # Errors
    /// Why it cannot be told now; the log is not taken over then.
    async fn through(&self) -> std::result::Result<Lsn, String>;
}

#[async_trait]
impl KnownCommitted for Lsn {
    async fn through(&self) -> std::result::Result<Lsn, String> {
        Ok(*self)
    }
}

/// How a process takes part in a cluster, whose nodes keep the newest log for each other.
#[derive(Clone, Debug)]
pub struct Cluster {
    /// Log servers that a loglet gets once there are as many; odd. An entry is committed at a
    /// majority of those it has.
    pub replicas: usize,
    /// Where log servers are.
    pub servers: Arc<dyn Servers>,
    /// This node's own, opened with [`LocalLogServer::open_shared`].
    pub own: Arc<LocalLogServer>,
    /// For how long log servers are asked to accept no seal, so that strict reads on the owner cost
    /// nothing; it delays a fail-over by as much. At most [`MAX_LEASE`]. Zero: every look at the
    /// tail asks a majority.
    pub lease: Duration,
    /// A log server that has been away for so long is replaced when there is another one.
    pub replace_after: Duration,
}

impl Cluster {
    /// Three log servers, a lease of half a second, replacement after ten.
    #[must_use]
    pub fn new(servers: Arc<dyn Servers>, own: Arc<LocalLogServer>) -> Self {
        Self {
            replicas: 3,
            servers,
            own,
            lease: MAX_LEASE * 5 / 6,
            replace_after: Duration::from_secs(10),
        }
    }

    /// How many log servers a loglet gets where `known` are there: an odd number, at most
    /// [`Cluster::replicas`].
    pub(crate) fn wanted(&self, known: usize) -> usize {
        let most = known.min(self.replicas);
        if most.is_multiple_of(2) { most.saturating_sub(1) } else { most }
    }
}

/// How a process opens a log.
#[derive(Clone, Debug)]
pub struct LogOptions {
    /// Kind of the first loglet; used by `create` only. `open` takes what the chain says.
    pub kind: LogKind,
    /// Who this process is.
    pub identity: Identity,
    /// The local log directory; needed by quorum loglets only.
    pub disk: Option<Arc<dyn Disk>>,
    /// The cluster this process belongs to; `None`: it is alone, and its quorum loglets are on its
    /// own disk.
    pub cluster: Option<Cluster>,
    /// How long entries are kept at least after the checkpoint has passed them; used by `create`
    /// only and fixed from then on (the chain carries it).
    pub retention: Duration,
    /// Who tells the last LSN that is known to be committed (the checkpoint holds it). A local
    /// directory that ends before it has forgotten entries: it is refused. Asked when a loglet is
    /// taken over whose files an earlier life of this machine wrote.
    pub known_committed: Arc<dyn KnownCommitted>,
    /// Bound on each wait of opening and of background work.
    pub timeout: Duration,
    /// Slots fetched in parallel when a reader is behind.
    pub fetch_ahead: usize,
    /// Archive as soon as this many bytes wait.
    pub archive_bytes: usize,
    /// Archive what waits after this long at the latest.
    pub archive_interval: Duration,
    /// A local segment file is closed at this size, bytes.
    pub segment_bytes: u64,
    /// Entries kept in memory by the sequencer for readers and the archive, bytes.
    pub buffer_bytes: usize,
}

impl LogOptions {
    /// The defaults for `identity`: bucket loglet, one day of retention, no local directory.
    #[must_use]
    pub fn new(identity: Identity) -> Self {
        Self {
            kind: LogKind::Bucket,
            identity,
            disk: None,
            cluster: None,
            retention: Duration::from_secs(24 * 3600),
            known_committed: Arc::new(Lsn::ZERO),
            timeout: Duration::from_secs(30),
            fetch_ahead: 32,
            archive_bytes: 8 << 20,
            archive_interval: Duration::from_secs(10),
            segment_bytes: 64 << 20,
            buffer_bytes: 16 << 20,
        }
    }
}

/// A determinate result of an append.
#[derive(Clone, Debug, PartialEq)]
pub enum Append {
    /// The entry is committed at the position asked for.
    Committed(Entry),
    /// Another entry holds the position, and it is not the one this attempt wrote: read on from it,
    /// validate again, append at the new tail.
    Taken {
        /// Token of the entry that holds it, when it was seen: the caller compares it with the
        /// tokens of its earlier attempts at this position whose outcome was unknown. `None`: read
        /// it.
        writer: Option<WriterToken>,
    },
}

impl Append {
    /// The position is taken by an entry that was not looked at.
    pub(crate) const TAKEN: Self = Self::Taken { writer: None };
}

/// What a read found.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Batch {
    /// Contiguous entries from the position asked for.
    pub entries: Vec<Entry>,
    /// The position after the last of them (or the one asked for) was the tail as of a moment
    /// inside the call. When `false` there may be more: read on.
    pub at_tail: bool,
}

impl Batch {
    /// The position to read next after reading this batch at `from`.
    #[must_use]
    pub fn next(&self, from: Lsn) -> Lsn {
        self.entries.last().map_or(from, |e| e.lsn.next())
    }
}
