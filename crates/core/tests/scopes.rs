//! Scopes of several names, and what the engine offers beyond the Working Draft.
//!
//! *A request is held if and only if, for every name it asks for, no earlier live request
//! conflicts.* These tests show what follows from that sentence: the explainer's worked example,
//! atomic scopes that cannot deadlock against each other, stealing a scope; and the promises that
//! hosts build on: ids that are never used again, fencing tokens that only grow, effects that
//! depend on nothing but the commands.

mod harness;

use harness::{Did, Did::*, Harness};
use lockkeeper_core::{
    ClientId, Config, Manager, Mode,
    Mode::{Exclusive, Shared},
    Name, Options, RequestError, Snapshot,
};
use std::collections::VecDeque;

/// The same row of numbers below a bound for the same seed.
fn random(seed: u64) -> impl FnMut(usize) -> usize {
    let mut state = seed;
    move |below| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        usize::try_from(state >> 33).expect("31 bits") % below
    }
}

mod the_explainers_example {
    use super::*;

    /// Requests #1 to #6, as the explainer lists them.
    fn requested() -> Harness {
        let mut locks = Harness::new();
        let [tab] = locks.clients();
        assert_eq!(locks.request(tab, "a", Exclusive), [Granted(1)]);
        assert_eq!(locks.request(tab, "b", Shared), [Granted(2)]);
        // "Request #3 can be granted immediately since it is for a "shared" lock on 'b' and #2 is
        // also …"
        assert_eq!(locks.request(tab, "b", Shared), [Granted(3)]);
        // "Request #4 … must wait for all of locks #1, #2 and #3 to be released."
        assert_eq!(locks.request_all(tab, [("a", Exclusive), ("b", Exclusive)]), [Queued(4)]);
        // "Request #5 arrived after request #4 and has overlapping scope, so it is blocked."
        assert_eq!(locks.request(tab, "b", Shared), [Queued(5)]);
        // "The scope of request #6 doesn't overlap with any other …, so it can be granted
        // immediately."
        assert_eq!(locks.request(tab, "c", Exclusive), [Granted(6)]);
        locks
    }

    #[test]
    fn four_are_held_and_two_wait() {
        let locks = requested();
        assert_eq!((locks.held(), locks.pending()), (vec![1, 2, 3, 6], vec![4, 5]));
    }

    #[test]
    fn number_4_is_granted_when_1_2_and_3_are_released_and_5_when_4_is() {
        for order in [[1, 2, 3], [1, 3, 2], [2, 1, 3], [2, 3, 1], [3, 1, 2], [3, 2, 1]] {
            let mut locks = requested();
            assert_eq!(locks.release(order[0]), []);
            assert_eq!(locks.release(order[1]), []);
            assert_eq!(locks.release(order[2]), [Granted(4)]);
            assert_eq!(locks.release(4), [Granted(5)]);
            assert_eq!(locks.release(5), []);
            assert_eq!(locks.release(6), []);
            assert_eq!(locks.query(), Snapshot::default());
        }
    }

    /// "Any lock release, request, or aborted request causes the state to be evaluated."
    #[test]
    fn number_5_is_granted_when_4_is_aborted() {
        let mut locks = requested();
        assert_eq!(locks.abort(4), [Aborted(4), Granted(5)]);
        assert_eq!(locks.held(), [1, 2, 3, 5, 6]);
    }
}

mod a_scope {
    use super::*;

    #[test]
    fn is_granted_all_its_names_or_none() {
        let mut locks = Harness::new();
        let [tab, worker] = locks.clients();
        locks.request(tab, "b", Exclusive);
        assert_eq!(locks.request_all(worker, [("a", Exclusive), ("b", Exclusive)]), [Queued(2)]);
        assert_eq!((locks.held(), locks.pending()), (vec![1], vec![2]));
        assert_eq!(locks.release(1), [Granted(2)]);
        assert_eq!(locks.release(2), []);
        assert_eq!(locks.query(), Snapshot::default());
    }

