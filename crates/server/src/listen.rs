//! The Unix socket: only this user's processes can connect, and only one daemon listens.

use crate::{Error, connection, daemon::Daemon, process::Process};
use rustix::fs::{FlockOperation, flock};
use std::{
    cell::RefCell,
    fs::{self, DirBuilder, File, Permissions},
    io,
    os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt},
    path::Path,
    rc::Rc,
    time::Duration,
};
use tokio::net::{UnixListener, UnixStream};

pub(crate) struct Listener {
    socket: UnixListener,
    /// Held as long as it listens: whoever has it may remove a socket that nobody listens on.
    _lock: File,
}

pub(crate) fn bind(path: &Path) -> Result<Listener, Error> {
    let failed = |error| Error::File(path.into(), error);
    let dir = path.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."));
    if !dir.exists() {
        DirBuilder::new().recursive(true).mode(0o700).create(dir).map_err(failed)?;
    }
    // In a directory that others can write to, somebody else could put his socket in our place.
    let (owner, mode) = fs::metadata(dir).map(|dir| (dir.uid(), dir.mode())).map_err(failed)?;
    if owner != rustix::process::geteuid().as_raw() || mode & 0o022 != 0 {
        let why = format!("its directory {} is not this user's alone to write to", dir.display());
        return Err(failed(io::Error::new(io::ErrorKind::PermissionDenied, why)));
    }
    let lock_path = path.with_extension("lock");
    let lock = File::create(&lock_path).map_err(|error| Error::File(lock_path.clone(), error))?;
    match flock(&lock, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => {}
        Err(rustix::io::Errno::WOULDBLOCK) => return Err(Error::Running(lock_path)),
        Err(error) => return Err(Error::File(lock_path, error.into())),
    }
    // What is left of a daemon that was killed.
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(failed(error)),
        _ => {}
    }
    let socket = UnixListener::bind(path).map_err(failed)?;
    fs::set_permissions(path, Permissions::from_mode(0o600)).map_err(failed)?;
    Ok(Listener { socket, _lock: lock })
}

impl Listener {
    pub(crate) async fn accept(&self, daemon: &Rc<RefCell<Daemon>>) {
        loop {
            match self.socket.accept().await {
                Ok((stream, _)) => admit(stream, daemon),
                Err(error) => {
                    // Out of file descriptors, most likely; those who wait are served when some are free.
                    tracing::warn!(%error, "cannot accept");
                    tokio::time::sleep(Duration::from_millis(100)).await;
                }
            }
        }
    }
}

fn admit(stream: UnixStream, daemon: &Rc<RefCell<Daemon>>) {
    let me = rustix::process::geteuid().as_raw();
    match stream.peer_cred() {
        Ok(peer) if peer.uid() == me || peer.uid() == 0 => {
            let process = peer.pid().and_then(Process::of);
            tokio::task::spawn_local(connection::run(stream, process, Rc::clone(daemon)));
        }
        Ok(peer) => tracing::warn!(uid = peer.uid(), "refused: another user"),
        Err(error) => tracing::warn!(%error, "refused: nobody knows who it is"),
    }
}
