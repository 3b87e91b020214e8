//! The state at one position, serialized in slices while records are being applied.
//!
//! A snapshot [walks](crate::walk) over sessions and their requests. An item that is about to
//! change before the walk reaches it is written first, in its old state. So the snapshot shows one
//! position, and taking it never pauses the server for longer than a slice.
//!
//! Items are self-contained, and their order does not matter. The last one is an end marker.

use crate::{
    codec::{Damaged, Reader, put_bytes, put_option, put_uint},
    record::{put_fifo, put_origin, put_scope, read_fifo, read_origin, read_scope},
    state::{LEVEL, Notice, RequestOwner, Session, SessionId, State, request_bytes, session_bytes},
    walk::{RequestRef, Walk},
};
use lockkeeper_core::{Cause, Live, Name, RestoredRequest, Token};
use std::collections::{BTreeMap, BTreeSet};

/// A snapshot that is being taken.
pub(crate) struct Progress {
    pub(crate) walk: Walk,
    /// Bytes that are written and not taken yet.
    out: Vec<u8>,
}

/// The version of the bytes of a snapshot.
const FORMAT: u64 = 1;

const HEAD: u8 = 0;
const BUCKET: u8 = 1;
const SESSION: u8 = 2;
const REQUEST: u8 = 3;
const END: u8 = 4;

impl State {
    /// Begins a snapshot of the state as it is now. One that was being taken is abandoned.
    pub fn begin_snapshot(&mut self) {
        let mut out = vec![HEAD];
        for number in [FORMAT, LEVEL, self.position, self.time, self.last_token] {
            put_uint(&mut out, number);
        }
        out.extend_from_slice(&self.hash.to_le_bytes());
        for &place in self.by_name.values() {
            let bucket = self.bucket(place);
            out.push(BUCKET);
            put_bytes(&mut out, bucket.name.as_bytes());
            put_uint(&mut out, bucket.manager.next_arrival());
            put_uint(&mut out, bucket.manager.last_token());
        }
        self.snapshot = Some(Box::new(Progress {
            walk: Walk::new(self, self.buckets.iter().flatten().map(Box::as_ref)),
            out,
        }));
    }

    /// Appends the next slice of the snapshot, of about that many bytes. Returns whether it was the
    /// last.
    ///
    /// # Panics
    ///
    /// If no snapshot was begun.
    pub fn snapshot_slice(&mut self, bytes: usize, chunk: &mut Vec<u8>) -> bool {
        let mut progress = self.snapshot.take().expect("a snapshot was begun");
        chunk.append(&mut progress.out);
        let end = chunk.len() + bytes;
        let whole = self.advance(&mut progress.walk, |id, session, request| {
            match request {
                None => put_session(chunk, id, session, &self.bucket(session.bucket).name),
                Some((rid, live)) => put_request(chunk, id, rid, live, None),
            }
            chunk.len() < end
        });
        if whole {
            chunk.push(END);
        } else {
            self.snapshot = Some(progress);
        }
        whole
    }

    /// Gives up the snapshot that is being taken.
    pub fn abandon_snapshot(&mut self) {
        self.snapshot = None;
    }

    /// Whether a snapshot is being taken.
    pub fn is_snapshotting(&self) -> bool {
        self.snapshot.is_some()
    }

    /// The whole state at once. Equal states have equal bytes.
    pub fn snapshot(&mut self) -> Vec<u8> {
        let before = self.snapshot.take();
        let mut bytes = Vec::new();
        self.begin_snapshot();
        self.snapshot_slice(usize::MAX / 2, &mut bytes);
        self.snapshot = before;
        bytes
    }

    /// Writes out a session that is about to change.
    pub(crate) fn save_session(&mut self, id: SessionId) {
        let Some(mut progress) = self.snapshot.take() else { return };
        if let Some(session) = self.sessions.get(&id)
            && progress.walk.claim(session, (id, None))
        {
            put_session(&mut progress.out, id, session, &self.bucket(session.bucket).name);
        }
        self.snapshot = Some(progress);
    }

