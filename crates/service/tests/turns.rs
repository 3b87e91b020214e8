//! No message is much work: what is long comes in parts, each of which is of the moment at which it
//! was asked for.

use lockkeeper_core::{Limits, Mode};
use lockkeeper_service::{
    Access, Bytes, ConnectionId, Framing, Fresh, Hello, Origin, Rights, Server, ServerConfig, State, Ttl,
};
use lockkeeper_wire::{
    frame,
    v2::{EndFlags, Flags, NestedIn, ToClient, ToServer, VERSION, code},
};

const SOUND: &str = "the state is sound";

/// The most that one input may do, in units of a short message.
const LITTLE: u64 = 3000;

/// Requests that a client may have.
const REQUESTS: u32 = 50_000;

struct World {
    server: Server,
    random: u64,
    rids: Vec<u64>,
    /// The connection that resumed last.
    last: ConnectionId,
}

/// An entry as a client receives it: name, arrival, token.
type Seen = (Vec<u8>, u64, Option<u64>);

impl World {
    fn new(clients: usize) -> Self {
        Self::with(clients, Bytes::default())
    }

    fn with(clients: usize, bytes: Bytes) -> Self {
        let config = ServerConfig {
            ttl: Ttl::fixed(60_000),
            limits: Limits { requests_per_client: REQUESTS, ..Limits::default() },
            sessions: 20_000,
            buckets: 100,
            bytes,
            backlog: 64 << 20,
            slice: 1000,
            hash: |_| [0; 32],
        };
        let server = Server::new(State::new(1), config, 0, 0, None);
        let mut world = Self { server, random: 1, rids: vec![0; clients], last: 0 };
        for client in 0..clients as u64 {
            let fresh = Fresh { session: client + 1, secret: [1; 16] };
            let id = world.server.connect(Origin::Network, Framing::Lengths, fresh);
            assert_eq!(id, client);
            let hello = Hello {
                version: VERSION,
                features: 0,
                hello: 1,
                // The last one is in a bucket of its own.
                bucket: if client + 1 == clients as u64 { "other" } else { "default" },
                resume: None,
                ack: 0,
                ttl: None,
                owner: Some("owner"),
            };
            let access = Access { rights: Rights::ALL, subject: String::new() };
            world.server.hello(0, id, hello, access).expect(SOUND);
            world.hear(id);
        }
        world
    }

    /// Resumes the first session at that time, with another connection.
    fn resume(&mut self, hello: u64, now: u64) -> ConnectionId {
        let fresh = Fresh { session: 100 + hello, secret: [1; 16] };
        let id = self.server.connect(Origin::Network, Framing::Lengths, fresh);
        let resume = Some(("0000000000000001", [1; 16]));
        let (version, features, bucket) = (VERSION, 0, "default");
        let hello = Hello { version, features, hello, bucket, resume, ack: 1, ttl: None, owner: None };
        let access = Access { rights: Rights::ALL, subject: String::new() };
        self.server.hello(now, id, hello, access).expect(SOUND);
        if self.server.session_of(id).is_some() {
            self.last = id;
        }
        id
    }

    fn pick(&mut self, below: u64) -> u64 {
        self.random = self.random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (self.random >> 33) % below
    }

    /// Has a message handled, and returns how much work that was.
    fn say(&mut self, id: ConnectionId, message: ToServer<'_>) -> u64 {
        let before = self.server.work();
        self.server.message(0, id, message).expect(SOUND);
        self.server.work() - before
    }

    /// Goes on until all sessions have ended that are about to.
    fn end_slices(&mut self) {
        while self.server.next_wake() == Some(0) {
            self.server.wake(0).expect(SOUND);
            while let Some(round) = self.server.take_round() {
                self.server.round_done(round.number);
            }
        }
    }

    fn rid(&mut self, id: ConnectionId) -> u64 {
        let rid = &mut self.rids[usize::try_from(id).expect("few clients")];
        *rid += 1;
        *rid
    }

    fn request(
        &mut self,
        id: ConnectionId,
        names: &[String],
        flags: Flags,
        nested_in: Option<NestedIn<'_>>,
    ) -> u64 {
        let rid = self.rid(id);
        let scope = names.iter().map(|name| (name.as_bytes(), Mode::Exclusive)).collect();
        self.say(id, ToServer::Request { ack: 1, rid, scope, flags, nested_in, info: None })
    }

