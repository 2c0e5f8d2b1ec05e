//! Writes records: the only one who touches the file.
//!
//! # Invariants
//! - Records are written in the order of the queue, each whole and once; after a failure the writer
//!   goes on at the byte where it stopped.
//! - Before each batch the file is opened anew if another file, or none, has its name: renaming it
//!   is all that rotation takes.
//! - The file is made with mode 600.
//!
//! # On failure
//! The batch is kept and tried again each second; `trouble` says why. At the process's end what is
//! left goes to standard error.
//!
//! # Limits
//! A batch is at most the queue.

use std::fs::{File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::{FileExt as _, FileTypeExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use telesto_common::Env;
use tokio::sync::{mpsc, oneshot};
use tokio_util::sync::CancellationToken;

use super::record::unwritten;
use super::{QUEUE, Target};

const AGAIN: Duration = Duration::from_secs(1);

/// A record under way.
#[derive(Debug)]
pub(super) struct Line {
    pub text: Arc<str>,
    pub written: oneshot::Sender<()>,
}

/// Where records go.
#[derive(Debug)]
pub(super) enum Output {
    Stderr,
    File {
        path: PathBuf,
        file: File,
        /// Bytes of the first record that are in the file already.
        begun: usize,
    },
}

impl Output {
    pub fn open(target: &Target) -> io::Result<Self> {
        Ok(match target {
            Target::Stderr => Self::Stderr,
            Target::File(path) => Self::File { path: path.clone(), file: append(path)?, begun: 0 },
        })
    }

    /// Writes records from the first on; how many were written whole, and why no more.
    fn write(&mut self, lines: &[Arc<str>]) -> (usize, io::Result<()>) {
        match self {
            Self::Stderr => {
                let mut out = io::stderr().lock();
                for (at, line) in lines.iter().enumerate() {
                    if let Err(error) = out.write_all(line.as_bytes()) {
                        return (at, Err(error));
                    }
                }
                (lines.len(), out.flush())
            }
            Self::File { path, file, begun } => {
                if let Err(error) = renew(path, file, begun) {
                    return (0, Err(error));
                }
                for (at, line) in lines.iter().enumerate() {
                    while *begun < line.len() {
                        match file.write(&line.as_bytes()[*begun..]) {
                            Ok(0) => return (at, Err(io::ErrorKind::WriteZero.into())),
                            Ok(more) => *begun += more,
                            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                            Err(error) => return (at, Err(error)),
                        }
                    }
                    *begun = 0;
                }
                // Pipes and devices cannot be synced, and need not be.
                match file.sync_data() {
                    Err(error) if error.kind() != io::ErrorKind::InvalidInput => {
                        (lines.len(), Err(error))
                    }
                    _ => (lines.len(), Ok(())),
                }
            }
        }
    }
}

fn append(path: &Path) -> io::Result<File> {
    // Opening a pipe waits until somebody reads it, without end.
    if std::fs::metadata(path).is_ok_and(|named| named.file_type().is_fifo()) {
        return Err(io::Error::other(
            "it is a pipe: give a file, or - and a pipe on standard error",
        ));
    }
    let mut file = OpenOptions::new().append(true).create(true).mode(0o600).open(path)?;
    if is_torn(path)? {
        file.write_all(b"\n")?;
    }
    Ok(file)
}

/// Whether a file ends inside of a line: a process was killed there, and the next record must not
/// become a part of that.
fn is_torn(path: &Path) -> io::Result<bool> {
    let named = std::fs::metadata(path)?;
    if !named.is_file() || named.len() == 0 {
        return Ok(false);
    }
    let mut last = [0];
    // A file that may be appended to and not be read is left as it is.
    let Ok(file) = File::open(path) else { return Ok(false) };
    file.read_exact_at(&mut last, named.len() - 1)?;
    Ok(last != *b"\n")
}

/// Opens the file anew when its name leads elsewhere.
fn renew(path: &Path, file: &mut File, begun: &mut usize) -> io::Result<()> {
    let own = file.metadata()?;
    let same = std::fs::metadata(path)
        .is_ok_and(|named| (named.dev(), named.ino()) == (own.dev(), own.ino()));
    if !same {
        *file = append(path)?;
        *begun = 0;
    }
    Ok(())
}

/// Writes until the queue is closed, or `stop` and the queue is empty.
pub(super) async fn run(
    env: Env,
    output: Output,
    mut lines: mpsc::Receiver<Line>,
    trouble: Arc<Mutex<Option<String>>>,
    stop: CancellationToken,
) {
    let mut output = Some(output);
    let mut batch = Vec::new();
    loop {
        let more = tokio::select! {
            biased;
            more = lines.recv_many(&mut batch, QUEUE) => more,
            () = stop.cancelled() => {
                // What has room already may still come; what has none is refused from now on.
                lines.close();
                lines.recv_many(&mut batch, QUEUE).await
            }
        };
        if more == 0 {
            return;
        }
        while !batch.is_empty() {
            let texts: Vec<Arc<str>> = batch.iter().map(|line| Arc::clone(&line.text)).collect();
            let Some(mut out) = output.take() else { return };
            let wrote = env.blocking("writing the audit log", move || {
                let wrote = out.write(&texts);
                (out, wrote)
            });
            let Ok((out, (whole, ended))) = wrote.await else {
                // The process ends, and its threads are gone.
                return batch.iter().for_each(|line| unwritten(&line.text));
            };
            output = Some(out);
            let counted = metrics::counter!("telesto_audit_records_total", "result" => "written");
            counted.increment(whole as u64);
            for line in batch.drain(..whole) {
                // Whoever waited may have gone on.
                let _ = line.written.send(());
            }
            match ended {
                Ok(()) => *trouble.lock() = None,
                Err(error) => {
                    tracing::error!(%error, "the audit log cannot be written; log-ins and definitions are refused meanwhile");
                    *trouble.lock() = Some(error.to_string());
                    tokio::select! {
                        biased;
                        () = stop.cancelled() => batch.drain(..).for_each(|line| unwritten(&line.text)),
                        () = env.clock.sleep(AGAIN) => {}
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn line_that_a_killed_process_left_torn_is_ended_before_the_next_record() {
        let directory = tempfile::tempdir().expect("directory");
        let path = directory.path().join("audit");
        for (found, left) in [("", "b\n"), ("a\n", "a\nb\n"), ("a\n{\"ti", "a\n{\"ti\nb\n")] {
            std::fs::write(&path, found).expect("written");
            let mut output = Output::open(&Target::File(path.clone())).expect("opens");
            assert_eq!(output.write(&["b\n".into()]).0, 1);
            assert_eq!(std::fs::read_to_string(&path).expect("read"), left);
        }
    }

    #[test]
    fn pipe_that_nobody_reads_is_refused_at_once() {
        let directory = tempfile::tempdir().expect("directory");
        let path = directory.path().join("pipe");
        let made = std::process::Command::new("mkfifo").arg(&path).status().expect("runs");
        assert!(made.success());
        let error = Output::open(&Target::File(path)).expect_err("refused");
        assert!(error.to_string().contains("pipe"), "{error}");
        assert!(Output::open(&Target::File(directory.path().to_owned())).is_err(), "a folder");
        assert!(Output::open(&Target::File(directory.path().join("none/audit"))).is_err());
    }
}
