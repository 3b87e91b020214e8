//! Leading: rounds are committed to etcd, one at a time.

use super::{
    Fleet, PAUSE, RING, head_is_gone,
    keys::Keys,
    snapshot::{self, Snapshot},
    went_astray,
};
use crate::{Error, clock, daemon::Daemon};
use lockkeeper_service::{
    State,
    replica::{Operation, Replica, Reply, Verdict},
};
use std::{cell::RefCell, rc::Rc};
use tokio::{sync::Notify, time::Instant};

/// How a leadership ends.
pub(super) enum End {
    /// Another daemon leads.
    Deposed,
    /// It has handed over.
    HandedOver,
    /// It is to stop, and etcd does not take the hand-over.
    GaveUp,
}

/// A snapshot is taken when the entries that none has have so many bytes, or as many as the
/// snapshot before: etcd has to have room for two snapshots and what is between them.
const SNAPSHOT_AT: u64 = 16 << 20;

/// etcd's history is compacted after so many revisions, and keeps so many; and after each snapshot,
/// when it keeps none.
const COMPACT_EVERY: i64 = 10_000;
const HISTORY: i64 = 1_000;

/// One leadership.
struct Lead<'a> {
    fleet: &'a Fleet,
    daemon: &'a Rc<RefCell<Daemon>>,
    replica: Replica,
    snapshots: Snapshots,
    /// How many bytes of entries are enough for another snapshot.
    enough: u64,
    /// When the head was last written.
    beat: Instant,
    compacted: i64,
}

/// The snapshot that a leader takes, if it takes one.
pub(super) struct Snapshots {
    taken: Option<Snapshot>,
    /// Told when a chunk of it is written.
    written: Rc<Notify>,
}

impl Snapshots {
    /// Begins one before the first round if the log is long. The leader before may have left a full
    /// ring, to which nothing can be appended; and what a round has recorded can be in no snapshot
    /// before that round is committed.
    pub(super) fn begin(fleet: &Fleet, state: &mut State, replica: &Replica) -> Self {
        let mut snapshots = Self { taken: None, written: Rc::default() };
        if is_long(replica) || replica.tail_bytes() >= SNAPSHOT_AT {
            snapshots.take(fleet, state, replica);
        }
        snapshots
    }

    fn take(&mut self, fleet: &Fleet, state: &mut State, replica: &Replica) {
        let owner = replica.head().map_or(0, |head| head.owner);
        let id = format!("{:016x}-{owner:016x}", state.position());
        self.taken = Some(Snapshot::begin(state, id, &fleet.etcd, Rc::clone(&self.written)));
    }
}

/// Whether much of the ring is used.
fn is_long(replica: &Replica) -> bool {
    replica.position() >= replica.head().map_or(0, |head| head.snapshot) + RING / 2
}

impl Fleet {
    /// Commits rounds until another daemon leads, or this one is to stop.
    pub(super) async fn lead(
        &self,
        daemon: &Rc<RefCell<Daemon>>,
        replica: Replica,
        snapshots: Snapshots,
    ) -> Result<End, Error> {
        let mut lead = Lead {
            fleet: self,
            daemon,
            replica,
            snapshots,
            enough: SNAPSHOT_AT,
            beat: Instant::now(),
            compacted: 0,
        };
        lead.run().await
    }
}

