//! The calls that every lock takes: raw Node-API functions that answer with a number.

use crate::{
    agent::Inner,
    names::with_name,
    state::{Address, Notification, ProcessState},
};
use lockkeeper_core::{Cause, Mode};
use napi::{
    Env, Result,
    bindgen_prelude::{JsObjectValue, Object, Unknown, sys},
    check_status,
};
use std::{ffi::c_void, ptr, rc::Rc};

/// The options of a request, as bits.
pub(crate) mod flag {
    pub(crate) const SHARED: u32 = 1;
    pub(crate) const IF_AVAILABLE: u32 = 2;
    pub(crate) const STEAL: u32 = 4;
    pub(crate) const REFUSE_DEADLOCK: u32 = 8;
    /// The name is that of the last request, and is not given again.
    pub(crate) const SAME: u32 = 16;
}

/// The answer of a call.
pub(crate) mod answer {
    pub(crate) const QUEUED: u32 = 0;
    pub(crate) const GRANTED: u32 = 1;
    pub(crate) const UNAVAILABLE: u32 = 2;
    pub(crate) const ABORTED: u32 = 1;
    /// There are notifications to collect.
    pub(crate) const MAIL: u32 = 4;
}

/// The event of a request, in a notification: the three low bits of its first number.
mod news {
    pub(super) const GRANTED: u32 = 0;
    pub(super) const STOLEN: u32 = 1;
    pub(super) const LOST: u32 = 2;
    pub(super) const UNAVAILABLE: u32 = 3;
    pub(super) const ENDED: u32 = 4;
    pub(super) const REFUSED: u32 = 5;
    pub(super) const SESSION: u32 = 6;
}

/// The event of a session with a daemon, in the place of a slot.
pub(crate) mod session {
    pub(crate) const OPENED: u32 = 0;
    pub(crate) const INTERRUPTED: u32 = 1;
    pub(crate) const FAILED: u32 = 2;
}

/// The thread's array of numbers, through which it and the addon pass all but strings: that costs
/// less than an argument or a result. Two numbers are a pair. The first pair is a call's, in: a
/// slot and flags; out: an answer and a token. The others are notifications: a slot with its event,
/// and the token of a grant.
pub(crate) struct CallBuffer {
    array: *mut f64,
    pairs: usize,
}

impl CallBuffer {
    /// The caller keeps the array for as long as this.
    pub(crate) fn new(array: &mut [f64]) -> Self {
        Self { array: array.as_mut_ptr(), pairs: array.len() / 2 }
    }

    /// How many notifications there is room for.
    fn room(&self) -> usize {
        self.pairs - 1
    }

    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "our own TypeScript wrote it"
    )]
    pub(crate) fn given(&self) -> (u32, u32) {
        // SAFETY: within the array, which JavaScript keeps, and which only this thread touches.
        let (slot, flags) = unsafe { (self.array.read(), self.array.add(1).read()) };
        (slot as u32, flags as u32)
    }

    /// A token is exact up to 2⁵³ grants, a hundred years of them.
    #[expect(clippy::cast_precision_loss)]
    pub(crate) fn put(&self, pair: usize, first: f64, token: u64) {
        assert!(pair < self.pairs, "there is room for what is put there");
        // SAFETY: as above.
        unsafe {
            self.array.add(2 * pair).write(first);
            self.array.add(2 * pair + 1).write(token as f64);
        }
    }

    /// Takes notifications out of a mailbox, as many as there is room for. Answers how many.
    #[expect(clippy::cast_precision_loss, reason = "there is no room for so many")]
    pub(crate) fn collect(&self, mailbox: Address) {
        let mut state = ProcessState::lock();
        let notifications = state.notifications(mailbox.place);
        let count = notifications.len().min(self.room());
        notifications
            .drain(..count)
            .enumerate()
            .for_each(|(place, notification)| self.put_letter(place, notification));
        self.put(0, count as f64, 0);
    }

    fn put_letter(&self, place: usize, notification: Notification) {
        let (slot, news, token) = match notification {
            Notification::Granted { slot, token } => (slot, news::GRANTED, token),
            Notification::Broken { slot, cause: Cause::Stolen } => (slot, news::STOLEN, 0),
            Notification::Broken { slot, cause: Cause::Lost } => (slot, news::LOST, 0),
            Notification::Unavailable { slot } => (slot, news::UNAVAILABLE, 0),
            Notification::Ended { slot } => (slot, news::ENDED, 0),
            Notification::Refused { slot } => (slot, news::REFUSED, 0),
            Notification::Session { status } => (status, news::SESSION, 0),
        };
        self.put(place + 1, f64::from(slot) * 8.0 + f64::from(news), token);
    }
}

