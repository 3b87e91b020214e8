//! A simulated etcd: keys whose changes are numbered, and watched.
//!
//! It has the keys of a shared log: the head, a ring of entries, the chunks of snapshots, and the
//! pointer to the newest snapshot. It executes one call after the other, each at one instant.
//! `calls.rs` has the delivery of calls and answers. This module also checks every write: committed
//! entries stay.

use crate::{
    rules::DriverRule,
    simulation::{Simulation, note},
};
use lockkeeper_service::replica::{Head, Operation, Reply, Revision, decode_entry};
use std::{collections::BTreeMap, ops::RangeInclusive};

/// A snapshot: its position, and the number of the leadership that took it.
pub(crate) type SnapshotId = (u64, u64);

/// What says which snapshot is the newest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Pointer {
    pub(crate) id: SnapshotId,
    pub(crate) chunks: u64,
}

impl Pointer {
    pub(crate) fn encode(self) -> Vec<u8> {
        [self.id.0, self.id.1, self.chunks].iter().flat_map(|number| number.to_le_bytes()).collect()
    }

    fn decode(bytes: &[u8]) -> Option<Self> {
        let mut numbers = bytes.chunks_exact(8).map(|chunk| chunk.try_into().map(u64::from_le_bytes));
        let mut next = || numbers.next()?.ok();
        Some(Self { id: (next()?, next()?), chunks: next()? })
    }
}

/// What a daemon asks of the store.
#[derive(Clone, Debug)]
#[expect(clippy::large_enum_variant, reason = "there are few at a time")]
pub(crate) enum Call {
    /// Of the replica.
    Operation(Operation),
    /// Reads the head.
    Head,
    /// Reads what says which snapshot is the newest.
    Pointer,
    /// Reads the chunks of a snapshot.
    Chunks(SnapshotId),
    /// Reads entries: the first and the last place in the ring.
    Entries(u64, u64),
    PutChunk(SnapshotId, u64, Vec<u8>),
    /// Deletes the chunks of earlier snapshots.
    DeleteEarlier(SnapshotId),
    /// Deletes the chunks of all other snapshots: only without a rule.
    DeleteOthers(SnapshotId),
    /// Watches the head and the entries, from that revision on.
    Watch(Revision),
}

/// What the store answers.
#[derive(Clone, Debug)]
pub(crate) enum Answer {
    Reply(Reply),
    /// The head, and the revision of the whole store.
    Head(Option<(Head, Revision)>, Revision),
    Pointer(Option<Pointer>),
    /// Chunks, or entries.
    Values(Vec<Vec<u8>>),
    Done,
    /// The watch begins with that change.
    Watching(usize),
    /// Nothing was written, and never will be by this call.
    Full,
    /// The history that was asked for is not there any more.
    Compacted,
}

/// A change of the log, as it is watched.
#[derive(Clone, Debug)]
pub(crate) struct Change {
    pub(crate) revision: Revision,
    pub(crate) head: Head,
    pub(crate) entry: Option<Vec<u8>>,
}

/// Whose writes are refused because there is no room.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Full {
    #[default]
    Nobody,
    Everybody,
    /// Of one daemon: a member of etcd refuses by itself when its own database is full.
    One(usize),
}

#[derive(Clone, Default)]
pub(crate) struct Store {
    revision: Revision,
    head: Option<(Head, Revision)>,
    ring: BTreeMap<u64, Vec<u8>>,
    pointer: Option<Pointer>,
    chunks: BTreeMap<(SnapshotId, u64), Vec<u8>>,
    /// Every change, in order.
    pub(crate) changes: Vec<Change>,
    /// Changes up to this revision can no longer be watched.
    pub(crate) compacted: Revision,
    pub(crate) full: Full,
}

impl Store {
    /// The number of the leadership that the head shows.
    pub(crate) fn owner(&self) -> Option<u64> {
        self.head.as_ref().map(|(head, _)| head.owner)
    }

    /// The number of its last recovery.
    pub(crate) fn recovery(&self) -> u64 {
        self.head.as_ref().map_or(0, |(head, _)| head.recovery)
    }

    fn is_full_for(&self, daemon: usize) -> bool {
        self.full == Full::Everybody || self.full == Full::One(daemon)
    }

    fn chunks_of(&self, id: SnapshotId) -> impl Iterator<Item = &Vec<u8>> {
        self.chunks.range((id, 0)..=(id, u64::MAX)).map(|(_, chunk)| chunk)
    }

    fn is_whole(&self, pointer: Pointer) -> bool {
        self.chunks_of(pointer.id).count() as u64 == pointer.chunks
    }

    /// Bytes of all entries.
    pub(crate) fn ring_bytes(&self) -> u64 {
        self.ring.values().map(|entry| entry.len() as u64).sum()
    }

    fn delete(&mut self, places: &[RangeInclusive<u64>]) {
        self.ring.retain(|place, _| !places.iter().any(|places| places.contains(place)));
    }
}

/// A guarded write.
struct Write {
    guard: Option<(Head, Revision)>,
    head: Head,
    entry: Option<(u64, Vec<u8>)>,
    snapshot: Option<Vec<u8>>,
    deletes: Vec<RangeInclusive<u64>>,
}

