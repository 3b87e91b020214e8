//! Deadlock reports, which follow declared nesting: a waiting request points at what blocks it, a
//! live request at every live request nested in it, and a cycle is told as *these wait for each
//! other if each awaits its nested request*.
//!
//! In the harness's short form a cycle is its numbers, each waiting for the next and the last for the first. It
//! starts with a nested request: [3, 2, 4, 1] says that #3 waits behind #2, in which #4 is nested, which waits
//! behind #1, in which #3 is nested.

mod harness;

use harness::Did::*;
use harness::Harness;
use lockkeeper_core::{
    Deadlock, Effect, Manager,
    Mode::{Exclusive, Shared},
    Options, Outcome, RequestError, RequestId, Step, WaitsFor,
};

mod a_cycle {
    use super::*;

    /// §5.1, example 3: script 1 takes A then B, script 2 takes B then A.
    fn example_3() -> Harness {
        let mut locks = Harness::new();
        let [one, two] = locks.clients();
        locks.request(one, "A", Exclusive);
        locks.request(two, "B", Exclusive);
        assert_eq!(locks.request_within(1, one, "B", Exclusive), [Queued(3)]);
        assert_eq!(locks.deadlocks(), [[]; 0]);
        assert_eq!(locks.request_within(2, two, "A", Exclusive), [Queued(4)]);
        locks
    }

    #[test]
    fn of_two_who_take_two_names_in_opposite_order() {
        assert_eq!(example_3().deadlocks(), [[3, 2, 4, 1]]);
    }

    #[test]
    fn tells_of_each_request_whose_it_is_and_how_it_waits_for_the_next() {
        let mut locks = example_3();
        let [one, two] = [1, 2].map(|number| locks.get(number).client());
        let step = |number, client, waits_for| Step { request: locks.id(number), client, waits_for };
        let cycle = vec![
            step(3, one, WaitsFor::Name("B".into())),
            step(2, two, WaitsFor::Nested),
            step(4, two, WaitsFor::Name("A".into())),
            step(1, one, WaitsFor::Nested),
        ];
        assert_eq!(locks.manager().deadlocks(), [Deadlock { cycle, left_out: 0 }]);
    }

    #[test]
    fn reads_as_a_sentence() {
        let mut locks = example_3();
        assert_eq!(
            locks.manager().deadlocks()[0].to_string(),
            "deadlock, if each awaits its nested request: \
             request 2 of client-0 waits for \"B\" behind request 1 of client-1; \
             request 3 is nested in request 1; \
             request 3 of client-1 waits for \"A\" behind request 0 of client-0; \
             request 2 is nested in request 0"
        );
    }

    #[test]
    fn of_one_who_waits_for_what_he_holds() {
        let mut locks = Harness::new();
        let [tab] = locks.clients();
        locks.request(tab, "a", Exclusive);
        locks.request_within(1, tab, "a", Shared);
        assert_eq!(locks.deadlocks(), [[2, 1]]);
    }

    /// The upgrade that two readers cannot both have.
    #[test]
    fn of_two_who_hold_shared_and_want_exclusive() {
        let mut locks = Harness::new();
        let [one, two] = locks.clients();
        locks.request(one, "a", Shared);
        locks.request(two, "a", Shared);
        locks.request_within(1, one, "a", Exclusive);
        assert_eq!(locks.deadlocks(), [[3, 1]], "one reader alone waits for himself already");
        locks.request_within(2, two, "a", Exclusive);
        assert_eq!(locks.deadlocks().len(), 1, "of cycles that share a request, one");
        for number in 1..=4 {
            assert!(locks.deadlock(number).is_some(), "#{number} is in a cycle");
        }
    }

    #[test]
    fn of_three() {
        let mut locks = Harness::new();
        let [tab] = locks.clients();
        for name in ["a", "b", "c"] {
            locks.request(tab, name, Exclusive);
        }
        locks.request_within(1, tab, "b", Exclusive);
        locks.request_within(2, tab, "c", Shared);
        assert_eq!(locks.deadlocks(), [[]; 0]);
        locks.request_within(3, tab, "a", Exclusive);
        assert_eq!(locks.deadlocks(), [[4, 2, 5, 3, 6, 1]]);
    }

