//! The lock request queue map (§2.5): the names that have a queue, found by their bytes.
//!
//! The map is cut into 64 tables by hash, so a growing table moves a 64th of the names. The host
//! seeds the hash, because names come from callers that may want collisions.
//!
//! A name without held or waiting requests is idle. Long idle names are dropped at once. Of short
//! ones the last thousand or so are kept, because names are used again.

use crate::{
    name::Name,
    queues::Queue,
    slab::{NIL, Slab},
};
use alloc::collections::VecDeque;
use core::{
    hash::{BuildHasher, Hasher},
    ops::{Index, IndexMut},
};
use foldhash::fast::FixedState;
use hashbrown::HashTable;

const TABLES: usize = 64;

/// How many names that went idle are kept, at most.
const IDLE: usize = 1024;

pub(crate) struct Table {
    addresses: [HashTable<Address>; TABLES],
    queues: Slab<Queue>,
    seed: FixedState,
    /// Queues that went idle, oldest first. Some are in use again, which is checked when they are
    /// removed.
    went_idle: VecDeque<u32>,
}

/// The index of a name's queue, with the hash of the name: a table that doubles need not read the
/// names.
#[derive(Clone, Copy)]
struct Address {
    hash: u32,
    at: u32,
}

impl Table {
    pub(crate) fn new(seed: u64) -> Self {
        let addresses = core::array::from_fn(|_| HashTable::new());
        Self { addresses, queues: Slab::new(), seed: FixedState::with_seed(seed), went_idle: VecDeque::new() }
    }

    /// Gets the lock request queue (§2.5), if the name has one.
    pub(crate) fn find(&self, name: &[u8]) -> Option<u32> {
        let hash = hashed(&self.seed, name);
        let same = |address: &Address| self.queues[address.at].name.is(name);
        Some(self.addresses[table(hash)].find(spread(hash), same)?.at)
    }

    /// Gets the lock request queue (§2.5), a new empty one if there is none.
    #[inline(always)]
    pub(crate) fn find_or_insert(&mut self, name: &[u8]) -> u32 {
        let hash = hashed(&self.seed, name);
        // The first name with this hash, which next to always is the one, is found without a call.
        match self.addresses[table(hash)].find(spread(hash), |address| address.hash == hash) {
            Some(&Address { at, .. }) if self.queues[at].name.is(name) => at,
            first => self.insert(hash, name, first.is_some()),
        }
    }

    #[cold]
    fn insert(&mut self, hash: u32, name: &[u8], collides: bool) -> u32 {
        if collides && let Some(at) = self.find(name) {
            return at;
        }
        let at = self.queues.insert(Queue::new(Name::from(name)));
        let addresses = &mut self.addresses[table(hash)];
        addresses.insert_unique(spread(hash), Address { hash, at }, |address| spread(address.hash));
        at
    }

    /// Takes note that the queue `at` is empty, and forgets the name that has been idle longest if
    /// there are too many. A long name is forgotten at once.
    pub(crate) fn note_idle(&mut self, at: u32) {
        let queue = &mut self.queues[at];
        if queue.name.is_long() {
            return self.remove(at);
        }
        queue.noted_idle = true;
        self.went_idle.push_back(at);
        if self.went_idle.len() <= IDLE {
            return;
        }
        let Some(oldest) = self.went_idle.pop_front() else { return };
        match self.queues[oldest].head {
            NIL => self.remove(oldest),
            _ => self.queues[oldest].noted_idle = false,
        }
    }

    fn remove(&mut self, at: u32) {
        let hash = hashed(&self.seed, self.queues.remove(at).name.as_bytes());
        match self.addresses[table(hash)].find_entry(spread(hash), |address| address.at == at) {
            Ok(address) => drop(address.remove()),
            Err(_) => unreachable!("a queue is in the table as long as it lives"),
        }
    }

    /// About how many bytes it takes, without long names.
    pub(crate) fn bytes(&self) -> usize {
        // A table that has doubled is 7/16 full; each place has a tag.
        let addresses = self.queues.places() * 16 / 7 * (size_of::<Address>() + 1);
        self.queues.bytes() + addresses + self.went_idle.capacity() * size_of::<u32>()
    }

    /// Forgets all names. None is held or waited for.
    pub(crate) fn clear(&mut self) {
        self.addresses = core::array::from_fn(|_| HashTable::new());
        (self.queues, self.went_idle) = (Slab::new(), VecDeque::new());
    }

    #[cfg(feature = "audit")]
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u32, &Queue)> {
        self.queues.iter()
    }
}

impl Index<u32> for Table {
    type Output = Queue;

    #[inline]
    fn index(&self, at: u32) -> &Queue {
        &self.queues[at]
    }
}

impl IndexMut<u32> for Table {
    #[inline]
    fn index_mut(&mut self, at: u32) -> &mut Queue {
        &mut self.queues[at]
    }
}

#[inline(always)]
fn hashed(seed: &FixedState, name: &[u8]) -> u32 {
    let mut hasher = seed.build_hasher();
    hasher.write(name);
    let hash = hasher.finish();
    u32::try_from((hash ^ (hash << 32)) >> 32).expect("half of the bits are left")
}

/// Which table a name is in: by bits below the 7 that hashbrown tags entries with and above those
/// it places by.
#[inline]
fn table(hash: u32) -> usize {
    (hash >> 19) as usize % TABLES
}

/// hashbrown places entries by the low bits and tags them by the topmost 7: both come from the 32
/// that are kept.
#[inline]
fn spread(hash: u32) -> u64 {
    u64::from(hash) << 32 | u64::from(hash)
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::{collections::BTreeMap, format};

    #[test]
    fn names_with_the_same_hash_have_their_own_queues() {
        let mut table = Table::new(0);
        let mut met = BTreeMap::new();
        let names = (0..).map(|i| format!("name {i}"));
        let same = names.map(|name| (met.insert(hashed(&table.seed, name.as_bytes()), name.clone()), name));
        let (one, other) = same.into_iter().find_map(|(met, name)| Some((met?, name))).expect("2³² hashes");
        let at = [&one, &other].map(|name| table.find_or_insert(name.as_bytes()));
        assert_ne!(at[0], at[1]);
        assert_eq!([&one, &other].map(|name| table.find_or_insert(name.as_bytes())), at);
        assert_eq!([&one, &other].map(|name| table.find(name.as_bytes())), at.map(Some));
    }
}
