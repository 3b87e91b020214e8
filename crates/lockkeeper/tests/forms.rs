//! The forms in which a lock is given, and what the draft does not have: scopes, timeouts, nesting, buckets.

use lockkeeper::{AbortReason, Buckets, Cause, Config, Error, Limit, Limits, Locks, Mode, WaitsFor};
use smol::future::{self, FutureExt};
use std::{
    pin::{Pin, pin},
    sync::mpsc,
    thread,
    time::Duration,
};

const MOMENT: Duration = Duration::from_millis(5);

async fn step<F: Future>(future: Pin<&mut F>) -> Option<F::Output> {
    future::poll_once(future).await
}

mod guards {
    use super::*;

    #[test]
    fn a_guard_releases_when_dropped_or_told_to() {
        future::block_on(async {
            let locks = Locks::new();
            drop(locks.acquire("a").await.unwrap());
            locks.acquire("a").await.unwrap().release().unwrap();
            assert!(locks.query().held.is_empty());
        });
    }

    #[test]
    fn a_blocked_thread_gets_the_lock_when_another_releases() {
        let locks = Locks::new();
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
        let locks = Locks::new();
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
            let locks = Locks::new();
            let lock = locks.acquire("a").await.unwrap();
            let (mut one, mut two) = (pin!(lock.lost()), pin!(lock.lost()));
            assert!(step(one.as_mut()).await.is_none());
            assert!(step(two.as_mut()).await.is_none());
            let thief = thread::scope(|scope| {
                scope.spawn(|| locks.request("a").steal().acquire_blocking().unwrap()).join().unwrap()
            });
            assert_eq!(one.await, Cause::Stolen);
            assert_eq!(two.await, Cause::Stolen);
            assert_eq!(locks.force_release("a"), 1);
            assert_eq!(thief.lost().await, Cause::Stolen, "force release tells as a steal does");
        });
    }

    #[test]
    fn a_guard_tells_what_it_is() {
        let locks = Locks::new();
        let lock = locks.request(["b", "a", "b"]).shared().acquire_blocking().unwrap();
        assert_eq!(lock.name(), "a");
        assert_eq!(lock.mode(), Mode::Shared);
        assert_eq!(lock.client_id(), locks.client_id());
        let scope = lock.scope();
        assert_eq!(scope, [("a".into(), Mode::Shared), ("b".into(), Mode::Shared)], "sorted, once each");
        let owned = lock.into_owned();
        assert_eq!(owned.name(), "a");
        locks.force_release("b");
        assert_eq!((owned.scope(), owned.mode()), (scope, Mode::Shared), "also once it is broken");
    }
}

mod scopes {
    use super::*;

    #[test]
    fn a_scope_is_taken_whole_or_not_at_all() {
        future::block_on(async {
            let locks = Locks::new();
            let b = locks.acquire("b").await.unwrap();
            let mut both = pin!(locks.acquire(["a", "b"]));
            assert!(step(both.as_mut()).await.is_none());
            assert!(locks.try_acquire("a").unwrap().is_none(), "the scope stands before");
            drop(b);
            let both = both.await.unwrap();
            assert_eq!(locks.query().held.len(), 2, "a scope shows once per name");
            assert_eq!(locks.inspect().held.len(), 1);
            drop(both);
        });
    }