    #[test]
    fn through_one_name_of_a_scope_that_is_held_and_one_that_waits() {
        let mut locks = Harness::new();
        let [tab] = locks.clients();
        locks.request_all(tab, [("a", Exclusive), ("b", Shared)]);
        locks.request(tab, "c", Exclusive);
        locks.request_all_within(1, tab, [("x", Exclusive), ("c", Shared)]);
        assert_eq!(locks.deadlocks(), [[]; 0]);
        locks.request_all_within(2, tab, [("b", Exclusive), ("y", Exclusive)]);
        assert_eq!(locks.deadlocks(), [[3, 2, 4, 1]]);
    }

    /// #2 holds nothing, but keeps its place for "a" while it waits for "b".
    #[test]
    fn through_a_scope_that_waits_itself() {
        let mut locks = Harness::new();
        let [tab] = locks.clients();
        locks.request(tab, "b", Exclusive);
        locks.request_all(tab, [("a", Exclusive), ("b", Exclusive)]);
        locks.request_within(1, tab, "a", Exclusive);
        assert_eq!(locks.deadlocks(), [[3, 2, 1]]);
    }

    /// Whether #2 is held does not matter: #1 may be awaiting it, and #2 awaits #3.
    #[test]
    fn through_a_nested_request_that_is_held() {
        let mut locks = Harness::new();
        let [tab] = locks.clients();
        locks.request(tab, "a", Exclusive);
        locks.request_within(1, tab, "b", Exclusive);
        locks.request_within(2, tab, "a", Exclusive);
        assert_eq!(locks.deadlocks(), [[2, 3, 1]]);
    }

    /// Each nesting is a separate step: #4 is not nested in #2.
    #[test]
    fn through_requests_nested_in_each_other() {
        let mut locks = Harness::new();
        let [tab] = locks.clients();
        locks.request(tab, "a", Exclusive);
        locks.request_within(1, tab, "b", Exclusive);
        locks.request_within(2, tab, "c", Exclusive);
        locks.request_within(3, tab, "a", Exclusive);
        assert_eq!(locks.deadlocks(), [[2, 3, 4, 1]]);
    }

    /// Not only the holder: every request before it.
    #[test]
    fn through_a_request_that_waits_in_between() {
        let mut locks = Harness::new();
        let [tab] = locks.clients();
        locks.request(tab, "a", Exclusive);
        locks.request(tab, "b", Exclusive);
        locks.request(tab, "a", Shared);
        // #4 waits for "b" inside #3, which waits for "a"; inside #2, the holder of "b", #5 waits behind #3.
        locks.request_within(3, tab, "b", Exclusive);
        assert_eq!(locks.deadlocks(), [[]; 0]);
        locks.request_within(2, tab, "a", Exclusive);
        assert_eq!(locks.deadlocks(), [[4, 2, 5, 3]]);
    }

    #[test]
    fn is_reported_beside_others_that_have_nothing_to_do_with_it() {
        let mut locks = Harness::new();
        let [tab] = locks.clients();
        locks.request(tab, "a", Exclusive);
        locks.request(tab, "b", Exclusive);
        locks.request_within(1, tab, "a", Exclusive);
        locks.request_within(2, tab, "b", Exclusive);
        assert_eq!(locks.deadlocks(), [[3, 1], [4, 2]]);
    }

    #[test]
    fn is_reported_again_in_the_same_words() {
        let mut locks = example_3();
        assert_eq!(locks.manager().deadlocks(), locks.manager().deadlocks());
        let reported = locks.manager().deadlocks();
        for number in [1, 2, 3, 4] {
            assert_eq!(locks.deadlock(number).as_ref(), Some(&reported[0]), "asked of #{number}");
        }
    }
}

