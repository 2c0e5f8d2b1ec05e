//! Three log servers: a majority decides, a minority may be slow, gone or behind.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use telesto_common::planted::{Bug, Planted};
use telesto_common::{Deadline, Env, Incarnation, Lsn, NodeId, WriterToken};
use telesto_log::Append;
use telesto_log::chain::{Loglet, Medium, Owner, ServerInfo};
use telesto_log::disk::{Disk, SimDisk};
use telesto_log::quorum::{Fence, Sequenced, Sequencer, recover};
use telesto_log::server::{LocalLogServer, LogServer, LogletKey, Reply, Request};
use telesto_log::{Error, Result};

use crate::support::*;

const KEY: LogletKey = LogletKey { shard: SHARD, loglet: 1, token: WriterToken(5) };

/// A server that can be cut off.
#[derive(Debug)]
struct Cut {
    server: Arc<LocalLogServer>,
    cut: Mutex<bool>,
    /// Below what it releases its entries when it is asked to read.
    releases: Mutex<Option<Lsn>>,
}

#[async_trait::async_trait]
impl LogServer for Cut {
    async fn call(&self, request: Request, by: Deadline) -> Result<Reply> {
        tokio::task::yield_now().await;
        if *self.cut.lock() {
            return Err(Error::Unavailable { shard: SHARD, reason: "cut off".into() });
        }
        let released = self.releases.lock().take_if(|_| matches!(request, Request::Read { .. }));
        if let Some(below) = released {
            self.server.call(Request::Release { key: KEY, below }, by).await?;
        }
        self.server.call(request, by).await
    }
}

struct Cluster {
    env: Env,
    cuts: Vec<Arc<Cut>>,
    loglet: Loglet,
}

impl Cluster {
    async fn new() -> Self {
        Self::of(1 << 20).await
    }

    /// Whose owner behaves as before a mend.
    async fn with(bug: Bug) -> Self {
        let mut cluster = Self::new().await;
        cluster.env.planted = Planted::only(bug);
        cluster
    }

    /// With segments of so many bytes.
    async fn of(segment: u64) -> Self {
        let env = telesto_runtime::env();
        let mut cuts = Vec::new();
        for _ in 0..3 {
            let disk = SimDisk::new() as Arc<dyn Disk>;
            let server =
                LocalLogServer::open(disk, env.clone(), SHARD, segment).await.expect("opened");
            let create = Request::Create { key: KEY, start: Lsn(1), server: None };
            server.call(create, soon(&env)).await.expect("created");
            cuts.push(Arc::new(Cut { server, cut: Mutex::new(false), releases: Mutex::default() }));
        }
        let loglet = Loglet { id: 1, start: Lsn(1), start_hash: [0; 16], medium: Medium::Bucket };
        Self { env, cuts, loglet }
    }

    fn servers(&self) -> Vec<Arc<dyn LogServer>> {
        self.cuts.iter().map(|c| Arc::clone(c) as Arc<dyn LogServer>).collect()
    }

    fn sequencer(&self) -> Arc<Sequencer> {
        {
            let servers =
                self.servers().into_iter().map(|server| (server, Incarnation(0))).collect();
            Sequencer::new(
                KEY,
                self.env.clone(),
                &self.loglet,
                servers,
                1 << 20,
                Fence::Lease(Duration::ZERO),
            )
        }
    }

    fn cut(&self, which: [bool; 3]) {
        for (cut, now) in self.cuts.iter().zip(which) {
            *cut.cut.lock() = now;
        }
    }

    async fn tail(&self, index: usize) -> Lsn {
        let tail = Request::Tail { key: KEY };
        match self.cuts[index].server.call(tail, soon(&self.env)).await {
            Ok(Reply::Tail { next, .. }) => next,
            other => panic!("{other:?}"),
        }
    }

    async fn recover(&self) -> Result<(Lsn, Option<[u8; 16]>)> {
        let found =
            recover(KEY, &self.loglet, &self.servers(), None, &self.env, soon(&self.env)).await?;
        Ok((found.end, found.hash))
    }
}

