//! Where DataFusion's sorts, aggregates and joins put what does not fit: scratch files of the node.
//!
//! # Invariants
//! - Files have no name, and are encrypted where the database is ([`telesto_cipher::Scratch`]).
//! - All files of a query together stay within its bound.
//!
//! # On failure
//! Errors of the operating system, as DataFusion's I/O errors.

use std::io::{self, Write};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use datafusion::common::{DataFusionError, Result};
use datafusion::execution::disk_manager::DiskManagerMode;
use datafusion::execution::{SpillFile, SpillWriter, TempFileFactory};
use futures::Stream;
use telesto_cipher::{Scratch, ScratchFile};
use telesto_common::Env;

/// Read at a time.
const PIECE: u64 = 128 << 10;

/// Makes the files of one query.
struct Files {
    scratch: Scratch,
    env: Env,
    room: Arc<Room>,
}

/// What the files of a query take on disk.
struct Room {
    used: AtomicU64,
    limit: u64,
}

struct File {
    file: Arc<ScratchFile>,
    env: Env,
    room: Arc<Room>,
}

struct Writer {
    file: Arc<ScratchFile>,
    room: Arc<Room>,
}

/// DataFusion's way to the files.
pub(crate) fn mode(scratch: Scratch, env: Env, limit: u64) -> DiskManagerMode {
    let room = Arc::new(Room { used: AtomicU64::new(0), limit });
    DiskManagerMode::Custom(Arc::new(Files { scratch, env, room }))
}

impl TempFileFactory for Files {
    fn create_temp_file(&self, _: &str) -> Result<Arc<dyn SpillFile>> {
        let file = Arc::new(self.scratch.file().map_err(DataFusionError::IoError)?);
        Ok(Arc::new(File { file, env: self.env.clone(), room: Arc::clone(&self.room) }))
    }
}

impl Drop for File {
    fn drop(&mut self) {
        self.room.used.fetch_sub(self.file.size_bytes(), Ordering::Relaxed);
    }
}

impl SpillFile for File {
    fn size(&self) -> Option<u64> {
        Some(self.file.size_bytes())
    }

    fn read_stream(&self) -> Result<Pin<Box<dyn Stream<Item = Result<Bytes>> + Send>>> {
        let start = (Arc::clone(&self.file), self.env.clone(), 0);
        Ok(Box::pin(futures::stream::try_unfold(start, |(file, env, at)| async move {
            let length = PIECE.min(file.size_bytes().saturating_sub(at));
            if length == 0 {
                return Ok(None);
            }
            let from = Arc::clone(&file);
            let reading = env.blocking("reading spilled rows", move || {
                let mut piece = vec![0; usize::try_from(length).unwrap_or(0)];
                from.read_exact_at(&mut piece, at).map(|()| Bytes::from(piece))
            });
            let piece = reading.await.map_err(|error| DataFusionError::External(error.into()))?;
            let piece = piece.map_err(DataFusionError::IoError)?;
            Ok(Some((piece, (file, env, at + length))))
        })))
    }

    fn open_writer(&self) -> Result<Box<dyn SpillWriter>> {
        Ok(Box::new(Writer { file: Arc::clone(&self.file), room: Arc::clone(&self.room) }))
    }
}

impl Write for Writer {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let size = bytes.len() as u64;
        let used = self.room.used.fetch_add(size, Ordering::Relaxed) + size;
        if used > self.room.limit {
            self.room.used.fetch_sub(size, Ordering::Relaxed);
            return Err(io::Error::new(
                io::ErrorKind::QuotaExceeded,
                format!(
                    "one query may spill {} bytes; let it read less at a time",
                    self.room.limit
                ),
            ));
        }
        self.file.append(bytes)?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl SpillWriter for Writer {
    fn finish(&mut self) -> Result<()> {
        Ok(())
    }
}
