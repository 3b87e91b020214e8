//! What clients take is counted: whatever they do with the memory that they may have, the server
//! has allocated about as much as it says.

use lockkeeper_core::{Limits, Mode};
use lockkeeper_service::{
    Access, Bytes, ConnectionId, Framing, Fresh, Hello, Origin, Rights, Server, ServerConfig, State, Ttl,
};
use lockkeeper_wire::{
    frame,
    v2::{EndFlags, Flags, ToClient, ToServer, VERSION, code},
};
use std::{
    alloc::{GlobalAlloc, Layout, System},
    cell::Cell,
};

thread_local! {
    /// Bytes that this thread has allocated and not freed. Each test is a thread of its own.
    static LIVE_BYTES: Cell<isize> = const { Cell::new(0) };
}

struct Counting;

fn count(before: usize, after: usize) {
    LIVE_BYTES.set(LIVE_BYTES.get() + after.cast_signed() - before.cast_signed());
}

// SAFETY: every call goes to the system's allocator unchanged.
#[allow(unsafe_code, reason = "an allocator that counts can be written in no other way")]
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(0, layout.size());
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        count(layout.size(), 0);
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count(layout.size(), size);
        unsafe { System.realloc(pointer, layout, size) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

const SOUND: &str = "the state is sound";

/// What all clients may take here.
const ALL: usize = 16 << 20;

struct World {
    server: Server,
    allocated_before: isize,
    rid: u64,
}

impl World {
    fn new() -> Self {
        let allocated_before = LIVE_BYTES.get();
        let config = ServerConfig {
            ttl: Ttl::fixed(60_000),
            limits: Limits::default(),
            sessions: usize::MAX,
            buckets: usize::MAX,
            bytes: Bytes { session: 2 * ALL, bucket: 2 * ALL, all: ALL },
            backlog: 1 << 20,
            slice: 1000,
            hash: |_| [0; 32],
        };
        Self { server: Server::new(State::new(1), config, 0, 0, None), allocated_before, rid: 0 }
    }

    /// Opens a session, unless it is refused.
    fn open(&mut self, bucket: &str) -> Option<ConnectionId> {
        self.rid += 1;
        let fresh = Fresh { session: self.rid, secret: [1; 16] };
        let id = self.server.connect(Origin::Network, Framing::Lengths, fresh);
        let (version, features, hello, owner) = (VERSION, 0, 1, Some("owner"));
        let hello = Hello { version, features, hello, bucket, resume: None, ack: 0, ttl: None, owner };
        let access = Access { rights: Rights::ALL, subject: String::new() };
        self.server.hello(0, id, hello, access).expect(SOUND);
        if self.hear(id) {
            return Some(id);
        }
        self.server.disconnect(id);
        None
    }

    /// Requests a lock. Returns the request, unless it is refused.
    fn request(&mut self, id: ConnectionId, names: &[&str]) -> Option<u64> {
        self.rid += 1;
        let scope = names.iter().map(|name| (name.as_bytes(), Mode::Shared)).collect();
        let (ack, rid, flags) = (1, self.rid, Flags::default());
        self.say(id, ToServer::Request { ack, rid, scope, flags, nested_in: None, info: None }).then_some(rid)
    }

    fn release(&mut self, id: ConnectionId, rid: u64) {
        assert!(self.say(id, ToServer::Release { ack: 1, rid, flags: EndFlags::default() }));
    }

    fn say(&mut self, id: ConnectionId, message: ToServer<'_>) -> bool {
        self.server.message(0, id, message).expect(SOUND);
        self.hear(id)
    }

    /// Has a client read all there is. False if it was refused because of what all take.
    fn hear(&mut self, id: ConnectionId) -> bool {
        while let Some(round) = self.server.take_round() {
            self.server.round_done(round.number);
        }
        while self.server.next_ready().is_some() {}
        while self.server.next_action().is_some() {}
        let output = self.server.output(id).to_vec();
        self.server.sent(id, output.len());
        let (mut accepted, mut rest) = (true, &output[..]);
        while let Ok(Some((message, length))) = frame::first(rest, frame::MAX_TO_CLIENT) {
            if let ToClient::Refused { code, message, .. } | ToClient::Goodbye { code, message } =
                ToClient::decode(message).expect("a message")
            {
                assert!(code == code::LIMIT && message.contains("(max-bytes)"), "{message}");
                accepted = false;
            }
            rest = &rest[length..];
        }
        accepted
    }

    /// Requests locks until it is refused.
    fn fill(&mut self, id: ConnectionId, scope: impl Fn(u64) -> Vec<String>) -> Vec<u64> {
        let mut rids = Vec::new();
        while let Some(rid) = {
            let names = scope(self.rid);
            self.request(id, &names.iter().map(String::as_str).collect::<Vec<_>>())
        } {
            rids.push(rid);
            assert!(rids.len() * 64 < ALL, "it has no limit");
        }
        self.check();
        rids
    }

    /// Nothing is allocated that is not counted, nor much less than what is.
    fn check(&self) {
        let allocated = (LIVE_BYTES.get() - self.allocated_before).cast_unsigned();
        let counted = self.server.state().memory();
        assert!(allocated < counted + counted / 8 + (1 << 20), "{allocated} bytes, {counted} are counted");
    }
}

#[test]
fn what_an_emptied_bucket_keeps_is_counted_until_it_is_given_back() {
    let mut world = World::new();
    let [first, second] = ["a", "a"].map(|bucket| world.open(bucket).expect("there is room"));
    let other = world.open("other").expect("there is room");
    let kept = world.request(second, &["kept"]).expect("there is room");
    let rids = world.fill(first, |rid| vec![rid.to_string()]);
    rids.iter().for_each(|&rid| world.release(first, rid));
    world.check();
    let state = world.server.state();
    assert!(state.bytes() < 4_000 && state.memory() > ALL / 2, "{} {}", state.bytes(), state.memory());
    // The state depends on the records alone, also after a restart.
    let bytes = state.bytes();
    let restored = State::restore([world.server.state_mut().snapshot()], 2).expect("it is whole");
    assert!(restored.bytes() == bytes && restored.memory() < ALL / 16);
    // Another bucket has what is left; this one can use what it keeps.
    let of_other = world.fill(other, |rid| vec![rid.to_string()]);
    assert!(of_other.len() < rids.len() / 2, "{} of {}", of_other.len(), rids.len());
    let again = world.request(first, &["again"]).expect("there is room");
    // Once nothing is requested there, nothing is kept.
    for (id, rid) in [(first, again), (second, kept)] {
        world.release(id, rid);
    }
    world.check();
    let more = world.fill(other, |rid| vec![rid.to_string()]);
    assert!(of_other.len() + more.len() > rids.len() * 9 / 10);
}

#[test]
fn buckets_of_one_session_are_counted() {
    let mut world = World::new();
    let mut buckets = 0;
    while let Some(id) = world.open(&format!("bucket {buckets}")) {
        buckets += 1;
        let Some(rid) = world.request(id, &["a"]) else { break };
        world.release(id, rid);
    }
    world.check();
    assert!((100..ALL / 4096).contains(&buckets), "{buckets}");
}

#[test]
fn scopes_long_names_and_sessions_are_counted() {
    let scope = |rid: u64| (0..100).map(|name| format!("{rid} {name}")).collect();
    let long = |rid: u64| vec![format!("{rid} {}", "n".repeat(1_000))];
    for names in [&scope as &dyn Fn(u64) -> Vec<String>, &long] {
        let mut world = World::new();
        let id = world.open("a").expect("there is room");
        world.fill(id, names);
    }
    let mut world = World::new();
    // What a connection takes is limited by descriptors.
    while let Some(id) = world.open("a") {
        world.server.disconnect(id);
    }
    world.check();
    let sessions: Vec<_> = world.server.state().sessions().collect();
    assert!((ALL / 4096..ALL / 512).contains(&sessions.len()), "{}", sessions.len());
    // Their places stay with the last one.
    for session in &sessions[1..] {
        world.server.revoke(*session, "over").expect(SOUND);
    }
    world.check();
}

/// Sends a client's pings without committing what they are answered with, until a driver would not
/// read it any more, or its connection is closed.
fn ping(server: &mut Server, id: ConnectionId, enough: usize) {
    let mut seq = 0;
    while server.backlog(id) < enough && !server.is_closing(id) {
        seq += 1;
        server.message(0, id, ToServer::Ping { ack: 1, seq }).expect(SOUND);
        assert!(seq < 1 << 20, "{} bytes wait after {seq} pings", server.backlog(id));
    }
}

/// What needs no commit was not counted, and a client whose answers wait for the store to be read
/// was read on.
#[test]
fn what_waits_while_the_log_takes_nothing_is_counted() {
    let mut world = World::new();
    let ids: Vec<ConnectionId> = (0..20).map(|_| world.open("a").expect("there is room")).collect();
    world.server.set_stuck(Some("the store is full".into()));
    let before = LIVE_BYTES.get();
    ping(&mut world.server, ids[0], 256 << 10);
    let confirmed = world.server.stateless();
    ping(&mut world.server, ids[0], 512 << 10);
    let allocated = (LIVE_BYTES.get() - before).cast_unsigned();
    assert!(allocated < 600 << 10, "{allocated}");
    assert_eq!(world.server.unread(), world.server.backlog(ids[0]));
    // The store confirms that this server leads: what was there before that is sent.
    world.server.send_stateless(confirmed);
    let (sent, left) = (world.server.output(ids[0]).len(), world.server.backlog(ids[0]));
    assert!(sent > 0 && left > 256 << 10 && left < 384 << 10, "{sent} of {left}");
    world.server.sent(ids[0], sent);
    // All clients together are limited, too: the one for which most waits is disconnected.
    for &id in &ids {
        ping(&mut world.server, id, 512 << 10);
        assert!(world.server.unread() <= 8 << 20, "{}", world.server.unread());
    }
    let closed = ids.iter().filter(|&&id| world.server.is_closing(id)).count();
    assert!((4..=6).contains(&closed), "{closed}");
    // An ended session leaves no memory behind, and the others lose nothing.
    ids[..19].iter().for_each(|&id| world.server.disconnect(id));
    assert_eq!(world.server.unread(), world.server.backlog(ids[19]));
    world.server.set_stuck(None);
    let round = world.server.take_round().expect("what is left waits for a round");
    assert!(world.server.output(ids[19]).is_empty());
    world.server.round_done(round.number);
    assert_eq!(world.server.output(ids[19]).len(), world.server.unread());
    world.say(ids[19], ToServer::Ping { ack: 1, seq: 1 });
    assert_eq!(world.server.unread(), 0);
}
