//! The Unix socket: only this user's processes can connect, unless others are allowed to, and only
//! one daemon listens.

use crate::{
    Config, Error, connection::Peer, daemon::Sender, guests::Guests, node::Node, socket::Socket,
    users::Subject,
};
use lockkeeper_service::Origin;
use lockkeeper_wire::{
    frame,
    v2::{ToClient, code},
};
use std::{
    cell::RefCell,
    ffi::OsString,
    fs::{self, DirBuilder, File, Permissions},
    future::pending,
    io::{self, Read, Seek, Write},
    os::unix::{
        ffi::{OsStrExt, OsStringExt},
        fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt},
    },
    path::{Path, PathBuf},
    rc::Rc,
    time::{Duration, Instant},
};
use tokio::{
    net::{UnixListener, UnixStream},
    sync::Notify,
};

/// The right to listen on a socket: whoever has it may remove one that nobody listens on.
pub(crate) struct SocketOwner {
    path: PathBuf,
    state_dir: PathBuf,
    /// Who can connect: this user, or, where others are served, everybody. Rights are looked at
    /// when they say Hello.
    mode: u32,
    /// Locked as long as this lives. There is none for a socket that somebody else has opened, and
    /// looks after.
    lock: RefCell<Option<File>>,
}

pub(crate) struct Listener {
    place: SocketOwner,
    socket: RefCell<Rc<UnixListener>>,
    /// Told when there is another socket.
    remade: Notify,
}

/// How often it is looked whether the socket is still there.
const LOOK: Duration = Duration::from_secs(2);

/// How often the log says that nobody can be accepted.
const SAY_AGAIN: Duration = Duration::from_secs(10);

/// How often in a row somebody else may have the lock.
const DENIED: u32 = 3;

/// Takes the place of the socket, before anything is changed there.
pub(crate) fn lock(config: &Config) -> Result<SocketOwner, Error> {
    let (path, state_dir) = (config.socket.clone(), config.state_dir.clone());
    let lock = match &config.given {
        Some(_) => None,
        None => Some(take_lock(&path, &state_dir)?),
    };
    let mode = if config.allow.is_empty() { 0o600 } else { 0o666 };
    Ok(SocketOwner { path, state_dir, mode, lock: RefCell::new(lock) })
}

fn take_lock(path: &Path, state_dir: &Path) -> Result<File, Error> {
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
    let lock =
        File::options().create(true).truncate(false).read(true).write(true).mode(0o600).open(&lock_path);
    let lock = lock.map_err(|error| Error::File(lock_path.clone(), error))?;
    lock_exclusive(&lock, &lock_path)?;
    check_state(&lock_path, &lock, state_dir)?;
    Ok(lock)
}

impl SocketOwner {
    /// Listens.
    pub(crate) fn bind(self, config: &Config) -> Result<Listener, Error> {
        let failed = |error| Error::File(self.path.clone(), error);
        let socket = match &config.given {
            Some(given) => {
                given.set_nonblocking(true).and_then(|()| UnixListener::from_std(given.try_clone()?))
            }
            None => open(&self.path, self.mode),
        };
        let socket = RefCell::new(Rc::new(socket.map_err(failed)?));
        let listener = Listener { place: self, socket, remade: Notify::new() };
        listener.remember().map_err(|error| Error::File(config.socket.clone(), error))?;
        Ok(listener)
    }
}

fn open(path: &Path, mode: u32) -> io::Result<UnixListener> {
    // What is left of a daemon that was killed.
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let socket = UnixListener::bind(path)?;
    fs::set_permissions(path, Permissions::from_mode(mode))?;
    Ok(socket)
}

/// Locks a file for this process alone.
fn lock_exclusive(file: &File, path: &Path) -> Result<(), Error> {
    match file.try_lock() {
        Ok(()) => Ok(()),
        Err(fs::TryLockError::WouldBlock) => Err(Error::Running(path.into())),
        Err(fs::TryLockError::Error(error)) => Err(Error::File(path.into(), error)),
    }
}

