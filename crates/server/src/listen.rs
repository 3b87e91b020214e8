//! The Unix socket: only this user's processes can connect, unless others are allowed to, and only
//! one daemon listens.

use crate::{
    Config, Error,
    connection::Peer,
    daemon::Sender,
    guests::Guests,
    handshakes::{Handshakes, Source},
    network::Network,
    node::Node,
    socket::Socket,
    users::Subject,
};
use lockkeeper_service::Origin;
use lockkeeper_wire::{
    frame,
    v2::{ToClient, code},
};
use rustix::io::Errno;
use std::{
    cell::RefCell,
    ffi::OsString,
    fs::{self, DirBuilder, File, Permissions},
    future::{Future, poll_fn},
    io::{self, Read, Seek, Write},
    os::unix::{
        ffi::{OsStrExt, OsStringExt},
        fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt},
    },
    path::{Path, PathBuf},
    pin::pin,
    rc::Rc,
    task::Poll,
    time::{Duration, Instant},
};
use tokio::{
    net::{UnixListener, UnixStream, unix::UCred},
    sync::Notify,
};

/// The right to listen on a socket: its owner may remove a socket without a listener.
pub(crate) struct SocketOwner {
    path: PathBuf,
    state_dir: PathBuf,
    /// Who can connect: this user, or, if others are served, every user. Rights are checked at
    /// Hello.
    mode: u32,
    /// Locked as long as this lives. There is none for a socket that systemd has opened and
    /// manages.
    lock: RefCell<Option<File>>,
}

pub(crate) struct Listener {
    place: SocketOwner,
    socket: RefCell<Rc<UnixListener>>,
    /// Told when there is another socket.
    remade: Notify,
    handshakes: Rc<Handshakes>,
}

/// How often it is looked whether the socket is still there.
const LOOK: Duration = Duration::from_secs(2);

/// How often the log reports that no connection can be accepted.
const SAY_AGAIN: Duration = Duration::from_secs(10);

/// How long a daemon without descriptors waits for one.
pub(crate) const PAUSE: Duration = Duration::from_millis(100);

/// How often in a row another process may have the lock.
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
    // In a directory that others can write to, another user could put a socket in our place.
    let (owner, mode) = fs::metadata(dir).map(|dir| (dir.uid(), dir.mode())).map_err(failed)?;
    if owner != rustix::process::geteuid().as_raw() || mode & 0o022 != 0 {
        let why = format!("other users can write to its directory {}", dir.display());
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
        let handshakes = Handshakes::new(config.handshake);
        let listener = Listener { place: self, socket, remade: Notify::new(), handshakes };
        listener.remember().map_err(|error| Error::File(config.socket.clone(), error))?;
        Ok(listener)
    }
}

fn open(path: &Path, mode: u32) -> io::Result<UnixListener> {
    // The remains of a killed daemon.
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
    /// Records where the state is, for the next daemon.
    fn remember(&self) -> io::Result<()> {
        let mut lock = self.place.lock.borrow_mut();
        let Some(lock) = lock.as_mut() else { return Ok(()) };
        lock.rewind()?;
        lock.write_all(self.place.state_dir.as_os_str().as_bytes())
    }

    /// No session is left: the next daemon may begin anew.
    pub(crate) fn forget(&self) {
        if let Some(Err(error)) = self.place.lock.borrow().as_ref().map(|lock| lock.set_len(0)) {
            tracing::warn!(%error, "cannot truncate the lock file");
        }
    }

    /// Strangers on the network give way to the processes of this machine.
    pub(crate) async fn accept(&self, node: &Rc<Node>, network: Option<&Network>) {
        let next = async || loop {
            let socket = Rc::clone(&self.socket.borrow());
            tokio::select! {
                accepted = socket.accept() => return accepted,
                () = self.remade.notified() => {}
            }
        };
        let guests = Guests::default();
        let make_room =
            || network.is_some_and(|network| network.handshakes().close_one()) || self.handshakes.close_one();
        let refuse = async |stream| {
            refuse(stream, "limit reached: the daemon has no file descriptor left (ulimit -n)")
        };
        accept_all(next, |stream| admit(stream, node, &guests, &self.handshakes), make_room, refuse).await;
    }

    pub(crate) async fn time_out_handshakes(&self) {
        self.handshakes.time_out().await;
    }

    /// Makes the socket, its lock and their folder again if they were removed, unless systemd has
    /// opened the socket. Ends if another daemon is there instead, or the state was removed: no
    /// client could be admitted safely.
    pub(crate) async fn keep(&self, node: &Rc<Node>) {
        let SocketOwner { path, state_dir, mode, lock } = &self.place;
        let lock_path = path.with_extension("lock");
        let mut bound = identity(fs::symlink_metadata(path));
        let mut denied = 0;
        loop {
            tokio::time::sleep(LOOK).await;
            if !node.has_state() {
                return tracing::error!(state = %state_dir.display(), "the state was removed: stopping");
            }
            // systemd manages a socket that it has opened.
            if lock.borrow().is_none() {
                continue;
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
                    Err(error) => {
                        return tracing::error!(%error, "another daemon took over the socket: stopping");
                    }
                }
                denied = 0;
                if let Err(error) = self.remember() {
                    tracing::warn!(%error, "cannot write to the lock file");
                }
            }
            let there = identity(fs::symlink_metadata(path));
            if there.is_some() && there == bound {
                continue;
            }
            match open(path, *mode) {
                Ok(socket) => {
                    tracing::warn!(socket = %path.display(), "the socket was removed: created it again");
                    *self.socket.borrow_mut() = Rc::new(socket);
                    bound = identity(fs::symlink_metadata(path));
                    self.remade.notify_one();
                }
                Err(error) => tracing::warn!(%error, "the socket was removed, and cannot be created again"),
            }
        }
    }
}

