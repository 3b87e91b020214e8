//! The protocol as a stranger meets it: bytes on a Unix socket or a WebSocket, and a real daemon behind it, which is
//! killed for real.
//!
//! Nothing here waits for time to pass: whatever is waited for is a message.

mod client;
mod daemon;
mod handshake;
mod locks;
mod resume;
mod temp;
mod web;
