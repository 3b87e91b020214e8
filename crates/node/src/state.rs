//! The lock manager of the process, those of `createLocks()`, and a mailbox for each agent.

use lockkeeper_core::{Cause, ClientId, Effect, Manager, RequestId};
use napi::bindgen_prelude::sys;
use std::{
    collections::VecDeque,
    ptr,
    sync::{LazyLock, Mutex, MutexGuard, PoisonError},
    time::Instant,
};

static STATE: LazyLock<Mutex<ProcessState>> = LazyLock::new(|| {
    Mutex::new(ProcessState {
        managers: vec![Manager::default()],
        free: Vec::new(),
        mailboxes: Vec::new(),
        opened: 0,
        effects: Vec::new(),
        began: Instant::now(),
    })
});

pub(crate) struct ProcessState {
    /// The first is that of the process; the others are `createLocks()`'s, each of one agent, with
    /// which it ends.
    pub(crate) managers: Vec<Manager<Owner>>,
    /// The places of managers that have ended.
    free: Vec<usize>,
    /// By [`Owner::mailbox`]. A place is free again once its agent has ended, and all its requests
    /// with it.
    mailboxes: Vec<Option<Mailbox>>,
    /// How many mailboxes there have been.
    opened: u64,
    /// The effects of the current command. Empty between commands.
    pub(crate) effects: Vec<Effect<Owner>>,
    /// Waiting times count from here.
    began: Instant,
}

/// The addon's data of a request: its owner.
pub(crate) struct Owner {
    pub(crate) mailbox: u32,
    /// Its place in the thread's own table.
    pub(crate) slot: u32,
    /// When the request began to wait, in nanoseconds since the process began to lock.
    pub(crate) queued_at: u64,
    pub(crate) info: Option<Box<str>>,
}

/// Where an agent learns what others did to its requests.
struct Mailbox {
    /// Tells it from one that had its place before.
    serial: u64,
    notifications: VecDeque<Notification>,
    waker: Waker,
    /// Whether it was woken since the mailbox was last emptied.
    woken: bool,
}

/// The event of a request of one slot.
#[derive(Clone, Copy)]
pub(crate) enum Notification {
    Granted {
        slot: u32,
        token: u64,
    },
    Broken {
        slot: u32,
        cause: Cause,
    },
    /// The following are for a daemon's requests: the engine of this process answers in the call.
    Unavailable {
        slot: u32,
    },
    /// Released or aborted; or a question was answered.
    Ended {
        slot: u32,
    },
    Refused {
        slot: u32,
    },
    /// Where the session stands: one of `ffi`'s `session`.
    Session {
        status: u32,
    },
}

/// A mailbox, for those who post from other threads.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Address {
    pub(crate) place: u32,
    pub(crate) serial: u64,
}

/// A thread-safe function, which has the runtime run the thread's `onMail`.
///
/// Called and released under the mutex only, so a thread that has ended is never woken.
pub(crate) struct Waker(pub(crate) sys::napi_threadsafe_function);

// SAFETY: a thread-safe function is made to be called from any thread.
unsafe impl Send for Waker {}

