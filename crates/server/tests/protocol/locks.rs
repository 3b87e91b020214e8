//! Requests, and what becomes of them.

use crate::{
    client::{Client, framed},
    daemon::Daemon,
};
use lockkeeper_core::{Cause, Limits, Mode};
use lockkeeper_server::code;
use lockkeeper_wire::v2::{Deadlock, EndFlags, Flags, Step, ToClient, ToServer};
use std::collections::BTreeSet;

const NONE: Flags = Flags { if_available: false, steal: false, refuse_deadlock: false };
const IF_AVAILABLE: Flags = Flags { if_available: true, ..NONE };
const STEAL: Flags = Flags { steal: true, ..NONE };
const REFUSE_DEADLOCK: Flags = Flags { refuse_deadlock: true, ..NONE };

#[test]
fn a_lock_passes_on_in_the_order_of_arrival_and_its_tokens_grow() {
    let daemon = Daemon::start();
    let [mut first, mut second, mut third] = [(); 3].map(|()| Client::open(&daemon));
    let one = first.request("a");
    let mut tokens = vec![first.granted(one)];
    let (two, three) = (second.request("a"), third.request("a"));
    // Requests of two connections arrive in any order; their arrivals tell which it was.
    let (arrival, other) = (second.queued(two), third.queued(three));
    let mut rest = [(arrival, &mut second, two), (other, &mut third, three)];
    rest.sort_by_key(|(arrival, ..)| *arrival);
    first.release(one);
    for (_, client, rid) in rest {
        tokens.push(client.granted(rid));
        client.release(rid);
    }
    assert!(tokens.is_sorted_by(|earlier, later| earlier < later), "{tokens:?}");
}

#[test]
fn shared_locks_are_held_together() {
    let daemon = Daemon::start();
    let (mut one, mut other) = (Client::open(&daemon), Client::open(&daemon));
    let shared = [("a", Mode::Shared)];
    let (here, there) = (one.request_scope(&shared, NONE, None), other.request_scope(&shared, NONE, None));
    one.granted(here);
    other.granted(there);
    let writer = one.request("a");
    one.queued(writer);
    other.release(there);
    one.release(here);
    one.granted(writer);
}

#[test]
fn a_release_is_answered_before_what_it_lets_in() {
    let daemon = Daemon::start();
    let mut client = Client::open(&daemon);
    let held = client.hold("a");
    let [next, last] = [(); 2].map(|()| client.wait_for("a"));
    client.release(held.rid);
    client.granted(next.rid);
    client.release(next.rid);
    client.granted(last.rid);
}

#[test]
fn what_is_released_quietly_ends_without_an_answer() {
    let daemon = Daemon::start();
    let (mut one, mut other) = (Client::open(&daemon), Client::open(&daemon));
    let held = one.hold("a");
    let [waiting, next] = [one.wait_for("a"), other.wait_for("a")];
    for dropped in [waiting.rid, held.rid, held.rid, 1000] {
        one.release_quietly(dropped);
    }
    other.granted(next.rid);
    one.ping();
    assert_eq!(one.queue_of("a"), [(other.id.clone(), true)]);
}

#[test]
fn a_scope_has_all_its_names_or_none() {
    let daemon = Daemon::start();
    let (mut one, mut other) = (Client::open(&daemon), Client::open(&daemon));
    let held = one.hold("b");
    let both = other.request_scope(&[("a", Mode::Exclusive), ("b", Mode::Exclusive)], NONE, None);
    other.queued(both);
    assert_eq!(one.queue_of("a"), [(other.id.clone(), false)]);
    one.release(held.rid);
    other.granted(both);
    assert_eq!(one.queue_of("a"), [(other.id.clone(), true)]);
    assert_eq!(one.queue_of("b"), [(other.id.clone(), true)]);
}

#[test]
fn an_aborted_request_waits_no_more() {
    let daemon = Daemon::start();
    let (mut one, mut other) = (Client::open(&daemon), Client::open(&daemon));
    let held = one.hold("a");
    let waiting = other.wait_for("a");
    other.release(waiting.rid);
    assert_eq!(one.queue_of("a"), [(one.id.clone(), true)]);
    one.release(held.rid);
    assert_eq!(one.queue_of("a"), []);
}