    /// It has its place in each queue while it waits, so that later requests cannot starve it.
    #[test]
    fn keeps_its_place_for_a_name_that_is_free_while_it_waits_for_another() {
        let mut locks = Harness::new();
        let [tab] = locks.clients();
        locks.request(tab, "b", Exclusive);
        locks.request_all(tab, [("a", Exclusive), ("b", Exclusive)]);
        assert_eq!(locks.request(tab, "a", Exclusive), [Queued(3)]);
        assert_eq!(locks.if_available(tab, "a", Shared), [Unavailable(4)]);
        assert_eq!(locks.release(1), [Granted(2)]);
        assert_eq!(locks.release(2), [Granted(3)]);
    }

    #[test]
    fn has_a_mode_for_each_name() {
        let mut locks = Harness::new();
        let [tab] = locks.clients();
        assert_eq!(locks.request_all(tab, [("a", Shared), ("b", Exclusive)]), [Granted(1)]);
        assert_eq!(locks.request(tab, "a", Shared), [Granted(2)]);
        assert_eq!(locks.request(tab, "b", Shared), [Queued(3)]);
        assert_eq!(locks.request(tab, "a", Exclusive), [Queued(4)]);
        assert_eq!(locks.release(1), [Granted(3)]);
        assert_eq!(locks.release(2), [Granted(4)]);
    }

    /// By the conflict rule: both are shared on the name, and it does not matter that the scope
    /// waits.
    #[test]
    fn that_waits_is_passed_by_a_shared_request_for_a_name_that_it_has_shared() {
        let mut locks = Harness::new();
        let [tab] = locks.clients();
        locks.request(tab, "b", Exclusive);
        assert_eq!(locks.request_all(tab, [("a", Shared), ("b", Exclusive)]), [Queued(2)]);
        assert_eq!(locks.request(tab, "a", Shared), [Granted(3)]);
        assert_eq!(locks.if_available(tab, "a", Shared), [Granted(4)]);
        assert_eq!(locks.request(tab, "a", Exclusive), [Queued(5)]);
        assert_eq!(locks.release(1), [Granted(2)]);
    }

    #[test]
    fn if_available_is_refused_for_one_name_that_is_not_and_leaves_the_others_alone() {
        let mut locks = Harness::new();
        let [tab] = locks.clients();
        locks.request(tab, "b", Exclusive);
        let options = Options { if_available: true, ..Options::default() };
        let scope = [("a", Exclusive), ("b", Shared), ("c", Exclusive)];
        assert_eq!(locks.ask(tab, scope, options), [Unavailable(2)]);
        assert_eq!(locks.request(tab, "a", Exclusive), [Granted(3)]);
        assert_eq!(locks.request(tab, "c", Exclusive), [Granted(4)]);
    }

    #[test]
    fn shows_once_for_each_name_in_the_order_in_which_they_were_given() {
        let mut locks = Harness::new();
        let [tab] = locks.clients();
        locks.request_all(tab, [("b", Shared), ("a", Exclusive)]);
        let held: Vec<_> = locks.query().held.into_iter().map(|info| (info.name, info.mode)).collect();
        assert_eq!(held, [(Name::from("b"), Shared), (Name::from("a"), Exclusive)]);
    }

    #[test]
    fn has_at_least_one_name() {
        let mut locks = Harness::new();
        let [tab] = locks.clients();
        let none: [(&str, Mode); 0] = [];
        assert_eq!(locks.refused(tab, none, Options::default()), RequestError::EmptyScope);
    }

    #[test]
    fn with_one_reserved_name_is_refused_whole() {
        let mut locks = Harness::new();
        let [tab] = locks.clients();
        let refused = locks.refused(tab, [("a", Exclusive), ("-b", Exclusive)], Options::default());
        assert_eq!(refused, RequestError::ReservedName);
        assert_eq!(locks.request(tab, "a", Exclusive), [Granted(1)]);
    }

