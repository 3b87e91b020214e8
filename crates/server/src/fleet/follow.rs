//! Following: everything that the leader commits is applied here, too.

use super::{Fleet, PAUSE, head_is_gone, keys, keys::Pointer, went_astray};
use crate::{Error, clock, daemon::random, node::Node};
use lockkeeper_etcd::{Change, Watch};
use lockkeeper_service::{
    State,
    replica::{Astray, Head, Next, Operation, Replica, Reply, Revision, Verdict, decode_entry},
};
use std::{cell::RefCell, rc::Rc, time::Duration};

/// Entries that are read at a time.
const PAGE: u64 = 64;

/// How often in a row the log may be found without the same entry before it counts as damaged. A
/// running leader deletes entries while they are read; but then the next snapshot has them.
const ATTEMPTS: u32 = 10;

/// Why a follower does not go on as it did.
enum Trouble {
    /// etcd does not answer, or the watch has ended.
    Etcd(lockkeeper_etcd::Error),
    /// An entry was deleted: the newest snapshot, which has it, has to be read.
    Gone(u64),
    /// Another history of the store was accepted: it has to be read from its beginning.
    Recovered,
    /// It must not go on.
    Fatal(Error),
}

impl From<Astray> for Trouble {
    fn from(astray: Astray) -> Self {
        match astray {
            Astray::Recovered => Self::Recovered,
            Astray::WentBack { .. } => Self::Fatal(went_astray(astray, false)),
        }
    }
}

impl From<lockkeeper_etcd::Error> for Trouble {
    fn from(error: lockkeeper_etcd::Error) -> Self {
        Self::Etcd(error)
    }
}

impl From<Error> for Trouble {
    fn from(error: Error) -> Self {
        Self::Fatal(error)
    }
}

impl Fleet {
    /// Follows until it leads: then, with the state of the whole log. None if it is to stop.
    pub(super) async fn follow(&self, node: &Rc<Node>) -> Result<Option<(State, Replica)>, Error> {
        // The entry that was found to be gone, and how often in a row.
        let mut gone = None;
        let mut following = None;
        loop {
            if self.stopping.get() {
                return Ok(None);
            }
            let turn = tokio::select! {
                turn = self.turn(node, &mut following, &mut gone) => turn,
                () = self.stop.notified() => {
                    self.stopping.set(true);
                    return Ok(None);
                }
            };
            match turn {
                Ok(()) => {
                    let state = |state: Rc<RefCell<State>>| state.replace(State::new(0));
                    return Ok(following.map(|(shown, replica)| (state(shown), replica)));
                }
                Err(Trouble::Fatal(error)) => return Err(error),
                Err(Trouble::Gone(position)) => {
                    let (before, times) = gone.unwrap_or((position, 0));
                    let times = if before == position { times + 1 } else { 1 };
                    gone = Some((position, times));
                    following = None;
                    if times > ATTEMPTS {
                        return Err(Error::Fleet(format!(
                            "the log in etcd has no entry {position}, and no snapshot of it: were keys deleted?"
                        )));
                    }
                }
                Err(Trouble::Recovered) => {
                    tracing::warn!("the restored store was accepted: reading it again");
                    following = None;
                }
                // A leader does that with every snapshot. What is missing is read.
                Err(Trouble::Etcd(lockkeeper_etcd::Error::Compacted)) => {
                    tracing::debug!("the watch fell behind the history that etcd keeps");
                }
                Err(Trouble::Etcd(error)) => {
                    self.complain(&error);
                    if let Some((state, replica)) = &following {
                        self.notify_node(node, (state, replica), Some(format!("etcd: {error}")));
                    }
                    tokio::time::sleep(PAUSE).await;
                    continue;
                }
            }
        }
    }

    /// Reads what is missing, and watches. Done when this replica leads.
    async fn turn(
        &self,
        node: &Node,
        following: &mut Option<(Rc<RefCell<State>>, Replica)>,
        gone: &mut Option<(u64, u32)>,
    ) -> Result<(), Trouble> {
        let ((state, replica), revision) = match following {
            Some(following) => {
                let (seen, revision) = self.find_head(following.1.head().is_some()).await?;
                following.1.saw(seen, clock::now())?;
                (following, revision)
            }
            None => {
                // The snapshot first: a head that is read after it has all that the snapshot has.
                let state = self.load().await?;
                let (seen, revision) = self.find_head(state.position() > 0).await?;
                let replica = Replica::follow(self.replica_config(), state.position(), seen, clock::now());
                (following.insert((Rc::new(RefCell::new(state)), replica?)), revision)
            }
        };
        self.catch_up(state, replica).await?;
        let mut watch = self.etcd.watch(&self.keys.head(), revision + 1).await?;
        *gone = None;
        self.notify_node(node, (state, replica), None);
        loop {
            let left = replica.takes_over_at().saturating_sub(clock::now());
            tokio::select! {
                // Changes first: they may show that no takeover is needed.
                biased;
                change = watch.next() => self.on_change(node, change?, state, replica)?,
                () = tokio::time::sleep(Duration::from_micros(left)) => {
                    if self.take_over(state, replica).await? {
                        return Ok(());
                    }
                    self.notify_node(node, (state, replica), None);
                    if replica.lag() > 0 {
                        return Err(silent(watch));
                    }
                }
            }
        }
    }

