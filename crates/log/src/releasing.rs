//! Telling the log servers of a cluster what they need not keep any more, behind whoever has put it
//! into the bucket: no commit waits for a server that is away, frozen, or whose disk hangs.
//!
//! # Invariants
//! - A server is told one thing at a time, and of a loglet the newest alone.
//! - What waits to be told is bounded: one request for each loglet and server.
//!
//! # On failure
//! A server that cannot be told keeps its entries until it is told of later ones, or looks at its
//! next start.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use telesto_common::{Env, NodeId};

use crate::server::{LogServer, LogletKey, Request};

/// What a log server may take to let entries go.
pub(crate) const RELEASING: Duration = Duration::from_secs(30);

type Told = (Arc<dyn LogServer>, Request);

#[derive(Debug, Default)]
struct Waiting {
    newest: BTreeMap<LogletKey, Told>,
    /// A task tells it.
    telling: bool,
}

/// See the module's text.
#[derive(Debug, Default)]
pub(crate) struct Releases(Mutex<BTreeMap<NodeId, Waiting>>);

impl Releases {
    /// Tells a server soon, unless it is told something newer of the loglet before.
    pub fn tell(
        self: &Arc<Self>,
        env: &Env,
        node: NodeId,
        server: Arc<dyn LogServer>,
        (key, request): (LogletKey, Request),
    ) {
        {
            let mut waiting = self.0.lock();
            let waiting = waiting.entry(node).or_default();
            waiting.newest.insert(key, (server, request));
            if std::mem::replace(&mut waiting.telling, true) {
                return;
            }
        }
        let (releases, on) = (Arc::clone(self), env.clone());
        env.spawn("telling a log server what is archived", async move {
            while let Some((server, request)) = releases.next(node) {
                if let Err(error) = server.call(request, on.deadline(RELEASING)).await {
                    tracing::debug!(%error, "a log server keeps what is archived until later");
                }
            }
        });
    }

    fn next(&self, node: NodeId) -> Option<Told> {
        let mut waiting = self.0.lock();
        let next = waiting.get_mut(&node)?.newest.pop_first();
        if next.is_none() {
            waiting.remove(&node);
        }
        next.map(|(_, told)| told)
    }
}
