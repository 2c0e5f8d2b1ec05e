//! What the sessions of all clients share, whichever port they come by.
//!
//! # Invariants
//! `Limits::max_connections` and `Limits::max_computing` bound the sessions of all ports together.

use std::sync::Arc;

use parking_lot::Mutex;
use telesto_common::Env;
use telesto_common::admission::{Admission, Gate};
use tokio::sync::Semaphore;

use crate::attempts::Attempts;
use crate::config::Limits;
use crate::metrics::WireMetrics;
use crate::wire::cancel::Cancels;

/// What all sessions share.
#[derive(Debug)]
pub struct Clients {
    /// Process ids, and who can be cancelled by them.
    pub cancels: Arc<Cancels>,
    /// A permit for each session.
    pub sessions: Arc<Semaphore>,
    /// A permit for each statement that computes.
    pub computing: Arc<Semaphore>,
    /// A permit for each password that somebody proves over HTTP: strangers take no place of those
    /// who are known.
    pub proving: Arc<Semaphore>,
    /// Passwords that were wrong of late.
    pub attempts: Arc<Attempts>,
    /// What is counted.
    pub metrics: WireMetrics,
    /// Whether new work is taken.
    pub gate: Gate,
    admission: Mutex<Option<Admission>>,
}

impl Clients {
    /// Nobody yet.
    #[must_use]
    pub fn new(env: &Env, limits: &Limits) -> Arc<Self> {
        let admission = limits.queue_target.map(Admission::new);
        Arc::new(Self {
            gate: admission.as_ref().map(Admission::gate).unwrap_or_default(),
            admission: Mutex::new(admission),
            cancels: Arc::default(),
            sessions: Arc::new(Semaphore::new(limits.max_connections)),
            computing: Arc::new(Semaphore::new(limits.max_computing.max(1))),
            proving: Arc::new(Semaphore::new((limits.max_requests / 4).max(1))),
            attempts: Attempts::new(env.clone()),
            metrics: WireMetrics::default(),
        })
    }

    /// What sets the gate, for whoever measures; once.
    pub fn admission(&self) -> Option<Admission> {
        self.admission.lock().take()
    }
}