    /// Requests granted by one release over several names come in the order of arrival, not of
    /// names.
    #[test]
    fn lets_in_who_waited_for_its_names_in_the_order_of_arrival() {
        let mut locks = Harness::new();
        let [tab] = locks.clients();
        locks.request_all(tab, [("a", Exclusive), ("b", Exclusive), ("c", Exclusive)]);
        locks.request(tab, "c", Exclusive);
        locks.request(tab, "a", Shared);
        locks.request(tab, "b", Exclusive);
        locks.request(tab, "a", Shared);
        assert_eq!(locks.release(1), [Granted(2), Granted(3), Granted(4), Granted(5)]);
    }
}

mod a_name_that_stands_twice_in_a_scope {
    use super::*;

    fn modes_of(locks: &Harness, number: usize) -> Vec<(String, Mode)> {
        locks.get(number).scope().map(|(name, mode)| (name.to_string(), mode)).collect()
    }

    #[test]
    fn counts_once() {
        let mut locks = Harness::new();
        let [tab] = locks.clients();
        let scope = [("a", Exclusive), ("b", Shared), ("a", Exclusive), ("b", Shared)];
        assert_eq!(locks.request_all(tab, scope), [Granted(1)]);
        assert_eq!(modes_of(&locks, 1), [("a".to_string(), Exclusive), ("b".to_string(), Shared)]);
        assert_eq!(locks.request(tab, "a", Exclusive), [Queued(2)]);
        assert_eq!(locks.release(1), [Granted(2)]);
    }

    #[test]
    fn is_exclusive_if_either_asks_for_that() {
        for scope in [[("a", Exclusive), ("a", Shared)], [("a", Shared), ("a", Exclusive)]] {
            let mut locks = Harness::new();
            let [tab] = locks.clients();
            assert_eq!(locks.request_all(tab, scope), [Granted(1)]);
            assert_eq!(modes_of(&locks, 1), [("a".to_string(), Exclusive)]);
            assert_eq!(locks.request(tab, "a", Shared), [Queued(2)]);
            assert_eq!(locks.release(1), [Granted(2)]);
        }
    }

    /// As shared it would have been open; as exclusive it is blocked after all.
    #[test]
    fn waits_for_shared_holders_if_it_is_exclusive_the_second_time() {
        let mut locks = Harness::new();
        let [tab] = locks.clients();
        locks.request(tab, "a", Shared);
        assert_eq!(locks.request_all(tab, [("a", Shared), ("b", Shared), ("a", Exclusive)]), [Queued(2)]);
        assert_eq!(locks.request(tab, "a", Shared), [Queued(3)]);
        assert_eq!(locks.release(1), [Granted(2)]);
        assert_eq!(locks.release(2), [Granted(3)]);
    }

    /// Blocked as shared already, it is not blocked twice.
    #[test]
    fn waits_once_behind_an_exclusive_holder() {
        let mut locks = Harness::new();
        let [tab] = locks.clients();
        locks.request(tab, "a", Exclusive);
        assert_eq!(locks.request_all(tab, [("a", Shared), ("a", Exclusive), ("a", Shared)]), [Queued(2)]);
        assert_eq!(locks.release(1), [Granted(2)]);
    }

    #[test]
    fn is_stolen_once() {
        let mut locks = Harness::new();
        let [tab] = locks.clients();
        locks.request_all(tab, [("a", Exclusive), ("b", Exclusive)]);
        let scope = [("a", Exclusive), ("b", Exclusive), ("a", Exclusive)];
        assert_eq!(locks.steal_all(tab, scope), [Stolen(1), Granted(2)]);
        assert_eq!(locks.queue("a"), [2]);
        assert_eq!(locks.release(2), []);
    }
}

mod scopes_cannot_deadlock_against_each_other {
    use super::*;

