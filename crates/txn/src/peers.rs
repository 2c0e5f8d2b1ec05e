//! What the processes of one database ask each other, beside commits: bytes that a layer above
//! makes and reads.
//!
//! # Invariants
//! - A question reaches nodes that live, over connections that nodes have proven themselves on; the
//!   one that asks is not asked.
//! - An answer is waited for no longer than the question says; who does not answer in time, or does
//!   not know the question, is left out.

use std::fmt::Debug;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use telesto_common::NodeId;

use crate::forward::Unanswered;

/// The other processes of a database.
#[async_trait]
pub trait Peers: Debug + Send + Sync {
    /// Asks all of them; what those said that answered within `within`.
    async fn ask(&self, question: Bytes, within: Duration) -> Vec<(NodeId, Bytes)>;

    /// Asks one of them; its answer, when it comes within `within`.
    ///
    /// # Errors
    /// [`Unanswered`]; who does not know the question has done nothing.
    async fn ask_one(
        &self,
        node: NodeId,
        question: Bytes,
        within: Duration,
    ) -> Result<Bytes, Unanswered>;

    /// From here on questions of others are answered by `answers`, too, if nobody who was told
    /// before knows them.
    fn answer_with(&self, answers: Arc<dyn Answers>);
}

/// Answers what other processes ask.
#[async_trait]
pub trait Answers: Debug + Send + Sync {
    /// The answer; `None`: the question is not known here.
    async fn answer(&self, question: Bytes) -> Option<Bytes>;
}
