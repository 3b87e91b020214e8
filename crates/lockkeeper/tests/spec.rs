//! The Working Draft's steps that concern promises, callbacks and signals; those of the engine
//! alone are tested in `lockkeeper-core`. A promise is a future here, its rejection an `Err`, a
//! callback the closure of `run`.

mod common;

use common::{manager, step};
use lockkeeper::{AbortController, Cause, Error, Mode};
use smol::future::{self, FutureExt};
use std::{cell::Cell, pin::pin, rc::Rc};

fn names(infos: &[lockkeeper::LockInfo]) -> Vec<String> {
    infos.iter().map(|info| info.name.to_string()).collect()
}

mod s2_4_locks {
    use super::*;

    /// "When lock's waiting promise settles: 1. Release the lock. 2. Resolve lock's released
    /// promise with lock's waiting promise."
    #[test]
    fn the_request_settles_with_the_closures_value_after_the_release() {
        future::block_on(async {
            let locks = manager();
            let value = locks.request("a").run(async |_| "value").await.unwrap();
            assert_eq!(value, "value");
            assert!(locks.query().await.unwrap().held.is_empty(), "released before the value came");
        });
    }

    #[test]
    fn a_closure_that_ends_with_an_error_releases_too() {
        future::block_on(async {
            let locks = manager();
            let result: Result<(), &str> = locks.request("a").run(async |_| Err("no disk")).await.unwrap();
            assert_eq!(result, Err("no disk"));
            assert!(locks.query().await.unwrap().held.is_empty());
        });
    }

    #[test]
    fn a_closure_that_panics_releases_too() {
        let locks = manager();
        let panicking =
            || future::block_on(locks.request("a").run(async |_| panic!("a bug of the caller's")));
        let panic = std::panic::catch_unwind(std::panic::AssertUnwindSafe(panicking));
        assert!(panic.is_err());
        assert!(locks.query_blocking().unwrap().held.is_empty());
        assert!(locks.try_acquire("a").unwrap().is_some());
    }

    #[test]
    fn the_lock_is_held_for_as_long_as_the_closure_runs() {
        future::block_on(async {
            let locks = manager();
            let (finish, finished) = smol::channel::bounded::<()>(1);
            let mut running = pin!(locks.request("a").run(async |_| finished.recv().await.unwrap()));
            assert!(step(&locks, running.as_mut()).await.is_none());
            assert!(locks.try_acquire("a").unwrap().is_none());
            finish.send(()).await.unwrap();
            running.await.unwrap();
            assert!(locks.try_acquire("a").unwrap().is_some());
        });
    }
}

mod s2_6_termination {
    use super::*;

    /// "When an agent terminates, terminate remaining locks and requests with the agent."
    #[test]
    fn the_last_handle_of_a_client_takes_its_locks_with_it() {
        future::block_on(async {
            let locks = manager();
            let worker = locks.client().await.unwrap();
            let clone = worker.clone();
            let lock = worker.acquire("a").await.unwrap().into_owned();
            let mut next = pin!(locks.acquire("a"));
            assert!(step(&locks, next.as_mut()).await.is_none());
            drop(worker);
            assert!(step(&locks, next.as_mut()).await.is_none(), "a clone of the handle is left");
            drop(clone);
            next.await.unwrap();
            assert_eq!(lock.lost().await, Cause::Lost);
            assert!(matches!(lock.release(), Err(Error::Lost)));
        });
    }

    #[test]
    fn requests_of_a_client_that_ends_fail_and_leave_the_queue() {
        future::block_on(async {
            let locks = manager();
            let worker = locks.client().await.unwrap();
            let _held = locks.acquire("a").await.unwrap();
            let outer = worker.acquire("b").await.unwrap().into_owned();
            let mut nested = pin!(outer.request("a").acquire());
            assert!(step(&worker, nested.as_mut()).await.is_none());
            drop(worker);
            assert!(matches!(nested.await, Err(Error::Lost)));
            // A daemon hears of the end of a session when it comes to it.
            while !locks.query().await.unwrap().pending.is_empty() {
                future::yield_now().await;
            }
            assert!(matches!(outer.request("c").acquire().await, Err(Error::Lost)), "the agent is no more");
        });
    }

