//! What the machine itself takes for one round trip and one sync, and for a bare majority.
//!
//! # Invariants
//! - Round trip and sync are measured by the means a node uses: a message over TCP on loopback and
//!   its answer from another thread; a write of 4 KiB into a file that has that space already, and
//!   `fdatasync`.
//! - The bare majority does what a quorum commit must do, and nothing else: one thread writes and
//!   syncs a file of its own and sends 4 KiB to two others, which write, sync and answer; it is
//!   over when two of the three have. All share one disk, as the nodes do.
//!
//! # On failure
//! The program ends: the folder is the one that the nodes write to.
//!
//! # Limits
//! Measured just after the nodes' run, while they are idle.

use std::fs::{File, OpenOptions};
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
    let file = prepared(folder, "sync-alone");
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

/// A file that has space for all writes of a measurement.
fn prepared(folder: &Path, name: &str) -> File {
    let path = folder.join(name);
    let file =
        OpenOptions::new().create(true).truncate(true).write(true).open(path).expect("a file");
    file.write_all_at(&vec![0; BLOCK * TIMES], 0).expect("space");
    file.sync_all().expect("a sync");
    file
}

/// Writes what comes and syncs it before it answers.
fn keeps(file: &File, mut stream: &TcpStream) {
    stream.set_nodelay(true).expect("no delay");
    let mut bytes = [0; BLOCK];
    let mut index = 0;
    while stream.read_exact(&mut bytes).is_ok() {
        file.write_all_at(&bytes, (index % TIMES * BLOCK) as u64).expect("writes");
        file.sync_data().expect("a sync");
        index += 1;
        if stream.write_all(&[1]).is_err() {
            return;
        }
    }
}

fn bare_majority(folder: &Path) -> Duration {
    let (done, answers) = std::sync::mpsc::channel::<usize>();
    let mut streams = Vec::new();
    let mut threads = Vec::new();
    for server in 0..2 {
        let listener = TcpListener::bind("127.0.0.1:0").expect("listens");
        let address = listener.local_addr().expect("an address");
        let file = prepared(folder, &format!("majority-{server}"));
        threads.push(std::thread::spawn(move || {
            let (stream, _) = listener.accept().expect("a connection");
            keeps(&file, &stream);
        }));
        let stream = TcpStream::connect(address).expect("connects");
        stream.set_nodelay(true).expect("no delay");
        let (mut reading, done) = (stream.try_clone().expect("a second handle"), done.clone());
        threads.push(std::thread::spawn(move || {
            let mut byte = [0];
            let mut index = 0;
            while reading.read_exact(&mut byte).is_ok() && done.send(index).is_ok() {
                index += 1;
            }
        }));
        streams.push(stream);
    }
    let (ask, asked) = std::sync::mpsc::channel::<usize>();
    let own = prepared(folder, "majority-own");
    threads.push(std::thread::spawn(move || {
        while let Ok(index) = asked.recv() {
            own.write_all_at(&[1; BLOCK], (index * BLOCK) as u64).expect("writes");
            own.sync_data().expect("a sync");
            if done.send(index).is_err() {
                return;
            }
        }
    }));
    let times = (0..TIMES).map(|index| {
        let begun = Instant::now();
        for stream in &mut streams {
            stream.write_all(&[7; BLOCK]).expect("writes");
        }
        ask.send(index).expect("a thread that syncs");
        let mut have = 0;
        while have < 2 {
            have += usize::from(answers.recv().expect("an answer") == index);
        }
        begun.elapsed()
    });
    let median = median(times.collect());
    drop((ask, answers));
    for stream in streams {
        // Ends both ends: a thread of this side reads the same connection.
        let _ = stream.shutdown(std::net::Shutdown::Both);
    }
    for thread in threads {
        thread.join().expect("no panic");
    }
    median
}

/// What the machine takes on one disk, medians.
pub(crate) struct Bare {
    pub round: Duration,
    pub sync: Duration,
    /// Two of three have written and synced, with nothing around it.
    pub majority: Duration,
}

/// Measures it on `folder`'s disk.
pub(crate) fn bare(folder: &Path) -> Bare {
    Bare { round: round(), sync: sync(folder), majority: bare_majority(folder) }
}
