//! The data behind the session's mutex: the machine, the host, and the driver's own state.

use crate::{
    clock,
    connection::Connection,
    error::no_answer,
    host::{Host, Lifecycle},
};
use lockkeeper_core::Name;
use lockkeeper_service::{Answer, Change, Event, Failure, Key, Micros, Outcome, Request};
use std::{io, mem, os::fd::OwnedFd, sync::Arc};

/// The data of a request or question.
pub(crate) enum Item<D> {
    Request(D),
    Question(Responder),
    Subscription(Subscriber),
}

/// Is called with the answer to a question, without the mutex.
pub(crate) type Responder = Box<dyn FnOnce(Result<Answer, Failure>) + Send>;

/// Called with each change of a subscription, without the mutex, and at the end with the reason of
/// the end.
pub(crate) type Subscriber = Arc<dyn Fn(Result<Change, Failure>) + Send + Sync>;

pub(crate) type Machine<D> = lockkeeper_service::Session<Item<D>>;

pub(crate) struct SessionState<H: Host> {
    pub(crate) machine: Machine<H::Data>,
    pub(crate) host: H,
    pub(crate) link: Option<CurrentConnection>,
    /// A thread is connecting.
    pub(crate) connecting: bool,
    /// A thread is writing, and will write what others add.
    pub(crate) writing: bool,
    /// The buffer that takes turns with the machine's.
    pub(crate) spare: Vec<u8>,
    /// As long as it is open, a local session lives.
    pub(crate) fifo: Option<OwnedFd>,
    /// A descriptor that came before its message.
    pub(crate) received: Option<OwnedFd>,
    /// Until when the session thread sleeps; 0 while it does not.
    pub(crate) alarm: Micros,
    /// The host closed the session: the server is waited for until then, to close the connection.
    pub(crate) ended: Option<Micros>,
    /// Whether the host was notified of a connection.
    connected: bool,
    /// The result of the first attempts.
    pub(crate) opening: Opening,
    /// The server's message when it last refused one of them temporarily.
    pub(crate) refusal: Option<String>,
}

/// The connection that the machine knows.
pub(crate) struct CurrentConnection {
    pub(crate) connection: Arc<Connection>,
    pub(crate) number: u64,
    /// A thread that waits for a reply reads it: the session thread need not be woken.
    pub(crate) inline: bool,
    /// The socket accepts no more for now.
    pub(crate) blocked: bool,
    /// Nothing can be sent any more.
    pub(crate) broken: bool,
    /// It is to be closed when all is sent.
    pub(crate) dropping: bool,
}

/// The result of the first attempts to open a session.
pub(crate) enum Opening {
    Pending,
    Opened,
    /// The server said so.
    Refused(Failure),
    /// It could not be asked. Whether another attempt makes sense at once.
    Unreachable(io::Error, bool),
}

/// Work to do without the mutex.
pub(crate) struct Deferred<H: Host> {
    after: H::After,
    answers: Vec<(Responder, Result<Answer, Failure>)>,
    changes: Vec<(Subscriber, Result<Change, Failure>)>,
}

impl<H: Host> SessionState<H> {
    pub(crate) fn new(machine: Machine<H::Data>, host: H) -> Self {
        Self {
            machine,
            host,
            link: None,
            connecting: false,
            writing: false,
            spare: Vec::new(),
            fifo: None,
            received: None,
            alarm: 0,
            ended: None,
            connected: false,
            opening: Opening::Pending,
            refusal: None,
        }
    }

    /// When the session thread has something to do.
    pub(crate) fn due(&self) -> Option<Micros> {
        if let Some(until) = self.ended {
            return Some(if self.link.is_some() { until } else { 0 });
        }
        let connects = self.link.is_none() && !self.connecting;
        let connect_at = self.machine.connect_at().filter(|_| connects);
        [self.machine.next_wake(), connect_at].into_iter().flatten().min()
    }

    /// Whether the session has a lease although it has a descriptor: the server has not said that
    /// it lives by that.
    pub(crate) fn is_fifo_unconfirmed(&self) -> bool {
        self.fifo.is_some() && self.machine.ttl().is_some()
    }