/// A daemon that serves a socket after another one needs its state. The lock beside the socket says
/// where that is; it says nothing after a daemon that left no session behind.
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
    fn remember(&self) -> io::Result<()> {
        let mut lock = self.place.lock.borrow_mut();
        let Some(lock) = lock.as_mut() else { return Ok(()) };
        lock.rewind()?;
        lock.write_all(self.place.state_dir.as_os_str().as_bytes())
    }

    /// Nobody is left behind: the next daemon may begin anew.
    pub(crate) fn forget(&self) {
        if let Some(Err(error)) = self.place.lock.borrow().as_ref().map(|lock| lock.set_len(0)) {
            tracing::warn!(%error, "the lock cannot be emptied");
        }
    }

    pub(crate) async fn accept(&self, node: &Rc<Node>) {
        let next = async || loop {
            let socket = Rc::clone(&self.socket.borrow());
            tokio::select! {
                accepted = socket.accept() => return accepted,
                () = self.remade.notified() => {}
            }
        };
        let guests = Guests::default();
        accept_all(next, |stream| admit(stream, node, &guests)).await;
    }

    /// Makes the socket, its lock and their folder again if somebody has removed them. Ends if another daemon is there
    /// instead, or the state was removed: nobody could be let in without a risk.
    pub(crate) async fn keep(&self, node: &Rc<Node>) {
        let SocketOwner { path, state_dir, mode, lock } = &self.place;
        // A socket that somebody else has opened, that one looks after.
        if lock.borrow().is_none() {
            return pending().await;
        }
        let lock_path = path.with_extension("lock");
        let mut bound = identity(fs::symlink_metadata(path));
        let mut denied = 0;
        loop {
            tokio::time::sleep(LOOK).await;
            if !node.has_state() {
                return tracing::error!(state = %state_dir.display(), "the state was removed: stopping");
            }
            let held = lock.borrow().as_ref().and_then(|lock| identity(lock.metadata()));
            if identity(fs::symlink_metadata(&lock_path)) != held {
                match take_lock(path, state_dir) {
                    Ok(taken) => *lock.borrow_mut() = Some(taken),
                    // One that starts has it for a moment, until it finds the state in use.
                    Err(_) if denied < DENIED => {
                        denied += 1;
                        continue;
                    }
                    Err(error) => return tracing::error!(%error, "another daemon is there: stopping"),
                }
                denied = 0;
                if let Err(error) = self.remember() {
                    tracing::warn!(%error, "the lock cannot be written to");
                }
            }
            let there = identity(fs::symlink_metadata(path));
            if there.is_some() && there == bound {
                continue;
            }
            match open(path, *mode) {
                Ok(socket) => {
                    tracing::warn!(socket = %path.display(), "the socket was gone: made again");
                    *self.socket.borrow_mut() = Rc::new(socket);
                    bound = identity(fs::symlink_metadata(path));
                    self.remade.notify_one();
                }
                Err(error) => tracing::warn!(%error, "the socket is gone, and cannot be made again"),
            }
        }
    }
}

/// What makes a file that file.
fn identity(file: io::Result<fs::Metadata>) -> Option<(u64, u64)> {
    file.ok().map(|file| (file.dev(), file.ino()))
}

/// Admits whoever comes.
pub(crate) async fn accept_all<S, A>(next: impl AsyncFn() -> io::Result<(S, A)>, admit: impl Fn(S)) {
    let mut said: Option<Instant> = None;
    loop {
        match next().await {
            Ok((stream, _)) => admit(stream),
            Err(error) => {
                // Out of file descriptors, most likely; those who wait are served when some are free.
                if said.is_none_or(|said| said.elapsed() >= SAY_AGAIN) {
                    said = Some(Instant::now());
                    tracing::warn!(%error, "cannot accept");
                }
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        }
    }
}

fn admit(stream: UnixStream, node: &Rc<Node>, guests: &Guests) {
    let me = rustix::process::geteuid().as_raw();
    match stream.peer_cred() {
        Ok(peer) if peer.uid() == me || peer.uid() == 0 || node.gate.serves_others() => {
            let is_guest = peer.uid() != me && peer.uid() != 0;
            let guest = match is_guest.then(|| guests.admit(peer.uid())).transpose() {
                Ok(guest) => guest,
                Err(why) => return refuse(stream, &why),
            };
            let words = peer.pid().map(|pid| format!("pid {pid}")).unwrap_or_default();
            let subject = Subject { words, user: Some(peer.uid()) };
            match Socket::new(stream) {
                Ok(socket) => {
                    let node = Rc::clone(node);
                    let sender = Sender::Client(subject);
                    let peer = Peer { origin: Origin::Local, sender, page: None, trusts_status: false };
                    tokio::task::spawn_local(async move {
                        node.serve(socket, Vec::new(), peer, None).await;
                        drop(guest);
                    });
                }
                Err(error) => tracing::warn!(%error, "a connection cannot be read"),
            }
        }
        Ok(peer) => tracing::warn!(uid = peer.uid(), "refused: another user"),
        Err(error) => tracing::warn!(%error, "refused: nobody knows who it is"),
    }
}

/// Says why there is no room. Nothing was written to the socket yet, so that it fits.
fn refuse(stream: UnixStream, why: &str) {
    let mut bytes = Vec::new();
    let goodbye = ToClient::Goodbye { code: code::LIMIT, message: why };
    frame::append(&mut bytes, |out| goodbye.encode(out));
    let _ = stream.into_std().and_then(|mut stream| stream.write_all(&bytes));
}
