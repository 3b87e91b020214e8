//! The future that requests a lock and waits for it.

use crate::{
    Error, IntoScope, Lock, Request,
    agent::{Agent, Submission},
    request::Extras,
    timer::Deadline,
};
use lockkeeper_core::{Mode, Options, RequestId, validate};
use std::{
    future::poll_fn,
    pin::Pin,
    task::{Context, Poll},
    time::{Duration, Instant},
};

/// How long a nested request waits before the search for a cycle.
const DEADLOCK_AFTER: Duration = Duration::from_secs(1);

/// The future of [`Request::acquire`]. Asks when first polled; dropping it gives the request up.
///
/// ```
/// # use lockkeeper::{Error, Locks};
/// # fn main() -> Result<(), Error> { smol::block_on(async {
/// let locks = Locks::new();
/// let _held = locks.acquire("a").await?;
/// let mut waits = locks.acquire("a");
/// assert!(locks.query().await?.pending.is_empty());
/// assert!(smol::future::poll_once(&mut waits).await.is_none());
/// assert_eq!(locks.query().await?.pending.len(), 1);
/// drop(waits);
/// assert!(locks.query().await?.pending.is_empty());
/// # Ok(()) }) }
/// ```
#[must_use = "futures do nothing unless awaited"]
pub struct Acquire<'a, S> {
    request: Request<'a, S>,
    stage: AcquireStage<'a>,
}

enum AcquireStage<'a> {
    New,
    Waiting(Waiting<'a>),
    Done,
}

/// A queued request. Dropping it cancels the request, whether it still waits or was granted in the
/// meantime.
struct Waiting<'a> {
    agent: &'a Agent,
    request: RequestId,
    /// Whether there is still something to give up: the request has neither ended nor become a
    /// lock.
    waits: bool,
    timed_out: bool,
    /// What can end the waiting early.
    limits: Option<Box<WaitLimits>>,
}

struct WaitLimits {
    extras: Box<Extras>,
    timeout: Option<Deadline>,
    /// When to look, once, whether the request waits in a cycle.
    deadlock_check: Option<Deadline>,
}

impl<'a, S: IntoScope> Acquire<'a, S> {
    #[inline]
    pub(crate) fn new(request: Request<'a, S>) -> Self {
        Self { request, stage: AcquireStage::New }
    }
}

impl<'a, S: IntoScope> Future for Acquire<'a, S> {
    type Output = Result<Lock<'a>, Error>;

    #[inline(always)]
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let Self { request: new, stage } = self.get_mut();
        if let AcquireStage::New = stage {
            match new.make(false, cx) {
                Submission::Granted(request, token) => {
                    *stage = AcquireStage::Done;
                    return Poll::Ready(Ok(Lock::new(new.agent, request, token)));
                }
                Submission::Queued(request) => {
                    // Its waker is set and its signal was polled; only the timers have to be
                    // started.
                    let mut waiting = Waiting::new(new, request);
                    let poll = waiting.poll_limits(cx);
                    *stage =
                        if poll.is_ready() { AcquireStage::Done } else { AcquireStage::Waiting(waiting) };
                    return poll.map(delivered);
                }
                Submission::Refused(error) => {
                    *stage = AcquireStage::Done;
                    return Poll::Ready(Err(*error));
                }
                Submission::Unavailable => {
                    *stage = AcquireStage::Done;
                    return Poll::Ready(delivered(Ok(None)));
                }
            }
        }
        let AcquireStage::Waiting(waiting) = stage else { panic!("`Acquire` was polled after it was done") };
        let poll = waiting.poll(cx);
        if poll.is_ready() {
            *stage = AcquireStage::Done;
        }
        poll.map(delivered)
    }
}

/// An unavailable lock counts as a timeout: an `Acquire` uses *if available* only with a timeout of
/// zero.
fn delivered<'a>(granted: Result<Option<Lock<'a>>, Error>) -> Result<Lock<'a>, Error> {
    granted?.ok_or(Error::TimedOut)
}

impl<'a> Waiting<'a> {
    #[cold]
    fn new<S: IntoScope>(new: &mut Request<'a, S>, request: RequestId) -> Self {
        let extras = new.extras.take();
        let limits = extras.map(|extras| Box::new(WaitLimits::new(extras, new.agent)));
        Self { agent: new.agent, request, waits: true, timed_out: false, limits }
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Result<Option<Lock<'a>>, Error>> {
        // §4.4 step 2.14.1: a signal counts until the lock is delivered.
        if let Some(WaitLimits { extras, .. }) = self.limits.as_deref_mut()
            && let Some(signal) = &mut extras.signal
            && let Poll::Ready(reason) = signal.as_mut().poll(cx)
        {
            return Poll::Ready(Err(Error::Aborted(reason)));
        }
        if let Poll::Ready(granted) = self.agent.poll_granted(self.request, cx.waker()) {
            self.waits = false;
            let lock = |token| Lock::new(self.agent, self.request, token);
            return Poll::Ready(granted.map(|token| token.map(lock)));
        }
        self.poll_limits(cx)
    }

