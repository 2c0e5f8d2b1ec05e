//! Asking one of several log servers that can all tell the same.
//!
//! # Invariants
//! The next server is asked when one could not tell, or has not answered for [`HEDGE`]: none that
//! is dead, cut off or frozen is waited for while another one answers.
//!
//! # On failure
//! Every answer that did not fit is given to the caller.
//!
//! # Limits
//! A server that is merely slow makes a second one answer the same.

use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt as _;
use futures::future::{Either, select};
use futures::stream::FuturesUnordered;
use telesto_common::{Deadline, Env};

use crate::error::Result;
use crate::server::{LogServer, Reply, Request};

/// How long a server may take before the next one is asked too: longer than an answer takes, and
/// far shorter than it takes to know that somebody is dead.
const HEDGE: Duration = Duration::from_millis(50);

/// What became of it.
#[derive(Debug, Default)]
pub(crate) struct Asked {
    /// The first answer that fits, and the place of who gave it among those who were to be asked.
    pub fit: Option<(usize, Reply)>,
    /// The answers before it.
    pub others: Vec<Result<Reply>>,
}

/// Asks `servers` in this order until an answer `fits`.
pub(crate) async fn ask_in_turn(
    env: &Env,
    servers: &[Arc<dyn LogServer>],
    request: &Request,
    by: Deadline,
    fits: impl Fn(&Reply) -> bool,
) -> Asked {
    let mut asked = Asked::default();
    let mut left = servers.iter().enumerate();
    let mut waiting = FuturesUnordered::new();
    loop {
        if let Some((place, server)) = left.next() {
            let call = server.call(request.clone(), by);
            waiting.push(async move { (place, call.await) });
        }
        let due = env.clock.sleep(HEDGE);
        match select(waiting.next(), due).await {
            Either::Left((Some((place, Ok(reply))), _)) if fits(&reply) => {
                asked.fit = Some((place, reply));
                return asked;
            }
            Either::Left((Some((_, answer)), _)) => asked.others.push(answer),
            Either::Left((None, _)) => return asked,
            Either::Right(_) => {}
        }
    }
}
