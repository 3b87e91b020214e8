//! The agent of one thread (§2.4): its beginning and end, and the calls that need not be fast.

use crate::{
    ffi::{self, CallBuffer, answer},
    names,
    report::{self, Deadlock, Inspection, Snapshot},
    state::{Address, Owner, ProcessState, Waker},
};
use lockkeeper_core::{ClientId, Mode, Options, Outcome, RequestError, RequestId};
use napi::{
    Env, Error, JsString, JsValue, Result,
    bindgen_prelude::{Float64ArraySlice, Function, Object, sys},
    check_status,
};
use napi_derive::napi;
use std::{cell::RefCell, ptr, rc::Rc};

/// The agent of the thread that makes it.
#[napi]
pub struct Agent {
    inner: Rc<Inner>,
}

pub(crate) struct Inner {
    pub(crate) mailbox: Address,
    /// Which of [`ProcessState::managers`] it is an agent of.
    pub(crate) manager: usize,
    pub(crate) client: ClientId,
    /// The requests of this thread by slot. A slot is used again only after its request has ended
    /// and the thread knows.
    pub(crate) slots: RefCell<Vec<RequestId>>,
    pub(crate) buffer: CallBuffer,
    /// The last requested name.
    pub(crate) last: RefCell<Vec<u8>>,
}

thread_local! {
    /// Ends what is this thread's with the thread, where the runtime does not call the
    /// environment's cleanup hook.
    static ENDS: RefCell<Vec<EndsWithThread>> = const { RefCell::new(Vec::new()) };
}

struct EndsWithThread {
    serial: u64,
    /// Returns the waker, if it is still there.
    end: Box<dyn Fn() -> Option<Waker>>,
}

impl Drop for EndsWithThread {
    fn drop(&mut self) {
        // If the thread exits, the runtime has ended, and is responsible for its wakers.
        let _ = (self.end)();
    }
}

/// Has `end` called when this thread exits. It takes down that mailbox.
pub(crate) fn at_thread_exit(mailbox: Address, end: impl Fn() -> Option<Waker> + 'static) {
    let ends = EndsWithThread { serial: mailbox.serial, end: Box::new(end) };
    ENDS.with_borrow_mut(|all| all.push(ends));
}

/// Calls it now instead: the thread continues, or its runtime still exists. The mailbox is given by
/// its number.
pub(crate) fn end_now(serial: u64) {
    let ends = ENDS.with_borrow_mut(|all| {
        let place = all.iter().position(|ends| ends.serial == serial)?;
        Some(all.swap_remove(place))
    });
    ends.and_then(|ends| (ends.end)()).into_iter().for_each(Waker::release);
}

#[napi]
impl Agent {
    /// The caller keeps the array `buffer` for as long as the agent. `on_mail` is called in a task
    /// when there are notifications. With `own_manager`, it is the only agent of a lock manager of
    /// its own.
    #[napi(constructor)]
    pub fn new(
        env: Env,
        mut buffer: Float64ArraySlice<'_>,
        on_mail: Function<'_, (), ()>,
        own_manager: bool,
    ) -> Result<Self> {
        let waker = waker(&env, &on_mail)?;
        // SAFETY: nothing else reads or writes the array during this call.
        let buffer = CallBuffer::new(unsafe { buffer.as_mut() });
        let mut state = ProcessState::lock();
        let manager = if own_manager { state.new_manager() } else { 0 };
        let client =
            state.managers[manager].client().map_err(|limit| Error::from_reason(limit.to_string()))?;
        let mailbox = state.open(waker);
        drop(state);
        let (slots, last) = (RefCell::default(), RefCell::default());
        let inner = Rc::new(Inner { mailbox, manager, client, slots, buffer, last });
        env.add_env_cleanup_hook(Rc::clone(&inner), |inner| inner.end())?;
        at_thread_exit(mailbox, move || ProcessState::lock().close(mailbox, manager, client));
        Ok(Self { inner })
    }

    #[napi(getter)]
    pub fn client_id(&self) -> String {
        self.inner.client.to_string()
    }

