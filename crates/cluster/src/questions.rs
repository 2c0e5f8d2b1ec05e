//! Questions of a layer above to all other nodes: what their sessions do, and to have one of them stopped.
//!
//! # Invariants
//! Nothing here reads what is asked or answered; who may ask is for the connection to say (`telesto_net`: nodes alone).
//!
//! # On failure
//! A node that is gone, that takes too long or that is of a version which does not know the question is left out of the answer.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use futures::future::join_all;
use telesto_common::{Env, NodeId};
use telesto_txn::peers::{Answers, Peers};

use crate::members::Members;
use crate::wire::{self, Reply, Request};

/// The other nodes.
#[derive(Debug)]
pub(crate) struct Others {
    env: Env,
    members: Arc<Members>,
    answers: OnceLock<Arc<dyn Answers>>,
}

impl Others {
    pub(crate) fn new(env: Env, members: Arc<Members>) -> Arc<Self> {
        Arc::new(Self { env, members, answers: OnceLock::new() })
    }

    /// What this node says to another's question.
    pub(crate) async fn answered(&self, question: Bytes) -> Reply {
        let answer = match self.answers.get() {
            Some(answers) => answers.answer(question).await,
            None => None,
        };
        match answer {
            Some(answer) => Reply::Answer(answer.into()),
            None => Reply::Refused("this node cannot answer that".to_owned()),
        }
    }
}

#[async_trait]
impl Peers for Others {
    async fn ask(&self, question: Bytes, within: Duration) -> Vec<(NodeId, Bytes)> {
        let by = self.env.deadline(within);
        let asking = self.members.living().into_iter().map(|(record, _)| {
            let client = self.members.control(record.node);
            let request = Request::Question(question.to_vec());
            async move {
                match wire::ask(&client?, &request, by).await {
                    Ok(Reply::Answer(answer)) => Some((record.node, Bytes::from(answer))),
                    Ok(_) => None,
                    Err(error) => {
                        tracing::debug!(node = %record.node, %error, "a node did not answer");
                        None
                    }
                }
            }
        });
        join_all(asking).await.into_iter().flatten().collect()
    }

    fn answer_with(&self, answers: Arc<dyn Answers>) {
        // Who was told first answers: a process has one engine.
        let _ = self.answers.set(answers);
    }
}
