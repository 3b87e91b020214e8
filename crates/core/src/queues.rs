//! One FIFO per name: the held lock set and the lock request queue of the name in one list.
//!
//! A request has one entry in the queue of each of its names; the first entry has the request's
//! other data. The entries that no earlier entry conflicts with are *open*. They are a prefix of
//! the list: one exclusive entry, or all shared entries before the first exclusive one. The others
//! are *blocked*. A request whose entries are all open is held.
//!
//! Joining a queue at its end opens or blocks only the new entry. Leaving it opens, in one loop,
//! the entries that no longer conflict. Release, abort and the end of a client are this one
//! operation.

use crate::{
    name::Name,
    slab::{NIL, Slab},
    table::Table,
    types::{Mode, Token},
};
use alloc::vec::Vec;

pub(crate) struct Queues<T> {
    pub(crate) table: Table,
    pub(crate) entries: Slab<Entry<T>>,
}

/// The queue of one name.
pub(crate) struct Queue {
    pub(crate) name: Name,
    pub(crate) head: u32,
    pub(crate) tail: u32,
    /// How many of the entries are exclusive: a shared request may join open if and only if none
    /// is.
    pub(crate) exclusive: u32,
    /// Whether the queue is in the table's list of idle queues, to be examined again.
    pub(crate) noted_idle: bool,
}

/// One request's place in the queue of one of its names.
pub(crate) struct Entry<T> {
    /// The queue of this entry.
    pub(crate) queue: u32,
    pub(crate) prev: u32,
    pub(crate) next: u32,
    pub(crate) mode: Mode,
    pub(crate) blocked: bool,
    /// Index of the request's first entry.
    pub(crate) request: u32,
    /// The same request's entry for its next name.
    pub(crate) sibling: u32,
    /// The request's other data, in its first entry. Nearly every request has one name, and so one
    /// record.
    pub(crate) record: Option<Request<T>>,
}

/// A live request, waiting or held.
pub(crate) struct Request<T> {
    pub(crate) arrival: u64,
    /// Its fencing token, if and only if it is held.
    pub(crate) token: Option<Token>,
    pub(crate) client: u32,
    /// Neighbours in the client's list.
    pub(crate) prev: u32,
    pub(crate) next: u32,
    /// Its node in the nesting, or `NIL`.
    pub(crate) nesting: u32,
    /// How many of its entries are blocked.
    pub(crate) blocked: u16,
    /// Whether it stole its names, and so came before requests that arrived earlier.
    pub(crate) thief: bool,
    pub(crate) data: T,
}

impl Queue {
    pub(crate) fn new(name: Name) -> Self {
        Self { name, head: NIL, tail: NIL, exclusive: 0, noted_idle: false }
    }

    /// Puts an entry at the end. Returns the one before it, and whether any before it conflicts.
    #[inline(always)]
    pub(crate) fn push(&mut self, entry: u32, mode: Mode) -> (u32, bool) {
        let blocked = match mode {
            Mode::Exclusive => self.tail != NIL,
            Mode::Shared => self.exclusive > 0,
        };
        self.exclusive += u32::from(mode == Mode::Exclusive);
        let before = core::mem::replace(&mut self.tail, entry);
        if before == NIL {
            self.head = entry;
        }
        (before, blocked)
    }
}

impl<T> Queues<T> {
    pub(crate) fn new(seed: u64) -> Self {
        Self { table: Table::new(seed), entries: Slab::new() }
    }

    #[inline]
    pub(crate) fn request(&self, request: u32) -> &Request<T> {
        self.entries[request].record.as_ref().expect("a first entry has the request")
    }

    #[inline]
    pub(crate) fn request_mut(&mut self, request: u32) -> &mut Request<T> {
        self.entries[request].record.as_mut().expect("a first entry has the request")
    }

    /// Puts `request`, which has joined the queue of its first name, at the end of those of the
    /// others. Returns how many of its entries are blocked.
    #[cold]
    pub(crate) fn join_others<N: AsRef<[u8]>>(&mut self, request: u32, others: &[(N, Mode)]) -> u16 {
        let mut before = request;
        for (name, mode) in others {
            let at = self.table.find_or_insert(name.as_ref());
            let queue = &mut self.table[at];
            // A request joins all its queues in one step: if it is in this one already, it is the
            // last in it.
            let last = queue.tail;
            if last != NIL && self.entries[last].request == request {
                self.join_again(last, *mode);
                continue;
            }
            let (mode, next, sibling, record) = (*mode, NIL, NIL, None);
            let (prev, blocked) = queue.push(self.entries.vacant(), mode);
            let entry = self.insert(Entry { queue: at, prev, next, mode, blocked, request, sibling, record });
            self.request_mut(request).blocked += u16::from(blocked);
            self.entries[before].sibling = entry;
            before = entry;
        }
        self.request(request).blocked
    }