#[test]
fn an_abort_that_crosses_its_grant_releases() {
    let daemon = Daemon::start();
    let mut client = Client::open(&daemon);
    let rid = client.request("a");
    client.say(&ToServer::Release { ack: 0, rid, flags: EndFlags::default() });
    client.granted(rid);
    assert_eq!(client.hear(), ToClient::Released { rid });
    assert_eq!(client.query(None), []);
}

#[test]
fn a_release_of_what_has_ended_is_answered_and_touches_nothing() {
    let daemon = Daemon::start();
    let (mut one, mut other) = (Client::open(&daemon), Client::open(&daemon));
    let held = one.hold("a");
    one.release(held.rid);
    let theirs = other.hold("a");
    one.release(held.rid);
    one.release(99);
    assert_eq!(one.queue_of("a"), [(other.id.clone(), true)]);
    // The number of another's request is not another's request.
    assert_eq!(held.rid, theirs.rid);
}

#[test]
fn if_available_is_granted_or_unavailable_and_never_waits() {
    let daemon = Daemon::start();
    let (mut one, mut other) = (Client::open(&daemon), Client::open(&daemon));
    let held = one.request_with("a", IF_AVAILABLE);
    one.granted(held);
    let rid = other.request_with("a", IF_AVAILABLE);
    assert_eq!(other.hear(), ToClient::Unavailable { rid });
    assert_eq!(one.queue_of("a"), [(one.id.clone(), true)]);
}

#[test]
fn a_steal_breaks_the_holder_and_passes_those_who_wait() {
    let daemon = Daemon::start();
    let [mut holder, mut waiter, mut thief] = [(); 3].map(|()| Client::open(&daemon));
    let held = holder.request("a");
    let preempted = holder.granted(held);
    let waiting = waiter.wait_for("a");
    let stolen = thief.request_with("a", STEAL);
    assert!(thief.granted(stolen) > preempted);
    assert_eq!(holder.broken(held), Cause::Stolen);
    assert_eq!(thief.queue_of("a"), [(thief.id.clone(), true), (waiter.id.clone(), false)]);
    thief.release(stolen);
    waiter.granted(waiting.rid);
}

#[test]
fn a_forced_release_breaks_every_holder_and_lets_the_next_in() {
    let daemon = Daemon::start();
    let [mut one, mut other, mut waiter, mut operator] = [(); 4].map(|()| Client::open(&daemon));
    let shared = [("a", Mode::Shared)];
    let (here, there) = (one.request_scope(&shared, NONE, None), other.request_scope(&shared, NONE, None));
    one.granted(here);
    other.granted(there);
    let waiting = waiter.wait_for("a");
    let rid = operator.force_release("a");
    assert_eq!(operator.outcome(rid), 2);
    assert_eq!(one.broken(here), Cause::Stolen);
    assert_eq!(other.broken(there), Cause::Stolen);
    waiter.granted(waiting.rid);
    // Of a name that nobody holds there is nothing to release.
    let rid = operator.force_release("nobody's");
    assert_eq!(operator.outcome(rid), 0);
}

#[test]
fn a_request_that_would_close_a_cycle_is_refused_if_it_wants_to_be() {
    let daemon = Daemon::start();
    let (mut one, mut other) = (Client::open(&daemon), Client::open(&daemon));
    let (a, b) = (one.hold("a"), other.hold("b"));
    let waiting = one.request_scope(&[("b", Mode::Exclusive)], NONE, Some(a.rid));
    one.queued(waiting);
    let refused = other.request_scope(&[("a", Mode::Exclusive)], REFUSE_DEADLOCK, Some(b.rid));
    let words = other.deadlocked(refused).words;
    assert!(words.contains("deadlock"), "{words}");
    assert_eq!(one.queue_of("a"), [(one.id.clone(), true)]);
    other.release(b.rid);
    one.granted(waiting);
}