/// The identity of a file.
fn identity(file: io::Result<fs::Metadata>) -> Option<(u64, u64)> {
    file.ok().map(|file| (file.dev(), file.ino()))
}

/// Admits all connections. A connection that comes when no descriptor is left gets a spare one;
/// `make_room` then closes what is dispensable, and returns whether there was anything. If none is
/// free a moment later either, the connection is refused.
pub(crate) async fn accept_all<S, A>(
    next: impl AsyncFn() -> io::Result<(S, A)>,
    admit: impl Fn(S),
    make_room: impl Fn() -> bool,
    refuse: impl AsyncFn(S),
) {
    accept_with(|| File::open("/dev/null").ok(), next, admit, make_room, refuse).await;
}

/// `open_spare` takes a descriptor, if there is one.
async fn accept_with<D, S, A>(
    open_spare: impl Fn() -> Option<D>,
    next: impl AsyncFn() -> io::Result<(S, A)>,
    admit: impl Fn(S),
    make_room: impl Fn() -> bool,
    refuse: impl AsyncFn(S),
) {
    let mut said: Option<Instant> = None;
    let mut spare = open_spare();
    loop {
        let mut error = match next().await {
            Ok((stream, _)) => {
                admit(stream);
                continue;
            }
            Err(error) => error,
        };
        if matches!(Errno::from_io_error(&error), Some(Errno::MFILE | Errno::NFILE)) {
            // This error occurs even if no connection waits.
            spare = None;
            let accepted = {
                let mut next = pin!(next());
                poll_fn(|context| Poll::Ready(next.as_mut().poll(context))).await
            };
            match accepted {
                Poll::Ready(Ok((stream, _))) => {
                    if make_room() {
                        // The closed connection is dropped in the meantime.
                        tokio::task::yield_now().await;
                        spare = open_spare();
                    }
                    if spare.is_none() {
                        tokio::time::sleep(PAUSE).await;
                        spare = open_spare();
                    }
                    if spare.is_some() {
                        admit(stream);
                        continue;
                    }
                    refuse(stream).await;
                }
                Poll::Ready(Err(again)) => error = again,
                Poll::Pending => {
                    spare = open_spare();
                    tokio::time::sleep(PAUSE).await;
                    continue;
                }
            }
        }
        if said.is_none_or(|said| said.elapsed() >= SAY_AGAIN) {
            said = Some(Instant::now());
            tracing::warn!(%error, "cannot accept");
        }
        spare = spare.or_else(&open_spare);
        tokio::time::sleep(PAUSE).await;
    }
}

