//! Looking at a manager without changing it: the snapshot (§4.5), one queue, one request.

use crate::{
    manager::{Manager, Request},
    name::Name,
    queues::Entry,
    vocabulary::{ClientId, Mode, RequestId, Token},
};
use alloc::vec::Vec;

/// The state of a manager at one instant (§4.5).
///
/// Both lists are in the order of arrival, so two snapshots of one state are equal.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Snapshot {
    /// The held lock set.
    pub held: Vec<LockInfo>,
    /// The requests that wait.
    pub pending: Vec<LockInfo>,
}

/// One name of one live request. A scope of several names shows once for each.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LockInfo {
    /// The name.
    pub name: Name,
    /// How the request asks for the name.
    pub mode: Mode,
    /// Whose request it is.
    pub client: ClientId,
    /// The request.
    pub request: RequestId,
}

/// A live request, looked at.
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
    pub fn requests(&self) -> impl Iterator<Item = Live<'_, T>> {
        let mut ids = Vec::with_capacity(self.requests.len() as usize);
        for (_, client) in self.clients.iter() {
            let mut slot = client.first;
            while let Some(request) = self.requests.get(slot) {
                ids.push(RequestId { arrival: request.arrival, slot });
                slot = request.next;
            }
        }
        ids.sort_unstable();
        ids.into_iter().filter_map(|id| self.get(id))
    }

    /// The live requests for one name, in the order of its queue: its holders, then those who wait.
    ///
    /// A waiting scope may stand before a holder: all its names together are not to be had yet.
    pub fn queue(&self, name: impl AsRef<[u8]>) -> impl Iterator<Item = (Live<'_, T>, Mode)> {
        let queue = self.queues.table.find(name.as_ref());
        let entries = queue.into_iter().flat_map(|queue| self.queues.walk(queue));
        entries.filter_map(|entry| Some((self.get(self.request_id(entry.request))?, entry.mode)))
    }

    /// The request, if it is live: waiting or held.
    #[inline]
    pub fn get(&self, id: RequestId) -> Option<Live<'_, T>> {
        Some(Live { manager: self, request: self.live(id)?, id })
    }

    /// The host's data of a live request.
    #[inline]
    pub fn data_mut(&mut self, id: RequestId) -> Option<&mut T> {
        let live = self.requests.get_mut(id.slot).filter(|live| live.arrival == id.arrival)?;
        Some(&mut live.data)
    }
}

impl<'a, T> Live<'a, T> {
    /// The request's id.
    pub fn id(self) -> RequestId {
        self.id
    }

    /// The agent that made it.
    pub fn client(self) -> ClientId {
        self.manager.client_id(self.request.client)
    }

    /// The fencing token if the request is held, `None` while it waits.
    #[inline]
    pub fn token(self) -> Option<Token> {
        self.request.token
    }

    /// The names it asks for, each with its mode.
    pub fn scope(self) -> impl Iterator<Item = (&'a Name, Mode)> {
        let manager = self.manager;
        manager.queues.scope(self.request.first_entry).map(|entry| (manager.name_of(entry), entry.mode))
    }

    /// Whether it broke who held its names before.
    pub fn stole(self) -> bool {
        self.request.thief
    }

    /// The live request within which it was made.
    pub fn nested_in(self) -> Option<RequestId> {
        let slot = self.manager.nesting.outer(self.request.nesting)?;
        Some(self.manager.request_id(slot))
    }

    /// The host's data.
    #[inline]
    pub fn data(self) -> &'a T {
        &self.request.data
    }
}

impl<T> Manager<T> {
    pub(crate) fn request_id(&self, slot: u32) -> RequestId {
        RequestId { arrival: self.requests[slot].arrival, slot }
    }

    pub(crate) fn client_id(&self, slot: u32) -> ClientId {
        ClientId { serial: self.clients[slot].serial, slot }
    }

    pub(crate) fn name_of(&self, entry: &Entry) -> &Name {
        &self.queues.table[entry.queue].name
    }
}
