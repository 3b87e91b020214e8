//! The lock request queue map (§2.5): which names have a queue, found by their bytes.
//!
//! The map is cut into 64 tables by hash, so that when one doubles, a 64th of the names move and not all. The
//! hash is seeded by the host: names come from callers that may want them to collide.
//!
//! A name that nobody holds or waits for is idle. Idle names are forgotten, but not at once: names come back, and
//! the last thousand or so are kept to be found again.

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
use hashbrown::{HashTable, hash_table::Entry};

const TABLES: usize = 64;
/// The bits that choose the table: below the 7 that hashbrown tags entries with, above those it places by.
const TABLE_SHIFT: u32 = 19;

/// How many names that went idle are kept, at most.
const IDLE: usize = 1024;

pub(crate) struct Table {
    places: [HashTable<u32>; TABLES],
    queues: Slab<Queue>,
    seed: FixedState,
    /// Queues that went idle, oldest first. Some are in use again; that is looked at when their turn comes.
    went_idle: VecDeque<u32>,
}

impl Table {
    pub(crate) fn new(seed: u64) -> Self {
        let places = core::array::from_fn(|_| HashTable::new());
        Self { places, queues: Slab::new(), seed: FixedState::with_seed(seed), went_idle: VecDeque::new() }
    }

    /// Gets the lock request queue (§2.5), if the name has one.
    pub(crate) fn find(&self, name: &[u8]) -> Option<u32> {
        let hash = self.hash(name);
        let found =
            self.places[table(hash)].find(spread(hash), |&at| self.queues[at].name.as_bytes() == name);
        found.copied()
    }

    /// Gets the lock request queue (§2.5), a new empty one if there is none.
    #[inline]
    pub(crate) fn find_or_insert(&mut self, name: &[u8]) -> u32 {
        let hash = self.hash(name);
        let queues = &mut self.queues;
        let same = |&at: &u32| queues[at].name.as_bytes() == name;
        let rehash = |&at: &u32| spread(queues[at].hash);
        match self.places[table(hash)].entry(spread(hash), same, rehash) {
            Entry::Occupied(found) => *found.get(),
            Entry::Vacant(vacant) => {
                let at = queues.insert(Queue::new(Name::from(name), hash));
                vacant.insert(at);
                at
            }
        }
    }

    /// Takes note that the queue `at` is empty, and forgets the name that has been idle longest if there are too
    /// many.
    #[inline]
    pub(crate) fn idle(&mut self, at: u32) {
        if !self.queues[at].noted_idle {
            self.note_idle(at);
        }
    }

    fn note_idle(&mut self, at: u32) {
        self.queues[at].noted_idle = true;
        self.went_idle.push_back(at);
        if self.went_idle.len() > IDLE
            && let Some(oldest) = self.went_idle.pop_front()
        {
            match self.queues[oldest].head {
                NIL => self.remove(oldest),
                _ => self.queues[oldest].noted_idle = false,
            }
        }
    }

    fn remove(&mut self, at: u32) {
        let hash = self.queues.remove(at).hash;
        match self.places[table(hash)].find_entry(spread(hash), |&place| place == at) {
            Ok(place) => drop(place.remove()),
            Err(_) => unreachable!("a queue is in the table as long as it lives"),
        }
    }

    #[cfg(feature = "audit")]
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u32, &Queue)> {
        self.queues.iter()
    }

    #[inline]
    fn hash(&self, name: &[u8]) -> u32 {
        let mut hasher = self.seed.build_hasher();
        hasher.write(name);
        let hash = hasher.finish();
        u32::try_from((hash ^ (hash << 32)) >> 32).expect("half of the bits are left")
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

#[inline]
fn table(hash: u32) -> usize {
    (hash >> TABLE_SHIFT) as usize % TABLES
}

/// hashbrown places by the low bits and tags by the topmost 7: both come from the 32 that a queue keeps.
#[inline]
fn spread(hash: u32) -> u64 {
    u64::from(hash) << 32 | u64::from(hash)
}