    /// Makes the record of an entry that its queue has at its end already.
    #[inline(always)]
    pub(crate) fn insert(&mut self, entry: Entry<T>) -> u32 {
        let prev = entry.prev;
        let entry = self.entries.insert(entry);
        if prev != NIL {
            self.entries[prev].next = entry;
        }
        entry
    }

    /// A name that stands twice in a scope is exclusive if either asks for that.
    fn join_again(&mut self, entry: u32, mode: Mode) {
        let again = &mut self.entries[entry];
        if mode == Mode::Shared || again.mode == Mode::Exclusive {
            return;
        }
        again.mode = Mode::Exclusive;
        let newly_blocked = again.prev != NIL && !again.blocked;
        again.blocked |= newly_blocked;
        let (queue, request) = (again.queue, again.request);
        self.table[queue].exclusive += 1;
        self.request_mut(request).blocked += u16::from(newly_blocked);
    }

    /// Puts `request`, with its record, first in the queues of all its names, exclusive. Every open
    /// entry is blocked behind it.
    pub(crate) fn join_first<'a>(
        &mut self,
        request: u32,
        names: impl Iterator<Item = &'a [u8]>,
        record: Request<T>,
    ) {
        let (mut record, mut before) = (Some(record), NIL);
        for name in names {
            let at = self.table.find_or_insert(name);
            let queue = &mut self.table[at];
            let first = queue.head;
            if first != NIL && self.entries[first].request == request {
                continue;
            }
            let (mode, blocked, record) = (Mode::Exclusive, false, record.take());
            let (prev, next, sibling) = (NIL, first, NIL);
            let entry = Entry { queue: at, prev, next, mode, blocked, request, sibling, record };
            let entry = self.entries.insert(entry);
            queue.exclusive += 1;
            queue.head = entry;
            match first {
                NIL => queue.tail = entry,
                first => self.entries[first].prev = entry,
            }
            let mut behind = first;
            while let Some(open) = self.entries.get_mut(behind).filter(|entry| !entry.blocked) {
                open.blocked = true;
                behind = open.next;
                let victim = open.request;
                self.request_mut(victim).blocked += 1;
            }
            if let Some(before) = self.entries.get_mut(before) {
                before.sibling = entry;
            }
            before = entry;
        }
    }

    /// Takes an entry, which is out of the slab already, out of its queue. Requests of which the
    /// last blocked entry opens thereby are `ready`.
    #[inline(always)]
    pub(crate) fn leave(&mut self, entry: &Entry<T>, ready: &mut Vec<u32>) {
        let &Entry { queue: at, prev, next, mode, .. } = entry;
        let queue = &mut self.table[at];
        queue.exclusive -= u32::from(mode == Mode::Exclusive);
        match prev {
            NIL => queue.head = next,
            prev => self.entries[prev].next = next,
        }
        match next {
            NIL => queue.tail = prev,
            next => self.entries[next].prev = prev,
        }
        if next != NIL {
            self.open(next, ready);
        } else if prev == NIL && !queue.noted_idle {
            self.table.note_idle(at);
        }
    }

    /// The one loop: opens entries from `next` on as long as they are blocked and no earlier one
    /// conflicts.
    fn open(&mut self, mut next: u32, ready: &mut Vec<u32>) {
        while let Some(entry) = self.entries.get(next).filter(|entry| entry.blocked) {
            let free = match self.entries.get(entry.prev) {
                None => true,
                Some(before) => !before.blocked && !before.mode.conflicts(entry.mode),
            };
            if !free {
                break;
            }
            let entry = &mut self.entries[next];
            entry.blocked = false;
            next = entry.next;
            let request = entry.request;
            let blocked = &mut self.request_mut(request).blocked;
            *blocked -= 1;
            if *blocked == 0 {
                ready.push(request);
            }
        }
    }

    /// The entries of a queue, first to last.
    pub(crate) fn walk(&self, queue: u32) -> impl Iterator<Item = &Entry<T>> {
        let first = self.entries.get(self.table[queue].head);
        core::iter::successors(first, |entry| self.entries.get(entry.next))
    }

    /// The entries of one request, in the order of its scope.
    pub(crate) fn scope(&self, request: u32) -> impl Iterator<Item = &Entry<T>> {
        core::iter::successors(self.entries.get(request), |entry| self.entries.get(entry.sibling))
    }
}
