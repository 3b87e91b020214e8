//! Leases on the network: a session ends no sooner than its ttl after it was last heard, or after
//! its daemon began to hear.
//!
//! Times are compared with their lower bounds only: however slow the machine, these tests do not
//! fail for that.

use crate::{client::Client, daemon::Daemon};
use lockkeeper_core::Cause;
use lockkeeper_wire::v2::{Flags, ToClient};
use std::{
    thread,
    time::{Duration, Instant},
};

/// Long enough for a client to do something before it is silent, also on a busy machine.
const TTL: Duration = Duration::from_secs(1);

fn millis(span: Duration) -> u64 {
    u64::try_from(span.as_millis()).expect("it is short")
}

fn daemon(ttl: Duration) -> Daemon {
    Daemon::on_network_with(|setup| setup.ttl = ttl)
}

#[test]
fn who_is_not_heard_for_its_ttl_has_lost_its_locks_and_not_before() {
    for connected in [true, false] {
        let daemon = daemon(TTL);
        let (mut silent, mut next) = (Client::on_network(&daemon), Client::open(&daemon));
        let before = Instant::now();
        silent.hold("a");
        if !connected {
            silent.disconnect();
        }
        next.get("a");
        assert!(before.elapsed() >= TTL);
        if connected {
            assert_eq!(silent.hear_or_end(), None, "its connection is closed");
        }
        assert!(!silent.resume(&daemon).resumed);
    }
}

#[test]
fn the_welcome_tells_the_ttl_that_was_wished_for_and_it_is_kept() {
    let mut daemon = daemon(Duration::from_secs(600));
    let mut next = Client::open(&daemon);
    for restart in [false, true] {
        let mut silent = Client::mute_on_network(&daemon);
        let welcomed = silent.greet(None, None, Some(millis(TTL))).expect("a welcome");
        assert_eq!(welcomed.ttl, millis(TTL));
        let mut before = Instant::now();
        silent.hold("a");
        if restart {
            daemon.kill();
            before = Instant::now();
            daemon.run();
            assert!(next.resume(&daemon).resumed);
        }
        let held = next.get("a");
        assert!(before.elapsed() >= TTL);
        next.release(held.rid);
    }
}

#[test]
fn who_is_heard_keeps_its_locks() {
    let daemon = daemon(Duration::from_secs(2));
    let (mut client, mut local) = (Client::on_network(&daemon), Client::open(&daemon));
    let held = client.hold("a");
    let waiting = local.wait_for("a");
    // Another one, that is silent, shows when the time has passed twice over.
    for _ in 0..2 {
        let mut silent = Client::on_network(&daemon);
        let silent = thread::spawn(move || silent.hear_or_end());
        while !silent.is_finished() {
            client.ping();
            thread::sleep(Duration::from_millis(20));
        }
        assert_eq!(silent.join().expect("it hears"), None);
    }
    client.release(held.rid);
    local.granted(waiting.rid);
}

/// No message could arrive while there was no daemon.
#[test]
fn a_new_daemon_gives_everybody_a_whole_ttl() {
    for stop in [Daemon::kill, Daemon::stop] {
        let mut daemon = daemon(TTL);
        let (mut silent, mut next) = (Client::on_network(&daemon), Client::open(&daemon));
        silent.hold("a");
        stop(&mut daemon);
        let before = Instant::now();
        daemon.run();
        assert!(next.resume(&daemon).resumed);
        next.get("a");
        assert!(before.elapsed() >= TTL);
        assert!(!silent.resume(&daemon).resumed);
    }
}

/// A session resumes late in its ttl, and is cut at once. Its client counts from the Hello that was
/// answered.
#[test]
fn a_session_that_is_resumed_and_cut_has_a_whole_ttl_from_then() {
    for restart in [false, true] {
        let mut daemon = daemon(TTL);
        let (mut client, mut next) = (Client::on_network(&daemon), Client::open(&daemon));
        client.hold("a");
        if restart {
            daemon.kill();
            daemon.run();
            assert!(next.resume(&daemon).resumed);
        }
        let waiting = next.request("a");
        thread::sleep(TTL * 7 / 10);
        let before = Instant::now();
        let welcomed = client.resume(&daemon);
        client.disconnect();
        while !matches!(next.hear(), ToClient::Granted { rid, .. } if rid == waiting) {}
        // On a slow machine it came too late: then there is nothing to see.
        if welcomed.resumed {
            assert!(before.elapsed() >= TTL);
        }
    }
}

