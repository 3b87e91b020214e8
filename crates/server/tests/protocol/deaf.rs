//! Clients of a daemon that do not read what it sends, for as long as a test likes. A daemon that
//! relays cuts them off, and a client that has a lease is not gone with its connection.

use crate::{client::Client, daemon::Daemon, flow::fill, subscribe::Seen};
use lockkeeper_wire::v2::{ToClient, ToServer};
use std::collections::BTreeMap;

/// A client's requests and answers of so many bytes that neither its socket nor the daemon's
/// patience holds them.
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

/// More than the buffers of sockets and daemon together.
#[test]
fn a_viewer_that_does_not_read_holds_up_nobody_and_sees_the_end() {
    let daemon = Daemon::start();
    let (mut viewer, mut one) = (Client::open(&daemon), Client::open(&daemon));
    let mut seen = Seen::subscribe(&mut viewer);
    seen.await_requests(&mut viewer, &[]);
    let label = "n".repeat(1000);
    for number in 0..10_000 {
        one.hold(&format!("{label}{number}"));
    }
    for rid in 1..=one.last_rid {
        one.release(rid);
    }
    one.hold("last");
    let mut requests: BTreeMap<u64, Vec<u8>> = BTreeMap::new();
    let mut void = false;
    while void || requests.values().ne([&b"last"[..]]) {
        let (entries, gone) = match viewer.hear() {
            ToClient::Snapshot { entries, more, .. } => {
                if !void {
                    requests.clear();
                }
                void = more;
                (entries, Vec::new())
            }
            ToClient::Changes { entries, gone, .. } => (entries, gone),
            other => panic!("{other:?}"),
        };
        entries.iter().for_each(|entry| _ = requests.insert(entry.arrival, entry.name.to_vec()));
        gone.iter().for_each(|arrival| _ = requests.remove(arrival));
    }
}
