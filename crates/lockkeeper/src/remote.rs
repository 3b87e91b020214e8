//! An agent of a daemon's manager: a session whose requests carry wakers.
//!
//! The session has the only copy of the lock state. Outside it, only the end of a request that its
//! owner has not seen yet is kept, until the owner has read it or is dropped. The thread that reads
//! the daemon's answers wakes the waiting tasks. It runs none of their code, so they can be on any
//! executor.

use crate::{Error, Inspection, RequestInfo, agent::Submission, connect::Connector};
use event_listener::{Event, EventListener};
use lockkeeper_client::{
    self as client, Entry, Flags, Host, Key, Lifecycle, Outcome, Outer, Session, View, code,
};
use lockkeeper_core::{
    Cause, ClientId, Deadlock, LockInfo, Mode, Name, Options, RequestId, Snapshot, Step, Token, WaitsFor,
    validate,
};
use std::{
    collections::HashMap,
    future::poll_fn,
    sync::{Arc, Mutex, PoisonError},
    task::{Poll, Waker},
    thread,
    time::{Duration, Instant},
};

pub(crate) struct Remote {
    link: Arc<SharedSession>,
    /// Whether the session ends with this value, and not only with the last lock of it.
    ends: bool,
}

struct SharedSession {
    session: Session<Requests>,
    /// Where other sessions are opened.
    connector: Connector,
}

/// State of requests besides the session's. Under the session's mutex.
#[derive(Default)]
pub(crate) struct Requests {
    /// The agent; that of the last session while there is none.
    client: Option<Result<ClientId, Error>>,
    /// Requests that ended behind their owner's back, until the owner goes.
    ended: HashMap<Key, Ended>,
}

/// How a request ended that its owner, a pending [`Acquire`](crate::Acquire) or a
/// [`Lock`](crate::Lock), still has.
struct Ended {
    how: End,
    scope: Scope,
}

#[derive(Clone)]
enum End {
    Unavailable,
    Refused(Error),
    Broken(Cause),
    Released,
}

/// The data of a request.
pub(crate) struct Notes {
    scope: Scope,
    /// The daemon's number for it, once it is known to wait.
    arrival: Option<u64>,
    /// Its fencing token, if it is held.
    token: Option<u64>,
    /// The task to wake when it is granted, or, once it is held, when it is over.
    waker: Option<Waker>,
    /// Told when it is over.
    over: Option<Arc<Event>>,
    /// Its owner was dropped.
    orphan: bool,
}

/// The names of a request. Nearly all have one, which needs no allocation.
#[derive(Clone)]
enum Scope {
    One((Name, Mode)),
    Many(Vec<(Name, Mode)>),
}

/// Whom to wake once the mutex is free.
#[derive(Default)]
pub(crate) struct Wakes {
    first: Option<Waker>,
    rest: Vec<Waker>,
    over: Vec<Arc<Event>>,
}

impl Remote {
    pub(crate) fn new(session: Session<Requests>, connector: Connector, ends: bool) -> Result<Self, Error> {
        session.with(|view| view.host().client())?;
        Ok(Self { link: Arc::new(SharedSession { session, connector }), ends })
    }

    pub(crate) fn without_end(&self) -> Self {
        Self { link: Arc::clone(&self.link), ends: false }
    }

    pub(crate) async fn client(&self) -> Result<Self, Error> {
        self.link.connector.clone().open(true).await
    }

    pub(crate) fn client_id(&self) -> ClientId {
        self.with(|view| view.host().client()).unwrap_or_else(|_| ClientId::reported(0))
    }