    #[test]
    fn guards_of_the_managers_own_agent_outlive_its_handle() {
        let locks = manager();
        let lock = locks.acquire_blocking("a").unwrap().into_owned();
        drop(locks);
        lock.release().unwrap();
    }
}

mod s3_2_1_the_request_method {
    use super::*;

    /// Step 5.
    #[test]
    fn a_name_that_starts_with_a_hyphen_is_refused() {
        future::block_on(async {
            let locks = manager();
            assert!(matches!(locks.acquire("-a").await, Err(Error::ReservedName)));
            assert!(matches!(locks.try_acquire("-"), Err(Error::ReservedName)));
            assert!(locks.acquire("a-").await.is_ok());
            assert!(locks.acquire("").await.is_ok());
        });
    }

    /// Step 6.
    #[test]
    fn steal_does_not_go_with_if_available() {
        future::block_on(async {
            let locks = manager();
            let refused = locks.request("a").steal().if_available().run(async |_| ()).await;
            assert!(matches!(refused, Err(Error::Unsupported(_))));
        });
    }

    /// Step 7.
    #[test]
    fn steal_does_not_go_with_shared() {
        future::block_on(async {
            let locks = manager();
            let refused = locks.request("a").steal().shared().acquire().await;
            assert!(matches!(refused, Err(Error::Unsupported(_))));
        });
    }

    /// Step 8.
    #[test]
    fn a_signal_goes_with_neither_steal_nor_if_available() {
        future::block_on(async {
            let locks = manager();
            let signal = AbortController::new().signal();
            let refused = locks.request("a").signal(signal.clone()).steal().acquire().await;
            assert!(matches!(refused, Err(Error::Unsupported(_))));
            let refused = locks.request("a").signal(signal).try_acquire();
            assert!(matches!(refused, Err(Error::Unsupported(_))));
        });
    }

    /// Step 9.
    #[test]
    fn a_signal_that_is_aborted_already_refuses_with_its_reason() {
        future::block_on(async {
            let locks = manager();
            let controller = AbortController::new();
            controller.abort("too late");
            let Err(Error::Aborted(reason)) = locks.request("a").signal(controller.signal()).acquire().await
            else {
                panic!("not aborted")
            };
            assert_eq!(reason.to_string(), "too late");
            assert!(locks.query().await.unwrap().held.is_empty(), "it was never requested");
        });
    }

    /// Steps 5 to 8 come before step 9.
    #[test]
    fn what_is_not_supported_is_refused_before_the_signal_is_looked_at() {
        future::block_on(async {
            let locks = manager();
            let controller = AbortController::new();
            controller.abort("too late");
            let refused = locks.request("-a").signal(controller.signal()).acquire().await;
            assert!(matches!(refused, Err(Error::ReservedName)));
            let refused = locks.request("a").signal(controller.signal()).steal().acquire().await;
            assert!(matches!(refused, Err(Error::Unsupported(_))));
        });
    }
}

mod s4_1_request_a_lock {
    use super::*;

    /// Step 3.4.1.1.2: "Reject lock's released promise with an AbortError."
    #[test]
    fn a_preempted_request_fails_at_once_and_its_closure_goes_no_further() {
        future::block_on(async {
            let locks = manager();
            let polls = Rc::new(Cell::new(0));
            let dropped = Rc::new(());
            let seen = Rc::downgrade(&dropped);
            let mut running = pin!(locks.request("a").run(async |_| {
                let _dropped = dropped;
                future::poll_fn(|_| {
                    polls.set(polls.get() + 1);
                    std::task::Poll::<()>::Pending
                })
                .await
            }));
            assert!(step(&locks, running.as_mut()).await.is_none());
            let before = polls.get();
            let thief = locks.request("a").steal().acquire().await.unwrap();
            assert!(matches!(running.await, Err(Error::Stolen)));
            assert_eq!(polls.get(), before, "not polled after the steal");
            assert!(seen.upgrade().is_none(), "the closure's future is dropped");
            assert_eq!(locks.inspect().await.unwrap().held[0].token, Some(thief.token()));
        });
    }

