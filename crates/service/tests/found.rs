//! What the simulation has found, as short stories: one server and its clients, message by message.

use lockkeeper_core::{Limits, Mode, Name};
use lockkeeper_service::{
    Access, Answer, Bytes, ConnectionId, EndReason, Event, Fifo, Framing, Fresh, Hello, Key, Micros, Origin,
    Outcome, Record, Request, Rights, Server, ServerConfig, Session, SessionConfig, State, Ttl,
};
use lockkeeper_wire::{
    frame,
    v2::{Flags, ToClient, ToServer},
};

const SOUND: &str = "the state is sound";

/// In milliseconds.
const TTL: u64 = 1000;

fn server() -> Server {
    let config = ServerConfig {
        ttl: Ttl::fixed(TTL),
        limits: Limits::default(),
        sessions: 100,
        buckets: 100,
        bytes: Bytes::default(),
        backlog: 1 << 20,
        slice: 1000,
        hash: |secret| {
            let mut hash = [0; 32];
            hash[..16].copy_from_slice(secret);
            hash
        },
    };
    Server::new(State::new(1), config, 0, 0, None)
}

fn session(bucket: &str) -> Session<()> {
    Session::new(SessionConfig { bucket: bucket.into(), ..SessionConfig::default() }, 0)
}

/// A session's connection to the server.
struct Line {
    id: ConnectionId,
    number: u64,
}

fn connect(server: &mut Server, session: &mut Session<()>, now: Micros, fresh: u64) -> Line {
    connect_from(Origin::Network, server, session, now, fresh)
}

fn connect_from(
    origin: Origin,
    server: &mut Server,
    session: &mut Session<()>,
    now: Micros,
    fresh: u64,
) -> Line {
    let fresh = Fresh { session: fresh, secret: [1; 16] };
    let id = server.connect(origin, Framing::Lengths, fresh);
    Line { id, number: session.connected(now, None) }
}

fn local_session() -> Session<()> {
    Session::new(SessionConfig { bucket: "default".into(), fifo: true, ..SessionConfig::default() }, 0)
}

/// The server reads all that the session has sent, and commits it.
fn up(server: &mut Server, session: &mut Session<()>, line: &Line, now: Micros) -> Vec<Vec<u8>> {
    let output = session.take_output();
    let mut rest = &output[..];
    while let Ok(Some((message, length))) = frame::first(rest, frame::MAX) {
        match ToServer::decode(message).expect("a message") {
            ToServer::Hello { version, features, hello, bucket, resume, ack, ttl, owner, .. } => {
                let hello = Hello { version, features, hello, bucket, resume, ack, ttl, owner };
                let access = Access { rights: Rights::ALL, subject: String::new() };
                server.hello(now, line.id, hello, access).expect(SOUND);
            }
            message => server.message(now, line.id, message).expect(SOUND),
        }
        rest = &rest[length..];
    }
    commit(server);
    let output = server.output(line.id).to_vec();
    server.sent(line.id, output.len());
    let mut messages = Vec::new();
    let mut rest = &output[..];
    while let Ok(Some((message, length))) = frame::first(rest, frame::MAX_TO_CLIENT) {
        messages.push(message.to_vec());
        rest = &rest[length..];
    }
    messages
}

fn commit(server: &mut Server) {
    while let Some(round) = server.take_round() {
        server.round_done(round.number);
    }
}

/// The session reads messages.
fn down(session: &mut Session<()>, line: &Line, messages: &[Vec<u8>], now: Micros) {
    for message in messages {
        session.message(now, line.number, ToClient::decode(message).expect("a message"));
    }
}

/// Everything that is sent arrives.
fn exchange(server: &mut Server, session: &mut Session<()>, line: &Line, now: Micros) {
    while session.has_output() {
        let messages = up(server, session, line, now);
        down(session, line, &messages, now);
    }
}

fn outcome(session: &mut Session<()>, wanted: Key) -> Option<Outcome> {
    std::iter::from_fn(|| session.next_event()).find_map(|event| match event {
        Event::Over { key, outcome, .. } if key == wanted => Some(outcome),
        _ => None,
    })
}

fn request(name: &str) -> Request {
    let scope = vec![(Name::from(name), Mode::Exclusive)];
    Request { scope, flags: Flags::default(), nested_in: None, info: None }
}

