//! Subscriptions: the state, then changes; only what is committed, bounded for clients that read
//! slowly.

use lockkeeper_core::{Limits, Mode};
use lockkeeper_service::{
    Access, Bytes, Change, ConnectionId, Event, Framing, Fresh, Hello, Origin, Rights, Server, ServerConfig,
    Session, SessionConfig, State, Ttl,
};
use lockkeeper_wire::{
    frame,
    v2::{EndFlags, Entry, Flags, ToClient, ToServer, VERSION, code},
};
use std::collections::BTreeMap;

const SOUND: &str = "the state is sound";

/// The one that is subscribed.
const VIEWER: ConnectionId = 0;

/// Longer than changes are kept back.
const LATER: u64 = 1_000_000;

struct World {
    server: Server,
    now: u64,
    random: u64,
    rids: BTreeMap<ConnectionId, u64>,
    mirror: Mirror,
}

/// What a subscriber knows: by arrival, the names of a request and its token.
#[derive(Default)]
struct Mirror {
    requests: BTreeMap<u64, Known>,
    /// Parts of a state that is not whole yet.
    parts: Option<BTreeMap<u64, Known>>,
    /// Whole states, and messages with changes.
    states: usize,
    changes: usize,
    /// States that were given up.
    voids: usize,
    /// The longest message.
    longest: usize,
    refused: Option<u32>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Known {
    names: Vec<Vec<u8>>,
    token: Option<u64>,
}

impl Mirror {
    fn take(&mut self, message: &[u8]) {
        self.longest = self.longest.max(message.len());
        match ToClient::decode(message).expect("a message") {
            ToClient::Snapshot { entries, more, .. } => {
                add(self.parts.get_or_insert_default(), &entries);
                if !more {
                    self.requests = self.parts.take().expect("there are parts");
                    self.states += 1;
                }
            }
            ToClient::Changes { entries, gone, .. } => {
                if self.parts.take().is_some() {
                    self.voids += 1;
                    assert!(entries.is_empty() && gone.is_empty(), "changes in the middle of a state");
                    return;
                }
                self.changes += 1;
                entries.iter().for_each(|entry| _ = self.requests.remove(&entry.arrival));
                add(&mut self.requests, &entries);
                gone.iter().for_each(|arrival| _ = self.requests.remove(arrival));
            }
            ToClient::Refused { code, .. } => self.refused = Some(code),
            _ => {}
        }
    }
}

fn add(requests: &mut BTreeMap<u64, Known>, entries: &[Entry<'_>]) {
    for entry in entries {
        let known = requests.entry(entry.arrival).or_default();
        known.names.push(entry.name.to_vec());
        known.names.sort();
        known.token = entry.token;
    }
}

impl World {
    /// The first is the viewer; the last has a bucket of its own.
    fn new(clients: u64, rights: Rights) -> Self {
        let config = ServerConfig {
            ttl: Ttl::fixed(1 << 40),
            limits: Limits::default(),
            sessions: 100,
            buckets: 100,
            bytes: Bytes::default(),
            backlog: 64 << 20,
            slice: 1000,
            hash: |_| [0; 32],
        };
        let server = Server::new(State::new(1), config, 0, 0, None);
        let (rids, mirror) = (BTreeMap::new(), Mirror::default());
        let mut world = Self { server, now: 0, random: 1, rids, mirror };
        for client in 0..clients {
            let bucket = if client + 1 == clients { "other" } else { "default" };
            assert_eq!(world.connect(client + 1, bucket, rights), client);
        }
        world
    }

    fn connect(&mut self, session: u64, bucket: &str, rights: Rights) -> ConnectionId {
        let id = self.server.connect(Origin::Network, Framing::Lengths, Fresh { session, secret: [1; 16] });
        let (version, features, hello, resume, ack) = (VERSION, 0, 1, None, 0);
        let hello = Hello { version, features, hello, bucket, resume, ack, ttl: None, owner: Some("owner") };
        let access = Access { rights, subject: String::new() };
        self.server.hello(self.now, id, hello, access).expect(SOUND);
        self.commit();
        self.read(id);
        id
    }

    fn say(&mut self, id: ConnectionId, message: ToServer<'_>) -> u64 {
        let before = self.server.work();
        self.server.message(self.now, id, message).expect(SOUND);
        self.server.work() - before
    }

    fn rid(&mut self, id: ConnectionId) -> u64 {
        let rid = self.rids.entry(id).or_default();
        *rid += 1;
        *rid
    }

    fn subscribe(&mut self, id: ConnectionId) {
        let rid = self.rid(id);
        self.say(id, ToServer::Subscribe { ack: 1, rid });
    }

    fn request(&mut self, id: ConnectionId, names: &[&str], flags: Flags) -> u64 {
        let rid = self.rid(id);
        let scope = names.iter().map(|name| (name.as_bytes(), Mode::Exclusive)).collect();
        self.say(id, ToServer::Request { ack: 1, rid, scope, flags, nested_in: None, info: None });
        rid
    }

    fn release(&mut self, id: ConnectionId, rid: u64) {
        let flags = EndFlags { quiet: true, timed_out: false };
        self.say(id, ToServer::Release { ack: 1, rid, flags });
    }

    fn commit(&mut self) {
        while let Some(round) = self.server.take_round() {
            self.server.round_done(round.number);
        }
    }

    /// Reads what a connection has to send. What is the viewer's, its mirror takes.
    fn read(&mut self, id: ConnectionId) -> usize {
        let output = self.server.output(id).to_vec();
        self.server.sent(id, output.len());
        let mut rest = &output[..];
        while let Ok(Some((message, length))) = frame::first(rest, frame::MAX_TO_CLIENT) {
            if id == VIEWER {
                self.mirror.take(message);
            }
            rest = &rest[length..];
        }
        output.len()
    }

    /// Time passes: what is due is made ready, in steps that are little work each. Nothing is
    /// committed.
    fn turn(&mut self, id: ConnectionId) {
        self.now += LATER;
        self.server.wake(self.now).expect(SOUND);
        if self.server.has_more(id) {
            let before = self.server.work();
            self.server.go_on(id);
            assert!(self.server.work() - before <= 3000, "a step is little work");
        }
    }

    /// Everything is sent, committed and read, until nothing is left.
    fn settle(&mut self) {
        loop {
            self.turn(VIEWER);
            self.commit();
            let read = self.read(VIEWER);
            if read == 0
                && !self.server.has_more(VIEWER)
                && self.server.next_wake().is_none_or(|at| at > LATER << 20)
            {
                return;
            }
        }
    }

    fn pick(&mut self, below: u64) -> u64 {
        self.random = self.random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (self.random >> 33) % below
    }

    /// Something happens, by one of the clients but the viewer.
    fn step(&mut self, clients: u64) {
        let id = 1 + self.pick(clients - 1);
        match self.pick(9) {
            0..4 => {
                let names: Vec<_> = (0..1 + self.pick(3)).map(|_| format!("n{}", self.pick(20))).collect();
                let names: Vec<_> = names.iter().map(|name| &name[..]).collect();
                let steal = names.len() == 1 && self.pick(4) == 0;
                self.request(id, &names, Flags { steal, ..Flags::default() });
            }
            4..8 => {
                let last = self.rids.get(&id).copied().unwrap_or(0);
                let rid = 1 + self.pick(last.max(1));
                self.release(id, rid);
            }
            _ => {
                let (rid, name) = (self.rid(id), format!("n{}", self.pick(20)));
                self.say(id, ToServer::ForceRelease { ack: 1, rid, name: name.as_bytes() });
            }
        }
        self.commit();
        self.read(id);
    }

    /// What the viewer's bucket has.
    fn truth(&mut self) -> BTreeMap<u64, Known> {
        let viewer = std::mem::take(&mut self.mirror);
        let rid = self.rid(VIEWER);
        self.say(VIEWER, ToServer::Query { ack: 1, rid, name: None, deadlocks: false });
        while self.mirror.states == 0 {
            self.commit();
            self.read(VIEWER);
            if self.server.has_more(VIEWER) {
                self.server.go_on(VIEWER);
            }
        }
        std::mem::replace(&mut self.mirror, viewer).requests
    }

    fn assert_mirrored(&mut self, why: &str) {
        self.settle();
        let truth = self.truth();
        assert_eq!(self.mirror.requests, truth, "{why}");
    }
}

#[test]
fn a_subscriber_knows_what_there_is() {
    for seed in 0..100 {
        let mut world = World::new(6, Rights::ALL);
        world.random = seed;
        for _ in 0..world.pick(300) {
            world.step(5);
        }
        world.subscribe(VIEWER);
        let mut leaves = seed % 2 == 0;
        for _ in 0..10 {
            // Some of it while the state, or changes, are on their way.
            for _ in 0..world.pick(40) {
                world.step(5);
                if world.pick(3) == 0 {
                    world.turn(VIEWER);
                }
                if world.pick(3) == 0 {
                    world.commit();
                    world.read(VIEWER);
                }
            }
            if std::mem::take(&mut leaves) {
                world.say(4, ToServer::Bye { ack: 1 });
            }
            world.assert_mirrored(&format!("seed {seed}"));
        }
        assert_eq!(world.mirror.states, 1, "all but the first came as changes");
        assert!(world.mirror.changes > 0);
    }
}

#[test]
fn nothing_travels_before_it_is_committed() {
    let mut world = World::new(3, Rights::ALL);
    world.subscribe(VIEWER);
    assert!(world.server.output(VIEWER).is_empty(), "the state itself waits, too");
    world.settle();
    world.request(1, &["a"], Flags::default());
    let round = world.server.take_round().expect("there is something to commit");
    // The change and what tells of it are of two rounds; the log has neither.
    world.turn(VIEWER);
    world.turn(VIEWER);
    assert!(world.server.output(VIEWER).is_empty());
    world.server.round_done(round.number);
    assert!(world.server.output(VIEWER).is_empty(), "more may have changed since that round");
    world.settle();
    assert_eq!((world.mirror.requests.len(), world.mirror.changes), (1, 1));
}

#[test]
fn a_client_that_does_not_read_costs_little_and_catches_up() {
    let mut world = World::new(3, Rights::ALL);
    let label = "n".repeat(200);
    let names: Vec<_> = (0..30_000).map(|number| format!("{label}{number}")).collect();
    world.subscribe(VIEWER);
    world.settle();
    let mut most = 0;
    for name in &names {
        world.request(1, &[name], Flags::default());
        if world.pick(10) == 0 {
            world.turn(VIEWER);
            world.commit();
        }
        most = most.max(world.server.backlog(VIEWER));
    }
    assert!(most < 512 << 10, "{most} bytes wait");
    world.read(1);
    assert!(world.mirror.requests.is_empty(), "nothing was read");
    world.assert_mirrored("after all that");
    assert_eq!((world.mirror.requests.len(), world.mirror.states), (30_000, 2), "it was sent a new state");
}

#[test]
fn a_state_that_was_not_read_in_time_is_void() {
    let mut world = World::new(24, Rights::ALL);
    let label = "n".repeat(500);
    for number in 0..5_000 {
        world.request(1, &[&format!("{label}{number}")], Flags::default());
    }
    world.commit();
    world.subscribe(VIEWER);
    // It does not read: when all places for long answers are taken, it gives way.
    (0..5).for_each(|_| world.turn(VIEWER));
    for id in 2..19 {
        let rid = world.rid(id);
        world.say(id, ToServer::Query { ack: 1, rid, name: None, deadlocks: false });
    }
    world.request(1, &["more"], Flags::default());
    world.release(1, 1);
    for id in 2..19 {
        world.server.disconnect(id);
    }
    world.assert_mirrored("the state was begun again");
    assert_eq!((world.mirror.states, world.mirror.voids), (1, 1));
}

#[test]
fn what_begins_and_ends_between_two_messages_is_not_told() {
    let mut world = World::new(3, Rights::ALL);
    world.subscribe(VIEWER);
    world.settle();
    for _ in 0..50_000 {
        let rid = world.request(1, &["a"], Flags::default());
        world.release(1, rid);
    }
    world.settle();
    assert_eq!((world.mirror.states, world.mirror.changes), (1, 0));
}

#[test]
fn one_change_among_a_hundred_thousand_waiters_is_a_short_message() {
    let mut world = World::new(3, Rights::ALL);
    let holder = world.request(1, &["hot"], Flags::default());
    for _ in 0..100_000 {
        world.request(1, &["hot"], Flags::default());
    }
    world.commit();
    world.read(1);
    world.subscribe(VIEWER);
    world.settle();
    assert_eq!(world.mirror.requests.len(), 100_001);
    world.mirror.longest = 0;
    world.release(1, holder);
    world.settle();
    assert_eq!((world.mirror.requests.len(), world.mirror.states), (100_000, 1));
    assert!(world.mirror.longest < 200, "{}", world.mirror.longest);
}

#[test]
fn what_one_release_lets_in_may_be_the_whole_state() {
    let mut world = World::new(3, Rights::ALL);
    let holder = world.request(1, &["hot"], Flags::default());
    for _ in 0..20_000 {
        let (rid, scope, flags) = (world.rid(1), vec![(&b"hot"[..], Mode::Shared)], Flags::default());
        world.say(1, ToServer::Request { ack: 1, rid, scope, flags, nested_in: None, info: None });
    }
    world.commit();
    world.read(1);
    world.subscribe(VIEWER);
    world.settle();
    world.release(1, holder);
    world.assert_mirrored("all of them are held");
    assert_eq!((world.mirror.states, world.mirror.changes), (2, 0));
    assert!(world.mirror.requests.values().all(|request| request.token.is_some()));
}

#[test]
fn it_needs_the_right_to_inspect_and_is_of_one_bucket() {
    let mut world = World::new(3, Rights { inspect: false, ..Rights::ALL });
    world.subscribe(VIEWER);
    world.settle();
    assert_eq!((world.mirror.refused, world.mirror.states), (Some(code::FORBIDDEN), 0));

    let mut world = World::new(3, Rights::ALL);
    world.subscribe(VIEWER);
    world.request(2, &["elsewhere"], Flags::default());
    world.settle();
    assert_eq!((world.mirror.states, world.mirror.changes), (1, 0));
    // A second one, and one without the right any more.
    world.subscribe(VIEWER);
    world.settle();
    assert_eq!(world.mirror.refused.take(), Some(code::NOT_SUPPORTED));
    world.server.set_rights(VIEWER, Rights { inspect: false, ..Rights::ALL });
    world.request(1, &["a"], Flags::default());
    world.settle();
    assert_eq!((world.mirror.refused, world.mirror.changes), (Some(code::FORBIDDEN), 0));
}

#[test]
fn only_so_many_are_subscribed_and_it_ends_with_the_connection() {
    let mut world = World::new(2, Rights::ALL);
    let others: Vec<_> = (0..32).map(|number| world.connect(100 + number, "default", Rights::ALL)).collect();
    others.iter().for_each(|&id| world.subscribe(id));
    world.subscribe(VIEWER);
    world.settle();
    assert_eq!(world.mirror.refused.take(), Some(code::LIMIT));
    others.iter().for_each(|&id| world.server.disconnect(id));
    let wake = world.server.next_wake();
    world.request(VIEWER, &["a"], Flags::default());
    assert_eq!(world.server.next_wake(), wake, "nobody is to be told");
    world.subscribe(VIEWER);
    world.settle();
    assert_eq!((world.mirror.refused, world.mirror.requests.len()), (None, 1));
}

/// The client's side.
#[test]
fn a_session_subscribes_again_after_its_connection_was_lost() {
    let mut session: Session<()> =
        Session::new(SessionConfig { bucket: "b".into(), ..SessionConfig::default() }, 0);
    let key = session.subscribe(());
    let entry = |arrival| Entry {
        name: b"a",
        mode: Mode::Exclusive,
        client_id: "0000000000000001",
        arrival,
        token: Some(1),
        info: None,
        since: 0,
        nested_in: None,
        stole: false,
        owner: None,
    };
    let mut last = 0;
    for resumed in [false, true] {
        let connection = session.connected(1, None);
        let welcome = ToClient::Welcome {
            version: VERSION,
            features: 0,
            number: 1 + u64::from(resumed),
            client_id: "0000000000000002",
            secret: [1; 16],
            ttl: 60_000,
            resumed,
            last_rid: 0,
        };
        session.message(1, connection, welcome);
        session.message(1, connection, ToClient::Synced);
        let output = session.take_output();
        let (_, length) = frame::first(&output, frame::MAX).expect("a frame").expect("Hello");
        let (asked, _) = frame::first(&output[length..], frame::MAX).expect("a frame").expect("a question");
        let Ok(ToServer::Subscribe { rid, .. }) = ToServer::decode(asked) else { panic!("{asked:?}") };
        assert!(rid >= last);
        last = rid;
        let state = |arrival, more| ToClient::Snapshot {
            rid,
            entries: vec![entry(arrival)],
            deadlocks: vec![],
            last_token: 1,
            more,
        };
        let changes = |gone| ToClient::Changes { rid, entries: vec![], gone, last_token: 1, more: false };
        session.message(1, connection, state(1, true));
        // Void: the server did not come to the end of it.
        session.message(1, connection, changes(vec![]));
        session.message(1, connection, state(2, true));
        session.message(1, connection, state(3, false));
        session.message(1, connection, changes(vec![2]));
        session.disconnected(1, connection);
        let told = std::iter::from_fn(|| session.next_event()).filter_map(|event| match event {
            Event::Changed { key: of, change: Change::State(state) } => {
                assert_eq!(of, key);
                Some(state.entries.iter().map(|entry| entry.arrival).collect())
            }
            Event::Changed { change: Change::Changes { gone, .. }, .. } => Some(gone),
            _ => None,
        });
        assert_eq!(told.collect::<Vec<Vec<u64>>>(), [vec![2, 3], vec![2]]);
    }
}