    /// `request`, `release` and `collect`, as the raw functions they are.
    #[napi]
    pub fn fast<'env>(&self, env: &'env Env) -> Result<Object<'env>> {
        ffi::functions(env, &self.inner)
    }

    /// The long form of `request`: a scope of names, the request it is nested in, a label. Returns
    /// the deadlock because of which it was refused.
    #[napi]
    pub fn request_scope(
        &self,
        env: Env,
        names: Vec<JsString<'_>>,
        shared: Vec<bool>,
        nested_in: Option<u32>,
        info: Option<String>,
    ) -> Result<Option<Deadlock>> {
        let scope = names::scope(&env, &names, &shared)?;
        let nested_in = nested_in.and_then(|slot| self.inner.slots.borrow().get(slot as usize).copied());
        let info = info.map(String::into_boxed_str);
        let (slot, flags) = self.inner.buffer.given();
        match self.inner.request(slot, &scope, flags, nested_in, info) {
            Ok(()) => Ok(None),
            Err(RequestError::Deadlock(deadlock)) => Ok(Some(report::deadlock(&deadlock))),
            Err(error) => Err(Error::from_reason(error.to_string())),
        }
    }

    /// Aborts a waiting request.
    #[napi]
    pub fn abort(&self, slot: u32) -> u32 {
        let Some(request) = self.inner.slots.borrow().get(slot as usize).copied() else { return 0 };
        let mut state = ProcessState::lock();
        let ProcessState { managers, effects, .. } = &mut *state;
        let aborted = managers[self.inner.manager].abort(request, effects);
        let aborted = if aborted { answer::ABORTED } else { 0 };
        aborted | self.inner.post(&mut state)
    }

    /// Breaks every lock of a name.
    #[napi]
    pub fn force_release(&self, env: Env, name: JsString<'_>) -> Result<u32> {
        let name = names::name(&env, &name)?;
        let mut state = ProcessState::lock();
        let ProcessState { managers, effects, .. } = &mut *state;
        managers[self.inner.manager].force_release(&name, effects);
        Ok(self.inner.post(&mut state))
    }

    #[napi]
    pub fn query(&self) -> Snapshot {
        report::query(&ProcessState::lock().managers[self.inner.manager])
    }

    #[napi]
    pub fn inspect(&self) -> Inspection {
        let state = ProcessState::lock();
        report::inspect(&state.managers[self.inner.manager], state.now())
    }

    /// Ends the agent before its thread. Its locks are released and its requests removed, without
    /// notifications. Only its id is used afterwards.
    #[napi]
    pub fn close(&self) {
        end_now(self.inner.mailbox.serial);
    }

    /// The deadlock that a waiting request is part of.
    #[napi]
    pub fn deadlock(&self, slot: u32) -> Option<Deadlock> {
        let request = self.inner.slots.borrow().get(slot as usize).copied()?;
        ProcessState::lock().managers[self.inner.manager].deadlock(request).as_ref().map(report::deadlock)
    }
}

impl Inner {
    /// Requests a lock; answers in the call buffer, with bits of [`answer`].
    pub(crate) fn request<N: AsRef<[u8]>>(
        &self,
        slot: u32,
        scope: &[(N, Mode)],
        flags: u32,
        nested_in: Option<RequestId>,
        info: Option<Box<str>>,
    ) -> std::result::Result<(), RequestError> {
        let options = Options {
            if_available: flags & ffi::flag::IF_AVAILABLE != 0,
            steal: flags & ffi::flag::STEAL != 0,
            refuse_deadlock: flags & ffi::flag::REFUSE_DEADLOCK != 0,
            nested_in,
        };
        let owner = Owner { mailbox: self.mailbox.place, slot, queued_at: 0, info };
        let mut state = ProcessState::lock();
        let ProcessState { managers, effects, .. } = &mut *state;
        let outcome = managers[self.manager].request(self.client, scope, options, owner, effects)?;
        let (mut answer, token) = match outcome {
            Outcome::Granted { request, token } => {
                self.note(slot, request);
                (answer::GRANTED, token.get())
            }
            Outcome::Queued { request } => {
                self.note(slot, request);
                state.queued(self.manager, request);
                (answer::QUEUED, 0)
            }
            Outcome::Unavailable => (answer::UNAVAILABLE, 0),
        };
        if options.steal {
            // Nothing else has effects on others.
            answer |= self.post(&mut state);
        }
        self.buffer.put(0, f64::from(answer), token);
        Ok(())
    }

    /// Delivers the effects of a command. [`answer::MAIL`] if some are the caller's own.
    fn post(&self, state: &mut ProcessState) -> u32 {
        if state.deliver(self.manager, Some(self.mailbox.place)) { answer::MAIL } else { 0 }
    }

    /// Slots are handed out densely.
    fn note(&self, slot: u32, request: RequestId) {
        let mut slots = self.slots.borrow_mut();
        match slots.get_mut(slot as usize) {
            Some(place) => *place = request,
            None => slots.push(request),
        }
    }

    /// At the environment's end: no code of this thread runs any more.
    fn end(&self) {
        let waker = ProcessState::lock().close(self.mailbox, self.manager, self.client);
        waker.into_iter().for_each(Waker::release);
    }
}

/// The thread-safe function that runs `on_mail`. It does not keep the thread alive.
pub(crate) fn waker(env: &Env, on_mail: &Function<'_, (), ()>) -> Result<Waker> {
    let name = env.create_string("lockkeeper")?;
    let mut function = ptr::null_mut();
    // SAFETY: all values are of the running call; without a callback of ours the runtime calls
    // `on_mail` itself.
    check_status!(unsafe {
        sys::napi_create_threadsafe_function(
            env.raw(),
            on_mail.raw(),
            ptr::null_mut(),
            name.raw(),
            0,
            1,
            ptr::null_mut(),
            None,
            ptr::null_mut(),
            None,
            &raw mut function,
        )
    })?;
    // SAFETY: it was just made, by this environment.
    check_status!(unsafe { sys::napi_unref_threadsafe_function(env.raw(), function) })?;
    Ok(Waker(function))
}