    #[test]
    fn in_whichever_order_they_name_their_names() {
        let mut locks = Harness::new();
        let [tab, worker] = locks.clients();
        assert_eq!(locks.request_all(tab, [("a", Exclusive), ("b", Exclusive)]), [Granted(1)]);
        assert_eq!(locks.request_all(worker, [("b", Exclusive), ("a", Exclusive)]), [Queued(2)]);
        assert_eq!(locks.request_all(tab, [("a", Exclusive), ("b", Exclusive)]), [Queued(3)]);
        assert_eq!(locks.release(1), [Granted(2)]);
        assert_eq!(locks.release(2), [Granted(3)]);
    }

    /// Three philosophers who each need two of three forks, and a fourth who holds them all at
    /// first.
    #[test]
    fn even_if_each_waits_for_a_name_of_the_next() {
        let mut locks = Harness::new();
        let [tab] = locks.clients();
        locks.request_all(tab, [("a", Exclusive), ("b", Exclusive), ("c", Exclusive)]);
        locks.request_all(tab, [("a", Exclusive), ("b", Exclusive)]);
        locks.request_all(tab, [("b", Exclusive), ("c", Exclusive)]);
        locks.request_all(tab, [("c", Exclusive), ("a", Exclusive)]);
        assert_eq!(locks.release(1), [Granted(2)]);
        assert_eq!(locks.release(2), [Granted(3)]);
        assert_eq!(locks.release(3), [Granted(4)]);
    }
}

mod a_steal_of_a_scope {
    use super::*;

    #[test]
    fn breaks_its_victims_whole() {
        let mut locks = Harness::new();
        let [tab, worker] = locks.clients();
        locks.request_all(tab, [("a", Exclusive), ("b", Exclusive)]);
        assert_eq!(locks.steal(worker, "a"), [Stolen(1), Granted(2)]);
        assert_eq!(locks.request(tab, "b", Exclusive), [Granted(3)]);
    }

    /// Broken, then the thief, then the requests that the victims' other names make grantable.
    #[test]
    fn grants_the_thief_before_those_whom_the_victims_other_names_let_in() {
        let mut locks = Harness::new();
        let [tab, worker] = locks.clients();
        locks.request_all(tab, [("a", Exclusive), ("b", Exclusive), ("c", Exclusive)]);
        locks.request(tab, "c", Exclusive);
        locks.request(tab, "b", Shared);
        locks.request(tab, "a", Exclusive);
        locks.request(tab, "b", Shared);
        let did = locks.steal(worker, "a");
        assert_eq!(did, [Stolen(1), Granted(6), Granted(2), Granted(3), Granted(5)]);
        assert_eq!(locks.pending(), [4]);
    }

    #[test]
    fn breaks_the_holders_of_all_its_names_in_the_order_of_their_grants() {
        let mut locks = Harness::new();
        let [tab, worker] = locks.clients();
        locks.request(tab, "c", Exclusive);
        locks.request(tab, "c", Shared);
        locks.request(tab, "b", Shared);
        locks.request(tab, "a", Exclusive);
        locks.request(tab, "b", Shared);
        locks.release(1);
        // #2 came second and was granted last.
        let scope = [("a", Exclusive), ("b", Exclusive), ("c", Exclusive)];
        let did = locks.steal_all(worker, scope);
        assert_eq!(did, [Stolen(3), Stolen(4), Stolen(5), Stolen(2), Granted(6)]);
    }

    #[test]
    fn breaks_a_victim_of_several_of_its_names_once() {
        let mut locks = Harness::new();
        let [tab, worker] = locks.clients();
        locks.request_all(tab, [("a", Exclusive), ("b", Shared)]);
        locks.request(tab, "b", Shared);
        let did = locks.steal_all(worker, [("b", Exclusive), ("a", Exclusive)]);
        assert_eq!(did, [Stolen(1), Stolen(2), Granted(3)]);
    }

    /// #2 stands open for "a" and waits for "b": it holds nothing that could be stolen, but after the steal it
    /// waits for "a" too, and "b" alone does not let it in.
    #[test]
    fn makes_a_waiting_scope_wait_for_the_stolen_name_again() {
        let mut locks = Harness::new();
        let [tab, worker] = locks.clients();
        locks.request(tab, "b", Exclusive);
        locks.request_all(tab, [("a", Exclusive), ("b", Exclusive)]);
        assert_eq!(locks.steal(worker, "a"), [Granted(3)]);
        assert_eq!(locks.release(1), []);
        assert_eq!(locks.pending(), [2]);
        assert_eq!(locks.release(3), [Granted(2)]);
    }

