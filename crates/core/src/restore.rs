//! A manager's state as data, for a host that stores it: on a disk, or in a replicated log.
//!
//! [`Manager::requests`] and [`Live`](crate::Live) already read out every live request. This is the
//! inverse. Only logical facts are stored: arrivals, tokens, scopes. What follows from them (which
//! request blocks which) is computed again and compared.

use crate::{
    manager::Manager,
    name::Name,
    queues::{Entry, Request},
    slab::NIL,
    types::{ClientId, Limit, Mode, RequestId, Token},
};
use alloc::vec::Vec;
use core::fmt;

/// A live request as it was read out of a manager.
///
/// ```
/// # use lockkeeper_core::{Manager, Mode, RestoredRequest};
/// let mut manager: Manager<&str> = Manager::default();
/// let client = manager.client()?;
/// let waiting = RestoredRequest {
///     arrival: 7,
///     client,
///     scope: vec![("a".into(), Mode::Exclusive)],
///     token: None,
///     stole: false,
///     nested_in: None,
///     data: "report",
/// };
/// // Nothing is before it, so it cannot be waiting.
/// assert!(manager.restore(8, vec![waiting]).is_err());
/// # Ok::<(), Box<dyn core::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RestoredRequest<T> {
    /// Its [arrival](RequestId::arrival).
    pub arrival: u64,
    /// The agent that made it, an agent of the manager it is restored into.
    pub client: ClientId,
    /// The names it asks for, each once, with their modes.
    pub scope: Vec<(Name, Mode)>,
    /// Its fencing token, if it is held.
    pub token: Option<Token>,
    /// Whether it was made with `steal`.
    pub stole: bool,
    /// The arrival of the live request within which it was made.
    pub nested_in: Option<u64>,
    /// The host's data.
    pub data: T,
}

/// Why requests cannot have been those of one manager.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum RestoreError {
    /// The manager has requests already.
    NotEmpty,
    /// Two requests have one arrival, or one is not below the next.
    Arrival(u64),
    /// The request of this arrival has no names, or one of them twice.
    Scope(u64),
    /// The request of this arrival is of a client that the manager does not have.
    UnknownClient(u64),
    /// The request of this arrival is nested in one that is not there before it.
    Nesting(u64),
    /// The request of this arrival is given as held and would wait, or the reverse.
    Grant(u64),
    /// A token is greater than the last that was given out.
    Token(u64),
    /// A limit stands against it.
    Limit(Limit),
}

impl fmt::Display for RestoreError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotEmpty => f.write_str("the manager has requests already"),
            Self::Arrival(at) => write!(f, "arrival {at} appears twice, or is not below the next arrival"),
            Self::Scope(at) => write!(f, "request {at} has no names, or a name twice"),
            Self::UnknownClient(at) => write!(f, "request {at} has an unknown client"),
            Self::Nesting(at) => write!(f, "request {at} is nested in an unknown request"),
            Self::Grant(at) => write!(f, "request {at} is recorded as held and has to wait, or the reverse"),
            Self::Token(at) => write!(f, "request {at} has a token that was never issued"),
            Self::Limit(limit) => limit.fmt(f),
        }
    }
}

impl core::error::Error for RestoreError {}

impl<T> Manager<T> {
    /// The arrival that the next request gets.
    ///
    /// ```
    /// # use lockkeeper_core::{Manager, Mode, Options};
    /// # let (mut manager, mut effects) = (Manager::default(), Vec::new());
    /// # let tab = manager.client()?;
    /// assert_eq!(manager.next_arrival(), 0);
    /// manager.request(tab, &[("a", Mode::Exclusive)], Options::default(), (), &mut effects)?;
    /// assert_eq!(manager.next_arrival(), 1);
    /// // One that does not want to wait leaves nothing behind.
    /// let options = Options { if_available: true, ..Options::default() };
    /// manager.request(tab, &[("a", Mode::Exclusive)], options, (), &mut effects)?;
    /// assert_eq!(manager.next_arrival(), 1);
    /// # Ok::<(), Box<dyn core::error::Error>>(())
    /// ```
    pub fn next_arrival(&self) -> u64 {
        self.next_arrival
    }

