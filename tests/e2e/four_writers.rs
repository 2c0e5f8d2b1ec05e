//! Four processes write to one S3 bucket through a bucket log, with nothing between them but the
//! bucket: the history is strictly serializable; killing or freezing one of them blocks nobody; a
//! process frozen past the retention and then woken does no harm.

#[path = "appending.rs"]
mod appending;
#[path = "harness.rs"]
#[allow(dead_code)]
mod harness;

use std::sync::Arc;
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::Duration;

use appending::{Run, TABLE, session};
use harness::{Node, Place, S3Server};

const SESSIONS_A_NODE: u64 = 2;
const RETENTION: Duration = Duration::from_secs(10);

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
    first.batch_execute(TABLE).await.expect("table");
    let run = Arc::new(Run::default());
    let mut tasks = Vec::new();
    for (n, node) in nodes.iter().enumerate() {
        let port = node.as_ref().expect("running").port;
        for s in 0..SESSIONS_A_NODE {
            let number = n as u64 * SESSIONS_A_NODE + s;
            let port = Arc::new(AtomicU16::new(port));
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
    for (n, node) in nodes.iter().enumerate().filter_map(|(n, node)| Some((n, node.as_ref()?))) {
        run.read_all(n as u64, node).await;
    }
    let shown: Vec<String> = run.check().iter().map(ToString::to_string).collect();
    assert!(shown.is_empty(), "{} anomalies:\n{}", shown.len(), shown.join("\n"));
}
