//! Sends labels along an edge that leads to another region, or that has a delay.
//!
//! # Invariants
//! - Labels are numbered. The receiver takes them in their order, each once; what is not
//!   acknowledged is kept and sent again.
//! - An edge connects two processes: when another one answers, the epoch is broken.
//!
//! # On failure
//! A cut is waited out, and the edge goes on where the receiver stands.
//!
//! # Limits
//! [`KEPT`] labels are under way; the others wait in the epoch, which bounds them.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bytes::Bytes;
use futures::FutureExt as _;
use futures::future::BoxFuture;
use futures::stream::{FuturesOrdered, StreamExt as _};
use telesto_common::RegionId;
use telesto_geo::TreeLabel;

use crate::error::{Error, Result};
use crate::shared::Shared;
use crate::tree::epoch::{Epoch, ToDo};
use crate::tree::micros;
use crate::tree::say::{Edge, LABEL_BYTES, LABELS, Say, Took};

/// Labels under way, and requests.
const KEPT: usize = 1 << 14;
const WINDOW: usize = 64;
const PAUSE: Duration = Duration::from_millis(50);

/// Labels from `first` on that the receiver has not acknowledged; `next` is sent next.
#[derive(Default)]
struct Kept {
    first: u64,
    labels: VecDeque<TreeLabel>,
    next: u64,
}

impl Kept {
    fn chunk(&self) -> Vec<TreeLabel> {
        let sent = usize::try_from(self.next - self.first).unwrap_or(usize::MAX);
        self.labels.iter().skip(sent).take(LABELS).copied().collect()
    }

    /// The receiver has everything below `expected`; whether that can be.
    fn acknowledge(&mut self, expected: u64) -> bool {
        while self.first < expected && self.labels.pop_front().is_some() {
            self.first += 1;
        }
        self.next = self.next.max(self.first);
        expected <= self.first
    }
}

/// An edge to another region.
struct Link<'a> {
    shared: &'a Shared,
    epoch: &'a Epoch,
    edge: Edge,
    to: RegionId,
    kept: Kept,
    /// Who answers.
    life: Option<u64>,
    under_way: FuturesOrdered<BoxFuture<'a, (u64, Result<Bytes>)>>,
    /// Something was lost: it is sent again when all that is under way was answered.
    lost: bool,
}

/// Looks after an edge while its epoch runs.
pub(crate) async fn run(shared: Arc<Shared>, epoch: Arc<Epoch>, (edge, to, wake): ToDo) {
    let (kept, under_way) = (Kept::default(), FuturesOrdered::new());
    let (life, lost) = (None, false);
    let mut link = Link { shared: &shared, epoch: &epoch, edge, to, kept, life, under_way, lost };
    loop {
        if epoch.broken().is_some() {
            return;
        }
        let now = micros(shared.env.clock.monotonic());
        let room = KEPT.saturating_sub(link.kept.labels.len());
        let (labels, next) = epoch.due(edge, room, now);
        if to == shared.config.me {
            epoch.arrive(&shared, edge, labels);
        } else {
            link.kept.labels.extend(labels);
            link.send();
        }
        let beat = shared.config.beat;
        let pause = next.map_or(beat, |next| Duration::from_micros(next.saturating_sub(now)));
        let pause = pause.min(beat).max(Duration::from_micros(1));
        tokio::select! {
            biased;
            Some((end, answer)) = link.under_way.next() => {
                if let Err(over) = link.answered(end, answer).await {
                    epoch.break_up(over);
                    return;
                }
            }
            () = wake.notified() => {}
            () = shared.env.clock.sleep(pause) => {}
        }
    }
}

impl Link<'_> {
    /// Sends what was not sent yet.
    fn send(&mut self) {
        while !self.lost && self.under_way.len() < WINDOW {
            let labels = self.kept.chunk();
            if labels.is_empty() {
                return;
            }
            let (first, count) = (self.kept.next, labels.len() as u64);
            metrics::counter!("telesto_regions_labels_sent_total", "to" => self.to.to_string())
                .increment(count);
            if let Some(peer) = self.shared.peers.get(&self.to) {
                // What the tree costs is metadata, too: it comes in addition to pasts.
                let bytes = count * LABEL_BYTES as u64;
                peer.sent_bytes.fetch_add(bytes, Ordering::Relaxed);
                peer.metadata_bytes.fetch_add(bytes, Ordering::Relaxed);
            }
            self.kept.next += count;
            let end = self.kept.next;
            let (shared, to) = (self.shared, self.to);
            let (epoch, life, edge) = (self.epoch.number, shared.trees.life, self.edge);
            let say = Say::Labels { epoch, life, edge, first, labels };
            let mut asking: BoxFuture<'_, _> =
                Box::pin(async move { (end, shared.say(to, &say).await) });
            // On its way at once, so that requests leave in their order.
            let answered = (&mut asking).now_or_never();
            self.under_way.push_back(match answered {
                Some(answer) => Box::pin(std::future::ready(answer)),
                None => asking,
            });
        }
    }

    /// What was sent up to `end` was answered. An error ends the epoch.
    async fn answered(&mut self, end: u64, answer: Result<Bytes>) -> Result<()> {
        let over = |why: &str| {
            Error::Config(format!("an edge of the tree ends at region {}, {why}", self.to))
        };
        let took = answer.and_then(|answer| {
            Took::decode(answer).map_err(Error::malformed("an answer to labels"))
        });
        match took {
            Ok(Took::Over) => return Err(over("which does not run this epoch (any more)")),
            Ok(Took::Up { life, expected }) => {
                if *self.life.get_or_insert(life) != life {
                    return Err(over("which was started again"));
                }
                if !self.kept.acknowledge(expected) {
                    return Err(over("which has labels that were never sent"));
                }
                self.lost |= expected < end;
            }
            Err(_) => {
                self.lost = true;
                self.shared.env.clock.sleep(PAUSE).await;
            }
        }
        if self.lost && self.under_way.is_empty() {
            (self.kept.next, self.lost) = (self.kept.first, false);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use telesto_common::{Label, Timestamp};
    use telesto_geo::RegionSet;

    use super::*;

    #[test]
    fn what_is_not_acknowledged_is_kept_and_nothing_else_can_be_acknowledged() {
        let label = |at| {
            let label = Label::update(RegionId(1), Timestamp(at));
            TreeLabel { label, interest: RegionSet::default(), floor: Timestamp::ZERO }
        };
        let mut kept = Kept::default();
        kept.labels.extend((0..3).map(label));
        assert_eq!(kept.chunk().len(), 3);
        kept.next = 2;
        assert_eq!(kept.chunk(), [label(2)]);
        assert!(kept.acknowledge(1));
        assert_eq!((kept.first, kept.chunk()), (1, vec![label(2)]));
        kept.next = kept.first;
        assert_eq!(kept.chunk(), [label(1), label(2)]);
        assert!(kept.acknowledge(0), "an answer that came late");
        assert!(!kept.acknowledge(4));
    }
}