    #[test]
    fn a_name_keeps_the_mode_it_came_with_and_exclusive_wins() {
        let locks = Locks::new();
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
        let locks = Locks::new();
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
            let locks = Locks::new();
            let _held = locks.acquire("a").await.unwrap();
            let late = locks.request("a").timeout(MOMENT).acquire().await;
            assert!(matches!(late, Err(Error::TimedOut)));
            assert!(locks.query().pending.is_empty());
        });
    }

    #[test]
    fn what_is_to_be_had_at_once_needs_no_time() {
        let locks = Locks::new();
        assert!(locks.request("a").timeout(Duration::ZERO).acquire_blocking().is_ok());
    }

    #[test]
    fn a_timeout_beyond_all_clocks_is_none() {
        let locks = Locks::new();
        let held = locks.acquire_blocking("a").unwrap();
        thread::scope(|scope| {
            let waiting =
                scope.spawn(|| locks.request("a").timeout(Duration::MAX).acquire_blocking().map(drop));
            while locks.query().pending.is_empty() {
                thread::yield_now();
            }
            held.release().unwrap();
            waiting.join().unwrap().unwrap();
        });
    }

    #[test]
    fn many_timeouts_fire_whatever_their_order() {
        future::block_on(async {
            let locks = Locks::new();
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
            let locks = Locks::new();
            let lock = locks.request("a").auto_release().await.unwrap();
            let one = lock.wait_until(async { 1 }).unwrap();
            let two = lock.wait_until(future::pending::<()>()).unwrap();
            let mut released = pin!(lock.released());
            drop(lock);
            assert_eq!(one.await, 1);
            assert!(step(released.as_mut()).await.is_none());
            assert!(locks.try_acquire("a").unwrap().is_none());
            drop(two);
            released.await.unwrap();
            assert!(locks.try_acquire("a").unwrap().is_some());
        });
    }

    #[test]
    fn a_future_that_is_done_has_given_its_share_back_though_it_still_exists() {
        future::block_on(async {
            let locks = Locks::new();
            let lock = locks.request("a").auto_release().await.unwrap();
            let mut done = Box::pin(lock.wait_until(async {}).unwrap());
            drop(lock);
            done.as_mut().await;
            assert!(locks.try_acquire("a").unwrap().is_some());
        });
    }

    #[test]
    fn a_robbed_lock_says_so_and_takes_no_more_futures() {
        future::block_on(async {
            let locks = Locks::new();
            let lock = locks.request("a").auto_release().await.unwrap();
            let released = lock.released();
            locks.force_release("a");
            assert_eq!(lock.lost().await, Cause::Stolen);
            assert!(matches!(lock.wait_until(async {}).err(), Some(Error::Stolen)));
            drop(lock);
            assert!(matches!(released.await, Err(Error::Stolen)));
        });
    }

    #[test]
    fn a_flag_is_such_a_lock_with_a_timeout() {
        future::block_on(async {
            let locks = Locks::new();
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
            let locks = Locks::new();
            let outer = locks.acquire("a").await.unwrap();
            let Err(Error::Deadlock(deadlock)) = outer.request("a").refuse_deadlock().acquire().await else {
                panic!("not refused")
            };
            assert_eq!(deadlock.cycle.len(), 2);
            assert!(matches!(&deadlock.cycle[0].waits_for, WaitsFor::Name(name) if *name == "a"));
            assert!(locks.query().pending.is_empty());
        });
    }

    #[test]
    fn a_deadlock_is_shown_by_inspect_and_reported_once() {
        let (report, reported) = mpsc::channel();
        let config = Config::new().on_deadlock(move |deadlock| report.send(deadlock.clone()).unwrap());
        let locks = Locks::with_config(config);
        future::block_on(async {
            let a = locks.acquire("a").await.unwrap();
            let b = locks.acquire("b").await.unwrap();
            let mut b_in_a = pin!(a.request("b").info("b within a").acquire());
            let mut a_in_b = pin!(b.request("a").acquire());
            assert!(step(b_in_a.as_mut()).await.is_none());
            assert!(locks.inspect().deadlocks.is_empty());
            assert!(step(a_in_b.as_mut()).await.is_none());

            let inspection = locks.inspect();
            assert_eq!(inspection.deadlocks.len(), 1);
            let waiting = &inspection.pending[0];
            assert_eq!((waiting.info.as_deref(), waiting.nested_in), (Some("b within a"), Some(a.id())));
            assert!(waiting.waited.is_some() && waiting.token.is_none());
            assert!(inspection.held.iter().all(|held| held.token.is_some() && held.waited.is_none()));

            // Both wait for ever; the reports end the test.
            let both = async { drop(future::zip(b_in_a, a_in_b).await) };
            let heard = smol::unblock(move || (reported.recv().unwrap(), reported.recv().unwrap()));
            let heard = async { Some(heard.await) };
            let (one, two) = future::or(heard, async {
                both.await;
                None
            })
            .await
            .unwrap();
            assert_eq!((one.cycle.len(), two.cycle.len()), (4, 4));
        });
    }
}

mod managers {
    use super::*;

    #[test]
    fn buckets_share_nothing_and_the_same_name_is_the_same_bucket() {
        let buckets = Buckets::new();
        let ours = buckets.open("ours");
        let lock = ours.acquire_blocking("a").unwrap().into_owned();
        assert!(buckets.open("theirs").try_acquire("a").unwrap().is_some());
        drop(ours);
        let again = buckets.open("ours");
        assert!(again.try_acquire("a").unwrap().is_none(), "a bucket lives as long as a lock of it");
        drop(lock);
        assert!(again.try_acquire("a").unwrap().is_some());
    }

    #[test]
    fn a_limit_refuses_with_its_name_and_changes_nothing() {
        let limits = Limits { requests_per_client: 1, name_bytes: 3, clients: 1, ..Limits::default() };
        let locks = Locks::with_config(Config::new().limits(limits));
        assert!(matches!(locks.acquire_blocking("four"), Err(Error::Limit(Limit::NameBytes(3)))));
        let _held = locks.acquire_blocking("a").unwrap();
        let refused = locks.acquire_blocking("b");
        assert!(matches!(refused, Err(Error::Limit(Limit::RequestsPerClient(1)))));
        assert!(matches!(locks.client(), Err(Error::Limit(Limit::Clients(1)))));
        assert_eq!(locks.query().held.len(), 1);
    }

    #[test]
    fn errors_read_as_sentences_and_keep_their_source() {
        let reason = AbortReason::new(std::io::Error::other("disk full"));
        let error = Error::Aborted(reason);
        assert_eq!(error.to_string(), "the request was aborted: disk full");
        let source = std::error::Error::source(&error).unwrap();
        assert!(source.downcast_ref::<std::io::Error>().is_some());
    }
}
