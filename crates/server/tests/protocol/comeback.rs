//! The daemon goes, comes back, and its clients go on.

use crate::{
    client::{Client, Known},
    daemon::Daemon,
};
use lockkeeper_core::{Cause, Limits, Mode};
use lockkeeper_server::code;
use lockkeeper_wire::{Claim, Flags, Seal, ToClient, ToServer, VERSION};
use std::time::Duration;

#[test]
fn after_a_kill_locks_and_places_are_reclaimed_before_anybody_else_is_served() {
    let mut daemon = Daemon::start();
    let [mut holder, mut first, mut second] = [(); 3].map(|()| Client::open(&daemon));
    let held = holder.hold("a");
    let (next, last) = (first.wait_for("a"), second.wait_for("a"));
    daemon.kill();
    assert_eq!(holder.hear_or_end(), None, "no goodbye: it was killed");
    daemon.run();

    let mut newcomer = Client::open(&daemon);
    let (theirs, free) = (
        newcomer.request("a"),
        newcomer.request_with("free", Flags { if_available: true, ..Flags::default() }),
    );
    let question = newcomer.next_rid();
    newcomer.say(&ToServer::Query { rid: question, name: None, deadlocks: false });
    // The question is refused and the requests before it are not answered: nobody knows yet who has what.
    assert_eq!(newcomer.refused(question).0, code::GRACE);
    let force = newcomer.next_rid();
    newcomer.say(&ToServer::ForceRelease { rid: force, name: b"a" });
    assert_eq!(newcomer.refused(force).0, code::GRACE);

    // The last in the queue is the first to be back.
    for (client, known) in [(&mut second, &last), (&mut first, &next), (&mut holder, &held)] {
        assert!(client.come_back(&daemon));
        client.reclaim(known);
        client.ping();
        client.say(&ToServer::Ready);
    }
    let Claim::Held { token, receipt } = held.claim else { unreachable!("it was held") };
    assert_eq!(holder.granted_with_receipt(held.rid), (token, receipt), "the grant is the same");
    first.queued(next.rid);
    second.queued(last.rid);
    newcomer.queued(theirs);
    newcomer.granted(free);

    holder.release(held.rid);
    let mut tokens = vec![token];
    for (client, rid) in [(&mut first, next.rid), (&mut second, last.rid), (&mut newcomer, theirs)] {
        tokens.push(client.granted(rid));
        client.release(rid);
    }
    assert!(tokens.is_sorted_by(|earlier, later| earlier < later), "{tokens:?}");
}

#[test]
fn after_a_stop_all_is_as_it_was_and_nobody_waits() {
    let mut daemon = Daemon::start();
    let (mut holder, mut waiter) = (Client::open(&daemon), Client::open(&daemon));
    let (held, waiting) = (holder.hold("a"), waiter.wait_for("a"));
    daemon.stop();
    for client in [&mut holder, &mut waiter] {
        let (code, words) = client.goodbye();
        assert_eq!(code, code::STOPPING);
        assert!(words.contains("come back"), "{words}");
    }
    daemon.run();
    let mut newcomer = Client::open(&daemon);
    assert_eq!(newcomer.queue_of("a"), [(holder.id.clone(), true), (waiter.id.clone(), false)]);
    let free = newcomer.hold("free");
    let theirs = newcomer.wait_for("a");

    assert!(waiter.come_back(&daemon));
    waiter.reclaim(&waiting);
    waiter.queued(waiting.rid);
    waiter.say(&ToServer::Ready);
    assert!(holder.come_back(&daemon));
    holder.reclaim(&held);
    let Claim::Held { token, receipt } = held.claim else { unreachable!("it was held") };
    assert_eq!(holder.granted_with_receipt(held.rid), (token, receipt), "the grant is the same");
    holder.say(&ToServer::Ready);

    holder.release(held.rid);
    let next = waiter.granted(waiting.rid);
    assert!(next > token);
    waiter.release(waiting.rid);
    assert!(newcomer.granted(theirs.rid) > next);
    newcomer.release(free.rid);
}

