//! A client's TCP socket: which runtime's driver watches it, and whether the client is still there.
//!
//! # Purpose
//! A client is led through its start where nobody computes, and served where sessions are: its
//! socket moves with it. While a statement computes nobody reads the socket; then [`probe`] asks
//! the system about it.
//!
//! # Invariants
//! A socket that cannot move is a client that is gone: nothing is served half.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use mio::unix::SourceFd;
use mio::{Events, Interest, Token};
use telesto_sql::Ending;
use telesto_sql::session::Probe;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio_util::sync::CancellationToken;

/// A TCP socket that can move to another runtime.
#[derive(Debug)]
pub struct Socket(Option<TcpStream>);

impl From<TcpStream> for Socket {
    fn from(stream: TcpStream) -> Self {
        Self(Some(stream))
    }
}

impl Socket {
    /// Has the driver of the runtime at hand watch the socket from now on.
    ///
    /// # Errors
    /// The system's; the socket is closed then.
    pub fn move_here(&mut self) -> io::Result<()> {
        let stream = self.0.take().ok_or_else(gone)?;
        self.0 = Some(TcpStream::from_std(stream.into_std()?)?);
        Ok(())
    }

    /// Lets go of the socket: nobody here watches it any more.
    ///
    /// # Errors
    /// The system's; the socket is closed then.
    pub fn into_descriptor(self) -> io::Result<OwnedFd> {
        self.0.ok_or_else(gone)?.into_std().map(OwnedFd::from)
    }

    /// A socket that another process let go of, watched by the runtime at hand.
    ///
    /// # Errors
    /// The system's, also when the descriptor is no TCP socket; it is closed then.
    pub fn from_descriptor(descriptor: OwnedFd) -> io::Result<Self> {
        let stream = std::net::TcpStream::from(descriptor);
        stream.peer_addr()?;
        stream.set_nonblocking(true)?;
        TcpStream::from_std(stream).map(Self::from)
    }

    /// The descriptor, for [`probe`].
    #[must_use]
    pub fn descriptor(&self) -> Option<RawFd> {
        self.0.as_ref().map(AsRawFd::as_raw_fd)
    }

    fn stream(&mut self) -> io::Result<Pin<&mut TcpStream>> {
        self.0.as_mut().map(Pin::new).ok_or_else(gone)
    }
}

fn gone() -> io::Error {
    io::Error::new(io::ErrorKind::NotConnected, "the socket could not be moved")
}

/// A look at the socket `descriptor`, which must be open whenever the probe runs, and at the
/// server's end.
pub fn probe(descriptor: RawFd, kill: CancellationToken) -> Probe {
    Box::new(move || {
        if kill.is_cancelled() {
            return Some(Ending::Terminated);
        }
        // What cannot be asked counts as being there: the socket's next use tells.
        let closed = has_hung_up(descriptor).unwrap_or(false);
        closed.then_some(Ending::ClientGone)
    })
}

/// Whether the other side has closed its half, whatever lies unread before that.
fn has_hung_up(descriptor: RawFd) -> io::Result<bool> {
    let mut poll = mio::Poll::new()?;
    poll.registry().register(&mut SourceFd(&descriptor), Token(0), Interest::READABLE)?;
    let mut events = Events::with_capacity(1);
    poll.poll(&mut events, Some(Duration::ZERO))?;
    Ok(events.iter().any(|event| event.is_read_closed() || event.is_error()))
}

impl AsyncRead for Socket {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.get_mut().stream()?.poll_read(context, buffer)
    }
}

impl AsyncWrite for Socket {
    fn poll_write(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.get_mut().stream()?.poll_write(context, bytes)
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.get_mut().stream()?.poll_flush(context)
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.get_mut().stream()?.poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::AsyncWriteExt as _;
    use tokio::net::TcpListener;

    use super::*;

    async fn pair() -> (TcpStream, Socket) {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("bound");
        let address = listener.local_addr().expect("an address");
        let client = TcpStream::connect(address).await.expect("connected");
        let (server, _) = listener.accept().await.expect("accepted");
        (client, server.into())
    }

    #[allow(clippy::disallowed_methods, reason = "a test waits for the kernel, not for a task")]
    /// Asks until the answer is `expected`: the other half's end arrives when it arrives.
    fn becomes(descriptor: RawFd, expected: bool) -> bool {
        (0..200).any(|_| {
            std::thread::sleep(Duration::from_millis(5));
            has_hung_up(descriptor).expect("asked") == expected
        })
    }

    #[tokio::test]
    async fn client_that_closes_behind_unread_bytes_is_noticed() {
        let (mut client, server) = pair().await;
        let descriptor = server.descriptor().expect("open");
        assert!(!has_hung_up(descriptor).expect("asked"));
        client.write_all(b"X\0\0\0\x04").await.expect("sent");
        assert!(!has_hung_up(descriptor).expect("asked"), "bytes are no end");
        drop(client);
        assert!(becomes(descriptor, true));
    }

    #[test]
    fn socket_that_moves_goes_on_at_the_other_runtime() {
        let new =
            || tokio::runtime::Builder::new_multi_thread().enable_all().build().expect("runtime");
        let (first, second) = (new(), new());
        let (mut client, mut server) = first.block_on(pair());
        let read = second.block_on(async move {
            server.move_here().expect("moved");
            client.write_all(b"hello").await.expect("sent");
            let mut read = [0; 5];
            tokio::io::AsyncReadExt::read_exact(&mut server, &mut read).await.expect("read");
            read
        });
        assert_eq!(&read, b"hello");
    }
}
