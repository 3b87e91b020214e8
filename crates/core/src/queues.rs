//! One FIFO per name: the held lock set and the lock request queue of the name in one list.
//!
//! A request stands in the queue of each of its names with one entry. The entries that no earlier entry
//! conflicts with are *open*; they are a prefix of the list: one exclusive entry, or all shared entries before
//! the first exclusive one. The others are *blocked*. A request whose entries are all open is held.
//!
//! Joining a queue at its end opens or blocks only the new entry. Leaving it opens, in one loop, what nothing
//! conflicts with any more: release, abort and the end of a client are this one operation.

use crate::{
    name::Name,
    slab::{NIL, Slab},
    table::Table,
    vocabulary::Mode,
};

pub(crate) struct Queues {
    pub(crate) table: Table,
    pub(crate) entries: Slab<Entry>,
}

/// The queue of one name.
pub(crate) struct Queue {
    pub(crate) name: Name,
    pub(crate) head: u32,
    pub(crate) tail: u32,
    /// How many of the entries are exclusive: a shared request may join open if and only if none is.
    pub(crate) exclusive: u32,
    /// Whether the table has taken note that the queue went idle, and not yet looked at it again.
    pub(crate) noted_idle: bool,
}

/// One request's place in the queue of one of its names.
pub(crate) struct Entry {
    pub(crate) request: u32,
    /// The queue it stands in.
    pub(crate) queue: u32,
    pub(crate) prev: u32,
    pub(crate) next: u32,
    /// The same request's entry for its next name.
    pub(crate) sibling: u32,
    pub(crate) mode: Mode,
    pub(crate) blocked: bool,
}

impl Queue {
    pub(crate) fn new(name: Name) -> Self {
        Self { name, head: NIL, tail: NIL, exclusive: 0, noted_idle: false }
    }
}

/// What came of joining a queue.
pub(crate) struct Place {
    /// The new entry, or `None` if the request stood in the queue already.
    pub(crate) entry: Option<u32>,
    /// Whether the request has one more blocked entry than before.
    pub(crate) newly_blocked: bool,
}

impl Queues {
    pub(crate) fn new(seed: u64) -> Self {
        Self { table: Table::new(seed), entries: Slab::new() }
    }

    /// Puts `request` at the end of the queue of `name`.
    #[inline(always)]
    pub(crate) fn join(&mut self, name: &[u8], request: u32, mode: Mode) -> Place {
        let at = self.table.find_or_insert(name);
        let queue = &mut self.table[at];
        let last = queue.tail;
        // A request joins all its queues in one step: if it is in this one already, it is the last in it.
        if last != NIL && self.entries[last].request == request {
            return self.join_again(last, mode);
        }
        let blocked = match mode {
            Mode::Exclusive => last != NIL,
            Mode::Shared => queue.exclusive > 0,
        };
        let entry = Entry { request, queue: at, prev: last, next: NIL, sibling: NIL, mode, blocked };
        let entry = self.entries.insert(entry);
        queue.exclusive += u32::from(mode == Mode::Exclusive);
        queue.tail = entry;
        match last {
            NIL => queue.head = entry,
            last => self.entries[last].next = entry,
        }
        Place { entry: Some(entry), newly_blocked: blocked }
    }

    /// A name that stands twice in a scope is exclusive if either asks for that.
    #[cold]
    fn join_again(&mut self, entry: u32, mode: Mode) -> Place {
        let again = &mut self.entries[entry];
        if mode == Mode::Shared || again.mode == Mode::Exclusive {
            return Place { entry: None, newly_blocked: false };
        }
        again.mode = Mode::Exclusive;
        let newly_blocked = again.prev != NIL && !again.blocked;
        again.blocked |= newly_blocked;
        let queue = again.queue;
        self.table[queue].exclusive += 1;
        Place { entry: None, newly_blocked }
    }

    /// Puts `request` first in the queue of `name`, exclusive. Every open entry is blocked behind it, and its
    /// request passed to `blocked`.
    pub(crate) fn join_first(&mut self, name: &[u8], request: u32, mut blocked: impl FnMut(u32)) -> Place {
        let at = self.table.find_or_insert(name);
        let queue = &mut self.table[at];
        let first = queue.head;
        if first != NIL && self.entries[first].request == request {
            return Place { entry: None, newly_blocked: false };
        }
        let mode = Mode::Exclusive;
        let entry = Entry { request, queue: at, prev: NIL, next: first, sibling: NIL, mode, blocked: false };
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
            blocked(open.request);
            behind = open.next;
        }
        Place { entry: Some(entry), newly_blocked: false }
    }

    /// Takes an entry out of its queue, and passes to `opened` the request of each entry that opens thereby,
    /// in the order of the queue. Returns the entry's sibling.
    #[inline(always)]
    pub(crate) fn leave(&mut self, entry: u32, mut opened: impl FnMut(u32)) -> u32 {
        let Entry { queue: at, prev, next, sibling, mode, .. } = self.entries.remove(entry);
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
            self.open(next, &mut opened);
        } else if prev == NIL && !queue.noted_idle {
            self.table.note_idle(at);
        }
        sibling
    }

    /// The one loop: opens entries from `next` on as long as they are blocked and no earlier one conflicts.
    #[inline]
    fn open(&mut self, mut next: u32, opened: &mut impl FnMut(u32)) {
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
            opened(entry.request);
            next = entry.next;
        }
    }

    /// The entries of a queue, first to last.
    pub(crate) fn walk(&self, queue: u32) -> impl Iterator<Item = &Entry> {
        let first = self.entries.get(self.table[queue].head);
        core::iter::successors(first, |entry| self.entries.get(entry.next))
    }

    /// The entries of one request, in the order of its scope.
    pub(crate) fn scope(&self, first: u32) -> impl Iterator<Item = &Entry> {
        core::iter::successors(self.entries.get(first), |entry| self.entries.get(entry.sibling))
    }
}
