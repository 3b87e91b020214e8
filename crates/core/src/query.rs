//! Read-only views of a manager: the snapshot (§4.5), one queue, one request.

use crate::{
    manager::Manager,
    name::Name,
    queues::{Entry, Request},
    slab::NIL,
    types::{ClientId, Mode, RequestId, Token},
};
use alloc::vec::Vec;

/// The state of a manager at one instant (§4.5).
///
/// Both lists are in the order of arrival, so two snapshots of one state are equal.
///
/// ```
/// # use lockkeeper_core::{Manager, Mode, Options, Snapshot};
/// # let (mut manager, mut effects) = (Manager::default(), Vec::new());
/// # let tab = manager.client()?;
/// for mode in [Mode::Shared, Mode::Exclusive, Mode::Shared] {
///     manager.request(tab, &[("a", mode)], Options::default(), (), &mut effects)?;
/// }
/// let Snapshot { held, pending } = manager.query();
/// assert_eq!((held.len(), pending.len()), (1, 2));
/// assert!(pending[0].request < pending[1].request);
/// # Ok::<(), Box<dyn core::error::Error>>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Snapshot {
    /// The held lock set.
    pub held: Vec<LockInfo>,
    /// The requests that wait.
    pub pending: Vec<LockInfo>,
}

/// One name of one live request. A scope of several names shows once for each.
///
/// ```
/// # use lockkeeper_core::{LockInfo, Manager, Mode, Options};
/// # let (mut manager, mut effects) = (Manager::default(), Vec::new());
/// # let tab = manager.client()?;
/// let scope = [("a", Mode::Shared), ("b", Mode::Exclusive)];
/// manager.request(tab, &scope, Options::default(), (), &mut effects)?;
/// let held: Vec<LockInfo> = manager.query().held;
/// assert_eq!((held[0].name.as_str(), held[0].mode), (Some("a"), Mode::Shared));
/// assert_eq!((held[1].name.as_str(), held[1].mode), (Some("b"), Mode::Exclusive));
/// assert_eq!(held[0].request, held[1].request);
/// # Ok::<(), Box<dyn core::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LockInfo {
    /// The name.
    pub name: Name,
    /// How the request asks for the name.
    pub mode: Mode,
    /// The client of the request.
    pub client: ClientId,
    /// The request.
    pub request: RequestId,
}

/// A view of a live request.
///
/// ```
/// # use lockkeeper_core::{Live, Manager, Mode, Options};
/// # let (mut manager, mut effects) = (Manager::default(), Vec::new());
/// # let tab = manager.client()?;
/// manager.request(tab, &[("a", Mode::Exclusive)], Options::default(), "label", &mut effects)?;
/// let live: Live<'_, &str> = manager.requests().next().unwrap();
/// assert!(live.token().is_some());
/// assert_eq!((live.client(), *live.data()), (tab, "label"));
/// # Ok::<(), Box<dyn core::error::Error>>(())
/// ```
pub struct Live<'a, T> {
    manager: &'a Manager<T>,
    request: &'a Request<T>,
    id: RequestId,
}

impl<T> Clone for Live<'_, T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Live<'_, T> {}

impl<T> Manager<T> {
    /// Snapshots the lock state (§4.5).
    ///
    /// ```
    /// # use lockkeeper_core::{Manager, Mode, Options};
    /// # let (mut manager, mut effects) = (Manager::default(), Vec::new());
    /// # let (tab, worker) = (manager.client()?, manager.client()?);
    /// for client in [tab, worker] {
    ///     manager.request(client, &[("a", Mode::Exclusive)], Options::default(), (), &mut effects)?;
    /// }
    /// let snapshot = manager.query();
    /// assert_eq!((snapshot.held[0].client, snapshot.pending[0].client), (tab, worker));
    /// # Ok::<(), Box<dyn core::error::Error>>(())
    /// ```
    pub fn query(&self) -> Snapshot {
        let mut snapshot = Snapshot::default();
        for live in self.requests() {
            let list = if live.token().is_some() { &mut snapshot.held } else { &mut snapshot.pending };
            list.extend(live.scope().map(|(name, mode)| LockInfo {
                name: name.clone(),
                mode,
                client: live.client(),
                request: live.id(),
            }));
        }
        snapshot
    }

