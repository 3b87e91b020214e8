//! A limit on everything that a client can grow: at the limit all is well, one more is refused, the
//! refusal names the limit, and nothing has changed. (That it has changed nothing the harness
//! checks: `refused` compares the snapshots.)

mod harness;

use harness::Did::*;
use harness::Harness;
use lockkeeper_core::{
    Limit, Limits, Mode,
    Mode::{Exclusive, Shared},
    Options, RequestError,
};

const LIMITS: Limits =
    Limits { name_bytes: 8, names_per_scope: 3, requests_per_client: 4, requests: 6, clients: 3 };
const PLAIN: Options = Options { if_available: false, steal: false, nested_in: None, refuse_deadlock: false };

fn scope(names: std::ops::Range<u32>) -> Vec<(String, Mode)> {
    names.map(|name| (name.to_string(), Exclusive)).collect()
}

mod name_bytes {
    use super::*;

    #[test]
    fn a_name_of_that_many_bytes_is_accepted_and_a_longer_one_refused() {
        let mut locks = Harness::with_limits(LIMITS);
        let [tab] = locks.clients();
        assert_eq!(locks.request(tab, "12345678", Exclusive), [Granted(1)]);
        let refused = locks.refused(tab, ("123456789", Exclusive), PLAIN);
        assert_eq!(refused, RequestError::Limit(Limit::NameBytes(8)));
    }

    /// Three bytes each: three characters are nine bytes.
    #[test]
    fn bytes_are_counted_and_not_characters() {
        let mut locks = Harness::with_limits(LIMITS);
        let [tab] = locks.clients();
        assert_eq!(locks.request(tab, "漢字", Exclusive), [Granted(1)]);
        let refused = locks.refused(tab, ("漢字漢", Exclusive), PLAIN);
        assert_eq!(refused, RequestError::Limit(Limit::NameBytes(8)));
    }

    #[test]
    fn one_name_that_is_too_long_refuses_the_whole_scope() {
        let mut locks = Harness::with_limits(LIMITS);
        let [tab] = locks.clients();
        let refused = locks.refused(tab, [("a", Exclusive), ("123456789", Exclusive)], PLAIN);
        assert_eq!(refused, RequestError::Limit(Limit::NameBytes(8)));
        assert_eq!(locks.request(tab, "a", Exclusive), [Granted(1)]);
    }
}

mod names_per_scope {
    use super::*;

    #[test]
    fn a_scope_of_that_many_names_is_accepted_and_a_larger_one_refused() {
        let mut locks = Harness::with_limits(LIMITS);
        let [tab] = locks.clients();
        assert_eq!(locks.request_all(tab, scope(0..3)), [Granted(1)]);
        locks.release(1);
        let refused = locks.refused(tab, scope(0..4), PLAIN);
        assert_eq!(refused, RequestError::Limit(Limit::NamesPerScope(3)));
    }

    /// The count of blocked names must hold the largest scope there can be.
    #[test]
    fn the_largest_limit_there_is_can_be_reached_and_waited_for() {
        let limits = Limits { names_per_scope: u16::MAX, ..Limits::default() };
        let mut locks = Harness::with_limits(limits);
        let [tab] = locks.clients();
        let all = u32::from(u16::MAX);
        assert_eq!(locks.request_all(tab, scope(0..all)), [Granted(1)]);
        assert_eq!(locks.request_all(tab, scope(0..all)), [Queued(2)]);
        let refused = locks.refused(tab, scope(0..all + 1), PLAIN);
        assert_eq!(refused, RequestError::Limit(Limit::NamesPerScope(u16::MAX)));
        assert_eq!(locks.release(1), [Granted(2)]);
    }
}

mod requests_per_client {
    use super::*;

    #[test]
    fn a_client_has_that_many_live_requests_and_not_one_more() {
        let mut locks = Harness::with_limits(LIMITS);
        let [tab, worker] = locks.clients();
        // Held or waiting, they count alike.
        for number in 1..=4 {
            let did = locks.request(tab, "a", Exclusive);
            assert_eq!(did, [if number == 1 { Granted(1) } else { Queued(number) }]);
        }
        let refused = locks.refused(tab, ("b", Shared), PLAIN);
        assert_eq!(refused, RequestError::Limit(Limit::RequestsPerClient(4)));
        assert_eq!(locks.request(worker, "b", Exclusive), [Granted(5)], "others are not concerned");
    }

    #[test]
    fn what_ends_makes_room() {
        let mut locks = Harness::with_limits(LIMITS);
        let [tab, worker] = locks.clients();
        for _ in 0..4 {
            locks.request(tab, "a", Exclusive);
        }
        locks.release(1);
        assert_eq!(locks.request(tab, "b", Exclusive), [Granted(5)]);
        locks.abort(3);
        assert_eq!(locks.request(tab, "c", Exclusive), [Granted(6)]);
        locks.steal(worker, "b");
        assert_eq!(locks.request(tab, "d", Exclusive), [Granted(8)]);
        let refused = locks.refused(tab, ("e", Exclusive), PLAIN);
        assert_eq!(refused, RequestError::Limit(Limit::RequestsPerClient(4)));
    }