    /// Notices that the lease has expired, if it has: also if the session thread has not run for
    /// long.
    pub(crate) fn check_lease(&mut self) {
        if self.machine.lease_deadline().is_some() {
            let now = clock::now();
            if !self.machine.lease_is_valid(now) {
                self.machine.wake(now);
            }
        }
    }

    /// Tells the host what the machine has to tell.
    pub(crate) fn dispatch(&mut self, deferred: &mut Deferred<H>) {
        let Self { machine, host, .. } = self;
        let after = &mut deferred.after;
        if self.connected && !machine.is_ready() && !machine.is_closed() {
            self.connected = false;
            host.session(Lifecycle::Interrupted, after);
        }
        while let Some(event) = machine.next_event() {
            match event {
                Event::Queued { key, arrival } => {
                    if let Some(Item::Request(data)) = machine.data_mut(key) {
                        host.queued(key, arrival, data, after);
                    }
                }
                Event::Granted { key, token } => {
                    if let Some(Item::Request(data)) = machine.data_mut(key) {
                        host.granted(key, token, data, after);
                    }
                }
                Event::Over { key, outcome, data: Item::Request(data) } => {
                    host.over(key, outcome, data, after);
                }
                Event::Over { outcome, data: Item::Question(responder), .. } => {
                    deferred.answers.push((responder, answer(outcome)));
                }
                Event::Changed { key, change } => {
                    if let Some(Item::Subscription(subscriber)) = machine.data_mut(key) {
                        deferred.changes.push((Arc::clone(subscriber), Ok(change)));
                    }
                }
                Event::Over { outcome, data: Item::Subscription(subscriber), .. } => {
                    if let Err(failure) = answer(outcome) {
                        deferred.changes.push((subscriber, Err(failure)));
                    }
                }
                Event::Fifo => {
                    // Without the descriptor, which the process may have no room for, the session
                    // keeps its lease.
                    if let Some(descriptor) = self.received.take() {
                        self.fifo = Some(descriptor);
                        machine.confirm();
                    }
                }
                Event::Opened { client_id, resumed } => {
                    self.opening = Opening::Opened;
                    self.connected = true;
                    host.session(Lifecycle::Opened { client_id, resumed }, after);
                }
                Event::Unreachable(failure) => {
                    if let Failure::Refused { message, .. } = &failure {
                        self.refusal = Some(message.clone());
                    }
                    if let Opening::Pending = self.opening {
                        self.opening = Opening::Refused(failure);
                    }
                }
                Event::Failed(failure) => {
                    self.fifo = None;
                    self.connected = false;
                    if !matches!(self.opening, Opening::Opened) {
                        self.opening = Opening::Refused(failure.clone());
                    }
                    host.session(Lifecycle::Failed(failure), after);
                }
                Event::SessionLost => {
                    self.fifo = None;
                    host.session(Lifecycle::Lost, after);
                }
                Event::Closed => {
                    self.fifo = None;
                    host.session(Lifecycle::Closed, after);
                }
            }
        }
        if self.machine.wants_drop()
            && let Some(link) = &mut self.link
        {
            link.dropping = true;
            if let Opening::Pending = self.opening {
                self.opening = Opening::Unreachable(no_answer(), false);
            }
        }
    }

    /// Closes the connection, if there is one.
    pub(crate) fn disconnect(&mut self) {
        if let Some(link) = self.link.take() {
            link.connection.close();
        }
        self.received = None;
    }
}

impl CurrentConnection {
    /// Tells the poller what to wake the session thread for.
    pub(crate) fn set_interest(&self) {
        self.connection.set_interest(!self.inline, self.blocked && !self.broken);
    }
}

impl<H: Host> Default for Deferred<H> {
    fn default() -> Self {
        Self { after: H::After::default(), answers: Vec::new(), changes: Vec::new() }
    }
}

impl<H: Host> Deferred<H> {
    pub(crate) fn run(self) {
        H::after(self.after);
        for (responder, answer) in self.answers {
            responder(answer);
        }
        for (subscriber, change) in self.changes {
            subscriber(change);
        }
    }
}