    /// Every live request, in the order of arrival.
    ///
    /// ```
    /// # use lockkeeper_core::{Manager, Mode, Options};
    /// # let (mut manager, mut effects) = (Manager::default(), Vec::new());
    /// # let tab = manager.client()?;
    /// for label in ["first", "second", "third"] {
    ///     manager.request(tab, &[("a", Mode::Exclusive)], Options::default(), label, &mut effects)?;
    /// }
    /// let labels: Vec<_> = manager.requests().map(|live| *live.data()).collect();
    /// assert_eq!(labels, ["first", "second", "third"]);
    /// # Ok::<(), Box<dyn core::error::Error>>(())
    /// ```
    pub fn requests(&self) -> impl Iterator<Item = Live<'_, T>> {
        let mut ids = Vec::with_capacity(self.queues.entries.len() as usize);
        for (_, client) in self.clients.iter() {
            let mut slot = client.first;
            while slot != NIL {
                let request = self.queues.request(slot);
                ids.push(RequestId { arrival: request.arrival, slot });
                slot = request.next;
            }
        }
        ids.sort_unstable();
        ids.into_iter().filter_map(|id| self.get(id))
    }

    /// The live requests for one name, in the order of its queue: its holders, then the waiting
    /// ones.
    ///
    /// A waiting scope may come before a holder: its names are not all available yet.
    ///
    /// ```
    /// # use lockkeeper_core::{Manager, Mode, Options};
    /// # let (mut manager, mut effects) = (Manager::default(), Vec::new());
    /// # let tab = manager.client()?;
    /// for mode in [Mode::Shared, Mode::Exclusive, Mode::Shared] {
    ///     manager.request(tab, &[("a", mode)], Options::default(), (), &mut effects)?;
    /// }
    /// let queue: Vec<_> = manager.queue("a").map(|(live, mode)| (mode, live.token().is_some())).collect();
    /// assert_eq!(queue, [(Mode::Shared, true), (Mode::Exclusive, false), (Mode::Shared, false)]);
    /// assert_eq!(manager.queue("b").count(), 0);
    /// # Ok::<(), Box<dyn core::error::Error>>(())
    /// ```
    pub fn queue(&self, name: impl AsRef<[u8]>) -> impl Iterator<Item = (Live<'_, T>, Mode)> {
        let queue = self.queues.table.find(name.as_ref());
        let entries = queue.into_iter().flat_map(|queue| self.queues.walk(queue));
        entries.filter_map(|entry| Some((self.get(self.request_id(entry.request))?, entry.mode)))
    }

    /// The request, if it is live: waiting or held.
    ///
    /// ```
    /// # use lockkeeper_core::{Manager, Mode, Options};
    /// # let (mut manager, mut effects) = (Manager::default(), Vec::new());
    /// # let tab = manager.client()?;
    /// manager.request(tab, &[("a", Mode::Exclusive)], Options::default(), (), &mut effects)?;
    /// let id = manager.query().held[0].request;
    /// assert!(manager.get(id).is_some());
    /// manager.release(id, &mut effects);
    /// assert!(manager.get(id).is_none());
    /// # Ok::<(), Box<dyn core::error::Error>>(())
    /// ```
    #[inline]
    pub fn get(&self, id: RequestId) -> Option<Live<'_, T>> {
        Some(Live { manager: self, request: self.live(id)?, id })
    }

    /// The host's data of a live request.
    ///
    /// ```
    /// # use lockkeeper_core::{Manager, Mode, Options};
    /// # let (mut manager, mut effects) = (Manager::default(), Vec::new());
    /// # let tab = manager.client()?;
    /// manager.request(tab, &[("a", Mode::Exclusive)], Options::default(), 1, &mut effects)?;
    /// let id = manager.query().held[0].request;
    /// *manager.data_mut(id).unwrap() += 1;
    /// assert_eq!(manager.release(id, &mut effects), Some(2));
    /// assert_eq!(manager.data_mut(id), None);
    /// # Ok::<(), Box<dyn core::error::Error>>(())
    /// ```
    #[inline]
    pub fn data_mut(&mut self, id: RequestId) -> Option<&mut T> {
        let live = self
            .queues
            .entries
            .get_mut(id.slot)?
            .record
            .as_mut()
            .filter(|live| live.arrival == id.arrival)?;
        Some(&mut live.data)
    }
}

