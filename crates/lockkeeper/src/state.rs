//! One lock manager behind one mutex, and the delivery of its effects.
//!
//! The calling thread runs the engine under the mutex. The resulting wakers are collected, and
//! woken after the mutex is unlocked. Each live request has one owner, a pending
//! [`Acquire`](crate::Acquire) or a [`Lock`](crate::Lock), which asks the engine for the state of
//! its request: the engine has the only copy. Outside it, only the end of a request that its owner
//! has not seen yet is kept, until the owner has read it or is dropped.

use crate::sync::{self, Mutex, MutexGuard};
use event_listener::Event;
use lockkeeper_core::{Cause, ClientId, Deadlock, Effect, Manager, Mode, Name, RequestId};
use std::{collections::HashMap, sync::Arc, task::Waker, time::Instant};

pub(crate) type DeadlockHook = dyn Fn(&Deadlock) + Send + Sync;

pub(crate) struct ManagerHandle {
    state: Mutex<ManagerState>,
    /// The agent that came with the manager.
    pub(crate) root: ClientId,
    /// Waiting times count from here.
    began: Instant,
    pub(crate) on_deadlock: Option<Arc<DeadlockHook>>,
}

pub(crate) struct ManagerState {
    pub(crate) manager: Manager<Note>,
    /// Empty between calls.
    pub(crate) effects: Vec<Effect<Note>>,
    /// Requests that ended behind their owner's back, until the owner goes.
    ended: HashMap<RequestId, Ended>,
}

/// How a request ended that its owner still has.
pub(crate) struct Ended {
    pub(crate) cause: Cause,
    /// The names it held; none if it was waiting.
    pub(crate) scope: Vec<(Name, Mode)>,
}

/// The async layer's data of a request. An uncontended one needs none, and has no cost.
pub(crate) type Note = Option<Box<Notes>>;

#[derive(Default)]
pub(crate) struct Notes {
    /// The task to wake when the request is granted, or, once it is held, when it is broken.
    pub(crate) waker: Option<Waker>,
    /// When the request began to wait, in nanoseconds since the manager began.
    pub(crate) queued_at: u64,
    /// The label.
    pub(crate) info: Option<Box<str>>,
    /// Told when the lock is broken.
    pub(crate) lost: Option<Arc<Event>>,
}

impl ManagerHandle {
    pub(crate) fn new(
        manager: Manager<Note>,
        root: ClientId,
        on_deadlock: Option<Arc<DeadlockHook>>,
    ) -> Self {
        let state = ManagerState { manager, effects: Vec::new(), ended: HashMap::new() };
        Self { state: Mutex::new(state), root, began: Instant::now(), on_deadlock }
    }

    /// Runs `command` under the mutex, then wakes whom its effects concern, outside.
    #[inline]
    pub(crate) fn with<R>(&self, command: impl FnOnce(&mut ManagerState) -> R) -> R {
        let mut state = sync::lock(&self.state);
        let result = command(&mut state);
        if !state.effects.is_empty() {
            deliver(state);
        }
        result
    }

    /// Nanoseconds since the manager began.
    pub(crate) fn now(&self) -> u64 {
        u64::try_from(self.began.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }
}

impl ManagerState {
    /// Ends a request that its owner cancels, whether it waits or is held. The caller drops the
    /// returned waker outside the mutex, because its drop may run foreign code.
    pub(crate) fn cancel(&mut self, request: RequestId) -> (Option<Waker>, Option<Note>) {
        let waker = self.take_waker(request);
        if self.manager.abort(request, &mut self.effects) {
            return (waker, None);
        }
        (waker, self.release(request).ok())
    }

    /// Releases a lock. If it had been broken: why.
    #[inline]
    pub(crate) fn release(&mut self, request: RequestId) -> Result<Note, Cause> {
        match self.manager.release(request, &mut self.effects) {
            Some(note) => Ok(note),
            None => Err(self.take_cause(request)),
        }
    }

    /// The notes of a live request.
    pub(crate) fn notes(&mut self, request: RequestId) -> Option<&mut Notes> {
        Some(self.manager.data_mut(request)?.get_or_insert_default())
    }

    fn take_waker(&mut self, request: RequestId) -> Option<Waker> {
        self.manager.data_mut(request)?.as_mut()?.waker.take()
    }

    /// Sets whom to wake when a live request is granted or broken. Returns who it was before, for
    /// the caller to drop outside the mutex.
    pub(crate) fn set_waker(&mut self, request: RequestId, waker: &Waker) -> Option<Waker> {
        let set = &mut self.notes(request)?.waker;
        match set {
            Some(same) if same.will_wake(waker) => None,
            _ => set.replace(waker.clone()),
        }
    }

    /// How a request ended that its owner still has; `None` while it lives.
    pub(crate) fn ended(&self, request: RequestId) -> Option<&Ended> {
        self.ended.get(&request)
    }

    /// Why a request that its owner still has is not live any more.
    pub(crate) fn cause(&self, request: RequestId) -> Cause {
        self.ended(request).map_or(Cause::Lost, |ended| ended.cause)
    }

    /// The same, of an owner that goes.
    pub(crate) fn take_cause(&mut self, request: RequestId) -> Cause {
        self.ended.remove(&request).map_or(Cause::Lost, |ended| ended.cause)
    }
}

fn deliver(mut state: MutexGuard<'_, ManagerState>) {
    let mut wakes = Wakes::default();
    let mut effects = std::mem::take(&mut state.effects);
    for effect in effects.drain(..) {
        match effect {
            Effect::Granted { request, .. } => wakes.push(state.take_waker(request)),
            Effect::Aborted { request, data } => {
                // Without a waker it is the owner itself that gave up.
                let waker = data.and_then(|notes| notes.waker);
                if waker.is_some() {
                    state.ended.insert(request, Ended { cause: Cause::Lost, scope: Vec::new() });
                }
                wakes.push(waker);
            }
            Effect::Broken { request, cause, scope, data } => {
                state.ended.insert(request, Ended { cause, scope });
                let (waker, lost) = data.map_or((None, None), |notes| (notes.waker, notes.lost));
                wakes.push(waker);
                wakes.lost.extend(lost);
            }
        }
    }
    state.effects = effects;
    drop(state);
    wakes.wake();
}

/// The wakers to wake after the mutex is unlocked. A hand-over to one waiter needs no allocation.
#[derive(Default)]
struct Wakes {
    first: Option<Waker>,
    rest: Vec<Waker>,
    lost: Vec<Arc<Event>>,
}

impl Wakes {
    #[inline]
    fn push(&mut self, waker: Option<Waker>) {
        match waker {
            Some(waker) if self.first.is_none() => self.first = Some(waker),
            Some(waker) => self.rest.push(waker),
            None => {}
        }
    }

    #[inline]
    fn wake(self) {
        if let Some(first) = self.first {
            first.wake();
            self.rest.into_iter().for_each(Waker::wake);
        }
        for lost in self.lost {
            lost.notify(usize::MAX);
        }
    }
}
