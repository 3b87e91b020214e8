//! A session, as its host uses it.

use crate::{
    clock,
    driver::{Driver, Shared},
    endpoint::Endpoint,
    error::Error,
    host::{Callbacks, Host},
    owner,
    state::{Item, Machine, Question, SessionState, View},
};
use lockkeeper_core::Name;
use lockkeeper_service::{Answer, Change, Failure, Key, Micros, Request, SessionConfig, Snapshot, Transfer};
use std::{
    io,
    os::fd::OwnedFd,
    path::PathBuf,
    process,
    sync::{Arc, Mutex, PoisonError, mpsc},
    thread::{self, ThreadId},
    time::{Duration, Instant},
};

/// How long a server on the network may take to close a connection on which the session ended.
const BYE: Micros = 1_000_000;

/// How a session is opened.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Options {
    /// The bucket.
    pub bucket: String,
    /// The program to start as the server, if none answers at this user's own endpoint.
    pub program: Option<PathBuf>,
    /// A description of the client. By default: user, host, program and process id.
    pub owner: Option<String>,
    /// The lease to ask for. The server has the last word.
    pub ttl: Option<Duration>,
}

impl Options {
    /// A session in that bucket.
    pub fn new(bucket: impl Into<String>) -> Self {
        Self { bucket: bucket.into(), program: None, owner: None, ttl: None }.process(process::id())
    }

    /// The same, for another process than this one, of the same user: people see that.
    #[must_use]
    pub fn process(mut self, id: u32) -> Self {
        self.owner = Some(owner::describe(id));
        self
    }

    /// The same, and the program to start as the server if none answers.
    #[must_use]
    pub fn program(mut self, program: Option<PathBuf>) -> Self {
        self.program = program;
        self
    }
}

/// A session with a server. When it is dropped, its locks and requests end.
pub struct Session<H: Host = Callbacks> {
    shared: Arc<Shared<H>>,
    /// The session thread. Its channel closes when it has ended.
    thread: Mutex<Option<(ThreadId, mpsc::Receiver<()>)>>,
}

impl<H: Host> Session<H> {
    /// Opens a session. Blocks until it is open; if that fails, nothing is left behind.
    ///
    /// # Errors
    ///
    /// If no server can be reached, or it refuses.
    pub fn open(endpoint: &Endpoint, options: Options, host: H) -> Result<Self, Error> {
        let (shared, mut driver) = prepare(endpoint, options, host)?;
        driver.open()?;
        let session = Self { shared, thread: Mutex::default() };
        session.spawn(move || driver.run())?;
        Ok(session)
    }

    /// Opens a session without waiting for it: `opened` is called on the session thread. Requests
    /// can be made at once, and fail if it does.
    ///
    /// # Errors
    ///
    /// If there are no descriptors or threads left.
    pub fn start(
        endpoint: &Endpoint,
        options: Options,
        host: H,
        opened: impl FnOnce(Result<(), Error>) + Send + 'static,
    ) -> Result<Self, Error> {
        let (shared, mut driver) = prepare(endpoint, options, host)?;
        let session = Self { shared, thread: Mutex::default() };
        session.spawn(move || {
            let result = driver.open();
            let is_open = result.is_ok();
            opened(result);
            if is_open {
                driver.run();
            }
        })?;
        Ok(session)
    }

    fn spawn(&self, run: impl FnOnce() + Send + 'static) -> Result<(), Error> {
        let (ends, ended) = mpsc::channel();
        let run = move || {
            run();
            drop(ends);
        };
        let thread = thread::Builder::new().name("lockkeeper-session".into()).spawn(run);
        let thread = thread.map_err(|error| Error::Unreachable(self.shared.endpoint.clone(), error))?;
        *self.thread.lock().unwrap_or_else(PoisonError::into_inner) = Some((thread.thread().id(), ended));
        Ok(())
    }

    #[cfg(test)]
    pub(crate) fn shared(&self) -> &Shared<H> {
        &self.shared
    }

    /// Where the server is.
    pub fn endpoint(&self) -> &Endpoint {
        &self.shared.endpoint
    }

    /// The server's message when it temporarily refused to open this session.
    pub fn refusal(&self) -> Option<String> {
        self.shared.lock().refusal.clone()
    }