mod through_a_long_queue {
    use super::*;

    #[test]
    fn only_the_two_ends_are_reported() {
        let mut locks = Harness::new();
        let [tab] = locks.clients();
        locks.request(tab, "a", Exclusive);
        for i in 0..200 {
            locks.request(tab, "a", if i % 3 == 0 { Exclusive } else { Shared });
        }
        locks.request_within(1, tab, "a", Exclusive);
        assert_eq!(locks.deadlocks(), [[202, 1]]);
    }

    /// Two shared requests do not wait for each other: the exclusive one between them has to be
    /// told.
    #[test]
    fn between_shared_ends_one_exclusive_request_is_reported() {
        let mut locks = Harness::new();
        let [tab] = locks.clients();
        locks.request(tab, "a", Shared);
        for i in 0..200 {
            locks.request(tab, "a", if i % 3 == 0 { Exclusive } else { Shared });
        }
        locks.request_within(1, tab, "a", Shared);
        let reported = locks.deadlocks();
        assert_eq!(reported.len(), 1);
        let [202, between, 1] = reported[0][..] else { panic!("three steps: {reported:?}") };
        let exclusive = locks.query().pending.into_iter().find(|info| locks.number(info.request) == between);
        assert_eq!(exclusive.map(|info| info.mode), Some(Exclusive));
    }

    /// Each queue is told by its ends; the queues are told apart.
    #[test]
    fn two_queues_are_two_steps_with_their_nestings_between() {
        let mut locks = Harness::new();
        let [tab] = locks.clients();
        locks.request(tab, "a", Exclusive);
        locks.request(tab, "b", Exclusive);
        for _ in 0..50 {
            locks.request(tab, "a", Exclusive);
            locks.request(tab, "b", Exclusive);
        }
        locks.request_within(1, tab, "b", Exclusive);
        locks.request_within(2, tab, "a", Exclusive);
        assert_eq!(locks.deadlocks(), [[103, 2, 104, 1]]);
    }
}

mod without_a_cycle_nothing_is_reported {
    use super::*;

    #[test]
    fn where_nothing_is_nested() {
        let mut locks = Harness::new();
        let [tab] = locks.clients();
        locks.request(tab, "a", Exclusive);
        locks.request(tab, "b", Exclusive);
        locks.request(tab, "b", Exclusive);
        locks.request(tab, "a", Exclusive);
        locks.request_all(tab, [("a", Exclusive), ("b", Shared)]);
        locks.request_all(tab, [("b", Shared), ("a", Shared)]);
        assert_eq!(locks.deadlocks(), [[]; 0]);
        assert_eq!(locks.deadlock(6), None);
    }

    #[test]
    fn where_all_nest_in_one_order() {
        let mut locks = Harness::new();
        let [one, two] = locks.clients();
        locks.request(one, "a", Exclusive);
        locks.request(two, "a", Exclusive);
        locks.request_within(1, one, "b", Exclusive);
        locks.request_within(2, two, "b", Exclusive);
        assert_eq!(locks.deadlocks(), [[]; 0]);
    }

    /// A shared request inside a shared lock of the same name is granted; no request waits.
    #[test]
    fn where_a_nested_request_is_shared_with_the_outer_one() {
        let mut locks = Harness::new();
        let [tab] = locks.clients();
        locks.request(tab, "a", Shared);
        assert_eq!(locks.request_within(1, tab, "a", Shared), [Granted(2)]);
        assert_eq!(locks.deadlocks(), [[]; 0]);
    }

    /// #3 and #4 stand side by side behind #1: #3 may be awaiting #4, but #4 does not wait for #3.
    #[test]
    fn of_two_shared_requests_that_wait_for_the_same() {
        let mut locks = Harness::new();
        let [tab] = locks.clients();
        locks.request(tab, "a", Exclusive);
        locks.request(tab, "b", Exclusive);
        locks.request_within(2, tab, "a", Shared);
        locks.request_within(3, tab, "a", Shared);
        assert_eq!(locks.deadlocks(), [[]; 0]);
    }