/// The answer was lost, and the number is below the server's last: it had no effect, and is asked
/// again.
#[test]
fn a_refused_end_of_a_session_is_asked_again() {
    let (mut server, mut session) = (server(), session("default"));
    let first = connect(&mut server, &mut session, 0, 1);
    exchange(&mut server, &mut session, &first, 0);
    let refused = session.end_session("no client has such an id".into(), ());
    let made = session.request(request("a"), ());
    let lost = up(&mut server, &mut session, &first, 0);
    assert_eq!(lost.len(), 2, "a refusal and a grant");
    session.disconnected(1, first.number);
    let second = connect(&mut server, &mut session, 2, 2);
    exchange(&mut server, &mut session, &second, 2);
    assert!(session.is_held(2, made));
    let outcome = outcome(&mut session, refused);
    assert!(matches!(outcome, Some(Outcome::Refused { .. })), "{outcome:?}");
}

/// The outcome of a force release is repeated until it is acknowledged: it is never executed twice.
#[test]
fn a_force_release_is_done_once() {
    let (mut server, mut session) = (server(), session("default"));
    let first = connect(&mut server, &mut session, 0, 1);
    exchange(&mut server, &mut session, &first, 0);
    let held = session.request(request("a"), ());
    exchange(&mut server, &mut session, &first, 0);
    let forced = session.force_release(Name::from("a"), ());
    let lost = up(&mut server, &mut session, &first, 0);
    assert_eq!(lost.len(), 2, "the lock is broken, the question is answered");
    session.disconnected(1, first.number);
    let second = connect(&mut server, &mut session, 2, 2);
    exchange(&mut server, &mut session, &second, 2);
    assert!(!session.is_held(2, held));
    let outcome = outcome(&mut session, forced);
    assert_eq!(outcome, Some(Outcome::Answer(Answer::Done { count: 1 })));
}

/// The network loses the end marker, unnoticed. A new session has no lease before that marker, and
/// no descriptor either: the connection is given up.
#[test]
fn a_lost_end_marker_is_not_waited_for_without_end() {
    let (mut server, mut session) = (server(), session("default"));
    let first = connect(&mut server, &mut session, 0, 1);
    let messages = up(&mut server, &mut session, &first, 0);
    assert_eq!(messages.len(), 2, "Welcome and the end marker");
    down(&mut session, &first, &messages[..1], 0);
    let wake = session.next_wake().expect("it waits for a bounded time");
    session.wake(wake);
    assert!(session.wants_drop());
    let again = session.connect_at().expect("it connects again");
    let second = connect(&mut server, &mut session, again, 2);
    let wake = session.next_wake();
    assert!(wake.is_some(), "the next Hello is not waited for without end, either");
    exchange(&mut server, &mut session, &second, again);
    assert!(session.is_ready());
}

/// A bucket that is older than another one's end has given out fewer tokens: it goes on where it
/// was.
#[test]
fn a_restored_bucket_goes_on_with_its_own_tokens() {
    let mut server = server();
    let (mut one, mut other) = (session("one"), session("other"));
    let line = connect(&mut server, &mut one, 0, 1);
    exchange(&mut server, &mut one, &line, 0);
    let second = connect(&mut server, &mut other, 0, 2);
    exchange(&mut server, &mut other, &second, 0);
    for _ in 0..3 {
        let key = other.request(request("a"), ());
        exchange(&mut server, &mut other, &second, 0);
        other.release(key, false);
        exchange(&mut server, &mut other, &second, 0);
    }
    other.close();
    up(&mut server, &mut other, &second, 0);
    let snapshot = server.state_mut().snapshot();
    let mut restored = State::restore([&snapshot], 2).unwrap();
    assert_eq!(restored.snapshot(), snapshot);
}

/// Clocks show whole microseconds. A client whose message arrived at 10.9 has its lease until 10.9
/// and a ttl.
#[test]
fn a_lease_lasts_for_all_of_its_microseconds() {
    let (mut server, mut session) = (server(), session("default"));
    let line = connect(&mut server, &mut session, 10, 1);
    exchange(&mut server, &mut session, &line, 10);
    server.wake(10 + TTL * 1000).unwrap();
    assert_eq!(server.state().session_count(), 1);
    server.wake(11 + TTL * 1000).unwrap();
    assert_eq!(server.state().session_count(), 0);
}