impl Lead<'_> {
    async fn run(&mut self) -> Result<End, Error> {
        let signals = self.daemon.borrow().signals();
        let written = Rc::clone(&self.snapshots.written);
        let mut stops = false;
        loop {
            tokio::select! {
                biased;
                () = self.fleet.stop.notified() => {
                    self.fleet.stopping.set(true);
                    self.daemon.borrow_mut().stop();
                    stops = true;
                }
                () = signals.commit.notified() => {
                    // Those that have something to say now are in this round, too.
                    tokio::task::yield_now().await;
                }
                () = written.notified() => {}
                () = tokio::time::sleep_until(self.next_beat()) => {
                    self.settle();
                    let beat = self.replica.beat();
                    if let Some(end) = self.execute(beat).await? {
                        return Ok(end);
                    }
                }
            }
            if let Some(end) = self.commit().await? {
                return Ok(end);
            }
            if stops {
                // Silent from here on: nothing is committed any more.
                let operation = self.replica.hand_over();
                return self.execute(operation).await.map(|end| end.unwrap_or(End::HandedOver));
            }
        }
    }

    /// Once the leases from before a recovery have expired, this is written to the head, before or
    /// together with the first session.
    fn settle(&mut self) {
        if !self.daemon.borrow().is_blind() {
            self.replica.settle();
        }
    }

    fn next_beat(&self) -> Instant {
        self.beat + self.fleet.store.takeover / 4
    }

    /// Commits one round. Input during that time signals again, so that a stop and heartbeats get
    /// their turn.
    async fn commit(&mut self) -> Result<Option<End>, Error> {
        loop {
            if let Some(end) = self.go_on_with_snapshot().await? {
                return Ok(Some(end));
            }
            if !self.replica.needs_snapshot() {
                break;
            }
            // The ring is full: the snapshot goes first. The leader stays one, and finds out
            // whether etcd is full, too.
            let written = tokio::time::timeout_at(self.next_beat(), self.snapshots.written.notified());
            if written.await.is_err() {
                let beat = self.replica.beat();
                if let Some(end) = self.execute(beat).await? {
                    return Ok(Some(end));
                }
            }
        }
        let Some(round) = self.daemon.borrow_mut().take_round() else { return Ok(None) };
        self.settle();
        let operation = match round.batch.is_empty() {
            // A heartbeat says the same as a read.
            true if self.next_beat() <= Instant::now() => self.replica.beat(),
            true => self.replica.confirm(),
            false => {
                self.begin_snapshot(round.batch.len());
                self.replica.append(&round.batch)
            }
        };
        if let Some(end) = self.execute(operation).await? {
            return Ok(Some(end));
        }
        self.fleet.see(self.replica.seen().as_ref())?;
        self.daemon.borrow_mut().round_done(round.number);
        Ok(None)
    }

    /// Has etcd execute an operation. Says how this leadership ends, if it does.
    async fn execute(&mut self, operation: Option<Operation>) -> Result<Option<End>, Error> {
        let Some(operation) = operation else { return Ok(None) };
        let stuck = async |error: &lockkeeper_etcd::Error| self.keep_leases(error).await;
        let reply = self.fleet.execute(&operation, stuck).await?;
        self.daemon.borrow_mut().set_stuck(None);
        match reply {
            Reply::Done(revision) => self.compact(revision),
            // It was there when this leadership began.
            Reply::Seen(None) => return Err(head_is_gone(&self.fleet.keys)),
            Reply::Seen(Some(_)) => {}
        }
        self.beat = if operation == Operation::Read { self.beat } else { Instant::now() };
        Ok(match self.replica.answered(reply, clock::now()).map_err(|astray| went_astray(astray, false))? {
            Verdict::Done => None,
            Verdict::Deposed => Some(End::Deposed),
            Verdict::HandedOver => Some(End::HandedOver),
        })
    }

    /// etcd accepts no writes: it is full, or refuses. As long as it can be read, clients get the
    /// reason, and keep their leases. Returns the read head if it is not of this leadership:
    /// another daemon leads, or the hand-over was executed.
    async fn keep_leases(&self, error: &lockkeeper_etcd::Error) -> Option<Reply> {
        let last = self.daemon.borrow_mut().set_stuck(Some(error.to_string()));
        tokio::time::sleep(PAUSE).await;
        let seen = self.fleet.read_head().await?;
        if !self.replica.is_own(seen.as_ref().map(|(head, _)| head)) {
            return Some(Reply::Seen(seen));
        }
        self.daemon.borrow_mut().send_stateless(last);
        None
    }

    /// Begins a snapshot if the log is long enough. The batch that was just taken, of so many
    /// bytes, is in it; it is pointed at after that is committed.
    fn begin_snapshot(&mut self, batch: usize) {
        let bytes = self.replica.tail_bytes() + batch as u64;
        let long = is_long(&self.replica) || bytes >= self.enough;
        if self.snapshots.taken.is_some() || !long {
            return;
        }
        let mut daemon = self.daemon.borrow_mut();
        self.snapshots.take(self.fleet, daemon.server().state_mut(), &self.replica);
    }

    async fn go_on_with_snapshot(&mut self) -> Result<Option<End>, Error> {
        let Some(snapshot) = &mut self.snapshots.taken else { return Ok(None) };
        let whole = snapshot.go_on(self.daemon.borrow_mut().server().state_mut(), &self.fleet.keys);
        if !whole || snapshot.pointer.position > self.replica.position() {
            return Ok(None);
        }
        let pointer = snapshot.pointer.clone();
        self.snapshots.taken = None;
        tracing::debug!(position = pointer.position, bytes = pointer.bytes, "snapshot taken");
        self.enough = SNAPSHOT_AT.max(pointer.bytes);
        let json = serde_json::to_vec(&pointer).map_err(|error| Error::Fleet(error.to_string()))?;
        let operation = self.replica.point(pointer.position, json);
        let end = self.execute(operation).await?;
        if end.is_none() {
            let (etcd, keys) = (self.fleet.etcd.clone(), Keys::new(&self.fleet.store.etcd.prefix));
            let own = self.fleet.store.own;
            tokio::task::spawn_local(async move { snapshot::free(&etcd, &keys, &pointer.id, own).await });
        }
        Ok(end)
    }

    /// Compacts etcd's history now and then, if the store is this fleet's own.
    fn compact(&mut self, revision: i64) {
        if !self.fleet.store.own || revision < self.compacted + COMPACT_EVERY {
            return;
        }
        self.compacted = revision;
        let etcd = self.fleet.etcd.clone();
        tokio::task::spawn_local(async move {
            let _ = etcd.compact(revision - HISTORY).await;
        });
    }
}
