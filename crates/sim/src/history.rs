//! The oracle's view of the log: a second state, made from committed records, and the required
//! properties of their effects.

use crate::{
    client::{Kind, Wish},
    simulation::{Simulation, note},
};
use lockkeeper_core::{Mode, Name};
use lockkeeper_service::{Effect, Key, SessionId, State};
use std::collections::BTreeMap;

/// What was committed.
pub(crate) struct History {
    /// The state of the log, with a separate hash seed.
    pub(crate) replica: State,
    /// Whose wish a request is.
    pub(crate) numbers: BTreeMap<(SessionId, u64), (usize, Key)>,
    /// By bucket: what is live, in the order of the log.
    queues: BTreeMap<String, Vec<Queued>>,
    /// By bucket: the greatest token granted in the log, and the greatest that a client has
    /// received.
    tokens: BTreeMap<String, (u64, u64)>,
    /// By bucket, name and token: the client that received it.
    told: BTreeMap<(String, Vec<u8>, u64), (usize, Key)>,
    /// By session: its bucket. Sessions that ended, too.
    buckets: BTreeMap<SessionId, String>,
    batches: u64,
}

struct Queued {
    session: SessionId,
    rid: u64,
    scope: Vec<(Name, Mode)>,
    held: bool,
}

impl History {
    pub(crate) fn new(hash_seed: u64) -> Self {
        Self {
            replica: State::new(hash_seed),
            numbers: BTreeMap::new(),
            queues: BTreeMap::new(),
            tokens: BTreeMap::new(),
            told: BTreeMap::new(),
            buckets: BTreeMap::new(),
            batches: 0,
        }
    }

    /// The log has lost its tail, or is another one than was thought.
    pub(crate) fn reload(&mut self, replica: State) {
        self.replica = replica;
        self.queues.clear();
        self.tokens.values_mut().for_each(|(given, _)| *given = 0);
    }
}

/// Whether two scopes have a name that they cannot both have.
pub(crate) fn conflict(one: &[(Name, Mode)], other: &[(Name, Mode)]) -> bool {
    let both_share = |mode: Mode, other: Mode| mode == Mode::Shared && other == Mode::Shared;
    one.iter()
        .any(|(name, mode)| other.iter().any(|(known, others)| name == known && !both_share(*mode, *others)))
}

impl Simulation {
    /// A batch is committed. Whether its server waits for leases that its log does not know.
    pub(crate) fn committed(&mut self, batch: &[u8], blind: bool) {
        let mut effects = Vec::new();
        match self.history.replica.apply_batch(batch, &mut effects) {
            Ok(true) => {}
            Ok(false) => return self.fail("a batch has an unknown level"),
            Err(damaged) => return self.fail(format!("the log is damaged: {damaged}")),
        }
        let sessions: Vec<_> = self.history.replica.sessions().collect();
        for id in sessions {
            if let Some(view) = self.history.replica.session(id) {
                self.history.buckets.entry(id).or_insert_with(|| view.bucket.into());
            }
        }
        if blind {
            // All sessions end, one after the other: grants in between are sent to no client.
            self.history.queues.clear();
            return;
        }
        note!(self, "committed {}: {effects:?}", self.history.replica.position());
        for effect in &effects {
            self.check_effect(effect);
        }
        self.history.batches += 1;
    }

    fn wish_of(&mut self, session: SessionId, rid: u64) -> Option<&mut Wish> {
        let &(client, key) = self.history.numbers.get(&(session, rid))?;
        self.clients[client].wishes.get_mut(&key)
    }

    fn check_effect(&mut self, effect: &Effect) {
        match *effect {
            Effect::Granted { session, rid, token, new, .. } => {
                self.check_token(session, rid, token);
                match new {
                    true => self.enqueue(session, rid, true),
                    false => self.grant(session, rid),
                }
            }
            Effect::Queued { session, rid, .. } => self.enqueue(session, rid, false),
            Effect::Released { session, rid, .. } => {
                self.dequeue(session, rid);
                self.check_commands(session, Some(rid));
            }
            Effect::Broken { session, rid, cause, .. } => {
                self.dequeue(session, rid);
                if let Some(wish) = self.wish_of(session, rid) {
                    wish.broken = Some(cause);
                }
            }
            Effect::Outcome { session, rid, .. } => {
                let Some(wish) = self.wish_of(session, rid) else { return };
                wish.made += 1;
                if wish.made > 1 || !matches!(wish.kind, Kind::ForceRelease | Kind::EndSession) {
                    let what = format!("{rid} of {session:016x} is done twice");
                    self.fail(what);
                }
            }
            Effect::Ended { session, by_other, .. } => {
                let bucket = self.history.buckets.get(&session).cloned().unwrap_or_default();
                let queue = self.history.queues.entry(bucket).or_default();
                queue.retain(|queued| queued.session != session);
                if by_other {
                    self.excuse(session);
                }
                self.check_commands(session, None);
            }
        }
    }

    /// Another client has ended a session: until its client is notified, its locks may seem valid
    /// to it.
    pub(crate) fn excuse(&mut self, session: SessionId) {
        for client in &mut self.clients {
            let of_session = |wish: &&mut Wish| wish.number.is_some_and(|(id, _)| id == session);
            client.wishes.values_mut().filter(of_session).for_each(|wish| wish.ended = true);
        }
    }