impl<'a, T> Live<'a, T> {
    /// The request's id.
    ///
    /// ```
    /// # use lockkeeper_core::{Manager, Mode, Options};
    /// # let (mut manager, mut effects) = (Manager::default(), Vec::new());
    /// # let tab = manager.client()?;
    /// manager.request(tab, &[("a", Mode::Exclusive)], Options::default(), (), &mut effects)?;
    /// let id = manager.requests().next().unwrap().id();
    /// assert_eq!(manager.release(id, &mut effects), Some(()));
    /// # Ok::<(), Box<dyn core::error::Error>>(())
    /// ```
    pub fn id(self) -> RequestId {
        self.id
    }

    /// The agent that made it.
    ///
    /// ```
    /// # use lockkeeper_core::{Manager, Mode, Options};
    /// # let (mut manager, mut effects) = (Manager::default(), Vec::new());
    /// # let (tab, worker) = (manager.client()?, manager.client()?);
    /// for client in [tab, worker] {
    ///     manager.request(client, &[("a", Mode::Shared)], Options::default(), (), &mut effects)?;
    /// }
    /// assert!(manager.requests().map(|live| live.client()).eq([tab, worker]));
    /// # Ok::<(), Box<dyn core::error::Error>>(())
    /// ```
    pub fn client(self) -> ClientId {
        self.manager.client_id(self.request.client)
    }

    /// The fencing token if the request is held, `None` while it waits.
    ///
    /// ```
    /// # use lockkeeper_core::{Manager, Mode, Options};
    /// # let (mut manager, mut effects) = (Manager::default(), Vec::new());
    /// # let tab = manager.client()?;
    /// for _ in 0..2 {
    ///     manager.request(tab, &[("a", Mode::Exclusive)], Options::default(), (), &mut effects)?;
    /// }
    /// let tokens: Vec<_> = manager.requests().map(|live| live.token()).collect();
    /// assert!(tokens[0].is_some());
    /// assert_eq!(tokens[1], None);
    /// # Ok::<(), Box<dyn core::error::Error>>(())
    /// ```
    #[inline]
    pub fn token(self) -> Option<Token> {
        self.request.token
    }

    /// The names it asks for, each with its mode.
    ///
    /// ```
    /// # use lockkeeper_core::{Manager, Mode, Options};
    /// # let (mut manager, mut effects) = (Manager::default(), Vec::new());
    /// # let tab = manager.client()?;
    /// let scope = [("a", Mode::Shared), ("b", Mode::Shared), ("a", Mode::Exclusive)];
    /// manager.request(tab, &scope, Options::default(), (), &mut effects)?;
    /// let live = manager.requests().next().unwrap();
    /// assert!(live.scope().eq([(&"a".into(), Mode::Exclusive), (&"b".into(), Mode::Shared)]));
    /// # Ok::<(), Box<dyn core::error::Error>>(())
    /// ```
    pub fn scope(self) -> impl Iterator<Item = (&'a Name, Mode)> {
        let manager = self.manager;
        manager.queues.scope(self.id.slot).map(|entry| (manager.name_of(entry), entry.mode))
    }

