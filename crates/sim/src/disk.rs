//! The file log of one machine: what survives a kill, and what survives a crash of the machine.

use lockkeeper_service::{Damaged, Effect, SessionId, State};
use std::collections::{BTreeMap, BTreeSet};

/// What is on the disk.
pub(crate) struct Disk {
    /// The newest whole snapshot, and its position.
    snapshot: Option<Vec<u8>>,
    /// The batches after it.
    batches: Vec<Vec<u8>>,
    /// How many of them survive a crash of the machine.
    synced: usize,
    /// Every batch is synced before answers are sent.
    pub(crate) trusted: bool,
    /// A batch that was being written when the daemon was killed.
    torn: bool,
    /// Batches that a reader skips, because they were written behind a torn one.
    skipped: Vec<usize>,
    pub(crate) mark: Mark,
    /// The machine has crashed since the log was last closed gracefully.
    pub(crate) crashed: bool,
    /// Leases from before a crash may be valid: the daemon that starts next has to wait, too.
    pub(crate) blind: bool,
    /// Counts the boots of the machine.
    pub(crate) boot: u64,
    pub(crate) fifos: Fifos,
}

/// The directory of FIFOs. What is done to it lasts at once, whatever becomes of the log.
#[derive(Debug, Default)]
pub(crate) struct Fifos {
    /// Counts the files, and numbers them.
    last: u64,
    /// By the session that a file is named after: its inode.
    files: BTreeMap<SessionId, u64>,
    /// FIFOs that were replaced by another file, or removed: whether they have a writer is unknown.
    tampered: BTreeSet<u64>,
}

impl Fifos {
    /// Makes a FIFO, in the place of one that the session may have had.
    pub(crate) fn make(&mut self, session: SessionId) -> u64 {
        self.last += 1;
        self.files.insert(session, self.last);
        self.last
    }

    pub(crate) fn remove(&mut self, session: SessionId) {
        self.files.remove(&session);
    }

    /// Removes the files of sessions that are not in the log.
    pub(crate) fn remove_others(&mut self, is_session: impl Fn(SessionId) -> bool) {
        self.files.retain(|session, _| is_session(*session));
    }

    /// The sessions that have a file.
    pub(crate) fn sessions(&self) -> Vec<SessionId> {
        self.files.keys().copied().collect()
    }

    /// Replaces a session's FIFO by another one, or removes it.
    pub(crate) fn tamper(&mut self, session: SessionId, removes: bool) {
        self.tampered.extend(self.files.get(&session));
        match removes {
            true => self.remove(session),
            false => _ = self.make(session),
        }
    }

    /// Whether a session's FIFO is found by its name.
    pub(crate) fn is_found(&self, session: SessionId, inode: u64) -> bool {
        self.files.get(&session) == Some(&inode)
    }

    pub(crate) fn is_tampered(&self, inode: u64) -> bool {
        self.tampered.contains(&inode)
    }
}

/// What a daemon must know after a crash. Always synced.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Mark {
    /// The longest lease of a live session, in milliseconds.
    pub(crate) ttl: u64,
    /// An upper bound of all tokens granted.
    pub(crate) tokens: u64,
}

impl Disk {
    pub(crate) fn new(trusted: bool) -> Self {
        Self {
            snapshot: None,
            batches: Vec::new(),
            synced: 0,
            trusted,
            torn: false,
            skipped: Vec::new(),
            mark: Mark::default(),
            crashed: false,
            blind: false,
            boot: 1,
            fifos: Fifos::default(),
        }
    }

    /// Appends a batch.
    pub(crate) fn append(&mut self, batch: Vec<u8>, cuts_torn_tail: bool) {
        if std::mem::take(&mut self.torn) && !cuts_torn_tail {
            self.skipped.push(self.batches.len());
        }
        self.batches.push(batch);
        if self.trusted {
            self.synced = self.batches.len();
        }
    }

    /// The daemon is killed while it writes.
    pub(crate) fn tear(&mut self) {
        self.torn = true;
    }

    pub(crate) fn sync(&mut self) {
        self.synced = self.batches.len();
    }

    /// How many batches a crash of the machine may lose.
    pub(crate) fn unsynced(&self) -> usize {
        self.batches.len() - self.synced
    }

    /// The machine crashes: the last so many batches are lost.
    pub(crate) fn crash(&mut self, lost: usize) {
        let kept = self.batches.len() - lost.min(self.unsynced());
        self.batches.truncate(kept);
        self.skipped.retain(|skipped| *skipped < kept);
        self.boot += 1;
        self.torn = false;
        self.crashed = !self.trusted;
    }

    /// A snapshot is complete: the batches up to its position are no longer needed.
    pub(crate) fn put_snapshot(&mut self, snapshot: Vec<u8>, later_batches: usize) {
        let behind = self.batches.len() - later_batches;
        self.batches.drain(..behind);
        self.synced = self.synced.saturating_sub(behind);
        self.skipped = self.skipped.iter().filter_map(|skipped| skipped.checked_sub(behind)).collect();
        self.snapshot = Some(snapshot);
    }

    /// The state of the whole log.
    pub(crate) fn load(&self, hash_seed: u64) -> Result<State, Damaged> {
        let mut state = match &self.snapshot {
            Some(snapshot) => State::restore([snapshot], hash_seed)?,
            None => State::new(hash_seed),
        };
        let mut effects: Vec<Effect> = Vec::new();
        for (at, batch) in self.batches.iter().enumerate() {
            if !self.skipped.contains(&at) {
                state.apply_batch(batch, &mut effects)?;
            }
        }
        Ok(state)
    }
}
