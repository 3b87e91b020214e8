//! The driver: it connects, reads, writes and sleeps as the session machine requires.
//!
//! # Threads
//!
//! A thread that has changed the machine sends the resulting messages and notifies the host
//! ([`Shared::settle`]). While one thread writes, others queue their messages for it: under
//! contention a write carries many.
//!
//! The session thread sleeps in the poller and handles input that no thread waits for. A thread
//! that waits for a reply takes the read lock and turns the session thread's wake-up off, to read
//! the reply itself. The read lock is taken before the mutex.

use crate::{
    clock,
    connection::Connection,
    endpoint::Endpoint,
    error::Error,
    host::Host,
    poller::Poller,
    reader::Reader,
    state::{CurrentConnection, Deferred, Opening, SessionState},
};
use lockkeeper_service::{Failure, Micros, Transfer};
use polling::Events;
use std::{
    io,
    path::PathBuf,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError, TryLockError,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    thread,
    time::Duration,
};

/// How long each step to a connection may take. Less while a lease is running.
const STEP: Duration = Duration::from_secs(10);
const SHORTEST_STEP: Duration = Duration::from_millis(50);

/// How long to retry while a server is being replaced, before [`open`](Driver::open) fails.
const STOPPING: Micros = 5_000_000;

/// How long the session thread sleeps at most while a lease is running. Timeouts of the system do
/// not count the time in suspend, as the lease does.
const SUSPENDED: Duration = Duration::from_millis(500);

pub(crate) struct Shared<H: Host> {
    pub(crate) endpoint: Endpoint,
    program: Option<PathBuf>,
    poller: Arc<Poller>,
    state: Mutex<SessionState<H>>,
    read_lock: Mutex<Reader>,
    /// Which of the endpoint's addresses to try first.
    address: AtomicUsize,
    /// The address of the server that fell silent last. As long as there is a lease, the others
    /// are tried first: they relay to the leader.
    silent: AtomicUsize,
}

