//! The Working Draft, sentence by sentence: each module is a section, each test says which steps it
//! shows.
//!
//! With the draft of 5 January 2023 beside this file every step of §2.5, §2.6, §3.2.1 steps 5 to 7
//! and §4.1 to §4.5 can be ticked off, but for those that need promises, callbacks, signals or an
//! event loop. These belong to the layer above the engine, and to its tests:
//!
//! * §2.4: what happens when a waiting promise settles; the released promise;
//! * §3.2.1 steps 1 to 4 (options, document, storage) and 8 to 12 (signal, promise);
//! * §4.1 step 2 (the signal's algorithm) and the callback of a refused `ifAvailable` (step
//!   3.5.1.1);
//! * §4.3, *signal to abort the request*;
//! * §4.4 steps 2.8 to 2.11 (callback, promises, signal) and 2.14 (invoking the callback);
//! * the promise of §4.5 steps 1 and 6;
//! * "these steps are running on the lock task queue" (§4.2 to §4.5, step 1): the manager is
//!   `&mut`, so that one command ends before the next begins.
//!
//! Where the draft rejects a promise or invokes a callback, the engine says so to be passed on:
//! `Stolen` for the "AbortError" of §4.1 step 3.4.1.1.2, `Unavailable` for the null of step
//! 3.5.1.1.1, `Granted` for the lock of §4.4 step 2.14.

mod harness;

use harness::{Did::*, Harness};
use lockkeeper_core::{
    LockInfo,
    Mode::{Exclusive, Shared},
    Name, Options, RequestError, Snapshot, validate,
};

mod s2_1_resource_names {
    use super::*;

    /// "A resource name is a JavaScript string": its code units count, not its text.
    #[test]
    fn lone_surrogates_are_distinct_names() {
        let mut locks = Harness::new();
        let [tab] = locks.clients();
        let (high, low): (&[u8], &[u8]) = (b"\xed\xa0\x80", b"\xed\xb0\x80");
        assert_eq!(locks.request_all(tab, (high, Exclusive)), [Granted(1)]);
        assert_eq!(locks.request_all(tab, (low, Exclusive)), [Granted(2)]);
        assert_eq!(locks.request_all(tab, (high, Exclusive)), [Queued(3)]);
    }

    #[test]
    fn names_are_neither_normalised_nor_folded_nor_trimmed() {
        let mut locks = Harness::new();
        let [tab] = locks.clients();
        for (i, name) in ["é", "e\u{301}", "a", "A", "a ", "a\0", "\0"].into_iter().enumerate() {
            assert_eq!(locks.request(tab, name, Exclusive), [Granted(i + 1)]);
        }
    }

    #[test]
    fn the_empty_string_is_a_name() {
        let mut locks = Harness::new();
        let [tab] = locks.clients();
        assert_eq!(locks.request(tab, "", Exclusive), [Granted(1)]);
        assert_eq!(locks.request(tab, "", Exclusive), [Queued(2)]);
    }

    #[test]
    fn a_name_is_global_across_the_agents_that_share_a_manager() {
        let mut locks = Harness::new();
        let [tab, worker] = locks.clients();
        locks.request(tab, "a", Exclusive);
        assert_eq!(locks.request(worker, "a", Exclusive), [Queued(2)]);
    }
}

mod s2_2_lock_managers {
    use super::*;

    #[test]
    fn a_manager_encapsulates_its_locks_and_requests() {
        let (mut one, mut other) = (Harness::new(), Harness::new());
        let ([tab], [worker]) = (one.clients(), other.clients());
        one.request(tab, "a", Exclusive);
        one.request(tab, "a", Exclusive);
        assert_eq!(other.request(worker, "a", Exclusive), [Granted(1)]);
        assert_eq!((other.held(), other.pending()), (vec![1], vec![]));
    }
}

mod s2_3_modes_and_scheduling {
    use super::*;

    #[test]
    fn if_an_exclusive_lock_is_held_no_other_lock_of_that_name_is_granted() {
        let mut locks = Harness::new();
        let [tab, worker] = locks.clients();
        locks.request(tab, "a", Exclusive);
        assert_eq!(locks.request(worker, "a", Exclusive), [Queued(2)]);
        assert_eq!(locks.request(worker, "a", Shared), [Queued(3)]);
    }

    #[test]
    fn if_a_shared_lock_is_held_shared_locks_of_that_name_are_granted_but_no_exclusive_one() {
        let mut locks = Harness::new();
        let [tab, worker] = locks.clients();
        locks.request(tab, "a", Shared);
        assert_eq!(locks.request(worker, "a", Shared), [Granted(2)]);
        assert_eq!(locks.request(worker, "a", Exclusive), [Queued(3)]);
    }

    #[test]
    fn the_default_mode_is_exclusive() {
        assert_eq!(lockkeeper_core::Mode::default(), Exclusive);
    }
}

mod s2_4_locks {
    use super::*;

    /// A lock has an agent, a clientId (for which the engine's client stands), a manager, a name
    /// and a mode.
    #[test]
    fn a_lock_has_an_agent_a_name_and_a_mode() {
        let mut locks = Harness::new();
        let [_, worker] = locks.clients();
        locks.request(worker, "a", Shared);
        let lock = locks.get(1);
        assert_eq!(lock.client(), worker);
        assert_eq!(lock.scope().collect::<Vec<_>>(), [(&Name::from("a"), Shared)]);
    }