#[test]
fn a_deadlock_is_shown_and_told_in_the_words_of_the_protocol() {
    let daemon = Daemon::start();
    let (mut one, mut other) = (Client::open(&daemon), Client::open(&daemon));
    let (a, b) = (one.request("a"), other.request("b"));
    one.granted(a);
    other.granted(b);
    let from_a = one.request_scope(&[("b", Mode::Exclusive)], NONE, Some(a));
    one.queued(from_a);
    let from_b = other.request_scope(&[("a", Mode::Exclusive)], REFUSE_DEADLOCK, Some(b));
    let Deadlock { words, cycle: refused } = other.deadlocked(from_b);
    assert!(words.contains(&one.id) && words.contains(&other.id), "clients by their ids: {words}");
    let (entries, none) = one.inspect();
    assert!(none.is_empty(), "it was refused: {none:?}");

    let from_b = other.request_scope(&[("a", Mode::Exclusive)], NONE, Some(b));
    other.queued(from_b);
    let (entries_then, deadlocks) = one.inspect();
    assert_eq!((entries.len(), entries_then.len()), (3, 4));
    let arrival = |name: &str, held: bool| {
        let found =
            entries_then.iter().find(|entry| entry.name == name.as_bytes() && entry.token.is_some() == held);
        found.expect("it is there").arrival
    };
    let step = |client_id, arrival, waits_for: Option<&'static str>| Step {
        arrival,
        client_id,
        waits_for: waits_for.map(str::as_bytes),
    };
    let (one, other) = (&one.id[..], &other.id[..]);
    let cycle = vec![
        step(one, arrival("b", false), Some("b")),
        step(other, arrival("b", true), None),
        step(other, arrival("a", false), Some("a")),
        step(one, arrival("a", true), None),
    ];
    assert!(deadlocks[0].words.contains(one) && deadlocks[0].words.contains(other), "{deadlocks:?}");
    assert_eq!((deadlocks.len(), &deadlocks[0].cycle), (1, &cycle));
    let told = |cycle: &[Step<'static>]| -> Vec<_> {
        cycle.iter().map(|step| (step.client_id.to_string(), step.waits_for)).collect()
    };
    assert_eq!(told(&refused), told(&deadlocks[0].cycle), "the one that it would have been");
    let nested: Vec<_> = entries_then.iter().map(|entry| (entry.arrival, entry.nested_in)).collect();
    assert!(nested.contains(&(arrival("b", false), Some(arrival("a", true)))), "{nested:?}");
    assert!(nested.contains(&(arrival("a", true), None)), "{nested:?}");
    let me = format!("pid {}", std::process::id());
    assert!(entries_then.iter().all(|entry| entry.owner == Some(&me) && !entry.stole), "{entries_then:?}");
}

#[test]
fn a_thief_of_its_own_locks_hears_first_what_it_broke_and_last_what_it_lets_in() {
    let daemon = Daemon::start();
    let mut client = Client::open(&daemon);
    let both = client.request_scope(&[("a", Mode::Exclusive), ("b", Mode::Exclusive)], NONE, None);
    client.granted(both);
    let waiting = client.request("b");
    client.queued(waiting);
    let stolen = client.request_with("a", STEAL);
    assert_eq!(client.broken(both), Cause::Stolen);
    client.granted(stolen);
    client.granted(waiting);
    let shown: Vec<_> = client.inspect().0.iter().map(|entry| (entry.name, entry.stole)).collect();
    assert_eq!(shown, [(&b"b"[..], false), (b"a", true)]);
}

#[test]
fn a_bye_ends_the_session_at_once_after_what_was_answered() {
    let daemon = Daemon::start();
    let (mut leaver, mut waiter) = (Client::open(&daemon), Client::open(&daemon));
    let held = leaver.request("a");
    leaver.granted(held);
    let waiting = waiter.wait_for("a");
    let last = leaver.request("b");
    leaver.say(&ToServer::Bye { ack: 0 });
    waiter.granted(waiting.rid);
    leaver.granted(last);
    assert_eq!(leaver.hear_or_end(), None);
    assert!(!leaver.resume(&daemon).resumed, "it is over");
}

#[test]
fn a_snapshot_has_the_greatest_token_that_was_given_out() {
    let daemon = Daemon::start();
    let mut client = Client::open(&daemon);
    let mut last = client.last_token();
    for _ in 0..3 {
        let rid = client.request("a");
        let token = client.granted(rid);
        client.release(rid);
        assert_eq!(client.last_token(), token);
        assert!(token > last);
        last = token;
    }
}

#[test]
fn a_request_nested_in_one_that_has_ended_is_nested_in_none() {
    let daemon = Daemon::start();
    let mut client = Client::open(&daemon);
    for outer in [0, 77, u64::MAX] {
        let rid = client.request_scope(&[("a", Mode::Exclusive)], REFUSE_DEADLOCK, Some(outer));
        client.granted(rid);
        client.release(rid);
    }
}

