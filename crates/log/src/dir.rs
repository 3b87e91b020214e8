//! The state directory: where it may be, its owner, and its contents.

use crate::error::OpenError;
use rustix::{
    fs::{FlockOperation, flock},
    io::Errno,
    process::geteuid,
};
use std::{
    fs::{self, DirBuilder, File, OpenOptions},
    io,
    os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt},
    path::{Path, PathBuf},
};

/// Files of the daemons from before there was a log.
const EARLIER: [&str; 6] = ["key", "tokens", "sessions", "sessions.new", "network", "state"];

/// The directory, held by this process alone.
pub(crate) struct Dir {
    path: PathBuf,
    handle: File,
    lock: Lock,
}

/// A file that is locked, until it is dropped or the process ends.
pub(crate) struct Lock(File);

impl Drop for Lock {
    /// Closing it would be enough, except for a forked process that has not called exec yet.
    fn drop(&mut self) {
        let _ = flock(&self.0, FlockOperation::Unlock);
    }
}

impl Dir {
    /// Locks the directory, after everything that can be refused without a change to it.
    pub(crate) fn open(path: &Path) -> Result<Self, OpenError> {
        vet_place(path)?;
        if !path.exists() {
            DirBuilder::new().recursive(true).mode(0o700).create(path).map_err(OpenError::io(path))?;
        }
        vet(path)?;
        Self::lock(path)
    }

    pub(crate) fn lock(path: &Path) -> Result<Self, OpenError> {
        // The process may change its working directory later.
        let path = &path.canonicalize().map_err(OpenError::io(path))?;
        let lock_path = path.join("lock");
        let lock = OpenOptions::new().create(true).truncate(false).write(true).mode(0o600).open(&lock_path);
        let lock = lock.map_err(OpenError::io(&lock_path))?;
        flock(&lock, FlockOperation::NonBlockingLockExclusive).map_err(|error| match error {
            Errno::WOULDBLOCK => OpenError::InUse(path.clone()),
            error => OpenError::Io { path: lock_path, error: error.into() },
        })?;
        let handle = File::open(path).map_err(OpenError::io(path))?;
        Ok(Self { path: path.clone(), handle, lock: Lock(lock) })
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Whether the directory still has the lock of this process, and so is the one that it was.
    pub(crate) fn is_in_place(&self) -> bool {
        let id = |file: fs::Metadata| (file.dev(), file.ino());
        match (fs::symlink_metadata(self.path.join("lock")), self.lock.0.metadata()) {
            (Ok(there), Ok(held)) => id(there) == id(held),
            _ => false,
        }
    }

    /// Another handle, with which names can be made durable.
    pub(crate) fn handle(&self) -> io::Result<File> {
        self.handle.try_clone()
    }

    /// Makes names that were added, changed or removed durable.
    pub(crate) fn sync(&self) -> io::Result<()> {
        self.handle.sync_all()
    }
}

/// Locks the directory for reading, or returns none if another process has the log open.
pub(crate) fn share(path: &Path) -> io::Result<Option<Lock>> {
    let lock = match File::open(path.join("lock")) {
        // It was never open. Any file can be the lock, then.
        Err(error) if error.kind() == io::ErrorKind::NotFound => File::open(path)?,
        lock => lock?,
    };
    match flock(&lock, FlockOperation::NonBlockingLockShared) {
        Ok(()) => Ok(Some(Lock(lock))),
        Err(Errno::WOULDBLOCK) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// The contents of the directory, in ascending order. Foreign names are ignored.
#[derive(Debug, Default)]
pub(crate) struct Listing {
    pub(crate) mark: bool,
    /// The first positions of segments.
    pub(crate) segments: Vec<u64>,
    /// The positions of snapshots.
    pub(crate) snapshots: Vec<u64>,
    /// Files that were never completed.
    pub(crate) unfinished: Vec<String>,
    /// Files of the daemons from before there was a log.
    pub(crate) earlier: Vec<String>,
}

pub(crate) fn list(path: &Path) -> Result<Listing, OpenError> {
    let mut listing = Listing::default();
    let number = |name: &str, prefix: &str| -> Option<u64> {
        name.strip_prefix(prefix).filter(|digits| digits.len() == 20)?.parse().ok()
    };
    for entry in fs::read_dir(path).map_err(OpenError::io(path))? {
        let entry = entry.map_err(OpenError::io(path))?;
        let Ok(name) = entry.file_name().into_string() else { continue };
        if !entry.file_type().map_err(OpenError::io(&entry.path()))?.is_file() {
            continue;
        }
        let stem = name.strip_suffix(".new").unwrap_or(&name);
        let (segment, snapshot) = (number(stem, "log-"), number(stem, "snapshot-"));
        let ours = stem == "mark" || segment.is_some() || snapshot.is_some();
        match (segment, snapshot) {
            _ if EARLIER.contains(&&name[..]) => listing.earlier.push(name),
            _ if ours && stem != name => listing.unfinished.push(name),
            (Some(first), _) => listing.segments.push(first),
            (_, Some(position)) => listing.snapshots.push(position),
            _ => listing.mark |= ours,
        }
    }
    listing.segments.sort_unstable();
    listing.snapshots.sort_unstable();
    listing.unfinished.sort_unstable();
    listing.earlier.sort_unstable();
    Ok(listing)
}

pub(crate) fn mark_path(dir: &Path) -> PathBuf {
    dir.join("mark")
}

pub(crate) fn segment_path(dir: &Path, first: u64) -> PathBuf {
    dir.join(format!("log-{first:020}"))
}

pub(crate) fn snapshot_path(dir: &Path, position: u64) -> PathBuf {
    dir.join(format!("snapshot-{position:020}"))
}

/// The name of a file until it is complete.
pub(crate) fn unfinished(path: &Path) -> PathBuf {
    path.with_extension("new")
}

pub(crate) fn create(path: &Path) -> io::Result<File> {
    OpenOptions::new().create(true).truncate(true).read(true).write(true).mode(0o600).open(path)
}

/// Removes a file, which can be gone already.
pub(crate) fn remove(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// Refuses what must not be used, without a change to it.
pub(crate) fn vet(path: &Path) -> Result<(), OpenError> {
    vet_place(path)?;
    vet_owner(path)?;
    match list(path)?.earlier.first() {
        Some(earlier) => Err(OpenError::Earlier(path.join(earlier))),
        None => Ok(()),
    }
}

pub(crate) fn vet_owner(path: &Path) -> Result<(), OpenError> {
    let owner = fs::metadata(path).map_err(OpenError::io(path))?.uid();
    match owner == geteuid().as_raw() {
        true => Ok(()),
        false => Err(OpenError::Owner { path: path.into(), owner }),
    }
}

/// Refuses network file systems, looking at the parent that is there if the directory is not.
pub(crate) fn vet_place(path: &Path) -> Result<(), OpenError> {
    match lockkeeper_paths::network_file_system(path).map_err(OpenError::io(path))? {
        Some(kind) => Err(OpenError::Network { path: path.into(), kind }),
        None => Ok(()),
    }
}