    #[test]
    fn the_held_lock_set_is_a_set_of_locks_of_any_names() {
        let mut locks = Harness::new();
        let [tab] = locks.clients();
        locks.request(tab, "a", Exclusive);
        locks.request(tab, "b", Shared);
        locks.request(tab, "b", Shared);
        assert_eq!(locks.held(), [1, 2, 3]);
    }
}

mod s2_5_get_the_lock_request_queue {
    use super::*;

    /// Step 1.
    #[test]
    fn a_name_that_nobody_has_asked_for_has_an_empty_queue() {
        let mut locks = Harness::new();
        let [tab] = locks.clients();
        assert_eq!(locks.queue("a"), []);
        assert_eq!(locks.request(tab, "a", Exclusive), [Granted(1)]);
    }

    /// Step 1: that the queue was there before makes no difference.
    #[test]
    fn a_name_that_everybody_has_left_has_an_empty_queue_again() {
        let mut locks = Harness::new();
        let [tab] = locks.clients();
        locks.request(tab, "a", Exclusive);
        locks.request(tab, "a", Exclusive);
        locks.abort(2);
        locks.release(1);
        assert_eq!(locks.queue("a"), []);
        assert_eq!(locks.request(tab, "a", Exclusive), [Granted(3)]);
    }

    /// Step 2.
    #[test]
    fn all_requests_for_one_name_stand_in_one_queue() {
        let mut locks = Harness::new();
        let [tab, worker] = locks.clients();
        locks.request(tab, "a", Exclusive);
        locks.request(worker, "a", Exclusive);
        locks.request(worker, "b", Exclusive);
        locks.request(tab, "a", Shared);
        assert_eq!(locks.queue("a"), [1, 2, 4]);
        assert_eq!(locks.queue("b"), [3]);
    }
}

mod s2_5_grantable {
    use super::*;

    /// Steps 1 to 4: of all queues of the request's manager, that of its own name counts.
    #[test]
    fn a_queue_of_another_name_does_not_matter() {
        let mut locks = Harness::new();
        let [tab] = locks.clients();
        locks.request(tab, "a", Exclusive);
        locks.request(tab, "a", Exclusive);
        assert_eq!(locks.request(tab, "b", Exclusive), [Granted(3)]);
    }

    /// Step 7, where step 9 alone would say yes.
    #[test]
    fn a_shared_request_that_is_not_first_in_the_queue_is_not_grantable() {
        let mut locks = Harness::new();
        let [tab] = locks.clients();
        locks.request(tab, "a", Shared);
        locks.request(tab, "a", Exclusive);
        assert_eq!(locks.request(tab, "a", Shared), [Queued(3)]);
    }

    /// Step 7: once it is the first, the rest of the steps decide.
    #[test]
    fn a_shared_request_is_grantable_as_soon_as_it_is_first_in_the_queue() {
        let mut locks = Harness::new();
        let [tab] = locks.clients();
        locks.request(tab, "a", Shared);
        locks.request(tab, "a", Exclusive);
        locks.request(tab, "a", Shared);
        assert_eq!(locks.abort(2), [Aborted(2), Granted(3)]);
    }

    /// Step 7: being the first is not enough.
    #[test]
    fn the_first_in_the_queue_still_waits_for_the_lock_that_is_held() {
        let mut locks = Harness::new();
        let [tab] = locks.clients();
        locks.request(tab, "a", Exclusive);
        locks.request(tab, "a", Shared);
        locks.request(tab, "a", Exclusive);
        assert_eq!(locks.abort(2), [Aborted(2)]);
        assert_eq!(locks.pending(), [3]);
    }

    /// Step 8.
    #[test]
    fn an_exclusive_request_is_grantable_if_no_lock_of_the_name_is_held() {
        let mut locks = Harness::new();
        let [tab] = locks.clients();
        assert_eq!(locks.request(tab, "a", Exclusive), [Granted(1)]);
    }

    /// Step 8.
    #[test]
    fn an_exclusive_request_is_not_grantable_while_an_exclusive_lock_of_the_name_is_held() {
        let mut locks = Harness::new();
        let [tab] = locks.clients();
        locks.request(tab, "a", Exclusive);
        assert_eq!(locks.request(tab, "a", Exclusive), [Queued(2)]);
    }

    /// Step 8: "no lock in held has name equal to name", whatever its mode.
    #[test]
    fn an_exclusive_request_is_not_grantable_while_a_shared_lock_of_the_name_is_held() {
        let mut locks = Harness::new();
        let [tab] = locks.clients();
        locks.request(tab, "a", Shared);
        assert_eq!(locks.request(tab, "a", Exclusive), [Queued(2)]);
    }

    /// Steps 5 and 8: the held lock set is the whole manager's, the name picks from it.
    #[test]
    fn an_exclusive_request_is_grantable_while_locks_of_other_names_are_held() {
        let mut locks = Harness::new();
        let [tab] = locks.clients();
        locks.request(tab, "b", Exclusive);
        locks.request(tab, "c", Shared);
        assert_eq!(locks.request(tab, "a", Exclusive), [Granted(3)]);
    }

    /// Steps 6 and 9.
    #[test]
    fn a_shared_request_is_grantable_if_no_lock_of_the_name_is_held() {
        let mut locks = Harness::new();
        let [tab] = locks.clients();
        assert_eq!(locks.request(tab, "a", Shared), [Granted(1)]);
    }

    /// Step 9.
    #[test]
    fn a_shared_request_is_grantable_while_only_shared_locks_of_the_name_are_held() {
        let mut locks = Harness::new();
        let [tab] = locks.clients();
        locks.request(tab, "a", Shared);
        assert_eq!(locks.request(tab, "a", Shared), [Granted(2)]);
        assert_eq!(locks.request(tab, "a", Shared), [Granted(3)]);
    }