    #[test]
    fn what_was_unavailable_or_refused_takes_no_room() {
        let mut locks = Harness::with_limits(LIMITS);
        let [tab] = locks.clients();
        locks.request(tab, "a", Exclusive);
        for number in 2..10 {
            assert_eq!(locks.if_available(tab, "a", Exclusive), [Unavailable(number)]);
            assert_eq!(locks.refused(tab, ("-", Exclusive), PLAIN), RequestError::ReservedName);
            let options = Options { nested_in: Some(locks.id(1)), refuse_deadlock: true, ..PLAIN };
            assert!(matches!(locks.refused(tab, ("a", Exclusive), options), RequestError::Deadlock(_)));
        }
        for number in 10..13 {
            assert_eq!(locks.request(tab, "a", Exclusive), [Queued(number)]);
        }
    }
}

mod requests {
    use super::*;

    #[test]
    fn that_many_requests_live_in_all_and_not_one_more() {
        let mut locks = Harness::with_limits(LIMITS);
        let [tab, worker] = locks.clients();
        for client in [tab, worker, tab, worker, tab, worker] {
            locks.request(client, "a", Exclusive);
        }
        for client in [tab, worker] {
            let refused = locks.refused(client, ("b", Exclusive), PLAIN);
            assert_eq!(refused, RequestError::Limit(Limit::Requests(6)));
        }
        locks.abort(4);
        assert_eq!(locks.request(tab, "b", Exclusive), [Granted(7)]);
    }

    /// Each name of a scope takes as much room as a request of one name.
    #[test]
    fn that_many_names_are_asked_for_in_all_and_not_one_more() {
        let mut locks = Harness::with_limits(LIMITS);
        let [tab, worker] = locks.clients();
        locks.request_all(tab, scope(0..3));
        locks.request_all(worker, scope(2..4));
        let refused = locks.refused(tab, scope(4..6), PLAIN);
        assert_eq!(refused, RequestError::Limit(Limit::Requests(6)));
        assert_eq!(locks.request_all(tab, scope(4..5)), [Granted(3)]);
        let refused = locks.refused(tab, scope(5..6), PLAIN);
        assert_eq!(refused, RequestError::Limit(Limit::Requests(6)));
        locks.release(1);
        assert_eq!(locks.request_all(tab, scope(5..8)), [Granted(4)]);
    }

    #[test]
    fn the_end_of_a_client_makes_room_for_all_it_had() {
        let mut locks = Harness::with_limits(LIMITS);
        let [tab, worker] = locks.clients();
        locks.request_all(tab, scope(0..3));
        locks.request_all(tab, scope(0..3));
        assert!(matches!(locks.refused(worker, scope(9..10), PLAIN), RequestError::Limit(_)));
        locks.gone(tab);
        assert_eq!(locks.request_all(worker, scope(0..3)), [Granted(3)]);
        assert_eq!(locks.request_all(worker, scope(3..6)), [Granted(4)]);
    }
}

mod clients {
    use super::*;

    #[test]
    fn that_many_clients_live_and_not_one_more() {
        let mut locks = Harness::with_limits(LIMITS);
        let [tab, _, _] = locks.clients();
        locks.request(tab, "a", Exclusive);
        let before = locks.query();
        assert_eq!(locks.manager().client(), Err(Limit::Clients(3)));
        assert_eq!(locks.query(), before);
        locks.gone(tab);
        assert!(locks.manager().client().is_ok());
        assert_eq!(locks.manager().client(), Err(Limit::Clients(3)));
    }
}

/// A host passes these texts on to people who have to know what to change.
#[test]
fn each_refusal_says_in_words_which_limit_and_how_much_it_is() {
    let texts = [
        (Limit::NameBytes(8), "at most 8 bytes"),
        (Limit::NamesPerScope(3), "at most 3 names"),
        (Limit::RequestsPerClient(4), "4 live requests per client"),
        (Limit::Requests(6), "6 live requests in all"),
        (Limit::Clients(5), "5 live clients"),
    ];
    for (limit, text) in texts {
        assert!(limit.to_string().contains(text), "{limit}");
        assert_eq!(RequestError::from(limit).to_string(), limit.to_string());
    }
}

/// A refusal that depends on the request alone comes before one that depends on how full the
/// manager is.
#[test]
fn a_request_that_could_never_be_accepted_is_refused_for_that_reason() {
    let mut locks = Harness::with_limits(Limits { requests: 0, ..LIMITS });
    let [tab] = locks.clients();
    assert_eq!(locks.refused(tab, ("-", Exclusive), PLAIN), RequestError::ReservedName);
    let refused = locks.refused(tab, ("123456789", Exclusive), PLAIN);
    assert_eq!(refused, RequestError::Limit(Limit::NameBytes(8)));
    let refused = locks.refused(tab, scope(0..4), PLAIN);
    assert_eq!(refused, RequestError::Limit(Limit::NamesPerScope(3)));
    let refused = locks.refused(tab, ("a", Exclusive), PLAIN);
    assert_eq!(refused, RequestError::Limit(Limit::Requests(0)));
}