    /// The same, when it is the steal itself that frees the other name.
    #[test]
    fn does_not_let_in_a_waiting_scope_that_needs_the_stolen_name_too() {
        let mut locks = Harness::new();
        let [tab, worker] = locks.clients();
        locks.request_all(tab, [("a", Shared), ("b", Exclusive)]);
        locks.request_all(tab, [("a", Shared), ("b", Exclusive)]);
        assert_eq!(locks.steal(worker, "a"), [Stolen(1), Granted(3)]);
        assert_eq!(locks.queue("b"), [2]);
        assert_eq!(locks.release(3), [Granted(2)]);
    }

    /// Several waiting scopes that stood open side by side are all set back, and all come back.
    #[test]
    fn sets_back_every_shared_scope_that_stood_open() {
        let mut locks = Harness::new();
        let [tab, worker] = locks.clients();
        locks.request(tab, "b", Exclusive);
        for _ in 0..3 {
            locks.request_all(tab, [("a", Shared), ("b", Shared)]);
        }
        locks.request(tab, "a", Shared);
        assert_eq!(locks.steal(worker, "a"), [Stolen(5), Granted(6)]);
        assert_eq!(locks.release(1), []);
        assert_eq!(locks.release(6), [Granted(2), Granted(3), Granted(4)]);
    }

    #[test]
    fn by_a_thief_with_several_names_is_undone_by_the_next_thief_of_one_of_them() {
        let mut locks = Harness::new();
        let [tab, worker] = locks.clients();
        locks.steal_all(tab, [("a", Exclusive), ("b", Exclusive)]);
        locks.request(tab, "a", Exclusive);
        assert_eq!(locks.steal(worker, "b"), [Stolen(1), Granted(3), Granted(2)]);
        assert!(locks.get(3).stole());
        assert!(!locks.get(2).stole());
    }

    #[test]
    fn takes_every_name_exclusively() {
        let mut locks = Harness::new();
        let [tab] = locks.clients();
        let options = Options { steal: true, ..Options::default() };
        let refused = locks.refused(tab, [("a", Exclusive), ("b", Shared)], options);
        assert!(matches!(refused, RequestError::Unsupported(_)));
    }
}

mod an_aborted_request {
    use super::*;

    #[test]
    fn lets_in_the_shared_requests_behind_it() {
        let mut locks = Harness::new();
        let [tab] = locks.clients();
        locks.request(tab, "a", Shared);
        locks.request(tab, "a", Exclusive);
        locks.request(tab, "a", Shared);
        locks.request(tab, "a", Shared);
        assert_eq!(locks.abort(2), [Aborted(2), Granted(3), Granted(4)]);
    }

    #[test]
    fn that_is_a_scope_leaves_all_its_queues_and_lets_in_by_arrival() {
        let mut locks = Harness::new();
        let [tab] = locks.clients();
        locks.request(tab, "c", Exclusive);
        locks.request_all(tab, [("a", Exclusive), ("b", Exclusive), ("c", Exclusive)]);
        locks.request(tab, "b", Exclusive);
        locks.request(tab, "a", Shared);
        locks.request(tab, "c", Exclusive);
        locks.request(tab, "a", Shared);
        assert_eq!(locks.abort(2), [Aborted(2), Granted(3), Granted(4), Granted(6)]);
        assert_eq!(locks.release(1), [Granted(5)]);
    }

    /// It was open on "a", and blocked only the exclusive #3 there.
    #[test]
    fn that_stood_open_on_a_name_lets_in_who_waited_behind_it() {
        let mut locks = Harness::new();
        let [tab] = locks.clients();
        locks.request(tab, "b", Exclusive);
        locks.request_all(tab, [("a", Shared), ("b", Exclusive)]);
        locks.request(tab, "a", Exclusive);
        assert_eq!(locks.abort(2), [Aborted(2), Granted(3)]);
    }
}

