//! An abort signal with a reason.

use event_listener::Event;
use std::{
    error::Error,
    fmt,
    pin::Pin,
    sync::{Arc, OnceLock},
};

/// Aborts requests that wait, through its [signal](Self::signal).
///
/// ```
/// # use lockkeeper::{AbortController, Error, Locks};
/// # fn main() -> Result<(), Error> { smol::block_on(async {
/// let locks = Locks::new();
/// let held = locks.acquire("report").await?;
/// let controller = AbortController::new();
/// controller.abort("the user closed the window");
/// let refused = locks.request("report").signal(controller.signal()).acquire().await;
/// assert!(matches!(refused, Err(Error::Aborted(reason))
///     if reason.to_string() == "the user closed the window"));
/// # Ok(()) }) }
/// ```
#[derive(Clone, Debug, Default)]
pub struct AbortController {
    state: Arc<SignalState>,
}

/// Tells a request that it is no longer wanted. Made by an [`AbortController`]; may be given to any
/// number of requests.
///
/// A request takes any future as its signal, so a `tokio_util` `CancellationToken` works as well:
///
/// ```
/// # use lockkeeper::{Error, Locks};
/// # fn main() -> Result<(), Error> { smol::block_on(async {
/// # let locks = Locks::new();
/// # let _held = locks.acquire("report").await?;
/// let token = tokio_util::sync::CancellationToken::new();
/// token.cancel();
/// let refused = locks.request("report").signal(token.cancelled_owned()).acquire().await;
/// assert!(matches!(refused, Err(Error::Aborted(_))));
/// # Ok(()) }) }
/// ```
#[derive(Clone, Debug)]
pub struct AbortSignal {
    state: Arc<SignalState>,
}

#[derive(Debug, Default)]
struct SignalState {
    reason: OnceLock<AbortReason>,
    aborted: Event,
}

/// Why something was aborted: any error, or a text.
///
/// ```
/// # use lockkeeper::AbortReason;
/// let from_text = AbortReason::from("no longer wanted");
/// assert_eq!(from_text.to_string(), "no longer wanted");
/// let from_error = AbortReason::new(std::fmt::Error);
/// assert!(from_error.as_error().is::<std::fmt::Error>());
/// ```
#[derive(Clone)]
pub struct AbortReason(Arc<dyn Error + Send + Sync>);

impl AbortController {
    /// A controller that has not aborted yet.
    ///
    /// ```
    /// # use lockkeeper::AbortController;
    /// let controller = AbortController::new();
    /// let signal = controller.signal();
    /// assert!(signal.reason().is_none());
    /// ```
    pub fn new() -> Self {
        Self::default()
    }

    /// The signal that this controller gives.
    ///
    /// ```
    /// # use lockkeeper::AbortController;
    /// let controller = AbortController::new();
    /// let (before, also_before) = (controller.signal(), controller.signal());
    /// controller.abort("closed");
    /// for signal in [before, also_before, controller.signal()] {
    ///     assert_eq!(signal.reason().unwrap().to_string(), "closed");
    /// }
    /// ```
    pub fn signal(&self) -> AbortSignal {
        AbortSignal { state: self.state.clone() }
    }

    /// Aborts all requests that were given this controller's signal and are not done yet. The first
    /// reason stands.
    ///
    /// ```
    /// # use lockkeeper::AbortController;
    /// let controller = AbortController::new();
    /// controller.abort("first");
    /// controller.abort("second");
    /// assert_eq!(controller.signal().reason().unwrap().to_string(), "first");
    /// ```
    pub fn abort(&self, reason: impl Into<AbortReason>) {
        if self.state.reason.set(reason.into()).is_ok() {
            self.state.aborted.notify(usize::MAX);
        }
    }
}

impl AbortSignal {
    /// The reason, if the controller has aborted.
    ///
    /// ```
    /// # use lockkeeper::AbortController;
    /// let controller = AbortController::new();
    /// let signal = controller.signal();
    /// assert!(signal.reason().is_none());
    /// controller.abort("closed");
    /// assert_eq!(signal.reason().unwrap().to_string(), "closed");
    /// ```
    pub fn reason(&self) -> Option<&AbortReason> {
        self.state.reason.get()
    }

    /// Waits until the controller aborts.
    ///
    /// ```
    /// # use lockkeeper::AbortController;
    /// # smol::block_on(async {
    /// let controller = AbortController::new();
    /// let signal = controller.signal();
    /// let (reason, ()) = smol::future::zip(signal.aborted(), async { controller.abort("closed") }).await;
    /// assert_eq!(reason.to_string(), "closed");
    /// # })
    /// ```
    pub async fn aborted(&self) -> AbortReason {
        loop {
            if let Some(reason) = self.state.reason.get() {
                return reason.clone();
            }
            let listener = self.state.aborted.listen();
            if self.state.reason.get().is_none() {
                listener.await;
            }
        }
    }
}

impl IntoFuture for AbortSignal {
    type Output = AbortReason;
    type IntoFuture = Pin<Box<dyn Future<Output = AbortReason> + Send>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(async move { self.aborted().await })
    }
}

impl AbortReason {
    /// A reason that is an error of the caller's.
    ///
    /// ```
    /// # use lockkeeper::{AbortController, AbortReason};
    /// # use std::io;
    /// let controller = AbortController::new();
    /// controller.abort(AbortReason::new(io::Error::from(io::ErrorKind::BrokenPipe)));
    /// assert_eq!(controller.signal().reason().unwrap().to_string(), "broken pipe");
    /// ```
    pub fn new(error: impl Error + Send + Sync + 'static) -> Self {
        Self(Arc::new(error))
    }

    /// The error that was given as the reason.
    ///
    /// ```
    /// # use lockkeeper::AbortReason;
    /// # use std::io;
    /// let reason = AbortReason::new(io::Error::from(io::ErrorKind::BrokenPipe));
    /// let error = reason.as_error().downcast_ref::<io::Error>().unwrap();
    /// assert_eq!(error.kind(), io::ErrorKind::BrokenPipe);
    /// ```
    pub fn as_error(&self) -> &(dyn Error + 'static) {
        &*self.0
    }
}

impl From<&str> for AbortReason {
    fn from(reason: &str) -> Self {
        Self(Arc::from(Box::<dyn Error + Send + Sync>::from(reason)))
    }
}

impl From<String> for AbortReason {
    fn from(reason: String) -> Self {
        Self(Arc::from(Box::<dyn Error + Send + Sync>::from(reason)))
    }
}

/// The reason of a signal without an explicit one.
impl From<()> for AbortReason {
    fn from((): ()) -> Self {
        "signal is aborted without reason".into()
    }
}

impl fmt::Debug for AbortReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Display for AbortReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}
