//! The wake and cancel paths under every interleaving of a few threads: `cargo xtask loom`.
//!
//! Loom sees our mutex; what goes through `event-listener` (`AbortController`, `Lock::lost`) is
//! left to that crate's own checks, and not used here.
#![cfg(lockkeeper_loom)]

use lockkeeper::{Error, Locks};
use loom::{
    future::{AtomicWaker, block_on},
    sync::atomic::{AtomicBool, AtomicUsize, Ordering},
    thread,
};
use std::{
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, Waker},
};

fn model(test: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(3);
    builder.check(test);
}

fn poll_once<F: Future>(future: Pin<&mut F>) -> Poll<F::Output> {
    future.poll(&mut Context::from_waker(Waker::noop()))
}

#[test]
fn two_holders_never_meet_and_no_wake_is_lost() {
    model(|| {
        let locks = Locks::new();
        let inside = Arc::new(AtomicUsize::new(0));
        let work = |locks: Locks, inside: Arc<AtomicUsize>| {
            block_on(async move {
                let lock = locks.acquire("a").await.unwrap();
                assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0);
                inside.fetch_sub(1, Ordering::SeqCst);
                drop(lock);
            });
        };
        let other = {
            let (locks, inside) = (locks.clone(), inside.clone());
            thread::spawn(move || work(locks, inside))
        };
        work(locks.clone(), inside);
        other.join().unwrap();
        assert!(locks.query_blocking().unwrap().held.is_empty());
    });
}

#[test]
fn a_request_dropped_while_it_is_granted_hands_the_lock_on() {
    model(|| {
        let locks = Locks::new();
        let held = locks.try_acquire("a").unwrap().unwrap().into_owned();
        let mut given_up = Box::pin(locks.acquire("a"));
        assert!(poll_once(given_up.as_mut()).is_pending());
        let waiter = {
            let locks = locks.clone();
            thread::spawn(move || block_on(async move { drop(locks.acquire("a").await.unwrap()) }))
        };
        let releaser = thread::spawn(move || drop(held));
        drop(given_up);
        waiter.join().unwrap();
        releaser.join().unwrap();
        let snapshot = locks.query_blocking().unwrap();
        assert!(snapshot.held.is_empty() && snapshot.pending.is_empty());
    });
}

#[test]
fn a_steal_ends_the_closure_or_comes_before_or_after_it() {
    model(|| {
        let locks = Locks::new();
        let thief = {
            let locks = locks.clone();
            thread::spawn(move || {
                block_on(
                    async move { locks.request("a").steal().acquire().await.unwrap().release().unwrap() },
                );
            })
        };
        let result = block_on(locks.request("a").run(async |_| smol::future::yield_now().await));
        assert!(matches!(result, Ok(()) | Err(Error::Stolen)));
        thief.join().unwrap();
        assert!(locks.query_blocking().unwrap().held.is_empty());
    });
}

#[test]
fn a_closure_that_would_never_end_learns_that_it_was_preempted() {
    model(|| {
        let locks = Locks::new();
        let other = locks.clone();
        let (holds, held) = loom::sync::mpsc::channel();
        let releaser = thread::spawn(move || {
            held.recv().unwrap();
            other.force_release_blocking("a").unwrap();
        });
        let run = locks.request("a").run(async |_| {
            holds.send(()).unwrap();
            std::future::pending::<()>().await
        });
        assert!(matches!(block_on(run), Err(Error::Stolen)));
        releaser.join().unwrap();
    });
}

/// A signal whose every step loom sees.
#[derive(Clone, Default)]
struct Flag(Arc<FlagState>);

#[derive(Default)]
struct FlagState {
    set: AtomicBool,
    waker: AtomicWaker,
}

impl Future for Flag {
    type Output = ();

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        self.0.waker.register_by_ref(cx.waker());
        if self.0.set.load(Ordering::SeqCst) { Poll::Ready(()) } else { Poll::Pending }
    }
}

#[test]
fn an_abort_races_with_a_grant_and_leaves_nothing_behind() {
    model(|| {
        let locks = Locks::new();
        let held = locks.try_acquire("a").unwrap().unwrap().into_owned();
        let signal = Flag::default();
        let flag = signal.clone();
        let aborter = thread::spawn(move || {
            flag.0.set.store(true, Ordering::SeqCst);
            flag.0.waker.wake();
        });
        let releaser = thread::spawn(move || drop(held));
        match block_on(locks.request("a").signal(signal).acquire()) {
            Ok(lock) => lock.release().unwrap(),
            Err(error) => assert!(matches!(error, Error::Aborted(_))),
        }
        aborter.join().unwrap();
        releaser.join().unwrap();
        let snapshot = locks.query_blocking().unwrap();
        assert!(snapshot.held.is_empty() && snapshot.pending.is_empty());
    });
}

#[test]
fn the_end_of_a_client_races_with_a_request_nested_in_its_lock() {
    model(|| {
        let locks = Locks::new();
        let worker = locks.client_blocking().unwrap();
        let held = locks.try_acquire("a").unwrap().unwrap().into_owned();
        let outer = worker.try_acquire("b").unwrap().unwrap().into_owned();
        let ender = thread::spawn(move || drop(worker));
        let releaser = thread::spawn(move || drop(held));
        match block_on(outer.request("a").acquire()) {
            // Granted before the client ended, and perhaps broken since.
            Ok(lock) => drop(lock.release()),
            Err(error) => assert!(matches!(error, Error::Lost)),
        }
        ender.join().unwrap();
        releaser.join().unwrap();
        drop(outer);
        let snapshot = locks.query_blocking().unwrap();
        assert!(snapshot.held.is_empty() && snapshot.pending.is_empty());
    });
}