async fn append(
    cluster: &Cluster,
    sequencer: &Sequencer,
    at: u64,
    hash: [u8; 16],
) -> Result<[u8; 16]> {
    let records = saying(&at.to_string());
    match sequencer.append(Lsn(at), hash, records, soon(&cluster.env)).await? {
        Sequenced::Done(Append::Committed(entry), _) => Ok(entry.hash),
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn append_with_one_server_cut_commits_and_the_server_catches_up_later() {
    let cluster = Cluster::new().await;
    let sequencer = cluster.sequencer();
    let mut hash = [0; 16];
    for at in 1..=10 {
        cluster.cut([false, at < 8, false]);
        hash = append(&cluster, &sequencer, at, hash).await.unwrap();
    }
    let mut looks = 0;
    while cluster.tail(1).await < Lsn(11) {
        looks += 1;
        assert!(looks < 10_000, "the server that was cut off never catches up");
        cluster.env.clock.sleep(Duration::from_millis(10)).await;
    }
    for server in 0..3 {
        assert_eq!(cluster.tail(server).await, Lsn(11));
    }
}

#[tokio::test]
async fn append_without_a_majority_is_indeterminate_and_stops_the_sequencer() {
    let cluster = Cluster::new().await;
    let sequencer = cluster.sequencer();
    let hash = append(&cluster, &sequencer, 1, [0; 16]).await.unwrap();
    cluster.cut([false, true, true]);
    let error = append(&cluster, &sequencer, 2, hash).await.unwrap_err();
    assert!(matches!(error, Error::Indeterminate { .. }), "{error}");
    assert_eq!(sequencer.next(), Lsn(2), "not readable");
    cluster.cut([false; 3]);
    let stopped = sequencer.append(Lsn(2), hash, saying("x"), soon(&cluster.env)).await.unwrap();
    assert!(matches!(stopped, Sequenced::Stopped(_)));
}

#[tokio::test]
async fn recovery_from_any_majority_keeps_every_committed_entry_and_fences_the_sequencer() {
    // Which server misses the last committed entries, and which one is gone at recovery.
    for missing in 0..3 {
        for gone in 0..3 {
            let cluster = Cluster::new().await;
            let sequencer = cluster.sequencer();
            let mut hash = [0; 16];
            for at in 1..=9 {
                let cut = at > 4;
                cluster.cut([cut && missing == 0, cut && missing == 1, cut && missing == 2]);
                hash = append(&cluster, &sequencer, at, hash).await.unwrap();
                for _ in 0..100 {
                    tokio::task::yield_now().await;
                }
            }
            cluster.cut([gone == 0, gone == 1, gone == 2]);
            let (end, recovered) = cluster.recover().await.unwrap();
            assert_eq!((end, recovered), (Lsn(10), Some(hash)), "missing {missing} gone {gone}");
            let mut safe = 0;
            for server in 0..3 {
                safe += usize::from(cluster.tail(server).await == Lsn(10));
            }
            assert!(safe >= 2, "made safe at a majority");
            cluster.cut([false; 3]);
            let zombie = append(&cluster, &sequencer, 10, hash).await;
            assert!(matches!(zombie, Err(Error::Indeterminate { .. })), "{zombie:?}");
            // Another recovery may also find what the zombie left on the server that was gone: it
            // was never acknowledged, and the chain decides between the two ends.
            assert!(cluster.recover().await.unwrap().0 >= Lsn(10), "nothing was lost");
        }
    }
}

/// Two recoveries end a loglet at different places. The one that saw the last entry has brought it
/// to a majority, the other one was there first: the entry is not in the log, whatever the servers
/// have.
#[tokio::test]
async fn entry_that_a_recovery_gave_to_sealed_servers_is_not_acknowledged_by_its_sequencer() {
    let cluster = Cluster::new().await;
    let sequencer = cluster.sequencer();
    let hash = append(&cluster, &sequencer, 1, [0; 16]).await.unwrap();
    cluster.cut([false, true, true]);
    let meanwhile = async {
        while cluster.tail(0).await < Lsn(3) {
            tokio::task::yield_now().await;
        }
        let by = soon(&cluster.env);
        for server in &cluster.cuts {
            server.server.call(Request::Seal { key: KEY, holder: None }, by).await.unwrap();
        }
        let read = Request::Read { key: KEY, from: Lsn(2), max_bytes: 1 };
        let Reply::Entries(entries) = cluster.cuts[0].server.call(read, by).await.unwrap() else {
            panic!("no entries");
        };
        for server in &cluster.cuts[1..] {
            let entries = entries.clone();
            let first = Lsn(2);
            let store = Request::Store { key: KEY, first, entries, repair: true, terms: None };
            let stored = server.server.call(store, by).await.unwrap();
            assert_eq!(stored, Reply::Stored { next: Lsn(3), leased: false });
        }
        cluster.cut([false; 3]);
    };
    let (answer, ()) = futures::join!(append(&cluster, &sequencer, 2, hash), meanwhile);
    assert!(matches!(answer, Err(Error::Indeterminate { .. })), "{answer:?}");
    assert_eq!(sequencer.next(), Lsn(2), "not readable");
}

/// Of three servers two were met, so that one is enough to know where the loglet ends. The last
/// entry is with that one alone.
#[tokio::test]
async fn recovery_that_needs_one_server_brings_the_end_to_a_majority_or_says_that_it_did_not() {
    for other_answers in [true, false] {
        let mut cluster = Cluster::new().await;
        let servers = (0..3).map(|node| ServerInfo {
            node: NodeId(node + 1),
            address: String::new(),
            incarnation: Incarnation(u64::from(node != 2)),
        });
        let owner = Owner {
            node: NodeId(1),
            incarnation: Incarnation(1),
            host: "h".into(),
            pid: 1,
            address: String::new(),
            directory: "d".into(),
        };
        let servers = servers.collect();
        cluster.loglet.medium = Medium::Quorum { owner, token: KEY.token, servers };
        for (index, last) in [(0, 3), (1, 2)] {
            for first in 1..=last {
                let entries = vec![bytes::Bytes::from(vec![7; 200])];
                let first = Lsn(first);
                let store = Request::Store { key: KEY, first, entries, repair: false, terms: None };
                cluster.cuts[index].server.call(store, soon(&cluster.env)).await.unwrap();
            }
        }
        cluster.cut([false, !other_answers, true]);
        let servers = cluster.servers();
        let by = soon(&cluster.env);
        let found = recover(KEY, &cluster.loglet, &servers, None, &cluster.env, by).await.unwrap();
        assert_eq!((found.end, found.kept, found.longest), (Lsn(4), other_answers, 0));
        assert_eq!(cluster.tail(1).await, Lsn(if other_answers { 4 } else { 3 }));
    }
}

/// An owner that was found dead and is not ships what it has, and lets its servers release it,
/// while another node repairs them.
#[tokio::test]
async fn entries_that_are_released_while_they_are_repaired_are_no_damage() {
    for released in [8, 20, 30] {
        let cluster = Cluster::of(4096).await;
        for (index, last) in [(0, 30), (1, 5)] {
            for first in 1..=last {
                let entries = vec![bytes::Bytes::from(vec![7; 1000])];
                let first = Lsn(first);
                let store = Request::Store { key: KEY, first, entries, repair: false, terms: None };
                cluster.cuts[index].server.call(store, soon(&cluster.env)).await.unwrap();
            }
        }
        cluster.cut([false, false, true]);
        *cluster.cuts[0].releases.lock() = Some(Lsn(released));
        let (end, hash) = cluster.recover().await.unwrap();
        assert_eq!((end, hash.is_some()), (Lsn(31), true));
        assert_eq!(cluster.tail(1).await, Lsn(31), "below {released} released");
    }
}

#[tokio::test]
async fn recovery_without_a_majority_fails_clearly() {
    let cluster = Cluster::new().await;
    cluster.cut([true, true, false]);
    let error = cluster.recover().await.unwrap_err();
    assert!(matches!(error, Error::Unavailable { .. }), "{error}");
}

#[tokio::test]
async fn server_accepts_only_its_next_entry_and_nothing_once_sealed() {
    let cluster = Cluster::new().await;
    let server = &cluster.cuts[0].server;
    let by = soon(&cluster.env);
    let store = |first, repair| Request::Store {
        key: KEY,
        first: Lsn(first),
        entries: vec![bytes::Bytes::from_static(b"entry")],
        repair,
        terms: None,
    };
    let refused = |next, sealed| Reply::Refused { next: Lsn(next), sealed };
    assert_eq!(server.call(store(2, false), by).await.unwrap(), refused(1, false));
    let stored = server.call(store(1, false), by).await.unwrap();
    assert_eq!(stored, Reply::Stored { next: Lsn(2), leased: false });
    assert_eq!(server.call(store(1, false), by).await.unwrap(), refused(2, false));
    server.call(Request::Seal { key: KEY, holder: None }, by).await.unwrap();
    assert_eq!(server.call(store(2, false), by).await.unwrap(), refused(2, true));
    let repaired = server.call(store(2, true), by).await.unwrap();
    assert_eq!(repaired, Reply::Stored { next: Lsn(3), leased: false });
    let other = LogletKey { token: WriterToken(6), ..KEY };
    assert_eq!(
        server.call(Request::Seal { key: other, holder: None }, by).await.unwrap(),
        Reply::Unknown
    );
}

/// Two candidates end a loglet at different places. The one that loses has met the only server with
/// the last entry, and brings that to another one; the winner has not. So what the owner hears from
/// a server that is sealed says nothing of what is in the log.
#[tokio::test]
async fn what_a_recovery_brought_to_a_sealed_server_is_not_told_as_committed() {
    for (cluster, told) in
        [(Cluster::new().await, false), (Cluster::with(Bug::CountsRepairs).await, true)]
    {
        let sequencer = cluster.sequencer();
        let hash = append(&cluster, &sequencer, 1, [0; 16]).await.unwrap();
        cluster.cut([false, true, true]);
        let loser = async {
            while cluster.tail(0).await < Lsn(3) {
                cluster.env.clock.sleep(Duration::from_millis(2)).await;
            }
            let met: Vec<_> =
                [0, 2].map(|at| Arc::clone(&cluster.cuts[at].server) as Arc<dyn LogServer>).into();
            let by = soon(&cluster.env);
            let found = recover(KEY, &cluster.loglet, &met, None, &cluster.env, by).await.unwrap();
            assert_eq!(found.end, Lsn(3));
            assert_eq!(cluster.tail(2).await, Lsn(3), "it was brought there");
            cluster.cut([false, true, false]);
        };
        let (appended, ()) = futures::join!(append(&cluster, &sequencer, 2, hash), loser);
        match appended {
            Ok(_) => assert!(told, "an entry was told that no winner of the race need have"),
            Err(error) => {
                assert!(matches!(error, Error::Indeterminate { .. }), "{error}");
                assert!(!told, "the bug is not there");
            }
        }
    }
}
