//! The files of a run: one directory, with the socket, the daemon's state, and the histories.

use std::{
    fs::{self, DirBuilder},
    io,
    os::unix::fs::DirBuilderExt,
    path::{Path, PathBuf},
};

/// Where a run takes place.
#[derive(Clone, Debug)]
pub struct RunDir(PathBuf);

impl RunDir {
    /// Makes it, anew.
    ///
    /// # Errors
    ///
    /// If it is there already, or cannot be made.
    pub fn new(dir: &Path) -> io::Result<Self> {
        // The daemon wants its socket in a directory that is its user's alone.
        DirBuilder::new().mode(0o700).create(dir)?;
        let run_dir = Self(dir.into());
        fs::create_dir(run_dir.0.join("histories"))?;
        fs::create_dir(run_dir.0.join("resources"))?;
        Ok(run_dir)
    }

    /// Of a run that has begun.
    pub(crate) fn at(dir: &Path) -> Self {
        Self(dir.into())
    }

    /// The directory.
    pub fn dir(&self) -> &Path {
        &self.0
    }

    /// Where the daemon listens.
    pub fn socket(&self) -> PathBuf {
        self.0.join("daemon.sock")
    }

    /// Where the daemon keeps what outlives it.
    pub fn state(&self) -> PathBuf {
        self.0.join("state")
    }

    /// What the daemons print, one after the other.
    pub fn log(&self) -> PathBuf {
        self.0.join("daemon.log")
    }

    /// What a daemon of a fleet prints, each time it runs.
    pub(crate) fn log_of(&self, daemon: usize) -> PathBuf {
        self.0.join(format!("daemon-{daemon}.log"))
    }

    /// What was done to whom, when.
    pub(crate) fn deeds(&self) -> PathBuf {
        self.0.join("deeds")
    }

    pub(crate) fn history(&self, process: usize) -> PathBuf {
        self.0.join("histories").join(process.to_string())
    }

    pub(crate) fn resource(&self, name: &str) -> PathBuf {
        self.0.join("resources").join(name)
    }
}
