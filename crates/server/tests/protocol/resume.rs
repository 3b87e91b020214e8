//! Resume is a comparison: after any loss of a connection, or of the daemon, the client is told all
//! that the daemon knows of its session, and nothing is lost.

use crate::{
    client::Client,
    daemon::{Daemon, in_a_fleet},
};
use lockkeeper_core::Cause;
use lockkeeper_server::code;
use lockkeeper_wire::v2::{Flags, Listed, ToClient};

const STEAL: Flags = Flags { if_available: false, steal: true, refuse_deadlock: false };

/// What may happen between a connection and the next one of the same client.
const INTERRUPTIONS: [fn(&mut Daemon); 4] = [
    |_| {},
    Daemon::replace_killed,
    Daemon::replace_stopped,
    |daemon| {
        (0..3).for_each(|_| daemon.replace_killed());
        daemon.replace_stopped();
    },
];

/// How a session is opened.
const TRANSPORTS: [fn(&Daemon) -> Client; 3] = [Client::open, Client::open_with_lease, Client::on_network];

/// For each way to lose a connection, and each kind of session.
fn each(test: impl Fn(&mut Daemon, fn(&Daemon) -> Client, fn(&mut Daemon))) {
    // In a fleet, every session has a lease, and a restart takes a while.
    let (transports, interruptions) = match in_a_fleet() {
        true => (&TRANSPORTS[1..], &INTERRUPTIONS[..3]),
        false => (&TRANSPORTS[..], &INTERRUPTIONS[..]),
    };
    for &open in transports {
        for &interrupt in interruptions {
            test(&mut Daemon::on_network(), open, interrupt);
        }
    }
}

#[test]
fn what_is_held_and_what_waits_is_listed_with_token_and_arrival() {
    each(|daemon, open, interrupt| {
        let [mut client, mut other] = [(); 2].map(|()| open(daemon));
        let held = client.hold("a");
        let theirs = other.hold("b");
        let waiting = client.wait_for("b");
        let behind = other.wait_for("a");
        let released = client.hold("c");
        client.release(released.rid);
        interrupt(daemon);
        let welcomed = client.resume(daemon);
        assert!(welcomed.resumed);
        assert_eq!(welcomed.last_rid, released.rid);
        let [first, second] = welcomed.listed[..] else { panic!("{:?}", welcomed.listed) };
        assert_eq!((first.rid, first.token), (held.rid, Some(held.number)));
        assert_eq!(second, Listed { rid: waiting.rid, arrival: waiting.number, token: None });
        assert!(welcomed.notices.is_empty());
        // All goes on as if nothing had been.
        assert!(other.resume(daemon).resumed);
        other.release(theirs.rid);
        client.granted(waiting.rid);
        client.release(held.rid);
        other.granted(behind.rid);
    });
}

#[test]
fn what_was_broken_is_told_again_until_it_is_acknowledged() {
    told_until_acknowledged(false);
    told_until_acknowledged(true);
}

fn told_until_acknowledged(by_force: bool) {
    each(|daemon, open, interrupt| {
        let [mut preempted, mut thief] = [(); 2].map(|()| open(daemon));
        preempted.acks = false;
        let held = preempted.hold("a");
        if by_force {
            let rid = thief.force_release("a");
            assert_eq!(thief.outcome(rid), 1);
        } else {
            let stolen = thief.request_with("a", STEAL);
            thief.granted(stolen);
        }
        assert_eq!(preempted.broken(held.rid), Cause::Stolen);
        for _ in 0..2 {
            interrupt(daemon);
            let welcomed = preempted.resume(daemon);
            assert!(welcomed.resumed && welcomed.listed.is_empty());
            let [ToClient::Broken { rid, cause: Cause::Stolen, by: Some(_), forced, .. }] =
                welcomed.notices[..]
            else {
                panic!("{:?}", welcomed.notices)
            };
            assert_eq!((rid, forced), (held.rid, by_force));
        }
        preempted.acks = true;
        assert_eq!(preempted.resume(daemon).notices.len(), 1);
        // By now it has acknowledged the Welcome, whose number is above all that came with it.
        preempted.ping();
        interrupt(daemon);
        let welcomed = preempted.resume(daemon);
        assert!(welcomed.notices.is_empty(), "{:?}", welcomed.notices);
        assert_eq!(welcomed.last_rid, held.rid);
    });
}

/// A Hello acknowledges, too: the client need not be heard on the connection on which it was told.
#[test]
fn a_hello_acknowledges_what_was_told_before_it() {
    let mut daemon = Daemon::start();
    let [mut preempted, mut thief] = [(); 2].map(|()| Client::open(&daemon));
    let held = preempted.hold("a");
    let stolen = thief.request_with("a", STEAL);
    thief.granted(stolen);
    preempted.broken(held.rid);
    daemon.kill();
    daemon.run();
    assert!(preempted.resume(&daemon).notices.is_empty());
}