impl<H: Host> Shared<H> {
    pub(crate) fn new(
        endpoint: Endpoint,
        program: Option<PathBuf>,
        state: SessionState<H>,
    ) -> io::Result<Self> {
        Ok(Self {
            endpoint,
            program,
            poller: Arc::new(Poller::new()?),
            state: Mutex::new(state),
            read_lock: Mutex::new(Reader::new()),
            address: AtomicUsize::new(0),
            silent: AtomicUsize::new(usize::MAX),
        })
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, SessionState<H>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notifies the host, sends messages, and wakes the session thread if its deadline has moved
    /// forward.
    pub(crate) fn settle(&self, mut state: MutexGuard<'_, SessionState<H>>) {
        let mut deferred = Deferred::default();
        state.dispatch(&mut deferred);
        let mut state = self.flush(state);
        if state.due().is_some_and(|due| due < state.alarm) {
            state.alarm = 0;
            self.poller.notify();
        }
        drop(state);
        deferred.run();
    }

    /// Sends pending output, unless another thread does. The mutex is unlocked during that time.
    fn flush<'a>(&'a self, mut state: MutexGuard<'a, SessionState<H>>) -> MutexGuard<'a, SessionState<H>> {
        while !state.writing {
            let Some(link) = &state.link else { break };
            if link.blocked || !state.machine.has_output() {
                if link.dropping {
                    // It may take connections, and go on not answering: another address first.
                    if let Opening::Opened = state.opening {
                        self.silent.store(self.address.fetch_add(1, Relaxed), Relaxed);
                    }
                    state.disconnect();
                }
                break;
            }
            let connection = Arc::clone(&link.connection);
            let buffer = state.take_output();
            state.writing = true;
            drop(state);
            let written = connection.write(&buffer);
            state = self.lock();
            state.writing = false;
            state.keep_buffer(buffer);
            self.written(&mut state, &connection, written);
        }
        state
    }

    fn written(&self, state: &mut SessionState<H>, connection: &Arc<Connection>, written: io::Result<bool>) {
        let Some(link) = state.link.as_mut().filter(|link| Arc::ptr_eq(&link.connection, connection)) else {
            return;
        };
        let blocked = !matches!(written, Ok(true));
        if written.is_err() {
            link.broken = true;
            connection.abort();
        }
        if link.blocked != blocked {
            link.blocked = blocked;
            link.set_interest();
        }
    }

    /// The socket takes more.
    fn write_on(&self) {
        let state = self.lock();
        let Some(link) = state.link.as_ref().filter(|link| link.blocked && !link.broken) else { return };
        if state.writing {
            return;
        }
        let connection = Arc::clone(&link.connection);
        let mut state = state;
        state.writing = true;
        drop(state);
        let written = connection.write(&[]);
        let mut state = self.lock();
        state.writing = false;
        self.written(&mut state, &connection, written);
        self.settle(state);
    }

    pub(crate) fn read_lock(&self) -> MutexGuard<'_, Reader> {
        self.read_lock.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The read lock, unless another thread has it.
    pub(crate) fn try_read_lock(&self) -> Option<MutexGuard<'_, Reader>> {
        match self.read_lock.try_lock() {
            Ok(reader) => Some(reader),
            Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    /// Handles what there is. False if there is nothing: neither in the socket, nor left by who
    /// read before.
    pub(crate) fn read_some(&self, reader: &mut Reader) -> io::Result<bool> {
        let mut descriptor = None;
        let came = match reader.fill(&mut descriptor) {
            Ok(came) => came,
            Err(error) => return Err(self.disconnected(reader, error)),
        };
        let (true, Some(number)) = (came || reader.has_input(), reader.number()) else { return Ok(came) };
        let mut state = self.lock();
        if descriptor.is_some() {
            state.received = descriptor;
        }
        let now = clock::now();
        let handled = reader.messages(|message| state.machine.message(now, number, message));
        self.settle(state);
        match handled {
            Ok(handled) => Ok(came || handled),
            Err(error) => Err(self.disconnected(reader, error)),
        }
    }

    /// The connection that is read is of no use any more. Hands back why.
    fn disconnected(&self, reader: &mut Reader, error: io::Error) -> io::Error {
        let number = reader.number();
        reader.forget();
        let mut state = self.lock();
        if let Some(link) = state.link.as_ref().filter(|link| Some(link.number) == number) {
            let number = link.number;
            if !state.machine.is_ready() {
                self.address.fetch_add(1, Relaxed);
            }
            if let Opening::Pending = state.opening {
                state.opening = Opening::Unreachable(io::Error::new(error.kind(), error.to_string()), true);
            }
            state.disconnect();
            state.machine.disconnected(clock::now(), number);
        }
        self.settle(state);
        error
    }

    /// Reads on this thread instead of the session thread, which is not woken during that time.
    pub(crate) fn read_inline(&self, reader: &mut Reader, read: impl FnOnce(&mut Reader) -> io::Result<()>) {
        if self.set_inline(reader, true) {
            // The reading thread also handles the end of the connection.
            let _ = read(reader);
            self.set_inline(reader, false);
        }
    }

    fn set_inline(&self, reader: &Reader, inline: bool) -> bool {
        let mut state = self.lock();
        match &mut state.link {
            Some(link) if Some(link.number) == reader.number() && link.connection.is_local() => {
                link.inline = inline;
                link.set_interest();
                true
            }
            _ => false,
        }
    }

    /// Connects, on this thread.
    fn connect(&self, step: Duration, silent: Option<usize>) {
        let address = self.address.load(Relaxed);
        let connected = self.endpoint.connect(address, silent, self.program.as_deref(), step, &self.poller);
        let connected = connected.and_then(|(address, connection)| {
            self.address.store(address, Relaxed);
            // Read each time: tokens expire, and files are renewed.
            Ok((connection, self.endpoint.token(address)?))
        });
        let mut reader = self.read_lock();
        let mut state = self.lock();
        state.connecting = false;
        match connected {
            Ok((connection, token)) if state.ended.is_none() && state.machine.connect_at().is_some() => {
                let connection = Arc::new(connection);
                let number = state.machine.connected(clock::now(), token.as_deref());
                reader.replace(Arc::clone(&connection), number);
                let (inline, blocked, broken, dropping) = (false, false, false, false);
                state.link =
                    Some(CurrentConnection { connection, number, inline, blocked, broken, dropping });
            }
            Ok(_) => {}
            Err(error) => {
                let failure = Failure::Unreachable(error.to_string());
                if let Opening::Pending = state.opening {
                    state.opening = Opening::Unreachable(error, false);
                }
                state.machine.connect_failed(clock::now(), &failure);
            }
        }
        drop(reader);
        self.settle(state);
    }

    /// Ends this side of the session. Another process continues it.
    pub(crate) fn give_away(&self) -> Option<Transfer> {
        let mut state = self.lock();
        let transfer = state.machine.give_away()?;
        state.ended = Some(0);
        state.disconnect();
        state.alarm = 0;
        drop(state);
        self.poller.notify();
        Some(transfer)
    }

    /// Ends the session with all it has.
    pub(crate) fn close(&self, until: Micros) {
        let mut state = self.lock();
        if state.ended.is_some() {
            return;
        }
        state.machine.close();
        state.ended = Some(until);
        let mut deferred = Deferred::default();
        state.dispatch(&mut deferred);
        let mut state = self.flush(state);
        let writing = state.writing;
        match &mut state.link {
            Some(link) if writing => link.dropping = true,
            // The side that closes first can lose data in flight: so the server does.
            Some(link) if !link.connection.is_local() && !link.blocked => link.connection.finish(),
            _ => state.disconnect(),
        }
        state.alarm = 0;
        drop(state);
        self.poller.notify();
        deferred.run();
    }
}

/// The work of the session thread; and, until the session is open, of the thread that opens it.
pub(crate) struct Driver<H: Host> {
    pub(crate) shared: Arc<Shared<H>>,
    events: Events,
}

impl<H: Host> Driver<H> {
    pub(crate) fn new(shared: Arc<Shared<H>>) -> Self {
        Self { shared, events: Events::new() }
    }

    /// Opens the session, or closes it: if it fails, no descriptor is left.
    pub(crate) fn open(&mut self) -> Result<(), Error> {
        let opened = self.try_open();
        if let Err(error) = &opened {
            let mut state = self.shared.lock();
            // Requests made in the meantime end with this reason.
            state.machine.connect_failed(clock::now(), &Failure::Unusable(error.to_string()));
            self.shared.settle(state);
            self.shared.close(0);
        }
        opened
    }

    fn try_open(&mut self) -> Result<(), Error> {
        let endpoint = self.shared.endpoint.clone();
        let until = clock::now() + STOPPING;
        let mut others = endpoint.addresses() - 1;
        while self.turn() {
            let mut state = self.shared.lock();
            let opening = std::mem::replace(&mut state.opening, Opening::Pending);
            let (error, again) = match opening {
                Opening::Pending => continue,
                Opening::Opened => {
                    state.opening = Opening::Opened;
                    return Ok(());
                }
                Opening::Refused(failure) => {
                    let again = !state.machine.is_closed();
                    (Error::new(&endpoint, failure), again)
                }
                Opening::Unreachable(error, again) => (Error::Unreachable(endpoint.clone(), error), again),
            };
            drop(state);
            // Another address may do better.
            let other = others > 0 && !matches!(error, Error::Refused { code: 0..32, .. });
            if other {
                others -= 1;
                self.shared.address.fetch_add(1, Relaxed);
            } else if !again || clock::now() >= until {
                return Err(error);
            }
        }
        Err(Error::new(&endpoint, Failure::Closed))
    }

    /// The session thread.
    pub(crate) fn run(mut self) {
        while self.turn() {}
    }

    /// Sleeps until there is something to do, and does it. False when the session has ended.
    fn turn(&mut self) -> bool {
        let shared = Arc::clone(&self.shared);
        let mut state = shared.lock();
        let now = clock::now();
        if state.ended.is_some_and(|until| state.link.is_none() || now >= until) {
            state.disconnect();
            return false;
        }
        if state.due().is_some_and(|due| due <= now) {
            let connects = state.link.is_none() && !state.connecting;
            let connects = connects && state.machine.connect_at().is_some_and(|at| at <= now);
            if state.machine.next_wake().is_some_and(|at| at <= now) {
                state.machine.wake(now);
            }
            state.connecting |= connects;
            let lease = state.machine.lease_deadline();
            shared.settle(state);
            if connects {
                self.connect(lease.map(|deadline| deadline.saturating_sub(now)));
            }
            return true;
        }
        let due = state.due();
        state.alarm = due.unwrap_or(Micros::MAX);
        let leased = state.machine.lease_deadline().is_some();
        drop(state);
        let left = due.map(|due| Duration::from_micros(due - now));
        let timeout = if leased { Some(left.unwrap_or(SUSPENDED).min(SUSPENDED)) } else { left };
        let ready = shared.poller.wait(&mut self.events, timeout).unwrap_or_default();
        shared.lock().alarm = 0;
        // Before the clock is read: the input may extend the lease.
        if ready.readable {
            match shared.try_read_lock() {
                Some(mut reader) => _ = shared.read_some(&mut reader),
                // Another thread reads; it is about to turn the wake-up off.
                None => thread::yield_now(),
            }
        }
        if ready.writable {
            shared.write_on();
        }
        true
    }

    /// Connects: on a separate thread while a lease is running, because holders must be notified in
    /// time when it expires.
    fn connect(&self, lease: Option<Micros>) {
        let Some(left) = lease else { return self.shared.connect(STEP, None) };
        let silent = Some(self.shared.silent.load(Relaxed));
        let attempts = 2 * self.shared.endpoint.addresses() as u64;
        let step = Duration::from_micros(left / attempts).clamp(SHORTEST_STEP, STEP);
        let shared = Arc::clone(&self.shared);
        let connect = move || shared.connect(step, silent);
        let thread = thread::Builder::new().name("lockkeeper-connect".into());
        if thread.spawn(connect).is_err() {
            self.shared.connect(SHORTEST_STEP, silent);
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::{Callbacks, Endpoint, Flags, Options, Request, Session, Update};
    use lockkeeper_core::{Mode, Name};
    use lockkeeper_wire::{
        frame,
        v2::{ToClient, VERSION},
    };
    use std::{
        env, fs,
        io::{Read, Write},
        os::unix::net::UnixListener,
        process,
        sync::mpsc,
        thread,
    };

    /// One thread reads the bytes, and loses the read lock before it has handled them: who takes it
    /// next must handle them before it sleeps.
    #[test]
    fn what_another_thread_has_read_is_handled_before_anybody_sleeps() {
        let socket = env::temp_dir().join(format!("lockkeeper-driver-{}.sock", process::id()));
        let listener = UnixListener::bind(&socket).unwrap();
        let server = thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut say = |messages: &[ToClient<'_>]| {
                assert!(stream.read(&mut [0; 4096]).unwrap() > 0, "each message comes in one piece");
                let mut out = Vec::new();
                messages.iter().for_each(|message| frame::append(&mut out, |out| message.encode(out)));
                stream.write_all(&out).unwrap();
            };
            let (client_id, secret) = ("0123456789abcdef", [7; 16]);
            let (features, number, ttl, resumed, last_rid) = (0, 1, 600_000, false, 0);
            let version = VERSION;
            let welcome =
                ToClient::Welcome { version, features, number, client_id, secret, ttl, resumed, last_rid };
            say(&[welcome, ToClient::Synced]);
            say(&[ToClient::Granted { rid: 1, token: 42 }]);
            stream
        });
        let endpoint: Endpoint = format!("unix:{}", socket.display()).parse().unwrap();
        let session = Session::open(&endpoint, Options::new("default"), Callbacks).unwrap();
        let shared = session.shared();
        let mut reader = shared.read_lock();
        let (sender, updates) = mpsc::channel();
        let scope = vec![(Name::from("a"), Mode::Exclusive)];
        let request = Request { scope, flags: Flags::default(), nested_in: None, info: None };
        session.request(request, Box::new(move |update| sender.send(update).unwrap()));
        let stream = server.join().unwrap();
        // The server has written by now; that is all there is.
        assert!(reader.fill(&mut None).unwrap());
        assert!(updates.try_recv().is_err(), "it was read, and not handled");
        assert!(shared.read_some(&mut reader).unwrap());
        assert_eq!(updates.try_recv(), Ok(Update::Granted { token: 42 }));
        assert!(!shared.read_some(&mut reader).unwrap());
        drop(reader);
        drop((session, stream));
        fs::remove_file(socket).unwrap();
    }
}
