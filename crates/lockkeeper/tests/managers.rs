//! What only a manager of this process has: limits and buckets of its own, and reports of deadlocks
//! as they happen.

use lockkeeper::{AbortReason, Buckets, Config, Error, Limit, Limits, Locks};
use smol::future;
use std::{pin::pin, sync::mpsc};

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
    assert!(matches!(locks.client_blocking(), Err(Error::Limit(Limit::Clients(1)))));
    assert_eq!(locks.query_blocking().unwrap().held.len(), 1);
}

#[test]
fn errors_read_as_sentences_and_keep_their_source() {
    let reason = AbortReason::new(std::io::Error::other("disk full"));
    let error = Error::Aborted(reason);
    assert_eq!(error.to_string(), "the request was aborted: disk full");
    let source = std::error::Error::source(&error).unwrap();
    assert!(source.downcast_ref::<std::io::Error>().is_some());
}

#[test]
fn a_deadlock_is_reported_once_for_each_request_that_waits_in_it() {
    let (report, reported) = mpsc::channel();
    let config = Config::new().on_deadlock(move |deadlock| report.send(deadlock.clone()).unwrap());
    let locks = Locks::with_config(config);
    future::block_on(async {
        let a = locks.acquire("a").await.unwrap();
        let b = locks.acquire("b").await.unwrap();
        let (b_in_a, a_in_b) = (pin!(a.request("b").acquire()), pin!(b.request("a").acquire()));
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
