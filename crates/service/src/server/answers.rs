//! Read-only answers: queries, and deadlocks.

use super::{ConnectionId, Server, client_id};
use crate::{
    state::{RequestOwner, SessionId, State},
    view::{PART, Row, Rows},
};
use lockkeeper_core::{Deadlock, Mode, Name, Options, Outcome, WaitsFor};
use lockkeeper_wire::v2::{self, ToClient, code};

/// How many long answers may be on their way at a time, and how many more questions a client may
/// have.
const VIEWS: usize = 16;
const QUERIES: usize = 64;

/// Bytes of the names in questions of a client that wait for the one before.
const NAMES: usize = 4 << 10;

/// Bytes of a name that a deadlock's description has.
const NAME: usize = 256;

/// A client with so much to read does not read its long answer: another may have its place.
pub(super) const UNREAD: usize = 64 << 10;

/// How far a search for a deadlock goes.
const SEARCH: usize = 1000;

/// A question that is answered in parts, or waits for the one before.
pub(super) struct Query {
    rid: u64,
    name: Option<Box<[u8]>>,
    deadlocks: bool,
    inspects: bool,
    /// It is the whole state for a subscription.
    subscribed: bool,
    /// Its answer is on its way.
    begun: bool,
}

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
        let options = Options { nested_in: Some(outer), ..Options::default() };
        let owner = RequestOwner { session, rid: 0, since: 0, info: None, bytes: 0 };
        let outcome = manager.request(client, scope, options, owner, &mut Vec::new());
        let Ok(Outcome::Queued { request }) = outcome else { return None };
        let mut steps = SEARCH;
        let found = manager.deadlock_within(request, &mut steps);
        manager.withdraw(request);
        // It was put into all its queues, and taken out of them.
        self.work += (SEARCH - steps + 2 * scope.len()) as u64;
        found
    }

    pub(super) fn answer_deadlock(&mut self, session: SessionId, rid: u64, mut deadlock: Deadlock) {
        let inspects = self.attached.get(&session).is_some_and(|attached| attached.rights.inspect);
        let words = describe(&self.state, session, &mut deadlock, inspects);
        let deadlock = words.to_wire();
        self.send(session, &ToClient::Deadlocked { rid, deadlock });
    }

    /// Takes a question: it is answered at once if that is little work.
    pub(super) fn query(
        &mut self,
        id: ConnectionId,
        session: SessionId,
        rid: u64,
        name: Option<&[u8]>,
        deadlocks: bool,
        inspects: bool,
    ) {
        let longest = self.config.limits.name_bytes.saturating_add(1);
        let Some(connection) = self.connections.get_mut(&id) else { return };
        let waiting = connection.queries.iter().skip(1).filter_map(|query| query.name.as_ref());
        let waiting = waiting.map(|name| name.len()).sum::<usize>() + name.map_or(0, <[u8]>::len);
        let waits = !connection.queries.is_empty();
        if connection.queries.len() > QUERIES || waits && waiting > NAMES {
            return self.send_refusal(
                session,
                rid,
                code::LIMIT,
                "limit reached: too many concurrent queries",
            );
        }
        connection.queries.push_back(Query {
            rid,
            // A longer name than the limit cannot exist.
            name: name.map(|name| name[..name.len().min(longest)].into()),
            deadlocks,
            inspects,
            subscribed: false,
            begun: false,
        });
        if connection.queries.len() == 1 {
            self.begin_answer(id, session);
        }
    }

    /// Queues the whole state, for a subscription.
    pub(super) fn query_all(&mut self, id: ConnectionId, session: SessionId, rid: u64) {
        let Some(connection) = self.connections.get_mut(&id) else { return };
        let (name, deadlocks, inspects, begun) = (None, false, true, false);
        connection.queries.push_back(Query { rid, name, deadlocks, inspects, subscribed: true, begun });
        if connection.queries.len() == 1 {
            self.begin_answer(id, session);
        }
    }

    /// Goes on with the answers of a connection, for a little while. While it [has
    /// more](Self::has_more), call it again once the others have had their turns, and the client
    /// has read what there is for it.
    pub fn go_on(&mut self, id: ConnectionId) {
        let Some(connection) = self.connections.get(&id) else { return };
        let (Some(session), Some(query)) = (connection.session, connection.queries.front()) else {
            return self.flush(id);
        };
        let Query { rid, inspects, begun, .. } = *query;
        if !begun {
            return self.begin_answer(id, session);
        }
        let Some(rows) = self.state.next_rows(id) else {
            // It had to make room for another's.
            return self.refuse_query(id, session, rid, "the answer was not read in time");
        };
        self.work += rows.work();
        let Rows { mut rows, .. } = rows;
        self.mark_unverifiable(&mut rows);
        let more = self.state.has_view(id);
        if !more || !rows.is_empty() {
            self.send_rows(session, rid, &rows, Vec::new(), inspects, more);
        }
        if !more {
            self.finish_query(id, true);
        }
    }

    /// Whether a connection has an answer to go on with, or changes to be sent.
    pub fn has_more(&self, id: ConnectionId) -> bool {
        self.connections.get(&id).is_some_and(|connection| !connection.queries.is_empty())
            || !self.subscriptions.is_empty() && self.is_flush_due(id)
    }

    /// Begins to answer the first question of a connection. If that is little work, it is over
    /// then.
    fn begin_answer(&mut self, id: ConnectionId, session: SessionId) {
        let query = self.connections.get_mut(&id).and_then(|connection| connection.queries.front_mut());
        let Some(query) = query else { return };
        query.begun = true;
        let Query { rid, ref name, deadlocks, inspects, subscribed, .. } = *query;
        let name = name.clone();
        if subscribed {
            self.listing_begins(id);
        }
        let deadlocks = if deadlocks { self.search_deadlocks(session, inspects) } else { Vec::new() };
        // The newest batch may be old.
        let time = self.wall.max(self.state.time());
        let Some(mut view) = self.state.new_view(session, None, time) else { return };
        let (rows, whole) = match &name {
            Some(name) => self.state.queue_rows(session, name, time),
            None => self.state.take_rows(&mut view),
        };
        self.work += rows.work();
        if whole {
            let Rows { mut rows, .. } = rows;
            rows.sort_by_key(Row::order);
            self.mark_unverifiable(&mut rows);
            self.send_rows(session, rid, &rows, deadlocks, inspects, false);
            return self.finish_query(id, true);
        }
        if !self.make_place() {
            return self.refuse_query(id, session, rid, "too many concurrent long answers; query one name");
        }
        let view = self.state.new_view(session, name, time);
        self.state.views.extend(view.map(|view| (id, view)));
        if !deadlocks.is_empty() {
            self.send_rows(session, rid, &[], deadlocks, inspects, true);
        }
    }

    /// The state for a subscription is sent later instead.
    fn refuse_query(&mut self, id: ConnectionId, session: SessionId, rid: u64, why: &str) {
        let query = self.connections.get(&id).and_then(|connection| connection.queries.front());
        if query.is_some_and(|query| !query.subscribed) {
            self.send_refusal(session, rid, code::LIMIT, &format!("limit reached: {why}"));
        }
        self.finish_query(id, false);
    }

    fn finish_query(&mut self, id: ConnectionId, whole: bool) {
        let query = self.connections.get_mut(&id).and_then(|connection| connection.queries.pop_front());
        if query.is_some_and(|query| query.subscribed) {
            self.listing_ends(id, whole);
        }
    }

    /// Whether there may be one more long answer: one whose client does not read gives way.
    fn make_place(&mut self) -> bool {
        if self.state.views.len() < VIEWS {
            return true;
        }
        let unread = |id: &&ConnectionId| {
            self.connections.get(id).is_none_or(|connection| connection.outbox.len() > UNREAD)
        };
        let stalled = self.state.views.keys().find(unread).copied();
        stalled.is_some_and(|id| self.state.views.remove(&id).is_some())
    }

    fn search_deadlocks(&mut self, session: SessionId, inspects: bool) -> Vec<Words> {
        let Some(manager) = self.state.manager(session) else { return Vec::new() };
        let mut steps = SEARCH;
        let mut found = manager.deadlocks_within(&mut steps);
        let describe = |deadlock| describe(&self.state, session, deadlock, inspects);
        let mut words: Vec<_> = found.iter_mut().map(describe).collect();
        if steps == 0 {
            let not_all =
                "there may be more deadlocks: so many requests are nested that the search was cut short";
            words.push(Words { words: not_all.into(), steps: Vec::new() });
        }
        self.work += (SEARCH - steps) as u64;
        words
    }

    fn send_rows(
        &mut self,
        session: SessionId,
        rid: u64,
        rows: &[Row],
        deadlocks: Vec<Words>,
        inspects: bool,
        more: bool,
    ) {
        let last_token = match self.state.manager(session) {
            Some(manager) if inspects => manager.last_token(),
            _ => 0,
        };
        let mut cycles = deadlocks.iter().map(Words::to_wire).collect();
        let mut rest = rows;
        loop {
            let (part, others) = rest.split_at(part_len(rest));
            rest = others;
            let entries = part.iter().map(|row| row.to_wire(session, inspects)).collect();
            let (deadlocks, more) = (std::mem::take(&mut cycles), more || !rest.is_empty());
            self.send(session, &ToClient::Snapshot { rid, entries, deadlocks, last_token, more });
            if rest.is_empty() {
                return;
            }
        }
    }
}

