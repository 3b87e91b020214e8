//! Answers that only look: queries, and deadlocks.

use super::{Server, client_id};
use crate::state::{SessionId, State, Ticket};
use lockkeeper_core::{Deadlock, Live, Mode, Options, RequestError, WaitsFor};
use lockkeeper_wire::v2::{self, Entry, ToClient, code};

/// How many entries stand in one message of an answer, and how many bytes they have, about.
const ENTRIES: usize = 1000;
const PART: usize = 256 << 10;

impl Server {
    /// The cycle that a request would close if it waited. Leaves everything as it was.
    pub(super) fn would_deadlock(
        &mut self,
        session: SessionId,
        scope: &[(&[u8], Mode)],
        nested_in: Option<(u64, u64)>,
    ) -> Option<Deadlock> {
        let (manager, client, outer) = self.state.probe(session, nested_in)?;
        // Without nesting there is no cycle: it need not be tried.
        let outer = outer?;
        let options = Options { nested_in: Some(outer), refuse_deadlock: true, ..Options::default() };
        let ticket = Ticket { session, rid: 0, since: 0, info: None };
        let mut effects = Vec::new();
        match manager.request(client, scope, options, ticket, &mut effects) {
            Err(RequestError::Deadlock(deadlock)) => Some(deadlock),
            outcome => {
                if let Ok(lockkeeper_core::Outcome::Queued { request }) = outcome {
                    manager.withdraw(request);
                }
                None
            }
        }
    }

    pub(super) fn answer_deadlock(&mut self, session: SessionId, rid: u64, deadlock: &Deadlock) {
        let inspects = self.attached.get(&session).is_some_and(|attached| attached.rights.inspect);
        let words = describe(&self.state, session, deadlock, inspects);
        let deadlock = words.to_wire();
        self.send(session, &ToClient::Deadlocked { rid, deadlock });
    }

    pub(super) fn answer_query(
        &mut self,
        session: SessionId,
        rid: u64,
        name: Option<&[u8]>,
        deadlocks: bool,
        inspects: bool,
    ) {
        let Some(manager) = self.state.manager(session) else { return };
        let mut rows: Vec<Row> = Vec::new();
        // The newest batch may be old.
        let time = self.wall.max(self.state.time());
        let mut add = |live: Live<'_, Ticket>| {
            for (entry, mode) in live.scope() {
                if name.is_none_or(|name| name == entry.as_bytes()) {
                    rows.push(Row::new(&self.state, time, live, entry.as_bytes().into(), mode));
                }
            }
        };
        match name {
            Some(name) => manager.queue(name).for_each(|(live, _)| add(live)),
            None => manager.requests().for_each(&mut add),
        }
        rows.sort_by_key(|row| (row.token.is_none(), row.arrival));
        let deadlocks: Vec<_> = match deadlocks {
            true => manager
                .deadlocks()
                .iter()
                .map(|deadlock| describe(&self.state, session, deadlock, inspects))
                .collect(),
            false => Vec::new(),
        };
        let last_token = if inspects { manager.last_token() } else { 0 };
        // What does not fit would cost the client its connection.
        if rows.iter().map(Row::size).sum::<usize>() > self.config.backlog / 2 {
            let message = "limit reached: the answer is too long; ask for one name";
            self.counts.refused += 1;
            return self.send(session, &ToClient::Refused { rid, code: code::LIMIT, message });
        }
        let mut cycles = deadlocks.iter().map(Words::to_wire).collect();
        let mut rest = &rows[..];
        loop {
            let (part, others) = rest.split_at(part_len(rest));
            rest = others;
            let entries = part.iter().map(|row| row.to_wire(session, inspects)).collect();
            let (deadlocks, more) = (std::mem::take(&mut cycles), !rest.is_empty());
            self.send(session, &ToClient::Snapshot { rid, entries, deadlocks, last_token, more });
            if !more {
                return;
            }
        }
    }
}

/// How many of these rows stand in the next part of an answer: one at least, if there are any.
fn part_len(rows: &[Row]) -> usize {
    let mut bytes = 0;
    let fits = |row: &&Row| {
        bytes += row.size();
        bytes <= PART
    };
    rows.iter().take(ENTRIES).take_while(fits).count().max(1).min(rows.len())
}

/// One name of one request.
struct Row {
    name: Box<[u8]>,
    mode: Mode,
    session: SessionId,
    client_id: String,
    arrival: u64,
    token: Option<u64>,
    info: Option<Box<str>>,
    since: u64,
    nested_in: Option<u64>,
    stole: bool,
    owner: Box<str>,
}

impl Row {
    fn new(state: &State, time: u64, live: Live<'_, Ticket>, name: Box<[u8]>, mode: Mode) -> Self {
        let ticket = live.data();
        Self {
            name,
            mode,
            session: ticket.session,
            client_id: client_id(ticket.session),
            arrival: live.id().arrival(),
            token: live.token().map(|token| token.get()),
            info: ticket.info.clone(),
            since: time.saturating_sub(ticket.since),
            nested_in: live.nested_in().map(|outer| outer.arrival()),
            stole: live.stole(),
            owner: state.session(ticket.session).map(|view| view.owner.into()).unwrap_or_default(),
        }
    }

    /// How many bytes it has in a message, at most.
    fn size(&self) -> usize {
        let info = self.info.as_ref().map_or(0, |info| info.len());
        128 + self.name.len() + info + self.owner.len()
    }

    /// Without the right to inspect, a client sees of others what the specification's snapshot has.
    fn to_wire(&self, viewer: SessionId, inspects: bool) -> Entry<'_> {
        let all = inspects || self.session == viewer;
        Entry {
            name: &self.name,
            mode: self.mode,
            client_id: &self.client_id,
            arrival: self.arrival,
            token: self.token.map(|token| if all { token } else { 0 }),
            info: self.info.as_deref().filter(|_| all),
            since: if all { self.since } else { 0 },
            nested_in: self.nested_in.filter(|_| all),
            stole: self.stole && all,
            owner: Some(&*self.owner).filter(|owner| all && !owner.is_empty()),
        }
    }
}

/// A request's arrival, its client id, and the name it waits for.
type CycleStep = (u64, String, Option<Box<[u8]>>);

/// A cycle, in words and steps.
struct Words {
    words: String,
    steps: Vec<CycleStep>,
}

impl Words {
    fn to_wire(&self) -> v2::Deadlock<'_> {
        let cycle = self.steps.iter().map(|(arrival, client_id, waits_for)| v2::Step {
            arrival: *arrival,
            client_id,
            waits_for: waits_for.as_deref(),
        });
        v2::Deadlock { words: &self.words, cycle: cycle.collect() }
    }
}

fn describe(state: &State, viewer: SessionId, deadlock: &Deadlock, inspects: bool) -> Words {
    if !inspects {
        return Words { words: "deadlock: the token does not allow to see it".into(), steps: Vec::new() };
    }
    let manager = state.manager(viewer);
    let owner = |request| {
        let live = manager.and_then(|manager| manager.get(request));
        // The request that was just refused is of the viewer's own.
        client_id(live.map_or(viewer, |live| live.data().session))
    };
    let words = deadlock.describe(|step| (step.request.arrival(), owner(step.request)));
    let steps = deadlock.cycle.iter().map(|step| {
        let waits_for = match &step.waits_for {
            WaitsFor::Name(name) => Some(name.as_bytes().into()),
            WaitsFor::Nested => None,
        };
        (step.request.arrival(), owner(step.request), waits_for)
    });
    Words { words, steps: steps.collect() }
}