    /// Step 9.
    #[test]
    fn a_shared_request_is_not_grantable_while_an_exclusive_lock_of_the_name_is_held() {
        let mut locks = Harness::new();
        let [tab] = locks.clients();
        locks.request(tab, "a", Exclusive);
        assert_eq!(locks.request(tab, "a", Shared), [Queued(2)]);
    }

    /// Step 9: both must be true of one lock, "exclusive" and "name equal to name".
    #[test]
    fn a_shared_request_is_grantable_while_exclusive_locks_of_other_names_are_held() {
        let mut locks = Harness::new();
        let [tab] = locks.clients();
        locks.request(tab, "b", Exclusive);
        locks.request(tab, "a", Shared);
        assert_eq!(locks.request(tab, "a", Shared), [Granted(3)]);
    }
}

mod s2_6_termination_of_locks {
    use super::*;

    /// Step 1.
    #[test]
    fn each_request_of_the_agent_is_aborted() {
        let mut locks = Harness::new();
        let [tab, worker] = locks.clients();
        locks.request(worker, "a", Exclusive);
        locks.request(tab, "a", Exclusive);
        locks.request(worker, "b", Exclusive);
        locks.request(tab, "b", Shared);
        assert_eq!(locks.gone(tab), [Aborted(2), Aborted(4)]);
        assert_eq!((locks.held(), locks.pending()), (vec![1, 3], vec![]));
    }

    /// Step 1.1: aborting a request processes its queue (§4.3 step 7).
    #[test]
    fn what_an_aborted_request_stood_before_is_let_in() {
        let mut locks = Harness::new();
        let [tab, worker] = locks.clients();
        locks.request(worker, "a", Shared);
        locks.request(tab, "a", Exclusive);
        locks.request(worker, "a", Shared);
        assert_eq!(locks.gone(tab), [Aborted(2), Granted(3)]);
    }

    /// Step 2.
    #[test]
    fn each_lock_of_the_agent_is_released() {
        let mut locks = Harness::new();
        let [tab, worker] = locks.clients();
        locks.request(tab, "a", Exclusive);
        locks.request(worker, "b", Exclusive);
        locks.request(tab, "c", Shared);
        assert_eq!(locks.gone(tab), [Lost(1), Lost(3)]);
        assert_eq!(locks.held(), [2]);
    }

    /// Step 2.1: releasing a lock processes its queue (§4.2 step 7), before the next lock is
    /// released.
    #[test]
    fn what_a_released_lock_stood_before_is_let_in() {
        let mut locks = Harness::new();
        let [tab, worker] = locks.clients();
        locks.request(tab, "a", Exclusive);
        locks.request(tab, "b", Exclusive);
        locks.request(worker, "b", Exclusive);
        locks.request(worker, "a", Exclusive);
        assert_eq!(locks.gone(tab), [Lost(1), Granted(4), Lost(2), Granted(3)]);
    }

    /// Step 1 before step 2: in the other order the agent's own requests would be granted first.
    #[test]
    fn requests_are_aborted_before_locks_are_released() {
        let mut locks = Harness::new();
        let [tab, worker] = locks.clients();
        locks.request(tab, "a", Exclusive);
        locks.request(tab, "a", Exclusive);
        locks.request(worker, "a", Exclusive);
        assert_eq!(locks.gone(tab), [Aborted(2), Lost(1), Granted(3)]);
    }

    /// Step 1.1 grants (§4.4), step 2 then meets a lock and no longer a request.
    #[test]
    fn a_request_of_the_agent_that_its_own_abort_lets_in_is_released_with_its_locks() {
        let mut locks = Harness::new();
        let [tab, worker] = locks.clients();
        locks.request(worker, "a", Shared);
        locks.request(tab, "a", Exclusive);
        locks.request(tab, "a", Shared);
        assert_eq!(locks.gone(tab), [Aborted(2), Granted(3), Lost(3)]);
        assert_eq!(locks.held(), [1]);
    }

    /// "with agent equal to agent".
    #[test]
    fn what_other_agents_hold_and_wait_for_stays() {
        let mut locks = Harness::new();
        let [tab, worker, idle] = locks.clients();
        locks.request(worker, "a", Exclusive);
        locks.request(worker, "a", Exclusive);
        assert_eq!(locks.gone(tab), []);
        assert_eq!(locks.gone(idle), []);
        assert_eq!((locks.held(), locks.pending()), (vec![1], vec![2]));
    }

    #[test]
    fn a_terminated_agent_makes_no_more_requests_and_terminates_once() {
        let mut locks = Harness::new();
        let [tab] = locks.clients();
        locks.gone(tab);
        let refused = locks.refused(tab, ("a", Exclusive), Options::default());
        assert_eq!(refused, RequestError::UnknownClient);
        let mut effects = Vec::new();
        assert!(!locks.manager().client_gone(tab, &mut effects));
        assert_eq!(effects, []);
        // A new agent in the old one's place is another agent.
        let [next] = locks.clients();
        assert_ne!(next, tab);
        assert_eq!(locks.refused(tab, ("a", Exclusive), Options::default()), RequestError::UnknownClient);
        assert_eq!(locks.request(next, "a", Exclusive), [Granted(1)]);
    }
}

mod s3_2_1_the_request_method {
    use super::*;

