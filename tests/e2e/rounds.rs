//! Clients of three nodes that append and read while a test does things to the nodes, round after
//! round; what they saw is held to strict serializability at the end.
//!
//! # Invariants
//! There is one round at least; more are begun for `TELESTO_SOAK_SECONDS` (default: none).

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use tokio::task::JoinHandle;

use crate::appending::{Run, TABLE, session_at};
use crate::three::{Three, all};

const SESSIONS_A_NODE: u64 = 2;

/// The clients.
pub struct Clients {
    pub run: Arc<Run>,
    sessions: Vec<JoinHandle<()>>,
    until: Instant,
    rounds: usize,
}

impl Clients {
    /// Starts them, and waits until those of all nodes commit.
    pub async fn start(three: &Three) -> Self {
        let seconds = std::env::var("TELESTO_SOAK_SECONDS");
        let seconds = seconds.map_or(0, |seconds| seconds.parse().expect("a number"));
        let until = Instant::now() + Duration::from_secs(seconds);
        let client = three.node(0).connect().await.expect("connects");
        client.batch_execute(TABLE).await.expect("table");
        let run = Arc::new(Run::default());
        let mut sessions = Vec::new();
        for (node, url) in three.urls.iter().enumerate() {
            for session in 0..SESSIONS_A_NODE {
                let (number, url) = (node as u64 * SESSIONS_A_NODE + session, Arc::clone(url));
                let url = move || url.lock().expect("no panic").clone();
                sessions.push(tokio::spawn(session_at(Arc::clone(&run), node, url, number)));
            }
        }
        run.progress(&all(), 3, "all run").await;
        Self { run, sessions, until, rounds: 0 }
    }

    /// Whether another round is to be run.
    pub fn another_round(&mut self) -> bool {
        let another = self.rounds == 0 || Instant::now() < self.until;
        self.rounds += usize::from(another);
        another
    }

    /// Stops them, has every node read all, and checks what was seen.
    pub async fn end(self, three: &Three) {
        println!("{} rounds", self.rounds);
        self.run.stop.store(true, Ordering::SeqCst);
        for session in self.sessions {
            session.await.expect("session");
        }
        for node in all() {
            self.run.read_all(node as u64, three.node(node)).await;
        }
        let shown: Vec<String> = self.run.check().iter().map(ToString::to_string).collect();
        assert!(shown.is_empty(), "{} anomalies:\n{}", shown.len(), shown.join("\n"));
    }
}