/// `request`, `release` and `collect` of one agent, which outlives them: the cleanup hook has a
/// share of it, and no JavaScript runs after that.
pub(crate) fn functions<'env>(env: &'env Env, agent: &Rc<Inner>) -> Result<Object<'env>> {
    let mut object = Object::new(env)?;
    for (name, function) in [
        (c"request", request as unsafe extern "C" fn(_, _) -> _),
        (c"release", release as unsafe extern "C" fn(_, _) -> _),
        (c"collect", collect as unsafe extern "C" fn(_, _) -> _),
    ] {
        let agent = Rc::as_ptr(agent).cast_mut().cast::<c_void>();
        let mut value = ptr::null_mut();
        // SAFETY: the environment is that of the running call.
        check_status!(unsafe {
            sys::napi_create_function(env.raw(), name.as_ptr(), -1, Some(function), agent, &raw mut value)
        })?;
        // SAFETY: as above.
        object.set_c_named_property(name, unsafe { Unknown::from_raw_unchecked(env.raw(), value) })?;
    }
    Ok(object)
}

/// `request(name)`, of the slot and with the flags in the call buffer. Answers with bits of
/// [`answer`] and the token of a grant. Throws if the engine refuses.
unsafe extern "C" fn request(env: sys::napi_env, info: sys::napi_callback_info) -> sys::napi_value {
    // SAFETY: called by the runtime with what `functions` gave it.
    let ([name], agent) = unsafe { arguments::<1>(env, info) };
    let (slot, flags) = agent.buffer.given();
    let mode = if flags & flag::SHARED == 0 { Mode::Exclusive } else { Mode::Shared };
    let mut last = agent.last.borrow_mut();
    let read = match flags & flag::SAME {
        0 => {
            last.clear();
            // SAFETY: as above.
            unsafe { with_name(env, name, |name| last.extend_from_slice(name)) }
        }
        _ => Ok(()),
    };
    let done = read.map(|()| agent.request(slot, &[(&*last, mode)], flags, None, None));
    match done {
        Ok(Ok(())) => {}
        Ok(Err(error)) => unsafe { throw(env, &error.to_string()) },
        Err(error) => unsafe { throw(env, &error.reason) },
    }
    ptr::null_mut()
}

/// `release()`, of the slot in the call buffer. Answers 0; or slot + 1 of the one request of this
/// thread that was granted by it, with its token; or -1 if there are notifications to collect. Of a
/// lock that was broken there is one.
unsafe extern "C" fn release(env: sys::napi_env, info: sys::napi_callback_info) -> sys::napi_value {
    // SAFETY: called by the runtime with what `functions` gave it.
    let ([], agent) = unsafe { arguments::<0>(env, info) };
    agent.release();
    ptr::null_mut()
}

/// `collect()`: takes notifications out of the mailbox, as many as there is room for. Answers how
/// many.
unsafe extern "C" fn collect(env: sys::napi_env, info: sys::napi_callback_info) -> sys::napi_value {
    // SAFETY: called by the runtime with what `functions` gave it.
    let ([], agent) = unsafe { arguments::<0>(env, info) };
    agent.buffer.collect(agent.mailbox);
    ptr::null_mut()
}

impl Inner {
    fn release(&self) {
        let (slot, _) = self.buffer.given();
        self.buffer.put(0, 0.0, 0);
        let Some(request) = self.slots.borrow().get(slot as usize).copied() else { return };
        let mut state = ProcessState::lock();
        let ProcessState { managers, effects, .. } = &mut *state;
        let released = managers[self.manager].release(request, effects).is_some();
        if released && effects.is_empty() || !state.deliver(self.manager, Some(self.mailbox.place)) {
            return;
        }
        let notifications = state.notifications(self.mailbox.place);
        match notifications.front() {
            Some(&Notification::Granted { slot, token }) if notifications.len() == 1 => {
                notifications.clear();
                self.buffer.put(0, f64::from(slot) + 1.0, token);
            }
            _ => self.buffer.put(0, -1.0, 0),
        }
    }
}

unsafe fn arguments<'a, const N: usize>(
    env: sys::napi_env,
    info: sys::napi_callback_info,
) -> ([sys::napi_value; N], &'a Inner) {
    let mut values = [ptr::null_mut(); N];
    let (mut count, mut data) = (N, ptr::null_mut());
    // SAFETY: `values` has room for `count`; arguments that are missing become undefined.
    unsafe {
        let values = values.as_mut_ptr();
        sys::napi_get_cb_info(env, info, &raw mut count, values, ptr::null_mut(), &raw mut data);
    }
    // SAFETY: `functions` put it there.
    (values, unsafe { &*data.cast::<Inner>() })
}

unsafe fn throw(env: sys::napi_env, message: &str) {
    let (mut text, mut error) = (ptr::null_mut(), ptr::null_mut());
    unsafe {
        let len = isize::try_from(message.len()).unwrap_or(-1);
        sys::napi_create_string_utf8(env, message.as_ptr().cast(), len, &raw mut text);
        sys::napi_create_error(env, ptr::null_mut(), text, &raw mut error);
        sys::napi_throw(env, error);
    }
}