/// The number of rows in the next part of an answer: one at least, if there are any.
fn part_len(rows: &[Row]) -> usize {
    let mut bytes = 0;
    let fits = |row: &&Row| {
        bytes += row.size();
        bytes <= PART
    };
    rows.iter().take_while(fits).count().max(1).min(rows.len())
}

/// A request's arrival, its client id, and the name it waits for.
type CycleStep = (u64, String, Option<Box<[u8]>>);

/// A cycle, as text and as steps.
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

fn describe(state: &State, viewer: SessionId, deadlock: &mut Deadlock, inspects: bool) -> Words {
    if !inspects {
        return Words { words: "deadlock: the token does not allow seeing it".into(), steps: Vec::new() };
    }
    for step in &mut deadlock.cycle {
        if let WaitsFor::Name(name) = &mut step.waits_for
            && name.as_bytes().len() > NAME
        {
            *name = shortened(name);
        }
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

/// The beginning of a long name, not within a character.
fn shortened(name: &Name) -> Name {
    let bytes = name.as_bytes();
    let is_start = |&at: &usize| bytes[at] & 0xC0 != 0x80;
    let end = (NAME - 3..=NAME).rev().find(is_start).unwrap_or(NAME);
    Name::from(&[&bytes[..end], "…".as_bytes()].concat()[..])
}