    /// Asks for everything, or for one name. Returns the question, and how much work it was.
    fn query(&mut self, id: ConnectionId, name: Option<&str>, deadlocks: bool) -> (u64, u64) {
        let rid = self.rid(id);
        let name = name.map(str::as_bytes);
        (rid, self.say(id, ToServer::Query { ack: 1, rid, name, deadlocks }))
    }

    /// All that was sent to a client since it was asked last.
    fn hear(&mut self, id: ConnectionId) -> Vec<Vec<u8>> {
        while let Some(round) = self.server.take_round() {
            self.server.round_done(round.number);
        }
        let output = self.server.output(id).to_vec();
        self.server.sent(id, output.len());
        let (mut messages, mut rest) = (Vec::new(), &output[..]);
        while let Ok(Some((message, length))) = frame::first(rest, frame::MAX_TO_CLIENT) {
            messages.push(message.to_vec());
            rest = &rest[length..];
        }
        messages
    }

    /// The received part of an answer, and whether it is complete.
    fn answer(&mut self, id: ConnectionId, asked: u64, seen: &mut Vec<Seen>) -> bool {
        let mut over = false;
        for message in self.hear(id) {
            if let ToClient::Snapshot { rid, entries, more, .. } =
                ToClient::decode(&message).expect("a message")
                && rid == asked
            {
                assert!(!over, "something comes after the last part");
                seen.extend(
                    entries.into_iter().map(|entry| (entry.name.to_vec(), entry.arrival, entry.token)),
                );
                over = !more;
            }
        }
        over
    }

    /// The whole answer, while nothing else happens.
    fn whole_answer(&mut self, id: ConnectionId, name: Option<&str>) -> Vec<Seen> {
        let (asked, _) = self.query(id, name, false);
        let mut seen = Vec::new();
        while !self.answer(id, asked, &mut seen) {
            self.server.go_on(id);
        }
        seen.sort();
        seen
    }

    /// Something happens.
    fn step(&mut self, clients: u64) {
        let id = self.pick(clients);
        match self.pick(8) {
            0..4 => {
                let names: Vec<_> = (0..1 + self.pick(3)).map(|_| format!("n{}", self.pick(40))).collect();
                let steal = names.len() == 1 && self.pick(4) == 0;
                self.request(id, &names, Flags { steal, ..Flags::default() }, None);
            }
            4..7 => {
                let last = self.rids[usize::try_from(id).expect("few clients")];
                let rid = 1 + self.pick(last.max(1));
                self.say(id, ToServer::Release { ack: 1, rid, flags: EndFlags::default() });
            }
            _ => {
                let (rid, name) = (self.rid(id), format!("n{}", self.pick(40)));
                self.say(id, ToServer::ForceRelease { ack: 1, rid, name: name.as_bytes() });
            }
        }
    }
}

#[test]
fn a_long_answer_is_of_the_moment_at_which_it_was_asked_for() {
    for seed in 0..200 {
        let mut world = World::new(6);
        world.random = seed;
        for _ in 0..600 {
            world.step(5);
        }
        let name = (seed % 3 == 0).then_some("n1");
        // Another one asks at the same time: that is what there was.
        let expected = world.whole_answer(4, name);
        let (asked, _) = world.query(0, name, false);
        let mut seen = Vec::new();
        let mut leaves = seed % 2 == 0;
        while !world.answer(0, asked, &mut seen) {
            for _ in 0..world.pick(30) {
                world.step(5);
            }
            // A session ends with all it has.
            if std::mem::take(&mut leaves) {
                world.say(3, ToServer::Bye { ack: 1 });
            }
            world.server.go_on(0);
        }
        seen.sort();
        assert_eq!(seen, expected, "seed {seed}");
        assert!(!world.server.has_more(0));
    }
}

#[test]
fn a_question_about_much_is_little_work_at_a_time() {
    let mut world = World::new(3);
    for number in 0..20_000 {
        world.request(0, &[format!("n{number}")], Flags::default(), None);
        world.request(1, &["hot".into()], Flags::default(), None);
    }
    for name in [None, Some("hot")] {
        let (asked, mut work) = world.query(0, name, true);
        let mut seen = Vec::new();
        while !world.answer(0, asked, &mut seen) {
            assert!(work <= LITTLE, "{work}");
            let before = world.server.work();
            world.server.go_on(0);
            work = world.server.work() - before;
        }
        assert_eq!(seen.len(), if name.is_none() { 40_000 } else { 20_000 });
    }
}

