//! Clients that are slow, silent or deaf delay nobody but themselves.

use crate::{
    client::{Client, framed, hello},
    daemon::Daemon,
};
use lockkeeper_core::Mode;
use lockkeeper_wire::v2::{Flags, ToServer};

#[test]
fn who_says_nothing_or_half_a_message_delays_nobody() {
    let daemon = Daemon::start();
    let hello = framed(&hello("default"));
    let beginnings: [&[u8]; 5] =
        [b"", b"\0\0", &hello[..4], &hello[..9], b"\0\x10\0\0half a megabyte is to come"];
    let mut idle = Vec::new();
    for beginning in beginnings {
        for _ in 0..20 {
            let (mut stranger, mut acquaintance) = (Client::mute(&daemon), Client::open(&daemon));
            stranger.write(beginning);
            acquaintance.write(beginning);
            idle.extend([stranger, acquaintance]);
        }
    }
    let (mut one, mut other) = (Client::open(&daemon), Client::open(&daemon));
    for _ in 0..100 {
        let held = one.hold("a");
        let waiting = other.wait_for("a");
        one.release(held.rid);
        other.granted(waiting.rid);
        other.release(waiting.rid);
    }
    drop(idle);
}

/// A client's requests and answers of so many bytes that neither its socket nor the daemon's patience holds them.
const MANY: usize = 60_000;

#[test]
fn who_does_not_hear_what_others_do_is_not_listened_to() {
    let daemon = Daemon::start();
    let (mut deaf, mut other) = (Client::open(&daemon), Client::open(&daemon));
    let names: Vec<String> = (0..MANY).map(|i| format!("name {i}")).collect();
    let (mut held, mut waiting) = (Vec::new(), Vec::new());
    for some in names.chunks(1000) {
        let rids: Vec<u64> = some.iter().map(|name| other.request(name)).collect();
        rids.iter().for_each(|rid| _ = other.granted(*rid));
        held.extend(rids);
        let rids: Vec<u64> = some.iter().map(|name| deaf.request(name)).collect();
        rids.iter().for_each(|rid| _ = deaf.queued(*rid));
        waiting.extend(rids);
    }
    // From here on it hears nothing. The other's releases are grants to it.
    held.iter().for_each(|rid| other.release_quietly(*rid));
    other.ping();
    let late = deaf.request("late");
    for _ in 0..50 {
        other.ping();
        assert_eq!(other.queue_of("late"), [], "it is not listened to");
    }
    // Nothing was lost: it hears all, and is listened to.
    waiting.iter().for_each(|rid| _ = deaf.granted(*rid));
    deaf.granted(late);
    assert_eq!(other.queue_of("late"), [(deaf.id.clone(), true)]);
}

#[test]
fn who_does_not_hear_its_own_answers_is_not_listened_to() {
    let daemon = Daemon::start();
    let (mut deaf, mut other) = (Client::open(&daemon), Client::open(&daemon));
    let entries = fill(&mut other);
    let questions: Vec<u64> = (0..20).map(|_| deaf.next_rid()).collect();
    let asked: Vec<u8> = questions
        .iter()
        .flat_map(|rid| framed(&ToServer::Query { ack: 0, rid: *rid, name: None, deadlocks: false }))
        .collect();
    deaf.write(&asked);
    // The beginning of the first answer: by now all were answered, and most of it waits in the
    // daemon.
    assert!(deaf.hear_bytes());
    let late = deaf.request("late");
    for _ in 0..50 {
        other.ping();
        assert_eq!(other.queue_of("late"), [], "it is not listened to");
    }
    for question in questions {
        assert_eq!(deaf.hear_snapshot(question).0.len(), entries);
    }
    deaf.granted(late);
}

/// The answers to one read of small questions can be a thousand times as long as the questions.
#[test]
fn who_asks_much_at_once_is_not_listened_to_either() {
    let daemon = Daemon::start();
    let (mut deaf, mut other) = (Client::open(&daemon), Client::open(&daemon));
    fill(&mut other);
    let mut asked = Vec::new();
    let questions: Vec<u64> = (0..20).map(|_| deaf.next_rid()).collect();
    for &rid in &questions {
        asked.extend(framed(&ToServer::Query { ack: 0, rid, name: None, deadlocks: false }));
    }
    let late = deaf.next_rid();
    let scope = vec![(&b"late"[..], Mode::Exclusive)];
    let flags = Flags::default();
    asked.extend(framed(&ToServer::Request { ack: 0, rid: late, scope, flags, nested_in: None, info: None }));
    deaf.write(&asked);
    assert!(deaf.hear_bytes());
    for _ in 0..50 {
        other.ping();
        assert_eq!(other.queue_of("late"), [], "the first answers are not read yet");
    }
    for question in questions {
        deaf.hear_snapshot(question);
    }
    deaf.granted(late);
}

#[test]
fn who_hears_nothing_and_goes_is_gone() {
    let daemon = Daemon::start();
    let (mut deaf, mut other) = (Client::open(&daemon), Client::open(&daemon));
    fill(&mut other);
    deaf.hold("a");
    let waiting = other.wait_for("a");
    for _ in 0..20 {
        let rid = deaf.next_rid();
        deaf.say(&ToServer::Query { ack: 0, rid, name: None, deadlocks: false });
    }
    drop(deaf);
    other.granted(waiting.rid);
}

/// Holds locks that make a snapshot of 200 KiB. Returns how many.
fn fill(client: &mut Client) -> usize {
    for i in 0..100 {
        client.hold(&format!("{i} {}", "n".repeat(2_000)));
    }
    100
}
