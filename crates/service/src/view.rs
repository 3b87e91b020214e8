//! The answer to a long query: the state of a bucket at one moment, in parts, while records are
//! being applied.

use crate::{
    server::ClientId,
    state::{RequestOwner, Session, SessionId, State},
    walk::{RequestRef, Walk},
};
use lockkeeper_core::{Live, Mode, Name};
use lockkeeper_wire::v2::Entry;
use std::sync::Arc;

/// The end of the owner of an unverifiable session, in an answer. Entries have no field for it.
pub(crate) const UNVERIFIABLE: &str = " (unverifiable)";

/// One name of one request. A bucket may have a million: short names and no label need no
/// allocation.
pub(crate) struct Row {
    name: Name,
    mode: Mode,
    session: SessionId,
    client_id: ClientId,
    arrival: u64,
    token: Option<u64>,
    info: Option<Box<str>>,
    since: u64,
    nested_in: Option<u64>,
    stole: bool,
    owner: Arc<str>,
}

/// An answer that is on its way.
pub(crate) struct View {
    walk: Walk,
    /// The only queried name.
    name: Option<Box<[u8]>>,
    /// When it was asked, for display.
    time: u64,
    /// Requests that have changed since, as they were, and how many bytes they have.
    saved: Vec<Row>,
    pub(crate) saved_bytes: usize,
}

/// How many rows are examined at a time, and about how many bytes they have.
pub(crate) const ROWS: usize = 512;
pub(crate) const PART: usize = 256 << 10;

/// Rows of an answer. It counts how much they are: a row that is given is eight times as much as
/// what is only passed over.
#[derive(Default)]
pub(crate) struct Rows {
    pub(crate) rows: Vec<Row>,
    bytes: usize,
    eighths: usize,
}

impl Rows {
    fn push(&mut self, row: Row) {
        self.bytes += row.size();
        self.eighths += 8;
        self.rows.push(row);
    }

    fn is_full(&self) -> bool {
        self.eighths >= 8 * ROWS || self.bytes >= PART
    }

    fn add(
        &mut self,
        name: Option<&[u8]>,
        time: u64,
        session: &Session,
        live: Live<'_, RequestOwner>,
        since: Option<u64>,
    ) {
        let before = self.rows.len();
        self.eighths += view_rows(&mut self.rows, name, time, session, live, since);
        self.eighths += 7 * (self.rows.len() - before);
        self.bytes += self.rows[before..].iter().map(Row::size).sum::<usize>();
    }

    /// How much work they were.
    pub(crate) fn work(&self) -> u64 {
        self.eighths.div_ceil(8) as u64
    }
}

impl State {
    /// Begins an answer.
    pub(crate) fn new_view(&self, session: SessionId, name: Option<Box<[u8]>>, time: u64) -> Option<View> {
        let bucket = self.bucket(self.sessions.get(&session)?.bucket);
        let walk = Walk::new(self, [bucket].into_iter());
        Some(View { walk, name, time, saved: Vec::new(), saved_bytes: 0 })
    }

    /// The next rows of an answer, and whether they are the last: about as many as are examined at
    /// a time.
    pub(crate) fn take_rows(&self, view: &mut View) -> (Rows, bool) {
        let mut rows = Rows::default();
        while !rows.is_full()
            && let Some(row) = view.saved.pop()
        {
            view.saved_bytes -= row.size();
            rows.push(row);
        }
        if rows.is_full() {
            return (rows, false);
        }
        (view.walk.passed, view.walk.most) = (0, 8 * ROWS);
        let whole = self.advance(&mut view.walk, |_, session, request| {
            rows.eighths += 1;
            if let Some((_, live)) = request {
                rows.add(view.name.as_deref(), view.time, session, live, None);
            }
            !rows.is_full()
        });
        rows.eighths += view.walk.passed;
        (rows, whole)
    }

    /// The rows of one name, and whether they are all.
    pub(crate) fn queue_rows(&self, session: SessionId, name: &[u8], time: u64) -> (Rows, bool) {
        let mut rows = Rows::default();
        for (live, _) in self.manager(session).into_iter().flat_map(|manager| manager.queue(name)) {
            if rows.is_full() {
                return (rows, false);
            }
            if let Some(owner) = self.sessions.get(&live.data().session) {
                rows.add(Some(name), time, owner, live, None);
            }
        }
        (rows, true)
    }

    /// The next rows of the answer for the connection of that number. None if there is no such
    /// answer.
    pub(crate) fn next_rows(&mut self, key: u64) -> Option<Rows> {
        let mut view = self.views.remove(&key)?;
        let (rows, whole) = self.take_rows(&mut view);
        if !whole {
            self.views.insert(key, view);
        }
        Some(rows)
    }

    /// Whether the connection of that number has an answer on its way.
    pub(crate) fn has_view(&self, key: u64) -> bool {
        self.views.contains_key(&key)
    }
}

impl View {
    pub(crate) fn save(&mut self, place: &RequestRef<'_>, waiting_since: Option<u64>) {
        if self.walk.claim_request(place) {
            let Self { saved, name, time, .. } = self;
            let before = saved.len();
            view_rows(saved, name.as_deref(), *time, place.session, place.live, waiting_since);
            self.saved_bytes += self.saved[before..].iter().map(Row::size).sum::<usize>();
        }
    }
}

/// Adds the rows of a request, which waits since then, whatever it does now. Returns how many names
/// it has.
pub(crate) fn view_rows(
    rows: &mut Vec<Row>,
    name: Option<&[u8]>,
    time: u64,
    session: &Session,
    live: Live<'_, RequestOwner>,
    waiting_since: Option<u64>,
) -> usize {
    let mut names = 0;
    for (entry, mode) in live.scope() {
        names += 1;
        if name.is_none_or(|name| name == entry.as_bytes()) {
            let owner = live.data();
            rows.push(Row {
                name: entry.clone(),
                mode,
                session: owner.session,
                client_id: ClientId::new(owner.session),
                arrival: live.id().arrival(),
                token: live.token().filter(|_| waiting_since.is_none()).map(|token| token.get()),
                info: owner.info.clone(),
                since: time.saturating_sub(waiting_since.unwrap_or(owner.since)),
                nested_in: live.nested_in().map(|outer| outer.arrival()),
                stole: live.stole(),
                owner: session.owner.clone(),
            });
        }
    }
    names
}

impl Row {
    pub(crate) fn session(&self) -> SessionId {
        self.session
    }

    /// Marks the owner as unverifiable: whether its process is alive is unknown.
    pub(crate) fn mark_unverifiable(&mut self) {
        self.owner = format!("{}{UNVERIFIABLE}", self.owner).into();
    }

    /// Held first, each in the order of arrival.
    pub(crate) fn order(&self) -> (bool, u64) {
        (self.token.is_none(), self.arrival)
    }

    /// How many bytes it has in a message, at most.
    pub(crate) fn size(&self) -> usize {
        let info = self.info.as_ref().map_or(0, |info| info.len());
        128 + self.name.as_bytes().len() + info + self.owner.len()
    }

    /// Without the right to inspect, a client sees of others what the specification's snapshot has.
    pub(crate) fn to_wire(&self, viewer: SessionId, inspects: bool) -> Entry<'_> {
        let all = inspects || self.session == viewer;
        Entry {
            name: self.name.as_bytes(),
            mode: self.mode,
            client_id: self.client_id.as_str(),
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