#[test]
fn what_was_not_answered_is_said_again() {
    for stop in [Daemon::stop, Daemon::kill] {
        let mut daemon = Daemon::start();
        let mut client = Client::open(&daemon);
        // The client never hears how this went.
        let scope = vec![(&b"a"[..], Mode::Exclusive)];
        let rid = client.next_rid();
        let request = ToServer::Request { rid, scope, flags: Flags::default(), nested_in: None, info: None };
        client.say(&request);
        // A pong would have followed the grant, so that the daemon has seen the request.
        client.say(&ToServer::Ping);
        while client.hear() != ToClient::Pong {}
        stop(&mut daemon);
        daemon.run();
        assert!(client.come_back(&daemon));
        client.say(&request);
        client.say(&ToServer::Ready);
        client.granted(rid);
        assert_eq!(client.queue_of("a"), [(client.id.clone(), true)], "it is one request");
        client.release(rid);
        assert_eq!(client.query(None), []);
    }
}

#[test]
fn numbers_go_on_growing_in_a_session_that_goes_on() {
    let mut daemon = Daemon::start();
    let mut client = Client::open(&daemon);
    let held = client.hold("a");
    daemon.kill();
    daemon.run();
    assert!(client.come_back(&daemon));
    client.reclaim(&held);
    client.say(&ToServer::Ready);
    client.granted(held.rid);
    client.say(&ToServer::Query { rid: held.rid, name: None, deadlocks: false });
    assert_eq!(client.goodbye().0, code::OUT_OF_ORDER);
}

#[test]
fn a_claim_with_a_wrong_receipt_is_forged() {
    let mut daemon = Daemon::start();
    let mut holder = Client::open(&daemon);
    let held = holder.hold("a");
    let mut forgers: Vec<(Client, Known)> = (0..6)
        .map(|i| {
            let mut forger = Client::open(&daemon);
            let own = forger.hold(format!("own {i}").leak());
            (forger, own)
        })
        .collect();
    let Claim::Held { token, receipt } = held.claim else { unreachable!("it was held") };
    daemon.kill();
    daemon.run();
    for (kind, (forger, own)) in forgers.iter_mut().enumerate() {
        let Claim::Held { token: own_token, receipt: own_receipt } = own.claim else {
            unreachable!("it is held")
        };
        let name = own.scope[0].0;
        let (rid, scope, claim) = match kind {
            0 => (1, ("a", Mode::Exclusive), (token, Seal::default())),
            1 => (1, ("a", Mode::Exclusive), (token, receipt)),
            2 => (1, ("a", Mode::Exclusive), (own_token, own_receipt)),
            3 => (1, (name, Mode::Exclusive), (own_token + 1, own_receipt)),
            4 => (2, (name, Mode::Exclusive), (own_token, own_receipt)),
            _ => (1, (name, Mode::Shared), (own_token, own_receipt)),
        };
        let claim = Claim::Held { token: claim.0, receipt: claim.1 };
        assert!(forger.come_back(&daemon));
        forger.reclaim(&Known { rid, scope: vec![scope], claim });
        let (code, words) = forger.goodbye();
        assert_eq!(code, code::FORGED, "forgery {kind}");
        assert!(words.contains("receipt"), "{words}");
    }
    assert!(holder.come_back(&daemon));
    holder.reclaim(&held);
    holder.say(&ToServer::Ready);
    assert_eq!(holder.granted(held.rid), token);
    assert_eq!(holder.query(None).len(), 1, "the forgers' sessions have ended");
}

#[test]
fn who_has_not_come_back_has_nothing_to_reclaim() {
    let mut daemon = Daemon::start();
    let waiting =
        Known { rid: 1, scope: vec![("a", Mode::Exclusive)], claim: Claim::Waiting { ticket: None } };
    let mut stranger = Client::open(&daemon);
    stranger.reclaim(&waiting);
    assert_eq!(stranger.goodbye().0, code::OUT_OF_ORDER);

    let mut client = Client::open(&daemon);
    daemon.stop();
    daemon.run();
    assert!(client.come_back(&daemon));
    client.say(&ToServer::Ready);
    client.reclaim(&waiting);
    assert_eq!(client.goodbye().0, code::OUT_OF_ORDER, "all has been reclaimed");
}

