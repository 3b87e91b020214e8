//! Records by index, in chunks that never move.
//!
//! A `Vec` that doubles would move every record at once. Here growth allocates one chunk, so the
//! cost of an insert is bounded by that of a chunk. The place freed last is used next.

use alloc::{boxed::Box, vec::Vec};
use core::ops::{Index, IndexMut};

/// "No record": the end of a list.
pub(crate) const NIL: u32 = u32::MAX;

const CHUNK_BITS: u32 = 7;
const CHUNK: usize = 1 << CHUNK_BITS;

pub(crate) struct Slab<T> {
    chunks: Vec<Box<[Slot<T>; CHUNK]>>,
    /// The free place used next, or `NIL`.
    free: u32,
    live: u32,
}

enum Slot<T> {
    Live(T),
    /// Holds the next free place.
    Free(u32),
}

impl<T> Slab<T> {
    pub(crate) const fn new() -> Self {
        Self { chunks: Vec::new(), free: NIL, live: 0 }
    }

    /// How many records are live.
    #[inline(always)]
    pub(crate) fn len(&self) -> u32 {
        self.live
    }

    /// How many places it has, live or free.
    pub(crate) fn places(&self) -> usize {
        self.chunks.len() * CHUNK
    }

    /// How many bytes these take.
    pub(crate) fn bytes(&self) -> usize {
        self.chunks.len() * (size_of::<[Slot<T>; CHUNK]>() + size_of::<Box<()>>())
    }

    /// The place that the next `insert` uses. The caller has checked its limits: there is always
    /// one left.
    #[inline(always)]
    pub(crate) fn vacant(&mut self) -> u32 {
        if self.free == NIL {
            self.grow();
        }
        self.free
    }

    #[cold]
    fn grow(&mut self) {
        let first = u32::try_from(self.chunks.len() * CHUNK).expect("fewer places than NIL");
        let last = place(NIL);
        let slots = (first + 1..).take(CHUNK).enumerate();
        let slots = slots.map(|(i, next)| Slot::Free(if i == last { NIL } else { next }));
        let chunk: Box<[Slot<T>]> = slots.collect();
        self.chunks.push(chunk.try_into().unwrap_or_else(|_| unreachable!("a chunk has CHUNK places")));
        self.free = first;
    }

    #[inline(always)]
    pub(crate) fn insert(&mut self, value: T) -> u32 {
        let at = self.vacant();
        let slot = &mut self.chunks[chunk(at)][place(at)];
        let Slot::Free(next) = *slot else { unreachable!("the free list holds free places only") };
        // Not assigned: an assignment would check the old value for a drop.
        core::mem::forget(core::mem::replace(slot, Slot::Live(value)));
        self.free = next;
        self.live += 1;
        at
    }

    /// Frees the place `at`, which must be live.
    #[inline(always)]
    pub(crate) fn remove(&mut self, at: u32) -> T {
        self.remove_if(at, |_| true).expect("a live place is freed once")
    }

    /// Frees the place `at` if it is live and its record is `wanted`.
    #[inline(always)]
    pub(crate) fn remove_if(&mut self, at: u32, wanted: impl FnOnce(&T) -> bool) -> Option<T> {
        let slot = &mut self.chunks.get_mut(chunk(at))?[place(at)];
        match slot {
            Slot::Live(value) if wanted(value) => {}
            _ => return None,
        }
        let Slot::Live(value) = core::mem::replace(slot, Slot::Free(self.free)) else { return None };
        self.free = at;
        self.live -= 1;
        Some(value)
    }

    #[inline(always)]
    pub(crate) fn get(&self, at: u32) -> Option<&T> {
        match &self.chunks.get(chunk(at))?[place(at)] {
            Slot::Live(value) => Some(value),
            Slot::Free(_) => None,
        }
    }

    #[inline(always)]
    pub(crate) fn get_mut(&mut self, at: u32) -> Option<&mut T> {
        match &mut self.chunks.get_mut(chunk(at))?[place(at)] {
            Slot::Live(value) => Some(value),
            Slot::Free(_) => None,
        }
    }

    /// The live records with their places.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u32, &T)> {
        let slots = self.chunks.iter().flat_map(|chunk| chunk.iter());
        (0..).zip(slots).filter_map(|(at, slot)| match slot {
            Slot::Live(value) => Some((at, value)),
            Slot::Free(_) => None,
        })
    }
}

impl<T> Index<u32> for Slab<T> {
    type Output = T;

    #[inline(always)]
    fn index(&self, at: u32) -> &T {
        self.get(at).expect("links point at live records")
    }
}

impl<T> IndexMut<u32> for Slab<T> {
    #[inline(always)]
    fn index_mut(&mut self, at: u32) -> &mut T {
        self.get_mut(at).expect("links point at live records")
    }
}

const fn chunk(at: u32) -> usize {
    (at >> CHUNK_BITS) as usize
}

const fn place(at: u32) -> usize {
    at as usize % CHUNK
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_freed_place_is_used_next_and_chunks_fill_up() {
        let mut slab = Slab::new();
        let all = 3 << CHUNK_BITS;
        for i in 0..all {
            assert_eq!(slab.vacant(), i);
            assert_eq!(slab.insert(i), i);
        }
        assert_eq!(slab.remove(200), 200);
        assert_eq!(slab.get(200), None);
        assert_eq!(slab.remove_if(200, |_| true), None);
        assert_eq!(slab.remove_if(201, |_| false), None);
        assert_eq!(slab.insert(42), 200);
        assert_eq!(slab[200], 42);
        assert_eq!(slab.len(), all);
        assert_eq!(slab.iter().count(), all as usize);
        assert_eq!(slab.get(NIL), None);
    }
}