    const STEAL: Options =
        Options { steal: true, if_available: false, nested_in: None, refuse_deadlock: false };
    const STEAL_IF_AVAILABLE: Options = Options { if_available: true, ..STEAL };

    fn unsupported(error: RequestError) -> &'static str {
        match error {
            RequestError::Unsupported(why) => why,
            other => panic!("refused for another reason: {other}"),
        }
    }

    /// Step 5.
    #[test]
    fn a_name_that_starts_with_a_hyphen_minus_is_refused() {
        let mut locks = Harness::new();
        let [tab] = locks.clients();
        for name in ["-", "-a", "--"] {
            let refused = locks.refused(tab, (name, Exclusive), Options::default());
            assert_eq!(refused, RequestError::ReservedName);
        }
    }

    /// Step 5: U+002D, and as the first code unit only.
    #[test]
    fn a_hyphen_elsewhere_and_other_dashes_are_names_like_any_other() {
        let mut locks = Harness::new();
        let [tab] = locks.clients();
        for (i, name) in ["a-", "a-b", " -", "\u{2010}", "\u{2212}", "\u{ff0d}"].into_iter().enumerate() {
            assert_eq!(locks.request(tab, name, Exclusive), [Granted(i + 1)]);
        }
    }

    /// Step 6.
    #[test]
    fn steal_and_if_available_together_are_refused() {
        let mut locks = Harness::new();
        let [tab] = locks.clients();
        locks.request(tab, "held", Exclusive);
        for name in ["held", "free"] {
            let refused = locks.refused(tab, (name, Exclusive), STEAL_IF_AVAILABLE);
            assert!(unsupported(refused).contains("if available"));
        }
    }

    /// Step 7.
    #[test]
    fn a_steal_that_is_not_exclusive_is_refused() {
        let mut locks = Harness::new();
        let [tab] = locks.clients();
        locks.request(tab, "held", Shared);
        for name in ["held", "free"] {
            let refused = locks.refused(tab, (name, Shared), STEAL);
            assert!(unsupported(refused).contains("exclusive"));
        }
    }

    /// Steps 5, 6 and 7 come in this order: the first that applies is the reason.
    #[test]
    fn the_reasons_for_a_refusal_are_looked_at_in_order() {
        let mut locks = Harness::new();
        let [tab] = locks.clients();
        let refused = locks.refused(tab, ("-a", Shared), STEAL_IF_AVAILABLE);
        assert_eq!(refused, RequestError::ReservedName);
        let refused = locks.refused(tab, ("a", Shared), STEAL_IF_AVAILABLE);
        assert!(unsupported(refused).contains("if available"));
    }

    /// Steps 5 to 7 are available alone, for a host with further steps between these and the
    /// request.
    #[test]
    fn what_a_request_would_be_refused_for_can_be_asked_before() {
        let mut locks = Harness::new();
        let [tab] = locks.clients();
        let cases = [
            ("-a", Exclusive, Options::default()),
            ("a", Exclusive, STEAL_IF_AVAILABLE),
            ("a", Shared, STEAL),
            ("-a", Shared, STEAL_IF_AVAILABLE),
        ];
        for (name, mode, options) in cases {
            assert_eq!(validate(&[(name, mode)], options), Err(locks.refused(tab, (name, mode), options)));
        }
        assert_eq!(validate(&[("a", Exclusive)], STEAL), Ok(()));
        assert_eq!(validate(&[("a", Shared)], Options { if_available: true, ..Options::default() }), Ok(()));
    }

    /// Steps 5 to 7 return before step 11 requests a lock.
    #[test]
    fn a_refused_request_leaves_no_trace() {
        let mut locks = Harness::new();
        let [tab, worker] = locks.clients();
        locks.request(tab, "a", Exclusive);
        locks.request(worker, "a", Shared);
        locks.refused(worker, ("a", Shared), STEAL);
        locks.refused(worker, ("-a", Exclusive), Options::default());
        // The harness has compared the snapshots; queries have no effect on what follows.
        assert_eq!(locks.queue("a"), [1, 2]);
        assert_eq!(locks.release(1), [Granted(2)]);
        assert_eq!(locks.gone(worker), [Lost(2)]);
    }
}

mod s4_1_request_a_lock {
    use super::*;

    /// Step 1.
    #[test]
    fn a_request_is_new_even_if_the_same_agent_asks_for_the_same_again() {
        let mut locks = Harness::new();
        let [tab] = locks.clients();
        locks.request(tab, "a", Exclusive);
        assert_eq!(locks.request(tab, "a", Exclusive), [Queued(2)]);
        assert_eq!(locks.request(tab, "a", Exclusive), [Queued(3)]);
        assert_ne!(locks.id(2), locks.id(3));
    }

    /// Steps 3.1 to 3.3.
    #[test]
    fn the_queue_is_that_of_the_name_and_the_held_lock_set_that_of_the_manager() {
        let mut locks = Harness::new();
        let [tab] = locks.clients();
        locks.request(tab, "a", Exclusive);
        locks.request(tab, "b", Exclusive);
        locks.request(tab, "b", Exclusive);
        assert_eq!((locks.queue("a"), locks.queue("b")), (vec![1], vec![2, 3]));
        assert_eq!(locks.held(), [1, 2]);
    }

    /// Steps 3.4.1.1.1 and 3.4.1.1.2.
    #[test]
    fn a_steal_removes_the_held_lock_and_tells_its_holder() {
        let mut locks = Harness::new();
        let [tab, worker] = locks.clients();
        locks.request(tab, "a", Exclusive);
        assert_eq!(locks.steal(worker, "a"), [Stolen(1), Granted(2)]);
        assert_eq!(locks.held(), [2]);
    }

