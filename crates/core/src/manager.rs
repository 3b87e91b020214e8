//! The lock manager (§2.2): the commands that change it, and the effects they have.

use crate::{
    name::is_reserved,
    nesting::Nesting,
    queues::{Entry, Queues, Request},
    slab::{NIL, Slab},
    types::{Cause, ClientId, Effect, Limit, Limits, Mode, Options, Outcome, RequestError, RequestId, Token},
};
use alloc::vec::Vec;
use core::num::NonZeroU64;

/// One lock manager: the locks and lock requests of one storage bucket.
///
/// `T` is data of the host's that rides with each request: a waker, a reply address, a label.
///
/// ```
/// # use lockkeeper_core::{Effect, Manager, Mode, Options};
/// let mut manager: Manager<&str> = Manager::default();
/// let mut effects = Vec::new();
/// let (tab, scope) = (manager.client()?, [("cart", Mode::Exclusive)]);
/// manager.request(tab, &scope, Options::default(), "first", &mut effects)?;
/// manager.request(tab, &scope, Options::default(), "second", &mut effects)?;
/// manager.client_gone(tab, &mut effects);
/// assert!(matches!(effects[0], Effect::Aborted { data: "second", .. }));
/// assert!(matches!(effects[1], Effect::Broken { data: "first", .. }));
/// # Ok::<(), Box<dyn core::error::Error>>(())
/// ```
///
/// # Invariants
///
/// * A request is held if and only if none of its entries is blocked; `blocked` counts those that
///   are.
/// * In every queue the open entries come first: one exclusive entry, or shared entries only.
/// * A queue without an entry is one of a bounded number that are kept to be found again.
/// * A client's list has its live requests in the order of arrival.
/// * Every command costs O(names in the scope) and what it grants, breaks or sets back to waiting.
///   Nothing scans all names, requests or clients; nothing recurses.
pub struct Manager<T = ()> {
    pub(crate) queues: Queues<T>,
    pub(crate) clients: Slab<Client>,
    pub(crate) nesting: Nesting,
    /// Requests whose last blocked entry opened during the current command. Empty between commands.
    ready: Vec<u32>,
    pub(crate) next_arrival: u64,
    next_client: u64,
    pub(crate) last_token: u64,
    pub(crate) limits: Limits,
}

/// How a manager starts.
///
/// ```
/// # use lockkeeper_core::{Config, Manager, Mode, Options, Outcome};
/// // A manager that starts again gives out greater tokens than it did before.
/// let mut manager: Manager = Manager::new(Config { last_token: 41, ..Config::default() });
/// let tab = manager.client()?;
/// let outcome = manager.request(tab, &[("a", Mode::Shared)], Options::default(), (), &mut Vec::new())?;
/// assert!(matches!(outcome, Outcome::Granted { token, .. } if token.get() == 42));
/// # Ok::<(), Box<dyn core::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct Config {
    /// The limits of the manager.
    pub limits: Limits,
    /// The largest fencing token that an earlier life of this manager gave out; 0 if there was
    /// none.
    pub last_token: u64,
    /// Seeds the hash of names. Should be random if names are untrusted; it has no other effect.
    pub hash_seed: u64,
}

/// An agent.
pub(crate) struct Client {
    pub(crate) serial: u64,
    /// Its live requests in the order of arrival.
    pub(crate) first: u32,
    pub(crate) last: u32,
    pub(crate) live: u32,
}

impl<T> Default for Manager<T> {
    fn default() -> Self {
        Self::new(Config::default())
    }
}

impl<T> Manager<T> {
    /// A manager without held or waiting requests.
    ///
    /// ```
    /// # use lockkeeper_core::{Config, Limits, Manager, Snapshot};
    /// let limits = Limits { clients: 1, ..Limits::default() };
    /// let mut manager: Manager = Manager::new(Config { limits, ..Config::default() });
    /// assert_eq!(manager.query(), Snapshot::default());
    /// assert!(manager.client().is_ok());
    /// assert!(manager.client().is_err());
    /// ```
    pub fn new(config: Config) -> Self {
        Self {
            queues: Queues::new(config.hash_seed),
            clients: Slab::new(),
            nesting: Nesting::new(),
            ready: Vec::new(),
            next_arrival: 0,
            next_client: 0,
            last_token: config.last_token,
            limits: config.limits,
        }
    }