impl ProcessState {
    pub(crate) fn lock() -> MutexGuard<'static, ProcessState> {
        // A panic under the mutex would be a bug of the engine; the rest of the process continues.
        STATE.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Nanoseconds since the process began to lock.
    pub(crate) fn now(&self) -> u64 {
        u64::try_from(self.began.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }

    /// A manager that shares nothing with the others.
    pub(crate) fn new_manager(&mut self) -> usize {
        self.free.pop().unwrap_or_else(|| {
            self.managers.push(Manager::default());
            self.managers.len() - 1
        })
    }

    /// Gives a new agent its mailbox.
    pub(crate) fn open(&mut self, waker: Waker) -> Address {
        self.opened += 1;
        let serial = self.opened;
        let mailbox = Some(Mailbox { serial, notifications: VecDeque::new(), waker, woken: false });
        let place = self.mailboxes.iter().position(Option::is_none).unwrap_or(self.mailboxes.len());
        match self.mailboxes.get_mut(place) {
            Some(free) => *free = mailbox,
            None => self.mailboxes.push(mailbox),
        }
        Address { place: u32::try_from(place).expect("there are fewer threads than that"), serial }
    }

    /// Puts a notification into a mailbox, if that is still there.
    pub(crate) fn post(&mut self, to: Address, notification: Notification) {
        if let Some(mailbox) = &mut self.mailboxes[to.place as usize]
            && mailbox.serial == to.serial
        {
            mailbox.notifications.push_back(notification);
            mailbox.wake();
        }
    }

    /// Takes a mailbox away, once. Returns its waker, for a thread that can still take it down.
    pub(crate) fn shut(&mut self, address: Address) -> Option<Waker> {
        let mailbox = &mut self.mailboxes[address.place as usize];
        mailbox.take_if(|mailbox| mailbox.serial == address.serial).map(|mailbox| mailbox.waker)
    }

    /// Ends an agent (§2.6), once. Returns its waker, for a thread that can still take it down.
    pub(crate) fn close(&mut self, address: Address, manager: usize, client: ClientId) -> Option<Waker> {
        let waker = self.shut(address)?;
        self.managers[manager].client_gone(client, &mut self.effects);
        self.deliver(manager, None);
        if manager != 0 {
            self.managers[manager] = Manager::default();
            self.free.push(manager);
        }
        Some(waker)
    }

    /// Puts the effects of a command to one manager into the mailboxes of those concerned, and
    /// wakes those who do not call themselves. Whether the caller has notifications.
    pub(crate) fn deliver(&mut self, manager: usize, caller: Option<u32>) -> bool {
        let mut effects = std::mem::take(&mut self.effects);
        for effect in effects.drain(..) {
            let Some((place, notification)) = self.notification(manager, &effect) else { continue };
            let Some(mailbox) = &mut self.mailboxes[place as usize] else { continue };
            mailbox.notifications.push_back(notification);
            if Some(place) != caller {
                mailbox.wake();
            }
        }
        self.effects = effects;
        let waiting =
            |caller: u32| self.mailboxes[caller as usize].as_ref().is_some_and(Mailbox::has_notifications);
        caller.is_some_and(waiting)
    }

    /// The notifications of an agent that lives, oldest first, to be taken out.
    pub(crate) fn notifications(&mut self, place: u32) -> &mut VecDeque<Notification> {
        let mailbox = self.mailboxes[place as usize].as_mut().expect("an agent that calls has a mailbox");
        // It is woken again for what comes after this.
        mailbox.woken = false;
        &mut mailbox.notifications
    }

    /// The notification of an effect, and its recipient. An agent needs none for a request that it
    /// aborted itself.
    fn notification(&self, manager: usize, effect: &Effect<Owner>) -> Option<(u32, Notification)> {
        match effect {
            Effect::Granted { request, token } => {
                let owner = self.managers[manager].get(*request)?.data();
                Some((owner.mailbox, Notification::Granted { slot: owner.slot, token: token.get() }))
            }
            Effect::Aborted { .. } => None,
            Effect::Broken { cause, data, .. } => {
                Some((data.mailbox, Notification::Broken { slot: data.slot, cause: *cause }))
            }
        }
    }

    /// Notes that a request has begun to wait.
    pub(crate) fn queued(&mut self, manager: usize, request: RequestId) {
        let now = self.now();
        if let Some(owner) = self.managers[manager].data_mut(request) {
            owner.queued_at = now;
        }
    }
}

impl Mailbox {
    fn wake(&mut self) {
        if !self.woken {
            self.woken = self.waker.wake();
        }
    }

    fn has_notifications(&self) -> bool {
        !self.notifications.is_empty()
    }
}

impl Waker {
    /// Releases it, on the thread that it wakes.
    pub(crate) fn release(self) {
        let mode = sys::ThreadsafeFunctionReleaseMode::abort;
        // SAFETY: it is not used elsewhere now, and its environment lives until the cleanup hooks
        // have run.
        unsafe { sys::napi_release_threadsafe_function(self.0, mode) };
    }

    fn wake(&self) -> bool {
        let mode = sys::ThreadsafeFunctionCallMode::nonblocking;
        // SAFETY: the function lives while its mailbox is open, and the mailbox is under the mutex.
        unsafe { sys::napi_call_threadsafe_function(self.0, ptr::null_mut(), mode) == sys::Status::napi_ok }
    }
}
