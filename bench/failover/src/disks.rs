//! A file system for each node, whose writes can be stopped.
//!
//! # Invariants
//! Everything is thawed and unmounted when the handle goes.
//!
//! # On failure
//! Panics and says what is missing: root, loop devices, ext4.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::three::NODES;

/// A file system's size; little of it is used.
const BYTES: u64 = 1 << 30;

/// See the module's text.
pub(crate) struct Disks {
    mounted: Vec<PathBuf>,
    _directory: Option<tempfile::TempDir>,
}

fn must(program: &str, arguments: &[&Path]) {
    let status = Command::new(program).args(arguments).status().expect("it runs");
    assert!(status.success(), "{program} {arguments:?} failed (it takes root)");
}

impl Disks {
    /// Nodes keep their files on the disk of the machine.
    pub(crate) fn none() -> Self {
        Self { mounted: Vec::new(), _directory: None }
    }

    /// Makes and mounts one for each node.
    pub(crate) fn mount() -> Self {
        let directory = tempfile::tempdir().expect("temporary folder");
        let mut disks = Self { mounted: Vec::new(), _directory: None };
        for index in 0..NODES {
            let image = directory.path().join(format!("{index}.img"));
            let file = std::fs::File::create(&image).expect("a file");
            file.set_len(BYTES).expect("room");
            must("mkfs.ext4", &[Path::new("-q"), &image]);
            let folder = directory.path().join(index.to_string());
            std::fs::create_dir(&folder).expect("a folder");
            must("mount", &[Path::new("-o"), Path::new("loop"), &image, &folder]);
            disks.mounted.push(folder);
        }
        disks._directory = Some(directory);
        disks
    }

    /// The folders, one for each node.
    pub(crate) fn folders(&self) -> Option<Vec<PathBuf>> {
        (!self.mounted.is_empty()).then(|| self.mounted.clone())
    }

    /// Node `index` writes nothing from now on.
    pub(crate) fn freeze(&self, index: usize) {
        must("fsfreeze", &[Path::new("-f"), &self.mounted[index]]);
    }

    /// It writes again.
    pub(crate) fn thaw(&self, index: usize) {
        must("fsfreeze", &[Path::new("-u"), &self.mounted[index]]);
    }
}

impl Drop for Disks {
    fn drop(&mut self) {
        for folder in &self.mounted {
            // Most are not frozen.
            let _ = Command::new("fsfreeze").arg("-u").arg(folder).stderr(Stdio::null()).status();
            let _ = Command::new("umount").arg(folder).status();
        }
    }
}
