//! `telesto-demo wiki`: a wiki to read and edit in a browser, as Scalaris showed its transactions
//! (§5).
//!
//! ```text
//! browser ─ HTTP ─► this program ─ SQL ─► any of the nodes: content, backlinks and categories of a page change in one transaction
//! ```
//! # Invariants
//! - An edit of a text that somebody has changed meanwhile is not taken: both texts are shown.
//! - Only pages of this wiki may send edits (`Sec-Fetch-Site`, or `Origin` where a browser does not
//!   say it); scripts are not run.
//!
//! # On failure
//! A node that does not answer is left out: its connection is made again, and the next one is
//! asked. The page says what was wrong.
//!
//! # Limits
//! Whoever reaches its port may edit: it listens on this machine unless told otherwise. Texts of up
//! to 2 MiB.

mod load;
mod pages;
mod render;

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use clap::Args;
use parking_lot::Mutex;
use telesto_mediawiki::wiki::Wiki;
use tokio::net::TcpListener;
use tokio::time::timeout;

use crate::sql::connect;

pub use load::Load;
pub use load::run as bench;

/// How long a page may take.
const PATIENCE: Duration = Duration::from_secs(30);

/// `telesto-demo wiki`.
#[derive(Debug, Args)]
pub struct Serve {
    /// The nodes, each of which serves; more than one: --url A --url B
    #[arg(long = "url", env = "TELESTO_URL", default_value = crate::DEFAULT_URL)]
    urls: Vec<String>,
    /// Where browsers find it
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:8081")]
    listen: SocketAddr,
}

/// Connections to the nodes.
#[derive(Debug)]
pub struct Pool {
    urls: Vec<String>,
    /// By node: those that nobody uses now.
    free: Vec<Mutex<Vec<Wiki>>>,
    next: AtomicUsize,
}

/// A connection that goes back when it is not used any more.
#[derive(Debug)]
pub struct Lent {
    pool: Arc<Pool>,
    pub node: usize,
    wiki: Option<Wiki>,
}

impl Pool {
    fn new(urls: Vec<String>) -> Self {
        let free = urls.iter().map(|_| Mutex::default()).collect();
        Self { urls, free, next: AtomicUsize::new(0) }
    }

    /// A connection to the next node that answers.
    async fn lend(self: &Arc<Self>) -> Result<Lent, String> {
        let mut why = String::new();
        for _ in 0..self.urls.len() {
            let node = self.next.fetch_add(1, Ordering::Relaxed) % self.urls.len();
            let kept =
                std::iter::from_fn(|| self.free[node].lock().pop()).find(|wiki| !wiki.is_closed());
            let made = match kept {
                Some(wiki) => Ok(wiki),
                None => self.connect(node).await,
            };
            match made {
                Ok(wiki) => return Ok(Lent { pool: Arc::clone(self), node, wiki: Some(wiki) }),
                Err(error) => why = format!("{}: {error}", self.urls[node]),
            }
        }
        Err(why)
    }

    async fn connect(&self, node: usize) -> Result<Wiki, String> {
        let client = timeout(PATIENCE, connect(&self.urls[node]))
            .await
            .map_err(|_| "no answer".to_owned())??;
        Wiki::new(client).await.map_err(|error| error.to_string())
    }
}

impl Lent {
    /// Does `work` by it.
    ///
    /// # Errors
    /// What the database said; the connection is not used again when nobody answers.
    pub async fn with<T>(
        &mut self,
        work: impl AsyncFnOnce(&mut Wiki) -> telesto_mediawiki::Result<T>,
    ) -> Result<T, String> {
        let Some(mut wiki) = self.wiki.take() else {
            return Err("the connection is gone; try again".to_owned());
        };
        // Its end, when it does not come in time, closes the connection.
        let done = timeout(PATIENCE, work(&mut wiki))
            .await
            .map_err(|_| "no answer in 30 s; try again".to_owned())?;
        self.wiki = Some(wiki);
        done.map_err(|error| error.to_string())
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        if let Some(wiki) = self.wiki.take().filter(|wiki| !wiki.is_closed()) {
            self.pool.free[self.node].lock().push(wiki);
        }
    }
}

/// Makes what the wiki needs, in the first node that answers.
async fn prepared(urls: &[String]) -> Result<Arc<Pool>, String> {
    let pool = Arc::new(Pool::new(urls.to_vec()));
    let mut why = "no node was named; give one with --url".to_owned();
    for url in urls {
        match connect(url).await {
            Ok(client) => {
                Wiki::make(&client).await.map_err(|error| error.to_string())?;
                return Ok(pool);
            }
            Err(error) => why = format!("{url}: {error}"),
        }
    }
    Err(why)
}

/// Serves the wiki until it is stopped.
///
/// # Errors
/// No node answers, or the address cannot be listened on.
pub async fn run(asked: Serve) -> Result<(), String> {
    let pool = prepared(&asked.urls).await?;
    let listener = TcpListener::bind(asked.listen).await;
    let listener = listener.map_err(|error| {
        format!("cannot listen on {}: {error}; name another with --listen", asked.listen)
    })?;
    let address = listener.local_addr().map_err(|error| error.to_string())?;
    println!(
        "The wiki is at http://{address}/ (Ctrl-C stops it). An empty one is filled by telesto-demo import mediawiki FILE."
    );
    let stop = async {
        let _ = tokio::signal::ctrl_c().await;
    };
    let served = axum::serve(listener, pages::router(pool)).with_graceful_shutdown(stop);
    served.await.map_err(|error| error.to_string())
}