    /// A request that waits behind a cycle suffers from it, but is no part of it.
    #[test]
    fn of_a_request_that_only_waits_for_a_cycle() {
        let mut locks = Harness::new();
        let [tab, worker] = locks.clients();
        locks.request(tab, "a", Exclusive);
        locks.request_within(1, tab, "a", Exclusive);
        locks.request(worker, "a", Exclusive);
        assert_eq!(locks.deadlock(3), None);
        assert!(locks.deadlock(2).is_some());
        assert_eq!(locks.deadlocks(), [[2, 1]]);
    }

    /// "One that has ended means none."
    #[test]
    fn where_the_outer_request_had_ended() {
        let mut locks = Harness::new();
        let [tab] = locks.clients();
        locks.request(tab, "a", Exclusive);
        locks.steal(tab, "a");
        assert_eq!(locks.request_within(1, tab, "a", Exclusive), [Queued(3)]);
        assert_eq!(locks.deadlocks(), [[]; 0]);
        assert_eq!(locks.get(3).nested_in(), None);
    }

    /// The place of the ended request is another's now, with whom the nesting has nothing to do.
    #[test]
    fn where_another_took_the_place_of_the_outer_request() {
        let mut locks = Harness::new();
        let [tab] = locks.clients();
        locks.request(tab, "b", Exclusive);
        locks.release(1);
        locks.request(tab, "a", Exclusive);
        assert_eq!(locks.request_within(1, tab, "a", Exclusive), [Queued(3)]);
        assert_eq!(locks.deadlocks(), [[]; 0]);
    }
}

mod a_cycle_is_gone {
    use super::*;

    fn deadlocked() -> Harness {
        let mut locks = Harness::new();
        let [one, two] = locks.clients();
        locks.request(one, "a", Exclusive);
        locks.request(two, "b", Exclusive);
        locks.request_within(1, one, "b", Exclusive);
        locks.request_within(2, two, "a", Exclusive);
        assert_eq!(locks.deadlocks(), [[3, 2, 4, 1]]);
        locks
    }

    #[test]
    fn after_one_of_its_requests_is_aborted() {
        for number in [3, 4] {
            let mut locks = deadlocked();
            locks.abort(number);
            assert_eq!(locks.deadlocks(), [[]; 0]);
        }
    }

    #[test]
    fn after_one_of_its_locks_is_released() {
        let mut locks = deadlocked();
        assert_eq!(locks.release(1), [Granted(4)]);
        assert_eq!(locks.deadlocks(), [[]; 0]);
        assert_eq!(locks.get(3).nested_in(), None);
    }

    #[test]
    fn after_one_of_its_locks_is_stolen() {
        for name in ["a", "b"] {
            let mut locks = deadlocked();
            let [thief] = locks.clients();
            locks.steal(thief, name);
            assert_eq!(locks.deadlocks(), [[]; 0]);
        }
    }

    #[test]
    fn after_one_of_its_names_is_force_released() {
        let mut locks = deadlocked();
        assert_eq!(locks.force_release("b"), [Stolen(2), Granted(3)]);
        assert_eq!(locks.deadlocks(), [[]; 0]);
    }

    #[test]
    fn after_one_of_its_clients_is_gone() {
        let mut locks = deadlocked();
        let two = locks.get(2).client();
        assert_eq!(locks.gone(two), [Aborted(4), Lost(2), Granted(3)]);
        assert_eq!(locks.deadlocks(), [[]; 0]);
    }