/// A FIFO cannot be verified, so its session gets a lease when it resumes. Until the client knows,
/// it lives by its descriptor, and does not end.
#[test]
fn a_session_without_its_fifo_has_a_lease_once_its_client_knows() {
    let (mut server, mut session) = (server(), local_session());
    let first = connect_from(Origin::Local, &mut server, &mut session, 0, 1);
    exchange(&mut server, &mut session, &first, 0);
    server.fifo_passed(first.id, Fifo { device: 1, inode: 1, boot: [0; 16] });
    commit(&mut server);
    let messages = up(&mut server, &mut session, &first, 0);
    down(&mut session, &first, &messages, 0);
    session.confirm();
    let held = session.request(request("a"), ());
    exchange(&mut server, &mut session, &first, 0);
    assert!(session.is_held(u64::MAX, held), "it has no lease");
    server.disconnect(first.id);
    session.disconnected(1, first.number);
    let id = server.state().sessions().next().unwrap();
    server.fifo_unverifiable(id);
    let second = connect_from(Origin::Local, &mut server, &mut session, 2, 2);
    let welcome = up(&mut server, &mut session, &second, 2);
    // The client is stopped, and does not read it.
    server.wake(10 * TTL * 1000).unwrap();
    assert_eq!(server.state().session_count(), 1, "the client does not know that it has a lease");
    assert!(session.is_held(3, held));
    down(&mut session, &second, &welcome, 3);
    assert!(!session.is_held(2 + TTL * 1000, held), "now it has one");
    session.wake(session.next_wake().unwrap());
    up(&mut server, &mut session, &second, 100);
    server.wake(20 * TTL * 1000).unwrap();
    assert_eq!(server.state().session_count(), 0);
}

/// The answer to a resume lay unread for longer than the lease that it tells. Before it, the
/// session had none.
#[test]
fn nothing_is_granted_by_an_answer_that_was_read_too_late() {
    let mut server = server();
    let (mut holder, mut session) = (session("default"), local_session());
    let line = connect(&mut server, &mut holder, 0, 1);
    let held = holder.request(request("a"), ());
    exchange(&mut server, &mut holder, &line, 0);
    let first = connect_from(Origin::Local, &mut server, &mut session, 0, 2);
    exchange(&mut server, &mut session, &first, 0);
    server.fifo_passed(first.id, Fifo { device: 1, inode: 1, boot: [0; 16] });
    session.confirm();
    let waits = session.request(request("a"), ());
    exchange(&mut server, &mut session, &first, 0);
    server.disconnect(first.id);
    session.disconnected(1, first.number);
    server.fifo_unverifiable(2);
    holder.release(held, false);
    exchange(&mut server, &mut holder, &line, 1);
    let second = connect_from(Origin::Local, &mut server, &mut session, 2, 3);
    let welcome = up(&mut server, &mut session, &second, 2);
    let late = 2 + TTL * 1000;
    down(&mut session, &second, &welcome, late);
    let granted =
        std::iter::from_fn(|| session.next_event()).any(|event| matches!(event, Event::Granted { .. }));
    assert!(!granted && !session.is_held(late, waits));
}

/// A lock was released while a snapshot was taken. The request nested in it had not been written
/// yet, and was written as if it were nested in none: another daemon did not see its deadlock.
#[test]
fn a_snapshot_has_the_nesting_of_its_position() {
    let open = |session| Record::Open {
        session,
        secret: [7; 32],
        bucket: "default",
        origin: Origin::Network,
        hello: 1,
        ttl: 10_000,
        owner: "me@here",
    };
    let ask = |session, rid, name, nested_in| Record::Request {
        session,
        rid,
        scope: vec![(name, Mode::Exclusive)],
        steal: false,
        nested_in,
        info: None,
    };
    let ends = [
        Record::Release { session: 1, rid: 1 },
        Record::End { session: 1, reason: EndReason::Bye },
        Record::ForceRelease { session: 2, rid: 2, name: b"outer" },
    ];
    for end in ends {
        let mut state = State::new(1);
        let records =
            [open(1), open(2), ask(1, 1, &b"outer"[..], None), ask(2, 1, &b"inner"[..], Some((1, 1)))];
        for record in records {
            state.apply(&record, &mut Vec::new()).expect(SOUND);
        }
        let whole = state.snapshot();
        let mut slices = Vec::new();
        state.begin_snapshot();
        state.apply(&end, &mut Vec::new()).expect(SOUND);
        assert!(state.snapshot_slice(usize::MAX / 2, &mut slices));
        let mut restored = State::restore([slices], 2).expect(SOUND);
        assert!(restored.snapshot() == whole, "{end:?}");
    }
}
