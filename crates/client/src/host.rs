//! The callbacks of a session's host.

use lockkeeper_service::{Failure, Key, Outcome};

/// Receives the events of requests.
///
/// All methods but [`after`](Self::after) run on the thread that reads the socket or calls the
/// session, with the session's mutex held: in the order of events, one at a time. They must not
/// call the session or wait for anything.
pub trait Host: Send + 'static {
    /// The host's data of a request. Returned with its end.
    type Data: Send + 'static;

    /// Work to do without the mutex: waking tasks, for example.
    type After: Default;

    /// A request waits.
    fn queued(&mut self, key: Key, arrival: u64, data: &mut Self::Data, after: &mut Self::After) {
        let _ = (key, arrival, data, after);
    }

    /// A lock is held.
    fn granted(&mut self, key: Key, token: u64, data: &mut Self::Data, after: &mut Self::After);

    /// A request is over.
    fn over(&mut self, key: Key, outcome: Outcome, data: Self::Data, after: &mut Self::After);

    /// Something happened to the session as a whole.
    fn session(&mut self, news: Lifecycle, after: &mut Self::After) {
        let _ = (news, after);
    }

    /// Runs after the mutex is unlocked.
    fn after(after: Self::After) {
        drop(after);
    }
}

/// An event of a whole session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Lifecycle {
    /// There is a session.
    Opened {
        /// Its public id.
        client_id: String,
        /// Whether it is the same as before.
        resumed: bool,
    },
    /// The connection was lost. Another one is being made, and resumes the session if that still
    /// exists.
    Interrupted,
    /// The session was lost, and all it had. Another one is being opened.
    Lost,
    /// The server refuses a session. The next request asks for one again.
    Failed(Failure),
    /// The host closed the session.
    Closed,
}

/// An event of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Update {
    /// It waits.
    Queued {
        /// Its arrival.
        arrival: u64,
    },
    /// The lock is held.
    Granted {
        /// Its fencing token.
        token: u64,
    },
    /// It is over.
    Over(Outcome),
}

/// Receives the events of one request, as [`Host`] does: it must not call the session or wait for
/// anything.
pub type Listener = Box<dyn FnMut(Update) + Send>;

/// A host whose requests carry a [`Listener`] each.
#[derive(Clone, Copy, Debug, Default)]
pub struct Callbacks;

impl Host for Callbacks {
    type Data = Listener;
    type After = ();

    fn queued(&mut self, _: Key, arrival: u64, listener: &mut Listener, (): &mut ()) {
        listener(Update::Queued { arrival });
    }

    fn granted(&mut self, _: Key, token: u64, listener: &mut Listener, (): &mut ()) {
        listener(Update::Granted { token });
    }

    fn over(&mut self, _: Key, outcome: Outcome, mut listener: Listener, (): &mut ()) {
        listener(Update::Over(outcome));
    }
}