    /// The state that a snapshot has. The chunks are those of
    /// [`snapshot_slice`](Self::snapshot_slice), in order.
    ///
    /// # Errors
    ///
    /// If they are not a whole snapshot, or one of another format.
    pub fn restore<C: AsRef<[u8]>>(
        chunks: impl IntoIterator<Item = C>,
        hash_seed: u64,
    ) -> Result<Self, Damaged> {
        let state = Self::new(hash_seed);
        let (loose, requests) = (Vec::new(), BTreeMap::new());
        let mut restoring = Restoring { state, loose, requests, last_token: 0, whole: false };
        for chunk in chunks {
            let mut reader = Reader(chunk.as_ref());
            while !reader.is_empty() {
                restoring.item(&mut reader)?;
            }
        }
        restoring.finish()
    }
}

impl Progress {
    /// Writes out a request as it was, unless it is written already.
    pub(crate) fn save(&mut self, place: &RequestRef<'_>, waiting_since: Option<u64>) {
        if self.walk.claim_request(place) {
            put_request(&mut self.out, place.session_id, place.rid, place.live, waiting_since);
        }
    }
}

/// Appends a request; one that waits since then, whatever it does now.
fn put_request(
    out: &mut Vec<u8>,
    id: SessionId,
    rid: u64,
    live: Live<'_, RequestOwner>,
    waiting_since: Option<u64>,
) {
    let RequestOwner { since, ref info, .. } = *live.data();
    out.push(REQUEST);
    put_uint(out, id);
    put_uint(out, rid);
    put_uint(out, live.id().arrival());
    let scope: Vec<_> = live.scope().map(|(name, mode)| (name.as_bytes(), mode)).collect();
    put_scope(out, scope.into_iter());
    let token = live.token().filter(|_| waiting_since.is_none());
    put_option(out, token, |out, token| put_uint(out, token.get()));
    out.push(u8::from(live.stole()));
    put_option(out, live.nested_in(), |out, outer| put_uint(out, outer.arrival()));
    put_uint(out, waiting_since.unwrap_or(since));
    put_option(out, info.as_deref(), |out, info| put_bytes(out, info.as_bytes()));
}

fn put_session(out: &mut Vec<u8>, id: SessionId, session: &Session, bucket: &str) {
    out.push(SESSION);
    put_uint(out, id);
    put_bytes(out, bucket.as_bytes());
    out.extend_from_slice(&session.secret);
    put_origin(out, session.origin);
    put_bytes(out, session.owner.as_bytes());
    let Session { hello, attachment, ttl, number, acked, last_rid, .. } = *session;
    for value in [hello, attachment, ttl, number, acked, last_rid] {
        put_uint(out, value);
    }
    put_option(out, session.lowering, |out, (number, ttl)| {
        put_uint(out, number);
        put_uint(out, ttl);
    });
    put_option(out, session.fifo, put_fifo);
    put_option(out, session.fifo_until, put_uint);
    put_notices(out, &session.notices);
}

fn put_notices(out: &mut Vec<u8>, notices: &BTreeMap<u64, Notice>) {
    put_uint(out, notices.len() as u64);
    for (&number, notice) in notices {
        put_uint(out, number);
        match notice {
            Notice::Broken { rid, cause, by, forced } => {
                out.push(if *forced { FORCED } else { u8::from(*cause == Cause::Lost) });
                put_uint(out, *rid);
                put_bytes(out, by.as_bytes());
            }
            Notice::Outcome { rid, count } => {
                out.push(2);
                put_uint(out, *rid);
                put_uint(out, *count);
            }
        }
    }
}

/// The kind of a notice that a lock was released by force.
const FORCED: u8 = 3;

/// A snapshot that is being read.
struct Restoring {
    state: State,
    /// Requests whose session may come after them.
    loose: Vec<Restored>,
    /// By bucket: the arrival that the next request gets, and the requests so far.
    requests: BTreeMap<Box<str>, (u64, Vec<Restored>)>,
    /// That of the state. Not in force while buckets are made: each has its own, which may be less.
    last_token: u64,
    whole: bool,
}

struct Restored {
    session: SessionId,
    arrival: u64,
    scope: Vec<(Name, lockkeeper_core::Mode)>,
    token: Option<Token>,
    stole: bool,
    nested_in: Option<u64>,
    owner: RequestOwner,
}

