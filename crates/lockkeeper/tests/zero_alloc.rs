//! Taking a lock that is free, with a name of up to 24 bytes, allocates nothing.

use lockkeeper::Locks;
use std::{
    alloc::{GlobalAlloc, Layout, System},
    cell::Cell,
};

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

struct Counting;

// SAFETY: every call goes to the system's allocator unchanged.
#[allow(unsafe_code, reason = "an allocator that counts can be written in no other way")]
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.set(ALLOCATIONS.get() + 1);
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

fn allocations(work: impl FnOnce()) -> u64 {
    let before = ALLOCATIONS.get();
    work();
    ALLOCATIONS.get() - before
}

#[test]
fn an_uncontended_lock_with_a_short_name_allocates_nothing() {
    let names: Vec<String> = (0..1_000).map(|i| format!("exactly-24-byte-name-{i:03}")).collect();
    assert!(names.iter().all(|name| name.len() == 24));
    let locks = Locks::new();
    let take_all = || {
        smol::future::block_on(async {
            for name in &names {
                drop(locks.acquire(name).await.unwrap());
                locks.request(name).shared().run(async |_| ()).await.unwrap();
                drop(locks.try_acquire(name).unwrap());
            }
        });
    };
    take_all();
    assert_eq!(allocations(take_all), 0);
    let long = "a name that is longer than twenty-four bytes";
    assert!(allocations(|| drop(locks.try_acquire(long).unwrap())) > 0, "the counter counts");
}
