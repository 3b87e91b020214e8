//! An agent of a daemon's manager: a session, and what it has heard of each of its requests.
//!
//! The session's thread hears the daemon's answers and wakes the tasks that wait for them. It runs none of their code, and so
//! it does not matter which executor they are on. An answer that comes at once is heard by the thread that asked.

use crate::{Error, Inspection, RequestInfo, agent::Asked, connect::Place};
use event_listener::{Event, EventListener};
use lockkeeper_client::{self as client, Answer, Entry, Flags, Session, code};
use lockkeeper_core::{
    Cause, ClientId, Deadlock, LockInfo, Mode, Name, Options, RequestId, Snapshot, Step, Token, WaitsFor,
    validate,
};
use std::{
    collections::HashMap,
    future::poll_fn,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::{Poll, Waker},
    thread,
    time::{Duration, Instant},
};

pub(crate) struct Remote {
    link: Arc<Link>,
    /// Whether the session ends with this value, and not only with the last lock of it.
    ends: bool,
}

struct Link {
    session: Session,
    client: ClientId,
    desk: Arc<Desk>,
    /// Where other sessions are opened.
    place: Place,
}

/// The requests that have an owner, a pending [`Acquire`](crate::Acquire) or a [`Lock`](crate::Lock). Never locked while the
/// session is called, which has a mutex of its own.
#[derive(Default)]
struct Desk(Mutex<Requests>);

#[derive(Default)]
struct Requests {
    live: HashMap<u64, Kept>,
    last: u64,
}

struct Kept {
    /// The session's number for it.
    rid: u64,
    scope: Vec<(Name, Mode)>,
    /// The daemon's number for it, once it is known to wait.
    ticket: Option<u64>,
    stage: Stage,
    /// The task to wake when the stage changes.
    waker: Option<Waker>,
    /// Told when it is over.
    over: Option<Arc<Event>>,
    /// Nobody has looked out for the daemon's answer yet.
    fresh: bool,
}

enum Stage {
    /// It waits, or is not answered yet.
    Asked,
    Held(Token),
    Over(Over),
}

#[derive(Clone)]
enum Over {
    Unavailable,
    Refused(Error),
    Broken(Cause),
    Released,
}

impl Remote {
    pub(crate) fn new(session: Session, place: Place, ends: bool) -> Result<Self, Error> {
        let client = client_id(&session.client_id())?;
        Ok(Self { link: Arc::new(Link { session, client, desk: Arc::default(), place }), ends })
    }

    pub(crate) fn without_end(&self) -> Self {
        Self { link: Arc::clone(&self.link), ends: false }
    }

    pub(crate) async fn client(&self) -> Result<Self, Error> {
        let place = self.link.place.clone();
        elsewhere(move || place.open(true)).await
    }

    pub(crate) fn client_id(&self) -> ClientId {
        self.link.client
    }

    /// Not inlined, nor is [`release`](Self::release): what stands beside it in [`Agent`](crate::agent::Agent) is to be quick.
    #[cold]
    #[inline(never)]
    pub(crate) fn ask_one(&self, name: &[u8], mode: Mode, if_available: bool, waker: &Waker) -> Asked {
        let options = Options { if_available, ..Options::default() };
        self.ask(&[(name, mode)], options, None, waker)
    }

    /// Says what is asked for; the task is woken by the answer.
    pub(crate) fn ask(
        &self,
        scope: &[(&[u8], Mode)],
        options: Options,
        info: Option<Box<str>>,
        waker: &Waker,
    ) -> Asked {
        if let Err(error) = validate(scope, options) {
            return Asked::Refused(Box::new(error.into()));
        }
        let Link { session, desk, .. } = &*self.link;
        let Options { if_available, steal, refuse_deadlock, nested_in } = options;
        let scope: Vec<_> = scope.iter().map(|(name, mode)| (Name::from(*name), *mode)).collect();
        let (key, nested_in) = {
            let mut requests = desk.lock();
            requests.last += 1;
            let key = requests.last;
            let (scope, waker) = (scope.clone(), Some(waker.clone()));
            let (ticket, stage, fresh) = (None, Stage::Asked, session.is_near());
            let kept = Kept { rid: 0, scope, ticket, stage, waker, over: None, fresh };
            requests.live.insert(key, kept);
            (key, nested_in.and_then(|outer| Some(requests.live.get(&outer.arrival())?.rid)))
        };
        let hears = Arc::clone(desk);
        let rid = session.request(client::Request {
            scope,
            flags: Flags { if_available, steal, refuse_deadlock },
            nested_in,
            info: info.map(String::from),
            listener: Arc::new(move |event| hears.hear(key, event)),
        });
        if let Some(kept) = desk.lock().live.get_mut(&key) {
            kept.rid = rid;
        }
        if session.is_near() {
            // It looks out for the answer when all other tasks have asked what they want to.
            waker.wake_by_ref();
        }
        Asked::Queued(RequestId::reported(key))
    }