#[test]
fn a_client_has_only_so_many_questions_at_a_time() {
    let mut world = World::new(2);
    for number in 0..1000 {
        world.request(0, &[format!("n{number}")], Flags::default(), None);
    }
    world.hear(0);
    let work: u64 = (0..1000).map(|_| world.query(0, None, false).1).sum();
    assert!(work <= 1000 + LITTLE, "{work}");
    let refused = |message: &Vec<u8>| {
        matches!(ToClient::decode(message), Ok(ToClient::Refused { code: code::LIMIT, .. }))
    };
    assert_eq!(world.hear(0).iter().filter(|message| refused(message)).count(), 1000 - 65);
    // The others are answered one after the other.
    let mut answers = 0;
    while world.server.has_more(0) {
        world.server.go_on(0);
        answers += world
            .hear(0)
            .iter()
            .filter(|message| matches!(ToClient::decode(message), Ok(ToClient::Snapshot { more: false, .. })))
            .count();
    }
    assert_eq!(answers, 65);
}

#[test]
fn long_answers_that_nobody_reads_give_way() {
    let mut world = World::new(22);
    for number in 0..5000 {
        let long = format!("{number}{}", "x".repeat(500));
        world.request(0, &[long], Flags::default(), None);
    }
    world.hear(0);
    for id in 1..17 {
        world.query(id, None, false);
    }
    // All read: there is no place for one more.
    let (asked, _) = world.query(17, None, false);
    let refused = |world: &mut World, id, asked| {
        world.hear(id).iter().any(
            |message| matches!(ToClient::decode(message), Ok(ToClient::Refused { rid, .. }) if rid == asked),
        )
    };
    assert!(refused(&mut world, 17, asked));
    // One does not: it gives way, and is told so.
    (0..3).for_each(|_| world.server.go_on(5));
    let (asked, _) = world.query(17, None, false);
    assert!(!refused(&mut world, 17, asked));
    let unread = world.rids[5];
    world.server.go_on(5);
    assert!(refused(&mut world, 5, unread));
    let mut seen = Vec::new();
    while !world.answer(17, asked, &mut seen) {
        world.server.go_on(17);
    }
    assert_eq!(seen.len(), 5000);
}

#[test]
fn a_search_for_a_deadlock_has_a_bound() {
    let mut world = World::new(3);
    // A long chain: each waits for the one before, and holds what the next one waits for.
    world.request(0, &["n0".into()], Flags::default(), None);
    for number in 1..20_000u64 {
        world.request(0, &[format!("n{number}")], Flags::default(), None);
        let outer = world.rids[0];
        world.request(0, &[format!("n{}", number - 1)], Flags::default(), Some((None, outer)));
    }
    let outer = world.rids[0] - 1;
    let flags = Flags { refuse_deadlock: true, ..Flags::default() };
    world.hear(0);
    let work = world.request(0, &["n19998".into()], flags, Some((None, outer)));
    assert!(work <= LITTLE, "{work}");
    // It waits, although the search did not come to its end.
    assert!(matches!(ToClient::decode(&world.hear(0)[0]), Ok(ToClient::Queued { .. })));
    let (_, work) = world.query(0, Some("n1"), true);
    assert!(work <= LITTLE, "{work}");
    let messages = world.hear(0);
    let Ok(ToClient::Snapshot { deadlocks, .. }) = ToClient::decode(&messages[0]) else { panic!() };
    assert!(deadlocks[0].words.contains("cut short"), "{}", deadlocks[0].words);
}