#[test]
fn a_session_goes_on_only_with_its_secret_and_in_its_bucket() {
    let mut daemon = Daemon::start();
    let mut client = Client::open(&daemon);
    let held = client.hold("a");
    daemon.kill();
    daemon.run();
    let mut wrong = client.secret;
    wrong[15] ^= 1;
    for (bucket, secret) in [("default", wrong), ("default", Seal::default()), ("other", client.secret)] {
        let mut thief = Client::mute(&daemon);
        assert!(!thief.hello(bucket, Some((&client.id, secret))));
        assert_ne!(thief.id, client.id);
    }
    assert!(client.come_back(&daemon));
    client.reclaim(&held);
    client.say(&ToServer::Ready);
    client.granted(held.rid);
}

#[test]
fn of_two_who_claim_one_lock_the_thief_has_it() {
    let mut daemon = Daemon::start();
    let (mut robbed, mut thief) = (Client::open(&daemon), Client::open(&daemon));
    let held = robbed.hold("a");
    let rid = thief.request_with("a", Flags { steal: true, ..Flags::default() });
    let (token, receipt) = thief.granted_with_receipt(rid);
    let stolen = Known { rid, scope: held.scope.clone(), claim: Claim::Held { token, receipt } };
    daemon.kill();
    daemon.run();
    // The robbed client claims what it was told it has lost.
    for (client, known) in [(&mut robbed, &held), (&mut thief, &stolen)] {
        assert!(client.come_back(&daemon));
        client.reclaim(known);
        client.say(&ToServer::Ready);
    }
    assert_eq!(thief.granted(rid), token);
    assert_eq!(robbed.broken(held.rid), Cause::Stolen);
}

#[test]
fn what_is_given_up_meanwhile_is_not_reclaimed() {
    for stop in [Daemon::stop, Daemon::kill] {
        let mut daemon = Daemon::start();
        let mut client = Client::open(&daemon);
        let (held, waiting) = (client.hold("a"), client.wait_for("a"));
        stop(&mut daemon);
        daemon.run();
        assert!(client.come_back(&daemon));
        client.say(&ToServer::Abort { rid: waiting.rid, timed_out: false });
        assert_eq!(client.hear(), ToClient::Aborted { rid: waiting.rid });
        client.release(held.rid);
        client.say(&ToServer::Ready);
        assert_eq!(client.query(None), []);
    }
}

/// It released or aborted them while there was no daemon to hear it.
#[test]
fn what_is_not_reclaimed_is_released() {
    for stop in [Daemon::stop, Daemon::kill] {
        let mut daemon = Daemon::start();
        let mut client = Client::open(&daemon);
        client.hold("a");
        client.wait_for("a");
        let kept = client.hold("b");
        stop(&mut daemon);
        daemon.run();
        let mut newcomer = Client::open(&daemon);
        let theirs = newcomer.request("a");
        assert!(client.come_back(&daemon));
        client.reclaim(&kept);
        client.say(&ToServer::Ready);
        client.granted(kept.rid);
        // Queued first, if the daemon had kept the lock for who might have come back with it.
        while matches!(newcomer.hear(), ToClient::Queued { .. }) {}
        assert_eq!(client.queue_of("a"), [(newcomer.id.clone(), true)]);
        assert_eq!(client.queue_of("b"), [(client.id.clone(), true)]);
        newcomer.release(theirs);
    }
}

#[test]
fn a_scope_that_names_a_lock_twice_is_reclaimed_as_it_was_asked_for() {
    for stop in [Daemon::stop, Daemon::kill] {
        let mut daemon = Daemon::start();
        let mut client = Client::open(&daemon);
        let scope = vec![("a", Mode::Shared), ("b", Mode::Exclusive), ("a", Mode::Exclusive)];
        let rid = client.request_scope(&scope, Flags::default(), None);
        let (token, receipt) = client.granted_with_receipt(rid);
        stop(&mut daemon);
        daemon.run();
        assert!(client.come_back(&daemon));
        client.reclaim(&Known { rid, scope, claim: Claim::Held { token, receipt } });
        client.say(&ToServer::Ready);
        assert_eq!(client.granted(rid), token);
    }
}

