//! The forms in which a lock is given, and what the draft does not have: scopes, timeouts, nesting.

mod common;

use common::{manager, step};
use lockkeeper::{Cause, Error, Mode, WaitsFor};
use smol::future::{self, FutureExt};
use std::{pin::pin, sync::mpsc, thread, time::Duration};

const MOMENT: Duration = Duration::from_millis(5);

mod guards {
    use super::*;

    #[test]
    fn a_guard_releases_when_dropped_or_told_to() {
        future::block_on(async {
            let locks = manager();
            drop(locks.acquire("a").await.unwrap());
            locks.acquire("a").await.unwrap().release().unwrap();
            assert!(locks.query().await.unwrap().held.is_empty());
        });
    }

    #[test]
    fn a_blocked_thread_gets_the_lock_when_another_releases() {
        let locks = manager();
        let held = locks.acquire_blocking("a").unwrap();
        let (waits, waiting) = mpsc::channel();
        thread::scope(|scope| {
            scope.spawn(|| {
                waits.send(()).unwrap();
                locks.acquire_blocking("a").unwrap().release().unwrap();
            });
            waiting.recv().unwrap();
            held.release().unwrap();
        });
    }

    #[test]
    fn tokens_grow_over_releases_and_steals() {
        let locks = manager();
        let first = locks.acquire_blocking("a").unwrap();
        let thief = locks.request("a").steal().acquire_blocking().unwrap();
        assert!(thief.token() > first.token());
        drop(thief);
        let other = locks.acquire_blocking("b").unwrap();
        let third = locks.acquire_blocking("a").unwrap();
        assert!(third.token() > other.token());
    }

    #[test]
    fn lost_wakes_every_listener_and_tells_the_cause() {
        future::block_on(async {
            let locks = manager();
            let lock = locks.acquire("a").await.unwrap();
            let (mut one, mut two) = (pin!(lock.lost()), pin!(lock.lost()));
            assert!(step(&locks, one.as_mut()).await.is_none());
            assert!(step(&locks, two.as_mut()).await.is_none());
            let thief = thread::scope(|scope| {
                scope.spawn(|| locks.request("a").steal().acquire_blocking().unwrap()).join().unwrap()
            });
            assert_eq!(one.await, Cause::Stolen);
            assert_eq!(two.await, Cause::Stolen);
            locks.force_release("a").await.unwrap();
            assert_eq!(thief.lost().await, Cause::Stolen, "force release tells as a steal does");
        });
    }

    #[test]
    fn a_guard_tells_what_it_is() {
        let locks = manager();
        let lock = locks.request(["b", "a", "b"]).shared().acquire_blocking().unwrap();
        assert_eq!(lock.name(), "a");
        assert_eq!(lock.mode(), Mode::Shared);
        assert_eq!(lock.client_id(), locks.client_id());
        let scope = lock.scope();
        assert_eq!(scope, [("a".into(), Mode::Shared), ("b".into(), Mode::Shared)], "sorted, once each");
        let owned = lock.into_owned();
        assert_eq!(owned.name(), "a");
        locks.force_release_blocking("b").unwrap();
        assert_eq!((owned.scope(), owned.mode()), (scope, Mode::Shared), "also once it is broken");
    }
}

mod scopes {
    use super::*;

    #[test]
    fn a_scope_is_taken_whole_or_not_at_all() {
        future::block_on(async {
            let locks = manager();
            let b = locks.acquire("b").await.unwrap();
            let mut both = pin!(locks.acquire(["a", "b"]));
            assert!(step(&locks, both.as_mut()).await.is_none());
            assert!(locks.try_acquire("a").unwrap().is_none(), "the scope stands before");
            drop(b);
            let both = both.await.unwrap();
            assert_eq!(locks.query().await.unwrap().held.len(), 2, "a scope shows once per name");
            assert_eq!(locks.inspect().await.unwrap().held.len(), 1);
            drop(both);
        });
    }

    #[test]
    fn a_name_keeps_the_mode_it_came_with_and_exclusive_wins() {
        let locks = manager();
        let scope = vec![("a".to_string(), Mode::Exclusive), ("b".to_string(), Mode::Shared)];
        let lock = locks.request(&scope).shared().acquire_blocking().unwrap();
        assert_eq!(
            lock.scope().into_iter().map(|(_, mode)| mode).collect::<Vec<_>>(),
            [Mode::Exclusive, Mode::Shared]
        );
        assert_eq!(lock.mode(), Mode::Exclusive);
        let twice = [("c", Mode::Shared), ("c", Mode::Exclusive)];
        let lock = locks.acquire_blocking(twice).unwrap();
        assert_eq!(lock.scope().len(), 1);
        assert_eq!(lock.mode(), Mode::Exclusive);
    }

