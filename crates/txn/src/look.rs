//! Looks at the log's tail, shared by everyone who waits for one.
//!
//! # Invariants
//! - Whoever asks is answered by a look that *started* after it asked. A look under way may have
//!   passed the place where a commit acknowledged in between stands, so it serves nobody new.
//! - One look is under way at a time; all who ask meanwhile share the next one.
//!
//! ```text
//! ask A        ask B  ask C
//!   |            |      |
//!   [== look 1 ==]      |      serves A
//!                [= look 2 =]  serves B; C came after it started
//!                           [= look 3 =] serves C
//! ```
//!
//! - What a look requests is counted in equal shares for those it serves.
//!
//! # On failure
//! All who share a failed look get its error; the next to ask starts a new one.

use std::future::Future;
use std::sync::Arc;

use parking_lot::Mutex;
use telesto_bucket::Cause;
use telesto_bucket::meter::{ScopeMeter, current_scope, scoped};
use telesto_common::wait::{self, Wait};
use telesto_common::{Deadline, Env};
use tokio::sync::oneshot;

use crate::error::{Error, Result};

/// Who waits for a look, and the scope that has a share of its cost.
type Waiting = (oneshot::Sender<Result<()>>, Option<Arc<ScopeMeter>>);

#[derive(Debug, Default)]
struct State {
    running: bool,
    waiting: Vec<Waiting>,
}

/// Shares looks.
#[derive(Debug)]
pub(crate) struct Looker {
    env: Env,
    state: Arc<Mutex<State>>,
}

/// Marks the looker idle when the task that looks is stopped, so that the next to ask starts anew.
struct Running(Option<Arc<Mutex<State>>>);

impl Drop for Running {
    fn drop(&mut self) {
        if let Some(state) = &self.0 {
            let mut state = state.lock();
            state.running = false;
            state.waiting.clear();
        }
    }
}

impl Looker {
    pub fn new(env: Env) -> Self {
        Self { env, state: Arc::default() }
    }

    /// Waits for a look that starts after this call. `look` does one.
    pub async fn look<F, L>(&self, deadline: Deadline, look: L) -> Result<()>
    where
        L: Fn() -> F + Send + 'static,
        F: Future<Output = Result<()>> + Send + 'static,
    {
        let (reply, answer) = oneshot::channel();
        let start = {
            let mut state = self.state.lock();
            state.waiting.push((reply, current_scope()));
            !std::mem::replace(&mut state.running, true)
        };
        if start {
            let state = Arc::clone(&self.state);
            self.env.spawn("looking at the log's tail", async move {
                let mut running = Running(Some(Arc::clone(&state)));
                loop {
                    let waiting = {
                        let mut state = state.lock();
                        if state.waiting.is_empty() {
                            state.running = false;
                            // From here on another task may run.
                            running.0 = None;
                            break;
                        }
                        std::mem::take(&mut state.waiting)
                    };
                    metrics::counter!("telesto_txn_looks_total").increment(1);
                    metrics::counter!("telesto_txn_looks_shared_total")
                        .increment(waiting.len() as u64);
                    let scope = ScopeMeter::shared(Cause::Read);
                    let result = scoped(Arc::clone(&scope), look()).await;
                    let shares = scope.share_out(&vec![1; waiting.len()]);
                    for ((reply, payer), share) in waiting.into_iter().zip(shares) {
                        scope.give(share, payer.as_deref());
                        // Whoever gave up waiting does not want it.
                        let _ = reply.send(result.clone());
                    }
                }
            });
        }
        wait::on(Wait::Tail, self.env.within(deadline, "looking at the log's tail", answer))
            .await
            .map_err(|error| Error::Unavailable(error.to_string()))?
            .map_err(|_| Error::ShuttingDown)?
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};
    use std::time::Duration;

    use super::*;

    #[tokio::test]
    async fn look_under_way_does_not_serve_a_later_request() {
        let env = telesto_runtime::env();
        let looker = Arc::new(Looker::new(env.clone()));
        let started = Arc::new(AtomicU64::new(0));
        let gate = Arc::new(tokio::sync::Semaphore::new(0));
        let ask = || {
            let (started, gate) = (Arc::clone(&started), Arc::clone(&gate));
            let (looker, deadline) = (Arc::clone(&looker), env.deadline(Duration::from_secs(10)));
            async move {
                looker
                    .look(deadline, move || {
                        let (started, gate) = (Arc::clone(&started), Arc::clone(&gate));
                        async move {
                            started.fetch_add(1, Ordering::SeqCst);
                            gate.acquire().await.expect("open").forget();
                            Ok(())
                        }
                    })
                    .await
            }
        };
        let mut first = Box::pin(ask());
        assert!(futures::poll!(&mut first).is_pending());
        while started.load(Ordering::SeqCst) == 0 {
            tokio::task::yield_now().await;
        }
        let mut second = Box::pin(ask());
        let mut third = Box::pin(ask());
        assert!(futures::poll!(&mut second).is_pending());
        assert!(futures::poll!(&mut third).is_pending());
        gate.add_permits(1);
        first.await.expect("served by the first look");
        while started.load(Ordering::SeqCst) < 2 {
            tokio::task::yield_now().await;
        }
        assert!(futures::poll!(&mut second).is_pending(), "the first look serves nobody new");
        gate.add_permits(1);
        second.await.expect("served by the second look");
        third.await.expect("served by the second look");
        assert_eq!(started.load(Ordering::SeqCst), 2, "two requests share a look");
    }
}
