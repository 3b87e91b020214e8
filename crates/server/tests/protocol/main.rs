//! The protocol as a stranger meets it: bytes on a Unix socket or a WebSocket, and a real daemon behind it, which is
//! killed for real.
//!
//! Nothing here waits for time to pass: whatever is waited for is a message.

mod client;
mod daemon;
mod fifo;
mod handshake;
mod locks;
mod process;
mod resume;
mod temp;
mod web;

/// Whether tests that need a namespace of their own are to be left out.
fn mounts_are_skipped(name: &str) -> bool {
    let skipped = std::env::var_os("LOCKKEEPER_SKIP_MOUNT").is_some_and(|value| value == "1");
    if skipped {
        eprintln!("SKIPPED {name}: LOCKKEEPER_SKIP_MOUNT is set");
    }
    skipped
}
