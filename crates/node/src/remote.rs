//! A session with a daemon. Nothing here waits on the thread of the caller: what the daemon says
//! comes as notifications.
//!
//! Requests carry their slot, the session's mutex protects what is said in words: there is no other table here.

use crate::{
    agent::{at_thread_exit, waker},
    ffi::{CallBuffer, flag},
    names,
    report::{self, ScopeEntry},
    state::{Address, Notification, ProcessState, Waker},
};
use lockkeeper_client::{
    Deadlock, Endpoint, Entry, Failure, Flags, Host, Key, Lifecycle, Options, Outcome, Outer, Request,
    Session, Snapshot, Step,
};
use napi::{
    Env, Error, JsString, Result,
    bindgen_prelude::{BigInt, Float64ArraySlice, Function},
};
use napi_derive::napi;
use std::{
    cell::{Cell, RefCell},
    collections::HashMap,
    sync::{Arc, OnceLock},
};

/// A session of the thread that makes it.
#[napi]
pub struct Remote {
    session: Arc<Session<Notifier>>,
    mailbox: Address,
    buffer: CallBuffer,
    /// The requests by slot.
    slots: RefCell<Vec<Key>>,
    /// Why the session could not be opened.
    failure: Arc<OnceLock<String>>,
    closed: Cell<bool>,
}

/// Turns what becomes of requests into notifications. Under the session's mutex.
struct Notifier {
    mailbox: Address,
    /// What is said in words, by slot, until it is fetched.
    words: HashMap<u32, SessionReply>,
}

enum SessionReply {
    Refused { code: u32, message: String },
    Deadlocked(Deadlock),
    Snapshot(Snapshot),
}

impl Host for Notifier {
    /// The slot.
    type Data = u32;
    type After = ();

    fn granted(&mut self, _: Key, token: u64, slot: &mut u32, (): &mut ()) {
        ProcessState::lock().post(self.mailbox, Notification::Granted { slot: *slot, token });
    }

    fn over(&mut self, _: Key, outcome: Outcome, slot: u32, (): &mut ()) {
        let notification = match outcome {
            Outcome::Unavailable => Notification::Unavailable { slot },
            Outcome::Broken { cause, .. } => Notification::Broken { slot, cause },
            Outcome::Released | Outcome::Answer(_) => Notification::Ended { slot },
            Outcome::Refused { code, message } => {
                return self.refuse(slot, SessionReply::Refused { code, message });
            }
            Outcome::Failed(failure) => return self.refuse(slot, SessionReply::from(failure)),
            Outcome::Deadlocked(deadlock) => return self.refuse(slot, SessionReply::Deadlocked(deadlock)),
        };
        ProcessState::lock().post(self.mailbox, notification);
    }

    fn session(&mut self, news: Lifecycle, (): &mut ()) {
        if let Lifecycle::Opened { resumed: false, .. } = news {
            ProcessState::lock().post(self.mailbox, Notification::Opened);
        }
    }
}

impl Notifier {
    fn refuse(&mut self, slot: u32, words: SessionReply) {
        self.tell(slot, words, Notification::Refused { slot });
    }

    fn tell(&mut self, slot: u32, words: SessionReply, notification: Notification) {
        self.words.insert(slot, words);
        ProcessState::lock().post(self.mailbox, notification);
    }
}

impl From<Failure> for SessionReply {
    fn from(failure: Failure) -> Self {
        match failure {
            Failure::Refused { code, message } => Self::Refused { code, message },
            other => Self::Refused { code: 0, message: other.to_string() },
        }
    }
}

impl From<lockkeeper_client::Error> for SessionReply {
    fn from(error: lockkeeper_client::Error) -> Self {
        match error {
            lockkeeper_client::Error::Refused { code, message } => Self::Refused { code, message },
            other => Self::Refused { code: 0, message: other.to_string() },
        }
    }
}

/// Why a request or question was refused.
#[napi(object, object_from_js = false)]
pub struct Refusal {
    pub code: u32,
    pub message: String,
    /// Of the deadlock that it would have been.
    pub cycle: Option<Vec<report::Step>>,
}

/// What a daemon shows.
#[napi(object, object_from_js = false)]
pub struct RemoteSnapshot {
    pub entries: Vec<RemoteEntry>,
    pub deadlocks: Vec<report::Deadlock>,
}

