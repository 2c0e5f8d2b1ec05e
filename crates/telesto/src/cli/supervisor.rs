//! Tells the supervisor that started this process how far it is: systemd's `Type=notify`.
//!
//! # Invariants
//! One datagram to the socket in `NOTIFY_SOCKET`; without that variable, nothing.
//!
//! # On failure
//! Logged: a supervisor that cannot be told is no reason not to serve.

use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::net::{SocketAddr, UnixDatagram};

/// Sends `state`, e.g. `READY=1`.
pub fn tell(state: &str) {
    let Some(socket) = std::env::var_os("NOTIFY_SOCKET") else { return };
    if let Err(error) = send(socket.as_bytes(), state) {
        tracing::warn!(%error, state, "the supervisor could not be told");
    }
}

fn send(socket: &[u8], state: &str) -> std::io::Result<()> {
    let address = match socket {
        // A name that is in no file system.
        [b'@', name @ ..] => SocketAddr::from_abstract_name(name)?,
        path => SocketAddr::from_pathname(std::ffi::OsStr::from_bytes(path))?,
    };
    UnixDatagram::unbound()?.send_to_addr(state.as_bytes(), &address)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn state_arrives_at_a_path_and_at_an_abstract_name() {
        let folder = tempfile::tempdir().expect("folder");
        let path = folder.path().join("notify");
        let name = format!("telesto-{}", std::process::id());
        let abstract_name = SocketAddr::from_abstract_name(&name).expect("a name");
        let here = [
            (UnixDatagram::bind(&path).expect("bound"), path.to_str().expect("text").to_owned()),
            (UnixDatagram::bind_addr(&abstract_name).expect("bound"), format!("@{name}")),
        ];
        for (socket, told) in here {
            socket.set_read_timeout(Some(Duration::from_secs(60))).expect("bounded");
            send(told.as_bytes(), "READY=1").expect("sent");
            let mut bytes = [0; 16];
            let length = socket.recv(&mut bytes).expect("received");
            assert_eq!(&bytes[..length], b"READY=1");
        }
    }
}