/// With names of 64 KiB, a report took 272 ms.
#[test]
fn the_report_of_a_long_cycle_is_short() {
    let mut world = World::new(3);
    let name = |number: u32| format!("{number}{}", "ä".repeat(30_000));
    world.request(0, &[name(0)], Flags::default(), None);
    for number in 1..100 {
        world.request(0, &[name(number)], Flags::default(), None);
        let outer = world.rids[0];
        world.request(0, &[name(number - 1)], Flags::default(), Some((None, outer)));
    }
    world.hear(0);
    let flags = Flags { refuse_deadlock: true, ..Flags::default() };
    let work = world.request(0, &[name(99)], flags, Some((None, 1)));
    assert!((200..=LITTLE).contains(&work), "{work}");
    let messages = world.hear(0);
    assert!(messages[0].len() < 16 << 10, "{}", messages[0].len());
    let Ok(ToClient::Deadlocked { deadlock, .. }) = ToClient::decode(&messages[0]) else { panic!() };
    assert_eq!(deadlock.cycle.len(), 16);
    assert!(deadlock.words.ends_with("waits for one of 184 more"), "{}", deadlock.words);
    let waits_for = deadlock.cycle.iter().find_map(|step| step.waits_for).expect("it waits for a name");
    let waits_for = str::from_utf8(waits_for).expect("whole characters");
    assert!(waits_for.starts_with("0ä") && waits_for.ends_with("ä…"), "{waits_for}");
    // So it is if somebody asks for all of them.
    world.request(0, &[name(99)], Flags::default(), Some((None, 1)));
    world.hear(0);
    world.query(0, Some("n"), true);
    assert!(world.hear(0)[0].len() < 16 << 10);
}

/// Twenty connections that asked and did not read took 330 MiB.
#[test]
fn what_clients_do_not_read_is_little() {
    let mut world = World::new(22);
    for number in 0..500 {
        world.request(0, &[format!("{number}{}", "n".repeat(30_000))], Flags::default(), None);
    }
    world.hear(0);
    for id in 1..21 {
        world.query(id, None, false);
        while world.server.has_more(id) && world.server.backlog(id) <= 256 << 10 {
            world.server.go_on(id);
        }
    }
    assert!(world.server.unread() > 0 && world.server.unread() < 20 << 20, "{}", world.server.unread());
}

const FEW_BYTES: Bytes = Bytes { session: 64 << 20, bucket: 64 << 20, all: 64 << 20 };

#[test]
fn what_all_clients_together_do_not_read_is_limited() {
    let mut world = World::with(202, FEW_BYTES);
    for number in 0..100 {
        world.request(0, &[format!("{number}{}", "n".repeat(2_000))], Flags::default(), None);
    }
    world.hear(0);
    for id in 1..200 {
        world.query(id, None, false);
        assert!(world.server.unread() <= 8 << 20, "{}", world.server.unread());
    }
    let cut = (1..200).filter(|&id| world.server.is_closing(id)).count();
    assert!((1..200).contains(&cut), "{cut}");
    assert!(!world.server.is_closing(0), "who reads is not cut off");
    // What was sent, or will never be, does not count.
    (1..200).for_each(|id| world.server.disconnect(id));
    assert_eq!(world.server.unread(), 0);
}

#[test]
fn what_is_kept_for_an_answer_is_limited() {
    let mut world = World::with(3, FEW_BYTES);
    for number in 0..1000 {
        world.request(0, &[format!("{number}{}", "n".repeat(20_000))], Flags::default(), None);
    }
    let (asked, _) = world.query(1, None, false);
    world.say(0, ToServer::Bye { ack: 1 });
    world.end_slices();
    world.server.go_on(1);
    let messages = world.hear(1);
    let refused = matches!(ToClient::decode(&messages[0]), Ok(ToClient::Refused { rid, .. }) if rid == asked);
    assert!(refused, "20 MB would be kept");
}

#[test]
fn all_work_counts() {
    let mut world = World::new(3);
    let names: Vec<_> = (0..1000).map(|number| format!("n{number}")).collect();
    let work = world.request(0, &names, Flags::default(), None);
    assert!(work >= 1000, "{work}");
    for number in 0..5000 {
        world.request(1, &[format!("m{number}")], Flags::default(), None);
    }
    world.say(1, ToServer::Bye { ack: 1 });
    let before = world.server.work();
    world.end_slices();
    let work = world.server.work() - before;
    assert!(work >= 5000, "{work}");
}

/// Whoever reaches a port may ask how many requests there are: a daemon that follows looked at all
/// of them each time.
#[test]
fn what_is_held_and_what_waits_is_counted_as_it_changes() {
    let mut world = World::new(6);
    for turn in 0..3_000 {
        world.step(6);
        if turn % 500 == 499 {
            world.say(turn / 500, ToServer::Bye { ack: 1 });
        }
        let state = world.server.state();
        let live = || state.sessions().flat_map(|session| state.requests(session));
        let held = live().filter(|(_, _, token)| token.is_some()).count() as u64;
        assert_eq!((state.held(), state.pending()), (held, live().count() as u64 - held), "{turn}");
        if turn % 100 == 0 {
            let (held, pending) = (state.held(), state.pending());
            let restored = State::restore([world.server.state_mut().snapshot()], 2).expect(SOUND);
            assert_eq!((restored.held(), restored.pending()), (held, pending), "{turn}");
        }
    }
}

