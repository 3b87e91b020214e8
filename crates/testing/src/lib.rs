//! Starts etcd, PostgreSQL and fleets of daemons, on the loopback or in a separate network, for
//! tests, benchmarks and demonstrations. Dropping a value, or the end of this process, ends what it
//! started.
#![forbid(unsafe_code)]

mod cluster;
mod daemons;
mod network;
mod postgres;
mod process;

pub use cluster::Cluster;
pub use daemons::{Daemons, Setup};
pub use network::{Network, NetworkHost};
pub use postgres::Postgres;
pub use process::Process;

use std::{
    env, fs, io,
    net::TcpListener,
    os::unix::fs::DirBuilderExt,
    path::{Path, PathBuf},
    process::{self as this, Command},
    sync::atomic::{AtomicU32, Ordering},
};

/// A directory that is removed with this.
pub struct Folder(PathBuf);

impl Folder {
    /// A new one, which only this user can use.
    ///
    /// # Errors
    ///
    /// If it cannot be made.
    pub fn new(name: &str) -> io::Result<Self> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let path = env::temp_dir().join(format!("lockkeeper-{name}-{}-{number}", this::id()));
        fs::DirBuilder::new().mode(0o700).create(&path)?;
        Ok(Self(path))
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Unused ports of the loopback.
pub(crate) fn free_ports(count: usize) -> io::Result<Vec<u16>> {
    // All at once, so that they differ.
    let listeners: Vec<_> =
        (0..count).map(|_| TcpListener::bind("127.0.0.1:0")).collect::<io::Result<_>>()?;
    listeners.iter().map(|listener| listener.local_addr().map(|address| address.port())).collect()
}

/// Runs a command that prints nothing of interest unless it fails.
pub(crate) fn run(command: &mut Command) -> io::Result<()> {
    let output = command.output()?;
    match output.status.success() {
        true => Ok(()),
        false => Err(io::Error::other(format!("{command:?}: {}", String::from_utf8_lossy(&output.stderr)))),
    }
}