    /// Step 3.4.1: "for each lock of held", in the order in which the locks were appended to the
    /// set.
    #[test]
    fn a_steal_removes_every_shared_lock_of_the_name() {
        let mut locks = Harness::new();
        let [tab, worker] = locks.clients();
        locks.request(tab, "a", Shared);
        locks.request(worker, "a", Shared);
        locks.request(tab, "a", Shared);
        assert_eq!(locks.steal(worker, "a"), [Stolen(1), Stolen(2), Stolen(3), Granted(4)]);
    }

    /// Step 3.4.1.1: "if lock's name is name".
    #[test]
    fn a_steal_leaves_locks_of_other_names_alone() {
        let mut locks = Harness::new();
        let [tab, worker] = locks.clients();
        locks.request(tab, "a", Exclusive);
        locks.request(tab, "b", Exclusive);
        locks.request(tab, "c", Shared);
        assert_eq!(locks.steal(worker, "a"), [Stolen(1), Granted(4)]);
        assert_eq!(locks.held(), [2, 3, 4]);
    }

    /// Step 3.4.1 with nothing to remove.
    #[test]
    fn a_steal_of_what_nobody_holds_is_granted() {
        let mut locks = Harness::new();
        let [tab] = locks.clients();
        assert_eq!(locks.steal(tab, "a"), [Granted(1)]);
    }

    /// Step 3.4.1: the set holds the thief's own agent's locks too.
    #[test]
    fn an_agent_may_steal_from_itself() {
        let mut locks = Harness::new();
        let [tab] = locks.clients();
        locks.request(tab, "a", Exclusive);
        assert_eq!(locks.steal(tab, "a"), [Stolen(1), Granted(2)]);
    }

    /// Step 3.4.1: a lock that was stolen is a lock like any other.
    #[test]
    fn a_thief_may_be_robbed() {
        let mut locks = Harness::new();
        let [tab, worker] = locks.clients();
        locks.steal(tab, "a");
        assert_eq!(locks.steal(worker, "a"), [Stolen(1), Granted(2)]);
        assert_eq!(locks.held(), [2]);
    }

    /// Step 3.4.2.
    #[test]
    fn a_steal_goes_before_all_that_wait() {
        let mut locks = Harness::new();
        let [tab, worker] = locks.clients();
        locks.request(tab, "a", Exclusive);
        locks.request(tab, "a", Exclusive);
        locks.request(tab, "a", Shared);
        assert_eq!(locks.steal(worker, "a"), [Stolen(1), Granted(4)]);
        assert_eq!(locks.queue("a"), [4, 2, 3]);
    }

    /// Step 3.4.2: a request is prepended, those that wait are neither removed nor reordered.
    #[test]
    fn who_waited_before_a_steal_waits_on_in_the_same_order() {
        let mut locks = Harness::new();
        let [tab, worker] = locks.clients();
        locks.request(tab, "a", Exclusive);
        locks.request(tab, "a", Exclusive);
        locks.request(tab, "a", Exclusive);
        locks.steal(worker, "a");
        assert_eq!(locks.release(4), [Granted(2)]);
        assert_eq!(locks.release(2), [Granted(3)]);
    }

    /// Step 3.5.1, §2.5 steps 8 and 9.
    #[test]
    fn a_request_if_available_is_refused_while_a_lock_in_its_way_is_held() {
        let mut locks = Harness::new();
        let [tab, worker] = locks.clients();
        locks.request(tab, "a", Exclusive);
        assert_eq!(locks.if_available(worker, "a", Exclusive), [Unavailable(2)]);
        assert_eq!(locks.if_available(worker, "a", Shared), [Unavailable(3)]);
        locks.request(tab, "b", Shared);
        assert_eq!(locks.if_available(worker, "b", Exclusive), [Unavailable(5)]);
    }

    /// Step 3.5.1, §2.5 step 7.
    #[test]
    fn a_request_if_available_is_refused_while_another_waits() {
        let mut locks = Harness::new();
        let [tab, worker] = locks.clients();
        locks.request(tab, "a", Shared);
        locks.request(tab, "a", Exclusive);
        assert_eq!(locks.if_available(worker, "a", Shared), [Unavailable(3)]);
    }

    /// Step 3.5.1.1.2: "abort these steps", or the request would be enqueued after all.
    #[test]
    fn a_request_if_available_that_is_refused_is_not_enqueued() {
        let mut locks = Harness::new();
        let [tab, worker] = locks.clients();
        locks.request(tab, "a", Exclusive);
        let before = locks.query();
        assert_eq!(locks.if_available(worker, "a", Exclusive), [Unavailable(2)]);
        assert_eq!(locks.query(), before);
        assert_eq!(locks.release(1), []);
        assert_eq!(locks.query(), Snapshot::default());
    }

    /// Steps 3.5.1 and 3.5.2.
    #[test]
    fn a_request_if_available_that_is_grantable_is_granted() {
        let mut locks = Harness::new();
        let [tab, worker] = locks.clients();
        assert_eq!(locks.if_available(tab, "a", Exclusive), [Granted(1)]);
        assert_eq!(locks.if_available(tab, "b", Shared), [Granted(2)]);
        assert_eq!(locks.if_available(worker, "b", Shared), [Granted(3)]);
    }

