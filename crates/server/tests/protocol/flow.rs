//! Clients that are slow, silent or deaf delay nobody but themselves.

use crate::{
    client::{Client, framed, hello},
    daemon::{Daemon, in_a_fleet},
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

#[test]
fn who_does_not_hear_its_own_answers_is_not_listened_to() {
    let daemon = Daemon::start();
    let (mut deaf, mut other) = (Client::open(&daemon), Client::open(&daemon));
    let entries = fill(&mut other);
    let questions: Vec<u64> = (0..many_answers()).map(|_| deaf.next_rid()).collect();
    let asked: Vec<u8> = questions
        .iter()
        .flat_map(|rid| framed(&ToServer::Query { ack: 0, rid: *rid, name: None, deadlocks: false }))
        .collect();
    deaf.write(&asked);
    // The beginning of the first answer: by now all were answered, and most of it waits in the
    // daemon.
    assert!(deaf.hear_bytes());
    let late = deaf.request("late");
    for _ in 0..looks() {
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
    let questions: Vec<u64> = (0..many_answers()).map(|_| deaf.next_rid()).collect();
    for &rid in &questions {
        asked.extend(framed(&ToServer::Query { ack: 0, rid, name: None, deadlocks: false }));
    }
    let late = deaf.next_rid();
    let scope = vec![(&b"late"[..], Mode::Exclusive)];
    let flags = Flags::default();
    asked.extend(framed(&ToServer::Request { ack: 0, rid: late, scope, flags, nested_in: None, info: None }));
    deaf.write(&asked);
    assert!(deaf.hear_bytes());
    for _ in 0..looks() {
        other.ping();
        assert_eq!(other.queue_of("late"), [], "the first answers are not read yet");
    }
    for question in questions {
        deaf.hear_snapshot(question);
    }
    deaf.granted(late);
}

/// How often it is looked whether a client is listened to that does not read. A daemon that relays
/// cuts it off after 15 seconds, and each look is some commits of etcd there.
fn looks() -> usize {
    if in_a_fleet() { 10 } else { 50 }
}

/// How many answers of 200 KiB are more than the sockets and the daemon's patience hold: in a fleet,
/// there are two more sockets.
fn many_answers() -> usize {
    if in_a_fleet() { 200 } else { 20 }
}

/// Holds locks that make a snapshot of 200 KiB. Returns how many.
pub(crate) fn fill(client: &mut Client) -> usize {
    for i in 0..100 {
        client.hold(&format!("{i} {}", "n".repeat(2_000)));
    }
    100
}

#[test]
fn who_does_not_read_delays_nobody_and_loses_nothing() {
    // Each is a commit of etcd, in a fleet.
    let many = if in_a_fleet() { 2_000 } else { 20_000 };
    let daemon = Daemon::on_network();
    let (mut deaf, mut other) = (Client::on_network(&daemon), Client::on_network(&daemon));
    let names: Vec<String> = (0..many).map(|i| format!("name {i}")).collect();
    let held: Vec<u64> = names.iter().map(|name| other.hold(name).rid).collect();
    let waiting: Vec<u64> = names.iter().map(|name| deaf.wait_for(name).rid).collect();
    held.iter().for_each(|rid| other.release(*rid));
    for _ in 0..50 {
        other.ping();
    }
    waiting.iter().for_each(|rid| _ = deaf.granted(*rid));
    deaf.ping();
}