/// Who resumed while a session ended that it wanted to end was answered twice.
#[test]
fn an_ending_that_is_asked_for_again_is_answered_once() {
    let mut world = World::new(3);
    for number in 0..5000 {
        world.request(1, &[format!("m{number}")], Flags::default(), None);
    }
    let rid = world.rid(0);
    let ask = || ToServer::EndSession { ack: 1, rid, client_id: "0000000000000002" };
    world.say(0, ask());
    let id = world.resume(2, 0);
    world.say(id, ask());
    world.end_slices();
    let messages = world.hear(id);
    let answers = messages.iter().filter(
        |message| matches!(ToClient::decode(message), Ok(ToClient::Outcome { rid: of, .. }) if of == rid),
    );
    assert_eq!(answers.count(), 1);
}

/// A session of a million requests kept the others waiting for half a second when it ended, and all
/// that expired at the same time ended in one go.
#[test]
fn sessions_of_many_requests_end_a_little_at_a_time() {
    let mut world = World::new(8);
    // Who has one more to wait for than can end at a time; who has long scopes; who has few
    // requests, but so have many.
    for client in 0..4 {
        for number in 0..20_000 {
            world.request(client, &[format!("n{number}")], Flags::default(), None);
        }
    }
    for scope in 0..40 {
        let names: Vec<_> = (0..1000).map(|number| format!("{scope}/{number}")).collect();
        world.request(4, &names, Flags::default(), None);
    }
    for number in 0..900 {
        world.request(5, &[format!("few{number}")], Flags::default(), None);
    }
    world.request(6, &["n0".into()], Flags::default(), None);
    let waits = world.rids[6];
    // The first ends by itself, the second by another's wish.
    assert!(world.say(0, ToServer::Bye { ack: 1 }) < 10);
    let rid = world.rid(6);
    let end = ToServer::EndSession { ack: 1, rid, client_id: "0000000000000002" };
    assert!(world.say(6, end) < 10);
    let ended = world.hear(1);
    assert!(matches!(
        ended.iter().map(|message| ToClient::decode(message)).next_back(),
        Some(Ok(ToClient::Goodbye { code: code::ENDED, .. }))
    ));
    // An ending session is not resumed.
    let late = world.resume(2, 1);
    let answer = world.hear(late);
    assert!(matches!(ToClient::decode(&answer[0]), Ok(ToClient::Welcome { resumed: false, .. })));
    let (mut turns, mut told) = (0, Vec::new());
    // The leases of the others are over, but for those of the one that waits.
    while world.server.next_wake().is_some_and(|at| at <= 61_000_000) {
        world.server.message(61_000_000, 6, ToServer::Ping { ack: 1, seq: turns }).expect(SOUND);
        let before = world.server.work();
        world.server.wake(61_000_000).expect(SOUND);
        let work = world.server.work() - before;
        assert!(work <= 12_000, "{work}");
        told.extend(world.hear(6));
        turns += 1;
    }
    assert!((10..200).contains(&turns), "{turns}");
    assert_eq!(world.server.state().session_count(), 1);
    assert_eq!((world.server.state().held(), world.server.state().pending()), (1, 0));
    assert_eq!((world.server.counts().lost, world.server.counts().aborted), (20_000 * 4 + 40 + 900, 0));
    let told: Vec<_> = told.iter().filter_map(|message| ToClient::decode(message).ok()).collect();
    assert!(told.iter().any(|message| matches!(message, ToClient::Granted { rid, .. } if *rid == waits)));
    let outcome =
        |message: &ToClient<'_>| matches!(message, ToClient::Outcome { rid: of, count: 1, .. } if *of == rid);
    assert_eq!(told.iter().filter(|message| outcome(message)).count(), 1);
}

/// Sessions of other buckets are passed over, which is work, too.
#[test]
fn a_question_among_many_sessions_is_little_work_at_a_time() {
    let mut world = World::new(9_000);
    let id = 8_999;
    let (asked, _) = world.query(id, None, false);
    let mut turns = 1;
    while !world.answer(id, asked, &mut Vec::new()) {
        let before = world.server.work();
        world.server.go_on(id);
        let work = world.server.work() - before;
        assert!(work <= LITTLE, "{work}");
        turns += 1;
    }
    assert!(turns > 2, "{turns}");
}

