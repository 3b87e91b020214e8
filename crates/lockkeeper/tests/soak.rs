//! Every way to wait for a lock, all at once and for a while: nobody is left waiting. `cargo xtask
//! soak` does it for longer; two threads that miss each other once in ten million locks are not
//! found in a second.

mod common;

use common::manager;
use lockkeeper::Error;
use smol::future;
use std::{
    env,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

/// No request here waits that long: one that has not ended by then never will.
const NEVER: Duration = Duration::from_secs(60);

#[test]
fn whoever_waits_gets_on() {
    let seconds =
        env::var("LOCKKEEPER_SOAK").map_or(1, |seconds| seconds.parse().expect("a number of seconds"));
    let manager = manager();
    let client = || Arc::new(manager.client_blocking().unwrap());
    let mut soak = Soak::default();
    for number in 0..4 {
        let (locks, name) = (client(), format!("own {number}"));
        soak.spawn("a name of its own", move || locks.acquire_blocking(&*name)?.release());
    }
    for _ in 0..3 {
        let locks = client();
        soak.spawn("a name of many clients", move || locks.acquire_blocking("many")?.release());
    }
    let shared = client();
    for number in 0..3 {
        let (locks, name) = (Arc::clone(&shared), format!("threads {}", number % 2));
        soak.spawn("a name of many threads", move || locks.acquire_blocking(&*name)?.release());
    }
    for number in 0..2 {
        let (locks, name) = (Arc::clone(&shared), format!("tasks {number}"));
        soak.spawn("a task", move || future::block_on(async { locks.acquire(&*name).await?.release() }));
        let (locks, name) = (Arc::clone(&shared), format!("tasks {number}"));
        soak.spawn("a closure", move || future::block_on(locks.request(&*name).run(async |_| {})));
    }
    for micros in [20, 100] {
        let locks = Arc::clone(&shared);
        soak.spawn("little time", move || {
            let request = locks.request("many").timeout(Duration::from_micros(micros));
            match request.acquire_blocking() {
                Ok(lock) => lock.release(),
                Err(Error::TimedOut) => Ok(()),
                Err(error) => Err(error),
            }
        });
    }
    let locks = client();
    soak.spawn("no time", move || locks.try_acquire("many").map(drop));
    let (victim, thief) = (client(), client());
    soak.spawn("a victim", move || {
        match victim.acquire_blocking("preempted").and_then(|lock| lock.release()) {
            Err(Error::Stolen) => Ok(()),
            done => done,
        }
    });
    soak.spawn("a thief", move || {
        drop(thief.request("preempted").steal().acquire_blocking()?);
        thread::sleep(Duration::from_micros(100));
        Ok(())
    });
    let locks = client();
    soak.spawn("a question", move || {
        thread::sleep(Duration::from_millis(1));
        locks.query_blocking().map(drop)
    });
    thread::sleep(Duration::from_secs(seconds));
    soak.end();
}

/// Threads that do something again and again until it is over.
#[derive(Default)]
struct Soak {
    over: Arc<AtomicBool>,
    threads: Vec<(&'static str, JoinHandle<()>)>,
}

impl Soak {
    fn spawn(&mut self, what: &'static str, again: impl Fn() -> Result<(), Error> + Send + 'static) {
        let over = Arc::clone(&self.over);
        let work = move || {
            while !over.load(Relaxed) {
                again().expect(what);
            }
        };
        self.threads.push((what, thread::spawn(work)));
    }

    fn end(self) {
        self.over.store(true, Relaxed);
        let never = Instant::now() + NEVER;
        for (what, thread) in self.threads {
            while !thread.is_finished() {
                assert!(Instant::now() < never, "left waiting: {what}");
                thread::sleep(Duration::from_millis(1));
            }
            thread.join().expect(what);
        }
    }
}