/// The state does not depend on how often a client resumes.
#[test]
fn a_session_that_is_resumed_again_after_a_restart_has_lost_nothing() {
    for stop in [Daemon::kill, Daemon::stop] {
        let mut daemon = daemon(Duration::from_secs(600));
        let (mut client, mut next) = (Client::on_network(&daemon), Client::open(&daemon));
        let held = client.hold("a");
        stop(&mut daemon);
        daemon.run();
        assert!(next.resume(&daemon).resumed);
        let waiting = next.wait_for("a");
        for _ in 0..3 {
            assert_eq!(client.resume(&daemon).listed[0].token, Some(held.number));
            client.disconnect();
        }
        assert_eq!(next.queue_of("a")[0], (client.id.clone(), true));
        client.resume(&daemon);
        client.release(held.rid);
        next.granted(waiting.rid);
    }
}

/// The daemon is restarted with a shorter ttl. The client counts by the longer one until it has the
/// Welcome.
#[test]
fn a_shorter_ttl_counts_once_its_welcome_is_acknowledged() {
    for heard in [false, true] {
        let (long, short) = (Duration::from_millis(1500), Duration::from_millis(150));
        let mut daemon = daemon(long);
        let (mut client, mut next) = (Client::on_network(&daemon), Client::open(&daemon));
        client.hold("a");
        daemon.kill();
        daemon.setup.ttl = short;
        daemon.run();
        assert!(next.resume(&daemon).resumed);
        let waiting = next.wait_for("a");
        let before = Instant::now();
        let welcomed = client.resume(&daemon);
        assert!(welcomed.resumed && welcomed.ttl == millis(short));
        if heard {
            // The ping acknowledges the Welcome.
            client.ping();
        }
        next.granted(waiting.rid);
        let passed = before.elapsed();
        assert!(passed >= if heard { short } else { long }, "{passed:?}");
    }
}

/// The longer ttl counts at once: the client may have received the Welcome.
#[test]
fn a_longer_ttl_counts_from_the_hello_on() {
    let (short, long) = (Duration::from_secs(5), Duration::from_secs(600));
    let mut daemon = daemon(short);
    let (mut client, mut other) = (Client::on_network(&daemon), Client::open(&daemon));
    client.hold("a");
    daemon.kill();
    daemon.setup.ttl = long;
    daemon.run();
    // The Welcome is lost.
    client.reconnect(&daemon);
    client.hello += 1;
    let (id, secret) = (client.id.clone(), client.secret);
    client.say_hello(Some((&id, secret)), None, None);
    assert!(matches!(client.hear(), ToClient::Welcome { .. }));
    client.disconnect();
    daemon.kill();
    daemon.setup.ttl = Duration::from_millis(1);
    daemon.run();
    // Another silent client shows that a ttl of this daemon's has passed, many times over.
    let mut silent = Client::on_network(&daemon);
    assert_eq!(silent.hear_or_end(), None);
    assert!(other.resume(&daemon).resumed);
    assert_eq!(other.queue_of("a"), [(client.id.clone(), true)]);
}

/// The lock is stolen while its holder is cut off, then the daemon is killed.
#[test]
fn who_was_robbed_while_cut_off_is_told_after_a_restart() {
    for stop in [Daemon::kill, Daemon::stop] {
        let mut daemon = daemon(Duration::from_secs(600));
        let [mut preempted, mut thief] = [(); 2].map(|()| Client::on_network(&daemon));
        let held = preempted.hold("a");
        let released = preempted.hold("b");
        preempted.release(released.rid);
        preempted.disconnect();
        let stolen = thief.request_with("a", Flags { steal: true, ..Flags::default() });
        let token = thief.granted(stolen);
        stop(&mut daemon);
        daemon.run();
        let welcomed = preempted.resume(&daemon);
        assert!(welcomed.resumed && welcomed.listed.is_empty());
        let [ToClient::Broken { rid, cause: Cause::Stolen, .. }] = welcomed.notices[..] else {
            panic!("{:?}", welcomed.notices)
        };
        assert_eq!(rid, held.rid);
        assert_eq!(thief.resume(&daemon).listed[0].token, Some(token));
        assert!(preempted.hold("b").number > token);
    }
}

#[test]
fn bye_ends_the_session_at_once() {
    let daemon = daemon(Duration::from_secs(600));
    let (mut client, mut next) = (Client::on_network(&daemon), Client::on_network(&daemon));
    client.hold("a");
    let waiting = next.wait_for("a");
    client.bye();
    next.granted(waiting.rid);
    assert!(!client.resume(&daemon).resumed);
}
