//! Four processes write to one S3 bucket through a bucket log, with nothing between them but the
//! bucket: the history is strictly serializable; killing or freezing one of them blocks nobody; a
//! process frozen past the retention and then woken does no harm.

#[path = "harness.rs"]
#[allow(dead_code)]
mod harness;

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use harness::{Node, PATIENCE, Place, S3Server};
use rand::Rng as _;
use telesto_testkit::list_append::{Ended, Isolation, Observed, Step, check};
use tokio_postgres::{Client, NoTls};

const KEYS: u64 = 8;
const SESSIONS_A_NODE: u64 = 2;
const RETENTION: Duration = Duration::from_secs(10);

/// What all sessions share.
#[derive(Default)]
struct Run {
    clock: AtomicU64,
    next_value: AtomicU64,
    stop: std::sync::atomic::AtomicBool,
    commits: [AtomicU64; 4],
    history: Mutex<Vec<Observed>>,
}

impl Run {
    fn tick(&self) -> u64 {
        self.clock.fetch_add(1, Ordering::SeqCst)
    }

    /// Waits until every one of `nodes` has committed `more` transactions from now on.
    async fn progress(&self, nodes: &[usize], more: u64, what: &str) {
        let before: Vec<u64> = self.commits.iter().map(|c| c.load(Ordering::SeqCst)).collect();
        let until = Instant::now() + PATIENCE;
        while nodes.iter().any(|n| self.commits[*n].load(Ordering::SeqCst) < before[*n] + more) {
            assert!(Instant::now() < until, "{what}: some of the nodes {nodes:?} commit no more");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
}

async fn connect(port: u16) -> Option<Client> {
    let url = format!("host=127.0.0.1 port={port} user=telesto dbname=telesto");
    let (client, connection) = tokio_postgres::connect(&url, NoTls).await.ok()?;
    tokio::spawn(connection);
    Some(client)
}

/// One transaction; returns its steps and end.
async fn transact(
    client: &mut Client,
    run: &Run,
    steps: &mut Vec<Step>,
    plan: &[(bool, u64)],
) -> Ended {
    let Ok(transaction) = client.transaction().await else { return Ended::Aborted };
    for (append, key) in plan {
        let id = i64::try_from(*key).expect("small");
        if *append {
            let value = run.next_value.fetch_add(1, Ordering::SeqCst) + 1;
            let text = value.to_string();
            let sql = "INSERT INTO lists (k, v) VALUES ($1, $2) ON CONFLICT (k) DO UPDATE SET v = lists.v || ',' || EXCLUDED.v";
            if transaction.execute(sql, &[&id, &text]).await.is_err() {
                return Ended::Aborted;
            }
            steps.push(Step::Append(*key, value));
        } else {
            let Ok(row) = transaction.query_opt("SELECT v FROM lists WHERE k = $1", &[&id]).await
            else {
                return Ended::Aborted;
            };
            steps.push(Step::Read(*key, row.map(|row| list(row.get(0))).unwrap_or_default()));
        }
    }
    match transaction.commit().await {
        Ok(()) => Ended::Committed,
        Err(error) if error.code().is_some_and(|code| code.code() == "40001") => Ended::Aborted,
        Err(_) => Ended::Unknown,
    }
}

fn list(text: &str) -> Vec<u64> {
    text.split(',').map(|value| value.parse().expect("a number")).collect()
}

async fn session(run: Arc<Run>, node: usize, port: u16, number: u64) {
    while !run.stop.load(Ordering::SeqCst) {
        let Some(mut client) = connect(port).await else {
            tokio::time::sleep(Duration::from_millis(200)).await;
            continue;
        };
        while !client.is_closed() && !run.stop.load(Ordering::SeqCst) {
            let plan: Vec<(bool, u64)> = {
                let mut rng = rand::rng();
                (0..rng.random_range(1..=4))
                    .map(|_| (rng.random_bool(0.5), rng.random_range(0..KEYS)))
                    .collect()
            };
            let mut steps = Vec::new();
            let invoked = run.tick();
            let ended = transact(&mut client, &run, &mut steps, &plan).await;
            let completed = run.tick();
            if ended == Ended::Committed {
                run.commits[node].fetch_add(1, Ordering::SeqCst);
            }
            run.history.lock().expect("no panic").push(Observed {
                session: number,
                invoked,
                completed,
                ended,
                steps,
            });
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn four_processes_on_one_s3_bucket_are_strictly_serializable_through_kill_and_freeze() {
    let server = S3Server::start("versitygw");
    let dir = tempfile::tempdir().expect("temporary folder");
    let place = Place::s3(&server, "four", "bucket", "bucket");
    let extra = ["--retention", "10s", "--checkpoint-interval", "2s"];
    let mut nodes: Vec<Option<Node>> = (0..4)
        .map(|n| Some(Node::start(&place, &dir.path().join(n.to_string()), &extra)))
        .collect();
    let first = nodes[0].as_ref().expect("running").connect().await.expect("connects");
    first
        .batch_execute("CREATE TABLE lists (k bigint PRIMARY KEY, v text NOT NULL)")
        .await
        .expect("table");
    let run = Arc::new(Run::default());
    let mut tasks = Vec::new();
    for (n, node) in nodes.iter().enumerate() {
        let port = node.as_ref().expect("running").port;
        for s in 0..SESSIONS_A_NODE {
            let number = n as u64 * SESSIONS_A_NODE + s;
            tasks.push(tokio::spawn(session(Arc::clone(&run), n, port, number)));
        }
    }
    run.progress(&[0, 1, 2, 3], 5, "all running").await;
    nodes[3].as_ref().expect("running").freeze();
    run.progress(&[0, 1, 2], 5, "one frozen").await;
    nodes[2].take().expect("running").kill();
    run.progress(&[0, 1], 5, "one frozen, one killed").await;
    // Long enough that the frozen one's position can be trimmed away.
    tokio::time::sleep(RETENTION * 2).await;
    run.progress(&[0, 1], 5, "past the retention").await;
    nodes[3].as_ref().expect("running").thaw();
    run.progress(&[0, 1, 3], 5, "the frozen one woken").await;
    run.stop.store(true, Ordering::SeqCst);
    for task in tasks {
        task.await.expect("session");
    }
    // Every list once more, from each live node: appends nobody read become visible to the checker.
    for (n, node) in nodes.iter().enumerate().filter_map(|(n, node)| Some((n, node.as_ref()?))) {
        let client = node.connect().await.expect("connects");
        let invoked = run.tick();
        let rows = client.query("SELECT k, v FROM lists ORDER BY k", &[]).await.expect("reads");
        let completed = run.tick();
        let steps = rows
            .iter()
            .map(|row| Step::Read(row.get::<_, i64>(0).unsigned_abs(), list(row.get(1))))
            .collect();
        run.history.lock().expect("no panic").push(Observed {
            session: 100 + n as u64,
            invoked,
            completed,
            ended: Ended::Committed,
            steps,
        });
    }
    let history = run.history.lock().expect("no panic");
    let count = |ended| history.iter().filter(|t| t.ended == ended).count();
    println!(
        "{} transactions: {} committed, {} aborted, {} unknown",
        history.len(),
        count(Ended::Committed),
        count(Ended::Aborted),
        count(Ended::Unknown)
    );
    let anomalies = check(&history, Isolation::StrictSerializable);
    let shown: Vec<String> = anomalies.iter().map(ToString::to_string).collect();
    assert!(shown.is_empty(), "{} anomalies:\n{}", shown.len(), shown.join("\n"));
}