    /// Makes an agent, which owns the requests made in its name until it is
    /// [gone](Self::client_gone).
    ///
    /// # Errors
    ///
    /// [`Limit::Clients`].
    ///
    /// ```
    /// # use lockkeeper_core::Manager;
    /// let mut manager: Manager = Manager::default();
    /// let tab = manager.client()?;
    /// manager.client_gone(tab, &mut Vec::new());
    /// assert_ne!(manager.client()?, tab, "ids are not used again");
    /// # Ok::<(), Box<dyn core::error::Error>>(())
    /// ```
    pub fn client(&mut self) -> Result<ClientId, Limit> {
        if self.clients.len() >= self.limits.clients {
            return Err(Limit::Clients(self.limits.clients));
        }
        let serial = self.next_client;
        self.next_client += 1;
        let slot = self.clients.insert(Client { serial, first: NIL, last: NIL, live: 0 });
        Ok(ClientId { serial, slot })
    }

    /// Requests a lock on all names of `scope` at one point of the manager's one order (§4.1).
    ///
    /// `data` is kept while the request lives; of one that is refused or unavailable it is dropped.
    /// A name that stands twice counts once, exclusive if either asks for that. Only a `steal` has
    /// effects on others: first those whom it [broke](Effect::Broken), in the order of their
    /// grants, before it was granted itself; then those whom the broken requests' other names [let
    /// in](Effect::Granted), after it.
    ///
    /// # Errors
    ///
    /// A [`RequestError`] says why the request was refused; nothing has changed then.
    ///
    /// ```
    /// # use lockkeeper_core::{Manager, Mode, Options, Outcome};
    /// # let (mut manager, mut effects) = (Manager::default(), Vec::new());
    /// # let tab = manager.client()?;
    /// let both = [("from", Mode::Exclusive), ("to", Mode::Exclusive)];
    /// let outcome = manager.request(tab, &both, Options::default(), (), &mut effects)?;
    /// assert!(matches!(outcome, Outcome::Granted { .. }));
    /// let outcome = manager.request(tab, &[("to", Mode::Shared)], Options::default(), (), &mut effects)?;
    /// assert!(matches!(outcome, Outcome::Queued { .. }));
    /// assert!(effects.is_empty(), "only a steal has effects on others");
    /// # Ok::<(), Box<dyn core::error::Error>>(())
    /// ```
    #[inline(always)]
    pub fn request<N: AsRef<[u8]>>(
        &mut self,
        client: ClientId,
        scope: &[(N, Mode)],
        options: Options,
        data: T,
        effects: &mut Vec<Effect<T>>,
    ) -> Result<Outcome, RequestError> {
        let longest = check(scope, options)?;
        let [(name, mode), others @ ..] = scope else { return Err(RequestError::EmptyScope) };
        let limits = &self.limits;
        if longest > limits.name_bytes {
            return Err(Limit::NameBytes(limits.name_bytes).into());
        }
        if scope.len() > usize::from(limits.names_per_scope) {
            return Err(Limit::NamesPerScope(limits.names_per_scope).into());
        }
        if self.queues.entries.len() as usize + scope.len() > limits.requests.min(NIL - 1) as usize {
            return Err(Limit::Requests(limits.requests).into());
        }
        let owner = self.clients.get_mut(client.slot).filter(|owner| owner.serial == client.serial);
        let owner = owner.ok_or(RequestError::UnknownClient)?;
        if owner.live >= self.limits.requests_per_client {
            return Err(Limit::RequestsPerClient(self.limits.requests_per_client).into());
        }
        let slot = self.queues.entries.vacant();
        let prev = core::mem::replace(&mut owner.last, slot);
        match prev {
            NIL => owner.first = slot,
            prev => self.queues.request_mut(prev).next = slot,
        }
        owner.live += 1;
        let arrival = self.next_arrival;
        self.next_arrival += 1;
        let request = RequestId { arrival, slot };
        let (client, thief) = (client.slot, options.steal);
        let mut record =
            Request { arrival, token: None, client, prev, next: NIL, nesting: NIL, blocked: 0, thief, data };

        if thief {
            let token = self.steal(request, scope, options, record, effects);
            return Ok(Outcome::Granted { request, token });
        }
        let (mode, queue) = (*mode, self.queues.table.find_or_insert(name.as_ref()));
        let (prev, blocked) = self.queues.table[queue].push(slot, mode);
        let mut token = None;
        if !blocked && others.is_empty() {
            token = Some(next_token(&mut self.last_token));
        }
        (record.token, record.blocked) = (token, u16::from(blocked));
        let (next, sibling, record) = (NIL, NIL, Some(record));
        self.queues.insert(Entry { queue, prev, next, mode, blocked, request: slot, sibling, record });
        if !others.is_empty() && self.queues.join_others(slot, others) == 0 {
            token = Some(next_token(&mut self.last_token));
            self.queues.request_mut(slot).token = token;
        }
        if let Some(outer) = options.nested_in {
            self.declare_nesting(slot, outer);
        }
        if let Some(token) = token {
            return Ok(Outcome::Granted { request, token });
        }
        if options.if_available {
            self.withdraw(request);
            return Ok(Outcome::Unavailable);
        }
        if options.refuse_deadlock
            && let Some(deadlock) = self.deadlock(request)
        {
            self.withdraw(request);
            return Err(RequestError::Deadlock(deadlock));
        }
        Ok(Outcome::Queued { request })
    }

