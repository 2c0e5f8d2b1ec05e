//! Bodies of requests: what they hold in memory counts while they come and until they are answered.
//!
//! # Invariants
//! All bodies and large answers of a node together take
//! [`Limits::wire_memory_bytes`](crate::config::Limits::wire_memory_bytes) at most.
//!
//! # On failure
//! A body that finds no room ends there; its request is answered with 503, and nothing of it has
//! taken effect.
//!
//! # Limits
//! A byte counts [`COPIES`] times: while a value is taken out of its JSON, both are there. The
//! first [`SMALL`] bytes of each body are free, so that slow large ones keep no small one out; a
//! body counts no more than all there is.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, ready};

use axum::body::Body;
use axum::extract::Request;
use axum::http::StatusCode;
use bytes::{Buf as _, Bytes};
use hyper::body::{Body as HttpBody, Frame, SizeHint};
use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::kib;
use super::reply::ApiError;

/// How often a byte of a body is in memory while its request is worked on.
const COPIES: u64 = 2;

/// Bytes of a body that need no room: with all requests that may be under way at once they are a
/// few MiB.
const SMALL: u64 = 32 << 10;

/// What a request's body holds, until this goes.
#[derive(Debug, Default)]
pub(super) struct Taken {
    permit: Mutex<Option<OwnedSemaphorePermit>>,
    refused: AtomicBool,
}

impl Taken {
    /// # Errors
    /// The body found no room.
    pub(super) fn whole(&self) -> Result<(), ApiError> {
        if !self.refused.load(Ordering::Relaxed) {
            return Ok(());
        }
        let message = "too many large requests are being taken in; nothing has been written: try again shortly";
        Err(ApiError::new(StatusCode::SERVICE_UNAVAILABLE, "too_many_requests", message))
    }
}

/// The request with a body that counts against `memory`, which has a permit for each KiB of `all`
/// bytes, as it is read.
pub(super) fn counted(
    request: Request,
    (memory, all): (&Arc<Semaphore>, u64),
) -> (Request, Arc<Taken>) {
    let taken = Arc::<Taken>::default();
    let counting = |body| {
        let (memory, taken) = (Arc::clone(memory), Arc::clone(&taken));
        Body::new(Counted { body, memory, all, taken, bytes: 0 })
    };
    let request = request.map(counting);
    (request, taken)
}

/// A body that is counted as it comes.
struct Counted {
    body: Body,
    memory: Arc<Semaphore>,
    all: u64,
    taken: Arc<Taken>,
    /// How much of it has come.
    bytes: u64,
}

impl Counted {
    /// Permits for what has come.
    fn needs(&self) -> u32 {
        kib((self.bytes.saturating_sub(SMALL) * COPIES).min(self.all))
    }

    /// Makes room for `more` bytes; `false`: there is none.
    fn count(&mut self, more: usize) -> bool {
        let held = self.needs();
        self.bytes += more as u64;
        let needed = self.needs().saturating_sub(held);
        if needed == 0 {
            return true;
        }
        let Ok(permit) = Arc::clone(&self.memory).try_acquire_many_owned(needed) else {
            return false;
        };
        let mut held = self.taken.permit.lock();
        match held.as_mut() {
            Some(held) => held.merge(permit),
            None => *held = Some(permit),
        }
        true
    }
}

impl HttpBody for Counted {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let own = self.get_mut();
        let frame = ready!(Pin::new(&mut own.body).poll_frame(context));
        let more = match &frame {
            Some(Ok(frame)) => frame.data_ref().map_or(0, |data| data.remaining()),
            _ => 0,
        };
        if own.count(more) {
            return Poll::Ready(frame);
        }
        own.taken.refused.store(true, Ordering::Relaxed);
        Poll::Ready(Some(Err(axum::Error::new("there is no memory for the request's body now"))))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FREE: usize = SMALL as usize;

    fn request(bytes: usize, memory: &Arc<Semaphore>) -> (Request, Arc<Taken>) {
        counted(Request::new(Body::from(vec![0; bytes])), (memory, 64 << 10))
    }

    #[tokio::test]
    async fn bodies_hold_memory_until_they_are_answered() {
        let memory = Arc::new(Semaphore::new(64));
        let (first, held) = request(FREE + (20 << 10), &memory);
        assert_eq!(memory.available_permits(), 64, "nothing has come yet");
        let read = axum::body::to_bytes(first.into_body(), usize::MAX).await.expect("reads");
        assert_eq!(read.len(), FREE + (20 << 10));
        held.whole().expect("it found room");
        assert_eq!(memory.available_permits(), 24);

        let (second, refused) = request(FREE + (20 << 10), &memory);
        assert!(axum::body::to_bytes(second.into_body(), usize::MAX).await.is_err());
        assert!(refused.whole().is_err());
        let (small, fits) = request(FREE + (10 << 10), &memory);
        axum::body::to_bytes(small.into_body(), usize::MAX).await.expect("reads");
        fits.whole().expect("it found room");
        let (free, taken) = request(FREE, &memory);
        axum::body::to_bytes(free.into_body(), usize::MAX).await.expect("reads");
        taken.whole().expect("it needs none");
        drop((held, refused, fits, taken));
        assert_eq!(memory.available_permits(), 64);
        // One that is larger than all there is takes all of it.
        let (large, taken) = request(1 << 20, &memory);
        axum::body::to_bytes(large.into_body(), usize::MAX).await.expect("reads");
        taken.whole().expect("it is alone");
        assert_eq!(memory.available_permits(), 0);
    }

    #[tokio::test]
    async fn bodies_of_many_small_pieces_count_by_their_bytes() {
        let memory = Arc::new(Semaphore::new(64));
        let pieces = (0..FREE + 10_000).map(|_| Ok::<_, std::io::Error>(Bytes::from_static(b"x")));
        let body = Body::from_stream(futures::stream::iter(pieces));
        let (request, taken) = counted(Request::new(body), (&memory, 64 << 10));
        axum::body::to_bytes(request.into_body(), usize::MAX).await.expect("reads");
        taken.whole().expect("it found room");
        assert_eq!(memory.available_permits(), 64 - 19);
    }
}
