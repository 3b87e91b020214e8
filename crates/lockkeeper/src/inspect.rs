//! The state of a manager, including what `query()` may not show.

use crate::state::ManagerHandle;
use lockkeeper_core::{ClientId, Deadlock, Live, Mode, Name, RequestId, Token};
use std::time::Duration;

/// The state of a manager at one instant, for diagnosing requests that hang.
///
/// ```
/// # use lockkeeper::{Error, Locks};
/// # fn main() -> Result<(), Error> { smol::block_on(async {
/// let locks = Locks::new();
/// let outer = locks.acquire("a").await?;
/// let mut waits = outer.request("a").acquire();
/// assert!(smol::future::poll_once(&mut waits).await.is_none());
/// let inspection = locks.inspect().await?;
/// assert_eq!((inspection.held.len(), inspection.pending.len()), (1, 1));
/// assert_eq!(inspection.deadlocks.len(), 1);
/// # Ok(()) }) }
/// ```
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct Inspection {
    /// The locks that are held, in the order of arrival of their requests.
    pub held: Vec<RequestInfo>,
    /// The requests that wait, in the order of arrival.
    pub pending: Vec<RequestInfo>,
    /// The cycles of requests that wait for each other.
    pub deadlocks: Vec<Deadlock>,
}

/// One request or lock.
///
/// ```
/// # use lockkeeper::{Error, Locks};
/// # fn main() -> Result<(), Error> { smol::block_on(async {
/// let locks = Locks::new();
/// let lock = locks.acquire("a").await?;
/// let mut waits = locks.acquire("a");
/// assert!(smol::future::poll_once(&mut waits).await.is_none());
/// let inspection = locks.inspect().await?;
/// let (held, pending) = (&inspection.held[0], &inspection.pending[0]);
/// assert_eq!((held.token, pending.token), (Some(lock.token()), None));
/// assert!(held.waited.is_none() && pending.waited.is_some());
/// # Ok(()) }) }
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct RequestInfo {
    /// The request.
    pub id: RequestId,
    /// Its names, sorted, each with its mode.
    pub scope: Vec<(Name, Mode)>,
    /// The agent that made it.
    pub client_id: ClientId,
    /// Its label, if it was given one.
    pub info: Option<String>,
    /// Its fencing token if it is held.
    pub token: Option<Token>,
    /// How long it has waited so far, if it still waits.
    pub waited: Option<Duration>,
    /// The request within which it was made.
    pub nested_in: Option<RequestId>,
    /// Whether it was made with `steal`.
    pub stole: bool,
    /// A description of the client, if a daemon keeps the locks: `pid 4711 ann@build7
    /// backup[4711]`.
    pub owner: Option<String>,
}

pub(crate) fn inspect(shared: &ManagerHandle) -> Inspection {
    let now = shared.now();
    shared.with(|state| {
        let mut inspection = Inspection { deadlocks: state.manager.deadlocks(), ..Inspection::default() };
        for live in state.manager.requests() {
            let list = match live.token() {
                Some(_) => &mut inspection.held,
                None => &mut inspection.pending,
            };
            list.push(describe(live, now));
        }
        inspection
    })
}

fn describe(live: Live<'_, crate::state::Note>, now: u64) -> RequestInfo {
    let notes = live.data().as_deref();
    let waited = notes.map(|notes| Duration::from_nanos(now.saturating_sub(notes.queued_at)));
    RequestInfo {
        id: live.id(),
        scope: live.scope().map(|(name, mode)| (name.clone(), mode)).collect(),
        client_id: live.client(),
        info: notes.and_then(|notes| notes.info.as_deref()).map(String::from),
        token: live.token(),
        waited: waited.filter(|_| live.token().is_none()),
        nested_in: live.nested_in(),
        stole: live.stole(),
        owner: None,
    }
}
