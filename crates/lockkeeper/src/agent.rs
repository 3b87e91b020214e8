//! An agent of a lock manager, on whose behalf requests are made. This is the only module that
//! distinguishes a manager in this process from a daemon's.

#[cfg(feature = "connect")]
use crate::remote::Remote;
use crate::{Error, Inspection, local::Local};
use event_listener::EventListener;
use lockkeeper_core::{Cause, ClientId, Mode, Name, Options, RequestId, Snapshot, Token};
use std::{
    task::{Poll, Waker},
    time::Instant,
};

pub(crate) enum Agent {
    Local(Local),
    #[cfg(feature = "connect")]
    Remote(Remote),
}

/// The outcome of making a request. Small, because it is passed along with every lock.
pub(crate) enum Submission {
    Granted(RequestId, Token),
    /// It waits, or a daemon has not answered yet. The task will be woken.
    Queued(RequestId),
    Unavailable,
    Refused(Box<Error>),
}

/// Has it done where the manager is.
macro_rules! there {
    ($agent:expr, $there:ident => $done:expr) => {
        match $agent {
            Agent::Local($there) => $done,
            #[cfg(feature = "connect")]
            Agent::Remote($there) => $done,
        }
    };
}

impl Agent {
    /// The same agent, for a guard, which does not keep the client from ending.
    pub(crate) fn without_end(&self) -> Self {
        match self {
            Self::Local(local) => Self::Local(local.without_end()),
            #[cfg(feature = "connect")]
            Self::Remote(remote) => Self::Remote(remote.without_end()),
        }
    }

    pub(crate) fn client_id(&self) -> ClientId {
        there!(self, there => there.client_id())
    }

    /// One name and nothing special, as nearly every request is. What it is called with fits in
    /// registers: a store on the way to the mutex costs more than it seems, because the mutex waits
    /// until all are done.
    ///
    /// This and [`ask`](Self::ask) are compiled once, and called from every form: what their
    /// callers inline is small.
    #[inline(never)]
    pub(crate) fn ask_one(&self, name: &[u8], mode: Mode, if_available: bool, waker: &Waker) -> Submission {
        there!(self, there => there.ask_one(name, mode, if_available, waker))
    }

    /// Several names, or one, with all options.
    #[inline(never)]
    pub(crate) fn ask(
        &self,
        scope: &[(&[u8], Mode)],
        options: Options,
        info: Option<Box<str>>,
        waker: &Waker,
    ) -> Submission {
        there!(self, there => there.ask(scope, options, info, waker))
    }

    /// Reads a daemon's messages on this thread, which is about to sleep, until it is `done` or
    /// that time has passed. It may return early.
    #[cfg_attr(not(feature = "connect"), expect(unused_variables, clippy::unused_self))]
    pub(crate) fn wait(&self, done: impl Fn() -> bool, until: Option<Instant>) {
        #[cfg(feature = "connect")]
        if let Self::Remote(remote) = self {
            remote.wait(done, until);
        }
    }

    /// The state of a request that was [`Queued`](Submission::Queued): its token, or none if it had
    /// *if available*.
    pub(crate) fn poll_granted(
        &self,
        request: RequestId,
        waker: &Waker,
    ) -> Poll<Result<Option<Token>, Error>> {
        there!(self, there => there.poll_granted(request, waker))
    }

    /// Ends a request that its owner gives up, whether it waits or is held; perhaps because its
    /// time was up.
    pub(crate) fn cancel(&self, request: RequestId, timed_out: bool) {
        there!(self, there => there.cancel(request, timed_out))
    }

    /// Releases a lock. If it had been broken: why.
    #[inline(never)]
    pub(crate) fn release(&self, request: RequestId) -> Result<(), Cause> {
        there!(self, there => there.release(request))
    }

    /// The same, and waits until no client sees the lock any more.
    pub(crate) async fn release_acked(&self, request: RequestId) -> Result<(), Cause> {
        match self {
            Self::Local(local) => local.release(request),
            #[cfg(feature = "connect")]
            Self::Remote(remote) => remote.release_acked(request).await,
        }
    }

    /// The names of a lock, also once it is broken.
    pub(crate) fn scope(&self, request: RequestId) -> Vec<(Name, Mode)> {
        there!(self, there => there.scope(request))
    }

    /// Why a lock is no longer held, if it is not.
    pub(crate) fn broken(&self, request: RequestId) -> Option<Cause> {
        there!(self, there => there.broken(request))
    }

    /// The same; if it is held, the task is woken when it is not any more.
    pub(crate) fn poll_lost(&self, request: RequestId, waker: &Waker) -> Poll<Cause> {
        there!(self, there => there.poll_lost(request, waker))
    }

    /// The same, for any number of tasks.
    pub(crate) fn listen_lost(&self, request: RequestId) -> Result<EventListener, Cause> {
        there!(self, there => there.listen_lost(request))
    }

    /// Whether there is a listener for deadlocks.
    pub(crate) fn reports_deadlocks(&self) -> bool {
        there!(self, there => there.reports_deadlocks())
    }

    /// Tells of a deadlock, if this request waits in one.
    pub(crate) fn report_deadlock(&self, request: RequestId) {
        there!(self, there => there.report_deadlock(request))
    }

    /// Another agent of the same manager.
    pub(crate) async fn client(&self) -> Result<Self, Error> {
        match self {
            Self::Local(local) => local.client().map(Self::Local),
            #[cfg(feature = "connect")]
            Self::Remote(remote) => remote.client().await.map(Self::Remote),
        }
    }

    pub(crate) async fn force_release(&self, name: Name) -> Result<(), Error> {
        match self {
            Self::Local(local) => local.force_release(name),
            #[cfg(feature = "connect")]
            Self::Remote(remote) => return remote.force_release(&name).await,
        }
        Ok(())
    }

    pub(crate) async fn query(&self) -> Result<Snapshot, Error> {
        match self {
            Self::Local(local) => Ok(local.query()),
            #[cfg(feature = "connect")]
            Self::Remote(remote) => remote.query().await,
        }
    }

    pub(crate) async fn inspect(&self) -> Result<Inspection, Error> {
        match self {
            Self::Local(local) => Ok(local.inspect()),
            #[cfg(feature = "connect")]
            Self::Remote(remote) => remote.inspect().await,
        }
    }
}