#[test]
fn who_is_robbed_while_it_is_away_is_told_when_it_is_back() {
    each(|daemon, open, interrupt| {
        let [mut preempted, mut thief] = [(); 2].map(|()| open(daemon));
        let (first, second) = (preempted.hold("a"), preempted.hold("b"));
        let kept = preempted.hold("c");
        preempted.disconnect();
        let stolen = thief.request_with("a", STEAL);
        thief.granted(stolen);
        let forced = thief.force_release("b");
        assert_eq!(thief.outcome(forced), 1);
        thief.release(stolen);
        interrupt(daemon);
        let welcomed = preempted.resume(daemon);
        assert!(welcomed.resumed);
        let broken: Vec<u64> = welcomed
            .notices
            .iter()
            .map(|notice| match notice {
                ToClient::Broken { rid, cause: Cause::Stolen, .. } => *rid,
                other => panic!("{other:?}"),
            })
            .collect();
        assert_eq!(broken, [first.rid, second.rid], "in the order in which they were broken");
        assert_eq!(welcomed.listed.len(), 1);
        assert_eq!(welcomed.listed[0].rid, kept.rid);
        // A released lock stays released: no client's claim brings it back.
        assert!(thief.resume(daemon).listed.is_empty());
    });
}

#[test]
fn what_a_force_release_did_is_told_again_until_it_is_acknowledged() {
    each(|daemon, open, interrupt| {
        let [mut victim, mut operator] = [(); 2].map(|()| open(daemon));
        victim.hold("a");
        operator.acks = false;
        let rid = operator.force_release("a");
        assert_eq!(operator.outcome(rid), 1);
        let ended = operator.end_session(&victim.id.clone());
        assert_eq!(operator.outcome(ended), 1);
        let in_vain = operator.force_release("a");
        assert_eq!(operator.outcome(in_vain), 0);
        interrupt(daemon);
        let welcomed = operator.resume(daemon);
        let outcomes: Vec<(u64, u64)> = welcomed
            .notices
            .iter()
            .map(|notice| match notice {
                ToClient::Outcome { rid, count, .. } => (*rid, *count),
                other => panic!("{other:?}"),
            })
            .collect();
        assert_eq!(outcomes, [(rid, 1), (ended, 1), (in_vain, 0)]);
        assert_eq!(welcomed.last_rid, in_vain);
        operator.acks = true;
        operator.resume(daemon);
        operator.ping();
        interrupt(daemon);
        assert!(operator.resume(daemon).notices.is_empty());
        let victim = victim.resume(daemon);
        assert!(!victim.resumed && victim.listed.is_empty() && victim.notices.is_empty());
    });
}

#[test]
fn what_is_granted_while_its_client_is_away_is_listed_as_held() {
    each(|daemon, open, interrupt| {
        let [mut holder, mut waiter] = [(); 2].map(|()| open(daemon));
        let held = holder.hold("a");
        let waiting = waiter.wait_for("a");
        waiter.disconnect();
        holder.release(held.rid);
        interrupt(daemon);
        let welcomed = waiter.resume(daemon);
        let [Listed { rid, token: Some(token), .. }] = welcomed.listed[..] else {
            panic!("{:?}", welcomed.listed)
        };
        assert!(rid == waiting.rid && token > held.number);
        waiter.release(rid);
    });
}

#[test]
fn more_requests_than_fit_one_message_are_listed() {
    let mut daemon = Daemon::start();
    let mut client = Client::open(&daemon);
    for number in 0..2_500 {
        client.hold(&format!("name {number}"));
    }
    daemon.kill();
    daemon.run();
    let welcomed = client.resume(&daemon);
    let rids: Vec<u64> = welcomed.listed.iter().map(|listed| listed.rid).collect();
    assert_eq!(rids, Vec::from_iter(1..=2_500));
}

/// Numbers up to the last that had an effect are known; those above it can be used again, as the
/// client does that has not heard an answer.
#[test]
fn numbers_go_on_after_the_last_that_had_an_effect() {
    let mut daemon = Daemon::start();
    let [mut client, mut other] = [(); 2].map(|()| Client::open(&daemon));
    let held = client.hold("a");
    other.hold("b");
    let unavailable = client.request_with("b", Flags { if_available: true, ..Flags::default() });
    assert_eq!(client.hear(), ToClient::Unavailable { rid: unavailable });
    client.query(None);
    daemon.kill();
    daemon.run();
    let welcomed = client.resume(&daemon);
    assert_eq!(welcomed.last_rid, held.rid, "what had no effect is not remembered");
    client.last_rid = welcomed.last_rid;
    let again = client.hold("c");
    assert_eq!(again.rid, unavailable);
    client.last_rid = held.rid - 1;
    client.request("d");
    assert_eq!(client.goodbye().0, code::OUT_OF_ORDER, "that number was used");
}

