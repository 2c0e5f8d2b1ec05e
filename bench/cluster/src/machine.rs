//! What the machine itself takes for one round trip and one sync.
//!
//! # Invariants
//! Both are measured by the means a node uses: a message over TCP on loopback and its answer from another thread; a write of 4 KiB
//! into a file that has that space already, and `fdatasync`.
//!
//! # On failure
//! The program ends: the folder is the one that the nodes write to.
//!
//! # Limits
//! Measured just after the nodes' run, while they are idle.

use std::fs::OpenOptions;
use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::time::{Duration, Instant};

/// Times that each is done; the median counts.
const TIMES: usize = 301;
const BLOCK: usize = 4096;

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort();
    times[times.len() / 2]
}

fn round() -> Duration {
    let listener = TcpListener::bind("127.0.0.1:0").expect("listens");
    let address = listener.local_addr().expect("an address");
    let echo = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().expect("a connection");
        stream.set_nodelay(true).expect("no delay");
        let mut bytes = [0; 256];
        while stream.read_exact(&mut bytes).is_ok() && stream.write_all(&bytes).is_ok() {}
    });
    let mut stream = TcpStream::connect(address).expect("connects");
    stream.set_nodelay(true).expect("no delay");
    let mut bytes = [7; 256];
    let times = (0..TIMES)
        .map(|_| {
            let begun = Instant::now();
            stream.write_all(&bytes).expect("writes");
            stream.read_exact(&mut bytes).expect("reads");
            begun.elapsed()
        })
        .collect();
    drop(stream);
    echo.join().expect("no panic");
    median(times)
}

fn sync(folder: &Path) -> Duration {
    let path = folder.join("sync-alone");
    let file =
        OpenOptions::new().create(true).truncate(true).write(true).open(path).expect("a file");
    file.write_all_at(&vec![0; BLOCK * TIMES], 0).expect("space");
    file.sync_all().expect("a sync");
    let times = (0..TIMES)
        .map(|index| {
            let begun = Instant::now();
            file.write_all_at(&[1; BLOCK], (index * BLOCK) as u64).expect("writes");
            file.sync_data().expect("a sync");
            begun.elapsed()
        })
        .collect();
    median(times)
}

/// A round trip and a sync on `folder`'s disk, medians.
pub(crate) fn round_and_sync(folder: &Path) -> (Duration, Duration) {
    (round(), sync(folder))
}
