//! A session with a daemon. Nothing here blocks the caller's thread: the daemon's messages become
//! notifications.
//!
//! Requests carry their slot, and [`Remote::slots`] has the session's key for each. The session's
//! mutex protects the texts of answers.

use crate::{
    agent::{at_thread_exit, end_now, waker},
    ffi::{CallBuffer, flag, session},
    names,
    report::{self, ScopeEntry},
    state::{Address, Notification, ProcessState, Waker},
};
use lockkeeper_client::{
    Deadlock, Endpoint, Entry, Failure, Flags, Host, Key, Lifecycle, Options, Outcome, Outer, Request,
    Session, Snapshot, Step,
};
use lockkeeper_core::Cause;
use napi::{
    Env, Error, JsString, Result, Status,
    bindgen_prelude::{BigInt, Float64ArraySlice, Function, sys},
    check_status,
};
use napi_derive::napi;
use std::{cell::RefCell, collections::HashMap, ffi::c_void, ptr, sync::Arc};

/// A session of the thread that makes it.
#[napi]
pub struct Remote {
    /// None once it is shut.
    session: RefCell<Option<Arc<Session<Notifier>>>>,
    mailbox: Address,
    buffer: CallBuffer,
    /// The requests by slot.
    slots: RefCell<Vec<Key>>,
}

/// Turns events of requests into notifications. Under the session's mutex.
struct Notifier {
    mailbox: Address,
    /// Texts of answers, by slot, until they are fetched.
    words: HashMap<u32, SessionReply>,
    /// Why there is no session.
    failure: Option<SessionReply>,
}

enum SessionReply {
    Refused {
        code: u32,
        message: String,
    },
    /// There is no session.
    Failed {
        code: u32,
        message: String,
    },
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
            // Unsent requests end like sent ones when the session is closed.
            Outcome::Failed(Failure::Closed) => Notification::Broken { slot, cause: Cause::Lost },
            Outcome::Refused { code, message } => {
                return self.refuse(slot, SessionReply::Refused { code, message });
            }
            Outcome::Failed(failure) => return self.refuse(slot, SessionReply::from(failure)),
            Outcome::Deadlocked(deadlock) => return self.refuse(slot, SessionReply::Deadlocked(deadlock)),
        };
        ProcessState::lock().post(self.mailbox, notification);
    }

    fn session(&mut self, news: Lifecycle, (): &mut ()) {
        let status = match news {
            Lifecycle::Opened { .. } => session::OPENED,
            Lifecycle::Interrupted => session::INTERRUPTED,
            Lifecycle::Failed(failure) => {
                self.failure = Some(SessionReply::from(failure));
                session::FAILED
            }
            Lifecycle::Lost | Lifecycle::Closed => return,
        };
        ProcessState::lock().post(self.mailbox, Notification::Session { status });
    }
}

impl Notifier {
    fn refuse(&mut self, slot: u32, words: SessionReply) {
        self.notify_with(slot, words, Notification::Refused { slot });
    }

    fn notify_with(&mut self, slot: u32, words: SessionReply, notification: Notification) {
        self.words.insert(slot, words);
        ProcessState::lock().post(self.mailbox, notification);
    }
}

impl From<Failure> for SessionReply {
    fn from(failure: Failure) -> Self {
        match failure {
            Failure::Refused { code, message } => Self::Failed { code, message },
            other => Self::Failed { code: 0, message: other.to_string() },
        }
    }
}

impl From<lockkeeper_client::Error> for SessionReply {
    fn from(error: lockkeeper_client::Error) -> Self {
        match error {
            lockkeeper_client::Error::Refused { code, message } => Self::Refused { code, message },
            other => Self::Failed { code: 0, message: other.to_string() },
        }
    }
}

/// Why a request or question was refused.
#[napi(object, object_from_js = false)]
pub struct Refusal {
    pub code: u32,
    pub message: String,
    /// Whether that is because there is no session.
    pub failed: bool,
    /// Of the deadlock that it would have been.
    pub cycle: Option<Vec<report::Step>>,
}

