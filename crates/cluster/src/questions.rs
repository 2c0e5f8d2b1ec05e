//! Questions of layers above to other nodes: what their sessions do, and to have one of them
//! stopped; what the node that carries the region's streams is to do for another's sessions.
//!
//! # Invariants
//! Nothing here reads what is asked or answered; who may ask is for the connection to say
//! (`telesto_net`: nodes alone).
//!
//! # On failure
//! A node that is gone, that takes too long or that is of a version which does not know the
//! question is left out of the answer.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use futures::channel::oneshot;
use futures::future::join_all;
use parking_lot::RwLock;
use telesto_common::{Env, NodeId};
use telesto_net::Error as NetError;
use telesto_txn::Unanswered;
use telesto_txn::peers::{Answers, Peers};

use crate::error::Error;
use crate::members::Members;
use crate::wire::{self, Reply, Request};

/// The other nodes.
#[derive(Debug)]
pub(crate) struct Others {
    env: Env,
    members: Arc<Members>,
    answers: RwLock<Vec<Arc<dyn Answers>>>,
}

impl Others {
    pub(crate) fn new(env: Env, members: Arc<Members>) -> Arc<Self> {
        Arc::new(Self { env, members, answers: RwLock::default() })
    }

    /// What this node says to another's question.
    pub(crate) async fn answered(&self, question: Bytes) -> Reply {
        let known = self.answers.read().clone();
        for answers in known {
            let (told, answer) = oneshot::channel();
            let question = question.clone();
            // Not where it came: there commits run, and what is asked for may be much.
            self.env.spawn("answering a node's question", async move {
                // Who asked may be gone.
                let _ = told.send(answers.answer(question).await);
            });
            if let Ok(Some(answer)) = answer.await {
                return Reply::Answer(answer.into());
            }
        }
        Reply::Refused("this node cannot answer that".to_owned())
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

    async fn ask_one(
        &self,
        node: NodeId,
        question: Bytes,
        within: Duration,
    ) -> Result<Bytes, Unanswered> {
        let lost = |perhaps_done, reason: String| Unanswered { perhaps_done, reason };
        let Some(client) = self.members.questions(node) else {
            return Err(lost(false, format!("node {node} is not known here")));
        };
        let by = self.env.deadline(within);
        match wire::ask(&client, &Request::Question(question.to_vec()), by).await {
            Ok(Reply::Answer(answer)) => Ok(answer.into()),
            Ok(_) => Err(lost(false, format!("node {node} answers something else"))),
            Err(error) => {
                let done = !matches!(
                    &error,
                    Error::Refused { .. }
                        | Error::Net(
                            NetError::Unreachable { .. }
                                | NetError::TooLarge { .. }
                                | NetError::NotServed { .. }
                                | NetError::Refused { .. }
                        )
                );
                Err(lost(done, error.to_string()))
            }
        }
    }

    fn answer_with(&self, answers: Arc<dyn Answers>) {
        self.answers.write().push(answers);
    }
}