    /// Whether it was made with `steal`.
    ///
    /// ```
    /// # use lockkeeper_core::{Manager, Mode, Options};
    /// # let (mut manager, mut effects) = (Manager::default(), Vec::new());
    /// # let tab = manager.client()?;
    /// for steal in [false, true] {
    ///     let options = Options { steal, ..Options::default() };
    ///     manager.request(tab, &[("a", Mode::Exclusive)], options, (), &mut effects)?;
    ///     assert_eq!(manager.requests().next().unwrap().stole(), steal);
    /// }
    /// # Ok::<(), Box<dyn core::error::Error>>(())
    /// ```
    pub fn stole(self) -> bool {
        self.request.thief
    }

    /// The live request within which it was made.
    ///
    /// ```
    /// # use lockkeeper_core::{Manager, Mode, Options};
    /// # let (mut manager, mut effects) = (Manager::default(), Vec::new());
    /// # let tab = manager.client()?;
    /// manager.request(tab, &[("outer", Mode::Exclusive)], Options::default(), (), &mut effects)?;
    /// let outer = manager.query().held[0].request;
    /// let nested = Options { nested_in: Some(outer), ..Options::default() };
    /// manager.request(tab, &[("inner", Mode::Exclusive)], nested, (), &mut effects)?;
    /// assert!(manager.requests().map(|live| live.nested_in()).eq([None, Some(outer)]));
    /// manager.release(outer, &mut effects);
    /// assert!(manager.requests().map(|live| live.nested_in()).eq([None]));
    /// # Ok::<(), Box<dyn core::error::Error>>(())
    /// ```
    pub fn nested_in(self) -> Option<RequestId> {
        let slot = self.manager.nesting.outer(self.request.nesting)?;
        Some(self.manager.request_id(slot))
    }

    /// The live requests that were made directly within it.
    ///
    /// ```
    /// # use lockkeeper_core::{Manager, Mode, Options};
    /// # let (mut manager, mut effects) = (Manager::default(), Vec::new());
    /// # let tab = manager.client()?;
    /// manager.request(tab, &[("outer", Mode::Exclusive)], Options::default(), (), &mut effects)?;
    /// let outer = manager.query().held[0].request;
    /// let nested = Options { nested_in: Some(outer), ..Options::default() };
    /// manager.request(tab, &[("inner", Mode::Exclusive)], nested, (), &mut effects)?;
    /// let inner = manager.get(outer).unwrap().inner().next().unwrap();
    /// assert_eq!(inner.nested_in(), Some(outer));
    /// # Ok::<(), Box<dyn core::error::Error>>(())
    /// ```
    pub fn inner(self) -> impl Iterator<Item = Self> {
        let ids = self.manager.nesting.inner(self.request.nesting).map(|slot| self.manager.request_id(slot));
        ids.filter_map(|id| self.manager.get(id))
    }

    /// The host's data.
    ///
    /// ```
    /// # use lockkeeper_core::{Manager, Mode, Options};
    /// # let (mut manager, mut effects) = (Manager::default(), Vec::new());
    /// # let tab = manager.client()?;
    /// manager.request(tab, &[("a", Mode::Exclusive)], Options::default(), "report", &mut effects)?;
    /// let (holder, _) = manager.queue("a").next().unwrap();
    /// assert_eq!(*holder.data(), "report");
    /// # Ok::<(), Box<dyn core::error::Error>>(())
    /// ```
    #[inline]
    pub fn data(self) -> &'a T {
        &self.request.data
    }
}

impl<T> Manager<T> {
    pub(crate) fn request_id(&self, slot: u32) -> RequestId {
        RequestId { arrival: self.queues.request(slot).arrival, slot }
    }

    pub(crate) fn client_id(&self, slot: u32) -> ClientId {
        ClientId { serial: self.clients[slot].serial, slot }
    }

    pub(crate) fn name_of(&self, entry: &Entry<T>) -> &Name {
        &self.queues.table[entry.queue].name
    }
}