    /// How many names all live requests ask for: a scope of three names counts three times.
    ///
    /// ```
    /// # use lockkeeper_core::{Manager, Mode, Options};
    /// # let (mut manager, mut effects) = (Manager::default(), Vec::new());
    /// # let tab = manager.client()?;
    /// let scope = [("a", Mode::Exclusive), ("b", Mode::Shared)];
    /// manager.request(tab, &scope, Options::default(), (), &mut effects)?;
    /// assert_eq!(manager.len(), 2);
    /// assert!(!manager.is_empty());
    /// # Ok::<(), Box<dyn core::error::Error>>(())
    /// ```
    pub fn len(&self) -> usize {
        self.queues.entries.len() as usize
    }

    /// Whether there are no held or waiting requests.
    ///
    /// ```
    /// assert!(lockkeeper_core::Manager::<()>::default().is_empty());
    /// ```
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The largest fencing token that was given out, or what [`Config`](crate::Config) said; 0 if
    /// there is none.
    ///
    /// ```
    /// # use lockkeeper_core::{Config, Manager};
    /// assert_eq!(Manager::<()>::new(Config { last_token: 7, ..Config::default() }).last_token(), 7);
    /// ```
    pub fn last_token(&self) -> u64 {
        self.last_token
    }

    /// Gives out no token up to this one from now on.
    ///
    /// ```
    /// # use lockkeeper_core::Manager;
    /// let mut manager: Manager = Manager::default();
    /// manager.skip_tokens(41);
    /// assert_eq!(manager.last_token(), 41);
    /// manager.skip_tokens(7);
    /// assert_eq!(manager.last_token(), 41, "tokens never fall");
    /// ```
    pub fn skip_tokens(&mut self, last: u64) {
        self.last_token = self.last_token.max(last);
    }

    /// Whether a request for `scope` would be granted at once.
    ///
    /// ```
    /// # use lockkeeper_core::{Manager, Mode, Options};
    /// # let (mut manager, mut effects) = (Manager::default(), Vec::new());
    /// # let tab = manager.client()?;
    /// manager.request(tab, &[("a", Mode::Shared)], Options::default(), (), &mut effects)?;
    /// assert!(manager.is_available(&[("a", Mode::Shared), ("b", Mode::Exclusive)]));
    /// assert!(!manager.is_available(&[("a", Mode::Exclusive)]));
    /// # Ok::<(), Box<dyn core::error::Error>>(())
    /// ```
    pub fn is_available<N: AsRef<[u8]>>(&self, scope: &[(N, Mode)]) -> bool {
        scope.iter().all(|(name, mode)| {
            let queue = self.queues.table.find(name.as_ref()).map(|at| &self.queues.table[at]);
            queue.is_none_or(|queue| match mode {
                Mode::Exclusive => queue.tail == NIL,
                Mode::Shared => queue.exclusive == 0,
            })
        })
    }

