//! Clients that are slow, silent or deaf delay nobody but themselves.

use crate::{
    client::{Client, framed},
    daemon::Daemon,
};
use lockkeeper_core::Mode;
use lockkeeper_wire::{Flags, ToClient, ToServer, VERSION};

#[test]
fn who_says_nothing_or_half_a_message_delays_nobody() {
    let daemon = Daemon::start();
    let hello = framed(&ToServer::Hello { version: VERSION, bucket: "default", resume: None, token: None });
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
const MANY: u64 = 20_000;

#[test]
fn who_does_not_hear_what_others_do_is_not_listened_to() {
    let daemon = Daemon::start();
    let (mut deaf, mut other) = (Client::open(&daemon), Client::open(&daemon));
    let names: Vec<&'static str> = (0..MANY).map(|i| &*format!("name {i}").leak()).collect();
    let held: Vec<u64> = names.iter().map(|name| other.hold(name).rid).collect();
    let waiting: Vec<u64> = names.iter().map(|name| deaf.wait_for(name).rid).collect();
    // From here on it hears nothing. The other's releases are grants to it.
    held.iter().for_each(|rid| other.release(*rid));
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
        .flat_map(|rid| framed(&ToServer::Query { rid: *rid, name: None, deadlocks: false }))
        .collect();
    deaf.write(&asked);
    // The beginning of the first answer: by now all were answered, and most of it waits in the daemon.
    assert!(deaf.hear_bytes());
    let late = deaf.request("late");
    for _ in 0..50 {
        other.ping();
        assert_eq!(other.queue_of("late"), [], "it is not listened to");
    }
    for question in questions {
        let ToClient::Snapshot { rid, entries: seen, .. } = deaf.hear() else { panic!("not a snapshot") };
        assert_eq!((rid, seen.len()), (question, entries));
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
    for _ in 0..20 {
        let rid = deaf.next_rid();
        asked.extend(framed(&ToServer::Query { rid, name: None, deadlocks: false }));
    }
    let late = deaf.next_rid();
    let scope = vec![(&b"late"[..], Mode::Exclusive)];
    let flags = Flags::default();
    asked.extend(framed(&ToServer::Request { rid: late, scope, flags, nested_in: None, info: None }));
    deaf.write(&asked);
    assert!(deaf.hear_bytes());
    for _ in 0..50 {
        other.ping();
        assert_eq!(other.queue_of("late"), [], "the first answers are not read yet");
    }
    for _ in 0..20 {
        assert!(matches!(deaf.hear(), ToClient::Snapshot { .. }));
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
        deaf.say(&ToServer::Query { rid, name: None, deadlocks: false });
    }
    drop(deaf);
    other.granted(waiting.rid);
}

/// Holds locks that make a snapshot of 200 KiB. Returns how many.
fn fill(client: &mut Client) -> usize {
    for i in 0..100 {
        client.hold(format!("{i} {}", "n".repeat(2_000)).leak());
    }
    100
}