#[test]
fn a_hello_with_a_number_that_was_used_is_refused() {
    each(|daemon, open, interrupt| {
        let mut client = open(daemon);
        let held = client.hold("a");
        client.resume(daemon);
        client.resume(daemon);
        let number = client.hello;
        interrupt(daemon);
        for late in [number - 1, number] {
            let mut delayed = open(daemon);
            delayed.reconnect(daemon);
            delayed.hello = late - 1;
            let refused = delayed.greet(Some((client.id.clone(), client.secret)), None, None);
            assert_eq!(refused.expect_err("it is late").0, code::SUPERSEDED);
            assert_eq!(delayed.hear_or_end(), None);
        }
        // It has done no harm.
        assert_eq!(client.resume(daemon).listed[0].rid, held.rid);
    });
}

#[test]
fn a_connection_that_is_superseded_is_closed_and_not_listened_to() {
    for open in TRANSPORTS {
        let daemon = Daemon::on_network();
        let mut older = open(&daemon);
        let held = older.hold("a");
        for _ in 0..5 {
            let mut newer = open(&daemon);
            (newer.id, newer.secret) = (older.id.clone(), older.secret);
            (newer.hello, newer.last_rid, newer.ack) = (older.hello, older.last_rid, older.ack);
            newer.fifo = older.fifo.take();
            assert_eq!(newer.resume(&daemon).listed[0].token, Some(held.number));
            // Nothing that the older one says counts any more.
            let flags = lockkeeper_wire::v2::EndFlags::default();
            let release = lockkeeper_wire::v2::ToServer::Release { ack: 0, rid: held.rid, flags };
            older.say_in_vain(&release);
            assert_eq!(older.goodbye().0, code::SUPERSEDED);
            assert_eq!(newer.queue_of("a"), [(newer.id.clone(), true)]);
            older = newer;
        }
    }
}

#[test]
fn a_session_is_resumed_by_its_secret_in_its_bucket_and_where_it_was_opened() {
    each(|daemon, open, interrupt| {
        let mut client = open(daemon);
        let held = client.hold("a");
        interrupt(daemon);
        let (id, secret) = (client.id.clone(), client.secret);
        let mut wrong = secret;
        wrong[15] ^= 1;
        let elsewhere = |client: &Client| match client.is_local() {
            true => Client::mute_on_network(daemon),
            false => Client::mute(daemon),
        };
        let here = |client: &Client| match client.is_local() {
            true => Client::mute(daemon),
            false => Client::mute_on_network(daemon),
        };
        let mut strangers = vec![
            (here(&client), wrong),
            (here(&client), [0; 16]),
            (here(&client).in_bucket("other"), secret),
        ];
        // A client of a fleet may have to go on over the network.
        if !in_a_fleet() {
            strangers.push((elsewhere(&client), secret));
        }
        for (mut stranger, secret) in strangers {
            stranger.hello = 100;
            let welcomed = stranger.greet(Some((id.clone(), secret)), None, None).expect("a welcome");
            assert!(!welcomed.resumed && welcomed.listed.is_empty() && stranger.id != id);
        }
        let welcomed = client.resume(daemon);
        assert!(welcomed.resumed && welcomed.listed[0].rid == held.rid);
    });
}

/// Its state does not depend on how often a client connects, also if each connection is cut at
/// once.
#[test]
fn a_session_may_be_resumed_as_often_as_its_client_likes() {
    let mut daemon = Daemon::on_network();
    for open in TRANSPORTS {
        let mut client = open(&daemon);
        let held = client.hold("a");
        let waiting = client.wait_for("a");
        for round in 0..20 {
            if round % 7 == 0 {
                daemon.kill();
                daemon.run();
            }
            client.reconnect(&daemon);
            client.hello += 1;
            let (id, secret) = (client.id.clone(), client.secret);
            client.say_hello(Some((&id, secret)), None, None);
            // It is cut off before it has received anything.
        }
        let welcomed = client.resume(&daemon);
        let listed: Vec<u64> = welcomed.listed.iter().map(|listed| listed.rid).collect();
        assert_eq!(listed, [held.rid, waiting.rid]);
        client.release(held.rid);
        client.granted(waiting.rid);
        client.release(waiting.rid);
    }
}

#[test]
fn a_daemon_that_stops_says_so() {
    let mut daemon = Daemon::on_network();
    let mut clients = TRANSPORTS.map(|open| open(&daemon));
    daemon.stop();
    for client in &mut clients {
        assert_eq!(client.goodbye().0, code::STOPPING);
    }
}

#[test]
fn who_resumes_needs_no_place_for_a_session() {
    let daemon = Daemon::on_network_with(|setup| setup.limits.clients = 2);
    let mut clients = [Client::on_network(&daemon), Client::open(&daemon)];
    for client in &mut clients {
        let (code, why) = Client::mute_on_network(&daemon).open_session(None).expect_err("there are two");
        assert_eq!(code, code::LIMIT, "{why}");
        assert!(client.resume(&daemon).resumed);
    }
}
