//! Bytes for each lock and each waiting request, and the largest step in which the manager grows.

use crate::engine::Engine;
use futures_lite::future::{block_on, poll_once};
use lockkeeper::Locks;
use std::{
    alloc::{GlobalAlloc, Layout, System},
    fmt::Write,
    pin::pin,
    sync::atomic::{AtomicUsize, Ordering::Relaxed},
    time::Instant,
};

static LIVE: AtomicUsize = AtomicUsize::new(0);
static ALLOCATED: AtomicUsize = AtomicUsize::new(0);

struct Counting;

// SAFETY: every call goes to the system's allocator unchanged.
#[allow(unsafe_code, reason = "an allocator that counts can be written in no other way")]
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        LIVE.fetch_add(layout.size(), Relaxed);
        ALLOCATED.fetch_add(layout.size(), Relaxed);
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        LIVE.fetch_sub(layout.size(), Relaxed);
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

const MILLION: usize = 1_000_000;

/// Bytes that `work` leaves allocated.
fn kept<R>(work: impl FnOnce() -> R) -> (f64, R) {
    let before = LIVE.load(Relaxed);
    let result = work();
    ((LIVE.load(Relaxed) - before) as f64, result)
}

pub fn table() -> String {
    let mut out = String::from("## Memory\n\n| | bytes each | target |\n|---|---|---|\n");
    let names: Vec<String> = (0..MILLION).map(|i| format!("resource/{i}")).collect();
    let mut row = |what: &str, bytes: f64, target: &str| {
        let _ = writeln!(out, "| {what} | {bytes:.1} | {target} |");
    };

    let (bytes, engine) = kept(|| {
        let mut engine = Engine::new();
        for name in &names {
            engine.request(name);
        }
        engine
    });
    row("1,000,000 locks held, the core alone", bytes / MILLION as f64, "160");
    drop(engine);
    let (bytes, engine) = kept(|| {
        let mut engine = Engine::new();
        for _ in 0..=MILLION {
            engine.request("hot");
        }
        engine
    });
    row("each of 1,000,000 requests that wait for one name, the core alone", bytes / MILLION as f64, "128");
    drop(engine);

    // What the async crate keeps in its manager. A guard or a future is its owner's, wherever that
    // puts it.
    let locks = Locks::new();
    let mut held = Vec::with_capacity(MILLION);
    let (bytes, ()) =
        kept(|| held.extend(names.iter().map(|name| locks.try_acquire(name).expect("a free name"))));
    row("1,000,000 locks held, the async crate", bytes / MILLION as f64, "160");
    drop(held);
    let locks = Locks::new();
    let _held = locks.try_acquire("hot").expect("a free name");
    let mut waiting: Vec<_> = (0..MILLION).map(|_| locks.acquire("hot")).collect();
    let (bytes, ()) = kept(|| {
        for request in &mut waiting {
            assert!(block_on(poll_once(pin!(request))).is_none());
        }
    });
    row("each of 1,000,000 requests that wait for one name, the async crate", bytes / MILLION as f64, "128");
    drop(waiting);

    out.push('\n');
    out.push_str(&growth());
    out
}

/// Grows to two million names and looks at the single inserts in which a part of the manager grew.
fn growth() -> String {
    let names: Vec<String> = (0..2 * MILLION).map(|i| format!("resource/{i}")).collect();
    let mut engine = Engine::new();
    let (mut steps, mut share) = (Vec::new(), 0.0f64);
    let before = LIVE.load(Relaxed);
    for (i, name) in names.iter().enumerate() {
        let (start, allocated) = (Instant::now(), ALLOCATED.load(Relaxed));
        engine.request(name);
        let moved = ALLOCATED.load(Relaxed) - allocated;
        // Small managers double in steps that are large for them and small for anybody else.
        if i >= MILLION && moved > 100_000 {
            steps.push(start.elapsed().as_secs_f64() * 1e3);
            share = share.max(moved as f64 / (LIVE.load(Relaxed) - before) as f64);
        }
    }
    steps.sort_by(f64::total_cmp);
    format!(
        "Growing from 1,000,000 to 2,000,000 names, {} inserts grew a table. The largest allocated {share:.4} of all \
         bytes in use (target: an insert moves at most 1/32 = 0.0313 of the entries); half of them took no more than \
         {:.2} ms, the slowest {:.2} ms.\n",
        steps.len(),
        steps[steps.len() / 2],
        steps[steps.len() - 1]
    )
}