impl Simulation {
    /// Executes a call of a daemon.
    pub(crate) fn execute(&mut self, daemon: usize, call: Call) -> Answer {
        let store = &mut self.store;
        match call {
            Call::Operation(Operation::Read) => Answer::Reply(Reply::Seen(store.head.clone())),
            Call::Operation(Operation::Write { guard, head, entry, snapshot, deletes }) => {
                self.write(daemon, Write { guard, head, entry, snapshot, deletes })
            }
            Call::Head => Answer::Head(store.head.clone(), store.revision),
            Call::Pointer => Answer::Pointer(store.pointer),
            Call::Chunks(id) => Answer::Values(store.chunks_of(id).cloned().collect()),
            Call::Entries(first, last) => {
                Answer::Values(store.ring.range(first..=last).map(|(_, entry)| entry.clone()).collect())
            }
            Call::PutChunk(..) if store.is_full_for(daemon) => Answer::Full,
            Call::PutChunk(id, number, chunk) => {
                store.chunks.insert((id, number), chunk);
                Answer::Done
            }
            Call::DeleteEarlier(id) => {
                store.chunks.retain(|(chunk, _), _| *chunk >= id);
                self.check_pointer();
                Answer::Done
            }
            Call::DeleteOthers(id) => {
                store.chunks.retain(|(chunk, _), _| *chunk == id);
                self.check_pointer();
                Answer::Done
            }
            Call::Watch(first) if first <= store.compacted => Answer::Compacted,
            Call::Watch(first) => {
                Answer::Watching(store.changes.partition_point(|change| change.revision < first))
            }
        }
    }

    fn write(&mut self, daemon: usize, write: Write) -> Answer {
        let Write { guard, head, entry, snapshot, deletes } = write;
        if self.store.is_full_for(daemon) {
            return Answer::Full;
        }
        let compares = match (&entry, head.sequence) {
            (Some(_), _) => self.plan.keeps(DriverRule::AppendComparesLeader),
            (None, 0) => self.plan.keeps(DriverRule::TakeoverComparesLeader),
            _ => true,
        };
        if compares && self.store.head != guard {
            if !self.plan.keeps(DriverRule::DeleteComparesLeader) {
                // Sabotage: entries are deleted without a guard.
                self.store.delete(&deletes);
                self.check_ring();
            }
            return Answer::Reply(Reply::Seen(self.store.head.clone()));
        }
        if let Some((_, bytes)) = &entry {
            self.check_entry(bytes, head.blind > 0);
        }
        let known = self.history.replica.position();
        if head.position != known {
            self.fail(format!("the log has {known} entries, and is written to have {}", head.position));
        }
        let store = &mut self.store;
        store.revision += 1;
        let revision = store.revision;
        store.head = Some((head.clone(), revision));
        let change = entry.as_ref().map(|(_, bytes)| bytes.clone());
        store.changes.push(Change { revision, head, entry: change });
        store.delete(&deletes);
        store.ring.extend(entry);
        if let Some(pointer) = snapshot.as_deref().and_then(Pointer::decode) {
            store.pointer = Some(pointer);
            self.stats.snapshots += 1;
            self.check_pointer();
        }
        self.check_ring();
        if !self.calm && self.random.chance(self.plan.compact) {
            self.store.compacted = revision - i64::try_from(self.random.below(4)).unwrap_or(0);
            note!(self, "history is compacted up to {}", self.store.compacted);
        }
        self.announce_change();
        if self.plan.faults.restore > 0 && self.random.chance(30) {
            self.backup = Some((self.store.clone(), self.history.replica.snapshot()));
        }
        Answer::Reply(Reply::Done(revision))
    }

    /// An entry is committed: it is the next one.
    fn check_entry(&mut self, bytes: &[u8], blind: bool) {
        let known = self.history.replica.position();
        match decode_entry(bytes) {
            Ok((position, batch)) if position == known + 1 => {
                self.stats.batches += 1;
                self.committed(batch, blind);
            }
            Ok((position, _)) => self.fail(format!("entry {position} is written, and there are {known}")),
            Err(damaged) => self.fail(format!("an entry cannot be read: {damaged}")),
        }
    }

    /// The ring has the entries that the newest snapshot has not, and no others.
    fn check_ring(&mut self) {
        let positions = |entry: &Vec<u8>| decode_entry(entry).ok().map(|(position, _)| position);
        let mut found: Vec<_> = self.store.ring.values().filter_map(positions).collect();
        found.sort_unstable();
        let begins = self.store.pointer.map_or(0, |pointer| pointer.id.0);
        let ends = self.history.replica.position();
        if !found.iter().copied().eq(begins + 1..=ends) {
            self.fail(format!("the store has entries {found:?}, not those from {begins} to {ends}"));
        }
    }

    /// The newest snapshot is whole.
    fn check_pointer(&mut self) {
        if let Some(pointer) = self.store.pointer.filter(|pointer| !self.store.is_whole(*pointer)) {
            self.fail(format!("chunks of the newest snapshot are missing: {pointer:?}"));
        }
    }
}