fn admit(stream: UnixStream, node: &Rc<Node>, guests: &Guests, handshakes: &Rc<Handshakes>) {
    let me = rustix::process::geteuid().as_raw();
    match stream.peer_cred() {
        Ok(peer) if peer.uid() == me || peer.uid() == 0 || node.gate.serves_others() => {
            let is_guest = peer.uid() != me && peer.uid() != 0;
            let guest = match is_guest.then(|| guests.admit(peer.uid())).transpose() {
                Ok(guest) => guest,
                Err(why) => {
                    node.gate.record_refusal(&user_of(peer), "", &why);
                    return refuse(stream, &why);
                }
            };
            let user = peer.uid();
            // What a client says of itself stands after that: it could be another user's name.
            let words = if user == me { process_of(peer) } else { user_of(peer) };
            let subject = Subject { words, user: Some(user) };
            match Socket::new(stream) {
                Ok(socket) => {
                    let node = Rc::clone(node);
                    let sender = Sender::Client(subject);
                    let peer = Peer { origin: Origin::Local, sender, page: None, trusts_status: false };
                    handshakes.spawn(Source::User(user), async move |handshake| {
                        node.serve(socket, Vec::new(), peer, handshake).await;
                        drop(guest);
                    });
                }
                Err(error) => tracing::warn!(%error, "cannot read from a connection"),
            }
        }
        Ok(peer) => {
            node.gate.record_refusal(&user_of(peer), "", "another user");
        }
        Err(error) => {
            node.gate.record_refusal("", "", &format!("cannot determine the user of the connection: {error}"))
        }
    }
}

/// The process that connected. Empty if it is in another PID namespace.
fn process_of(peer: UCred) -> String {
    peer.pid().map(|pid| format!("pid {pid}")).unwrap_or_default()
}

/// That process and its user.
fn user_of(peer: UCred) -> String {
    format!("{} uid {}", process_of(peer), peer.uid()).trim_start().into()
}

/// Says why there is no room. Nothing was written to the socket yet, so that it fits.
fn refuse(stream: UnixStream, why: &str) {
    let mut bytes = Vec::new();
    let goodbye = ToClient::Goodbye { code: code::LIMIT, message: why };
    frame::append(&mut bytes, |out| goodbye.encode(out));
    let _ = stream.into_std().and_then(|mut stream| stream.write_all(&bytes));
}

#[cfg(test)]
mod tests {
    use super::{Errno, accept_with};
    use std::{
        cell::{Cell, RefCell},
        collections::VecDeque,
        future::pending,
    };

    /// What becomes of those who come, and whether there was to be room for them: a descriptor is
    /// left or not, and room can be made or not.
    fn accept(come: &[Result<u32, Errno>], is_left: bool, has_room: bool) -> (Vec<u32>, Vec<u32>, bool) {
        let script = RefCell::new(come.iter().copied().collect::<VecDeque<_>>());
        let [admitted, refused] = [(); 2].map(|()| RefCell::new(Vec::new()));
        let made = Cell::new(false);
        let opened = Cell::new(false);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        runtime.block_on(async {
            let over = tokio::sync::Notify::new();
            let next = async || {
                let next = script.borrow_mut().pop_front();
                match next {
                    Some(next) => Ok((next?, ())),
                    None => {
                        over.notify_one();
                        pending().await
                    }
                }
            };
            let accepts = accept_with(
                // The one that it begins with.
                || (is_left || made.get() || !opened.replace(true)).then_some(()),
                next,
                |stream| admitted.borrow_mut().push(stream),
                || {
                    made.set(has_room);
                    has_room
                },
                async |stream| refused.borrow_mut().push(stream),
            );
            tokio::select! {
                () = accepts => {}
                () = over.notified() => {}
            }
        });
        (admitted.into_inner(), refused.into_inner(), made.get())
    }

    #[test]
    fn without_a_descriptor_whoever_waits_is_let_in_or_told_why_not() {
        let come = [Ok(1), Err(Errno::MFILE), Ok(2)];
        assert_eq!(accept(&come, false, false), (vec![1], vec![2], false));
        assert_eq!(accept(&come, false, true), (vec![1, 2], vec![], true));
        assert_eq!(accept(&come, true, false), (vec![1, 2], vec![], false), "one is free a moment later");
    }

    /// The last connection with a place was closed at once, although none waited: the system
    /// reports the lack of descriptors before it checks for waiting connections.
    #[test]
    fn no_room_is_made_for_nobody() {
        assert_eq!(accept(&[Ok(1), Err(Errno::MFILE)], true, true), (vec![1], vec![], false));
    }
}