    /// The head, and the revision of the store. There must be one if there was one before.
    async fn find_head(&self, was_there: bool) -> Result<(Option<(Head, Revision)>, Revision), Trouble> {
        let (seen, revision) = self.etcd.get(&self.keys.head()).await?;
        let seen = keys::head(seen)?;
        if seen.is_none() && was_there {
            return Err(head_is_gone(&self.keys).into());
        }
        self.see(seen.as_ref())?;
        Ok((seen, revision))
    }

    fn on_change(
        &self,
        node: &Node,
        change: Change,
        state: &Rc<RefCell<State>>,
        replica: &mut Replica,
    ) -> Result<(), Trouble> {
        if change.kv.key != self.keys.head() {
            // A snapshot has the entries that are deleted. The next entry shows whether this
            // replica has them.
            return match change.deleted {
                true => Ok(()),
                false => apply(&change.kv.value, &mut state.borrow_mut(), replica),
            };
        }
        if change.deleted {
            return Err(head_is_gone(&self.keys).into());
        }
        let before = replica.head().map(|head| (head.owner, head.vacant));
        if let Some((head, revision)) = keys::head(Some(change.kv))? {
            replica.watched(head, revision, clock::now())?;
        }
        self.see(replica.seen().as_ref())?;
        node.set_progress(replica.position(), replica.lag());
        if before != replica.head().map(|head| (head.owner, head.vacant)) || node.not_ready_reason().is_some()
        {
            self.notify_node(node, (state, replica), None);
        }
        Ok(())
    }

    /// Takes over if it is time. False if another one leads.
    async fn take_over(&self, state: &RefCell<State>, replica: &mut Replica) -> Result<bool, Trouble> {
        let recovery = self.recovery(&state.borrow(), replica);
        let owner = u64::from_le_bytes(random());
        let Some(operation) = replica.take_over(clock::now(), owner, recovery) else {
            return Ok(false);
        };
        let stuck = async |_: &lockkeeper_etcd::Error| {
            tokio::time::sleep(PAUSE).await;
            let seen = self.read_head().await?;
            // Another one may have taken over, where etcd has room.
            let waits = matches!(&operation, Operation::Write { guard, .. } if *guard == seen);
            (!waits).then_some(Reply::Seen(seen))
        };
        let reply = self.execute(&operation, stuck).await?;
        let verdict = replica.answered(reply, clock::now())?;
        self.see(replica.seen().as_ref())?;
        Ok(verdict == Verdict::Done)
    }

    /// The state of the newest snapshot.
    async fn load(&self) -> Result<State, Trouble> {
        let seed = u64::from_le_bytes(random());
        let (Some(pointer), _) = self.etcd.get(&self.keys.snapshot()).await? else {
            return Ok(State::new(seed));
        };
        let damaged = |why: String| Error::Fleet(format!("the snapshot in etcd: {why}"));
        let pointer: Pointer =
            serde_json::from_slice(&pointer.value).map_err(|error| damaged(error.to_string()))?;
        let (mut first, end) = self.keys.chunks(&pointer.id);
        let (mut bytes, mut chunks) = (Vec::new(), 0);
        loop {
            let (page, more) = self.etcd.range(&first, &end, 8).await?;
            if let Some(last) = page.last() {
                first = last.key.clone();
                first.push(0);
            }
            chunks += page.len() as u64;
            page.iter().for_each(|kv| bytes.extend_from_slice(&kv.value));
            if !more {
                break;
            }
        }
        // A newer one has replaced it in the meantime.
        if chunks != pointer.chunks {
            return Err(Trouble::Gone(pointer.position));
        }
        Ok(State::restore([bytes], seed).map_err(|error| damaged(error.to_string()))?)
    }

    /// Reads and applies the entries that are missing.
    async fn catch_up(&self, state: &RefCell<State>, replica: &mut Replica) -> Result<(), Trouble> {
        while replica.lag() > 0 {
            let (next, ring) = (replica.position() + 1, super::RING);
            let slot = next % ring;
            let last = (slot + PAGE.min(replica.lag()) - 1).min(ring - 1);
            let (page, _) =
                self.etcd.range(&self.keys.entry(slot), &self.keys.entry(last + 1), usize::MAX).await?;
            for kv in page {
                apply(&kv.value, &mut state.borrow_mut(), replica)?;
            }
            if replica.position() < next {
                return Err(Trouble::Gone(next));
            }
        }
        Ok(())
    }
}

fn apply(entry: &[u8], state: &mut State, replica: &mut Replica) -> Result<(), Trouble> {
    let damaged = |error: lockkeeper_service::Damaged| Error::Fleet(format!("the log in etcd: {error}"));
    let (position, batch) = decode_entry(entry).map_err(damaged)?;
    match replica.entry(position, entry.len()) {
        Next::Skip => return Ok(()),
        Next::Missing => return Err(Trouble::Gone(replica.position() + 1)),
        Next::Apply => {}
    }
    let mut effects = Vec::new();
    match state.apply_batch(batch, &mut effects).map_err(damaged)? {
        true => Ok(()),
        false => {
            let why = "the log in etcd has records of a later version of Lockkeeper: upgrade this daemon";
            Err(Error::Fleet(why.into()).into())
        }
    }
}

/// The head was not watched, though it changed: the watch lags, or its member is cut off.
fn silent(watch: Watch) -> Trouble {
    drop(watch);
    Trouble::Etcd(lockkeeper_etcd::Error::NoAnswer { member: "a watch".into(), why: "it lags behind".into() })
}