mod a_stale_id {
    use super::*;

    #[test]
    fn of_a_stolen_lock_releases_nothing() {
        let mut locks = Harness::new();
        let [tab, worker] = locks.clients();
        locks.request(tab, "a", Exclusive);
        locks.steal(worker, "a");
        locks.request(tab, "a", Exclusive);
        locks.release_in_vain(1);
        locks.abort_in_vain(1);
        assert_eq!((locks.held(), locks.pending()), (vec![2], vec![3]));
    }

    /// Each new request takes over the place in memory that the one before it left.
    #[test]
    fn touches_nothing_after_others_took_its_place() {
        let mut locks = Harness::new();
        let [tab] = locks.clients();
        locks.request(tab, "a", Exclusive);
        for number in 1..100 {
            locks.steal(tab, "a");
            for stale in 1..=number {
                locks.release_in_vain(stale);
                locks.abort_in_vain(stale);
            }
            assert_eq!(locks.held(), [number + 1]);
        }
        locks.release(100);
        locks.request(tab, "b", Exclusive);
        locks.request(tab, "b", Exclusive);
        for stale in 1..=100 {
            locks.release_in_vain(stale);
            locks.abort_in_vain(stale);
        }
        assert_eq!((locks.held(), locks.pending()), (vec![101], vec![102]));
    }

    #[test]
    fn is_known_to_no_query() {
        let mut locks = Harness::new();
        let [tab] = locks.clients();
        locks.request(tab, "a", Exclusive);
        locks.steal(tab, "a");
        let stale = locks.id(1);
        assert!(locks.manager().get(stale).is_none());
        assert!(locks.manager().data_mut(stale).is_none());
        assert_eq!(locks.deadlock(1), None);
    }
}

mod fencing_tokens {
    use super::*;

    #[test]
    fn grow_with_every_grant_steals_included() {
        let mut locks = Harness::new();
        let [tab] = locks.clients();
        locks.request(tab, "a", Exclusive);
        locks.request(tab, "a", Exclusive);
        locks.steal(tab, "a");
        locks.request(tab, "b", Shared);
        locks.request(tab, "b", Shared);
        locks.release(3);
        let tokens = [1, 3, 4, 5, 2].map(|number| locks.token(number));
        assert!(tokens.is_sorted_by(|earlier, later| earlier < later), "{tokens:?}");
    }

    #[test]
    fn are_one_row_over_all_names() {
        let mut locks = Harness::new();
        let [tab] = locks.clients();
        for name in ["a", "b", "c"] {
            locks.request(tab, name, Exclusive);
        }
        assert_eq!([1, 2, 3].map(|number| locks.token(number).get()), [1, 2, 3]);
    }

    /// What was refused or is still waiting has none.
    #[test]
    fn belong_to_held_requests_only() {
        let mut locks = Harness::new();
        let [tab] = locks.clients();
        locks.request(tab, "a", Exclusive);
        locks.if_available(tab, "a", Exclusive);
        locks.request(tab, "a", Exclusive);
        assert_eq!(locks.get(3).token(), None);
        locks.release(1);
        assert_eq!(locks.token(3).get(), 2);
    }

    #[test]
    fn go_on_where_an_earlier_life_of_the_manager_ended() {
        let mut locks = Harness::with(Config { last_token: 1 << 53, ..Config::default() });
        let [tab] = locks.clients();
        locks.request(tab, "a", Exclusive);
        locks.steal(tab, "a");
        assert_eq!(locks.token(1).get(), (1 << 53) + 1);
        assert_eq!(locks.token(2).to_string(), "9007199254740994");
    }
}

mod force_release {
    use super::*;