    /// Takes back the request that was made last, and waits, as if it had never been made: its
    /// arrival is given to the next one. For a host that wants to know what would happen.
    ///
    /// ```
    /// # use lockkeeper_core::{Manager, Mode, Options, Outcome};
    /// # let (mut manager, mut effects) = (Manager::default(), Vec::new());
    /// # let tab = manager.client()?;
    /// manager.request(tab, &[("a", Mode::Exclusive)], Options::default(), (), &mut effects)?;
    /// let second = manager.request(tab, &[("a", Mode::Exclusive)], Options::default(), (), &mut effects)?;
    /// let Outcome::Queued { request } = second else { panic!() };
    /// manager.withdraw(request);
    /// assert_eq!((manager.len(), manager.next_arrival()), (1, 1));
    /// # Ok::<(), Box<dyn core::error::Error>>(())
    /// ```
    #[cold]
    pub fn withdraw(&mut self, request: RequestId) {
        let last = request.arrival + 1 == self.next_arrival;
        if last && self.remove(request, |waiting| waiting.token.is_none()).is_some() {
            self.next_arrival = request.arrival;
        }
        debug_assert!(self.ready.is_empty(), "the last in a queue blocks nobody when it goes");
    }

    /// Enters all its queues at the front, then breaks their holders. No request may leave a queue
    /// before that, so that no other request is granted in between. A waiting scope with an open
    /// entry there waits for that name again.
    #[cold]
    fn steal<N: AsRef<[u8]>>(
        &mut self,
        request: RequestId,
        scope: &[(N, Mode)],
        options: Options,
        record: Request<T>,
        effects: &mut Vec<Effect<T>>,
    ) -> Token {
        let names = || scope.iter().map(|(name, _)| name.as_ref());
        let victims = self.holders(names());
        let token = next_token(&mut self.last_token);
        self.queues.join_first(request.slot, names(), Request { token: Some(token), ..record });
        if let Some(outer) = options.nested_in {
            self.declare_nesting(request.slot, outer);
        }
        victims.into_iter().for_each(|victim| self.break_lock(victim, Cause::Stolen, effects));
        self.grant_ready(effects);
        token
    }

    /// Releases a held lock (§4.2) and grants the requests that become grantable, in the order of
    /// arrival.
    ///
    /// `None`, and no effect, if the request is not held: it still waits, or has ended.
    ///
    /// ```
    /// # use lockkeeper_core::{Effect, Manager, Mode, Options};
    /// # let (mut manager, mut effects, scope) = (Manager::default(), Vec::new(), [("a", Mode::Exclusive)]);
    /// # let tab = manager.client()?;
    /// manager.request(tab, &scope, Options::default(), "first", &mut effects)?;
    /// manager.request(tab, &scope, Options::default(), "second", &mut effects)?;
    /// let (first, second) = (manager.query().held[0].request, manager.query().pending[0].request);
    /// assert_eq!(manager.release(second, &mut effects), None, "it waits");
    /// assert_eq!(manager.release(first, &mut effects), Some("first"));
    /// assert!(matches!(effects[..], [Effect::Granted { request, .. }] if request == second));
    /// # Ok::<(), Box<dyn core::error::Error>>(())
    /// ```
    #[inline(always)]
    pub fn release(&mut self, request: RequestId, effects: &mut Vec<Effect<T>>) -> Option<T> {
        let data = self.remove(request, |lock| lock.token.is_some())?;
        self.grant_ready(effects);
        Some(data)
    }