    /// Whatever is seen in `use_it` is true by the clock: a lease that has expired was noticed
    /// before.
    fn with<R>(&self, use_it: impl FnOnce(&mut View<'_, Requests>) -> R) -> R {
        self.link.session.with(use_it)
    }

    /// Not inlined, nor is [`release`](Self::release): its in-process counterpart in
    /// [`Agent`](crate::agent::Agent) has to be fast.
    #[cold]
    #[inline(never)]
    pub(crate) fn ask_one(&self, name: &[u8], mode: Mode, if_available: bool, waker: &Waker) -> Submission {
        let options = Options { if_available, ..Options::default() };
        self.ask(&[(name, mode)], options, None, waker)
    }

    /// Sends the request; the task is woken by the answer.
    pub(crate) fn ask(
        &self,
        scope: &[(&[u8], Mode)],
        options: Options,
        info: Option<Box<str>>,
        waker: &Waker,
    ) -> Submission {
        if let Err(error) = validate(scope, options) {
            return Submission::Refused(Box::new(error.into()));
        }
        let session = &self.link.session;
        let Options { if_available, steal, refuse_deadlock, nested_in } = options;
        let request = client::Request {
            scope: scope.iter().map(|(name, mode)| (Name::from(*name), *mode)).collect(),
            flags: Flags { if_available, steal, refuse_deadlock },
            nested_in: nested_in.map(|outer| Outer::Own(outer.arrival())),
            info: info.map(String::from),
        };
        let notes = Notes {
            scope: Scope::new(&request.scope),
            arrival: None,
            token: None,
            waker: Some(waker.clone()),
            over: None,
            orphan: false,
        };
        let key = session.request(request, notes);
        Submission::Queued(RequestId::reported(key))
    }

    /// Waits on a thread that has nothing else to do. No task waits here: others need its thread.
    pub(crate) fn wait(&self, done: impl Fn() -> bool, until: Option<Instant>) {
        self.link.session.spin_for_reply(&done);
        self.link.session.wait(done, until);
    }

    pub(crate) fn poll_granted(
        &self,
        request: RequestId,
        waker: &Waker,
    ) -> Poll<Result<Option<Token>, Error>> {
        let key = request.arrival();
        let (poll, _replaced) = self.with(|view| match view.data(key) {
            Some(Notes { token: Some(token), .. }) => (Poll::Ready(Ok(*token)), None),
            Some(notes) => (Poll::Pending, notes.set_waker(waker)),
            None => (Poll::Ready(Err(view.host().take(key))), None),
        });
        poll.map(|granted| match granted {
            Ok(token) => Token::new(token).map(Some).ok_or_else(|| {
                self.cancel(request, false);
                not_a_daemon("issued the token 0")
            }),
            Err(End::Unavailable) => Ok(None),
            Err(End::Refused(error)) => Err(error),
            Err(end) => Err(end.cause().into()),
        })
    }

    /// The returned waker is dropped outside the mutex, because its drop may run foreign code.
    pub(crate) fn cancel(&self, request: RequestId, timed_out: bool) {
        let key = request.arrival();
        let _notes = self.with(|view| {
            let notes = view.detach(key, timed_out);
            if notes.is_none() {
                view.host().ended.remove(&key);
            }
            notes
        });
    }

    /// Does not wait for the daemon to answer. That the lock was broken is said if it is known
    /// here.
    #[cold]
    #[inline(never)]
    pub(crate) fn release(&self, request: RequestId) -> Result<(), Cause> {
        let key = request.arrival();
        let released = self.with(|view| match view.detach(key, false) {
            Some(notes) => Ok(notes),
            None => Err(view.host().take(key).cause()),
        });
        released.map(drop)
    }

    /// Waits for the daemon's answer. It has said by then if the lock was broken before.
    pub(crate) async fn release_acked(&self, request: RequestId) -> Result<(), Cause> {
        /// The daemon's answer is not needed any more.
        struct Owner<'a>(&'a Remote, Key);
        impl Drop for Owner<'_> {
            fn drop(&mut self) {
                self.0.with(|view| match view.data(self.1) {
                    Some(notes) => notes.orphan = true,
                    None => drop(view.host().ended.remove(&self.1)),
                });
            }
        }