    /// Looks out for the daemon's first word on a request, once.
    fn look_out(&self, request: RequestId) {
        let Link { session, desk, .. } = &*self.link;
        let fresh = desk.lock().get(request).is_some_and(|kept| std::mem::take(&mut kept.fresh));
        if fresh {
            session.look_out(|| desk.lock().get(request).is_none_or(Kept::is_answered));
        }
    }

    pub(crate) fn wait(&self, done: impl Fn() -> bool, until: Option<Instant>) {
        self.link.session.wait(done, until);
    }

    pub(crate) fn poll_granted(
        &self,
        request: RequestId,
        waker: &Waker,
    ) -> Poll<Result<Option<Token>, Error>> {
        let desk = &self.link.desk;
        self.look_out(request);
        match desk.poll(request, waker, |stage| matches!(stage, Stage::Held(_))) {
            Poll::Pending => Poll::Pending,
            Poll::Ready(Ok(token)) => Poll::Ready(Ok(token)),
            Poll::Ready(Err(over)) => {
                desk.take(request);
                Poll::Ready(match over {
                    Over::Unavailable => Ok(None),
                    Over::Refused(error) => Err(error),
                    over => Err(over.cause().into()),
                })
            }
        }
    }

    pub(crate) fn cancel(&self, request: RequestId, timed_out: bool) {
        let Link { session, desk, .. } = &*self.link;
        if let Some(Kept { rid, .. }) = desk.take(request) {
            _ = if timed_out { session.time_out(rid) } else { session.let_go(rid) };
        }
    }

    /// Does not wait for the daemon to say that it is done. That the lock was broken is said if it is known here.
    #[cold]
    #[inline(never)]
    pub(crate) fn release(&self, request: RequestId) -> Result<(), Cause> {
        match self.link.desk.take(request) {
            Some(Kept { stage: Stage::Over(over), .. }) => Err(over.cause()),
            // The session may know of a steal that it is just about to tell.
            Some(Kept { rid, .. }) if self.link.session.let_go(rid) => Ok(()),
            _ => Err(Cause::Stolen),
        }
    }