    /// Step 3.5.1: `ifAvailable` means nothing any more once the request is a lock.
    #[test]
    fn a_lock_that_was_available_makes_others_wait_as_any_lock_does() {
        let mut locks = Harness::new();
        let [tab, worker] = locks.clients();
        locks.if_available(tab, "a", Exclusive);
        assert_eq!(locks.request(worker, "a", Exclusive), [Queued(2)]);
        assert_eq!(locks.release(1), [Granted(2)]);
    }

    /// Step 3.5.2.
    #[test]
    fn a_request_is_enqueued_at_the_end() {
        let mut locks = Harness::new();
        let [tab, worker] = locks.clients();
        locks.request(tab, "a", Exclusive);
        locks.request(worker, "a", Exclusive);
        locks.request(tab, "a", Exclusive);
        locks.request(worker, "a", Exclusive);
        assert_eq!(locks.queue("a"), [1, 2, 3, 4]);
        assert_eq!(locks.release(1), [Granted(2)]);
        assert_eq!(locks.release(2), [Granted(3)]);
        assert_eq!(locks.release(3), [Granted(4)]);
    }

    /// Step 3.6: nothing more has to happen for a grantable request to be granted.
    #[test]
    fn a_request_processes_its_queue() {
        let mut locks = Harness::new();
        let [tab] = locks.clients();
        assert_eq!(locks.request(tab, "a", Shared), [Granted(1)]);
        assert_eq!(locks.request(tab, "a", Shared), [Granted(2)]);
    }

    /// Step 4.
    #[test]
    fn the_request_is_returned() {
        let mut locks = Harness::new();
        let [tab, worker] = locks.clients();
        locks.request(tab, "a", Exclusive);
        locks.request(worker, "a", Shared);
        let request = locks.get(2);
        assert_eq!((request.id(), request.client(), request.token()), (locks.id(2), worker, None));
    }
}

mod s4_2_release_a_lock {
    use super::*;

    /// Step 6.
    #[test]
    fn the_lock_is_removed_from_the_held_lock_set() {
        let mut locks = Harness::new();
        let [tab] = locks.clients();
        locks.request(tab, "a", Exclusive);
        locks.request(tab, "b", Exclusive);
        assert_eq!(locks.release(1), []);
        assert_eq!(locks.held(), [2]);
        assert_eq!(locks.request(tab, "a", Exclusive), [Granted(3)]);
    }

    /// Step 6: of several locks of one name, the one that is released and no other.
    #[test]
    fn other_shared_locks_of_the_name_are_still_held() {
        let mut locks = Harness::new();
        let [tab] = locks.clients();
        for _ in 0..3 {
            locks.request(tab, "a", Shared);
        }
        assert_eq!(locks.release(2), []);
        assert_eq!(locks.held(), [1, 3]);
        assert_eq!(locks.if_available(tab, "a", Exclusive), [Unavailable(4)]);
    }

    /// Step 7.
    #[test]
    fn the_queue_is_processed() {
        let mut locks = Harness::new();
        let [tab, worker] = locks.clients();
        locks.request(tab, "a", Exclusive);
        locks.request(worker, "a", Exclusive);
        assert_eq!(locks.release(1), [Granted(2)]);
    }

    /// Step 7, §2.5 step 8: in whichever order the shared locks are released.
    #[test]
    fn an_exclusive_request_is_granted_when_the_last_shared_lock_is_released() {
        for order in [[1, 2, 3], [3, 2, 1], [2, 3, 1]] {
            let mut locks = Harness::new();
            let [tab, worker] = locks.clients();
            for _ in 0..3 {
                locks.request(tab, "a", Shared);
            }
            locks.request(worker, "a", Exclusive);
            assert_eq!(locks.release(order[0]), []);
            assert_eq!(locks.release(order[1]), []);
            assert_eq!(locks.release(order[2]), [Granted(4)]);
        }
    }

    /// Steps 3 to 5 and 7: "the lock request queue … for name".
    #[test]
    fn only_the_queue_of_the_locks_own_name_is_processed() {
        let mut locks = Harness::new();
        let [tab, worker] = locks.clients();
        locks.request(tab, "a", Exclusive);
        locks.request(tab, "b", Exclusive);
        locks.request(worker, "b", Exclusive);
        locks.request(worker, "a", Exclusive);
        assert_eq!(locks.release(1), [Granted(4)]);
        assert_eq!(locks.pending(), [3]);
    }

    /// Step 6: there is nothing to remove.
    #[test]
    fn a_lock_is_released_once_and_a_request_that_waits_is_not_a_lock() {
        let mut locks = Harness::new();
        let [tab, worker] = locks.clients();
        locks.request(tab, "a", Exclusive);
        locks.request(worker, "a", Exclusive);
        locks.release_in_vain(2);
        assert_eq!(locks.release(1), [Granted(2)]);
        locks.release_in_vain(1);
    }
}

mod s4_3_abort_a_request {
    use super::*;

    /// Step 6.
    #[test]
    fn the_request_is_removed_from_its_queue() {
        let mut locks = Harness::new();
        let [tab, worker] = locks.clients();
        locks.request(tab, "a", Exclusive);
        locks.request(worker, "a", Exclusive);
        locks.request(tab, "a", Exclusive);
        assert_eq!(locks.abort(2), [Aborted(2)]);
        assert_eq!(locks.queue("a"), [1, 3]);
        assert_eq!(locks.release(1), [Granted(3)]);
    }