    /// The same, where the closure is done in the very poll in which the lock is stolen.
    #[test]
    fn a_closure_that_is_preempted_while_it_ends_does_not_count_as_done() {
        future::block_on(async {
            let locks = manager();
            let result = locks
                .request("a")
                .run(async |_| drop(locks.request("a").steal().acquire().await.unwrap()))
                .await;
            assert!(matches!(result, Err(Error::Stolen)));
        });
    }

    #[test]
    fn the_last_thief_wins() {
        future::block_on(async {
            let locks = manager();
            let first = locks.request("a").steal().acquire().await.unwrap();
            let second = locks.request("a").steal().acquire().await.unwrap();
            assert!(matches!(first.release(), Err(Error::Stolen)));
            second.release().unwrap();
        });
    }

    /// Step 3.5.1: "invoking callback with null as the only argument".
    #[test]
    fn if_available_hands_the_closure_nothing_when_the_lock_is_taken() {
        future::block_on(async {
            let locks = manager();
            let available = async || locks.request("a").if_available().run(async |lock| lock.is_some()).await;
            assert!(available().await.unwrap());
            let held = locks.acquire("a").await.unwrap();
            assert!(!available().await.unwrap());
            held.release().unwrap();
            assert!(available().await.unwrap());
        });
    }

    /// §2.5 step 7: not first in the queue is not grantable, even if the held lock is shared too.
    #[test]
    fn if_available_shared_is_refused_behind_a_queued_exclusive_request() {
        future::block_on(async {
            let locks = manager();
            let _held = locks.request("a").shared().acquire().await.unwrap();
            assert!(locks.request("a").shared().try_acquire().unwrap().is_some());
            let mut queued = pin!(locks.acquire("a"));
            assert!(step(&locks, queued.as_mut()).await.is_none());
            assert!(locks.request("a").shared().try_acquire().unwrap().is_none());
        });
    }
}

mod s4_3_abort_a_request {
    use super::*;

    /// "1. Enqueue the steps to abort the request. 2. Reject request's promise with signal's abort
    /// reason."
    #[test]
    fn a_signal_aborts_a_waiting_request_with_its_reason() {
        future::block_on(async {
            let locks = manager();
            let _held = locks.acquire("a").await.unwrap();
            let controller = AbortController::new();
            let mut waiting = pin!(locks.request("a").signal(controller.signal()).acquire());
            assert!(step(&locks, waiting.as_mut()).await.is_none());
            assert_eq!(names(&locks.query().await.unwrap().pending), ["a"]);
            controller.abort("changed my mind");
            let Err(Error::Aborted(reason)) = waiting.await else { panic!("not aborted") };
            assert_eq!(reason.to_string(), "changed my mind");
            assert!(locks.query().await.unwrap().pending.is_empty());
        });
    }

    /// Step 7: "Process the lock request queue."
    #[test]
    fn aborting_a_queued_exclusive_request_lets_the_shared_ones_behind_it_in() {
        future::block_on(async {
            let locks = manager();
            let _held = locks.request("a").shared().acquire().await.unwrap();
            let controller = AbortController::new();
            let mut exclusive = pin!(locks.request("a").signal(controller.signal()).acquire());
            let mut first = pin!(locks.request("a").shared().acquire());
            let mut second = pin!(locks.request("a").shared().acquire());
            assert!(step(&locks, exclusive.as_mut()).await.is_none());
            assert!(step(&locks, first.as_mut()).await.is_none());
            assert!(step(&locks, second.as_mut()).await.is_none());
            controller.abort(());
            assert!(matches!(exclusive.await, Err(Error::Aborted(_))));
            let (_first, _second) = (first.await.unwrap(), second.await.unwrap());
            assert_eq!(locks.query().await.unwrap().held.len(), 3);
        });
    }

    #[test]
    fn dropping_the_future_aborts_as_a_signal_does() {
        future::block_on(async {
            let locks = manager();
            let held = locks.request("a").shared().acquire().await.unwrap();
            let mut shared = pin!(locks.request("a").shared().acquire());
            {
                let mut exclusive = pin!(locks.acquire("a"));
                assert!(step(&locks, exclusive.as_mut()).await.is_none());
                assert!(step(&locks, shared.as_mut()).await.is_none());
            }
            assert!(step(&locks, shared.as_mut()).await.is_some());
            drop(held);
            assert!(locks.query().await.unwrap().held.is_empty());
        });
    }
}