    /// Restores the state into an empty manager. Its clients exist already; `next_arrival` is the
    /// value of [`next_arrival`](Self::next_arrival), the last token that of
    /// [`Config`](crate::Config).
    ///
    /// Returns the requests' new ids, in the order of their arrivals.
    ///
    /// # Errors
    ///
    /// A [`RestoreError`] if no manager can have had these requests. The manager is unusable then.
    ///
    /// ```
    /// # use lockkeeper_core::{Config, Manager, Mode, Options, RestoredRequest};
    /// # let (mut old, mut effects) = (Manager::default(), Vec::new());
    /// # let tab = old.client()?;
    /// for mode in [Mode::Shared, Mode::Exclusive] {
    ///     old.request(tab, &[("a", mode)], Options::default(), (), &mut effects)?;
    /// }
    /// let mut new = Manager::new(Config { last_token: old.last_token(), ..Config::default() });
    /// let client = new.client()?;
    /// let requests = old.requests().map(|live| RestoredRequest {
    ///     arrival: live.id().arrival(),
    ///     client,
    ///     scope: live.scope().map(|(name, mode)| (name.clone(), mode)).collect(),
    ///     token: live.token(),
    ///     stole: live.stole(),
    ///     nested_in: live.nested_in().map(|outer| outer.arrival()),
    ///     data: (),
    /// });
    /// let ids = new.restore(old.next_arrival(), requests.collect())?;
    /// assert_eq!(new.query().pending[0].request, ids[1]);
    /// # Ok::<(), Box<dyn core::error::Error>>(())
    /// ```
    pub fn restore(
        &mut self,
        next_arrival: u64,
        mut requests: Vec<RestoredRequest<T>>,
    ) -> Result<Vec<RequestId>, RestoreError> {
        if self.queues.entries.len() > 0 {
            return Err(RestoreError::NotEmpty);
        }
        let entries: usize = requests.iter().map(|request| request.scope.len()).sum();
        if entries > self.limits.requests.min(NIL - 1) as usize {
            return Err(RestoreError::Limit(Limit::Requests(self.limits.requests)));
        }
        requests.sort_unstable_by_key(|request| request.arrival);
        for (i, request) in requests.iter().enumerate() {
            let next = requests.get(i + 1).map_or(next_arrival, |next| next.arrival);
            if request.arrival >= next {
                return Err(RestoreError::Arrival(request.arrival));
            }
        }
        self.next_arrival = next_arrival;
        let mut kept = Vec::with_capacity(requests.len());
        for request in &requests {
            kept.push((request.arrival, request.token, request.nested_in));
        }
        // In every queue a steal comes first; the others are in the order of arrival.
        let mut ids = alloc::vec![RequestId { arrival: 0, slot: NIL }; requests.len()];
        let mut others = Vec::with_capacity(requests.len());
        for (at, request) in requests.into_iter().enumerate() {
            match request.stole {
                true => ids[at] = self.restore_one(request)?,
                false => others.push((at, request)),
            }
        }
        for (at, request) in others {
            ids[at] = self.restore_one(request)?;
        }
        for (&id, (arrival, token, nested_in)) in ids.iter().zip(kept) {
            self.link_to_client(id.slot);
            let held = self.queues.request(id.slot).blocked == 0;
            if held != token.is_some() {
                return Err(RestoreError::Grant(arrival));
            }
            if token.is_some_and(|token| token.get() > self.last_token) {
                return Err(RestoreError::Token(arrival));
            }
            if let Some(outer) = nested_in {
                let outer = ids.binary_search_by_key(&outer, |id| id.arrival).ok();
                let outer = outer.filter(|_| nested_in < Some(arrival));
                self.declare_nesting(id.slot, ids[outer.ok_or(RestoreError::Nesting(arrival))?]);
            }
        }
        Ok(ids)
    }

    /// Puts a request at the end of all its queues. It is in its client's list later.
    fn restore_one(&mut self, restored: RestoredRequest<T>) -> Result<RequestId, RestoreError> {
        let RestoredRequest { arrival, client, scope, token, stole, data, .. } = restored;
        let owner = self.clients.get(client.slot).filter(|owner| owner.serial == client.serial);
        owner.ok_or(RestoreError::UnknownClient(arrival))?;
        let [(name, mode), others @ ..] = &scope[..] else { return Err(RestoreError::Scope(arrival)) };
        let (slot, mode) = (self.queues.entries.vacant(), *mode);
        let queue = self.queues.table.find_or_insert(name.as_ref());
        let (prev, blocked) = self.queues.table[queue].push(slot, mode);
        let record = Some(Request {
            arrival,
            token,
            client: client.slot,
            prev: NIL,
            next: NIL,
            nesting: NIL,
            blocked: u16::from(blocked),
            thief: stole,
            data,
        });
        let (next, sibling) = (NIL, NIL);
        self.queues.insert(Entry { queue, prev, next, mode, blocked, request: slot, sibling, record });
        let names = self.queues.entries.len();
        self.queues.join_others(slot, others);
        match (self.queues.entries.len() - names) as usize == others.len() {
            true => Ok(RequestId { arrival, slot }),
            false => Err(RestoreError::Scope(arrival)),
        }
    }

    fn link_to_client(&mut self, slot: u32) {
        let owner = &mut self.clients[self.queues.request(slot).client];
        let prev = core::mem::replace(&mut owner.last, slot);
        owner.live += 1;
        match prev {
            NIL => owner.first = slot,
            prev => self.queues.request_mut(prev).next = slot,
        }
        self.queues.request_mut(slot).prev = prev;
    }
}
