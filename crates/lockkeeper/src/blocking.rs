//! Waiting on a thread that has no executor.

use crate::agent::Agent;
use std::{
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::SeqCst},
    },
    task::{Context, Poll, Wake, Waker},
    thread::{self, Thread},
    time::Instant,
};

struct Sleeper {
    thread: Thread,
    woken: AtomicBool,
}

impl Wake for Sleeper {
    fn wake(self: Arc<Self>) {
        self.woken.store(true, SeqCst);
        self.thread.unpark();
    }
}

/// Runs a future to its end on this thread. If an agent is given, it is the agent's answer that is
/// waited for, and this thread hears it; until that time, from which on something else may wake it.
pub(crate) fn block_on<F: Future>(agent: Option<&Agent>, until: Option<Instant>, future: F) -> F::Output {
    let mut future = pin!(future);
    // An immediate grant needs no waker.
    if let Poll::Ready(output) = future.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
        return output;
    }
    let sleeper = Arc::new(Sleeper { thread: thread::current(), woken: AtomicBool::new(false) });
    let waker = Waker::from(Arc::clone(&sleeper));
    let mut cx = Context::from_waker(&waker);
    loop {
        if let Poll::Ready(output) = future.as_mut().poll(&mut cx) {
            return output;
        }
        if let Some(agent) = agent {
            agent.wait(|| sleeper.woken.load(SeqCst), until);
        }
        while !sleeper.woken.swap(false, SeqCst) {
            thread::park();
        }
    }
}