    #[test]
    fn breaks_every_holder_of_the_name_and_grants_who_waited() {
        let mut locks = Harness::new();
        let [tab, worker] = locks.clients();
        locks.request(tab, "a", Shared);
        locks.request(worker, "a", Shared);
        locks.request(tab, "a", Exclusive);
        locks.request(tab, "a", Shared);
        assert_eq!(locks.force_release("a"), [Stolen(1), Stolen(2), Granted(3)]);
        assert_eq!(locks.force_release("a"), [Stolen(3), Granted(4)]);
        assert_eq!(locks.force_release("a"), [Stolen(4)]);
    }

    /// All are broken before any request is granted, and grants are by arrival.
    #[test]
    fn breaks_scopes_whole_and_lets_in_by_arrival() {
        let mut locks = Harness::new();
        let [tab] = locks.clients();
        locks.request_all(tab, [("a", Shared), ("c", Exclusive)]);
        locks.request_all(tab, [("b", Exclusive), ("a", Shared)]);
        locks.request(tab, "b", Exclusive);
        locks.request(tab, "a", Exclusive);
        locks.request(tab, "c", Exclusive);
        let did = locks.force_release("a");
        assert_eq!(did, [Stolen(1), Stolen(2), Granted(3), Granted(4), Granted(5)]);
    }

    #[test]
    fn breaks_no_scope_that_waits() {
        let mut locks = Harness::new();
        let [tab] = locks.clients();
        locks.request(tab, "b", Exclusive);
        locks.request_all(tab, [("a", Exclusive), ("b", Exclusive)]);
        assert_eq!(locks.force_release("a"), []);
        assert_eq!(locks.force_release("b"), [Stolen(1), Granted(2)]);
    }

    #[test]
    fn of_a_name_that_nobody_holds_does_nothing() {
        let mut locks = Harness::new();
        let [tab] = locks.clients();
        locks.request(tab, "a", Exclusive);
        assert_eq!(locks.force_release("b"), []);
        assert_eq!(locks.held(), [1]);
    }
}

mod the_end_of_a_client {
    use super::*;

    #[test]
    fn aborts_its_scopes_then_breaks_its_locks_each_in_the_order_of_arrival() {
        let mut locks = Harness::new();
        let [tab, worker] = locks.clients();
        locks.request_all(tab, [("a", Exclusive), ("b", Exclusive)]);
        locks.request_all(tab, [("b", Exclusive), ("c", Exclusive)]);
        locks.request(worker, "c", Shared);
        locks.request(tab, "d", Exclusive);
        locks.request(tab, "c", Exclusive);
        locks.request(worker, "a", Shared);
        locks.request(worker, "d", Shared);
        let did = locks.gone(tab);
        assert_eq!(
            did,
            [Aborted(2), Granted(3), Aborted(5), Lost(1), Granted(6), Lost(4), Granted(7)],
            "what each lets in comes before the next"
        );
    }

    /// Without the order of §2.6 a request of the ending client itself could be left over.
    #[test]
    fn ends_what_it_lets_in_itself() {
        let mut locks = Harness::new();
        let [tab, worker] = locks.clients();
        locks.request(worker, "a", Exclusive);
        locks.request_all(tab, [("a", Exclusive), ("b", Exclusive)]);
        locks.request(tab, "b", Exclusive);
        locks.request(worker, "b", Exclusive);
        let did = locks.gone(tab);
        assert_eq!(did, [Aborted(2), Granted(3), Lost(3), Granted(4)]);
        assert_eq!(locks.held(), [1, 4]);
    }

    #[test]
    fn of_a_thief_lets_in_who_was_robbed_of_his_turn() {
        let mut locks = Harness::new();
        let [tab, worker] = locks.clients();
        locks.request(worker, "a", Exclusive);
        locks.request(worker, "a", Exclusive);
        locks.steal(tab, "a");
        assert_eq!(locks.gone(tab), [Lost(3), Granted(2)]);
    }