    fn poll_limits(&mut self, cx: &Context<'_>) -> Poll<Result<Option<Lock<'a>>, Error>> {
        let Some(WaitLimits { timeout, deadlock_check, .. }) = self.limits.as_deref_mut() else {
            return Poll::Pending;
        };
        if timeout.as_mut().is_some_and(|timeout| timeout.poll(cx.waker())) {
            self.timed_out = true;
            return Poll::Ready(Err(Error::TimedOut));
        }
        if deadlock_check.as_mut().is_some_and(|deadlock_check| deadlock_check.poll(cx.waker())) {
            *deadlock_check = None;
            self.agent.report_deadlock(self.request);
        }
        Poll::Pending
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        if self.waits {
            self.agent.cancel(self.request, self.timed_out);
        }
    }
}

/// Makes a request that waits for nothing but a daemon's answer.
pub(crate) async fn attempt<S: IntoScope>(mut new: Request<'_, S>) -> Result<Option<Lock<'_>>, Error> {
    match poll_fn(|cx| Poll::Ready(new.make(true, cx))).await {
        Submission::Granted(request, token) => Ok(Some(Lock::new(new.agent, request, token))),
        Submission::Unavailable => Ok(None),
        Submission::Refused(error) => Err(*error),
        Submission::Queued(request) => {
            let mut waiting = Waiting::new(&mut new, request);
            poll_fn(|cx| waiting.poll(cx)).await
        }
    }
}

impl<S: IntoScope> Request<'_, S> {
    #[inline(always)]
    fn make(&mut self, if_available: bool, cx: &mut Context<'_>) -> Submission {
        let Self { agent, scope, mode, extras } = self;
        match (scope.one(*mode), extras) {
            (Some((name, mode)), None) => agent.ask_one(name, mode, if_available, cx.waker()),
            (_, extras) => make_any(agent, &scope.all(*mode), if_available, extras.as_deref_mut(), cx),
        }
    }
}

#[inline(never)]
fn make_any(
    agent: &Agent,
    scope: &[(&[u8], Mode)],
    if_available: bool,
    extras: Option<&mut Extras>,
    cx: &mut Context<'_>,
) -> Submission {
    let mut options = Options { if_available, ..Options::default() };
    match extras.map_or(Ok(None), |extras| prepare(extras, scope, &mut options, cx)) {
        Ok(info) => agent.ask(scope, options, info, cx.waker()),
        Err(error) => Submission::Refused(Box::new(error)),
    }
}

/// Rarely needed steps: §3.2.1 steps 8 and 9, after the earlier ones; nesting; a label.
#[cold]
fn prepare(
    extras: &mut Extras,
    scope: &[(&[u8], Mode)],
    options: &mut Options,
    cx: &mut Context<'_>,
) -> Result<Option<Box<str>>, Error> {
    options.steal = extras.steal;
    if let Some(signal) = &mut extras.signal {
        validate(scope, *options)?;
        if options.steal || options.if_available {
            return Err(Error::Unsupported("a signal goes with neither 'steal' nor 'if available'"));
        }
        if let Poll::Ready(reason) = signal.as_mut().poll(cx) {
            return Err(Error::Aborted(reason));
        }
    }
    // With a timeout of zero a free lock is still granted, although the daemon's answer takes time.
    // A steal never waits.
    if extras.timeout.take_if(|timeout| timeout.is_zero()).is_some() {
        options.if_available |= !options.steal;
    }
    (options.nested_in, options.refuse_deadlock) = (extras.nested_in, extras.refuse_deadlock);
    Ok(extras.info.take())
}

impl WaitLimits {
    fn new(extras: Box<Extras>, agent: &Agent) -> Self {
        // A timeout that does not fit into an `Instant` counts as none.
        let timeout = extras.timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        let suspicious = extras.nested_in.is_some() && agent.reports_deadlocks();
        let deadlock_check = suspicious.then(|| Deadline::at(Instant::now() + DEADLOCK_AFTER));
        Self { extras, timeout: timeout.map(Deadline::at), deadlock_check }
    }
}