        let key = request.arrival();
        let _owner = Owner(self, key);
        let session = &self.link.session;
        session.release(key);
        match poll_fn(|cx| self.poll_over(key, cx.waker())).await {
            End::Released => Ok(()),
            end => Err(end.cause()),
        }
    }

    pub(crate) fn scope(&self, request: RequestId) -> Vec<(Name, Mode)> {
        let key = request.arrival();
        self.with(|view| match view.data(key) {
            Some(notes) => notes.scope.to_vec(),
            None => view.host().ended.get(&key).map_or_else(Vec::new, |ended| ended.scope.to_vec()),
        })
    }

    pub(crate) fn broken(&self, request: RequestId) -> Option<Cause> {
        let key = request.arrival();
        self.with(|view| match view.data(key) {
            Some(_) => None,
            None => Some(view.host().how(key).cause()),
        })
    }

    pub(crate) fn poll_lost(&self, request: RequestId, waker: &Waker) -> Poll<Cause> {
        self.poll_over(request.arrival(), waker).map(|end| end.cause())
    }

    fn poll_over(&self, key: Key, waker: &Waker) -> Poll<End> {
        let (poll, _replaced) = self.with(|view| match view.data(key) {
            Some(notes) => (Poll::Pending, notes.set_waker(waker)),
            None => (Poll::Ready(view.host().how(key)), None),
        });
        poll
    }

    pub(crate) fn listen_lost(&self, request: RequestId) -> Result<EventListener, Cause> {
        let key = request.arrival();
        self.with(|view| match view.data(key) {
            Some(notes) => Ok(notes.over.get_or_insert_default().listen()),
            None => Err(view.host().how(key).cause()),
        })
    }

    pub(crate) async fn force_release(&self, name: &Name) -> Result<(), Error> {
        let (answer, answered) = oneshot();
        self.link.session.force_release_then(name, answer);
        answered.await.map(drop).map_err(failed)
    }

    pub(crate) async fn query(&self) -> Result<Snapshot, Error> {
        let (answer, answered) = oneshot();
        self.link.session.query_then(None, answer);
        let mut snapshot = Snapshot::default();
        for entry in answered.await.map_err(failed)?.entries {
            let Entry { name, mode, arrival, token, ref client_id, .. } = entry;
            let client = self::client_id(client_id)?;
            let list = if token.is_some() { &mut snapshot.held } else { &mut snapshot.pending };
            list.push(LockInfo { name, mode, client, request: RequestId::reported(arrival) });
        }
        Ok(snapshot)
    }

    pub(crate) async fn inspect(&self) -> Result<Inspection, Error> {
        let (answer, answered) = oneshot();
        self.link.session.inspect_then(None, answer);
        let client::Snapshot { entries, deadlocks, .. } = answered.await.map_err(failed)?;
        let mut inspection = Inspection::default();
        for entry in entries {
            let client = client_id(&entry.client_id)?;
            let list = if entry.token.is_some() { &mut inspection.held } else { &mut inspection.pending };
            // The names of a request stand one after the other.
            match list.last_mut().filter(|last| last.id.arrival() == entry.arrival) {
                Some(same) => same.scope.push((entry.name, entry.mode)),
                None => list.push(describe(entry, client)),
            }
        }
        for deadlock in deadlocks {
            inspection.deadlocks.push(Deadlock { cycle: steps(deadlock.cycle)?, left_out: 0 });
        }
        Ok(inspection)
    }

    pub(crate) fn reports_deadlocks(&self) -> bool {
        self.link.connector.on_deadlock.is_some()
    }

    /// Queries the daemon and reports, on a detached thread.
    pub(crate) fn report_deadlock(&self, request: RequestId) {
        let SharedSession { session, connector } = &*self.link;
        let about = |notes: &mut Notes| Some((notes.arrival?, notes.scope.first().clone()));
        let asked = self.with(|view| view.data(request.arrival()).and_then(about));
        let (Some((arrival, name)), Some(report)) = (asked, connector.on_deadlock.clone()) else { return };
        session.inspect_then(Some(&name), move |answer| {
            let deadlocks = answer.map_or_else(|_| Vec::new(), |snapshot| snapshot.deadlocks);
            let concerned =
                |deadlock: &client::Deadlock| deadlock.cycle.iter().any(|step| step.arrival == arrival);
            let found = deadlocks.into_iter().find(concerned).map(|deadlock| steps(deadlock.cycle));
            if let Some(Ok(cycle)) = found {
                let report = move || report(&Deadlock { cycle, left_out: 0 });
                let _ = thread::Builder::new().name("lockkeeper-deadlock".into()).spawn(report);
            }
        });
    }
}

impl Drop for Remote {
    fn drop(&mut self) {
        if self.ends {
            self.link.session.close();
        }
    }
}

impl Requests {
    fn client(&self) -> Result<ClientId, Error> {
        self.client.clone().unwrap_or_else(|| Err(not_a_daemon("opened no session")))
    }

    /// How a request ended that is not live.
    fn how(&self, key: Key) -> End {
        self.ended.get(&key).map_or(End::Broken(Cause::Lost), |ended| ended.how.clone())
    }

    /// The same, of an owner that goes.
    fn take(&mut self, key: Key) -> End {
        self.ended.remove(&key).map_or(End::Broken(Cause::Lost), |ended| ended.how)
    }
}

impl Host for Requests {
    type Data = Notes;
    type After = Wakes;

    fn queued(&mut self, _: Key, arrival: u64, notes: &mut Notes, _: &mut Wakes) {
        notes.arrival = Some(arrival);
    }

    fn granted(&mut self, _: Key, token: u64, notes: &mut Notes, wakes: &mut Wakes) {
        notes.token = Some(token);
        wakes.push(notes.waker.take());
    }

    fn over(&mut self, key: Key, outcome: Outcome, notes: Notes, wakes: &mut Wakes) {
        let Notes { scope, waker, over, orphan, .. } = notes;
        if !orphan {
            self.ended.insert(key, Ended { how: End::new(outcome), scope });
        }
        wakes.push(waker);
        wakes.over.extend(over);
    }

    fn session(&mut self, news: Lifecycle, _: &mut Wakes) {
        if let Lifecycle::Opened { client_id, .. } = news {
            self.client = Some(self::client_id(&client_id));
        }
    }

    fn after(wakes: Wakes) {
        let Wakes { first, rest, over } = wakes;
        if let Some(first) = first {
            first.wake();
            rest.into_iter().for_each(Waker::wake);
        }
        for over in over {
            over.notify(usize::MAX);
        }
    }
}