/// One name of one request.
#[napi(object, object_from_js = false)]
pub struct RemoteEntry {
    pub place: ScopeEntry,
    pub client_id: String,
    pub arrival: BigInt,
    pub token: Option<BigInt>,
    pub info: Option<String>,
    pub since: f64,
    pub nested_in: Option<BigInt>,
    pub stole: bool,
}

#[napi]
impl Remote {
    /// Opens a session with the daemon at `url`, or this user's own, and starts `program` as the daemon if none answers.
    /// A notification tells when it is open, and when another one is after it was lost.
    #[napi(constructor)]
    pub fn new(
        env: Env,
        mut buffer: Float64ArraySlice<'_>,
        on_mail: Function<'_, (), ()>,
        url: Option<String>,
        program: Option<String>,
        bucket: String,
    ) -> Result<Self> {
        let endpoint = url.map_or_else(Endpoint::from_env, |url| url.parse()).map_err(Error::from_reason)?;
        let waker = waker(&env, &on_mail)?;
        // SAFETY: nothing else reads or writes the array during this call.
        let buffer = CallBuffer::new(unsafe { buffer.as_mut() });
        let mailbox = ProcessState::lock().open(waker);
        let failure = Arc::new(OnceLock::new());
        let failed = Arc::clone(&failure);
        let opened = move |opened: std::result::Result<(), lockkeeper_client::Error>| {
            if let Err(error) = opened {
                let _ = failed.set(error.to_string());
                ProcessState::lock().post(mailbox, Notification::Opened);
            }
        };
        let options = Options::new(bucket).program(program.map(Into::into));
        let notifications = Notifier { mailbox, words: HashMap::new() };
        let session = Session::start(&endpoint, options, notifications, opened).map_err(|error| {
            ProcessState::lock().shut(mailbox).into_iter().for_each(Waker::release);
            Error::from_reason(error.to_string())
        })?;
        let session = Arc::new(session);
        // At the environment's end no code of this thread runs any more; nor does it when the thread exits, at which the
        // waker is the runtime's to take down.
        env.add_env_cleanup_hook(Arc::clone(&session), move |session| {
            session.close();
            ProcessState::lock().shut(mailbox).into_iter().for_each(Waker::release);
        })?;
        let ending = Arc::clone(&session);
        at_thread_exit(move || {
            ending.close();
            let _ = ProcessState::lock().shut(mailbox);
        });
        let (slots, closed) = (RefCell::default(), Cell::new(false));
        Ok(Self { session, mailbox, buffer, slots, failure, closed })
    }

    /// The client's id, once the session is open. Throws if it could not be opened.
    #[napi]
    pub fn client_id(&self) -> Result<String> {
        match self.failure.get() {
            Some(why) => Err(Error::from_reason(why.clone())),
            None => Ok(self.session.client_id()),
        }
    }

    #[napi]
    pub fn collect(&self) {
        self.buffer.collect(self.mailbox);
    }

    /// Makes a request, of the slot and with the flags in the call buffer.
    #[napi]
    pub fn request(
        &self,
        env: Env,
        names: Vec<JsString<'_>>,
        shared: Vec<bool>,
        nested_in: Option<u32>,
        info: Option<String>,
    ) -> Result<()> {
        let session = self.open()?;
        let (slot, flags) = self.buffer.given();
        let scope = names::scope(&env, &names, &shared)?;
        let mut slots = self.slots.borrow_mut();
        let outer = nested_in.and_then(|slot| slots.get(slot as usize).copied());
        let flags = Flags {
            if_available: flags & flag::IF_AVAILABLE != 0,
            steal: flags & flag::STEAL != 0,
            refuse_deadlock: flags & flag::REFUSE_DEADLOCK != 0,
        };
        let key = session.request(Request { scope, flags, nested_in: outer.map(Outer::Own), info }, slot);
        match slots.get_mut(slot as usize) {
            Some(place) => *place = key,
            None => slots.push(key),
        }
        Ok(())
    }

    /// Whether a lock is held, by the clock. If it is not, a notification says so.
    #[napi]
    pub fn is_held(&self, slot: u32) -> bool {
        let key = self.slots.borrow().get(slot as usize).copied();
        key.is_some_and(|key| self.session.is_held(key))
    }

