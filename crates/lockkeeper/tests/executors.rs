//! The same behaviour on tokio, on smol and without an executor.

mod common;

use common::manager;
use lockkeeper::{Error, Locks};
use std::{
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    thread,
};

const TASKS: u32 = 16;
const TURNS: u32 = 200;

/// Counts up under the lock in two halves that a second holder would tear apart.
async fn count_up(locks: Locks, counter: Arc<AtomicU32>) -> Result<(), Error> {
    for _ in 0..TURNS {
        locks
            .request("counter")
            .run(async |_| {
                let seen = counter.load(Ordering::Relaxed);
                smol::future::yield_now().await;
                counter.store(seen + 1, Ordering::Relaxed);
            })
            .await?;
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn tasks_of_a_tokio_runtime_with_several_threads() {
    let (locks, counter) = (manager(), Arc::new(AtomicU32::new(0)));
    let tasks: Vec<_> = (0..TASKS).map(|_| tokio::spawn(count_up(locks.clone(), counter.clone()))).collect();
    for task in tasks {
        task.await.unwrap().unwrap();
    }
    assert_eq!(counter.load(Ordering::Relaxed), TASKS * TURNS);
}

#[test]
fn tasks_of_smol() {
    let (locks, counter) = (manager(), Arc::new(AtomicU32::new(0)));
    let tasks: Vec<_> = (0..TASKS).map(|_| smol::spawn(count_up(locks.clone(), counter.clone()))).collect();
    smol::block_on(async {
        for task in tasks {
            task.await.unwrap();
        }
    });
    assert_eq!(counter.load(Ordering::Relaxed), TASKS * TURNS);
}

#[test]
fn threads_without_an_executor() {
    let (locks, counter) = (manager(), Arc::new(AtomicU32::new(0)));
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..1_000 {
                    let _lock = locks.acquire_blocking("counter").unwrap();
                    let seen = counter.load(Ordering::Relaxed);
                    thread::yield_now();
                    counter.store(seen + 1, Ordering::Relaxed);
                }
            });
        }
    });
    assert_eq!(counter.load(Ordering::Relaxed), 4_000);
}

/// A blocking thread, a tokio task and a smol task wait in one queue.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn executors_mix() {
    let (locks, counter) = (manager(), Arc::new(AtomicU32::new(0)));
    let held = locks.acquire("counter").await.unwrap();
    let on_tokio = tokio::spawn(count_up(locks.clone(), counter.clone()));
    let on_smol = smol::spawn(count_up(locks.clone(), counter.clone()));
    let blocking = {
        let (locks, counter) = (locks.clone(), counter.clone());
        thread::spawn(move || smol::block_on(count_up(locks, counter)))
    };
    held.release().unwrap();
    on_tokio.await.unwrap().unwrap();
    on_smol.await.unwrap();
    blocking.join().unwrap().unwrap();
    assert_eq!(counter.load(Ordering::Relaxed), 3 * TURNS);
}