    /// Step 7: the request behind the aborted one may have become grantable.
    #[test]
    fn shared_requests_behind_an_aborted_exclusive_one_join_the_shared_locks_before_it() {
        let mut locks = Harness::new();
        let [tab, worker] = locks.clients();
        locks.request(tab, "a", Shared);
        locks.request(worker, "a", Exclusive);
        locks.request(tab, "a", Shared);
        locks.request(worker, "a", Shared);
        locks.request(tab, "a", Exclusive);
        locks.request(tab, "a", Shared);
        assert_eq!(locks.abort(2), [Aborted(2), Granted(3), Granted(4)]);
        assert_eq!(locks.pending(), [5, 6]);
    }

    /// Step 7, §2.5 step 7: requests behind the first in the queue are not granted yet.
    #[test]
    fn an_abort_further_back_grants_nothing_but_is_felt_later() {
        let mut locks = Harness::new();
        let [tab, worker] = locks.clients();
        locks.request(tab, "a", Exclusive);
        locks.request(worker, "a", Shared);
        locks.request(tab, "a", Exclusive);
        locks.request(worker, "a", Shared);
        assert_eq!(locks.abort(3), [Aborted(3)]);
        assert_eq!(locks.release(1), [Granted(2), Granted(4)]);
    }

    /// Step 6: the last of a queue is removed as well as the first.
    #[test]
    fn who_asks_after_the_last_in_the_queue_was_aborted_stands_behind_the_rest() {
        let mut locks = Harness::new();
        let [tab, worker] = locks.clients();
        locks.request(tab, "a", Shared);
        locks.request(worker, "a", Exclusive);
        assert_eq!(locks.abort(2), [Aborted(2)]);
        assert_eq!(locks.request(worker, "a", Shared), [Granted(3)]);
        assert_eq!(locks.request(worker, "a", Exclusive), [Queued(4)]);
    }

    /// Steps 2 to 5 and 7.
    #[test]
    fn only_the_queue_of_the_requests_own_name_is_processed() {
        let mut locks = Harness::new();
        let [tab, worker] = locks.clients();
        for name in ["a", "b"] {
            locks.request(tab, name, Shared);
            locks.request(worker, name, Exclusive);
            locks.request(tab, name, Shared);
        }
        assert_eq!(locks.abort(2), [Aborted(2), Granted(3)]);
        assert_eq!(locks.pending(), [5, 6]);
    }

    /// Step 6: §4.4 step 2.2 took a granted request out of the queue, so there is nothing to
    /// remove.
    #[test]
    fn a_granted_request_is_past_aborting() {
        let mut locks = Harness::new();
        let [tab, worker] = locks.clients();
        locks.request(tab, "a", Exclusive);
        locks.request(worker, "a", Exclusive);
        locks.abort_in_vain(1);
        locks.release(1);
        locks.abort_in_vain(2);
        assert_eq!(locks.held(), [2]);
    }

    #[test]
    fn a_request_is_aborted_once_and_is_never_granted_afterwards() {
        let mut locks = Harness::new();
        let [tab, worker] = locks.clients();
        locks.request(tab, "a", Exclusive);
        locks.request(worker, "a", Exclusive);
        locks.abort(2);
        locks.abort_in_vain(2);
        locks.release_in_vain(2);
        assert_eq!(locks.release(1), []);
    }
}

mod s4_4_process_a_lock_request_queue {
    use super::*;

    /// Step 2.
    #[test]
    fn requests_are_looked_at_in_the_order_of_the_queue() {
        let mut locks = Harness::new();
        let [tab, worker] = locks.clients();
        locks.request(tab, "a", Exclusive);
        for client in [worker, tab, worker, tab] {
            locks.request(client, "a", Shared);
        }
        assert_eq!(locks.release(1), [Granted(2), Granted(3), Granted(4), Granted(5)]);
    }

    /// Step 2.1: "if request is not grantable, then return".
    #[test]
    fn the_first_request_that_is_not_grantable_ends_it() {
        let mut locks = Harness::new();
        let [tab] = locks.clients();
        locks.request(tab, "a", Exclusive);
        locks.request(tab, "a", Shared);
        locks.request(tab, "a", Shared);
        locks.request(tab, "a", Exclusive);
        locks.request(tab, "a", Shared);
        assert_eq!(locks.release(1), [Granted(2), Granted(3)]);
        assert_eq!(locks.pending(), [4, 5]);
    }

    /// Steps 2.1 and 2.13: the lock that was just appended stands in the way of the next request.
    #[test]
    fn of_two_exclusive_requests_one_is_granted() {
        let mut locks = Harness::new();
        let [tab] = locks.clients();
        locks.request(tab, "a", Shared);
        locks.request(tab, "a", Exclusive);
        locks.request(tab, "a", Exclusive);
        assert_eq!(locks.release(1), [Granted(2)]);
        assert_eq!(locks.pending(), [3]);
    }

    /// Step 2.2.
    #[test]
    fn a_granted_request_is_no_longer_in_the_queue() {
        let mut locks = Harness::new();
        let [tab] = locks.clients();
        locks.request(tab, "a", Exclusive);
        locks.request(tab, "a", Exclusive);
        assert_eq!(locks.pending(), [2]);
        locks.release(1);
        assert_eq!(locks.pending(), []);
    }

    /// Steps 2.3 to 2.7 and 2.12.
    #[test]
    fn the_lock_has_the_agent_name_and_mode_of_its_request() {
        let mut locks = Harness::new();
        let [tab, worker] = locks.clients();
        locks.request(tab, "a", Exclusive);
        locks.request(worker, "a", Shared);
        let pending = locks.query().pending;
        locks.release(1);
        assert_eq!(locks.query().held, pending);
    }

