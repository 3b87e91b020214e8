//! The Unix socket: only this user's processes can connect, and only one daemon listens.

use crate::{Config, Error, connection, daemon::Daemon, socket::Socket};
use lockkeeper_service::Origin;
use std::{
    cell::RefCell,
    ffi::OsString,
    fs::{self, DirBuilder, File, Permissions},
    io::{self, Read, Seek, Write},
    os::unix::{
        ffi::{OsStrExt, OsStringExt},
        fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt},
    },
    path::{Path, PathBuf},
    rc::Rc,
    time::Duration,
};
use tokio::net::{UnixListener, UnixStream};

pub(crate) struct Listener {
    socket: UnixListener,
    /// Held as long as it listens: whoever has it may remove a socket that nobody listens on. A socket that somebody else
    /// has opened, that one looks after.
    lock: Option<File>,
}

pub(crate) fn bind(config: &Config) -> Result<Listener, Error> {
    let (path, state_dir) = (&config.socket, &config.state_dir);
    let failed = |error| Error::File(path.into(), error);
    if let Some(given) = &config.given {
        let socket = given.set_nonblocking(true).and_then(|()| UnixListener::from_std(given.try_clone()?));
        return Ok(Listener { socket: socket.map_err(failed)?, lock: None });
    }
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
    let lock =
        File::options().create(true).truncate(false).read(true).write(true).mode(0o600).open(&lock_path);
    let lock = lock.map_err(|error| Error::File(lock_path.clone(), error))?;
    lock_exclusive(&lock, &lock_path)?;
    check_state(&lock_path, &lock, state_dir)?;
    // What is left of a daemon that was killed.
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(failed(error)),
        _ => {}
    }
    let socket = UnixListener::bind(path).map_err(failed)?;
    fs::set_permissions(path, Permissions::from_mode(0o600)).map_err(failed)?;
    Ok(Listener { socket, lock: Some(lock) })
}

/// Locks a file for this process alone.
fn lock_exclusive(file: &File, path: &Path) -> Result<(), Error> {
    match file.try_lock() {
        Ok(()) => Ok(()),
        Err(fs::TryLockError::WouldBlock) => Err(Error::Running(path.into())),
        Err(fs::TryLockError::Error(error)) => Err(Error::File(path.into(), error)),
    }
}

/// A daemon that serves a socket after another one needs its state. The lock beside the socket says where that is; it says
/// nothing after a daemon that left no session behind.
fn check_state(path: &Path, mut lock: &File, state_dir: &Path) -> Result<(), Error> {
    let failed = |error| Error::File(path.into(), error);
    let mut before = Vec::new();
    lock.read_to_end(&mut before).map_err(failed)?;
    if before.is_empty() || before == state_dir.as_os_str().as_bytes() {
        return Ok(());
    }
    Err(Error::OtherState(path.into(), OsString::from_vec(before).into()))
}

/// The state directory of the daemon that served a socket before and may have left clients behind.
pub fn remembered_state_dir(socket: &Path) -> Option<PathBuf> {
    let dir = fs::read(socket.with_extension("lock")).ok().filter(|dir| !dir.is_empty());
    dir.map(|dir| OsString::from_vec(dir).into())
}

impl Listener {
    /// Says where the state is, for whoever serves next.
    pub(crate) fn remember(&self, state_dir: &Path) -> io::Result<()> {
        let Some(mut lock) = self.lock.as_ref() else { return Ok(()) };
        lock.rewind()?;
        lock.write_all(state_dir.as_os_str().as_bytes())
    }

    /// Nobody is left behind: the next daemon may begin anew.
    pub(crate) fn forget(&self) {
        if let Some(Err(error)) = self.lock.as_ref().map(|lock| lock.set_len(0)) {
            tracing::warn!(%error, "the lock cannot be emptied");
        }
    }

    pub(crate) async fn accept(&self, daemon: &Rc<RefCell<Daemon>>) {
        accept_all(async || self.socket.accept().await, |stream| admit(stream, daemon)).await;
    }
}

/// Admits whoever comes.
pub(crate) async fn accept_all<S, A>(next: impl AsyncFn() -> io::Result<(S, A)>, admit: impl Fn(S)) {
    loop {
        match next().await {
            Ok((stream, _)) => admit(stream),
            Err(error) => {
                // Out of file descriptors, most likely; those who wait are served when some are free.
                tracing::warn!(%error, "cannot accept");
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        }
    }
}

fn admit(stream: UnixStream, daemon: &Rc<RefCell<Daemon>>) {
    let me = rustix::process::geteuid().as_raw();
    match stream.peer_cred() {
        Ok(peer) if peer.uid() == me || peer.uid() == 0 => {
            let subject = peer.pid().map(|pid| format!("pid {pid}")).unwrap_or_default();
            match Socket::new(stream) {
                Ok(socket) => {
                    let daemon = Rc::clone(daemon);
                    let run = connection::run(socket, Vec::new(), Origin::Local, subject, daemon, None);
                    tokio::task::spawn_local(run);
                }
                Err(error) => tracing::warn!(%error, "a connection cannot be read"),
            }
        }
        Ok(peer) => tracing::warn!(uid = peer.uid(), "refused: another user"),
        Err(error) => tracing::warn!(%error, "refused: nobody knows who it is"),
    }
}
