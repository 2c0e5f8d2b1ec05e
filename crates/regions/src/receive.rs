//! Answers what other regions' senders say.
//!
//! # Invariants
//! - A batch is taken only where it continues its stream; else the sender is told where the stream
//!   stands.
//! - Rows are acknowledged when they are committed.
//! - Who speaks for a region is the node that joined as it: numbers alone do not tell two regions
//!   apart that were given the same one.
//!
//! # On failure
//! The sender is refused with the reason; nothing of the request was taken, except rows of a
//! snapshot, which may be sent again.
//!
//! # Limits
//! While the inbox is full, a batch waits, and with it its sender.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use async_trait::async_trait;
use bytes::Bytes;
use telesto_common::{Deadline, Label, NodeId, RegionId};
use telesto_net::{Caller, Class, Handler};
use telesto_txn::service::Freshness;

use crate::ahead;
use crate::asked::Asked;
use crate::config::Introduction;
use crate::error::{Error, Result};
use crate::forwarded::Forwarded;
use crate::home;
use crate::inbox::{Remote, Way};
use crate::lines::Lines;
use crate::question::Question;
use crate::read_for;
use crate::rows;
use crate::shared::{Shared, Then};
use crate::sort_out::{commit, sort_out};
use crate::wire::{Batch, LabelledRow, Reply, Request};

/// See the module's text.
#[derive(Debug)]
pub(crate) struct Receiver(pub Arc<Shared>);

#[async_trait]
impl Handler for Receiver {
    async fn handle(&self, caller: Caller, _: Class, request: Bytes, _: Deadline) -> Bytes {
        let reply = self.answer(caller.node, request).await;
        reply.unwrap_or_else(|error| Reply::Refused(error.to_string())).encode()
    }
}

impl Receiver {
    async fn answer(&self, by: NodeId, request: Bytes) -> Result<Reply> {
        let shared = &self.0;
        let malformed = || Error::malformed("a request of another region");
        let (header, request) = Request::decode(request).map_err(malformed())?;
        let from = header.from;
        if header.deployment != shared.config.deployment || header.to != shared.config.me {
            return Err(Error::Config(format!(
                "this is region {} of another deployment or address; correct the peer's address",
                shared.config.me
            )));
        }
        if let (Request::Introduce(text), Some(hear)) = (&request, &shared.config.introductions) {
            // Whoever looks after the registry takes it in, and starts this runner again with the
            // new peer.
            let said = Introduction { by: from, text: text.clone() };
            let heard = hear.try_send(said);
            return heard.map(|()| Reply::Taken).map_err(|_| Error::Busy);
        }
        if let Request::Ask(question) = &request
            && from == shared.config.me
        {
            // A command that was started with this region's registry.
            let question = Question::decode(question.clone()).map_err(malformed())?;
            return question.answer(shared, from).await.map(Reply::Answer);
        }
        // One that is not known yet, or another bucket that joined with the same number: it
        // introduces itself, and is taken in or not.
        let known = shared.config.peers.iter().find(|peer| peer.id == from);
        if known.is_none_or(|peer| peer.node.node != by) {
            return Err(Error::UnknownRegion(from));
        }
        if shared.stopped.load(Ordering::Acquire) {
            return Err(Error::Stopped);
        }
        match request {
            Request::Hello | Request::Introduce(_) => Ok(self.standing(from)),
            Request::Batch { begin, body } => {
                if !self.room(from).await {
                    return Ok(self.standing(from));
                }
                let reply = {
                    let mut inbox = shared.inbox.lock();
                    let received = inbox.received(from);
                    let fits = received.filter(|at| (at.lsn, at.hash) == begin);
                    let Some(received) = fits else {
                        return Ok(received.map_or(Reply::Fresh, |at| Reply::At(at.clone())));
                    };
                    let lines = Lines { from, to: shared.config.me };
                    let batch = Batch::unpack(begin, &body, lines, &received.past);
                    let batch = batch.map_err(malformed())?;
                    inbox.take(from, batch, shared.env.clock.wall_micros());
                    Reply::Taken
                };
                shared.news.notify_one();
                Ok(reply)
            }
            Request::Rows { of, rows } => {
                self.fill(from, of, rows).await?;
                Ok(Reply::Taken)
            }
            Request::Measured(report) => {
                shared.reports.heard(shared.env.clock.monotonic(), from, report);
                Ok(Reply::Taken)
            }
            Request::Ask(question) => {
                let question = Question::decode(question).map_err(malformed())?;
                question.answer(shared, from).await.map(Reply::Answer)
            }
            Request::Tree(said) => crate::tree::hear(shared, from, said).map(Reply::Answer),
            Request::Forward(transaction) => {
                let bytes = transaction.len();
                let transaction = Forwarded::decode(transaction).map_err(malformed())?;
                let answer = home::commit_for(shared, from, transaction, bytes).await;
                Ok(Reply::Answer(answer.encode()))
            }
            Request::Read(asked) => {
                let asked = Asked::decode(asked).map_err(malformed())?;
                Ok(Reply::Answer(read_for::answer(shared, from, asked).await.encode()))
            }
            Request::Filled(position) => {
                let now = shared.env.clock.wall_micros();
                shared.inbox.lock().begin(from, position, now);
                // Noted first: after a crash it would be filled again, with rows that go before
                // their causes.
                let noted = shared.apply_taken(Vec::new(), Then::Nothing);
                let limit = shared.config.timeout;
                let noted = shared.env.within_timeout(limit, "noting where a stream begins", noted);
                noted.await.map_err(|error| Error::Unnoted(error.to_string()))??;
                Ok(Reply::Taken)
            }
        }
    }

