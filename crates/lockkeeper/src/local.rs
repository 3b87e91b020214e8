//! An agent of a manager of this process.

use crate::{
    Error, Inspection,
    agent::Submission,
    inspect,
    state::{ManagerHandle, Notes},
};
use event_listener::EventListener;
use lockkeeper_core::{Cause, ClientId, Mode, Name, Options, Outcome, RequestId, Snapshot, Token};
use std::{
    sync::Arc,
    task::{Poll, Waker},
};

pub(crate) struct Local {
    shared: Arc<ManagerHandle>,
    client: ClientId,
    /// Whether the client ends with this value. The one that came with the manager ends with the
    /// manager.
    ends: bool,
}

impl Local {
    /// The agent that came with the manager.
    pub(crate) fn root(shared: Arc<ManagerHandle>) -> Self {
        let client = shared.root;
        Self { shared, client, ends: false }
    }

    pub(crate) fn without_end(&self) -> Self {
        Self { shared: self.shared.clone(), client: self.client, ends: false }
    }

    pub(crate) fn client(&self) -> Result<Self, Error> {
        let client = self.shared.with(|state| state.manager.client()).map_err(Error::Limit)?;
        Ok(Self { shared: self.shared.clone(), client, ends: true })
    }

    pub(crate) fn client_id(&self) -> ClientId {
        self.client
    }

    #[inline(always)]
    pub(crate) fn ask_one(&self, name: &[u8], mode: Mode, if_available: bool, waker: &Waker) -> Submission {
        let options = Options { if_available, ..Options::default() };
        self.ask([(name, mode)], options, None, waker)
    }

    /// §3.2.1 steps 5 to 11. If the request has to wait, the task is woken when it is granted.
    ///
    /// Compiled for one name apart from several: a scope that is an array has no loops left.
    #[inline(always)]
    pub(crate) fn ask<'a>(
        &self,
        scope: impl AsRef<[(&'a [u8], Mode)]>,
        options: Options,
        info: Option<Box<str>>,
        waker: &Waker,
    ) -> Submission {
        let (Self { shared, client, .. }, scope) = (self, scope.as_ref());
        let note = info.map(|info| Box::new(Notes { info: Some(info), ..Notes::default() }));
        shared.with(|state| match state.manager.request(*client, scope, options, note, &mut state.effects) {
            Ok(Outcome::Granted { request, token }) => Submission::Granted(request, token),
            Ok(Outcome::Queued { request }) => {
                state.set_waker(request, waker);
                if let Some(notes) = state.notes(request) {
                    notes.queued_at = shared.now();
                }
                Submission::Queued(request)
            }
            Ok(Outcome::Unavailable) => Submission::Unavailable,
            Err(error) => Submission::Refused(Box::new(error.into())),
        })
    }

    pub(crate) fn poll_granted(
        &self,
        request: RequestId,
        waker: &Waker,
    ) -> Poll<Result<Option<Token>, Error>> {
        let (poll, _replaced) =
            self.shared.with(|state| match state.manager.get(request).map(|live| live.token()) {
                None => (Poll::Ready(Err(state.take_cause(request).into())), None),
                Some(Some(token)) => (Poll::Ready(Ok(Some(token))), None),
                Some(None) => (Poll::Pending, state.set_waker(request, waker)),
            });
        poll
    }

    pub(crate) fn cancel(&self, request: RequestId, _timed_out: bool) {
        self.shared.with(|state| state.cancel(request));
    }

    #[inline]
    pub(crate) fn release(&self, request: RequestId) -> Result<(), Cause> {
        // The note is dropped outside the mutex.
        self.shared.with(|state| state.release(request)).map(drop)
    }

    pub(crate) fn scope(&self, request: RequestId) -> Vec<(Name, Mode)> {
        self.shared.with(|state| match state.manager.get(request) {
            Some(lock) => lock.scope().map(|(name, mode)| (name.clone(), mode)).collect(),
            None => state.ended(request).map_or_else(Vec::new, |ended| ended.scope.clone()),
        })
    }

    pub(crate) fn broken(&self, request: RequestId) -> Option<Cause> {
        self.shared.with(|state| match state.manager.get(request) {
            Some(_) => None,
            None => Some(state.cause(request)),
        })
    }

    /// As [`listen_lost`](Self::listen_lost), without an allocation, for the one task that runs
    /// under the lock.
    pub(crate) fn poll_lost(&self, request: RequestId, waker: &Waker) -> Poll<Cause> {
        let (poll, _replaced) = self.shared.with(|state| match state.manager.get(request) {
            Some(_) => (Poll::Pending, state.set_waker(request, waker)),
            None => (Poll::Ready(state.cause(request)), None),
        });
        poll
    }

    /// Listening begins under the mutex: the lock cannot be broken between the check and the
    /// listening.
    pub(crate) fn listen_lost(&self, request: RequestId) -> Result<EventListener, Cause> {
        self.shared.with(|state| match state.notes(request) {
            Some(notes) => Ok(notes.lost.get_or_insert_default().listen()),
            None => Err(state.cause(request)),
        })
    }

    pub(crate) fn reports_deadlocks(&self) -> bool {
        self.shared.on_deadlock.is_some()
    }

    pub(crate) fn report_deadlock(&self, request: RequestId) {
        let deadlock = self.shared.with(|state| state.manager.deadlock(request));
        if let (Some(deadlock), Some(report)) = (deadlock, &self.shared.on_deadlock) {
            report(&deadlock);
        }
    }

    pub(crate) fn force_release(&self, name: Name) {
        self.shared.with(|state| state.manager.force_release(name, &mut state.effects));
    }

    pub(crate) fn query(&self) -> Snapshot {
        self.shared.with(|state| state.manager.query())
    }

    pub(crate) fn inspect(&self) -> Inspection {
        inspect::inspect(&self.shared)
    }
}

impl Drop for Local {
    fn drop(&mut self) {
        if self.ends {
            self.shared.with(|state| state.manager.client_gone(self.client, &mut state.effects));
        }
    }
}
