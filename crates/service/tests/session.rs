//! The client's session against a server that the test plays.

use lockkeeper_service::{Answer, Event, Outcome, Session, SessionConfig};
use lockkeeper_wire::{
    frame,
    v2::{Entry, ToClient, ToServer, VERSION},
};

const TTL: u64 = 10_000;
const SECRET: [u8; 16] = [7; 16];

fn welcome(resumed: bool) -> ToClient<'static> {
    ToClient::Welcome {
        version: VERSION,
        features: 0,
        number: 1,
        client_id: "0123456789abcdef",
        secret: SECRET,
        ttl: TTL,
        resumed,
        last_rid: 0,
    }
}

/// A session that is open at time 0, on connection 1.
fn opened() -> Session<()> {
    let mut session = Session::new(SessionConfig::default(), 0);
    assert_eq!(session.connected(0, None), 1);
    session.message(0, 1, welcome(false));
    session.message(0, 1, ToClient::Synced);
    assert!(session.is_ready());
    session.take_output();
    session.next_event();
    session
}

fn entry(name: &'static [u8]) -> Entry<'static> {
    Entry {
        name,
        mode: lockkeeper_core::Mode::Exclusive,
        client_id: "0123456789abcdef",
        arrival: 1,
        token: Some(1),
        info: None,
        since: 0,
        nested_in: None,
        stole: false,
        owner: None,
    }
}

fn part(rid: u64, names: &[&'static [u8]], more: bool) -> ToClient<'static> {
    let entries = names.iter().map(|name| entry(name)).collect();
    ToClient::Snapshot { rid, entries, deadlocks: vec![], last_token: 1, more }
}

#[test]
fn an_answer_that_was_cut_in_half_is_not_half_of_the_next() {
    let mut session = opened();
    session.query(None, false, ());
    session.message(1, 1, part(1, &[b"a", b"b"], true));
    session.disconnected(2, 1);
    let connection = session.connected(3, None);
    session.message(4, connection, welcome(true));
    session.message(4, connection, ToClient::Synced);
    let output = session.take_output();
    let (_, hello) = frame::first(&output, frame::MAX).expect("it is short").expect("Hello is whole");
    let (again, _) =
        frame::first(&output[hello..], frame::MAX).expect("it is short").expect("the question follows");
    assert!(matches!(ToServer::decode(again), Ok(ToServer::Query { rid: 1, .. })), "it is asked again");
    session.message(5, connection, part(1, &[b"a", b"b"], true));
    session.message(5, connection, part(1, &[b"c"], false));
    let answer = std::iter::from_fn(|| session.next_event()).find_map(|event| match event {
        Event::Over { outcome: Outcome::Answer(Answer::Snapshot(snapshot)), .. } => Some(snapshot),
        _ => None,
    });
    let names: Vec<_> = answer.expect("it is answered").entries.into_iter().map(|entry| entry.name).collect();
    assert_eq!(names.iter().map(|name| name.as_bytes()).collect::<Vec<_>>(), [b"a", b"b", b"c"]);
}

#[test]
fn a_server_that_falls_silent_before_the_end_marker_is_given_up() {
    let mut session = Session::<()>::new(SessionConfig::default(), 0);
    let connection = session.connected(0, None);
    session.message(1_000, connection, welcome(false));
    let wake = session.next_wake().expect("it does not wait for ever");
    session.wake(wake);
    assert!(session.wants_drop());
    assert!(session.connect_at().is_some());
}

#[test]
fn an_end_marker_without_a_welcome_opens_nothing() {
    let mut session = Session::<()>::new(SessionConfig::default(), 0);
    let connection = session.connected(0, None);
    session.message(1, connection, ToClient::Synced);
    assert!(!session.is_ready());
    session.message(2, connection, welcome(false));
    session.message(2, connection, ToClient::Synced);
    assert!(session.is_ready());
}

#[test]
fn a_closed_session_does_not_open() {
    let mut session = Session::<()>::new(SessionConfig::default(), 0);
    let connection = session.connected(0, None);
    session.message(1, connection, welcome(false));
    session.close();
    session.message(2, connection, ToClient::Synced);
    let events: Vec<_> = std::iter::from_fn(|| session.next_event()).collect();
    assert_eq!(events, [Event::Closed]);
}