    #[test]
    fn an_empty_scope_is_an_error() {
        let locks = manager();
        let nothing: [&str; 0] = [];
        assert!(matches!(locks.acquire_blocking(nothing), Err(Error::EmptyScope)));
        assert_eq!(Error::EmptyScope.name(), "TypeError");
    }
}

mod timeouts {
    use super::*;

    #[test]
    fn a_request_times_out_and_leaves_the_queue() {
        future::block_on(async {
            let locks = manager();
            let _held = locks.acquire("a").await.unwrap();
            let late = locks.request("a").timeout(MOMENT).acquire().await;
            assert!(matches!(late, Err(Error::TimedOut)));
            assert!(locks.query().await.unwrap().pending.is_empty());
        });
    }

    #[test]
    fn what_is_to_be_had_at_once_needs_no_time() {
        let locks = manager();
        assert!(locks.request("a").timeout(Duration::ZERO).acquire_blocking().is_ok());
    }

    #[test]
    fn a_timeout_beyond_all_clocks_is_none() {
        let locks = manager();
        let held = locks.acquire_blocking("a").unwrap();
        thread::scope(|scope| {
            let waiting =
                scope.spawn(|| locks.request("a").timeout(Duration::MAX).acquire_blocking().map(drop));
            while locks.query_blocking().unwrap().pending.is_empty() {
                thread::yield_now();
            }
            held.release().unwrap();
            waiting.join().unwrap().unwrap();
        });
    }

    #[test]
    fn many_timeouts_fire_whatever_their_order() {
        future::block_on(async {
            let locks = manager();
            let _held = locks.acquire("a").await.unwrap();
            let requests = (0..50u64)
                .rev()
                .map(|i| locks.request("a").timeout(Duration::from_millis(i % 7)).acquire().boxed_local());
            for request in requests.collect::<Vec<_>>() {
                assert!(matches!(request.await, Err(Error::TimedOut)));
            }
        });
    }
}

mod auto_release {
    use super::*;

    #[test]
    fn the_lock_lives_while_what_waits_on_it_lives() {
        future::block_on(async {
            let locks = manager();
            let lock = locks.request("a").auto_release().await.unwrap();
            let one = lock.wait_until(async { 1 }).unwrap();
            let two = lock.wait_until(future::pending::<()>()).unwrap();
            let mut released = pin!(lock.released());
            drop(lock);
            assert_eq!(one.await, 1);
            assert!(step(&locks, released.as_mut()).await.is_none());
            assert!(locks.try_acquire("a").unwrap().is_none());
            drop(two);
            released.await.unwrap();
            assert!(locks.try_acquire("a").unwrap().is_some());
        });
    }

    #[test]
    fn a_future_that_is_done_has_given_its_share_back_though_it_still_exists() {
        future::block_on(async {
            let locks = manager();
            let lock = locks.request("a").auto_release().await.unwrap();
            let mut done = Box::pin(lock.wait_until(async {}).unwrap());
            drop(lock);
            done.as_mut().await;
            assert!(locks.try_acquire("a").unwrap().is_some());
        });
    }

    #[test]
    fn a_future_that_fails_releases_whatever_else_waits() {
        future::block_on(async {
            let locks = manager();
            let lock = locks.request(["b", "a"]).shared().auto_release().await.unwrap();
            let (scope, token) = (lock.scope(), lock.token());
            let waits = lock.wait_until(future::pending::<()>()).unwrap();
            let late = lock.wait_until(async { Err::<(), _>("too late") }).unwrap();
            let fine = lock.wait_until(async { Ok::<_, ()>(1) }).unwrap();
            let mut released = pin!(lock.released());
            assert_eq!(fine.await, Ok(1));
            assert!(step(&locks, released.as_mut()).await.is_none(), "an Ok is no failure");
            let failing = lock.wait_until(async { Err::<(), _>("no disk") }).unwrap();
            assert_eq!(failing.await, Err("no disk"));
            assert!(matches!(released.await, Err(Error::WaitFailed)));
            assert!(locks.try_acquire(["a", "b"]).unwrap().is_some());
            assert!(matches!(lock.wait_until(async {}).err(), Some(Error::WaitFailed)));
            assert_eq!((lock.scope(), lock.mode(), lock.token()), (scope, Mode::Shared, token));
            assert!(step(&locks, pin!(lock.lost())).await.is_none(), "it was neither stolen nor lost");
            let next = locks.acquire("a").await.unwrap();
            assert_eq!(late.await, Err("too late"));
            drop((waits, lock));
            next.release().unwrap();
            assert_eq!(Error::WaitFailed.name(), "OperationError");
        });
    }