    /// Aborts a waiting request (§4.3) and grants the requests that become grantable, in the order
    /// of arrival.
    ///
    /// `false`, and no effect, if the request does not wait: once granted it is past aborting.
    ///
    /// ```
    /// # use lockkeeper_core::{Effect, Manager, Mode, Options};
    /// # let (mut manager, mut effects) = (Manager::default(), Vec::new());
    /// # let tab = manager.client()?;
    /// for mode in [Mode::Shared, Mode::Exclusive, Mode::Shared] {
    ///     manager.request(tab, &[("a", mode)], Options::default(), (), &mut effects)?;
    /// }
    /// let [writer, reader] = [0, 1].map(|at| manager.query().pending[at].request);
    /// assert!(manager.abort(writer, &mut effects));
    /// assert!(matches!(effects[0], Effect::Aborted { request, .. } if request == writer));
    /// assert!(matches!(effects[1], Effect::Granted { request, .. } if request == reader));
    /// assert!(!manager.abort(reader, &mut effects), "it is granted");
    /// # Ok::<(), Box<dyn core::error::Error>>(())
    /// ```
    pub fn abort(&mut self, request: RequestId, effects: &mut Vec<Effect<T>>) -> bool {
        let Some(data) = self.remove(request, |waiting| waiting.token.is_none()) else { return false };
        effects.push(Effect::Aborted { request, data });
        self.grant_ready(effects);
        true
    }

    /// Terminates remaining locks and requests (§2.6) of an agent: aborts its requests, then breaks
    /// its locks, each in the order of arrival, and forgets it.
    ///
    /// Requests that become grantable are granted before the next step, even if one is the agent's
    /// own, which then ends with its locks. `false`, and no effect, if the client has ended
    /// already.
    ///
    /// ```
    /// # use lockkeeper_core::{Cause, Effect, Manager, Mode, Options};
    /// # let (mut manager, mut effects) = (Manager::default(), Vec::new());
    /// # let (tab, worker) = (manager.client()?, manager.client()?);
    /// for client in [tab, worker] {
    ///     manager.request(client, &[("a", Mode::Exclusive)], Options::default(), (), &mut effects)?;
    /// }
    /// assert!(manager.client_gone(tab, &mut effects));
    /// assert!(matches!(effects[..], [Effect::Broken { cause: Cause::Lost, .. }, Effect::Granted { .. }]));
    /// assert_eq!(manager.query().held[0].client, worker);
    /// assert!(!manager.client_gone(tab, &mut effects));
    /// # Ok::<(), Box<dyn core::error::Error>>(())
    /// ```
    pub fn client_gone(&mut self, client: ClientId, effects: &mut Vec<Effect<T>>) -> bool {
        let Some(known) = self.clients.get(client.slot).filter(|known| known.serial == client.serial) else {
            return false;
        };
        let mut next = known.first;
        while next != NIL {
            let id = self.request_id(next);
            next = self.queues.request(next).next;
            self.abort(id, effects);
        }
        while self.clients[client.slot].first != NIL {
            let id = self.request_id(self.clients[client.slot].first);
            self.break_lock(id, Cause::Lost, effects);
            self.grant_ready(effects);
        }
        self.clients.remove(client.slot);
        true
    }

    /// Breaks every held request that has `name` in its scope, in the order of their grants, as a
    /// steal does, then grants the requests that become grantable. Returns how many were broken.
    ///
    /// ```
    /// # use lockkeeper_core::{Cause, Effect, Manager, Mode, Options};
    /// # let (mut manager, mut effects) = (Manager::default(), Vec::new());
    /// # let tab = manager.client()?;
    /// for _ in 0..2 {
    ///     manager.request(tab, &[("a", Mode::Shared)], Options::default(), (), &mut effects)?;
    /// }
    /// assert_eq!(manager.force_release("a", &mut effects), 2);
    /// assert!(effects.iter().all(|effect| matches!(effect, Effect::Broken { cause: Cause::Stolen, .. })));
    /// assert_eq!(manager.force_release("a", &mut effects), 0);
    /// # Ok::<(), Box<dyn core::error::Error>>(())
    /// ```
    pub fn force_release(&mut self, name: impl AsRef<[u8]>, effects: &mut Vec<Effect<T>>) -> usize {
        let victims = self.holders([name.as_ref()]);
        for &victim in &victims {
            self.break_lock(victim, Cause::Stolen, effects);
        }
        self.grant_ready(effects);
        victims.len()
    }