#[test]
fn a_lock_of_two_names_is_reclaimed_whole() {
    let mut daemon = Daemon::start();
    let mut client = Client::open(&daemon);
    let scope = vec![("a", Mode::Shared), ("b", Mode::Exclusive)];
    let rid = client.request_scope(&scope, Flags::default(), None);
    let (token, receipt) = client.granted_with_receipt(rid);
    daemon.kill();
    daemon.run();
    assert!(client.come_back(&daemon));
    client.reclaim(&Known { rid, scope, claim: Claim::Held { token, receipt } });
    client.say(&ToServer::Ready);
    assert_eq!(client.granted(rid), token);
    let modes: Vec<_> = client.query(None).iter().map(|entry| (entry.name, entry.mode)).collect();
    assert_eq!(modes, [(&b"a"[..], Mode::Shared), (b"b", Mode::Exclusive)]);
}

#[test]
fn a_token_is_the_same_in_a_query_after_the_daemon_has_come_back() {
    for stop in [Daemon::stop, Daemon::kill] {
        let mut daemon = Daemon::start();
        let mut client = Client::open(&daemon);
        let held = client.hold("a");
        let Claim::Held { token, .. } = held.claim else { unreachable!("it is held") };
        stop(&mut daemon);
        daemon.run();
        assert!(client.come_back(&daemon));
        // As if the grant had not been heard.
        client.reclaim(&Known { claim: Claim::Waiting { ticket: None }, ..held.clone() });
        client.say(&ToServer::Ready);
        let told = client.granted(held.rid);
        assert!(told >= token);
        assert_eq!(client.query(None)[0].token, Some(told));
    }
}

#[test]
fn who_was_refused_a_session_is_not_waited_for() {
    let limits = Limits { clients: 1, ..Limits::default() };
    let mut daemon = Daemon::start_with(|config| config.limits = limits);
    let mut client = Client::open(&daemon);
    let held = client.hold("a");
    let mut refused = Client::mute(&daemon);
    refused.say(&ToServer::Hello { version: VERSION, bucket: "default", resume: None, token: None });
    assert_eq!(refused.goodbye().0, code::LIMIT);
    daemon.kill();
    daemon.run();
    assert!(client.come_back(&daemon));
    client.reclaim(&held);
    client.say(&ToServer::Ready);
    client.granted(held.rid);
}

/// Nobody is answered yet, so that nothing else would stop one who asks without end.
#[test]
fn a_client_asks_for_no_more_than_its_limit_while_others_are_waited_for() {
    let limits = Limits { requests_per_client: 2, ..Limits::default() };
    let mut daemon = Daemon::start_with(|config| config.limits = limits);
    let mut client = Client::open(&daemon);
    let held = client.hold("a");
    daemon.kill();
    daemon.run();
    let mut newcomer = Client::open(&daemon);
    let [first, second, third] = ["a", "b", "c"].map(|name| newcomer.request(name));
    assert_eq!(newcomer.refused(third), (code::LIMIT, "limit reached: 2 live requests per client"));
    assert!(client.come_back(&daemon));
    client.reclaim(&held);
    client.say(&ToServer::Ready);
    client.granted(held.rid);
    newcomer.queued(first);
    newcomer.granted(second);
}

/// Who is back and does not say all it had is waited for no longer than who is not back.
#[test]
fn who_never_says_ready_does_not_keep_others_waiting_for_ever() {
    let mut daemon = Daemon::start_with(|config| config.ttl = Duration::from_secs(1));
    let mut client = Client::open(&daemon);
    client.hold("a");
    daemon.kill();
    daemon.run();
    // Should it be too late, on a slow machine, its session is over, and nobody is waited for either.
    client.come_back(&daemon);
    let mut newcomer = Client::open(&daemon);
    let theirs = newcomer.request("b");
    newcomer.granted(theirs);
}