/// The answer to a query of a daemon.
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
    /// Opens a session with the daemon at `url`, or this user's own, and starts `program` as the
    /// daemon if none answers. Notifications report that it is open, that the connection is lost,
    /// and that there is no session.
    #[napi(constructor)]
    pub fn new(
        env: Env,
        mut buffer: Float64ArraySlice<'_>,
        on_mail: Function<'_, (), ()>,
        url: Option<String>,
        program: Option<String>,
        bucket: String,
    ) -> Result<Self> {
        let endpoint = url
            .map_or_else(Endpoint::from_env, |url| url.parse())
            .map_err(|why| Error::new(Status::InvalidArg, why))?;
        let waker = waker(&env, &on_mail)?;
        // SAFETY: nothing else reads or writes the array during this call.
        let buffer = CallBuffer::new(unsafe { buffer.as_mut() });
        let mailbox = ProcessState::lock().open(waker);
        let options = Options::new(bucket).program(program.map(Into::into));
        let notifications = Notifier { mailbox, words: HashMap::new(), failure: None };
        // The host is notified, too.
        let session = Session::start(&endpoint, options, notifications, |_| ()).map_err(|error| {
            ProcessState::lock().shut(mailbox).into_iter().for_each(Waker::release);
            Error::from_reason(error.to_string())
        })?;
        let session = Arc::new(session);
        let ending = Arc::downgrade(&session);
        at_thread_exit(mailbox, move || {
            ending.upgrade().iter().for_each(|session| session.close());
            ProcessState::lock().shut(mailbox)
        });
        // SAFETY: the environment is that of the running call, and the hook's data is a number.
        check_status!(unsafe {
            sys::napi_add_env_cleanup_hook(env.raw(), Some(environment_ends), number(mailbox))
        })?;
        Ok(Self { session: RefCell::new(Some(session)), mailbox, buffer, slots: RefCell::default() })
    }

    /// The client's id, once the session is open.
    #[napi]
    pub fn client_id(&self) -> String {
        self.session().map(|session| session.client_id()).unwrap_or_default()
    }

    /// Why there is no session.
    #[napi]
    pub fn failure(&self) -> Option<Refusal> {
        refusal(self.session()?.with(|view| view.host().failure.take())?)
    }

    #[napi]
    pub fn collect(&self) {
        match self.session() {
            Some(_) => self.buffer.collect(self.mailbox),
            None => self.buffer.put(0, 0.0, 0),
        }
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
        // Questions have slots, too.
        let len = slots.len().max(slot as usize + 1);
        slots.resize(len, key);
        slots[slot as usize] = key;
        Ok(())
    }

    /// Whether a lock is held, by the clock. If it is not, a notification follows.
    #[napi]
    pub fn is_held(&self, slot: u32) -> bool {
        let key = self.slots.borrow().get(slot as usize).copied();
        key.zip(self.session()).is_some_and(|(key, session)| session.is_held(key))
    }

    /// Releases a lock or aborts a request, perhaps after a timeout. A notification follows when it
    /// is done.
    #[napi]
    pub fn release(&self, slot: u32, timed_out: bool) {
        let key = self.slots.borrow().get(slot as usize).copied();
        if let Some((key, session)) = key.zip(self.session()) {
            _ = if timed_out { session.time_out(key) } else { session.release(key) };
        }
    }

    /// Asks for the state of the bucket, and for its deadlocks. A notification to the slot follows
    /// when the answer has arrived.
    #[napi]
    pub fn query(&self, slot: u32, deadlocks: bool) -> Result<()> {
        let session = self.open()?;
        let answered = responder(&session, slot, SessionReply::Snapshot);
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
        let session = self.open()?;
        let nothing = |_count| SessionReply::Snapshot(Snapshot::default());
        session.force_release_then(&name, responder(&session, slot, nothing));
        Ok(())
    }

    fn session(&self) -> Option<Arc<Session<Notifier>>> {
        self.session.borrow().clone()
    }

    fn open(&self) -> Result<Arc<Session<Notifier>>> {
        self.session().ok_or_else(|| Error::from_reason("the session is closed"))
    }

    /// Why what had this slot was refused.
    #[napi]
    pub fn refusal(&self, slot: u32) -> Option<Refusal> {
        refusal(self.words(slot)?)
    }

    fn words(&self, slot: u32) -> Option<SessionReply> {
        self.session()?.with(|view| view.host().words.remove(&slot))
    }

    /// The answer to a query.
    #[napi]
    pub fn snapshot(&self, slot: u32) -> Option<RemoteSnapshot> {
        let SessionReply::Snapshot(snapshot) = self.words(slot)? else { return None };
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

    /// Ends the session. Notifications tell that all it has is lost.
    #[napi]
    pub fn close(&self) {
        self.session().iter().for_each(|session| session.close());
    }

    /// Ends the session and frees its resources, without further notifications.
    #[napi]
    pub fn shut(&self, env: Env) -> Result<()> {
        let Some(session) = self.session.take() else { return Ok(()) };
        session.close();
        // SAFETY: the environment is that of the running call.
        check_status!(unsafe {
            sys::napi_remove_env_cleanup_hook(env.raw(), Some(environment_ends), number(self.mailbox))
        })?;
        end_now(self.mailbox.serial);
        Ok(())
    }
}

/// At the environment's end no code of this thread runs any more.
extern "C" fn environment_ends(number: *mut c_void) {
    end_now(number.addr() as u64);
}

/// The number of a mailbox, as the data of a hook.
#[expect(clippy::cast_possible_truncation, reason = "there are fewer mailboxes than addresses")]
fn number(mailbox: Address) -> *mut c_void {
    ptr::without_provenance_mut(mailbox.serial as usize)
}

/// Posts the answer to a question. It holds no share of the session, which ends with its owner.
fn responder<T, F: FnOnce(T) -> SessionReply + Send + 'static>(
    session: &Arc<Session<Notifier>>,
    slot: u32,
    words: F,
) -> impl FnOnce(std::result::Result<T, lockkeeper_client::Error>) + Send + use<T, F> {
    let session = Arc::downgrade(session);
    move |answer| {
        let Some(session) = session.upgrade() else { return };
        session.with(|view| match answer {
            Ok(answer) => view.host().notify_with(slot, words(answer), Notification::Ended { slot }),
            Err(error) => view.host().refuse(slot, SessionReply::from(error)),
        });
    }
}

fn refusal(words: SessionReply) -> Option<Refusal> {
    let (code, message, failed, cycle) = match words {
        SessionReply::Refused { code, message } => (code, message, false, None),
        SessionReply::Failed { code, message } => (code, message, true, None),
        SessionReply::Deadlocked(Deadlock { words, cycle }) => (0, words, false, Some(steps(cycle))),
        SessionReply::Snapshot(_) => return None,
    };
    Some(Refusal { code, message, failed, cycle })
}

fn steps(cycle: Vec<Step>) -> Vec<report::Step> {
    let step = |Step { arrival, client_id, waits_for }| report::Step {
        request: BigInt::from(arrival),
        client_id,
        waits_for: waits_for.as_ref().map(names::to_js),
    };
    cycle.into_iter().map(step).collect()
}