    /// Releases a lock or aborts a request, perhaps because its time was up. A notification tells
    /// when it is done.
    #[napi]
    pub fn release(&self, slot: u32, timed_out: bool) {
        let key = self.slots.borrow().get(slot as usize).copied();
        if let (Some(key), Ok(session)) = (key, self.open()) {
            _ = if timed_out { session.time_out(key) } else { session.release(key) };
        }
    }

    /// Asks for the state of the bucket, and for its deadlocks. A notification to the slot tells
    /// when the answer is there.
    #[napi]
    pub fn query(&self, slot: u32, deadlocks: bool) -> Result<()> {
        let (session, answered) = (self.open()?, self.responder(slot, SessionReply::Snapshot));
        match deadlocks {
            true => session.inspect_then(None, answered),
            false => session.query_then(None, answered),
        }
        Ok(())
    }

    /// Breaks every lock on a name.
    #[napi]
    pub fn force_release(&self, env: Env, slot: u32, name: JsString<'_>) -> Result<()> {
        let name = names::name(&env, &name)?;
        let nothing = |_count| SessionReply::Snapshot(Snapshot::default());
        self.open()?.force_release_then(&name, self.responder(slot, nothing));
        Ok(())
    }

    fn open(&self) -> Result<&Session<Notifier>> {
        if self.closed.get() { Err(Error::from_reason("the session is closed")) } else { Ok(&self.session) }
    }

    /// Posts the answer to a question. It holds no share of the session, which ends with its owner.
    fn responder<T>(
        &self,
        slot: u32,
        words: impl FnOnce(T) -> SessionReply + Send + 'static,
    ) -> impl FnOnce(std::result::Result<T, lockkeeper_client::Error>) + Send + 'static {
        let session = Arc::downgrade(&self.session);
        move |answer| {
            let Some(session) = session.upgrade() else { return };
            session.with(|view| match answer {
                Ok(answer) => view.host().tell(slot, words(answer), Notification::Ended { slot }),
                Err(error) => view.host().refuse(slot, SessionReply::from(error)),
            });
        }
    }

    /// Why what had this slot was refused.
    #[napi]
    pub fn refusal(&self, slot: u32) -> Option<Refusal> {
        match self.session.with(|view| view.host().words.remove(&slot))? {
            SessionReply::Refused { code, message } => Some(Refusal { code, message, cycle: None }),
            SessionReply::Deadlocked(Deadlock { words, cycle }) => {
                Some(Refusal { code: 0, message: words, cycle: Some(steps(cycle)) })
            }
            SessionReply::Snapshot(_) => None,
        }
    }

    /// The answer to a query.
    #[napi]
    pub fn snapshot(&self, slot: u32) -> Option<RemoteSnapshot> {
        let words = self.session.with(|view| view.host().words.remove(&slot));
        let Some(SessionReply::Snapshot(snapshot)) = words else { return None };
        let entry = |entry: Entry| RemoteEntry {
            place: report::place(&entry.name, entry.mode),
            client_id: entry.client_id,
            arrival: BigInt::from(entry.arrival),
            token: entry.token.map(BigInt::from),
            info: entry.info,
            #[expect(clippy::cast_precision_loss, reason = "milliseconds")]
            since: entry.since as f64,
            nested_in: entry.nested_in.map(BigInt::from),
            stole: entry.stole,
        };
        let deadlock = |Deadlock { words, cycle }| report::Deadlock { message: words, cycle: steps(cycle) };
        Some(RemoteSnapshot {
            entries: snapshot.entries.into_iter().map(entry).collect(),
            deadlocks: snapshot.deadlocks.into_iter().map(deadlock).collect(),
        })
    }

    /// Ends the session, and all it has with it.
    #[napi]
    pub fn close(&self) {
        self.closed.set(true);
        self.session.close();
    }
}

fn steps(cycle: Vec<Step>) -> Vec<report::Step> {
    let step = |Step { arrival, client_id, waits_for }| report::Step {
        request: BigInt::from(arrival),
        client_id,
        waits_for: waits_for.as_ref().map(names::to_js),
    };
    cycle.into_iter().map(step).collect()
}