/// A client that resumed without reading had a long comparison in memory for each of its
/// connections.
#[test]
fn what_a_superseded_connection_has_not_read_is_dropped() {
    let mut world = World::new(2);
    for number in 0..20_000 {
        world.request(0, &[format!("n{number}")], Flags::default(), None);
    }
    world.hear(0);
    let mut older = 0;
    for hello in 2..10 {
        let id = world.resume(hello, hello * 1_000_000);
        assert!(world.server.backlog(id) > 100_000, "it is told of all its requests");
        while let Some(round) = world.server.take_round() {
            world.server.round_done(round.number);
        }
        if older > 0 {
            assert!(world.server.is_done(older) && world.server.backlog(older) == 0);
        }
        older = id;
    }
}

/// They count like requests, as the limit says.
#[test]
fn outcomes_that_are_not_acknowledged_are_limited() {
    let mut world = World::new(2);
    let most = u64::from(REQUESTS);
    for _ in 0..most {
        let rid = world.rid(0);
        world.say(0, ToServer::ForceRelease { ack: 1, rid, name: b"n" });
    }
    let refused = |messages: &[Vec<u8>]| {
        messages.iter().any(|message| {
            matches!(ToClient::decode(message), Ok(ToClient::Refused { code: code::LIMIT, .. }))
        })
    };
    assert!(!refused(&world.hear(0)));
    let rid = world.rid(0);
    world.say(0, ToServer::ForceRelease { ack: 1, rid, name: b"n" });
    assert!(refused(&world.hear(0)));
    // Acknowledged, they make room.
    let rid = world.rid(0);
    world.say(0, ToServer::ForceRelease { ack: 1 + most, rid, name: b"n" });
    assert!(!refused(&world.hear(0)));
}

/// A client that did nothing but resume a session of 900,000 requests kept the server busy: others
/// waited for 90 ms each time.
#[test]
fn sessions_of_many_requests_are_resumed_only_so_often() {
    let mut world = World::new(2);
    for number in 0..20_000 {
        world.request(0, &[format!("n{number}")], Flags::default(), None);
    }
    world.hear(0);
    let welcomed = |world: &mut World, id| {
        let messages = world.hear(id);
        match ToClient::decode(&messages[0]) {
            Ok(ToClient::Welcome { resumed: true, .. }) => true,
            Ok(ToClient::Goodbye { code: code::LIMIT, .. }) => false,
            other => panic!("{other:?}"),
        }
    };
    // Three microseconds for each request, which takes a thirtieth of that.
    let mut hello = 1;
    let admitted = (0..300_000).step_by(1_000).filter(|&now| {
        hello += 1;
        let id = world.resume(hello, 1_000_000 + now);
        welcomed(&mut world, id)
    });
    assert_eq!(admitted.count(), 5);
    // One of few requests is resumed as often as it likes.
    for rid in 1..15_000 {
        let flags = EndFlags { quiet: true, ..EndFlags::default() };
        let last = world.last;
        world.say(last, ToServer::Release { ack: 1, rid, flags });
    }
    for more in 1..10 {
        let id = world.resume(hello + more, 2_000_000);
        assert!(welcomed(&mut world, id));
    }
}

/// What is shown of the log is what the log has.
#[test]
fn a_position_counts_once_it_is_committed() {
    let mut world = World::new(2);
    let before = world.server.position();
    assert_eq!(before, world.server.state().position(), "everything is committed");
    let id = 0;
    for rid in [1, 2] {
        let scope = vec![(&b"a"[..], Mode::Shared)];
        let request =
            ToServer::Request { ack: 1, rid, scope, flags: Flags::default(), nested_in: None, info: None };
        world.server.message(0, id, request).expect(SOUND);
        assert_eq!(world.server.position(), before, "the batch is open");
        let round = world.server.take_round().expect("a request is recorded");
        assert_eq!(world.server.state().position(), before + rid);
        assert_eq!(world.server.position(), before, "the log has not answered");
        if rid == 2 {
            world.server.round_done(round.number);
        }
    }
    assert_eq!(world.server.position(), before + 2);
}