    /// The session's public id; empty while there is no session.
    pub fn client_id(&self) -> String {
        self.shared.lock().machine.client_id().unwrap_or_default().into()
    }

    /// Calls `use_it` with the mutex held, then sends the resulting messages and events. An expired
    /// lease is noticed first, so that the view is current.
    pub fn with<R>(&self, use_it: impl FnOnce(&mut View<'_, H>) -> R) -> R {
        let mut state = self.shared.lock();
        state.check_lease();
        let mut deferred = crate::state::Deferred::default();
        state.dispatch(&mut deferred);
        let result = use_it(&mut View::new(&mut state));
        self.shared.settle(state);
        deferred.run();
        result
    }

    /// Makes a request. It is sent as soon as there is a session.
    pub fn request(&self, request: Request, data: H::Data) -> Key {
        self.with(|view| view.request(request, data))
    }

    /// Releases a lock or aborts a request. The host is notified when that is done. False if the
    /// request had ended already.
    pub fn release(&self, key: Key) -> bool {
        self.with(|view| view.release(key, false))
    }

    /// The same, of a request whose timeout expired: the server counts those.
    pub fn time_out(&self, key: Key) -> bool {
        self.with(|view| view.release(key, true))
    }

    /// Releases a lock or aborts a request, without further events for the host. False if the
    /// request had ended already.
    pub fn detach(&self, key: Key) -> bool {
        self.with(|view| view.detach(key, false)).is_some()
    }

    /// Whether a lock is held now. Looks at the clock: after the lease has expired it is not.
    pub fn is_held(&self, key: Key) -> bool {
        self.with(|view| view.is_held(key))
    }

    /// Whether its server is on this machine, so that it may be worth to
    /// [spin](Self::spin_for_reply) for replies.
    pub fn is_local(&self) -> bool {
        self.shared.endpoint.socket().is_some()
    }

    /// Reads on this thread for some microseconds, or until the server has `answered`. Called by a
    /// thread that has just made a request, before it sleeps: waking a thread often takes longer
    /// than the reply.
    ///
    /// It returns early if the server is on the network, goes away, or another thread reads; and if
    /// recent spinning failed.
    pub fn spin_for_reply(&self, answered: impl Fn() -> bool) {
        if !self.is_local() || answered() {
            return;
        }
        let shared = &self.shared;
        let Some(mut reader) = shared.try_read_lock().filter(|reader| reader.may_spin()) else { return };
        shared.read_inline(&mut reader, |reader| reader.spin(answered, |reader| shared.read_some(reader)));
    }

    /// Reads and sleeps on this thread, until it is `done` or that time has passed. A thread that
    /// would sleep anyway does it here first: the reply then wakes one thread rather than two.
    ///
    /// It returns early if the server is on the network, goes away, or another thread reads: the
    /// host's event must wake this thread, too.
    pub fn wait(&self, done: impl Fn() -> bool, until: Option<Instant>) {
        if !self.is_local() {
            return;
        }
        let shared = &self.shared;
        let Some(mut reader) = shared.try_read_lock() else { return };
        shared.read_inline(&mut reader, |reader| {
            while !done() {
                if !shared.read_some(reader)? {
                    let Some(connection) = reader.connection() else { break };
                    if !connection.sleep_until(until) {
                        break;
                    }
                }
            }
            Ok(())
        });
    }

    /// The state of the bucket, or of one name of it. Blocks until the server has answered; while
    /// there is none, until there is.
    ///
    /// # Errors
    ///
    /// If the server refuses.
    pub fn query(&self, name: Option<&Name>) -> Result<Snapshot, Error> {
        snapshot(self.answer(Question::Query { name: name.cloned(), deadlocks: false }))
    }

    /// The same, and the cycles of requests that wait for each other.
    ///
    /// # Errors
    ///
    /// If the server refuses.
    pub fn inspect(&self, name: Option<&Name>) -> Result<Snapshot, Error> {
        snapshot(self.answer(Question::Query { name: name.cloned(), deadlocks: true }))
    }

    /// As [`query`](Self::query), without blocking: `then` is called on the thread that reads the
    /// answer, and must not wait for anything.
    pub fn query_then(
        &self,
        name: Option<&Name>,
        then: impl FnOnce(Result<Snapshot, Error>) + Send + 'static,
    ) {
        let question = Question::Query { name: name.cloned(), deadlocks: false };
        self.ask(question, |answer| then(snapshot(answer)));
    }

    /// As [`inspect`](Self::inspect), without blocking, as [`query_then`](Self::query_then).
    pub fn inspect_then(
        &self,
        name: Option<&Name>,
        then: impl FnOnce(Result<Snapshot, Error>) + Send + 'static,
    ) {
        let question = Question::Query { name: name.cloned(), deadlocks: true };
        self.ask(question, |answer| then(snapshot(answer)));
    }

    /// Calls `then` with the state of the bucket and from then on with each change, also after a
    /// connection or the session was lost. If the server refuses, the last call says why. `then`
    /// runs on the thread that reads, in the order in which changes came, and must not wait for
    /// anything. Do not combine it with threads that read for themselves
    /// ([`spin_for_reply`](Self::spin_for_reply), [`wait`](Self::wait)): calls of two threads have
    /// no order.
    pub fn subscribe(&self, then: impl Fn(Result<Change, Error>) + Send + Sync + 'static) {
        let endpoint = self.shared.endpoint.clone();
        let subscriber = move |change: Result<Change, Failure>| {
            then(change.map_err(|failure| Error::new(&endpoint, failure)));
        };
        self.with(|view| view.subscribe(Arc::new(subscriber)));
    }

    /// Breaks every lock on a name. Returns how many. Blocks until the server has answered.
    ///
    /// # Errors
    ///
    /// If the server refuses; or if the session is lost before the answer: then it may have been
    /// done.
    pub fn force_release(&self, name: &Name) -> Result<u64, Error> {
        count(self.answer(Question::ForceRelease(name.clone())))
    }

    /// As [`force_release`](Self::force_release), without blocking, as
    /// [`query_then`](Self::query_then).
    pub fn force_release_then(&self, name: &Name, then: impl FnOnce(Result<u64, Error>) + Send + 'static) {
        self.ask(Question::ForceRelease(name.clone()), |answer| then(count(answer)));
    }

    /// Ends another session of the bucket, with all it has. Returns how many ended: 1, or 0 if
    /// there is none of that client id. Blocks until the server has answered.
    ///
    /// # Errors
    ///
    /// As [`force_release`](Self::force_release).
    pub fn end_session(&self, client_id: &str) -> Result<u64, Error> {
        count(self.answer(Question::EndSession(client_id.into())))
    }

    /// As [`end_session`](Self::end_session), without blocking, as
    /// [`query_then`](Self::query_then).
    pub fn end_session_then(&self, client_id: &str, then: impl FnOnce(Result<u64, Error>) + Send + 'static) {
        self.ask(Question::EndSession(client_id.into()), |answer| then(count(answer)));
    }

    fn answer(&self, question: Question) -> Result<Answer, Error> {
        let (sender, answer) = mpsc::channel();
        self.ask(question, move |answer| _ = sender.send(answer));
        answer.recv().unwrap_or_else(|_| Err(Error::new(&self.shared.endpoint, Failure::Closed)))
    }

    fn ask(&self, question: Question, then: impl FnOnce(Result<Answer, Error>) + Send + 'static) {
        let endpoint = self.shared.endpoint.clone();
        let responder = move |answer: Result<Answer, Failure>| {
            then(answer.map_err(|failure| Error::new(&endpoint, failure)));
        };
        self.with(|view| view.ask(question, Box::new(responder)));
    }

    /// The descriptor on which the life of a local session depends, for a child process to inherit:
    /// the session outlives this process as long as any process has it open. None if the session
    /// has a lease, or does not exist yet. Blocks for one answer of the server if the descriptor
    /// has just arrived: until it is confirmed, the session has a lease.
    ///
    /// # Errors
    ///
    /// If there are no descriptors left.
    pub fn fifo(&self) -> io::Result<Option<OwnedFd>> {
        if self.shared.lock().is_fifo_unconfirmed() {
            // The server answers in order: what was confirmed before the question is, or never will
            // be.
            let _ = self.answer(Question::Query { name: Some(Name::default()), deadlocks: false });
        }
        let state = self.shared.lock();
        state.fifo.as_ref().filter(|_| !state.is_fifo_unconfirmed()).map(OwnedFd::try_clone).transpose()
    }

    /// The lease of the session; none if it lives by a descriptor, or there is no session.
    pub fn ttl(&self) -> Option<Duration> {
        self.shared.lock().machine.ttl().map(Duration::from_millis)
    }

    /// For how long locks can be considered held without another word of the server; none if there
    /// is no lease.
    pub fn lease_left(&self) -> Option<Duration> {
        Some(self.lease_deadline()?.saturating_sub(crate::now()))
    }

    /// Until when locks are held without another message of the server, by the clock that
    /// [`now`](crate::now) shows to all processes of the machine; none if there is no lease.
    pub fn lease_deadline(&self) -> Option<Duration> {
        self.shared.lock().machine.lease_deadline().map(Duration::from_micros)
    }

    /// Gives the session away, with the locks it holds, to another process of this machine, which
    /// [adopts](Self::adopt) it. This side is closed without a message to the server or an event
    /// for the host. None if there is no session.
    pub fn give_away(&self) -> Option<Transfer> {
        self.shared.give_away()
    }

    /// Goes on with a session that another process gave away; `data` is that of the lock with the
    /// lowest number, whose key is 0. Blocks until it is resumed.
    ///
    /// # Errors
    ///
    /// If no server can be reached, or it does not know the session any more.
    pub fn adopt(
        endpoint: &Endpoint,
        options: Options,
        host: H,
        transfer: &Transfer,
        data: H::Data,
    ) -> Result<Self, Error> {
        let data = Item::Request(data);
        let adopt = |config| lockkeeper_service::Session::adopt(config, transfer, clock::now(), data);
        let (shared, mut driver) = prepare_with(endpoint, options, host, adopt)?;
        driver.open()?;
        let session = Self { shared, thread: Mutex::default() };
        session.spawn(move || driver.run())?;
        if session.client_id() == transfer.client_id() {
            return Ok(session);
        }
        Err(Error::new(endpoint, Failure::Unreachable("the session was lost".into())))
    }

    /// The process that serves this session, if that is known.
    pub fn server_pid(&self) -> Option<u32> {
        let connection = Arc::clone(&self.shared.lock().link.as_ref()?.connection);
        connection.is_local().then(|| crate::peer::Peer::of(&*connection))?.ok()?.pid
    }

    /// Ends the session: its locks and requests are lost, and the host is notified. On the network,
    /// if there is a connection, blocks for a second at most, until the server has received it.
    pub fn close(&self) {
        let connected = self.shared.lock().link.is_some();
        self.shared.close(clock::now() + BYE);
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some((id, ended)) = thread
            && id != thread::current().id()
            && !self.is_local()
            && connected
        {
            let _ = ended.recv_timeout(Duration::from_micros(BYE));
        }
    }
}

impl<H: Host> Drop for Session<H> {
    fn drop(&mut self) {
        self.close();
    }
}

type Prepared<H> = (Arc<Shared<H>>, Driver<H>);

fn prepare<H: Host>(endpoint: &Endpoint, options: Options, host: H) -> Result<Prepared<H>, Error> {
    prepare_with(endpoint, options, host, |config| lockkeeper_service::Session::new(config, clock::now()))
}

fn prepare_with<H: Host>(
    endpoint: &Endpoint,
    options: Options,
    host: H,
    machine: impl FnOnce(SessionConfig) -> Machine<H::Data>,
) -> Result<Prepared<H>, Error> {
    let Options { bucket, program, owner, ttl } = options;
    let ttl = ttl.map(|ttl| u64::try_from(ttl.as_millis()).unwrap_or(u64::MAX));
    let fifo = endpoint.socket().is_some();
    let config = SessionConfig { bucket, owner, ttl, fifo, going_away_ends: false };
    let shared = Shared::new(endpoint.clone(), program, SessionState::new(machine(config), host));
    let shared = Arc::new(shared.map_err(|error| Error::Unreachable(endpoint.clone(), error))?);
    let driver = Driver::new(Arc::clone(&shared));
    Ok((shared, driver))
}

fn snapshot(answer: Result<Answer, Error>) -> Result<Snapshot, Error> {
    match answer? {
        Answer::Snapshot(snapshot) => Ok(snapshot),
        Answer::Done { .. } => Ok(Snapshot::default()),
    }
}

fn count(answer: Result<Answer, Error>) -> Result<u64, Error> {
    match answer? {
        Answer::Done { count } => Ok(count),
        Answer::Snapshot(_) => Ok(0),
    }
}