    #[test]
    fn a_failure_after_a_theft_changes_nothing() {
        future::block_on(async {
            let locks = manager();
            let lock = locks.request("a").auto_release().await.unwrap();
            let failing = lock.wait_until(async { Err::<(), ()>(()) }).unwrap();
            let thief = locks.request("a").steal().acquire().await.unwrap();
            assert_eq!(lock.lost().await, Cause::Stolen);
            assert_eq!(failing.await, Err(()));
            assert!(matches!(lock.released().await, Err(Error::Stolen)));
            assert_eq!(lock.lost().await, Cause::Stolen);
            thief.release().unwrap();
        });
    }

    #[test]
    fn if_available_gives_such_a_lock_or_none() {
        future::block_on(async {
            let locks = manager();
            let lock = locks.request(["a", "b"]).if_available().auto_release().await.unwrap();
            let lock = lock.expect("it is free");
            assert!(locks.request("b").if_available().auto_release().await.unwrap().is_none());
            let write = lock.wait_until(async {}).unwrap();
            drop(lock);
            assert!(locks.request("b").if_available().auto_release().await.unwrap().is_none());
            write.await;
            assert!(locks.request("b").if_available().auto_release().await.unwrap().is_some());
        });
    }

    #[test]
    fn a_preempted_lock_says_so_and_takes_no_more_futures() {
        future::block_on(async {
            let locks = manager();
            let lock = locks.request("a").auto_release().await.unwrap();
            let released = lock.released();
            locks.force_release("a").await.unwrap();
            assert_eq!(lock.lost().await, Cause::Stolen);
            assert!(matches!(lock.wait_until(async {}).err(), Some(Error::Stolen)));
            drop(lock);
            assert!(matches!(released.await, Err(Error::Stolen)));
        });
    }

    #[test]
    fn a_flag_is_such_a_lock_with_a_timeout() {
        future::block_on(async {
            let locks = manager();
            let flag = locks.request_flag(["b", "a"], Mode::Exclusive, None).await.unwrap();
            let scope: Vec<_> = flag.scope().into_iter().map(|(name, _)| name.to_string()).collect();
            assert_eq!(scope, ["a", "b"]);
            assert_eq!(flag.mode(), Mode::Exclusive);
            let late = locks.request_flag("a", Mode::Shared, MOMENT).await;
            assert!(matches!(late, Err(Error::TimedOut)));
            assert_eq!(Error::TimedOut.name(), "TimeoutError");
            let nothing: [&str; 0] = [];
            assert!(matches!(locks.request_flag(nothing, Mode::Shared, None).await, Err(Error::EmptyScope)));
        });
    }
}

mod nesting {
    use super::*;

    #[test]
    fn a_lock_that_waits_for_itself_is_refused_if_asked() {
        future::block_on(async {
            let locks = manager();
            let outer = locks.acquire("a").await.unwrap();
            let refused = outer.request("a").refuse_deadlock().acquire().await;
            let Err(Error::Deadlock { cycle, message }) = refused else { panic!("not refused") };
            assert!(message.contains("waits for \"a\""), "{message}");
            assert_eq!(cycle.len(), 2);
            assert!(matches!(&cycle[0].waits_for, WaitsFor::Name(name) if *name == "a"));
            assert!(cycle.iter().all(|step| step.client == locks.client_id()));
            assert!(locks.query().await.unwrap().pending.is_empty());
        });
    }

    #[test]
    fn a_deadlock_is_shown_by_inspect() {
        future::block_on(async {
            let locks = manager();
            let a = locks.acquire("a").await.unwrap();
            let b = locks.acquire("b").await.unwrap();
            let mut b_in_a = pin!(a.request("b").info("b within a").acquire());
            let mut a_in_b = pin!(b.request("a").acquire());
            assert!(step(&locks, b_in_a.as_mut()).await.is_none());
            assert!(locks.inspect().await.unwrap().deadlocks.is_empty());
            assert!(step(&locks, a_in_b.as_mut()).await.is_none());

            let inspection = locks.inspect().await.unwrap();
            let outer = inspection.held.iter().find(|held| held.token == Some(a.token())).unwrap();
            let waiting = &inspection.pending[0];
            assert_eq!((waiting.info.as_deref(), waiting.nested_in), (Some("b within a"), Some(outer.id)));
            assert!(waiting.waited.is_some() && waiting.token.is_none());
            assert!(inspection.held.iter().all(|held| held.token.is_some() && held.waited.is_none()));

            let [deadlock] = &inspection.deadlocks[..] else { panic!("{:?}", inspection.deadlocks) };
            let shown = [&inspection.held[..], &inspection.pending[..]].concat();
            let in_cycle = |id| deadlock.cycle.iter().any(|step| step.request == id);
            assert_eq!(deadlock.cycle.len(), 4);
            assert!(shown.iter().all(|request| in_cycle(request.id)));
            assert!(deadlock.cycle.iter().all(|step| step.client == locks.client_id()));
            let names = deadlock.cycle.iter().filter(|step| matches!(step.waits_for, WaitsFor::Name(_)));
            assert_eq!(names.count(), 2);
        });
    }
}