#[test]
fn what_the_draft_forbids_is_not_supported() {
    let daemon = Daemon::start();
    let mut client = Client::open(&daemon);
    let both = Flags { if_available: true, steal: true, ..NONE };
    let shared = [("a", Mode::Shared)];
    let exclusive = [("a", Mode::Exclusive)];
    let reserved = [("-a", Mode::Exclusive)];
    for (scope, flags) in [(&[][..], NONE), (&reserved, NONE), (&exclusive, both), (&shared, STEAL)] {
        let rid = client.request_scope(scope, flags, None);
        assert_eq!(client.refused(rid).0, code::NOT_SUPPORTED, "{scope:?} {flags:?}");
    }
    assert_eq!(client.query(None), []);
}

#[test]
fn a_limit_is_named_by_its_refusal() {
    let limits =
        Limits { name_bytes: 8, names_per_scope: 2, requests_per_client: 2, requests: 3, clients: 10 };
    let daemon = Daemon::start_with(|config| config.limits = limits);
    let (mut one, mut other) = (Client::open(&daemon), Client::open(&daemon));
    let rid = one.request("ninebytes");
    assert_eq!(one.refused(rid), (code::LIMIT, "limit reached: a name has at most 8 bytes"));
    let three = ["a", "b", "c"].map(|name| (name, Mode::Exclusive));
    let rid = one.request_scope(&three, NONE, None);
    assert_eq!(one.refused(rid), (code::LIMIT, "limit reached: a scope has at most 2 names"));
    let held = one.hold("a");
    one.wait_for("a");
    let rid = one.request("b");
    assert_eq!(
        one.refused(rid),
        (code::LIMIT, "limit reached: 2 live requests per client (max-requests-per-client)")
    );
    other.hold("b");
    let rid = other.request("c");
    assert_eq!(other.refused(rid), (code::LIMIT, "limit reached: 3 live requests in all (max-requests)"));
    // What has ended counts no more.
    one.release(held.rid);
    one.granted(held.rid + 1);
    other.hold("c");
}

#[test]
fn a_query_shows_what_is_held_then_what_waits_each_in_the_order_of_arrival() {
    let daemon = Daemon::start();
    let (mut one, mut other) = (Client::open(&daemon), Client::open(&daemon));
    let labelled = |rid, name: &'static [u8], mode, info| ToServer::Request {
        ack: 0,
        rid,
        scope: vec![(name, mode)],
        flags: NONE,
        nested_in: None,
        info,
    };
    one.say(&labelled(1, b"a", Mode::Exclusive, Some("first")));
    let token = one.granted(1);
    one.say(&labelled(2, b"a", Mode::Shared, None));
    let arrival = one.queued(2);
    one.say(&labelled(3, b"b", Mode::Shared, Some("")));
    one.granted(3);
    one.last_rid = 3;

    let seen = other.query(None);
    let shown: Vec<_> =
        seen.iter().map(|entry| (entry.name, entry.mode, entry.info, entry.token.is_some())).collect();
    assert_eq!(
        shown,
        [
            (&b"a"[..], Mode::Exclusive, Some("first"), true),
            (b"b", Mode::Shared, Some(""), true),
            (b"a", Mode::Shared, None, false),
        ]
    );
    assert!(seen.iter().all(|entry| entry.client_id == one.id));
    assert_eq!((seen[0].token, seen[2].arrival), (Some(token), arrival));

    let of_a = other.query(Some(b"a"));
    assert_eq!(of_a.iter().map(|entry| entry.name).collect::<Vec<_>>(), [b"a", b"a"]);
    assert_eq!(other.query(Some(b"")), [], "the empty name is a name, not all names");
}

#[test]
fn names_are_bytes_and_differ_if_their_bytes_do() {
    let daemon = Daemon::start();
    let mut client = Client::open(&daemon);
    // Two halves of two characters, which no text has; bytes that are not even those; and nothing
    // at all.
    let names: [&[u8]; 5] = [b"", b"\0", b"\xed\xa0\xbd", b"\xed\xa0\xbc", b"\xff\xfe"];
    for name in names {
        let rid = client.next_rid();
        let scope = vec![(name, Mode::Exclusive)];
        client.say(&ToServer::Request { ack: 0, rid, scope, flags: NONE, nested_in: None, info: None });
        client.granted(rid);
    }
    let seen: Vec<_> = client.query(None).iter().map(|entry| entry.name).collect();
    assert_eq!(seen, names);
}