    pub(crate) fn declare_nesting(&mut self, slot: u32, outer: RequestId) {
        if self.live(outer).is_none() {
            return;
        }
        let mut around = self.queues.request(outer.slot).nesting;
        if around == NIL {
            around = self.nesting.insert(outer.slot);
            self.queues.request_mut(outer.slot).nesting = around;
        }
        let inner = self.nesting.insert(slot);
        self.queues.request_mut(slot).nesting = inner;
        self.nesting.nest(inner, around);
    }

    /// About how many bytes of memory it takes. They follow the most that was live at one time, not
    /// what is live now. Names of more than 24 bytes, and what `T` points at, are not among them.
    ///
    /// ```
    /// # use lockkeeper_core::{Manager, Mode, Options};
    /// # let (mut manager, mut effects) = (Manager::default(), Vec::new());
    /// # let tab = manager.client()?;
    /// let before = manager.bytes();
    /// for _ in 0..1_000 {
    ///     manager.request(tab, &[("a", Mode::Shared)], Options::default(), (), &mut effects)?;
    /// }
    /// assert!(manager.bytes() > before + 64_000);
    /// # Ok::<(), Box<dyn core::error::Error>>(())
    /// ```
    pub fn bytes(&self) -> usize {
        let slabs = self.queues.entries.bytes() + self.clients.bytes() + self.nesting.bytes();
        let ready = self.ready.capacity() * size_of::<u32>();
        size_of::<Self>() + slabs + self.queues.table.bytes() + ready
    }

    /// Gives back the memory of requests that have ended, if all have: a manager keeps it for those
    /// to come.
    ///
    /// ```
    /// # use lockkeeper_core::{Manager, Mode, Options, Outcome};
    /// # let (mut manager, mut effects) = (Manager::default(), Vec::new());
    /// # let tab = manager.client()?;
    /// let before = manager.bytes();
    /// let outcome = manager.request(tab, &[("a", Mode::Shared)], Options::default(), (), &mut effects)?;
    /// let Outcome::Granted { request, .. } = outcome else { panic!() };
    /// manager.release(request, &mut effects);
    /// assert!(manager.bytes() > before);
    /// manager.shrink();
    /// assert_eq!(manager.bytes(), before);
    /// # Ok::<(), Box<dyn core::error::Error>>(())
    /// ```
    pub fn shrink(&mut self) {
        if self.is_empty() {
            self.queues.table.clear();
            (self.queues.entries, self.nesting, self.ready) = (Slab::new(), Nesting::new(), Vec::new());
        }
    }

