//! The shared log: entries at positions, and the leader's key, whose revision every write compares and changes.
//!
//! It executes one operation after the other, each at one instant, whenever it arrives. Requests and replies may be late or
//! lost; the same request may arrive twice.

use crate::{
    clock::ticks,
    rules::DriverRule,
    world::{Happening, World, note},
};
use std::collections::BTreeMap;

/// A daemon in one of its lives.
pub(crate) type Owner = (usize, u64);

/// The shared log.
#[derive(Default)]
pub(crate) struct Store {
    pub(crate) entries: Vec<Entry>,
    /// A whole snapshot, and how many entries it has in it.
    pub(crate) snapshot: Option<(usize, Vec<u8>)>,
    /// Who leads. Nobody after a hand-over.
    pub(crate) owner: Option<Owner>,
    /// Of the leader's key.
    pub(crate) revision: u64,
    operations: BTreeMap<u64, Operation>,
    last_operation: u64,
}

/// One entry of the log.
pub(crate) struct Entry {
    /// The operation that wrote it.
    pub(crate) operation: u64,
    /// Empty if it only says that another daemon leads.
    pub(crate) batch: Vec<u8>,
}

#[derive(Clone, Debug)]
pub(crate) enum Request {
    /// Appends a batch as the next entry.
    Append { guard: u64, batch: Vec<u8> },
    /// Rewrites the leader's key.
    Beat { guard: u64 },
    /// Makes a snapshot valid.
    Snapshot { guard: u64, at: usize, bytes: Vec<u8> },
    /// Makes the sender the leader, with an entry of that index.
    TakeOver { guard: u64, at: usize },
    /// Leaves the key to whoever takes it.
    HandOver { guard: u64 },
    /// Looks at the key and at the entry that an operation wrote, or did not.
    Read { at: usize, operation: u64 },
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum Reply {
    /// It was done: the key has this revision.
    Done(u64),
    /// The key had another revision.
    Refused,
    /// What a read shows.
    Seen { owner: Option<Owner>, revision: u64, written: bool, taken: bool },
}

struct Operation {
    sender: Owner,
    request: Request,
    reply: Option<Reply>,
}

impl World {
    /// Sends a new operation to the log.
    pub(crate) fn send_to_log(&mut self, daemon: usize, request: Request) -> u64 {
        let sender = (daemon, self.daemons[daemon].life);
        self.store.last_operation += 1;
        let id = self.store.last_operation;
        note!(self, "D{daemon} -> log #{id} {request:?}");
        self.store.operations.insert(id, Operation { sender, request, reply: None });
        self.resend_to_log(daemon, id);
        id
    }

    /// Sends an operation, perhaps once more.
    pub(crate) fn resend_to_log(&mut self, daemon: usize, id: u64) {
        if !self.log_message_is_lost() {
            let at = self.now + ticks(self.log_delay());
            self.at(at.max(self.daemons[daemon].partitioned_until), Happening::LogRequest(id));
        }
        let life = self.daemons[daemon].life;
        self.after(self.plan.takeover_after / 2, Happening::LogTimeout { daemon, life, operation: id });
    }

    fn log_message_is_lost(&mut self) -> bool {
        !self.calm && self.random.chance(self.plan.lose_log_message)
    }

    fn log_delay(&mut self) -> u64 {
        if self.calm { self.random.below(200) } else { self.plan.log_delay.choose(&mut self.random) }
    }

    /// A request arrives and is executed.
    pub(crate) fn log_request(&mut self, id: u64) {
        let Some(operation) = self.store.operations.get(&id) else { return };
        let (sender, request) = (operation.sender, operation.request.clone());
        let reply = self.execute(id, sender, request);
        note!(self, "log executes #{id} of D{}: {reply:?}", sender.0);
        if let Some(operation) = self.store.operations.get_mut(&id) {
            operation.reply = Some(reply);
        }
        if !self.log_message_is_lost() {
            let at = self.now + ticks(self.log_delay());
            self.at(at.max(self.daemons[sender.0].partitioned_until), Happening::LogReply(id));
        }
    }

    fn execute(&mut self, id: u64, sender: Owner, request: Request) -> Reply {
        let store = &mut self.store;
        let expected = match request {
            Request::Append { guard, .. } if self.plan.keeps(DriverRule::AppendComparesLeader) => Some(guard),
            Request::TakeOver { guard, .. } if self.plan.keeps(DriverRule::TakeoverComparesLeader) => {
                Some(guard)
            }
            Request::Beat { guard } | Request::HandOver { guard } | Request::Snapshot { guard, .. } => {
                Some(guard)
            }
            Request::Append { .. } | Request::TakeOver { .. } | Request::Read { .. } => None,
        };
        if expected.is_some_and(|guard| guard != store.revision) {
            return Reply::Refused;
        }
        match request {
            Request::Read { at, operation } => {
                let entry = store.entries.get(at);
                let written = entry.is_some_and(|entry| entry.operation == operation);
                let Store { owner, revision, .. } = *store;
                return Reply::Seen { owner, revision, written, taken: entry.is_some() };
            }
            Request::Append { batch, .. } => {
                store.revision += 1;
                self.stats.batches += 1;
                self.committed(&batch);
                self.store.entries.push(Entry { operation: id, batch });
            }
            Request::Beat { .. } => store.revision += 1,
            Request::Snapshot { at, bytes, .. } => {
                store.revision += 1;
                store.snapshot = Some((at, bytes));
                self.stats.snapshots += 1;
            }
            Request::TakeOver { at, .. } => {
                store.revision += 1;
                store.owner = Some(sender);
                if at < store.entries.len() {
                    // Only without its guard: what was committed is overwritten.
                    store.entries.truncate(at);
                    self.reload_history();
                }
                self.store.entries.push(Entry { operation: id, batch: Vec::new() });
            }
            Request::HandOver { .. } => {
                store.revision += 1;
                store.owner = None;
            }
        }
        Reply::Done(self.store.revision)
    }

    fn reload_history(&mut self) {
        match self.load_entries(self.store.entries.len(), 5) {
            Ok(state) => self.history.reload(state),
            Err(damaged) => self.fail(format!("the log cannot be read: {damaged}")),
        }
    }

    /// A reply arrives. A stalled daemon finds it when it goes on.
    pub(crate) fn log_reply(&mut self, id: u64) {
        let Some(operation) = self.store.operations.get(&id) else { return };
        let Operation { sender: (daemon, life), reply: Some(reply), .. } = *operation else { return };
        if self.daemons[daemon].life != life || !self.daemons[daemon].running {
            return;
        }
        if self.daemons[daemon].stalled {
            self.daemons[daemon].replies.push(id);
            return;
        }
        self.on_log_reply(daemon, id, reply);
    }
}