    /// The list of a client loses its members from the front, the middle and the end.
    #[test]
    fn finds_exactly_what_it_still_has() {
        let mut locks = Harness::new();
        let [tab] = locks.clients();
        for name in ["a", "b", "c", "d", "e"] {
            locks.request(tab, name, Exclusive);
        }
        locks.release(3);
        locks.release(1);
        locks.release(5);
        locks.request(tab, "f", Exclusive);
        assert_eq!(locks.gone(tab), [Lost(2), Lost(4), Lost(6)]);
    }
}

mod names {
    use super::*;

    /// A manager may keep an idle name for a while, or forget it: it makes no difference.
    #[test]
    fn come_back_as_if_for_the_first_time_after_thousands_of_others() {
        let mut locks = Harness::new();
        let [tab] = locks.clients();
        let mut live = VecDeque::new();
        let mut random = random(7);
        // Of 1,500 names fifty or so are in use at a time: some come back soon, some late, some
        // while they are still held.
        for number in 1..=10_000 {
            let name = format!("name {}", random(1_500));
            let waits = live.iter().any(|(other, _)| *other == name);
            let did = locks.request(tab, &name, Exclusive);
            assert_eq!(did, [if waits { Queued(number) } else { Granted(number) }]);
            live.push_back((name, number));
            if live.len() > 50 {
                let (name, oldest) = live.pop_front().expect("fifty are live");
                let next = live.iter().find(|(other, _)| *other == name);
                let lets_in: Vec<_> = next.map(|(_, next)| Granted(*next)).into_iter().collect();
                assert_eq!(locks.release(oldest), lets_in);
            }
        }
        locks.gone(tab);
        assert_eq!(locks.query(), Snapshot::default());
    }
}

mod determinism {
    use super::*;

    /// A day's work of a few clients: all commands, many names, scopes, steals.
    fn run(hash_seed: u64) -> (Vec<Vec<Did>>, Snapshot) {
        let mut locks = Harness::with(Config { hash_seed, ..Config::default() });
        let mut clients: [ClientId; 3] = locks.clients();
        let mut told = Vec::new();
        let mut random = random(42);
        for _ in 0..3_000 {
            let client = clients[random(3)];
            let live: Vec<usize> = locks.held().into_iter().chain(locks.pending()).collect();
            told.push(match random(20) {
                0..9 => {
                    let mut scope = Vec::new();
                    for _ in 0..=random(3) {
                        let mode = if random(2) == 0 { Shared } else { Exclusive };
                        scope.push((format!("name {}", random(10)), mode));
                    }
                    locks.request_all(client, scope)
                }
                9 => locks.steal(client, &format!("name {}", random(10))),
                10 => locks.force_release(&format!("name {}", random(10))),
                11 if random(8) == 0 => {
                    let did = locks.gone(client);
                    let at = clients.iter().position(|known| *known == client).expect("one of ours");
                    [clients[at]] = locks.clients();
                    did
                }
                _ if live.is_empty() => continue,
                _ => {
                    let number = live[random(live.len())];
                    if locks.held().contains(&number) { locks.release(number) } else { locks.abort(number) }
                }
            });
        }
        (told, locks.query())
    }

    #[test]
    fn the_same_commands_have_the_same_effects_whatever_the_hash_seed() {
        let (told, state) = run(0);
        assert!(told.len() > 2_000, "the run is not idle");
        for seed in [1, 0xDEAD_BEEF, u64::MAX] {
            assert!(run(seed) == (told.clone(), state.clone()), "seed {seed} makes a difference");
        }
    }

    #[test]
    fn ids_and_tokens_are_the_same_too() {
        let run = |hash_seed| {
            let mut manager = Manager::new(Config { hash_seed, ..Config::default() });
            let client = manager.client().unwrap();
            let (mut outcomes, mut effects) = (Vec::new(), Vec::new());
            for i in 0..1_000_u32 {
                let name = (i * 7 % 13).to_string();
                let options = Options { steal: i % 11 == 0, ..Options::default() };
                outcomes.push(manager.request(client, &[(name, Exclusive)], options, i, &mut effects));
            }
            manager.client_gone(client, &mut effects);
            (outcomes, effects)
        };
        assert!(run(1) == run(2));
    }
}