    /// What is nested in one request is a list of its own, which loses members at both ends and
    /// between.
    #[test]
    fn only_when_the_last_nested_request_that_closes_it_is_gone() {
        for order in [[2, 3, 4], [4, 3, 2], [3, 2, 4], [3, 4, 2]] {
            let mut locks = Harness::new();
            let [tab] = locks.clients();
            locks.request(tab, "a", Exclusive);
            for _ in 0..3 {
                locks.request_within(1, tab, "a", Exclusive);
            }
            for number in order {
                assert!(locks.deadlock(number).is_some(), "#{number} is in a cycle");
                assert_eq!(locks.deadlocks().len(), 1);
                locks.abort(number);
            }
            assert_eq!(locks.deadlocks(), [[]; 0]);
        }
    }
}

mod a_request_that_wants_to_be_refused {
    use super::*;

    fn refusing(outer: Option<RequestId>) -> Options {
        Options { nested_in: outer, refuse_deadlock: true, ..Options::default() }
    }

    fn cycle(locks: &Harness, refused: RequestError, new: usize) -> Vec<usize> {
        let RequestError::Deadlock(deadlock) = refused else { panic!("refused because {refused}") };
        // The refused request has no number: it is not in the books. It is the one that the harness
        // does not know.
        let known = |step: &Step| (1..new).find(|&number| locks.id(number) == step.request).unwrap_or(new);
        deadlock.cycle.iter().map(known).collect()
    }

    #[test]
    fn is_refused_if_it_would_close_a_cycle_and_told_which() {
        let mut locks = Harness::new();
        let [one, two] = locks.clients();
        locks.request(one, "a", Exclusive);
        locks.request(two, "b", Exclusive);
        locks.request_within(1, one, "b", Exclusive);
        let outer = Some(locks.id(2));
        let refused = locks.refused(two, ("a", Exclusive), refusing(outer));
        assert_eq!(cycle(&locks, refused, 4), [3, 2, 4, 1]);
    }

    /// Not in a queue, not among what is nested, not in the client's list.
    #[test]
    fn leaves_no_trace_when_it_is_refused() {
        let mut locks = Harness::new();
        let [one, two] = locks.clients();
        locks.request(one, "a", Exclusive);
        let outer = Some(locks.id(1));
        let scope = [("b", Exclusive), ("a", Shared), ("c", Exclusive)];
        let refused = locks.refused(one, scope, refusing(outer));
        assert!(matches!(refused, RequestError::Deadlock(_)));
        assert_eq!(locks.request(two, "b", Exclusive), [Granted(2)]);
        assert_eq!(locks.request(two, "a", Exclusive), [Queued(3)]);
        assert_eq!(locks.deadlocks(), [[]; 0]);
        assert_eq!(locks.gone(one), [Lost(1), Granted(3)]);
    }

    #[test]
    fn waits_if_it_closes_no_cycle() {
        let mut locks = Harness::new();
        let [one, two] = locks.clients();
        locks.request(one, "a", Exclusive);
        locks.request(two, "b", Exclusive);
        let outer = Some(locks.id(1));
        assert_eq!(locks.ask(one, ("b", Exclusive), refusing(outer)), [Queued(3)]);
        assert_eq!(locks.ask(two, ("a", Exclusive), refusing(None)), [Queued(4)], "nested in nothing");
        assert_eq!(locks.release(2), [Granted(3)]);
    }

    /// A request does not close another's cycle by waiting behind it.
    #[test]
    fn waits_behind_a_cycle_that_was_there_before() {
        let mut locks = Harness::new();
        let [one, two] = locks.clients();
        locks.request(one, "a", Exclusive);
        locks.request_within(1, one, "a", Exclusive);
        locks.request(two, "b", Exclusive);
        let outer = Some(locks.id(3));
        assert_eq!(locks.ask(two, ("a", Exclusive), refusing(outer)), [Queued(4)]);
        assert_eq!(locks.deadlocks(), [[2, 1]]);
    }

    #[test]
    fn is_granted_or_unavailable_or_steals_before_any_cycle_is_looked_for() {
        let mut locks = Harness::new();
        let [tab] = locks.clients();
        locks.request(tab, "a", Exclusive);
        let outer = Some(locks.id(1));
        assert_eq!(locks.ask(tab, ("b", Exclusive), refusing(outer)), [Granted(2)]);
        let options = Options { if_available: true, ..refusing(outer) };
        assert_eq!(locks.ask(tab, ("a", Exclusive), options), [Unavailable(3)]);
        let options = Options { steal: true, ..refusing(outer) };
        assert_eq!(locks.ask(tab, ("a", Exclusive), options), [Stolen(1), Granted(4)]);
    }
}