    /// The held requests on any of `names`, in the order of their grants: those whom a steal or
    /// [`force_release`](Self::force_release) would break.
    ///
    /// ```
    /// # use lockkeeper_core::{Manager, Mode, Options};
    /// # let (mut manager, mut effects) = (Manager::default(), Vec::new());
    /// # let tab = manager.client()?;
    /// for name in ["a", "b", "b"] {
    ///     manager.request(tab, &[(name, Mode::Exclusive)], Options::default(), (), &mut effects)?;
    /// }
    /// assert_eq!(manager.holders([&b"b"[..]]), [manager.query().held[1].request]);
    /// # Ok::<(), Box<dyn core::error::Error>>(())
    /// ```
    pub fn holders<'a>(&self, names: impl IntoIterator<Item = &'a [u8]>) -> Vec<RequestId> {
        let mut holders = Vec::new();
        for queue in names.into_iter().filter_map(|name| self.queues.table.find(name)) {
            let open = self.queues.walk(queue).take_while(|entry| !entry.blocked);
            holders.extend(open.filter_map(|entry| {
                Some((self.queues.request(entry.request).token?, self.request_id(entry.request)))
            }));
        }
        holders.sort_unstable();
        holders.dedup();
        holders.into_iter().map(|(_, request)| request).collect()
    }

    fn break_lock(&mut self, request: RequestId, cause: Cause, effects: &mut Vec<Effect<T>>) {
        let Some(lock) = self.get(request) else { return };
        let scope = lock.scope().map(|(name, mode)| (name.clone(), mode)).collect();
        let data = self.remove(request, |_| true);
        effects.extend(data.map(|data| Effect::Broken { request, cause, scope, data }));
    }

    /// Takes a request, if it lives and is `wanted`, out of its queues, its client's list and the
    /// nesting. Requests that become grantable are `ready`.
    #[inline(always)]
    fn remove(&mut self, id: RequestId, wanted: impl FnOnce(&Request<T>) -> bool) -> Option<T> {
        let Self { queues, clients, ready, .. } = self;
        let first = queues.entries.remove_if(id.slot, |entry| {
            entry.record.as_ref().is_some_and(|live| live.arrival == id.arrival && wanted(live))
        })?;
        queues.leave(&first, ready);
        let mut sibling = first.sibling;
        while sibling != NIL {
            let entry = queues.entries.remove(sibling);
            queues.leave(&entry, ready);
            sibling = entry.sibling;
        }
        let request = first.record?;
        let owner = &mut clients[request.client];
        owner.live -= 1;
        match request.prev {
            NIL => owner.first = request.next,
            prev => queues.request_mut(prev).next = request.next,
        }
        match request.next {
            NIL => owner.last = request.prev,
            next => queues.request_mut(next).prev = request.prev,
        }
        if request.nesting != NIL {
            self.nesting.remove(request.nesting);
        }
        Some(request.data)
    }

    /// §4.4: the `ready` requests become locks, in the order of arrival, whichever of their names
    /// they waited for last.
    #[inline]
    fn grant_ready(&mut self, effects: &mut Vec<Effect<T>>) {
        if !self.ready.is_empty() {
            self.grant_all(effects);
        }
    }

    fn grant_all(&mut self, effects: &mut Vec<Effect<T>>) {
        let mut ready = core::mem::take(&mut self.ready);
        ready.sort_unstable_by_key(|&slot| self.queues.request(slot).arrival);
        for slot in ready.drain(..) {
            let token = next_token(&mut self.last_token);
            self.queues.request_mut(slot).token = Some(token);
            effects.push(Effect::Granted { request: self.request_id(slot), token });
        }
        self.ready = ready;
    }

    #[inline]
    pub(crate) fn live(&self, request: RequestId) -> Option<&Request<T>> {
        let record = self.queues.entries.get(request.slot)?.record.as_ref();
        record.filter(|live| live.arrival == request.arrival)
    }
}

#[inline]
fn next_token(last: &mut u64) -> Token {
    *last += 1;
    Token(NonZeroU64::new(*last).expect("2⁶⁴ grants do not happen"))
}

/// §3.2.1 steps 5 to 7: whether a manager would accept such a request, apart from its limits.
///
/// [`Manager::request`] checks this itself. A host with further steps between these and the
/// request, such as a signal that is aborted already (step 9), checks it first.
///
/// # Errors
///
/// [`RequestError::EmptyScope`], [`RequestError::ReservedName`] or [`RequestError::Unsupported`].
///
/// ```
/// # use lockkeeper_core::{Mode, Options, RequestError, validate};
/// assert_eq!(validate(&[("a", Mode::Shared)], Options::default()), Ok(()));
/// assert_eq!(validate(&[("-a", Mode::Shared)], Options::default()), Err(RequestError::ReservedName));
/// let steal = Options { steal: true, ..Options::default() };
/// assert!(matches!(validate(&[("a", Mode::Shared)], steal), Err(RequestError::Unsupported(_))));
/// ```
pub fn validate<N: AsRef<[u8]>>(scope: &[(N, Mode)], options: Options) -> Result<(), RequestError> {
    check(scope, options).map(drop)
}

/// One pass over the scope; errors are reported in the order of the draft's steps. Returns the
/// length of the longest name.
#[inline]
fn check<N: AsRef<[u8]>>(scope: &[(N, Mode)], options: Options) -> Result<usize, RequestError> {
    let [first, others @ ..] = scope else { return Err(RequestError::EmptyScope) };
    let (mut reserved, mut shared, mut longest) = (false, false, 0);
    let mut look = |(name, mode): &(N, Mode)| {
        let name = name.as_ref();
        reserved |= is_reserved(name);
        shared |= *mode == Mode::Shared;
        longest = longest.max(name.len());
    };
    look(first);
    others.iter().for_each(look);
    if reserved {
        return Err(RequestError::ReservedName);
    }
    if options.steal && options.if_available {
        return Err(RequestError::Unsupported("'steal' and 'if available' cannot be used together"));
    }
    if options.steal && shared {
        return Err(RequestError::Unsupported("'steal' takes exclusive locks only"));
    }
    Ok(longest)
}
