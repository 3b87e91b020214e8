//! Memory: what is over leaves nothing behind. A manager grows with what is live at one time, and
//! not with what has come and gone.

use lockkeeper_core::{Manager, Mode::Exclusive, Options, Outcome, RequestId};
use std::{
    alloc::{GlobalAlloc, Layout, System},
    cell::Cell,
};

thread_local! {
    /// Bytes that this thread has allocated and not freed. Each test is a thread of its own.
    static LIVE_BYTES: Cell<isize> = const { Cell::new(0) };
}

struct Counting;

fn count(before: usize, after: usize) {
    LIVE_BYTES.set(LIVE_BYTES.get() + after.cast_signed() - before.cast_signed());
}

// SAFETY: every call goes to the system's allocator unchanged.
#[allow(unsafe_code, reason = "an allocator that counts can be written in no other way")]
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(0, layout.size());
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        count(layout.size(), 0);
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count(layout.size(), size);
        unsafe { System.realloc(pointer, layout, size) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Runs the rounds, and asserts that all but the first few leave the memory as they found it.
fn does_not_grow(rounds: u32, mut round: impl FnMut(u32)) {
    for warm_up in 0..rounds / 4 {
        round(warm_up);
    }
    let before = LIVE_BYTES.get();
    for number in rounds / 4..rounds {
        round(number);
    }
    let grown = LIVE_BYTES.get() - before;
    // Tables may still settle by a doubling of one of their parts; a leak of a few bytes per round
    // is far more.
    assert!(grown < 64 * 1024, "{grown} bytes more after {rounds} rounds");
}

fn request(
    manager: &mut Manager,
    client: lockkeeper_core::ClientId,
    name: &str,
    options: Options,
) -> RequestId {
    let mut effects = Vec::new();
    match manager.request(client, &[(name, Exclusive)], options, (), &mut effects).expect("accepted") {
        Outcome::Granted { request, .. } | Outcome::Queued { request } => request,
        Outcome::Unavailable => panic!("nobody asked not to wait"),
    }
}

#[test]
fn names_that_nobody_uses_any_more_are_forgotten() {
    let mut manager: Manager = Manager::default();
    let client = manager.client().unwrap();
    does_not_grow(200_000, |round| {
        let name = format!("a name that is too long to be kept without an allocation {round}");
        let lock = request(&mut manager, client, &name, Options::default());
        manager.release(lock, &mut Vec::new());
    });
}

/// Each name is left, comes back some thousand names later, stays for a while, and is left for
/// good.
#[test]
fn names_that_came_back_are_forgotten_when_they_are_left_again() {
    let mut manager: Manager = Manager::default();
    let client = manager.client().unwrap();
    let name = |number: u32| format!("a name that is too long to be kept without an allocation {number}");
    let mut back = std::collections::VecDeque::new();
    does_not_grow(200_000, |round| {
        let lock = request(&mut manager, client, &name(round), Options::default());
        manager.release(lock, &mut Vec::new());
        if let Some(again) = round.checked_sub(900) {
            back.push_back(request(&mut manager, client, &name(again), Options::default()));
        }
        if back.len() > 300 {
            let lock = back.pop_front().expect("three hundred are back");
            manager.release(lock, &mut Vec::new());
        }
    });
}

#[test]
fn requests_and_what_is_nested_in_them_leave_nothing_behind() {
    let mut manager: Manager = Manager::default();
    let client = manager.client().unwrap();
    does_not_grow(100_000, |_| {
        let outer = request(&mut manager, client, "a", Options::default());
        let nested = Options { nested_in: Some(outer), ..Options::default() };
        let inner = request(&mut manager, client, "b", nested);
        let waiting = request(&mut manager, client, "b", nested);
        let refused = Options { refuse_deadlock: true, ..nested };
        assert!(manager.request(client, &[("a", Exclusive)], refused, (), &mut Vec::new()).is_err());
        manager.abort(waiting, &mut Vec::new());
        manager.release(outer, &mut Vec::new());
        manager.release(inner, &mut Vec::new());
    });
}

#[test]
fn clients_that_are_gone_leave_nothing_behind() {
    let mut manager: Manager = Manager::default();
    does_not_grow(100_000, |_| {
        let client = manager.client().unwrap();
        request(&mut manager, client, "a", Options::default());
        request(&mut manager, client, "a", Options::default());
        request(&mut manager, client, "b", Options { steal: true, ..Options::default() });
        manager.client_gone(client, &mut Vec::new());
    });
}