#[test]
fn numbers_may_skip_and_be_as_great_as_they_like() {
    let daemon = Daemon::start();
    let mut client = Client::open(&daemon);
    for rid in [(1 << 53) + 1, u64::MAX - 1] {
        client.last_rid = rid - 1;
        client.hold("a");
        client.release(rid);
    }
    client.last_rid = u64::MAX - 1;
    assert_eq!(client.query(None), []);
}

#[test]
fn a_long_snapshot_comes_in_parts() {
    let daemon = Daemon::start();
    let mut client = Client::open(&daemon);
    // One name of 64 KiB in many requests: kept once, shown each time.
    let name = "n".repeat(1 << 16);
    client.hold("short");
    client.hold(&name);
    for _ in 0..999 {
        client.wait_for(&name);
    }
    let entries = client.query(None);
    let arrivals: BTreeSet<u64> = entries.iter().map(|entry| entry.arrival).collect();
    assert_eq!((entries.len(), arrivals.len()), (1001, 1001));
    assert_eq!(client.query(Some(b"short")).len(), 1);
}

#[test]
fn others_have_their_turns_while_a_client_asks_for_much() {
    let daemon = Daemon::start();
    let (mut greedy, mut other) = (Client::open(&daemon), Client::open(&daemon));
    for number in 0..5_000 {
        greedy.hold(&format!("n{number}"));
    }
    let first = greedy.next_rid();
    let mut questions = Vec::new();
    for _ in 0..1_000 {
        let rid = greedy.next_rid();
        questions.extend(framed(&ToServer::Query { ack: 0, rid, name: None, deadlocks: true }));
    }
    greedy.write(&questions);
    // Nothing of the answers is read before.
    for number in 0..100 {
        let rid = other.hold(&format!("n{number} of the other")).rid;
        other.release(rid);
    }
    let (mut answered, mut refused) = (0, 0);
    while answered + refused < 1_000 {
        match greedy.hear() {
            ToClient::Snapshot { more, .. } => answered += u32::from(!more),
            ToClient::Refused { rid, code: code::LIMIT, .. } => refused += u32::from(rid > first),
            other => panic!("{other:?}"),
        }
    }
    assert!(answered >= 65, "{answered}");
}

#[test]
fn another_session_is_ended_with_all_it_has_and_told_so() {
    let daemon = Daemon::start();
    let [mut holder, mut waiter, mut operator] = [(); 3].map(|()| Client::open(&daemon));
    holder.hold("a");
    let waiting = waiter.wait_for("a");
    let rid = operator.end_session(&holder.id.clone());
    assert_eq!(operator.outcome(rid), 1);
    waiter.granted(waiting.rid);
    assert_eq!(holder.goodbye().0, code::ENDED);
    let ended = holder.id.clone();
    assert!(!holder.resume(&daemon).resumed);
    // What is over cannot be ended again, and nobody ends itself like that.
    let rid = operator.end_session(&ended);
    assert_eq!(operator.outcome(rid), 0);
    for id in [operator.id.clone(), "nobody".into()] {
        let rid = operator.end_session(&id);
        assert_eq!(operator.refused(rid).0, code::NOT_SUPPORTED);
    }
}

#[test]
fn a_request_can_be_nested_in_one_of_another_session() {
    let daemon = Daemon::start();
    let (mut outer, mut inner) = (Client::open(&daemon), Client::open(&daemon));
    let held = outer.hold("a");
    let nested_in = Some((Some(&*outer.id), held.rid));
    let refused = inner.request_nested(&[("a", Mode::Exclusive)], REFUSE_DEADLOCK, nested_in);
    let Deadlock { words, .. } = inner.deadlocked(refused);
    assert!(words.contains(&outer.id), "{words}");
    // Of another bucket there is nothing to nest in.
    let mut stranger = Client::open_in(&daemon, "other");
    let rid = stranger.request_nested(&[("a", Mode::Exclusive)], REFUSE_DEADLOCK, nested_in);
    stranger.granted(rid);
}