    /// Waits for the daemon to say that it is done. It has said by then if the lock was broken before.
    pub(crate) async fn release_seen(&self, request: RequestId) -> Result<(), Cause> {
        /// Nobody asks for what the daemon says any more.
        struct Owner<'a>(&'a Desk, RequestId);
        impl Drop for Owner<'_> {
            fn drop(&mut self) {
                self.0.take(self.1);
            }
        }

        let Owner(desk, _) = &Owner(&self.link.desk, request);
        let Some(rid) = desk.lock().get(request).map(|kept| kept.rid) else { return Err(Cause::Lost) };
        let session = &self.link.session;
        session.release(rid);
        if session.is_near() {
            others_first().await;
            session.look_out(|| desk.lock().broken(request).is_some());
        }
        match poll_fn(|cx| desk.poll(request, cx.waker(), |_| false)).await {
            Err(Over::Released) => Ok(()),
            Err(over) => Err(over.cause()),
            Ok(_) => unreachable!("a request that is released is over"),
        }
    }

    pub(crate) fn scope(&self, request: RequestId) -> Vec<(Name, Mode)> {
        self.link.desk.lock().get(request).map_or_else(Vec::new, |kept| kept.scope.clone())
    }

    pub(crate) fn broken(&self, request: RequestId) -> Option<Cause> {
        self.link.desk.lock().broken(request)
    }

    pub(crate) fn poll_lost(&self, request: RequestId, waker: &Waker) -> Poll<Cause> {
        match self.link.desk.poll(request, waker, |_| false) {
            Poll::Ready(Err(over)) => Poll::Ready(over.cause()),
            _ => Poll::Pending,
        }
    }

    pub(crate) fn listen_lost(&self, request: RequestId) -> Result<EventListener, Cause> {
        let mut requests = self.link.desk.lock();
        match requests.broken(request) {
            Some(cause) => Err(cause),
            None => {
                let kept = requests.get(request).expect("what is not broken is there");
                Ok(kept.over.get_or_insert_default().listen())
            }
        }
    }

    pub(crate) async fn force_release(&self, name: &Name) -> Result<(), Error> {
        let (answer, answered) = oneshot();
        self.link.session.force_release_then(name, answer);
        heard(answered.await).map(drop)
    }

    pub(crate) async fn query(&self) -> Result<Snapshot, Error> {
        let (answer, answered) = oneshot();
        self.link.session.query_then(None, answer);
        let mut snapshot = Snapshot::default();
        for entry in heard(answered.await)?.entries {
            let Entry { name, mode, ticket, token, ref client_id, .. } = entry;
            let client = self::client_id(client_id)?;
            let list = if token.is_some() { &mut snapshot.held } else { &mut snapshot.pending };
            list.push(LockInfo { name, mode, client, request: RequestId::reported(ticket) });
        }
        Ok(snapshot)
    }

    pub(crate) async fn inspect(&self) -> Result<Inspection, Error> {
        let (answer, answered) = oneshot();
        self.link.session.inspect_then(None, answer);
        let client::Snapshot { entries, deadlocks, .. } = heard(answered.await)?;
        let mut inspection = Inspection::default();
        for entry in entries {
            let client = client_id(&entry.client_id)?;
            let list = if entry.token.is_some() { &mut inspection.held } else { &mut inspection.pending };
            // The names of a request stand one after the other.
            match list.last_mut().filter(|last| last.id.arrival() == entry.ticket) {
                Some(same) => same.scope.push((entry.name, entry.mode)),
                None => list.push(describe(entry, client)),
            }
        }
        for deadlock in deadlocks {
            inspection.deadlocks.push(Deadlock { cycle: steps(deadlock.cycle)? });
        }
        Ok(inspection)
    }

    pub(crate) fn suspicious(&self) -> bool {
        self.link.place.on_deadlock.is_some()
    }

    /// Asks the daemon, and reports on a thread that nobody waits for.
    pub(crate) fn report_deadlock(&self, request: RequestId) {
        let Link { session, desk, place, .. } = &*self.link;
        let asked = desk.lock().get(request).and_then(|kept| Some((kept.ticket?, kept.scope[0].0.clone())));
        let (Some((ticket, name)), Some(report)) = (asked, place.on_deadlock.clone()) else { return };
        session.inspect_then(Some(&name), move |answer| {
            let deadlocks = answer.map_or_else(|_| Vec::new(), |snapshot| snapshot.deadlocks);
            let concerned =
                |deadlock: &client::Deadlock| deadlock.cycle.iter().any(|step| step.ticket == ticket);
            let found = deadlocks.into_iter().find(concerned).map(|deadlock| steps(deadlock.cycle));
            if let Some(Ok(cycle)) = found {
                let report = move || report(&Deadlock { cycle });
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

impl Desk {
    fn lock(&self) -> MutexGuard<'_, Requests> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The session's thread says what has become of a request. Its owner may be gone.
    fn hear(&self, key: u64, event: client::Event) {
        let mut requests = self.lock();
        let Some(kept) = requests.live.get_mut(&key) else { return };
        kept.stage = match event {
            client::Event::Queued { ticket } => {
                kept.ticket = Some(ticket);
                return;
            }
            client::Event::Granted { token } => match Token::new(token) {
                Some(token) => Stage::Held(token),
                None => Stage::Over(Over::Refused(not_a_daemon("gives out the token 0"))),
            },
            client::Event::Unavailable => Stage::Over(Over::Unavailable),
            client::Event::Refused { code, message } => {
                Stage::Over(Over::Refused(Error::Refused { code, words: message }))
            }
            client::Event::Deadlocked(client::Deadlock { words, cycle }) => {
                let error = steps(cycle).map(|cycle| Error::Deadlock { cycle, words });
                Stage::Over(Over::Refused(error.unwrap_or_else(|error| error)))
            }
            client::Event::Broken(cause) => Stage::Over(Over::Broken(cause)),
            client::Event::Ended => Stage::Over(Over::Released),
        };
        let is_over = matches!(kept.stage, Stage::Over(_));
        let (waker, over) = (kept.waker.take(), kept.over.take_if(|_| is_over));
        drop(requests);
        if let Some(waker) = waker {
            waker.wake();
        }
        if let Some(over) = over {
            over.notify(usize::MAX);
        }
    }

    /// Whether a request has got as far as `enough`, or is over. If not, the task is woken when it has gone on.
    fn poll(
        &self,
        request: RequestId,
        waker: &Waker,
        enough: impl FnOnce(&Stage) -> bool,
    ) -> Poll<Result<Option<Token>, Over>> {
        let mut requests = self.lock();
        let Some(kept) = requests.get(request) else { return Poll::Ready(Err(Over::Broken(Cause::Lost))) };
        match &kept.stage {
            Stage::Over(over) => return Poll::Ready(Err(over.clone())),
            Stage::Held(token) if enough(&kept.stage) => return Poll::Ready(Ok(Some(*token))),
            _ => {}
        }
        if kept.waker.as_ref().is_some_and(|same| same.will_wake(waker)) {
            return Poll::Pending;
        }
        let replaced = kept.waker.replace(waker.clone());
        drop(requests);
        drop(replaced);
        Poll::Pending
    }

    /// Its owner goes.
    fn take(&self, request: RequestId) -> Option<Kept> {
        self.lock().live.remove(&request.arrival())
    }
}

impl Requests {
    fn get(&mut self, request: RequestId) -> Option<&mut Kept> {
        self.live.get_mut(&request.arrival())
    }

    fn broken(&mut self, request: RequestId) -> Option<Cause> {
        match self.get(request).map(|kept| &kept.stage) {
            Some(Stage::Over(over)) => Some(over.cause()),
            Some(_) => None,
            None => Some(Cause::Lost),
        }
    }
}

impl Kept {
    fn is_answered(&mut self) -> bool {
        self.ticket.is_some() || !matches!(self.stage, Stage::Asked)
    }
}

impl Over {
    fn cause(&self) -> Cause {
        match self {
            Self::Broken(cause) => *cause,
            _ => Cause::Lost,
        }
    }
}

fn describe(entry: Entry, client_id: ClientId) -> RequestInfo {
    let Entry { name, mode, ticket, token, info, since, nested_in, stole, pid, .. } = entry;
    RequestInfo {
        id: RequestId::reported(ticket),
        scope: vec![(name, mode)],
        client_id,
        info,
        token: token.and_then(Token::new),
        waited: token.is_none().then(|| Duration::from_millis(since)),
        nested_in: nested_in.map(RequestId::reported),
        stole,
        pid,
    }
}

fn client_id(text: &str) -> Result<ClientId, Error> {
    match u64::from_str_radix(text, 16) {
        Ok(bits) if text.len() == 16 => Ok(ClientId::reported(bits)),
        _ => Err(not_a_daemon(&format!("calls a client {text:?}"))),
    }
}

fn not_a_daemon(what: &str) -> Error {
    Error::Refused { code: code::MALFORMED, words: format!("what listens there {what}: upgrade it") }
}

fn steps(cycle: Vec<client::Step>) -> Result<Vec<Step>, Error> {
    let step = |step: client::Step| {
        Ok(Step {
            request: RequestId::reported(step.ticket),
            client: client_id(&step.client_id)?,
            waits_for: step.waits_for.map_or(WaitsFor::Nested, WaitsFor::Name),
        })
    };
    cycle.into_iter().map(step).collect()
}

fn heard(answer: Answer) -> Result<client::Snapshot, Error> {
    answer.map_err(|(code, words)| match code {
        0 => Error::Unreachable(format!("{words}: ask again")),
        code => Error::Refused { code, words },
    })
}

/// Does what blocks on a thread of its own.
pub(crate) async fn elsewhere<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, Error> + Send + 'static,
) -> Result<T, Error> {
    let (answer, answered) = oneshot();
    let thread = thread::Builder::new().name("lockkeeper-connect".into());
    match thread.spawn(move || answer(work())) {
        Ok(_) => answered.await,
        Err(error) => Err(Error::Unreachable(format!("no thread to connect with can be started: {error}"))),
    }
}

/// Lets all other tasks have their turn, on most executors.
async fn others_first() {
    let mut had = false;
    poll_fn(|cx| match std::mem::replace(&mut had, true) {
        true => Poll::Ready(()),
        false => {
            cx.waker().wake_by_ref();
            Poll::Pending
        }
    })
    .await;
}

/// A value that somebody else will have.
fn oneshot<T: Send + 'static>() -> (impl FnOnce(T) + Send, impl Future<Output = T>) {
    let place = Arc::new(Mutex::new((None, None::<Waker>)));
    let other = Arc::clone(&place);
    let answer = move |value| {
        let waker = {
            let mut place = other.lock().unwrap_or_else(PoisonError::into_inner);
            place.0 = Some(value);
            place.1.take()
        };
        if let Some(waker) = waker {
            waker.wake();
        }
    };
    let answered = poll_fn(move |cx| {
        let mut place = place.lock().unwrap_or_else(PoisonError::into_inner);
        match place.0.take() {
            Some(value) => Poll::Ready(value),
            None => {
                let replaced = place.1.replace(cx.waker().clone());
                drop(place);
                drop(replaced);
                Poll::Pending
            }
        }
    });
    (answer, answered)
}