mod nesting {
    use super::*;

    fn outer(locks: &Harness, number: usize) -> Option<usize> {
        locks.get(number).nested_in().map(|id| locks.number(id))
    }

    #[test]
    fn is_told_of_a_request_that_is_held_as_of_one_that_waits() {
        let mut locks = Harness::new();
        let [tab] = locks.clients();
        locks.request(tab, "a", Exclusive);
        locks.request(tab, "b", Exclusive);
        locks.request_within(1, tab, "c", Exclusive);
        locks.request_within(3, tab, "b", Exclusive);
        assert_eq!([1, 2, 3, 4].map(|number| outer(&locks, number)), [None, None, Some(1), Some(3)]);
    }

    /// A worker may do part of a tab's work.
    #[test]
    fn may_cross_clients() {
        let mut locks = Harness::new();
        let [tab, worker] = locks.clients();
        locks.request(tab, "a", Exclusive);
        locks.request_within(1, worker, "a", Exclusive);
        assert_eq!(locks.deadlocks(), [[2, 1]]);
        assert_eq!(locks.gone(tab), [Lost(1), Granted(2)]);
        assert_eq!(outer(&locks, 2), None);
    }

    /// The middle of three ends: the innermost is nested in nothing then, not in the outermost.
    #[test]
    fn ends_with_either_request() {
        let mut locks = Harness::new();
        let [tab] = locks.clients();
        locks.request(tab, "a", Exclusive);
        locks.request_within(1, tab, "b", Exclusive);
        locks.request_within(2, tab, "a", Exclusive);
        assert_eq!(locks.deadlocks(), [[2, 3, 1]]);
        locks.release(2);
        assert_eq!(outer(&locks, 3), None);
        assert_eq!(locks.deadlocks(), [[]; 0]);
        // Others who nest take the places that #2 left, and have nothing to do with #3.
        locks.request(tab, "c", Exclusive);
        locks.request_within(4, tab, "d", Exclusive);
        assert_eq!([3, 5].map(|number| outer(&locks, number)), [None, Some(4)]);
        assert_eq!(locks.release(1), [Granted(3)]);
        assert_eq!(outer(&locks, 5), Some(4));
    }
}

/// No assertion on time: a search that recursed would overflow the stack here, and one that were
/// quadratic would not come back.
mod a_search_among_many {
    use super::*;

    const MANY: usize = 100_000;

    struct Crowd {
        manager: Manager,
        client: lockkeeper_core::ClientId,
        effects: Vec<Effect>,
    }

    impl Crowd {
        fn new() -> Self {
            let mut manager: Manager = Manager::default();
            let client = manager.client().expect("within limits");
            Self { manager, client, effects: Vec::new() }
        }

        fn request(
            &mut self,
            scope: &[(&str, lockkeeper_core::Mode)],
            nested_in: Option<RequestId>,
        ) -> RequestId {
            let options = Options { nested_in, ..Options::default() };
            match self.manager.request(self.client, scope, options, (), &mut self.effects).expect("accepted")
            {
                Outcome::Granted { request, .. } | Outcome::Queued { request } => request,
                Outcome::Unavailable => panic!("nobody asked not to wait"),
            }
        }

        fn cycles(&self) -> Vec<Vec<RequestId>> {
            let requests = |deadlock: &Deadlock| deadlock.cycle.iter().map(|step| step.request).collect();
            self.manager.deadlocks().iter().map(requests).collect()
        }
    }