impl Wakes {
    fn push(&mut self, waker: Option<Waker>) {
        match waker {
            Some(waker) if self.first.is_none() => self.first = Some(waker),
            Some(waker) => self.rest.push(waker),
            None => {}
        }
    }
}

impl Notes {
    /// Returns the previous waker, for the caller to drop outside the mutex.
    fn set_waker(&mut self, waker: &Waker) -> Option<Waker> {
        match &self.waker {
            Some(same) if same.will_wake(waker) => None,
            _ => self.waker.replace(waker.clone()),
        }
    }
}

impl Scope {
    fn new(scope: &[(Name, Mode)]) -> Self {
        match scope {
            [one] => Self::One(one.clone()),
            many => Self::Many(many.to_vec()),
        }
    }

    fn to_vec(&self) -> Vec<(Name, Mode)> {
        match self {
            Self::One(one) => vec![one.clone()],
            Self::Many(many) => many.clone(),
        }
    }

    fn first(&self) -> &Name {
        match self {
            Self::One((name, _)) => name,
            Self::Many(many) => &many[0].0,
        }
    }
}

impl End {
    fn new(outcome: Outcome) -> Self {
        match outcome {
            Outcome::Unavailable => Self::Unavailable,
            Outcome::Released => Self::Released,
            Outcome::Broken { cause, .. } => Self::Broken(cause),
            Outcome::Refused { code, message } => Self::Refused(Error::Refused { code, message }),
            Outcome::Deadlocked(client::Deadlock { words, cycle }) => {
                let error = steps(cycle).map(|cycle| Error::Deadlock { cycle, message: words });
                Self::Refused(error.unwrap_or_else(|error| error))
            }
            Outcome::Failed(client::Failure::Refused { code, message }) => {
                Self::Refused(Error::Refused { code, message })
            }
            Outcome::Failed(client::Failure::Closed) => Self::Broken(Cause::Lost),
            Outcome::Failed(failure) => Self::Refused(Error::Unreachable(failure.to_string())),
            Outcome::Answer(_) => {
                Self::Refused(not_a_daemon("sent a reply of another kind than was asked for"))
            }
        }
    }

    fn cause(&self) -> Cause {
        match self {
            Self::Broken(cause) => *cause,
            _ => Cause::Lost,
        }
    }
}

fn describe(entry: Entry, client_id: ClientId) -> RequestInfo {
    let Entry { name, mode, arrival, token, info, since, nested_in, stole, owner, .. } = entry;
    RequestInfo {
        id: RequestId::reported(arrival),
        scope: vec![(name, mode)],
        client_id,
        info,
        token: token.and_then(Token::new),
        waited: token.is_none().then(|| Duration::from_millis(since)),
        nested_in: nested_in.map(RequestId::reported),
        stole,
        owner,
    }
}

fn client_id(text: &str) -> Result<ClientId, Error> {
    match u64::from_str_radix(text, 16) {
        Ok(bits) if text.len() == 16 => Ok(ClientId::reported(bits)),
        _ => Err(not_a_daemon(&format!("sent the client id {text:?}"))),
    }
}

fn not_a_daemon(what: &str) -> Error {
    Error::Refused { code: code::MALFORMED, message: format!("the server {what}: upgrade it") }
}

fn steps(cycle: Vec<client::Step>) -> Result<Vec<Step>, Error> {
    let step = |step: client::Step| {
        Ok(Step {
            request: RequestId::reported(step.arrival),
            client: client_id(&step.client_id)?,
            waits_for: step.waits_for.map_or(WaitsFor::Nested, WaitsFor::Name),
        })
    };
    cycle.into_iter().map(step).collect()
}

fn failed(error: client::Error) -> Error {
    match error {
        client::Error::Refused { code, message } => Error::Refused { code, message },
        error => Error::Unreachable(error.to_string()),
    }
}

/// A value that another thread will have.
pub(crate) fn oneshot<T: Send + 'static>() -> (impl FnOnce(T) + Send, impl Future<Output = T>) {
    let slot = Arc::new(Mutex::new((None, None::<Waker>)));
    let other = Arc::clone(&slot);
    let answer = move |value| {
        let waker = {
            let mut slot = other.lock().unwrap_or_else(PoisonError::into_inner);
            slot.0 = Some(value);
            slot.1.take()
        };
        if let Some(waker) = waker {
            waker.wake();
        }
    };
    let answered = poll_fn(move |cx| {
        let mut slot = slot.lock().unwrap_or_else(PoisonError::into_inner);
        match slot.0.take() {
            Some(value) => Poll::Ready(value),
            None => {
                let replaced = slot.1.replace(cx.waker().clone());
                drop(slot);
                drop(replaced);
                Poll::Pending
            }
        }
    });
    (answer, answered)
}