    /// A request is made. No request that waits is overtaken, nothing that is held is given out
    /// again, and no wish is made twice.
    fn enqueue(&mut self, session: SessionId, rid: u64, held: bool) {
        let Some(wish) = self.wish_of(session, rid) else {
            return self.fail(format!("nobody made request {rid} of {session:016x}"));
        };
        wish.made += 1;
        if wish.made > 1 {
            return self.fail(format!("request {rid} of {session:016x} is made twice"));
        }
        let scope = wish.scope.clone();
        let steals = wish.steal;
        if self.plan.never_refuses() && self.overtakes_own(session, rid) {
            return self.fail(format!(
                "request {rid} of {session:016x} is made before an earlier one of its client"
            ));
        }
        let bucket = self.history.buckets.get(&session).cloned().unwrap_or_default();
        let queue = self.history.queues.entry(bucket).or_default();
        let before = |queued: &&Queued| (queued.held || !steals) && conflict(&queued.scope, &scope);
        let ahead = queue.iter().find(before).map(|queued| (queued.session, queued.rid));
        queue.push(Queued { session, rid, scope, held });
        if let (Some((other, number)), true) = (ahead, held) {
            self.fail(format!(
                "request {rid} of {session:016x} is granted although {number} of {other:016x} was before it"
            ));
        }
    }

    /// Whether a client has sent an earlier conflicting request in the same session that has not
    /// arrived yet.
    fn overtakes_own(&self, session: SessionId, rid: u64) -> bool {
        let Some(&(client, key)) = self.history.numbers.get(&(session, rid)) else { return false };
        let client = &self.clients[client];
        let scope = &client.wishes[&key].scope;
        client.live.iter().any(|earlier| {
            let wish = &client.wishes[earlier];
            let same = wish.number.is_some_and(|(id, _)| id == session);
            let asked = !wish.conditional && !wish.given_up && wish.made == 0;
            *earlier < key && same && asked && conflict(&wish.scope, scope)
        })
    }

    /// A request that waited is granted: nothing before it may conflict, nor anything that is held.
    fn grant(&mut self, session: SessionId, rid: u64) {
        let bucket = self.history.buckets.get(&session).cloned().unwrap_or_default();
        let queue = self.history.queues.entry(bucket).or_default();
        let Some(at) = queue.iter().position(|queued| (queued.session, queued.rid) == (session, rid)) else {
            return self.fail(format!("request {rid} of {session:016x} is granted and does not wait"));
        };
        let was_held = std::mem::replace(&mut queue[at].held, true);
        let scope = &queue[at].scope;
        let in_the_way = |(place, queued): (usize, &Queued)| {
            place != at && (place < at || queued.held) && conflict(&queued.scope, scope)
        };
        let overtaken = queue.iter().enumerate().any(in_the_way);
        if was_held || overtaken {
            self.fail(format!(
                "request {rid} of {session:016x} is granted out of order, or twice: {was_held} {overtaken}"
            ));
        }
    }

    fn dequeue(&mut self, session: SessionId, rid: u64) {
        let bucket = self.history.buckets.get(&session).cloned().unwrap_or_default();
        let queue = self.history.queues.entry(bucket).or_default();
        queue.retain(|queued| (queued.session, queued.rid) != (session, rid));
    }

    /// Tokens grow, over restarts and crashes.
    fn check_token(&mut self, session: SessionId, rid: u64, token: u64) {
        let bucket = self.history.buckets.get(&session).cloned().unwrap_or_default();
        let (given, told) = self.history.tokens.entry(bucket).or_default();
        let known = *given.max(told);
        *given = token.max(*given);
        if token <= known {
            self.fail(format!("request {rid} of {session:016x} gets token {token}, after {known}"));
        }
    }

    /// A client receives a token: for one name, none is used twice.
    pub(crate) fn check_told_token(
        &mut self,
        client: usize,
        key: Key,
        bucket: &str,
        scope: &[(Name, Mode)],
        token: u64,
    ) {
        let (_, told) = self.history.tokens.entry(bucket.into()).or_default();
        *told = token.max(*told);
        for (name, _) in scope {
            let before =
                self.history.told.insert((bucket.into(), name.as_bytes().into(), token), (client, key));
            if let Some((other, known)) = before {
                self.fail(format!(
                    "token {token} of {name} was told to {other}/{known} and to {client}/{key}"
                ));
            }
        }
    }

    /// A state that was read from the log is that of the log.
    pub(crate) fn check_replica(&mut self, state: &mut State) {
        let (read, known) = (state.snapshot(), self.history.replica.snapshot());
        if read != known {
            let replica = &self.history.replica;
            self.fail(format!("the log was read as {state:?} {read:?}, and has {replica:?} {known:?}"));
        }
    }

    /// A server's state is that of the log. Looked at now and then.
    pub(crate) fn compare_with_replica(&mut self, index: usize) {
        if !self.history.batches.is_multiple_of(32) {
            return;
        }
        // One that no longer leads may be ahead by its own batch.
        let lead = self.daemons[index].lead.as_ref();
        if lead.is_some_and(|lead| self.store.owner() != Some(lead.owner)) {
            return;
        }
        let Some(server) = &mut self.daemons[index].server else { return };
        if server.state().position() == self.history.replica.position()
            && server.state_mut().snapshot() != self.history.replica.snapshot()
        {
            self.fail("a server's state is not that of its log");
        }
    }

    /// The snapshot on the disk and the batches after it are the state.
    pub(crate) fn check_disk(&mut self) {
        match self.disk.load(7) {
            Ok(mut state) => self.check_replica(&mut state),
            Err(damaged) => self.fail(format!("a snapshot cannot be read: {damaged}")),
        }
    }
}