    #[test]
    fn shared_then_exclusive_waiters_each_with_a_nested_request() {
        let mut crowd = Crowd::new();
        let holder = crowd.request(&[("a", Exclusive)], None);
        for mode in [Shared, Exclusive] {
            for _ in 0..MANY {
                let waiter = crowd.request(&[("a", mode)], None);
                crowd.request(&[("b", Shared)], Some(waiter));
            }
        }
        assert_eq!(crowd.cycles(), [[]; 0]);
        let last = crowd.request(&[("a", Exclusive)], Some(holder));
        assert_eq!(crowd.cycles(), [[last, holder]]);
        assert!(crowd.manager.deadlock(holder).is_some());
    }

    #[test]
    fn shared_and_exclusive_waiters_in_turn_all_nested_in_the_holder() {
        let mut crowd = Crowd::new();
        let holder = crowd.request(&[("a", Exclusive)], None);
        let first = crowd.request(&[("a", Shared)], Some(holder));
        for _ in 0..MANY {
            crowd.request(&[("a", Exclusive)], Some(holder));
            crowd.request(&[("a", Shared)], Some(holder));
        }
        assert_eq!(crowd.cycles().len(), 1, "all share the holder");
        assert_eq!(crowd.manager.deadlock(first).unwrap().cycle.len(), 2);
    }

    /// Every request of the queue points back along the whole of it, and none of that is a cycle.
    #[test]
    fn a_queue_of_requests_nested_each_in_the_one_before() {
        let mut crowd = Crowd::new();
        let mut outer = None;
        for _ in 0..MANY {
            outer = Some(crowd.request(&[("a", Shared)], outer));
        }
        assert_eq!(crowd.cycles(), [[]; 0]);
        let innermost = crowd.request(&[("a", Exclusive)], outer);
        assert_eq!(crowd.cycles().len(), 1);
        assert!(crowd.manager.deadlock(innermost).is_some());
    }

    /// The innermost request closes a cycle with each of the others, and all of these share the one
    /// with its immediate outer request, which is found first.
    #[test]
    fn as_many_cycles_through_one_request_that_is_reported_already() {
        let mut crowd = Crowd::new();
        let mut outer = None;
        for _ in 0..MANY {
            outer = Some(crowd.request(&[("a", Shared)], outer));
        }
        let outer = crowd.request(&[("a", Shared), ("b", Exclusive)], outer);
        let innermost = crowd.request(&[("a", Exclusive), ("b", Exclusive)], Some(outer));
        assert_eq!(crowd.cycles().len(), 1);
        assert!(crowd.manager.deadlock(innermost).is_some());
    }

    #[test]
    fn a_ring_of_as_many_parties_is_reported_whole() {
        let mut crowd = Crowd::new();
        let names: Vec<String> = (0..MANY).map(|i| i.to_string()).collect();
        let outer: Vec<_> =
            names.iter().map(|name| crowd.request(&[(name.as_str(), Exclusive)], None)).collect();
        for (i, &outer) in outer.iter().enumerate() {
            let next = names[(i + 1) % MANY].as_str();
            crowd.request(&[(next, Exclusive)], Some(outer));
        }
        let cycles = crowd.cycles();
        assert_eq!(cycles.len(), 1);
        assert_eq!(cycles[0].len(), 2 * MANY);
    }

    #[test]
    fn a_request_is_refused_behind_as_many_waiters() {
        let mut crowd = Crowd::new();
        let holder = crowd.request(&[("a", Shared)], None);
        for _ in 0..MANY {
            crowd.request(&[("a", Exclusive)], None);
            crowd.request(&[("a", Shared)], None);
        }
        let options = Options { nested_in: Some(holder), refuse_deadlock: true, ..Options::default() };
        let Crowd { manager, client, effects } = &mut crowd;
        effects.clear();
        let refused = manager.request(*client, &[("a", Shared)], options, (), effects);
        let Err(RequestError::Deadlock(deadlock)) = refused else { panic!("refused: {refused:?}") };
        assert_eq!(deadlock.cycle.len(), 3);
        assert_eq!(*effects, []);
    }
}
