//! Stack for what calls itself: a statement's tree is walked, copied and dropped by functions that
//! call themselves once a level, ours, the parser's and DataFusion's. An overflow would abort the
//! process with everybody's sessions in it.
//!
//! ```text
//!  tokens ── Depth ──> Need ── provide ──> parse, rewrite          derived code: clone, visit, compare, show, drop
//!                        └── Roomy ─────> planning, execution      (polls and the drop of what was not finished)
//!  binders, evaluation ── deeper ──> a new segment where the stack is nearly used up
//! ```
//!
//! # Invariants
//! - A tree is dropped with as much stack as it was made with.
//! - What needs little runs where it is: the thread's own stack is looked at first.
//!
//! # On failure
//! Nothing fails here: limits on depth are `syntax::depth`'s and the binders'.
//!
//! # Limits
//! A segment is memory that is mapped and touched only as far as it is used.

use std::pin::Pin;
use std::task::{Context, Poll};

use futures::Stream;
use futures::future::BoxFuture;

use crate::syntax::Depth;

/// Stack that a walk by our own functions wants to see before it goes a level deeper, bytes.
const RED: usize = if cfg!(debug_assertions) { 1 << 20 } else { 192 << 10 };

/// A new segment for such walks, bytes.
const SEGMENT: usize = 8 << 20;

/// Stack of a level of parentheses, or of a plan, bytes: one is up to a dozen nodes. Unoptimised,
/// sixty subqueries in each other took more than 8 MiB.
const NESTED_BYTES: usize = if cfg!(debug_assertions) { 512 << 10 } else { 48 << 10 };

/// Stack of derived code for an operator or a set operation, bytes. Unoptimised, a thousand UNIONs
/// took more than 15 KiB each.
const CHAINED_BYTES: usize = if cfg!(debug_assertions) { 64 << 10 } else { 12 << 10 };

/// Stack of derived code for an AND or OR of a chain that is not balanced yet, bytes.
const JOINED_BYTES: usize = if cfg!(debug_assertions) { 16 << 10 } else { 3 << 10 };

/// Stack that a statement of no depth at all takes, bytes. Ordinary threads have it.
const PLAIN: usize = 256 << 10;

/// Statements up to this depth run on the thread's own stack as they always did.
const SHALLOW: usize = 24;

/// How much stack something takes, bytes; 0: whatever there is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Need(usize);

impl Need {
    /// For a statement as the parser makes it.
    pub fn of_unbalanced(depth: Depth) -> Self {
        let Self(need) = Self::of_levels(depth.nested, depth.chained);
        match depth.joined {
            0..=64 => Self(need),
            joined => Self(need.max(PLAIN) + joined * JOINED_BYTES),
        }
    }

    /// For a statement whose chains of AND and OR are balanced.
    pub fn of(depth: Depth) -> Self {
        Self::of_levels(depth.nested, depth.chained + depth.joined.min(64))
    }

    /// For a tree of so many levels of several nodes each, and so many of one.
    pub fn of_levels(nested: usize, chained: usize) -> Self {
        if nested + chained / 4 <= SHALLOW {
            return Self(0);
        }
        Self(PLAIN + nested * NESTED_BYTES + chained * CHAINED_BYTES)
    }

    /// For a plan of so many operators above each other, and so many levels of an expression.
    pub fn of_plan(levels: usize, expression: usize) -> Self {
        if levels + expression / 4 <= SHALLOW {
            return Self(0);
        }
        Self(PLAIN + levels * NESTED_BYTES + expression * JOINED_BYTES)
    }

    /// Whether the thread's own stack will do.
    pub fn is_small(self) -> bool {
        self.0 == 0
    }

    /// Runs `work` with that much stack.
    pub fn provide<T>(self, work: impl FnOnce() -> T) -> T {
        if self.is_small() {
            return work();
        }
        // A little more than asked for, so that the same need inside finds it met.
        stacker::maybe_grow(self.0, self.0 + self.0 / 4 + PLAIN, work)
    }

    /// Polls and drops `work` with that much stack.
    pub fn future<'a, T>(self, work: BoxFuture<'a, T>) -> Roomy<BoxFuture<'a, T>> {
        Roomy { need: self, work: Some(work) }
    }

    /// Polls and drops `stream` with that much stack.
    pub fn stream<S>(self, stream: S) -> Roomy<S> {
        Roomy { need: self, work: Some(stream) }
    }

    /// Drops `value` with that much stack.
    pub fn release<T>(self, value: T) {
        self.provide(|| drop(value));
    }
}

/// One level deeper in a walk by functions of our own.
#[inline]
pub fn deeper<T>(work: impl FnOnce() -> T) -> T {
    stacker::maybe_grow(RED, SEGMENT, work)
}

/// Work that is polled, and dropped, with enough stack.
pub struct Roomy<W> {
    need: Need,
    work: Option<W>,
}

impl<W> std::fmt::Debug for Roomy<W> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Roomy").field("need", &self.need).finish_non_exhaustive()
    }
}

impl<W: Future + Unpin> Future for Roomy<W> {
    type Output = W::Output;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<W::Output> {
        let need = self.need;
        match &mut self.work {
            Some(work) => need.provide(|| Pin::new(work).poll(cx)),
            None => Poll::Pending,
        }
    }
}

impl<W: Stream + Unpin> Stream for Roomy<W> {
    type Item = W::Item;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<W::Item>> {
        let need = self.need;
        match &mut self.work {
            Some(work) => need.provide(|| Pin::new(work).poll_next(cx)),
            None => Poll::Ready(None),
        }
    }
}

impl<W> Drop for Roomy<W> {
    fn drop(&mut self) {
        let work = self.work.take();
        self.need.release(work);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn walk(levels: usize) -> usize {
        let ballast = std::hint::black_box([0_u8; 1 << 10]);
        match levels {
            0 => usize::from(ballast[0]),
            levels => deeper(|| walk(levels - 1)) + 1,
        }
    }

    #[test]
    fn a_walk_deeper_than_the_stack_goes_on() {
        assert_eq!(walk(100_000), 100_000);
    }

    #[test]
    fn a_need_is_met_once() {
        let need = Need::of_levels(1_000, 0);
        need.provide(|| {
            let outer = stacker::remaining_stack();
            need.provide(|| assert!(stacker::remaining_stack() > outer.map(|o| o / 2)));
        });
    }
}