impl Restoring {
    fn item(&mut self, reader: &mut Reader<'_>) -> Result<(), Damaged> {
        if self.whole {
            return Err(Damaged::new("a snapshot goes on after its end"));
        }
        match reader.byte()? {
            HEAD => self.head(reader),
            BUCKET => self.bucket(reader),
            SESSION => self.session(reader),
            REQUEST => self.request(reader),
            END => {
                self.whole = true;
                Ok(())
            }
            _ => Err(Damaged::new("no such item of a snapshot")),
        }
    }

    fn head(&mut self, reader: &mut Reader<'_>) -> Result<(), Damaged> {
        let format = reader.uint()?;
        if format > FORMAT {
            return Err(Damaged::later(format_args!("format {format} of the snapshot")));
        }
        if format != FORMAT {
            return Err(Damaged::new(format!("the snapshot has format {format}, this build reads {FORMAT}")));
        }
        let level = reader.uint()?;
        if level > LEVEL {
            return Err(Damaged::later(format_args!("level {level}")));
        }
        self.state.position = reader.uint()?;
        self.state.time = reader.uint()?;
        self.last_token = reader.uint()?;
        self.state.hash = u64::from_le_bytes(reader.array()?);
        Ok(())
    }

    fn bucket(&mut self, reader: &mut Reader<'_>) -> Result<(), Damaged> {
        let name = reader.text()?;
        let place = self.state.bucket_named(name);
        let next_arrival = reader.uint()?;
        let last_token = reader.uint()?;
        let bucket = self.state.buckets[place].as_mut().expect("it was made just now");
        bucket.manager.skip_tokens(last_token);
        self.requests.insert(name.into(), (next_arrival, Vec::new()));
        Ok(())
    }

    fn session(&mut self, reader: &mut Reader<'_>) -> Result<(), Damaged> {
        let id = reader.uint()?;
        let bucket = reader.text()?;
        let &bucket =
            self.state.by_name.get(bucket).ok_or_else(|| Damaged::new("a session has no bucket"))?;
        let place = self.state.buckets[bucket].as_mut().expect("named buckets are there");
        place.sessions += 1;
        let client = place.manager.client().map_err(|limit| Damaged::new(limit.to_string()))?;
        let serial = self.state.next_session;
        self.state.next_session += 1;
        let session = Session {
            serial,
            bucket,
            client,
            secret: reader.array()?,
            origin: read_origin(reader)?,
            owner: reader.text()?.into(),
            hello: reader.uint()?,
            attachment: reader.uint()?,
            ttl: reader.uint()?,
            number: reader.uint()?,
            acked: reader.uint()?,
            last_rid: reader.uint()?,
            lowering: reader.option(|reader| Ok((reader.uint()?, reader.uint()?)))?,
            fifo: reader.option(read_fifo)?,
            fifo_until: reader.option(Reader::uint)?,
            requests: BTreeMap::new(),
            notices: read_notices(reader)?,
            bytes: 0,
        };
        let bytes =
            session.notices.values().map(Notice::bytes).sum::<usize>() + session_bytes(&session.owner);
        match self.state.sessions.insert(id, session) {
            None => {
                self.state.charge(id, bytes, 0);
                Ok(())
            }
            Some(_) => Err(Damaged::new(format!("session {id:016x} appears twice in the snapshot"))),
        }
    }

    fn request(&mut self, reader: &mut Reader<'_>) -> Result<(), Damaged> {
        let (session, rid, arrival) = (reader.uint()?, reader.uint()?, reader.uint()?);
        let scope: Vec<_> =
            read_scope(reader)?.into_iter().map(|(name, mode)| (Name::from(name), mode)).collect();
        let token = reader.option(Reader::uint)?;
        let token = token.map(|token| Token::new(token).ok_or_else(|| Damaged::new("there is no token 0")));
        let (token, stole) = (token.transpose()?, reader.bool()?);
        let nested_in = reader.option(Reader::uint)?;
        let (since, info) = (reader.uint()?, reader.option(Reader::text)?.map(Box::<str>::from));
        let bytes = request_bytes(
            scope.iter().map(|(name, _)| name.as_bytes().len()),
            info.as_ref().map(|info| info.len()),
        );
        let bytes = u32::try_from(bytes).unwrap_or(u32::MAX);
        let owner = RequestOwner { session, rid, since, info, bytes };
        self.loose.push(Restored { session, arrival, scope, token, stole, nested_in, owner });
        Ok(())
    }