fn answer(outcome: Outcome) -> Result<Answer, Failure> {
    match outcome {
        Outcome::Answer(answer) => Ok(answer),
        Outcome::Refused { code, message } => Err(Failure::Refused { code, message }),
        Outcome::Failed(failure) => Err(failure),
        // The effect of a force release that was sent is unknown.
        _ => Err(Failure::Unreachable("the session was lost before the answer came".into())),
    }
}

/// A session and its host, with the mutex held.
pub struct View<'a, H: Host> {
    state: &'a mut SessionState<H>,
}

impl<'a, H: Host> View<'a, H> {
    pub(crate) fn new(state: &'a mut SessionState<H>) -> Self {
        Self { state }
    }

    /// The host.
    pub fn host(&mut self) -> &mut H {
        &mut self.state.host
    }

    /// The session's public id, if there is a session now.
    pub fn client_id(&self) -> Option<&str> {
        self.state.machine.client_id()
    }

    /// The data of a request that has not ended.
    pub fn data(&mut self, key: Key) -> Option<&mut H::Data> {
        match self.state.machine.data_mut(key)? {
            Item::Request(data) => Some(data),
            Item::Question(_) | Item::Subscription(_) => None,
        }
    }

    /// Whether a lock is held now, by the clock.
    pub fn is_held(&self, key: Key) -> bool {
        self.state.machine.is_held(clock::now(), key)
    }

    /// The client id of the session and the number of a request there, for
    /// [`Outer::Other`](crate::Outer::Other) in another session. None if it was not sent yet, or is
    /// over.
    pub fn outer(&self, key: Key) -> Option<(String, u64)> {
        Some((self.state.machine.client_id()?.into(), self.state.machine.rid(key)?))
    }

    /// Makes a request. It is sent as soon as there is a session. After a refusal, asks for a
    /// session again.
    pub fn request(&mut self, request: Request, data: H::Data) -> Key {
        self.reopen();
        self.state.machine.request(request, Item::Request(data))
    }

    /// Releases a lock or aborts a request. [`Host::over`] is called when that is done. False if
    /// the request had ended already.
    pub fn release(&mut self, key: Key, timed_out: bool) -> bool {
        self.state.machine.release(key, timed_out)
    }

    /// Releases a lock or aborts a request, without further events. Returns its data; none if it
    /// had ended, or is being released already.
    pub fn detach(&mut self, key: Key, timed_out: bool) -> Option<H::Data> {
        match self.state.machine.detach(key, timed_out)? {
            Item::Request(data) => Some(data),
            Item::Question(_) | Item::Subscription(_) => None,
        }
    }

    pub(crate) fn ask(&mut self, question: Question, responder: Responder) {
        self.reopen();
        let (machine, data) = (&mut self.state.machine, Item::Question(responder));
        _ = match question {
            Question::Query { name, deadlocks } => machine.query(name, deadlocks, data),
            Question::ForceRelease(name) => machine.force_release(name, data),
            Question::EndSession(client_id) => machine.end_session(client_id, data),
        };
    }

    pub(crate) fn subscribe(&mut self, subscriber: Subscriber) {
        self.reopen();
        self.state.machine.subscribe(Item::Subscription(subscriber));
    }

    fn reopen(&mut self) {
        if self.state.machine.is_closed() && self.state.ended.is_none() {
            self.state.machine.reopen(clock::now());
        }
    }
}

pub(crate) enum Question {
    Query { name: Option<Name>, deadlocks: bool },
    ForceRelease(Name),
    EndSession(String),
}

/// Capacity that an empty buffer keeps.
const KEPT: usize = 64 << 10;

impl<H: Host> SessionState<H> {
    /// Takes back the buffer that was written.
    pub(crate) fn keep_buffer(&mut self, mut buffer: Vec<u8>) {
        buffer.clear();
        buffer.shrink_to(KEPT);
        self.spare = buffer;
    }

    /// The next output, which may be empty.
    pub(crate) fn take_output(&mut self) -> Vec<u8> {
        let mut buffer = mem::take(&mut self.spare);
        self.machine.swap_output(&mut buffer);
        buffer
    }
}
