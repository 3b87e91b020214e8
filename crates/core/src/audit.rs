//! A check of the whole state against the invariants of [`Manager`], for tests.

use crate::{manager::Manager, slab::NIL, types::Mode};
use alloc::collections::BTreeMap;

impl<T> Manager<T> {
    /// Checks every invariant of the manager against its whole state.
    ///
    /// # Panics
    ///
    /// If one does not hold: the engine has a bug.
    ///
    /// ```
    /// # use lockkeeper_core::{Manager, Mode, Options};
    /// let mut manager: Manager = Manager::default();
    /// let tab = manager.client()?;
    /// manager.request(tab, &[("a", Mode::Exclusive)], Options::default(), (), &mut Vec::new())?;
    /// manager.audit();
    /// # Ok::<(), Box<dyn core::error::Error>>(())
    /// ```
    pub fn audit(&self) {
        let mut entries = 0;
        let mut blocked: BTreeMap<u32, u16> = BTreeMap::new();
        for (at, queue) in self.queues.table.iter() {
            assert_eq!(
                self.queues.table.find(queue.name.as_bytes()),
                Some(at),
                "a queue is found by its name"
            );
            assert!(queue.head != NIL || queue.noted_idle, "an empty queue is noted to be forgotten");
            let (mut prev, mut exclusive) = (NIL, 0);
            let mut arrival = None;
            let mut next = queue.head;
            while let Some(entry) = self.queues.entries.get(next) {
                assert_eq!((entry.queue, entry.prev), (at, prev), "links of a queue agree");
                let free = match prev {
                    NIL => true,
                    prev => {
                        let before = &self.queues.entries[prev];
                        !before.blocked && !before.mode.conflicts(entry.mode)
                    }
                };
                assert_eq!(entry.blocked, !free, "open is exactly what no earlier entry conflicts with");
                let request = self.queues.request(entry.request);
                if request.thief {
                    assert!(prev == NIL, "a thief is first in its queues: it holds them");
                } else {
                    assert!(arrival < Some(request.arrival), "a queue is in the order of arrival");
                    arrival = Some(request.arrival);
                }
                *blocked.entry(entry.request).or_default() += u16::from(entry.blocked);
                exclusive += u32::from(entry.mode == Mode::Exclusive);
                entries += 1;
                (prev, next) = (next, entry.next);
            }
            assert_eq!((queue.tail, queue.exclusive), (prev, exclusive), "a queue knows its end and counts");
        }
        assert_eq!(entries, self.queues.entries.len(), "every entry is in a queue");

        let mut listed = 0;
        for (at, client) in self.clients.iter() {
            let (mut prev, mut live, mut slot) = (NIL, 0, client.first);
            while slot != NIL {
                let request = self.queues.request(slot);
                assert_eq!((request.client, request.prev), (at, prev), "links of a client's list agree");
                if prev != NIL {
                    assert!(
                        self.queues.request(prev).arrival < request.arrival,
                        "a client's list is in the order of arrival"
                    );
                }
                live += 1;
                (prev, slot) = (slot, request.next);
            }
            assert_eq!((client.last, client.live), (prev, live), "a client knows its list's end and length");
            listed += live;
        }
        let requests =
            || self.queues.entries.iter().filter_map(|(slot, entry)| Some((slot, entry.record.as_ref()?)));
        assert_eq!(listed as usize, requests().count(), "every request is in its client's list");

        for (slot, request) in requests() {
            let scope = self.queues.scope(slot);
            assert!(scope.count() > 0, "a live request stands in a queue");
            let scope = self.queues.scope(slot);
            assert!(scope.into_iter().all(|entry| entry.request == slot), "an entry knows its request");
            assert_eq!(blocked.get(&slot), Some(&request.blocked), "a request counts its blocked entries");
            assert_eq!(request.token.is_some(), request.blocked == 0, "held if and only if nothing blocks");
            if let Some(outer) = self.nesting.outer(request.nesting) {
                let mut inner = self.nesting.inner(self.queues.request(outer).nesting);
                assert!(inner.any(|inner| inner == slot), "an outer request knows what is nested in it");
            }
        }
    }
}