    fn standing(&self, from: RegionId) -> Reply {
        let inbox = self.0.inbox.lock();
        inbox.received(from).map_or(Reply::Fresh, |at| Reply::At(at.clone()))
    }

    /// Waits while the inbox has no room for `from`; not for so long that the sender does not hear
    /// of it.
    async fn room(&self, from: RegionId) -> bool {
        let shared = &self.0;
        let limit = shared.config.inbox_bytes / shared.peers.len().max(1);
        let by = shared.env.deadline(shared.config.timeout / 2);
        loop {
            let drained = shared.drained.notified();
            if shared.inbox.lock().queued_bytes(from) <= limit {
                return true;
            }
            if shared.env.within(by, "waiting for room", drained).await.is_err() {
                return false;
            }
        }
    }

    /// Takes rows that `from` sends by definitions with the number `of`, which may not have come
    /// here yet.
    async fn fill(&self, from: RegionId, of: u64, labelled: Vec<LabelledRow>) -> Result<()> {
        let store = &self.0.store;
        let mut by_label: BTreeMap<_, Vec<_>> = BTreeMap::new();
        for LabelledRow { source, at, write } in labelled {
            if rows::is_own(&write.key) {
                return Err(Error::Config("a region's own rows are never replicated".to_owned()));
            }
            by_label.entry((at, source)).or_default().push(write);
        }
        let Some(((after, _), _)) = by_label.last_key_value() else { return Ok(()) };
        let after = *after;
        let transactions: Vec<Remote> = by_label
            .into_iter()
            .map(|((at, source), writes)| {
                let (label, way) = (Label::update(source, at), Way::default());
                Remote { label, writes, way }
            })
            .collect();
        let defines = self.0.is_definition(&transactions);
        if defines {
            self.0.inbox.lock().defines();
        }
        loop {
            let snapshot = store.begin(Freshness::Tail, None).await?;
            let at = snapshot.snapshot;
            let sorted = async {
                let ahead = ahead::number(store, at).await?;
                let sorted = sort_out(store, &self.0.tables, &transactions, at, Some(from)).await?;
                Ok::<_, Error>((ahead, sorted))
            };
            let sorted = sorted.await;
            store.release(&snapshot).await;
            let (ahead, mut sorted) = sorted?;
            if of > ahead {
                sorted.own.push(ahead::is(of, at));
            } else if sorted.remote.is_empty() {
                return Ok(());
            }
            match commit(&self.0, sorted, after).await {
                Err(Error::Engine(telesto_txn::Error::Conflict { .. }) | Error::Stale) => {}
                result => {
                    result?;
                    return if defines { self.0.learn_defining().await } else { Ok(()) };
                }
            }
        }
    }
}