    fn finish(mut self) -> Result<State, Damaged> {
        if !self.whole {
            return Err(Damaged::new("the snapshot is not whole"));
        }
        for request in std::mem::take(&mut self.loose) {
            let session = self.state.sessions.get(&request.session);
            let session = session.ok_or_else(|| Damaged::new("a request has no session"))?;
            let bucket = &self.state.bucket(session.bucket).name;
            let bytes = request.owner.bytes as usize;
            let list =
                self.requests.get_mut(bucket).ok_or_else(|| Damaged::new("a request has no bucket"))?;
            let id = request.session;
            list.1.push(request);
            self.state.charge(id, bytes, 0);
        }
        for (name, (next_arrival, requests)) in self.requests {
            let place = self.state.by_name[&name];
            let arrivals: BTreeSet<u64> = requests.iter().map(|request| request.arrival).collect();
            let owners: BTreeMap<_, _> = requests
                .iter()
                .map(|request| (request.arrival, (request.session, request.owner.rid)))
                .collect();
            let sessions = &self.state.sessions;
            let requests = requests.into_iter().map(|request| RestoredRequest {
                arrival: request.arrival,
                client: sessions[&request.session].client,
                scope: request.scope,
                token: request.token,
                stole: request.stole,
                // The outer request may have ended while the snapshot was taken.
                nested_in: request.nested_in.filter(|outer| arrivals.contains(outer)),
                data: request.owner,
            });
            let requests: Vec<_> = requests.collect();
            let manager = &mut self.state.buckets[place].as_mut().expect("named buckets are there").manager;
            let ids = manager
                .restore(next_arrival, requests)
                .map_err(|error| Damaged::new(format!("bucket {name:?}: {error}")))?;
            for id in ids {
                let live = self.state.bucket(place).manager.get(id);
                let held = live.is_some_and(|live| live.token().is_some());
                self.state.count_restored(held);
                let (session, rid) = owners[&id.arrival()];
                let session = self.state.sessions.get_mut(&session).expect("it was there before");
                session.requests.insert(rid, id);
            }
            self.state.measure(place);
        }
        self.state.last_token = self.last_token;
        Ok(self.state)
    }
}

fn read_notices(reader: &mut Reader<'_>) -> Result<BTreeMap<u64, Notice>, Damaged> {
    let mut notices = BTreeMap::new();
    for _ in 0..reader.uint()? {
        let number = reader.uint()?;
        let notice = match reader.byte()? {
            kind @ (0 | 1 | FORCED) => Notice::Broken {
                rid: reader.uint()?,
                cause: if kind == 1 { Cause::Lost } else { Cause::Stolen },
                by: reader.text()?.into(),
                forced: kind == FORCED,
            },
            2 => Notice::Outcome { rid: reader.uint()?, count: reader.uint()? },
            _ => return Err(Damaged::new("no such notice")),
        };
        notices.insert(number, notice);
    }
    Ok(notices)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_snapshot_has_how_a_lock_was_broken() {
        let broken = |rid, cause, forced| Notice::Broken { rid, cause, by: "ann".into(), forced };
        let notices = BTreeMap::from([
            (3, broken(1, Cause::Stolen, false)),
            (4, broken(2, Cause::Stolen, true)),
            (5, broken(3, Cause::Lost, false)),
            (6, Notice::Outcome { rid: 4, count: 2 }),
        ]);
        let mut bytes = Vec::new();
        put_notices(&mut bytes, &notices);
        assert_eq!(read_notices(&mut Reader(&bytes)).expect("they are whole"), notices);
    }

    #[test]
    fn a_snapshot_of_a_later_version_is_refused() {
        let mut bytes = State::new(1).snapshot();
        assert!(State::restore([&bytes], 1).is_ok());
        // The number after the kind of the item and the format.
        assert_eq!(u64::from(bytes[2]), LEVEL);
        bytes[2] += 1;
        let refused = State::restore([&bytes], 1).expect_err("the level is not known");
        assert!(refused.to_string().contains("upgrade"), "{refused}");
    }
}
