//! FIFO links that resume: what every plane rests on.
//!
//! ```text
//!  LinkSender  ── (sequence, bytes) ──►  LinkReceiver      a cut loses what is on the way
//!      ▲ ── keeps what is not acknowledged ── resume(expected) ◄──┘
//! ```
//!
//! # Invariants
//! - The receiver hands out each message once, in the sender's order.
//! - The sender keeps a message until it is acknowledged.
//!
//! # On failure
//! After a cut the receiver says what it expects, the sender sends again from there. A gap or a
//! repeat is not handed out.
//!
//! # Limits
//! What is not acknowledged is kept in memory without bound here; whoever runs a link bounds it and
//! slows its sources down. Neither end may forget its numbers: that is what incarnations will be
//! for.

use std::collections::VecDeque;

use bytes::Bytes;

/// The sending end of a link.
#[derive(Clone, Debug, Default)]
pub struct LinkSender {
    /// The number of the oldest message kept.
    first: u64,
    kept: VecDeque<Bytes>,
}

impl LinkSender {
    /// Takes a message in; returns its number.
    pub fn push(&mut self, bytes: Bytes) -> u64 {
        self.kept.push_back(bytes);
        self.first + self.kept.len() as u64 - 1
    }

    /// The receiver has everything below `expected`.
    pub fn acknowledge(&mut self, expected: u64) {
        while self.first < expected && self.kept.pop_front().is_some() {
            self.first += 1;
        }
    }

    /// What to send again after a cut, to a receiver that expects `expected` next.
    pub fn resume(&mut self, expected: u64) -> Vec<(u64, Bytes)> {
        self.acknowledge(expected);
        (self.first..).zip(self.kept.iter().cloned()).collect()
    }

    /// How many messages are kept.
    #[must_use]
    pub fn unacknowledged(&self) -> usize {
        self.kept.len()
    }
}

/// The receiving end of a link.
#[derive(Clone, Copy, Debug, Default)]
pub struct LinkReceiver {
    expected: u64,
}

impl LinkReceiver {
    /// Whether the message with this number is the next one; if so it is to be handed out now.
    pub fn accept(&mut self, sequence: u64) -> bool {
        let next = sequence == self.expected;
        self.expected += u64::from(next);
        next
    }

    /// The number expected next: what an acknowledgement and a resumption say.
    #[must_use]
    pub fn expected(self) -> u64 {
        self.expected
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn link_cut_in_the_middle_and_resumed_hands_out_each_message_once_in_order() {
        let (mut sender, mut receiver) = (LinkSender::default(), LinkReceiver::default());
        let mut out = Vec::new();
        let sent: Vec<_> = (0..5_u8).map(|b| (sender.push(Bytes::from(vec![b])), b)).collect();
        // The first two arrive; the third is lost, so the fourth is a gap.
        for (sequence, byte) in [sent[0], sent[1], sent[3]] {
            if receiver.accept(sequence) {
                out.push(byte);
            }
        }
        sender.acknowledge(1);
        assert_eq!(sender.unacknowledged(), 4);
        for (sequence, bytes) in sender.resume(receiver.expected()) {
            assert!(receiver.accept(sequence));
            out.push(bytes[0]);
        }
        assert!(!receiver.accept(2), "a repeat is not handed out");
        assert_eq!(out, [0, 1, 2, 3, 4]);
        assert_eq!(sender.resume(receiver.expected()), []);
    }
}