    /// Step 2.13.
    #[test]
    fn the_lock_is_appended_to_the_held_lock_set() {
        let mut locks = Harness::new();
        let [tab] = locks.clients();
        locks.request(tab, "b", Exclusive);
        locks.request(tab, "a", Exclusive);
        locks.request(tab, "a", Exclusive);
        locks.release(2);
        assert_eq!(locks.held(), [1, 3]);
    }

    /// Step 2.13: "append" makes the order of the set that of the grants, as §4.1 step 3.4.1 then
    /// meets it. #2 came before #3 and is granted after it; a steal of both names tells the two
    /// orders apart.
    #[test]
    fn the_held_lock_set_is_in_the_order_of_grants() {
        let mut locks = Harness::new();
        let [tab] = locks.clients();
        locks.request(tab, "a", Exclusive);
        locks.request(tab, "a", Exclusive);
        locks.request(tab, "b", Exclusive);
        locks.release(1);
        let both = [("a", Exclusive), ("b", Exclusive)];
        assert_eq!(locks.steal_all(tab, both), [Stolen(3), Stolen(2), Granted(4)]);
    }

    /// Step 2, from one lock to the next until no request waits.
    #[test]
    fn a_queue_drains_to_its_end() {
        let mut locks = Harness::new();
        let [tab] = locks.clients();
        for mode in [Exclusive, Shared, Shared, Exclusive, Exclusive, Shared] {
            locks.request(tab, "a", mode);
        }
        assert_eq!(locks.release(1), [Granted(2), Granted(3)]);
        assert_eq!(locks.release(2), []);
        assert_eq!(locks.release(3), [Granted(4)]);
        assert_eq!(locks.release(4), [Granted(5)]);
        assert_eq!(locks.release(5), [Granted(6)]);
        assert_eq!(locks.release(6), []);
        assert_eq!(locks.query(), Snapshot::default());
    }
}

mod s4_5_snapshot_the_lock_state {
    use super::*;

    /// Steps 2 and 4.
    #[test]
    fn a_manager_without_locks_and_requests_has_two_empty_lists() {
        assert_eq!(Harness::new().query(), Snapshot { held: vec![], pending: vec![] });
    }

    /// Steps 3.1.1, 5.1 and 6.
    #[test]
    fn each_lock_and_each_request_shows_its_name_mode_and_client() {
        let mut locks = Harness::new();
        let [tab, worker] = locks.clients();
        locks.request(tab, "a", Shared);
        locks.request(worker, "a", Exclusive);
        let lock = LockInfo { name: Name::from("a"), mode: Shared, client: tab, request: locks.id(1) };
        let request =
            LockInfo { name: Name::from("a"), mode: Exclusive, client: worker, request: locks.id(2) };
        assert_eq!(locks.query(), Snapshot { held: vec![lock], pending: vec![request] });
    }

    /// Steps 3 and 3.1: the requests of every queue.
    #[test]
    fn pending_has_the_requests_of_every_queue() {
        let mut locks = Harness::new();
        let [tab] = locks.clients();
        for name in ["a", "b", "c"] {
            locks.request(tab, name, Exclusive);
            locks.request(tab, name, Exclusive);
        }
        assert_eq!(locks.pending(), [2, 4, 6]);
    }

    /// "For any given resource, the snapshot … will return the requests in the order in which they
    /// were made."
    #[test]
    fn the_requests_for_a_name_are_in_the_order_in_which_they_were_made() {
        let mut locks = Harness::new();
        let [tab, worker] = locks.clients();
        locks.request(tab, "a", Exclusive);
        locks.request(tab, "b", Exclusive);
        // A1, B1, A2, B2 of the draft, by clients whose own order is another one.
        for (client, name) in [(worker, "a"), (tab, "b"), (tab, "a"), (worker, "b")] {
            locks.request(client, name, Exclusive);
        }
        let pending = locks.query().pending;
        let of = |name: &str| -> Vec<usize> {
            pending.iter().filter(|info| info.name == *name).map(|info| locks.number(info.request)).collect()
        };
        assert_eq!((of("a"), of("b")), (vec![3, 5], vec![4, 6]));
    }

    /// Step 5, of the locks that were granted after a wait as of those that were granted at once.
    #[test]
    fn held_has_every_lock() {
        let mut locks = Harness::new();
        let [tab] = locks.clients();
        locks.request(tab, "a", Exclusive);
        locks.request(tab, "a", Shared);
        locks.request(tab, "a", Shared);
        locks.request(tab, "b", Exclusive);
        locks.release(1);
        assert_eq!(locks.held(), [2, 3, 4]);
    }

    /// The draft promises no order of held locks; the engine's is that of arrival, so that states
    /// compare.
    #[test]
    fn two_snapshots_of_one_state_are_equal_however_it_came_about() {
        let mut locks = Harness::new();
        let [tab] = locks.clients();
        locks.request(tab, "a", Exclusive);
        locks.request(tab, "b", Exclusive);
        locks.request(tab, "a", Exclusive);
        locks.steal(tab, "b");
        locks.release(1);
        assert_eq!(locks.query(), locks.query());
        assert_eq!(locks.held(), [3, 4]);
    }

    #[test]
    fn a_snapshot_changes_nothing() {
        let mut locks = Harness::new();
        let [tab] = locks.clients();
        locks.request(tab, "a", Exclusive);
        locks.request(tab, "a", Exclusive);
        for _ in 0..3 {
            locks.query();
        }
        assert_eq!(locks.release(1), [Granted(2)]);
    }
}