mod s4_4_process_the_queue {
    use super::*;

    /// Step 2.14.1.1: a signal aborted between grant and delivery releases silently.
    #[test]
    fn a_signal_aborted_between_grant_and_delivery_releases_and_rejects() {
        future::block_on(async {
            let locks = manager();
            let held = locks.acquire("a").await.unwrap();
            let controller = AbortController::new();
            let called = Cell::new(false);
            let request = locks.request("a").signal(controller.signal());
            let mut running = pin!(request.run(async |_| called.set(true)));
            assert!(step(&locks, running.as_mut()).await.is_none());
            held.release().unwrap();
            assert_eq!(locks.query().await.unwrap().held.len(), 1, "granted, not delivered");
            controller.abort("at the last moment");
            assert!(matches!(running.await, Err(Error::Aborted(_))));
            assert!(!called.get());
            assert!(locks.query().await.unwrap().held.is_empty());
        });
    }

    /// Step 2.14.1.2: "Remove the algorithm signal to abort the request."
    #[test]
    fn once_the_lock_is_delivered_the_signal_is_ignored() {
        future::block_on(async {
            let locks = manager();
            let controller = AbortController::new();
            let value = locks
                .request("a")
                .signal(controller.signal())
                .run(async |_| {
                    controller.abort("too late");
                    future::yield_now().await;
                    "done"
                })
                .await;
            assert_eq!(value.unwrap(), "done");
        });
    }

    /// A recorded departure: the draft would run the callback of a lock that was stolen before
    /// delivery.
    #[test]
    fn a_lock_stolen_between_grant_and_delivery_is_not_delivered() {
        future::block_on(async {
            let locks = manager();
            let held = locks.acquire("a").await.unwrap();
            let called = Cell::new(false);
            let mut running = pin!(locks.request("a").run(async |_| called.set(true)));
            assert!(step(&locks, running.as_mut()).await.is_none());
            held.release().unwrap();
            let _thief = locks.request("a").steal().acquire().await.unwrap();
            assert!(matches!(running.await, Err(Error::Stolen)));
            assert!(!called.get());
        });
    }

    /// Step 2: each request of the queue, in order, as long as it is grantable.
    #[test]
    fn waiters_are_served_in_the_order_in_which_they_asked() {
        future::block_on(async {
            let locks = manager();
            let order = std::cell::RefCell::new(Vec::new());
            let held = locks.acquire("a").await.unwrap();
            let mut waiting: Vec<_> = (0..100)
                .map(|i| {
                    let (locks, order) = (&locks, &order);
                    async move {
                        let mode = if i % 3 == 0 { Mode::Exclusive } else { Mode::Shared };
                        let run = locks.request("a").mode(mode).run(async |_| order.borrow_mut().push(i));
                        run.await.unwrap();
                    }
                    .boxed_local()
                })
                .collect();
            for request in &mut waiting {
                assert!(future::poll_once(&mut *request).await.is_none());
            }
            held.release().unwrap();
            for request in waiting {
                request.await;
            }
            assert_eq!(*order.borrow(), (0..100).collect::<Vec<_>>());
        });
    }
}

mod s4_5_snapshot {
    use super::*;

    #[test]
    fn the_snapshot_shows_name_mode_and_client_of_all_agents() {
        future::block_on(async {
            let locks = manager();
            let other = locks.client().await.unwrap();
            let _a = locks.acquire("a").await.unwrap();
            let _b = other.request("b").shared().acquire().await.unwrap();
            let mut waiting = pin!(other.acquire("a"));
            assert!(step(&other, waiting.as_mut()).await.is_none());

            let snapshot = locks.query().await.unwrap();
            let held: Vec<_> =
                snapshot.held.iter().map(|info| (info.name.to_string(), info.mode, info.client)).collect();
            assert_eq!(
                held,
                [
                    ("a".into(), Mode::Exclusive, locks.client_id()),
                    ("b".into(), Mode::Shared, other.client_id())
                ]
            );
            assert_eq!(snapshot.pending[0].client, other.client_id());
            assert_eq!(snapshot, other.query().await.unwrap(), "all agents see the same");
            assert_ne!(locks.client_id(), other.client_id());
        });
    }
}
